//! The entries of a map, in order of address, with the largest gap kept per subtree.
//!
//! ```text
//!              [40, 60)  min 10 max 90 gap 15          gap: the widest hole between two entries below
//!             /        \
//!       [10, 20)      [75, 90)
//! ```
//!
//! A treap: ordered by address, heaped by a random priority, so that look-up, insertion, and cutting out a whole
//! range are O(log n) expected at a million entries. Each node keeps the span of its subtree and the widest hole
//! inside it; holes are a matter of a node and its children alone, so no neighbour has to be found to keep them.
//!
//! The road not taken is a B-tree: quicker look-ups, but cutting out a range, which every unmap, protect and fork
//! does, is one split here and a rebalancing loop there.
//!
//! I1: entries are disjoint and not empty. I2: `min`, `max`, `gap` of a node are those of its subtree.

use alloc::boxed::Box;
use machine::{Va, VaRange};

/// Something that lies at a range of addresses.
pub(crate) trait Span {
    fn range(&self) -> VaRange;
}

type Link<E> = Option<Box<Node<E>>>;

pub(crate) struct Node<E> {
    entry: E,
    priority: u32,
    left: Link<E>,
    right: Link<E>,
    min: Va,
    max: Va,
    gap: u64,
}

/// See the module.
pub(crate) struct Tree<E> {
    root: Link<E>,
    len: usize,
    seed: u32,
    elsewhere: VaRange,
}

impl<E: Span> Tree<E> {
    pub(crate) const fn new() -> Self {
        Tree { root: None, len: 0, seed: 0x9e37_79b9, elsewhere: VaRange::new(Va(0), Va(0)) }
    }

    /// Entries in the tree.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry at an address.
    #[inline]
    pub(crate) fn get(&self, va: Va) -> Option<&E> {
        let mut link = &self.root;
        while let Some(node) = link {
            let range = node.entry.range();
            if va < range.start {
                link = &node.left;
            } else if va >= range.end {
                link = &node.right;
            } else {
                return Some(&node.entry);
            }
        }
        None
    }

    /// The entry at an address, to change; its range must stay.
    #[inline]
    pub(crate) fn get_mut(&mut self, va: Va) -> Option<&mut E> {
        let mut link = &mut self.root;
        while let Some(node) = link {
            let range = node.entry.range();
            if va < range.start {
                link = &mut node.left;
            } else if va >= range.end {
                link = &mut node.right;
            } else {
                return Some(&mut node.entry);
            }
        }
        None
    }

    /// Adds an entry where none is.
    pub(crate) fn insert(&mut self, entry: E) {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let VaRange { start, end } = entry.range();
        let node = Box::new(Node {
            entry,
            priority: self.seed,
            left: None,
            right: None,
            min: start,
            max: end,
            gap: 0,
        });
        insert(&mut self.root, node);
        self.len += 1;
    }

    /// Takes out the entries that start in the range. Entries that reach over its ends must have been cut.
    pub(crate) fn take(&mut self, range: VaRange) -> Tree<E> {
        let (left, rest) = split(self.root.take(), range.start);
        let (middle, right) = split(rest, range.end);
        self.root = merge(left, right);
        let len = count(&middle);
        self.len -= len;
        Tree { root: middle, len, seed: self.seed, elsewhere: VaRange::new(Va(0), Va(0)) }
    }

    /// Adds the entries of another tree, which lie between two neighbours of this one.
    pub(crate) fn put_back(&mut self, other: Tree<E>) {
        let Some(at) = other.root.as_ref().map(|node| node.min) else { return };
        let (left, right) = split(self.root.take(), at);
        self.root = merge(merge(left, other.root), right);
        self.len += other.len;
    }

    /// Where [`find_space`](Self::find_space) finds nothing.
    pub(crate) fn elsewhere(&self) -> VaRange {
        self.elsewhere
    }

    /// Has [`find_space`](Self::find_space) pass over a range; an empty one for none.
    pub(crate) fn pass_over(&mut self, range: VaRange) {
        self.elsewhere = range;
    }

    /// Takes out the entry at an address.
    pub(crate) fn remove(&mut self, va: Va) -> Option<E> {
        let range = self.get(va)?.range();
        let taken = self.take(VaRange::new(range.start, range.end));
        taken.root.map(|node| node.entry)
    }

