//! Which slots of one device are taken: a bit each, and where a run of free ones lies.
//!
//! Large writes want long runs, so a search starts where the last one ended and takes the first run
//! that is long enough. Where free slots are scattered it takes less rather than look at
//! every word of a large device: the caller holds a spin lock.
//!
//! I1: `used` counts the taken slots that are not bad; a bad slot is taken for ever. I2: bits at
//! `len` and behind are set. I3: a doubtful slot is in no run but one of its own.

use core::ops::Range;

use machine::{NoMemory, Pieces};

/// A run that ends a search among scattered slots: 64 KiB.
const ENOUGH: u32 = 16;
/// Words that a search looks at before [`ENOUGH`] will do.
const PATIENCE: u32 = 1024;

pub(crate) struct Bits {
    taken: Pieces<u64>,
    /// Slots that were part of a transfer that failed as a whole: each is tried alone, and found
    /// good or bad.
    doubtful: Pieces<u64>,
    pub(super) len: u32,
    pub(super) used: u32,
    pub(super) bad: u32,
    /// Those of the bad ones whose contents could not be read.
    pub(super) lost: u32,
    /// Where the next search starts.
    hand: u32,
}

fn bit(at: u32) -> (usize, u64) {
    ((at / 64) as usize, 1 << (at % 64))
}

impl Bits {
    /// `len` free slots.
    pub(super) fn new(len: u32) -> Result<Bits, NoMemory> {
        let words = len.div_ceil(64) as usize;
        let (mut taken, doubtful) = (Pieces::new(words, &0)?, Pieces::new(words, &0)?);
        if !len.is_multiple_of(64) {
            taken[words - 1] = u64::MAX << (len % 64);
        }
        Ok(Bits { taken, doubtful, len, used: 0, bad: 0, lost: 0, hand: 0 })
    }

    /// Heap bytes for so many slots.
    pub(super) const fn bytes(len: u32) -> usize {
        2 * Pieces::<u64>::bytes(len.div_ceil(64) as usize)
    }

    pub(super) fn free_slots(&self) -> u32 {
        self.len - self.used - self.bad
    }

    pub(super) fn is_taken(&self, at: u32) -> bool {
        let (word, mask) = bit(at);
        self.taken[word] & mask != 0
    }

    pub(super) fn is_doubtful(&self, at: u32) -> bool {
        let (word, mask) = bit(at);
        self.doubtful[word] & mask != 0
    }

    /// Takes a run of free slots, `most` at most; as long as can be had without a long search.
    pub(super) fn alloc(&mut self, most: u32) -> Option<Range<u32>> {
        if self.free_slots() == 0 || most == 0 {
            return None;
        }
        let mut best = 0..0;
        let hand = self.hand;
        self.search(hand..self.len, most, &mut best);
        if !is_enough(&best, most) {
            self.search(0..self.len.min(hand + most), most, &mut best);
        }
        let run = if best.is_empty() { self.first_doubtful()? } else { best };
        for at in run.clone() {
            let (word, mask) = bit(at);
            self.taken[word] |= mask;
        }
        self.used += run.end - run.start;
        self.hand = if run.end == self.len { 0 } else { run.end };
        Some(run)
    }

    /// Looks for a run of `most`; `best` becomes the longest that was met.
    fn search(&self, span: Range<u32>, most: u32, best: &mut Range<u32>) {
        let (mut at, mut start, from) = (span.start, span.start, span.start);
        while at < span.end {
            let word = (at / 64) as usize;
            let bits = (self.taken[word] | self.doubtful[word]) >> (at % 64);
            let left = (64 - at % 64).min(span.end - at);
            let free = bits.trailing_zeros().min(left);
            at += free;
            let len = (at - start).min(most);
            if len > best.end - best.start {
                *best = start..start + len;
            }
            if len == most {
                return;
            }
            if free < left {
                if at - from > PATIENCE * 64 && is_enough(best, ENOUGH) {
                    return;
                }
                at += (!(bits >> free)).trailing_zeros().min(left - free);
                start = at;
            }
        }
    }

    fn first_doubtful(&self) -> Option<Range<u32>> {
        let free = self.doubtful.iter().zip(self.taken.iter()).enumerate();
        let (word, bits) =
            free.map(|(i, (doubtful, taken))| (i, doubtful & !taken)).find(|&(_, b)| b != 0)?;
        let at = word as u32 * 64 + bits.trailing_zeros();
        Some(at..at + 1)
    }

