//! What `setsockopt` sets and `getsockopt` tells.
//!
//! Options that change nothing here (a loopback has no delay to avoid and loses no connection to
//! keep alive) are kept and told again, since programs check.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, AtomicUsize, Ordering::Relaxed};

use linux_raw_sys::net;

use super::address::{Family, Kind};
use super::arrival;
use super::socket::Socket;
use super::{interface, netlink};
use crate::charge::{self, Charge};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::mem::fault;
use crate::proc::curproc;
use crate::sched::Nanos;
use crate::sync::SpinLock;
use crate::user;

/// The size of a buffer in each direction, and the most that may be asked for (what is kept is
/// twice that, as on Linux).
const BUFFER: usize = 212_992;
/// The most for processes that may ask for more.
const FORCED_MAX: usize = i32::MAX as usize / 2;
const SEND_MIN: usize = 4608;
const RECEIVE_MIN: usize = 2304;

pub const SOL_SOCKET: u32 = net::SOL_SOCKET;
pub const IPPROTO_IP: u32 = 0;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
pub const IPPROTO_IPV6: u32 = 41;
pub const SOL_NETLINK: u32 = 270;
/// With times of 64 bits, as the older ones have here too.
const RCVTIMEO_NEW: u32 = 66;
const SNDTIMEO_NEW: u32 = 67;
const NANOS: i64 = 1_000_000_000;
/// Kept options of one socket at most.
const KEPT_MAX: usize = 64;

/// The options of one socket.
pub struct Options {
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    low_water: AtomicUsize,
    send_timeout: AtomicU64,
    receive_timeout: AtomicU64,
    reuse_address: AtomicBool,
    reuse_port: AtomicBool,
    passes_cred: AtomicBool,
    only6: AtomicBool,
    /// What is told of datagrams that come ([`arrival::bit`]).
    told: AtomicU8,
    /// `SO_LINGER`: on or off, and seconds.
    linger: SpinLock<[i32; 2]>,
    /// Level, name and value of those that change nothing.
    kept: SpinLock<Kept>,
}

/// Options that are kept for `getsockopt`, and what they are charged.
#[derive(Default)]
struct Kept {
    values: Vec<(u32, u32, i32)>,
    charge: Option<Charge>,
}

impl Kept {
    /// Makes room for one more, charged to the caller.
    fn grow(&mut self) -> Result<()> {
        const STEP: usize = 8;
        const EACH: usize = size_of::<(u32, u32, i32)>();
        if self.values.len() < self.values.capacity() {
            return Ok(());
        }
        if self.values.len() >= KEPT_MAX {
            return Err(ENOBUFS);
        }
        match &mut self.charge {
            Some(charge) => charge.grow(STEP * EACH).map_err(|_| ENOBUFS)?,
            None => self.charge = Some(charge::take(STEP * EACH).map_err(|_| ENOBUFS)?),
        }
        let grown = fault::attempt(|| self.values.try_reserve_exact(STEP)).map_err(|_| ENOBUFS);
        let room = self.values.capacity();
        self.charge.iter_mut().for_each(|charge| charge.shrink_to(room * EACH));
        grown
    }
}

impl Options {
    pub fn new() -> Options {
        Options {
            send_buffer: AtomicUsize::new(BUFFER),
            receive_buffer: AtomicUsize::new(BUFFER),
            low_water: AtomicUsize::new(1),
            send_timeout: AtomicU64::new(0),
            receive_timeout: AtomicU64::new(0),
            reuse_address: AtomicBool::new(false),
            reuse_port: AtomicBool::new(false),
            passes_cred: AtomicBool::new(false),
            only6: AtomicBool::new(false),
            told: AtomicU8::new(0),
            linger: SpinLock::new([0, 0]),
            kept: SpinLock::default(),
        }
    }

    /// What an accepted socket has from its listener.
    pub fn copy_from(&self, other: &Options) {
        self.send_buffer.store(other.send_limit(), Relaxed);
        self.receive_buffer.store(other.receive_limit(), Relaxed);
        self.low_water.store(other.low_water(), Relaxed);
        self.reuse_address.store(other.reuse_address(), Relaxed);
        self.reuse_port.store(other.reuse_port(), Relaxed);
        self.passes_cred.store(other.passes_cred(), Relaxed);
    }

    /// Bytes that may be on their way from here.
    pub fn send_limit(&self) -> usize {
        self.send_buffer.load(Relaxed)
    }

    /// Bytes that may wait here.
    pub fn receive_limit(&self) -> usize {
        self.receive_buffer.load(Relaxed)
    }

