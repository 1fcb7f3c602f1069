//! The cases: what the amap has at the address (1A, 1B), what the object below has (2A, 2B), and
//! zeroes.
//!
//! ```text
//!   resolve_above   in_slot: amap read beside others    case_1 -> copy_anon     what the slot has
//!                     |                                 zero_fill               nothing, and nothing is below
//!                     | no                              resolve_below           nothing
//!                     v
//!                   amap alone: own leaf, adopt a page on loan, read from swap; then in_slot
//!   resolve_below   object read beside others -> show_object
//!                     | no
//!                     v
//!                   object alone: have the pager find the page, break its loan; then show_object
//! ```
//! A thread that replaces an anon in a slot beside readers holds that anon's lock; and one that has
//! found an anon looks again, with the lock held, whether it is still there. So no thread shows the
//! old page once every CPU has forgotten it, and none finds the new one before.

use machine::{order, Held, Machine, PageNo, Pages, Pmap, Prot};

use super::{Attempt, Fault, Refused};
use crate::amap::borrowed::Content;
use crate::amap::slots::Found;
use crate::amap::{ARef, AmapBody, AnonHolders};
use crate::anon::AnonNo;
use crate::io::ReadRequest;
use crate::map::adopt::Adopt;
use crate::map::{ORef, Writes};
use crate::object::{busy_check, Access, GetError, ObjectBody, ObjectGuard};
use crate::page::{Gather, PageFlags};
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// What must be looked at before an object's page is shown.
const SPECIAL: PageFlags =
    PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD).union(PageFlags::HOLE);

/// Which other threads may have the amap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// None.
    Exclusive,
    /// Some that read it, and fill slots that are empty.
    Shared,
}

/// The amap above an object, and the slot there, which is empty.
type Upper<'a, M> = Option<(&'a AmapBody<M>, u64)>;

/// A private copy of an object's page: the caller, that has the amap alone, puts it there and shows
/// it.
type Promoted = Option<(AnonNo, PageNo)>;

