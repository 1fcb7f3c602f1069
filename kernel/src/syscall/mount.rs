//! Mounting and unmounting.

use alloc::string::String;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::path_args::{only, path, place, CWD};
use super::{calls, Calls};
use crate::block;
use crate::cred::caps::Caps;
use crate::dev::devfs;
use crate::dev::tty::devpts;
use crate::errno::*;
use crate::fs::inode::{same, InodeRef, Kind};
use crate::fs::mount::{self, Extent, Unmount};
use crate::fs::path::{Dir, Follow, PATH_MAX};
use crate::fs::{self, ext4, tmpfs, v9fs, Mode};
use crate::proc::curproc;
use crate::procfs;
use crate::user;

pub const CALLS: Calls = calls! { __NR_mount => mount[5], __NR_umount2 => umount2[2] };

/// Flags that have an effect, or ask for nothing that would be otherwise.
const KNOWN: u32 = mount::FLAGS
    | abi::MS_RELATIME
    | abi::MS_NODIRATIME
    | abi::MS_REMOUNT
    | abi::MS_BIND
    | abi::MS_MOVE
    | abi::MS_REC
    | abi::MS_SILENT;

fn mount(source: u64, target: u64, fs_type: u64, flags: u64, data: u64) -> Result<()> {
    /// Old programs mark their flags so.
    const MAGIC: u64 = 0xc0ed_0000;
    const MAGIC_MASK: u64 = 0xffff_0000;
    let target = place(CWD, target, Follow::Yes)?.dir()?;
    curproc::cred().need(Caps::SYS_ADMIN)?;
    let flags = if flags & MAGIC_MASK == MAGIC { flags & !MAGIC_MASK } else { flags };
    let flags = u32::try_from(flags).map_err(|_| EINVAL)?;
    if flags & (abi::MS_PRIVATE | abi::MS_SLAVE) != 0 {
        // What is mounted at one place shows at no other: all mounts are private, and none can be
        // the slave of another.
        let is_one =
            matches!(flags & !(abi::MS_REC | abi::MS_SILENT), abi::MS_PRIVATE | abi::MS_SLAVE);
        let is_mount = same(&target.inode, target.mount.root());
        return if is_one && is_mount { Ok(()) } else { Err(EINVAL) };
    }
    only(flags, KNOWN)?;
    if flags & abi::MS_REMOUNT != 0 {
        return remount(&target, flags, data);
    }
    if flags & abi::MS_MOVE != 0 {
        let from = place(CWD, source, Follow::Yes)?.dir()?;
        return mount::move_to(&target, &from);
    }
    if target.inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    if flags & abi::MS_BIND != 0 {
        let from = place(CWD, source, Follow::Yes)?.dir()?;
        if from.inode.kind() != Kind::Dir {
            return Err(ENOTDIR);
        }
        let extent = if flags & abi::MS_REC != 0 { Extent::Tree } else { Extent::Directory };
        return mount::bind(&target, &from, extent);
    }
    mount_new(&target, source, fs_type, flags, data)
}

fn remount(target: &Dir, flags: u32, data: u64) -> Result<()> {
    let data = options(data)?;
    mount::remount(target, flags, |root| {
        if flags & abi::MS_BIND != 0 || tmpfs::remount(root, &data)? {
            return Ok(());
        }
        // A folder of the host that was opened for reading can't be written.
        if v9fs::has(root) && root.is_read_only() && flags & abi::MS_RDONLY == 0 {
            return Err(EINVAL);
        }
        ext4::remount(root, mode(flags))
    })
}

/// Mounts a file system that isn't mounted.
fn mount_new(target: &Dir, source: u64, fs_type: u64, flags: u32, data: u64) -> Result<()> {
    if fs_type == 0 {
        return Err(EINVAL);
    }
    let fs_type = path(fs_type)?;
    let name = if source == 0 { Vec::new() } else { path(source)? };
    let mut of_terminals = None;
    let (fs_type, root): (_, InodeRef) = match fs_type.as_slice() {
        b"proc" => ("proc", procfs::create()),
        b"sysfs" => ("sysfs", procfs::create_sys()),
        b"tmpfs" => ("tmpfs", tmpfs::TmpFs::mount(&tmpfs::Options::parse(&options(data)?)?)?),
        b"ramfs" => ("tmpfs", tmpfs::TmpFs::mount(&tmpfs::Options::UNLIMITED)?),
        b"devpts" => {
            of_terminals = Some(devpts::options(&options(data)?)?);
            ("devpts", devpts::root())
        }
        b"devtmpfs" => ("devtmpfs", devfs::create(&mount::in_memory().inode)?),
        b"ext4" | b"ext3" | b"ext2" => ("ext4", mount_disk(source, flags)?),
        b"9p" => {
            of_host(&options(data)?)?;
            ("9p", v9fs::mount(&name, mode(flags))?)
        }
        _ => return Err(ENODEV),
    };
    let name = String::from_utf8_lossy(&name).into_owned();
    let mounted = mount::mount(target, root.clone(), name, fs_type, flags);
    match mounted {
        Ok(_) => of_terminals.into_iter().for_each(devpts::Options::apply),
        Err(_) => fs::unmount(&root)?,
    }
    mounted
}

/// A mount's options for its file system, as text.
fn options(data: u64) -> Result<Vec<u8>> {
    if data == 0 {
        return Ok(Vec::new());
    }
    user::read_cstr(data, PATH_MAX)
}

/// Options of a folder of the host: what it can only be.
fn of_host(options: &[u8]) -> Result<()> {
    let is_so = |word: &[u8]| matches!(word, b"" | b"trans=virtio" | b"version=9p2000.L");
    if options.split(|&byte| byte == b',').all(is_so) {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// The root directory of the file system on the block device at a path.
fn mount_disk(source: u64, flags: u32) -> Result<InodeRef> {
    let place = place(CWD, source, Follow::Yes)?;
    if place.inode.kind() != Kind::Block {
        return Err(ENOTBLK);
    }
    if place.mount_flags() & abi::MS_NODEV != 0 {
        return Err(EACCES);
    }
    let disk = block::by_number(place.inode.stat().rdev).ok_or(ENXIO)?;
    ext4::mount(disk, mode(flags))
}

fn mode(flags: u32) -> Mode {
    if flags & abi::MS_RDONLY != 0 {
        Mode::ReadOnly
    } else {
        Mode::ReadWrite
    }
}

fn umount2(target: u64, flags: u32) -> Result<()> {
    only(flags, abi::MNT_FORCE | abi::MNT_DETACH | abi::UMOUNT_NOFOLLOW)?;
    let follow = if flags & abi::UMOUNT_NOFOLLOW != 0 { Follow::No } else { Follow::Yes };
    let dir = place(CWD, target, follow)?.dir()?;
    curproc::cred().need(Caps::SYS_ADMIN)?;
    let how = if flags & abi::MNT_DETACH != 0 { Unmount::Lazily } else { Unmount::IfUnused };
    mount::unmount(&dir, how, fs::unmount)
}