    /// Bytes of a stream that a receiver is to have at once, if it has room for them
    /// (`SO_RCVLOWAT`).
    pub fn low_water(&self) -> usize {
        self.low_water.load(Relaxed)
    }

    /// How long a send waits; 0 for good.
    pub fn send_timeout(&self) -> Nanos {
        self.send_timeout.load(Relaxed)
    }

    pub fn receive_timeout(&self) -> Nanos {
        self.receive_timeout.load(Relaxed)
    }

    pub fn reuse_address(&self) -> bool {
        self.reuse_address.load(Relaxed)
    }

    pub fn reuse_port(&self) -> bool {
        self.reuse_port.load(Relaxed)
    }

    /// Whether the socket wants its senders' credentials (`SO_PASSCRED`).
    pub fn passes_cred(&self) -> bool {
        self.passes_cred.load(Relaxed)
    }

    /// What is told of datagrams that come: a bit for each option that asks for something.
    pub fn told(&self) -> u8 {
        self.told.load(Relaxed)
    }

    pub fn only6(&self) -> bool {
        self.only6.load(Relaxed)
    }

    /// Whether the last close resets the connection: lingering for no time.
    pub fn resets_at_close(&self) -> bool {
        *self.linger.lock() == [1, 0]
    }

    fn keep(&self, level: u32, name: u32, value: i32) -> Result<()> {
        let mut kept = self.kept.lock();
        if let Some(entry) =
            kept.values.iter_mut().find(|entry| (entry.0, entry.1) == (level, name))
        {
            entry.2 = value;
            return Ok(());
        }
        kept.grow()?;
        kept.values.push((level, name, value));
        Ok(())
    }

    /// The value that a program has given an option; none if it has given none.
    pub fn kept(&self, level: u32, name: u32) -> Option<i32> {
        let kept = self.kept.lock();
        kept.values.iter().find(|entry| (entry.0, entry.1) == (level, name)).map(|entry| entry.2)
    }
}

/// The default value of options that are kept and change nothing; `None` if there is no such
/// option.
fn kept_default(socket: &Socket, level: u32, name: u32) -> Option<i32> {
    let inet = socket.family.is_inet();
    let stream = socket.kind == Kind::Stream;
    match (level, name) {
        (SOL_SOCKET, net::SO_SNDLOWAT) => Some(1),
        (
            SOL_SOCKET,
            net::SO_KEEPALIVE
            | net::SO_BROADCAST
            | net::SO_OOBINLINE
            | net::SO_DONTROUTE
            | net::SO_PRIORITY
            | net::SO_DEBUG
            | net::SO_TIMESTAMP
            | net::SO_TIMESTAMPNS
            | net::SO_MARK
            | net::SO_BUSY_POLL,
        ) => Some(0),
        // Checksums, labels and filters there are none of, one interface, no tuning that a program
        // could end: NO_CHECK, BSDCOMPAT, PASSSEC, WIFI_STATUS, NOFCS, LOCK_FILTER,
        // SELECT_ERR_QUEUE, BINDTOIFINDEX, PREFER_BUSY_POLL, BUSY_POLL_BUDGET, BUF_LOCK; then
        // TXREHASH, MAX_PACING_RATE.
        (SOL_SOCKET, 11 | 14 | 34 | 41 | 43 | 44 | 45 | 62 | 69 | 70 | 72) => Some(0),
        (SOL_SOCKET, 74) => Some(1),
        (SOL_SOCKET, 47) => Some(-1),
        // TOS, TTL, PKTINFO, MTU_DISCOVER, RECVERR, RECVTTL, RECVTOS, MULTICAST_TTL,
        // MULTICAST_LOOP.
        (IPPROTO_IP, 2 | 32 | 33) if inet => Some(64),
        (IPPROTO_IP, 1 | 8 | 10 | 11 | 12 | 13) if inet => Some(0),
        (IPPROTO_IP, 34) if inet => Some(1),
        // UNICAST_HOPS, MULTICAST_HOPS, RECVERR, RECVPKTINFO, TCLASS, RECVTCLASS, RECVHOPLIMIT.
        (IPPROTO_IPV6, 16 | 18) if socket.family == Family::Inet6 => Some(64),
        (IPPROTO_IPV6, 25 | 49 | 51 | 66 | 67) if socket.family == Family::Inet6 => Some(0),
        // BROADCAST_ERROR, NO_ENOBUFS, CAP_ACK, EXT_ACK, GET_STRICT_CHK; memberships of groups in
        // which nothing is said.
        (SOL_NETLINK, 1 | 2 | 4 | 5 | 10..=12) if socket.family == Family::Netlink => Some(0),
        // NODELAY, CORK, SYNCNT, DEFER_ACCEPT, QUICKACK, USER_TIMEOUT, FASTOPEN.
        (IPPROTO_TCP, 1 | 3 | 7 | 9 | 12 | 18 | 23) if inet && stream => Some(0),
        // MAXSEG, KEEPIDLE, KEEPINTVL, KEEPCNT.
        (IPPROTO_TCP, 2) if inet && stream => Some(65483),
        (IPPROTO_TCP, 4) if inet && stream => Some(7200),
        (IPPROTO_TCP, 5) if inet && stream => Some(75),
        (IPPROTO_TCP, 6) if inet && stream => Some(9),
        _ => None,
    }
}

