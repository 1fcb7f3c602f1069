//! Loans of objects' pages: to the kernel by name, and what becomes of one when the object is about
//! to be written.

use alloc::sync::Arc;

use crate::page::{Gather, Reserve};
use crate::page::{PageFlags, TryLoan as Found};
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot};

use super::out::SPECIAL;
use super::{Loan, LoanedPage};
use crate::anon::drop_page;
use crate::map::steps::MAPPINGS_OF_A_STEP;
use crate::map::ORef;
use crate::object::{resident, ObjectBody};
use crate::object::{Access, GetError, Pager};
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// Pages of an object that are loaned under one hold of its lock.
const AT_ONCE: usize = 64;

impl<M: Machine> Uvm<M> {
    /// Loans pages of an object to the kernel, from `index` on, brought in as they must be: for
    /// sendfile and splice. Holes that the pager knows are loaned as the page of zeroes. Adds to
    /// `loan`, as far as there is room in it, and says how many.
    ///
    /// # Errors
    /// [`GetError`], never `Wait` or `Read`, if the first page can't be had; if a later one can't,
    /// the ones before it are loaned.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
    /// let mut loan = Loan::new();
    /// assert_eq!(uvm.loan_object(held, &file, Pages(0), 4, &mut loan)?, 4);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn loan_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &Arc<dyn Pager<M>>,
        index: Pages,
        pages: usize,
        loan: &mut Loan,
    ) -> Result<usize, GetError> {
        let oref = ORef { pager: pager.clone(), offset: Pages(0) };
        let pages = pages.min(loan.room());
        self.make_loaned_room(loan, pages)?;
        let before = loan.len();
        let mut down = Gather::new();
        let (mut result, mut left) = (Ok(()), MAPPINGS_OF_A_STEP);
        while loan.len() - before < pages {
            let n = loan.len() - before;
            let at = Pages(index.0 + n as u64);
            let found =
                self.loan_resident_of(held, &oref, at, pages - n, loan, (&mut down, &mut left));
            if left == 0 {
                down.perform(self.frames(), self.mem(), held);
                self.mem().pause(held);
                left = MAPPINGS_OF_A_STEP;
            }
            if found > 0 {
                continue;
            }
            let access =
                Access::Call(crate::Advice::Normal, (pages - n).min(u32::MAX as usize) as u32);
            let found = self.attempt(held, crate::amap::slots::CLUSTER_BYTES, |held, _| {
                let mut ahead = None;
                match self.loan_in_object(held, &oref, at, access, &mut ahead, &mut down) {
                    Ok(page) => Ok((page, ahead)),
                    Err(stop) => {
                        down.perform(self.frames(), self.mem(), held);
                        // What is busy is read before anything is waited for.
                        Err(ahead.map_or(stop, Stop::Read))
                    }
                }
            });
            match found {
                Ok((page, ahead)) => {
                    loan.pages.push(page);
                    if let Some(start) = ahead {
                        down.perform(self.frames(), self.mem(), held);
                        self.start(held, start);
                    }
                }
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        down.perform(self.frames(), self.mem(), held);
        match (loan.len() - before, result) {
            (0, Err(e)) => Err(e),
            (count, _) => Ok(count),
        }
    }

    /// Loans the pages from `index` on that are there and idle, up to the first that isn't, and to
    /// [`AT_ONCE`]; fewer of those that many map: they count more of what is `left`. Says how many.
    fn loan_resident_of(
        &self,
        held: &mut Held<'_, order::Nothing>,
        oref: &ORef<M>,
        index: Pages,
        pages: usize,
        loan: &mut Loan,
        (down, left): (&mut Gather, &mut usize),
    ) -> usize {
        let mut numbers = [0; AT_ONCE];
        let numbers = &mut numbers[..pages.min(AT_ONCE)];
        let (frames, before) = (self.frames(), loan.len());
        let (body, mut h) = oref.pager.object().lock(held);
        if index >= body.length() {
            return 0;
        }
        body.window(index.0, numbers);
        for &number in &*numbers {
            if *left == 0 {
                break;
            }
            let is_plain = |page: &PageNo| !frames.flags(*page).intersects(SPECIAL);
            let Some(page) = resident(number).filter(is_plain) else { break };
            if frames.try_loan(page) != Found::Loaned {
                break;
            }
            frames.set_flags(page, PageFlags::TOUCHED);
            let pmap = self.mem().pmap();
            *left = left.saturating_sub(pmap.weight(page));
            pmap.page_protect(&mut h, page, Prot::READ_EXECUTE, down);
            loan.pages.push(LoanedPage(page));
        }
        let count = loan.len() - before;
        self.stat().add(self.mem().cpu(), Counter::LoansObject, count as u64);
        count
    }

    fn loan_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        oref: &ORef<M>,
        index: Pages,
        access: Access,
        ahead: &mut Option<crate::io::ReadRequest>,
        down: &mut Gather,
    ) -> Result<LoanedPage, Stop<GetError>> {
        let (mut body, mut h) = oref.pager.object().lock(held);
        let stat = |counter| self.stat().add(self.mem().cpu(), counter, 1);
        if body.page(index).is_none() && oref.pager.is_hole(&body, index) {
            stat(Counter::LoansZero);
            return self.zero_page(&mut h).map_err(|e| Stop::Fail(e.into()));
        }
        let found = self.find_page(&mut body, &mut h, oref, index, access, ahead);
        let page = found.map_err(|e| match e {
            GetError::Wait(ticket) => Stop::Wait(ticket),
            GetError::Read(start) => Stop::Read(start),
            other => Stop::Fail(other),
        })?;
        self.frames().set_flags(page, PageFlags::TOUCHED);
        self.loan_owned(&mut h, &body, page, down).map_err(|e| Stop::Fail(e.into()))
    }

    /// Loans an object's page, or a copy if it may be being written to; under the object's lock,
    /// had alone.
    pub(super) fn loan_owned(
        &self,
        held: &mut Held<'_, order::Object>,
        body: &ObjectBody,
        page: PageNo,
        down: &mut Gather,
    ) -> Result<LoanedPage, NoMemory> {
        let frames = self.frames();
        let wired = frames.wirings(page) != 0;
        // A pager may show pages that no object has.
        let owned = body.page(Pages(frames.index(page))) == Some(page);
        if wired || !owned || !frames.loan(page) {
            return self.loan_copy(held, page);
        }
        self.mem().pmap().page_protect(held, page, Prot::READ_EXECUTE, down);
        self.stat().add(self.mem().cpu(), Counter::LoansObject, 1);
        Ok(LoanedPage(page))
    }

    /// Gives an object a copy in place of a page of its that is loaned, and is about to be written.
    /// Whoever maps the object finds the copy.
    #[cold]
    pub(crate) fn replace_loaned(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        down: &mut Gather,
    ) -> Result<PageNo, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        let copy = frames.alloc(machine, held, Reserve::User)?;
        let unmapped = down.unmap(machine.frames(), machine, held, page);
        down.flush(machine.pmap());
        machine.copy(page, copy);
        frames.dequeue(held, page);
        body.exchange(frames, page, copy);
        frames.activate(machine, held, copy);
        drop_page(machine, held, unmapped, down);
        self.stat().add(machine.cpu(), Counter::LoansBroken, 1);
        Ok(copy)
    }
}
