//! What the checks came to: a line for each as it ends, and what is kept of it: which failed, so
//! that `--failed` runs them again, how long each took, and a file for scripts.

use super::Verdict;
use crate::ui::{self, Times};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Before a run that takes less by the last times nothing is said of it.
const SHORT: Duration = Duration::from_secs(60);

/// One check's result, as scripts get it.
#[derive(Serialize)]
struct Outcome {
    name: String,
    /// `passed`, `failed` or `skipped`.
    result: &'static str,
    seconds: f64,
    /// Tests that it stands for.
    passed: u64,
    failed: u64,
    /// What went wrong, or why it was left out.
    details: String,
}

/// The running count.
pub struct Results {
    /// Checks that are run.
    all: usize,
    outcomes: Vec<Outcome>,
    /// Names that failed when they ran last, these checks' and others'.
    last_failed: BTreeSet<String>,
    pub passed: u64,
    pub failed: u64,
}

impl Results {
    /// Those of the checks of these names, which are about to be run. Says how long they took last.
    pub fn of(names: &[String]) -> Results {
        let last: Option<Duration> = names.iter().map(|name| Times::of(name).last()).sum();
        if let Some(last) = last.filter(|&last| last > SHORT) {
            let minutes = last.as_secs().div_ceil(60);
            ui::say(&format!(
                "{} checks, which took {minutes} min one by one last time",
                names.len()
            ));
        }
        let last_failed = last_failed();
        Results { all: names.len(), outcomes: Vec::new(), last_failed, passed: 0, failed: 0 }
    }

    /// Prints one check's result and counts it.
    pub fn add(&mut self, name: &str, started: Instant, verdict: Verdict) {
        let (took, seconds) = (ui::seconds(started), started.elapsed().as_secs_f64());
        let place = format!("[{}/{}]", self.outcomes.len() + 1, self.all);
        let (result, passed, failed, details) = match verdict {
            Verdict::Passed { tests } => {
                let many = if tests == 1 { String::new() } else { format!("{tests} tests, ") };
                println!("{} {place} {name} ({many}{took})", ui::green("ok"));
                ("passed", tests, 0, String::new())
            }
            Verdict::Failed { passed, failed, details } => {
                println!("{} {place} {name} ({took})", ui::red("FAILED"));
                for line in details.lines() {
                    println!("    {line}");
                }
                ("failed", passed, failed, details)
            }
            Verdict::Skipped(reason) => {
                println!("skipped {place} {name}: {reason}");
                ("skipped", 0, 0, reason)
            }
        };
        if failed == 0 {
            Times::of(name).keep(started.elapsed());
        }
        self.passed += passed;
        self.failed += failed;
        self.keep_failed(name, result);
        let name = name.to_owned();
        self.outcomes.push(Outcome { name, result, seconds, passed, failed, details });
        // A closed standard output shows at the next print.
        let _ = std::io::stdout().flush();
    }

    /// Keeps whether a check failed. That it can't be kept is no reason to fail.
    fn keep_failed(&mut self, name: &str, result: &str) {
        let changed = match result {
            "failed" => self.last_failed.insert(name.to_owned()),
            "passed" => self.last_failed.remove(name),
            _ => false,
        };
        if changed {
            let text: String = self.last_failed.iter().map(|name| format!("{name}\n")).collect();
            let _ = std::fs::write(file_of_failed(), text);
        }
    }

    /// Writes an array with an object for each check.
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.outcomes)?;
        std::fs::write(file, text + "\n").with_context(|| format!("can't write {}", file.display()))
    }
}

fn file_of_failed() -> PathBuf {
    crate::build::root().join("target/failed-checks")
}

/// Names of checks that failed when they ran last.
pub fn last_failed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(file_of_failed()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
