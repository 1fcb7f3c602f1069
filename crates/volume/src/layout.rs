//! What a volume's superblock says of its shape, checked.
//!
//! All that comes from a superblock is used by way of [`Layout`]: sizes are powers of two in their
//! ranges, counts fit each other and the disk, and no feature is set that isn't known here.

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put32};
use crate::sums::{crc32c, START};
use crate::{ErrorKind, Result};

/// Where the superblock lies on the disk, and its length.
pub(crate) const SUPERBLOCK_AT: u64 = 1024;
pub(crate) const SUPERBLOCK: usize = 1024;

/// Where a superblock holds what.
pub(crate) const FREE_BLOCKS_LOW: usize = 0x0c;
pub(crate) const FREE_INODES: usize = 0x10;
pub(crate) const MOUNTS: usize = 0x34;
pub(crate) const STATE: usize = 0x3a;
pub(crate) const COMPAT: usize = 0x5c;
pub(crate) const INCOMPAT: usize = 0x60;
pub(crate) const RO_COMPAT: usize = 0x64;
pub(crate) const JOURNAL: usize = 0xe0;
pub(crate) const LAST_ORPHAN: usize = 0xe8;
pub(crate) const FREE_BLOCKS_HIGH: usize = 0x158;
const INODES: usize = 0x00;
const BLOCKS_LOW: usize = 0x04;
const RESERVED_LOW: usize = 0x08;
const FIRST_BLOCK: usize = 0x14;
const BLOCK_SIZE: usize = 0x18;
const CLUSTER_SIZE: usize = 0x1c;
const GROUP_BLOCKS: usize = 0x20;
const GROUP_INODES: usize = 0x28;
const MAGIC_AT: usize = 0x38;
const REVISION: usize = 0x4c;
const RESERVE_USER: usize = 0x50;
const RESERVE_GROUP: usize = 0x52;
const FIRST_INODE: usize = 0x54;
const INODE_SIZE: usize = 0x58;
const UUID: usize = 0x68;
const RESERVED_DESCRIPTORS: usize = 0xce;
const JOURNAL_DEVICE: usize = 0xe4;
const HASH_SEED: usize = 0xec;
const HASH: usize = 0xfc;
const DESCRIPTOR_SIZE: usize = 0xfe;
const BLOCKS_HIGH: usize = 0x150;
const RESERVED_HIGH: usize = 0x154;
const FLAGS: usize = 0x160;
const COPIES: usize = 0x24c;
const SEED: usize = 0x270;
const SUM: usize = 0x3fc;

const MAGIC: u16 = 0xef53;
const UNSIGNED_HASH: u32 = 2;

/// In the state: it was unmounted in order.
pub(crate) const VALID: u16 = 1;

/// Features, by the three sets.
pub(crate) const HAS_JOURNAL: u32 = 0x4;
const DIR_INDEX: u32 = 0x20;
const SPARSE_SUPER2: u32 = 0x200;
const FILE_TYPE: u32 = 0x2;
pub(crate) const RECOVER: u32 = 0x4;
const EXTENTS: u32 = 0x40;
const LONG: u32 = 0x80;
const MMP: u32 = 0x100;
const FLEX_GROUPS: u32 = 0x200;
const SUM_SEED: u32 = 0x2000;
const KNOWN_INCOMPAT: u32 = FILE_TYPE | RECOVER | EXTENTS | LONG | MMP | FLEX_GROUPS | SUM_SEED;
const SPARSE_SUPER: u32 = 0x1;
pub(crate) const LARGE_FILE: u32 = 0x2;
const HUGE_FILE: u32 = 0x8;
const GROUP_SUMS: u32 = 0x10;
const DIR_LINKS: u32 = 0x20;
const EXTRA_SIZE: u32 = 0x40;
const SUMS: u32 = 0x400;
const PROJECT: u32 = 0x2000;
const KNOWN_RO_COMPAT: u32 =
    SPARSE_SUPER | LARGE_FILE | HUGE_FILE | GROUP_SUMS | DIR_LINKS | EXTRA_SIZE | SUMS | PROJECT;

/// Groups that a volume may have: what is known of each is kept in memory.
const MOST_GROUPS: u64 = 1 << 17;

/// See the module.
#[derive(Clone)]
pub(crate) struct Layout {
    pub(crate) block_size: usize,
    pub(crate) blocks: u64,
    pub(crate) first_block: u64,
    pub(crate) group_blocks: u64,
    pub(crate) groups: u32,
    pub(crate) inodes: u32,
    pub(crate) group_inodes: u32,
    pub(crate) inode_size: usize,
    pub(crate) first_inode: u32,
    pub(crate) descriptor_size: usize,
    pub(crate) reserved: u64,
    pub(crate) reserve_owner: (u32, u32),
    /// The journal's inode; 0: there is none.
    pub(crate) journal: u32,
    /// Metadata has checksums, which begin with this.
    pub(crate) sums: Option<u32>,
    /// Descriptors have checksums of another kind.
    pub(crate) has_group_sums: bool,
    pub(crate) has_types: bool,
    pub(crate) has_indexes: bool,
    pub(crate) has_extents: bool,
    pub(crate) has_long_counts: bool,
    pub(crate) has_many_links: bool,
    pub(crate) hash: u8,
    pub(crate) has_unsigned_hash: bool,
    pub(crate) hash_seed: [u32; 4],
    pub(crate) has_mmp: bool,
    /// Features of which a volume can only be read.
    pub(crate) is_for_reading: bool,
    pub(crate) uuid: [u8; 16],
    copies: Copies,
    reserved_descriptors: u64,
}

