//! What a thread has used: heap bytes, locks.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use machine::RawLock;
use uvm_soft::{ChargedHeap, StdThreads, Threads};

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static LOCKS: Cell<u64> = const { Cell::new(0) };
}

/// An allocator that charges operations, and counts the bytes that each thread holds.
struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

fn count(bytes: isize) {
    // A thread that is ending has no counter any more; it is not asked for either.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: every call goes to another allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { ChargedHeap::<false>.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { ChargedHeap::<false>.dealloc(at, layout) }
    }
}

/// Bytes that this thread has allocated and not freed.
pub fn heap() -> isize {
    HELD.get()
}

/// Locks of the VM system that this thread has taken.
pub fn locks() -> u64 {
    LOCKS.get()
}

/// Threads of the host whose locks are counted.
pub struct Counted;

impl Threads for Counted {
    type Lock = CountedLock;
    type Sleepers = <StdThreads as Threads>::Sleepers;

    fn cpu() -> usize {
        StdThreads::cpu()
    }

    fn set_cpu(cpu: usize) {
        StdThreads::set_cpu(cpu);
    }
}

pub struct CountedLock(<StdThreads as Threads>::Lock);

// SAFETY: the lock inside does what the contract asks.
unsafe impl RawLock for CountedLock {
    fn new() -> Self {
        CountedLock(RawLock::new())
    }

    fn lock(&self) {
        LOCKS.set(LOCKS.get() + 1);
        self.0.lock();
    }

    fn try_lock(&self) -> bool {
        LOCKS.set(LOCKS.get() + 1);
        self.0.try_lock()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.0.unlock() }
    }
}
