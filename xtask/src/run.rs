//! `./uvm run`: build, pack, boot, report. Also the pieces that tests and benchmarks boot with.

use crate::accel::{self, Accel};
use crate::control::{Report, Traces};
use crate::disk::{self, Disks, Keep};
use crate::pack::{self, pack, Root};
use crate::qemu::{Board, Clock, Ending, Kernel, Machine, Stopped};
use crate::share::Shares;
use crate::{build, command_line, console, linux, symbols, ui, EXIT_USAGE};
use anyhow::{bail, Context, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

#[derive(Args)]
pub struct RunArgs {
    /// The guest's memory.
    #[arg(long, default_value = "512M", value_parser = memory, value_name = "SIZE")]
    mem: String,
    /// How many CPUs the machine has.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Use a whole folder as the root file system, copied into memory; or a disk with an ext4 file
    /// system, where PROGRAM is looked for (without one: its /sbin/init, or a shell).
    #[arg(long, value_name = "DIR|IMAGE[:ro]")]
    root: Option<String>,
    /// Add a file or folder with the libraries it needs, at the same path or at GUEST. perl,
    /// Python, gcc, Go, Java and node bring their modules, passes, headers and roots, and so do
    /// their scripts; PROGRAM too.
    #[arg(long, value_name = "FILE[:GUEST]")]
    add: Vec<String>,
    /// Attach a disk with an ext4 file system: the first is mounted on /mnt, the next on /mnt2.
    #[arg(long, value_name = "IMAGE[:ro]")]
    disk: Vec<String>,
    /// Show a folder of this machine inside, at GUEST or /share (the next at /share2); programs
    /// inside change it, unless :ro is said.
    #[arg(long, value_name = "DIR[:GUEST][:ro]")]
    share: Vec<String>,
    /// Let all disks' images stay as they are: what is written to them is forgotten at the end.
    #[arg(long)]
    snapshot: bool,
    /// Attach a disk of this size, made for this run, and swap on it.
    #[arg(long, value_parser = memory, value_name = "SIZE")]
    swap: Option<String>,
    /// Run the program as this user and group (the user's number if none is said), in /tmp; as root
    /// otherwise.
    #[arg(long, value_parser = user, value_name = "UID[:GID]")]
    user: Option<String>,
    /// What runs the guest's CPUs: this machine's by KVM where that works, or QEMU, emulating them.
    /// Without a word: as with auto, but silently; with --icount they are emulated.
    #[arg(long, value_enum)]
    accel: Option<Accel>,
    /// The machine that QEMU plays.
    #[arg(long, value_enum, default_value_t = Board::Q35)]
    machine: Board,
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t = Kernel::Uvm)]
    kernel: Kernel,
    /// How the kernel sees pages of programs: all the time, or for the moments of a copy, with
    /// mappings that are kept, private to a CPU, or made each time. NAME:N says how many are
    /// shared.
    #[arg(long, value_parser = ephemeral, value_name = "direct|cache|private|original[:N]")]
    ephemeral: Option<String>,
    /// Tell which system calls the kernel does not have, once each.
    #[arg(long)]
    trace: bool,
    /// Let the guest's clock count instructions, so that runs repeat exactly.
    #[arg(long)]
    icount: bool,
    /// The program and its arguments.
    #[arg(last = true, value_name = "PROGRAM ARGS")]
    program: Vec<String>,
}

