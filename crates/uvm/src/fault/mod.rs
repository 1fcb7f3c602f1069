//! Page faults: from an address to a page.
//!
//! ```text
//!                      read                          write
//!   amap has an anon   1A map it, read-only          1A one reference: map it writable
//!                         unless it may be written   1B more: copy it to a new anon, map that
//!
//!   the object has it  2A map it, read-only          2A shared: map the object's page writable
//!                         if the mapping is private  2B private: promote: copy it to a new anon
//!
//!   neither            2B promote a page of zeroes to a new anon
//! ```
//! The path to these is `resolve.rs`; how their pages are entered, `enter.rs`. Then pages around
//! the fault that are resident anyway are mapped along (`around.rs`), so that the next fault
//! doesn't come; and a run of first touches gets the pages that it will come to (`run.rs`).
//!
//! A fault is one attempt. It finds the entry in the map and pins it, then takes the amap's lock,
//! then the object's or the anon's. It changes the map only where an amap must be made, and reads
//! the amap and the object where all is there or an empty slot is to be filled: so faults of many
//! CPUs in one address space run side by side, and beside those that map and unmap elsewhere
//! (`docs/locking.md`). What it needs from the heap is reserved first, what it must wait for is
//! waited for with nothing held, and then it starts over: of the ways to restart after I/O this is
//! the plain one, and costs a look-up against a disk access.
//!
//! A page that replaces another at the same address (1B, 2B) becomes visible only after every CPU
//! has forgotten the old one: else a third thread could read the old page after a second has read
//! what a first wrote to the new one.
//!
//! A kernel or program whose tasks are polled makes the attempts itself (`polled.rs`).
//!
//! Source: UVM's `uvm_fault`; 1999, sections 5.2 and 5.4.

mod around;
mod enter;
mod polled;
mod resolve;
mod run;
mod swapped;

use crate::page::Gather;
use alloc::sync::Arc;
use core::cell::Cell;
use machine::{Machine, NoMemory, PageNo, Pages, Prot, Unlocked, Va};

use crate::io::ReadRequest;
use crate::map::{Entry, RangeError, Writes};
use crate::object::{GetError, Pager};
use crate::pageout::Last;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};
pub use polled::{FaultHole, PreparedRead, Retry};

/// What a resolved fault cost.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// let kind = uvm.fault(held, space, at, Prot::WRITE)?;
/// assert_eq!(kind, FaultKind::Minor, "no page was read");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// Memory only.
    Minor,
    /// It waited for I/O.
    Major,
}

/// Why a fault was not resolved.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)).prot(Prot::READ))?;
/// assert_eq!(uvm.fault(held, space, at, Prot::WRITE), Err(FaultError::Protection));
/// let nowhere = uvm.fault(held, space, at + Pages(1), Prot::READ).unwrap_err();
/// assert_eq!(nowhere.to_string(), "nothing is mapped at the address");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// Nothing is mapped at the address.
    NoMapping,
    /// The mapping does not allow the access.
    Protection,
    /// The page lies past its object's end.
    Bus,
    /// The page could not be read from its object.
    Io,
    /// The page's file system is full, and the access needs a new page or, a store to a hole, a new
    /// place in the file.
    NoSpace,
    /// No page, table or heap memory is left.
    NoMemory,
    /// The page is wired or pinned as often as it may be.
    TooOften,
}

impl From<FaultError> for RangeError {
    fn from(e: FaultError) -> Self {
        match e {
            FaultError::NoMemory | FaultError::TooOften => RangeError::NoMemory,
            FaultError::NoMapping => RangeError::NoMapping,
            FaultError::Protection => RangeError::Access,
            FaultError::Bus | FaultError::Io | FaultError::NoSpace => RangeError::Fault,
        }
    }
}

impl From<GetError> for FaultError {
    /// Of an error that isn't to be waited for.
    fn from(e: GetError) -> Self {
        match e {
            GetError::PastEnd => FaultError::Bus,
            GetError::Io => FaultError::Io,
            GetError::NoMemory => FaultError::NoMemory,
            GetError::NoSpace | GetError::Wait(_) | GetError::Read(_) => FaultError::NoSpace,
        }
    }
}

/// Heap bytes that a fault may need, but for the copy of an amap: a slot in an amap and a cluster's
/// in an object, a chunk of anons, an amap.
const BYTES: usize = crate::amap::slots::SET_BYTES
    + crate::amap::slots::CLUSTER_BYTES
    + crate::anon::NEW_BYTES
    + crate::amap::NEW_BYTES;

