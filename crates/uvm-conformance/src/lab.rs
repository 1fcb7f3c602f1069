//! Where the laws are tried: pages with a mark in each, spaces, and one function for each thing
//! that a CPU does. The only file that knows how the contract's calls are written.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use machine::order::{Held, Nothing};
use machine::{Machine, PageNo, Pages, Pmap, Prot, Run, Shootdown, Va, VaRange, Wiring};

use uvm::page::Reserve;

use crate::report::{Law, Report, Violation};
use crate::{Access, Effort, SpaceOf, Trap};

/// Pages that the laws are tried with.
pub(crate) const PAGES: usize = 24;

/// Faults on one address before it is plain that faulting leads nowhere.
const TRIES: usize = 64;

/// Where in each page the accessed word is.
pub(crate) const OFFSET: u64 = 64;

/// A mapping as the VM system would make it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    pub(crate) va: Va,
    pub(crate) page: PageNo,
    pub(crate) prot: Prot,
    pub(crate) wiring: Wiring,
}

impl Map {
    pub(crate) fn new(va: Va, page: PageNo, prot: Prot) -> Map {
        Map { va, page, prot, wiring: Wiring::Pageable }
    }

    pub(crate) fn wired(va: Va, page: PageNo, prot: Prot) -> Map {
        Map { va, page, prot, wiring: Wiring::Wired }
    }

    pub(crate) fn range(self) -> VaRange {
        one(self.va)
    }
}

/// One page of addresses.
pub(crate) fn one(va: Va) -> VaRange {
    VaRange::new(va, va + Pages(1))
}

/// What a space is, to the laws: the port's, and how sentences call it.
pub(crate) struct Space<M: Machine> {
    pub(crate) tables: SpaceOf<M>,
    /// Its number in this run.
    id: u64,
    /// Violations that had been found when the space was made.
    found: u64,
}

pub(crate) struct Lab<'a, M: Machine, A> {
    pub(crate) machine: &'a M,
    pub(crate) access: &'a A,
    pub(crate) effort: Effort,
    pub(crate) pages: Vec<PageNo>,
    pub(crate) report: Report,
    spaces: u64,
    /// By space: which CPU has used which address.
    used: Vec<(u64, usize, Va)>,
}

impl<'a, M: Machine, A: Access<M>> Lab<'a, M, A> {
    pub(crate) fn new(machine: &'a M, access: &'a A, effort: Effort) -> Self {
        let mut lab = Lab {
            machine,
            access,
            effort,
            pages: Vec::new(),
            report: Report::default(),
            spaces: 0,
            used: Vec::new(),
        };
        assert!(lab.access.cpus() != 0, "a port has a CPU");
        lab.pages = lab.on(0, |held| {
            let pages = (0..PAGES).map(|_| access.frames().alloc(machine, held, Reserve::User));
            pages.map_while(Result::ok).collect()
        });
        assert!(lab.pages.len() == PAGES, "the laws are tried with {PAGES} pages");
        lab
    }

    /// Gives everything back and says what was found.
    pub(crate) fn finish(self) -> Report {
        if self.report.is_sound() {
            self.on(0, |held| {
                for page in &self.pages {
                    self.access.frames().free_page(self.machine, held, *page);
                }
            });
        }
        self.report
    }

    pub(crate) fn cpus(&self) -> usize {
        self.access.cpus()
    }

