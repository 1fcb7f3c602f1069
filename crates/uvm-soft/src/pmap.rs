//! The Pmap contract over plain tables.
//!
//! One lock guards tables and TLBs of all spaces and CPUs, so that a simulated access (look-up,
//! bits, data) is as indivisible as an instruction is against an interrupt: `flush` returns only
//! between accesses. The road not taken, a lock for each space, would buy speed that no test here
//! needs and cost the simple reverse map.
//!
//! CPUs send each other shootdown requests by [`Notes`], as a kernel's do: a CPU uses translations
//! while a thread's access on it lasts (`access`), and looks into its box before.
//!
//! Locks: `state` is below every VM lock and held by no caller.

use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::notes::{Forget, Left};
use machine::{
    Before, CpuSet, Held, NoMemory, Notes, PageNo, Pages, Pmap, Prot, RawLock, Run, Shootdown, Va,
    VaRange, Wiring, PAGE_SHIFT,
};

use crate::config::{Config, Plant};
use crate::heap::{host, Own};
use crate::hooks::{Hooks, Moment};
use crate::inject::Injector;
use crate::rng::Rng;
use crate::tables::{Pte, Spot, Tables, MODIFIED, REFERENCED};
use crate::threads::Threads;
use crate::tlb::Tlb;
use machine::order::PageCache;

/// An address space's tables: its name in the software MMU.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// memory(uvm, held, space, 1)?;
/// let tables: &uvm_soft::SoftSpace = space.pmap();
/// assert_eq!(uvm.machine().pmap().mappings(tables).len(), 1);
/// # Ok(()) });
/// ```
#[derive(Debug)]
pub struct SoftSpace {
    pub(crate) id: u64,
}

/// A mapping as tables have it.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 1)?;
/// let mapping = uvm.machine().pmap().mappings(space.pmap())[0];
/// assert_eq!((mapping.va, mapping.prot), (range.start, Prot::READ_WRITE));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Where.
    pub va: Va,
    /// To what.
    pub page: PageNo,
    /// For what.
    pub prot: Prot,
    /// Whether it may be forgotten.
    pub wiring: Wiring,
}

/// What the MMU has done since it was made.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// memory(uvm, held, space, 1)?;
/// println!("{:?}", uvm.machine().pmap().counters());
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Mappings entered, one at a time.
    pub enters: u64,
    /// Mappings entered ahead of use.
    pub ahead: u64,
    /// Flushes of the calling CPU.
    pub local_flushes: u64,
    /// Flushes of other CPUs.
    pub remote_flushes: u64,
    /// CPUs flushed, over all remote flushes.
    pub told: u64,
    /// Those of them that were using translations just then: a kernel interrupts these.
    pub interrupts: u64,
    /// TLB entries that flushes dropped.
    pub dropped: u64,
    /// TLB fills.
    pub fills: u64,
    /// Accesses that found no translation or too few rights.
    pub misses: u64,
    /// Mappings forgotten at random.
    pub forgotten: u64,
}

pub(crate) struct State {
    pub(crate) tables: Tables,
    pub(crate) tlbs: Vec<Tlb>,
    pub(crate) counters: Counters,
    rng: Rng,
    next_space: u64,
    /// Shootdowns that are not flushed (law P6).
    counted: u32,
    /// What the tables and the flushes get wrong.
    plant: Option<Plant>,
}

/// Places for other threads to run before a flush is done.
const FLUSH_STEPS: usize = 6;

/// The software MMU; made by `SoftMachine::new`.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// memory(uvm, held, space, 1)?;
/// let pmap: &uvm_soft::SoftPmap = uvm.machine().pmap();
/// pmap.audit()?;
/// # Ok(()) });
/// ```
pub struct SoftPmap {
    state: Mutex<State>,
    /// Each CPU's box.
    notes: Vec<Notes>,
    /// Fails a call of `enter` that needs a table page, or of `create`.
    pub tables: Injector,
    /// Code of a test that runs in the middle of a call.
    pub hooks: Hooks,
    forget_one_in: u64,
    plant: Option<Plant>,
    cpu: fn() -> usize,
    pause: fn(),
    wait_until: fn(&mut dyn FnMut() -> bool),
}

