//! The checks that need no machine: format, lints, the workspace's tests and examples, sanitizers.

use super::{failed, Verdict};
use crate::build;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct Check {
    pub name: &'static str,
    pub run: fn() -> Result<Verdict>,
}

/// Those that boot machines, and so are run beside the kernel's cases and each other.
pub const MACHINES: &[Check] = &[
    Check { name: "ports/riscv64", run: super::ports::riscv64 },
    Check { name: "ports/riscv64 with laws that it breaks", run: super::ports::planted },
    Check { name: "host/the benchmarks' page in a browser", run: super::page::check },
    Check { name: "host/a shell on a terminal", run: super::terminal::check },
    Check { name: "host/machines that go off while they write", run: super::crashes::a_few },
    Check { name: "host/disks with damaged file systems", run: super::damaged::check },
    Check { name: "kernel/run: a disk as the root", run: super::door::disk_as_root },
    Check {
        name: "kernel/run: a disk as the root keeps what is written",
        run: super::door::disk_as_root_keeps,
    },
    Check { name: "kernel/run: what is missing is said", run: super::door::what_is_missing },
    Check { name: "kernel/run: output that is closed", run: super::door::output_that_is_closed },
    Check { name: "kernel/run: lsblk finds the disks", run: super::door::disks_in_sys },
    Check { name: "kernel/run: a folder of the host inside", run: super::door::folder_of_the_host },
    Check {
        name: "kernel/run: a folder that the host changes",
        run: super::door::folder_that_the_host_changes,
    },
    Check { name: "kernel/run: what programs need comes along", run: super::door::companions },
    Check { name: "host/fifty boots of four CPUs", run: super::boots::fifty },
];

/// Those that build and run tests: one after another, since cargo would have them wait for each
/// other, and uses all CPUs.
pub const CHECKS: &[Check] = &[
    Check { name: "host/format", run: format },
    Check { name: "host/format of the kernel", run: kernel_format },
    Check { name: "host/a hundred columns", run: super::columns::check },
    Check { name: "host/layers", run: super::layers::check },
    Check { name: "host/clippy", run: clippy },
    Check { name: "host/clippy of the kernel", run: kernel_clippy },
    Check { name: "host/recursion has its bounds", run: recursion },
    Check { name: "host/crates that can be published", run: super::crates::packaged },
    Check { name: "host/the oldest compilers", run: super::crates::oldest_compilers },
    Check { name: "host/documentation of the crates", run: super::crates::documentation },
    Check { name: "host/public interface of the crates", run: super::crates::interface },
    Check { name: "host/tests", run: tests },
    Check { name: "host/tests of the library", run: library },
    Check { name: "host/tests of the library with small leaves", run: small_leaves },
    Check { name: "host/tests of the library with pages of 16 KiB and 256 CPUs", run: large },
    Check { name: "host/schedules", run: schedules },
    Check { name: "host/random concurrent programs", run: concurrent_programs },
    Check { name: "host/all schedules of small pieces", run: small_pieces },
    Check { name: "host/cache lines that move", run: cache_lines },
    Check { name: "host/examples", run: examples },
    Check { name: "host/address sanitizer", run: address_sanitizer },
    Check { name: "host/miri", run: miri },
];

/// What `./uvm test --long` runs besides.
pub const LONG: &[Check] = &[
    Check { name: "host/long model runs", run: long_model_runs },
    Check { name: "host/a million operations on swap", run: million_operations },
    Check { name: "host/many schedules of a few frames", run: many_schedules },
    Check { name: "host/ten million concurrent programs", run: many_concurrent_programs },
    Check { name: "host/planted bugs", run: planted_bugs },
    Check { name: "host/a million fork patterns", run: million_forks },
    Check { name: "host/mutants", run: super::mutants::check },
    Check { name: "host/random system calls of two users", run: crate::fuzz::check },
    Check {
        name: "host/a hundred machines that go off while they write",
        run: super::crashes::a_hundred,
    },
    Check { name: "host/ten thousand boots of four CPUs", run: super::boots::ten_thousand },
];