/// Whether an option may have this value. -1 stands for the default.
fn may_be(level: u32, name: u32, value: i32) -> bool {
    match (level, name) {
        // Interfaces: none in particular, or the one there is.
        (SOL_SOCKET, 62) => (0..=interface::INDEX).contains(&value),
        (SOL_SOCKET, 72) => (0..=3).contains(&value),
        (IPPROTO_IP, net::IP_TTL) => value == -1 || (1..=255).contains(&value),
        (IPPROTO_IPV6, net::IPV6_UNICAST_HOPS | net::IPV6_TCLASS) => (-1..=255).contains(&value),
        _ => true,
    }
}

/// The value of an option as a program gave it.
struct Value {
    addr: u64,
    len: usize,
}

impl Value {
    fn int(&self) -> Result<i32> {
        if self.len < 4 {
            return Err(EINVAL);
        }
        user::get(self.addr)
    }

    /// Options of IP take a byte as well.
    fn int_or_byte(&self, level: u32) -> Result<i32> {
        if level == IPPROTO_IP && (1..4).contains(&self.len) {
            return user::get::<u8>(self.addr).map(i32::from);
        }
        self.int()
    }

    fn flag(&self) -> Result<bool> {
        Ok(self.int()? != 0)
    }

    /// A `struct timeval` as nanoseconds.
    fn time(&self) -> Result<Nanos> {
        if self.len < 16 {
            return Err(EINVAL);
        }
        let [seconds, micros]: [i64; 2] = user::get(self.addr)?;
        if !(0..1_000_000).contains(&micros) {
            return Err(EDOM);
        }
        let seconds = seconds.clamp(0, i64::MAX / NANOS - 1);
        Ok((seconds * NANOS + micros * 1000) as Nanos)
    }
}

