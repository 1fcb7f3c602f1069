//! This machine as the library sees it: `impl Machine`.
//!
//! All there is hangs on one static, the VM system, which owns the machine and the page frames: a
//! pmap has no other way to the frames from which it takes its tables.

use core::mem::forget;

use machine::order::{Held, Nothing, RawLock};
use machine::plain::PlainPmap;
use machine::{Channel, Machine, NoMemory, PageNo, ThreadCtx, Ticket, PAGE_SIZE};
use spin::{Mutex, Once};
use uvm::page::Frames;
use uvm::Uvm;

use crate::pmap::Sv39;
use crate::{hart, heap, thread};

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

/// A spin lock. Interrupts are off in this kernel, and the firmware's fences come through all the
/// same: so a hart that spins keeps no other waiting.
pub struct Spin(Mutex<()>);

// SAFETY: it is a lock of `spin`; a guard that is forgotten leaves it locked until `unlock`.
unsafe impl RawLock for Spin {
    fn new() -> Self {
        Spin(Mutex::new(()))
    }

    fn lock(&self) {
        forget(self.0.lock());
    }

    fn try_lock(&self) -> bool {
        self.0.try_lock().map(forget).is_some()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock (this function's contract).
        unsafe { self.0.force_unlock() };
    }
}

/// Bytes of a frame: memory is mapped where it lies.
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
    type Pmap = PlainPmap<Sv39, Spin>;

    fn pmap(&self) -> &PlainPmap<Sv39, Spin> {
        &self.0
    }

    fn cpu(&self) -> usize {
        hart()
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
        thread::ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        thread::sleep(ticket);
    }

    fn wake(&self, channel: Channel) {
        thread::wake(channel);
    }
}
