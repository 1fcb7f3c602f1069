//! Extent trees: which blocks of a file lie where.
//!
//! ```text
//!   inode: header | key, block | ...        up to 5 levels above the leaves
//!                      |
//!            header | key, block | ...
//!                      |
//!            header | first block, length, place on the disk | ...
//! ```
//! A way down is a [`Path`]; a change edits the node at its end and, if that is full or empty,
//! those above, in a loop.
//!
//! I1: a node's entries ascend, lie within what the entry above stands for, and lead to blocks that
//! files may have: looked at before a node is used. I2: a change edits a bounded number of blocks,
//! so that transactions stay bounded: long ones are cut into steps by [`Volume`].

use alloc::vec::Vec;

use crate::bytes::{get16, get32, put, put16, put32};
use crate::cache::Seal;
use crate::inode::Inode;
use crate::{Device, ErrorKind, Result, Volume};

const MAGIC: u16 = 0xf30a;
const HEAD: usize = 12;
const ENTRY: usize = 12;
/// Where a header holds what.
const COUNT: usize = 2;
const MOST: usize = 4;
const DEPTH: usize = 6;
/// Levels above the leaves.
const MOST_LEVELS: usize = 5;
/// Entries of an inode.
const ROOT_ENTRIES: usize = 4;
/// A longer extent was never written, and is shorter by this.
const UNWRITTEN: u32 = 32768;
/// Blocks of an extent.
pub(crate) const LONGEST: u32 = 32767;
/// Extents that one change frees.
const FREED_AT_ONCE: usize = 8;
/// Blocks that a file can have.
pub(crate) const MOST_BLOCKS: u64 = u32::MAX as u64;
/// Nodes that an insertion may have to split.
const ROUNDS: usize = 4 * (MOST_LEVELS + 1);
/// Blocks of a file that lie in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) start: u64,
    pub(crate) is_unwritten: bool,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len
    }

    /// The part of it in `from..to`.
    pub(crate) fn part(&self, from: u64, to: u64) -> Extent {
        let (at, end) = (self.at.max(from), self.end().min(to));
        Extent { at, len: end.saturating_sub(at), start: self.start + (at - self.at), ..*self }
    }

    /// Whether another goes on where it ends, and there may be one in place of both.
    fn joins(&self, next: &Extent) -> bool {
        self.end() == next.at
            && self.start + self.len == next.start
            && self.is_unwritten == next.is_unwritten
            && self.len + next.len <= u64::from(LONGEST)
    }
}

/// A node on the way to a block, and the entry that was taken.
#[derive(Clone, Copy, Default)]
struct Step {
    /// 0: the inode.
    block: u64,
    at: usize,
    count: usize,
    most: usize,
}

#[derive(Clone, Copy, Default)]
struct Path {
    steps: [Step; MOST_LEVELS + 1],
    depth: usize,
}

fn key(node: &[u8], at: usize) -> u64 {
    get32(node, HEAD + at * ENTRY).into()
}

fn set_key(node: &mut [u8], at: usize, key: u64) {
    put32(node, HEAD + at * ENTRY, key as u32);
}

fn child(node: &[u8], at: usize) -> u64 {
    let at = HEAD + at * ENTRY;
    u64::from(get32(node, at + 4)) | u64::from(get16(node, at + 8)) << 32
}

fn extent(node: &[u8], at: usize) -> Extent {
    let place = HEAD + at * ENTRY;
    let len = u32::from(get16(node, place + 4));
    let is_unwritten = len > UNWRITTEN;
    Extent {
        at: key(node, at),
        len: if is_unwritten { len - UNWRITTEN } else { len }.into(),
        start: u64::from(get32(node, place + 8)) | u64::from(get16(node, place + 6)) << 32,
        is_unwritten,
    }
}

fn put_extent(node: &mut [u8], at: usize, extent: &Extent) {
    let place = HEAD + at * ENTRY;
    let unwritten = if extent.is_unwritten { UNWRITTEN as u16 } else { 0 };
    put32(node, place, extent.at as u32);
    put16(node, place + 4, extent.len as u16 + unwritten);
    put16(node, place + 6, (extent.start >> 32) as u16);
    put32(node, place + 8, extent.start as u32);
}

