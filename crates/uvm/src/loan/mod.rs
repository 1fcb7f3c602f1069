//! Page loanout: pages of a program or an object, read by the kernel or another program as they
//! were, and never copied unless they are stored to.
//!
//! ```text
//!   loaned            lender writes                    last return
//!   anon  --> P     anon  --> P' (a copy)            P is free
//!   kernel -> P     kernel -> P  (ownerless)
//! ```
//! A loan to the kernel is a count in the page's record. While it is there the page stays in memory
//! and its bytes don't change: no translation may write it, and a store breaks the loan first:
//! the lender gets a new page with a copy, and the old one, which has no owner any more, is freed
//! by the last borrower. If the borrowers were done before, the write just goes on. No map entry is
//! touched, so loaning fragments nothing.
//!
//! What can't be loaned is copied for the borrower instead, and looks the same to it: a page that a
//! device or the host may be writing to at this moment (it is wired, and not by the mapping it is
//! loaned from), a device's, one that is loaned 30,000 times. Memory that no program has touched is
//! loaned as the one page of zeroes.
//!
//! I1: no thread writes a page with loans: no translation allows it, faults and hosts break the
//! loan before. I2: a page that its owner has let go has no owner, is on no queue, mapped nowhere,
//! and held. I3: the page daemon skips loaned pages, except that it gives slots that hold loans
//! anons (`pageout/loaned.rs`). I4: a loan is taken under the lock of the page's owner and
//! given back without any: see [`Frames::disown`](crate::page::Frames::disown).
//!
//! # Against the others
//! * *A store through a translation that a CPU still has* while the loan is made: it is what was
//!   loaned; the borrower gets the page only after all CPUs were flushed. *A fault that breaks the
//!   loan before that* protects the page again, and flushes them, before it copies. *One that shows
//!   the page writable* does so under the owner's lock, before the loan is counted; the protection
//!   comes after. *A neighbour entered ahead* asks under the pmap's lock, as against the page
//!   daemon.
//! * *A new page, not yet entered*, is on no queue and isn't loaned: a thread that is to loan it
//!   faults, and so waits for it.
//! * *Fork, exit, unmap, truncation* don't look at loans: an owner that drops a page leaves
//!   it to the borrowers.
//!
//! Source: 1998, section 4.1. The road not taken is the paper's array of page pointers with a
//! wiring each in the kernel's map: here the kernel sees all memory at a fixed address, and
//! borrowing maps nothing.

mod list;

use core::ops::Range;

use machine::{order, Before, Held, Machine, NoMemory, PageNo};

use crate::owed::{Instance, Owed};
use crate::page::Reserve;
use crate::stat::Counter;
use crate::Uvm;
pub use list::Loan;

/// One page on loan: a right to read it. Give it back by [`Uvm::return_page`]. Dropping this does
/// not, panics with debug assertions, and fails every [audit](Uvm::audit) from then on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 1)?;
/// let page = uvm.loan_to_kernel(held, space, range)?.into_pages().remove(0);
/// let mut byte = [0];
/// uvm.machine().read(page.page(), 0, &mut byte);
/// assert_eq!(byte, [1]);
/// uvm.return_page(held, page).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[must_use = "a page stays loaned until `return_page` or `return_loan` gets this back"]
#[derive(PartialEq, Eq, Debug)]
pub struct LoanedPage {
    page: PageNo,
    of: Instance,
}

impl LoanedPage {
    /// The page. Its bytes don't change while this is there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// uvm.machine().write(page.page(), 0, b"the kernel's own");
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn page(&self) -> PageNo {
        self.page
    }

    /// Ends the value. The loan is the caller's to end, or to make another's.
    #[inline]
    pub(crate) fn into_page(self) -> PageNo {
        let page = self.page;
        core::mem::forget(self);
        page
    }
}

impl Drop for LoanedPage {
    #[inline]
    fn drop(&mut self) {
        Owed::Loan.note_dropped();
    }
}

/// What was to be given back, or made a program's, is on loan from another instance of [`Uvm`].
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let other = SoftMachine::new(Config::default()).into_uvm()?;
/// let range = memory(uvm, held, space, 1)?;
/// let loan = uvm.loan_to_kernel(held, space, range)?;
/// let Err((NotOurs, loan)) = other.return_loan(held, loan) else { panic!("it isn't its own") };
/// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotOurs;

