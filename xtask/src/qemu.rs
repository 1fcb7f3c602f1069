//! One QEMU: its command line, and how it ended.
//!
//! The guest's first serial port is the console. The second is the control channel, on which the
//! guest reports its first user instruction, a panic, and the exit code (see [`crate::control`]);
//! it is a socket that this process listens on. The guest powers off through isa-debug-exit, whose
//! 7 bits only confirm what the control channel said.

mod disk;

pub use disk::{Access, Disk, Fault, Speed};

use crate::accel::Accelerator;
use crate::control::{Control, Report, Traces};
use crate::share::Share;
use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Board {
    Q35,
    Microvm,
}

/// Which kernel is booted: ours, or Debian's Linux under the same flags.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Kernel {
    Uvm,
    Linux,
}

/// What a tick of the guest's clock is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clock {
    /// Host time.
    Wall,
    /// Instructions, by `-icount shift=0,sleep=off`: runs repeat to the last tick.
    Instructions,
}

/// Whether the machine has a display card, which isn't looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Display {
    #[default]
    Absent,
    /// 16 MiB of memory on the PCI bus, /dev/fb0.
    Bochs,
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub board: Board,
    pub accelerator: Accelerator,
    pub clock: Clock,
    pub cpu: &'static str,
    pub memory: String,
    pub cpus: u32,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub command_line: String,
    /// A plugin of QEMU's with its arguments, as `-plugin` takes them.
    pub plugin: Option<String>,
    pub display: Display,
    /// virtio disks: /dev/vda, /dev/vdb, ...
    pub disks: Vec<Disk>,
    /// Folders of this machine, as virtio 9P devices.
    pub shares: Vec<Share>,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// The guest's first process exited with this code.
    Exited(u8),
    /// The kernel gave up; the report has the message and the frames.
    Panicked,
    /// QEMU ended without a word on the control channel; what it had to complain about.
    Silent { status: String, complaints: String },
    /// It was still running when its time was over, or when the user stopped it.
    Stopped(Stopped),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stopped {
    TimeOut,
    ByUser,
    /// Standard output was closed, as by `head`.
    Unread,
}

impl Ending {
    /// The exit code that `./uvm run` ends with.
    pub fn code(&self) -> u8 {
        match self {
            Ending::Exited(code) => *code,
            Ending::Panicked => 70,
            Ending::Silent { .. } => 71,
            Ending::Stopped(Stopped::TimeOut) => 72,
            Ending::Stopped(Stopped::ByUser) => 130,
            // As a shell says it of a program that SIGPIPE ended.
            Ending::Stopped(Stopped::Unread) => 141,
        }
    }
}

