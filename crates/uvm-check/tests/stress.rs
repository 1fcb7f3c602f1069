//! Real threads: programs that fill more memory than there is, a page daemon, and a device.
//!
//! Each program knows what it stored, so every load is checked. How the threads meet is the host's
//! doing, unlike under the schedule checker, and there are more of them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::thread;

use machine::{PageRange, Pages, ThreadCtx, Va};
use uvm::{MapRequest, Space, Uvm};
use uvm_check::host::{Line, Manner, SwapDisk};
use uvm_soft::{within_reservation, Config, Denied, Fate, IoBy, Rng, SoftMachine, Stage};

const FRAMES: u32 = 96;
const PROGRAMS: u64 = 3;
const PAGES: u64 = 160;
const STEPS: u64 = 4000;
const START: Va = Va(0x10_0000);

struct Program {
    uvm: Arc<Uvm<SoftMachine>>,
    cpu: usize,
    space: Space<SoftMachine>,
    /// What was stored last in each page.
    stored: [u64; PAGES as usize],
}

impl Program {
    fn new(uvm: &Arc<Uvm<SoftMachine>>, cpu: usize) -> Program {
        let mut ctx = ThreadCtx::new();
        let bounds = PageRange::new(START, START + Pages(PAGES)).unwrap();
        let space = uvm.space_create(&mut ctx.held(), bounds).expect("there is memory");
        let request = MapRequest::zero(Pages(PAGES)).at(START);
        uvm.map(&mut ctx.held(), &space, &request).expect("there is room");
        Program { uvm: uvm.clone(), cpu, space, stored: [0; PAGES as usize] }
    }

    fn access(&self, space: &Space<SoftMachine>, page: u64, store: Option<u64>) -> u64 {
        let fault = |va, access| {
            within_reservation(|| self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access))
                .map(drop)
        };
        let (machine, va) = (self.uvm.machine(), START + Pages(page));
        let done: Result<u64, Denied<_>> = match store {
            Some(n) => {
                machine.store(self.cpu, space.pmap(), va, &n.to_le_bytes(), fault).map(|()| n)
            }
            None => machine.load_u64(self.cpu, space.pmap(), va, fault),
        };
        done.unwrap_or_else(|e| panic!("page {page}: {e}"))
    }

    fn check(&self, space: &Space<SoftMachine>, page: u64) {
        assert_eq!(
            self.access(space, page, None),
            self.stored[page as usize],
            "page {page} of {}",
            self.cpu
        );
    }

    fn run(mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        for step in 1..STEPS {
            let page = rng.below(PAGES);
            match rng.below(200) {
                0 => self.fork(&mut rng, step),
                1..=99 => {
                    self.access(&self.space, page, Some(step));
                    self.stored[page as usize] = step;
                }
                _ => self.check(&self.space, page),
            }
        }
        (0..PAGES).for_each(|page| self.check(&self.space, page));
        within_reservation(|| self.uvm.space_destroy(&mut ThreadCtx::new().held(), self.space));
    }

    /// A child sees what its parent stored, and writes for itself alone.
    fn fork(&mut self, rng: &mut Rng, step: u64) {
        let forked =
            within_reservation(|| self.uvm.fork(&mut ThreadCtx::new().held(), &self.space));
        let child = forked.expect("there is memory");
        for _ in 0..24 {
            let (read, written) = (rng.below(PAGES), rng.below(PAGES));
            self.check(&child, read);
            self.access(&self.space, written, Some(step));
            let before = std::mem::replace(&mut self.stored[written as usize], step);
            if before != step {
                assert_eq!(
                    self.access(&child, written, None),
                    before,
                    "the parent wrote to its child"
                );
            }
            self.stored[written as usize] = before;
            self.access(&self.space, written, Some(before));
        }
        self.access(&child, 0, Some(u64::MAX));
        self.check(&self.space, 0);
        within_reservation(|| self.uvm.space_destroy(&mut ThreadCtx::new().held(), child));
    }
}

/// Runs `work` again and again on a thread of its own until told to stop.
fn until_stopped(
    stop: &Arc<AtomicBool>,
    work: impl Fn() + Send + 'static,
) -> thread::JoinHandle<()> {
    let stop = stop.clone();
    thread::spawn(move || {
        while !stop.load(SeqCst) {
            work();
        }
    })
}

#[test]
fn programs_keep_what_they_stored_while_memory_is_short() {
    let config = Config {
        segments: vec![(machine::Pa(0x10_0000), FRAMES)],
        stage: Stage::Concurrent,
        io: IoBy::Test,
        ..Config::default()
    };
    let uvm = Arc::new(SoftMachine::new(config).into_uvm().expect("a new machine has memory"));
    let line = Line::new(Manner::Either, 7);
    let disk = SwapDisk::new(&uvm, &line, 8 * FRAMES);
    uvm.swap_on(&mut ThreadCtx::new().held(), disk, 0).expect("there is room for a device");
    let stop = Arc::new(AtomicBool::new(false));
    let (hardware, daemons) = (uvm.clone(), uvm.clone());
    let helpers = [
        until_stopped(&stop, move || {
            if !hardware.machine().complete(0, Fate::Works) {
                thread::yield_now();
            }
        }),
        until_stopped(&stop, move || {
            let frames = daemons.frames();
            if frames.free() < frames.high_water() {
                within_reservation(|| {
                    daemons.pageout(&mut ThreadCtx::new().held(), frames.high_water())
                });
            }
            thread::yield_now();
        }),
    ];
    let programs = (0..PROGRAMS).map(|n| {
        let program = Program::new(&uvm, n as usize);
        thread::spawn(move || program.run(n))
    });
    for program in programs.collect::<Vec<_>>() {
        program.join().expect("a program failed");
    }
    stop.store(true, SeqCst);
    helpers.into_iter().for_each(|helper| helper.join().expect("a helper failed"));
    while uvm.machine().complete(0, Fate::Works) {}
    line.trouble().expect("the device was used well");
    let mut ctx = ThreadCtx::new();
    uvm.audit(&mut ctx.held(), &[], &[]).expect("every count is right");
    uvm.machine().tlb_audit().expect("no stale translation is left");
    assert_eq!(uvm.swap_info(&mut ctx.held())[0].used, 0, "slots leaked");
    assert_eq!(uvm.frames().free(), uvm.frames().total(), "pages leaked");
    let stat = uvm.stat();
    println!(
        "{} pages out, {} in",
        stat.get(uvm::Counter::SwapOuts),
        stat.get(uvm::Counter::SwapIns)
    );
    assert!(stat.get(uvm::Counter::SwapIns) > STEPS / 4, "hardly anything was paged");
}
