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
//! Everything else is metadata: it is read through a small cache of blocks and written through it
//! at once.
//!
//! I1: a block is shielded only while a file owns it; [`crate::Volume`] lifts the shield before it
//! frees one.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::Range;

use rsext4::superblock::Ext4Superblock;
use rsext4::{BlockIo, DeviceCapabilities, DeviceGeometry, Ext4Error, Ext4Result, SectorId};
use spin::Mutex;

use crate::groups::Groups;
use crate::inodes::Tables;
use crate::{Device, Limits, Mode};

const SECTOR: u64 = 512;
/// Bytes that the cache keeps as one.
pub(crate) const LINE: usize = 4096;

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
    cache: Cache,
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
            cache: Cache {
                lines: BTreeMap::new(),
                ages: BTreeMap::new(),
                clock: 0,
                limit: limits.cache_lines,
            },
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

/// Blocks read lately, the eldest first to go.
struct Cache {
    lines: BTreeMap<u64, (u64, Box<[u8]>)>,
    ages: BTreeMap<u64, u64>,
    clock: u64,
    limit: usize,
}

impl Cache {
    fn get(&mut self, line: u64) -> Option<&[u8]> {
        let (age, bytes) = self.lines.get_mut(&line)?;
        self.ages.remove(age);
        self.clock += 1;
        *age = self.clock;
        self.ages.insert(self.clock, line);
        Some(bytes)
    }

    fn insert(&mut self, line: u64, bytes: &[u8]) {
        if self.limit == 0 {
            return;
        }
        while self.lines.len() >= self.limit {
            let Some((_, eldest)) = self.ages.pop_first() else { break };
            self.lines.remove(&eldest);
        }
        self.clock += 1;
        self.lines.insert(line, (self.clock, bytes.into()));
        self.ages.insert(self.clock, line);
    }

    /// Carries a write into the lines that are here.
    fn update(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        for (&line, (_, old)) in self.lines.range_mut(at / LINE as u64..=(end - 1) / LINE as u64) {
            let start = line * LINE as u64;
            let (from, to) = (at.max(start), end.min(start + LINE as u64));
            old[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
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
        if within + to.len() > LINE || (line + 1) * LINE as u64 > self.device.bytes() {
            return self.device.read(at, to).map_err(|_| Ext4Error::io());
        }
        if let Some(bytes) = self.state.lock().cache.get(line) {
            to.copy_from_slice(&bytes[within..within + to.len()]);
            return Ok(());
        }
        let mut bytes = alloc::vec![0; LINE];
        self.device.read(line * LINE as u64, &mut bytes).map_err(|_| Ext4Error::io())?;
        to.copy_from_slice(&bytes[within..within + to.len()]);
        self.state.lock().cache.insert(line, &bytes);
        Ok(())
    }
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
                self.state.lock().cache.update(at, bytes);
                self.device.write(at, bytes).map_err(|_| Ext4Error::io())?;
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
        self.device.flush().map_err(|_| Ext4Error::io())
    }
}
