//! Wiring: mlock's case, kept in the map.
//!
//! Of the five kinds of wiring (1999, section 3.2) only this one is a property of a mapping. The
//! range is marked first, then every page is brought in by a fault that wires it; if one can't be,
//! the marks are taken back.

use alloc::collections::LinkedList;

use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, PageRange, Pages, Pmap, Prot, Va, VaRange};

use super::attributes::covered;
use super::tree::{Taken, Tree};
use super::{clip, may_clip, Change, Entry, RangeError};
use crate::fault::FaultError;
use crate::map::steps::{first_part, WIRED};
use crate::map::Writes;
use crate::{Space, Stop, Uvm};

/// What a call has marked, part by part. A range has as many parts as it has entries, so the list
/// is no one piece.
type Fresh = LinkedList<(VaRange, Prot)>;
/// Heap bytes of a part: it and two links.
const FRESH_BYTES: usize = size_of::<(VaRange, Prot)>() + 2 * size_of::<usize>() + 16;

impl<M: Machine> Uvm<M> {
    /// Makes every page of the range resident and keeps it so. Inaccessible mappings are only
    /// marked. A range wired twice is wired once.
    ///
    /// # Errors
    /// [`RangeError`]; what was not wired before is not wired after.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// uvm.wire(held, space, pages(at, 4))?;
    /// assert_eq!(uvm.anons(), 4, "all are there, and stay");
    /// uvm.unwire(held, space, pages(at, 4))?;
    /// # Ok(()) });
    /// ```
    pub fn wire(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let range = VaRange::from(range);
        let mut fresh = Fresh::new();
        let marked = self.mark_wired(held, space, range, &mut fresh);
        let wired = marked.and_then(|()| {
            fresh.iter().try_for_each(|&(part, prot)| self.wire_range(held, space, part, prot))
        });
        self.end_wiring_of(held, space, fresh, wired)?;
        self.merge_in_steps(held, space, range);
        Ok(())
    }

    /// Takes the marks back that a call has made, if it failed.
    fn end_wiring_of(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        mut fresh: Fresh,
        result: Result<(), RangeError>,
    ) -> Result<(), RangeError> {
        let mut n = 0;
        while let Some((part, _)) = fresh.pop_front() {
            // A neighbour may have joined it meanwhile. Without heap to cut it off again it goes
            // along.
            if result.is_err() && self.unwire_all(held, space, part).is_err() {
                self.unwire_marked(held, space, part);
            }
            self.pause_after(held, n);
            n += 1;
        }
        result
    }

    /// Keeps the pages of a range that are mapped, and each of the others from when it is first
    /// touched: mlock2's MLOCK_ONFAULT. Brings nothing in. Cost: by pages of the range.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, or [`RangeError::NoMemory`]:
    /// nothing has changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// uvm.wire_as_touched(held, space, pages(at, 4))?;
    /// store(uvm, space, at, b"x")?;
    /// assert_eq!(uvm.anons(), 1);
    /// # Ok(()) });
    /// ```
    pub fn wire_as_touched(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let range = VaRange::from(range);
        let mut fresh = Fresh::new();
        let marked = self.mark_wired(held, space, range, &mut fresh);
        for &(part, prot) in fresh.iter().filter(|_| marked.is_ok()) {
            self.mem().pause(held);
            let Some(access) = least_access(prot) else { continue };
            for (n, va) in part.iter_pages().enumerate() {
                self.pause_after(held, n);
                let mapped = self.mem().pmap().extract(&space.pmap, va).is_some();
                if mapped && self.fault(held, space, va, access).is_err() {
                    // I5: what can't be wired now isn't mapped, and is wired when it is touched.
                    self.forget(held, space, VaRange::new(va, va + machine::Pages(1)));
                }
            }
        }
        self.end_wiring_of(held, space, fresh, marked)
    }

    /// Says that a space has locked memory from now on.
    pub(crate) fn note_wired(&self, space: &Space<M>) {
        space.map.was_wired.store(true, Relaxed);
        if !self.anons.was_wired.load(Relaxed) {
            self.anons.was_wired.store(true, Relaxed);
        }
    }

    fn forget(&self, held: &mut Held<'_, order::Nothing>, space: &Space<M>, range: VaRange) {
        let mut down = crate::page::Gather::new();
        {
            let (_tree, mut h) = space.map.lock(self.mem(), held, range);
            self.unwire_translations(&mut h, space, range);
            self.forget_range(&mut h, space, range, &mut down);
            down.flush(self.mem().pmap());
        }
        down.perform(self.frames(), self.mem(), held);
    }

    /// Marks a range as wired, some entries at a time, and notes which parts were not, with the
    /// accesses that may bring them in.
    fn mark_wired(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        fresh: &mut Fresh,
    ) -> Result<(), RangeError> {
        let mut rest = range;
        while !rest.is_empty() {
            rest.start = self.mark_first(held, space, rest, rest == range, fresh)?;
            self.mem().pause(held);
        }
        Ok(())
    }

