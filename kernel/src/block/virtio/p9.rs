//! Channels to the host's 9P servers: a message goes out, its answer comes back.
//!
//! ```text
//!   request = message | pages of a write       device reads     (virtio 1.3, 5.x: one queue)
//!   reply   = message | pages of a read        device writes
//! ```
//! A channel has one request on its way at a time, with buffers of its own: so what programs ask
//! for takes no memory here, and threads that ask at once come one after another.
//!
//! I1: buffers and pages are the device's from `add` to `pop_used`; the thread that has the
//! [`Turn`] waits in between. I2: a device that answers what it wasn't asked is asked nothing more.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use machine::PAGE_SIZE;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{SomeTransport, Transport};
use virtio_drivers::Error;

use super::segments::{self, Bytes, Segment};
use super::{Found, KernelHal};
use crate::arch::irq::{self, Vector};
use crate::errno::{Result, EBUSY, EIO};
use crate::mem::fault::Room;
use crate::println;
use crate::sync::{Mutex, MutexGuard, Once, SpinLock, WaitQueue};

/// Descriptors of the ring: what QEMU's devices have.
const RING: usize = 128;
/// The only queue.
const QUEUE: u16 = 0;
/// Devices at most.
const CHANNELS: usize = 16;
/// Bytes of a message at most, beside a request's pages: two names and a link's target fit.
pub const MESSAGE: usize = 2 * PAGE_SIZE;
/// Pages that go with a message at most: with the messages' own, half of the ring.
pub const MAX_PAGES: usize = 56;
/// Segments of each way of a request at most.
const MAX_SEGMENTS: usize = 64;
/// Segments of a message at most: it may begin inside a page.
const OF_MESSAGE: usize = MESSAGE / PAGE_SIZE + 1;
const _: () = assert!(MAX_PAGES + OF_MESSAGE <= MAX_SEGMENTS && 2 * MAX_SEGMENTS <= RING);
/// The longest name of a device.
const TAG: usize = 64;

bitflags::bitflags! {
    /// What a device offers and this driver takes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Feature: u64 {
        const TAG = 1 << 0;
        const VERSION_1 = 1 << 32;
    }
}

static TABLE: [Once<Arc<Channel>>; CHANNELS] = [const { Once::new() }; CHANNELS];

/// A device.
pub struct Channel {
    tag: String,
    queue: SpinLock<Queue>,
    buffers: Mutex<Buffers>,
    answered: WaitQueue,
    claimed: AtomicBool,
}

struct Queue {
    transport: SomeTransport<'static>,
    ring: Box<VirtQueue<KernelHal, RING>>,
    /// I2.
    is_broken: bool,
}

struct Buffers {
    request: Vec<u8>,
    reply: Vec<u8>,
}

/// Takes a device into service. Start-up only.
pub fn attach(found: Found) {
    let Some(index) = TABLE.iter().position(|place| place.get().is_none()) else { return };
    let vector = irq::register(
        format!("9p{index}"),
        |index| TABLE[index].get().into_iter().for_each(|channel| channel.answer()),
        index,
    );
    let Some(vector) = vector else { return println!("9p{index}: there is no interrupt left") };
    match Channel::new(found, vector) {
        Ok(channel) => _ = TABLE[index].call_once(|| Arc::new(channel)),
        Err(error) => println!("9p{index}: {error}"),
    }
}

/// The channel whose device has this name.
pub fn by_tag(tag: &[u8]) -> Option<&'static Arc<Channel>> {
    TABLE.iter().filter_map(Once::get).find(|channel| channel.tag.as_bytes() == tag)
}

impl Channel {
    fn new(found: Found, vector: Vector) -> core::result::Result<Channel, Error> {
        let Found { mut transport, mut interrupt } = found;
        let features = transport.begin_init(Feature::all());
        if !features.contains(Feature::TAG) {
            return Err(Error::Unsupported);
        }
        interrupt.connect(vector);
        let ring = make_ring(&mut transport)?;
        let length: u16 = transport.read_config_space(0)?;
        let bytes = (0..usize::from(length).min(TAG))
            .map(|at| transport.read_config_space::<u8>(size_of::<u16>() + at));
        let tag = bytes.collect::<core::result::Result<Vec<u8>, Error>>()?;
        transport.finish_init();
        Ok(Channel {
            tag: String::from_utf8_lossy(&tag).into_owned(),
            queue: SpinLock::new(Queue { transport, ring, is_broken: false }),
            buffers: Mutex::new(Buffers { request: Vec::new(), reply: Vec::new() }),
            answered: WaitQueue::new(),
            claimed: AtomicBool::new(false),
        })
    }

