//! What is mounted where: one tree for the whole system.
//!
//! A mount shows a directory, of a file system or of a part of one, over another directory as it is
//! seen by one mount: what is mounted on a directory isn't there where the same directory is bound
//! to another place. Whoever is inside holds the mount: a working directory, an open file, another
//! mount.
//!
//! Invariants: I1: a directory's mount mark is set exactly while the table has an entry that covers
//! it, so that the path walk looks here only when there is something to find. I2: of a mount that
//! isn't in the table any more, nothing is above: its `covers` is `None`.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general as abi;
use spin::Once;

use super::file::File;
use super::inode::{same, InodeRef};
use super::path::{dir_path, Dir, PATH_MAX};
use super::{current, tmpfs};
use crate::errno::*;
use crate::sched::{self, Nanos};
use crate::sync::SpinLock;

/// One mounted directory.
pub struct Mount {
    /// As `/proc/PID/mountinfo` names it.
    id: u64,
    root: InodeRef,
    /// The file system's device number.
    dev: u64,
    covers: SpinLock<Option<Dir>>,
    pub source: String,
    pub fs_type: &'static str,
    flags: AtomicU32,
}

/// What may be said where something is mounted: device nodes can't be opened there, programs can't
/// be run or mapped as such, and reads leave access times, or always change them. Set-id bits,
/// which the third flag is about, give no program other ids here.
pub const FLAGS: u32 =
    abi::MS_NODEV | abi::MS_NOEXEC | abi::MS_NOSUID | abi::MS_NOATIME | abi::MS_STRICTATIME;

impl Mount {
    fn new(
        root: InodeRef,
        covers: Option<Dir>,
        source: String,
        fs_type: &'static str,
        flags: u32,
    ) -> Arc<Mount> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Mount {
            id: IDS.fetch_add(1, Relaxed),
            dev: root.stat().dev,
            root,
            covers: SpinLock::new(covers),
            source,
            fs_type,
            flags: AtomicU32::new(flags & FLAGS),
        })
    }

    /// What is shown.
    pub fn root(&self) -> &InodeRef {
        &self.root
    }

    /// What it is mounted on; `None` for the root of everything, and for what was unmounted.
    pub fn covers(&self) -> Option<Dir> {
        self.covers.lock().clone()
    }

    /// The path of what is shown in its file system; as [`dir_path`].
    pub fn root_path(&self) -> Vec<u8> {
        let mut backwards = Vec::new();
        let mut above = self.root.parent();
        while let Some((dir, name)) = above.filter(|_| backwards.len() <= PATH_MAX) {
            backwards.extend(name.iter().rev());
            backwards.push(b'/');
            above = dir.parent();
        }
        if backwards.is_empty() {
            backwards.push(b'/');
        }
        backwards.reverse();
        backwards
    }

    /// Its number and that of the mount that it is on.
    pub fn ids(&self) -> (u64, u64) {
        (self.id, self.covers().map_or(self.id, |on| on.mount.id))
    }

    /// Of [`FLAGS`].
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Changes the flags; without a word about access times, they are treated as before.
    pub fn change_flags(&self, flags: u32) {
        const TIMES: u32 = abi::MS_NOATIME | abi::MS_STRICTATIME;
        let says = flags & (TIMES | abi::MS_RELATIME | abi::MS_NODIRATIME) != 0;
        let kept = if says { 0 } else { self.flags() & TIMES };
        self.flags.store(flags & FLAGS | kept, Relaxed);
    }

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
            if self.flags() & flag != 0 {
                shown += name;
            }
        }
        if self.flags() & (abi::MS_NOATIME | abi::MS_STRICTATIME) == 0 {
            shown += ",relatime";
        }
        shown + &tmpfs::shown_options(&self.root)
    }

    /// Where it is, as the running process sees it; `None` if that is outside of its root.
    pub fn place(self: &Arc<Mount>) -> Option<String> {
        let root = current::context().ok()?.root();
        let top = Dir { mount: self.clone(), inode: self.root.clone() };
        let path = dir_path(&top, Some(&root))?;
        let is_inside = path.first() == Some(&b'/');
        is_inside.then(|| String::from_utf8_lossy(&path).into_owned())
    }
}

/// Whether the running process has the root of everything for its own.
pub fn sees_all() -> bool {
    current::context().is_ok_and(|context| context.root().same(&self::root()))
}