    /// Calls `each` on every entry that overlaps the range, in order, until it says stop by an error.
    pub(crate) fn try_each<X>(
        &self,
        range: VaRange,
        each: &mut impl FnMut(&E) -> Result<(), X>,
    ) -> Result<(), X> {
        if range.is_empty() {
            return Ok(());
        }
        try_each(&self.root, range, each)
    }

    /// Calls `each` on every entry that overlaps the range, in order.
    pub(crate) fn each(&self, range: VaRange, mut each: impl FnMut(&E)) {
        let done: Result<(), core::convert::Infallible> = self.try_each(range, &mut |e| {
            each(e);
            Ok(())
        });
        let Ok(()) = done;
    }

    /// Calls `each` on every entry that overlaps the range, in order, to change; ranges must stay.
    pub(crate) fn each_mut(&mut self, range: VaRange, mut each: impl FnMut(&mut E)) {
        if !range.is_empty() {
            each_mut(&mut self.root, range, &mut each);
        }
    }

    /// A tree with what `each` makes of the entries, in order, at the same places; where it makes nothing, nothing is. Costs no look-ups:
    /// the shape is the same. `each` may change its entry, but for the range.
    pub(crate) fn derive(&mut self, mut each: impl FnMut(&mut E) -> Option<E>) -> Tree<E> {
        let mut len = 0;
        let root = derive(&mut self.root, &mut |entry| each(entry).inspect(|_| len += 1));
        Tree { root, len, seed: self.seed, elsewhere: VaRange::new(Va(0), Va(0)) }
    }

    /// Hands over all entries, in order.
    pub(crate) fn drain(self, mut each: impl FnMut(E)) {
        drain(self.root, &mut each);
    }

    /// The last entry that starts before an address.
    pub(crate) fn before(&self, va: Va) -> Option<&E> {
        let (mut link, mut best) = (&self.root, None);
        while let Some(node) = link {
            if node.entry.range().start < va {
                best = Some(&node.entry);
                link = &node.right;
            } else {
                link = &node.left;
            }
        }
        best
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
        let find = |bounds: VaRange| find(&self.root, bounds.start, bounds.end, bounds, bytes);
        let elsewhere = self.elsewhere.intersect(bounds);
        if elsewhere.is_empty() {
            return find(bounds);
        }
        let above = VaRange::new(elsewhere.end, bounds.end);
        find(above).or_else(|| find(VaRange::new(bounds.start, elsewhere.start)))
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(check(&self.root), self.len);
    }
}

impl<E: Span> Node<E> {
    fn update(&mut self) {
        let VaRange { start, end } = self.entry.range();
        (self.min, self.max, self.gap) = (start, end, 0);
        if let Some(left) = &self.left {
            self.min = left.min;
            self.gap = left.gap.max(start.0 - left.max.0);
        }
        if let Some(right) = &self.right {
            self.max = right.max;
            self.gap = self.gap.max(right.gap).max(right.min.0 - end.0);
        }
    }
}

fn insert<E: Span>(link: &mut Link<E>, mut new: Box<Node<E>>) {
    match link {
        Some(node) if node.priority >= new.priority => {
            let side = if new.entry.range().start < node.entry.range().start {
                &mut node.left
            } else {
                &mut node.right
            };
            insert(side, new);
            node.update();
        }
        _ => {
            let (left, right) = split(link.take(), new.entry.range().start);
            new.left = left;
            new.right = right;
            new.update();
            *link = Some(new);
        }
    }
}

/// Entries that start before `at`, and the others.
fn split<E: Span>(link: Link<E>, at: Va) -> (Link<E>, Link<E>) {
    let Some(mut node) = link else { return (None, None) };
    if node.max <= at {
        return (Some(node), None);
    }
    if node.min >= at {
        return (None, Some(node));
    }
    if node.entry.range().start < at {
        let (left, right) = split(node.right.take(), at);
        node.right = left;
        node.update();
        (Some(node), right)
    } else {
        let (left, right) = split(node.left.take(), at);
        node.left = right;
        node.update();
        (left, Some(node))
    }
}

/// Both, where all of `left` lies before all of `right`.
fn merge<E: Span>(left: Link<E>, right: Link<E>) -> Link<E> {
    match (left, right) {
        (Some(mut l), Some(mut r)) => {
            if l.priority >= r.priority {
                l.right = merge(l.right.take(), Some(r));
                l.update();
                Some(l)
            } else {
                r.left = merge(Some(l), r.left.take());
                r.update();
                Some(r)
            }
        }
        (one, None) | (None, one) => one,
    }
}

