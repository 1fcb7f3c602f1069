//! Where a space's memory is: in memory, on swap, mapped. For mincore, `/proc`, and the choice of
//! the process that has to go.
//!
//! All of it is counted when asked for, under the map's lock: nothing is kept up to date for it on
//! the way of a fault.

use machine::{
    order, Before, Held, Machine, PageNo, PageRange, Pages, Pmap, Unlocked, Va, VaRange, PAGE_SIZE,
};

use crate::map::steps::{part_to_look_at, Lock};
use crate::map::{tree::entry_bytes, Entry, Writes};
use crate::{Space, Uvm};

/// A range's pages, by where they are; a moment's value.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 3)?;
/// let stats = uvm.range_stats(held, space, range);
/// println!("{stats:?}");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RangeStats {
    /// Pages of anonymous memory in the range's amaps that are in memory.
    pub anonymous: usize,
    /// Pages of anonymous memory in the range's amaps that are on swap alone.
    pub swapped: usize,
    /// Bytes of `anonymous`, each page divided by the entries of all spaces that show it.
    pub anonymous_share: usize,
    /// Bytes of `swapped`, divided likewise.
    pub swapped_share: usize,
    /// Those of `anonymous` that one entry of one space alone shows.
    pub anonymous_alone: usize,
    /// Pages of objects that translations in the range lead to.
    pub mapped: usize,
    /// Heap bytes of the entries that reach into the range, and of their amaps' slots, divided
    /// likewise.
    pub heap: usize,
}

impl<M: Machine> Uvm<M> {
    /// Counts a range's pages, some at a time. Cost: by pages that are there, not by addresses.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 3)?;
    /// let stats = uvm.range_stats(held, space, range);
    /// println!("{stats:?}");
    /// # Ok(()) });
    /// ```
    pub fn range_stats(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> RangeStats {
        let mut sum = RangeStats::default();
        self.in_steps(held, space, (*range, Lock::Unclaimed), |map, rest, _| {
            let step = part_to_look_at(map.held, map.tree, rest);
            map.tree.each(step, |e| {
                let part = e.range.intersect(step);
                // Once for each entry, at its first part.
                if part.start == e.range.start.max(range.start) {
                    sum.heap += entry_bytes::<Entry<M>>();
                }
                self.count_anons(map.held, e, part, &mut sum);
                let Some(oref) = &e.object else { return };
                let first = e.index(oref, part.start);
                let (body, _) = oref.pager.object().lock(map.held);
                let maps = |&(index, page): &(Pages, _)| {
                    let va = part.start + (index - first);
                    let found = self.mem().pmap().extract(&space.pmap, va);
                    found.is_some_and(|(mapped, _)| mapped == page)
                };
                let there = body.pages(first.0..first.0 + part.pages().0);
                sum.mapped += there.filter(maps).count();
            });
            step.end
        });
        sum
    }

    /// Calls `each`, with the map locked, for each page of an object that a translation in the
    /// range leads to. Looks at `most` pages and entries, at least two, and returns where the rest
    /// of the range begins, if some is left.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 3)?;
    /// let rest = uvm.object_pages(held, space, range, 8, |_| panic!("these are anonymous"));
    /// assert_eq!(rest, None);
    /// # Ok(()) });
    /// ```
    pub fn object_pages(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        most: usize,
        mut each: impl FnMut(PageNo),
    ) -> Option<Va> {
        let (tree, mut h) = space.map.lock(self.mem(), held, *range);
        let mut left = most.max(2);
        let mut look = |va| {
            left = left.checked_sub(1).ok_or(va)?;
            Ok(())
        };
        let all = tree.try_each(*range, &mut |e| {
            let part = e.range.intersect(*range);
            look(part.start)?;
            let Some(oref) = &e.object else { return Ok(()) };
            let first = e.index(oref, part.start);
            let (body, _) = oref.pager.object().lock(&mut h);
            for (index, page) in body.pages(first.0..first.0 + part.pages().0) {
                let va = part.start + (index - first);
                look(va)?;
                let found = self.mem().pmap().extract(&space.pmap, va);
                if found.is_some_and(|(mapped, _)| mapped == page) {
                    each(page);
                }
            }
            Ok(())
        });
        all.err()
    }

    /// Pages of anonymous memory in a range's amaps, in memory or on swap: the sum of a
    /// [range_stats](Self::range_stats)'s `anonymous` and `swapped`. Cost: by leaves of slots.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 3)?;
    /// assert_eq!(uvm.anonymous_in(held, space, range), 3);
    /// # Ok(()) });
    /// ```
    pub fn anonymous_in(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> usize {
        self.count_in_steps(held, space, *range, |_, slots, body| body.slots.count(slots))
    }

    /// As [`anonymous_in`](Self::anonymous_in), with room that other spaces may fill yet: where
    /// they share the amap itself, as do those that were given the memory by
    /// [`Pass::Share`](crate::Pass::Share), all of its addresses count. What lies in a detached
    /// range comes to no more.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 3)?;
    /// assert_eq!(uvm.anonymous_room_in(held, space, range), 3);
    /// # Ok(()) });
    /// ```
    pub fn anonymous_room_in(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> usize {
        self.count_in_steps(held, space, *range, |e, slots, body| {
            let is_own = e.writes == Writes::NeedsCopy || body.cover.is_exclusive(slots.clone());
            if is_own {
                body.slots.count(slots)
            } else {
                (slots.end - slots.start) as usize
            }
        })
    }

    fn count_anons<P: Before<order::Amap>>(
        &self,
        held: &mut Held<'_, P>,
        e: &Entry<M>,
        range: VaRange,
        sum: &mut RangeStats,
    ) {
        let Some(aref) = &e.amap else { return };
        let slots = e.slots(aref, e.range.intersect(range));
        let (body, mut h) = aref.amap.body.lock(held);
        for (run, entries) in body.cover.runs_in(slots.clone()) {
            let (run, entries) =
                (run.start.max(slots.start)..run.end.min(slots.end), entries as usize);
            for (number, tables, heap) in body.slots.shares(run) {
                sum.heap += heap / entries;
                let Some((is_resident, leaves)) = self.holds(&mut h, number) else { continue };
                // A page's leaves, each one's tables, each slot's entries.
                let share = PAGE_SIZE / leaves.saturating_mul(tables).saturating_mul(entries);
                if is_resident {
                    sum.anonymous += 1;
                    sum.anonymous_share += share;
                    sum.anonymous_alone += usize::from(share == PAGE_SIZE);
                } else {
                    sum.swapped += 1;
                    sum.swapped_share += share;
                }
            }
        }
    }
}
