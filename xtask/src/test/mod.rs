//! `./uvm test`: every check of the project, the host's one after the other, and beside them those
//! in QEMU, two at a time, and three once the host's are done.
//!
//! A check prints `ok [3/140] NAME` or `FAILED [3/140] NAME` with what went wrong; the last line is
//! `N passed, M failed`. What this machine can't check is said, and counted as neither.

mod boots;
mod cases;
mod columns;
mod crashes;
mod crates;
mod damaged;
mod disks;
mod door;
mod host;
mod kernel;
mod layers;
mod mutants;
mod page;
mod ports;
mod prepare;
mod pressure;
mod python;
mod results;
mod stress;
mod terminal;

use crate::qemu::Kernel;
use crate::ui::{self, Times};
use crate::EXIT_USAGE;
use anyhow::Result;
use clap::Args;
use host::Check;
use kernel::{Job, Queue};
use results::Results;
use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Args)]
pub struct TestArgs {
    /// Run the kernel tests on this kernel; on Linux they prove themselves right, and the host's
    /// checks are left out.
    #[arg(long, value_enum, default_value_t = Kernel::Uvm)]
    kernel: Kernel,
    /// Also the checks that take many minutes: more random operations, bugs planted in the library
    /// that the tests must find, and more stress.
    #[arg(long)]
    long: bool,
    /// Boot with so many CPUs where a kernel test asks for one.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Only the checks that failed when they ran last.
    #[arg(long)]
    failed: bool,
    /// Write the results to this file: an array with an object for each check.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to this file as JUnit's XML, which many programs show.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Only list the names of the checks.
    #[arg(long)]
    list: bool,
    /// Only the checks whose name contains this.
    filter: Option<String>,
}

/// How one check ended.
pub enum Verdict {
    /// It may stand for many tests, as `cargo test` does.
    Passed {
        tests: u64,
    },
    Failed {
        passed: u64,
        failed: u64,
        details: String,
    },
    /// This machine has not what it takes; the reason.
    Skipped(String),
}

pub fn test(args: &TestArgs) -> Result<u8> {
    let last_failed = results::last_failed();
    let wanted = |name: &str| {
        args.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
            && (!args.failed || last_failed.contains(name))
    };
    // One that failed may be a long one.
    let is_long = args.long || args.failed;
    let long = if is_long { host::LONG } else { &[] };
    let chosen = |check: &&'static Check| args.kernel == Kernel::Uvm && wanted(check.name);
    let host: Vec<_> = host::CHECKS.iter().chain(long).filter(chosen).collect();
    let machines = host::MACHINES.iter().filter(chosen).map(Job::Check);
    let long: &[&[cases::Case]] =
        if is_long { &[stress::LONG, python::LONG, pressure::LONG] } else { &[] };
    let all = long
        .iter()
        .copied()
        .flatten()
        .chain(stress::SHORT)
        .chain(python::SHORT)
        .chain(pressure::SHORT)
        .chain(cases::ALL.into_iter().flatten());
    let cases = all.filter(|case| wanted(&case.full_name())).map(Job::Case);
    let mut jobs: Vec<Job> = cases.chain(machines).collect();
    // The longest first, so that no lane is alone with one at the end.
    jobs.sort_by_cached_key(|job| Reverse(Times::of(&job.name()).last().unwrap_or(Duration::MAX)));
    if args.failed && host.is_empty() && jobs.is_empty() {
        ui::say("of these checks none failed when it ran last");
        return Ok(0);
    }
    if host.is_empty() && jobs.is_empty() {
        let filter = args.filter.as_deref().unwrap_or("");
        ui::say(&format!(
            "no check has `{filter}` in its name; ./uvm test --list tells their names"
        ));
        return Ok(EXIT_USAGE);
    }
    if args.list {
        host.iter().for_each(|check| println!("{}", check.name));
        jobs.iter().for_each(|job| println!("{}", job.name()));
        return Ok(0);
    }
    let results = Mutex::new(Results::of(
        host.iter().map(|check| check.name.to_owned()),
        jobs.iter().map(Job::name),
    ));
    // Beside each other: tests of the host that have one thread leave a CPU to machines, which wait
    // a good part of their time.
    let queue = Queue::new(args.kernel, jobs, args.cpus, &results);
    std::thread::scope(|scope| {
        scope.spawn(|| queue.run());
        host.into_iter().for_each(|check| queue.check(check));
        queue.help();
    });
    drop(queue);
    let results = results.into_inner().expect("no lane panics");
    if let Some(file) = &args.json {
        results.write_json(file)?;
    }
    if let Some(file) = &args.junit {
        results.write_junit(file)?;
    }
    println!("{} passed, {} failed", results.passed, results.failed);
    Ok(u8::from(results.failed > 0))
}

/// One failed test, with its reasons.
pub fn failed(details: String) -> Verdict {
    Verdict::Failed { passed: 0, failed: 1, details }
}
