//! The model's runs, and the laws, on a second machine: nothing in them is the software machine's.

mod machine;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::machine::order::{Held, Nothing};
use ::machine::plain::PlainPmap;
use ::machine::{PageNo, Pages, Pmap, Prot, Run, Shootdown, ThreadCtx, Va, Wiring};
use machine::{List, Lock, PlainMachine};
use uvm::page::Frames;
use uvm::Uvm;
use uvm_check::desk::Desk;
use uvm_check::gen::{paging_list, random_list, Paging};
use uvm_check::run::{run_and_shrink_on, Failure};
use uvm_check::world::{Memory, Setup, Watch};
use uvm_conformance::{laws, Access, Effort, SharedWork, Trap, Work};
use uvm_soft::{Config, Denied, StdThreads, Threads};

/// Lists of each kind.
const LISTS: u64 = 300;

fn check(lists: impl Fn(u64) -> (Vec<uvm_check::op::Op>, Setup)) {
    for seed in 0..LISTS {
        let (list, setup) = lists(seed);
        let result = run_and_shrink_on::<PlainMachine>(&list, &setup);
        result.unwrap_or_else(|failure| panic!("{}", Failure { seed: Some(seed), ..failure }));
    }
}

fn watch(seed: u64) -> Watch {
    if seed.is_multiple_of(2) {
        Watch::Peek
    } else {
        Watch::Look
    }
}

#[test]
fn random_lists_agree_with_the_model() {
    check(|seed| {
        let config = Config { seed, ..Config::default() };
        (random_list(seed, 80), Setup::new(config, watch(seed)))
    });
}

#[test]
fn random_lists_that_page_agree_with_the_model() {
    check(|seed| {
        let segments = vec![(::machine::Pa(0x10_0000), 20 + (seed % 13) as u32)];
        let setup = Setup::new(Config { seed, segments, ..Config::default() }, watch(seed));
        let setup = Setup { swaps: [120, 40], memory: Memory::MayRunOut, ..setup };
        (paging_list(seed, 200, Paging::Works), setup)
    });
}

struct Cpus(Arc<Uvm<PlainMachine>>);

fn trapped<T>(result: Result<T, Denied<()>>) -> Result<T, Trap> {
    result.map_err(|denied| match denied {
        Denied::Fault(()) => Trap::Fault,
        Denied::Broken(why) => Trap::Broken(why),
    })
}

impl Access<PlainMachine> for Cpus {
    fn cpus(&self) -> usize {
        self.0.machine().cpus()
    }

    fn on(&self, cpu: usize, work: Work<'_>) {
        StdThreads::set_cpu(cpu);
        work(&mut ThreadCtx::new().held());
    }

    fn at_once(&self, cpus: usize, work: SharedWork<'_>) {
        std::thread::scope(|scope| {
            for cpu in 0..cpus {
                scope.spawn(move || {
                    StdThreads::set_cpu(cpu);
                    work(cpu, &mut ThreadCtx::new().held());
                });
            }
        });
    }

    fn load(&self, cpu: usize, space: &u64, va: Va) -> Result<u64, Trap> {
        let mut word = [0; 8];
        trapped(self.0.machine().load(cpu, space, va, &mut word, |_, _| Err(())))?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, cpu: usize, space: &u64, va: Va, word: u64) -> Result<(), Trap> {
        let bytes = word.to_le_bytes();
        trapped(self.0.machine().store(cpu, space, va, &bytes, |_, _| Err(())))
    }

    fn frames(&self) -> &Frames<PlainMachine> {
        self.0.frames()
    }

    fn forget(&self, _: &mut Held<'_, Nothing>, _: &u64) {
        self.0.machine().forget_all();
    }

    fn wait(&self, done: &mut dyn FnMut() -> bool) -> bool {
        let since = Instant::now();
        while !done() {
            if since.elapsed() > Duration::from_secs(120) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

#[test]
fn it_keeps_the_laws() {
    let uvm = Arc::new(PlainMachine::boot(&Config::default()).expect("a new machine has memory"));
    let effort = Effort { rounds: 500, ..Effort::default() };
    let report = laws(uvm.machine(), &Cpus(uvm.clone()), effort);
    assert!(report.is_sound(), "{report}");
}

/// A page's mapping at each of the addresses, as far as there is one.
fn mapped(pmap: &PlainPmap<List, Lock>, space: u64, count: u64) -> Vec<u64> {
    (0..count).filter(|n| pmap.extract(&space, Va(0) + Pages(*n)).is_some()).collect()
}

/// Maps page 0 at the first addresses of a new space of a pmap with five places; says how many of
/// these calls found memory.
fn map_at(pmap: &PlainPmap<List, Lock>, count: u64, wiring: Wiring) -> (u64, usize) {
    let (mut thread, mut down) = (ThreadCtx::new(), Shootdown::new());
    let held = &mut thread.held();
    let space = pmap.create(held).expect("a list always has room");
    let enter = |n: &u64| {
        let run = Run::one(Va(0) + Pages(*n), PageNo(0));
        pmap.enter(held, &space, run, Prot::READ, Prot::READ, wiring, &mut down).is_ok()
    };
    (space, (0..count).filter(enter).count())
}

#[test]
fn more_mappings_than_places_forget_a_pageable_one() {
    let pmap = PlainPmap::<List, Lock>::new(List::default(), 1);
    let (space, entered) = map_at(&pmap, 12, Wiring::Pageable);
    let left = mapped(&pmap, space, 12);
    assert_eq!((entered, left.len(), left.last()), (12, 5, Some(&11)));
    let (mut thread, mut down) = (ThreadCtx::new(), Shootdown::new());
    pmap.page_protect(&mut thread.held(), PageNo(0), Prot::NONE, &mut down);
    assert!(mapped(&pmap, space, 12).is_empty() && !pmap.is_mapped(PageNo(0)));
    assert!(pmap.is_referenced(PageNo(0)), "what was forgotten has been seen");
}

#[test]
fn wired_mappings_are_never_forgotten() {
    let pmap = PlainPmap::<List, Lock>::new(List::default(), 1);
    let (space, entered) = map_at(&pmap, 12, Wiring::Wired);
    assert_eq!((entered, mapped(&pmap, space, 12)), (5, vec![0, 1, 2, 3, 4]));
}
