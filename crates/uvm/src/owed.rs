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
//! I1: whoever gives a value back, or makes it another's, forgets it.
//!
//! The flags are the program's, not an instance's: a list has 4,096 pages on loan of four bytes,
//! and those have no room for their instance. They are written where a host is wrong, and nowhere
//! else.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
