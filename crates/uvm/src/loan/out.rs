//! Loaning a range of addresses to the kernel.
//!
//! What is resident is loaned run by run, under the map's lock to read. A page that isn't is
//! brought in by a fault with nothing held, and looked at again; if it is gone again by then it is
//! pinned and copied, so that every page ends.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::page::{Gather, Reserve};
use crate::page::{PageFlags, TryLoan as Found};
use machine::{
    order, Before, Held, Machine, NoMemory, PageNo, PageRange, Pages, Pmap, Prot, Va, VaRange,
};

use super::{Loan, LoanedPage};
use crate::amap::{ARef, AmapBody};
use crate::anon::AnonNo;
use crate::counted::{AtomicU32, Ordering::Acquire};
use crate::fault::{FaultError, Reach};
use crate::loan::slots::Content;
use crate::map::steps::MAPPINGS_OF_A_STEP;
use crate::map::{Entry, Map, ORef, Writes};
use crate::object::resident;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// What must be looked at by a fault before a page is loaned.
pub(super) const SPECIAL: PageFlags =
    PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD);

/// A call under way.
pub(super) struct LoanOut<'a, M: Machine> {
    space: &'a Space<M>,
    pub(super) loan: &'a mut Loan,
    down: &'a mut Gather,
    /// What is left of [`MAPPINGS_OF_A_STEP`]. At zero the hold of the map's lock ends.
    left: usize,
    anons: u64,
    zeroes: u64,
}

impl<'a, M: Machine> LoanOut<'a, M> {
    pub(super) fn new(space: &'a Space<M>, loan: &'a mut Loan, down: &'a mut Gather) -> Self {
        LoanOut { space, loan, down, left: MAPPINGS_OF_A_STEP, anons: 0, zeroes: 0 }
    }

    /// Whether as much is lowered as may be under one hold of the map's lock.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Counts a page whose mappings are about to be lowered.
    fn count_lowered(&mut self, pmap: &M::Pmap, page: PageNo) {
        self.left = self.left.saturating_sub(pmap.weight(page));
    }
}

impl<M: Machine> Uvm<M> {
    /// Loans the pages of a range to the kernel, at most [`Loan::MOST`] from that of its start on,
    /// as a load from each would see them at this moment: anonymous memory, pages of files, shared
    /// memory, memory that nobody has touched, in any mixture. What isn't resident is brought in.
    /// The lender's next store to a page that is loaned yet gets it a copy.
    ///
    /// Cost: a look-up an entry, and one more if it is a submap's, some steps a page; one round of
    /// interrupts an entry at most, to CPUs that run in a space that may write to the pages. No
    /// entry of the map changes.
    ///
    /// Source: UVM's `uvm_loan` to the kernel; 1998, section 4.1.
    ///
    /// # Errors
    /// [`FaultError`], as for a load from the page that can't be had; nothing is loaned then.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// assert_eq!(uvm.stat().get(Counter::LoansBroken), 0);
    /// store(uvm, space, range.start, b"x")?;
    /// assert_eq!(uvm.stat().get(Counter::LoansBroken), 1, "the store got a page of its own");
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn loan_to_kernel(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<Loan, FaultError> {
        let mut loan = Loan::new();
        self.loan_range(held, space, range, &mut loan).map(|()| loan)
    }

    /// Loans pages to the kernel as [`loan_to_kernel`](Self::loan_to_kernel) does, and adds the
    /// loans to `loan` as far as it has room. An error adds none.
    ///
    /// # Errors
    /// See [`loan_to_kernel`](Self::loan_to_kernel).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (one, two) = (memory(uvm, held, space, 2)?, memory(uvm, held, space, 3)?);
    /// let mut loan = Loan::new();
    /// uvm.loan_range(held, space, one, &mut loan)?;
    /// uvm.loan_range(held, space, two, &mut loan)?;
    /// assert_eq!(loan.len(), 5);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn loan_range(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
        loan: &mut Loan,
    ) -> Result<(), FaultError> {
        let before = loan.len();
        let pages = range.pages().min(Pages(loan.room() as u64));
        let range = VaRange::new(range.start, range.start + pages);
        self.make_loaned_room(loan, pages.0 as usize)?;
        let mut down = Gather::new();
        let mut out = LoanOut::new(space, loan, &mut down);
        let result = self.loan_all(held, range, &mut out);
        self.count_loans(&out);
        if result.is_err() {
            for page in loan.pages.drain(before..) {
                self.end_loan(held, page);
            }
        }
        result
    }

