//! Where leaves hang: an ordered map of small arrays of them.
//!
//! ```text
//!   key / 32 -> branch of 32 places -> leaf
//! ```
//! A branch spans 2,048 pages, 8 MiB: most amaps have one or two, so that a look-up is a few compares and two array
//! accesses. Ordered maps alone, of leaves, took 120 instructions to find one among 256.
//!
//! I1: a branch in the map has at least one leaf, and `used` counts them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Range;

use super::Leaf;
use crate::counted::Arc;

/// Leaves in a branch; few for the model, as in [`super::LEAF`].
const BRANCH: u64 = if cfg!(feature = "small-leaves") { 2 } else { 32 };

struct Branch {
    leaves: [Option<Arc<Leaf>>; BRANCH as usize],
    used: u8,
}

#[derive(Default)]
pub(super) struct Leaves {
    branches: BTreeMap<u64, Box<Branch>>,
}

/// Heap bytes that one new leaf's place may need: a branch, and a split of every level of the ordered map.
pub(super) const PLACE_BYTES: usize = size_of::<Branch>() + 2048;

impl Leaves {
    pub(super) const fn new() -> Leaves {
        Leaves { branches: BTreeMap::new() }
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&Arc<Leaf>> {
        self.branches.get(&(key / BRANCH))?.leaves[(key % BRANCH) as usize].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Arc<Leaf>> {
        self.branches.get_mut(&(key / BRANCH))?.leaves[(key % BRANCH) as usize].as_mut()
    }

    /// The leaf at a key, a new empty one if there was none.
    #[inline]
    pub(super) fn get_or_new(&mut self, key: u64) -> &mut Arc<Leaf> {
        let branch = self.branch_or_new(key / BRANCH);
        let place = &mut branch.leaves[(key % BRANCH) as usize];
        if place.is_none() {
            branch.used += 1;
        }
        place.get_or_insert_with(|| Arc::new(Leaf::EMPTY))
    }

    #[inline]
    fn branch_or_new(&mut self, key: u64) -> &mut Branch {
        let new = || Box::new(Branch { leaves: [const { None }; BRANCH as usize], used: 0 });
        self.branches.entry(key).or_insert_with(new)
    }

    /// Hangs a leaf where none is.
    pub(super) fn insert(&mut self, key: u64, leaf: Arc<Leaf>) {
        let branch = self.branch_or_new(key / BRANCH);
        branch.leaves[(key % BRANCH) as usize] = Some(leaf);
        branch.used += 1;
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Arc<Leaf>> {
        let branch = self.branches.get_mut(&(key / BRANCH))?;
        let leaf = branch.leaves[(key % BRANCH) as usize].take()?;
        branch.used -= 1;
        if branch.used == 0 {
            self.branches.remove(&(key / BRANCH));
        }
        Some(leaf)
    }

    /// Leaves with their keys in a range, in order.
    pub(super) fn range(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, &Arc<Leaf>)> + '_ {
        let branches = keys.start / BRANCH..keys.end.div_ceil(BRANCH).max(keys.start / BRANCH);
        self.branches.range(branches).flat_map(move |(&at, branch)| {
            let base = at * BRANCH;
            let from = keys.start.saturating_sub(base).min(BRANCH);
            let to = keys.end.saturating_sub(base).min(BRANCH);
            let places = &branch.leaves[from as usize..to.max(from) as usize];
            places.iter().zip(base + from..).filter_map(|(leaf, key)| Some((key, leaf.as_ref()?)))
        })
    }

    /// The first leaf's key in a range.
    pub(super) fn first(&self, keys: Range<u64>) -> Option<u64> {
        self.range(keys).next().map(|(key, _)| key)
    }

    /// Heap bytes of places for as many leaves as lie in a range of keys, where they lie.
    pub(super) fn copy_bytes(&self, keys: Range<u64>) -> usize {
        let branches = keys.start / BRANCH..keys.end.div_ceil(BRANCH).max(keys.start / BRANCH);
        self.branches.range(branches).count() * (size_of::<Branch>() + 96) + PLACE_BYTES
    }

    /// Takes all leaves out, in order.
    pub(super) fn drain(&mut self, mut each: impl FnMut(Arc<Leaf>)) {
        while let Some((_, mut branch)) = self.branches.pop_first() {
            for place in &mut branch.leaves {
                if let Some(leaf) = place.take() {
                    branch.used -= 1;
                    each(leaf);
                }
                if branch.used == 0 {
                    break;
                }
            }
        }
    }

    /// Heap bytes of places in use.
    #[cfg(all(test, not(feature = "small-leaves")))]
    pub(super) fn heap_bytes(&self) -> usize {
        self.branches.len() * (size_of::<Branch>() + 24)
    }
}
