//! Bytes through a connection without boundaries.

use super::address::{Address, Family};
use super::queue::{Extra, Flow, Got, Peek, Queue};
use super::rights::{defer_close, Control, Ucred};
use super::socket::{How, Socket, SHUT_RECEIVE, SHUT_SEND};
use crate::chain::{Chain, Clusters};
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::uio::{outcome, Sink, Source};

/// What became of bytes that were sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// The bytes are in the peer's queue, or may be tried again.
    There,
    /// The peer of a TCP connection has gone: what is sent first, as much as there is room for, is
    /// lost on the way, and the next attempt hears of it.
    Lost { room: usize },
}

impl Socket {
    /// Sends all of `from`, waiting for room; `control` goes with the first byte.
    pub(super) fn send_stream(
        &self,
        dest: Option<&Address>,
        from: &mut Source<'_>,
        control: Option<Control>,
        blocking: Blocking,
    ) -> Result<usize> {
        let start = from.done();
        if dest.is_some() && !self.transport.rules().is_lossy {
            return Err(if self.is_connected() { EISCONN } else { EOPNOTSUPP });
        }
        let Some(peer) = self.peer() else { return Err(self.why_not_sent()) };
        let mut extra = self.extra(&peer, control)?;
        let mut result = Ok(());
        while from.left() > 0 && result.is_ok() {
            match self.put(&peer, blocking, |queue, room| queue.fill(from, room, &mut extra)) {
                Ok(Put::There) => {}
                Ok(Put::Lost { room }) => _ = from.skip(from.left().min(room)),
                Err(errno) => result = Err(errno),
            }
        }
        extra.discard();
        outcome(from.done() - start, result)
    }

    /// As a send of all of `chain`, which is moved: what was not sent stays in it.
    pub(super) fn give_stream(&self, chain: &mut Chain, blocking: Blocking) -> Result<usize> {
        let Some(peer) = self.peer() else { return Err(self.why_not_sent()) };
        let whole = chain.len();
        let mut result = Ok(());
        while !chain.is_empty() && result.is_ok() {
            match self.put(&peer, blocking, |queue, room| queue.give(chain, room)) {
                Ok(Put::There) => {}
                Ok(Put::Lost { room }) => chain.trim_front(&Clusters, chain.len().min(room)),
                Err(errno) => result = Err(errno),
            }
        }
        outcome(whole - chain.len(), result)
    }

    /// Runs `fill` once on the peer's queue with the room there is; without any, waits until there
    /// is some.
    fn put(
        &self,
        peer: &Socket,
        blocking: Blocking,
        fill: impl FnOnce(&mut Queue, usize) -> Result<()>,
    ) -> Result<Put> {
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        if self.shut() & SHUT_SEND != 0 {
            return Err(EPIPE);
        }
        let limit = self.options.send_limit();
        let (result, was_empty) = peer.incoming.with(|queue| {
            if queue.is_closed() {
                let is_lossy = self.transport.rules().is_lossy;
                let result = if is_lossy { Ok(Put::Lost { room: limit }) } else { Err(EPIPE) };
                return (result, false);
            }
            let room = limit.saturating_sub(queue.used());
            if room == 0 {
                peer.incoming.want_room();
                return (Err(EAGAIN), false);
            }
            if peer.incoming.is_over_account() {
                return (Err(ENOBUFS), false);
            }
            let was_empty = queue.is_empty();
            (fill(queue, room).map(|()| Put::There), was_empty)
        });
        if was_empty || peer.readers.is_watched() || peer.options.low_water() > 1 {
            peer.readers.wake_all();
        }
        match result {
            Err(EAGAIN) if blocking == Blocking::Yes => {
                let ready = || {
                    let is_over = self.shut() & SHUT_SEND != 0 || self.has_error();
                    is_over || self.has_room_in(peer) || {
                        peer.incoming.want_room();
                        self.has_room_in(peer)
                    }
                };
                self.wait(&self.writers, self.options.send_timeout(), ready).map(|()| Put::There)
            }
            Ok(Put::Lost { .. }) => {
                self.set_shut(SHUT_RECEIVE | SHUT_SEND);
                result
            }
            result => result,
        }
    }

    /// As [`send_stream`](Self::send_stream), with the last byte an urgent one, of which the peer's
    /// owner hears.
    pub fn send_urgent(
        &self,
        from: &mut Source<'_>,
        control: Option<Control>,
        blocking: Blocking,
    ) -> Result<usize> {
        let is_local = self.family == Family::Unix;
        let Some(before) = from.left().checked_sub(1) else {
            return if is_local { Err(EOPNOTSUPP) } else { Ok(0) };
        };
        let mut sent = 0;
        if before > 0 {
            let away = from.narrow(before);
            let result = self.send_stream(None, from, control, blocking);
            from.widen(away);
            sent = result?;
        }
        if sent < before {
            return Ok(sent);
        }
        let mut byte = 0;
        from.get(core::slice::from_mut(&mut byte))?;
        let result = self.put_urgent(byte, is_local, blocking);
        outcome(sent + usize::from(result.is_ok()), result)
    }

