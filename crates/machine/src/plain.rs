//! A pmap in its plain form: a port supplies tables, and this keeps the laws of [`crate::pmap`].
//!
//! ```text
//!   PlainPmap   reverse map, bits, shootdowns under way       laws P4, P5, P6
//!   --- Tables ------------------------------------------------------------------------
//!   the port    entries of a space by address, CPUs that may know them, how they forget
//! ```
//! One lock guards everything, but for what an MMU does to entries by itself: so an entry changes
//! by an exchange ([`Tables::set`]), whose answer says what had been accessed up to that moment.
//!
//! I1: what is in the tables at (space, address) is a place on its page's chain, and nothing
//! else is. I2: places are as many as [`PlainPmap::new`] has made, so that no mapping allocates. If
//! all are in use, a pageable mapping goes, which may be forgotten at any time (law P1).
//!
//! It is for a port that begins, for hosts and for tests. What a port of more CPUs does better: a
//! lock for each table, no shootdown of an entry that no CPU has used, whole tables at a time.

use alloc::vec;
use alloc::vec::Vec;

use crate::order::{Before, FreeList, Held, Ordered, PageCache, RawLock, ThreadCtx};
use crate::{CpuSet, NoMemory, PageNo, Pages, Pmap, Prot, Run, Shootdown, Va, VaRange, Wiring};

/// Mappings for each frame of the machine, on average (I2).
const PLACES: usize = 4;
const NIL: u32 = u32::MAX;

/// What tables say of an address.
///
/// ```
/// use machine::plain::Entry;
/// use machine::{PageNo, Prot, Wiring};
/// let (page, wiring) = (PageNo(7), Wiring::Pageable);
/// let entry = Entry { page, prot: Prot::READ_WRITE, wiring, seen: Prot::READ };
/// assert!(!entry.seen.contains(Prot::WRITE), "no store yet");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What is mapped.
    pub page: PageNo,
    /// What an access may do.
    pub prot: Prot,
    /// Whether the mapping may be forgotten (law P1).
    pub wiring: Wiring,
    /// `READ` if there was an access, and `WRITE` if there was a store, since the bits were
    /// cleared.
    pub seen: Prot,
}

/// What differs between MMUs. All but [`flush`](Self::flush) is called with the pmap's lock held;
/// pages for tables come from the page allocator, whose locks rank below. A space has a number that
/// no other has.
///
/// ```
/// use machine::plain::{Entry, PlainPmap, Tables};
/// use machine::{order::PageCache, Before, CpuSet, Held, NoMemory, Shootdown, Va, VaRange};
/// use std::collections::BTreeMap;
///
/// /// No MMU at all: programs look their addresses up here.
/// #[derive(Default)]
/// struct List(BTreeMap<(u64, u64), Entry>, u64);
///
/// impl Tables for List {
///     fn create<P: Before<PageCache>>(&mut self, _: &mut Held<'_, P>) -> Result<u64, NoMemory> {
///         self.1 += 1;
///         Ok(self.1)
///     }
///     fn destroy<P: Before<PageCache>>(&mut self, _: &mut Held<'_, P>, _: u64) {}
///     fn get(&self, space: u64, va: Va) -> Option<Entry> {
///         self.0.get(&(space, va.0)).copied()
///     }
///     fn first(&self, space: u64, range: VaRange) -> Option<(Va, Entry)> {
///         let mut there = self.0.range((space, range.start.0)..(space, range.end.0));
///         there.next().map(|(&(_, va), entry)| (Va(va), *entry))
///     }
///     fn set(&mut self, space: u64, va: Va, new: Option<Entry>) -> Option<Entry> {
///         match new {
///             Some(new) => self.0.insert((space, va.0), new),
///             None => self.0.remove(&(space, va.0)),
///         }
///     }
///     fn holders(&self, _: u64) -> CpuSet {
///         CpuSet::NONE
///     }
///     fn flush(_: &Shootdown) {}
/// }
///
/// type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let pmap = PlainPmap::<List, Lock>::new(List::default(), 100);
/// assert!(!machine::Pmap::is_mapped(&pmap, machine::PageNo(7)));
/// ```
pub trait Tables: Send + Sync {
    /// A new, empty space's number.
    ///
    /// # Errors
    /// [`NoMemory`]; nothing has changed.
    fn create<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>) -> Result<u64, NoMemory>;

    /// Frees a space's tables, of which no entry is left. A CPU that idles may have them loaded.
    fn destroy<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>, space: u64);

    /// Makes tables for an address, where entries need some.
    ///
    /// # Errors
    /// [`NoMemory`]; what was mapped still is.
    fn make<P: Before<PageCache>>(
        &mut self,
        _held: &mut Held<'_, P>,
        _space: u64,
        _va: Va,
    ) -> Result<(), NoMemory> {
        Ok(())
    }

    /// Whether there are tables for an address; without, nothing is mapped ahead of use.
    fn has_room(&self, _space: u64, _va: Va) -> bool {
        true
    }

    /// The entry of an address.
    fn get(&self, space: u64, va: Va) -> Option<Entry>;

    /// The first entry in a range. Cost: by tables, not by span.
    fn first(&self, space: u64, range: VaRange) -> Option<(Va, Entry)>;

    /// Exchanges the entry of an address that there are tables for, and returns what it was up to
    /// that moment. If the MMU may go on by what was there, less or nothing, the calling CPU
    /// forgets that.
    fn set(&mut self, space: u64, va: Va, new: Option<Entry>) -> Option<Entry>;

    /// CPUs that may have entries of a space cached. None, if what has left the tables is used by
    /// no CPU from that moment on.
    fn holders(&self, space: u64) -> CpuSet;

    /// Has CPUs forget: see [`Pmap::flush`].
    fn flush(down: &Shootdown);
}

