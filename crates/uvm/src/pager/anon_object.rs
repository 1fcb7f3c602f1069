//! Anonymous objects: shared memory that no file backs.
//!
//! Shared anonymous mappings, memfd, System V and POSIX shared memory, and the files of an
//! in-memory file system all are one of these: pages of zeroes until written, freed with the last
//! reference. UVM's "aobj" (1999, section 5 and 6).
//!
//! When memory is short its pages go to swap with all others, in the page daemon's clusters, and
//! leave their place on swap in the object's table. A page that is wanted again comes with its
//! neighbours, as far as their places follow its own.
//!
//! I1: pages and places on swap are freed when `refs` drops to none, and by [`Uvm::truncate`] and
//! [`Uvm::punch`].

use alloc::boxed::Box;
use alloc::sync::Arc;

use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Unlocked};

use crate::io::{ReadRequest, Source, CLUSTER};
use crate::object::{Access, Advice, GetError, Launder, Object, ObjectBody, Pager};
use crate::page::Quota;
use crate::page::{PageFlags, Slot};
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
    pub fn new(uvm: &Uvm<M>, held: &mut Unlocked<'_>, len: Pages) -> Result<Arc<Self>, NoMemory> {
        let object = Object::new(uvm, len);
        uvm.new_pager(held, AnonObject { object, _attached: None })
    }

    /// One of several objects that together hold no more pages than a quota allows: as
    /// [`new`](Self::new) makes one. Where the quota is used up a new page is
    /// [`GetError::NoSpace`]. `attached` goes with the object, at once if it can't be made.
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
        held: &mut Unlocked<'_>,
        len: Pages,
        quota: Arc<Quota>,
        attached: Option<Box<dyn Attached>>,
    ) -> Result<Arc<Self>, NoMemory> {
        let object = Object::with(uvm, len, PageFlags::empty(), Some(quota));
        uvm.new_pager(held, AnonObject { object, _attached: attached })
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
        let window = window(index.0, if uvm.knobs().fault_around() { access } else { ONE });
        let place = |n: Pages| {
            let place = u64::from(slot.number())
                .checked_add_signed(n.0.wrapping_sub(index.0).cast_signed());
            place.and_then(|place| Slot::new(place as u32))
        };
        // A place that failed among others is tried alone.
        let alone = uvm.swap().is_alone(held, slot);
        let goes = |body: &ObjectBody, h: &mut Held<'_, order::Object>, n| {
            let found = body.slot(n).filter(|&found| !alone && Some(found) == place(n));
            found.is_some_and(|found| !uvm.swap().is_alone(h, found))
        };
        let (first, pages) = self.object.begin_read(uvm, body, held, (index, window), goes)?;
        let from = place(Pages(first)).ok_or(NoMemory)?;
        ReadRequest::new(uvm.frames(), Source::Swap(from), &pages).ok_or(NoMemory)
    }
}

/// An access that says nothing of neighbours but that there are none.
const ONE: Access = Access::Fault(Advice::Random);

/// The indices that may be read along with one.
fn window(index: u64, access: Access) -> core::ops::Range<u64> {
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
            let aligned = index & !(AROUND - 1);
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
                let read = self.page_in(uvm, body, held, (index, slot), access)?;
                return Err(GetError::Read(read));
            }
        }
        body.take_quota(1)?;
        let made = uvm.mem().zeroed_page(held);
        let page = made.inspect_err(|_| body.give_quota_back(1))?;
        self.object.insert(uvm, body, held, index, page);
        Ok(page)
    }

    fn is_hole(&self, body: &ObjectBody, index: Pages) -> bool {
        index < body.length() && body.slot(index).is_none()
    }

    fn launder(&self) -> Launder {
        Launder::Swap
    }
}

#[cfg(test)]
mod tests {
    use machine::{Pa, Pages, ThreadCtx};
    use uvm_soft::{Config, SoftMachine};

    use machine::lines::Ordering::Relaxed;

    use super::*;
    use crate::page::Frames;

    #[test]
    fn a_name_that_comes_again_is_not_anothers() {
        let frames = Frames::new(&[(Pa(0x10_0000), 64)], 4).unwrap();
        let uvm = Uvm::new(SoftMachine::new(Config::default()), Arc::new(frames)).unwrap();
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        uvm.next_object.store(77, Relaxed);
        let first: Arc<dyn Pager<SoftMachine>> = AnonObject::new(&uvm, held, Pages(1)).unwrap();
        uvm.register(held, &first).unwrap();
        uvm.next_object.store(77 + (1 << 32), Relaxed);
        let again = AnonObject::new(&uvm, held, Pages(1)).map(|object| object as Arc<dyn Pager<_>>);
        let refused = again.and_then(|again| uvm.register(held, &again));
        assert_eq!(refused, Err(NoMemory));
        let known = uvm.pager(held, 77).unwrap();
        assert!(
            core::ptr::addr_eq(Arc::as_ptr(&known), Arc::as_ptr(&first)),
            "the name is the second's"
        );
        // No other object has the id.
        uvm.next_object.store(77 + (2 << 32), Relaxed);
        let third = Object::new(&uvm, Pages(1));
        assert_eq!((third.name(), first.object().name()), (77, 77));
        assert_ne!(third.id(), first.object().id());
    }
}
