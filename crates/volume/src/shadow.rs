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
//! Everything else is metadata, of which there is one cache. A read that misses it brings a line
//! in, and of a table of inodes those that lie behind it. On a volume with a journal a write stays
//! in the cache until the crate flushes, or until there are too many: then all that was written
//! goes to the disk in ascending order, what is adjacent in one request, as from a disk's own
//! cache. So a transaction is a request for its blocks and one for its commit record, and a
//! checkpoint one for each run of blocks. Without a journal a write goes to the disk at once: the
//! order of writes is all that a crash leaves there.
//!
//! I1: a block is shielded only while a file owns it; [`crate::Volume`] lifts the shield before it
//! frees one. I2: nothing of a block that a file gets is still to be written when the host learns
//! where it lies: [`State::give_to_host`].

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
/// Sectors of a line, as bits.
const WHOLE: u8 = 0xff;
/// Bytes that are written, or read ahead, in one request.
const GATHERED: usize = 16 * LINE;
/// Lines that may wait to be written, however small the cache.
const FEWEST_WAITING: usize = 16;

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
    /// Whether writes wait for a flush.
    pub(crate) holds_writes: bool,
    /// Room for one request.
    gathered: Box<[u8]>,
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
                ages: Ages::default(),
                waiting: BTreeSet::new(),
                limit: limits.cache_lines,
            },
            holds_writes: false,
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

    /// Whether the disk has all that was written.
    pub(crate) fn is_written(&self) -> bool {
        self.cache.waiting.is_empty()
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

/// Bytes of a line, as far as they are known.
struct Line {
    /// `None` while it waits to be written.
    age: Option<u64>,
    /// The sectors that are known, as bits.
    known: u8,
    /// Those of them that the disk doesn't have.
    waiting: u8,
    bytes: Box<[u8]>,
}

impl Line {
    /// Some sectors wait no more; a line of which none does may go again.
    fn settle(&mut self, sectors: u8, line: u64, waiting: &mut BTreeSet<u64>, ages: &mut Ages) {
        self.waiting &= !sectors;
        if self.waiting == 0 && waiting.remove(&line) {
            self.age = Some(ages.enter(line));
        }
    }
}

/// In which order lines were used last that may go.
#[derive(Default)]
struct Ages {
    clock: u64,
    lines: BTreeMap<u64, u64>,
}

impl Ages {
    /// A line is used: its age.
    fn enter(&mut self, line: u64) -> u64 {
        self.clock += 1;
        self.lines.insert(self.clock, line);
        self.clock
    }

    fn leave(&mut self, age: u64) {
        self.lines.remove(&age);
    }
}

/// Lines used lately, the eldest first to go, and those that wait to be written.
struct Cache {
    lines: BTreeMap<u64, Line>,
    ages: Ages,
    waiting: BTreeSet<u64>,
    limit: usize,
}

/// The sectors of a line in a range of its bytes, as bits.
fn sectors(range: &Range<usize>) -> u8 {
    let (from, to) = (range.start / SECTOR as usize, range.end / SECTOR as usize);
    (((1u16 << to) - (1u16 << from)) & 0xff) as u8
}

impl Cache {
    /// The bytes of a range of a line, if they are known.
    fn get(&mut self, line: u64, range: Range<usize>) -> Option<&[u8]> {
        let Cache { lines, ages, .. } = self;
        let found = lines.get_mut(&line)?;
        if sectors(&range) & !found.known != 0 {
            return None;
        }
        if let Some(age) = &mut found.age {
            ages.leave(*age);
            *age = ages.enter(line);
        }
        Some(&found.bytes[range])
    }

    /// Corrects what was read from the disk by what waits.
    fn overlay(&self, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        for &line in self.waiting.range(at / LINE as u64..end.div_ceil(LINE as u64)) {
            let Some(found) = self.lines.get(&line) else { continue };
            for n in (0..LINE / SECTOR as usize).filter(|n| found.waiting & 1 << n != 0) {
                let sector = line * LINE as u64 + n as u64 * SECTOR;
                if (at..end).contains(&sector) {
                    bytes[(sector - at) as usize..][..SECTOR as usize]
                        .copy_from_slice(&found.bytes[n * SECTOR as usize..][..SECTOR as usize]);
                }
            }
        }
    }

    /// Forgets what lies in a range: it is the host's from now on.
    fn forget(&mut self, from: u64, to: u64) {
        let Cache { lines, ages, waiting, .. } = self;
        for (&line, found) in lines.range_mut(from / LINE as u64..to.div_ceil(LINE as u64)) {
            let start = line * LINE as u64;
            let mine = sectors(
                &((from.max(start) - start) as usize
                    ..(to.min(start + LINE as u64) - start) as usize),
            );
            found.known &= !mine;
            found.settle(mine, line, waiting, ages);
        }
    }

    fn has(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|found| found.known == WHOLE)
    }

    /// Takes over a line that was read, but what is known better.
    fn learn(&mut self, line: u64, bytes: &[u8]) {
        let found = self.line(line);
        for (n, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            if found.known & 1 << n == 0 {
                found.bytes[n * SECTOR as usize..][..sector.len()].copy_from_slice(sector);
            }
        }
        found.known = WHOLE;
    }

    /// A line, with room made for it if it is new.
    fn line(&mut self, line: u64) -> &mut Line {
        let most = self.limit.max(1);
        if !self.lines.contains_key(&line) {
            self.drop_eldest(most - 1);
        }
        debug_assert!(self.lines.len() <= self.waiting.len() + most, "lines are left over");
        self.lines.entry(line).or_insert_with(|| Line {
            age: Some(self.ages.enter(line)),
            known: 0,
            waiting: 0,
            bytes: alloc::vec![0; LINE].into_boxed_slice(),
        })
    }

    /// Carries a write into the cache: into all lines if it waits, else into those that are here.
    fn write(&mut self, at: u64, bytes: &[u8], waits: bool) {
        let end = at + bytes.len() as u64;
        for line in at / LINE as u64..=(end - 1) / LINE as u64 {
            if !waits && !self.lines.contains_key(&line) {
                continue;
            }
            let start = line * LINE as u64;
            let (from, to) = (at.max(start), end.min(start + LINE as u64));
            let range = (from - start) as usize..(to - start) as usize;
            let found = self.line(line);
            found.known |= sectors(&range);
            let part = &bytes[(from - at) as usize..(to - at) as usize];
            found.bytes[range.clone()].copy_from_slice(part);
            if waits {
                found.waiting |= sectors(&range);
                if let Some(age) = found.age.take() {
                    self.ages.leave(age);
                }
                self.waiting.insert(line);
            }
        }
    }

    /// Puts the first run of sectors that wait, from a line on, into `to`; says where it goes, and
    /// how long it is.
    fn gather(&self, from: u64, to: &mut [u8]) -> Option<(u64, usize)> {
        let &first = self.waiting.range(from..).next()?;
        let skip = self.lines.get(&first)?.waiting.trailing_zeros() as usize;
        let (mut line, mut sector, mut len) = (first, skip, 0);
        while len < to.len() {
            let Some(found) = self.lines.get(&line) else { break };
            if found.waiting & 1 << sector == 0 {
                break;
            }
            let part = &found.bytes[sector * SECTOR as usize..][..SECTOR as usize];
            to[len..len + part.len()].copy_from_slice(part);
            len += part.len();
            sector += 1;
            if sector == LINE / SECTOR as usize {
                (line, sector) = (line + 1, 0);
            }
        }
        Some((first * LINE as u64 + skip as u64 * SECTOR, len))
    }

    /// The disk has what was gathered.
    fn written(&mut self, at: u64, len: usize) {
        for sector in at / SECTOR..at / SECTOR + len as u64 / SECTOR {
            let line = sector / (LINE as u64 / SECTOR);
            let Some(found) = self.lines.get_mut(&line) else { continue };
            let sectors = 1 << (sector % (LINE as u64 / SECTOR));
            found.settle(sectors, line, &mut self.waiting, &mut self.ages);
        }
        self.drop_eldest(self.limit);
    }

    /// Drops the eldest lines that may go, as long as there are more than so many.
    fn drop_eldest(&mut self, most: usize) {
        while self.lines.len() > self.waiting.len() + most {
            let Some((_, eldest)) = self.ages.lines.pop_first() else { break };
            self.lines.remove(&eldest);
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
            let ahead = table.min(line + (GATHERED / LINE) as u64).max(line + 1);
            let limit = state.cache.limit / 4;
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

    /// Gives the disk all that waits.
    pub(crate) fn write_out(&mut self) -> Ext4Result<()> {
        if self.state.lock().cache.waiting.is_empty() {
            return Ok(());
        }
        let mut bytes = core::mem::take(&mut self.state.lock().gathered);
        let mut result = Ok(());
        let mut next = 0;
        while result.is_ok() {
            let gathered = self.state.lock().cache.gather(next, &mut bytes);
            let Some((at, len)) = gathered else { break };
            result = self.device.write(at, &bytes[..len]).map_err(|_| Ext4Error::io());
            if result.is_ok() {
                self.state.lock().cache.written(at, len);
            }
            next = at / LINE as u64;
        }
        self.state.lock().gathered = bytes;
        result
    }

    fn write_metadata(&mut self, at: u64, bytes: &[u8]) -> Ext4Result<()> {
        let waits = {
            let mut state = self.state.lock();
            let waits = state.holds_writes;
            state.cache.write(at, bytes, waits);
            waits
        };
        if !waits {
            return self.device.write(at, bytes).map_err(|_| Ext4Error::io());
        }
        let is_full = {
            let cache = &self.state.lock().cache;
            cache.waiting.len() > (cache.limit / 2).max(FEWEST_WAITING)
        };
        if is_full {
            self.write_out()
        } else {
            Ok(())
        }
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
                self.write_metadata(at, bytes)?;
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
        self.write_out()?;
        self.device.flush().map_err(|_| Ext4Error::io())
    }
}
