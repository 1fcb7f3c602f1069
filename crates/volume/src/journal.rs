//! The journal, in the format of jbd2: what a transaction has changed is written there as a whole
//! before any of it goes to its own place.
//!
//! ```text
//!   block 0      1 ...                                                          len
//!   superblock   revokes, descriptor, blocks ... commit | descriptor ... commit | free
//!                start, sequence: what is to be replayed
//! ```
//! A commit is a request for the blocks, or some if they are many, and one for the commit record,
//! with a flush between the two: the first makes the host's data durable too. Blocks stay in the
//! cache until the log has no room for one more transaction, or the cache none for it; then all go
//! to their places in ascending order (a checkpoint), and the log begins anew. So it never wraps.
//!
//! I1: the log's first block is written again only after a superblock that calls the log empty is
//! durable. I2: after each commit the log has room for a transaction of the largest size. I3: a
//! block that is logged and becomes the host's is revoked by the transaction that gives it away, so
//! that a replay doesn't write over the host's data.
//!
//! What a crash has left is replayed at the next mount (`replay`), before the log is taken into
//! use.
//!
//! The road not taken: a commit record in one request with the blocks, without a flush between
//! them (`journal_async_commit`). The data that it is to order must be durable first.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::layout::{Layout, INCOMPAT, RECOVER, SUPERBLOCK, SUPERBLOCK_AT};
use crate::store::Store;
use crate::sums::{crc32c, START as SUM_START};
use crate::{bytes, layout, Device, DeviceError, ErrorKind, Result, Run, Timestamp};

/// What each of its records begins with, and which there are.
pub(crate) const MAGIC: u32 = 0xc03b_3998;
pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const COMMIT: u32 = 2;
const OLD_SUPERBLOCK: u32 = 3;
const NEW_SUPERBLOCK: u32 = 4;
pub(crate) const REVOKE: u32 = 5;

/// Features; the checksum that one stands for.
const HAS_COMMIT_SUMS: u32 = 1;
const REVOKES: u32 = 1;
pub(crate) const LONG: u32 = 2;
pub(crate) const SHORT_SUMS: u32 = 8;
pub(crate) const SUMS: u32 = 16;
const CRC32C: u8 = 4;

/// Flags of a block in a descriptor: its first word is another here; it has no UUID; it is the
/// last.
pub(crate) const ESCAPED: u32 = 1;
pub(crate) const SAME_UUID: u32 = 2;
pub(crate) const LAST: u32 = 8;

/// Where its superblock holds what.
const TYPE: usize = 0x04;
pub(crate) const BLOCK_SIZE: usize = 0x0c;
pub(crate) const LEN: usize = 0x10;
pub(crate) const FIRST: usize = 0x14;
pub(crate) const SEQUENCE: usize = 0x18;
pub(crate) const START: usize = 0x1c;
const ERROR: usize = 0x20;
const JOURNAL_COMPAT: usize = 0x24;
pub(crate) const JOURNAL_INCOMPAT: usize = 0x28;
const JOURNAL_RO_COMPAT: usize = 0x2c;
pub(crate) const UUID: usize = 0x30;
const SUM_TYPE: usize = 0x50;
const SUM: usize = 0xfc;
/// Bytes of a journal's superblock that its checksum covers.
const SUMMED: usize = 1024;
/// Where a commit record holds what.
pub(crate) const COMMIT_SUM: usize = 16;
const COMMIT_SECONDS: usize = 48;
const COMMIT_NANOS: usize = 56;
/// Bytes of a record's head: what it is, and of which transaction.
pub(crate) const HEAD: usize = 12;
/// Bytes of a checksum at a record's end.
pub(crate) const TAIL: usize = 4;
/// The error that a journal remembers: EIO.
const FAILED: u32 = 0xffff_fffb;
/// A transaction takes this part of the log at most. There is room for half of the log, since
/// the last change of a transaction may go beyond.
const PART: u32 = 3;
/// Blocks of the smallest log, behind its superblock, as `mke2fs` makes it: a change of the largest
/// kind, which frees extents from a tree whose nodes have one entry each, takes some hundred.
const LEAST: u32 = 1023;

