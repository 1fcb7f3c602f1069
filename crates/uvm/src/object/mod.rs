//! Memory objects: the head that is embedded in whatever owns the data.
//!
//! An object is no thing of its own (1999, section 4): it sits inside a vnode's pager, a shared
//! segment, a device, and gives the VM system a lock and the table of resident pages. Everything
//! else is the pager's business.
//!
//! I1: a page in `pages` at index `i` has owner `Object(id)` and index `i`. I2: no page lies at or
//! past `len`. I3: `refs` counts map entries and the handles that the host keeps; a pager may free
//! its pages when it drops to none, which it does under the lock. It is counted without it: a fork
//! counts itself in each file that its parent maps, and a thread that locks an object to change it
//! keeps all others from reading it side by side. I4: an index without a page may have a place on
//! swap; one with a page keeps that place in the page's record, until the page is written elsewhere
//! or removed. So where a page goes when it leaves is written where it was found, and paging out
//! needs no memory for it.
//!
//! I5: a leaf of `pages` is marked if one of its pages is dirty, or a file's page in it may be
//! written through a mapping: those are marked when the translation is entered, and stay so until a
//! write-back finds all of the leaf clean and mapped nowhere. So a write-back looks at what may be
//! dirty, whatever else is in memory.
//!
//! Locks: `ObjectBody` by the object's; it guards its pages' identity, `flags` and `wire` too.

pub(crate) mod ahead;
mod body;
pub(crate) mod copiers;
pub(crate) mod find;
mod pager;
pub(crate) mod table;
mod writers;

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use machine::lines::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use machine::shared;
use machine::{order, Before, Channel, Held, Machine, NoMemory, PageNo, Pages, Shared, Ticket};

use crate::io::{CLUSTER, FOR_COPIES};
use crate::memory::Memory;
use crate::page::{Owner, PageFlags, Quota, Reserve};
use crate::refs::Refs;
use crate::Uvm;
pub(crate) use body::{resident, Stored};
pub use body::{ObjectBody, Removed};
pub use pager::{Access, Advice, GetError, IoError, Launder, Pager, Put};

/// The head of a memory object, embedded in its pager.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 4)?;
/// let object = file.object();
/// assert_eq!((object.len(held), object.resident(held)), (Pages(4), 0));
/// # Ok(()) });
/// ```
pub struct Object<M: Machine> {
    id: u64,
    /// Whether its pager is registered.
    pub(crate) known: AtomicBool,
    pub(crate) refs: Refs,
    /// See `writers`.
    writers: AtomicUsize,
    pub(crate) body: Shared<order::Object, M::Lock, ObjectBody>,
}

/// A reference to a run of an object's pages.
pub(crate) struct ORef<M: Machine> {
    pub(crate) pager: Arc<dyn Pager<M>>,
    /// The object's page at the entry's first address.
    pub(crate) offset: Pages,
}

impl<M: Machine> ORef<M> {
    /// The pages from so many behind the first on.
    pub(crate) fn behind(&self, skip: Pages) -> Self {
        ORef { pager: self.pager.clone(), offset: self.offset + skip }
    }
}

impl<M: Machine> Clone for ORef<M> {
    /// Another reference to the pages, which the object doesn't count.
    fn clone(&self) -> Self {
        ORef { pager: self.pager.clone(), offset: self.offset }
    }
}

/// Access to an object under its lock.
pub type ObjectGuard<'a, M> = order::Guard<'a, <M as Machine>::Lock, ObjectBody>;

impl<M: Machine> Object<M> {
    /// An object of `len` pages, none resident, with one reference: the caller's.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = Object::new(uvm, Pages(4));
    /// assert_eq!((object.len(held), object.resident(held)), (Pages(4), 0));
    /// # Ok(()) });
    /// ```
    pub fn new(uvm: &Uvm<M>, len: Pages) -> Self {
        Object::with(uvm, len, PageFlags::empty(), None)
    }

    /// As [`new`](Self::new), with a class of pages, and a quota.
    pub(crate) fn with(
        uvm: &Uvm<M>,
        len: Pages,
        class: PageFlags,
        quota: Option<Arc<Quota>>,
    ) -> Self {
        Object {
            id: uvm.next_object.fetch_add(1, Relaxed),
            known: AtomicBool::new(false),
            refs: Refs::new(),
            writers: AtomicUsize::new(0),
            body: Shared::new(ObjectBody::new(len, class, quota)),
        }
    }

