//! Compiles the C programs that run inside the machine: the tests in `xtask/guest/`, the benchmarks
//! in `bench/`, the examples.

use crate::build;
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The C library that a guest program is linked with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Libc {
    /// Static, with musl.
    Musl,
    /// Dynamic, with this machine's own.
    Host,
}

/// Compiles `xtask/guest/NAME.c`, `bench/NAME.c` or the example of that name for `crates/uvm-user`,
/// unless that is done already.
pub fn compile(name: &str, libc: Libc) -> Result<PathBuf> {
    let guest = build::root().join("xtask/guest");
    let folders = [
        guest.clone(),
        build::root().join("bench"),
        build::root().join("crates/uvm-user/examples"),
    ];
    let source = folders
        .iter()
        .map(|folder| folder.join(format!("{name}.c")))
        .find(|path| path.exists())
        .with_context(|| format!("there is no guest program {name}"))?;
    let (compiler, suffix) =
        if libc == Libc::Musl { ("musl-gcc", "") } else { ("gcc", "-dynamic") };
    let target = build::scratch("guest")?.join(format!("{name}{suffix}"));
    let calls = build::root().join("crates/uvm-user/include");
    let headers = [
        guest.join("check.h"),
        guest.join("callers.h"),
        guest.join("grammar.h"),
        build::root().join("bench/count.h"),
        build::root().join("bench/drain.h"),
        calls.join("uvm.h"),
    ];
    if newer(&target, &source) && headers.iter().all(|header| newer(&target, header)) {
        return Ok(target);
    }
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-pthread"]);
    command.arg("-I").arg(guest).arg("-I").arg(calls);
    if libc == Libc::Musl {
        command.arg("-static");
    }
    finish(command, &source, target)
}

/// Runs a compiler that lacks only its source and its target, which is there whole or not at all.
fn finish(mut command: Command, source: &Path, target: PathBuf) -> Result<PathBuf> {
    // Two cases may need the same program at once.
    static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let partial = target.with_extension(format!("{}-{attempt}", std::process::id()));
    let output = command.arg("-o").arg(&partial).arg(source).output();
    let compiler = command.get_program().to_string_lossy().into_owned();
    let output =
        output.with_context(|| format!("can't run {compiler} (package musl-tools or gcc)"))?;
    if !output.status.success() {
        bail!(
            "{} does not compile:\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    std::fs::rename(&partial, &target)?;
    Ok(target)
}

/// Compiles a program of `bench/` that runs without a kernel: QEMU loads it as one, on a CPU of 32
/// bits.
pub fn compile_bare(name: &str) -> Result<PathBuf> {
    let source = build::root().join("bench").join(format!("{name}.c"));
    let target = build::scratch("guest")?.join(format!("{name}-bare"));
    if newer(&target, &source) {
        return Ok(target);
    }
    let mut command = Command::new("gcc");
    command.args([
        "-m32",
        "-march=i686",
        "-mgeneral-regs-only",
        "-ffreestanding",
        "-fno-pic",
        "-no-pie",
    ]);
    command.args([
        "-fno-stack-protector",
        "-fno-asynchronous-unwind-tables",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    command.args([
        "-std=gnu11",
        "-nostdlib",
        "-static",
        "-Wl,--build-id=none,-N,-Ttext=0x100000,-e,start",
    ]);
    finish(command, &source, target)
}

fn newer(target: &Path, source: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
    match (time(target), time(source)) {
        (Some(target), Some(source)) => target > source,
        (target, source) => target.is_some() && source.is_none(),
    }
}
