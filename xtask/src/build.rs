//! Builds the kernel for `x86_64-unknown-none`, with whichever toolchain of this machine can.
//!
//! In order: a toolchain that has the target installed (rustup's), else Debian's compiler building
//! `core` and `alloc` from its packaged source. The kernel is its own workspace whose flags are in
//! its own `.cargo/config.toml`, which cargo reads only when it runs in that folder: no
//! configuration changes how the rest of the tree is built.

use crate::image::find_program;
use crate::{ui, EXIT_UNAVAILABLE};
use anyhow::{bail, Context, Result};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub const TARGET: &str = "x86_64-unknown-none";

/// The top of the source tree, found at run time, since trees are copied and moved: what `./uvm`
/// hands over in `UVM_ROOT`; without it, the tree that this program lies in.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let handed = std::env::var_os("UVM_ROOT").map(PathBuf::from);
        let around = |path: PathBuf| Some(tree_around(&path)?.to_owned());
        let found = handed.or_else(|| std::env::current_exe().ok().and_then(around));
        found.or_else(|| std::env::current_dir().ok().and_then(around)).unwrap_or_else(|| {
            ui::say(
                "this program lies outside of its source tree: please start it by the tree's ./uvm",
            );
            std::process::exit(i32::from(EXIT_UNAVAILABLE))
        })
    })
}

/// The source tree that a path lies in.
fn tree_around(path: &Path) -> Option<&Path> {
    path.ancestors().find(|folder| folder.join("xtask/Cargo.toml").is_file())
}

/// A folder under `target/` for what xtask makes; created when missing.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let path = root().join("target").join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("can't create {}", path.display()))?;
    Ok(path)
}

/// How to call cargo for the kernel.
enum Toolchain {
    /// The target's libraries are installed beside the compiler.
    Installed,
    /// Debian's compiler; `core` and `alloc` are built from source.
    Debian,
}

fn toolchain() -> Result<Toolchain> {
    let output =
        Command::new("rustc").args(["--print", "sysroot"]).output().context("can't run rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if sysroot.join("lib/rustlib").join(TARGET).exists() {
        return Ok(Toolchain::Installed);
    }
    if Path::new("/usr/lib/rustlib/src/rust/library/core").exists()
        && Path::new("/usr/bin/cargo").exists()
    {
        return Ok(Toolchain::Debian);
    }
    bail!("no Rust toolchain here has {TARGET}: run `rustup target add {TARGET}`, or install rustc-web cargo-web rust-web-src lld")
}

/// A cargo command for the kernel's workspace: `verb` is `build` or `clippy`.
pub fn cargo(verb: &str, profile: &str) -> Result<Command> {
    let mut command;
    match toolchain()? {
        Toolchain::Installed => {
            command = Command::new("cargo");
            command.arg(verb);
            if find_program("ld.lld").is_none() {
                command.env("CARGO_TARGET_X86_64_UNKNOWN_NONE_LINKER", "rust-lld");
            }
        }
        Toolchain::Debian => {
            command = Command::new("/usr/bin/cargo");
            // The features of a bootstrap compiler serve `build-std` only; the sources stay on
            // stable Rust.
            command
                .env("RUSTC", "/usr/bin/rustc")
                .env("RUSTC_BOOTSTRAP", "1")
                .env_remove("RUSTUP_TOOLCHAIN");
            command.args([verb, "-Zbuild-std=core,alloc"]);
        }
    }
    // The flags of a cargo that runs us are not the kernel's. Nor is a target folder of the user's:
    // QEMU loads the kernel from ours, and would load an old one.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_MANIFEST_DIR",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_BUILD_TARGET",
    ] {
        command.env_remove(name);
    }
    command.args(["--profile", profile]).current_dir(root().join("kernel"));
    Ok(command)
}

/// The kernel's build profile: `release`, or what `UVM_KERNEL_PROFILE` names (`quick` rebuilds in
/// seconds, for iterating).
pub fn profile() -> String {
    std::env::var("UVM_KERNEL_PROFILE").unwrap_or_else(|_| "release".into())
}

/// Flags for code that counts how often each edge of its control flow is taken.
const COVERAGE: &str = concat!(
    r#"target.x86_64-unknown-none.rustflags=["-Cpasses=sancov-module","-Cllvm-args=-sanitizer-coverage-level=3","#,
    r#""-Cllvm-args=-sanitizer-coverage-inline-8bit-counters","-Cllvm-args=-sanitizer-coverage-pc-table"]"#
);

/// Builds a kernel that counts which of its parts have run, with what it asserts checked.
pub fn kernel_with_coverage() -> Result<PathBuf> {
    let folder = root().join("target/kernel-coverage");
    let mut command = cargo("build", "quick")?;
    command.args(["--features", "coverage", "--config", COVERAGE, "--target-dir"]).arg(&folder);
    built(command, "building the kernel with counters", folder.join(TARGET).join("quick/kernel"))
}

/// Builds the kernel; returns the ELF file that QEMU loads.
pub fn kernel() -> Result<PathBuf> {
    if !root().join("kernel/Cargo.toml").exists() {
        bail!("there is no kernel/ in this tree");
    }
    let command = cargo("build", &profile())?;
    built(
        command,
        "building the kernel",
        root().join("target/kernel").join(TARGET).join(profile()).join("kernel"),
    )
}

/// How cargo says that it begins with a crate.
const COMPILING: &str = "   Compiling ";
/// The kernel's own crate is the last, and has the library's code in it: so many times as long as
/// all others it takes, about.
const LAST: f64 = 3.5;

/// Runs a build of the kernel and says where its result is.
fn built(mut command: Command, what: &str, result: PathBuf) -> Result<PathBuf> {
    // What cargo has begun with, and when with the last.
    let (crates, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(OnceLock::new()));
    let lock = std::fs::read_to_string(root().join("kernel/Cargo.lock")).unwrap_or_default();
    let all = lock.matches("[[package]]").count();
    let steps = {
        let (crates, last) = (crates.clone(), last.clone());
        move |so_far: Duration, before: Option<Duration>| match (before, last.get()) {
            (Some(_), _) => ui::left(so_far, before),
            (None, Some(others)) => {
                let left = Duration::mul_f64(*others, 1.0 + LAST).saturating_sub(so_far).as_secs();
                format!(" the last and largest of {all} crates, about {} s left", left.max(1))
            }
            (None, None) => {
                format!(" {} of about {all} crates, {} s", crates.load(Relaxed), so_far.as_secs())
            }
        }
    };
    let started = Instant::now();
    let (status, complaints) = ui::with_steps(what, Box::new(steps), || {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let (mut complaints, stderr) = (String::new(), child.stderr.take());
        for line in stderr.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
            let line = line?;
            match line.strip_prefix(COMPILING) {
                Some(name) => {
                    crates.fetch_add(1, Relaxed);
                    if name.starts_with("kernel ") {
                        let _ = last.set(started.elapsed());
                    }
                }
                None => complaints += &(line + "\n"),
            }
        }
        Ok::<_, std::io::Error>((child.wait()?, complaints))
    })
    .context("can't run cargo")?;
    if !status.success() {
        bail!("the kernel does not build:\n{}", complaints.trim_end());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_tree_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("copy");
        std::fs::create_dir_all(tree.join("xtask")).unwrap();
        std::fs::write(tree.join("xtask/Cargo.toml"), "").unwrap();
        assert_eq!(tree_around(&tree.join("target/debug/xtask")), Some(tree.as_path()));
        assert_eq!(tree_around(folder.path()), None);
    }
}
