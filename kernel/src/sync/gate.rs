//! A sleeping lock that some tasks take alone and others together.
//!
//! A task that comes to share the gate passes the mutex once and is counted; a task that wants the
//! gate alone keeps the mutex and waits until the count is zero. So all come to their turn as the
//! mutex lets them: sharers that keep coming can't hold up a task that waits to be alone.
//!
//! I1: `sharers` grows only with `turn` held, so a thread that holds that and has seen none is
//! alone.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{Mutex, MutexGuard, WaitQueue};

/// See the module. Not for interrupt handlers; a task that shares it must not take it again.
pub struct Gate {
    turn: Mutex<()>,
    sharers: AtomicU32,
    none: WaitQueue,
}

impl Gate {
    pub const fn new() -> Gate {
        Gate { turn: Mutex::new(()), sharers: AtomicU32::new(0), none: WaitQueue::new() }
    }

    /// Sleeps until no other task has it.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock();
        if self.sharers.load(Ordering::Acquire) != 0 {
            self.none.wait(|| (self.sharers.load(Ordering::Acquire) == 0).then_some(()));
        }
        turn
    }

    /// Sleeps until no task has it alone, or waits to.
    pub fn share(&self) -> Shared<'_> {
        let _turn = self.turn.lock();
        self.sharers.fetch_add(1, Ordering::Relaxed);
        Shared(self)
    }
}

/// Keeps others from having a gate alone.
#[must_use]
pub struct Shared<'a>(&'a Gate);

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if self.0.sharers.fetch_sub(1, Ordering::Release) == 1 {
            self.0.none.wake_one();
        }
    }
}