pub(crate) fn get(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_be_bytes(*it))
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes::put(bytes, at, &value.to_be_bytes());
}

/// See the module.
pub(crate) struct Journal {
    /// Where its file lies, without holes.
    runs: Vec<Run>,
    /// Its superblock's block.
    superblock: Box<[u8]>,
    first: u32,
    len: u32,
    /// The block that the next record goes to.
    next: u32,
    /// The next transaction's number.
    sequence: u32,
    has_sums: bool,
    has_long_numbers: bool,
    /// The volume's superblock says that there may be something to replay.
    is_marked: bool,
    /// A commit has failed: nothing more comes into the journal.
    pub(crate) is_aborted: bool,
}

/// Records on their way to the disk; what is adjacent goes in one request.
struct Records<'a, D> {
    device: &'a mut D,
    bytes: &'a mut [u8],
    at: u64,
    len: usize,
}

impl<D: Device> Records<'_, D> {
    fn add(&mut self, at: u64, block: &[u8]) -> core::result::Result<(), DeviceError> {
        if at != self.at + self.len as u64 || self.len + block.len() > self.bytes.len() {
            self.end()?;
            self.at = at;
        }
        self.bytes[self.len..self.len + block.len()].copy_from_slice(block);
        self.len += block.len();
        Ok(())
    }

    fn end(&mut self) -> core::result::Result<(), DeviceError> {
        match core::mem::take(&mut self.len) {
            0 => Ok(()),
            len => self.device.write(self.at, &self.bytes[..len]),
        }
    }
}

impl Journal {
    /// Takes a journal into use that has nothing to replay, of a file that lies in these runs.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`], [`ErrorKind::UnsupportedFeature`]; I/O.
    pub(crate) fn open<D: Device>(
        device: &mut D,
        layout: &Layout,
        runs: Vec<Run>,
    ) -> Result<Journal> {
        let superblock = read_superblock(device, layout, &runs)?;
        let is_new = get(&superblock, TYPE) == NEW_SUPERBLOCK;
        let mut journal = Journal {
            first: get(&superblock, FIRST),
            len: get(&superblock, LEN),
            next: get(&superblock, FIRST),
            sequence: get(&superblock, SEQUENCE).max(1),
            has_sums: is_new && layout.sums.is_some(),
            has_long_numbers: is_new && layout.descriptor_size >= 64,
            is_marked: false,
            is_aborted: false,
            runs,
            superblock,
        };
        if is_new {
            // Nothing is in the log that was written otherwise.
            let sums = if journal.has_sums { SUMS } else { 0 };
            let long = if journal.has_long_numbers { LONG } else { 0 };
            put(&mut journal.superblock, JOURNAL_COMPAT, 0);
            put(&mut journal.superblock, JOURNAL_INCOMPAT, REVOKES | sums | long);
            journal.superblock[SUM_TYPE] = if journal.has_sums { CRC32C } else { 0 };
        }
        Ok(journal)
    }

    /// Blocks that a transaction may have.
    pub(crate) fn most(&self) -> usize {
        ((self.len - self.first) / PART) as usize
    }

    fn block_size(&self) -> usize {
        self.superblock.len()
    }

    /// Blocks that one descriptor names, and that one record revokes.
    fn capacities(&self) -> [usize; 2] {
        // A first tag has the journal's UUID behind it.
        let tags = (self.block_size() - HEAD - TAIL - 16) / self.tag_bytes();
        [tags, (self.block_size() - HEAD - 4 - TAIL) / self.revoke_bytes()]
    }

    fn tag_bytes(&self) -> usize {
        match (self.has_sums, self.has_long_numbers) {
            (true, _) => 16,
            (false, true) => 12,
            (false, false) => 8,
        }
    }

    fn revoke_bytes(&self) -> usize {
        if self.has_long_numbers {
            8
        } else {
            4
        }
    }

    /// Blocks of the log that a transaction takes.
    fn records(&self, blocks: usize, revoked: usize) -> usize {
        let [tags, revokes] = self.capacities();
        revoked.div_ceil(revokes) + blocks.div_ceil(tags) + blocks + 1
    }

