//! The contents of a regular file.
//!
//! Bytes are read and written in the pages of the file's object; how pages and disk come together
//! is `backing`'s business.
//!
//! I1: the object's size is what programs see; the backing's is the same but while it changes, when
//! it is the first to have the new one. I2: changes of the size and writes hold `writer` alone, so
//! an append is one step and a truncation doesn't meet a write. I3: bytes of the last page behind
//! the end are zero when the size changes, before a program can see a longer one. I4: what is
//! swapped on keeps its blocks, and no program writes it; checked with `writer` held.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use volume::{Attributes, Run};

use super::backing::Backing;
use super::direct::{self, Through};
use super::node::Node;
use super::{errno, Fs};
use crate::arch::bytes::PageBytes;
use crate::block::SECTOR;
use crate::errno::*;
use crate::fs::ops::{Allocate, Extent, Position, Seek};
use crate::sched;
use crate::sync::{Gate, Mutex, MutexGuard, SpinLock};
use crate::uio::{outcome, Sink, Source};
use crate::upcalls;
use crate::vm::{self, Dir, Object, Usage};

const PAGE: u64 = 4096;
/// Bytes of a file that may wait to be written, at least.
const WAITING: u64 = 1 << 20;
/// Beyond that: this part of memory, before the writer has to wait for the disk.
const WAITING_PART: u64 = 16;

pub(super) struct Contents {
    pub(super) backing: Arc<Backing>,
    pub(super) object: Object,
    pub(super) writer: Gate,
    /// Held by the thread that writes the file back; taken inside `writer`.
    cleaner: Mutex<()>,
    /// The file's blocks are found by extents.
    writable: bool,
    /// The largest size that the volume can give it.
    max_size: u64,
    /// Bytes written since the last write-back.
    waiting: AtomicU64,
    /// I4.
    swapped: AtomicBool,
    /// Failed writes that a program has been told of, and that a mapping has been told of.
    errors_seen: AtomicU64,
    errors_told_by_msync: AtomicU64,
    /// The object's count of pages changed through mappings, as of the last time that the file's
    /// times followed it.
    stores_seen: AtomicU64,
}

/// What lies behind the memory objects of files, by their ids.
static BACKINGS: SpinLock<BTreeMap<u64, Weak<Backing>>> = SpinLock::new(BTreeMap::new());

/// What lies behind a memory object, if it is a file's.
pub(super) fn backing_of(object: u64) -> Option<Arc<Backing>> {
    BACKINGS.lock().get(&object)?.upgrade()
}

impl Drop for Contents {
    fn drop(&mut self) {
        BACKINGS.lock().remove(&self.object.id());
    }
}

