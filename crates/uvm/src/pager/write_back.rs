//! Writing a file's dirty pages back, in runs.
//!
//! A write-back starts every run before it waits for the first, so that the device is never idle
//! between two.

use core::ops::Range;

use arrayvec::ArrayVec;
use machine::{Channel, Machine, PageNo, Pages, Pmap, Ticket, Unlocked};

use super::VnodePager;
use crate::io::Direction;
use crate::object::{busy_check, IoError};
use crate::page::{Gather, PageFlags};
use crate::{Counter, Uvm};

/// The most pages of one write.
const WRITE_CLUSTER: usize = 256;

/// Consecutive dirty pages that were made busy to be written.
pub(super) struct Run {
    pub(super) index: Pages,
    pub(super) pages: ArrayVec<PageNo, WRITE_CLUSTER>,
}

impl Run {
    fn end(&self) -> u64 {
        self.index.0 + self.pages.len() as u64
    }
}

impl<M: Machine> VnodePager<M> {
    /// Writes back every page of the range that was modified before the call: msync's and fsync's
    /// part. Pages stay resident. Returns when all are written; those of a write that failed are
    /// tried once more, each by itself.
    ///
    /// # Errors
    /// [`IoError`] if a page of the file could not be written. All others were, and it is still
    /// dirty: the host tries again at some time, or [gives it up](Self::give_up).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Shared);
    /// store(uvm, space, uvm.map(held, space, &request)?, b"T")?;
    /// file.clean(uvm, held, 0..1)?; // As at fsync.
    /// # Ok(()) });
    /// ```
    pub fn clean(
        &self,
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        range: Range<u64>,
    ) -> Result<(), IoError> {
        let before = self.write_errors(held);
        loop {
            let parted = self.object.lock(held).0.parted_writes;
            self.clean_once(uvm, held, range.clone());
            if self.object.lock(held).0.parted_writes == parted {
                break;
            }
        }
        // A thread that found only pages that the host would write in its own time waits for this.
        uvm.mem().wake(Channel::MEMORY);
        match self.write_errors(held) == before {
            true => Ok(()),
            false => Err(IoError),
        }
    }

    /// Starts the write of all dirty pages in the range, and waits for them.
    fn clean_once(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, range: Range<u64>) {
        self.start_writes(uvm, held, range.clone(), |held, rest, ticket| {
            uvm.mem().wait(held, ticket);
            rest.start
        });
        self.wait_cleaned(uvm, held, range.clone());
        let (mut body, _) = self.object.lock(held);
        body.unmark(range, |page| {
            // In this order: a store and the end of the mapping that it came through may lie
            // between the two looks. A mapping that has left the tables is stored through until its
            // shootdown is flushed.
            !is_busy(uvm, page) && !uvm.mem().pmap().is_mapped(page) && uvm.mem().is_clean(page)
        });
    }

    /// Starts the write of all pages of the range that are dirty, and waits for none: what is under
    /// I/O already is left to it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// file.start_cleaning(uvm, held, 0..4);
    /// file.wait_cleaned(uvm, held, 0..4);
    /// # Ok(()) });
    /// ```
    pub fn start_cleaning(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, range: Range<u64>) {
        self.start_writes(uvm, held, range, |held, rest, _| {
            let (body, _) = self.object.lock(held);
            let busy =
                |&(_, page): &(Pages, PageNo)| is_busy(uvm, page) && !uvm.mem().is_clean(page);
            let found = body.marked(rest.clone()).find(busy).map(|(index, _)| index.0 + 1);
            found.unwrap_or(rest.start)
        });
    }

