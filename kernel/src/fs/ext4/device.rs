//! The disk under a file system: for metadata, with waiting; for file data, straight between pages
//! and disk.
//!
//! I1: a flush waits for all writes to blocks that were allocated before it began: see
//! [`InFlight`]. So what a commit makes reachable holds what was written there, never what the disk
//! held before. I2: the write of a page in a plug is started, at the latest, when the plug's task
//! sleeps or leaves `with_plug`: so other threads may wait for the page. I3: the volume is foreign
//! code, which calls the kernel here and nowhere else, through `preempt::closed`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use machine::{PageNo, PAGE_SIZE};
use volume::{Device, DeviceError};

use crate::arch::preempt::closed;
use crate::block::{self, Disk, Done, Op, MAX_PAGES, SECTOR};
use crate::errno::{Result, EINVAL};
use crate::mem::frames::KERNEL;
use crate::sched;
use crate::sync::{SpinLock, WaitQueue};
use crate::vm;

/// Data on its way to blocks that no commit has made reachable yet, for each disk.
struct InFlight {
    pages: AtomicUsize,
    none: WaitQueue,
}

/// Pages of files that lie one behind the other on a disk and are to be written in one request.
struct Plug {
    at: u64,
    blocks: Blocks,
    pages: Pages,
}

type Pages = ArrayVec<PageNo, MAX_PAGES>;

impl Plug {
    const fn new() -> Plug {
        Plug { at: 0, blocks: Blocks::Old, pages: ArrayVec::new_const() }
    }

    fn take(&mut self) -> (u64, Pages, Blocks) {
        (self.at, core::mem::take(&mut self.pages), self.blocks)
    }

    /// Adds the first of some pages, as many as a request has room for; returns how many, and those
    /// before if they must go first.
    fn add(
        &mut self,
        at: u64,
        pages: &[PageNo],
        blocks: Blocks,
        most: usize,
    ) -> (usize, Option<(u64, Pages, Blocks)>) {
        let end = self.at + (self.pages.len() * PAGE_SIZE) as u64;
        let is_next = end == at && self.blocks == blocks && self.pages.len() < most;
        let before = if is_next || self.pages.is_empty() { None } else { Some(self.take()) };
        if self.pages.is_empty() {
            (self.at, self.blocks) = (at, blocks);
        }
        let count = pages.len().min(most - self.pages.len());
        self.pages.extend(pages[..count].iter().copied());
        (count, before)
    }
}

static PLUGS: [SpinLock<Plug>; DISKS] = [const { SpinLock::new(Plug::new()) }; DISKS];
/// For each disk the task that has its plug; 0: none. A task alone says so of itself: whether it
/// has the plug is known without a lock.
static HOLDERS: [AtomicU64; DISKS] = [const { AtomicU64::new(0) }; DISKS];

/// The running task is about to sleep: starts the writes in its plug, and later ones as they come.
pub fn flush_plug() {
    let task = sched::current().id();
    for disk in block::disks() {
        if let Ok(data) = Data::new(disk) {
            data.flush(task);
        }
    }
}

/// Disks that may be mounted at a time.
const DISKS: usize = 26;

static IN_FLIGHT: [InFlight; DISKS] =
    [const { InFlight { pages: AtomicUsize::new(0), none: WaitQueue::new() } }; DISKS];

impl InFlight {
    fn ended(&self, pages: usize) {
        if self.pages.fetch_sub(pages, Ordering::AcqRel) == pages {
            self.none.wake_all();
        }
    }
}

/// Whether a write is to blocks that are new.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks {
    /// A commit must wait for it.
    New,
    Old,
}

/// A disk's data path. Clones are the same one.
#[derive(Clone)]
pub(super) struct Data {
    pub(super) disk: Arc<Disk>,
    index: usize,
}

impl Data {
    pub(super) fn new(disk: &Arc<Disk>) -> Result<Data> {
        let index = block::disks()
            .position(|other| Arc::ptr_eq(other, disk))
            .filter(|&index| index < DISKS);
        Ok(Data { disk: disk.clone(), index: index.ok_or(EINVAL)? })
    }

    /// Says that as many pages will be written to new blocks; before their volume is unlocked.
    pub(super) fn announce(&self, pages: usize) {
        IN_FLIGHT[self.index].pages.fetch_add(pages, Ordering::AcqRel);
    }

    /// Takes part of that back: they were written, or will not be.
    pub(super) fn withdraw(&self, pages: usize) {
        IN_FLIGHT[self.index].ended(pages);
    }

    /// Starts reads of pages from consecutive places on; of the last one only the first `keep`
    /// bytes are the file's.
    pub(super) fn read(&self, at: u64, pages: &[PageNo], keep: usize) {
        let most = self.disk.max_pages();
        for (n, part) in pages.chunks(most).enumerate() {
            let sector = (at + (n * most * PAGE_SIZE) as u64) / SECTOR as u64;
            let is_last = n * most + part.len() == pages.len();
            let done = Done {
                call: read_ended,
                token: if is_last { keep as u64 } else { PAGE_SIZE as u64 },
            };
            if self.disk.submit(Op::Read, sector, part, done).is_err() {
                vm::pages_read(part, false);
            }
        }
    }

