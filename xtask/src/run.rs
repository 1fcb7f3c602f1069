//! `./uvm run`: build, pack, boot, report. Also the pieces that tests and benchmarks boot with.

use crate::control::Traces;
use crate::disk::{self, Disks};
use crate::image::{self, Image, Libraries};
use crate::qemu::{Board, Clock, Display, Ending, Kernel, Machine, Stopped};
use crate::{build, console, linux, symbols, ui};
use anyhow::{bail, Context, Result};
use clap::Args;
use std::fmt::Write;
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
    /// Use a whole folder as the root file system.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Add a file or folder with the libraries it needs, at the same path or at GUEST.
    #[arg(long, value_name = "FILE[:GUEST]")]
    add: Vec<String>,
    /// Attach a disk with an ext4 file system: the first is mounted on /mnt, the next on /mnt2.
    #[arg(long, value_name = "IMAGE[:ro]")]
    disk: Vec<String>,
    /// Attach a disk of this size, made for this run, and swap on it.
    #[arg(long, value_parser = memory, value_name = "SIZE")]
    swap: Option<String>,
    /// The machine that QEMU plays.
    #[arg(long, value_enum, default_value_t = Board::Q35)]
    machine: Board,
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t = Kernel::Uvm)]
    kernel: Kernel,
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

/// The root file system and the program to start in it.
pub struct Root {
    pub image: Image,
    pub command: Vec<String>,
}

pub fn run(args: &RunArgs) -> Result<u8> {
    if args.kernel == Kernel::Linux && args.machine != Board::Q35 {
        bail!("Debian's Linux has no driver for the console of a microvm: leave --machine away");
    }
    // What the command line names is looked at before the kernel is built, which takes minutes.
    let root = pack(args.root.as_deref(), &args.add, &args.program)?;
    let folder = tempfile::tempdir().context("can't make a temporary folder")?;
    let initrd = folder.path().join("root.cpio");
    let mut words = console::words();
    if args.trace {
        words.push("trace".to_owned());
    }
    let disks = disks(args, folder.path())?;
    words.extend(disks.words);
    let kernel = kernel_path(args.kernel)?;
    let mut machine = Machine {
        board: args.machine,
        clock: if args.icount { Clock::Instructions } else { Clock::Wall },
        cpu: if args.icount { "qemu64" } else { "max,-erms" },
        memory: args.mem.clone(),
        cpus: args.cpus,
        kernel: kernel.clone(),
        initrd,
        command_line: String::new(),
        plugin: None,
        display: Display::Absent,
        disks: disks.list,
    };
    prepare(&mut machine, args.kernel, root, &words)?;

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
    console::carry_stdin(guest, running.control.first_user(), stop.clone());
    let is_unread = || unread.load(Ordering::Relaxed);
    let (ending, report) = running.wait(None, || stop.load(Ordering::Relaxed) || is_unread())?;
    let ending = match ending {
        Ending::Stopped(Stopped::ByUser) if is_unread() => Ending::Stopped(Stopped::Unread),
        ending => ending,
    };
    let _ = output.join();
    drop(raw);
    explain(&ending, &report, &kernel);
    Ok(ending.code())
}

