//! A virtio disk's queue: requests of many pages each, many at a time.
//!
//! ```text
//!   request = header | data, a segment for each run of frames | status        (virtio 1.1, 5.2.6)
//!             device reads      reads or writes                 device writes
//! ```
//! The crate's own disk driver takes one buffer for each request; this one is on the same ring and
//! transport, with as many as fit. Nothing is allocated for a request: header and status lie in one
//! frame, a pair for each slot, and the caller keeps the segments.
//!
//! I1: slot `n` is the caller's name of a request; its header and status belong to the device from
//! `start` to `finish`. I2: `slot_of[token]` is the slot of each request in the ring. Descriptors
//! are direct: the crate allocates for indirect ones. Not taken: `VIRTIO_F_EVENT_IDX`, since the
//! crate compares its 16-bit indices without regard to their wrap.

use alloc::boxed::Box;

use crate::mem::frames::Reserve;
use machine::{NoMemory, PAGE_SIZE};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{SomeTransport, Transport};
use virtio_drivers::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::segments::{Segments, MAX_SEGMENTS};
use super::{Found, KernelHal};
use crate::arch::irq::Vector;
use crate::arch::layout;
use crate::errno::{Result, EIO, EOPNOTSUPP};
use crate::mem::direct;
use crate::mem::frames::{unlocked, KERNEL};

/// Descriptors of the ring: what QEMU's disks have unless told otherwise.
const RING: usize = 256;
/// Requests at a time at most.
pub const SLOTS: usize = 64;
/// The only queue.
const QUEUE: u16 = 0;

bitflags::bitflags! {
    /// What a device offers and this driver takes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Feature: u64 {
        const SEGMENTS = 1 << 2;
        const READ_ONLY = 1 << 5;
        const FLUSH = 1 << 9;
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

#[derive(Clone, Copy, IntoBytes, FromBytes, Immutable)]
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
    ring: Box<VirtQueue<KernelHal, RING>>,
    envelopes: u64,
    slot_of: [u8; RING],
    can_flush: bool,
}

/// The ring has no room for a request now.
pub struct Full;

impl Queue {
    /// Resets the device and sets its queue up, with interrupts to `vector`.
    ///
    /// # Errors
    /// What the crate says; the device is off.
    pub fn new(found: Found, vector: Vector) -> core::result::Result<(Queue, Geometry), Error> {
        let Found { mut transport, mut interrupt } = found;
        let features = transport.begin_init(Feature::all());
        let page = unlocked(|held| direct::take(held, Reserve::Kernel))
            .map_err(|NoMemory| Error::DmaError)?;
        const { assert!(SLOTS * size_of::<Envelope>() <= PAGE_SIZE && SLOTS <= u8::MAX as usize) };
        interrupt.connect(vector);
        let ring = make_ring(&mut transport)?;
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
        let (envelopes, can_flush) =
            (layout::direct(KERNEL.frames().pa(page).0), features.contains(Feature::FLUSH));
        Ok((Queue { transport, ring, envelopes, slot_of: [0; RING], can_flush }, geometry))
    }

    /// Whether the device keeps written data in a cache that wants flushing.
    pub fn can_flush(&self) -> bool {
        self.can_flush
    }

    fn envelope(&mut self, slot: usize) -> *mut Envelope {
        assert!(slot < SLOTS, "a slot that is none");
        (self.envelopes as *mut Envelope).wrapping_add(slot)
    }

    /// Hands a request to the device. Its memory is the device's until [`finish`](Self::finish):
    /// the caller keeps the pages from being freed, and what they hold is of no interest.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn start(
        &mut self,
        slot: usize,
        op: Op,
        sector: u64,
        data: &Segments,
    ) -> core::result::Result<(), Full> {
        if self.ring.available_desc() < data.len() + 2 {
            return Err(Full);
        }
        let envelope = self.envelope(slot);
        let header = Header { op: op as u32, reserved: 0, sector };
        // SAFETY: I1: the slot is free, so the envelope is ours; it lies in the frame that `new`
        // took.
        unsafe { envelope.write(Envelope { header, status: u8::MAX }) };
        // SAFETY: header, status and data stay where they are until `pop_used` has returned the
        // token, by I1 and the caller.
        let token = with_slices(envelope, op, data, |inputs, outputs| unsafe {
            self.ring.add(inputs, outputs)
        });
        let token = token.map_err(|_| Full)?;
        self.slot_of[usize::from(token)] = slot as u8;
        if self.ring.should_notify() {
            self.transport.notify(QUEUE);
        }
        Ok(())
    }

    /// The slot of a request that the device has done with.
    pub fn finished(&self) -> Option<usize> {
        self.ring.peek_used().map(|token| usize::from(self.slot_of[usize::from(token) % RING]))
    }

    /// Takes the request that `finished` has named back from the device; `op` and `data` are those
    /// it was started with.
    ///
    /// # Errors
    /// What became of it: `EIO`, `EOPNOTSUPP`.
    pub fn finish(&mut self, slot: usize, op: Op, data: &Segments) -> Result<()> {
        let envelope = self.envelope(slot);
        let token = self.ring.peek_used().ok_or(EIO)?;
        // SAFETY: the same header, status and data as in `start`.
        let popped = with_slices(envelope, op, data, |inputs, outputs| unsafe {
            self.ring.pop_used(token, inputs, outputs)
        });
        // SAFETY: I1; the device has written it, or left what `start` wrote.
        let status = unsafe { (&raw const (*envelope).status).read_volatile() };
        match (popped, status) {
            (Ok(_), 0) => Ok(()),
            (Ok(_), 2) => Err(EOPNOTSUPP),
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

/// Apart, since the crate makes it on the stack, where it is large.
#[inline(never)]
fn make_ring(
    transport: &mut SomeTransport<'static>,
) -> core::result::Result<Box<VirtQueue<KernelHal, RING>>, Error> {
    VirtQueue::new(transport, QUEUE, false, false).map(Box::new)
}

/// Calls `work` with a request's memory as the crate wants it: what the device reads, what it
/// writes.
fn with_slices<T>(
    envelope: *mut Envelope,
    op: Op,
    data: &Segments,
    work: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> core::result::Result<T, Error>,
) -> core::result::Result<T, Error> {
    // Plain arrays: the crate borrows the slices for as long as they live, which what has a
    // destructor can't give.
    let mut inputs: [&[u8]; MAX_SEGMENTS + 1] = [&[]; MAX_SEGMENTS + 1];
    let mut outputs: [&mut [u8]; MAX_SEGMENTS + 1] =
        core::array::from_fn(|_| &mut [] as &mut [u8]);
    // SAFETY: the envelope lies in a frame of ours and is used for nothing else meanwhile (I1).
    let (header, status) =
        unsafe { (&(*envelope).header, core::slice::from_mut(&mut (*envelope).status)) };
    inputs[0] = header.as_bytes();
    let (mut reads, mut writes) = (1, 0);
    for segment in data {
        let (at, len) = (segment.at(), segment.len as usize);
        if op == Op::Write {
            // SAFETY: frames that the request's owner keeps; the crate takes no more than their
            // address.
            inputs[reads] = unsafe { core::slice::from_raw_parts(at, len) };
            reads += 1;
        } else {
            // SAFETY: as above.
            outputs[writes] = unsafe { core::slice::from_raw_parts_mut(at, len) };
            writes += 1;
        }
    }
    outputs[writes] = status;
    work(&inputs[..reads], &mut outputs[..=writes])
}