impl SoftPmap {
    pub(crate) fn new<T: Threads>(config: &Config, pages: usize) -> SoftPmap {
        SoftPmap {
            state: Mutex::new(State {
                tables: Tables::new(pages),
                tlbs: (0..config.cpus).map(|_| Tlb::default()).collect(),
                counters: Counters::default(),
                rng: Rng::new(config.seed),
                next_space: 1,
                counted: 0,
                plant: config.plant,
            }),
            notes: (0..config.cpus).map(|_| Notes::new()).collect(),
            tables: Injector::default(),
            hooks: Hooks::default(),
            forget_one_in: config.forget_one_in,
            plant: config.plant,
            cpu: T::cpu,
            pause: T::pause,
            wait_until: |done| T::Lock::wait_until(done),
        }
    }

    /// All mappings of a space, by address.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 2)?;
    /// assert_eq!(uvm.machine().pmap().mappings(space.pmap()).len(), 2);
    /// # Ok(()) });
    /// ```
    pub fn mappings(&self, space: &SoftSpace) -> Vec<Mapping> {
        let state = self.lock();
        let ptes = state.tables.space(space.id).ptes.iter();
        ptes.map(|(&vpn, pte)| Mapping {
            va: Va(vpn << PAGE_SHIFT),
            page: pte.page,
            prot: pte.prot,
            wiring: if pte.wired { Wiring::Wired } else { Wiring::Pageable },
        })
        .collect()
    }

    /// Shootdowns that have taken something from the tables and flushed no CPU yet.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.machine().pmap().unflushed(), 0);
    /// # Ok(()) });
    /// ```
    pub fn unflushed(&self) -> u32 {
        self.lock().counted
    }

    /// What the MMU has done.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// println!("{:?}", uvm.machine().pmap().counters());
    /// # Ok(()) });
    /// ```
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Forgets all pageable mappings of all spaces, as law P1 allows.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// uvm.machine().pmap().forget_all();
    /// assert_eq!(uvm.machine().pmap().resident(space.pmap()), 0);
    /// assert_eq!(load(uvm, space, range.start)?, [1], "the next fault maps it again");
    /// # Ok(()) });
    /// ```
    pub fn forget_all(&self) {
        let state = &mut *self.lock();
        let spots = state.forgettable(self.planted(Plant::ForgetWired));
        for spot in spots {
            state.forget(spot);
        }
    }

