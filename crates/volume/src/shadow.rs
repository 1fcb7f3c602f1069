//! The device as rsext4 sees it: metadata goes through, file data stays behind.
//!
//! The crate believes that it writes file data; here nothing else does than the host. Whatever it
//! writes of a file is of two kinds, and both end here:
//!
//! - whole blocks, which it is given as slices of [`State::blank`] and passes on as they are: known
//!   by their address;
//! - a file's last, partial block, which it reads, zeroes behind the end and keeps in a cache of
//!   its own, to be written at any later time: known by its block number, in [`State::shielded`].
//!
//! Everything else is metadata, of which there is one [cache](crate::cache). A read that misses it
//! brings a line in, and of a table of inodes those that lie behind it. On a volume with a journal
//! a write stays in the cache until it is [committed](crate::journal): the crate is shown a volume
//! without one, and knows neither transactions nor when they end. Without a journal a write goes to
//! the disk at once: the order of writes is all that a crash leaves there.
//!
//! I1: a block is shielded only while a file owns it; [`crate::Volume`] lifts the shield before it
//! frees one. I2: nothing of a block that a file gets is still to be written when the host learns
//! where it lies: [`State::give_to_host`].

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::ops::Range;

use rsext4::superblock::Ext4Superblock;
use rsext4::{
    BlockIo, DeviceCapabilities, DeviceGeometry, Ext4Error, Ext4Result, SectorId,
    SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE,
};
use spin::Mutex;

use crate::cache::{Cache, LINE, SECTOR};
use crate::groups::Groups;
use crate::inodes::Tables;
use crate::{journal, Device, Limits, Mode};

/// Bytes that are written in one request.
const GATHERED: usize = 32 * LINE;
/// Lines that are read in one request.
const READ_AHEAD: u64 = 16;

/// Lines that may have to stay, however small the cache.
pub(crate) const FEW: usize = 128;
/// Why a write is refused: the transaction has as many blocks as it may have.
pub(crate) const FULL: &str = "jbd2:full";

/// Changes that are committed together.
pub(crate) struct Transaction {
    /// Blocks that it may have.
    pub(crate) most: usize,
    /// A write was refused since it had as many: what takes the change back may write all the same,
    /// until the commit.
    pub(crate) is_full: bool,
    /// A commit has failed: nothing more comes into the journal.
    pub(crate) is_aborted: bool,
}

/// What [`crate::Volume`] and the device share.
pub(crate) struct State {
    /// Bytes of nothing in particular: what the crate is given to write where the host will write
    /// the data.
    pub(crate) blank: Box<[u8]>,
    /// Where they are, for the time of such a write.
    blank_at: Range<usize>,
    /// Blocks of files that the crate may hold copies of.
    pub(crate) shielded: BTreeSet<u64>,
    pub(crate) block_size: u64,
    /// While a volume is mounted: groups are made known, and completed if it is for writing, as
    /// their descriptors are read.
    pub(crate) mounting: Option<(Mode, Box<Ext4Superblock>)>,
    /// Pieces that a file may lie in where they are listed, which the crate does in one piece of
    /// memory.
    pub(crate) most_pieces: usize,
    /// While they are: how many more may come.
    pub(crate) pieces_left: Option<usize>,
    tables: Tables,
    pub(crate) cache: Cache,
    /// If writes wait for a commit.
    pub(crate) transaction: Option<Transaction>,
    /// Room for one request.
    pub(crate) gathered: Box<[u8]>,
}

/// What a node of an extent tree begins with.
const EXTENT_MAGIC: [u8; 2] = [0x0a, 0xf3];

impl State {
    pub(crate) fn new(blank: usize, limits: Limits) -> Self {
        State {
            blank: alloc::vec![0; blank].into_boxed_slice(),
            blank_at: 0..0,
            shielded: BTreeSet::new(),
            block_size: 4096,
            mounting: None,
            most_pieces: limits.pieces,
            pieces_left: None,
            tables: Tables::default(),
            cache: Cache::new(limits.cache_lines),
            transaction: None,
            gathered: alloc::vec![0; GATHERED].into_boxed_slice(),
        }
    }

