//! Sockets: making, naming and connecting them, their options, and plain transfers. Messages are in
//! `message`.

use alloc::sync::Arc;

use linux_raw_sys::net;

use super::fd::install_pair;
use super::path_args::only;
use super::{calls, Calls};
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::fs::ops::downcast_file;
use crate::fs::pipe::Blocking;
use crate::net::address::{Address, Family, Kind, RawName, TYPE_FLAGS};
use crate::net::options;
use crate::net::queue::{Got, Peek};
use crate::net::rights::{self, defer_close, Control};
use crate::net::socket::{How, Received, Socket};
use crate::proc::curproc;
use crate::uio::{Sink, Source, MAX_TRANSFER};
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_socket => socket[3], __NR_socketpair => socketpair[4], __NR_bind => bind[3], __NR_listen => listen[2],
    __NR_accept => accept[3], __NR_accept4 => accept4[4], __NR_connect => connect[3], __NR_shutdown => shutdown[2],
    __NR_getsockname => getsockname[3], __NR_getpeername => getpeername[3],
    __NR_setsockopt => setsockopt[5], __NR_getsockopt => getsockopt[5],
    __NR_sendto => sendto[6], __NR_recvfrom => recvfrom[6],
};

/// The socket behind an open file.
pub fn socket_of(file: &File) -> Result<&Socket> {
    downcast_file::<Socket>(file.io()).ok_or(ENOTSOCK)
}

fn install(socket: Arc<Socket>, flags: u32) -> Result<i32> {
    curproc::files()?.insert(socket.into_file(flags)?, OnExec::from_flags(flags))
}

fn socket(family: u32, kind: u32, protocol: u32) -> Result<i32> {
    only(kind & !0xf, TYPE_FLAGS)?;
    install(Socket::create(family, kind & 0xf, protocol)?, kind)
}

fn socketpair(family: u32, kind: u32, protocol: u32, out: u64) -> Result<()> {
    only(kind & !0xf, TYPE_FLAGS)?;
    // Before anything is made.
    user::put(out, &user::get::<[i32; 2]>(out)?)?;
    let [a, b] = Socket::pair(family, kind & 0xf, protocol)?;
    match (a.clone().into_file(kind), b.into_file(kind)) {
        (Ok(a), Ok(b)) => install_pair((a, b), kind, out),
        (Err(errno), _) | (_, Err(errno)) => {
            a.close();
            Err(errno)
        }
    }
}

fn bind(fd: i32, addr: u64, len: u32) -> Result<()> {
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    let name = RawName::read(addr, len)?;
    let any = if socket.family == Family::Inet4 { name.any_v4() } else { None };
    socket.bind(name.decode(socket.family)?.or(any).as_ref())
}

fn listen(fd: i32, backlog: i32) -> Result<()> {
    socket_of(&*curproc::file(fd)?)?.listen(backlog)
}

fn accept(fd: i32, addr: u64, len_addr: u64) -> Result<i32> {
    accept4(fd, addr, len_addr, 0)
}

fn accept4(fd: i32, addr: u64, len_addr: u64, flags: u32) -> Result<i32> {
    only(flags, TYPE_FLAGS)?;
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    // Without a number for it, no connection is taken.
    let number = curproc::files()?.reserve()?;
    let accepted = socket.accept(Blocking::of(&file))?;
    // From here on the file closes it, whatever fails.
    let accepted_file = accepted.clone().into_file(flags).inspect_err(|_| accepted.close())?;
    if addr != 0 {
        accepted.peer_name().unwrap_or(Address::Unnamed).put(accepted.family, addr, len_addr)?;
    }
    Ok(number.open(accepted_file, OnExec::from_flags(flags)))
}

fn connect(fd: i32, addr: u64, len: u32) -> Result<()> {
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    let name = RawName::read(addr, len)?;
    let is_tcp = socket.family.is_inet() && socket.kind == Kind::Stream;
    let address = match socket.family {
        // Whether there is a connection is asked before the name is looked at.
        _ if is_tcp && name.has_family() && socket.is_connected() => Some(Address::Unnamed),
        Family::Unix if socket.kind == Kind::Datagram && name.is_unspecified() => None,
        family => name.decode(family)?,
    };
    socket.connect(address.as_ref(), Blocking::of(&file))
}

fn shutdown(fd: i32, how: u32) -> Result<()> {
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    if how > 2 {
        return Err(EINVAL);
    }
    socket.shutdown(how + 1)
}

fn getsockname(fd: i32, addr: u64, len_addr: u64) -> Result<()> {
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    socket.name().put(socket.family, addr, len_addr)
}

fn getpeername(fd: i32, addr: u64, len_addr: u64) -> Result<()> {
    let file = curproc::file(fd)?;
    let socket = socket_of(&file)?;
    socket.peer_name()?.put(socket.family, addr, len_addr)
}