    /// How a CPU could still get at a page, if it can: a mapping, or a translation that no flush
    /// has named.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let page = uvm.new_page(held)?;
    /// assert_eq!(uvm.machine().pmap().reach(page.page()), None);
    /// uvm.return_page(held, page).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn reach(&self, page: PageNo) -> Option<String> {
        let state = self.settled();
        if let Some((space, vpn)) = state.tables.reverse[page.0 as usize].first() {
            return Some(format!("space {space} maps it at {vpn:#x}000"));
        }
        let tlbs = state.tlbs.iter().enumerate();
        tlbs.filter(|(_, tlb)| tlb.knows_page(page))
            .map(|(cpu, _)| format!("cpu {cpu} has a translation"))
            .next()
    }

    /// Checks the tables against the reverse map, and every TLB against the tables. Only between
    /// operations.
    ///
    /// # Errors
    /// A sentence that names the first entry that should be gone.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 1)?;
    /// uvm.machine().pmap().audit()?;
    /// # Ok(()) });
    /// ```
    pub fn audit(&self) -> Result<(), String> {
        let state = self.settled();
        state.tables.audit()?;
        for (cpu, tlb) in state.tlbs.iter().enumerate() {
            tlb.audit(&state.tables).map_err(|e| format!("stale TLB of cpu {cpu}: {e}"))?;
        }
        Ok(())
    }

    pub(crate) fn lock(&self) -> Own<MutexGuard<'_, State>> {
        Own::new(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enters the contract: another thread may run first, and perhaps something is forgotten.
    fn enter_call(&self) -> Own<MutexGuard<'_, State>> {
        (self.pause)();
        let mut state = self.lock();
        if state.rng.one_in(self.forget_one_in) {
            state.forget_one(self.plant == Some(Plant::ForgetWired));
        }
        state
    }

    /// A CPU may use its translations from now on, until [`end_use`](Self::end_use).
    pub(crate) fn begin_use(&self, cpu: usize) {
        if self.planted(Plant::LateUse) {
            self.take_notes(cpu, &mut self.lock());
            self.hooks.come(Moment::Entering);
            (self.pause)();
            return self.notes[cpu].begin_use(|_| ());
        }
        self.hooks.come(Moment::Entering);
        // Under the lock: a thread that looks at all TLBs finds what a note asks for done, or the
        // note.
        self.notes[cpu].begin_use_by(|_| {
            self.hooks.come(Moment::Forgetting);
            self.take_notes(cpu, &mut self.lock());
        });
    }

    /// The CPU uses none any more.
    pub(crate) fn end_use(&self, cpu: usize) {
        self.notes[cpu].end_use();
    }

    fn take_notes(&self, cpu: usize, state: &mut State) {
        self.notes[cpu].take(|what| state.forget_noted(cpu, what));
    }

    /// What there is when all CPUs have done as their notes say.
    fn settled(&self) -> Own<MutexGuard<'_, State>> {
        let mut state = self.lock();
        (0..self.notes.len()).for_each(|cpu| self.take_notes(cpu, &mut state));
        state
    }

    pub(crate) fn planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }
}

impl State {
    /// Lowers one mapping to at most `prot` and notes what CPUs must forget.
    fn lower(&mut self, spot: Spot, prot: Prot, down: &mut Shootdown) {
        let Some(pte) = self.tables.get(spot) else { return };
        let raises = self.plant == Some(Plant::ProtectRaises) && prot != Prot::NONE;
        let left = if raises { prot } else { pte.prot & prot };
        if prot == Prot::NONE {
            self.tables.clear(spot);
            if self.plant == Some(Plant::LoseBits) {
                self.tables.clear_bit(pte.page, MODIFIED);
                self.tables.clear_bit(pte.page, REFERENCED);
            }
        } else if left != pte.prot {
            self.tables.set_prot(spot, left);
        } else {
            return;
        }
        self.note(spot, down);
    }

    /// Law P6, for a range.
    fn overtake_nobody(&mut self, space: u64, range: VaRange, down: &mut Shootdown) {
        if self.plant == Some(Plant::OvertakeOthers) {
            return;
        }
        if self.counted != u32::from(down.is_counted()) {
            down.note(space, range, self.tables.space(space).held_by);
        }
        self.counted += u32::from(down.begin_count());
    }

    /// Law P6, for a page.
    fn overtake_nobody_by_page(&self, down: &mut Shootdown) {
        if self.plant == Some(Plant::OvertakeOthers) {
            return;
        }
        if self.counted != u32::from(down.is_counted()) {
            down.note_all(CpuSet::first(self.tlbs.len()));
        }
    }

    fn note(&self, (space, vpn): Spot, down: &mut Shootdown) {
        let start = Va(vpn << PAGE_SHIFT);
        down.note(space, VaRange::new(start, start + Pages(1)), self.tables.space(space).held_by);
    }

    fn spots_in(&self, space: u64, range: VaRange) -> Vec<Spot> {
        let missed = self.plant == Some(Plant::MissLast) && range.pages() > Pages(1);
        let end = (range.end.0 >> PAGE_SHIFT) - u64::from(missed);
        let vpns = (range.start.0 >> PAGE_SHIFT)..end;
        if vpns.is_empty() {
            return Vec::new();
        }
        self.tables.space(space).ptes.range(vpns).map(|(&vpn, _)| (space, vpn)).collect()
    }

