//! A lock whose waiters sleep.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

use super::WaitQueue;

/// A `T` behind a sleeping lock. Not for interrupt handlers, and not to be waited for with a spin lock held.
pub struct Mutex<T: ?Sized> {
    held: AtomicBool,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only while `held` was set by the guard's maker.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// SAFETY: a lock is as sendable as what it holds.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// `value` behind a free lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { held: AtomicBool::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, sleeping until it is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.held.swap(true, Acquire) {
            self.waiters.wait(|| (!self.held.swap(true, Acquire)).then_some(()));
        }
        MutexGuard { lock: self }
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
        self.lock.held.store(false, Release);
        self.lock.waiters.wake_one();
    }
}
