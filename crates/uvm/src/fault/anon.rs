//! Cases 1A and 1B: the amap has an anon at the address; and a first touch, where it is to have
//! one.

use crate::page::PageFlags;
use crate::page::{Gather, Reserve};
use machine::{order, Held, Machine, PageNo, Pmap, Prot};

use super::{Fault, FaultError};
use crate::amap::slots::Found;
use crate::amap::{ARef, AmapBody, AnonHolders};
use crate::anon::{AnonBody, AnonNo};
use crate::loan::slots::{Content, Settle, Shown};
use crate::map::{Entry, Writes};
use crate::object::busy_check;
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// Who else may have the amap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Nobody,
    /// Others that read it, and fill slots that are empty.
    Others,
}

impl<M: Machine> Uvm<M> {
    #[inline(always)]
    pub(super) fn fault_anon(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        aref: &ARef<M>,
    ) -> Result<(), Stop<FaultError>> {
        let slot = entry.slot(aref, fault.va);
        let (body, mut h) = aref.amap.body.read(held);
        let beside = if body.is_exclusive() { Beside::Nobody } else { Beside::Others };
        if self.fault_in_amap(&mut h, fault, entry, &body, slot, beside)? {
            if fault.follows {
                self.continue_run(&mut h, fault, entry, body.slots.find(slot));
            }
            return Ok(());
        }
        if let Some(mut body) = body.exclusive() {
            return self.change_amap(&mut h, fault, entry, aref, &mut body, slot);
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        self.change_amap(&mut h, fault, entry, aref, &mut body, slot)
    }

    /// Resolves a fault in what the amap has for a slot, or is to get. Says no, with nothing
    /// changed, if more has to change in the amap or an anon's data, or nobody else may have the
    /// amap meanwhile.
    #[inline]
    fn fault_in_amap(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &AmapBody<M>,
        slot: u64,
        beside: Beside,
    ) -> Result<bool, Stop<FaultError>> {
        let found = body.slots.find(slot);
        if beside == Beside::Others && entry.wired {
            return Ok(false);
        }
        let promotes = fault.access == Prot::WRITE && entry.writes != Writes::Shared;
        match (found.number(), &entry.object) {
            (Some(number), _) => match Content::of(number) {
                Content::Anon(no) => {
                    self.fault_anon_there(held, fault, entry, body, found, no, beside)
                }
                Content::Borrowed(page) => {
                    self.fault_borrowed(held, fault, entry, body, slot, page)
                }
            },
            (None, None) if found.is_open() => self.fault_zeroes(held, fault, entry, found),
            (None, Some(oref)) if !promotes || (beside == Beside::Nobody && found.is_open()) => {
                if let Some((anon, page)) =
                    self.fault_in_object(held, fault, entry, oref, Some((body, slot)))?
                {
                    let is_installed = found.install(anon.number());
                    debug_assert!(is_installed, "somebody else filled a slot");
                    self.fault_anew(held, fault, entry, page)?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A first touch of what has nothing below: a page of zeroes in a new anon.
    #[inline]
    fn fault_zeroes(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        found: Found<'_>,
    ) -> Result<bool, Stop<FaultError>> {
        let (machine, frames) = (self.mem(), self.frames());
        let page = frames.alloc(machine, held, Reserve::User).map_err(FaultError::from)?;
        machine.zero(page);
        self.put_zeroes(held, fault, entry, found, page)
    }

    /// The same, with the page. Where somebody else touched it first, it is free again. Always in
    /// line: a call costs a first touch 3 % more instructions.
    #[inline(always)]
    pub(super) fn put_zeroes(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        found: Found<'_>,
        page: PageNo,
    ) -> Result<bool, Stop<FaultError>> {
        let (machine, frames) = (self.mem(), self.frames());
        let anon = self.anons.make(machine, held, page).map_err(FaultError::from)?;
        let Some(follows) = found.install_behind(anon.number()) else {
            self.anons.release(machine, held, anon, fault.down);
            return Ok(false);
        };
        self.stat().add(machine.cpu(), Counter::FaultsZero, 1);
        let prot =
            if entry.writes == Writes::NeedsCopy { entry.prot.without_write() } else { entry.prot };
        let shown = self.enter(held, fault, entry, page, prot);
        frames.activate(machine, held, page);
        shown?;
        fault.follows = follows;
        Ok(true)
    }

    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn fault_anon_there(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &AmapBody<M>,
        found: Found<'_>,
        no: AnonNo,
        beside: Beside,
    ) -> Result<bool, Stop<FaultError>> {
        let (writes, shared) = (fault.access == Prot::WRITE, found.is_shared());
        if (writes && shared) || body.ahead.is_due(found.index()) {
            return Ok(false);
        }
        let copies = {
            let (anon, mut h) = self.anons.get(no).lock(held);
            // Somebody may have put a copy in its place.
            let Some(page) = anon.page().filter(|_| found.number() == Some(no.number())) else {
                return Ok(false);
            };
            let frames = self.frames();
            let loaned = frames.loans(page) != 0;
            if writes && loaned || frames.flags(page).contains(PageFlags::BUSY) {
                return Ok(false);
            }
            let copies = writes && anon.refs() > 1;
            if !copies {
                self.show_anon(&mut h, fault, entry, &anon, page, shared)?;
            }
            copies
        };
        if copies {
            // Whose slot others share too must be taken from them all.
            let own = body.cover.is_exclusive(found.index()..found.index() + 1);
            let is_for_others = own && beside == Beside::Others;
            body.rewritten.note(found.index());
            return if is_for_others {
                self.copy_beside(held, fault, entry, found, no)
            } else {
                Ok(false)
            };
        }
        self.map_anon_neighbours(held, fault, entry, &body.slots, found.index(), beside);
        Ok(true)
    }

    /// Case 1B beside others that read the amap: puts a copy in an anon's place, of which the slot
    /// is this entry's alone. Says no, with nothing changed, if there is no need by now, or more
    /// has to change.
    ///
    /// Who replaces an anon in a slot beside readers holds its lock; and whoever has found an anon
    /// looks again, with that lock held, whether it is still there. So nobody shows the old page
    /// once every CPU has forgotten it, and nobody finds the new one before.
    #[inline(never)]
    fn copy_beside(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        found: Found<'_>,
        no: AnonNo,
    ) -> Result<bool, Stop<FaultError>> {
        let (machine, frames) = (self.mem(), self.frames());
        let to = frames.alloc(machine, held, Reserve::User).map_err(FaultError::from)?;
        let copy = self.anons.make(machine, held, to).map_err(FaultError::from)?;
        let shown = {
            let (anon, mut h) = self.anons.get(no).lock(held);
            let still = anon.refs() > 1 && found.number() == Some(no.number());
            anon.page().filter(|&page| still && frames.is_plain(page)).map(|from| {
                self.forget_at(&mut h, fault, entry);
                machine.copy(from, to);
                let is_replaced = found.replace(no.number(), copy.number());
                debug_assert!(is_replaced, "somebody else replaced an anon whose lock is held");
                self.enter(&mut h, fault, entry, to, entry.prot)
            })
        };
        let Some(shown) = shown else {
            self.anons.release(machine, held, copy, fault.down);
            return Ok(false);
        };
        self.stat().add(machine.cpu(), Counter::FaultsAnonCopied, 1);
        frames.activate(machine, held, to);
        self.drop_copied(held, no);
        shown.map(|()| true)
    }

    /// Enters an anon's page: writable, if nobody else refers to the anon, nobody has its page on
    /// loan, and the entry may write it.
    #[inline]
    fn show_anon(
        &self,
        held: &mut Held<'_, order::Anon>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        anon: &AnonBody,
        page: PageNo,
        shared: bool,
    ) -> Result<(), Stop<FaultError>> {
        self.stat().add(self.mem().cpu(), Counter::FaultsAnon, 1);
        let own = anon.refs() == 1 && !shared && self.frames().loans(page) == 0;
        let writable = own && entry.writes != Writes::NeedsCopy;
        let prot = if writable { entry.prot } else { entry.prot.without_write() };
        self.enter(held, fault, entry, page, prot)
    }

    /// A read of a page on loan: it is mapped as it is. Says no to what makes it the entry's own.
    #[inline(never)]
    fn fault_borrowed(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &AmapBody<M>,
        slot: u64,
        page: PageNo,
    ) -> Result<bool, Stop<FaultError>> {
        if fault.access == Prot::WRITE || entry.wired {
            return Ok(false);
        }
        self.stat().add(self.mem().cpu(), Counter::FaultsBorrowed, 1);
        self.enter(held, fault, entry, page, entry.prot.without_write())?;
        self.map_borrowed_neighbours(held, fault, entry, &body.slots, slot);
        Ok(true)
    }

    /// The anon in a slot. A page on loan there gets one, and those around it that nobody else has.
    #[inline]
    fn settled(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &Fault<'_, M>,
        entry: &Entry<M>,
        aref: &ARef<M>,
        body: &mut AmapBody<M>,
        slot: u64,
    ) -> Result<Option<AnonNo>, FaultError> {
        match body.slots.get(slot).map(Content::of) {
            None => Ok(None),
            Some(Content::Anon(no)) => Ok(Some(no)),
            Some(Content::Borrowed(_)) => {
                let all = Settle::All(Shown::new(fault.space, entry, aref));
                let copies = self.settle_borrowed(held, body, slot..slot + 1, &all)?;
                fault.space.remap_history.stored(copies);
                // The rest can wait, if memory is short.
                let around = self.slots_around(fault, entry, slot);
                let _ = self.settle_borrowed(held, body, around, &Settle::Own);
                Ok(body.slots.get(slot).and_then(Content::anon))
            }
        }
    }

    /// The same where nobody else has the amap, and whatever must change in it.
    #[inline(never)]
    fn change_amap(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        aref: &ARef<M>,
        body: &mut AmapBody<M>,
        slot: u64,
    ) -> Result<(), Stop<FaultError>> {
        let found = self.settled(held, fault, entry, aref, body, slot)?;
        let mut shared = body.slots.is_shared(slot);
        if fault.access == Prot::WRITE || (found.is_none() && entry.object.is_none()) {
            let mut holders = AnonHolders {
                machine: self.mem(),
                anons: &self.anons,
                held: &mut *held,
                down: fault.down,
            };
            body.slots.open(slot, &mut holders);
            shared = false;
        }
        let Some(no) = found else {
            let is_done = self.fault_in_amap(held, fault, entry, body, slot, Beside::Nobody)?;
            debug_assert!(is_done, "an empty slot of an amap that nobody else has can be filled");
            return Ok(());
        };
        let copy = loop {
            {
                let (anon, mut h) = self.anons.get(no).lock(held);
                if let Some(page) = anon.page() {
                    busy_check(self.mem(), page).map_err(Stop::Wait)?;
                    let loaned = self.frames().loans(page) != 0;
                    if fault.access == Prot::WRITE && (anon.refs() > 1 || loaned) {
                        if loaned {
                            self.keep_loaned(&mut h, fault, page);
                        }
                        if anon.refs() > 1 {
                            body.rewritten.note(slot);
                        }
                        let shared_slot = !body.cover.is_exclusive(slot..slot + 1);
                        if shared_slot {
                            self.forget_everywhere(&mut h, fault, page);
                        }
                        self.forget_at(&mut h, fault, entry);
                        break Some(self.copy_for_write(&mut h, page)?);
                    }
                    self.show_anon(&mut h, fault, entry, &anon, page, shared)?;
                    break None;
                }
            }
            self.page_in(held, entry, body, slot, no)?;
        };
        if let Some(copy) = copy {
            let anon = self.anons.make(self.mem(), held, copy).map_err(FaultError::from)?;
            self.stat().add(self.mem().cpu(), Counter::FaultsAnonCopied, 1);
            body.slots.set(slot, anon.number());
            let shown = self.fault_anew(held, fault, entry, copy);
            self.drop_copied(held, no);
            return shown;
        }
        self.map_anon_neighbours(held, fault, entry, &body.slots, slot, Beside::Nobody);
        if body.ahead.is_due(slot) {
            self.swap_ahead(held, fault, entry, body);
        }
        Ok(())
    }

    /// Cases 1B and 2B: shows the page of a new anon, which the slot has by now, where every CPU
    /// has forgotten the page that it is a copy of.
    #[inline]
    fn fault_anew(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        page: PageNo,
    ) -> Result<(), Stop<FaultError>> {
        let shown = self.enter(held, fault, entry, page, entry.prot);
        self.frames().activate(self.mem(), held, page);
        shown
    }

    /// A page with the bytes of an anon's that others refer to as well. The anon's lock keeps the
    /// page daemon from taking the original away meanwhile.
    #[inline(never)]
    fn copy_for_write(
        &self,
        held: &mut Held<'_, order::Anon>,
        page: PageNo,
    ) -> Result<PageNo, FaultError> {
        let machine = self.mem();
        let copy = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.copy(page, copy);
        Ok(copy)
    }

    /// Before a loaned page is copied: who loans it may not have told all CPUs yet that it can't be
    /// written.
    #[cold]
    fn keep_loaned(
        &self,
        held: &mut Held<'_, order::Anon>,
        fault: &mut Fault<'_, M>,
        page: PageNo,
    ) {
        let pmap = self.mem().pmap();
        pmap.page_protect(held, page, Prot::READ_EXECUTE, fault.down);
        fault.down.flush(pmap);
        self.stat().add(self.mem().cpu(), Counter::LoansBroken, 1);
    }

    /// Drops the slot's reference to an anon that was copied; no translation in reach of the slot
    /// shows it any more.
    fn drop_copied(&self, held: &mut Held<'_, order::Amap>, old: AnonNo) {
        let mut down = Gather::new();
        self.anons.release(self.mem(), held, old, &mut down);
        down.perform(self.frames(), self.mem(), held);
    }
}
