//! `./uvm fuzz --desk`: libFuzzer on the targets of `crates/uvm-fuzz`, with their corpus.
//!
//! The search works on a copy in `target/desk`, and what reaches something new goes to the corpus
//! when it ends, by libFuzzer's own merge: an input that reaches no more edges than those that are
//! there is left out. How often an edge is taken doesn't count there, so that the corpus stays at
//! some hundred files.

use crate::{build, ui};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HOST: &str = "x86_64-unknown-linux-gnu";
/// Counters at every edge, and the numbers that comparisons are made with, as libFuzzer wants them.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Seconds that one input may take; MiB that the fuzzer may have.
const LIMITS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=2048"];

fn crate_folder() -> PathBuf {
    build::root().join("crates/uvm-fuzz")
}

/// The corpus of a target.
fn corpus(target: &str) -> PathBuf {
    crate_folder().join("corpus").join(target)
}

/// What there is to search: each target has a corpus.
///
/// # Errors
/// When the folder can't be read.
pub fn targets() -> Result<Vec<String>> {
    let all = crate_folder().join("corpus");
    let entries = fs::read_dir(&all).with_context(|| format!("can't read {}", all.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Builds the fuzzer; returns where it is.
fn fuzzer() -> Result<PathBuf> {
    let folder = build::scratch("search")?;
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--release", "--locked", "--target", HOST, "--target-dir"]);
    command.arg(&folder).current_dir(crate_folder().join("search"));
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", FLAGS);
    let output =
        ui::with_progress("building the fuzzer", || command.output()).context("can't run cargo")?;
    if !output.status.success() {
        bail!("the fuzzer does not build:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(folder.join(HOST).join("release/search"))
}

/// The longest input of a target, as `TARGETS` of `crates/uvm-fuzz` has it.
fn longest(target: &str) -> &'static str {
    match target {
        "library" => "1000",
        "raw" => "900",
        "ext4" | "address" => "200",
        "cpio" => "1000",
        "swap" => "300",
        "tty" => "6000",
        "settings" => "600",
        "control" => "5000",
        _ => "2000",
    }
}

/// Searches for so long. 0: nothing was found; 1: something was, and where it is is said.
pub fn search(target: &str, minutes: u64, seed: Option<u64>) -> Result<u8> {
    let corpus = corpus(target);
    let fuzzer = fuzzer()?;
    let work = build::scratch(&format!("desk/{target}"))?;
    let found = build::scratch("fuzz")?;
    let run = |arguments: &[String], folders: &[&Path], output: Stdio| {
        let mut command = Command::new(&fuzzer);
        command.env("UVM_FUZZ_TARGET", target).env("RUST_BACKTRACE", "0");
        command.args(LIMITS).arg(format!("-max_len={}", longest(target)));
        command.arg(format!("-artifact_prefix={}/{target}-", found.display()));
        command.args(arguments).args(folders).stderr(output);
        command.status().context("can't run the fuzzer")
    };
    let mut arguments = vec![
        format!("-max_total_time={}", (minutes * 60).max(1)),
        "-print_final_stats=1".to_owned(),
    ];
    arguments.extend(seed.map(|seed| format!("-seed={seed}")));
    let before = inputs(&found, target);
    let status = run(&arguments, &[&work, &corpus], Stdio::inherit())?;
    let files = count(&corpus);
    let merged = run(
        &["-merge=1".to_owned(), "-use_counters=0".to_owned()],
        &[&corpus, &work],
        Stdio::null(),
    )?;
    ui::say(&format!("corpus {files} -> {} files in {}", count(&corpus), corpus.display()));
    if status.success() {
        if !merged.success() {
            bail!("what was found could not be added to the corpus");
        }
        println!("{target}: {minutes} minutes, nothing found");
        return Ok(0);
    }
    for input in inputs(&found, target).iter().filter(|input| !before.contains(input)) {
        println!("{target}: found {}", input.display());
        println!("    again: ./uvm fuzz --desk {target} --replay {}", input.display());
    }
    Ok(1)
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, |entries| entries.flatten().count())
}

/// Inputs of this target that ended badly.
fn inputs(folder: &Path, target: &str) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.strip_prefix(target).is_some_and(|rest| rest.starts_with('-'))
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_ours).collect();
    paths.sort();
    paths
}

/// Runs one input, with no fuzzer about it. 0: it is well; 1: it isn't.
pub fn replay(target: &str, file: &Path) -> Result<u8> {
    let file = fs::canonicalize(file).with_context(|| format!("can't read {}", file.display()))?;
    let mut command = Command::new("cargo");
    command
        .args(["test", "--quiet", "-p", "uvm-fuzz", "--test", "replay", "--", "--exact", target]);
    command.current_dir(build::root()).env("UVM_INPUT", file);
    let status = command.status().context("can't run cargo")?;
    Ok(u8::from(!status.success()))
}