    /// Starts the write of all pages of the range that are dirty. `busy` says where to go on in
    /// what is left of it, the first dirty page of which I/O has.
    fn start_writes(
        &self,
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        mut range: Range<u64>,
        mut busy: impl FnMut(&mut Unlocked<'_>, Range<u64>, Ticket) -> u64,
    ) {
        let mut run = Run { index: Pages(0), pages: ArrayVec::new() };
        loop {
            range.start = match self.take_dirty(uvm, held, range.clone(), &mut run) {
                Ok(()) if run.pages.is_empty() => return,
                Ok(()) => {
                    self.write(uvm, held, &run);
                    run.end()
                }
                Err(ticket) => busy(held, range.clone(), ticket),
            };
        }
    }

    /// Waits until no page of the range is being written.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// file.start_cleaning(uvm, held, 0..4);
    /// file.wait_cleaned(uvm, held, 0..4);
    /// # Ok(()) });
    /// ```
    pub fn wait_cleaned(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, mut range: Range<u64>) {
        loop {
            let ticket = {
                let (body, _) = self.object.lock(held);
                let busy = |&(_, page): &(Pages, PageNo)| is_busy(uvm, page);
                let Some((index, page)) = body.marked(range.clone()).find(busy) else { return };
                range.start = index.0;
                busy_check(uvm.mem(), page)
            };
            if let Err(ticket) = ticket {
                uvm.mem().wait(held, ticket);
            }
        }
    }

    /// Takes pages of the range for clean whose last write failed and that have not changed since:
    /// what they hold is kept until memory is short, and never reaches the file. For a host that
    /// has reported the error and would rather lose the data than keep it in memory for ever.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// if file.clean(uvm, held, 0..4).is_err() {
    ///     file.give_up(uvm, held, 0..4);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn give_up(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, range: Range<u64>) {
        let frames = uvm.frames();
        let (body, _) = self.object.lock(held);
        for (_, page) in body.marked(range) {
            let has_failed = frames.flags(page).contains(PageFlags::UNWRITTEN);
            if has_failed && !is_busy(uvm, page) && !uvm.mem().pmap().is_modified(page) {
                frames.clear_flags(page, PageFlags::UNWRITTEN);
                frames.set_flags(page, PageFlags::CLEAN);
            }
        }
        uvm.mem().pages_may_go();
    }

    /// Makes the first run of dirty pages in the range busy, and clean in the pmap's eyes; none if
    /// all are clean.
    ///
    /// # Errors
    /// A ticket of the first dirty page, if I/O has it: it was changed while it was written.
    pub(super) fn take_dirty(
        &self,
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        range: Range<u64>,
        run: &mut Run,
    ) -> Result<(), Ticket> {
        let (machine, frames) = (uvm.mem(), uvm.frames());
        let mut down = Gather::new();
        run.pages.clear();
        let (mut body, mut h) = self.object.lock(held);
        let mut stored_to = 0;
        for (index, page) in body.marked(range) {
            let first = run.pages.is_empty();
            if !first && (index.0 != run.end() || run.pages.is_full()) {
                break;
            }
            let alone = frames.flags(page).contains(PageFlags::UNWRITTEN);
            match (uvm.mem().is_clean(page), first) {
                (true, true) => continue,
                (true, false) => break,
                (false, true) => busy_check(machine, page)?,
                (false, false) if alone || is_busy(uvm, page) => break,
                (false, false) => {}
            }
            if first {
                run.index = index;
            }
            frames.set_flags(page, PageFlags::BUSY | PageFlags::CLEAN);
            stored_to += u64::from(machine.pmap().is_modified(page));
            machine.pmap().clear_modified(page, &mut down);
            run.pages.push(page);
            if alone {
                break;
            }
        }
        body.stored_to += stored_to;
        // Under the lock: a store that a CPU still makes unnoticed belongs to this write.
        down.perform(uvm.frames(), machine, &mut h);
        Ok(())
    }

    /// The dirty pages that lie around one in a row, as far as one write goes.
    pub(super) fn around(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, index: Pages) -> Range<u64> {
        let (body, _) = self.object.lock(held);
        let goes = |&n: &u64| {
            body.page(Pages(n)).is_some_and(|page| !is_busy(uvm, page) && !uvm.mem().is_clean(page))
        };
        let lowest = index.0.saturating_sub(WRITE_CLUSTER as u64 / 2);
        let first = (lowest..index.0).rev().take_while(goes).last().unwrap_or(index.0);
        first..first + WRITE_CLUSTER as u64
    }

    pub(super) fn write(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, run: &Run) {
        uvm.count(Counter::FileWrites, 1);
        uvm.count(Counter::FilePagesWritten, run.pages.len() as u64);
        let transfer = self.vnode.write(uvm.mem(), run.index, &run.pages);
        uvm.transferred(held, Direction::Write, &run.pages, transfer);
    }
}

pub(super) fn is_busy<M: Machine>(uvm: &Uvm<M>, page: PageNo) -> bool {
    uvm.frames().flags(page).contains(PageFlags::BUSY)
}
