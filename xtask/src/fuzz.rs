//! `./uvm fuzz`: random system calls by two users, guided by what parts of the kernel they reach.
//!
//! The kernel is built with counters at every edge of its control flow, and shows them as
//! `/dev/coverage`; the programs are made, run and kept inside the machine
//! (`xtask/guest/fuzzer.c`). This side boots the machine again and again, keeps what reached
//! something new in `target/fuzz/corpus`, and writes what ran last before a panic into a file that
//! `--replay` runs. What needs no machine is searched by `desk`.
//!
//! `xtask/corpus` has programs that reach different edges, a file each: a search begins with them,
//! and `./uvm test` runs them. `--merge` adds those of `target/fuzz/corpus` that reach an edge
//! which none in the tree does.

use crate::pack::{self, Root};
use crate::qemu::{Ending, Kernel, Machine};
use crate::run;
use crate::session::{self, Finished, Input};
use crate::symbols::Reached;
use crate::test::{failed, Verdict};
use crate::{build, desk, guest, symbols, ui, EXIT_USAGE};
use anyhow::{bail, Context, Result};
use clap::Args;
use std::collections::BTreeSet;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args, Default)]
pub struct FuzzArgs {
    /// How long, in minutes.
    #[arg(long, default_value_t = 10, value_name = "N")]
    minutes: u64,
    /// How many CPUs the machine has.
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// The guest's memory.
    #[arg(long, default_value = "128M", value_name = "SIZE")]
    mem: String,
    /// Where the random numbers begin; the time of day if it isn't said.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run the programs of a file, which an earlier search has written.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Add what earlier searches have kept to the corpus in the tree, as far as it reaches
    /// something new, and say what parts of the kernel the corpus reaches.
    #[arg(long, conflicts_with_all = ["replay", "desk"])]
    merge: bool,
    /// Search on the desk, without a machine: library, raw, ext4, elf, cpio, swap, address, tty,
    /// settings or control (crates/uvm-fuzz); --replay FILE runs an input of such a search.
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["cpus", "mem"])]
    desk: Option<String>,
}

/// Minutes that one machine lives: what a search leaves behind in memory is compared at its end.
const LIFE_MINUTES: u64 = 10;
/// Workers beside each other in a machine.
const WORKERS: &str = "2";
/// Programs that are kept of those that ran last.
const LAST: usize = 40;
/// How often a replay runs each program: some need a lucky moment.
const ROUNDS: &str = "20";

pub fn fuzz(args: &FuzzArgs) -> Result<u8> {
    // What the command line names is looked at before anything is built.
    if let Some(file) = &args.replay {
        fs::File::open(file).with_context(|| format!("can't read {}", file.display()))?;
    }
    if let Some(target) = &args.desk {
        let targets = desk::targets()?;
        if !targets.contains(target) {
            ui::say(&format!("no target {target}: there are {}", targets.join(", ")));
            return Ok(EXIT_USAGE);
        }
        return match &args.replay {
            Some(file) => desk::replay(target, file),
            None => desk::search(target, args.minutes, args.seed),
        };
    }
    let kernel = build::kernel_with_coverage()?;
    if let Some(file) = &args.replay {
        return replay(args, &kernel, file);
    }
    if args.merge {
        return merge(args, &kernel);
    }
    let findings = search(args, &kernel)?;
    println!("{} minutes, {} findings", args.minutes, findings.len());
    Ok(u8::from(!findings.is_empty()))
}

/// For `./uvm test --long`: some minutes on one CPU, and on two.
pub fn check() -> Result<Verdict> {
    let kernel = build::kernel_with_coverage()?;
    let mut findings = Vec::new();
    for cpus in [1, 2] {
        let args = FuzzArgs { cpus, minutes: 10, mem: "128M".to_owned(), ..FuzzArgs::default() };
        findings.extend(search(&args, &kernel)?);
    }
    Ok(if findings.is_empty() { Verdict::Passed { tests: 2 } } else { failed(findings.join("\n")) })
}

