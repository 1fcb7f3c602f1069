//! The kernel heap.
//!
//! ```text
//!   HEAP ........ claimed ........ mapped
//!   | talc's      | stock:         | grows by frames
//!   | blocks      | promised to    |
//!   | and pages   | `reserve`      |
//!   | of the classes
//! ```
//! Sizes up to 2 KiB come from size classes: each CPU has lists of free blocks, filled a run of pages at a time; a dozen
//! instructions each way. A run's worth of blocks that a CPU has too many goes to a depot, where all CPUs fill up first.
//! Everything else comes from `talc` behind a lock.
//!
//! [`reserve`] is how the kernel gets by with containers that can't fail: it maps as much as the operation announces before the
//! operation changes anything. I1: the stock, `mapped - claimed`, was at least the sum of all CPUs' promises when any of them
//! was made, and each CPU has taken no more of it since its own. The kernel isn't preempted and an attempt never sleeps, so
//! nobody else comes between on this CPU. A promise stands until the CPU makes another, so a CPU that asks for what it was
//! promised before only looks whether the stock still has it all: that takes no lock, and writes nothing.
//!
//! What announces nothing (a descriptor, a name, a queue's growth) lives on a cushion that every `reserve` fills up again: so when
//! memory runs out, faults and forks are refused first, while there still is enough to end a process in order.
//! [`is_low`] says that it is being used, and the next system call makes room first.
//!
//! The road not taken is talc alone: 110 instructions for a small allocation and its release, where the classes take 25.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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
    /// In the depot, of a chain's first block: the first block of the next chain.
    below: *mut Block,
}

/// One CPU's free blocks of a class.
struct Lists {
    head: *mut Block,
    len: usize,
    /// Exactly a run's blocks, or none.
    spare: *mut Block,
}

/// One CPU's lists.
#[repr(align(512))]
struct Row([Lists; SIZES.len()]);

struct Front(UnsafeCell<[Row; cpu::MAX_CPUS]>);
// SAFETY: each CPU touches only its own row, and the kernel runs with interrupts off.
unsafe impl Sync for Front {}

static FRONT: Front = Front(UnsafeCell::new(
    [const { Row([const { Lists { head: ptr::null_mut(), len: 0, spare: ptr::null_mut() } }; SIZES.len()]) };
        cpu::MAX_CPUS],
));

/// Chains of a run's blocks that some CPU had too many, linked through their first blocks.
struct Depot(*mut Block);
// SAFETY: what the pointers lead to is free memory that belongs to whoever has the chain.
unsafe impl Send for Depot {}

static DEPOT: [SpinLock<Depot>; SIZES.len()] = [const { SpinLock::new(Depot(ptr::null_mut())) }; SIZES.len()];

/// What a CPU has been promised last.
#[repr(align(64))]
struct Promise(AtomicU64);

static PROMISES: [Promise; cpu::MAX_CPUS] = [const { Promise(AtomicU64::new(0)) }; cpu::MAX_CPUS];
/// The sum of them and the cushion, and the stock that covers it; both change with `BACK` locked.
static OWED: AtomicU64 = AtomicU64::new(0);
static STOCK: AtomicU64 = AtomicU64::new(0);
/// By how much a promise may exceed what is asked for and stand.
const SLACK: u64 = 64 * 1024;

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
    let mut back = BACK.lock();
    let cushion = (memory / CUSHION_FRACTION).clamp(CUSHION_MIN, CUSHION_MAX) as u64;
    OWED.store(OWED.load(Relaxed) - back.cushion + cushion, Relaxed);
    back.cushion = cushion;
    drop(back);
    reserve(0)
}

/// Promises that allocations of up to `bytes` in all, none over 16 KiB, won't fail before this CPU's next call.
///
/// # Errors
/// [`NoMemory`]; nothing has changed but that some memory may be mapped ahead.
#[inline]
pub fn reserve(bytes: usize) -> Result<(), NoMemory> {
    // Twice for what the classes round up; a new run for each class, and talc's largest hole.
    let want = bytes as u64 * 2 + RUNS + STEP;
    let own = PROMISES[cpu::index()].0.load(Relaxed);
    // Neither less than is wanted, which wraps, nor far more.
    let stands = own.wrapping_sub(want) <= SLACK;
    if stands && STOCK.load(Relaxed) >= OWED.load(Relaxed) {
        return Ok(());
    }
    promise(want)
}

