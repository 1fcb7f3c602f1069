//! Extended attributes, of which access lists are used: in an inode's record behind what is known
//! of it, and in a block that inodes may share.
//!
//! ```text
//!   head | entry, name | entry, name | 0 ...            ... value | value
//! ```
//! A change takes all entries out of one of the two, and puts them in anew.

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put, put16, put32};
use crate::cache::Seal;
use crate::inode::{Inode, EXTRA};
use crate::sums::crc32c;
use crate::{Device, ErrorKind, Result, Volume};

const MAGIC: u32 = 0xea02_0000;
/// Bytes before the entries: in an inode, in a block.
const HEAD: usize = 4;
const BLOCK_HEAD: usize = 32;
/// Where a block's head has what.
const USERS: usize = 4;
const BLOCKS: usize = 8;
const HASH: usize = 12;
/// Bytes of an entry before its name.
const ENTRY: usize = 16;

/// An attribute: which kind of name, the name, its value.
struct Attribute {
    kind: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Attribute {
    fn is(&self, kind: u8) -> bool {
        self.kind == kind && self.name.is_empty()
    }

    fn head_bytes(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4)
    }

    fn value_bytes(&self) -> usize {
        self.value.len().next_multiple_of(4)
    }

    fn hash(&self) -> u32 {
        let hash = self.name.iter().fold(0_u32, |hash, &c| hash.rotate_left(5) ^ u32::from(c));
        (0..self.value_bytes()).step_by(4).fold(hash, |hash, at| {
            let mut word = [0; 4];
            let part = &self.value[at..self.value.len().min(at + 4)];
            word[..part.len()].copy_from_slice(part);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// The attributes in a region's bytes, whose entries begin at `first`; values are counted from
/// `base`.
fn parse(bytes: &[u8], first: usize, base: usize) -> Result<Vec<Attribute>> {
    let (mut all, mut at) = (Vec::new(), first);
    while at + 4 <= bytes.len() && get32(bytes, at) != 0 {
        let name = usize::from(bytes[at]);
        let (offset, size) = (get16(bytes, at + 2).into(), get32(bytes, at + 8) as usize);
        if get32(bytes, at + 4) != 0 {
            return Err(ErrorKind::UnsupportedFeature);
        }
        let value = match size {
            0 => Some(&[][..]),
            _ => base.checked_add(offset).and_then(|from| bytes.get(from..from.checked_add(size)?)),
        };
        let text = bytes.get(at + ENTRY..at + ENTRY + name);
        let (Some(value), Some(text)) = (value, text) else { return Err(ErrorKind::Corrupted) };
        let found = Attribute { kind: bytes[at + 1], name: text.to_vec(), value: value.to_vec() };
        at += found.head_bytes();
        all.push(found);
    }
    Ok(all)
}

/// Whether attributes fit in so many bytes, with the zeroes at the entries' end.
fn fit(all: &[Attribute], bytes: usize) -> bool {
    all.iter().map(|it| it.head_bytes() + it.value_bytes()).sum::<usize>() + 4 <= bytes
}

/// Writes attributes, which fit, in a region of zeroes.
fn write(bytes: &mut [u8], first: usize, base: usize, all: &[Attribute], has_hashes: bool) {
    let (mut at, mut end) = (first, bytes.len());
    for it in all {
        end -= it.value_bytes();
        let offset = if it.value.is_empty() { 0 } else { end - base };
        put(bytes, at, &[it.name.len() as u8, it.kind]);
        put16(bytes, at + 2, offset as u16);
        put32(bytes, at + 8, it.value.len() as u32);
        put32(bytes, at + 12, if has_hashes { it.hash() } else { 0 });
        put(bytes, at + ENTRY, &it.name);
        put(bytes, end, &it.value);
        at += it.head_bytes();
    }
}

impl<D: Device> Volume<D> {
    fn attributes_seal(&self, block: u64) -> Seal {
        let seed = self.layout.sums;
        seed.map_or(Seal::None, |seed| Seal::Attributes(crc32c(seed, &block.to_le_bytes())))
    }

    /// Attributes in an inode's record.
    fn attributes_inside(&mut self, inode: &Inode) -> Result<Vec<Attribute>> {
        let start = EXTRA + inode.extra();
        let record = self.inode_record(inode.ino)?;
        let region = record.get(start..).unwrap_or_default();
        if inode.extra() == 0 || get32(region, 0) != MAGIC {
            return Ok(Vec::new());
        }
        parse(region, HEAD, HEAD)
    }

    /// Attributes in an inode's block.
    fn attributes_outside(&mut self, inode: &Inode) -> Result<Vec<Attribute>> {
        let block = inode.attributes();
        if block == 0 {
            return Ok(Vec::new());
        }
        self.may_be_files(block, 1)?;
        let place = self.store.check(block, self.attributes_seal(block))?;
        let bytes = self.store.cache.bytes(place);
        if get32(bytes, 0) != MAGIC || get32(bytes, BLOCKS) != 1 {
            return Err(ErrorKind::Corrupted);
        }
        parse(bytes, BLOCK_HEAD, 0)
    }

    /// The value of an attribute whose name is all in its kind.
    pub(crate) fn attribute(&mut self, inode: &Inode, kind: u8) -> Result<Option<Vec<u8>>> {
        let mut all = self.attributes_inside(inode)?;
        if !all.iter().any(|it| it.is(kind)) {
            all = self.attributes_outside(inode)?;
        }
        Ok(all.into_iter().find(|it| it.is(kind)).map(|it| it.value))
    }

    /// Gives an attribute a value.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; I/O and damage.
    pub(crate) fn set_attribute(
        &mut self,
        inode: &mut Inode,
        kind: u8,
        value: &[u8],
    ) -> Result<()> {
        let (mut inside, mut outside) =
            (self.attributes_inside(inode)?, self.attributes_outside(inode)?);
        let was_outside = outside.iter().any(|it| it.is(kind));
        inside.retain(|it| !it.is(kind));
        outside.retain(|it| !it.is(kind));
        let start = EXTRA + inode.extra();
        let room = match inode.extra() {
            0 => 0,
            _ => self.layout.inode_size.saturating_sub(start + HEAD),
        };
        let new = Attribute { kind, name: Vec::new(), value: value.to_vec() };
        inside.push(new);
        let is_inside = fit(&inside, room);
        if !is_inside {
            outside.extend(inside.pop());
            if !fit(&outside, self.layout.block_size - BLOCK_HEAD) {
                return Err(ErrorKind::NoSpace);
            }
        }
        if !is_inside || was_outside {
            self.put_attributes_outside(inode, outside)?;
        }
        let ino = inode.ino;
        self.put_inode(inode)?;
        self.edit_inode(ino, |record| {
            if let Some(region) = record.get_mut(start..).filter(|_| room > 0) {
                region.fill(0);
                if !inside.is_empty() {
                    put32(region, 0, MAGIC);
                    write(region, HEAD, HEAD, &inside, false);
                }
            }
        })
    }

    /// Gives an inode a block of these attributes, and of no other inode; none if there are none.
    fn put_attributes_outside(&mut self, inode: &mut Inode, mut all: Vec<Attribute>) -> Result<()> {
        self.drop_attributes(inode)?;
        if all.is_empty() {
            return Ok(());
        }
        all.sort_by(|a, b| (a.kind, a.name.len(), &a.name).cmp(&(b.kind, b.name.len(), &b.name)));
        let block = self.take_own_block(inode)?;
        inode.set_attributes(block);
        let hash = all.iter().fold(0_u32, |hash, it| hash.rotate_left(16) ^ it.hash());
        let seal = self.attributes_seal(block);
        let bytes = self.store.fresh(block, seal);
        put32(bytes, 0, MAGIC);
        put32(bytes, USERS, 1);
        put32(bytes, BLOCKS, 1);
        put32(bytes, HASH, hash);
        write(bytes, BLOCK_HEAD, 0, &all, true);
        Ok(())
    }

    /// Takes its block of attributes from an inode, which is freed if no other has it.
    pub(crate) fn drop_attributes(&mut self, inode: &mut Inode) -> Result<()> {
        let block = inode.attributes();
        if block == 0 {
            return Ok(());
        }
        self.may_be_files(block, 1)?;
        let seal = self.attributes_seal(block);
        let place = self.store.check(block, seal)?;
        let users = get32(self.store.cache.bytes(place), USERS);
        match users {
            0 | 1 => self.free_blocks(block, 1)?,
            _ => put32(self.store.edit_sealed(block, seal)?, USERS, users - 1),
        }
        self.count_blocks(inode, -1)?;
        inode.set_attributes(0);
        Ok(())
    }
}
