//! Numbers by page index, sparse: an amap's anons, an object's pages.
//!
//! ```text
//!   index / 64 -> leaf of 64 numbers      0 = empty          (leaves.rs)
//!       0      -> | 7 0 9 ... |
//!       5      -> | 0 0 3 ... |  <- the same leaf may hang in several tables
//! ```
//!
//! Small arrays in an ordered map cost memory by what is used and not by span: the hybrid that the
//! paper names as future work for amaps (1999, section 5.3). A neighbour is an array access, and a
//! walk over a range skips what is empty.
//!
//! Copying a table shares its leaves: the copy of an amap with 16,384 anons is 256 pointers, and
//! what the numbers count is the leaves that hold them, not the tables. A leaf is copied when one
//! of its tables is about to change it; then one more holder is counted for each of its numbers
//! ([`Holders`]).
//!
//! The road not taken is a radix tree: a sparse terabyte would pay for a path of inner nodes at
//! every touched page.
//!
//! A number may be put where none is by several threads at once ([`Found::install`]), while no
//! thread changes the table otherwise: of those that want one place, one gets it. All else takes
//! the table alone.
//!
//! I1: a leaf in the map has at least one number, and `used` names them, where no thread is just
//! about to install one. I2: a leaf that hangs in several tables doesn't change. Only a table that
//! holds it can share it, so one that finds itself the only holder, under its own lock, stays so.

mod leaf;
mod leaves;

use core::num::NonZeroU32;
use core::ops::{BitAndAssign, Range};

use crate::counted::Ordering::{Acquire, Relaxed, Release};
use crate::counted::{fence, Arc, AtomicU32};
use leaf::Leaf;
use leaves::{Branch, Leaves, BRANCH_BYTES, PLACE_BYTES};

/// Numbers in a leaf. The model's address spaces are a few dozen pages long, and must cross leaves.
pub(crate) const LEAF: u64 = if cfg!(feature = "__small-leaves") { 4 } else { 64 };

/// Heap bytes of a leaf and of its place, where no other lies near.
pub(crate) const ALONE_BYTES: usize = size_of::<Leaf>() + 16 + BRANCH_BYTES;

/// Numbers that take as long as a leaf: see [`Slots::few`].
const LEAF_COST: usize = if cfg!(feature = "__small-leaves") { 0 } else { 3 };

#[derive(Default)]
pub(crate) struct Slots {
    leaves: Leaves,
}

/// The place of an index in a table.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    branch: Option<&'a Branch>,
    leaf: Option<&'a Arc<Leaf>>,
    index: u64,
}

/// A run of consecutive indices in one leaf, or where none is.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    leaf: Option<&'a [AtomicU32]>,
    len: usize,
}

impl Part<'_> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its places from one on; none where no leaf is.
    #[inline]
    pub(crate) fn rest(&self, from: usize) -> &[AtomicU32] {
        self.leaf.map_or(&[], |leaf| &leaf[from..])
    }

    /// The number at a place of the run, as it is at this moment.
    #[inline]
    pub(crate) fn number(&self, at: usize) -> Option<NonZeroU32> {
        NonZeroU32::new(self.leaf?[at].load(Acquire))
    }
}

/// What counts the leaves that hold a number.
pub(crate) trait Holders {
    /// One more leaf holds the number.
    fn reference(&mut self, number: NonZeroU32);
    /// One leaf less holds each of some numbers, those of a leaf at most.
    fn release_many(&mut self, numbers: impl Iterator<Item = NonZeroU32>);
}

/// Whether a shared leaf may be copied to take a part of it out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heap {
    /// The copy's bytes have been reserved.
    Reserved,
    /// They have not: a shared leaf that is only partly in the range stays as it is.
    Unreserved,
}

/// Whether nothing is left where a table was to be emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Emptied {
    All,
    /// But for parts of shared leaves.
    NotAll,
}

impl BitAndAssign for Emptied {
    fn bitand_assign(&mut self, other: Emptied) {
        if other == Emptied::NotAll {
            *self = Emptied::NotAll;
        }
    }
}

/// Heap bytes of a leaf.
pub(crate) const LEAF_BYTES: usize = size_of::<Leaf>() + 32;
/// Heap bytes that one `set` may need: a leaf and its place.
pub(crate) const SET_BYTES: usize = LEAF_BYTES + PLACE_BYTES;
/// Heap bytes that setting a cluster's consecutive indices may need.
pub(crate) const CLUSTER_BYTES: usize = (crate::io::CLUSTER / LEAF as usize + 1) * SET_BYTES;

