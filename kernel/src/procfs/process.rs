//! The files of one process, and of one thread.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general as abi;

use super::cpus::{list, set};
use super::settings::number;
use super::target::{Scope, Target, TargetRecords, TargetSetting, TargetText};
use super::text::{SpaceRecords, Spot, Text};
use super::{look_into, maps};
use crate::arch::cpu;
use crate::charge::Counted;
use crate::dev::tty;
use crate::devnum::major_and_minor;
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::inode::Kind;
use crate::fs::path::escaped;
use crate::fs::{lease, lock, mount};
use crate::proc::access::{self, By};
use crate::proc::limits::{RLIMIT_RSS, RLIMIT_SIGPENDING};
use crate::proc::{current_process, oom, table, Pid, Process, Thread};

const TICK: u64 = 10_000_000;
/// Groups that a record shows.
const GROUPS_AT_ONCE: usize = 256;

/// What a file or directory of a process or thread is.
pub(super) enum Part {
    Tasks,
    Fds,
    FdInfos,
    Text(TargetText),
    /// A text that grows with what programs do.
    Records(TargetRecords),
    /// Of the table of mounts: its changes can be waited for.
    Mounts(TargetRecords),
    Setting(&'static TargetSetting),
    /// A text of the address space that there is when it is opened.
    Space(SpaceRecords),
    /// A process's memory, at its addresses; what is there of its start; what its pages are.
    Memory,
    Arguments,
    Environment,
    AuxiliaryVector,
    PageMap,
    /// Which of a thread's next allocations is to fail.
    FailNth,
    Exe,
    Cwd,
    Root,
}

/// Something in the directory of a process or thread.
pub(super) struct PartOf {
    pub name: &'static str,
    pub part: Part,
    pub perm: u32,
    /// For processes alone that may look into the process.
    pub is_secret: bool,
    /// Not in the directory of the other.
    only: Option<Scope>,
}

impl PartOf {
    pub fn kind(&self) -> Kind {
        match self.part {
            Part::Tasks | Part::Fds | Part::FdInfos => Kind::Dir,
            Part::Exe | Part::Cwd | Part::Root => Kind::Symlink,
            _ => Kind::File,
        }
    }

    /// Whether every thread of the process may read and write it.
    pub fn is_own_threads(&self) -> bool {
        self.name == "comm"
    }

    const fn only(self, scope: Scope) -> PartOf {
        PartOf { only: Some(scope), ..self }
    }

    const fn perm(self, perm: u32) -> PartOf {
        PartOf { perm, ..self }
    }

    const fn secret(self) -> PartOf {
        PartOf { is_secret: true, ..self }
    }
}

const fn file(name: &'static str, part: Part) -> PartOf {
    PartOf { name, part, perm: 0o444, is_secret: false, only: None }
}

const fn dir(name: &'static str, part: Part) -> PartOf {
    file(name, part).perm(0o555)
}

const fn link(name: &'static str, part: Part) -> PartOf {
    file(name, part).perm(0o777)
}

const fn setting(name: &'static str, setting: &'static TargetSetting) -> PartOf {
    file(name, Part::Setting(setting)).perm(0o644)
}

static PARTS: &[PartOf] = &[
    dir("task", Part::Tasks).only(Scope::Process),
    dir("fd", Part::Fds).perm(0o500),
    dir("fdinfo", Part::FdInfos),
    file("environ", Part::Environment).perm(0o400),
    file("auxv", Part::AuxiliaryVector).perm(0o400),
    file("status", Part::Records(status)),
    file("personality", Part::Text(personality)).perm(0o400).secret(),
    file("limits", Part::Text(limits)),
    setting("comm", &COMM),
    file("cmdline", Part::Arguments),
    file("stat", Part::Text(stat)),
    file("statm", Part::Text(statm)),
    file("maps", Part::Space(maps::maps)),
    file("children", Part::Records(children)).only(Scope::Thread),
    file("mem", Part::Memory).perm(0o600),
    link("cwd", Part::Cwd),
    link("root", Part::Root),
    link("exe", Part::Exe),
    file("mounts", Part::Mounts(super::system::mounts)),
    file("mountinfo", Part::Mounts(mountinfo)),
    file("smaps", Part::Space(maps::smaps)),
    file("smaps_rollup", Part::Space(maps::smaps_rollup)),
    file("pagemap", Part::PageMap).perm(0o400),
    file("uvm", Part::Space(maps::uvm)),
    file("oom_score", Part::Text(oom_score)),
    setting("oom_adj", &OOM_ADJ),
    setting("oom_score_adj", &OOM_SCORE_ADJ),
    file("loginuid", Part::Text(|_| Ok(b"4294967295".to_vec()))),
    file("io", Part::Text(io)).perm(0o400).secret(),
    file("fail-nth", Part::FailNth).perm(0o644).only(Scope::Thread),
];

/// What is in the directory of a process or of a thread.
pub(super) fn parts(scope: Scope) -> impl Iterator<Item = &'static PartOf> {
    PARTS.iter().filter(move |part| part.only.is_none_or(|only| only == scope))
}

