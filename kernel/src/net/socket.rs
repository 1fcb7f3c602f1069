//! A socket: a node without a path, its place in the life of a connection, and what polls see.
//!
//! ```text
//!   Fresh --listen--> Listening --------------------+
//!     |                    | connect makes          | release
//!     +--connect-----------+-> Connected ---------> Ended
//!          (queue of the listener full: the caller waits, or is Connecting until an accept makes room)
//! ```
//!
//! A connection is made whole by `connect`: the server's end exists from then on and waits in the
//! listener's row. So data can be sent before the server accepts, as between two machines.
//!
//! Invariants: S1: `ends` is held for a few instructions and never with another socket's. S2: two
//! connected sockets refer to each other until one is released, which takes both references back.
//! S3: `shut` only gains bits.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl::{FIONREAD, SIOCATMARK, TIOCOUTQ};

use super::address::{Address, Family, Kind};
use super::interface;
use super::options::Options;
use super::queue::{Got, Incoming, Peek};
use super::rights::{Place, Ucred};
use super::transport::{Binding, Transport};
use crate::chain::Chain;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::{Decide, Inode, Stat};
use crate::fs::ops::*;
use crate::fs::pipe::Blocking;
use crate::fs::signals::Signals;
use crate::sched::{self, Nanos};
use crate::sync::{SpinLock, WaitQueue, Woken};
use crate::uio::{Sink, Source};
use crate::user;
use crate::vm::{self, Asks};

/// The directions that were shut down, at this end or the other.
pub const SHUT_RECEIVE: u32 = 1;
pub const SHUT_SEND: u32 = 2;

/// Connections that are not accepted yet, and sockets that wait to be taken in.
pub struct Listener {
    pub backlog: usize,
    pub pending: VecDeque<Pending>,
    /// Sockets that connect without blocking and found no room.
    pub waiting: VecDeque<Arc<Socket>>,
}

/// The server's end of a connection that is not accepted yet.
pub struct Pending {
    /// A local one's. It goes before the socket, whose address it names.
    pub place: Option<Place>,
    pub socket: Arc<Socket>,
}

/// The last type of a socket.
const SOCK_PACKET: u32 = 10;
/// What a socket's name takes, here and among those that are bound or listed, and its peer's.
const NAMES: usize = 320;

pub enum Phase {
    Fresh,
    Listening(Listener),
    /// A call to connect is under way.
    Connecting,
    Connected,
    Ended,
}

/// What changes as connections come and go.
pub struct Ends {
    pub phase: Phase,
    pub peer: Option<Arc<Socket>>,
    pub name: Address,
    /// The peer's name, which stays when it goes.
    pub peer_name: Option<Address>,
    pub bound: Option<Box<dyn Binding>>,
    /// The peer's credentials (`SO_PEERCRED`).
    pub peer_cred: Ucred,
    /// Connected, but the program that didn't wait for it hasn't been told.
    pub is_news: bool,
    /// Datagram sockets that poll for room here, by their numbers.
    pub watchers: BTreeMap<u64, Watcher>,
}

/// A socket that is to be woken, charged to the user that polled it.
pub struct Watcher {
    pub socket: Weak<Socket>,
    pub _charge: Charge,
}

pub struct Socket {
    pub family: Family,
    pub transport: &'static dyn Transport,
    pub kind: Kind,
    pub protocol: u32,
    pub options: Options,
    /// The credentials of the process that made the socket, or that listens on it.
    pub cred: SpinLock<Ucred>,
    pub incoming: Incoming,
    /// Threads that wait to receive, accept or be connected; to send; for room here.
    pub readers: WaitQueue,
    pub writers: WaitQueue,
    pub room: WaitQueue,
    pub ends: SpinLock<Ends>,
    shut: AtomicU32,
    /// An error to be told once; 0 for none.
    error: AtomicI32,
    /// Those of the open file, once it has an owner.
    signals: SpinLock<Weak<Signals>>,
    ino: u64,
    attr: SpinLock<Attr>,
    me: Weak<Socket>,
    _charge: Charge,
}

/// What `fchmod` and `fchown` change, which a name that the socket is bound to begins with.
#[derive(Clone, Copy)]
struct Attr {
    perm: u32,
    uid: u32,
    gid: u32,
}