impl Contents {
    pub(super) fn new(fs: &Arc<Fs>, found: &Attributes) -> Result<Contents> {
        let backing = Arc::new(Backing::new(fs, found.ino, found.size, found.blocks));
        let object = Object::file(Box::new(backing.clone()), found.size)?;
        BACKINGS.lock().insert(object.id(), Arc::downgrade(&backing));
        Ok(Contents {
            backing,
            object,
            writer: Gate::new(),
            cleaner: Mutex::new(()),
            writable: found.has_extents,
            max_size: (u64::from(u32::MAX) << 10).min(i64::MAX as u64),
            waiting: AtomicU64::new(0),
            swapped: AtomicBool::new(false),
            errors_seen: AtomicU64::new(0),
            errors_told_by_msync: AtomicU64::new(0),
            stores_seen: AtomicU64::new(0),
        })
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    pub(super) fn size(&self) -> u64 {
        self.object.size()
    }

    pub(super) fn sectors(&self) -> u64 {
        self.backing.sectors()
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn take_failure(&self) -> Errno {
        self.backing.take_failure()
    }

    pub(super) fn errors_seen(&self) -> u64 {
        self.errors_seen.load(Ordering::Relaxed)
    }

    pub(super) fn saw_errors(&self, count: u64) {
        self.errors_seen.fetch_max(count, Ordering::Relaxed);
    }

    /// Fails if pages could not be written and no `msync` has said so. All mappings of a file are
    /// told once: none knows the open file that it came from.
    pub(super) fn check_mapping(&self) -> Result<()> {
        let errors = self.object.write_errors();
        if self.errors_told_by_msync.swap(errors, Ordering::Relaxed) == errors {
            return Ok(());
        }
        self.saw_errors(errors);
        Err(self.take_failure())
    }

    /// Whether write-backs have found stores of mappings that the file's times don't show; they are
    /// about to.
    pub(super) fn take_stores(&self) -> bool {
        let stores = self.object.stored_to();
        self.stores_seen.swap(stores, Ordering::Relaxed) != stores
    }

    /// Whether anything of it must go to the disk before it may be forgotten.
    pub(super) fn is_dirty(&self) -> bool {
        self.backing.is_dirty() || self.backing.size_differs()
    }

    pub(super) fn read(&self, at: u64, to: &mut Sink<'_>, usage: Usage) -> Result<usize> {
        let start = to.done();
        let len = self.size().saturating_sub(at).min(to.left() as u64);
        if len == 0 {
            return Ok(0);
        }
        let mut copy = |_, bytes: PageBytes| to.put_page(bytes);
        let result = vm::object_io_as(&self.object, at, len, Dir::Read, usage, &mut copy);
        outcome(to.done() - start, result)
    }

    /// Returns the count and the position after it.
    pub(super) fn write(
        &self,
        at: Position,
        from: &mut Source<'_>,
        through: Through,
    ) -> Result<(usize, u64)> {
        if !self.writable {
            return Err(EROFS);
        }
        let _writer = self.begin_change()?;
        let size = self.size();
        let at = match at {
            Position::At(at) => at,
            Position::Append => size,
        };
        if from.left() == 0 {
            return Ok((0, at));
        }
        if at >= self.max_size {
            return Err(EFBIG);
        }
        if through == Through::Past {
            direct::check_source(at, from)?;
        }
        // The bytes may come from a mapping of this very file: growing must not bring them into
        // being.
        from.probe()?;
        let len = upcalls::file_room(at, (from.left() as u64).min(self.max_size - at))?;
        let len = self.promise(at, len)?;
        if at + len > size {
            self.resize(at + len)?;
        }
        let start = from.done();
        let result = match through {
            Through::Cache => self.change(at, len, &mut |bytes| from.get_page(bytes)),
            Through::Past => self.write_past(at, len, from),
        };
        let done = (from.done() - start) as u64;
        if done < len && at + len > size {
            self.resize(size.max(at + done))?;
        }
        self.waiting.fetch_add(done, Ordering::Relaxed);
        Ok((outcome(done as usize, result)?, at + done))
    }

    /// Takes `writer`, if the file may be changed.
    fn begin_change(&self) -> Result<MutexGuard<'_, ()>> {
        let writer = self.writer.alone();
        if self.backing.fs.is_read_only() {
            return Err(EROFS);
        }
        if self.is_swapped_on() {
            return Err(ETXTBSY);
        }
        Ok(writer)
    }

    pub(super) fn is_swapped_on(&self) -> bool {
        self.swapped.load(Ordering::Acquire)
    }

    /// See `Inode::swap_extents`.
    pub(super) fn swap_extents(&self) -> Result<Vec<Extent>> {
        let _writer = self.writer.alone();
        if self.is_swapped_on() {
            return Err(EBUSY);
        }
        if !self.writable || self.backing.fs.is_read_only() {
            return Err(EINVAL);
        }
        self.clean();
        self.write_size()?;
        let extents = self.extents()?;
        self.swapped.store(true, Ordering::Release);
        Ok(extents)
    }

    /// The whole pages on disk, but for those that lie in parts where blocks are smaller; `EINVAL`
    /// for a file with holes.
    fn extents(&self) -> Result<Vec<Extent>> {
        let (runs, end) = (self.backing.runs()?, self.size() / PAGE * PAGE);
        let mut list = Vec::new();
        let mut at = 0;
        while at < end {
            let (disk, len) = together(&runs, at).ok_or(EINVAL)?;
            let (first, last) = (at.next_multiple_of(PAGE), (at + len).min(end) / PAGE * PAGE);
            if first < last {
                let sector = (disk + (first - at)) / SECTOR as u64;
                let disk = self.backing.fs.data.disk.clone();
                list.push(Extent {
                    page: first / PAGE,
                    disk,
                    sector,
                    pages: (last - first) / PAGE,
                });
            }
            at += len;
        }
        Ok(list)
    }

    /// See `Inode::swap_release`.
    pub(super) fn swap_release(&self) {
        self.swapped.store(false, Ordering::Release);
    }

    /// Sets room on the disk aside for a write; returns how much of it has room.
    fn promise(&self, at: u64, len: u64) -> Result<u64> {
        match self.backing.promise_at_last(at, len) {
            Err(ENOSPC | EFBIG) => {}
            other => return other.map(|()| len),
        }
        let (end, promised) = self.backing.promise_what_fits(at, len)?;
        if end > at {
            Ok(end - at)
        } else {
            promised.map(|()| 0)
        }
    }

    /// Lets the writer of much wait until it is on the disk.
    pub(super) fn hold_back(&self) -> Result<()> {
        let most = (vm::stats().total_pages * PAGE / WAITING_PART).max(WAITING);
        if self.waiting.load(Ordering::Relaxed) > most {
            self.clean();
        }
        Ok(())
    }

    /// Writes dirty pages back and waits for them, and for threads that do the same; errors are
    /// counted by the object, and what could not be written is clean.
    pub(super) fn clean(&self) {
        let _cleaner = self.cleaner.lock();
        self.waiting.store(0, Ordering::Relaxed);
        let was_dirty = self.backing.take_dirty();
        if was_dirty || self.object.is_mapped() {
            // A program that syncs the file is told.
            let _ = self.object.clean();
        }
    }

    /// Starts the write of dirty pages, which [`clean`](Self::clean) waits for.
    fn start_clean(&self) {
        if self.is_dirty() {
            self.object.start_cleaning(0, u64::MAX);
        }
    }

    /// Gives the disk the size that programs see.
    pub(super) fn write_size(&self) -> Result<()> {
        if !self.backing.size_differs() {
            return Ok(());
        }
        let mut volume = self.backing.fs.volume();
        let done = volume.resize(self.backing.ino, self.backing.size());
        self.backing.changed(&mut volume);
        done.map_err(errno)
    }

    /// Changes the size that programs see; with `writer` held. On an error a longer size has not
    /// come to be.
    fn resize(&self, size: u64) -> Result<()> {
        let old = self.size();
        self.backing.set_size(size);
        if size > old
            && !old.is_multiple_of(PAGE)
            && self.backing.ends_in_hole(old & !(PAGE - 1), size)
        {
            // Blocks are smaller than pages: what the file gets there now has no room yet. A thread
            // that stores there once it can see the new size asks for room.
            self.object.mark_hole(old);
        }
        self.object.set_size(size).inspect_err(|_| self.backing.set_size(self.size()))
    }

    pub(super) fn truncate(&self, len: u64) -> Result<()> {
        if len > self.max_size {
            return Err(EFBIG);
        }
        let _writer = self.begin_change()?;
        let size = self.size();
        if len > size {
            upcalls::file_may_grow_to(len)?;
        }
        if len != size {
            self.resize(len)?;
        }
        if len < size {
            self.backing.release_pending_behind(len)?;
            self.write_size()?;
        }
        Ok(())
    }

    /// Drops all that it holds: it has no name and no user any more.
    pub(super) fn empty(&self) {
        let _ = self.resize(0);
        self.backing.release_pending(0, u64::MAX);
    }

    pub(super) fn allocate(&self, how: Allocate, at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).filter(|&end| end <= self.max_size).ok_or(EFBIG)?;
        let _writer = self.begin_change()?;
        let size = self.size();
        let grows = end > size && matches!(how, Allocate::Extend | Allocate::ZeroRange);
        if grows {
            upcalls::file_may_grow_to(end)?;
        }
        if !matches!(how, Allocate::Extend | Allocate::KeepSize) {
            self.clear(at.min(size), end.min(size))?;
        }
        if how != Allocate::PunchHole {
            self.backing.allocate(at, len)?;
        }
        if grows {
            self.resize(end)?;
        }
        Ok(())
    }