    fn put_urgent(&self, byte: u8, is_local: bool, blocking: Blocking) -> Result<()> {
        let Some(peer) = self.peer() else { return Err(self.why_not_sent()) };
        let mut is_there = false;
        while !is_there {
            let put = self.put(&peer, blocking, |queue, _| {
                queue.push_urgent(byte, is_local)?;
                is_there = true;
                Ok(())
            })?;
            is_there |= matches!(put, Put::Lost { .. });
        }
        peer.readers.wake_all();
        peer.tell_urgent();
        Ok(())
    }

    /// Receives the urgent byte.
    ///
    /// Fails with `EINVAL` if there is none, or it is among the others.
    pub fn receive_urgent(&self, to: &mut Sink<'_>, peek: Peek) -> Result<usize> {
        let is_local = self.family == Family::Unix;
        let byte = self.incoming.with(|queue| queue.urgent(peek, is_local))?;
        to.put(core::slice::from_ref(&byte))
    }

    /// The error of a send without a peer.
    fn why_not_sent(&self) -> Errno {
        if let Some(errno) = self.take_error() {
            return errno;
        }
        if self.shut() & SHUT_SEND != 0 {
            EPIPE
        } else {
            self.transport.rules().no_peer
        }
    }

    /// What goes along with a message to `peer`.
    pub(super) fn extra(&self, peer: &Socket, control: Option<Control>) -> Result<Extra> {
        if !self.transport.rules().carries_rights {
            return Ok(Extra::default());
        }
        let control = control.unwrap_or_default();
        let is_wanted = self.options.passes_cred() || peer.options.passes_cred();
        let cred = control.cred.or_else(|| is_wanted.then(Ucred::current));
        let rights = control.into_rights(peer)?;
        Ok(Extra { rights, cred, arrival: None })
    }

    /// Receives what there is; waits while there is nothing and the peer may send.
    pub(super) fn receive_stream(
        &self,
        to: &mut Sink<'_>,
        how: How,
        got: &mut Got,
    ) -> Result<usize> {
        if !self.is_connected() {
            if let Some(errno) = self.take_error() {
                return Err(errno);
            }
            return Err(self.transport.rules().not_connected);
        }
        let start = to.done();
        let wanted = if how.wait_all { to.left() } else { to.left().min(self.options.low_water()) };
        let mut result = Ok(());
        while to.left() > 0 {
            let done = to.done() - start;
            match self.get(how, done, |queue| queue.drain(to, how.peek, got)) {
                Ok(Some(Flow::More)) if to.done() - start < wanted => {}
                Ok(_) => break,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
        }
        outcome(to.done() - start, result)
    }

    /// As a receive of up to `most` bytes, which are moved out; none at the end.
    pub(super) fn take_stream(&self, most: usize, blocking: Blocking) -> Result<Chain> {
        if !self.is_connected() {
            return Err(self.transport.rules().not_connected);
        }
        let (mut chain, mut rights) = (Chain::new(), None);
        let how = How { blocking, peek: Peek::No, wait_all: false };
        let result = if most == 0 {
            Ok(None)
        } else {
            let mut take = |queue: &mut Queue| queue.take(&mut chain, most, &mut rights);
            self.get(how, 0, |queue| take(queue).map(|()| Flow::Stop))
        };
        if let Some(rights) = rights {
            defer_close(rights);
        }
        match result {
            Err(errno) if chain.is_empty() => Err(errno),
            _ => Ok(chain),
        }
    }

    /// Runs `drain` once on the queue, when something is in it; waits for that. `None`: nothing
    /// more comes. A receiver that has `done` something stops at an urgent byte, else it goes past
    /// that.
    fn get(
        &self,
        how: How,
        done: usize,
        mut drain: impl FnMut(&mut Queue) -> Result<Flow>,
    ) -> Result<Option<Flow>> {
        loop {
            let taken = self.incoming.with(|queue| {
                if done == 0 && how.peek == Peek::No {
                    queue.pass_mark();
                }
                (!queue.is_empty()).then(|| drain(queue))
            });
            if let Some(taken) = taken {
                if how.peek == Peek::No {
                    self.tell_of_room();
                }
                return taken.map(Some);
            }
            if let Some(errno) = self.take_error() {
                return Err(errno);
            }
            // Looked at again: what was sent before the end comes before it.
            if self.shut() & SHUT_RECEIVE != 0 && self.incoming.is_empty() {
                return Ok(None);
            }
            if how.blocking == Blocking::No {
                return Err(EAGAIN);
            }
            self.wait(&self.readers, self.options.receive_timeout(), || self.is_readable())?;
        }
    }

    /// Wakes the sender if it waits and has room again.
    fn tell_of_room(&self) {
        let Some(peer) = self.peer() else { return };
        if peer.has_room_in(self) && self.incoming.take_wish() {
            peer.writers.wake_all();
        }
    }
}