/// Of the first thread or another; a process names its own threads, no other one's.
static COMM: TargetSetting = TargetSetting {
    show: |target| Ok(format!("{}\n", comm(target)).into_bytes()),
    set: |target, text| {
        let thread = target.thread.as_ref().ok_or(ESRCH)?;
        if !Arc::ptr_eq(&thread.process, &current_process()) {
            return Err(EINVAL);
        }
        thread.set_comm(text.strip_suffix('\n').unwrap_or(text).as_bytes());
        Ok(())
    },
};

static OOM_SCORE_ADJ: TargetSetting = TargetSetting {
    show: |target| Ok(format!("{}\n", target.process.oom.get()).into_bytes()),
    set: |target, text| oom::adjust(&target.process, oom::Scale::Score, number(text)?),
};

/// The old name of that, with another scale.
static OOM_ADJ: TargetSetting = TargetSetting {
    show: |target| Ok(format!("{}\n", oom::shown_as_old(&target.process)).into_bytes()),
    set: |target, text| oom::adjust(&target.process, oom::Scale::Old, number(text)?),
};

fn oom_score(target: &Target) -> Result<Vec<u8>> {
    Ok(format!("{}\n", oom::score(&target.process)).into_bytes())
}

fn personality(target: &Target) -> Result<Vec<u8>> {
    Ok(format!("{:08x}\n", target.process.personality.load(Relaxed)).into_bytes())
}

fn comm(target: &Target) -> String {
    target.thread.as_ref().map_or_else(|| target.process.comm(), |thread| thread.comm())
}

/// A thread's children, those that have ended too, by their numbers. The first thread has those of
/// threads that have gone.
fn children(target: &Target, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    /// Children that are looked at with the table locked.
    const AT_ONCE: usize = 64;
    let (process, own) = (&target.process, target.pid());
    let has_gone = |tree: &table::Tree, maker: Pid| {
        tree.thread(maker).is_none_or(|maker| !Arc::ptr_eq(&maker.process, process))
    };
    let is_first = own == process.pid;
    let (found, last) = table::with(|tree| {
        let Some(node) = tree.node(process.pid) else { return (None, None) };
        let mut last = None;
        for &child in node.children.range(spot.key as Pid + 1..).take(AT_ONCE) {
            last = Some(child);
            let maker = tree.node(child).map_or(0, |node| node.process.made_by.load(Relaxed));
            if maker == own || is_first && has_gone(tree, maker) {
                return (Some(child), last);
            }
        }
        (None, last)
    });
    if let Some(child) = found {
        write!(out, "{child} ")?;
    }
    Ok(last.map(|last| last as u64))
}

fn mountinfo(target: &Target, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    let Some(mount) = mount::nth(spot.key as usize) else { return Ok(None) };
    if let Some(path) = mount.path_from(&target.process.fs()?.root()) {
        let (id, parent, path) = (mount.id(), mount.parent_id(), escaped(&path));
        let (major, minor) = major_and_minor(mount.dev());
        let (root, options) = (escaped(&mount.root_path()), mount.options());
        let (source, fs_type) = (escaped(mount.source().as_bytes()), mount.fs_type());
        let (mode, fs_options) = (mount.fs_mode(), mount.fs_options());
        write!(out, "{id} {parent} {major}:{minor} {root} {path} {options} - ")?;
        writeln!(out, "{fs_type} {source} {mode}{fs_options}")?;
    }
    Ok(Some(spot.key + 1))
}

