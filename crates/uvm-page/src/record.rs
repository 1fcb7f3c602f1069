//! Reading and writing a page's record: its owner, what is going on with it, its wirings. The
//! module above says which thread may write what.

use core::num::NonZeroU32;

use crate::buddy::NO_BLOCK;
use crate::{Frames, Owner, Page, PageFlags, Place, NIL, PLACES};
use machine::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use machine::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8};
use machine::order::{Before, Held, PageQueues};
use machine::{Machine, PageNo};

/// Fields of the word of holds: wirings, loans, and whether the owner has disowned the page.
pub(crate) const WIRINGS: u32 = 0xffff;
const LOAN: u32 = 1 << 16;
const LOANS: u32 = 0x7fff * LOAN;
const DISOWNED: u32 = 1 << 31;

/// Holds beyond which programs get no more of them. Of wired mappings, which a pmap can't forget,
/// few enough to walk; of pins and loans less than fits, by more than all CPUs add at once.
const MOST_WIRINGS: u32 = 4_000;
const MOST_PINS: u32 = 60_000;
const MOST_LOANS: u32 = 30_000 * LOAN;

/// What comes of the wish to [loan](Frames::try_loan) a page.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryLoan {
    /// It is loaned.
    Loaned,
    /// I/O has it, or it is new and about to be shown.
    Busy,
    /// It is wired, or loaned too often.
    Held,
}

/// What came of a caller's wish to [take a page over](Frames::take_over).
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The caller alone.
    Alone,
    /// The caller owns it, and has it on loan as others do.
    Among,
    /// The page has an owner, or I/O has it: nothing has changed.
    Not,
}

/// A page's place on swap: its number over all devices.
///
/// ```
/// use uvm::Slot;
/// let slot = Slot::new(7).expect("numbers begin with 1");
/// assert_eq!((slot.number(), slot.behind(2).number()), (7, 9));
/// assert!(slot.is_place() && !Slot::LOST.is_place());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(NonZeroU32);

impl Slot {
    /// No place: the data could not be read, and is gone.
    pub const LOST: Slot = Slot(NonZeroU32::MAX);

    /// No place: the page may go without being written, and is zeroes then, as it was freed lazily.
    #[doc(hidden)]
    pub const ZERO: Slot = Slot(NonZeroU32::new(u32::MAX - 1).unwrap());

    /// Numbers end here: a page's record has room for no more.
    #[doc(hidden)]
    pub const NUMBERS: u32 = 1 << (64 - SLOT_SHIFT);

    /// The slot of a number.
    ///
    /// ```
    /// assert_eq!(uvm::Slot::new(0), None);
    /// ```
    #[must_use]
    pub const fn new(number: u32) -> Option<Slot> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Slot(number)),
            None => None,
        }
    }

    /// The slot's number.
    ///
    /// ```
    /// assert_eq!(uvm::Slot::new(7).map(uvm::Slot::number), Some(7));
    /// ```
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// The slot `n` places behind.
    ///
    /// ```
    /// assert_eq!(uvm::Slot::new(7).map(|slot| slot.behind(2).number()), Some(9));
    /// ```
    #[must_use]
    pub const fn behind(self, n: u32) -> Slot {
        Slot(self.0.saturating_add(n))
    }

    /// Whether data is there.
    ///
    /// ```
    /// assert!(!uvm::Slot::LOST.is_place());
    /// ```
    #[must_use]
    pub fn is_place(self) -> bool {
        !matches!(self, Slot::LOST | Slot::ZERO)
    }
}

impl<M: Machine> Frames<M> {
    /// Whose the page is.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 1)?;
    /// uvm.frames().flush_pending(held);
    /// let page = uvm.frames().oldest(held, Queue::Active).ok_or("it is active")?;
    /// assert!(matches!(uvm.frames().owner(page), Owner::Anon(_)));
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn owner(&self, page: PageNo) -> Owner {
        unpack(self.page(page).owner.load(Acquire))
    }