    /// Says which bytes are blank from now on.
    pub(crate) fn set_blank(&mut self, blank: &[u8]) {
        let start = blank.as_ptr().addr();
        self.blank_at = start..start + blank.len();
    }

    /// Counts the pieces in a block that was read, if it is a leaf of an extent tree and they are
    /// being listed.
    fn count_pieces(&mut self, block: &[u8]) -> Ext4Result<()> {
        if let (Some(left), Some(&[a, b, low, high, _, _, 0, 0])) =
            (&mut self.pieces_left, block.first_chunk())
            && [a, b] == EXTENT_MAGIC
        {
            let pieces = usize::from(u16::from_le_bytes([low, high]));
            // One without any costs a read.
            *left = left.checked_sub(pieces.max(1)).ok_or(Ext4Error::no_memory())?;
        }
        Ok(())
    }

    /// Says that the host writes a range of the disk from now on.
    pub(crate) fn give_to_host(&mut self, at: u64, len: u64) {
        self.cache.forget(at, at + len);
    }

    /// Whether a transaction has so many blocks that the next change belongs into another.
    pub(crate) fn is_much(&self) -> bool {
        let is_half = |all: usize, part: usize| part > all / 2;
        self.transaction.as_ref().is_some_and(|transaction| {
            is_half(transaction.most, self.cache.waiting())
                || is_half(self.cache.limit().max(FEW), self.cache.held())
        })
    }

    fn is_blank(&self, buffer: &[u8]) -> bool {
        self.blank_at.contains(&buffer.as_ptr().addr())
    }

    fn is_shielded(&self, at: u64) -> bool {
        self.shielded.contains(&(at / self.block_size))
    }

    /// The next part of `at..end` that is all shielded or all not, and which it is.
    fn part(&self, at: u64, end: u64) -> (u64, bool) {
        if self.shielded.range(at / self.block_size..=(end - 1) / self.block_size).next().is_none()
        {
            return (end, false);
        }
        let kind = self.is_shielded(at);
        let mut stop = at;
        while stop < end && self.is_shielded(stop) == kind {
            stop = (stop / self.block_size + 1) * self.block_size;
        }
        (stop.min(end), kind)
    }
}

/// See the module.
pub(crate) struct Shadow<D: Device> {
    pub(crate) device: D,
    pub(crate) state: Arc<Mutex<State>>,
}

impl<D: Device> Shadow<D> {
    /// Metadata: by the cache, if it lies within one line of it.
    fn read_through(&mut self, at: u64, to: &mut [u8]) -> Ext4Result<()> {
        let line = at / LINE as u64;
        let within = (at % LINE as u64) as usize;
        let range = within..within + to.len();
        if range.end > LINE || (line + 1) * LINE as u64 > self.device.bytes() {
            self.device.read(at, to).map_err(|_| Ext4Error::io())?;
            self.state.lock().cache.overlay(at, to);
            return Ok(());
        }
        if let Some(bytes) = self.state.lock().cache.get(line, range.clone()) {
            to.copy_from_slice(bytes);
            return Ok(());
        }
        let (count, mut bytes) = {
            let mut state = self.state.lock();
            let table = state.tables.end(line * LINE as u64).unwrap_or(0) / LINE as u64;
            let ahead = table.min(line + READ_AHEAD).max(line + 1);
            let limit = state.cache.limit() / 4;
            let follow = (line + 1..ahead).take(limit).take_while(|&next| !state.cache.has(next));
            (1 + follow.count(), core::mem::take(&mut state.gathered))
        };
        let read = self.device.read(line * LINE as u64, &mut bytes[..count * LINE]);
        let mut state = self.state.lock();
        if read.is_ok() {
            // What was asked for last, to be the last to go.
            for (n, part) in bytes[..count * LINE].chunks(LINE).enumerate().rev() {
                state.cache.learn(line + n as u64, part);
            }
            if let Some(bytes) = state.cache.get(line, range) {
                to.copy_from_slice(bytes);
            }
        }
        state.gathered = bytes;
        read.map_err(|_| Ext4Error::io())
    }

