//! A virtio disk's queue: requests of many pages each, many at a time.
//!
//! ```text
//!   descriptor n --> table n: header | data, a segment for each run of frames | status
//!                       device reads   reads or writes                  writes
//! ```
//! A request takes one descriptor of the ring, that of its slot, which leads to a table of its own
//! (`VIRTIO_F_INDIRECT_DESC`), so that 64 requests of a MiB each may be under way. Nothing is
//! allocated for a request: the tables, a frame each, and a frame for all headers and states are
//! there from the beginning. A device that knows no such tables gets one request at a time, whose
//! table is the ring's.
//!
//! I1: slot `n`, with its table, header and status, belongs to the device from `start` to `finish`.
//! I2: `tables` are frames of ours that stay; what the device writes in the ring is looked at as a
//! stranger's. Not taken: the crate's queue, which allocates a table for each request and wants its
//! memory as slices, and `VIRTIO_F_EVENT_IDX`.

use core::sync::atomic::{fence, AtomicU16, Ordering};

use arrayvec::ArrayVec;
use machine::PAGE_SIZE;
use virtio_drivers::transport::{SomeTransport, Transport};
use virtio_drivers::{BufferDirection, Error, Hal};

use super::segments::Segment;
use super::{Found, KernelHal};
use crate::arch::irq::Vector;
use crate::arch::layout;
use crate::errno::{Result, EIO, EOPNOTSUPP};

/// Descriptors of the ring, and of a table: what QEMU's disks have unless told otherwise.
const RING: usize = 256;
/// Requests at a time at most.
pub const SLOTS: usize = 64;
/// Segments of one request at most: header and status take two descriptors.
pub const MAX_SEGMENTS: usize = RING - 2;
/// The only queue.
const QUEUE: u16 = 0;
/// Frames of the ring: descriptors, what the driver has made available, what the device has used;
/// where the latter two begin, as legacy devices want it too.
const FRAMES: usize = 3;
const AVAILABLE: u64 = PAGE_SIZE as u64;
const USED: u64 = 2 * PAGE_SIZE as u64;

