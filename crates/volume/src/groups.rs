//! Groups: their descriptors, and the bitmaps of their blocks and inodes.
//!
//! A group of which nothing was ever used may have bitmaps that were never written: its descriptor
//! says so, and they are made at the first use. Bitmaps have their checksums in the descriptor,
//! which gets them before a commit.
//!
//! I1: a block that was freed is not given out before the freeing is committed: until then the disk
//! may have to be what it was before ([`Volume::busy`]). I2: inodes are given out from the lowest
//! on, so that what of a table was never written lies behind all that are in use.
//!
//! On a volume without a journal that was not unmounted, a bitmap and its checksum in the
//! descriptor may be of different times. What the bitmap says is as good as anything else there, so
//! its checksum is not looked at. `e2fsck` is still the one to ask about such a volume.

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put16, put32};
use crate::cache::Seal;
use crate::layout::{self, Layout};
use crate::sums::{crc16, crc32c};
use crate::{Device, ErrorKind, Result, Volume};

/// Where a descriptor holds what: the lower half, and the upper one if it has 64 bytes.
const BLOCKS: [usize; 2] = [0x00, 0x20];
const INODES: [usize; 2] = [0x04, 0x24];
const TABLE: [usize; 2] = [0x08, 0x28];
const FREE_BLOCKS: [usize; 2] = [0x0c, 0x2c];
const FREE_INODES: [usize; 2] = [0x0e, 0x2e];
const DIRS: [usize; 2] = [0x10, 0x30];
const FLAGS: usize = 0x12;
const BLOCKS_SUM: [usize; 2] = [0x18, 0x38];
const INODES_SUM: [usize; 2] = [0x1a, 0x3a];
const UNUSED: [usize; 2] = [0x1c, 0x32];
const SUM: usize = 0x1e;

const NO_INODES: u16 = 1;
const NO_BLOCKS: u16 = 2;

/// Groups that are searched for a longer run when one has a shorter.
const MOST_SEARCHED: u32 = 8;

/// What a descriptor says.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) blocks: u64,
    pub(crate) inodes: u64,
    pub(crate) table: u64,
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
    dirs: u32,
    flags: u16,
    /// Inodes at the table's end that were never used.
    unused: u32,
}

/// Which of a group's bitmaps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Map {
    Blocks,
    Inodes,
}

fn get(raw: &[u8], [low, high]: [usize; 2]) -> u64 {
    u64::from(get32(raw, low)) | u64::from(get32(raw, high)) << 32
}

fn get_short(raw: &[u8], [low, high]: [usize; 2]) -> u32 {
    u32::from(get16(raw, low)) | u32::from(get16(raw, high)) << 16
}

fn put_short(raw: &mut [u8], [low, high]: [usize; 2], value: u32) {
    put16(raw, low, value as u16);
    put16(raw, high, (value >> 16) as u16);
}

/// The checksum of a descriptor.
fn sum(layout: &Layout, number: u32, raw: &[u8]) -> u16 {
    let number = number.to_le_bytes();
    match layout.sums {
        Some(seed) => {
            let sum = crc32c(crc32c(seed, &number), &raw[..SUM]);
            crc32c(crc32c(sum, &[0; 2]), &raw[SUM + 2..]) as u16
        }
        None => {
            let sum = crc16(crc16(crc16(!0, &layout.uuid), &number), &raw[..SUM]);
            crc16(sum, &raw[SUM + 2..])
        }
    }
}

fn is_set(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte & 1 << (at % 8) != 0)
}

fn set(bits: &mut [u8], range: core::ops::Range<usize>, is_used: bool) {
    let mut at = range.start;
    while at < range.end {
        let Some(byte) = bits.get_mut(at / 8) else { return };
        if at.is_multiple_of(8) && at + 8 <= range.end {
            *byte = if is_used { 0xff } else { 0 };
            at += 8;
        } else {
            let bit = 1 << (at % 8);
            *byte = if is_used { *byte | bit } else { *byte & !bit };
            at += 1;
        }
    }
}

