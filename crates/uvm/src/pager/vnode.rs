//! The file pager: pages of a file, read from and written back to whatever the host keeps files on.
//!
//! The host implements [`Vnode`] for its files; the pager is embedded beside the vnode and shares its life. Pages of
//! a file that nobody maps stay resident until the host says otherwise: there is one cache of file data, the host's
//! own (1999, section 4).
//!
//! A read runs in three steps: the fault finds no page, so `get` allocates one, marks it busy, inserts it and calls
//! [`Vnode::read`]; the host either fills it there and then, or starts a request and later calls
//! [`VnodePager::read_done`] from where the completion arrives; that makes the page usable, or marks it
//! as failed for the next fault to report and take out, and wakes who waits.
//!
//! I1: a busy page's bytes are the I/O's.

use alloc::boxed::Box;
use alloc::sync::Arc;

use machine::frames::PageFlags;
use machine::order;
use machine::{Held, Machine, NoMemory, PageNo, Pages, Pmap, Reserve, Shootdown};

use super::{GetError, Pager};
use crate::object::{busy_check, unbusy, Object, ObjectBody};
use crate::Uvm;

/// How a read went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The page is filled.
    Done,
    /// The host will call [`VnodePager::read_done`].
    Started,
    /// The page can't be read.
    Failed,
}

/// A file, as the host keeps it.
pub trait Vnode<M: Machine>: Send + Sync {
    /// Reads the page at `index` of the file into `page`, which is busy: all 4096 bytes, zeroes past the file's end.
    /// Called under the object's lock: it must not sleep, and must not call back before it has returned.
    fn read(&self, machine: &M, index: Pages, page: PageNo) -> Read;

    /// Writes `page` to the file at `index`. Called with no lock held; the page is busy; may sleep as the host can.
    ///
    /// # Errors
    /// `Err` if the bytes may not have reached the file: the page stays dirty.
    #[allow(clippy::result_unit_err)]
    fn write(&self, machine: &M, index: Pages, page: PageNo) -> Result<(), ()>;
}

/// See the module.
pub struct VnodePager<M: Machine> {
    object: Object<M>,
    vnode: Box<dyn Vnode<M>>,
}

impl<M: Machine> VnodePager<M> {
    /// A pager for a file of `len` pages, with one reference: the host's, given back by [`Uvm::detach`].
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room for it.
    pub fn new(uvm: &Uvm<M>, vnode: Box<dyn Vnode<M>>, len: Pages) -> Result<Arc<Self>, NoMemory> {
        uvm.machine().reserve_heap(size_of::<Self>() + 64)?;
        Ok(Arc::new(VnodePager { object: Object::new(uvm, len), vnode }))
    }

    /// The host's completion of a read that it said was [`Read::Started`]: `Read::Done` or `Read::Failed`. May be
    /// called from wherever the host can take an object's lock.
    pub fn read_done<P: machine::Before<order::Object>>(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, P>,
        index: Pages,
        outcome: Read,
    ) {
        let (body, _h) = self.object.lock(held);
        if let Some(page) = body.page(index) {
            let flag = if outcome == Read::Done { PageFlags::CLEAN } else { PageFlags::ERROR };
            uvm.machine().frames().set_flags(page, flag);
            unbusy(uvm.machine(), page);
        }
    }

    /// Writes back every page of the range that was modified: msync's and fsync's part. Pages stay resident.
    ///
    /// # Errors
    /// `Err` if a page could not be written; the others were tried all the same.
    #[allow(clippy::result_unit_err)]
    pub fn clean(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Nothing>,
        range: core::ops::Range<u64>,
    ) -> Result<(), ()> {
        let mut result = Ok(());
        let mut next = range.start;
        while let Some((index, page)) = self.next_dirty(uvm, held, next..range.end) {
            let wrote = self.vnode.write(uvm.machine(), index, page);
            let (_body, _h) = self.object.lock(held);
            if wrote.is_ok() {
                uvm.machine().frames().set_flags(page, PageFlags::CLEAN);
            } else {
                uvm.machine().frames().clear_flags(page, PageFlags::CLEAN);
                result = Err(());
            }
            unbusy(uvm.machine(), page);
            next = index.0 + 1;
        }
        result
    }

    /// The next modified page, made busy and clean in the pmap's eyes.
    fn next_dirty(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Nothing>,
        range: core::ops::Range<u64>,
    ) -> Option<(Pages, PageNo)> {
        let machine = uvm.machine();
        loop {
            let mut down = Shootdown::new();
            let ticket = {
                let (body, mut h) = self.object.lock(held);
                let dirty = |&(_, page): &(Pages, PageNo)| {
                    !machine.frames().flags(page).contains(PageFlags::CLEAN)
                        || machine.pmap().is_modified(page)
                };
                let (index, page) = body.pages(range.clone()).find(dirty)?;
                match busy_check(machine, page) {
                    Err(ticket) => ticket,
                    Ok(()) => {
                        machine.frames().set_flags(page, PageFlags::BUSY);
                        machine.pmap().clear_modified(page, &mut down);
                        down.perform(machine, &mut h);
                        return Some((index, page));
                    }
                }
            };
            down.perform(machine, held);
            machine.wait(held, ticket);
        }
    }

    /// The file, as the host gave it.
    pub fn vnode(&self) -> &dyn Vnode<M> {
        &*self.vnode
    }
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
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        let machine = uvm.machine();
        let page = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.frames().set_flags(page, PageFlags::BUSY);
        match self.vnode.read(machine, index, page) {
            Read::Done => {
                machine.frames().clear_flags(page, PageFlags::BUSY);
                machine.frames().set_flags(page, PageFlags::CLEAN);
                self.object.insert(machine, body, held, index, page);
                Ok(page)
            }
            Read::Started => {
                self.object.insert(machine, body, held, index, page);
                busy_check(machine, page)?;
                Ok(page)
            }
            Read::Failed => {
                machine.frames().free_page(machine, held, page);
                Err(GetError::Io)
            }
        }
    }

    /// File pages outlive their mappings; the host frees them with [`Uvm::truncate`] when it recycles the vnode.
    fn last_reference(
        &self,
        _: &Uvm<M>,
        _: &mut ObjectBody,
        _: &mut Held<'_, order::Object>,
        _: &mut Shootdown,
    ) {
    }
}
