//! Page loanout: pages of a program or an object, read by somebody else as they were, and never
//! copied unless somebody writes.
//!
//! ```text
//!   loaned            lender writes                    last return
//!   anon  --> P     anon  --> P' (a copy)            P is free
//!   kernel -> P     kernel -> P  (nobody's)
//! ```
//! A loan to the kernel is a count in the page's record. While it is there the page stays in memory
//! and its bytes don't change: no translation may write it, and whoever wants to, breaks the loan
//! first: the lender gets a new page with a copy, and the old one, which is nobody's any more, is
//! freed by the last borrower. If the borrowers were done before, the write just goes on. No map
//! entry is touched, so loaning fragments nothing.
//!
//! What can't be loaned is copied for the borrower instead, and looks the same to it: a page that a
//! device or the host may be writing to at this moment (it is wired, and not by the mapping it is
//! loaned from), a device's, one that is loaned 30,000 times. Memory that nobody has touched is
//! loaned as the one page of zeroes.
//!
//! I1: a page with loans is written by nobody: no translation allows it, faults and hosts break the
//! loan before. I2: a page that its owner has let go is nobody's, on no queue, mapped nowhere, and
//! held by somebody. I3: the page daemon passes loaned pages by, but that it ends loans to programs
//! that nobody needs (`pageout/loaned.rs`). I4: a loan is taken under the lock of the page's owner
//! and given back without any: see [`Frames::leave`](crate::page::Frames::leave).
//!
//! # Against the others
//! * *A store through a translation that a CPU still has* while the loan is made: it is what was
//!   loaned; the borrower gets the page only after all CPUs were told. *A fault that breaks the
//!   loan before that* protects the page again, and tells them, before it copies. *One that shows
//!   the page writable* does so under the owner's lock, before the loan is counted; the protection
//!   comes after. *A neighbour entered ahead* asks under the pmap's lock, as against the page
//!   daemon.
//! * *A new page, not yet entered*, is on no queue and isn't loaned: whoever loans faults, and so
//!   waits for it.
//! * *Fork, exit, unmap, truncation* don't look at loans: who drops a page leaves it to its
//!   borrowers.
//!
//! Source: 1998, section 4.1. The road not taken is the paper's array of page pointers with a
//! wiring each in the kernel's map: here the kernel sees all memory at a fixed address, and
//! borrowing maps nothing.

pub(crate) mod borrowers;
mod give;
mod object;
mod out;
pub(crate) mod remap;
pub(crate) mod slots;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::page::Reserve;
use machine::{order, Before, Held, Machine, NoMemory, PageNo};

use crate::owed::{Instance, Owed};
use crate::Uvm;

/// One page on loan: a right to read it. Give it back by [`Uvm::return_page`]. Dropping this does
/// not, panics with debug assertions, and fails every [audit](Uvm::audit) from then on.
#[must_use = "a page stays loaned until `return_page` or `return_loan` gets this back"]
#[derive(PartialEq, Eq, Debug)]
pub struct LoanedPage(pub(crate) PageNo);

impl LoanedPage {
    /// The page. Its bytes don't change while this is there.
    pub fn page(&self) -> PageNo {
        self.0
    }

    /// Ends the value. The loan is the caller's to end, or to make another's.
    #[inline]
    pub(crate) fn into_page(self) -> PageNo {
        let page = self.0;
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

/// Pages on loan, in order. Give them back by [`Uvm::return_loan`], or one by one: see
/// [`LoanedPage`].
#[must_use = "pages stay loaned until `return_loan` gets this back"]
#[derive(Default, Debug)]
pub struct Loan {
    pub(crate) pages: Vec<LoanedPage>,
    /// Whose the first of them were, if they came from an instance as a list.
    pub(crate) of: Instance,
}

/// What was to be given back, or made a program's, is on loan from another instance of [`Uvm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotOurs;

impl fmt::Display for NotOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a loan of another VM system")
    }
}

impl core::error::Error for NotOurs {}

impl Loan {
    /// Nothing.
    pub const fn new() -> Loan {
        Loan { pages: Vec::new(), of: Instance::NONE }
    }

    /// The pages, in order.
    pub fn pages(&self) -> &[LoanedPage] {
        &self.pages
    }

