//! Page transfer: pages of the kernel's become anonymous memory of a program, not copied.
//!
//! ```text
//!   a page without an owner    a new anon's own: written in place, once no other borrower has it
//!   an anon's page on loan     one more reference to that anon: the first store copies it
//!   any other page on loan     a copy of it
//!   the page of zeroes         an empty slot
//! ```
//! The pages come from devices and sockets ([`Uvm::new_page`]), from programs that loaned them, or
//! whose they were. They go to addresses that the program names, in place of what is there, or into
//! its *transfer area*: a mapping of zeroes whose empty slots are taken in turn. What the program
//! has done with it gives back by [`Uvm::discard`], the paper's anflush, and the slots are empty
//! again, in the same amap and the same entry; so no transfer makes either, and the map isn't
//! fragmented. Or the pages go [down into an object](Uvm::give_to_object).
//!
//! The map is locked, looked at, and the pages put into slots as they are (`amap::borrowed`); what
//! can fail does so before anything has changed. What is drawn above comes to pass when they are
//! touched.
//!
//! Source: 1998, section 4.2.

use alloc::sync::Arc;
use core::ops::Range;

use crate::page::Gather;
use crate::page::{PageFlags, Taken};
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Pmap, Prot, Va, VaRange};

use crate::amap::borrowed::BORROWED;
use crate::amap::borrowers::ENTER_BYTES;
use crate::amap::slots::put_bytes;
use crate::amap::AnonHolders;
use crate::anon::drop_page;
use crate::loan::{Loan, LoanedPage};
use crate::map::steps::{MAPPINGS_OF_A_STEP, PAGES_AT_ONCE};
use crate::map::tree::Tree;
use crate::map::{choose_place, Change, Entry, LockedMap, Map, Place, Writes, NOWHERE};
use crate::object::Pager;
use crate::object::{busy_check, Object};
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// Where transferred pages go.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let mut loan = Loan::new();
/// uvm.new_pages(held, 2, &mut loan)?;
/// let range = memory(uvm, held, space, 2)?;
/// let there = At::Fixed(range.start);
/// assert_eq!(uvm.transfer(held, space, loan, there).map_err(|(why, _)| why)?, range.start);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Here, in place of what is here: private memory that may be written.
    Fixed(Va),
    /// Into the transfer area, where it is untouched.
    Anywhere,
}

/// Why pages were not transferred; nothing has changed.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let mut loan = Loan::new();
/// uvm.new_pages(held, 1, &mut loan)?;
/// let nowhere = At::Fixed(space.bounds().start);
/// let Err((why, loan)) = uvm.transfer(held, space, loan, nowhere) else { panic!() };
/// assert_eq!(why, TransferError::NoMapping);
/// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferError {
    /// Nothing is mapped at a part of the range.
    NoMapping,
    /// A part of the range may not be written.
    Protection,
    /// A part of the range can't take pages: it is shared, locked in memory, or shows zeroes above
    /// an object. Copy.
    Unsuitable,
    /// No addresses are free, or the object may have no more pages.
    NoSpace,
    /// Pages or heap are short.
    NoMemory,
    /// The object is shorter.
    PastEnd,
    /// The pages are on loan from another instance of [`Uvm`].
    NotOurs,
}

/// Pages of a transfer area: as many as come at once.
const AREA: Pages = Pages(if cfg!(feature = "__small-leaves") { 8 } else { Loan::MOST as u64 });

/// The part of memory that slots may hold on loan.
const PART: usize = 16;

