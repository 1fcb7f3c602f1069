//! All processes and threads by number, and how they are related.
//!
//! One lock, TREE, guards the whole structure. Relations are kept as numbers here, not as pointers
//! in the processes, so there is nothing to get out of step and no cycle of references.
//!
//! What one process does doesn't cost by how many others there are: members of groups and sessions,
//! children, and children that have ended are found by index, not by a walk over all.
//!
//! Invariants: N1: a node's `children` are exactly the processes whose `parent` it is, its
//! `zombies` those of them that have `ended` set and that no tracer is to collect first; `groups`
//! and `sessions` have each process in the table once, under the number it bears. N2: a number is
//! not given out while a process, a thread, a group or a session bears it, one that is being made
//! is to, or a tracer is yet to hear of it. N3: a process whose node has `ended` set has no
//! threads. N4: a signal that many processes are sent reaches the children that they have just
//! then: those in the table, and those that are being made.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use machine::NoMemory;

use super::process::{ExitStatus, Process};
use super::signal::{send, SigInfo, SIGCHLD};
use super::terminal;
use super::thread::Thread;
use crate::errno::{Result, EAGAIN, EINVAL, ENOMEM, EPERM, ESRCH};
use crate::mem::fault;
use crate::sched;
use crate::sync::SpinLock;

/// Numbers of processes, threads, groups and sessions.
pub type Pid = i32;

/// Numbers run from 1 to here, or to where a setting says, and then start again at `PID_REUSE`.
const PID_MAX: Pid = 4_194_303;
const PID_REUSE: Pid = 300;

/// How many numbers are looked at with the table locked.
const NUMBERS: usize = 64;

/// One of so many numbers is kept for root.
const FOR_ROOT: usize = 8;

/// The user that makes a thread or process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Root,
    Other,
}

impl Asker {
    /// Whose process it is.
    pub fn of(process: &Process) -> Asker {
        if process.account().user().uid() == 0 {
            Asker::Root
        } else {
            Asker::Other
        }
    }
}

/// A process in the table.
pub struct Node {
    pub process: Arc<Process>,
    pub children: BTreeSet<Pid>,
    /// Children that the process may collect.
    pub zombies: BTreeSet<Pid>,
    /// Set when the last thread has gone.
    pub ended: Option<ExitStatus>,
    /// The process that may collect it then.
    pub collector: Collector,
}

/// The process that may collect one that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Collector {
    Parent,
    /// The tracer; the parent after it.
    Tracer,
}

impl Node {
    /// How the process ended, if its parent may collect it.
    pub fn zombie(&self) -> Option<ExitStatus> {
        self.ended.filter(|_| self.collector == Collector::Parent)
    }
}

/// A process or a thread that is being made (N2, N4).
struct Reservation {
    pid: Pid,
    parent: Pid,
    /// What was sent to the parent and others at once meanwhile.
    sent: Vec<SigInfo>,
}

/// The number of a process or thread that is being made. Dropped, it is in the table, or there
/// won't be one.
pub struct ReservedPid(Pid);

impl ReservedPid {
    pub fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for ReservedPid {
    fn drop(&mut self) {
        with(|tree| tree.reserved.retain(|reserved| reserved.pid != self.0));
    }
}

/// The number of a thread that has ended, which a tracer is yet to hear of (N2).
pub struct Kept(Pid);

impl Kept {
    pub fn new(tid: Pid) -> Kept {
        with(|tree| tree.kept.insert(tid));
        Kept(tid)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        with(|tree| tree.kept.remove(&self.0));
    }
}

/// Everything behind TREE.
pub struct Tree {
    nodes: BTreeMap<Pid, Node>,
    threads: BTreeMap<Pid, Arc<Thread>>,
    /// Members of process groups and of sessions: the group's or session's number and the member's.
    groups: BTreeSet<(Pid, Pid)>,
    sessions: BTreeSet<(Pid, Pid)>,
    reserved: Vec<Reservation>,
    kept: BTreeSet<Pid>,
    last: Pid,
    wrapped: bool,
    /// The highest number that is given out.
    max: Pid,
    /// How many threads there may be.
    limit: usize,
}

static TREE: SpinLock<Tree> = SpinLock::new(Tree {
    nodes: BTreeMap::new(),
    threads: BTreeMap::new(),
    groups: BTreeSet::new(),
    sessions: BTreeSet::new(),
    reserved: Vec::new(),
    kept: BTreeSet::new(),
    last: 0,
    wrapped: false,
    max: PID_MAX,
    limit: 1,
});

/// Runs `f` with the whole tree locked. It must not sleep or touch user memory.
pub fn with<T>(f: impl FnOnce(&mut Tree) -> T) -> T {
    f(&mut TREE.lock())
}

impl Tree {
    pub fn node(&self, pid: Pid) -> Option<&Node> {
        self.nodes.get(&pid)
    }

