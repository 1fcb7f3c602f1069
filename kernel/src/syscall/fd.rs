//! Descriptors: duplicates, flags, locks, and the calls that make files without a name.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::path_args::only;
use super::{calls, Calls};
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::fs::lease;
use crate::fs::lock::{self, Mode, Owner, Range};
use crate::fs::path::Place;
use crate::fs::pipe::{self, Pipe};
use crate::fs::{access, eventfd, random, signals, tmpfs::TmpNode};
use crate::proc::limits::RLIMIT_NOFILE;
use crate::proc::{self, curproc};
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_dup => dup[1], __NR_dup2 => dup2[2], __NR_dup3 => dup3[3], __NR_fcntl => fcntl[3],
    __NR_flock => flock[2],
    __NR_pipe => pipe[1], __NR_pipe2 => pipe2[2],
    __NR_memfd_create => memfd_create[2],
    __NR_eventfd => eventfd[1], __NR_eventfd2 => eventfd2[2],
    __NR_getrandom => getrandom[3],
};

fn dup(fd: i32) -> Result<i32> {
    let files = curproc::files()?;
    files.insert(files.get_any(fd)?, OnExec::Keep)
}

fn dup2(old: i32, new: i32) -> Result<i32> {
    if old == new {
        curproc::files()?.get_any(old)?;
        return Ok(new);
    }
    dup3(old, new, 0)
}

fn dup3(old: i32, new: i32, flags: u32) -> Result<i32> {
    only(flags, abi::O_CLOEXEC)?;
    if old == new {
        return Err(EINVAL);
    }
    let files = curproc::files()?;
    let replaced = files.replace(new, files.get_any(old)?, OnExec::from_flags(flags))?;
    if let Some(file) = replaced {
        lock::closed_descriptor(&file);
    }
    Ok(new)
}

