//! `./uvm bench move`: what moving data costs, copied and not, ours beside Linux; the paper's
//! figures 5 to 9.
//!
//! All is measured twice: in instructions, which repeat exactly, and in wall time, as factors
//! between rows of one run. The emulator has no caches, so that a copied page costs the same at any
//! size; docs/moving.md says what real hardware adds.

use super::kept::{Bench, Extent};
use super::output::Output;
use super::{about, bars, counted, names, Document, Row};
use crate::qemu::{Clock, Kernel, Machine};
use crate::ui;
use anyhow::{Context, Result};
use clap::Args;

#[derive(Args)]
pub struct MoveArgs {
    #[command(flatten)]
    output: Output,
    /// How often each row is measured.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Only instructions, and only of our kernel: what a change brings, in a fraction of the time.
    #[arg(long)]
    quick: bool,
    /// Only the rows whose name contains this, e.g. `null write`, `pipe`, `64 KiB`.
    filter: Option<String>,
}

const SYSTEMS: [(Kernel, &str); 2] = [(Kernel::Uvm, "uvm"), (Kernel::Linux, "linux")];
/// The sizes of bench/move.c, in KiB; entries are passed in one larger.
pub const SIZES: [u32; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
/// Put before a row's name where it was measured in wall time.
const TIME: &str = "time: ";
/// What the kernel counts when it asks another CPU to forget translations.
const REMOTE: &str = "tlb_remote";
const REMOTE_ROW: &str = "remote TLB invalidations, most of any row";

/// A factor between two rows, both ours unless said otherwise.
struct Factor {
    name: &'static str,
    over: (&'static str, &'static str),
    under: &'static str,
}

/// The paper's, and what programs get that change nothing. Each at the sizes of `at`.
const FACTORS: [Factor; 8] = [
    Factor {
        name: "null write, copied / loaned",
        over: ("null write, copied", "uvm"),
        under: "null write, loaned",
    },
    Factor {
        name: "null read, copied / transferred",
        over: ("null read, copied", "uvm"),
        under: "null read, transferred",
    },
    Factor { name: "pipe, copied / loaned", over: ("pipe, copied", "uvm"), under: "pipe, loaned" },
    Factor {
        name: "pipe, copied / transferred",
        over: ("pipe, copied", "uvm"),
        under: "pipe, transferred",
    },
    Factor {
        name: "pipe, copied / both",
        over: ("pipe, copied", "uvm"),
        under: "pipe, loaned and transferred",
    },
    Factor {
        name: "pipeline, copied / passed and loaned",
        over: ("pipeline, copied", "uvm"),
        under: "pipeline, passed and loaned",
    },
    Factor {
        name: "pipe, Linux / unchanged",
        over: ("pipe, unchanged", "linux"),
        under: "pipe, unchanged",
    },
    Factor {
        name: "Linux's pipe / donated",
        over: ("pipes, to and fro, untouched", "linux"),
        under: "pipes, to and fro, donated",
    },
];
const FACTOR_SIZES: [u32; 2] = [64, 1024];

/// What must not be slower than copying, at any size.
const NEVER_SLOWER: [(&str, &str); 11] = [
    ("socket, unchanged", "socket, copied"),
    ("socket, unchanged, refilled", "socket, copied, refilled"),
    ("null write, unchanged", "null write, copied"),
    ("null write, unchanged, refilled", "null write, copied, refilled"),
    ("null read, unchanged", "null read, copied"),
    ("pipe, unchanged", "pipe, copied"),
    ("pipe, unchanged, refilled", "pipe, copied, refilled"),
    ("null read, unchanged, looked at", "null read, copied, looked at"),
    ("file through a pipe, unchanged", "file through a pipe, copied"),
    ("file through a pipe, unchanged, looked at", "file through a pipe, copied, looked at"),
    ("file through a pipe, unchanged, stored to", "file through a pipe, copied, stored to"),
];

pub fn moving(args: &MoveArgs) -> Result<u8> {
    if let Some(code) =
        args.output.list_or_check(Bench::Move, args.filter.as_deref(), &names::of("move")?)
    {
        return Ok(code);
    }
    let (mut document, mut complete, mut machine) = (Document::default(), true, None);
    let (clocks, systems) = if args.quick { (1, 1) } else { (2, SYSTEMS.len()) };
    for &clock in &[Clock::Instructions, Clock::Wall][..clocks] {
        let what = if clock == Clock::Instructions { "instructions" } else { "wall time" };
        let mut rows = Vec::new();
        for &(kernel, system) in &SYSTEMS[..systems] {
            ui::say(&format!("measuring {what} on {system}: {} runs of each row", args.runs));
            let (mut measured, used, whole) = measure(kernel, system, clock, args)?;
            complete &= whole;
            rows.append(&mut measured);
            if clock == Clock::Instructions {
                machine = Some(used);
            }
        }
        let measured = Document { about: String::new(), rows };
        let mut derived = derive(&measured);
        if clock == Clock::Instructions {
            // One CPU has no other to ask.
            derived.retain(|row| row.name != REMOTE_ROW);
            document.rows.extend(measured.rows);
        } else {
            derived
                .iter_mut()
                .filter(|row| row.name != REMOTE_ROW)
                .for_each(|row| row.name.insert_str(0, TIME));
        }
        document.rows.append(&mut derived);
    }
    document.about = format!(
        "{}\nTimes, and remote invalidations: two CPUs, without -icount.\n{}",
        about::machine(&machine.context("nothing was measured")?),
        about::host()
    );
    let extent = if args.quick { Extent::Part } else { Extent::of(args.filter.as_ref()) };
    args.output.show(Bench::Move, &document, extent, |name| bars::verdict(&document, name))?;
    Ok(if complete { 0 } else { 1 })
}

fn measure(
    kernel: Kernel,
    system: &str,
    clock: Clock,
    args: &MoveArgs,
) -> Result<(Vec<Row>, Machine, bool)> {
    let mut words = vec![args.runs.to_string()];
    words.extend(args.filter.clone());
    // Where time is told sender and receiver have a CPU each, and translations could be left on the
    // other.
    let cpus = if clock == Clock::Wall { 2 } else { 1 };
    counted::measure(kernel, system, clock, cpus, "move", &words)
}

/// A row's name at a size in KiB, as bench/move.c has it.
pub fn at(name: &str, kib: u32) -> String {
    if kib < 1024 {
        format!("{name}, {kib} KiB")
    } else {
        format!("{name}, {} MiB", kib / 1024)
    }
}

/// Factors between rows, the worst of what should never be slower, and interrupts.
fn derive(measured: &Document) -> Vec<Row> {
    let value = |name: &str, kib: u32, system: &str| {
        measured.value(&at(name, kib), system).map(|row| row.value)
    };
    let mut rows = Vec::new();
    for Factor { name, over, under } in &FACTORS {
        for kib in FACTOR_SIZES {
            let values = value(over.0, kib, over.1).zip(value(under, kib, "uvm"));
            rows.extend(
                values
                    .map(|(over, under)| Row::of(&at(name, kib), "uvm", "times", &[over / under])),
            );
        }
    }
    for (ours, copied) in NEVER_SLOWER {
        let at_size = |kib| {
            value(ours, kib, "uvm")
                .zip(value(copied, kib, "uvm"))
                .map(|(ours, copied)| ours / copied)
        };
        let worst = SIZES.into_iter().filter_map(at_size).reduce(f64::max);
        rows.extend(worst.map(|worst| {
            Row::of(&format!("{ours} / copied, at the worst size"), "uvm", "times", &[worst])
        }));
    }
    if !measured.rows.is_empty() {
        let remote = |row: &Row| row.counters.get(REMOTE).copied().unwrap_or(0) as f64;
        let most =
            measured.rows.iter().filter(|row| row.system == "uvm").map(remote).reduce(f64::max);
        rows.extend(most.map(|most| Row::of(REMOTE_ROW, "uvm", "each", &[most])));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_of_one_size_and_the_worst_counts() {
        let rows = [
            ("null write, copied, 1 MiB", 800.0),
            ("null write, loaned, 1 MiB", 200.0),
            ("null write, unchanged, 1 MiB", 200.0),
            ("null write, copied, 4 KiB", 10.0),
            ("null write, unchanged, 4 KiB", 11.0),
        ];
        let rows = rows
            .iter()
            .map(|(name, value)| Row::of(name, "uvm", "instructions", &[*value]))
            .collect();
        let derived = Document {
            about: String::new(),
            rows: derive(&Document { about: String::new(), rows }),
        };
        let value = |name: &str| derived.value(name, "uvm").map(|row| row.value);
        assert_eq!(value("null write, copied / loaned, 1 MiB"), Some(4.0));
        assert_eq!(value("null write, copied / loaned, 64 KiB"), None);
        assert_eq!(value("null write, unchanged / copied, at the worst size"), Some(1.1));
    }
}
