//! `./uvm bench micro`: the same static program on our kernel and on Debian's Linux, under the same QEMU flags.
//!
//! Time is counted in guest instructions (`-icount shift=0,sleep=off`), which neither the host's speed nor its load
//! changes. The boot rows are wall time, since booting is where the user waits.

use super::{about, report, table, Document, Row, Verdict};
use crate::qemu::{Board, Clock, Display, Ending, Kernel, Machine};
use crate::run::{self, Root};
use crate::session::{self, Finished, Input};
use crate::{guest, ui};
use anyhow::{bail, Context, Result};
use clap::Args;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Args)]
pub struct MicroArgs {
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
    /// How often each row is measured.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only the rows whose name contains this.
    filter: Option<String>,
}

/// The project's own aims: our instructions over Linux's, at most.
pub fn target(name: &str) -> Option<f64> {
    match name {
        // No kernel takes part: the same user instructions run on both.
        "re-touch" | BOOT => None,
        "fork, exit, wait; 16384 pages touched" | "fork, write one page, exit, wait; 16384 pages touched" => {
            Some(0.1)
        }
        name if name.contains("fault") || name.starts_with("mmap") => Some(0.4),
        name if name.starts_with("fork") && !name.contains("execve") => Some(0.4),
        _ => Some(0.5),
    }
}

pub const BOOT: &str = "boot to the first user instruction";
const BOOTS: usize = 3;
const LIMIT: Duration = Duration::from_secs(600);

/// What a run of the program said.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    failures: Vec<String>,
    /// Clock ticks for each instruction.
    calibration: Option<f64>,
    complete: bool,
}

pub fn micro(args: &MicroArgs) -> Result<u8> {
    let mut document = Document::default();
    let mut complete = true;
    let mut command = None;
    for (kernel, system) in [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")] {
        ui::say(&format!("measuring {system}: {} runs of each row", args.runs));
        let (machine, finished) = boot(kernel, Clock::Instructions, &program_words(args), None)?;
        let mut measured = parse(system, &finished.output);
        for failure in &measured.failures {
            ui::say(&format!("{system} could not do: {failure}"));
        }
        if !measured.complete {
            run::explain(&finished.ending, &finished.report, &machine.kernel);
            ui::say(&format!("{system} stopped before the end; its last words: {}", tail(&finished.output)));
        }
        match measured.calibration {
            Some(ticks) if (ticks - 1.0).abs() < 0.001 => {}
            Some(ticks) => bail!("on {system} a tick is not an instruction ({ticks} ticks each): no numbers"),
            None => ui::say(&format!("{system} did not calibrate its clock")),
        }
        complete &= measured.complete && measured.failures.is_empty();
        document.rows.append(&mut measured.rows);
        if args.filter.as_ref().is_none_or(|filter| BOOT.contains(filter.as_str())) {
            document.rows.extend(boot_row(kernel, system)?);
        }
        command = Some(machine);
    }
    let machine = command.context("nothing was measured")?;
    document.about = format!(
        "Instruction rows: {}\nBoot rows: the same without -icount.\n{}",
        about::machine(&machine),
        about::host()
    );
    let page = report::keep("micro", &document)?;
    if args.json {
        println!("{}", serde_json::to_string(&document)?);
    } else {
        print!("{}", table::render(&document, |name| verdict(&document, name)));
        println!("\nInstructions per operation, unless a unit is named.\n{}", document.about);
        println!("The same as a page: {}", page.display());
    }
    Ok(if complete { 0 } else { 1 })
}

fn program_words(args: &MicroArgs) -> Vec<String> {
    let mut words = vec!["/bin/micro".to_owned(), args.runs.to_string()];
    words.extend(args.filter.clone());
    words
}

/// Boots the benchmark program on one of the kernels.
pub(super) fn boot(
    kernel: Kernel,
    clock: Clock,
    command: &[String],
    plugin: Option<String>,
) -> Result<(Machine, Finished)> {
    let program = guest::compile("micro", guest::Libc::Musl)?;
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let mut image = crate::image::Image::minimal()?;
    image.program(&program, "/bin/micro")?;
    let mut machine = Machine {
        board: Board::Q35,
        clock,
        cpu: "qemu64",
        memory: "512".to_owned(),
        cpus: 1,
        kernel: run::kernel_path(kernel)?,
        initrd: folder.path().join("root.cpio"),
        command_line: String::new(),
        plugin,
        display: Display::Absent,
        disks: Vec::new(),
    };
    let root = Root { image, command: command.to_vec() };
    run::prepare(&mut machine, kernel, root, &Input::Nothing.words())?;
    let finished = session::capture(&machine, Input::Nothing, LIMIT)?;
    Ok((machine, finished))
}

/// Wall time from the start of QEMU to the first user instruction; none when the kernel never got there.
fn boot_row(kernel: Kernel, system: &str) -> Result<Option<Row>> {
    let mut times = Vec::new();
    for _ in 0..BOOTS {
        let (_, finished) = boot(kernel, Clock::Wall, &["/bin/micro".to_owned(), "child".to_owned()], None)?;
        match (finished.report.first_user, finished.ending) {
            (Some(time), Ending::Exited(0)) => times.push(time.as_secs_f64() * 1e6),
            _ => return Ok(None),
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(Some(Row {
        name: BOOT.to_owned(),
        system: system.to_owned(),
        metric: "us".to_owned(),
        value: times[BOOTS / 2].round(),
        min: times[0].round(),
        max: times[BOOTS - 1].round(),
        runs: BOOTS as u64,
        operations: None,
        counters: BTreeMap::new(),
    }))
}

/// Reads the program's lines (see bench/micro.c).
pub(super) fn parse(system: &str, output: &str) -> Measured {
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
            ["counter", name, value] if system == "uvm" => {
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

/// How a row stands against its aim.
pub fn verdict(document: &Document, name: &str) -> Verdict {
    match (target(name), document.ratio(name)) {
        (None, _) => Verdict::NoBar,
        (Some(limit), None) => Verdict::NotMeasured(limit.to_string()),
        (Some(limit), Some(ratio)) if ratio <= limit => Verdict::Met(limit.to_string()),
        (Some(limit), Some(_)) => Verdict::Missed(limit.to_string()),
    }
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

    #[test]
    fn memory_rows_aim_lower_than_the_others() {
        assert_eq!(target("anonymous fault"), Some(0.4));
        assert_eq!(target("null system call"), Some(0.5));
        assert_eq!(target("fork, execve, wait"), Some(0.5));
        assert_eq!(target("fork, exit, wait; 16384 pages touched"), Some(0.1));
        assert_eq!(target("re-touch"), None);
    }
}
