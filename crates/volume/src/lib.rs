//! An ext4 volume whose file data is moved by its host.
//!
//! `rsext4` keeps the metadata: names, inodes, extents, bitmaps, the journal. It would also copy
//! every byte of every file through a buffer of its own, one request at a time. A kernel with a
//! page cache wants something else: to be told where a range of a file lies on the disk, and to
//! move pages there and back by itself, many at once. [`Volume`] turns the one into the other:
//!
//! ```text
//!   host: page cache --- data, asynchronous, in clusters ------------------+
//!     | names, sizes, Volume::extents, Volume::reserve                     |
//!   Volume --- rsext4 --- Shadow (what it writes of files goes nowhere) ---+--- disk
//! ```
//!
//! Writing goes in this order: [`Volume::reserve`] says where a range lies, allocating what it
//! lacks and calling it written; the host writes its pages there; a later [`Volume::sync`] commits.
//! The journal's commit begins with [`Device::flush`], which must wait for the data that was
//! reserved before: then no committed extent ever shows what the disk held before (ext4's
//! `data=ordered`).
//!
//! I1: rsext4 never changes a file's blocks on the disk (see `shadow`). I2: a block that was freed
//! is not given to another file before the freeing is committed, since the other file's data is not
//! in the journal.
//!
//! The road not taken: the crate's own `write_inode`, with a copy of each byte, under the file
//! system's lock, and a request per run that waits for the disk.

#![no_std]
#![forbid(unsafe_code)]
#![allow(missing_docs)]

extern crate alloc;

mod cache;
#[cfg(feature = "__example")]
#[doc(hidden)]
pub mod example;
mod groups;
mod index;
mod inodes;
mod journal;
mod names;
mod shadow;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rsext4::{
    ErrorContext, Ext4, Ext4Error, FileExtentState, FileExtentTarget, InodeNumber, MountOptions,
    MountServices, MountedServices, NoopObserver, PreallocationOptions, RangeOperation,
    ZeroRangeOptions,
};
use spin::Mutex;

pub use names::{
    AccessList, Attributes, Change, Entry, New, Rename, APPEND_ONLY, IMMUTABLE, NO_ATIME, SYNC,
};
pub use rsext4::{
    Clock, DirectoryCursor as Cursor, Ext4Error as ClockError, Ext4ErrorKind as ErrorKind,
    Ext4Timestamp as Timestamp,
};

use cache::LINE;
use index::Index;
use journal::Journal;
use shadow::{Shadow, State, Transaction};

/// What a call may end with. The crate's kind of error says enough for an errno.
pub type Result<T> = core::result::Result<T, ErrorKind>;

/// The most that is called written in one step of the crate's.
const STEP: u64 = 128 << 10;

/// Blocks that are freed in one step. The crate frees one after another, and copies its caches for
/// each step.
const FREED_AT_ONCE: u64 = 1024;
/// Blocks that are given out in one step, and holes that are filled.
const BLOCKS_AT_ONCE: u64 = 8192;
const HOLES_AT_ONCE: usize = 4;
/// Blocks that an extent tree has at least if an inner node of it isn't the inode's: two such nodes
/// with a leaf each.
const DEEP_TREE: u64 = 4;

/// Blocks that a file can have.
const MOST_BLOCKS: u64 = u32::MAX as u64;
/// Units in which an inode counts its blocks.
const SECTOR: u64 = 512;

/// A transfer failed.
///
/// ```
/// assert_eq!(volume::DeviceError.to_string(), "the disk failed to transfer data");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError;

impl core::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the disk failed to transfer data")
    }
}

impl core::error::Error for DeviceError {}

/// The disk, for metadata. Offsets and lengths are multiples of 512 bytes. Calls may sleep. Clones
/// are the same disk.
///
/// ```
/// use volume::{Device, DeviceError};
///
/// /// A disk that holds zeroes and drops what is written.
/// #[derive(Clone)]
/// struct Null;
///
/// impl Device for Null {
///     fn bytes(&self) -> u64 {
///         1 << 20
///     }
///     fn is_read_only(&self) -> bool {
///         false
///     }
///     fn read(&mut self, _at: u64, to: &mut [u8]) -> Result<(), DeviceError> {
///         to.fill(0);
///         Ok(())
///     }
///     fn write(&mut self, _at: u64, _from: &[u8]) -> Result<(), DeviceError> {
///         Ok(())
///     }
///     fn flush(&mut self) -> Result<(), DeviceError> {
///         Ok(())
///     }
/// }
/// ```
pub trait Device: Clone + Send {
    /// The length.
    fn bytes(&self) -> u64;

    fn is_read_only(&self) -> bool;

