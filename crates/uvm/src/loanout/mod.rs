//! Loaning to the kernel: a range of addresses, or pages of an object by their indices.
//!
//! What is resident is loaned run by run, under the map's lock to read. A page that isn't is
//! brought in by a fault with nothing held, and looked at again; if it is gone again by then it is
//! pinned and copied, so that every page ends.

mod give;

use alloc::sync::Arc;
use core::ops::Range;

use machine::{
    order, Held, Machine, NoMemory, PageNo, PageRange, Pages, Pmap, Prot, Unlocked, Va, VaRange,
};

use crate::amap::borrowed::Content;
use crate::amap::{ARef, AmapBody};
use crate::anon::AnonNo;
use crate::counted::{AtomicU32, Ordering::Acquire};
use crate::fault::{FaultError, Reach};
use crate::io::ReadRequest;
use crate::loan::{Loan, LoanedPage};
use crate::map::steps::MAPPINGS_OF_A_STEP;
use crate::map::{Advice, Entry, Writes};
use crate::object::{resident, Access, GetError, ObjectBody, Pager};
use crate::page::{Gather, PageFlags, TryLoan as Found};
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// What must be looked at by a fault before a page is loaned.
const SPECIAL: PageFlags = PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD);

/// Pages of an object that are looked at at once.
const AT_ONCE: usize = 64;

/// A call under way.
struct LoanOut<'a, M: Machine> {
    uvm: &'a Uvm<M>,
    loan: &'a mut Loan,
    down: &'a mut Gather,
    /// What is left of [`MAPPINGS_OF_A_STEP`]. At zero the hold of the lock ends.
    left: usize,
    anons: u64,
    objects: u64,
    zeroes: u64,
}

impl<M: Machine> Uvm<M> {
    /// Loans the pages of a range to the kernel, at most [`Loan::MOST`] from that of its start on,
    /// as a load from each would see them at this moment: anonymous memory, pages of files, shared
    /// memory, memory that no program has touched, in any mixture. What isn't resident is brought
    /// in. The lender's next store to a page that is loaned yet gets it a copy.
    ///
    /// Cost: a look-up an entry, some steps a page; one round of interrupts an entry at most, to
    /// CPUs that run in a space that may write to the pages. No entry of the map changes.
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
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<Loan, FaultError> {
        let mut loan = Loan::new();
        let pages = range.pages().min(Pages(Loan::MOST as u64));
        let range = VaRange::new(range.start, range.start + pages);
        self.make_loaned_room(&mut loan, pages.0 as usize)?;
        let mut down = Gather::new();
        let mut out = LoanOut::new(self, &mut loan, &mut down);
        let result = out.loan_all(held, space, range);
        out.count();
        if let Err(e) = result {
            self.return_pages(held, loan.pages.drain(..));
            return Err(e);
        }
        Ok(loan)
    }

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
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        index: Pages,
        pages: usize,
        loan: &mut Loan,
    ) -> Result<usize, GetError> {
        let (before, pages) = (loan.len(), pages.min(loan.room()));
        self.make_loaned_room(loan, pages)?;
        let mut down = Gather::new();
        let mut out = LoanOut::new(self, loan, &mut down);
        let mut result = Ok(());
        while result.is_ok() && out.loan.len() - before < pages {
            if out.is_over() {
                out.down.perform(self.frames(), self.mem(), held);
                self.mem().pause(held);
                out.left = MAPPINGS_OF_A_STEP;
            }
            let n = out.loan.len() - before;
            let at = index.0 + n as u64;
            let some = at..at.saturating_add((pages - n).min(AT_ONCE) as u64);
            let access = Access::Call(Advice::Normal, (pages - n).min(u32::MAX as usize) as u32);
            result = self.attempt_to_find(held, |held, ahead| {
                let loaned = out.loan_some(held, &**pager, some.clone(), access, ahead);
                if loaned.is_err() || ahead.is_some() {
                    out.down.perform(self.frames(), self.mem(), held);
                }
                loaned
            });
        }
        out.count();
        down.perform(self.frames(), self.mem(), held);
        match (loan.len() - before, result) {
            (0, Err(e)) => Err(e),
            (count, _) => Ok(count),
        }
    }
}

