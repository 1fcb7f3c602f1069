//! How sockets get names and find each other: bind, listen, connect, accept.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use super::address::{Address, Family, Ip, Kind};
use super::rights::{Place, Ucred};
use super::socket::{Bound, Listener, Pending, Phase, Socket};
use super::{inet, unix};
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::mem::fault::Room;

/// The most connections that wait to be accepted, whatever was asked for.
const BACKLOG_MAX: usize = 4096;

/// Whether a call to connect has something to do.
#[derive(PartialEq, Eq)]
enum Begun {
    Now,
    /// An earlier call that didn't wait has been successful meanwhile.
    Over,
}

impl Socket {
    /// `bind`.
    pub fn bind(&self, name: Option<&Address>) -> Result<()> {
        if self.family == Family::Null {
            return Err(EOPNOTSUPP);
        }
        if self.ends.lock().bound.is_some() {
            return Err(EINVAL);
        }
        let (name, bound) = match (self.family, name) {
            (Family::Unix, None | Some(Address::Unnamed)) => {
                let (name, bound) = unix::any_name(self)?;
                (name, Bound::Unix(bound))
            }
            (Family::Unix, Some(name)) => (name.clone(), Bound::Unix(unix::bind(self, name)?)),
            (_, None) => return Err(EAFNOSUPPORT),
            (_, Some(Address::Inet { ip, port })) => {
                if self.family == Family::Inet4 && !ip.is_v4() {
                    return Err(EADDRNOTAVAIL);
                }
                let (name, bound) = inet::bind(self, *ip, *port)?;
                (name, Bound::Inet(bound))
            }
            (_, Some(_)) => return Err(EINVAL),
        };
        self.hold(name, bound)
    }

    /// Keeps a name that it was given, unless another call was first.
    fn hold(&self, name: Address, bound: Bound) -> Result<()> {
        let mut ends = self.ends.lock();
        if ends.bound.is_some() {
            drop(ends);
            bound.release();
            return Err(EINVAL);
        }
        ends.name = name;
        ends.bound = Some(bound);
        Ok(())
    }

    /// Gives an internet socket a free port if it has none; `ip` is who it talks to.
    pub(super) fn bind_for(&self, ip: Ip) -> Result<()> {
        if self.ends.lock().bound.is_some() {
            return Ok(());
        }
        let any = if self.family == Family::Inet4 { Ip::ANY4 } else { Ip::ANY6 };
        let own = if self.kind == Kind::Stream { ip } else { any };
        let (name, bound) = inet::bind(self, own, 0)?;
        match self.hold(name, Bound::Inet(bound)) {
            Err(EINVAL) => Ok(()),
            result => result,
        }
    }

