//! The kernel's heap, and how it promises memory.
//!
//! Buckets of powers of two, as in 4.3BSD: a bucket that is empty takes a chunk of 16 KiB and cuts
//! it up; a chunk stays with its bucket. That makes a promise plain: whatever the pieces of `bytes`
//! in all, they take no more than [`chunks_for`] chunks. So [`reserve`] only counts.
//!
//! A promise is a hart's: the kernel isn't preempted, and an attempt of the library doesn't sleep
//! between its reservation and its end, so no other thread comes between. I1: the free chunks
//! suffice for the promises of all harts. What nobody promised (threads, this port's own boxes, the
//! release of memory after a refusal) lives on a store that reservations leave alone.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use machine::{NoMemory, UNRESERVED_BYTES};
use spin::Mutex;

use crate::HARTS;

const SHIFT: u32 = 14;
const CHUNK: usize = 1 << SHIFT;
const CHUNKS: usize = 512;
/// Blocks of 16 bytes to 16 KiB.
const BUCKETS: usize = 11;
const STORE: usize = HARTS * chunks_for(UNRESERVED_BYTES);

#[repr(align(16384))]
struct Memory(#[expect(dead_code, reason = "its address is used")] [u8; CHUNKS * CHUNK]);
static mut MEMORY: Memory = Memory([0; CHUNKS * CHUNK]);

struct Heap {
    /// Free blocks, each of which begins with the next one's address; the last are whole chunks.
    free: [usize; BUCKETS],
    /// Chunks that were never taken begin here.
    untouched: usize,
    /// Free chunks, untouched ones too.
    chunks: usize,
    /// Bytes that each hart may still allocate of its last reservation.
    promised: [usize; HARTS],
}

// Whole chunks are kept apart from blocks of 16 KiB, which are chunks too: one list.
static HEAP: Mutex<Heap> =
    Mutex::new(Heap { free: [0; BUCKETS], untouched: 0, chunks: CHUNKS, promised: [0; HARTS] });

/// The most chunks that blocks of so many bytes in all take: none is larger than sixteen times what
/// was asked for, and each bucket may have begun a chunk.
const fn chunks_for(bytes: usize) -> usize {
    if bytes == 0 {
        0
    } else {
        (bytes * 16).div_ceil(CHUNK) + BUCKETS
    }
}

impl Heap {
    fn promised_to_others(&self) -> usize {
        let others = (0..HARTS).filter(|hart| *hart != crate::hart());
        others.map(|hart| chunks_for(self.promised[hart])).sum()
    }

    /// Takes the first block of a list.
    fn pop(&mut self, bucket: usize) -> Option<*mut u8> {
        let block = self.free[bucket] as *mut usize;
        if block.is_null() {
            return None;
        }
        // SAFETY: what is on a list is free, aligned, and was given its next one's address.
        self.free[bucket] = unsafe { *block };
        Some(block.cast())
    }

    fn push(&mut self, bucket: usize, block: usize) {
        // SAFETY: the block is free and aligned to its size, which is a pointer's or more.
        unsafe { *(block as *mut usize) = self.free[bucket] };
        self.free[bucket] = block;
    }

    /// Some whole chunks in a row; one may have been used before.
    fn take(&mut self, count: usize) -> Option<*mut u8> {
        if count == 1 {
            if let Some(chunk) = self.pop(BUCKETS - 1) {
                self.chunks -= 1;
                return Some(chunk);
            }
        }
        if count > CHUNKS - self.untouched {
            return None;
        }
        let at = (&raw mut MEMORY).cast::<u8>().wrapping_add(self.untouched * CHUNK);
        self.untouched += count;
        self.chunks -= count;
        Some(at)
    }

    fn alloc(&mut self, size: usize, bytes: usize) -> Option<*mut u8> {
        let own = self.promised[crate::hart()];
        if own < bytes && self.chunks < self.promised_to_others() + size.div_ceil(CHUNK) {
            return None;
        }
        self.promised[crate::hart()] = own.saturating_sub(bytes);
        if size >= CHUNK {
            return self.take(size.div_ceil(CHUNK));
        }
        let bucket = bucket(size);
        if let Some(block) = self.pop(bucket) {
            return Some(block);
        }
        let chunk = self.take(1)? as usize;
        (size..CHUNK).step_by(size).for_each(|at| self.push(bucket, chunk + at));
        Some(chunk as *mut u8)
    }
}

fn bucket(size: usize) -> usize {
    size.trailing_zeros() as usize - 4
}

/// The power of two that holds what is asked for; whole chunks where it is more than one.
fn size(layout: Layout) -> usize {
    let size = layout.size().max(layout.align()).max(16);
    if size > CHUNK {
        size.next_multiple_of(CHUNK)
    } else {
        size.next_power_of_two()
    }
}

/// See `Machine::reserve_heap`.
pub fn reserve(bytes: usize) -> Result<(), NoMemory> {
    let mut heap = HEAP.lock();
    let is_there = heap.chunks >= chunks_for(bytes) + heap.promised_to_others() + STORE;
    heap.promised[crate::hart()] = if is_there { bytes } else { UNRESERVED_BYTES };
    is_there.then_some(()).ok_or(NoMemory)
}

struct Kernel;

#[global_allocator]
static ALLOCATOR: Kernel = Kernel;

// SAFETY: blocks on lists are free, and are handed out once; sizes are rounded the same way at both
// ends; chunks are aligned to their size, and so are the blocks in them.
unsafe impl GlobalAlloc for Kernel {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.lock().alloc(size(layout), layout.size()).unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (mut heap, size) = (HEAP.lock(), size(layout));
        if size < CHUNK {
            return heap.push(bucket(size), at as usize);
        }
        for chunk in 0..size / CHUNK {
            heap.push(BUCKETS - 1, at as usize + chunk * CHUNK);
            heap.chunks += 1;
        }
    }
}
