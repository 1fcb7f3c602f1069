//! Page faults: from an address to a page.
//!
//! ```text
//!                      read                          write
//!   amap has an anon   1A map it, read-only          1A one reference: map it writable
//!     (anon.rs)           unless it may be written   1B more: copy it to a new anon, map that
//!
//!   the object has it  2A map it, read-only          2A shared: map the object's page writable
//!     (object.rs)         if the mapping is private  2B private: promote: copy it to a new anon
//!
//!   neither            2B promote a page of zeroes to a new anon
//! ```
//! Then neighbours that are resident anyway are mapped along (`neighbours.rs`), so that the next
//! fault doesn't come; and a run of first touches gets the pages that it will come to (`run.rs`).
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

mod anon;
mod neighbours;
mod object;
mod polled;
mod run;
mod swapped;

use crate::page::Gather;
use alloc::sync::Arc;
use core::cell::Cell;
use core::mem::MaybeUninit;
use machine::shared::Access;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot, Va, VaRange, Wiring};

use crate::io::ReadRequest;
use crate::map::tree::Tree;
use crate::map::{Entry, Map, Writes};
use crate::object::{GetError, Pager};
use crate::pageout::Last;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};
pub use polled::{FaultHole, PreparedRead, Retry};
pub(crate) use swapped::ReadAhead;

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

impl From<NoMemory> for FaultError {
    fn from(_: NoMemory) -> Self {
        FaultError::NoMemory
    }
}

