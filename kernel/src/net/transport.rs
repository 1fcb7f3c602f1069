//! Transports: the ways that bytes and messages take between sockets.
//!
//! ```text
//!   Socket ---- &dyn Transport      local      names in the tree of files, abstract names
//!     |  what has come: Incoming    loopback   ports of this machine's own addresses
//!     |                             netlink    questions to the kernel about interfaces
//!     |                             null       a sink and a source, for measurements
//! ```
//! A socket is what programs have: its phase, its options, the queue of what has come in, its
//! waiters. A transport knows where names lead and what becomes of what is sent. Local and loopback
//! have no protocol in between: a connection is a pair of queues, and what is sent goes into the
//! peer's (`stream`, `packet`), which is what the methods do that are provided here. They differ in
//! names, and in what the two protocols promise ([`Rules`]).
//!
//! A network driver would be another: `send` and `give` hand bytes to its protocol, and what
//! arrives is put into [`Socket::incoming`] as `stream` and `packet` do, with `readers` woken.
//!
//! I1: no method is called with a socket's `ends` locked, but for `start` in [`Transport::listen`],
//! which takes that lock itself.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::address::{Address, Family, Ip, Kind};
use super::queue::Got;
use super::rights::{Control, Place};
use super::socket::{How, Phase, Received, Socket};
use super::{local, loopback, netlink, null};
use crate::chain::Chain;
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::uio::{Sink, Source};

/// A socket's hold on a name.
pub trait Binding: Send + Sync {
    /// Gives the name back.
    fn release(self: Box<Self>);
}

/// What a protocol promises, where the two differ.
pub struct Rules {
    /// The error of a connect to no name.
    pub no_name: Errno,
    /// The error of a connect by a listener.
    pub listens: Errno,
    /// The error of a receive from a stream that isn't connected.
    pub not_connected: Errno,
    /// The error of a send into one that isn't.
    pub no_peer: Errno,
    /// The most bytes of a message, whatever the sender's limit.
    pub most: Option<usize>,
    /// What is in flight may be lost: what is sent first to a peer that has closed, a message that
    /// finds no room. A sender of messages doesn't wait for room then.
    pub is_lossy: bool,
    /// A connect that doesn't wait hears of the outcome later.
    pub connects_later: bool,
    /// The peer hears that what it sends will not be received.
    pub tells_of_end: bool,
    /// A listener whose receiving side is shut down listens no more.
    pub shutdown_ends_listening: bool,
    /// Messages may carry descriptors and credentials; what is in flight may form rings.
    pub carries_rights: bool,
}

/// The way of a datagram.
pub struct Route {
    pub receiver: Arc<Socket>,
    /// The sender's name as the receiver sees it.
    pub from: Address,
    /// The address that the datagram goes to; any but of IP.
    pub to: Ip,
}

/// See the module.
pub trait Transport: Sync {
    fn rules(&self) -> &'static Rules;

    /// The protocol's number of a new socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`.
    fn protocol(&self, kind: Kind, asked: u32) -> Result<u32>;

    /// What a new socket is.
    fn first_phase(&self) -> Phase {
        Phase::Fresh
    }

    /// Gives a socket a name, or one of the transport's choice; returns the name, and the hold on
    /// it.
    fn bind(&self, socket: &Socket, name: Option<&Address>) -> Result<(Address, Box<dyn Binding>)>;

    /// A socket that has a name is given another.
    fn bind_again(&self, _socket: &Socket, _name: Option<&Address>) -> Result<()> {
        Err(EINVAL)
    }

    /// Gives a name to a socket that has none and is to listen.
    fn bind_listener(&self, socket: &Socket) -> Result<()>;

    /// Has a socket listen by `start`, unless another one listens there.
    fn listen(&self, _socket: &Socket, start: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        start()
    }

    /// Whether a socket that is to be connected may be, whatever to.
    fn may_connect(&self) -> Result<()> {
        Ok(())
    }

    /// The listener that a name leads to.
    fn listener(&self, socket: &Socket, name: &Address) -> Result<Arc<Socket>>;

    /// The names of the two ends of a new connection: the client's and the server's.
    fn names(&self, socket: &Socket, listener: &Socket, name: &Address) -> (Address, Address);

    /// What a server's end holds as long as it isn't accepted.
    fn enter_backlog(&self, _server: &Socket, _listener: &Socket) -> Result<Option<Place>> {
        Ok(None)
    }

    /// What a datagram socket is connected to by a name, if that is one socket, and the name
    /// itself.
    fn peer(&self, socket: &Socket, name: &Address) -> Result<(Option<Arc<Socket>>, Address)>;

    /// The way of a datagram to `dest` or the peer, from `source` if the sender says so; none where
    /// there is no receiver and the sender needn't know.
    fn route(
        &self,
        socket: &Socket,
        dest: Option<&Address>,
        source: Option<Ip>,
    ) -> Result<Option<Route>>;

    /// Sends all of `from`, to `dest` or the peer. Raises no signal.
    fn send(
        &self,
        socket: &Socket,
        dest: Option<&Address>,
        from: &mut Source<'_>,
        control: Option<Control>,
        blocking: Blocking,
    ) -> Result<usize> {
        match socket.kind {
            Kind::Stream => socket.send_stream(dest, from, control, blocking),
            _ => socket.send_packet(dest, from, control, blocking),
        }
    }

    /// Receives bytes or a message; what came along goes to `got`.
    fn receive(
        &self,
        socket: &Socket,
        to: &mut Sink<'_>,
        how: How,
        got: &mut Got,
    ) -> Result<Received> {
        if socket.kind == Kind::Stream {
            let copied = socket.receive_stream(to, how, got)?;
            return Ok(Received { copied, whole: copied, from: None });
        }
        socket.receive_packet(to, how, got)
    }

    /// See `fs::ops::Movable`; so are the next two.
    fn take(&self, socket: &Socket, most: usize, blocking: Blocking) -> Result<Chain> {
        match socket.kind {
            Kind::Stream => socket.take_stream(most, blocking),
            _ => socket.take_packet_whole(most, blocking),
        }
    }

    fn give(&self, socket: &Socket, chain: &mut Chain, blocking: Blocking) -> Result<usize> {
        match socket.kind {
            Kind::Stream => socket.give_stream(chain, blocking),
            _ => socket.give_packet(chain, blocking),
        }
    }

    /// Poll events besides those of what has come and of errors.
    fn poll(&self, socket: &Socket) -> u32 {
        match socket.kind {
            Kind::Datagram => super::packet::poll(socket),
            Kind::Stream | Kind::Seqpacket => socket.poll_connection(),
        }
    }
}

impl Family {
    /// The family's transport.
    pub fn transport(self) -> &'static dyn Transport {
        match self {
            Family::Unix => &local::Local,
            Family::Inet4 | Family::Inet6 => &loopback::Loopback,
            Family::Netlink => &netlink::Netlink,
            Family::Null => &null::Null,
        }
    }
}
