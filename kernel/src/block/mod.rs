//! Disks: requests that end later, and transfers that wait for their end.
//!
//! ```text
//!   submit(op, sector, pages, done) --> slot --> virtio::blk::Queue --> device
//!                                        |                                |
//!          done(token, pages, result) <--+------------- interrupt <-------+
//!          or: wakes the task that waits in read, write, flush
//! ```
//! A disk has 64 slots, made when it is found: a request takes one, with a copy of its list of
//! pages, and nothing is allocated. When no slot is free, `submit` sleeps: so a program that writes
//! much is held back to what the disk takes.
//!
//! I1: a slot is free (in `Shared::free`), in the ring, or done and about to be given back; the
//! task that took it off `free` gives it back, but for a slot that no task waits for: that is given
//! back by the CPU that takes it out of the ring. I2: the pages of a request stay allocated until
//! it is done: that is the requester's promise. I3: `done` is called in interrupt context, with the
//! slot's lock held: it takes any spin lock but asks nothing of a disk. Locks: `shared`, then a
//! slot; a slot's lock alone while `done` runs.
//!
//! Not taken: merging and sorting of requests. What is large is made large by its maker (clusters),
//! and a host's disk sorts by itself.

mod text;
pub mod virtio;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::iter;
use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use machine::PageNo;

use self::virtio::blk::{Full, Geometry, Op as QueueOp, Queue, SLOTS};
use self::virtio::Found;
use crate::arch::irq;
use crate::devnum::device_number;
use crate::errno::{Result, EBUSY, EINVAL, EIO, EROFS};
use crate::println;
use crate::sched::{self, Nanos};
use crate::sync::{Mutex, MutexGuard, Once, SpinLock, WaitQueue};

pub use self::virtio::p9;
pub use self::virtio::segments::{self, Bytes};
pub use text::{diskstats, partitions, stat};

/// Bytes of a sector, the unit of every disk here.
pub const SECTOR: usize = 512;
/// Pages of one request at most.
pub const MAX_PAGES: usize = 256;
/// Bytes of one request at most.
const MAX_BYTES: usize = MAX_PAGES * machine::PAGE_SIZE;
/// Disks at most: one for each letter.
pub const DISKS: usize = 26;
/// Major number of virtio disks, and minors that each has.
const MAJOR: u32 = 254;
pub const MINORS: u32 = 16;

static TABLE: [Once<Arc<Disk>>; DISKS] = [const { Once::new() }; DISKS];

/// What a request does to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Read,
    Write,
}

/// What is called when a request has ended, in interrupt context: see I3.
#[derive(Clone, Copy)]
pub struct Done {
    /// Gets the token, the request's pages, and what became of it.
    pub call: fn(u64, &[PageNo], Result<()>),
    /// Whatever the requester likes.
    pub token: u64,
}

/// A request's memory. It lies in a slot, which has to have the room.
#[allow(clippy::large_enum_variant)]
enum Data {
    None,
    Pages(ArrayVec<PageNo, MAX_PAGES>),
    /// Kernel memory at an address, for this many bytes.
    Bytes(Bytes),
}

/// A request's memory, before it has a slot.
#[derive(Clone, Copy)]
enum Memory<'a> {
    None,
    Pages(&'a [PageNo]),
    Bytes(Bytes),
}

struct Slot {
    op: QueueOp,
    data: Data,
    /// `None` if a task waits.
    done: Option<Done>,
    /// Set when the device has done with it.
    result: Option<Result<()>>,
    started: Nanos,
}

/// What requests on a disk have been so far.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub requests: u64,
    pub sectors: u64,
    pub nanos: Nanos,
}

/// All that `/proc/diskstats` shows.
#[derive(Clone, Copy, Default)]
pub struct Stats {
    pub reads: Counts,
    pub writes: Counts,
    pub flushes: Counts,
    /// Requests that the device has now.
    pub in_flight: u64,
    /// How long it has had at least one.
    pub busy: Nanos,
    /// The sum of that over requests.
    pub weighted: Nanos,
    changed: Nanos,
}

