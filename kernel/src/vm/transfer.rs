//! Memory that changes hands: pages that become a program's, and ranges of addresses that are
//! passed as they are.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use machine::{NoMemory, PageRange, Pages, Prot, Va, PAGE_SIZE};
use spin::Once;
use uvm::{At, FaultError, Loan, LoanedPage, MapError, Name, Pass, Sharing, TransferError};

use super::space::{map_errno, pages_from, range, Space};
use super::system::with;
use super::Advice;
use crate::charge::{self, Charge};
use crate::errno::{Errno, Result, E2BIG, EACCES, EFAULT, EINVAL, ENODATA, ENOMEM};
use crate::mem::frames::KernelMachine;
use crate::mem::heap;
use crate::sched;
use crate::sync::{Mutex, SpinLock};

type Detached = uvm::Detached<KernelMachine>;

/// Makes pages on loan a program's own memory, where nothing was; returns where they are. The loan
/// has ended then.
///
/// # Errors
/// `ENOMEM`, and the pages.
pub fn transfer(space: &Space, pages: Loan) -> core::result::Result<u64, (Errno, Loan)> {
    let result = with(|uvm, held| uvm.transfer(held, space.get(), pages, At::Anywhere));
    result.map(|at| at.0).map_err(|(error, pages)| (transfer_errno(&error), pages))
}

/// Puts pages back that were [given](super::give), where no thread has had the addresses for
/// something else since. Nothing may be lost: a process is ended before this fails.
pub fn put_back(space: &Space, mut pages: Loan, addr: u64) {
    let bytes = Loan::bytes(pages.len()) * 16;
    loop {
        let put = with(|uvm, held| uvm.transfer(held, space.get(), pages, At::Fixed(Va(addr))));
        let Err((error, again)) = put else { return };
        let is_short = error == TransferError::NoMemory;
        let room =
            || heap::reserve(bytes).and_then(|()| super::new_page()).map(super::give_back_page);
        if !is_short || super::with_room_at_any_cost(room).is_err() {
            return super::give_back(again);
        }
        pages = again;
    }
}

/// How many of some pages on loan, from the first on, a program had better receive than have
/// copied; `least` or more, or none.
pub fn worth_remapping(space: &Space, pages: &[LoanedPage], least: usize) -> usize {
    with(|uvm, _| uvm.worth_remapping(space.get(), pages, least))
}

/// Puts pages where a program reads to, page aligned, in place of what is there.
///
/// # Errors
/// The pages again, to be copied.
pub fn receive(space: &Space, pages: Loan, addr: u64) -> core::result::Result<(), Loan> {
    with(|uvm, held| uvm.receive(held, space.get(), pages, Va(addr))).map_err(|(_, pages)| pages)
}

fn transfer_errno(error: &TransferError) -> Errno {
    match error {
        TransferError::NoMapping | TransferError::Protection => EFAULT,
        TransferError::Unsuitable | TransferError::NotOurs => EINVAL,
        TransferError::NoSpace | TransferError::NoMemory => ENOMEM,
    }
}

/// How an export gives memory to the processes that import it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Giving {
    /// Importers share the memory.
    Share,
    /// Importers get copies of what the memory is now.
    Copy,
    /// The memory leaves the giver, with a hole.
    Donate,
    /// The memory leaves the giver, with zeroes.
    DonateZero,
}

impl Giving {
    /// Pages of a range that are charged: there, or room that others may fill.
    fn room_in(self, space: &uvm::Space<KernelMachine>, range: PageRange) -> usize {
        match self {
            Giving::Share => anonymous_span(space, range),
            _ => with(|uvm, held| uvm.anonymous_room_in(held, space, range)),
        }
    }
}

/// Memory on its way from a program to the processes that import it.
pub struct Export {
    /// Taken out by the import of what was donated, or at the end.
    range: Mutex<Option<Detached>>,
    giving: Giving,
    pages: u64,
    /// Bytes that it is charged for itself.
    own: usize,
    /// What the exporting process is charged, as long as the memory is here: what is shared by its
    /// size, since others may fill it later.
    charge: SpinLock<Option<Charge>>,
}

/// What an entry of an export costs.
const ENTRY: usize = 256;

/// All that are there, by address, for audits.
static EXPORTS: SpinLock<BTreeMap<usize, Weak<Export>>> = SpinLock::new(BTreeMap::new());

impl Export {
    /// Takes whole pages from `addr` on out of a program's memory, or shares or copies them.
    /// Importers may do with it at most `prot`.
    ///
    /// # Errors
    /// `EINVAL` also for a copy of what shows a file or shared memory, since later stores to that
    /// would be seen; `ENOMEM` if nothing is mapped there or memory is short, `EACCES` if the
    /// program may not do `prot` itself.
    pub fn new(
        space: &Space,
        addr: u64,
        pages: u64,
        giving: Giving,
        prot: Prot,
    ) -> Result<Arc<Export>> {
        let export = Export::of_nothing(space, addr, pages, giving, prot)?;
        export.fill(space, addr)?;
        if let Some(detached) = export.range.lock().as_ref() {
            with(|uvm, held| uvm.limit(held, detached, prot));
        }
        Ok(export)
    }

