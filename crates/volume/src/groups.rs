//! Groups' bitmaps, made what the crate takes them for before it reads their descriptors.
//!
//! A group of which nothing was ever used may have bitmaps that were never written: its descriptor
//! says so. At the first use the crate begins such a bitmap with zeroes, also behind its end, where
//! ones belong. So while a volume is mounted for writing, [`Groups`] writes these bitmaps as the
//! descriptor is read, and the crate is shown a descriptor of a group in use. No call reads the
//! bitmaps before a descriptor is written that counts on them.
//!
//! On a volume without a journal that was not unmounted, a bitmap and its checksum in the
//! descriptor may be of different times. What the bitmap says is as good as anything else there, so
//! the checksum is made to agree, where the crate would refuse the volume; and a list of orphans
//! that leads nowhere is forgotten. `e2fsck` is still the one to ask about such a volume.
//!
//! The road not taken: to set the bits in what the crate writes. It writes bitmaps by way of the
//! journal, whose blocks have checksums.

use alloc::vec::Vec;

use rsext4::blockgroup_description::Ext4GroupDesc;
use rsext4::checksum::{
    ext4_block_bitmap_csum32, ext4_group_desc_csum16, ext4_inode_bitmap_csum32,
    ext4_update_superblock_checksum,
};
use rsext4::endian::DiskFormat;
use rsext4::superblock::Ext4Superblock;
use rsext4::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::inodes::Tables;
use crate::{Device, DeviceError, Mode, Reserve};

type Result<T> = core::result::Result<T, DeviceError>;

/// Where a descriptor holds what; the last of each two is there if it has 64 bytes.
const FLAGS: usize = 18;
const BLOCKS_SUM: [usize; 2] = [24, 56];
const INODES_SUM: [usize; 2] = [26, 58];
const SUM: usize = 30;
/// Where an inode says when it was deleted.
const DELETED: u64 = 20;

/// The superblock, if it is one that the crate would go on with.
pub(crate) fn superblock<D: Device>(device: &mut D) -> Option<Ext4Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read(SUPERBLOCK_OFFSET, &mut bytes).ok()?;
    let superblock = Ext4Superblock::from_disk_bytes(&bytes);
    let fits =
        |block_size: u32| superblock.blocks_count() <= device.bytes() / u64::from(block_size);
    let is_good = superblock.is_valid()
        && superblock.verify_superblock().is_ok()
        && superblock.validate_geometry().is_ok()
        && superblock.checked_block_size().is_ok_and(fits);
    is_good.then_some(superblock)
}

/// What is kept for one user and one group.
pub(crate) fn reserve(superblock: &Ext4Superblock) -> Reserve {
    let (low, high) = (superblock.s_r_blocks_count_lo, superblock.s_r_blocks_count_hi);
    let has_high = superblock.has_feature_incompat(Ext4Superblock::EXT4_FEATURE_INCOMPAT_64BIT);
    Reserve {
        blocks: u64::from(low) | if has_high { u64::from(high) << 32 } else { 0 },
        owner: (superblock.s_def_resuid.into(), superblock.s_def_resgid.into()),
    }
}

/// Whether mounting the volume for writing may delete files: it lists some, or its journal may.
pub(crate) fn may_have_orphans<D: Device>(device: &mut D) -> bool {
    superblock(device).is_some_and(|superblock| {
        superblock.s_last_orphan != 0
            || superblock.has_feature_incompat(Ext4Superblock::EXT4_FEATURE_INCOMPAT_RECOVER)
    })
}

/// The inode behind another in the list of those that have no name: where others say when they were
/// deleted.
pub(crate) fn next_orphan<D: Device>(
    device: &mut D,
    superblock: &Ext4Superblock,
    ino: u32,
) -> Option<u32> {
    let index = ino.checked_sub(1)?;
    let (group, within) =
        (index / superblock.s_inodes_per_group, index % superblock.s_inodes_per_group);
    let size = superblock.get_desc_size();
    let at = superblock.primary_gdt_byte_offset().ok()? + u64::from(group) * u64::from(size);
    let mut record = alloc::vec![0; usize::from(size)];
    device.read(at, &mut record).ok()?;
    let table = Ext4GroupDesc::decode_checked(&record).ok()?.inode_table();
    let inode = u64::from(superblock.inode_size().max(128)) * u64::from(within);
    let mut next = [0; 4];
    device.read(table.checked_mul(superblock.block_size())? + inode + DELETED, &mut next).ok()?;
    Some(u32::from_le_bytes(next))
}

