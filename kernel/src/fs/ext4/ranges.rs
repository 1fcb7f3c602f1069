//! A set of whole numbers, kept as ranges: pages that were written and have no blocks yet.
//!
//! I1: ranges don't overlap or touch. I2: `total` is how many numbers they hold.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// See the module.
#[derive(Default)]
pub struct Ranges {
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// The set of nothing.
    pub const fn new() -> Ranges {
        Ranges { ends: BTreeMap::new(), total: 0 }
    }

    /// How many numbers it holds.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many ranges they are.
    pub fn pieces(&self) -> usize {
        self.ends.len()
    }

    /// The start of `range` in which at most so many ranges of the set begin.
    pub fn part(&self, range: &Range<u64>, most: usize) -> Range<u64> {
        let behind = self.ends.range(range.start..range.end).nth(most.max(1));
        range.start..behind.map_or(range.end, |(&start, _)| start)
    }

    /// How many numbers of `range` are in the set.
    pub fn count(&self, range: Range<u64>) -> u64 {
        let before = self.ends.range(..range.start).next_back();
        let inside = self.ends.range(range.start..range.end);
        let overlap = |(&start, &end): (&u64, &u64)| {
            end.min(range.end).saturating_sub(start.max(range.start))
        };
        before.into_iter().chain(inside).map(overlap).sum()
    }

    /// Adds a range; returns how many of its numbers were not there.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let new = range.end - range.start - self.count(range.clone());
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&at, &stop)) = self.ends.range(..=end).next_back() {
            if stop < start {
                break;
            }
            self.ends.remove(&at);
            (start, end) = (start.min(at), end.max(stop));
        }
        self.ends.insert(start, end);
        self.total += new;
        new
    }

    /// Takes a range out; returns how many of its numbers were there.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut gone = 0;
        if range.is_empty() {
            return gone;
        }
        while let Some((&at, &stop)) = self.ends.range(..range.end).next_back() {
            if stop <= range.start {
                break;
            }
            self.ends.remove(&at);
            gone += stop.min(range.end) - at.max(range.start);
            if at < range.start {
                self.ends.insert(at, range.start);
            }
            if stop > range.end {
                self.ends.insert(range.end, stop);
            }
        }
        self.total -= gone;
        gone
    }
}
