//! What a parent stores to while its children are there: a fork copies such pages itself.
//!
//! ```text
//!   fork:  leaves shared, those slots left out  ->  the parent's translations read-only  ->  every CPU has forgotten them  ->  copy
//!          ->  the parent's writable again, and the child's
//! ```
//! After most forks the parent stores to the same few pages, its stack above all, and the child to
//! the same; a C library's child also to the descriptors of threads that it doesn't have. Each such
//! page then costs a fault and a copy in one of them and a fault in the other, each time; and with
//! several threads, each of whose forks takes the right to write from all, in every thread. So an
//! amap remembers the slots whose pages a store had to copy because parent and child had them. The
//! next forks give the child copies of these from the start, mapped, and the parent's page stays
//! the parent's.
//!
//! No thread can write such a page between the loss of its translations and the copy, so the child
//! gets the memory of one moment, as by any fork: the copy is the one that a store would have made,
//! made at once.
//!
//! What was learned may be true no more, and no fault will say so. Thus a space's every [`FORKS`]th
//! fork forgets it, and it is learned anew at the cost of a fault.
//!
//! Slots are noted by stores beside each other; all else has the amap locked.

use core::ops::Range;

use crate::page::Gather;
use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, PageNo, Pages, Pmap, Prot, Run, Va, VaRange, Wiring};

use crate::amap::rewritten::{Rewritten, RewrittenSlots};
use crate::amap::slots::LEAF_BYTES;
use crate::amap::ARef;
use crate::anon::{many_bytes, AnonNo};
use crate::fork::Fork;
use crate::map::space::Space;
use crate::map::tree::Tree;
use crate::map::{Entry, Writes};
use crate::stat::Counter;
use crate::Uvm;

/// Pages that one fork copies at most.
const MOST: usize = 16;
/// Forks of a space after which what its amaps learned is forgotten.
const FORKS: u32 = 256;

/// Those that all copies of a fork may need.
pub(crate) const ALL_BYTES: usize = MOST * LEAF_BYTES + many_bytes(MOST);

/// The fork that is under way, or the copy of a range that is to be passed.
pub(crate) struct CopyState<M: Machine> {
    /// It copies what was learned; else stores will.
    eager_copies: bool,
    /// It begins with forgetting what was learned.
    forgets: bool,
    /// No translation allows a store to private memory any more, and none will before its end.
    pub(crate) is_write_protected: bool,
    /// The amap of the next entry's copy, where it is made already; its length, and how the copy
    /// writes to it.
    pub(crate) next_amap: Option<(ARef<M>, Pages, Writes)>,
    places: ArrayVec<(Va, AnonNo), MOST>,
    /// Other spaces may write to pages of what was copied.
    pub(crate) others_can_write: bool,
}

impl<M: Machine> CopyState<M> {
    /// The `nth` fork of a space.
    pub(crate) fn new(nth: u32) -> Self {
        let forgets = nth.is_multiple_of(FORKS);
        CopyState {
            eager_copies: true,
            forgets,
            is_write_protected: false,
            next_amap: None,
            places: ArrayVec::new(),
            others_can_write: false,
        }
    }

    /// The copy of a range.
    pub(crate) fn of_range() -> Self {
        CopyState { eager_copies: false, ..CopyState::new(1) }
    }

    /// Those of some slots that this fork copies.
    pub(crate) fn choose(
        &self,
        rewritten: &Rewritten,
        range: &Range<u64>,
        holds: impl Fn(u64) -> Option<AnonNo>,
    ) -> RewrittenSlots {
        if !self.eager_copies {
            return RewrittenSlots::new();
        }
        if self.forgets {
            rewritten.forget();
        }
        let mut chosen = RewrittenSlots::new();
        for slot in rewritten
            .slots
            .iter()
            .map(|place| place.load(Relaxed))
            .filter(|slot| range.contains(slot))
        {
            let is_new = chosen.iter().all(|&(known, _)| known != slot);
            if is_new && chosen.len() < self.places.remaining_capacity() {
                chosen.extend(holds(slot).map(|no| (slot, no)));
            }
        }
        chosen
    }

    /// Says where these are mapped.
    pub(crate) fn add(&mut self, slots: RewrittenSlots, place: impl Fn(u64) -> Va) {
        self.places.extend(slots.into_iter().map(|(slot, original)| (place(slot), original)));
    }
}

