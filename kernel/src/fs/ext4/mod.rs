//! ext4 on a disk: `crates/volume` keeps the metadata, the VM system the data.
//!
//! ```text
//!   Inode calls --> Node --- names, attributes ------> Volume (crate)  --> Metadata --> disk, with waiting
//!                    |  (node, dir, file)                  ^  extents, blocks
//!                    +-- vm::Object = VnodePager --> Backing --> Data --> disk, many pages a request, without waiting
//!                             ^                                  (device)
//!   flusher: every 5 s or when asked: cleans objects, commits, forgets nodes that are not needed
//! ```
//! There is one cache of file data: the pages of the files' objects, which `read`, `write`, `mmap`
//! and `execve` share. Nodes stay after their last use as long as they have pages, so the number of
//! files that stay cached is bounded by memory alone. Those without pages, names that were looked
//! up, listings of folders and lists of where files lie are a cache of bounded size (`cache`),
//! which each thread that comes for the volume keeps within it. What stays because a program uses
//! it is charged: a file with its descriptor, and a folder that keeps the one above it to the user
//! who found it.
//!
//! I1: no user memory is copied, and no page of a file is waited for, with the volume locked:
//! bringing pages in needs the volume. I2: a name is looked up and its node taken from the table
//! under the volume's lock, or the directory's name table's; both change under both. I3: a node
//! leaves the table only when there is no other reference and no mapping of it, so there is one
//! object for a file. Locks: a file's `writer`, the volume, a directory's names, the table, a
//! node's attributes; the last three spin.
//!
//! Road not taken: blocks given out at `write(2)`. They are given out at write-back, where a run of
//! pages is known; until then their number is set aside, so that a full disk is told to the writer.

mod backing;
mod cache;
mod device;
mod dir;
mod direct;
mod file;
mod flusher;
mod locked;
mod node;
mod ranges;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::DerefMut;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use machine::PAGE_SIZE;
use volume::{Attributes, ErrorKind, Limits};

pub use volume::Mode;

use super::access;
use super::inode::{FsStat, InodeRef};
use crate::block::Disk;
use crate::cred::Cred;
use crate::errno::*;
use crate::mem::heap;
use crate::sched;
use crate::sync::{Mutex, SpinLock};
use crate::vm;
use cache::Cache;
use device::{Data, Metadata, Now};
use locked::Volume;
use node::{Lists, Node};

pub use device::flush_plug;
pub use flusher::{drop_nodes, drop_pages, memory_is_short, shut_down, sync_all, sync_object};

/// What `statfs` calls it.
const MAGIC: u64 = 0xef53;
/// Pages that are kept for metadata when data is promised room.
const MARGIN: u64 = 16;

/// A file may lie in one piece for so many pages of memory.
const PAGES_PER_PIECE: u64 = 8;

/// Heap that a call of the crate may need.
const ROOM: usize = 256 << 10;

/// All that are mounted.
static MOUNTED: SpinLock<Vec<Arc<Fs>>> = SpinLock::new(Vec::new());

/// A mounted file system.
pub(super) struct Fs {
    dev: u64,
    block_size: u64,
    data: Data,
    /// Pages of the free ones that are kept for one user and one group, and these.
    reserved: u64,
    reserve_owner: (u32, u32),
    volume: Mutex<Volume>,
    nodes: SpinLock<BTreeMap<u32, Arc<Node>>>,
    cache: Cache,
    /// Inodes without names that were not freed yet, in the order in which they lost the last.
    unlinked: SpinLock<BTreeMap<u64, u32>>,
    /// Inodes of `unlinked` that were closed, and whether they were in use still when they were
    /// looked at.
    closed: SpinLock<BTreeMap<u64, (u32, bool)>>,
    /// The next number of that order.
    next_unlinked: AtomicU64,
    /// Held while they are freed: a thread that needs their room waits until it is there.
    reaping: Mutex<()>,
    read_only: AtomicBool,
    /// Held while nodes are taken from the table one after another: to be written, or to be
    /// forgotten.
    walk: Mutex<()>,
    /// Files that are open for writing.
    writers: AtomicUsize,
    /// Free room, in pages, as of the volume's last change.
    free: AtomicU64,
    /// Pages that were promised room and have no blocks yet.
    pending: AtomicU64,
    /// There is something to commit.
    changed: AtomicBool,
}

/// Mounts a disk; returns the root directory.
///
/// # Errors
/// `EBUSY`: it is mounted or swapped on; `EINVAL`: there is no ext4 on it; `EACCES`: it can only be
/// read; `EIO`.
pub fn mount(disk: &Arc<Disk>, mode: Mode) -> Result<InodeRef> {
    if mode == Mode::ReadWrite && disk.is_read_only() {
        return Err(EACCES);
    }
    disk.claim()?;
    mount_claimed(disk, mode).inspect_err(|_| disk.release_claim())
}

