//! Free pages: a magazine of each CPU, blocks behind them, and runs of many at once.
//!
//! ```text
//!   alloc, free_page <-> magazine of this CPU <-- HALF at once --> free blocks (`buddy`)
//! ```
//! A magazine is an array, so that taking a number reads nothing but the array; and it is exchanged
//! with the blocks by halves, so that a CPU that takes and gives in turn comes there once in
//! [`HALF`] calls at most. Anons' numbers are kept likewise.
//!
//! A call for one page costs a lock, a CPU's number and a look at the record; what moves runs of
//! pages pays them once. Runs pass the CPU's magazine by.
//!
//! Source: Bonwick and Adams, Magazines and Vmem (USENIX ATC 2001), with free blocks in the depot
//! in place of their full and empty magazines: giving back must not need memory.

use arrayvec::ArrayVec;
use machine::atomic::Ordering::{Relaxed, Release};
use machine::order::{Before, Held, PageCache};
use machine::{Channel, Machine, NoMemory, PageNo};

use crate::buddy::{Block, FreeLists, MAX_ORDER};
use crate::gather::PageChain;
use crate::{pack, Frames, Owner, Place, Reserve, Segment};

/// Numbers that a magazine holds.
pub const FULL: usize = 64;
/// Numbers that come from the lists, or go back, at once.
pub const HALF: usize = FULL / 2;

/// Free numbers, of pages or of what else a table holds, that one CPU has at hand.
pub type Magazine = ArrayVec<u32, FULL>;

/// Free blocks that a CPU takes over under one hold of the lock.
const BLOCKS: usize = 64;

/// Times that an allocation asks all caches, if others take each time what they give.
const LOOKS: usize = 16;