/// Searches for so long; returns what was found, each with how to run it again.
fn search(args: &FuzzArgs, kernel: &Path) -> Result<Vec<String>> {
    let folder = build::scratch("fuzz")?;
    let corpus = folder.join("corpus");
    let start = folder.join("start");
    let started = Instant::now();
    let seed = args
        .seed
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs()));
    let mut findings = Vec::new();
    for round in 0.. {
        let left = (args.minutes * 60).saturating_sub(started.elapsed().as_secs());
        if left == 0 {
            break;
        }
        let seconds = left.min(LIFE_MINUTES * 60);
        let seed = seed + round;
        let so_far = findings.len();
        ui::say(&format!(
            "seed {seed}, {seconds} s, {} s left, {so_far} findings so far",
            left - seconds
        ));
        let words = ["/bin/fuzzer", "explore", &seconds.to_string(), &seed.to_string(), WORKERS];
        fs::write(&start, lines(&all_programs(&corpus)?))?;
        let finished = boot(args, kernel, &words, &[(&start, "/fuzz/corpus")], seconds + 120)?;
        keep(&corpus, &finished.output)?;
        if let Some(found) = report(&folder, kernel, seed, &finished)? {
            println!("{found}");
            findings.push(found);
        }
    }
    Ok(findings)
}

/// Programs that reach different edges, a file each.
pub fn tree_corpus() -> PathBuf {
    build::root().join("xtask/corpus")
}

/// The programs of the tree, then those of earlier searches; short ones first.
fn all_programs(found: &Path) -> Result<Vec<String>> {
    let mut ours = Vec::new();
    for entry in fs::read_dir(tree_corpus()).into_iter().flatten().flatten() {
        let text =
            fs::read_to_string(entry.path()).with_context(|| format!("can't read {entry:?}"))?;
        ours.extend(text.lines().map(str::to_owned));
    }
    let known: BTreeSet<String> = ours.iter().cloned().collect();
    let text = fs::read_to_string(found).unwrap_or_default();
    let mut theirs: Vec<String> =
        text.lines().filter(|line| !known.contains(*line)).map(str::to_owned).collect();
    for programs in [&mut ours, &mut theirs] {
        programs.sort_by_key(|line| (line.len(), line.clone()));
    }
    ours.extend(theirs);
    Ok(ours)
}

fn lines(programs: &[String]) -> String {
    programs.iter().map(|line| format!("{line}\n")).collect()
}

/// Seconds that a program of a merge takes at most: it runs twice.
const SECONDS_EACH: u64 = 2;

fn merge(args: &FuzzArgs, kernel: &Path) -> Result<u8> {
    let folder = build::scratch("fuzz")?;
    let start = folder.join("start");
    let programs = all_programs(&folder.join("corpus"))?;
    fs::write(&start, lines(&programs))?;
    let limit = 60 + SECONDS_EACH * programs.len() as u64;
    let words = ["/bin/fuzzer", "measure", "/fuzz/start"];
    let finished = boot(args, kernel, &words, &[(&start, "/fuzz/start")], limit)?;
    if !matches!(finished.ending, Ending::Exited(0)) {
        run::explain(&finished.ending, &finished.report, kernel);
        bail!("the machine ended with {:?} before all programs had run", finished.ending);
    }
    let tree = tree_corpus();
    fs::create_dir_all(&tree)?;
    let before = fs::read_dir(&tree)?.count();
    for program in finished.output.lines().filter_map(|line| line.strip_prefix('k')) {
        let mut hash = std::hash::DefaultHasher::new();
        program.hash(&mut hash);
        let file = tree.join(format!("{:016x}", hash.finish()));
        fs::write(&file, format!("{program}\n"))?;
    }
    let bits: String = finished.output.lines().filter_map(|line| line.strip_prefix('e')).collect();
    let reached = Reached::new(kernel, &bits)?;
    fs::write(folder.join("reached.txt"), reached.lines())?;
    print!("{}", reached.files());
    println!("{}", finished.output.lines().last().unwrap_or_default());
    println!("corpus {before} -> {} files in {}", fs::read_dir(&tree)?.count(), tree.display());
    println!("each line of the kernel: {}", folder.join("reached.txt").display());
    Ok(0)
}

