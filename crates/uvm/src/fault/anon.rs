//! Cases 1A and 1B: the amap has an anon at the address.

use machine::{order, Held, Machine, PageNo, Prot, Reserve, Shootdown};

use super::{Fault, FaultError};
use crate::amap::{ARef, AmapBody, AnonHolders};
use crate::anon::AnonNo;
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
        let (mut body, mut h) = aref.amap.body.lock(held);
        let slot = entry.slot(aref, fault.va);
        let (found, mut shared) = body.slots.find(slot);
        let changes = fault.access == Prot::WRITE || (found.is_none() && entry.object.is_none());
        if shared && changes {
            let mut holders =
                AnonHolders { machine: self.machine(), anons: &self.anons, held: &mut h, down: fault.down };
            body.slots.unshare(slot, &mut holders);
            shared = false;
        }
        let Some(no) = found else {
            return self.fault_below(&mut h, fault, entry, Some((&mut body, slot)));
        };
        let copy = loop {
            {
                let (anon, mut h) = self.anons.get(no).lock(&mut h);
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
                    self.stat().add(self.machine().cpu(), Counter::FaultsAnon, 1);
                    let writable = anon.refs == 1 && !shared && entry.writes != Writes::NeedCopy;
                    let prot = if writable { entry.prot } else { entry.prot.without_write() };
                    self.enter(&mut h, fault, entry, page, prot)?;
                    break None;
                }
            }
            self.page_in(&mut h, entry, &mut body, slot, no)?;
        };
        if let Some(copy) = copy {
            return self.fault_anon_copied(&mut h, fault, entry, (&mut body, slot), no, copy);
        }
        self.map_anon_neighbours(&mut h, fault, entry, &body.slots, slot);
        if body.ahead.is_due(slot) {
            self.swap_ahead(&mut h, fault, entry, &mut body);
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