/// The access time of a node that was read now, by way of an open file: without `O_NOATIME` and
/// flags of the mount, it follows once per change (`relatime`).
pub fn access_time(file: &File, atime: Nanos, mtime: Nanos) -> Nanos {
    let flags = file.place().mount_flags();
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

/// More than any program needs; bounds the table, and how deep mounts lie on each other.
const MAX_MOUNTS: usize = 256;

static ROOT: Once<Dir> = Once::new();
/// All but the root; what a mount is on is before it.
static MOUNTS: SpinLock<Vec<Arc<Mount>>> = SpinLock::new(Vec::new());

/// Sets the root of everything, once.
pub fn set_root(inode: InodeRef) {
    let mount = Mount::new(inode.clone(), None, String::from("rootfs"), "tmpfs", 0);
    ROOT.call_once(|| Dir { mount, inode });
}

/// The root of everything.
pub fn root() -> Dir {
    ROOT.get().expect("the root file system is mounted at boot").clone()
}

/// Mounts `root` on `covered`.
///
/// # Errors
/// `ENOSPC`; `EINVAL` for a directory that nothing can be mounted on.
pub fn mount(
    covered: Dir,
    root: InodeRef,
    source: String,
    fs_type: &'static str,
    flags: u32,
) -> Result<()> {
    add(Vec::from([Mount::new(root, Some(covered), source, fs_type, flags)]))
}

/// Shows the directory `from` at `covered` too, with `whole_tree` all that is mounted below it.
///
/// # Errors
/// As for [`mount`].
pub fn bind(covered: Dir, from: Dir, whole_tree: bool) -> Result<()> {
    let copy = |mount: &Mount, root: &InodeRef, covers: Dir| {
        Mount::new(root.clone(), Some(covers), mount.source.clone(), mount.fs_type, mount.flags())
    };
    let first = copy(&from.mount, &from.inode, covered);
    let all = if whole_tree { MOUNTS.lock().clone() } else { Vec::new() };
    let mut copied = Vec::from([(from.mount.clone(), first)]);
    for mount in all {
        let Some(on) = mount.covers() else { continue };
        let Some((_, below)) = copied.iter().find(|(old, _)| Arc::ptr_eq(old, &on.mount)) else {
            continue;
        };
        if !Arc::ptr_eq(&on.mount, &from.mount) || on.is_below(&from) {
            let on = Dir { mount: below.clone(), inode: on.inode };
            let copy = copy(&mount, &mount.root, on);
            copied.push((mount, copy));
        }
    }
    add(copied.into_iter().map(|(_, copy)| copy).collect())
}

/// Puts mounts into the table, all or none; the first is on what is seen at the directory that it
/// names, the others are on each other.
fn add(mut new: Vec<Arc<Mount>>) -> Result<()> {
    let outcome = try_add(&mut new);
    // Each before the one that it is on.
    while new.pop().is_some() {}
    outcome
}

fn try_add(new: &mut Vec<Arc<Mount>>) -> Result<()> {
    let mut mounts = MOUNTS.lock();
    if mounts.len() + new.len() > MAX_MOUNTS {
        return Err(ENOSPC);
    }
    let first = new[0].covers().ok_or(EINVAL)?;
    if !is_attached(&mounts, &first.mount) {
        return Err(EINVAL);
    }
    if let Some(top) = top_of(&mounts, &first.mount, &first.inode) {
        *new[0].covers.lock() = Some(top);
    }
    let mark = |mount: &Mount| mount.covers().is_some_and(|on| on.inode.set_mount_point(true));
    if let Some(n) = new.iter().position(|mount| !mark(mount)) {
        let _old: Vec<_> = new[..n].iter().map(|mount| take_off(&mounts, mount)).collect();
        return Err(EINVAL);
    }
    mounts.append(new);
    Ok(())
}

/// Whether a mount is in the table, or the root's.
fn is_attached(mounts: &[Arc<Mount>], mount: &Arc<Mount>) -> bool {
    Arc::ptr_eq(mount, &root().mount) || is_in(mounts, mount)
}

/// Takes a mount off the directory that it covers, which loses its mark if no other mount covers
/// it. The directory is for the caller to let go without the table's lock.
fn take_off(mounts: &[Arc<Mount>], gone: &Mount) -> Option<Dir> {
    let covered = gone.covers.lock().take()?;
    let covers = |mount: &Arc<Mount>| {
        mount.covers.lock().as_ref().is_some_and(|on| same(&on.inode, &covered.inode))
    };
    if !mounts.iter().any(covers) {
        covered.inode.set_mount_point(false);
    }
    Some(covered)
}

/// How something is unmounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// When it isn't in use.
    Idle,
    /// With all that is mounted on it; whoever uses it keeps it until he is done.
    Detach,
}