impl Machine {
    /// A machine of one CPU with 512 MiB, whose time is the host's; it lacks a kernel.
    pub fn new(initrd: PathBuf) -> Machine {
        Machine {
            board: Board::Q35,
            accelerator: Accelerator::Emulator,
            clock: Clock::Wall,
            cpu: "max,-erms",
            memory: "512M".to_owned(),
            cpus: 1,
            kernel: PathBuf::new(),
            initrd,
            command_line: String::new(),
            plugin: None,
            display: Display::Absent,
            disks: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// The arguments for `qemu-system-x86_64`, with the control channel's socket at `control`.
    pub fn arguments(&self, control: &Path) -> Vec<String> {
        let mut list: Vec<String> = Vec::new();
        let mut push = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
        push(&["-M", if self.board == Board::Q35 { "q35" } else { "microvm" }]);
        match self.clock {
            Clock::Wall if self.accelerator == Accelerator::Kvm => push(&["-accel", "kvm"]),
            Clock::Wall => push(&["-accel", "tcg,thread=multi"]),
            Clock::Instructions => {
                push(&["-accel", "tcg", "-icount", "shift=0,sleep=off"]);
                push(&["-rtc", "base=2026-01-01T00:00:00,clock=vm", "-seed", "42"]);
                if self.cpus > 1 {
                    // QEMU runs one CPU until the next timer: without this one, another CPU may not
                    // run for long.
                    push(&["-netdev", "hubport,id=unused,hubid=0"]);
                    push(&["-object", "filter-buffer,id=turns,netdev=unused,interval=20"]);
                }
            }
        }
        let cpu = if self.accelerator == Accelerator::Kvm { "host" } else { self.cpu };
        push(&["-cpu", cpu, "-smp", &self.cpus.to_string(), "-m", &self.memory]);
        push(&["-name", "uvm,debug-threads=on"]);
        push(&[
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
        ]);
        push(&["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        push(&["-chardev", &format!("socket,id=control,path={}", control.display())]);
        push(&["-device", "isa-serial,index=1,chardev=control"]);
        push(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        if self.display == Display::Bochs {
            push(&["-device", "bochs-display"]);
        }
        let bus = if self.board == Board::Q35 { "virtio-blk-pci" } else { "virtio-blk-device" };
        // On microvm places are taken from the last one down unless they are named. The interrupt
        // of the first arrives as that of the third: QEMU's I/O APIC takes every line 0 for the
        // timer's.
        let place = |index: usize| match self.board {
            Board::Q35 => String::new(),
            Board::Microvm => format!(",bus=virtio-mmio-bus.{}", index + 1),
        };
        for (index, disk) in self.disks.iter().enumerate() {
            let id = format!("disk{index}");
            let place = place(index);
            let device = format!("{bus},drive={id}{place},rerror=report,werror=report");
            push(&["-drive", &disk.drive(&id), "-device", &device]);
        }
        let bus = if self.board == Board::Q35 { "virtio-9p-pci" } else { "virtio-9p-device" };
        for (index, share) in self.shares.iter().enumerate() {
            let bus = format!("{bus}{}", place(self.disks.len() + index));
            let [folder, device] = share.arguments(index, &bus);
            push(&["-fsdev", &folder, "-device", &device]);
        }
        push(&[
            "-kernel",
            &self.kernel.display().to_string(),
            "-initrd",
            &self.initrd.display().to_string(),
        ]);
        push(&["-append", &self.command_line]);
        if let Some(plugin) = &self.plugin {
            push(&["-plugin", plugin]);
        }
        list
    }

    /// Starts the machine with its console on pipes (`output` says where the guest's output goes).
    pub fn start(&self, output: Stdio, traces: Traces) -> Result<Running> {
        let folder = tempfile::tempdir().context("can't make a temporary folder")?;
        let socket = folder.path().join("control");
        let listener = UnixListener::bind(&socket).context("can't make the control socket")?;
        let mut child = Command::new("qemu-system-x86_64")
            .args(self.arguments(&socket))
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn()
            .context("can't start qemu-system-x86_64 (package qemu-system-x86)")?;
        let errors = Arc::new(Mutex::new(String::new()));
        if let Some(pipe) = child.stderr.take() {
            let errors = errors.clone();
            std::thread::spawn(move || {
                // What can't be read of QEMU's complaints is no reason to stop.
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let mut errors = errors.lock().expect("no thread panics with it");
                    errors.push_str(&line);
                    errors.push('\n');
                }
            });
        }
        Ok(Running {
            child,
            control: Control::listen(listener, traces),
            errors,
            _folder: folder,
            started: Instant::now(),
        })
    }
}

/// Keeps each CPU of a machine on a CPU of its own of this one: what two CPUs do together is not to
/// depend on where the host happens to run them. Where there are fewer here, or QEMU names its
/// threads differently, all stays as it is.
pub fn keep_cpus_apart(process: u32, cpus: u32) {
    std::thread::spawn(move || {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let here: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(cpus as usize).collect();
        if here.len() < cpus as usize {
            return;
        }
        // The threads come up one by one.
        for _ in 0..100 {
            let threads = cpu_threads(process);
            if threads.len() == here.len() {
                for ((_, thread), &cpu) in threads.iter().zip(&here) {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    // A machine that has ended meanwhile needs none.
                    let _ = sched_setaffinity(Some(*thread), &set);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// QEMU's threads that are CPUs: each CPU's number and the thread.
fn cpu_threads(process: u32) -> BTreeMap<u32, Pid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return BTreeMap::new();
    };
    let of = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let number = name.trim().strip_prefix("CPU ")?.split('/').next()?.parse().ok()?;
        Some((number, Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?))
    };
    tasks.flatten().filter_map(of).collect()
}

/// What QEMU says first when KVM does not go on.
const GIVEN_UP: &str = "KVM internal error";

/// A machine that runs. Dropping it stops QEMU.
pub struct Running {
    pub child: Child,
    pub control: Control,
    errors: Arc<Mutex<String>>,
    started: Instant,
    _folder: tempfile::TempDir,
}

impl Running {
    /// Waits for the end, at most until `limit`, asking `stop` about ten times a second whether the
    /// user has had enough.
    pub fn wait(
        mut self,
        limit: Option<Duration>,
        stop: impl Fn() -> bool,
    ) -> Result<(Ending, Report)> {
        let mut pause = Duration::from_millis(1);
        let silent = |status| Ending::Silent { status, complaints: String::new() };
        let ending = loop {
            if let Some(status) = self.child.try_wait()? {
                break silent(status.to_string());
            }
            if stop() {
                break Ending::Stopped(Stopped::ByUser);
            }
            // QEMU keeps such a machine for a debugger, with all its registers printed.
            if self.errors.lock().expect("no thread panics with it").starts_with(GIVEN_UP) {
                self.errors.lock().expect("no thread panics with it").clear();
                break silent("KVM internal error at what the kernel does".to_owned());
            }
            if limit.is_some_and(|limit| self.started.elapsed() > limit) {
                break Ending::Stopped(Stopped::TimeOut);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(if limit.is_some() { 50 } else { 20 }));
        };
        if self.child.try_wait()?.is_none() {
            // It may have ended in between; both are fine.
            let _ = self.child.kill();
            self.child.wait()?;
        }
        let report = self.control.finish();
        let ending = match (ending, &report) {
            (Ending::Silent { .. }, Report { panic: Some(_), .. }) => Ending::Panicked,
            (Ending::Silent { .. }, Report { exit: Some(code), .. }) => Ending::Exited(*code),
            (Ending::Silent { status, .. }, _) => {
                let errors = self.errors.lock().expect("no thread panics with it");
                Ending::Silent { status, complaints: errors.trim().to_owned() }
            }
            (ending, _) => ending,
        };
        Ok((ending, report))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
