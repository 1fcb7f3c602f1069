//! Descriptors on their way in messages (`SCM_RIGHTS`).
//!
//! A message holds the open files themselves. A socket in flight may hold, in its queue, a message
//! with a socket in flight, and so on round; so may a connection that waits in a listener's
//! backlog. [`collect`] finds cycles that no descriptor leads to ([`super::garbage`]), and empties
//! the queues and backlogs of their sockets.
//!
//! Letting a message go may close a socket whose queue holds another: [`defer_close`] takes them
//! one after the other, so a long row of them costs no stack. A thread closes what it lets go
//! itself. Garbage, which may be any user's and large files, is closed by a kernel thread.
//!
//! Invariants: R1: a file in flight is counted before its message can be seen, and no more after
//! its files were taken from it; so a file's count is never less than the messages that hold it.
//! R2: a user has at most `RLIMIT_NOFILE` files in flight. R3: the files of a message have numbers
//! in a row, so the thread that takes them searches for none.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::address::Family;
use super::arrival::PacketOptions;
use super::garbage::{self, InFlight};
use super::socket::Socket;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::ops::downcast_file;
use crate::mem::fault::Room;
use crate::proc;
use crate::proc::limits::RLIMIT_NOFILE;
use crate::sched;
use crate::sync::{SpinLock, WaitQueue};

/// A process's number, user and group, as its peer sees them (`struct ucred`).
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

    /// What stands for no process.
    pub const NOBODY: Ucred = Ucred { pid: 0, uid: 65534, gid: 65534 };
}

/// Open files in a message. They go by [`take`](Rights::take) or [`defer_close`].
#[must_use]
pub struct Rights {
    files: Vec<Arc<File>>,
    user: u32,
    /// The socket in whose queue they are.
    holder: Weak<Socket>,
    /// The number of the first file (R3).
    first: u64,
    /// Files that its thread let go before, and has not closed yet.
    next: Option<Box<Rights>>,
    _charge: Charge,
}

/// What a file in a message costs: a place in its list, which may be twice as large as it has to
/// be, and an edge to it.
const FILE_IN_FLIGHT: usize = 2 * size_of::<Arc<File>>() + garbage::EDGE;

struct InFlightFiles {
    in_flight: InFlight<File>,
    /// Files in flight of each user.
    users: Option<HashMap<u32, usize>>,
}

static IN_FLIGHT: SpinLock<InFlightFiles> =
    SpinLock::new(InFlightFiles { in_flight: InFlight::new(), users: None });
/// How many edges a garbage collection looks at; 0 if no message has files, and there is no
/// garbage.
static EDGES: AtomicUsize = AtomicUsize::new(0);

impl InFlightFiles {
    fn changed(&self) {
        let is_any = self.users.as_ref().is_some_and(|users| !users.is_empty());
        EDGES.store(if is_any { self.in_flight.len() } else { 0 }, Ordering::SeqCst);
    }

    fn files_of(&self, user: u32) -> usize {
        self.users.as_ref().and_then(|users| users.get(&user)).copied().unwrap_or(0)
    }
}

/// Whether a user may not have so many more files in flight, unless some of them are garbage.
fn is_full(user: u32, more: usize, limit: usize) -> bool {
    IN_FLIGHT.lock().files_of(user) + more > limit
}

/// The local socket behind a file.
fn local_socket(file: &File) -> Option<&Socket> {
    downcast_file::<Socket>(file.io()).filter(|socket| socket.family == Family::Unix)
}

fn key(socket: &Socket) -> usize {
    core::ptr::from_ref(socket).addr()
}

/// A place in a listener's backlog.
#[must_use]
pub struct Place {
    listener: Weak<Socket>,
    number: u64,
    _charge: Charge,
}

impl Place {
    /// Enters `server`, whose connection is not accepted yet, as held by its listener.
    ///
    /// Fails with `ENOBUFS`.
    pub fn enter(server: &Socket, listener: &Socket) -> Result<Place> {
        let _charge = charge::take(garbage::EDGE).map_err(|_| ENOBUFS)?;
        let mut all = IN_FLIGHT.lock();
        let number = all.in_flight.take_numbers(1);
        all.in_flight.add(key(listener), number, key(server), Weak::new());
        all.changed();
        Ok(Place { listener: listener.weak(), number, _charge })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = IN_FLIGHT.lock();
        all.in_flight.remove(self.listener.as_ptr().addr(), self.number);
        all.changed();
    }
}

impl Rights {
    /// Enters files that go into the queue of `holder`.
    ///
    /// Fails with `ETOOMANYREFS` when the user has too many on their way, and with `EINTR` at a
    /// signal that came while it was seen how many of them are garbage.
    pub fn enter(files: Vec<Arc<File>>, holder: &Socket) -> Result<Box<Rights>> {
        let process = proc::current_process();
        let user = process.cred().uid;
        let limit = process.limit(RLIMIT_NOFILE) as usize;
        if is_full(user, files.len(), limit) {
            collect_now()?;
        }
        let _charge = charge::take(size_of::<Rights>() + files.len() * FILE_IN_FLIGHT)
            .map_err(|_| ENOBUFS)?;
        let mut all = IN_FLIGHT.lock();
        let count = all.files_of(user) + files.len();
        if count > limit {
            return Err(ETOOMANYREFS);
        }
        let users = all.users.get_or_insert_default();
        users.room(1).map_err(|_| ENOBUFS)?;
        users.insert(user, count);
        let first = all.in_flight.take_numbers(files.len());
        for (at, file) in (first..).zip(&files) {
            if let Some(socket) = local_socket(file) {
                all.in_flight.add(key(holder), at, key(socket), Arc::downgrade(file));
            }
        }
        all.changed();
        drop(all);
        Ok(Box::new(Rights { files, user, holder: holder.weak(), first, next: None, _charge }))
    }

