//! This machine as the library sees it: `impl Machine`.
//!
//! All there is hangs on one static, the VM system, which owns the machine and the page frames: a
//! pmap has no other way to the frames from which it takes its tables.

use machine::bare::{FrameBytes, Spin};
use machine::order::{Held, Nothing};
use machine::plain::PlainPmap;
use machine::{Channel, Machine, NoMemory, PageNo, ThreadCtx, Ticket};
use spin::Once;
use uvm::page::Frames;
use uvm::Uvm;

use crate::heap::HEAP;
use crate::pmap::Sv39;
use crate::{hart, thread};

/// The machine.
pub struct Virt(pub PlainPmap<Sv39, Spin>);

pub static UVM: Once<Uvm<Virt>> = Once::new();

/// The VM system, which is made in start-up.
pub fn uvm() -> &'static Uvm<Virt> {
    UVM.get().expect("the VM system is made before programs")
}

/// The page frames.
pub fn frames() -> &'static Frames<Virt> {
    uvm().frames()
}

/// Calls the library with the token that this thread holds none of its locks: the one place where
/// tokens are made, at a thread's entry.
pub fn enter<T>(call: impl FnOnce(&mut Held<'_, Nothing>) -> T) -> T {
    call(&mut ThreadCtx::new().held())
}

/// The bytes of a frame: memory is mapped where it lies.
fn bytes(page: PageNo) -> FrameBytes {
    // SAFETY: `bytes_at` knows the page for a frame of this memory, in which no Rust object lies.
    unsafe { FrameBytes::new(frames().bytes_at(page).0 as *mut u8) }
}

impl Machine for Virt {
    /// Interrupts are off in this kernel, and the firmware's fences come through all the same: so a
    /// hart that spins keeps no other waiting.
    type Lock = Spin;
    type Pmap = PlainPmap<Sv39, Spin>;

    fn pmap(&self) -> &PlainPmap<Sv39, Spin> {
        &self.0
    }

    fn cpu(&self) -> usize {
        hart()
    }

    fn zero(&self, page: PageNo) {
        bytes(page).zero();
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        bytes(to).copy(bytes(from));
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        bytes(page).read(offset, buf);
    }

    fn write(&self, page: PageNo, offset: usize, from: &[u8]) {
        bytes(page).write(offset, from);
    }

    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory> {
        HEAP.reserve(bytes)
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        thread::ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        thread::sleep(ticket);
    }

    fn wake(&self, channel: Channel) {
        thread::wake(channel);
    }
}