/// What most amaps that are copied need, and each fault has at hand.
const SMALL_AMAP_BYTES: usize = 4096;

/// What is asked for: the same in each attempt.
struct Request<'a, M: Machine> {
    space: &'a Space<M>,
    /// The page's address.
    va: Va,
    access: Prot,
    pins: Pins<'a, M>,
    reach: Reach,
}

/// What comes of one attempt besides its result. The next attempt has one of its own: nothing of
/// this outlives a wait.
struct Effects<'a> {
    down: &'a mut Gather,
    /// A read that no thread waits for, to be started when the fault is resolved.
    ahead: Option<ReadRequest>,
}

/// An attempt that has found its entry.
struct Fault<'a, 'g, M: Machine> {
    uvm: &'a Uvm<M>,
    space: &'a Space<M>,
    va: Va,
    access: Prot,
    pins: Pins<'a, M>,
    reach: Reach,
    entry: &'a Entry<M>,
    effects: &'a mut Effects<'g>,
    /// Whether it was a first touch right behind a page, as it seems (`run.rs`).
    follows: bool,
}

/// What a step of an attempt comes to.
type Attempt<T> = Result<T, Stop<Refused>>;

/// A page that a fault has pinned; the object that stores to it reach through the entry, which
/// [counts](crate::Object::pin_writer) the pin.
pub(crate) struct Pin<M: Machine> {
    pub(crate) page: PageNo,
    pub(crate) stored_to: Option<Arc<dyn Pager<M>>>,
}

/// A hole in a file, by its object's name and its index.
type Hole = (u32, Pages);

/// Why an attempt failed.
#[derive(PartialEq)]
enum Refused {
    Error(FaultError),
    /// The access would store to this: room for it must be found first.
    Hole(Hole),
}

impl From<NoMemory> for Refused {
    fn from(e: NoMemory) -> Self {
        Refused::Error(e.into())
    }
}

impl From<FaultError> for Stop<Refused> {
    fn from(e: FaultError) -> Self {
        Stop::Fail(Refused::Error(e))
    }
}

impl From<NoMemory> for Stop<Refused> {
    fn from(e: NoMemory) -> Self {
        Stop::Fail(e.into())
    }
}

/// What an access may do that is not the program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// What the mapping allows.
    AsProgram,
    /// What the mapping could be made to allow; stores, in private memory: a debugger reads what
    /// can't be read, and plants breakpoints in what can't be written. The program's translations
    /// stay what they may be. Source: UVM's extraction with `UVM_EXTRACT_FIXPROT`; 1998, section
    /// 4.3.
    Forced,
    /// What the mapping allows; and the page is to be wired, where a program's own access finds it
    /// so or not.
    ToWire,
}

/// Where the attempt that resolves a fault puts its pin, if the page is to be pinned. A pin is
/// large, and few faults make one: it does not go the way of all others' results.
type Pins<'a, M> = Option<&'a Cell<Option<Pin<M>>>>;

impl<'a, M: Machine> Request<'a, M> {
    /// A program's access.
    #[inline]
    fn new(space: &'a Space<M>, va: Va, access: Prot) -> Self {
        Request { space, va: va.page_floor(), access, pins: None, reach: Reach::AsProgram }
    }

    /// Refuses what the entry at the address doesn't allow.
    #[inline]
    fn permit(&self, entry: &Entry<M>) -> Result<(), FaultError> {
        if entry.prot.contains(self.access) || self.may_reach(entry) {
            return Ok(());
        }
        Err(FaultError::Protection)
    }

    #[cold]
    fn may_reach(&self, entry: &Entry<M>) -> bool {
        let is_own = self.access != Prot::WRITE || entry.writes != Writes::Shared;
        self.reach == Reach::Forced && is_own && entry.max_prot.contains(self.access)
    }

    /// Whether the entry must get an amap of its own first, which changes the map.
    #[inline]
    fn needs_amap(&self, entry: &Entry<M>) -> bool {
        let zeroes = entry.object.is_none() && entry.amap.is_none();
        entry.writes == Writes::NeedsCopy && (self.access == Prot::WRITE || zeroes)
    }
}

impl<M: Machine> Uvm<M> {
    /// Resolves an access that the MMU refused: afterwards the access may be tried again. `access`
    /// is one of read, write, execute. Cost: O(log n) in the map's entries; a page copied or zeroed
    /// where one must be; the copy of an amap at the first write after a fork.
    ///
    /// # Errors
    /// See [`FaultError`]; nothing that a program could see has changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
    /// uvm.fault(held, space, at, Prot::WRITE)?;
    /// assert_eq!((uvm.anons(), uvm.machine().pmap().resident(space.pmap())), (1, 1));
    /// # Ok(()) });
    /// ```
    #[inline]
    pub fn fault(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        va: Va,
        access: Prot,
    ) -> Result<FaultKind, FaultError> {
        self.resolve(held, &Request::new(space, va, access))
    }

