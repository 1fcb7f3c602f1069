//! Names: listing, making, moving and removing them, and the working directory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::path_args::{find, node, only, path, place, place_at, start, CWD};
use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::*;
use crate::fs::path::{dir_path, walk, Dir, Follow, Found, Place, PATH_MAX};
use crate::mem::fault;
use crate::proc::curproc;
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_getdents => getdents[3], __NR_getdents64 => getdents64[3],
    __NR_mkdir => mkdir[2], __NR_mkdirat => mkdirat[3], __NR_rmdir => rmdir[1],
    __NR_mknod => mknod[3], __NR_mknodat => mknodat[4],
    __NR_symlink => symlink[2], __NR_symlinkat => symlinkat[3],
    __NR_readlink => readlink[3], __NR_readlinkat => readlinkat[4],
    __NR_link => link[2], __NR_linkat => linkat[5],
    __NR_unlink => unlink[1], __NR_unlinkat => unlinkat[3],
    __NR_rename => rename[2], __NR_renameat => renameat[4], __NR_renameat2 => renameat2[5],
    __NR_chdir => chdir[1], __NR_fchdir => fchdir[1], __NR_getcwd => getcwd[2], __NR_chroot => chroot[1],
    __NR_umask => umask[1],
};

/// How directory entries are laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Old,
    New,
}

/// The most that one call lists: bounds its buffer.
const LIST_MAX: usize = 32768;

fn getdents(fd: i32, buf: u64, len: usize) -> Result<usize> {
    list(fd, buf, len, Layout::Old)
}

fn getdents64(fd: i32, buf: u64, len: usize) -> Result<usize> {
    list(fd, buf, len, Layout::New)
}

fn list(fd: i32, buf: u64, len: usize, layout: Layout) -> Result<usize> {
    let file = curproc::file(fd)?;
    if !file.is_dir() {
        return Err(ENOTDIR);
    }
    // The length is an int, and none below 0 has room for an entry.
    let room = usize::try_from(len as i32).unwrap_or(0).min(LIST_MAX);
    let mut out: Vec<u8> = Vec::new();
    fault::attempt(|| out.try_reserve_exact(room)).map_err(|_| ENOMEM)?;
    file.with_position(|position| {
        let mut next = *position;
        let mut full = false;
        file.inode().list(*position, &mut |entry| {
            full = !push_entry(&mut out, room, &entry, layout);
            if full {
                return Flow::Stop;
            }
            next = entry.next;
            Flow::More
        })?;
        if out.is_empty() && full {
            return Err(EINVAL);
        }
        user::copy_out(buf, &out)?;
        *position = next;
        Ok(out.len())
    })
}

/// Appends an entry if it fits.
fn push_entry(out: &mut Vec<u8>, room: usize, entry: &DirEntry<'_>, layout: Layout) -> bool {
    let size = (entry.name.len() + 20).next_multiple_of(8);
    let end = out.len() + size;
    if end > room {
        return false;
    }
    out.extend_from_slice(&entry.ino.to_ne_bytes());
    out.extend_from_slice(&entry.next.to_ne_bytes());
    out.extend_from_slice(&(size as u16).to_ne_bytes());
    if layout == Layout::New {
        out.push(entry.kind.dirent_type());
    }
    out.extend_from_slice(entry.name);
    out.resize(end, 0);
    if layout == Layout::Old {
        out[end - 1] = entry.kind.dirent_type();
    }
    true
}

fn asked(perm: u32) -> Result<Asked> {
    Ok(Asked { perm, umask: curproc::context()?.umask() })
}

/// Makes a node that belongs to the running process.
fn create(dir: &Dir, name: &[u8], new: NewNode<'_>, perm: Asked) -> Result<()> {
    dir.inode.create(name, new, perm, &curproc::cred()).map(|_| ())
}

fn mkdir(path: u64, mode: u32) -> Result<()> {
    mkdirat(CWD, path, mode)
}

fn mkdirat(dir: i32, path: u64, mode: u32) -> Result<()> {
    let (dir, name) = find(dir, path, Follow::Name)?.vacant()?;
    create(&dir, &name, NewNode::Dir, asked(mode & 0o1777)?)
}

