//! Kernel page tables with an MMU whose TLBs go stale: a CPU forgets a translation only when it is
//! told, or when it happens to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use machine::order::Unlocked;
use machine::{CpuSet, Pa};
use sf_buf::{Interrupted, KernelMap, Place};

pub type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;

/// A law of `KernelMap` that a port may break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// This CPU keeps its translation.
    KeepLocal,
    /// Other CPUs keep theirs.
    KeepRemote,
    /// No entry was ever used.
    NeverAccessed,
}

/// What happens while a thread sleeps.
pub type Sleeper = Box<dyn FnMut() -> Result<(), Interrupted>>;

pub struct Mmu {
    pub cpus: usize,
    pub cpu: Cell<usize>,
    pub plant: Option<Plant>,
    entries: RefCell<Vec<(Option<Pa>, bool)>>,
    tlbs: RefCell<Vec<BTreeMap<u32, Pa>>>,
    pub woken: Cell<u64>,
    /// What a sleeper finds: other threads, which close something, or a signal.
    pub sleeper: RefCell<Option<Sleeper>>,
}

impl Mmu {
    pub fn new(cpus: usize, slots: u32) -> Mmu {
        Mmu {
            cpus,
            cpu: Cell::new(0),
            plant: None,
            entries: RefCell::new(vec![(None, false); slots as usize]),
            tlbs: RefCell::new(vec![BTreeMap::new(); cpus]),
            woken: Cell::new(0),
            sleeper: RefCell::new(None),
        }
    }

    /// What a CPU sees at a place, which it remembers.
    pub fn access(&self, cpu: usize, place: Place) -> Option<Pa> {
        let Place::Slot(slot) = place else { return None };
        if let Some(&page) = self.tlbs.borrow()[cpu].get(&slot) {
            return Some(page);
        }
        let entry = &mut self.entries.borrow_mut()[slot as usize];
        let page = entry.0?;
        entry.1 = true;
        self.tlbs.borrow_mut()[cpu].insert(slot, page);
        Some(page)
    }

    /// A CPU runs out of room for a translation.
    pub fn evict(&self, cpu: usize, slot: u32) {
        self.tlbs.borrow_mut()[cpu].remove(&slot);
    }

    /// Pages that a CPU can reach, by its tables or what it remembers.
    #[allow(dead_code)]
    pub fn reach(&self) -> Vec<Pa> {
        let entries = self.entries.borrow();
        let tlbs = self.tlbs.borrow();
        let known = tlbs.iter().flat_map(BTreeMap::values).copied();
        entries.iter().filter_map(|entry| entry.0).chain(known).collect()
    }
}

impl KernelMap for Mmu {
    fn cpu(&self) -> usize {
        self.cpu.get()
    }

    fn cpus(&self) -> CpuSet {
        CpuSet::first(self.cpus)
    }

    fn set(&self, slot: u32, page: Option<Pa>) -> bool {
        let entry = &mut self.entries.borrow_mut()[slot as usize];
        let (before, accessed) = std::mem::replace(entry, (page, false));
        before.is_some() && accessed && self.plant != Some(Plant::NeverAccessed)
    }

    fn invalidate(&self, slot: u32) {
        if self.plant != Some(Plant::KeepLocal) {
            self.evict(self.cpu.get(), slot);
        }
    }

    fn invalidate_on(&self, slot: u32, cpus: CpuSet) {
        assert!(!cpus.contains(self.cpu.get()), "this CPU is told by `invalidate`");
        if self.plant != Some(Plant::KeepRemote) {
            cpus.iter().for_each(|cpu| self.evict(cpu, slot));
        }
    }

    fn ticket(&self) -> u64 {
        self.woken.get()
    }

    fn wait(&self, _: &mut Unlocked<'_>, _: u64, interruptible: bool) -> Result<(), Interrupted> {
        let sleeper = self.sleeper.borrow_mut().take();
        let mut sleeper = sleeper.expect("nothing would ever wake this thread");
        match sleeper() {
            Err(Interrupted) if !interruptible => Ok(()),
            result => result,
        }
    }

    fn wake(&self) {
        self.woken.set(self.woken.get() + 1);
    }
}