    /// Takes the channel for a file system.
    ///
    /// # Errors
    /// `EBUSY` if it is taken; `ENOMEM`.
    pub fn claim(&self) -> Result<()> {
        let mut buffers = self.buffers.lock();
        if buffers.request.capacity() == 0 {
            buffers.request.room(MESSAGE)?;
            buffers.reply.room(MESSAGE)?;
            buffers.reply = vec![0; MESSAGE];
        }
        if self.claimed.swap(true, Ordering::Acquire) {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Takes [`claim`](Self::claim) back.
    pub fn release_claim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Waits until no other request is on its way.
    pub fn turn(&self) -> Turn<'_> {
        let mut buffers = self.buffers.lock();
        buffers.request.clear();
        Turn { channel: self, buffers }
    }

    /// The device's interrupt.
    fn answer(&self) {
        if let SomeTransport::Mmio(transport) = &mut self.queue.lock().transport {
            transport.ack_interrupt();
        }
        self.answered.wake_all();
    }

    /// Hands a request to the device; its token.
    fn start(&self, lists: &Lists<'_>) -> Result<u16> {
        let mut queue = self.queue.lock();
        if queue.is_broken || queue.ring.available_desc() < lists.len() {
            return Err(EIO);
        }
        // SAFETY: what the segments name stays where it is until `finish` has returned (I1).
        let token = lists.with_slices(|sent, received| unsafe { queue.ring.add(sent, received) });
        let token = token.map_err(|_| EIO)?;
        if queue.ring.should_notify() {
            queue.transport.notify(QUEUE);
        }
        Ok(token)
    }

    /// What has become of a request, if the device has done with it: bytes of the answer.
    fn finish(&self, token: u16, lists: &Lists<'_>) -> Option<Result<usize>> {
        let mut queue = self.queue.lock();
        let answered = queue.ring.peek_used()?;
        // SAFETY: the lists of `start`.
        let popped = lists
            .with_slices(|sent, received| unsafe { queue.ring.pop_used(token, sent, received) });
        queue.is_broken |= answered != token || popped.is_err();
        Some(popped.map(|bytes| bytes as usize).map_err(|_| EIO))
    }
}

/// Apart, since the crate makes it on the stack, where it is large.
#[inline(never)]
fn make_ring(
    transport: &mut SomeTransport<'static>,
) -> core::result::Result<Box<VirtQueue<KernelHal, RING>>, Error> {
    VirtQueue::new(transport, QUEUE, false, false).map(Box::new)
}

/// A thread's turn to ask.
pub struct Turn<'a> {
    channel: &'a Channel,
    buffers: MutexGuard<'a, Buffers>,
}

impl Turn<'_> {
    /// The message to be sent, which has room for [`MESSAGE`] bytes.
    pub fn request(&mut self) -> &mut Vec<u8> {
        &mut self.buffers.request
    }

    /// Sends the request with the bytes of `sent` behind it, and waits for the answer, of which
    /// all behind the first `head` bytes goes to `received`; returns those, as far as they came.
    /// The caller keeps the pages of both, at most [`MAX_PAGES`].
    ///
    /// # Errors
    /// `EIO`: the device answers what it wasn't asked.
    pub fn exchange(
        &mut self,
        sent: &[Segment],
        head: usize,
        received: &[Segment],
    ) -> Result<&[u8]> {
        let is_much = sent.len().max(received.len()) > MAX_PAGES;
        if self.buffers.request.is_empty() || self.buffers.reply.len() < head || is_much {
            return Err(EIO);
        }
        let (request, reply) =
            (of_slice(&self.buffers.request), of_slice(&self.buffers.reply[..head]));
        let lists = Lists { sent: [&request, sent], received: [&reply, received] };
        let token = self.channel.start(&lists)?;
        let bytes = self.channel.answered.wait(|| self.channel.finish(token, &lists))?;
        Ok(&self.buffers.reply[..head.min(bytes)])
    }
}

/// The segments of a buffer.
fn of_slice(buffer: &[u8]) -> ArrayVec<Segment, OF_MESSAGE> {
    // SAFETY: the thread whose turn it is has the buffers until the answer has come (I1).
    let bytes = unsafe { Bytes::new(buffer.as_ptr() as u64, buffer.len()) };
    segments::of_bytes(bytes).collect()
}

/// The memory of a request: what the device reads and writes.
struct Lists<'a> {
    sent: [&'a [Segment]; 2],
    received: [&'a [Segment]; 2],
}

impl Lists<'_> {
    fn len(&self) -> usize {
        self.sent.iter().chain(&self.received).map(|list| list.len()).sum()
    }

    /// Calls `work` with the memory as the crate wants it.
    fn with_slices<T>(
        &self,
        work: impl for<'a> FnOnce(
            &'a [&'a [u8]],
            &'a mut [&'a mut [u8]],
        ) -> core::result::Result<T, Error>,
    ) -> core::result::Result<T, Error> {
        // Plain arrays: the crate borrows the slices for as long as they live, which what has a
        // destructor can't give.
        let mut sent: [&[u8]; MAX_SEGMENTS] = [&[]; MAX_SEGMENTS];
        let mut received: [&mut [u8]; MAX_SEGMENTS] =
            core::array::from_fn(|_| &mut [] as &mut [u8]);
        let (mut reads, mut writes) = (0, 0);
        for segment in self.sent.into_iter().flatten() {
            // SAFETY: frames that the request's owner keeps; the crate takes no more than their
            // address.
            sent[reads] =
                unsafe { core::slice::from_raw_parts(segment.at(), segment.len as usize) };
            reads += 1;
        }
        for segment in self.received.into_iter().flatten() {
            // SAFETY: as above.
            received[writes] =
                unsafe { core::slice::from_raw_parts_mut(segment.at(), segment.len as usize) };
            writes += 1;
        }
        work(&sent[..reads], &mut received[..writes])
    }
}