pub fn run(args: &RunArgs) -> Result<u8> {
    if args.kernel == Kernel::Linux && args.machine != Board::Q35 {
        ui::say("Debian's Linux has no driver for the console of a microvm: leave --machine away");
        return Ok(EXIT_USAGE);
    }
    if args.icount && args.accel == Some(Accel::Kvm) {
        ui::say("KVM can't count the guest's instructions: --icount goes with --accel tcg alone");
        return Ok(EXIT_USAGE);
    }
    if args.kernel == Kernel::Linux && !args.share.is_empty() {
        ui::say(
            "Debian's Linux for clouds has no 9P, which --share goes by: leave one of them away",
        );
        return Ok(EXIT_USAGE);
    }
    // What the command line names is looked at before our kernel is built, which takes minutes.
    // Linux is fetched before, since its drivers go into the root file system.
    let linux = (args.kernel == Kernel::Linux).then(linux::kernel).transpose()?;
    let mut shares = Shares::default();
    args.share.iter().try_for_each(|share| shares.add(share))?;
    let (mut root, image) = match root_of(args)? {
        Some(RootOf::Image(image)) => (pack::for_disk(&args.program)?, Some(image)),
        Some(RootOf::Folder(folder)) => (pack(Some(folder), &args.add, &args.program)?, None),
        None => (pack(None, &args.add, &args.program)?, None),
    };
    shares.make_places(&mut root.image)?;
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let disks = disks(args, image, folder.path())?;
    let mut machine = Machine {
        board: args.machine,
        clock: if args.icount { Clock::Instructions } else { Clock::Wall },
        cpu: if args.icount { "qemu64" } else { "max,-erms" },
        memory: args.mem.clone(),
        cpus: args.cpus,
        disks: disks.list,
        shares: shares.list,
        ..Machine::new(folder.path().join("root.cpio"))
    };
    let words = [words(args), disks.words, shares.words].concat();
    prepare(&mut machine, args.kernel, root, &words)?;
    machine.kernel = linux.map_or_else(build::kernel, Ok)?;
    if !args.icount {
        machine.accelerator = accel::choose(args.accel)?;
    }
    if args.program.is_empty() && console::is_interactive() {
        ui::say("Ctrl-A x stops the machine");
    }
    let (ending, report) = attend(&machine)?;
    explain(&ending, &report, &machine.kernel);
    let is_whole = matches!(ending, Ending::Exited(_)) && report.missing == 0;
    if args.trace && args.kernel == Kernel::Uvm && is_whole {
        ui::say("every system call that was made is there");
    }
    Ok(ending.code())
}

/// What `--root` names.
enum RootOf<'a> {
    Folder(&'a Path),
    /// With its mode.
    Image(&'a str),
}

fn root_of(args: &RunArgs) -> Result<Option<RootOf<'_>>> {
    let Some(root) = &args.root else { return Ok(None) };
    if Path::new(root).is_dir() {
        return Ok(Some(RootOf::Folder(Path::new(root))));
    }
    if !Path::new(root.strip_suffix(":ro").unwrap_or(root)).exists() {
        bail!("there is no {root}: --root takes a folder, or an image of a disk with ext4");
    }
    if !args.add.is_empty() {
        bail!(
            "--add copies into a root in memory, and {root} is a disk: --disk attaches another one"
        );
    }
    Ok(Some(RootOf::Image(root)))
}

/// Settings for the kernel, beside those about disks.
fn words(args: &RunArgs) -> Vec<String> {
    let mut words = console::words();
    words.extend(args.trace.then(|| "trace".to_owned()));
    words.extend(args.ephemeral.as_ref().map(|how| format!("ephemeral={how}")));
    words.extend(args.user.as_ref().map(|ids| format!("user={ids}")));
    words
}

/// Runs a machine on the user's terminal, until it ends or the user ends it.
fn attend(machine: &Machine) -> Result<(Ending, Report)> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT]
    {
        signal_hook::flag::register(signal, stop.clone()).context("can't catch signals")?;
    }
    // Not inherited: QEMU makes its output non-blocking, and a terminal's input and output are one
    // open file.
    let mut running = machine.start(Stdio::piped(), Traces::Shown)?;
    let guest = running.child.stdin.take().context("QEMU has no standard input")?;
    let unread = Arc::new(AtomicBool::new(false));
    let output = running.child.stdout.take().context("QEMU has no standard output")?;
    let output = console::carry_output(output, unread.clone());
    let raw = console::RawMode::enter();
    console::carry_window(running.control.teller());
    console::carry_stdin(guest, running.control.first_user(), stop.clone());
    let is_unread = || unread.load(Ordering::Relaxed);
    let (ending, report) = running.wait(None, || stop.load(Ordering::Relaxed) || is_unread())?;
    let ending = match ending {
        Ending::Stopped(Stopped::ByUser) if is_unread() => Ending::Stopped(Stopped::Unread),
        ending => ending,
    };
    let _ = output.join();
    drop(raw);
    Ok((ending, report))
}

/// The disks that the command line names, that of the root first; what has to be made goes below
/// `folder`.
fn disks(args: &RunArgs, root: Option<&str>, folder: &Path) -> Result<Disks> {
    let keep = if args.snapshot { Keep::Nothing } else { Keep::Changes };
    let mut disks = Disks { keep, ..Disks::default() };
    if let Some(image) = root {
        disks.root(image)?;
    }
    for image in &args.disk {
        disks.mount(image)?;
    }
    if let Some(size) = &args.swap {
        let bytes =
            disk::bytes(size).with_context(|| format!("{size} is more than a disk can have"))?;
        disks.swap(folder.join("swap"), bytes)?;
    }
    Ok(disks)
}

