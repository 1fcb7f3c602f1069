//! What an operation lowered, gathered and told to the CPUs once.
//!
//! An operation makes one [`Shootdown`], passes it to every pmap call that removes or lowers, and
//! flushes it at the end: one round of interrupts at most, and only to CPUs whose TLBs may hold the
//! translations (the port adds those CPUs when it notes a range). Pages that the operation frees
//! become free only after that, so that no stale translation reaches a page with a new owner.
//!
//! I1: a `Shootdown` that holds anything is flushed, not dropped. I2: the thread that gathers
//! doesn't sleep before it has told the CPUs: it could go on elsewhere, and another program run
//! meanwhile on the CPU that it left (see pmap law P6).

use arrayvec::ArrayVec;

use crate::{Pmap, VaRange};

/// A set of CPUs, one bit each; at most 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuSet(pub u64);

impl CpuSet {
    /// No CPU.
    pub const NONE: CpuSet = CpuSet(0);

    /// Just this CPU.
    #[must_use]
    pub const fn one(cpu: usize) -> CpuSet {
        CpuSet(1 << cpu)
    }

    /// CPUs 0 up to `count`, without that; at most 64.
    #[must_use]
    pub const fn first(count: usize) -> CpuSet {
        CpuSet(if count == 0 { 0 } else { u64::MAX >> (64 - count) })
    }

    /// CPUs in either set.
    #[must_use]
    pub const fn union(self, other: CpuSet) -> CpuSet {
        CpuSet(self.0 | other.0)
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub const fn contains(self, cpu: usize) -> bool {
        self.0 >> cpu & 1 == 1
    }

    /// Whether no CPU is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// CPUs in both sets.
    #[must_use]
    pub const fn intersection(self, other: CpuSet) -> CpuSet {
        CpuSet(self.0 & other.0)
    }

    /// CPUs in this set that aren't in the other.
    #[must_use]
    pub const fn without(self, other: CpuSet) -> CpuSet {
        CpuSet(self.0 & !other.0)
    }

    /// The CPUs in the set, lowest number first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let cpu = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (cpu < 64).then_some(cpu)
        })
    }
}

/// Translations of one address space that CPUs must forget.
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
    #[inline]
    pub fn new() -> Shootdown {
        Shootdown { ranges: ArrayVec::new(), cpus: CpuSet::NONE, everything: false, counted: false }
    }

    /// Notes that translations of `range` were lowered in `space`, and that only `cpus` can hold
    /// them. A port passes the empty set where no CPU can: then nothing is noted. A range next to
    /// the last one joins it.
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
    pub fn note_all(&mut self, cpus: CpuSet) {
        if cpus != CpuSet::NONE {
            self.cpus = self.cpus.union(cpus);
            self.everything = true;
            self.ranges.clear();
        }
    }

    /// Has itself counted by a port that has noted something here: whether it must be, and wasn't
    /// yet.
    pub fn begin_count(&mut self) -> bool {
        self.is_needed() && !core::mem::replace(&mut self.counted, true)
    }

    /// Whether a port counts it, until its flush has been done.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// CPUs that must be told.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// What those CPUs must forget; `None` means all translations.
    #[must_use]
    pub fn ranges(&self) -> Option<&[Stale]> {
        (!self.everything).then_some(&self.ranges[..])
    }

    /// Whether any CPU must be told anything.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.cpus != CpuSet::NONE
    }

    /// Tells the CPUs now and goes on gathering: for an operation that must know translations gone
    /// before its next step, such as copying a page that was just write-protected.
    #[inline]
    pub fn flush(&mut self, pmap: &impl Pmap) {
        self.flush_by(|down| pmap.flush(down));
    }

    /// The same by other means than [`Pmap::flush`]: for a port that has more to wait for.
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
