//! The device pager: memory that belongs to a device, shown to programs.
//!
//! A frame buffer or a device's shared memory is a run of frames that the page allocator doesn't
//! have, or has given away for good. They have numbers and records like all frames
//! ([`Frames::with`](crate::page::Frames::with)), so that maps, faults and the pmap need know
//! nothing of them.
//!
//! I1: every page of a device has a wiring that is the pager's. So it is on no queue, the page
//! daemon never meets it, and taking it out of the object leaves it allocated. I2: a frame belongs
//! to one device pager at a time; mappings share the pager.

use alloc::sync::Arc;

use crate::page::Gather;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Unlocked};

use crate::object::{Access, GetError, Object, ObjectBody, Pager, Removed};
use crate::Uvm;

/// Pages that come into the object together: a fault maps those around it that are there.
const DEVICE_RUN: u64 = 64;

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// let config = Config { devices: vec![(Pa(1 << 32), 16)], ..Config::default() };
/// let uvm = SoftMachine::new(config).into_uvm()?;
/// let mut thread = ThreadCtx::new();
/// let held = &mut thread.held();
/// let first = uvm.frames().page_at(Pa(1 << 32)).ok_or("the device has frames")?;
/// let device = DevicePager::new(&uvm, held, first, Pages(16))?;
/// let space = uvm.space_create(held, bounds())?;
/// let request = MapRequest::object(device.clone(), Pages(0), Pages(16), Sharing::Shared);
/// store(&uvm, &space, uvm.map(held, &space, &request)?, b"to the device")?;
/// # uvm.space_destroy(held, space);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DevicePager<M: Machine> {
    object: Object<M>,
    first: PageNo,
    len: Pages,
}

impl<M: Machine> DevicePager<M> {
    /// A pager for `len` frames from `first` on, with one reference: the handle that the caller
    /// keeps and gives back by [`Uvm::detach`]. The frames are the caller's (their owner is
    /// [`Owner::Kernel`](crate::page::Owner)), and are the caller's again, unmapped, when the last
    /// reference is gone.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room for the head.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # let config = Config { devices: vec![(Pa(1 << 32), 16)], ..Config::default() };
    /// # let uvm = SoftMachine::new(config).into_uvm()?;
    /// # let mut thread = ThreadCtx::new();
    /// # let held = &mut thread.held();
    /// let first = uvm.frames().page_at(Pa(1 << 32)).ok_or("the device has frames")?;
    /// let device = DevicePager::new(&uvm, held, first, Pages(16))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        uvm: &Uvm<M>,
        held: &mut Unlocked<'_>,
        first: PageNo,
        len: Pages,
    ) -> Result<Arc<Self>, NoMemory> {
        let object = Object::new(uvm, len);
        let pager = uvm.new_pager(held, DevicePager { object, first, len })?;
        for page in run(first, len) {
            uvm.frames().wire(page);
        }
        Ok(pager)
    }
}

fn run(first: PageNo, len: Pages) -> impl Iterator<Item = PageNo> {
    (first.0..first.0 + len.0 as u32).map(PageNo)
}

impl<M: Machine> Pager<M> for DevicePager<M> {
    fn object(&self) -> &Object<M> {
        &self.object
    }

    fn kind(&self) -> &'static str {
        "device"
    }

    fn get(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        _: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length().min(self.len) {
            return Err(GetError::PastEnd);
        }
        let page_of = |index: u64| PageNo(self.first.0 + index as u32);
        let start = index.0 / DEVICE_RUN * DEVICE_RUN;
        for index in start..(start + DEVICE_RUN).min(body.length().0).min(self.len.0) {
            if body.page(Pages(index)).is_none() {
                self.object.insert(uvm, body, held, Pages(index), page_of(index));
            }
        }
        Ok(page_of(index.0))
    }

    /// The device has its frames back.
    fn last_reference(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut Gather,
    ) -> Removed {
        if body.remove_some(uvm, held, down) == Removed::Some {
            return Removed::Some;
        }
        // No CPU may write to them through a translation that it remembers.
        down.flush(uvm.mem().pmap());
        for page in run(self.first, self.len) {
            uvm.frames().unpin(page);
        }
        Removed::All
    }
}
