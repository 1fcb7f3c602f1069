//! The path of a fault, in the shape of its picture: look up, the amap, the object.
//!
//! ```text
//!   fault_once      look up: read the map, ask for the right, pin the entry
//!                   an entry that waits to copy gets an amap first, with the map locked
//!        |
//!      amap         slot_of_amap, beside others that read it
//!        |            an anon       case_1: 1A show it, 1B copy_anon
//!        |            on loan       enter_loaned
//!        |            empty         nothing below: zero_fill; else object
//!        |          or with the amap alone: own leaf, adopt a page on loan, read from swap; again
//!        v
//!      object       enter_object, beside others that read it: 2A show it, 2B promote
//!                   or with the object alone: have the pager find the page, break its loan; again
//! ```
//! A thread that replaces an anon in a slot beside readers holds that anon's lock; and one that has
//! found an anon looks again, with the lock held, whether it is still there. So no thread shows the
//! old page once every CPU has forgotten it, and none finds the new one before.
//!
//! A page that is made here is activated once it has been entered (`anon` I3).

use core::mem::MaybeUninit;

use machine::shared;
use machine::{order, Held, Machine, NoMemory, PageNo, Prot, Unlocked};

use super::{Attempt, Effects, Fault, FaultError, Refused, Request, BYTES};
use crate::amap::borrowed::Content;
use crate::amap::slots::Found;
use crate::amap::{ARef, AmapBody, AnonHolders};
use crate::anon::{AnonBody, AnonNo};
use crate::map::adopt::Adopt;
use crate::map::lock::TreeGuard;
use crate::map::{Entry, ORef, Writes, NOWHERE};
use crate::object::find::SPECIAL;
use crate::object::{busy_check, Access, ObjectBody, ObjectGuard};
use crate::page::{Frames, PageFlags};
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// Which other threads may have the amap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// None.
    Exclusive,
    /// Some that read it, and fill slots that are empty.
    Shared,
}

/// The amap above an object, and the place of the slot there, which is empty.
type Upper<'a, M> = Option<(&'a AmapBody<M>, Found<'a>)>;

/// An anon's page that no I/O has.
struct AtHand {
    page: PageNo,
    is_loaned: bool,
    /// A store is to copy it: others refer to the anon, or have its page on loan.
    is_shared: bool,
}

impl<M: Machine> Uvm<M> {
    /// One attempt. A fault only looks at the map: what changes the map is for a change of its own.
    #[inline]
    pub(super) fn fault_once(
        &self,
        held: &mut Unlocked<'_>,
        request: &Request<'_, M>,
        effects: &mut Effects<'_>,
        reserved: usize,
    ) -> Attempt<()> {
        let map = &request.space.map;
        let is_hole = {
            let (tree, mut h) = map.read_now(self.mem(), held)?;
            let mut copy = MaybeUninit::uninit();
            let found = map.pin_if(tree, request.va, &mut copy, |entry| {
                let Some(entry) = entry else { return Ok(false) };
                request.permit(entry)?;
                Ok::<_, FaultError>(!request.needs_amap(entry))
            })?;
            let tree = match found {
                Ok(entry) => return self.fault_entry(&mut h, request, &entry, effects),
                Err(tree) => tree,
            };
            let is_hole = tree.get(request.va).is_none();
            if let Some(tree) = tree.exclusive().filter(|_| !is_hole) {
                return self.fault_with_own_amap(&mut h, request, tree, effects, reserved);
            }
            is_hole
        };
        if is_hole {
            map.confirm_hole(self.mem(), held, request.va)?;
            return Err(FaultError::NoMapping.into());
        }
        let (tree, mut h) = map.lock_now(self.mem(), held, NOWHERE)?;
        self.fault_with_own_amap(&mut h, request, tree, effects, reserved)
    }

    /// A fault that gives the entry an amap of its own first: an exclusive change of the map, by
    /// the thread that came first; another may have made it, or mapped something else there.
    #[cold]
    #[inline(never)]
    fn fault_with_own_amap(
        &self,
        held: &mut Held<'_, order::Map>,
        request: &Request<'_, M>,
        mut tree: TreeGuard<'_, M>,
        effects: &mut Effects<'_>,
        reserved: usize,
    ) -> Attempt<()> {
        let entry = tree.get(request.va).ok_or(FaultError::NoMapping)?;
        request.permit(entry)?;
        let map = &request.space.map;
        let (range, has_amap) = (entry.range, entry.amap.is_some());
        let unpinned = map.exclude(&tree, range);
        let used = match has_amap && request.needs_amap(entry) {
            true => self.clip_to_copy(held, &mut tree, request.va, reserved)?,
            false => 0,
        };
        // Another thread may have had the map meanwhile.
        let waits = |entry: &&mut Entry<M>| request.needs_amap(entry);
        if let Some(entry) = tree.get_mut(request.va).filter(waits) {
            let need = BYTES + used + self.copy_amap_bytes(held, entry);
            Stop::ensure(need, reserved)?;
            if let Some(aref) = &entry.amap {
                aref.note_rewritten(held, entry.slot(aref, request.va));
            }
            self.copy_amap(held, entry, unpinned);
        }
        let look = |entry: Option<&Entry<M>>| Ok::<_, Stop<Refused>>(entry.is_some());
        let mut copy = MaybeUninit::uninit();
        let found = map.pin_if(shared::Access::Exclusive(tree), request.va, &mut copy, look)?;
        let Ok(entry) = found else { unreachable!("an entry that is permitted is pinned") };
        self.fault_entry_apart(held, request, &entry, effects)
    }