fn put_child(node: &mut [u8], at: usize, key: u64, block: u64) {
    let place = HEAD + at * ENTRY;
    put32(node, place, key as u32);
    put32(node, place + 4, block as u32);
    put16(node, place + 8, (block >> 32) as u16);
    put16(node, place + 10, 0);
}

fn put_header(node: &mut [u8], count: usize, most: usize, depth: usize) {
    put16(node, 0, MAGIC);
    put16(node, COUNT, count as u16);
    put16(node, MOST, most as u16);
    put16(node, DEPTH, depth as u16);
    put32(node, 8, 0);
}

/// Makes room for an entry; there is some.
fn open(node: &mut [u8], at: usize) {
    let count = usize::from(get16(node, COUNT));
    node.copy_within(HEAD + at * ENTRY..HEAD + count * ENTRY, HEAD + (at + 1) * ENTRY);
    put16(node, COUNT, count as u16 + 1);
}

/// Takes an entry out.
fn close(node: &mut [u8], at: usize) {
    let count = usize::from(get16(node, COUNT));
    node.copy_within(HEAD + (at + 1) * ENTRY..HEAD + count * ENTRY, HEAD + at * ENTRY);
    put16(node, COUNT, count as u16 - 1);
}

/// Makes an inode's map an empty tree.
pub(crate) fn plant(map: &mut [u8]) {
    map.fill(0);
    put_header(map, 0, ROOT_ENTRIES, 0);
}

impl<D: Device> Volume<D> {
    fn extents_seal(&self, inode: &Inode) -> Seal {
        self.inode_seed(inode).map_or(Seal::None, Seal::Extents)
    }

    fn node<'a>(&'a mut self, inode: &'a Inode, block: u64) -> Result<&'a [u8]> {
        match block {
            0 => Ok(inode.map()),
            _ => self.store.read(block),
        }
    }

    fn edit_node<'a>(&'a mut self, inode: &'a mut Inode, block: u64) -> Result<&'a mut [u8]> {
        let seal = self.extents_seal(inode);
        match block {
            0 => Ok(inode.map_mut()),
            _ => self.store.edit_node(block, seal),
        }
    }

    /// Looks at a node that stands for `low..high` (I1).
    fn look_at_node(
        &mut self,
        inode: &Inode,
        block: u64,
        depth: usize,
        (low, high): (u64, u64),
    ) -> Result<(usize, usize)> {
        let mut is_ordered = false;
        if block != 0 {
            let seal = self.extents_seal(inode);
            let place = self.store.check(block, seal)?;
            is_ordered = self.store.cache.is_ordered(place);
        }
        let node = self.node(inode, block)?;
        let (count, most) = (usize::from(get16(node, COUNT)), usize::from(get16(node, MOST)));
        let is_right = get16(node, 0) == MAGIC
            && count <= most
            && HEAD + most * ENTRY <= node.len()
            && usize::from(get16(node, DEPTH)) == depth
            && (count > 0 || block == 0 && depth == 0);
        if !is_right {
            return Err(ErrorKind::Corrupted);
        }
        let end = |node: &[u8], at: usize| match depth {
            0 => extent(node, at).end(),
            _ => key(node, at) + 1,
        };
        if count > 0 && (key(node, 0) < low || end(node, count - 1) > high) {
            return Err(ErrorKind::Corrupted);
        }
        if is_ordered {
            return Ok((count, most));
        }
        let mut next = low;
        for at in 0..count {
            let node = self.node(inode, block)?;
            let (first, behind) = (key(node, at), end(node, at));
            let (start, len) = match depth {
                0 => (extent(node, at).start, extent(node, at).len),
                _ => (child(node, at), 1),
            };
            if first < next || len == 0 {
                return Err(ErrorKind::Corrupted);
            }
            self.may_be_files(start, len)?;
            next = behind;
        }
        if block != 0 {
            let place = self.store.place(block)?;
            self.store.cache.set_ordered(place);
        }
        Ok((count, most))
    }

