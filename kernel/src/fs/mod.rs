//! Files: the tree of names, open files and descriptors.
//!
//! ```text
//!   syscall/{file,fd,dir,stat,poll,ioctl}   system calls
//!        |
//!   curproc -> FdTable -> File -> FileOps    what a number refers to      (fdtable, file)
//!   path walk: FsContext, mount -> Inode     what a name refers to        (path, context, mount)
//!        |
//!   tmpfs  ext4  v9fs  pipe  eventfd  epoll  procfs  net::socket  dev::{tty,disk}
//! ```
//!
//! Reading order: `inode` and `ops` (the traits), `path`, `file`, `tmpfs`. User memory is reached
//! only through `uio::Sink` and `uio::Source`, so a bad pointer is an error value everywhere.

pub mod access;
pub mod acl;
pub mod context;
pub mod cpio;
pub mod epoll;
pub mod eventfd;
pub mod export;
pub mod ext4;
pub mod fdtable;
pub mod file;
pub mod inode;
pub mod lease;
mod listing;
pub mod lock;
pub mod mount;
pub mod ops;
pub mod path;
pub mod pipe;
pub mod random;
pub mod signals;
pub mod swap;
pub mod timerfd;
pub mod tmpfs;
mod unpack;
pub mod v9fs;
pub mod xattr;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spin::Once;

pub use ext4::Mode;
pub use file::File;

use crate::block;
use crate::cred::Cred;
use crate::devnum::device_number;
use crate::errno::*;
use crate::mem::Initramfs;
use crate::println;
use crate::sched::{self, Nanos};
use crate::vm;
use inode::InodeRef;
use path::{resolve, Follow, Start};

/// Device numbers of things that are in no file system.
pub const PIPE_DEVICE: u64 = 0xc;
pub const SOCKET_DEVICE: u64 = 0x8;

/// A device number for a new file system that is on no device: of major number 0.
pub fn new_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0x10);
    device_number(0, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An inode number for a pipe, socket or the like.
pub fn new_ino() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The time of day at which the files came up.
pub fn boot_time() -> Nanos {
    static BOOT: Once<Nanos> = Once::new();
    *BOOT.call_once(sched::wall)
}

/// The machine's memory in pages: all, and what is free.
pub fn memory_pages() -> (u64, u64) {
    let stats = vm::stats();
    (stats.total_pages, stats.free_pages)
}

/// Makes the tree: an empty root, and the initramfs in it. Returns how many members of the archive
/// could not be unpacked.
pub fn init(initramfs: Initramfs) -> Result<usize> {
    boot_time();
    let unlimited = tmpfs::Options { perm: Some(0o755), ..tmpfs::Options::UNLIMITED };
    let tmpfs = tmpfs::TmpFs::mount(&unlimited)?;
    let root: InodeRef = tmpfs.clone();
    mount::set_root(root.clone());
    let failed = unpack::unpack(initramfs, mount::root());
    tmpfs.limit();
    for dir in ["/tmp", "/run"] {
        if resolve(&root_start(), dir.as_bytes(), Follow::Yes).is_err() {
            root.create(
                &dir.as_bytes()[1..],
                inode::NewNode::Dir,
                inode::Asked::exactly(0o1777),
                &Cred::kernel(),
            )?;
        }
    }
    Ok(failed)
}

/// Mounts what the command line names by `root=DEVICE[:ro]`, `mount=DEVICE:FOLDER[:ro]` and
/// `share=TAG:FOLDER[:ro]`, up to what can't be mounted, which is said; in a thread, since it waits
/// for disks and for the host.
pub fn mount_named(cmdline: &str) -> Result<()> {
    for word in cmdline.split_ascii_whitespace().take_while(|&word| word != "--") {
        let Some((kind @ ("root" | "mount" | "share"), what)) = word.split_once('=') else {
            continue;
        };
        let (place, mode) = match what.strip_suffix(":ro") {
            Some(place) => (place, Mode::ReadOnly),
            None => (what, Mode::ReadWrite),
        };
        let mounted = match place.split_once(':') {
            Some((device, folder)) if kind == "mount" => {
                mount_disk(device, mode, |root| mount::mount_at(folder, root, device, "ext4"))
            }
            Some((tag, folder)) if kind == "share" => {
                let root = v9fs::mount(tag.as_bytes(), mode)?;
                mount::mount_at(folder, root.clone(), tag, "9p")
                    .inspect_err(|_| _ = v9fs::unmount(&root))
            }
            None if kind == "root" => {
                mount_disk(place, mode, |root| mount::change_root(root, place, "ext4"))
            }
            _ => Err(EINVAL),
        };
        mounted.inspect_err(|errno| {
            let why = reason(*errno);
            println!("uvm: {what} can't be mounted{why} ({errno:?}), so nothing is started");
        })?;
    }
    Ok(())
}

fn reason(errno: Errno) -> &'static str {
    match errno {
        ENOENT | ENXIO => ": there is no such disk, folder or share",
        EINVAL => ": there is no ext4 file system on it that this kernel can read",
        EACCES => ": it can only be read",
        EROFS => ": it can only be read, and a folder is missing there",
        EBUSY => ": it is in use",
        EIO => ": it can't be read, or is damaged",
        _ => "",
    }
}

fn mount_disk(device: &str, mode: Mode, show: impl FnOnce(InodeRef) -> Result<()>) -> Result<()> {
    let node = resolve(&root_start(), device.as_bytes(), Follow::Yes)?.inode;
    let disk = block::by_number(node.stat().rdev).ok_or(ENXIO)?;
    let root = ext4::mount(disk, mode)?;
    show(root.clone()).inspect_err(|_| _ = ext4::unmount(&root))
}

fn root_start() -> Start {
    Start::kernel(mount::root())
}

/// Writes everything back, and waits for it.
pub fn sync_all() {
    ext4::sync_all();
    v9fs::sync_all();
}

/// Has the file behind a memory object written back; `false` if it is no file.
///
/// # Errors
/// As `fsync`.
pub fn sync_object(id: u64) -> Result<bool> {
    Ok(ext4::sync_object(id)? || v9fs::sync_object(id)?)
}

/// Closes the file system of this directory, which was mounted, if it has a disk or the host's
/// folder below it.
///
/// # Errors
/// `EBUSY`: something of it is in use; `EIO`.
pub fn unmount(root: &InodeRef) -> Result<()> {
    let _ = ext4::unmount(root)? || v9fs::unmount(root)?;
    Ok(())
}

/// Memory is short: what is kept though it is unused shall go. The page daemon's.
pub fn memory_is_short() {
    ext4::memory_is_short();
    v9fs::wake_to_forget();
}

/// Drops pages of files that can be had again.
pub fn drop_pages() {
    ext4::drop_pages();
    v9fs::drop_pages();
}

/// Forgets names and nodes that can be had again.
pub fn drop_nodes() {
    ext4::drop_nodes();
    v9fs::drop_nodes();
}

/// Before the machine goes off: what was written is on the disks and the host's.
pub fn shut_down() {
    v9fs::sync_all();
    ext4::shut_down();
}

/// Opens a path from the root for the kernel's own use.
pub fn open_kernel(path: &str, flags: u32) -> Result<Arc<File>> {
    File::open(resolve(&root_start(), path.as_bytes(), Follow::Yes)?, flags)
}