/// `setsockopt`.
pub fn set(socket: &Socket, level: u32, name: u32, addr: u64, len: i32) -> Result<()> {
    let value = Value { addr, len: usize::try_from(len).map_err(|_| EINVAL)? };
    let options = &socket.options;
    if level == SOL_SOCKET {
        value.int()?;
    } else if socket.family == Family::Unix {
        return Err(EOPNOTSUPP);
    }
    may_set(level, name, &value)?;
    match (level, name) {
        (SOL_SOCKET, net::SO_REUSEADDR) => options.reuse_address.store(value.flag()?, Relaxed),
        (SOL_SOCKET, net::SO_REUSEPORT) => options.reuse_port.store(value.flag()?, Relaxed),
        (SOL_SOCKET, net::SO_PASSCRED) if socket.family == Family::Unix => {
            options.passes_cred.store(value.flag()?, Relaxed);
        }
        (SOL_SOCKET, net::SO_SNDBUF | net::SO_SNDBUFFORCE) => {
            let most = if name == net::SO_SNDBUF { BUFFER } else { FORCED_MAX };
            options.send_buffer.store(buffer(value.int()?, SEND_MIN, most), Relaxed);
            socket.writers.wake_all();
        }
        (SOL_SOCKET, net::SO_RCVBUF | net::SO_RCVBUFFORCE) => {
            let most = if name == net::SO_RCVBUF { BUFFER } else { FORCED_MAX };
            options.receive_buffer.store(buffer(value.int()?, RECEIVE_MIN, most), Relaxed);
            socket.room.wake_all();
        }
        (SOL_SOCKET, net::SO_RCVTIMEO | RCVTIMEO_NEW) => {
            options.receive_timeout.store(value.time()?, Relaxed)
        }
        (SOL_SOCKET, net::SO_SNDTIMEO | SNDTIMEO_NEW) => {
            options.send_timeout.store(value.time()?, Relaxed)
        }
        (SOL_SOCKET, net::SO_LINGER) => {
            if value.len < 8 {
                return Err(EINVAL);
            }
            let [on, seconds]: [i32; 2] = user::get(addr)?;
            *options.linger.lock() = [i32::from(on != 0), seconds];
        }
        (IPPROTO_IPV6, net::IPV6_V6ONLY) if socket.family == Family::Inet6 => {
            if socket.ends.lock().bound.is_some() {
                return Err(EINVAL);
            }
            options.only6.store(value.flag()?, Relaxed);
        }
        (SOL_SOCKET, net::SO_SNDLOWAT) => return Err(ENOPROTOOPT),
        (SOL_SOCKET, net::SO_RCVLOWAT) => {
            let most = i32::MAX as usize;
            let most = if socket.family.is_inet() { options.receive_limit() / 2 } else { most };
            let low = usize::try_from(value.int()?).unwrap_or(most).clamp(1, most);
            options.low_water.store(low, Relaxed);
            socket.readers.wake_all();
        }
        (SOL_SOCKET, net::SO_OOBINLINE) => {
            let is_inline = value.flag()?;
            options.keep(level, name, i32::from(is_inline))?;
            socket.incoming.with(|queue| queue.set_inline(is_inline));
            socket.readers.wake_all();
        }
        (SOL_NETLINK, 1 | 2) if socket.family == Family::Netlink => {
            netlink::join(socket, value.int()?, name == 1)?;
        }
        (SOL_SOCKET, net::SO_BINDTODEVICE) => bind_to_device(&value)?,
        // Advice about a connection's way, and a filter that there isn't.
        (SOL_SOCKET, net::SO_CNX_ADVICE) => {}
        (SOL_SOCKET, net::SO_DETACH_FILTER) => return Err(ENOENT),
        _ => {
            kept_default(socket, level, name).ok_or(ENOPROTOOPT)?;
            let number = match (level, name) {
                (IPPROTO_IP, net::IP_TOS) => value.int_or_byte(level)? & 0xff,
                _ => value.int_or_byte(level)?,
            };
            if !may_be(level, name, number) {
                return Err(EINVAL);
            }
            let bit = arrival::bit(level, name);
            if number == 0 {
                options.told.fetch_and(!bit, Relaxed);
            } else {
                options.told.fetch_and(!arrival::excludes(bit), Relaxed);
                options.told.fetch_or(bit, Relaxed);
            }
            if bit == 0 {
                options.keep(level, name, number)?;
            }
        }
    }
    Ok(())
}

/// `SO_BINDTODEVICE`: a name, or none.
///
/// # Errors
/// `ENODEV` for another than the one there is.
fn bind_to_device(value: &Value) -> Result<()> {
    let mut name = [0; 16];
    let len = value.len.min(name.len() - 1);
    user::copy_in(&mut name[..len], value.addr)?;
    match name.split(|&byte| byte == 0).next() {
        Some(b"" | b"lo") | None => Ok(()),
        Some(_) => Err(ENODEV),
    }
}

fn buffer(asked: i32, least: usize, most: usize) -> usize {
    (usize::try_from(asked).unwrap_or(BUFFER).min(most) * 2).max(least)
}

/// Whether the running process may give an option this value.
fn may_set(level: u32, name: u32, value: &Value) -> Result<()> {
    const PRIORITIES: core::ops::RangeInclusive<i32> = 0..=6;
    if level != SOL_SOCKET {
        return Ok(());
    }
    let by = curproc::cred();
    let administers = by.has(Caps::NET_ADMIN);
    match name {
        net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE if !administers => Err(EPERM),
        net::SO_DEBUG if !administers && value.flag()? => Err(EACCES),
        net::SO_MARK if !administers && !by.has(Caps::NET_RAW) => Err(EPERM),
        net::SO_PRIORITY if !PRIORITIES.contains(&value.int()?) => {
            by.need(Caps::NET_ADMIN).or_else(|_| by.need(Caps::NET_RAW))
        }
        // More of it than there was, which is nothing unless the caller asked.
        net::SO_BUSY_POLL if !administers && value.int()? != 0 => Err(EPERM),
        net::SO_BUSY_POLL if value.int()? < 0 => Err(EINVAL),
        net::SO_PREFER_BUSY_POLL | net::SO_BUSY_POLL_BUDGET if !administers && value.flag()? => {
            Err(EPERM)
        }
        _ => Ok(()),
    }
}

