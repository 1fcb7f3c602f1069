//! The kernel heap.
//!
//! ```text
//!   HEAP ........ claimed ........ mapped
//!   | talc's      | stock:         | grows by frames
//!   | blocks      | promised to    |
//!   | and pages   | `reserve`      |
//!   | of the classes
//! ```
//! Sizes up to 2 KiB come from size classes: each CPU has lists of free blocks, filled a run of
//! pages at a time; a dozen instructions each way. A run's worth of blocks that a CPU has too many
//! goes to a depot, where all CPUs fill up first. There each block lies with the others of its run,
//! and a run that is whole goes back to `talc`. Everything else comes from `talc`, behind a lock.
//! A run serves one user (`pools`), and so do depots; where a CPU's lists change hands, what was on
//! them goes back. Only a block that a user frees for another may be either's.
//!
//! ```text
//!   run     | Run | block | block | ...        aligned to its span, so that a block finds its run
//!   depot   runs with blocks that no CPU has, of each user and class
//! ```
//! What `talc` has too much of goes back to all: the page daemon allocates free pages as blocks of
//! a balloon, and takes their frames out of the tables ([`give_back`]). A CPU that finds `talc`
//! empty has a piece of the balloon filled with frames first.
//!
//! [`reserve`] is how the kernel gets by with containers that can't fail: it maps as much as the
//! operation announces before the operation changes anything. I1: the stock, `mapped - claimed`,
//! was at least the sum of all CPUs' promises when any of them was made, and each CPU has taken no
//! more of it since its own. The kernel isn't preempted and an attempt never sleeps, so no other
//! thread comes between on this CPU. A promise stands until the CPU makes another, so a CPU that
//! asks for what it was promised before only looks whether the stock still has it all: that takes
//! no lock, and writes nothing.
//!
//! What announces nothing, in small pieces (a descriptor, a name), lives on a cushion that every
//! `reserve` fills up again: so when memory runs out, faults and forks are refused first, while
//! there still is enough to end a process in order. [`is_low`] says that it is being used, and the
//! next system call makes room first. A piece whose size a program chooses is asked for in
//! [`fault::attempt`], which may be refused and doesn't get the cushion.
//!
//! The road not taken is talc alone: 110 instructions for a small allocation and its release, where
//! the classes take 25.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::mem::frames::Reserve;
use arrayvec::ArrayVec;
use machine::{Channel, Machine, NoMemory, PAGE_SIZE};
use talc::base::binning::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use super::fault;
use super::pools::{self, Pool, POOLS};
use crate::arch::cpu::MachineStopped;
use crate::arch::layout;
use crate::arch::{cpu, io, ipi, preempt, tables};
use crate::lock::SpinLock;
use crate::mem::frames::KERNEL;

/// Block sizes of the classes: multiples of 16; those of at least 64 that serve alignments up to 64
/// are multiples of 64.
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
/// Whether talc has more free than it needs.
static FULL: AtomicBool = AtomicBool::new(false);

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

/// What a run begins with.
struct Run {
    /// Its blocks in the depot, and how many they are.
    free: *mut Block,
    count: u32,
    /// The pool that it serves.
    pool: Pool,
    /// Its neighbours in the depot's list; in it are the runs with blocks.
    next: *mut Run,
    previous: *mut Run,
}

/// One CPU's free blocks of a class.
struct Lists {
    head: *mut Block,
    len: usize,
    /// A run's worth of blocks, or none.
    spare: *mut Block,
    /// The pool that had them last.
    pool: Pool,
    /// Blocks that come from the depot the next time: few where users take turns.
    batch: u8,
}

impl Lists {
    /// Blocks on them.
    fn count(&self, class: usize) -> usize {
        self.len + if self.spare.is_null() { 0 } else { BLOCKS[class] }
    }
}

/// One CPU's lists.
#[repr(align(512))]
struct Row([Lists; SIZES.len()]);

struct Front(UnsafeCell<[Row; cpu::MAX_CPUS]>);
// SAFETY: each CPU touches only its own row, and the kernel runs with interrupts off.
unsafe impl Sync for Front {}

