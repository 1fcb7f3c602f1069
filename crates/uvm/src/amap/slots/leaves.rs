//! Where leaves hang: an ordered map of small arrays of them.
//!
//! ```text
//!   key / 16 -> branch of 16 places -> leaf
//! ```
//! A branch spans 1,024 pages, 4 MiB: most amaps have one, which needs no map, or two, so that a
//! look-up is a few compares and two array accesses. Ordered maps alone, of leaves, took 120
//! instructions to find one among 256.
//!
//! I1: a branch has at least one leaf, or is to get its first, and `used` names them. I2: the
//! lowest branch lies beside the map, all others in it. I3: only leaves that are there have marks;
//! what these mean is the table's user's.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Range;

use super::Leaf;
use crate::counted::Ordering::Relaxed;
use crate::counted::{Arc, AtomicU32, Once};

/// Leaves in a branch; few for the model, as in [`super::LEAF`].
const BRANCH: u64 = if cfg!(feature = "__small-leaves") { 2 } else { 16 };

/// See the module.
pub(super) struct Branch {
    leaves: [Once<Arc<Leaf>>; BRANCH as usize],
    /// A bit for each that is there.
    used: AtomicU32,
    /// A bit for each that is marked.
    marked: AtomicU32,
}

#[derive(Default)]
pub(super) struct Leaves {
    lowest: Option<(u64, Box<Branch>)>,
    others: BTreeMap<u64, Box<Branch>>,
}