/// The directory and name of something new that is no directory.
fn vacant_file(found: Found) -> Result<(Dir, alloc::boxed::Box<[u8]>)> {
    if found.inode.is_none() && found.wants_dir {
        return Err(ENOENT);
    }
    found.vacant()
}

fn mknod(path: u64, mode: u32, dev: u64) -> Result<()> {
    mknodat(CWD, path, mode, dev)
}

fn mknodat(dir: i32, path: u64, mode: u32, dev: u64) -> Result<()> {
    let is_device = matches!(mode & abi::S_IFMT, abi::S_IFCHR | abi::S_IFBLK);
    let new = match mode & abi::S_IFMT {
        0 | abi::S_IFREG => NewNode::File,
        abi::S_IFDIR => return Err(EPERM),
        _ => NewNode::Special(
            Kind::from_mode(mode).filter(|&kind| kind != Kind::Symlink).ok_or(EINVAL)?,
            dev,
        ),
    };
    let (dir, name) = vacant_file(find(dir, path, Follow::Name)?)?;
    if is_device {
        let by = curproc::cred();
        access::may_create(&by, &dir.inode.ownership())?;
        by.need(Caps::MKNOD)?;
    }
    create(&dir, &name, new, asked(mode & 0o7777)?)
}

fn symlink(target: u64, link: u64) -> Result<()> {
    symlinkat(target, CWD, link)
}

fn symlinkat(target: u64, dir: i32, link: u64) -> Result<()> {
    let target = path(target)?;
    if target.is_empty() {
        return Err(ENOENT);
    }
    let (dir, name) = vacant_file(find(dir, link, Follow::Name)?)?;
    create(&dir, &name, NewNode::Symlink(&target), Asked::exactly(0o777))
}

fn readlink(path: u64, buf: u64, len: i32) -> Result<usize> {
    readlinkat(CWD, path, buf, len)
}

fn readlinkat(dir: i32, link: u64, buf: u64, len: i32) -> Result<usize> {
    let len = usize::try_from(len).ok().filter(|&len| len > 0).ok_or(EINVAL)?;
    let node = node(dir, link, abi::AT_EMPTY_PATH | abi::AT_SYMLINK_NOFOLLOW)?;
    if node.kind() != Kind::Symlink && path(link)?.is_empty() {
        return Err(ENOENT);
    }
    let target = node.read_link()?;
    let n = target.len().min(len);
    user::copy_out(buf, &target[..n])?;
    Ok(n)
}

fn link(old: u64, new: u64) -> Result<()> {
    linkat(CWD, old, CWD, new, 0)
}

fn linkat(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32) -> Result<()> {
    only(flags, abi::AT_SYMLINK_FOLLOW | abi::AT_EMPTY_PATH)?;
    let nofollow = if flags & abi::AT_SYMLINK_FOLLOW != 0 { 0 } else { abi::AT_SYMLINK_NOFOLLOW };
    let by = curproc::cred();
    if flags & abi::AT_EMPTY_PATH != 0 && !by.has(Caps::DAC_READ_SEARCH) {
        // A descriptor may be of a file that its holder could not have reached.
        return Err(ENOENT);
    }
    let Place { mount, inode: node, .. } =
        place_at(&by, old_dir, old, flags & abi::AT_EMPTY_PATH | nofollow)?;
    let (dir, name) = vacant_file(find(new_dir, new, Follow::Name)?)?;
    if !mount.is_some_and(|mount| Arc::ptr_eq(&mount, &dir.mount)) {
        return Err(EXDEV);
    }
    access::may_link(&by, &node.ownership())?;
    if node.kind() == Kind::Dir {
        access::may_create(&by, &dir.inode.ownership())?;
        return Err(EPERM);
    }
    dir.inode.link(&name, &node, &by)
}

fn unlink(path: u64) -> Result<()> {
    unlinkat(CWD, path, 0)
}

fn rmdir(path: u64) -> Result<()> {
    unlinkat(CWD, path, abi::AT_REMOVEDIR)
}

