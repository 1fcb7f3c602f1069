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
//! The crate that keeps the metadata has a journal too. It replays one that a crash has left; but
//! it copies a whole transaction at each change, to be able to take that back, and so suits small
//! ones only. As it runs it is shown a volume without a journal ([`hide_journal`]).
//!
//! The road not taken: a commit record in one request with the blocks, without a flush between
//! them (`journal_async_commit`). The data that it is to order must be durable first.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rsext4::crc32c::crc32c::{crc32c_append, crc32c_init};
use rsext4::jbd2::jbdstruct::{
    JBD2_BLOCKTYPE_COMMIT, JBD2_BLOCKTYPE_DESCRIPTOR, JBD2_BLOCKTYPE_REVOKE,
    JBD2_BLOCKTYPE_SUPERBLOCK_V1, JBD2_BLOCKTYPE_SUPERBLOCK_V2, JBD2_CRC32C_CHKSUM,
    JBD2_FEATURE_COMPAT_CHECKSUM, JBD2_FEATURE_INCOMPAT_64BIT, JBD2_FEATURE_INCOMPAT_CSUM_V2,
    JBD2_FEATURE_INCOMPAT_CSUM_V3, JBD2_FEATURE_INCOMPAT_REVOKE, JBD2_FLAG_LAST_TAG,
    JBD2_FLAG_SAME_UUID, JBD2_MAGIC, JOURNAL_ESCAPE,
};
use rsext4::superblock::Ext4Superblock;
use rsext4::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use spin::Mutex;

use crate::cache::LINE;
use crate::shadow::State;
use crate::{Device, DeviceError, ErrorKind, Result, Run, Timestamp};

/// Where the volume's superblock holds what.
const COMPAT: usize = 0x5c;
const INCOMPAT: usize = 0x60;
const RO_COMPAT: usize = 0x64;
const VOLUME_SUM: usize = 0x3fc;
/// Where the journal's does.
const TYPE: usize = 0x04;
const BLOCK_SIZE: usize = 0x0c;
const LEN: usize = 0x10;
const FIRST: usize = 0x14;
const SEQUENCE: usize = 0x18;
const START: usize = 0x1c;
const ERROR: usize = 0x20;
const JOURNAL_COMPAT: usize = 0x24;
const JOURNAL_INCOMPAT: usize = 0x28;
const JOURNAL_RO_COMPAT: usize = 0x2c;
const UUID: usize = 0x30;
const SUM_TYPE: usize = 0x50;
const SUM: usize = 0xfc;
/// Bytes of a journal's superblock that its checksum covers.
const SUMMED: usize = 1024;
/// Where a commit record holds what.
const COMMIT_SUM: usize = 16;
const COMMIT_SECONDS: usize = 48;
const COMMIT_NANOS: usize = 56;
/// Bytes of a record's head: what it is, and of which transaction.
const HEAD: usize = 12;
/// Bytes of a checksum at a record's end.
const TAIL: usize = 4;
/// The error that a journal remembers: EIO.
const FAILED: u32 = 0xffff_fffb;
/// A transaction takes this part of the log at most. There is room for half of the log: for what
/// takes a change back, and what the crate has in its caches at the commit.
const PART: u32 = 3;
/// Blocks of the smallest log.
const LEAST: u32 = 256;