/// What is known of an open file by its descriptor, which may be another file's by now: what all
/// have, then what its kind has.
pub(super) fn descriptor(
    process: &Process,
    fd: i32,
    spot: Spot,
    out: &mut Text,
) -> Result<Option<u64>> {
    /// What has a key with this bit is a lock, from the place on that the key has besides.
    const LOCKS: u64 = 1 << 63;
    let (file, on_exec) = look_into(process, |process| {
        let files = process.files()?;
        Ok((files.get_any(fd).map_err(|_| ENOENT)?, files.on_exec(fd).map_err(|_| ENOENT)?))
    })?;
    if spot.line == 0 {
        let closes = if on_exec == OnExec::Close { abi::O_CLOEXEC } else { 0 };
        let (flags, place) = (file.flags() | closes, file.place());
        let mount = place.mount.as_ref().map_or(0, |mount| mount.id());
        writeln!(out, "pos:\t{}\nflags:\t0{flags:o}", file.position())?;
        writeln!(out, "mnt_id:\t{mount}\nino:\t{}", place.inode.stat().ino)?;
        return Ok(Some(LOCKS));
    }
    if spot.key & LOCKS == 0 {
        return file.io().describe(spot.key, out);
    }
    let mut shown = |lock: &lock::Shown| {
        write!(out, "lock:\t{}: ", spot.line)?;
        super::system::show_lock(lock, out)
    };
    if let Some((place, lock)) = lock::of_file(&file, process.pid, spot.key & !LOCKS) {
        shown(&lock)?;
        return Ok(Some(LOCKS | (place + 1)));
    }
    lease::of_file(&file).iter().try_for_each(shown)?;
    Ok(Some(0))
}

fn state_name(state: char) -> &'static str {
    match state {
        'R' => "running",
        'T' => "stopped",
        't' => "tracing stop",
        'D' => "disk sleep",
        'Z' => "zombie",
        _ => "sleeping",
    }
}

/// The keys of `status`'s records: its head, groups from some on, and the rest.
const HEAD: u64 = 0;
const REST: u64 = u64::MAX;

fn status(target: &Target, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    match spot.key {
        HEAD => {
            head_of_status(target, out)?;
            Ok(Some(1))
        }
        REST => {
            rest_of_status(target, out)?;
            Ok(None)
        }
        first => {
            let cred = target.process.cred();
            let from = first as usize - 1;
            let groups = cred.groups.get(from..).unwrap_or_default();
            for group in groups.iter().take(GROUPS_AT_ONCE) {
                write!(out, "{group} ")?;
            }
            if groups.len() <= GROUPS_AT_ONCE {
                out.write_char('\n')?;
                return Ok(Some(REST));
            }
            Ok(Some(first + GROUPS_AT_ONCE as u64))
        }
    }
}

fn head_of_status(target: &Target, out: &mut Text) -> Result<()> {
    let process = &target.process;
    let (cred, state) = (process.cred(), target.state());
    // A name ends no line: a program can't write the lines below.
    writeln!(out, "Name:\t{}", comm(target).replace('\\', "\\\\").replace('\n', "\\n"))?;
    if let Ok(fs) = process.fs() {
        writeln!(out, "Umask:\t{:04o}", fs.umask())?;
    }
    writeln!(out, "State:\t{state} ({})", state_name(state))?;
    let (pid, parent, tid) = (process.pid, process.parent(), target.pid());
    writeln!(out, "Tgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\nPPid:\t{parent}")?;
    let tracer = target.thread.as_ref().map_or(0, |thread| thread.tracer());
    writeln!(out, "TracerPid:\t{tracer}")?;
    writeln!(out, "Uid:\t{}\t{}\t{}\t{}", cred.uid, cred.euid, cred.suid, cred.fsuid)?;
    writeln!(out, "Gid:\t{}\t{}\t{}\t{}", cred.gid, cred.egid, cred.sgid, cred.fsgid)?;
    let descriptors = process.files().map_or(0, |files| files.size());
    write!(out, "FDSize:\t{descriptors}\nGroups:\t")?;
    Ok(())
}

