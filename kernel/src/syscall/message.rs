//! Messages with names and control data: `sendmsg`, `recvmsg`, and many at once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::net;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::file::{vector, Vector, IOV_MAX};
use super::path_args::only;
use super::socket::{destination, receive, send, socket_of};
use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::fs::fdtable::OnExec;
use crate::fs::file::File;
use crate::mem::fault;
use crate::net::address::{Address, Family, Kind, ADDRESS_MAX};
use crate::net::control::{self, PutControl};
use crate::net::queue::Got;
use crate::net::rights::{Control, Ucred};
use crate::net::socket::Socket;
use crate::proc;
use crate::proc::curproc;
use crate::sched::{self, Nanos};
use crate::uio::{Sink, Source};
use crate::user;

pub const CALLS: Calls = calls! {
    __NR_sendmsg => sendmsg[3], __NR_recvmsg => recvmsg[3],
    __NR_sendmmsg => sendmmsg[4], __NR_recvmmsg => recvmmsg[5],
};

/// The most control data that a message may bring.
const CONTROL_MAX: u64 = 20480;
/// The most messages in one call.
const MESSAGES_MAX: u32 = 1024;
/// `recvmmsg`: wait for the first message only.
const MSG_WAITFORONE: u32 = 0x10000;
/// Bytes of a `struct mmsghdr`, and where the count is in it.
const MANY: u64 = 64;
const MANY_COUNT: u64 = 56;

/// `struct msghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Message {
    name: u64,
    name_len: u32,
    _pad: u32,
    pieces: u64,
    count: u64,
    control: u64,
    control_len: u64,
    flags: u32,
    _pad2: u32,
}

/// `EINVAL` for the layout of programs of 32 bits.
fn check_layout(flags: u32) -> Result<()> {
    const COMPAT: u32 = 1 << 31;
    only(flags & COMPAT, 0)
}

fn sendmsg(fd: i32, addr: u64, flags: u32) -> Result<usize> {
    check_layout(flags)?;
    send_one(&*curproc::file(fd)?, addr, flags)
}

fn send_one(file: &File, addr: u64, flags: u32) -> Result<usize> {
    let socket = socket_of(file)?;
    let message: Message = user::get(addr)?;
    let pieces = pieces_of(&message)?;
    let len = match i32::try_from(message.name_len) {
        Ok(len) => (len as u32).min(ADDRESS_MAX as u32),
        Err(_) => return Err(EINVAL),
    };
    let dest = if message.name == 0 { None } else { destination(socket, message.name, len)? };
    let control = get_control(socket, &message)?;
    send(file, dest.as_ref(), &mut Source::vector(&pieces), control, flags)
}

/// Where the bytes of a message are. A vector that is too long is a message that is.
fn pieces_of(message: &Message) -> Result<Vector> {
    match usize::try_from(message.count) {
        Ok(count) if count <= IOV_MAX => vector(message.pieces, count),
        _ => Err(EMSGSIZE),
    }
}

/// Reads what a program sends along.
fn get_control(socket: &Socket, message: &Message) -> Result<Option<Control>> {
    if message.control_len == 0 {
        return Ok(None);
    }
    if message.control_len > CONTROL_MAX {
        return Err(ENOBUFS);
    }
    let len = message.control_len as usize;
    let mut bytes = Vec::new();
    fault::attempt(|| bytes.try_reserve_exact(len)).map_err(|_| ENOBUFS)?;
    bytes.resize(len, 0);
    user::copy_in(&mut bytes, message.control)?;
    let mut control = Control::default();
    let mut rest = bytes.as_slice();
    while let Some((header, data)) = control::next(&mut rest)? {
        if socket.family != Family::Unix {
            if socket.kind == Kind::Datagram {
                control.packet.take(socket.family, &header, data)?;
            }
        } else if header.level == net::SOL_SOCKET {
            take_control(&mut control, header.kind, data)?;
        }
    }
    Ok(Some(control))
}

fn take_control(control: &mut Control, kind: u32, data: &[u8]) -> Result<()> {
    match kind {
        net::SCM_RIGHTS => {
            let files = curproc::files()?;
            for fd in control::descriptors(data, control.files.len())? {
                control.files.push(files.get_any(fd)?);
            }
            Ok(())
        }
        net::SCM_CREDENTIALS => {
            let cred = Ucred::read_from_bytes(data).map_err(|_| EINVAL)?;
            check_cred(&cred)?;
            control.cred = Some(cred);
            Ok(())
        }
        _ => Err(EINVAL),
    }
}

/// Whether the running process may say that it is this one.
fn check_cred(claimed: &Ucred) -> Result<()> {
    let process = proc::current_process();
    let cred = process.cred();
    let pid = claimed.pid == process.pid || cred.has(Caps::SYS_ADMIN);
    let uid = [cred.uid, cred.euid, cred.suid].contains(&claimed.uid) || cred.has(Caps::SETUID);
    let gid = [cred.gid, cred.egid, cred.sgid].contains(&claimed.gid) || cred.has(Caps::SETGID);
    if pid && uid && gid {
        Ok(())
    } else {
        Err(EPERM)
    }
}

fn recvmsg(fd: i32, addr: u64, flags: u32) -> Result<usize> {
    check_layout(flags)?;
    receive_one(&*curproc::file(fd)?, addr, flags)
}

