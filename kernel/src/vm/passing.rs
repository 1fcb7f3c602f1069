//! Memory that changes hands: pages that become a program's, and ranges of addresses that are passed as they are.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use machine::{Pages, Prot, Va, VaRange};
use uvm::{At, Lent, Pass, TransferError};

use super::uvm::{map_errno, with, Space};
use crate::arch::machine::KernelMachine;
use crate::errno::{Errno, Result, EACCES, EFAULT, EINVAL, ENODATA, ENOMEM};
use crate::sync::{Mutex, SpinLock};

type Detached = uvm::Detached<KernelMachine>;

/// Makes pages on loan a program's own memory, where nothing was; returns where they are. The loan has ended then.
///
/// # Errors
/// `ENOMEM`, and the pages.
pub fn transfer(space: &Space, pages: Lent) -> core::result::Result<u64, (Errno, Lent)> {
    let result = with(|uvm, held| uvm.transfer(held, space.get(), pages, At::Anywhere));
    result.map(|at| at.0).map_err(|(error, pages)| (transfer_errno(&error), pages))
}

fn transfer_errno(error: &TransferError) -> Errno {
    match error {
        TransferError::NoMapping | TransferError::Protection => EFAULT,
        TransferError::Unsuitable => EINVAL,
        TransferError::NoSpace | TransferError::NoMemory => ENOMEM,
    }
}

/// How an export gives memory to those who import it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Giving {
    /// The same memory.
    Share,
    /// What it is now.
    Copy,
    /// It leaves the giver, with a hole.
    Donate,
    /// It leaves the giver, with zeroes.
    DonateZero,
}

/// Memory on its way from a program to those who import it.
pub struct Export {
    /// Taken out by the import of what was donated, or at the end.
    range: Mutex<Option<Detached>>,
    giving: Giving,
    pages: u64,
}

/// All that are there, for audits.
static EXPORTS: SpinLock<Vec<Weak<Export>>> = SpinLock::new(Vec::new());

impl Export {
    /// Takes whole pages from `addr` on out of a program's memory, or shares or copies them. Importers may do with it at most `prot`.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM` if nothing is mapped there or memory is short, `EACCES` if the program may not do `prot` itself.
    pub fn new(space: &Space, addr: u64, pages: u64, giving: Giving, prot: Prot) -> Result<Arc<Export>> {
        let range = VaRange::new(Va(addr), Va(addr) + Pages(pages));
        let mut allowed = true;
        with(|uvm, held| uvm.outline(held, space.get(), range, |e| allowed &= e.max_prot.contains(prot)));
        if !allowed {
            return Err(EACCES);
        }
        EXPORTS.lock().try_reserve(1).map_err(|_| ENOMEM)?;
        let pass = match giving {
            Giving::Share => Pass::Share,
            Giving::Copy => Pass::Copy,
            Giving::Donate => Pass::Donate,
            Giving::DonateZero => Pass::DonateZero,
        };
        let detached = with(|uvm, held| {
            let detached = uvm.extract(held, space.get(), range, pass)?;
            uvm.limit(held, &detached, prot);
            Ok(detached)
        });
        let detached = detached.map_err(|error| match map_errno(error) {
            EFAULT => ENOMEM,
            other => other,
        })?;
        let export = Arc::new(Export { range: Mutex::new(Some(detached)), giving, pages });
        let mut exports = EXPORTS.lock();
        exports.retain(|export| export.strong_count() != 0);
        exports.push(Arc::downgrade(&export));
        Ok(export)
    }

    /// Its size in pages, holes too.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Maps it at `place`, in place of what is there, or anywhere; returns where.
    ///
    /// # Errors
    /// `ENODATA` if it was donated and is gone, `ENOMEM`, `EINVAL`; nothing has changed.
    pub fn import(&self, space: &Space, place: Option<u64>) -> Result<u64> {
        let place = place.map_or(uvm::Place::Anywhere, |at| uvm::Place::Fixed(Va(at)));
        let mut range = self.range.lock();
        let detached = range.as_ref().ok_or(ENODATA)?;
        let pass = match self.giving {
            Giving::Share => Pass::Share,
            Giving::Copy => Pass::Copy,
            Giving::Donate | Giving::DonateZero => {
                let Some(detached) = range.take() else { return Err(ENODATA) };
                let result = with(|uvm, held| uvm.attach_range(held, space.get(), detached, place));
                return match result {
                    Ok(at) => Ok(at.0),
                    Err((error, detached)) => {
                        *range = Some(detached);
                        Err(map_errno(error))
                    }
                };
            }
        };
        let (from, all) = (detached.space(), detached.range());
        let at = with(|uvm, held| uvm.pass_range(held, from, all, space.get(), place, pass));
        at.map(|at| at.0).map_err(map_errno)
    }
}

impl Drop for Export {
    /// What nobody imported is freed.
    fn drop(&mut self) {
        if let Some(detached) = self.range.lock().take() {
            with(|uvm, held| uvm.drop_detached(held, detached));
        }
    }
}

/// Calls `f` with the spaces of all exports, in which memory is that no program has.
pub(super) fn with_exported<T>(f: impl FnOnce(&[&uvm::Space<KernelMachine>]) -> T) -> T {
    let exports: Vec<Arc<Export>> = EXPORTS.lock().iter().filter_map(Weak::upgrade).collect();
    let ranges: Vec<_> = exports.iter().map(|export| export.range.lock()).collect();
    let spaces: Vec<_> = ranges.iter().filter_map(|range| range.as_ref().map(Detached::space)).collect();
    f(&spaces)
}
