//! What an operation lowered, gathered and flushed on the CPUs once.
//!
//! An operation makes one [`Shootdown`], passes it to every pmap call that removes or lowers, and
//! flushes it at the end: one round of interrupts at most, and only to CPUs whose TLBs may hold the
//! translations (the port adds those CPUs when it notes a range). Pages that the operation frees
//! become free only after that, so that no stale translation reaches a page with a new owner.
//!
//! I1: a `Shootdown` that holds anything is flushed, not dropped. I2: the thread that gathers
//! doesn't sleep before it has flushed it: it could go on elsewhere, and another program run
//! meanwhile on the CPU that it left (see pmap law P6).

use arrayvec::ArrayVec;

use crate::{Pmap, VaRange};

/// CPUs that a [`CpuSet`] has room for: 64, or with `--cfg uvm_max_cpus="256"` or `"1024"` in
/// `RUSTFLAGS` so many. A constant of the build, as each operation has a set on its stack.
pub const MAX_CPUS: usize = if cfg!(uvm_max_cpus = "1024") {
    1024
} else if cfg!(uvm_max_cpus = "256") {
    256
} else {
    64
};
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs, of numbers below [`MAX_CPUS`].
///
/// ```
/// use machine::CpuSet;
/// let set = CpuSet::one(0).union(CpuSet::one(3));
/// assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// No CPU.
    pub const NONE: CpuSet = CpuSet([0; WORDS]);
    /// All that there may be.
    pub const ALL: CpuSet = CpuSet([u64::MAX; WORDS]);

    /// Just this CPU.
    ///
    /// # Panics
    /// If its number isn't below [`MAX_CPUS`].
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert!(CpuSet::one(3).contains(3));
    /// ```
    #[must_use]
    pub const fn one(cpu: usize) -> CpuSet {
        let mut words = [0; WORDS];
        words[cpu / 64] = 1 << (cpu % 64);
        CpuSet(words)
    }

    /// CPUs 0 up to `count`, without that.
    ///
    /// # Panics
    /// If `count` is more than [`MAX_CPUS`].
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::first(2).iter().collect::<Vec<_>>(), [0, 1]);
    /// assert_eq!(CpuSet::first(machine::MAX_CPUS), CpuSet::ALL);
    /// ```
    #[must_use]
    pub const fn first(count: usize) -> CpuSet {
        let mut words = [0; WORDS];
        let mut cpu = 0;
        while cpu < count {
            let rest = count - cpu;
            words[cpu / 64] = if rest < 64 { (1 << rest) - 1 } else { u64::MAX };
            cpu += 64;
        }
        CpuSet(words)
    }

    /// CPUs 0 to 63, a bit each.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::from_bits(0b1001).iter().collect::<Vec<_>>(), [0, 3]);
    /// ```
    #[must_use]
    pub const fn from_bits(bits: u64) -> CpuSet {
        let mut words = [0; WORDS];
        words[0] = bits;
        CpuSet(words)
    }

    /// Those of CPUs 0 to 63 that are in the set, a bit each.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::one(3).bits(), 0b1000);
    /// ```
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0[0]
    }

    /// CPUs in either set.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::one(0).union(CpuSet::one(1)), CpuSet::first(2));
    /// ```
    #[inline]
    #[must_use]
    pub fn union(self, other: CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Whether the CPU is in the set.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert!(!CpuSet::first(2).contains(2));
    /// ```
    #[must_use]
    pub const fn contains(self, cpu: usize) -> bool {
        cpu < MAX_CPUS && self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    /// Whether no CPU is in the set.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert!(CpuSet::NONE.is_empty());
    /// ```
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == CpuSet::NONE
    }

    /// CPUs in both sets.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::first(2).intersection(CpuSet::one(1)), CpuSet::one(1));
    /// ```
    #[inline]
    #[must_use]
    pub fn intersection(self, other: CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// CPUs in this set that aren't in the other.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::first(2).without(CpuSet::one(1)), CpuSet::one(0));
    /// ```
    #[inline]
    #[must_use]
    pub fn without(self, other: CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The CPUs in the set, lowest number first.
    ///
    /// ```
    /// use machine::CpuSet;
    /// assert_eq!(CpuSet::first(3).iter().sum::<usize>(), 3);
    /// ```
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, bits)| {
            let mut rest = bits;
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(64 * word + bit)
            })
        })
    }
}

/// Translations of one address space that CPUs must forget.
///
/// ```
/// use machine::{CpuSet, Shootdown, Va, VaRange};
/// let range = VaRange::new(Va(0x1000), Va(0x2000));
/// let mut down = Shootdown::new();
/// down.note(7, range, CpuSet::one(1));
/// assert_eq!(down.ranges().map(|ranges| (ranges[0].space, ranges[0].range)), Some((7, range)));
/// down.flush_by(|_| ());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale {
    /// The port's name for the space.
    pub space: u64,
    /// Addresses whose translations were lowered.
    pub range: VaRange,
}

/// Ranges kept apart before they are merged into one that covers them.
const RANGES: usize = 8;

/// See the module.
///
/// ```
/// use machine::{CpuSet, Shootdown, Va, VaRange};
/// let page = |n: u64| VaRange::new(Va(n << 12), Va((n + 1) << 12));
/// let mut down = Shootdown::new();
/// down.note(7, page(1), CpuSet::one(0));
/// down.note(7, page(2), CpuSet::one(3));
/// assert_eq!(down.ranges().map(<[_]>::len), Some(1), "they are one range");
/// down.flush_by(|down| assert_eq!(down.cpus().iter().count(), 2)); // One turn for both.
/// assert!(!down.is_needed());
/// ```
#[must_use = "a Shootdown is flushed: until then CPUs may use what was lowered"]
pub struct Shootdown {
    /// Not an array: making one per operation must not cost the filling of it.
    ranges: ArrayVec<Stale, RANGES>,
    /// CPUs that may hold any of the ranges.
    cpus: CpuSet,
    /// Too many ranges to keep: these CPUs forget everything.
    everything: bool,
    /// A port counts it among those whose flush others must not overtake (pmap law P6).
    counted: bool,
}

