//! What a host does with an object besides mapping it: read and write its pages, change its length,
//! let it go.
//!
//! A page is pinned by a wiring while the host copies, not marked busy: the copy's other end may be
//! user memory that maps the same page, and its fault must not wait for the copy that waits for it.
//! A pinned page that is truncated meanwhile leaves the object and is freed when the pin goes.

use alloc::sync::Arc;

use crate::amap::slots::CLUSTER_BYTES;
use crate::io::ReadRequest;
use crate::object::{Access, GetError, Pager};
use crate::page::{Gather, Owner, PageFlags};
use crate::{Stop, Uvm};
use machine::{Machine, PageNo, Pages, Unlocked};

/// What a host means to do with a page.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)? as Arc<dyn Pager<SoftMachine>>;
/// uvm.with_page(held, &file, Pages(0), Intent::Write, Access::PAGE, |machine, page| {
///     machine.write(page, 0, b"T");
/// })?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Intent {
    /// Look at it.
    Read,
    /// Change it.
    Write,
}

impl<M: Machine> Uvm<M> {
    /// Makes the page at `index` resident, pins it, calls `work` with it and no lock held, and
    /// unpins it. `None` without calling `work` if the host only wants to read and the pager knows
    /// nothing but zeroes there. A host that writes to a file has found room for it there before.
    ///
    /// # Errors
    /// [`GetError`]: past the end, I/O, no space, or no memory; never `Wait` or `Read`.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)? as Arc<dyn Pager<SoftMachine>>;
    /// let mut bytes = [0; 4];
    /// uvm.with_page(held, &file, Pages(0), Intent::Read, Access::PAGE, |machine, page| {
    ///     machine.read(page, 0, &mut bytes);
    /// })?;
    /// assert_eq!(&bytes, b"text");
    /// # Ok(()) });
    /// ```
    pub fn with_page<T>(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        index: Pages,
        intent: Intent,
        access: Access,
        work: impl FnOnce(&M, PageNo) -> T,
    ) -> Result<Option<T>, GetError> {
        let found = self.attempt_to_find(held, |held, ahead| {
            self.pin(held, &**pager, index, intent, access, ahead)
        })?;
        let Some(page) = found else { return Ok(None) };
        let result = work(self.mem(), page);
        self.unpin(held, pager, page, intent);
        Ok(Some(result))
    }