fn rest_of_status(target: &Target, out: &mut Text) -> Result<()> {
    let process = &target.process;
    let (pgid, sid) = (process.pgid(), process.sid());
    writeln!(out, "NStgid:\t{}\nNSpid:\t{}", process.pid, target.pid())?;
    writeln!(out, "NSpgid:\t{pgid}\nNSsid:\t{sid}")?;
    if process.space().is_some() {
        sizes(process, out)?;
    }
    let account = process.account();
    writeln!(out, "KernelKept:\t{:>8} kB", account.kept() / 1024)?;
    writeln!(out, "KernelQueued:\t{:>8} kB", account.queued() / 1024)?;
    writeln!(out, "KernelKeptOfUser:\t{:>8} kB", account.user().kept() / 1024)?;
    writeln!(out, "HeapOfUser:\t{:>8} kB", account.user().heap_pages() * 4)?;
    writeln!(out, "ObjectsMade:\t{:>8} kB", account.memory().used() * 4)?;
    writeln!(out, "ObjectsMadeOfUser:\t{:>8} kB", account.user().memory().used() * 4)?;
    writeln!(out, "Threads:\t{}", process.thread_count().max(1))?;
    let thread = target.thread.as_deref();
    signals(process, thread, out)?;
    writeln!(out, "Seccomp:\t0")?;
    let task = thread.and_then(|thread| thread.task());
    let cpus = task.map_or(cpu::online(), |task| task.allowed().intersection(cpu::online()));
    writeln!(out, "Cpus_allowed:\t{}\nCpus_allowed_list:\t{}", set(cpus), list(cpus))?;
    // Memory is all alike.
    writeln!(out, "Mems_allowed:\t1\nMems_allowed_list:\t0")?;
    let usage = thread.map(|thread| thread.usage()).unwrap_or_default();
    writeln!(out, "voluntary_ctxt_switches:\t{}", usage.waits)?;
    writeln!(out, "nonvoluntary_ctxt_switches:\t{}", usage.preemptions)?;
    Ok(())
}

/// Linux's lines about memory that are known here: no peaks are.
fn sizes(process: &Process, out: &mut Text) -> Result<()> {
    let memory = maps::memory_stats(process);
    for (name, pages) in [
        ("VmSize", memory.mapped),
        ("VmLck", memory.locked),
        ("VmPin", 0),
        ("VmRSS", memory.resident),
        ("RssAnon", memory.resident.saturating_sub(memory.of_objects)),
        ("RssFile", memory.of_objects.saturating_sub(memory.shared_memory)),
        ("RssShmem", memory.shared_memory),
        ("VmData", memory.data),
        ("VmStk", memory.stack),
        ("VmExe", memory.code),
        ("VmLib", memory.text.saturating_sub(memory.code)),
        ("VmPTE", memory.tables),
        ("VmSwap", memory.swapped),
    ] {
        writeln!(out, "{name}:\t{:>8} kB", pages * 4)?;
    }
    Ok(())
}

fn signals(process: &Process, thread: Option<&Thread>, out: &mut Text) -> Result<()> {
    let (pending, ignored, caught) = {
        let group = process.group.lock();
        let (ignored, caught) = group.actions.sets();
        (group.pending.set(), ignored, caught)
    };
    let blocked = thread.map_or(0, |thread| thread.mask().0);
    let own = thread.map_or(0, |thread| thread.pending.lock().set().0);
    let queued = process.account().user().count(Counted::Signals);
    let most = process.limit(RLIMIT_SIGPENDING);
    writeln!(out, "SigQ:\t{queued}/{most}\nSigPnd:\t{own:016x}\nShdPnd:\t{:016x}", pending.0)?;
    writeln!(out, "SigBlk:\t{blocked:016x}\nSigIgn:\t{:016x}", ignored.0)?;
    writeln!(out, "SigCgt:\t{:016x}", caught.0)?;
    let cred = process.cred();
    let caps = &cred.caps;
    for (name, set) in [
        ("CapInh", caps.inheritable),
        ("CapPrm", caps.permitted),
        ("CapEff", caps.effective),
        ("CapBnd", caps.bounding),
        ("CapAmb", caps.ambient),
    ] {
        writeln!(out, "{name}:\t{:016x}", set.bits())?;
    }
    writeln!(out, "NoNewPrivs:\t{}", u8::from(process.no_new_privileges.load(Relaxed)))?;
    Ok(())
}

/// What has gone through calls: bytes of reads and writes, and these calls; and what disks were
/// asked for. How much of what was written reaches a disk is not counted.
fn io(target: &Target) -> Result<Vec<u8>> {
    let usage = super::look_into(&target.process, |process| {
        let mut usage = target.usage();
        if target.scope == Scope::Process {
            usage.add(&process.child_usage.lock());
        }
        Ok(usage)
    })?;
    let io = usage.io;
    let text = format!(
        "rchar: {}\nwchar: {}\nsyscr: {}\nsyscw: {}\nread_bytes: {}\n",
        io.read, io.written, io.reads, io.writes, io.from_disks
    );
    Ok(text.into_bytes())
}

