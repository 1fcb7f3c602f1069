//! The mount table: one for all processes.
//!
//! A mount shows a directory (its root) over another directory in another mount. A bind mount shows
//! a directory that is mounted elsewhere too; mounts on it there don't appear here. Working
//! directories, open files and child mounts hold a reference to their mount.
//!
//! Locks: `CHANGES`, held across a whole change; then `MOUNTS`, then one mount's `mount_point`,
//! which both spin. [`Cover`] needs none.
//!
//! Invariants: I1: a directory's [`Cover`] says that it is covered exactly while the table has a
//! mount on it, so that a path walk looks here only when there is something to find. I2: the table
//! lists a mount behind the mount that it is on. I3: a mount that has left the table has no mount
//! point, so no drop of a mount drops another. I4: of a disk, no mount outside the table is in use.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use linux_raw_sys::general as abi;
use spin::Once;

use super::inode::{same, Asked, Cover, InodeRef, Kind, NewNode};
use super::path::{dir_path, walk, Dir, Follow, Start, PATH_MAX};
use crate::errno::*;
use crate::sched;
use crate::sync::{Mutex, SpinLock, WaitQueue};

/// A file system, in all places where it is mounted.
#[derive(Default)]
struct FileSystem {
    /// It was mounted for reading only.
    is_read_only: AtomicBool,
    /// Files that are open for writing.
    writers: AtomicU32,
}

/// What is done with a mount. It outlives the mount where it has to, as it may be let go where
/// nothing may sleep.
#[derive(Default)]
struct Uses {
    /// Files that are open for writing.
    writers: AtomicU32,
    /// Files that are mapped.
    mappings: AtomicU32,
}

/// A file that is open for writing, in one mount. While there is one, neither the mount nor its
/// file system becomes one for reading only.
pub struct Writer {
    mount: Arc<Uses>,
    fs: Arc<FileSystem>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.mount.writers.fetch_sub(1, SeqCst);
        self.fs.writers.fetch_sub(1, SeqCst);
    }
}

/// A file that is mapped, in one mount, which is not unmounted meanwhile. It may be let go with a
/// map locked.
pub struct MappedFile {
    mount: Arc<Uses>,
    /// Of a file that was opened for writing, however it is mapped.
    _writer: Option<Arc<Writer>>,
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.mount.mappings.fetch_sub(1, SeqCst);
    }
}

/// One mounted directory.
pub struct Mount {
    /// As `/proc/PID/mountinfo` names it.
    id: u64,
    root: InodeRef,
    /// The file system's device number.
    dev: u64,
    /// The root has a directory above in its file system.
    shows_part: bool,
    /// Has its own lock, as walks upwards read it without the table's.
    mount_point: SpinLock<Option<Dir>>,
    source: String,
    fs_type: &'static str,
    fs: Arc<FileSystem>,
    flags: AtomicU32,
    uses: Arc<Uses>,
    /// The directory is being unmounted: walks pass the mount by.
    is_leaving: AtomicBool,
}

/// Flags of one mount, as `mount(2)` takes them. Set-id bits, which `MS_NOSUID` is about, give no
/// program other ids here.
pub const FLAGS: u32 = abi::MS_RDONLY
    | abi::MS_NODEV
    | abi::MS_NOEXEC
    | abi::MS_NOSUID
    | abi::MS_NOATIME
    | abi::MS_STRICTATIME;

impl Mount {
    fn new(
        root: InodeRef,
        mount_point: Option<Dir>,
        source: String,
        fs_type: &'static str,
        flags: u32,
    ) -> Arc<Mount> {
        let fs = FileSystem::default();
        fs.is_read_only.store(flags & abi::MS_RDONLY != 0, Relaxed);
        Self::of(Arc::new(fs), root, mount_point, source, fs_type, flags)
    }

