//! How many map entries refer to each slot of an amap.
//!
//! ```text
//!   slots   0        10        20        30
//!   counts  |---1----|----2----|----1----|       two entries, [0, 20) and [10, 30)
//! ```
//!
//! UVM counts references to a whole amap, and adds an array of per-page counts once an entry is split. Here the
//! counts are kept by range from the start. So splitting an entry changes nothing, an unmapped part frees its anons
//! at once, and "may I write here without copying?" has an exact answer for just the range that asks: the paper's
//! test of an amap's reference count against one (1999, section 5.2), range by range.
//!
//! I1: runs are sorted, disjoint, not empty, and have counts above zero; neighbours that touch differ in count.

use core::ops::Range;

use smallvec::SmallVec;

/// The count lies first: see [`Cover`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Run {
    count: u32,
    start: u64,
    end: u64,
}

/// See the module. Most have one run, which lies in the amap's first cache line, with the lock: to count one more reference moves
/// that line and no other.
#[derive(Default)]
pub(crate) struct Cover {
    runs: SmallVec<[Run; 1]>,
}

impl Cover {
    pub(crate) fn new() -> Cover {
        Cover::default()
    }

    /// Counts one more reference to every slot of the range.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let [run] = &mut self.runs[..] {
            if run.start == range.start && run.end == range.end {
                run.count += 1;
                return;
            }
        }
        self.cut(range.start);
        self.cut(range.end);
        let mut at = self.first_at(range.start);
        let mut next = range.start;
        while next < range.end {
            match self.runs.get_mut(at) {
                Some(run) if run.start == next => {
                    run.count += 1;
                    next = run.end;
                }
                following => {
                    let end = following.map_or(range.end, |run| run.start.min(range.end));
                    self.runs.insert(at, Run { start: next, end, count: 1 });
                    next = end;
                }
            }
            at += 1;
        }
        self.join();
    }

    /// Takes one reference from every slot of the range, all of which have one; `unused` gets each part that has
    /// none left.
    pub(crate) fn sub(&mut self, range: Range<u64>, mut unused: impl FnMut(Range<u64>)) {
        if range.is_empty() {
            return;
        }
        if let [run] = &mut self.runs[..] {
            if run.start == range.start && run.end == range.end {
                run.count -= 1;
                if run.count == 0 {
                    self.runs.clear();
                    unused(range);
                }
                return;
            }
        }
        self.cut(range.start);
        self.cut(range.end);
        let from = self.first_at(range.start);
        for run in self.runs[from..].iter_mut().take_while(|run| run.start < range.end) {
            run.count -= 1;
            if run.count == 0 {
                unused(run.start..run.end);
            }
        }
        self.runs.retain(|run| run.count != 0);
        self.join();
    }

    /// Whether no slot has a reference.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether the range has one reference to each slot, and nothing else has any.
    pub(crate) fn is_all(&self, range: Range<u64>) -> bool {
        matches!(self.runs[..], [Run { start, end, count: 1 }] if start == range.start && end == range.end)
    }

    /// Whether every slot of the range has exactly one reference.
    #[inline]
    pub(crate) fn is_exclusive(&self, range: Range<u64>) -> bool {
        if let [run] = &self.runs[..] {
            return run.start <= range.start && range.end <= run.end && run.count == 1;
        }
        match self.runs.get(self.first_at(range.start)) {
            Some(run) if run.start <= range.start && range.end <= run.end => run.count == 1,
            _ => false,
        }
    }

    /// Whether no slot of the range has a reference.
    pub(crate) fn is_unused(&self, range: Range<u64>) -> bool {
        self.runs.get(self.first_at(range.start)).is_none_or(|run| run.start >= range.end)
    }

    /// What lies before, between and behind the runs, in order: slots without a reference, up to the last there can be.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = core::iter::once(0).chain(self.runs.iter().map(|run| run.end));
        let ends = self.runs.iter().map(|run| run.start).chain(core::iter::once(u64::MAX >> 1));
        starts.zip(ends).map(|(start, end)| start..end).filter(|gap| !gap.is_empty())
    }

    /// Runs of slots with their counts, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        self.runs.iter().map(|run| (run.start..run.end, run.count))
    }

    /// The first run that ends behind `at`.
    fn first_at(&self, at: u64) -> usize {
        self.runs.partition_point(|run| run.end <= at)
    }

    fn cut(&mut self, at: u64) {
        let i = self.first_at(at);
        if let Some(run) = self.runs.get_mut(i) {
            if run.start < at {
                let tail = Run { start: at, ..*run };
                run.end = at;
                self.runs.insert(i + 1, tail);
            }
        }
    }

    fn join(&mut self) {
        self.runs.dedup_by(|next, run| {
            let same = run.end == next.start && run.count == next.count;
            if same {
                run.end = next.end;
            }
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn counts(c: &Cover) -> Vec<(Range<u64>, u32)> {
        c.runs().collect()
    }

    #[test]
    fn overlapping_references_are_counted_by_range() {
        let mut c = Cover::new();
        c.add(0..20);
        c.add(10..30);
        assert_eq!(counts(&c), [(0..10, 1), (10..20, 2), (20..30, 1)]);
        assert!(c.is_exclusive(2..10) && !c.is_exclusive(2..11) && c.is_unused(30..40));
        let mut gone = Vec::new();
        c.sub(5..25, |r| gone.push(r));
        assert_eq!(gone, [5..10, 20..25]);
        assert_eq!(c.gaps().collect::<Vec<_>>(), [5..10, 20..25, 30..u64::MAX >> 1]);
        assert_eq!(counts(&c), [(0..5, 1), (10..20, 1), (25..30, 1)]);
    }

    #[test]
    fn neighbours_of_one_count_join() {
        let mut c = Cover::new();
        c.add(0..4);
        c.add(4..8);
        assert_eq!(counts(&c), [(0..8, 1)]);
        c.add(0..8);
        c.sub(0..3, |_| panic!("still referenced"));
        assert_eq!(counts(&c), [(0..3, 1), (3..8, 2)]);
    }

    #[test]
    fn random_ranges_agree_with_an_array() {
        let mut c = Cover::new();
        let mut array = [0u32; 40];
        let mut held: Vec<Range<u64>> = Vec::new();
        let mut seed = 7u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (a, b) = ((seed >> 33) % 40, (seed >> 43) % 41);
            if seed >> 60 < 8 && a < b {
                c.add(a..b);
                (a..b).for_each(|i| array[i as usize] += 1);
                held.push(a..b);
            } else if !held.is_empty() {
                let r = held.swap_remove((seed >> 20) as usize % held.len());
                let mut gone = Vec::new();
                c.sub(r.clone(), |g| gone.extend(g));
                r.clone().for_each(|i| array[i as usize] -= 1);
                assert!(r.filter(|&i| array[i as usize] == 0).eq(gone));
            }
            let mut seen = [0u32; 40];
            c.runs().for_each(|(r, n)| r.for_each(|i| seen[i as usize] = n));
            assert_eq!(seen, array);
        }
    }
}
