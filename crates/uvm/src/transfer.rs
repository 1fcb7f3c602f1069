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
//! fragmented.
//!
//! The map is locked, looked at, and the pages put into slots as they are (`amap::borrowed`); what
//! can fail does so before anything has changed. What is drawn above comes to pass when they are
//! touched.
//!
//! Source: 1998, section 4.2.

use alloc::sync::Arc;

use crate::page::Gather;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Prot, Unlocked, Va, VaRange};

use crate::amap::borrowed::BORROWED;
use crate::amap::borrowers::ENTER_BYTES;
use crate::amap::slots::put_bytes;
use crate::amap::AnonHolders;
use crate::loan::{Loan, LoanedPage};
use crate::map::tree::Tree;
use crate::map::{Change, Entry, LockedMap, Map, Writes, NOWHERE};
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
#[non_exhaustive]
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
    /// No addresses are free.
    NoSpace,
    /// Pages or heap are short.
    NoMemory,
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
        held: &mut Unlocked<'_>,
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
                self.count(Counter::PagesTransferred, count);
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
        held: &mut Unlocked<'_>,
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
        held: &mut Unlocked<'_>,
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
            let unpinned = space.locked(self, &mut tree, &mut h).exclude_to_copy(range);
            tree.each_mut(range, |entry| {
                if let Some(unpinned) = unpinned.filter(|_| entry.writes == Writes::NeedsCopy) {
                    self.copy_amap(&mut h, entry, unpinned);
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
    fn make_zeroes_own(&self, held: &mut Unlocked<'_>, loan: &mut Loan) -> Result<bool, NoMemory> {
        let mut any = false;
        for page in loan.pages.iter_mut().filter(|page| self.is_zero_page(page.page())) {
            let copied = self.attempt(held, 0, |held, _| {
                let copy = self.loaned_copy(held, page.page(), Counter::TransfersCopied);
                copy.map_err(Stop::<NoMemory>::Fail)
            });
            self.return_pages(held, [core::mem::replace(page, copied?)]);
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
        let find = |map: &LockedMap<'_, '_, M>, len: Pages| {
            space.map.find_space(map.tree, len.bytes()).map(|start| (start, len))
        };
        let Some((start, len)) = find(map, len).or_else(|| find(map, pages)) else {
            return Err(TransferError::NoSpace.into());
        };
        let name = space.map.area_name.call_once(|| Arc::new("transfer")).clone();
        let area = VaRange::new(start, start + len);
        map.exclude(area);
        map.tree.insert(Entry::zeroes(area, Some(name)));
        Ok((start, Some(area)))
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
