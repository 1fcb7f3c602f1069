//! Page frames: one record for each, free lists with a cache per CPU, active and inactive queues.
//!
//! ```text
//!   segments (physical ranges)      records, by PageNo
//!   [0x1000, 0x9f000)  ---------->  | owner index flags wire place next prev |  0
//!   [1M, 512M)         ---------->  | ...                                    |  158 ...
//!
//!   alloc <- PageCache of this CPU <-> FreeLists       place: Nowhere, Free, Cached, Pending, Active, Inactive
//!   activate -> Pending batch of this CPU -> Active <-> Inactive
//! ```
//!
//! A record's fields are atomics, so that reading one needs no lock and no unsafe code; which
//! thread may *write* a field is said here and kept by the callers:
//!
//! * `owner`, `index`, `flags`: a thread that holds the owner's lock (the anon's or the object's),
//!   or the allocating thread before the page is published;
//! * `wire`, the word of holds: a thread that makes or ends a wired mapping, a use for I/O or a
//!   loan, and the owner that lets a held page go, atomically: one of them finds itself the last,
//!   and frees the page;
//! * `next`, `prev`: the lock of the list that `place` names; on no list, `next` is the owner's;
//! * `place`: the lock of the list it names; to and from `Pending` by compare-and-exchange (see
//!   `queues`).
//!
//! I1: `place` is `Free` or `Cached` exactly for pages without an owner (`Owner::Free`). I2: a page
//! on the free list, in a cache, or in a `Gather` is on no queue. I3: `free()` counts the free list
//! and all caches. I4: `place` is `Own` from [`Frames::keep`] until [`Frames::release_own`]: such a
//! page is on no list, no mapping shows it, and its bytes are out of reach by its number.
//!
//! What the documentation leaves out (`doc(hidden)`) is for the library and its tests: a host that
//! calls it breaks an invariant.
//!
//! Source: UVM's `uvm_page.c` as the paper describes its role (1999, section 2); the per-CPU caches
//! and batches are ours, so that a fault takes no lock shared by all CPUs.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod buddy;
mod free;
mod gather;
mod own;
mod queues;
mod quota;
mod record;
mod state;

use alloc::vec::Vec;

use buddy::FreeLists;
pub use free::FULL;
#[doc(hidden)]
pub use free::{Magazine, HALF};
pub use gather::{Gather, Unmapped};
use machine::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use machine::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize};
use machine::order::{FreeList, Ordered, PageCache, PageQueues, RawLock};
use machine::shared::CachePadded;
use machine::{Machine, NoMemory, Pa, PageNo, PAGE_SHIFT};
use queues::{Balance, Pending, Queues};
pub use queues::{Class, Queue, SCAN};
pub use quota::Quota;
use record::pack;
pub use record::{Slot, Taken, TryLoan};
use state::PLACES;
pub use state::{Owner, PageFlags, Place, Reserve};

const NIL: u32 = u32::MAX;

struct Page {
    owner: AtomicU64,
    index: AtomicU64,
    wire: AtomicU32,
    next: AtomicU32,
    prev: AtomicU32,
    flags: AtomicU16,
    place: AtomicU8,
    /// Of a free block's first page: see `buddy`.
    order: AtomicU8,
}

/// A doubly linked list of pages through their records; the head lives inside the list's lock.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl List {
    const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };

    /// Links a page at the end.
    #[inline]
    fn push_back(&mut self, pages: &[Page], no: u32) {
        let page = &pages[no as usize];
        page.next.store(NIL, Relaxed);
        page.prev.store(self.tail, Relaxed);
        match pages.get(self.tail as usize) {
            Some(last) => last.next.store(no, Relaxed),
            None => self.head = no,
        }
        self.tail = no;
        self.len += 1;
    }

    /// Links a page at the front.
    #[inline]
    fn push_front(&mut self, pages: &[Page], no: u32) {
        let page = &pages[no as usize];
        page.next.store(self.head, Relaxed);
        page.prev.store(NIL, Relaxed);
        match pages.get(self.head as usize) {
            Some(first) => first.prev.store(no, Relaxed),
            None => self.tail = no,
        }
        self.head = no;
        self.len += 1;
    }

    #[inline]
    fn unlink(&mut self, pages: &[Page], no: u32) {
        let page = &pages[no as usize];
        let (prev, next) = (page.prev.load(Relaxed), page.next.load(Relaxed));
        match pages.get(prev as usize) {
            Some(prev) => prev.next.store(next, Relaxed),
            None => self.head = next,
        }
        match pages.get(next as usize) {
            Some(next) => next.prev.store(prev, Relaxed),
            None => self.tail = prev,
        }
        self.len -= 1;
    }
}

