//! Where a file's pages come from and go to: the pager's side of a file.
//!
//! ```text
//!   fault, read(2) --> VnodePager --> Backing::read   extents, looked up once per cluster --> one request per run
//!   flusher, fsync --> VnodePager --> Backing::write  blocks reserved under the volume's lock, then one request per run
//! ```
//! A file's extents are remembered: reading, and writing over what is there, takes no lock but for
//! that table.
//!
//! I1: what is remembered is the volume's table as of the last change of it; a thread that changes
//! it forgets it before the volume is unlocked. I2: `size` is the size that programs see; it is
//! stored before pages behind it go, so that no write takes them to the disk any more. I3: a page
//! in `pending` was written by a program, or reserved in a file without a name, has no block, and
//! has one set aside in `Fs::pending`.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use machine::{Machine, PageNo, Pages, PAGE_SIZE};
use volume::Run;

use super::device::Blocks;
use super::ranges::Ranges;
use super::{errno, Fs, Volume};
use crate::block::{Op, SECTOR};
use crate::charge::{self, Charge};
use crate::errno::{Errno, Result, EFBIG, EIO, ENOMEM, ENOSPC};
use crate::mem::frames::{KernelMachine, KERNEL};
use crate::sched;
use crate::sync::SpinLock;
use crate::vm::{self, GetError, Transfer, Vnode};

const PAGE: u64 = PAGE_SIZE as u64;

/// Ranges of `pending` that are looked at with it locked, and what the work of that comes to in
/// bytes copied.
const RANGES_AT_ONCE: usize = 64;
const PART: usize = 4096;
/// Bytes that a range takes.
const RANGE: usize = 48;
/// Bytes that are given blocks between two looks at how many pieces that made.
const ALLOCATED_AT_ONCE: u64 = 32 << 20;

type Runs = Arc<[Run]>;

pub(super) struct Backing {
    pub(super) fs: Arc<Fs>,
    pub(super) ino: u32,
    size: AtomicU64,
    /// The size that the disk has.
    disk_size: AtomicU64,
    /// What the disk has allocated, in units of 512 bytes.
    sectors: AtomicU64,
    runs: SpinLock<Option<Runs>>,
    pending: SpinLock<Ranges>,
    /// For how many ranges of `pending` that have no pages a user pays.
    kept: SpinLock<(usize, Option<Charge>)>,
    /// The file has no name any more: blocks are set aside for it in `pending` alone, since those
    /// on the disk would be lost in a crash. Changes with the volume locked.
    deleted: AtomicBool,
    /// Pages may be dirty.
    dirty: AtomicBool,
    /// Why the last write failed.
    failure: AtomicI32,
}

/// Where a page lies.
enum Place {
    /// Nowhere: it is zeroes.
    Zeroes,
    Disk(u64),
    /// In parts: blocks are smaller than pages.
    Parts,
}

fn place(runs: &[Run], at: u64, size: u64) -> Place {
    if at >= size {
        return Place::Zeroes;
    }
    match inside(runs, at, at + PAGE).find(|run| !run.unwritten) {
        None => Place::Zeroes,
        Some(run) if run.at <= at && at + PAGE <= run.at + run.len => {
            Place::Disk(run.disk + (at - run.at))
        }
        Some(_) => Place::Parts,
    }
}

/// Where a page lies, if it does so in one piece, and how many follow it there, of `most`.
fn together(runs: &[Run], at: u64, most: usize) -> (Option<u64>, usize) {
    let Place::Disk(disk) = place(runs, at, u64::MAX) else { return (None, 1) };
    let follows = |n: &usize| {
        let offset = *n as u64 * PAGE;
        matches!(place(runs, at + offset, u64::MAX), Place::Disk(there) if there == disk + offset)
    };
    (Some(disk), 1 + (1..most).take_while(follows).count())
}

/// The parts of written runs that lie in a range of a page: offset in the page, place on the disk,
/// bytes; whole sectors.
fn parts(runs: &[Run], range: Range<u64>) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
    let Range { start, end } = range;
    let end = end.next_multiple_of(SECTOR as u64);
    inside(runs, start, end).filter(|run| !run.unwritten).map(move |run| {
        let (from, to) = (run.at.max(start), (run.at + run.len).min(end));
        ((from % PAGE) as usize, run.disk + (from - run.at), (to - from) as usize)
    })
}