/// Where a page is mapped: a chain for each page, and one of those that are free.
#[derive(Clone, Copy)]
struct Place {
    space: u64,
    va: Va,
    next: u32,
}

struct State<T> {
    tables: T,
    places: Vec<Place>,
    free: u32,
    /// The place that is looked at next when none is free.
    hand: usize,
    /// By frame: its first place, and what past mappings have seen.
    chains: Vec<u32>,
    bits: Vec<Prot>,
    /// Shootdowns that are not flushed (law P6).
    unfinished: u32,
}

impl<T: Tables> State<T> {
    /// Exchanges an entry, and has the page's chain and bits follow. What CPUs lose is noted.
    /// Cost: by the page's mappings.
    fn replace(&mut self, space: u64, va: Va, new: Option<Entry>, down: &mut Shootdown) {
        let old = self.tables.set(space, va, new);
        let is_same = old.map(|old| old.page) == new.map(|new| new.page);
        if let Some(old) = old {
            let still = new.filter(|_| is_same);
            self.bits[old.page.0 as usize] |= old.seen - still.map_or(Prot::NONE, |new| new.seen);
            if !is_same {
                self.unlink(old.page, space, va);
            }
            if !still.is_some_and(|new| new.prot.contains(old.prot)) {
                self.note(space, va, down);
            }
        }
        if let Some(new) = new.filter(|_| !is_same) {
            let place = self.free as usize;
            let chain = &mut self.chains[new.page.0 as usize];
            self.free = self.places[place].next;
            self.places[place] = Place { space, va, next: *chain };
            *chain = place as u32;
        }
    }

    /// Takes a place from its page's chain.
    fn unlink(&mut self, page: PageNo, space: u64, va: Va) {
        let mut before = None;
        let mut place = self.chains[page.0 as usize];
        while (self.places[place as usize].space, self.places[place as usize].va) != (space, va) {
            before = Some(place as usize);
            place = self.places[place as usize].next;
        }
        let next = core::mem::replace(&mut self.places[place as usize].next, self.free);
        self.free = place;
        match before {
            Some(before) => self.places[before].next = next,
            None => self.chains[page.0 as usize] = next,
        }
    }

    /// Notes which CPUs may know an address as it was: asked after the entry has changed. The
    /// shootdown counts from now on.
    fn note(&mut self, space: u64, va: Va, down: &mut Shootdown) {
        let holders = self.tables.holders(space);
        if !holders.is_empty() {
            down.note(space, VaRange::new(va, va + Pages(1)), holders);
            self.unfinished += u32::from(down.begin_count());
        }
    }

    /// Law P6: other CPUs may have lowered what the caller came for, and not flushed it yet.
    fn overtake(&self, down: &mut Shootdown) {
        if self.unfinished != u32::from(down.is_counted()) && !cfg!(feature = "__plant-overtake") {
            down.note_all(CpuSet::ALL);
        }
    }

    /// Lowers an entry to at most `prot`; says whether a wired one is gone.
    fn lower(
        &mut self,
        space: u64,
        va: Va,
        entry: Entry,
        prot: Prot,
        down: &mut Shootdown,
    ) -> bool {
        let prot = entry.prot & prot;
        if prot != entry.prot {
            let new = Entry { prot, ..entry };
            self.replace(space, va, Some(new).filter(|_| !prot.is_empty()), down);
        }
        prot.is_empty() && entry.wiring == Wiring::Wired
    }