    /// `listen`: also changes the backlog of one that listens.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        if !matches!(self.kind, Kind::Stream | Kind::Seqpacket) || self.family == Family::Null {
            return Err(EOPNOTSUPP);
        }
        let backlog = (backlog as u32 as usize).min(BACKLOG_MAX);
        if self.ends.lock().bound.is_none() {
            if self.family == Family::Unix {
                return Err(EINVAL);
            }
            let any = if self.family == Family::Inet4 { Ip::ANY4 } else { Ip::ANY6 };
            self.bind(Some(&Address::Inet { ip: any, port: 0 }))?;
        }
        *self.cred.lock() = Ucred::effective();
        inet::listen(self, || self.start_to_listen(backlog))?;
        self.room.wake_all();
        Ok(())
    }

    fn start_to_listen(&self, backlog: usize) -> Result<()> {
        let mut ends = self.ends.lock();
        match &mut ends.phase {
            Phase::Listening(listener) => listener.backlog = backlog,
            Phase::Fresh => {
                ends.phase = Phase::Listening(Listener {
                    backlog,
                    pending: VecDeque::new(),
                    waiting: VecDeque::new(),
                });
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    /// `connect`. `None` takes a datagram socket's peer away.
    pub fn connect(&self, name: Option<&Address>, blocking: Blocking) -> Result<()> {
        if self.family == Family::Null {
            return Err(EISCONN);
        }
        if self.kind == Kind::Datagram {
            return self.connect_datagrams(name);
        }
        let Some(name) = name else {
            return Err(if self.family == Family::Unix { EINVAL } else { EAFNOSUPPORT });
        };
        if self.begin_connect()? == Begun::Over {
            return Ok(());
        }
        let result = self.connect_stream(name, blocking);
        if let Err(errno) = result {
            let mut ends = self.ends.lock();
            // An accept may have completed it meanwhile; who still waits in the listener's row
            // stays in it.
            if matches!(ends.phase, Phase::Connecting) && errno != EINPROGRESS {
                ends.phase = Phase::Fresh;
            }
        }
        result
    }

    /// Claims the connection for this call.
    fn begin_connect(&self) -> Result<Begun> {
        let error = self.take_error();
        let mut ends = self.ends.lock();
        if let (Some(errno), Phase::Fresh) = (error, &ends.phase) {
            return Err(errno);
        }
        match ends.phase {
            Phase::Fresh => {
                ends.phase = Phase::Connecting;
                Ok(Begun::Now)
            }
            Phase::Connecting => Err(EALREADY),
            Phase::Connected if ends.is_news => {
                ends.is_news = false;
                Ok(Begun::Over)
            }
            Phase::Connected => Err(EISCONN),
            Phase::Listening(_) if self.family == Family::Unix => Err(EINVAL),
            Phase::Listening(_) => Err(EISCONN),
            Phase::Ended => Err(EINVAL),
        }
    }

    fn connect_stream(&self, name: &Address, blocking: Blocking) -> Result<()> {
        let is_unix = self.family == Family::Unix;
        // Over TCP, who doesn't wait hears of the outcome later, though it is known now.
        let later = !is_unix && blocking == Blocking::No;
        loop {
            let listener = if is_unix { unix::find(name) } else { self.find_listener(name) };
            let listener = match listener {
                Err(ECONNREFUSED) if later => {
                    self.ends.lock().phase = Phase::Fresh;
                    self.set_error(ECONNREFUSED);
                    return Err(EINPROGRESS);
                }
                listener => listener?,
            };
            if listener.kind != self.kind {
                return Err(EPROTOTYPE);
            }
            match self.join(&listener, name, later) {
                Ok(()) if later => return Err(EINPROGRESS),
                Ok(()) => return Ok(()),
                Err(EAGAIN) if later => return Err(EINPROGRESS),
                Err(EAGAIN) if blocking == Blocking::No => return Err(EAGAIN),
                Err(EAGAIN) => {
                    let ready = || !listener.is_listening() || listener.has_backlog();
                    self.wait(&listener.room, self.options.send_timeout(), ready)?;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    fn find_listener(&self, name: &Address) -> Result<Arc<Socket>> {
        let Address::Inet { ip, port } = *name else { return Err(EINVAL) };
        let ip = inet::route(self.family, ip)?;
        self.bind_for(ip)?;
        inet::listener(ip, port)
    }

    fn has_backlog(&self) -> bool {
        let ends = self.ends.lock();
        matches!(&ends.phase, Phase::Listening(listener) if listener.pending.len() <= listener.backlog)
    }

    /// Makes the server's end and puts it into the listener's row. With `stay`, who finds the row
    /// full is remembered and taken in later.
    ///
    /// Fails with `ECONNREFUSED`, `EAGAIN`, or `ENOBUFS` without memory.
    fn join(&self, listener: &Socket, name: &Address, stay: bool) -> Result<()> {
        let me = self.arc()?;
        let server = Socket::new(listener.family, self.kind, self.protocol)?;
        let (own, server_name) = self.names(listener, name);
        {
            let mut ends = server.ends.lock();
            ends.phase = Phase::Connected;
            ends.peer = Some(me.clone());
            ends.peer_name = Some(own.clone());
            ends.peer_cred = Ucred::effective();
            ends.name = server_name.clone();
        }
        server.options.copy_from(&listener.options);
        let is_unix = self.family == Family::Unix;
        let place = if is_unix { Some(Place::enter(&server, listener)?) } else { None };
        {
            let mut ends = listener.ends.lock();
            let Phase::Listening(row) = &mut ends.phase else { return Err(ECONNREFUSED) };
            if row.pending.len() > row.backlog {
                if stay && row.waiting.len() < BACKLOG_MAX && row.waiting.room(1).is_ok() {
                    row.waiting.push_back(me);
                }
                return Err(EAGAIN);
            }
            row.pending.room(1).map_err(|_| ENOBUFS)?;
            row.pending.push_back(Pending { socket: server.clone(), place });
        }
        self.become_connected(server, own, server_name, *listener.cred.lock(), stay);
        listener.readers.wake_all();
        Ok(())
    }

    /// The names of the two ends: the client's and the server's.
    fn names(&self, listener: &Socket, name: &Address) -> (Address, Address) {
        if self.family == Family::Unix {
            return (self.name(), listener.name());
        }
        let Address::Inet { ip, port } = *name else { return (self.name(), listener.name()) };
        let ip = inet::route(self.family, ip).unwrap_or(ip);
        let own = match self.name() {
            Address::Inet { ip: any, port } if any.is_any() => Address::Inet { ip, port },
            name => name,
        };
        (own, Address::Inet { ip, port })
    }

    fn become_connected(
        &self,
        server: Arc<Socket>,
        own: Address,
        name: Address,
        cred: Ucred,
        is_news: bool,
    ) {
        let mut ends = self.ends.lock();
        if matches!(ends.phase, Phase::Ended) {
            // Released meanwhile by another thread: the server's end sees a connection that is
            // over.
            drop(ends);
            server.peer_went(false);
            return;
        }
        ends.phase = Phase::Connected;
        ends.peer = Some(server);
        ends.peer_name = Some(name);
        ends.peer_cred = cred;
        ends.name = own;
        ends.is_news = is_news;
        drop(ends);
        self.wake_all();
    }

    /// `accept`: the next connection; waits for one.
    pub fn accept(&self, blocking: Blocking) -> Result<Arc<Socket>> {
        loop {
            let taken = {
                let mut ends = self.ends.lock();
                let Phase::Listening(row) = &mut ends.phase else {
                    let never = !matches!(self.kind, Kind::Stream | Kind::Seqpacket);
                    return Err(if never { EOPNOTSUPP } else { EINVAL });
                };
                row.pending.pop_front().map(|next| (next, row.waiting.pop_front()))
            };
            if let Some((Pending { socket, place }, waiting)) = taken {
                drop(place);
                self.room.wake_all();
                if let Some(client) = waiting {
                    client.take_in(self);
                }
                return Ok(socket);
            }
            if let Some(errno) = self.take_error() {
                return Err(errno);
            }
            if self.shut() != 0 {
                return Err(EINVAL);
            }
            if blocking == Blocking::No {
                return Err(EAGAIN);
            }
            let ready = || self.is_readable() || !self.is_listening();
            self.wait(&self.readers, self.options.receive_timeout(), ready)?;
        }
    }

    /// Connects a client that waited for room in the row.
    fn take_in(&self, listener: &Socket) {
        if !matches!(self.ends.lock().phase, Phase::Connecting) {
            return;
        }
        match self.join(listener, &listener.name(), true) {
            Ok(()) | Err(EAGAIN) => {}
            Err(errno) => self.refuse(errno),
        }
    }

    /// Tells a client that waits without blocking that nothing comes of it.
    pub(super) fn refuse(&self, errno: Errno) {
        self.ends.lock().phase = Phase::Fresh;
        self.set_error(errno);
    }

    fn connect_datagrams(&self, name: Option<&Address>) -> Result<()> {
        let (peer, name) = match name {
            None => (None, None),
            Some(name) if self.family == Family::Unix => {
                let peer = unix::find(name)?;
                if peer.kind != self.kind {
                    return Err(EPROTOTYPE);
                }
                if peer.peer().is_some_and(|other| !other.is(self)) {
                    return Err(EPERM);
                }
                (Some(peer), Some(name.clone()))
            }
            Some(Address::Inet { ip, port }) => {
                let ip = inet::route(self.family, *ip)?;
                self.bind_for(ip)?;
                (None, Some(Address::Inet { ip, port: *port }))
            }
            Some(_) => return Err(EINVAL),
        };
        let mut ends = self.ends.lock();
        if let (Address::Inet { ip: own, port }, Some(Address::Inet { ip, .. })) =
            (&ends.name, &name)
        {
            if own.is_any() {
                ends.name = Address::Inet { ip: *ip, port: *port };
            }
        }
        ends.phase = if name.is_some() { Phase::Connected } else { Phase::Fresh };
        ends.peer_name = name;
        let _old = core::mem::replace(&mut ends.peer, peer);
        drop(ends);
        self.wake_all();
        Ok(())
    }
}

impl Bound {
    pub fn release(self) {
        match self {
            Bound::Unix(bound) => unix::unbind(bound),
            Bound::Inet(bound) => inet::unbind(bound),
        }
    }
}