    /// The page's offset in its object, in pages.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert_eq!(uvm.frames().index(page.page()), 0, "it has no owner yet");
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn index(&self, page: PageNo) -> u64 {
        self.page(page).index.load(Relaxed)
    }

    /// Gives the page an owner, and its place in it.
    #[doc(hidden)]
    #[inline]
    pub fn set_owner(&self, page: PageNo, owner: Owner, index: u64) {
        let page = self.page(page);
        page.index.store(index, Relaxed);
        // A thread that reads the owner without its lock, to find it, finds the index that belongs
        // to it.
        page.owner.store(pack(owner), Release);
    }

    /// More than one leaf refers to the anon that has the page, from now on: a thread that maps it
    /// without the anon's lock finds it so in [`is_alone`](Self::is_alone). Under that lock, before
    /// the second reference is one.
    #[doc(hidden)]
    #[inline]
    pub fn mark_shared(&self, page: PageNo) {
        let owner = &self.page(page).owner;
        debug_assert!(matches!(self.owner(page), Owner::Anon(_)), "{page:?} is no anon's");
        owner.store(owner.load(Relaxed) | SHARED, Release);
    }

    /// One leaf alone refers to the anon again. Under the anon's lock.
    #[doc(hidden)]
    #[inline]
    pub fn mark_alone(&self, page: PageNo) {
        let owner = &self.page(page).owner;
        owner.store(owner.load(Relaxed) & !SHARED, Release);
    }

    /// Whether the record says that several leaves refer to the anon that has the page.
    #[doc(hidden)]
    pub fn is_marked_shared(&self, page: PageNo) -> bool {
        self.page(page).owner.load(Acquire) & SHARED != 0
    }

    /// Whether the page may be mapped to be written by a holder of the one leaf that refers to an
    /// anon, as far as the page's record goes: that anon has the page, one leaf alone refers to it,
    /// the page is not on loan, and I/O hasn't. What
    /// [`Pmap::enter_ahead`](machine::Pmap::enter_ahead) asks where the anon's lock is no longer
    /// held: a thread that changes any of it says so here first, and takes the right to write from
    /// all mappings then.
    ///
    /// A thread that reads a slot for this must read it once more after: a copy may have taken the
    /// anon's place there, and the anon be alone elsewhere.
    #[doc(hidden)]
    #[inline]
    pub fn is_alone(&self, page: PageNo, anon: u32) -> bool {
        // The loans first. A loan that becomes a reference is one before it ends: a thread that
        // finds it ended finds the mark. The owner last: a page that is taken away loses it before
        // it stops being busy. A thread that sets or clears a flag later passes that on: the flags
        // that are read may be the last one's.
        let record = self.page(page);
        self.loans(page) == 0
            && record.flags.load(Acquire) & PageFlags::BUSY.bits() == 0
            && record.owner.load(Acquire) & WHO == pack(Owner::Anon(anon))
    }

    /// The page's owner goes while I/O has it: from now on it is the I/O's, with its place on swap.
    #[doc(hidden)]
    pub fn set_orphan(&self, page: PageNo, slot: Option<Slot>) {
        let slot = u64::from(slot.map_or(0, Slot::number)) << SLOT_SHIFT;
        self.page(page).owner.store(slot | pack(Owner::Orphan), Release);
    }

    /// The place on swap that the owner keeps with the page. Gone with the owner, but for an
    /// orphan.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 1)?;
    /// uvm.frames().flush_pending(held);
    /// let page = uvm.frames().oldest(held, Queue::Active).ok_or("it is active")?;
    /// assert_eq!(uvm.frames().slot(page), None, "it was never paged out");
    /// # Ok(()) });
    /// ```
    pub fn slot(&self, page: PageNo) -> Option<Slot> {
        Slot::new((self.page(page).owner.load(Relaxed) >> SLOT_SHIFT) as u32)
    }