    /// Marks the first part of a range, and says where that ends; looks first whether the whole
    /// range is mapped.
    fn mark_first(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        looks: bool,
        fresh: &mut Fresh,
    ) -> Result<Va, RangeError> {
        let reserve = Change::CLIP.bytes::<M>() + 4 * FRESH_BYTES;
        self.attempt(held, reserve, |held, reserved| {
            let (mut tree, _) = space.map.lock_now(self.mem(), held, range).map_err(Stop::Wait)?;
            let part = first_part(&tree, range);
            let whole = if looks { range } else { part };
            covered(&tree, whole)?;
            let mut count = 0;
            tree.each(part, |_| count += 1);
            let need = Change::CLIP.bytes_in(&tree) + count * FRESH_BYTES;
            if need > reserved {
                return Err(Stop::Heap(need));
            }
            may_clip(self, &tree, whole)?;
            clip(&mut tree, whole);
            self.note_wired(space);
            tree.each_mut(part, |e| {
                if !e.wired {
                    e.wired = true;
                    fresh.push_back((e.range, prot_to_wire(e)));
                }
            });
            Ok(part.end)
        })
    }

    fn wire_range(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        prot: Prot,
    ) -> Result<(), RangeError> {
        let access =
            [Prot::WRITE, Prot::READ, Prot::EXECUTE].into_iter().find(|&a| prot.contains(a));
        let Some(access) = access else { return Ok(()) };
        self.mem().pause(held);
        for (n, va) in range.iter_pages().enumerate() {
            self.pause_after(held, n);
            if self.mem().has_fatal_signal() {
                return Err(RangeError::NoMemory);
            }
            self.fault_to_wire(held, space, va, access).map_err(|e| match e {
                FaultError::NoMemory | FaultError::TooOften => RangeError::NoMemory,
                FaultError::NoMapping => RangeError::NoMapping,
                FaultError::Protection => RangeError::Access,
                FaultError::Bus | FaultError::Io | FaultError::NoSpace => RangeError::Fault,
            })?;
        }
        Ok(())
    }

    /// Brings in the pages of what has moved and stayed locked; if one can't be, none of it is
    /// locked any more.
    pub(crate) fn wire_moved(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) {
        let mut rest = range;
        while !rest.is_empty() {
            let part = {
                let (tree, _) = space.map.lock(self.mem(), held, rest);
                let of = |e: &Entry<M>| (e.range.intersect(rest), prot_to_wire(e));
                tree.try_each(rest, &mut |e| if e.wired { Err(of(e)) } else { Ok(()) }).err()
            };
            let Some((part, prot)) = part else { return };
            if self.wire_range(held, space, part, prot).is_err() {
                if self.unwire_all(held, space, range).is_err() {
                    self.unwire_marked(held, space, range);
                }
                return;
            }
            rest.start = part.end;
            self.mem().pause(held);
        }
    }

    /// Takes a range's wiring back, some pages at a time; parts that are not wired stay as they
    /// are.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, or [`RangeError::NoMemory`]:
    /// nothing has changed, unless other threads have unmapped a part meanwhile.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.wire(held, space, range)?;
    /// uvm.unwire(held, space, range)?;
    /// # Ok(()) });
    /// ```
    pub fn unwire(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        self.unwire_all(held, space, range.into())
    }

    fn unwire_all(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), RangeError> {
        self.attempt(held, Change::CLIP.bytes::<M>(), |held, reserved| {
            let (mut tree, _) = space.map.lock_now(self.mem(), held, range).map_err(Stop::Wait)?;
            covered(&tree, range)?;
            may_clip(self, &tree, range)?;
            Change::CLIP.ensure(&tree, 0, reserved)?;
            clip(&mut tree, range);
            Ok(())
        })?;
        let mut rest = range;
        while !rest.is_empty() {
            match self.unwire_first(held, space, rest) {
                Ok(end) => rest.start = end,
                // There is no room for what would be cut for a moment.
                Err(RangeError::NoMemory | RangeError::TooMany) => {
                    self.unwire_marked(held, space, rest);
                    break;
                }
                Err(e) => return Err(e),
            }
            self.mem().pause(held);
        }
        Ok(())
    }