    pub fn thread(&self, tid: Pid) -> Option<&Arc<Thread>> {
        self.threads.get(&tid)
    }

    /// The first process, zombies too, from a number on that `wanted` names.
    pub fn next(&self, from: Pid, wanted: impl Fn(&Process) -> bool) -> Option<&Arc<Process>> {
        self.nodes.range(from..).map(|(_, node)| &node.process).find(|process| wanted(process))
    }

    /// The first member of a process group, zombies too, from a number on.
    pub fn next_member(&self, pgid: Pid, from: Pid) -> Option<&Arc<Process>> {
        let mut members = self.groups.range((pgid, from)..=(pgid, Pid::MAX));
        members.find_map(|(_, pid)| self.nodes.get(pid)).map(|node| &node.process)
    }

    /// The members of a process group, zombies too.
    pub(super) fn group(&self, pgid: Pid) -> impl Iterator<Item = &Node> {
        of(&self.groups, pgid).filter_map(|pid| self.nodes.get(&pid))
    }

    /// The members of a process group as a list, which outlives the lock on the table.
    ///
    /// # Errors
    /// [`NoMemory`] for the list.
    pub fn members(&self, pgid: Pid) -> core::result::Result<Vec<Arc<Process>>, NoMemory> {
        fault::gather(self.group(pgid).map(|node| node.process.clone()))
    }

    /// Makes a process a zombie, which its parent or another one may collect.
    pub fn set_ended(&mut self, pid: Pid, status: ExitStatus, collector: Collector) {
        let Some(node) = self.nodes.get_mut(&pid) else { return };
        (node.ended, node.collector) = (Some(status), collector);
        if collector == Collector::Tracer {
            return;
        }
        let parent = node.process.parent();
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.zombies.insert(pid);
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A number that no process bears (N2), or none among the next ones. The last of them are
    /// root's, which may have to end the processes that took all others.
    fn allocate(&mut self, asker: Asker) -> Result<Option<Pid>> {
        let kept = if asker == Asker::Root { 0 } else { self.limit / FOR_ROOT };
        if self.threads.len() + self.reserved.len() + self.kept.len() >= self.limit - kept {
            return Err(EAGAIN);
        }
        for _ in 0..NUMBERS {
            self.last += 1;
            if self.last > self.max {
                self.last = PID_REUSE;
                self.wrapped = true;
            }
            if !self.wrapped || !self.in_use(self.last) {
                return Ok(Some(self.last));
            }
        }
        Ok(None)
    }

    fn in_use(&self, id: Pid) -> bool {
        let expected = self.reserved.iter().any(|reserved| reserved.pid == id);
        expected
            || terminal::is_foreground(id)
            || self.kept.contains(&id)
            || self.nodes.contains_key(&id)
            || self.threads.contains_key(&id)
            || of(&self.groups, id).chain(of(&self.sessions, id)).next().is_some()
    }

    /// Makes `child` a child of `parent`, which may be 0 for none.
    fn adopt(&mut self, parent: Pid, child: Pid) {
        let Some(node) = self.nodes.get(&child) else { return };
        node.process.parent.store(parent, Ordering::Relaxed);
        let has_ended = node.zombie().is_some();
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children.insert(child);
            if has_ended {
                node.zombies.insert(child);
            }
        }
    }

    /// Hands some children of a process that ends to its nearest living subreaper, or to pid 1.
    /// Returns these children: none if none are left.
    pub fn orphan_children(&mut self, pid: Pid) -> Vec<Pid> {
        const SOME: usize = 64;
        let mut children = Vec::new();
        if let Some(node) = self.nodes.get_mut(&pid) {
            children.extend(core::iter::from_fn(|| node.children.pop_first()).take(SOME));
            children.iter().for_each(|child| {
                node.zombies.remove(child);
            });
        }
        if children.is_empty() {
            return children;
        }
        let heir = self.reaper_of(pid);
        for &child in &children {
            self.adopt(heir, child);
            if let Some(node) = self.nodes.get(&child) {
                node.process.made_by.store(0, Ordering::Relaxed);
            }
            if let Some(node) = self.nodes.get(&child) {
                node.process.exit_signal.store(SIGCHLD.number(), Ordering::Relaxed);
            }
        }
        children
    }

    fn reaper_of(&self, pid: Pid) -> Pid {
        let mut at = self.nodes.get(&pid).map_or(1, |node| node.process.parent());
        while let Some(node) = self.nodes.get(&at) {
            if node.ended.is_none() && node.process.subreaper.load(Ordering::Relaxed) {
                return at;
            }
            at = node.process.parent();
        }
        1
    }

