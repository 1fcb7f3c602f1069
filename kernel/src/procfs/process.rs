//! The files of one process.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;

use super::cpus::{list, set};
use super::settings::number;
use super::text::{Spot, Text};
use super::{maps, ProcessSetting, Show};
use crate::arch::cpu;
use crate::charge::Counted;
use crate::dev::tty;
use crate::devnum::major_and_minor;
use crate::errno::*;
use crate::fs::mount;
use crate::fs::path::escaped;
use crate::proc::limits::RLIMIT_SIGPENDING;
use crate::proc::{oom, table, Pid, Process, Thread};

const TICK: u64 = 10_000_000;
/// More groups than that are not shown.
const GROUPS_SHOWN: usize = 256;

/// The entries of `/proc/PID`.
pub(super) fn members(pid: Pid) -> Vec<(&'static str, Show)> {
    Vec::from([
        (
            "status",
            Show::Text(pid, |process| {
                status(process, process.state(), process.leader().as_deref())
            }),
        ),
        ("stat", Show::Text(pid, stat)),
        ("statm", Show::Text(pid, statm)),
        ("maps", Show::SpaceText(pid, maps::maps)),
        ("mem", Show::Memory(pid)),
        ("smaps", Show::SpaceText(pid, maps::smaps)),
        ("smaps_rollup", Show::SpaceText(pid, maps::smaps_rollup)),
        ("uvm", Show::SpaceText(pid, maps::uvm)),
        ("cmdline", Show::Text(pid, |process| Ok(process.cmdline()))),
        ("comm", Show::Text(pid, |process| Ok(format!("{}\n", process.comm()).into_bytes()))),
        ("environ", Show::Text(pid, |_| Ok(Vec::new()))),
        ("limits", Show::Text(pid, limits)),
        ("mounts", Show::Mounts(super::system::mounts)),
        ("mountinfo", Show::Mounts(mountinfo)),
        ("cgroup", Show::Text(pid, |_| Ok(b"0::/\n".to_vec()))),
        (
            "oom_score",
            Show::Text(pid, |process| Ok(format!("{}\n", oom::score(process)).into_bytes())),
        ),
        ("oom_score_adj", Show::ProcessSetting(pid, &OOM_SCORE_ADJ)),
        ("loginuid", Show::Text(pid, |_| Ok(b"4294967295".to_vec()))),
        ("wchan", Show::Text(pid, |_| Ok(b"0".to_vec()))),
        ("io", Show::Text(pid, |_| Ok(b"rchar: 0\nwchar: 0\n".to_vec()))),
        ("exe", Show::Exe(pid)),
        ("cwd", Show::Cwd(pid)),
        ("root", Show::RootLink(pid)),
        ("fd", Show::Fds(pid)),
        ("fdinfo", Show::FdInfos(pid)),
        ("task", Show::Tasks(pid)),
    ])
}

static OOM_SCORE_ADJ: ProcessSetting = ProcessSetting {
    show: |process| Ok(format!("{}\n", process.oom.get()).into_bytes()),
    set: |process, text| process.oom.set(number(text)?),
};

/// The entries of `/proc/PID/task/TID`.
pub(super) fn members_of_thread(tid: Pid) -> Vec<(&'static str, Show)> {
    let mut members = members(tid);
    members.retain(|(name, _)| !matches!(*name, "task" | "status"));
    members.push(("status", Show::ThreadText(tid, status_of_thread)));
    members.push(("fail-nth", Show::FailNth(tid)));
    let is_leader = table::thread(tid).is_some_and(|thread| thread.process.pid == tid);
    let children = if is_leader {
        Show::ProcessRecords(tid, children)
    } else {
        Show::Records(|_, _| Ok(None))
    };
    members.push(("children", children));
    members
}

/// Whether a file tells what is in a process, for processes alone that may look into it.
pub(super) fn is_secret(name: &[u8]) -> bool {
    matches!(name, b"maps" | b"smaps" | b"smaps_rollup" | b"uvm" | b"environ" | b"io")
}

/// The permission bits that a file lacks which others have.
pub(super) fn hidden_bits(name: &[u8]) -> u32 {
    if matches!(name, b"environ" | b"io") {
        0o044
    } else {
        0
    }
}

/// A process's children, those that have ended too, by their numbers; they are shown for its first
/// thread.
fn children(process: &Process, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    let behind = spot.key as Pid + 1;
    let next = table::with(|tree| tree.node(process.pid)?.children.range(behind..).next().copied());
    let Some(child) = next else { return Ok(None) };
    write!(out, "{child} ")?;
    Ok(Some(child as u64))
}