    /// Keeps a place on swap, or none, with a page that has an owner, whose lock is held.
    #[doc(hidden)]
    pub fn set_slot(&self, page: PageNo, slot: Option<Slot>) {
        let slot = slot.map_or(0, Slot::number);
        debug_assert!(slot < Slot::NUMBERS, "slot {slot} has no room in a page's record");
        let owner = &self.page(page).owner;
        let who = owner.load(Relaxed) & WHO;
        owner.store(u64::from(slot) << SLOT_SHIFT | who, Release);
    }

    /// What is going on with the page.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert!(uvm.frames().flags(page.page()).is_empty());
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn flags(&self, page: PageNo) -> PageFlags {
        PageFlags::from_bits_truncate(self.page(page).flags.load(Relaxed))
    }

    /// Sets flags.
    #[doc(hidden)]
    #[inline]
    pub fn set_flags(&self, page: PageNo, flags: PageFlags) {
        let record = self.page(page);
        record.flags.store(record.flags.load(Relaxed) | flags.bits(), Release);
    }

    /// Clears flags and says what all flags were before.
    #[doc(hidden)]
    #[inline]
    pub fn clear_flags(&self, page: PageNo, flags: PageFlags) -> PageFlags {
        let record = self.page(page);
        let old = record.flags.load(Relaxed);
        record.flags.store(old & !flags.bits(), Release);
        PageFlags::from_bits_truncate(old)
    }

    /// How often the page is wired or loaned: while it is, it stays in memory.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// assert_eq!(uvm.frames().hold_count(loan.pages()[0].page()), 1, "a loan keeps it in memory");
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn hold_count(&self, page: PageNo) -> u32 {
        let holds = self.page(page).wire.load(Acquire);
        (holds & WIRINGS) + (holds & LOANS) / LOAN
    }