    /// Its number, which no other object ever has, as `/proc` shows it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let (one, two) = (file(uvm, held, "a", 1)?, file(uvm, held, "b", 1)?);
    /// assert_ne!(one.object().id(), two.object().id());
    /// # Ok(()) });
    /// ```
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name in page records, which have room for no more: of its number the lower half. See
    /// [`Uvm::register`] for two of one name.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(uvm.pager(held, file.object().name()).is_some());
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> u32 {
        self.id as u32
    }

    /// References: map entries and the host's handles; a moment's value.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Shared);
    /// uvm.map(held, space, &request)?;
    /// assert_eq!(file.object().references(), 2, "the mapping's and ours");
    /// # Ok(()) });
    /// ```
    pub fn references(&self) -> usize {
        self.refs.count()
    }

    /// Counts one more handle, beside one that the caller has.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// file.object().attach();
    /// assert_eq!(file.object().references(), 2);
    /// uvm.detach(held, &*file);
    /// # Ok(()) });
    /// ```
    pub fn attach(&self) {
        self.refs.attach();
    }

    /// Counts one more handle, if the object has a reference still; says whether. An object without
    /// any has given its pages up.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(file.object().attach_if_used());
    /// uvm.detach(held, &*file);
    /// uvm.detach(held, &*file);
    /// assert!(!file.object().attach_if_used(), "it has given its pages up");
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn attach_if_used(&self) -> bool {
        self.refs.attach_if_used()
    }

