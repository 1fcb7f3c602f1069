//! A heap that promises memory, for [`Machine::reserve_heap`](crate::Machine::reserve_heap): any
//! allocator, and blocks of it that are kept back.
//!
//! A promise must hold however its bytes are cut up, which a sum of free bytes can't say: fragments
//! don't serve. So a CPU has a *pocket*, a block so large that it holds the promised bytes in
//! pieces of any size. An allocation that finds no memory elsewhere opens the pocket of its CPU,
//! and what is left becomes the pocket again.
//!
//! I1: what is left of a CPU's promise, and [`UNRESERVED_BYTES`] beyond it, fit into its pocket: a
//! CPU that gives memory up after a refusal lives on those. I2: between the opening of a pocket and
//! its closing nothing else allocates; the caller has a lock around each call.
//!
//! A promise is a CPU's, not a thread's: right for a kernel whose threads aren't preempted, as no
//! attempt of the library sleeps between its reservation and its end.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use crate::{NoMemory, UNRESERVED_BYTES};

#[derive(Clone, Copy)]
struct Block {
    at: *mut u8,
    bytes: usize,
}

const NONE: Block = Block { at: ptr::null_mut(), bytes: 0 };

/// See the module. `PIECE` is the most that the allocator takes for a piece of one byte, and no
/// piece takes more than `PIECE` times its size.
///
/// ```
/// use machine::promise::PromisedHeap;
/// use std::alloc::{Layout, System};
///
/// let mut heap = PromisedHeap::<System, 2, 32>::new(System);
/// heap.reserve(0, 1000)?;
/// let layout = Layout::new::<u64>();
/// let word = heap.alloc(0, layout);
/// // SAFETY: it was allocated with this layout, and is used no more.
/// unsafe { heap.dealloc(word, layout) };
/// # heap.reserve(0, 0)?;
/// # Ok::<(), machine::NoMemory>(())
/// ```
pub struct PromisedHeap<H, const CPUS: usize, const PIECE: usize> {
    heap: H,
    pockets: [Block; CPUS],
}

// SAFETY: the pointers lead to blocks that are this heap's own, and reached through it alone.
unsafe impl<H: Send, const CPUS: usize, const PIECE: usize> Send for PromisedHeap<H, CPUS, PIECE> {}

fn of_bytes(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 1).expect("an alignment of one is right for all sizes")
}

impl<H: GlobalAlloc, const CPUS: usize, const PIECE: usize> PromisedHeap<H, CPUS, PIECE> {
    /// A heap on an allocator, for so many CPUs; nothing is promised.
    ///
    /// ```
    /// # use machine::promise::PromisedHeap;
    /// # use std::alloc::System;
    /// static mut HEAP: PromisedHeap<System, 2, 32> = PromisedHeap::new(System);
    /// ```
    pub const fn new(heap: H) -> Self {
        PromisedHeap { heap, pockets: [NONE; CPUS] }
    }

    /// See [`Machine::reserve_heap`](crate::Machine::reserve_heap).
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// ```
    /// # use machine::promise::PromisedHeap;
    /// # use std::alloc::System;
    /// let mut heap = PromisedHeap::<System, 2, 32>::new(System);
    /// heap.reserve(1, 4096)?; // CPU 1 may allocate so much now.
    /// # heap.reserve(1, 0)?;
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn reserve(&mut self, cpu: usize, bytes: usize) -> Result<(), NoMemory> {
        let worst = |bytes: usize| bytes.saturating_add(UNRESERVED_BYTES).saturating_mul(PIECE);
        let left = self.empty(cpu);
        let is_promised = self.fill(cpu, worst(bytes));
        let _ = is_promised || self.fill(cpu, worst(0)) || self.fill(cpu, left);
        is_promised.then_some(()).ok_or(NoMemory)
    }

