//! Amaps of many leaves, or of many runs of counts, in steps: copied, or referred to once more.
//!
//! The map that has the entry is claimed. As long as the entry refers to its slots, they stay; what
//! other spaces write to meanwhile is copied as it is then.

use crate::page::Gather;
use machine::{order, Held, Machine, NoMemory, Pages, VaRange};

use crate::amap::cover::CHANGE_BYTES;
use crate::amap::slots::Slots;
use crate::amap::{ARef, AnonHolders, NEW_BYTES, RUNS_AT_ONCE, SLOTS_AT_ONCE};
use crate::map::Writes;
use crate::stat::Counter;
use crate::{Space, Uvm};

impl<M: Machine> Uvm<M> {
    /// Gives entries in a range that wait to copy amaps of their own. Another fork may follow at
    /// once: the caller asks [again](crate::map::LockedMap::copies_needed).
    ///
    /// # Errors
    /// [`NoMemory`], also if the thread is being ended: entries that have theirs keep them.
    pub(crate) fn copy_amaps_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
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
        held: &mut Held<'_, order::Nothing>,
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
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        aref: &ARef<M>,
    ) -> Result<ARef<M>, NoMemory> {
        let copy = self.share_leaves_in_steps(held, aref, range.pages())?;
        {
            let (mut tree, _) = space.map.lock_claimed(held);
            let Some(entry) = tree.get_mut(range.start) else {
                unreachable!("an entry of a claimed map stays")
            };
            (entry.amap, entry.writes) = (Some(copy.clone()), Writes::CopyOnWrite);
        }
        self.stat().add(self.mem().cpu(), Counter::AmapCopies, 1);
        self.release_at_once(held, aref, range.pages());
        Ok(copy)
    }

    /// Drops a reference to the first `len` slots, and has every CPU forget what went with it.
    fn release_at_once(&self, held: &mut Held<'_, order::Nothing>, aref: &ARef<M>, len: Pages) {
        let mut down = Gather::new();
        self.release_amap(held, aref, len, &mut down);
        down.perform(self.frames(), self.mem(), held);
    }

    /// A new amap with the same anons in the first `len` slots.
    pub(crate) fn share_leaves_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        from: &ARef<M>,
        len: Pages,
    ) -> Result<ARef<M>, NoMemory> {
        self.mem().reserve_heap(NEW_BYTES)?;
        let mut copy = ARef::with_slots(Slots::new(), from.slot, len);
        let (mut rest, mut reserved) = (from.range(len), 0);
        while !rest.is_empty() {
            let shared = self.mem().reserve_heap(reserved).and_then(|()| {
                {
                    let (body, mut h) = from.amap.body.lock(held);
                    let part = rest.start..body.slots.few(rest.clone(), &mut { SLOTS_AT_ONCE });
                    let need = body.slots.share_bytes(part.clone());
                    if need > reserved {
                        reserved = need;
                    } else if let Some(slots) = copy.own_slots() {
                        let mut down = Gather::new();
                        let mut holders = AnonHolders { uvm: self, held: &mut h, down: &mut down };
                        let but = core::iter::empty();
                        body.slots.share_into(slots, part.clone(), but, &mut holders);
                        rest.start = part.end;
                    }
                }
                self.pause_or_give_up(held)
            });
            if let Err(e) = shared {
                self.release_at_once(held, &copy, len);
                return Err(e);
            }
        }
        Ok(copy)
    }

    /// One more reference to the first `len` slots.
    pub(crate) fn reference_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
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
