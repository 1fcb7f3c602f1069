//! Directories: blocks of entries.
//!
//! ```text
//!   inode, length, name's length, type | name | inode, ... | (with checksums) a tail of 12 bytes
//! ```
//! An entry's length leads to the next one; what it has beyond its name is room for another. A
//! directory of one block has its entries in any order. One that grows beyond gets an
//! [index](crate::htree), if the volume has such.
//!
//! I1: an entry lies in its block, and has room for its name: looked at whenever one is met, since
//! the block is what an enemy has written. I2: a directory has no holes and no more blocks than the
//! volume, so that a walk ends.

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put, put16, put32};
use crate::cache::Seal;
use crate::extents::{self, Extent};
use crate::inode::{self, Inode};
use crate::{Device, ErrorKind, Result, Volume};

/// Bytes of an entry before its name.
pub(crate) const HEAD: usize = 8;
/// Bytes of the tail that has a block's checksum, and its type.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xde;
/// The longest name.
pub(crate) const LONGEST: usize = 255;

/// An entry of a block.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// 0: it is none.
    pub(crate) ino: u32,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
}

/// Where a directory has a name.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) ino: u32,
    block: u64,
    at: usize,
    /// The entry before it in its block, if there is one.
    before: Option<usize>,
}

/// What a listing finds: inode, type, name, and where the next entry begins.
pub(crate) type Listed = (u32, u8, Vec<u8>, u64);

/// The bytes that an entry needs.
pub(crate) fn needs(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// The entries of a block's bytes, up to `end`. The last of them is an error if one is damaged.
pub(crate) fn entries(bytes: &[u8], end: usize) -> impl Iterator<Item = Result<Raw<'_>>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let at = next;
        let len = usize::from(get16(bytes, at + 4));
        let name = usize::from(bytes.get(at + 6).copied().unwrap_or(0));
        if len < needs(name.max(1)) || len % 4 != 0 || at + len > end {
            next = end;
            return Some(Err(ErrorKind::Corrupted));
        }
        next = at + len;
        Some(Ok(Raw {
            at,
            len,
            ino: get32(bytes, at),
            kind: bytes[at + 7],
            name: &bytes[at + HEAD..at + HEAD + name],
        }))
    })
}

/// Writes an entry of a given length.
pub(crate) fn put_entry(bytes: &mut [u8], at: usize, len: usize, ino: u32, kind: u8, name: &[u8]) {
    put32(bytes, at, ino);
    put16(bytes, at + 4, len as u16);
    put(bytes, at + 6, &[name.len() as u8, kind]);
    put(bytes, at + HEAD, name);
}

/// Where a block has room for a name: the place, and the length that the entry gets; the entry
/// before it, and its length then.
type Room = (usize, usize, Option<(usize, usize)>);

fn room(bytes: &[u8], end: usize, name: usize) -> Result<Option<Room>> {
    for entry in entries(bytes, end) {
        let entry = entry?;
        let used = if entry.ino == 0 { 0 } else { needs(entry.name.len()) };
        if entry.len - used >= needs(name) {
            let before = (used > 0).then_some((entry.at, used));
            return Ok(Some((entry.at + used, entry.len - used, before)));
        }
    }
    Ok(None)
}

/// # Errors
/// [`ErrorKind::Corrupted`]: a program would take the name for a path, or for none.
pub(crate) fn may_be_listed(name: &[u8]) -> Result<()> {
    match name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        true => Err(ErrorKind::Corrupted),
        false => Ok(()),
    }
}

impl<D: Device> Volume<D> {
    /// Bytes of a block of entries, without its tail.
    pub(crate) fn entries_end(&self) -> usize {
        self.layout.block_size - if self.layout.sums.is_some() { TAIL } else { 0 }
    }

    pub(crate) fn names_seal(&self, dir: &Inode) -> Seal {
        self.inode_seed(dir).map_or(Seal::None, Seal::Names)
    }

