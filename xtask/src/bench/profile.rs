//! `./uvm profile ROW`: where the kernel's instructions go in one row of `bench micro` or `bench move`.
//!
//! QEMU counts every kernel instruction that runs while the row is measured (xtask/plugin/profile.c), and the kernel's
//! debug information says whose it is: of which function as compiled, and which inlined function within that. Counts
//! repeat exactly, so a difference between two profiles is the difference between two kernels.

use super::counted;
use super::table::number;
use crate::qemu::{Clock, Kernel};
use crate::{build, run, ui};
use addr2line::Loader;
use anyhow::{bail, Context, Result};
use clap::Args;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct ProfileArgs {
    /// How often the row is measured.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Leave out what takes less than this part of the whole.
    #[arg(long, default_value_t = 0.5, value_name = "PERCENT")]
    least: f64,
    /// List source lines too.
    #[arg(long)]
    lines: bool,
    /// The benchmark whose row it is.
    #[arg(long, default_value = "micro", value_name = "BENCH", value_parser = ["micro", "move"])]
    of: String,
    /// Part of the row's name, enough to mean one row.
    row: String,
}

/// Instructions by some name.
type Tally = HashMap<String, u64>;

/// One function as compiled.
#[derive(Default)]
struct Function {
    total: u64,
    /// By the innermost function whose source the instruction is.
    parts: Tally,
}

pub fn profile(args: &ProfileArgs) -> Result<u8> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let counts = folder.path().join("counts");
    let plugin = format!("{},out={}", compile()?.display(), counts.display());
    let words = [args.runs.to_string(), args.row.clone()];
    ui::say("counting");
    let (machine, finished) =
        counted::boot(Kernel::Uvm, Clock::Instructions, 1, &args.of, &words, Some(plugin))?;
    let measured = counted::parse("uvm", &finished.output);
    let names: Vec<&str> = measured.rows.iter().map(|row| row.name.as_str()).collect();
    let [row] = &measured.rows[..] else {
        run::explain(&finished.ending, &finished.report, &machine.kernel);
        let (row, bench, count) = (&args.row, &args.of, names.len());
        bail!("\"{row}\" means {count} rows of bench {bench}, and should mean one: {names:?}");
    };
    let operations = row.operations.context("the benchmark did not say how much it did")? as f64;
    let text = std::fs::read_to_string(&counts).context("the plugin has left no counts")?;
    let (functions, lines) = attribute(&machine.kernel, &text)?;

    let kernel: u64 = functions.values().map(|function| function.total).sum();
    let each = |count: u64| number(count as f64 / operations);
    let least = (kernel as f64 * args.least / 100.0) as u64;
    println!("{}: {} instructions, {} of them the kernel's\n", row.name, number(row.value), each(kernel));
    for (name, function) in sorted(&functions, |function| function.total, least) {
        println!("{:>10}  {name}", each(function.total));
        let parts = sorted(&function.parts, |count| *count, least);
        for (part, count) in parts.iter().filter(|(part, _)| *part != name) {
            println!("{:>20}  {part}", each(**count));
        }
    }
    if args.lines {
        println!();
        for (line, count) in sorted(&lines, |count| *count, least) {
            println!("{:>10}  {line}", each(*count));
        }
    }
    Ok(0)
}

/// Compiles the plugin unless that is done already.
fn compile() -> Result<PathBuf> {
    let source = build::root().join("xtask/plugin/profile.c");
    let target = build::scratch("plugin")?.join("profile.so");
    let output = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-o"])
        .args([&target, &source])
        .output()
        .context("can't run gcc")?;
    if !output.status.success() {
        bail!("the plugin does not compile:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(target)
}

/// Gives each counted address to its function and its source line.
fn attribute(kernel: &Path, counts: &str) -> Result<(HashMap<String, Function>, Tally)> {
    let loader =
        Loader::new(kernel).map_err(|error| anyhow::anyhow!("can't read {}: {error}", kernel.display()))?;
    let (mut functions, mut lines) = (HashMap::<String, Function>::new(), Tally::new());
    for line in counts.lines() {
        let (address, count) = line.split_once(' ').context("the plugin's counts are damaged")?;
        let (address, count) = (u64::from_str_radix(address, 16)?, count.parse::<u64>()?);
        let symbol = loader.find_symbol(address).unwrap_or("?");
        let name = format!("{:#}", rustc_demangle::demangle(symbol));
        let (part, place) = source(&loader, address).unwrap_or_else(|| (name.clone(), "?".to_owned()));
        let function = functions.entry(name).or_default();
        function.total += count;
        *function.parts.entry(part.clone()).or_default() += count;
        *lines.entry(format!("{place}  {part}")).or_default() += count;
    }
    Ok((functions, lines))
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
fn sorted<V>(table: &HashMap<String, V>, count: impl Fn(&V) -> u64, least: u64) -> Vec<(&String, &V)> {
    let mut list: Vec<_> = table.iter().filter(|(_, value)| count(value) >= least.max(1)).collect();
    list.sort_by_key(|(name, value)| (std::cmp::Reverse(count(value)), (*name).clone()));
    list
}