/// The runs of which something lies in `start..end`.
fn inside(runs: &[Run], start: u64, end: u64) -> impl Iterator<Item = &Run> {
    let first = runs.partition_point(|run| run.at + run.len <= start);
    runs[first..].iter().take_while(move |run| run.at < end)
}

/// The pages of which a range has no blocks somewhere, in ascending ranges.
fn lacking(runs: &[Run], at: u64, len: u64) -> impl Iterator<Item = Range<u64>> + '_ {
    let end = at + len;
    let ends = inside(runs, at, end)
        .map(|run| (run.at, run.at + run.len))
        .chain(core::iter::once((end, end)));
    // Up to where blocks have been looked for, and pages been told.
    let (mut next, mut told) = (at, 0);
    ends.filter_map(move |(from, to)| {
        let gap = core::mem::replace(&mut next, to)..from;
        let pages = told.max(gap.start / PAGE)..gap.end.div_ceil(PAGE);
        if gap.is_empty() || pages.is_empty() {
            return None;
        }
        told = pages.end;
        Some(pages)
    })
}

/// Whether written runs leave nothing of a range out.
fn covers(runs: &[Run], at: u64, end: u64) -> bool {
    reaches(runs, at, end, |run| !run.unwritten)
}

/// Whether a range has blocks everywhere, written to or not.
fn has_blocks(runs: &[Run], at: u64, end: u64) -> bool {
    reaches(runs, at, end, |_| true)
}

fn reaches(runs: &[Run], mut at: u64, end: u64, counts: impl Fn(&Run) -> bool) -> bool {
    let first = runs.partition_point(|run| run.at + run.len <= at);
    for run in &runs[first..] {
        if at >= end || run.at > at || !counts(run) {
            break;
        }
        at = run.at + run.len;
    }
    at >= end
}

impl Backing {
    pub(super) fn new(fs: &Arc<Fs>, ino: u32, size: u64, sectors: u64) -> Backing {
        Backing {
            fs: fs.clone(),
            ino,
            size: AtomicU64::new(size),
            disk_size: AtomicU64::new(size),
            sectors: AtomicU64::new(sectors),
            runs: SpinLock::new(None),
            pending: SpinLock::new(Ranges::new()),
            kept: SpinLock::new((0, None)),
            deleted: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            failure: AtomicI32::new(EIO.0),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        self.mark_dirty();
    }

    /// Disk space in units of 512 bytes, with what has been promised.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors.load(Ordering::Relaxed) + self.pending.lock().total() * (PAGE / 512)
    }

    pub(super) fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Says that it is clean, before it is made so; returns what it was.
    pub(super) fn take_dirty(&self) -> bool {
        self.dirty.swap(false, Ordering::AcqRel)
    }

    /// Whether the disk has another size than programs see.
    pub(super) fn size_differs(&self) -> bool {
        self.size() != self.disk_size.load(Ordering::Acquire)
    }

    /// Why pages could not be written, as far as it isn't known already.
    pub(super) fn take_failure(&self) -> Errno {
        Errno(self.failure.swap(EIO.0, Ordering::Relaxed))
    }

    /// Where the file lies.
    pub(super) fn runs(&self) -> Result<Runs> {
        match self.known_runs() {
            Some(runs) => Ok(runs),
            None => self.load(&mut *self.fs.volume_with_room()?),
        }
    }

    /// Like [`runs`](Self::runs), on the way of writes, which memory may be waiting for.
    fn runs_for_writing(&self) -> Result<Runs> {
        match self.known_runs() {
            Some(runs) => Ok(runs),
            None => self.load(&mut self.fs.volume()),
        }
    }

    fn known_runs(&self) -> Option<Runs> {
        self.runs.lock().clone()
    }

    fn load(&self, volume: &mut Volume) -> Result<Runs> {
        let runs: Runs = volume.extents(self.ino, 0, i64::MAX as u64).map_err(errno)?.into();
        self.fs.cache.has_runs(runs.len());
        *self.runs.lock() = Some(runs.clone());
        Ok(runs)
    }