    /// # Errors
    /// [`DeviceError`]: the bytes are unspecified.
    fn read(&mut self, at: u64, to: &mut [u8]) -> core::result::Result<(), DeviceError>;

    /// # Errors
    /// [`DeviceError`]: any part may have been written.
    fn write(&mut self, at: u64, from: &[u8]) -> core::result::Result<(), DeviceError>;

    /// Waits for the host's own data writes to reserved ranges, then makes all that was written
    /// durable.
    ///
    /// # Errors
    /// [`DeviceError`]: nothing is known of what was written.
    fn flush(&mut self) -> core::result::Result<(), DeviceError>;
}

/// A contiguous part of a file on the disk; in bytes.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::New;
/// # let root = volume.root();
/// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
/// let runs = volume.reserve(file, 8192, 0, 8192)?;
/// // The host writes its pages there.
/// let bytes: u64 = runs.iter().map(|run| run.len).sum();
/// assert!(bytes == 8192 && runs.iter().all(|run| !run.unwritten));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where in the file.
    pub at: u64,
    /// Where on the disk.
    pub disk: u64,
    pub len: u64,
    /// Allocated but never written: reads as zeroes.
    pub unwritten: bool,
}

/// What the volume says of itself, in blocks.
///
/// ```
/// # volume::example::run(|volume| {
/// let space = volume.space();
/// assert!(space.free < space.blocks);
/// assert_eq!(space.blocks * space.block_size, 4 << 20);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub block_size: u64,
    pub blocks: u64,
    pub free: u64,
    /// Blocks that are kept free for those of [`Volume::reserve_owner`]; maybe more than are free.
    pub reserved: u64,
    pub files: u64,
    pub files_free: u64,
}

/// What a volume may take of memory.
///
/// ```
/// let small = volume::Limits { cache_lines: 16, pieces: 32 };
/// # let _ = small;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of 4 KiB of metadata that are remembered; names may take as much again.
    pub cache_lines: usize,
    /// Pieces that a file may lie in, where they are listed.
    pub pieces: usize,
}

/// How a volume is mounted.
///
/// ```
/// # use volume::{ErrorKind, Mode, New, Volume};
/// # use volume::example::{disk, Now, LIMITS};
/// let mut volume = Volume::mount(disk(), Now, Mode::ReadOnly, LIMITS)?;
/// let root = volume.root();
/// let made = volume.create(root, b"data", New::File, 0o644, (0, 0));
/// assert_eq!(made.err(), Some(ErrorKind::ReadOnly));
/// # Ok::<(), ErrorKind>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    ReadOnly,
    ReadWrite,
}

type Services = MountedServices<(), NoopObserver>;

/// Which journal a volume that has one is mounted with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// That of [`journal`].
    Own,
    /// The crate's, which replays and ends what a crash has left.
    Crate,
}

/// See the module. The host serialises calls by a lock that may sleep.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::New;
/// let root = volume.root();
/// let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?;
/// volume.resize(file.ino, 100)?;
/// assert_eq!(volume.lookup(root, b"data")?.size, 100);
/// # Ok(()) });
/// ```
pub struct Volume<D: Device> {
    fs: Ext4<Shadow<D>, Services>,
    state: Arc<Mutex<State>>,
    block_size: u64,
    /// Blocks were freed and that isn't committed yet.
    freed: bool,
    index: Index,
    reserve: Reserve,
    device: D,
    clock: Box<dyn Clock + Send>,
    /// Of a volume that is mounted for writing, if it has one.
    journal: Option<Journal>,
}

/// Blocks that are kept for one user and one group, by their ids.
#[derive(Clone, Copy, Default)]
struct Reserve {
    blocks: u64,
    owner: (u32, u32),
}

fn kind(error: Ext4Error) -> ErrorKind {
    error.kind()
}

/// Whether a change was refused since it is more than the journal can take at once.
fn is_of_journal(error: Ext4Error) -> bool {
    let is_journals =
        |context| matches!(context, ErrorContext::Operation { op } if op.starts_with("jbd2:"));
    error.kind() == ErrorKind::NoSpace && error.context().is_some_and(is_journals)
}

fn number(ino: u32) -> Result<InodeNumber> {
    InodeNumber::new(ino).map_err(kind)
}