/// `getsockopt`: writes as much of the value as there is room for, and its length.
pub fn get(socket: &Socket, level: u32, name: u32, addr: u64, len_addr: u64) -> Result<()> {
    let has_level = match socket.family {
        Family::Unix => level == SOL_SOCKET,
        Family::Inet4 if socket.kind == Kind::Stream => {
            matches!(level, SOL_SOCKET | IPPROTO_IP | IPPROTO_TCP)
        }
        Family::Inet4 => matches!(level, SOL_SOCKET | IPPROTO_IP | IPPROTO_UDP),
        Family::Inet6 | Family::Netlink | Family::Null => true,
    };
    if !has_level {
        return Err(EOPNOTSUPP);
    }
    let room: i32 = user::get(len_addr)?;
    let room = usize::try_from(room).map_err(|_| EINVAL)?;
    let value = value_of(socket, level, name)?;
    // A name comes whole, and 64 bits do.
    let is_whole = matches!((level, name), (SOL_SOCKET, net::SO_PEERNAME | net::SO_COOKIE));
    if is_whole && room < value.len() {
        return Err(EINVAL);
    }
    let n = value.len().min(room);
    user::copy_out(addr, &value[..n])?;
    user::put(len_addr, &(n as u32))
}

fn value_of(socket: &Socket, level: u32, name: u32) -> Result<Vec<u8>> {
    let options = &socket.options;
    let int = |value: i32| Ok(value.to_ne_bytes().to_vec());
    let time = |nanos: Nanos| {
        let [seconds, micros] = [nanos as i64 / NANOS, nanos as i64 % NANOS / 1000];
        Ok([seconds.to_ne_bytes(), micros.to_ne_bytes()].concat())
    };
    match (level, name) {
        (SOL_SOCKET, net::SO_TYPE) => int(socket.kind.number() as i32),
        (SOL_SOCKET, net::SO_DOMAIN) => int(socket.family.number() as i32),
        (SOL_SOCKET, net::SO_PROTOCOL) => int(socket.protocol as i32),
        (SOL_SOCKET, net::SO_ERROR) => int(socket.take_error().map_or(0, |errno| errno.0)),
        (SOL_SOCKET, net::SO_ACCEPTCONN) => int(i32::from(socket.is_listening())),
        (SOL_SOCKET, net::SO_REUSEADDR) => int(i32::from(options.reuse_address())),
        (SOL_SOCKET, net::SO_REUSEPORT) => int(i32::from(options.reuse_port())),
        (SOL_SOCKET, net::SO_PASSCRED) => int(i32::from(options.passes_cred())),
        (SOL_SOCKET, net::SO_RCVLOWAT) => int(options.low_water() as i32),
        (SOL_SOCKET, net::SO_SNDBUF) => int(options.send_limit() as i32),
        (SOL_SOCKET, net::SO_RCVBUF) => int(options.receive_limit() as i32),
        (SOL_SOCKET, net::SO_RCVTIMEO | RCVTIMEO_NEW) => time(options.receive_timeout()),
        (SOL_SOCKET, net::SO_SNDTIMEO | SNDTIMEO_NEW) => time(options.send_timeout()),
        (SOL_SOCKET, net::SO_LINGER) => {
            let [on, seconds] = *options.linger.lock();
            Ok([on.to_ne_bytes(), seconds.to_ne_bytes()].concat())
        }
        (SOL_SOCKET, net::SO_COOKIE) => Ok(socket.number().to_ne_bytes().to_vec()),
        (SOL_SOCKET, net::SO_INCOMING_NAPI_ID) => int(0),
        (SOL_SOCKET, net::SO_BINDTODEVICE) => Ok(Vec::new()),
        (SOL_SOCKET, net::SO_PEERNAME) => Ok(socket.peer_name()?.encode(socket.family)),
        (SOL_SOCKET, net::SO_PEERCRED) => {
            let cred = if socket.is_listening() {
                *socket.cred.lock()
            } else {
                socket.ends.lock().peer_cred
            };
            Ok(zerocopy::IntoBytes::as_bytes(&cred).to_vec())
        }
        (IPPROTO_IPV6, net::IPV6_V6ONLY) if socket.family == Family::Inet6 => {
            int(i32::from(options.only6()))
        }
        _ => {
            let default = kept_default(socket, level, name).ok_or(ENOPROTOOPT)?;
            match arrival::bit(level, name) {
                0 => int(options.kept(level, name).filter(|&kept| kept != -1).unwrap_or(default)),
                bit => int(i32::from(options.told() & bit != 0)),
            }
        }
    }
}
