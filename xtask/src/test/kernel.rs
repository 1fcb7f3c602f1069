//! Boots the kernel once for each case, and judges what came out; runs that and the checks of the
//! host that boot machines, some at a time.

use super::cases::{Case, Expect, Leftover};
use super::disks;
use super::host::{tail, Check};
use super::prepare::Prepared;
use super::results::Results;
use super::{failed, Verdict};
use crate::guest::{self, Libc};
use crate::pack::{self, Root};
use crate::qemu::{Clock, Ending, Kernel, Machine};
use crate::run;
use crate::session::{self, Finished};
use crate::{symbols, ui};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How much slower than ours a machine may be on which the tests run: limits only end what hangs.
const SLOWEST: u32 = 4;

/// Machines that run beside each other.
pub const LANES: u32 = 2;

/// How much of a failed case's output is shown.
const SHOWN_LINES: usize = 40;
const SHOWN_TRACES: usize = 5;

/// What boots machines.
pub enum Job<'a> {
    Case(&'a Case),
    Check(&'a Check),
}

impl Job<'_> {
    pub fn name(&self) -> String {
        match self {
            Job::Case(case) => case.full_name(),
            Job::Check(check) => check.name.to_owned(),
        }
    }
}

/// Jobs, which are taken from the front: the long ones should stand there.
pub struct Queue<'a> {
    kernel: Kernel,
    jobs: Vec<Job<'a>>,
    next: AtomicUsize,
    cpus: Option<u32>,
    results: &'a Mutex<Results>,
    /// Where the kernel is that cases boot, once it is built; none if it isn't.
    path: OnceLock<Option<PathBuf>>,
}

impl<'a> Queue<'a> {
    /// Cases run on as many CPUs as they ask for; on `cpus` if one would do.
    pub fn new(
        kernel: Kernel,
        jobs: Vec<Job<'a>>,
        cpus: Option<u32>,
        results: &'a Mutex<Results>,
    ) -> Queue<'a> {
        let (next, path) = (AtomicUsize::new(0), OnceLock::new());
        Queue { kernel, jobs, next, cpus, results, path }
    }

    /// Builds the kernel, if there are cases, and runs jobs, some at a time.
    pub fn run(&self) {
        if !self.jobs.iter().any(|job| matches!(job, Job::Case(_))) {
            let _ = self.path.set(None);
            return;
        }
        match run::kernel_path(self.kernel) {
            Ok(path) => _ = self.path.set(Some(path)),
            Err(error) => {
                let verdict = failed(tail(&format!("{error:#}"), SHOWN_LINES));
                self.add("kernel/build", Instant::now(), Ok(verdict));
                let _ = self.path.set(None);
            }
        }
        std::thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| self.work(|check| (check.run)()));
            }
        });
    }

    /// Runs jobs that are left, and tells how each goes on.
    pub fn help(&self) {
        self.work(|check| ui::with_progress_alone(check.name, || (check.run)()));
    }

    /// Runs a check of the host, and tells how it goes on.
    pub fn check(&self, check: &Check) {
        let started = Instant::now();
        let verdict = ui::with_progress_alone(check.name, || (check.run)());
        self.add(check.name, started, verdict);
    }

    fn work(&self, run_check: impl Fn(&Check) -> Result<Verdict>) {
        let path = self.path.wait();
        while let Some(job) = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let started = Instant::now();
            let verdict = match (job, path) {
                (Job::Check(check), _) => run_check(check),
                (Job::Case(case), Some(path)) => {
                    let cpus = self.cpus.filter(|_| case.cpus == 1).unwrap_or(case.cpus);
                    one(self.kernel, path, case, cpus)
                }
                (Job::Case(_), None) => continue,
            };
            self.add(&job.name(), started, verdict);
        }
    }

    fn add(&self, name: &str, started: Instant, verdict: Result<Verdict>) {
        let verdict = verdict.unwrap_or_else(|error| failed(format!("{error:#}")));
        self.results.lock().expect("no lane panics").add(name, started, verdict);
    }
}

