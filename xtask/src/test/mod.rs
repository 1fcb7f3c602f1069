//! `./uvm test`: every check of the project, host ones first, then the kernel's in QEMU, two at a
//! time.
//!
//! A check prints `ok NAME` or `FAILED NAME` with what went wrong; the last line is `N passed, M
//! failed`. What this machine can't check is said, and counted as neither.

mod boots;
mod cases;
mod columns;
mod crashes;
mod damaged;
mod disks;
mod host;
mod kernel;
mod mutants;
mod prepare;
mod pressure;
mod stress;
mod terminal;

use crate::qemu::Kernel;
use crate::{ui, EXIT_USAGE};
use anyhow::Result;
use clap::Args;
use std::io::Write;
use std::time::Instant;

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

/// The running count.
#[derive(Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Prints one check's result and counts it.
    pub fn add(&mut self, name: &str, started: Instant, verdict: Verdict) {
        let took = ui::seconds(started);
        match verdict {
            Verdict::Passed { tests } => {
                self.passed += tests;
                let many = if tests == 1 { String::new() } else { format!("{tests} tests, ") };
                println!("{} {name} ({many}{took})", ui::green("ok"));
            }
            Verdict::Failed { passed, failed, details } => {
                self.passed += passed;
                self.failed += failed;
                println!("{} {name} ({took})", ui::red("FAILED"));
                for line in details.lines() {
                    println!("    {line}");
                }
            }
            Verdict::Skipped(reason) => println!("skipped {name}: {reason}"),
        }
        // A closed standard output shows at the next print.
        let _ = std::io::stdout().flush();
    }
}

pub fn test(args: &TestArgs) -> Result<u8> {
    let wanted =
        |name: &str| args.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
    let long = if args.long { host::LONG } else { &[] };
    let checks = host::CHECKS.iter().chain(long);
    let host: Vec<_> =
        checks.filter(|check| args.kernel == Kernel::Uvm && wanted(check.name)).collect();
    let long: &[&[cases::Case]] = if args.long { &[stress::LONG, pressure::LONG] } else { &[] };
    let all = long
        .iter()
        .copied()
        .flatten()
        .chain(stress::SHORT)
        .chain(pressure::SHORT)
        .chain(cases::CASES);
    let cases: Vec<_> = all.filter(|case| wanted(&case.full_name())).collect();
    if host.is_empty() && cases.is_empty() {
        let filter = args.filter.as_deref().unwrap_or("");
        ui::say(&format!(
            "no check has `{filter}` in its name; ./uvm test --list tells their names"
        ));
        return Ok(EXIT_USAGE);
    }
    if args.list {
        host.iter().for_each(|check| println!("{}", check.name));
        cases.iter().for_each(|case| println!("{}", case.full_name()));
        return Ok(0);
    }
    let mut tally = Tally::default();
    for check in host {
        let started = Instant::now();
        let verdict = ui::with_progress(check.name, || (check.run)());
        let verdict = verdict.unwrap_or_else(|error| failed(format!("{error:#}")));
        tally.add(check.name, started, verdict);
    }
    if !cases.is_empty() {
        kernel::run(args.kernel, &cases, args.cpus, &mut tally);
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(u8::from(tally.failed > 0))
}

/// One failed test, with its reasons.
pub fn failed(details: String) -> Verdict {
    Verdict::Failed { passed: 0, failed: 1, details }
}