/// A run of physical memory.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// for segment in uvm.frames().segments() {
///     println!("{} frames from {:?} on", segment.pages, segment.start);
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Address of the first frame; page aligned.
    pub start: Pa,
    /// Frames in the run.
    pub pages: u32,
    /// Number of the first frame.
    pub first: PageNo,
}

/// What one CPU writes alone, mostly.
struct PerCpu<M: Machine> {
    cache: Ordered<PageCache, M::Lock, Magazine>,
    /// As many as `cache` has, to be read without its lock.
    cached: AtomicUsize,
    /// Pages gathered here by operations, less those that have been freed here since: see
    /// [`Frames::being_freed`].
    gathered: AtomicUsize,
    pending: Ordered<PageQueues, M::Lock, Pending>,
}

/// What all CPUs write, once in 32 pages.
struct Global<M: Machine> {
    free: Ordered<FreeList, M::Lock, FreeLists>,
    free_list_len: AtomicUsize,
    queues: Ordered<PageQueues, M::Lock, Queues>,
    balance: Balance,
}

/// All physical memory of a machine. Size: 32 bytes a page.
///
/// ```
/// # use uvm_soft::example::*;
/// let frames = Frames::<SoftMachine>::new(&[(Pa(0x10_0000), 512)], 2)?;
/// assert_eq!((frames.total(), frames.free(), frames.cpus()), (512, 512, 2));
/// # Ok::<(), NoMemory>(())
/// ```
pub struct Frames<M: Machine> {
    segments: Vec<Segment>,
    /// Frames of memory: their numbers end here, those of devices follow.
    total: usize,
    pages: Vec<Page>,
    per_cpu: Vec<CachePadded<PerCpu<M>>>,
    global: CachePadded<Global<M>>,
    /// Pages kept from `Reserve::User`, and of these from `Reserve::Kernel`.
    reserve_kernel: usize,
    reserve_pageout: usize,
    /// Free pages under which the page daemon is woken, and at which it rests.
    low_water: AtomicUsize,
    high_water: AtomicUsize,
    /// Allocations that were refused.
    refusals: AtomicUsize,
}

impl<M: Machine> PerCpu<M> {
    fn new() -> Self {
        PerCpu {
            cache: Ordered::new(Magazine::new()),
            cached: AtomicUsize::new(0),
            gathered: AtomicUsize::new(0),
            pending: Ordered::new(Pending::new()),
        }
    }
}

