//! The first step: pages are taken from their owners' users, one by one.

use crate::page::{PageFlags, Place};
use machine::{order, Before, Held, Machine, PageNo, Pages, Pmap, Prot};

use super::{Pass, Priority};
use crate::owner::PageOwner;
use crate::pager::Launder;
use crate::stat::Counter;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Takes pages off the inactive queue's front, or gives them another chance, and tells the CPUs
    /// which it took: the pass lets other threads run after it.
    pub(super) fn look_at(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        pages: &[PageNo],
    ) {
        pages.iter().for_each(|&page| self.look_at_one(held, pass, page));
        pass.down.flush(self.mem().pmap());
    }

    /// Takes a page, or gives it another chance. Nothing is known of it but its number.
    fn look_at_one(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>, page: PageNo) {
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
        let put = self.with_owner(held, page, |owner, h| {
            if !self.can_go(page) {
                return None;
            }
            // The host's own use, which the pmap doesn't see; flags are written under the owner's
            // lock.
            let flags = frames.clear_flags(page, PageFlags::TOUCHED);
            if flags.contains(PageFlags::TOUCHED) && pass.priority == Priority::Normal {
                frames.reactivate(h, page);
                self.stat().add(self.mem().cpu(), Counter::Reactivated, 1);
                return None;
            }
            // A page with a stale slot can always be written: to that one, if there is no other.
            let swaps = owner.launder() == Launder::Swap;
            let is_new = swaps && owner.slot(frames, page).is_none();
            if swaps || self.is_clean(page) {
                if !is_new || pass.room != 0 {
                    pass.room -= usize::from(is_new);
                    self.take(h, pass, page);
                }
                return None;
            }
            match owner {
                PageOwner::Object { pager, .. } if pager.launder() == Launder::Put => {
                    Some(((*pager).clone(), Pages(frames.index(page))))
                }
                _ => None,
            }
        });
        if let Some((pager, index)) = put.flatten() {
            pass.puts.push((pager, index));
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
