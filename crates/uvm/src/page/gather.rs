//! What an operation lowered and the pages that it frees: told to the CPUs once, then freed.
//!
//! An operation makes one [`Gather`], passes the [`Shootdown`] in it to every pmap call that
//! removes or lowers, puts the pages that it frees into it, and performs it at the end.
//!
//! I1: a page gathered here has no owner and no mapping in any table. It is on no queue, and its
//! `next` link belongs to the gather; or it waits for others to leave its queue together with them.
//! I2: a `Gather` that holds anything is performed, not dropped.
//!
//! Source: Linux's `mmu_gather` has the same task.

use core::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;
use machine::order::{Before, Held, PageCache, PageQueues};
use machine::{Machine, PageNo, Shootdown};

use super::Frames;

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
///     body.remove_range(uvm, &mut held, 0..2, &mut gather).map_err(|_| "a page is busy")?;
/// }
/// gather.perform(uvm.frames(), uvm.machine(), held);
/// assert_eq!(file.object().resident(held), 2);
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
    pub(super) len: usize,
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

    /// Adds a page that is still on its queue.
    #[inline]
    pub(super) fn gather_queued<M: Machine, P: Before<PageQueues>>(
        &mut self,
        frames: &Frames<M>,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) {
        if self.queued.is_full() {
            self.unqueue(frames, held);
        }
        self.queued.push(page);
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
    pub(super) fn gather<M: Machine>(&mut self, frames: &Frames<M>, page: PageNo) {
        frames.link_next(page, self.freed.head);
        self.freed.head = Some(page);
        self.freed.len += 1;
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
