//! Replays a journal that a crash has left: in three passes over the log, from where its superblock
//! says that it begins to the last transaction that ends in a commit record.
//!
//! 1. How many transactions are whole. 2. Which blocks they revoke, and by which transaction at
//!    last. 3. The blocks go to their places, but for those that a later transaction revokes.
//!
//! The log is called empty when all of that is durable: a machine that goes off in between begins
//! again. What is in the log is an enemy's: a pass reads no block twice, and all that is kept is
//! a list of revoked blocks, which has a bound.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::journal::{
    get, mark, place, put, read_superblock, COMMIT, COMMIT_SUM, DESCRIPTOR, ESCAPED, FIRST, HEAD,
    JOURNAL_INCOMPAT, LAST, LEN, LONG, MAGIC, REVOKE, SAME_UUID, SEQUENCE, SHORT_SUMS, START, SUMS,
    TAIL, UUID,
};
use crate::layout::{Layout, RECOVER};
use crate::sums::{crc32c, START as SUM_START};
use crate::{Device, ErrorKind, Result, Run};

/// Blocks that a log may revoke; each takes 16 bytes of memory.
const MOST_REVOKED: usize = 1 << 19;

struct Log<'a, D> {
    device: &'a mut D,
    layout: &'a Layout,
    runs: &'a [Run],
    superblock: Box<[u8]>,
    first: u32,
    len: u32,
    features: u32,
    seed: u32,
    /// Blocks and the transactions that revoke them; sorted when all are known.
    revoked: Vec<(u64, u32)>,
}

/// What a pass does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Count,
    Revoke,
    Write,
}

/// Replays the journal in these runs, if there is something in it, and says in the volume's
/// superblock that there is nothing more. Returns whether there was something.
///
/// # Errors
/// [`ErrorKind::Corrupted`], [`ErrorKind::UnsupportedFeature`], [`ErrorKind::NoMemory`]; I/O.
pub(crate) fn replay<D: Device>(device: &mut D, layout: &Layout, runs: &[Run]) -> Result<bool> {
    let superblock = read_superblock(device, layout, runs)?;
    if get(&superblock, START) == 0 {
        return Ok(false);
    }
    let seed = crc32c(SUM_START, &superblock[UUID..UUID + 16]);
    let mut log = Log {
        first: get(&superblock, FIRST),
        len: get(&superblock, LEN),
        features: get(&superblock, JOURNAL_INCOMPAT),
        seed,
        revoked: Vec::new(),
        device,
        layout,
        runs,
        superblock,
    };
    let end = log.pass(Pass::Count, None)?;
    log.pass(Pass::Revoke, Some(end))?;
    log.sort();
    log.pass(Pass::Write, Some(end))?;
    log.device.flush().map_err(|_| ErrorKind::Io)?;
    // What is left of the transaction that didn't end is not to be taken for one.
    log.empty(end.wrapping_add(1))?;
    mark(log.device, |incompat| incompat & !RECOVER)
        .and_then(|()| log.device.flush())
        .map_err(|_| ErrorKind::Io)?;
    Ok(true)
}