    /// Whether mappings may hold private copies of its pages, for [`Uvm::forget_copies`].
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(!file.object().may_have_copies(held));
    /// # Ok(()) });
    /// ```
    pub fn may_have_copies<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) -> bool {
        self.refs.count() > 1 && self.lock(held).0.copiers.are_any()
    }

    /// Takes the object's lock.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// let (body, _held) = file.object().lock(held);
    /// assert_eq!(body.page(Pages(0)), None, "it was never read");
    /// # Ok(()) });
    /// ```
    pub fn lock<'a, P: Before<order::Object>>(
        &'a self,
        held: &'a mut Held<'_, P>,
    ) -> (ObjectGuard<'a, M>, Held<'a, order::Object>) {
        self.body.lock(held)
    }

    /// Takes the object's lock to read, among others where it has been quiet.
    #[inline]
    pub(crate) fn read<'a, P: Before<order::Object>>(
        &'a self,
        held: &'a mut Held<'_, P>,
    ) -> (shared::Access<'a, M::Lock, ObjectBody>, Held<'a, order::Object>) {
        self.body.read(held)
    }

    /// Pages that are resident.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
    /// uvm.read_ahead(held, &file, 0..2);
    /// assert_eq!(file.object().resident(held), 2);
    /// # Ok(()) });
    /// ```
    pub fn resident<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) -> usize {
        let (body, _) = self.body.lock(held);
        body.stored - body.swapped
    }

    /// Pages that the object holds, in memory or on swap.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(4))? as Arc<dyn Pager<SoftMachine>>;
    /// let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
    /// store(uvm, space, uvm.map(held, space, &request)?, b"x")?;
    /// assert_eq!(object.object().stored(held), 1);
    /// # Ok(()) });
    /// ```
    pub fn stored<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) -> usize {
        self.body.lock(held).0.stored
    }

    /// Whether nothing refers to the object but the host's one handle, and none of its pages is
    /// left: a vnode may be recycled then, and one with pages is worth keeping, as memory alone
    /// bounds the cache of files.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(file.object().is_idle(held), "one handle, and no page");
    /// # Ok(()) });
    /// ```
    pub fn is_idle<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) -> bool {
        self.refs.count() <= 1 && self.stored(held) == 0
    }

    /// The object's length.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// assert_eq!(file.object().len(held), Pages(4));
    /// # Ok(()) });
    /// ```
    pub fn len<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) -> Pages {
        self.body.lock(held).0.len
    }

    /// Makes `page`, which is filled, the object's page at `index`, under the object's lock, and
    /// puts it on its way to the active queue. The heap must have been reserved: `Uvm` does so
    /// before it calls a pager.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = Object::new(uvm, Pages(4));
    /// let page = uvm.frames().alloc(uvm.machine(), held, Reserve::User)?;
    /// # {
    /// let (mut body, mut h) = object.lock(held);
    /// object.insert(uvm, &mut body, &mut h, Pages(1), page);
    /// assert_eq!(body.page(Pages(1)), Some(page));
    /// # }
    /// # let mut down = Gather::new();
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # assert_eq!(body.remove_some(uvm, &mut h, &mut down), Removed::All);
    /// # }
    /// # down.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    pub fn insert(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        page: PageNo,
    ) {
        self.enter(uvm.mem(), body, index, page);
        body.mark(index);
        uvm.frames().activate(uvm.machine(), held, page);
    }

    /// Makes `page` the object's page at `index` and busy: its read is to be started. It comes on a
    /// queue when the read ends.
    pub(crate) fn insert_reading(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        index: Pages,
        page: PageNo,
    ) {
        uvm.mem().prepare_read(page);
        self.enter(uvm.mem(), body, index, page);
        uvm.frames().set_flags(page, PageFlags::CLEAN);
    }

    /// Makes a missing page busy, to be read, and those next to it in `range` that `goes` along
    /// says yes to, as many as there is memory for. Returns the first one's index and all of them.
    ///
    /// # Errors
    /// [`NoMemory`] if there is none for the one.
    pub(crate) fn begin_read(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        (wanted, range): (Pages, core::ops::Range<u64>),
        mut goes: impl FnMut(&ObjectBody, &mut Held<'_, order::Object>, Pages) -> bool,
    ) -> Result<(u64, ArrayVec<PageNo, CLUSTER>), NoMemory> {
        let (machine, frames, wanted) = (uvm.mem(), uvm.frames(), wanted.0);
        let mut goes = |&n: &u64| goes(body, held, Pages(n));
        let first = (range.start..wanted).rev().take_while(&mut goes).last().unwrap_or(wanted);
        let last = (wanted + 1..range.end).take_while(goes).last().unwrap_or(wanted);
        let mut pages = ArrayVec::new();
        pages.push(frames.alloc(machine, held, Reserve::User)?);
        while (pages.len() as u64) <= last - first && frames.for_users() > FOR_COPIES {
            let Ok(page) = frames.alloc(machine, held, Reserve::User) else { break };
            pages.push(page);
        }
        let first = first.max(wanted.min(last + 1 - pages.len() as u64));
        uvm.read_prepared(pages.len());
        for (&page, index) in pages.iter().zip(first..) {
            self.insert_reading(uvm, body, Pages(index), page);
        }
        Ok((first, pages))
    }

    fn enter(&self, machine: &Memory<M>, body: &mut ObjectBody, index: Pages, page: PageNo) {
        debug_assert!(index < body.len, "a page past its object's end");
        let old = body.set(index, Stored::Page(page));
        machine.frames().set_owner(page, Owner::Object(self.name()), index.0);
        match old {
            None => {}
            Some(Stored::Page(_)) => debug_assert!(false, "two pages at one index of an object"),
            Some(Stored::Slot(slot)) => {
                body.swapped -= 1;
                machine.frames().set_slot(page, Some(slot));
            }
        }
        machine.frames().set_flags(page, body.class);
    }

    /// Takes note that programs run what the object holds: its pages are a class of their own for
    /// the page daemon, if they are a file's.
    pub(crate) fn runs<P: Before<order::Object>>(&self, held: &mut Held<'_, P>) {
        let (mut body, _) = self.body.lock(held);
        if body.class == PageFlags::FILE {
            body.class = PageFlags::EXEC;
            body.ahead.runs();
        }
    }
}

/// A ticket to wait with, if I/O has the page; under the owner's lock.
#[inline]
pub(crate) fn busy_check<M: Machine>(machine: &Memory<M>, page: PageNo) -> Result<(), Ticket> {
    if machine.frames().flags(page).contains(PageFlags::BUSY) {
        machine.frames().set_flags(page, PageFlags::WANTED);
        Err(machine.ticket(Channel::from(page)))
    } else {
        Ok(())
    }
}

/// Ends a page's busy state under the owner's lock, and wakes threads that wait for it.
pub(crate) fn unbusy<M: Machine>(machine: &Memory<M>, page: PageNo) {
    let all = PageFlags::BUSY | PageFlags::WANTED | PageFlags::PAGEOUT;
    let old = machine.frames().clear_flags(page, all);
    if old.contains(PageFlags::WANTED) {
        machine.wake(Channel::from(page));
    }
}