    /// Takes a process that has ended out of the table.
    pub fn remove(&mut self, pid: Pid) -> Option<Arc<Process>> {
        let node = self.nodes.remove(&pid)?;
        if let Some(parent) = self.nodes.get_mut(&node.process.parent()) {
            parent.children.remove(&pid);
            parent.zombies.remove(&pid);
        }
        self.groups.remove(&(node.process.pgid(), pid));
        self.sessions.remove(&(node.process.sid(), pid));
        Some(node.process)
    }

    /// Notes what a process and others are sent at once for the children that it is about to have
    /// (N4). Without memory for the note the child goes without the signal; one that ends its
    /// parent ends it as well, see `clone::enter`.
    pub fn send_to_reserved(&mut self, parent: Pid, info: SigInfo) {
        for reserved in self.reserved.iter_mut().filter(|reserved| reserved.parent == parent) {
            let known = reserved.sent.iter().any(|sent| sent.signal == info.signal);
            if !known && fault::attempt(|| reserved.sent.try_reserve(1)).is_ok() {
                reserved.sent.push(info);
            }
        }
    }

    pub fn remove_thread(&mut self, tid: Pid) {
        self.threads.remove(&tid);
    }

    pub fn insert_thread(&mut self, thread: Arc<Thread>) {
        self.threads.insert(thread.tid(), thread);
    }

    /// Whether no member of the group, but for one that is ending, has a parent in another group of
    /// the same session.
    pub fn is_orphaned_group(&self, pgid: Pid, ending: Option<Pid>) -> bool {
        !self.group(pgid).any(|node| {
            let process = &node.process;
            let counts = node.ended.is_none() && Some(process.pid) != ending;
            counts
                && self.nodes.get(&process.parent()).is_some_and(|parent| {
                    parent.process.pgid() != pgid && parent.process.sid() == process.sid()
                })
        })
    }

    /// The session of a process group, if the group has members.
    pub fn group_session(&self, pgid: Pid) -> Option<Pid> {
        self.group(pgid).next().map(|node| node.process.sid())
    }
}

/// The members that an index has under a number.
fn of(index: &BTreeSet<(Pid, Pid)>, id: Pid) -> impl Iterator<Item = Pid> + '_ {
    index.range((id, Pid::MIN)..=(id, Pid::MAX)).map(|&(_, pid)| pid)
}

/// Sets how many threads there may be at a time.
pub fn set_limit(limit: usize) {
    with(|tree| tree.limit = limit);
}

/// How many threads there may be at a time.
pub fn limit() -> usize {
    with(|tree| tree.limit)
}

/// Below which number all that are given out are.
pub fn numbers() -> Pid {
    with(|tree| tree.max) + 1
}

/// Sets that.
///
/// # Errors
/// `EINVAL` if none would be given out again, or for more than there may be.
pub fn set_numbers(end: Pid) -> Result<()> {
    if !(PID_REUSE + 1..=PID_MAX + 1).contains(&end) {
        return Err(EINVAL);
    }
    with(|tree| tree.max = end - 1);
    Ok(())
}

/// A number for process 1.
pub fn allocate(asker: Asker) -> Result<Pid> {
    with(|tree| tree.allocate(asker))?.ok_or(EAGAIN)
}

/// The parent of a thread that joins its process: none that could be sent something.
pub const NO_PARENT: Pid = 0;

/// A number for a new process that `parent` makes, or for a new thread.
///
/// # Errors
/// `EAGAIN` if there are as many threads as may be or all numbers are borne, `ENOMEM`.
pub fn expect(parent: Pid, asker: Asker) -> Result<ReservedPid> {
    for _ in 0..=numbers() as usize / NUMBERS {
        let reserved = with(|tree| -> Result<Option<ReservedPid>> {
            fault::attempt(|| tree.reserved.try_reserve(1)).map_err(|_| ENOMEM)?;
            let Some(pid) = tree.allocate(asker)? else { return Ok(None) };
            tree.reserved.push(Reservation { pid, parent, sent: Vec::new() });
            Ok(Some(ReservedPid(pid)))
        })?;
        if let Some(reserved) = reserved {
            return Ok(reserved);
        }
        sched::give_way();
    }
    Err(EAGAIN)
}

