//! An amap of an entry's own, which waited to copy one that it shares: before its first store.
//!
//! Amaps of many leaves, or of many runs of counts, are copied, or referred to once more, in steps.
//! The map that has the entry is claimed then. As long as the entry refers to its slots, they stay;
//! what other spaces write to meanwhile is copied as it is then.

use core::ops::Range;

use crate::page::Gather;
use machine::{order, Held, Machine, NoMemory, Pages, Unlocked, Va, VaRange};

use super::lock::Unpinned;
use super::tree::Tree;
use super::{clip, Change, Entry, Writes};
use crate::amap::cover::CHANGE_BYTES;
use crate::amap::slots::{Emptied, Heap, Slots, LEAF};
use crate::amap::{ARef, AmapBody, AnonHolders, NEW_BYTES, RUNS_AT_ONCE, SLOTS_AT_ONCE};
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// The largest part that a store cuts off an entry, as a power of two of slots.
const LARGEST_CUT: u32 = 24;

impl<M: Machine> Uvm<M> {
    /// Gives a private entry that waits to copy an amap of its own: a new one, the one it has if
    /// no other entry refers to its slots, or a copy. The heap has been reserved. A fault that has
    /// pinned any page of the entry would install anons in the old amap.
    pub(crate) fn copy_amap(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &mut Entry<M>,
        unpinned: Unpinned,
    ) {
        debug_assert!(unpinned.contains(entry.range), "a fault may use the amap that is replaced");
        let len = entry.len();
        match &entry.amap {
            None => entry.amap = Some(ARef::new(entry.range)),
            Some(aref) if aref.is_exclusive(held, len) => {}
            Some(aref) => {
                // By leaves of 64 slots: no mapping can write the anons that are shared now.
                let slots = {
                    let (body, mut h) = aref.amap.body.lock(held);
                    body.share(self, &mut h, aref.range(len), &[])
                };
                let copy = ARef::with_slots(slots, aref.slot, len);
                let mut down = Gather::new();
                let all = (aref.range(len), usize::MAX);
                let (_, emptied) = aref.release_some(self, held, all, Heap::Reserved, &mut down);
                debug_assert_eq!(emptied, Emptied::All);
                // The copy holds every leaf, so nothing was freed.
                down.perform(self.frames(), self.mem(), held);
                entry.amap = Some(copy);
                self.count(crate::Counter::AmapCopies, 1);
            }
        }
        entry.writes = Writes::CopyOnWrite;
    }

    /// Cuts the entry around an address off its neighbourhood, if it waits to copy more than one
    /// hold of a lock may copy: down to slots that begin and end at multiples of a power of two,
    /// so that stores in any order make few entries. Returns the heap bytes that were used.
    pub(crate) fn clip_to_copy<E>(
        &self,
        held: &mut Held<'_, order::Map>,
        tree: &mut Tree<Entry<M>>,
        va: Va,
        reserved: usize,
    ) -> Result<usize, Stop<E>> {
        let waits = |e: &&Entry<M>| e.writes == Writes::NeedsCopy;
        let Some(entry) = tree.get(va).filter(waits) else { return Ok(0) };
        let Some(aref) = &entry.amap else { return Ok(0) };
        let (slot, all) = (entry.slot(aref, va), aref.range(entry.len()));
        if aref.is_exclusive(held, entry.len()) || aref.copies_few(held, &all) {
            return Ok(0);
        }
        let around = |bits: u32| {
            let start = slot >> bits << bits;
            start.max(all.start)..(start + (1 << bits)).min(all.end)
        };
        let leaf = LEAF.ilog2();
        let few = (leaf..=LARGEST_CUT).rev().map(around).find(|some| aref.copies_few(held, some));
        let some = few.unwrap_or_else(|| around(leaf));
        let at = |slot: u64| entry.range.start + Pages(slot - aref.slot.0);
        let part = VaRange::new(at(some.start), at(some.end));
        // However many entries there are: what is stored to is not the program's to cut, and each
        // cut needs memory that has been touched.
        let bytes = Change::CLIP.bytes_in(tree);
        Stop::ensure(bytes, reserved)?;
        clip(tree, part);
        Ok(bytes)
    }

    /// Heap bytes that [`copy_amap`](Self::copy_amap) needs.
    pub(crate) fn copy_amap_bytes(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &Entry<M>,
    ) -> usize {
        let Some(aref) = &entry.amap else { return NEW_BYTES };
        aref.copy_bytes(held, entry.len(), &mut { usize::MAX }).unwrap_or_default()
    }