/// Which groups have copies of the superblock and the descriptors.
#[derive(Clone)]
enum Copies {
    All,
    Powers,
    Two([u32; 2]),
}

impl Layout {
    /// # Errors
    /// [`ErrorKind::InvalidMagic`], [`ErrorKind::UnsupportedFeature`], [`ErrorKind::Corrupted`].
    pub(crate) fn read(raw: &[u8], disk: u64) -> Result<Layout> {
        if get16(raw, MAGIC_AT) != MAGIC {
            return Err(ErrorKind::InvalidMagic);
        }
        let (compat, incompat, ro_compat) =
            (get32(raw, COMPAT), get32(raw, INCOMPAT), get32(raw, RO_COMPAT));
        let has_sums = ro_compat & SUMS != 0;
        if has_sums && sum(raw) != get32(raw, SUM) {
            return Err(ErrorKind::Corrupted);
        }
        if incompat & !KNOWN_INCOMPAT != 0 {
            return Err(ErrorKind::UnsupportedFeature);
        }
        if get32(raw, BLOCK_SIZE) > 2 || get32(raw, CLUSTER_SIZE) != get32(raw, BLOCK_SIZE) {
            return Err(ErrorKind::UnsupportedFeature);
        }
        let block_size = 1024 << get32(raw, BLOCK_SIZE);
        let is_long = incompat & LONG != 0;
        let high = |at| if is_long { u64::from(get32(raw, at)) << 32 } else { 0 };
        let blocks = u64::from(get32(raw, BLOCKS_LOW)) | high(BLOCKS_HIGH);
        let first_block = u64::from(get32(raw, FIRST_BLOCK));
        let group_blocks = u64::from(get32(raw, GROUP_BLOCKS));
        let group_inodes = get32(raw, GROUP_INODES);
        let is_old = get32(raw, REVISION) == 0;
        let inode_size = if is_old { 128 } else { usize::from(get16(raw, INODE_SIZE)) };
        let descriptor_size = if is_long { usize::from(get16(raw, DESCRIPTOR_SIZE)) } else { 32 };
        let bits = 8 * block_size as u64;
        let is_right = blocks <= disk / block_size as u64
            && first_block == u64::from(block_size == 1024)
            && first_block + 1 < blocks
            && (8..=bits).contains(&group_blocks)
            && group_blocks.is_multiple_of(8)
            && (1..=bits).contains(&u64::from(group_inodes))
            && inode_size.is_power_of_two()
            && (128..=block_size).contains(&inode_size)
            && descriptor_size.is_power_of_two()
            && (if is_long { 64 } else { 32 }..=block_size).contains(&descriptor_size);
        if !is_right {
            return Err(ErrorKind::Corrupted);
        }
        let groups = (blocks - first_block).div_ceil(group_blocks);
        let inodes = get32(raw, INODES);
        if groups > MOST_GROUPS {
            return Err(ErrorKind::NoMemory);
        }
        if u64::from(inodes) != groups * u64::from(group_inodes) || get16(raw, HASH) & 0xff > 5 {
            return Err(ErrorKind::Corrupted);
        }
        let has_journal = compat & HAS_JOURNAL != 0;
        let journal = if has_journal { get32(raw, JOURNAL) } else { 0 };
        if has_journal && (get32(raw, JOURNAL_DEVICE) != 0 || journal == 0) {
            return Err(ErrorKind::UnsupportedFeature);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[UUID..UUID + 16]);
        let seed = match incompat & SUM_SEED {
            0 => crc32c(START, &uuid),
            _ => get32(raw, SEED),
        };
        let copies = match (compat & SPARSE_SUPER2, ro_compat & SPARSE_SUPER) {
            (0, 0) => Copies::All,
            (0, _) => Copies::Powers,
            _ => Copies::Two([0, 4].map(|at| get32(raw, COPIES + at))),
        };
        let has_extents = incompat & EXTENTS != 0;
        Ok(Layout {
            block_size,
            blocks,
            first_block,
            group_blocks,
            groups: groups as u32,
            inodes,
            group_inodes,
            inode_size,
            first_inode: if is_old { 11 } else { get32(raw, FIRST_INODE).max(11) },
            descriptor_size,
            reserved: u64::from(get32(raw, RESERVED_LOW)) | high(RESERVED_HIGH),
            reserve_owner: (get16(raw, RESERVE_USER).into(), get16(raw, RESERVE_GROUP).into()),
            journal,
            sums: has_sums.then_some(seed),
            has_group_sums: !has_sums && ro_compat & GROUP_SUMS != 0,
            has_types: incompat & FILE_TYPE != 0,
            has_indexes: compat & DIR_INDEX != 0,
            has_extents,
            has_long_counts: ro_compat & HUGE_FILE != 0,
            has_many_links: ro_compat & DIR_LINKS != 0,
            hash: get16(raw, HASH) as u8,
            has_unsigned_hash: get32(raw, FLAGS) & UNSIGNED_HASH != 0,
            hash_seed: [0, 4, 8, 12].map(|at| get32(raw, HASH_SEED + at)),
            has_mmp: incompat & MMP != 0,
            is_for_reading: ro_compat & !KNOWN_RO_COMPAT != 0,
            uuid,
            copies,
            reserved_descriptors: get16(raw, RESERVED_DESCRIPTORS).into(),
        })
    }