    fn room(&self) -> usize {
        (self.len - self.next) as usize
    }

    fn place(&self, block: u32) -> u64 {
        place(&self.runs, self.block_size(), block)
    }

    /// The place of the next record.
    fn take(&mut self) -> core::result::Result<u64, DeviceError> {
        if self.next == self.len {
            return Err(DeviceError);
        }
        self.next += 1;
        Ok(self.place(self.next - 1))
    }

    /// A record's block with nothing in it yet.
    fn record(&self, kind: u32) -> Vec<u8> {
        let mut block = alloc::vec![0; self.block_size()];
        put(&mut block, 0, MAGIC);
        put(&mut block, 4, kind);
        put(&mut block, 8, self.sequence);
        block
    }

    fn seed(&self) -> u32 {
        crc32c(SUM_START, &self.superblock[UUID..UUID + 16])
    }

    /// Gives a record its checksum, for which there is room at `at`.
    fn sum(&self, record: &mut [u8], at: usize) {
        if self.has_sums {
            let sum = crc32c(self.seed(), record);
            put(record, at, sum);
        }
    }

    /// Writes in the superblock where the log begins; 0: it is empty.
    fn set_start(&mut self, start: u32) {
        put(&mut self.superblock, SEQUENCE, self.sequence);
        put(&mut self.superblock, START, start);
        self.seal();
    }

    fn seal(&mut self) {
        seal(&mut self.superblock, self.has_sums);
    }

    /// Calls the log empty (I1).
    fn begin_anew<D: Device>(&mut self, device: &mut D) -> core::result::Result<(), DeviceError> {
        self.set_start(0);
        device.write(self.place(0), &self.superblock)?;
        device.flush()?;
        self.next = self.first;
        Ok(())
    }

    /// Commits what waits, and makes the host's data durable.
    ///
    /// # Errors
    /// I/O: whether it is committed isn't known, and nothing more comes into the journal.
    pub(crate) fn commit<D: Device>(&mut self, store: &mut Store<D>, now: Timestamp) -> Result<()> {
        let (blocks, revoked) = (store.cache.waiting_blocks(), store.cache.revoked());
        if blocks.is_empty() && revoked.is_empty() {
            return store.device.flush().map_err(|_| ErrorKind::Io);
        }
        let mut done = self.write(store, &blocks, &revoked);
        done = done.and_then(|()| self.end(&mut store.device, now));
        if done.is_ok() {
            store.cache.committed();
            if self.room() < (self.len - self.first) as usize / 2 || store.is_much() {
                done = self.checkpoint_by(store);
            }
        }
        done.map_err(|_| self.abort(store))
    }

    /// Writes all of a transaction but the commit record.
    fn write<D: Device>(
        &mut self,
        store: &mut Store<D>,
        blocks: &[u64],
        revoked: &[u64],
    ) -> core::result::Result<(), DeviceError> {
        debug_assert!(self.records(blocks.len(), revoked.len()) <= self.room(), "the log is full");
        let Store { device, cache, gathered, .. } = store;
        if !self.is_marked {
            mark(device, |incompat| incompat | RECOVER)?;
            self.is_marked = true;
        }
        let mut records = Records { device, bytes: gathered, at: 0, len: 0 };
        if self.next == self.first {
            self.set_start(self.first);
            let place = self.place(0);
            records.add(place, &self.superblock)?;
        }
        let [tags, revokes] = self.capacities();
        for part in revoked.chunks(revokes) {
            let record = self.revoke(part);
            records.add(self.take()?, &record)?;
        }
        let known = |number| cache.known(number).ok_or(DeviceError);
        for part in blocks.chunks(tags) {
            let descriptor = self.describe(part, known)?;
            records.add(self.take()?, &descriptor)?;
            for &number in part {
                let bytes = known(number)?;
                let place = self.take()?;
                if get(bytes, 0) == MAGIC {
                    // It would be taken for a record.
                    let mut escaped = bytes.to_vec();
                    put(&mut escaped, 0, 0);
                    records.add(place, &escaped)?;
                } else {
                    records.add(place, bytes)?;
                }
            }
        }
        records.end()
    }

