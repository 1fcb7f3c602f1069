//! `/dev/vda` and so on: a disk as a file.
//!
//! Every transfer goes to the disk itself, through page frames that it takes for the time being:
//! there is no cache between, so what a file system on the same disk has not written yet is not
//! seen, and nothing that is written here waits to be flushed but by the disk. With `O_DIRECT`
//! whole pages move to and from the program's own, pinned for the time of one request and with
//! nothing of that in its map. Where a transfer doesn't begin or end with a sector, that sector is
//! read first, under the disk's `partial` lock.
//!
//! Road not taken: a page cache of the device's own. It would serve `mkfs` and little else, and
//! would have to agree with the file system's.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::mem::frames::Reserve;
use arrayvec::ArrayVec;
use linux_raw_sys::ioctl as abi;
use machine::{PageNo, PAGE_SIZE};

use crate::arch::bytes::PageBytes;
use crate::block::{by_number, Bytes, Disk, Op, MAX_PAGES, SECTOR};
use crate::errno::*;
use crate::fs::ops::*;
use crate::fs::File;
use crate::mem::frames::{unlocked, KERNEL};
use crate::uio::{Sink, Source};
use crate::{proc, user, vm};

/// Pages of a program that one request pins at most.
const DIRECT_PAGES: u64 = 32;

/// Opens the disk with this device number.
pub fn open(number: u64, flags: u32) -> Result<FileRef> {
    let disk = by_number(number).ok_or(ENXIO)?;
    if flags & linux_raw_sys::general::O_EXCL != 0 && disk.is_claimed() {
        return Err(EBUSY);
    }
    Ok(Arc::new(Node { disk: disk.clone() }))
}

struct Node {
    disk: Arc<Disk>,
}

/// Page frames for the time of a transfer.
struct Frames(ArrayVec<PageNo, MAX_PAGES>);

impl Frames {
    /// At most `count` frames, at least one.
    fn take(count: usize) -> Result<Frames> {
        let one = || unlocked(|held| KERNEL.frames().alloc(&KERNEL, held, Reserve::User));
        let mut frames = Frames(ArrayVec::new());
        frames.0.push(vm::with_room(one)?);
        while frames.0.len() < count.min(MAX_PAGES) {
            let Ok(page) = one() else { break };
            frames.0.push(page);
        }
        Ok(frames)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        for &page in &self.0 {
            unlocked(|held| KERNEL.frames().free_page(&KERNEL, held, page));
        }
    }
}

/// Part of a transfer: bytes of the disk, and the whole pages' worth of sectors around them.
struct Part {
    sector: u64,
    /// Where the bytes begin behind `sector`, and how many there are.
    skip: usize,
    len: usize,
    pages: usize,
}

impl Node {
    /// The next part of a transfer of `left` bytes at `at`; `None` at the end of the disk.
    fn part(&self, at: u64, left: usize) -> Option<Part> {
        let room = self.size().checked_sub(at).filter(|&room| room > 0)?;
        let skip = (at % SECTOR as u64) as usize;
        let most = self.disk.max_pages() * PAGE_SIZE - skip;
        let len = left.min(most).min(usize::try_from(room).unwrap_or(usize::MAX));
        Some(Part {
            sector: at / SECTOR as u64,
            skip,
            len,
            pages: (skip + len).div_ceil(PAGE_SIZE),
        })
    }

    /// Moves the sectors of a part between disk and frames: whole pages in one request, what is
    /// left in another.
    fn transfer(&self, op: Op, part: &Part, frames: &[PageNo]) -> Result<()> {
        let bytes = (part.skip + part.len).next_multiple_of(SECTOR);
        let whole = bytes / PAGE_SIZE;
        if whole > 0 {
            self.disk.transfer_pages(op, part.sector, &frames[..whole])?;
        }
        let rest = bytes % PAGE_SIZE;
        if rest > 0 {
            let sector = part.sector + (whole * PAGE_SIZE / SECTOR) as u64;
            // SAFETY: the frame is the caller's.
            let bytes = unsafe { Bytes::of_page(frames[whole], rest) };
            self.disk.transfer_bytes(op, sector, bytes)?;
        }
        Ok(())
    }
}

/// Calls `each` with the bytes of a part, page by page, until it takes less than it is given;
/// returns how many it took.
fn walk(
    part: &Part,
    frames: &[PageNo],
    mut each: impl FnMut(PageBytes) -> Result<usize>,
) -> Result<usize> {
    let (mut at, end) = (part.skip, part.skip + part.len);
    while at < end {
        let inside = at % PAGE_SIZE;
        let len = (PAGE_SIZE - inside).min(end - at);
        match each(KERNEL.bytes(frames[at / PAGE_SIZE]).part(inside, len)) {
            Ok(taken) => at += taken,
            Err(error) if at == part.skip => return Err(error),
            Err(_) => break,
        }
        if at % PAGE_SIZE != 0 {
            break;
        }
    }
    Ok(at - part.skip)
}

