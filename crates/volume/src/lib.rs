//! An ext4 volume whose file data is moved by its host.
//!
//! [`Volume`] keeps the metadata: names, inodes, extents, bitmaps, the journal. The host, a kernel
//! with a page cache, is told where a range of a file lies on the disk, and moves pages there and
//! back by itself, many at once:
//!
//! ```text
//!   host: page cache --- data, asynchronous, in clusters -----------------------------+
//!     | names, sizes, Volume::extents, Volume::reserve                                |
//!   Volume: names, dir, htree --+                                                     |
//!           extents, indirect --+-- store -- cache -- journal, or straight from sync -+-- disk
//!           groups, inode ------+   (blocks)          replay, at a mount
//! ```
//!
//! Writing goes in this order: [`Volume::reserve`] says where a range lies, allocating what it
//! lacks and calling it written; the host writes its pages there; a later [`Volume::sync`] commits.
//! A commit begins with [`Device::flush`], which must wait for the data that was reserved before:
//! then no committed extent ever shows what the disk held before (ext4's `data=ordered`).
//!
//! A change is all or nothing: blocks are copied before they are edited, and one that can't go on,
//! for want of room or since something on the disk is damaged, leaves everything as it was
//! (`Volume::attempt`). Long ones are made in steps, each such a change, which may be committed
//! apart.
//!
//! I1: what comes from the disk is an enemy's: it is looked at before it is used, chooses no
//! recursion, and bounds no loop or memory but by the volume's own length. I2: a change edits few
//! blocks, and transactions have room for one more than they count. I3: a block that becomes the
//! host's is in no cache and not in the journal.
//!
//! The road not taken: a crate for all of it (`rsext4`), which copied its caches at each change.

#![no_std]
#![forbid(unsafe_code)]
#![allow(missing_docs)]

extern crate alloc;

mod attributes;
mod bytes;
mod cache;
mod dir;
#[cfg(feature = "__example")]
#[doc(hidden)]
pub mod example;
mod extents;
mod groups;
mod hash;
mod htree;
mod index;
mod indirect;
mod inode;
mod journal;
mod layout;
mod names;
mod orphans;
mod replay;
mod store;
mod sums;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use extents::Extent;
use index::Index;
use inode::Inode;
use journal::Journal;
use layout::{Layout, Zones};
use store::{Store, LINE};

pub use names::{
    AccessList, Attributes, Change, Entry, New, Rename, APPEND_ONLY, IMMUTABLE, NO_ATIME, SYNC,
};

/// What a call may end with.
pub type Result<T> = core::result::Result<T, ErrorKind>;

/// Why a call fails; each says enough for an errno.
///
/// ```
/// # use volume::{ErrorKind, Mode, Volume};
/// # use volume::example::{disk, Now, LIMITS};
/// let mut volume = Volume::mount(disk(), Now, Mode::ReadOnly, LIMITS)?;
/// let found = volume.lookup(volume.root(), b"nothing").map(|found| found.ino);
/// assert_eq!(found, Err(ErrorKind::NotFound));
/// # Ok::<(), ErrorKind>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The disk failed to transfer data.
    Io,
    /// What is on the disk can't be right.
    Corrupted,
    /// There is no ext4 volume.
    InvalidMagic,
    /// The volume has a feature that isn't known here.
    UnsupportedFeature,
    /// It can't be done with such a file.
    Unsupported,
    ReadOnly,
    /// A commit has failed before, and nothing can be changed since.
    JournalAborted,
    NoSpace,
    /// More would have to be kept in memory than may be.
    NoMemory,
    NotFound,
    AlreadyExists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    TooManyLinks,
    PermissionDenied,
    InvalidInput,
    FileTooLarge,
    /// Inodes without names are in use.
    Busy,
}

/// A point in time since 1970.
///
/// ```
/// let time = volume::Timestamp::new(1_800_000_000, 5);
/// assert_eq!((time.sec, time.nsec), (1_800_000_000, 5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timestamp {
    pub sec: i64,
    pub nsec: u32,
}

