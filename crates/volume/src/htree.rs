//! Indexes of directories: hashes of names, and the blocks that have the names from each on.
//!
//! ```text
//!   block 0: . | .. (to the block's end, for who knows no index) | version | hash, block | ...
//!                                                                               |
//!                     (with two levels)           entry of nothing | hash, block | ...
//!                                                                               |
//!                                                                      a block of entries
//! ```
//! The first hash of each level is where its limit and count are; it stands for 0, or for that of
//! the entry above. A block whose hash has the lowest bit set goes on with names of the hash that
//! the block before ended with.
//!
//! I1: a walk reads at most [`MOST_CHAINED`] blocks for one hash. I2: an index has at most two
//! levels; a directory that needs more is full.
//!
//! A listing goes by hashes, since names move to other blocks as those are split.

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put, put16, put32};
use crate::cache::Seal;
use crate::dir::{entries, may_be_listed, needs, put_entry, Place};
use crate::hash::hash;
use crate::inode::{self, Inode};
use crate::{Device, ErrorKind, Result, Volume};

/// Where the entries of the first block begin, and of others.
pub(crate) const ROOT_ENTRIES: usize = 0x20;
const NODE_ENTRIES: usize = 8;
/// Where the first block says which hash it has, how long this is, and how many levels there are
/// above the last.
const VERSION: usize = 0x1c;
const INFO_LEN: usize = 0x1d;
const LEVELS: usize = 0x1e;
/// Bytes of an entry, and of the tail that has the checksum.
const ENTRY: usize = 8;
const TAIL: usize = 8;
/// Blocks that names of one hash may lie in.
const MOST_CHAINED: usize = 8;
/// Splits that one name may need.
const ROUNDS: usize = 8;

/// A node on the way to a name's block.
#[derive(Clone, Copy, Default)]
struct Node {
    place: u64,
    /// Where its entries begin.
    start: usize,
    /// The entry that was taken.
    at: usize,
    count: usize,
    limit: usize,
}

/// The way to a name's block, and that.
struct Way {
    nodes: [Node; 2],
    depth: usize,
    leaf: u64,
    version: u8,
}

impl Way {
    fn last(&self) -> Node {
        self.nodes[self.depth]
    }
}

/// What a listing finds: hashes, inode, type and name.
pub(crate) type Listed = ((u32, u32), u32, u8, Vec<u8>);

fn entry_hash(bytes: &[u8], node: &Node, at: usize) -> u32 {
    if at == 0 {
        0
    } else {
        get32(bytes, node.start + at * ENTRY)
    }
}

fn entry_block(bytes: &[u8], node: &Node, at: usize) -> u64 {
    (get32(bytes, node.start + at * ENTRY + 4) & 0x0fff_ffff).into()
}

fn set_count(bytes: &mut [u8], start: usize, limit: usize, count: usize) {
    put16(bytes, start, limit as u16);
    put16(bytes, start + 2, count as u16);
}

impl<D: Device> Volume<D> {
    pub(crate) fn index_seal(&self, dir: &Inode, start: usize) -> Seal {
        self.inode_seed(dir).map_or(Seal::None, |seed| Seal::Index(seed, start))
    }

    fn limit(&self, start: usize) -> usize {
        let tail = if self.layout.sums.is_some() { TAIL } else { 0 };
        (self.layout.block_size - start - tail) / ENTRY
    }

    /// Looks at a node's head; the entry for a hash is taken.
    fn node_of(&mut self, dir: &Inode, place: u64, start: usize, hash: u32) -> Result<Node> {
        let seal = self.index_seal(dir, start);
        let limit = self.limit(start);
        let found = self.store.check(place, seal)?;
        let bytes = self.store.cache.bytes(found);
        let mut node = Node {
            place,
            start,
            at: 0,
            count: get16(bytes, start + 2).into(),
            limit: get16(bytes, start).into(),
        };
        if node.count == 0 || node.count > node.limit || node.limit != limit {
            return Err(ErrorKind::Corrupted);
        }
        let (mut first, mut last) = (1, node.count);
        while first < last {
            let middle = (first + last) / 2;
            if entry_hash(bytes, &node, middle) <= hash {
                first = middle + 1;
            } else {
                last = middle;
            }
        }
        node.at = first - 1;
        Ok(node)
    }