    pub(super) fn count_loans(&self, out: &LoanOut<'_, M>) {
        let (cpu, stat) = (self.mem().cpu(), self.stat());
        stat.add(cpu, Counter::LoansAnon, out.anons);
        stat.add(cpu, Counter::LoansZero, out.zeroes);
    }

    fn loan_all(
        &self,
        held: &mut Held<'_, order::Nothing>,
        range: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), FaultError> {
        let before = out.loan.len();
        let mut missed = None;
        loop {
            let at = self.attempt(held, 0, |held, _| {
                // What is loaned stays so: an attempt goes on behind what those before it have
                // loaned.
                let at = range.start + Pages((out.loan.len() - before) as u64);
                out.left = MAPPINGS_OF_A_STEP;
                self.loan_resident(held, VaRange::new(at, range.end), out)
            })?;
            if at == range.end {
                return Ok(());
            }
            if out.is_over() {
                self.mem().pause(held);
                continue;
            }
            if missed.replace(at) == Some(at) {
                let page =
                    self.fault_and_pin(held, out.space, at, Prot::READ, Reach::AsProgram)?.page;
                let copy =
                    self.attempt(held, 0, |held, _| self.loan_copy(held, page).map_err(Stop::Fail));
                self.unwire_page(held, page);
                out.loan.pages.push(copy?);
            } else {
                self.fault(held, out.space, at, Prot::READ)?;
            }
        }
    }