    /// The way to the last entry at or before a block, or to the first.
    fn find_path(&mut self, inode: &Inode, at: u64) -> Result<Path> {
        let mut path = Path { depth: get16(inode.map(), DEPTH).into(), ..Path::default() };
        if path.depth > MOST_LEVELS {
            return Err(ErrorKind::Corrupted);
        }
        let (mut block, mut low, mut high) = (0, 0, MOST_BLOCKS + 1);
        for level in 0..=path.depth {
            let depth = path.depth - level;
            let (count, most) = self.look_at_node(inode, block, depth, (low, high))?;
            let node = self.node(inode, block)?;
            let (mut first, mut last) = (0, count);
            while first < last {
                let middle = (first + last) / 2;
                if key(node, middle) <= at {
                    first = middle + 1;
                } else {
                    last = middle;
                }
            }
            let taken = first.saturating_sub(1);
            path.steps[level] = Step { block, at: taken, count, most };
            if depth > 0 {
                low = key(node, taken);
                if taken + 1 < count {
                    high = key(node, taken + 1);
                }
                block = child(node, taken);
            }
        }
        Ok(path)
    }

    fn leaf_entry(&mut self, inode: &Inode, path: &Path) -> Result<Option<Extent>> {
        let leaf = path.steps[path.depth];
        if leaf.count == 0 {
            return Ok(None);
        }
        Ok(Some(extent(self.node(inode, leaf.block)?, leaf.at)))
    }

    /// The first block of what lies behind a path's leaf.
    fn next_key(&mut self, inode: &Inode, path: &Path) -> Result<Option<u64>> {
        for step in path.steps[..path.depth].iter().rev() {
            if step.at + 1 < step.count {
                return Ok(Some(key(self.node(inode, step.block)?, step.at + 1)));
            }
        }
        Ok(None)
    }

    /// The extent that has a block.
    pub(crate) fn extent_of(&mut self, inode: &Inode, block: u64) -> Result<Option<Extent>> {
        Ok(self.extent_before(inode, block)?.filter(|extent| block < extent.end()))
    }

    /// The extent that has a block, or the last before it.
    pub(crate) fn extent_before(&mut self, inode: &Inode, block: u64) -> Result<Option<Extent>> {
        let path = self.find_path(inode, block)?;
        let found = self.leaf_entry(inode, &path)?;
        Ok(found.filter(|extent| extent.at <= block))
    }

    /// The first extent that has a block in `from..to`.
    pub(crate) fn first_extent(
        &mut self,
        inode: &Inode,
        from: u64,
        to: u64,
    ) -> Result<Option<Extent>> {
        let mut at = from;
        loop {
            let path = self.find_path(inode, at)?;
            let leaf = path.steps[path.depth];
            let node = self.node(inode, leaf.block)?;
            let mut all = (leaf.at..leaf.count).map(|at| extent(node, at));
            if let Some(found) = all.find(|extent| extent.end() > from) {
                return Ok(Some(found).filter(|found| found.at < to));
            }
            match self.next_key(inode, &path)? {
                Some(next) if next < to && next > at => at = next,
                _ => return Ok(None),
            }
        }
    }

    /// The extents that have blocks in `from..to`, at most so many.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`]: there are more; I/O and damage.
    pub(crate) fn extents_of(
        &mut self,
        inode: &Inode,
        from: u64,
        to: u64,
        most: usize,
    ) -> Result<Vec<Extent>> {
        let (mut found, mut at) = (Vec::new(), from);
        loop {
            let path = self.find_path(inode, at)?;
            let leaf = path.steps[path.depth];
            let node = self.node(inode, leaf.block)?;
            for extent in (leaf.at..leaf.count).map(|at| extent(node, at)) {
                if extent.at >= to {
                    return Ok(found);
                }
                if extent.end() > from {
                    if found.len() == most {
                        return Err(ErrorKind::NoMemory);
                    }
                    found.push(extent);
                }
            }
            match self.next_key(inode, &path)? {
                Some(next) if next < to && next > at => at = next,
                _ => return Ok(found),
            }
        }
    }

