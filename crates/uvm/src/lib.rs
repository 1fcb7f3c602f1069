//! UVM: virtual memory after Cranor and Parulkar, as a library.
//!
//! # Theory
//! A *map* says what lies where in an address space, by *entries*. An entry has two layers: above,
//! an *amap* of *anons*, each one page of memory that has been written privately; below, an
//! *object*, a file's or a shared segment's pages, which a *pager* brings in. There are never more
//! than two, so a look-up ends after two steps, and reference counts alone say when a page may be
//! written in place and when it must be freed. The *pmap* caches what the maps say for the MMU and
//! may forget it. When memory is short the page daemon takes pages from their owners, which find
//! them again on swap or in their files.
//!
//! ```text
//!   Space ── Map ── Entry ─┬─ ARef ── Amap ── slots ── Anon ── page
//!     │                    └─ ORef ── dyn Pager ── Object ── page
//!     └── Pmap::Space (translations: a cache of the above)
//! ```
//!
//! # Using it
//! A host implements [`machine::Machine`] and [`machine::Pmap`] (see `docs/porting.md`), makes one
//! [`Uvm`], and calls it for every memory system call and page fault. `examples/` runs it on a
//! desk.
//!
//! # Reading order
//! [`map`](mod@map) (spaces and entries), `mapping` (what is done to them), `fork`,
//! [`fault`](mod@fault) (the four cases), `amap`, `anon`, `object`, [`pager`](mod@pager), `io` (how
//! a page is read and written), [`pageout`](mod@pageout) and [`swap`](mod@swap) (how one leaves;
//! `docs/paging.md` follows it), then `audit`, which checks the invariants that the others state.
//!
//! # Laws
//! * Unsafe code in one place: the pin by which a fault keeps its entry (`map::lock`).
//! * No operation sleeps but by [`machine::Machine::wait`], with nothing locked.
//! * What can fail is reserved before anything changes; out of memory is an error.
//! * The order of locks is a matter of types (`machine::order`).
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

/// What leaves are made of and counted by. A schedule checker puts its own in its place:
/// `uvm-check/tests/loom`.
mod counted {
    pub(crate) use alloc::sync::Arc;
    pub(crate) use core::sync::atomic::fence;
    pub(crate) use machine::lines::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use spin::Once;
}

mod amap;
mod anon;
mod audit;
mod describe;
mod error;
pub mod extract;
pub mod fault;
mod fork;
mod io;
mod knobs;
pub mod loan;
mod loanout;
pub mod map;
mod mapping;
mod memory;
mod object;
mod owed;
mod owner;
/// Page frames: a crate of its own, which the embedding kernel may use without the rest.
pub use page;
pub mod pageout;
pub mod pager;
mod pin;
pub mod refs;
pub mod stat;
pub mod swap;
pub mod transfer;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use machine::lines::{AtomicU32, AtomicU64, AtomicUsize};

use machine::{Machine, NoMemory, Ordered, PageNo, Ticket, Unlocked};

use crate::memory::Memory;
use crate::page::Frames;
use crate::pageout::{Last, Reclaim};

pub use audit::AuditError;
pub use describe::{EntryInfo, Layers, Outline, RangeStats};
pub use extract::{Detached, Pass, MOST_ENTRIES};
pub use fault::{FaultError, FaultHole, FaultKind, PreparedRead, Retry};
pub use io::{Outcome, ReadRequest, Transfer, CLUSTER};
pub use knobs::{BadShare, Knobs};
pub use loan::{Loan, LoanedPage, NotOurs};
pub use map::space::Space;
pub use map::{
    Advice, Backing, Inherit, Map, MapError, MapRequest, Name, Place, RangeError, Sharing,
};
pub use mapping::RemapPlace;
pub use object::{Object, ObjectBody, ObjectGuard, Removed};
pub use page::Quota;
pub use pageout::Progress;
pub use pager::{
    Access, AnonObject, Attached, DevicePager, GetError, Intent, IoError, Launder, Pager, Put,
    Vnode, VnodePager,
};
pub use pin::Pinned;
pub use stat::{Counter, Stat, COUNTERS};
pub use swap::{Slot, SwapDevice, SwapError, SwapId, SwapInfo};
pub use transfer::{At, TransferError};