    /// Makes attempts that [find](Self::find_page) an object's page, and starts what they want to
    /// be read ahead.
    pub(crate) fn attempt_to_find<T>(
        &self,
        held: &mut Unlocked<'_>,
        mut once: impl FnMut(&mut Unlocked<'_>, &mut Option<ReadRequest>) -> Result<T, Stop<GetError>>,
    ) -> Result<T, GetError> {
        self.attempt(held, CLUSTER_BYTES, |held, _| {
            let mut ahead = None;
            let found = once(held, &mut ahead);
            match (found, ahead) {
                (Ok(found), Some(start)) => {
                    self.start(held, start);
                    Ok(found)
                }
                // What is busy is read before anything is waited for.
                (Err(_), Some(start)) => Err(Stop::Read(start)),
                (found, None) => found,
            }
        })
    }

    /// One attempt to pin a page; `None` if the pager knows nothing but zeroes there, for a reader.
    fn pin(
        &self,
        held: &mut Unlocked<'_>,
        pager: &dyn Pager<M>,
        index: Pages,
        intent: Intent,
        access: Access,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<Option<PageNo>, Stop<GetError>> {
        let (mut body, mut h) = pager.object().lock(held);
        if intent == Intent::Read && body.page(index).is_none() && pager.is_hole(&body, index) {
            return Ok(None);
        }
        let found = self.find_page(&mut body, &mut h, pager, index, access, ahead);
        let mut page = found.map_err(Stop::of_get)?;
        if intent == Intent::Write && self.frames().loans(page) != 0 {
            let mut down = Gather::new();
            let replaced = self.replace_loaned(&mut body, &mut h, page, &mut down);
            down.perform(self.frames(), self.mem(), &mut h);
            page = replaced.map_err(GetError::from)?;
        }
        self.frames().wire(page);
        self.frames().set_flags(page, PageFlags::TOUCHED);
        if intent == Intent::Write {
            body.mark(index);
            // A hole stays one: the host may have found room for a part of the page.
            self.frames().clear_flags(page, PageFlags::CLEAN | PageFlags::UNWRITTEN);
        }
        Ok(Some(page))
    }

    /// Ends a wiring of a page that [`with_page`](Self::with_page) handed out and its `work` made
    /// for longer than the call. If the page has left the object meanwhile and this was its last
    /// wiring, it is freed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)? as Arc<dyn Pager<SoftMachine>>;
    /// let page = uvm.with_page(held, &file, Pages(0), Intent::Read, Access::PAGE, |_, page| {
    ///     uvm.frames().wire(page); // For longer than this call.
    ///     page
    /// })?;
    /// uvm.unpin(held, &file, page.ok_or("the file has bytes there")?, Intent::Read);
    /// # Ok(()) });
    /// ```
    pub fn unpin(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        page: PageNo,
        intent: Intent,
    ) {
        let (body, mut h) = pager.object().lock(held);
        let is_owned = matches!(self.frames().owner(page), Owner::Object(_));
        if intent == Intent::Write {
            if is_owned {
                body.mark(Pages(self.frames().index(page)));
            }
            // Again: a write that began since the pin may have taken the page as it was before the
            // work.
            self.frames().clear_flags(page, PageFlags::CLEAN | PageFlags::UNWRITTEN);
        }
        if is_owned {
            self.frames().unwire(self.mem(), &mut h, page);
        } else if self.frames().unpin(page) {
            self.frames().free_page(self.mem(), &mut h, page);
        }
    }

    /// Sets an object's length. What lies behind a shorter length is freed, and its mappings fault
    /// with `Bus`. The bytes behind the end in its last page are the host's to clear. Waits for I/O
    /// of pages that go. A host changes the length of one object in one thread at a time.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 2)? as Arc<dyn Pager<SoftMachine>>;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(2), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// uvm.truncate(held, &file, Pages(1));
    /// assert_eq!(load::<1>(uvm, space, at + Pages(1)), Err(FaultError::Bus));
    /// # Ok(()) });
    /// ```
    pub fn truncate(&self, held: &mut Unlocked<'_>, pager: &Arc<dyn Pager<M>>, len: Pages) {
        self.cut(held, pager, len.0..len.0, Some(len));
    }

    /// Frees an object's pages in a range and unmaps them; its length stays: a hole is punched.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(4))? as Arc<dyn Pager<SoftMachine>>;
    /// let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// store(uvm, space, at, b"gone soon")?;
    /// uvm.punch(held, &object, 0..1);
    /// assert_eq!(load(uvm, space, at)?, [0]);
    /// # Ok(()) });
    /// ```
    pub fn punch(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        range: core::ops::Range<u64>,
    ) {
        self.cut(held, pager, range, None);
    }

    /// Frees the pages of a range and those past the new length, in steps under the object's lock,
    /// which isn't held in between; again after each busy page that one met. All CPUs are flushed
    /// with the lock held: else another thread would see zeroes where a third, whose CPU hasn't
    /// been flushed, still loads and stores what was there.
    fn cut(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        mut rest: core::ops::Range<u64>,
        len: Option<Pages>,
    ) {
        loop {
            let mut down = Gather::new();
            let done = {
                let (mut body, mut h) = pager.object().lock(held);
                if let Some(len) = len {
                    rest.end = rest.end.max(core::mem::replace(&mut body.len, len).0);
                }
                let done = body.remove_first(self, &mut h, &mut rest, &mut down);
                down.flush(self.mem().pmap());
                done
            };
            down.perform(self.frames(), self.mem(), held);
            match done {
                Ok(()) if rest.is_empty() => return,
                Ok(()) => self.mem().pause(held),
                Err(ticket) => self.mem().wait(held, ticket),
            }
        }
    }
}