    /// Starts writes of pages to consecutive places; of new blocks they were
    /// [announced](Self::announce). They may wait in a [plug](Self::with_plug).
    pub(super) fn write(&self, at: u64, pages: &[PageNo], blocks: Blocks) {
        let most = self.disk.max_pages();
        let mut done = 0;
        while done < pages.len() {
            let (at, rest) = (at + (done * PAGE_SIZE) as u64, &pages[done..]);
            let task = sched::current();
            if !self.is_plugged_by(task.id()) {
                let part = &rest[..rest.len().min(most)];
                self.start(at, part, blocks);
                done += part.len();
                continue;
            }
            let (count, before) = PLUGS[self.index].lock().add(at, rest, blocks, most);
            task.has_plug.store(true, Ordering::Relaxed);
            done += count;
            if let Some((at, pages, blocks)) = before {
                self.start(at, &pages, blocks);
            }
        }
    }

    fn start(&self, at: u64, pages: &[PageNo], blocks: Blocks) {
        let token = if blocks == Blocks::New { self.index as u64 } else { DISKS as u64 };
        let done = Done { call: write_ended, token };
        if self.disk.submit(Op::Write, at / SECTOR as u64, pages, done).is_err() {
            write_ended(token, pages, Err(EINVAL));
        }
    }

    /// Does something that starts writes, with a plug in which they wait for others that lie
    /// together with them, unless another task has it. All are started when this returns.
    pub(super) fn with_plug(&self, work: impl FnOnce()) {
        let (holder, task) = (&HOLDERS[self.index], sched::current().id());
        let is_ours =
            holder.compare_exchange(0, task, Ordering::Acquire, Ordering::Relaxed).is_ok();
        work();
        if is_ours {
            self.flush(task);
            holder.store(0, Ordering::Release);
        }
    }

    /// Whether a task, which runs, has the disk's plug.
    fn is_plugged_by(&self, task: u64) -> bool {
        HOLDERS[self.index].load(Ordering::Relaxed) == task
    }

    /// Starts the writes in a task's plug.
    fn flush(&self, task: u64) {
        if !self.is_plugged_by(task) {
            return;
        }
        let mut plug = PLUGS[self.index].lock();
        if plug.pages.is_empty() {
            return;
        }
        let (at, pages, blocks) = plug.take();
        drop(plug);
        self.start(at, &pages, blocks);
    }
}

/// The end of a read, where a disk's interrupt is answered: behind a file's end there are zeroes.
fn read_ended(keep: u64, pages: &[PageNo], result: Result<()>) {
    if let Some(&last) = pages.last().filter(|_| keep < PAGE_SIZE as u64) {
        KERNEL.bytes(last).part(keep as usize, PAGE_SIZE - keep as usize).zero();
    }
    vm::pages_read(pages, result.is_ok());
}

/// The end of a write, where a disk's interrupt is answered.
fn write_ended(token: u64, pages: &[PageNo], result: Result<()>) {
    vm::pages_written(pages, result.is_ok());
    if let Some(flight) = IN_FLIGHT.get(token as usize) {
        flight.ended(pages.len());
    }
}

/// The disk as a volume sees it.
#[derive(Clone)]
pub(super) struct Metadata(pub(super) Data);

/// Runs a call of the volume's that may sleep. Interrupts that were taken meanwhile had no task
/// give way.
fn call<T>(code: impl FnOnce() -> T) -> T {
    closed(|| {
        let result = code();
        sched::give_way();
        result
    })
}

impl Device for Metadata {
    fn bytes(&self) -> u64 {
        closed(|| self.0.disk.sectors() * SECTOR as u64)
    }

    fn is_read_only(&self) -> bool {
        closed(|| self.0.disk.is_read_only())
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> core::result::Result<(), DeviceError> {
        call(|| self.0.disk.read(at / SECTOR as u64, to)).map_err(|_| DeviceError)
    }

    fn write(&mut self, at: u64, from: &[u8]) -> core::result::Result<(), DeviceError> {
        call(|| self.0.disk.write(at / SECTOR as u64, from)).map_err(|_| DeviceError)
    }

    fn flush(&mut self) -> core::result::Result<(), DeviceError> {
        call(|| {
            let flight = &IN_FLIGHT[self.0.index];
            flight.none.wait(|| (flight.pages.load(Ordering::Acquire) == 0).then_some(()));
            self.0.disk.flush().map_err(|_| DeviceError)
        })
    }
}

/// The time of day, for a volume.
#[derive(Clone)]
pub(super) struct Now;

impl volume::Clock for Now {
    fn now(&self) -> volume::Timestamp {
        timestamp(closed(sched::wall))
    }
}

/// A time as a volume has it.
pub(super) fn timestamp(time: sched::Nanos) -> volume::Timestamp {
    volume::Timestamp::new((time / 1_000_000_000) as i64, (time % 1_000_000_000) as u32)
}
