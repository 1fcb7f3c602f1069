//! Inodes: what each says, and where it lies.

use crate::bytes::{get16, get32, put, put16, put32};
use crate::sums::crc32c;
use crate::{Device, ErrorKind, Result, Timestamp, Volume};

/// The types of a mode.
pub(crate) const TYPE: u16 = 0o170_000;
pub(crate) const FILE: u16 = 0o100_000;
pub(crate) const DIR: u16 = 0o040_000;
pub(crate) const LINK: u16 = 0o120_000;

/// Flags.
pub(crate) const SYNC: u32 = 0x8;
pub(crate) const IMMUTABLE: u32 = 0x10;
pub(crate) const APPEND_ONLY: u32 = 0x20;
const NO_DUMP: u32 = 0x40;
pub(crate) const NO_ATIME: u32 = 0x80;
pub(crate) const INDEX: u32 = 0x1000;
const DIR_SYNC: u32 = 0x1_0000;
const TOP_DIR: u32 = 0x2_0000;
const BLOCKS_UNIT: u32 = 0x4_0000;
pub(crate) const EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;
const PROJECT: u32 = 0x2000_0000;
/// Flags that `chattr` sets, and that what is made in a directory has of it.
pub(crate) const SETTABLE: u32 =
    SYNC | IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ATIME | DIR_SYNC | TOP_DIR | PROJECT;
const INHERITED: u32 = SYNC | NO_DUMP | NO_ATIME | DIR_SYNC | PROJECT;

/// Where an inode holds what.
const MODE: usize = 0;
const USER: [usize; 2] = [2, 120];
const SIZE: [usize; 2] = [4, 108];
pub(crate) const ATIME: Time = Time { at: 8, extra: 140 };
pub(crate) const CTIME: Time = Time { at: 12, extra: 132 };
pub(crate) const MTIME: Time = Time { at: 16, extra: 136 };
const BORN: Time = Time { at: 144, extra: 148 };
const DELETED: usize = 20;
const GROUP: [usize; 2] = [24, 122];
const LINKS: usize = 26;
const BLOCKS: [usize; 2] = [28, 116];
const FLAGS: usize = 32;
/// The root of an extent tree, the map of blocks, a link's target or a device's number.
pub(crate) const MAP: core::ops::Range<usize> = 40..100;
const GENERATION: usize = 100;
const ATTRIBUTES: [usize; 2] = [104, 118];
const SUM: [usize; 2] = [124, 130];
pub(crate) const EXTRA: usize = 128;
const PROJECT_ID: usize = 156;
/// Bytes of it that are known here.
pub(crate) const KNOWN: usize = 160;

/// Units in which an inode counts its blocks.
pub(crate) const SECTOR: u64 = 512;

/// A point in time: seconds, and what isn't there in small inodes.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    at: usize,
    extra: usize,
}

/// An inode, as far as it is known here.
#[derive(Clone)]
pub(crate) struct Inode {
    pub(crate) ino: u32,
    pub(crate) raw: [u8; KNOWN],
}

impl Inode {
    pub(crate) fn mode(&self) -> u16 {
        get16(&self.raw, MODE)
    }

    pub(crate) fn set_mode(&mut self, mode: u16) {
        put16(&mut self.raw, MODE, mode);
    }

    pub(crate) fn kind(&self) -> u16 {
        self.mode() & TYPE
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == DIR
    }

    pub(crate) fn owner(&self) -> (u32, u32) {
        let get = |[low, high]: [usize; 2]| {
            u32::from(get16(&self.raw, low)) | u32::from(get16(&self.raw, high)) << 16
        };
        (get(USER), get(GROUP))
    }

    pub(crate) fn set_owner(&mut self, owner: (u32, u32)) {
        for (value, [low, high]) in [(owner.0, USER), (owner.1, GROUP)] {
            put16(&mut self.raw, low, value as u16);
            put16(&mut self.raw, high, (value >> 16) as u16);
        }
    }

    pub(crate) fn size(&self) -> u64 {
        let high = if matches!(self.kind(), FILE | DIR) { get32(&self.raw, SIZE[1]) } else { 0 };
        u64::from(get32(&self.raw, SIZE[0])) | u64::from(high) << 32
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        put32(&mut self.raw, SIZE[0], size as u32);
        put32(&mut self.raw, SIZE[1], (size >> 32) as u32);
    }

    pub(crate) fn links(&self) -> u16 {
        get16(&self.raw, LINKS)
    }

    pub(crate) fn set_links(&mut self, links: u16) {
        put16(&mut self.raw, LINKS, links);
    }

    pub(crate) fn flags(&self) -> u32 {
        get32(&self.raw, FLAGS)
    }