    fn of(
        fs: Arc<FileSystem>,
        root: InodeRef,
        mount_point: Option<Dir>,
        source: String,
        fs_type: &'static str,
        flags: u32,
    ) -> Arc<Mount> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Mount {
            id: IDS.fetch_add(1, Relaxed),
            dev: root.stat().dev,
            shows_part: root.parent().is_some(),
            root,
            mount_point: SpinLock::new(mount_point),
            source,
            fs_type,
            fs,
            flags: AtomicU32::new(flags & FLAGS),
            uses: Arc::default(),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// A mount of the same directory at another place.
    fn copy(&self, root: &InodeRef, mount_point: Dir) -> Arc<Mount> {
        let source = self.source.clone();
        let (fs, on) = (self.fs.clone(), Some(mount_point));
        Mount::of(fs, root.clone(), on, source, self.fs_type, self.flags())
    }

    /// The directory at the mount's root.
    pub fn root(&self) -> &InodeRef {
        &self.root
    }

    /// The root, as a walk comes to it.
    pub fn top(self: &Arc<Mount>) -> Dir {
        Dir { mount: self.clone(), inode: self.root.clone() }
    }

    /// Whether its file system has directories outside of the root.
    pub fn shows_part(&self) -> bool {
        self.shows_part
    }

    /// The directory that it is on; `None` for the first mount and for one that was unmounted.
    pub fn mount_point(&self) -> Option<Dir> {
        self.mount_point.lock().clone()
    }

    fn is_on(&self, mount: &Arc<Mount>) -> bool {
        self.mount_point.lock().as_ref().is_some_and(|on| Arc::ptr_eq(&on.mount, mount))
    }

    /// The path of the root in its file system; of one longer than [`PATH_MAX`], the end.
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

    /// Its number in `/proc/PID/mountinfo`.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the mount that it is on; its own, if it is on none.
    pub fn parent_id(&self) -> u64 {
        self.mount_point().map_or(self.id, |on| on.mount.id)
    }

    pub fn dev(&self) -> u64 {
        self.dev
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn fs_type(&self) -> &'static str {
        self.fs_type
    }

    /// Its flags, of [`FLAGS`].
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Its options as `/proc/PID/mountinfo` shows them.
    pub fn options(&self) -> String {
        self.options_with(self.flags() & abi::MS_RDONLY != 0)
    }

    /// Its options as `/proc/mounts` shows them, where those of its file system count.
    pub fn options_anywhere(&self) -> String {
        self.options_with(self.is_read_only())
    }

    fn options_with(&self, is_read_only: bool) -> String {
        let mut shown = mode(is_read_only);
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
        shown
    }

    /// `rw` or `ro`, as its file system is in all places.
    pub fn fs_mode(&self) -> String {
        mode(self.fs.is_read_only.load(Relaxed) || self.root.is_read_only())
    }

    /// Whether nothing can be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.flags.load(SeqCst) & abi::MS_RDONLY != 0
            || self.fs.is_read_only.load(SeqCst)
            || self.root.is_read_only()
    }

    /// Whether nothing can be changed in its file system, by whatever way.
    pub fn is_of_read_only(&self) -> bool {
        self.fs.is_read_only.load(SeqCst) || self.root.is_read_only()
    }

    /// Asked before each change of what a walk found here.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn may_change(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(EROFS);
        }
        Ok(())
    }

    /// Counts a file that is about to be opened for writing.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn writer(&self) -> Result<Writer> {
        self.fs.writers.fetch_add(1, SeqCst);
        self.uses.writers.fetch_add(1, SeqCst);
        let writer = Writer { mount: self.uses.clone(), fs: self.fs.clone() };
        self.may_change().map(|()| writer)
    }

    /// Counts a file that is about to be mapped, which `writer` counts too if it is open for
    /// writing.
    pub fn mapping(&self, writer: Option<Arc<Writer>>) -> MappedFile {
        self.uses.mappings.fetch_add(1, SeqCst);
        MappedFile { mount: self.uses.clone(), _writer: writer }
    }

    /// Options of its file system, each behind a comma.
    pub fn fs_options(&self) -> String {
        self.root.shown_options()
    }

    /// Its path from a process's root; `None` if it is outside of that.
    pub fn path_from(self: &Arc<Mount>, root: &Dir) -> Option<Vec<u8>> {
        let path = dir_path(&self.top(), Some(root))?;
        (path.first() == Some(&b'/')).then_some(path)
    }
}

