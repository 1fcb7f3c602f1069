//! Messages with boundaries: datagrams, and connected sequences of packets.

use linux_raw_sys::general as abi;

use alloc::collections::BTreeMap;

use super::address::{Address, Ip, Kind};
use super::arrival::{Arrival, PacketOptions};
use super::queue::{Extra, Got, Peek, Record};
use super::rights::Control;
use super::socket::{How, Received, Socket, Watcher, SHUT_RECEIVE, SHUT_SEND};
use super::transport::Route;
use crate::chain::zero_copy::{append, hold, LOAN};
use crate::chain::{copy_out, Chain, Clusters};
use crate::charge;
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::sched;
use crate::uio::{Sink, Source};

/// The most messages in a local datagram socket's queue beside its limit in bytes.
const OVERHEAD: usize = 32;

/// Whether the caller is charged already for the message that it sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    Charge,
}

impl Socket {
    /// Sends `from` as one message, to `dest` or the peer; waits for room, except over UDP, where a
    /// message without room is lost.
    pub(super) fn send_packet(
        &self,
        dest: Option<&Address>,
        from: &mut Source<'_>,
        control: Option<Control>,
        blocking: Blocking,
    ) -> Result<usize> {
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        if self.shut() & SHUT_SEND != 0 {
            return Err(EPIPE);
        }
        let len = from.left();
        let most = self.longest_message();
        if len > most {
            return Err(EMSGSIZE);
        }
        let packet = control.as_ref().map(|control| control.packet).unwrap_or_default();
        let Some(route) = self.route(dest, packet.source)? else { return Ok(from.skip(len)) };
        let extra = self.extra(&route.receiver, control)?;
        let extra = Extra { arrival: self.arrival(&route, packet), ..extra };
        let mut chain = Chain::new();
        if let Err(errno) = append(&mut chain, from, len, LOAN.loans(len, len)) {
            chain.release(&Clusters);
            extra.discard();
            return Err(errno);
        }
        let mut record = Some(Record::message(chain, route.from, extra));
        let result = self.deliver(&route.receiver, &mut record, blocking, Holds::Nothing);
        if let Some(record) = record {
            record.discard();
        }
        result.map(|()| len)
    }

    /// As a send of `chain` as one message, which is moved.
    pub(super) fn give_packet(&self, chain: &mut Chain, blocking: Blocking) -> Result<usize> {
        if self.shut() & SHUT_SEND != 0 {
            return Err(EPIPE);
        }
        let len = chain.len();
        let most = self.longest_message();
        if len > most {
            return Err(EMSGSIZE);
        }
        let Some(route) = self.route(None, None)? else {
            chain.clear(&Clusters);
            return Ok(len);
        };
        let extra = self.extra(&route.receiver, None)?;
        let extra = Extra { arrival: self.arrival(&route, PacketOptions::default()), ..extra };
        let mut record = Some(Record::message(core::mem::take(chain), route.from, extra));
        let result = self.deliver(&route.receiver, &mut record, blocking, Holds::Charge);
        if let Some(record) = record {
            record.extra.discard();
            *chain = record.chain;
        }
        result.map(|()| len)
    }

    /// As a receive of a message into `most` bytes, which are moved out; what doesn't fit is lost.
    pub(super) fn take_packet_whole(&self, most: usize, blocking: Blocking) -> Result<Chain> {
        let mut chain = Chain::new();
        let how = How { blocking, peek: Peek::No, wait_all: false };
        self.next_packet(how, |socket| {
            let record = socket.incoming.with(|queue| queue.pop())?;
            socket.tell_senders_of_room();
            chain = record.chain;
            let beyond = chain.len().saturating_sub(most);
            chain.trim_back(&Clusters, beyond);
            record.extra.discard();
            Some(Ok(()))
        })?;
        Ok(chain)
    }

    /// How a datagram comes there, if the receiver asks to be told.
    fn arrival(&self, route: &Route, packet: PacketOptions) -> Option<Arrival> {
        let is_asked = route.receiver.options.told() != 0;
        is_asked.then(|| Arrival::new(&self.options, self.family, packet, route.to))
    }

    /// The most bytes of a message.
    fn longest_message(&self) -> usize {
        self.transport.rules().most.unwrap_or_else(|| self.options.send_limit() - OVERHEAD)
    }

