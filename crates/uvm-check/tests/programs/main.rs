//! Random programs of three threads: whatever the schedule, some order of their operations explains
//! what they saw.
//!
//! A program is made from a number: see `program`. It runs under several schedules, on a machine
//! whose TLBs go stale; after each the VM system's own audit recounts everything, `explain` looks
//! for an order by which the reference model answers the same, and all memory must come back. A
//! program that fails is made shorter for as long as it fails, and printed.
//!
//! `UVM_PROGRAMS=n` says how many are tried, `UVM_SEED=n` from which number on. `found` keeps those
//! that failed once.
//!
//! `cargo test -p uvm-check --features shuttle --test programs`

mod explain;
mod found;
mod program;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

use uvm_check::run::quietly;

use crate::explain::Seen;
use crate::program::{Program, THREADS};
use crate::world::World;

/// Programs of one run of the tests.
const PROGRAMS: u64 = 100_000;
/// Schedules that a new program is tried with, of each kind.
const SCHEDULES: usize = 2;
/// Schedules that a shortened program is tried with, of each kind, before it counts as sound.
const SCHEDULES_TO_SHRINK: usize = 300;
/// Switches of threads at chosen places, of schedules that have few.
const SWITCHES: usize = 3;

/// Runs a program once, in the schedule at hand.
fn run_once(program: &Program, seed: u64) {
    let world = Arc::new(World::new(seed));
    let number = |thread: usize, n: usize| ((thread as u64 + 1) << 8) + n as u64 + 1;
    let beginning =
        program.beginning.iter().enumerate().map(|(n, op)| world.run(op, number(THREADS, n)));
    let beginning: Vec<_> = beginning.collect();
    if program.opens_locks {
        world.open_locks();
    }
    let threads: [_; THREADS] = std::array::from_fn(|thread| {
        let (world, list) = (world.clone(), program.threads[thread].clone());
        shuttle::thread::spawn(move || {
            world.use_cpu(thread);
            let run = list.iter().enumerate().map(|(n, op)| world.run(op, number(thread, n)));
            let events: Vec<_> = run.collect();
            world.end_transfers();
            events
        })
    });
    let threads = threads.map(|thread| thread.join().unwrap());
    world.audit();
    let end = world.end_state();
    let seen = Seen { beginning, threads, end, stored: world.stored() };
    seen.explain().unwrap_or_else(|why| panic!("{why}"));
    world.finish();
}

/// Runs a program as [`run`] does, on a thread of its own: on one that has seen several tasks of a
/// schedule panic, the checker takes every schedule for failed. A new thread takes a while.
fn run_apart(program: &Program, seed: u64, schedules: usize) -> Result<(), String> {
    thread::scope(|scope| {
        let run = scope.spawn(|| run(program, seed, schedules));
        run.join().unwrap_or_else(|_| Err("the checker itself panicked".to_owned()))
    })
}

/// Runs a program under several schedules of both kinds.
fn run(program: &Program, seed: u64, schedules: usize) -> Result<(), String> {
    let under = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.failure_persistence = FailurePersistence::None;
        let program = program.clone();
        quietly(|| {
            Runner::new(scheduler, config).run(move || run_once(&program, seed));
            Ok(())
        })
    };
    under(Box::new(RandomScheduler::new_from_seed(seed, schedules)))?;
    under(Box::new(PctScheduler::new_from_seed(seed, SWITCHES, schedules)))
}

/// Makes a program that fails as short as it can be.
fn shrink(mut program: Program, mut why: String, seed: u64) -> (Program, String) {
    loop {
        let shorter = program.shorter().into_iter().find_map(|less| {
            let why = run_apart(&less, seed, SCHEDULES_TO_SHRINK).err()?;
            Some((less, why))
        });
        match shorter {
            Some((less, reason)) => (program, why) = (less, reason),
            None => return (program, why),
        }
    }
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Tries a program; one that fails is made shorter.
fn try_program(seed: u64) -> Result<(), String> {
    let program = Program::random(seed);
    run(&program, seed, SCHEDULES).map_err(|why| {
        let (program, why) = shrink(program, why, seed);
        format!("UVM_SEED={seed} UVM_PROGRAMS=1 replays this\n{program:?}\n{why}")
    })
}

#[test]
fn some_order_explains_every_program() {
    let first = number_from("UVM_SEED", 0);
    let end = first + number_from("UVM_PROGRAMS", PROGRAMS);
    let (next, failed) = (AtomicU64::new(first), Mutex::new(None));
    let work = || {
        while failed.lock().unwrap().is_none() {
            let seed = next.fetch_add(1, SeqCst);
            if seed >= end {
                break;
            }
            if let Err(why) = try_program(seed) {
                failed.lock().unwrap().get_or_insert(why);
            }
        }
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cpus).for_each(|_| drop(scope.spawn(work))));
    if let Some(why) = failed.into_inner().unwrap() {
        panic!("{why}");
    }
}
