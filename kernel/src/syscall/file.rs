//! Opening and closing files, and moving bytes through them.

use alloc::vec::Vec;
use core::ops::Deref;

use linux_raw_sys::general as abi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::path_args::{only, path, place, start, CWD};
use super::{calls, Calls};
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::{File, Reserved};
use crate::fs::inode::*;
use crate::fs::ops::{Allocate, Seek};
use crate::fs::path::{walk, Follow, Place, Rules, Start};
use crate::fs::tmpfs::TmpNode;
use crate::fs::{self, access, lease};
use crate::proc::curproc;
use crate::sched;
use crate::uio::{IoVec, Sink, Source};
use crate::vm::Usage;
use crate::{proc, user};

pub const CALLS: Calls = calls! {
    __NR_open => open[3], __NR_openat => openat[4], __NR_openat2 => openat2[4], __NR_creat => creat[2],
    __NR_close => close[1], __NR_close_range => close_range[3],
    __NR_read => read[3], __NR_write => write[3], __NR_readv => readv[3], __NR_writev => writev[3],
    __NR_pread64 => pread64[4], __NR_pwrite64 => pwrite64[4],
    __NR_preadv => preadv[4], __NR_pwritev => pwritev[4],
    __NR_preadv2 => preadv2[6], __NR_pwritev2 => pwritev2[6],
    __NR_lseek => lseek[3],
    __NR_truncate => truncate[2], __NR_ftruncate => ftruncate[2], __NR_fallocate => fallocate[4],
    __NR_fsync => fsync[1], __NR_fdatasync => fsync[1], __NR_sync => sync[0], __NR_syncfs => syncfs[1],
    __NR_sync_file_range => sync_file_range[4], __NR_fadvise64 => fadvise[4], __NR_readahead => readahead[3],
};

/// The most pieces of one vector.
pub const IOV_MAX: usize = 1024;

/// The flags that `openat2` knows; `open` and `openat` leave others alone.
const OPEN_FLAGS: u32 = abi::O_ACCMODE
    | abi::O_APPEND
    | abi::O_CLOEXEC
    | abi::O_CREAT
    | abi::O_DIRECT
    | abi::O_DIRECTORY
    | abi::O_EXCL
    | abi::O_LARGEFILE
    | abi::O_NOATIME
    | abi::O_NOCTTY
    | abi::O_NOFOLLOW
    | abi::O_NONBLOCK
    | abi::O_PATH
    | abi::O_SYNC
    | abi::O_TMPFILE
    | abi::O_TRUNC
    | abi::FASYNC;

/// What `O_TMPFILE` has beside `O_DIRECTORY`.
const UNNAMED: u32 = abi::O_TMPFILE & !abi::O_DIRECTORY;
/// The flags that have a meaning beside `O_PATH`; `open` and `openat` leave others alone.
const PATH_FLAGS: u32 = abi::O_PATH | abi::O_DIRECTORY | abi::O_NOFOLLOW | abi::O_CLOEXEC;

/// What `open` and its kin ask for, after decoding.
struct How {
    flags: u32,
    perm: Asked,
}

