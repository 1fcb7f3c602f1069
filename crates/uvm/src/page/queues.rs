//! The active and inactive queues, and the batches that feed them.
//!
//! A page that comes into use goes to its CPU's batch first and is linked with 31 others under one
//! hold of the queues' lock. A batch may name a page that has been freed since, or even reused: so
//! a batch entry counts only if it can move the page's place from `Pending` to `Active`
//! (compare-and-exchange, under the queues' lock), and whoever takes a page off the queues first
//! tries to move it from `Pending` to `Nowhere`. If that fails the page has been linked, and is
//! unlinked under the lock. An entry whose page has been reused and is pending again, in another
//! batch, links it early; the other entry then finds nothing to do.
//!
//! I1: a page is linked on the queue that its place names, and on no other list.

use super::{link_back, Frames, List, PageFlags, Place, BATCH};
use machine::atomic::AtomicUsize;
use machine::atomic::Ordering::Relaxed;
use machine::order::{Before, Held, PageQueues};
use machine::{Machine, PageNo};

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

/// What a page on a queue holds, for the balance between kinds of memory.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.knobs().set_shares(Class::File, 20, 60)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Anonymous memory, an object's too.
    Anon,
    /// A file's bytes.
    File,
    /// A file's bytes that programs run.
    Exec,
}

/// How many pages are on which queue; a moment's value.
#[derive(Default)]
pub struct Balance {
    active: AtomicUsize,
    inactive: AtomicUsize,
    file: AtomicUsize,
    exec: AtomicUsize,
}

pub(super) struct Queues {
    pub(super) active: List,
    pub(super) inactive: List,
    /// Of both, pages with a file's bytes, and of programs that run.
    file: usize,
    exec: usize,
}

const FILE: u16 = PageFlags::FILE.bits();
const EXEC: u16 = PageFlags::EXEC.bits();

impl Queues {
    pub(super) const fn new() -> Queues {
        Queues { active: List::EMPTY, inactive: List::EMPTY, file: 0, exec: 0 }
    }

    /// Counts a page with these flags that was linked.
    #[inline]
    pub(super) fn linked(&mut self, flags: u16) {
        if flags & (FILE | EXEC) != 0 {
            *self.class_of(flags) += 1;
        }
    }

    /// Counts a page with these flags that was unlinked.
    #[inline]
    pub(super) fn unlinked(&mut self, flags: u16) {
        if flags & (FILE | EXEC) != 0 {
            *self.class_of(flags) -= 1;
        }
    }

    fn class_of(&mut self, flags: u16) -> &mut usize {
        if flags & EXEC != 0 {
            &mut self.exec
        } else {
            &mut self.file
        }
    }

    pub(super) fn list(&mut self, queue: Queue) -> &mut List {
        match queue {
            Queue::Active => &mut self.active,
            Queue::Inactive => &mut self.inactive,
        }
    }
}

pub(super) struct Pending {
    pages: [u32; BATCH],
    len: usize,
}

impl Pending {
    pub(super) const fn new() -> Pending {
        Pending { pages: [0; BATCH], len: 0 }
    }
}

