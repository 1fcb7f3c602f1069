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
//! the other, so a long row of them costs no stack. A thread closes what it lets go itself, and
//! nothing of others.
//!
//! Invariants: R1: a passage is entered before its message can be seen, and struck out after its
//! files were taken from it; so a file's passages are never fewer than the messages that hold it.
//! R2: a user has at most `RLIMIT_NOFILE` passages; a ring through a connection that nobody has
//! accepted isn't found, and only so much can be lost in it. R3: the files of a message have numbers
//! of passages in a row, so who takes them looks for none.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::address::Family;
use super::socket::Socket;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::downcast;
use crate::mem::fault::{self, Room};
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
    /// The passage of the first file (R3).
    first: u64,
    /// Those that its thread let go before, and has not closed yet.
    next: Option<Box<Rights>>,
    _charge: Charge,
}

/// What a file in a message costs: a place in its list and in the table of passages, either of which
/// may be twice as large as it has to be.
const PASSAGE: usize = 2 * size_of::<Arc<File>>() + 2 * size_of::<(u64, Flight)>();

/// A socket in a message.
struct Flight {
    file: Weak<File>,
    /// The address of the socket behind it.
    socket: usize,
    holder: Weak<Socket>,
    /// The next passage in the same queue, or [`NONE`], for [`dead`].
    next: u64,
}

#[derive(Default)]
struct Registry {
    flights: HashMap<u64, Flight>,
    /// Passages of each user.
    users: HashMap<u32, usize>,
}

static REGISTRY: SpinLock<Option<Registry>> = SpinLock::new(None);
static NEXT_PASSAGE: AtomicU64 = AtomicU64::new(0);
/// The length of `flights`.
static SOCKETS_IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// Whether a user may not have so many more passages, unless some of them are nobody's.
fn is_full(user: u32, more: usize, limit: usize) -> bool {
    let registry = REGISTRY.lock();
    let count = registry.as_ref().and_then(|registry| registry.users.get(&user));
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
    pub fn enter(files: Vec<Arc<File>>, holder: &Socket) -> Result<Box<Rights>> {
        let process = proc::current_process();
        let user = process.cred().uid;
        let limit = process.limit(RLIMIT_NOFILE) as usize;
        let holder = holder.weak();
        if is_full(user, files.len(), limit) {
            sweep();
        }
        let _charge = charge::take(size_of::<Rights>() + files.len() * PASSAGE).map_err(|_| ENOBUFS)?;
        let mut registry = REGISTRY.lock();
        let Registry { flights, users } = registry.get_or_insert_default();
        flights.room(files.len()).and_then(|()| users.room(1)).map_err(|_| ENOBUFS)?;
        let count = users.get(&user).copied().unwrap_or(0) + files.len();
        if count > limit {
            return Err(ETOOMANYREFS);
        }
        users.insert(user, count);
        let first = NEXT_PASSAGE.fetch_add(files.len() as u64, Ordering::Relaxed);
        for (at, file) in (first..).zip(&files) {
            if let Some(socket) = local_socket(file) {
                let (file, holder) = (Arc::downgrade(file), holder.clone());
                flights.insert(at, Flight { file, socket: key(socket), holder, next: NONE });
            }
        }
        SOCKETS_IN_FLIGHT.store(flights.len(), Ordering::SeqCst);
        drop(registry);
        Ok(Box::new(Rights { files, user, first, next: None, _charge }))
    }

    /// The files, for somebody who only looks at the message, and calls [`seen`] before its call
    /// ends.
    pub fn copy(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }

    /// Takes the files out and strikes their passage out.
    pub fn take(self) -> Vec<Arc<File>> {
        self.strike();
        self.files
    }

    fn strike(&self) {
        let flight = |at| REGISTRY.lock().as_mut().and_then(|registry| registry.flights.remove(&at));
        for (at, file) in (self.first..).zip(&self.files) {
            if local_socket(file).is_some() {
                // Dropped without the lock: it may be the last reference to a socket's memory.
                drop(flight(at));
            }
        }
        let mut registry = REGISTRY.lock();
        let Some(Registry { flights, users }) = registry.as_mut() else { return };
        SOCKETS_IN_FLIGHT.store(flights.len(), Ordering::SeqCst);
        fault::shrink(flights);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= self.files.len();
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// What a thread has let go and has to close, and whether it is at it.
#[derive(Default)]
pub struct Graves {
    last: Option<Box<Rights>>,
    is_digging: bool,
}

/// A close's work: that of copying so many bytes.
const CLOSE: usize = 4096;

/// Lets the files of messages go that nobody will receive.
pub fn bury(mut rights: Box<Rights>) {
    rights.strike();
    let graves = &sched::current().graves;
    let was_digging = {
        let mut graves = graves.lock();
        rights.next = graves.last.take();
        graves.last = Some(rights);
        core::mem::replace(&mut graves.is_digging, true)
    };
    let next = || {
        let mut graves = graves.lock();
        let mut rights = graves.last.take();
        graves.is_digging = rights.is_some();
        graves.last = rights.as_mut().and_then(|rights| rights.next.take());
        rights
    };
    while let Some(mut rights) = if was_digging { None } else { next() } {
        while let Some(file) = rights.files.pop() {
            drop(file);
            sched::work_done(CLOSE);
        }
    }
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
    /// The first passage in its queue, or [`NONE`].
    queue: u64,
}

const NONE: u64 = u64::MAX;

/// The sockets that nobody can reach.
fn dead() -> Vec<Arc<File>> {
    let mut registry = REGISTRY.lock();
    let Some(Registry { flights, .. }) = registry.as_mut() else { return Vec::new() };
    let mut nodes: HashMap<usize, Node> = HashMap::new();
    // Those whose queues are still to be looked at come to `living`.
    let (mut living, mut found) = (Vec::new(), Vec::new());
    let mut room = || {
        nodes.room(flights.len())?;
        living.room(flights.len())?;
        found.room(flights.len())
    };
    // Without memory they are found the next time.
    if room().is_err() {
        return found;
    }
    for flight in flights.values() {
        let new = Node { passages: 0, is_alive: false, queue: NONE };
        nodes.entry(flight.socket).or_insert(new).passages += 1;
    }
    for (&at, flight) in flights.iter_mut() {
        let holder = nodes.get_mut(&flight.holder.as_ptr().addr());
        let is_held_by_the_living = holder.is_none();
        flight.next = holder.map_or(NONE, |holder| core::mem::replace(&mut holder.queue, at));
        let Some(node) = nodes.get_mut(&flight.socket) else { continue };
        let is_reached = is_held_by_the_living || flight.file.strong_count() > node.passages;
        if is_reached && !core::mem::replace(&mut node.is_alive, true) {
            living.push(flight.socket);
        }
    }
    while let Some(socket) = living.pop() {
        let mut at = nodes.get(&socket).map_or(NONE, |node| node.queue);
        while let Some(flight) = flights.get(&at) {
            let node = nodes.get_mut(&flight.socket);
            if node.is_some_and(|node| !core::mem::replace(&mut node.is_alive, true)) {
                living.push(flight.socket);
            }
            at = flight.next;
        }
    }
    let is_dead = |flight: &&Flight| nodes.get(&flight.socket).is_some_and(|node| !node.is_alive);
    found.extend(flights.values().filter(is_dead).filter_map(|flight| flight.file.upgrade()));
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
    pub fn into_rights(self, holder: &Socket) -> Result<Option<Box<Rights>>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        Rights::enter(self.files, holder).map(Some)
    }
}
