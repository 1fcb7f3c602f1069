//! Bytes through a connection without boundaries.

use super::address::{Address, Family};
use super::queue::{Extra, Flow, Got, Peek};
use super::rights::{Control, Ucred};
use super::socket::{How, Socket, SHUT_RECEIVE, SHUT_SEND};
use crate::errno::*;
use crate::fs::io::{outcome, Sink, Source};
use crate::ipc::pipe::Blocking;

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
        if dest.is_some() && self.family == Family::Unix {
            return Err(if self.is_connected() { EISCONN } else { EOPNOTSUPP });
        }
        let Some(peer) = self.peer() else { return Err(self.why_not_sent()) };
        let mut extra = self.extra(&peer, control)?;
        let result = loop {
            if from.left() == 0 {
                break Ok(());
            }
            if let Some(errno) = self.take_error() {
                break Err(errno);
            }
            if self.shut() & SHUT_SEND != 0 {
                break Err(EPIPE);
            }
            let limit = self.options.send_limit();
            let tried = peer.incoming.with(|queue| {
                if queue.is_closed() {
                    return (Err(EPIPE), false);
                }
                let room = limit.saturating_sub(queue.used());
                if room == 0 {
                    peer.incoming.want_room();
                    return (Err(EAGAIN), false);
                }
                let was_empty = queue.is_empty();
                (queue.fill(from, room, &mut extra), was_empty)
            });
            if tried.1 {
                peer.readers.wake_all();
            }
            match tried.0 {
                Ok(()) => {}
                Err(EAGAIN) if blocking == Blocking::Yes => {
                    let ready = || {
                        let is_over = self.shut() & SHUT_SEND != 0 || self.has_error();
                        is_over || self.has_room_in(&peer) || {
                            peer.incoming.want_room();
                            self.has_room_in(&peer)
                        }
                    };
                    if let Err(errno) = self.wait(&self.writers, self.options.send_timeout(), ready) {
                        break Err(errno);
                    }
                }
                Err(errno) => break Err(errno),
            }
        };
        extra.discard();
        outcome(from.done() - start, result)
    }

    /// The error of a send without a peer.
    fn why_not_sent(&self) -> Errno {
        if let Some(errno) = self.take_error() {
            return errno;
        }
        if self.family.is_inet() || self.shut() & SHUT_SEND != 0 {
            EPIPE
        } else {
            ENOTCONN
        }
    }

    /// What goes along with a message to `peer`.
    pub(super) fn extra(&self, peer: &Socket, control: Option<Control>) -> Result<Extra> {
        if self.family != Family::Unix {
            return Ok(Extra::default());
        }
        let control = control.unwrap_or_default();
        let is_wanted = self.options.passes_cred() || peer.options.passes_cred();
        let cred = control.cred.or_else(|| is_wanted.then(Ucred::current));
        let rights = control.into_rights(peer)?;
        Ok(Extra { rights, cred })
    }

    /// Receives what there is; waits while there is nothing and the peer may send.
    pub(super) fn receive_stream(&self, to: &mut Sink<'_>, how: How, got: &mut Got) -> Result<usize> {
        if !self.is_connected() {
            if let Some(errno) = self.take_error() {
                return Err(errno);
            }
            return Err(if self.family.is_inet() { ENOTCONN } else { EINVAL });
        }
        let start = to.done();
        let result = loop {
            if to.left() == 0 {
                break Ok(());
            }
            let taken =
                self.incoming.with(|queue| (!queue.is_empty()).then(|| queue.drain(to, how.peek, got)));
            match taken {
                None => {}
                Some(taken) => {
                    if how.peek == Peek::No {
                        self.tell_of_room();
                    }
                    match taken {
                        Ok(Flow::More) if how.wait_all => continue,
                        Ok(_) => break Ok(()),
                        Err(errno) => break Err(errno),
                    }
                }
            }
            if let Some(errno) = self.take_error() {
                break Err(errno);
            }
            // Looked at again: what was sent before the end comes before it.
            if self.shut() & SHUT_RECEIVE != 0 && self.incoming.is_empty() {
                break Ok(());
            }
            if how.blocking == Blocking::No {
                break Err(EAGAIN);
            }
            let waited = self.wait(&self.readers, self.options.receive_timeout(), || self.is_readable());
            if let Err(errno) = waited {
                break Err(errno);
            }
        };
        outcome(to.done() - start, result)
    }

    /// Wakes the sender if he waits and has room again.
    fn tell_of_room(&self) {
        let Some(peer) = self.peer() else { return };
        if peer.has_room_in(self) && self.incoming.take_wish() {
            peer.writers.wake_all();
        }
    }
}
