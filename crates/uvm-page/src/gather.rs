//! What an operation lowered and the pages that it frees: flushed on the CPUs once, then freed.
//!
//! An operation makes one [`Gather`], passes the [`Shootdown`] in it to every pmap call that
//! removes or lowers, puts the pages that it frees into it, and performs it at the end.
//!
//! I1: a page gathered here has no owner and no mapping in any table. It is on no queue, and its
//! `next` link belongs to the gather; or it waits for others to leave its queue together with them.
//! I2: a `Gather` that holds anything is performed, not dropped.
//!
//! # Proof that a page has no mapping left
//! ```text
//!   page's owner:  Gather::unmap         page_protect; the Gather has the CPUs that may know it
//!   map's owner:   Unmapped::by_ranges   its range was removed, and the CPUs were flushed, before
//!                       |                the map's lock went
//!                       v
//!   Frames::release(page, down)  -->  down.perform: CPUs are flushed, then the page is free
//! ```
//! That the tables show no mapping is no proof. Another thread may have taken one out a moment ago,
//! and the CPUs not know of it yet (law P6 of [`machine::pmap`]):
//! [`Pmap::is_mapped`] says nothing about what still reaches a page. So
//! it makes no [`Unmapped`], and what frees a page asks for one.
//!
//! Source: Linux's `mmu_gather` gathers likewise.

use core::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;
use machine::atomic::Ordering::{Acquire, Relaxed};
use machine::order::{Before, Held, PageCache, PageQueues, RawLock};
use machine::{Machine, PageNo, Pmap, Prot, Shootdown};

use crate::{pack, Frames, Owner, PageFlags, NIL};

/// Pages that leave their queues at once.
const QUEUED: usize = 32;

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
/// uvm.read_ahead(held, &file, 0..4);
/// let mut gather = Gather::new();
/// {
///     let (mut body, mut held) = file.object().lock(held);
///     assert_eq!(body.remove_some(uvm, &mut held, &mut gather), uvm::Removed::All);
/// }
/// gather.perform(uvm.frames(), uvm.machine(), held);
/// assert_eq!(file.object().resident(held), 0);
/// # Ok(()) });
/// ```
#[must_use = "a Gather is performed: until then its pages are not free"]
#[derive(Default)]
pub struct Gather {
    down: Shootdown,
    freed: PageChain,
    /// Pages to be freed that have no owner, and are still on their queues.
    queued: ArrayVec<PageNo, QUEUED>,
}

/// Pages linked through their `next` fields; see [`Frames`].
#[derive(Default)]
pub(crate) struct PageChain {
    pub(crate) head: Option<PageNo>,
    pub(crate) len: usize,
}

impl Gather {
    /// Nothing gathered yet.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut nothing = Gather::new();
    /// nothing.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn new() -> Gather {
        Gather::default()
    }

    /// Tells the CPUs, then frees the gathered pages. Takes `self` by reference only since a move
    /// would copy it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let mut nothing = Gather::new();
    /// nothing.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn perform<M: Machine, P>(
        &mut self,
        frames: &Frames<M>,
        machine: &M,
        held: &mut Held<'_, P>,
    ) where
        P: Before<PageQueues> + Before<PageCache>,
    {
        if self.is_needed() || self.has_pages() {
            self.perform_gathered(frames, machine, held);
        }
    }

    #[inline(never)]
    fn perform_gathered<M: Machine, P>(
        &mut self,
        frames: &Frames<M>,
        machine: &M,
        held: &mut Held<'_, P>,
    ) where
        P: Before<PageQueues> + Before<PageCache>,
    {
        self.down.flush(machine.pmap());
        self.unqueue(frames, held);
        let freed = core::mem::take(&mut self.freed);
        frames.free_chain(machine, held, freed);
    }

    #[inline]
    fn has_pages(&self) -> bool {
        self.freed.len != 0 || !self.queued.is_empty()
    }

    /// Takes pages off their queues, under one hold of the lock.
    fn unqueue<M: Machine, P: Before<PageQueues>>(
        &mut self,
        frames: &Frames<M>,
        held: &mut Held<'_, P>,
    ) {
        if self.queued.is_empty() {
            return;
        }
        frames.dequeue_all(held, &self.queued);
        while let Some(page) = self.queued.pop() {
            self.gather(frames, page);
        }
    }

    /// Adds a page that is free once this is performed (I1).
    #[inline]
    pub(crate) fn gather<M: Machine>(&mut self, frames: &Frames<M>, page: PageNo) {
        frames.page(page).next.store(self.freed.head.map_or(NIL, |page| page.0), Relaxed);
        self.freed.head = Some(page);
        self.freed.len += 1;
    }

    /// Takes a page out of all tables, under its owner's lock. Wirings of mappings are given back.
    #[doc(hidden)]
    pub fn unmap<M: Machine, P>(
        &mut self,
        frames: &Frames<M>,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) -> Unmapped
    where
        P: Before<PageQueues> + Before<PageCache>,
    {
        for _ in 0..machine.pmap().page_protect(held, page, Prot::NONE, self) {
            frames.unwire(machine, held, page);
        }
        Unmapped(page)
    }
}

