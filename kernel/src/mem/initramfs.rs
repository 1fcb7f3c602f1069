//! The archive that the boot loader put into memory, which goes back to the machine as it is read.
//!
//! I1: the frames of whole pages from `at` on are the kernel's and hold the archive; no other code
//! knows them.

use machine::{Pa, PAGE_SIZE};

use super::direct;
use super::frames::{unlocked, KERNEL};
use crate::arch::layout::{self, Range};

pub struct Initramfs {
    /// The first byte that is still to be read.
    at: u64,
    end: u64,
}

impl Initramfs {
    /// The archive in a range of physical memory; there may be none.
    ///
    /// # Safety
    /// The range is what the boot loader filled, its whole pages came to the frames as loaded, and
    /// this is called once.
    pub unsafe fn new(range: &Range) -> Initramfs {
        Initramfs { at: range.start, end: range.end }
    }

    /// What has not been freed.
    pub fn rest(&self) -> &[u8] {
        // SAFETY: I1; the borrow ends before anything is freed.
        unsafe {
            core::slice::from_raw_parts(
                layout::direct(self.at) as *const u8,
                (self.end - self.at) as usize,
            )
        }
    }

    /// Has done with the first `bytes` of the rest.
    pub fn free(&mut self, bytes: usize) {
        let from = self.at;
        self.at = (from + bytes as u64).min(self.end);
        let gone = Range { start: from & !(PAGE_SIZE as u64 - 1), end: self.at };
        // Pages that the archive has only parts of are in no segment.
        let pages = (gone.start..gone.whole_pages().end)
            .step_by(PAGE_SIZE)
            .filter_map(|pa| Some((pa, KERNEL.frames().page_at(Pa(pa))?)));
        direct::leave(pages.clone().map(|(pa, _)| pa));
        for (_, page) in pages {
            // SAFETY: it came loaded, and no borrow of what lies in it lasts.
            unsafe { KERNEL.frames().release_own(page) };
            unlocked(|held| KERNEL.frames().free_page(&KERNEL, held, page));
        }
    }
}

impl Drop for Initramfs {
    fn drop(&mut self) {
        self.free((self.end - self.at) as usize);
    }
}