    /// The last extent that begins before a block.
    fn last_before(&mut self, inode: &Inode, block: u64) -> Result<Option<(Path, Extent)>> {
        let mut before = block;
        while before > 0 {
            let path = self.find_path(inode, before - 1)?;
            match self.leaf_entry(inode, &path)? {
                Some(extent) if extent.at < before => return Ok(Some((path, extent))),
                _ => {}
            }
            // The leaf begins later than the entry above says: what is before that?
            let above = path.steps[..path.depth].iter().rev().find(|step| step.at > 0);
            let Some(step) = above else { return Ok(None) };
            before = key(self.node(inode, step.block)?, step.at).min(before - 1);
        }
        Ok(None)
    }

    /// After a leaf's first entry has changed: what is above says where it begins.
    fn fix_keys(&mut self, inode: &mut Inode, path: &Path, level: usize, first: u64) -> Result<()> {
        let mut level = level;
        while level > 0 && path.steps[level].at == 0 {
            level -= 1;
            let step = path.steps[level];
            set_key(self.edit_node(inode, step.block)?, step.at, first);
        }
        Ok(())
    }

    /// Adds an extent where none is.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], [`ErrorKind::FileTooLarge`]; I/O and damage.
    pub(crate) fn add_extent(&mut self, inode: &mut Inode, new: Extent) -> Result<()> {
        for _ in 0..ROUNDS {
            let path = self.find_path(inode, new.at)?;
            let leaf = path.steps[path.depth];
            let node = self.node(inode, leaf.block)?;
            let is_behind = leaf.count > 0 && key(node, leaf.at) <= new.at;
            let at = leaf.at + usize::from(is_behind);
            let left = is_behind.then(|| extent(node, leaf.at));
            let right = (at < leaf.count).then(|| extent(node, at));
            if left.is_some_and(|left| left.end() > new.at)
                || right.is_some_and(|right| right.at < new.end())
            {
                return Err(ErrorKind::Corrupted);
            }
            if let Some(left) = left.filter(|left| left.joins(&new)) {
                let longer = Extent { len: left.len + new.len, ..left };
                put_extent(self.edit_node(inode, leaf.block)?, leaf.at, &longer);
                return Ok(());
            }
            let joined = right.filter(|right| new.joins(right));
            if joined.is_none() && leaf.count == leaf.most {
                self.split(inode, &path, at == leaf.count)?;
                continue;
            }
            let node = self.edit_node(inode, leaf.block)?;
            match joined {
                Some(right) => {
                    put_extent(node, at, &Extent { len: new.len + right.len, ..new });
                }
                None => {
                    open(node, at);
                    put_extent(node, at, &new);
                }
            }
            if at == 0 {
                self.fix_keys(inode, &path, path.depth, new.at)?;
            }
            return Ok(());
        }
        Err(ErrorKind::Corrupted)
    }

    /// Makes room in the lowest node of a full path that can be split, or puts a level below the
    /// inode.
    fn split(&mut self, inode: &mut Inode, path: &Path, is_append: bool) -> Result<()> {
        let seal = self.extents_seal(inode);
        let tail = if self.layout.sums.is_some() { 4 } else { 0 };
        let most = (self.layout.block_size - HEAD - tail) / ENTRY;
        let is_full = |level: usize| path.steps[level].count == path.steps[level].most;
        let mut level = path.depth;
        while level > 0 && is_full(level - 1) {
            level -= 1;
        }
        if level == 0 && path.depth == MOST_LEVELS {
            return Err(ErrorKind::FileTooLarge);
        }
        let block = self.take_own_block(inode)?;
        let Step { block: old, count, .. } = path.steps[level];
        if level == 0 {
            let mut root = [0; HEAD + ROOT_ENTRIES * ENTRY];
            root.copy_from_slice(inode.map());
            let node = self.store.fresh(block, seal);
            put(node, 0, &root);
            put_header(node, count, most, path.depth);
            put_header(inode.map_mut(), 1, ROOT_ENTRIES, path.depth + 1);
            put_child(inode.map_mut(), 0, key(&root, 0), block);
            return Ok(());
        }
        let from = if is_append { count - 1 } else { count / 2 };
        let node = self.edit_node(inode, old)?;
        let moved = node[HEAD + from * ENTRY..HEAD + count * ENTRY].to_vec();
        put16(node, COUNT, from as u16);
        let node = self.store.fresh(block, seal);
        put_header(node, count - from, most, path.depth - level);
        put(node, HEAD, &moved);
        let above = path.steps[level - 1];
        let first = get32(&moved, 0);
        let node = self.edit_node(inode, above.block)?;
        open(node, above.at + 1);
        put_child(node, above.at + 1, first.into(), block);
        Ok(())
    }

