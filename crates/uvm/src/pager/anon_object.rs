//! Anonymous objects: shared memory that no file backs.
//!
//! Shared anonymous mappings, memfd, System V and POSIX shared memory, and the files of an in-memory file system
//! all are one of these: pages of zeroes until written, freed with the last reference. UVM's "aobj" (1999,
//! section 5 and 6).
//!
//! I1: pages are freed when `refs` drops to none, and by [`Uvm::truncate`].

use alloc::sync::Arc;

use machine::order;
use machine::{Held, Machine, NoMemory, PageNo, Pages, Reserve, Shootdown};

use super::{Access, GetError, Pager};
use crate::object::{Object, ObjectBody};
use crate::Uvm;

/// See the module.
pub struct AnonObject<M: Machine> {
    object: Object<M>,
}

impl<M: Machine> AnonObject<M> {
    /// A new object of `len` pages, all zero, with one reference: the handle that the caller keeps and gives back by
    /// [`Uvm::detach`].
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room for the head.
    pub fn new(uvm: &Uvm<M>, held: &mut Held<'_, order::Nothing>, len: Pages) -> Result<Arc<Self>, NoMemory> {
        uvm.machine().reserve_heap(size_of::<Self>() + 64)?;
        let pager = Arc::new(AnonObject { object: Object::new(uvm, len) });
        let known: Arc<dyn Pager<M>> = pager.clone();
        uvm.register(held, &known)?;
        Ok(pager)
    }
}

impl<M: Machine> Pager<M> for AnonObject<M> {
    fn object(&self) -> &Object<M> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "anonymous"
    }

    fn get(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        let machine = uvm.machine();
        let page = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.zero(page);
        self.object.insert(machine, body, held, index, page);
        Ok(page)
    }

    fn is_hole(&self, body: &ObjectBody, index: Pages) -> bool {
        index < body.length()
    }

    fn last_reference(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut Shootdown,
    ) {
        body.remove_all(uvm, held, down);
    }
}
