//! Shootdown requests between CPUs: each CPU has a mailbox for them ([`Notes`]), which it empties
//! before it uses a translation again.
//!
//! ```text
//!   asker:   lower the tables -> read the space's set of CPUs
//!              -> for each: leave a request (a note) in its mailbox, then read its `uses`
//!                   even: the CPU will find the note in time
//!                   odd:  interrupt the CPU, and wait until `uses` is another number
//!   asked:   uses += 1 (odd) -> is there a note? -- no: use translations -> uses += 1 (even)
//!                                               `-- yes: uses += 1, invalidate, begin anew
//! ```
//! A CPU that runs a kernel's code uses no translation of a program but where it copies to or from
//! the program's memory. So most CPUs that are asked need no interrupt, and no CPU waits for them;
//! and a CPU that must be interrupted acknowledges the request by entering the kernel. Entering and
//! leaving the kernel is what counts `uses`; so is each such copy.
//!
//! Where a table is to be freed that's not enough: a CPU may walk through it ahead of any use, and
//! write accessed bits into it. Then the asker waits until the CPU has emptied its mailbox:
//! [`Left::is_forgotten`].
//!
//! I1: a CPU enters a space's set before it can load a translation of the space, and leaves it
//! after it has invalidated all; an asker reads the set after it has lowered. Then a CPU that isn't
//! in the set has seen the lowered tables, or has invalidated since. I2: `uses` becomes odd before
//! the CPU looks into its mailbox, and a note is left before `uses` is read. Both sides write, then
//! read what the other has written, in one order that all CPUs agree on: so the asker finds `uses`
//! odd or the asked CPU finds the note. I3: notes are taken out before what they say is
//! invalidated, so a CPU that leaves one has lowered before that.
//!
//! `uvm-check/tests/loom/notes.rs` tries all schedules, and breaks each of these laws to see that
//! it is found.
//!
//! Roads not taken: an interrupt for each CPU and its answer, which costs where CPUs of one space
//! mostly wait for each other in the kernel; and to let CPUs find out by the next clock tick (Kumar
//! et al., LATR, ASPLOS 2018), since a program could then use what it has unmapped. The counter of
//! odd and even is that of RCU's extended quiescent states.

use crate::atomic::AtomicU64;
use crate::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::shootdown::Stale;
use crate::{Va, VaRange, PAGE_SHIFT};

/// Ranges that a mailbox holds beside the first; with more in it, everything is invalidated.
const WORDS: usize = 5;
/// Pages in a range that gets a word.
const LONGEST: u64 = (1 << LENGTH) - 1;
const LENGTH: u32 = 6;

/// What `waiting` says that isn't a range, as it has no pages: to look at the words; to invalidate
/// everything.
const MORE: u64 = 1 << LENGTH;
const EVERYTHING: u64 = 2 << LENGTH;

/// One CPU's mailbox, on a line of its own. It may be written by assembly, too: see the constants.
///
/// ```
/// use machine::notes::{Forget, Notes};
/// use machine::shootdown::Stale;
/// use machine::{Va, VaRange};
///
/// let range = VaRange::new(Va(0x1000), Va(0x2000));
/// let of_cpu_1 = Notes::new();
/// // CPU 1 is in the kernel, so no interrupt is needed: it looks before it goes back.
/// assert!(!of_cpu_1.leave(Some(&[Stale { space: 7, range }])).was_in_use());
/// let mut told = 0;
/// of_cpu_1.begin_use(|what| match what {
///     Forget::Everything => panic!("it is one range"),
///     Forget::Ranges(ranges) => told += ranges.len(),
/// });
/// assert_eq!(told, 1);
/// ```
#[repr(C, align(64))]
pub struct Notes {
    /// Odd while the CPU may use translations. Only that CPU writes it.
    uses: AtomicU64,
    /// What there is in the mailbox: 0, a range, or one of the words above. There may be more in
    /// `words` with any but 0.
    waiting: AtomicU64,
    /// Odd while the CPU empties its mailbox.
    passes: AtomicU64,
    /// A range of pages each, or 0. Of which space isn't said: to invalidate too much is no harm.
    words: [AtomicU64; WORDS],
}