/// Heap bytes that [`Slots::put_all`] at so many consecutive indices may need.
pub(crate) const fn put_bytes(indices: u64) -> usize {
    (indices / LEAF + 2) as usize * (SET_BYTES + LEAF_BYTES)
}

impl Found<'_> {
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// The number there.
    #[inline]
    pub(crate) fn number(&self) -> Option<NonZeroU32> {
        self.leaf?.number((self.index % LEAF) as usize)
    }

    /// Whether the leaf around it hangs in another table too.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.leaf.is_some_and(has_others)
    }

    /// Whether a number can be put there beside other threads that do the same.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.branch.is_some() && !self.is_shared()
    }

    /// The place so many indices behind this one, in its leaf.
    pub(crate) fn behind_by(&self, indices: usize) -> Self {
        let index = self.index + indices as u64;
        debug_assert_eq!(index / LEAF, self.index / LEAF, "it lies in another leaf");
        Found { index, ..*self }
    }

    /// The places behind this one, up to the end of its leaf.
    pub(crate) fn behind(&self) -> impl Iterator<Item = Self> + '_ {
        (self.index + 1..(self.index / LEAF + 1) * LEAF).map(|index| Found { index, ..*self })
    }

    /// Puts a number where none is, beside other threads that do the same. Says no where that is
    /// not open, or another thread was first: then nothing has changed.
    #[inline]
    pub(crate) fn install(&self, value: NonZeroU32) -> bool {
        self.install_behind(value).is_some()
    }

    /// Like [`install`](Self::install); returns whether the index before may have a number, or None
    /// where nothing has changed.
    #[inline(always)]
    pub(crate) fn install_behind(&self, value: NonZeroU32) -> Option<bool> {
        let branch = self.branch?;
        let leaf = match self.leaf {
            Some(leaf) => leaf,
            None => branch.grow(self.index / LEAF),
        };
        // A thread that finds the number finds what it names.
        let at = self.index % LEAF;
        let slot = &leaf.slots[at as usize];
        slot.compare_exchange(0, value.get(), Release, Relaxed).ok()?;
        leaf.used.fetch_or(1 << at, Relaxed);
        Some(at == 0 || leaf.slots[at as usize - 1].load(Relaxed) != 0)
    }

    /// How many indices right before this one have numbers, as far as its leaf goes; where that
    /// begins with this one, the leaf before it.
    pub(crate) fn run_before(&self) -> usize {
        let at = self.index % LEAF;
        let before = || self.branch?.leaf_before(self.index / LEAF);
        let (leaf, end) = if at == 0 { (before(), LEAF) } else { (self.leaf, at) };
        leaf.map_or(0, |leaf| (leaf.used.load(Relaxed) << (64 - end)).leading_ones() as usize)
    }

    /// Puts a number in place of another, beside threads that read the table. The leaf is
    /// this table's own, and a thread that replaces `old` holds its lock; so this says yes.
    #[inline]
    pub(crate) fn replace(&self, old: NonZeroU32, new: NonZeroU32) -> bool {
        let slot = |leaf: &'_ Arc<Leaf>| {
            let slot = &leaf.slots[(self.index % LEAF) as usize];
            // A thread that finds the number finds what it names.
            slot.compare_exchange(old.get(), new.get(), Release, Relaxed).is_ok()
        };
        self.leaf.is_some_and(slot)
    }
}

/// Whether other tables hold the leaf. Where none does, all that former holders did with what its
/// numbers name, up to their letting go, has happened before: a thread that finds itself alone may
/// write there.
#[inline]
fn has_others(leaf: &Arc<Leaf>) -> bool {
    if Arc::strong_count(leaf) > 1 {
        return true;
    }
    fence(Acquire);
    false
}

/// Drops one table's hold on a leaf; the last holder's drop releases its numbers.
fn let_go(mut leaf: Arc<Leaf>, holders: &mut impl Holders) {
    let mut release = |leaf: &Leaf| {
        holders.release_many(leaf.numbers(0..LEAF as usize).map(|(_, number)| number))
    };
    // Mostly there is one holder, and the leaf need not be moved to be read.
    match Arc::get_mut(&mut leaf) {
        Some(leaf) => release(leaf),
        None => Arc::into_inner(leaf).iter().for_each(release),
    }
}

/// The part of the leaf at `key` that lies in a range.
fn part_of(key: u64, range: &Range<u64>) -> Range<usize> {
    let base = key * LEAF;
    let from = range.start.saturating_sub(base).min(LEAF) as usize;
    let to = range.end.saturating_sub(base).min(LEAF) as usize;
    from..to.max(from)
}

