//! The files of `/proc` that are about the whole system.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use super::net::Version;
use super::target::Target;
use super::text::{Spot, Text};
use super::{dir, link, memory, net, records, setting, settings, text, Member, Show};
use crate::arch::layout::MAP_LOWEST;
use crate::arch::{cpu, cpuinfo};
use crate::block;
use crate::dev::tty;
use crate::devnum::major_and_minor;
use crate::errno::Result;
use crate::fs::path::escaped;
use crate::fs::{file, lease, lock, mount, random, swap};
use crate::ipc::shm;
use crate::net::address::Kind;
use crate::proc;
use crate::proc::uts::VERSION;
use crate::sched::{self, load};
use crate::sync::Once;

const TICKS: u64 = 100;
const SECOND: u64 = 1_000_000_000;

pub(super) static ROOT: &[Member] = &[
    link("self", Show::SelfLink),
    link("thread-self", Show::ThreadSelf),
    link("mounts", Show::MountsLink),
    records("locks", locks),
    text("meminfo", memory::meminfo),
    text("vmstat", memory::vmstat),
    text("zoneinfo", memory::zoneinfo),
    text("stat", stat),
    text("uptime", uptime),
    text("loadavg", loadavg),
    text("cpuinfo", cpuinfo),
    text("version", version),
    text("filesystems", filesystems),
    text("cmdline", cmdline),
    text("devices", devices),
    text("interrupts", interrupts),
    text("partitions", block::partitions),
    text("diskstats", block::diskstats),
    text("swaps", swap::table),
    link("sysrq-trigger", Show::Trigger),
    link("audit", Show::Audit),
    link("inuse", Show::InUse),
    dir("sysvipc", SYSVIPC),
    dir("net", NET),
    dir("tty", TTY),
    dir("sys", &[dir("kernel", KERNEL), dir("vm", VM), dir("fs", FS)]),
];

static TTY: &[Member] = &[text("drivers", || {
    String::from(
        "/dev/tty             /dev/tty        5       0 system:/dev/tty\n\
         /dev/console         /dev/console    5       1 system:console\n\
         /dev/ptmx            /dev/ptmx       5       2 system\n\
         serial               /dev/ttyS       4      64 serial\n\
         pty_slave            /dev/pts      136 0-1048575 pty:slave\n\
         pty_master           /dev/ptm      128 0-1048575 pty:master\n",
    )
})];

static NET: &[Member] = &[
    records("unix", net::unix),
    records("tcp", |spot, out| net::inet(Kind::Stream, Version::Four, spot, out)),
    records("tcp6", |spot, out| net::inet(Kind::Stream, Version::Six, spot, out)),
    records("udp", |spot, out| net::inet(Kind::Datagram, Version::Four, spot, out)),
    records("udp6", |spot, out| net::inet(Kind::Datagram, Version::Six, spot, out)),
];

static KERNEL: &[Member] = &[
    text("osrelease", osrelease),
    text("ostype", || String::from("Linux\n")),
    text("version", || format!("{VERSION}\n")),
    setting("hostname", &settings::HOST_NAME),
    setting("domainname", &settings::DOMAIN_NAME),
    // No program's memory is ever written to a file.
    text("core_pattern", || String::from("\n")),
    text("core_uses_pid", || String::from("0\n")),
    text("tainted", || String::from("0\n")),
    setting("pid_max", &settings::NUMBERS),
    text("threads-max", || format!("{}\n", proc::table::limit())),
    text("ngroups_max", || String::from("65536\n")),
    text("cap_last_cap", || String::from("40\n")),
    text("randomize_va_space", || String::from("0\n")),
    text("sched_autogroup_enabled", || String::from("0\n")),
    setting("shmmax", &settings::SHMMAX),
    setting("shmall", &settings::SHMALL),
    setting("shmmni", &settings::SHMMNI),
    text("shm_rmid_forced", || String::from("0\n")),
    dir("random", RANDOM),
    dir("pty", PTY),
];

static PTY: &[Member] = &[
    text("max", || format!("{}\n", tty::ptys().1)),
    text("nr", || format!("{}\n", tty::ptys().0)),
];

static RANDOM: &[Member] = &[
    text("uuid", uuid),
    text("boot_id", boot_id),
    text("entropy_avail", || String::from("256\n")),
];

