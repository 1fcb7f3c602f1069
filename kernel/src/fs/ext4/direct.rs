//! `O_DIRECT`: a file's bytes move between the disk and the program's own pages, past the cache.
//!
//! ```text
//!   read    write back what the cache has changed --> pin --> one request per run of blocks --> unpin
//!   write   write back, free --> pin --> blocks reserved, request --> unpin --> free what came in meanwhile
//! ```
//! Pages are pinned for the time of one request by a value on this stack: nothing of it is in the
//! program's map (1999, section 3.2). Position, length and address must be multiples of a sector,
//! else it is `EINVAL`, as on Linux. Of that, whole pages at a page's start move so; the rest, and
//! what a page of the file that is in use would not agree with, goes through the cache
//! and to the disk before the call returns.
//!
//! I1: the whole call holds `writer`, reads together and a write alone: a truncation frees no block
//! that a request is under way to. I2: blocks that are reserved are written whole by the request,
//! so no program sees what they held before.

use linux_raw_sys::general::O_DIRECT;
use machine::PAGE_SIZE;

use super::file::Contents;
use crate::block::{Op, SECTOR};
use crate::errno::{Result, EINVAL};
use crate::fs::file::File;
use crate::uio::{outcome, Sink, Source};
use crate::vm::{self, Dir};
use crate::{upcalls, vm::Pins};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that one request pins at most.
const MOST: u64 = 32;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    /// By the page cache.
    Cache,
    /// Past the page cache.
    Past,
}

impl Through {
    pub(super) fn of(file: &File) -> Through {
        if file.flags() & O_DIRECT != 0 {
            Through::Past
        } else {
            Through::Cache
        }
    }
}

/// Fails if a write past the cache doesn't begin and end with sectors.
pub(super) fn check_source(at: u64, from: &Source<'_>) -> Result<()> {
    check(at, from.is_multiple_of(SECTOR))
}

fn check(at: u64, memory: bool) -> Result<()> {
    if memory && at.is_multiple_of(SECTOR as u64) {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// Moves a range piece by piece to or from `end`, which counts what it has `done`; as far as that
/// goes. Returns how much it was.
fn in_pieces<T>(
    at: u64,
    len: u64,
    end: &mut T,
    done: impl Fn(&T) -> usize,
    piece: impl Fn(u64, u64, &mut T) -> Result<()>,
) -> (u64, Result<()>) {
    let start = done(end);
    let mut moved = 0;
    while moved < len {
        let result = piece(at + moved, len - moved, end);
        let now = (done(end) - start) as u64;
        if result.is_err() || now == moved {
            return (now, result);
        }
        moved = now;
    }
    (moved, Ok(()))
}

impl Contents {
    /// Reads past the cache; what is newer there is written first.
    pub(super) fn read_past(&self, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if at >= self.size() || to.left() == 0 {
            return Ok(0);
        }
        check(at, to.is_multiple_of(SECTOR))?;
        let _writer = self.writer.share();
        let len = self.size().saturating_sub(at).min(to.left() as u64);
        self.object.clean_range(at, len)?;
        let (done, result) =
            in_pieces(at, len, to, |to| to.done(), |at, len, to| self.read_piece(at, len, to));
        outcome(done as usize, result)
    }

    /// Reads the next piece: what lies together on the disk, or nowhere, or a part of a page.
    fn read_piece(&self, at: u64, len: u64, to: &mut Sink<'_>) -> Result<()> {
        let runs = self.backing.runs()?;
        let first = runs.partition_point(|run| run.at + run.len <= at);
        let next = runs[first..].first();
        let run = match next {
            Some(run) if run.at <= at && !run.unwritten => run,
            _ => {
                let end =
                    next.map_or(
                        u64::MAX,
                        |run| if run.at > at { run.at } else { run.at + run.len },
                    );
                return to.zero((end - at).min(len) as usize).map(drop);
            }
        };
        let together = (run.at + run.len - at).min(len);
        if let Some((addr, pages)) = to.whole_pages().filter(|_| together >= PAGE) {
            let space = upcalls::space()?;
            let pins =
                Pins::new(&space, addr, pages.min(together / PAGE).min(MOST), vm::Access::Write)?;
            let sector = (run.disk + (at - run.at)) / SECTOR as u64;
            self.backing.fs.data.disk.transfer_pages(Op::Read, sector, pins.pages())?;
            to.skip(pins.pages().len() * PAGE_SIZE);
            return Ok(());
        }
        let part = (PAGE - at % PAGE).min(len);
        vm::object_io(&self.object, at, part, Dir::Read, &mut |_, bytes| to.put_page(bytes))
    }

    /// Writes past the cache; with `writer` held alone, room promised and the size as it will be.
    /// What could not be written has no promise any more.
    pub(super) fn write_past(&self, at: u64, len: u64, from: &mut Source<'_>) -> Result<()> {
        let (done, result) = in_pieces(
            at,
            len,
            from,
            |from| from.done(),
            |at, len, from| self.write_piece(at, len, from),
        );
        if done < len {
            self.backing.release_pending((at + done).next_multiple_of(PAGE), at + len);
        }
        result
    }

    fn write_piece(&self, at: u64, len: u64, from: &mut Source<'_>) -> Result<()> {
        let whole = from.whole_pages().filter(|_| at.is_multiple_of(PAGE) && len >= PAGE);
        let mut part = (PAGE - at % PAGE).min(len);
        if let Some((addr, pages)) = whole {
            let pages = pages.min(len / PAGE).min(MOST);
            let space = upcalls::space()?;
            // Before the pins: what is pinned stays.
            if self.object.invalidate(at, pages * PAGE)? {
                let pins = Pins::new(&space, addr, pages, vm::Access::Read)?;
                part = pins.pages().len() as u64 * PAGE;
                self.backing.write_direct(at, pins.pages())?;
                drop(pins);
                if self.object.invalidate(at, part)? {
                    from.skip(part as usize);
                    return Ok(());
                }
            }
        }
        self.change(at, part, &mut |bytes| from.get_page(bytes))?;
        self.object.clean_range(at, part)
    }
}
