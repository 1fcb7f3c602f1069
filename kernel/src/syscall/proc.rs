//! System calls on processes and threads: their making, their end, their relations and identities.

use alloc::sync::Arc;

use super::{calls, Calls};
use crate::arch::UserRegs;
use crate::cred::caps::Caps;
use crate::cred::{Cred, Groups, GROUPS_MAX};
use crate::errno::{Result, EAGAIN, EBADF, ECHILD, EINVAL, EPERM, ESRCH};
use crate::proc::access::{self, change_cred, By};
use crate::proc::clone::{self, Flags, Request};
use crate::proc::curproc;
use crate::proc::limits::{Limit, NR_OPEN, RLIMIT_NOFILE};
use crate::proc::pidfd::PidFd;
use crate::proc::process::ExitStatus;
use crate::proc::usage::Usage;
use crate::proc::wait::{self, Options, Report, Which};
use crate::proc::{
    current_process, current_thread, exec, exit, futex, robust, signal, table, Pid, Process,
};
use crate::syscall::path_args;
use crate::time::{Timeval, CLOCK_TICKS};
use crate::{sched, user};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{self as abi, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};

pub const CALLS: Calls = calls! {
    __NR_fork => fork[regs],
    __NR_vfork => vfork[regs],
    __NR_clone => clone_old[regs],
    __NR_clone3 => clone3[regs],
    __NR_unshare => unshare[1],
    __NR_execve => execve[regs],
    __NR_execveat => execveat[regs],
    __NR_exit => exit_thread[1],
    __NR_exit_group => exit_group[1],
    __NR_wait4 => wait4[4],
    __NR_waitid => waitid[5],
    __NR_getpid => getpid[0],
    __NR_gettid => gettid[0],
    __NR_getppid => getppid[0],
    __NR_getpgid => getpgid[1],
    __NR_getpgrp => getpgrp[0],
    __NR_setpgid => setpgid[2],
    __NR_getsid => getsid[1],
    __NR_setsid => setsid[0],
    __NR_set_tid_address => set_tid_address[1],
    __NR_set_robust_list => set_robust_list[2],
    __NR_get_robust_list => get_robust_list[3],
    __NR_futex => futex::futex[6],
    __NR_getuid => getuid[0],
    __NR_geteuid => geteuid[0],
    __NR_getgid => getgid[0],
    __NR_getegid => getegid[0],
    __NR_setuid => setuid[1],
    __NR_setgid => setgid[1],
    __NR_setreuid => setreuid[2],
    __NR_setregid => setregid[2],
    __NR_setresuid => setresuid[3],
    __NR_setresgid => setresgid[3],
    __NR_getresuid => getresuid[3],
    __NR_getresgid => getresgid[3],
    __NR_setfsuid => setfsuid[1],
    __NR_setfsgid => setfsgid[1],
    __NR_getgroups => getgroups[2],
    __NR_setgroups => setgroups[2],
    __NR_getrlimit => getrlimit[2],
    __NR_setrlimit => setrlimit[2],
    __NR_prlimit64 => prlimit64[4],
    __NR_getrusage => getrusage[2],
    __NR_times => times[1],
};

fn fork(regs: &mut UserRegs) -> Result<Pid> {
    clone::clone(regs, &Request::fork())
}

fn vfork(regs: &mut UserRegs) -> Result<Pid> {
    clone::clone(regs, &Request { flags: Flags::VM | Flags::VFORK, ..Request::fork() })
}

/// `clone` takes the descriptor's place from the argument that is the thread number's otherwise.
fn clone_old(regs: &mut UserRegs) -> Result<Pid> {
    const SIGNAL_BITS: u64 = 0xff;
    const DETACHED: Flags = Flags::from_bits_retain(0x40_0000);
    let request = Request {
        flags: Flags::from_bits_retain(regs.argument(0) & 0xffff_ffff & !SIGNAL_BITS),
        exit_signal: (regs.argument(0) & SIGNAL_BITS) as i32,
        stack: regs.argument(1),
        parent_tid: regs.argument(2),
        child_tid: regs.argument(3),
        tls: regs.argument(4),
        pidfd: regs.argument(2),
    };
    let number_twice = Flags::PIDFD | Flags::PARENT_SETTID;
    if request.flags.contains(number_twice) || request.flags.contains(Flags::PIDFD | DETACHED) {
        return Err(EINVAL);
    }
    clone::clone(regs, &request)
}

fn unshare(flags: u64) -> Result<()> {
    exec::unshare(&current_thread(), Flags::from_bits_retain(flags & 0xffff_ffff))
}