fn mountinfo(spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    let Some(mount) = mount::nth(spot.key as usize) else { return Ok(None) };
    if let Some(path) = mount.path() {
        let (id, parent, path) = (mount.id(), mount.parent_id(), escaped(&path));
        let (major, minor) = major_and_minor(mount.dev());
        let (root, options) = (escaped(&mount.root_path()), mount.options());
        let (source, fs_type) = (escaped(mount.source().as_bytes()), mount.fs_type());
        let (mode, fs_options) = (mount.mode(), mount.fs_options());
        write!(out, "{id} {parent} {major}:{minor} {root} {path} {options} - ")?;
        writeln!(out, "{fs_type} {source} {mode}{fs_options}")?;
    }
    Ok(Some(spot.key + 1))
}

pub(super) fn fdinfo(_process: &Process) -> Result<Vec<u8>> {
    Ok(b"pos:\t0\nflags:\t02\nmnt_id:\t1\n".to_vec())
}

fn state_name(state: char) -> &'static str {
    match state {
        'R' => "running",
        'T' => "stopped",
        'Z' => "zombie",
        _ => "sleeping",
    }
}

fn status_of_thread(thread: &Thread) -> Result<Vec<u8>> {
    let state = match thread.process.state() {
        'R' | 'S' if thread.is_runnable() => 'R',
        'R' => 'S',
        other => other,
    };
    status(&thread.process, state, Some(thread))
}

/// What there is to say of a process, and of a thread of it, if it has any left.
fn status(process: &Process, state: char, thread: Option<&Thread>) -> Result<Vec<u8>> {
    let cred = process.cred();
    let memory = maps::memory_stats(process);
    let tid = thread.map_or(process.pid, |thread| thread.tid());
    let mut out = String::new();
    // A name ends no line: a program can't write the lines below.
    let name = thread.map_or_else(|| process.comm(), |thread| thread.comm());
    let _ = writeln!(out, "Name:\t{}", name.replace('\\', "\\\\").replace('\n', "\\n"));
    let _ = writeln!(out, "Umask:\t{:04o}", process.fs().map_or(0o022, |fs| fs.umask()));
    let _ = writeln!(out, "State:\t{state} ({})", state_name(state));
    let (pid, parent) = (process.pid, process.parent());
    let _ = writeln!(out, "Tgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\nPPid:\t{parent}");
    let tracer = thread.map_or(0, |thread| thread.tracer());
    let _ = writeln!(out, "TracerPid:\t{tracer}");
    let _ = writeln!(out, "Uid:\t{}\t{}\t{}\t{}", cred.uid, cred.euid, cred.suid, cred.fsuid);
    let _ = writeln!(out, "Gid:\t{}\t{}\t{}\t{}", cred.gid, cred.egid, cred.sgid, cred.fsgid);
    let _ = write!(out, "FDSize:\t64\nGroups:\t");
    for group in cred.groups.iter().take(GROUPS_SHOWN) {
        let _ = write!(out, "{group} ");
    }
    out.push('\n');
    for (name, pages) in [
        ("VmPeak", memory.mapped),
        ("VmSize", memory.mapped),
        ("VmLck", memory.locked),
        ("VmPin", 0),
        ("VmHWM", process.total_usage().max_resident.max(memory.resident)),
        ("VmRSS", memory.resident),
        ("RssAnon", memory.resident.saturating_sub(memory.file)),
        ("RssFile", memory.file),
        ("RssShmem", 0),
        ("VmData", memory.data),
        ("VmStk", memory.stack),
        ("VmExe", memory.text),
        ("VmLib", 0),
        ("VmPTE", memory.tables),
        ("VmSwap", memory.swapped),
    ] {
        let _ = writeln!(out, "{name}:\t{:>8} kB", pages * 4);
    }
    let account = process.account();
    let _ = writeln!(out, "KernelKept:\t{:>8} kB", account.kept() / 1024);
    let _ = writeln!(out, "KernelQueued:\t{:>8} kB", account.queued() / 1024);
    let _ = writeln!(out, "KernelKeptOfUser:\t{:>8} kB", account.user().kept() / 1024);
    let _ = writeln!(out, "HeapOfUser:\t{:>8} kB", account.user().heap_pages() * 4);
    let _ = writeln!(out, "ObjectsMade:\t{:>8} kB", account.memory().used() * 4);
    let _ = writeln!(out, "ObjectsMadeOfUser:\t{:>8} kB", account.user().memory().used() * 4);
    let _ = writeln!(out, "Threads:\t{}", process.thread_count());
    signals(process, thread, &mut out);
    let task = thread.and_then(|thread| thread.task());
    let cpus = task.map_or(cpu::online(), |task| task.allowed().intersection(cpu::online()));
    let _ = writeln!(out, "Seccomp:\t0\nCpus_allowed:\t{}", set(cpus));
    let _ = writeln!(out, "Cpus_allowed_list:\t{}", list(cpus));
    let _ = writeln!(out, "voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0");
    Ok(out.into_bytes())
}