    /// The type that entries have for a mode.
    pub(crate) fn entry_kind(&self, mode: u16) -> u8 {
        match mode & inode::TYPE {
            _ if !self.layout.has_types => 0,
            inode::FILE => 1,
            inode::DIR => 2,
            0o020_000 => 3,
            0o060_000 => 4,
            0o010_000 => 5,
            0o140_000 => 6,
            inode::LINK => 7,
            _ => 0,
        }
    }

    /// Blocks that a directory has.
    ///
    /// # Errors
    /// [`ErrorKind::NotDirectory`], [`ErrorKind::Corrupted`].
    pub(crate) fn dir_blocks(&self, dir: &Inode) -> Result<u64> {
        if !dir.is_dir() {
            return Err(ErrorKind::NotDirectory);
        }
        let size = self.layout.block_size as u64;
        if dir.size() == 0
            || !dir.size().is_multiple_of(size)
            || dir.size() / size > self.layout.blocks
        {
            return Err(ErrorKind::Corrupted);
        }
        Ok(dir.size() / size)
    }

    /// Where a directory's block lies.
    pub(crate) fn dir_block(&mut self, dir: &Inode, block: u64) -> Result<u64> {
        if dir.has(inode::EXTENTS) {
            let found = self.extent_of(dir, block)?.filter(|extent| !extent.is_unwritten);
            let extent = found.ok_or(ErrorKind::Corrupted)?;
            return Ok(extent.start + (block - extent.at));
        }
        let found = self.indirect_extents(dir, block, block + 1, 1)?;
        found.first().map(|extent| extent.start).ok_or(ErrorKind::Corrupted)
    }

    /// Whether a directory has an index that is kept. On a volume without the feature, names are
    /// added and looked for beside what index there was.
    pub(crate) fn is_indexed(&self, dir: &Inode) -> bool {
        dir.has(inode::INDEX) && self.layout.has_indexes
    }

    /// Whether a block of an indexed directory is of its index: its one entry is none, and takes
    /// all of it; or the first, whose second entry does.
    fn is_of_index(&mut self, dir: &Inode, block: u64, place: u64) -> Result<bool> {
        if !dir.has(inode::INDEX) {
            return Ok(false);
        }
        let size = self.layout.block_size;
        let bytes = self.store.read(place)?;
        let takes_all = get32(bytes, 0) == 0 && usize::from(get16(bytes, 4)) == size;
        Ok(block == 0 || takes_all)
    }

    /// A block of entries, looked at: where it lies, and where its entries end.
    fn names(&mut self, dir: &Inode, block: u64) -> Result<(u64, usize)> {
        let place = self.dir_block(dir, block)?;
        if self.is_of_index(dir, block, place)? {
            return Ok((place, self.layout.block_size));
        }
        self.leaf(dir, place)?;
        Ok((place, self.entries_end()))
    }

    /// Looks at a block of entries that isn't of an index.
    pub(crate) fn leaf(&mut self, dir: &Inode, place: u64) -> Result<()> {
        let seal = self.names_seal(dir);
        let found = self.store.check(place, seal)?;
        if self.layout.sums.is_some() {
            let bytes = self.store.cache.bytes(found);
            let tail = self.entries_end();
            let head = [0, 0, 0, 0, TAIL as u8, 0, 0, TAIL_TYPE];
            if bytes.get(tail..tail + HEAD) != Some(&head) {
                return Err(ErrorKind::Corrupted);
            }
        }
        Ok(())
    }

    /// A new block of entries: with one of nothing.
    pub(crate) fn fresh_leaf(&mut self, dir: &Inode, place: u64) -> &mut [u8] {
        let (seal, end) = (self.names_seal(dir), self.entries_end());
        let bytes = self.store.fresh(place, seal);
        put16(bytes, 4, end as u16);
        if end < bytes.len() {
            put16(bytes, end + 4, TAIL as u16);
            put(bytes, end + 7, &[TAIL_TYPE]);
        }
        bytes
    }

