//! `ports/riscv64`: a kernel for another architecture, built and booted on two harts.

use super::host::{output, tail, text};
use super::{failed, Verdict};
use crate::build;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const TARGET: &str = "riscv64gc-unknown-none-elf";
const QEMU: &str = "qemu-system-riscv64";
/// A boot takes some seconds; so long on a machine that does much else.
const SECONDS: &str = "600";

/// What the kernel prints on its way, in this order.
const STEPS: [&str; 9] = [
    "booted",
    "laws: they hold on 2 harts",
    "hello from user mode",
    "fork: ",
    "loan: ",
    "page transfer: ",
    "page-out: ",
    "frames: every one came back",
    "all right",
];

/// Laws that the port breaks on purpose, by a feature each, and how the laws' check names them.
const PLANTS: [(&str, &str); 4] = [
    ("plant-local", "BROKEN P2"),
    ("plant-bits", "BROKEN P4"),
    ("plant-reverse", "BROKEN P5"),
    ("plant-overtake", "BROKEN P6"),
];

/// What this machine lacks for it.
fn missing() -> Option<String> {
    let has = |command: &mut Command, word: &str| {
        command.output().is_ok_and(|output| text(&output).contains(word))
    };
    if !has(Command::new(QEMU).arg("--version"), "QEMU") {
        return Some(format!("{QEMU} is not installed (Debian: qemu-system-misc)"));
    }
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| text(&output).trim().to_owned()).unwrap_or_default();
    let library = PathBuf::from(&sysroot).join("lib/rustlib").join(TARGET);
    (!library.exists())
        .then(|| format!("the compiler has no library for {TARGET} (`rustup target add {TARGET}`)"))
}

/// What is wrong with the port's text, as lints and format see it.
fn look_over() -> Result<String> {
    let mut wrong = String::new();
    let clippy = ["clippy", "--quiet", "--release", "--", "-D", "warnings"];
    for arguments in [&["fmt", "--check"][..], &clippy[..]] {
        let done = output(Command::new("cargo").args(arguments).current_dir(folder()))?;
        if !done.status.success() {
            wrong.push_str(&tail(&text(&done), 40));
        }
    }
    Ok(wrong)
}

fn folder() -> PathBuf {
    build::root().join("ports/riscv64")
}

/// Builds the port, boots it, and says what it printed and whether it ended well; which it doesn't
/// where `enough` was printed, the last line then.
fn boot(features: &str, enough: Option<&str>) -> Result<(String, bool)> {
    let arguments = ["build", "--quiet", "--release", "--features", features];
    let built = output(Command::new("cargo").args(arguments).current_dir(folder()))?;
    if !built.status.success() {
        return Ok((text(&built), false));
    }
    let image = build::root().join("target/riscv64").join(TARGET).join("release/riscv64");
    let machine = ["-machine", "virt", "-smp", "2", "-m", "64M", "-nographic", "-kernel"];
    let mut qemu = Command::new("timeout");
    qemu.args([SECONDS, QEMU]).args(machine).arg(image).stdin(Stdio::null());
    let mut ran = qemu.stdout(Stdio::piped()).spawn().context("can't run QEMU")?;
    let (mut said, stdout) = (String::new(), ran.stdout.take());
    for line in stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
        said = said + &line? + "\n";
        if enough.is_some_and(|enough| said.contains(enough)) {
            // `timeout` passes it on to QEMU, which ends well by it.
            rustix::process::kill_process(Pid::from_child(&ran), Signal::TERM)?;
            ran.wait()?;
            return Ok((said, false));
        }
    }
    Ok((said, ran.wait()?.success()))
}

pub fn riscv64() -> Result<Verdict> {
    if let Some(missing) = missing() {
        return Ok(Verdict::Skipped(missing));
    }
    let wrong = look_over()?;
    if !wrong.is_empty() {
        return Ok(failed(wrong));
    }
    let (said, ended_well) = boot("", None)?;
    let mut rest = said.lines();
    let lost = STEPS.iter().find(|step| !rest.any(|line| line.contains(*step)));
    Ok(match lost {
        None if ended_well => Verdict::Passed { tests: STEPS.len() as u64 },
        None => failed(format!("it doesn't end well\n{}", tail(&said, 40))),
        Some(step) => failed(format!("no line with `{step}` in its place\n{}", tail(&said, 40))),
    })
}

/// The laws' check finds each law that the port breaks on purpose.
pub fn planted() -> Result<Verdict> {
    if let Some(missing) = missing() {
        return Ok(Verdict::Skipped(missing));
    }
    for (feature, named) in PLANTS {
        let (said, ended_well) = boot(feature, Some(named))?;
        if ended_well || !said.contains(named) {
            return Ok(failed(format!("{feature}: no `{named}`\n{}", tail(&said, 40))));
        }
    }
    Ok(Verdict::Passed { tests: PLANTS.len() as u64 })
}