/// Without backtraces: of a failure's output only the end is kept, and its message and schedule say
/// more.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(build::root()).env("RUST_BACKTRACE", "0");
    command
}

pub fn output(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("can't run {command:?}"))
}

pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The end of a long output; a failure's reason usually stands there.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// One test that passes when the command succeeds.
fn succeeds(command: &mut Command) -> Result<Verdict> {
    let output = output(command)?;
    Ok(if output.status.success() {
        Verdict::Passed { tests: 1 }
    } else {
        failed(tail(&text(&output), 60))
    })
}

fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

fn format() -> Result<Verdict> {
    succeeds(&mut cargo(&["fmt", "--all", "--check"]))
}

fn kernel_format() -> Result<Verdict> {
    succeeds(cargo(&["fmt", "--check"]).current_dir(build::root().join("kernel")))
}

fn clippy() -> Result<Verdict> {
    succeeds(&mut cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// With what is built for the fuzzer alone, which no other check builds.
fn kernel_clippy() -> Result<Verdict> {
    const ARGUMENTS: [&str; 5] = ["--quiet", "--all-features", "--", "-D", "warnings"];
    succeeds(build::cargo("clippy", &build::profile())?.args(ARGUMENTS))
}

fn tests() -> Result<Verdict> {
    const ARGUMENTS: [&str; 5] = ["test", "--workspace", "--exclude", "uvm-vm", "--no-fail-fast"];
    Ok(count_tests(&output(cargo(&ARGUMENTS).args(OPTIMIZED))?))
}

/// For what runs the library for minutes; its own tests take less time than to optimize it does.
const OPTIMIZED: [&str; 2] = ["--config", "profile.dev.package.uvm-vm.opt-level=3"];

/// A test that there is only where leaves have their real size.
const REAL_LEAVES: &str = "first_touches_upwards_are_answered_sixteen_at_a_time ... ok";

/// The library's own tests, with its leaves as a kernel has them.
fn library() -> Result<Verdict> {
    let output = output(&mut cargo(&["test", "-p", "uvm-vm", "--no-fail-fast"]))?;
    if output.status.success() && !text(&output).contains(REAL_LEAVES) {
        return Ok(failed(format!("the library's leaves are small here: no `{REAL_LEAVES}`")));
    }
    Ok(count_tests(&output))
}

/// Like [`library`], with leaves and nodes of four, as the models have them: few pages cross many.
fn small_leaves() -> Result<Verdict> {
    let mut command = cargo(&["test", "-p", "uvm-vm", "--features", "__small-leaves", "--lib"]);
    command.args(["--tests", "--no-fail-fast", "--", "--skip", HOLDS]);
    Ok(count_tests(&output(&mut command)?))
}

/// The library's own tests, and the laws, with pages of 16 KiB and with more CPUs than a word has
/// bits, as a port may have them. The target is named so that programs that run while others are
/// built have pages of their own size.
fn large() -> Result<Verdict> {
    let mut command = cargo(&["test", "--lib", "--tests"]);
    command.args(
        ["uvm-page", "uvm-vm", "uvm-zram", "uvm-conformance"].iter().flat_map(|it| ["-p", it]),
    );
    let flags = "--cfg uvm_page_shift=\"14\" --cfg uvm_max_cpus=\"256\"";
    command.args(["--no-fail-fast", "--target", HOST]).env("RUSTFLAGS", flags);
    command.args(["--", "--skip", HOLDS]);
    Ok(count_tests(&output(&mut command)?))
}

const HOST: &str = "x86_64-unknown-linux-gnu";

/// Tests of how long locks are held, by what is real alone.
const HOLDS: &str = "holds::";

/// What may call itself, or own its like, is on a list with its bound.
fn recursion() -> Result<Verdict> {
    let wrong = crate::recursion::check(build::root(), &build::kernel()?)?;
    Ok(if wrong.is_empty() { Verdict::Passed { tests: 1 } } else { failed(wrong.join("\n")) })
}

/// The VM system's threads under a schedule checker.
fn schedules() -> Result<Verdict> {
    let arguments = ["test", "-p", "uvm-check", "--features", "shuttle", "--test", "schedules"];
    Ok(count_tests(&output(&mut cargo(&arguments))?))
}

/// Programs of three threads, each explained by some order of its operations.
fn concurrent_programs() -> Result<Verdict> {
    Ok(count_tests(&output(&mut cargo(&PROGRAMS))?))
}

const PROGRAMS: [&str; 7] =
    ["test", "-p", "uvm-check", "--features", "shuttle", "--test", "programs"];
/// Programs of each run of `--long`.
const LONG_PROGRAMS: &str = "10000000";

fn many_concurrent_programs() -> Result<Verdict> {
    let mut command = cargo(&PROGRAMS);
    Ok(count_tests(&output(command.arg("every_program").env("UVM_PROGRAMS", LONG_PROGRAMS))?))
}

/// Random operations in each run of `--long`.
const LONG_OPERATIONS: &str = "2000000";

fn long_model_runs() -> Result<Verdict> {
    let mut command = cargo(&["test", "-p", "uvm-check", "--test", "model"]);
    command.args(OPTIMIZED).args(["--", "random::", "paging::"]);
    Ok(count_tests(&output(command.env("UVM_OPS", LONG_OPERATIONS))?))
}

/// Worlds that live long, with most of their pages on swap.
fn million_operations() -> Result<Verdict> {
    let arguments =
        ["test", "--release", "-p", "uvm-check", "--test", "model", "a_million", "--", "--ignored"];
    Ok(count_tests(&output(&mut cargo(&arguments))?))
}

fn million_forks() -> Result<Verdict> {
    let mut command = cargo(&["test", "-p", "uvm-vm", "--test", "maps", "--", "for_ever"]);
    Ok(count_tests(&output(command.env("UVM_LOOPS", "1000000"))?))
}

/// Programs on little memory that must not be refused any.
fn many_schedules() -> Result<Verdict> {
    let schedules = ["test", "-p", "uvm-check", "--features", "shuttle", "--test", "schedules"];
    Ok(count_tests(&output(cargo(&schedules).args(["in_many_schedules", "--", "--ignored"]))?))
}

fn planted_bugs() -> Result<Verdict> {
    Ok(count_tests(&output(&mut cargo(&[
        "test",
        "-p",
        "uvm-check",
        "--test",
        "plants",
        "--",
        "--ignored",
    ]))?))
}

/// Locks, tickets, page queues and counted leaves under a checker that tries every schedule of
/// them.
fn small_pieces() -> Result<Verdict> {
    let arguments = ["test", "-p", "uvm-check", "--features", "loom", "--test", "loom"];
    Ok(count_tests(&output(&mut cargo(&arguments))?))
}

/// What 64 CPUs that fault share: nothing, where all is there.
fn cache_lines() -> Result<Verdict> {
    let arguments =
        ["test", "-p", "uvm-vm", "--features", "__lines,uvm-soft/__lines", "--test", "lines"];
    Ok(count_tests(&output(&mut cargo(&arguments))?))
}

/// Adds up cargo's `test result` lines.
fn count_tests(output: &Output) -> Verdict {
    let all = text(output);
    let count = |word: &str| -> u64 {
        let results = all.lines().filter(|line| line.starts_with("test result:"));
        results
            .filter_map(|line| {
                let (before, _) = line.split_once(word)?;
                before.trim_end().rsplit(' ').next()?.parse::<u64>().ok()
            })
            .sum()
    };
    let (passed, failed) = (count(" passed"), count(" failed"));
    if output.status.success() && failed == 0 {
        return Verdict::Passed { tests: passed };
    }
    // What failed comes first: of a long output a reader may only see the start.
    let named = all.lines().filter(|line| line.starts_with("test ") && line.ends_with("FAILED"));
    let details = named.chain(tail_of_failures(&all)).collect::<Vec<_>>().join("\n");
    Verdict::Failed { passed, failed: failed.max(1), details }
}

/// The last lines of cargo's output that say more than that something was built, was run or passed.
fn tail_of_failures(all: &str) -> impl Iterator<Item = &str> {
    const USUAL: [&str; 6] =
        ["Compiling ", "Finished ", "Running ", "Doc-tests ", "running ", "test result: ok"];
    let says_more = |line: &&str| {
        let line = line.trim_start();
        !line.is_empty()
            && !line.ends_with("... ok")
            && !USUAL.iter().any(|usual| line.starts_with(usual))
    };
    let lines: Vec<&str> = all.lines().filter(says_more).collect();
    let first = lines.len().saturating_sub(60);
    lines.into_iter().skip(first)
}

/// Runs the examples of `crates/uvm`: they must end well and say something.
fn examples() -> Result<Verdict> {
    let folder = build::root().join("crates/uvm/examples");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path())
                // A folder is what several share.
                .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
                .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    if names.is_empty() {
        return Ok(Verdict::Skipped("crates/uvm has no examples".to_owned()));
    }
    let mut bad = String::new();
    for name in &names {
        let result = output(&mut cargo(&["run", "--quiet", "-p", "uvm-vm", "--example", name]))?;
        if !result.status.success() || result.stdout.is_empty() {
            bad.push_str(&format!("example {name}:\n{}\n", tail(&text(&result), 20)));
        }
    }
    Ok(if bad.is_empty() { Verdict::Passed { tests: names.len() as u64 } } else { failed(bad) })
}

/// Packages of the workspace that have a file with unsafe code.
fn crates_with_unsafe() -> Vec<String> {
    let crates = build::root().join("crates");
    let Ok(entries) = std::fs::read_dir(crates) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> = folders
        .filter(|folder| rust_files(&folder.join("src")).iter().any(|file| has_unsafe(file)))
        .filter_map(|folder| package_of(&folder))
        .collect();
    names.sort();
    names
}

/// The name in a folder's manifest, which is not always the folder's.
fn package_of(folder: &Path) -> Option<String> {
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(name.trim_matches('"').to_owned())
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

fn has_unsafe(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::trim_start).any(|line| {
        !line.starts_with("//")
            && ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|word| line.contains(word))
    })
}

