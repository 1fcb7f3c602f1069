//! Free pages: a magazine of each CPU, lists behind them, and runs of many at once.
//!
//! ```text
//!   alloc, free_page <-> magazine of this CPU <-- HALF at once --> lists:  CPU 0's | CPU 1's | ... | never used
//! ```
//! A magazine is an array, so that taking a number reads nothing but the array; and it is exchanged
//! with the lists by halves, so that a CPU that takes and gives in turn comes there once in
//! [`HALF`] calls at most. Anons' numbers are kept likewise.
//!
//! What a CPU gives back comes on a list of its own, and it takes from there first: what it has
//! written last lies in its own memory caches. With one list for all, two CPUs that filled and
//! unmapped memory exchanged their pages, and with each page the 64 lines that one had written and
//! the other was about to zero. Then it takes what no CPU has had, then the others' pages. One lock
//! guards all lists; a CPU takes it once in 32 pages.
//!
//! A call for one page costs a lock, a CPU's number and a look at the record; what moves runs of
//! pages pays them once. Runs pass the CPU's magazine by: they come off the lists and go back to
//! them, as a chain.
//!
//! Source: Bonwick and Adams, Magazines and Vmem (USENIX ATC 2001), with a list in the depot in
//! place of their full and empty magazines: giving back must not need memory.

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use machine::atomic::Ordering::{Relaxed, Release};
use machine::order::{Before, Held, PageCache};
use machine::{Channel, Machine, NoMemory, PageNo};

use super::gather::PageChain;
use super::{pack, Frames, List, Owner, Place, Reserve, Segment, NIL};

/// Numbers that a magazine holds.
pub const FULL: usize = 64;
/// Numbers that come from the lists, or go back, at once.
pub(crate) const HALF: usize = FULL / 2;

/// Free numbers, of pages or of what else a table holds, that one CPU has at hand.
pub(crate) type Magazine = ArrayVec<u32, FULL>;

/// Times that an allocation asks all caches, if others take each time what they give.
const LOOKS: usize = 16;

/// Free pages that are in no CPU's magazine.
pub(super) struct FreeLists {
    /// One for each CPU, and behind them the one for all.
    pub(super) lists: Vec<List>,
    /// Pages on all of them.
    pub(super) len: usize,
}

impl FreeLists {
    /// One list for all, and empty ones for so many CPUs.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold them.
    pub(super) fn new(cpus: usize, all: List) -> Result<FreeLists, NoMemory> {
        let mut lists = Vec::new();
        lists.try_reserve_exact(cpus + 1).map_err(|_| NoMemory)?;
        lists.resize(cpus, List::EMPTY);
        lists.push(all);
        Ok(FreeLists { lists, len: all.len })
    }

