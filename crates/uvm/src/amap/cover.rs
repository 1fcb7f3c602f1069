//! How many map entries refer to each slot of an amap.
//!
//! ```text
//!   slots   0        10        20        30
//!   counts  |---1----|----2----|----1----|       two entries, [0, 20) and [10, 30)
//! ```
//!
//! UVM counts references to a whole amap, and adds an array of per-page counts once an entry is
//! split. Here the counts are kept by range from the start. So splitting an entry changes nothing,
//! an unmapped part frees its anons at once, and "may I write here without copying?" has an exact
//! answer for just the range that asks: the paper's test of an amap's reference count against one
//! (1999, section 5.2), range by range.
//!
//! A program chooses how many runs there are: children that unmap every second page of what they
//! have inherited make one of each page. So they lie in a B-tree, whose nodes are small and whose
//! changes cost O(log n).
//!
//! I1: runs are disjoint, not empty, and have counts above zero; neighbours that touch differ in
//! count.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Runs that change under one hold of a lock, at most, where a range is let go in parts.
const LOOKS: usize = if cfg!(feature = "__small-leaves") { 4 } else { 1024 };
/// Heap bytes of one of the tree's nodes, at most: eleven keys and values, twelve edges.
const NODE_BYTES: usize = 400;
/// Heap bytes that one change of any cover needs, at most: that of 6^10 runs, as many as no machine
/// has entries.
pub(crate) const CHANGE_BYTES: usize = change_bytes(6usize.pow(10));

/// Heap bytes that one change of a tree of so many runs needs, at most: two new nodes on each
/// level. Every node but the root has six children at least, or five keys.
const fn change_bytes(runs: usize) -> usize {
    2 * (runs.ilog(6) as usize + 2) * NODE_BYTES
}

/// The count lies first: see [`Cover`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Run {
    count: u32,
    start: u64,
    end: u64,
}

/// A run but for its start, which is its key.
struct Rest {
    end: u64,
    count: u32,
}

/// See the module. Most have one run, which lies in the amap's first cache line, with the lock: to
/// count one more reference moves that line and no other.
pub(crate) struct Cover {
    runs: Runs,
}

enum Runs {
    /// One run; none if its count is 0.
    One(Run),
    /// Two or more, by their starts.
    Many(BTreeMap<u64, Rest>),
}

impl Cover {
    pub(crate) fn new() -> Cover {
        Cover { runs: Runs::One(Run { count: 0, start: 0, end: 0 }) }
    }

