//! What the examples in the library's documentation begin with, so that they show only what they
//! are about: a VM system on a software machine, a thread's token, a space, a disk, a file. A
//! program has its own of each; `examples/` of the crate has whole ones.

use std::error::Error;
pub use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

pub use machine::order::{self, Nothing};
pub use machine::{
    Channel, Held, Machine, NoMemory, Pa, PageNo, PageRange, Pages, Pmap, Prot, ThreadCtx, Va,
    VaRange, PAGE_SIZE,
};
pub use uvm::page::{Class, Frames, Gather, Owner, PageFlags, Queue, Reserve};
pub use uvm::*;

pub use crate::{Config, SoftMachine};

/// The VM system of an example.
pub type System = Uvm<SoftMachine>;

/// Runs an example on a new machine, with a space of a gigabyte.
///
/// # Panics
/// If the example fails.
pub fn run(
    example: impl FnOnce(
        &System,
        &mut Held<'_, Nothing>,
        &Space<SoftMachine>,
    ) -> Result<(), Box<dyn Error>>,
) {
    let uvm = SoftMachine::new(Config::default()).into_uvm().expect("a new machine has memory");
    let mut thread = ThreadCtx::new();
    let held = &mut thread.held();
    let space = uvm.space_create(held, bounds()).expect("a new machine has memory");
    if let Err(why) = example(&uvm, held, &space) {
        panic!("{why}");
    }
    uvm.space_destroy(held, space);
}

/// The addresses of a space.
#[must_use]
pub fn bounds() -> PageRange {
    PageRange::sized(Va(1 << 30), Pages::floor(1 << 30)).unwrap_or_default()
}

/// `pages` pages from `start` on.
#[must_use]
pub fn pages(start: Va, pages: u64) -> PageRange {
    PageRange::sized(start, Pages(pages)).unwrap_or_default()
}

/// Private memory of so many pages, which begin with 1, 2, 3 and so on.
///
/// # Errors
/// What went wrong, if memory is short.
pub fn memory(
    uvm: &System,
    held: &mut Held<'_, Nothing>,
    space: &Space<SoftMachine>,
    len: u64,
) -> Result<PageRange, Box<dyn Error>> {
    let range = pages(uvm.map(held, space, &MapRequest::zero(Pages(len)))?, len);
    for (va, n) in range.iter_pages().zip(1..) {
        store(uvm, space, va, &[n])?;
    }
    Ok(range)
}

/// Stores as a program does.
///
/// # Errors
/// What the fault said that couldn't be resolved.
///
/// # Panics
/// If the machine finds a stale translation.
pub fn store(
    uvm: &System,
    space: &Space<SoftMachine>,
    va: Va,
    bytes: &[u8],
) -> Result<(), FaultError> {
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine().store(0, space.pmap(), va, bytes, fault).map_err(refused)
}

/// Loads as a program does.
///
/// # Errors
/// What the fault said that couldn't be resolved.
///
/// # Panics
/// If the machine finds a stale translation.
pub fn load<const N: usize>(
    uvm: &System,
    space: &Space<SoftMachine>,
    va: Va,
) -> Result<[u8; N], FaultError> {
    let mut bytes = [0; N];
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
    uvm.machine().load(0, space.pmap(), va, &mut bytes, fault).map_err(refused)?;
    Ok(bytes)
}

fn refused(denied: crate::Denied<FaultError>) -> FaultError {
    match denied {
        crate::Denied::Fault(why) => why,
        crate::Denied::Broken(what) => panic!("{what}"),
    }
}

/// Bytes that are a disk to swap on, or a file.
pub struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    fn each(
        &self,
        first: usize,
        pages: &[PageNo],
        mut move_page: impl FnMut(PageNo, &mut [u8]),
    ) -> Transfer {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (&page, place) in pages.iter().zip(bytes.chunks_exact_mut(PAGE_SIZE).skip(first)) {
            move_page(page, place);
        }
        Transfer::Done
    }
}

/// A disk with room for so many pages.
#[must_use]
pub fn disk(slots: usize) -> Arc<Bytes> {
    Arc::new(Bytes(Mutex::new(vec![0; slots * PAGE_SIZE])))
}

/// A file of so many pages that begins with `text`; the rest of it is zero.
///
/// # Errors
/// [`NoMemory`].
pub fn file(
    uvm: &System,
    held: &mut Held<'_, Nothing>,
    text: &str,
    pages: usize,
) -> Result<Arc<VnodePager<SoftMachine>>, NoMemory> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(pages * PAGE_SIZE, 0);
    VnodePager::new(uvm, held, Box::new(Bytes(Mutex::new(bytes))), Pages(pages as u64))
}

impl SwapDevice<SoftMachine> for Bytes {
    fn slots(&self) -> u32 {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(bytes.len() / PAGE_SIZE).unwrap_or(u32::MAX)
    }

    fn read(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.each(slot as usize, pages, |page, place| machine.write(page, 0, place))
    }

    fn write(
        &self,
        machine: &SoftMachine,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        self.each(slot as usize, pages, |page, place| machine.read(page, 0, place))
    }
}

impl Vnode<SoftMachine> for Bytes {
    fn read(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        self.each(index.0 as usize, pages, |page, place| machine.write(page, 0, place))
    }

    fn write(&self, machine: &SoftMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        self.each(index.0 as usize, pages, |page, place| machine.read(page, 0, place))
    }
}
