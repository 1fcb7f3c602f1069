//! Windows: where the kernel sees bytes of page frames, for a moment.
//!
//! A page that programs have, of a file, a pipe or a socket, has no address that the kernel may
//! keep. Who copies, compares or zeroes its bytes opens a window, which ends with the value. The
//! kernel runs with interrupts off but at named places, and a window is open at none of them, nor
//! while its thread sleeps.
//!
//! Source: the sf_buf paper, section 4.1 (an ephemeral mapping that is private to a CPU).

use crate::arch::layout;

/// Addresses at which bytes of one page are seen, until it is dropped.
pub struct Window {
    at: u64,
}

impl Window {
    /// A window onto the page of physical address `pa`, which the caller keeps from being freed.
    #[inline]
    pub fn open(pa: u64) -> Window {
        Window { at: layout::direct(pa) }
    }

    /// Where that physical address is seen, and what follows it in its page.
    #[inline]
    pub fn at(&self) -> *mut u8 {
        self.at as *mut u8
    }
}