    /// How often the page is wired, its loans left out.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let pinned = uvm.wire_pages(held, space, range, Prot::READ)?;
    /// assert_eq!(uvm.frames().wire_count(pinned.pages()[0]), 1);
    /// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn wire_count(&self, page: PageNo) -> u32 {
        self.page(page).wire.load(Acquire) & WIRINGS
    }

    /// How often the page is loaned. A thread that finds none sees all that borrowers did with it
    /// before.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// assert_eq!(uvm.frames().loans(loan.pages()[0].page()), 1);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn loans(&self, page: PageNo) -> u32 {
        (self.page(page).wire.load(Acquire) & LOANS) / LOAN
    }

    /// Whether the page is used through its owner alone: it is neither busy nor on loan.
    #[doc(hidden)]
    #[inline]
    pub fn is_plain(&self, page: PageNo) -> bool {
        !self.flags(page).contains(PageFlags::BUSY) && self.loans(page) == 0
    }

    /// Whether the page can be wired by a program once more. What the kernel itself wires is few
    /// enough always to fit.
    #[doc(hidden)]
    #[inline]
    pub fn may_wire(&self, page: PageNo) -> bool {
        self.page(page).wire.load(Relaxed) & WIRINGS < MOST_WIRINGS
    }

    /// Whether the page can be pinned once more, for a call of a program that works on it. Pins
    /// count among the wirings.
    #[doc(hidden)]
    #[inline]
    pub fn may_pin(&self, page: PageNo) -> bool {
        self.page(page).wire.load(Relaxed) & WIRINGS < MOST_PINS
    }

    /// Loans the page once more: under its owner's lock, or by a borrower. It stays on its queue,
    /// like a wired one. Says no if it is loaned too often.
    #[doc(hidden)]
    #[inline]
    pub fn loan(&self, page: PageNo) -> bool {
        let wire = &self.page(page).wire;
        // So many CPUs can't be between the look and the count that this overflows.
        wire.load(Relaxed) & LOANS < MOST_LOANS && {
            wire.fetch_add(LOAN, Relaxed);
            true
        }
    }

    /// Loans an owned page that is as it should be: idle, on a queue, not wired, and not loaned too
    /// often. Under its owner's lock.
    #[doc(hidden)]
    #[inline]
    pub fn try_loan(&self, page: PageNo) -> TryLoan {
        let record = self.page(page);
        let holds = record.wire.load(Relaxed);
        if record.flags.load(Relaxed) & PageFlags::BUSY.bits() != 0 {
            return TryLoan::Busy;
        }
        if holds & WIRINGS != 0 || holds & LOANS >= MOST_LOANS {
            return TryLoan::Held;
        }
        if record.place.load(Acquire) == Place::Nowhere as u8 {
            return TryLoan::Busy;
        }
        record.wire.fetch_add(LOAN, Relaxed);
        TryLoan::Loaned
    }

    /// Takes one loan back, with no lock. Says whether the page is the caller's now, to be freed:
    /// it had no owner any more, and this was the last hold.
    #[doc(hidden)]
    #[inline]
    pub fn end_loan(&self, page: PageNo) -> bool {
        let before = self.page(page).wire.fetch_sub(LOAN, AcqRel);
        debug_assert!(before & LOANS != 0, "{page:?} is not loaned");
        before == DISOWNED | LOAN
    }

    /// The page's owner, whose lock is held, gives it up while it may be held: all that the owner
    /// knows of it is undone already, its record says another owner, and no list and no CPU knows
    /// it. Says whether it was not held: then it is the caller's to free. Else the last holder
    /// frees it, at any moment from now. A device's frame is never to be freed: for it the answer
    /// is no.
    #[doc(hidden)]
    pub fn disown(&self, page: PageNo) -> bool {
        !self.is_device(page) && self.page(page).wire.fetch_or(DISOWNED, AcqRel) & !DISOWNED == 0
    }

    /// Whether the page's owner has disowned it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// uvm.unmap(held, space, range)?;
    /// assert!(uvm.frames().is_disowned(loan.pages()[0].page()), "only the loan keeps it");
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn is_disowned(&self, page: PageNo) -> bool {
        self.page(page).wire.load(Relaxed) & DISOWNED != 0
    }

    /// Gives an owner to a page without an owner that the caller has on loan. That loan ends if it
    /// is the only one.
    #[doc(hidden)]
    #[inline]
    pub fn take_over(&self, page: PageNo) -> Taken {
        let wire = &self.page(page).wire;
        let mut holds = wire.load(Relaxed);
        while holds & (DISOWNED | WIRINGS) == DISOWNED {
            let (left, taken) = if holds == DISOWNED | LOAN {
                (0, Taken::Alone)
            } else {
                (holds & !DISOWNED, Taken::Among)
            };
            match wire.compare_exchange(holds, left, AcqRel, Relaxed) {
                Ok(_) => return taken,
                Err(now) => holds = now,
            }
        }
        Taken::Not
    }

    /// Names the owner that [took a page over](Self::take_over): what its last owner knew of it is
    /// no longer so.
    #[doc(hidden)]
    #[inline]
    pub fn set_new_owner(&self, page: PageNo, owner: Owner) {
        let page = self.page(page);
        page.flags.store(0, Relaxed);
        page.index.store(0, Relaxed);
        page.owner.store(pack(owner), Release);
    }

    /// Whether the page has no owner, and one borrower alone holds it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert!(uvm.frames().is_borrowers(page.page()), "it is on loan to the caller alone");
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn is_borrowers(&self, page: PageNo) -> bool {
        self.page(page).wire.load(Acquire) == DISOWNED | LOAN
    }

    /// Makes a page of the kernel's, which no other thread knows, one without an owner that is
    /// loaned once.
    #[doc(hidden)]
    #[inline]
    pub fn loan_unowned(&self, page: PageNo) {
        debug_assert_eq!(self.page(page).wire.load(Relaxed), 0, "{page:?} is held");
        self.page(page).wire.store(DISOWNED | LOAN, Release);
    }

    /// Wires the page once more. It stays on its queue, where the page daemon passes it by: most
    /// wirings last for one copy, and two hand-offs through the queues' lock would cost more than
    /// that.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let page = frames.alloc(machine, held, Reserve::Kernel)?;
    /// frames.wire(page);
    /// assert_eq!(frames.wire_count(page), 1);
    /// # frames.unpin(page); frames.free_page(machine, held, page);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn wire(&self, page: PageNo) {
        self.page(page).wire.fetch_add(1, Relaxed);
    }

    /// Takes one wiring back; after the last, a page that is on no queue goes on its way to the
    /// active one.
    #[doc(hidden)]
    pub fn unwire<P: Before<PageQueues>>(&self, machine: &M, held: &mut Held<'_, P>, page: PageNo) {
        let count = self.page(page).wire.fetch_sub(1, Relaxed) & WIRINGS;
        debug_assert!(count > 0, "{page:?} is not wired");
        if count == 1 {
            self.activate(machine, held, page);
        }
    }

    /// Links a page that is on no list to the next of a chain; under the owner's lock, or by the
    /// thread that made it busy.
    #[doc(hidden)]
    pub fn chain(&self, page: PageNo, next: Option<PageNo>) {
        debug_assert_eq!(self.place(page), Place::Nowhere, "{page:?} is on a list");
        self.page(page).next.store(next.map_or(NIL, |page| page.0), Relaxed);
    }

    /// The page behind one in a chain of pages on no list.
    #[doc(hidden)]
    pub fn chained(&self, page: PageNo) -> Option<PageNo> {
        self.page(page).next()
    }

    /// Takes one wiring back and says whether it was the last; the page goes on no queue. For pages
    /// that have lost their owner: the thread that takes the last wiring frees the page. A device's
    /// frame is never to be freed: for it the answer is no.
    #[doc(hidden)]
    pub fn unpin(&self, page: PageNo) -> bool {
        self.page(page).wire.fetch_sub(1, AcqRel) == DISOWNED | 1
    }

    /// Where the page is linked.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert_eq!(uvm.frames().place(page.page()), uvm::page::Place::Nowhere);
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn place(&self, page: PageNo) -> Place {
        PLACES[usize::from(self.page(page).place.load(Acquire))]
    }
}