    /// Forgets where the file lies: the next look asks the volume again.
    pub(super) fn forget_runs(&self) {
        let runs = self.runs.lock().take();
        drop(runs);
    }

    /// After a change of where the file lies, under the volume's lock (I1).
    pub(super) fn changed(&self, volume: &mut Volume) {
        self.forget_runs();
        if let Ok(now) = volume.attributes(self.ino) {
            self.sectors.store(now.blocks, Ordering::Relaxed);
            self.disk_size.store(now.size, Ordering::Release);
        }
        self.fs.changed(volume);
    }

    /// Does something with `pending` and a range, part by part; others run in between.
    fn in_parts(
        &self,
        mut left: Range<u64>,
        mut act: impl FnMut(&mut Ranges, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        while !left.is_empty() {
            let mut pending = self.pending.lock();
            let part = pending.part(&left, RANGES_AT_ONCE);
            left.start = part.end;
            act(&mut pending, part)?;
            drop(pending);
            sched::work_done(PART);
        }
        Ok(())
    }

    /// Sets a page's blocks aside for each page of which a range is about to be written that has no
    /// blocks there.
    ///
    /// # Errors
    /// `ENOSPC`: the disk has not that many; `EFBIG`: the file lies in too many pieces.
    pub(super) fn promise(&self, at: u64, len: u64) -> Result<()> {
        self.promise_beside(&self.runs()?, at, len, self.fs.kept_from_caller()).1
    }

    /// Like [`promise`](Self::promise), up to where there is room.
    pub(super) fn promise_what_fits(&self, at: u64, len: u64) -> Result<(u64, Result<()>)> {
        Ok(self.promise_beside(&self.runs()?, at, len, self.fs.kept_from_caller()))
    }

    /// Promises room, up to where there is some, and leaves `kept` pages of it.
    fn promise_beside(&self, runs: &[Run], at: u64, len: u64, kept: u64) -> (u64, Result<()>) {
        for pages in lacking(runs, at, len) {
            let mut end = pages.start;
            let promised = self.in_parts(pages, |pending, part| {
                self.set_aside_for(pending, (runs.len(), kept), part, &mut end)
            });
            if promised.is_err() {
                return ((end * PAGE).max(at), promised);
            }
        }
        (at + len, Ok(()))
    }

    /// Sets room aside for pages of a file with so many runs, in halves where the disk has not
    /// enough for all and `kept` pages; `end` is up to where.
    fn set_aside_for(
        &self,
        pending: &mut Ranges,
        (runs, kept): (usize, u64),
        mut left: Range<u64>,
        end: &mut u64,
    ) -> Result<()> {
        let mut most = u64::MAX;
        while !left.is_empty() {
            let next = left.start..left.end.min(left.start.saturating_add(most));
            let len = next.end - next.start;
            let new = len - pending.count(next.clone());
            if new != 0 && runs + pending.pieces() >= super::most_pieces() {
                return Err(EFBIG);
            }
            if new == 0 || self.fs.set_aside(new, kept) {
                pending.insert(next.clone());
                (left.start, *end) = (next.end, next.end);
            } else if len > 1 {
                most = len / 2;
            } else {
                return Err(ENOSPC);
            }
        }
        Ok(())
    }

    /// Like [`promise`](Self::promise); a disk that seems full is asked for more first.
    pub(super) fn promise_at_last(&self, at: u64, len: u64) -> Result<()> {
        self.at_last(|| self.promise(at, len))
    }

    /// Tries again what found no room, after the most has been made of the disk: what is promised
    /// may need less than it was thought to, and deleted files may still have their blocks.
    fn at_last(&self, attempt: impl Fn() -> Result<()>) -> Result<()> {
        match attempt() {
            Err(ENOSPC) => {}
            other => return other,
        }
        self.fs.flush();
        self.fs.commit()?;
        attempt()
    }

    /// Gives a range blocks, unwritten, but none that were set aside for what has been written and
    /// has none yet.
    pub(super) fn allocate(&self, at: u64, len: u64) -> Result<()> {
        let once = || {
            let runs = self.runs()?;
            let mut new = 0;
            for pages in lacking(&runs, at, len) {
                self.in_parts(pages, |pending, part| {
                    new += part.end - part.start - pending.count(part);
                    Ok(())
                })?;
            }
            if new == 0 && has_blocks(&runs, at, at + len) {
                return Ok(());
            }
            if new != 0 && !self.fs.set_aside(new, self.fs.kept_from_caller()) {
                return Err(ENOSPC);
            }
            let mut volume = self.fs.volume();
            let done = if self.deleted.load(Ordering::Acquire) {
                lacking(&runs, at, len).try_for_each(|pages| self.keep(pages))
            } else {
                self.allocate_in_steps(&mut volume, at, at + len)
            };
            self.fs.give_back(new);
            done
        };
        self.at_last(once)
    }

    fn allocate_in_steps(&self, volume: &mut Volume, mut at: u64, end: u64) -> Result<()> {
        while at < end {
            let step = (at + ALLOCATED_AT_ONCE).min(end);
            let done = volume.allocate(self.ino, at, step - at);
            self.changed(volume);
            done.map_err(errno)?;
            if self.load(volume)?.len() > super::most_pieces() {
                return Err(EFBIG);
            }
            at = step;
        }
        Ok(())
    }

    /// Promises room that is known to be there to pages of a file without a name, at its user's
    /// charge.
    fn keep(&self, pages: Range<u64>) -> Result<()> {
        self.in_parts(pages, |pending, part| {
            self.pay_for(pending.pieces() + 1)?;
            self.fs.keep_aside(pending.insert(part));
            Ok(())
        })
    }

    /// Charges the calling process for ranges that no page has to be kept for.
    fn pay_for(&self, ranges: usize) -> Result<()> {
        let mut kept = self.kept.lock();
        if ranges <= kept.0 {
            return Ok(());
        }
        let more = ranges.next_multiple_of(RANGES_AT_ONCE) - kept.0;
        match &mut kept.1 {
            Some(charge) => charge.grow(more * RANGE).map_err(|_| ENOMEM)?,
            none => {
                let uid = charge::account().user().uid();
                *none = Some(Charge::lasting(uid, more * RANGE).map_err(|_| ENOMEM)?);
            }
        }
        kept.0 += more;
        Ok(())
    }

    /// After the file has lost its last name, with the volume locked.
    pub(super) fn lost_last_name(&self, volume: &mut Volume) {
        self.deleted.store(true, Ordering::Release);
        self.changed(volume);
    }

    /// Whether a page's bytes, as far as the file goes, have neither blocks nor a promise of some.
    fn is_hole(&self, runs: &[Run], at: u64, size: u64) -> bool {
        at < size
            && !has_blocks(runs, at, size.min(at + PAGE))
            && self.pending.lock().count(at / PAGE..at / PAGE + 1) == 0
    }

    /// Whether a page that the file ended in has no room for what it has now, with a new size.
    pub(super) fn ends_in_hole(&self, at: u64, size: u64) -> bool {
        // What isn't known is asked about at the store.
        self.runs().map_or(true, |runs| self.is_hole(&runs, at, size))
    }

    /// Says that a page has been read.
    fn page_read(&self, runs: &[Run], at: u64, page: PageNo) {
        if self.is_hole(runs, at, self.size()) {
            vm::holes_read(&[page]);
        } else {
            vm::pages_read(&[page], true);
        }
    }

    /// Gives back what was set aside for the pages of a range.
    pub(super) fn release_pending(&self, from: u64, to: u64) {
        let _ = self.in_parts(from / PAGE..to.div_ceil(PAGE), |pending, part| {
            self.fs.give_back(pending.remove(part));
            Ok(())
        });
    }

    /// Like [`release_pending`](Self::release_pending), behind a file's new end; with the page that
    /// the file ends in, if that page needs nothing more.
    pub(super) fn release_pending_behind(&self, end: u64) -> Result<()> {
        let last = end & !(PAGE - 1);
        let is_placed = has_blocks(&self.runs()?, last, end);
        self.release_pending(if is_placed { last } else { end.next_multiple_of(PAGE) }, u64::MAX);
        Ok(())
    }

    /// Reads a page that lies in parts, with waiting.
    fn read_parts(&self, runs: &[Run], at: u64, page: PageNo) {
        KERNEL.zero(page);
        let mut bytes = alloc::vec![0; PAGE_SIZE];
        for (offset, disk, len) in parts(runs, at..at + PAGE) {
            if self
                .fs
                .data
                .disk
                .read(disk / SECTOR as u64, &mut bytes[offset..offset + len])
                .is_err()
            {
                return vm::pages_read(&[page], false);
            }
        }
        let keep = self.size().saturating_sub(at).min(PAGE) as usize;
        KERNEL.write(page, 0, &bytes[..keep]);
        self.page_read(runs, at, page);
    }

    /// Writes a page that lies in parts, with waiting.
    fn write_parts(&self, runs: &[Run], at: u64, page: PageNo) {
        vm::pages_written(&[page], self.put_parts(runs, at..at + PAGE, page).is_ok());
    }

    /// Writes the bytes of a range of the file in one page, which a frame holds, to where they lie,
    /// part by part, with waiting.
    fn put_parts(&self, runs: &[Run], range: Range<u64>, page: PageNo) -> Result<()> {
        let mut bytes = alloc::vec![0; PAGE_SIZE];
        KERNEL.read(page, 0, &mut bytes);
        parts(runs, range).try_for_each(|(offset, disk, len)| {
            self.fs.data.disk.write(disk / SECTOR as u64, &bytes[offset..offset + len])
        })
    }

    /// Writes a program's pages to the file from `at` on, with waiting; all lies below the file's
    /// size.
    pub(super) fn write_direct(&self, at: u64, pages: &[PageNo]) -> Result<()> {
        let (runs, blocks) = self.reserve(at, pages.len() as u64 * PAGE, pages.len())?;
        let mut first = 0;
        let mut result = Ok(());
        while first < pages.len() && result.is_ok() {
            let (disk, count) = together(&runs, at + first as u64 * PAGE, pages.len() - first);
            result = match disk {
                Some(disk) => {
                    let part = &pages[first..first + count];
                    self.fs.data.disk.transfer_pages(Op::Write, disk / SECTOR as u64, part)
                }
                None => {
                    let at = at + first as u64 * PAGE;
                    self.put_parts(&runs, at..at + PAGE, pages[first])
                }
            };
            first += count;
        }
        if blocks == Blocks::New {
            self.fs.data.withdraw(pages.len());
        }
        result
    }

    /// Writes of a page, up to `end`, what has blocks, where the disk has none for the rest: no
    /// thread was promised room there, so the rest is zeroes.
    ///
    /// # Errors
    /// `ENOSPC`: it isn't; `EIO`.
    fn write_what_fits(&self, at: u64, end: u64, page: PageNo) -> Result<()> {
        let runs = self.runs_for_writing()?;
        let mut next = at;
        let placed = inside(&runs, at, end).map(|run| run.at.max(at)..(run.at + run.len).min(end));
        let placed = placed.chain(core::iter::once(end..end));
        for part in placed {
            let gap = KERNEL.bytes(page).part((next - at) as usize, (part.start - next) as usize);
            if !gap.are_zero() {
                return Err(ENOSPC);
            }
            next = part.end;
            if !part.is_empty() {
                let (runs, blocks) = self.reserve(part.start, part.end - part.start, 1)?;
                let put = self.put_parts(&runs, part, page);
                if blocks == Blocks::New {
                    self.fs.data.withdraw(1);
                }
                put?;
            }
        }
        Ok(())
    }

    /// Has blocks for a range and says where; pages of new ones are announced. Every block that is
    /// given out was set aside.
    pub(super) fn reserve(&self, at: u64, len: u64, pages: usize) -> Result<(Runs, Blocks)> {
        let end = at + len;
        let runs = self.runs_for_writing()?;
        if !self.size_differs() && covers(&runs, at, end) {
            return Ok((runs, Blocks::Old));
        }
        if runs.len() > 2 * super::most_pieces() {
            // The disk's free room lies in pieces: what was promised as one would come to many.
            return Err(EFBIG);
        }
        // The thread that dirtied them had room for them.
        self.promise_beside(&runs, at, len, 0).1?;
        let mut volume = self.fs.volume();
        let size = self.size();
        if at >= size {
            return Ok((Arc::new([]), Blocks::Old));
        }
        let reserved = volume.reserve(self.ino, size, at, len.min(size - at));
        self.changed(&mut volume);
        reserved.map_err(errno)?;
        let runs = self.load(&mut volume)?;
        self.fs.data.announce(pages);
        drop(volume);
        self.release_pending(at, end);
        Ok((runs, Blocks::New))
    }
}

impl Vnode<KernelMachine> for Arc<Backing> {
    fn read(&self, _machine: &KernelMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        let size = self.size();
        let Ok(runs) = self.runs() else { return Transfer::Failed };
        let at = |n: usize| index.bytes() + n as u64 * PAGE;
        let mut first = 0;
        while first < pages.len() {
            let mut next = first + 1;
            match place(&runs, at(first), size) {
                Place::Zeroes => {
                    KERNEL.zero(pages[first]);
                    self.page_read(&runs, at(first), pages[first]);
                }
                Place::Disk(disk) => {
                    let follows = |n: usize| disk + (n - first) as u64 * PAGE;
                    while next < pages.len()
                        && matches!(place(&runs, at(next), size), Place::Disk(there) if there == follows(next))
                    {
                        next += 1;
                    }
                    let keep = size.saturating_sub(at(next - 1)).min(PAGE) as usize;
                    self.fs.data.read(disk, &pages[first..next], keep);
                }
                Place::Parts => {}
            }
            first = next;
        }
        // These wait, so they come last.
        for (n, &page) in pages.iter().enumerate() {
            if matches!(place(&runs, at(n), size), Place::Parts) {
                self.read_parts(&runs, at(n), page);
            }
        }
        Transfer::Started
    }

