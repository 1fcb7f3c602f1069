//! Laws P2 and P4 where calls and accesses overlap: in the ways that the port can force, and by
//! random work on all CPUs at once.
//!
//! In the random work each CPU owns some places of one space and some pages. In a round it maps a
//! page at a place,
//! takes it away or lowers it, flushes, and from then on no CPU may load from or store to the page:
//! it writes a word there that no program may see, and looks later whether the page has changed.
//! Between its steps it loads and stores at all places, its own and the others', and never sees
//! that word. So each law is checked by what it promises and nothing else: no order of the CPUs is
//! assumed, and no fault is expected.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use machine::order::{FreeList, Held, Nothing, Ordered};
use machine::{Machine, PageNo, Pmap, Prot, Run, Shootdown, Va, Wiring};

use crate::lab::{one, set_word, word, Lab, OFFSET};
use crate::lowering::{Lower, Target};
use crate::{Access, Law, SpaceOf, Trap};

/// A word that is in a page only while no CPU may reach it.
const GONE: u64 = 0xdead_dead_dead_dead;
/// What programs store has this in its upper half.
const STORED: u64 = 0x5706_ed00_0000_0000;

/// CPUs that work at once, at most: each has a page and a place.
const WORKERS: usize = 8;
/// Places of each CPU.
const PLACES: u64 = 3;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

type Found = Vec<(Law, String)>;

/// A CPU at work.
struct Worker<'a, M: Machine, A> {
    machine: &'a M,
    access: &'a A,
    space: &'a SpaceOf<M>,
    start: Va,
    workers: usize,
    cpu: usize,
    rng: Rng,
    stores: u64,
    seen: u64,
    found: Found,
}

pub(crate) fn check<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>) {
    if lab.cpus() == 1 || lab.effort.rounds == 0 {
        lab.report.leave_out(Law::P2, "random work needs two CPUs and some rounds");
        return;
    }
    lab.begins(Law::P2);
    for how in [Lower::Remove, Lower::ProtectNone, Lower::PageProtectNone, Lower::EnterAnother] {
        for (cpu, by) in [(0, 1), (lab.cpus() - 1, 0)] {
            overlap(lab, how, cpu, by);
        }
    }
    let space = lab.space();
    let workers = lab.cpus().min(WORKERS);
    let each = lab.pages.len() / workers;
    let results: Ordered<FreeList, M::Lock, (u64, Found)> = Ordered::new((0, Vec::new()));
    lab.access.at_once(workers, &|cpu, held| {
        let mut worker = Worker {
            machine: lab.machine,
            access: lab.access,
            space: &space.tables,
            start: lab.va(0),
            workers,
            cpu,
            rng: Rng(lab.effort.seed.wrapping_mul(WORKERS as u64).wrapping_add(cpu as u64)),
            stores: 0,
            seen: 0,
            found: Vec::new(),
        };
        let pages = &lab.pages[cpu * each..(cpu + 1) * each];
        for _ in 0..lab.effort.rounds {
            worker.round(held, pages);
            if !worker.found.is_empty() {
                break;
            }
        }
        let Worker { seen, found, .. } = worker;
        let (mut results, _h) = results.lock(held);
        results.0 += seen;
        results.1.extend(found);
    });
    let (seen, found) = results.into_inner();
    lab.report.count(Law::P2, seen);
    for (law, sentence) in found {
        let seed = lab.effort.seed;
        lab.broken(law, format!("{sentence} (random work, seed {seed})"));
    }
    lab.end(space);
}

/// An access that has begun, and a call that takes its page away, flushes and writes what no
/// program may see.
fn overlap<M: Machine, A: Access<M>>(lab: &mut Lab<'_, M, A>, how: Lower, cpu: usize, by: usize) {
    for way in 0.. {
        for store in [None, Some(STORED)] {
            let space = lab.space();
            let ((page, mark), another) = (lab.marked(0), lab.marked(1).0);
            let target = Target { va: lab.va(30), page, another };
            lab.store_through(cpu, &space, target.writable(), mark);
            let call = |held: &mut Held<'_, Nothing>| {
                let (pmap, mut down) = (lab.machine.pmap(), Shootdown::new());
                how.call(pmap, held, &space.tables, target, &mut down);
                down.flush(pmap);
                set_word(lab.machine, page, GONE);
            };
            let access = (&space.tables, Va(target.va.0 + OFFSET), store);
            let seen = lab.access.overlap(way, cpu, access, by, &call);
            let (is_over, left) = (seen.is_none(), word(lab.machine, page));
            let seen = seen.and_then(|seen| lab.unless_broken(seen));
            lab.set_word(page, mark);
            lab.end(space);
            if is_over {
                return;
            }
            let said = || {
                format!(
                    "cpu {cpu} had begun to use {page:?}; cpu {by} called {} and flushed, and the \
                     page's word became {GONE:#x}",
                    how.name()
                )
            };
            lab.expect(Law::P2, seen != Some(GONE), || {
                format!("{}; then the load of cpu {cpu} saw it", said())
            });
            lab.expect(Law::P2, left == GONE, || {
                format!("{}; then the store of cpu {cpu} arrived there: it is {left:#x}", said())
            });
        }
    }
}