fn keys_of(range: &Range<u64>) -> Range<u64> {
    let first = range.start / LEAF;
    first..range.end.div_ceil(LEAF).max(first)
}

impl Slots {
    pub(crate) const fn new() -> Slots {
        Slots { leaves: Leaves::new() }
    }

    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<NonZeroU32> {
        self.leaves.get(index / LEAF)?.number((index % LEAF) as usize)
    }

    /// Whether the table has this number for an index.
    #[inline]
    pub(crate) fn has(&self, index: u64, number: u32) -> bool {
        self.get(index).is_some_and(|now| now.get() == number)
    }

    /// What the table has for an index.
    #[inline]
    pub(crate) fn find(&self, index: u64) -> Found<'_> {
        let branch = self.leaves.branch(index / LEAF);
        Found { branch, leaf: branch.and_then(|branch| branch.leaf(index / LEAF)), index }
    }

    /// Whether the leaf around an index hangs in another table too.
    #[inline]
    pub(crate) fn is_shared(&self, index: u64) -> bool {
        self.leaves.get(index / LEAF).is_some_and(has_others)
    }

    /// Makes the table ready for a number at an index ([`Found::is_open`]): the leaf around it, if
    /// there is one, becomes the table's own.
    pub(crate) fn open(&mut self, index: u64, holders: &mut impl Holders) {
        self.leaves.branch_or_new(index / LEAF);
        self.unshare(index, holders);
    }

    /// Gives the table a leaf of its own around an index.
    pub(crate) fn unshare(&mut self, index: u64, holders: &mut impl Holders) {
        let Some(leaf) = self.leaves.get_mut(index / LEAF) else { return };
        if Arc::get_mut(leaf).is_none() {
            leaf.numbers(0..LEAF as usize).for_each(|(_, number)| holders.reference(number));
            let copy = Arc::new(leaf.copy());
            let_go(core::mem::replace(leaf, copy), holders);
        }
    }

    /// Puts a number at an index, whose leaf is this table's own, and returns the one that was
    /// there.
    #[inline]
    pub(crate) fn set(&mut self, index: u64, value: NonZeroU32) -> Option<NonZeroU32> {
        let leaf = self.leaves.get_or_new(index / LEAF);
        let Some(leaf) = leaf.and_then(Arc::get_mut) else {
            unreachable!("a shared leaf would have been changed")
        };
        leaf.put((index % LEAF) as usize, value.get())
    }

    /// Puts numbers, or none where that is 0, at consecutive indices from `first` on, in leaves of
    /// the table's own, and releases those that were there.
    pub(crate) fn put_all(
        &mut self,
        first: u64,
        values: impl ExactSizeIterator<Item = u32>,
        holders: &mut impl Holders,
    ) {
        let mut values = values;
        let mut at = first;
        while values.len() != 0 {
            let key = at / LEAF;
            self.unshare(at, holders);
            let from = (at % LEAF) as usize;
            let to = (from + values.len()).min(LEAF as usize);
            let leaf = self.leaves.get_or_new(key);
            let Some(leaf) = leaf.and_then(Arc::get_mut) else {
                unreachable!("a shared leaf would have been changed")
            };
            if leaf.is_empty_in(from..to) {
                leaf.fill(from..to, &mut values);
            } else {
                for (place, value) in (from..to).zip(&mut values) {
                    if let Some(old) = leaf.put(place, value) {
                        holders.release_many(core::iter::once(old));
                    }
                }
            }
            if leaf.is_empty() {
                self.leaves.remove(key);
            }
            at += (to - from) as u64;
        }
    }

    /// Whether an index has a number, and no other has one in its leaf: which came with it, and
    /// goes with it.
    pub(crate) fn is_leafs_only(&self, index: u64) -> bool {
        let leaf = self.leaves.get(index / LEAF);
        leaf.is_some_and(|leaf| leaf.used.load(Relaxed) == 1 << (index % LEAF))
    }

    /// Empties an index, whose leaf is this table's own, and returns what was there.
    pub(crate) fn clear(&mut self, index: u64) -> Option<NonZeroU32> {
        let leaf = self.leaves.get_mut(index / LEAF)?;
        let Some(leaf) = Arc::get_mut(leaf) else {
            unreachable!("a shared leaf would have been changed")
        };
        let old = leaf.put((index % LEAF) as usize, 0)?;
        if leaf.is_empty() {
            self.leaves.remove(index / LEAF);
        }
        Some(old)
    }

    /// What is set in a range, in order.
    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, NonZeroU32)> + '_ {
        self.leaves.range(keys_of(&range)).flat_map(move |(key, leaf)| {
            let part = part_of(key, &range);
            leaf.numbers(part).map(move |(i, number)| (key * LEAF + i as u64, number))
        })
    }

    /// How many numbers a range has. Cost: by leaves.
    pub(crate) fn count(&self, range: Range<u64>) -> usize {
        let leaves = self.leaves.range(keys_of(&range));
        let whole = range.start.div_ceil(LEAF)..range.end / LEAF;
        let count = |(key, leaf): (u64, &Arc<Leaf>)| match whole.contains(&key) {
            true => leaf.used.load(Relaxed).count_ones() as usize,
            false => leaf.count(part_of(key, &range)),
        };
        leaves.map(count).sum()
    }

    /// The end of a range's first leaves that take as long to let go of as the numbers `left`,
    /// which becomes what is left then; the range's start, if the first takes longer. A leaf takes
    /// as long as some numbers, and nothing else if other tables hold it as well. Cost: by leaves.
    pub(crate) fn few(&self, range: Range<u64>, left: &mut usize) -> u64 {
        let end = self.leaves.range(keys_of(&range)).try_for_each(|(key, leaf)| {
            let is_shared = Arc::strong_count(leaf) > 1;
            let numbers = if is_shared { 1 } else { leaf.used.load(Relaxed).count_ones() as usize };
            *left = left.checked_sub(numbers + LEAF_COST).ok_or(range.start.max(key * LEAF))?;
            Ok(())
        });
        end.err().unwrap_or(range.end)
    }

    /// Whether a range has no more leaves than `most`.
    pub(crate) fn has_few_leaves(&self, range: &Range<u64>, most: usize) -> bool {
        self.leaves.range(keys_of(range)).take(most + 1).count() <= most
    }

    /// Marks the leaf around an index, which has a number, beside threads that read the table.
    #[inline]
    pub(crate) fn mark(&self, index: u64) {
        if let Some(branch) = self.leaves.branch(index / LEAF) {
            branch.mark(index / LEAF);
        }
    }

    /// Whether the leaf around an index is marked.
    pub(crate) fn is_marked(&self, index: u64) -> bool {
        self.leaves.branch(index / LEAF).is_some_and(|branch| branch.is_marked(index / LEAF))
    }

    /// What is set in the marked leaves of a range, in order.
    pub(crate) fn marked(&self, range: Range<u64>) -> impl Iterator<Item = (u64, NonZeroU32)> + '_ {
        self.leaves.marked(keys_of(&range)).flat_map(move |(key, leaf)| {
            let part = part_of(key, &range);
            leaf.numbers(part).map(move |(i, number)| (key * LEAF + i as u64, number))
        })
    }

    /// Takes the marks of leaves away of which all numbers lie in a range and are as asked for.
    pub(crate) fn unmark_if(&mut self, range: Range<u64>, mut all: impl FnMut(NonZeroU32) -> bool) {
        let mut keys = keys_of(&range);
        loop {
            let Some((key, leaf)) = self.leaves.marked(keys.clone()).next() else { return };
            keys.start = key + 1;
            let is_whole = leaf.lies_in(part_of(key, &range));
            if is_whole && leaf.numbers(0..LEAF as usize).all(|(_, number)| all(number)) {
                self.leaves.unmark(key);
            }
        }
    }

    /// Empties a range. Numbers that no leaf holds any more are released.
    pub(crate) fn take_range(
        &mut self,
        range: Range<u64>,
        heap: Heap,
        holders: &mut impl Holders,
    ) -> Emptied {
        let mut keys = keys_of(&range);
        let mut emptied = Emptied::All;
        while let Some(key) = self.leaves.first(keys.clone()) {
            keys.start = key + 1;
            let part = part_of(key, &range);
            let Some(leaf) = self.leaves.get_mut(key) else { continue };
            if leaf.lies_in(part.clone()) {
                if let Some(leaf) = self.leaves.remove(key) {
                    let_go(leaf, holders);
                }
                continue;
            }
            if Arc::get_mut(leaf).is_none() {
                if leaf.is_empty_in(part.clone()) {
                    continue;
                }
                if heap == Heap::Unreserved {
                    emptied = Emptied::NotAll;
                    continue;
                }
                self.unshare(key * LEAF, holders);
            }
            let Some(leaf) = self.leaves.get_mut(key).and_then(Arc::get_mut) else { continue };
            holders.release_many(leaf.clear(part));
        }
        emptied
    }

    /// Empties the table.
    pub(crate) fn take_all(&mut self, holders: &mut impl Holders) {
        self.leaves.drain(|leaf| let_go(leaf, holders));
    }

    /// How many leaves there are at most. Cost: O(1).
    pub(crate) fn most_leaves(&self) -> usize {
        self.leaves.most()
    }

    /// Puts the numbers of a range, but for some, at the same indices of a table that has none
    /// there: leaves that lie in the range and have none of those are shared, others copied.
    pub(crate) fn share_into(
        &self,
        copy: &mut Slots,
        range: Range<u64>,
        but: impl Iterator<Item = u64> + Clone,
        holders: &mut impl Holders,
    ) {
        for (key, leaf) in self.leaves.range(keys_of(&range)) {
            let part = part_of(key, &range);
            if leaf.lies_in(part.clone()) && !but.clone().any(|index| index / LEAF == key) {
                copy.leaves.insert(key, leaf.clone());
                continue;
            }
            for (i, number) in leaf.numbers(part) {
                let index = key * LEAF + i as u64;
                if !but.clone().any(|left_out| left_out == index) {
                    holders.reference(number);
                    copy.set(index, number);
                }
            }
        }
    }

    /// The numbers from `start` on, as many as `out` holds; 0 where nothing is set. Says whether
    /// any is.
    #[inline]
    pub(crate) fn window(&self, start: u64, out: &mut [u32]) -> bool {
        let (mut at, mut out, mut any) = (start, out, 0);
        while !out.is_empty() {
            let from = (at % LEAF) as usize;
            let (here, rest) = out.split_at_mut(out.len().min(LEAF as usize - from));
            match self.leaves.get(at / LEAF) {
                Some(leaf) => {
                    let numbers = leaf.slots[from..].iter().map(|slot| slot.load(Acquire));
                    here.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
                }
                None => here.fill(0),
            }
            any |= here.iter().fold(0, |any, n| any | n);
            at += here.len() as u64;
            out = rest;
        }
        any != 0
    }

    /// The numbers from an index on, up to `end` or the end of the leaf around it.
    #[inline]
    pub(crate) fn part(&self, start: u64, end: u64) -> Part<'_> {
        let from = (start % LEAF) as usize;
        let to = (end - start + from as u64).min(LEAF) as usize;
        Part {
            leaf: self.leaves.get(start / LEAF).map(|leaf| &leaf.slots[from..to]),
            len: to - from,
        }
    }

    /// Whether any leaf of the range hangs in another table too.
    pub(crate) fn any_shared(&self, range: Range<u64>) -> bool {
        self.leaves.range(keys_of(&range)).any(|(_, leaf)| has_others(leaf))
    }

    /// Heap bytes for [`share_into`](Self::share_into), at most.
    pub(crate) fn share_bytes(&self, range: Range<u64>) -> usize {
        self.leaves.copy_bytes(keys_of(&range)) + 2 * LEAF_BYTES
    }

    /// How many leaves have to be copied, at most, to take the numbers of a range out: those at its
    /// ends that other tables have too, and of which a part stays.
    pub(crate) fn leaves_cut(&self, range: Range<u64>) -> usize {
        let keys = keys_of(&range);
        let is_cut = |key: u64| {
            let part = part_of(key, &range);
            self.leaves.get(key).is_some_and(|leaf| has_others(leaf) && !leaf.lies_in(part))
        };
        let last = keys.end.saturating_sub(1);
        usize::from(is_cut(keys.start)) + usize::from(last != keys.start && is_cut(last))
    }

    /// The leaf that holds an index, by address, to tell leaves apart.
    pub(crate) fn leaf_id(&self, index: u64) -> usize {
        self.leaves.get(index / LEAF).map_or(0, |leaf| Arc::as_ptr(leaf) as usize)
    }

    /// What is set in a range, in order, each with the number of tables that hold its leaf; the
    /// first of a leaf with the heap bytes that the leaf and its place take here, shared leaves by
    /// a part for each table.
    pub(crate) fn shares(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (NonZeroU32, usize, usize)> + '_ {
        self.leaves.range(keys_of(&range)).flat_map(move |(key, leaf)| {
            let holders = Arc::strong_count(leaf);
            let first = leaf.used.load(Relaxed).trailing_zeros() as usize;
            let bytes = LEAF_BYTES / holders + self.leaves.place_bytes(key);
            let numbers = leaf.numbers(part_of(key, &range));
            numbers.map(move |(at, number)| (number, holders, if at == first { bytes } else { 0 }))
        })
    }
}

#[cfg(all(test, not(feature = "__small-leaves")))]
mod tests;