/// The first bit from `at` on that is set, or not; `end` if there is none before.
fn next(bits: &[u8], busy: Option<&[u8]>, mut at: usize, end: usize, is_used: bool) -> usize {
    let word = |at: usize| {
        let load = |bits: &[u8]| {
            let rest = bits.get(at..).unwrap_or_default();
            rest.first_chunk().map_or_else(
                || rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
                |word| u64::from_le_bytes(*word),
            )
        };
        let word = load(bits) | busy.map_or(0, load);
        if is_used {
            word
        } else {
            !word
        }
    };
    while at < end {
        let start = at / 64 * 8;
        let found = word(start) & (u64::MAX << (at % 64));
        if found != 0 {
            return (start * 8 + found.trailing_zeros() as usize).min(end);
        }
        at = (at / 64 + 1) * 64;
    }
    end
}

impl<D: Device> Volume<D> {
    pub(crate) fn group(&mut self, number: u32) -> Result<Group> {
        if number >= self.layout.groups {
            return Err(ErrorKind::Corrupted);
        }
        let (block, at) = self.layout.descriptor(number);
        let size = self.layout.descriptor_size;
        let has_flags = self.has_flags();
        let raw = &self.store.read(block)?[at..at + size];
        // What isn't there reads as 0.
        let raw = &raw[..size.min(64)];
        let group = Group {
            blocks: get(raw, BLOCKS),
            inodes: get(raw, INODES),
            table: get(raw, TABLE),
            free_blocks: get_short(raw, FREE_BLOCKS),
            free_inodes: get_short(raw, FREE_INODES),
            dirs: get_short(raw, DIRS),
            flags: if has_flags { get16(raw, FLAGS) } else { 0 },
            unused: get_short(raw, UNUSED),
        };
        let layout = &self.layout;
        let table = group.table.checked_add(layout.table_len() - 1);
        let is_right = layout.has(group.blocks)
            && layout.has(group.inodes)
            && layout.has(group.table)
            && table.is_some_and(|last| layout.has(last));
        if is_right {
            Ok(group)
        } else {
            Err(ErrorKind::Corrupted)
        }
    }

    /// Flags mean nothing without a checksum.
    fn has_flags(&self) -> bool {
        self.layout.sums.is_some() || self.layout.has_group_sums
    }

    fn set_group(&mut self, number: u32, group: &Group) -> Result<()> {
        let has_flags = self.has_flags();
        self.edit_descriptor(number, |raw| {
            put_short(raw, FREE_BLOCKS, group.free_blocks);
            put_short(raw, FREE_INODES, group.free_inodes);
            put_short(raw, DIRS, group.dirs);
            if has_flags {
                put16(raw, FLAGS, group.flags);
                put_short(raw, UNUSED, group.unused);
            }
        })
    }

    fn edit_descriptor(&mut self, number: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let (block, at) = self.layout.descriptor(number);
        let size = self.layout.descriptor_size;
        let raw = &mut self.store.edit(block)?[at..at + size];
        change(raw);
        if self.layout.sums.is_some() || self.layout.has_group_sums {
            let sum = sum(&self.layout, number, raw);
            put16(raw, SUM, sum);
        }
        Ok(())
    }

    /// Looks at all descriptors as a volume is mounted: what is free, and where no file lies.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`]; I/O.
    pub(crate) fn survey(&mut self) -> Result<()> {
        let (mut free_blocks, mut free_inodes) = (0, 0_u32);
        let table = self.layout.table_len();
        let last = self.layout.descriptor(self.layout.groups - 1).0;
        for number in 0..self.layout.groups {
            let (block, at) = self.layout.descriptor(number);
            let place = self.store.place_before(block, last + 1)?;
            let raw = &self.store.cache.bytes(place)[at..at + self.layout.descriptor_size];
            if self.has_flags() && sum(&self.layout, number, raw) != get16(raw, SUM) {
                return Err(ErrorKind::Corrupted);
            }
            let group = self.group(number)?;
            free_blocks += u64::from(group.free_blocks);
            free_inodes = free_inodes.saturating_add(group.free_inodes);
            self.zones.add(self.layout.start(number), self.layout.copies(number));
            self.zones.add(group.blocks, 1);
            self.zones.add(group.inodes, 1);
            self.zones.add(group.table, table);
        }
        self.zones.sort();
        self.counts.free_blocks = free_blocks.min(self.layout.blocks);
        self.counts.free_inodes = free_inodes.min(self.layout.inodes);
        Ok(())
    }

