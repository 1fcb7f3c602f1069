//! A machine with its page frames, and new pages that are filled.
//!
//! A page that a writer gets is zeroes or a copy: faults, loans, transfers and pagers have it from
//! here. Copies of an anon's page, which is kept by the anon's lock alone, are
//! [`copy_anon`](crate::Uvm::copy_anon)'s.

use alloc::sync::Arc;
use core::ops::Deref;

use machine::lines::Ordering::{AcqRel, Acquire, Relaxed};
use machine::lines::{AtomicBool, AtomicU64};
use machine::order::PageCache;
use machine::{Before, Held, Machine, NoMemory, PageNo, Pmap};

use crate::page::{Frames, PageFlags, Place, Reserve};

/// A machine and its page frames: what the operations of the library work on.
pub(crate) struct Memory<M: Machine> {
    machine: M,
    pub(crate) frames: Arc<Frames<M>>,
    pub(crate) pageout: PageoutState,
}

/// What a thread that makes pages available has to know of the page daemon's passes.
#[derive(Default)]
pub(crate) struct PageoutState {
    /// Whether one runs.
    pub(crate) runs: AtomicBool,
    /// Memory has run out, as far as the last desperate one could tell.
    pub(crate) has_run_out: AtomicBool,
    /// How often wired pages were released.
    pub(crate) loosened: AtomicU64,
}

impl<M: Machine> Memory<M> {
    pub(crate) fn new(machine: M, frames: Arc<Frames<M>>) -> Memory<M> {
        Memory { machine, frames, pageout: PageoutState::default() }
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames<M> {
        &self.frames
    }

    /// Whether nothing keeps a page, under its owner's lock. A page on no queue is new and about to
    /// be entered (`anon` I3): it may have the number of a page that a scan found on a queue
    /// before. A page that could not be read may go like any other: a thread that comes for it
    /// reads it again, and gets the error then.
    pub(crate) fn can_go(&self, page: PageNo) -> bool {
        let frames = &self.frames;
        let is_idle = !frames.flags(page).contains(PageFlags::BUSY) && frames.hold_count(page) == 0;
        is_idle && frames.place(page) != Place::Nowhere
    }

    /// Whether backing store has the page's bytes, under its owner's lock; certain once nothing
    /// maps the page.
    pub(crate) fn is_clean(&self, page: PageNo) -> bool {
        self.frames.flags(page).contains(PageFlags::CLEAN) && !self.pmap().is_modified(page)
    }

    /// Makes a new page busy that is about to be read, and look untouched to the pmap: the frame's
    /// last owner left its bits. Before it has an owner: a thread that looks at it under the pmap's
    /// lock finds it busy from then on ([`Frames::is_alone`]).
    pub(crate) fn prepare_read(&self, page: PageNo) {
        self.frames.set_flags(page, PageFlags::BUSY);
        self.pmap().forget_modified(page);
        self.pmap().clear_referenced(page);
    }

    /// Pages are no longer wired or loaned, or no longer kept for another reason: a pass might find
    /// what the last one did not. Noted where it matters, while a pass runs or something is known;
    /// else a return of a loan costs two reads.
    #[inline]
    pub(crate) fn pages_may_go(&self) {
        if self.pageout.runs.load(Acquire) || self.pageout.has_run_out.load(Relaxed) {
            self.loosened();
        }
    }

    #[cold]
    fn loosened(&self) {
        self.pageout.loosened.fetch_add(1, AcqRel);
        self.pageout.has_run_out.store(false, Relaxed);
    }

    /// A new page of zeroes.
    #[inline(always)]
    pub(crate) fn zeroed_page<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<PageNo, NoMemory> {
        let page = self.frames.alloc(&self.machine, held, Reserve::User)?;
        self.machine.zero(page);
        Ok(page)
    }

    /// A new page with the bytes of another, which its owner's lock, a wiring or a loan keeps.
    #[inline]
    pub(crate) fn copied_page<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        from: PageNo,
    ) -> Result<PageNo, NoMemory> {
        let page = self.frames.alloc(&self.machine, held, Reserve::User)?;
        self.machine.copy(from, page);
        Ok(page)
    }
}

impl<M: Machine> Deref for Memory<M> {
    type Target = M;
    #[inline]
    fn deref(&self) -> &M {
        &self.machine
    }
}