impl<D: Device> Volume<D> {
    /// Mounts the volume on `device`, replaying its journal and finishing what a crash interrupted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidMagic`] and the like: there is no such volume;
    /// [`ErrorKind::UnsupportedFeature`]: it has a feature that is not known here;
    /// [`ErrorKind::NoMemory`]: a file whose deletion or truncation a crash interrupted lies in
    /// more pieces than may be listed.
    ///
    /// ```
    /// # use volume::{ErrorKind, Mode, Volume};
    /// # use volume::example::{disk, Now, LIMITS};
    /// let mut volume = Volume::mount(disk(), Now, Mode::ReadWrite, LIMITS)?;
    /// volume.unmount()?;
    /// # Ok::<(), ErrorKind>(())
    /// ```
    pub fn mount<C: Clock + Clone + Send + 'static>(
        mut device: D,
        clock: C,
        mode: Mode,
        limits: Limits,
    ) -> Result<Self> {
        if mode == Mode::ReadWrite && groups::may_have_orphans(&mut device) {
            // Reading replays the journal, and deletes nothing yet.
            let reader = Self::mount_as_it_is(
                device.clone(),
                clock.clone(),
                Mode::ReadOnly,
                limits,
                Keeper::Crate,
            );
            if let Ok(mut reader) = reader {
                reader.check_orphans(&mut device)?;
            }
            if groups::superblock(&mut device).is_some_and(|superblock| superblock.has_journal()) {
                let mut writer = Self::mount_as_it_is(
                    device.clone(),
                    clock.clone(),
                    mode,
                    limits,
                    Keeper::Crate,
                )?;
                writer.unmount()?;
            }
        }
        let mounted =
            Self::mount_as_it_is(device.clone(), clock.clone(), mode, limits, Keeper::Own);
        // Inodes without names that are no such are not worth a volume.
        let is_damaged = matches!(mounted, Err(ErrorKind::Corrupted | ErrorKind::NotFound));
        if mode == Mode::ReadWrite && is_damaged && groups::forget_orphans(&mut device) {
            return Self::mount_as_it_is(device, clock, mode, limits, Keeper::Own);
        }
        mounted
    }

    fn mount_as_it_is<C: Clock + Clone + Send + 'static>(
        mut device: D,
        clock: C,
        mode: Mode,
        limits: Limits,
        keeper: Keeper,
    ) -> Result<Self> {
        let read_only = device.is_read_only();
        let mut state = State::new(STEP as usize, limits);
        let writes = if read_only { Mode::ReadOnly } else { mode };
        let superblock = groups::superblock(&mut device);
        let journaled = superblock.filter(|superblock| {
            superblock.has_journal()
                && superblock.s_journal_inum != 0
                && mode == Mode::ReadWrite
                && keeper == Keeper::Own
        });
        let reserve = superblock.as_ref().map_or(Reserve::default(), groups::reserve);
        state.mounting = superblock.map(|superblock| (writes, Box::new(superblock)));
        if let Some(superblock) = &journaled {
            state.cache.set_block_size(superblock.block_size());
            let most = usize::MAX;
            state.transaction = Some(Transaction { most, is_full: false, is_aborted: false });
        }
        let state = Arc::new(Mutex::new(state));
        let shadow = Shadow { device: device.clone(), state: state.clone() };
        let options = match mode {
            Mode::ReadWrite => MountOptions::read_write(),
            Mode::ReadOnly => MountOptions {
                readonly: true,
                replay_journal: !read_only,
                ..MountOptions::read_only_no_journal_replay()
            },
        };
        let services = MountServices::new(clock.clone(), (), NoopObserver);
        let fs = Ext4::mount(shadow, services, options).map_err(kind)?;
        let block_size = fs.statfs().block_size;
        {
            let mut state = state.lock();
            state.block_size = block_size;
            state.mounting = None;
        }
        let mut volume = Volume {
            fs,
            state,
            block_size,
            freed: false,
            index: Index::new(limits.cache_lines * LINE),
            reserve,
            device,
            clock: Box::new(clock),
            journal: None,
        };
        if let Some(superblock) = journaled {
            let size = volume.attributes(superblock.s_journal_inum)?.size;
            let runs = volume.extents(superblock.s_journal_inum, 0, size)?;
            let journal = Journal::open(&mut volume.device, &superblock, runs)?;
            let lines = limits.cache_lines.max(shadow::FEW);
            let most = journal.most().min(lines * (LINE / block_size as usize));
            if let Some(transaction) = &mut volume.state.lock().transaction {
                transaction.most = most;
            }
            volume.journal = Some(journal);
        }
        Ok(volume)
    }

    /// Looks at each inode that the crate deletes or cuts as it mounts the volume for writing:
    /// it lists the whole file, in one piece of memory.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] for a file in more pieces than may be listed.
    fn check_orphans(&mut self, device: &mut D) -> Result<()> {
        let Some(superblock) = groups::superblock(device) else { return Ok(()) };
        let mut next = superblock.s_last_orphan;
        for _ in 0..superblock.s_inodes_count {
            if next == 0 {
                break;
            }
            // What else is wrong with it, the crate will say.
            if let Err(ErrorKind::NoMemory) = self.extents(next, 0, 1) {
                return Err(ErrorKind::NoMemory);
            }
            next = groups::next_orphan(device, &superblock, next).unwrap_or(0);
        }
        Ok(())
    }

    /// The root directory's inode.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// assert_eq!(volume.attributes(volume.root())?.mode, 0o040_755);
    /// # Ok(()) });
    /// ```
    pub fn root(&self) -> u32 {
        self.fs.root_inode().raw()
    }

    /// Bytes of a block: 1024, 2048 or 4096.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// assert_eq!(volume.block_size(), volume.space().block_size);
    /// # Ok(()) });
    /// ```
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// What the volume says of itself now.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// let before = volume.space().files_free;
    /// volume.create(volume.root(), b"dir", volume::New::Dir, 0o755, (0, 0))?;
    /// assert_eq!(volume.space().files_free, before - 1);
    /// # Ok(()) });
    /// ```
    pub fn space(&self) -> Space {
        let stats = self.fs.statfs();
        Space {
            block_size: self.block_size,
            blocks: stats.total_blocks,
            free: stats.free_blocks,
            reserved: self.reserve.blocks.min(stats.total_blocks),
            files: u64::from(stats.total_inodes),
            files_free: u64::from(stats.free_inodes),
        }
    }

    /// The user and the group that the reserved blocks are for, besides users that may do anything.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// assert_eq!(volume.reserve_owner(), (0, 0));
    /// # Ok(()) });
    /// ```
    pub fn reserve_owner(&self) -> (u32, u32) {
        self.reserve.owner
    }

    /// Where the file's bytes in `at..at + len` lie, as far as they are allocated and below its
    /// size.
    ///
    /// # Errors
    /// I/O and damage; [`ErrorKind::NoMemory`] if the whole file lies in [too many
    /// pieces](Limits::pieces). Cost: the whole of the file's extent tree.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// volume.resize(file, 1 << 20)?;
    /// assert!(volume.extents(file, 0, 1 << 20)?.is_empty(), "a hole");
    /// volume.reserve(file, 1 << 20, 4096, 4096)?;
    /// assert_eq!(volume.extents(file, 0, 1 << 20)?[0].at, 4096);
    /// # Ok(()) });
    /// ```
    pub fn extents(&mut self, ino: u32, at: u64, len: u64) -> Result<Vec<Run>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let inode = number(ino)?;
        let most = self.state.lock().most_pieces;
        self.state.lock().pieces_left = Some(most);
        let map = self.fs.inode_extents(inode, at, len, FileExtentTarget::Data, usize::MAX);
        self.state.lock().pieces_left = None;
        let map = map.map_err(kind)?;
        let runs =
            map.extents.into_iter().filter(|e| e.state != FileExtentState::Inline).map(|e| Run {
                at: e.logical_start,
                disk: e.physical_start,
                len: e.length,
                unwritten: e.state == FileExtentState::Unwritten,
            });
        Ok(runs.filter_map(|run| clip(run, at, at + len)).collect())
    }

    /// Gives the file its size on the disk, and makes sure that the range, which must lie below it,
    /// is allocated and counts as written; says where. The host writes its data there before it
    /// says that anything is committed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]: as if never called, except that the size may be the new one and
    /// blocks may be reserved.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// // A file of 100 bytes: its block is where the host writes them.
    /// let runs = volume.reserve(file, 100, 0, 100)?;
    /// assert_eq!((runs[0].at, runs[0].unwritten), (0, false));
    /// # Ok(()) });
    /// ```
    pub fn reserve(&mut self, ino: u32, size: u64, at: u64, len: u64) -> Result<Vec<Run>> {
        let end = (at + len).min(size).max(at);
        let (at, full_end) = (self.floor(at), self.ceil(end));
        if self.fs.inode(number(ino)?).map_err(kind)?.size != size {
            self.resize(ino, size)?;
        }
        let runs = self.extents(ino, at, full_end - at)?;
        if covers(&runs, at, full_end) {
            return Ok(runs);
        }
        if self.freed {
            self.sync()?;
        }
        self.begin_change()?;
        self.allocate(ino, at, full_end - at)?;
        for run in self.extents(ino, at, full_end - at)? {
            if run.unwritten {
                self.state.lock().give_to_host(run.disk, run.len);
                self.call_written(ino, run, end)?;
            }
        }
        let runs = self.extents(ino, at, full_end - at)?;
        if covers(&runs, at, full_end) {
            Ok(runs)
        } else {
            Err(ErrorKind::Corrupted)
        }
    }

    /// Turns an unwritten run into a written one: lets the crate write blanks there, which the
    /// shadow drops.
    fn call_written(&mut self, ino: u32, run: Run, end: u64) -> Result<()> {
        let stop = (run.at + run.len).min(end);
        let mut at = run.at;
        while at < stop {
            let whole = self.floor(stop).min(at + STEP);
            let to = if at < whole { whole } else { stop };
            if to % self.block_size != 0 {
                self.shield(run.disk + (self.floor(at) - run.at));
            }
            let blank = core::mem::take(&mut self.state.lock().blank);
            let wrote = self.write_blank(ino, at, &blank[..(to - at) as usize]);
            self.state.lock().blank = blank;
            wrote?;
            at = to;
        }
        Ok(())
    }

    fn write_blank(&mut self, ino: u32, at: u64, blank: &[u8]) -> Result<()> {
        self.state.lock().set_blank(blank);
        let wrote = self.fs.write_inode(number(ino)?, at, blank).map_err(kind);
        self.state.lock().set_blank(&[]);
        wrote
    }

    /// Reserves blocks for a range, unwritten; the size stays.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]: what could be had stays reserved.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// volume.resize(file, 8192)?;
    /// volume.allocate(file, 0, 8192)?;
    /// assert!(volume.extents(file, 0, 8192)?.iter().all(|run| run.unwritten));
    /// # Ok(()) });
    /// ```
    pub fn allocate(&mut self, ino: u32, at: u64, len: u64) -> Result<()> {
        let (at, end) = (self.floor(at), self.ceil(at + len));
        let holes: Vec<u64> =
            self.extents(ino, at, end - at)?.iter().map(|run| self.floor(run.at).max(at)).collect();
        let mut from = at;
        loop {
            let next = holes[holes.partition_point(|&hole| hole <= from)..].get(HOLES_AT_ONCE);
            let most = from.saturating_add(BLOCKS_AT_ONCE * self.block_size);
            let to = next.map_or(end, |&next| next.min(end)).min(most);
            let operation = RangeOperation::Allocate(PreallocationOptions::KEEP_SIZE);
            let inode = number(ino)?;
            self.attempt(|fs| fs.operate_inode_range(inode, from, to - from, operation))?;
            if to == end {
                break;
            }
            from = to;
            self.begin_change()?;
        }
        Ok(())
    }

    /// Changes the size on the disk. Blocks wholly behind it are freed; what the last one holds
    /// behind the size is the host's to clear.
    ///
    /// # Errors
    /// I/O and damage; [`ErrorKind::FileTooLarge`].
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// volume.reserve(file, 8192, 0, 8192)?;
    /// volume.resize(file, 0)?;
    /// assert!(volume.extents(file, 0, 8192)?.is_empty());
    /// # Ok(()) });
    /// ```
    pub fn resize(&mut self, ino: u32, size: u64) -> Result<()> {
        self.begin_change()?;
        let old = self.fs.inode(number(ino)?).map_err(kind)?.size;
        if size < old {
            self.shrink(ino, size, old)?;
        }
        self.resize_now(ino, size)
    }

    /// Frees most of the blocks between a size and the end that a file has, from that end on, in
    /// steps that may be committed apart. After a crash the file has any size between, or zeroes at
    /// its end.
    fn shrink(&mut self, ino: u32, size: u64, old: u64) -> Result<()> {
        let (from, to, step) = (self.ceil(size), self.ceil(old), self.freed_at_once());
        let mut runs = self.extents(ino, 0, to)?;
        let is_deep = self.tree_blocks(ino, &runs)? >= DEEP_TREE;
        runs.retain(|run| run.at + run.len > from);
        if runs.is_empty() {
            return Ok(());
        }
        self.unshield(ino, from, to - from)?;
        self.freed = true;
        if is_deep {
            return self.free(ino, from, to);
        }
        let (inode, mut end) = (number(ino)?, to);
        loop {
            end = last_bytes(&runs, end, step).map_or(from, |at| at.max(from));
            if end == from || end <= runs[0].at {
                break;
            }
            self.attempt(|fs| fs.truncate_inode(inode, end))?;
            self.begin_change()?;
        }
        Ok(())
    }

    /// Bytes that are freed in one step.
    fn freed_at_once(&self) -> u64 {
        FREED_AT_ONCE * self.block_size
    }

    /// Blocks that a file has beside those of these runs: of its extent tree, set aside behind its
    /// end, of attributes.
    fn tree_blocks(&mut self, ino: u32, runs: &[Run]) -> Result<u64> {
        let held: u64 = runs.iter().map(|run| run.len).sum();
        let all = self.fs.inode(number(ino)?).map_err(kind)?.blocks * SECTOR;
        Ok(all.saturating_sub(held) / self.block_size)
    }

    /// Frees the blocks of a range of whole blocks below the size. The crate refuses to take the
    /// last child from an inner node of the extent tree, unless that is the inode's: it can't write
    /// an empty one. So blocks stay in the first round, few of them; the tree is built anew, where
    /// they share nodes, and they go in the next.
    fn free(&mut self, ino: u32, from: u64, to: u64) -> Result<()> {
        let mut before = usize::MAX;
        loop {
            let kept = self.free_most(ino, from, to)?;
            if kept == 0 {
                return Ok(());
            }
            if kept >= before {
                return Err(ErrorKind::Corrupted);
            }
            before = kept;
            self.rebuild(ino)?;
        }
    }

    /// Frees what can be freed of a range, from its end on, in steps that may be committed apart.
    /// Returns how many pieces stay.
    fn free_most(&mut self, ino: u32, from: u64, to: u64) -> Result<usize> {
        let runs = self.extents(ino, from, to - from)?;
        let (mut end, mut kept) = (to, 0);
        while let Some(at) = last_bytes(&runs, end, self.freed_at_once()) {
            if !self.has_freed(ino, at, end)? {
                let part = runs.partition_point(|run| run.at + run.len <= at);
                for run in runs[part..].iter().map_while(|&run| clip(run, at, end)) {
                    kept += usize::from(!self.has_freed(ino, run.at, run.at + run.len)?);
                }
            }
            end = at;
            self.begin_change()?;
        }
        Ok(kept)
    }

    /// Frees the blocks of a range, unless the crate can't as the extent tree is.
    fn has_freed(&mut self, ino: u32, from: u64, to: u64) -> Result<bool> {
        match self.remove_blocks(ino, from, to) {
            Err(ErrorKind::Corrupted) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Has the crate build a file's extent tree anew, by a block that is put in before its last one
    /// and taken out again. Both are committed together.
    fn rebuild(&mut self, ino: u32) -> Result<()> {
        self.sync()?;
        let inode = number(ino)?;
        let (size, block) = (self.fs.inode(inode).map_err(kind)?.size, self.block_size);
        let runs = self.extents(ino, 0, self.ceil(size))?;
        // The new tree is built while the old one is there, twice, and neither's blocks come back
        // before the commit.
        if self.space().free < 2 * self.tree_blocks(ino, &runs)? + runs.len() as u64 / 8 + 16 {
            return Err(ErrorKind::NoSpace);
        }
        let at = self.floor(size.checked_sub(1).ok_or(ErrorKind::Corrupted)?);
        self.attempt(|fs| fs.operate_inode_range(inode, at, block, RangeOperation::Insert))?;
        self.attempt(|fs| fs.operate_inode_range(inode, at, block, RangeOperation::Collapse))
    }

    fn resize_now(&mut self, ino: u32, size: u64) -> Result<()> {
        let old = self.fs.inode(number(ino)?).map_err(kind)?.size;
        let tail = old.min(size);
        if tail % self.block_size != 0 {
            let block = self.floor(tail);
            for run in self.extents(ino, block, self.block_size)? {
                self.shield(run.disk);
            }
        }
        if size < old {
            let from = self.ceil(size);
            self.unshield(ino, from, self.ceil(old) - from.min(old))?;
            self.freed = true;
        }
        let ino = number(ino)?;
        self.attempt(|fs| fs.truncate_inode(ino, size))
    }

    /// Frees the blocks that lie wholly in the range; it reads as zeroes then. The rest is the
    /// host's to clear.
    ///
    /// # Errors
    /// I/O and damage.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// volume.reserve(file, 16384, 0, 16384)?;
    /// volume.punch(file, 0, 8192)?;
    /// assert_eq!(volume.extents(file, 0, 16384)?[0].at, 8192);
    /// # Ok(()) });
    /// ```
    pub fn punch(&mut self, ino: u32, at: u64, len: u64) -> Result<()> {
        let (from, to) = (self.ceil(at), self.floor(at + len));
        if from >= to {
            return Ok(());
        }
        self.begin_change()?;
        self.punch_now(ino, from, to)
    }

    fn punch_now(&mut self, ino: u32, from: u64, to: u64) -> Result<()> {
        self.unshield(ino, from, to - from)?;
        self.freed = true;
        if self.free_most(ino, from, to)? == 0 {
            return Ok(());
        }
        self.set_apart(ino, from, to)?;
        self.free(ino, from, to)
    }

    fn remove_blocks(&mut self, ino: u32, from: u64, to: u64) -> Result<()> {
        let ino = number(ino)?;
        self.attempt(|fs| fs.operate_inode_range(ino, from, to - from, RangeOperation::PunchHole))
    }

    /// Makes extents begin and end where a range does. The crate can't take blocks out of an
    /// extent's middle if the node that the extent is in has no room for one more. It makes room
    /// where blocks change between written and unwritten, so that is what blocks of the range do,
    /// which are about to go.
    fn set_apart(&mut self, ino: u32, from: u64, to: u64) -> Result<()> {
        for run in self.extents(ino, from, to - from)? {
            if run.unwritten {
                self.call_written(ino, run, run.at + run.len)?;
            } else {
                let zero = RangeOperation::Zero(ZeroRangeOptions::KEEP_SIZE);
                let ino = number(ino)?;
                self.attempt(|fs| fs.operate_inode_range(ino, run.at, run.len, zero))?;
            }
        }
        Ok(())
    }

    /// Frees what is set aside and was never written of a file that has just lost its last name,
    /// behind its size too: mounting again after a crash would lose these blocks. What it reads as
    /// stays. Nothing is committed between the name's end and this.
    fn drop_unwritten(&mut self, ino: u32) -> Result<()> {
        let file = self.attributes(ino)?;
        if file.mode & 0o170000 != 0o100000 || file.blocks == 0 || !file.has_extents {
            return Ok(());
        }
        let runs = self.extents(ino, 0, self.ceil(file.size))?;
        for run in runs.iter().filter(|run| run.unwritten) {
            self.punch_now(ino, run.at, self.ceil(run.at + run.len))?;
        }
        let seen: u64 = runs.iter().map(|run| run.len).sum();
        if seen == file.blocks * SECTOR {
            return Ok(());
        }
        // Behind its size is something, or its extents have blocks of their own.
        let most = MOST_BLOCKS * self.block_size;
        self.resize_now(ino, most)?;
        self.shrink(ino, file.size, most)?;
        self.resize_now(ino, file.size)
    }

    /// The name is gone, whatever becomes of the rest: blocks that can't be freed now are freed by
    /// [`reap`](Self::reap).
    pub(crate) fn lost_last_name(&mut self, ino: u32) {
        let _ = self.drop_unwritten(ino);
    }

    /// Frees an inode that has no name any more and that the host no longer uses.
    ///
    /// # Errors
    /// I/O and damage; mounting again frees it then.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// # use volume::New;
    /// # let root = volume.root();
    /// # let file = volume.create(root, b"data", New::File, 0o644, (0, 0))?.ino;
    /// let was_last = volume.unlink(root, b"data")?;
    /// // Nothing has it open any more.
    /// assert!(was_last);
    /// volume.reap(file)?;
    /// # Ok(()) });
    /// ```
    pub fn reap(&mut self, ino: u32) -> Result<()> {
        self.begin_change()?;
        let info = self.fs.inode(number(ino)?).map_err(kind)?;
        let is_file = info.mode & 0o170000 == 0o100000;
        self.freed = true;
        self.index.forget(ino);
        let inode = number(ino)?;
        let all = info.blocks * SECTOR;
        if is_file && all > 0 && self.written(ino, info.size)? == all {
            // The last step is the crate's.
            self.shrink(ino, 0, info.size)?;
        } else if is_file && all > 0 {
            // Blocks that were set aside and never written, maybe behind the size, go by a
            // truncation only: the crate loses them with the inode else.
            let most = MOST_BLOCKS * self.block_size;
            self.resize_now(ino, most)?;
            self.shrink(ino, 0, most)?;
            self.attempt(|fs| fs.truncate_inode(inode, 0))?;
        }
        self.attempt(|fs| fs.reap_unlinked_inode(inode))
    }

    /// Bytes of a file's blocks below its size that were written.
    fn written(&mut self, ino: u32, size: u64) -> Result<u64> {
        let runs = self.extents(ino, 0, self.ceil(size))?;
        Ok(runs.iter().filter(|run| !run.unwritten).map(|run| run.len).sum())
    }

    /// Commits all that was done, data included: see [`Device::flush`].
    ///
    /// # Errors
    /// I/O. The journal takes nothing more after a failure.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// volume.create(volume.root(), b"dir", volume::New::Dir, 0o755, (0, 0))?;
    /// volume.sync()?; // It is there after a crash.
    /// # Ok(()) });
    /// ```
    pub fn sync(&mut self) -> Result<()> {
        self.allow_all();
        self.fs.sync().map_err(kind)?;
        self.commit()?;
        self.freed = false;
        Ok(())
    }

    /// What the crate has in its caches belongs to what is committed, however much that is.
    fn allow_all(&mut self) {
        if let Some(transaction) = &mut self.state.lock().transaction {
            transaction.is_full = true;
        }
    }

    fn commit(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let now = self.clock.now().unwrap_or(Timestamp::new(0, 0));
        journal.commit(&self.state, &mut self.device, now)
    }

    /// Before a change, and the next step of one long change: commits if much waits for that.
    fn begin_change(&mut self) -> Result<()> {
        if self.state.lock().is_much() {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes a change. If it is more than the journal can take with what waits already, all of that
    /// is committed, and the change is made anew.
    pub(crate) fn attempt<T>(
        &mut self,
        change: impl Fn(&mut Ext4<Shadow<D>, Services>) -> core::result::Result<T, Ext4Error>,
    ) -> Result<T> {
        match change(&mut self.fs) {
            Err(error) if is_of_journal(error) => {
                self.sync()?;
                change(&mut self.fs)
            }
            done => done,
        }
        .map_err(kind)
    }

    /// Gives back the memory of metadata and names that are remembered and can be read again.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// volume.create(volume.root(), b"dir", volume::New::Dir, 0o755, (0, 0))?;
    /// volume.forget(); // What waits for a commit stays.
    /// volume.lookup(volume.root(), b"dir")?;
    /// # Ok(()) });
    /// ```
    pub fn forget(&mut self) {
        self.state.lock().cache.drop_eldest(0);
        self.index.clear();
    }

    /// Makes the volume clean and ends its use.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: there are inodes without names that were not reaped; I/O.
    ///
    /// ```
    /// # use volume::{ErrorKind, Mode, New, Volume};
    /// # use volume::example::{disk, Now, LIMITS};
    /// # let disk = disk();
    /// let mut volume = Volume::mount(disk.clone(), Now, Mode::ReadWrite, LIMITS)?;
    /// volume.create(volume.root(), b"dir", New::Dir, 0o755, (0, 0))?;
    /// volume.unmount()?;
    /// let mut volume = Volume::mount(disk, Now, Mode::ReadOnly, LIMITS)?;
    /// volume.lookup(volume.root(), b"dir")?;
    /// # Ok::<(), ErrorKind>(())
    /// ```
    pub fn unmount(&mut self) -> Result<()> {
        self.allow_all();
        self.fs.unmount().map_err(kind)?;
        self.commit()?;
        if let Some(journal) = &mut self.journal {
            journal.checkpoint(&self.state, &mut self.device)?;
            journal.close(&mut self.device)?;
        }
        Ok(())
    }

    fn floor(&self, at: u64) -> u64 {
        at & !(self.block_size - 1)
    }

    fn ceil(&self, at: u64) -> u64 {
        at.next_multiple_of(self.block_size)
    }

    fn shield(&self, disk: u64) {
        self.state.lock().shielded.insert(disk / self.block_size);
    }

    /// Lifts the shield from what the file owns of a range, before it is freed.
    fn unshield(&mut self, ino: u32, at: u64, len: u64) -> Result<()> {
        if self.state.lock().shielded.is_empty() {
            return Ok(());
        }
        for run in self.extents(ino, at, len)? {
            let (from, to) = (run.disk / self.block_size, (run.disk + run.len) / self.block_size);
            let mut state = self.state.lock();
            let lifted: Vec<u64> = state.shielded.range(from..to).copied().collect();
            for block in lifted {
                state.shielded.remove(&block);
            }
        }
        Ok(())
    }
}

/// The part of a run in `from..to`.
fn clip(run: Run, from: u64, to: u64) -> Option<Run> {
    let (start, end) = (run.at.max(from), (run.at + run.len).min(to));
    (start < end).then(|| Run {
        at: start,
        disk: run.disk + (start - run.at),
        len: end - start,
        ..run
    })
}

/// Where the last `most` bytes of the runs below `end` begin.
fn last_bytes(runs: &[Run], end: u64, most: u64) -> Option<u64> {
    let below = &runs[..runs.partition_point(|run| run.at < end)];
    let (mut left, mut start) = (most, None);
    for run in below.iter().rev().filter_map(|&run| clip(run, 0, end)) {
        start = Some(run.at + run.len.saturating_sub(left));
        if run.len >= left {
            break;
        }
        left -= run.len;
    }
    start
}

/// Whether runs leave nothing of `from..to` out, and are all written.
fn covers(runs: &[Run], from: u64, to: u64) -> bool {
    let mut at = from;
    for run in runs {
        if run.at > at || run.unwritten {
            return false;
        }
        at = run.at + run.len;
    }
    at >= to
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
