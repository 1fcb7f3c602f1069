//! Numbers by page index, sparse: an amap's anons, an object's pages.
//!
//! ```text
//!   index / 64 -> leaf of 64 numbers      0 = empty
//!       0      -> | 7 0 9 ... |
//!       5      -> | 0 0 3 ... |
//! ```
//!
//! A map of small arrays costs memory by what is used and not by span: the hybrid of hash and array that the paper
//! names as future work for amaps (1999, section 5.3). A leaf holds 64 numbers, so a neighbour is an array access,
//! and the leaves hang in an ordered map, so a walk over a range skips what is empty.
//!
//! The road not taken is a radix tree: quicker by a dozen instructions at a look-up, but a sparse terabyte pays for
//! a path of inner nodes at every touched page.
//!
//! I1: a leaf in the map has at least one number, and `used` counts them; `len` is the sum of all `used`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::num::NonZeroU32;
use core::ops::Range;

const LEAF: u64 = 64;

struct Leaf {
    slots: [u32; LEAF as usize],
    used: u8,
}

#[derive(Default)]
pub(crate) struct Slots {
    leaves: BTreeMap<u64, Box<Leaf>>,
    len: usize,
}

/// Heap bytes that one `set` may need: a leaf, and a split of every level of the ordered map.
pub(crate) const SET_BYTES: usize = size_of::<Leaf>() + 2048;

impl Slots {
    pub(crate) const fn new() -> Slots {
        Slots { leaves: BTreeMap::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<NonZeroU32> {
        NonZeroU32::new(self.leaves.get(&(index / LEAF))?.slots[(index % LEAF) as usize])
    }

    /// Puts a number at an index and returns the one that was there.
    pub(crate) fn set(&mut self, index: u64, value: NonZeroU32) -> Option<NonZeroU32> {
        let leaf = self
            .leaves
            .entry(index / LEAF)
            .or_insert_with(|| Box::new(Leaf { slots: [0; LEAF as usize], used: 0 }));
        let slot = &mut leaf.slots[(index % LEAF) as usize];
        let old = NonZeroU32::new(core::mem::replace(slot, value.get()));
        if old.is_none() {
            leaf.used += 1;
            self.len += 1;
        }
        old
    }

    /// Empties an index and returns what was there.
    pub(crate) fn clear(&mut self, index: u64) -> Option<NonZeroU32> {
        let leaf = self.leaves.get_mut(&(index / LEAF))?;
        let old = NonZeroU32::new(core::mem::take(&mut leaf.slots[(index % LEAF) as usize]))?;
        leaf.used -= 1;
        self.len -= 1;
        if leaf.used == 0 {
            self.leaves.remove(&(index / LEAF));
        }
        Some(old)
    }

    /// What is set in a range, in order.
    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, NonZeroU32)> + '_ {
        let leaves = range.start / LEAF..range.end.div_ceil(LEAF).max(range.start / LEAF);
        self.leaves.range(leaves).flat_map(move |(&key, leaf)| {
            let base = key * LEAF;
            let from = range.start.saturating_sub(base).min(LEAF);
            let to = range.end.saturating_sub(base).min(LEAF);
            (from..to.max(from))
                .filter_map(move |i| Some((base + i, NonZeroU32::new(leaf.slots[i as usize])?)))
        })
    }

    /// Empties a range and hands over what was in it, in order.
    pub(crate) fn take_range(&mut self, range: Range<u64>, mut each: impl FnMut(u64, NonZeroU32)) {
        if range.is_empty() {
            return;
        }
        let mut key = range.start / LEAF;
        let end = range.end.div_ceil(LEAF);
        while let Some((&at, leaf)) = self.leaves.range_mut(key..end).next() {
            let base = at * LEAF;
            let from = range.start.saturating_sub(base) as usize;
            let to = (range.end - base).min(LEAF) as usize;
            for i in from..to {
                if let Some(value) = NonZeroU32::new(core::mem::take(&mut leaf.slots[i])) {
                    leaf.used -= 1;
                    self.len -= 1;
                    each(base + i as u64, value);
                }
            }
            if leaf.used == 0 {
                self.leaves.remove(&at);
            }
            key = at + 1;
        }
    }

    /// Copies the range's numbers to another table, moved so that `range.start` lands at 0, calling `each` on each.
    pub(crate) fn copy_range(&self, range: Range<u64>, mut each: impl FnMut(NonZeroU32)) -> Slots {
        let mut copy = Slots::new();
        for (index, value) in self.range(range.clone()) {
            each(value);
            copy.set(index - range.start, value);
        }
        copy
    }

    /// The numbers from `start` on, as many as `out` holds, at most 64; 0 where nothing is set. Says whether any is.
    #[inline]
    pub(crate) fn window(&self, start: u64, out: &mut [u32]) -> bool {
        let from = (start % LEAF) as usize;
        let here = out.len().min(LEAF as usize - from);
        let (first, second) = out.split_at_mut(here);
        let copy = |out: &mut [u32], key: u64, from: usize| match self.leaves.get(&key) {
            Some(leaf) => out.copy_from_slice(&leaf.slots[from..from + out.len()]),
            None => out.fill(0),
        };
        copy(first, start / LEAF, from);
        if !second.is_empty() {
            copy(second, start / LEAF + 1, 0);
        }
        out.iter().any(|&n| n != 0)
    }

    /// Heap bytes for a copy of the range, at most.
    pub(crate) fn copy_bytes(&self, range: Range<u64>) -> usize {
        let leaves =
            self.leaves.range(range.start / LEAF..range.end.div_ceil(LEAF).max(range.start / LEAF)).count();
        (leaves * 2 + 1) * (size_of::<Leaf>() + 64) + 1024
    }

    /// Heap bytes in use.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.leaves.len() * (size_of::<Leaf>() + 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn n(v: u32) -> NonZeroU32 {
        NonZeroU32::new(v).unwrap()
    }

    #[test]
    fn numbers_come_back_in_order_and_leaves_go_when_empty() {
        let mut s = Slots::new();
        for i in [5u64, 1 << 30, 64, 63] {
            assert_eq!(s.set(i, n(i as u32 + 1)), None);
        }
        assert_eq!(s.set(5, n(9)), Some(n(6)));
        assert_eq!(s.range(0..u64::MAX - 64).map(|(i, _)| i).collect::<Vec<_>>(), [5, 63, 64, 1 << 30]);
        let mut taken = Vec::new();
        s.take_range(6..(1 << 30), |i, _| taken.push(i));
        assert_eq!(taken, [63, 64]);
        assert_eq!((s.len(), s.leaves.len()), (2, 2));
        assert_eq!(s.clear(5), Some(n(9)));
        assert_eq!(s.clear(5), None);
        assert_eq!(s.leaves.len(), 1);
    }

    #[test]
    fn a_copy_starts_at_zero() {
        let mut s = Slots::new();
        s.set(100, n(1));
        s.set(130, n(2));
        let copy = s.copy_range(90..131, |_| ());
        assert_eq!((copy.get(10), copy.get(40), copy.len()), (Some(n(1)), Some(n(2)), 2));
    }

    #[test]
    fn a_sparse_terabyte_costs_by_its_used_slots() {
        let mut s = Slots::new();
        for i in 0..1000u64 {
            s.set(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36, n(1));
        }
        assert!(s.heap_bytes() < 400 << 10, "{}", s.heap_bytes());
    }
}
