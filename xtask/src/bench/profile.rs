//! `./uvm profile ROW`: where the kernel's instructions go in one row of `bench micro` or `bench
//! move`; and of `bench smp`, which of them move cache lines between two CPUs.
//!
//! QEMU counts every kernel instruction that runs while the row is measured
//! (xtask/plugin/profile.c), and the kernel's debug information says whose it is: of which function
//! as compiled, and which inlined function within that. Counts repeat exactly, so a difference
//! between two profiles is the difference between two kernels. Not so with two CPUs, whose order is
//! the host's (xtask/plugin/lines.c): a few lines in a hundred come and go.

use super::table::number;
use super::{counted, names};
use crate::qemu::{Clock, Kernel};
use crate::{build, run, ui, EXIT_USAGE};
use addr2line::Loader;
use anyhow::{bail, Context, Result};
use clap::Args;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct ProfileArgs {
    /// How often the row is measured; one of `bench smp` for as long as there.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Leave out what takes less than this part of the whole.
    #[arg(long, default_value_t = 0.5, value_name = "PERCENT")]
    least: f64,
    /// List source lines too.
    #[arg(long)]
    lines: bool,
    /// The benchmark whose row it is.
    #[arg(long, default_value = "micro", value_name = "BENCH", value_parser = ["micro", "move", "smp"])]
    of: String,
    /// Part of the row's name, enough to mean one row; of `bench smp` an operation and its workers,
    /// as `fork, exit, wait: two threads`. Without it the names of the rows are listed.
    row: Option<String>,
}

/// What the program's instructions go by.
const PROGRAM: &str = "the program";

/// Counts by some name.
type Tally = HashMap<String, u64>;

/// One function as compiled.
#[derive(Default)]
struct Function {
    total: u64,
    /// By the innermost function whose source the instruction is.
    parts: Tally,
}

pub fn profile(args: &ProfileArgs) -> Result<u8> {
    match (&args.row, args.of.as_str()) {
        (None, of) => {
            ui::say(&format!("which row? ./uvm profile --of {of} 'NAME' takes one of these:"));
            let workers = if of == "smp" { ": two processes" } else { "" };
            names::of(of)?.iter().for_each(|name| println!("{name}{workers}"));
            Ok(EXIT_USAGE)
        }
        (Some(row), "smp") => of_two_cpus(args, row),
        (Some(row), _) => of_one(args, row),
    }
}

fn of_one(args: &ProfileArgs, row: &str) -> Result<u8> {
    if let Some(code) = names::list_or_check(&args.of, false, Some(row), &names::of(&args.of)?) {
        return Ok(code);
    }
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let counts = folder.path().join("counts");
    let plugin = format!("{},out={}", compile("profile")?.display(), counts.display());
    let words = [args.runs.to_string(), row.to_owned()];
    ui::say("counting");
    let (machine, finished) =
        counted::boot(Kernel::Uvm, Clock::Instructions, 1, &args.of, &words, Some(plugin))?;
    let measured = counted::parse("uvm", &finished.output);
    let names: Vec<&str> = measured.rows.iter().map(|row| row.name.as_str()).collect();
    let [row] = &measured.rows[..] else {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        let (bench, count) = (&args.of, names.len());
        bail!("\"{row}\" means {count} rows of bench {bench}, and should mean one: {names:?}");
    };
    let operations = row.operations.context("the benchmark did not say how much it did")? as f64;
    let kernel = Profile::of(&machine.kernel, &read(&counts)?)?;
    let all = kernel.sum() as f64 / operations;
    println!(
        "{}: {} instructions, {} of them the kernel's\n",
        row.name,
        number(row.value),
        number(all)
    );
    kernel.print(operations, args);
    Ok(0)
}

fn of_two_cpus(args: &ProfileArgs, row: &str) -> Result<u8> {
    let Some((operation, workers)) = row.split_once(": ") else {
        bail!("\"{row}\" names no row of bench smp, as \"fork, exit, wait: two threads\" does");
    };
    if let Some(code) = names::list_or_check("smp", false, Some(operation), &names::of("smp")?) {
        return Ok(code);
    }
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let counts = folder.path().join("counts");
    let plugin = format!("{},out={}", compile("lines")?.display(), counts.display());
    let words = [operation, "watched", workers].map(str::to_owned);
    ui::say("counting");
    let (machine, finished) =
        counted::boot(Kernel::Uvm, Clock::Wall, 2, "smp", &words, Some(plugin))?;
    let done: Vec<(&str, f64)> = finished.output.lines().filter_map(watched).collect();
    let &[(name, operations)] = &done[..] else {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        bail!("\"{row}\" means {} rows of bench smp, and should mean one: {done:?}", done.len());
    };
    let text = read(&counts)?;
    let column = |at: usize| {
        text.lines()
            .filter_map(move |line| {
                let parts: Vec<&str> = line.split(' ').collect();
                Some(format!("{} {}\n", parts[0], parts.get(at)?))
            })
            .collect::<String>()
    };
    for (at, what) in [(1, "instructions"), (2, "cache lines that moved from CPU to CPU")] {
        let profile = Profile::of(&machine.kernel, &column(at))?;
        println!("{name}: {} {what}\n", number(profile.sum() as f64 / operations));
        profile.print(operations, args);
        println!();
    }
    Ok(0)
}

