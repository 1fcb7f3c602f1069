//! Switching a swap device off: what is there comes home first.
//!
//! The device gets no new data, then every anon and every anonymous object that has a slot there is
//! visited. One that is in memory gives its slot back, and must be written elsewhere the next time
//! it leaves; one that is not is read in, many at a time and consecutive slots in one read; its
//! slot is free when the read has ended. Meanwhile everybody goes on working: pages that are read
//! come in by faults too, and leave for other devices if memory is short.
//!
//! I1: when the device has no slot in use, nothing knows its numbers and no I/O is under way
//! (`swap` I2), since no new ones are given: then it is taken out. I2: where it can't be emptied,
//! it is on again, with what is left on it.

use alloc::sync::Arc;
use core::ops::Range;

use arrayvec::ArrayVec;

use machine::{order, Channel, Held, Machine, NoMemory, PageNo, Pages, Ticket};

use super::Reclaim;
use crate::anon::AnonNo;
use crate::io::{Outcome, Transfer, CLUSTER};
use crate::object::Stored;
use crate::owner::PageOwner;
use crate::pager::{GetError, Launder, Pager};
use crate::swap::{Slot, SwapError, SwapId};
use crate::Uvm;

/// Pages on their way home, by slot.
type Batch = ArrayVec<(Slot, PageNo), CLUSTER>;

impl<M: Machine> Uvm<M> {
    /// Brings everything home that is on a swap device, and switches it off.
    ///
    /// # Errors
    /// [`SwapError`]: the device stays on. What could not be read is lost to those who had it, and
    /// no error the next time.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let id = uvm.swap_on(held, disk(64), 0)?;
    /// let range = memory(uvm, held, space, 8)?;
    /// uvm.pageout_range(held, space, range);
    /// uvm.swap_off(held, id)?;
    /// assert_eq!(load(uvm, space, range.start)?, [1], "it came home");
    /// # Ok(()) });
    /// ```
    pub fn swap_off(
        &self,
        held: &mut Held<'_, order::Nothing>,
        id: SwapId,
    ) -> Result<(), SwapError> {
        let numbers = self.swap().begin_off(held, id)?;
        let result = self.empty(held, &numbers);
        self.swap().end_off(held, id, result);
        result
    }

    fn empty(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
    ) -> Result<(), SwapError> {
        let (_, lost) = self.swap().used_on(held, numbers);
        let (mut last, mut reclaim) = (0, Reclaim::default());
        reclaim.begin(self.frames());
        loop {
            let (used, lost_now) = self.swap().used_on(held, numbers);
            if used == 0 {
                self.has_room(held, &mut reclaim);
                return if lost_now == lost { Ok(()) } else { Err(SwapError::Io) };
            }
            let memory = self.mem().ticket(Channel::MEMORY);
            let mut wait = None;
            let home = self
                .anons_home(held, numbers, &mut wait)
                .and_then(|()| self.objects_home(held, numbers, &mut wait));
            if self.swap().used_on(held, numbers).0 < used {
                self.has_room(held, &mut reclaim);
                reclaim = Reclaim::default();
            }
            if let Err(NoMemory) = home {
                if !self.make_room_for(held, &mut reclaim) {
                    return Err(SwapError::NoMemory);
                }
                continue;
            }
            self.has_room(held, &mut reclaim);
            if let Some(ticket) = wait {
                self.mem().wait(held, ticket);
            } else if used == last && self.swap().used_on(held, numbers).0 == used {
                // Orphans under I/O have the rest, and give it back when that ends.
                self.mem().wait(held, memory);
            }
            last = used;
        }
    }

