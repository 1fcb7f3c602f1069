//! Pages on loan to the kernel: data that programs send, and pages of files, on their way without
//! being copied.

use core::ops::Range;

use machine::{NoMemory, Pages};
use uvm::{FaultError, GetError, Loan, LoanedPage};

use super::object::Object;

use super::space::{pages_from, Space};
use super::system::with;
use crate::errno::{Errno, Result, EFAULT, EIO, ENOMEM, ENOSPC};

/// Loans `pages` pages from `addr` on, page aligned, as a load from each would see them now; fewer
/// if there are very many.
///
/// # Errors
/// `EFAULT` if one of them can't be read, `ENOMEM`; nothing is loaned then.
pub fn loan(space: &Space, addr: u64, pages: u64) -> Result<Loan> {
    let range = pages_from(addr, pages)?;
    with(|uvm, held| uvm.loan_to_kernel(held, space.get(), range)).map_err(fault_errno)
}

fn fault_errno(error: FaultError) -> Errno {
    match error {
        FaultError::NoMemory => ENOMEM,
        _ => EFAULT,
    }
}

/// Takes `pages` pages from `addr` on from the program, page aligned, as a load from each would see
/// them now, fewer if there are very many: it has zeroes there then, or its file again, until they
/// are [put back](super::put_back). `None` if some of it isn't memory of its own.
///
/// # Errors
/// `EFAULT`, `ENOMEM`; nothing is taken then.
pub fn give(space: &Space, addr: u64, pages: u64) -> Result<Option<Loan>> {
    let range = pages_from(addr, pages)?;
    with(|uvm, held| uvm.give_to_kernel(held, space.get(), range)).map_err(fault_errno)
}

/// Loans `pages` pages of an object from `offset` on, a multiple of the page size; fewer at its
/// end.
///
/// # Errors
/// `EIO`, `ENOSPC`, `ENOMEM`; nothing is loaned then.
pub fn loan_object(object: &Object, offset: u64, pages: usize) -> Result<Loan> {
    let mut loan = Loan::new();
    let index = Pages::floor(offset);
    let result = with(|uvm, held| uvm.loan_object(held, &object.pager(), index, pages, &mut loan));
    match result {
        Ok(_) | Err(GetError::PastEnd) => Ok(loan),
        Err(error) => {
            give_back(loan);
            Err(match error {
                GetError::NoMemory => ENOMEM,
                GetError::NoSpace => ENOSPC,
                _ => EIO,
            })
        }
    }
}

/// Ends a loan.
pub fn give_back(loan: Loan) {
    let returned = with(|uvm, held| uvm.return_loan(held, loan));
    returned.expect("there is one VM system");
}

/// Ends the loan of all pages but `kept`.
pub fn give_back_others(loan: &mut Loan, kept: Range<usize>) {
    let returned = with(|uvm, held| uvm.return_others(held, loan, kept));
    returned.expect("there is one VM system");
}

/// Ends the loan of a page.
#[inline]
pub fn give_back_page(page: LoanedPage) {
    let returned = with(|uvm, held| uvm.return_page(held, page));
    returned.expect("there is one VM system");
}

/// One more loan of a page that is on loan; `None` if the page has too many.
#[inline]
pub fn loan_again(page: &LoanedPage) -> Option<LoanedPage> {
    with(|uvm, _| uvm.loan_again(page))
}

/// One more loan of each of some pages, in order; fewer if a page has too many.
///
/// # Errors
/// [`NoMemory`].
pub fn loan_all_again<'a>(
    pages: impl ExactSizeIterator<Item = &'a LoanedPage>,
) -> core::result::Result<Loan, NoMemory> {
    let mut loan = Loan::new();
    with(|uvm, _| uvm.loan_all_again(pages, &mut loan)).map(|_| loan)
}

/// A page of the kernel's own, its bytes whatever they were.
///
/// # Errors
/// [`NoMemory`].
#[inline]
pub fn new_page() -> core::result::Result<LoanedPage, NoMemory> {
    with(|uvm, held| uvm.new_page(held))
}