    /// Allocates for a CPU; null if there is no memory.
    ///
    /// ```
    /// # use machine::promise::PromisedHeap;
    /// # use std::alloc::{Layout, System};
    /// let mut heap = PromisedHeap::<System, 2, 32>::new(System);
    /// let word = heap.alloc(0, Layout::new::<u64>());
    /// assert!(!word.is_null());
    /// ```
    pub fn alloc(&mut self, cpu: usize, layout: Layout) -> *mut u8 {
        let block = self.take(layout);
        if !block.is_null() {
            return block;
        }
        let pocket = self.empty(cpu);
        let block = self.take(layout);
        self.fill(cpu, pocket.saturating_sub(layout.size().saturating_mul(PIECE)));
        block
    }

    /// Gives a block back, on any CPU.
    ///
    /// # Safety
    /// It is one of [`alloc`](Self::alloc), with this layout, and used no more.
    ///
    /// ```
    /// # use machine::promise::PromisedHeap;
    /// # use std::alloc::{Layout, System};
    /// let mut heap = PromisedHeap::<System, 2, 32>::new(System);
    /// let word = heap.alloc(0, Layout::new::<u64>());
    /// // SAFETY: it is of that layout, and used no more.
    /// unsafe { heap.dealloc(word, Layout::new::<u64>()) };
    /// ```
    pub unsafe fn dealloc(&mut self, at: *mut u8, layout: Layout) {
        // SAFETY: this function's contract.
        unsafe { self.heap.dealloc(at, layout) };
    }

    fn take(&mut self, layout: Layout) -> *mut u8 {
        if layout.size() == 0 {
            return ptr::null_mut();
        }
        // SAFETY: the layout isn't empty.
        unsafe { self.heap.alloc(layout) }
    }

    /// Gives back a CPU's pocket, and says how large it was.
    fn empty(&mut self, cpu: usize) -> usize {
        let pocket = core::mem::replace(&mut self.pockets[cpu], NONE);
        if pocket.bytes != 0 {
            // SAFETY: `fill` took it with this layout.
            unsafe { self.heap.dealloc(pocket.at, of_bytes(pocket.bytes)) };
        }
        pocket.bytes
    }

    /// Makes a CPU's pocket so large, if there is memory; says whether there is.
    fn fill(&mut self, cpu: usize, bytes: usize) -> bool {
        let at =
            if bytes > isize::MAX as usize { ptr::null_mut() } else { self.take(of_bytes(bytes)) };
        if !at.is_null() {
            self.pockets[cpu] = Block { at, bytes };
        }
        !at.is_null()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const PIECE: usize = 4;

    /// So many bytes, none of which has to lie beside another.
    struct Bytes(AtomicUsize);

    // SAFETY: it never gives memory out: addresses that are multiples of the alignment.
    unsafe impl GlobalAlloc for Bytes {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let take = |free: usize| free.checked_sub(layout.size());
            match self.0.fetch_update(Relaxed, Relaxed, take) {
                Ok(_) => ptr::without_provenance_mut(layout.align()),
                Err(_) => ptr::null_mut(),
            }
        }

        unsafe fn dealloc(&self, _: *mut u8, layout: Layout) {
            self.0.fetch_add(layout.size(), Relaxed);
        }
    }

    fn heap(bytes: usize) -> PromisedHeap<Bytes, 2, PIECE> {
        PromisedHeap::new(Bytes(AtomicUsize::new(bytes)))
    }

    #[test]
    fn a_promise_is_kept_though_another_cpu_takes_all_that_is_free() {
        let mut heap = heap(1 << 20);
        heap.reserve(0, 1000).expect("there is memory");
        while !heap.alloc(1, of_bytes(64)).is_null() {}
        for _ in 0..1000 {
            assert!(!heap.alloc(0, of_bytes(1)).is_null());
        }
    }

    #[test]
    fn a_refusal_leaves_what_giving_up_takes() {
        let mut heap = heap(UNRESERVED_BYTES * PIECE + 100);
        assert_eq!(heap.reserve(0, 1000), Err(NoMemory));
        for _ in 0..UNRESERVED_BYTES / 512 {
            assert!(!heap.alloc(0, of_bytes(512)).is_null());
        }
    }
}
