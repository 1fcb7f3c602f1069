//! Cases 1A and 1B: the amap has an anon at the address.

use machine::frames::PageFlags;
use machine::shared::Access;
use machine::{order, Held, Machine, PageNo, Prot, RawLock, Reserve, Shootdown};

use super::object::Upper;
use super::{Fault, FaultError};
use crate::amap::{ARef, AmapBody, AnonHolders};
use crate::anon::{AnonBody, AnonNo};
use crate::map::{Entry, Writes};
use crate::object::busy_check;
use crate::stat::Counter;
use crate::{Stop, Uvm};

impl<M: Machine> Uvm<M> {
    #[inline]
    pub(super) fn fault_anon(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        aref: &ARef<M>,
    ) -> Result<(), Stop<FaultError>> {
        let slot = entry.slot(aref, fault.va);
        let zeroes = {
            let (body, mut h) = aref.amap.body.read(held);
            // Where others may want the amap meanwhile, its lock is not held while a page is filled.
            let zeroes = entry.object.is_none()
                && M::Lock::rows().len() > 1
                && fault.spare.is_none()
                && body.slots.get(slot).is_none();
            match body {
                _ if zeroes => {}
                Access::Alone(mut body) => {
                    return self.fault_anon_alone(&mut h, fault, entry, &mut body, slot)
                }
                Access::Among(body) => {
                    if self.fault_anon_among(&mut h, fault, entry, &body, slot)? {
                        return Ok(());
                    }
                }
            }
            zeroes
        };
        if zeroes {
            fault.spare = Some(self.page_of_zeroes(held)?);
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        self.fault_anon_alone(&mut h, fault, entry, &mut body, slot)
    }

    /// Shows what is there, beside others who do the same. Says no if the amap, the object or an anon's data has to
    /// change first.
    fn fault_anon_among(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &AmapBody,
        slot: u64,
    ) -> Result<bool, Stop<FaultError>> {
        let writes = fault.access == Prot::WRITE;
        let (found, shared) = body.slots.find(slot);
        if entry.wired || (shared && writes) || body.ahead.is_due(slot) {
            return Ok(false);
        }
        let Some(no) = found else {
            let Some(oref) = entry.object.as_ref().filter(|_| !writes || entry.writes == Writes::Through)
            else {
                return Ok(false);
            };
            self.fault_in_object(held, fault, entry, oref, Upper::Among(body, slot))?;
            return Ok(true);
        };
        {
            let (anon, mut h) = self.anons.get(no).lock(held);
            let Some(page) = anon.page else { return Ok(false) };
            if self.frames().flags(page).contains(PageFlags::BUSY) || (writes && anon.refs > 1) {
                return Ok(false);
            }
            self.show_anon(&mut h, fault, entry, &anon, page, shared)?;
        }
        self.map_anon_neighbours(held, fault, entry, &body.slots, slot);
        Ok(true)
    }

    /// Enters an anon's page: writable, if nobody else refers to the anon and the entry may write it.
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
        self.stat().add(self.machine().cpu(), Counter::FaultsAnon, 1);
        let writable = anon.refs == 1 && !shared && entry.writes != Writes::NeedCopy;
        let prot = if writable { entry.prot } else { entry.prot.without_write() };
        self.enter(held, fault, entry, page, prot)
    }

    #[inline]
    fn fault_anon_alone(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &mut AmapBody,
        slot: u64,
    ) -> Result<(), Stop<FaultError>> {
        let (found, mut shared) = body.slots.find(slot);
        let changes = fault.access == Prot::WRITE || (found.is_none() && entry.object.is_none());
        if shared && changes {
            let mut holders = AnonHolders {
                machine: self.machine(),
                anons: &self.anons,
                held: &mut *held,
                down: fault.down,
            };
            body.slots.unshare(slot, &mut holders);
            shared = false;
        }
        let Some(no) = found else {
            return self.fault_below(held, fault, entry, Upper::Alone(body, slot));
        };
        let copy = loop {
            {
                let (anon, mut h) = self.anons.get(no).lock(held);
                if let Some(page) = anon.page {
                    busy_check(self.machine(), page).map_err(Stop::Wait)?;
                    if fault.access == Prot::WRITE && anon.refs > 1 {
                        let shared_slot = !body.cover.is_exclusive(slot..slot + 1);
                        let copy = self.copy_for_write(&mut h, page)?;
                        if shared_slot {
                            self.forget_everywhere(&mut h, fault, page);
                        }
                        break Some(copy);
                    }
                    self.show_anon(&mut h, fault, entry, &anon, page, shared)?;
                    break None;
                }
            }
            self.page_in(held, entry, body, slot, no)?;
        };
        if let Some(copy) = copy {
            return self.fault_anon_copied(held, fault, entry, (body, slot), no, copy);
        }
        self.map_anon_neighbours(held, fault, entry, &body.slots, slot);
        if body.ahead.is_due(slot) {
            self.swap_ahead(held, fault, entry, body);
        }
        Ok(())
    }

    /// Case 1B: a new anon, with the bytes in `copy`, takes the place of one that others refer to as well.
    #[inline(never)]
    fn fault_anon_copied(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        (body, slot): (&mut AmapBody, u64),
        old: AnonNo,
        copy: PageNo,
    ) -> Result<(), Stop<FaultError>> {
        let machine = self.machine();
        let anon = self.anons.make(machine, held, copy).map_err(FaultError::from)?;
        self.stat().add(machine.cpu(), Counter::FaultsAnonCopied, 1);
        body.slots.set(slot, anon);
        let shown = self.replace(held, fault, entry, copy);
        machine.frames().activate(machine, held, copy);
        self.drop_copied(held, old);
        shown
    }

    /// A page with the bytes of an anon's that others refer to as well. The anon's lock keeps the page daemon from
    /// taking the original away meanwhile.
    #[inline(never)]
    fn copy_for_write(&self, held: &mut Held<'_, order::Anon>, page: PageNo) -> Result<PageNo, FaultError> {
        let machine = self.machine();
        let copy = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.copy(page, copy);
        Ok(copy)
    }

    /// Drops the slot's reference to an anon that was copied; no translation in reach of the slot shows it any more.
    fn drop_copied(&self, held: &mut Held<'_, order::Amap>, old: AnonNo) {
        let mut down = Shootdown::new();
        self.anons.release(self.machine(), held, old, &mut down);
        down.perform(self.machine(), held);
    }
}