impl<'a, M: Machine> LoanOut<'a, M> {
    fn new(uvm: &'a Uvm<M>, loan: &'a mut Loan, down: &'a mut Gather) -> Self {
        let (left, anons, objects, zeroes) = (MAPPINGS_OF_A_STEP, 0, 0, 0);
        LoanOut { uvm, loan, down, left, anons, objects, zeroes }
    }

    /// Whether as much is lowered as may be under one hold of a lock.
    fn is_over(&self) -> bool {
        self.left == 0
    }

    fn count(&self) {
        self.uvm.count(Counter::LoansAnon, self.anons);
        self.uvm.count(Counter::LoansObject, self.objects);
        self.uvm.count(Counter::LoansZero, self.zeroes);
    }

    /// Takes the right to write from all mappings of a page.
    fn lower(&mut self, held: &mut Held<'_, order::Anon>, page: PageNo) {
        let pmap = self.uvm.mem().pmap();
        self.left = self.left.saturating_sub(pmap.weight(page));
        pmap.page_protect(held, page, Prot::READ_EXECUTE, self.down);
    }

    fn loan_all(
        &mut self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), FaultError> {
        let mut missed = None;
        loop {
            let at = self.uvm.attempt(held, 0, |held, _| {
                // What is loaned stays so: an attempt goes on behind what those before it have
                // loaned.
                let at = range.start + Pages(self.loan.len() as u64);
                self.left = MAPPINGS_OF_A_STEP;
                self.loan_resident(held, space, VaRange::new(at, range.end))
            })?;
            if at == range.end {
                return Ok(());
            }
            if self.is_over() {
                self.uvm.mem().pause(held);
                continue;
            }
            if missed.replace(at) == Some(at) {
                let pin = self.uvm.fault_and_pin(held, space, at, Prot::READ, Reach::AsProgram)?;
                let copy =
                    self.uvm.attempt(held, 0, |held, _| Ok(self.uvm.loan_copy(held, pin.page)?));
                self.uvm.unwire_page(held, pin.page);
                self.loan.pages.push(copy.map_err(|e: NoMemory| e)?);
            } else {
                self.uvm.fault(held, space, at, Prot::READ)?;
            }
        }
    }

