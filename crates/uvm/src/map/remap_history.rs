//! Whether a reader gets pages in place of copies of them.
//!
//! A program that reads into whole pages of its memory can have pages mapped as they came, if none
//! is going to be written: pages of files, or ownerless ones. A program's own pages are copied: it
//! fills its buffer again, most likely, and then would pay for a copy and a fault, where the reader
//! saves a copy.
//!
//! That pays as long as the reader doesn't store into what it reads, and the memory that it reads
//! into can take pages at all. Both are known only afterwards, so each space has its remap_history:
//! it grows with pages received, shrinks by what came of it, and while it is below 0 reads are
//! copied and it recovers.
//!
//! Source: 1998, section 4.2, where programs ask for it. The road not taken is a mode that programs
//! set.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::page::Owner;
use machine::Machine;

use crate::loan::LoanedPage;
use crate::{Space, Uvm};

/// What it is at most: then a reader that begins to store is noticed soon.
const MOST: i32 = 64;
/// By how much a page shrinks it that was received and then copied, since it was stored into: that
/// costs ten times what receiving a page saves.
const STORED: i32 = 16;
/// And pages that could not be received.
const REFUSED: i32 = 64;

/// Whether receiving has paid for a space lately: 0 and above, if so.
#[derive(Default)]
pub(crate) struct RemapHistory(AtomicI32);

impl RemapHistory {
    /// So many pages on loan were received.
    pub(crate) fn grow(&self, by: usize) {
        let now = self.0.load(Relaxed);
        // What another thread adds meanwhile may be lost.
        self.0.store(now.saturating_add_unsigned(by as u32).min(MOST), Relaxed);
    }

    /// Pages could not be received.
    pub(crate) fn refused(&self) {
        self.shrink(REFUSED);
    }

    fn shrink(&self, by: i32) {
        let now = self.0.load(Relaxed);
        self.0.store(now.saturating_sub(by), Relaxed);
    }

    /// So many pages on loan were copied for stores.
    pub(crate) fn stored(&self, pages: usize) {
        self.shrink(pages as i32 * STORED);
    }
}

impl<M: Machine> Uvm<M> {
    /// How many of some pages on loan, from the first on, a space had better
    /// [receive](Self::receive) than copy; `least` or more, or none. A guess that costs some steps
    /// a page. For each read that might receive pages it is asked once.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (from, to) = (memory(uvm, held, space, 4)?, memory(uvm, held, space, 4)?);
    /// let loan = uvm.loan_to_kernel(held, space, from)?;
    /// if uvm.worth_remapping(space, loan.pages(), PAGE_SIZE) == loan.len() {
    ///     uvm.receive(held, space, loan, to.start).map_err(|(why, _)| why)?;
    /// } else {
    ///     // Copy them to where the program reads to.
    ///     uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// }
    /// # Ok(()) });
    /// ```
    pub fn worth_remapping(&self, space: &Space<M>, pages: &[LoanedPage], least: usize) -> usize {
        if pages.len() < least {
            return 0;
        }
        if space.remap_history.0.load(Relaxed) < 0 {
            space.remap_history.grow(1);
            return 0;
        }
        let is_kept = |page: &&LoanedPage| {
            self.has_loaned(page) && !matches!(self.frames().owner(page.page()), Owner::Anon(_))
        };
        Some(pages.iter().take_while(is_kept).count()).filter(|&count| count >= least).unwrap_or(0)
    }
}