impl How {
    fn new(flags: u32, mode: u32) -> Result<How> {
        let flags = if flags & abi::O_PATH != 0 { flags & PATH_FLAGS } else { flags };
        let both = abi::O_CREAT | abi::O_DIRECTORY;
        let unnamed = flags & UNNAMED != 0;
        if flags & both == both || unnamed && flags & abi::O_DIRECTORY == 0 {
            return Err(EINVAL);
        }
        let perm = Asked { perm: mode & 0o7777, umask: curproc::context()?.umask() };
        Ok(How { flags, perm })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn wants_write(&self) -> bool {
        self.flags & abi::O_ACCMODE != abi::O_RDONLY
    }

    /// The ways in which the file will be used.
    fn access(&self) -> u32 {
        let read = if self.flags & abi::O_ACCMODE == abi::O_WRONLY { 0 } else { access::READ };
        let write = if self.wants_write() || self.has(abi::O_TRUNC) { access::WRITE } else { 0 };
        read | write
    }

    fn follow(&self) -> Follow {
        let exclusive = self.has(abi::O_CREAT) && self.has(abi::O_EXCL);
        if self.has(abi::O_NOFOLLOW) || exclusive {
            Follow::No
        } else {
            Follow::Yes
        }
    }
}

fn open(path: u64, flags: u32, mode: u32) -> Result<i32> {
    openat(CWD, path, flags, mode)
}

fn creat(path: u64, mode: u32) -> Result<i32> {
    openat(CWD, path, abi::O_CREAT | abi::O_WRONLY | abi::O_TRUNC, mode)
}

fn openat(dir: i32, addr: u64, flags: u32, mode: u32) -> Result<i32> {
    let path = path(addr)?;
    open_at(&start(dir, &path)?, &path, How::new(flags, mode)?)
}

/// `struct open_how`.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn openat2(dir: i32, addr: u64, how: u64, size: usize) -> Result<i32> {
    if size < size_of::<OpenHow>() {
        return Err(EINVAL);
    }
    user::check_zeroes(
        how.saturating_add(size_of::<OpenHow>() as u64),
        size - size_of::<OpenHow>(),
    )?;
    let how: OpenHow = user::get(how)?;
    let flags = u32::try_from(how.flags).map_err(|_| EINVAL)?;
    only(flags, OPEN_FLAGS)?;
    if flags & abi::O_PATH != 0 {
        only(flags, PATH_FLAGS)?;
    }
    let modes = if flags & (abi::O_CREAT | UNNAMED) != 0 { 0o7777 } else { 0 };
    if how.mode & !modes != 0 {
        return Err(EINVAL);
    }
    let rules = rules(how.resolve)?;
    if rules.at_once && flags & (abi::O_CREAT | abi::O_TRUNC | UNNAMED) != 0 {
        return Err(EAGAIN);
    }
    let path = path(addr)?;
    // Absolute paths, too, begin at the descriptor then.
    let relative = if rules.in_root { &b"."[..] } else { &path };
    let start = Start { rules, ..start(dir, relative)? };
    open_at(&start, &path, How::new(flags, how.mode as u32)?)
}

/// `EINVAL` for rules that aren't known, or contradict each other.
fn rules(resolve: u64) -> Result<Rules> {
    let resolve = u32::try_from(resolve).map_err(|_| EINVAL)?;
    let rules = Rules {
        no_mounts: resolve & abi::RESOLVE_NO_XDEV != 0,
        no_jumps: resolve & abi::RESOLVE_NO_MAGICLINKS != 0,
        no_links: resolve & abi::RESOLVE_NO_SYMLINKS != 0,
        beneath: resolve & abi::RESOLVE_BENEATH != 0,
        in_root: resolve & abi::RESOLVE_IN_ROOT != 0,
        at_once: resolve & abi::RESOLVE_CACHED != 0,
    };
    let known = abi::RESOLVE_NO_XDEV
        | abi::RESOLVE_NO_MAGICLINKS
        | abi::RESOLVE_NO_SYMLINKS
        | abi::RESOLVE_BENEATH
        | abi::RESOLVE_IN_ROOT
        | abi::RESOLVE_CACHED;
    only(resolve, known)?;
    if rules.beneath && rules.in_root {
        return Err(EINVAL);
    }
    Ok(rules)
}

fn open_at(start: &Start, path: &[u8], how: How) -> Result<i32> {
    // Without a number and room for it, no file is made, and none is truncated.
    let number = curproc::files()?.reserve()?;
    let Found { place, reserved, is_new } = if how.has(UNNAMED) {
        let reserved = File::reserve()?;
        Found { place: unnamed(start, path, &how)?, reserved, is_new: true }
    } else {
        find_or_create(start, path, &how)?
    };
    let file = reserved.open(place, how.flags | abi::O_LARGEFILE)?;
    if how.has(abi::O_TRUNC) && !is_new && file.inode().kind() == Kind::File {
        let _writer = lease::Opener::new(file.inode(), abi::O_WRONLY | how.flags)?;
        file.inode().truncate(0)?;
    }
    Ok(number.open(file, OnExec::from_flags(how.flags)))
}

/// What is about to be opened.
struct Found {
    place: Place,
    reserved: Reserved,
    is_new: bool,
}

