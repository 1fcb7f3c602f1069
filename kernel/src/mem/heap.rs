//! The kernel heap.
//!
//! ```text
//!   HEAP ........ claimed ........ mapped
//!   | talc's      | stock:         | grows by frames
//!   | blocks      | promised to    |
//!   | and pages   | `reserve`      |
//!   | of the classes
//! ```
//! Sizes up to 2 KiB come from size classes: a list of free blocks for each, per CPU, filled a run of pages at a time and never emptied; a
//! dozen instructions each way. Everything else comes from `talc` behind a lock.
//!
//! [`reserve`] is how the kernel gets by with containers that can't fail: it maps as much as the operation announces before the
//! operation changes anything. I1: `mapped - claimed` is at least what the last `reserve` on this CPU asked for, less what has been
//! allocated since. The kernel isn't preempted and an attempt never sleeps, so nobody else comes between.
//!
//! What announces nothing (a descriptor, a name, a queue's growth) lives on a cushion that every `reserve` fills up again: so when
//! memory runs out, faults and forks are refused first, while there still is enough to end a process in order.
//! [`is_low`] says that it is being used, and the next system call makes room first.
//!
//! The road not taken is talc alone: 110 instructions for a small allocation and its release, where the classes take 25.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use machine::{NoMemory, Reserve, PAGE_SIZE};
use talc::base::binning::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use super::layout;
use crate::arch::{cpu, tables};
use crate::sync::SpinLock;

/// Block sizes of the classes: multiples of 16; those of at least 64 that serve alignments up to 64 are multiples of 64.
const SIZES: [usize; 14] = [16, 32, 48, 64, 96, 128, 192, 256, 320, 512, 768, 1024, 1344, 2048];
const LARGEST: usize = 2048;
/// Bytes claimed at once when talc has nothing that fits.
const STEP: u64 = 64 * 1024;
/// The cushion: this fraction of memory, within these bounds.
const CUSHION_FRACTION: usize = 256;
const CUSHION_MIN: usize = 256 * 1024;
const CUSHION_MAX: usize = 4 << 20;

/// Whether part of the cushion is in use.
static LOW: AtomicBool = AtomicBool::new(false);

/// Class by size in units of 16 bytes, rounded up.
static CLASS: [u8; LARGEST / 16 + 1] = {
    let mut table = [0; LARGEST / 16 + 1];
    let mut class = 0;
    let mut n = 0;
    while n < table.len() {
        if n * 16 > SIZES[class] {
            class += 1;
        }
        table[n] = class as u8;
        n += 1;
    }
    table
};

struct Block {
    next: *mut Block,
}

struct Front(UnsafeCell<[[*mut Block; SIZES.len()]; cpu::MAX_CPUS]>);
// SAFETY: each CPU touches only its own row, and the kernel runs with interrupts off.
unsafe impl Sync for Front {}

static FRONT: Front = Front(UnsafeCell::new([[ptr::null_mut(); SIZES.len()]; cpu::MAX_CPUS]));

struct Back {
    talc: Talc<Manual, DefaultBinning>,
    end: Option<NonNull<u8>>,
    claimed: u64,
    mapped: u64,
    /// What `reserve` keeps beyond what it is asked for.
    cushion: u64,
    /// Bytes in use by talc's count of blocks handed out.
    used: usize,
}

// SAFETY: the pointers lead into the heap area, which is the same for all CPUs.
unsafe impl Send for Back {}

static BACK: SpinLock<Back> = SpinLock::new(Back {
    talc: Talc::new(Manual),
    end: None,
    claimed: layout::HEAP,
    mapped: layout::HEAP,
    cushion: 0,
    used: 0,
});

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Maps the first `bytes`.
///
/// # Errors
/// [`NoMemory`].
pub fn init(bytes: usize) -> Result<(), NoMemory> {
    BACK.lock().map_to(bytes as u64, Reserve::Kernel)
}

/// Lays the cushion for a machine with so much memory, once page frames are handed over.
///
/// # Errors
/// [`NoMemory`].
pub fn lay_cushion(memory: usize) -> Result<(), NoMemory> {
    BACK.lock().cushion = (memory / CUSHION_FRACTION).clamp(CUSHION_MIN, CUSHION_MAX) as u64;
    reserve(0)
}

/// Promises that allocations of up to `bytes` in all, none over 16 KiB, won't fail before this CPU's next call.
///
/// # Errors
/// [`NoMemory`]; nothing has changed but that some memory may be mapped ahead.
#[inline]
pub fn reserve(bytes: usize) -> Result<(), NoMemory> {
    // Twice for what the classes round up; a new run for each class, and talc's largest hole.
    let mut back = BACK.lock();
    let want = bytes as u64 * 2 + RUNS + STEP + back.cushion;
    back.map_to(want, Reserve::Kernel)
}

/// Bytes of memory that the heap has.
pub fn bytes() -> u64 {
    BACK.lock().mapped - layout::HEAP
}

/// Whether the cushion is being used: whoever can should make room.
#[inline]
pub fn is_low() -> bool {
    LOW.load(Relaxed)
}

