//! What a thread, a process or its children have used.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Times and fault counts; sums of these make `getrusage`, `times` and `wait4`.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub kernel_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// The largest resident set, in pages: a maximum, not a sum.
    pub max_resident: u64,
    /// How often its threads left a CPU to wait, and how often they could have run on.
    pub waits: u64,
    pub preemptions: u64,
    pub io: Io,
}

/// What calls have read and written.
#[derive(Clone, Copy, Default)]
pub struct Io {
    /// Bytes that reads and writes of files have moved.
    pub read: u64,
    pub written: u64,
    /// The calls.
    pub reads: u64,
    pub writes: u64,
    /// Bytes that disks were asked for.
    pub from_disks: u64,
}

/// The [`Io`] of a thread that runs; only that thread counts.
#[derive(Default)]
pub struct IoCounts {
    read: AtomicU64,
    written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    from_disks: AtomicU64,
}

#[inline]
fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl IoCounts {
    /// A read of a file has moved so many bytes.
    #[inline]
    pub fn count_read(&self, bytes: u64) {
        count(&self.read, bytes);
        count(&self.reads, 1);
    }

    /// A write to a file has moved so many bytes.
    #[inline]
    pub fn count_write(&self, bytes: u64) {
        count(&self.written, bytes);
        count(&self.writes, 1);
    }

    /// A disk was asked for so many bytes.
    pub fn count_from_disk(&self, bytes: u64) {
        count(&self.from_disks, bytes);
    }

    pub fn get(&self) -> Io {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Io {
            read: get(&self.read),
            written: get(&self.written),
            reads: get(&self.reads),
            writes: get(&self.writes),
            from_disks: get(&self.from_disks),
        }
    }
}

impl Usage {
    pub fn add(&mut self, other: &Usage) {
        self.user_ns += other.user_ns;
        self.kernel_ns += other.kernel_ns;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.max_resident = self.max_resident.max(other.max_resident);
        self.waits += other.waits;
        self.preemptions += other.preemptions;
        self.io.read += other.io.read;
        self.io.written += other.io.written;
        self.io.reads += other.io.reads;
        self.io.writes += other.io.writes;
        self.io.from_disks += other.io.from_disks;
    }

    /// Time on a CPU in all.
    pub fn cpu_ns(&self) -> u64 {
        self.user_ns + self.kernel_ns
    }
}
