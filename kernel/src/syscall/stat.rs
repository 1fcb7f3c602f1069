//! What files are: `stat` and its kin, file system figures, access checks, and changes of
//! attributes.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use zerocopy::{Immutable, IntoBytes};

use super::path_args::{node, only, place, place_at, CWD};
use super::{calls, Calls};
use crate::errno::*;
use crate::fs::access as permissions;
use crate::fs::access::Times;
use crate::fs::inode::*;
use crate::fs::path::{Follow, Place};
use crate::proc::curproc;
use crate::sched::{self, Nanos};
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_stat => stat[2], __NR_lstat => lstat[2], __NR_fstat => fstat[2],
    __NR_newfstatat => fstatat[4], __NR_statx => statx[5],
    __NR_statfs => statfs[2], __NR_fstatfs => fstatfs[2],
    __NR_access => access[2], __NR_faccessat => faccessat[3], __NR_faccessat2 => faccessat2[4],
    __NR_chmod => chmod[2], __NR_fchmod => fchmod[2], __NR_fchmodat => fchmodat[3],
    __NR_chown => chown[3], __NR_lchown => lchown[3], __NR_fchown => fchown[3], __NR_fchownat => fchownat[5],
    __NR_utime => utime[2], __NR_utimes => utimes[2], __NR_futimesat => futimesat[3],
    __NR_utimensat => utimensat[4],
};

const SECOND: Nanos = 1_000_000_000;
const BLOCK: u64 = 4096;

/// `struct stat`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct StatAbi {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    pad: u32,
    rdev: u64,
    size: u64,
    block_size: u64,
    blocks: u64,
    times: [u64; 6],
    unused: [u64; 3],
}

fn put_stat(addr: u64, node: &InodeRef) -> Result<()> {
    let stat = node.stat();
    let times = [stat.atime, stat.mtime, stat.ctime];
    let mut split = [0; 6];
    for (pair, time) in split.chunks_mut(2).zip(times) {
        pair.copy_from_slice(&[time / SECOND, time % SECOND]);
    }
    user::put(
        addr,
        &StatAbi {
            dev: stat.dev,
            ino: stat.ino,
            nlink: u64::from(stat.nlink),
            mode: stat.mode(),
            uid: stat.uid,
            gid: stat.gid,
            pad: 0,
            rdev: stat.rdev,
            size: stat.size,
            block_size: BLOCK,
            blocks: stat.blocks,
            times: split,
            unused: [0; 3],
        },
    )
}

fn stat(path: u64, out: u64) -> Result<()> {
    fstatat(CWD, path, out, 0)
}

fn lstat(path: u64, out: u64) -> Result<()> {
    fstatat(CWD, path, out, abi::AT_SYMLINK_NOFOLLOW)
}

fn fstat(fd: i32, out: u64) -> Result<()> {
    put_stat(out, curproc::files()?.get_any(fd)?.inode())
}

fn fstatat(dir: i32, path: u64, out: u64, flags: u32) -> Result<()> {
    only(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_NO_AUTOMOUNT)?;
    put_stat(out, &node(dir, path, flags)?)
}

/// A time of `struct statx`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct StatxTime {
    seconds: i64,
    nanos: u32,
    pad: u32,
}

impl StatxTime {
    fn new(time: Nanos) -> StatxTime {
        StatxTime { seconds: (time / SECOND) as i64, nanos: (time % SECOND) as u32, pad: 0 }
    }
}

/// `struct statx`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct StatxAbi {
    mask: u32,
    block_size: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    pad: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    /// Access, birth, change, modification.
    times: [StatxTime; 4],
    rdev: [u32; 2],
    dev: [u32; 2],
    spare: [u64; 14],
}