    /// Gives entries in a range that wait to copy amaps of their own. Another fork may follow at
    /// once: the caller asks [again](crate::map::LockedMap::copies_needed).
    ///
    /// # Errors
    /// [`NoMemory`], also if the thread is being ended: entries that have theirs keep them.
    pub(crate) fn copy_amaps_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        self.attempt(held, 0, |held, _| self.claim_whole::<NoMemory>(held, space))?;
        let copied = self.copy_amaps_claimed(held, space, range);
        space.map.unclaim(self.mem(), held);
        copied
    }

    /// Like [`copy_amaps_in_steps`](Self::copy_amaps_in_steps), in a map that is claimed.
    pub(crate) fn copy_amaps_claimed(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        let mut rest = range;
        while !rest.is_empty() {
            let waiting = {
                let (tree, mut h) = space.map.lock_claimed(held);
                let found = tree.try_each(rest, &mut |e| match &e.amap {
                    Some(aref)
                        if e.writes == Writes::NeedsCopy && !aref.is_exclusive(&mut h, e.len()) =>
                    {
                        Err((e.range, aref.clone()))
                    }
                    _ => Ok(()),
                });
                found.err()
            };
            let Some((own, aref)) = waiting else { return Ok(()) };
            self.copy_amap_claimed(held, space, own, &aref)?;
            rest.start = own.end.min(rest.end);
        }
        Ok(())
    }

    /// Gives one entry, which waits to copy, an amap of its own, and returns that.
    pub(crate) fn copy_amap_claimed(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        aref: &ARef<M>,
    ) -> Result<ARef<M>, NoMemory> {
        let copy = self.share_leaves_in_steps(held, aref, range.pages())?;
        {
            let (mut tree, _) = space.map.lock_claimed(held);
            let Some(()) = tree.edit(range.start, |entry| {
                (entry.amap, entry.writes) = (Some(copy.clone()), Writes::CopyOnWrite);
            }) else {
                unreachable!("an entry of a claimed map stays")
            };
        }
        self.count(Counter::AmapCopies, 1);
        self.release_at_once(held, aref, range.pages());
        Ok(copy)
    }

    /// Drops a reference to the first `len` slots, and has every CPU forget what went with it.
    fn release_at_once(&self, held: &mut Unlocked<'_>, aref: &ARef<M>, len: Pages) {
        let mut down = Gather::new();
        self.release_amap(held, aref, len, &mut down);
        down.perform(self.frames(), self.mem(), held);
    }

    /// A new amap with the same anons in the first `len` slots.
    pub(crate) fn share_leaves_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        from: &ARef<M>,
        len: Pages,
    ) -> Result<ARef<M>, NoMemory> {
        self.fill_in_steps(held, from, len, 0, |body, held, slots, rest, reserved| {
            let part = rest.start..body.slots.few(rest.clone(), &mut { SLOTS_AT_ONCE });
            let need = body.slots.share_bytes(part.clone());
            if need > *reserved {
                *reserved = need;
                return Ok(rest.start);
            }
            let mut down = Gather::new();
            let mut holders = AnonHolders { uvm: self, held, down: &mut down };
            body.slots.share_into(slots, part.clone(), core::iter::empty(), &mut holders);
            Ok(part.end)
        })
    }

    /// A new amap, which `fill` fills from the first `len` slots of another, a few at a time: it
    /// gets those that are left, and returns where the next step begins, for which it may ask for
    /// more heap.
    pub(crate) fn fill_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        from: &ARef<M>,
        len: Pages,
        mut reserve: usize,
        mut fill: impl FnMut(
            &AmapBody<M>,
            &mut Held<'_, order::Amap>,
            &mut Slots,
            Range<u64>,
            &mut usize,
        ) -> Result<u64, NoMemory>,
    ) -> Result<ARef<M>, NoMemory> {
        self.mem().reserve_heap(NEW_BYTES)?;
        let mut copy = ARef::with_slots(Slots::new(), from.slot, len);
        let mut rest = from.range(len);
        while !rest.is_empty() {
            let filled = self.mem().reserve_heap(reserve).and_then(|()| {
                if let Some(slots) = copy.own_slots() {
                    let (body, mut h) = from.amap.body.lock(held);
                    rest.start = fill(&body, &mut h, slots, rest.clone(), &mut reserve)?;
                }
                self.pause_or_give_up(held)
            });
            if let Err(e) = filled {
                self.release_at_once(held, &copy, len);
                return Err(e);
            }
        }
        Ok(copy)
    }

    /// One more reference to the first `len` slots.
    pub(crate) fn reference_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        aref: &ARef<M>,
        len: Pages,
    ) -> Result<(), NoMemory> {
        let all = aref.range(len);
        let mut at = all.start;
        while at < all.end {
            let added = self.mem().reserve_heap(CHANGE_BYTES).and_then(|()| {
                at = aref.amap.body.lock(held).0.cover.add_some(at..all.end, RUNS_AT_ONCE);
                self.pause_or_give_up(held)
            });
            if let Err(e) = added {
                self.release_at_once(held, aref, Pages(at - all.start));
                return Err(e);
            }
        }
        Ok(())
    }
}
