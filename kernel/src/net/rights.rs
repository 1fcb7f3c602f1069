//! Descriptors on their way in messages (`SCM_RIGHTS`).
//!
//! A message holds the open files themselves. A socket on its way may hold, in its queue, a message
//! with a socket on its way, and so on round: a ring that no descriptor leads to any more is found
//! by [`collect`].
//!
//! ```text
//!   flights:  (file F, in the queue of socket H)  ...       one entry for each passage of a socket
//!   alive:    F whose references are more than its passages (a descriptor, a call), and whoever is in the
//!             queue of somebody alive; H that isn't itself on its way is alive
//!   dead:     the rest; their queues are emptied
//! ```
//!
//! Letting a message go may close a socket whose queue holds another: [`bury`] takes them one after
//! the other, so a long row of them costs no stack.
//!
//! Invariants: R1: a passage is entered before its message can be seen, and struck out after its
//! files were taken from it; so a file's passages are never fewer than the messages that hold it.
//! R2: a user has at most `RLIMIT_NOFILE` passages; a ring through a connection that nobody has
//! accepted isn't found, and only so much can be lost in it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::address::Family;
use super::socket::Socket;
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::downcast;
use crate::mem::fault::Room;
use crate::proc;
use crate::proc::limits::RLIMIT_NOFILE;
use crate::sched;
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

    /// The running process as the peer of a connection sees it: by what it acts as.
    pub fn effective() -> Ucred {
        let process = proc::current_process();
        let cred = process.cred();
        Ucred { pid: process.pid, uid: cred.euid, gid: cred.egid }
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

/// Whether a user may not have so many more passages, unless some of them are nobody's.
fn is_full(user: u32, more: usize, limit: usize) -> bool {
    let registry = REGISTRY.lock();
    let count = registry.users.as_ref().and_then(|users| users.get(&user));
    count.copied().unwrap_or(0) + more > limit
}

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
        if is_full(user, files.len(), limit) {
            sweep();
        }
        let mut registry = REGISTRY.lock();
        registry.flights.room(files.len()).map_err(|_| ENOBUFS)?;
        let users = registry.users.get_or_insert_with(HashMap::new);
        users.room(1).map_err(|_| ENOBUFS)?;
        let count = users.entry(user).or_insert(0);
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

    /// The files, for somebody who only looks at the message, and calls [`seen`] before its call
    /// ends.
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
        let empty = registry.flights.is_empty().then(|| core::mem::take(&mut registry.flights));
        if let Some(users) = &mut registry.users {
            if let Some(count) = users.get_mut(&self.user) {
                *count -= self.files.len();
                if *count == 0 {
                    users.remove(&self.user);
                }
            }
        }
        drop(registry);
        drop(empty);
        self.files
    }
}

/// Files to be closed, and whether somebody is at it.
struct Graves {
    files: Vec<Arc<File>>,
    is_digging: bool,
}

static GRAVES: SpinLock<Graves> = SpinLock::new(Graves { files: Vec::new(), is_digging: false });

/// A close's work: that of copying so many bytes.
const CLOSE: usize = 4096;

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
        sched::work_done(CLOSE);
        graves = GRAVES.lock();
    }
    graves.is_digging = false;
    let empty = core::mem::take(&mut graves.files);
    drop(graves);
    drop(empty);
}

/// Empties the queues of sockets that only messages in each other's queues refer to, or puts that
/// off: each call may look at so many passages, and one that finds that the calls before it have
/// saved up for all of them looks at all.
#[inline]
pub fn collect() {
    const SHARE: usize = 16;
    static SAVED: AtomicUsize = AtomicUsize::new(0);
    let there = SOCKETS_IN_FLIGHT.load(Ordering::SeqCst);
    if there != 0 && SAVED.fetch_add(SHARE, Ordering::Relaxed) + SHARE >= there {
        SAVED.store(0, Ordering::Relaxed);
        sweep();
    }
}

/// Empties the queues of sockets that only messages in each other's queues refer to, at once. Cost:
/// by the sockets that are on their way.
#[cold]
pub fn sweep() {
    let dead = dead();
    for file in &dead {
        if let Some(socket) = local_socket(file) {
            socket.drop_incoming();
        }
    }
}

/// Waits until a look for the dead that may have counted before now is over. Who has taken a copy of a
/// message's files calls it while he holds the socket that they came through: it is alive to that look,
/// and so are they, though the look counted them before there was a copy. The next one counts it.
pub fn seen() {
    drop(REGISTRY.lock());
}

/// A socket on its way.
struct Node {
    passages: usize,
    is_alive: bool,
    /// The first passage in its queue, by its place among all, or [`NONE`].
    queue: usize,
}

const NONE: usize = usize::MAX;

/// The sockets that nobody can reach.
fn dead() -> Vec<Arc<File>> {
    let registry = REGISTRY.lock();
    let flights = &registry.flights;
    let mut nodes: HashMap<usize, Node> = HashMap::new();
    // Of each passage the next in the same queue; those whose queues are still to be looked at.
    let (mut next, mut living, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut room = || {
        nodes.room(flights.len())?;
        next.room(flights.len())?;
        living.room(flights.len())?;
        found.room(flights.len())
    };
    // Without memory they are found the next time.
    if room().is_err() {
        return found;
    }
    for flight in flights {
        let new = Node { passages: 0, is_alive: false, queue: NONE };
        nodes.entry(flight.socket).or_insert(new).passages += 1;
    }
    for (at, flight) in flights.iter().enumerate() {
        let holder = nodes.get_mut(&flight.holder.as_ptr().addr());
        let is_held_by_the_living = holder.is_none();
        next.push(holder.map_or(NONE, |holder| core::mem::replace(&mut holder.queue, at)));
        let Some(node) = nodes.get_mut(&flight.socket) else { continue };
        let is_reached = is_held_by_the_living || flight.file.strong_count() > node.passages;
        if is_reached && !core::mem::replace(&mut node.is_alive, true) {
            living.push(flight.socket);
        }
    }
    while let Some(socket) = living.pop() {
        let mut at = nodes.get(&socket).map_or(NONE, |node| node.queue);
        while let Some(flight) = flights.get(at) {
            let node = nodes.get_mut(&flight.socket);
            if node.is_some_and(|node| !core::mem::replace(&mut node.is_alive, true)) {
                living.push(flight.socket);
            }
            at = next[at];
        }
    }
    let is_dead = |flight: &&Flight| nodes.get(&flight.socket).is_some_and(|node| !node.is_alive);
    found.extend(flights.iter().filter(is_dead).filter_map(|flight| flight.file.upgrade()));
    found
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
