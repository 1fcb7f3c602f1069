//! Cutting a range out of a tree, and joining one in.
//!
//! ```text
//!   cut at x:     | a  b  c  d |         | a | + left part of b        right part of b + | c  d |
//!                      ^x          -->
//!   join:         a tall tree takes a low one in as a child on the edge of the level above it
//! ```
//! Both keep whole subtrees and change one path, so that they cost by levels.
//!
//! Nodes that a cut adds: on each level at most one. Where a path's node is left with two children
//! or more on both sides, it becomes two, and neither side splits there again, for its node has
//! lost a child. A side that is left with one child or none gives the node up to the other, and may
//! split once on that level as the sides are joined above. A join adds at most one for each level
//! by which its trees differ, and a root.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use machine::{Va, VaRange};

use super::node::{put_child, rebalance, Child, Node, Nodes, Side};
use super::{Span, Taken, Tree};

/// A tree's root and its levels.
pub(super) struct Rooted<E> {
    pub(super) node: Box<Node<E>>,
    pub(super) level: usize,
}

impl<E: Span> Tree<E> {
    /// Takes out the entries that start in the range. Entries that reach over its ends must have
    /// been cut. [Heap](Self::splice_bytes) has been reserved, unless the range has all entries.
    pub(crate) fn take(&mut self, range: VaRange) -> Taken<E> {
        let mut taken = Taken::new();
        self.take_into(range, &mut taken);
        taken
    }

    /// Moves the entries that start in the range into `taken`, which is empty: see
    /// [`take`](Self::take).
    pub(crate) fn take_into(&mut self, range: VaRange, taken: &mut Taken<E>) {
        debug_assert!(taken.is_empty());
        let Some(root) = self.root.as_deref_mut() else { return };
        let mut nodes = Nodes::new();
        if root.lies_in(range) {
            taken.more.root = self.root.take();
            taken.more.len = core::mem::take(&mut self.len);
            return;
        }
        if root.take_in(range, taken, &mut nodes) {
            self.len -= taken.len();
            return self.collapse_root();
        }
        let (left, rest) = split(self.rooted(), range.start, &mut nodes);
        let (middle, right) = split(rest, range.end, &mut nodes);
        self.root = join(left, right, &mut nodes).map(|all| all.node);
        taken.more.root = middle.map(|all| all.node);
        taken.more.len = taken.more.root.as_deref().map_or(0, Node::count);
        self.len -= taken.more.len;
    }

    /// Adds entries that lie between two neighbours of this tree. [Heap](Self::splice_bytes) of the
    /// taller of both has been reserved.
    pub(crate) fn put_back(&mut self, taken: Taken<E>) {
        let Taken { one, more } = taken;
        one.into_iter().for_each(|entry| self.insert(entry));
        self.join_in(more);
    }

    /// Adds the entries of another tree, which lie between two neighbours of this one.
    pub(crate) fn join_in(&mut self, mut other: Tree<E>) {
        let mut nodes = Nodes::new();
        let Some(at) = other.first() else { return };
        let (left, right) = split(self.rooted(), at, &mut nodes);
        let left = join(left, other.rooted(), &mut nodes);
        self.root = join(left, right, &mut nodes).map(|all| all.node);
        self.len += core::mem::take(&mut other.len);
    }

    fn rooted(&mut self) -> Option<Rooted<E>> {
        self.root.take().map(|node| Rooted { level: node.level(), node })
    }

    /// Where the first entry starts.
    fn first(&self) -> Option<Va> {
        self.root.as_ref().map(|root| root.bounds().start)
    }
}

impl<E: Span> Node<E> {
    /// From the first entry to the last; not of an empty node.
    fn bounds(&self) -> VaRange {
        let (first, last) = match self {
            Node::Leaf(entries) => {
                (entries[0].range().start, entries[entries.len() - 1].range().end)
            }
            Node::Inner(children) => (children[0].start, children[children.len() - 1].end),
        };
        VaRange::new(first, last)
    }

    fn lies_in(&self, range: VaRange) -> bool {
        let bounds = self.bounds();
        range.start <= bounds.start && bounds.end <= range.end
    }

    /// Takes the entries in the range out if they lie in one leaf, and says whether they do.
    fn take_in(&mut self, range: VaRange, taken: &mut Taken<E>, nodes: &mut Nodes<E>) -> bool {
        match self {
            Node::Leaf(entries) => {
                let mut first = 0;
                while entries.get(first).is_some_and(|e| e.range().start < range.start) {
                    first += 1;
                }
                let mut end = first;
                while entries.get(end).is_some_and(|e| e.range().start < range.end) {
                    end += 1;
                }
                if end - first == 1 {
                    taken.one = entries.pop_at(first);
                } else if end > first {
                    taken.more.root = Some(nodes.leaf(entries.drain(first..end).collect()));
                    taken.more.len = end - first;
                }
                true
            }
            Node::Inner(children) => {
                let at = super::node::ending_after(children, range.start);
                match super::node::starting_before(children, range.end).saturating_sub(at) {
                    0 => true,
                    1 if children[at].node.take_in(range, taken, nodes) => {
                        rebalance(children, at, nodes);
                        true
                    }
                    _ => false,
                }
            }
        }
    }
}