impl<M: Machine> Uvm<M> {
    /// A page that has been loaned.
    #[inline]
    pub(crate) fn loaned(&self, page: PageNo) -> LoanedPage {
        LoanedPage { page, of: self.instance }
    }

    /// One more loan of a page that is on loan: a loan of a loan. `None` if it is loaned 30,000
    /// times already: copy it; or if it is on loan from another instance.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// let again = uvm.loan_again(&page).ok_or("it is on loan too often")?;
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// uvm.machine().write(again.page(), 0, b"there until the last return");
    /// uvm.return_page(held, again).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn loan_again(&self, page: &LoanedPage) -> Option<LoanedPage> {
        let number = page.page;
        let mut is_loaned = self.has_loaned(page);
        is_loaned = is_loaned && (self.is_zero_page(number) || self.frames().loan(number));
        is_loaned.then(|| self.loaned(number))
    }

    /// One more loan of each of some pages, in order, added to `loan` as far as it has room. Fewer
    /// if a page is loaned too often, or is another instance's.
    ///
    /// # Errors
    /// [`NoMemory`]: no heap for the list; nothing was added.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let (loan, mut again) = (uvm.loan_to_kernel(held, space, range)?, Loan::new());
    /// assert_eq!(uvm.loan_all_again(loan.pages().iter(), &mut again)?, 2);
    /// # for loan in [loan, again] { uvm.return_loan(held, loan).map_err(|(why, _)| why)?; }
    /// # Ok(()) });
    /// ```
    pub fn loan_all_again<'a>(
        &self,
        pages: impl ExactSizeIterator<Item = &'a LoanedPage>,
        loan: &mut Loan,
    ) -> Result<usize, NoMemory> {
        let count = pages.len().min(loan.room());
        self.make_loaned_room(loan, count)?;
        let (before, zero) = (loan.len(), self.zero_page.get().copied());
        for &LoanedPage { page, of } in pages.take(count) {
            if of != self.instance || Some(page) != zero && !self.frames().loan(page) {
                break;
            }
            loan.pages.push(self.loaned(page));
        }
        Ok(loan.len() - before)
    }

    /// Gives a page back. The last return frees it, if its owner has let it go meanwhile. Takes no
    /// lock but, then, that of the CPU's free pages.
    ///
    /// # Errors
    /// [`NotOurs`], and the page, if it is another instance's.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let free = uvm.frames().free();
    /// let page = uvm.new_page(held)?;
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// assert_eq!(uvm.frames().free(), free);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn return_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: LoanedPage,
    ) -> Result<(), (NotOurs, LoanedPage)> {
        if !self.has_loaned(&page) {
            return Err((NotOurs, page));
        }
        self.return_pages(held, [page]);
        Ok(())
    }

    /// Whether a page is on loan from this instance.
    #[inline]
    pub(crate) fn has_loaned(&self, page: &LoanedPage) -> bool {
        page.of == self.instance
    }

    /// Whether a list's loans are this instance's.
    #[inline]
    pub(crate) fn is_ours(&self, loan: &Loan) -> bool {
        loan.of == self.instance || loan.is_empty()
    }

    /// Gives pages back: see [`return_page`](Self::return_page).
    ///
    /// # Errors
    /// [`NotOurs`], and the loan as it was, if it is another instance's.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn return_loan<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        loan: Loan,
    ) -> Result<(), (NotOurs, Loan)> {
        if !self.is_ours(&loan) {
            return Err((NotOurs, loan));
        }
        self.return_pages(held, loan.pages);
        Ok(())
    }

    pub(crate) fn return_pages<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        pages: impl IntoIterator<Item = LoanedPage>,
    ) {
        let zero = self.zero_page.get().copied();
        for page in pages.into_iter().map(LoanedPage::into_page) {
            if Some(page) != zero && self.frames().end_loan(page) {
                self.frames().free_page(self.mem(), held, page);
            }
        }
        self.mem().pages_may_go();
    }

    /// Gives back all pages but `kept`: see [`return_page`](Self::return_page).
    ///
    /// # Errors
    /// [`NotOurs`], with nothing given back.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 5)?;
    /// let mut loan = uvm.loan_to_kernel(held, space, range)?;
    /// uvm.return_others(held, &mut loan, 1..3)?;
    /// assert_eq!(loan.len(), 2);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn return_others<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        loan: &mut Loan,
        kept: Range<usize>,
    ) -> Result<(), NotOurs> {
        if !self.is_ours(loan) {
            return Err(NotOurs);
        }
        self.return_pages(held, loan.pages.drain(kept.end..));
        self.return_pages(held, loan.pages.drain(..kept.start));
        Ok(())
    }

    /// Makes room for more pages in a list, which are this instance's.
    ///
    /// # Panics
    /// If the list has another instance's.
    pub(crate) fn make_loaned_room(&self, loan: &mut Loan, pages: usize) -> Result<(), NoMemory> {
        loan.join(self.instance);
        let all = loan.len() + pages;
        if loan.pages.capacity() < all {
            self.mem().reserve_heap(Loan::bytes(all))?;
            loan.pages.reserve_exact(pages);
        }
        Ok(())
    }

    /// A new page of the kernel's in the form of a loan, its bytes whatever they were: to be filled
    /// by the caller, which alone has it, and [transferred](Self::transfer) or given
    /// back.
    ///
    /// # Errors
    /// [`NoMemory`]. A caller that may wait asks [`Uvm::make_room`] then.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// uvm.machine().zero(page.page());
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn new_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<LoanedPage, NoMemory> {
        let page = self.frames().alloc(self.mem(), held, Reserve::User)?;
        self.frames().loan_unowned(page);
        Ok(self.loaned(page))
    }

    /// Adds `count` [new pages](Self::new_page) to what the caller has, as far as there is room in
    /// it. Cost: a lock or two for all.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing was added.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut loan = Loan::new();
    /// uvm.new_pages(held, 4, &mut loan)?;
    /// uvm.transfer(held, space, loan, At::Anywhere).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn new_pages<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        count: usize,
        loan: &mut Loan,
    ) -> Result<(), NoMemory> {
        let (before, count) = (loan.len(), count.min(loan.room()));
        self.make_loaned_room(loan, count)?;
        let frames = self.frames();
        let taken = frames.alloc_many(self.mem(), held, Reserve::User, count, |page| {
            frames.loan_unowned(page);
            loan.pages.push(self.loaned(page));
        });
        if taken.is_err() {
            self.return_pages(held, loan.pages.drain(before..));
        }
        taken
    }

    /// A [new page](Self::new_page) with the bytes of another, which its owner's lock, a wiring or
    /// a loan keeps; it counts as `why` it is made.
    #[cold]
    pub(crate) fn loaned_copy<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: PageNo,
        why: Counter,
    ) -> Result<LoanedPage, NoMemory> {
        let copy = self.mem().copied_page(held, page)?;
        self.frames().loan_unowned(copy);
        self.count(why, 1);
        Ok(self.loaned(copy))
    }

    /// A copy of what can't be loaned as it is.
    pub(crate) fn loan_copy<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) -> Result<LoanedPage, NoMemory> {
        self.loaned_copy(held, page, Counter::LoansCopied)
    }

    /// Whether a page is the one of zeroes, which is loaned without counting.
    #[inline]
    pub(crate) fn is_zero_page(&self, page: PageNo) -> bool {
        self.zero_page.get() == Some(&page)
    }

    /// The page of zeroes: it is made when first asked for, and stays.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.zero_page(held)?;
    /// let mut bytes = [1; 4];
    /// uvm.machine().read(page.page(), 0, &mut bytes);
    /// assert_eq!(bytes, [0; 4]);
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn zero_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<LoanedPage, NoMemory> {
        if let Some(&page) = self.zero_page.get() {
            return Ok(self.loaned(page));
        }
        let page = self.mem().zeroed_page(held)?;
        let shared = *self.zero_page.call_once(|| page);
        if shared != page {
            self.frames().free_page(self.mem(), held, page);
        }
        Ok(self.loaned(shared))
    }
}
