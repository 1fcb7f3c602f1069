//! Anonymous objects: shared memory that no file backs.
//!
//! Shared anonymous mappings, memfd, System V and POSIX shared memory, and the files of an
//! in-memory file system all are one of these: pages of zeroes until written, freed with the last
//! reference. UVM's "aobj" (1999, section 5 and 6).
//!
//! When memory is short its pages go to swap with everybody's, in the page daemon's clusters, and
//! leave their place on swap in the object's table. A page that is wanted again comes with its
//! neighbours, as far as their places follow its own.
//!
//! I1: pages and places on swap are freed when `refs` drops to none, and by [`Uvm::truncate`] and
//! [`Uvm::punch`].

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::page::{Gather, Reserve};
use arrayvec::ArrayVec;
use machine::order;
use machine::{Held, Machine, NoMemory, PageNo, Pages};

use super::{Access, GetError, Launder, Pager, Quota};
use crate::io::{Chain, ReadRequest, CLUSTER, FOR_COPIES};
use crate::map::Advice;
use crate::object::{Object, ObjectBody, Removed};
use crate::swap::Slot;
use crate::Uvm;

/// Pages of a read around a fault.
const AROUND: u64 = 16;

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let object = AnonObject::new(uvm, held, Pages(4))?;
/// let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
/// let (here, there) = (uvm.map(held, space, &request)?, uvm.map(held, space, &request)?);
/// store(uvm, space, here, b"shared")?;
/// assert_eq!(&load(uvm, space, there)?, b"shared");
/// # Ok(()) });
/// ```
pub struct AnonObject<M: Machine> {
    object: Object<M>,
    /// What the host wants to be dropped with it.
    _attached: Option<Box<dyn Attached>>,
}

/// Something of the host's that lives as long as an object. Its drop must not sleep.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// /// Counts the segments that there are.
/// struct Segment(Arc<()>);
///
/// impl Attached for Segment {}
///
/// let count = Arc::new(());
/// let attached = Box::new(Segment(count.clone()));
/// let quota = Arc::new(Quota::new(16));
/// let object = AnonObject::within(uvm, held, Pages(4), quota, Some(attached))?;
/// uvm.detach(held, &*object);
/// drop(object);
/// assert_eq!(Arc::strong_count(&count), 1);
/// # Ok(()) });
/// ```
pub trait Attached: Send + Sync {}

impl<M: Machine> AnonObject<M> {
    /// A new object of `len` pages, all zero, with one reference: the handle that the caller keeps
    /// and gives back by [`Uvm::detach`].
    ///
    /// # Errors
    /// [`NoMemory`] if the heap has no room for the head.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let object = AnonObject::new(uvm, held, Pages(4))?;
    /// uvm.detach(held, &*object);
    /// # Ok(()) });
    /// ```
    pub fn new(
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Nothing>,
        len: Pages,
    ) -> Result<Arc<Self>, NoMemory> {
        AnonObject::make(uvm, held, Object::new(uvm, len), None)
    }

    /// The same for one of several objects that together hold no more pages than a quota allows.
    /// Where it is used up a new page is [`GetError::NoSpace`]. `attached` goes with the object, at
    /// once if it can't be made.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let quota = Arc::new(Quota::new(2));
    /// let object = AnonObject::within(uvm, held, Pages(4), quota.clone(), None)?;
    /// let request = MapRequest::object(object, Pages(0), Pages(4), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// store(uvm, space, at, b"x")?;
    /// assert_eq!((quota.used(), quota.room()), (1, 1));
    /// # Ok(()) });
    /// ```
    pub fn within(
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Nothing>,
        len: Pages,
        quota: Arc<Quota>,
        attached: Option<Box<dyn Attached>>,
    ) -> Result<Arc<Self>, NoMemory> {
        AnonObject::make(uvm, held, Object::within(uvm, len, quota), attached)
    }