fn count<E>(link: &Link<E>) -> usize {
    link.as_ref().map_or(0, |node| 1 + count(&node.left) + count(&node.right))
}

/// Mostly the range lies in one entry, and the way there is all that is gone.
fn try_each<E: Span, X>(
    mut link: &Link<E>,
    range: VaRange,
    each: &mut impl FnMut(&E) -> Result<(), X>,
) -> Result<(), X> {
    while let Some(node) = link {
        let own = node.entry.range();
        if range.end <= own.start {
            link = &node.left;
        } else if own.end <= range.start {
            link = &node.right;
        } else {
            if range.start < own.start {
                try_each(&node.left, range, each)?;
            }
            each(&node.entry)?;
            if range.end <= own.end {
                break;
            }
            link = &node.right;
        }
    }
    Ok(())
}

fn each_mut<E: Span>(mut link: &mut Link<E>, range: VaRange, each: &mut impl FnMut(&mut E)) {
    while let Some(node) = link {
        let own = node.entry.range();
        if range.end <= own.start {
            link = &mut node.left;
        } else if own.end <= range.start {
            link = &mut node.right;
        } else {
            if range.start < own.start {
                each_mut(&mut node.left, range, each);
            }
            each(&mut node.entry);
            if range.end <= own.end {
                break;
            }
            link = &mut node.right;
        }
    }
}

fn derive<E: Span>(link: &mut Link<E>, each: &mut impl FnMut(&mut E) -> Option<E>) -> Link<E> {
    let Some(node) = link else { return None };
    let left = derive(&mut node.left, each);
    let entry = each(&mut node.entry);
    let right = derive(&mut node.right, each);
    let Some(entry) = entry else { return merge(left, right) };
    let Node { priority, min, max, gap, .. } = **node;
    let mut new = Box::new(Node { entry, priority, left, right, min, max, gap });
    new.update();
    Some(new)
}

fn drain<E>(link: Link<E>, each: &mut impl FnMut(E)) {
    let Some(node) = link else { return };
    let Node { entry, left, right, .. } = *node;
    drain(left, each);
    each(entry);
    drain(right, each);
}

/// Searches the hole-free span `[lo, hi)` around a subtree, right side first.
fn find<E: Span>(link: &Link<E>, lo: Va, hi: Va, bounds: VaRange, bytes: u64) -> Option<Va> {
    let room = |lo: Va, hi: Va| {
        let hole = VaRange::new(lo, hi).intersect(bounds);
        (!hole.is_empty() && hole.end.0 - hole.start.0 >= bytes).then(|| Va(hole.end.0 - bytes))
    };
    if hi <= bounds.start || lo >= bounds.end {
        return None;
    }
    let Some(node) = link else { return room(lo, hi) };
    let widest = node.gap.max(node.min.0.saturating_sub(lo.0)).max(hi.0.saturating_sub(node.max.0));
    if widest < bytes {
        return None;
    }
    let range = node.entry.range();
    find(&node.right, range.end, hi, bounds, bytes)
        .or_else(|| find(&node.left, lo, range.start, bounds, bytes))
}

