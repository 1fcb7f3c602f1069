//! A counted pointer with the orderings that std's has, in loom's atomics.
//!
//! Loom has one of its own, whose `strong_count` orders more than std's does and which has no `into_inner`. What it
//! points to lies in loom's cell, so that loom reports a holder that writes while another reads.

use std::ops::Deref;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
pub use loom::sync::atomic::{fence, Ordering};
use Ordering::{Acquire, Relaxed, Release};

struct Inner<T> {
    strong: AtomicUsize,
    value: UnsafeCell<Option<T>>,
}

/// See the module. The memory itself goes with the last copy of the pointer below, whoever drops it.
pub struct Arc<T>(std::sync::Arc<Inner<T>>);

// SAFETY: as std's: the value is shared by reference, and moves to whoever is last.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    pub fn new(value: T) -> Arc<T> {
        Arc(std::sync::Arc::new(Inner { strong: AtomicUsize::new(1), value: UnsafeCell::new(Some(value)) }))
    }

    pub fn strong_count(this: &Arc<T>) -> usize {
        this.0.strong.load(Relaxed)
    }

    pub fn get_mut(this: &mut Arc<T>) -> Option<&mut T> {
        if this.0.strong.load(Acquire) != 1 {
            return None;
        }
        // SAFETY: `this` is the only pointer and is borrowed exclusively; loom checks that earlier accesses are ordered.
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
        // SAFETY: only the last holder writes, in `get_mut`, which a borrow of this pointer excludes.
        let value = self.0.value.with(|value| unsafe { (*value).as_ref() });
        value.expect("a pointer keeps its value")
    }
}