struct Shared {
    queue: Queue,
    free: ArrayVec<u8, SLOTS>,
    stats: Stats,
}

/// A disk.
pub struct Disk {
    name: String,
    index: usize,
    sectors: u64,
    read_only: bool,
    can_flush: bool,
    /// Bytes of one request at most, by what the device takes.
    limit: usize,
    shared: SpinLock<Shared>,
    slots: Box<[SpinLock<Slot>]>,
    /// Tasks that wait for the end of a slot's request.
    ended: Box<[WaitQueue]>,
    /// Tasks that wait for room.
    room: WaitQueue,
    /// Whether a file system or the swap code has it for itself.
    claimed: AtomicBool,
    /// Held from the reading of a sector to its writing, where only part of it changes.
    partial: Mutex<()>,
}

/// Takes a virtio disk into service. Start-up only.
pub fn attach(found: Found) {
    let Some(index) = TABLE.iter().position(|place| place.get().is_none()) else { return };
    let name = format!("vd{}", char::from(b'a' + index as u8));
    let vector = irq::register(
        name.clone(),
        |index| TABLE[index].get().into_iter().for_each(|disk| disk.answer()),
        index,
    );
    let Some(vector) = vector else { return println!("{name}: there is no interrupt left for it") };
    match Queue::new(found, vector) {
        Ok((queue, geometry)) => {
            TABLE[index].call_once(|| Arc::new(Disk::new(name, index, queue, &geometry)));
        }
        Err(error) => println!("{name}: {error}"),
    }
}

/// All disks, in order of their names.
pub fn disks() -> impl Iterator<Item = &'static Arc<Disk>> {
    TABLE.iter().filter_map(Once::get)
}

/// The device number of a disk by its place in the table.
fn number(index: usize) -> u64 {
    device_number(MAJOR, index as u32 * MINORS)
}

/// The disk with this device number.
pub fn by_number(device: u64) -> Option<&'static Arc<Disk>> {
    let index = (0..TABLE.len()).find(|&index| number(index) == device)?;
    TABLE[index].get()
}

impl Disk {
    fn new(name: String, index: usize, queue: Queue, geometry: &Geometry) -> Disk {
        let slot = || {
            SpinLock::new(Slot {
                op: QueueOp::Read,
                data: Data::None,
                done: None,
                result: None,
                started: 0,
            })
        };
        Disk {
            name,
            index,
            sectors: geometry.sectors,
            read_only: geometry.read_only,
            can_flush: queue.can_flush(),
            // Bytes that don't start at a page have a segment more.
            limit: MAX_BYTES.min((geometry.segments.max(2) - 1) * machine::PAGE_SIZE),
            shared: SpinLock::new(Shared {
                queue,
                free: (0..SLOTS as u8).collect(),
                stats: Stats::default(),
            }),
            slots: (0..SLOTS).map(|_| slot()).collect(),
            ended: (0..SLOTS).map(|_| WaitQueue::new()).collect(),
            room: WaitQueue::new(),
            claimed: AtomicBool::new(false),
            partial: Mutex::new(()),
        }
    }

    /// The disk's name, without `/dev/`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The disk's size in units of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The device number of its node.
    pub fn number(&self) -> u64 {
        number(self.index)
    }

    /// Pages that one request may have: as many as the device takes, at most [`MAX_PAGES`].
    pub fn max_pages(&self) -> usize {
        self.limit / machine::PAGE_SIZE
    }

