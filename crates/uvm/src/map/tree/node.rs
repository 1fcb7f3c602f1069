//! A node: entries, or children; and what is done to one entry below it.
//!
//! All calls that a node makes to its children end at the leaves: by levels, [`super::LEVELS`] at
//! most.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use machine::{Va, VaRange};

use super::Span;

/// Entries of a leaf; few for the model, whose maps are small.
pub(crate) const LEAF: usize = if cfg!(feature = "__small-leaves") { 4 } else { 8 };
/// Children of an inner node, which is as large as a leaf of map entries.
pub(crate) const INNER: usize = if cfg!(feature = "__small-leaves") { 4 } else { 23 };

/// See the module.
// A leaf of map entries is as large as an inner node.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Node<E> {
    Leaf(ArrayVec<E, LEAF>),
    Inner(ArrayVec<Child<E>, INNER>),
}

/// A node and what lies in it.
pub(crate) struct Child<E> {
    pub(super) start: Va,
    pub(super) end: Va,
    /// The widest gap between two entries.
    pub(super) gap: u64,
    pub(super) node: Box<Node<E>>,
}

/// On which side of a node another goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A list of empty nodes for changes that need some; where it has none, they are made from the
/// heap.
pub(super) struct Nodes<E> {
    /// The first; each has the next for its only child.
    first: Option<Box<Node<E>>>,
}

impl<E> Nodes<E> {
    pub(super) const fn new() -> Self {
        Nodes { first: None }
    }

    /// Keeps a node that has become empty.
    pub(super) fn give(&mut self, mut node: Box<Node<E>>) {
        let next = self.first.take().map(|node| Child { start: Va(0), end: Va(0), gap: 0, node });
        *node = Node::Inner(next.into_iter().collect());
        self.first = Some(node);
    }

    fn pop(&mut self) -> Option<Box<Node<E>>> {
        let mut node = self.first.take()?;
        self.first = node.only_child();
        Some(node)
    }

    fn fill(&mut self, filled: Node<E>) -> Box<Node<E>> {
        match self.pop() {
            Some(mut node) => {
                *node = filled;
                node
            }
            None => {
                #[cfg(test)]
                super::tests::MADE.set(super::tests::MADE.get() + 1);
                Box::new(filled)
            }
        }
    }

    pub(super) fn leaf(&mut self, entries: ArrayVec<E, LEAF>) -> Box<Node<E>> {
        self.fill(Node::Leaf(entries))
    }

    pub(super) fn inner(&mut self, children: ArrayVec<Child<E>, INNER>) -> Box<Node<E>> {
        self.fill(Node::Inner(children))
    }
}

impl<E: Span> Nodes<E> {
    /// A root above two nodes of one level.
    pub(super) fn above(&mut self, left: Box<Node<E>>, right: Child<E>) -> Box<Node<E>> {
        self.inner([Child::of(left), right].into_iter().collect())
    }
}