    /// Makes a range read as zeroes: whole pages lose their blocks, parts of pages are overwritten.
    fn clear(&self, from: u64, to: u64) -> Result<()> {
        let first = from.next_multiple_of(PAGE).min(to);
        let last =
            if to == self.size() { to.next_multiple_of(PAGE) } else { to & !(PAGE - 1) }.max(first);
        self.wipe(from, first)?;
        self.wipe(last.min(to), to)?;
        if last > first {
            self.object.free_range(first, last - first)?;
            self.backing.release_pending(first, last);
            let mut volume = self.backing.fs.volume();
            let done = volume.punch(self.backing.ino, first, last - first);
            self.backing.changed(&mut volume);
            drop(volume);
            done.map_err(errno)?;
            // Pages that came in meanwhile show what was there before.
            self.object.free_range(first, last - first)?;
        }
        Ok(())
    }

    /// What is zero already stays as it is: a hole needs no room for it.
    fn wipe(&self, from: u64, to: u64) -> Result<()> {
        if from >= to || self.object.is_zero(from, to)? {
            return Ok(());
        }
        self.backing.promise(from, to - from)?;
        self.change(from, to - from, &mut |bytes| {
            bytes.zero();
            Ok(bytes.len())
        })
    }

    /// Has `put` fill the bytes of a range, piece by piece.
    pub(super) fn change(
        &self,
        at: u64,
        len: u64,
        put: &mut dyn FnMut(PageBytes) -> Result<usize>,
    ) -> Result<()> {
        self.backing.mark_dirty();
        let result = vm::object_io(&self.object, at, len, Dir::Write, &mut |_, bytes| put(bytes));
        // Again: a thread that cleaned the file meanwhile has not seen all of the change.
        self.backing.mark_dirty();
        result
    }