    /// A group with a bitmap that can be used; one that was never written is made.
    fn with_map(&mut self, number: u32, map: Map) -> Result<(Group, u64)> {
        let mut group = self.group(number)?;
        let (block, flag) = match map {
            Map::Blocks => (group.blocks, NO_BLOCKS),
            Map::Inodes => (group.inodes, NO_INODES),
        };
        if group.flags & flag != 0 {
            self.make_map(number, &group, map);
            group.flags &= !flag;
            self.set_group(number, &group)?;
            self.note_map(number, map);
            return Ok((group, block));
        }
        let place = self.store.place(block)?;
        if self.store.cache.checked(place) == 0 {
            if self.layout.sums.is_some() && !self.is_doubtful {
                let (low, high) = self.map_sum(block, map)?;
                let (at, start) = self.layout.descriptor(number);
                let [low_at, high_at] = if map == Map::Blocks { BLOCKS_SUM } else { INODES_SUM };
                let size = self.layout.descriptor_size;
                let raw = &self.store.read(at)?[start..start + size];
                if get16(raw, low_at) != low || size >= 64 && get16(raw, high_at) != high {
                    return Err(ErrorKind::Corrupted);
                }
            }
            let place = self.store.place(block)?;
            self.store.cache.set_checked(place, 1);
        }
        Ok((group, block))
    }

    fn map_sum(&mut self, block: u64, map: Map) -> Result<(u16, u16)> {
        let bits = match map {
            Map::Blocks => self.layout.group_blocks as usize,
            Map::Inodes => self.layout.group_inodes as usize,
        };
        let seed = self.layout.sums.unwrap_or(0);
        let sum = crc32c(seed, &self.store.read(block)?[..bits / 8]);
        Ok((sum as u16, (sum >> 16) as u16))
    }

    /// Makes a bitmap of which nothing was ever used.
    fn make_map(&mut self, number: u32, group: &Group, map: Map) {
        match map {
            Map::Blocks => {
                let made = self.block_map(number, group);
                self.store.fresh(group.blocks, Seal::None).copy_from_slice(&made);
            }
            Map::Inodes => {
                let bits = 8 * self.layout.block_size;
                let bitmap = self.store.fresh(group.inodes, Seal::None);
                set(bitmap, self.layout.group_inodes as usize..bits, true);
            }
        }
    }

    /// The bitmap of a group's blocks of which none was ever given out: ones are for what the group
    /// keeps of the volume's own, and for what isn't there behind its end.
    fn block_map(&self, number: u32, group: &Group) -> Vec<u8> {
        let (start, len) = (self.layout.start(number), self.layout.len(number));
        let mut bitmap = alloc::vec![0; self.layout.block_size];
        set(&mut bitmap, 0..self.layout.copies(number).min(len) as usize, true);
        set(&mut bitmap, len as usize..8 * self.layout.block_size, true);
        let table = self.layout.table_len();
        for (first, count) in [(group.blocks, 1), (group.inodes, 1), (group.table, table)] {
            let mine = first.max(start)..(first + count).min(start + len).max(start);
            if mine.start < mine.end {
                set(&mut bitmap, (mine.start - start) as usize..(mine.end - start) as usize, true);
            }
        }
        bitmap
    }

    /// Remembers that a bitmap needs another checksum.
    fn note_map(&mut self, number: u32, map: Map) {
        if self.layout.sums.is_some() {
            *self.maps.entry(number).or_default() |= 1 << (map == Map::Inodes) as u8;
        }
    }

