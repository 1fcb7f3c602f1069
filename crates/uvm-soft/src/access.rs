//! What a simulated CPU does: look into its TLB, walk the tables on a miss, trap where neither
//! helps.
//!
//! The steps of one access, all under the MMU's lock but the first, and one access of a CPU at a
//! time:
//!
//! 0. The CPU says that it uses its translations, and forgets what others have left notes about.
//! 1. A TLB entry with enough rights is used, after a check that it is not stale.
//! 2. One with too few rights is dropped and traps, although the tables may allow the access by
//!    now: law P3 lets a port leave a raised permission unknown until the CPU faults.
//! 3. Without an entry the tables are walked: bits are set, the TLB is filled.

use std::fmt;

use machine::{CpuSet, PageNo, Pages, Prot, ThreadCtx, Va, PAGE_SHIFT, PAGE_SIZE};
use uvm::page::Place;

use crate::config::Stage;
use crate::hooks::Moment;
use crate::pmap::{bits_of, SoftSpace, State};
use crate::soft::SoftMachine;
use crate::tables::{Spot, MODIFIED};
use crate::threads::Threads;
use crate::tlb::{implied, Entry};

/// Why an access did not happen.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// let trap = uvm.machine().access(0, space.pmap(), at, Prot::READ);
/// assert_eq!(trap, Err(uvm_soft::Trap::Fault), "the library's turn");
/// # Ok(()) });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trap {
    /// No translation, or one with too few rights: the VM system's turn.
    Fault,
    /// The CPU used a translation that should be gone: the port or the VM system is wrong.
    Stale(String),
}