fn setsockopt(fd: i32, level: u32, name: u32, addr: u64, len: i32) -> Result<()> {
    options::set(socket_of(&*curproc::file(fd)?)?, level, name, addr, len)
}

fn getsockopt(fd: i32, level: u32, name: u32, addr: u64, len_addr: u64) -> Result<()> {
    options::get(socket_of(&*curproc::file(fd)?)?, level, name, addr, len_addr)
}

fn blocking(file: &File, flags: u32) -> Blocking {
    if flags & net::MSG_DONTWAIT != 0 {
        Blocking::No
    } else {
        Blocking::of(file)
    }
}

/// Sends, with the signal that a broken connection raises.
pub fn send(
    file: &File,
    dest: Option<&Address>,
    from: &mut Source<'_>,
    control: Option<Control>,
    flags: u32,
) -> Result<usize> {
    let socket = socket_of(file)?;
    let result = match flags & net::MSG_OOB != 0 {
        true if !socket.has_urgent_bytes() => return Err(EOPNOTSUPP),
        true => socket.send_urgent(from, control, blocking(file, flags)),
        false => socket.send(dest, from, control, blocking(file, flags)),
    };
    let is_silent = flags & net::MSG_NOSIGNAL != 0 || socket.is_silent();
    if result == Err(EPIPE) && !is_silent {
        crate::proc::raise_sigpipe();
    }
    result
}

/// Receives; what came along goes to `got`.
pub fn receive(file: &File, to: &mut Sink<'_>, flags: u32, got: &mut Got) -> Result<Received> {
    let socket = socket_of(file)?;
    // Over UDP nothing is urgent.
    let is_udp = socket.family.is_inet() && socket.kind == Kind::Datagram;
    if flags & net::MSG_OOB != 0 && !is_udp {
        if !socket.has_urgent_bytes() {
            return Err(EOPNOTSUPP);
        }
        let peek = if flags & net::MSG_PEEK != 0 { Peek::Yes } else { Peek::No };
        let copied = socket.receive_urgent(to, peek)?;
        return Ok(Received { copied, whole: copied, from: None });
    }
    if flags & net::MSG_ERRQUEUE != 0 && socket.family.is_inet() {
        return Err(EAGAIN);
    }
    let peek = if flags & net::MSG_PEEK != 0 { Peek::Yes } else { Peek::No };
    let how =
        How { blocking: blocking(file, flags), peek, wait_all: flags & net::MSG_WAITALL != 0 };
    let received = socket.receive(to, how, got);
    if !got.files.is_empty() {
        rights::seen(&got.files);
    }
    received
}

fn sendto(fd: i32, buf: u64, len: usize, flags: u32, addr: u64, addr_len: u32) -> Result<usize> {
    let file = curproc::file(fd)?;
    if !user::is_within(buf, len.min(MAX_TRANSFER)) {
        return Err(EFAULT);
    }
    let socket = socket_of(&file)?;
    let dest = if addr == 0 { None } else { destination(socket, addr, addr_len)? };
    send(&file, dest.as_ref(), &mut Source::user(buf, len), None, flags)
}

/// Where a message is to go. A stream has one peer: a local one's sends may name none, those of a
/// TCP connection name what they like.
pub fn destination(socket: &Socket, addr: u64, len: u32) -> Result<Option<Address>> {
    if socket.family == Family::Unix && len == 0 {
        return Ok(None);
    }
    if socket.kind != Kind::Stream {
        return Address::get(socket.family, addr, len);
    }
    RawName::read(addr, len)?;
    match socket.peer_name() {
        _ if socket.family.is_inet() => Ok(None),
        Ok(_) => Err(EISCONN),
        Err(_) => Err(EOPNOTSUPP),
    }
}

fn recvfrom(fd: i32, buf: u64, len: usize, flags: u32, addr: u64, len_addr: u64) -> Result<usize> {
    let file = curproc::file(fd)?;
    let mut got = Got::default();
    let received = receive(&file, &mut Sink::user(buf, len), flags, &mut got);
    if let Some(rights) = got.rights {
        defer_close(rights);
    }
    let received = received?;
    if addr != 0 {
        put_sender(socket_of(&file)?, &received, addr, len_addr)?;
    }
    Ok(told_length(&received, flags))
}

/// Bytes copied; with `MSG_TRUNC`, all that the message had.
pub fn told_length(received: &Received, flags: u32) -> usize {
    if flags & net::MSG_TRUNC != 0 {
        received.whole
    } else {
        received.copied
    }
}

/// Writes a message's sender; a length of 0 where there is no sender to name.
fn put_sender(socket: &Socket, received: &Received, addr: u64, len_addr: u64) -> Result<()> {
    match &received.from {
        Some(Address::Unnamed) | None => {
            if user::get::<i32>(len_addr)? < 0 {
                return Err(EINVAL);
            }
            user::put(len_addr, &0u32)
        }
        Some(name) => name.put(socket.family, addr, len_addr),
    }
}
