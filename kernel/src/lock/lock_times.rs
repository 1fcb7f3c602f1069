//! How long CPUs wait for spin locks, where, and how long they hold them: `lock_...` in
//! `/proc/vmstat` under `./uvm run --trace`.
//!
//! A CPU that finds a lock taken has time to count, so waits are counted always, and a lock that is
//! free costs nothing more. Where it was is told by the address that the wait returns to, under
//! `trace` alone. Hold times take a look at the clock at both ends of every section: builds with
//! debug assertions (the `quick` profile) take it under `trace`, others never.
//!
//! Each CPU counts in a row of its own. A lock is given back on the CPU that took it (`spin_lock`,
//! I1).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arch::clock::Nanos;
use crate::arch::{clock, cpu};
use crate::trace::TRACE;

/// Times of one kind on one CPU.
struct Times {
    count: AtomicU64,
    sum: AtomicU64,
    most: AtomicU64,
}

impl Times {
    const fn new() -> Times {
        Times { count: AtomicU64::new(0), sum: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    /// Called on the CPU whose row it is, which alone writes it.
    fn add(&self, time: Nanos) {
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        self.sum.store(self.sum.load(Relaxed) + time, Relaxed);
        self.most.store(self.most.load(Relaxed).max(time), Relaxed);
    }
}

/// Which of a row's times.
type Kind = fn(&Row) -> &Times;

/// Locks that a CPU holds at a time whose times are taken; no more are nested anywhere.
const DEPTH: usize = 16;

#[repr(align(64))]
struct Row {
    waits: Times,
    holds: Times,
    /// When the locks were taken that are held.
    since: [AtomicU64; DEPTH],
}

static ROWS: [Row; cpu::MAX_CPUS] = [const {
    Row { waits: Times::new(), holds: Times::new(), since: [const { AtomicU64::new(0) }; DEPTH] }
}; cpu::MAX_CPUS];

/// A place that waits for locks.
struct Place {
    address: AtomicU64,
    waits: AtomicU64,
    sum: AtomicU64,
}

/// The first places that were seen waiting. What comes when all are taken is in the sums alone.
static PLACES: [Place; 64] = [const {
    Place { address: AtomicU64::new(0), waits: AtomicU64::new(0), sum: AtomicU64::new(0) }
}; 64];

fn is_tracing() -> bool {
    TRACE.load(Relaxed)
}

/// The moment a wait begins.
pub(super) fn begin() -> Nanos {
    clock::now()
}

/// A wait that began at `begun` has ended with the lock; it returns to `address`.
pub(super) fn waited(begun: Nanos, address: u64) {
    let time = clock::now().saturating_sub(begun);
    ROWS[cpu::index()].waits.add(time);
    if !is_tracing() {
        return;
    }
    for place in &PLACES {
        let found = place.address.load(Relaxed);
        let is_own = found == address
            || found == 0
                && place
                    .address
                    .compare_exchange(0, address, Relaxed, Relaxed)
                    .map_or_else(|now| now == address, |_| true);
        if is_own {
            place.waits.fetch_add(1, Relaxed);
            place.sum.fetch_add(time, Relaxed);
            return;
        }
    }
}

/// This CPU has taken its `depth`th lock.
pub(super) fn taken(depth: usize) {
    if is_tracing() {
        if let Some(since) = ROWS[cpu::index()].since.get(depth - 1) {
            since.store(clock::now(), Relaxed);
        }
    }
}

/// This CPU gives back its `depth`th lock. If that isn't the one it took last, the sum is right all
/// the same.
pub(super) fn given_back(depth: usize) {
    if is_tracing() {
        let row = &ROWS[cpu::index()];
        // 0 for what was taken before tracing was asked for.
        let since = row.since.get(depth - 1).map_or(0, |since| since.swap(0, Relaxed));
        if since != 0 {
            row.holds.add(clock::now().saturating_sub(since));
        }
    }
}

/// Names and values; none unless tracing was asked for.
pub fn counters() -> Vec<(String, u64)> {
    let mut out = Vec::new();
    if !is_tracing() {
        return out;
    }
    let kinds: [(&str, Kind); 2] = [("wait", |row| &row.waits), ("hold", |row| &row.holds)];
    for (kind, times) in kinds {
        let sum = |which: fn(&Times) -> &AtomicU64| -> u64 {
            ROWS.iter().map(|row| which(times(row)).load(Relaxed)).sum()
        };
        let most = ROWS.iter().map(|row| times(row).most.load(Relaxed)).max();
        out.push((format!("lock_{kind}s"), sum(|times| &times.count)));
        out.push((format!("lock_{kind}_ns"), sum(|times| &times.sum)));
        out.push((format!("lock_{kind}_most_ns"), most.unwrap_or(0)));
    }
    for place in &PLACES {
        let address = place.address.load(Relaxed);
        if address != 0 {
            out.push((format!("lock_waits_at_{address:x}"), place.waits.load(Relaxed)));
            out.push((format!("lock_wait_ns_at_{address:x}"), place.sum.load(Relaxed)));
        }
    }
    out
}
