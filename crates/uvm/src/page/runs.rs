//! Many pages at once: taken, put on the active queue and freed under one hold of a lock.
//!
//! A call for one page costs a lock, a CPU's number and a look at the record each; what moves runs
//! of pages pays them once. Runs pass the CPU's cache by: they come off the free list and go back
//! to it, as a chain.

use super::gather::PageChain;
use super::magazine::HALF;
use super::{link_back, pack, Frames, List, NoMemory, Owner, PageFlags, Place, NIL};
use machine::atomic::Ordering::{Acquire, Relaxed, Release};
use machine::order::{Before, Held, PageCache, PageQueues, RawLock};
use machine::{Channel, Machine, PageNo};

use super::{Gather, Reserve};

impl<M: Machine> Frames<M> {
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
        let taken = if count < HALF {
            0
        } else {
            self.take_listed(machine, held, reserve, count, &mut each)
        };
        for _ in taken..count {
            each(self.alloc(machine, held, reserve)?);
        }
        Ok(())
    }

    /// Takes pages from the free lists' fronts, as many as there are; says how many.
    fn take_listed<P: Before<PageCache>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        reserve: Reserve,
        count: usize,
        mut each: impl FnMut(PageNo),
    ) -> usize {
        let cpu = machine.cpu();
        let (_cache, mut h) = self.per_cpu[cpu].cache.lock(held);
        let (mut free, _h) = self.global.free.lock(&mut h);
        let count = count.min(free.len.saturating_sub(self.kept_from(reserve)));
        self.take_free(&mut free, cpu, count, |no| {
            let page = &self.pages[no as usize];
            page.place.store(Place::Nowhere as u8, Relaxed);
            page.owner.store(pack(Owner::Kernel), Relaxed);
            each(PageNo(no));
        });
        self.global.free_list_len.store(free.len, Release);
        if free.len < self.low_water() {
            machine.wake(Channel::PAGE_DAEMON);
        }
        count
    }

    /// Puts pages that are on no queue, and wired by nobody, on the active queue, under one hold of
    /// its lock; a page that is on one stays. Their owners' locks are held, or nobody else can take
    /// the pages from them.
    pub fn activate_all<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        pages: impl Iterator<Item = PageNo>,
    ) {
        let (mut queues, _h) = self.global.queues.lock(held);
        let (records, mut active) = (&self.pages[..], queues.active);
        for page in pages {
            let record = &records[page.0 as usize];
            if record.moves(Place::Nowhere, Place::Active) {
                link_back(records, &mut active, page.0);
                queues.linked(record.flags.load(Relaxed));
            }
        }
        queues.active = active;
        self.count(&queues);
    }

    /// Takes an idle page from its owner, who holds its own lock and has removed the page's
    /// mappings; [`release_all`] is to follow. Says no, with nothing changed, if I/O has the page,
    /// or somebody holds it.
    ///
    /// [`release_all`]: Self::release_all
    #[inline]
    pub fn leaves_owner(&self, page: PageNo) -> bool {
        let record = self.page(page);
        let is_idle = record.flags.load(Relaxed) & PageFlags::BUSY.bits() == 0
            && record.wire.load(Acquire) == 0;
        if is_idle {
            // Who finds it on its queue finds that it is nobody's.
            record.owner.store(pack(Owner::Kernel), Relaxed);
        }
        is_idle
    }

    /// Takes pages that [left their owners](Self::leaves_owner) off their queues, under one hold of
    /// the lock, and hands them to `down`, which frees them once no CPU can hold a translation of
    /// them. Those that are still in a CPU's batch need no lock. So many frames were
    /// [announced](Self::announce) as their owners let them go.
    pub fn release_all<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        pages: &[PageNo],
        announced: usize,
        down: &mut Gather,
    ) {
        self.per_cpu[M::Lock::cpu()].gathered.fetch_sub(announced - pages.len(), Relaxed);
        let mut listed = 0;
        for &page in pages {
            let record = self.page(page);
            if record.moves(Place::Pending, Place::Nowhere)
                || record.place.load(Relaxed) == Place::Nowhere as u8
            {
                down.gather(self, page);
            } else {
                listed += 1;
            }
        }
        if listed == 0 {
            return;
        }
        let (mut queues, _h) = self.global.queues.lock(held);
        for &page in pages {
            let record = self.page(page);
            let place = record.place.load(Relaxed);
            if place == Place::Active as u8 {
                self.unlink(&mut queues.active, page.0);
            } else if place == Place::Inactive as u8 {
                self.unlink(&mut queues.inactive, page.0);
            } else {
                // Gathered already.
                continue;
            }
            queues.unlinked(record.flags.load(Relaxed));
            record.place.store(Place::Nowhere as u8, Relaxed);
            down.gather(self, page);
        }
        self.count(&queues);
    }

    /// Frees a chain that would overflow a cache: it becomes the front of the CPU's free list.
    pub(super) fn free_listed(
        &self,
        held: &mut Held<'_, PageCache>,
        cpu: usize,
        chain: &PageChain,
    ) {
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
        self.splice_front(&mut free.lists[cpu], List { head: head.0, tail: prev, len: chain.len });
        free.len += chain.len;
        self.global.free_list_len.store(free.len, Release);
    }
}