/// The disks that the command line names; what has to be made goes below `folder`.
fn disks(args: &RunArgs, folder: &Path) -> Result<Disks> {
    let mut disks = Disks::default();
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

/// The least memory that the kernel starts with, beside the root file system.
const LEAST_MEMORY: u64 = 16 << 20;
/// That which Debian's Linux starts with.
const LEAST_MEMORY_OF_LINUX: u64 = 88 << 20;

/// Says on standard error what a run's unusual end was.
pub fn explain(ending: &Ending, report: &crate::control::Report, kernel: &Path) {
    for line in symbols::story(kernel, report) {
        ui::say(&line);
    }
    match ending {
        Ending::Exited(_) | Ending::Panicked | Ending::Stopped(Stopped::Unread) => {}
        Ending::Silent { status } => {
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
    machine.command_line = command_line(kernel, words, &root.command);
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

/// Gathers the root file system for `program` (empty: an interactive shell).
pub fn pack(folder: Option<&Path>, add: &[String], program: &[String]) -> Result<Root> {
    let mut image = Image::minimal()?;
    if let Some(folder) = folder {
        if !folder.is_dir() {
            bail!("{} is not a folder", folder.display());
        }
        image.tree(folder, "/", Libraries::AsTheyAre)?;
    }
    for file in add {
        let (host, guest) = match file.split_once(':') {
            Some((host, guest)) => (PathBuf::from(host), guest.to_owned()),
            None => {
                let host = std::path::absolute(file)?;
                let guest = host.to_str().context("a path is not UTF-8")?.to_owned();
                (host, guest)
            }
        };
        if !guest.starts_with('/') {
            bail!("the guest path in --add {file} must start with a slash");
        }
        if host.is_dir() {
            image.tree(&host, &guest, Libraries::Packed)?;
        } else {
            image.program(&host, &guest)?;
        }
    }
    let command = add_program(&mut image, program)?;
    if folder.is_none() || !image.has("/bin/sh") {
        image.busybox()?;
    }
    Ok(Root { image, command })
}

fn add_program(image: &mut Image, program: &[String]) -> Result<Vec<String>> {
    let Some((name, arguments)) = program.split_first() else {
        return Ok(vec!["/bin/busybox".to_owned(), "sh".to_owned()]);
    };
    let mut command = vec![locate(image, name)?];
    command.extend_from_slice(arguments);
    for (start, companions) in COMPANIONS {
        if Path::new(&command[0])
            .file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(start))
        {
            for path in companions.iter().flat_map(|pattern| matches_of(pattern)) {
                let guest = path.to_string_lossy().into_owned();
                if !image.has(&guest) {
                    image.tree(&path, &guest, Libraries::Packed)?;
                }
            }
        }
    }
    Ok(command)
}

/// Where `name` is in the guest; packs it from this machine unless the tree has it.
fn locate(image: &mut Image, name: &str) -> Result<String> {
    const APPLET_FOLDERS: [&str; 4] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"];
    if name.starts_with('/') && image.has(name) {
        return Ok(name.to_owned());
    }
    if !name.contains('/') {
        if let Some(folder) =
            APPLET_FOLDERS.iter().find(|folder| image.has(&format!("{folder}/{name}")))
        {
            return Ok(format!("{folder}/{name}"));
        }
    }
    let host = if name.contains('/') {
        let path = std::path::absolute(name)?;
        path.exists().then(|| path.to_string_lossy().into_owned())
    } else {
        image::find_program(name)
    };
    match host {
        Some(host) if name == "busybox" || name == "/bin/busybox" => {
            let _ = host;
            Ok("/bin/busybox".to_owned())
        }
        Some(host) => {
            image.program(Path::new(&host), &host)?;
            Ok(host)
        }
        None if is_applet(name) => Ok(format!("/bin/{}", name.trim_start_matches("/bin/"))),
        None => bail!("there is no program {name} on this machine"),
    }
}

fn is_applet(name: &str) -> bool {
    let name = name.strip_prefix("/bin/").unwrap_or(name);
    let Some(busybox) = image::find_program("busybox") else { return false };
    let Ok(output) = std::process::Command::new(busybox).arg("--list").output() else {
        return false;
    };
    String::from_utf8_lossy(&output.stdout).lines().any(|applet| applet == name)
}

/// Programs that are no use without folders which no ELF header names.
const COMPANIONS: &[(&str, &[&str])] = &[("python3", &["/usr/lib/python3", "/usr/lib/python3."])];

/// Folders whose path is `pattern`, or starts with it when it ends in a dot.
fn matches_of(pattern: &str) -> Vec<PathBuf> {
    let Some(start) = pattern.strip_suffix('.') else {
        return Some(PathBuf::from(pattern)).filter(|path| path.is_dir()).into_iter().collect();
    };
    let (folder, start) = start.rsplit_once('/').unwrap_or(("", start));
    let Ok(entries) = std::fs::read_dir(format!("{folder}/")) else { return Vec::new() };
    let found = entries.flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.'))
    });
    found.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// The kernel's command line: settings, then the program's words, percent-encoded.
fn command_line(kernel: Kernel, words: &[String], command: &[String]) -> String {
    let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
    let mut line = match kernel {
        Kernel::Uvm => String::new(),
        Kernel::Linux => format!("{} ", linux::COMMAND_LINE),
    };
    for word in words {
        line.push_str(word);
        line.push(' ');
    }
    line.push_str("cwd=/root");
    for variable in [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "USER=root",
        "LANG=C.UTF-8",
        &format!("TERM={term}"),
    ] {
        let _ = write!(line, " env={}", encode(variable));
    }
    line.push_str(" --");
    for word in command {
        let _ = write!(line, " {}", encode(word));
    }
    line
}

/// Percent-encodes all but plain characters, so that a word stays one word on a command line.
fn encode(word: &str) -> String {
    if word.is_empty() {
        // A string that ends at once is the empty one.
        return "%00".to_owned();
    }
    let mut out = String::new();
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"_./:=,+@-".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_stay_one_word() {
        assert_eq!(encode("echo hi; ls /"), "echo%20hi%3B%20ls%20/");
        assert_eq!(encode("100%"), "100%25");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = pack(None, &[], &["/no/such/program".to_owned()]).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/program"));
    }
}