/// A flag of Linux's: forked, and no program run since.
const FORKED_ALONE: u32 = 0x40;

fn stat(target: &Target) -> Result<Vec<u8>> {
    let (process, scope) = (&target.process, target.scope);
    let usage = target.usage();
    let children = *process.child_usage.lock();
    let (terminal, foreground) = tty::shown(process.sid());
    let thread = target.thread.as_deref();
    let nice = thread.map_or_else(|| process.nice.load(Relaxed), |thread| thread.nice());
    let policy = thread.map(|thread| thread.policy()).unwrap_or_default();
    let (ignored, caught) = process.group.lock().actions.sets();
    let pending = thread.map_or(0, |thread| thread.pending.lock().set().0);
    let blocked = thread.map_or(0, |thread| thread.mask().0);
    let (mapped, resident) = maps::sizes(process);
    // Where things are helps an attacker.
    let judged = access::memory_of(process, By::Files);
    let may_look = judged.is_ok();
    let mm = judged.ok().flatten();
    let layout = mm.as_ref().map(|mm| mm.layout.lock().clone());
    let marks = layout.as_ref().map(|layout| layout.marks).unwrap_or_default();
    let heap = layout.as_ref().map_or(0, |layout| layout.heap_start);
    let code = if may_look { marks.code } else { (1, 1) };
    let ended = table::with(|tree| tree.node(process.pid).and_then(|node| node.ended));
    let threads = process.thread_count().max(1);
    let state = target.state();
    let waits = may_look && state != 'R' && (scope == Scope::Thread || threads < 2);
    let mut out = format!("{} ({}) {state}", target.pid(), comm(target));
    let mut put = |values: &[i128]| values.iter().for_each(|value| _ = write!(out, " {value}"));
    let rlimit = process.limit(RLIMIT_RSS);
    let first = |bits: u64| i128::from(bits & 0x7fff_ffff);
    put(&[process.parent(), process.pgid(), process.sid()].map(i128::from));
    let flags = if process.has_execed.load(Relaxed) { 0 } else { FORKED_ALONE };
    put(&[i128::from(terminal), i128::from(foreground), i128::from(flags)]);
    put(&[usage.minor_faults, children.minor_faults].map(i128::from));
    put(&[usage.major_faults, children.major_faults].map(i128::from));
    put(&[usage.user_ns, usage.kernel_ns, children.user_ns, children.kernel_ns]
        .map(|ns| i128::from(ns / TICK)));
    let real_time = i32::from(policy.priority());
    let priority = if real_time == 0 { 20 + nice } else { -1 - real_time };
    let started = thread.map_or(process.started, |thread| thread.started);
    put(&[i128::from(priority), i128::from(nice), threads as i128, 0]);
    put(&[started / TICK, mapped * 4096, resident, rlimit, code.0, code.1, marks.stack, 0, 0]
        .map(i128::from));
    put(&[
        first(pending),
        first(blocked),
        first(ignored.0),
        first(caught.0),
        i128::from(waits),
        0,
        0,
    ]);
    let signal = match scope {
        Scope::Thread if target.pid() != process.pid => -1,
        _ => process.exit_signal.load(Relaxed),
    };
    let cpu = thread.and_then(|thread| thread.task()).map_or(0, |task| task.cpu());
    put(&[i128::from(signal), cpu as i128, i128::from(real_time), i128::from(policy.kind())]);
    let (arguments, environment) = (marks.arguments, marks.environment);
    put(&[0, 0, 0, marks.data.0, marks.data.1, heap].map(i128::from));
    put(&[arguments.0, arguments.1, environment.0, environment.1].map(i128::from));
    put(&[i128::from(ended.filter(|_| may_look).map_or(0, |ended| ended.wait_word()))]);
    out.push('\n');
    Ok(out.into_bytes())
}

fn statm(target: &Target) -> Result<Vec<u8>> {
    let memory = maps::memory_stats(&target.process);
    let text = format!(
        "{} {} {} {} 0 {} 0\n",
        memory.mapped,
        memory.resident,
        memory.of_objects,
        memory.code,
        memory.data + memory.stack
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

fn limits(target: &Target) -> Result<Vec<u8>> {
    let limits = target.process.limits.lock().clone();
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