    /// Gives descriptors the checksums of the bitmaps that have changed.
    pub(crate) fn seal_maps(&mut self) -> Result<()> {
        while let Some((number, which)) = self.maps.pop_first() {
            let group = self.group(number)?;
            for (bit, map, block, [low_at, high_at]) in [
                (1, Map::Blocks, group.blocks, BLOCKS_SUM),
                (2, Map::Inodes, group.inodes, INODES_SUM),
            ] {
                if which & bit != 0 {
                    let (low, high) = self.map_sum(block, map)?;
                    let has_high = self.layout.descriptor_size >= 64;
                    self.edit_descriptor(number, |raw| {
                        put16(raw, low_at, low);
                        if has_high {
                            put16(raw, high_at, high);
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Gives out a run of blocks, at most so many, the next behind `goal` if they are free. They
    /// are all in one group.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; I/O and damage.
    pub(crate) fn take_blocks(&mut self, goal: u64, most: u64) -> Result<(u64, u64)> {
        let (first, at) = self.layout.group_of(goal);
        let (first, at) = if first < self.layout.groups { (first, at) } else { (0, 0) };
        let (mut best, mut searched) = (None, 0);
        for n in 0..self.layout.groups {
            let number = (first + n) % self.layout.groups;
            if self.group(number)?.free_blocks == 0 {
                continue;
            }
            let from = if n == 0 { at } else { 0 };
            // A group that is damaged is left alone.
            let Ok((found, len)) = self.find_run(number, from, most) else { continue };
            if self.zones.meet(self.layout.start(number) + found as u64, len) {
                continue;
            }
            if len > best.map_or(0, |(_, _, len)| len) {
                best = Some((number, found, len));
            }
            searched += 1;
            let is_enough = len == most || n == 0 && len > 0 && found == at;
            if best.is_some() && (is_enough || searched >= MOST_SEARCHED) {
                break;
            }
        }
        let (number, found, len) = best.ok_or(ErrorKind::NoSpace)?;
        let start = self.layout.start(number) + found as u64;
        let (mut group, block) = self.with_map(number, Map::Blocks)?;
        let bitmap = self.store.edit(block)?;
        set(bitmap, found..found + len as usize, true);
        group.free_blocks =
            group.free_blocks.checked_sub(len as u32).ok_or(ErrorKind::Corrupted)?;
        self.set_group(number, &group)?;
        self.note_map(number, Map::Blocks);
        self.counts.free_blocks = self.counts.free_blocks.saturating_sub(len);
        Ok((start, len))
    }

    /// The first run of so many free blocks of a group, from `at` on and then from its start, or
    /// the longest; but one that begins at `at`, however long. The group stays as it is.
    fn find_run(&mut self, number: u32, at: usize, most: u64) -> Result<(usize, u64)> {
        let group = self.group(number)?;
        let end = self.layout.len(number) as usize;
        let most = (most as usize).min(group.free_blocks as usize);
        let made;
        let bits = if group.flags & NO_BLOCKS != 0 {
            made = self.block_map(number, &group);
            &made[..]
        } else {
            let (_, block) = self.with_map(number, Map::Blocks)?;
            let place = self.store.place(block)?;
            self.store.cache.bytes(place)
        };
        let busy = self.busy.get(&number).map(|busy| &**busy);
        let mut best = (0, 0);
        for (from, to) in [(at, end), (0, at.min(end))] {
            let mut from = from;
            while from < to {
                let start = next(bits, busy, from, to, false);
                if start == to {
                    break;
                }
                let stop = next(bits, busy, start, end.min(start + most), true);
                if stop - start > best.1 {
                    best = (start, stop - start);
                }
                if best.1 == most || start == at {
                    return Ok((best.0, best.1 as u64));
                }
                from = stop;
            }
        }
        Ok((best.0, best.1 as u64))
    }

    /// Takes blocks back.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`]: one is free, or the volume's own; I/O.
    pub(crate) fn free_blocks(&mut self, start: u64, len: u64) -> Result<()> {
        self.may_be_files(start, len)?;
        let (mut at, end) = (start, start + len);
        while at < end {
            let (number, bit) = self.layout.group_of(at);
            let part = (end - at).min(self.layout.len(number) - bit as u64) as usize;
            let (mut group, block) = self.with_map(number, Map::Blocks)?;
            let place = self.store.place(block)?;
            if next(self.store.cache.bytes(place), None, bit, bit + part, false) != bit + part {
                return Err(ErrorKind::Corrupted);
            }
            set(self.store.cache.edit(place), bit..bit + part, false);
            let size = self.layout.block_size;
            let busy = self.busy.entry(number);
            let busy = busy.or_insert_with(|| alloc::vec![0; size].into_boxed_slice());
            set(busy, bit..bit + part, true);
            let free = u64::from(group.free_blocks) + part as u64;
            group.free_blocks = free.min(self.layout.len(number)) as u32;
            self.set_group(number, &group)?;
            self.note_map(number, Map::Blocks);
            let free = self.counts.free_blocks + part as u64;
            self.counts.free_blocks = free.min(self.layout.blocks);
            at += part as u64;
        }
        Ok(())
    }

    /// Whether blocks are such as files have.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`]: they aren't.
    pub(crate) fn may_be_files(&self, start: u64, len: u64) -> Result<()> {
        let is_inside = self.layout.has(start)
            && len <= self.layout.blocks
            && start + len <= self.layout.blocks;
        if is_inside && !self.zones.meet(start, len) {
            Ok(())
        } else {
            Err(ErrorKind::Corrupted)
        }
    }

    /// Gives out an inode, in a group or in one of those behind.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; I/O and damage.
    pub(crate) fn take_inode(&mut self, first: u32, is_dir: bool) -> Result<u32> {
        for n in 0..self.layout.groups {
            let number = (first + n) % self.layout.groups;
            if self.group(number)?.free_inodes == 0 {
                continue;
            }
            // A group that is damaged is left alone.
            let Ok((mut group, block)) = self.with_map(number, Map::Inodes) else { continue };
            let from = if number == 0 { self.layout.first_inode as usize - 1 } else { 0 };
            let end = self.layout.group_inodes as usize;
            let bit = next(self.store.read(block)?, None, from, end, false);
            if bit >= end {
                continue;
            }
            if group.flags & NO_BLOCKS != 0 {
                // A group with inodes has a bitmap of blocks.
                group = self.with_map(number, Map::Blocks)?.0;
            }
            set(self.store.edit(block)?, bit..bit + 1, true);
            group.free_inodes -= 1;
            group.dirs = group.dirs.saturating_add(is_dir.into());
            group.unused = group.unused.min((end - bit - 1) as u32);
            self.set_group(number, &group)?;
            self.note_map(number, Map::Inodes);
            self.counts.free_inodes = self.counts.free_inodes.saturating_sub(1);
            return Ok(number * self.layout.group_inodes + bit as u32 + 1);
        }
        Err(ErrorKind::NoSpace)
    }

    /// Takes an inode back.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`]: it is free; I/O.
    pub(crate) fn free_inode(&mut self, ino: u32, is_dir: bool) -> Result<()> {
        let index = ino.checked_sub(1).ok_or(ErrorKind::Corrupted)?;
        let (number, bit) =
            (index / self.layout.group_inodes, (index % self.layout.group_inodes) as usize);
        let (mut group, block) = self.with_map(number, Map::Inodes)?;
        if ino < self.layout.first_inode || !is_set(self.store.read(block)?, bit) {
            return Err(ErrorKind::Corrupted);
        }
        set(self.store.edit(block)?, bit..bit + 1, false);
        group.free_inodes = group.free_inodes.saturating_add(1).min(self.layout.group_inodes);
        group.dirs = group.dirs.saturating_sub(u32::from(is_dir));
        self.set_group(number, &group)?;
        self.note_map(number, Map::Inodes);
        self.counts.free_inodes = (self.counts.free_inodes + 1).min(self.layout.inodes);
        Ok(())
    }
}

/// Has a superblock say what is free, and which inode was the last to lose its name.
pub(crate) fn note_counts(raw: &mut [u8], counts: &crate::Counts) {
    put32(raw, layout::FREE_BLOCKS_LOW, counts.free_blocks as u32);
    put32(raw, layout::FREE_BLOCKS_HIGH, (counts.free_blocks >> 32) as u32);
    put32(raw, layout::FREE_INODES, counts.free_inodes);
    put32(raw, layout::LAST_ORPHAN, counts.last_orphan);
}
