//! How connections end: shutdown, and the release of a socket's last descriptor.

use alloc::collections::VecDeque;

use super::address::Kind;
use super::queue::Close;
use super::socket::{Pending, Phase, Socket, SHUT_RECEIVE, SHUT_SEND};
use super::{packet, rights};
use crate::errno::*;
use crate::sched;

impl Socket {
    /// `shutdown` of the directions in `what`.
    pub fn shutdown(&self, what: u32) -> Result<()> {
        let (is_listening, peer) = {
            let ends = self.ends.lock();
            match ends.phase {
                Phase::Listening(_) => (true, None),
                Phase::Connected => (false, ends.peer.clone()),
                _ if self.kind == Kind::Stream || self.transport.rules().is_lossy => {
                    return Err(ENOTCONN)
                }
                _ => (false, None),
            }
        };
        self.set_shut(what);
        if is_listening {
            if self.transport.rules().shutdown_ends_listening && what & SHUT_RECEIVE != 0 {
                self.end_listening();
            }
            return Ok(());
        }
        if let Some(peer) = peer.filter(|_| self.kind != Kind::Datagram) {
            let mut there = if what & SHUT_SEND != 0 { SHUT_RECEIVE } else { 0 };
            // Over TCP the other end doesn't hear that nothing will be received.
            if what & SHUT_RECEIVE != 0 && self.transport.rules().tells_of_end {
                there |= SHUT_SEND;
            }
            peer.set_shut(there);
        }
        Ok(())
    }

    /// A listener listens no more: TCP's `shutdown`; it may listen again.
    fn end_listening(&self) {
        let row = {
            let mut ends = self.ends.lock();
            core::mem::replace(&mut ends.phase, Phase::Fresh)
        };
        self.refuse_all(row);
    }

    /// The last descriptor has gone.
    pub fn close(&self) {
        let (phase, peer, bound, watchers) = {
            let mut ends = self.ends.lock();
            let phase = core::mem::replace(&mut ends.phase, Phase::Ended);
            (phase, ends.peer.take(), ends.bound.take(), core::mem::take(&mut ends.watchers))
        };
        if let Some(bound) = bound {
            bound.release();
        }
        let had_bytes = self.incoming.clear(Close::Yes);
        if let Some(peer) = peer {
            if self.kind == Kind::Datagram {
                peer.forget(self);
            } else {
                peer.peer_went(had_bytes || self.options.resets_at_close());
            }
        }
        packet::tell(watchers);
        self.refuse_all(phase);
        self.set_shut(SHUT_RECEIVE | SHUT_SEND);
        self.room.wake_all();
        if self.transport.rules().carries_rights {
            rights::collect();
        }
    }

    /// Drops all that was sent to it, and the connections to it: they can't be received or
    /// accepted.
    pub fn drop_incoming(&self) {
        self.incoming.clear(Close::No);
        let pending = match &mut self.ends.lock().phase {
            Phase::Listening(row) => core::mem::take(&mut row.pending),
            _ => return,
        };
        refuse(pending);
    }

    /// Ends the connections that will not be accepted.
    fn refuse_all(&self, phase: Phase) {
        let Phase::Listening(mut row) = phase else { return };
        refuse(core::mem::take(&mut row.pending));
        for client in core::mem::take::<VecDeque<_>>(&mut row.waiting) {
            client.refuse(ECONNREFUSED);
        }
        self.room.wake_all();
        self.readers.wake_all();
    }

    /// As [`close`](Self::close), for a server's end without a descriptor: its client sees a reset.
    fn close_unaccepted(&self) {
        let peer = {
            let mut ends = self.ends.lock();
            ends.phase = Phase::Ended;
            ends.peer.take()
        };
        self.incoming.clear(Close::Yes);
        if let Some(peer) = peer {
            peer.peer_went(true);
        }
    }

    /// The other end of the connection has closed; with bytes unread (`reset`) that is an error
    /// here.
    pub(super) fn peer_went(&self, reset: bool) {
        let both = self.transport.rules().tells_of_end || reset;
        if reset {
            self.set_error(ECONNRESET);
        }
        self.set_shut(if both { SHUT_RECEIVE | SHUT_SEND } else { SHUT_RECEIVE });
    }

    /// A datagram socket has closed that this one may be connected to.
    fn forget(&self, gone: &Socket) {
        let mut ends = self.ends.lock();
        let was_peer = ends.peer.as_ref().is_some_and(|peer| peer.is(gone));
        let old = if was_peer { ends.peer.take() } else { None };
        if was_peer {
            ends.phase = Phase::Fresh;
            ends.peer_name = None;
        }
        drop(ends);
        if old.is_some() {
            self.set_error(ECONNRESET);
        }
    }
}

fn refuse(pending: VecDeque<Pending>) {
    /// What it takes to end a connection: the work of copying so many bytes.
    const ENDING: usize = 4096;
    for Pending { socket, place } in pending {
        socket.close_unaccepted();
        drop(place);
        sched::work_done(ENDING);
    }
}