    /// Sees to it that a place is free.
    fn make_place(&mut self, down: &mut Shootdown) -> Result<(), NoMemory> {
        for _ in 0..self.places.len() {
            if self.free != NIL {
                return Ok(());
            }
            let Place { space, va, .. } = self.places[self.hand];
            self.hand = (self.hand + 1) % self.places.len();
            if self.tables.get(space, va).is_some_and(|entry| entry.wiring == Wiring::Pageable) {
                self.replace(space, va, None, down);
            }
        }
        Err(NoMemory)
    }

    /// A page's mapping at a place, and the next place. The mapping may go then.
    fn at(&self, place: u32) -> Option<(u64, Va, Entry, u32)> {
        let Place { space, va, next } = *self.places.get(place as usize)?;
        let entry = self.tables.get(space, va).expect("I1");
        Some((space, va, entry, next))
    }

    fn has(&self, page: PageNo, bit: Prot) -> bool {
        let mut seen = self.bits[page.0 as usize];
        let mut place = self.chains[page.0 as usize];
        while let Some((_, _, entry, next)) = self.at(place) {
            seen |= entry.seen;
            place = next;
        }
        seen.contains(bit)
    }

    /// Clears a bit, notes in `down` where an entry had it, and says whether it was set.
    fn clear(&mut self, page: PageNo, bit: Prot, mut down: Option<&mut Shootdown>) -> bool {
        let was = self.has(page, bit);
        let mut place = self.chains[page.0 as usize];
        while let Some((space, va, entry, next)) = self.at(place) {
            if entry.seen.contains(bit) {
                let new = Entry { seen: entry.seen - bit, ..entry };
                self.replace(space, va, Some(new), &mut Shootdown::new());
                if let Some(down) = &mut down {
                    self.note(space, va, down);
                }
            }
            place = next;
        }
        self.bits[page.0 as usize] -= bit;
        was
    }
}

/// A pmap over a port's tables; `R` is the port's lock.
///
/// ```
/// use machine::plain::{PlainPmap, Tables};
/// use machine::{PageNo, Pmap, RawLock};
/// fn is_new<T: Tables, R: RawLock>(pmap: &PlainPmap<T, R>) -> bool {
///     (0..100).all(|n| !pmap.is_mapped(PageNo(n)))
/// }
/// ```
pub struct PlainPmap<T, R>(Ordered<FreeList, R, State<T>>);

impl<T: Tables, R: RawLock> PlainPmap<T, R> {
    /// For so many frames of the machine, of devices too (`Frames::numbers`).
    ///
    /// ```
    /// use machine::plain::{PlainPmap, Tables};
    /// use machine::RawLock;
    /// fn small<T: Tables + Default, R: RawLock>() -> PlainPmap<T, R> {
    ///     PlainPmap::new(T::default(), 100)
    /// }
    /// ```
    pub fn new(tables: T, frames: usize) -> Self {
        let none = Place { space: 0, va: Va(0), next: NIL };
        let last = (frames * PLACES) as u32;
        PlainPmap(Ordered::new(State {
            tables,
            places: (1..=last).map(|next| Place { next, ..none }).chain([none]).collect(),
            free: 0,
            hand: 0,
            chains: vec![NIL; frames],
            bits: vec![Prot::NONE; frames],
            unfinished: 0,
        }))
    }

    /// Has the lock, which is below all of the library's: so its token begins anew.
    fn locked<O>(&self, work: impl FnOnce(&mut State<T>) -> O) -> O {
        let mut thread = ThreadCtx::new();
        work(&mut self.0.lock(&mut thread.held()).0)
    }

    /// Has the tables to itself: for accesses of a machine without an MMU, and to look.
    ///
    /// ```
    /// use machine::plain::{PlainPmap, Tables};
    /// use machine::{RawLock, Va};
    /// fn is_seen<T: Tables, R: RawLock>(pmap: &PlainPmap<T, R>, space: u64, va: Va) -> bool {
    ///     pmap.tables(|tables| tables.get(space, va).is_some_and(|entry| !entry.seen.is_empty()))
    /// }
    /// ```
    pub fn tables<O>(&self, work: impl FnOnce(&mut T) -> O) -> O {
        self.locked(|state| work(&mut state.tables))
    }
}

impl<T: Tables, R: RawLock> Pmap for PlainPmap<T, R> {
    type Space = u64;

