//! The active and inactive queues, and the batches that feed them.
//!
//! A page that comes into use goes to its CPU's batch first and is linked with 31 others under one
//! hold of the queues' lock. A batch may name a page that has been freed since, or even reused: so
//! a batch entry counts only if it can move the page's place from `Pending` to `Active`
//! (compare-and-exchange, under the queues' lock), and a thread that takes a page off the queues
//! first tries to move it from `Pending` to `Nowhere`. If that fails the page has been linked, and
//! is unlinked under the lock. An entry whose page has been reused and is pending again, in another
//! batch, links it early; the other entry then finds nothing to do.
//!
//! The page daemon's scan hands out pages from a queue's front and puts them at its end under one
//! hold of the lock: what frees one of them takes it off the queue as always, those that are passed
//! by have moved on, and no page is ever on a scan's list alone. So a scan can be left at any
//! point, and two of them disturb each other's order and nothing else. What is handed out is a
//! number, not a hold: its page may be freed and used again at once. The daemon looks at its owner,
//! takes the owner's lock, and looks again.
//!
//! I1: a page is linked on the queue that its place names, and on no other list.

use arrayvec::ArrayVec;
use machine::atomic::AtomicUsize;
use machine::atomic::Ordering::Relaxed;
use machine::order::{Before, Held, PageQueues};
use machine::{Machine, PageNo};

use crate::buddy::{MAX_ORDER, NO_BLOCK};
use crate::record::WIRINGS;
use crate::{pack, Frames, List, Owner, Page, PageFlags, Place, NIL};

/// Pages that come on the active queue at once.
const BATCH: usize = 32;

/// Pages that one step of a scan hands out at most.
pub const SCAN: usize = 32;

/// A queue of pages in use.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// memory(uvm, held, space, 4)?;
/// uvm.frames().flush_pending(held);
/// assert!(uvm.frames().oldest(held, Queue::Active).is_some());
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Pages believed in use.
    Active,
    /// Pages next to be freed, oldest first, unless they are referenced before.
    Inactive,
}

impl Queue {
    fn place(self) -> Place {
        match self {
            Queue::Active => Place::Active,
            Queue::Inactive => Place::Inactive,
        }
    }
}

/// What a page on a queue holds, for the balance between kinds of memory.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.knobs().set_shares(Class::File, 20, 60)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Class {
    /// Anonymous memory, an object's too.
    Anon,
    /// A file's bytes.
    File,
    /// A file's bytes that programs run.
    Exec,
}

/// How many pages are on which queue, and on both by class; a moment's value.
#[derive(Default)]
pub(crate) struct Balance {
    queues: [AtomicUsize; 2],
    classes: [AtomicUsize; 3],
}

/// By [`Queue`], and how many pages are on both by [`Class`].
pub(crate) struct Queues {
    lists: [List; 2],
    classes: [usize; 3],
}

impl Queues {
    pub(crate) const fn new() -> Queues {
        Queues { lists: [List::EMPTY; 2], classes: [0; 3] }
    }
}

/// The class of a page with these flags.
#[inline]
fn class_of(flags: u16) -> Class {
    match flags & (PageFlags::FILE.bits() | PageFlags::EXEC.bits()) {
        0 => Class::Anon,
        class if class & PageFlags::EXEC.bits() != 0 => Class::Exec,
        _ => Class::File,
    }
}

/// What a CPU's batch has.
pub(crate) type Pending = ArrayVec<u32, BATCH>;