impl Timestamp {
    /// ```
    /// assert_eq!(volume::Timestamp::new(-1, 0).sec, -1);
    /// ```
    pub const fn new(sec: i64, nsec: u32) -> Timestamp {
        Timestamp { sec, nsec }
    }
}

/// What time it is.
///
/// ```
/// use volume::{Clock, Timestamp};
///
/// /// A clock that stands still.
/// #[derive(Clone)]
/// struct Still;
///
/// impl Clock for Still {
///     fn now(&self) -> Timestamp {
///         Timestamp::new(1_800_000_000, 0)
///     }
/// }
/// ```
pub trait Clock {
    fn now(&self) -> Timestamp;
}

/// Where a listing of a directory goes on.
///
/// ```
/// # volume::example::run(|volume| {
/// # use volume::Cursor;
/// let names = volume.list(volume.root(), Cursor::Start, 10)?;
/// let rest = volume.list(volume.root(), names[1].next, 10)?;
/// assert_eq!(rest.len(), names.len() - 2);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    Start,
    /// At a byte of a directory that is a list.
    Linear {
        offset: u64,
    },
    /// Behind the names that have these hashes in a directory with an index.
    Hashed {
        hash: u32,
        minor: u32,
    },
    End,
}

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
    store: Store<D>,
    layout: Layout,
    /// The superblock, but for what [`Counts`] has.
    superblock: Box<[u8]>,
    counts: Counts,
    /// Blocks that no file may have.
    zones: Zones,
    /// Blocks by group that were freed, which isn't committed yet.
    busy: BTreeMap<u32, Box<[u8]>>,
    /// Groups whose bitmaps need other checksums: the first bit for blocks, the second for inodes.
    maps: BTreeMap<u32, u8>,
    /// Inodes without names (`orphans`), and those of the change that goes on.
    orphans: Vec<u32>,
    lost: Vec<u32>,
    /// Those of `orphans` that are damaged and can't be freed: `e2fsck` is to.
    stuck: BTreeSet<u32>,
    /// Where the next file's data may begin.
    next_data: u64,
    index: Index,
    clock: Box<dyn Clock + Send>,
    /// Pieces that a file may lie in, where they are listed.
    pieces: usize,
    is_read_only: bool,
    /// Bitmaps and their checksums may be of different times.
    is_doubtful: bool,
    /// Of a volume that is mounted for writing, if it has one.
    journal: Option<Journal>,
}

/// What the superblock says that changes all the time.
#[derive(Clone, Copy, Default)]
struct Counts {
    free_blocks: u64,
    free_inodes: u32,
    last_orphan: u32,
}

/// Pieces of a file that one change gives out.
const PIECES_AT_ONCE: usize = 8;