/// `O_TMPFILE`: a file without a name on the file system of the directory at `path`.
fn unnamed(start: &Start, path: &[u8], how: &How) -> Result<Place> {
    if !how.wants_write() {
        return Err(EINVAL);
    }
    let above = walk(start, path, Follow::Yes)?.place()?;
    above.may_change()?;
    let Place { mount, inode: dir, .. } = above;
    if dir.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    let dir = downcast::<TmpNode>(&dir).ok_or(EOPNOTSUPP)?;
    let node: InodeRef = dir.unnamed_here(how.perm, !how.has(abi::O_EXCL), &start.by)?;
    Ok(Place { mount, ..Place::described(node, b"/ (deleted)".to_vec()) })
}

/// The file at `path`, which is made if need be. One that another call makes between the look and
/// the making is found at the next look.
fn find_or_create(start: &Start, path: &[u8], how: &How) -> Result<Found> {
    loop {
        match find_or_create_once(start, path, how) {
            Err(EEXIST) if !how.has(abi::O_EXCL) && !sched::is_leaving() => {}
            outcome => return outcome,
        }
    }
}

fn find_or_create_once(start: &Start, path: &[u8], how: &How) -> Result<Found> {
    let found = walk(start, path, how.follow())?;
    if how.has(abi::O_CREAT) && found.wants_dir && found.name.is_some() {
        return Err(EISDIR);
    }
    if found.inode.is_none() {
        if !how.has(abi::O_CREAT) {
            return Err(ENOENT);
        }
        let (dir, name) = found.vacant()?;
        // After the walk, for which the file system may have let unused nodes go.
        let reserved = File::reserve()?;
        let inode = dir.inode.create(&name, NewNode::File, how.perm, &start.by)?;
        let place = Place { mount: Some(dir.mount), inode, parent: Some(dir.inode), name };
        return Ok(Found { place, reserved, is_new: true });
    }
    if how.has(abi::O_CREAT) && how.has(abi::O_EXCL) {
        return Err(EEXIST);
    }
    let place = found.place()?;
    let changes = how.wants_write() || how.has(abi::O_CREAT | abi::O_TRUNC);
    if place.inode.kind() == Kind::Dir && changes {
        return Err(EISDIR);
    }
    if !how.has(abi::O_PATH) && place.inode.kind() != Kind::Symlink {
        if how.has(abi::O_TRUNC) && place.inode.kind() == Kind::File {
            place.may_change()?;
        }
        place.permits(&start.by, how.access())?;
        if how.has(abi::O_NOATIME) {
            access::may_hide_reads(&start.by, &place.inode.ownership())?;
        }
    }
    match place.inode.kind() {
        Kind::Dir => {}
        _ if how.has(abi::O_DIRECTORY) => return Err(ENOTDIR),
        Kind::Symlink if !how.has(abi::O_PATH) => return Err(ELOOP),
        _ => {}
    }
    Ok(Found { place, reserved: File::reserve()?, is_new: false })
}

fn close(fd: i32) -> Result<()> {
    let file = curproc::files()?.remove(fd)?;
    crate::fs::lock::closed_descriptor(&file);
    drop(file);
    crate::net::rights::collect();
    Ok(())
}

fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    only(flags, UNSHARE | CLOEXEC)?;
    if first > last {
        return Err(EINVAL);
    }
    if flags & UNSHARE != 0 {
        proc::exec::unshare_files(&proc::current_thread())?;
    }
    let files = curproc::files()?;
    if flags & CLOEXEC != 0 {
        files.cloexec_range(first as usize, last as usize);
    } else {
        files.close_range(first as usize, last as usize);
    }
    Ok(())
}

fn read(fd: i32, buf: u64, len: usize) -> Result<usize> {
    let file = curproc::file(fd)?;
    file.read(&mut Sink::user(checked(buf, len, file.is_readable())?, len))
}

fn write(fd: i32, buf: u64, len: usize) -> Result<usize> {
    let file = curproc::file(fd)?;
    file.write(&mut Source::user(checked(buf, len, file.is_writable())?, len))
}

fn pread64(fd: i32, buf: u64, len: usize, at: u64) -> Result<usize> {
    let file = curproc::file(fd)?;
    file.check_start(at)?;
    file.read_at(at, &mut Sink::user(checked(buf, len, file.is_readable())?, len))
}

