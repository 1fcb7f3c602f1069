//! Growing together: neighbours that differ in nothing are one entry.
//!
//! ```text
//!   [ before )[ new )                [ new )[ after )
//!     amap: slots behind are free      amap: slots ahead are free    -> they become the new pages', nothing is copied
//! ```
//! Every cut of an entry costs each look-up something, and an entry once cut stays so unless it is
//! mended (1999, section 3). So a mapping that continues a neighbour, upwards or
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
//! shares with others for the old ones; a copy has what the amap has in the whole
//! range.

use machine::{order, Held, Machine, Pages, Prot, Va, VaRange};

use super::tree::Tree;
use super::{Entry, LockedMap, Writes};
use crate::amap::slots::Heap;

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Adds an entry that has no amap where nothing is, as part of a neighbour if it continues one:
    /// one of the same CPU, if it could be anywhere. It is attached to its object if it stays one
    /// of its own. Heap for [one more](super::Change::ADD) has been reserved, and
    /// [`CHANGE_BYTES`](crate::amap::cover::CHANGE_BYTES).
    pub(crate) fn add(&mut self, entry: Entry<M>, is_anywhere: bool) {
        let (tree, held) = (&mut *self.tree, &mut *self.held);
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
        if before.is_some_and(|b| may_grow(b) && grows(held, b, &entry, Heap::Reserved)) {
            extend(tree, last_page(start), entry.range);
            self.merge_at(end);
        } else if after.is_some_and(|a| may_grow(a) && grows(held, a, &entry, Heap::Reserved)) {
            extend(tree, end, entry.range);
        } else {
            entry.attach();
            tree.insert(entry);
            self.uvm.count(crate::Counter::EntriesMade, 1);
        }
    }

    /// Makes one entry of two neighbours that differ in nothing, at every boundary from the start
    /// to the end of the range: what was cut for a change that has been undone, or has spread,
    /// grows together again.
    pub(crate) fn merge(&mut self, range: VaRange) {
        let mut at = range.start;
        while at <= range.end {
            self.merge_at(at);
            let rest = VaRange::new(at, Va(range.end.0.saturating_add(1)));
            let next = match self.tree.get(at) {
                Some(entry) => Some(entry.range.end),
                None => self.tree.try_each(rest, &mut |entry| Err(entry.range.start)).err(),
            };
            match next {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    fn merge_at(&mut self, at: Va) {
        let (tree, held) = (&mut *self.tree, &mut *self.held);
        let (Some(before), Some(after)) = (before(tree, at), starts_at(tree, at)) else { return };
        if !before.is_like(after) {
            return;
        }
        let has_no_amap = match (&before.amap, &after.amap) {
            (None, Some(_)) => Some(before.range),
            (Some(_), None) => Some(after.range),
            _ => None,
        };
        // An address in the one that goes, and in the one that grows.
        let (goes, grown) = if before.is_continued_by(after)
            || after.amap.is_none() && grows(held, before, after, Heap::Unreserved)
        {
            (at, last_page(at))
        } else if before.amap.is_none() && grows(held, after, before, Heap::Unreserved) {
            (last_page(at), at)
        } else {
            return;
        };
        // A fault that has pinned the one without an amap would show the object's page after a
        // store has put a copy of it in the amap.
        if let Some(range) = has_no_amap {
            self.space.map.exclude(tree, range);
        }
        let Some(gone) = tree.remove(goes) else { return };
        extend(tree, grown, gone.range);
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

/// Takes the slots of a neighbour, which has no amap, for an entry, if that can grow by it: their
/// objects' pages follow one another, and stores to both go the same way. Where no `heap` is
/// reserved, it takes none. One look and step with the amap locked: other maps that share the amap
/// may grow into the same slots.
fn grows<M: Machine>(
    held: &mut Held<'_, order::Map>,
    entry: &Entry<M>,
    neighbour: &Entry<M>,
    heap: Heap,
) -> bool {
    let (is_up, len) = (neighbour.range.start == entry.range.end, neighbour.len().0);
    let (low, high) = if is_up { (entry, neighbour) } else { (neighbour, entry) };
    let is_one_way = (low.writes == Writes::Shared) == (high.writes == Writes::Shared);
    low.objects_follow(high)
        && is_one_way
        && entry.amap.as_ref().is_none_or(|aref| {
            let first = match is_up {
                true => Some(aref.slot.0 + entry.len().0),
                false => aref.slot.0.checked_sub(len),
            };
            let takes = |first| aref.amap.body.lock(held).0.takes(first..first + len, heap);
            first.is_some_and(takes)
        })
}

/// Makes the entry at an address span a neighbouring range too, whose slots it has taken.
fn extend<M: Machine>(tree: &mut Tree<Entry<M>>, va: Va, range: VaRange) {
    tree.edit(va, |entry| {
        if entry.range.end == range.start {
            entry.range.end = range.end;
            return;
        }
        let more = range.pages().0;
        if let Some(aref) = &mut entry.amap {
            aref.slot = Pages(aref.slot.0 - more);
        }
        if let Some(oref) = &mut entry.object {
            oref.offset = Pages(oref.offset.0 - more);
        }
        entry.range.start = range.start;
    });
}