#[cfg(test)]
fn check<E: Span>(link: &Link<E>) -> usize {
    let Some(node) = link else { return 0 };
    let range = node.entry.range();
    let mut gap = 0;
    let (mut min, mut max) = (range.start, range.end);
    if let Some(left) = &node.left {
        assert!(left.max <= range.start && left.priority <= node.priority);
        gap = left.gap.max(range.start.0 - left.max.0);
        min = left.min;
    }
    if let Some(right) = &node.right {
        assert!(right.min >= range.end && right.priority <= node.priority);
        gap = gap.max(right.gap).max(right.min.0 - range.end.0);
        max = right.max;
    }
    assert_eq!((node.min, node.max, node.gap), (min, max, gap));
    1 + check(&node.left) + check(&node.right)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Span for VaRange {
        fn range(&self) -> VaRange {
            *self
        }
    }

    fn r(start: u64, end: u64) -> VaRange {
        VaRange::new(Va(start), Va(end))
    }

    #[test]
    fn space_is_found_from_the_top() {
        let mut t = Tree::new();
        [r(10, 20), r(40, 60), r(75, 90)].into_iter().for_each(|e| t.insert(e));
        t.check();
        assert_eq!(t.find_space(r(0, 100), 10), Some(Va(90)));
        assert_eq!(t.find_space(r(0, 100), 15), Some(Va(60)));
        assert_eq!(t.find_space(r(0, 100), 16), Some(Va(24)));
        assert_eq!(t.find_space(r(0, 100), 21), None);
        assert_eq!(t.find_space(r(30, 70), 10), Some(Va(60)));
        assert_eq!(t.find_space(r(15, 35), 10), Some(Va(25)));
    }

    #[test]
    fn a_range_is_taken_and_put_back() {
        let mut t = Tree::new();
        (0..100u64).for_each(|i| t.insert(r(i * 10, i * 10 + 5)));
        let taken = t.take(r(200, 300));
        t.check();
        taken.check();
        assert_eq!((t.len(), taken.len()), (90, 10));
        assert!(t.is_free(r(196, 300)) && !t.is_free(r(190, 300)) && !t.is_covered(r(0, 10)));
        taken.drain(|e| t.insert(e));
        t.check();
        assert_eq!(t.remove(Va(204)), Some(r(200, 205)));
        assert_eq!(t.before(Va(200)).copied(), Some(r(190, 195)));
        assert_eq!(t.get(Va(200)), None);
    }

    #[test]
    fn a_derived_tree_has_the_same_places() {
        let mut t = Tree::new();
        (0..100u64).for_each(|i| t.insert(r(i * 10, i * 10 + 5)));
        let derived = t.derive(|e| (e.start.0 % 30 != 0).then_some(*e));
        t.check();
        derived.check();
        assert_eq!((t.len(), derived.len()), (100, 66));
        let mut order = 0;
        derived.each(r(0, 1000), |e| {
            assert!(e.start.0 % 30 != 0 && e.start.0 >= order);
            order = e.end.0;
        });
    }

    std::thread_local! {
        static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
    }

    /// An entry that counts how often one is looked at. The depth of a treap of a million is twice that of a thousand.
    struct Counted(VaRange);

    impl Span for Counted {
        fn range(&self) -> VaRange {
            LOOKS.set(LOOKS.get() + 1);
            self.0
        }
    }

    /// Looks per call, at most, of each operation on a tree of `n` entries, over a thousand places.
    fn looks(n: u64) -> [u64; 5] {
        let mut t = Tree::new();
        (0..n).for_each(|i| t.insert(Counted(r(i * 10, i * 10 + 5))));
        let counted = |work: &mut dyn FnMut()| {
            let before = LOOKS.get();
            work();
            LOOKS.get() - before
        };
        let mut most = [0; 5];
        for place in (0..1000).map(|i| i * (n / 1000) * 10) {
            let range = r(place, place + 5);
            let here = [
                counted(&mut || assert!(t.get(Va(place + 3)).is_some())),
                counted(&mut || assert!(!t.is_free(r(place, place + 10)))),
                counted(&mut || assert!(t.find_space(r(0, place + 40), 5).is_some())),
                counted(&mut || assert_eq!(t.take(range).len(), 1)),
                counted(&mut || t.insert(Counted(range))),
            ];
            most.iter_mut().zip(here).for_each(|(most, here)| *most = here.max(*most));
        }
        most
    }

    #[test]
    fn a_million_entries_cost_a_few_looks_more_than_a_thousand() {
        let (thousand, million) = (looks(1000), looks(1_000_000));
        std::println!("looks for get, is_free, find_space, take, insert: {thousand:?}, {million:?}");
        for (few, many) in thousand.into_iter().zip(million) {
            assert!(many <= 2 * few + 20, "{thousand:?} for a thousand, {million:?} for a million");
        }
    }

    #[test]
    fn a_million_entries_stay_shallow() {
        let mut t = Tree::new();
        (0..1_000_000u64).for_each(|i| t.insert(r(i * 10, i * 10 + 5)));
        fn depth<E>(l: &Link<E>) -> usize {
            l.as_ref().map_or(0, |n| 1 + depth(&n.left).max(depth(&n.right)))
        }
        assert!(depth(&t.root) < 70, "{}", depth(&t.root));
        assert_eq!(t.find_space(r(0, 10_000_000), 6), None);
    }
}
