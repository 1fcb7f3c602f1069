//! What was sent to a socket and not yet received.
//!
//! ```text
//!   Incoming  used, records, ...        read by polls without the lock
//!     | Mutex
//!   Queue     | Record           | Record          |
//!               chain of bytes     chain of bytes
//!               sender's name, credentials, files
//! ```
//!
//! A stream's bytes are in one record as long as nothing but bytes comes along; a message with
//! files starts a new one, so that a receiver gets them with the bytes they were sent with. Of
//! other sockets each record is a message.
//!
//! Invariants: I1: the atomics change only with the queue locked. I2: `used` is the sum of the
//! records' charges: bytes of a stream, memory of a message. I3: nothing comes in after `close`.
//! I4: a writer that finds no room sets `is_wanted` before it looks again or sleeps, and a reader
//! that makes room looks at the flag afterwards: so no writer sleeps beside room. I5: `memory` is
//! the sum of all records' memory, and what the totals of the socket's maker know of.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::address::Address;
use super::arrival::Arrival;
use mbuf::NoMemory;

use super::rights::{defer_close, Rights, Ucred};
use crate::chain::zero_copy::{append, pour, Loans, LOAN};
use crate::chain::{copy_out, Chain, Clusters};
use crate::charge::{self, Account};
use crate::errno::*;
use crate::mem::fault;
use crate::sync::Mutex;
use crate::uio::{Sink, Source};
use crate::vm;

/// What a message costs besides its bytes' memory; bounds how many empty ones a queue takes.
const MESSAGE_COST: usize = 512;

/// What comes along with bytes.
#[derive(Default)]
pub struct Extra {
    pub rights: Option<Box<Rights>>,
    pub cred: Option<Ucred>,
    /// If the receiver asks to be told of it.
    pub arrival: Option<Arrival>,
}

impl Extra {
    /// Lets go what isn't taken.
    pub fn discard(self) {
        if let Some(rights) = self.rights {
            defer_close(rights);
        }
    }
}

/// Bytes that belong together.
pub struct Record {
    pub chain: Chain,
    pub from: Address,
    pub extra: Extra,
    charge: usize,
    /// Of a stream: one byte that is the urgent one, or was.
    is_urgent: bool,
}

/// What has become of a stream's urgent byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgent {
    None,
    Waits,
    /// It was received for itself, and still stands where it was sent.
    Taken,
}

impl Record {
    /// A message.
    pub fn message(chain: Chain, from: Address, extra: Extra) -> Record {
        let mut record = Record { chain, from, extra, charge: 0, is_urgent: false };
        record.charge = record.memory();
        record
    }

    /// Bytes of memory that it takes.
    fn memory(&self) -> usize {
        MESSAGE_COST + self.chain.memory()
    }

    /// What the record takes of a queue's limit.
    pub fn charge(&self) -> usize {
        self.charge
    }

    /// Gives all memory back and lets the files go.
    pub fn discard(self) {
        self.chain.release(&Clusters);
        self.extra.discard();
    }
}

/// Records in the order they came.
pub struct Queue {
    records: VecDeque<Record>,
    used: usize,
    memory: usize,
    is_closed: bool,
    /// Of the one record that is urgent, if there is one.
    urgent: Urgent,
    /// Urgent bytes are received among the others (`SO_OOBINLINE`).
    is_inline: bool,
}

/// A queue and what polls see of it.
pub struct Incoming {
    queue: Mutex<Queue>,
    used: AtomicUsize,
    records: AtomicUsize,
    has_urgent: AtomicBool,
    is_wanted: AtomicBool,
    maker: Arc<Account>,
}

