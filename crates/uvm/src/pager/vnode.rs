//! The file pager: pages of a file, read from and written back to whatever the host keeps files on.
//!
//! The host implements [`Vnode`] for its files; the pager is embedded beside the vnode and shares
//! its life. Pages of a file that no space maps stay resident until memory is short: there is one
//! cache of file data, the host's own (1999, section 4).
//!
//! ```text
//!   fault, with_page   get: pages allocated, busy, chained --> ReadRequest --> Vnode::read -> Uvm::read_done
//!   msync, fsync       clean: runs of dirty pages, busy ----------------> Vnode::write --> Uvm::write_done
//! ```
//! I1: a busy page's bytes are the I/O's to write, or must not be taken from it. I2: see `io` I3
//! for what CLEAN means. I3: dirty pages, and those that are being written, lie in marked leaves
//! (`object` I5).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

use arrayvec::ArrayVec;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot, Unlocked};

use super::write_back::{is_busy, Run};
use crate::io::{ReadRequest, Source, Transfer};
use crate::object::ahead::{Plan, Reader};
use crate::object::{
    busy_check, Access, Advice, GetError, Launder, Object, ObjectBody, Pager, Put,
};
use crate::page::{Gather, PageFlags};
use crate::{Counter, Uvm};

/// A file, as the host keeps it. All calls come with nothing locked and may sleep, but for
/// `write_later`.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// /// A file whose pages are its pages' numbers.
/// struct Numbers;
///
/// impl Vnode<SoftMachine> for Numbers {
///     fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
///         for (&page, n) in pages.iter().zip(index.0..) {
///             machine.zero(page);
///             machine.write(page, 0, &n.to_le_bytes());
///         }
///         Transfer::Done
///     }
///     fn write(&self, _: &SoftMachine, _: Pages, _: &[PageNo]) -> Transfer {
///         Transfer::Failed
///     }
/// }
///
/// let file = VnodePager::new(uvm, held, Box::new(Numbers), Pages(1000))?;
/// let request = MapRequest::object(file, Pages(7), Pages(1), Sharing::Private);
/// assert_eq!(load(uvm, space, uvm.map(held, space, &request)?)?, [7]);
/// # Ok(()) });
/// ```
pub trait Vnode<M: Machine>: Send + Sync {
    /// Reads consecutive pages of the file, from `index` on, into `pages`: all their bytes, zeroes
    /// past the file's end. At most [`CLUSTER`](crate::CLUSTER) pages, all busy.
    fn read(&self, machine: &M, index: Pages, pages: &[PageNo]) -> Transfer;

    /// Writes `pages` to the file from page `index` on; what lies past the file's end is not the
    /// file's. At most 256 pages, all busy. Programs may store to them meanwhile, and either byte
    /// will do.
    fn write(&self, machine: &M, index: Pages, pages: &[PageNo]) -> Transfer;

    /// A program is about to store, through a mapping, to a page that the file has no room for: one
    /// whose read the host ended with [`Outcome::Hole`](crate::Outcome::Hole). The host sets room
    /// aside, so that the page can be written later.
    ///
    /// # Errors
    /// [`GetError`], never `Wait` or `Read`: the program's store is refused, in most hosts with
    /// `SIGBUS`.
    fn fill_hole(&self, _machine: &M, _index: Pages) -> Result<(), GetError> {
        Ok(())
    }

    /// The page daemon has met dirty pages. `true`: the host has taken note, and will soon call
    /// [`VnodePager::clean`]; `false`: the daemon may call [`write`](Self::write) itself. Must not
    /// sleep.
    fn write_later(&self) -> bool {
        false
    }
}

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Shared);
/// let at = uvm.map(held, space, &request)?;
/// store(uvm, space, at, b"T")?;
/// file.clean(uvm, held, 0..1)?;
/// assert_eq!(file.stored_to(held), 1);
/// # Ok(()) });
/// ```
pub struct VnodePager<M: Machine> {
    pub(super) object: Object<M>,
    pub(super) vnode: Box<dyn Vnode<M>>,
}

impl<M: Machine> VnodePager<M> {
    /// A pager for a file of `len` pages, with one reference: the host's, given back by
    /// [`Uvm::detach`]: what was modified and not [cleaned](Self::clean) by then is lost. It is
    /// [registered](Uvm::register).
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room for it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// struct Zeroes;
    /// impl Vnode<SoftMachine> for Zeroes {
    ///     fn read(&self, machine: &SoftMachine, _: Pages, pages: &[PageNo]) -> Transfer {
    ///         pages.iter().for_each(|page| machine.zero(*page));
    ///         Transfer::Done
    ///     }
    ///     fn write(&self, _: &SoftMachine, _: Pages, _: &[PageNo]) -> Transfer {
    ///         Transfer::Failed
    ///     }
    /// }
    /// let file = VnodePager::new(uvm, held, Box::new(Zeroes), Pages(1))?;
    /// uvm.detach(held, &*file);
    /// # Ok(()) });
    /// ```
    pub fn new(
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        vnode: Box<dyn Vnode<M>>,
        len: Pages,
    ) -> Result<Arc<Self>, NoMemory> {
        let object = Object::with(uvm, len, PageFlags::FILE, None);
        uvm.new_pager(held, VnodePager { object, vnode })
    }