    fn make(
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Nothing>,
        object: Object<M>,
        attached: Option<Box<dyn Attached>>,
    ) -> Result<Arc<Self>, NoMemory> {
        uvm.mem().reserve_heap(size_of::<Self>() + 64)?;
        let pager = Arc::new(AnonObject { object, _attached: attached });
        let known: Arc<dyn Pager<M>> = pager.clone();
        uvm.register(held, &known)?;
        Ok(pager)
    }

    /// Prepares the read of a page from swap, and of those around it whose places continue its own.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no page for the one.
    fn page_in(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        (index, slot): (Pages, Slot),
        access: Access,
    ) -> Result<ReadRequest, NoMemory> {
        let (machine, frames) = (uvm.mem(), uvm.frames());
        let window = window(index.0, if uvm.knobs().neighbours() { access } else { ONE });
        // A place that failed among others is tried alone.
        let mut follows = |n: u64| {
            let place = u64::from(slot.number()).checked_add_signed(n as i64 - index.0 as i64);
            let place = place.and_then(|place| Slot::new(place as u32));
            place.is_some()
                && body.slot(Pages(n)) == place
                && place.is_some_and(|place| !uvm.swap().is_alone(held, place))
        };
        let alone = !follows(index.0);
        let first = (window.start..index.0).rev().take_while(|&n| !alone && follows(n)).last();
        let last = (index.0 + 1..window.end).take_while(|&n| !alone && follows(n)).last();
        let (mut first, last) = (first.unwrap_or(index.0), last.unwrap_or(index.0));
        let mut pages = ArrayVec::<PageNo, CLUSTER>::new();
        pages.push(frames.alloc(machine, held, Reserve::User)?);
        while pages.len() as u64 <= last - first && frames.for_users() > FOR_COPIES {
            let Ok(page) = frames.alloc(machine, held, Reserve::User) else { break };
            pages.push(page);
        }
        first = first.max(index.0.min(last + 1 - pages.len() as u64));
        uvm.read_prepared(pages.len());
        let mut chain = Chain::default();
        for (&page, n) in pages.iter().zip(first..) {
            self.object.insert_busy(machine, body, Pages(n), page, &mut chain);
        }
        let from = Slot::new(slot.number() - (index.0 - first) as u32).ok_or(NoMemory)?;
        ReadRequest::swap(from, &chain).ok_or(NoMemory)
    }
}

/// An access that says nothing of neighbours but that there are none.
const ONE: Access = Access::Fault(Advice::Random);

/// The indices that may be read along with one.
fn window(index: u64, access: Access) -> core::ops::Range<u64> {
    let aligned = index & !(AROUND - 1);
    match access {
        Access::Fault(Advice::Random) => index..index + 1,
        Access::Fault(Advice::Sequential) | Access::Call(Advice::Sequential, _) => {
            index..index + CLUSTER as u64
        }
        Access::Call(_, pages) if u64::from(pages) > AROUND => {
            index..index + u64::from(pages).min(CLUSTER as u64)
        }
        Access::Call(Advice::Random, pages) => index..index + u64::from(pages),
        Access::Fault(Advice::Normal) | Access::Call(Advice::Normal, _) => {
            aligned..aligned + AROUND
        }
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
        access: Access,
    ) -> Result<PageNo, GetError> {
        if index >= body.length() {
            return Err(GetError::PastEnd);
        }
        match body.slot(index) {
            None => {}
            Some(Slot::LOST) => return Err(GetError::Io),
            Some(slot) => {
                return Err(GetError::Read(self.page_in(
                    uvm,
                    body,
                    held,
                    (index, slot),
                    access,
                )?));
            }
        }
        let machine = uvm.mem();
        body.take_quota(1)?;
        let made = machine.frames().alloc(machine, held, Reserve::User);
        let page = made.inspect_err(|_| body.give_quota_back(1))?;
        machine.zero(page);
        self.object.insert(uvm, body, held, index, page);
        Ok(page)
    }

    fn is_hole(&self, body: &ObjectBody, index: Pages) -> bool {
        index < body.length() && body.slot(index).is_none()
    }

    fn launder(&self) -> Launder {
        Launder::Swap
    }

    fn last_reference(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut Gather,
    ) -> Removed {
        body.remove_some(uvm, held, down)
    }
}
