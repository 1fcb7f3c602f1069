//! Two to eight CPUs in one address space, each of which does at random what programs do, while the
//! page daemon takes what it can.
//!
//! ```text
//!   P + 0    shared memory, a word for each CPU     may only grow, in each thread's eyes
//!   P + 1    private memory, a word for each CPU    the same; forks have it copied on the next write
//!   P + 2n   two pages of each CPU's own            hold what it stored last
//! ```
//! A CPU that has seen a word of another's must never see an older one: not through a stale
//! translation while the page is copied, not in a child that was made later, and not after the page
//! has been to swap.

use std::sync::Arc;

use shuttle::rand::{thread_rng, Rng};

use machine::{PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{AnonObject, FaultError, MapRequest, Pager, Place, Sharing, Space};
use uvm_soft::{Fate, IoBy, Plant};

use super::paging::Paged;
use super::world::{spawn, Soft, World, P, Q};

const PAGE: u64 = 0x1000;

/// One CPU, and what it knows.
struct Cpu {
    w: Arc<World>,
    space: Arc<Space<Soft>>,
    me: usize,
    /// What it has stored last to its words in both common pages.
    last: [u64; 2],
    /// The newest that it has seen of each CPU's words.
    seen: Vec<[u64; 2]>,
    /// What its own pages hold.
    own: [u64; 2],
}

const COMMON: [Va; 2] = [P, Q];

fn word(page: usize, cpu: usize) -> Va {
    Va(COMMON[page].0 + 8 * cpu as u64)
}

impl Cpu {
    fn range(&self) -> PageRange {
        let start = Va(P.0 + 2 * PAGE * (self.me as u64 + 1));
        PageRange::new(start, start + Pages(2)).unwrap()
    }

    fn own_page(&self, n: usize) -> Va {
        self.range().start + Pages(n as u64)
    }

    fn step(&mut self) {
        let page = thread_rng().gen_range(0..2);
        match thread_rng().gen_range(0..10) {
            0 | 1 => {
                self.last[page] += 1;
                self.w.store(self.me, &self.space, word(page, self.me), self.last[page]);
            }
            2..=4 => self.look(page),
            5 => {
                self.own[page] += 1;
                self.w.store(self.me, &self.space, self.own_page(page), self.own[page]);
            }
            6 => self.map_again(),
            7 => self.protect_own(page),
            8 => self.discard_and_lock(),
            _ => self.fork(),
        }
        assert_eq!(self.w.load(self.me, &self.space, self.own_page(page)), self.own[page]);
    }

    /// Looks at some CPU's word.
    fn look(&mut self, page: usize) {
        let cpu = thread_rng().gen_range(0..self.seen.len());
        let found = self.w.load(self.me, &self.space, word(page, cpu));
        assert!(found >= self.seen[cpu][page], "a store was seen, and then what was before it");
        assert!(cpu != self.me || found == self.last[page], "a store was lost");
        self.seen[cpu][page] = found;
    }

    /// Unmaps its own pages and maps new ones at their place.
    fn map_again(&mut self) {
        let (range, mut ctx) = (self.range(), ThreadCtx::new());
        self.w.uvm.unmap(&mut ctx.held(), &self.space, range).expect("there is heap");
        assert_eq!(self.w.try_load(self.me, &self.space, range.start), Err(FaultError::NoMapping));
        let request =
            MapRequest { place: Place::FixedNoReplace(range.start), ..MapRequest::zero(Pages(2)) };
        self.w.uvm.map(&mut ctx.held(), &self.space, &request).expect("the place is free");
        self.own = [0, 0];
    }

    /// No thread stores to what may only be read.
    fn protect_own(&mut self, page: usize) {
        let (range, mut ctx) = (self.range(), ThreadCtx::new());
        let both = Prot::READ.union(Prot::WRITE);
        self.w.uvm.protect(&mut ctx.held(), &self.space, range, Prot::READ).expect("it is mapped");
        let stored = self.w.try_store(self.me, &self.space, self.own_page(page), u64::MAX);
        assert_eq!(stored, Err(FaultError::Protection));
        self.w.uvm.protect(&mut ctx.held(), &self.space, range, both).expect("it is mapped");
    }

    fn discard_and_lock(&mut self) {
        let (range, mut ctx) = (self.range(), ThreadCtx::new());
        self.w.uvm.discard(&mut ctx.held(), &self.space, range).expect("it is mapped");
        self.own = [0, 0];
        self.w.uvm.wire(&mut ctx.held(), &self.space, range).expect("there is memory");
        self.w.uvm.unwire(&mut ctx.held(), &self.space, range).expect("it is mapped");
    }

    /// A child has every store that was seen before it was made, and keeps its own to itself.
    fn fork(&mut self) {
        let child =
            self.w.uvm.fork(&mut ThreadCtx::new().held(), &self.space).expect("there is memory");
        for (cpu, seen) in self.seen.iter().enumerate() {
            let found = self.w.load(self.me, &child, word(1, cpu));
            assert!(found >= seen[1], "a child lacks a store that was seen before");
        }
        assert_eq!(self.w.load(self.me, &child, word(1, self.me)), self.last[1]);
        self.w.store(self.me, &child, word(1, self.me), u64::MAX);
        self.w.uvm.space_destroy(&mut ThreadCtx::new().held(), child);
    }
}

fn crowd(cpus: usize, steps: usize, plant: Option<Plant>) {
    let p = Paged::of(World::of(96, IoBy::Test, cpus, plant), Fate::Works);
    let object =
        AnonObject::new(&p.w.uvm, &mut ThreadCtx::new().held(), Pages(1)).expect("there is memory");
    let pager: Arc<dyn Pager<Soft>> = object;
    let space = p.w.space();
    p.w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
    let rest = MapRequest::zero(Pages(1 + 2 * cpus as u64));
    p.w.uvm.map(&mut ThreadCtx::new().held(), &space, &rest.at(Q)).expect("there is room");
    let daemon = p.fair_daemon(2);
    let threads: Vec<_> = (0..cpus)
        .map(|me| {
            let (w, space) = (p.w.clone(), space.clone());
            let mut cpu = Cpu { w, space, me, last: [0; 2], seen: vec![[0; 2]; cpus], own: [0; 2] };
            spawn(move || {
                (0..steps).for_each(|_| cpu.step());
                cpu.last
            })
        })
        .collect();
    for (cpu, thread) in threads.into_iter().enumerate() {
        let last = thread.join().unwrap();
        assert_eq!(
            [0, 1].map(|page| p.w.load(0, &space, word(page, cpu))),
            last,
            "a store was lost"
        );
    }
    daemon.join().unwrap();
    p.end(vec![space], &[pager]);
}

fn check(rounds: usize, cpus: usize, steps: usize) {
    shuttle::check_random(move || crowd(cpus, steps, None), rounds);
    shuttle::check_pct(move || crowd(cpus, steps, None), rounds, 3);
}

#[test]
fn two_cpus_do_as_they_like() {
    check(2000, 2, 8);
}

#[test]
fn four_cpus_do_as_they_like() {
    check(1000, 4, 6);
}

#[test]
fn eight_cpus_do_as_they_like() {
    check(400, 8, 4);
}

/// A machine that flushes only the CPU that asks is found out.
#[test]
#[should_panic]
fn cpus_that_are_not_told_are_noticed() {
    shuttle::check_random(|| crowd(4, 6, Some(Plant::SkipRemoteFlush)), 400);
}

/// So is one whose CPUs look for notes before they say that they use translations.
#[test]
#[should_panic]
fn cpus_that_look_too_early_are_noticed() {
    shuttle::check_random(|| crowd(4, 6, Some(Plant::LateUse)), 4000);
}
