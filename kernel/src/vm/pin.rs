//! Pages of the running program, pinned for a device that moves bytes to or from them itself:
//! transfers by `O_DIRECT`.
//!
//! Nothing of it is in the map: what is pinned stands in a [`Pins`] on the caller's stack (1999,
//! section 3.2).

use machine::PageNo;
use uvm::{FaultError, Pinned};

use super::space::{access_prot, pages_from, Space};
use super::system::with;
use super::Access;
use crate::errno::{Result, EFAULT, ENOMEM};
use crate::mem::frames::KernelMachine;

/// Pinned pages; they are let go when this is dropped.
pub struct Pins {
    /// Taken out only when dropped.
    pinned: Option<Pinned<KernelMachine>>,
}

impl Pins {
    /// Brings `pages` pages from `addr` on in, as an access would, and pins them; or fewer of them,
    /// one at least. `access` is the device's: it writes what a program reads from it.
    ///
    /// # Errors
    /// `EFAULT`, as for an access of the kernel; `ENOMEM`.
    pub fn new(space: &Space, addr: u64, pages: u64, access: Access) -> Result<Pins> {
        let range = pages_from(addr, pages)?;
        Self::of(with(|uvm, held| uvm.wire_pages(held, space.get(), range, access_prot(access))))
    }

    /// Pins pages as [`new`](Self::new) does, for a debugger, which may do more than the program
    /// itself.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_debugger(space: &Space, addr: u64, pages: u64, access: Access) -> Result<Pins> {
        let range = pages_from(addr, pages)?;
        Self::of(with(|uvm, held| {
            uvm.reference_pages(held, space.get(), range, access_prot(access))
        }))
    }

    fn of(pinned: core::result::Result<Pinned<KernelMachine>, FaultError>) -> Result<Pins> {
        match pinned {
            Ok(pinned) => Ok(Pins { pinned: Some(pinned) }),
            Err(FaultError::NoMemory | FaultError::TooOften) => Err(ENOMEM),
            Err(_) => Err(EFAULT),
        }
    }

    /// The pages, in order of their addresses.
    pub fn pages(&self) -> &[PageNo] {
        self.pinned.as_ref().map_or(&[], Pinned::pages)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take() {
            let is_ours = with(|uvm, held| uvm.unwire_pages(held, pinned).is_ok());
            assert!(is_ours, "there is one VM system");
        }
    }
}