/// `struct clone_args`, first version.
#[derive(Clone, Copy, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

fn clone3(regs: &mut UserRegs) -> Result<Pid> {
    const FIRST: usize = 64;
    let size = regs.argument(1) as usize;
    if !(FIRST..=4096).contains(&size) {
        return Err(if size < FIRST { EINVAL } else { crate::errno::E2BIG });
    }
    let mut bytes = [0u8; core::mem::size_of::<CloneArgs>()];
    let known = size.min(bytes.len());
    user::check_zeroes(regs.argument(0).saturating_add(known as u64), size - known)?;
    user::copy_in(&mut bytes[..known], regs.argument(0))?;
    let args: CloneArgs = zerocopy::transmute!(bytes);
    let both = Flags::PIDFD | Flags::PARENT_SETTID;
    if args.pidfd == args.parent_tid && Flags::from_bits_retain(args.flags).contains(both) {
        return Err(EINVAL);
    }
    let stack_half = (args.stack == 0) != (args.stack_size == 0);
    if stack_half || args.set_tid_size != 0 || args.exit_signal > 64 || args.flags & 0xff != 0 {
        return Err(EINVAL);
    }
    let request = Request {
        flags: Flags::from_bits_retain(args.flags),
        exit_signal: args.exit_signal as i32,
        stack: args.stack.wrapping_add(args.stack_size),
        parent_tid: args.parent_tid,
        child_tid: args.child_tid,
        tls: args.tls,
        pidfd: args.pidfd,
    };
    clone::clone(regs, &request)
}

fn execve(regs: &mut UserRegs) -> Result<u64> {
    let path = path_args::path(regs.argument(0))?;
    let arguments = exec::read_arguments(regs.argument(1), regs.argument(2))?;
    let file = exec::open(&path)?;
    exec::exec(regs, file, &path, arguments).map(|()| 0)
}

fn execveat(regs: &mut UserRegs) -> Result<u64> {
    let path = path_args::path(regs.argument(1))?;
    let arguments = exec::read_arguments(regs.argument(2), regs.argument(3))?;
    let (dir, flags) = (regs.argument(0) as i32, regs.argument(4) as u32);
    path_args::only(flags, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)?;
    let file = if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
        let place = curproc::files()?.get_any(dir)?.place().clone();
        exec::open_program(place)?
    } else {
        exec::open_from(&path_args::start(dir, &path)?, &path, path_args::follow_of(flags))?
    };
    let name = match path.first() {
        Some(b'/') => path,
        _ if dir == path_args::CWD => path,
        None => alloc::format!("/dev/fd/{dir}").into_bytes(),
        Some(_) => [alloc::format!("/dev/fd/{dir}/").as_bytes(), &path].concat(),
    };
    exec::exec(regs, file, &name, arguments).map(|()| 0)
}

fn exit_thread(code: i32) -> Result<u64> {
    exit::exit_thread(code as u8)
}

fn exit_group(code: i32) -> Result<u64> {
    exit::exit_group(ExitStatus::Code(code as u8))
}

fn wait4(pid: Pid, status: u64, options: u32, usage: u64) -> Result<Pid> {
    let known = Options::NOHANG
        | Options::STOPPED
        | Options::CONTINUED
        | Options::NOTHREAD
        | Options::ALL
        | Options::CLONE;
    let options =
        Options::from_bits(options).filter(|&given| known.contains(given)).ok_or(EINVAL)?;
    let which = match pid {
        -1 => Which::Any,
        0 => Which::Group(current_process().pgid()),
        1.. => Which::Pid(pid),
        Pid::MIN => return Err(ESRCH),
        _ => Which::Group(-pid),
    };
    let Some(report) = wait::wait(which, options | Options::EXITED)? else { return Ok(0) };
    if status != 0 {
        user::put(status, &report.wait_word())?;
    }
    if usage != 0 {
        user::put(usage, &Rusage::from(&report.usage))?;
    }
    Ok(report.pid)
}

