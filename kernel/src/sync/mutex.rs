//! A lock whose waiters sleep.
//!
//! A task that comes while the lock is free takes it, though waiters were woken for it (barging): a
//! holder that lets go and comes back need not sleep. But a task that sleeps while it holds the
//! lock could keep it from all others in that way. So a waiter that was woken in vain is counted
//! (`impatient`), and until it has the lock, each holder hands the lock on to the waiter that came
//! first.
//!
//! I1: `held` stays set while the lock is handed on; `heir` names the task that has it from then
//! on, which is awake and in no queue of waiters, and no other takes it.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::{assert_none_held, WaitQueue};
use crate::sched;

/// A `T` behind a sleeping lock. Not for interrupt handlers, and not to be waited for with a spin
/// lock held.
pub struct Mutex<T: ?Sized> {
    held: AtomicBool,
    waiters: WaitQueue,
    /// Waiters that were woken in vain.
    impatient: AtomicU32,
    /// The task that the lock is handed to; zero if it isn't (I1).
    heir: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only while `held` was set by the guard's maker.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// SAFETY: a lock is as sendable as what it holds.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// `value` behind a free lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            held: AtomicBool::new(false),
            waiters: WaitQueue::new(),
            impatient: AtomicU32::new(0),
            heir: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, sleeping until it is free.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // Also where it happens to be free.
        assert_none_held();
        if self.held.swap(true, Acquire) {
            self.wait();
        }
        MutexGuard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        (!self.held.swap(true, Acquire)).then(|| MutexGuard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        /// Looks before the first sleep: one before the waiter enters the queue, one after.
        const BEFORE: u32 = 2;
        let this = sched::current().id();
        let mut looks = 0;
        self.waiters.wait(|| {
            if !self.held.swap(true, Acquire) {
                return Some(());
            }
            if self.heir.load(Acquire) == this {
                self.heir.store(0, Relaxed);
                return Some(());
            }
            looks += 1;
            if looks == BEFORE + 1 {
                self.impatient.fetch_add(1, Relaxed);
            }
            None
        });
        if looks > BEFORE {
            self.impatient.fetch_sub(1, Relaxed);
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.impatient.load(Relaxed) != 0 && self.hand_on() {
            return;
        }
        self.held.store(false, Release);
        self.waiters.wake_one();
    }

    /// Gives the lock to the task that has waited for it longest (I1); false if none waits.
    #[cold]
    fn hand_on(&self) -> bool {
        self.waiters.wake_first(|task| self.heir.store(task.id(), Release))
    }
}

/// Access to what a mutex guards.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard lives only while its lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, exclusively borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}
