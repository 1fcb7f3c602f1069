//! Netlink sockets, by which programs ask for interfaces and addresses (rtnetlink(7)):
//! `getifaddrs`, `ip`, Go's `net.Interfaces`. The kernel answers within the send: the answers are
//! in the sender's queue as it returns. There is one interface, whose state never changes, so
//! members of groups hear nothing.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linux_raw_sys::general as abi;

use super::address::{word, Address, Family, Ip, Kind};
use super::interface;
use super::options::SOL_NETLINK;
use super::queue::{Extra, Record};
use super::rights::Control;
use super::socket::Socket;
use super::transport::{Binding, Route, Rules, Transport};
use crate::chain::zero_copy::{append, Loans};
use crate::chain::Chain;
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::pipe::Blocking;
use crate::proc::{curproc, current_process};
use crate::sched;
use crate::sync::SpinLock;
use crate::uio::Source;

/// The number of `NETLINK_ROUTE`, the one protocol.
const ROUTE: u32 = 0;
/// What the size of a message's header counts among the bytes of a send buffer.
const OVERHEAD: usize = 32;

pub struct Netlink;

/// The names that sockets have.
static PORTS: SpinLock<BTreeSet<u32>> = SpinLock::new(BTreeSet::new());

/// A socket's hold on its port.
struct Port(u32);

impl Binding for Port {
    fn release(self: Box<Self>) {
        PORTS.lock().remove(&self.0);
    }
}

/// Takes a port: the one asked for, or else the process's number or one above all of these.
fn take_port(asked: u32) -> Result<u32> {
    const TRIES: u32 = 64;
    static NEXT: AtomicU32 = AtomicU32::new(1 << 31);
    let mut ports = PORTS.lock();
    if asked != 0 {
        return if ports.insert(asked) { Ok(asked) } else { Err(EADDRINUSE) };
    }
    let own = current_process().pid as u32;
    let others = (0..TRIES).map(|_| NEXT.fetch_add(1, Relaxed) | 1 << 31);
    core::iter::once(own).chain(others).find(|&port| ports.insert(port)).ok_or(EADDRINUSE)
}

impl Transport for Netlink {
    fn rules(&self) -> &'static Rules {
        &Rules {
            no_name: EINVAL,
            listens: EOPNOTSUPP,
            not_connected: ENOTCONN,
            no_peer: ENOTCONN,
            most: None,
            is_lossy: true,
            connects_later: false,
            tells_of_end: false,
            shutdown_ends_listening: false,
            carries_rights: false,
        }
    }

    fn protocol(&self, kind: Kind, asked: u32) -> Result<u32> {
        match (kind, asked) {
            (Kind::Datagram, ROUTE) => Ok(ROUTE),
            (Kind::Datagram, _) => Err(EPROTONOSUPPORT),
            _ => Err(ESOCKTNOSUPPORT),
        }
    }

    fn bind(&self, _: &Socket, name: Option<&Address>) -> Result<(Address, Box<dyn Binding>)> {
        let Some(&Address::Netlink { port, groups }) = name else { return Err(EINVAL) };
        let port = take_port(port)?;
        Ok((Address::Netlink { port, groups }, Box::new(Port(port))))
    }

    /// Its port stays; its groups are others.
    fn bind_again(&self, socket: &Socket, name: Option<&Address>) -> Result<()> {
        let Some(new @ &Address::Netlink { port, .. }) = name else { return Err(EINVAL) };
        let mut ends = socket.ends.lock();
        if !matches!(ends.name, Address::Netlink { port: own, .. } if own == port) {
            return Err(EINVAL);
        }
        ends.name = new.clone();
        Ok(())
    }

    fn bind_listener(&self, _: &Socket) -> Result<()> {
        Err(EOPNOTSUPP)
    }

    fn listener(&self, _: &Socket, _: &Address) -> Result<Arc<Socket>> {
        Err(EOPNOTSUPP)
    }

    fn names(&self, socket: &Socket, listener: &Socket, _: &Address) -> (Address, Address) {
        (socket.name(), listener.name())
    }

    fn peer(&self, _: &Socket, name: &Address) -> Result<(Option<Arc<Socket>>, Address)> {
        to_kernel(name)?;
        Ok((None, name.clone()))
    }

    fn route(&self, _: &Socket, _: Option<&Address>, _: Option<Ip>) -> Result<Option<Route>> {
        Ok(None)
    }

    fn send(
        &self,
        socket: &Socket,
        dest: Option<&Address>,
        from: &mut Source<'_>,
        _: Option<Control>,
        _: Blocking,
    ) -> Result<usize> {
        let len = from.left();
        if len == 0 {
            return Err(ENODATA);
        }
        dest.map_or(Ok(()), to_kernel)?;
        if !socket.is_bound() {
            let bound = socket.bind(Some(&Address::Netlink { port: 0, groups: 0 }));
            // Another thread's send may have been first.
            bound.or_else(|errno| if socket.is_bound() { Ok(()) } else { Err(errno) })?;
        }
        if len > socket.options.send_limit() - OVERHEAD {
            return Err(EMSGSIZE);
        }
        while let Some(request) = Request::next(from)? {
            answer(socket, &request);
            sched::work_done(REQUEST);
        }
        Ok(len)
    }

    fn give(&self, _: &Socket, _: &mut Chain, _: Blocking) -> Result<usize> {
        Err(EINVAL)
    }

    fn poll(&self, _: &Socket) -> u32 {
        abi::POLLOUT | abi::POLLWRNORM
    }
}

