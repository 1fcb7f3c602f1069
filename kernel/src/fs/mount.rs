//! What is mounted where: one table for the whole system.
//!
//! Invariants: I1: a directory's mount mark is set exactly while the table has an entry that covers
//! it, so that the path walk looks here only when there is something to find.

use alloc::string::String;
use alloc::vec::Vec;

use spin::Once;

use super::inode::{same, InodeRef};
use super::tmpfs;
use crate::errno::*;
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
        String::from(mode) + &tmpfs::shown_options(&self.root)
    }
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

/// An entry of the table, for `/proc/mounts`.
pub fn nth(index: usize) -> Option<Mount> {
    MOUNTS.lock().get(index).cloned()
}
