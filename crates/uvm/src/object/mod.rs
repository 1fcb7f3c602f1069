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
pub(crate) mod copiers;
pub(crate) mod find;
mod pager;
mod quota;
pub(crate) mod table;
mod writers;

use alloc::sync::Arc;
use core::num::NonZeroU32;

use arrayvec::ArrayVec;
use machine::lines::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use machine::shared;
use machine::{
    order, Before, Channel, Held, Machine, NoMemory, PageNo, Pages, Pmap, Shared, Ticket,
};

use crate::amap::slots::{Slots, ALONE_BYTES};
use crate::anon::{drop_page, leave};
use crate::io::{CLUSTER, FOR_COPIES};
use crate::page::Memory;
use crate::page::{Frames, Gather, Owner, PageFlags, Reserve, Slot, Unmapped};
use crate::refs::Refs;
use crate::Uvm;
use ahead::{Plan, ReadAhead};
use copiers::Copiers;
pub use pager::{Access, Advice, GetError, IoError, Launder, Pager, Put};
pub use quota::Quota;

/// What an object's lock guards.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
/// uvm.read_ahead(held, &file, 0..2);
/// let (body, _held) = file.object().lock(held);
/// assert_eq!((body.length(), body.pages(0..4).count()), (Pages(4), 2));
/// # Ok(()) });
/// ```
pub struct ObjectBody {
    /// By index: the page, or its place on swap ([`Stored`]).
    pages: Slots,
    /// How many there are, and how many of them are on swap.
    stored: usize,
    swapped: usize,
    pub(crate) len: Pages,
    /// Pages that could not be written back, ever.
    pub(crate) write_errors: u64,
    /// Pages that could not be written back together with others, ever.
    pub(crate) parted_writes: u64,
    /// Pages that were found changed through mappings when they were written back, ever.
    pub(crate) stored_to: u64,
    /// How often a range was emptied, ever.
    pub(crate) cuts: u64,
    pub(crate) ahead: ReadAhead,
    pub(crate) copiers: Copiers,
    /// What its pages are for the page daemon's balance: `FILE`, `EXEC` or neither.
    pub(crate) class: PageFlags,
    /// What counts its pages, with those of others.
    quota: Option<Arc<Quota>>,
}

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
            body: Shared::new(ObjectBody {
                pages: Slots::new(),
                stored: 0,
                swapped: 0,
                len,
                write_errors: 0,
                parted_writes: 0,
                stored_to: 0,
                cuts: 0,
                ahead: ReadAhead::new(),
                copiers: Copiers::default(),
                class,
                quota,
            }),
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

impl ObjectBody {
    /// Puts something at an index, and says what was there.
    fn set(&mut self, index: Pages, what: Stored) -> Option<Stored> {
        let old = self.pages.set(index.0, what.number());
        if old.is_none() {
            self.stored += 1;
            if let Some(quota) = self.quota.as_ref().filter(|_| self.pages.is_leafs_only(index.0)) {
                quota.grew(ALONE_BYTES);
            }
        }
        old.map(Stored::of)
    }

    /// Takes out what is at an index.
    fn clear(&mut self, index: Pages) -> Option<Stored> {
        let frees_leaf = self.quota.is_some() && self.pages.is_leafs_only(index.0);
        let old = self.pages.clear(index.0);
        if old.is_some() {
            if let Some(quota) = self.quota.as_ref().filter(|_| frees_leaf) {
                quota.shrank(ALONE_BYTES);
            }
            self.stored -= 1;
            self.give_quota_back(1);
        }
        old.map(Stored::of)
    }

    /// Counts pages that are about to be put at empty indices.
    ///
    /// # Errors
    /// [`GetError::NoSpace`]: there may not be that many.
    pub(crate) fn take_quota(&self, pages: usize) -> Result<(), GetError> {
        self.quota.as_ref().map_or(Ok(()), |quota| quota.take(pages))
    }

    /// Takes it back.
    pub(crate) fn give_quota_back(&self, pages: usize) {
        self.quota.iter().for_each(|quota| quota.give_back(pages));
    }