fn mode(is_read_only: bool) -> String {
    String::from(if is_read_only { "ro" } else { "rw" })
}

/// More than any program needs; bounds the table, and how deep mounts lie on each other.
const MAX_MOUNTS: usize = 256;

/// The first mount, in memory, and the disk that has taken its place.
static FIRST: Once<Dir> = Once::new();
static DISK: Once<Dir> = Once::new();
/// All mounts but the first, each behind the one that it is on (I2).
static MOUNTS: SpinLock<Vec<Arc<Mount>>> = SpinLock::new(Vec::new());
/// Held by the thread that changes the table.
static CHANGES: Mutex<()> = Mutex::new(());
/// How often the table has changed, and where that is announced.
static VERSION: AtomicU64 = AtomicU64::new(0);
pub static CHANGED: WaitQueue = WaitQueue::new();

/// A number that is another one after each change of the table.
pub fn version() -> u64 {
    VERSION.load(Relaxed)
}

fn announce_change() {
    VERSION.fetch_add(1, Relaxed);
    CHANGED.wake_all();
}

/// Makes the first mount, once.
pub fn set_root(inode: InodeRef) {
    let mount = Mount::new(inode.clone(), None, String::from("rootfs"), "tmpfs", 0);
    FIRST.call_once(|| Dir { mount, inode });
}

/// The first mount's root.
pub fn root() -> Dir {
    DISK.get().cloned().unwrap_or_else(in_memory)
}

/// The root of the file system in memory that the machine has started with.
pub fn in_memory() -> Dir {
    FIRST.get().expect("the root file system is mounted at boot").clone()
}

/// Puts `root` in place of the first mount, once, before any program runs; what is mounted there is
/// mounted at the same paths here, in folders that are made if need be.
///
/// # Errors
/// What `root` says of a folder that is missing; nothing has changed.
pub fn change_root(root: InodeRef, source: &str, fs_type: &'static str) -> Result<()> {
    let _change = CHANGES.lock();
    let (old, new) = (in_memory(), Mount::new(root, None, String::from(source), fs_type, 0).top());
    let start = Start::kernel(new.clone());
    let mut moved = Vec::new();
    let mounts = MOUNTS.lock().clone();
    for mount in mounts.into_iter().filter(|mount| mount.is_on(&old.mount)) {
        let path = mount.mount_point().and_then(|on| dir_path(&on, Some(&old))).ok_or(ENOENT)?;
        moved.push((mount, folder(&start, &path)?));
    }
    for (mount, on) in moved {
        on.inode.cover().ok_or(EINVAL)?.cover()?;
        *mount.mount_point.lock() = Some(on);
    }
    DISK.call_once(|| new);
    announce_change();
    Ok(())
}

/// Mounts `root` on `covered`, on top of what is mounted there.
///
/// # Errors
/// `ENOSPC`; `ENOENT`: it was removed; `EINVAL`: it was unmounted, or nothing can be mounted there.
pub fn mount(
    covered: &Dir,
    root: InodeRef,
    source: String,
    fs_type: &'static str,
    flags: u32,
) -> Result<()> {
    let _change = CHANGES.lock();
    let mount_point = topmost(covered)?;
    attach(Vec::from([Mount::new(root, Some(mount_point), source, fs_type, flags)]))
}

/// What a bind mount shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Directory,
    /// With all that is mounted below it.
    Tree,
}

