//! The owner of a page, an anon or an object, for passes that come by the page: the page daemon,
//! completions of I/O, swapoff.
//!
//! Such a pass knows a page, nothing else. It reads the owner in the page's record without a lock,
//! takes the owner's lock and looks again ([`Uvm::with_owner`]). A busy page changes hands once at
//! most, when its owner goes and leaves it an orphan, so a second look finds the truth
//! ([`Uvm::with_owner_of_busy`]). A thread that waits for the page is woken under the owner's lock,
//! after the owner says what became of the data: a ticket is read under that lock, so no wake-up is
//! lost.
//!
//! ```text
//!                  page in            place on swap in         dirty page goes to
//!   anon           AnonBody::page     AnonBody::swap           swap
//!   object         table of pages     record of the page;      swap, its pager or nowhere
//!                                     then table of pages      (Pager::launder)
//!   orphan         -                  record of the page       freed with its I/O's end
//! ```
//!
//! # When a transfer fails
//! A device that fails a transfer of many pages says that one of them is bad, not which. No page's
//! data is given up for a neighbour's: such slots are *doubtful*, and each is tried alone the next
//! time. A slot that fails alone is bad; it is retired, and a page that was to be read from it is
//! lost: its users get [`FaultError::Io`](crate::FaultError), and other pages' users notice
//! nothing. A page that was to be written stays in memory.
//!
//! I1: a page that is neither wanted nor changed when its write-out ends is freed; every other one
//! is on a queue again. I2: a page leaves its owner before its BUSY flag goes, so that a thread
//! that found it without the lock doesn't map it meanwhile ([`Frames::is_alone`]).
//!
//! Locks: the owner's; inside it the swap table's and the queues'.

use alloc::sync::Arc;

use machine::lines::Ordering::Relaxed;
use machine::{order, Before, Channel, Held, Machine, PageNo, Pages, Unlocked};

use crate::anon::{AnonBody, AnonNo};
use crate::io::{Direction, Ended, Outcome, ReadRequest, Source, Transfer};
use crate::object::{unbusy, ObjectBody};
use crate::object::{Launder, Pager};
use crate::page::{Frames, Owner, PageFlags};
use crate::stat::Counter;
use crate::swap::{Bits, Slot};
use crate::Uvm;

/// An owner of pages under its lock.
pub(crate) enum PageOwner<'a, M: Machine> {
    Anon {
        no: AnonNo,
        body: &'a mut AnonBody,
    },
    Object {
        pager: &'a Arc<dyn Pager<M>>,
        body: &'a mut ObjectBody,
    },
    /// No lock: the owner has gone and left the page to its I/O, which is the caller's.
    Orphan,
}

/// The token of an owner's lock, whichever it is.
type Locked<'a> = Held<'a, order::Anon>;

impl<M: Machine> Uvm<M> {
    /// Calls `work` under the lock of a page's owner; `None` if that has just gone, or there is
    /// none.
    pub(crate) fn with_owner<P, T>(
        &self,
        held: &mut Held<'_, P>,
        page: PageNo,
        work: impl FnOnce(&mut PageOwner<'_, M>, &mut Locked<'_>) -> T,
    ) -> Option<T>
    where
        P: Before<order::Object> + Before<order::Anon> + Before<order::ObjectTable>,
    {
        match self.frames().owner(page) {
            Owner::Anon(number) => {
                let no = AnonNo::new(number)?;
                let (mut body, mut h) = self.anons.get(no).lock(held);
                let mut owner = PageOwner::Anon { no, body: &mut body };
                owner.has(self.frames(), page).then(|| work(&mut owner, &mut h))
            }
            Owner::Object(id) => {
                let pager = self.pager(held, id)?;
                let (mut body, h) = pager.object().lock(held);
                let mut owner = PageOwner::Object { pager: &pager, body: &mut body };
                owner.has(self.frames(), page).then(|| work(&mut owner, &mut h.down_to()))
            }
            _ => None,
        }
    }