/// Why a load or store gave up.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let nobody = |_, _| Err("no");
/// let denied = uvm.machine().load_u64(0, space.pmap(), Va(1 << 30), nobody);
/// assert_eq!(denied, Err(uvm_soft::Denied::Fault("no")));
/// # Ok(()) });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied<E> {
    /// The fault handler said no.
    Fault(E),
    /// The machine's contract is broken.
    Broken(String),
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trap::Fault => f.write_str("no translation allows the access"),
            Trap::Stale(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Trap {}

impl<E: fmt::Display> fmt::Display for Denied<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denied::Fault(why) => write!(f, "{why}"),
            Denied::Broken(what) => f.write_str(what),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Denied<E> {}

/// Faults on one address before the machine says that faulting leads nowhere.
const TRIES: usize = 64;

impl<T: Threads> SoftMachine<T> {
    /// One access by a CPU: where it led, or why not. `access` is one right.
    ///
    /// # Errors
    /// [`Trap`].
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
    /// uvm.fault(held, space, at, Prot::WRITE)?;
    /// uvm.machine().access(0, space.pmap(), at, Prot::WRITE)?;
    /// # Ok(()) });
    /// ```
    pub fn access(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        access: Prot,
    ) -> Result<PageNo, Trap> {
        self.with_page(cpu, space, va, access, |page| page)
    }

    /// Reads bytes as a program on `cpu` does; `fault` is the VM system's fault handler.
    ///
    /// # Errors
    /// [`Denied`]; the pages before the one that was denied have been read.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let mut byte = [0];
    /// let fault = |va, access| uvm.fault(held, space, va, access).map(drop);
    /// uvm.machine().load(0, space.pmap(), range.start, &mut byte, fault)?;
    /// assert_eq!(byte, [1]);
    /// # Ok(()) });
    /// ```
    pub fn load<E>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        buf: &mut [u8],
        mut fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        let mut done = 0;
        while done < buf.len() {
            let at = Va(va.0 + done as u64);
            let len = (PAGE_SIZE - at.page_offset()).min(buf.len() - done);
            let part = &mut buf[done..done + len];
            self.drive(cpu, space, at, Prot::READ, &mut fault, |page| {
                self.memory.read(page, at.page_offset(), part);
            })?;
            done += len;
        }
        Ok(())
    }

    /// Writes bytes as a program on `cpu` does.
    ///
    /// # Errors
    /// [`Denied`]; the pages before the one that was denied have been written.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
    /// let fault = |va, access| uvm.fault(held, space, va, access).map(drop);
    /// uvm.machine().store(1, space.pmap(), at, b"by CPU 1", fault)?;
    /// # Ok(()) });
    /// ```
    pub fn store<E>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        bytes: &[u8],
        mut fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        let mut done = 0;
        while done < bytes.len() {
            let at = Va(va.0 + done as u64);
            let len = (PAGE_SIZE - at.page_offset()).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            self.drive(cpu, space, at, Prot::WRITE, &mut fault, |page| {
                self.memory.write(page, at.page_offset(), part);
            })?;
            done += len;
        }
        Ok(())
    }

    /// Fetches from one address as a program on `cpu` does, and says from which page.
    ///
    /// # Errors
    /// [`Denied`].
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let request = MapRequest::zero(Pages(1)).prot(Prot::READ);
    /// let at = uvm.map(held, space, &request)?;
    /// let fault = |va, access| uvm.fault(held, space, va, access).map(drop);
    /// assert!(uvm.machine().fetch(0, space.pmap(), at, fault).is_err(), "it may not be run");
    /// # Ok(()) });
    /// ```
    pub fn fetch<E>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        mut fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<PageNo, Denied<E>> {
        let mut from = None;
        self.drive(cpu, space, va, Prot::EXECUTE, &mut fault, |page| from = Some(page))?;
        from.ok_or_else(|| Denied::Broken("a fetch that worked came from nowhere".into()))
    }

    /// Accesses until it works, the handler gives up, or it is plain that faulting leads nowhere.
    fn drive<E>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        access: Prot,
        fault: &mut impl FnMut(Va, Prot) -> Result<(), E>,
        mut data: impl FnMut(PageNo),
    ) -> Result<(), Denied<E>> {
        T::set_cpu(cpu);
        for _ in 0..TRIES {
            T::pause();
            match self.with_page(cpu, space, va, access, &mut data) {
                Ok(()) => return Ok(()),
                Err(Trap::Stale(why)) => return Err(Denied::Broken(why)),
                Err(Trap::Fault) => fault(va, access).map_err(Denied::Fault)?,
            }
        }
        Err(Denied::Broken(format!(
            "{access:?} of {va:?} faults for ever: the handler says it's done"
        )))
    }

    /// Runs one instruction on a CPU: one at a time, though several threads may say that they run
    /// there.
    fn with_page<R>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        access: Prot,
        data: impl FnOnce(PageNo) -> R,
    ) -> Result<R, Trap> {
        let mut ctx = ThreadCtx::new();
        let mut held = ctx.held();
        let _turn = self.turns[cpu].lock(&mut held);
        self.pmap.begin_use(cpu);
        self.pmap.hooks.come(Moment::Using);
        T::pause();
        let done = self.translate(cpu, space, va, access, data);
        self.pmap.end_use(cpu);
        done
    }

    /// Translates and calls `data` as one instruction.
    fn translate<R>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        access: Prot,
        data: impl FnOnce(PageNo) -> R,
    ) -> Result<R, Trap> {
        let mut state = self.pmap.lock();
        let spot = (space.id, va.0 >> PAGE_SHIFT);
        let page = match state.tlbs[cpu].get(spot) {
            Some(entry) if entry.prot.contains(access) => {
                self.check_fresh(&state, cpu, spot, entry)?;
                if access == Prot::WRITE && !entry.dirty {
                    state.tables.set_bits(entry.page, MODIFIED);
                    state.tlbs[cpu].set(spot, Entry { dirty: true, ..entry });
                }
                entry.page
            }
            Some(_) => {
                state.tlbs[cpu].forget(spot);
                state.counters.misses += 1;
                return Err(Trap::Fault);
            }
            None => state.walk(cpu, spot, access)?,
        };
        Ok(data(page))
    }

    fn check_fresh(&self, state: &State, cpu: usize, spot: Spot, entry: Entry) -> Result<(), Trap> {
        if implied(&state.tables, spot, entry) {
            return Ok(());
        }
        let free = matches!(self.frames().place(entry.page), Place::Free | Place::Cached);
        if self.stage == Stage::Concurrent && !free {
            return Ok(());
        }
        let (space, vpn) = spot;
        let now = state.tables.get(spot);
        let state = if free { ", and the page is free" } else { "" };
        Err(Trap::Stale(format!(
            "cpu {cpu} used {entry:?} in space {space} at {vpn:#x}000; the tables say {now:?}{state}"
        )))
    }

    /// Drops what a CPU's TLB knows of a space, as one without address space numbers does when it
    /// switches away.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 1)?;
    /// uvm.machine().switch_away(0, space.pmap());
    /// # Ok(()) });
    /// ```
    pub fn switch_away(&self, cpu: usize, space: &SoftSpace) {
        let mut state = self.pmap.lock();
        let range = machine::VaRange::new(Va(0), Va(0) + Pages(1 << 51));
        state.tlbs[cpu].forget_range(&machine::shootdown::Stale { space: space.id, range });
        let held = &mut state.tables.space_mut(space.id).held_by;
        *held = held.without(CpuSet::one(cpu));
    }
}

impl State {
    fn walk(&mut self, cpu: usize, spot: Spot, access: Prot) -> Result<PageNo, Trap> {
        match self.tables.get(spot) {
            Some(pte) if pte.prot.contains(access) => {
                self.tables.set_bits(pte.page, bits_of(access));
                let held = &mut self.tables.space_mut(spot.0).held_by;
                *held = held.union(CpuSet::one(cpu));
                let dirty = access == Prot::WRITE;
                self.tlbs[cpu].set(spot, Entry { page: pte.page, prot: pte.prot, dirty });
                self.counters.fills += 1;
                Ok(pte.page)
            }
            _ => {
                self.counters.misses += 1;
                Err(Trap::Fault)
            }
        }
    }
}