impl<E> Drop for Nodes<E> {
    /// One after the other: left to themselves, each would drop the next.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// The first child that ends behind an address.
pub(super) fn ending_after<E>(children: &[Child<E>], va: Va) -> usize {
    children.partition_point(|c| c.end <= va)
}

/// Children that start before an address.
pub(super) fn starting_before<E>(children: &[Child<E>], va: Va) -> usize {
    children.partition_point(|c| c.start < va)
}

/// The highest address with so many bytes behind it, in what bounds leave of a hole.
pub(super) fn room(lo: Va, hi: Va, bounds: VaRange, bytes: u64) -> Option<Va> {
    let (lo, hi) = (lo.max(bounds.start), hi.min(bounds.end));
    (lo < hi && hi.0 - lo.0 >= bytes).then(|| Va(hi.0 - bytes))
}

/// Puts an item into a node; a full one is split, and its right half is returned.
fn put<T, const N: usize>(
    items: &mut ArrayVec<T, N>,
    at: usize,
    item: T,
) -> Option<ArrayVec<T, N>> {
    if !items.is_full() {
        items.insert(at, item);
        return None;
    }
    let half = N.div_ceil(2);
    let in_left = at < half;
    let mut right: ArrayVec<T, N> = items.drain(half - usize::from(in_left)..).collect();
    if in_left {
        items.insert(at, item);
    } else {
        right.insert(at - half, item);
    }
    Some(right)
}

/// Merges two neighbours, or shares their items out evenly. Returns whether they were merged, into
/// the left one.
fn balance<T, const N: usize>(left: &mut ArrayVec<T, N>, right: &mut ArrayVec<T, N>) -> bool {
    let all = left.len() + right.len();
    if all <= N {
        left.extend(right.drain(..));
        return true;
    }
    let half = all / 2;
    if left.len() < half {
        let more = half - left.len();
        left.extend(right.drain(..more));
    } else {
        while left.len() > half {
            left.pop().into_iter().for_each(|item| right.insert(0, item));
        }
    }
    false
}

impl<E> Node<E> {
    /// Levels from here down.
    pub(super) fn level(&self) -> usize {
        let (mut node, mut level) = (self, 1);
        while let Node::Inner(children) = node {
            let Some(first) = children.first() else { break };
            (node, level) = (&first.node, level + 1);
        }
        level
    }

    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Inner(children) => children.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has less than half of what it can have, as only a root may (I3).
    pub(super) fn is_underfull(&self) -> bool {
        match self {
            Node::Leaf(entries) => entries.len() < LEAF / 2,
            Node::Inner(children) => children.len() < INNER / 2,
        }
    }

    /// Takes out the entries of the last leaf that has some. What is left is no tree any more, only
    /// more of the same.
    pub(super) fn pop_last(&mut self) -> Option<ArrayVec<E, LEAF>> {
        match self {
            Node::Leaf(entries) => {
                Some(core::mem::take(entries)).filter(|entries| !entries.is_empty())
            }
            Node::Inner(children) => {
                while let Some(last) = children.last_mut() {
                    if let Some(entries) = last.node.pop_last() {
                        return Some(entries);
                    }
                    children.pop();
                }
                None
            }
        }
    }

    /// Takes out the child of a node that has no other.
    pub(super) fn only_child(&mut self) -> Option<Box<Node<E>>> {
        match self {
            Node::Inner(children) if children.len() == 1 => children.pop().map(|c| c.node),
            _ => None,
        }
    }

    /// Entries below.
    pub(super) fn count(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Inner(children) => children.iter().map(|c| c.node.count()).sum(),
        }
    }

    pub(super) fn first(&self) -> Option<&E> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(entries) => return entries.first(),
                Node::Inner(children) => node = &children.first()?.node,
            }
        }
    }

    /// Merges this node and its right neighbour on the same level, or shares their items out
    /// evenly; the neighbour is returned if it is still needed.
    pub(super) fn balance(
        &mut self,
        mut right: Box<Node<E>>,
        nodes: &mut Nodes<E>,
    ) -> Option<Box<Node<E>>> {
        let is_one = match (self, &mut *right) {
            (Node::Leaf(a), Node::Leaf(b)) => balance(a, b),
            (Node::Inner(a), Node::Inner(b)) => balance(a, b),
            _ => unreachable!("neighbours lie on one level (I3)"),
        };
        if is_one {
            nodes.give(right);
            return None;
        }
        Some(right)
    }
}

impl<E: Span> Node<E> {
    /// Where it starts and ends, and its widest gap; not of an empty one.
    fn outline(&self) -> (Va, Va, u64) {
        let (mut start, mut end, mut gap) = (None, Va(0), 0);
        let mut add = |s: Va, e: Va, inside: u64| {
            let beside = if start.is_none() { 0 } else { s.0 - end.0 };
            start = start.or(Some(s));
            end = e;
            gap = inside.max(beside).max(gap);
        };
        match self {
            Node::Leaf(entries) => {
                entries.iter().for_each(|e| add(e.range().start, e.range().end, 0))
            }
            Node::Inner(children) => children.iter().for_each(|c| add(c.start, c.end, c.gap)),
        }
        (start.unwrap_or(end), end, gap)
    }