    /// The files, for a reader that only looks at the message, and calls [`seen`] before its call
    /// ends.
    pub fn copy(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }

    /// Takes the files out: they are no more in flight.
    pub fn take(self) -> Vec<Arc<File>> {
        self.strike();
        self.files
    }

    fn strike(&self) {
        let holder = self.holder.as_ptr().addr();
        let mut all = IN_FLIGHT.lock();
        for (at, file) in (self.first..).zip(&self.files) {
            if local_socket(file).is_some() {
                all.in_flight.remove(holder, at);
            }
        }
        let users = all.users.get_or_insert_default();
        if let Some(count) = users.get_mut(&self.user) {
            *count -= self.files.len();
            if *count == 0 {
                users.remove(&self.user);
            }
        }
        all.changed();
    }
}

/// What a thread has let go and has to close, and whether it is at it.
#[derive(Default)]
pub struct DeferredCloses {
    last: Option<Box<Rights>>,
    is_closing: bool,
}

/// A close's work: that of copying so many bytes.
const CLOSE: usize = 4096;

/// Lets the files of messages go that will not be received.
pub fn defer_close(mut rights: Box<Rights>) {
    rights.strike();
    let deferred_closes = &sched::current().deferred_closes;
    let was_digging = {
        let mut deferred_closes = deferred_closes.lock();
        rights.next = deferred_closes.last.take();
        deferred_closes.last = Some(rights);
        core::mem::replace(&mut deferred_closes.is_closing, true)
    };
    let next = || {
        let mut deferred_closes = deferred_closes.lock();
        let mut rights = deferred_closes.last.take();
        deferred_closes.is_closing = rights.is_some();
        deferred_closes.last = rights.as_mut().and_then(|rights| rights.next.take());
        rights
    };
    while let Some(mut rights) = if was_digging { None } else { next() } {
        while let Some(file) = rights.files.pop() {
            drop(file);
            sched::work_done(CLOSE);
        }
    }
}

/// Cycles of garbage collection.
struct Cycles {
    is_asked_for: bool,
    begun: u64,
    ended: u64,
}

static CYCLES: SpinLock<Cycles> = SpinLock::new(Cycles { is_asked_for: false, begun: 0, ended: 0 });
/// Where the collector waits to be asked, and other threads for the end of a cycle.
static ASKED: WaitQueue = WaitQueue::new();
static ENDED: WaitQueue = WaitQueue::new();

/// Starts the collector's thread; before the first program.
pub fn start() -> Result<()> {
    sched::spawn_kernel("socketgc", || run())?;
    Ok(())
}

fn run() -> ! {
    loop {
        ASKED.wait(|| {
            let mut cycles = CYCLES.lock();
            let is_asked_for = core::mem::take(&mut cycles.is_asked_for);
            cycles.begun += u64::from(is_asked_for);
            is_asked_for.then_some(())
        });
        collect_garbage();
        CYCLES.lock().ended += 1;
        ENDED.wake_all();
    }
}

/// Asks for a cycle; returns its number.
fn ask() -> u64 {
    let mut cycles = CYCLES.lock();
    cycles.is_asked_for = true;
    let cycle = cycles.begun + 1;
    drop(cycles);
    ASKED.wake_one();
    cycle
}

/// Sees to it that garbage is collected in time: each call saves up for a share of the edges, and
/// the one that finds that enough is saved for all of them asks for a cycle.
#[inline]
pub fn collect() {
    const SHARE: usize = 16;
    static SAVED: AtomicUsize = AtomicUsize::new(0);
    let there = EDGES.load(Ordering::SeqCst);
    if there != 0 && SAVED.fetch_add(SHARE, Ordering::Relaxed) + SHARE >= there {
        SAVED.store(0, Ordering::Relaxed);
        ask();
    }
}

/// Waits until what is garbage now is collected, or a signal is pending. Not with a lock held.
/// Cost: by the sockets in flight, and by what garbage holds; other threads run in between.
pub fn collect_now() -> Result<()> {
    let cycle = ask();
    ENDED.wait_intr(None, || (CYCLES.lock().ended >= cycle).then_some(())).map_err(|_| EINTR)
}

fn collect_garbage() {
    /// Edges looked at with the lock held, and their work: that of copying so many bytes.
    const STEP: usize = 256;
    const WORK: usize = 64 * 1024;
    let mut garbage = Vec::new();
    loop {
        // What there is no memory for is found the next time.
        let _ = garbage.room(STEP);
        let is_over = IN_FLIGHT.lock().in_flight.step(STEP, &mut garbage);
        if is_over {
            break;
        }
        sched::work_done(WORK);
    }
    for file in garbage {
        if let Some(socket) = local_socket(&file) {
            socket.drop_incoming();
        }
        drop(file);
        sched::work_done(CLOSE);
    }
}

/// Marks files of which a thread has taken a copy out of a message. It calls this while it holds
/// the socket that they came through, which keeps them reachable until then.
pub fn seen(files: &[Arc<File>]) {
    let mut all = IN_FLIGHT.lock();
    for socket in files.iter().filter_map(|file| local_socket(file)) {
        all.in_flight.mark(key(socket));
    }
}

/// What a program sends along with a message.
#[derive(Default)]
pub struct Control {
    pub files: Vec<Arc<File>>,
    pub cred: Option<Ucred>,
    pub packet: PacketOptions,
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