impl<D: Device> Log<'_, D> {
    fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    fn read(&mut self, block: u32, to: &mut [u8]) -> Result<()> {
        let at = place(self.runs, self.layout.block_size, block);
        self.device.read(at, to).map_err(|_| ErrorKind::Io)
    }

    fn next(&self, block: u32) -> u32 {
        if block + 1 >= self.len {
            self.first
        } else {
            block + 1
        }
    }

    /// Goes through all transactions before `end`; without one through all that are whole. Returns
    /// the number of the one behind.
    fn pass(&mut self, pass: Pass, end: Option<u32>) -> Result<u32> {
        let mut sequence = get(&self.superblock, SEQUENCE);
        let mut block = get(&self.superblock, START);
        if block < self.first || block >= self.len {
            return Err(ErrorKind::Corrupted);
        }
        let mut left = self.len - self.first;
        let mut record = alloc::vec![0; self.layout.block_size];
        while left > 0 && end != Some(sequence) {
            self.read(block, &mut record)?;
            if get(&record, 0) != MAGIC || get(&record, 8) != sequence {
                break;
            }
            (block, left) = (self.next(block), left - 1);
            match get(&record, 4) {
                DESCRIPTOR if self.is_right(&mut record, None) => {
                    for tag in self.tags(&record) {
                        if left == 0 {
                            break;
                        }
                        if pass == Pass::Write {
                            self.write(block, sequence, tag)?;
                        }
                        (block, left) = (self.next(block), left - 1);
                    }
                }
                REVOKE if self.is_right(&mut record, None) => {
                    if pass == Pass::Revoke {
                        self.revoke(sequence, &record)?;
                    }
                }
                COMMIT if self.is_right(&mut record, Some(COMMIT_SUM)) => {
                    sequence = sequence.wrapping_add(1);
                }
                _ => break,
            }
        }
        match end {
            Some(end) if end != sequence => Err(ErrorKind::Corrupted),
            _ => Ok(sequence),
        }
    }

    /// Whether a record has its checksum, which is at its end if nothing else is said.
    fn is_right(&self, record: &mut [u8], at: Option<usize>) -> bool {
        if !self.has(SHORT_SUMS | SUMS) {
            return true;
        }
        let at = at.unwrap_or(record.len() - TAIL);
        let found = get(record, at);
        put(record, at, 0);
        found == crc32c(self.seed, record)
    }

    /// The blocks that a descriptor names: numbers, flags, checksums.
    fn tags(&self, record: &[u8]) -> Vec<(u64, u32, u32)> {
        let size = match (self.has(SUMS), self.has(LONG), self.has(SHORT_SUMS)) {
            (true, ..) => 16,
            (_, true, false) => 12,
            (_, true, true) => 14,
            (_, false, true) => 10,
            (_, false, false) => 8,
        };
        let tail = if self.has(SHORT_SUMS | SUMS) { TAIL } else { 0 };
        let (mut at, mut tags) = (HEAD, Vec::new());
        while at + size <= record.len() - tail {
            let word = get(record, at + 4);
            let high = if self.has(LONG) { u64::from(get(record, at + 8)) << 32 } else { 0 };
            let (flags, sum) = match self.has(SUMS) {
                true => (word, get(record, at + 12)),
                false => (word & 0xffff, word >> 16),
            };
            tags.push((high | u64::from(get(record, at)), flags, sum));
            if flags & LAST != 0 {
                break;
            }
            at += size + if flags & SAME_UUID == 0 { 16 } else { 0 };
        }
        tags
    }

    fn revoke(&mut self, sequence: u32, record: &[u8]) -> Result<()> {
        let size = if self.has(LONG) { 8 } else { 4 };
        let end = (get(record, HEAD) as usize).min(record.len());
        let entries = record.get(HEAD + 4..end).unwrap_or_default();
        for entry in entries.chunks_exact(size) {
            let block = match size {
                8 => u64::from(get(entry, 0)) << 32 | u64::from(get(entry, 4)),
                _ => get(entry, 0).into(),
            };
            if self.revoked.len() == MOST_REVOKED {
                self.sort();
            }
            if self.revoked.len() == MOST_REVOKED {
                return Err(ErrorKind::NoMemory);
            }
            self.revoked.push((block, self.age(sequence)));
        }
        Ok(())
    }

    /// How many transactions of the log are before one.
    fn age(&self, sequence: u32) -> u32 {
        sequence.wrapping_sub(get(&self.superblock, SEQUENCE))
    }

    /// Leaves the last transaction that revokes each block.
    fn sort(&mut self) {
        self.revoked.sort_unstable();
        self.revoked.dedup_by(|next, before| {
            let is_same = next.0 == before.0;
            if is_same {
                before.1 = next.1;
            }
            is_same
        });
    }

    fn write(&mut self, from: u32, sequence: u32, tag: (u64, u32, u32)) -> Result<()> {
        let (block, flags, sum) = tag;
        let found = self.revoked.binary_search_by_key(&block, |&(block, _)| block);
        if found.is_ok_and(|at| self.revoked[at].1 >= self.age(sequence)) {
            return Ok(());
        }
        let (superblock, _) = self.layout.superblock();
        if !self.layout.has(block) && block != superblock {
            return Err(ErrorKind::Corrupted);
        }
        let mut bytes = alloc::vec![0; self.layout.block_size];
        self.read(from, &mut bytes)?;
        let is_right = match (self.has(SUMS), self.has(SHORT_SUMS)) {
            (false, false) => true,
            (is_long, _) => {
                let all = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), &bytes);
                sum == if is_long { all } else { all & 0xffff }
            }
        };
        if !is_right {
            return Err(ErrorKind::Corrupted);
        }
        if flags & ESCAPED != 0 {
            put(&mut bytes, 0, MAGIC);
        }
        let at = block * self.layout.block_size as u64;
        self.device.write(at, &bytes).map_err(|_| ErrorKind::Io)
    }

    /// Calls the log empty; `sequence` is the next transaction's number.
    fn empty(&mut self, sequence: u32) -> Result<()> {
        put(&mut self.superblock, SEQUENCE, sequence);
        put(&mut self.superblock, START, 0);
        crate::journal::seal(&mut self.superblock, self.features & (SHORT_SUMS | SUMS) != 0);
        let at = place(self.runs, self.layout.block_size, 0);
        self.device.write(at, &self.superblock).map_err(|_| ErrorKind::Io)?;
        self.device.flush().map_err(|_| ErrorKind::Io)
    }
}
