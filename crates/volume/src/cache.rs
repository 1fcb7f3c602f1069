//! The one cache of metadata: lines of the disk that were read lately, that a transaction has
//! changed, and that the journal has and their own place on the disk hasn't.
//!
//! ```text
//!   read --> known --- write ---> waiting --- commit ---> logged --- checkpoint ---> known
//!              |                     ^                      |
//!              +-- eldest goes       +-------- write -------+
//! ```
//! A sector that waits or is logged stays in memory. I1: a line has an age, and may go, exactly if
//! none of its sectors waits or is logged. I2: there are no more lines than the limit, but for
//! those that have to stay and the one used last. I3: a checkpoint comes when nothing waits, so
//! what a line holds then is what was committed.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

pub(crate) const SECTOR: u64 = 512;
/// Bytes that the cache keeps as one.
pub(crate) const LINE: usize = 4096;
/// Sectors of a line, as bits.
const WHOLE: u8 = 0xff;

/// Bytes of a line, as far as they are known.
struct Line {
    age: Option<u64>,
    /// Sectors that are known; that the journal doesn't have, and the disk; that the journal has,
    /// and not their own place. As bits.
    known: u8,
    waiting: u8,
    logged: u8,
    bytes: Box<[u8]>,
}

/// In which order lines were used last that may go.
#[derive(Default)]
struct Ages {
    clock: u64,
    lines: BTreeMap<u64, u64>,
}

impl Ages {
    /// A line is used: its age.
    fn enter(&mut self, line: u64) -> u64 {
        self.clock += 1;
        self.lines.insert(self.clock, line);
        self.clock
    }

    fn leave(&mut self, age: u64) {
        self.lines.remove(&age);
    }
}

impl Line {
    /// Has an age exactly if it may go.
    fn settle(&mut self, line: u64, ages: &mut Ages) {
        match (self.waiting | self.logged, self.age) {
            (0, None) => self.age = Some(ages.enter(line)),
            (0, Some(_)) | (_, None) => {}
            (_, Some(age)) => {
                ages.leave(age);
                self.age = None;
            }
        }
    }
}

/// See the module.
pub(crate) struct Cache {
    lines: BTreeMap<u64, Line>,
    ages: Ages,
    /// Lines of which sectors wait; are logged.
    waiting: BTreeSet<u64>,
    logged: BTreeSet<u64>,
    /// Blocks that are logged and were given away: the journal is to say so.
    revoked: BTreeSet<u64>,
    limit: usize,
    block_size: u64,
}

/// The sectors of a line in a range of its bytes, as bits.
fn sectors(range: &Range<usize>) -> u8 {
    let (from, to) = (range.start / SECTOR as usize, range.end / SECTOR as usize);
    (((1u16 << to) - (1u16 << from)) & 0xff) as u8
}