    /// Frees a slot.
    pub(crate) fn free(&mut self, at: u32) {
        debug_assert!(self.is_taken(at), "slot {at} is freed twice");
        let (word, mask) = bit(at);
        self.taken[word] &= !mask;
        self.used -= 1;
    }

    /// Takes a slot in use out of use for good.
    pub(crate) fn retire(&mut self, at: u32) {
        debug_assert!(self.is_taken(at), "slot {at} is retired, and free");
        self.used -= 1;
        self.bad += 1;
    }

    /// Retires a slot whose contents can't be read.
    pub(crate) fn lose(&mut self, at: u32) {
        self.retire(at);
        self.lost += 1;
    }

    /// The slot was part of a transfer that failed: it is tried alone the next time.
    pub(super) fn doubt(&mut self, at: u32) {
        let (word, mask) = bit(at);
        self.doubtful[word] |= mask;
    }

    /// The slot has been found good.
    pub(super) fn trust(&mut self, at: u32) {
        let (word, mask) = bit(at);
        self.doubtful[word] &= !mask;
    }
}

fn is_enough(run: &Range<u32>, want: u32) -> bool {
    run.end - run.start >= want
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_one_another_and_wrap() {
        let mut b = Bits::new(300).unwrap();
        assert_eq!(b.alloc(256), Some(0..256));
        assert_eq!(b.alloc(256), Some(256..300));
        assert_eq!((b.alloc(1), b.free_slots()), (None, 0));
        (10..90).for_each(|at| b.free(at));
        assert_eq!(b.alloc(64), Some(10..74));
        assert_eq!(b.alloc(64), Some(74..90));
        assert_eq!((b.used, b.alloc(1)), (300, None));
    }

    #[test]
    fn the_longest_run_is_taken_where_none_is_long_enough() {
        let mut b = Bits::new(1000).unwrap();
        b.alloc(1000).unwrap();
        [3..5, 100..163, 500..510].into_iter().flatten().for_each(|at| b.free(at));
        assert_eq!(b.alloc(256), Some(100..163));
        assert_eq!(b.alloc(256), Some(500..510));
        assert_eq!(b.alloc(256), Some(3..5));
        assert_eq!(b.alloc(256), None);
    }

    #[test]
    fn a_long_search_takes_sixteen() {
        let slots = 4 * 64 * PATIENCE;
        let mut b = Bits::new(slots).unwrap();
        while b.alloc(256).is_some() {}
        (70..86).chain(slots - 300..slots).for_each(|at| b.free(at));
        assert_eq!(b.alloc(256), Some(70..86), "256 free slots at the far end are too far away");
        assert_eq!(b.alloc(256).map(|run| run.len()), Some(256));
    }

    #[test]
    fn a_bad_slot_is_never_given_again() {
        let mut b = Bits::new(8).unwrap();
        b.alloc(8).unwrap();
        b.retire(3);
        assert_eq!(b.lost, 0);
        (0..8).filter(|&at| at != 3).for_each(|at| b.free(at));
        assert_eq!((b.used, b.bad, b.free_slots()), (0, 1, 7));
        assert_eq!((b.alloc(8), b.alloc(8), b.alloc(8)), (Some(4..8), Some(0..3), None));
    }

    #[test]
    fn a_doubtful_slot_is_given_alone_and_last() {
        let mut b = Bits::new(6).unwrap();
        b.doubt(2);
        assert_eq!((b.alloc(6), b.alloc(6)), (Some(3..6), Some(0..2)));
        assert_eq!((b.alloc(6), b.alloc(6)), (Some(2..3), None));
        b.trust(2);
        b.free(2);
        b.free(1);
        assert_eq!(b.alloc(6), Some(1..3));
    }

    #[test]
    fn every_slot_is_given_once_whatever_the_order() {
        let mut b = Bits::new(777).unwrap();
        let mut held = std::vec::Vec::new();
        let mut seed = 1u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if seed >> 62 != 3 {
                held.extend(b.alloc((seed >> 40) as u32 % 64 + 1).into_iter().flatten());
            }
            for _ in 0..((seed >> 33) as usize % 40).min(held.len()) {
                b.free(held.swap_remove((seed >> 20) as usize % held.len()));
            }
            let set: std::collections::BTreeSet<_> = held.iter().collect();
            assert_eq!((set.len(), b.used as usize), (held.len(), held.len()));
            assert!(held.iter().all(|&at| b.is_taken(at)));
        }
    }
}
