//! The pages of chains: clusters of the kernel's own, pages that programs loan, pages of files.

pub mod contents;
pub mod frame;
mod packets;
mod ring;
pub mod zero_copy;

use alloc::sync::Arc;
use core::ops::Range;

use mbuf::{NoMemory, Pages, PAGE_SIZE};

use self::frame::{loaned_bytes, Frame};
use crate::errno::{Result, ENOBUFS};
use crate::vm::{self, Export, Loan, LoanedPage};

/// A chain as the kernel has it.
pub type Chain = mbuf::Chain<Clusters>;

/// Where chains get their pages.
pub struct Clusters;

/// Pages in a row.
pub enum Run {
    /// On loan.
    Loan(Loan),
    /// Memory that a program has given away as it was: for one that takes it the same way. Only
    /// pipes hold such, and make a loan of it before anything else is done with it
    /// (`contents`).
    Range(Arc<Export>),
}

impl Run {
    /// Makes the run a loan.
    ///
    /// # Errors
    /// `ENOBUFS`, and it is what it was.
    pub fn make_loaned(&mut self) -> Result<&mut Loan> {
        if let Run::Range(range) = self {
            *self = Run::Loan(range.loan().map_err(|_| ENOBUFS)?);
        }
        match self {
            Run::Loan(loan) => Ok(loan),
            Run::Range(_) => Err(ENOBUFS),
        }
    }

    /// The pages on loan; none of a range.
    pub fn pages(&self) -> &[LoanedPage] {
        match self {
            Run::Loan(loan) => loan.pages(),
            Run::Range(_) => &[],
        }
    }
}

impl Pages for Clusters {
    type Page = Frame;
    type Run = Run;

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

    #[inline]
    fn run_bytes<'a>(&self, run: &'a Run, page: usize) -> &'a [u8] {
        static NOT_SHOWN: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        debug_assert!(page < run.pages().len(), "a range is loaned before it is read");
        run.pages().get(page).map_or(&NOT_SHOWN, loaned_bytes)
    }

    fn share_run(&self, run: &Run, pages: Range<usize>) -> core::result::Result<Run, NoMemory> {
        let pages = run.pages().get(pages).ok_or(NoMemory)?;
        loan_all_again(pages.len(), |index| &pages[index]).map(Run::Loan)
    }

    fn cut_run(&self, run: &mut Run, at: usize, both: bool) -> core::result::Result<Run, NoMemory> {
        let run = run.make_loaned().map_err(|_| NoMemory)?;
        let rest = run.try_split_off(at)?;
        if both {
            match rest.pages().first().and_then(vm::loan_again) {
                Some(page) => run.push(page),
                None => {
                    run.append(rest);
                    return Err(NoMemory);
                }
            }
        }
        Ok(Run::Loan(rest))
    }

    fn shrink_run(&self, run: &mut Run, kept: Range<usize>) {
        if let Run::Loan(loan) = run {
            vm::give_back_others(loan, kept);
        }
    }

    fn release_run(&self, run: Run) {
        if let Run::Loan(loan) = run {
            vm::give_back(loan);
        }
    }
}

/// One more loan of each of `count` pages.
///
/// # Errors
/// [`NoMemory`], also where one is loaned too often.
pub fn loan_all_again<'a>(
    count: usize,
    page: impl Fn(usize) -> &'a LoanedPage,
) -> core::result::Result<Loan, NoMemory> {
    let loan = vm::loan_all_again((0..count).map(page))?;
    if loan.len() < count {
        vm::give_back(loan);
        return Err(NoMemory);
    }
    Ok(loan)
}

/// Puts `range` of the bytes of pages on loan, which are just those, behind what a chain has; gives
/// them back if it can't.
///
/// # Errors
/// `ENOBUFS`.
pub fn append_loaned(chain: &mut Chain, loan: Loan, range: Range<usize>) -> Result<()> {
    if range.is_empty() {
        vm::give_back(loan);
        return Ok(());
    }
    chain.append_run(Run::Loan(loan), range).map_err(|(NoMemory, run)| {
        Clusters.release_run(run);
        ENOBUFS
    })
}