impl<M: Machine> Frames<M> {
    /// Puts a page that is on no queue on its way to the active queue; a page that is on one stays,
    /// and a wired one stays off. No lock shared by all CPUs but once in 32 calls.
    #[inline]
    pub fn activate<P: Before<PageQueues>>(
        &self,
        machine: &M,
        held: &mut Held<'_, P>,
        page: PageNo,
    ) {
        let record = self.page(page);
        if record.place.load(Relaxed) != Place::Nowhere as u8
            || record.wire.load(Relaxed) & super::record::WIRINGS != 0
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
                let at = batch.len;
                if let Some(free) = batch.pages.get_mut(at) {
                    *free = page.0;
                    batch.len = at + 1;
                    return;
                }
            }
            self.link_pending(held, cpu);
        }
    }

    /// Links what a CPU's batch holds.
    #[cold]
    fn link_pending<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, cpu: usize) {
        let (batch, len) = {
            let (mut batch, _h) = self.per_cpu[cpu].pending.lock(held);
            (batch.pages, core::mem::take(&mut batch.len))
        };
        let (mut queues, _h) = self.global.queues.lock(held);
        let (pages, mut active) = (&self.pages[..], queues.active);
        for &no in &batch[..len] {
            if pages[no as usize].moves(Place::Pending, Place::Active) {
                link_back(pages, &mut active, no);
                queues.linked(pages[no as usize].flags.load(Relaxed));
            }
        }
        queues.active = active;
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

    /// Moves a page to the end of the inactive queue, if it is on the active one.
    pub fn deactivate<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        let (mut queues, _h) = self.global.queues.lock(held);
        if self.page(page).moves(Place::Active, Place::Inactive) {
            self.unlink(&mut queues.active, page.0);
            link_back(&self.pages, &mut queues.inactive, page.0);
            self.count(&queues);
        }
    }

    /// Moves a page from the inactive to the end of the active queue.
    pub fn reactivate<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        let (mut queues, _h) = self.global.queues.lock(held);
        if self.page(page).moves(Place::Inactive, Place::Active) {
            self.unlink(&mut queues.inactive, page.0);
            link_back(&self.pages, &mut queues.active, page.0);
            self.count(&queues);
        }
    }

    /// Takes a page out of the batch that it is in, if any, and says whether it is on no queue
    /// then.
    #[inline]
    pub fn leaves_batch(&self, page: PageNo) -> bool {
        match self.place(page) {
            Place::Nowhere => true,
            Place::Pending => self.page(page).moves(Place::Pending, Place::Nowhere),
            _ => false,
        }
    }

    /// Takes a page off its queue, whichever that is.
    #[inline]
    pub fn dequeue<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, page: PageNo) {
        if self.leaves_batch(page) {
            return;
        }
        self.dequeue_all(held, &[page]);
    }

    /// The same for pages that are in no batch, under one hold of the lock.
    #[inline(never)]
    pub fn dequeue_all<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, pages: &[PageNo]) {
        let (mut queues, _h) = self.global.queues.lock(held);
        for &page in pages {
            match self.place(page) {
                Place::Active => self.unlink(&mut queues.active, page.0),
                Place::Inactive => self.unlink(&mut queues.inactive, page.0),
                Place::Nowhere | Place::Free | Place::Cached | Place::Pending | Place::Own => {
                    continue
                }
            }
            self.set_place(page.0, Place::Nowhere);
            queues.unlinked(self.page(page).flags.load(Relaxed));
        }
        self.count(&queues);
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
        let (mut queues, _h) = self.global.queues.lock(held);
        let list = queues.list(queue);
        (list.len != 0).then_some(PageNo(list.head))
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
        self.global.balance.active.load(Relaxed)
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
        self.global.balance.inactive.load(Relaxed)
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
        let (file, exec) =
            (self.global.balance.file.load(Relaxed), self.global.balance.exec.load(Relaxed));
        match class {
            Class::File => file,
            Class::Exec => exec,
            Class::Anon => (self.active() + self.inactive()).saturating_sub(file + exec),
        }
    }

    /// What a page holds.
    pub fn class(&self, page: PageNo) -> Class {
        let flags = self.flags(page);
        if flags.contains(PageFlags::EXEC) {
            Class::Exec
        } else if flags.contains(PageFlags::FILE) {
            Class::File
        } else {
            Class::Anon
        }
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
        let mut seen = [0usize; 5];
        {
            let (queues, mut h) = self.global.queues.lock(held);
            self.audit_list(&queues.active, Place::Active)?;
            self.audit_list(&queues.inactive, Place::Inactive)?;
            let mut cached = 0;
            for cpu in &self.per_cpu {
                let (cache, _h) = cpu.cache.lock(&mut h);
                cached += cache.len();
                if cache.numbers().iter().any(|&no| self.place(PageNo(no)) != Place::Cached) {
                    return Err("a cached page says it is elsewhere");
                }
            }
            let (_cache, mut h) = self.per_cpu[0].cache.lock(&mut h);
            let (free, _h) = self.global.free.lock(&mut h);
            free.lists.iter().try_for_each(|list| self.audit_list(list, Place::Free))?;
            let listed: usize = free.lists.iter().map(|list| list.len).sum();
            if free.len != listed {
                return Err("the free lists have other lengths than their sum says");
            }
            seen[0] = listed + cached;
            seen[1] = queues.active.len;
            seen[2] = queues.inactive.len;
            (seen[3], seen[4]) = (queues.file, queues.exec);
        }
        if self.being_freed() != 0 {
            return Err("pages are counted that no operation gives back");
        }
        let mut said = [0usize; 5];
        for (no, page) in self.pages.iter().enumerate() {
            let free = page.owner.load(Relaxed) == super::pack(super::Owner::Free);
            match self.place(PageNo(no as u32)) {
                Place::Free | Place::Cached if free => said[0] += 1,
                Place::Free | Place::Cached => return Err("a page on the free list has an owner"),
                _ if free => return Err("a page without an owner is not on the free list"),
                Place::Active => said[1] += 1,
                Place::Inactive => said[2] += 1,
                Place::Nowhere | Place::Pending | Place::Own => {}
            }
            if matches!(self.place(PageNo(no as u32)), Place::Active | Place::Inactive) {
                match self.class(PageNo(no as u32)) {
                    Class::Anon => {}
                    Class::File => said[3] += 1,
                    Class::Exec => said[4] += 1,
                }
            }
        }
        if said == seen && self.free() == seen[0] {
            Ok(())
        } else {
            Err("a list's length is not the number of pages that say they are on it")
        }
    }

    fn audit_list(&self, list: &List, place: Place) -> Result<(), &'static str> {
        let (mut no, mut prev, mut count) = (list.head, super::NIL, 0);
        while no != super::NIL {
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

    pub(super) fn count(&self, queues: &Queues) {
        self.global.balance.active.store(queues.active.len, Relaxed);
        self.global.balance.inactive.store(queues.inactive.len, Relaxed);
        self.global.balance.file.store(queues.file, Relaxed);
        self.global.balance.exec.store(queues.exec, Relaxed);
    }
}