impl FileOps for Node {
    fn size(&self) -> u64 {
        self.disk.sectors() * SECTOR as u64
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let start = to.done();
        while to.left() > 0 {
            let Some(mut part) = self.part(at + (to.done() - start) as u64, to.left()) else {
                break;
            };
            let direct = to.whole_pages().filter(|_| is_direct(file, &part));
            let moved = (|| {
                if let Some((addr, pages)) = direct {
                    part.len = self.direct(Op::Read, &part, addr, pages)?;
                    to.skip(part.len);
                    return Ok(part.len);
                }
                let frames = Frames::take(part.pages)?;
                part.len = part.len.min(frames.0.len() * PAGE_SIZE - part.skip);
                self.transfer(Op::Read, &part, &frames.0)?;
                walk(&part, &frames.0, |bytes| to.put_page(bytes))
            })();
            match moved {
                Ok(moved) if moved == part.len => {}
                Ok(_) => break,
                Err(error) if to.done() == start => return Err(error),
                Err(_) => break,
            }
        }
        Ok(to.done() - start)
    }

    fn write(&self, file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        if self.disk.is_read_only() {
            return Err(EPERM);
        }
        let at = if let Position::At(at) = at { at } else { self.size() };
        let mut done = 0;
        while from.left() > 0 {
            let Some(part) = self.part(at + done as u64, from.left()) else { break };
            let direct = from.whole_pages().filter(|_| is_direct(file, &part));
            let written = match direct {
                Some((addr, pages)) => self
                    .direct(Op::Write, &part, addr, pages)
                    .map(|len| (from.skip(len), Whole::Yes)),
                None => self.write_part(part, from),
            };
            match written {
                Ok((moved, Whole::Yes)) => done += moved,
                Ok((moved, Whole::No)) => {
                    done += moved;
                    break;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if done == 0 && from.left() > 0 {
            return Err(ENOSPC);
        }
        Ok((done, at + done as u64))
    }

    fn ioctl(&self, _file: &File, request: u32, arg: u64) -> Result<u64> {
        match request {
            abi::BLKGETSIZE64 => user::put(arg, &self.size())?,
            abi::BLKGETSIZE => user::put(arg, &self.disk.sectors())?,
            abi::BLKSSZGET | abi::BLKPBSZGET => user::put(arg, &(SECTOR as u32))?,
            abi::BLKBSZGET => user::put(arg, &(PAGE_SIZE as u64))?,
            abi::BLKROGET => user::put(arg, &u32::from(self.disk.is_read_only()))?,
            abi::BLKFLSBUF if self.disk.is_read_only() => {}
            abi::BLKFLSBUF => self.disk.flush()?,
            _ => return Err(ENOTTY),
        }
        Ok(0)
    }

    fn stored(&self) -> Option<&dyn Stored> {
        Some(self)
    }
}

impl Stored for Node {
    fn sync(&self) -> Result<()> {
        self.disk.flush()
    }

    fn swap_extents(&self) -> Result<Vec<Extent>> {
        if self.disk.is_read_only() {
            return Err(EINVAL);
        }
        self.disk.claim()?;
        let pages = self.size() / PAGE_SIZE as u64;
        Ok(vec![Extent { page: 0, disk: self.disk.clone(), sector: 0, pages }])
    }

    fn swap_release(&self) {
        self.disk.release_claim();
    }
}

/// Whether a part goes to or comes from the program's own pages: asked for by `O_DIRECT`, from a
/// sector's start on, for a page at least.
fn is_direct(file: &File, part: &Part) -> bool {
    file.flags() & linux_raw_sys::general::O_DIRECT != 0 && part.skip == 0 && part.len >= PAGE_SIZE
}

/// Whether a write took all that it was offered.
enum Whole {
    Yes,
    No,
}

impl Node {
    /// Moves whole pages between the disk and the program's pages at `addr`, which are pinned
    /// meanwhile: physio. Returns how many bytes that were.
    fn direct(&self, op: Op, part: &Part, addr: u64, pages: u64) -> Result<usize> {
        let access = if op == Op::Read { vm::Access::Write } else { vm::Access::Read };
        let space = proc::current_thread().space().ok_or(EFAULT)?;
        let pages = pages.min((part.len / PAGE_SIZE) as u64).min(DIRECT_PAGES);
        let pins = vm::Pins::new(&space, addr, pages, access)?;
        self.disk.transfer_pages(op, part.sector, pins.pages())?;
        Ok(pins.pages().len() * PAGE_SIZE)
    }

    /// Writes one part; what its first and last sector hold beside it is read first.
    fn write_part(&self, mut part: Part, from: &mut Source<'_>) -> Result<(usize, Whole)> {
        let frames = Frames::take(part.pages)?;
        part.len = part.len.min(frames.0.len() * PAGE_SIZE - part.skip);
        let ragged = !part.skip.is_multiple_of(SECTOR) || !part.len.is_multiple_of(SECTOR);
        let _partial = ragged.then(|| self.disk.lock_partial());
        if ragged {
            self.transfer(Op::Read, &part, &frames.0)?;
        }
        let offered = part.len;
        let moved = walk(&part, &frames.0, |bytes| from.get_page(bytes))?;
        if moved < offered {
            // A bad pointer on the way: what had come is written, in whole sectors or as far as
            // they were read before.
            part.len = if ragged { moved } else { moved / SECTOR * SECTOR };
        }
        if part.len > 0 {
            self.transfer(Op::Write, &part, &frames.0)?;
        }
        Ok((part.len, if moved < offered { Whole::No } else { Whole::Yes }))
    }
}