fn fcntl(fd: i32, command: u32, arg: u64) -> Result<u64> {
    let files = curproc::files()?;
    let file = files.get_any(fd)?;
    match command {
        abi::F_DUPFD | abi::F_DUPFD_CLOEXEC => {
            let limit = proc::current_process().limit(RLIMIT_NOFILE);
            if arg >= limit || arg > i32::MAX as u64 {
                return Err(EINVAL);
            }
            let on_exec = if command == abi::F_DUPFD { OnExec::Keep } else { OnExec::Close };
            files.insert_from(file, on_exec, arg as usize, curproc::fd_limit()).map(|fd| fd as u64)
        }
        abi::F_GETFD => Ok(u64::from(files.on_exec(fd)? == OnExec::Close)),
        abi::F_SETFD => {
            let close = arg & u64::from(abi::FD_CLOEXEC) != 0;
            files.set_on_exec(fd, if close { OnExec::Close } else { OnExec::Keep })?;
            Ok(0)
        }
        abi::F_GETFL => Ok(u64::from(file.flags())),
        _ if file.is_path_only() => Err(EBADF),
        abi::F_SETFL => {
            let flags = arg as u32;
            // A pipe's writer makes packets by it.
            let may_be_direct = file.can_be_direct() || pipe::of(&file).is_some();
            if flags & abi::O_DIRECT != 0 && !may_be_direct {
                return Err(EINVAL);
            }
            if flags & !file.flags() & abi::O_NOATIME != 0 {
                access::may_hide_reads(&curproc::cred(), &file.inode().ownership())?;
            }
            if (flags ^ file.flags()) & abi::O_APPEND != 0 {
                access::may_change_elsewhere(&file.inode().ownership())?;
            }
            signals::set_async(&file, fd, flags & abi::FASYNC != 0)?;
            file.set_flags(flags);
            Ok(0)
        }
        abi::F_GETLK | abi::F_OFD_GETLK => get_lock(&file, command, arg),
        abi::F_SETLK | abi::F_SETLKW | abi::F_OFD_SETLK | abi::F_OFD_SETLKW => {
            set_lock(fd, &file, command, arg)
        }
        abi::F_SETPIPE_SZ => Ok(pipe_of(&file)?.set_capacity(arg as usize)? as u64),
        abi::F_GETPIPE_SZ => Ok(pipe_of(&file)?.capacity() as u64),
        abi::F_ADD_SEALS => {
            if !file.is_writable() {
                return Err(EPERM);
            }
            file.io().mappable().ok_or(EINVAL)?.add_seals(arg as u32)?;
            Ok(0)
        }
        abi::F_GETOWNER_UIDS => {
            let (real, effective) = file.owner().map_or((0, 0), |owner| owner.uids());
            user::put(arg, &[real, effective]).map(|()| 0)
        }
        abi::F_GET_SEALS => {
            let seals = file.io().mappable().ok_or(EINVAL)?.seals();
            seals.map(u64::from).map_err(|_| EINVAL)
        }
        abi::F_SETLEASE => {
            let access = match arg as u32 {
                abi::F_RDLCK => Some(lease::Access::Read),
                abi::F_WRLCK => Some(lease::Access::Write),
                abi::F_UNLCK => None,
                _ => return Err(EINVAL),
            };
            lease::set(&file, fd, access).map(|()| 0)
        }
        abi::F_GETLEASE => Ok(u64::from(match lease::get(&file) {
            Some(lease::Access::Read) => abi::F_RDLCK,
            Some(lease::Access::Write) => abi::F_WRLCK,
            None => abi::F_UNLCK,
        })),
        abi::F_SETOWN => set_owner(&file, arg as i32).map(|()| 0),
        abi::F_GETOWN => Ok(i64::from(owner(&file)) as u64),
        abi::F_SETOWN_EX => {
            let [kind, pid]: [i32; 2] = user::get(arg)?;
            file.signals()?.set_owner(|owner| owner.set(kind as u32, pid))?;
            Ok(0)
        }
        abi::F_GETOWN_EX => {
            let (kind, pid) = file.owner().unwrap_or_default().get();
            user::put(arg, &[kind as i32, pid])?;
            Ok(0)
        }
        abi::F_SETSIG => {
            file.signals()?.set_owner(|owner| owner.set_signal(arg as i32))?;
            Ok(0)
        }
        abi::F_GET_RW_HINT => {
            let opens = file.inode().opens();
            let life = opens.map_or(0, |opens| opens.life.load(Ordering::Relaxed));
            user::put(arg, &u64::from(life)).map(|()| 0)
        }
        abi::F_SET_RW_HINT => {
            let life: u64 = user::get(arg)?;
            let known = abi::RWH_WRITE_LIFE_EXTREME;
            let life = u8::try_from(life).ok().filter(|&life| u32::from(life) <= known);
            let opens = file.inode().opens().ok_or(EINVAL)?;
            opens.life.store(life.ok_or(EINVAL)?, Ordering::Relaxed);
            Ok(0)
        }
        abi::F_NOTIFY if !file.is_dir() => Err(ENOTDIR),
        abi::F_GETSIG => Ok(file.owner().map_or(0, |owner| owner.signal()) as u64),
        _ => Err(EINVAL),
    }
}

/// `F_SETOWN`: a negative number is that of a group.
pub(super) fn set_owner(file: &File, who: i32) -> Result<()> {
    let kind = if who < 0 { abi::F_OWNER_PGRP } else { abi::F_OWNER_PID };
    let pid = who.checked_abs().ok_or(EINVAL)?;
    file.signals()?.set_owner(|owner| owner.set(kind, pid))
}

/// `F_GETOWN`.
pub(super) fn owner(file: &File) -> i32 {
    match file.owner().unwrap_or_default().get() {
        (abi::F_OWNER_PGRP, pgid) => -pgid,
        (_, pid) => pid,
    }
}

fn pipe_of(file: &File) -> Result<&Arc<Pipe>> {
    pipe::of(file).ok_or(EBADF)
}