    /// Writes the commit record of what has been written.
    fn end<D: Device>(
        &mut self,
        device: &mut D,
        now: Timestamp,
    ) -> core::result::Result<(), DeviceError> {
        device.flush()?;
        let mut record = self.record(COMMIT);
        record[COMMIT_SECONDS..COMMIT_SECONDS + 8].copy_from_slice(&now.sec.to_be_bytes());
        put(&mut record, COMMIT_NANOS, now.nsec);
        self.sum(&mut record, COMMIT_SUM);
        let place = self.take()?;
        device.write(place, &record)?;
        device.flush()?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    fn revoke(&self, blocks: &[u64]) -> Vec<u8> {
        let mut record = self.record(REVOKE);
        let size = self.revoke_bytes();
        put(&mut record, HEAD, (HEAD + 4 + blocks.len() * size) as u32);
        for (entry, block) in record[HEAD + 4..].chunks_mut(size).zip(blocks) {
            entry.copy_from_slice(&block.to_be_bytes()[8 - size..]);
        }
        let tail = self.block_size() - TAIL;
        self.sum(&mut record, tail);
        record
    }

    /// A descriptor of the blocks behind it.
    fn describe<'a>(
        &self,
        blocks: &[u64],
        known: impl Fn(u64) -> core::result::Result<&'a [u8], DeviceError>,
    ) -> core::result::Result<Vec<u8>, DeviceError> {
        let mut record = self.record(DESCRIPTOR);
        let seed = crc32c(self.seed(), &self.sequence.to_be_bytes());
        let mut at = HEAD;
        for (n, &number) in blocks.iter().enumerate() {
            let bytes = known(number)?;
            let is_escaped = get(bytes, 0) == MAGIC;
            let mut flags = 0;
            flags |= if is_escaped { ESCAPED } else { 0 };
            flags |= if n > 0 { SAME_UUID } else { 0 };
            flags |= if n + 1 == blocks.len() { LAST } else { 0 };
            put(&mut record, at, number as u32);
            // The flags are the low half of a word that is a short's and the checksum's high half
            // without checksums.
            put(&mut record, at + 4, flags);
            if self.tag_bytes() > 8 {
                put(&mut record, at + 8, (number >> 32) as u32);
            }
            if self.has_sums {
                let sum = match is_escaped {
                    true => crc32c(crc32c(seed, &[0; 4]), &bytes[4..]),
                    false => crc32c(seed, bytes),
                };
                put(&mut record, at + 12, sum);
            }
            at += self.tag_bytes();
            if n == 0 {
                record[at..at + 16].copy_from_slice(&self.superblock[UUID..UUID + 16]);
                at += 16;
            }
        }
        let tail = self.block_size() - TAIL;
        self.sum(&mut record, tail);
        Ok(record)
    }

    /// Brings all that is committed to its own place, and begins the log anew.
    ///
    /// # Errors
    /// I/O: nothing more comes into the journal.
    pub(crate) fn checkpoint<D: Device>(&mut self, store: &mut Store<D>) -> Result<()> {
        self.checkpoint_by(store).map_err(|_| self.abort(store))
    }

    fn checkpoint_by<D: Device>(
        &mut self,
        store: &mut Store<D>,
    ) -> core::result::Result<(), DeviceError> {
        debug_assert!(store.cache.waiting() == 0, "a checkpoint within a transaction");
        if self.next == self.first {
            return Ok(());
        }
        store.write_logged()?;
        store.device.flush()?;
        self.begin_anew(&mut store.device)?;
        store.cache.checkpointed();
        Ok(())
    }

    /// Says in the volume's superblock that there is nothing to replay; after a
    /// [checkpoint](Self::checkpoint).
    pub(crate) fn close<D: Device>(&mut self, device: &mut D) -> Result<()> {
        mark(device, |incompat| incompat & !RECOVER)
            .and_then(|()| device.flush())
            .map_err(|_| ErrorKind::Io)?;
        self.is_marked = false;
        Ok(())
    }