fn waitid(kind: u32, id: Pid, info: u64, options: u32, usage: u64) -> Result<()> {
    let options = Options::from_bits(options).ok_or(EINVAL)?;
    if !options.intersects(Options::EXITED | Options::STOPPED | Options::CONTINUED) {
        return Err(EINVAL);
    }
    let mut may_wait = true;
    let which = match (kind, id) {
        (abi::P_ALL, _) => Which::Any,
        (abi::P_PID, 1..) => Which::Pid(id),
        (abi::P_PGID, 0) => Which::Group(current_process().pgid()),
        (abi::P_PGID, 1..) => Which::Group(id),
        (abi::P_PIDFD, 0..) => {
            let file = curproc::file(id)?;
            may_wait = !file.is_nonblocking();
            let process = PidFd::of_file(&file).ok_or(EBADF)?.process().map_err(|_| ECHILD)?;
            Which::Process(process.pid, process.started)
        }
        _ => return Err(EINVAL),
    };
    let asks = options | if may_wait { Options::empty() } else { Options::NOHANG };
    let found = wait::wait(which, asks)?;
    if found.is_none() && !options.contains(Options::NOHANG) {
        return Err(EAGAIN);
    }
    if let (Some(report), true) = (&found, usage != 0) {
        user::put(usage, &Rusage::from(&report.usage))?;
    }
    if info != 0 {
        user::copy_out(info, &wait_info(found.as_ref()))?;
    }
    Ok(())
}

/// The `siginfo_t` of `waitid`: signal, code, pid, uid, status; all zero when nothing was found.
fn wait_info(report: Option<&Report>) -> [u8; 128] {
    let Some(report) = report else { return [0; 128] };
    let (code, status) = report.info();
    let detail =
        signal::Detail::Child { pid: report.pid, uid: report.uid, status, utime: 0, stime: 0 };
    signal::SigInfo { signal: signal::SIGCHLD, code, detail }.to_bytes()
}

fn getpid() -> Result<Pid> {
    Ok(current_process().pid)
}

fn gettid() -> Result<Pid> {
    Ok(current_thread().tid())
}

fn getppid() -> Result<Pid> {
    Ok(current_process().parent())
}

/// A process by number, where 0 is the caller.
fn process_or_self(pid: Pid) -> Result<Arc<Process>> {
    match pid {
        0 => Ok(current_process().clone()),
        _ => table::process(pid).ok_or(ESRCH),
    }
}

fn getpgid(pid: Pid) -> Result<Pid> {
    Ok(process_or_self(pid)?.pgid())
}

fn getpgrp() -> Result<Pid> {
    Ok(current_process().pgid())
}

fn setpgid(pid: Pid, pgid: Pid) -> Result<()> {
    if pgid < 0 {
        return Err(EINVAL);
    }
    let caller = &current_process();
    let pid = if pid == 0 { caller.pid } else { pid };
    table::set_group(caller, pid, if pgid == 0 { pid } else { pgid })
}

fn getsid(pid: Pid) -> Result<Pid> {
    Ok(process_or_self(pid)?.sid())
}

fn setsid() -> Result<Pid> {
    table::new_session(&current_process())
}

fn set_tid_address(at: u64) -> Result<Pid> {
    let thread = current_thread();
    thread.clear_child_tid.store(at, Ordering::Relaxed);
    Ok(thread.tid())
}

fn set_robust_list(head: u64, len: u64) -> Result<()> {
    if len != robust::HEAD_SIZE {
        return Err(EINVAL);
    }
    current_thread().robust_list.store(head, Ordering::Relaxed);
    Ok(())
}

fn get_robust_list(tid: Pid, head: u64, len: u64) -> Result<()> {
    let thread =
        if tid == 0 { current_thread().clone() } else { table::thread(tid).ok_or(ESRCH)? };
    let list = || Ok(thread.robust_list.load(Ordering::Relaxed));
    let list = access::look_into(&thread.process, By::Real, list)?;
    user::put(len, &robust::HEAD_SIZE)?;
    user::put(head, &list)
}

fn getuid() -> Result<u32> {
    Ok(current_process().cred.lock().uid)
}

fn geteuid() -> Result<u32> {
    Ok(current_process().cred.lock().euid)
}

fn getgid() -> Result<u32> {
    Ok(current_process().cred.lock().gid)
}

fn getegid() -> Result<u32> {
    Ok(current_process().cred.lock().egid)
}

/// "Leave it as it is."
const KEEP: u32 = u32::MAX;

/// Changes user ids; the one of files follows the effective one, and the capabilities follow all of
/// them.
fn change_uids(change: impl FnOnce(&mut Cred) -> Result<()>) -> Result<()> {
    change_cred(|cred| {
        let before = cred.clone();
        change(cred)?;
        cred.fsuid = cred.euid;
        cred.follow_ids(&before);
        Ok(())
    })
}

fn setuid(uid: u32) -> Result<()> {
    if uid == KEEP {
        return Err(EINVAL);
    }
    change_uids(|cred| {
        if cred.has(Caps::SETUID) {
            (cred.uid, cred.suid) = (uid, uid);
        } else if uid != cred.uid && uid != cred.suid {
            return Err(EPERM);
        }
        cred.euid = uid;
        Ok(())
    })
}

