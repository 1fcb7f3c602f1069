//! This machine as the library sees it: `impl Machine`. The state is in statics, as a pmap has no
//! other way to the frames from which it takes its tables; so a reference to the machine is free.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::*};

use machine::order::{Held, Nothing, RawLock};
use machine::{Channel, Machine, NoMemory, PageNo, ThreadCtx, Ticket, PAGE_SIZE};
use spin::Once;
use uvm::page::Frames;
use uvm::Uvm;

use crate::pmap::Sv39;
use crate::{heap, thread};

/// The machine.
pub struct Virt;

pub static FRAMES: Once<Arc<Frames<Virt>>> = Once::new();
pub static PMAP: Once<Sv39> = Once::new();
pub static UVM: Once<Uvm<Virt>> = Once::new();

/// The page frames, which are handed over in start-up.
pub fn frames() -> &'static Frames<Virt> {
    FRAMES.get().expect("memory is handed over first")
}

/// The VM system, which is made in start-up.
pub fn uvm() -> &'static Uvm<Virt> {
    UVM.get().expect("the VM system is made before programs")
}

/// Calls the library with the token that this thread holds none of its locks: the one place where
/// tokens are made, at a thread's entry.
pub fn enter<T>(call: impl FnOnce(&mut Held<'_, Nothing>) -> T) -> T {
    call(&mut ThreadCtx::new().held())
}

/// A spin lock. Interrupts are off in this kernel, and the firmware's fences come through all the
/// same: so whoever spins keeps nobody waiting.
pub struct Spin(AtomicBool);

// SAFETY: the exchange says yes to one until `unlock`; acquire and release order what it guards.
unsafe impl RawLock for Spin {
    fn new() -> Self {
        Spin(AtomicBool::new(false))
    }

    fn lock(&self) {
        while !self.try_lock() {
            core::hint::spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.load(Relaxed) && !self.0.swap(true, Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }

    fn cpu() -> usize {
        crate::hart()
    }
}

/// The bytes of a frame from `offset`, `len` of them: memory is mapped where it lies.
fn bytes(page: PageNo, offset: usize, len: usize) -> *mut u8 {
    assert!(len <= PAGE_SIZE && offset <= PAGE_SIZE - len, "bytes beyond a page's end");
    (frames().bytes_at(page).0 as usize + offset) as *mut u8
}

/// Copies bytes that programs may change meanwhile: by accesses that the compiler takes as they
/// are, and without a reference.
fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: callers name bytes of a frame that `bytes` has looked up, or a slice of their own.
    unsafe {
        if (from as usize | to as usize | len).is_multiple_of(8) {
            let (from, to) = (from.cast::<u64>(), to.cast::<u64>());
            (0..len / 8).for_each(|n| to.add(n).write_volatile(from.add(n).read_volatile()));
        } else {
            (0..len).for_each(|n| to.add(n).write_volatile(from.add(n).read_volatile()));
        }
    }
}

impl Machine for Virt {
    type Lock = Spin;
    type Pmap = Sv39;

    fn pmap(&self) -> &Sv39 {
        PMAP.get().expect("the pmap is made before the VM system")
    }

    fn cpu(&self) -> usize {
        crate::hart()
    }

    fn zero(&self, page: PageNo) {
        copy([0u64; PAGE_SIZE / 8].as_ptr().cast(), bytes(page, 0, PAGE_SIZE), PAGE_SIZE);
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        copy(bytes(from, 0, PAGE_SIZE), bytes(to, 0, PAGE_SIZE), PAGE_SIZE);
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        copy(bytes(page, offset, buf.len()), buf.as_mut_ptr(), buf.len());
    }

    fn write(&self, page: PageNo, offset: usize, from: &[u8]) {
        copy(from.as_ptr(), bytes(page, offset, from.len()), from.len());
    }

    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory> {
        heap::reserve(bytes)
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        Ticket { channel, sequence: thread::sequence(channel) }
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        thread::sleep(ticket);
    }

    fn wake(&self, channel: Channel) {
        thread::wake(channel);
    }
}