impl<M: Machine> Frames<M> {
    /// Takes a free page. Its contents are whatever they were; its owner is [`Owner::Kernel`], its
    /// wire count and flags are clear, and it is on no queue. Cost: constant; no lock shared by all
    /// CPUs but once in 32 calls.
    ///
    /// # Errors
    /// [`NoMemory`] if only pages kept for a more urgent `reserve` are left, on the free list and
    /// in all caches.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let page = frames.alloc(machine, held, Reserve::Kernel)?;
    /// machine.zero(page);
    /// frames.free_page(machine, held, page);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn alloc<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        reserve: Reserve,
    ) -> Result<PageNo, NoMemory> {
        let cpu = machine.cpu();
        {
            let (mut cache, _h) = self.per_cpu[cpu].cache.lock(held);
            if let Some(page) = self.pop(&mut cache, cpu) {
                return Ok(page);
            }
        }
        self.alloc_uncached(machine, held, cpu, reserve)
    }

    #[cold]
    fn alloc_uncached<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        cpu: usize,
        reserve: Reserve,
    ) -> Result<PageNo, NoMemory> {
        if let Ok(page) = self.refill_and_pop(machine, held, cpu, reserve) {
            return Ok(page);
        }
        let reserve = match reserve {
            Reserve::User if machine.has_fatal_signal() => Reserve::Kernel,
            reserve => reserve,
        };
        // What other CPUs' caches hold is free too: before memory is short they give it back.
        // Others may take it into theirs at once; so one look isn't enough while there is something
        // to be had.
        for _ in 0..LOOKS {
            self.drain_caches(held);
            if let Ok(page) = self.refill_and_pop(machine, held, cpu, reserve) {
                return Ok(page);
            }
            if self.free() <= self.kept_from(reserve) {
                break;
            }
        }
        self.refusals.fetch_add(1, Relaxed);
        Err(NoMemory)
    }

    /// Free pages that an allocation leaves alone.
    fn kept_from(&self, reserve: Reserve) -> usize {
        match reserve {
            Reserve::User => self.reserve_kernel,
            Reserve::Kernel => self.reserve_pageout,
            Reserve::Pageout => 0,
        }
    }

    fn refill_and_pop<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        cpu: usize,
        reserve: Reserve,
    ) -> Result<PageNo, NoMemory> {
        let (mut cache, mut h) = self.per_cpu[cpu].cache.lock(held);
        if cache.is_empty() {
            self.take_listed(machine, &mut h, reserve, HALF, |Block { first, pages }| {
                // The next that is taken is the last: so pages come in ascending order.
                for no in (first..first + pages).rev() {
                    cache.push(no);
                    self.set_place(no, Place::Cached);
                }
                // Counted in the cache before it leaves the list: see `free`.
                self.per_cpu[cpu].cached.store(cache.len(), Release);
            });
        }
        self.pop(&mut cache, cpu).ok_or(NoMemory)
    }

    /// Takes a page out of a cache, if it has one.
    #[inline]
    fn pop(&self, cache: &mut Magazine, cpu: usize) -> Option<PageNo> {
        let no = cache.pop()?;
        self.per_cpu[cpu].cached.store(cache.len(), Relaxed);
        Some(self.take(no))
    }

    /// A free page becomes the caller's.
    #[inline]
    fn take(&self, no: u32) -> PageNo {
        let page = &self.pages[no as usize];
        page.place.store(Place::Nowhere as u8, Relaxed);
        page.owner.store(pack(Owner::Kernel), Relaxed);
        PageNo(no)
    }

    /// Takes free blocks, of at most so many pages together, and of as many as there are; says how
    /// many. Their records still say that they are there.
    fn take_listed(
        &self,
        machine: &M,
        held: &mut Held<'_, PageCache>,
        reserve: Reserve,
        most: usize,
        mut each: impl FnMut(Block),
    ) -> usize {
        let (mut free, _h) = self.global.free.lock(held);
        let count = most.min(free.len.saturating_sub(self.kept_from(reserve)));
        let (mut left, cpu) = (count as u32, machine.cpu());
        while left != 0 {
            let Some(block) = free.take_up_to(&self.pages, cpu, left) else {
                unreachable!("free pages are on no list")
            };
            left -= block.pages;
            each(block);
        }
        self.global.free_list_len.store(free.len, Release);
        if free.len < self.low_water() {
            machine.wake(Channel::PAGE_DAEMON);
        }
        count
    }

    /// Frees a page that no translation and no list knows: one from [`alloc`](Self::alloc) that was
    /// never mapped, or one of a segment that came loaded. Pages that were mapped go through
    /// [`release`](Self::release).
    ///
    /// # Panics
    /// If the page is on a list, is free, or is the host's [own](Place::Own).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let page = frames.alloc(machine, held, Reserve::Kernel)?;
    /// frames.free_page(machine, held, page);
    /// assert_eq!(frames.free(), frames.total());
    /// # Ok(()) });
    /// ```
    pub fn free_page<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) {
        let cpu = machine.cpu();
        let (mut cache, mut h) = self.per_cpu[cpu].cache.lock(held);
        self.put(&mut cache, &mut h, cpu, page);
        self.per_cpu[cpu].cached.store(cache.len(), Release);
    }

    pub(crate) fn free_chain<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        chain: PageChain,
    ) {
        let cpu = machine.cpu();
        let per_cpu = &self.per_cpu[cpu];
        let (mut cache, mut h) = per_cpu.cache.lock(held);
        let next = |&page: &PageNo| self.page(page).next();
        let pages = core::iter::successors(chain.head, next);
        if chain.len > HALF {
            // A cache would overflow.
            let numbers = pages.inspect(|&page| self.page(page).frees(Place::Free));
            self.free_listed(&mut h, cpu, numbers.map(|page| page.0));
        } else {
            pages.for_each(|page| self.put(&mut cache, &mut h, cpu, page));
            per_cpu.cached.store(cache.len(), Release);
        }
        per_cpu.gathered.fetch_sub(chain.len, Release);
    }

    #[inline]
    fn put(&self, cache: &mut Magazine, held: &mut Held<'_, PageCache>, cpu: usize, page: PageNo) {
        if cache.is_full() {
            self.drain(cache, held, cpu, HALF);
        }
        self.page(page).frees(Place::Cached);
        cache.push(page.0);
    }

    /// Brings pages of a CPU's cache on its free list.
    fn drain(
        &self,
        cache: &mut Magazine,
        held: &mut Held<'_, PageCache>,
        cpu: usize,
        count: usize,
    ) {
        self.free_listed(held, cpu, (0..count).map_while(|_| cache.pop()));
    }

    /// Returns all cached pages to the free list, from every CPU.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// uvm.frames().drain_caches(held);
    /// # Ok(()) });
    /// ```
    pub fn drain_caches<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) {
        for (number, cpu) in self.per_cpu.iter().enumerate() {
            let (mut cache, mut h) = cpu.cache.lock(held);
            let count = cache.len();
            self.drain(&mut cache, &mut h, number, count);
            cpu.cached.store(0, Release);
        }
    }

    /// Returns them if the free list has less than what is kept from programs: what memory pressure
    /// has freed must not all go to the first request on the CPU that freed it, or the reserves
    /// shrink each time that they are used.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.frames().refill_reserves(held);
    /// # Ok(()) });
    /// ```
    pub fn refill_reserves<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) {
        if self.global.free_list_len.load(Relaxed) < self.reserve_kernel {
            self.drain_caches(held);
        }
    }

    /// Takes `count` frames that follow one another in physical memory, the first aligned to
    /// `count` rounded up to a power of two; their state is as [`alloc`](Self::alloc) leaves it.
    /// Cost: by CPUs, and by frames taken.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no such run, `count` is 0 or more than one page of page tables
    /// maps, or taking it would reach into the kernel's reserve.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let first = frames.alloc_run(machine, held, 16)?;
    /// assert!(frames.pa(first).0.is_multiple_of(16 * PAGE_SIZE as u64));
    /// (first.0..first.0 + 16).for_each(|n| frames.free_page(machine, held, PageNo(n)));
    /// # Ok(()) });
    /// ```
    pub fn alloc_run<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        count: u32,
    ) -> Result<PageNo, NoMemory> {
        let cpu = machine.cpu();
        let mut run = self.take_run(held, cpu, count);
        let may_be = (1..=1 << MAX_ORDER).contains(&count)
            && self.free() >= count as usize + self.reserve_kernel;
        if run.is_none() && may_be {
            // What lacks may lie in caches, or be in pieces that are different CPUs'.
            self.drain_caches(held);
            for _ in 0..=self.total / BLOCKS {
                if !self.take_over_blocks(held, cpu) {
                    break;
                }
            }
            run = self.take_run(held, cpu, count);
        }
        let Some(Block { first, .. }) = run else {
            self.refusals.fetch_add(1, Relaxed);
            return Err(NoMemory);
        };
        Ok(PageNo(first))
    }

    fn take_run<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        cpu: usize,
        count: u32,
    ) -> Option<Block> {
        let (_cache, mut h) = self.per_cpu[cpu].cache.lock(held);
        let (mut free, _h) = self.global.free.lock(&mut h);
        if count == 0 || free.len < count as usize + self.reserve_kernel {
            return None;
        }
        let run = free.take_run(&self.pages, cpu, count, |no| self.segment_of(no))?;
        (run.first..run.first + count).for_each(|no| {
            self.take(no);
        });
        self.global.free_list_len.store(free.len, Relaxed);
        Some(run)
    }

    /// Makes some of all free blocks a CPU's; says whether there were others'.
    fn take_over_blocks<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, cpu: usize) -> bool {
        let (_cache, mut h) = self.per_cpu[cpu].cache.lock(held);
        let (mut free, _h) = self.global.free.lock(&mut h);
        free.take_over(&self.pages, cpu, BLOCKS, |no| self.segment_of(no))
    }

    /// Frees a run of numbers, of which each segment's frames follow one another in memory.
    #[inline]
    fn free_run(&self, free: &mut FreeLists, cpu: usize, run: Block) {
        let segment = self.segment_of(run.first);
        if run.first - segment.first.0 + run.pages <= segment.pages {
            return free.free(&self.pages, cpu, run, segment);
        }
        self.free_by_segment(free, cpu, run);
    }

    #[cold]
    fn free_by_segment(&self, free: &mut FreeLists, cpu: usize, run: Block) {
        let mut rest = run;
        while rest.pages != 0 {
            let segment = self.segment_of(rest.first);
            let own = rest.pages.min(segment.first.0 + segment.pages - rest.first);
            let here = Block { first: rest.first, pages: own };
            free.free(&self.pages, cpu, here, segment);
            rest = Block { first: rest.first + own, pages: rest.pages - own };
        }
    }

    /// The segment of a frame.
    #[inline]
    pub(crate) fn segment_of(&self, no: u32) -> &Segment {
        let has = |segment: &&Segment| no.wrapping_sub(segment.first.0) < segment.pages;
        self.segments.iter().find(has).unwrap_or_else(|| panic!("{no} is no frame"))
    }

    /// Takes `count` free pages, each as [`alloc`](Self::alloc) leaves it, and hands them to
    /// `each`, which takes no lock. Cost: two locks for all, where enough are on the free list.
    ///
    /// # Errors
    /// [`NoMemory`] after those that there were.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let mut pages = Vec::new();
    /// frames.alloc_many(machine, held, Reserve::User, 8, |page| pages.push(page))?;
    /// pages.into_iter().for_each(|page| frames.free_page(machine, held, page));
    /// # Ok(()) });
    /// ```
    pub fn alloc_many<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        reserve: Reserve,
        count: usize,
        mut each: impl FnMut(PageNo),
    ) -> Result<(), NoMemory> {
        let mut taken = 0;
        if count >= HALF {
            let (_cache, mut h) = self.per_cpu[machine.cpu()].cache.lock(held);
            taken = self.take_listed(machine, &mut h, reserve, count, |Block { first, pages }| {
                (first..first + pages).for_each(|no| each(self.take(no)));
            });
        }
        for _ in taken..count {
            each(self.alloc(machine, held, reserve)?);
        }
        Ok(())
    }

    /// Brings pages on a CPU's free list.
    fn free_listed(
        &self,
        held: &mut Held<'_, PageCache>,
        cpu: usize,
        numbers: impl Iterator<Item = u32>,
    ) {
        let (mut free, _h) = self.global.free.lock(held);
        let mut runs = Runs::default();
        for no in numbers {
            self.set_place(no, Place::Free);
            if let Some(run) = runs.add(no) {
                self.free_run(&mut free, cpu, run);
            }
        }
        if let Some(run) = runs.0 {
            self.free_run(&mut free, cpu, run);
        }
        self.global.free_list_len.store(free.len, Release);
    }
}

/// Numbers that come one by one, put together where they follow one another, up or down.
#[derive(Default)]
struct Runs(Option<Block>);

impl Runs {
    /// Adds a number. Returns the run before it, if it doesn't go on with that.
    #[inline(always)]
    fn add(&mut self, no: u32) -> Option<Block> {
        match &mut self.0 {
            Some(run) if run.first + run.pages == no => run.pages += 1,
            Some(run) if no + 1 == run.first => (run.first, run.pages) = (no, run.pages + 1),
            run => return run.replace(Block { first: no, pages: 1 }),
        }
        None
    }
}
