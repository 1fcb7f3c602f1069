//! Changing a range's attributes: protection, inheritance, advice.
//!
//! Each checks the whole range first and then changes it, so an error leaves everything as it was.
//! Entries that have become alike grow together, so that a heap which grows by mprotect stays two
//! entries however often it does.

use crate::page::Gather;
use machine::{Machine, PageRange, Pmap, Prot, Unlocked, Va, VaRange};

use crate::map::steps::{first_part, Lock, ENTRIES, PAGES_AT_ONCE};
use crate::map::tree::Tree;
use crate::map::{covered, Advice, Change, Entry, Inherit, LockedMap, RangeError};
use crate::{Space, Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// Sets the protection of a range. Lowering reaches translations before this returns; raising
    /// is left to the next fault.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, [`RangeError::Access`] beyond
    /// a mapping's maximum, or [`RangeError::NoMemory`] or [`RangeError::TooMany`]: nothing has
    /// changed. A range of many entries is changed in steps: where another thread unmaps or clips
    /// the rest meanwhile, the first of these have changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.protect(held, space, range, Prot::READ)?;
    /// assert_eq!(store(uvm, space, range.start, b"x"), Err(FaultError::Protection));
    /// # Ok(()) });
    /// ```
    pub fn protect(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        prot: Prot,
    ) -> Result<(), RangeError> {
        let mut unwired = VaRange::new(range.start, range.start);
        if prot == Prot::NONE {
            unwired = self.unwire_ahead(held, space, *range);
        }
        self.by_parts(held, *range, |held, rest| {
            let done = self.protect_first(held, space, rest, prot, rest == *range);
            done.inspect_err(|_| self.wire_again(held, space, rest.intersect(unwired)))
        })
    }

    /// Sets the protection of the first part of a range, and says where that ends; looks first
    /// whether the whole range may have it.
    fn protect_first(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        prot: Prot,
        looks: bool,
    ) -> Result<Va, RangeError> {
        let mut down = Gather::new();
        let mut concerned = range;
        let result = self.attempt(held, Change::CLIP.bytes::<M>(), |held, reserved| {
            let (mut tree, mut h) = space.map.lock_now(self.mem(), held, concerned)?;
            let is_much = range.pages().0 > PAGES_AT_ONCE as u64 && self.shows_much(space, range);
            if is_much && concerned != space.map.bounds {
                concerned = space.map.bounds;
                return Err(Stop::again(reserved));
            }
            let part = first_part(&tree, range);
            let whole = if looks { range } else { part };
            may_be(&tree, whole, prot)?;
            space.locked(self, &mut tree, &mut h).clip_within(whole, 0, reserved)?;
            let mut lowers = false;
            tree.each(part, |e| lowers |= !prot.contains(e.prot));
            if is_much && lowers {
                space.map.claim(&tree);
                drop(tree);
                if prot == Prot::NONE {
                    // A fault wires the pages again once access is back.
                    self.forget_in_steps(held, space, part);
                } else {
                    self.in_steps(held, space, (part, Lock::Claimed), |map, rest, down| {
                        let some = map.part_to_lower(rest);
                        self.mem().pmap().protect(map.held, &space.pmap, some, prot, down);
                        some.end
                    });
                }
                let (mut tree, mut h) = space.map.lock_and_unclaim(self.mem(), held);
                tree.each_mut(part, |e| e.prot = prot);
                space.locked(self, &mut tree, &mut h).merge(part);
                return Ok(part.end);
            }
            tree.each_mut(part, |e| {
                e.prot = prot;
                if e.wired && prot == Prot::NONE {
                    // The translations go; a fault wires the pages again once access is back.
                    self.unwire_some(&mut h, space, e.range, usize::MAX);
                }
            });
            if lowers {
                self.mem().pmap().protect(&mut h, &space.pmap, part, prot, &mut down);
                // Before the lock goes: a fault that finds the new protection must not meet the old
                // translation.
                down.flush(self.mem().pmap());
            }
            space.locked(self, &mut tree, &mut h).merge(part);
            Ok(part.end)
        });
        down.perform(self.frames(), self.mem(), held);
        result
    }

    /// Sets what a child will get of a range: minherit. Source: 1999, section 5.4.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, [`RangeError::NoMemory`] or
    /// [`RangeError::TooMany`]: nothing has changed. For a range of many entries as
    /// [`protect`](Self::protect).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.inherit(held, space, range, Inherit::Share)?;
    /// let child = uvm.fork(held, space)?;
    /// store(uvm, &child, range.start, b"c")?;
    /// assert_eq!(&load(uvm, space, range.start)?, b"c");
    /// uvm.space_destroy(held, child);
    /// # Ok(()) });
    /// ```
    pub fn inherit(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        inherit: Inherit,
    ) -> Result<(), RangeError> {
        self.change_entries(held, space, *range, 0, |map, part| {
            map.tree.each_mut(part, |e| e.inherit = inherit);
            map.merge(part);
            part.end
        })
    }

    /// Says how a range will be used: which neighbours a fault brings along.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, [`RangeError::NoMemory`] or
    /// [`RangeError::TooMany`]: nothing has changed. For a range of many entries as
    /// [`protect`](Self::protect).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.advise(held, space, range, Advice::Random)?;
    /// # Ok(()) });
    /// ```
    pub fn advise(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        advice: Advice,
    ) -> Result<(), RangeError> {
        self.change_entries(held, space, *range, 0, |map, part| {
            map.tree.each_mut(part, |e| e.advice = advice);
            map.merge(part);
            part.end
        })
    }

    /// Changes the entries of a range, some at a time; looks first whether the whole range is
    /// mapped. Each change takes so many bytes of heap.
    pub(super) fn change_entries(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        heap: usize,
        mut change: impl FnMut(&mut LockedMap<'_, '_, M>, VaRange) -> Va,
    ) -> Result<(), RangeError> {
        self.by_parts(held, range, |held, rest| {
            let more = ENTRIES * heap;
            self.attempt(held, Change::CLIP.bytes::<M>() + more, |held, reserved| {
                let (mut tree, mut h) = space.map.lock_now(self.mem(), held, rest)?;
                let part = first_part(&tree, rest);
                let whole = if rest == range { range } else { part };
                covered(&tree, whole)?;
                let map = &mut space.locked(self, &mut tree, &mut h);
                map.clip_within(whole, more, reserved)?;
                Ok(change(map, part))
            })
        })
    }
}

/// Whether a range is mapped and may be protected so; one look at its entries says both.
fn may_be<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange, prot: Prot) -> Result<(), RangeError> {
    let (mut end, mut is_allowed) = (range.start, true);
    tree.try_each(range, &mut |e| {
        is_allowed &= e.max_prot.contains(prot);
        if core::mem::replace(&mut end, e.range.end) < e.range.start {
            return Err(RangeError::NoMapping);
        }
        Ok(())
    })?;
    match is_allowed {
        _ if end < range.end => Err(RangeError::NoMapping),
        true => Ok(()),
        false => Err(RangeError::Access),
    }
}
