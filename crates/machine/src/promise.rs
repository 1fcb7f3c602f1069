//! A heap that promises memory, for [`Machine::reserve_heap`](crate::Machine::reserve_heap): any
//! allocator, and blocks of it that are kept back. It is a global allocator itself.
//!
//! A promise must hold however its bytes are cut up, which a sum of free bytes can't say: fragments
//! don't serve. So a CPU has a *pocket*, a block so large that it holds the promised bytes in
//! pieces of any size. An allocation that finds no memory elsewhere opens the pocket of its CPU,
//! and what is left becomes the pocket again.
//!
//! I1: what is left of a CPU's promise, and [`UNRESERVED_BYTES`] beyond it, fit into its pocket: a
//! CPU that gives memory up after a refusal lives on those. I2: between the opening of a pocket and
//! its closing nothing else allocates: the heap's lock is held, which ranks below every other.
//!
//! A promise is a CPU's, not a thread's: right for a kernel whose threads aren't preempted, as no
//! attempt of the library sleeps between its reservation and its end.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

use crate::{NoMemory, RawLock, UNRESERVED_BYTES};

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
/// use machine::{bare::Spin, promise::PromisedHeap};
/// use std::alloc::System;
///
/// #[global_allocator]
/// static HEAP: PromisedHeap<System, Spin, 2, 32> = PromisedHeap::new(System, Spin::new(), || 0);
///
/// HEAP.reserve(1000)?;
/// let word = Box::new(7);
/// # HEAP.reserve(0)?;
/// # Ok::<(), machine::NoMemory>(())
/// ```
pub struct PromisedHeap<H, R, const CPUS: usize, const PIECE: usize> {
    lock: R,
    /// Below `CPUS`.
    cpu: fn() -> usize,
    /// The lock guards it.
    state: UnsafeCell<State<H, CPUS, PIECE>>,
}

struct State<H, const CPUS: usize, const PIECE: usize> {
    heap: H,
    pockets: [Block; CPUS],
}

// SAFETY: the state is reached with the lock held alone, and its pointers lead to blocks that are
// this heap's own.
unsafe impl<H: Send, R: Sync, const C: usize, const P: usize> Sync for PromisedHeap<H, R, C, P> {}

fn of_bytes(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 1).expect("an alignment of one is right for all sizes")
}

impl<H: GlobalAlloc, R: RawLock, const CPUS: usize, const PIECE: usize>
    PromisedHeap<H, R, CPUS, PIECE>
{
    /// A heap on an allocator; nothing is promised. `cpu` is the calling CPU's number, below
    /// `CPUS`.
    ///
    /// ```
    /// # use machine::{bare::Spin, promise::PromisedHeap};
    /// # use std::alloc::System;
    /// static HEAP: PromisedHeap<System, Spin, 1, 32> = PromisedHeap::new(System, Spin::new(), || 0);
    /// ```
    pub const fn new(heap: H, lock: R, cpu: fn() -> usize) -> Self {
        PromisedHeap { lock, cpu, state: UnsafeCell::new(State { heap, pockets: [NONE; CPUS] }) }
    }

    /// See [`Machine::reserve_heap`](crate::Machine::reserve_heap): a promise to the calling CPU.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// ```
    /// # use machine::{bare::Spin, promise::PromisedHeap};
    /// # use std::alloc::System;
    /// # static HEAP: PromisedHeap<System, Spin, 1, 32> = PromisedHeap::new(System, Spin::new(), || 0);
    /// HEAP.reserve(4096)?; // The calling CPU may allocate so much now.
    /// # HEAP.reserve(0)?;
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn reserve(&self, bytes: usize) -> Result<(), NoMemory> {
        let worst = |bytes: usize| bytes.saturating_add(UNRESERVED_BYTES).saturating_mul(PIECE);
        self.locked(|state, cpu| {
            let left = state.empty(cpu);
            let is_promised = state.fill(cpu, worst(bytes));
            let _ = is_promised || state.fill(cpu, worst(0)) || state.fill(cpu, left);
            is_promised.then_some(()).ok_or(NoMemory)
        })
    }

    fn locked<O>(&self, work: impl FnOnce(&mut State<H, CPUS, PIECE>, usize) -> O) -> O {
        self.lock.lock();
        // SAFETY: the lock is held, and `work` calls the allocator below alone.
        let done = work(unsafe { &mut *self.state.get() }, (self.cpu)());
        // SAFETY: it was taken above.
        unsafe { self.lock.unlock() };
        done
    }
}

// SAFETY: blocks are the allocator's below, as it gave them out.
unsafe impl<H: GlobalAlloc, R: RawLock, const CPUS: usize, const PIECE: usize> GlobalAlloc
    for PromisedHeap<H, R, CPUS, PIECE>
{
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.locked(|state, cpu| {
            let block = state.take(layout);
            if !block.is_null() {
                return block;
            }
            let pocket = state.empty(cpu);
            let block = state.take(layout);
            state.fill(cpu, pocket.saturating_sub(layout.size().saturating_mul(PIECE)));
            block
        })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller got the block from `alloc`, with this layout.
        self.locked(|state, _| unsafe { state.heap.dealloc(at, layout) });
    }
}

impl<H: GlobalAlloc, const CPUS: usize, const PIECE: usize> State<H, CPUS, PIECE> {
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
    extern crate std;

    use super::*;
    use crate::bare::Spin;
    use core::cell::Cell;
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

    type Heap = PromisedHeap<Bytes, Spin, 2, PIECE>;

    std::thread_local! {
        static CPU: Cell<usize> = const { Cell::new(0) };
    }

    fn heap(bytes: usize) -> Heap {
        CPU.set(0);
        PromisedHeap::new(Bytes(AtomicUsize::new(bytes)), Spin::new(), || CPU.get())
    }

    fn has(heap: &Heap, bytes: usize) -> bool {
        // SAFETY: the layout isn't empty.
        !unsafe { heap.alloc(of_bytes(bytes)) }.is_null()
    }

    #[test]
    fn a_promise_is_kept_though_another_cpu_takes_all_that_is_free() {
        let heap = heap(1 << 20);
        heap.reserve(1000).expect("there is memory");
        CPU.set(1);
        while has(&heap, 64) {}
        CPU.set(0);
        assert!((0..1000).all(|_| has(&heap, 1)));
    }

    #[test]
    fn a_refusal_leaves_what_giving_up_takes() {
        let heap = heap(UNRESERVED_BYTES * PIECE + 100);
        assert_eq!(heap.reserve(1000), Err(NoMemory));
        assert!((0..UNRESERVED_BYTES / 512).all(|_| has(&heap, 512)));
    }
}