impl<M: Machine> Frames<M> {
    /// Puts a page that is on no queue on its way to the active queue; a page that is on one stays,
    /// and a wired one stays off. No lock shared by all CPUs but once in 32 calls.
    #[doc(hidden)]
    #[inline]
    pub fn activate<P: Before<PageQueues>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) {
        let record = self.page(page);
        if record.place.load(Relaxed) != Place::Nowhere as u8
            || record.wire.load(Relaxed) & WIRINGS != 0
        {
            return;
        }
        if !record.moves(Place::Nowhere, Place::Pending) {
            return;
        }
        let cpu = machine.cpu();
        loop {
            {
                let (mut batch, _h) = self.per_cpu[cpu].pending.lock(held);
                if batch.try_push(page.0).is_ok() {
                    return;
                }
            }
            self.link_pending(held, cpu);
        }
    }

    /// Links what a CPU's batch holds.
    #[cold]
    fn link_pending<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, cpu: usize) {
        let batch = core::mem::take(&mut *self.per_cpu[cpu].pending.lock(held).0);
        let (mut queues, _h) = self.global.queues.lock(held);
        let (pages, mut active) = (&self.pages[..], queues.lists[Queue::Active as usize]);
        for no in batch {
            let page = &pages[no as usize];
            if page.moves(Place::Pending, Place::Active) {
                active.push_back(pages, no);
                queues.classes[class_of(page.flags.load(Relaxed)) as usize] += 1;
            }
        }
        queues.lists[Queue::Active as usize] = active;
        self.count(&queues);
    }

    /// Links what all CPUs' batches hold.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.frames().flush_pending(held);
    /// assert_eq!(uvm.frames().active(), 4);
    /// # Ok(()) });
    /// ```
    pub fn flush_pending<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>) {
        for cpu in 0..self.per_cpu.len() {
            self.link_pending(held, cpu);
        }
    }

    /// Moves pages to the end of the inactive queue, as far as they are on the active one.
    #[doc(hidden)]
    pub fn deactivate<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, pages: &[PageNo]) {
        self.move_between(held, pages, Queue::Active, Queue::Inactive);
    }

    /// Moves a page from the inactive to the end of the active queue.
    #[doc(hidden)]
    pub fn reactivate<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        self.move_between(held, &[page], Queue::Inactive, Queue::Active);
    }

    fn move_between<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        pages: &[PageNo],
        from: Queue,
        to: Queue,
    ) {
        let (mut queues, _h) = self.global.queues.lock(held);
        for &page in pages {
            if self.page(page).moves(from.place(), to.place()) {
                queues.lists[from as usize].unlink(&self.pages, page.0);
                queues.lists[to as usize].push_back(&self.pages, page.0);
            }
        }
        self.count(&queues);
    }

    /// Takes a page out of the batch that it is in, if any, and says whether it is on no queue
    /// then.
    #[doc(hidden)]
    #[inline]
    pub fn leaves_batch(&self, page: PageNo) -> bool {
        match self.place(page) {
            Place::Nowhere => true,
            Place::Pending => self.page(page).moves(Place::Pending, Place::Nowhere),
            _ => false,
        }
    }

    /// Takes a page off its queue, whichever that is.
    #[doc(hidden)]
    #[inline]
    pub fn dequeue<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        if self.leaves_batch(page) {
            return;
        }
        self.dequeue_all(held, &[page]);
    }

    /// Takes pages that are in no batch off their queues, under one hold of the lock.
    #[doc(hidden)]
    #[inline(never)]
    pub fn dequeue_all<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, pages: &[PageNo]) {
        let (mut queues, _h) = self.global.queues.lock(held);
        pages.iter().for_each(|&page| _ = self.unqueue(&mut queues, page));
        self.count(&queues);
    }

    /// Takes a page off the queue that it is on, if any; says whether it was on one.
    #[inline]
    pub(crate) fn unqueue(&self, queues: &mut Queues, page: PageNo) -> bool {
        let record = self.page(page);
        let place = record.place.load(Relaxed);
        let Some(queue) =
            [Queue::Active, Queue::Inactive].into_iter().find(|q| q.place() as u8 == place)
        else {
            return false;
        };
        queues.lists[queue as usize].unlink(&self.pages, page.0);
        queues.classes[class_of(record.flags.load(Relaxed)) as usize] -= 1;
        record.place.store(Place::Nowhere as u8, Relaxed);
        true
    }

    /// The page at a queue's front, which has been there longest.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.frames().flush_pending(held);
    /// assert_eq!(uvm.frames().oldest(held, Queue::Inactive), None);
    /// # Ok(()) });
    /// ```
    pub fn oldest<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        queue: Queue,
    ) -> Option<PageNo> {
        let list = self.global.queues.lock(held).0.lists[queue as usize];
        (list.len != 0).then_some(PageNo(list.head))
    }

    /// The oldest pages of a queue, at most `most`, which become its youngest.
    #[doc(hidden)]
    pub fn rotate<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        queue: Queue,
        most: usize,
    ) -> ArrayVec<PageNo, SCAN> {
        let mut out = ArrayVec::new();
        let (mut queues, _h) = self.global.queues.lock(held);
        let list = &mut queues.lists[queue as usize];
        for _ in 0..most.min(SCAN).min(list.len) {
            let no = list.head;
            list.unlink(&self.pages, no);
            list.push_back(&self.pages, no);
            out.push(PageNo(no));
        }
        out
    }

    /// Pages on the active queue; batches are not counted.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.frames().flush_pending(held);
    /// assert_eq!((uvm.frames().active(), uvm.frames().inactive()), (4, 0));
    /// # Ok(()) });
    /// ```
    pub fn active(&self) -> usize {
        self.global.balance.queues[Queue::Active as usize].load(Relaxed)
    }

    /// Pages on the inactive queue.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.frames().inactive(), 0);
    /// # Ok(()) });
    /// ```
    pub fn inactive(&self) -> usize {
        self.global.balance.queues[Queue::Inactive as usize].load(Relaxed)
    }

    /// Pages on both queues of a class.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.frames().flush_pending(held);
    /// assert_eq!(uvm.frames().of_class(Class::Anon), 4);
    /// # Ok(()) });
    /// ```
    pub fn of_class(&self, class: Class) -> usize {
        self.global.balance.classes[class as usize].load(Relaxed)
    }

    /// What a page holds.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 1)?;
    /// uvm.frames().flush_pending(held);
    /// let page = uvm.frames().oldest(held, Queue::Active).ok_or("it is active")?;
    /// assert_eq!(uvm.frames().class(page), Class::Anon);
    /// # Ok(()) });
    /// ```
    pub fn class(&self, page: PageNo) -> Class {
        class_of(self.flags(page).bits())
    }

    /// Walks every list and compares it with the records: the frames' part of an audit.
    ///
    /// # Errors
    /// A sentence that names the first page that is not where it says.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.frames().audit(held)?;
    /// # Ok(()) });
    /// ```
    pub fn audit<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>) -> Result<(), &'static str> {
        // Free pages, those on each queue, and those of each class.
        let mut counted = [0usize; 6];
        {
            let (queues, mut h) = self.global.queues.lock(held);
            for queue in [Queue::Active, Queue::Inactive] {
                self.audit_list(&queues.lists[queue as usize], queue.place())?;
                counted[1 + queue as usize] = queues.lists[queue as usize].len;
            }
            counted[3..].copy_from_slice(&queues.classes);
            for cpu in &self.per_cpu {
                let (cache, _h) = cpu.cache.lock(&mut h);
                counted[0] += cache.len();
                if cache.iter().any(|&no| self.place(PageNo(no)) != Place::Cached) {
                    return Err("a cached page says it is elsewhere");
                }
            }
            let (_cache, mut h) = self.per_cpu[0].cache.lock(&mut h);
            let (free, _h) = self.global.free.lock(&mut h);
            let (mut listed, mut blocks) = (0, 0);
            free.each_list(|list, order| {
                self.audit_list(list, Place::Free)?;
                self.audit_blocks(list, order)?;
                (listed, blocks) = (listed + (list.len << order), blocks + list.len);
                Ok(())
            })?;
            let is_first = |page: &&Page| page.order.load(Relaxed) != NO_BLOCK;
            if self.pages.iter().filter(is_first).count() != blocks {
                return Err("a page says that a free block begins there, which is on no list");
            }
            if free.len != listed {
                return Err("the free lists have other lengths than their sum says");
            }
            counted[0] += listed;
        }
        if self.being_freed() != 0 {
            return Err("pages are counted that no operation gives back");
        }
        let mut found = [0usize; 6];
        for (no, page) in self.pages.iter().enumerate() {
            let free = page.owner.load(Relaxed) == pack(Owner::Free);
            let queue = match self.place(PageNo(no as u32)) {
                Place::Free | Place::Cached if free => {
                    found[0] += 1;
                    continue;
                }
                Place::Free | Place::Cached => return Err("a page on the free list has an owner"),
                _ if free => return Err("a page without an owner is not on the free list"),
                Place::Nowhere | Place::Pending | Place::Own => continue,
                Place::Active => Queue::Active,
                Place::Inactive => Queue::Inactive,
            };
            found[1 + queue as usize] += 1;
            found[3 + self.class(PageNo(no as u32)) as usize] += 1;
        }
        if found == counted && self.free() == counted[0] {
            Ok(())
        } else {
            Err("a list's length is not the number of pages that say they are on it")
        }
    }

    /// Whether all pages of a list's blocks are free, and no block could be merged with its buddy.
    fn audit_blocks(&self, list: &List, order: u32) -> Result<(), &'static str> {
        let mut at = (list.len != 0).then_some(PageNo(list.head));
        while let Some(PageNo(first)) = at {
            let order_of = |no: u32| u32::from(self.pages[no as usize].order.load(Relaxed));
            let is_free = |no| self.place(PageNo(no)) == Place::Free;
            if order_of(first) != order || !(first..first + (1 << order)).all(is_free) {
                return Err("a free block has another size than its list says");
            }
            let segment = self.segment_of(first);
            let is_aligned = segment.frame(first).is_multiple_of(1 << order);
            if !is_aligned || first - segment.first.0 + (1 << order) > segment.pages {
                return Err("a free block isn't aligned, or lies in two segments");
            }
            let buddy = self.segment_of(first).buddy(first, order);
            let cpu_of = |no: u32| self.pages[no as usize].index.load(Relaxed);
            let is_mate = |no| order_of(no) == order && cpu_of(no) == cpu_of(first);
            if order < MAX_ORDER && buddy.is_some_and(is_mate) {
                return Err("a free block and its buddy are a CPU's, and two");
            }
            at = self.pages[first as usize].next();
        }
        Ok(())
    }

    fn audit_list(&self, list: &List, place: Place) -> Result<(), &'static str> {
        let (mut no, mut prev, mut count) = (list.head, NIL, 0);
        while no != NIL {
            let page = &self.pages[no as usize];
            if self.place(PageNo(no)) != place
                || page.prev.load(Relaxed) != prev
                || count > list.len
            {
                return Err("a list's links are broken");
            }
            (prev, no, count) = (no, page.next.load(Relaxed), count + 1);
        }
        if count == list.len && prev == list.tail {
            Ok(())
        } else {
            Err("a list's length or tail is wrong")
        }
    }

    pub(crate) fn count(&self, queues: &Queues) {
        let balance = &self.global.balance;
        balance.queues.iter().zip(&queues.lists).for_each(|(n, list)| n.store(list.len, Relaxed));
        balance.classes.iter().zip(&queues.classes).for_each(|(n, &len)| n.store(len, Relaxed));
    }
}
