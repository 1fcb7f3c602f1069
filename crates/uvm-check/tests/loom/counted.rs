//! A counted pointer with the orderings that std's has, and a place that is filled once, as spin's,
//! in loom's atomics.
//!
//! Loom has one of its own, whose `strong_count` orders more than std's does and which has no
//! `into_inner`. What it points to lies in loom's cell, so that loom reports a holder that writes
//! while another reads.

use std::ops::Deref;
use std::sync::OnceLock;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU8;
use loom::sync::atomic::AtomicUsize;
pub use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use Ordering::{Acquire, Relaxed, Release};

struct Inner<T> {
    strong: AtomicUsize,
    value: UnsafeCell<Option<T>>,
}

/// See the module. The memory itself goes with the last copy of the pointer below, whichever thread
/// drops it.
pub struct Arc<T>(std::sync::Arc<Inner<T>>);

// SAFETY: as std's: the value is shared by reference, and moves to the thread that is last.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    pub fn new(value: T) -> Arc<T> {
        Arc(std::sync::Arc::new(Inner {
            strong: AtomicUsize::new(1),
            value: UnsafeCell::new(Some(value)),
        }))
    }

    pub fn strong_count(this: &Arc<T>) -> usize {
        this.0.strong.load(Relaxed)
    }

    pub fn get_mut(this: &mut Arc<T>) -> Option<&mut T> {
        if this.0.strong.load(Acquire) != 1 {
            return None;
        }
        // SAFETY: `this` is the only pointer and is borrowed exclusively; loom checks that earlier
        // accesses are ordered.
        this.0.value.with_mut(|value| unsafe { (*value).as_mut() })
    }

    pub fn into_inner(this: Arc<T>) -> Option<T> {
        if this.0.strong.fetch_sub(1, Release) != 1 {
            return None;
        }
        fence(Acquire);
        // SAFETY: the count is none, so no other pointer is left.
        this.0.value.with_mut(|value| unsafe { (*value).take() })
    }

    pub fn as_ptr(this: &Arc<T>) -> *const T {
        std::sync::Arc::as_ptr(&this.0).cast()
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        self.0.strong.fetch_add(1, Relaxed);
        Arc(self.0.clone())
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only the last holder writes, in `get_mut`, which a borrow of this pointer
        // excludes.
        let value = self.0.value.with(|value| unsafe { (*value).as_ref() });
        value.expect("a pointer keeps its value")
    }
}

/// A place that is filled once.
pub struct Once<T> {
    state: AtomicU8,
    value: OnceLock<T>,
}

const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FULL: u8 = 2;

impl<T> Once<T> {
    pub fn new() -> Once<T> {
        Once { state: AtomicU8::new(EMPTY), value: OnceLock::new() }
    }

    pub fn initialized(value: T) -> Once<T> {
        Once { state: AtomicU8::new(FULL), value: OnceLock::from(value) }
    }

    pub fn get(&self) -> Option<&T> {
        self.value.get().filter(|_| self.state.load(Acquire) == FULL)
    }

    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    pub fn call_once(&self, make: impl FnOnce() -> T) -> &T {
        match self.state.compare_exchange(EMPTY, FILLING, Acquire, Acquire) {
            Ok(_) => {
                let value = self.value.get_or_init(make);
                self.state.store(FULL, Release);
                value
            }
            Err(_) => loop {
                match self.get() {
                    Some(value) => return value,
                    None => loom::thread::yield_now(),
                }
            },
        }
    }

    pub fn try_into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Once::new()
    }
}