impl<M: Machine> Fault<'_, '_, M> {
    /// Resolves the fault in an entry with an amap.
    #[inline(always)]
    pub(super) fn resolve_above(
        &mut self,
        held: &mut Held<'_, order::Map>,
        aref: &ARef<M>,
    ) -> Attempt<()> {
        let slot = self.entry.slot(aref, self.va);
        let (body, mut h) = aref.amap.body.read(held);
        // What is to be read ahead is found alone.
        let is_alone = body.is_exclusive() && !body.ahead.is_due(slot);
        let hold = if is_alone { Hold::Exclusive } else { Hold::Shared };
        if self.in_slot(&mut h, &body, slot, hold)? {
            if self.follows {
                self.continue_run(&mut h, body.slots.find(slot));
            }
            return Ok(());
        }
        if let Some(mut body) = body.exclusive() {
            return self.resolve_above_alone(&mut h, aref, &mut body, slot);
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        self.resolve_above_alone(&mut h, aref, &mut body, slot)
    }

    /// Resolves the fault in what the amap has for a slot, or is to get. Says no, with nothing
    /// changed, if more has to change in the amap or an anon's data, or no other thread may have
    /// the amap meanwhile.
    #[inline]
    fn in_slot(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        body: &AmapBody<M>,
        slot: u64,
        hold: Hold,
    ) -> Attempt<bool> {
        let (entry, found) = (self.entry, body.slots.find(slot));
        if hold == Hold::Shared && entry.wired {
            return Ok(false);
        }
        let promotes = self.access == Prot::WRITE && entry.writes != Writes::Shared;
        match (found.number(), &entry.object) {
            (Some(number), _) => match Content::of(number) {
                Content::Anon(no) => self.case_1(held, body, found, no, hold),
                Content::Borrowed(page) => self.show_loaned(held, body, slot, page),
            },
            (None, None) if found.is_open() => self.zero_fill(held, found),
            (None, Some(oref)) if !promotes || (hold == Hold::Exclusive && found.is_open()) => {
                if let Some((anon, page)) = self.resolve_below(held, oref, Some((body, slot)))? {
                    let is_installed = found.install(anon.number());
                    debug_assert!(is_installed, "another thread filled a slot");
                    // Every CPU has forgotten the page that it is a copy of.
                    let shown = self.enter(&mut held.deeper(), page, entry.prot);
                    self.uvm.frames().activate(self.uvm.mem(), held, page);
                    shown?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Makes the amap ready for [`in_slot`](Self::in_slot), which no other thread has, and resolves
    /// the fault: the slot's leaf becomes the amap's own, a page on loan there an anon's, and an
    /// anon on swap is read.
    #[inline(never)]
    fn resolve_above_alone(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        aref: &ARef<M>,
        body: &mut AmapBody<M>,
        slot: u64,
    ) -> Attempt<()> {
        let uvm = self.uvm;
        if body.slots.get(slot).is_some_and(|number| Content::anon(number).is_none()) {
            self.adopt_loaned(held, aref, body, slot)?;
        }
        let anon = body.slots.get(slot).and_then(Content::anon);
        if self.access == Prot::WRITE || (anon.is_none() && self.entry.object.is_none()) {
            let down = &mut *self.effects.down;
            body.slots.open(slot, &mut AnonHolders { uvm, held: &mut *held, down });
        }
        loop {
            if let Some(no) = anon {
                let is_resident = {
                    let (anon, _h) = uvm.anons.get(no).lock(held);
                    let page = anon.page();
                    // Under the lock, else the I/O could end before it is known to be waited for.
                    page.map_or(Ok(()), |page| busy_check(uvm.mem(), page)).map_err(Stop::Wait)?;
                    page.is_some()
                };
                if !is_resident {
                    uvm.page_in(held, self.entry, body, slot, no)?;
                }
            }
            // The page daemon may have come between.
            if self.in_slot(held, body, slot, Hold::Exclusive)? {
                break;
            }
        }
        if body.ahead.is_due(slot) {
            self.swap_ahead(held, body);
        }
        Ok(())
    }

    /// Gives a slot that has a page on loan an anon, and those around it whose pages no other
    /// borrower has.
    #[inline(never)]
    fn adopt_loaned(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        aref: &ARef<M>,
        body: &mut AmapBody<M>,
        slot: u64,
    ) -> Attempt<()> {
        let all = Adopt::All(self.space, self.entry, aref);
        let copies = self.uvm.adopt_borrowed(held, body, slot..slot + 1, &all)?;
        self.space.remap_history.stored(copies);
        if let Some(w) = self.window() {
            let around = slot - w.fault as u64..slot + (w.len - w.fault) as u64;
            // The rest can wait, if memory is short.
            let _ = self.uvm.adopt_borrowed(held, body, around, &Adopt::Own);
        }
        Ok(())
    }

    /// A first touch of what has nothing below: a page of zeroes in a new anon. Where another
    /// thread touched it first, that is free again. Always in line: a call costs a first touch 3 %
    /// more instructions.
    #[inline(always)]
    fn zero_fill(&mut self, held: &mut Held<'_, order::Amap>, found: Found<'_>) -> Attempt<bool> {
        let (uvm, machine) = (self.uvm, self.uvm.mem());
        let (anon, page) = uvm.new_anon(&mut held.deeper())?;
        machine.zero(page);
        let Some(follows) = found.install_behind(anon.number()) else {
            uvm.drop_anon(&mut held.deeper(), anon);
            return Ok(false);
        };
        uvm.stat().add(machine.cpu(), Counter::FaultsZero, 1);
        let prot = self.entry.prot;
        let is_shared = self.entry.writes == Writes::NeedsCopy;
        let prot = if is_shared { prot.without_write() } else { prot };
        let shown = self.enter(&mut held.deeper(), page, prot);
        machine.frames().activate(machine, held, page);
        shown?;
        self.follows = follows;
        Ok(true)
    }

    /// Case 1A: enters an anon's page, writable if no other leaf refers to the anon, no borrower
    /// has its page, and the entry may write it. Case 1B, a store to one that isn't: copies it.
    #[inline(never)]
    fn case_1(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        body: &AmapBody<M>,
        found: Found<'_>,
        no: AnonNo,
        hold: Hold,
    ) -> Attempt<bool> {
        let (uvm, frames, entry) = (self.uvm, self.uvm.frames(), self.entry);
        let (writes, in_shared_leaf) = (self.access == Prot::WRITE, found.is_shared());
        let is_due = hold == Hold::Shared && body.ahead.is_due(found.index());
        if (writes && in_shared_leaf) || is_due {
            return Ok(false);
        }
        let is_copied = {
            let (anon, mut h) = uvm.anons.get(no).lock(held);
            // Another thread may have put a copy in its place.
            let Some(page) = anon.page().filter(|_| found.number() == Some(no.number())) else {
                return Ok(false);
            };
            if frames.flags(page).contains(PageFlags::BUSY) {
                return Ok(false);
            }
            let loaned = frames.loans(page) != 0;
            let is_shared = anon.refs() > 1 || loaned;
            if !(writes && is_shared) {
                uvm.stat().add(uvm.mem().cpu(), Counter::FaultsAnon, 1);
                let own = !is_shared && !in_shared_leaf && entry.writes != Writes::NeedsCopy;
                let prot = if own { entry.prot } else { entry.prot.without_write() };
                self.enter(&mut h, page, prot)?;
            }
            writes && is_shared
        };
        if is_copied {
            return self.copy_anon(held, body, found, no, hold);
        }
        self.map_anons_around(held, &body.slots, found.index(), hold);
        Ok(true)
    }

    /// Case 1B: puts a copy in an anon's place. Says no, with nothing changed, if there is no need
    /// by now, or no other thread may have the amap meanwhile.
    #[inline(never)]
    fn copy_anon(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        body: &AmapBody<M>,
        found: Found<'_>,
        no: AnonNo,
        hold: Hold,
    ) -> Attempt<bool> {
        let (uvm, machine, frames) = (self.uvm, self.uvm.mem(), self.uvm.frames());
        // From a slot that others share the page must be taken from them all.
        let own = body.cover.is_exclusive(found.index()..found.index() + 1);
        if !own && hold == Hold::Shared {
            return Ok(false);
        }
        let copied = uvm.copy_anon(&mut held.deeper(), no, |anon, h, copy, to| {
            let is_there = found.number() == Some(no.number());
            let from = anon.page().filter(|_| is_there)?;
            let loaned = frames.loans(from) != 0;
            let is_shared = anon.refs() > 1 || loaned;
            let is_idle = !frames.flags(from).contains(PageFlags::BUSY);
            if !is_shared || !is_idle || (loaned && hold == Hold::Shared) {
                return None;
            }
            if anon.refs() > 1 {
                body.rewritten.note(found.index());
            }
            if loaned {
                self.protect_loaned(h, from);
            }
            if !own {
                self.forget_everywhere(h, from);
            }
            self.forget_here(h);
            machine.copy(from, to);
            let is_replaced = found.replace(no.number(), copy.number());
            debug_assert!(is_replaced, "another thread replaced an anon whose lock is held");
            Some(self.enter(h, to, self.entry.prot))
        })?;
        let Some((to, shown)) = copied else { return Ok(false) };
        uvm.stat().add(machine.cpu(), Counter::FaultsAnonCopied, 1);
        frames.activate(machine, held, to);
        // No translation in reach of the slot shows the original any more.
        uvm.drop_anon(&mut held.deeper(), no);
        shown.map(|()| true)
    }

    /// Before a loaned page is copied: the thread that loans it may not have flushed all CPUs yet
    /// that can still write it.
    #[cold]
    fn protect_loaned(&mut self, held: &mut Held<'_, order::Anon>, page: PageNo) {
        let (pmap, down) = (self.uvm.mem().pmap(), &mut *self.effects.down);
        pmap.page_protect(held, page, Prot::READ_EXECUTE, down);
        down.flush(pmap);
        self.uvm.stat().add(self.uvm.mem().cpu(), Counter::LoansBroken, 1);
    }

    /// A read of a page on loan: it is mapped as it is. Says no to what makes it the entry's own.
    #[inline(never)]
    fn show_loaned(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        body: &AmapBody<M>,
        slot: u64,
        page: PageNo,
    ) -> Attempt<bool> {
        if self.access == Prot::WRITE || self.entry.wired {
            return Ok(false);
        }
        self.uvm.stat().add(self.uvm.mem().cpu(), Counter::FaultsBorrowed, 1);
        self.enter(&mut held.deeper(), page, self.entry.prot.without_write())?;
        self.map_loaned_around(held, &body.slots, slot);
        Ok(true)
    }

    /// Shows the object's page, or copies it for a private write: then the copy is returned, to be
    /// entered once the amap has it.
    #[inline]
    pub(super) fn resolve_below(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        oref: &ORef<M>,
        upper: Upper<'_, M>,
    ) -> Attempt<Promoted> {
        let (frames, index) = (self.uvm.frames(), self.entry.index(oref, self.va));
        let (body, mut h) = oref.pager.object().read(held);
        // Two CPUs must not end and begin one wiring at a time.
        let plain = body.page(index).filter(|_| !self.entry.wired);
        let plain = plain.filter(|&page| !frames.flags(page).intersects(SPECIAL));
        if let Some(page) = plain.filter(|&page| !self.breaks_loan(page)) {
            return self.show_object(&mut h, oref, &body, page, upper);
        }
        if let Some(mut body) = body.exclusive() {
            return self.resolve_below_alone(&mut h, oref, &mut body, upper);
        }
        let (mut body, mut h) = oref.pager.object().lock(held);
        self.resolve_below_alone(&mut h, oref, &mut body, upper)
    }

    /// The object's page, which may have to be read, or to be replaced by a copy since it is on
    /// loan. No other thread has the object.
    #[inline(never)]
    fn resolve_below_alone(
        &mut self,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        body: &mut ObjectGuard<'_, M>,
        upper: Upper<'_, M>,
    ) -> Attempt<Promoted> {
        let (uvm, index) = (self.uvm, self.entry.index(oref, self.va));
        let access = Access::Fault(self.entry.advice);
        let found = uvm.find_page(body, held, oref, index, access, &mut self.effects.ahead);
        let mut page = found.map_err(|e| Stop::of_get(e).map(|e| Refused::Error(e.into())))?;
        let stores = self.access == Prot::WRITE && self.entry.writes == Writes::Shared;
        if stores && uvm.frames().flags(page).contains(PageFlags::HOLE) {
            return Err(Stop::Fail(Refused::Hole((oref.pager.object().name(), index))));
        }
        if self.breaks_loan(page) {
            page = uvm.replace_loaned(body, held, page, self.effects.down)?;
        }
        self.show_object(held, oref, body, page, upper)
    }

    /// Whether the access is a store to a page that is on loan.
    #[inline]
    fn breaks_loan(&self, page: PageNo) -> bool {
        self.access == Prot::WRITE
            && self.entry.writes == Writes::Shared
            && self.uvm.frames().loans(page) != 0
    }

    /// Whether something must be done before a store reaches an object's page: it is loaned, or a
    /// hole.
    #[inline]
    pub(super) fn is_to_ask(&self, page: PageNo) -> bool {
        let frames = self.uvm.frames();
        frames.loans(page) != 0 || frames.flags(page).contains(PageFlags::HOLE)
    }

    /// Case 2A: enters an object's page. Case 2B, a private write: returns a copy.
    #[inline]
    fn show_object(
        &mut self,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        body: &ObjectBody,
        page: PageNo,
        upper: Upper<'_, M>,
    ) -> Attempt<Promoted> {
        let (uvm, entry, frames) = (self.uvm, self.entry, self.uvm.frames());
        let private = entry.writes != Writes::Shared;
        if private && self.access == Prot::WRITE {
            if upper.is_some_and(|(amap, slot)| !amap.cover.is_exclusive(slot..slot + 1)) {
                self.forget_everywhere(&mut held.deeper(), page);
            }
            self.forget_here(&mut held.deeper());
            let (anon, copy) = uvm.new_anon(held)?;
            uvm.mem().copy(page, copy);
            uvm.stat().add(uvm.mem().cpu(), Counter::FaultsPromoted, 1);
            body.copiers.add(self.space.family);
            return Ok(Some((anon, copy)));
        }
        uvm.stat().add(uvm.mem().cpu(), Counter::FaultsObject, 1);
        let prot = if private { entry.prot.without_write() } else { entry.prot };
        let own = if self.is_to_ask(page) { prot.without_write() } else { prot };
        if own.contains(Prot::WRITE) {
            body.mark(entry.index(oref, self.va));
        }
        if frames.is_device(page) && upper.is_none() {
            let index = entry.index(oref, self.va);
            return self.enter_device(&mut held.deeper(), body, index, page, own).map(|()| None);
        }
        self.enter(&mut held.deeper(), page, own)?;
        let slots = upper.map(|(amap, slot)| (&amap.slots, slot));
        self.map_object_around(held, oref, body, slots, prot);
        Ok(None)
    }
}

impl<M: Machine> Uvm<M> {
    /// The object's page at an index, made resident by its pager; a ticket while it is busy.
    #[inline]
    pub(crate) fn find_page(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        index: Pages,
        access: Access,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<PageNo, GetError> {
        let Some(page) = body.page(index) else {
            return oref.pager.get(self, body, held, index, access);
        };
        if self.frames().flags(page).intersects(SPECIAL) {
            self.look_at_special(body, held, oref, index, page, ahead)?;
        }
        Ok(page)
    }

    /// What there is about a page: a mark to read on, I/O that has it, or that failed, which takes
    /// the page out.
    #[cold]
    fn look_at_special(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        index: Pages,
        page: PageNo,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<(), GetError> {
        let frames = self.frames();
        let flags = frames.flags(page);
        if flags.contains(PageFlags::AHEAD) && ahead.is_none() {
            frames.clear_flags(page, PageFlags::AHEAD);
            *ahead = oref.pager.read_on(self, body, held, index);
            if let Some(start) = ahead.take_if(|_| flags.contains(PageFlags::BUSY)) {
                // There is to be a wait: start it before.
                return Err(GetError::Read(start));
            }
        }
        busy_check(self.mem(), page)?;
        if flags.contains(PageFlags::ERROR) {
            let mut down = Gather::new();
            let page = down.unmap(self.frames(), self.mem(), held, page);
            body.remove(self, held, page, &mut down);
            down.perform(self.frames(), self.mem(), held);
            return Err(GetError::Io);
        }
        Ok(())
    }
}
