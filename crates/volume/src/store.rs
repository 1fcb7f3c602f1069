//! The volume's metadata as blocks: by the [cache](crate::cache), which reads from the disk what it
//! misses.
//!
//! A read brings in the whole of a page of 4 KiB, and of a table of inodes what lies behind it.

use alloc::boxed::Box;

use crate::cache::{Cache, Seal};
use crate::{Device, ErrorKind, Result};

/// Bytes that are read at least.
pub(crate) const LINE: usize = 4096;
/// Bytes of one request at most.
const GATHERED: usize = 32 * LINE;
/// Bytes that are read in one request at most.
const READ_AHEAD: usize = 16 * LINE;
/// Blocks that may have to stay, however small the cache.
pub(crate) const FEW: usize = 128;

/// See the module.
pub(crate) struct Store<D> {
    pub(crate) device: D,
    pub(crate) cache: Cache,
    pub(crate) block_size: usize,
    /// The volume's length in blocks.
    blocks: u64,
    /// Room for one request.
    pub(crate) gathered: Box<[u8]>,
}

impl<D: Device> Store<D> {
    pub(crate) fn new(device: D, lines: usize, block_size: usize, blocks: u64) -> Store<D> {
        Store {
            device,
            cache: Cache::new(lines * (LINE / block_size), block_size),
            block_size,
            blocks,
            gathered: alloc::vec![0; GATHERED].into_boxed_slice(),
        }
    }

    /// Where a block is in the cache.
    pub(crate) fn place(&mut self, number: u64) -> Result<usize> {
        self.place_before(number, number + 1)
    }

    /// Where a block is in the cache. Blocks up to `end` are likely to be asked for next.
    pub(crate) fn place_before(&mut self, number: u64, end: u64) -> Result<usize> {
        if let Some(place) = self.cache.find(number) {
            return Ok(place);
        }
        if number >= self.blocks {
            return Err(ErrorKind::Corrupted);
        }
        let per_line = (LINE / self.block_size) as u64;
        let first = number / per_line * per_line;
        let most = (READ_AHEAD / self.block_size).min(self.cache.limit() / 4) as u64;
        let last = (first + per_line).max(end.min(first + most)).min(self.blocks);
        let behind = (number + 1..last).take_while(|&next| !self.cache.has(next)).count() as u64;
        let last = number + 1 + behind;
        let bytes = &mut self.gathered[..(last - first) as usize * self.block_size];
        let at = first * self.block_size as u64;
        self.device.read(at, bytes).map_err(|_| ErrorKind::Io)?;
        let parts = bytes.chunks_exact(self.block_size).zip(first..);
        for (part, found) in parts.filter(|&(_, found)| found != number) {
            if !self.cache.has(found) {
                self.cache.learn(found, part.into());
            }
        }
        // What was asked for last, so that it stays.
        let mine = (number - first) as usize * self.block_size;
        Ok(self.cache.learn(number, self.gathered[mine..mine + self.block_size].into()))
    }

    pub(crate) fn read(&mut self, number: u64) -> Result<&[u8]> {
        let place = self.place(number)?;
        Ok(self.cache.bytes(place))
    }

    pub(crate) fn edit(&mut self, number: u64) -> Result<&mut [u8]> {
        let place = self.place(number)?;
        Ok(self.cache.edit(place))
    }

    /// A block whose checksum is looked at as it is read from the disk.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`]: it is wrong; I/O.
    pub(crate) fn check(&mut self, number: u64, seal: Seal) -> Result<usize> {
        let place = self.place(number)?;
        if self.cache.checked(place) == 0 {
            let bytes = self.cache.bytes(place);
            let is_right = match seal {
                Seal::None => true,
                _ => seal.sum(bytes).is_some_and(|(at, sum)| crate::bytes::get32(bytes, at) == sum),
            };
            if !is_right {
                return Err(ErrorKind::Corrupted);
            }
            self.cache.set_checked(place, 1);
        }
        Ok(place)
    }

    /// A block to be changed, which gets a checksum before it is committed.
    pub(crate) fn edit_sealed(&mut self, number: u64, seal: Seal) -> Result<&mut [u8]> {
        let place = self.check(number, seal)?;
        self.cache.set_seal(place, seal);
        Ok(self.cache.edit(place))
    }

    /// Like [`edit_sealed`](Self::edit_sealed), of a node whose entries stay in order: what is
    /// known of that stays known.
    pub(crate) fn edit_node(&mut self, number: u64, seal: Seal) -> Result<&mut [u8]> {
        let place = self.check(number, seal)?;
        self.cache.set_seal(place, seal);
        Ok(self.cache.edit_node(place))
    }

    /// A block of zeroes, in place of what it was.
    pub(crate) fn fresh(&mut self, number: u64, seal: Seal) -> &mut [u8] {
        let place = self.cache.fresh(number);
        self.cache.set_seal(place, seal);
        self.cache.edit(place)
    }

    /// Whether so many blocks have to stay that the next change belongs into another transaction.
    pub(crate) fn is_much(&self) -> bool {
        self.cache.held() > self.cache.limit().max(FEW) / 2
    }

    /// Brings all blocks that are logged to their places, in ascending runs.
    pub(crate) fn write_logged(&mut self) -> core::result::Result<(), crate::DeviceError> {
        while let Some((first, count)) = self.cache.first_logged(&mut self.gathered) {
            let at = first * self.block_size as u64;
            self.device.write(at, &self.gathered[..count * self.block_size])?;
            self.cache.written(first, count);
        }
        Ok(())
    }
}