    /// How many pages it holds, and how many of them on swap: for an audit.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.stored, self.swapped)
    }

    /// The resident page at an index.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
    /// uvm.read_ahead(held, &file, 1..2);
    /// let (body, _held) = file.object().lock(held);
    /// assert!(body.page(Pages(0)).is_none() && body.page(Pages(1)).is_some());
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn page(&self, index: Pages) -> Option<PageNo> {
        self.pages.get(index.0).and_then(|number| Stored::of(number).page())
    }

    /// Where the page at an index lies on swap, if it is not resident; [`Slot::LOST`] if it can't
    /// be read.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// # let object = Object::new(uvm, Pages(4));
    /// # let page = uvm.frames().alloc(uvm.machine(), held, Reserve::User)?;
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # object.insert(uvm, &mut body, &mut h, Pages(1), page);
    /// assert_eq!(body.slot(Pages(1)), None, "it is in memory");
    /// # }
    /// # let mut down = Gather::new();
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # assert_eq!(body.remove_some(uvm, &mut h, &mut down), Removed::All);
    /// # }
    /// # down.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    pub fn slot(&self, index: Pages) -> Option<Slot> {
        match Stored::of(self.pages.get(index.0)?) {
            Stored::Slot(slot) => Some(slot),
            Stored::Page(_) => None,
        }
    }

    /// The first index at or behind one that holds something, in memory or on swap.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// # let object = Object::new(uvm, Pages(4));
    /// # let page = uvm.frames().alloc(uvm.machine(), held, Reserve::User)?;
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # object.insert(uvm, &mut body, &mut h, Pages(1), page);
    /// assert_eq!(body.next_stored(Pages(0)), Some(Pages(1)));
    /// # }
    /// # let mut down = Gather::new();
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # assert_eq!(body.remove_some(uvm, &mut h, &mut down), Removed::All);
    /// # }
    /// # down.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    pub fn next_stored(&self, from: Pages) -> Option<Pages> {
        self.pages.range(from.0..u64::MAX >> 1).next().map(|(index, _)| Pages(index))
    }

    /// The end of a range's first leaves that have as many pages as are `left`, which becomes what
    /// is left then.
    pub(crate) fn few(&self, range: core::ops::Range<u64>, left: &mut usize) -> u64 {
        self.pages.few(range, left)
    }

    /// What lies in a range of indices, in order.
    pub(crate) fn contents(
        &self,
        range: core::ops::Range<u64>,
    ) -> impl Iterator<Item = (Pages, Stored)> + '_ {
        self.pages.range(range).map(|(i, number)| (Pages(i), Stored::of(number)))
    }

    /// Resident pages in a range of indices, in order.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)? as Arc<dyn Pager<SoftMachine>>;
    /// uvm.read_ahead(held, &file, 1..3);
    /// let (body, _held) = file.object().lock(held);
    /// let indices: Vec<u64> = body.pages(0..4).map(|(index, _)| index.0).collect();
    /// assert_eq!(indices, [1, 2]);
    /// # Ok(()) });
    /// ```
    pub fn pages(
        &self,
        range: core::ops::Range<u64>,
    ) -> impl Iterator<Item = (Pages, PageNo)> + '_ {
        self.pages.range(range).filter_map(resident_at)
    }

    /// The page at an index becomes dirty, or may, through a translation that is about to be
    /// entered.
    #[inline]
    pub(crate) fn mark(&self, index: Pages) {
        self.pages.mark(index.0);
    }

    /// Whether a write-back looks at an index.
    pub(crate) fn is_marked(&self, index: Pages) -> bool {
        self.pages.is_marked(index.0)
    }

    /// Resident pages in a range of indices among which all are that are dirty or being written, in
    /// order.
    pub(crate) fn marked(
        &self,
        range: core::ops::Range<u64>,
    ) -> impl Iterator<Item = (Pages, PageNo)> + '_ {
        self.pages.marked(range).filter_map(resident_at)
    }

    /// Takes the marks of leaves away that lie in a range and of which each resident page is
    /// `is_clean`.
    pub(crate) fn unmark(
        &mut self,
        range: core::ops::Range<u64>,
        is_clean: impl Fn(PageNo) -> bool,
    ) {
        self.pages.unmark_if(range, |number| Stored::of(number).page().is_none_or(&is_clean));
    }

    /// Pages the object is long.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// let (body, _held) = file.object().lock(held);
    /// assert_eq!(body.length(), Pages(4));
    /// # Ok(()) });
    /// ```
    pub fn length(&self) -> Pages {
        self.len
    }

    /// What to read for a page that is missing.
    pub(crate) fn plan<M: Machine>(
        &mut self,
        machine: &Memory<M>,
        index: Pages,
        access: Access,
    ) -> Plan {
        let pages = &self.pages;
        let touched = |page| {
            let host = machine.frames().flags(page).contains(PageFlags::TOUCHED);
            host || machine.pmap().is_referenced(page)
        };
        self.ahead.miss(index.0, access, self.len.0, |read, wanted| {
            let mut there = pages.range(read).filter_map(resident_at);
            there.any(|(index, page)| index.0 != wanted && touched(page))
        })
    }

    /// The numbers at `start` and behind, 0 where nothing is resident; at most 64.
    #[inline]
    pub(crate) fn window(&self, start: u64, out: &mut [u32]) -> bool {
        self.pages.window(start, out)
    }

    /// Takes a page out of the object and frees it by `down`, with its place on swap. A page that
    /// is wired for I/O stays allocated, without an owner, and is freed with its last wiring.
    pub(crate) fn remove<M: Machine>(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Object>,
        page: Unmapped,
        down: &mut Gather,
    ) {
        let frames = uvm.frames();
        let old = self.clear(Pages(frames.index(page.page())));
        debug_assert_eq!(old, Some(Stored::Page(page.page())), "an object gives up another's page");
        if let Some(slot) = frames.slot(page.page()) {
            uvm.swap().free(uvm.mem(), held, slot);
        }
        drop_page(uvm.mem(), held, page, down);
    }

    /// Gives up what lies on swap at `index`, if anything does.
    pub(crate) fn remove_slot<M: Machine>(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Object>,
        index: Pages,
    ) {
        if let Some(slot) = self.slot(index) {
            self.clear(index);
            self.swapped -= 1;
            uvm.swap().free(uvm.mem(), held, slot);
        }
    }

    /// Takes a page that no translation shows from the object and leaves in its stead its place on
    /// swap; nothing, if its pager is to read it again. The page is the caller's.
    pub(crate) fn evict<M: Machine>(
        &mut self,
        frames: &Frames<M>,
        page: PageNo,
        place: Option<Slot>,
    ) {
        let index = Pages(frames.index(page));
        match place {
            Some(slot) => {
                self.set(index, Stored::Slot(slot));
                self.swapped += 1;
            }
            None => {
                self.clear(index);
            }
        }
        frames.set_owner(page, Owner::Kernel, 0);
    }

    /// Puts another page, which is filled and dirty, where `old` is; that one is the caller's,
    /// without an owner.
    pub(crate) fn exchange<M: Machine>(&mut self, frames: &Frames<M>, old: PageNo, new: PageNo) {
        let index = frames.index(old);
        self.set(Pages(index), Stored::Page(new));
        self.mark(Pages(index));
        frames.set_owner(new, frames.owner(old), index);
        frames.set_slot(new, frames.slot(old));
        frames.set_flags(new, self.class);
        frames.clear_flags(old, PageFlags::all());
    }

    /// Removes some of all there is, for [`last_reference`](crate::Pager::last_reference): a page
    /// that I/O has is left to it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// # let object = Object::new(uvm, Pages(4));
    /// # let page = uvm.frames().alloc(uvm.machine(), held, Reserve::User)?;
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// # object.insert(uvm, &mut body, &mut h, Pages(1), page);
    /// # }
    /// let mut down = Gather::new();
    /// # {
    /// # let (mut body, mut h) = object.lock(held);
    /// assert_eq!(body.remove_some(uvm, &mut h, &mut down), Removed::All);
    /// # }
    /// down.perform(uvm.frames(), uvm.machine(), held);
    /// # Ok(()) });
    /// ```
    pub fn remove_some<M: Machine>(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Object>,
        down: &mut Gather,
    ) -> Removed {
        let frames = uvm.frames();
        let mut rest = 0..u64::MAX >> 1;
        while self.remove_first(uvm, held, &mut rest, down).is_err() {
            let busy = |&(_, page): &(Pages, PageNo)| frames.flags(page).contains(PageFlags::BUSY);
            let Some((index, page)) = self.pages(rest.clone()).find(busy) else { continue };
            let unmapped = down.unmap(uvm.frames(), uvm.mem(), held, page);
            frames.dequeue(held, page);
            self.clear(index);
            frames.wire(page);
            // Its place on swap is the I/O's, and freed with it.
            frames.set_orphan(page, frames.slot(page));
            leave(uvm.mem(), held, unmapped, down);
        }
        if rest.is_empty() {
            Removed::All
        } else {
            Removed::Some
        }
    }

    /// Removes the first pages of a range, as many as may be removed under one lock, and all their
    /// mappings; the pages are free once `down` is performed. The range becomes what is left.
    ///
    /// # Errors
    /// A ticket of a page that is busy: those before it are gone, it and those behind are as they
    /// were.
    pub(crate) fn remove_first<M: Machine>(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Object>,
        rest: &mut core::ops::Range<u64>,
        down: &mut Gather,
    ) -> Result<(), Ticket> {
        const PAGES: usize = 64;
        let machine = uvm.mem();
        self.cuts += 1;
        let mut left = PAGES;
        while left != 0 {
            let Some((index, stored)) = self.contents(rest.clone()).next() else {
                rest.start = rest.end;
                return Ok(());
            };
            left -= 1;
            match stored {
                Stored::Page(page) => {
                    left = (left + 1).saturating_sub(machine.pmap().weight(page));
                    busy_check(machine, page)?;
                    let page = down.unmap(machine.frames(), machine, held, page);
                    self.remove(uvm, held, page, down);
                }
                Stored::Slot(_) => self.remove_slot(uvm, held, index),
            }
            rest.start = index.0 + 1;
        }
        Ok(())
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

/// How much of an object without references is gone.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// {
///     let (mut body, mut h) = file.object().lock(held);
///     let removed = body.remove_some(uvm, &mut h, &mut Gather::new());
///     assert_eq!(removed, Removed::All, "none is resident");
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// All that goes.
    All,
    /// There is more.
    Some,
}

