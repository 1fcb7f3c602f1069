//! Shootdowns under way: whether a CPU has lowered translations that others may hold, and has not
//! flushed them yet (law P6 of [`crate::pmap`]).
//!
//! ```text
//!   one CPU:   lock -> lower, begin -> unlock -> flush the CPUs -> end
//!   another:           lock -> lowered already -> unlock -> is one under way? yes: flush, too
//! ```
//! A line for each CPU, which alone writes it: what CPUs do to spaces of their own takes no line
//! from others. A CPU that asks reads all lines.
//!
//! I1: a shootdown begins with the lock held under which it lowers. So a CPU that finds the mapping
//! lowered, under that lock, finds it begun. I2: it ends after the CPUs were flushed, with release;
//! a CPU that doesn't find it any more, with acquire, goes on after that. I3: it begins and ends on
//! one CPU, whose thread doesn't sleep meanwhile.
//!
//! `uvm-check/tests/loom/unfinished.rs` tries all schedules, and breaks each of these laws to see
//! that it is found.

use crate::atomic::AtomicU32;
use crate::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::shared::CachePadded;

/// See the module.
///
/// ```
/// use machine::unfinished::Unfinished;
/// let unfinished = Unfinished::<4>::new();
/// unfinished.begin(0);
/// assert!(unfinished.are_others(4, 0), "another CPU tells its own as well");
/// assert!(!unfinished.are_others(4, 1), "it is ours alone");
/// unfinished.end(0);
/// ```
pub struct Unfinished<const CPUS: usize>([CachePadded<AtomicU32>; CPUS]);

impl<const CPUS: usize> Unfinished<CPUS> {
    /// None is under way.
    ///
    /// ```
    /// static UNFINISHED: machine::unfinished::Unfinished<4> = machine::unfinished::Unfinished::new();
    /// ```
    #[cfg(not(feature = "__loom"))]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Self {
        Unfinished([const { CachePadded(AtomicU32::new(0)) }; CPUS])
    }

    /// None is under way.
    #[cfg(feature = "__loom")]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Self {
        Unfinished(core::array::from_fn(|_| CachePadded(AtomicU32::new(0))))
    }

    /// One begins on the calling CPU. The lock is held under which it has lowered something.
    ///
    /// ```
    /// let unfinished = machine::unfinished::Unfinished::<4>::new();
    /// unfinished.begin(1);
    /// unfinished.end(1);
    /// ```
    #[inline]
    pub fn begin(&self, cpu: usize) {
        let own = &self.0[cpu];
        own.store(own.load(Relaxed) + 1, Relaxed);
    }

    /// One of the calling CPU's ends: all CPUs have been flushed.
    ///
    /// ```
    /// let unfinished = machine::unfinished::Unfinished::<4>::new();
    /// unfinished.begin(1);
    /// unfinished.end(1);
    /// assert!(!unfinished.are_others(4, 0));
    /// ```
    #[inline]
    pub fn end(&self, cpu: usize) {
        let own = &self.0[cpu];
        own.store(own.load(Relaxed) - 1, Release);
    }

    /// Whether any is under way on the first `cpus` but for `own` that the caller has begun.
    ///
    /// ```
    /// let unfinished = machine::unfinished::Unfinished::<4>::new();
    /// assert!(!unfinished.are_others(4, 0));
    /// ```
    #[inline]
    #[must_use]
    pub fn are_others(&self, cpus: usize, own: u32) -> bool {
        self.0[..cpus].iter().map(|one| one.load(Acquire)).sum::<u32>() != own
    }
}