/// What to invalidate.
///
/// ```
/// use machine::notes::{Forget, Notes};
/// let notes = Notes::new();
/// let _ = notes.leave(None);
/// notes.take(|what| assert!(matches!(what, Forget::Everything)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forget<'a> {
    /// These ranges, if they are in the tables that are in use.
    Ranges(&'a [VaRange]),
    /// Everything.
    Everything,
}

/// What an asker has seen of a CPU after it left a note.
///
/// ```
/// use machine::notes::Notes;
/// let notes = Notes::new();
/// notes.begin_use(|_| ());
/// let left = notes.leave(None);
/// assert!(left.was_in_use() && !left.is_out_of_use(&notes), "it needs an interrupt");
/// notes.end_use();
/// assert!(left.is_out_of_use(&notes));
/// ```
#[derive(Clone, Copy)]
pub struct Left {
    uses: u64,
    passes: u64,
}

impl Left {
    /// Whether the CPU may be using what the note is about: then it must be interrupted and waited
    /// for.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// assert!(!Notes::new().leave(None).was_in_use());
    /// ```
    #[inline]
    #[must_use]
    pub fn was_in_use(self) -> bool {
        self.uses % 2 == 1
    }

    /// Whether the CPU uses what the note is about no more, and won't.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// assert!(notes.leave(None).is_out_of_use(&notes));
    /// ```
    #[inline]
    #[must_use]
    pub fn is_out_of_use(self, notes: &Notes) -> bool {
        !self.was_in_use() || notes.uses.load(Acquire) != self.uses
    }

    /// Whether the CPU doesn't even know any more what the note is about: a pass that began after
    /// the note was left has ended.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// let left = notes.leave(None);
    /// assert!(!left.is_forgotten(&notes));
    /// notes.take(|_| ());
    /// assert!(left.is_forgotten(&notes), "a table may be freed now");
    /// ```
    #[inline]
    #[must_use]
    pub fn is_forgotten(self, notes: &Notes) -> bool {
        notes.passes.load(Acquire).wrapping_sub(self.passes) >= 2 + self.passes % 2
    }
}

impl Notes {
    /// Where assembly finds the number of uses, 64 bits wide: to begin, it adds one by a locked
    /// instruction, and looks for notes then; to end, it adds one.
    pub const USES: usize = core::mem::offset_of!(Notes, uses);
    /// Where assembly finds whether there are notes, 64 bits wide: other than 0.
    pub const WAITING: usize = core::mem::offset_of!(Notes, waiting);

    /// An empty mailbox of a CPU that uses no translation.
    ///
    /// ```
    /// static BOXES: [machine::Notes; 2] = [const { machine::Notes::new() }; 2];
    /// ```
    #[cfg(not(feature = "__loom"))]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Notes {
        Notes {
            uses: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// An empty mailbox of a CPU that uses no translation.
    #[cfg(feature = "__loom")]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Notes {
        let word = || AtomicU64::new(0);
        Notes {
            uses: word(),
            waiting: word(),
            passes: word(),
            words: core::array::from_fn(|_| word()),
        }
    }

    /// This CPU may use translations from now on. What it is asked to invalidate it invalidates
    /// first, by `forget`.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// let _ = notes.leave(None);
    /// let mut flushes = 0;
    /// notes.begin_use(|_| flushes += 1);
    /// assert!(notes.in_use() && flushes == 1);
    /// ```
    #[inline]
    pub fn begin_use(&self, mut forget: impl FnMut(Forget<'_>)) {
        self.begin_use_by(|notes| notes.take(&mut forget));
    }

    /// Begins a use as [`begin_use`](Self::begin_use) does, for a host that empties the mailbox
    /// itself, by [`take`](Self::take): with a lock held, say.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// let _ = notes.leave(None);
    /// notes.begin_use_by(|notes| notes.take(|_| ()));
    /// assert!(notes.in_use());
    /// ```
    #[inline]
    pub fn begin_use_by(&self, mut take: impl FnMut(&Notes)) {
        debug_assert!(!self.in_use(), "a use within a use");
        loop {
            self.uses.fetch_add(1, SeqCst);
            loom_fence();
            if self.waiting.load(SeqCst) == 0 {
                return;
            }
            self.end_use();
            take(self);
        }
    }

    /// This CPU has ended its use of translations.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// notes.begin_use(|_| ());
    /// notes.end_use();
    /// assert!(!notes.in_use());
    /// ```
    #[inline]
    pub fn end_use(&self) {
        debug_assert!(self.in_use(), "an end without a use");
        self.uses.store(self.uses.load(Relaxed) + 1, Release);
    }

    /// Whether this CPU may use translations; for checks.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// assert!(!Notes::new().in_use());
    /// ```
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.uses.load(Relaxed) % 2 == 1
    }