fn get(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Sets and clears features in a volume's superblock, whose checksum stays right.
fn change_features(superblock: &mut [u8], change: impl Fn(&mut u32, &mut u32)) {
    let get = |at: usize, bytes: &[u8]| {
        bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
    };
    let (mut compat, mut incompat) = (get(COMPAT, superblock), get(INCOMPAT, superblock));
    change(&mut compat, &mut incompat);
    superblock[COMPAT..COMPAT + 4].copy_from_slice(&compat.to_le_bytes());
    superblock[INCOMPAT..INCOMPAT + 4].copy_from_slice(&incompat.to_le_bytes());
    if get(RO_COMPAT, superblock) & Ext4Superblock::EXT4_FEATURE_RO_COMPAT_METADATA_CSUM != 0 {
        let sum = crc32c_append(crc32c_init(), &superblock[..VOLUME_SUM]);
        superblock[VOLUME_SUM..VOLUME_SUM + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Makes a superblock that of a volume without a journal.
pub(crate) fn hide_journal(superblock: &mut [u8]) {
    change_features(superblock, |compat, incompat| {
        *compat &= !Ext4Superblock::EXT4_FEATURE_COMPAT_HAS_JOURNAL;
        *incompat &= !Ext4Superblock::EXT4_FEATURE_INCOMPAT_RECOVER;
    });
}

/// Makes a superblock that of a volume whose journal is in use.
pub(crate) fn add_journal(superblock: &mut [u8]) {
    change_features(superblock, |compat, incompat| {
        *compat |= Ext4Superblock::EXT4_FEATURE_COMPAT_HAS_JOURNAL;
        *incompat |= Ext4Superblock::EXT4_FEATURE_INCOMPAT_RECOVER;
    });
}

/// Whether a block is that of a journal's superblock.
pub(crate) fn is_superblock(block: &[u8]) -> bool {
    block.len() >= SUMMED
        && get(block, 0) == JBD2_MAGIC
        && [JBD2_BLOCKTYPE_SUPERBLOCK_V1, JBD2_BLOCKTYPE_SUPERBLOCK_V2].contains(&get(block, TYPE))
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
    /// [`ErrorKind::Corrupted`], [`ErrorKind::Unsupported`]; I/O.
    pub(crate) fn open<D: Device>(
        device: &mut D,
        volume: &Ext4Superblock,
        runs: Vec<Run>,
    ) -> Result<Journal> {
        let block_size = volume.block_size() as usize;
        let mut superblock = alloc::vec![0; block_size].into_boxed_slice();
        let mapped = runs
            .iter()
            .try_fold(0, |end, run| (run.at == end && !run.unwritten).then_some(end + run.len));
        let mapped = mapped.ok_or(ErrorKind::Corrupted)? / block_size as u64;
        let place = runs.first().ok_or(ErrorKind::Corrupted)?.disk;
        device.read(place, &mut superblock).map_err(|_| ErrorKind::Io)?;
        let (first, len) = (get(&superblock, FIRST), get(&superblock, LEN));
        let is_new = get(&superblock, TYPE) == JBD2_BLOCKTYPE_SUPERBLOCK_V2;
        let is_right = is_superblock(&superblock)
            && get(&superblock, BLOCK_SIZE) as usize == block_size
            && u64::from(len) <= mapped
            && first >= 1
            && first.saturating_add(LEAST) <= len;
        if !is_right {
            return Err(ErrorKind::Corrupted);
        }
        let known = JBD2_FEATURE_INCOMPAT_REVOKE
            | JBD2_FEATURE_INCOMPAT_64BIT
            | JBD2_FEATURE_INCOMPAT_CSUM_V2
            | JBD2_FEATURE_INCOMPAT_CSUM_V3;
        let has_others = get(&superblock, JOURNAL_INCOMPAT) & !known != 0
            || get(&superblock, JOURNAL_COMPAT) & !JBD2_FEATURE_COMPAT_CHECKSUM != 0
            || get(&superblock, JOURNAL_RO_COMPAT) != 0;
        if is_new && has_others {
            return Err(ErrorKind::UnsupportedFeature);
        }
        let has_sums = is_new
            && volume.has_feature_ro_compat(Ext4Superblock::EXT4_FEATURE_RO_COMPAT_METADATA_CSUM);
        let has_long_numbers =
            is_new && volume.has_feature_incompat(Ext4Superblock::EXT4_FEATURE_INCOMPAT_64BIT);
        if is_new {
            // Nothing is in the log that was written otherwise.
            let sums = if has_sums { JBD2_FEATURE_INCOMPAT_CSUM_V3 } else { 0 };
            let long = if has_long_numbers { JBD2_FEATURE_INCOMPAT_64BIT } else { 0 };
            put(&mut superblock, JOURNAL_COMPAT, 0);
            put(&mut superblock, JOURNAL_INCOMPAT, JBD2_FEATURE_INCOMPAT_REVOKE | sums | long);
            superblock[SUM_TYPE] = if has_sums { JBD2_CRC32C_CHKSUM } else { 0 };
        }
        let sequence = get(&superblock, SEQUENCE).max(1);
        let is_empty = get(&superblock, START) == 0;
        let mut journal = Journal {
            runs,
            superblock,
            first,
            len,
            next: first,
            sequence,
            has_sums,
            has_long_numbers,
            is_marked: false,
        };
        if !is_empty {
            journal.begin_anew(device).map_err(|_| ErrorKind::Io)?;
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

    /// Where one of its blocks lies on the disk.
    fn place(&self, block: u32) -> u64 {
        let at = u64::from(block) * self.block_size() as u64;
        let run = self.runs[self.runs.partition_point(|run| run.at + run.len <= at)];
        run.disk + (at - run.at)
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
        put(&mut block, 0, JBD2_MAGIC);
        put(&mut block, 4, kind);
        put(&mut block, 8, self.sequence);
        block
    }

    fn seed(&self) -> u32 {
        crc32c_append(crc32c_init(), &self.superblock[UUID..UUID + 16])
    }

    /// Gives a record its checksum, for which there is room at `at`.
    fn sum(&self, record: &mut [u8], at: usize) {
        if self.has_sums {
            let sum = crc32c_append(self.seed(), record);
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
        put(&mut self.superblock, SUM, 0);
        if self.has_sums {
            let sum = crc32c_append(crc32c_init(), &self.superblock[..SUMMED]);
            put(&mut self.superblock, SUM, sum);
        }
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
    pub(crate) fn commit<D: Device>(
        &mut self,
        state: &Mutex<State>,
        device: &mut D,
        now: Timestamp,
    ) -> Result<()> {
        let (blocks, revoked) = {
            let state = state.lock();
            if state.transaction.as_ref().is_some_and(|transaction| transaction.is_aborted) {
                return Err(ErrorKind::JournalAborted);
            }
            (state.cache.waiting_blocks(), state.cache.revoked())
        };
        if blocks.is_empty() && revoked.is_empty() {
            return device.flush().map_err(|_| ErrorKind::Io);
        }
        let mut bytes = core::mem::take(&mut state.lock().gathered);
        let mut records = Records { device, bytes: &mut bytes, at: 0, len: 0 };
        let mut done = self.write(&mut records, state, &blocks, &revoked);
        done = done.and_then(|()| self.end(device, now));
        if done.is_ok() {
            let is_short = {
                let mut state = state.lock();
                state.cache.committed();
                if let Some(transaction) = &mut state.transaction {
                    transaction.is_full = false;
                }
                self.is_short(&state)
            };
            if is_short {
                done = self.checkpoint_by(state, device, &mut bytes);
            }
        }
        state.lock().gathered = bytes;
        done.map_err(|_| self.abort(state, device))
    }

    /// Whether the log, or the cache, has no room for another transaction (I2).
    fn is_short(&self, state: &State) -> bool {
        self.room() < (self.len - self.first) as usize / 2 || state.is_much()
    }

    /// Writes all of a transaction but the commit record.
    fn write<D: Device>(
        &mut self,
        records: &mut Records<'_, D>,
        state: &Mutex<State>,
        blocks: &[u64],
        revoked: &[u64],
    ) -> core::result::Result<(), DeviceError> {
        debug_assert!(self.records(blocks.len(), revoked.len()) <= self.room(), "the log is full");
        complete(state, records.device, blocks)?;
        if !self.is_marked {
            mark(records.device, add_journal)?;
            self.is_marked = true;
        }
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
        let mut block = alloc::vec![0; self.block_size()];
        for part in blocks.chunks(tags) {
            let descriptor = self.describe(state, part, &mut block);
            records.add(self.take()?, &descriptor)?;
            for &number in part {
                copy(state, number, &mut block);
                records.add(self.take()?, &block)?;
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
        let mut record = self.record(JBD2_BLOCKTYPE_COMMIT);
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
        let mut record = self.record(JBD2_BLOCKTYPE_REVOKE);
        let size = self.revoke_bytes();
        put(&mut record, HEAD, (HEAD + 4 + blocks.len() * size) as u32);
        for (entry, block) in record[HEAD + 4..].chunks_mut(size).zip(blocks) {
            entry.copy_from_slice(&block.to_be_bytes()[8 - size..]);
        }
        let tail = self.block_size() - TAIL;
        self.sum(&mut record, tail);
        record
    }

    /// A descriptor of the blocks behind it. `block` is room for one.
    fn describe(&self, state: &Mutex<State>, blocks: &[u64], block: &mut [u8]) -> Vec<u8> {
        let mut record = self.record(JBD2_BLOCKTYPE_DESCRIPTOR);
        let seed = crc32c_append(self.seed(), &self.sequence.to_be_bytes());
        let mut at = HEAD;
        for (n, &number) in blocks.iter().enumerate() {
            let mut flags = 0;
            flags |= if copy(state, number, block) { JOURNAL_ESCAPE } else { 0 };
            flags |= if n > 0 { JBD2_FLAG_SAME_UUID } else { 0 };
            flags |= if n + 1 == blocks.len() { JBD2_FLAG_LAST_TAG } else { 0 };
            put(&mut record, at, number as u32);
            // The flags are the low half of a word that is a short's and the checksum's high half
            // without checksums.
            put(&mut record, at + 4, u32::from(flags));
            if self.tag_bytes() > 8 {
                put(&mut record, at + 8, (number >> 32) as u32);
            }
            if self.has_sums {
                put(&mut record, at + 12, crc32c_append(seed, block));
            }
            at += self.tag_bytes();
            if n == 0 {
                record[at..at + 16].copy_from_slice(&self.superblock[UUID..UUID + 16]);
                at += 16;
            }
        }
        let tail = self.block_size() - TAIL;
        self.sum(&mut record, tail);
        record
    }

    /// Brings all that is committed to its own place, and begins the log anew.
    ///
    /// # Errors
    /// I/O: nothing more comes into the journal.
    pub(crate) fn checkpoint<D: Device>(
        &mut self,
        state: &Mutex<State>,
        device: &mut D,
    ) -> Result<()> {
        let mut bytes = core::mem::take(&mut state.lock().gathered);
        let done = self.checkpoint_by(state, device, &mut bytes);
        state.lock().gathered = bytes;
        done.map_err(|_| self.abort(state, device))
    }

    fn checkpoint_by<D: Device>(
        &mut self,
        state: &Mutex<State>,
        device: &mut D,
        bytes: &mut [u8],
    ) -> core::result::Result<(), DeviceError> {
        debug_assert!(state.lock().cache.waiting() == 0, "a checkpoint within a transaction");
        if self.next == self.first {
            return Ok(());
        }
        loop {
            let run = state.lock().cache.first_logged(bytes);
            let Some((at, len)) = run else { break };
            device.write(at, &bytes[..len])?;
            state.lock().cache.written(at, len);
        }
        device.flush()?;
        self.begin_anew(device)?;
        state.lock().cache.checkpointed();
        Ok(())
    }

    /// Says in the volume's superblock that there is nothing to replay; after a
    /// [checkpoint](Self::checkpoint).
    pub(crate) fn close<D: Device>(&mut self, device: &mut D) -> Result<()> {
        let hide = |superblock: &mut [u8]| {
            change_features(superblock, |_, incompat| {
                *incompat &= !Ext4Superblock::EXT4_FEATURE_INCOMPAT_RECOVER;
            });
        };
        mark(device, hide).and_then(|()| device.flush()).map_err(|_| ErrorKind::Io)?;
        self.is_marked = false;
        Ok(())
    }

    /// Has nothing more come into the journal, which remembers why as far as it can be written.
    fn abort<D: Device>(&mut self, state: &Mutex<State>, device: &mut D) -> ErrorKind {
        if let Some(transaction) = &mut state.lock().transaction {
            transaction.is_aborted = true;
        }
        put(&mut self.superblock, ERROR, FAILED);
        self.seal();
        let _ = device.write(self.place(0), &self.superblock).and_then(|()| device.flush());
        ErrorKind::Io
    }
}

/// Changes the volume's superblock on the disk.
fn mark<D: Device>(
    device: &mut D,
    change: impl Fn(&mut [u8]),
) -> core::result::Result<(), DeviceError> {
    let mut superblock = [0; SUPERBLOCK_SIZE];
    device.read(SUPERBLOCK_OFFSET, &mut superblock)?;
    change(&mut superblock);
    device.write(SUPERBLOCK_OFFSET, &superblock)
}

/// Reads what isn't known of blocks of which a part waits.
fn complete<D: Device>(
    state: &Mutex<State>,
    device: &mut D,
    blocks: &[u64],
) -> core::result::Result<(), DeviceError> {
    for &block in blocks {
        let line = state.lock().cache.incomplete(block);
        if let Some(line) = line {
            let mut bytes = alloc::vec![0; LINE];
            device.read(line * LINE as u64, &mut bytes)?;
            state.lock().cache.learn(line, &bytes);
        }
    }
    Ok(())
}

/// Copies a block that waits, as the log has it; whether it is another there, since it would be
/// taken for a record.
fn copy(state: &Mutex<State>, number: u64, block: &mut [u8]) -> bool {
    state.lock().cache.copy(number, block);
    let is_like_one = get(block, 0) == JBD2_MAGIC;
    if is_like_one {
        block[..4].fill(0);
    }
    is_like_one
}