    /// Has nothing more come into the journal, which remembers why as far as it can be written.
    fn abort<D: Device>(&mut self, store: &mut Store<D>) -> ErrorKind {
        self.is_aborted = true;
        put(&mut self.superblock, ERROR, FAILED);
        self.seal();
        let place = self.place(0);
        let _ = store.device.write(place, &self.superblock).and_then(|()| store.device.flush());
        ErrorKind::Io
    }
}

/// Where one of a journal's blocks lies on the disk.
pub(crate) fn place(runs: &[Run], block_size: usize, block: u32) -> u64 {
    let at = u64::from(block) * block_size as u64;
    let run = runs.get(runs.partition_point(|run| run.at + run.len <= at));
    run.map_or(0, |run| run.disk + (at - run.at))
}

/// A journal's superblock, checked.
///
/// # Errors
/// [`ErrorKind::Corrupted`], [`ErrorKind::UnsupportedFeature`]; I/O.
pub(crate) fn read_superblock<D: Device>(
    device: &mut D,
    layout: &Layout,
    runs: &[Run],
) -> Result<Box<[u8]>> {
    let block_size = layout.block_size;
    let mut superblock = alloc::vec![0; block_size].into_boxed_slice();
    let mapped = runs
        .iter()
        .try_fold(0, |end, run| (run.at == end && !run.unwritten).then_some(end + run.len));
    let mapped = mapped.ok_or(ErrorKind::Corrupted)? / block_size as u64;
    let place = runs.first().ok_or(ErrorKind::Corrupted)?.disk;
    device.read(place, &mut superblock).map_err(|_| ErrorKind::Io)?;
    let (first, len) = (get(&superblock, FIRST), get(&superblock, LEN));
    let kind = get(&superblock, TYPE);
    let is_right = get(&superblock, 0) == MAGIC
        && [OLD_SUPERBLOCK, NEW_SUPERBLOCK].contains(&kind)
        && get(&superblock, BLOCK_SIZE) as usize == block_size
        && u64::from(len) <= mapped
        && first >= 1
        && first.saturating_add(LEAST) <= len;
    if !is_right {
        return Err(ErrorKind::Corrupted);
    }
    if kind == OLD_SUPERBLOCK {
        for at in [JOURNAL_COMPAT, JOURNAL_INCOMPAT] {
            put(&mut superblock, at, 0);
        }
        return Ok(superblock);
    }
    let features = get(&superblock, JOURNAL_INCOMPAT);
    if features & !(REVOKES | LONG | SHORT_SUMS | SUMS) != 0
        || get(&superblock, JOURNAL_COMPAT) & !HAS_COMMIT_SUMS != 0
        || get(&superblock, JOURNAL_RO_COMPAT) != 0
    {
        return Err(ErrorKind::UnsupportedFeature);
    }
    if features & (SHORT_SUMS | SUMS) != 0 {
        let found = get(&superblock, SUM);
        put(&mut superblock, SUM, 0);
        if found != crc32c(SUM_START, &superblock[..SUMMED]) {
            return Err(ErrorKind::Corrupted);
        }
    }
    Ok(superblock)
}

/// Gives a journal's superblock its checksum.
pub(crate) fn seal(superblock: &mut [u8], has_sums: bool) {
    put(superblock, SUM, 0);
    if has_sums {
        let sum = crc32c(SUM_START, &superblock[..SUMMED]);
        put(superblock, SUM, sum);
    }
}

/// Changes a feature in the volume's superblock on the disk.
pub(crate) fn mark<D: Device>(
    device: &mut D,
    change: impl Fn(u32) -> u32,
) -> core::result::Result<(), DeviceError> {
    let mut superblock = [0; SUPERBLOCK];
    device.read(SUPERBLOCK_AT, &mut superblock)?;
    let incompat = change(bytes::get32(&superblock, INCOMPAT));
    bytes::put32(&mut superblock, INCOMPAT, incompat);
    layout::seal(&mut superblock);
    device.write(SUPERBLOCK_AT, &superblock)
}