    /// The pages one by one, for who keeps them elsewhere.
    pub fn into_pages(self) -> Vec<LoanedPage> {
        self.pages
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The most pages of one: its list is one allocation, which a host promises up to 16 KiB.
    pub const MOST: usize = 16384 / size_of::<LoanedPage>();

    /// Pages that can be added.
    pub fn room(&self) -> usize {
        Self::MOST.saturating_sub(self.len())
    }

    /// Heap bytes of so many pages: what a caller reserves before it cuts or joins.
    pub const fn bytes(pages: usize) -> usize {
        2 * pages.next_power_of_two() * size_of::<LoanedPage>() + 64
    }

    /// Cuts it: the pages from `at` on are returned. The heap for them has been reserved.
    pub fn split_off(&mut self, at: usize) -> Loan {
        Loan { pages: self.pages.split_off(at), of: self.of }
    }

    /// Cuts the list as [`split_off`](Self::split_off) does, where no heap has been reserved.
    ///
    /// # Errors
    /// [`NoMemory`], and it is whole.
    pub fn try_split_off(&mut self, at: usize) -> Result<Loan, NoMemory> {
        let mut rest = Vec::new();
        rest.try_reserve_exact(self.len() - at).map_err(|_| NoMemory)?;
        rest.extend(self.pages.drain(at..));
        Ok(Loan { pages: rest, of: self.of })
    }

    /// Adds a page; the heap for it has been reserved.
    pub fn push(&mut self, page: LoanedPage) {
        self.pages.push(page);
    }

    /// The loans have become another's.
    pub(crate) fn hand_over(&mut self) {
        self.pages.drain(..).for_each(|page| _ = page.into_page());
    }

    /// Adds another's pages behind its own. The heap for all has been reserved.
    ///
    /// # Panics
    /// If the lists are of two instances of [`Uvm`].
    pub fn append(&mut self, mut other: Loan) {
        if self.is_empty() || self.of == Instance::NONE {
            self.of = other.of;
        }
        let is_one = other.is_empty() || other.of == Instance::NONE || other.of == self.of;
        assert!(is_one, "loans of two VM systems in one list");
        self.pages.append(&mut other.pages);
    }
}

impl From<Vec<LoanedPage>> for Loan {
    fn from(pages: Vec<LoanedPage>) -> Loan {
        Loan { pages, of: Instance::NONE }
    }
}

impl FromIterator<LoanedPage> for Loan {
    /// The heap for them has been reserved.
    fn from_iter<I: IntoIterator<Item = LoanedPage>>(pages: I) -> Loan {
        Loan::from(pages.into_iter().collect::<Vec<_>>())
    }
}

impl<M: Machine> Uvm<M> {
    /// One more loan of a page that is on loan: a loan of a loan. `None` if it is loaned 30,000
    /// times already: copy it.
    pub fn loan_again(&self, page: &LoanedPage) -> Option<LoanedPage> {
        let loaned = self.is_zero_page(page.0) || self.frames().loan(page.0);
        loaned.then(|| LoanedPage(page.0))
    }

    /// One more loan of each of some pages, in order, added to `loan` as far as it has room. Fewer
    /// if a page is loaned too often.
    ///
    /// # Errors
    /// [`NoMemory`]: no heap for the list; nothing was added.
    pub fn loan_all_again<'a>(
        &self,
        pages: impl ExactSizeIterator<Item = &'a LoanedPage>,
        loan: &mut Loan,
    ) -> Result<usize, NoMemory> {
        let count = pages.len().min(loan.room());
        self.make_loaned_room(loan, count)?;
        let (before, zero) = (loan.len(), self.zero_page.get().copied());
        for &LoanedPage(page) in pages.take(count) {
            if Some(page) != zero && !self.frames().loan(page) {
                break;
            }
            loan.pages.push(LoanedPage(page));
        }
        Ok(loan.len() - before)
    }