/// `struct flock`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FlockAbi {
    kind: i16,
    whence: i16,
    pad: u32,
    start: i64,
    len: i64,
    pid: i32,
    pad2: u32,
}

/// The range that a `struct flock` means; no mode stands for unlocking.
fn range_of(file: &File, request: &FlockAbi, owner: Owner) -> Result<(Range, Option<Mode>)> {
    let base = match request.whence as u32 {
        abi::SEEK_SET => 0,
        abi::SEEK_CUR => file.with_position(|at| Ok(*at))? as i64,
        abi::SEEK_END => file.inode().stat().size as i64,
        _ => return Err(EINVAL),
    };
    let from = base.checked_add(request.start).ok_or(EOVERFLOW)?;
    let unsigned = |at: i64| u64::try_from(at).map_err(|_| EINVAL);
    let (start, end) = match request.len {
        0 => (unsigned(from)?, lock::END),
        len if len > 0 => {
            // The last byte may be the last that there can be.
            from.checked_add(len - 1).ok_or(EOVERFLOW)?;
            (unsigned(from)?, unsigned(from)? + len as u64)
        }
        len => (unsigned(from.checked_add(len).ok_or(EINVAL)?)?, unsigned(from)?),
    };
    let mode = match request.kind as u32 {
        abi::F_RDLCK => Some(Mode::Shared),
        abi::F_WRLCK => Some(Mode::Exclusive),
        abi::F_UNLCK => None,
        _ => return Err(EINVAL),
    };
    Ok((Range { start, end, mode: mode.unwrap_or(Mode::Shared), owner }, mode))
}

fn owner_of(file: &File, command: u32, request: &FlockAbi) -> Result<Owner> {
    if !matches!(command, abi::F_OFD_GETLK | abi::F_OFD_SETLK | abi::F_OFD_SETLKW) {
        return Ok(Owner::Process(curproc::pid()));
    }
    if request.pid != 0 {
        return Err(EINVAL);
    }
    Ok(Owner::file(file))
}

fn get_lock(file: &File, command: u32, arg: u64) -> Result<u64> {
    let mut request: FlockAbi = user::get(arg)?;
    let owner = owner_of(file, command, &request)?;
    let (range, mode) = range_of(file, &request, owner)?;
    if mode.is_none() {
        return Err(EINVAL);
    }
    match lock::conflict(file, &range) {
        None => request.kind = abi::F_UNLCK as i16,
        Some(held) => {
            request.kind =
                if held.mode == Mode::Shared { abi::F_RDLCK } else { abi::F_WRLCK } as i16;
            request.whence = abi::SEEK_SET as i16;
            request.start = held.start as i64;
            request.len = if held.end == lock::END { 0 } else { (held.end - held.start) as i64 };
            request.pid = if let Owner::Process(pid) = held.owner { pid } else { -1 };
        }
    }
    user::put(arg, &request)?;
    Ok(0)
}

fn set_lock(fd: i32, file: &Arc<File>, command: u32, arg: u64) -> Result<u64> {
    let request: FlockAbi = user::get(arg)?;
    let owner = owner_of(file, command, &request)?;
    let (range, mode) = range_of(file, &request, owner)?;
    match mode {
        Some(Mode::Shared) if !file.is_readable() => return Err(EBADF),
        Some(Mode::Exclusive) if !file.is_writable() => return Err(EBADF),
        None => lock::clear(file, &range)?,
        Some(_) if matches!(command, abi::F_SETLKW | abi::F_OFD_SETLKW) => {
            lock::set_wait(file, range)?
        }
        Some(_) => lock::set(file, range)?,
    }
    if mode.is_some() && matches!(owner, Owner::Process(_)) {
        // Another thread may have closed the descriptor meanwhile, and found no lock yet.
        let now = curproc::files()?.get_any(fd);
        if !now.is_ok_and(|now| Arc::ptr_eq(&now, file)) {
            lock::closed_descriptor(file);
            return Err(EBADF);
        }
    }
    Ok(0)
}

