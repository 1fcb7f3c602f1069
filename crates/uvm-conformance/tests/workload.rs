//! The workload on the software machine, whose pages go out to an array.

#[path = "../../uvm/examples/common/mod.rs"]
mod common;

use std::fmt::Arguments;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use machine::order::{Held, Nothing};
use machine::{Channel, Machine, Pa, PageRange, Pages, ThreadCtx, Va};
use uvm::{Space, Uvm};
use uvm_conformance::{workload, Programs, SharedWork};
use uvm_soft::{Config, SoftMachine, Stage};

const FRAMES: u32 = 256;

struct Desk<'a>(&'a Uvm<SoftMachine>, Mutex<Vec<String>>);

/// The first and the last word of each page, and what is to be there.
fn words(at: Va, pages: u64, number: u64) -> impl Iterator<Item = (Va, u64)> {
    (0..pages).flat_map(move |n| {
        let page = at + Pages(n);
        [page, Va((page + Pages(1)).0 - 8)].map(|va| (va, number + pages - n))
    })
}

impl Programs<SoftMachine> for Desk<'_> {
    fn space(&self, held: &mut Held<'_, Nothing>) -> Space<SoftMachine> {
        let bounds = PageRange::new(Va(1 << 16), Va(1 << 46)).expect("whole pages");
        self.0.space_create(held, bounds).expect("there is memory")
    }

    fn fill(
        &self,
        held: &mut Held<'_, Nothing>,
        space: &Space<SoftMachine>,
        at: Va,
        pages: u64,
        number: u64,
    ) {
        let machine = self.0.machine();
        for (va, word) in words(at, pages, number) {
            let fault = |va, access| self.0.fault(held, space, va, access).map(drop);
            let stored = machine.store(machine.cpu(), space.pmap(), va, &word.to_le_bytes(), fault);
            stored.expect("there is swap");
        }
    }

    fn check(
        &self,
        held: &mut Held<'_, Nothing>,
        space: &Space<SoftMachine>,
        at: Va,
        pages: u64,
        number: u64,
    ) -> bool {
        let machine = self.0.machine();
        words(at, pages, number).all(|(va, word)| {
            let fault = |va, access| self.0.fault(held, space, va, access).map(drop);
            machine.load_u64(machine.cpu(), space.pmap(), va, fault).expect("there is swap") == word
        })
    }

    fn at_once(&self, work: SharedWork<'_>) {
        std::thread::scope(|scope| {
            for cpu in 0..self.0.machine().cpus() {
                scope.spawn(move || {
                    self.0.machine().run_on(cpu);
                    work(cpu, &mut ThreadCtx::new().held());
                });
            }
        });
    }

    fn say(&self, line: Arguments<'_>) {
        self.1.lock().expect("no line panics").push(line.to_string());
    }
}

#[test]
fn programs_find_what_they_stored() {
    let segments = vec![(Pa(0x10_0000), FRAMES)];
    let config = Config { segments, stage: Stage::Concurrent, ..Config::default() };
    let uvm = SoftMachine::new(config).into_uvm().expect("a new machine has memory");
    let mut thread = ThreadCtx::new();
    let held = &mut thread.held();
    let slots = 2 * FRAMES as usize * uvm.machine().cpus();
    uvm.swap_on(held, Arc::new(common::Disk::new(slots)), 0).expect("the disk has room");
    let desk = Desk(&uvm, Mutex::default());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| uvm.page_daemon(&mut ThreadCtx::new().held(), || ended.load(SeqCst)));
        workload(&uvm, held, &desk);
        ended.store(true, SeqCst);
        uvm.machine().wake(Channel::PAGE_DAEMON);
    });
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "every page came back");
    let lines = desk.1.into_inner().expect("no line panics");
    let first = |line: &String| line.split(':').next().map(str::to_owned);
    let shown: Vec<_> = lines.iter().filter_map(first).collect();
    assert_eq!(shown, ["fork", "loan", "page transfer", "page-out"]);
}