fn signals(process: &Process, thread: Option<&Thread>, out: &mut String) {
    let (pending, ignored, caught) = {
        let group = process.group.lock();
        let (ignored, caught) = group.actions.sets();
        (group.pending.set(), ignored, caught)
    };
    let blocked = thread.map_or(0, |thread| thread.mask().0);
    let own = thread.map_or(0, |thread| thread.pending.lock().set().0);
    let queued = process.account().user().count(Counted::Signals);
    let most = process.limit(RLIMIT_SIGPENDING);
    let _ =
        writeln!(out, "SigQ:\t{queued}/{most}\nSigPnd:\t{own:016x}\nShdPnd:\t{:016x}", pending.0);
    let _ = writeln!(
        out,
        "SigBlk:\t{blocked:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}",
        ignored.0, caught.0
    );
    let cred = process.cred();
    let caps = &cred.caps;
    for (name, set) in [
        ("CapInh", caps.inheritable),
        ("CapPrm", caps.permitted),
        ("CapEff", caps.effective),
        ("CapBnd", caps.bounding),
        ("CapAmb", caps.ambient),
    ] {
        let _ = writeln!(out, "{name}:\t{:016x}", set.bits());
    }
    let _ = writeln!(out, "NoNewPrivs:\t{}", u8::from(process.no_new_privileges.load(Relaxed)));
}

fn stat(process: &Process) -> Result<Vec<u8>> {
    let usage = process.total_usage();
    let children = *process.child_usage.lock();
    let memory = maps::memory_stats(process);
    let (terminal, foreground) = tty::shown(process.sid());
    let nice = process.nice.load(Relaxed);
    let policy = process.leader().map(|thread| thread.policy()).unwrap_or_default();
    let text = format!(
        "{} ({}) {} {} {} {} {} {} 0 {} {} {} {} {} {} {} {} {} {} {} 0 {} {} {} 18446744073709551615 \
         1 1 0 0 0 0 0 0 0 0 0 0 17 0 {} {} 0 0 0 0 0 0 0 0 0 0 0\n",
        process.pid,
        process.comm(),
        process.state(),
        process.parent(),
        process.pgid(),
        process.sid(),
        terminal,
        foreground,
        usage.minor_faults,
        children.minor_faults,
        usage.major_faults,
        children.major_faults,
        usage.user_ns / TICK,
        usage.kernel_ns / TICK,
        children.user_ns / TICK,
        children.kernel_ns / TICK,
        if policy.priority() == 0 { 20 + nice } else { -1 - i32::from(policy.priority()) },
        nice,
        process.thread_count(),
        process.started / TICK,
        memory.mapped * 4096,
        memory.resident,
        policy.priority(),
        policy.kind(),
    );
    Ok(text.into_bytes())
}

fn statm(process: &Process) -> Result<Vec<u8>> {
    let memory = maps::memory_stats(process);
    let text = format!(
        "{} {} {} {} 0 {} 0\n",
        memory.mapped, memory.resident, memory.shared, memory.text, memory.data
    );
    Ok(text.into_bytes())
}

/// The limits in the order of their numbers.
const LIMITS: [(&str, &str); 16] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

fn limits(process: &Process) -> Result<Vec<u8>> {
    let limits = process.limits.lock().clone();
    let mut out =
        format!("{:<26}{:<21}{:<21}{:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    let shown =
        |value: u64| if value == u64::MAX { String::from("unlimited") } else { format!("{value}") };
    for (number, (name, unit)) in LIMITS.iter().enumerate() {
        let limit = limits.get(number as u32)?;
        let _ =
            writeln!(out, "{name:<26}{:<21}{:<21}{unit:<10}", shown(limit.soft), shown(limit.hard));
    }
    Ok(out.into_bytes())
}