const EMPTY: Lists = Lists {
    head: ptr::null_mut(),
    len: 0,
    spare: ptr::null_mut(),
    pool: pools::ROOT,
    batch: LEAST_BATCH,
};

static FRONT: Front = Front(UnsafeCell::new([const { Row([EMPTY; SIZES.len()]) }; cpu::MAX_CPUS]));

/// Blocks that come from the depot when the user has changed.
const LEAST_BATCH: u8 = 4;

/// The blocks of a pool's class that no CPU has: runs in a list, and how many of them are whole.
struct Depot {
    first: *mut Run,
    whole: usize,
}
// SAFETY: what the pointers lead to is free memory that belongs to the CPU that has the depot.
unsafe impl Send for Depot {}

static DEPOTS: [[SpinLock<Depot>; SIZES.len()]; POOLS] =
    [const { [const { SpinLock::new(Depot { first: ptr::null_mut(), whole: 0 }) }; SIZES.len()] };
        POOLS];
/// Runs that each class has.
static RUNS_OF: [AtomicUsize; SIZES.len()] = [const { AtomicUsize::new(0) }; SIZES.len()];
/// Whole runs that a depot keeps: root's, and another's.
const KEPT_RUNS: [usize; 2] = [2, 1];

/// The depot of a pool's class.
fn depot(pool: Pool, class: usize) -> &'static SpinLock<Depot> {
    &DEPOTS[usize::from(pool)][class]
}

/// The run in which a block lies.
fn run_of(class: usize, block: *mut Block) -> *mut Run {
    ((block as usize) & !(SPANS[class] - 1)) as *mut Run
}

impl Depot {
    /// Puts a block to its run. Returns the run if all of its blocks are here and there are enough
    /// such: it has left the depot.
    ///
    /// # Safety
    /// The block is free, of this depot's pool and class, and the caller's.
    unsafe fn put(&mut self, class: usize, block: *mut Block) -> Option<*mut Run> {
        let run = run_of(class, block);
        // SAFETY: each block lies in a run of its class, which begins with a `Run`; those are
        // touched with the depot locked. Blocks are free memory of ours that holds a `Block`.
        unsafe {
            (*block).next = (*run).free;
            (*run).free = block;
            (*run).count += 1;
            if (*run).count == 1 {
                self.link(run);
            }
            if ((*run).count as usize) < BLOCKS[class] {
                return None;
            }
            self.whole += 1;
            if self.whole <= KEPT_RUNS[usize::from((*run).pool != pools::ROOT)] {
                return None;
            }
            self.whole -= 1;
            self.unlink(run);
        }
        Some(run)
    }

    /// Blocks that lie here.
    fn blocks(&self) -> usize {
        let (mut run, mut blocks) = (self.first, 0);
        while !run.is_null() {
            // SAFETY: as in `put`.
            unsafe { (blocks, run) = (blocks + (*run).count as usize, (*run).next) };
        }
        blocks
    }

    /// Takes up to `most` blocks out of the first run: their chain and number.
    fn take(&mut self, class: usize, most: usize) -> (*mut Block, usize) {
        let run = self.first;
        if run.is_null() {
            return (ptr::null_mut(), 0);
        }
        let (mut chain, mut taken) = (ptr::null_mut(), 0);
        // SAFETY: as in `put`.
        unsafe {
            self.whole -= usize::from((*run).count as usize == BLOCKS[class]);
            while taken < most && !(*run).free.is_null() {
                let block = (*run).free;
                (*run).free = (*block).next;
                (*block).next = chain;
                chain = block;
                taken += 1;
            }
            (*run).count -= taken as u32;
            if (*run).count == 0 {
                self.unlink(run);
            }
        }
        (chain, taken)
    }

    /// # Safety
    /// The run isn't in the list.
    unsafe fn link(&mut self, run: *mut Run) {
        // SAFETY: runs in the list are alive, and touched with the depot locked.
        unsafe {
            (*run).previous = ptr::null_mut();
            (*run).next = self.first;
            if !self.first.is_null() {
                (*self.first).previous = run;
            }
        }
        self.first = run;
    }