    /// Like [`new`](Self::new), with nothing taken yet: the export is charged, and
    /// [filled](Self::fill) later.
    fn of_nothing(
        space: &Space,
        addr: u64,
        pages: u64,
        giving: Giving,
        prot: Prot,
    ) -> Result<Arc<Export>> {
        let range = pages_from(addr, pages)?;
        let (mut allowed, mut entries) = (true, 0);
        with(|uvm, held| {
            uvm.outline(held, space.get(), range, |e| {
                allowed &= e.max_prot.contains(prot);
                entries += 1;
            });
        });
        if !allowed {
            return Err(EACCES);
        }
        if entries > uvm::MOST_ENTRIES {
            return Err(E2BIG);
        }
        let there = match giving {
            // Other spaces that share the memory don't fill the copy.
            Giving::Copy => with(|uvm, held| uvm.anonymous_in(held, space.get(), range)),
            _ => giving.room_in(space.get(), range),
        };
        let own = entries * ENTRY + size_of::<Export>();
        let charge = charge::take(there * PAGE_SIZE + own);
        let charge = SpinLock::new(Some(charge.map_err(|_| ENOMEM)?));
        let export = Arc::new(Export { range: Mutex::new(None), giving, pages, own, charge });
        // Before the memory is in no space any more.
        EXPORTS.lock().insert(Arc::as_ptr(&export) as usize, Arc::downgrade(&export));
        Ok(export)
    }

    /// Takes the memory.
    ///
    /// # Errors
    /// `E2BIG`, `ENOMEM` if nothing is mapped there, memory is short, or the process may have no
    /// more kept.
    fn fill(&self, space: &Space, addr: u64) -> Result<()> {
        let range = pages_from(addr, self.pages)?;
        let pass = match self.giving {
            Giving::Share => Pass::Share,
            Giving::Copy => Pass::Copy,
            Giving::Donate => Pass::Donate,
            Giving::DonateZero => Pass::DonateZero,
        };
        let detached = with(|uvm, held| uvm.extract(held, space.get(), range, pass));
        let detached = detached.map_err(|error| match error {
            MapError::TooMany => E2BIG,
            MapError::NoMapping => ENOMEM,
            other => map_errno(other),
        })?;
        let mut shows_objects = false;
        with(|uvm, held| {
            uvm.outline(held, detached.space(), range, |e| shows_objects |= e.object.is_some());
        });
        if self.giving == Giving::Copy && shows_objects {
            with(|uvm, held| uvm.drop_detached(held, detached));
            return Err(EINVAL);
        }
        // What other threads mapped or filled meanwhile counts, too, and so do page tables that
        // came along.
        let tables = detached.space().pmap().tables();
        let there = self.giving.room_in(detached.space(), range) + tables;
        *self.range.lock() = Some(detached);
        let mut charge = self.charge.lock();
        let charged =
            charge.as_mut().map_or(Ok(()), |charge| charge.set(there * PAGE_SIZE + self.own));
        drop(charge);
        charged.map_err(|_| {
            self.put_back(space, addr);
            ENOMEM
        })
    }

    /// Its size in pages, holes too.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Maps what was donated where it was. Nothing may be lost: a process is ended before this
    /// fails, unless other threads have mapped something else where a donation has left a hole.
    fn put_back(&self, space: &Space, addr: u64) {
        let place = match self.giving {
            Giving::Share | Giving::Copy => return,
            Giving::Donate => uvm::Place::FixedNoReplace(Va(addr)),
            Giving::DonateZero => uvm::Place::Fixed(Va(addr)),
        };
        let again = || match self.import_at(space, place) {
            Err(ENOMEM) => Err(NoMemory),
            _ => Ok(()),
        };
        let _ = super::with_room_at_any_cost(again);
    }

    /// Loans what was donated, and gives it up: its pages are the borrower's alone then.
    ///
    /// # Errors
    /// `ENODATA` if it is gone; `ENOMEM` or `EFAULT` if a page can't be had, with nothing changed.
    pub fn loan(&self) -> Result<Loan> {
        let mut range = self.range.lock();
        let detached = range.as_ref().ok_or(ENODATA)?;
        let loan = with(|uvm, held| uvm.loan_to_kernel(held, detached.space(), detached.range()));
        let loan =
            loan.map_err(|error| if error == FaultError::NoMemory { ENOMEM } else { EFAULT })?;
        if let Some(detached) = range.take() {
            with(|uvm, held| uvm.drop_detached(held, detached));
        }
        drop(self.charge.lock().take());
        Ok(loan)
    }

    /// Maps the memory at `place`, in place of what is there, or anywhere; returns where.
    ///
    /// # Errors
    /// `ENODATA` if it was donated and is gone, `ENOMEM`, `EINVAL`; nothing has changed.
    pub fn import(&self, space: &Space, place: Option<u64>) -> Result<u64> {
        self.import_at(space, place.map_or(uvm::Place::Anywhere, |at| uvm::Place::Fixed(Va(at))))
    }