#[cold]
fn promise(want: u64) -> Result<(), NoMemory> {
    let own = &PROMISES[cpu::index()].0;
    let mut back = BACK.lock();
    let owed = OWED.load(Relaxed) - own.load(Relaxed) + want;
    back.map_to(owed, Reserve::Kernel)?;
    own.store(want, Relaxed);
    OWED.store(owed, Relaxed);
    Ok(())
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
            STOCK.store(self.mapped - self.claimed, Relaxed);
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
        STOCK.store(self.mapped - self.claimed, Relaxed);
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

/// Blocks in a class's run.
static BLOCKS: [usize; SIZES.len()] = {
    let mut blocks = [0; SIZES.len()];
    let mut class = 0;
    while class < SIZES.len() {
        blocks[class] = run_of(SIZES[class]) / SIZES[class];
        class += 1;
    }
    blocks
};

/// A run for each class.
const RUNS: u64 = {
    let (mut sum, mut class) = (0, 0);
    while class < SIZES.len() {
        sum += run_of(SIZES[class]) + PAGE_SIZE;
        class += 1;
    }
    sum as u64
};

/// A class's block for a CPU that has none on its list: from its spare chain, the depot, or a new run.
#[cold]
fn refill(class: usize, lists: &mut Lists) -> *mut u8 {
    let blocks = BLOCKS[class];
    let mut chain = core::mem::replace(&mut lists.spare, ptr::null_mut());
    if chain.is_null() {
        let mut depot = DEPOT[class].lock();
        chain = depot.0;
        if !chain.is_null() {
            // SAFETY: a chain's first block is free memory of ours, which holds a `Block`.
            depot.0 = unsafe { (*chain).below };
        }
    }
    if chain.is_null() {
        chain = new_run(class);
    }
    if !chain.is_null() {
        // SAFETY: as above.
        lists.head = unsafe { (*chain).next };
        lists.len = blocks - 1;
    }
    chain.cast()
}

/// Cuts a new run into a chain of blocks; null if there is no memory.
fn new_run(class: usize) -> *mut Block {
    let size = SIZES[class];
    let layout = Layout::from_size_align(run_of(size), 64).expect("64 is a power of two");
    let run = BACK.lock().alloc(layout);
    if run.is_null() {
        return run.cast();
    }
    let mut next = ptr::null_mut();
    for n in (0..BLOCKS[class]).rev() {
        // SAFETY: block `n` lies in the run, which is ours, and a `Block` fits into the smallest class.
        next = unsafe {
            let block = run.add(n * size).cast::<Block>();
            block.write(Block { next, below: ptr::null_mut() });
            block
        };
    }
    next
}

/// A CPU has a whole run's blocks on its list: they become its spare chain, and the one before goes to the depot.
#[cold]
fn overflow(class: usize, lists: &mut Lists) {
    let full = core::mem::replace(&mut lists.head, ptr::null_mut());
    lists.len = 0;
    let chain = core::mem::replace(&mut lists.spare, full);
    if !chain.is_null() {
        let mut depot = DEPOT[class].lock();
        // SAFETY: a chain's first block is free memory of ours, which holds a `Block`.
        unsafe { (*chain).below = depot.0 };
        depot.0 = chain;
    }
}

// SAFETY: blocks are disjoint: talc's by its contract, the classes' by `new_run`, which cuts runs into blocks of the class's size at
// multiples of it, so that alignments up to 16, and up to 64 for sizes rounded to 64, are kept.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else { return BACK.lock().alloc(layout) };
        // SAFETY: this CPU's row; nothing else runs on it meanwhile, and `refill` doesn't come back here.
        let lists = unsafe { &mut (*FRONT.0.get())[cpu::index()].0[class] };
        let block = lists.head;
        if block.is_null() {
            return refill(class, lists);
        }
        // SAFETY: blocks on the list are free and hold a `Block`.
        lists.head = unsafe { (*block).next };
        lists.len -= 1;
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
            let lists = &mut (*FRONT.0.get())[cpu::index()].0[class];
            let block = at.cast::<Block>();
            (*block).next = lists.head;
            lists.head = block;
            lists.len += 1;
            if lists.len == BLOCKS[class] {
                overflow(class, lists);
            }
        }
    }
}