    /// # Safety
    /// The run is in the list.
    unsafe fn unlink(&mut self, run: *mut Run) {
        // SAFETY: as in `link`.
        unsafe {
            let (next, previous) = ((*run).next, (*run).previous);
            if previous.is_null() {
                self.first = next;
            } else {
                (*previous).next = next;
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
        }
    }
}

/// What a CPU has been promised last.
#[repr(align(64))]
struct Promise(AtomicU64);

static PROMISES: [Promise; cpu::MAX_CPUS] = [const { Promise(AtomicU64::new(0)) }; cpu::MAX_CPUS];
/// The sum of them and the cushion, and the stock that covers it; both change with `BACK` locked.
static OWED: AtomicU64 = AtomicU64::new(0);
static STOCK: AtomicU64 = AtomicU64::new(0);
/// By how much a promise may exceed what is asked for and stand.
const SLACK: u64 = 64 * 1024;

/// Whether the caller can do without the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The caller can: the cushion isn't for it.
    Taken,
    /// The caller can't: it may take the cushion, and the last frame.
    Fatal,
}

struct Back {
    talc: Talc<Manual, DefaultBinning>,
    end: Option<NonNull<u8>>,
    claimed: u64,
    mapped: u64,
    /// What `reserve` keeps beyond what it is asked for.
    cushion: u64,
    /// Bytes in use by talc's count of blocks handed out, the balloon's not among them.
    used: usize,
    balloon: ArrayVec<Piece, BALLOON>,
    /// The sum of the balloon's pages.
    ballooned: u64,
    /// Where the memory ends that start-up took, before page frames were handed over: it can't be
    /// given back.
    floor: u64,
    /// Bytes that talc got back since frames were given back last, and since pieces were melted.
    freed: u64,
    freed_unmelted: u64,
}

/// A block of talc's whose pages have no frames.
#[derive(Clone, Copy)]
struct Piece {
    /// Pages from the heap's start.
    first: u32,
    pages: u32,
}

/// Pieces of the balloon at most, and pages of one. Beside each piece less than a page is left
/// over, which is a part of what it gives back.
const BALLOON: usize = 16384;
const PIECE: u32 = 1024;
const LEAST_PIECE: u32 = 4;
/// Pages of a piece that is in the way of larger ones no more, and of those that are melted at a
/// time: others need frames meanwhile.
const LARGE_PIECE: u32 = 32;
const MELTED: u32 = 256;
/// Pieces that lie where they can't be given back, put by for a while.
const LOW_PIECES: usize = 256;
/// Bytes that talc may have free beyond a quarter of what is in use before they are given back, and
/// what it keeps of them.
const MUCH: u64 = 1 << 20;
const ENOUGH: u64 = 512 * 1024;
/// Bytes freed before it is worth another look: they may have been all that lay between others.
const SOME: u64 = 128 * 1024;

impl Piece {
    fn start(self) -> u64 {
        layout::HEAP + u64::from(self.first) * PAGE_SIZE as u64
    }

    fn layout(&self) -> Layout {
        let bytes = (self.pages as usize) * PAGE_SIZE;
        Layout::from_size_align(bytes, PAGE_SIZE).expect("a page's size is a power of two")
    }

    fn range(self) -> Range<u64> {
        self.start()..self.start() + u64::from(self.pages) * PAGE_SIZE as u64
    }

    fn addresses(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.pages)).map(move |page| self.start() + page * PAGE_SIZE as u64)
    }
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
    balloon: ArrayVec::new_const(),
    ballooned: 0,
    floor: u64::MAX,
    freed: 0,
    freed_unmelted: 0,
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
    back.floor = back.mapped;
    drop(back);
    reserve(0)
}

/// Promises that allocations of up to `bytes` in all, none over 16 KiB, won't fail before this
/// CPU's next call.
///
/// # Errors
/// [`NoMemory`]; nothing has changed but that some memory may be mapped ahead.
#[inline]
pub fn reserve(bytes: usize) -> Result<(), NoMemory> {
    fault::point()?;
    if cfg!(debug_assertions) {
        fault::announced(bytes);
    }
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
    let mapped = back.map_to(owed, Reserve::Kernel);
    if mapped.is_ok() {
        own.store(want, Relaxed);
        OWED.store(owed, Relaxed);
    }
    // What was mapped for a promise that isn't kept up, or was in vain, is others' again.
    if back.surplus() >= MUCH {
        FULL.store(true, Relaxed);
    }
    mapped
}