    /// Takes the disk for a file system or for swapping; `/dev/vda` stays usable, as on Linux, but
    /// for `O_EXCL`.
    ///
    /// # Errors
    /// `EBUSY` if it is taken.
    pub fn claim(&self) -> Result<()> {
        if self.claimed.swap(true, Ordering::Acquire) {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Takes [`claim`](Self::claim) back.
    pub fn release_claim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Whether the disk is claimed.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// What has been asked of it so far.
    pub fn stats(&self) -> Stats {
        let mut shared = self.shared.lock();
        shared.stats.pass(sched::now());
        shared.stats
    }

    /// Starts a transfer between whole pages and the disk from `sector` on; sleeps while the disk
    /// has no room for it, not until its end. `done` is called once if this succeeds, perhaps
    /// before it returns. Pages are the caller's to keep until then (I2); at most
    /// [`max_pages`](Self::max_pages).
    ///
    /// # Errors
    /// `EROFS`, `EINVAL` for too many pages or none, `EIO` beyond the end; nothing was started and
    /// `done` is not called.
    pub fn submit(&self, op: Op, sector: u64, pages: &[PageNo], done: Done) -> Result<()> {
        self.admit(op, sector, pages.len() * machine::PAGE_SIZE)?;
        self.start(op.into(), sector, Memory::Pages(pages), Some(done));
        Ok(())
    }

    /// Reads whole sectors into kernel memory and waits for them.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), `EINVAL` for no whole sectors; `EIO` when the disk says so.
    pub fn read(&self, sector: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: exclusively borrowed until this returns.
        self.transfer_bytes(Op::Read, sector, unsafe {
            Bytes::new(to.as_mut_ptr() as u64, to.len())
        })
    }

    /// Writes whole sectors from kernel memory and waits until the disk has them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, sector: u64, from: &[u8]) -> Result<()> {
        // SAFETY: borrowed until this returns, and only read.
        self.transfer_bytes(Op::Write, sector, unsafe {
            Bytes::new(from.as_ptr() as u64, from.len())
        })
    }

    /// Waits until everything that had been written when this was called is on stable storage.
    ///
    /// # Errors
    /// `EIO`.
    pub fn flush(&self) -> Result<()> {
        if !self.can_flush {
            return Ok(());
        }
        self.wait(self.start(QueueOp::Flush, 0, Memory::None, None))
    }

    /// Moves whole pages, at most [`max_pages`](Self::max_pages), and waits for them.
    ///
    /// # Errors
    /// `EIO`, `EROFS`, `EINVAL`.
    pub fn transfer_pages(&self, op: Op, sector: u64, pages: &[PageNo]) -> Result<()> {
        self.admit(op, sector, pages.len() * machine::PAGE_SIZE)?;
        self.wait(self.start(op.into(), sector, Memory::Pages(pages), None))
    }

    /// Keeps other transfers from changing parts of sectors, from the reading of a sector to its
    /// writing.
    pub fn lock_partial(&self) -> MutexGuard<'_, ()> {
        self.partial.lock()
    }