    /// Data is what has blocks on the disk, so what was written goes there first.
    pub(super) fn seek(&self, from: u64, what: Seek) -> Result<u64> {
        let size = self.size();
        if from >= size {
            return Err(ENXIO);
        }
        self.clean();
        let runs = self.backing.runs()?;
        let mut at = from;
        let first = runs.partition_point(|run| run.at + run.len <= from);
        for run in runs[first..].iter().filter(|run| !run.unwritten) {
            sched::work_done(size_of::<Run>());
            match what {
                Seek::Data => return Ok(run.at.max(from)),
                Seek::Hole if run.at > at => return Ok(at),
                Seek::Hole => at = run.at + run.len,
            }
        }
        match what {
            Seek::Data => Err(ENXIO),
            Seek::Hole => Ok(at.min(size)),
        }
    }
}

/// Where byte `at` of a file lies, and how many bytes lie together from there on.
fn together(runs: &[Run], at: u64) -> Option<(u64, u64)> {
    let first = runs.binary_search_by_key(&at, |run| run.at).ok()?;
    let disk = runs[first].disk;
    let next =
        runs[first..].iter().take_while(|run| run.disk.wrapping_sub(disk) == run.at - at).last()?;
    Some((disk, next.at + next.len - at))
}

impl Node {
    /// Starts what [`write_back`](Self::write_back) does, as far as that needs no waiting.
    pub(super) fn start_write_back(&self) {
        if let Ok(contents) = self.contents() {
            contents.start_clean();
        }
    }

    /// Carries contents, size and times to the disk, without a commit. That pages could not be
    /// written is for the object to remember.
    pub(super) fn write_back(&self) -> Result<()> {
        if let Ok(contents) = self.contents() {
            contents.clean();
            // Stores through mappings move the times when they are found.
            if contents.take_stores() {
                self.modified();
            }
            contents.write_size()?;
        }
        self.write_times()
    }
}
