//! Wiring: mlock's case, kept in the map.
//!
//! Of the five kinds of wiring (1999, section 3.2) only this one is a property of a mapping. The
//! range is marked first, then every page is brought in by a fault that wires it; if one can't be,
//! the marks are taken back.

use alloc::collections::LinkedList;

use machine::lines::Ordering::Relaxed;
use machine::{Machine, PageRange, Pages, Pmap, Prot, Unlocked, Va, VaRange};

use crate::map::steps::{first_part, first_wired, Ahead, Lock, WIRED};
use crate::map::{Entry, LockedMap, RangeError, Writes};
use crate::{Space, Uvm};

/// What a call has marked, part by part. A range has as many parts as it has entries, so the list
/// isn't one piece.
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
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let mut fresh = Fresh::new();
        let marked = self.mark_wired(held, space, *range, &mut fresh);
        let wired = marked.and_then(|()| {
            fresh.iter().try_for_each(|&(part, prot)| self.wire_range(held, space, part, prot))
        });
        self.end_wiring_of(held, space, *range, fresh, wired)
    }

    /// Takes the marks back that a call has made, if it failed; then what it has cut grows
    /// together.
    fn end_wiring_of(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        mut fresh: Fresh,
        result: Result<(), RangeError>,
    ) -> Result<(), RangeError> {
        for n in 0.. {
            let Some((part, _)) = fresh.pop_front() else { break };
            // Another thread's change may have joined it to a neighbour meanwhile. Without heap to
            // cut it off again that goes along.
            if result.is_err() && self.unwire_all(held, space, part).is_err() {
                self.unwire_marked(held, space, part);
            }
            self.pause_after(held, n);
        }
        // Not before: without heap to cut it off again, what was wired before would go along.
        self.in_steps(held, space, (range, Lock::Unclaimed), |map, rest, _| {
            let part = first_part(map.tree, rest);
            map.merge(part);
            part.end
        });
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
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let mut fresh = Fresh::new();
        let marked = self.mark_wired(held, space, *range, &mut fresh);
        for &(part, prot) in fresh.iter().filter(|_| marked.is_ok()) {
            self.mem().pause(held);
            let Some(access) = least_access(prot) else { continue };
            for (n, va) in part.iter_pages().enumerate() {
                self.pause_after(held, n);
                let mapped = self.mem().pmap().extract(&space.pmap, va).is_some();
                if mapped && self.fault(held, space, va, access).is_err() {
                    // I5: what can't be wired now isn't mapped, and is wired when it is touched.
                    let page = (VaRange::new(va, va + Pages(1)), Lock::Unclaimed);
                    self.in_steps(held, space, page, |map, page, down| {
                        self.unwire_some(map.held, space, page, usize::MAX);
                        self.forget_range(map.held, space, page, down);
                        page.end
                    });
                }
            }
        }
        self.end_wiring_of(held, space, *range, fresh, marked)
    }

    /// Says that a space has locked memory from now on.
    pub(crate) fn note_wired(&self, space: &Space<M>) {
        space.map.was_wired.store(true, Relaxed);
        if !self.anons.was_wired.load(Relaxed) {
            self.anons.was_wired.store(true, Relaxed);
        }
    }

    /// Marks a range as wired, some entries at a time, and notes which parts were not, with the
    /// accesses that may bring them in.
    fn mark_wired(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        fresh: &mut Fresh,
    ) -> Result<(), RangeError> {
        self.change_entries(held, space, range, FRESH_BYTES, |map, part| {
            map.tree.each_mut(part, |e| {
                if !e.wired {
                    self.note_wired(space);
                    e.wired = true;
                    fresh.push_back((e.range, prot_to_wire(e)));
                }
            });
            part.end
        })
    }

    fn wire_range(
        &self,
        held: &mut Unlocked<'_>,
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
            self.fault_to_wire(held, space, va, access)?;
        }
        Ok(())
    }

    /// Brings in the pages of what has moved and stayed locked; if one can't be, none of it is
    /// locked any more.
    pub(crate) fn wire_moved(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) {
        let mut rest = range;
        while !rest.is_empty() {
            let part = {
                let (tree, _) = space.map.lock(self.mem(), held, rest);
                first_wired(&tree, rest, prot_to_wire)
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
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        self.unwire_all(held, space, range.into())
    }

    fn unwire_all(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), RangeError> {
        let (mut rest, mut has_begun) = (range, false);
        let done = self.change_entries(held, space, range, 0, |map, part| {
            (rest.start, has_begun) = (map.unwire_first(part), true);
            rest.start
        });
        match done {
            // There is no room for what would be cut for a moment.
            Err(RangeError::NoMemory | RangeError::TooMany) if has_begun => {
                self.unwire_marked(held, space, rest);
                Ok(())
            }
            done => done,
        }
    }

    /// Unwires a range's entries as they are, some pages at a time, which takes no heap.
    fn unwire_marked(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) {
        let range = (range, Lock::Unclaimed);
        self.in_steps(held, space, range, |map, rest, _| map.unwire_first(rest));
    }

    /// Wires again what was unwired for a change that was refused.
    pub(crate) fn wire_ahead_again(&self, held: &mut Unlocked<'_>, ahead: &[Ahead<'_, M>]) {
        ahead.iter().for_each(|ahead| self.wire_again(held, ahead.space, ahead.unwired));
    }

    /// Wires those pages of a range again that are in memory, after they were unwired ahead of a
    /// change that was then refused; no page is brought in or copied. What can't be wired now is
    /// wired when it is touched.
    pub(crate) fn wire_again(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && !rest.is_empty() {
            let part = {
                let (tree, _) = space.map.lock(self.mem(), held, rest);
                first_wired(&tree, rest, |e| e.prot)
            };
            let Some((part, prot)) = part else { return };
            let access = least_access(prot);
            for (n, va) in part.iter_pages().enumerate() {
                self.pause_after(held, n);
                let mut is_there = false;
                let Some(page) = PageRange::sized(va, Pages(1)) else { continue };
                self.resident(held, space, page, |_| is_there = true);
                if let (true, Some(access)) = (is_there, access) {
                    let _ = self.fault(held, space, va, access);
                }
            }
            rest.start = part.end;
        }
    }
}

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Unwires some pages of the first entry in a range that is wired, which is so no more once
    /// none of its pages is. Says where the rest begins, in which entries may be wired.
    fn unwire_first(&mut self, range: VaRange) -> Va {
        let part = first_part(self.tree, range);
        let Some((_, wired)) = first_wired(self.tree, part, |e| e.range) else {
            self.merge(part);
            return part.end;
        };
        let end = self.uvm.unwire_some(self.held, self.space, wired, WIRED);
        if end != wired.end {
            return range.start;
        }
        // A fault that has pinned another part of the entry would wire its page.
        self.exclude(wired);
        self.tree.each_mut(wired, |e| e.wired = false);
        self.merge(wired);
        end.min(range.end)
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
