//! Free blocks: runs of free pages that no CPU has at hand, by size and by the CPU that freed them.
//!
//! ```text
//!   lists                 order 0   order 1   ...   MAX_ORDER
//!     CPU 0's               | |       | |              | |        a block: 2^order pages, aligned;
//!     CPU 1's               | |       | |              | |        its first page's record has the
//!     never used            | |       | |              | |        order and the links
//! ```
//! A block that becomes free merges with its buddy, the block of its size beside it, if that is
//! on the freeing CPU's lists too. So pages that a program fills one after another follow one
//! another in memory, and a run of pages is found without looking through the records. Where none
//! is found, one CPU takes over all blocks ([`FreeLists::take_over`]), and they merge.
//!
//! What a CPU frees comes on lists of its own, and it takes from there first: what it has written
//! last lies in its own memory caches. With one list for all, two CPUs that filled and unmapped
//! memory exchanged their pages, and with each page the 64 lines that one had written and the other
//! was about to zero. Then it takes what no CPU has had, then the others' pages. One lock guards
//! all lists.
//!
//! I1: a page's order is [`NO_BLOCK`] but in the first page of a block on a list; that page's index
//! is the list's CPU. I2: a block and its buddy aren't both on lists of one CPU.
//!
//! Source: Knowlton, A fast storage allocator (CACM 8:10, 1965).

use alloc::vec::Vec;

use machine::atomic::Ordering::Relaxed;
use machine::{NoMemory, PAGE_SHIFT};

use crate::{List, Page, Segment};

/// The largest block is what one page of page tables maps: 2 MiB of pages of 4 KiB.
pub(crate) const MAX_ORDER: u32 = PAGE_SHIFT - 3;
const ORDERS: usize = MAX_ORDER as usize + 1;
/// The order in a record that isn't the first of a free block.
pub(crate) const NO_BLOCK: u8 = u8::MAX;

/// Blocks of one CPU, by order.
#[derive(Clone, Copy)]
struct Blocks {
    by_order: [List; ORDERS],
    /// One bit for each order: whether there are blocks of it.
    orders: u32,
}

/// Free pages that are in no CPU's magazine. Pages are given by number, with their records.
pub(crate) struct FreeLists {
    /// One for each CPU, and behind them the one for pages that no CPU has had.
    lists: Vec<Blocks>,
    /// Pages on all of them.
    pub(crate) len: usize,
}

/// A run of pages, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) first: u32,
    pub(crate) pages: u32,
}

impl FreeLists {
    /// Empty lists for so many CPUs.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold them.
    pub(crate) fn new(cpus: usize) -> Result<FreeLists, NoMemory> {
        let none = Blocks { by_order: [List::EMPTY; ORDERS], orders: 0 };
        let mut lists = Vec::new();
        lists.try_reserve_exact(cpus + 1).map_err(|_| NoMemory)?;
        lists.resize(cpus + 1, none);
        Ok(FreeLists { lists, len: 0 })
    }

    /// Adds all pages of a segment that no CPU has had yet, in ascending order.
    pub(crate) fn add_segment(&mut self, pages: &[Page], segment: &Segment) {
        let all = Block { first: segment.first.0, pages: segment.pages };
        let unused = self.lists.len() - 1;
        for (first, order) in aligned(all, segment) {
            self.put(pages, unused, first, order, List::push_back);
        }
        self.len += segment.pages as usize;
    }

    /// Frees a run that lies within a segment. Its pages' records say so already.
    #[inline]
    pub(crate) fn free(&mut self, pages: &[Page], cpu: usize, run: Block, segment: &Segment) {
        self.len += run.pages as usize;
        if run.pages == 1 {
            return self.merge(pages, cpu, run.first, 0, segment);
        }
        for (first, order) in aligned(run, segment) {
            self.merge(pages, cpu, first, order, segment);
        }
    }

    /// Frees a block, merged with the CPU's blocks that make larger ones of it.
    #[inline]
    fn merge(&mut self, pages: &[Page], cpu: usize, first: u32, order: u32, segment: &Segment) {
        let (mut first, mut order) = (first, order);
        while order < MAX_ORDER {
            let Some(buddy) = segment.buddy(first, order) else { break };
            let page = &pages[buddy as usize];
            let is_mate = u32::from(page.order.load(Relaxed)) == order
                && page.index.load(Relaxed) == cpu as u64;
            if !is_mate {
                break;
            }
            self.unlink(pages, buddy, order);
            first = first.min(buddy);
            order += 1;
        }
        self.put(pages, cpu, first, order, List::push_front);
    }

    #[inline]
    fn put(
        &mut self,
        pages: &[Page],
        list: usize,
        first: u32,
        order: u32,
        link: fn(&mut List, &[Page], u32),
    ) {
        let page = &pages[first as usize];
        page.order.store(order as u8, Relaxed);
        page.index.store(list as u64, Relaxed);
        let blocks = &mut self.lists[list];
        blocks.orders |= 1 << order;
        link(&mut blocks.by_order[order as usize], pages, first);
    }

