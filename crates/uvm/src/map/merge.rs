//! Growing together: neighbours that differ in nothing are one entry.
//!
//! ```text
//!   [ before )[ new )                [ new )[ after )
//!     amap: slots behind are free      amap: slots ahead are free    -> they become the new pages', nothing is copied
//! ```
//! Every cut of an entry costs all who look something up, and an entry once cut stays so unless
//! somebody mends it (1999, section 3). So a mapping that continues a neighbour, upwards or
//! downwards, becomes part of it: a heap that grows by brk, a stack that grows down and an
//! allocator whose mappings the kernel stacks from the top each keep one entry and one amap. An
//! amap's slots are numbered by the addresses where it was made, so that there is room on both
//! sides.
//!
//! A mapping for which any address will do continues only what the same CPU has mapped: threads
//! that run side by side are given addresses side by side, and would wait for each other's pins and
//! amap. Without this rule two threads that map, touch and unmap do 0.72 of what one does, with it
//! more than one (`docs/decisions/faults-and-maps.md`).
//!
//! A neighbour that waits to copy may grow too: its new slots are its own, in an amap that it
//! shares with others for the old ones; whoever copies, copies what the amap has in the whole
//! range.

use alloc::sync::Arc;

use machine::{order, Held, Machine, Prot, Va, VaRange};

use super::tree::Tree;
use super::{Entry, Writes};
use crate::amap::slots::Heap;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// Adds an entry that has no amap where nothing is, as part of a neighbour if it continues one.
    /// Its object is attached if the entry stays one of its own; whether it
    /// could be anywhere. Heap for [one more](super::Change::ADD) has been reserved, and
    /// [`CHANGE_BYTES`](crate::amap::cover::CHANGE_BYTES).
    pub(super) fn add(
        &self,
        tree: &mut Tree<Entry<M>>,
        held: &mut Held<'_, order::Map>,
        entry: Entry<M>,
        is_anywhere: bool,
    ) {
        let may_grow = |neighbour: &Entry<M>| {
            neighbour.is_like(&entry) && (!is_anywhere || neighbour.cpu == entry.cpu)
        };
        let VaRange { start, end } = entry.range;
        if entry.prot.contains(Prot::EXECUTE) {
            if let Some(oref) = &entry.object {
                oref.pager.object().runs(held);
            }
        }
        let (before, after) = tree.beside(entry.range);
        let (before, after) =
            (before.filter(|b| b.range.end == start), after.filter(|a| a.range.start == end));
        if before.is_some_and(|b| may_grow(b) && grows_up(held, b, &entry, Heap::Reserved)) {
            extend_up(tree, start, end);
            self.merge_at(tree, held, end);
        } else if after.is_some_and(|a| may_grow(a) && grows_down(held, a, &entry, Heap::Reserved))
        {
            extend_down(tree, end, start);
        } else {
            entry.attach();
            tree.insert(entry);
            self.stat().add(self.mem().cpu(), crate::Counter::EntriesMade, 1);
        }
    }

    /// Makes one entry of two neighbours that differ in nothing, at every boundary from the start
    /// to the end of the range: what was cut for a change that has been undone, or has spread,
    /// grows together again.
    pub(crate) fn merge(
        &self,
        tree: &mut Tree<Entry<M>>,
        held: &mut Held<'_, order::Map>,
        range: VaRange,
    ) {
        let mut at = range.start;
        while at <= range.end {
            self.merge_at(tree, held, at);
            let rest = VaRange::new(at, Va(range.end.0.saturating_add(1)));
            let next = match tree.get(at) {
                Some(entry) => Some(entry.range.end),
                None => tree.try_each(rest, &mut |entry| Err(entry.range.start)).err(),
            };
            match next {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    fn merge_at(&self, tree: &mut Tree<Entry<M>>, held: &mut Held<'_, order::Map>, at: Va) {
        let (Some(before), Some(after)) = (before(tree, at), starts_at(tree, at)) else { return };
        if !before.is_like(after) {
            return;
        }
        let gone = if before.is_continued_by(after) {
            let Some(after) = tree.remove(at) else { return };
            tree.edit(last_page(at), |before| before.range.end = after.range.end);
            after
        } else if after.amap.is_none() && grows_up(held, before, after, Heap::Unreserved) {
            let Some(after) = tree.remove(at) else { return };
            extend_up(tree, at, after.range.end);
            after
        } else if before.amap.is_none() && grows_down(held, after, before, Heap::Unreserved) {
            let Some(before) = tree.remove(last_page(at)) else { return };
            extend_down(tree, at, before.range.start);
            before
        } else {
            return;
        };
        if let Some(object) = gone.writes_to() {
            object.leave_writer();
        }
        if let Some(oref) = &gone.object {
            let has_another = oref.pager.object().refs.detach_if_shared();
            debug_assert!(has_another, "the entry that is left refers to the object");
        }
    }
}

/// An address in the page before a boundary.
fn last_page(at: Va) -> Va {
    Va(at.0 - 1)
}

/// The entry that ends at a boundary.
fn before<M: Machine>(tree: &Tree<Entry<M>>, at: Va) -> Option<&Entry<M>> {
    tree.get(Va(at.0.checked_sub(1)?)).filter(|e| e.range.end == at)
}

/// The entry that starts at a boundary.
fn starts_at<M: Machine>(tree: &Tree<Entry<M>>, at: Va) -> Option<&Entry<M>> {
    tree.get(at).filter(|e| e.range.start == at)
}

/// Whether stores to both entries go the same way, and their objects' pages follow one another.
fn continues<M: Machine>(low: &Entry<M>, high: &Entry<M>) -> bool {
    let objects = match (&low.object, &high.object) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            core::ptr::addr_eq(Arc::as_ptr(&a.pager), Arc::as_ptr(&b.pager))
                && a.offset + low.len() == b.offset
        }
        _ => false,
    };
    objects && (low.writes == Writes::Shared) == (high.writes == Writes::Shared)
}