    /// As [`with_owner`](Self::with_owner), for a page that the caller has made busy: its owner may
    /// have gone and left it an orphan.
    pub(crate) fn with_owner_of_busy<T>(
        &self,
        held: &mut Unlocked<'_>,
        page: PageNo,
        mut work: impl FnMut(&mut PageOwner<'_, M>, &mut Locked<'_>) -> T,
    ) -> T {
        loop {
            if let Some(done) = self.with_owner(held, page, &mut work) {
                return done;
            }
            if self.frames().owner(page) == Owner::Orphan {
                return work(&mut PageOwner::Orphan, &mut held.deeper());
            }
        }
    }

    /// Starts the read that an attempt has prepared.
    pub(crate) fn start(&self, held: &mut Unlocked<'_>, start: ReadRequest) {
        let (pages, from) = start.take(self.frames());
        let transfer = match from {
            Source::Swap(slot) => self.read_swap(held, slot, &pages),
            Source::Object { id, index } => match self.pager(held, id) {
                Some(pager) => pager.start_read(self, held, index, &pages),
                // Its last reference went, and the pages were left behind.
                None => Transfer::Failed,
            },
        };
        self.transferred(held, Direction::Read, &pages, transfer);
    }

    /// Ends a transfer unless the host does so later.
    pub(crate) fn transferred(
        &self,
        held: &mut Unlocked<'_>,
        direction: Direction,
        pages: &[PageNo],
        transfer: Transfer,
    ) {
        let outcome = match transfer {
            Transfer::Done => Outcome::Done,
            Transfer::Failed => Outcome::Failed,
            Transfer::Started => return,
        };
        match direction {
            Direction::Read => self.read_done(held, pages, outcome),
            Direction::Write => self.write_done(held, pages, outcome),
        }
    }

    /// Ends a read: the host's call for pages whose transfer was [`Started`](Transfer::Started).
    /// The pages may be used, or say that they could not be read, and threads that wait for them
    /// are woken. From any thread, or an interrupt handler, that holds nothing.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// /// For pages whose read a file or a swap device has answered with `Transfer::Started`.
    /// fn read_ended(uvm: &System, held: &mut Held<'_, Nothing>, pages: &[PageNo]) {
    ///     uvm.read_done(held, pages, Outcome::Done);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn read_done(&self, held: &mut Unlocked<'_>, pages: &[PageNo], outcome: Outcome) {
        self.ended(held, pages, Ended { direction: Direction::Read, outcome, pages: pages.len() });
        self.coming_in.fetch_sub(pages.len(), Relaxed);
        // A thread that found nothing to take while these were under way looks again.
        self.mem().wake(Channel::MEMORY);
    }

    /// Ends a write, as [`read_done`](Self::read_done) ends a read.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// /// For pages whose write a file or a swap device has answered with `Transfer::Started`.
    /// fn write_ended(uvm: &System, held: &mut Held<'_, Nothing>, pages: &[PageNo]) {
    ///     uvm.write_done(held, pages, Outcome::Done);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn write_done(&self, held: &mut Unlocked<'_>, pages: &[PageNo], outcome: Outcome) {
        self.ended(held, pages, Ended { direction: Direction::Write, outcome, pages: pages.len() });
        self.frames().refill_reserves(held);
    }

    /// Ends the I/O of pages: of those at the front that have one owner, then of the next.
    fn ended(&self, held: &mut Unlocked<'_>, pages: &[PageNo], end: Ended) {
        let mut rest = pages;
        while let Some(&first) = rest.first() {
            let mut written = 0;
            let own = self.with_owner_of_busy(held, first, |owner, h| {
                let own = rest.iter().take_while(|&&page| owner.has(self.frames(), page)).count();
                for &page in &rest[..own] {
                    let flags = self.frames().flags(page);
                    written += usize::from(flags.contains(PageFlags::PAGEOUT));
                    match end.direction {
                        Direction::Read => owner.read(self, h, page, end),
                        Direction::Write => owner.written(self, h, page, end),
                    }
                }
                own
            });
            self.pageout_ended(written);
            rest = &rest[own..];
        }
    }

    /// Takes one wiring of a page back, whatever owns it by now: its owner may let it go at this
    /// moment, and one of the two frees it.
    pub(crate) fn unwire_page<P: Before<order::Amap>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        self.unpin_owned(&mut held.deeper(), page, false);
        self.mem().pages_may_go();
    }

    /// Takes one pin back under the lock of the page's owner; again, if that has just gone.
    pub(crate) fn unpin_owned(
        &self,
        held: &mut Held<'_, order::Amap>,
        page: PageNo,
        changed: bool,
    ) {
        let (machine, frames) = (self.mem(), self.frames());
        loop {
            let unpinned = self.with_owner(held, page, |owner, h| {
                if changed {
                    owner.set_dirty(frames, page);
                }
                frames.unwire(machine, h, page);
            });
            // A mapped object is known; one that is not has just lost its last reference, and its
            // pages their owner.
            let has_one = matches!(frames.owner(page), Owner::Anon(_) | Owner::Object(_));
            if unpinned.is_none() && has_one {
                continue;
            }
            if unpinned.is_none() && frames.unpin(page) {
                frames.free_page(machine, held, page);
            }
            return;
        }
    }
}