impl Socket {
    /// A socket of its own.
    ///
    /// # Errors
    /// `ENFILE`: the user has all that it may.
    pub fn new(family: Family, kind: Kind, protocol: u32) -> Result<Arc<Socket>> {
        let charge = charge::take(size_of::<Socket>() + NAMES).map_err(|_| ENFILE)?;
        let transport = family.transport();
        let phase = transport.first_phase();
        let cred = Ucred::effective();
        let by = crate::proc::curproc::cred();
        Ok(Arc::new_cyclic(|me| Socket {
            family,
            transport,
            kind,
            protocol,
            options: Options::new(),
            cred: SpinLock::new(cred),
            incoming: Incoming::new(),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            room: WaitQueue::new(),
            ends: SpinLock::new(Ends {
                phase,
                peer: None,
                name: Address::Unnamed,
                peer_name: None,
                bound: None,
                peer_cred: Ucred { pid: 0, uid: u32::MAX, gid: u32::MAX },
                is_news: false,
                watchers: BTreeMap::new(),
            }),
            shut: AtomicU32::new(0),
            error: AtomicI32::new(0),
            signals: SpinLock::new(Weak::new()),
            attr: SpinLock::new(Attr { perm: 0o777, uid: by.fsuid, gid: by.fsgid }),
            ino: crate::fs::new_ino(),
            me: me.clone(),
            _charge: charge,
        }))
    }

    /// `socket`: checks what is asked for and makes it.
    pub fn create(family: u32, kind: u32, protocol: u32) -> Result<Arc<Socket>> {
        if kind > SOCK_PACKET {
            return Err(EINVAL);
        }
        let family = Family::from_number(family)?;
        // But for those of IP, a socket of this type is one of datagrams.
        let kind = match kind {
            linux_raw_sys::net::SOCK_RAW if !family.is_inet() => Kind::Datagram,
            linux_raw_sys::net::SOCK_RAW if protocol == 0 => return Err(EPROTONOSUPPORT),
            kind => Kind::from_number(kind)?,
        };
        let protocol = family.transport().protocol(kind, protocol)?;
        vm::leave_memory(Asks::Process).map_err(|_| ENFILE)?;
        Self::new(family, kind, protocol)
    }