impl Shootdown {
    /// Nothing gathered yet.
    ///
    /// ```
    /// assert!(!machine::Shootdown::new().is_needed());
    /// ```
    #[inline]
    pub fn new() -> Shootdown {
        Shootdown { ranges: ArrayVec::new(), cpus: CpuSet::NONE, everything: false, counted: false }
    }

    /// Notes that translations of `range` were lowered in `space`, and that only `cpus` can hold
    /// them. A port passes the empty set where no CPU can: then nothing is noted. A range next to
    /// the last one joins it.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown, Va, VaRange};
    /// let mut down = Shootdown::new();
    /// down.note(7, VaRange::new(Va(0x1000), Va(0x2000)), CpuSet::NONE);
    /// assert!(!down.is_needed(), "no CPU can know it");
    /// ```
    #[inline]
    pub fn note(&mut self, space: u64, range: VaRange, cpus: CpuSet) {
        if cpus == CpuSet::NONE {
            return;
        }
        self.cpus = self.cpus.union(cpus);
        if self.everything {
            return;
        }
        if let Some(last) = self.ranges.last_mut() {
            if last.space == space && last.range.start <= range.end && range.start <= last.range.end
            {
                last.range.start = last.range.start.min(range.start);
                last.range.end = last.range.end.max(range.end);
                return;
            }
        }
        if self.ranges.try_push(Stale { space, range }).is_err() {
            self.everything = true;
            self.ranges.clear();
        }
    }

    /// Notes that these CPUs must forget all that they know.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown};
    /// let mut down = Shootdown::new();
    /// down.note_all(CpuSet::first(2));
    /// assert_eq!(down.ranges(), None);
    /// down.flush_by(|_| ());
    /// ```
    pub fn note_all(&mut self, cpus: CpuSet) {
        if cpus != CpuSet::NONE {
            self.cpus = self.cpus.union(cpus);
            self.everything = true;
            self.ranges.clear();
        }
    }

    /// Has itself counted by a port that has noted something here: whether it must be, and wasn't
    /// yet.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown};
    /// let mut down = Shootdown::new();
    /// assert!(!down.begin_count(), "nothing was lowered");
    /// down.note_all(CpuSet::one(0));
    /// assert!(down.begin_count() && !down.begin_count(), "once");
    /// down.flush_by(|_| ());
    /// ```
    pub fn begin_count(&mut self) -> bool {
        self.is_needed() && !core::mem::replace(&mut self.counted, true)
    }

    /// Whether a port counts it, until its flush has been done.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown};
    /// let mut down = Shootdown::new();
    /// down.note_all(CpuSet::one(0));
    /// down.begin_count();
    /// down.flush_by(|down| assert!(down.is_counted()));
    /// assert!(!down.is_counted());
    /// ```
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// CPUs that must flush.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown};
    /// let mut down = Shootdown::new();
    /// down.note_all(CpuSet::one(3));
    /// assert!(down.cpus().contains(3));
    /// down.flush_by(|_| ());
    /// ```
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// What those CPUs must invalidate; `None` means all translations.
    ///
    /// ```
    /// assert_eq!(machine::Shootdown::new().ranges().map(<[_]>::len), Some(0));
    /// ```
    #[must_use]
    pub fn ranges(&self) -> Option<&[Stale]> {
        (!self.everything).then_some(&self.ranges[..])
    }

    /// Whether any CPU must flush anything.
    ///
    /// ```
    /// assert!(!machine::Shootdown::new().is_needed());
    /// ```
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.cpus != CpuSet::NONE
    }

    /// Flushes the CPUs now and goes on gathering: for an operation that must know translations
    /// gone before its next step, such as copying a page that was just write-protected.
    ///
    /// ```
    /// use machine::{Pmap, Shootdown};
    /// fn tell<P: Pmap>(pmap: &P, mut down: Shootdown) {
    ///     down.flush(pmap);
    /// }
    /// ```
    #[inline]
    pub fn flush(&mut self, pmap: &impl Pmap) {
        self.flush_by(|down| pmap.flush(down));
    }

    /// Like [`flush`](Self::flush), by other means than [`Pmap::flush`]: for a port that has more
    /// to wait for.
    ///
    /// ```
    /// use machine::{CpuSet, Shootdown};
    /// let mut down = Shootdown::new();
    /// down.note_all(CpuSet::one(3));
    /// let mut interrupted = Vec::new();
    /// down.flush_by(|down| interrupted.extend(down.cpus().iter()));
    /// assert_eq!(interrupted, [3]);
    /// ```
    #[inline]
    pub fn flush_by(&mut self, flush: impl FnOnce(&Shootdown)) {
        if self.is_needed() {
            flush(self);
            self.ranges.clear();
            self.everything = false;
            self.counted = false;
            self.cpus = CpuSet::NONE;
        }
    }
}

impl Default for Shootdown {
    #[inline]
    fn default() -> Self {
        Shootdown::new()
    }
}

impl Drop for Shootdown {
    fn drop(&mut self) {
        debug_assert!(!self.is_needed(), "a Shootdown was dropped that was not flushed");
    }
}
