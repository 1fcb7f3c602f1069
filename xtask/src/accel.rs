//! `--accel`: whether QEMU emulates the guest's CPU, or this machine's CPU runs the guest by KVM.
//!
//! That `/dev/kvm` is there says little: it may be another user's, and where this machine is a
//! guest itself, its KVM may lack what a kernel does. So our kernel is booted with it once, with a
//! program that starts others and sleeps; what came of it is kept until this machine boots again.
//!
//! Tests and benchmarks are emulated always: they should find the same CPU everywhere, and count
//! its instructions.

use crate::control::Traces;
use crate::pack;
use crate::qemu::{Ending, Kernel, Machine};
use crate::session::Input;
use crate::{build, run, ui};
use anyhow::{bail, Result};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Accel {
    /// KVM where it works, else emulation.
    Auto,
    /// KVM.
    Kvm,
    /// Emulation.
    Tcg,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accelerator {
    Emulator,
    Kvm,
}

const DEVICE: &str = "/dev/kvm";
/// A machine takes a fraction of a second to boot; one that gets stuck says nothing.
const LIMIT: Duration = Duration::from_secs(20);
const SCRIPT: &str = "true | true; sleep 0.01; exit 42";
const CODE: u8 = 42;

/// What a run that asks for `wanted` gets, by default KVM where it works; says in a sentence why it
/// doesn't where that was asked for or is news.
///
/// # Errors
/// When KVM is asked for and can't be had.
pub fn choose(wanted: Option<Accel>) -> Result<Accelerator> {
    if wanted == Some(Accel::Tcg) {
        return Ok(Accelerator::Emulator);
    }
    if let Err(error) = fs::File::options().read(true).write(true).open(DEVICE) {
        let why = format!("{DEVICE} can't be opened: {error}");
        match wanted {
            Some(Accel::Kvm) => bail!("--accel kvm: {why}"),
            Some(_) => ui::say(&format!("QEMU emulates the CPU (TCG), since {why}")),
            None => {}
        }
        return Ok(Accelerator::Emulator);
    }
    if wanted == Some(Accel::Kvm) {
        return Ok(Accelerator::Kvm);
    }
    let (found, is_news) = match kept() {
        Some(found) => (found, false),
        None => (keep(probe()?), true),
    };
    if found.is_empty() {
        return Ok(Accelerator::Kvm);
    }
    if is_news || wanted.is_some() {
        ui::say(&format!("QEMU emulates the CPU (TCG), since KVM does not work here: {found}"));
    }
    Ok(Accelerator::Emulator)
}

/// What is wrong with KVM as a machine sees it that boots our kernel, in part of a sentence; empty
/// when nothing is. What QEMU and KVM themselves say of it is kept in a file.
fn probe() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut machine = Machine {
        accelerator: Accelerator::Kvm,
        memory: "128M".to_owned(),
        cpus: 2,
        kernel: build::kernel()?,
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let command = ["/bin/busybox", "sh", "-c", SCRIPT].map(String::from);
    let root = pack::pack(None, &[], &command)?;
    run::prepare(&mut machine, Kernel::Uvm, root, &Input::Nothing.words())?;
    let running = machine.start(Stdio::null(), Traces::Kept)?;
    Ok(match running.wait(Some(LIMIT), || false)? {
        (Ending::Exited(CODE), _) => String::new(),
        (Ending::Silent { status, complaints }, _) => {
            let file = build::scratch("kvm-trial")?.join("qemu.txt");
            fs::write(&file, format!("{complaints}\n{status}\n"))?;
            let what = if is_guest() {
                "this machine is a guest itself, whose KVM lacks what QEMU or the kernel needs"
            } else {
                "QEMU ended a trial boot by it"
            };
            format!("{what} ({} has the details)", shown(&file))
        }
        (ending, _) => format!("a machine that should end with {CODE} ended with {ending:?}"),
    })
}

/// Whether this machine's CPU says that a hypervisor runs it.
fn is_guest() -> bool {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpus.split_whitespace().any(|word| word == "hypervisor")
}

/// A file of the tree as it is named from there.
fn shown(file: &Path) -> String {
    file.strip_prefix(build::root()).unwrap_or(file).display().to_string()
}

fn kept() -> Option<String> {
    let text = fs::read_to_string(file()).ok()?;
    text.strip_prefix(&boot()?)?.strip_prefix('\n').map(str::to_owned)
}

/// That it can't be kept is no reason to fail.
fn keep(found: String) -> String {
    if let Some(boot) = boot() {
        let _ = fs::write(file(), format!("{boot}\n{found}"));
    }
    found
}

fn file() -> std::path::PathBuf {
    build::root().join("target/kvm")
}

/// Which boot of this machine it is.
fn boot() -> Option<String> {
    let id = fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).ok()?;
    Some(id.trim().to_owned())
}
