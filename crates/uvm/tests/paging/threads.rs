//! Paging under several threads at once: programs that store, fork, discard and exit on four CPUs
//! with more memory than there is, a page daemon, a disk that ends transfers in its own order, and
//! swap that is switched off and on.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;

use crate::stores::{Mode, SwapDisk};
use machine::{Channel, Machine, Pa, PageRange, Pages, Pmap, Prot, ThreadCtx, Va};
use uvm::page::PageFlags;
use uvm::{Counter, MapRequest, Space, SwapError, Uvm};
use uvm_soft::{wait_until, Config, Fate, IoBy, Moment, SoftMachine, Stage};

type World = Arc<Uvm<SoftMachine>>;

const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();
const PAGES: usize = 256;
const ROUNDS: usize = 300;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// A program's memory, and what it should hold.
struct Program {
    uvm: World,
    cpu: usize,
    space: Space<SoftMachine>,
    va: Va,
    holds: Vec<u8>,
}

impl Program {
    fn new(uvm: &World, cpu: usize) -> Program {
        let mut ctx = ThreadCtx::new();
        let space = uvm.space_create(&mut ctx.held(), BOUNDS).unwrap();
        let va = uvm.map(&mut ctx.held(), &space, &MapRequest::zero(Pages(PAGES as u64))).unwrap();
        Program { uvm: uvm.clone(), cpu, space, va, holds: vec![0; PAGES] }
    }

    fn fault(&self, va: Va, access: Prot) -> Result<(), ()> {
        let done = self.uvm.fault(&mut ThreadCtx::new().held(), &self.space, va, access);
        done.map(|_| ()).map_err(|e| panic!("{va:?}: {e:?}"))
    }

    fn store(&mut self, page: usize, byte: u8) {
        let va = self.va + Pages(page as u64);
        let machine = self.uvm.machine();
        machine
            .store(self.cpu, self.space.pmap(), va, &[byte], |va, access| self.fault(va, access))
            .unwrap();
        self.holds[page] = byte;
    }

    fn check(&self, page: usize) {
        let (va, mut byte) = (self.va + Pages(page as u64), [0]);
        let machine = self.uvm.machine();
        machine
            .load(self.cpu, self.space.pmap(), va, &mut byte, |va, access| self.fault(va, access))
            .unwrap();
        assert_eq!(byte[0], self.holds[page], "page {page} on cpu {}", self.cpu);
    }

    fn discard(&mut self, page: usize) {
        let va = self.va + Pages(page as u64);
        let range = PageRange::new(va, va + Pages(1)).unwrap();
        self.uvm.discard(&mut ThreadCtx::new().held(), &self.space, range).unwrap();
        self.holds[page] = 0;
    }