    /// Unwires a range's first part, and says where that ends.
    fn unwire_first(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<Va, RangeError> {
        self.attempt(held, Change::CLIP.bytes::<M>(), |held, reserved| {
            let (mut tree, mut h) =
                space.map.lock_now(self.mem(), held, range).map_err(Stop::Wait)?;
            let mut part = first_part(&tree, range);
            part.end = self.mem().pmap().part(&space.pmap, part, WIRED);
            covered(&tree, part)?;
            may_clip(self, &tree, part)?;
            Change::CLIP.ensure(&tree, 0, reserved)?;
            clip(&mut tree, part);
            self.unwire_range(&mut h, space, &mut tree, part);
            self.merge(&mut tree, &mut h, part);
            Ok(part.end)
        })
    }

    /// Unwires a range's entries as they are, some pages at a time, which takes no heap.
    fn unwire_marked(&self, held: &mut Held<'_, order::Nothing>, space: &Space<M>, range: VaRange) {
        let mut rest = range;
        while !rest.is_empty() {
            {
                let (mut tree, mut h) = space.map.lock(self.mem(), held, rest);
                let part = first_part(&tree, rest);
                let wired =
                    tree.try_each(part, &mut |e| if e.wired { Err(e.range) } else { Ok(()) }).err();
                rest.start = match wired {
                    None => part.end,
                    Some(wired) => {
                        let end = self.unwire_some(&mut h, space, wired, WIRED);
                        if end == wired.end {
                            tree.each_mut(wired, |e| e.wired = false);
                            end.min(rest.end)
                        } else {
                            // What is left of the entry is looked for again.
                            rest.start
                        }
                    }
                };
            }
            self.mem().pause(held);
        }
        self.merge_in_steps(held, space, range);
    }

    /// Takes back the wiring of a range whose entries were taken out to be released; these are not
    /// looked at. Cost: by the range's tables, and by wired pages, of which
    /// [`unwire_ahead`](Self::unwire_ahead) left few.
    pub(crate) fn unwire_released(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        range: VaRange,
    ) {
        if space.map.was_wired.load(Relaxed) {
            self.unwire_translations(held, space, range);
        }
    }

    /// Unwires entries that another map gets, whose translations are still there.
    pub(crate) fn unwire_entries(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entries: &mut Taken<Entry<M>>,
    ) {
        if space.map.was_wired.load(Relaxed) {
            entries.each_mut(|entry| self.unwire_entry(held, space, entry));
        }
    }

    fn unwire_range(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entries: &mut Tree<Entry<M>>,
        range: VaRange,
    ) {
        entries.each_mut(range, |entry| self.unwire_entry(held, space, entry));
    }

    fn unwire_entry(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entry: &mut Entry<M>,
    ) {
        if core::mem::replace(&mut entry.wired, false) {
            self.unwire_translations(held, space, entry.range);
        }
    }

    /// Takes back the wiring of the range's pages and translations. A wired translation is never
    /// forgotten (pmap law P1), so the pages to unwire are those that are mapped as wired.
    pub(crate) fn unwire_translations(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        range: VaRange,
    ) {
        self.unwire_some(held, space, range, usize::MAX);
    }

    /// Takes back the wiring of at most so many of the range's pages, and says up to where no other
    /// is wired.
    pub(crate) fn unwire_some(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        range: VaRange,
        most: usize,
    ) -> Va {
        let mut rest = range;
        for _ in 0..most {
            let Some((va, page)) = self.mem().pmap().unwire(&space.pmap, rest) else {
                return range.end;
            };
            self.unwire_page(held, page);
            rest.start = va + Pages(1);
        }
        rest.start
    }

    /// Wires those pages of a range again that are in memory, after they were unwired ahead of a
    /// change that was then refused; no page is brought in or copied. What can't be wired now is
    /// wired when it is touched.
    pub(crate) fn wire_again(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && !rest.is_empty() {
            let part = {
                let (tree, _) = space.map.lock(self.mem(), held, rest);
                let of = |e: &Entry<M>| (e.range.intersect(rest), e.prot);
                tree.try_each(rest, &mut |e| if e.wired { Err(of(e)) } else { Ok(()) }).err()
            };
            let Some((part, prot)) = part else { return };
            let access = least_access(prot);
            for (n, va) in part.iter_pages().enumerate() {
                self.pause_after(held, n);
                let mut is_there = false;
                self.resident_in(held, space, VaRange::new(va, va + Pages(1)), |_| is_there = true);
                if let (true, Some(access)) = (is_there, access) {
                    let _ = self.fault(held, space, va, access);
                }
            }
            rest.start = part.end;
        }
    }
}

/// Of an entry's rights, those that may bring in a page that is wired. A read finds the page that a
/// store will: one to an object would make it dirty, and ask for room in its file.
fn prot_to_wire<M: Machine>(e: &Entry<M>) -> Prot {
    let reads = e.writes == Writes::Shared && e.amap.is_none();
    if reads {
        least_access(e.prot).unwrap_or(e.prot)
    } else {
        e.prot
    }
}

/// An access that copies nothing, if there is one.
fn least_access(prot: Prot) -> Option<Prot> {
    [Prot::READ, Prot::EXECUTE, Prot::WRITE].into_iter().find(|&access| prot.contains(access))
}