    fn create<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        self.locked(|state| state.tables.create(held))
    }

    fn destroy<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, space: u64) {
        self.locked(|state| state.tables.destroy(held, space));
    }

    fn enter<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &u64,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        self.locked(|state| {
            for (va, page) in run.iter() {
                state.tables.make(held, *space, va)?;
                let old = state.tables.get(*space, va).filter(|old| old.page == page);
                if old.is_none() {
                    state.make_place(down)?;
                }
                let mut seen = old.map_or(Prot::NONE, |old| old.seen) | access & Prot::WRITE;
                seen.set(Prot::READ, !access.is_empty() || seen.contains(Prot::READ));
                state.replace(*space, va, Some(Entry { page, prot, wiring, seen }), down);
            }
            Ok(())
        })
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &u64,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        self.locked(|state| {
            for (n, run) in pages.iter().enumerate() {
                let va = va + Pages(n as u64);
                let is_free =
                    state.tables.has_room(*space, va) && state.tables.get(*space, va).is_none();
                let Some((page, prot)) = run.filter(|_| is_free) else { continue };
                if state.free != NIL && may(n) {
                    let (wiring, seen) = (Wiring::Pageable, Prot::NONE);
                    let new = Entry { page, prot, wiring, seen };
                    state.replace(*space, va, Some(new), &mut Shootdown::new());
                }
            }
        });
    }

    fn remove<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &u64,
        range: VaRange,
        down: &mut Shootdown,
    ) {
        self.protect(held, space, range, Prot::NONE, down);
    }

    fn protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &u64,
        range: VaRange,
        prot: Prot,
        down: &mut Shootdown,
    ) {
        self.locked(|state| {
            let mut rest = range;
            while let Some((va, entry)) = state.tables.first(*space, rest) {
                state.lower(*space, va, entry, prot, down);
                rest.start = va + Pages(1);
            }
            state.overtake(down);
        });
    }

    fn unwire(&self, space: &u64, range: VaRange) -> Option<(Va, PageNo)> {
        self.locked(|state| {
            let is_wired = |(_, entry): &(Va, Entry)| entry.wiring == Wiring::Wired;
            let (va, entry) = mappings(&state.tables, *space, range).find(is_wired)?;
            let new = Entry { wiring: Wiring::Pageable, ..entry };
            state.replace(*space, va, Some(new), &mut Shootdown::new());
            Some((va, entry.page))
        })
    }

    fn part(&self, space: &u64, range: VaRange, count: usize) -> Va {
        self.tables(|tables| {
            mappings(tables, *space, range).nth(count).map_or(range.end, |(va, _)| va)
        })
    }

    fn extract(&self, space: &u64, va: Va) -> Option<(PageNo, Prot)> {
        let entry = self.tables(|tables| tables.get(*space, va.page_floor()));
        entry.map(|entry| (entry.page, entry.prot))
    }

    fn resident(&self, space: &u64) -> usize {
        let all = VaRange::new(Va(0), Va(u64::MAX).page_floor());
        self.tables(|tables| mappings(tables, *space, all).count())
    }

    fn page_protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        down: &mut Shootdown,
    ) -> u32 {
        self.locked(|state| {
            let mut wired = 0;
            let mut place = state.chains[page.0 as usize];
            while let Some((space, va, entry, next)) = state.at(place) {
                wired += u32::from(state.lower(space, va, entry, prot, down));
                place = if cfg!(feature = "__plant-reverse") { NIL } else { next };
            }
            state.overtake(down);
            wired
        })
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        self.locked(|state| state.unfinished != 0 || state.chains[page.0 as usize] != NIL)
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        self.locked(|state| state.has(page, Prot::READ))
    }

    /// No CPU is flushed: one that goes on with its translation costs the page its second chance.
    fn clear_referenced(&self, page: PageNo) -> bool {
        self.locked(|state| state.clear(page, Prot::READ, None))
    }

    fn is_modified(&self, page: PageNo) -> bool {
        self.locked(|state| state.has(page, Prot::WRITE))
    }

    /// CPUs are flushed: one whose translation says that the page is modified wouldn't say it
    /// again.
    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool {
        self.locked(|state| {
            let was = state.clear(page, Prot::WRITE, Some(down));
            if was {
                state.overtake(down);
            }
            was
        })
    }

    fn forget_modified(&self, page: PageNo) {
        self.locked(|state| state.bits[page.0 as usize] -= Prot::WRITE);
    }

    fn flush(&self, down: &Shootdown) {
        T::flush(down);
        if down.is_counted() {
            self.locked(|state| state.unfinished -= 1);
        }
    }
}

/// A space's mappings in a range, by address.
fn mappings<T: Tables>(
    tables: &T,
    space: u64,
    mut range: VaRange,
) -> impl Iterator<Item = (Va, Entry)> + use<'_, T> {
    core::iter::from_fn(move || {
        let found = tables.first(space, range)?;
        range.start = found.0 + Pages(1);
        Some(found)
    })
}
