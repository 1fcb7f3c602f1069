//! Frames that the host keeps for itself, and the look that keeps numbers of pages from reaching
//! them.
//!
//! A [`PageNo`] is a mere number, and outlives the page that it named. Where the host's tables,
//! heap or stacks lie, bytes written by a wrong number would be undefined behaviour; anywhere else
//! they are wrong bytes. So the record says which frames are the host's own (I4 of the module
//! above), and what reaches a frame by number asks. Not taken: numbers that only some may make.
//! They are copied, and as wrong when the page has gone.

use crate::{Frames, Place, PLACES};
use machine::atomic::Ordering::Relaxed;
use machine::{Machine, Pa, PageNo};

impl<M: Machine> Frames<M> {
    /// The address of a frame that holds bytes of use: asked before a frame is read, written or
    /// mapped by its number. So a wrong number reaches bytes of another program, of a file or of a
    /// device, and never the host's own tables, heap or stacks.
    ///
    /// # Panics
    /// If there is no such frame, it is free, or it is the host's [own](Place::Own).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert_eq!(uvm.frames().bytes_at(page.page()), uvm.frames().pa(page.page()));
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn bytes_at(&self, page: PageNo) -> Pa {
        let place = self.page(page).place.load(Relaxed);
        // From `Free` on no bytes are of use.
        if place >= Place::Free as u8 {
            refuse_bytes(page, place);
        }
        self.pa(page)
    }

    /// Keeps a page that no other thread knows, as [`alloc`](Self::alloc) gave it, for what the
    /// host itself keeps in memory (I4).
    ///
    /// # Panics
    /// If the page is on a list.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let table = frames.alloc(machine, held, Reserve::Kernel)?;
    /// frames.keep(table); // Its address is `pa`; `bytes_at` would panic.
    /// // SAFETY: nothing was kept in it, and nothing maps it.
    /// unsafe { frames.release_own(table) };
    /// frames.free_page(machine, held, table);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn keep(&self, page: PageNo) {
        let is_alone = self.page(page).moves(Place::Nowhere, Place::Own);
        assert!(is_alone, "{page:?} is on a list");
    }

    /// Ends that: the page is as `alloc` gave it.
    ///
    /// # Safety
    /// What the host kept in the page is gone, and no CPU reaches it by a mapping or a walk through
    /// it as a table.
    ///
    /// # Panics
    /// If the page isn't kept.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let table = frames.alloc(machine, held, Reserve::Kernel)?;
    /// frames.keep(table);
    /// // SAFETY: nothing was kept in it, and nothing maps it.
    /// unsafe { frames.release_own(table) };
    /// frames.free_page(machine, held, table);
    /// # Ok(()) });
    /// ```
    #[expect(unsafe_code, reason = "with this, what lies in the page can be overwritten")]
    pub unsafe fn release_own(&self, page: PageNo) {
        let was_kept = self.page(page).moves(Place::Own, Place::Nowhere);
        assert!(was_kept, "{page:?} is not the host's own");
    }
}

#[cold]
#[inline(never)]
fn refuse_bytes(page: PageNo, place: u8) -> ! {
    panic!("{page:?} is {:?}, and holds no bytes of use", PLACES[usize::from(place)])
}
