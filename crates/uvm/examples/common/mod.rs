//! What a host adds for paging: a device, here an array, and a page daemon.

use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::order::Nothing;
use machine::{Channel, Held, Machine, PageNo, ThreadCtx, PAGE_SIZE};
use uvm::{SwapDevice, Transfer, Uvm};

/// A disk that is an array: its transfers are over when they return. One that has only begun them
/// would answer `Started`, and its interrupt handler would call `Uvm::read_done` and
/// `Uvm::write_done`.
pub struct Disk(Mutex<Vec<[u8; PAGE_SIZE]>>);

impl Disk {
    pub fn new(slots: usize) -> Disk {
        Disk(Mutex::new(vec![[0; PAGE_SIZE]; slots]))
    }

    fn slots(&self) -> MutexGuard<'_, Vec<[u8; PAGE_SIZE]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Machine> SwapDevice<M> for Disk {
    fn slots(&self) -> u32 {
        self.slots().len() as u32
    }

    fn read(
        &self,
        machine: &M,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        for (page, bytes) in pages.iter().zip(&self.slots()[slot as usize..]) {
            machine.write(*page, 0, bytes);
        }
        Transfer::Done
    }

    fn write(
        &self,
        machine: &M,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        for (page, bytes) in pages.iter().zip(&mut self.slots()[slot as usize..]) {
            machine.read(*page, 0, bytes);
        }
        Transfer::Done
    }
}

/// The page daemon: sleeps until memory is short, then frees pages until enough are free or on
/// their way out. It ends when it is woken and `has_ended` says so.
pub fn daemon<M: Machine>(uvm: &Uvm<M>, has_ended: impl Fn() -> bool) {
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let (machine, frames) = (uvm.machine(), uvm.frames());
    loop {
        // Read before the look at what is free, so that a wake-up between the two isn't lost.
        let ticket = machine.ticket(Channel::PAGE_DAEMON);
        if has_ended() {
            return;
        }
        if frames.free() < frames.low_water() {
            while frames.free() + uvm.pages_in_flight() < frames.high_water() {
                let progress = uvm.pageout(h, frames.high_water());
                if progress.freed + progress.started == 0 {
                    break; // Who needs memory now is told that there is none.
                }
            }
        }
        machine.wait(h, ticket);
    }
}
