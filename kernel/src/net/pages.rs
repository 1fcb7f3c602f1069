//! The pages of chains: clusters of the kernel's own, pages that programs lend, pages of files.

use mbuf::{NoMemory, Pages, PAGE_SIZE};

use crate::arch::frame::Frame;
use crate::errno::{Result, ENOBUFS};
use crate::vm::{self, Lent};

/// A chain as the kernel has it.
pub type Chain = mbuf::Chain<Frame>;

/// Where chains get their pages.
pub struct Clusters;

impl Pages for Clusters {
    type Page = Frame;

    /// Makes room if memory is short, and so may sleep.
    fn alloc(&self) -> core::result::Result<Frame, NoMemory> {
        Frame::new().or_else(|_| vm::with_room(Frame::new))
    }

    #[inline]
    fn share(&self, page: &Frame) -> core::result::Result<Frame, NoMemory> {
        page.share()
    }

    #[inline]
    fn release(&self, page: Frame) {
        page.free();
    }

    #[inline]
    fn bytes<'a>(&self, page: &'a Frame) -> &'a [u8] {
        page.bytes()
    }

    #[inline]
    fn bytes_mut<'a>(&self, page: &'a mut Frame) -> Option<&'a mut [u8]> {
        page.bytes_mut()
    }
}

/// Puts whole pages behind what a chain has, and gives back what finds no place there.
///
/// Fails with `ENOBUFS`, after those that did.
pub fn append_lent(chain: &mut Chain, lent: Lent) -> Result<()> {
    let mut result = Ok(());
    for page in lent.into_pages() {
        let appended = match result {
            Ok(()) => chain.append_page(Frame::lent(page), 0..PAGE_SIZE),
            Err(_) => Err((NoMemory, Frame::lent(page))),
        };
        if let Err((NoMemory, frame)) = appended {
            frame.free();
            result = Err(ENOBUFS);
        }
    }
    result
}
