//! What the pmap keeps for each page frame, and its locks.
//!
//! ```text
//!                  lock | word 0   | 1                      | 2           | 3      | 4       | wide
//!   mapped page         | table    | index, gathered bits   | newest      | oldest | bits    | NOTHING, or: bucket, place
//!   table               | parent   | index, level, count    | next        | prev   | groups  | key: root, address
//!   free table, nodes   |          |                        | next        |        |         | OWN
//!   root                |          | level, count           | first table |         |         | CPUs that hold it
//! ```
//! Each frame has one lock. What it guards follows from what the frame is, and so does its rank:
//!
//! ```text
//!   root: the tree of a space -> last table: its entries, count, groups -> [bucket: windows' mappings] -> page: its own, and bits
//! ```
//! A CPU holds at most one of each rank. A frame's use may change between the look at its number
//! and the taking of its lock: so a CPU that has come by a number from outside checks under the
//! lock what the frame is, before it takes the next lock. Builds with debug assertions check the
//! order at run time.

use core::ops::Deref;
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use alloc::boxed::Box;
use alloc::vec::Vec;
use machine::{NoMemory, PageNo};

use super::NIL;
use crate::lock::{Once, RawSpin};
use crate::mem::fault;

/// One frame's record: 32 bytes, so that it lies in one cache line.
#[repr(C, align(32))]
pub(super) struct Record {
    lock: RawSpin,
    pub(super) words: [AtomicU32; 5],
    pub(super) wide: AtomicU64,
}

/// The `wide` word of a frame that is no table.
pub(super) const NOTHING: u64 = u64::MAX;

/// The `wide` word of a frame that the pmap keeps for itself and that is no table in use: a free
/// table, or one of nodes.
pub(super) const OWN: u64 = u64::MAX - 1;

/// Makes the `wide` word that of a page in a bucket (`reverse::windows`); no table's key is as
/// large. Its lower half is the bucket's number.
pub(super) const IN_BUCKET: u64 = 1 << 63;

/// What a record's lock is taken for; in the order in which they are taken.
pub(super) const SPACE: u32 = 1;
pub(super) const TABLE: u32 = 2;
/// A bucket's, which isn't in a record (`reverse::windows`).
pub(super) const WINDOW: u32 = 3;
pub(super) const PAGE: u32 = 4;

/// A record whose lock is held.
#[must_use]
pub(super) struct Locked<const RANK: u32>(&'static Record);

impl<const RANK: u32> Deref for Locked<RANK> {
    type Target = Record;
    #[inline]
    fn deref(&self) -> &Record {
        self.0
    }
}

impl Record {
    const fn plain() -> Record {
        Record {
            lock: RawSpin::new(),
            words: [
                AtomicU32::new(NIL),
                AtomicU32::new(0),
                AtomicU32::new(NIL),
                AtomicU32::new(NIL),
                AtomicU32::new(0),
            ],
            wide: AtomicU64::new(NOTHING),
        }
    }

    /// Makes the record that of an unmapped page again. A CPU that takes the frame's lock by an old
    /// number looks, and releases it.
    pub(super) fn make_plain(&self) {
        for (word, value) in self.words.iter().zip([NIL, 0, NIL, NIL, 0]) {
            word.store(value, Relaxed);
        }
        self.wide.store(NOTHING, Release);
    }

    /// Makes the record that of a frame which the pmap has taken for itself: a CPU that comes by an
    /// old number, for the page that the frame was, finds no page there from now on. Beside the
    /// order of locks, since no CPU waits for another lock with this record locked.
    pub(super) fn make_own(&self) {
        self.lock.lock();
        self.wide.store(OWN, Relaxed);
        // SAFETY: it was taken here.
        unsafe { self.lock.unlock() }
    }

    /// Whether the frame is a page, mapped or not, under its lock.
    #[inline]
    pub(super) fn is_page(&self) -> bool {
        let wide = self.wide.load(Acquire);
        wide >= IN_BUCKET && wide != OWN
    }

    /// Takes the frame's lock.
    #[inline]
    pub(super) fn lock<const RANK: u32>(&'static self) -> Locked<RANK> {
        witness::takes(RANK);
        self.lock.lock();
        Locked(self)
    }

    /// Whether a CPU holds the frame's lock.
    #[inline]
    pub(super) fn is_locked(&self) -> bool {
        self.lock.is_taken()
    }
}

impl<const RANK: u32> Drop for Locked<RANK> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this was made with the lock taken, and ends here.
        unsafe { self.0.lock.unlock() }
        witness::gave_back(RANK);
    }
}

static RECORDS: Once<Box<[Record]>> = Once::new();

/// Makes the records.
///
/// # Errors
/// [`NoMemory`].
pub(super) fn init(pages: usize) -> Result<(), NoMemory> {
    let mut records = Vec::new();
    fault::attempt(|| records.try_reserve_exact(pages)).map_err(|_| NoMemory)?;
    records.resize_with(pages, Record::plain);
    RECORDS.call_once(|| records.into_boxed_slice());
    Ok(())
}

/// A frame's record.
#[inline]
pub(super) fn record(page: PageNo) -> &'static Record {
    // SAFETY: made in start-up, before any address space.
    unsafe { &RECORDS.get_unchecked()[page.0 as usize] }
}

/// Stops the kernel if this CPU holds one of these locks, in builds with debug assertions: before
/// it waits for another CPU.
#[inline]
pub(super) fn assert_none_locked() {
    witness::takes(SPACE);
    witness::gave_back(SPACE);
}

/// Which ranks each CPU holds, where debug assertions are on.
pub(super) mod witness {
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use crate::arch::cpu;

    #[repr(align(64))]
    struct Ranks(AtomicU32);

    static HELD: [Ranks; cpu::MAX_CPUS] = [const { Ranks(AtomicU32::new(0)) }; cpu::MAX_CPUS];

    #[inline]
    pub(in super::super) fn takes(rank: u32) {
        if cfg!(debug_assertions) {
            let held = HELD[cpu::index()].0.fetch_or(1 << rank, Relaxed);
            assert!(
                held >> rank == 0,
                "pmap locks {held:#b} are held where rank {} is taken",
                rank
            );
        }
    }

    #[inline]
    pub(in super::super) fn gave_back(rank: u32) {
        if cfg!(debug_assertions) {
            HELD[cpu::index()].0.fetch_and(!(1 << rank), Relaxed);
        }
    }
}
