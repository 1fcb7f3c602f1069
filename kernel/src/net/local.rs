//! The local transport: names are files and abstract names (`unix`), and messages may carry
//! descriptors.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::address::{Address, Ip, Kind};
use super::rights::Place;
use super::socket::Socket;
use super::transport::{Binding, Route, Rules, Transport};
use super::unix;
use crate::errno::*;

pub struct Local;

impl Binding for unix::Bound {
    fn release(self: Box<Self>) {
        unix::unbind(*self);
    }
}

impl Transport for Local {
    fn rules(&self) -> &'static Rules {
        &Rules {
            no_name: EINVAL,
            listens: EINVAL,
            not_connected: EINVAL,
            no_peer: ENOTCONN,
            most: None,
            is_lossy: false,
            connects_later: false,
            tells_of_end: true,
            shutdown_ends_listening: false,
            carries_rights: true,
        }
    }

    fn protocol(&self, _kind: Kind, asked: u32) -> Result<u32> {
        if asked <= 1 {
            Ok(0)
        } else {
            Err(EPROTONOSUPPORT)
        }
    }

    fn bind(&self, socket: &Socket, name: Option<&Address>) -> Result<(Address, Box<dyn Binding>)> {
        match name {
            None | Some(Address::Unnamed) => {
                let (name, bound) = unix::any_name(socket)?;
                Ok((name, Box::new(bound)))
            }
            Some(name) => Ok((name.clone(), Box::new(unix::bind(socket, name)?))),
        }
    }

    fn bind_listener(&self, _socket: &Socket) -> Result<()> {
        Err(EINVAL)
    }

    fn listener(&self, _socket: &Socket, name: &Address) -> Result<Arc<Socket>> {
        unix::find(name)
    }

    fn names(&self, socket: &Socket, listener: &Socket, _name: &Address) -> (Address, Address) {
        (socket.name(), listener.name())
    }

    fn enter_backlog(&self, server: &Socket, listener: &Socket) -> Result<Option<Place>> {
        Place::enter(server, listener).map(Some)
    }

    fn peer(&self, socket: &Socket, name: &Address) -> Result<(Option<Arc<Socket>>, Address)> {
        Ok((Some(find_receiver(socket, name)?), name.clone()))
    }

    fn route(
        &self,
        socket: &Socket,
        dest: Option<&Address>,
        _source: Option<Ip>,
    ) -> Result<Option<Route>> {
        let receiver = match dest {
            Some(dest) => find_receiver(socket, dest)?,
            None => socket.peer().ok_or(ENOTCONN)?,
        };
        Ok(Some(Route { receiver, from: socket.name(), to: Ip::ANY4 }))
    }
}

/// The datagram socket that a name leads to, if it hears `socket`: one that is connected hears its
/// peer only.
fn find_receiver(socket: &Socket, name: &Address) -> Result<Arc<Socket>> {
    let receiver = unix::find(name)?;
    if receiver.kind != socket.kind {
        return Err(EPROTOTYPE);
    }
    if receiver.peer().is_some_and(|other| !other.is(socket)) {
        return Err(EPERM);
    }
    Ok(receiver)
}
