//! Sockets, as far as there are any: connected local pairs.

use linux_raw_sys::{general as abi, net};

use super::fd::install_pair;
use super::file::vector;
use super::{calls, Calls};
use crate::errno::*;
use crate::fs::current;
use crate::fs::file::File;
use crate::fs::inode::downcast;
use crate::fs::io::{Sink, Source};
use crate::ipc::pipe::Blocking;
use crate::ipc::socket::Socket;
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_socket => socket[3], __NR_socketpair => socketpair[4], __NR_shutdown => shutdown[2],
    __NR_sendto => sendto[4], __NR_recvfrom => recvfrom[4],
    __NR_sendmsg => sendmsg[3], __NR_recvmsg => recvmsg[3],
};

/// The type's bits that are flags of the new descriptors.
const TYPE_FLAGS: u32 = abi::O_NONBLOCK | abi::O_CLOEXEC;

fn socket(_family: u32, _kind: u32, _protocol: u32) -> Result<i32> {
    Err(EAFNOSUPPORT)
}

fn socketpair(family: u32, kind: u32, protocol: u32, out: u64) -> Result<()> {
    if family != net::AF_UNIX {
        return Err(EAFNOSUPPORT);
    }
    if kind & !TYPE_FLAGS != net::SOCK_STREAM || protocol != 0 {
        return Err(EOPNOTSUPP);
    }
    install_pair(Socket::pair(kind)?, kind, out)
}

fn socket_of(file: &File) -> Result<&Socket> {
    downcast::<Socket>(file.io()).ok_or(ENOTSOCK)
}

fn shutdown(fd: i32, how: u32) -> Result<()> {
    let file = current::file(fd)?;
    if how > 2 {
        return Err(EINVAL);
    }
    socket_of(&file)?.shutdown(how + 1);
    Ok(())
}

fn blocking(file: &File, flags: u32) -> Blocking {
    if flags & net::MSG_DONTWAIT != 0 {
        Blocking::No
    } else {
        Blocking::of(file)
    }
}

fn send(file: &File, from: &mut Source<'_>, flags: u32) -> Result<usize> {
    let socket = socket_of(file)?;
    if flags & net::MSG_NOSIGNAL != 0 {
        socket.send_quietly(blocking(file, flags), from)
    } else {
        socket.send(blocking(file, flags), from)
    }
}

fn receive(file: &File, to: &mut Sink<'_>, flags: u32) -> Result<usize> {
    if flags & (net::MSG_PEEK | net::MSG_OOB) != 0 {
        return Err(EOPNOTSUPP);
    }
    let socket = socket_of(file)?;
    let mut done = socket.receive(blocking(file, flags), to)?;
    while flags & net::MSG_WAITALL != 0 && to.left() > 0 {
        match socket.receive(blocking(file, flags), to) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n,
        }
    }
    Ok(done)
}

fn sendto(fd: i32, buf: u64, len: usize, flags: u32) -> Result<usize> {
    send(&*current::file(fd)?, &mut Source::user(buf, len), flags)
}

fn recvfrom(fd: i32, buf: u64, len: usize, flags: u32) -> Result<usize> {
    receive(&*current::file(fd)?, &mut Sink::user(buf, len), flags)
}

/// The parts of `struct msghdr` up to its flags: name, name length, vector, count, control, its length, flags.
type Message = [u64; 7];

fn sendmsg(fd: i32, message: u64, flags: u32) -> Result<usize> {
    let file = current::file(fd)?;
    let [_, _, pieces, count, _, control_len, _]: Message = user::get(message)?;
    if control_len != 0 {
        return Err(EOPNOTSUPP);
    }
    send(&file, &mut Source::vector(&vector(pieces, count as usize)?), flags)
}

fn recvmsg(fd: i32, message: u64, flags: u32) -> Result<usize> {
    let file = current::file(fd)?;
    let [name, _, pieces, count, control, _, _]: Message = user::get(message)?;
    let n = receive(&file, &mut Sink::vector(&vector(pieces, count as usize)?), flags)?;
    user::put(message, &[name, 0, pieces, count, control, 0, 0])?;
    Ok(n)
}
