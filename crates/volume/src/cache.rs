//! The one cache of metadata: blocks of the disk that were read lately, that a transaction has
//! changed, and that the journal has and their own place on the disk hasn't.
//!
//! ```text
//!   read --> clean --- edit ----> waiting --- commit ---> logged --- checkpoint ---> clean
//!              |                     ^                      |
//!              +-- eldest goes       +-------- edit --------+
//! ```
//! A change of the volume edits blocks, each of which is copied before its first edit: a change
//! that can't go on is [taken back](Cache::take_back), and all is as it was before.
//!
//! I1: a block may go exactly if it neither waits nor is logged. I2: there are no more blocks than
//! the limit, but for those that have to stay and the one used last. I3: a checkpoint comes when
//! nothing waits, so what a block holds then is what was committed.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::bytes::{get16, put32};
use crate::sums::crc32c;

/// Places that are found without the tree.
const RECENT: usize = 256;
/// Copies of blocks that are kept for the next change.
const SPARE: usize = 16;
/// The number of no block.
const NONE: u64 = u64::MAX;

/// Which checksum a block gets before it is committed; each begins with the number that is here.
#[derive(Clone, Copy)]
pub(crate) enum Seal {
    None,
    /// A directory's entries.
    Names(u32),
    /// A directory's index, of which the entries begin there.
    Index(u32, usize),
    /// A node of an extent tree.
    Extents(u32),
    /// Attributes of an inode.
    Attributes(u32),
}

/// Where a node of an extent tree says how many entries it may have; where a block of attributes
/// has its checksum.
const EXTENTS_MOST: usize = 4;
const ATTRIBUTES_SUM: usize = 16;

impl Seal {
    /// Where the checksum lies in a block, and what it is now.
    pub(crate) fn sum(self, bytes: &[u8]) -> Option<(usize, u32)> {
        let part = |end: usize| bytes.get(..end);
        match self {
            Seal::None => None,
            Seal::Names(seed) => {
                let end = bytes.len() - 12;
                Some((end + 8, crc32c(seed, part(end)?)))
            }
            Seal::Index(seed, at) => {
                let limit = usize::from(get16(bytes, at));
                let count = usize::from(get16(bytes, at + 2));
                let tail = at + 8 * limit;
                let sum = crc32c(seed, part(at + 8 * count)?);
                let sum = crc32c(crc32c(sum, bytes.get(tail..tail + 4)?), &[0; 4]);
                (tail + 8 <= bytes.len()).then_some((tail + 4, sum))
            }
            Seal::Extents(seed) => {
                let tail = 12 + 12 * usize::from(get16(bytes, EXTENTS_MOST));
                (tail + 4 <= bytes.len()).then_some((tail, crc32c(seed, part(tail)?)))
            }
            Seal::Attributes(seed) => {
                let sum = crc32c(crc32c(seed, part(ATTRIBUTES_SUM)?), &[0; 4]);
                Some((ATTRIBUTES_SUM, crc32c(sum, bytes.get(ATTRIBUTES_SUM + 4..)?)))
            }
        }
    }
}

struct Block {
    number: u64,
    bytes: Box<[u8]>,
    /// When it was used last.
    used: u64,
    /// The change that has its copy, if it is the one going on.
    change: u64,
    is_waiting: bool,
    is_logged: bool,
    /// Whose checksums are known to be right: the block's, or that of one inode by bit.
    checked: u32,
    /// It is a node of extents whose entries were looked at, and nothing else has been written
    /// there.
    is_ordered: bool,
    seal: Seal,
}

/// What a block was before a change.
struct Before {
    number: u64,
    /// Nothing if it wasn't here.
    bytes: Option<Box<[u8]>>,
    is_waiting: bool,
    is_revoked: bool,
}

/// See the module.
pub(crate) struct Cache {
    blocks: Vec<Block>,
    places: BTreeMap<u64, u32>,
    recent: Box<[u32]>,
    unused: Vec<u32>,
    waiting: BTreeSet<u64>,
    logged: BTreeSet<u64>,
    /// Blocks that are logged and were given away: the journal is to say so.
    revoked: BTreeSet<u64>,
    before: Vec<Before>,
    spare: Vec<Box<[u8]>>,
    change: u64,
    clock: u64,
    limit: usize,
    block_size: usize,
}