impl Page {
    pub(crate) fn new(owner: Owner, place: Place) -> Page {
        Page {
            owner: AtomicU64::new(pack(owner)),
            index: AtomicU64::new(0),
            wire: AtomicU32::new(0),
            next: AtomicU32::new(NIL),
            prev: AtomicU32::new(NIL),
            flags: AtomicU16::new(0),
            place: AtomicU8::new(place as u8),
            order: AtomicU8::new(NO_BLOCK),
        }
    }
}

/// Bits of an owner's word: which owner, in which table; above them the number that the owner keeps
/// with the page.
const SLOT_SHIFT: u32 = 35;
/// The part that names the owner.
const WHO: u64 = (1 << SLOT_SHIFT) - 1;
/// With an anon: several leaves refer to it.
const SHARED: u64 = 4 << 32;

pub(crate) const fn pack(owner: Owner) -> u64 {
    match owner {
        Owner::Free => 0,
        Owner::Kernel => 1 << 32,
        Owner::Anon(n) => 2 << 32 | n as u64,
        Owner::Object(n) => 3 << 32 | n as u64,
        Owner::Orphan => 4 << 32,
    }
}

fn unpack(word: u64) -> Owner {
    let n = word as u32;
    match word >> 32 & 7 {
        0 => Owner::Free,
        1 => Owner::Kernel,
        // The second is a shared one.
        2 | 6 => Owner::Anon(n),
        3 => Owner::Object(n),
        _ => Owner::Orphan,
    }
}

#[cfg(test)]
mod tests {
    /// The figure of docs/decisions/page-out-and-swap.md.
    #[test]
    fn a_page_costs_32_bytes() {
        assert_eq!(size_of::<super::super::Page>(), 32);
    }
}