impl<M: Machine> Fork<'_, M> {
    /// Takes the right to write from what the fork copies itself.
    pub(super) fn protect_rewritten(
        &mut self,
        held: &mut Held<'_, order::Map>,
        tree: &Tree<Entry<M>>,
    ) {
        let mut done = VaRange::default();
        for &(va, _) in &self.state.places {
            if let Some(entry) = tree.get(va).filter(|entry| entry.range != done) {
                self.uvm.write_protect(held, self.parent, entry, self.down);
                done = entry.range;
            }
        }
    }

    /// Gives the child its copies, and the parent what it had. No CPU knows a writable translation
    /// of the pages any more. What can't be had is shared and left to the stores. The heap has been
    /// reserved, [`BYTES`](crate::amap::rewritten::BYTES) for each amap.
    pub(super) fn copy_rewritten(
        &mut self,
        held: &mut Held<'_, order::Map>,
        tree: &Tree<Entry<M>>,
    ) {
        let (uvm, pmap) = (self.uvm, self.uvm.mem().pmap());
        for &(va, original) in &self.state.places {
            let (Some(from), Some(to)) = (tree.get(va), self.entries.get(va)) else { continue };
            let Some(aref) = &to.amap else { continue };
            let copy = uvm.copy_for_child(held, (self.parent, from), va, original, self.down);
            // No other thread knows of it yet.
            let (mut body, mut h) = aref.amap.body.lock(held);
            let content = copy.map_or(original, |(anon, _)| anon);
            let before = body.slots.set(to.slot(aref, va), content.number());
            debug_assert!(before.is_none(), "a slot that a fork fills was not left out");
            let Some((_, page)) = copy else {
                uvm.anons.get(original).lock(&mut h).0.add_reference(uvm.frames());
                continue;
            };
            // What no access is allowed to isn't mapped; and where there is no memory for tables,
            // the first access maps it.
            if !to.prot.is_empty() {
                let (space, prot, wiring) = (&self.child.pmap, to.prot, Wiring::Pageable);
                let _ = pmap.enter(
                    &mut h,
                    space,
                    Run::one(va, page),
                    prot,
                    Prot::NONE,
                    wiring,
                    self.down,
                );
            }
            uvm.frames().activate(uvm.mem(), &mut h, page);
            uvm.count(Counter::CopiedAtFork, 1);
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// A copy of a parent's page, which the parent may write again if no other space has it. None,
    /// and nothing has changed, if the page is not at hand or memory is short.
    fn copy_for_child(
        &self,
        held: &mut Held<'_, order::Map>,
        (parent, entry): (&Space<M>, &Entry<M>),
        va: Va,
        original: AnonNo,
        down: &mut Gather,
    ) -> Option<(AnonNo, PageNo)> {
        let (machine, frames, pmap) = (self.mem(), self.frames(), self.mem().pmap());
        let aref = entry.amap.as_ref().filter(|_| frames.is_plentiful())?;
        let (body, mut h) = aref.amap.body.lock(held);
        let is_shared = body.slots.is_shared(entry.slot(aref, va));
        let copied = self.copy_anon(&mut h.deeper(), original, |anon, h, copy, to| {
            let from = anon.page().filter(|&page| frames.is_plain(page))?;
            machine.copy(from, to);
            let is_own = anon.refs() == 1 && !is_shared;
            if is_own && pmap.extract(&parent.pmap, va).is_some_and(|(mapped, _)| mapped == from) {
                let (prot, wiring) = (entry.prot, Wiring::Pageable);
                let _ =
                    pmap.enter(h, &parent.pmap, Run::one(va, from), prot, Prot::NONE, wiring, down);
            }
            Some(copy)
        });
        copied.ok().flatten().map(|(page, copy)| (copy, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_noted_twice_is_chosen_once() {
        let rewritten = Rewritten::new();
        [7, 3, 7, 9]
            .iter()
            .zip(&rewritten.slots)
            .for_each(|(&slot, place)| place.store(slot, Relaxed));
        let holds = |slot| {
            core::num::NonZeroU32::new(slot as u32).and_then(crate::amap::borrowed::Content::anon)
        };
        let chosen = |state: CopyState<uvm_soft::SoftMachine>, range| -> std::vec::Vec<u64> {
            state.choose(&rewritten, &range, holds).iter().map(|&(slot, _)| slot).collect()
        };
        assert_eq!(chosen(CopyState::new(1), 0..64), [7, 3, 9]);
        assert_eq!(chosen(CopyState::new(1), 4..64), [7, 9]);
        assert!(chosen(CopyState::new(FORKS), 0..64).is_empty() && !rewritten.is_any());
    }
}
