//! What a parent stores to while its children are there: a fork copies such pages itself.
//!
//! ```text
//!   fork:  the parent's translations read-only  ->  every CPU has forgotten them  ->  copy  ->  the parent's writable again
//!          and the amap's leaves shared                                                +->  the child's, writable too
//! ```
//! After most forks the parent stores to the same few pages, its stack above all, and the child to the same. Each such page then costs
//! a fault and a copy in one of them and a fault in the other, each time; and with several threads, each of whose forks takes the right
//! to write from all, in every thread. So an amap remembers the slots whose pages a store had to copy because a child had them too. The next
//! forks give the child copies of these from the start, mapped, and the parent's page stays the parent's.
//!
//! Nobody can write such a page between the loss of its translations and the copy, so the child gets the memory of one moment,
//! as by any fork: the copy is the one that the child's own store would have made, made at once.
//!
//! What was learned may be true no more, and no fault will say so. Thus it is forgotten after [`FORKS`] forks, and learned anew at the cost
//! of a fault and no copy of the amap.
//!
//! Slots are noted by stores beside each other; all else has the amap locked.

use core::ops::Range;

use arrayvec::ArrayVec;
use machine::frames::PageFlags;
use machine::lines::{AtomicU32, AtomicU64, Ordering::Relaxed};
use machine::{order, Held, Machine, Pmap, Prot, Reserve, Shootdown, Va, VaRange, Wiring};

use crate::amap::AnonHolders;
use crate::anon::AnonNo;
use crate::borrowed::Content;
use crate::map::tree::Tree;
use crate::map::Entry;
use crate::slots::LEAF_BYTES;
use crate::space::Space;
use crate::stat::Counter;
use crate::Uvm;

/// Slots that an amap remembers.
const SLOTS: usize = 4;
/// Pages that one fork copies at most.
const PAGES: usize = 16;
/// Forks after which what was learned is forgotten.
const FORKS: u32 = 64;
/// No slot.
const NONE: u64 = u64::MAX;

/// Heap bytes that the copies in one amap may need: each unshares a leaf.
pub(crate) const BYTES: usize = SLOTS * LEAF_BYTES;

/// Some of an amap's slots.
pub(crate) type Slots = ArrayVec<u64, SLOTS>;
/// Where the pages are that a fork copies.
pub(crate) type Places = ArrayVec<Va, PAGES>;

/// See the module. A hint.
pub(crate) struct Rewritten {
    slots: [AtomicU64; SLOTS],
    forks: AtomicU32,
}

impl Rewritten {
    pub(crate) fn new() -> Rewritten {
        Rewritten { slots: core::array::from_fn(|_| AtomicU64::new(NONE)), forks: AtomicU32::new(0) }
    }

    /// Says that a store to a slot had to copy what others have too.
    #[inline]
    pub(crate) fn note(&self, slot: u64) {
        for place in &self.slots {
            match place.load(Relaxed) {
                // Mostly it is known, and the line stays where it is.
                known if known == slot => return,
                NONE => return place.store(slot, Relaxed),
                _ => {}
            }
        }
    }

    /// Whether any store has had to since all was forgotten.
    pub(crate) fn is_any(&self) -> bool {
        self.slots[0].load(Relaxed) != NONE
    }

    /// Those of a range whose pages the fork that is under way copies.
    pub(crate) fn forked(&self, range: &Range<u64>) -> Slots {
        let forks = self.forks.load(Relaxed) + 1;
        self.forks.store(forks % FORKS, Relaxed);
        if forks == FORKS {
            self.slots.iter().for_each(|place| place.store(NONE, Relaxed));
        }
        self.slots.iter().map(|place| place.load(Relaxed)).filter(|slot| range.contains(slot)).collect()
    }
}

impl<M: Machine> Uvm<M> {
    /// Takes the right to write from what the fork that is under way copies.
    pub(crate) fn protect_rewritten(
        &self,
        held: &mut Held<'_, order::Map>,
        (parent, tree): (&Space<M>, &Tree<Entry<M>>),
        places: &Places,
        down: &mut Shootdown,
    ) {
        let mut done = VaRange::default();
        for &va in places {
            if let Some(entry) = tree.get(va).filter(|entry| entry.range != done) {
                self.write_protect(held, parent, entry, down);
                done = entry.range;
            }
        }
    }