/// Takes the slots behind `entry` for `tail`, which has no amap, if it can grow by it; where no
/// `heap` is reserved, without any. One look and step with the amap locked: other maps that share
/// the amap may grow into the same slots.
fn grows_up<M: Machine>(
    held: &mut Held<'_, order::Map>,
    entry: &Entry<M>,
    tail: &Entry<M>,
    heap: Heap,
) -> bool {
    continues(entry, tail)
        && entry.amap.as_ref().is_none_or(|aref| {
            let first = aref.slot.0 + entry.len().0;
            aref.amap.body.lock(held).0.takes(first..first + tail.len().0, heap)
        })
}

/// The same ahead of `entry`, for `head`.
fn grows_down<M: Machine>(
    held: &mut Held<'_, order::Map>,
    entry: &Entry<M>,
    head: &Entry<M>,
    heap: Heap,
) -> bool {
    continues(head, entry)
        && entry.amap.as_ref().is_none_or(|aref| {
            aref.slot >= head.len()
                && aref.amap.body.lock(held).0.takes(aref.slot.0 - head.len().0..aref.slot.0, heap)
        })
}

/// Moves the end of the entry that ends at `at` up to `end`; it has taken the slots.
fn extend_up<M: Machine>(tree: &mut Tree<Entry<M>>, at: Va, end: Va) {
    tree.edit(last_page(at), |entry| entry.range.end = end);
}

/// Moves the start of the entry that starts at `at` down to `start`; it has taken the slots.
fn extend_down<M: Machine>(tree: &mut Tree<Entry<M>>, at: Va, start: Va) {
    let more = at - start;
    tree.edit(at, |entry| {
        if let Some(aref) = &mut entry.amap {
            aref.slot = machine::Pages(aref.slot.0 - more.0);
        }
        if let Some(oref) = &mut entry.object {
            oref.offset = machine::Pages(oref.offset.0 - more.0);
        }
        entry.range.start = start;
    });
}