fn flock(fd: i32, operation: u32) -> Result<()> {
    /// Of locks that other programs had to heed, which Linux had once: no lock is taken.
    const LOCK_MAND: u32 = 32;
    if operation & LOCK_MAND != 0 {
        return Ok(());
    }
    if !matches!(operation & !abi::LOCK_NB, abi::LOCK_SH | abi::LOCK_EX | abi::LOCK_UN) {
        return Err(EINVAL);
    }
    let file = curproc::file(fd)?;
    let owner = Owner::flock(&file);
    let range = |mode| Range { start: 0, end: u64::MAX, mode, owner };
    let wanted = match operation & !abi::LOCK_NB {
        abi::LOCK_SH => range(Mode::Shared),
        abi::LOCK_EX => range(Mode::Exclusive),
        _ => {
            lock::clear(&file, &range(Mode::Shared))?;
            return Ok(());
        }
    };
    if operation & abi::LOCK_NB != 0 {
        lock::set(&file, wanted)
    } else {
        lock::set_wait(&file, wanted)
    }
}

/// Tells the program the numbers of two files, and opens them if that succeeds.
pub fn install_pair(pair: (Arc<File>, Arc<File>), flags: u32, out: u64) -> Result<()> {
    let files = curproc::files()?;
    let on_exec = OnExec::from_flags(flags);
    let (first, second) = (files.reserve()?, files.reserve()?);
    user::put(out, &[first.number(), second.number()])?;
    first.open(pair.0, on_exec);
    second.open(pair.1, on_exec);
    Ok(())
}

fn pipe(out: u64) -> Result<()> {
    pipe2(out, 0)
}

fn pipe2(out: u64, flags: u32) -> Result<()> {
    only(flags, abi::O_CLOEXEC | abi::O_NONBLOCK | abi::O_DIRECT)?;
    install_pair(Pipe::pair(flags)?, flags, out)
}

fn memfd_create(name: u64, flags: u32) -> Result<i32> {
    const NAME_MAX: usize = 249;
    const NOEXEC_SEAL: u32 = 8;
    const EXEC: u32 = 16;
    only(flags, abi::MFD_CLOEXEC | abi::MFD_ALLOW_SEALING | NOEXEC_SEAL | EXEC)?;
    let name =
        user::read_cstr(name, NAME_MAX + 1)
            .map_err(|e| if e == ENAMETOOLONG { EINVAL } else { e })?;
    let sealable = flags & (abi::MFD_ALLOW_SEALING | NOEXEC_SEAL) != 0;
    let (perm, never_run) =
        if flags & NOEXEC_SEAL != 0 { (0o666, abi::F_SEAL_EXEC) } else { (0o777, 0) };
    let sealed = if sealable { never_run } else { abi::F_SEAL_SEAL };
    let node = TmpNode::unnamed(perm, sealed, &curproc::cred())?;
    let description = [b"/memfd:", name.as_slice(), b" (deleted)"].concat();
    let place = Place::described(node, description);
    let file = File::open_uncounted(place, abi::O_RDWR | abi::O_LARGEFILE)?;
    let on_exec = if flags & abi::MFD_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep };
    curproc::files()?.insert(file, on_exec)
}

fn eventfd(initial: u32) -> Result<i32> {
    eventfd2(initial, 0)
}

fn eventfd2(initial: u32, flags: u32) -> Result<i32> {
    curproc::files()?.insert(eventfd::create(initial, flags)?, OnExec::from_flags(flags))
}

fn getrandom(buf: u64, len: usize, flags: u32) -> Result<usize> {
    const BOTH: u32 = abi::GRND_RANDOM | abi::GRND_INSECURE;
    only(flags, abi::GRND_NONBLOCK | BOTH)?;
    if flags & BOTH == BOTH {
        return Err(EINVAL);
    }
    random::read(&mut crate::uio::Sink::user(buf, len))
}
