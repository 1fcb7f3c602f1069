//! A tree from entries that come in order: leaf after leaf is joined at the right edge, so that
//! nothing is looked up.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use machine::VaRange;

use super::node::{Node, Nodes};
use super::splice::{join, Rooted};
use super::{most_levels, node_bytes, Span, Tree, INNER, LEAF};

/// Heap bytes of a tree that is built of so many entries: full leaves, inner nodes that are half
/// full, and two nodes on the edge of each level.
pub(crate) const fn built_bytes<E>(entries: usize) -> usize {
    let edges = 2 * (most_levels(entries as u64) + 1);
    // A leaf's share for each, and one of the inner nodes above it.
    let (half, leaves) = (INNER / 2, LEAF * (INNER / 2 - 1));
    edges * node_bytes::<E>() + entries * (node_bytes::<E>() * half).div_ceil(leaves)
}

/// A tree that is being built, and the leaf that comes next.
pub(crate) struct Builder<E> {
    made: Option<Rooted<E>>,
    leaf: Option<Box<Node<E>>>,
    len: usize,
    nodes: Nodes<E>,
}

impl<E: Span> Builder<E> {
    pub(crate) fn new() -> Self {
        Builder { made: None, leaf: None, len: 0, nodes: Nodes::new() }
    }

    /// Adds an entry behind all others. [Heap](built_bytes) has been reserved.
    pub(crate) fn push(&mut self, entry: E) {
        self.len += 1;
        if let Some(Node::Leaf(entries)) = self.leaf.as_deref_mut() {
            if !entries.is_full() {
                return entries.push(entry);
            }
        }
        self.join_leaf();
        self.leaf = Some(self.nodes.leaf(ArrayVec::from_iter([entry])));
    }

    fn join_leaf(&mut self) {
        let leaf = self.leaf.take().map(|node| Rooted { node, level: 1 });
        self.made = join(self.made.take(), leaf, &mut self.nodes);
    }

    /// The tree.
    pub(crate) fn finish(mut self) -> Tree<E> {
        self.join_leaf();
        Tree { root: self.made.take().map(|all| all.node), len: self.len }
    }
}

impl<E: Span> Tree<E> {
    /// A tree with what `each` makes of the entries in a range, in order, at the same places; where
    /// it makes nothing, nothing is. Costs no look-ups. `each` may change its entry, but for the
    /// range. [Heap](built_bytes) for what it makes has been reserved.
    pub(crate) fn filter_map(
        &mut self,
        range: VaRange,
        mut each: impl FnMut(&mut E) -> Option<E>,
    ) -> Tree<E> {
        let mut made = Builder::new();
        self.each_mut(range, |e| each(e).into_iter().for_each(|e| made.push(e)));
        made.finish()
    }
}