fn mount_claimed(disk: &Arc<Disk>, mode: Mode) -> Result<InodeRef> {
    let data = Data::new(disk)?;
    let mut volume = open_volume(&data, mode)?;
    let root = volume.root();
    let root = volume.attributes(root).map_err(errno)?;
    let fs = Arc::new(Fs {
        dev: disk.number(),
        block_size: volume.space().block_size,
        data,
        reserved: pages(volume.space().reserved, &volume),
        reserve_owner: volume.reserve_owner(),
        free: AtomicU64::new(free_pages(&volume)),
        volume: Mutex::new(volume),
        nodes: SpinLock::new(BTreeMap::new()),
        cache: Cache::new(),
        unlinked: SpinLock::new(BTreeMap::new()),
        closed: SpinLock::new(BTreeMap::new()),
        next_unlinked: AtomicU64::new(1),
        reaping: Mutex::new(()),
        read_only: AtomicBool::new(mode == Mode::ReadOnly),
        walk: Mutex::new(()),
        writers: AtomicUsize::new(0),
        pending: AtomicU64::new(0),
        changed: AtomicBool::new(false),
    });
    let root = fs.adopt(&mut fs.volume(), &root)?;
    MOUNTED.lock().push(fs);
    flusher::start();
    Ok(root)
}

fn open_volume(data: &Data, mode: Mode) -> Result<Volume> {
    let lines = (vm::stats().total_pages / 64).clamp(64, 4096) as usize;
    // A file from elsewhere may lie in more pieces than one that is written here; it can be read,
    // and cut.
    let limits = Limits { cache_lines: lines, pieces: 4 * most_pieces() };
    Volume::mount(Metadata(data.clone()), Now, mode, limits).map_err(|kind| match kind {
        ErrorKind::Io => EIO,
        ErrorKind::NoMemory => ENOMEM,
        ErrorKind::ReadOnly => EROFS,
        _ => EINVAL,
    })
}

/// How many pieces a file may lie in: a list of them comes at once, and several times.
fn most_pieces() -> usize {
    (vm::stats().total_pages / PAGES_PER_PIECE) as usize
}

/// Changes how the file system with this root is mounted; others have no such choice, and nothing
/// happens.
///
/// # Errors
/// `EBUSY`: something is open or mapped for writing, or has no name any more; `EROFS`: the disk can
/// only be read; `EIO`.
pub fn remount(root: &InodeRef, mode: Mode) -> Result<()> {
    match super::inode::downcast::<Node>(root) {
        Some(node) => node.fs().remount(mode),
        None => Ok(()),
    }
}

/// Closes the file system of this directory, which was mounted; `false` if it isn't one of these.
///
/// # Errors
/// `EBUSY`: something of it is in use; `EIO`.
pub fn unmount(root: &InodeRef) -> Result<bool> {
    let Some(node) = super::inode::downcast::<Node>(root) else { return Ok(false) };
    let fs = node.fs().clone();
    fs.flush();
    // A thread that writes nodes back holds them, and they would seem to be in use.
    let _walk = fs.walk.lock();
    // Frees the nodes that this thread kept from being freed meanwhile.
    fs.reap_unused();
    fs.forget_all(root)?;
    fs.reap_mounted(node)?;
    // No writes come from now on, whatever still has a node.
    let was_read_only = fs.read_only.swap(true, Ordering::AcqRel);
    if let Err(kind) = fs.volume().unmount() {
        fs.read_only.store(was_read_only, Ordering::Release);
        return Err(errno(kind));
    }
    // The flusher may have it in its hands still, and finds nothing to commit.
    fs.changed.store(false, Ordering::Release);
    let gone = {
        let mut mounted = MOUNTED.lock();
        let at = mounted.iter().position(|other| Arc::ptr_eq(other, &fs));
        at.map(|at| mounted.remove(at))
    };
    if let Some(fs) = gone {
        fs.data.disk.release_claim();
        // The root's node, which has the file system.
        drop(core::mem::take(&mut *fs.nodes.lock()));
    }
    Ok(true)
}

fn free_pages(volume: &Volume) -> u64 {
    pages(volume.space().free, volume)
}

/// So many blocks in pages.
fn pages(blocks: u64, volume: &Volume) -> u64 {
    blocks * volume.space().block_size / PAGE_SIZE as u64
}

/// What became of a volume's call, as a program is told.
fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Unsupported | ErrorKind::UnsupportedFeature => EOPNOTSUPP,
        ErrorKind::ReadOnly | ErrorKind::JournalAborted => EROFS,
        ErrorKind::NoSpace => ENOSPC,
        ErrorKind::NoMemory => ENOMEM,
        ErrorKind::TooManyLinks => EMLINK,
        ErrorKind::PermissionDenied => EPERM,
        ErrorKind::NotFound => ENOENT,
        ErrorKind::AlreadyExists => EEXIST,
        ErrorKind::NotDirectory => ENOTDIR,
        ErrorKind::IsDirectory => EISDIR,
        ErrorKind::NotEmpty => ENOTEMPTY,
        ErrorKind::Busy => EBUSY,
        ErrorKind::InvalidInput => EINVAL,
        ErrorKind::FileTooLarge => EFBIG,
        _ => EIO,
    }
}