    /// Counts one reference to every slot of a range whose slots have none.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        debug_assert!(self.is_unused(range.clone()), "an entry refers to {range:?}");
        match &mut self.runs {
            Runs::One(run) if run.count == 0 => {
                *run = Run { count: 1, start: range.start, end: range.end };
            }
            Runs::One(run) if run.count == 1 && run.end == range.start => run.end = range.end,
            Runs::One(run) if run.count == 1 && range.end == run.start => run.start = range.start,
            _ => {
                let runs = self.many();
                match run_before(runs, range.start)
                    .filter(|run| run.end == range.start && run.count == 1)
                {
                    Some(run) => run.end = range.end,
                    None => drop(runs.insert(range.start, Rest { end: range.end, count: 1 })),
                }
                merge(runs, range.end);
                merge(runs, range.start);
                self.lessen();
            }
        }
    }

    /// Whether [`insert`](Self::insert) of a range takes no heap: it makes a run longer.
    pub(crate) fn has_room_for(&self, range: &Range<u64>) -> bool {
        match &self.runs {
            Runs::One(run) => {
                run.count == 0
                    || run.count == 1 && (run.end == range.start || run.start == range.end)
            }
            Runs::Many(runs) => {
                let before = runs.range(..range.start).next_back();
                before.is_some_and(|(_, run)| run.end == range.start && run.count == 1)
            }
        }
    }

    /// Counts one more reference to every slot of a range, all of which have one.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let end = self.add_some(range.clone(), usize::MAX);
        debug_assert_eq!(end, range.end);
    }

    /// Counts one more reference to every slot of a range, as [`add`](Self::add) does, until `most`
    /// runs have one more. Returns where the rest of the range begins.
    pub(crate) fn add_some(&mut self, range: Range<u64>, most: usize) -> u64 {
        if range.is_empty() {
            return range.end;
        }
        if let Some(run) = self.whole(&range) {
            run.count += 1;
            return range.end;
        }
        let runs = self.many();
        split(runs, range.start);
        split(runs, range.end);
        let mut next = range.start;
        for (&start, rest) in runs.range_mut(range.clone()).take(most) {
            debug_assert_eq!(start, next, "a slot of {range:?} has no reference");
            rest.count += 1;
            next = rest.end;
        }
        merge(runs, range.start);
        merge(runs, next);
        merge(runs, range.end);
        self.lessen();
        next
    }

    /// Takes one reference from every slot of the range, all of which have one; `unused` gets each
    /// part that has none left.
    pub(crate) fn sub(&mut self, range: Range<u64>, unused: impl FnMut(Range<u64>)) {
        let end = self.sub_some(range.clone(), usize::MAX, unused);
        debug_assert_eq!(end, range.end);
    }

    /// Takes one reference from every slot of the range, as [`sub`](Self::sub) does, until `most`
    /// parts, at least one, have none left, or, where there is such a bound, [`LOOKS`] runs have
    /// one less. Returns where the rest of the range begins.
    pub(crate) fn sub_some(
        &mut self,
        range: Range<u64>,
        most: usize,
        mut unused: impl FnMut(Range<u64>),
    ) -> u64 {
        if range.is_empty() {
            return range.end;
        }
        if let Some(run) = self.whole(&range) {
            run.count -= 1;
            if run.count == 0 {
                unused(range.clone());
            }
            return range.end;
        }
        let runs = self.many();
        split(runs, range.start);
        split(runs, range.end);
        let (mut at, mut parts, mut looks) = (range.start, 0, 0);
        while parts < most && (looks < LOOKS || most == usize::MAX) {
            let Some((&start, rest)) = runs.range_mut(at..range.end).next() else { break };
            at = rest.end;
            looks += 1;
            rest.count -= 1;
            if rest.count == 0 {
                runs.remove(&start);
                unused(start..at);
                parts += 1;
            }
        }
        merge(runs, range.start);
        merge(runs, at);
        merge(runs, range.end);
        self.lessen();
        at
    }

    /// Heap bytes that [`add`](Self::add) of a range may need.
    pub(crate) fn add_bytes(&self, range: &Range<u64>) -> usize {
        match &self.runs {
            Runs::One(run) if run.start == range.start && run.end == range.end => 0,
            Runs::One(_) => 4 * NODE_BYTES,
            Runs::Many(runs) => change_bytes(runs.len()),
        }
    }

    /// How many runs there are; none where there is one, which every change changes as a whole.
    pub(crate) fn len(&self) -> usize {
        match &self.runs {
            Runs::One(_) => 0,
            Runs::Many(runs) => runs.len(),
        }
    }

    /// The end of a range's first runs, as many as are `left`, which becomes what is left then; at
    /// least one.
    pub(crate) fn few(&self, range: Range<u64>, left: &mut usize) -> u64 {
        if self.len() <= *left {
            *left -= self.len();
            return range.end;
        }
        let last = self.runs_in(range.clone()).nth((*left).max(1) - 1);
        *left = 0;
        last.map_or(range.end, |(run, _)| run.end.min(range.end))
    }

    /// Whether no slot has a reference.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.runs, Runs::One(Run { count: 0, .. }))
    }

    /// Whether the range's slots are all that have references, each as many as the others: to count
    /// one reference more or less takes no heap.
    pub(crate) fn is_whole(&self, range: &Range<u64>) -> bool {
        matches!(&self.runs, Runs::One(run) if run.count != 0 && run.start == range.start && run.end == range.end)
    }

    /// Whether it is plain that every slot of the range has two references at least.
    pub(crate) fn is_shared(&self, range: &Range<u64>) -> bool {
        matches!(&self.runs, Runs::One(run) if run.count > 1 && run.start <= range.start && range.end <= run.end)
    }

    /// Whether every slot of the range has exactly one reference.
    #[inline]
    pub(crate) fn is_exclusive(&self, range: Range<u64>) -> bool {
        let run = match &self.runs {
            Runs::One(run) => *run,
            Runs::Many(_) => match self.runs_in(range.clone()).next() {
                Some((run, count)) => Run { count, start: run.start, end: run.end },
                None => return false,
            },
        };
        run.start <= range.start && range.end <= run.end && run.count == 1
    }

    /// Whether a range has no more runs than `most`.
    pub(crate) fn has_few_runs(&self, range: &Range<u64>, most: usize) -> bool {
        self.runs_in(range.clone()).take(most + 1).count() <= most
    }

    /// Whether no slot of the range has a reference.
    pub(crate) fn is_unused(&self, range: Range<u64>) -> bool {
        self.runs_in(range).next().is_none()
    }

    /// What lies before, between and behind the runs from a slot on, in order: slots without a
    /// reference, up to the last there can be. A run around `from` is passed over.
    pub(crate) fn gaps(&self, from: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        const LAST: u64 = u64::MAX >> 1;
        let starts = core::iter::once(from).chain(self.runs_in(from..LAST).map(|(run, _)| run.end));
        let ends = self.runs_in(from..LAST).map(|(run, _)| run.start).chain(core::iter::once(LAST));
        starts.zip(ends).map(|(start, end)| start..end).filter(|gap| !gap.is_empty())
    }

    /// Runs of slots with their counts, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        self.runs_in(0..u64::MAX)
    }

    /// The runs that have slots of a range, whole, in order.
    pub(crate) fn runs_in(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        let (one, many) = match &self.runs {
            Runs::One(run) => {
                (Some((run.start..run.end, run.count)).filter(|run| run.1 != 0), None)
            }
            Runs::Many(runs) => (None, Some(runs)),
        };
        let many = many.into_iter().flat_map({
            let range = range.clone();
            move |runs| {
                let around = runs.range(..range.start).next_back();
                around
                    .into_iter()
                    .chain(runs.range(range.clone()))
                    .map(|(&start, r)| (start..r.end, r.count))
            }
        });
        let meets = move |run: &Range<u64>| run.start < range.end && range.start < run.end;
        one.into_iter().chain(many).filter(move |(run, _)| meets(run))
    }

    /// The only run, if it is just the range.
    fn whole(&mut self, range: &Range<u64>) -> Option<&mut Run> {
        let is_whole = self.is_whole(range);
        match &mut self.runs {
            Runs::One(run) if is_whole => Some(run),
            _ => None,
        }
    }

    /// The runs as a tree. [`lessen`](Self::lessen) follows.
    fn many(&mut self) -> &mut BTreeMap<u64, Rest> {
        if let Runs::One(run) = self.runs {
            #[cfg(test)]
            tests::TREES.set(tests::TREES.get() + 1);
            let mut runs = BTreeMap::new();
            if run.count != 0 {
                runs.insert(run.start, Rest { end: run.end, count: run.count });
            }
            self.runs = Runs::Many(runs);
        }
        match &mut self.runs {
            Runs::Many(runs) => runs,
            Runs::One(_) => unreachable!("it is a tree by now"),
        }
    }

    /// One run, or none, needs no tree.
    fn lessen(&mut self) {
        if let Runs::Many(runs) = &self.runs {
            if runs.len() < 2 {
                let first = runs.first_key_value();
                let run =
                    first.map(|(&start, rest)| Run { count: rest.count, start, end: rest.end });
                self.runs = run.map_or(Cover::new().runs, Runs::One);
            }
        }
    }
}