    /// Forgets one pageable mapping (law P1), TLBs included, as a port does that recycles a table
    /// page.
    fn forget_one(&mut self, even_wired: bool) {
        let spots = self.forgettable(even_wired);
        if !spots.is_empty() {
            let spot = *self.rng.pick(&spots);
            self.forget(spot);
        }
    }

    /// Mappings that may be forgotten: the pageable ones.
    fn forgettable(&self, even_wired: bool) -> Vec<Spot> {
        let spaces = self.tables.spaces.iter();
        spaces
            .flat_map(|(&id, space)| {
                let may = move |pte: &Pte| even_wired || !pte.wired;
                space.ptes.iter().filter(move |(_, pte)| may(pte)).map(move |(&vpn, _)| (id, vpn))
            })
            .collect()
    }

    /// Does what a note in a CPU's box says.
    fn forget_noted(&mut self, cpu: usize, what: Forget<'_>) {
        let tlb = &mut self.tlbs[cpu];
        self.counters.dropped += match what {
            Forget::Everything => tlb.forget_all(),
            Forget::Ranges(ranges) => {
                ranges.iter().map(|range| tlb.forget_everywhere(*range)).sum()
            }
        };
    }

    fn forget(&mut self, spot: Spot) {
        self.tables.clear(spot);
        for tlb in &mut self.tlbs {
            tlb.forget(spot);
        }
        self.counters.forgotten += 1;
    }
}

fn spot(space: &SoftSpace, va: Va) -> Spot {
    (space.id, va.0 >> PAGE_SHIFT)
}

impl Pmap for SoftPmap {
    type Space = SoftSpace;

    fn create<P: Before<PageCache>>(&self, _held: &mut Held<'_, P>) -> Result<SoftSpace, NoMemory> {
        if self.tables.fails() {
            return Err(NoMemory);
        }
        let mut state = self.enter_call();
        if self.planted(Plant::ReuseNames) {
            let spaces = &state.tables.spaces;
            state.next_space = (1..).find(|id| !spaces.contains_key(id)).unwrap_or(0);
        }
        let id = state.next_space;
        state.next_space += 1;
        state.tables.spaces.insert(id, Default::default());
        Ok(SoftSpace { id })
    }

    fn destroy<P: Before<PageCache>>(&self, _held: &mut Held<'_, P>, space: SoftSpace) {
        let mut state = self.enter_call();
        for cpu in state.tables.space(space.id).held_by.iter() {
            self.take_notes(cpu, &mut state);
        }
        let tables = state.tables.spaces.remove(&space.id).expect("a space is destroyed once");
        assert!(tables.ptes.is_empty(), "a space is destroyed with {} mappings", tables.ptes.len());
        // Bugs that leave some behind are for the program to find, whatever thread comes by here.
        let leaves_some = [Plant::ReuseNames, Plant::SkipFlush, Plant::SkipRemoteFlush];
        if leaves_some.iter().any(|&plant| self.planted(plant)) {
            return;
        }
        for (cpu, tlb) in state.tlbs.iter().enumerate() {
            assert!(
                !tlb.knows_space(space.id),
                "a space is destroyed while cpu {cpu} has its translations"
            );
        }
    }