/// Has a volume without a journal forget which inodes have no name, if it names some; whether it
/// did.
pub(crate) fn forget_orphans<D: Device>(device: &mut D) -> bool {
    let Some(mut superblock) = superblock(device) else { return false };
    if superblock.has_journal() || superblock.s_last_orphan == 0 {
        return false;
    }
    superblock.s_last_orphan = 0;
    if has_sums(&superblock) {
        ext4_update_superblock_checksum(&mut superblock);
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    superblock.to_disk_bytes(&mut bytes);
    device.write(SUPERBLOCK_OFFSET, &bytes).is_ok()
}

fn has_sums(superblock: &Ext4Superblock) -> bool {
    superblock.has_feature_ro_compat(Ext4Superblock::EXT4_FEATURE_RO_COMPAT_METADATA_CSUM)
}

/// What the descriptors are read for while a volume is mounted.
pub(crate) struct Groups<'a, D: Device> {
    pub(crate) device: &'a mut D,
    pub(crate) superblock: &'a Ext4Superblock,
    pub(crate) tables: &'a mut Tables,
    pub(crate) mode: Mode,
}

impl<D: Device> Groups<'_, D> {
    /// Sees to the groups whose descriptors lie wholly in `bytes`, which are the disk's at `at`.
    ///
    /// # Errors
    /// [`DeviceError`]: a bitmap could not be read or written.
    pub(crate) fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let superblock = self.superblock;
        let size = u64::from(superblock.get_desc_size());
        let (Ok(table), Ok(count)) =
            (superblock.primary_gdt_byte_offset(), superblock.checked_block_groups_count())
        else {
            return Ok(());
        };
        let first = at.saturating_sub(table).div_ceil(size);
        let last = (at + bytes.len() as u64).saturating_sub(table) / size;
        for number in first..last.min(u64::from(count)) {
            let start = (table + number * size - at) as usize;
            let mut group = Group {
                superblock,
                number: number as u32,
                record: &mut bytes[start..start + size as usize],
            };
            let Ok(found) = Ext4GroupDesc::decode_checked(group.record) else { continue };
            self.tables.add(superblock, found.inode_table());
            if self.mode == Mode::ReadWrite {
                group.complete(self.device, &found)?;
            }
        }
        Ok(())
    }
}

/// A group and its descriptor's bytes.
struct Group<'a> {
    superblock: &'a Ext4Superblock,
    number: u32,
    record: &'a mut [u8],
}

