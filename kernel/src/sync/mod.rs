//! Mutual exclusion and waiting.
//!
//! * [`SpinLock`]: short, never held while sleeping, while touching user memory, or across a context switch;
//! * [`WaitQueue`]: the one way a thread sleeps; [`wait_any`] sleeps on several;
//! * [`Mutex`]: a lock whose waiters sleep; may be held across user copies.
//!
//! The kernel runs with interrupts off except at points where no spin lock is held (`arch::io::interrupt_window`, the idle loop). So
//! a spin lock excludes interrupt handlers without touching the interrupt flag, and costs three instructions.

mod mutex;
mod spin_lock;
mod wait;

pub use mutex::Mutex;
pub use spin_lock::{assert_none_held, RawSpin, SpinGuard, SpinLock};
pub use wait::{wait_any, WaitQueue, Woken};

pub use ::spin::Once;