/// A line of `smp`'s that says how often a row was done.
fn watched(line: &str) -> Option<(&str, f64)> {
    let (name, done) = line.trim_end().strip_prefix("watched|")?.split_once('|')?;
    Some((name, done.parse().ok()?))
}

/// What a plugin has left.
fn read(counts: &Path) -> Result<String> {
    std::fs::read_to_string(counts).context("the plugin has left no counts")
}

/// Compiles a plugin.
fn compile(name: &str) -> Result<PathBuf> {
    let source = build::root().join("xtask/plugin").join(name).with_extension("c");
    let target = build::scratch("plugin")?.join(name).with_extension("so");
    let output = Command::new("gcc")
        .args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-o",
        ])
        .args([&target, &source])
        .output()
        .context("can't run gcc")?;
    if !output.status.success() {
        bail!(
            "the plugin does not compile:\n{}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(target)
}

/// Counts by function as compiled, and by source line.
#[derive(Default)]
struct Profile {
    functions: HashMap<String, Function>,
    lines: Tally,
}

impl Profile {
    /// Gives each counted address of the kernel's to its function and its source line; the others
    /// are the program's.
    fn of(kernel: &Path, counts: &str) -> Result<Profile> {
        let loader = Loader::new(kernel)
            .map_err(|error| anyhow::anyhow!("can't read {}: {error}", kernel.display()))?;
        let mut profile = Profile::default();
        for line in counts.lines() {
            let (address, count) =
                line.split_once(' ').context("the plugin's counts are damaged")?;
            let (address, count) = (u64::from_str_radix(address, 16)?, count.parse::<u64>()?);
            let symbol = if address >> 63 == 0 {
                PROGRAM
            } else {
                loader.find_symbol(address).unwrap_or("?")
            };
            let name = format!("{:#}", rustc_demangle::demangle(symbol));
            let (part, place) =
                source(&loader, address).unwrap_or_else(|| (name.clone(), "?".to_owned()));
            let function = profile.functions.entry(name).or_default();
            function.total += count;
            *function.parts.entry(part.clone()).or_default() += count;
            *profile.lines.entry(format!("{place}  {part}")).or_default() += count;
        }
        Ok(profile)
    }

    fn sum(&self) -> u64 {
        self.functions.values().map(|function| function.total).sum()
    }

    /// What each of so many operations took.
    fn print(&self, operations: f64, args: &ProfileArgs) {
        let each = |count: u64| number(count as f64 / operations);
        let least = (self.sum() as f64 * args.least / 100.0) as u64;
        for (name, function) in sorted(&self.functions, |function| function.total, least) {
            println!("{:>10}  {name}", each(function.total));
            let parts = sorted(&function.parts, |count| *count, least);
            for (part, count) in parts.iter().filter(|(part, _)| *part != name) {
                println!("{:>20}  {part}", each(**count));
            }
        }
        if args.lines {
            println!();
            for (line, count) in sorted(&self.lines, |count| *count, least) {
                println!("{:>10}  {line}", each(*count));
            }
        }
    }
}

/// The innermost function at an address, and its file and line.
fn source(loader: &Loader, address: u64) -> Option<(String, String)> {
    let frame = loader.find_frames(address).ok()?.next().ok()??;
    let name = frame.function?.demangle().ok()?.into_owned();
    let place = frame.location?;
    let path = place.file?;
    // From the crate's folder on.
    let crate_end = path.rfind("/src/").unwrap_or(0);
    let file = &path[path[..crate_end].rfind('/').map_or(0, |slash| slash + 1)..];
    Some((name, format!("{file}:{}", place.line?)))
}

/// The entries of at least `least`, largest first.
fn sorted<V>(
    table: &HashMap<String, V>,
    count: impl Fn(&V) -> u64,
    least: u64,
) -> Vec<(&String, &V)> {
    let mut list: Vec<_> = table.iter().filter(|(_, value)| count(value) >= least.max(1)).collect();
    list.sort_by_key(|(name, value)| (std::cmp::Reverse(count(value)), (*name).clone()));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_row_says_how_often_it_was_done() {
        assert_eq!(
            watched("watched|fork: two threads|128\r\n"),
            Some(("fork: two threads", 128.0))
        );
        assert_eq!(
            ["value|fork: two threads|/s|128", "watched|fork", "end"].map(watched),
            [None; 3]
        );
    }
}