/// A VM system on a machine: an instance, never a global.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(16)))?;
/// store(uvm, space, at, b"memory")?;
/// let child = uvm.fork(held, space)?;
/// assert_eq!(&load(uvm, &child, at)?, b"memory");
/// uvm.space_destroy(held, child);
/// # Ok(()) });
/// ```
pub struct Uvm<M: Machine> {
    memory: Memory<M>,
    anons: anon::Anons<M>,
    object_table: object::table::ObjectTable<M>,
    stat: Stat,
    knobs: Knobs,
    last_pass: pageout::LastPass<M>,
    waiters: pageout::Waiters<M>,
    left: amap::deferred::DeferredReleases<M>,
    borrowers: amap::borrowers::Borrowers<M>,
    /// Pages that are being written so that they can be freed.
    in_flight: AtomicUsize,
    /// Pages that are being read.
    coming_in: AtomicUsize,
    /// The anon at which the last search for stale slots ended.
    sweep_hand: AtomicU32,
    /// What untouched memory is loaned as.
    zero_page: spin::Once<PageNo>,
    /// The id of the next object.
    next_object: AtomicU64,
    /// The family of the next space that is created: see [`copiers`](object::copiers).
    next_family: AtomicU64,
    /// What its loans are known by.
    instance: owed::Instance,
    dropped_spaces: owed::DroppedSpaces,
}

impl<M: Machine> Uvm<M> {
    /// A VM system on `machine` that owns all free pages of `frames`. The embedding kernel may
    /// allocate from them, too: tables, buffers.
    ///
    /// # Errors
    /// [`NoMemory`] if the heap can't hold its tables.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// let machine = SoftMachine::new(Config::default());
    /// let frames = Arc::new(Frames::new(&[(Pa(0), 1024)], machine.cpus())?);
    /// let uvm = Uvm::new(machine, frames)?;
    /// assert_eq!(uvm.anons(), 0);
    /// # Ok::<(), NoMemory>(())
    /// ```
    pub fn new(machine: M, frames: Arc<Frames<M>>) -> Result<Self, NoMemory> {
        let anons = anon::Anons::new(frames.total(), frames.cpus())?;
        let cpus = frames.cpus();
        Ok(Uvm {
            memory: Memory::new(machine, frames),
            anons,
            object_table: Ordered::new(BTreeMap::new()),
            stat: Stat::new(cpus),
            knobs: Knobs::default(),
            last_pass: Ordered::new(None),
            waiters: pageout::Waiters::new(),
            left: amap::deferred::DeferredReleases::new(),
            borrowers: amap::borrowers::Borrowers::new(),
            in_flight: AtomicUsize::new(0),
            coming_in: AtomicUsize::new(0),
            sweep_hand: AtomicU32::new(0),
            zero_page: spin::Once::new(),
            next_object: AtomicU64::new(1),
            next_family: AtomicU64::new(1),
            instance: owed::Instance::new(),
            dropped_spaces: owed::DroppedSpaces::default(),
        })
    }

    /// The machine.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// uvm.machine().zero(page.page());
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn machine(&self) -> &M {
        &self.memory
    }

    /// The machine and its frames.
    #[inline]
    pub(crate) fn mem(&self) -> &Memory<M> {
        &self.memory
    }

    /// Physical memory.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// println!("{} of {} frames are free", uvm.frames().free(), uvm.frames().total());
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn frames(&self) -> &Frames<M> {
        self.memory.frames()
    }

    /// Physical memory, for what has frames of it as long as it lives itself: a swap device.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let frames: Arc<Frames<SoftMachine>> = uvm.shared_frames();
    /// assert_eq!(frames.total(), uvm.frames().total());
    /// # Ok(()) });
    /// ```
    pub fn shared_frames(&self) -> Arc<Frames<M>> {
        self.memory.frames.clone()
    }

