//! Failure on demand: the Nth call from now fails, once or for good.
//!
//! Frames have no hook: they fail when they run out (`SoftMachine::leave_free`).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A countdown to failure, and a count of all calls.
#[derive(Debug, Default)]
pub struct Injector {
    calls: AtomicU64,
    fail_at: AtomicU64,
    /// The last call that fails.
    until: AtomicU64,
}

impl Injector {
    /// The `n`th call from now fails; the first is number 1. Zero takes the order back.
    pub fn fail_nth(&self, n: u64) {
        let at = if n == 0 { 0 } else { self.calls() + n };
        self.fail_at.store(at, SeqCst);
        self.until.store(at, SeqCst);
    }

    /// The `n`th call from now fails, and all that follow it.
    pub fn fail_from(&self, n: u64) {
        self.fail_at.store(self.calls() + n, SeqCst);
        self.until.store(u64::MAX, SeqCst);
    }

    /// Whether calls fail from some call on, for good.
    pub fn lasts(&self) -> bool {
        self.until.load(SeqCst) == u64::MAX
    }

    /// Whether an order is still waiting for its call.
    pub fn is_armed(&self) -> bool {
        self.fail_at.load(SeqCst) > self.calls()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Counts a call and says whether it fails.
    pub fn fails(&self) -> bool {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        let from = self.fail_at.load(SeqCst);
        from != 0 && (from..=self.until.load(SeqCst)).contains(&call)
    }
}
