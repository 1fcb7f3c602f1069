//! A leaf of a table: its numbers, and a bit for each that is there.

use core::num::NonZeroU32;
use core::ops::Range;

use super::LEAF;
use crate::counted::Ordering::{Acquire, Relaxed};
use crate::counted::{AtomicU32, AtomicU64};

pub(super) struct Leaf {
    pub(super) slots: [AtomicU32; LEAF as usize],
    /// A bit for each that is not 0.
    pub(super) used: AtomicU64,
}

impl Leaf {
    pub(super) fn new() -> Leaf {
        Leaf { slots: core::array::from_fn(|_| AtomicU32::new(0)), used: AtomicU64::new(0) }
    }

    /// A leaf with the same numbers; no thread installs one meanwhile.
    pub(super) fn copy(&self) -> Leaf {
        let copy = Leaf::new();
        self.numbers(0..LEAF as usize)
            .for_each(|(at, number)| copy.slots[at].store(number.get(), Relaxed));
        copy.used.store(self.used.load(Relaxed), Relaxed);
        copy
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used.load(Relaxed) == 0
    }

    /// The number at a place, and all that the thread that put it there did before.
    #[inline]
    pub(super) fn number(&self, at: usize) -> Option<NonZeroU32> {
        NonZeroU32::new(self.slots[at].load(Acquire))
    }

    /// Puts a number, or none, at a place; no other thread can reach the leaf.
    #[inline]
    pub(super) fn put(&mut self, at: usize, value: u32) -> Option<NonZeroU32> {
        let old = self.number(at);
        self.slots[at].store(value, Relaxed);
        let others = self.used.load(Relaxed) & !(1 << at);
        self.used.store(others | u64::from(value != 0) << at, Relaxed);
        old
    }

    /// Puts numbers, or none where that is 0, into a part that is empty; no other thread can
    /// reach the leaf.
    pub(super) fn fill(&mut self, part: Range<usize>, values: &mut impl Iterator<Item = u32>) {
        let mut used = self.used.load(Relaxed);
        for ((place, slot), value) in (part.start..).zip(&self.slots[part]).zip(values) {
            slot.store(value, Relaxed);
            used |= u64::from(value != 0) << place;
        }
        self.used.store(used, Relaxed);
    }

    /// Empties a part, and says what was there; no other thread can reach the leaf.
    pub(super) fn clear(&mut self, part: Range<usize>) -> impl Iterator<Item = NonZeroU32> + '_ {
        let used = self.used.load(Relaxed);
        let mut left = used & bits(&part);
        self.used.store(used & !left, Relaxed);
        core::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            let number = self.number(at);
            self.slots[at].store(0, Relaxed);
            number
        })
    }

    pub(super) fn numbers(
        &self,
        part: Range<usize>,
    ) -> impl Iterator<Item = (usize, NonZeroU32)> + '_ {
        let mut left = self.used.load(Relaxed) & bits(&part);
        core::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            // Beyond the last bit nothing is left.
            left &= left.checked_sub(1)?;
            Some((at, self.number(at)?))
        })
    }

    /// How many numbers lie in a part.
    pub(super) fn count(&self, part: Range<usize>) -> usize {
        (self.used.load(Relaxed) & bits(&part)).count_ones() as usize
    }

    /// Whether no number lies in a part.
    pub(super) fn is_empty_in(&self, part: Range<usize>) -> bool {
        self.used.load(Relaxed) & bits(&part) == 0
    }

    /// Whether all numbers lie in a part.
    pub(super) fn lies_in(&self, part: Range<usize>) -> bool {
        self.used.load(Relaxed) & !bits(&part) == 0
    }
}

/// The bits of a part of a leaf.
fn bits(part: &Range<usize>) -> u64 {
    let below = |end: usize| if end < 64 { (1 << end) - 1 } else { u64::MAX };
    below(part.end) & !below(part.start)
}