fn receive_one(file: &File, addr: u64, flags: u32) -> Result<usize> {
    let socket = socket_of(file)?;
    let message: Message = user::get(addr)?;
    let pieces = pieces_of(&message)?;
    let mut got = Got::default();
    let received = receive(file, &mut Sink::vector(&pieces), flags, &mut got);
    let mut control = PutControl { at: message.control, left: message.control_len, flags: 0 };
    // The files are this call's now and go when it ends, but for those that get a number.
    let files = match got.rights.take() {
        Some(rights) => rights.take(),
        None => core::mem::take(&mut got.files),
    };
    let received = received?;
    let is_udp = socket.family.is_inet() && socket.kind == Kind::Datagram;
    let mut out = flags & net::MSG_CMSG_CLOEXEC | if is_udp { 0 } else { flags & net::MSG_OOB };
    if received.copied < received.whole {
        out |= net::MSG_TRUNC;
    }
    if let Some(arrival) = got.arrival {
        arrival.put(socket.options.told(), &mut control)?;
    }
    if socket.options.passes_cred() && socket.family == Family::Unix {
        let cred = got.cred.flatten().unwrap_or(Ucred::NOBODY);
        control.put(net::SOL_SOCKET, net::SCM_CREDENTIALS, cred.as_bytes())?;
    }
    put_files(&mut control, files, flags)?;
    let name_len = match &received.from {
        Some(name) if message.name != 0 && *name != Address::Unnamed => {
            let bytes = name.encode(socket.family);
            user::copy_out(message.name, &bytes[..bytes.len().min(message.name_len as usize)])?;
            bytes.len() as u32
        }
        _ => 0,
    };
    let control_len = message.control_len - control.left;
    user::put(addr, &Message { name_len, control_len, flags: out | control.flags, ..message })?;
    Ok(super::socket::told_length(&received, flags))
}

/// Gives files their numbers, as many as there is room for; the others are let go.
fn put_files(control: &mut PutControl, files: Vec<Arc<File>>, flags: u32) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let fits = control.room().unwrap_or(0) / 4;
    if fits < files.len() {
        control.flags |= net::MSG_CTRUNC;
    }
    let on_exec = if flags & net::MSG_CMSG_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep };
    let table = curproc::files()?;
    let mut numbers = Vec::new();
    let mut reserved = Vec::new();
    for file in files.into_iter().take(fits) {
        match table.reserve() {
            Ok(number) => {
                numbers.push(number.number());
                reserved.push((number, file));
            }
            Err(_) => {
                control.flags |= net::MSG_CTRUNC;
                break;
            }
        }
    }
    if numbers.is_empty() {
        return Ok(());
    }
    control.put(net::SOL_SOCKET, net::SCM_RIGHTS, numbers.as_bytes())?;
    for (number, file) in reserved {
        number.open(file, on_exec);
    }
    Ok(())
}

/// What a message counts as among a call's work, but for its bytes: one may look at a thousand
/// sockets of a port, or tell a thousand watchers.
const MESSAGE_WORK: usize = 16 * 1024;

fn sendmmsg(fd: i32, addr: u64, count: u32, flags: u32) -> Result<usize> {
    check_layout(flags)?;
    let file = curproc::file(fd)?;
    let mut done = 0;
    for n in 0..u64::from(count.min(MESSAGES_MAX)) {
        let at = addr.wrapping_add(n * MANY);
        let sent = send_one(&file, at, flags)
            .and_then(|len| user::put(at.wrapping_add(MANY_COUNT), &(len as u32)));
        match sent {
            Ok(()) => done += 1,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        sched::work_done(MESSAGE_WORK);
        if sched::is_leaving() {
            break;
        }
    }
    Ok(done)
}

fn recvmmsg(fd: i32, addr: u64, count: u32, flags: u32, timeout: u64) -> Result<usize> {
    check_layout(flags)?;
    let file = curproc::file(fd)?;
    socket_of(&file)?;
    let deadline = deadline(timeout)?;
    let mut done = 0;
    let mut how = flags & !MSG_WAITFORONE;
    for n in 0..u64::from(count.min(MESSAGES_MAX)) {
        let at = addr.wrapping_add(n * MANY);
        let received = receive_one(&file, at, how)
            .and_then(|len| user::put(at.wrapping_add(MANY_COUNT), &(len as u32)));
        match received {
            Ok(()) => done += 1,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        if flags & MSG_WAITFORONE != 0 {
            how |= net::MSG_DONTWAIT;
        }
        // As on Linux: the time is looked at between messages.
        if deadline.is_some_and(|end| sched::now() >= end) {
            break;
        }
        sched::work_done(MESSAGE_WORK);
        if sched::is_leaving() {
            break;
        }
    }
    if let Some(end) = deadline {
        let left = end.saturating_sub(sched::now());
        user::put(timeout, &[left / 1_000_000_000, left % 1_000_000_000])?;
    }
    Ok(done)
}

fn deadline(timeout: u64) -> Result<Option<Nanos>> {
    if timeout == 0 {
        return Ok(None);
    }
    let [seconds, nanos]: [i64; 2] = user::get(timeout)?;
    if seconds < 0 || !(0..1_000_000_000).contains(&nanos) {
        return Err(EINVAL);
    }
    let wait = (seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanos as u64);
    Ok(Some(sched::now().saturating_add(wait)))
}

const _: () = assert!(size_of::<Message>() as u64 == MANY_COUNT);
