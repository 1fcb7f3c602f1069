//! A small machine whose threads shuttle schedules.

use std::sync::Arc;

use shuttle::rand::{thread_rng, Rng};

use machine::{PageRange, ThreadCtx, Va};
use uvm::{FaultError, MapRequest, Pager, Space, Uvm};
use uvm_soft::{Config, Denied, IoBy, Plant, ShuttleThreads, SoftMachine, Stage};

pub type Soft = SoftMachine<ShuttleThreads>;

pub const ROUNDS: usize = 10000;
pub const P: Va = Va(0x10_0000);
pub const Q: Va = Va(0x10_1000);

pub struct World {
    pub uvm: Arc<Uvm<Soft>>,
}

impl World {
    pub fn new() -> Arc<World> {
        World::with(64, IoBy::Waiters)
    }

    pub fn with(frames: u32, io: IoBy) -> Arc<World> {
        World::of(frames, io, 3, None)
    }

    /// With so many CPUs, and maybe with a law that the machine breaks.
    pub fn of(frames: u32, io: IoBy, cpus: usize, plant: Option<Plant>) -> Arc<World> {
        World::made(Config {
            segments: vec![(machine::Pa(0), frames)],
            cpus,
            plant,
            io,
            ..Config::default()
        })
    }

    /// On a machine that forgets translations at every other call, others in each schedule.
    pub fn forgetful() -> Arc<World> {
        let seed = thread_rng().gen();
        World::made(Config {
            segments: vec![(machine::Pa(0), 64)],
            cpus: 3,
            seed,
            forget_one_in: 2,
            ..Config::default()
        })
    }

    fn made(config: Config) -> Arc<World> {
        let config = Config { stage: Stage::Concurrent, ..config };
        let uvm = SoftMachine::with_threads(&config).into_uvm().expect("a new machine has memory");
        Arc::new(World { uvm: Arc::new(uvm) })
    }

    pub fn space(&self) -> Arc<Space<Soft>> {
        let bounds = PageRange::new(Va(0x1000), Va(1 << 30)).unwrap();
        Arc::new(
            self.uvm.space_create(&mut ThreadCtx::new().held(), bounds).expect("there is memory"),
        )
    }

    pub fn map(&self, space: &Space<Soft>, request: MapRequest<Soft>) {
        self.uvm.map(&mut ThreadCtx::new().held(), space, &request.at(P)).expect("there is room");
    }

    pub fn try_store(
        &self,
        cpu: usize,
        space: &Space<Soft>,
        va: Va,
        n: u64,
    ) -> Result<(), FaultError> {
        let fault =
            |va, access| self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
        self.uvm.machine().store(cpu, space.pmap(), va, &n.to_le_bytes(), fault).map_err(|denied| {
            match denied {
                Denied::Fault(e) => e,
                Denied::Broken(why) => panic!("{why}"),
            }
        })
    }

    pub fn store(&self, cpu: usize, space: &Space<Soft>, va: Va, n: u64) {
        self.try_store(cpu, space, va, n).expect("the address may be written");
    }

    pub fn try_load(&self, cpu: usize, space: &Space<Soft>, va: Va) -> Result<u64, FaultError> {
        let fault =
            |va, access| self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
        self.uvm.machine().load_u64(cpu, space.pmap(), va, fault).map_err(|denied| match denied {
            Denied::Fault(e) => e,
            Denied::Broken(why) => panic!("{why}"),
        })
    }

    pub fn load(&self, cpu: usize, space: &Space<Soft>, va: Va) -> u64 {
        self.try_load(cpu, space, va).expect("the address may be read")
    }

    pub fn check(&self, spaces: &[&Space<Soft>], objects: &[Arc<dyn Pager<Soft>>]) {
        self.uvm.machine().tlb_audit().expect("no stale translation is left");
        self.uvm
            .audit(&mut ThreadCtx::new().held(), spaces, objects)
            .expect("every count is right");
    }

    pub fn end(&self, spaces: Vec<Arc<Space<Soft>>>) {
        for space in spaces {
            let space = Arc::into_inner(space).expect("every other thread has ended");
            self.uvm.space_destroy(&mut ThreadCtx::new().held(), space);
        }
    }
}

/// Runs a test under many random schedules and many with few switches at the worst places.
pub fn check(test: impl Fn() + Send + Sync + 'static) {
    check_rounds(ROUNDS, test);
}

/// Like [`check`], for tests of many steps.
pub fn check_rounds(rounds: usize, test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let again = test.clone();
    shuttle::check_random(move || test(), rounds);
    shuttle::check_pct(move || again(), rounds, 3);
}

pub fn spawn<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> shuttle::thread::JoinHandle<R> {
    shuttle::thread::spawn(work)
}