    pub(crate) fn set_flags(&mut self, flags: u32) {
        put32(&mut self.raw, FLAGS, flags);
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub(crate) fn generation(&self) -> u32 {
        get32(&self.raw, GENERATION)
    }

    pub(crate) fn set_generation(&mut self, generation: u32) {
        put32(&mut self.raw, GENERATION, generation);
    }

    /// When it was deleted, or the next inode without a name.
    pub(crate) fn deleted(&self) -> u32 {
        get32(&self.raw, DELETED)
    }

    pub(crate) fn set_deleted(&mut self, deleted: u32) {
        put32(&mut self.raw, DELETED, deleted);
    }

    /// Its block of attributes; 0: it has none.
    pub(crate) fn attributes(&self) -> u64 {
        let [low, high] = ATTRIBUTES;
        u64::from(get32(&self.raw, low)) | u64::from(get16(&self.raw, high)) << 32
    }

    pub(crate) fn set_attributes(&mut self, block: u64) {
        let [low, high] = ATTRIBUTES;
        put32(&mut self.raw, low, block as u32);
        put16(&mut self.raw, high, (block >> 32) as u16);
    }

    /// Whether it has a field beyond the first 128 bytes.
    fn has_field(&self, at: usize) -> bool {
        at + 4 <= EXTRA + self.extra()
    }

    pub(crate) fn time(&self, time: Time) -> Timestamp {
        let seconds = i64::from(get32(&self.raw, time.at) as i32);
        if !self.has_field(time.extra) {
            return Timestamp::new(seconds, 0);
        }
        let extra = get32(&self.raw, time.extra);
        Timestamp::new(seconds + (i64::from(extra & 3) << 32), (extra >> 2).min(999_999_999))
    }

    pub(crate) fn set_time(&mut self, time: Time, to: Timestamp) {
        if time.at < EXTRA || self.has_field(time.at) {
            put32(&mut self.raw, time.at, to.sec as u32);
        }
        if self.has_field(time.extra) {
            // Seconds beyond what 32 bits with a sign can say.
            let epoch = ((to.sec - i64::from(to.sec as i32)) >> 32) as u32 & 3;
            put32(&mut self.raw, time.extra, epoch | to.nsec << 2);
        }
    }

    /// Bytes that it has beyond the first 128.
    pub(crate) fn extra(&self) -> usize {
        get16(&self.raw, EXTRA).into()
    }

    pub(crate) fn map(&self) -> &[u8] {
        &self.raw[MAP]
    }

    pub(crate) fn map_mut(&mut self) -> &mut [u8] {
        &mut self.raw[MAP]
    }

    /// Makes it one of a new file.
    pub(crate) fn born(&mut self, mode: u16, parent: &Inode, inode_size: usize, now: Timestamp) {
        let generation = self.generation().wrapping_add(1);
        self.raw = [0; KNOWN];
        self.set_mode(mode);
        self.set_generation(generation);
        if inode_size > EXTRA {
            put16(&mut self.raw, EXTRA, (KNOWN - EXTRA) as u16);
        }
        for time in [ATIME, CTIME, MTIME, BORN] {
            self.set_time(time, now);
        }
        let mut flags = parent.flags() & INHERITED;
        match mode & TYPE {
            DIR => {}
            FILE => flags &= !(DIR_SYNC | PROJECT),
            _ => flags &= NO_DUMP | NO_ATIME,
        }
        self.set_flags(flags);
        if parent.has(PROJECT) && inode_size > EXTRA && parent.extra() + EXTRA >= KNOWN {
            let project = get32(&parent.raw, PROJECT_ID);
            put32(&mut self.raw, PROJECT_ID, project);
        }
    }
}

impl<D: Device> Volume<D> {
    /// Where an inode lies: its block, the place in it, which of the block's inodes it is, and the
    /// end of the table.
    fn inode_place(&mut self, ino: u32) -> Result<(u64, usize, u32, u64)> {
        if ino == 0 || ino > self.layout.inodes {
            return Err(ErrorKind::NotFound);
        }
        let (number, index) =
            ((ino - 1) / self.layout.group_inodes, (ino - 1) % self.layout.group_inodes);
        let table = self.group(number)?.table;
        let per_block = (self.layout.block_size / self.layout.inode_size) as u32;
        let within = index % per_block;
        let block = table + u64::from(index / per_block);
        let end = table + self.layout.table_len();
        Ok((block, within as usize * self.layout.inode_size, within, end))
    }

    /// The checksum of an inode's record.
    fn inode_sum(&self, seed: u32, ino: u32, record: &[u8]) -> u32 {
        let has_high = has_long_sum(record);
        let sum = crc32c(seed, &ino.to_le_bytes());
        let sum = crc32c(sum, &record[GENERATION..GENERATION + 4]);
        let sum = crc32c(crc32c(sum, &record[..SUM[0]]), &[0; 2]);
        let sum = crc32c(sum, &record[SUM[0] + 2..EXTRA]);
        let rest = &record[EXTRA..];
        match has_high {
            true => crc32c(crc32c(crc32c(sum, &rest[..2]), &[0; 2]), &rest[4..]),
            false => crc32c(sum, rest) & 0xffff,
        }
    }

