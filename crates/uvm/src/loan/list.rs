//! Pages on loan in a list, as they go through queues.

use alloc::vec::Vec;
use machine::NoMemory;

use super::LoanedPage;
use crate::owed::Instance;

/// Pages on loan, in order. Give them back by [`Uvm::return_loan`](crate::Uvm::return_loan), or one
/// by one: see [`LoanedPage`].
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 3)?;
/// let loan = uvm.loan_to_kernel(held, space, range)?;
/// store(uvm, space, range.start, b"later")?;
/// let mut byte = [0];
/// uvm.machine().read(loan.pages()[0].page(), 0, &mut byte);
/// assert_eq!(byte, [1], "what is on loan stays as it was");
/// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[must_use = "pages stay loaned until `return_loan` gets this back"]
#[derive(Default, Debug)]
pub struct Loan {
    pub(crate) pages: Vec<LoanedPage>,
    /// Whose all of them are.
    pub(super) of: Instance,
}

impl Loan {
    /// Nothing.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut loan = Loan::new();
    /// uvm.new_pages(held, 2, &mut loan)?;
    /// assert_eq!(loan.len(), 2);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub const fn new() -> Loan {
        Loan { pages: Vec::new(), of: Instance::NONE }
    }

    /// The pages, in order.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// for page in loan.pages() {
    ///     println!("{:?}", uvm.frames().pa(page.page()));
    /// }
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn pages(&self) -> &[LoanedPage] {
        &self.pages
    }

    /// The pages one by one, for a host that keeps them elsewhere.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// for page in uvm.loan_to_kernel(held, space, range)?.into_pages() {
    ///     uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// }
    /// # Ok(()) });
    /// ```
    pub fn into_pages(self) -> Vec<LoanedPage> {
        self.pages
    }

    /// How many there are.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// assert_eq!(loan.len(), 2);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is none.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(Loan::new().is_empty());
    /// # Ok(()) });
    /// ```
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The most pages of one: its list is one allocation, which a host promises up to 16 KiB.
    pub const MOST: usize = 16384 / size_of::<LoanedPage>();

    /// Pages that can be added.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut loan = Loan::new();
    /// uvm.new_pages(held, 4, &mut loan)?;
    /// println!("{} more without an allocation", loan.room());
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn room(&self) -> usize {
        Self::MOST.saturating_sub(self.len())
    }

    /// Heap bytes of so many pages: what a caller reserves before it cuts or joins.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.machine().reserve_heap(Loan::bytes(16))?;
    /// # Ok(()) });
    /// ```
    pub const fn bytes(pages: usize) -> usize {
        2 * pages.next_power_of_two() * size_of::<LoanedPage>() + 64
    }

    /// Cuts the list: the pages from `at` on are returned.
    ///
    /// # Errors
    /// [`NoMemory`], and it is whole.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 5)?;
    /// let mut loan = uvm.loan_to_kernel(held, space, range)?;
    /// let rest = loan.try_split_off(2)?;
    /// assert_eq!((loan.len(), rest.len()), (2, 3));
    /// # for loan in [loan, rest] { uvm.return_loan(held, loan).map_err(|(why, _)| why)?; }
    /// # Ok(()) });
    /// ```
    pub fn try_split_off(&mut self, at: usize) -> Result<Loan, NoMemory> {
        let mut rest = Vec::new();
        rest.try_reserve_exact(self.len() - at).map_err(|_| NoMemory)?;
        rest.extend(self.pages.drain(at..));
        Ok(Loan { pages: rest, of: self.of })
    }

    /// Adds a page; the heap for it has been reserved.
    ///
    /// # Panics
    /// If the list is of another instance of [`Uvm`](crate::Uvm).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut loan = Loan::new();
    /// uvm.machine().reserve_heap(Loan::bytes(1))?;
    /// loan.push(uvm.new_page(held)?);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn push(&mut self, page: LoanedPage) {
        self.join(page.of);
        self.pages.push(page);
    }

    /// Makes it a list of an instance's pages, as those are that it has.
    pub(super) fn join(&mut self, of: Instance) {
        if self.is_empty() {
            self.of = of;
        }
        assert!(self.of == of, "loans of two VM systems in one list");
    }

    /// The loans have become another's.
    pub(crate) fn hand_over(&mut self) {
        self.pages.drain(..).for_each(|page| _ = page.into_page());
    }

    /// Adds another's pages behind its own. The heap for all has been reserved.
    ///
    /// # Panics
    /// If the lists are of two instances of [`Uvm`](crate::Uvm).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let mut loan = uvm.loan_to_kernel(held, space, range)?;
    /// let twice = uvm.loan_to_kernel(held, space, range)?;
    /// uvm.machine().reserve_heap(Loan::bytes(4))?;
    /// loan.append(twice);
    /// assert_eq!(loan.len(), 4);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn append(&mut self, mut other: Loan) {
        if !other.is_empty() {
            self.join(other.of);
            self.pages.append(&mut other.pages);
        }
    }
}

impl FromIterator<LoanedPage> for Loan {
    /// The heap for them has been reserved.
    ///
    /// # Panics
    /// If the pages are of two instances of [`Uvm`](crate::Uvm).
    fn from_iter<I: IntoIterator<Item = LoanedPage>>(pages: I) -> Loan {
        let pages = Vec::from_iter(pages);
        let mut loan = Loan::new();
        pages.first().iter().for_each(|page| loan.join(page.of));
        assert!(pages.iter().all(|page| page.of == loan.of), "loans of two VM systems in one list");
        Loan { pages, ..loan }
    }
}