    /// Whether an inode is such as names lead to: not the journal's, or one that a volume keeps for
    /// itself.
    pub(crate) fn may_have_name(&self, ino: u32) -> bool {
        let layout = &self.layout;
        let is_files = (layout.first_inode..=layout.inodes).contains(&ino) && ino != layout.journal;
        is_files || ino == self.root()
    }

    /// Looks for a name in one block.
    pub(crate) fn search(&mut self, place: u64, end: usize, name: &[u8]) -> Result<Option<Place>> {
        let (mut before, mut found) = (None, None);
        for entry in entries(self.store.read(place)?, end) {
            let entry = entry?;
            if entry.ino != 0 && entry.name == name {
                found = Some(Place { ino: entry.ino, block: place, at: entry.at, before });
                break;
            }
            before = Some(entry.at);
        }
        match found {
            Some(found) if !self.may_have_name(found.ino) => Err(ErrorKind::Corrupted),
            found => Ok(found),
        }
    }

    /// Where a directory has a name.
    ///
    /// # Errors
    /// [`ErrorKind::NotDirectory`], [`ErrorKind::InvalidInput`]; I/O and damage.
    pub(crate) fn find_name(&mut self, dir: &Inode, name: &[u8]) -> Result<Option<Place>> {
        let blocks = self.dir_blocks(dir)?;
        let is_dots = crate::index::is_dots(name);
        if name.is_empty() || name.len() > LONGEST || name.contains(&b'/') || name.contains(&0) {
            return Err(ErrorKind::InvalidInput);
        }
        if !is_dots
            && self.is_indexed(dir)
            && let Some(found) = self.find_hashed(dir, name)?
        {
            return Ok(found);
        }
        for block in 0..if is_dots { 1 } else { blocks } {
            let (place, end) = self.names(dir, block)?;
            if let Some(found) = self.search(place, end, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Puts an entry in a block, if there is room.
    pub(crate) fn put_in_block(
        &mut self,
        dir: &Inode,
        place: u64,
        (ino, kind, name): (u32, u8, &[u8]),
    ) -> Result<bool> {
        let end = self.entries_end();
        self.leaf(dir, place)?;
        let Some((at, len, before)) = room(self.store.read(place)?, end, name.len())? else {
            return Ok(false);
        };
        let seal = self.names_seal(dir);
        let bytes = self.store.edit_sealed(place, seal)?;
        if let Some((before, len)) = before {
            put16(bytes, before + 4, len as u16);
        }
        put_entry(bytes, at, len, ino, kind, name);
        Ok(true)
    }

    /// Adds a name that a directory doesn't have.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; I/O and damage.
    pub(crate) fn add_name(
        &mut self,
        dir: &mut Inode,
        name: &[u8],
        ino: u32,
        mode: u16,
    ) -> Result<()> {
        let entry = (ino, self.entry_kind(mode), name);
        if self.is_indexed(dir) {
            return self.add_hashed(dir, entry);
        }
        let blocks = self.dir_blocks(dir)?;
        for block in 0..blocks {
            let place = self.dir_block(dir, block)?;
            if self.is_of_index(dir, block, place)? {
                continue;
            }
            if self.put_in_block(dir, place, entry)? {
                return Ok(());
            }
        }
        if blocks == 1 && self.layout.has_indexes && self.make_index(dir)? {
            return self.add_hashed(dir, entry);
        }
        let (_, place) = self.add_dir_block(dir)?;
        self.fresh_leaf(dir, place);
        self.put_in_block(dir, place, entry).map(|_| ())
    }

    /// Gives a directory one more block, whose bytes are of no account: which it is, and where it
    /// lies.
    pub(crate) fn add_dir_block(&mut self, dir: &mut Inode) -> Result<(u64, u64)> {
        if !dir.has(inode::EXTENTS) {
            return Err(ErrorKind::Unsupported);
        }
        let size = self.layout.block_size as u64;
        let at = dir.size() / size;
        let goal = match at.checked_sub(1) {
            Some(last) => self.dir_block(dir, last)? + 1,
            None => self.layout.start((dir.ino - 1) / self.layout.group_inodes),
        };
        let (start, len) = self.take_blocks(goal, 1)?;
        self.count_blocks(dir, 1)?;
        self.add_extent(dir, Extent { at, len, start, is_unwritten: false })?;
        dir.set_size((at + 1) * size);
        Ok((at, start))
    }

    /// Takes a name away.
    pub(crate) fn remove_name(&mut self, dir: &Inode, place: &Place) -> Result<()> {
        let bytes = self.edit_entry_block(dir, place)?;
        let len = get16(bytes, place.at + 4);
        match place.before {
            Some(before) => {
                let longer = get16(bytes, before + 4) + len;
                put16(bytes, before + 4, longer);
            }
            None => {
                put32(bytes, place.at, 0);
                put16(bytes, place.at + 6, 0);
            }
        }
        Ok(())
    }

    /// Has a name lead to another inode.
    pub(crate) fn point_name(
        &mut self,
        dir: &Inode,
        place: &Place,
        ino: u32,
        mode: u16,
    ) -> Result<()> {
        let kind = self.entry_kind(mode);
        let bytes = self.edit_entry_block(dir, place)?;
        put32(bytes, place.at, ino);
        put(bytes, place.at + 7, &[kind]);
        Ok(())
    }

    fn edit_entry_block(&mut self, dir: &Inode, place: &Place) -> Result<&mut [u8]> {
        let first = self.dir_block(dir, 0)?;
        if place.block == first && dir.has(inode::INDEX) {
            let seal = self.index_seal(dir, crate::htree::ROOT_ENTRIES);
            return self.store.edit_sealed(place.block, seal);
        }
        let seal = self.names_seal(dir);
        self.store.edit_sealed(place.block, seal)
    }

    /// Makes the first block of a new directory.
    pub(crate) fn found_dir(&mut self, dir: &mut Inode, parent: u32) -> Result<()> {
        extents::plant(dir.map_mut());
        dir.set_flags(dir.flags() | inode::EXTENTS);
        let (_, place) = self.add_dir_block(dir)?;
        let kind = self.entry_kind(inode::DIR);
        let (end, ino) = (self.entries_end(), dir.ino);
        let bytes = self.fresh_leaf(dir, place);
        put_entry(bytes, 0, needs(1), ino, kind, b".");
        put_entry(bytes, needs(1), end - needs(1), parent, kind, b"..");
        Ok(())
    }

    /// Whether a directory has no names but its own.
    pub(crate) fn is_empty(&mut self, dir: &Inode) -> Result<bool> {
        for block in 0..self.dir_blocks(dir)? {
            let (place, end) = self.names(dir, block)?;
            for entry in entries(self.store.read(place)?, end) {
                let entry = entry?;
                if entry.ino != 0 && !crate::index::is_dots(entry.name) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Entries of a directory without an index from a byte on, at most so many: each with where the
    /// next begins.
    pub(crate) fn list_in_order(
        &mut self,
        dir: &Inode,
        from: u64,
        max: usize,
    ) -> Result<Vec<Listed>> {
        let size = self.layout.block_size as u64;
        let blocks = self.dir_blocks(dir)?;
        let mut found = Vec::new();
        for block in from / size..blocks {
            let (place, end) = self.names(dir, block)?;
            for entry in entries(self.store.read(place)?, end) {
                let entry = entry?;
                let at = block * size + entry.at as u64;
                if entry.ino == 0 || at < from {
                    continue;
                }
                may_be_listed(entry.name)?;
                if found.len() == max {
                    return Ok(found);
                }
                let next = at + entry.len as u64;
                found.push((entry.ino, entry.kind, entry.name.to_vec(), next));
            }
        }
        Ok(found)
    }
}