    /// Gives a page back. The last return frees it, if its owner has let it go meanwhile. Takes no
    /// lock but, then, that of the CPU's free pages.
    ///
    /// # Errors
    /// [`NotOurs`], and the page, where this instance has no frame of its number on loan. A page by
    /// itself doesn't know its instance: if one of the same number is on loan here, that is taken
    /// for it.
    #[inline]
    pub fn return_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: LoanedPage,
    ) -> Result<(), (NotOurs, LoanedPage)> {
        if !self.is_loaned_here(page.0) {
            return Err((NotOurs, page));
        }
        self.end_loan(held, page);
        Ok(())
    }

    #[inline]
    fn is_loaned_here(&self, page: PageNo) -> bool {
        (page.0 as usize) < self.frames().numbers()
            && (self.frames().loans(page) != 0 || self.is_zero_page(page))
    }

    /// Whether a list's loans are this instance's, as far as it knows.
    #[inline]
    pub(crate) fn is_ours(&self, loan: &Loan) -> bool {
        loan.of == self.instance
            || loan.is_empty()
            || loan.of == Instance::NONE && loan.pages.iter().all(|p| self.is_loaned_here(p.0))
    }

    /// Ends the loan of a page.
    #[inline]
    pub(crate) fn end_loan<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: LoanedPage,
    ) {
        let page = page.into_page();
        if !self.is_zero_page(page) && self.frames().end_loan(page) {
            self.frames().free_page(self.mem(), held, page);
        }
        self.pages_may_go();
    }

    /// Gives pages back: see [`return_page`](Self::return_page).
    ///
    /// # Errors
    /// [`NotOurs`], and the loan as it was, if it is another instance's. A list that the host has
    /// made of single pages is looked at page by page, as `return_page` does.
    pub fn return_loan<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        loan: Loan,
    ) -> Result<(), (NotOurs, Loan)> {
        if !self.is_ours(&loan) {
            return Err((NotOurs, loan));
        }
        self.return_pages(held, loan.pages.into_iter());
        Ok(())
    }

    pub(crate) fn return_pages<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        pages: impl Iterator<Item = LoanedPage>,
    ) {
        let zero = self.zero_page.get().copied();
        for page in pages.map(LoanedPage::into_page) {
            if Some(page) != zero && self.frames().end_loan(page) {
                self.frames().free_page(self.mem(), held, page);
            }
        }
        self.pages_may_go();
    }

    /// Gives back all pages but `kept`: see [`return_page`](Self::return_page).
    ///
    /// # Errors
    /// [`NotOurs`], with nothing given back.
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
    fn make_loaned_room(&self, loan: &mut Loan, pages: usize) -> Result<(), NoMemory> {
        if loan.is_empty() {
            loan.of = self.instance;
        }
        let is_one = [self.instance, Instance::NONE].contains(&loan.of);
        assert!(is_one, "loans of two VM systems in one list");
        let all = loan.len() + pages;
        if loan.pages.capacity() < all {
            self.mem().reserve_heap(Loan::bytes(all))?;
            loan.pages.reserve_exact(pages);
        }
        Ok(())
    }

    /// A new page of the kernel's in the form of a loan, its bytes whatever they were: to be filled
    /// by the caller, who is the only one that has it, and [transferred](Self::transfer) or given
    /// back.
    ///
    /// # Errors
    /// [`NoMemory`]. Who may wait asks [`Uvm::make_room`] then.
    pub fn new_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<LoanedPage, NoMemory> {
        let page = self.frames().alloc(self.mem(), held, Reserve::User)?;
        self.frames().disown(page);
        Ok(LoanedPage(page))
    }

    /// Adds `count` [new pages](Self::new_page) to what the caller has, as far as there is room in
    /// it. Cost: a lock or two for all.
    ///
    /// # Errors
    /// [`NoMemory`]: nothing was added.
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
            frames.disown(page);
            loan.pages.push(LoanedPage(page));
        });
        if taken.is_err() {
            self.return_pages(held, loan.pages.drain(before..));
        }
        taken
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
    pub fn zero_page<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<LoanedPage, NoMemory> {
        if let Some(&page) = self.zero_page.get() {
            return Ok(LoanedPage(page));
        }
        let page = self.frames().alloc(self.mem(), held, Reserve::User)?;
        self.mem().zero(page);
        let shared = *self.zero_page.call_once(|| page);
        if shared != page {
            self.frames().free_page(self.mem(), held, page);
        }
        Ok(LoanedPage(shared))
    }
}
