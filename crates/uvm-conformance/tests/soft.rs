//! The laws on the software machine: sound with any number of CPUs, forgetful or not; and each law
//! that it breaks on purpose is found.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Once};
use std::time::{Duration, Instant};

use machine::order::{Held, Nothing};
use machine::{Machine, ThreadCtx, Va, MAX_CPUS};
use uvm::page::Frames;
use uvm_conformance::{laws, Access, Effort, Law, Report, SharedCall, SharedWork, Trap, Work};
use uvm_soft::{charged, Config, Denied, Moment, Plant, SoftMachine, SoftSpace, Stage};

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap = uvm_soft::ChargedHeap;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The software machine's simulated CPUs, for the laws.
struct Cpus<'a> {
    soft: &'a SoftMachine,
    patience: Duration,
}

fn trapped<T>(result: Result<T, Denied<()>>) -> Result<T, Trap> {
    result.map_err(|denied| match denied {
        Denied::Fault(()) => Trap::Fault,
        Denied::Broken(why) => Trap::Broken(why),
    })
}

impl Access<SoftMachine> for Cpus<'_> {
    fn cpus(&self) -> usize {
        self.soft.cpus()
    }

    fn on(&self, cpu: usize, work: Work<'_>) {
        self.soft.run_on(cpu);
        work(&mut ThreadCtx::new().held());
    }

    fn at_once(&self, cpus: usize, work: SharedWork<'_>) {
        std::thread::scope(|scope| {
            for cpu in 0..cpus {
                scope.spawn(move || {
                    self.soft.run_on(cpu);
                    work(cpu, &mut ThreadCtx::new().held());
                });
            }
        });
    }

    fn load(&self, cpu: usize, space: &SoftSpace, va: Va) -> Result<u64, Trap> {
        trapped(self.soft.load_u64(cpu, space, va, |_, _| Err(())))
    }

    fn store(&self, cpu: usize, space: &SoftSpace, va: Va, word: u64) -> Result<(), Trap> {
        trapped(self.soft.store(cpu, space, va, &word.to_le_bytes(), |_, _| Err(())))
    }

    fn fetch(&self, cpu: usize, space: &SoftSpace, va: Va) -> Result<(), Trap> {
        trapped(self.soft.fetch(cpu, space, va, |_, _| Err(())).map(|_| ()))
    }

    /// Held up before the CPU says that it uses its translations, and right after.
    fn overlap(
        &self,
        way: usize,
        cpu: usize,
        (space, va, store): (&SoftSpace, Va, Option<u64>),
        by: usize,
        call: SharedCall<'_>,
    ) -> Option<Result<u64, Trap>> {
        let moment = *[Moment::Entering, Moment::Using].get(way)?;
        let (begun, goes_on) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
        let hooks = &self.soft.pmap().hooks;
        hooks.at_next(moment, {
            let (begun, goes_on) = (begun.clone(), goes_on.clone());
            move || {
                begun.wait();
                uvm_soft::wait_until(|| goes_on.load(SeqCst));
            }
        });
        hooks.at_next(Moment::Waiting, {
            let goes_on = goes_on.clone();
            move || goes_on.store(true, SeqCst)
        });
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                self.soft.run_on(by);
                begun.wait();
                call(&mut ThreadCtx::new().held());
                goes_on.store(true, SeqCst);
            });
            match store {
                Some(word) => self.store(cpu, space, va, word).map(|()| word),
                None => self.load(cpu, space, va),
            }
        });
        hooks.at_next(Moment::Waiting, || ());
        Some(seen)
    }

    fn frames(&self) -> &Frames<SoftMachine> {
        self.soft.frames()
    }

    fn forget(&self, _held: &mut Held<'_, Nothing>, _space: &SoftSpace) {
        self.soft.pmap().forget_all();
    }

    fn without_tables(&self, work: Work<'_>, held: &mut Held<'_, Nothing>) -> bool {
        self.soft.pmap().tables.fail_from(1);
        work(held);
        self.soft.pmap().tables.fail_nth(0);
        true
    }

    fn allocating(&self, work: &mut dyn FnMut()) -> Result<(), String> {
        charged(work).1.map_or(Ok(()), |fault| Err(fault.into()))
    }

    fn panics(&self, work: &mut dyn FnMut()) -> Option<bool> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !QUIET.get() {
                    before(info);
                }
            }));
        });
        QUIET.set(true);
        let panicked = panic::catch_unwind(AssertUnwindSafe(work)).is_err();
        QUIET.set(false);
        Some(panicked)
    }

    fn wait(&self, done: &mut dyn FnMut() -> bool) -> bool {
        let since = Instant::now();
        while !done() {
            if since.elapsed() > self.patience {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

fn run(config: &Config, effort: Effort) -> Report {
    let soft = SoftMachine::new(Config { stage: Stage::Concurrent, ..config.clone() });
    let free = soft.frames().free();
    let patience = Duration::from_secs(if config.plant.is_some() { 1 } else { 120 });
    let report = laws(&soft, &Cpus { soft: &soft, patience }, effort);
    if report.is_sound() {
        assert_eq!(soft.frames().free(), free, "pages are given back");
        assert_eq!(soft.tlb_audit(), Ok(()));
    }
    report
}

fn effort(seed: u64) -> Effort {
    Effort { seed, rounds: 400, spaces: 40 }
}

#[test]
fn the_software_machine_keeps_the_laws() {
    for cpus in [1, 2, 4, MAX_CPUS.min(72)] {
        for forget_one_in in [0, 7] {
            let report = run(&Config { cpus, forget_one_in, ..Config::default() }, effort(1));
            assert!(report.is_sound(), "{cpus} CPUs:\n{report}");
            let checked = report.checked().iter().filter(|(_, n)| *n != 0).count();
            assert_eq!(checked, if cpus == 1 { 11 } else { 12 }, "{report}");
        }
    }
}

/// The laws that a plant is seen to break; others may be seen broken with them.
fn broken_by(plant: Plant) -> &'static [Law] {
    match plant {
        Plant::IgnoreProtect | Plant::IgnoreRemove => &[Law::P2, Law::Tables],
        Plant::MissLast => &[Law::Tables],
        Plant::IgnorePageProtect | Plant::LoseReverse | Plant::MiscountWired => &[Law::P5],
        Plant::SkipFlush | Plant::SkipRemoteFlush | Plant::ReplaceUntold => &[Law::P2],
        Plant::SkipWait | Plant::LateUse | Plant::ReuseNames => &[Law::P2],
        Plant::ForgetWired => &[Law::P1],
        Plant::HalfHeap => &[Law::Heap],
        Plant::OvertakeOthers | Plant::UncountedEnter => &[Law::P6],
        Plant::KeepRights => &[Law::P3],
        Plant::FirstOfRun | Plant::ProtectRaises | Plant::AheadReplaces | Plant::AheadUnasked => {
            &[Law::Tables]
        }
        Plant::LoseBits | Plant::CleanUntold => &[Law::P4],
        Plant::LoseWake => &[Law::Tickets],
        Plant::ShortZero => &[Law::Bytes],
    }
}

#[test]
fn each_broken_law_is_found() {
    for plant in Plant::ALL {
        for cpus in [2, 4] {
            let config = Config { cpus, plant: Some(plant), ..Config::default() };
            let report = run(&config, effort(0));
            assert!(!report.is_sound(), "{plant:?} with {cpus} CPUs is not found:\n{report}");
            println!("{plant:?}, {cpus} CPUs: {}", report.violations()[0]);
            for law in broken_by(plant) {
                let named = report.violations().iter().any(|violation| violation.law == *law);
                assert!(named, "{plant:?} breaks {law}:\n{report}");
            }
        }
    }
}

#[test]
fn a_machine_of_one_cpu_is_found_broken_too() {
    for plant in [Plant::SkipFlush, Plant::IgnoreRemove, Plant::LoseBits, Plant::ForgetWired] {
        let config = Config { cpus: 1, plant: Some(plant), ..Config::default() };
        assert!(!run(&config, effort(0)).is_sound(), "{plant:?}");
    }
}