fn statx(dir: i32, path: u64, flags: u32, mask: u32, out: u64) -> Result<()> {
    const SYNC: u32 = abi::AT_STATX_FORCE_SYNC | abi::AT_STATX_DONT_SYNC;
    const RESERVED: u32 = 0x8000_0000;
    /// Of the attributes that a node may have, those that `chattr` sets have the same numbers.
    const FLAGS: u32 = abi::STATX_ATTR_IMMUTABLE | abi::STATX_ATTR_APPEND | abi::STATX_ATTR_NODUMP;
    /// Nothing here is mounted as it is used.
    const KNOWN: u32 = FLAGS | abi::STATX_ATTR_MOUNT_ROOT | abi::STATX_ATTR_AUTOMOUNT;
    if mask & RESERVED != 0 || flags & SYNC == SYNC {
        return Err(EINVAL);
    }
    let known = abi::AT_SYMLINK_NOFOLLOW
        | abi::AT_EMPTY_PATH
        | abi::AT_NO_AUTOMOUNT
        | abi::AT_STATX_FORCE_SYNC
        | abi::AT_STATX_DONT_SYNC;
    only(flags, known)?;
    let place = place_at(&curproc::cred(), dir, path, flags)?;
    let stat = place.inode.stat();
    let is_root = place.mount.as_ref().is_some_and(|mount| same(mount.root(), &place.inode));
    let attributes = stat.flags & FLAGS | if is_root { abi::STATX_ATTR_MOUNT_ROOT } else { 0 };
    let born = if stat.btime.is_some() { abi::STATX_BTIME } else { 0 };
    let split = |dev: u64| [(dev >> 8 & 0xfff) as u32, (dev & 0xff | dev >> 12 & 0xfff00) as u32];
    user::put(
        out,
        &StatxAbi {
            mask: abi::STATX_BASIC_STATS | born,
            block_size: BLOCK as u32,
            attributes: attributes.into(),
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode() as u16,
            pad: 0,
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            attributes_mask: KNOWN.into(),
            times: [stat.atime, stat.btime.unwrap_or(0), stat.ctime, stat.mtime]
                .map(StatxTime::new),
            rdev: split(stat.rdev),
            dev: split(stat.dev),
            spare: [0; 14],
        },
    )
}

/// `struct statfs`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct StatFsAbi {
    magic: u64,
    block_size: u64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
    id: u64,
    name_len: u64,
    fragment: u64,
    flags: u64,
    spare: [u64; 4],
}

/// Flags of `statvfs` that `mount` doesn't have, or not with this value: it can't be written; there
/// are flags at all; access times change once per change of the contents.
const ST_RDONLY: u32 = 1;
const ST_VALID: u32 = 0x20;
const ST_RELATIME: u32 = 0x1000;

fn statfs_flags(place: &Place) -> u32 {
    let flags = place.mount_flags();
    let mode = if place.may_change().is_err() { ST_RDONLY } else { 0 };
    let times = if flags & (abi::MS_NOATIME | abi::MS_STRICTATIME) == 0 { ST_RELATIME } else { 0 };
    flags & !(abi::MS_STRICTATIME | abi::MS_RDONLY) | mode | times | ST_VALID
}

fn put_statfs(addr: u64, place: &Place) -> Result<()> {
    let node = &place.inode;
    let fs = node.fs_stat();
    user::put(
        addr,
        &StatFsAbi {
            magic: fs.magic,
            block_size: BLOCK,
            blocks: fs.blocks,
            free: fs.free,
            available: fs.available,
            files: fs.files,
            files_free: fs.files_free,
            id: node.stat().dev,
            name_len: crate::fs::path::NAME_MAX as u64,
            fragment: BLOCK,
            flags: statfs_flags(place).into(),
            spare: [0; 4],
        },
    )
}

fn statfs(path: u64, out: u64) -> Result<()> {
    put_statfs(out, &place(CWD, path, Follow::Yes)?)
}

fn fstatfs(fd: i32, out: u64) -> Result<()> {
    put_statfs(out, curproc::files()?.get_any(fd)?.place())
}

fn access(path: u64, mode: u32) -> Result<()> {
    faccessat2(CWD, path, mode, 0)
}

fn faccessat(dir: i32, path: u64, mode: u32) -> Result<()> {
    faccessat2(dir, path, mode, 0)
}

fn faccessat2(dir: i32, path: u64, mode: u32, flags: u32) -> Result<()> {
    only(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_EACCESS)?;
    if mode & !7 != 0 {
        return Err(EINVAL);
    }
    let own = curproc::cred();
    let by = if flags & abi::AT_EACCESS != 0 { own } else { Arc::new(own.as_real()) };
    if mode == 0 && flags & abi::AT_EMPTY_PATH != 0 {
        return node(dir, path, flags).map(|_| ());
    }
    let place = place_at(&by, dir, path, flags)?;
    let kind = place.inode.kind();
    let is_forbidden = place.mount_flags() & abi::MS_NOEXEC != 0;
    if mode & permissions::EXECUTE != 0 && kind == Kind::File && is_forbidden {
        return Err(EACCES);
    }
    place.permits(&by, mode)?;
    let is_kept = matches!(kind, Kind::File | Kind::Dir | Kind::Symlink);
    if mode & permissions::WRITE != 0 && is_kept {
        place.may_change()?;
    }
    Ok(())
}

fn set_perm(place: &Place, mode: u32) -> Result<()> {
    let by = curproc::cred();
    place.may_change()?;
    place.inode.set_attr(&|now| permissions::change_mode(&by, now, mode))
}

