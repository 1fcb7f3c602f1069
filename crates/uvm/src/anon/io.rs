//! What becomes of an anon's page when its I/O has ended, and of a page whose owner has gone.
//!
//! A completion knows pages, nothing else. It reads a page's owner without a lock, takes the
//! owner's lock and looks again: a busy page changes hands only once, when its owner goes and
//! leaves it an orphan, so a second look finds the truth. Whoever waits for the page is woken under
//! the owner's lock, after the anon says what became of its data: a ticket is read under that lock,
//! so no wake-up is lost.
//!
//! # When a transfer fails
//! A device that fails a transfer of many pages says that one of them is bad, not which. Nobody's
//! data is given up for a neighbour's: such slots are *doubtful*, and each is tried alone the next
//! time. A slot that fails alone is bad; it is retired, and a page that was to be read from it is
//! lost: its users get [`FaultError::Io`](crate::FaultError), and nobody else notices. A page that
//! was to be written stays in memory.
//!
//! I1: a page that is neither wanted nor changed when its write-out ends is freed; every other one
//! is on a queue again. I2: `in_flight` counts pages with `PAGEOUT`.

use machine::lines::Ordering::Relaxed;

use crate::page::Owner;
use crate::page::PageFlags;
use machine::{order, Channel, Held, Machine, PageNo, Pmap};