    /// Adds an entry where none is. What this node has no room for is returned, as its right
    /// neighbour.
    pub(super) fn insert(&mut self, entry: E, nodes: &mut Nodes<E>) -> Option<Child<E>> {
        let VaRange { start, end } = entry.range();
        match self {
            Node::Leaf(entries) => {
                let at =
                    entries.iter().position(|e| e.range().start >= end).unwrap_or(entries.len());
                put(entries, at, entry).map(|right| Child::of(nodes.leaf(right)))
            }
            Node::Inner(children) => {
                let at = starting_before(children, start).saturating_sub(1);
                let more = children[at].node.insert(entry, nodes);
                children[at].update();
                put_child(children, at + 1, more?, nodes)
            }
        }
    }

    /// Takes out the entry at an address, if there is one; this node may be underfull afterwards.
    pub(super) fn remove(&mut self, va: Va, nodes: &mut Nodes<E>) -> Option<E> {
        match self {
            Node::Leaf(entries) => {
                let at = entries.iter().position(|e| va < e.range().end)?;
                (entries[at].range().start <= va).then(|| entries.remove(at))
            }
            Node::Inner(children) => {
                let at = ending_after(children, va);
                let removed = children.get_mut(at)?.node.remove(va, nodes)?;
                rebalance(children, at, nodes);
                Some(removed)
            }
        }
    }

    pub(super) fn edit<R>(&mut self, va: Va, change: impl FnOnce(&mut E) -> R) -> Option<R> {
        match self {
            Node::Leaf(entries) => {
                let entry = entries.iter_mut().find(|e| va < e.range().end)?;
                (entry.range().start <= va).then(|| change(entry))
            }
            Node::Inner(children) => {
                let at = ending_after(children, va);
                let child = children.get_mut(at)?;
                let result = child.node.edit(va, change);
                child.update();
                result
            }
        }
    }