    /// `socketpair`: two sockets that are connected to each other.
    pub fn pair(family: u32, kind: u32, protocol: u32) -> Result<[Arc<Socket>; 2]> {
        let pair = [Self::create(family, kind, protocol)?, Self::create(family, kind, protocol)?];
        if pair[0].family != Family::Unix {
            return Err(EOPNOTSUPP);
        }
        for (socket, peer) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let mut ends = socket.ends.lock();
            ends.peer = Some(peer.clone());
            ends.peer_name = Some(Address::Unnamed);
            ends.peer_cred = Ucred::effective();
            ends.phase = Phase::Connected;
        }
        Ok(pair)
    }

    /// An open file of it.
    pub fn into_file(self: Arc<Socket>, flags: u32) -> Result<Arc<File>> {
        File::anonymous(self, abi::O_RDWR | flags & abi::O_NONBLOCK)
    }

    /// Itself, counted. It is there as long as there is a reference to call this with.
    pub fn arc(&self) -> Result<Arc<Socket>> {
        self.me.upgrade().ok_or(EBADF)
    }

    pub fn weak(&self) -> Weak<Socket> {
        self.me.clone()
    }

    /// Its number among nodes.
    pub fn number(&self) -> u64 {
        self.ino
    }

    pub fn is(&self, other: &Socket) -> bool {
        core::ptr::eq(self, other)
    }

    pub fn peer(&self) -> Option<Arc<Socket>> {
        self.ends.lock().peer.clone()
    }

    pub fn name(&self) -> Address {
        self.ends.lock().name.clone()
    }

    /// The peer's name; `ENOTCONN` if the socket isn't connected.
    pub fn peer_name(&self) -> Result<Address> {
        let ends = self.ends.lock();
        match ends.phase {
            Phase::Connected => ends.peer_name.clone().ok_or(ENOTCONN),
            _ => Err(ENOTCONN),
        }
    }

    pub fn is_listening(&self) -> bool {
        matches!(self.ends.lock().phase, Phase::Listening(_))
    }

    pub fn is_bound(&self) -> bool {
        self.ends.lock().bound.is_some()
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.ends.lock().phase, Phase::Connected)
    }

    /// Whether a broken connection raises no signal: only connected sockets do.
    pub fn is_silent(&self) -> bool {
        self.kind == Kind::Datagram
    }

    /// Whether the last byte of what is sent may be an urgent one.
    pub fn has_urgent_bytes(&self) -> bool {
        self.kind == Kind::Stream && (self.family == Family::Unix || self.family.is_inet())
    }

    /// Which directions are shut.
    pub fn shut(&self) -> u32 {
        self.shut.load(Ordering::SeqCst)
    }

    /// Shuts directions and wakes the threads that wait for them.
    pub fn set_shut(&self, what: u32) {
        self.shut.fetch_or(what, Ordering::SeqCst);
        self.wake_all();
    }

    pub fn wake_all(&self) {
        self.readers.wake_all();
        self.writers.wake_all();
    }

    /// Leaves an error for the next call and for polls.
    pub fn set_error(&self, errno: Errno) {
        self.error.store(errno.0, Ordering::SeqCst);
        self.wake_all();
    }

    /// Takes the error that was left.
    pub fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        Some(Errno(self.error.swap(0, Ordering::SeqCst))).filter(|errno| errno.0 != 0)
    }

    pub fn has_error(&self) -> bool {
        self.error.load(Ordering::SeqCst) != 0
    }

    /// Whether a stream's sender has room in `peer`: a quarter of the limit, so that the sender
    /// isn't woken for each byte.
    pub fn has_room_in(&self, peer: &Socket) -> bool {
        peer.incoming.used() * 4 <= self.options.send_limit() * 3
    }

    /// What a receive sees without waiting: bytes, a message, the end, an error.
    pub fn is_readable(&self) -> bool {
        if !self.incoming.is_empty() || self.shut() & SHUT_RECEIVE != 0 || self.has_error() {
            return true;
        }
        matches!(&self.ends.lock().phase, Phase::Listening(listener) if !listener.pending.is_empty())
    }

    /// Whether a poll says so: not before as much has come as is asked for (`SO_RCVLOWAT`), as long
    /// as the sender has room for it.
    fn is_polled_readable(&self) -> bool {
        let low = self.options.low_water();
        let is_few = || self.incoming.used() < low;
        let is_short = || {
            let peer = self.peer();
            is_few() && peer.is_some_and(|peer| peer.has_room_in(self))
        };
        let waits = low > 1 && self.kind == Kind::Stream && self.family.is_inet();
        let is_over = || self.shut() & SHUT_RECEIVE != 0 || self.has_error();
        self.is_readable() && (!waits || self.is_listening() || is_over() || !is_short())
    }

    /// An urgent byte has come: the owner of the open file hears of it.
    pub(super) fn tell_urgent(&self) {
        let signals = self.signals.lock().upgrade();
        signals.into_iter().for_each(|signals| signals.tell_urgent());
    }

    /// `SIOCATMARK`.
    fn at_mark(&self) -> Result<usize> {
        if self.kind == Kind::Stream || self.family == Family::Unix && self.kind != Kind::Datagram {
            return Ok(self.incoming.with(|queue| usize::from(queue.at_mark())));
        }
        Err(if self.family == Family::Unix { EOPNOTSUPP } else { ENOTTY })
    }

    /// Waits in `queue` until `ready`, for at most `timeout` (0: for good).
    ///
    /// Fails with `EAGAIN` when the time is over, `ERESTARTSYS` or, with a time, `EINTR` for a
    /// signal.
    pub fn wait(
        &self,
        queue: &WaitQueue,
        timeout: Nanos,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = (timeout != 0).then(|| sched::now().saturating_add(timeout));
        match queue.wait_intr(deadline, || ready().then_some(())) {
            Ok(()) => Ok(()),
            Err(Woken::Timeout) => Err(EAGAIN),
            Err(Woken::Signal) if timeout != 0 => Err(EINTR),
            Err(Woken::Signal) => Err(ERESTARTSYS),
        }
    }

    /// Poll events of a connection that is a pair of queues.
    pub(super) fn poll_connection(&self) -> u32 {
        let peer = {
            let ends = self.ends.lock();
            match ends.phase {
                Phase::Listening(_) | Phase::Connecting => return 0,
                Phase::Fresh | Phase::Ended => {
                    return abi::POLLOUT | abi::POLLWRNORM | abi::POLLHUP
                }
                Phase::Connected => ends.peer.clone(),
            }
        };
        let shut = self.shut();
        let is_shut = shut & SHUT_SEND != 0;
        let has_room = || {
            peer.as_ref().is_none_or(|peer| {
                self.has_room_in(peer) || {
                    peer.incoming.want_room();
                    self.has_room_in(peer)
                }
            })
        };
        let mut events = 0;
        if is_shut || has_room() {
            events |= abi::POLLOUT | abi::POLLWRNORM;
        }
        if shut & SHUT_RECEIVE != 0 {
            events |= abi::POLLRDHUP;
            events |= if is_shut { abi::POLLHUP } else { 0 };
        }
        events
    }
}