fn has_sanitizer_runtime() -> bool {
    let Ok(found) = Command::new("rustc").args(["--print", "target-libdir"]).output() else {
        return false;
    };
    let folder = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with("_rt.asan.a"))
}

fn address_sanitizer() -> Result<Verdict> {
    let crates = crates_with_unsafe();
    if crates.is_empty() {
        return Ok(Verdict::Skipped("no crate of the workspace has unsafe code".to_owned()));
    }
    if !has_sanitizer_runtime() {
        return Ok(Verdict::Skipped(
            "the toolchain comes without the sanitizer's runtime; rustup's has it".to_owned(),
        ));
    }
    let mut command = cargo(&["test", "--lib", "--tests", "--no-fail-fast", "--target", HOST]);
    command.env("RUSTC_BOOTSTRAP", "1");
    command
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .arg("--target-dir")
        .arg(build::scratch("asan")?);
    for name in &crates {
        command.args(["-p", name]);
    }
    // Those leave their machines behind.
    command.args(["--", "--skip", HOLDS]);
    Ok(count_tests(&output(&mut command)?))
}

fn miri() -> Result<Verdict> {
    if !works("cargo", &["+nightly", "miri", "--version"]) {
        return Ok(Verdict::Skipped(
            "not installed (`rustup +nightly component add miri`)".to_owned(),
        ));
    }
    let crates = crates_with_unsafe();
    if crates.is_empty() {
        return Ok(Verdict::Skipped("no crate of the workspace has unsafe code".to_owned()));
    }
    let mut command = cargo(&["+nightly", "miri", "test", "--lib", "--target-dir"]);
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    command.arg(build::scratch("miri")?);
    for name in &crates {
        command.args(["-p", name]);
    }
    Ok(count_tests(&output(&mut command)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn results_of_all_binaries_are_added_up() {
        let stdout = "test result: ok. 3 passed; 0 failed; 0 ignored\ntest result: ok. 4 passed; 0 failed; 0 ignored\n";
        let output = Output {
            status: ExitStatusExt::from_raw(0),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        assert!(matches!(count_tests(&output), Verdict::Passed { tests: 7 }));
    }
}
