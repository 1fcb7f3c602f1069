//! Spin locks.
//!
//! A CPU that waits answers what other CPUs ask of it: the holder may be waiting for that answer.
//! The CPU that waits longest doesn't go first: a queue of waiters would stand still whenever a
//! host doesn't run the CPU at its head, and hosts with fewer CPUs than their machines are the rule
//! here. Sections are short, and the contended structures are per CPU.
//!
//! I1: a CPU that sleeps, switches tasks or touches user memory holds no spin lock. Builds with
//! debug assertions (the `quick` profile) count what each CPU holds and check it there, by
//! [`assert_none_held`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::lock_times;
use super::word::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Wait};
use crate::arch::cpu;

/// Looks before the holder is taken for lost: a lock held by this very CPU, or across a sleep.
const LOST: u32 = 1_000_000_000;

/// The lock word.
pub struct RawSpin(AtomicBool);

impl RawSpin {
    /// A free lock.
    pub const fn new() -> RawSpin {
        RawSpin(AtomicBool::new(false))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) {
        if self.0.swap(true, Acquire) {
            self.wait();
        }
        held::taken();
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        let taken = self.is_taken_now();
        if taken {
            held::taken();
        }
        taken
    }

    #[inline]
    fn is_taken_now(&self) -> bool {
        !self.0.swap(true, Acquire)
    }

    /// Whether a CPU holds the lock; a moment's value.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.0.load(Acquire)
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// The caller holds it, and uses nothing that it guards any more.
    #[inline]
    pub unsafe fn unlock(&self) {
        held::given_back();
        self.0.store(false, Release);
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        if cpu::count() == 1 {
            panic!("a spin lock is taken twice");
        }
        let begun = lock_times::begin();
        let mut wait = Wait::new();
        for _ in 0..LOST {
            if !self.0.load(Relaxed) && self.is_taken_now() {
                lock_times::waited(begun, crate::arch::return_address());
                return;
            }
            wait.pause();
        }
        panic!("a spin lock is never given back");
    }
}

/// Stops the kernel if this CPU holds a spin lock; checks nothing in builds without debug
/// assertions.
#[inline]
#[track_caller]
pub fn assert_none_held() {
    debug_assert!(held::count() == 0, "a spin lock is held where the kernel may sleep");
}

/// Stops the kernel if this CPU holds a lock of the VM system, or reads what one guards; checks
/// nothing in builds without debug assertions. A CPU that reads, beside others, what a closed lock
/// guards isn't seen.
#[inline]
#[track_caller]
pub fn assert_none_ordered() {
    debug_assert!(
        held::ordered() == 0 && cpu::rows()[cpu::index()].is_empty(),
        "the VM system is entered with one of its locks held"
    );
}

/// How many spin locks each CPU holds, where debug assertions are on.
mod held {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::lock_times;
    use crate::arch::cpu;

    #[repr(align(64))]
    struct Count(AtomicUsize);

    static HELD: [Count; cpu::MAX_CPUS] = [const { Count(AtomicUsize::new(0)) }; cpu::MAX_CPUS];
    /// Held locks that have a level of the VM system's order.
    static ORDERED: [Count; cpu::MAX_CPUS] = [const { Count(AtomicUsize::new(0)) }; cpu::MAX_CPUS];

    /// Adds to the count of such locks, or takes one off by adding the largest number.
    #[inline]
    pub(super) fn count_ordered(more: usize) {
        if cfg!(debug_assertions) {
            ORDERED[cpu::index()].0.fetch_add(more, Relaxed);
        }
    }

    #[inline]
    pub(super) fn ordered() -> usize {
        ORDERED[cpu::index()].0.load(Relaxed)
    }

    #[inline]
    pub(super) fn taken() {
        if cfg!(debug_assertions) {
            let before = HELD[cpu::index()].0.fetch_add(1, Relaxed);
            lock_times::taken(before + 1);
        }
    }

    #[inline]
    pub(super) fn given_back() {
        if cfg!(debug_assertions) {
            let before = HELD[cpu::index()].0.fetch_sub(1, Relaxed);
            lock_times::given_back(before);
        }
    }

    #[inline]
    pub(super) fn count() -> usize {
        HELD[cpu::index()].0.load(Relaxed)
    }
}

// SAFETY: `swap` with acquire lets one caller through until `unlock` stores false with release.
unsafe impl machine::RawLock for RawSpin {
    fn new() -> RawSpin {
        RawSpin::new()
    }

    #[inline]
    fn lock(&self) {
        RawSpin::lock(self);
        held::count_ordered(1);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let taken = RawSpin::try_lock(self);
        held::count_ordered(usize::from(taken));
        taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        held::count_ordered(usize::MAX);
        // SAFETY: by the caller's promise.
        unsafe { RawSpin::unlock(self) }
    }

    #[inline]
    fn rows() -> &'static [machine::shared::Row] {
        cpu::rows()
    }

    #[inline]
    fn has_several_rows() -> bool {
        cpu::count() > 1
    }

    #[inline]
    fn cpu() -> usize {
        cpu::index()
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        let mut wait = Wait::new();
        while !done() {
            wait.pause();
        }
    }
}

/// A `T` behind a spin lock; also excludes interrupt handlers, see the module above.
pub struct SpinLock<T: ?Sized> {
    raw: RawSpin,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only between `lock` and `unlock` of `raw`.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}
// SAFETY: a lock is as sendable as what it holds.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// `value` behind a free lock.
    pub const fn new(value: T) -> SpinLock<T> {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.raw.lock();
        SpinGuard { lock: self }
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}

/// Access to what a spin lock guards.
#[must_use]
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard lives only while its lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, exclusively borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard was made with the lock taken, and ends here.
        unsafe { self.lock.raw.unlock() }
    }
}