/// Bytes of memory that the heap has.
pub fn bytes() -> u64 {
    let back = BACK.lock();
    let mapped = back.mapped - layout::HEAP;
    mapped + pools::mark_frames(mapped) * PAGE_SIZE as u64 - back.ballooned * PAGE_SIZE as u64
}

/// Whether the page daemon has to see to the heap: see [`is_low`] and [`wake_daemon`].
#[inline]
pub fn wants_attention() -> bool {
    LOW.load(Relaxed) || FULL.load(Relaxed)
}

/// Whether the cushion is being used: a thread that can should make room.
pub fn is_low() -> bool {
    LOW.load(Relaxed)
}

/// For `/proc/vmstat`: bytes that talc has handed out and has free, and the balloon's pages and
/// pieces.
pub fn counters() -> [(&'static str, u64); 4] {
    let back = BACK.lock();
    [
        ("heap_used", back.used as u64),
        ("heap_free", back.free()),
        ("heap_balloon_pages", back.ballooned),
        ("heap_balloon_pieces", back.balloon.len() as u64),
    ]
}

/// What is allocated: blocks of each class, with their size, and bytes of all that no class has.
pub fn in_use(_: &MachineStopped) -> ([(usize, usize); SIZES.len()], usize) {
    let mut runs = 0;
    let classes = core::array::from_fn(|class| {
        let count = RUNS_OF[class].load(Relaxed);
        runs += count * run_layout(class).size();
        // SAFETY: no other CPU runs, and nothing here allocates.
        let rows = unsafe { &*FRONT.0.get() };
        let on_lists: usize = rows.iter().map(|row| row.0[class].count(class)).sum();
        let in_depots: usize = DEPOTS.iter().map(|classes| classes[class].lock().blocks()).sum();
        (SIZES[class], count * BLOCKS[class] - on_lists - in_depots)
    });
    (classes, BACK.lock().used - runs)
}

/// Gives this CPU's free blocks to the depot.
pub fn drain() {
    for class in 0..SIZES.len() {
        // SAFETY: this CPU's row, as in `alloc`; `empty` doesn't come back here.
        empty(class, unsafe { &mut (*FRONT.0.get())[cpu::index()].0[class] });
    }
}

/// Others have frames to give back: see [`wake_daemon`].
pub fn is_worth_a_look() {
    FULL.store(true, Relaxed);
}

/// Has the page daemon give back what there is too much of. A thread that frees memory may hold any
/// lock, so a system call does this.
pub fn wake_daemon() {
    if FULL.swap(false, Relaxed) {
        drain();
        KERNEL.wake(Channel::PAGE_DAEMON);
    }
}

/// Gives frames back that the heap has too many of. Returns whether there were any. It waits for
/// all CPUs, with nothing locked.
pub fn give_back() -> bool {
    /// Frames given back at a time.
    const BATCH: usize = 256;
    {
        let back = BACK.lock();
        if !back.has_more_than(MUCH) && back.surplus() < MUCH {
            return false;
        }
    }
    drain();
    BACK.lock().begin();
    let (mut low, mut gave, mut melted) = (ArrayVec::new(), false, 0);
    loop {
        let piece = {
            let mut back = BACK.lock();
            back.claim_surplus();
            match back.inflate(&mut low) {
                Some(piece) => piece,
                None if back.melt(&mut melted) => continue,
                None => {
                    // SAFETY: talc gave these with this layout, and they were not touched since.
                    low.iter().for_each(|piece| unsafe {
                        back.talc.deallocate(piece.start() as *mut u8, piece.layout())
                    });
                    return gave;
                }
            }
        };
        let mut pages = piece.addresses();
        loop {
            // SAFETY: this function alone has the piece.
            let unmap = |va| unsafe { tables::unmap(va) };
            let frames: ArrayVec<u64, BATCH> =
                pages.by_ref().take(BATCH).filter_map(unmap).collect();
            if frames.is_empty() {
                break;
            }
            ipi::forget_kernel();
            // SAFETY: they were the piece's, which is free, and all CPUs have forgotten it.
            frames.into_iter().for_each(|pa| unsafe { super::free_frame(pa) });
            io::interrupt_window();
        }
        BACK.lock().balloon.push(piece);
        gave = true;
    }
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
            pools::make_mark(self.mapped, reserve)?;
            tables::map_if_absent(self.mapped, reserve)?;
            self.mapped += PAGE_SIZE as u64;
            STOCK.store(self.mapped - self.claimed, Relaxed);
        }
        Ok(())
    }

    fn alloc(&mut self, layout: Layout, refusal: Refusal) -> *mut u8 {
        loop {
            // SAFETY: the size is not zero: `GlobalAlloc` promises that, and classes ask for pages.
            if let Some(block) = unsafe { self.talc.try_allocate(layout) } {
                self.used += layout.size();
                let start = block.as_ptr() as u64;
                // SAFETY: the block lies in memory that is mapped.
                unsafe { pools::mark(start..start + layout.size() as u64, cpu::heap_pool()) };
                return block.as_ptr();
            }
            let need = (layout.size() + layout.align()) as u64;
            let need = need.next_multiple_of(PAGE_SIZE as u64) + PAGE_SIZE as u64;
            if !self.deflate(need) && self.claim(need, refusal).is_err() {
                return ptr::null_mut();
            }
        }
    }

    /// Bytes that talc has free, with frames.
    fn free(&self) -> u64 {
        let has = self.claimed - layout::HEAP - self.ballooned * PAGE_SIZE as u64;
        has.saturating_sub(self.used as u64)
    }

    /// Whether talc has so much more free than it needs.
    fn has_more_than(&self, bytes: u64) -> bool {
        self.free() > self.used as u64 / 4 + bytes
    }

    /// Gives talc a block back.
    ///
    /// # Safety
    /// As for `GlobalAlloc::dealloc`; `alloc` here gave it.
    unsafe fn dealloc(&mut self, at: *mut u8, layout: Layout) {
        self.used -= layout.size();
        // SAFETY: by the caller's promise.
        unsafe { self.talc.deallocate(at, layout) };
        self.freed += layout.size() as u64;
        if self.has_more_than(MUCH) && self.freed > SOME {
            FULL.store(true, Relaxed);
        }
    }

    /// Takes free pages out of use, as many as can be had in a piece; they have their frames yet.
    /// Pieces below the floor come to `low`, out of the way.
    fn inflate(&mut self, low: &mut ArrayVec<Piece, LOW_PIECES>) -> Option<Piece> {
        if !self.has_more_than(ENOUGH) || self.balloon.is_full() {
            return None;
        }
        let mut pages = PIECE;
        while pages >= LEAST_PIECE && !low.is_full() {
            // SAFETY: the size is not zero.
            let Some(block) =
                (unsafe { self.talc.try_allocate(Piece { first: 0, pages }.layout()) })
            else {
                pages /= 2;
                continue;
            };
            let first = (block.as_ptr() as u64 - layout::HEAP) / PAGE_SIZE as u64;
            let piece = Piece { first: first as u32, pages };
            if piece.start() >= self.floor {
                self.ballooned += u64::from(pages);
                // SAFETY: the piece lies in memory that is mapped yet.
                unsafe { pools::mark(piece.range(), pools::ROOT) };
                return Some(piece);
            }
            low.push(piece);
        }
        None
    }

    /// Frames are given back: what is freed from now on counts for the next time.
    fn begin(&mut self) {
        self.freed_unmelted += core::mem::take(&mut self.freed);
    }

    /// Gives talc some small pieces behind page `from`, with frames again: they part what has
    /// become free beside them, and together there may be larger ones. False if there are none, no
    /// frames, or little was freed since the last time.
    fn melt(&mut self, from: &mut u32) -> bool {
        let small =
            self.balloon.iter().map(|piece| piece.pages).filter(|&pages| pages < LARGE_PIECE);
        let cost = u64::from(small.sum::<u32>()) * PAGE_SIZE as u64 / 8;
        if !self.has_more_than(MUCH) || *from == 0 && self.freed_unmelted <= cost {
            return false;
        }
        self.freed_unmelted = 0;
        self.balloon.sort_unstable_by_key(|piece| piece.first);
        let mut left = MELTED;
        for at in self.balloon.partition_point(|piece| piece.first <= *from)..self.balloon.len() {
            let piece = self.balloon[at];
            if piece.pages >= LARGE_PIECE {
                continue;
            }
            if left < piece.pages || self.back(piece.addresses()).is_err() {
                break;
            }
            left -= piece.pages;
            *from = piece.first;
            self.balloon[at].pages = 0;
            self.ballooned -= u64::from(piece.pages);
            // SAFETY: the block is talc's with this layout, and has its frames.
            unsafe { self.talc.deallocate(piece.start() as *mut u8, piece.layout()) };
        }
        self.balloon.retain(|piece| piece.pages > 0);
        left < MELTED
    }

    /// Maps pages of the heap that may have no frames.
    fn back(&self, mut pages: impl Iterator<Item = u64>) -> Result<(), NoMemory> {
        pages.try_for_each(|va| tables::map_if_absent(va, Reserve::Kernel))
    }

    /// What of the stock isn't promised.
    fn surplus(&self) -> u64 {
        (self.mapped - self.claimed).saturating_sub(OWED.load(Relaxed))
    }

    /// Gives talc what of the stock isn't promised.
    fn claim_surplus(&mut self) {
        let surplus = self.surplus();
        if surplus >= MUCH {
            self.extend(surplus);
        }
    }

    /// Gives talc `bytes`, or `STEP` if that is more and there, out of a piece of the balloon.
    /// False if there is none like it, or no frames.
    #[cold]
    fn deflate(&mut self, bytes: u64) -> bool {
        const SMALLEST: u64 = LEAST_PIECE as u64;
        // The end of what stays takes a little of it; beside a whole piece there may be a little
        // free already.
        let least = bytes / PAGE_SIZE as u64 + 1;
        let Some(at) = self.balloon.iter().rposition(|piece| u64::from(piece.pages) + 2 >= least)
        else {
            return false;
        };
        let piece = self.balloon[at];
        let wanted = bytes.max(STEP) / PAGE_SIZE as u64 + 1;
        let kept = match u64::from(piece.pages).saturating_sub(wanted) {
            0..SMALLEST => 0,
            kept => kept,
        };
        if self.back(piece.addresses().skip(kept as usize)).is_err() {
            return false;
        }
        let start = piece.start() as *mut u8;
        // SAFETY: the block is talc's with this layout; what becomes free has its frames, and so
        // has the end of what stays, which lies in it.
        unsafe {
            if kept == 0 {
                self.balloon.swap_remove(at);
                self.talc.deallocate(start, piece.layout());
            } else {
                self.balloon[at].pages = kept as u32;
                self.talc.shrink(start, piece.layout(), kept as usize * PAGE_SIZE);
            }
        }
        self.ballooned -= u64::from(piece.pages) - kept;
        true
    }

    /// Gives talc `bytes` more, or `STEP` if that is more and there. What may be refused leaves
    /// what is promised to all CPUs.
    fn claim(&mut self, bytes: u64, refusal: Refusal) -> Result<(), NoMemory> {
        let kept = match refusal {
            Refusal::Taken => OWED.load(Relaxed),
            _ => self.cushion,
        };
        if self.map_to(bytes.max(STEP) + kept, Reserve::Kernel).is_err() {
            if refusal == Refusal::Taken {
                return Err(NoMemory);
            }
            LOW.store(true, Relaxed);
            self.map_to(bytes, Reserve::Pageout)?;
        }
        self.extend(bytes.max(STEP).min(self.mapped - self.claimed));
        Ok(())
    }

    /// Gives talc `bytes` of the stock.
    fn extend(&mut self, bytes: u64) {
        let end = (self.claimed + bytes) as *mut u8;
        // SAFETY: the memory from `claimed` to `mapped` is mapped, follows what talc has, and is
        // in no use.
        self.end = unsafe {
            match self.end {
                None => self.talc.claim(self.claimed as *mut u8, bytes as usize),
                Some(old) => Some(self.talc.extend(old, end)),
            }
        };
        self.claimed += bytes;
        STOCK.store(self.mapped - self.claimed, Relaxed);
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

/// Bytes from one run of a class to the next, if they lie together: a power of two, the smallest of
/// which the blocks leave no more than an eighth.
const fn span_of(size: usize) -> usize {
    let mut span = PAGE_SIZE;
    while (span - RUN_EDGES) % size > span / 8 {
        span *= 2;
    }
    span
}

/// What of a span isn't blocks: the `Run` in front, and behind it talc's end of the block.
const RUN_EDGES: usize = 128;
const _: () = assert!(core::mem::size_of::<Run>() <= RUN_EDGES / 2);

static SPANS: [usize; SIZES.len()] = {
    let mut spans = [0; SIZES.len()];
    let mut class = 0;
    while class < SIZES.len() {
        spans[class] = span_of(SIZES[class]);
        class += 1;
    }
    spans
};

/// Blocks in a class's run.
static BLOCKS: [usize; SIZES.len()] = {
    let mut blocks = [0; SIZES.len()];
    let mut class = 0;
    while class < SIZES.len() {
        blocks[class] = (span_of(SIZES[class]) - RUN_EDGES) / SIZES[class];
        class += 1;
    }
    blocks
};

/// A run for each class, wherever it comes to lie.
const RUNS: u64 = {
    let (mut sum, mut class) = (0, 0);
    while class < SIZES.len() {
        sum += 2 * span_of(SIZES[class]);
        class += 1;
    }
    sum as u64
};

fn run_layout(class: usize) -> Layout {
    Layout::from_size_align(SPANS[class] - RUN_EDGES / 2, SPANS[class])
        .expect("a span is a power of two")
}

/// A block that no class has.
#[cold]
fn large(layout: Layout) -> *mut u8 {
    let is_attempt = fault::is_attempt();
    if layout.size() <= fault::SMALL {
        if cfg!(debug_assertions) && !is_attempt {
            fault::took(layout.size() as i64);
        }
    } else if !is_attempt {
        fault::unannounced(layout.size());
    }
    BACK.lock().alloc(layout, if is_attempt { Refusal::Taken } else { Refusal::Fatal })
}

/// A class's block for a CPU that has none on its list: from its spare chain, the depot, or a new
/// run.
#[cold]
fn refill(class: usize, lists: &mut Lists, pool: Pool) -> *mut u8 {
    change_hands(class, lists, pool);
    let mut chain = core::mem::replace(&mut lists.spare, ptr::null_mut());
    let mut len = BLOCKS[class];
    if chain.is_null() {
        (chain, len) = depot(pool, class).lock().take(class, usize::from(lists.batch));
        lists.batch = lists.batch.saturating_mul(2).min(BLOCKS[class] as u8);
    }
    if chain.is_null() {
        (chain, len) = new_run(class, pool);
    }
    if !chain.is_null() {
        // SAFETY: a chain's first block is free memory of ours, which holds a `Block`.
        lists.head = unsafe { (*chain).next };
        lists.len = len - 1;
    }
    chain.cast()
}

/// Cuts a new run into a chain of blocks; null if there is no memory.
fn new_run(class: usize, pool: Pool) -> (*mut Block, usize) {
    let (size, blocks) = (SIZES[class], BLOCKS[class]);
    let run = BACK.lock().alloc(run_layout(class), Refusal::Fatal);
    if run.is_null() {
        return (run.cast(), 0);
    }
    RUNS_OF[class].fetch_add(1, Relaxed);
    let mut next = ptr::null_mut();
    // SAFETY: the run is ours, and a `Run` fits into its edge; block `n` lies in it, and a `Block`
    // fits into the smallest class.
    unsafe {
        let head = Run {
            free: ptr::null_mut(),
            count: 0,
            pool,
            next: ptr::null_mut(),
            previous: ptr::null_mut(),
        };
        run.cast::<Run>().write(head);
        for n in (0..blocks).rev() {
            let block = run.add(RUN_EDGES / 2 + n * size).cast::<Block>();
            block.write(Block { next });
            next = block;
        }
    }
    (next, blocks)
}

/// Gives all blocks of a CPU's class to their depots.
fn empty(class: usize, lists: &mut Lists) {
    overflow(class, lists);
    overflow(class, lists);
}

/// The CPU's blocks of a class are a pool's user's from now on: what others left goes back first.
#[cold]
fn change_hands(class: usize, lists: &mut Lists, pool: Pool) {
    if lists.pool != pool {
        empty(class, lists);
        (lists.pool, lists.batch) = (pool, LEAST_BATCH);
    }
}

/// A CPU has a run's worth of blocks on its list: they become its spare chain, and the one before
/// goes to the depot.
#[cold]
fn overflow(class: usize, lists: &mut Lists) {
    let full = core::mem::replace(&mut lists.head, ptr::null_mut());
    lists.len = 0;
    let mut block = core::mem::replace(&mut lists.spare, full);
    let mut whole: *mut Run = ptr::null_mut();
    // SAFETY: a run's pool stays what it was made for, while there are blocks of it.
    let pool_of = |block| unsafe { (*run_of(class, block)).pool };
    while !block.is_null() {
        // Blocks of other pools, freed on another user's behalf, are among them.
        let pool = pool_of(block);
        let mut depot = depot(pool, class).lock();
        while !block.is_null() && pool_of(block) == pool {
            // SAFETY: blocks of a chain are free memory of ours, which holds a `Block`; a run that
            // has left the depot is ours alone.
            unsafe {
                let next = (*block).next;
                if let Some(run) = depot.put(class, block) {
                    (*run).next = whole;
                    whole = run;
                }
                block = next;
            }
        }
    }
    while !whole.is_null() {
        // SAFETY: as above; the run came from `new_run`.
        unsafe {
            let run = whole;
            whole = (*run).next;
            RUNS_OF[class].fetch_sub(1, Relaxed);
            BACK.lock().dealloc(run.cast(), run_layout(class));
        }
    }
}

// SAFETY: blocks are disjoint: talc's by its contract, the classes' by `new_run`, which cuts runs
// into blocks of the class's size at multiples of it behind the first 64 bytes, so that alignments
// up to 16, and up to 64 for sizes rounded to 64, are kept.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        preempt::closed(|| take(layout))
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        preempt::closed(|| unsafe { give(at, layout) });
    }
}

