//! A machine with its page frames, and new pages that are filled.
//!
//! A page that a writer gets is zeroes or a copy: faults, loans, transfers and pagers have it from
//! here. Copies of an anon's page, which is kept by the anon's lock alone, are
//! [`copy_anon`](crate::Uvm::copy_anon)'s.

use alloc::sync::Arc;
use core::ops::Deref;

use machine::order::PageCache;
use machine::{Before, Held, Machine, NoMemory, PageNo};

use super::{Frames, Reserve};

/// A machine and its page frames: what the operations of the library work on.
pub(crate) struct Memory<M: Machine> {
    machine: M,
    pub(crate) frames: Arc<Frames<M>>,
}

impl<M: Machine> Memory<M> {
    pub(crate) fn new(machine: M, frames: Arc<Frames<M>>) -> Memory<M> {
        Memory { machine, frames }
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames<M> {
        &self.frames
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
