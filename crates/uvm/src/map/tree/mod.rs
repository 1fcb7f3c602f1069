//! The entries of a map, in order of address, with the widest gap kept per child.
//!
//! ```text
//!   inner   | [10, 90) gap 15 | [95, 200) gap 40 | ...     a child: its addresses, its widest inner gap
//!                /                    \
//!   leaves  [10,20) [40,60) [75,90)    [95,96) ...         entries, by value
//! ```
//!
//! A B+tree. Every node but the root is at least half full, whatever is inserted and removed in
//! whatever order, so that [`LEVELS`] levels hold more entries than an address space has pages
//! (I3): walks recurse by levels, and no program makes them deeper. A child keeps the span of what
//! lies below and the widest gap inside it; the gaps beside it follow from its neighbours' spans,
//! so no change in one child concerns another.
//!
//! One entry is taken out and put in where it lies (`node`). A range is cut out by two cuts and a
//! join, and joined in by a cut and two joins (`splice`); these keep whole subtrees, so that their
//! cost is by levels. A tree that is made from another in order is built from its edge (`build`).
//!
//! What a change may need from the heap is known before ([`Tree::insert_bytes`],
//! [`Tree::splice_bytes`], [`built_bytes`]); a node is one piece of under 1 KiB.
//!
//! Roads not taken: a binary tree, balanced by height, has no need of reservations, and a cache
//! line for each step; entries in boxes of their own move less, and cost a fork an allocation each.
//!
//! I1: entries are disjoint and not empty. I2: a child's `start`, `end` and `gap` are those of what
//! lies below. I3: all leaves lie on one level; a node but the root is at least half full, and an
//! inner root has two children.

mod build;
mod node;
mod splice;
mod taken;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use machine::{Va, VaRange, PAGE_SHIFT};

pub(crate) use build::built_bytes;
use node::Nodes;
pub(crate) use node::{Node, INNER, LEAF};
pub(crate) use taken::Taken;

/// Something that lies at a range of addresses.
pub(crate) trait Span {
    fn range(&self) -> VaRange;
    /// Moves it, with all that it says about addresses, to where it starts then.
    fn move_to(&mut self, start: Va);
}

/// Levels of a tree that nothing exceeds: as many as 64-bit addresses have pages for.
pub(crate) const LEVELS: usize = most_levels(1 << (64 - PAGE_SHIFT));
/// Levels of trees whose changes need no second attempt: see [`insert_bytes`].
const COMMON: usize = 5;

/// Levels of a tree of so many entries, at most: by I3 one of n levels has two children, each of
/// n - 2 levels of half inner nodes above half leaves.
pub(crate) const fn most_levels(entries: u64) -> usize {
    let (mut levels, mut least) = (1, 2 * (LEAF as u64 / 2));
    while least <= entries {
        levels += 1;
        least = least.saturating_mul(INNER as u64 / 2);
    }
    levels
}

/// Heap bytes of a node.
const fn node_bytes<E>() -> usize {
    size_of::<Node<E>>() + 16
}

/// Heap bytes of an entry with its share of leaves that are three quarters full, as most are.
pub(crate) const fn entry_bytes<E>() -> usize {
    node_bytes::<E>() * 4 / (3 * LEAF)
}

/// Nodes that an insertion adds to a tree: one for each level, and a root.
const fn insert_nodes(levels: usize) -> usize {
    levels + 1
}

/// Nodes that [`Tree::take`] or [`Tree::put_back`] adds: a cut makes one for each level, a join as
/// many as levels differ, and a root, which may add a level for the next.
const fn splice_nodes(levels: usize) -> usize {
    3 * (levels + 1) + 2
}

/// Heap bytes for so many insertions in a tree of common size; what a first attempt reserves.
pub(crate) const fn insert_bytes<E>(insertions: usize) -> usize {
    insertions * insert_nodes(COMMON) * node_bytes::<E>()
}

/// Heap bytes for taking a range out of a tree of common size, or putting one back.
pub(crate) const fn splice_bytes<E>() -> usize {
    splice_nodes(COMMON) * node_bytes::<E>()
}

/// See the module.
pub(crate) struct Tree<E> {
    root: Option<Box<Node<E>>>,
    len: usize,
}

impl<E> Default for Tree<E> {
    fn default() -> Self {
        Tree::new()
    }
}

impl<E> Tree<E> {
    pub(crate) const fn new() -> Self {
        Tree { root: None, len: 0 }
    }

    /// Entries in the tree.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    fn levels(&self) -> usize {
        self.root.as_deref().map_or(0, Node::level)
    }

    /// Heap bytes for so many insertions.
    pub(crate) fn insert_bytes(&self, insertions: usize) -> usize {
        insertions * insert_nodes(self.levels().max(COMMON)) * node_bytes::<E>()
    }

    /// Heap bytes for taking a range out, or putting one back.
    pub(crate) fn splice_bytes(&self) -> usize {
        splice_nodes(self.levels().max(COMMON)) * node_bytes::<E>()
    }
}

