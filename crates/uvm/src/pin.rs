//! Pages pinned for a device: physio's transient wiring.
//!
//! A raw read or write moves bytes between a device and a program's pages, which must stay where
//! they are meanwhile. That is no property of the mapping, so the map doesn't change: no entry is
//! split, none is marked, and none is looked up to take it back. What is pinned stands in a value
//! on the caller's stack (1999, section 3.2).
//!
//! A pinned page may be unmapped, truncated or replaced meanwhile: it then has no owner any more,
//! and is freed with its last pin. A child that is forked meanwhile shares a pinned private page
//! until one of them writes.
//!
//! I1: each page of a [`Pinned`] has one wiring that is the value's; it is given back once, by
//! [`Uvm::unwire_pages`]. I2: an object counts those of its pages that are pinned to be stored to
//! through a shared mapping (`writers` I3): a file that is sealed against stores gets none from a
//! device either.
//!
//! Locks: a fault's, one page at a time; then each page's owner's.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use arrayvec::ArrayVec;

use machine::{Machine, PageNo, PageRange, Prot, Unlocked, VaRange};

use crate::fault::{FaultError, Reach};
use crate::io::CLUSTER;
use crate::loan::NotOurs;
use crate::object::Pager;
use crate::owed::{Instance, Owed};
use crate::{Space, Uvm};

/// Pages of a program, pinned. Give them back by [`Uvm::unwire_pages`]. Dropping this does not,
/// panics with debug assertions, and fails every [audit](Uvm::audit) from then on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 2)?;
/// let pinned = uvm.wire_pages(held, space, range, Prot::WRITE)?;
/// for &page in pinned.pages() {
///     uvm.machine().write(page, 0, b"from a device");
/// }
/// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
/// # Ok(()) });
/// ```
#[must_use = "pages stay pinned until `unwire_pages` gets this back"]
pub struct Pinned<M: Machine> {
    pages: ArrayVec<PageNo, CLUSTER>,
    access: Prot,
    /// The objects that stores to the pages reach (I2); none where a device only reads.
    stored_to: Option<Box<StoredTo<M>>>,
    of: Instance,
}

type StoredTo<M> = ArrayVec<Arc<dyn Pager<M>>, CLUSTER>;

impl<M: Machine> Pinned<M> {
    /// The pages, in order of their addresses.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let pinned = uvm.wire_pages(held, space, range, Prot::READ)?;
    /// assert_eq!(pinned.pages().len(), 2);
    /// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn pages(&self) -> &[PageNo] {
        &self.pages
    }
}

impl<M: Machine> fmt::Debug for Pinned<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.pages).finish()
    }
}

impl<M: Machine> Drop for Pinned<M> {
    fn drop(&mut self) {
        if !self.pages.is_empty() {
            Owed::Pins.note_dropped();
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// Makes the pages of a range resident, as an access would, and pins them: at most [`CLUSTER`]
    /// pages, else as many as that from the range's start. `access` is what the device will do:
    /// [`Prot::READ`], or [`Prot::WRITE`] into them. No entry of the map changes. Cost: a fault for
    /// each page.
    ///
    /// # Errors
    /// [`FaultError`], as for a program's access; nothing is pinned then.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let pinned = uvm.wire_pages(held, space, range, Prot::READ)?;
    /// let mut byte = [0];
    /// uvm.machine().read(pinned.pages()[1], 0, &mut byte);
    /// assert_eq!(byte, [2]);
    /// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn wire_pages(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        access: Prot,
    ) -> Result<Pinned<M>, FaultError> {
        self.pin_pages(held, space, *range, access, Reach::AsProgram)
    }

    /// Like [`wire_pages`](Self::wire_pages), for a debugger's look or change: the paper's quick
    /// reference to another's memory. It may read what the program can't, and write private memory
    /// that the program can't write, as far as the mapping could be made to allow it; the program
    /// sees what was written, and may do no more than before.
    ///
    /// # Errors
    /// [`FaultError`]; nothing is pinned then.
    ///
    /// Source: 1998, section 4.3; UVM's `uvm_map_extract` with quick references.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let pinned = uvm.reference_pages(held, space, range, Prot::WRITE)?;
    /// uvm.machine().write(pinned.pages()[0], 0, &[0xcc]); // A breakpoint.
    /// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
    /// assert_eq!(load(uvm, space, range.start)?, [0xcc]);
    /// # Ok(()) });
    /// ```
    pub fn reference_pages(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        access: Prot,
    ) -> Result<Pinned<M>, FaultError> {
        self.pin_pages(held, space, *range, access, Reach::Forced)
    }

    fn pin_pages(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        access: Prot,
        reach: Reach,
    ) -> Result<Pinned<M>, FaultError> {
        let mut stored_to = None;
        if access.contains(Prot::WRITE) {
            self.mem().reserve_heap(size_of::<StoredTo<M>>() + 16)?;
            stored_to = Some(Box::new(StoredTo::<M>::new()));
        }
        let mut pinned = Pinned { pages: ArrayVec::new(), access, stored_to, of: self.instance };
        for va in range.iter_pages().take(CLUSTER) {
            match self.fault_and_pin(held, space, va, access, reach) {
                Ok(pin) => {
                    pinned.pages.push(pin.page);
                    if let Some(all) = &mut pinned.stored_to {
                        all.extend(pin.stored_to);
                    }
                }
                Err(e) => {
                    self.unpin_all(held, pinned);
                    return Err(e);
                }
            }
        }
        Ok(pinned)
    }

    /// Takes the pins back. What a device has written counts as changed from now.
    ///
    /// # Errors
    /// [`NotOurs`], and the pins, if they are another instance's.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let pinned = uvm.wire_pages(held, space, range, Prot::READ)?;
    /// uvm.unwire_pages(held, pinned).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    #[allow(clippy::result_large_err)]
    pub fn unwire_pages(
        &self,
        held: &mut Unlocked<'_>,
        pinned: Pinned<M>,
    ) -> Result<(), (NotOurs, Pinned<M>)> {
        if pinned.of != self.instance {
            return Err((NotOurs, pinned));
        }
        self.unpin_all(held, pinned);
        Ok(())
    }

    fn unpin_all(&self, held: &mut Unlocked<'_>, mut pinned: Pinned<M>) {
        let changed = pinned.access.contains(Prot::WRITE);
        for page in core::mem::take(&mut pinned.pages) {
            self.unpin_owned(&mut held.deeper(), page, changed);
        }
        for pager in pinned.stored_to.iter().flat_map(|all| all.iter()) {
            pager.object().unpin_writer();
        }
        self.mem().pages_may_go();
    }
}