impl<M: Machine> Uvm<M> {
    /// Makes pages on loan anonymous memory of a space, and says where they lie; the loan is the
    /// space's then. Cost: some steps a page; what else they cost is paid when they are touched
    /// (`amap::borrowed`).
    ///
    /// # Errors
    /// [`TransferError`], and the pages again.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let other = uvm.space_create(held, bounds())?;
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// let at = uvm.transfer(held, &other, loan, At::Anywhere).map_err(|(why, _)| why)?;
    /// assert_eq!(load(uvm, &other, at + Pages(1))?, [2], "no byte was copied");
    /// uvm.space_destroy(held, other);
    /// # Ok(()) });
    /// ```
    pub fn transfer(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        mut loan: Loan,
        at: At,
    ) -> Result<Va, (TransferError, Loan)> {
        if !self.is_ours(&loan) {
            return Err((TransferError::NotOurs, loan));
        }
        let count = loan.len() as u64;
        let mut result = self.put(held, space, &loan, at);
        if matches!(result, Err(TransferError::Unsuitable)) {
            result = match self.make_zeroes_own(held, &mut loan) {
                Ok(true) => self.put(held, space, &loan, at),
                Ok(false) => result,
                Err(NoMemory) => Err(TransferError::NoMemory),
            };
        }
        match result {
            Ok(va) => {
                loan.hand_over();
                self.stat().add(self.mem().cpu(), Counter::PagesTransferred, count);
                // What can't get anons for lack of memory stays as it is.
                if self.anons.borrowed.load(Relaxed) > self.frames().total() / PART {
                    let put = VaRange::new(va, va + Pages(count));
                    let _ = self.adopt_in_steps(held, space, put);
                }
                Ok(va)
            }
            Err(e) => Err((e, loan)),
        }
    }

    /// Puts pages on loan where a program reads to, in place of what is there: see
    /// [`transfer`](Self::transfer).
    ///
    /// # Errors
    /// [`TransferError`], and the pages again, to be copied.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (from, to) = (memory(uvm, held, space, 4)?, memory(uvm, held, space, 4)?);
    /// store(uvm, space, from.start, b"read")?;
    /// let loan = uvm.loan_to_kernel(held, space, from)?;
    /// uvm.receive(held, space, loan, to.start).map_err(|(why, _)| why)?;
    /// assert_eq!(&load(uvm, space, to.start)?, b"read");
    /// # Ok(()) });
    /// ```
    pub fn receive(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        loan: Loan,
        va: Va,
    ) -> Result<(), (TransferError, Loan)> {
        let count = loan.len();
        let put = self.transfer(held, space, loan, At::Fixed(va));
        match put {
            Ok(_) => space.remap_history.grow(count),
            Err(_) => space.remap_history.refused(),
        }
        put.map(|_| ())
    }

    /// Puts pages where they belong, under the map's lock. What can fail does so before anything
    /// has changed.
    fn put(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        loan: &Loan,
        at: At,
    ) -> Result<Va, TransferError> {
        let (mut down, pages) = (Gather::new(), Pages(loan.len() as u64));
        let reserve = put_bytes(pages.0) + ENTER_BYTES;
        let result = self.attempt(held, reserve, |held, reserved| {
            let (mut tree, mut h) = match at {
                At::Fixed(va) => {
                    let range = VaRange::sized(va, pages).ok_or(TransferError::NoMapping)?;
                    space.map.lock_now(self.mem(), held, range)
                }
                At::Anywhere => space.map.lock_now(self.mem(), held, NOWHERE),
            }?;
            let (start, new_area) = match at {
                At::Fixed(va) => (va, None),
                At::Anywhere => {
                    let map = &mut space.locked(self, &mut tree, &mut h);
                    self.place_in_area(map, pages, reserved)?
                }
            };
            let range = VaRange::sized(start, pages).ok_or(TransferError::NoMapping)?;
            if space.locked(self, &mut tree, &mut h).copies_needed(range).is_none() {
                drop(tree);
                self.copy_amaps_in_steps(held, space, range).map_err(TransferError::from)?;
                return Err(Stop::again(reserved));
            }
            let need = self.put_needs(&tree, &mut h, range, loan)?;
            if need > reserved {
                // Another attempt may fail for heap: this one leaves nothing.
                if let Some(area) = new_area {
                    drop(tree.take(area));
                }
                return Err(Stop::Heap(need));
            }
            if let Some(area) = new_area.filter(|area| area.pages() >= AREA) {
                space.map.area.0.store(area.start.0, Relaxed);
            }
            self.forget_range(&mut h, space, range, &mut down);
            tree.each_mut(range, |entry| {
                if entry.writes == Writes::NeedsCopy {
                    self.copy_amap(&mut h, entry);
                }
                entry.note_copier(&mut h, space.family);
                self.put_in_entry(&mut h, (entry, range), loan, &mut down);
            });
            if at == At::Anywhere {
                space.map.area.1.store(range.end.0, Relaxed);
            }
            Ok(start)
        });
        down.perform(self.frames(), self.mem(), held);
        result
    }