    /// As [`fault_entry`](Self::fault_entry), of which the common path has the only copy in line.
    #[inline(never)]
    fn fault_entry_apart(
        &self,
        held: &mut Held<'_, order::Map>,
        request: &Request<'_, M>,
        entry: &Entry<M>,
        effects: &mut Effects<'_>,
    ) -> Attempt<()> {
        self.fault_entry(held, request, entry, effects)
    }

    /// Always in line where it is called: the call costs each first touch 2 %.
    #[inline(always)]
    fn fault_entry(
        &self,
        held: &mut Held<'_, order::Map>,
        request: &Request<'_, M>,
        entry: &Entry<M>,
        effects: &mut Effects<'_>,
    ) -> Attempt<()> {
        let &Request { space, va, access, pins, reach } = request;
        let (uvm, follows) = (self, false);
        let mut fault = Fault { uvm, space, va, access, pins, reach, entry, effects, follows };
        match (&entry.amap, &entry.object) {
            (Some(aref), _) => fault.amap(held, aref),
            (None, Some(oref)) => fault.object(&mut held.deeper(), oref, None),
            (None, None) => Err(FaultError::NoMapping.into()),
        }
    }
}

impl<M: Machine> Fault<'_, '_, M> {
    /// The amap: resolves the fault in an entry that has one.
    #[inline(always)]
    fn amap(&mut self, held: &mut Held<'_, order::Map>, aref: &ARef<M>) -> Attempt<()> {
        let slot = self.entry.slot(aref, self.va);
        let (body, mut h) = aref.amap.body.read(held);
        // What is to be read ahead is found alone.
        let is_alone = body.is_exclusive() && !body.ahead.is_due(slot);
        let hold = if is_alone { Hold::Exclusive } else { Hold::Shared };
        if self.slot_of_amap(&mut h, &body, slot, hold)? {
            if self.follows {
                self.continue_run(&mut h, body.slots.find(slot));
            }
            return Ok(());
        }
        if let Some(mut body) = body.exclusive() {
            return self.amap_alone(&mut h, aref, &mut body, slot);
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        self.amap_alone(&mut h, aref, &mut body, slot)
    }

    /// Resolves the fault in what the amap has for a slot, or is to get. Says no, with nothing
    /// changed, if more has to change in the amap or an anon's data, or no other thread may have
    /// the amap meanwhile.
    #[inline]
    fn slot_of_amap(
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
                Content::Borrowed(page) => self.enter_loaned(held, body, slot, page),
            },
            (None, None) if found.is_open() => self.zero_fill(held, found),
            (None, Some(oref)) if !promotes || (hold == Hold::Exclusive && found.is_open()) => {
                self.object(held, oref, Some((body, found))).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Makes the amap ready for [`slot_of_amap`](Self::slot_of_amap), which no other thread has,
    /// and resolves the fault: the slot's leaf becomes the amap's own, a page on loan there an
    /// anon's, and an anon on swap is read.
    #[inline(never)]
    fn amap_alone(
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
            if self.slot_of_amap(held, body, slot, Hold::Exclusive)? {
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
        let (uvm, entry) = (self.uvm, self.entry);
        let (stores, in_shared_leaf) = (self.access == Prot::WRITE, found.is_shared());
        let is_due = hold == Hold::Shared && body.ahead.is_due(found.index());
        if (stores && in_shared_leaf) || is_due {
            return Ok(false);
        }
        let copies = {
            let (anon, mut h) = uvm.anons.get(no).lock(held);
            let Some(at_hand) = self.at_hand(&anon, found, no) else { return Ok(false) };
            let copies = stores && at_hand.is_shared;
            if !copies {
                uvm.count(Counter::FaultsAnon, 1);
                let is_own =
                    !at_hand.is_shared && !in_shared_leaf && entry.writes != Writes::NeedsCopy;
                let prot = if is_own { entry.prot } else { entry.prot.without_write() };
                self.enter(&mut h, at_hand.page, prot)?;
            }
            copies
        };
        if copies {
            return self.copy_anon(held, body, found, no, hold);
        }
        self.enter_anons_around(held, &body.slots, found.index(), hold);
        Ok(true)
    }

    /// The page of a locked anon that was found in a slot, if it is there and no I/O has it.
    #[inline(always)]
    fn at_hand(&self, anon: &AnonBody, found: Found<'_>, no: AnonNo) -> Option<AtHand> {
        let frames = self.uvm.frames();
        // Another thread may have put a copy in its place.
        let page = anon.page().filter(|_| found.number() == Some(no.number()))?;
        if frames.flags(page).contains(PageFlags::BUSY) {
            return None;
        }
        let is_loaned = frames.loans(page) != 0;
        Some(AtHand { page, is_loaned, is_shared: anon.refs() > 1 || is_loaned })
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
        let (uvm, machine) = (self.uvm, self.uvm.mem());
        // From a slot that others share the page must be taken from them all.
        let own = body.cover.is_exclusive(found.index()..found.index() + 1);
        if !own && hold == Hold::Shared {
            return Ok(false);
        }
        let copied = uvm.copy_anon(&mut held.deeper(), no, |anon, h, copy, to| {
            let at_hand = self.at_hand(anon, found, no)?;
            if !at_hand.is_shared || (at_hand.is_loaned && hold == Hold::Shared) {
                return None;
            }
            let from = at_hand.page;
            if anon.refs() > 1 {
                body.rewritten.note(found.index());
            }
            if at_hand.is_loaned {
                uvm.break_loan(h, from, self.effects.down);
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
        let Some((to, entered)) = copied else { return Ok(false) };
        uvm.count(Counter::FaultsAnonCopied, 1);
        machine.frames().activate(machine, held, to);
        // No translation in reach of the slot shows the original any more.
        uvm.drop_anon(&mut held.deeper(), no);
        entered.map(|()| true)
    }

    /// A read of a page on loan: it is mapped as it is. Says no to what makes it the entry's own.
    #[inline(never)]
    fn enter_loaned(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        body: &AmapBody<M>,
        slot: u64,
        page: PageNo,
    ) -> Attempt<bool> {
        if self.access == Prot::WRITE || self.entry.wired {
            return Ok(false);
        }
        self.uvm.count(Counter::FaultsBorrowed, 1);
        self.enter(&mut held.deeper(), page, self.entry.prot.without_write())?;
        self.enter_loaned_around(held, &body.slots, slot);
        Ok(true)
    }

    /// A first touch of what has nothing below: a page of zeroes in a new anon. Always in line: a
    /// call costs a first touch 3 % more instructions.
    #[inline(always)]
    fn zero_fill(&mut self, held: &mut Held<'_, order::Amap>, found: Found<'_>) -> Attempt<bool> {
        let (uvm, machine) = (self.uvm, self.uvm.mem());
        let Some((_, page, follows)) = self.fill_slot(held, found)? else { return Ok(false) };
        uvm.count(Counter::FaultsZero, 1);
        let prot = self.entry.prot;
        let is_shared = self.entry.writes == Writes::NeedsCopy;
        let prot = if is_shared { prot.without_write() } else { prot };
        let entered = self.enter(&mut held.deeper(), page, prot);
        machine.frames().activate(machine, held, page);
        entered?;
        self.follows = follows;
        Ok(true)
    }

    /// Puts a page of zeroes in an empty slot; `None` if another thread was first, and it is free
    /// again. Returns its anon, it, and whether it seems to follow another.
    #[inline(always)]
    pub(super) fn fill_slot(
        &self,
        held: &mut Held<'_, order::Amap>,
        found: Found<'_>,
    ) -> Result<Option<(AnonNo, PageNo, bool)>, NoMemory> {
        let uvm = self.uvm;
        let page = uvm.mem().zeroed_page(held)?;
        let anon = uvm.new_anon(&mut held.deeper(), page)?;
        let follows = found.install_behind(anon.number());
        if follows.is_none() {
            uvm.drop_anon(&mut held.deeper(), anon);
        }
        Ok(follows.map(|follows| (anon, page, follows)))
    }

    /// The object: shows its page, or a copy for a private write, which no other thread has the
    /// amap for.
    #[inline]
    fn object(
        &mut self,
        held: &mut Held<'_, order::Amap>,
        oref: &ORef<M>,
        upper: Upper<'_, M>,
    ) -> Attempt<()> {
        let (frames, index) = (self.uvm.frames(), self.entry.index(oref, self.va));
        let (body, mut h) = oref.pager.object().read(held);
        // Two CPUs must not end and begin one wiring at a time.
        let plain = body.page(index).filter(|_| !self.entry.wired);
        let plain = plain.filter(|&page| !frames.flags(page).intersects(SPECIAL));
        if let Some(page) = plain.filter(|&page| !self.breaks_loan(page)) {
            return self.enter_object(&mut h, oref, &body, page, upper);
        }
        if let Some(mut body) = body.exclusive() {
            return self.object_alone(&mut h, oref, &mut body, upper);
        }
        let (mut body, mut h) = oref.pager.object().lock(held);
        self.object_alone(&mut h, oref, &mut body, upper)
    }

    /// The object's page, which may have to be read, or to be replaced by a copy since it is on
    /// loan. No other thread has the object.
    #[inline(never)]
    fn object_alone(
        &mut self,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        body: &mut ObjectGuard<'_, M>,
        upper: Upper<'_, M>,
    ) -> Attempt<()> {
        let (uvm, index) = (self.uvm, self.entry.index(oref, self.va));
        let access = Access::Fault(self.entry.advice);
        let found = uvm.find_page(body, held, &*oref.pager, index, access, &mut self.effects.ahead);
        let mut page = found.map_err(|e| Stop::of_get(e).map(|e| Refused::Error(e.into())))?;
        let stores = self.access == Prot::WRITE && self.entry.writes == Writes::Shared;
        if stores && uvm.frames().flags(page).contains(PageFlags::HOLE) {
            return Err(Stop::Fail(Refused::Hole((oref.pager.object().name(), index))));
        }
        if self.breaks_loan(page) {
            page = uvm.replace_loaned(body, held, page, self.effects.down)?;
        }
        self.enter_object(held, oref, body, page, upper)
    }

    /// Whether the access is a store to a page that is on loan.
    #[inline]
    fn breaks_loan(&self, page: PageNo) -> bool {
        self.access == Prot::WRITE
            && self.entry.writes == Writes::Shared
            && self.uvm.frames().loans(page) != 0
    }

    /// Case 2A: enters an object's page. Case 2B, a private write: enters a copy, which is the
    /// amap's.
    #[inline]
    fn enter_object(
        &mut self,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        body: &ObjectBody,
        page: PageNo,
        upper: Upper<'_, M>,
    ) -> Attempt<()> {
        let (uvm, entry, frames) = (self.uvm, self.entry, self.uvm.frames());
        let private = entry.writes != Writes::Shared;
        if private && self.access == Prot::WRITE {
            if let Some((amap, found)) = upper {
                return self.promote(held, body, page, (amap, found));
            }
        }
        uvm.count(Counter::FaultsObject, 1);
        let prot = if private { entry.prot.without_write() } else { entry.prot };
        let own = if is_to_ask(uvm.frames(), page, uvm.frames().flags(page)) {
            prot.without_write()
        } else {
            prot
        };
        let index = entry.index(oref, self.va);
        if own.contains(Prot::WRITE) {
            body.mark(index);
        }
        if frames.is_device(page) && upper.is_none() {
            return self.enter_device(&mut held.deeper(), body, index, page, own);
        }
        self.enter(&mut held.deeper(), page, own)?;
        let slots = upper.map(|(amap, found)| (&amap.slots, found.index()));
        self.enter_object_around(held, oref, body, slots, prot);
        Ok(())
    }

    /// Case 2B: puts a copy of an object's page in the slot above, and enters it.
    #[inline]
    fn promote(
        &mut self,
        held: &mut Held<'_, order::Object>,
        body: &ObjectBody,
        page: PageNo,
        (amap, found): (&AmapBody<M>, Found<'_>),
    ) -> Attempt<()> {
        let (uvm, machine) = (self.uvm, self.uvm.mem());
        if !amap.cover.is_exclusive(found.index()..found.index() + 1) {
            self.forget_everywhere(&mut held.deeper(), page);
        }
        self.forget_here(&mut held.deeper());
        let copy = machine.copied_page(held, page)?;
        let anon = uvm.new_anon(held, copy)?;
        let is_installed = found.install(anon.number());
        debug_assert!(is_installed, "another thread filled a slot");
        uvm.count(Counter::FaultsPromoted, 1);
        body.copiers.add(self.space.family);
        let entered = self.enter(&mut held.deeper(), copy, self.entry.prot);
        machine.frames().activate(machine, held, copy);
        entered
    }
}

/// Whether something must be done before a store reaches an object's page, which has these flags:
/// it is loaned, or a hole.
#[inline]
pub(super) fn is_to_ask<M: Machine>(frames: &Frames<M>, page: PageNo, flags: PageFlags) -> bool {
    flags.contains(PageFlags::HOLE) || frames.loans(page) != 0
}