impl Branch {
    fn new() -> Branch {
        Branch {
            leaves: core::array::from_fn(|_| Once::new()),
            used: AtomicU32::new(0),
            marked: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn leaf(&self, key: u64) -> Option<&Arc<Leaf>> {
        self.leaves[(key % BRANCH) as usize].get()
    }

    /// The leaf before the one at a key, if it is in this branch.
    pub(super) fn leaf_before(&self, key: u64) -> Option<&Arc<Leaf>> {
        self.leaves[..(key % BRANCH) as usize].last()?.get()
    }

    /// The leaf at a key, a new empty one if there was none; others may ask for it at once.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&self, key: u64) -> &Arc<Leaf> {
        let (new, mut is_mine) = (Arc::new(Leaf::new()), false);
        let leaf = self.leaves[(key % BRANCH) as usize].call_once(|| {
            is_mine = true;
            new
        });
        if is_mine {
            self.used.fetch_or(1 << (key % BRANCH), Relaxed);
        }
        leaf
    }

    /// Marks the leaf at a key, beside threads that read the table.
    #[inline]
    pub(super) fn mark(&self, key: u64) {
        let bit = 1 << (key % BRANCH);
        if self.marked.load(Relaxed) & bit == 0 {
            self.marked.fetch_or(bit, Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_marked(&self, key: u64) -> bool {
        self.marked.load(Relaxed) & 1 << (key % BRANCH) != 0
    }

    fn unmark(&mut self, key: u64) {
        self.marked.store(self.marked.load(Relaxed) & !(1 << (key % BRANCH)), Relaxed);
    }

    /// Takes a leaf out.
    fn take(&mut self, key: u64) -> Option<Arc<Leaf>> {
        self.unmark(key);
        let place = &mut self.leaves[(key % BRANCH) as usize];
        self.used.store(self.used.load(Relaxed) & !(1 << (key % BRANCH)), Relaxed);
        core::mem::take(place).try_into_inner()
    }
}

/// Heap bytes that one new leaf's place may need: a branch, and a split of every level of the
/// ordered map.
pub(super) const PLACE_BYTES: usize = size_of::<Branch>() + 2048;

/// Heap bytes of a branch, with its part of a node of the map that is half full.
pub(super) const BRANCH_BYTES: usize = size_of::<Branch>() + 2 * size_of::<(u64, Box<Branch>)>();

impl Leaves {
    pub(super) const fn new() -> Leaves {
        Leaves { lowest: None, others: BTreeMap::new() }
    }

    /// The branch that has, or would have, the leaf at a key.
    #[inline]
    pub(super) fn branch(&self, key: u64) -> Option<&Branch> {
        match &self.lowest {
            Some((at, branch)) if *at == key / BRANCH => Some(branch),
            _ => Some(self.others.get(&(key / BRANCH))?),
        }
    }

    #[inline]
    fn branch_mut(&mut self, key: u64) -> Option<&mut Branch> {
        match &mut self.lowest {
            Some((at, branch)) if *at == key / BRANCH => Some(branch),
            _ => Some(self.others.get_mut(&(key / BRANCH))?),
        }
    }

    /// The branch that has the leaf at a key, a new empty one if there was none.
    #[inline]
    pub(super) fn branch_or_new(&mut self, key: u64) -> &mut Branch {
        let at = key / BRANCH;
        if self.lowest.as_ref().is_none_or(|(lowest, _)| at < *lowest) {
            let before = self.lowest.replace((at, Box::new(Branch::new())));
            self.others.extend(before);
        }
        match &mut self.lowest {
            Some((lowest, branch)) if *lowest == at => branch,
            _ => self.others.entry(at).or_insert_with(|| Box::new(Branch::new())),
        }
    }

    /// Branches with their numbers, in order.
    fn branches(&self, numbers: Range<u64>) -> impl Iterator<Item = (u64, &Branch)> + '_ {
        let lowest = self.lowest.as_ref().filter(|(at, _)| numbers.contains(at));
        let others =
            (!self.others.is_empty() && !numbers.is_empty()).then(|| self.others.range(numbers));
        let others = others.into_iter().flatten().map(|(&at, branch)| (at, &**branch));
        lowest.map(|(at, branch)| (*at, &**branch)).into_iter().chain(others)
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&Arc<Leaf>> {
        self.branch(key)?.leaf(key)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Arc<Leaf>> {
        self.branch_mut(key)?.leaves[(key % BRANCH) as usize].get_mut()
    }

    /// The leaf at a key, a new empty one if there was none.
    #[inline]
    pub(super) fn get_or_new(&mut self, key: u64) -> Option<&mut Arc<Leaf>> {
        let branch = self.branch_or_new(key);
        if branch.leaf(key).is_none() {
            branch.grow(key);
        }
        branch.leaves[(key % BRANCH) as usize].get_mut()
    }

    /// Hangs a leaf where none is.
    pub(super) fn insert(&mut self, key: u64, leaf: Arc<Leaf>) {
        let branch = self.branch_or_new(key);
        branch.leaves[(key % BRANCH) as usize] = Once::initialized(leaf);
        branch.used.store(branch.used.load(Relaxed) | 1 << (key % BRANCH), Relaxed);
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Arc<Leaf>> {
        let branch = self.branch_mut(key)?;
        let leaf = branch.take(key)?;
        if branch.used.load(Relaxed) == 0 {
            match &self.lowest {
                Some((at, _)) if *at == key / BRANCH => self.lowest = self.others.pop_first(),
                _ => _ = self.others.remove(&(key / BRANCH)),
            }
        }
        Some(leaf)
    }

    /// Leaves with their keys in a range, in order.
    pub(super) fn range(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, &Arc<Leaf>)> + '_ {
        let branches = keys.start / BRANCH..keys.end.div_ceil(BRANCH).max(keys.start / BRANCH);
        self.branches(branches).flat_map(move |(at, branch)| {
            let base = at * BRANCH;
            let from = keys.start.saturating_sub(base).min(BRANCH);
            let to = keys.end.saturating_sub(base).min(BRANCH);
            let places = &branch.leaves[from as usize..to.max(from) as usize];
            places.iter().zip(base + from..).filter_map(|(leaf, key)| Some((key, leaf.get()?)))
        })
    }

    /// Marked leaves with their keys in a range, in order. Cost: by branches and by marked leaves.
    pub(super) fn marked(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, &Arc<Leaf>)> + '_ {
        let branches = keys.start / BRANCH..keys.end.div_ceil(BRANCH).max(keys.start / BRANCH);
        self.branches(branches).flat_map(move |(at, branch)| {
            let mut left = branch.marked.load(Relaxed);
            let keys = keys.clone();
            core::iter::from_fn(move || {
                if left == 0 {
                    return None;
                }
                let bit = left.trailing_zeros();
                left &= left - 1;
                Some(at * BRANCH + u64::from(bit))
            })
            .filter(move |key| keys.contains(key))
            .filter_map(|key| Some((key, branch.leaf(key)?)))
        })
    }

    /// Takes a leaf's mark away.
    pub(super) fn unmark(&mut self, key: u64) {
        if let Some(branch) = self.branch_mut(key) {
            branch.unmark(key);
        }
    }

    /// How many leaves there are at most: all that could be in the branches, if there are several.
    pub(super) fn most(&self) -> usize {
        match &self.lowest {
            Some((_, branch)) if self.others.is_empty() => {
                branch.used.load(Relaxed).count_ones() as usize
            }
            lowest => (usize::from(lowest.is_some()) + self.others.len()) * BRANCH as usize,
        }
    }

    /// The first leaf's key in a range.
    pub(super) fn first(&self, keys: Range<u64>) -> Option<u64> {
        self.range(keys).next().map(|(key, _)| key)
    }

    /// Heap bytes of places for as many leaves as lie in a range of keys, where they lie.
    pub(super) fn copy_bytes(&self, keys: Range<u64>) -> usize {
        let branches = keys.start / BRANCH..keys.end.div_ceil(BRANCH).max(keys.start / BRANCH);
        self.branches(branches).count() * (size_of::<Branch>() + 96) + PLACE_BYTES
    }

    /// Takes all leaves out, in order.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Arc<Leaf>)) {
        while let Some((_, mut branch)) = self.lowest.take().or_else(|| self.others.pop_first()) {
            let mut left = branch.used.load(Relaxed);
            while left != 0 {
                if let Some(leaf) = branch.take(u64::from(left.trailing_zeros())) {
                    each(leaf);
                }
                left &= left - 1;
            }
        }
    }

    /// Heap bytes of the places around a leaf's, spread over the leaves that are there.
    pub(super) fn place_bytes(&self, key: u64) -> usize {
        let leaves = self.branch(key).map_or(0, |branch| branch.used.load(Relaxed).count_ones());
        (size_of::<Branch>() + 24) / leaves.max(1) as usize
    }
}