    /// Which hash an index has; `None`: none that is known.
    fn version(&mut self, dir: &Inode) -> Result<Option<u8>> {
        let place = self.dir_block(dir, 0)?;
        let bytes = self.store.read(place)?;
        let version = bytes.get(VERSION).copied().unwrap_or(u8::MAX);
        let is_known = version <= 5 && bytes.get(INFO_LEN) == Some(&8);
        let unsigned = if version < 3 && self.layout.has_unsigned_hash { 3 } else { 0 };
        Ok(is_known.then_some(version.wrapping_add(unsigned)))
    }

    /// The way to the block of a hash.
    fn way(&mut self, dir: &Inode, version: u8, hash: u32) -> Result<Way> {
        let place = self.dir_block(dir, 0)?;
        let root = self.node_of(dir, place, ROOT_ENTRIES, hash)?;
        let bytes = self.store.read(place)?;
        let depth = usize::from(bytes.get(LEVELS).copied().unwrap_or(0));
        if depth > 1 {
            return Err(ErrorKind::Corrupted);
        }
        let block = entry_block(bytes, &root, root.at);
        let mut way = Way { nodes: [root, Node::default()], depth, leaf: 0, version };
        way.leaf = self.dir_block(dir, block)?;
        if depth == 1 {
            let node = self.node_of(dir, way.leaf, NODE_ENTRIES, hash)?;
            let block = entry_block(self.store.read(node.place)?, &node, node.at);
            way.nodes[1] = node;
            way.leaf = self.dir_block(dir, block)?;
        }
        self.leaf(dir, way.leaf)?;
        Ok(way)
    }

    /// Goes on to the block behind; returns the hash that it begins with. `None`: there is none.
    fn step(&mut self, dir: &Inode, way: &mut Way) -> Result<Option<u32>> {
        let mut level = way.depth;
        while way.nodes[level].at + 1 >= way.nodes[level].count {
            if level == 0 {
                return Ok(None);
            }
            level -= 1;
        }
        way.nodes[level].at += 1;
        let node = way.nodes[level];
        let bytes = self.store.read(node.place)?;
        let (first, block) =
            (entry_hash(bytes, &node, node.at), entry_block(bytes, &node, node.at));
        way.leaf = self.dir_block(dir, block)?;
        if level < way.depth {
            way.nodes[1] = self.node_of(dir, way.leaf, NODE_ENTRIES, 0)?;
            let block = entry_block(self.store.read(way.nodes[1].place)?, &way.nodes[1], 0);
            way.nodes[1].at = 0;
            way.leaf = self.dir_block(dir, block)?;
        }
        self.leaf(dir, way.leaf)?;
        Ok(Some(first))
    }

    fn hash(&self, version: u8, name: &[u8]) -> (u32, u32) {
        hash(name, version, &self.layout.hash_seed)
    }

