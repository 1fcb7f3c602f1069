//! What an object's lock guards: the table of its pages, and what is known of them.

use alloc::sync::Arc;
use core::num::NonZeroU32;

use machine::{order, Held, Machine, PageNo, Pages, Pmap, Ticket};

use super::ahead::{Plan, ReadAhead};
use super::copiers::Copiers;
use super::{busy_check, Access, GetError};
use crate::amap::slots::{Slots, ALONE_BYTES};
use crate::anon::{drop_page, leave};
use crate::memory::Memory;
use crate::page::{Frames, Gather, Owner, PageFlags, Quota, Slot, Unmapped};
use crate::Uvm;

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
    pub(super) pages: Slots,
    /// How many there are, and how many of them are on swap.
    pub(super) stored: usize,
    pub(super) swapped: usize,
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

impl ObjectBody {
    pub(super) fn new(len: Pages, class: PageFlags, quota: Option<Arc<Quota>>) -> Self {
        ObjectBody {
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
        }
    }

    /// Puts something at an index, and says what was there.
    pub(super) fn set(&mut self, index: Pages, what: Stored) -> Option<Stored> {
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
        match &self.quota {
            Some(quota) if !quota.take(pages) => Err(GetError::NoSpace),
            _ => Ok(()),
        }
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