    /// Gives a child its copies, and the parent what it had. No CPU knows a writable translation of the pages any more. What can't be had
    /// stays shared and is left to the stores. The heap has been reserved, [`BYTES`] for each amap.
    pub(crate) fn copy_rewritten(
        &self,
        held: &mut Held<'_, order::Map>,
        (parent, tree): (&Space<M>, &Tree<Entry<M>>),
        (child, entries): (&Space<M>, &Tree<Entry<M>>),
        places: &Places,
        down: &mut Shootdown,
    ) {
        for &va in places {
            let (Some(from), Some(to)) = (tree.get(va), entries.get(va)) else { continue };
            if let Some(original) = self.copy_for_child(held, (child, to), va, down) {
                self.raise_again(held, (parent, from), va, original, down);
                self.stat().add(self.machine().cpu(), Counter::CopiedAtFork, 1);
            }
        }
    }

    /// Puts a copy of what the child has at an address in its place, and maps it; and says what was there. None, and nothing has changed, if
    /// that is not at hand or memory is short.
    fn copy_for_child(
        &self,
        held: &mut Held<'_, order::Map>,
        (child, entry): (&Space<M>, &Entry<M>),
        va: Va,
        down: &mut Shootdown,
    ) -> Option<AnonNo> {
        let (machine, frames) = (self.machine(), self.frames());
        let aref = entry.amap.as_ref()?;
        let slot = entry.slot(aref, va);
        // Nobody else knows of it yet.
        let (mut body, mut h) = aref.amap.body.lock(held);
        let original = body.slots.get(slot).and_then(Content::anon)?;
        let page = {
            let (anon, mut h) = self.anons.get(original).lock(&mut h);
            let page = anon.page.filter(|&page| !frames.flags(page).contains(PageFlags::BUSY))?;
            let copy = frames.is_plentiful().then(|| frames.alloc(machine, &mut h, Reserve::User))?.ok()?;
            machine.copy(page, copy);
            copy
        };
        let copy = self.anons.make(machine, &mut h, page).ok()?;
        let mut holders = AnonHolders { machine, anons: &self.anons, held: &mut h, down };
        body.slots.unshare(slot, &mut holders);
        body.slots.set(slot, copy.number());
        self.anons.release(machine, &mut h, original, down);
        // Where there is no memory for tables, its first access will map it.
        let wiring = Wiring::Pageable;
        let _ = machine.pmap().enter(&mut h, &child.pmap, va, page, entry.prot, Prot::NONE, wiring, down);
        frames.activate(machine, &mut h, page);
        Some(original)
    }

    /// Maps the original for the parent as it was before the fork, if it is the parent's alone by now.
    fn raise_again(
        &self,
        held: &mut Held<'_, order::Map>,
        (parent, entry): (&Space<M>, &Entry<M>),
        va: Va,
        original: AnonNo,
        down: &mut Shootdown,
    ) {
        let (frames, pmap) = (self.frames(), self.machine().pmap());
        let Some(aref) = &entry.amap else { return };
        let (body, mut h) = aref.amap.body.lock(held);
        let found = body.slots.find(entry.slot(aref, va));
        if found.is_shared() || found.number() != Some(original.number()) {
            return;
        }
        let (anon, mut h) = self.anons.get(original).lock(&mut h);
        let is_plain = |page| !frames.flags(page).contains(PageFlags::BUSY) && frames.loans(page) == 0;
        let Some(page) = anon.page.filter(|&page| anon.refs == 1 && is_plain(page)) else { return };
        if pmap.extract(&parent.pmap, va).is_some_and(|(mapped, _)| mapped == page) {
            let wiring = Wiring::Pageable;
            let _ = pmap.enter(&mut h, &parent.pmap, va, page, entry.prot, Prot::NONE, wiring, down);
        }
    }
}
