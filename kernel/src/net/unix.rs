//! Names of local sockets: files of type socket, and abstract names.
//!
//! A file's socket is found by its node's numbers; the socket keeps the node, so they stay its own
//! until it closes, whatever becomes of the name.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};

use super::address::Address;
use super::named::Named;
use super::socket::Socket;
use crate::errno::*;
use crate::fs::access;
use crate::fs::inode::{Asked, Inode, InodeRef, Kind, NewNode};
use crate::fs::mount::Mount;
use crate::fs::path::{resolve, walk, Follow, Start};
use crate::proc::curproc;
use crate::sched;
use crate::sync::SpinLock;

/// What a look for a free name takes: the work of copying so many bytes.
const LOOK: usize = 1024;

/// What a local socket is bound to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Device and number of a node.
    File(u64, u64),
    Abstract(Box<[u8]>),
}

/// In order: no choice of names makes a search long, or a step of growing.
static NAMES: SpinLock<BTreeMap<Place, Weak<Socket>>> = SpinLock::new(BTreeMap::new());

/// All that have names.
pub static NAMED: Named = Named::new();

/// A socket's hold on its name.
pub struct Bound {
    place: Place,
    number: u64,
    /// Keeps the node's numbers, and its file system mounted.
    _node: Option<(InodeRef, Arc<Mount>)>,
}

fn start() -> Result<Start> {
    Ok(Start::cwd(&*curproc::context()?))
}

fn place_of(node: &InodeRef) -> Place {
    let stat = node.stat();
    Place::File(stat.dev, stat.ino)
}

/// Gives `socket` the name; `EADDRINUSE` if it is taken.
pub fn bind(socket: &Socket, name: &Address) -> Result<Bound> {
    match name {
        Address::Path(path) => bind_path(socket, path),
        Address::Abstract(name) => bind_abstract(socket, name),
        _ => Err(EINVAL),
    }
}

fn bind_path(socket: &Socket, path: &[u8]) -> Result<Bound> {
    let context = curproc::context()?;
    let found = walk(&start()?, path, Follow::Name)?;
    if found.inode.is_none() && found.wants_dir {
        return Err(ENOENT);
    }
    let (dir, name) = found.vacant().map_err(in_use)?;
    let perm = Asked { perm: socket.stat().perm, umask: context.umask() };
    let made = dir.inode.create(&name, NewNode::Special(Kind::Socket, 0), perm, &curproc::cred());
    let node = made.map_err(in_use)?;
    let place = place_of(&node);
    NAMES.lock().insert(place.clone(), socket.weak());
    NAMED.add(socket);
    Ok(Bound { place, number: socket.number(), _node: Some((node, dir.mount)) })
}

/// What `bind` says of a name that there is.
fn in_use(errno: Errno) -> Errno {
    if errno == EEXIST {
        EADDRINUSE
    } else {
        errno
    }
}

fn bind_abstract(socket: &Socket, name: &[u8]) -> Result<Bound> {
    let place = Place::Abstract(name.into());
    let mut table = NAMES.lock();
    if table.get(&place).is_some_and(|held| held.strong_count() > 0) {
        return Err(EADDRINUSE);
    }
    let old = table.insert(place.clone(), socket.weak());
    drop(table);
    drop(old);
    NAMED.add(socket);
    Ok(Bound { place, number: socket.number(), _node: None })
}

/// An abstract name that is free: five hexadecimal digits.
pub fn any_name(socket: &Socket) -> Result<(Address, Bound)> {
    static NEXT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    for _ in 0..1 << 20 {
        if sched::work_done(LOOK) && sched::is_leaving() {
            return Err(EINTR);
        }
        let n = NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed) & 0xf_ffff;
        let name = Address::Abstract(format!("{n:05x}").into_bytes().into());
        match bind(socket, &name) {
            Ok(bound) => return Ok((name, bound)),
            Err(EADDRINUSE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(ENOSPC)
}

/// Takes a name back.
pub fn unbind(bound: Bound) {
    NAMED.remove(bound.number);
    let socket = NAMES.lock().remove(&bound.place);
    drop(socket);
}

/// The socket that has a name.
///
/// Fails with `ECONNREFUSED` if none has, and as a walk of the path does.
pub fn find(name: &Address) -> Result<Arc<Socket>> {
    let place = match name {
        Address::Path(path) => {
            let node = resolve(&start()?, path, Follow::Yes)?.inode;
            node.permits(&curproc::cred(), access::WRITE)?;
            if node.kind() != Kind::Socket {
                return Err(ECONNREFUSED);
            }
            place_of(&node)
        }
        Address::Abstract(name) => Place::Abstract(name.clone()),
        _ => return Err(EINVAL),
    };
    let socket = NAMES.lock().get(&place).and_then(Weak::upgrade);
    socket.ok_or(ECONNREFUSED)
}