/// Entries that start before `at`, and the others.
fn split<E: Span>(
    all: Option<Rooted<E>>,
    at: Va,
    nodes: &mut Nodes<E>,
) -> (Option<Rooted<E>>, Option<Rooted<E>>) {
    let Some(Rooted { mut node, level }) = all else { return (None, None) };
    let bounds = node.bounds();
    if at <= bounds.start {
        return (None, Some(Rooted { node, level }));
    }
    if bounds.end <= at {
        return (Some(Rooted { node, level }), None);
    }
    match &mut *node {
        Node::Leaf(entries) => {
            let before = entries.iter().take_while(|e| e.range().start < at).count();
            let right = ArrayVec::from_iter(entries.drain(before..));
            if right.is_empty() {
                return (Some(Rooted { node, level }), None);
            }
            let right = Rooted { node: nodes.leaf(right), level };
            (Some(Rooted { node, level }), Some(right))
        }
        Node::Inner(children) => {
            let before = super::node::starting_before(children, at);
            let right = ArrayVec::from_iter(children.drain(before..));
            let middle = children.pop().map(|c| Rooted { node: c.node, level: level - 1 });
            // First what is left here, for it may give a node.
            let left = with_children(Rooted { node, level }, nodes);
            let right = match right.len() {
                0 => None,
                1 => right.into_iter().next().map(|c| Rooted { node: c.node, level: level - 1 }),
                _ => Some(Rooted { node: nodes.inner(right), level }),
            };
            let (low, high) = split(middle, at, nodes);
            (join(left, low, nodes), join(high, right, nodes))
        }
    }
}

/// An inner node as a root: itself if it has two children, its only child, or nothing.
fn with_children<E>(mut inner: Rooted<E>, nodes: &mut Nodes<E>) -> Option<Rooted<E>> {
    if let Some(only) = inner.node.only_child() {
        nodes.give(inner.node);
        return Some(Rooted { node: only, level: inner.level - 1 });
    }
    if inner.node.is_empty() {
        nodes.give(inner.node);
        return None;
    }
    Some(inner)
}

/// Both, where all of `left` lies before all of `right`.
pub(super) fn join<E: Span>(
    left: Option<Rooted<E>>,
    right: Option<Rooted<E>>,
    nodes: &mut Nodes<E>,
) -> Option<Rooted<E>> {
    let (mut left, mut right) = match (left, right) {
        (Some(left), Some(right)) => (left, right),
        (one, None) | (None, one) => return one,
    };
    let (mut root, more) = if left.level > right.level {
        let more = left.node.attach(left.level, right, Side::Right, nodes);
        (left, more)
    } else if left.level < right.level {
        let more = right.node.attach(right.level, left, Side::Left, nodes);
        (right, more)
    } else {
        let more = left.node.balance(right.node, nodes).map(Child::of);
        (left, more)
    };
    if let Some(more) = more {
        root = Rooted { node: nodes.above(root.node, more), level: root.level + 1 };
    }
    Some(root)
}

impl<E: Span> Node<E> {
    /// Takes a lower tree in at an edge of this one, which has so many levels. What this node has
    /// no room for is returned, as its right neighbour.
    fn attach(
        &mut self,
        level: usize,
        other: Rooted<E>,
        side: Side,
        nodes: &mut Nodes<E>,
    ) -> Option<Child<E>> {
        let Node::Inner(children) = self else { unreachable!("a leaf has nothing below it") };
        let edge = match side {
            Side::Left => 0,
            Side::Right => children.len() - 1,
        };
        if level - 1 > other.level {
            let more = children[edge].node.attach(level - 1, other, side, nodes);
            children[edge].update();
            return put_child(children, edge + 1, more?, nodes);
        }
        if !other.node.is_underfull() {
            let at = edge + usize::from(side == Side::Right);
            return put_child(children, at, Child::of(other.node), nodes);
        }
        // The neighbour has enough, so both have, or one has all.
        let more = match side {
            Side::Right => children[edge].node.balance(other.node, nodes),
            Side::Left => {
                let right = core::mem::replace(&mut children[edge].node, other.node);
                children[edge].node.balance(right, nodes)
            }
        };
        children[edge].update();
        put_child(children, edge + 1, Child::of(more?), nodes)
    }
}