    fn write(&self, _machine: &KernelMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        let (start, size) = (index.bytes(), self.size());
        let end = (start + pages.len() as u64 * PAGE).min(size);
        if end <= start {
            return Transfer::Done;
        }
        let (runs, blocks) = match self.reserve(start, end - start, pages.len()) {
            Ok(reserved) => reserved,
            // The transfer is tried again page by page.
            Err(_) if pages.len() > 1 => return Transfer::Failed,
            Err(errno) => {
                let fits = if errno == ENOSPC {
                    self.write_what_fits(start, end, pages[0])
                } else {
                    Err(errno)
                };
                let Err(errno) = fits else { return Transfer::Done };
                self.failure.store(errno.0, Ordering::Relaxed);
                // The page won't be tried again: what was set aside for it is free.
                self.release_pending(start, end);
                return Transfer::Failed;
            }
        };
        let at = |n: usize| start + n as u64 * PAGE;
        // The last page is written as far as its blocks go.
        let size = u64::MAX;
        let mut first = 0;
        while first < pages.len() {
            let mut next = first + 1;
            if let Place::Disk(disk) = place(&runs, at(first), size) {
                let follows = |n: usize| disk + (n - first) as u64 * PAGE;
                while next < pages.len()
                    && matches!(place(&runs, at(next), size), Place::Disk(there) if there == follows(next))
                {
                    next += 1;
                }
                self.fs.data.write(disk, &pages[first..next], blocks);
            } else {
                // In parts, or behind the end by now.
                self.write_parts(&runs, at(first), pages[first]);
                if blocks == Blocks::New {
                    self.fs.data.withdraw(1);
                }
            }
            first = next;
        }
        Transfer::Started
    }

    fn fill_hole(
        &self,
        _machine: &KernelMachine,
        index: Pages,
    ) -> core::result::Result<(), GetError> {
        let (at, size) = (index.bytes(), self.size());
        if at >= size {
            // Cut off: the store will find that out.
            return Ok(());
        }
        self.mark_dirty();
        self.promise_at_last(at, PAGE.min(size - at)).map_err(|errno| match errno {
            ENOSPC | EFBIG => GetError::NoSpace,
            ENOMEM => GetError::NoMemory,
            _ => GetError::Io,
        })
    }

    fn write_later(&self) -> bool {
        self.mark_dirty();
        self.fs.wake_flusher();
        true
    }
}