    /// Moves whole sectors between the disk and kernel memory, and waits for them.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`write`](Self::write).
    pub fn transfer_bytes(&self, op: Op, sector: u64, bytes: Bytes) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let part = (bytes.len() - done).min(self.limit);
            let from = sector + (done / SECTOR) as u64;
            self.admit(op, from, part)?;
            self.wait(self.start(op.into(), from, Memory::Bytes(bytes.part(done, part)), None))?;
            done += part;
        }
        Ok(())
    }

    /// Whether a transfer may be asked for. One that reads is counted as the running thread's.
    fn admit(&self, op: Op, sector: u64, bytes: usize) -> Result<()> {
        if op == Op::Write && self.read_only {
            return Err(EROFS);
        }
        if bytes == 0 || bytes > self.limit || !bytes.is_multiple_of(SECTOR) {
            return Err(EINVAL);
        }
        let sectors = (bytes / SECTOR) as u64;
        if sector.checked_add(sectors).is_none_or(|end| end > self.sectors) {
            return Err(EIO);
        }
        if let (Op::Read, Some(thread)) = (op, sched::current().user()) {
            thread.io.count_from_disk(bytes as u64);
        }
        Ok(())
    }

    /// Starts a request as soon as there is room; returns its slot.
    fn start(&self, op: QueueOp, sector: u64, memory: Memory<'_>, done: Option<Done>) -> usize {
        let attempt = || self.try_start(op, sector, memory, done).ok();
        match attempt() {
            Some(slot) => slot,
            None => self.room.wait(attempt),
        }
    }

    fn try_start(
        &self,
        op: QueueOp,
        sector: u64,
        memory: Memory<'_>,
        done: Option<Done>,
    ) -> core::result::Result<usize, Full> {
        let now = sched::now();
        let mut shared = self.shared.lock();
        let index = usize::from(*shared.free.last().ok_or(Full)?);
        let mut slot = self.slots[index].lock();
        slot.data.keep(memory);
        (slot.op, slot.done, slot.result, slot.started) = (op, done, None, now);
        match memory {
            Memory::None => shared.queue.start(index, op, sector, iter::empty())?,
            Memory::Pages(pages) => {
                shared.queue.start(index, op, sector, segments::of_pages(pages))?;
            }
            Memory::Bytes(bytes) => {
                shared.queue.start(index, op, sector, segments::of_bytes(bytes))?;
            }
        }
        drop(slot);
        shared.free.pop();
        shared.stats.pass(now);
        shared.stats.in_flight += 1;
        Ok(index)
    }

    /// Sleeps until the request in a slot has ended, and gives the slot back.
    fn wait(&self, slot: usize) -> Result<()> {
        let result = self.ended[slot].wait(|| self.slots[slot].lock().result.take());
        self.release(slot);
        result
    }

    fn release(&self, slot: usize) {
        self.shared.lock().free.push(slot as u8);
        self.room.wake_all();
    }

    /// The disk's interrupt.
    fn answer(&self) {
        self.shared.lock().queue.acknowledge();
        self.reap();
    }

    /// Sees to all requests that the device has done with.
    fn reap(&self) {
        while let Some(index) = self.reap_one() {
            let slot = self.slots[index].lock();
            match (slot.done, slot.result) {
                (Some(done), Some(result)) => {
                    (done.call)(done.token, slot.data.pages(), result);
                    drop(slot);
                    self.release(index);
                }
                _ => {
                    drop(slot);
                    self.ended[index].wake_all();
                }
            }
        }
    }

    /// Takes one request out of the ring.
    fn reap_one(&self) -> Option<usize> {
        let mut shared = self.shared.lock();
        let index = shared.queue.finished()?;
        let mut slot = self.slots[index].lock();
        slot.result = Some(shared.queue.finish(index));
        shared.stats.count(&slot);
        Some(index)
    }
}

impl From<Op> for QueueOp {
    fn from(op: Op) -> QueueOp {
        match op {
            Op::Read => QueueOp::Read,
            Op::Write => QueueOp::Write,
        }
    }
}

impl Data {
    /// Takes a copy of the list of pages, in place: it is large.
    fn keep(&mut self, memory: Memory<'_>) {
        match memory {
            Memory::None => *self = Data::None,
            Memory::Bytes(bytes) => *self = Data::Bytes(bytes),
            Memory::Pages(pages) => {
                if !matches!(self, Data::Pages(_)) {
                    *self = Data::Pages(ArrayVec::new());
                }
                if let Data::Pages(kept) = self {
                    kept.clear();
                    kept.extend(pages.iter().copied());
                }
            }
        }
    }

    fn pages(&self) -> &[PageNo] {
        match self {
            Data::Pages(pages) => pages,
            Data::None | Data::Bytes(..) => &[],
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Pages(pages) => pages.len() * machine::PAGE_SIZE,
            Data::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Stats {
    /// Charges the time since the last change.
    fn pass(&mut self, now: Nanos) {
        let since = now.saturating_sub(self.changed);
        if self.in_flight > 0 {
            self.busy += since;
            self.weighted += since * self.in_flight;
        }
        self.changed = now;
    }

    /// Counts a request that has ended.
    fn count(&mut self, slot: &Slot) {
        let now = sched::now();
        self.pass(now);
        self.in_flight -= 1;
        let counts = match slot.op {
            QueueOp::Read => &mut self.reads,
            QueueOp::Write => &mut self.writes,
            QueueOp::Flush => &mut self.flushes,
        };
        counts.requests += 1;
        counts.sectors += (slot.data.bytes() / SECTOR) as u64;
        counts.nanos += now.saturating_sub(slot.started);
    }
}