impl Fs {
    /// Takes the volume's lock; sleeps for it. On the way of writes too, which memory may be
    /// waiting for: so it makes no room.
    fn volume(&self) -> impl DerefMut<Target = Volume> + '_ {
        // The crate's containers can't fail. What isn't there now comes from the heap's cushion.
        let _ = heap::reserve(ROOM);
        self.volume.lock()
    }

    /// Like [`volume`](Self::volume), for callers that may wait for memory, and be refused it, and
    /// that may bring nodes and names in.
    fn volume_with_room(&self) -> Result<impl DerefMut<Target = Volume> + '_> {
        self.trim();
        vm::with_room(|| heap::reserve(ROOM)).map_err(|_| ENOMEM)?;
        Ok(self.volume())
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// The volume is closed and opened again in the other way; nodes and pages stay as they are.
    fn remount(&self, mode: Mode) -> Result<()> {
        if self.is_read_only() == (mode == Mode::ReadOnly) {
            return Ok(());
        }
        if mode == Mode::ReadOnly {
            self.flush();
            // From here on no thread begins to write.
            self.read_only.store(true, Ordering::Release);
            let closed = self.close_for_writing();
            return closed.inspect_err(|_| self.read_only.store(false, Ordering::Release));
        }
        if self.data.disk.is_read_only() {
            return Err(EROFS);
        }
        *self.volume() = open_volume(&self.data, mode)?;
        self.read_only.store(false, Ordering::Release);
        Ok(())
    }

    fn close_for_writing(&self) -> Result<()> {
        if self.writers.load(Ordering::Acquire) != 0 || self.is_mapped_for_writing() {
            return Err(EBUSY);
        }
        self.write_all();
        self.reap_unused();
        let mut volume = self.volume();
        volume.unmount().map_err(errno)?;
        *volume = open_volume(&self.data, Mode::ReadOnly)?;
        Ok(())
    }

    /// Takes note of a change of the volume.
    fn changed(&self, volume: &Volume) {
        self.free.store(free_pages(volume), Ordering::Relaxed);
        self.changed.store(true, Ordering::Release);
    }

    /// Pages of the free room that are kept from `by`.
    fn kept_from(&self, by: &Cred) -> u64 {
        if access::may_use_reserve(by, self.reserve_owner) {
            0
        } else {
            self.reserved
        }
    }

    /// Whether there is room for one more name, and the block of its directory that it may take.
    ///
    /// # Errors
    /// `ENOSPC`: what is left is kept from `by`.
    fn check_room_for_name(&self, by: &Cred) -> Result<()> {
        let kept = self.kept_from(by);
        let needs = kept + self.pending.load(Ordering::Relaxed) + MARGIN;
        if kept != 0 && needs > self.free.load(Ordering::Relaxed) {
            return Err(ENOSPC);
        }
        Ok(())
    }

    /// Like [`kept_from`](Self::kept_from), of the running thread; nothing is kept from kernel
    /// threads.
    fn kept_from_caller(&self) -> u64 {
        sched::current().user().map_or(0, |thread| self.kept_from(&thread.process.cred()))
    }

    /// Sets room for pages aside, and leaves `kept` pages; `false` if there is none.
    fn set_aside(&self, pages: u64, kept: u64) -> bool {
        let fits = |pending: u64| {
            let want = pending + pages;
            let needs = want + want / 64 + MARGIN + kept;
            (needs <= self.free.load(Ordering::Relaxed)).then_some(want)
        };
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Like [`set_aside`](Self::set_aside), for room that is known to be there: just freed, or set
    /// aside for something else until now.
    fn keep_aside(&self, pages: u64) {
        self.pending.fetch_add(pages, Ordering::Relaxed);
    }

    fn give_back(&self, pages: u64) {
        self.pending.fetch_sub(pages, Ordering::Relaxed);
    }

    /// The node in the table.
    fn known(&self, ino: u32) -> Option<Arc<Node>> {
        self.nodes.lock().get(&ino).cloned()
    }

    /// The node for an inode, entered in the table if need be; with the volume locked (I2).
    fn adopt(self: &Arc<Self>, volume: &mut Volume, found: &Attributes) -> Result<Arc<Node>> {
        if let Some(node) = self.known(found.ino) {
            return Ok(node);
        }
        let node = Node::new(self, found, Lists::read(volume, found))?;
        self.nodes.lock().insert(found.ino, node.clone());
        Ok(node)
    }

    fn stat(&self) -> FsStat {
        self.reap_unused();
        let space = self.volume().space();
        let pages = |blocks: u64| blocks * space.block_size / PAGE_SIZE as u64;
        let free = pages(space.free).saturating_sub(self.pending.load(Ordering::Relaxed));
        FsStat {
            magic: MAGIC,
            blocks: pages(space.blocks),
            free,
            available: free.saturating_sub(self.reserved),
            files: space.files,
            files_free: space.files_free,
        }
    }

    /// Commits what was done to names and attributes, and what was written before.
    fn commit(&self) -> Result<()> {
        self.reap_closed();
        self.changed.store(false, Ordering::Release);
        self.volume().sync().map_err(errno)
    }

    fn wake_flusher(&self) {
        flusher::wake();
    }
}