/// A size of memory as QEMU takes it.
fn memory(size: &str) -> std::result::Result<String, String> {
    let digits = size.strip_suffix(['K', 'M', 'G']).unwrap_or(size);
    match digits.parse::<u64>() {
        Ok(1..) => Ok(size.to_owned()),
        _ => Err("write a size like 64M or 2G".to_owned()),
    }
}

/// How the kernel makes its ephemeral mappings.
fn ephemeral(how: &str) -> std::result::Result<String, String> {
    let (name, count) = how.split_once(':').unwrap_or((how, "1"));
    let is_known = ["direct", "cache", "private", "original"].contains(&name);
    match count.parse::<u32>() {
        Ok(1..=65536) if is_known => Ok(how.to_owned()),
        _ => Err("write direct, cache, private or original, and :N for up to 65536".to_owned()),
    }
}

/// `UID[:GID]` with both.
fn user(ids: &str) -> std::result::Result<String, String> {
    let (uid, gid) = ids.split_once(':').unwrap_or((ids, ids));
    match (uid.parse::<u32>(), gid.parse::<u32>()) {
        // The last number means none.
        (Ok(uid), Ok(gid)) if uid.max(gid) < u32::MAX => Ok(format!("{uid}:{gid}")),
        _ => Err("write numbers like 1000 or 1000:100".to_owned()),
    }
}

/// The least memory that the kernel starts with, beside the root file system.
const LEAST_MEMORY: u64 = 16 << 20;
/// That which Debian's Linux starts with.
const LEAST_MEMORY_OF_LINUX: u64 = 88 << 20;

/// Says on standard error what a run's unusual end was.
pub fn explain(ending: &Ending, report: &Report, kernel: &Path) {
    for line in symbols::story(kernel, report) {
        ui::say(&line);
    }
    match ending {
        Ending::Exited(_) | Ending::Panicked | Ending::Stopped(Stopped::Unread) => {}
        Ending::Silent { status, complaints } => {
            if !complaints.is_empty() {
                ui::say(&format!("qemu: {complaints}"));
            }
            ui::say(&format!("the machine stopped without a word ({status})"))
        }
        Ending::Stopped(Stopped::ByUser) => ui::say("stopped"),
        Ending::Stopped(Stopped::TimeOut) => ui::say("out of time"),
    }
}

pub fn kernel_path(kernel: Kernel) -> Result<PathBuf> {
    match kernel {
        Kernel::Uvm => build::kernel(),
        Kernel::Linux => linux::kernel(),
    }
}

/// Writes the root file system to `machine.initrd` and completes the command line.
pub fn prepare(
    machine: &mut Machine,
    kernel: Kernel,
    mut root: Root,
    words: &[String],
) -> Result<()> {
    if kernel == Kernel::Linux {
        linux::add_init(&mut root.image)?;
        if !machine.disks.is_empty() {
            linux::add_disk_drivers(&mut root.image)?;
        }
    }
    root.image.write(&machine.initrd)?;
    machine.command_line = command_line::of(kernel, words, &root.command);
    let most = match kernel {
        Kernel::Uvm => 4000,
        Kernel::Linux => 2047,
    };
    let bytes = machine.command_line.len();
    if bytes > most {
        bail!("the kernel's command line takes {most} bytes, and the program with its arguments makes it {bytes}: \
               put them in a script, and --add that");
    }
    let root_bytes = std::fs::metadata(&machine.initrd)?.len();
    let least = root_bytes
        + match kernel {
            Kernel::Uvm => LEAST_MEMORY,
            Kernel::Linux => LEAST_MEMORY_OF_LINUX,
        };
    if disk::bytes(&machine.memory).is_some_and(|memory| memory < least) {
        let (root, least) = (root_bytes >> 20, least.div_ceil(1 << 20));
        bail!(
            "the kernel and a root file system of {root} MiB need --mem {least}M at least, not {}",
            machine.memory
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_group() {
        assert_eq!(user("5").as_deref(), Ok("5:5"));
        assert_eq!(user("5:6").as_deref(), Ok("5:6"));
        assert!([":", "x", "5:", "5:x", "-1", "4294967295"].iter().all(|ids| user(ids).is_err()));
    }
}