impl<E: Span> Tree<E> {
    /// The entry at an address.
    #[inline]
    pub(crate) fn get(&self, va: Va) -> Option<&E> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let entry = entries.iter().find(|e| va < e.range().end)?;
                    return (entry.range().start <= va).then_some(entry);
                }
                Node::Inner(children) => {
                    node = &children.get(node::ending_after(children, va))?.node;
                }
            }
        }
    }

    /// The entry at an address, to change; its range must stay.
    #[inline]
    pub(crate) fn get_mut(&mut self, va: Va) -> Option<&mut E> {
        let mut node = self.root.as_deref_mut()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let entry = entries.iter_mut().find(|e| va < e.range().end)?;
                    return (entry.range().start <= va).then_some(entry);
                }
                Node::Inner(children) => {
                    let at = node::ending_after(children, va);
                    node = &mut children.get_mut(at)?.node;
                }
            }
        }
    }

    /// Changes the entry at an address, its range too; no entry may lie where it lies then.
    pub(crate) fn edit<R>(&mut self, va: Va, change: impl FnOnce(&mut E) -> R) -> Option<R> {
        self.root.as_deref_mut()?.edit(va, change)
    }

    /// Adds an entry where none is. [Heap](Self::insert_bytes) has been reserved.
    pub(crate) fn insert(&mut self, entry: E) {
        let mut nodes = Nodes::new();
        self.len += 1;
        let Some(root) = &mut self.root else {
            let mut leaf = arrayvec::ArrayVec::new();
            leaf.push(entry);
            self.root = Some(nodes.leaf(leaf));
            return;
        };
        if let Some(right) = root.insert(entry, &mut nodes) {
            self.root = self.root.take().map(|left| nodes.above(left, right));
        }
    }

    /// Takes out the entry at an address.
    pub(crate) fn remove(&mut self, va: Va) -> Option<E> {
        let removed = self.root.as_deref_mut()?.remove(va, &mut Nodes::new())?;
        self.len -= 1;
        self.collapse_root();
        Some(removed)
    }

    /// Replaces a root that has only one child by that child, and drops an empty root.
    fn collapse_root(&mut self) {
        let Some(mut root) = self.root.take() else { return };
        while let Some(only) = root.only_child() {
            root = only;
        }
        self.root = Some(root).filter(|root| !root.is_empty());
    }

    /// Calls `each` on every entry that overlaps the range, in order, until it says stop by an
    /// error.
    #[inline]
    pub(crate) fn try_each<X>(
        &self,
        range: VaRange,
        each: &mut impl FnMut(&E) -> Result<(), X>,
    ) -> Result<(), X> {
        match &self.root {
            Some(root) if !range.is_empty() => root.try_each(range, each),
            _ => Ok(()),
        }
    }

    /// Calls `each` on every entry that overlaps the range, in order.
    #[inline]
    pub(crate) fn each(&self, range: VaRange, mut each: impl FnMut(&E)) {
        let done: Result<(), core::convert::Infallible> = self.try_each(range, &mut |e| {
            each(e);
            Ok(())
        });
        let Ok(()) = done;
    }

    /// Calls `each` on every entry that overlaps the range, in order, to change; ranges must stay.
    pub(crate) fn each_mut(&mut self, range: VaRange, mut each: impl FnMut(&mut E)) {
        if let Some(root) = self.root.as_deref_mut().filter(|_| !range.is_empty()) {
            root.each_mut(range, &mut each);
        }
    }

    /// The last entry that starts before an address.
    pub(crate) fn before(&self, va: Va) -> Option<&E> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => return entries.iter().rfind(|e| e.range().start < va),
                Node::Inner(children) => {
                    node = &children[..node::starting_before(children, va)].last()?.node;
                }
            }
        }
    }

    /// The entries before and behind a range in which none is.
    pub(crate) fn beside(&self, range: VaRange) -> (Option<&E>, Option<&E>) {
        let (mut node, mut before, mut after) = (self.root.as_deref(), None, None);
        // The nearest subtree that the way down leaves to the right. To the left is none that
        // matters: the way goes where the last entry before the range is.
        let mut right = None;
        while let Some(inner) = node {
            match inner {
                Node::Leaf(entries) => {
                    let next = entries.iter().position(|e| e.range().start >= range.end);
                    let next = next.unwrap_or(entries.len());
                    (before, after) = (entries[..next].last(), entries.get(next));
                    break;
                }
                Node::Inner(children) => {
                    let at = node::starting_before(children, range.end).saturating_sub(1);
                    right = children.get(at + 1).map(|c| &c.node).or(right);
                    node = Some(&children[at].node);
                }
            }
        }
        (before, after.or_else(|| right?.first()))
    }

    /// Whether no entry overlaps the range.
    pub(crate) fn is_free(&self, range: VaRange) -> bool {
        self.before(range.end).is_none_or(|e| e.range().end <= range.start)
    }

    /// Whether entries cover the range without a hole.
    pub(crate) fn is_covered(&self, range: VaRange) -> bool {
        let mut next = range.start;
        let _ = self.try_each(range, &mut |e| {
            if e.range().start > next {
                return Err(());
            }
            next = e.range().end;
            Ok(())
        });
        next >= range.end
    }

    /// The highest address in `bounds` with `bytes` free from it on, and none of them passed over.
    pub(crate) fn find_space(&self, bounds: VaRange, bytes: u64) -> Option<Va> {
        match &self.root {
            Some(root) => root.find(bounds.start, bounds.end, bounds, bytes),
            None => node::room(bounds.start, bounds.end, bounds, bytes),
        }
    }

    /// Checks I1 to I3, and the count of entries. Cost: by entries.
    ///
    /// # Errors
    /// What doesn't hold.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Some(root) = &self.root else {
            return if self.len == 0 { Ok(()) } else { Err("a tree without entries counts some") };
        };
        let levels = root.level();
        if levels > LEVELS {
            return Err("a tree is too deep");
        }
        match root.check(levels, true)? == self.len {
            true => Ok(()),
            false => Err("a tree counts its entries wrongly"),
        }
    }
}