/// The last run that starts before a boundary.
fn run_before(runs: &mut BTreeMap<u64, Rest>, at: u64) -> Option<&mut Rest> {
    runs.range_mut(..at).next_back().map(|(_, run)| run)
}

/// Makes two of a run that a boundary lies in.
fn split(runs: &mut BTreeMap<u64, Rest>, at: u64) {
    if let Some(run) = run_before(runs, at).filter(|run| run.end > at) {
        let tail = Rest { ..*run };
        run.end = at;
        runs.insert(at, tail);
    }
}

/// Makes one of two runs of one count that meet at a boundary.
fn merge(runs: &mut BTreeMap<u64, Rest>, at: u64) {
    let Some(&Rest { end, count }) = runs.get(&at) else { return };
    if let Some(run) = run_before(runs, at).filter(|run| run.end == at && run.count == count) {
        run.end = end;
        runs.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    std::thread_local! {
        /// Trees made.
        pub(super) static TREES: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    }

    fn counts(c: &Cover) -> Vec<(Range<u64>, u32)> {
        c.runs().collect()
    }

    #[test]
    fn one_run_of_two_references_is_plainly_shared() {
        let mut c = Cover::new();
        assert!(!c.is_shared(&(0..1)));
        c.insert(10..20);
        assert!(!c.is_shared(&(10..20)), "one reference is not shared");
        c.add(10..20);
        assert!(c.is_shared(&(10..20)) && c.is_shared(&(11..19)));
        assert!(!c.is_shared(&(9..20)) && !c.is_shared(&(10..21)));
    }

    #[test]
    fn overlapping_references_are_counted_by_range() {
        let mut c = Cover::new();
        c.insert(0..20);
        c.add(10..20);
        c.insert(20..30);
        assert_eq!(counts(&c), [(0..10, 1), (10..20, 2), (20..30, 1)]);
        assert!(c.is_exclusive(2..10) && !c.is_exclusive(2..11) && c.is_unused(30..40));
        assert!(!c.is_shared(&(10..20)), "it isn't plain where there are several runs");
        let mut gone = Vec::new();
        c.sub(5..25, |r| gone.push(r));
        assert_eq!(gone, [5..10, 20..25]);
        assert_eq!(c.gaps(0).collect::<Vec<_>>(), [5..10, 20..25, 30..u64::MAX >> 1]);
        assert_eq!(counts(&c), [(0..5, 1), (10..20, 1), (25..30, 1)]);
    }

    #[test]
    fn neighbours_of_one_count_join() {
        let mut c = Cover::new();
        c.insert(0..4);
        c.insert(4..8);
        assert_eq!(counts(&c), [(0..8, 1)]);
        c.add(0..8);
        c.sub(0..3, |_| panic!("still referenced"));
        assert_eq!(counts(&c), [(0..3, 1), (3..8, 2)]);
    }

    /// Runs of equal counts in an array.
    fn runs_of(array: &[u32; 40]) -> Vec<(Range<u64>, u32)> {
        let mut runs: Vec<(Range<u64>, u32)> = Vec::new();
        for (at, &count) in (0..).zip(array) {
            match runs.last_mut() {
                Some((run, of)) if *of == count => run.end = at + 1,
                _ => runs.push((at..at + 1, count)),
            }
        }
        runs
    }

    /// Every question about a range has the array's answer.
    fn assert_agrees(c: &Cover, array: &[u32; 40], range: Range<u64>) {
        let all = runs_of(array);
        let used: Vec<_> = all.iter().filter(|run| run.1 != 0).cloned().collect();
        assert_eq!(counts(c), used);
        let slots = &array[range.start as usize..range.end as usize];
        assert_eq!(c.is_empty(), used.is_empty());
        assert_eq!(c.is_whole(&range), used.len() == 1 && used[0].0 == range);
        assert_eq!(c.is_exclusive(range.clone()), slots.iter().all(|&count| count == 1));
        assert_eq!(c.is_unused(range.clone()), slots.iter().all(|&count| count == 0));
        let meets = |run: &Range<u64>| run.start < range.end && range.start < run.end;
        let met: Vec<_> = used.iter().filter(|run| meets(&run.0)).cloned().collect();
        assert_eq!(c.runs_in(range.clone()).collect::<Vec<_>>(), met);
        let mut gaps: Vec<_> =
            all.iter().filter(|run| run.1 == 0).map(|run| run.0.clone()).collect();
        gaps.retain(|gap| gap.end > range.start && gap.end != 40);
        gaps.iter_mut().for_each(|gap| gap.start = gap.start.max(range.start));
        let end = used.last().map_or(0, |run| run.0.end).max(range.start);
        gaps.push(end..u64::MAX >> 1);
        assert_eq!(c.gaps(range.start).collect::<Vec<_>>(), gaps);
    }

    /// Trees that the work makes.
    fn trees(work: impl FnOnce()) -> usize {
        let before = TREES.get();
        work();
        TREES.get() - before
    }

    /// Adds a first reference, and sees that it takes heap when it was to be expected.
    fn insert_as_foretold(c: &mut Cover, array: &[u32; 40], range: Range<u64>) {
        let used: Vec<_> = runs_of(array).into_iter().filter(|run| run.1 != 0).collect();
        let follows = used.iter().any(|(run, count)| run.end == range.start && *count == 1);
        let has_room = match &used[..] {
            [] => true,
            [(run, count)] => follows || run.start == range.end && *count == 1,
            _ => follows,
        };
        assert_eq!(c.has_room_for(&range), has_room);
        assert_eq!(trees(|| c.insert(range)), usize::from(!has_room && used.len() == 1));
    }

    #[test]
    fn a_change_needs_two_nodes_on_each_level() {
        let mut c = Cover::new();
        c.insert(0..2000);
        assert_eq!((c.add_bytes(&(0..2000)), c.add_bytes(&(0..1999))), (0, 4 * NODE_BYTES));
        assert_eq!(
            (c.add_bytes(&(1..2000)), c.add_bytes(&(1..3))),
            (4 * NODE_BYTES, 4 * NODE_BYTES)
        );
        let mut at = 0;
        for (runs, levels) in [(2, 2), (4, 2), (6, 3), (34, 3), (36, 4), (216, 5)] {
            while counts(&c).len() < runs && at < 1000 {
                c.add(at..at + 1);
                at += 2;
            }
            assert_eq!((counts(&c).len(), c.add_bytes(&(0..1))), (runs, 2 * levels * NODE_BYTES));
        }
        assert_eq!(CHANGE_BYTES, 2 * 12 * NODE_BYTES);
    }

    #[test]
    fn an_empty_range_changes_nothing() {
        let mut c = Cover::new();
        c.insert(3..3);
        assert!(c.is_empty() && counts(&c).is_empty());
        c.insert(2..6);
        c.add(2..4);
        let before = counts(&c);
        assert_eq!(trees(|| c.insert(9..9)), 0);
        c.add(3..3);
        assert_eq!(c.sub_some(3..3, 1, |_| panic!("nothing is unused")), 3);
        assert_eq!(counts(&c), before);
    }

    #[test]
    fn random_ranges_agree_with_an_array() {
        let mut c = Cover::new();
        let mut array = [0u32; 40];
        let mut held: Vec<Range<u64>> = Vec::new();
        let mut seed = 7u64;
        for step in 0..20_000 {
            if step % 40 == 0 {
                // Small covers are the common ones.
                (c, array) = (Cover::new(), [0; 40]);
                held.clear();
            }
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (a, b) = ((seed >> 33) % 40, (seed >> 43) % 41);
            if seed >> 60 < 8 && a < b {
                // What has references gets one more, what has none its first.
                let mut at = a;
                while at < b {
                    let has_any = |i: u64| array[i as usize] != 0;
                    let end = (at..b).find(|&i| has_any(i) != has_any(at)).unwrap_or(b);
                    if has_any(at) {
                        let takes_tree = counts(&c).len() == 1 && !c.is_whole(&(at..end));
                        assert_eq!(trees(|| c.add(at..end)), usize::from(takes_tree));
                    } else {
                        insert_as_foretold(&mut c, &array, at..end);
                    }
                    (at..end).for_each(|i| array[i as usize] += 1);
                    at = end;
                }
                held.push(a..b);
            } else if !held.is_empty() {
                let r = held.swap_remove((seed >> 20) as usize % held.len());
                let mut gone = Vec::new();
                let (mut at, most) = (r.start, (seed >> 50) as usize % 3 + 1);
                while at < r.end {
                    let (takes_tree, mut parts) =
                        (counts(&c).len() == 1 && !c.is_whole(&(at..r.end)), 0);
                    let mut unused = |part: Range<u64>| {
                        parts += 1;
                        gone.extend(part);
                    };
                    // Where `LOOKS` runs end.
                    let ends: Vec<u64> = c.runs_in(at..r.end).map(|(run, _)| run.end).collect();
                    let made = trees(|| at = c.sub_some(at..r.end, most, &mut unused));
                    let ends_there = at == r.end || ends.get(LOOKS - 1) == Some(&at);
                    assert!(made == usize::from(takes_tree) && (parts == most || ends_there));
                    assert!(parts <= most);
                }
                r.clone().for_each(|i| array[i as usize] -= 1);
                assert!(r.filter(|&i| array[i as usize] == 0).eq(gone));
            }
            if a < b {
                assert_agrees(&c, &array, a..b);
            }
        }
    }
}