    /// Resolves an access as [`fault`](Self::fault) does, of an entry that is wired, and fails if
    /// the page can't be.
    pub(crate) fn fault_to_wire(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        va: Va,
        access: Prot,
    ) -> Result<(), FaultError> {
        let request = Request { reach: Reach::ToWire, ..Request::new(space, va, access) };
        self.resolve(held, &request).map(|_| ())
    }

    /// Resolves an access as [`fault`](Self::fault) does, and pins the page that it finds.
    pub(crate) fn fault_and_pin(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        va: Va,
        access: Prot,
        reach: Reach,
    ) -> Result<Pin<M>, FaultError> {
        let pin = Cell::new(None);
        let request = Request { pins: Some(&pin), reach, ..Request::new(space, va, access) };
        self.resolve(held, &request)?;
        Ok(pin.take().expect("a fault is not resolved without a page"))
    }

    #[inline]
    fn resolve(
        &self,
        held: &mut Unlocked<'_>,
        request: &Request<'_, M>,
    ) -> Result<FaultKind, FaultError> {
        match self.try_to_resolve(held, request) {
            (Ok(()), true) => Ok(FaultKind::Major),
            (Ok(()), false) => Ok(FaultKind::Minor),
            (Err(Refused::Error(e)), _) => Err(e),
            (Err(Refused::Hole(hole)), _) => self.resolve_in_hole(held, request, hole),
        }
    }

    /// Makes attempts until one resolves the fault or is refused. Returns whether it waited, too.
    #[inline]
    fn try_to_resolve(
        &self,
        held: &mut Unlocked<'_>,
        request: &Request<'_, M>,
    ) -> (Result<(), Refused>, bool) {
        let (mut down, mut ahead) = (Gather::new(), None);
        let (reserve, last) = (BYTES + SMALL_AMAP_BYTES, Last::AskHost);
        let (result, waited) = self.attempt_counted(held, reserve, last, |held, reserved| {
            let mut effects = Effects { down: &mut down, ahead: None };
            match self.fault_once(held, request, &mut effects, reserved) {
                Ok(()) => {
                    ahead = effects.ahead;
                    Ok(())
                }
                Err(stop) => Err(self.stop_fault(held, stop, effects)),
            }
        });
        down.perform(self.frames(), self.mem(), held);
        self.count(Counter::Faults, 1);
        if let Some(start) = ahead {
            self.start(held, start);
        }
        (result, waited)
    }

    /// How an attempt that didn't resolve a fault ends, with the CPUs flushed: it may wait.
    #[cold]
    fn stop_fault(
        &self,
        held: &mut Unlocked<'_>,
        stop: Stop<Refused>,
        effects: Effects<'_>,
    ) -> Stop<Refused> {
        effects.down.perform(self.frames(), self.mem(), held);
        // Before anything is waited for: another thread may wait for these pages, and hold up what
        // this one waits for.
        effects.ahead.map_or(stop, Stop::Read)
    }

    /// The rest of a fault that was refused for a hole: it begins anew once the file has room. If
    /// others have punched the hole again by then, it begins anew again: they have got on, and a
    /// thread that is being ended need not see the end of it.
    #[cold]
    #[inline(never)]
    fn resolve_in_hole(
        &self,
        held: &mut Unlocked<'_>,
        request: &Request<'_, M>,
        mut hole: Hole,
    ) -> Result<FaultKind, FaultError> {
        loop {
            if self.mem().has_fatal_signal() {
                return Err(FaultError::NoSpace);
            }
            self.fill_hole(held, hole)?;
            match self.try_to_resolve(held, request).0 {
                Ok(()) => return Ok(FaultKind::Major),
                Err(Refused::Error(e)) => return Err(e),
                Err(Refused::Hole(again)) => hole = again,
            }
        }
    }

    /// Has the file that a store was refused for find room for it. No turn in the line is kept
    /// meanwhile: the host may need memory itself.
    #[cold]
    fn fill_hole(&self, held: &mut Unlocked<'_>, (id, index): Hole) -> Result<(), FaultError> {
        let Some(pager) = self.pager(held, id) else { return Ok(()) };
        Ok(pager.fill_hole(self, held, index)?)
    }
}