use crate::anon::{AnonBody, AnonNo};
use crate::io::{Direction, Ended, Outcome};
use crate::object::unbusy;
use crate::stat::Counter;
use crate::swap::Slot;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Ends the I/O of those of `pages` at the front that belong to anons, and says how many. None,
    /// if the first one's owner has just gone.
    pub(crate) fn ended_in_anons(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pages: &[PageNo],
        end: Ended,
    ) -> usize {
        let mut written = 0;
        let mut count = 0;
        for &page in pages {
            let Owner::Anon(number) = self.frames().owner(page) else { break };
            let Some(no) = AnonNo::new(number) else { break };
            let (mut body, mut h) = self.anons.get(no).lock(held);
            if self.frames().owner(page) != Owner::Anon(number) || body.page() != Some(page) {
                break;
            }
            match end.direction {
                Direction::Read => self.anon_read(&mut h, &mut body, page, end),
                Direction::Write => {
                    self.anon_written(&mut h, &mut body, page, end);
                    written += 1;
                }
            }
            count += 1;
        }
        self.pageout_ended(written);
        count
    }

    fn anon_read(
        &self,
        held: &mut Held<'_, order::Anon>,
        body: &mut AnonBody,
        page: PageNo,
        end: Ended,
    ) {
        let (machine, frames) = (self.mem(), self.frames());
        if end.outcome != Outcome::Failed {
            if let (1, Some(slot)) = (end.pages, body.swap) {
                self.swap().trust(held, slot);
            }
            frames.set_flags(page, PageFlags::CLEAN);
            if let Some(slot) = body.swap.filter(|&slot| self.swap().is_leaving(held, slot)) {
                // Home: it must not be dropped as clean and read again.
                frames.clear_flags(page, PageFlags::CLEAN);
                body.swap = None;
                self.swap().free(self.mem(), held, slot);
            }
            unbusy(machine, page);
            frames.activate(machine, held, page);
            return;
        }
        self.stat().add(machine.cpu(), Counter::SwapErrors, 1);
        body.take_page(frames);
        body.swap = body.swap.map(|slot| self.unreadable(held, slot, end));
        unbusy(machine, page);
        frames.free_page(machine, held, page);
    }

    /// What is left of a slot that was part of a read that failed.
    pub(crate) fn unreadable<P>(&self, held: &mut Held<'_, P>, slot: Slot, end: Ended) -> Slot
    where
        P: machine::Before<order::Swap>,
    {
        if end.pages > 1 {
            self.swap().doubt(held, slot);
            return slot;
        }
        self.swap().lose(self.mem(), held, slot);
        Slot::LOST
    }

    fn anon_written(
        &self,
        held: &mut Held<'_, order::Anon>,
        body: &mut AnonBody,
        page: PageNo,
        end: Ended,
    ) {
        let (machine, frames) = (self.mem(), self.frames());
        if end.outcome != Outcome::Failed {
            if let (1, Some(slot)) = (end.pages, body.swap) {
                self.swap().trust(held, slot);
            }
        } else {
            self.stat().add(machine.cpu(), Counter::SwapErrors, 1);
            frames.clear_flags(page, PageFlags::CLEAN);
            if let Some(slot) = body.swap.take() {
                self.unwritable(held, slot, end);
            }
        }
        if self.is_done_with(page) {
            body.take_page(frames);
            frames.free_page(machine, held, page);
            self.stat().add(machine.cpu(), Counter::PagesFreed, 1);
            return;
        }
        frames.clear_flags(page, PageFlags::PAGEOUT);
        unbusy(machine, page);
        frames.activate(machine, held, page);
    }

    /// Takes a slot out of use that was part of a write that failed, or keeps it for another try.
    pub(crate) fn unwritable<P>(&self, held: &mut Held<'_, P>, slot: Slot, end: Ended)
    where
        P: machine::Before<order::Swap>,
    {
        if end.pages > 1 {
            self.swap().doubt(held, slot);
            self.swap().free(self.mem(), held, slot);
        } else {
            self.swap().retire(self.mem(), held, slot);
        }
    }

    /// Whether a page that was written, and is still busy, can be freed: its owner's lock is held,
    /// nothing maps it.
    pub(crate) fn is_done_with(&self, page: PageNo) -> bool {
        let flags = self.frames().flags(page);
        flags.contains(PageFlags::PAGEOUT | PageFlags::CLEAN)
            && !flags.contains(PageFlags::WANTED)
            && self.frames().wire_count(page) == 0
            && !self.mem().pmap().is_modified(page)
    }

    /// Frees a page that its owner left to the I/O, with its slot.
    pub(crate) fn ended_in_orphan(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        end: Ended,
    ) -> usize {
        let failed = end.outcome == Outcome::Failed && end.direction == Direction::Write;
        if let Some(slot) = Slot::new(self.frames().index(page) as u32) {
            if failed {
                self.unwritable(held, slot, end);
            } else {
                self.swap().free(self.mem(), held, slot);
            }
        }
        self.free_orphan(held, page);
        1
    }

    /// Frees an orphan whose slot has been seen to.
    pub(crate) fn free_orphan(&self, held: &mut Held<'_, order::Nothing>, page: PageNo) {
        let written = self.frames().flags(page).contains(PageFlags::PAGEOUT);
        unbusy(self.mem(), page);
        if self.frames().unpin(page) {
            self.frames().free_page(self.mem(), held, page);
        }
        if written {
            self.pageout_ended(1);
        } else {
            self.mem().wake(Channel::MEMORY);
        }
    }

    /// Counts pages that were written to be freed as under way, before their write is started.
    pub(crate) fn pageout_started(&self, pages: usize) {
        self.in_flight.fetch_add(pages, Relaxed);
    }

    /// The write of pages that were to be freed has ended: who waits for memory looks again.
    pub(crate) fn pageout_ended(&self, pages: usize) {
        if pages != 0 {
            self.in_flight.fetch_sub(pages, Relaxed);
            self.mem().wake(Channel::MEMORY);
        }
    }

    /// Makes a new page busy that is about to be read, and look untouched to the pmap: the frame's
    /// last owner left its bits. Before it has an owner: who looks at it under the pmap's lock
    /// finds it busy from then on ([`Frames::is_alone`](crate::page::Frames::is_alone)).
    pub(crate) fn prepare_read(&self, page: PageNo) {
        self.frames().set_flags(page, PageFlags::BUSY);
        self.mem().pmap().forget_modified(page);
        self.mem().pmap().clear_referenced(page);
    }
}