fn pwrite64(fd: i32, buf: u64, len: usize, at: u64) -> Result<usize> {
    let file = curproc::file(fd)?;
    file.check_start(at)?;
    file.write_at(at, &mut Source::user(checked(buf, len, file.is_writable())?, len))
}

/// The address of a buffer that lies in user memory, whole, however much of it one call moves: what
/// is asked before anything of the file but how it was opened.
fn checked(buf: u64, len: usize, is_opened_for_it: bool) -> Result<u64> {
    match is_opened_for_it {
        true if user::is_within(buf, len) => Ok(buf),
        true => Err(EFAULT),
        false => Err(EBADF),
    }
}

/// An `iovec` array; a large one is charged to the running process, which may wait with it.
pub struct Vector {
    pieces: Vec<IoVec>,
    _charge: Option<Charge>,
}

impl Deref for Vector {
    type Target = [IoVec];

    fn deref(&self) -> &[IoVec] {
        &self.pieces
    }
}

/// Copies an `iovec` array of the program's own memory in: each piece lies in user memory, whole.
///
/// # Errors
/// `EINVAL`, `EFAULT`; `ENOMEM`: the process has all that it may.
pub fn vector(addr: u64, count: usize) -> Result<Vector> {
    let vector = foreign_vector(addr, count)?;
    let is_here = |piece: &IoVec| user::is_within(piece.addr, piece.len);
    if vector.iter().all(is_here) {
        Ok(vector)
    } else {
        Err(EFAULT)
    }
}

/// Copies an `iovec` array of another's memory in, and checks its lengths.
pub fn foreign_vector(addr: u64, count: usize) -> Result<Vector> {
    /// Fewer pieces are as good as on the stack.
    const FEW: usize = 16;
    if count > IOV_MAX {
        return Err(EINVAL);
    }
    let charge = (count > FEW).then(|| charge::take(count * size_of::<IoVec>())).transpose();
    let charge = charge.map_err(|_| ENOMEM)?;
    let mut pieces = Vec::with_capacity(count);
    for index in 0..count as u64 {
        let [base, len]: [u64; 2] = user::get(addr.wrapping_add(index * 16))?;
        pieces.push(IoVec { addr: base, len: len as usize });
    }
    if pieces.iter().any(|piece: &IoVec| piece.len > i64::MAX as usize) {
        return Err(EINVAL);
    }
    Ok(Vector { pieces, _charge: charge })
}

fn readv(fd: i32, addr: u64, count: usize) -> Result<usize> {
    read_vector(fd, addr, count, None, 0)
}

fn writev(fd: i32, addr: u64, count: usize) -> Result<usize> {
    write_vector(fd, addr, count, None, 0)
}

fn preadv(fd: i32, addr: u64, count: usize, at: u64) -> Result<usize> {
    read_vector(fd, addr, count, Some(at), 0)
}

fn pwritev(fd: i32, addr: u64, count: usize, at: u64) -> Result<usize> {
    write_vector(fd, addr, count, Some(at), 0)
}

fn preadv2(fd: i32, addr: u64, count: usize, at: u64, _high: u64, flags: u32) -> Result<usize> {
    read_vector(fd, addr, count, (at != u64::MAX).then_some(at), flags)
}

fn pwritev2(fd: i32, addr: u64, count: usize, at: u64, _high: u64, flags: u32) -> Result<usize> {
    write_vector(fd, addr, count, (at != u64::MAX).then_some(at), flags)
}

/// The flags of `pwritev2` that have what it writes be on the disk when it returns.
const RWF_DURABLE: u32 = abi::RWF_DSYNC | abi::RWF_SYNC;
/// All that are known: `RWF_HIPRI` asks for haste, which is no matter of right or wrong.
const RWF_KNOWN: u32 = abi::RWF_HIPRI | RWF_DURABLE;

