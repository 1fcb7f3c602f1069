//! Descriptors on their way in messages (`SCM_RIGHTS`).
//!
//! A message holds the open files themselves. A socket on its way may hold, in its queue, a message with a socket on
//! its way, and so on round: a ring that no descriptor leads to any more is found by [`collect`].
//!
//! ```text
//!   flights:  (file F, in the queue of socket H)  ...       one entry for each passage of a socket
//!   alive:    F whose references are more than its passages (a descriptor, a call), and whoever is in the
//!             queue of somebody alive; H that isn't itself on its way is alive
//!   dead:     the rest; their queues are emptied
//! ```
//!
//! Letting a message go may close a socket whose queue holds another: [`bury`] takes them one after the other, so a
//! long row of them costs no stack.
//!
//! Invariants: R1: a passage is entered before its message can be seen, and struck out after its files were taken from
//! it; so a file's passages are never fewer than the messages that hold it. R2: a user has at most `RLIMIT_NOFILE`
//! passages; a ring through a connection that nobody has accepted isn't found, and only so much can be lost in it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::address::Family;
use super::socket::Socket;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::downcast;
use crate::proc;
use crate::proc::limits::RLIMIT_NOFILE;
use crate::sync::SpinLock;

/// The most descriptors in one message.
pub const RIGHTS_MAX: usize = 253;

/// Who sent something (`struct ucred`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
)]
#[repr(C)]
pub struct Ucred {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl Ucred {
    /// The running process.
    pub fn current() -> Ucred {
        let process = proc::current_process();
        let cred = process.cred();
        Ucred { pid: process.pid, uid: cred.uid, gid: cred.gid }
    }

    /// What stands for nobody.
    pub const NOBODY: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };
}

/// Open files in a message. They go by [`take`](Rights::take) or [`bury`].
#[must_use]
pub struct Rights {
    files: Vec<Arc<File>>,
    user: u32,
    holder: Weak<Socket>,
}

/// A socket in a message.
struct Flight {
    file: Weak<File>,
    /// The address of the socket behind it.
    socket: usize,
    holder: Weak<Socket>,
}

#[derive(Default)]
struct Registry {
    flights: Vec<Flight>,
    /// Passages of each user.
    users: Option<HashMap<u32, usize>>,
}

static REGISTRY: SpinLock<Registry> = SpinLock::new(Registry { flights: Vec::new(), users: None });
/// The length of `flights`.
static SOCKETS_IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// The local socket behind a file.
fn local_socket(file: &File) -> Option<&Socket> {
    downcast::<Socket>(file.io()).filter(|socket| socket.family == Family::Unix)
}

fn key(socket: &Socket) -> usize {
    core::ptr::from_ref(socket).addr()
}

impl Rights {
    /// Enters files that go into the queue of `holder`.
    ///
    /// Fails with `ETOOMANYREFS` when the user has too many on their way.
    pub fn enter(files: Vec<Arc<File>>, holder: &Socket) -> Result<Rights> {
        let process = proc::current_process();
        let user = process.cred().uid;
        let limit = process.limit(RLIMIT_NOFILE) as usize;
        let holder = holder.weak();
        let mut registry = REGISTRY.lock();
        let count = registry.users.get_or_insert_with(HashMap::new).entry(user).or_insert(0);
        if *count + files.len() > limit {
            return Err(ETOOMANYREFS);
        }
        *count += files.len();
        for file in &files {
            if let Some(socket) = local_socket(file) {
                let flight =
                    Flight { file: Arc::downgrade(file), socket: key(socket), holder: holder.clone() };
                registry.flights.push(flight);
            }
        }
        SOCKETS_IN_FLIGHT.store(registry.flights.len(), Ordering::SeqCst);
        drop(registry);
        Ok(Rights { files, user, holder })
    }

    /// The files, for somebody who only looks at the message.
    pub fn copy(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }

    /// Takes the files out and strikes their passage out.
    pub fn take(self) -> Vec<Arc<File>> {
        let mut registry = REGISTRY.lock();
        let mut struck = Vec::new();
        for file in &self.files {
            let Some(socket) = local_socket(file) else { continue };
            let at = registry
                .flights
                .iter()
                .position(|flight| flight.socket == key(socket) && flight.holder.ptr_eq(&self.holder));
            // Dropped after the lock: it may be the last reference to a socket's memory.
            struck.extend(at.map(|at| registry.flights.swap_remove(at)));
        }
        SOCKETS_IN_FLIGHT.store(registry.flights.len(), Ordering::SeqCst);
        if let Some(users) = &mut registry.users {
            if let Some(count) = users.get_mut(&self.user) {
                *count -= self.files.len();
                if *count == 0 {
                    users.remove(&self.user);
                }
            }
        }
        drop(registry);
        self.files
    }
}

/// Files to be closed, and whether somebody is at it.
struct Graves {
    files: Vec<Arc<File>>,
    is_digging: bool,
}

static GRAVES: SpinLock<Graves> = SpinLock::new(Graves { files: Vec::new(), is_digging: false });

/// Lets the files of messages go that nobody will receive.
pub fn bury(rights: Rights) {
    let files = rights.take();
    let mut graves = GRAVES.lock();
    graves.files.extend(files);
    if graves.is_digging {
        return;
    }
    graves.is_digging = true;
    while let Some(file) = graves.files.pop() {
        drop(graves);
        drop(file);
        graves = GRAVES.lock();
    }
    graves.is_digging = false;
}

/// Empties the queues of sockets that only messages in each other's queues refer to. Costs a load if no socket is on
/// its way, else the square of how many are at worst.
#[inline]
pub fn collect() {
    if SOCKETS_IN_FLIGHT.load(Ordering::SeqCst) != 0 {
        sweep();
    }
}

#[cold]
fn sweep() {
    let dead = dead();
    for file in &dead {
        if let Some(socket) = local_socket(file) {
            socket.drop_incoming();
        }
    }
}

/// The sockets that nobody can reach.
fn dead() -> Vec<Arc<File>> {
    let registry = REGISTRY.lock();
    // Passages of each socket, and whether it is alive.
    let mut nodes: HashMap<usize, (usize, bool)> = HashMap::new();
    for flight in &registry.flights {
        nodes.entry(flight.socket).or_insert((0, false)).0 += 1;
    }
    for flight in &registry.flights {
        if let Some(node) = nodes.get_mut(&flight.socket) {
            node.1 |= flight.file.strong_count() > node.0;
        }
    }
    loop {
        let mut changed = false;
        for flight in &registry.flights {
            let holder = flight.holder.as_ptr().addr();
            let holder_lives = nodes.get(&holder).is_none_or(|node| node.1);
            if let Some(node) = nodes.get_mut(&flight.socket).filter(|node| holder_lives && !node.1) {
                node.1 = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let is_dead = |flight: &&Flight| nodes.get(&flight.socket).is_some_and(|node| !node.1);
    registry.flights.iter().filter(is_dead).filter_map(|flight| flight.file.upgrade()).collect()
}

/// What a program sends along with a message.
#[derive(Default)]
pub struct Control {
    pub files: Vec<Arc<File>>,
    pub cred: Option<Ucred>,
}

impl Control {
    /// The files, entered as on their way to `holder`; none if there are none.
    pub fn into_rights(self, holder: &Socket) -> Result<Option<Rights>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        Rights::enter(self.files, holder).map(Some)
    }
}