    /// Some CPUs for what is tried with each: the first, the last and those beside them.
    pub(crate) fn some_cpus(&self) -> Vec<usize> {
        let last = self.cpus() - 1;
        let mut cpus: Vec<usize> =
            [0, 1, 2, 63, 64, last].into_iter().filter(|c| *c <= last).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// An address in a program's window, `n` pages from its begin.
    pub(crate) fn va(&self, n: u64) -> Va {
        self.access.window().start + Pages(n)
    }

    // What a run says.

    /// Notes that a law is being checked.
    pub(crate) fn begins(&mut self, law: Law) {
        self.access.say(format_args!("checking {law}"));
        self.report.count(law, 0);
    }

    /// Notes an observation, and a violation if it isn't what was expected.
    pub(crate) fn expect(&mut self, law: Law, holds: bool, sentence: impl FnOnce() -> String) {
        self.report.count(law, 1);
        if !holds {
            self.broken(law, sentence());
        }
    }

    pub(crate) fn broken(&mut self, law: Law, sentence: String) {
        let violation = Violation { law, sentence };
        if self.report.add(violation.clone()) {
            self.access.say(format_args!("BROKEN {violation}"));
        }
    }

    // What CPUs do.

    /// Runs `work` on a CPU.
    pub(crate) fn on<R: Send>(
        &self,
        cpu: usize,
        work: impl FnOnce(&mut Held<'_, Nothing>) -> R + Send,
    ) -> R {
        let (mut work, mut result) = (Some(work), None);
        self.access.on(cpu, &mut |held| result = work.take().map(|work| work(held)));
        result.expect("a port runs the work that it is given, once")
    }

    pub(crate) fn space(&mut self) -> Space<M> {
        let tables = self.on(0, |held| self.machine.pmap().create(held));
        let Ok(tables) = tables else { panic!("the port has no memory for an empty space") };
        self.spaces += 1;
        Space { tables, id: self.spaces, found: self.report.found() }
    }

    /// Takes a space down. After a violation it is kept for good: a CPU may know it still.
    pub(crate) fn end(&mut self, space: Space<M>) {
        let all = self.access.window();
        self.lower_on(0, &space, |pmap, held, space, down| pmap.remove(held, space, all, down));
        let left = self.on(0, |_| self.machine.pmap().resident(&space.tables));
        self.expect(Law::Tables, left == 0, || {
            format!(
                "all of a space was removed and {left} mappings are resident; none was expected"
            )
        });
        let (used, others) =
            core::mem::take(&mut self.used).into_iter().partition(|u| u.0 == space.id);
        self.used = others;
        for (_, cpu, va) in used {
            let seen = self.on(cpu, |_| self.access.load(cpu, &space.tables, Va(va.0 + OFFSET)));
            let seen = self.unless_broken(seen);
            self.expect(Law::P2, seen.is_none(), || {
                format!(
                    "cpu {cpu} had used {va:?}; all of the space was removed and flushed; then cpu \
                     {cpu} loaded there: a fault was expected, it saw {seen:x?}"
                )
            });
        }
        if self.report.found() != space.found {
            core::mem::forget(space.tables);
            return;
        }
        self.on(0, |held| self.machine.pmap().destroy(held, space.tables));
    }

    /// A call that lowers, on a CPU, and its flush.
    pub(crate) fn lower_on<R: Send>(
        &self,
        cpu: usize,
        space: &Space<M>,
        call: impl FnOnce(&M::Pmap, &mut Held<'_, Nothing>, &SpaceOf<M>, &mut Shootdown) -> R + Send,
    ) -> R {
        let (result, mut down) = self.begin_on(cpu, space, call);
        self.flush_on(cpu, &mut down);
        result
    }

    /// A call that lowers, on a CPU, whose flush comes later.
    pub(crate) fn begin_on<R: Send>(
        &self,
        cpu: usize,
        space: &Space<M>,
        call: impl FnOnce(&M::Pmap, &mut Held<'_, Nothing>, &SpaceOf<M>, &mut Shootdown) -> R + Send,
    ) -> (R, Shootdown) {
        self.on(cpu, |held| {
            let mut down = Shootdown::new();
            (call(self.machine.pmap(), held, &space.tables, &mut down), down)
        })
    }

    pub(crate) fn flush_on(&self, cpu: usize, down: &mut Shootdown) {
        self.on(cpu, |_| down.flush(self.machine.pmap()));
    }

    /// Maps, as a fault handler on that CPU would for `access`, and flushes.
    pub(crate) fn enter(&mut self, cpu: usize, space: &Space<M>, map: Map, access: Prot) {
        let done = self.lower_on(cpu, space, |pmap, held, space, down| {
            pmap.enter(held, space, Run::one(map.va, map.page), map.prot, access, map.wiring, down)
        });
        if done.is_err() {
            self.broken(
                Law::Tables,
                format!("cpu {cpu} entered {:?} at {:?}: no memory for tables", map.page, map.va),
            );
        }
    }

    pub(crate) fn extract(&self, space: &Space<M>, va: Va) -> Option<(PageNo, Prot)> {
        self.on(0, |_| self.machine.pmap().extract(&space.tables, va))
    }

    /// One fetch on a CPU, and whether it happened.
    pub(crate) fn fetch(&mut self, cpu: usize, space: &Space<M>, va: Va) -> bool {
        let at = self.uses(cpu, space, va);
        let seen = self.on(cpu, |_| self.access.fetch(cpu, &space.tables, at));
        self.unless_broken(seen).is_some()
    }

    /// Where the accessed word of a page is. It is remembered that the CPU has used it.
    fn uses(&mut self, cpu: usize, space: &Space<M>, va: Va) -> Va {
        let used = (space.id, cpu, va);
        if !self.used.contains(&used) {
            self.used.push(used);
        }
        Va(va.0 + OFFSET)
    }

    /// One load on a CPU: a word, or a fault.
    pub(crate) fn load(&mut self, cpu: usize, space: &Space<M>, va: Va) -> Option<u64> {
        let at = self.uses(cpu, space, va);
        let seen = self.on(cpu, |_| self.access.load(cpu, &space.tables, at));
        self.unless_broken(seen)
    }

    /// One store on a CPU, and whether it happened.
    pub(crate) fn store(&mut self, cpu: usize, space: &Space<M>, va: Va, word: u64) -> bool {
        let at = self.uses(cpu, space, va);
        let seen = self.on(cpu, |_| self.access.store(cpu, &space.tables, at, word));
        self.unless_broken(seen).is_some()
    }

    pub(crate) fn unless_broken<T>(&mut self, seen: Result<T, Trap>) -> Option<T> {
        match seen {
            Ok(seen) => Some(seen),
            Err(Trap::Fault) => None,
            Err(Trap::Broken(why)) => {
                self.broken(Law::P2, why);
                None
            }
        }
    }

    /// Loads, and maps where the CPU faults, until it has a word.
    pub(crate) fn load_through(&mut self, cpu: usize, space: &Space<M>, map: Map) -> Option<u64> {
        for _ in 0..TRIES {
            if let Some(word) = self.load(cpu, space, map.va) {
                return Some(word);
            }
            self.enter(cpu, space, map, Prot::READ);
        }
        self.faults_for_ever(cpu, map, "load");
        None
    }

    /// Stores, and maps where the CPU faults, until it is done; the CPU then has a translation
    /// that may be used for a store again. Says whether it was done.
    pub(crate) fn store_through(
        &mut self,
        cpu: usize,
        space: &Space<M>,
        map: Map,
        word: u64,
    ) -> bool {
        for _ in 0..TRIES {
            if self.store(cpu, space, map.va, word) {
                return true;
            }
            self.enter(cpu, space, map, Prot::WRITE);
        }
        self.faults_for_ever(cpu, map, "store");
        false
    }

    fn faults_for_ever(&mut self, cpu: usize, map: Map, what: &str) {
        self.report.count(Law::P3, 1);
        self.broken(
            Law::P3,
            format!(
                "cpu {cpu} tried a {what} at {:?} {TRIES} times, each after an enter of {:?} for \
                 {:?} there; one was expected to work, and all faulted",
                map.va, map.page, map.prot
            ),
        );
    }

    // Bytes, by the machine.

    /// The accessed word of a page, as the machine reads it.
    pub(crate) fn word(&self, page: PageNo) -> u64 {
        word(self.machine, page)
    }

    pub(crate) fn set_word(&self, page: PageNo, word: u64) {
        set_word(self.machine, page, word);
    }

    /// Fills the accessed word of page number `n` of the lab with a mark of its own, and says
    /// which page and which mark.
    pub(crate) fn marked(&self, n: usize) -> (PageNo, u64) {
        let (page, mark) = (self.pages[n], 0x4d61_726b_0000_0000 | n as u64);
        self.set_word(page, mark);
        (page, mark)
    }
}

pub(crate) fn word<M: Machine>(machine: &M, page: PageNo) -> u64 {
    let mut bytes = [0; 8];
    machine.read(page, OFFSET as usize, &mut bytes);
    u64::from_le_bytes(bytes)
}

pub(crate) fn set_word<M: Machine>(machine: &M, page: PageNo, word: u64) {
    machine.write(page, OFFSET as usize, &word.to_le_bytes());
}
