//! The first step: pages are taken from their owners' users, one by one.

use alloc::sync::Arc;

use crate::page::Owner;
use crate::page::{PageFlags, Place};
use machine::{order, Before, Held, Machine, PageNo, Pages, Pmap, Prot};

use super::{Pass, Priority};
use crate::anon::AnonNo;
use crate::pager::{Launder, Pager};
use crate::stat::Counter;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Takes a page off the inactive queue's front, or gives it another chance. Nothing is known of
    /// it but its number.
    pub(super) fn look_at(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        page: PageNo,
    ) {
        let frames = self.frames();
        let used = self.mem().pmap().clear_referenced(page);
        let kept = pass.kept[frames.class(page) as usize];
        let is_wired = frames.wire_count(page) != 0;
        pass.progress.wired += usize::from(is_wired);
        if is_wired || (pass.priority == Priority::Normal && (used || kept)) {
            frames.reactivate(held, page);
            self.stat().add(self.mem().cpu(), Counter::Reactivated, 1);
            return;
        }
        match frames.owner(page) {
            Owner::Anon(number) => self.look_at_anon(held, pass, page, number),
            Owner::Object(id) => {
                if let Some(pager) = self.pager(held, id) {
                    self.look_at_object(held, pass, page, &pager);
                }
            }
            Owner::Free | Owner::Kernel | Owner::Orphan => {}
        }
    }

    fn look_at_anon(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        page: PageNo,
        number: u32,
    ) {
        let Some(no) = AnonNo::new(number) else { return };
        let (body, mut h) = self.anons.get(no).lock(held);
        if body.page() != Some(page) || !self.can_go(page) {
            return;
        }
        // A page with a stale slot can always be written: to that one, if there is no other.
        if body.swap.is_none() && pass.room == 0 {
            return;
        }
        pass.room -= usize::from(body.swap.is_none());
        self.take(&mut h, pass, page);
    }

    fn look_at_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        page: PageNo,
        pager: &Arc<dyn Pager<M>>,
    ) {
        let index = Pages(self.frames().index(page));
        {
            let (body, mut h) = pager.object().lock(held);
            if body.page(index) != Some(page) || !self.can_go(page) {
                return;
            }
            // The host's own use, which the pmap doesn't see; flags are written under the owner's
            // lock.
            let flags = self.frames().clear_flags(page, PageFlags::TOUCHED);
            if flags.contains(PageFlags::TOUCHED) && pass.priority == Priority::Normal {
                self.frames().reactivate(&mut h, page);
                self.stat().add(self.mem().cpu(), Counter::Reactivated, 1);
                return;
            }
            let swaps = pager.launder() == Launder::Swap;
            let is_new = swaps && self.frames().slot(page) == 0;
            if is_new && pass.room == 0 {
                return;
            }
            if swaps || self.is_clean(page) {
                pass.room -= usize::from(is_new);
                return self.take(&mut h, pass, page);
            }
        }
        if pager.launder() == Launder::Put {
            pass.puts.push((pager.clone(), index));
        }
    }

    /// Whether nothing keeps a page, under its owner's lock. A page on no queue is new and about to
    /// be entered (`anon` I3): it may have the number of a page that a scan found on a queue
    /// before. A page that could not be read may go like any other: who comes for it reads it
    /// again, and is told then.
    pub(crate) fn can_go(&self, page: PageNo) -> bool {
        let frames = self.frames();
        let is_idle = !frames.flags(page).contains(PageFlags::BUSY) && frames.wire_count(page) == 0;
        is_idle && frames.place(page) != Place::Nowhere
    }

    /// Whether backing store has the page's bytes, under its owner's lock; certain once nothing
    /// maps the page.
    pub(crate) fn is_clean(&self, page: PageNo) -> bool {
        self.frames().flags(page).contains(PageFlags::CLEAN) && !self.mem().pmap().is_modified(page)
    }

    /// Makes a page busy and takes it from its queue and its users, under its owner's lock.
    fn take<P>(&self, held: &mut Held<'_, P>, pass: &mut Pass<M>, page: PageNo)
    where
        P: Before<order::PageQueues> + Before<order::PageCache>,
    {
        let (machine, frames) = (self.mem(), self.frames());
        frames.set_flags(page, PageFlags::BUSY);
        frames.dequeue(held, page);
        let wired = machine.pmap().page_protect(held, page, Prot::NONE, &mut pass.down);
        debug_assert_eq!(wired, 0, "{page:?} is mapped wired and not wired");
        pass.taken.push(page);
    }
}