/// Where an object has a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    Page(PageNo),
    Slot(Slot),
}

/// Numbers in a table from here on are places on swap.
const ON_SWAP: u32 = 1 << 31;

impl Stored {
    #[inline]
    fn of(number: NonZeroU32) -> Stored {
        match (number.get() < ON_SWAP, Slot::new(number.get() & !ON_SWAP)) {
            (false, Some(slot)) if number != NonZeroU32::MAX => Stored::Slot(slot),
            (false, _) => Stored::Slot(Slot::LOST),
            (true, _) => Stored::Page(PageNo(number.get() - 1)),
        }
    }

    fn number(self) -> NonZeroU32 {
        match self {
            // Page numbers end below 2^31, so the sum is neither zero nor a place on swap.
            Stored::Page(page) => NonZeroU32::MIN.saturating_add(page.0),
            Stored::Slot(slot) => {
                NonZeroU32::new(slot.number() | ON_SWAP).unwrap_or(NonZeroU32::MAX)
            }
        }
    }

    /// The page, if it is resident.
    #[inline]
    fn page(self) -> Option<PageNo> {
        match self {
            Stored::Page(page) => Some(page),
            Stored::Slot(_) => None,
        }
    }
}

/// The page of a number in an object's table, as a window has them; `None` if it is on swap.
#[inline]
pub(crate) fn resident(number: u32) -> Option<PageNo> {
    Stored::of(NonZeroU32::new(number)?).page()
}

/// An index and its page, if that is resident.
fn resident_at((index, number): (u64, NonZeroU32)) -> Option<(Pages, PageNo)> {
    Stored::of(number).page().map(|page| (Pages(index), page))
}