    fn fork(&self) -> Program {
        let space = self.uvm.fork(&mut ThreadCtx::new().held(), &self.space).unwrap();
        Program {
            uvm: self.uvm.clone(),
            cpu: self.cpu,
            space,
            va: self.va,
            holds: self.holds.clone(),
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let page = rng.below(PAGES);
        match rng.below(32) {
            0..=15 => self.store(page, rng.below(250) as u8 + 1),
            16..=30 => self.check(page),
            _ => self.discard(page),
        }
    }

    fn exit(self) {
        self.uvm.space_destroy(&mut ThreadCtx::new().held(), self.space);
    }
}

fn run_program(uvm: &World, cpu: usize, seed: u64) {
    uvm.machine().run_on(cpu);
    let (mut rng, mut program) = (Rng(seed), Program::new(uvm, cpu));
    (0..PAGES).for_each(|page| program.store(page, 1));
    for _ in 0..ROUNDS {
        (0..20).for_each(|_| program.step(&mut rng));
        let mut child = program.fork();
        for _ in 0..10 {
            child.step(&mut rng);
            program.step(&mut rng);
        }
        if rng.below(2) == 0 {
            child.exit();
        } else {
            std::mem::replace(&mut program, child).exit();
        }
    }
    (0..PAGES).for_each(|page| program.check(page));
    program.exit();
}

/// Keeps memory free until it is told to stop.
fn run_daemon(uvm: &World, stop: &AtomicBool) {
    uvm.machine().run_on(3);
    while !stop.load(SeqCst) {
        let mut ctx = ThreadCtx::new();
        if uvm.frames().free() < uvm.frames().high_water() {
            uvm.pageout(&mut ctx.held(), uvm.frames().high_water());
        }
        thread::yield_now();
    }
}

fn run_disk(uvm: &World, stop: &AtomicBool) {
    let mut rng = Rng(7);
    while !stop.load(SeqCst) {
        let n = uvm.machine().under_way();
        if n == 0 || !uvm.machine().complete(rng.below(n), Fate::Works) {
            thread::yield_now();
        }
    }
}

/// Switches a device off and on.
fn run_swapper(uvm: &World, disk: &Arc<SwapDisk>, stop: &AtomicBool) {
    uvm.machine().run_on(3);
    let mut ctx = ThreadCtx::new();
    while !stop.load(SeqCst) {
        let id = uvm.swap_on(&mut ctx.held(), disk.clone(), 5).unwrap();
        for _ in 0..200 {
            thread::yield_now();
        }
        match uvm.swap_off(&mut ctx.held(), id) {
            Ok(()) => {}
            Err(SwapError::NoMemory) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn programs_keep_their_bytes_while_everything_moves() {
    let segments = vec![(Pa(0x10_0000), 224)];
    let config = Config { segments, stage: Stage::Concurrent, io: IoBy::Test, ..Config::default() };
    let uvm: World = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
    let (first, second) =
        (SwapDisk::new(&uvm, 1000, Mode::Later), SwapDisk::new(&uvm, 700, Mode::Later));
    uvm.swap_on(&mut ThreadCtx::new().held(), first, 1).unwrap();
    let (stop, idle) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let spawn = |work: Box<dyn FnOnce() + Send>| thread::spawn(work);
    let disk = {
        let (uvm, idle) = (uvm.clone(), idle.clone());
        spawn(Box::new(move || run_disk(&uvm, &idle)))
    };
    let daemon = {
        let (uvm, stop) = (uvm.clone(), stop.clone());
        spawn(Box::new(move || run_daemon(&uvm, &stop)))
    };
    let swapper = {
        let (uvm, stop) = (uvm.clone(), stop.clone());
        spawn(Box::new(move || run_swapper(&uvm, &second, &stop)))
    };
    let programs: Vec<_> = (0..3usize)
        .map(|cpu| {
            let uvm = uvm.clone();
            spawn(Box::new(move || run_program(&uvm, cpu, 17 * cpu as u64 + 3)))
        })
        .collect();
    programs.into_iter().for_each(|t| t.join().unwrap());
    stop.store(true, SeqCst);
    uvm.machine().wake(Channel::MEMORY);
    daemon.join().unwrap();
    swapper.join().unwrap();
    wait_until(|| uvm.machine().under_way() == 0);
    idle.store(true, SeqCst);
    disk.join().unwrap();
    let mut ctx = ThreadCtx::new();
    uvm.audit(&mut ctx.held(), &[], &[]).unwrap();
    assert_eq!((uvm.anons(), uvm.swap_space().1, uvm.pages_in_flight()), (0, 0, 0));
    assert_eq!(uvm.frames().free(), uvm.frames().total());
    assert!(uvm.stat().get(Counter::SwapIns) > 1000 && uvm.stat().get(Counter::SwapOuts) > 1000);
}

/// Pages that a pass takes at once on a machine of this size: it has numbers of more when it tells
/// the CPUs.
const AT_ONCE: u64 = 16;

/// A page is freed, and is a new one that is about to be mapped by the time that a pass, which has
/// its number, looks at it.
#[test]
fn a_new_page_is_not_taken_before_it_is_mapped() {
    let segments = vec![(Pa(0x10_0000), 224)];
    let config = Config { segments, stage: Stage::Concurrent, ..Config::default() };
    let uvm: World = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    uvm.swap_on(held, SwapDisk::new(&uvm, 64, Mode::AtOnce), 0).unwrap();
    let space = Arc::new(uvm.space_create(held, BOUNDS).unwrap());
    let va = uvm.map(held, &space, &MapRequest::zero(Pages(AT_ONCE + 2))).unwrap();
    let store = {
        let (uvm, space) = (uvm.clone(), space.clone());
        move |va, byte| {
            let fault =
                |va, access| uvm.fault(&mut ThreadCtx::new().held(), &space, va, access).map(drop);
            uvm.machine().store(1, space.pmap(), va, &[byte], fault).unwrap();
        }
    };
    (0..AT_ONCE + 2).for_each(|n| store(va + Pages(n), 1));
    let mapped = |uvm: &World, va| uvm.machine().pmap().extract(space.pmap(), va);
    let [renewed, next] = [AT_ONCE, AT_ONCE + 1].map(|n| va + Pages(n));
    let (page, next_page) = (mapped(&uvm, renewed), mapped(&uvm, next).unwrap().0);
    let program = Arc::new(Mutex::new(None));
    uvm.machine().pmap().hooks.at_next(Moment::Flushing, {
        let (uvm, space, program) = (uvm.clone(), space.clone(), program.clone());
        move || {
            let (about_to_map, comes) = mpsc::channel();
            *program.lock().unwrap() = Some(thread::spawn(move || {
                uvm.machine().run_on(1);
                uvm.discard(
                    &mut ThreadCtx::new().held(),
                    &space,
                    PageRange::new(renewed, next).unwrap(),
                )
                .unwrap();
                let (world, there) = (uvm.clone(), space.clone());
                uvm.machine().pmap().hooks.at_next(Moment::Mapping, move || {
                    about_to_map.send(()).unwrap();
                    // Until the pass has come to the page behind.
                    wait_until(|| {
                        let is_busy = world.frames().flags(next_page).contains(PageFlags::BUSY);
                        is_busy || world.machine().pmap().extract(there.pmap(), next).is_none()
                    });
                });
                store(renewed, 2);
            }));
            comes.recv().unwrap();
        }
    });
    uvm.machine().run_on(0);
    uvm.pageout_range(held, &space, PageRange::new(va, next + Pages(1)).unwrap());
    program.lock().unwrap().take().expect("the pass takes pages").join().unwrap();
    assert_eq!(mapped(&uvm, renewed), page, "the page is as it was, and mapped");
    assert_eq!(mapped(&uvm, next), None, "the page behind has left");
    uvm.audit(held, &[&space], &[]).unwrap();
    uvm.machine().tlb_audit().unwrap();
}