static VM: &[Member] = &[
    setting("overcommit_memory", &settings::OVERCOMMIT),
    setting("overcommit_ratio", &settings::OVERCOMMIT_RATIO),
    setting("overcommit_kbytes", &settings::OVERCOMMIT_KBYTES),
    setting("admin_reserve_kbytes", &settings::ADMIN_RESERVE),
    setting("user_reserve_kbytes", &settings::USER_RESERVE),
    setting("max_map_count", &settings::MOST_MAPPINGS),
    text("mmap_min_addr", || format!("{MAP_LOWEST}\n")),
    setting("min_free_kbytes", &settings::MIN_FREE),
    setting("anonmin", &settings::ANON_MIN),
    setting("anonmax", &settings::ANON_MAX),
    setting("filemin", &settings::FILE_MIN),
    setting("filemax", &settings::FILE_MAX),
    setting("execmin", &settings::EXEC_MIN),
    setting("execmax", &settings::EXEC_MAX),
    setting("loan_bytes", &settings::LOAN),
    setting("pipe_loan_bytes", &settings::PIPE_LOAN),
    setting("receive_bytes", &settings::RECEIVE),
    setting("compressed_percent", &settings::ZSWAP),
    link("drop_caches", Show::DropCaches),
    setting("uvm_neighbours", &settings::NEIGHBOURS),
];

static FS: &[Member] = &[
    setting("file-max", &settings::FILE_MAX_OPEN),
    setting("nr_open", &settings::NR_OPEN),
    setting("pipe-max-size", &settings::PIPE_LARGEST),
    setting("pipe-user-pages-soft", &settings::PIPE_SOFT),
    setting("pipe-user-pages-hard", &settings::PIPE_HARD),
    setting("lease-break-time", &settings::LEASE_BREAK),
    text("file-nr", || format!("{}\t0\t{}\n", file::counts().0, file::counts().1)),
];

/// `/proc/locks`: what is held, with the leases behind, a lock a record. The key names the file,
/// and how many of its locks were shown.
fn locks(spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    const PIECES: u64 = 1 << 12;
    const INODES: u64 = 1 << 35;
    const LEASES: u64 = 1 << 63;
    let (is_lease, at) = (spot.key & LEASES != 0, spot.key & !LEASES);
    let (piece, file) = (at % PIECES, (at / PIECES / INODES, at / PIECES % INODES));
    let mut shown = Vec::new();
    let next = match is_lease {
        true => lease::next(file, piece as usize, &mut shown)?,
        false => lock::next(file, piece as usize, &mut shown)?,
    };
    let next = next.map(|(id, is_more)| match is_more {
        true => (id, if id == file { piece + 1 } else { 1 }),
        false => ((id.0, id.1 + 1), 0),
    });
    for lock in &shown {
        // A waiter has the number of what it waits for.
        write!(out, "{}: {}", spot.line + 1, if lock.waits { "-> " } else { "" })?;
        show_lock(lock, out)?;
    }
    let key = |((dev, ino), piece): ((u64, u64), u64)| (dev * INODES + ino) * PIECES + piece;
    let next = match next {
        Some(at) if is_lease => Some(key(at) | LEASES),
        Some(at) => Some(key(at)),
        None if is_lease => None,
        None => Some(LEASES),
    };
    Ok(next.filter(|&next| next > spot.key))
}

/// A lock or lease, behind its number.
pub(super) fn show_lock(lock: &lock::Shown, out: &mut Text) -> Result<()> {
    let (major, minor) = major_and_minor(lock.file.0);
    write!(out, "{} {} {} ", lock.kind, lock.mode, lock.pid)?;
    write!(out, "{major:02x}:{minor:02x}:{} ", lock.file.1)?;
    match lock.range {
        Some((start, end)) if end < lock::END => writeln!(out, "{start} {}", end - 1)?,
        Some((start, _)) => writeln!(out, "{start} EOF")?,
        None => writeln!(out, "0 EOF")?,
    }
    Ok(())
}

/// `/proc/sysvipc`.
static SYSVIPC: &[Member] = &[records("shm", segments)];

fn segments(spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    if spot.line == 0 {
        out.write_str(
            "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
             atime      dtime      ctime                   rss                  swap\n",
        )?;
        return Ok(Some(0));
    }
    let Some((slot, info)) = shm::next(spot.key as usize) else { return Ok(None) };
    let owner = &info.owner;
    writeln!(
        out,
        "{:10} {:10}  {:4o} {:21} {:5} {:5}  {:5} {:5} {:5} {:5} {:5} {:10} {:10} {:10} {:21} {:21}",
        info.key,
        info.id,
        owner.mode,
        info.size,
        info.creator,
        info.last,
        info.attachments,
        owner.uid,
        owner.gid,
        owner.creator_uid,
        owner.creator_gid,
        info.attached,
        info.detached,
        info.changed,
        info.resident * 4096,
        info.swapped * 4096,
    )?;
    Ok(Some(slot as u64 + 1))
}