    fn write_metadata(&mut self, at: u64, bytes: &[u8]) -> Ext4Result<()> {
        {
            let State { cache, transaction, .. } = &mut *self.state.lock();
            if let Some(transaction) = transaction {
                transaction.admit(cache.waiting())?;
                cache.keep(at, bytes);
                return Ok(());
            }
            cache.update(at, bytes);
        }
        if journal::is_superblock(bytes) {
            // The crate calls a journal empty when all of it is in its place, and flushes too late.
            self.device.flush().map_err(|_| Ext4Error::io())?;
        }
        self.device.write(at, bytes).map_err(|_| Ext4Error::io())
    }
}

impl Transaction {
    /// Whether a transaction that has so many blocks may have one more.
    fn admit(&mut self, blocks: usize) -> Ext4Result<()> {
        if self.is_aborted {
            return Err(Ext4Error::journal_aborted());
        }
        if blocks >= self.most && !self.is_full {
            self.is_full = true;
            return Err(Ext4Error::no_space().with_operation(FULL));
        }
        Ok(())
    }
}

/// Whether the superblock lies in a range of the disk, and where.
fn superblock_in(at: u64, len: usize) -> Option<Range<usize>> {
    let from = SUPERBLOCK_OFFSET.checked_sub(at)? as usize;
    (from + SUPERBLOCK_SIZE <= len).then_some(from..from + SUPERBLOCK_SIZE)
}

impl<D: Device> BlockIo for Shadow<D> {
    fn write(&mut self, buffer: &[u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let len = u64::from(count) * SECTOR;
        let (mut at, end) = (sector.raw() * SECTOR, sector.raw() * SECTOR + len);
        let start = at;
        if self.state.lock().is_blank(buffer) {
            return Ok(());
        }
        while at < end {
            let (stop, shielded) = self.state.lock().part(at, end);
            if !shielded {
                let bytes = &buffer[(at - start) as usize..(stop - start) as usize];
                let place = superblock_in(at, bytes.len());
                if let Some(place) = place.filter(|_| self.state.lock().transaction.is_some()) {
                    let mut bytes = bytes.to_vec();
                    journal::add_journal(&mut bytes[place]);
                    self.write_metadata(at, &bytes)?;
                } else {
                    self.write_metadata(at, bytes)?;
                }
            }
            at = stop;
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let len = u64::from(count) * SECTOR;
        let (mut at, end) = (sector.raw() * SECTOR, sector.raw() * SECTOR + len);
        let start = at;
        while at < end {
            let (stop, shielded) = self.state.lock().part(at, end);
            let bytes = &mut buffer[(at - start) as usize..(stop - start) as usize];
            if shielded {
                bytes.fill(0);
            } else {
                self.read_through(at, bytes)?;
            }
            at = stop;
        }
        if self.state.lock().transaction.is_some()
            && let Some(place) = superblock_in(start, buffer.len())
        {
            journal::hide_journal(&mut buffer[place]);
        }
        let mounting = self.state.lock().mounting.clone();
        if let Some((mode, superblock)) = mounting {
            let mut tables = core::mem::take(&mut self.state.lock().tables);
            let mut groups = Groups {
                device: &mut self.device,
                superblock: &superblock,
                tables: &mut tables,
                mode,
            };
            let read = groups.read(start, buffer);
            self.state.lock().tables = tables;
            read.map_err(|_| Ext4Error::io())?;
        }
        self.state.lock().tables.correct(start, buffer);
        self.state.lock().count_pieces(buffer)
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry::new(SECTOR as u32, self.device.bytes() / SECTOR)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities {
            read_only: self.device.is_read_only(),
            flush: true,
            ..DeviceCapabilities::default()
        }
    }

    fn flush(&mut self) -> Ext4Result<()> {
        if self.state.lock().transaction.is_some() {
            return Ok(());
        }
        self.device.flush().map_err(|_| Ext4Error::io())
    }
}