#[inline]
fn take(layout: Layout) -> *mut u8 {
    let Some(class) = class_of(layout) else { return large(layout) };
    if cfg!(debug_assertions) && !fault::is_attempt() {
        fault::took(SIZES[class] as i64);
    }
    // SAFETY: this CPU's row; nothing else runs on it meanwhile, and `refill` doesn't come back
    // here.
    let lists = unsafe { &mut (*FRONT.0.get())[cpu::index()].0[class] };
    let pool = cpu::heap_pool();
    let block = lists.head;
    if block.is_null() || lists.pool != pool {
        return refill(class, lists, pool);
    }
    // SAFETY: blocks on the list are free and hold a `Block`.
    lists.head = unsafe { (*block).next };
    lists.len -= 1;
    block.cast()
}

/// # Safety
/// As for `GlobalAlloc::dealloc`.
#[inline]
unsafe fn give(at: *mut u8, layout: Layout) {
    let class = class_of(layout);
    if cfg!(debug_assertions) && layout.size() <= fault::SMALL {
        fault::took(-(class.map_or(layout.size(), |class| SIZES[class]) as i64));
    }
    let Some(class) = class else {
        // SAFETY: the caller got it from `alloc` with this layout, so talc did.
        return unsafe { BACK.lock().dealloc(at, layout) };
    };
    // SAFETY: as in `alloc`; the block is the caller's to give and large enough.
    unsafe {
        let lists = &mut (*FRONT.0.get())[cpu::index()].0[class];
        let pool = cpu::heap_pool();
        if lists.pool != pool {
            change_hands(class, lists, pool);
        }
        let block = at.cast::<Block>();
        (*block).next = lists.head;
        lists.head = block;
        lists.len += 1;
        if lists.len == BLOCKS[class] {
            overflow(class, lists);
        }
    }
}
