//! What the VM system waits on: a count of wake-ups and a queue of sleepers for each channel.
//!
//! I1: a ticket's sequence number was read under the lock that the waker holds as it changes what
//! is waited for; a wake-up counts first and looks for sleepers then, a sleeper queues first and
//! looks at the count then. So one of the two sees the other, and a wake-up between the ticket and
//! the sleep isn't lost. The queue's lock orders the count.
//!
//! Channels share queues: a wake-up on one may wake sleepers of another, which look at their count
//! and try again. But for the line of threads that wait for memory, which is woken one by one.

use machine::{Channel, Ticket};

use super::word::{AtomicU64, Ordering::Relaxed};
use super::WaitQueue;

struct Bucket {
    sequence: AtomicU64,
    waiters: WaitQueue,
}

const BUCKETS: usize = 64;
/// The line's own.
const LINE: usize = BUCKETS;

/// See the module.
pub struct Channels([Bucket; BUCKETS + 1]);

impl Channels {
    /// No task waits on any channel.
    pub const fn new() -> Channels {
        Channels(
            [const { Bucket { sequence: AtomicU64::new(0), waiters: WaitQueue::new() } };
                BUCKETS + 1],
        )
    }

    fn bucket(&self, channel: Channel) -> &Bucket {
        let shared = (channel.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        &self.0[if channel == Channel::MEMORY_TURN { LINE } else { shared }]
    }

    /// The channel as it is now.
    pub fn ticket(&self, channel: Channel) -> Ticket {
        Ticket { channel, sequence: self.bucket(channel).sequence.load(Relaxed) }
    }

    /// Sleeps until the ticket's channel has been woken since, or, if that is looked at,
    /// `is_enough` says so.
    pub fn wait(&self, ticket: Ticket, is_enough: impl Fn() -> bool) {
        let bucket = self.bucket(ticket.channel);
        bucket.waiters.wait(|| {
            (bucket.sequence.load(Relaxed) != ticket.sequence || is_enough()).then_some(())
        });
    }

    /// Wakes all that wait on the channel.
    pub fn wake(&self, channel: Channel) {
        let bucket = self.bucket(channel);
        bucket.sequence.fetch_add(1, Relaxed);
        bucket.waiters.wake_all();
    }

    /// Wakes the one that has waited longest on the channel.
    pub fn wake_one(&self, channel: Channel) {
        let bucket = self.bucket(channel);
        bucket.sequence.fetch_add(1, Relaxed);
        bucket.waiters.wake_one();
    }
}

impl Default for Channels {
    fn default() -> Self {
        Channels::new()
    }
}