    /// Loans what is resident from the range's start on, and says where that ends.
    fn loan_resident(
        &mut self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<Va, Stop<FaultError>> {
        let mut at = range.start;
        while at < range.end {
            let (tree, mut h) = space.map.read_now(self.uvm.mem(), held)?;
            let Some(entry) = tree.get(at) else {
                drop(tree);
                space.map.confirm_hole(self.uvm.mem(), held, at)?;
                return Err(FaultError::NoMapping.into());
            };
            if !entry.prot.contains(Prot::READ) {
                return Err(FaultError::Protection.into());
            }
            let part = VaRange::new(at, entry.range.end.min(range.end));
            let first = self.loan.len();
            let result = self.loan_part(&mut h, space, entry, part);
            // Before the mapping may go: a store that follows its end is not in the loan.
            self.down.flush(self.uvm.mem().pmap());
            result.map_err(FaultError::from)?;
            at = at + Pages((self.loan.len() - first) as u64);
            if at < part.end || self.is_over() {
                break;
            }
        }
        Ok(at)
    }

    /// Loans what is resident of an entry's part, from its start on.
    fn loan_part(
        &mut self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entry: &Entry<M>,
        part: VaRange,
    ) -> Result<(), NoMemory> {
        let Some(aref) = &entry.amap else {
            return self.loan_below(&mut held.deeper(), entry, part);
        };
        let first = self.loan.len();
        let result = {
            let (body, mut h) = aref.amap.body.read(held);
            self.loan_slots(&mut h, space, (entry, aref), &body, part)
        };
        let loaned = Pages((self.loan.len() - first) as u64);
        if entry.writes != Writes::NeedsCopy {
            // Where the slots are this entry's alone no other space can write to them.
            let (pmap, space) = (self.uvm.mem().pmap(), &space.pmap);
            let range = VaRange::new(part.start, part.start + loaned);
            pmap.protect(held, space, range, entry.prot.without_write(), self.down);
        }
        result
    }

    /// Loans from an entry with an amap: anons, and what lies below where there are none.
    fn loan_slots(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        space: &Space<M>,
        (entry, aref): (&Entry<M>, &ARef<M>),
        body: &AmapBody<M>,
        part: VaRange,
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
                    let loaned = self.loan_idle_anons(held, here.rest(next));
                    self.anons += loaned as u64;
                    next += loaned;
                    if next == here.len() {
                        break;
                    }
                }
                let va = at + Pages(next as u64);
                if let Some(number) = here.number(next) {
                    let is_there = || here.number(next) == Some(number);
                    let is_loaned = match Content::of(number) {
                        Content::Anon(no) => {
                            let at = (space, entry, va);
                            self.loan_anon(held, at, no, is_there, others_write)?
                        }
                        Content::Borrowed(page) => {
                            let loaned = match self.uvm.frames().loan(page) {
                                true => self.uvm.loaned(page),
                                false => self.uvm.loan_copy(held, page)?,
                            };
                            self.anons += 1;
                            self.loan.pages.push(loaned);
                            true
                        }
                    };
                    if !is_loaned {
                        return Ok(());
                    }
                    next += 1;
                    continue;
                }
                let empty = (next..here.len()).take_while(|&n| here.number(n).is_none()).count();
                let run = VaRange::new(va, va + Pages(empty as u64));
                let before = self.loan.len();
                self.loan_below(held, entry, run)?;
                if self.loan.len() - before < empty {
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
    fn loan_idle_anons(&mut self, held: &mut Held<'_, order::Amap>, slots: &[AtomicU32]) -> usize {
        let (frames, mut anons) = (self.uvm.frames(), self.uvm.anons.many());
        let loan = &mut self.loan.pages;
        let before = loan.len();
        for slot in slots {
            let number = slot.load(Acquire);
            let Some(no) = AnonNo::new(number) else { break };
            let (anon, _) = anons.get(no).lock(held);
            // A copy may have taken its place.
            let Some(page) = anon.page().filter(|_| slot.load(Acquire) == number) else { break };
            if frames.try_loan(page) != Found::Loaned {
                break;
            }
            loan.push(self.uvm.loaned(page));
        }
        loan.len() - before
    }

    /// Loans an anon's page; says no if it has none at this moment, or a copy has taken the anon's
    /// place: so `is_there` says; and if the hold of the map's lock is to end.
    #[inline]
    fn loan_anon(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        at: (&Space<M>, &Entry<M>, Va),
        no: AnonNo,
        is_there: impl Fn() -> bool,
        others_write: bool,
    ) -> Result<bool, NoMemory> {
        let frames = self.uvm.frames();
        if self.is_over() {
            return Ok(false);
        }
        let (anon, mut h) = self.uvm.anons.get(no).lock(held);
        let Some(page) = anon.page().filter(|_| is_there()) else { return Ok(false) };
        match frames.try_loan(page) {
            Found::Loaned => {}
            Found::Busy => return Ok(false),
            Found::Held if self.is_wired_by(at, page) && frames.loan(page) => {}
            Found::Held => {
                self.loan.pages.push(self.uvm.loan_copy(&mut h, page)?);
                return Ok(true);
            }
        }
        if others_write {
            self.lower(&mut h, page);
        }
        self.anons += 1;
        self.loan.pages.push(self.uvm.loaned(page));
        Ok(true)
    }

    /// Whether a page's wirings are a locked mapping's, this one's, and not a device's.
    #[cold]
    fn is_wired_by(&self, (space, entry, va): (&Space<M>, &Entry<M>, Va), page: PageNo) -> bool {
        let wirings = self.uvm.frames().wire_count(page);
        let shown = || {
            self.uvm.mem().pmap().extract(&space.pmap, va).is_some_and(|(shown, _)| shown == page)
        };
        entry.wired && wirings == 1 && shown()
    }

    /// Loans what an entry shows where no anon is: an object's pages, or zeroes.
    fn loan_below(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        entry: &Entry<M>,
        part: VaRange,
    ) -> Result<(), NoMemory> {
        if let Some(oref) = &entry.object {
            let (body, mut h) = oref.pager.object().lock(held);
            let first = entry.index(oref, part.start).0;
            return self.loan_at_hand(&mut h, &*oref.pager, &body, first..first + part.pages().0);
        }
        for _ in part.iter_pages() {
            self.loan.pages.push(self.uvm.zero_page(held)?);
            self.zeroes += 1;
        }
        Ok(())
    }

    /// Loans pages that an object has in memory, and holes, up to the first that is neither.
    /// Under the object's lock, had alone: a thread that shows one of its pages to be written looks
    /// for loans under it.
    fn loan_at_hand(
        &mut self,
        held: &mut Held<'_, order::Object>,
        pager: &dyn Pager<M>,
        body: &ObjectBody,
        indices: Range<u64>,
    ) -> Result<(), NoMemory> {
        let mut at = indices.start;
        while at < indices.end {
            let mut numbers = [0; AT_ONCE];
            let here = &mut numbers[..(indices.end - at).min(AT_ONCE as u64) as usize];
            body.window(at, here);
            for &number in &*here {
                if self.is_over() {
                    return Ok(());
                }
                let page = match resident(number) {
                    Some(page) if self.uvm.frames().flags(page).intersects(SPECIAL) => {
                        return Ok(())
                    }
                    Some(page) => self.loan_owned(held, page)?,
                    None if pager.is_hole(body, Pages(at)) => {
                        self.zeroes += 1;
                        self.uvm.zero_page(held)?
                    }
                    None => return Ok(()),
                };
                self.loan.pages.push(page);
                at += 1;
            }
        }
        Ok(())
    }

    /// Loans an object's page, or a copy if it may be being written to; under the object's lock,
    /// had alone.
    fn loan_owned(
        &mut self,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
    ) -> Result<LoanedPage, NoMemory> {
        let frames = self.uvm.frames();
        frames.set_flags(page, PageFlags::TOUCHED);
        if frames.wire_count(page) != 0 || !frames.loan(page) {
            return self.uvm.loan_copy(held, page);
        }
        self.objects += 1;
        self.lower(&mut held.deeper(), page);
        Ok(self.uvm.loaned(page))
    }

    /// Loans the first of some pages of an object, one at least, which is brought in if it must be.
    fn loan_some(
        &mut self,
        held: &mut Unlocked<'_>,
        pager: &dyn Pager<M>,
        some: Range<u64>,
        access: Access,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<(), Stop<GetError>> {
        let (mut body, mut h) = pager.object().lock(held);
        let (before, index) = (self.loan.len(), Pages(some.start));
        let here = some.start..some.end.min(body.length().0);
        self.loan_at_hand(&mut h, pager, &body, here).map_err(GetError::from)?;
        if self.loan.len() == before {
            let found = self.uvm.find_page(&mut body, &mut h, pager, index, access, ahead);
            let page = found.map_err(Stop::of_get)?;
            // A pager may show pages that no object has.
            let is_owned = body.page(Pages(self.uvm.frames().index(page))) == Some(page);
            let loaned = match is_owned {
                true => self.loan_owned(&mut h, page),
                false => self.uvm.loan_copy(&mut h, page),
            };
            self.loan.pages.push(loaned.map_err(GetError::from)?);
        }
        Ok(())
    }
}
