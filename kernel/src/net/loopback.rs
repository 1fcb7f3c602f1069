//! The loopback transport: ports of this machine's own addresses (`inet`), with TCP's and UDP's
//! promises.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::address::{Address, Family, Ip, Kind};
use super::inet;
use super::socket::Socket;
use super::transport::{Binding, Route, Rules, Transport};
use crate::errno::*;

pub struct Loopback;

const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
/// The longest datagram of UDP over IP version 4.
const UDP_MAX: usize = 65507;

impl Binding for inet::Bound {
    fn release(self: Box<Self>) {
        inet::unbind(*self);
    }
}

/// Any address of a socket's family.
fn any(socket: &Socket) -> Ip {
    if socket.family == Family::Inet4 {
        Ip::ANY4
    } else {
        Ip::ANY6
    }
}

/// Gives a socket a free port if it has none; `ip` is its peer's address.
fn bind_for(socket: &Socket, ip: Ip) -> Result<()> {
    if socket.is_bound() {
        return Ok(());
    }
    let own = if socket.kind == Kind::Stream { ip } else { any(socket) };
    let (name, bound) = inet::bind(socket, own, 0)?;
    match socket.hold(name, Box::new(bound)) {
        Err(EINVAL) => Ok(()),
        result => result,
    }
}

/// The name of a socket as an end at `to` sees it.
fn name_for(socket: &Socket, to: Ip) -> Address {
    match socket.name() {
        Address::Inet { ip, port } if ip.is_any() => Address::Inet { ip: to, port },
        name => name,
    }
}

impl Transport for Loopback {
    fn rules(&self) -> &'static Rules {
        &Rules {
            no_name: EAFNOSUPPORT,
            listens: EISCONN,
            not_connected: ENOTCONN,
            no_peer: EPIPE,
            most: Some(UDP_MAX),
            is_lossy: true,
            connects_later: true,
            tells_of_end: false,
            shutdown_ends_listening: true,
            carries_rights: false,
        }
    }

    fn protocol(&self, kind: Kind, asked: u32) -> Result<u32> {
        if (asked as i32) < 0 {
            return Err(EINVAL);
        }
        match kind {
            Kind::Stream if matches!(asked, 0 | IPPROTO_TCP) => Ok(IPPROTO_TCP),
            Kind::Datagram if matches!(asked, 0 | IPPROTO_UDP) => Ok(IPPROTO_UDP),
            Kind::Seqpacket => Err(ESOCKTNOSUPPORT),
            _ => Err(EPROTONOSUPPORT),
        }
    }

    fn bind(&self, socket: &Socket, name: Option<&Address>) -> Result<(Address, Box<dyn Binding>)> {
        let Some(Address::Inet { ip, port }) = name else {
            return Err(if name.is_none() { EAFNOSUPPORT } else { EINVAL });
        };
        if socket.family == Family::Inet4 && !ip.is_v4() {
            return Err(EADDRNOTAVAIL);
        }
        let (name, bound) = inet::bind(socket, *ip, *port)?;
        Ok((name, Box::new(bound)))
    }

    fn bind_listener(&self, socket: &Socket) -> Result<()> {
        socket.bind(Some(&Address::Inet { ip: any(socket), port: 0 }))
    }

    fn listen(&self, socket: &Socket, start: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        inet::listen(socket, start)
    }

    fn listener(&self, socket: &Socket, name: &Address) -> Result<Arc<Socket>> {
        let Address::Inet { ip, port } = *name else { return Err(EINVAL) };
        let ip = inet::route(socket.family, ip)?;
        bind_for(socket, ip)?;
        inet::listener(ip, port)
    }

    fn names(&self, socket: &Socket, listener: &Socket, name: &Address) -> (Address, Address) {
        let Address::Inet { ip, port } = *name else { return (socket.name(), listener.name()) };
        let ip = inet::route(socket.family, ip).unwrap_or(ip);
        (name_for(socket, ip), Address::Inet { ip, port })
    }

    fn peer(&self, socket: &Socket, name: &Address) -> Result<(Option<Arc<Socket>>, Address)> {
        let Address::Inet { ip, port } = *name else { return Err(EINVAL) };
        let ip = inet::route(socket.family, ip)?;
        bind_for(socket, ip)?;
        Ok((None, Address::Inet { ip, port }))
    }

    fn route(
        &self,
        socket: &Socket,
        dest: Option<&Address>,
        source: Option<Ip>,
    ) -> Result<Option<Route>> {
        let connected = socket.peer_name();
        let is_connected = connected.is_ok();
        let dest = match dest {
            Some(dest) => dest.clone(),
            None => connected.map_err(|_| EDESTADDRREQ)?,
        };
        let Address::Inet { ip, port } = dest else { return Err(EINVAL) };
        if port == 0 {
            return Err(EINVAL);
        }
        let ip = inet::route(socket.family, ip)?;
        bind_for(socket, ip)?;
        let mut from = name_for(socket, ip);
        if let (Some(source), Address::Inet { ip: own, .. }) = (source, &mut from) {
            if source.is_v4() != ip.is_v4() {
                return Err(EINVAL);
            }
            *own = source;
        }
        let found = inet::receiver(ip, port, &from)?;
        if found.is_none() && is_connected {
            socket.set_error(ECONNREFUSED);
        }
        Ok(found.map(|receiver| Route { receiver, from, to: ip }))
    }
}