/// Mounts the directory `from` on `covered` too.
///
/// # Errors
/// As for [`mount`].
pub fn bind(covered: &Dir, from: &Dir, extent: Extent) -> Result<()> {
    let _change = CHANGES.lock();
    let mount_point = topmost(covered)?;
    let all = MOUNTS.lock().clone();
    if !is_attached(&all, &from.mount) {
        return Err(EINVAL);
    }
    let first = from.mount.copy(&from.inode, mount_point);
    let mut copied = Vec::from([(from.mount.clone(), first)]);
    for mount in all.into_iter().filter(|_| extent == Extent::Tree) {
        let Some(on) = mount.mount_point() else { continue };
        let Some((_, parent)) = copied.iter().find(|(old, _)| Arc::ptr_eq(old, &on.mount)) else {
            continue;
        };
        if !Arc::ptr_eq(&on.mount, &from.mount) || on.is_under(from) {
            let copy = mount.copy(&mount.root, Dir { mount: parent.clone(), inode: on.inode });
            copied.push((mount, copy));
        }
    }
    attach(copied.into_iter().map(|(_, copy)| copy).collect())
}

/// Moves the mount whose root is `from` to `covered`, with all that is mounted below it.
///
/// # Errors
/// `EINVAL`: it isn't the root of a mount, is the first, or was unmounted, or `covered` is no
/// directory; `ELOOP`: that is in it; as for [`mount`].
pub fn move_to(covered: &Dir, from: &Dir) -> Result<()> {
    let _change = CHANGES.lock();
    let mount = &from.mount;
    if !same(&from.inode, &mount.root) || !is_in(&MOUNTS.lock(), mount) {
        return Err(EINVAL);
    }
    let on = topmost(covered)?;
    if on.inode.kind() != Kind::Dir {
        return Err(EINVAL);
    }
    if on.is_under(&mount.top()) {
        return Err(ELOOP);
    }
    on.inode.cover().ok_or(EINVAL)?.cover()?;
    let mut mounts = MOUNTS.lock();
    let old = mount.mount_point.lock().replace(on);
    let tree = subtree(&mounts, mount);
    mounts.retain(|mount| !is_in(&tree, mount));
    mounts.extend(tree);
    old.iter().for_each(|old| uncover(&mounts, &old.inode));
    drop(mounts);
    announce_change();
    Ok(())
}

/// Changes the flags of the mount whose root is `dir`, and by `change` its file system; without a
/// flag about access times, these are treated as before. With `MS_BIND` this is about the one
/// mount alone.
///
/// # Errors
/// `EINVAL`: it isn't the root of a mount, or was unmounted; `EBUSY`: a file is open for writing
/// that couldn't be any more; of `change`. Nothing has changed.
pub fn remount(dir: &Dir, flags: u32, change: impl FnOnce(&InodeRef) -> Result<()>) -> Result<()> {
    const TIMES: u32 = abi::MS_NOATIME | abi::MS_STRICTATIME;
    let _change = CHANGES.lock();
    let mount = &dir.mount;
    if !same(&dir.inode, &mount.root) || !is_attached(&MOUNTS.lock(), mount) {
        return Err(EINVAL);
    }
    let (is_of_one_place, closes) = (flags & abi::MS_BIND != 0, flags & abi::MS_RDONLY != 0);
    let (is_closed, writers) = if is_of_one_place {
        (mount.flags() & abi::MS_RDONLY != 0, &mount.uses.writers)
    } else {
        (mount.fs.is_read_only.load(Relaxed), &mount.fs.writers)
    };
    let close = |on: bool| match is_of_one_place {
        true if on => drop(mount.flags.fetch_or(abi::MS_RDONLY, SeqCst)),
        true => drop(mount.flags.fetch_and(!abi::MS_RDONLY, SeqCst)),
        false => mount.fs.is_read_only.store(on, SeqCst),
    };
    // A file that is opened meanwhile sees this, or is seen.
    close(closes || is_closed);
    let is_written = closes && !is_closed && writers.load(SeqCst) != 0;
    let changed = if is_written { Err(EBUSY) } else { change(&dir.inode) };
    close(if changed.is_ok() { closes } else { is_closed });
    changed?;
    let says = flags & (TIMES | abi::MS_RELATIME | abi::MS_NODIRATIME) != 0;
    let kept = if says { 0 } else { mount.flags() & TIMES };
    mount.flags.store(flags & FLAGS | kept, Relaxed);
    announce_change();
    Ok(())
}