impl From<GetError> for Stop<FaultError> {
    fn from(e: GetError) -> Self {
        match e {
            GetError::Wait(ticket) => Stop::Wait(ticket),
            GetError::Read(start) => Stop::Read(start),
            GetError::PastEnd => Stop::Fail(FaultError::Bus),
            GetError::Io => Stop::Fail(FaultError::Io),
            GetError::NoSpace => Stop::Fail(FaultError::NoSpace),
            GetError::NoMemory => Stop::Fail(FaultError::NoMemory),
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
#[derive(Clone, Copy)]
struct Asked<'a, M: Machine> {
    space: &'a Space<M>,
    /// The page's address.
    va: Va,
    access: Prot,
    pins: Pins<'a, M>,
    reach: Reach,
}

/// What one attempt knows, and what has come of it. The next attempt has one of its own: nothing of
/// this outlives a wait.
struct Fault<'a, M: Machine> {
    space: &'a Space<M>,
    va: Va,
    access: Prot,
    pins: Pins<'a, M>,
    reach: Reach,
    down: &'a mut Gather,
    /// A read that nobody waits for, to be started when the fault is resolved.
    ahead: Option<ReadRequest>,
    /// The hole that the access would store to: room for it must be found first.
    hole: Option<Hole>,
    /// Whether it was a first touch right behind a page, as it seems (`run.rs`).
    follows: bool,
}

/// A page that a fault has pinned; the object that stores to it reach through the entry, which
/// [counts](crate::Object::pin_writer) the pin.
pub(crate) struct Pin<M: Machine> {
    pub(crate) page: PageNo,
    pub(crate) stored_to: Option<Arc<dyn Pager<M>>>,
}

/// A hole in a file, by its object's name and its index.
type Hole = (u32, Pages);

/// An attempt that failed: why, and the hole that it failed for.
#[derive(PartialEq)]
struct Refused {
    why: FaultError,
    hole: Option<Hole>,
}

impl From<NoMemory> for Refused {
    fn from(e: NoMemory) -> Self {
        Refused { why: e.into(), hole: None }
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

impl<'a, M: Machine> Asked<'a, M> {
    #[inline]
    fn begin<'f>(&self, down: &'f mut Gather) -> Fault<'f, M>
    where
        'a: 'f,
    {
        let Asked { space, va, access, pins, reach } = *self;
        let (ahead, hole, follows) = (None, None, false);
        Fault { space, va, access, pins, reach, down, ahead, hole, follows }
    }
}

impl<M: Machine> Fault<'_, M> {
    /// The entry at the address, if it allows the access.
    #[inline]
    fn permit<'e>(&self, entry: Option<&'e Entry<M>>) -> Result<&'e Entry<M>, FaultError> {
        match entry {
            None => Err(FaultError::NoMapping),
            Some(entry) if !entry.prot.contains(self.access) && !self.may_reach(entry) => {
                Err(FaultError::Protection)
            }
            Some(entry) => Ok(entry),
        }
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
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        va: Va,
        access: Prot,
    ) -> Result<FaultKind, FaultError> {
        let asked =
            Asked { space, va: va.page_floor(), access, pins: None, reach: Reach::AsProgram };
        self.resolve(held, &asked)
    }

    /// Resolves an access as [`fault`](Self::fault) does, of an entry that is wired, and fails if
    /// the page can't be.
    pub(crate) fn fault_to_wire(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        va: Va,
        access: Prot,
    ) -> Result<(), FaultError> {
        let asked = Asked { space, va: va.page_floor(), access, pins: None, reach: Reach::ToWire };
        self.resolve(held, &asked).map(|_| ())
    }

    /// Resolves an access as [`fault`](Self::fault) does, and pins the page that it finds.
    pub(crate) fn fault_and_pin(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        va: Va,
        access: Prot,
        reach: Reach,
    ) -> Result<Pin<M>, FaultError> {
        let pin = Cell::new(None);
        let asked = Asked { space, va: va.page_floor(), access, pins: Some(&pin), reach };
        self.resolve(held, &asked)?;
        Ok(pin.take().expect("a fault is not resolved without a page"))
    }

    /// Resolves a fault.
    #[inline]
    fn resolve(
        &self,
        held: &mut Held<'_, order::Nothing>,
        asked: &Asked<'_, M>,
    ) -> Result<FaultKind, FaultError> {
        let (result, waited) = self.try_to_resolve(held, asked);
        match result {
            Ok(()) if waited => Ok(FaultKind::Major),
            Ok(()) => Ok(FaultKind::Minor),
            Err(Refused { why, hole: None }) => Err(why),
            Err(Refused { hole: Some(hole), .. }) => self.resolve_in_hole(held, asked, hole),
        }
    }

    /// The same but for holes; and whether it waited.
    #[inline]
    fn try_to_resolve(
        &self,
        held: &mut Held<'_, order::Nothing>,
        asked: &Asked<'_, M>,
    ) -> (Result<(), Refused>, bool) {
        let mut down = Gather::new();
        let (result, waited) = self.attempt_counted(
            held,
            BYTES + SMALL_AMAP_BYTES,
            Last::AskHost,
            |held, reserved| {
                let mut fault = asked.begin(&mut down);
                match self.fault_once(held, &mut fault, reserved) {
                    Ok(()) => Ok(fault.ahead),
                    Err(stop) => {
                        let (ahead, hole) = (fault.ahead, fault.hole);
                        Err(self.stop_fault(held, stop, ahead, hole, &mut down))
                    }
                }
            },
        );
        down.perform(self.frames(), self.mem(), held);
        self.stat().add(self.mem().cpu(), Counter::Faults, 1);
        let result = result.map(|ahead| {
            if let Some(start) = ahead {
                self.start(held, start);
            }
        });
        (result, waited)
    }

    /// How an attempt that didn't resolve a fault ends, with the CPUs told: it may wait.
    #[cold]
    fn stop_fault(
        &self,
        held: &mut Held<'_, order::Nothing>,
        stop: Stop<FaultError>,
        ahead: Option<ReadRequest>,
        hole: Option<Hole>,
        down: &mut Gather,
    ) -> Stop<Refused> {
        down.perform(self.frames(), self.mem(), held);
        // Before anything is waited for: somebody may wait for these pages, and hold up what we
        // wait for.
        match (ahead, stop) {
            (Some(start), _) | (None, Stop::Read(start)) => Stop::Read(start),
            (None, Stop::Fail(why)) => Stop::Fail(Refused { why, hole }),
            (None, Stop::Wait(ticket)) => Stop::Wait(ticket),
            (None, Stop::Heap(bytes)) => Stop::Heap(bytes),
        }
    }

    /// The rest of a fault that was refused for a hole: it begins anew once the file has room. If
    /// others have punched the hole again by then, it begins anew again: they have got on, and a
    /// thread that is being ended need not see the end of it.
    #[cold]
    #[inline(never)]
    fn resolve_in_hole(
        &self,
        held: &mut Held<'_, order::Nothing>,
        asked: &Asked<'_, M>,
        mut hole: Hole,
    ) -> Result<FaultKind, FaultError> {
        loop {
            if self.mem().has_fatal_signal() {
                return Err(FaultError::NoSpace);
            }
            self.fill_hole(held, hole)?;
            match self.try_to_resolve(held, asked).0 {
                Ok(()) => return Ok(FaultKind::Major),
                Err(Refused { why, hole: None }) => return Err(why),
                Err(Refused { hole: Some(again), .. }) => hole = again,
            }
        }
    }

    /// Has the file that a store was refused for find room for it. No turn in the line is kept
    /// meanwhile: the host may need memory itself.
    #[cold]
    fn fill_hole(
        &self,
        held: &mut Held<'_, order::Nothing>,
        (id, index): Hole,
    ) -> Result<(), FaultError> {
        let Some(pager) = self.pager(held, id) else { return Ok(()) };
        pager.fill_hole(self, held, index).map_err(|e| match e {
            GetError::Io => FaultError::Io,
            GetError::NoMemory => FaultError::NoMemory,
            GetError::NoSpace | GetError::PastEnd | GetError::Wait(_) | GetError::Read(_) => {
                FaultError::NoSpace
            }
        })
    }

    #[inline]
    fn fault_once(
        &self,
        held: &mut Held<'_, order::Nothing>,
        fault: &mut Fault<'_, M>,
        reserved: usize,
    ) -> Result<(), Stop<FaultError>> {
        let mut submap: Option<Arc<Map<M>>> = None;
        loop {
            let map = submap.as_deref().unwrap_or(&fault.space.map);
            let (is_hole, below);
            {
                let (tree, mut h) = map.read_now(self.mem(), held).map_err(Stop::Wait)?;
                let mut copy = MaybeUninit::uninit();
                let found = map.pin_if(tree, fault.va, &mut copy, |entry| {
                    let Some(entry) = entry else { return Ok(false) };
                    let entry = fault.permit(Some(entry))?;
                    Ok::<_, FaultError>(entry.submap.is_none() && !fault.needs_amap(entry))
                })?;
                match found {
                    Ok(entry) => return self.fault_entry(&mut h, fault, &entry),
                    Err(tree) => {
                        let entry = tree.get(fault.va);
                        is_hole = entry.is_none();
                        below = entry.and_then(|entry| entry.submap.clone());
                        if below.is_none() && !is_hole {
                            if let Some(tree) = tree.exclusive() {
                                return self.fault_after_change(&mut h, fault, map, tree, reserved);
                            }
                        }
                    }
                }
            }
            if is_hole {
                map.confirm_hole(self.mem(), held, fault.va).map_err(Stop::Wait)?;
                return Err(FaultError::NoMapping.into());
            }
            if below.is_none() {
                let nowhere = VaRange::new(fault.va, fault.va);
                let (tree, mut h) = map.lock_now(self.mem(), held, nowhere).map_err(Stop::Wait)?;
                return self.fault_after_change(&mut h, fault, map, tree, reserved);
            }
            submap = below;
        }
    }

    /// A fault that gives the entry an amap of its own first: an exclusive change of the map, by
    /// whoever came first; another thread may have made it, or mapped something else there.
    #[cold]
    #[inline(never)]
    fn fault_after_change(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        map: &Map<M>,
        mut tree: order::Guard<'_, M::Lock, Tree<Entry<M>>>,
        reserved: usize,
    ) -> Result<(), Stop<FaultError>> {
        let entry = fault.permit(tree.get(fault.va))?;
        if entry.submap.is_some() {
            return Err(Stop::again(reserved));
        }
        let range = entry.range;
        map.exclude(&tree, range);
        self.own_amap(held, fault, &mut tree, reserved)?;
        let look = |entry: Option<&Entry<M>>| fault.permit(entry).map(|_| true);
        let mut copy = MaybeUninit::uninit();
        let found = map.pin_if(Access::Exclusive(tree), fault.va, &mut copy, look)?;
        let Ok(entry) = found else { unreachable!("an entry that is permitted is pinned") };
        self.fault_entry_apart(held, fault, &entry)
    }

    /// As [`fault_entry`](Self::fault_entry), of which the common path has the only copy in line.
    #[inline(never)]
    fn fault_entry_apart(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
    ) -> Result<(), Stop<FaultError>> {
        self.fault_entry(held, fault, entry)
    }

    /// Always in line where it is called: the call costs each first touch 2 %.
    #[inline(always)]
    fn fault_entry(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
    ) -> Result<(), Stop<FaultError>> {
        match &entry.amap {
            Some(aref) => self.fault_anon(held, fault, entry, aref),
            None => self.fault_object(held, fault, entry),
        }
    }

    /// Gives the entry at the address, if it waits to copy, an amap of its own; asks for the heap
    /// that this needs first.
    #[cold]
    #[inline(never)]
    fn own_amap(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &Fault<'_, M>,
        tree: &mut Tree<Entry<M>>,
        reserved: usize,
    ) -> Result<(), Stop<FaultError>> {
        let mut used = 0;
        // Somebody else may have had the map meanwhile.
        let waits = |entry: &Entry<M>| fault.needs_amap(entry);
        if let Some(entry) = tree.get_mut(fault.va).filter(|e| e.amap.is_none() && waits(e)) {
            return self.give_amap(held, fault, entry, reserved);
        }
        if tree.get(fault.va).is_some_and(waits) {
            used = self.clip_to_copy(held, tree, fault.va, reserved)?;
        }
        match tree.get_mut(fault.va).filter(|e| waits(e)) {
            Some(entry) => self.give_amap(held, fault, entry, reserved - used),
            None => Ok(()),
        }
    }

    /// Gives an entry that waits to copy an amap of its own.
    #[inline(always)]
    fn give_amap(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &Fault<'_, M>,
        entry: &mut Entry<M>,
        reserved: usize,
    ) -> Result<(), Stop<FaultError>> {
        let need = BYTES + self.copy_amap_bytes(held, entry);
        if need > reserved {
            return Err(Stop::Heap(need));
        }
        if let Some(aref) = &entry.amap {
            aref.note_rewritten(held, entry.slot(aref, fault.va));
        }
        self.copy_amap(held, entry);
        Ok(())
    }

    /// Makes `page` what the address shows, wired if the entry is.
    #[inline]
    fn enter<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        page: PageNo,
        prot: Prot,
    ) -> Result<(), Stop<FaultError>>
    where
        P: machine::Before<order::PageQueues> + machine::Before<order::PageCache>,
    {
        if entry.wired || fault.pins.is_some() {
            return self.enter_kept(held, fault, entry, page, prot);
        }
        let (pmap, space) = (self.mem().pmap(), &fault.space.pmap);
        pmap.enter(held, space, fault.va, page, prot, fault.access, Wiring::Pageable, fault.down)
            .map_err(FaultError::from)?;
        Ok(())
    }

    /// The same where the page is to stay: wired, or pinned by whoever needs no translation to read
    /// it.
    #[cold]
    fn enter_kept<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        page: PageNo,
        prot: Prot,
    ) -> Result<(), Stop<FaultError>>
    where
        P: machine::Before<order::PageQueues> + machine::Before<order::PageCache>,
    {
        if fault.pins.is_some() && !self.frames().may_pin(page) {
            return Err(FaultError::TooOften.into());
        }
        // What only a debugger may do is not for a translation.
        let is_programs = prot.contains(fault.access);
        if is_programs && entry.wired {
            return self.enter_wired(held, fault, entry, page, prot);
        }
        if is_programs && fault.access == Prot::WRITE {
            let (pmap, space) = (self.mem().pmap(), &fault.space.pmap);
            pmap.enter(
                held,
                space,
                fault.va,
                page,
                prot,
                fault.access,
                Wiring::Pageable,
                fault.down,
            )
            .map_err(FaultError::from)?;
        }
        self.pin_if_wanted(fault, entry, page);
        Ok(())
    }

    /// Pins the page that a fault has just shown: its owner's lock is held, or it is on no queue
    /// yet.
    #[inline]
    fn pin_if_wanted(&self, fault: &Fault<'_, M>, entry: &Entry<M>, page: PageNo) {
        if let Some(to) = fault.pins {
            self.pin_shown(fault.access, entry, page, to);
        }
    }

    #[cold]
    fn pin_shown(&self, access: Prot, entry: &Entry<M>, page: PageNo, to: &Cell<Option<Pin<M>>>) {
        self.frames().wire(page);
        let is_stored_to = access == Prot::WRITE && entry.writes_to().is_some();
        let stored_to =
            entry.object.as_ref().filter(|_| is_stored_to).map(|oref| oref.pager.clone());
        if let Some(pager) = &stored_to {
            pager.object().pin_writer();
        }
        let before = to.replace(Some(Pin { page, stored_to }));
        assert!(before.is_none(), "one attempt resolves a fault");
    }

    /// Has every CPU forget what the address shows, before the page is copied that takes its place:
    /// a page of a file may be stored to meanwhile, and who has loaded that store from here must
    /// not find an older copy.
    #[inline]
    fn forget_at<P>(&self, held: &mut Held<'_, P>, fault: &mut Fault<'_, M>, entry: &Entry<M>)
    where
        P: machine::Before<order::PageQueues> + machine::Before<order::PageCache>,
    {
        if entry.wired || fault.pins.is_some() {
            self.end_wiring(held, fault);
        }
        self.mem().pmap().forget(held, &fault.space.pmap, fault.va, fault.down);
    }

    #[cold]
    fn enter_wired<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        page: PageNo,
        prot: Prot,
    ) -> Result<(), Stop<FaultError>>
    where
        P: machine::Before<order::PageQueues> + machine::Before<order::PageCache>,
    {
        let wiring = match self.frames().may_wire(page) {
            true => Wiring::Wired,
            false if fault.reach == Reach::ToWire => return Err(FaultError::TooOften.into()),
            false => Wiring::Pageable,
        };
        self.end_wiring(held, fault);
        let (pmap, space) = (self.mem().pmap(), &fault.space.pmap);
        pmap.enter(held, space, fault.va, page, prot, fault.access, wiring, fault.down)
            .map_err(FaultError::from)?;
        if wiring == Wiring::Wired {
            self.frames().wire(page);
        }
        self.pin_if_wanted(fault, entry, page);
        Ok(())
    }

    /// Makes what the address shows pageable.
    #[cold]
    fn end_wiring<P>(&self, held: &mut Held<'_, P>, fault: &mut Fault<'_, M>)
    where
        P: machine::Before<order::PageQueues> + machine::Before<order::PageCache>,
    {
        let (machine, pmap) = (self.mem(), self.mem().pmap());
        let one = VaRange::new(fault.va, fault.va + Pages(1));
        if let Some((_, old)) = pmap.unwire(&fault.space.pmap, one) {
            machine.frames().unwire(machine, held, old);
        }
    }

    /// Removes every translation of a page that is replaced in a slot which other entries refer to:
    /// whoever shares the slot by inheritance must find the new page. Whoever maps the old one
    /// lawfully finds it again by a fault.
    fn forget_everywhere<
        P: machine::Before<order::PageCache> + machine::Before<order::PageQueues>,
    >(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        page: PageNo,
    ) {
        let machine = self.mem();
        for _ in 0..machine.pmap().page_protect(held, page, Prot::NONE, fault.down) {
            machine.frames().unwire(machine, held, page);
        }
        fault.down.flush(machine.pmap());
    }
}