impl Inode for Socket {
    fn stat(&self) -> Stat {
        let Attr { perm, uid, gid } = *self.attr.lock();
        let kind = crate::fs::inode::Kind::Socket;
        Stat { uid, gid, ..Stat::plain(crate::fs::SOCKET_DEVICE, self.ino, kind, perm) }
    }

    fn set_attr(&self, change: Decide<'_>) -> Result<()> {
        let change = change(&self.ownership())?;
        let mut attr = self.attr.lock();
        *attr = Attr {
            perm: change.perm.unwrap_or(attr.perm),
            uid: change.uid.unwrap_or(attr.uid),
            gid: change.gid.unwrap_or(attr.gid),
        };
        Ok(())
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for Socket {
    fn release(&self, _file: &File) {
        self.close();
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() == 0 {
            return Ok(0);
        }
        let mut got = Got::default();
        let how = How { blocking: Blocking::of(file), peek: Peek::No, wait_all: false };
        let received = self.receive(to, how, &mut got);
        if let Some(rights) = got.rights {
            super::rights::defer_close(rights);
        }
        received.map(|received| received.copied)
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let result = self.send(None, from, None, Blocking::of(file));
        if result == Err(EPIPE) && !self.is_silent() {
            crate::proc::raise_sigpipe();
        }
        result.map(|n| (n, 0))
    }

    fn ioctl(&self, _file: &File, request: u32, arg: u64) -> Result<u64> {
        let value = match request {
            FIONREAD if self.is_listening() => return Err(EINVAL),
            FIONREAD => self.incoming.with(|queue| match self.kind {
                Kind::Stream if self.family.is_inet() => queue.len_to_mark(),
                Kind::Stream | Kind::Seqpacket => queue.len(),
                Kind::Datagram => queue.front().map_or(0, |record| record.chain.len()),
            }),
            TIOCOUTQ => self.peer().map_or(0, |peer| peer.incoming.used()),
            SIOCATMARK => self.at_mark()?,
            _ => return interface::ioctl(request, arg),
        };
        user::put(arg, &(value.min(i32::MAX as usize) as i32))?;
        Ok(0)
    }

    fn poll(&self, _file: &File) -> u32 {
        let mut events = 0;
        if self.is_polled_readable() {
            events |= abi::POLLIN | abi::POLLRDNORM;
        }
        if self.incoming.has_urgent() {
            events |= abi::POLLPRI;
        }
        if self.has_error() {
            events |= abi::POLLERR;
        }
        events | self.transport.poll(self)
    }

    fn has_owner(&self, signals: &Arc<Signals>) {
        *self.signals.lock() = Arc::downgrade(signals);
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.readers);
        out.push(&self.writers);
    }

    fn movable(&self) -> Option<&dyn Movable> {
        Some(self)
    }
}

impl Movable for Socket {
    fn take(&self, file: &File, most: usize) -> Result<Chain> {
        self.transport.take(self, most, Blocking::of(file))
    }

    fn give(&self, file: &File, chain: &mut Chain) -> Result<usize> {
        let result = self.transport.give(self, chain, Blocking::of(file));
        if result == Err(EPIPE) && !self.is_silent() {
            crate::proc::raise_sigpipe();
        }
        result
    }

    fn unget(&self, _file: &File, chain: Chain) {
        self.incoming.unget(chain, self.kind == Kind::Stream);
        self.readers.wake_all();
    }
}

/// How a receiver wants its bytes.
#[derive(Clone, Copy)]
pub struct How {
    pub blocking: Blocking,
    pub peek: Peek,
    /// All that there is room for, not only what has come.
    pub wait_all: bool,
}

/// What a receive has found.
pub struct Received {
    /// Bytes copied.
    pub copied: usize,
    /// Bytes that the message had.
    pub whole: usize,
    /// The sender's address, where the connection doesn't tell it.
    pub from: Option<Address>,
}

impl Socket {
    /// Receives bytes or a message; what came along goes to `got`.
    pub fn receive(&self, to: &mut Sink<'_>, how: How, got: &mut Got) -> Result<Received> {
        self.transport.receive(self, to, how, got)
    }

    /// Sends all of `from`, to `dest` or the peer. Raises no signal.
    pub fn send(
        &self,
        dest: Option<&Address>,
        from: &mut Source<'_>,
        control: Option<super::rights::Control>,
        blocking: Blocking,
    ) -> Result<usize> {
        self.transport.send(self, dest, from, control, blocking)
    }
}