/// `NETLINK_ADD_MEMBERSHIP` and its opposite: a group by its number, of which names have the first
/// 32.
///
/// # Errors
/// `EINVAL`: there is no such group.
pub fn join(socket: &Socket, group: i32, joins: bool) -> Result<()> {
    const GROUPS: i32 = 36;
    if !(1..=GROUPS).contains(&group) {
        return Err(EINVAL);
    }
    let mut ends = socket.ends.lock();
    let (port, groups) = match ends.name {
        Address::Netlink { port, groups } => (port, groups),
        _ => (0, 0),
    };
    let bit = 1u32.checked_shl(group as u32 - 1).unwrap_or(0);
    ends.name = Address::Netlink { port, groups: if joins { groups | bit } else { groups & !bit } };
    Ok(())
}

/// Programs send to the kernel alone.
fn to_kernel(name: &Address) -> Result<()> {
    let Address::Netlink { port, groups } = *name else { return Err(EINVAL) };
    if port != 0 || groups != 0 {
        curproc::cred().need(Caps::NET_ADMIN)?;
    }
    // Of a group there is no member to hear it but the kernel.
    if port == 0 {
        Ok(())
    } else {
        Err(ECONNREFUSED)
    }
}

/// `struct nlmsghdr`: length, type, flags, sequence number, sender's port.
const HEADER: usize = 16;
/// What a request takes besides its bytes, as bytes copied.
const REQUEST: usize = 1024;

const REQUEST_FLAG: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// The option that asks for that.
const CAP_ACK: u32 = 10;
/// An error's copy of the request has its header alone.
const CAPPED: u16 = 0x100;

/// Types of messages: an error or an acknowledgement, the end of a dump.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The first of rtnetlink.
const FIRST: u16 = 16;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const GET_NEIGHBOUR: u16 = 30;

/// Of a link: its name, also as a second one.
const NAME: u16 = 3;
const OTHER_NAME: u16 = 53;

/// A message from a program, with as much behind the header as any answer depends on.
struct Request {
    header: [u8; HEADER],
    body: [u8; 128],
    len: usize,
    is_whole: bool,
}

impl Request {
    /// The next of a buffer; none behind the last, or where a length makes no sense.
    fn next(from: &mut Source<'_>) -> Result<Option<Request>> {
        let (header, body) = ([0; HEADER], [0; 128]);
        let mut request = Request { header, body, len: 0, is_whole: true };
        if from.left() < HEADER {
            from.skip(from.left());
            return Ok(None);
        }
        fill(from, &mut request.header)?;
        let Some(behind) = (request.word(0) as usize).checked_sub(HEADER) else { return Ok(None) };
        if behind > from.left() {
            return Ok(None);
        }
        request.len = behind.min(request.body.len());
        fill(from, &mut request.body[..request.len])?;
        request.is_whole = request.len == behind;
        from.skip(behind.next_multiple_of(4) - request.len);
        Ok(Some(request))
    }

    fn word(&self, at: usize) -> u32 {
        word(&self.header, at)
    }

    fn kind(&self) -> u16 {
        self.word(4) as u16
    }

    fn flags(&self) -> u16 {
        (self.word(4) >> 16) as u16
    }

    fn number(&self, at: usize) -> u32 {
        word(&self.body, at)
    }

