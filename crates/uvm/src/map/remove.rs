//! Unmapping, in two phases: entries and translations leave under the map's lock; references drop
//! after it.
//!
//! Dropping a reference may free thousands of pages or end a file's last use: no thread that
//! faults elsewhere in the map waits for that (1999, section 3.1).

use crate::page::Gather;
use machine::{order, Held, Machine, PageRange, Pages, Pmap, Unlocked, VaRange};

use super::tree::{Taken, Tree};
use super::{covered, Entry, LockedMap, RangeError, Writes};
use crate::amap::LOOKS_AT_ONCE;
use crate::map::steps::{ENTRIES, SLOTS};
use crate::object::Pager;
use crate::{Space, Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// Removes every mapping of a space: at exec and exit. Never fails: where a part of what it
    /// shares with others must be cut out and no heap is to be had, which is rare, it is
    /// [cut](Self::clear_left) once there is.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.space_clear(held, space);
    /// assert_eq!((space.map().entries(held), uvm.anons()), (0, 0));
    /// # Ok(()) });
    /// ```
    pub fn space_clear(&self, held: &mut Unlocked<'_>, space: &Space<M>) {
        self.forget_ahead(held, space, space.map.bounds);
        let mut down = Gather::new();
        let mut old = Taken::new();
        {
            let (mut tree, mut h) = space.map.lock(self.mem(), held, space.map.bounds);
            let map = &mut space.locked(self, &mut tree, &mut h);
            map.take_out(space.map.bounds, &mut old, &mut down);
        }
        self.release_entries(held, &mut old, &mut down);
        down.perform(self.frames(), self.mem(), held);
        self.clear_left(held);
    }

    /// Takes a range's translations away, from every CPU before this returns. The map's lock is
    /// held: while it is, what the range showed has its owner, and the page daemon, which finds no
    /// translation in the tables any more, may free or write the page at once. No CPU must reach it
    /// by one that has merely left the tables.
    pub(crate) fn forget_range(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        range: VaRange,
        down: &mut Gather,
    ) {
        self.mem().pmap().remove(held, &space.pmap, range, down);
        down.flush(self.mem().pmap());
    }

    /// Second phase: drops what entries refer to. Their translations are gone.
    pub(crate) fn release_entries(
        &self,
        held: &mut Unlocked<'_>,
        entries: &mut Taken<Entry<M>>,
        down: &mut Gather,
    ) {
        if entries.is_empty() {
            return;
        }
        let mut count = 0;
        entries.drain(|some| {
            count += some.len();
            if count >= ENTRIES {
                count = 0;
                down.perform(self.frames(), self.mem(), held);
                self.mem().pause(held);
            }
            for entry in some {
                if let Some(aref) = &entry.amap {
                    self.release_amap(held, aref, entry.len(), down);
                }
                if let Some(object) = entry.writes_to() {
                    object.leave_writer();
                }
                if let Some(oref) = &entry.object {
                    self.detach_into(held, &*oref.pager, down);
                }
            }
        });
    }

    /// Forgets anonymous memory in the range: the next read finds the object's data or zeroes, as
    /// after MADV_DONTNEED. Shared memory keeps its pages.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] if part of the range is a hole (the rest was discarded);
    /// [`RangeError::Access`] if part is wired: nothing was discarded;
    /// [`RangeError::NoMemory`]: of a large range the first pages were.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.discard(held, space, range)?;
    /// assert_eq!((uvm.anonymous_in(held, space, range), load(uvm, space, range.start)?), (0, [0]));
    /// # Ok(()) });
    /// ```
    pub fn discard(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let range = VaRange::from(range);
        let mut down = Gather::new();
        let may_be = |tree: &Tree<Entry<M>>| {
            tree.try_each(range, &mut |e| if e.wired { Err(RangeError::Access) } else { Ok(()) })
        };
        let mut concerned = range;
        let result = self.attempt(held, 0, |held, reserved| {
            let (mut tree, mut h) = space.map.lock_now(self.mem(), held, concerned)?;
            may_be(&tree)?;
            let map = &mut space.locked(self, &mut tree, &mut h);
            // Whether it takes more than a step.
            let is_much = range.pages() > Pages(SLOTS as u64) && map.part_to_empty(range) != range;
            if is_much && concerned != space.map.bounds {
                concerned = space.map.bounds;
                return Err(Stop::again(reserved));
            }
            if is_much {
                // A thread that forks meanwhile gets all of it or nothing.
                let is_covered = covered(&tree, range);
                space.map.claim(&tree);
                drop(tree);
                let done = self.discard_in_steps(held, space, range, &mut down);
                space.map.unclaim(self.mem(), held);
                return done.and(is_covered.map_err(Stop::Fail));
            }
            let Some(need) = map.bytes_to_empty(range) else {
                drop(tree);
                self.copy_amaps_in_steps(held, space, range).map_err(RangeError::from)?;
                return Err(Stop::again(reserved));
            };
            Stop::ensure(need, reserved)?;
            map.discard_now(range, &mut down);
            Ok(covered(&tree, range)?)
        });
        down.perform(self.frames(), self.mem(), held);
        result
    }

    /// Discards a range of a map that is claimed.
    fn discard_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        down: &mut Gather,
    ) -> Result<(), Stop<RangeError>> {
        let (mut rest, mut reserved) = (range, 0);
        while !rest.is_empty() {
            self.mem().reserve_heap(reserved).map_err(RangeError::from)?;
            {
                let (mut tree, mut h) = space.map.lock_claimed(held);
                let map = &mut space.locked(self, &mut tree, &mut h);
                let part = map.part_to_empty(rest);
                let Some(need) = map.bytes_to_empty(part) else {
                    drop(tree);
                    self.copy_amaps_claimed(held, space, part).map_err(RangeError::from)?;
                    continue;
                };
                if need > reserved {
                    reserved = need;
                    continue;
                }
                map.discard_now(part, down);
                rest.start = part.end;
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
        Ok(())
    }

    /// Forgets private copies of an object's pages from `from` on, wherever the space maps them:
    /// the next access asks the object, which may have become shorter. Cost: by entries of the
    /// space, if one of its family has copied from the object.
    ///
    /// A [detached range](crate::Detached) is no space of the caller's, nor is the copy that
    /// [`fork`](Self::fork) or [`pass_range`](Self::pass_range) is making: private copies in these
    /// stay.
    ///
    /// # Errors
    /// [`RangeError::NoMemory`]: the copies of entries that share theirs with others, and of those
    /// behind, are still there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Private);
    /// let at = uvm.map(held, space, &request)?;
    /// store(uvm, space, at, b"T")?;
    /// uvm.forget_copies(held, space, &*file, Pages(0))?;
    /// assert_eq!(&load(uvm, space, at)?, b"text");
    /// # Ok(()) });
    /// ```
    pub fn forget_copies(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        object: &dyn Pager<M>,
        from: Pages,
    ) -> Result<(), RangeError> {
        if !object.object().lock(held).0.copiers.may_have(space.family) {
            return Ok(());
        }
        let mut down = Gather::new();
        self.by_parts(held, space.map.bounds, |held, rest| {
            let done = self.attempt(held, 0, |held, reserved| {
                let (mut tree, mut h) = space.map.lock_now(self.mem(), held, rest)?;
                let Some(part) = first_copied(&tree, rest, object.object().id(), from) else {
                    return Ok(rest.end);
                };
                let map = &mut space.locked(self, &mut tree, &mut h);
                let part = map.part_to_empty(part);
                let Some(need) = map.bytes_to_empty(part) else {
                    drop(tree);
                    self.copy_amaps_in_steps(held, space, part).map_err(RangeError::from)?;
                    return Err(Stop::again(reserved));
                };
                Stop::ensure(need, reserved)?;
                if map.tree.get(part.start).is_some_and(|e| e.wired) {
                    self.unwire_some(map.held, space, part, usize::MAX);
                }
                map.discard_now(part, &mut down);
                Ok(part.end)
            });
            down.perform(self.frames(), self.mem(), held);
            done
        })
    }
}

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Takes the entries of a range out, and then its translations away.
    pub(crate) fn take_out(
        &mut self,
        range: VaRange,
        taken: &mut Taken<Entry<M>>,
        down: &mut Gather,
    ) {
        self.clip(range);
        self.tree.take_into(range, taken);
        self.uvm.unwire_some(self.held, self.space, range, usize::MAX);
        self.uvm.forget_range(self.held, self.space, range, down);
    }

    fn discard_now(&mut self, range: VaRange, down: &mut Gather) {
        self.uvm.forget_range(self.held, self.space, range, down);
        self.empty(range, down);
    }

    /// Empties the slots of a range, whose translations are gone.
    pub(crate) fn empty(&mut self, range: VaRange, down: &mut Gather) {
        let unpinned = self.exclude_to_copy(range);
        self.tree.each_mut(range, |e| {
            // Before slots change that others have too.
            let waits = e.writes == Writes::NeedsCopy && e.amap.is_some();
            if let Some(unpinned) = unpinned.filter(|_| waits) {
                self.uvm.copy_amap(self.held, e, unpinned);
            }
            if let Some(aref) = &e.amap {
                let slots = e.slots(aref, e.range.intersect(range));
                aref.discard(self.uvm, self.held, slots, down);
            }
        });
    }

    /// Heap bytes to give each entry in the range an amap of its own, where it waits to copy a
    /// shared one; none if that takes longer than one hold of a lock may.
    pub(crate) fn copies_needed(&mut self, range: VaRange) -> Option<usize> {
        let (mut bytes, mut left) = (0, LOOKS_AT_ONCE);
        let charged = self.tree.try_each(range, &mut |e| {
            let (Writes::NeedsCopy, Some(aref)) = (e.writes, &e.amap) else { return Ok(()) };
            let own = aref.copy_bytes(self.held, e.len(), &mut left);
            own.map(|own| bytes += own).ok_or(())
        });
        charged.ok().map(|()| bytes)
    }

    /// Heap bytes to empty a range's slots; none if that takes longer than one hold of a lock may.
    pub(crate) fn bytes_to_empty(&mut self, range: VaRange) -> Option<usize> {
        let mut bytes = self.copies_needed(range)?;
        self.tree.each(range, |e| {
            if let Some(aref) = &e.amap {
                bytes += aref.release_bytes(self.held, e.slots(aref, e.range.intersect(range)));
            }
        });
        Some(bytes)
    }
}

/// The first part of a range that maps an object's pages from `from` on privately, and has an amap.
fn first_copied<M: Machine>(
    tree: &Tree<Entry<M>>,
    range: VaRange,
    object: u64,
    from: Pages,
) -> Option<VaRange> {
    let look = &mut |e: &Entry<M>| {
        let Some(oref) = e.object.as_ref().filter(|o| o.pager.object().id() == object) else {
            return Ok(());
        };
        let skip = Pages(from.0.saturating_sub(oref.offset.0));
        if e.amap.is_none() || e.writes == Writes::Shared || skip >= e.len() {
            return Ok(());
        }
        let part = VaRange::new(e.range.start + skip, e.range.end).intersect(range);
        if part.is_empty() {
            Ok(())
        } else {
            Err(part)
        }
    };
    tree.try_each(range, look).err()
}