    /// The list that a CPU takes from next: its own, that of all, those of others. `None` if all
    /// are empty.
    fn next_for(&mut self, cpu: usize) -> Option<&mut List> {
        let all = self.lists.len() - 1;
        let others = (0..all).map(|i| (cpu + i) % all).skip(1);
        let mut order = [cpu, all].into_iter().chain(others);
        order.find(|&at| self.lists[at].len != 0).map(|at| &mut self.lists[at])
    }
}

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
            self.take_listed(machine, &mut h, reserve, HALF, |no| {
                cache.push(no);
                self.set_place(no, Place::Cached);
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

    /// Takes pages from the free lists' fronts, at most so many, and as many as there are; says how
    /// many. Their records still say that they are there.
    fn take_listed(
        &self,
        machine: &M,
        held: &mut Held<'_, PageCache>,
        reserve: Reserve,
        most: usize,
        mut each: impl FnMut(u32),
    ) -> usize {
        let (mut free, _h) = self.global.free.lock(held);
        let count = most.min(free.len.saturating_sub(self.kept_from(reserve)));
        free.len -= count;
        let mut left = count;
        while left != 0 {
            let Some(list) = free.next_for(machine.cpu()) else {
                unreachable!("free pages are on no list")
            };
            let taken = left.min(list.len);
            for _ in 0..taken {
                let page = &self.pages[list.head as usize];
                each(list.head);
                list.head = page.next.load(Relaxed);
            }
            list.len -= taken;
            match self.pages.get(list.head as usize) {
                Some(first) => first.prev.store(NIL, Relaxed),
                None => list.tail = NIL,
            }
            left -= taken;
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

    pub(super) fn free_chain<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        chain: PageChain,
    ) {
        let cpu = machine.cpu();
        let per_cpu = &self.per_cpu[cpu];
        let (mut cache, mut h) = per_cpu.cache.lock(held);
        if chain.len > HALF {
            self.free_listed(&mut h, cpu, &chain);
        } else {
            let mut next = chain.head;
            while let Some(page) = next {
                next = self.page(page).next();
                self.put(&mut cache, &mut h, cpu, page);
            }
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
        let (mut free, _h) = self.global.free.lock(held);
        for no in (0..count).map_while(|_| cache.pop()) {
            free.lists[cpu].splice_front(&self.pages, List { head: no, tail: no, len: 1 });
            self.pages[no as usize].prev.store(NIL, Relaxed);
            self.set_place(no, Place::Free);
            free.len += 1;
        }
        self.global.free_list_len.store(free.len, Release);
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

    /// Takes `count` frames that follow one another in physical memory, from the top; their state
    /// is as [`alloc`](Self::alloc) leaves it. Cost: a scan of all records: for rare, large needs
    /// such as a kernel heap.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no such run, or taking it would reach into the kernel's reserve.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (frames, machine) = (uvm.frames(), uvm.machine());
    /// let first = frames.alloc_run(held, 16)?;
    /// (first.0..first.0 + 16).for_each(|n| frames.free_page(machine, held, PageNo(n)));
    /// # Ok(()) });
    /// ```
    pub fn alloc_run<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        count: u32,
    ) -> Result<PageNo, NoMemory> {
        self.drain_caches(held);
        let (_cache, mut h) = self.per_cpu[0].cache.lock(held);
        let (mut free, _h) = self.global.free.lock(&mut h);
        let is_short = count == 0 || free.len < count as usize + self.reserve_kernel;
        let mut segments = self.segments.iter().filter(|_| !is_short);
        let Some(first) = segments.find_map(|segment| self.free_run(segment, count)) else {
            self.refusals.fetch_add(1, Relaxed);
            return Err(NoMemory);
        };
        let [own @ .., all] = &mut free.lists[..] else { unreachable!("there is a list for all") };
        for list in own.iter_mut().filter(|list| list.len != 0) {
            all.splice_front(&self.pages, core::mem::replace(list, List::EMPTY));
        }
        for no in first..first + count {
            all.unlink(&self.pages, no);
            self.take(no);
        }
        free.len -= count as usize;
        self.global.free_list_len.store(free.len, Relaxed);
        Ok(PageNo(first))
    }

    fn free_run(&self, segment: &Segment, count: u32) -> Option<u32> {
        let mut run = 0;
        for no in (segment.first.0..segment.first.0 + segment.pages).rev() {
            let free = self.pages[no as usize].place.load(Relaxed) == Place::Free as u8;
            run = if free { run + 1 } else { 0 };
            if run == count {
                return Some(no);
            }
        }
        None
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
            let each = |no| each(self.take(no));
            taken = self.take_listed(machine, &mut h, reserve, count, each);
        }
        for _ in taken..count {
            each(self.alloc(machine, held, reserve)?);
        }
        Ok(())
    }

    /// Frees a chain that would overflow a cache: it becomes the front of the CPU's free list.
    fn free_listed(&self, held: &mut Held<'_, PageCache>, cpu: usize, chain: &PageChain) {
        let Some(head) = chain.head else { return };
        let (mut free, _h) = self.global.free.lock(held);
        let (mut at, mut prev) = (head.0, NIL);
        for _ in 0..chain.len {
            let page = &self.pages[at as usize];
            page.frees(Place::Free);
            page.prev.store(prev, Relaxed);
            (prev, at) = (at, page.next.load(Relaxed));
        }
        // Now `prev` is the chain's last page.
        let front = List { head: head.0, tail: prev, len: chain.len };
        free.lists[cpu].splice_front(&self.pages, front);
        free.len += chain.len;
        self.global.free_list_len.store(free.len, Release);
    }
}