    /// Takes blocks out of an extent, which the path leads to; they aren't freed.
    fn cut(&mut self, inode: &mut Inode, path: &Path, old: Extent, gone: Extent) -> Result<()> {
        let leaf = path.steps[path.depth];
        let (left, right) = (old.part(0, gone.at.max(old.at)), (gone.end() < old.end()));
        let right = right.then(|| old.part(gone.end(), u64::MAX));
        match (left.len, right) {
            (0, None) => self.remove_entry(inode, path),
            (0, Some(right)) => {
                put_extent(self.edit_node(inode, leaf.block)?, leaf.at, &right);
                self.fix_keys(inode, path, path.depth, right.at)
            }
            (_, right) => {
                put_extent(self.edit_node(inode, leaf.block)?, leaf.at, &left);
                right.map_or(Ok(()), |right| self.add_extent(inode, right))
            }
        }
    }

    /// Takes a path's last entry out, and the nodes that have none then.
    fn remove_entry(&mut self, inode: &mut Inode, path: &Path) -> Result<()> {
        for level in (0..=path.depth).rev() {
            let step = path.steps[level];
            let node = self.edit_node(inode, step.block)?;
            close(node, step.at);
            if step.count > 1 {
                let first = key(node, 0);
                return self.fix_keys(inode, path, level, first);
            }
            if level > 0 {
                self.free_blocks(step.block, 1)?;
                self.count_blocks(inode, -1)?;
            }
        }
        plant(inode.map_mut());
        Ok(())
    }

    /// Frees the last blocks that a file has in `from..to`, as many as one change may. Returns
    /// where they began; `None`: all are freed.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]: an extent is to be cut in two, and there is no room; I/O and damage.
    pub(crate) fn free_last(
        &mut self,
        inode: &mut Inode,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>> {
        let mut left = FREED_AT_ONCE as u64 * self.layout.group_blocks;
        let mut end = to;
        for _ in 0..FREED_AT_ONCE {
            let found = self.last_before(inode, end)?.filter(|(_, extent)| extent.end() > from);
            let Some((path, extent)) = found else { return Ok(None) };
            let gone = extent.part(from, end);
            let gone = gone.part(gone.end() - gone.len.min(left), u64::MAX);
            self.cut(inode, &path, extent, gone)?;
            self.free_blocks(gone.start, gone.len)?;
            self.count_blocks(inode, -(gone.len as i64))?;
            end = gone.at;
            left -= gone.len;
            if left == 0 {
                break;
            }
        }
        Ok(Some(end))
    }

    /// Calls a part of an extent written that wasn't.
    pub(crate) fn call_written(&mut self, inode: &mut Inode, part: Extent) -> Result<()> {
        let path = self.find_path(inode, part.at)?;
        let found = self.leaf_entry(inode, &path)?.ok_or(ErrorKind::Corrupted)?;
        let written = Extent { is_unwritten: false, ..part };
        if found == part {
            let leaf = path.steps[path.depth];
            put_extent(self.edit_node(inode, leaf.block)?, leaf.at, &written);
            return Ok(());
        }
        if found.part(part.at, part.end()) != part {
            return Err(ErrorKind::Corrupted);
        }
        self.cut(inode, &path, found, part)?;
        self.add_extent(inode, written)
    }

    /// A block for a file's own metadata.
    pub(crate) fn take_own_block(&mut self, inode: &mut Inode) -> Result<u64> {
        let group = (inode.ino - 1) / self.layout.group_inodes;
        let (block, _) = self.take_blocks(self.layout.start(group), 1)?;
        self.count_blocks(inode, 1)?;
        Ok(block)
    }
}
