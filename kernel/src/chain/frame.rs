//! Page frames as bytes: what is on its way between programs is kept in them.

use machine::{NoMemory, PAGE_SIZE};

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

    /// The page's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        loaned_bytes(&self.page)
    }

    /// The page's bytes, to be written; `None` if they aren't this frame's alone.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let alone = self.asked_for && KERNEL.frames().is_borrowers(self.page.page());
        let at = KERNEL.address(self.page.page()) as *mut u8;
        // SAFETY: no other frame refers to it (I2), no program has taken it over, and this one is
        // borrowed for writing.
        alone.then(|| unsafe { core::slice::from_raw_parts_mut(at, PAGE_SIZE) })
    }
}

/// The bytes of a page on loan, or of the kernel's own that no thread writes any more.
#[inline]
pub fn loaned_bytes(page: &LoanedPage) -> &[u8] {
    let at = KERNEL.address(page.page()) as *const u8;
    // SAFETY: no thread writes it while this borrow lasts: not its owner (I1), and no frame (I2).
    unsafe { core::slice::from_raw_parts(at, PAGE_SIZE) }
}