    fn enter<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &SoftSpace,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        assert!(
            prot.contains(access) && prot != Prot::NONE,
            "{access:?} of a mapping for {prot:?}"
        );
        self.hooks.come(Moment::Mapping);
        let mut state = self.enter_call();
        for (va, page) in run.iter() {
            let spot = spot(space, va);
            if state.tables.needs_table(spot) && self.tables.fails() {
                return Err(NoMemory);
            }
            if self.planted(Plant::FirstOfRun) && va != run.va {
                continue;
            }
            if let Some(old) = state.tables.get(spot) {
                let is_lowered = old.page != page || !prot.contains(old.prot);
                if is_lowered && !self.planted(Plant::ReplaceUntold) {
                    state.note(spot, down);
                    if !self.planted(Plant::UncountedEnter) {
                        state.counted += u32::from(down.begin_count());
                    }
                }
                if self.planted(Plant::KeepRights) && old.page == page && prot.contains(old.prot) {
                    continue;
                }
            }
            state.tables.set(spot, Pte { page, prot, wired: wiring == Wiring::Wired });
            state.tables.set_bits(page, bits_of(access));
            state.counters.enters += 1;
        }
        Ok(())
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &SoftSpace,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        self.hooks.come(Moment::MappingAhead);
        let first = va.0 >> PAGE_SHIFT;
        assert!(
            pages.len() <= 16 && first % 16 + pages.len() as u64 <= 16,
            "a run ahead leaves its 16 pages"
        );
        let mut state = self.enter_call();
        for (i, run) in pages.iter().enumerate() {
            let (Some((page, prot)), spot) = (*run, (space.id, first + i as u64)) else { continue };
            let lazy = self.forget_one_in != 0 && state.rng.one_in(8);
            if state.tables.needs_table(spot)
                || lazy
                || !(may(i) || self.planted(Plant::AheadUnasked))
            {
                continue;
            }
            match state.tables.get(spot) {
                None => state.tables.set(spot, Pte { page, prot, wired: false }),
                Some(old) if old.page == page => state.tables.set_prot(spot, old.prot | prot),
                Some(_) if self.planted(Plant::AheadReplaces) => {
                    state.tables.set(spot, Pte { page, prot, wired: false });
                }
                Some(_) => continue,
            }
            state.counters.ahead += 1;
        }
    }

    fn remove<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &SoftSpace,
        range: VaRange,
        down: &mut Shootdown,
    ) {
        let mut state = self.enter_call();
        if self.planted(Plant::IgnoreRemove) {
            return;
        }
        let is_whole = range.pages() > Pages(1 << 20);
        if is_whole && self.planted(Plant::ReuseNames) {
            for spot in state.spots_in(space.id, range) {
                state.tables.clear(spot);
            }
            return state.tables.drop_empty_tables(space.id);
        }
        for spot in state.spots_in(space.id, range) {
            state.lower(spot, Prot::NONE, down);
        }
        state.tables.drop_empty_tables(space.id);
        state.overtake_nobody(space.id, range, down);
    }

    fn protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &SoftSpace,
        range: VaRange,
        prot: Prot,
        down: &mut Shootdown,
    ) {
        let mut state = self.enter_call();
        if self.planted(Plant::IgnoreProtect) {
            return;
        }
        for spot in state.spots_in(space.id, range) {
            state.lower(spot, prot, down);
        }
        state.overtake_nobody(space.id, range, down);
    }

    fn unwire(&self, space: &SoftSpace, range: VaRange) -> Option<(Va, PageNo)> {
        let was = self.enter_call().tables.unwire(space.id, range);
        // What the caller makes of the answer comes later than the answer.
        (self.pause)();
        was
    }

    fn part(&self, space: &SoftSpace, range: VaRange, mappings: usize) -> Va {
        self.lock()
            .spots_in(space.id, range)
            .get(mappings)
            .map_or(range.end, |&(_, vpn)| Va(vpn << PAGE_SHIFT))
    }

    fn extract(&self, space: &SoftSpace, va: Va) -> Option<(PageNo, Prot)> {
        self.lock().tables.get(spot(space, va)).map(|pte| (pte.page, pte.prot))
    }

    fn resident(&self, space: &SoftSpace) -> usize {
        self.lock().tables.space(space.id).ptes.len()
    }

    fn page_protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        down: &mut Shootdown,
    ) -> u32 {
        let mut state = self.enter_call();
        if self.planted(Plant::IgnorePageProtect) {
            return 0;
        }
        let mut spots = state.tables.reverse[page.0 as usize].clone();
        if self.planted(Plant::LoseReverse) {
            spots.drain(..spots.len().saturating_sub(1));
        }
        let mut wired = 0;
        for spot in spots {
            let removes = prot == Prot::NONE;
            let counts = removes && !self.planted(Plant::MiscountWired);
            wired += u32::from(counts && state.tables.get(spot).is_some_and(|pte| pte.wired));
            state.lower(spot, prot, down);
        }
        state.overtake_nobody_by_page(down);
        state.counted += u32::from(down.begin_count());
        wired
    }

    fn weight(&self, page: PageNo) -> usize {
        self.enter_call().tables.reverse[page.0 as usize].len().max(1)
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        let state = self.enter_call();
        let unflushed = state.counted != 0 && !self.planted(Plant::OvertakeOthers);
        unflushed || !state.tables.reverse[page.0 as usize].is_empty()
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        self.enter_call().tables.bits(page) & REFERENCED != 0
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        self.enter_call().tables.clear_bit(page, REFERENCED)
    }

    fn is_modified(&self, page: PageNo) -> bool {
        self.enter_call().tables.bits(page) & MODIFIED != 0
    }

    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool {
        let mut state = self.enter_call();
        let was = state.tables.clear_bit(page, MODIFIED);
        if was {
            if self.planted(Plant::CleanUntold) {
                return was;
            }
            for spot in &state.tables.reverse[page.0 as usize] {
                state.note(*spot, down);
            }
            state.overtake_nobody_by_page(down);
        }
        was
    }

    fn forget_modified(&self, page: PageNo) {
        let mut state = self.enter_call();
        state.tables.clear_bit(page, MODIFIED);
        debug_assert!(state.tables.reverse[page.0 as usize].is_empty(), "{page:?} is in reach");
    }

    fn flush(&self, down: &Shootdown) {
        if self.planted(Plant::SkipFlush) {
            return;
        }
        self.hooks.come(Moment::Flushing);
        // It takes its time: the longest wait in any operation, so the likeliest place for others
        // to run.
        (0..FLUSH_STEPS).for_each(|_| (self.pause)());
        let here = (self.cpu)() % self.notes.len();
        let others =
            down.cpus().without(CpuSet::one(here)).intersection(CpuSet::first(self.notes.len()));
        let others = if self.planted(Plant::SkipRemoteFlush) { CpuSet::NONE } else { others };
        let left: Vec<(usize, Left)> = {
            let _host = host();
            others.iter().map(|cpu| (cpu, self.notes[cpu].leave(down.ranges()))).collect()
        };
        {
            let state = &mut *self.lock();
            if down.cpus().contains(here) {
                let tlb = &mut state.tlbs[here];
                state.counters.dropped += match down.ranges() {
                    Some(ranges) => ranges.iter().map(|stale| tlb.forget_range(stale)).sum(),
                    None => tlb.forget_all(),
                };
            }
            state.counters.local_flushes += u64::from(down.cpus().contains(here));
            state.counters.remote_flushes += u64::from(!left.is_empty());
            state.counters.told += left.len() as u64;
            state.counters.interrupts +=
                left.iter().filter(|(_, left)| left.was_in_use()).count() as u64;
        }
        for (cpu, left) in left {
            if !self.planted(Plant::SkipWait) {
                if left.was_in_use() {
                    self.hooks.come(Moment::Waiting);
                }
                (self.wait_until)(&mut || left.is_out_of_use(&self.notes[cpu]));
            }
        }
        self.lock().counted -= u32::from(down.is_counted());
    }
}

/// The bits that an access sets.
pub(crate) fn bits_of(access: Prot) -> u8 {
    match access {
        Prot::NONE => 0,
        a if a.contains(Prot::WRITE) => REFERENCED | MODIFIED,
        _ => REFERENCED,
    }
}