    /// This CPU empties its mailbox. Takes no lock, waits for no CPU. If there is no note, `forget`
    /// isn't called.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// notes.take(|_| panic!("there are no notes"));
    /// ```
    #[cold]
    pub fn take(&self, mut forget: impl FnMut(Forget<'_>)) {
        let passes = self.passes.load(Relaxed);
        // A CPU that changes `waiting` after this pass has taken it sees the pass begun.
        self.passes.store(passes + 1, Relaxed);
        let waiting = self.waiting.swap(0, AcqRel);
        let mut ranges = [VaRange::new(Va(0), Va(0)); WORDS + 1];
        let mut len = 0;
        if waiting & LONGEST != 0 {
            ranges[0] = unpack(waiting);
            len = 1;
        }
        // A CPU that puts a range there after this look changes `waiting` afterwards, and the next
        // pass finds it.
        for word in self.words.iter().filter(|word| word.load(Relaxed) != 0) {
            ranges[len] = unpack(word.swap(0, AcqRel));
            len += 1;
        }
        if waiting == EVERYTHING {
            forget(Forget::Everything);
        } else if len > 0 {
            forget(Forget::Ranges(&ranges[..len]));
        }
        self.passes.store(passes + 2, Release);
    }

    /// Leaves a shootdown request in another CPU's mailbox: to invalidate `ranges`, of which it
    /// holds those of its active tables; `None` means everything.
    ///
    /// ```
    /// use machine::notes::Notes;
    /// let notes = Notes::new();
    /// if notes.leave(None).was_in_use() {
    ///     // Send its CPU an interrupt, and wait until the use has ended.
    /// }
    /// ```
    pub fn leave(&self, ranges: Option<&[Stale]>) -> Left {
        // Mostly it is one range, and the mailbox is empty: one access that takes the line.
        let word =
            ranges.map_or(0, |ranges| if let [stale] = ranges { pack(stale.range) } else { 0 });
        if word == 0 || self.waiting.compare_exchange(0, word, SeqCst, Relaxed).is_err() {
            self.leave_more(ranges);
        }
        loom_fence();
        // The passes first: a pass that ends between the two readings was perhaps not ours, and
        // then isn't counted.
        let passes = self.passes.load(SeqCst);
        Left { uses: self.uses.load(SeqCst), passes }
    }

    #[cold]
    fn leave_more(&self, ranges: Option<&[Stale]>) {
        let fits = ranges.is_some_and(|ranges| ranges.iter().all(|stale| self.put(stale.range)));
        let mut now = self.waiting.load(Relaxed);
        loop {
            let new = match (fits, now) {
                (false, _) => EVERYTHING,
                (true, 0) => MORE,
                (true, _) => now,
            };
            // Written even where it stays: the order of writing and reading `uses` is what counts
            // (I2).
            match self.waiting.compare_exchange(now, new, SeqCst, Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Puts a range into an empty place; false if there is none, or the range is too long.
    fn put(&self, range: VaRange) -> bool {
        let word = pack(range);
        let is_free = |place: &AtomicU64| place.compare_exchange(0, word, AcqRel, Relaxed).is_ok();
        range.is_empty() || word != 0 && self.words.iter().any(is_free)
    }
}

/// A range in a word; 0 if it is empty or too long.
fn pack(range: VaRange) -> u64 {
    let pages = range.pages().0;
    if (1..=LONGEST).contains(&pages) {
        range.start.0 >> PAGE_SHIFT << LENGTH | pages
    } else {
        0
    }
}

fn unpack(word: u64) -> VaRange {
    let start = word >> LENGTH << PAGE_SHIFT;
    VaRange::new(Va(start), Va(start + ((word & LONGEST) << PAGE_SHIFT)))
}

/// Loom takes accesses of the strictest order for weaker ones, and only its fences at their word.
#[inline]
fn loom_fence() {
    #[cfg(feature = "__loom")]
    loom::sync::atomic::fence(SeqCst);
}

#[cfg(all(test, not(feature = "__loom")))]
mod tests {
    use super::*;
    use crate::Pages;
    use alloc::vec::Vec;

    fn stale(page: u64, pages: u64) -> Stale {
        let start = Va(page << PAGE_SHIFT);
        Stale { space: 1, range: VaRange::new(start, start + Pages(pages)) }
    }

    /// What there is to forget; `None` is everything.
    fn taken(notes: &Notes) -> Option<Vec<VaRange>> {
        let mut said = Some(Vec::new());
        notes.take(|what| match (what, &mut said) {
            (Forget::Ranges(ranges), Some(all)) => all.extend_from_slice(ranges),
            _ => said = None,
        });
        said
    }

    /// Whether all of a note is forgotten by what was taken.
    fn covers(said: &Option<Vec<VaRange>>, note: Option<&[Stale]>) -> bool {
        let Some(said) = said else { return true };
        let is_said = |range: VaRange| {
            range.is_empty() || said.iter().any(|one| one.intersect(range) == range)
        };
        note.is_some_and(|ranges| ranges.iter().all(|stale| is_said(stale.range)))
    }

    #[test]
    fn notes_that_fit_are_forgotten_one_by_one() {
        let notes = Notes::new();
        for count in 1..=WORDS as u64 + 1 {
            let left: Vec<Stale> = (0..count).map(|n| stale(n * 100, LONGEST - n)).collect();
            left.iter().for_each(|one| _ = notes.leave(Some(&[*one])));
            let said = taken(&notes).expect("there is room for so many");
            assert_eq!(said, left.iter().map(|one| one.range).collect::<Vec<_>>());
            assert_eq!(taken(&notes), Some(Vec::new()), "what was taken is still there");
        }
    }

    #[test]
    fn what_does_not_fit_is_forgotten_with_everything_else() {
        let many: Vec<Stale> = (0..=WORDS as u64 + 1).map(|n| stale(n * 100, 1)).collect();
        let long = [stale(3, LONGEST + 1)];
        for note in [Some(&many[..]), Some(&long[..]), None] {
            for before in [&[][..], &many[..1], &many[..3]] {
                let notes = Notes::new();
                let _ = notes.leave(Some(before));
                let _ = notes.leave(note);
                // A later CPU takes nothing back.
                let _ = notes.leave(Some(&many[1..2]));
                assert_eq!(taken(&notes), None, "{note:?} after {before:?}");
            }
        }
    }

    #[test]
    fn nothing_that_is_left_is_lost() {
        // Every sequence of up to four notes of these kinds.
        let kinds: [Option<&[Stale]>; 6] = [
            Some(&[stale(1, 1)]),
            Some(&[stale(70, LONGEST)]),
            Some(&[stale(200, 1), stale(300, 2)]),
            Some(&[stale(400, 1), stale(500, LONGEST + 1)]),
            Some(&[stale(600, 0)]),
            None,
        ];
        for sequence in 0..kinds.len().pow(4) {
            for len in 1..=4 {
                let order =
                    || (0..len).map(|at| kinds[sequence / kinds.len().pow(at) % kinds.len()]);
                let notes = Notes::new();
                order().for_each(|note| _ = notes.leave(note));
                let said = taken(&notes);
                order().for_each(|note| assert!(covers(&said, note), "{note:?} is lost: {said:?}"));
                assert_eq!(taken(&notes), Some(Vec::new()));
            }
        }
    }

    #[test]
    fn a_note_tells_whether_its_cpu_was_in_use_and_has_been_through_its_box() {
        let notes = Notes::new();
        let left = notes.leave(Some(&[stale(1, 1)]));
        assert!(!left.was_in_use() && left.is_out_of_use(&notes) && !left.is_forgotten(&notes));
        let mut forgotten = 0;
        notes.begin_use(|_| forgotten += 1);
        assert!(forgotten == 1 && left.is_forgotten(&notes));
        let left = notes.leave(None);
        assert!(left.was_in_use() && !left.is_out_of_use(&notes));
        notes.end_use();
        assert!(left.is_out_of_use(&notes) && !left.is_forgotten(&notes));
        notes.begin_use(|_| forgotten += 1);
        assert!(forgotten == 2 && left.is_forgotten(&notes));
    }
}