    /// Frees pages of the range that the file has as they are and that no program maps or uses:
    /// they are read again when they are wanted.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// uvm.read_ahead(held, &(file.clone() as Arc<dyn Pager<SoftMachine>>), 0..4);
    /// file.drop_clean(uvm, held, 0..4);
    /// assert_eq!(file.object().resident(held), 0);
    /// # Ok(()) });
    /// ```
    pub fn drop_clean(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, range: Range<u64>) {
        let (mut down, mut next) = (Gather::new(), range.start);
        {
            let (mut body, mut h) = self.object.lock(held);
            loop {
                let found = body.pages(next..range.end).next();
                let Some((index, page)) = found else { break };
                next = index.0 + 1;
                if uvm.mem().is_clean(page)
                    && uvm.mem().can_go(page)
                    && !uvm.mem().pmap().is_mapped(page)
                {
                    unmap_and_remove(uvm, &mut body, &mut h, page, &mut down);
                }
            }
        }
        down.perform(uvm.frames(), uvm.mem(), held);
    }

    /// Unmaps the pages of the range and frees them, for a host that has moved, or will move, their
    /// bytes to the file past them: they are read again when they are wanted. Says whether none is
    /// left; what is dirty, or in a device's or another thread's use, stays.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// uvm.read_ahead(held, &(file.clone() as Arc<dyn Pager<SoftMachine>>), 0..4);
    /// file.invalidate(uvm, held, 0..4);
    /// assert_eq!(file.object().resident(held), 0, "they are read again at the next access");
    /// # Ok(()) });
    /// ```
    pub fn invalidate(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, mut range: Range<u64>) -> bool {
        loop {
            let mut down = Gather::new();
            let gone = {
                let (mut body, mut h) = self.object.lock(held);
                let found = body.pages(range.clone()).next();
                let Some((index, page)) = found else { return true };
                range.start = index.0;
                busy_check(uvm.mem(), page).map(|()| {
                    uvm.mem().can_go(page)
                        && unmap_and_remove(uvm, &mut body, &mut h, page, &mut down)
                })
            };
            down.perform(uvm.frames(), uvm.mem(), held);
            match gone {
                Ok(true) => {}
                Ok(false) => return false,
                Err(ticket) => uvm.mem().wait(held, ticket),
            }
        }
    }

    /// Takes a page of the file, if it is in memory, for a [hole](crate::Outcome::Hole) from now
    /// on: the file ended inside it, has become longer, and has no room for the rest. A program
    /// that stores there through a mapping asks for room first.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// file.mark_hole(uvm, held, Pages(0)); // It isn't in memory: nothing is to be done.
    /// # Ok(()) });
    /// ```
    pub fn mark_hole(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, index: Pages) {
        let (machine, mut down) = (uvm.mem(), Gather::new());
        loop {
            let busy = {
                let (body, mut h) = self.object.lock(held);
                let Some(page) = body.page(index) else { return };
                let busy = busy_check(machine, page);
                if busy.is_ok() {
                    uvm.frames().set_flags(page, PageFlags::HOLE);
                    machine.pmap().page_protect(&mut h, page, Prot::READ_EXECUTE, &mut down);
                    down.perform(uvm.frames(), machine, &mut h);
                }
                busy
            };
            match busy {
                Ok(()) => return,
                Err(ticket) => machine.wait(held, ticket),
            }
        }
    }

    /// How many pages could not be written back since the file was opened first: it only grows. A
    /// host that reports an error once to each open file keeps the number it saw last with the
    /// file.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// assert_eq!(file.write_errors(held), 0);
    /// # Ok(()) });
    /// ```
    pub fn write_errors(&self, held: &mut Unlocked<'_>) -> u64 {
        self.object.lock(held).0.write_errors
    }

    /// How many pages write-backs have found changed through mappings since the file was opened
    /// first: it only grows. By a change of it a host knows that the file's time of modification
    /// has moved.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// assert_eq!(file.stored_to(held), 0);
    /// # Ok(()) });
    /// ```
    pub fn stored_to(&self, held: &mut Unlocked<'_>) -> u64 {
        self.object.lock(held).0.stored_to
    }