    /// Makes pages of their own of the page of zeroes, which an empty slot does not show above an
    /// object. Says whether there are any.
    fn make_zeroes_own(
        &self,
        held: &mut Held<'_, order::Nothing>,
        loan: &mut Loan,
    ) -> Result<bool, NoMemory> {
        let mut any = false;
        for page in loan.pages.iter_mut().filter(|page| self.is_zero_page(page.page())) {
            self.make_own(held, page)?;
            any = true;
        }
        Ok(any)
    }

    /// Heap bytes for putting pages into a range, if it can take them.
    fn put_needs(
        &self,
        tree: &Tree<Entry<M>>,
        held: &mut Held<'_, order::Map>,
        range: VaRange,
        loan: &Loan,
    ) -> Result<usize, TransferError> {
        if !tree.is_covered(range) {
            return Err(TransferError::NoMapping);
        }
        let mut bytes = 0;
        tree.try_each(range, &mut |entry| {
            if !entry.prot.contains(Prot::WRITE) {
                return Err(TransferError::Protection);
            }
            let part = entry.range.intersect(range);
            let is_zeroes = |page: &LoanedPage| self.is_zero_page(page.page());
            let zeroes =
                entry.object.is_some() && loan.pages()[indices(part, range)].iter().any(is_zeroes);
            if zeroes || !entry.is_private(held, part) {
                return Err(TransferError::Unsuitable);
            }
            bytes += put_bytes(part.pages().0) + ENTER_BYTES;
            if entry.writes == Writes::NeedsCopy {
                bytes += self.copy_amap_bytes(held, entry);
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Puts an entry's part of the pages into its amap, which is its own. Nothing is mapped there.
    fn put_in_entry(
        &self,
        held: &mut Held<'_, order::Map>,
        (entry, range): (&Entry<M>, VaRange),
        loan: &Loan,
        down: &mut Gather,
    ) {
        let Some(aref) = &entry.amap else { return };
        let part = entry.range.intersect(range);
        let first = entry.slot(aref, part.start);
        let (mut body, mut h) = aref.amap.body.lock(held);
        // No page has a number that high.
        let zero = self.zero_page.get().map_or(u32::MAX, |page| page.0 | BORROWED);
        let mut put = 0;
        let numbers = loan.pages()[indices(part, range)].iter().map(|page| {
            let number = page.page().0 | BORROWED;
            if number == zero {
                return 0;
            }
            put += 1;
            number
        });
        body.slots.put_all(first, numbers, &mut AnonHolders { uvm: self, held: &mut h, down });
        body.borrows(first..first + part.pages().0);
        self.borrowers.enter(&mut h, &aref.amap, &mut body);
        aref.amap.borrows.store(true, Relaxed);
        self.anons.borrowed.fetch_add(put, Relaxed);
    }

    /// Where untouched addresses of the transfer area are; a new area, which is returned, if there
    /// is no room in the last.
    fn place_in_area(
        &self,
        map: &mut LockedMap<'_, '_, M>,
        pages: Pages,
        reserved: usize,
    ) -> Result<(Va, Option<VaRange>), Stop<TransferError>> {
        let space = map.space;
        let (area, next) = &space.map.area;
        let area = VaRange::sized(Va(area.load(Relaxed)), AREA).filter(|area| area.start != Va(0));
        let hint = Va(next.load(Relaxed));
        let found = area.and_then(|area| {
            let own = |e: &&Entry<M>| is_area(&space.map, e) && e.range.intersect(area) == area;
            // A fault may be about to fill a slot that is free.
            map.exclude(area);
            let entry = map.tree.get(area.start).filter(own)?;
            let rest = VaRange::new(hint.max(area.start).min(area.end), area.end);
            free_run(map.held, entry, rest, pages)
                .or_else(|| free_run(map.held, entry, area, pages))
        });
        if let Some(start) = found {
            return Ok((start, None));
        }
        let need =
            Change::ADD.bytes_in(map.tree) + 128 + crate::amap::NEW_BYTES + put_bytes(pages.0);
        Stop::ensure(need, reserved)?;
        if !map.has_room(1) {
            return Err(TransferError::NoSpace.into());
        }
        let len = if pages > AREA { pages } else { AREA };
        let (bounds, anywhere) = (space.map.bounds, Place::Anywhere);
        let chosen = choose_place(map.tree, bounds, len, anywhere).map(|start| (start, len));
        let chosen = chosen.or_else(|_| {
            choose_place(map.tree, bounds, pages, anywhere).map(|start| (start, pages))
        });
        let Ok((start, len)) = chosen else { return Err(TransferError::NoSpace.into()) };
        let name = space.map.area_name.call_once(|| Arc::new("transfer")).clone();
        let area = VaRange::new(start, start + len);
        map.exclude(area);
        map.tree.insert(Entry::zeroes(area, Some(name)));
        Ok((start, Some(area)))
    }

    /// Makes pages on loan the pages of an object from `index` on, in place of what it has there,
    /// and ends the loan: the paper's pushing of pages down into the object layer. Mappings of the
    /// object show them. A page without an owner becomes the object's, on loan to those that
    /// have it too: so a program that [gives](Self::give_to_kernel) pages, which are loaned again
    /// and [transferred](Self::transfer) back to it, goes on reading what the object owns now. A
    /// page that has an owner or is pinned is copied. Waits for I/O of pages that go. Cost: by
    /// pages.
    ///
    /// # Errors
    /// [`TransferError`]: `PastEnd`, `NoSpace`, `NoMemory` or `NotOurs`, with nothing changed; and
    /// the pages.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(4))? as Arc<dyn Pager<SoftMachine>>;
    /// let mut loan = Loan::new();
    /// uvm.new_pages(held, 2, &mut loan)?;
    /// uvm.give_to_object(held, &object, Pages(0), loan).map_err(|(why, _)| why)?;
    /// assert_eq!(object.object().resident(held), 2);
    /// # Ok(()) });
    /// ```
    pub fn give_to_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &Arc<dyn Pager<M>>,
        index: Pages,
        mut loan: Loan,
    ) -> Result<(), (TransferError, Loan)> {
        if !self.is_ours(&loan) {
            return Err((TransferError::NotOurs, loan));
        }
        if loan.len() > PAGES_AT_ONCE {
            self.unmap_ahead(
                held,
                pager.object(),
                index.0..index.0.saturating_add(loan.len() as u64),
            );
        }
        let is_owned = |page: &LoanedPage| !self.frames().is_disowned(page.page());
        let mut others = loan.pages.iter().position(is_owned);
        loop {
            while let Some(n) = others {
                if let Err(e) = self.make_own(held, &mut loan.pages[n]) {
                    return Err((e.into(), loan));
                }
                others = (n + 1..loan.len()).find(|&n| is_owned(&loan.pages[n]));
            }
            let mut down = Gather::new();
            let given = self.attempt(held, put_bytes(loan.len() as u64), |held, _| {
                let given = self.give_pages(held, &**pager, index, &loan, &mut down);
                if given.is_err() {
                    down.perform(self.frames(), self.mem(), held);
                }
                given
            });
            down.perform(self.frames(), self.mem(), held);
            match given {
                Ok(None) => {
                    loan.hand_over();
                    return Ok(());
                }
                Ok(held_by_others) => others = held_by_others,
                Err(e) => return Err((e, loan)),
            }
        }
    }

    /// Unmaps the pages of an object in a range that many map, some at a time, before all that lies
    /// there is replaced under one lock. A thread that uses one meanwhile maps it again. Pages that
    /// are wired stay mapped, since the replacement may be refused.
    fn unmap_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        object: &Object<M>,
        mut range: Range<u64>,
    ) {
        let machine = self.mem();
        while !range.is_empty() {
            let (mut down, mut left) = (Gather::new(), MAPPINGS_OF_A_STEP);
            {
                let (body, mut h) = object.lock(held);
                if range.end > body.length().0 {
                    return;
                }
                let weighed = body
                    .pages(range.clone())
                    .map(|(index, page)| (index, page, machine.pmap().weight(page)));
                range.start = range.end;
                for (index, page, weight) in weighed.filter(|&(.., weight)| weight > 1) {
                    if left == 0 {
                        range.start = index.0;
                        break;
                    }
                    left = left.saturating_sub(weight);
                    let frames = machine.frames();
                    if !frames.flags(page).contains(PageFlags::BUSY) && frames.hold_count(page) == 0
                    {
                        let _mapped_again_by_faults =
                            down.unmap(machine.frames(), machine, &mut h, page);
                    }
                }
            }
            down.perform(machine.frames(), machine, held);
            machine.pause(held);
        }
    }

    /// Puts a copy in the place of a page on loan.
    fn make_own(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: &mut LoanedPage,
    ) -> Result<(), NoMemory> {
        let copied = self.attempt(held, 0, |held, _| {
            let copy = self.copied_page(held, page.page(), Counter::TransfersCopied);
            copy.map_err(Stop::<NoMemory>::Fail)
        });
        self.end_loan(held, core::mem::replace(page, copied?));
        Ok(())
    }

    /// Makes pages ownerless again that were just taken over.
    fn let_go_all(&self, pages: &[LoanedPage]) {
        for &LoanedPage(page) in pages {
            match self.frames().loans(page) {
                0 => self.frames().loan_unowned(page),
                _ => _ = self.frames().disown(page),
            }
        }
    }

    /// One attempt to put ownerless pages into an object; or the number of one that must be
    /// copied before.
    fn give_pages(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pager: &dyn Pager<M>,
        index: Pages,
        loan: &Loan,
        down: &mut Gather,
    ) -> Result<Option<usize>, Stop<TransferError>> {
        let (machine, frames, object) = (self.mem(), self.frames(), pager.object());
        let (mut body, mut h) = object.lock(held);
        let end = index.0.checked_add(loan.len() as u64).filter(|&end| end <= body.length().0);
        let indices = index.0..end.ok_or(TransferError::PastEnd)?;
        for (_, old) in body.pages(indices.clone()) {
            busy_check(machine, old).map_err(Stop::Wait)?;
            let _gone_before_others_come = down.unmap(machine.frames(), machine, &mut h, old);
        }
        down.flush(machine.pmap());
        // All of them or none: one that is pinned, or comes twice, can't be taken over.
        let is_refused = |page: &LoanedPage| frames.take_over(page.page()) == Taken::Not;
        if let Some(refused) = loan.pages().iter().position(is_refused) {
            self.let_go_all(&loan.pages()[..refused]);
            return Ok(Some(refused));
        }
        let new = indices.clone().filter(|&index| body.is_empty_at(Pages(index))).count();
        if body.take_quota(new).is_err() {
            self.let_go_all(loan.pages());
            return Err(TransferError::NoSpace.into());
        }
        for (index, page) in indices.zip(loan.pages()) {
            let (index, page) = (Pages(index), page.page());
            frames.clear_flags(page, PageFlags::all());
            match body.page(index) {
                Some(old) => {
                    let unmapped = down.unmap(machine.frames(), machine, &mut h, old);
                    frames.dequeue(&mut h, old);
                    body.exchange(frames, old, page);
                    frames.activate(machine, &mut h, page);
                    drop_page(machine, &mut h, unmapped, down);
                }
                None => {
                    // A place on swap may hold what can't be read any more.
                    if !body.is_empty_at(index) {
                        body.remove_slot(self, &mut h, index);
                        body.retake_quota();
                    }
                    object.insert(self, &mut body, &mut h, index, page);
                }
            }
            if frames.loans(page) != 0 {
                // Others have it too, and the caller's loan ends.
                frames.end_loan(page);
            }
        }
        self.stat().add(machine.cpu(), Counter::PagesTransferred, loan.len() as u64);
        Ok(None)
    }
}

/// The indices of a part's pages among a range's.
fn indices(part: VaRange, range: VaRange) -> core::ops::Range<usize> {
    let first = (part.start - range.start).0 as usize;
    first..first + part.pages().0 as usize
}

/// Whether an entry is a map's transfer area, as it was made: pages can be put into its empty
/// slots.
fn is_area<M: Machine>(map: &Map<M>, entry: &Entry<M>) -> bool {
    let made = map.area_name.get().zip(entry.name.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
    made && entry.object.is_none() && !entry.wired && entry.prot == Prot::READ_WRITE
}

/// The first run of so many empty slots in a part of an entry.
fn free_run<M: Machine>(
    held: &mut Held<'_, order::Map>,
    entry: &Entry<M>,
    part: VaRange,
    pages: Pages,
) -> Option<Va> {
    let Some(aref) = &entry.amap else { return Some(part.start).filter(|_| pages <= part.pages()) };
    let (body, _) = aref.amap.body.lock(held);
    let first = entry.slot(aref, part.start);
    let end = first + part.pages().0;
    let mut at = first;
    for (slot, _) in body.slots.range(first..end) {
        if slot - at >= pages.0 {
            break;
        }
        at = slot + 1;
    }
    (at + pages.0 <= end).then(|| part.start + Pages(at - first))
}