impl Group<'_> {
    fn complete<D: Device>(&mut self, device: &mut D, group: &Ext4GroupDesc) -> Result<()> {
        let has_sum = has_sums(self.superblock)
            || self
                .superblock
                .has_feature_ro_compat(Ext4Superblock::EXT4_FEATURE_RO_COMPAT_GDT_CSUM);
        // Without a checksum the flags mean nothing; with a wrong one nothing does, and the crate
        // is to find that.
        if !has_sum || self.sum() != u16::from_le_bytes([self.record[SUM], self.record[SUM + 1]]) {
            return Ok(());
        }
        let may_differ = has_sums(self.superblock)
            && !self.superblock.has_journal()
            && self.superblock.s_state & Ext4Superblock::EXT4_VALID_FS == 0;
        if group.is_block_bitmap_uninit() {
            let bitmap = self.blocks(group);
            self.put(device, group.block_bitmap(), &bitmap)?;
            self.set_sum(BLOCKS_SUM, ext4_block_bitmap_csum32(self.superblock, &bitmap));
        } else if may_differ {
            let bitmap = self.get(device, group.block_bitmap())?;
            self.set_sum(BLOCKS_SUM, ext4_block_bitmap_csum32(self.superblock, &bitmap));
        }
        if group.is_inode_bitmap_uninit() {
            let bitmap = self.bitmap(0, u64::from(self.superblock.s_inodes_per_group));
            self.put(device, group.inode_bitmap(), &bitmap)?;
            self.set_sum(INODES_SUM, ext4_inode_bitmap_csum32(self.superblock, &bitmap));
        } else if may_differ {
            let bitmap = self.get(device, group.inode_bitmap())?;
            self.set_sum(INODES_SUM, ext4_inode_bitmap_csum32(self.superblock, &bitmap));
        }
        let unwritten = Ext4GroupDesc::EXT4_BG_BLOCK_UNINIT | Ext4GroupDesc::EXT4_BG_INODE_UNINIT;
        self.record[FLAGS..FLAGS + 2].copy_from_slice(&(group.bg_flags & !unwritten).to_le_bytes());
        let sum = self.sum().to_le_bytes();
        self.record[SUM..SUM + 2].copy_from_slice(&sum);
        Ok(())
    }

    fn sum(&self) -> u16 {
        ext4_group_desc_csum16(self.superblock, self.number, self.record)
    }

    /// Takes note of a bitmap's checksum, if the volume has such.
    fn set_sum(&mut self, [low, high]: [usize; 2], sum: u32) {
        if !has_sums(self.superblock) {
            return;
        }
        self.record[low..low + 2].copy_from_slice(&(sum as u16).to_le_bytes());
        if let Some(bytes) = self.record.get_mut(high..high + 2) {
            bytes.copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
        }
    }

    /// A bitmap with ones for what is used at the start, and behind the end.
    fn bitmap(&self, used: u64, end: u64) -> Vec<u8> {
        let mut bytes = alloc::vec![0; self.superblock.block_size() as usize];
        let bits = bytes.len() as u64 * 8;
        (0..used.min(bits)).chain(end..bits).for_each(|bit| set(&mut bytes, bit));
        bytes
    }

    /// The block bitmap: what the group keeps of the volume's own, and what isn't there behind its
    /// end.
    fn blocks(&self, group: &Ext4GroupDesc) -> Vec<u8> {
        let superblock = self.superblock;
        let per_group = u64::from(superblock.s_blocks_per_group);
        let start = u64::from(superblock.s_first_data_block) + u64::from(self.number) * per_group;
        let end = (start + per_group).min(superblock.blocks_count());
        let mut bitmap = self.bitmap(self.copies(), end - start);
        let tables =
            u64::from(superblock.s_inodes_per_group) * u64::from(superblock.inode_size().max(128));
        let tables = tables.div_ceil(superblock.block_size());
        for (first, count) in
            [(group.block_bitmap(), 1), (group.inode_bitmap(), 1), (group.inode_table(), tables)]
        {
            let mine = first.max(start)..first.saturating_add(count).min(end);
            mine.for_each(|block| set(&mut bitmap, block - start));
        }
        bitmap
    }

    /// Blocks at the group's start that hold copies of the superblock and the descriptors.
    fn copies(&self) -> u64 {
        let superblock = self.superblock;
        let is_power_of = |base: u32| {
            let powers = core::iter::successors(Some(base), |power| power.checked_mul(base));
            powers.take_while(|&power| power <= self.number).any(|power| power == self.number)
        };
        let is_sparse =
            superblock.has_feature_ro_compat(Ext4Superblock::EXT4_FEATURE_RO_COMPAT_SPARSE_SUPER);
        let has_copy =
            if superblock.has_feature_compat(Ext4Superblock::EXT4_FEATURE_COMPAT_SPARSE_SUPER2) {
                self.number == 0 || superblock.s_backup_bgs.contains(&self.number)
            } else {
                !is_sparse || self.number <= 1 || [3, 5, 7].into_iter().any(is_power_of)
            };
        if !has_copy {
            return 0;
        }
        let each = superblock.block_size() / u64::from(superblock.get_desc_size());
        let descriptors = u64::from(superblock.block_groups_count()).div_ceil(each);
        1 + descriptors + u64::from(superblock.s_reserved_gdt_blocks)
    }

    /// Where a block lies on the disk, if it is the volume's.
    fn place(&self, block: u64) -> Result<u64> {
        let is_inside = block > u64::from(self.superblock.s_first_data_block)
            && block < self.superblock.blocks_count();
        if is_inside {
            Ok(block * self.superblock.block_size())
        } else {
            Err(DeviceError)
        }
    }

    fn get<D: Device>(&self, device: &mut D, block: u64) -> Result<Vec<u8>> {
        let mut bytes = alloc::vec![0; self.superblock.block_size() as usize];
        device.read(self.place(block)?, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a bitmap, unless it is there already.
    fn put<D: Device>(&self, device: &mut D, block: u64, bitmap: &[u8]) -> Result<()> {
        if self.get(device, block)? == bitmap {
            return Ok(());
        }
        device.write(self.place(block)?, bitmap)
    }
}

fn set(bitmap: &mut [u8], bit: u64) {
    if let Some(byte) = bitmap.get_mut((bit / 8) as usize) {
        *byte |= 1 << (bit % 8);
    }
}
