//! Values that have to be given back: pages on loan, pins, detached ranges.
//!
//! ```text
//!   loan_to_kernel  ->  Loan  ->  return_loan, transfer, ..    the loan ends, or is another's
//!                        \    ->  dropped                      it stays for ever
//! ```
//! To give one back takes locks and the instance, so a destructor can't. It says that the value was
//! dropped: with debug assertions it panics on the spot, and [`Uvm::audit`](crate::Uvm::audit)
//! fails from then on.
//!
//! I1: what gives a value back, or makes it another's, forgets it.
//!
//! Spaces are counted by their instance, as they may outlive it in a host that ends: one that was
//! dropped and not [destroyed](crate::Uvm::space_destroy) fails the instance's audits.
//!
//! I2: a page on loan, a list of them and pins know their instance by its number; another one hands
//! them back.
//!
//! The flags are the program's, not an instance's: a destructor that wrote to its instance would
//! need a pointer in each page on loan. They are written where a host is wrong, and nowhere else.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Which instance a loan is of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Instance(u32);

impl Instance {
    /// Of none yet.
    pub(crate) const NONE: Instance = Instance(0);

    /// The next instance of this program.
    pub(crate) fn new() -> Instance {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Instance(LAST.fetch_add(1, Relaxed).wrapping_add(1).max(1))
    }
}

/// Spaces of an instance that were dropped.
#[derive(Clone, Default)]
pub(crate) struct DroppedSpaces(Arc<AtomicUsize>);

impl DroppedSpaces {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// What keeps a space from being dropped.
pub(crate) struct SpaceDuty(Option<DroppedSpaces>);

impl SpaceDuty {
    pub(crate) fn new(dropped: &DroppedSpaces) -> SpaceDuty {
        SpaceDuty(Some(dropped.clone()))
    }

    /// Whether the space is the instance's that has this count.
    pub(crate) fn is_of(&self, dropped: &DroppedSpaces) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(&own.0, &dropped.0))
    }

    /// The space has been destroyed.
    pub(crate) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for SpaceDuty {
    fn drop(&mut self) {
        if let Some(dropped) = self.0.take().filter(|_| !is_unwinding()) {
            dropped.0.fetch_add(1, Relaxed);
        }
    }
}

/// What has to be given back.
#[derive(Clone, Copy)]
pub(crate) enum Owed {
    Loan,
    Pins,
    Range,
    Read,
}

const WHAT: [&str; 4] = [
    "a page on loan was dropped",
    "pins were dropped",
    "a detached range was dropped",
    "a read was dropped that was not started",
];

static DROPPED: [AtomicBool; WHAT.len()] = [const { AtomicBool::new(false) }; WHAT.len()];

impl Owed {
    /// A value was dropped. One that a panic unwinds was not the host's to give back.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_dropped(self) {
        if !is_unwinding() {
            DROPPED[self as usize].store(true, Relaxed);
            debug_assert!(false, "{}", WHAT[self as usize]);
        }
    }
}

/// What this program has dropped, in the order of [`Owed`].
pub(crate) fn dropped() -> impl Iterator<Item = &'static str> {
    WHAT.into_iter().zip(&DROPPED).filter(|(_, is)| is.load(Relaxed)).map(|(what, _)| what)
}

#[cfg(target_os = "none")]
fn is_unwinding() -> bool {
    false
}

#[cfg(not(target_os = "none"))]
fn is_unwinding() -> bool {
    extern crate std;
    std::thread::panicking()
}
