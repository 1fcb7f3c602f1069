//! Files of ext2 and ext3, whose inodes name blocks, blocks of numbers of blocks, and so on up to
//! three levels. They are read and deleted here, and nothing else.

use alloc::vec::Vec;

use crate::bytes::{get32, put32};
use crate::extents::Extent;
use crate::inode::Inode;
use crate::{Device, ErrorKind, Result, Volume};

/// Blocks that the inode names itself; those with one, two and three levels are behind.
const DIRECT: usize = 12;
const LEVELS: usize = 3;
/// Blocks that one change frees.
const FREED_AT_ONCE: usize = 16;

impl<D: Device> Volume<D> {
    /// Numbers in a block.
    fn numbers(&self) -> u64 {
        self.layout.block_size as u64 / 4
    }

    /// Where a block of a file lies, and how many blocks behind it are a hole too if it is one.
    fn indirect_place(
        &mut self,
        inode: &Inode,
        block: u64,
    ) -> Result<core::result::Result<u64, u64>> {
        let each = self.numbers();
        if block < DIRECT as u64 {
            return self.followed(get32(inode.map(), 4 * block as usize), 1);
        }
        let mut rest = block - DIRECT as u64;
        for level in 0..LEVELS {
            let mut below = each.pow(level as u32);
            if rest >= below * each {
                rest -= below * each;
                continue;
            }
            let mut number = get32(inode.map(), 4 * (DIRECT + level));
            let mut left = below * each - rest;
            for _ in 0..=level {
                let found = match self.followed(number, left)? {
                    Ok(found) => found,
                    hole => return Ok(hole),
                };
                let node = self.store.read(found)?;
                number = get32(node, 4 * (rest / below) as usize);
                rest %= below;
                left = below - rest;
                below = (below / each).max(1);
            }
            return self.followed(number, 1);
        }
        Err(ErrorKind::Corrupted)
    }

    fn followed(&self, number: u32, hole: u64) -> Result<core::result::Result<u64, u64>> {
        if number == 0 {
            return Ok(Err(hole));
        }
        self.may_be_files(number.into(), 1)?;
        Ok(Ok(number.into()))
    }

    /// As [`extents_of`](Self::extents_of).
    pub(crate) fn indirect_extents(
        &mut self,
        inode: &Inode,
        from: u64,
        to: u64,
        most: usize,
    ) -> Result<Vec<Extent>> {
        let each = self.numbers();
        let to = to.min(DIRECT as u64 + each + each.pow(2) + each.pow(3));
        let (mut found, mut at, mut count) = (Vec::<Extent>::new(), from, 0);
        while at < to {
            let start = match self.indirect_place(inode, at)? {
                Ok(start) => start,
                Err(hole) => {
                    at += hole;
                    continue;
                }
            };
            // One block may be named more than once, but none by an honest volume.
            count += 1;
            if count > self.layout.blocks {
                return Err(ErrorKind::Corrupted);
            }
            let is_full = found.len() == most;
            match found.last_mut() {
                Some(last) if last.end() == at && last.start + last.len == start => last.len += 1,
                _ if is_full => return Err(ErrorKind::NoMemory),
                _ => found.push(Extent { at, len: 1, start, is_unwritten: false }),
            }
            at += 1;
        }
        Ok(found)
    }

    /// Frees the last blocks of a file, as many as one change may; `true`: it has none any more.
    pub(crate) fn free_indirect(&mut self, inode: &mut Inode) -> Result<bool> {
        for _ in 0..FREED_AT_ONCE {
            let numbers = inode.map().chunks(4).rposition(|number| number != [0; 4]);
            let Some(slot) = numbers else { return Ok(true) };
            let levels = (slot + 1).saturating_sub(DIRECT);
            // The way to the last number: blocks, and which of their numbers is the last.
            let mut path = [(0, 4 * slot); LEVELS + 1];
            let mut number = get32(inode.map(), 4 * slot);
            let mut depth = 0;
            while depth < levels {
                self.may_be_files(number.into(), 1)?;
                let node = self.store.read(number.into())?;
                let Some(last) = node.chunks(4).rposition(|number| number != [0; 4]) else { break };
                depth += 1;
                path[depth] = (u64::from(number), 4 * last);
                number = get32(node, 4 * last);
            }
            self.free_blocks(number.into(), 1)?;
            self.count_blocks(inode, -1)?;
            let (block, at) = path[depth];
            match block {
                0 => put32(inode.map_mut(), at, 0),
                _ => put32(self.store.edit(block)?, at, 0),
            }
        }
        Ok(false)
    }
}
