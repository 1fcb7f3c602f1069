//! Mutual exclusion and waiting.
//!
//! * [`SpinLock`]: short, never held while sleeping, while touching user memory, or across a
//!   context switch;
//! * [`WaitQueue`]: the one way a thread sleeps; [`wait_any`] sleeps on several;
//! * [`Channels`]: what the VM system's tickets are read from and wait on;
//! * [`Mutex`]: a lock whose waiters sleep; may be held across user copies; [`Gate`]: the same
//!   where some may have it together.
//!
//! The kernel runs with interrupts off except at points where no spin lock is held
//! (`arch::io::interrupt_window`, the idle loop). So a spin lock excludes interrupt handlers
//! without touching the interrupt flag, and costs three instructions. On other CPUs handlers run at
//! any time, and wait for it like everybody.

mod channels;
mod gate;
pub mod lock_times;
mod mutex;
mod spin_lock;
mod wait;

/// What locks and channels are made of. A schedule checker puts its own in their place:
/// `uvm-check/tests/loom`.
mod word {
    pub use crate::arch::ipi::Wait;
    pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

pub use channels::Channels;
pub use gate::Gate;
pub use mutex::{Mutex, MutexGuard};
pub use spin_lock::{assert_none_held, assert_none_ordered, RawSpin, SpinGuard, SpinLock};
pub use wait::{wait_any, WaitQueue, Watcher, Woken};

pub use ::spin::Once;
