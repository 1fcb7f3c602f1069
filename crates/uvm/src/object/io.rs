//! What becomes of an object's page when its I/O has ended.

use alloc::sync::Arc;

use crate::page::Owner;
use crate::page::PageFlags;
use machine::{order, Held, Machine, PageNo, Pages};

use crate::io::{Direction, Ended, Outcome};
use crate::object::{unbusy, ObjectBody};
use crate::pager::Pager;
use crate::swap::Slot;
use crate::{Counter, Uvm};

impl<M: Machine> Uvm<M> {
    /// Ends the I/O of those of `pages` at the front that belong to the object with this name, and
    /// says how many.
    pub(crate) fn ended_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        id: u32,
        pages: &[PageNo],
        end: Ended,
    ) -> usize {
        let pager: Arc<dyn Pager<M>> = match self.pager(held, id) {
            Some(pager) => pager,
            None => {
                let left = self.frames().owner(pages[0]) != Owner::Object(id);
                debug_assert!(left, "{:?} belongs to an object that nobody knows", pages[0]);
                return usize::from(!left);
            }
        };
        let (mut body, mut h) = pager.object().lock(held);
        // The owner was read without its lock: what isn't its own any more is looked at again.
        let own = pages.iter().take_while(|&&page| self.frames().owner(page) == Owner::Object(id));
        let (mut count, mut written) = (0, 0);
        for &page in own {
            written += usize::from(self.frames().flags(page).contains(PageFlags::PAGEOUT));
            match end.direction {
                Direction::Read => self.object_page_read(&mut body, &mut h, page, end),
                Direction::Write => self.object_page_written(&mut body, &mut h, page, end),
            }
            count += 1;
        }
        self.pageout_ended(written);
        count
    }

    fn object_page_read(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        end: Ended,
    ) {
        let (machine, frames) = (self.mem(), self.frames());
        let (index, slot) = (Pages(frames.index(page)), Slot::new(frames.slot(page)));
        if end.outcome == Outcome::Failed && (end.pages > 1 || slot.is_some()) {
            match slot {
                Some(slot) => {
                    self.stat().add(machine.cpu(), Counter::SwapErrors, 1);
                    body.evict(frames, index, page);
                    body.reset_slot(index, self.unreadable(held, slot, end));
                }
                None => {
                    // One of them is bad, nobody knows which: each is read by itself when it is
                    // asked for.
                    body.ahead.failed(index.0);
                    body.evict(frames, index, page);
                }
            }
            unbusy(machine, page);
            return frames.free_page(machine, held, page);
        }
        match (end.outcome, slot) {
            (Outcome::Failed, _) => frames.set_flags(page, PageFlags::ERROR),
            (Outcome::Done | Outcome::Hole, Some(slot)) => {
                if end.pages == 1 {
                    self.swap().trust(held, slot);
                }
                if self.swap().is_leaving(held, slot) {
                    self.give_slot_back(held, page);
                }
            }
            (Outcome::Hole, None) => frames.set_flags(page, PageFlags::HOLE),
            (Outcome::Done, None) => {}
        }
        unbusy(machine, page);
        frames.activate(machine, held, page);
    }

    fn object_page_written(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        end: Ended,
    ) {
        let (machine, frames) = (self.mem(), self.frames());
        let slot = Slot::new(frames.slot(page));
        match (end.outcome, slot) {
            (Outcome::Failed, Some(slot)) => {
                self.stat().add(machine.cpu(), Counter::SwapErrors, 1);
                frames.clear_flags(page, PageFlags::CLEAN);
                body.mark(Pages(frames.index(page)));
                frames.set_slot(page, 0);
                self.unwritable(held, slot, end);
            }
            (Outcome::Failed, None) => {
                frames.clear_flags(page, PageFlags::CLEAN);
                body.mark(Pages(frames.index(page)));
                frames.set_flags(page, PageFlags::UNWRITTEN);
                if end.pages > 1 {
                    // One of them is bad, nobody knows which: each is written by itself the next
                    // time.
                    body.parted_writes += 1;
                } else {
                    body.write_errors += 1;
                    self.stat().add(machine.cpu(), Counter::FileErrors, 1);
                }
            }
            (Outcome::Done | Outcome::Hole, Some(slot)) => {
                if end.pages == 1 {
                    self.swap().trust(held, slot);
                }
                if self.is_done_with(page) {
                    body.evict(frames, Pages(frames.index(page)), page);
                    self.stat().add(machine.cpu(), Counter::PagesFreed, 1);
                    return frames.free_page(machine, held, page);
                }
            }
            (Outcome::Done | Outcome::Hole, None) => {
                frames.clear_flags(page, PageFlags::UNWRITTEN);
            }
        }
        unbusy(machine, page);
        frames.activate(machine, held, page);
    }
}