/// Where a mount on `covered` goes.
fn topmost(covered: &Dir) -> Result<Dir> {
    let mounts = MOUNTS.lock();
    if !is_attached(&mounts, &covered.mount) {
        return Err(EINVAL);
    }
    Ok(top_of(&mounts, &covered.mount, &covered.inode).unwrap_or_else(|| covered.clone()))
}

/// Puts mounts into the table, all or none.
fn attach(mut new: Vec<Arc<Mount>>) -> Result<()> {
    let outcome = try_attach(&mut new);
    // Each before the one that it is on, so that no drop recurses.
    while new.pop().is_some() {}
    if outcome.is_ok() {
        announce_change();
    }
    outcome
}

fn try_attach(new: &mut Vec<Arc<Mount>>) -> Result<()> {
    let mut mounts = MOUNTS.lock();
    if mounts.len() + new.len() > MAX_MOUNTS {
        return Err(ENOSPC);
    }
    // The first alone can fail: of a tree, the others are on what is covered in another place.
    for mount in &*new {
        if let Some(on) = &*mount.mount_point.lock() {
            on.inode.cover().ok_or(EINVAL)?.cover()?;
        }
    }
    mounts.append(new);
    Ok(())
}

/// Says that a directory is not covered, unless a mount of the table covers it.
fn uncover(mounts: &[Arc<Mount>], inode: &InodeRef) {
    let covers = |mount: &Arc<Mount>| {
        mount.mount_point.lock().as_ref().is_some_and(|on| same(&on.inode, inode))
    };
    if !mounts.iter().any(covers) {
        inode.cover().into_iter().for_each(Cover::clear);
    }
}

/// Whether a mount is in the table, or the first.
fn is_attached(mounts: &[Arc<Mount>], mount: &Arc<Mount>) -> bool {
    Arc::ptr_eq(mount, &root().mount) || is_in(mounts, mount)
}

fn is_in(all: &[Arc<Mount>], mount: &Arc<Mount>) -> bool {
    all.iter().any(|one| Arc::ptr_eq(one, mount))
}

/// How something is unmounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// If no working directory, file that is open or mapped, or mount is in it.
    IfUnused,
    /// With all that is mounted below it; open files and working directories keep it alive.
    Lazily,
}

/// Unmounts the mount whose root is `dir`; `close` closes the file system, if this was its last
/// mount.
///
/// # Errors
/// `EINVAL`: it isn't the root of a mount; `EBUSY`: it is in use, it is the first mount, or a disk
/// is mounted below it; of `close`.
pub fn unmount(dir: &Dir, how: Unmount, close: impl FnOnce(&InodeRef) -> Result<()>) -> Result<()> {
    if !same(&dir.inode, &dir.mount.root) {
        return Err(EINVAL);
    }
    if Arc::ptr_eq(&dir.mount, &root().mount) {
        return Err(EBUSY);
    }
    let _change = CHANGES.lock();
    let (tree, was_last) = hide(&dir.mount, how)?;
    if was_last {
        if let Err(errno) = close(&dir.inode) {
            tree.iter().for_each(|mount| mount.is_leaving.store(false, Relaxed));
            return Err(errno);
        }
    }
    let mut mounts = MOUNTS.lock();
    mounts.retain(|mount| !is_in(&tree, mount));
    let mount_points: Vec<_> =
        tree.iter().filter_map(|mount| mount.mount_point.lock().take()).collect();
    mount_points.iter().for_each(|on| uncover(&mounts, &on.inode));
    drop(mounts);
    announce_change();
    Ok(())
}

