//! What the checks came to: a line for each as it ends, and what is kept of it: which failed, so
//! that `--failed` runs them again, how long each took, and a file for scripts.

use super::kernel::LANES;
use super::Verdict;
use crate::ui::{self, Times};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of less than this that is left nothing is said.
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

/// What a check runs beside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// None of its kind.
    Machines,
    /// Others.
    All,
}

/// The running count.
pub struct Results {
    /// What is to be run, how long each took last, and how many run beside each other.
    left: BTreeMap<String, (Option<Duration>, Beside)>,
    outcomes: Vec<Outcome>,
    /// Names that failed when they ran last, these checks' and others'.
    last_failed: BTreeSet<String>,
    pub passed: u64,
    pub failed: u64,
}

impl Results {
    /// Those of the checks of these names, which are about to be run: one after another, and jobs
    /// beside them and each other. Says how long they took last.
    pub fn of(checks: impl Iterator<Item = String>, jobs: impl Iterator<Item = String>) -> Results {
        let checks = checks.map(|name| (name, Beside::Machines));
        let all = checks.chain(jobs.map(|name| (name, Beside::All)));
        let left = all.map(|(name, beside)| {
            let last = Times::of(&name).last();
            (name, (last, beside))
        });
        let results = Results {
            left: left.collect(),
            outcomes: Vec::new(),
            last_failed: last_failed(),
            passed: 0,
            failed: 0,
        };
        if let Some(left) = results.time_left() {
            ui::say(&format!("{} checks, {left}", results.left.len()));
        }
        results
    }

    /// How long what is left takes by the last times, in words; nothing where that is soon.
    fn time_left(&self) -> Option<String> {
        let sum = |of| {
            let those = self.left.values().filter(|(_, beside)| *beside == of);
            those.filter_map(|(last, _)| *last).sum::<Duration>()
        };
        // The lane of those that run alone helps with the others, once it has no more.
        let (alone, others) = (sum(Beside::Machines), sum(Beside::All));
        let known = alone.max((alone + others) / (LANES + 1));
        let is_whole = self.left.values().all(|(last, _)| last.is_some());
        let about = if is_whole { "about" } else { "at least" };
        (known > SHORT).then(|| format!("{about} {} min left", known.as_secs().div_ceil(60)))
    }

    /// Prints one check's result and counts it.
    pub fn add(&mut self, name: &str, started: Instant, verdict: Verdict) {
        let (took, seconds) = (ui::seconds(started), started.elapsed().as_secs_f64());
        self.left.remove(name);
        let (done, all) = (self.outcomes.len() + 1, self.outcomes.len() + 1 + self.left.len());
        let left = self.time_left().map_or(String::new(), |left| format!(", {left}"));
        let place = format!("[{done}/{all}{left}]");
        ui::clear_progress();
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
    pub fn write_json(&self, file: &Path) -> Result<()> {
        write(file, &serde_json::to_string_pretty(&self.outcomes)?)
    }

    /// Writes what many programs read that show tests: JUnit's XML, a test case for each check.
    pub fn write_junit(&self, file: &Path) -> Result<()> {
        write(file, &junit(&self.outcomes))
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, format!("{text}\n"))
        .with_context(|| format!("can't write {}", file.display()))
}

fn junit(outcomes: &[Outcome]) -> String {
    let count = |result| outcomes.iter().filter(|outcome| outcome.result == result).count();
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"uvm\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{seconds:.3}\">\n",
        outcomes.len(),
        count("failed"),
        count("skipped"),
    );
    for outcome in outcomes {
        let (class, name) = outcome.name.split_once('/').unwrap_or(("uvm", &outcome.name));
        let (class, name, details) = (xml(class), xml(name), xml(&outcome.details));
        let inside = match outcome.result {
            "failed" => format!("<failure>{details}</failure>"),
            "skipped" => format!("<skipped message=\"{details}\"/>"),
            _ => String::new(),
        };
        text += &format!(
            "  <testcase classname=\"{class}\" name=\"{name}\" time=\"{:.3}\">{inside}</testcase>\n",
            outcome.seconds
        );
    }
    text + "</testsuite>"
}

/// Text as XML has it; what it can't have becomes a question mark.
fn xml(text: &str) -> String {
    let is_allowed = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            c if is_allowed(&c) => c.to_string(),
            _ => "?".to_owned(),
        })
        .collect()
}

fn file_of_failed() -> PathBuf {
    crate::build::root().join("target/failed-checks")
}

/// Names of checks that failed when they ran last.
pub fn last_failed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(file_of_failed()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_has_a_case_for_each_check() {
        let outcome = |name: &str, result, details: &str| Outcome {
            name: name.to_owned(),
            result,
            seconds: 1.5,
            passed: 0,
            failed: 0,
            details: details.to_owned(),
        };
        let text = junit(&[
            outcome("kernel/a \"b\"", "failed", "1 < 2\u{1b}[2J"),
            outcome("host/c", "skipped", "why"),
            outcome("host/d", "passed", ""),
        ]);
        for part in [
            "tests=\"3\" failures=\"1\" skipped=\"1\" time=\"4.500\"",
            "<testcase classname=\"kernel\" name=\"a &quot;b&quot;\" time=\"1.500\">",
            "<failure>1 &lt; 2?[2J</failure>",
            "<skipped message=\"why\"/>",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }
}