    /// The value of an attribute behind `struct ifinfomsg`.
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = self.body[..self.len].get(LINK..)?;
        while let Some((head, _)) = rest.split_first_chunk::<4>() {
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let value = rest.get(4..len)?;
            if u16::from_ne_bytes([head[2], head[3]]) == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
        None
    }

    /// Whether it names the one interface, by number or name.
    ///
    /// # Errors
    /// `ENODEV`; `EINVAL` if it names none.
    fn check_link(&self) -> Result<()> {
        let name = || self.attribute(NAME).or_else(|| self.attribute(OTHER_NAME));
        let is_ours = match self.number(4) {
            0 => name().ok_or(EINVAL)?.strip_suffix(b"\0").is_some_and(|name| name == b"lo"),
            index => index == interface::INDEX as u32,
        };
        if is_ours {
            Ok(())
        } else {
            Err(ENODEV)
        }
    }
}

fn fill(from: &mut Source<'_>, to: &mut [u8]) -> Result<()> {
    let len = to.len();
    let mut at = 0;
    while at < len {
        at += from.get(&mut to[at..])?;
    }
    Ok(())
}

/// Puts what there is to say to a request into the sender's queue.
fn answer(socket: &Socket, request: &Request) {
    if request.flags() & REQUEST_FLAG == 0 {
        return;
    }
    let result = if request.kind() < FIRST { Ok(()) } else { act(socket, request) };
    let is_dump = request.flags() & DUMP == DUMP && request.kind() % 4 == 2;
    if result.is_ok() && (is_dump || request.flags() & ACK == 0) {
        return;
    }
    let mut reply = Reply::new(socket, request);
    // An error has the whole request, unless the program wants less, or it is long.
    let asks_for_less = socket.options.kept(SOL_NETLINK, CAP_ACK).is_some_and(|on| on != 0);
    let has_body = result.is_err() && request.is_whole && !asks_for_less;
    reply.begin(ERROR, if has_body { 0 } else { CAPPED });
    reply.put(&(-result.map_or_else(|errno| errno.0, |()| 0)).to_ne_bytes());
    reply.put(&request.header);
    if has_body {
        reply.put(&request.body[..request.len]);
    }
    reply.end();
    reply.send(socket);
}

/// `struct ifinfomsg`.
const LINK: usize = 16;

fn act(socket: &Socket, request: &Request) -> Result<()> {
    const LAST: u16 = 123;
    const UNICAST_GETS: [u16; 2] = [GET_ROUTE, GET_NEIGHBOUR];
    let kind = request.kind();
    if kind > LAST {
        return Err(EOPNOTSUPP);
    }
    if request.len == 0 {
        return Ok(());
    }
    let is_get = kind % 4 == 2;
    if !is_get {
        curproc::cred().need(Caps::NET_ADMIN)?;
    }
    let mut reply = Reply::new(socket, request);
    if is_get && request.flags() & DUMP == DUMP {
        match kind {
            GET_LINK => reply.link(MULTI),
            GET_ADDRESS => reply.addresses(u32::from(request.body[0])),
            _ if UNICAST_GETS.contains(&kind) => {}
            _ => return Err(EOPNOTSUPP),
        }
        let mut end = Reply::new(socket, request);
        end.begin(DONE, MULTI);
        end.put(&0i32.to_ne_bytes());
        end.end();
        send_all(socket, &[&reply, &end]);
        return Ok(());
    }
    match kind {
        GET_LINK | NEW_LINK | SET_LINK if request.len < LINK => Err(EINVAL),
        GET_LINK => {
            request.check_link()?;
            reply.link(0);
            reply.send(socket);
            Ok(())
        }
        NEW_LINK | SET_LINK => {
            request.check_link()?;
            // What it is already, it may be asked to become.
            let (flags, change) = (request.number(8), request.number(12));
            let is_named = request.len == LINK || request.attribute(NAME).is_some();
            if (flags ^ interface::FLAGS) & change == 0 && change != 0 && is_named {
                Ok(())
            } else {
                Err(EOPNOTSUPP)
            }
        }
        _ => Err(EOPNOTSUPP),
    }
}

/// Messages for the sender of a request.
struct Reply {
    bytes: [u8; 256],
    len: usize,
    /// Where the last message begins.
    start: usize,
    sequence: u32,
    port: u32,
}

