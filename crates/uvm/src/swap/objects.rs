//! Bringing anonymous objects' pages home from a device that is switched off: `off.rs` for what
//! isn't anons'.

use alloc::sync::Arc;
use core::ops::Range;

use crate::page::PageFlags;
use crate::page::Reserve;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Ticket};

use super::off::Batch;
use super::Slot;
use crate::object::{busy_check, Stored};
use crate::pager::{Launder, Pager};
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// One round over all anonymous objects. `wait` becomes a ticket of a page that I/O had.
    pub(super) fn objects_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
        wait: &mut Option<Ticket>,
    ) -> Result<(), NoMemory> {
        let mut next = 0;
        while let Some((id, pager)) = self.object_table.next(held, next) {
            if pager.launder() == Launder::Swap {
                self.object_home(held, &pager, numbers, wait)?;
            }
            let Some(after) = id.checked_add(1) else { break };
            next = after;
        }
        Ok(())
    }

    fn object_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &Arc<dyn Pager<M>>,
        numbers: &Range<u32>,
        wait: &mut Option<Ticket>,
    ) -> Result<(), NoMemory> {
        let mut indices = 0..u64::MAX >> 1;
        loop {
            let mut batch = Batch::new();
            let visited =
                self.visit_object(held, pager, &mut indices, numbers, Reserve::User, &mut batch);
            let more = batch.is_full();
            self.read_batch(held, &mut batch);
            *wait = visited?.or(wait.take());
            if !more {
                return Ok(());
            }
        }
    }

    /// Looks at an object's pages at some indices, until the batch is full; the rest stays in
    /// `indices`. What is resident gives its place back, unless I/O has it: then the ticket is one
    /// of those. What is not gets a busy page in the batch.
    pub(super) fn visit_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &Arc<dyn Pager<M>>,
        indices: &mut Range<u64>,
        numbers: &Range<u32>,
        reserve: Reserve,
        batch: &mut Batch,
    ) -> Result<Option<Ticket>, NoMemory> {
        let mut wait = None;
        let frames = self.frames();
        let (mut body, mut h) = pager.object().lock(held);
        let lies_there = |slot: &Slot| numbers.contains(&slot.number());
        let concerns = |&(_, what): &(Pages, Stored)| match what {
            Stored::Page(page) => {
                Slot::new(frames.slot(page)).is_some_and(|slot| lies_there(&slot))
            }
            Stored::Slot(slot) => lies_there(&slot),
        };
        while !batch.is_full() {
            let found = body.contents(indices.clone()).find(concerns);
            let Some((index, what)) = found else { break };
            indices.start = index.0 + 1;
            match what {
                Stored::Page(page) => match busy_check(self.mem(), page) {
                    Ok(()) => self.give_slot_back(&mut h, page),
                    Err(ticket) => wait = Some(ticket),
                },
                Stored::Slot(slot) => {
                    let page = frames.alloc(self.mem(), &mut h, reserve)?;
                    pager.object().insert_reading(self.mem(), &mut body, index, page);
                    self.read_prepared(1);
                    batch.push((slot, page));
                }
            }
        }
        Ok(wait)
    }

    /// Frees a resident page's place on swap: it is to be written elsewhere the next time.
    pub(crate) fn give_slot_back(&self, held: &mut Held<'_, order::Object>, page: PageNo) {
        if let Some(slot) = Slot::new(self.frames().slot(page)) {
            self.swap().free(self.mem(), held, slot);
        }
        self.frames().set_slot(page, 0);
        self.frames().clear_flags(page, PageFlags::CLEAN);
    }
}