    /// The way of a message to `dest` or the peer; none where there is no receiver and the sender
    /// needn't know.
    fn route(&self, dest: Option<&Address>, source: Option<Ip>) -> Result<Option<Route>> {
        if self.kind == Kind::Seqpacket {
            let receiver = self.peer().ok_or(ENOTCONN)?;
            return Ok(Some(Route { receiver, from: self.name(), to: Ip::ANY4 }));
        }
        self.transport.route(self, dest, source)
    }

    /// Puts a message into a queue and takes it from the caller. Over UDP, what finds no room is
    /// left with the caller. The running process is charged for a message that waits for room.
    fn deliver(
        &self,
        receiver: &Socket,
        record: &mut Option<Record>,
        blocking: Blocking,
        holds: Holds,
    ) -> Result<()> {
        let mut held = None;
        let charge = record.as_ref().map_or(0, Record::charge);
        let limit = self.limit_at(receiver);
        loop {
            let refuses = receiver.shut() & SHUT_RECEIVE != 0 && self.kind == Kind::Datagram;
            if refuses || self.shut() & SHUT_SEND != 0 {
                return Err(EPIPE);
            }
            let tried = receiver.incoming.with(|queue| {
                if queue.is_closed() {
                    return Err(if self.kind == Kind::Datagram { ECONNREFUSED } else { EPIPE });
                }
                if !queue.fits(charge, limit) {
                    receiver.incoming.want_room();
                    return Err(EAGAIN);
                }
                if receiver.incoming.is_over_account() {
                    return Err(ENOBUFS);
                }
                let is_news = queue.is_empty() || receiver.readers.is_watched();
                queue.push(record)?;
                Ok(is_news)
            });
            match tried {
                Ok(true) => {
                    receiver.readers.wake_all();
                    return Ok(());
                }
                Ok(false) => return Ok(()),
                // Lost, as on any way that is full.
                Err(EAGAIN) if self.transport.rules().is_lossy => return Ok(()),
                Err(EAGAIN) if blocking == Blocking::Yes => {
                    if let (Holds::Nothing, None, Some(record)) = (holds, &held, &*record) {
                        held = Some(hold(&record.chain)?);
                    }
                    self.wait_for_room(receiver, charge)?;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// How much a receiver's queue takes from this sender.
    fn limit_at(&self, receiver: &Socket) -> usize {
        if self.kind == Kind::Seqpacket {
            self.options.send_limit()
        } else {
            receiver.options.receive_limit()
        }
    }

    fn wait_for_room(&self, receiver: &Socket, charge: usize) -> Result<()> {
        let limit = self.limit_at(receiver);
        let fits = || {
            let used = receiver.incoming.used();
            used == 0 || used + charge <= limit
        };
        let ready = || {
            let is_over = self.shut() & SHUT_SEND != 0 || receiver.shut() & SHUT_RECEIVE != 0;
            is_over || fits() || {
                receiver.incoming.want_room();
                fits()
            }
        };
        self.wait(&receiver.room, self.options.send_timeout(), ready)
    }

    /// Receives one message; what doesn't fit of it is lost.
    pub(super) fn receive_packet(
        &self,
        to: &mut Sink<'_>,
        how: How,
        got: &mut Got,
    ) -> Result<Received> {
        let taken = self.next_packet(how, |socket| match how.peek {
            Peek::Yes => socket.look_at_packet(to, got),
            Peek::No => socket.take_packet(to, got),
        });
        Ok(taken?.unwrap_or(Received { copied: 0, whole: 0, from: None }))
    }

    /// Waits until `take` finds a message. `None`: nothing more comes.
    fn next_packet<T>(
        &self,
        how: How,
        mut take: impl FnMut(&Socket) -> Option<Result<T>>,
    ) -> Result<Option<T>> {
        if self.kind == Kind::Seqpacket && !self.is_connected() {
            return Err(ENOTCONN);
        }
        loop {
            if let Some(result) = take(self) {
                return result.map(Some);
            }
            if let Some(errno) = self.take_error() {
                return Err(errno);
            }
            if self.shut() & SHUT_RECEIVE != 0 && self.incoming.is_empty() {
                return Ok(None);
            }
            if how.blocking == Blocking::No {
                return Err(EAGAIN);
            }
            self.wait(&self.readers, self.options.receive_timeout(), || self.is_readable())?;
        }
    }

    fn take_packet(&self, to: &mut Sink<'_>, got: &mut Got) -> Option<Result<Received>> {
        let mut record = self.incoming.with(|queue| queue.pop())?;
        self.tell_senders_of_room();
        let whole = record.chain.len();
        let before = to.done();
        let result = crate::chain::zero_copy::pour(&mut record.chain, to);
        got.cred = Some(record.extra.cred);
        got.arrival = record.extra.arrival;
        got.rights = record.extra.rights.take();
        let from = core::mem::replace(&mut record.from, Address::Unnamed);
        record.discard();
        Some(result.map(|()| Received { copied: to.done() - before, whole, from: Some(from) }))
    }

    fn look_at_packet(&self, to: &mut Sink<'_>, got: &mut Got) -> Option<Result<Received>> {
        self.incoming.with(|queue| {
            let record = queue.front()?;
            let before = to.done();
            for piece in record.chain.pieces() {
                if to.left() == 0 {
                    break;
                }
                if let Err(errno) = copy_out(to, piece) {
                    return Some(Err(errno));
                }
            }
            got.cred = Some(record.extra.cred);
            got.arrival = record.extra.arrival;
            got.files =
                record.extra.rights.as_ref().map(|rights| rights.copy()).unwrap_or_default();
            let (whole, from) = (record.chain.len(), Some(record.from.clone()));
            Some(Ok(Received { copied: to.done() - before, whole, from }))
        })
    }

    fn tell_senders_of_room(&self) {
        if !self.incoming.take_wish() {
            return;
        }
        self.room.wake_all();
        if let Some(peer) = self.peer() {
            peer.writers.wake_all();
        }
        let watchers = core::mem::take(&mut self.ends.lock().watchers);
        tell(watchers);
    }
}

/// Wakes sockets that poll for room, and gives way on the way.
pub(super) fn tell(watchers: BTreeMap<u64, Watcher>) {
    /// What it takes to wake one: the work of copying so many bytes.
    const WAKING: usize = 1024;
    for watcher in watchers.into_values() {
        if let Some(socket) = watcher.socket.upgrade() {
            socket.writers.wake_all();
        }
        sched::work_done(WAKING);
    }
}

/// What a poll of a datagram socket sees besides its own queue.
pub(super) fn poll(socket: &Socket) -> u32 {
    let shut = socket.shut();
    let mut events = 0;
    if shut & SHUT_RECEIVE != 0 {
        events |= abi::POLLRDHUP;
        events |= if shut & SHUT_SEND != 0 { abi::POLLHUP } else { 0 };
    }
    let peer = if socket.transport.rules().is_lossy { None } else { socket.peer() };
    let is_full = peer.is_some_and(|peer| {
        // No wake-up would reach a socket that can't be noted: it tries, and finds out.
        is_full(socket, &peer) && watch(socket, &peer).is_ok() && is_full(socket, &peer)
    });
    if !is_full {
        events |= abi::POLLOUT | abi::POLLWRNORM;
    }
    events
}

fn is_full(socket: &Socket, peer: &Socket) -> bool {
    let limit = socket.limit_at(peer);
    peer.incoming.used() * 2 > limit
}

/// Has `socket` woken when `peer` has room.
///
/// # Errors
/// `ENOBUFS`: there is no memory to note it, or the user has all that it may.
fn watch(socket: &Socket, peer: &Socket) -> Result<()> {
    /// Its place in a tree whose nodes may be half empty.
    const WATCHER: usize = 2 * (size_of::<u64>() + size_of::<Watcher>());
    let mut ends = peer.ends.lock();
    let watchers = &mut ends.watchers;
    if !watchers.contains_key(&socket.number()) {
        // Watchers of sockets that are gone leave before the tree has twice as many again.
        if watchers.len().is_power_of_two() {
            watchers.retain(|_, watcher| watcher.socket.strong_count() > 0);
        }
        let charge = charge::take(WATCHER).map_err(|_| ENOBUFS)?;
        watchers.insert(socket.number(), Watcher { socket: socket.weak(), _charge: charge });
    }
    drop(ends);
    peer.incoming.want_room();
    Ok(())
}