impl<M: Machine> Frames<M> {
    /// Takes over `segments`, each a page-aligned address and a count of pages, none overlapping;
    /// `cpus` bounds what [`Machine::cpu`] returns. All pages are free. Put the largest segment
    /// first: look-ups try it first.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold the records.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// let frames = Frames::<SoftMachine>::new(&[(Pa(0x10_0000), 512), (Pa(0x80_0000), 64)], 1)?;
    /// assert_eq!(frames.total(), 576);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn new(segments: &[(Pa, u32)], cpus: usize) -> Result<Self, NoMemory> {
        Self::with(segments, &[], &[], cpus)
    }

    /// As [`new`](Self::new), with segments of memory that are `loaded` with something at first,
    /// such as what a boot loader brought: their frames are the host's [own](Place::Own), and may
    /// be [released](Self::release_own) and freed one by one. And with runs of frames that belong
    /// to `devices`: they have numbers and records, so that they can be mapped, but are never free.
    /// The owner of both is [`Owner::Kernel`].
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold the records, or there are more than 2^31 of them.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// let framebuffer = (Pa(0xfd00_0000), 1024);
    /// let frames = Frames::<SoftMachine>::with(&[(Pa(0), 512)], &[], &[framebuffer], 1)?;
    /// let first = frames.page_at(framebuffer.0).expect("it has a number");
    /// assert!(frames.is_device(first) && frames.total() == 512);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn with(
        segments: &[(Pa, u32)],
        loaded: &[(Pa, u32)],
        devices: &[(Pa, u32)],
        cpus: usize,
    ) -> Result<Self, NoMemory> {
        let (mut table, mut numbers) = (Vec::new(), 0u32);
        for &(start, pages) in segments.iter().chain(loaded).chain(devices) {
            table.push(Segment { start, pages, first: PageNo(numbers) });
            // A number leaves a bit for tables that keep it beside others.
            numbers = numbers.checked_add(pages).filter(|&all| all <= 1 << 31).ok_or(NoMemory)?;
        }
        let first_of = |segment: usize| table.get(segment).map_or(numbers, |s| s.first.0);
        let (free, total) = (first_of(segments.len()), first_of(segments.len() + loaded.len()));
        let mut records = Vec::new();
        records.try_reserve_exact(numbers as usize).map_err(|_| NoMemory)?;
        records.extend((0..free).map(|_| Page::new(Owner::Free, Place::Free)));
        records.extend((free..total).map(|_| Page::new(Owner::Kernel, Place::Own)));
        records.extend((total..numbers).map(|_| Page::new(Owner::Kernel, Place::Nowhere)));
        let mut lists = FreeLists::new(cpus)?;
        table[..segments.len()].iter().for_each(|segment| lists.add_segment(&records, segment));
        let reserve_pageout = (total as usize / 512).clamp(2, 64);
        let slack = (total as usize / 64).clamp(4, 2048);
        Ok(Frames {
            segments: table,
            total: total as usize,
            pages: records,
            per_cpu: (0..cpus).map(|_| CachePadded(PerCpu::new())).collect(),
            global: CachePadded(Global {
                free: Ordered::new(lists),
                free_list_len: AtomicUsize::new(free as usize),
                queues: Ordered::new(Queues::new()),
                balance: Balance::default(),
            }),
            reserve_kernel: reserve_pageout * 2,
            reserve_pageout,
            low_water: AtomicUsize::new(reserve_pageout * 2 + slack),
            high_water: AtomicUsize::new(reserve_pageout * 2 + slack * 3),
            refusals: AtomicUsize::new(0),
        })
    }

    /// CPUs that have caches of their own: [`Machine::cpu`] stays below.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().cpus(), uvm.machine().cpus());
    /// # Ok(()) });
    /// ```
    pub fn cpus(&self) -> usize {
        self.per_cpu.len()
    }

    /// Page frames of memory.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().total(), uvm.frames().free());
    /// # Ok(()) });
    /// ```
    pub fn total(&self) -> usize {
        self.total
    }

    /// Page frames in all, those of devices too: what a column keyed by [`PageNo`] must hold.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut bits = vec![false; uvm.frames().numbers()]; // A column of a pmap's.
    /// # let _ = &mut bits;
    /// # Ok(()) });
    /// ```
    pub fn numbers(&self) -> usize {
        self.pages.len()
    }

    /// Whether a frame is a device's.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert!(!uvm.frames().is_device(page.page()));
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn is_device(&self, page: PageNo) -> bool {
        page.0 as usize >= self.total
    }

    /// Free page frames (I3); a moment's value where several CPUs run. Frames that move between the
    /// list and a cache meanwhile are rather counted twice than not at all: a thread that finds
    /// none gives up.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let before = uvm.frames().free();
    /// let page = uvm.new_page(held)?;
    /// assert_eq!(uvm.frames().free(), before - 1);
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn free(&self) -> usize {
        let before = self.global.free_list_len.load(Acquire);
        let cached = self.per_cpu.iter().map(|cpu| cpu.cached.load(Acquire)).sum::<usize>();
        before.max(self.global.free_list_len.load(Acquire)) + cached
    }

    /// Page frames that operations under way give back: free as soon as the CPUs have been flushed,
    /// for which no thread sleeps. A moment's value; a thread that reads it before
    /// [`free`](Self::free) counts no frame as neither.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().being_freed(), 0, "no operation is under way");
    /// # Ok(()) });
    /// ```
    pub fn being_freed(&self) -> usize {
        // An operation may begin on one CPU and end on another.
        let sum =
            |sum: usize, cpu: &CachePadded<PerCpu<M>>| sum.wrapping_add(cpu.gathered.load(Acquire));
        self.per_cpu.iter().fold(0, sum)
    }

    /// Counts frames as [being freed](Self::being_freed) that the caller is about to take from
    /// their owners, at most.
    #[doc(hidden)]
    #[inline]
    pub fn announce(&self, pages: usize) {
        self.per_cpu[M::Lock::cpu()].gathered.fetch_add(pages, Relaxed);
    }

    /// Free page frames that [`Reserve::User`] may take; a moment's value.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.frames().for_users() < uvm.frames().free(), "some are kept for the kernel");
    /// # Ok(()) });
    /// ```
    pub fn for_users(&self) -> usize {
        self.free().saturating_sub(self.reserve_kernel)
    }

    /// Whether the free list alone has more than [`low_water`](Self::low_water); a moment's value,
    /// by two words that change rarely.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.frames().is_plentiful());
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn is_plentiful(&self) -> bool {
        self.global.free_list_len.load(Relaxed) > self.low_water()
    }

    /// Free pages under which [`PAGE_DAEMON`](machine::Channel::PAGE_DAEMON) is woken. Above both
    /// reserves, so that the daemon runs before any thread is refused.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let frames = uvm.frames();
    /// if frames.free() < frames.low_water() {
    ///     uvm.pageout(held, frames.high_water());
    /// }
    /// # Ok(()) });
    /// ```
    pub fn low_water(&self) -> usize {
        self.low_water.load(Relaxed)
    }

    /// Free pages at which the page daemon may rest.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert!(uvm.frames().low_water() <= uvm.frames().high_water());
    /// # Ok(()) });
    /// ```
    pub fn high_water(&self) -> usize {
        self.high_water.load(Relaxed)
    }

    /// How many allocations of frames have been refused to all threads: one that was refused memory
    /// learns by it whether frames were what it lacked.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().refusals(), 0);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn refusals(&self) -> usize {
        self.refusals.load(Relaxed)
    }

    /// Sets both marks; `low` is raised to what the reserves need, `high` to `low`.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.frames().set_water_marks(64, 128);
    /// assert_eq!(uvm.frames().high_water(), 128);
    /// # Ok(()) });
    /// ```
    pub fn set_water_marks(&self, low: usize, high: usize) {
        let low = low.max(self.reserve_kernel + 1);
        self.low_water.store(low, Relaxed);
        self.high_water.store(high.max(low), Relaxed);
    }

    /// The physical memory handed in, then the devices'.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let frames: u32 = uvm.frames().segments().iter().map(|segment| segment.pages).sum();
    /// assert_eq!(frames as usize, uvm.frames().numbers());
    /// # Ok(()) });
    /// ```
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The address of a frame.
    ///
    /// # Panics
    /// If there is no such frame.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// let pa = uvm.frames().pa(page.page());
    /// assert_eq!(uvm.frames().page_at(pa), Some(page.page()));
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn pa(&self, page: PageNo) -> Pa {
        for s in &self.segments {
            let n = page.0.wrapping_sub(s.first.0);
            if n < s.pages {
                return Pa(s.start.0 + (u64::from(n) << PAGE_SHIFT));
            }
        }
        panic!("{page:?} is no frame of this machine")
    }

    /// The frame at an address; `None` if the machine manages no memory there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().page_at(Pa(1 << 50)), None);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn page_at(&self, pa: Pa) -> Option<PageNo> {
        for s in &self.segments {
            let n = pa.0.wrapping_sub(s.start.0) >> PAGE_SHIFT;
            if n < u64::from(s.pages) {
                return Some(PageNo(s.first.0 + n as u32));
            }
        }
        None
    }

    #[inline]
    fn page(&self, page: PageNo) -> &Page {
        &self.pages[page.0 as usize]
    }

    fn set_place(&self, no: u32, place: Place) {
        self.pages[no as usize].place.store(place as u8, Relaxed);
    }
}

impl Page {
    /// Changes the page's place, unless it is another by now.
    #[inline]
    fn moves(&self, from: Place, to: Place) -> bool {
        self.place.compare_exchange(from as u8, to as u8, AcqRel, Acquire).is_ok()
    }

    /// Forgets the owner: the page has none.
    #[inline]
    fn frees(&self, place: Place) {
        let was = self.place.load(Relaxed);
        assert!(
            was == Place::Nowhere as u8,
            "a page is freed that is {:?}",
            PLACES[usize::from(was)]
        );
        self.owner.store(pack(Owner::Free), Relaxed);
        self.wire.store(0, Relaxed);
        // A thread that finds the page idle finds it ownerless: `is_alone`.
        self.flags.store(0, Release);
        self.place.store(place as u8, Relaxed);
    }

    fn next(&self) -> Option<PageNo> {
        let no = self.next.load(Relaxed);
        (no != NIL).then_some(PageNo(no))
    }
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