impl Deref for Gather {
    type Target = Shootdown;
    #[inline]
    fn deref(&self) -> &Shootdown {
        &self.down
    }
}

impl DerefMut for Gather {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shootdown {
        &mut self.down
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        debug_assert!(!self.has_pages(), "a Gather was dropped that was not performed");
    }
}

/// A page without mappings: see the module. Neither copied nor kept: the owner's lock, or the
/// map's, under which it was made, is held.
#[doc(hidden)]
#[must_use]
pub struct Unmapped(PageNo);

impl Unmapped {
    /// A page each of whose mappings lay in a range that its map's owner has removed; the CPUs were
    /// flushed under that map's lock, or are flushed by the `Gather` that the page goes into. It is
    /// an anon's without references, or was never mapped.
    #[inline]
    pub const fn by_ranges(page: PageNo) -> Unmapped {
        Unmapped(page)
    }

    /// Which page.
    #[inline]
    #[must_use]
    pub const fn page(&self) -> PageNo {
        self.0
    }
}

impl<M: Machine> Frames<M> {
    /// Takes a page from its owner and hands it to `down`, which takes it off its queue, with
    /// others, and frees it once no CPU can hold a translation of it. The caller holds the owner's
    /// lock.
    #[doc(hidden)]
    #[inline]
    pub fn release<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        page: Unmapped,
        down: &mut Gather,
    ) {
        let page = page.page();
        self.announce(1);
        if self.leaves_batch(page) {
            return down.gather(self, page);
        }
        // A thread that finds it on its queue finds that it is ownerless.
        self.page(page).owner.store(pack(Owner::Kernel), Relaxed);
        if down.queued.is_full() {
            down.unqueue(self, held);
        }
        down.queued.push(page);
    }

    /// Takes an idle page from its owner, whose lock is held and which has removed the page's
    /// mappings; [`release_all`] is to follow. Says no, with nothing changed, if I/O has the page,
    /// or the page is held.
    ///
    /// [`release_all`]: Self::release_all
    #[doc(hidden)]
    #[inline]
    pub fn leaves_owner(&self, page: PageNo) -> bool {
        let record = self.page(page);
        let is_idle = record.flags.load(Relaxed) & PageFlags::BUSY.bits() == 0
            && record.wire.load(Acquire) == 0;
        if is_idle {
            // A thread that finds it on its queue finds that it is ownerless.
            record.owner.store(pack(Owner::Kernel), Relaxed);
        }
        is_idle
    }

    /// Takes pages that [left their owners](Self::leaves_owner) off their queues, under one hold of
    /// the lock, and hands them to `down`, which frees them once no CPU can hold a translation of
    /// them. Those that are still in a CPU's batch need no lock. So many frames were
    /// [announced](Self::announce) as their owners let them go.
    #[doc(hidden)]
    pub fn release_all<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        pages: &[PageNo],
        announced: usize,
        down: &mut Gather,
    ) {
        self.per_cpu[M::Lock::cpu()].gathered.fetch_sub(announced - pages.len(), Relaxed);
        let mut is_queued = false;
        for &page in pages {
            match self.leaves_batch(page) {
                true => down.gather(self, page),
                false => is_queued = true,
            }
        }
        if !is_queued {
            return;
        }
        let (mut queues, _h) = self.global.queues.lock(held);
        for &page in pages {
            if self.unqueue(&mut queues, page) {
                down.gather(self, page);
            }
        }
        self.count(&queues);
    }
}