impl Incoming {
    /// An empty queue that counts for the running process.
    pub fn new() -> Incoming {
        Incoming {
            queue: Mutex::new(Queue {
                records: VecDeque::new(),
                used: 0,
                memory: 0,
                is_closed: false,
                urgent: Urgent::None,
                is_inline: false,
            }),
            used: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            has_urgent: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            maker: charge::account(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.records.load(Ordering::SeqCst) == 0
    }

    /// Whether an urgent byte waits.
    pub fn has_urgent(&self) -> bool {
        self.has_urgent.load(Ordering::SeqCst)
    }

    /// What counts against the limit.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// Whether the user's queues hold all that they may.
    pub fn is_over_account(&self) -> bool {
        self.maker.user().is_full()
    }

    /// A writer wants room: the next reader that makes some wakes it.
    pub fn want_room(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
    }

    /// Whether a writer wants the room that was made; it is to be woken then.
    pub fn take_wish(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst) && self.is_wanted.swap(false, Ordering::SeqCst)
    }

    /// Runs `f` with the queue locked, and shows polls what has come of it.
    pub fn with<T>(&self, f: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.queue.lock();
        let before = queue.memory;
        let result = f(&mut queue);
        self.maker.changed(before, queue.memory);
        self.used.store(queue.used, Ordering::SeqCst);
        // An urgent byte that isn't received among the others is nothing to receive.
        let is_apart = queue.urgent != Urgent::None && !queue.is_inline;
        self.records.store(queue.records.len() - usize::from(is_apart), Ordering::SeqCst);
        self.has_urgent.store(queue.urgent == Urgent::Waits, Ordering::SeqCst);
        result
    }

    /// Puts a record of `chain` in front of the others. Nothing may be lost: a process is ended
    /// before this fails.
    pub fn unget(&self, chain: Chain, is_stream: bool) {
        if chain.is_empty() && is_stream {
            return;
        }
        let mut record = Record::message(chain, Address::Unnamed, Extra::default());
        if is_stream {
            record.charge = record.chain.len();
        }
        let left = self.with(|queue| {
            let room = vm::with_room_at_any_cost(|| {
                fault::attempt(|| queue.records.try_reserve(1)).map_err(|_| NoMemory)
            });
            if room.is_err() || queue.is_closed {
                return Some(record);
            }
            queue.used += record.charge;
            queue.memory += record.memory();
            queue.records.push_front(record);
            None
        });
        if let Some(record) = left {
            record.discard();
        }
    }

    /// Empties the queue; with `Close::Yes`, for good. Says whether there was something.
    pub fn clear(&self, close: Close) -> bool {
        let records = self.with(|queue| {
            queue.is_closed |= close == Close::Yes;
            (queue.used, queue.memory, queue.urgent) = (0, 0, Urgent::None);
            core::mem::take(&mut queue.records)
        });
        let had = !records.is_empty();
        records.into_iter().for_each(Record::discard);
        had
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Close {
    Yes,
    No,
}

/// Whether bytes stay in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    Yes,
    No,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn front(&mut self) -> Option<&mut Record> {
        self.records.front_mut()
    }

    /// Bytes of all records.
    pub fn len(&self) -> usize {
        self.records.iter().map(|record| record.chain.len()).sum()
    }

    /// Copies up to `room` bytes of `from` in behind what is there; the files of `extra` go with
    /// the first of them.
    ///
    /// Fails with `EFAULT` or `ENOBUFS`, after what could be copied.
    pub fn fill(&mut self, from: &mut Source<'_>, room: usize, extra: &mut Extra) -> Result<()> {
        let glues = self.records.back().is_some_and(|last| {
            let is_plain = extra.rights.is_none() && last.extra.rights.is_none();
            is_plain && !last.is_urgent && extra.cred == last.extra.cred
        });
        if !glues {
            fault::attempt(|| self.records.try_reserve(1)).map_err(|_| ENOBUFS)?;
            let extra = Extra { rights: extra.rights.take(), cred: extra.cred, arrival: None };
            let (chain, from) = (Chain::new(), Address::Unnamed);
            let record = Record { chain, from, extra, charge: 0, is_urgent: false };
            self.memory += record.memory();
            self.records.push_back(record);
        }
        let Some(last) = self.records.back_mut() else { return Err(ENOBUFS) };
        let (before, memory) = (from.done(), last.chain.memory());
        let result = append(&mut last.chain, from, room, LOAN.loans(from.left(), room));
        let n = from.done() - before;
        last.charge += n;
        self.used += n;
        self.memory = self.memory + last.chain.memory() - memory;
        if last.chain.is_empty() {
            // Nothing came into the new record.
            if let Some(record) = self.records.pop_back() {
                self.memory -= record.memory();
                extra.rights = record.extra.rights;
            }
        }
        result
    }

    /// Takes bytes of a stream out: those that belong together, as far as there is room. What came
    /// along with them goes to `extra`; returns whether a receiver that wants more may go on.
    pub fn drain(&mut self, to: &mut Sink<'_>, peek: Peek, got: &mut Got) -> Result<Flow> {
        if peek == Peek::Yes {
            return self.look(to, got);
        }
        while to.left() > 0 {
            let Some(record) = self.records.front_mut() else { return Ok(Flow::More) };
            if !got.takes(&record.extra) || record.is_urgent && got.cred.is_some() {
                return Ok(Flow::Stop);
            }
            if core::mem::take(&mut record.is_urgent) {
                self.urgent = Urgent::None;
            }
            let (before, memory) = (to.done(), record.chain.memory());
            let result = pour(&mut record.chain, to);
            let n = to.done() - before;
            self.used -= n;
            self.memory = self.memory + record.chain.memory() - memory;
            record.charge -= n;
            if n > 0 {
                got.cred = Some(record.extra.cred);
                got.rights = got.rights.take().or(record.extra.rights.take());
            }
            if record.chain.is_empty() {
                if let Some(record) = self.pop() {
                    record.discard();
                }
            }
            result?;
            if got.rights.is_some() {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Stop)
    }

    fn look(&mut self, to: &mut Sink<'_>, got: &mut Got) -> Result<Flow> {
        for record in &self.records {
            if record.is_urgent && !self.is_inline && got.cred.is_none() {
                continue;
            }
            if !got.takes(&record.extra) || record.is_urgent && got.cred.is_some() {
                break;
            }
            for piece in record.chain.pieces() {
                copy_out(to, piece)?;
                if to.left() == 0 {
                    break;
                }
            }
            got.cred = Some(record.extra.cred);
            if let Some(rights) = &record.extra.rights {
                got.files = rights.copy();
            }
            if to.left() == 0 || record.extra.rights.is_some() {
                break;
            }
        }
        Ok(Flow::Stop)
    }

    /// Moves up to `room` bytes of `chain` behind what is there.
    ///
    /// Fails with `ENOBUFS`; `chain` has then what was not moved.
    pub fn give(&mut self, chain: &mut Chain, room: usize) -> Result<()> {
        let is_plain = |last: &Record| {
            last.extra.rights.is_none() && last.extra.cred.is_none() && !last.is_urgent
        };
        if !self.records.back().is_some_and(is_plain) {
            fault::attempt(|| self.records.try_reserve(1)).map_err(|_| ENOBUFS)?;
            let (from, extra) = (Address::Unnamed, Extra::default());
            let record = Record { chain: Chain::new(), from, extra, charge: 0, is_urgent: false };
            self.memory += record.memory();
            self.records.push_back(record);
        }
        let Some(last) = self.records.back_mut() else { return Err(ENOBUFS) };
        let (before, memory) = (last.chain.len(), last.chain.memory());
        let result = last.chain.take_from(&Clusters, chain, room).map_err(|NoMemory| ENOBUFS);
        let n = last.chain.len() - before;
        last.charge += n;
        self.used += n;
        self.memory = self.memory + last.chain.memory() - memory;
        if last.chain.is_empty() {
            self.memory -= self.records.pop_back().map_or(0, |record| record.memory());
        }
        result
    }

    /// Moves up to `most` bytes of a stream to `to`: of the first record, whose files go to
    /// `rights`.
    ///
    /// Fails with `ENOBUFS`, after what could be moved.
    pub fn take(
        &mut self,
        to: &mut Chain,
        most: usize,
        rights: &mut Option<Box<Rights>>,
    ) -> Result<()> {
        let Some(record) = self.records.front_mut() else { return Ok(()) };
        if core::mem::take(&mut record.is_urgent) {
            self.urgent = Urgent::None;
        }
        let (before, memory) = (record.chain.len(), record.chain.memory());
        let result = to.take_from(&Clusters, &mut record.chain, most).map_err(|NoMemory| ENOBUFS);
        let n = before - record.chain.len();
        self.memory = self.memory + record.chain.memory() - memory;
        *rights = record.extra.rights.take();
        record.charge -= n;
        self.used -= n;
        if record.chain.is_empty() {
            if let Some(record) = self.pop() {
                record.discard();
            }
        }
        result
    }

    /// Whether a message that takes `charge` fits under `limit`; one always does in an empty queue.
    pub fn fits(&self, charge: usize, limit: usize) -> bool {
        self.records.is_empty() || self.used + charge <= limit
    }

    /// Makes room for some messages.
    ///
    /// Fails with `ENOBUFS`.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        fault::attempt(|| self.records.try_reserve(count)).map_err(|_| ENOBUFS)
    }

    /// Puts a message behind the others and takes it from the caller.
    ///
    /// Fails with `ENOBUFS`; the caller has it still.
    pub fn push(&mut self, record: &mut Option<Record>) -> Result<()> {
        fault::attempt(|| self.records.try_reserve(1)).map_err(|_| ENOBUFS)?;
        if let Some(record) = record.take() {
            self.used += record.charge;
            self.memory += record.memory();
            self.records.push_back(record);
        }
        Ok(())
    }

    pub fn pop(&mut self) -> Option<Record> {
        let record = self.records.pop_front()?;
        fault::shrink(&mut self.records);
        self.used -= record.charge;
        self.memory -= record.memory();
        if record.is_urgent {
            self.urgent = Urgent::None;
        }
        Some(record)
    }

    /// Puts an urgent byte behind what is there. The one before is a byte like others from now on;
    /// of TCP it is lost where nothing stands before it.
    ///
    /// Fails with `ENOBUFS`.
    pub fn push_urgent(&mut self, byte: u8, is_local: bool) -> Result<()> {
        fault::attempt(|| self.records.try_reserve(1)).map_err(|_| ENOBUFS)?;
        let mut chain = Chain::new();
        let mut bytes = Source::kernel(core::slice::from_ref(&byte));
        append(&mut chain, &mut bytes, 1, Loans::Nothing)?;
        if self.at_mark() && !is_local && !self.is_inline {
            self.pop().into_iter().for_each(Record::discard);
        }
        self.records.iter_mut().for_each(|record| record.is_urgent = false);
        let mut record = Record::message(chain, Address::Unnamed, Extra::default());
        // Many of them are no more than as many messages.
        record.charge = MESSAGE_COST;
        record.is_urgent = true;
        self.used += record.charge;
        self.memory += record.memory();
        self.records.push_back(record);
        self.urgent = Urgent::Waits;
        Ok(())
    }

    /// The urgent byte, which a receiver takes for itself; one of TCP keeps its place.
    ///
    /// Fails with `EINVAL` if none waits.
    pub fn urgent(&mut self, peek: Peek, is_local: bool) -> Result<u8> {
        if self.is_inline || self.urgent != Urgent::Waits {
            return Err(EINVAL);
        }
        let at = self.records.iter().position(|record| record.is_urgent).ok_or(EINVAL)?;
        let mut byte = 0;
        self.records[at].chain.copy_out(&Clusters, 0, core::slice::from_mut(&mut byte));
        if peek == Peek::Yes {
            return Ok(byte);
        }
        self.urgent = Urgent::Taken;
        if is_local {
            self.urgent = Urgent::None;
            if let Some(record) = self.records.remove(at) {
                self.used -= record.charge;
                self.memory -= record.memory();
                record.discard();
            }
        }
        Ok(byte)
    }

    /// Whether the next byte is the urgent one, or was.
    pub fn at_mark(&self) -> bool {
        self.records.front().is_some_and(|record| record.is_urgent)
    }

    /// A receiver that has nothing yet goes past the mark: what isn't received among others is
    /// lost.
    pub fn pass_mark(&mut self) {
        if self.at_mark() && !self.is_inline {
            self.pop().into_iter().for_each(Record::discard);
        }
    }

    /// Bytes before an urgent one that isn't received among the others; all of them, if there is
    /// none.
    pub fn len_to_mark(&self) -> usize {
        let before = self.records.iter().take_while(|record| !record.is_urgent || self.is_inline);
        before.map(|record| record.chain.len()).sum()
    }

    /// `SO_OOBINLINE`.
    pub fn set_inline(&mut self, is_inline: bool) {
        self.is_inline = is_inline;
    }
}

/// Whether a receiver may take bytes behind those that it has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    More,
    Stop,
}

/// What a receiver has got besides bytes.
#[derive(Default)]
pub struct Got {
    /// Files taken out of their message.
    pub rights: Option<Box<Rights>>,
    /// Files of a message that stays.
    pub files: alloc::vec::Vec<alloc::sync::Arc<crate::fs::file::File>>,
    /// The credentials of the first byte's sender, once there is a byte.
    pub cred: Option<Option<Ucred>>,
    /// How the message has come, if the receiver had asked to be told.
    pub arrival: Option<Arrival>,
}

impl Got {
    /// Whether bytes with `extra` may be received with those before.
    fn takes(&self, extra: &Extra) -> bool {
        match self.cred {
            None => true,
            Some(cred) => extra.rights.is_none() && extra.cred == cred,
        }
    }
}
