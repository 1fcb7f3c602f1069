//! Waiting: threads that sleep, and locks whose waiters do.
//!
//! * [`WaitQueue`]: the one way a thread sleeps; [`wait_any`] sleeps on several;
//! * [`Channels`]: what the VM system's tickets are read from and wait on;
//! * [`Mutex`]: a lock whose waiters sleep; may be held across user copies; [`Gate`]: the same
//!   where some may have it together.
//!
//! These locks stand on the scheduler; locks that spin, below it, are in `lock`, and named here
//! again.

mod channels;
mod gate;
mod mutex;
mod wait;

pub use channels::Channels;
pub use gate::Gate;
pub use mutex::{Mutex, MutexGuard};

pub use wait::{wait_any, WaitQueue, Watcher, Woken};

pub use crate::lock::{assert_none_held, Once, RawSpin, SpinGuard, SpinLock};

/// What channels are made of: see [`crate::lock`].
mod word {
    pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}