fn unlinkat(dir: i32, addr: u64, flags: u32) -> Result<()> {
    only(flags, abi::AT_REMOVEDIR)?;
    let path = path(addr)?;
    let start = start(dir, &path)?;
    let found = walk(&start, &path, Follow::Name)?;
    let removes_dir = flags & abi::AT_REMOVEDIR != 0;
    let Some(name) = found.name else {
        let dot = path.ends_with(b"/.") || path == b".";
        return Err(match (removes_dir, dot) {
            (true, true) => EINVAL,
            (true, false) if path.ends_with(b"..") => ENOTEMPTY,
            (true, false) => EBUSY,
            (false, _) => EISDIR,
        });
    };
    found.dir.mount.may_change()?;
    let is_dir = found.inode.ok_or(ENOENT)?.kind() == Kind::Dir;
    if removes_dir {
        if found.mounted.is_some() {
            return Err(EBUSY);
        }
        return found.dir.inode.unlink(&name, Unlink::Dir, &start.by);
    }
    if found.wants_dir && !is_dir {
        return Err(ENOTDIR);
    }
    found.dir.inode.unlink(&name, Unlink::File, &start.by)
}

fn rename(old: u64, new: u64) -> Result<()> {
    renameat2(CWD, old, CWD, new, 0)
}

fn renameat(old_dir: i32, old: u64, new_dir: i32, new: u64) -> Result<()> {
    renameat2(old_dir, old, new_dir, new, 0)
}

fn renameat2(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32) -> Result<()> {
    let mode = match flags {
        0 => RenameMode::Replace,
        abi::RENAME_NOREPLACE => RenameMode::NoReplace,
        abi::RENAME_EXCHANGE => RenameMode::Exchange,
        _ => return Err(EINVAL),
    };
    let old = find(old_dir, old, Follow::Name)?;
    let new = find(new_dir, new, Follow::Name)?;
    if !Arc::ptr_eq(&old.dir.mount, &new.dir.mount) {
        return Err(EXDEV);
    }
    let old_name = old.name.as_ref().ok_or(EBUSY)?;
    let taken = if mode == RenameMode::NoReplace { EEXIST } else { EBUSY };
    let new_name = new.name.as_ref().ok_or(taken)?;
    old.dir.mount.may_change()?;
    let inode = old.inode.as_ref().ok_or(ENOENT)?;
    match (mode, &new.inode) {
        (RenameMode::NoReplace, Some(_)) => return Err(EEXIST),
        (RenameMode::Exchange, None) => return Err(ENOENT),
        (RenameMode::Exchange, Some(other)) if new.wants_dir && other.kind() != Kind::Dir => {
            return Err(ENOTDIR);
        }
        _ => {}
    }
    let wants_dir = old.wants_dir || new.wants_dir && mode != RenameMode::Exchange;
    if wants_dir && inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    old.dir.inode.rename(old_name, &new.dir.inode, new_name, mode, &curproc::cred())
}

fn chdir(path: u64) -> Result<()> {
    enter(place(CWD, path, Follow::Yes)?.dir()?)
}

fn fchdir(fd: i32) -> Result<()> {
    enter(curproc::files()?.get_any(fd)?.place().dir()?)
}

fn enter(dir: Dir) -> Result<()> {
    if dir.inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    dir.inode.permits(&curproc::cred(), access::EXECUTE)?;
    curproc::context()?.set_cwd(dir);
    Ok(())
}

fn chroot(path: u64) -> Result<()> {
    let dir = place(CWD, path, Follow::Yes)?.dir()?;
    if dir.inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    let by = curproc::cred();
    dir.inode.permits(&by, access::EXECUTE)?;
    by.need(Caps::SYS_CHROOT)?;
    curproc::context()?.set_root(dir);
    Ok(())
}

fn getcwd(buf: u64, len: usize) -> Result<usize> {
    let context = curproc::context()?;
    let mut path = dir_path(&context.cwd(), Some(&context.root())).ok_or(ENOENT)?;
    path.push(0);
    if path.len() > PATH_MAX {
        return Err(ENAMETOOLONG);
    }
    if path.len() > len {
        return Err(ERANGE);
    }
    user::copy_out(buf, &path)?;
    Ok(path.len())
}

fn umask(mask: u32) -> Result<u32> {
    Ok(curproc::context()?.set_umask(mask))
}