impl<D: Device> Volume<D> {
    /// Mounts the volume on `device`, replaying its journal and finishing what a crash interrupted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidMagic`] and the like: there is no such volume;
    /// [`ErrorKind::UnsupportedFeature`]: it has a feature that is not known here;
    /// [`ErrorKind::NoMemory`]: its journal, or its number of groups, is beyond what may be kept in
    /// memory.
    ///
    /// ```
    /// # use volume::{ErrorKind, Mode, Volume};
    /// # use volume::example::{disk, Now, LIMITS};
    /// let mut volume = Volume::mount(disk(), Now, Mode::ReadWrite, LIMITS)?;
    /// volume.unmount()?;
    /// # Ok::<(), ErrorKind>(())
    /// ```
    pub fn mount<C: Clock + Send + 'static>(
        mut device: D,
        clock: C,
        mode: Mode,
        limits: Limits,
    ) -> Result<Self> {
        let may_write = !device.is_read_only();
        if mode == Mode::ReadWrite && !may_write {
            return Err(ErrorKind::ReadOnly);
        }
        let mut raw = alloc::vec![0; layout::SUPERBLOCK].into_boxed_slice();
        device.read(layout::SUPERBLOCK_AT, &mut raw).map_err(|_| ErrorKind::Io)?;
        let mut volume = Self::with(device, Box::new(clock), raw, limits)?;
        if volume.layout.journal != 0 && may_write {
            let runs = volume.journal_runs()?;
            if replay::replay(&mut volume.store.device, &volume.layout, &runs)? {
                let Volume { store, clock, mut superblock, .. } = volume;
                let mut device = store.device;
                device.read(layout::SUPERBLOCK_AT, &mut superblock).map_err(|_| ErrorKind::Io)?;
                volume = Self::with(device, clock, superblock, limits)?;
            }
        }
        volume.is_read_only = mode == Mode::ReadOnly;
        let has_journal = volume.layout.journal != 0;
        let state = bytes::get16(&volume.superblock, layout::STATE);
        volume.is_doubtful = !has_journal && state & layout::VALID == 0;
        volume.survey()?;
        if !volume.inode(volume.root())?.is_dir() {
            return Err(ErrorKind::Corrupted);
        }
        if mode == Mode::ReadWrite {
            volume.begin_writing()?;
        }
        Ok(volume)
    }

    /// A volume as its superblock says that it is; nothing else is looked at.
    fn with(
        device: D,
        clock: Box<dyn Clock + Send>,
        superblock: Box<[u8]>,
        limits: Limits,
    ) -> Result<Self> {
        let layout = Layout::read(&superblock, device.bytes())?;
        let last_orphan = bytes::get32(&superblock, layout::LAST_ORPHAN);
        Ok(Volume {
            store: Store::new(device, limits.cache_lines, layout.block_size, layout.blocks),
            layout,
            superblock,
            counts: Counts { last_orphan, ..Counts::default() },
            zones: Zones::new(),
            busy: BTreeMap::new(),
            maps: BTreeMap::new(),
            orphans: Vec::new(),
            lost: Vec::new(),
            stuck: BTreeSet::new(),
            next_data: 0,
            index: Index::new(limits.cache_lines * LINE),
            clock,
            pieces: limits.pieces,
            is_read_only: true,
            is_doubtful: false,
            journal: None,
        })
    }

    /// Where the journal's file lies.
    fn journal_runs(&mut self) -> Result<Vec<Run>> {
        let inode = self.inode(self.layout.journal)?;
        let blocks = inode.size() / self.layout.block_size as u64;
        let found = self.blocks_of(&inode, 0, blocks)?;
        Ok(found.into_iter().map(|extent| self.run(extent)).collect())
    }

    /// Takes the journal into use, frees what a crash has left, and says that the volume is in use.
    fn begin_writing(&mut self) -> Result<()> {
        let layout = &self.layout;
        if layout.is_for_reading || layout.has_mmp || !layout.has_extents {
            return Err(ErrorKind::UnsupportedFeature);
        }
        if layout.journal != 0 {
            let runs = self.journal_runs()?;
            for run in &runs {
                let size = self.layout.block_size as u64;
                self.zones.add(run.disk / size, run.len / size);
            }
            self.zones.sort();
            self.journal = Some(Journal::open(&mut self.store.device, &self.layout, runs)?);
            self.set_feature(layout::INCOMPAT, layout::RECOVER, true);
        } else {
            self.set_state(|state| state & !layout::VALID);
        }
        let mounts = bytes::get16(&self.superblock, layout::MOUNTS);
        bytes::put16(&mut self.superblock, layout::MOUNTS, mounts.saturating_add(1));
        if self.journal.is_none() {
            // What is done from here on, a crash may leave in any state.
            self.sync()?;
        }
        self.reap_orphans()
    }

    fn set_feature(&mut self, set: usize, feature: u32, is_on: bool) {
        let old = bytes::get32(&self.superblock, set);
        let new = if is_on { old | feature } else { old & !feature };
        bytes::put32(&mut self.superblock, set, new);
    }

    fn set_state(&mut self, change: impl Fn(u16) -> u16) {
        let state = change(bytes::get16(&self.superblock, layout::STATE));
        bytes::put16(&mut self.superblock, layout::STATE, state);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The root directory's inode.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// assert_eq!(volume.attributes(volume.root())?.mode, 0o040_755);
    /// # Ok(()) });
    /// ```
    pub fn root(&self) -> u32 {
        2
    }

    /// Bytes of a block: 1024, 2048 or 4096.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// assert_eq!(volume.block_size(), volume.space().block_size);
    /// # Ok(()) });
    /// ```
    pub fn block_size(&self) -> u64 {
        self.layout.block_size as u64
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
        Space {
            block_size: self.block_size(),
            blocks: self.layout.blocks,
            free: self.counts.free_blocks,
            reserved: self.layout.reserved.min(self.layout.blocks),
            files: self.layout.inodes.into(),
            files_free: self.counts.free_inodes.into(),
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
        self.layout.reserve_owner
    }

    /// Where the file's bytes in `at..at + len` lie, as far as they are allocated and below its
    /// size.
    ///
    /// # Errors
    /// I/O and damage; [`ErrorKind::NoMemory`] if the range lies in [too many
    /// pieces](Limits::pieces).
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
        let inode = self.inode(ino)?;
        let end = at.saturating_add(len).min(self.ceil(inode.size()));
        if at >= end || !self.has_blocks(&inode) {
            return Ok(Vec::new());
        }
        let size = self.block_size();
        let found = self.blocks_of(&inode, at / size, end.div_ceil(size))?;
        let runs = found.into_iter().map(|extent| self.run(extent));
        Ok(runs.filter_map(|run| clip(run, at, end)).collect())
    }

    /// Whether an inode has a map of blocks.
    fn has_blocks(&self, inode: &Inode) -> bool {
        match inode.kind() {
            inode::FILE | inode::DIR => true,
            inode::LINK => !self.is_short_link(inode),
            _ => false,
        }
    }

    /// The extents of a file that have blocks in `from..to`.
    fn blocks_of(&mut self, inode: &Inode, from: u64, to: u64) -> Result<Vec<Extent>> {
        let (to, pieces) = (to.min(extents::MOST_BLOCKS), self.pieces);
        match inode.has(inode::EXTENTS) {
            true => self.extents_of(inode, from, to, pieces),
            false => self.indirect_extents(inode, from, to, pieces),
        }
    }

    fn run(&self, extent: Extent) -> Run {
        let size = self.block_size();
        Run {
            at: extent.at * size,
            disk: extent.start * size,
            len: extent.len * size,
            unwritten: extent.is_unwritten,
        }
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
        let end = at.saturating_add(len).min(size).max(at);
        let (at, end) = (self.floor(at), self.ceil(end));
        if self.inode(ino)?.size() != size {
            self.resize(ino, size)?;
        }
        let runs = self.extents(ino, at, end - at)?;
        if covers(&runs, at, end) {
            return Ok(runs);
        }
        self.fill(ino, at, end, Fill::Written)?;
        let runs = self.extents(ino, at, end - at)?;
        if covers(&runs, at, end) {
            Ok(runs)
        } else {
            Err(ErrorKind::Corrupted)
        }
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
        let end = at.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        self.fill(ino, self.floor(at), self.ceil(end), Fill::Unwritten)
    }

    /// Has blocks for a range, in steps.
    fn fill(&mut self, ino: u32, at: u64, end: u64, how: Fill) -> Result<()> {
        let size = self.block_size();
        let (mut at, end) = (at / size, end / size);
        if end > extents::MOST_BLOCKS {
            return Err(ErrorKind::FileTooLarge);
        }
        while at < end {
            at = self.attempt(|volume| volume.fill_some(ino, at, end, how))?;
        }
        Ok(())
    }

    /// Has blocks for the first pieces of a range; returns where the rest begins.
    fn fill_some(&mut self, ino: u32, at: u64, end: u64, how: Fill) -> Result<u64> {
        let mut inode = self.inode(ino)?;
        if inode.kind() != inode::FILE || !inode.has(inode::EXTENTS) {
            return Err(ErrorKind::Unsupported);
        }
        let (mut next, mut given) = (at, Vec::new());
        for _ in 0..PIECES_AT_ONCE {
            let Some(part) = self.first_gap(&inode, next, end, how)? else {
                next = end;
                break;
            };
            let part = match part {
                Gap::Unwritten(part) => {
                    let part = part.part(0, part.at + u64::from(extents::LONGEST));
                    self.call_written(&mut inode, part)?;
                    part
                }
                Gap::Hole { at, len } => {
                    let goal = self.goal(&inode, at)?;
                    let (start, len) = self.take_blocks(goal, len.min(extents::LONGEST.into()))?;
                    self.next_data = start + len;
                    let is_unwritten = how == Fill::Unwritten;
                    let part = Extent { at, len, start, is_unwritten };
                    self.count_blocks(&mut inode, len as i64)?;
                    self.add_extent(&mut inode, part)?;
                    part
                }
            };
            next = part.end();
            given.push(part);
        }
        if !given.is_empty() {
            self.touch(&mut inode);
            self.put_inode(&inode)?;
        }
        for part in given {
            self.store.cache.give_away(part.start, part.len);
        }
        Ok(next)
    }

    /// The first part of a range that has no blocks, or was never written if that counts.
    fn first_gap(&mut self, inode: &Inode, at: u64, end: u64, how: Fill) -> Result<Option<Gap>> {
        let mut at = at;
        while at < end {
            let Some(found) = self.first_extent(inode, at, end)? else {
                return Ok(Some(Gap::Hole { at, len: end - at }));
            };
            if found.at > at {
                return Ok(Some(Gap::Hole { at, len: found.at - at }));
            }
            if found.is_unwritten && how == Fill::Written {
                return Ok(Some(Gap::Unwritten(found.part(at, end))));
            }
            at = found.end();
        }
        Ok(None)
    }

    /// Where a block of a file is to lie: behind the one before it, or where the last file's end.
    fn goal(&mut self, inode: &Inode, at: u64) -> Result<u64> {
        if let Some(before) = at.checked_sub(1)
            && let Some(extent) = self.extent_before(inode, before)?
        {
            return Ok(extent.start + (at - extent.at));
        }
        let group = (inode.ino - 1) / self.layout.group_inodes;
        let (data, _) = self.layout.group_of(self.next_data);
        Ok(if data == group { self.next_data } else { self.layout.start(group) })
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
        let old = self.inode(ino)?.size();
        if size > extents::MOST_BLOCKS * self.block_size() {
            return Err(ErrorKind::FileTooLarge);
        }
        if size < old {
            self.free_behind(ino, size)?;
        }
        self.attempt(|volume| {
            let mut inode = volume.inode(ino)?;
            if inode.kind() != inode::FILE || !inode.has(inode::EXTENTS) {
                return Err(ErrorKind::Unsupported);
            }
            inode.set_size(size);
            volume.touch(&mut inode);
            if size >> 31 != 0 {
                volume.set_feature(layout::RO_COMPAT, layout::LARGE_FILE, true);
            }
            volume.put_inode(&inode)
        })
    }

    /// Frees the blocks of a file wholly behind a size, in steps that may be committed apart. After
    /// a crash the file has any size between.
    fn free_behind(&mut self, ino: u32, size: u64) -> Result<()> {
        let (block, from) = (self.block_size(), size.div_ceil(self.block_size()));
        self.free_steps(ino, from, extents::MOST_BLOCKS + 1, |inode, end| {
            let end = end.saturating_mul(block).max(size);
            inode.set_size(inode.size().min(end));
        })
    }

    /// Frees what a file has in a range of blocks, from its end on, in steps.
    fn free_steps(
        &mut self,
        ino: u32,
        from: u64,
        to: u64,
        note: impl Fn(&mut Inode, u64),
    ) -> Result<()> {
        let mut end = to;
        while end > from {
            end = self.attempt(|volume| {
                let mut inode = volume.inode(ino)?;
                if inode.kind() != inode::FILE || !inode.has(inode::EXTENTS) {
                    return Err(ErrorKind::Unsupported);
                }
                let left = volume.free_last(&mut inode, from, end)?.unwrap_or(from);
                note(&mut inode, left);
                volume.touch(&mut inode);
                volume.put_inode(&inode)?;
                Ok(left)
            })?;
        }
        Ok(())
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
        let (from, to) = (self.ceil(at), self.floor(at.saturating_add(len)));
        let size = self.block_size();
        let to = (to / size).min(extents::MOST_BLOCKS + 1);
        self.free_steps(ino, from / size, to, |_, _| {})
    }

    /// Frees an inode that has no name any more and that the host no longer uses.
    ///
    /// # Errors
    /// I/O and damage: mounting again, or `e2fsck`, frees it then, and it keeps no volume in use.
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
        self.reap_all(ino)
    }

    /// Commits all that was done, data included: see [`Device::flush`].
    ///
    /// # Errors
    /// I/O. Nothing more is changed after a failure.
    ///
    /// ```
    /// # volume::example::run(|volume| {
    /// volume.create(volume.root(), b"dir", volume::New::Dir, 0o755, (0, 0))?;
    /// volume.sync()?; // It is there after a crash.
    /// # Ok(()) });
    /// ```
    pub fn sync(&mut self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.commit()?;
        self.busy.clear();
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if self.journal.as_ref().is_some_and(|journal| journal.is_aborted) {
            return Err(ErrorKind::JournalAborted);
        }
        let now = self.now();
        self.seal_maps()?;
        self.put_superblock()?;
        self.store.cache.seal();
        if let Some(journal) = &mut self.journal {
            return journal.commit(&mut self.store, now);
        }
        // Data first, and then what makes it reachable, whatever of that a crash leaves.
        let failed = |_| ErrorKind::Io;
        self.store.device.flush().map_err(failed)?;
        // What an earlier commit has failed to write is tried again.
        if self.store.cache.held() > 0 {
            self.store.cache.committed();
            self.store.write_logged().map_err(failed)?;
            self.store.cache.checkpointed();
            self.store.device.flush().map_err(failed)?;
        }
        Ok(())
    }

    /// Has the superblock say what is free, if it doesn't.
    fn put_superblock(&mut self) -> Result<()> {
        let (block, at) = self.layout.superblock();
        let place = self.store.place(block)?;
        let there = &self.store.cache.bytes(place)[at..at + layout::SUPERBLOCK];
        groups::note_counts(&mut self.superblock, &self.counts);
        layout::seal(&mut self.superblock);
        if there != &*self.superblock {
            bytes::put(self.store.cache.edit(place), at, &self.superblock);
        }
        Ok(())
    }

    /// Makes a change, which is all or nothing. Commits before, if much waits for that, and once
    /// more if there is no room before what was freed is committed.
    pub(crate) fn attempt<T>(&mut self, change: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_read_only {
            return Err(ErrorKind::ReadOnly);
        }
        if let Some(journal) = &self.journal {
            if journal.is_aborted {
                return Err(ErrorKind::JournalAborted);
            }
            if self.store.cache.waiting() > journal.most() / 2 {
                self.sync()?;
            }
        }
        if self.store.is_much() {
            self.sync()?;
        }
        match self.attempt_once(&change) {
            Err(ErrorKind::NoSpace) if !self.busy.is_empty() => {
                self.sync()?;
                self.attempt_once(&change)
            }
            done => done,
        }
    }

    fn attempt_once<T>(&mut self, change: &impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        self.store.cache.begin();
        let counts = self.counts;
        let done = change(self);
        match done {
            Ok(_) => self.orphans.append(&mut self.lost),
            Err(_) => {
                self.store.cache.take_back();
                self.counts = counts;
                self.lost.clear();
            }
        }
        done
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
        self.store.cache.drop_eldest(0);
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
        if self.orphans.len() > self.stuck.len() {
            return Err(ErrorKind::Busy);
        }
        if self.is_read_only {
            return Ok(());
        }
        if self.journal.is_none() {
            self.sync()?;
            self.set_state(|state| state | layout::VALID);
        }
        self.sync()?;
        if let Some(journal) = &mut self.journal {
            journal.checkpoint(&mut self.store)?;
            journal.close(&mut self.store.device)?;
        }
        self.is_read_only = true;
        self.forget();
        Ok(())
    }

    fn floor(&self, at: u64) -> u64 {
        at - at % self.block_size()
    }

    fn ceil(&self, at: u64) -> u64 {
        at.div_ceil(self.block_size()).saturating_mul(self.block_size())
    }
}

/// What blocks are given out for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// The host writes there.
    Written,
    Unwritten,
}

/// What a range lacks.
enum Gap {
    Hole { at: u64, len: u64 },
    Unwritten(Extent),
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