/// The lines of a range of bytes, and what of each is in it.
fn parts(from: u64, to: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    (from / LINE as u64..to.div_ceil(LINE as u64)).map(move |line| {
        let start = line * LINE as u64;
        let (from, to) = (from.max(start), to.min(start + LINE as u64));
        (line, (from - start) as usize..(to - start) as usize)
    })
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Cache {
        Cache {
            lines: BTreeMap::new(),
            ages: Ages::default(),
            waiting: BTreeSet::new(),
            logged: BTreeSet::new(),
            revoked: BTreeSet::new(),
            limit: limit.max(1),
            block_size: LINE as u64,
        }
    }

    pub(crate) fn set_block_size(&mut self, block_size: u64) {
        self.block_size = block_size;
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Lines that have to stay.
    pub(crate) fn held(&self) -> usize {
        self.lines.len() - self.ages.lines.len()
    }

    /// Blocks that wait, at most.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() * (LINE / self.block_size as usize)
    }

    /// The bytes of a range of a line, if they are known.
    pub(crate) fn get(&mut self, line: u64, range: Range<usize>) -> Option<&[u8]> {
        let Cache { lines, ages, .. } = self;
        let found = lines.get_mut(&line)?;
        if sectors(&range) & !found.known != 0 {
            return None;
        }
        if let Some(age) = &mut found.age {
            ages.leave(*age);
            *age = ages.enter(line);
        }
        Some(&found.bytes[range])
    }

    /// Corrects what was read from the disk by what it doesn't have yet.
    pub(crate) fn overlay(&self, at: u64, bytes: &mut [u8]) {
        for (line, range) in parts(at, at + bytes.len() as u64) {
            let Some(found) = self.lines.get(&line) else { continue };
            for from in range.step_by(SECTOR as usize) {
                let sector = from..from + SECTOR as usize;
                if (found.waiting | found.logged) & sectors(&sector) != 0 {
                    let to = (line * LINE as u64 + from as u64 - at) as usize;
                    bytes[to..to + SECTOR as usize].copy_from_slice(&found.bytes[sector]);
                }
            }
        }
    }

    /// Forgets what lies in a range: it is the host's from now on.
    pub(crate) fn forget(&mut self, from: u64, to: u64) {
        for (line, range) in parts(from, to) {
            let Some(found) = self.lines.get_mut(&line) else { continue };
            let mine = sectors(&range);
            for n in (0..8).filter(|n| found.logged & mine & 1 << n != 0) {
                self.revoked.insert((line * LINE as u64 + n * SECTOR) / self.block_size);
            }
            found.known &= !mine;
            found.waiting &= !mine;
            found.logged &= !mine;
            if found.waiting == 0 {
                self.waiting.remove(&line);
            }
            if found.logged == 0 {
                self.logged.remove(&line);
            }
            found.settle(line, &mut self.ages);
        }
    }

    pub(crate) fn has(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|found| found.known == WHOLE)
    }

    /// Takes over a line that was read, but what is known better.
    pub(crate) fn learn(&mut self, line: u64, bytes: &[u8]) {
        let found = self.line(line);
        for (n, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            if found.known & 1 << n == 0 {
                found.bytes[n * SECTOR as usize..][..sector.len()].copy_from_slice(sector);
            }
        }
        found.known = WHOLE;
    }

    /// A line, with room made for it if it is new.
    fn line(&mut self, line: u64) -> &mut Line {
        if !self.lines.contains_key(&line) {
            self.drop_eldest(self.limit - 1);
        }
        self.lines.entry(line).or_insert_with(|| Line {
            age: Some(self.ages.enter(line)),
            known: 0,
            waiting: 0,
            logged: 0,
            bytes: alloc::vec![0; LINE].into_boxed_slice(),
        })
    }

    /// Carries a write to the disk into the lines that are here.
    pub(crate) fn update(&mut self, at: u64, bytes: &[u8]) {
        self.put(at, bytes, |cache, line| cache.lines.get_mut(&line));
    }

    /// Keeps a write until it is committed.
    pub(crate) fn keep(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        self.put(at, bytes, |cache, line| Some(cache.line(line)));
        for (line, range) in parts(at, end) {
            let Some(found) = self.lines.get_mut(&line) else { continue };
            found.waiting |= sectors(&range);
            found.settle(line, &mut self.ages);
            self.waiting.insert(line);
        }
        for block in at / self.block_size..end.div_ceil(self.block_size) {
            self.revoked.remove(&block);
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8], line: impl Fn(&mut Cache, u64) -> Option<&mut Line>) {
        let mut rest = bytes;
        for (number, range) in parts(at, at + bytes.len() as u64) {
            let (part, behind) = rest.split_at(range.len());
            rest = behind;
            if let Some(found) = line(self, number) {
                found.known |= sectors(&range);
                found.bytes[range].copy_from_slice(part);
            }
        }
    }

    /// The blocks that wait, ascending.
    pub(crate) fn waiting_blocks(&self) -> Vec<u64> {
        let step = self.block_size as usize;
        let mut blocks = Vec::new();
        for (line, found) in self.waiting.iter().filter_map(|line| self.lines.get_key_value(line)) {
            for from in (0..LINE).step_by(step) {
                if found.waiting & sectors(&(from..from + step)) != 0 {
                    blocks.push((line * LINE as u64 + from as u64) / self.block_size);
                }
            }
        }
        blocks
    }

    /// The blocks that the journal is to revoke.
    pub(crate) fn revoked(&self) -> Vec<u64> {
        self.revoked.iter().copied().collect()
    }

    /// A block's line, and where it is in it.
    fn place(&self, block: u64) -> (u64, Range<usize>) {
        let at = block * self.block_size;
        let within = (at % LINE as u64) as usize;
        (at / LINE as u64, within..within + self.block_size as usize)
    }

    /// The line of a block that isn't known as a whole.
    pub(crate) fn incomplete(&self, block: u64) -> Option<u64> {
        let (line, range) = self.place(block);
        let known = self.lines.get(&line).map_or(0, |found| found.known);
        (sectors(&range) & !known != 0).then_some(line)
    }

    /// Copies a block that waits.
    pub(crate) fn copy(&self, block: u64, to: &mut [u8]) {
        let (line, range) = self.place(block);
        if let Some(found) = self.lines.get(&line) {
            to.copy_from_slice(&found.bytes[range]);
        }
    }

    /// What waited is in the journal.
    pub(crate) fn committed(&mut self) {
        while let Some(line) = self.waiting.pop_first() {
            let Some(found) = self.lines.get_mut(&line) else { continue };
            found.logged |= core::mem::take(&mut found.waiting);
            self.logged.insert(line);
        }
        self.revoked.clear();
    }

    /// Puts the first run of logged sectors into `to`; says where it goes, and how long it is.
    pub(crate) fn first_logged(&self, to: &mut [u8]) -> Option<(u64, usize)> {
        let &first = self.logged.first()?;
        let skip = self.lines.get(&first)?.logged.trailing_zeros() as usize;
        let (mut line, mut sector, mut len) = (first, skip, 0);
        while len < to.len() {
            let Some(found) = self.lines.get(&line) else { break };
            if found.logged & 1 << sector == 0 {
                break;
            }
            let part = &found.bytes[sector * SECTOR as usize..][..SECTOR as usize];
            to[len..len + part.len()].copy_from_slice(part);
            len += part.len();
            sector += 1;
            if sector == LINE / SECTOR as usize {
                (line, sector) = (line + 1, 0);
            }
        }
        Some((first * LINE as u64 + skip as u64 * SECTOR, len))
    }

    /// The disk has a run of logged sectors in its place.
    pub(crate) fn written(&mut self, at: u64, len: usize) {
        for (line, range) in parts(at, at + len as u64) {
            let Some(found) = self.lines.get_mut(&line) else { continue };
            found.logged &= !sectors(&range);
            if found.logged == 0 {
                self.logged.remove(&line);
            }
            found.settle(line, &mut self.ages);
        }
    }

    /// The journal is empty: no block of it has to be revoked.
    pub(crate) fn checkpointed(&mut self) {
        self.revoked.clear();
        self.drop_eldest(self.limit);
    }

    /// Drops the eldest lines that may go, as long as there are more than so many.
    pub(crate) fn drop_eldest(&mut self, most: usize) {
        while self.lines.len() > most {
            let Some((_, eldest)) = self.ages.lines.pop_first() else { break };
            self.lines.remove(&eldest);
        }
    }
}
