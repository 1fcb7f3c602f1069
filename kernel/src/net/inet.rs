//! Ports of the loopback addresses.
//!
//! A socket is bound to an address (or any) and a port of its protocol. Two may share a port if
//! their addresses don't meet; if both have SO_REUSEADDR and neither listens; or if both have
//! SO_REUSEPORT and are one user's: no user takes over another's connections. There is no state
//! behind a closed connection that would keep a port.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, Ordering};

use super::address::{Address, Family, Ip, Kind};
use super::named::Named;
use super::socket::Socket;
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::mem::fault::{self, Room};
use crate::proc::curproc;
use crate::sched;
use crate::sync::SpinLock;

/// The ports that are given to sockets that name none.
const FREE_PORTS: core::ops::Range<u16> = 32768..61000;
/// Ports below are the superuser's.
const FIRST_PORT: u16 = 1024;

/// Sockets that share a port, at most: a packet's receiver is searched among them.
const SHARING_MAX: usize = 1024;
/// What a look at a port takes: the work of copying so many bytes.
const LOOK: usize = 1024;

/// A protocol's port.
type Port = (Kind, u16);

/// A socket on a port.
struct Entry {
    ip: Ip,
    /// Any address of version 6 only.
    only6: bool,
    /// SO_REUSEADDR and SO_REUSEPORT, as they were when it was bound.
    reuses_address: bool,
    reuses_port: bool,
    /// Whose socket it is.
    uid: u32,
    socket: Weak<Socket>,
}

impl Entry {
    /// Whether packets to `ip` are for it.
    fn answers(&self, ip: Ip) -> bool {
        self.ip == ip
            || self.ip == Ip::ANY4 && ip.is_v4()
            || self.ip == Ip::ANY6 && !(ip.is_v4() && self.only6)
    }

    /// Whether some packet could be for both.
    fn meets(&self, other: &Entry) -> bool {
        self.answers(other.ip) || other.answers(self.ip)
    }

    fn is_listening(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| socket.is_listening())
    }

    /// Whether another that has the port bars this one from it, or from listening there.
    fn is_barred_by(&self, other: &Entry) -> bool {
        let share_port = self.reuses_port && other.reuses_port && self.uid == other.uid;
        let share_address = self.reuses_address && other.reuses_address;
        self.meets(other) && !share_port && (!share_address || other.is_listening())
    }
}

static PORTS: SpinLock<BTreeMap<Port, Vec<Entry>>> = SpinLock::new(BTreeMap::new());

/// All that have ports.
pub static BOUND: Named = Named::new();

/// A socket's hold on its port.
pub struct Bound {
    port: Port,
    number: u64,
    socket: Weak<Socket>,
}

/// Gives `socket` a port at `ip`, a free one for 0; returns which.
///
/// Fails with `EADDRNOTAVAIL`, `EACCES` or `EADDRINUSE`.
pub fn bind(socket: &Socket, ip: Ip, port: u16) -> Result<(Address, Bound)> {
    if !ip.is_any() && !ip.is_local() {
        return Err(EADDRNOTAVAIL);
    }
    if port != 0 && port < FIRST_PORT {
        curproc::cred().need(Caps::NET_BIND_SERVICE).map_err(|_| EACCES)?;
    }
    if port != 0 {
        return take(socket, ip, port, Whose::Anybodys);
    }
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = FREE_PORTS.end - FREE_PORTS.start;
    for _ in 0..count {
        if sched::work_done(LOOK) && sched::is_leaving() {
            return Err(EINTR);
        }
        let port = FREE_PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % count;
        match take(socket, ip, port, Whose::Nobodys) {
            Err(EADDRINUSE) => {}
            result => return result,
        }
    }
    Err(EADDRINUSE)
}

/// Which ports a socket may get.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// One that no other socket would share.
    Nobodys,
    /// One that others let it share.
    Anybodys,
}

