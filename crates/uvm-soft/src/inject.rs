//! Failure on demand: the Nth call from now says that there is no memory, once.
//!
//! Frames have no hook: they fail when they run out (`SoftMachine::leave_free`).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A countdown to one failure, and a count of all calls.
#[derive(Debug, Default)]
pub struct Injector {
    calls: AtomicU64,
    fail_at: AtomicU64,
}

impl Injector {
    /// The `n`th call from now fails; the first is number 1. Zero takes the order back.
    pub fn fail_nth(&self, n: u64) {
        let at = if n == 0 { 0 } else { self.calls() + n };
        self.fail_at.store(at, SeqCst);
    }

    /// Whether an order is still waiting for its call.
    pub fn is_armed(&self) -> bool {
        self.fail_at.load(SeqCst) > self.calls()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Counts a call and says whether it is the one that fails.
    pub(crate) fn fails(&self) -> bool {
        self.calls.fetch_add(1, SeqCst) + 1 == self.fail_at.load(SeqCst)
    }
}