bitflags::bitflags! {
    /// What a device offers and this driver takes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Feature: u64 {
        const SEGMENTS = 1 << 2;
        const READ_ONLY = 1 << 5;
        const FLUSH = 1 << 9;
        const INDIRECT = 1 << 28;
        const VERSION_1 = 1 << 32;
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Op {
    /// From disk to memory.
    Read = 0,
    /// From memory to disk.
    Write = 1,
    /// Everything written so far reaches stable storage.
    Flush = 4,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    op: u32,
    reserved: u32,
    sector: u64,
}

/// What the device and its driver write for a request, beside the data.
#[repr(C)]
struct Envelope {
    header: Header,
    status: u8,
}

/// Memory, as the device is told of it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    at: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// Flags of a descriptor: another follows; the device writes there; it is a table's.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Of the used ring: the device looks at the other one by itself.
const NO_NOTIFY: u16 = 1;

/// What a disk is.
pub struct Geometry {
    /// In units of 512 bytes.
    pub sectors: u64,
    pub read_only: bool,
    /// Segments that one request may have.
    pub segments: usize,
}

/// See the module.
pub struct Queue {
    transport: SomeTransport<'static>,
    /// The ring's frames, in the direct map.
    ring: u64,
    /// A table for each slot; none if the device knows no tables.
    tables: ArrayVec<u64, SLOTS>,
    envelopes: u64,
    /// Requests that were made available, and that were taken back.
    available: u16,
    taken: u16,
    /// The request that the ring has, if it has room for one alone.
    alone: Option<usize>,
    can_flush: bool,
}

/// The ring has no room for a request now.
pub struct Full;

/// Zeroed frames for good, in the direct map.
fn frames(count: usize) -> core::result::Result<u64, Error> {
    let (pa, at) = KernelHal::dma_alloc(count, BufferDirection::Both);
    if pa == 0 {
        return Err(Error::DmaError);
    }
    Ok(at.as_ptr() as u64)
}

impl Queue {
    /// Resets the device and sets its queue up, with interrupts to `vector`.
    ///
    /// # Errors
    /// What the crate says, `InvalidParam` for a ring that is too small; the device is off.
    pub fn new(found: Found, vector: Vector) -> core::result::Result<(Queue, Geometry), Error> {
        let Found { mut transport, mut interrupt } = found;
        let features = transport.begin_init(Feature::all());
        const {
            assert!(SLOTS * size_of::<Envelope>() <= PAGE_SIZE && SLOTS <= RING);
            assert!(RING * size_of::<Descriptor>() == PAGE_SIZE);
        };
        interrupt.connect(vector);
        if transport.max_queue_size(QUEUE) < RING as u32 {
            return Err(Error::InvalidParam);
        }
        let (ring, envelopes) = (frames(FRAMES)?, frames(1)?);
        let mut tables = ArrayVec::new();
        if features.contains(Feature::INDIRECT) {
            for _ in 0..SLOTS {
                tables.push(frames(1)?);
            }
        }
        let pa = ring - layout::DIRECT;
        transport.queue_set(QUEUE, RING as u32, pa, pa + AVAILABLE, pa + USED);
        let sectors = transport.read_consistent(|| {
            let low: u32 = transport.read_config_space(0)?;
            let high: u32 = transport.read_config_space(4)?;
            Ok(u64::from(high) << 32 | u64::from(low))
        })?;
        let offered: u32 = if features.contains(Feature::SEGMENTS) {
            transport.read_config_space(12)?
        } else {
            1
        };
        let geometry = Geometry {
            sectors,
            read_only: features.contains(Feature::READ_ONLY),
            segments: (offered as usize).clamp(1, MAX_SEGMENTS),
        };
        transport.finish_init();
        let can_flush = features.contains(Feature::FLUSH);
        let (available, taken, alone) = (0, 0, None);
        let queue =
            Queue { transport, ring, tables, envelopes, available, taken, alone, can_flush };
        Ok((queue, geometry))
    }

    /// Whether the device keeps written data in a cache that wants flushing.
    pub fn can_flush(&self) -> bool {
        self.can_flush
    }

    fn envelope(&mut self, slot: usize) -> *mut Envelope {
        assert!(slot < SLOTS, "a slot that is none");
        (self.envelopes as *mut Envelope).wrapping_add(slot)
    }

    /// A 16-bit word of the ring that the device reads or writes too.
    fn word(&self, at: u64) -> &AtomicU16 {
        // SAFETY: in the ring's frames, which stay; callers name even places.
        unsafe { &*((self.ring + at) as *const AtomicU16) }
    }

    /// Hands a request to the device. Its memory is the device's until [`finish`](Self::finish):
    /// the caller keeps the pages from being freed, and what they hold is of no interest. At most
    /// [`MAX_SEGMENTS`].
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn start(
        &mut self,
        slot: usize,
        op: Op,
        sector: u64,
        data: impl Iterator<Item = Segment>,
    ) -> core::result::Result<(), Full> {
        if self.alone.is_some() {
            return Err(Full);
        }
        let envelope = self.envelope(slot);
        let header = Header { op: op as u32, reserved: 0, sector };
        // SAFETY: I1: the slot is free, so the envelope is ours; it lies in the frame that `new`
        // took.
        unsafe { envelope.write(Envelope { header, status: u8::MAX }) };
        let table = self.tables.get(slot).copied();
        let put = |table: u64, n: usize, descriptor: Descriptor| {
            assert!(n < RING, "more segments than a request may have");
            // SAFETY: I1: the slot's table is ours, or the whole ring, in a frame that stays.
            unsafe { (table as *mut Descriptor).add(n).write_volatile(descriptor) };
        };
        let list = table.unwrap_or(self.ring);
        let pa = |direct: u64| direct - layout::DIRECT;
        let head = Segment { at: pa(envelope as u64), len: size_of::<Header>() as u32 };
        let tail = Segment { at: head.at + size_of::<Header>() as u64, len: 1 };
        let mut count = 0;
        let mut add = |segment: Segment, flags: u16| {
            let next = if flags & NEXT != 0 { count as u16 + 1 } else { 0 };
            put(list, count, Descriptor { at: segment.at, len: segment.len, flags, next });
            count += 1;
        };
        add(head, NEXT);
        let how = if op == Op::Read { NEXT | WRITE } else { NEXT };
        data.for_each(|segment| add(segment, how));
        add(tail, WRITE);
        let first = match table {
            Some(table) => {
                let len = (count * size_of::<Descriptor>()) as u32;
                put(self.ring, slot, Descriptor { at: pa(table), len, flags: INDIRECT, next: 0 });
                slot
            }
            None => {
                self.alone = Some(slot);
                0
            }
        };
        // Behind flags and count come the heads of requests, as many as the ring has descriptors.
        let place = AVAILABLE + 4 + 2 * (u64::from(self.available) % RING as u64);
        self.word(place).store(first as u16, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
        self.word(AVAILABLE + 2).store(self.available, Ordering::Release);
        // The device says that it sleeps before it looks at the count for the last time.
        fence(Ordering::SeqCst);
        if self.word(USED).load(Ordering::Relaxed) & NO_NOTIFY == 0 {
            self.transport.notify(QUEUE);
        }
        Ok(())
    }

    /// The slot of a request that the device has done with.
    pub fn finished(&self) -> Option<usize> {
        if self.word(USED + 2).load(Ordering::Acquire) == self.taken {
            return None;
        }
        // Heads with a count of bytes, eight bytes each.
        let place = USED + 4 + 8 * (u64::from(self.taken) % RING as u64);
        let head = usize::from(self.word(place).load(Ordering::Relaxed));
        Some(if self.tables.is_empty() { self.alone.unwrap_or(0) } else { head % SLOTS })
    }

    /// Takes the request that `finished` has named back from the device.
    ///
    /// # Errors
    /// What became of it: `EIO`, `EOPNOTSUPP`.
    pub fn finish(&mut self, slot: usize) -> Result<()> {
        let envelope = self.envelope(slot);
        self.taken = self.taken.wrapping_add(1);
        self.alone = None;
        // SAFETY: I1; the device has written it, or left what `start` wrote.
        let status = unsafe { (&raw const (*envelope).status).read_volatile() };
        match status {
            0 => Ok(()),
            2 => Err(EOPNOTSUPP),
            _ => Err(EIO),
        }
    }

    /// Tells the device that its interrupt has been seen. A line stays up until then; messages need
    /// no answer.
    pub fn acknowledge(&mut self) {
        if let SomeTransport::Mmio(transport) = &mut self.transport {
            transport.ack_interrupt();
        }
    }
}