    /// Whether a block is one of the volume's that can be anything else than the superblock.
    pub(crate) fn has(&self, block: u64) -> bool {
        block > self.first_block && block < self.blocks
    }

    /// The first block of a group.
    pub(crate) fn start(&self, group: u32) -> u64 {
        self.first_block + u64::from(group) * self.group_blocks
    }

    /// Blocks that a group has: the last may have fewer than others.
    pub(crate) fn len(&self, group: u32) -> u64 {
        self.group_blocks.min(self.blocks - self.start(group).min(self.blocks))
    }

    /// The group of a block, and which of its blocks that is.
    pub(crate) fn group_of(&self, block: u64) -> (u32, usize) {
        let at = block.saturating_sub(self.first_block);
        ((at / self.group_blocks) as u32, (at % self.group_blocks) as usize)
    }

    /// Where a group's descriptor lies: the block, and the place in it.
    pub(crate) fn descriptor(&self, group: u32) -> (u64, usize) {
        let each = self.block_size / self.descriptor_size;
        let block = self.first_block + 1 + u64::from(group) / each as u64;
        (block, group as usize % each * self.descriptor_size)
    }

    /// Blocks that the table of a group's inodes has.
    pub(crate) fn table_len(&self) -> u64 {
        (u64::from(self.group_inodes) * self.inode_size as u64).div_ceil(self.block_size as u64)
    }

    /// Blocks at a group's start that hold copies of the superblock and the descriptors.
    pub(crate) fn copies(&self, group: u32) -> u64 {
        let is_power_of = |base: u32| {
            let powers = core::iter::successors(Some(base), |power| power.checked_mul(base));
            powers.take_while(|&power| power <= group).any(|power| power == group)
        };
        let has_copy = match &self.copies {
            Copies::All => true,
            Copies::Powers => group <= 1 || [3, 5, 7].into_iter().any(is_power_of),
            Copies::Two(groups) => group == 0 || groups.contains(&group),
        };
        if !has_copy {
            return 0;
        }
        let each = (self.block_size / self.descriptor_size) as u64;
        1 + u64::from(self.groups).div_ceil(each) + self.reserved_descriptors
    }

    /// The superblock's block, and its place in it.
    pub(crate) fn superblock(&self) -> (u64, usize) {
        let size = self.block_size as u64;
        (SUPERBLOCK_AT / size, (SUPERBLOCK_AT % size) as usize)
    }
}

fn sum(raw: &[u8]) -> u32 {
    crc32c(START, &raw[..SUM])
}

/// Gives a superblock that was changed its checksum.
pub(crate) fn seal(raw: &mut [u8]) {
    if get32(raw, RO_COMPAT) & SUMS != 0 {
        let sum = sum(raw);
        put32(raw, SUM, sum);
    }
}

/// The blocks that no file may have: sorted, none twice.
pub(crate) struct Zones(Vec<(u64, u64)>);

impl Zones {
    pub(crate) fn new() -> Zones {
        Zones(Vec::new())
    }

    /// Adds a run of blocks. Zones aren't sorted then.
    pub(crate) fn add(&mut self, start: u64, len: u64) {
        match self.0.last_mut() {
            _ if len == 0 => {}
            Some((_, end)) if *end == start => *end = start + len,
            _ => self.0.push((start, start + len)),
        }
    }

    pub(crate) fn sort(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|next, before| {
            let is_one = next.0 <= before.1;
            if is_one {
                before.1 = before.1.max(next.1);
            }
            is_one
        });
        self.0.shrink_to_fit();
    }

    /// Whether a run of blocks has one of these.
    pub(crate) fn meet(&self, start: u64, len: u64) -> bool {
        let at = self.0.partition_point(|&(_, end)| end <= start);
        self.0.get(at).is_some_and(|&(first, _)| first < start + len)
    }
}
