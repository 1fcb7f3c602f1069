//! Page frames as bytes: what is on its way between programs is kept in them.

use machine::NoMemory;

use crate::arch::bytes::PageBytes;
use crate::mem::frames::KERNEL;
use crate::vm::{self, LoanedPage};

/// A page of the kernel's own, or one on loan. It goes back by [`free`](Frame::free),
/// not when dropped.
///
/// I1: no thread writes a page that is loaned. I2: a page of the kernel's own is written by the
/// frame that asked for it, and as long as there is no other.
#[must_use]
pub struct Frame {
    page: LoanedPage,
    /// I2.
    asked_for: bool,
}

impl Frame {
    /// A page of the kernel's own with whatever it held; leaves alone what is kept for the kernel.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline]
    pub fn new() -> Result<Frame, NoMemory> {
        Ok(Frame { page: vm::new_page()?, asked_for: true })
    }

    /// A page on loan.
    #[inline]
    pub fn loan(page: LoanedPage) -> Frame {
        Frame { page, asked_for: false }
    }

    /// Another loan of the page.
    ///
    /// # Errors
    /// [`NoMemory`] if that can't be counted.
    #[inline]
    pub fn share(&self) -> Result<Frame, NoMemory> {
        vm::loan_again(&self.page).map(Frame::loan).ok_or(NoMemory)
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &LoanedPage {
        &self.page
    }

    /// The page, for a caller that takes it over.
    #[inline]
    pub fn into_page(self) -> LoanedPage {
        self.page
    }

    /// Gives the page back.
    #[inline]
    pub fn free(self) {
        vm::give_back_page(self.page);
    }

    /// Whether its bytes are this frame's alone, to be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        // I2, and no program has taken it over.
        self.asked_for && KERNEL.frames().is_borrowers(self.page.page())
    }

    /// The page's bytes.
    #[inline]
    pub fn bytes(&self) -> PageBytes {
        KERNEL.bytes(self.page.page())
    }
}
