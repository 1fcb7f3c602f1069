//! Failure on demand: the Nth call from now fails, once or for good.
//!
//! Frames have no hook: they fail when they run out (`SoftMachine::leave_free`).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A countdown to failure, and a count of all calls.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.machine().heap.fail_nth(1);
/// let refused = uvm.map(held, space, &MapRequest::zero(Pages(1)));
/// assert_eq!(refused, Err(MapError::NoMemory));
/// # Ok(()) });
/// ```
#[derive(Debug, Default)]
pub struct Injector {
    calls: AtomicU64,
    fail_at: AtomicU64,
    /// The last call that fails.
    until: AtomicU64,
}

impl Injector {
    /// The `n`th call from now fails; the first is number 1. Zero takes the order back.
    ///
    /// ```
    /// let injector = uvm_soft::Injector::default();
    /// injector.fail_nth(2);
    /// assert_eq!([injector.fails(), injector.fails(), injector.fails()], [false, true, false]);
    /// ```
    pub fn fail_nth(&self, n: u64) {
        let at = if n == 0 { 0 } else { self.calls() + n };
        self.fail_at.store(at, SeqCst);
        self.until.store(at, SeqCst);
    }

    /// The `n`th call from now fails, and all that follow it.
    ///
    /// ```
    /// let injector = uvm_soft::Injector::default();
    /// injector.fail_from(2);
    /// assert_eq!([injector.fails(), injector.fails(), injector.fails()], [false, true, true]);
    /// ```
    pub fn fail_from(&self, n: u64) {
        self.fail_at.store(self.calls() + n, SeqCst);
        self.until.store(u64::MAX, SeqCst);
    }

    /// Whether calls fail from some call on, for good.
    ///
    /// ```
    /// let injector = uvm_soft::Injector::default();
    /// injector.fail_from(2);
    /// assert!(injector.lasts());
    /// ```
    pub fn lasts(&self) -> bool {
        self.until.load(SeqCst) == u64::MAX
    }

    /// Whether an order is still waiting for its call.
    ///
    /// ```
    /// let injector = uvm_soft::Injector::default();
    /// injector.fail_nth(1);
    /// assert!(injector.is_armed());
    /// injector.fails();
    /// assert!(!injector.is_armed());
    /// ```
    pub fn is_armed(&self) -> bool {
        self.fail_at.load(SeqCst) > self.calls()
    }

    /// Calls so far.
    ///
    /// ```
    /// let injector = uvm_soft::Injector::default();
    /// injector.fails();
    /// assert_eq!(injector.calls(), 1);
    /// ```
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Counts a call and says whether it fails.
    ///
    /// ```
    /// assert!(!uvm_soft::Injector::default().fails(), "nothing was ordered");
    /// ```
    pub fn fails(&self) -> bool {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        let from = self.fail_at.load(SeqCst);
        from != 0 && (from..=self.until.load(SeqCst)).contains(&call)
    }
}
