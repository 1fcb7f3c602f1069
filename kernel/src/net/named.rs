//! The sockets that have names, in order of their numbers, for `/proc/net`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use super::socket::Socket;
use crate::sync::SpinLock;

/// The sockets of a kind of names.
pub struct Named(SpinLock<BTreeMap<u64, Weak<Socket>>>);

impl Named {
    /// None yet.
    pub const fn new() -> Named {
        Named(SpinLock::new(BTreeMap::new()))
    }

    /// A socket has got a name.
    pub fn add(&self, socket: &Socket) {
        self.0.lock().insert(socket.number(), socket.weak());
    }

    /// The socket with this number has lost its name.
    pub fn remove(&self, number: u64) {
        let gone = self.0.lock().remove(&number);
        drop(gone);
    }

    /// The first number at or above `from`, and its socket, if that isn't closing.
    pub fn next(&self, from: u64) -> Option<(u64, Option<Arc<Socket>>)> {
        self.0.lock().range(from..).next().map(|(&number, socket)| (number, socket.upgrade()))
    }
}
