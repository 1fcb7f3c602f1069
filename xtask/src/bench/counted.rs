//! Benchmarks that count instructions: one static program on either kernel, under the same QEMU
//! flags (see bench/count.h).
//!
//! Time is counted in guest instructions (`-icount shift=0,sleep=off`), which neither the host's
//! speed nor its load changes.

use super::Row;
use crate::pack::Root;
use crate::qemu::{Clock, Kernel, Machine};
use crate::run;
use crate::session::{self, Finished, Input};
use crate::{guest, ui};
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Runs before those that are measured, as in bench/count.h.
pub const WARM_UP: u64 = 2;

const LIMIT: Duration = Duration::from_secs(600);

/// What a run of the program said.
#[derive(Default)]
pub struct Measured {
    pub rows: Vec<Row>,
    pub failures: Vec<String>,
    /// Clock ticks for each instruction.
    calibration: Option<f64>,
    pub complete: bool,
}

/// What one kernel measured: the rows, the machine, and whether it did all.
///
/// # Errors
/// When the clock should count instructions and doesn't.
pub fn measure(
    kernel: Kernel,
    system: &str,
    clock: Clock,
    cpus: u32,
    program: &str,
    words: &[String],
) -> Result<(Vec<Row>, Machine, bool)> {
    let booted = boot(kernel, clock, cpus, program, words, None)?;
    judge(booted, system, clock)
}

/// As [`measure`], by our kernel with such settings on its command line, as which it is known.
///
/// # Errors
/// As [`measure`].
pub fn measure_set(
    settings: &[String],
    system: &str,
    clock: Clock,
    cpus: u32,
    program: &str,
    words: &[String],
) -> Result<(Vec<Row>, Machine, bool)> {
    let booted = boot_set(Kernel::Uvm, settings, clock, cpus, program, words, None)?;
    judge(booted, system, clock)
}

fn judge(
    (machine, finished): (Machine, Finished),
    system: &str,
    clock: Clock,
) -> Result<(Vec<Row>, Machine, bool)> {
    let measured = parse(system, &finished.output);
    for failure in &measured.failures {
        ui::say(&format!("{system} could not do: {failure}"));
    }
    if !measured.complete {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        ui::say(&format!(
            "{system} stopped before the end; its last words: {}",
            tail(&finished.output)
        ));
    }
    match measured.calibration {
        _ if clock != Clock::Instructions => {}
        Some(ticks) if (ticks - 1.0).abs() < 0.001 => {}
        Some(ticks) => {
            bail!("on {system} a tick is not an instruction ({ticks} ticks each): no numbers")
        }
        None => ui::say(&format!("{system} did not calibrate its clock")),
    }
    let complete = measured.complete && measured.failures.is_empty();
    Ok((measured.rows, machine, complete))
}

/// Boots a program of `bench/` on one of the kernels.
pub fn boot(
    kernel: Kernel,
    clock: Clock,
    cpus: u32,
    name: &str,
    words: &[String],
    plugin: Option<String>,
) -> Result<(Machine, Finished)> {
    boot_set(kernel, &[], clock, cpus, name, words, plugin)
}

fn boot_set(
    kernel: Kernel,
    settings: &[String],
    clock: Clock,
    cpus: u32,
    name: &str,
    words: &[String],
    plugin: Option<String>,
) -> Result<(Machine, Finished)> {
    let program = guest::compile(name, guest::Libc::Musl)?;
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let mut image = crate::image::Image::minimal()?;
    let path = format!("/bin/{name}");
    image.program(&program, &path)?;
    let mut machine = Machine {
        clock,
        cpu: "qemu64",
        memory: "512".to_owned(),
        cpus,
        kernel: run::kernel_path(kernel)?,
        plugin,
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let mut command = vec![path];
    command.extend_from_slice(words);
    let root = Root { image, command };
    let settings = [Input::Nothing.words(), settings.to_vec()].concat();
    run::prepare(&mut machine, kernel, root, &settings)?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    Ok((machine, finished))
}

/// Reads the program's lines (see bench/count.h).
pub fn parse(system: &str, output: &str) -> Measured {
    let mut measured = Measured::default();
    for line in output.lines() {
        let parts: Vec<&str> = line.trim_end().split('|').collect();
        match parts[..] {
            ["calibration", ticks] => measured.calibration = ticks.parse().ok(),
            ["row", name, "instructions", value, min, max, runs] => {
                let number = |text: &str| text.parse().unwrap_or(f64::NAN);
                measured.rows.push(Row {
                    name: name.to_owned(),
                    system: system.to_owned(),
                    metric: "instructions".to_owned(),
                    value: number(value),
                    min: number(min),
                    max: number(max),
                    runs: runs.parse().unwrap_or(0),
                    measured: 0,
                    operations: None,
                    counters: BTreeMap::new(),
                });
            }
            ["operations", count] => {
                if let Some(row) = measured.rows.last_mut() {
                    row.operations = count.parse().ok();
                }
            }
            // Linux counts other things under the same names: they would only mislead.
            ["counter", name, value] if system != "linux" => {
                if let (Some(row), Ok(value)) = (measured.rows.last_mut(), value.parse()) {
                    row.counters.insert(name.to_owned(), value);
                }
            }
            ["fail", name, why] => measured.failures.push(format!("{name} ({why})")),
            ["end"] => measured.complete = true,
            _ => {}
        }
    }
    measured
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_belong_to_the_row_before_them() {
        let text = "calibration|1.0000\nrow|a|instructions|2.0|1.0|3.0|9\ncounter|faults|7\nfail|b|no\nend\n";
        let measured = parse("uvm", text);
        assert_eq!(measured.rows[0].counters["faults"], 7);
        assert_eq!(measured.failures, ["b (no)"]);
        assert!(measured.complete && measured.calibration == Some(1.0));
    }
}
