//! Where the inodes lie, and what no inode may say.
//!
//! The crate makes room for as many bytes as a symbolic link's inode says that its target has, in
//! 64 bits, and shows 32 of them. A target is shorter than a block, so the other half means
//! nothing: it is taken out as inodes are read from the disk. On a volume with checksums the crate
//! finds the damage then.

use alloc::collections::BTreeMap;

use rsext4::superblock::Ext4Superblock;

/// Where an inode holds what.
const MODE: usize = 0;
const SIZE_HIGH: usize = 108;
const TYPE: u16 = 0o170000;
const LINK: u16 = 0o120000;

/// The groups' tables of inodes: ends by starts, in bytes.
#[derive(Default)]
pub(crate) struct Tables {
    ends: BTreeMap<u64, u64>,
    inode: u64,
}

impl Tables {
    /// Says that a group's table begins with a block.
    pub(crate) fn add(&mut self, superblock: &Ext4Superblock, block: u64) {
        self.inode = u64::from(superblock.inode_size().max(128));
        let Some(start) = block.checked_mul(superblock.block_size()) else { return };
        let end = start.saturating_add(u64::from(superblock.s_inodes_per_group) * self.inode);
        match self.ends.range_mut(..start).next_back() {
            // Most tables lie one behind the other.
            Some((_, before)) if *before == start => *before = end,
            _ => _ = self.ends.insert(start, end),
        }
    }

    /// Where the table that holds a place ends.
    pub(crate) fn end(&self, at: u64) -> Option<u64> {
        let (_, &end) = self.ends.range(..=at).next_back()?;
        (at < end).then_some(end)
    }

    /// Corrects what has been read from the disk at `at`.
    pub(crate) fn correct(&self, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        let Some((&first, &stop)) = self.ends.range(..end).next_back() else { return };
        let skip = at.saturating_sub(first).next_multiple_of(self.inode);
        let mut start = first + skip;
        while start < stop && start + self.inode <= end {
            let inode = &mut bytes[(start - at) as usize..];
            if u16::from_le_bytes([inode[MODE], inode[MODE + 1]]) & TYPE == LINK {
                inode[SIZE_HIGH..SIZE_HIGH + 4].fill(0);
            }
            start += self.inode;
        }
    }
}