impl<M: Machine> PageOwner<'_, M> {
    /// Whether it owns a page. The record of one that has left it, to be freed after a shootdown,
    /// may still name it.
    fn has(&self, frames: &Frames<M>, page: PageNo) -> bool {
        match self {
            PageOwner::Anon { no, body } => {
                frames.owner(page) == Owner::Anon(no.get()) && body.page() == Some(page)
            }
            PageOwner::Object { pager, body } => {
                frames.owner(page) == Owner::Object(pager.object().name())
                    && body.page(Pages(frames.index(page))) == Some(page)
            }
            PageOwner::Orphan => frames.owner(page) == Owner::Orphan,
        }
    }

    /// What becomes of its dirty pages.
    pub(crate) fn launder(&self) -> Launder {
        match self {
            PageOwner::Anon { .. } => Launder::Swap,
            PageOwner::Object { pager, .. } => pager.launder(),
            PageOwner::Orphan => Launder::Keep,
        }
    }

    /// The place on swap of a resident page of its.
    pub(crate) fn slot(&self, frames: &Frames<M>, page: PageNo) -> Option<Slot> {
        match self {
            PageOwner::Anon { body, .. } => body.swap,
            PageOwner::Object { .. } | PageOwner::Orphan => frames.slot(page),
        }
    }

    /// Gives a resident page a place on swap, or none, and frees the one that it had.
    pub(crate) fn set_slot(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Locked<'_>,
        page: PageNo,
        slot: Option<Slot>,
    ) {
        if let Some(old) = self.replace_slot(uvm.frames(), page, slot) {
            uvm.swap().free(uvm.mem(), held, old);
        }
    }

    fn replace_slot(
        &mut self,
        frames: &Frames<M>,
        page: PageNo,
        slot: Option<Slot>,
    ) -> Option<Slot> {
        let old = self.slot(frames, page);
        match self {
            PageOwner::Anon { body, .. } => body.swap = slot,
            PageOwner::Object { .. } | PageOwner::Orphan => frames.set_slot(page, slot),
        }
        old
    }

    /// Whether backing store has what a page holds; certain once no translation shows the page.
    pub(crate) fn is_stored(&self, uvm: &Uvm<M>, page: PageNo) -> bool {
        let has_place = self.launder() != Launder::Swap || self.slot(uvm.frames(), page).is_some();
        has_place && uvm.mem().is_clean(page)
    }

    /// Puts a busy page that stays in memory on a queue again; an orphan is freed.
    pub(crate) fn keep(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo) {
        if let PageOwner::Orphan = self {
            return self.evict(uvm, held, page);
        }
        unbusy(uvm.mem(), page);
        uvm.frames().activate(uvm.mem(), held, page);
    }

    /// Frees a busy page that no translation shows, and leaves its place on swap where the page
    /// was. An orphan's place is freed with it.
    pub(crate) fn evict(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo) {
        let place = self.slot(uvm.frames(), page);
        self.evict_to(uvm, held, page, place);
    }

    fn evict_to(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo, place: Option<Slot>) {
        match self {
            PageOwner::Anon { body, .. } => {
                body.swap = place;
                body.take_page(uvm.frames());
            }
            PageOwner::Object { body, .. } => body.evict(uvm.frames(), page, place),
            PageOwner::Orphan => self.set_slot(uvm, held, page, None),
        }
        unbusy(uvm.mem(), page);
        let is_orphan = matches!(self, PageOwner::Orphan);
        if !is_orphan || uvm.frames().unpin(page) {
            uvm.frames().free_page(uvm.mem(), held, page);
        }
        if is_orphan {
            uvm.mem().wake(Channel::MEMORY);
        }
    }

    /// Ends the read of a page.
    fn read(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo, end: Ended) {
        if let PageOwner::Orphan = self {
            return self.evict(uvm, held, page);
        }
        let (frames, slot) = (uvm.frames(), self.slot(uvm.frames(), page));
        match (end.outcome, slot, &mut *self) {
            (Outcome::Failed, Some(slot), _) => {
                uvm.count(Counter::SwapErrors, 1);
                let left = if end.pages > 1 {
                    uvm.swap().doubt(held, slot);
                    slot
                } else {
                    uvm.swap().end_use(uvm.mem(), held, slot, Bits::lose);
                    Slot::LOST
                };
                return self.evict_to(uvm, held, page, Some(left));
            }
            (Outcome::Failed, None, PageOwner::Object { body, .. }) if end.pages > 1 => {
                // One of them is bad, not known which: each is read by itself when it is asked for.
                body.ahead.failed(frames.index(page));
                return self.evict_to(uvm, held, page, None);
            }
            (Outcome::Failed, None, _) => frames.set_flags(page, PageFlags::ERROR),
            (Outcome::Done | Outcome::Hole, Some(slot), _) => {
                frames.set_flags(page, PageFlags::CLEAN);
                if end.pages == 1 {
                    uvm.swap().trust(held, slot);
                }
                if uvm.swap().gives_back(held, slot) {
                    self.give_slot_back(uvm, held, page);
                }
            }
            (Outcome::Hole, None, _) => frames.set_flags(page, PageFlags::HOLE),
            (Outcome::Done, None, _) => {}
        }
        self.keep(uvm, held, page);
    }

    /// Ends the write of a page.
    fn written(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo, end: Ended) {
        let frames = uvm.frames();
        let slot = self.slot(frames, page);
        if end.outcome == Outcome::Failed {
            self.set_dirty(frames, page);
        }
        match (end.outcome, slot, &mut *self) {
            (Outcome::Failed, Some(slot), _) => {
                uvm.count(Counter::SwapErrors, 1);
                self.replace_slot(frames, page, None);
                if end.pages > 1 {
                    uvm.swap().doubt(held, slot);
                }
                let how = if end.pages > 1 { Bits::free } else { Bits::retire };
                uvm.swap().end_use(uvm.mem(), held, slot, how);
            }
            (Outcome::Failed, None, PageOwner::Object { body, .. }) => {
                frames.set_flags(page, PageFlags::UNWRITTEN);
                // One of many is bad, not known which: each is written by itself the next time.
                if end.pages > 1 {
                    body.parted_writes += 1;
                } else {
                    body.write_errors += 1;
                    uvm.count(Counter::FileErrors, 1);
                }
            }
            (Outcome::Done | Outcome::Hole, Some(slot), _) => {
                if end.pages == 1 {
                    uvm.swap().trust(held, slot);
                }
                let (flags, is_wired) = (frames.flags(page), frames.hold_count(page) != 0);
                let is_wanted = flags.contains(PageFlags::WANTED) || is_wired;
                if flags.contains(PageFlags::PAGEOUT) && !is_wanted && uvm.mem().is_clean(page) {
                    uvm.count(Counter::PagesFreed, 1);
                    return self.evict(uvm, held, page);
                }
            }
            (_, None, _) => {
                frames.clear_flags(page, PageFlags::UNWRITTEN);
            }
        }
        self.keep(uvm, held, page);
    }

    /// A resident page's bytes are in memory alone from now on.
    pub(crate) fn set_dirty(&mut self, frames: &Frames<M>, page: PageNo) {
        frames.clear_flags(page, PageFlags::CLEAN);
        if let PageOwner::Object { body, .. } = self {
            body.mark(Pages(frames.index(page)));
        }
    }

    /// Frees a resident page's place on swap: it must be written elsewhere before it is dropped.
    pub(crate) fn give_slot_back(&mut self, uvm: &Uvm<M>, held: &mut Locked<'_>, page: PageNo) {
        uvm.frames().clear_flags(page, PageFlags::CLEAN);
        self.set_slot(uvm, held, page, None);
    }
}