/// Reads at `at`, or at the position.
fn read_vector(fd: i32, addr: u64, count: usize, at: Option<u64>, flags: u32) -> Result<usize> {
    let file = curproc::file(fd)?;
    at.map_or(Ok(()), |at| file.check_start(at))?;
    let vector = vector(addr, count)?;
    if !file.is_readable() {
        return Err(EBADF);
    }
    let known = if file.is_dir() { abi::RWF_HIPRI } else { RWF_KNOWN | abi::RWF_APPEND };
    if flags & !known != 0 {
        return Err(EOPNOTSUPP);
    }
    // Pieces without a byte are read of a folder too.
    if file.is_dir() && vector.iter().all(|piece| piece.len == 0) {
        return Ok(0);
    }
    let mut to = Sink::vector(&vector);
    match at {
        None => file.read(&mut to),
        Some(at) => file.read_at(at, &mut to),
    }
}

/// Writes at `at`, or at the position.
fn write_vector(fd: i32, addr: u64, count: usize, at: Option<u64>, flags: u32) -> Result<usize> {
    let file = curproc::file(fd)?;
    at.map_or(Ok(()), |at| file.check_start(at))?;
    let vector = vector(addr, count)?;
    if !file.is_writable() {
        return Err(EBADF);
    }
    if flags & !(RWF_KNOWN | abi::RWF_APPEND) != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut from = Source::vector(&vector);
    let written = match at {
        _ if flags & abi::RWF_APPEND != 0 => file.append(&mut from, at.is_none())?,
        None => file.write(&mut from)?,
        Some(at) => file.write_at(at, &mut from)?,
    };
    if written > 0 && flags & RWF_DURABLE != 0 && file.flags() & abi::O_DSYNC == 0 {
        file.sync()?;
    }
    Ok(written)
}

fn lseek(fd: i32, offset: i64, whence: u32) -> Result<u64> {
    let file = curproc::file(fd)?;
    if whence > abi::SEEK_HOLE {
        return Err(EINVAL);
    }
    if file.inode().kind() == Kind::Unnamed {
        return Ok(0);
    }
    if !file.is_seekable() && !file.is_dir() {
        return Err(ESPIPE);
    }
    let io = file.io();
    if whence >= abi::SEEK_END && file.is_dir() && io.stored().is_none() {
        return Err(EINVAL);
    }
    if file.inode().kind() == Kind::Char {
        return Ok(0);
    }
    file.with_position(|position| {
        let at = match whence {
            abi::SEEK_SET => u64::try_from(offset).ok(),
            abi::SEEK_CUR => position.checked_add_signed(offset),
            abi::SEEK_END => io.size().checked_add_signed(offset),
            abi::SEEK_DATA => {
                Some(io.seek_data(u64::try_from(offset).map_err(|_| ENXIO)?, Seek::Data)?)
            }
            abi::SEEK_HOLE => {
                Some(io.seek_data(u64::try_from(offset).map_err(|_| ENXIO)?, Seek::Hole)?)
            }
            _ => None,
        };
        *position = at.filter(|&at| at <= i64::MAX as u64).ok_or(EINVAL)?;
        Ok(*position)
    })
}

fn truncate(addr: u64, len: i64) -> Result<()> {
    let len = u64::try_from(len).map_err(|_| EINVAL)?;
    let place = place(CWD, addr, Follow::Yes)?;
    let inode = &place.inode;
    match inode.kind() {
        Kind::File => place.may_change()?,
        Kind::Dir => return Err(EISDIR),
        _ => return Err(EINVAL),
    }
    place.permits(&curproc::cred(), access::WRITE)?;
    let _writer = lease::Opener::new(inode, abi::O_WRONLY)?;
    inode.truncate(len)
}

fn ftruncate(fd: i32, len: i64) -> Result<()> {
    let len = u64::try_from(len).map_err(|_| EINVAL)?;
    let file = curproc::file(fd)?;
    if !file.is_writable() || file.inode().kind() != Kind::File {
        return Err(EINVAL);
    }
    file.io().truncate(len)
}

fn fallocate(fd: i32, mode: u32, at: i64, len: i64) -> Result<()> {
    let (Ok(at), Ok(len)) = (u64::try_from(at), u64::try_from(len)) else { return Err(EINVAL) };
    if len == 0 {
        return Err(EINVAL);
    }
    const KEEP: u32 = abi::FALLOC_FL_KEEP_SIZE;
    const PUNCH: u32 = abi::FALLOC_FL_PUNCH_HOLE | KEEP;
    let how = match mode {
        0 => Allocate::Extend,
        KEEP => Allocate::KeepSize,
        PUNCH => Allocate::PunchHole,
        abi::FALLOC_FL_ZERO_RANGE => Allocate::ZeroRange,
        _ if mode == abi::FALLOC_FL_ZERO_RANGE | KEEP => Allocate::ZeroRangeKeepSize,
        _ => return Err(EOPNOTSUPP),
    };
    let file = curproc::file(fd)?;
    if !file.is_writable() {
        return Err(EBADF);
    }
    match file.inode().kind() {
        Kind::Fifo => Err(ESPIPE),
        _ => file.io().allocate(how, at, len),
    }
}