/// Hides a mount and all below it from walks; they, and whether no other mount is of the same file
/// system. A reader of `/proc/mounts` holds mounts for a moment, so the table is looked at again
/// before a mount is said to be in use.
fn hide(mount: &Arc<Mount>, how: Unmount) -> Result<(Vec<Arc<Mount>>, bool)> {
    /// The table's, the caller's and the tree's.
    const REFERENCES_WHEN_UNUSED: usize = 3;
    const LOOKS: u32 = 10;
    const PAUSE: sched::Nanos = 2_000_000;
    let pause = WaitQueue::new();
    for _ in 0..LOOKS {
        let mounts = MOUNTS.lock();
        if !is_in(&mounts, mount) {
            return Err(EINVAL);
        }
        let tree = subtree(&mounts, mount);
        let is_kept = tree.iter().any(|mount| matches!(mount.fs_type, "ext4" | "9p"));
        let is_lazy = how == Unmount::Lazily && !is_kept;
        if tree.len() > 1 && !is_lazy {
            return Err(EBUSY);
        }
        let is_unused = Arc::strong_count(mount) <= REFERENCES_WHEN_UNUSED
            && mount.uses.mappings.load(SeqCst) == 0;
        if is_lazy || is_unused {
            let mut others = mounts.iter().filter(|other| other.dev == mount.dev);
            let was_last = others.all(|other| is_in(&tree, other));
            tree.iter().for_each(|mount| mount.is_leaving.store(true, Relaxed));
            return Ok((tree, was_last));
        }
        drop(mounts);
        let _ = pause.wait_until(sched::now() + PAUSE, || None::<()>);
    }
    Err(EBUSY)
}

/// A mount and all that are mounted on it or on those.
fn subtree(mounts: &[Arc<Mount>], mount: &Arc<Mount>) -> Vec<Arc<Mount>> {
    let mut tree = Vec::from([mount.clone()]);
    for mount in mounts {
        if tree.iter().any(|below| mount.is_on(below)) {
            tree.push(mount.clone());
        }
    }
    tree
}

/// The topmost directory that is mounted on a directory in a mount; `None` if none is.
#[inline]
pub fn topmost_on(mount: &Arc<Mount>, inode: &InodeRef) -> Option<Dir> {
    if !inode.cover().is_some_and(Cover::is_covered) {
        return None;
    }
    top_of(&MOUNTS.lock(), mount, inode)
}

fn top_of(mounts: &[Arc<Mount>], mount: &Arc<Mount>, inode: &InodeRef) -> Option<Dir> {
    let is_on = |one: &Mount, mount: &Arc<Mount>, inode: &InodeRef| {
        let on = one.mount_point.lock();
        let is_on = |on: &Dir| Arc::ptr_eq(&on.mount, mount) && same(&on.inode, inode);
        on.as_ref().is_some_and(is_on) && !one.is_leaving.load(Relaxed)
    };
    let topmost = mounts.iter().fold(None, |top: Option<&Arc<Mount>>, one| {
        let (mount, inode) = top.map_or((mount, inode), |top| (top, &top.root));
        if is_on(one, mount, inode) {
            Some(one)
        } else {
            top
        }
    });
    topmost.map(Mount::top)
}

/// A mount, in the order of `/proc/mounts`: the first one, then those of the table.
pub fn nth(index: usize) -> Option<Arc<Mount>> {
    match index {
        0 => Some(root().mount),
        n => MOUNTS.lock().get(n - 1).cloned(),
    }
}

/// Mounts `fs` at `path`, making the directory if need be.
pub fn mount_at(path: &str, fs: InodeRef, source: &str, fs_type: &'static str) -> Result<()> {
    let dir = folder(&Start::kernel(root()), path.as_bytes())?;
    mount(&dir, fs, String::from(source), fs_type, 0)
}

/// The directory at `path`, which is made if need be.
fn folder(start: &Start, path: &[u8]) -> Result<Dir> {
    let found = walk(start, path, Follow::Yes)?;
    let dir = match &found.inode {
        Some(_) => found.place()?.dir()?,
        None => {
            let (above, name) = found.vacant()?;
            let inode =
                above.inode.create(&name, NewNode::Dir, Asked::exactly(0o755), &start.by)?;
            Dir { inode, ..above }
        }
    };
    if dir.inode.kind() != Kind::Dir {
        return Err(ENOTDIR);
    }
    Ok(dir)
}
