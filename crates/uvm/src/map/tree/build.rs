//! A tree from entries that come in order: each goes to the right edge, so that nothing is looked
//! up.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use machine::VaRange;

use super::node::{rebalance, Child, Node, Nodes};
use super::{most_levels, node_bytes, Span, Tree, LEAF, LEVELS};

/// Heap bytes of a tree that is built of so many entries: full nodes but for one on each level, and
/// an empty one in its place when all are there.
pub(crate) const fn built_bytes<E>(entries: usize) -> usize {
    let edges = 2 * (most_levels(entries as u64) + 1);
    // A leaf's share for each, and as much again for eight as more levels and inner nodes want.
    edges * node_bytes::<E>() + entries * node_bytes::<E>().div_ceil(LEAF - 1)
}

/// A tree that is being built: the right edge of each level, leaves first.
pub(crate) struct Builder<E> {
    edge: ArrayVec<Box<Node<E>>, LEVELS>,
    len: usize,
    nodes: Nodes<E>,
}

impl<E: Span> Builder<E> {
    pub(crate) fn new() -> Self {
        Builder { edge: ArrayVec::new(), len: 0, nodes: Nodes::new() }
    }

    /// Adds an entry behind all others. [Heap](built_bytes) has been reserved.
    pub(crate) fn push(&mut self, entry: E) {
        self.len += 1;
        match self.edge.first_mut().map(|leaf| &mut **leaf) {
            Some(Node::Leaf(entries)) if !entries.is_full() => return entries.push(entry),
            Some(_) => self.close(0),
            None => self.edge.push(self.nodes.leaf(ArrayVec::new())),
        }
        if let Node::Leaf(entries) = &mut *self.edge[0] {
            entries.push(entry);
        }
    }

    /// Hands the node on the edge of a level over to the level above, for an empty one.
    fn close(&mut self, level: usize) {
        let empty = match &*self.edge[level] {
            Node::Leaf(_) => self.nodes.leaf(ArrayVec::new()),
            Node::Inner(_) => self.nodes.inner(ArrayVec::new()),
        };
        let full = core::mem::replace(&mut self.edge[level], empty);
        self.push_child(level + 1, Child::of(full));
    }

    fn push_child(&mut self, level: usize, child: Child<E>) {
        match self.edge.get_mut(level).map(|node| &mut **node) {
            Some(Node::Inner(children)) if !children.is_full() => return children.push(child),
            Some(_) => self.close(level),
            None => self.edge.push(self.nodes.inner(ArrayVec::new())),
        }
        if let Node::Inner(children) = &mut *self.edge[level] {
            children.push(child);
        }
    }

    /// The tree.
    pub(crate) fn finish(mut self) -> Tree<E> {
        let mut level = 0;
        while level + 1 < self.edge.len() {
            let empty = self.nodes.inner(ArrayVec::new());
            let last = core::mem::replace(&mut self.edge[level], empty);
            self.push_child(level + 1, Child::of(last));
            level += 1;
        }
        let mut tree = Tree { root: self.edge.pop(), len: self.len };
        tree.collapse_root();
        if let Some(root) = &mut tree.root {
            root.rebalance_edge(&mut self.nodes);
        }
        tree
    }
}

impl<E: Span> Node<E> {
    /// Fills the last node of each level from its full left neighbour.
    fn rebalance_edge(&mut self, nodes: &mut Nodes<E>) {
        let Node::Inner(children) = self else { return };
        rebalance(children, children.len() - 1, nodes);
        if let Some(last) = children.last_mut() {
            last.node.rebalance_edge(nodes);
        }
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
