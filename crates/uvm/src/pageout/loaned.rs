//! Pages on loan to programs, when memory is short: their slots get anons (`map/adopt.rs`), and
//! what they hold can leave like any other anonymous memory.
//!
//! ```text
//!   an ownerless page     the anon's own                              written to swap
//!   an anon's             one more reference to that                  written to swap once
//!   an object's, stored   disowned by the object, then ownerless      written to swap; the object reads it again
//!   an object's, dirty    stays on loan, until it has been written
//! ```
//! Nothing is copied, so it takes no page. An object's page that was read lately has a second
//! chance. What the kernel has on loan stays in memory.
//!
//! Source: 1998, section 4.1: what programs borrow can be paged out, what the kernel borrows is
//! wired.

use crate::page::{Gather, Owner, PageFlags};
use arrayvec::ArrayVec;
use core::ops::Range;
use machine::lines::Ordering::Relaxed;
use machine::{Machine, PageNo, Pmap, Unlocked};

use super::Priority;
use crate::amap::borrowed::Search;
use crate::amap::Amap;
use crate::anon::{drop_page, many_bytes};
use crate::map::adopt::{Adopt, AT_ONCE, LOOKED_AT};
use crate::object::Launder;
use crate::owner::PageOwner;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Gives slots that hold pages on loan anons. Cost: by these slots and, if there are any, by
    /// amaps that have ever had some.
    pub(super) fn adopt_loaned(&self, held: &mut Unlocked<'_>, priority: Priority) {
        // Programs may make more as long as this goes on.
        let (anons, last, mut next) = (&self.anons, self.borrowers.last(), 0);
        let mut left = anons.borrowed.load(Relaxed);
        while left != 0 && anons.borrowed.load(Relaxed) != 0 {
            let Some((name, amap)) = self.borrowers.next(held, next) else { break };
            if name > last {
                break;
            }
            next = name + 1;
            let mut from = 0;
            while let Some((slots, pages)) = self.adopt_slots(held, &amap, from) {
                let disowned = pages.into_iter().filter(|&page| self.disown(held, priority, page));
                if disowned.count() != 0 {
                    let _ = self.adopt_slots(held, &amap, slots.start);
                }
                from = slots.end;
                left -= usize::from(!slots.is_empty());
                self.mem().pause(held);
                if left == 0 {
                    break;
                }
            }
        }
    }

    /// Gives some slots of an amap anons, the first of which is the first from `from` on with a
    /// page on loan, if that is among the [`LOOKED_AT`] first. Returns these slots, and the
    /// objects' pages that they hold yet; or no slots, behind those that it has looked at. None, if
    /// no slot is left, or there is no heap.
    fn adopt_slots(
        &self,
        held: &mut Unlocked<'_>,
        amap: &Amap<M>,
        from: u64,
    ) -> Option<(Range<u64>, ArrayVec<PageNo, AT_ONCE>)> {
        self.mem().reserve_heap(many_bytes(AT_ONCE)).ok()?;
        let (mut body, mut h) = amap.body.lock(held);
        let first = match body.first_borrowed(from..u64::MAX, LOOKED_AT)? {
            Search::Found(first) => first,
            Search::GoesOn(at) => return Some((at..at, ArrayVec::new())),
        };
        let slots = first..first + AT_ONCE as u64;
        self.adopt_borrowed(&mut h, &mut body, slots.clone(), &Adopt::Uncopied).ok()?;
        let rest = body.borrowed_from(first).take_while(|(slot, _)| slots.contains(slot));
        let pages = rest.map(|(_, page)| page).collect();
        Some((slots, pages))
    }

    /// Takes a page from its object, which has it elsewhere too and doesn't use it: it is its
    /// borrowers' from then on. Says whether that was done.
    fn disown(&self, held: &mut Unlocked<'_>, priority: Priority, page: PageNo) -> bool {
        let (machine, frames) = (self.mem(), self.frames());
        if !matches!(frames.owner(page), Owner::Object(_)) {
            return false;
        }
        if machine.pmap().clear_referenced(page) && priority == Priority::Normal {
            return false;
        }
        let mut down = Gather::new();
        let left = self.with_owner(held, page, |owner, h| {
            let is_busy = frames.flags(page).contains(PageFlags::BUSY);
            let is_kept = owner.launder() == Launder::Keep || frames.wire_count(page) != 0;
            if is_busy || is_kept || !owner.is_stored(self, page) {
                return false;
            }
            let place = owner.slot(frames, page);
            let PageOwner::Object { body, .. } = owner else { return false };
            let unmapped = down.unmap(frames, machine, h, page);
            body.evict(frames, page, place);
            drop_page(machine, h, unmapped, &mut down);
            true
        });
        down.perform(machine.frames(), machine, held);
        left.unwrap_or(false)
    }
}