    #[inline]
    fn unlink(&mut self, pages: &[Page], first: u32, order: u32) {
        let page = &pages[first as usize];
        page.order.store(NO_BLOCK, Relaxed);
        let blocks = &mut self.lists[page.index.load(Relaxed) as usize];
        page.index.store(0, Relaxed);
        let list = &mut blocks.by_order[order as usize];
        list.unlink(pages, first);
        if list.len == 0 {
            blocks.orders &= !(1 << order);
        }
    }

    /// Takes a block of at most so many pages for a CPU: one that fits, or a smaller one, before a
    /// larger one is divided; `None` if all lists are empty.
    pub(crate) fn take_up_to(&mut self, pages: &[Page], cpu: usize, most: u32) -> Option<Block> {
        let order = most.ilog2().min(MAX_ORDER);
        let list = self.in_turn(cpu).find(|&list| self.lists[list].orders != 0)?;
        let orders = self.lists[list].orders;
        let small = orders & ((2 << order) - 1);
        let found = if small == 0 { orders.trailing_zeros() } else { small.ilog2() };
        Some(self.take(pages, list, found, order.min(found)))
    }

    /// Takes a block of so many pages for a CPU, whose number is aligned to the power of two that
    /// isn't smaller. Cost: by CPUs.
    pub(crate) fn take_run<'a>(
        &mut self,
        pages: &[Page],
        cpu: usize,
        count: u32,
        segment_of: impl Fn(u32) -> &'a Segment,
    ) -> Option<Block> {
        let order = count.checked_next_power_of_two()?.ilog2();
        let large = |list: usize| self.lists[list].orders.checked_shr(order).unwrap_or(0);
        let list = self.in_turn(cpu).find(|&list| large(list) != 0)?;
        let found = order + large(list).trailing_zeros();
        let Block { first, pages: all } = self.take(pages, list, found, order);
        if count < all {
            let rest = Block { first: first + count, pages: all - count };
            self.free(pages, cpu, rest, segment_of(first));
        }
        Some(Block { first, pages: count })
    }

    /// Gives a CPU some blocks of others, at most so many, so that they merge with its own. Returns
    /// whether there were any.
    pub(crate) fn take_over<'a>(
        &mut self,
        pages: &[Page],
        cpu: usize,
        most: usize,
        segment_of: impl Fn(u32) -> &'a Segment,
    ) -> bool {
        for taken in 0..most {
            let has_some = |&list: &usize| self.lists[list].orders != 0;
            let Some(list) = self.in_turn(cpu).skip(1).find(has_some) else { return taken != 0 };
            let order = self.lists[list].orders.trailing_zeros();
            let first = self.lists[list].by_order[order as usize].head;
            self.unlink(pages, first, order);
            self.merge(pages, cpu, first, order, segment_of(first));
        }
        true
    }

    /// The lists that a CPU takes from: its own, that of unused pages, those of others.
    fn in_turn(&self, cpu: usize) -> impl Iterator<Item = usize> + use<> {
        let unused = self.lists.len() - 1;
        [cpu, unused].into_iter().chain((1..unused).map(move |i| (cpu + i) % unused))
    }

    /// Takes the first block of a list, and of that the first pages; the rest stays.
    fn take(&mut self, pages: &[Page], list: usize, found: u32, order: u32) -> Block {
        let first = self.lists[list].by_order[found as usize].head;
        self.unlink(pages, first, found);
        for order in (order..found).rev() {
            self.put(pages, list, first + (1 << order), order, List::push_front);
        }
        self.len -= 1 << order;
        Block { first, pages: 1 << order }
    }

    /// Calls `each` with every list and the order of its blocks.
    pub(crate) fn each_list<E>(
        &self,
        mut each: impl FnMut(&List, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        for blocks in &self.lists {
            for (order, list) in (0..).zip(&blocks.by_order) {
                each(list, order)?;
            }
        }
        Ok(())
    }
}

/// The blocks of a run, each as large as its address allows.
fn aligned(run: Block, segment: &Segment) -> impl Iterator<Item = (u32, u32)> {
    let (mut at, end) = (run.first, run.first + run.pages);
    let segment = *segment;
    core::iter::from_fn(move || {
        let left = (end - at).checked_ilog2()?;
        let order = left.min(segment.frame(at).trailing_zeros()).min(MAX_ORDER);
        let first = at;
        at += 1 << order;
        Some((first, order))
    })
}

impl Segment {
    /// The frame's number by its physical address.
    pub(crate) fn frame(&self, no: u32) -> u64 {
        (self.start.0 >> PAGE_SHIFT) + u64::from(no - self.first.0)
    }

    /// The block beside one, with which it makes a larger one; `None` if the segment ends there.
    #[inline]
    pub(crate) fn buddy(&self, first: u32, order: u32) -> Option<u32> {
        let frame = self.frame(first) as u32;
        let buddy = first.wrapping_add(frame ^ 1 << order).wrapping_sub(frame);
        (buddy.wrapping_sub(self.first.0) < self.pages).then_some(buddy)
    }
}