    #[allow(clippy::result_large_err)]
    fn import_at(&self, space: &Space, place: uvm::Place) -> Result<u64> {
        let mut range = self.range.lock();
        let detached = range.as_ref().ok_or(ENODATA)?;
        let pass = match self.giving {
            Giving::Share => Pass::Share,
            Giving::Copy => Pass::Copy,
            Giving::Donate | Giving::DonateZero => {
                let Some(detached) = range.take() else { return Err(ENODATA) };
                let result = with(|uvm, held| uvm.attach_range(held, space.get(), detached, place));
                return match result {
                    Ok(at) => {
                        drop(self.charge.lock().take());
                        Ok(at.0)
                    }
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

/// Pages of a range that may come to be private or anonymous memory; an object counts its pages
/// itself.
fn anonymous_span(space: &uvm::Space<KernelMachine>, range: PageRange) -> usize {
    let mut span = Pages(0);
    with(|uvm, held| {
        uvm.outline(held, space, range, |e| {
            if e.sharing == Sharing::Private || e.object.is_none() {
                span += e.range.intersect(range).pages();
            }
        });
    });
    span.0 as usize
}

/// A name of memory that came by a donation.
const DONATED: &str = "donated";

/// Memory of a program that another may read once, to be [taken](Export::donate): whole pages from
/// `addr` on, which are private, anonymous and may be written. Zeroes will take its place; where it
/// came by a donation itself, nothing will. `None` if it is of another kind.
///
/// # Errors
/// `ENOMEM`.
pub fn to_donate(space: &Space, addr: u64, pages: u64) -> Result<Option<Arc<Export>>> {
    let range = pages_from(addr, pages)?;
    let (mut is_plain, mut end) = (true, range.start);
    with(|uvm, held| {
        uvm.outline(held, space.get(), range, |e| {
            let is_private = e.sharing == Sharing::Private && e.object.is_none();
            is_plain &=
                e.range.start <= end && is_private && e.prot == Prot::READ_WRITE && !e.wired;
            end = e.range.end;
        });
    });
    if !is_plain || end < range.end {
        return Ok(None);
    }
    let giving =
        if is_donated(space, range) == Some(range) { Giving::Donate } else { Giving::DonateZero };
    Export::of_nothing(space, addr, pages, giving, Prot::READ_WRITE).map(Some)
}

impl Export {
    /// Takes memory that is [to be donated](to_donate), and notes that it came so.
    ///
    /// # Errors
    /// As for [`fill`](Self::fill).
    pub fn donate(&self, space: &Space, addr: u64) -> Result<()> {
        static NAME: Once<Arc<dyn Name>> = Once::new();
        self.fill(space, addr)?;
        if let Some(detached) = self.range.lock().as_ref() {
            with(|uvm, held| uvm.name(held, detached, NAME.call_once(|| Arc::new(DONATED))));
        }
        Ok(())
    }
}

/// The first mapping in a range, if it came by a donation.
fn is_donated(space: &Space, range: PageRange) -> Option<PageRange> {
    let (found, name) = with(|uvm, held| uvm.first_in(held, space.get(), range))?;
    (name.is_some_and(|name| name.text() == DONATED)).then_some(found.range)
}

/// Gives up the private memory of a range: what came by a donation is unmapped, the rest shows
/// zeroes, or its file, again.
///
/// # Errors
/// `ENOMEM` for a hole, after what lies before and behind it.
pub fn flush(space: &Space, addr: u64, len: u64) -> Result<()> {
    let rest = unmap_donated(space, addr, len)?;
    if rest.is_empty() {
        return Ok(());
    }
    super::advise(space, rest.start.0, rest.pages().bytes(), Advice::DontNeed)
}

/// Unmaps what a range begins with that came by donations; returns what is behind it.
///
/// # Errors
/// `ENOMEM`.
pub fn unmap_donated(space: &Space, addr: u64, len: u64) -> Result<PageRange> {
    let mut rest = range(addr, len)?;
    while !rest.is_empty() {
        let whole = |found: &PageRange| found.intersect(rest) == *found;
        let Some(found) = is_donated(space, rest).filter(whole) else { break };
        super::unmap(space, found.start.0, found.pages().bytes())?;
        sched::work_done(PAGE_SIZE);
        rest = rest.skip_to(found.end);
    }
    Ok(rest)
}

impl Drop for Export {
    /// What was not imported is freed.
    fn drop(&mut self) {
        if let Some(detached) = self.range.lock().take() {
            with(|uvm, held| uvm.drop_detached(held, detached));
        }
        EXPORTS.lock().remove(&(core::ptr::from_ref(self) as usize));
    }
}

/// Calls `f` with the spaces of all exports, in which memory is that no program has.
pub(super) fn with_exported<T>(f: impl FnOnce(&[&uvm::Space<KernelMachine>]) -> T) -> T {
    let exports: Vec<Arc<Export>> = EXPORTS.lock().values().filter_map(Weak::upgrade).collect();
    let ranges: Vec<_> = exports.iter().map(|export| export.range.lock()).collect();
    let spaces: Vec<_> =
        ranges.iter().filter_map(|range| range.as_ref().map(Detached::space)).collect();
    f(&spaces)
}
