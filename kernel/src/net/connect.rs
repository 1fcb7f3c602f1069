//! How sockets get names and find each other: bind, listen, connect, accept.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use super::address::{Address, Kind};
use super::rights::Ucred;
use super::socket::{Listener, Pending, Phase, Socket};
use super::transport::Binding;
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
        if self.is_bound() {
            return self.transport.bind_again(self, name);
        }
        let (name, bound) = self.transport.bind(self, name)?;
        self.hold(name, bound)
    }

    /// Keeps a name that it was given, unless another call was first.
    pub(super) fn hold(&self, name: Address, bound: Box<dyn Binding>) -> Result<()> {
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

    /// `listen`: also changes the backlog of one that listens.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        if !matches!(self.kind, Kind::Stream | Kind::Seqpacket) {
            return Err(EOPNOTSUPP);
        }
        let backlog = (backlog as u32 as usize).min(BACKLOG_MAX);
        if !self.is_bound() {
            self.transport.bind_listener(self)?;
        }
        *self.cred.lock() = Ucred::effective();
        self.transport.listen(self, &mut || self.start_to_listen(backlog))?;
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
        self.transport.may_connect()?;
        if self.kind == Kind::Datagram {
            return self.connect_datagrams(name);
        }
        let name = name.ok_or(self.transport.rules().no_name)?;
        if self.begin_connect()? == Begun::Over {
            return Ok(());
        }
        let result = self.connect_stream(name, blocking);
        if let Err(errno) = result {
            let mut ends = self.ends.lock();
            // An accept may have completed the connection meanwhile; a socket that still waits in
            // the listener's row stays in it.
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
            Phase::Listening(_) => Err(self.transport.rules().listens),
            Phase::Ended => Err(EINVAL),
        }
    }

    fn connect_stream(&self, name: &Address, blocking: Blocking) -> Result<()> {
        // Over TCP, a caller that doesn't wait hears of the outcome later, though it is known now.
        let later = self.transport.rules().connects_later && blocking == Blocking::No;
        loop {
            let listener = match self.transport.listener(self, name) {
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

    fn has_backlog(&self) -> bool {
        let ends = self.ends.lock();
        matches!(&ends.phase, Phase::Listening(listener) if listener.pending.len() <= listener.backlog)
    }

    /// Makes the server's end and puts it into the listener's row. With `stay`, a socket that finds
    /// the row full is remembered and taken in later.
    ///
    /// Fails with `ECONNREFUSED`, `EAGAIN`, or `ENOBUFS` without memory.
    fn join(&self, listener: &Socket, name: &Address, stay: bool) -> Result<()> {
        let me = self.arc()?;
        let server = Socket::new(listener.family, self.kind, self.protocol)?;
        let (own, server_name) = self.transport.names(self, listener, name);
        {
            let mut ends = server.ends.lock();
            ends.phase = Phase::Connected;
            ends.peer = Some(me.clone());
            ends.peer_name = Some(own.clone());
            ends.peer_cred = Ucred::effective();
            ends.name = server_name.clone();
        }
        server.options.copy_from(&listener.options);
        let place = self.transport.enter_backlog(&server, listener)?;
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
            Some(name) => {
                let (peer, name) = self.transport.peer(self, name)?;
                (peer, Some(name))
            }
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