    /// Counters.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
    /// uvm.fault(held, space, at, Prot::WRITE)?;
    /// assert_eq!(uvm.stat().get(Counter::Faults), 1);
    /// # Ok(()) });
    /// ```
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.stat.add(self.memory.cpu(), counter, n);
    }

    pub(crate) fn swap(&self) -> &swap::Swap<M> {
        &self.anons.swap
    }

    /// What an administrator may choose.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.knobs().set_most_entries(65_530);
    /// # Ok(()) });
    /// ```
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// Pages of anonymous memory, those on swap too.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(16)))?;
    /// assert_eq!(uvm.anons(), 0, "nothing was touched");
    /// store(uvm, space, at, b"x")?;
    /// assert_eq!(uvm.anons(), 1);
    /// # Ok(()) });
    /// ```
    pub fn anons(&self) -> usize {
        self.anons.in_use()
    }

    /// Heap bytes of the table of anons, which only grows, as far as the most anons there were at
    /// once made it. Cost: by the most anons that there can be.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let before = uvm.anon_table_bytes();
    /// memory(uvm, held, space, 64)?;
    /// assert!(uvm.anon_table_bytes() >= before);
    /// # Ok(()) });
    /// ```
    pub fn anon_table_bytes(&self) -> usize {
        self.anons.heap_bytes()
    }

    /// Lets the host see to others after each so many pages of a loop, at the `n`th page.
    #[inline]
    pub(crate) fn pause_after(&self, held: &mut Unlocked<'_>, n: usize) {
        const PAGES: usize = 32;
        if n % PAGES == PAGES - 1 {
            self.mem().pause(held);
        }
    }

    /// Runs attempts of an operation until one succeeds or fails for good: see [`Stop`].
    pub(crate) fn attempt<T, E: From<NoMemory> + PartialEq>(
        &self,
        held: &mut Unlocked<'_>,
        reserve: usize,
        once: impl FnMut(&mut Unlocked<'_>, usize) -> Result<T, Stop<E>>,
    ) -> Result<T, E> {
        self.attempt_counted(held, reserve, Last::Fail, once).0
    }

    /// Like [`attempt`](Self::attempt); also returns whether the thread slept. `once` gets the
    /// number of heap bytes that have been reserved for it.
    #[inline]
    pub(crate) fn attempt_counted<T, E: From<NoMemory> + PartialEq>(
        &self,
        held: &mut Unlocked<'_>,
        mut reserve: usize,
        last: Last,
        mut once: impl FnMut(&mut Unlocked<'_>, usize) -> Result<T, Stop<E>>,
    ) -> (Result<T, E>, bool) {
        let mut waited = false;
        let mut reclaim = Reclaim::new(self.frames(), last);
        loop {
            if reserve != 0 && self.memory.reserve_heap(reserve).is_err() {
                if self.make_room_for(held, &mut reclaim) {
                    continue;
                }
                return (Err(NoMemory.into()), waited);
            }
            if self.waiters.has_waiters() && !waited {
                self.queue_up(held, &mut reclaim);
            }
            let result = match once(held, reserve) {
                Err(Stop::Heap(bytes)) => {
                    reserve = bytes;
                    continue;
                }
                Err(Stop::Fail(e)) => {
                    if e == E::from(NoMemory) && self.make_room_for(held, &mut reclaim) {
                        continue;
                    }
                    Err(e)
                }
                Err(Stop::Wait(ticket)) => {
                    self.release_turn(held, &mut reclaim);
                    self.count(Counter::Waits, 1);
                    self.memory.wait(held, ticket);
                    waited = true;
                    continue;
                }
                Err(Stop::Read(start)) => {
                    self.release_turn(held, &mut reclaim);
                    self.start(held, start);
                    waited = true;
                    continue;
                }
                Ok(done) => Ok(done),
            };
            self.release_turn(held, &mut reclaim);
            return (result, waited);
        }
    }
}

/// Why an attempt ended without a result, with every lock released.
pub(crate) enum Stop<E> {
    /// It failed.
    Fail(E),
    /// Something must happen first.
    Wait(Ticket),
    /// A read must be started first, with nothing held.
    Read(ReadRequest),
    /// It needs this much heap, and has changed nothing yet.
    Heap(usize),
}

impl<E> Stop<E> {
    /// The attempt is to be made again from its beginning, with as much heap as it had.
    pub(crate) fn again(reserved: usize) -> Self {
        Stop::Heap(reserved)
    }

    /// Ends the attempt where it needs more heap than was reserved.
    pub(crate) fn ensure(need: usize, reserved: usize) -> Result<(), Self> {
        if need > reserved {
            Err(Stop::Heap(need))
        } else {
            Ok(())
        }
    }

    /// This end with another error.
    pub(crate) fn map<F>(self, to: impl FnOnce(E) -> F) -> Stop<F> {
        match self {
            Stop::Fail(e) => Stop::Fail(to(e)),
            Stop::Wait(ticket) => Stop::Wait(ticket),
            Stop::Read(start) => Stop::Read(start),
            Stop::Heap(bytes) => Stop::Heap(bytes),
        }
    }
}

impl Stop<GetError> {
    /// An attempt in which a pager had no page to give.
    pub(crate) fn of_get(e: GetError) -> Self {
        match e {
            GetError::Wait(ticket) => Stop::Wait(ticket),
            GetError::Read(start) => Stop::Read(start),
            e => Stop::Fail(e),
        }
    }
}

impl<E> From<E> for Stop<E> {
    fn from(e: E) -> Self {
        Stop::Fail(e)
    }
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