/// Unmounts what a walk came to; `end` ends the use of the file system, if it is shown nowhere
/// else.
///
/// # Errors
/// `EINVAL`: it isn't the root of a mount; `EBUSY`: it is in use, it is the root of everything, or
/// a disk would go with what it is mounted on; of `end`.
pub fn unmount(dir: Dir, how: Unmount, end: impl FnOnce(&InodeRef) -> Result<()>) -> Result<()> {
    /// In the table, and in `dir`.
    const OWN: usize = 2;
    if !same(&dir.inode, &dir.mount.root) {
        return Err(EINVAL);
    }
    if Arc::ptr_eq(&dir.mount, &root().mount) {
        return Err(EBUSY);
    }
    let is_last = {
        let mounts = MOUNTS.lock();
        if !is_attached(&mounts, &dir.mount) {
            return Err(EINVAL);
        }
        let in_use = Arc::strong_count(&dir.mount) > OWN;
        let tree = tree_of(&mounts, &dir.mount);
        let is_last = |mount: &Arc<Mount>| {
            let mut others = mounts.iter().filter(|other| other.dev == mount.dev);
            others.all(|other| is_in(&tree, other))
        };
        let takes_disk = tree[1..].iter().any(|mount| mount.fs_type == "ext4" && is_last(mount));
        if takes_disk || how == Unmount::Idle && (in_use || tree.len() > 1) {
            return Err(EBUSY);
        }
        is_last(&dir.mount)
    };
    if is_last {
        end(&dir.inode)?;
    }
    let mut mounts = MOUNTS.lock();
    let tree = tree_of(&mounts, &dir.mount);
    mounts.retain(|mount| !is_in(&tree, mount));
    let _covered: Vec<_> = tree.iter().map(|mount| take_off(&mounts, mount)).collect();
    drop(mounts);
    Ok(())
}

/// A mount and all that is mounted on it, each behind the one that it is on.
fn tree_of(mounts: &[Arc<Mount>], mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
    let mut tree = Vec::from([mount.clone()]);
    for mount in mounts {
        if mount.covers.lock().as_ref().is_some_and(|on| is_in(&tree, &on.mount)) {
            tree.push(mount.clone());
        }
    }
    tree
}

fn is_in(all: &[Arc<Mount>], mount: &Arc<Mount>) -> bool {
    all.iter().any(|one| Arc::ptr_eq(one, mount))
}

/// What a program sees at a directory that it came to by `mount`: the topmost of what is mounted
/// there; `None` if nothing is.
#[inline]
pub fn top(mount: &Arc<Mount>, inode: &InodeRef) -> Option<Dir> {
    if !inode.is_mount_point() {
        return None;
    }
    top_of(&MOUNTS.lock(), mount, inode)
}

fn top_of(mounts: &[Arc<Mount>], mount: &Arc<Mount>, inode: &InodeRef) -> Option<Dir> {
    let is_on = |one: &Mount, mount: &Arc<Mount>, inode: &InodeRef| {
        let covers = one.covers.lock();
        covers.as_ref().is_some_and(|on| Arc::ptr_eq(&on.mount, mount) && same(&on.inode, inode))
    };
    // What a mount is on is before it.
    let top = mounts.iter().fold(None, |top: Option<&Arc<Mount>>, one| {
        let (mount, inode) = top.map_or((mount, inode), |top| (top, &top.root));
        if is_on(one, mount, inode) {
            Some(one)
        } else {
            top
        }
    })?;
    Some(Dir { mount: top.clone(), inode: top.root.clone() })
}

/// An entry of the table, for `/proc/mounts`.
pub fn nth(index: usize) -> Option<Arc<Mount>> {
    MOUNTS.lock().get(index).cloned()
}
