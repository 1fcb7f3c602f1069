//! The most that two CPUs of one QEMU could do, whatever their kernel: `bench/exceptions.c`, a
//! program without a kernel that takes page faults as often as a kernel did in a row of `bench
//! smp`, on one CPU and on two.
//!
//! QEMU delivers exceptions under one lock (`docs/decisions/measuring.md`), so the more often they
//! come, the less a second CPU brings. What else two CPUs have in common, a kernel's own, is not in
//! it.

use super::samples::Samples;
use super::smp::WORKERS;
use super::Row;
use crate::guest;
use crate::qemu::{Ending, Machine};
use crate::session;
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// How the rows end that say what exceptions alone would let two CPUs do, against one.
pub const EXCEPTIONS: &str = ": exceptions alone, two CPUs / one";

const LIMIT: Duration = Duration::from_secs(120);
/// More would overflow the program's words; and there exceptions are too rare to matter.
const MOST: f64 = 1e6;

/// Runs the program for each operation of a run that took faults; its lines of output are added to
/// the run's.
pub fn beside(output: &str) -> Result<String> {
    let mut samples = Samples::default();
    samples.gather("", output);
    let often = nanoseconds(&samples.rows());
    if often.is_empty() {
        return Ok(String::new());
    }
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let initrd = folder.path().join("nothing");
    std::fs::write(&initrd, [0])?;
    let words: Vec<String> = often.values().map(u64::to_string).collect();
    let machine = Machine {
        cpu: "qemu64",
        memory: "64".to_owned(),
        cpus: 2,
        kernel: guest::compile_bare("exceptions")?,
        command_line: words.join(" "),
        ..Machine::new(initrd)
    };
    let finished = session::capture_apart(&machine, LIMIT)?;
    if !matches!(finished.ending, Ending::Exited(0)) {
        bail!("bench/exceptions.c stopped before its end ({:?})", finished.ending);
    }
    let ratios = ratios(&finished.output);
    let mut lines = String::new();
    for (operation, nanos) in often {
        let Some(ratio) = ratios.get(&nanos) else { continue };
        lines += &format!("value|{operation}{EXCEPTIONS}|times|{ratio:.4}\n");
    }
    Ok(lines)
}

/// How many nanoseconds one process had for each of its page faults, by operation.
fn nanoseconds(rows: &[Row]) -> BTreeMap<String, u64> {
    let value = |name: String| rows.iter().find(|row| row.name == name).map(|row| row.value);
    let (one, two) = WORKERS[0];
    let mut often = BTreeMap::new();
    for row in rows {
        let Some(operation) = row.name.strip_suffix(&format!(": {one}")) else { continue };
        let faults = value(format!("{operation}: {two}, page faults"));
        let Some(faults) = faults.filter(|&faults| faults > 0.0) else { continue };
        let nanos = 1e9 / (row.value * faults);
        if nanos < MOST {
            often.insert(operation.to_owned(), nanos as u64);
        }
    }
    often
}

/// The median of what two CPUs did by what one did, for each time between exceptions.
fn ratios(output: &str) -> BTreeMap<u64, f64> {
    let mut windows: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let (mut one, mut two) = (0.0, Vec::new());
    for line in output.lines() {
        let words: Vec<&str> = line.trim_end().split('|').collect();
        let ["bare", nanos, cpus, taken, ticks] = words[..] else { continue };
        let number = |word: &str| word.parse::<f64>().unwrap_or(f64::NAN);
        let rate = number(taken) / number(ticks);
        if cpus == "1" {
            (one, two) = (rate, Vec::new());
            continue;
        }
        two.push(rate);
        if let [first, second] = two[..] {
            windows.entry(number(nanos) as u64).or_default().push((first + second) / one);
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    windows.into_iter().map(|(nanos, all)| (nanos, median(all))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_a_fault_is_the_operations_by_its_faults() {
        let rows = [
            ("a: one process", 1000.0),
            ("a: two processes, page faults", 2.0),
            ("b: one process", 9.0),
        ];
        let rows = rows.map(|(name, value)| Row::of(name, "", "/s", &[value]));
        assert_eq!(nanoseconds(&rows), BTreeMap::from([("a".to_owned(), 500_000)]));
    }

    #[test]
    fn both_cpus_count_against_one() {
        let output = "clock|1\nbare|7|1|10|5\nbare|7|2|8|5\nbare|7|2|10|5\nend\n";
        assert_eq!(ratios(output), BTreeMap::from([(7, 1.8)]));
    }
}