    /// One round over all anons. `wait` becomes a ticket of a page that I/O had.
    fn anons_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
        wait: &mut Option<Ticket>,
    ) -> Result<(), NoMemory> {
        let (mut batch, mut result) = (Batch::new(), Ok(()));
        for no in (1..self.anons.end(held)).filter_map(AnonNo::new) {
            result = self.anon_home(held, no, numbers, &mut batch);
            if let Err(GetError::Wait(ticket)) = result {
                *wait = Some(ticket);
            } else if result.is_err() {
                break;
            }
            if batch.is_full() {
                self.read_batch(held, &mut batch);
            }
        }
        self.read_batch(held, &mut batch);
        match result {
            Ok(()) | Err(GetError::Wait(_)) => Ok(()),
            Err(_) => Err(NoMemory),
        }
    }

    /// Has an anon give a place on the device back, or a page of its read.
    fn anon_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        no: AnonNo,
        numbers: &Range<u32>,
        batch: &mut Batch,
    ) -> Result<(), GetError> {
        let (mut body, mut h) = self.anons.get(no).lock(held);
        let Some(slot) = body.swap.filter(|slot| numbers.contains(&slot.number())) else {
            return Ok(());
        };
        let what = body.page().map_or(Stored::Slot(slot), Stored::Page);
        let mut owner = PageOwner::Anon { no, body: &mut body };
        let page = owner.bring_back(self, &mut h, (Pages(0), what))?;
        batch.extend(page.map(|page| (slot, page)));
        Ok(())
    }

    /// One round over all anonymous objects. `wait` becomes a ticket of a page that I/O had.
    fn objects_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
        wait: &mut Option<Ticket>,
    ) -> Result<(), NoMemory> {
        let mut next = Some(0);
        while let Some((id, pager)) = next.and_then(|next| self.object_table.next(held, next)) {
            let mut indices = 0..u64::MAX >> 1;
            while pager.launder() == Launder::Swap && !indices.is_empty() {
                let mut batch = Batch::new();
                let home = self.object_home(held, &pager, &mut indices, numbers, &mut batch);
                self.read_batch(held, &mut batch);
                match home {
                    Ok(()) => {}
                    Err(GetError::Wait(ticket)) => *wait = Some(ticket),
                    Err(_) => return Err(NoMemory),
                }
            }
            next = id.checked_add(1);
        }
        Ok(())
    }

    /// As [`anon_home`](Self::anon_home), for the pages of an object at some indices: until the
    /// batch is full, or I/O has one. The rest stays in `indices`.
    fn object_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &Arc<dyn Pager<M>>,
        indices: &mut Range<u64>,
        numbers: &Range<u32>,
        batch: &mut Batch,
    ) -> Result<(), GetError> {
        let (mut body, h) = pager.object().lock(held);
        let mut h = h.down_to();
        let place = |what| match what {
            Stored::Page(page) => Slot::new(self.frames().slot(page)),
            Stored::Slot(slot) => Some(slot),
        };
        let lies_there = |what| place(what).filter(|slot| numbers.contains(&slot.number()));
        while !batch.is_full() {
            let mut contents = body.contents(indices.clone());
            let found = contents.find_map(|(index, what)| Some((index, what, lies_there(what)?)));
            drop(contents);
            let Some((index, what, slot)) = found else {
                indices.start = indices.end;
                break;
            };
            let mut owner = PageOwner::Object { pager, body: &mut body };
            let page = owner.bring_back(self, &mut h, (index, what));
            indices.start = index.0 + 1;
            batch.extend(page?.map(|page| (slot, page)));
        }
        Ok(())
    }

    /// Starts the reads of a batch, consecutive slots together; doubtful ones alone.
    fn read_batch(&self, held: &mut Held<'_, order::Nothing>, batch: &mut Batch) {
        batch.sort_unstable_by_key(|&(slot, _)| slot);
        let mut rest = &batch[..];
        while let Some(&(first, _)) = rest.first() {
            let alone = self.swap().is_alone(held, first);
            let mut len = 1;
            while let Some(&(slot, _)) = rest.get(len).filter(|_| !alone) {
                if slot != first.behind(len as u32) || self.swap().is_alone(held, slot) {
                    break;
                }
                len += 1;
            }
            let (now, later) = rest.split_at(len);
            rest = later;
            let pages: ArrayVec<PageNo, CLUSTER> = now.iter().map(|&(_, page)| page).collect();
            self.read_home(held, first, &pages);
        }
        batch.clear();
    }

    fn read_home(&self, held: &mut Held<'_, order::Nothing>, first: Slot, pages: &[PageNo]) {
        match self.read_swap(held, first, pages) {
            Transfer::Done => self.read_done(held, pages, Outcome::Done),
            Transfer::Failed => self.read_done(held, pages, Outcome::Failed),
            Transfer::Started => {}
        }
    }
}
