//! The pages of chains: frames of the kernel's own, shared by the halves of a split.

use alloc::sync::Arc;

use mbuf::{NoMemory, Pages};

use crate::arch::frame::Frame;
use crate::vm;

/// A chain as the kernel has it.
pub type Chain = mbuf::Chain<Page>;

/// A reference to a page on its way.
pub struct Page(Arc<Frame>);

/// Where chains get their pages.
pub struct Clusters;

impl Pages for Clusters {
    type Page = Page;

    /// Makes room if memory is short, and so may sleep.
    fn alloc(&self) -> Result<Page, NoMemory> {
        let frame = Frame::new().or_else(|_| vm::with_room(Frame::new))?;
        Ok(Page(Arc::new(frame)))
    }

    fn share(&self, page: &Page) -> Page {
        Page(page.0.clone())
    }

    fn release(&self, page: Page) {
        if let Some(frame) = Arc::into_inner(page.0) {
            frame.free();
        }
    }

    fn bytes<'a>(&self, page: &'a Page) -> &'a [u8] {
        page.0.bytes()
    }

    fn bytes_mut<'a>(&self, page: &'a mut Page) -> Option<&'a mut [u8]> {
        Arc::get_mut(&mut page.0).map(Frame::bytes_mut)
    }
}
