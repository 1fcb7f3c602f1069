//! Cases 1A and 1B: the amap has an anon at the address.

use machine::{order, Held, Machine, PageNo, Prot, Reserve, Shootdown};

use super::{Fault, FaultError};
use crate::amap::ARef;
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
        let Some(no) = body.slots.get(slot) else {
            return self.fault_below(&mut h, fault, entry, Some((&mut body.slots, slot)));
        };
        let copies = {
            let (anon, mut h) = self.anons.get(no).lock(&mut h);
            let Some(page) = anon.page else { return Err(FaultError::Io.into()) };
            busy_check(self.machine(), page).map_err(Stop::Wait)?;
            if fault.access == Prot::WRITE && anon.refs > 1 {
                Some(page)
            } else {
                self.stat().add(self.machine().cpu(), Counter::FaultsAnon, 1);
                let writable = anon.refs == 1 && entry.writes != Writes::NeedCopy;
                let prot = if writable { entry.prot } else { entry.prot.without_write() };
                self.enter(&mut h, fault, entry, page, prot)?;
                None
            }
        };
        match copies {
            None => self.map_anon_neighbours(&mut h, fault, entry, &body.slots, slot),
            Some(page) => {
                let copy = self.copy_for_write(&mut h, fault, entry, no, page)?;
                body.slots.set(slot, copy.0);
                self.enter(&mut h, fault, entry, copy.1, entry.prot)?;
            }
        }
        Ok(())
    }

    /// Case 1B: a new anon with the bytes of one that others refer to as well, whose reference is dropped. The amap's
    /// lock keeps the old anon's page: our slot refers to it until then.
    fn copy_for_write(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        old: AnonNo,
        page: PageNo,
    ) -> Result<(AnonNo, PageNo), FaultError> {
        let machine = self.machine();
        let new_page = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.copy(page, new_page);
        let new = self.anons.make(machine, held, new_page)?;
        self.forget(held, fault, entry);
        let mut down = Shootdown::new();
        self.anons.release(machine, held, old, &mut down);
        down.perform(machine, held);
        self.stat().add(machine.cpu(), Counter::FaultsAnonCopied, 1);
        Ok((new, new_page))
    }
}