impl Reply {
    fn new(socket: &Socket, request: &Request) -> Reply {
        let port = if let Address::Netlink { port, .. } = socket.name() { port } else { 0 };
        Reply { bytes: [0; 256], len: 0, start: 0, sequence: request.word(8), port }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn begin(&mut self, kind: u16, flags: u16) {
        self.start = self.len;
        self.put(&[0; 4]);
        self.put(&kind.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
        self.put(&self.sequence.to_ne_bytes());
        self.put(&self.port.to_ne_bytes());
    }

    fn end(&mut self) {
        let len = (self.len - self.start) as u32;
        self.bytes[self.start..self.start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.len = self.len.next_multiple_of(4);
    }

    /// `RTM_NEWLINK` of the one interface: a `struct ifinfomsg` and attributes.
    fn link(&mut self, flags: u16) {
        const ETHERNET: [u8; 6] = [0; 6];
        self.begin(NEW_LINK, flags);
        self.put(&[0, 0]);
        self.put(&interface::TYPE.to_ne_bytes());
        self.put(&interface::INDEX.to_ne_bytes());
        self.put(&interface::FLAGS.to_ne_bytes());
        self.put(&0u32.to_ne_bytes());
        self.attribute(NAME, interface::NAME);
        // Its length of queue, state (unknown), mode, size of packets, group and discipline.
        self.attribute(13, &1000u32.to_ne_bytes());
        self.attribute(16, &[0]);
        self.attribute(17, &[0]);
        self.attribute(4, &interface::MTU.to_ne_bytes());
        self.attribute(27, &0u32.to_ne_bytes());
        self.attribute(6, b"noqueue\0");
        // Its address, and the one for all.
        self.attribute(1, &ETHERNET);
        self.attribute(2, &ETHERNET);
        self.end();
    }

    /// `RTM_NEWADDR` for each address of a family, or of both families: a `struct ifaddrmsg` and
    /// attributes.
    fn addresses(&mut self, family: u32) {
        const PERMANENT: u32 = 0x80;
        const HOST: u8 = 254;
        /// Preferred and valid for ever.
        const TIMES: [u8; 16] = [255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0];
        let (v4, v6) = (Family::Inet4.number(), Family::Inet6.number());
        let all = [(v4, 8, &[127, 0, 0, 1][..]), (v6, 128, &Ip::LOOPBACK6.0.to_be_bytes()[..])];
        for (of, prefix, address) in all {
            if family != 0 && family != of {
                continue;
            }
            self.begin(NEW_ADDRESS, MULTI);
            self.put(&[of as u8, prefix, PERMANENT as u8, HOST]);
            self.put(&interface::INDEX.to_ne_bytes());
            self.attribute(1, address);
            if of == v4 {
                self.attribute(2, address);
                self.attribute(NAME, interface::NAME);
            }
            self.attribute(6, &TIMES);
            self.attribute(8, &PERMANENT.to_ne_bytes());
            self.end();
        }
    }

    /// Puts it into the socket's queue.
    fn send(&self, socket: &Socket) {
        send_all(socket, &[self]);
    }

    fn record(&self) -> (Record, Result<()>) {
        let mut chain = Chain::new();
        let bytes = &self.bytes[..self.len];
        let made = append(&mut chain, &mut Source::kernel(bytes), self.len, Loans::Nothing);
        let from = Address::Netlink { port: 0, groups: 0 };
        (Record::message(chain, from, Extra::default()), made)
    }
}

/// Puts up to two messages that belong together into the socket's queue. Without room for all, all
/// are lost, and the next receive says so.
fn send_all(socket: &Socket, replies: &[&Reply]) {
    let (mut records, mut made, mut charge) = ([None, None], Ok(()), 0);
    let said = replies.iter().filter(|reply| reply.len > 0);
    for (place, reply) in records.iter_mut().zip(said) {
        let (record, result) = reply.record();
        charge += record.charge();
        made = made.and(result);
        *place = Some(record);
    }
    if charge == 0 {
        return;
    }
    let limit = socket.options.receive_limit();
    let came = socket.incoming.with(|queue| {
        if made.is_err() || !queue.fits(charge, limit) || socket.incoming.is_over_account() {
            return Err(ENOBUFS);
        }
        queue.reserve(records.len())?;
        records.iter_mut().filter(|record| record.is_some()).try_for_each(|it| queue.push(it))
    });
    records.into_iter().flatten().for_each(Record::discard);
    match came {
        Ok(()) => socket.readers.wake_all(),
        Err(errno) => socket.set_error(errno),
    }
}