/// Fills the cushion up again.
///
/// # Errors
/// [`NoMemory`] if there are still no frames.
pub fn restock() -> Result<(), NoMemory> {
    let mut back = BACK.lock();
    let cushion = back.cushion;
    back.map_to(cushion, Reserve::Kernel)?;
    LOW.store(false, Relaxed);
    Ok(())
}

impl Back {
    /// Makes the stock at least `bytes`.
    #[inline]
    fn map_to(&mut self, bytes: u64, reserve: Reserve) -> Result<(), NoMemory> {
        if self.mapped - self.claimed >= bytes {
            return Ok(());
        }
        self.grow_to(bytes, reserve)
    }

    #[cold]
    fn grow_to(&mut self, bytes: u64, reserve: Reserve) -> Result<(), NoMemory> {
        while self.mapped - self.claimed < bytes {
            tables::map_if_absent(self.mapped, reserve)?;
            self.mapped += PAGE_SIZE as u64;
        }
        Ok(())
    }

    fn alloc(&mut self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the size is not zero: `GlobalAlloc` promises that, and classes ask for pages.
            if let Some(block) = unsafe { self.talc.try_allocate(layout) } {
                self.used += layout.size();
                return block.as_ptr();
            }
            let need = (layout.size() + layout.align()) as u64;
            if self.claim(need.next_multiple_of(PAGE_SIZE as u64) + PAGE_SIZE as u64).is_err() {
                return ptr::null_mut();
            }
        }
    }

    /// Gives talc `bytes` more, or `STEP` if that is more and there.
    fn claim(&mut self, bytes: u64) -> Result<(), NoMemory> {
        // Who allocates without notice can't be refused: it may take the last frame.
        if self.map_to(bytes.max(STEP) + self.cushion, Reserve::Kernel).is_err() {
            LOW.store(true, Relaxed);
            self.map_to(bytes, Reserve::Pageout)?;
        }
        let bytes = bytes.max(STEP).min(self.mapped - self.claimed);
        let end = (self.claimed + bytes) as *mut u8;
        // SAFETY: the memory from `claimed` to `mapped` is mapped, follows what talc has, and is used by nobody.
        self.end = unsafe {
            match self.end {
                None => self.talc.claim(self.claimed as *mut u8, bytes as usize),
                Some(old) => Some(self.talc.extend(old, end)),
            }
        };
        self.claimed += bytes;
        Ok(())
    }
}

/// The class that serves a layout, if any.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let size = if layout.align() <= 16 {
        layout.size()
    } else if layout.align() <= 64 {
        layout.size().next_multiple_of(64)
    } else {
        return None;
    };
    if size > LARGEST {
        return None;
    }
    Some(usize::from(CLASS[size.div_ceil(16)]))
}

/// Bytes that a class is filled by: pages, as few as leave no more than an eighth over, less what talc puts before each
/// block that it gives, so that one run follows close on another. Whole pages would each leave a hole of one.
const fn run_of(size: usize) -> usize {
    let mut bytes = PAGE_SIZE - 64;
    while bytes % size > bytes / 8 {
        bytes += PAGE_SIZE;
    }
    bytes
}

/// A run for each class.
const RUNS: u64 = {
    let (mut sum, mut class) = (0, 0);
    while class < SIZES.len() {
        sum += run_of(SIZES[class]) + PAGE_SIZE;
        class += 1;
    }
    sum as u64
};

/// Cuts a new run into blocks of a class and takes the first.
#[cold]
fn refill(class: usize, list: &mut *mut Block) -> *mut u8 {
    let size = SIZES[class];
    let bytes = run_of(size);
    let run = BACK.lock().alloc(Layout::from_size_align(bytes, 64).expect("64 is a power of two"));
    if run.is_null() {
        return run;
    }
    for n in (1..bytes / size).rev() {
        // SAFETY: block `n` lies in the run, which is ours, and a `Block` fits into the smallest class.
        unsafe {
            let block = run.add(n * size).cast::<Block>();
            block.write(Block { next: *list });
            *list = block;
        }
    }
    run
}

// SAFETY: blocks are disjoint: talc's by its contract, the classes' by `refill`, which cuts runs into blocks of the class's size at
// multiples of it, so that alignments up to 16, and up to 64 for sizes rounded to 64, are kept.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else { return BACK.lock().alloc(layout) };
        // SAFETY: this CPU's row; nothing else runs on it meanwhile, and `refill` doesn't come back here.
        let list = unsafe { &mut (*FRONT.0.get())[cpu::index()][class] };
        let block = *list;
        if block.is_null() {
            return refill(class, list);
        }
        // SAFETY: blocks on the list are free and hold a `Block`.
        *list = unsafe { (*block).next };
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let mut back = BACK.lock();
            back.used -= layout.size();
            // SAFETY: the caller got it from `alloc` with this layout, so talc did.
            return unsafe { back.talc.deallocate(at, layout) };
        };
        // SAFETY: as in `alloc`; the block is the caller's to give and large enough.
        unsafe {
            let list = &mut (*FRONT.0.get())[cpu::index()][class];
            let block = at.cast::<Block>();
            block.write(Block { next: *list });
            *list = block;
        }
    }
}