fn chmod(path: u64, mode: u32) -> Result<()> {
    fchmodat(CWD, path, mode)
}

fn fchmod(fd: i32, mode: u32) -> Result<()> {
    set_perm(curproc::file(fd)?.place(), mode)
}

fn fchmodat(dir: i32, path: u64, mode: u32) -> Result<()> {
    set_perm(&place(dir, path, Follow::Yes)?, mode)
}

/// Changes owners, where `-1` leaves one.
fn set_owner(place: &Place, uid: u32, gid: u32) -> Result<()> {
    let given = |id| if id == u32::MAX { None } else { Some(id) };
    let by = curproc::cred();
    place.may_change()?;
    place.inode.set_attr(&|now| permissions::change_owner(&by, now, given(uid), given(gid)))
}

fn chown(path: u64, uid: u32, gid: u32) -> Result<()> {
    set_owner(&place(CWD, path, Follow::Yes)?, uid, gid)
}

fn lchown(path: u64, uid: u32, gid: u32) -> Result<()> {
    set_owner(&place(CWD, path, Follow::No)?, uid, gid)
}

fn fchown(fd: i32, uid: u32, gid: u32) -> Result<()> {
    set_owner(curproc::file(fd)?.place(), uid, gid)
}

fn fchownat(dir: i32, path: u64, uid: u32, gid: u32, flags: u32) -> Result<()> {
    only(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    set_owner(&place_at(&curproc::cred(), dir, path, flags)?, uid, gid)
}

fn set_times(place: &Place, times: Times) -> Result<()> {
    let by = curproc::cred();
    place.may_change()?;
    place.inode.set_attr(&|now| permissions::change_times(&by, now, times))
}

/// A time of user memory in seconds and parts of a second, `unit` nanoseconds each.
fn time(seconds: i64, parts: i64, unit: u64) -> Result<Nanos> {
    let parts = u64::try_from(parts).ok().filter(|parts| parts * unit < SECOND).ok_or(EINVAL)?;
    Ok((seconds.max(0) as u64).saturating_mul(SECOND).saturating_add(parts * unit))
}

fn utime(path: u64, times: u64) -> Result<()> {
    let times = if times == 0 {
        Times::Now(sched::wall())
    } else {
        let [access, modification]: [i64; 2] = user::get(times)?;
        Times::Given([Some(time(access, 0, 1)?), Some(time(modification, 0, 1)?)])
    };
    set_times(&place(CWD, path, Follow::Yes)?, times)
}

fn utimes(path: u64, times: u64) -> Result<()> {
    futimesat(CWD, path, times)
}

fn futimesat(dir: i32, path: u64, times: u64) -> Result<()> {
    let times = if times == 0 {
        Times::Now(sched::wall())
    } else {
        let [a, a_micros, m, m_micros]: [i64; 4] = user::get(times)?;
        if !(0..1_000_000).contains(&a_micros) || !(0..1_000_000).contains(&m_micros) {
            return Err(EINVAL);
        }
        Times::Given([Some(time(a, a_micros, 1000)?), Some(time(m, m_micros, 1000)?)])
    };
    if path == 0 {
        return set_times(curproc::file(dir)?.place(), times);
    }
    set_times(&place(dir, path, Follow::Yes)?, times)
}

fn utimensat(dir: i32, path: u64, times: u64, flags: u32) -> Result<()> {
    let now = sched::wall();
    let times = if times == 0 {
        Times::Now(now)
    } else {
        let raw: [i64; 4] = user::get(times)?;
        let mut times = [None; 2];
        for (time_out, pair) in times.iter_mut().zip(raw.chunks(2)) {
            *time_out = match pair[1] {
                nanos if nanos == i64::from(abi::UTIME_OMIT) => None,
                nanos if nanos == i64::from(abi::UTIME_NOW) => Some(now),
                nanos if (0..SECOND as i64).contains(&nanos) => Some(time(pair[0], nanos, 1)?),
                _ => return Err(EINVAL),
            };
        }
        match (times, [raw[1], raw[3]]) {
            ([None, None], _) => return Ok(()),
            (_, [atime, mtime]) if [atime, mtime] == [i64::from(abi::UTIME_NOW); 2] => {
                Times::Now(now)
            }
            _ => Times::Given(times),
        }
    };
    if path == 0 && dir != CWD {
        only(flags, 0)?;
        return set_times(curproc::file(dir)?.place(), times);
    }
    only(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
    if path == 0 {
        return Err(EFAULT);
    }
    set_times(&place_at(&curproc::cred(), dir, path, flags)?, times)
}