impl<M: Machine, A: Access<M>> Worker<'_, M, A> {
    fn place(&self, cpu: usize, n: u64) -> Va {
        // Some places share a table, some don't.
        self.start + machine::Pages((cpu as u64 * PLACES + n) * 200)
    }

    /// Maps, uses, lowers, and looks whether that is so.
    fn round(&mut self, held: &mut Held<'_, Nothing>, pages: &[PageNo]) {
        let n = self.rng.below(PLACES);
        let va = self.place(self.cpu, n);
        let page = pages[self.rng.below(pages.len() as u64) as usize];
        let alive = self.fresh();
        set_word(self.machine, page, alive);
        self.enter(held, va, page, Prot::READ_WRITE);
        self.use_places();
        if self.rng.below(4) == 0 {
            self.clean(page);
        }
        self.use_places();
        let (pmap, mut down) = (self.machine.pmap(), Shootdown::new());
        let reading = self.rng.below(4) == 0;
        let prot = if reading { Prot::READ } else { Prot::NONE };
        let how = match self.rng.below(3) {
            0 if !reading => {
                pmap.remove(held, self.space, one(va), &mut down);
                "remove"
            }
            0 | 1 => {
                pmap.protect(held, self.space, one(va), prot, &mut down);
                "protect"
            }
            _ => {
                pmap.page_protect(held, page, prot, &mut down);
                "page_protect"
            }
        };
        down.flush(pmap);
        let before = if reading { word(self.machine, page) } else { GONE };
        if !reading {
            set_word(self.machine, page, GONE);
        }
        self.use_places();
        let after = word(self.machine, page);
        self.seen += 1;
        if before != after {
            self.found.push((
                Law::P2,
                format!(
                    "cpu {} called {how} to {prot:?} for {page:?} at {va:?} and flushed; the \
                    page's \
                     word was then expected to stay {before:#x}: it became {after:#x}",
                    self.cpu
                ),
            ));
        }
        if reading {
            let mut down = Shootdown::new();
            pmap.remove(held, self.space, one(va), &mut down);
            down.flush(pmap);
            set_word(self.machine, page, GONE);
        }
    }

    /// Clears a page's modified bit; a store that comes later sets it.
    fn clean(&mut self, page: PageNo) {
        let (pmap, mut down) = (self.machine.pmap(), Shootdown::new());
        pmap.clear_modified(page, &mut down);
        down.flush(pmap);
        let before = word(self.machine, page);
        self.use_places();
        let after = word(self.machine, page);
        self.seen += 1;
        if before != after && !pmap.is_modified(page) {
            self.found.push((
                Law::P4,
                format!(
                    "cpu {} called clear_modified for {page:?} and flushed; then a store changed \
                     its word from {before:#x} to {after:#x}, and is_modified says no",
                    self.cpu
                ),
            ));
        }
    }

    /// Maps without an access, and flushes.
    fn enter(&mut self, held: &mut Held<'_, Nothing>, va: Va, page: PageNo, prot: Prot) {
        let (pmap, mut down) = (self.machine.pmap(), Shootdown::new());
        let pageable = Wiring::Pageable;
        // Where there is no memory the round has nothing to lower.
        let _ =
            pmap.enter(held, self.space, Run::one(va, page), prot, Prot::NONE, pageable, &mut down);
        down.flush(pmap);
    }

    /// A word that no other has.
    fn fresh(&mut self) -> u64 {
        self.stores += 1;
        STORED | (self.cpu as u64) << 40 | self.stores
    }

    /// Loads and stores at some places of all CPUs. Most fault.
    fn use_places(&mut self) {
        for _ in 0..3 {
            let cpu = self.rng.below(self.workers as u64) as usize;
            let n = self.rng.below(PLACES);
            let at = Va(self.place(cpu, n).0 + OFFSET);
            let stored = self.fresh();
            let seen = if self.rng.below(2) == 0 {
                self.access.store(self.cpu, self.space, at, stored).map(|()| stored)
            } else {
                self.access.load(self.cpu, self.space, at)
            };
            self.seen += 1;
            let why = match seen {
                Ok(GONE) => format!(
                    "cpu {} loaded at {at:?} and saw the word of a page that had been taken away \
                     and flushed before that word was written",
                    self.cpu
                ),
                Err(Trap::Broken(why)) => why,
                _ => continue,
            };
            self.found.push((Law::P2, why));
        }
    }
}
