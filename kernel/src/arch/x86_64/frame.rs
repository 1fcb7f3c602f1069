//! Page frames that are the kernel's own, as bytes: what messages on their way are kept in.

use machine::{Machine, NoMemory, PageNo, Reserve, ThreadCtx};

use super::machine::KERNEL;

/// A frame that nobody has mapped and nobody else refers to. It goes back by [`free`](Frame::free), not when dropped.
#[must_use]
pub struct Frame(PageNo);

impl Frame {
    /// A frame with whatever it held; leaves alone what is kept for the kernel.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline]
    pub fn new() -> Result<Frame, NoMemory> {
        let mut thread = ThreadCtx::new();
        KERNEL.frames().alloc(&KERNEL, &mut thread.held(), Reserve::User).map(Frame)
    }

    /// Gives it back.
    #[inline]
    pub fn free(self) {
        let mut thread = ThreadCtx::new();
        KERNEL.frames().free_page(&KERNEL, &mut thread.held(), self.0);
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the frame is this value's alone, and it is borrowed for reading.
        unsafe { KERNEL.bytes(self.0) }
    }

    /// Its bytes, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame is this value's alone, and it is borrowed for writing.
        unsafe { KERNEL.bytes(self.0) }
    }
}
