//! What a host adds for paging, beside a thread for the page daemon: a device, here an array.

use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::order::Nothing;
use machine::{Held, Machine, PageNo, PAGE_SIZE};
use uvm::{SwapDevice, Transfer};

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
