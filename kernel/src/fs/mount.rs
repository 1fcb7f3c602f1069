//! What is mounted where: one table for the whole system.
//!
//! Invariants: I1: a directory's mount mark is set exactly while the table has an entry that covers
//! it, so that the path walk looks here only when there is something to find.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general as abi;
use spin::Once;

use super::file::File;
use super::inode::{same, Inode, InodeRef};
use super::path::dir_path;
use super::{current, tmpfs};
use crate::errno::*;
use crate::sched::{self, Nanos};
use crate::sync::SpinLock;

/// One mounted file system.
#[derive(Clone)]
pub struct Mount {
    pub covered: InodeRef,
    pub root: InodeRef,
    pub source: String,
    pub fs_type: &'static str,
}

impl Mount {
    /// `rw` or `ro`, and what else the table shows.
    pub fn options(&self) -> String {
        let mode = if self.root.fs_stat().read_only { "ro" } else { "rw" };
        let mut shown = String::from(mode);
        for (flag, name) in [
            (abi::MS_NOSUID, ",nosuid"),
            (abi::MS_NODEV, ",nodev"),
            (abi::MS_NOEXEC, ",noexec"),
            (abi::MS_NOATIME, ",noatime"),
        ] {
            if has_flag(&*self.root, flag) {
                shown += name;
            }
        }
        if flags(&*self.root) & (abi::MS_NOATIME | abi::MS_STRICTATIME) == 0 {
            shown += ",relatime";
        }
        shown + &tmpfs::shown_options(&self.root)
    }
}

impl Mount {
    /// Where it is, as the running process sees it; `None` if that is outside of its root.
    pub fn place(&self) -> Option<String> {
        let root = current::context().ok()?.root();
        let path = dir_path(&self.covered, Some(&root))?;
        let is_inside = path.first() == Some(&b'/');
        is_inside.then(|| String::from_utf8_lossy(&path).into_owned())
    }
}

/// Whether the running process has the root of everything for its own.
pub fn sees_all() -> bool {
    current::context().is_ok_and(|context| same(&context.root(), &self::root()))
}

/// What a file system may be mounted with: its device nodes can't be opened, its programs can't be
/// run or mapped as such, and reads leave access times, or always change them. Set-id bits, which
/// the third flag is about, give no program other ids here. The flags are the file system's,
/// wherever else its folders are bound.
pub const FLAGS: u32 =
    abi::MS_NODEV | abi::MS_NOEXEC | abi::MS_NOSUID | abi::MS_NOATIME | abi::MS_STRICTATIME;

/// Whether a node's file system is mounted with one of the [`FLAGS`].
pub fn has_flag(node: &dyn Inode, flag: u32) -> bool {
    flags(node) & flag != 0
}

/// The [`FLAGS`] that a node's file system is mounted with.
pub fn flags(node: &dyn Inode) -> u32 {
    node.mount_flags().map_or(0, |flags| flags.load(Relaxed))
}

/// The access time of a node that was read now, by way of an open file: without `O_NOATIME` and
/// flags of the mount, it follows once per change (`relatime`).
pub fn access_time(file: &File, atime: Nanos, mtime: Nanos) -> Nanos {
    let flags = flags(&**file.inode());
    if file.flags() & abi::O_NOATIME != 0 || flags & abi::MS_NOATIME != 0 {
        atime
    } else if flags & abi::MS_STRICTATIME != 0 {
        sched::wall()
    } else if atime <= mtime {
        sched::wall().max(mtime + 1)
    } else {
        atime
    }
}

/// Gives a file system the flags that a program says; when it is mounted anew without a word about
/// access times, they are treated as before.
pub fn set_flags(root: &InodeRef, flags: u64) {
    const TIMES: u32 = abi::MS_NOATIME | abi::MS_STRICTATIME;
    let flags = flags as u32;
    let Some(own) = root.mount_flags() else { return };
    let says = flags & (TIMES | abi::MS_RELATIME | abi::MS_NODIRATIME) != 0;
    let kept = if flags & abi::MS_REMOUNT != 0 && !says { own.load(Relaxed) & TIMES } else { 0 };
    own.store(flags & FLAGS | kept, Relaxed);
}

/// More than any program needs; bounds the table.
const MAX_MOUNTS: usize = 256;

static ROOT: Once<InodeRef> = Once::new();
static MOUNTS: SpinLock<Vec<Mount>> = SpinLock::new(Vec::new());

/// Sets the root of everything, once.
pub fn set_root(root: InodeRef) {
    ROOT.call_once(|| root);
}

/// The root of everything.
pub fn root() -> InodeRef {
    ROOT.get().expect("the root file system is mounted at boot").clone()
}

/// Mounts `root` over `covered`.
///
/// # Errors
/// `ELOOP` if a walk from `root` through what is mounted would come by `covered`, and never end;
/// `ENOSPC`, `EINVAL`.
pub fn mount(
    covered: InodeRef,
    root: InodeRef,
    source: String,
    fs_type: &'static str,
) -> Result<()> {
    let mut mounts = MOUNTS.lock();
    if mounts.len() >= MAX_MOUNTS {
        return Err(ENOSPC);
    }
    let mut at = Some(&root);
    while let Some(inode) = at {
        if same(inode, &covered) {
            return Err(ELOOP);
        }
        at = mounts.iter().find(|mount| same(&mount.covered, inode)).map(|mount| &mount.root);
    }
    if !covered.set_mount_point(true) {
        return Err(EINVAL);
    }
    mounts.push(Mount { covered, root, source, fs_type });
    Ok(())
}

/// Whether this is the root directory of something mounted.
pub fn is_root(root: &InodeRef) -> bool {
    MOUNTS.lock().iter().any(|mount| same(&mount.root, root))
}

/// Removes the newest mount whose root is `root`.
pub fn unmount(root: &InodeRef) -> Result<()> {
    let mut mounts = MOUNTS.lock();
    let index = mounts.iter().rposition(|mount| same(&mount.root, root)).ok_or(EINVAL)?;
    let gone = mounts.remove(index);
    gone.covered.set_mount_point(false);
    drop(mounts);
    Ok(())
}

/// What a program sees at `inode`: the topmost file system mounted there, or itself.
#[inline]
pub fn top(mut inode: InodeRef) -> InodeRef {
    while inode.is_mount_point() {
        let mounts = MOUNTS.lock();
        let Some(mount) = mounts.iter().find(|mount| same(&mount.covered, &inode)) else { break };
        let root = mount.root.clone();
        drop(mounts);
        inode = root;
    }
    inode
}

/// The directory that the file system with this root covers.
pub fn covered_by(root: &InodeRef) -> Option<InodeRef> {
    MOUNTS.lock().iter().find(|mount| same(&mount.root, root)).map(|mount| mount.covered.clone())
}

/// The directories that the file system with this root covers, wherever it is bound.
pub fn all_covered_by(root: &InodeRef) -> Vec<InodeRef> {
    let mounts = MOUNTS.lock();
    let is_its = |mount: &&Mount| same(&mount.root, root);
    mounts.iter().filter(is_its).map(|mount| mount.covered.clone()).collect()
}

/// An entry of the table, for `/proc/mounts`.
pub fn nth(index: usize) -> Option<Mount> {
    MOUNTS.lock().get(index).cloned()
}