fn fsync(fd: i32) -> Result<()> {
    let file = curproc::file(fd)?;
    let is_kept = || file.io().stored().is_some() || downcast::<TmpNode>(file.inode()).is_some();
    match file.inode().kind() {
        Kind::Block => file.sync(),
        Kind::File | Kind::Dir if is_kept() => file.sync(),
        _ => Err(EINVAL),
    }
}

fn sync() -> Result<()> {
    fs::sync_all();
    Ok(())
}

fn syncfs(fd: i32) -> Result<()> {
    curproc::file(fd)?.io().stored().map_or(Ok(()), |node| node.sync_fs())
}

/// `sync_file_range`: data alone, with no commit of what the file system knows of it.
fn sync_file_range(fd: i32, at: i64, len: i64, flags: u32) -> Result<()> {
    only(
        flags,
        abi::SYNC_FILE_RANGE_WAIT_BEFORE
            | abi::SYNC_FILE_RANGE_WRITE
            | abi::SYNC_FILE_RANGE_WAIT_AFTER,
    )?;
    let file = curproc::file(fd)?;
    let (Ok(at), Ok(len)) = (u64::try_from(at), u64::try_from(len)) else { return Err(EINVAL) };
    at.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(EINVAL)?;
    if !matches!(file.inode().kind(), Kind::File | Kind::Block | Kind::Dir | Kind::Symlink) {
        return Err(ESPIPE);
    }
    let len = if len == 0 { u64::MAX } else { len };
    let Some(object) = file.io().object() else { return Ok(()) };
    let waits = |flag: u32| -> Result<()> {
        if flags & flag == 0 {
            return Ok(());
        }
        object.wait_cleaned(at, len);
        file.check_written()
    };
    waits(abi::SYNC_FILE_RANGE_WAIT_BEFORE)?;
    if flags & abi::SYNC_FILE_RANGE_WRITE != 0 {
        object.start_cleaning(at, len);
    }
    waits(abi::SYNC_FILE_RANGE_WAIT_AFTER)
}

fn fadvise(fd: i32, at: u64, len: i64, advice: u32) -> Result<()> {
    let file = curproc::file(fd)?;
    if file.inode().kind() == Kind::Fifo {
        return Err(ESPIPE);
    }
    let len = match u64::try_from(len).map_err(|_| EINVAL)? {
        0 => u64::MAX,
        len => len,
    };
    match advice {
        abi::POSIX_FADV_NORMAL => file.set_usage(Usage::Normal),
        abi::POSIX_FADV_RANDOM => file.set_usage(Usage::Random),
        abi::POSIX_FADV_SEQUENTIAL => file.set_usage(Usage::Sequential),
        abi::POSIX_FADV_NOREUSE => {}
        abi::POSIX_FADV_WILLNEED | abi::POSIX_FADV_DONTNEED => {
            let Some(object) = file.io().object() else { return Ok(()) };
            if advice == abi::POSIX_FADV_WILLNEED {
                object.read_ahead(at, len);
            } else {
                // What is dirty goes to the disk now, and is dropped by the next such call.
                object.start_cleaning(at, len);
                object.drop_clean(at, len);
            }
        }
        _ => return Err(EINVAL),
    }
    Ok(())
}

fn readahead(fd: i32, at: u64, len: i64) -> Result<()> {
    let file = curproc::file(fd)?;
    if !file.is_readable() {
        return Err(EBADF);
    }
    let object =
        file.io().object().filter(|_| matches!(file.inode().kind(), Kind::File | Kind::Block));
    object.ok_or(EINVAL)?.read_ahead(at, u64::try_from(len).map_err(|_| EINVAL)?);
    Ok(())
}