impl Cache {
    /// With room for so many blocks.
    pub(crate) fn new(limit: usize, block_size: usize) -> Cache {
        Cache {
            blocks: Vec::new(),
            places: BTreeMap::new(),
            recent: alloc::vec![0; RECENT].into_boxed_slice(),
            unused: Vec::new(),
            waiting: BTreeSet::new(),
            logged: BTreeSet::new(),
            revoked: BTreeSet::new(),
            before: Vec::new(),
            spare: Vec::new(),
            change: 1,
            clock: 0,
            limit: limit.max(4),
            block_size,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Blocks that have to stay.
    pub(crate) fn held(&self) -> usize {
        self.waiting.len() + self.logged.len()
    }

    /// Blocks that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.places.contains_key(&number)
    }

    /// The place of a block, which is used now, if it is here.
    pub(crate) fn find(&mut self, number: u64) -> Option<usize> {
        let near = &mut self.recent[number as usize % RECENT];
        let mut place = *near as usize;
        if self.blocks.get(place).is_none_or(|block| block.number != number) {
            place = *self.places.get(&number)? as usize;
            *near = place as u32;
        }
        self.clock += 1;
        self.blocks[place].used = self.clock;
        Some(place)
    }

    /// Puts a block in that isn't here.
    pub(crate) fn learn(&mut self, number: u64, bytes: Box<[u8]>) -> usize {
        if self.places.len() >= self.limit {
            self.drop_eldest(self.limit - self.limit / 4);
        }
        self.clock += 1;
        let block = Block {
            number,
            bytes,
            used: self.clock,
            change: 0,
            is_waiting: false,
            is_logged: false,
            checked: 0,
            is_ordered: false,
            seal: Seal::None,
        };
        let place = match self.unused.pop() {
            Some(place) => {
                self.blocks[place as usize] = block;
                place
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        self.places.insert(number, place);
        place as usize
    }

    pub(crate) fn bytes(&self, place: usize) -> &[u8] {
        &self.blocks[place].bytes
    }

    pub(crate) fn checked(&self, place: usize) -> u32 {
        self.blocks[place].checked
    }

    pub(crate) fn set_checked(&mut self, place: usize, bits: u32) {
        self.blocks[place].checked |= bits;
    }

    pub(crate) fn is_ordered(&self, place: usize) -> bool {
        self.blocks[place].is_ordered
    }

    pub(crate) fn set_ordered(&mut self, place: usize) {
        self.blocks[place].is_ordered = true;
    }

    pub(crate) fn set_seal(&mut self, place: usize, seal: Seal) {
        self.blocks[place].seal = seal;
    }

    /// A block's bytes, to be changed; they wait for a commit from now on.
    pub(crate) fn edit(&mut self, place: usize) -> &mut [u8] {
        self.blocks[place].is_ordered = false;
        self.edit_node(place)
    }

    /// Like [`edit`](Self::edit), by who keeps a node's entries in order.
    pub(crate) fn edit_node(&mut self, place: usize) -> &mut [u8] {
        let block = &mut self.blocks[place];
        if block.change != self.change {
            let mut bytes = match self.spare.pop() {
                Some(bytes) => bytes,
                None => alloc::vec![0; self.block_size].into_boxed_slice(),
            };
            bytes.copy_from_slice(&block.bytes);
            self.before.push(Before {
                number: block.number,
                bytes: Some(bytes),
                is_waiting: block.is_waiting,
                is_revoked: self.revoked.remove(&block.number),
            });
            block.change = self.change;
        }
        if !block.is_waiting {
            block.is_waiting = true;
            self.waiting.insert(block.number);
        }
        &mut block.bytes
    }

    /// A block whose bytes were of no account, and are 0 now.
    pub(crate) fn fresh(&mut self, number: u64) -> usize {
        let place = match self.find(number) {
            Some(place) => {
                self.edit(place).fill(0);
                place
            }
            None => {
                let bytes = alloc::vec![0; self.block_size].into_boxed_slice();
                let place = self.learn(number, bytes);
                let is_revoked = self.revoked.remove(&number);
                self.before.push(Before { number, bytes: None, is_waiting: false, is_revoked });
                let block = &mut self.blocks[place];
                block.change = self.change;
                block.is_waiting = true;
                self.waiting.insert(number);
                place
            }
        };
        let block = &mut self.blocks[place];
        (block.checked, block.seal) = (u32::MAX, Seal::None);
        place
    }

    /// Begins a change, which is all or nothing.
    pub(crate) fn begin(&mut self) {
        self.change += 1;
        while let Some(before) = self.before.pop() {
            self.spare.extend(before.bytes);
        }
        self.spare.truncate(SPARE);
    }

    /// Makes all blocks what they were before the change.
    pub(crate) fn take_back(&mut self) {
        while let Some(Before { number, bytes, is_waiting, is_revoked }) = self.before.pop() {
            if is_revoked {
                self.revoked.insert(number);
            }
            let Some(place) = self.find(number) else { continue };
            let Some(bytes) = bytes else {
                self.remove(number);
                continue;
            };
            let block = &mut self.blocks[place];
            (block.bytes, block.is_waiting, block.change) = (bytes, is_waiting, 0);
            block.is_ordered = false;
            if !is_waiting {
                self.waiting.remove(&number);
            }
        }
    }

    /// Forgets a run of blocks: they are the host's from now on.
    pub(crate) fn give_away(&mut self, start: u64, len: u64) {
        let here: Vec<u64> = self.places.range(start..start + len).map(|(&it, _)| it).collect();
        for number in here {
            if self.logged.contains(&number) {
                self.revoked.insert(number);
            }
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(place) = self.places.remove(&number) else { return };
        let block = &mut self.blocks[place as usize];
        block.number = NONE;
        block.bytes = Box::default();
        if block.is_waiting {
            self.waiting.remove(&number);
        }
        if block.is_logged {
            self.logged.remove(&number);
        }
        self.unused.push(place);
    }

    /// Gives all blocks that wait their checksums.
    pub(crate) fn seal(&mut self) {
        for number in &self.waiting {
            let Some(&place) = self.places.get(number) else { continue };
            let block = &mut self.blocks[place as usize];
            if let Some((at, sum)) = block.seal.sum(&block.bytes) {
                put32(&mut block.bytes, at, sum);
            }
        }
    }

    /// The blocks that wait, ascending.
    pub(crate) fn waiting_blocks(&self) -> Vec<u64> {
        self.waiting.iter().copied().collect()
    }

    /// The blocks that the journal is to revoke.
    pub(crate) fn revoked(&self) -> Vec<u64> {
        self.revoked.iter().copied().collect()
    }

    /// The bytes of a block that is here.
    pub(crate) fn known(&self, number: u64) -> Option<&[u8]> {
        self.places.get(&number).map(|&place| &*self.blocks[place as usize].bytes)
    }

    /// What waited is in the journal.
    pub(crate) fn committed(&mut self) {
        while let Some(number) = self.waiting.pop_first() {
            let Some(&place) = self.places.get(&number) else { continue };
            let block = &mut self.blocks[place as usize];
            block.is_waiting = false;
            block.is_logged = true;
            self.logged.insert(number);
        }
        self.revoked.clear();
        self.begin();
    }

    /// Puts the first run of logged blocks into `to`; says which is the first, and how many.
    pub(crate) fn first_logged(&self, to: &mut [u8]) -> Option<(u64, usize)> {
        let &first = self.logged.first()?;
        let mut count = 0;
        for (part, number) in to.chunks_exact_mut(self.block_size).zip(first..) {
            if !self.logged.contains(&number) {
                break;
            }
            part.copy_from_slice(self.known(number)?);
            count += 1;
        }
        Some((first, count))
    }

    /// The disk has a run of logged blocks in their places.
    pub(crate) fn written(&mut self, first: u64, count: usize) {
        for number in first..first + count as u64 {
            self.logged.remove(&number);
            if let Some(&place) = self.places.get(&number) {
                self.blocks[place as usize].is_logged = false;
            }
        }
    }

    /// The journal is empty: no block of it has to be revoked.
    pub(crate) fn checkpointed(&mut self) {
        self.revoked.clear();
        self.drop_eldest(self.limit);
    }

    /// Drops the eldest blocks that may go, as long as there are more than so many.
    pub(crate) fn drop_eldest(&mut self, most: usize) {
        let excess = self.places.len().saturating_sub(most);
        if excess == 0 {
            return;
        }
        let may_go = |block: &&Block| !block.is_waiting && !block.is_logged && block.number != NONE;
        let ages = self.blocks.iter().filter(may_go).map(|block| (block.used, block.number));
        let mut ages: Vec<(u64, u64)> = ages.collect();
        ages.sort_unstable();
        for &(_, number) in ages.iter().take(excess) {
            self.remove(number);
        }
    }
}