    /// # Errors
    /// [`ErrorKind::NotFound`]: there is no such inode; I/O and damage.
    pub(crate) fn inode(&mut self, ino: u32) -> Result<Inode> {
        let (block, at, within, end) = self.inode_place(ino)?;
        let place = self.store.place_before(block, end)?;
        let record = &self.store.cache.bytes(place)[at..at + self.layout.inode_size];
        let mut raw = [0; KNOWN];
        let known = KNOWN.min(record.len());
        raw[..known].copy_from_slice(&record[..known]);
        if self.store.cache.checked(place) & 1 << within == 0 {
            if let Some(seed) = self.layout.sums {
                let low = u32::from(get16(record, SUM[0]));
                let high = u32::from(get16(record, SUM[1])) << 16;
                let found = if has_long_sum(record) { low | high } else { low };
                if found != self.inode_sum(seed, ino, record) {
                    return Err(ErrorKind::Corrupted);
                }
            }
            self.store.cache.set_checked(place, 1 << within);
        }
        if EXTRA + usize::from(get16(&raw, EXTRA)) > self.layout.inode_size.max(EXTRA) {
            return Err(ErrorKind::Corrupted);
        }
        let inode = Inode { ino, raw };
        if inode.has(INLINE) {
            return Err(ErrorKind::UnsupportedFeature);
        }
        Ok(inode)
    }

    /// An inode that has just been given out, whatever is there.
    pub(crate) fn new_inode(&mut self, ino: u32) -> Result<Inode> {
        let (block, at, _, end) = self.inode_place(ino)?;
        let place = self.store.place_before(block, end)?;
        let size = self.layout.inode_size;
        let mut raw = [0; KNOWN];
        let known = KNOWN.min(size);
        raw[..known].copy_from_slice(&self.store.cache.bytes(place)[at..at + known]);
        self.store.cache.edit(place)[at..at + size].fill(0);
        Ok(Inode { ino, raw })
    }

    pub(crate) fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        self.edit_inode(inode.ino, |record| {
            let known = KNOWN.min(record.len());
            put(record, 0, &inode.raw[..known]);
        })
    }

    /// Changes an inode's record, which gets its checksum.
    pub(crate) fn edit_inode(&mut self, ino: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let (block, at, within, _) = self.inode_place(ino)?;
        let size = self.layout.inode_size;
        let place = self.store.place(block)?;
        let record = &mut self.store.cache.edit(place)[at..at + size];
        change(record);
        if let Some(seed) = self.layout.sums {
            let record = &self.store.cache.bytes(place)[at..at + size];
            let (sum, is_long) = (self.inode_sum(seed, ino, record), has_long_sum(record));
            let record = &mut self.store.cache.edit(place)[at..at + size];
            put16(record, SUM[0], sum as u16);
            if is_long {
                put16(record, SUM[1], (sum >> 16) as u16);
            }
        }
        self.store.cache.set_checked(place, 1 << within);
        Ok(())
    }

    /// The bytes of an inode behind what is known here.
    pub(crate) fn inode_record(&mut self, ino: u32) -> Result<&[u8]> {
        let (block, at, ..) = self.inode_place(ino)?;
        let size = self.layout.inode_size;
        Ok(&self.store.read(block)?[at..at + size])
    }

    /// What checksums of a file's metadata begin with.
    pub(crate) fn inode_seed(&self, inode: &Inode) -> Option<u32> {
        let sum = crc32c(self.layout.sums?, &inode.ino.to_le_bytes());
        Some(crc32c(sum, &inode.generation().to_le_bytes()))
    }

    /// In units of 512 bytes.
    pub(crate) fn inode_blocks(&self, inode: &Inode) -> u64 {
        let [low, high] = BLOCKS;
        let count = u64::from(get32(&inode.raw, low));
        if !self.layout.has_long_counts {
            return count;
        }
        let count = count | u64::from(get16(&inode.raw, high)) << 32;
        let unit = if inode.has(BLOCKS_UNIT) { self.layout.block_size as u64 / SECTOR } else { 1 };
        count * unit
    }

    /// Counts blocks of the volume more, or fewer, for an inode.
    pub(crate) fn count_blocks(&self, inode: &mut Inode, blocks: i64) -> Result<()> {
        let each = self.layout.block_size as u64 / SECTOR;
        let change = blocks.unsigned_abs() * each;
        let old = self.inode_blocks(inode);
        let mut count = if blocks < 0 { old.saturating_sub(change) } else { old + change };
        let [low, high] = BLOCKS;
        let mut flags = inode.flags() & !BLOCKS_UNIT;
        if count >> 32 != 0 && !self.layout.has_long_counts {
            return Err(ErrorKind::FileTooLarge);
        }
        if count >> 48 != 0 {
            (count, flags) = (count / each, flags | BLOCKS_UNIT);
        }
        put32(&mut inode.raw, low, count as u32);
        if self.layout.has_long_counts {
            put16(&mut inode.raw, high, (count >> 32) as u16);
            inode.set_flags(flags);
        }
        Ok(())
    }
}

/// Whether a record has the upper half of its checksum.
fn has_long_sum(record: &[u8]) -> bool {
    record.len() > EXTRA && get16(record, EXTRA) >= 4
}
