//! The second step for objects' pages: as `finish.rs` has it for anons'.
//!
//! An anonymous object's page has its place on swap in its record, and leaves it in the object's
//! table when it goes (`object` I4). A file's page that was taken was clean, and is given back if
//! it no longer is.
//!
//! Each function says `None`, or no, if the page's owner has just gone, which makes it an orphan.

use alloc::sync::Arc;

use crate::page::Owner;
use crate::page::PageFlags;
use machine::{order, Held, Machine, PageNo, Pages};

use super::finish::Fate;
use crate::object::{unbusy, ObjectBody};
use crate::pager::{Launder, Pager};
use crate::swap::Slot;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Calls `work` under the lock of the object with a name, if it still has the page; with the
    /// page's index.
    pub(super) fn in_object<T>(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        id: u32,
        work: impl FnOnce(&Arc<dyn Pager<M>>, &mut ObjectBody, &mut Held<'_, order::Object>, Pages) -> T,
    ) -> Option<T> {
        let pager = self.pager(held, id)?;
        let (mut body, mut h) = pager.object().lock(held);
        let index = Pages(self.frames().index(page));
        let still =
            self.frames().owner(page) == Owner::Object(id) && body.page(index) == Some(page);
        still.then(|| work(&pager, &mut body, &mut h, index))
    }

    pub(super) fn settle_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        id: u32,
    ) -> Option<Fate> {
        let (machine, frames) = (self.mem(), self.frames());
        self.in_object(held, page, id, |pager, body, h, index| {
            let wanted = frames.flags(page).contains(PageFlags::WANTED);
            let swaps = pager.launder() == Launder::Swap;
            let stored = self.is_clean(page) && (!swaps || frames.slot(page) != 0);
            if !wanted && !stored && swaps {
                return Fate::Write;
            }
            if wanted || !stored {
                unbusy(machine, page);
                frames.activate(machine, h, page);
                return Fate::Kept;
            }
            body.evict(frames, index, page);
            unbusy(machine, page);
            frames.free_page(machine, h, page);
            Fate::Freed
        })
    }

    pub(super) fn assign_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        id: u32,
        slot: Option<Slot>,
    ) -> Option<()> {
        let frames = self.frames();
        self.in_object(held, page, id, |_, _, h, _| {
            if let Some(old) = Slot::new(frames.slot(page)) {
                self.swap().free(self.mem(), h, old);
            }
            frames.set_slot(page, slot.map_or(0, Slot::number));
            self.prepare_write(page, slot);
        })
    }

    pub(super) fn give_back_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        id: u32,
    ) -> bool {
        let back = self.in_object(held, page, id, |_, _, h, _| {
            unbusy(self.mem(), page);
            self.frames().activate(self.mem(), h, page);
        });
        back.is_some()
    }
}