    /// Loans what is resident from the range's start on, and says where that ends.
    fn loan_resident(
        &self,
        held: &mut Held<'_, order::Nothing>,
        range: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<Va, Stop<FaultError>> {
        let space = out.space;
        let mut at = range.start;
        let mut submap: Option<Arc<Map<M>>> = None;
        while at < range.end {
            // Each entry of a submap is looked for from the space's map on, which knows where the
            // submap ends.
            let below = submap.take();
            let map = below.as_deref().unwrap_or(&space.map);
            let (tree, mut h) = map.read_now(self.mem(), held).map_err(Stop::Wait)?;
            let Some(entry) = tree.get(at) else {
                drop(tree);
                map.confirm_hole(self.mem(), held, at).map_err(Stop::Wait)?;
                return Err(FaultError::NoMapping.into());
            };
            if entry.submap.is_some() {
                submap.clone_from(&entry.submap);
                continue;
            }
            if !entry.prot.contains(Prot::READ) {
                return Err(FaultError::Protection.into());
            }
            let part = VaRange::new(at, entry.range.end.min(range.end));
            let first = out.loan.len();
            let result = self.loan_part(&mut h, entry, part, out);
            // Before the mapping may go: a store that follows its end is not in the loan.
            out.down.flush(self.mem().pmap());
            result.map_err(FaultError::from)?;
            at = at + Pages((out.loan.len() - first) as u64);
            if at < part.end || out.is_over() {
                break;
            }
        }
        Ok(at)
    }

    /// Loans what is resident of an entry's part, from its start on.
    pub(super) fn loan_part(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &Entry<M>,
        part: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory> {
        match &entry.amap {
            Some(aref) => self.loan_upper(held, entry, aref, part, out),
            None => self.loan_below(held, entry, part, out),
        }
    }

    /// Loans from an entry with an amap: anons, and what lies below where there are none.
    fn loan_upper(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &Entry<M>,
        aref: &ARef<M>,
        part: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory> {
        let first = out.loan.len();
        let result = {
            let (body, mut h) = aref.amap.body.read(held);
            self.loan_slots(&mut h, entry, aref, &body, part, out)
        };
        let loaned = Pages((out.loan.len() - first) as u64);
        if entry.writes != Writes::NeedsCopy {
            // Where the slots are this entry's alone nobody else can write to them.
            let (pmap, space) = (self.mem().pmap(), &out.space.pmap);
            let range = VaRange::new(part.start, part.start + loaned);
            pmap.protect(held, space, range, entry.prot.without_write(), out.down);
        }
        result
    }

    fn loan_slots(
        &self,
        held: &mut Held<'_, order::Amap>,
        entry: &Entry<M>,
        aref: &ARef<M>,
        body: &AmapBody<M>,
        part: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory> {
        let mut at = part.start;
        let slot = entry.slot(aref, at);
        let exclusive = body.cover.is_exclusive(slot..slot + part.pages().0);
        let others_write = !exclusive && entry.writes != Writes::NeedsCopy;
        while at < part.end {
            let slot = entry.slot(aref, at);
            let here = body.slots.part(slot, slot + (part.end - at).0);
            let mut next = 0;
            while next < here.len() {
                if !others_write {
                    let loaned = self.loan_idle_anons(held, here.rest(next), &mut out.loan.pages);
                    out.anons += loaned as u64;
                    next += loaned;
                    if next == here.len() {
                        break;
                    }
                }
                let va = at + Pages(next as u64);
                if let Some(number) = here.number(next) {
                    let no = match Content::of(number) {
                        Content::Anon(no) => no,
                        Content::Borrowed(page) => {
                            self.loan_borrowed(held, page, out)?;
                            next += 1;
                            continue;
                        }
                    };
                    let is_there = || here.number(next) == Some(number);
                    if !self.loan_anon(held, entry, no, is_there, va, others_write, out)? {
                        return Ok(());
                    }
                    next += 1;
                    continue;
                }
                let empty = (next..here.len()).take_while(|&n| here.number(n).is_none()).count();
                let run = VaRange::new(va, va + Pages(empty as u64));
                let before = out.loan.len();
                self.loan_below(held, entry, run, out)?;
                if out.loan.len() - before < empty {
                    return Ok(());
                }
                next += empty;
            }
            at = at + Pages(here.len() as u64);
        }
        Ok(())
    }

    /// Loans the pages of anons in a row, as far as that takes no more than to count. Says how
    /// many. A loop of its own, which nearly all pages that are loaned go through.
    #[inline(never)]
    fn loan_idle_anons(
        &self,
        held: &mut Held<'_, order::Amap>,
        slots: &[AtomicU32],
        loan: &mut Vec<LoanedPage>,
    ) -> usize {
        let (frames, mut anons, before) = (self.frames(), self.anons.many(), loan.len());
        for slot in slots {
            let number = slot.load(Acquire);
            let Some(no) = AnonNo::new(number) else { break };
            let (anon, _) = anons.get(no).lock(held);
            // A copy may have taken its place.
            let Some(page) = anon.page().filter(|_| slot.load(Acquire) == number) else { break };
            if frames.try_loan(page) != Found::Loaned {
                break;
            }
            loan.push(LoanedPage(page));
        }
        loan.len() - before
    }

    /// Loans an anon's page; says no if it has none at this moment, or a copy has taken the anon's
    /// place: so `is_there` says; and if the hold of the map's lock is to end.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn loan_anon(
        &self,
        held: &mut Held<'_, order::Amap>,
        entry: &Entry<M>,
        no: AnonNo,
        is_there: impl Fn() -> bool,
        va: Va,
        others_write: bool,
        out: &mut LoanOut<'_, M>,
    ) -> Result<bool, NoMemory> {
        let frames = self.frames();
        if out.is_over() {
            return Ok(false);
        }
        let (anon, mut h) = self.anons.get(no).lock(held);
        let Some(page) = anon.page().filter(|_| is_there()) else { return Ok(false) };
        match frames.try_loan(page) {
            Found::Loaned => {}
            Found::Busy => return Ok(false),
            Found::Held if self.is_wired_by(out.space, entry, va, page) && frames.loan(page) => {}
            Found::Held => {
                let copy = self.loan_copy(&mut h, page)?;
                out.loan.pages.push(copy);
                return Ok(true);
            }
        }
        if others_write {
            let pmap = self.mem().pmap();
            out.count_lowered(pmap, page);
            pmap.page_protect(&mut h, page, Prot::READ_EXECUTE, out.down);
        }
        out.anons += 1;
        out.loan.pages.push(LoanedPage(page));
        Ok(true)
    }

    /// Loans a page once more that a slot has on loan.
    fn loan_borrowed(
        &self,
        held: &mut Held<'_, order::Amap>,
        page: PageNo,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory> {
        let loaned = match self.frames().loan(page) {
            true => LoanedPage(page),
            false => self.loan_copy(held, page)?,
        };
        out.anons += 1;
        out.loan.pages.push(loaned);
        Ok(())
    }

    /// Whether a page's wirings are a locked mapping's, this one's, and not a device's.
    #[cold]
    fn is_wired_by(&self, space: &Space<M>, entry: &Entry<M>, va: Va, page: PageNo) -> bool {
        let wirings = self.frames().wirings(page);
        let shown =
            || self.mem().pmap().extract(&space.pmap, va).is_some_and(|(shown, _)| shown == page);
        entry.wired && wirings == 1 && shown()
    }

    /// Loans what an entry shows where no anon is: an object's pages, or zeroes.
    fn loan_below<P>(
        &self,
        held: &mut Held<'_, P>,
        entry: &Entry<M>,
        part: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory>
    where
        P: Before<order::Object> + Before<order::PageCache>,
    {
        match &entry.object {
            Some(oref) => self.loan_mapped(held, entry, oref, part, out),
            None => {
                for _ in part.iter_pages() {
                    let page = self.zero_page(held)?;
                    out.loan.pages.push(page);
                    out.zeroes += 1;
                }
                Ok(())
            }
        }
    }

    /// Loans resident pages of an object, as far as they go. Alone with the object: who shows one
    /// of its pages to be written looks for loans under its lock.
    fn loan_mapped<P: Before<order::Object>>(
        &self,
        held: &mut Held<'_, P>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        part: VaRange,
        out: &mut LoanOut<'_, M>,
    ) -> Result<(), NoMemory> {
        let (body, mut h) = oref.pager.object().lock(held);
        let first = entry.index(oref, part.start).0;
        for index in first..first + part.pages().0 {
            if out.is_over() {
                return Ok(());
            }
            let mut number = [0u32];
            body.window(index, &mut number);
            let page = match resident(number[0]) {
                Some(page) if self.frames().flags(page).intersects(SPECIAL) => return Ok(()),
                Some(page) => {
                    out.count_lowered(self.mem().pmap(), page);
                    self.loan_owned(&mut h, &body, page, out.down)?
                }
                None if oref.pager.is_hole(&body, Pages(index)) => {
                    out.zeroes += 1;
                    self.zero_page(&mut h)?
                }
                None => return Ok(()),
            };
            out.loan.pages.push(page);
        }
        Ok(())
    }

    /// A copy of a page, which its owner's lock or a wiring keeps, in the form of a loan.
    #[cold]
    pub(super) fn loan_copy<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) -> Result<LoanedPage, NoMemory> {
        let machine = self.mem();
        let copy = self.frames().alloc(machine, held, Reserve::User)?;
        machine.copy(page, copy);
        self.frames().loan_unowned(copy);
        self.stat().add(machine.cpu(), Counter::LoansCopied, 1);
        Ok(LoanedPage(copy))
    }
}