    /// The file, as the host gave it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 4)?;
    /// assert!(!file.vnode().write_later());
    /// # Ok(()) });
    /// ```
    pub fn vnode(&self) -> &dyn Vnode<M> {
        &*self.vnode
    }

    /// Makes the missing pages around one of the plan's, which is missing, busy; as many as there
    /// is memory for.
    ///
    /// # Errors
    /// [`NoMemory`] if there is none for the one.
    fn prepare(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        wanted: Pages,
        plan: &Plan,
    ) -> Result<ReadRequest, NoMemory> {
        let missing = |body: &ObjectBody, _: &mut Held<'_, _>, n| body.page(n).is_none();
        let range = (wanted, plan.pages.clone());
        let (first, pages) = self.object.begin_read(uvm, body, held, range, missing)?;
        if plan.marked {
            uvm.frames().set_flags(pages[0], PageFlags::AHEAD);
        }
        uvm.count(Counter::FileReads, 1);
        uvm.count(Counter::FilePagesRead, pages.len() as u64);
        let from = Source::Object { id: self.object.name(), index: Pages(first) };
        ReadRequest::new(uvm.frames(), from, &pages).ok_or(NoMemory)
    }
}

/// Takes a page out of all tables, and frees it if the file has it as it is; says whether.
fn unmap_and_remove<M: Machine>(
    uvm: &Uvm<M>,
    body: &mut ObjectBody,
    held: &mut Held<'_, order::Object>,
    page: PageNo,
    down: &mut Gather,
) -> bool {
    let unmapped = down.unmap(uvm.frames(), uvm.mem(), held, page);
    // A CPU that has not been flushed yet after an unmapping may have stored there, or do so.
    down.flush(uvm.mem().pmap());
    let is_clean = uvm.mem().is_clean(page);
    if is_clean {
        body.remove(uvm, held, unmapped, down);
    }
    is_clean
}

impl<M: Machine> Pager<M> for VnodePager<M> {
    fn object(&self) -> &Object<M> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "vnode"
    }

    fn get(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        access: Access,
    ) -> Result<PageNo, GetError> {
        let len = body.length();
        if index >= len {
            return Err(GetError::PastEnd);
        }
        let alone = matches!(access, Access::Fault(_)) && !uvm.knobs().fault_around();
        let access = if alone { Access::Fault(Advice::Random) } else { access };
        let plan = body.plan(uvm.mem(), index, access);
        Err(GetError::Read(self.prepare(uvm, body, held, index, &plan)?))
    }

    fn read_on(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
    ) -> Option<ReadRequest> {
        let (len, page) = (body.length().0, body.page(index)?);
        let reader = if is_busy(uvm, page) { Reader::Waits } else { Reader::GoesOn };
        let plan = body.ahead.touch(index.0, len, reader)?;
        if plan.again {
            uvm.frames().set_flags(page, PageFlags::AHEAD);
        }
        let first = plan.pages.clone().find(|&n| body.page(Pages(n)).is_none())?;
        self.prepare(uvm, body, held, Pages(first), &plan).ok()
    }

    fn start_read(
        &self,
        uvm: &Uvm<M>,
        _: &mut Unlocked<'_>,
        index: Pages,
        pages: &[PageNo],
    ) -> Transfer {
        self.vnode.read(uvm.mem(), index, pages)
    }

    fn fill_hole(
        &self,
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        index: Pages,
    ) -> Result<(), GetError> {
        let cuts = self.object.lock(held).0.cuts;
        self.vnode.fill_hole(uvm.mem(), index)?;
        let (body, _) = self.object.lock(held);
        // What has come since a hole was punched has no room: the store meets it again, and asks
        // again.
        if let Some(page) = body.page(index).filter(|_| body.cuts == cuts) {
            // Dirty, though the store may never come: the room that was set aside is given back
            // when it is written.
            uvm.frames().clear_flags(page, PageFlags::HOLE | PageFlags::CLEAN);
            body.mark(index);
        }
        Ok(())
    }

    fn launder(&self) -> Launder {
        Launder::Put
    }

    /// Pages around the one go with it. They stay where they are when that has ended, clean, for
    /// the next pass.
    fn put(&self, uvm: &Uvm<M>, held: &mut Unlocked<'_>, index: Pages) -> Put {
        if self.vnode.write_later() {
            return Put::Later;
        }
        let range = self.around(uvm, held, index);
        let mut run = Run { index, pages: ArrayVec::new() };
        if self.take_dirty(uvm, held, range, &mut run).is_err() || run.pages.is_empty() {
            return Put::Nothing;
        }
        {
            let _locked = self.object.lock(held);
            run.pages.iter().for_each(|&page| uvm.frames().set_flags(page, PageFlags::PAGEOUT));
        }
        uvm.pageout_started(run.pages.len());
        self.write(uvm, held, &run);
        Put::Started(run.pages.len())
    }
}
