//! Locks whose waiters spin: short, never held while sleeping, while touching user memory, or
//! across a context switch.
//!
//! The kernel runs with interrupts off except at points where no spin lock is held
//! (`arch::io::interrupt_window`, the idle loop). So a spin lock excludes interrupt handlers
//! without touching the interrupt flag, and costs three instructions. On other CPUs handlers run at
//! any time, and wait for it like all others. Locks whose waiters sleep are in `sync`.

pub mod lock_times;
mod spin_lock;

/// What locks are made of. A schedule checker puts its own in their place: `uvm-check/tests/loom`.
mod word {
    pub use crate::arch::ipi::Wait;
    pub use core::sync::atomic::{AtomicBool, Ordering};
}

pub use ::spin::Once;
pub use spin_lock::{assert_none_held, assert_none_ordered, RawSpin, SpinGuard, SpinLock};