    /// Looks for a name by the index; `None`: there is none that is known.
    pub(crate) fn find_hashed(
        &mut self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<Option<Option<Place>>> {
        let Some(version) = self.version(dir)? else { return Ok(None) };
        let (hash, _) = self.hash(version, name);
        let (mut way, end) = (self.way(dir, version, hash)?, self.entries_end());
        for _ in 0..MOST_CHAINED {
            if let Some(found) = self.search(way.leaf, end, name)? {
                return Ok(Some(Some(found)));
            }
            match self.step(dir, &mut way)? {
                Some(next) if next == hash | 1 => {}
                _ => return Ok(Some(None)),
            }
        }
        Err(ErrorKind::Corrupted)
    }

    /// Adds an entry to a directory with an index.
    pub(crate) fn add_hashed(&mut self, dir: &mut Inode, entry: (u32, u8, &[u8])) -> Result<()> {
        let version = self.version(dir)?.ok_or(ErrorKind::Corrupted)?;
        let (hash, _) = self.hash(version, entry.2);
        for _ in 0..ROUNDS {
            let way = self.way(dir, version, hash)?;
            if self.put_in_block(dir, way.leaf, entry)? {
                return Ok(());
            }
            let node = way.last();
            if node.count < node.limit {
                self.split_leaf(dir, &way)?;
            } else {
                self.split_node(dir, &way)?;
            }
        }
        Err(ErrorKind::Corrupted)
    }

    /// Moves the names with the higher hashes of a block, half of what it holds, to a new one.
    fn split_leaf(&mut self, dir: &mut Inode, way: &Way) -> Result<()> {
        let end = self.entries_end();
        let (version, seed) = (way.version, self.layout.hash_seed);
        let bytes = self.store.read(way.leaf)?.to_vec();
        let mut all = Vec::new();
        for entry in entries(&bytes, end) {
            let entry = entry?;
            if entry.ino != 0 {
                all.push((hash(entry.name, version, &seed).0, entry));
            }
        }
        all.sort_by_key(|&(hash, _)| hash);
        let total: usize = all.iter().map(|(_, entry)| needs(entry.name.len())).sum();
        let (mut from, mut moved) = (all.len(), 0);
        while from > 1 && (moved == 0 || 2 * moved < total) {
            from -= 1;
            moved += needs(all[from].1.name.len());
        }
        if from == all.len() {
            return Err(ErrorKind::Corrupted);
        }
        let is_continued = all[from - 1].0 == all[from].0;
        let first = all[from].0 | u32::from(is_continued);
        let (block, place) = self.add_dir_block(dir)?;
        for (part, place) in [(&all[..from], way.leaf), (&all[from..], place)] {
            let bytes = self.fresh_leaf(dir, place);
            let mut at = 0;
            for (n, (_, entry)) in part.iter().enumerate() {
                let is_last = n + 1 == part.len();
                let len = if is_last { end - at } else { needs(entry.name.len()) };
                put_entry(bytes, at, len, entry.ino, entry.kind, entry.name);
                at += len;
            }
        }
        self.add_index_entry(dir, way.last(), first, block)
    }

    fn add_index_entry(&mut self, dir: &Inode, node: Node, hash: u32, block: u64) -> Result<()> {
        let seal = self.index_seal(dir, node.start);
        let bytes = self.store.edit_sealed(node.place, seal)?;
        let at = node.start + (node.at + 1) * ENTRY;
        bytes.copy_within(at..node.start + node.count * ENTRY, at + ENTRY);
        put32(bytes, at, hash);
        put32(bytes, at + 4, block as u32);
        set_count(bytes, node.start, node.limit, node.count + 1);
        Ok(())
    }

    /// Makes room in an index: another level below the first block, or half of a node's entries go
    /// to another.
    fn split_node(&mut self, dir: &mut Inode, way: &Way) -> Result<()> {
        let [root, node] = way.nodes;
        if way.depth == 1 && root.count == root.limit {
            return Err(ErrorKind::NoSpace);
        }
        let full = way.last();
        let from = if way.depth == 0 { 0 } else { full.count / 2 };
        let bytes = self.store.read(full.place)?;
        let moved = bytes[full.start + from * ENTRY..full.start + full.count * ENTRY].to_vec();
        let first = get32(&moved, 0);
        let (block, place) = self.add_dir_block(dir)?;
        let (limit, size) = (self.limit(NODE_ENTRIES), self.layout.block_size);
        let seal = self.index_seal(dir, NODE_ENTRIES);
        let bytes = self.store.fresh(place, seal);
        put16(bytes, 4, size as u16);
        put(bytes, NODE_ENTRIES, &moved);
        set_count(bytes, NODE_ENTRIES, limit, full.count - from);
        let seal = self.index_seal(dir, full.start);
        let bytes = self.store.edit_sealed(full.place, seal)?;
        if way.depth == 0 {
            set_count(bytes, root.start, root.limit, 1);
            put32(bytes, root.start + 4, block as u32);
            put(bytes, LEVELS, &[1]);
            return Ok(());
        }
        set_count(bytes, node.start, node.limit, from);
        self.add_index_entry(dir, root, first, block)
    }

    /// Gives a directory of one block an index. `false`: it doesn't begin as it should.
    pub(crate) fn make_index(&mut self, dir: &mut Inode) -> Result<bool> {
        let (first, end) = (self.dir_block(dir, 0)?, self.entries_end());
        self.leaf(dir, first)?;
        let bytes = self.store.read(first)?.to_vec();
        let mut all = entries(&bytes, end);
        let (Some(own), Some(parent)) = (all.next(), all.next()) else { return Ok(false) };
        let (own, parent) = (own?, parent?);
        let is_right = own.name == b"." && own.len == needs(1) && parent.name == b"..";
        if !is_right || own.ino == 0 || parent.ino == 0 || !dir.has(inode::EXTENTS) {
            return Ok(false);
        }
        let (block, place) = self.add_dir_block(dir)?;
        let leaf = self.fresh_leaf(dir, place);
        let (mut at, mut last) = (0, 0);
        for entry in all {
            let entry = entry?;
            if entry.ino != 0 {
                let len = needs(entry.name.len());
                put_entry(leaf, at, len, entry.ino, entry.kind, entry.name);
                (last, at) = (at, at + len);
            }
        }
        if at > 0 {
            put16(leaf, last + 4, (end - last) as u16);
        }
        let (limit, size, version) =
            (self.limit(ROOT_ENTRIES), self.layout.block_size, self.layout.hash);
        let version = if version > 2 { version - 3 } else { version };
        let seal = self.index_seal(dir, ROOT_ENTRIES);
        let root = self.store.fresh(first, seal);
        put_entry(root, 0, needs(1), own.ino, own.kind, b".");
        put_entry(root, needs(1), size - needs(1), parent.ino, parent.kind, b"..");
        put(root, VERSION, &[version, 8, 0, 0]);
        set_count(root, ROOT_ENTRIES, limit, 1);
        put32(root, ROOT_ENTRIES + 4, block as u32);
        dir.set_flags(dir.flags() | inode::INDEX);
        Ok(true)
    }

    /// Names of an indexed directory behind a hash, ordered by hashes: at most so many, and what
    /// has the last one's hashes too. `None`: there is no index that is known.
    pub(crate) fn list_hashed(
        &mut self,
        dir: &Inode,
        behind: Option<(u32, u32)>,
        max: usize,
    ) -> Result<Option<Vec<Listed>>> {
        let Some(version) = self.version(dir)? else { return Ok(None) };
        let (end, seed) = (self.entries_end(), self.layout.hash_seed);
        let mut way = self.way(dir, version, behind.map_or(0, |(hash, _)| hash))?;
        let (mut found, mut sorted) = (Vec::<Listed>::new(), 0);
        let (mut chained, mut left) = (0, self.dir_blocks(dir)?);
        loop {
            left = left.checked_sub(1).ok_or(ErrorKind::Corrupted)?;
            for entry in entries(self.store.read(way.leaf)?, end) {
                let entry = entry?;
                let hashes = hash(entry.name, version, &seed);
                if entry.ino != 0 && behind.is_none_or(|behind| hashes > behind) {
                    may_be_listed(entry.name)?;
                    found.push((hashes, entry.ino, entry.kind, entry.name.to_vec()));
                }
            }
            let next = self.step(dir, &mut way)?;
            if next.is_some_and(|next| next & 1 == 1) {
                chained += 1;
                if chained == MOST_CHAINED {
                    return Err(ErrorKind::Corrupted);
                }
                continue;
            }
            chained = 0;
            found[sorted..].sort();
            sorted = found.len();
            if next.is_none() || found.len() >= max {
                break;
            }
        }
        if let Some(last) = found.get(max.saturating_sub(1)).map(|last| last.0) {
            let end = found.partition_point(|entry| entry.0 <= last);
            found.truncate(end.max(max));
        }
        Ok(Some(found))
    }
}