    pub(super) fn try_each<X>(
        &self,
        range: VaRange,
        each: &mut impl FnMut(&E) -> Result<(), X>,
    ) -> Result<(), X> {
        match self {
            Node::Leaf(entries) => {
                for e in entries {
                    let own = e.range();
                    if own.start >= range.end {
                        break;
                    }
                    if own.end > range.start {
                        each(e)?;
                    }
                }
            }
            Node::Inner(children) => {
                for c in &children[ending_after(children, range.start)..] {
                    if c.start >= range.end {
                        break;
                    }
                    c.node.try_each(range, each)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn each_mut(&mut self, range: VaRange, each: &mut impl FnMut(&mut E)) {
        match self {
            Node::Leaf(entries) => {
                for e in entries {
                    let own = e.range();
                    if own.start >= range.end {
                        break;
                    }
                    if own.end > range.start {
                        each(e);
                    }
                }
            }
            Node::Inner(children) => {
                let first = ending_after(children, range.start);
                for c in &mut children[first..] {
                    if c.start >= range.end {
                        break;
                    }
                    c.node.each_mut(range, each);
                }
            }
        }
    }

    /// Moves all entries by as many bytes as lie between two addresses, up or down.
    pub(super) fn shift(&mut self, from: Va, to: Va) {
        let moved = |va: Va| Va(va.0.wrapping_add(to.0.wrapping_sub(from.0)));
        match self {
            Node::Leaf(entries) => {
                entries.iter_mut().for_each(|e| e.move_to(moved(e.range().start)))
            }
            Node::Inner(children) => children.iter_mut().for_each(|c| {
                (c.start, c.end) = (moved(c.start), moved(c.end));
                c.node.shift(from, to);
            }),
        }
    }

    /// The highest room in the holes from `lo` to `hi` that this node's entries leave. Of children
    /// only those are entered that have such a gap, so that one search enters three at most on each
    /// level: two that bounds cut, and one that has it.
    pub(super) fn find(&self, lo: Va, mut hi: Va, bounds: VaRange, bytes: u64) -> Option<Va> {
        match self {
            Node::Leaf(entries) => {
                for e in entries.iter().rev() {
                    if let Some(found) = room(e.range().end, hi, bounds, bytes) {
                        return Some(found);
                    }
                    hi = e.range().start;
                }
            }
            Node::Inner(children) => {
                for c in children.iter().rev() {
                    if let Some(found) = room(c.end, hi, bounds, bytes) {
                        return Some(found);
                    }
                    if c.gap >= bytes && room(c.start, c.end, bounds, bytes).is_some() {
                        // Its own gaps alone: beside it there is nothing from its end to its end.
                        if let Some(found) = c.node.find(c.end, c.end, bounds, bytes) {
                            return Some(found);
                        }
                    }
                    hi = c.start;
                }
            }
        }
        room(lo, hi, bounds, bytes)
    }

    /// Checks the tree's invariants from here down, and counts entries.
    ///
    /// # Errors
    /// What doesn't hold.
    pub(super) fn check(&self, level: usize, is_root: bool) -> Result<usize, &'static str> {
        if self.is_empty() || !is_root && self.is_underfull() {
            return Err("a node of a tree has too little in it");
        }
        match self {
            Node::Leaf(entries) => {
                let is_apart = |pair: &[E]| pair[0].range().end <= pair[1].range().start;
                if level != 1 {
                    return Err("leaves of a tree lie on different levels");
                }
                if entries.iter().any(|e| e.range().is_empty()) || !entries.windows(2).all(is_apart)
                {
                    return Err("entries of a tree overlap");
                }
                Ok(entries.len())
            }
            Node::Inner(children) => {
                if level == 1 || children.len() < 2 {
                    return Err("an inner node of a tree is out of place");
                }
                if children.windows(2).any(|pair| pair[0].end > pair[1].start) {
                    return Err("children of a tree's node overlap");
                }
                children.iter().try_fold(0, |count, c| {
                    if (c.start, c.end, c.gap) != c.node.outline() {
                        return Err("a tree's node says the wrong thing of a child");
                    }
                    Ok(count + c.node.check(level - 1, false)?)
                })
            }
        }
    }
}

impl<E: Span> Child<E> {
    pub(super) fn of(node: Box<Node<E>>) -> Self {
        let (start, end, gap) = node.outline();
        Child { start, end, gap, node }
    }

    pub(super) fn update(&mut self) {
        (self.start, self.end, self.gap) = self.node.outline();
    }
}

/// Puts a child into an inner node; what doesn't fit is returned, as the node's right neighbour.
pub(super) fn put_child<E: Span>(
    children: &mut ArrayVec<Child<E>, INNER>,
    at: usize,
    child: Child<E>,
    nodes: &mut Nodes<E>,
) -> Option<Child<E>> {
    put(children, at, child).map(|right| Child::of(nodes.inner(right)))
}

/// After something was taken from a child: updates its record, and if it is underfull, merges it
/// with a neighbour or has both share their items. An only child stays underfull.
pub(super) fn rebalance<E: Span>(
    children: &mut ArrayVec<Child<E>, INNER>,
    at: usize,
    nodes: &mut Nodes<E>,
) {
    if !children[at].node.is_underfull() || children.len() == 1 {
        return children[at].update();
    }
    let left = at.saturating_sub(1);
    let right = children.remove(left + 1);
    let rest = children[left].node.balance(right.node, nodes);
    children[left].update();
    rest.into_iter().for_each(|node| children.insert(left + 1, Child::of(node)));
}