fn one(kernel: Kernel, path: &Path, case: &Case, cpus: u32) -> Result<Verdict> {
    if kernel == Kernel::Linux && case.ours_only {
        return Ok(Verdict::Skipped("says something about our kernel alone".to_owned()));
    }
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let prepared = match (case.prepare)()? {
        Ok(prepared) => prepared,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let root = pack(kernel, case, &prepared)?;
    let mut machine = Machine {
        board: case.board,
        clock: case.clock,
        cpu: if case.clock == Clock::Wall { "max,-erms" } else { "qemu64" },
        memory: case.memory.to_owned(),
        cpus,
        kernel: path.to_owned(),
        display: case.display,
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let disks = disks::make(case.disks, folder.path())?;
    machine.disks = disks.list;
    let mut words = [case.input.words(), disks.words].concat();
    if kernel == Kernel::Uvm {
        words.push("audit".to_owned());
    }
    words.extend(case.words.iter().map(|word| (*word).to_owned()));
    run::prepare(&mut machine, kernel, root, &words)?;
    let finished =
        session::capture(&machine, case.input, Duration::from_secs(case.seconds) * SLOWEST)?;
    let mut complaints = judge(kernel, case, &prepared, &finished);
    if let Ending::Exited(_) = finished.ending {
        complaints.extend(disks::judge(case.disks, folder.path()));
    }
    // What builds with debug assertions tell (`kernel/src/mem/fault.rs`).
    complaints.extend(
        finished.report.trace.iter().filter(|line| line.contains("that can't fail")).cloned(),
    );
    if complaints.is_empty() {
        return Ok(Verdict::Passed { tests: 1 });
    }
    let mut details = complaints.join("\n");
    for line in symbols::story(path, &finished.report) {
        details.push_str(&format!("\n{line}"));
    }
    let traces = &finished.report.trace;
    for line in &traces[traces.len().saturating_sub(SHOWN_TRACES)..] {
        details.push_str(&format!("\ntrace: {line}"));
    }
    details.push_str(&format!("\n--- its output:\n{}", tail(&finished.output, SHOWN_LINES)));
    Ok(failed(details))
}

/// The root file system. On our kernel the program runs under another one, which compares the
/// memory in use before and after.
fn pack(kernel: Kernel, case: &Case, prepared: &Prepared) -> Result<Root> {
    let mut add: Vec<String> = case.add.iter().map(|file| (*file).to_owned()).collect();
    add.extend(prepared.add.iter().cloned());
    for (name, libc) in case.guests {
        add.push(format!("{}:/bin/{name}", guest::compile(name, *libc)?.display()));
    }
    let command: Vec<String> = case.command.iter().map(|word| (*word).to_owned()).collect();
    let watched = kernel == Kernel::Uvm && case.leftover == Leftover::None;
    if watched {
        add.push(format!("{}:/bin/leftover", guest::compile("leftover", Libc::Musl)?.display()));
    }
    let mut root = pack::pack(prepared.root.as_deref(), &add, &command)?;
    if watched {
        root.command.insert(0, "/bin/leftover".to_owned());
    }
    Ok(root)
}

/// What is wrong with the outcome; empty when all is well.
fn judge(kernel: Kernel, case: &Case, prepared: &Prepared, finished: &Finished) -> Vec<String> {
    let mut complaints = Vec::new();
    if finished.ending.code() != case.code {
        complaints
            .push(format!("it ended with {:?}, not with code {}", finished.ending, case.code));
    }
    let output = finished.output.as_str();
    for expect in case.expect {
        match expect {
            Expect::Exactly(text) if output != *text => {
                complaints.push(format!("its output is not {text:?}"))
            }
            Expect::Contains(text) if !output.contains(text) => {
                complaints.push(format!("its output lacks {text:?}"))
            }
            Expect::Lacks(text) if output.contains(text) => {
                complaints.push(format!("its output has {text:?}"))
            }
            Expect::Matches(pattern) if !matches(pattern, output) => {
                complaints.push(format!("its output does not match {pattern:?}"));
            }
            Expect::Prepared if !output.contains(&prepared.expected) => {
                complaints.push(format!(
                    "its output lacks what this machine says: {:?}",
                    prepared.expected
                ));
            }
            Expect::Panic(text) => {
                let heard = finished.report.panic.as_deref().unwrap_or("");
                if !heard.contains(text) || finished.report.frames.len() < 3 {
                    complaints
                        .push(format!("no panic with {text:?} and a back-trace; heard {heard:?}"));
                }
            }
            Expect::Stacks(cpus) => {
                let told =
                    finished.report.stacks.iter().filter(|stack| !stack.frames.is_empty()).count();
                if told != *cpus {
                    complaints.push(format!("{told} CPUs have said where they are, not {cpus}"));
                }
            }
            Expect::Judged(judge) => complaints.extend(judge(kernel, output)),
            Expect::Told(pattern)
                if !finished.report.trace.iter().any(|line| matches(pattern, line)) =>
            {
                complaints.push(format!("the kernel has told nothing that matches {pattern:?}"));
            }
            _ => {}
        }
    }
    complaints
}

fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}