fn take(socket: &Socket, ip: Ip, port: u16, whose: Whose) -> Result<(Address, Bound)> {
    let options = &socket.options;
    let entry = Entry {
        ip,
        only6: options.only6(),
        reuses_address: options.reuse_address(),
        reuses_port: options.reuse_port(),
        uid: socket.cred.lock().uid,
        socket: socket.weak(),
    };
    let key = (socket.kind, port);
    let mut table = PORTS.lock();
    let entries = table.entry(key).or_default();
    let is_barred = |other: &Entry| match whose {
        Whose::Nobodys => entry.meets(other),
        Whose::Anybodys => entry.is_barred_by(other),
    };
    if entries.len() >= SHARING_MAX || entries.iter().any(is_barred) {
        return Err(EADDRINUSE);
    }
    if entries.room(1).is_err() {
        if entries.is_empty() {
            table.remove(&key);
        }
        return Err(ENOBUFS);
    }
    entries.push(entry);
    drop(table);
    BOUND.add(socket);
    let bound = Bound { port: key, number: socket.number(), socket: socket.weak() };
    Ok((Address::Inet { ip, port }, bound))
}

/// Has `socket` listen by `start`, which is called if no other listens there.
///
/// Fails with `EADDRINUSE`, or as `start` does.
pub fn listen(socket: &Socket, start: impl FnOnce() -> Result<()>) -> Result<()> {
    let port = match socket.name() {
        Address::Inet { port, .. } => (socket.kind, port),
        _ => return start(),
    };
    let table = PORTS.lock();
    let entries = table.get(&port).map_or(&[][..], Vec::as_slice);
    let own = |entry: &&Entry| entry.socket.ptr_eq(&socket.weak());
    if let Some(entry) = entries.iter().find(own) {
        let mut others = entries.iter().filter(|other| !own(other) && other.is_listening());
        if others.any(|other| entry.is_barred_by(other)) {
            return Err(EADDRINUSE);
        }
    }
    start()
}

/// Takes a port back.
pub fn unbind(bound: Bound) {
    BOUND.remove(bound.number);
    let mut table = PORTS.lock();
    let Some(entries) = table.get_mut(&bound.port) else { return };
    if let Some(at) = entries.iter().position(|entry| entry.socket.ptr_eq(&bound.socket)) {
        let entry = entries.swap_remove(at);
        fault::shrink(entries);
        if entries.is_empty() {
            table.remove(&bound.port);
        }
        drop(table);
        drop(entry);
    }
}

/// Where packets to `ip` really go, for a socket of `family`.
///
/// Fails with `ENETUNREACH`: only the loopback is there.
pub fn route(family: Family, ip: Ip) -> Result<Ip> {
    let ip = match ip {
        Ip::ANY4 => Ip::LOOPBACK4,
        Ip::ANY6 => Ip::LOOPBACK6,
        ip => ip,
    };
    let is_foreign = !ip.is_local() || family == Family::Inet4 && !ip.is_v4();
    if is_foreign {
        return Err(ENETUNREACH);
    }
    Ok(ip)
}

/// The sockets on a port that packets to `ip` are for, those bound to exactly that address first.
///
/// Fails with `ENOBUFS`.
fn bound_to(kind: Kind, ip: Ip, port: u16) -> Result<Vec<Arc<Socket>>> {
    // Let go with nothing locked, also where there is no room for all.
    let mut found = Vec::new();
    let table = PORTS.lock();
    let Some(entries) = table.get(&(kind, port)) else { return Ok(found) };
    let answering = || entries.iter().filter(|entry| entry.answers(ip));
    let exact = answering().filter(|entry| entry.ip == ip);
    let others = answering().filter(|entry| entry.ip != ip);
    for entry in exact.chain(others) {
        found.room(1).map_err(|_| ENOBUFS)?;
        found.extend(entry.socket.upgrade());
    }
    Ok(found)
}

/// The socket that listens for connections to an address.
///
/// Fails with `ECONNREFUSED` or `ENOBUFS`.
pub fn listener(ip: Ip, port: u16) -> Result<Arc<Socket>> {
    bound_to(Kind::Stream, ip, port)?
        .into_iter()
        .find(|socket| socket.is_listening())
        .ok_or(ECONNREFUSED)
}

/// The socket that gets datagrams from `from` to an address: the one connected to the sender before
/// others.
///
/// Fails with `ENOBUFS`.
pub fn receiver(ip: Ip, port: u16, from: &Address) -> Result<Option<Arc<Socket>>> {
    let found = bound_to(Kind::Datagram, ip, port)?;
    let mut sockets = found.iter();
    let connected =
        sockets.clone().find(|socket| socket.peer_name().is_ok_and(|peer| peer == *from));
    Ok(connected.or_else(|| sockets.find(|socket| socket.peer_name().is_err())).cloned())
}