fn setgid(gid: u32) -> Result<()> {
    if gid == KEEP {
        return Err(EINVAL);
    }
    change_cred(|cred| {
        if cred.has(Caps::SETGID) {
            (cred.gid, cred.sgid) = (gid, gid);
        } else if gid != cred.gid && gid != cred.sgid {
            return Err(EPERM);
        }
        (cred.egid, cred.fsgid) = (gid, gid);
        Ok(())
    })
}

/// One triple of real, effective and saved id after a change.
fn triple(have: [u32; 3], want: [u32; 3]) -> [u32; 3] {
    core::array::from_fn(|i| if want[i] == KEEP { have[i] } else { want[i] })
}

/// Without the capability a process may only shuffle what it has.
fn check_shuffle(cred: &Cred, cap: Caps, have: &[u32], want: &[u32]) -> Result<()> {
    if want.iter().all(|id| *id == KEEP || have.contains(id)) {
        Ok(())
    } else {
        cred.need(cap)
    }
}

/// Whether a call that sets three ids leaves all as they are, the file system's too.
fn changes_nothing(have: [u32; 3], want: [u32; 3], fs_id: u32) -> bool {
    triple(have, want) == have && (want[1] == KEEP || want[1] == fs_id)
}

fn setresuid(real: u32, effective: u32, saved: u32) -> Result<()> {
    let cred = current_process().cred();
    let want = [real, effective, saved];
    if changes_nothing([cred.uid, cred.euid, cred.suid], want, cred.fsuid) {
        return Ok(());
    }
    change_uids(|cred| {
        let have = [cred.uid, cred.euid, cred.suid];
        check_shuffle(cred, Caps::SETUID, &have, &want)?;
        [cred.uid, cred.euid, cred.suid] = triple(have, want);
        Ok(())
    })
}

fn setresgid(real: u32, effective: u32, saved: u32) -> Result<()> {
    change_cred(|cred| {
        let (have, want) = ([cred.gid, cred.egid, cred.sgid], [real, effective, saved]);
        check_shuffle(cred, Caps::SETGID, &have, &want)?;
        if !changes_nothing(have, want, cred.fsgid) {
            [cred.gid, cred.egid, cred.sgid] = triple(have, want);
            cred.fsgid = cred.egid;
        }
        Ok(())
    })
}

/// One triple after `setreuid` or `setregid`: the saved id follows the effective one if the real
/// was named or the effective becomes other than the old real one.
fn pair(have: [u32; 3], real: u32, effective: u32) -> [u32; 3] {
    let mut ids = triple(have, [real, effective, KEEP]);
    if real != KEEP || effective != KEEP && effective != have[0] {
        ids[2] = ids[1];
    }
    ids
}

fn setreuid(real: u32, effective: u32) -> Result<()> {
    change_uids(|cred| {
        let have = [cred.uid, cred.euid, cred.suid];
        check_shuffle(cred, Caps::SETUID, &have[..2], &[real])?;
        check_shuffle(cred, Caps::SETUID, &have, &[effective])?;
        [cred.uid, cred.euid, cred.suid] = pair(have, real, effective);
        Ok(())
    })
}

fn setregid(real: u32, effective: u32) -> Result<()> {
    change_cred(|cred| {
        let have = [cred.gid, cred.egid, cred.sgid];
        check_shuffle(cred, Caps::SETGID, &have[..2], &[real])?;
        check_shuffle(cred, Caps::SETGID, &have, &[effective])?;
        [cred.gid, cred.egid, cred.sgid] = pair(have, real, effective);
        cred.fsgid = cred.egid;
        Ok(())
    })
}

fn put_ids(at: [u64; 3], ids: [u32; 3]) -> Result<()> {
    at.iter().zip(ids).try_for_each(|(&at, id)| user::put(at, &id))
}

fn getresuid(real: u64, effective: u64, saved: u64) -> Result<()> {
    let cred = current_process().cred();
    put_ids([real, effective, saved], [cred.uid, cred.euid, cred.suid])
}

fn getresgid(real: u64, effective: u64, saved: u64) -> Result<()> {
    let cred = current_process().cred();
    put_ids([real, effective, saved], [cred.gid, cred.egid, cred.sgid])
}

fn setfsuid(uid: u32) -> Result<u32> {
    let before = current_process().cred().fsuid;
    let _ = change_cred(|cred| {
        let own = [cred.uid, cred.euid, cred.suid, cred.fsuid].contains(&uid);
        if uid != KEEP && (own || cred.has(Caps::SETUID)) {
            let before = cred.clone();
            cred.fsuid = uid;
            cred.follow_fsuid(&before);
        }
        Ok(())
    });
    Ok(before)
}