/// Puts a new process with its first thread into the table, as a child of `parent`, in the group
/// and session it names.
pub fn insert(
    process: Arc<Process>,
    thread: Arc<Thread>,
    parent: Pid,
    reserved: Option<ReservedPid>,
) {
    with(|tree| {
        let pid = process.pid;
        let (children, zombies) = (BTreeSet::new(), BTreeSet::new());
        let collector = Collector::Parent;
        let node = Node { process: process.clone(), children, zombies, ended: None, collector };
        tree.nodes.insert(pid, node);
        tree.groups.insert((process.pgid(), pid));
        tree.sessions.insert((process.sid(), pid));
        tree.insert_thread(thread);
        tree.adopt(parent, pid);
        let Some(reserved) = reserved else { return };
        // All that its end would do is done here.
        core::mem::forget(reserved);
        let Some(at) = tree.reserved.iter().position(|reserved| reserved.pid == pid) else {
            return;
        };
        for info in tree.reserved.swap_remove(at).sent {
            // No process was told that it stopped, so none hears that it goes on.
            let _ = send::post(&process, None, info, None);
        }
    });
}

pub fn process(pid: Pid) -> Option<Arc<Process>> {
    with(|tree| tree.node(pid).map(|node| node.process.clone()))
}

pub fn thread(tid: Pid) -> Option<Arc<Thread>> {
    with(|tree| tree.threads.get(&tid).cloned())
}

/// All processes, zombies too, by number, one after another: what comes or goes meanwhile may be
/// among them.
pub fn processes() -> impl Iterator<Item = Arc<Process>> {
    let mut from = 0;
    core::iter::from_fn(move || {
        let next =
            with(|tree| tree.nodes.range(from..).next().map(|(_, node)| node.process.clone()))?;
        from = next.pid + 1;
        Some(next)
    })
}

/// The lowest number of a process, zombies too, that isn't below `from`.
pub fn next_process(from: Pid) -> Option<Pid> {
    with(|tree| tree.nodes.range(from..).next().map(|(&pid, _)| pid))
}

/// The lowest number of a thread of `process` that isn't below `from`. Gives way.
pub fn next_thread_of(process: &Arc<Process>, mut from: Pid) -> Option<Pid> {
    loop {
        let (found, next) = with(|tree| {
            let mut next = None;
            for (&tid, thread) in tree.threads.range(from..).take(NUMBERS) {
                if Arc::ptr_eq(&thread.process, process) {
                    return (Some(tid), None);
                }
                next = Some(tid + 1);
            }
            (None, next)
        });
        if found.is_some() || next.is_none() {
            return found;
        }
        from = next?;
        sched::give_way();
    }
}

/// How many threads there are, and the number that was given out last.
pub fn load() -> (usize, Pid) {
    with(|tree| (tree.threads.len(), tree.last))
}

/// Threads and processes that were made since the machine started.
static MADE: AtomicU64 = AtomicU64::new(0);

/// One was.
pub fn count_made() {
    MADE.fetch_add(1, Ordering::Relaxed);
}

/// Threads and processes that were made since the machine started.
pub fn made() -> u64 {
    MADE.load(Ordering::Relaxed)
}

/// # Errors
/// `ENOMEM` for the list.
pub fn group_members(pgid: Pid) -> Result<Vec<Arc<Process>>> {
    Ok(with(|tree| tree.members(pgid))?)
}

pub fn is_orphaned_group(pgid: Pid) -> bool {
    with(|tree| tree.is_orphaned_group(pgid, None))
}

/// The whole of `setpgid`: `pid` is the caller or a child of it that hasn't called exec.
pub fn set_group(caller: &Process, pid: Pid, pgid: Pid) -> Result<()> {
    with(|tree| {
        let process =
            tree.node(pid).filter(|node| node.ended.is_none()).ok_or(ESRCH)?.process.clone();
        if pid != caller.pid {
            if process.parent() != caller.pid {
                return Err(ESRCH);
            }
            if process.has_execed.load(Ordering::Relaxed) {
                return Err(crate::errno::EACCES);
            }
        }
        if process.sid() != caller.sid() || process.sid() == pid {
            return Err(EPERM);
        }
        if pgid != pid && tree.group_session(pgid) != Some(caller.sid()) {
            return Err(EPERM);
        }
        tree.groups.remove(&(process.pgid.swap(pgid, Ordering::Relaxed), pid));
        tree.groups.insert((pgid, pid));
        Ok(())
    })
}

/// The whole of `setsid`: the caller leads a new session and a new group in it.
pub fn new_session(caller: &Process) -> Result<Pid> {
    with(|tree| {
        if caller.sid() == caller.pid || tree.group_session(caller.pid).is_some() {
            return Err(EPERM);
        }
        let pid = caller.pid;
        tree.sessions.remove(&(caller.sid.swap(pid, Ordering::Relaxed), pid));
        tree.sessions.insert((pid, pid));
        tree.groups.remove(&(caller.pgid.swap(pid, Ordering::Relaxed), pid));
        tree.groups.insert((pid, pid));
        Ok(caller.pid)
    })
}
