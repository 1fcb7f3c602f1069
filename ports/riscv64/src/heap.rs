//! The kernel's heap: `talc`, which allocates, under `machine::promise`, which promises memory.

use core::alloc::{GlobalAlloc, Layout};

use machine::promise::PromisedHeap;
use machine::NoMemory;
use spin::Mutex;
use talc::source::Claim;
use talc::TalcLock;

use crate::{hart, HARTS};

const BYTES: usize = 16 << 20;
static mut MEMORY: [u8; BYTES] = [0; BYTES];

/// A piece of one byte takes 32: a word of `talc`'s, in blocks of so many bytes.
type Heap = PromisedHeap<TalcLock<Mutex<()>, Claim>, HARTS, 32>;
// SAFETY: the memory is this heap's alone.
static HEAP: Mutex<Heap> =
    Mutex::new(Heap::new(TalcLock::new(unsafe { Claim::array(&raw mut MEMORY) })));

/// See `Machine::reserve_heap`.
pub fn reserve(bytes: usize) -> Result<(), NoMemory> {
    HEAP.lock().reserve(hart(), bytes)
}

struct Kernel;

#[global_allocator]
static ALLOCATOR: Kernel = Kernel;

// SAFETY: `talc`'s blocks are as `GlobalAlloc` wants them.
unsafe impl GlobalAlloc for Kernel {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.lock().alloc(hart(), layout)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller got the block from `alloc`, with this layout.
        unsafe { HEAP.lock().dealloc(at, layout) };
    }
}