fn interrupts() -> String {
    let mut out = String::from("     ");
    for cpu in 0..cpu::count() {
        let _ = write!(out, "{:>11}", format!("CPU{cpu}"));
    }
    out.push('\n');
    crate::arch::irq::list(|label, taken, name| {
        let _ = write!(out, "{label:>4}:");
        taken.iter().for_each(|taken| {
            let _ = write!(out, "{taken:>11}");
        });
        let _ = writeln!(out, "  {name}");
    });
    out
}

fn osrelease() -> String {
    format!("{}\n", crate::print::RELEASE)
}

fn version() -> String {
    format!("Linux version {} (uvm) {VERSION}\n", crate::print::RELEASE)
}

/// What a CPU has done, in ticks: a line of `stat` after the CPU's name.
fn stat_line(times: sched::Times) -> String {
    let [user, system, idle] =
        [times.user, times.kernel, times.idle].map(|ns| ns / (SECOND / TICKS));
    format!("{user} 0 {system} {idle} 0 0 0 0 0 0\n")
}

fn sum(times: impl Iterator<Item = sched::Times>) -> sched::Times {
    times.fold(sched::Times::default(), |sum, one| sched::Times {
        user: sum.user + one.user,
        kernel: sum.kernel + one.kernel,
        idle: sum.idle + one.idle,
    })
}

fn stat() -> String {
    let mut out = format!("cpu  {}", stat_line(sum((0..cpu::count()).map(sched::times))));
    for cpu in 0..cpu::count() {
        let _ = write!(out, "cpu{cpu} {}", stat_line(sched::times(cpu)));
    }
    let boot = sched::wall().saturating_sub(sched::now()) / SECOND;
    let mut interrupts = 0;
    crate::arch::irq::list(|_, taken, _| interrupts += taken.iter().sum::<u64>());
    let _ = write!(
        out,
        "intr {interrupts}\nctxt {}\nbtime {boot}\nprocesses {}\nprocs_running {}\nprocs_blocked {}\n",
        sched::switches(),
        proc::table::made(),
        load::running(),
        load::uninterruptible()
    );
    out
}

fn uptime() -> String {
    let idle = sum((0..cpu::count()).map(sched::times)).idle / (SECOND / TICKS);
    let up = sched::now() / (SECOND / 100);
    format!("{}.{:02} {}.{:02}\n", up / 100, up % 100, idle / 100, idle % 100)
}

fn loadavg() -> String {
    let mut out = String::new();
    for average in load::averages() {
        // Rounded to hundredths.
        let rounded = average + load::SCALE / 200;
        let _ = write!(
            out,
            "{}.{:02} ",
            rounded / load::SCALE,
            rounded % load::SCALE * 100 / load::SCALE
        );
    }
    let (threads, last) = proc::table::load();
    let _ = writeln!(out, "{}/{threads} {last}", load::running());
    out
}

fn cpuinfo() -> String {
    let mut out = String::new();
    for cpu in 0..cpu::count() {
        let _ = cpuinfo::put(cpu, &mut out);
    }
    out
}

/// Those that `mount` knows.
fn filesystems() -> String {
    String::from(
        "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tdevtmpfs\nnodev\tdevpts\nnodev\tramfs\nnodev\t9p\n\text3\n\text2\n\text4\n",
    )
}

fn cmdline() -> String {
    format!("{}\n", proc::init::command_line())
}

fn devices() -> String {
    String::from("Character devices:\n  1 mem\n  4 ttyS\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n 29 fb\n128 ptm\n136 pts\n\nBlock devices:\n254 virtblk\n")
}

/// A number of this boot.
fn boot_id() -> String {
    static ID: Once<String> = Once::new();
    ID.call_once(uuid).clone()
}

fn uuid() -> String {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut out = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let _ = write!(out, "{byte:02x}");
    }
    out.push('\n');
    out
}

/// The table of mounts as `/proc/PID/mounts` shows it.
pub(super) fn mounts(target: &Target, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
    let Some(mount) = mount::nth(spot.key as usize) else { return Ok(None) };
    if let Some(path) = mount.path_from(&target.process.fs()?.root()) {
        let (source, path) = (escaped(mount.source().as_bytes()), escaped(&path));
        let (fs_type, fs_options) = (mount.fs_type(), mount.fs_options());
        let options = mount.options_anywhere();
        writeln!(out, "{source} {path} {fs_type} {options}{fs_options} 0 0")?;
    }
    Ok(Some(spot.key + 1))
}

/// Whether all that the VM system has counted is right, or what isn't.
pub(super) fn audit() -> String {
    match crate::vm::audit() {
        Ok(()) => String::from("clean\n"),
        Err(wrong) => format!("wrong: {wrong}\n"),
    }
}