fn replay(args: &FuzzArgs, kernel: &Path, file: &Path) -> Result<u8> {
    let words = ["/bin/fuzzer", "replay", "/fuzz/replay", ROUNDS, "1"];
    let finished = boot(args, kernel, &words, &[(file, "/fuzz/replay")], 3600)?;
    print!("{}", finished.output);
    run::explain(&finished.ending, &finished.report, kernel);
    Ok(finished.ending.code())
}

/// Boots a machine with these files in it, those that are there, and runs a program to its end.
fn boot(
    args: &FuzzArgs,
    kernel: &Path,
    words: &[&str],
    files: &[(&Path, &str)],
    seconds: u64,
) -> Result<Finished> {
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let fuzzer = guest::compile("fuzzer", guest::Libc::Musl)?;
    let mut add = vec![format!("{}:/bin/fuzzer", fuzzer.display())];
    add.extend(
        files
            .iter()
            .filter(|(file, _)| file.exists())
            .map(|(file, to)| format!("{}:{to}", file.display())),
    );
    let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let root: Root = pack::pack(None, &add, &command)?;
    let mut machine = Machine {
        memory: args.mem.clone(),
        cpus: args.cpus,
        kernel: kernel.to_owned(),
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let mut kernel_words = Input::Nothing.words();
    kernel_words.push("audit".to_owned());
    run::prepare(&mut machine, Kernel::Uvm, root, &kernel_words)?;
    session::capture(&machine, Input::Nothing, Duration::from_secs(seconds))
}

/// Adds the programs that reached something new to the corpus, a line each.
fn keep(corpus: &Path, output: &str) -> Result<()> {
    let old = fs::read_to_string(corpus).unwrap_or_default();
    let mut lines: BTreeSet<&str> = old.lines().collect();
    let before = lines.len();
    lines.extend(output.lines().filter_map(|line| line.strip_prefix('k')));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(corpus, text).with_context(|| format!("can't write {}", corpus.display()))?;
    let status = output.lines().rev().find(|line| line.starts_with("s ")).unwrap_or("no status");
    ui::say(&format!("{status}; corpus {before} -> {}", lines.len()));
    Ok(())
}

/// Of a machine that ended badly: how, and where what ran last is written down.
fn report(folder: &Path, kernel: &Path, seed: u64, finished: &Finished) -> Result<Option<String>> {
    if let Some(memory) = finished.output.lines().rev().find(|line| line.starts_with("memory ")) {
        ui::say(memory);
    }
    if matches!(finished.ending, Ending::Exited(0)) {
        return Ok(None);
    }
    let is_program =
        |line: &&str| line.get(1..2) == Some("p") && line.starts_with(|c: char| c.is_ascii_digit());
    let mut last: Vec<&str> = finished.output.lines().rev().filter(is_program).take(LAST).collect();
    last.reverse();
    let path = folder.join(format!("found-{seed}.txt"));
    let text: String = last.iter().map(|line| format!("{}\n", &line[1..])).collect();
    fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    let mut found = vec![format!("seed {seed}: the machine ended with {:?}", finished.ending)];
    let is_failure = |line: &&str| line.starts_with("FAILED") || line.starts_with("stuck: ");
    let failure = finished.output.lines().filter(is_failure).map(str::to_owned);
    let story = symbols::story(kernel, &finished.report).into_iter();
    found.extend(story.chain(failure).map(|line| format!("    {line}")));
    found.push(format!("    the last programs: ./uvm fuzz --cpus N --replay {}", path.display()));
    Ok(Some(found.join("\n")))
}
