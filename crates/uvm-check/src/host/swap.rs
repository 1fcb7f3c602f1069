//! A swap device.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, PageNo};
use uvm::{SwapDevice, Transfer, Uvm};
use uvm_soft::SoftMachine;

use super::store::{Keeps, Line, Store, Way};
use crate::desk::Desk;

/// A swap device with some slots. What it holds stays there when it is switched off, as on a disk.
pub struct SwapDisk<M: Desk = SoftMachine> {
    slots: u32,
    store: Arc<Store<M>>,
}

impl<M: Desk> SwapDisk<M> {
    /// A device with `slots` slots.
    pub fn new(uvm: &Arc<Uvm<M>>, line: &Arc<Line>, slots: u32) -> Arc<SwapDisk<M>> {
        Arc::new(SwapDisk { slots, store: Store::new(Keeps::Swap, line, uvm) })
    }

    /// Makes a slot fail for good.
    pub fn spoil(&self, slot: u32) {
        self.store.spoil(u64::from(slot));
    }

    /// Notes that the device has been switched off.
    pub fn leave(&self) {
        self.store.leave();
    }

    /// Notes that the device is switched on anew: what it holds has no owner.
    pub fn renew(&self) {
        self.store.age();
    }
}

impl<M: Desk> SwapDevice<M> for SwapDisk<M> {
    fn slots(&self) -> u32 {
        self.slots
    }

    fn read(
        &self,
        machine: &M,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.store.transfer(machine, Way::Read, u64::from(slot), pages)
    }

    fn write(
        &self,
        machine: &M,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.store.transfer(machine, Way::Write, u64::from(slot), pages)
    }
}
