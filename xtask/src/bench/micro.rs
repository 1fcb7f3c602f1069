//! `./uvm bench micro`: the same static program on our kernel and on Debian's Linux, under the same
//! QEMU flags.
//!
//! Time is counted in guest instructions (`-icount shift=0,sleep=off`), which neither the host's
//! speed nor its load changes. The boot rows are wall time, since booting is where the user waits.

use super::kept::{Bench, Extent};
use super::output::Output;
use super::{about, counted, names, Document, Row, Verdict};
use crate::qemu::{Clock, Ending, Kernel};
use crate::ui;
use anyhow::{Context, Result};
use clap::Args;
use std::collections::BTreeMap;

#[derive(Args)]
pub struct MicroArgs {
    #[command(flatten)]
    output: Output,
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
        "fork, exit, wait; 16384 pages touched"
        | "fork, write one page, exit, wait; 16384 pages touched" => Some(0.1),
        name if name.contains("fault") || name.starts_with("mmap") => Some(0.4),
        name if name.starts_with("fork") && !name.contains("execve") => Some(0.4),
        _ => Some(0.5),
    }
}

pub const BOOT: &str = "boot to the first user instruction";
const BOOTS: usize = 3;

pub fn micro(args: &MicroArgs) -> Result<u8> {
    let mut rows = names::of("micro")?;
    rows.push(BOOT.to_owned());
    if let Some(code) = args.output.list_or_check(Bench::Micro, args.filter.as_deref(), &rows) {
        return Ok(code);
    }
    let mut document = Document::default();
    let mut complete = true;
    let mut command = None;
    for (kernel, system) in [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")] {
        ui::say(&format!("measuring {system}: {} runs of each row", args.runs));
        let (mut rows, machine, whole) = counted::measure(
            kernel,
            system,
            Clock::Instructions,
            1,
            "micro",
            &program_words(args),
        )?;
        complete &= whole;
        document.rows.append(&mut rows);
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
    args.output.show(Bench::Micro, &document, Extent::of(args.filter.as_ref()), |name| {
        verdict(&document, name)
    })?;
    Ok(if complete { 0 } else { 1 })
}

fn program_words(args: &MicroArgs) -> Vec<String> {
    let mut words = vec![args.runs.to_string()];
    words.extend(args.filter.clone());
    words
}

/// Wall time from the start of QEMU to the first user instruction; none when the kernel never got
/// there.
fn boot_row(kernel: Kernel, system: &str) -> Result<Option<Row>> {
    let mut times = Vec::new();
    for _ in 0..BOOTS {
        let (_, finished) =
            counted::boot(kernel, Clock::Wall, 1, "micro", &["child".to_owned()], None)?;
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
        measured: 0,
        operations: None,
        counters: BTreeMap::new(),
    }))
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
    fn memory_rows_aim_lower_than_the_others() {
        assert_eq!(target("anonymous fault"), Some(0.4));
        assert_eq!(target("null system call"), Some(0.5));
        assert_eq!(target("fork, execve, wait"), Some(0.5));
        assert_eq!(target("fork, exit, wait; 16384 pages touched"), Some(0.1));
        assert_eq!(target("re-touch"), None);
    }
}
