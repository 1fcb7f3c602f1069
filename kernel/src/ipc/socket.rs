//! Connected pairs of local sockets (`socketpair`): two pipes, one for each direction.
//!
//! Only streams; other families and addresses are not there. A message boundary is not kept, so datagram
//! types are refused.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as abi;

use super::pipe::{Blocking, Pipe};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::io::{Sink, Source};
use crate::sync::WaitQueue;
use crate::vm::{self, Asks};

/// Which directions were shut down.
const SHUT_READ: u32 = 1;
const SHUT_WRITE: u32 = 2;

/// One end of a pair.
pub struct Socket {
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    shut: AtomicU32,
    ino: u64,
}

impl Socket {
    /// Two sockets that are connected to each other.
    pub fn pair(flags: u32) -> Result<(Arc<File>, Arc<File>)> {
        vm::leave_memory(Asks::Process).map_err(|_| ENFILE)?;
        let (a, b) = (Pipe::open_both(), Pipe::open_both());
        let end = |incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>| {
            let socket: InodeRef = Arc::new(Socket {
                incoming: incoming.clone(),
                outgoing: outgoing.clone(),
                shut: AtomicU32::new(0),
                ino: crate::fs::new_ino(),
            });
            File::anonymous(socket, abi::O_RDWR | flags & abi::O_NONBLOCK)
        };
        Ok((end(&a, &b), end(&b, &a)))
    }

    /// `shutdown`: closes one direction or both; a second time does nothing.
    pub fn shutdown(&self, what: u32) {
        let before = self.shut.fetch_or(what, Ordering::SeqCst);
        if what & !before & SHUT_READ != 0 {
            self.incoming.close_reader();
        }
        if what & !before & SHUT_WRITE != 0 {
            self.outgoing.close_writer();
        }
    }

    /// Receives; returns 0 at the end of the stream.
    pub fn receive(&self, blocking: Blocking, to: &mut Sink<'_>) -> Result<usize> {
        if self.shut.load(Ordering::SeqCst) & SHUT_READ != 0 {
            return Ok(0);
        }
        self.incoming.read(blocking, to)
    }

    /// Sends without raising `SIGPIPE`.
    pub fn send_quietly(&self, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
        if self.shut.load(Ordering::SeqCst) & SHUT_WRITE != 0 {
            return Err(EPIPE);
        }
        self.outgoing.write_quietly(blocking, from)
    }

    /// Sends, raising `SIGPIPE` when the other end is closed.
    pub fn send(&self, blocking: Blocking, from: &mut Source<'_>) -> Result<usize> {
        let result = self.send_quietly(blocking, from);
        if result == Err(EPIPE) {
            super::raise_sigpipe();
        }
        result
    }
}

impl Inode for Socket {
    fn stat(&self) -> Stat {
        Stat::plain(crate::fs::SOCKET_DEVICE, self.ino, Kind::Socket, 0o777)
    }

    fn open(&self, _flags: u32) -> Result<Option<InodeRef>> {
        Err(ENXIO)
    }

    fn release(&self, _file: &File) {
        self.shutdown(SHUT_READ | SHUT_WRITE);
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        self.receive(Blocking::of(file), to)
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        self.send(Blocking::of(file), from).map(|n| (n, 0))
    }

    fn poll(&self, _file: &File) -> u32 {
        let mut events = self.incoming.poll(abi::O_RDONLY) | self.outgoing.poll(abi::O_WRONLY);
        if events & (abi::POLLHUP | abi::POLLERR) != 0 {
            events = events & !abi::POLLERR | abi::POLLIN | abi::POLLRDNORM | abi::POLLRDHUP;
        }
        events
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        self.incoming.queues(abi::O_RDONLY, out);
        self.outgoing.queues(abi::O_WRONLY, out);
    }
}