fn setfsgid(gid: u32) -> Result<u32> {
    let before = current_process().cred().fsgid;
    let _ = change_cred(|cred| {
        let own = [cred.gid, cred.egid, cred.sgid, cred.fsgid].contains(&gid);
        if gid != KEEP && (own || cred.has(Caps::SETGID)) {
            cred.fsgid = gid;
        }
        Ok(())
    });
    Ok(before)
}

fn getgroups(size: i32, list: u64) -> Result<usize> {
    let groups = current_process().cred().groups.clone();
    if size < 0 || size != 0 && (size as usize) < groups.len() {
        return Err(EINVAL);
    }
    if size != 0 {
        for (i, group) in groups.iter().enumerate() {
            user::put(list.wrapping_add(4 * i as u64), group)?;
        }
    }
    Ok(groups.len())
}

fn setgroups(size: i32, list: u64) -> Result<()> {
    let own = current_process().cred();
    own.need(Caps::SETGID)?;
    let size = usize::try_from(size).ok().filter(|&size| size <= GROUPS_MAX).ok_or(EINVAL)?;
    let groups = Groups::read(own.uid, size, |i| user::get(list.wrapping_add(4 * i as u64)))?;
    change_cred(|cred| {
        cred.groups = Arc::new(groups);
        Ok(())
    })
}

fn getrlimit(resource: u32, at: u64) -> Result<()> {
    let limit = current_process().limits.lock().get(resource)?;
    user::put(at, &limit)
}

fn setrlimit(resource: u32, at: u64) -> Result<()> {
    let limit: Limit = user::get(at)?;
    set_limit(&current_process(), resource, limit)
}

fn set_limit(process: &Process, resource: u32, limit: Limit) -> Result<()> {
    let may_raise = current_process().cred().has(Caps::SYS_RESOURCE);
    process.set_limit(resource, limit, |before| {
        let too_many = resource == RLIMIT_NOFILE && limit.hard > NR_OPEN.load(Ordering::Relaxed);
        if limit.soft > limit.hard {
            Err(EINVAL)
        } else if limit.hard > before.hard && !may_raise || too_many {
            Err(EPERM)
        } else {
            Ok(())
        }
    })
}

fn prlimit64(pid: Pid, resource: u32, new: u64, old: u64) -> Result<()> {
    let process = process_or_self(pid)?;
    let new: Option<Limit> = if new == 0 { None } else { Some(user::get(new)?) };
    access::may_limit(&process)?;
    let before = process.limits.lock().get(resource)?;
    if let Some(limit) = new {
        set_limit(&process, resource, limit)?;
    }
    if old != 0 {
        user::put(old, &before)?;
    }
    Ok(())
}

/// `struct rusage`.
#[derive(Clone, Copy, Default, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Rusage {
    user: [i64; 2],
    kernel: [i64; 2],
    max_resident_kib: i64,
    unused_sizes: [i64; 3],
    minor_faults: i64,
    major_faults: i64,
    rest: [i64; 6],
    waits: i64,
    preemptions: i64,
}

impl From<&Usage> for Rusage {
    fn from(usage: &Usage) -> Rusage {
        let pair = |ns| {
            let time = Timeval::from_nanos(ns);
            [time.sec, time.usec]
        };
        Rusage {
            user: pair(usage.user_ns),
            kernel: pair(usage.kernel_ns),
            max_resident_kib: usage.max_resident as i64 * 4,
            minor_faults: usage.minor_faults as i64,
            major_faults: usage.major_faults as i64,
            waits: usage.waits as i64,
            preemptions: usage.preemptions as i64,
            ..Rusage::default()
        }
    }
}

fn getrusage(who: i32, at: u64) -> Result<()> {
    let process = current_process();
    let mut usage = match who {
        0 => process.total_usage(),
        -1 => *process.child_usage.lock(),
        1 => current_thread().usage(),
        _ => return Err(EINVAL),
    };
    if who >= 0 {
        if let Some(space) = current_thread().space() {
            usage.max_resident = usage.max_resident.max(crate::vm::resident_pages(&space));
        }
    }
    user::put(at, &Rusage::from(&usage))
}

fn times(at: u64) -> Result<u64> {
    let ticks = |ns: u64| ns / (1_000_000_000 / CLOCK_TICKS);
    if at != 0 {
        let process = current_process();
        let own = process.total_usage();
        let children = *process.child_usage.lock();
        let list = [own.user_ns, own.kernel_ns, children.user_ns, children.kernel_ns].map(ticks);
        user::put(at, &list)?;
    }
    Ok(ticks(sched::now()))
}
