//! Which session has which terminal, and which of its process groups is in the foreground.
//!
//! ```text
//!   session --TERMINALS--> Tty --job--> session, foreground group
//! ```
//! Invariants: J1: a session is in `sessions` with a terminal exactly while that terminal's job
//! names the session; it changes with TERMINALS and the job locked. J2: `foreground` has the groups
//! in the foreground of all terminals, and those that a hang-up left to be told of their leader's
//! end: no other process gets such a number (`is_foreground`). J3: signals are sent with nothing
//! locked. Locks: the process table, TERMINALS, a terminal's job.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::Tty;
use crate::cred::caps::Caps;
use crate::errno::*;
use crate::proc::{self, curproc, signal, Pid};
use crate::sync::SpinLock;

/// The session that a terminal belongs to; 0 is none.
#[derive(Clone, Copy, Default)]
pub(super) struct Job {
    pub session: Pid,
    pub foreground: Pid,
}

struct Terminals {
    sessions: BTreeMap<Pid, Arc<Tty>>,
    /// Sessions whose terminals were hung up, and the groups that were in the foreground.
    hung_up: BTreeMap<Pid, Pid>,
    foreground: BTreeSet<Pid>,
}

static TERMINALS: SpinLock<Terminals> = SpinLock::new(Terminals {
    sessions: BTreeMap::new(),
    hung_up: BTreeMap::new(),
    foreground: BTreeSet::new(),
});

impl Terminals {
    fn attach(&mut self, tty: &Arc<Tty>, job: &mut Job, session: Pid, group: Pid) {
        if let Some(old) = self.hung_up.remove(&session) {
            self.foreground.remove(&old);
        }
        *job = Job { session, foreground: group };
        self.sessions.insert(session, tty.clone());
        self.foreground.insert(group);
    }

    /// A terminal is no session's any more; what was its job.
    fn detach(&mut self, job: &mut Job) -> (Job, Option<Arc<Tty>>) {
        let old = core::mem::take(job);
        self.foreground.remove(&old.foreground);
        (old, self.sessions.remove(&old.session))
    }
}

/// The controlling terminal of a session.
pub fn controlling(session: Pid) -> Option<Arc<Tty>> {
    TERMINALS.lock().sessions.get(&session).cloned()
}

/// Makes the console the controlling terminal of the first process's session.
pub fn adopt(session: Pid) {
    if let Some(console) = super::console() {
        TERMINALS.lock().attach(console, &mut console.job.lock(), session, session);
    }
}

/// Whether a number is a foreground group's, though that may have ended: no other process gets it,
/// or it would get the terminal's signals.
pub fn is_foreground(group: Pid) -> bool {
    TERMINALS.lock().foreground.contains(&group)
}

/// A session's leader has ended: the terminal is free, and what ran in the foreground is told.
pub fn session_ended(session: Pid) {
    let tty = controlling(session);
    if let Some(tty) = tty {
        leave(&tty, session, &[abi::SIGHUP]);
    }
    let left = {
        let mut all = TERMINALS.lock();
        let left = all.hung_up.remove(&session);
        left.inspect(|group| _ = all.foreground.remove(group))
    };
    for number in [abi::SIGHUP, abi::SIGCONT] {
        signal_group(left.unwrap_or(0), number);
    }
}

/// A session's leader gives its terminal up (`TIOCNOTTY`).
pub(super) fn give_up(tty: &Tty, session: Pid) {
    leave(tty, session, &[abi::SIGHUP, abi::SIGCONT]);
}

fn leave(tty: &Tty, session: Pid, told: &[u32]) {
    let (old, _tty) = {
        let mut all = TERMINALS.lock();
        let mut job = tty.job.lock();
        if job.session != session {
            return;
        }
        all.detach(&mut job)
    };
    told.iter().for_each(|&number| signal_group(old.foreground, number));
}

/// The terminal has gone for the session that had it: the leader is told.
pub(super) fn hung_up(tty: &Tty) {
    let (old, _tty) = {
        let mut all = TERMINALS.lock();
        let mut job = tty.job.lock();
        if job.session == 0 {
            return;
        }
        let (old, tty) = all.detach(&mut job);
        if old.foreground > 0 {
            all.hung_up.insert(old.session, old.foreground);
            all.foreground.insert(old.foreground);
        }
        (old, tty)
    };
    let Some(leader) = proc::table::process(old.session) else { return };
    for number in [abi::SIGHUP, abi::SIGCONT] {
        if let Ok(signal) = signal::Signal::new(number as i32) {
            let _ = signal::send::send_to_process(&leader, signal::SigInfo::kernel(signal));
        }
    }
}

/// An open without `O_NOCTTY`, for reading: a session leader without a terminal gets one that is no
/// session's.
pub(super) fn opened(tty: &Arc<Tty>) {
    let process = proc::current_process();
    let mut all = TERMINALS.lock();
    let mut job = tty.job.lock();
    let session = process.sid();
    if job.session == 0 && session == process.pid && !all.sessions.contains_key(&session) {
        all.attach(tty, &mut job, session, process.pgid());
    }
}

/// The leader of a session without a terminal gets one; one of another session's only if `steals`,
/// by a process that may do so.
pub(super) fn take(tty: &Arc<Tty>, steals: bool, is_readable: bool) -> Result<()> {
    let process = proc::current_process();
    let may = curproc::cred().has(Caps::SYS_ADMIN);
    let mut all = TERMINALS.lock();
    let mut job = tty.job.lock();
    let session = process.sid();
    let leads = session == process.pid;
    if leads && job.session == session {
        return Ok(());
    }
    let is_free = job.session == 0 || steals && may;
    if !leads || all.sessions.contains_key(&session) || !is_free || !(is_readable || may) {
        return Err(EPERM);
    }
    let (_, stolen) = all.detach(&mut job);
    all.attach(tty, &mut job, session, process.pgid());
    drop(job);
    drop(all);
    drop(stolen);
    Ok(())
}

/// The job of the caller's controlling terminal; `ENOTTY` if this isn't it.
pub(super) fn own(tty: &Tty) -> Result<Job> {
    let job = *tty.job.lock();
    if job.session == 0 || job.session != proc::current_process().sid() {
        return Err(ENOTTY);
    }
    Ok(job)
}

pub(super) fn set_foreground(tty: &Tty, group: Pid) -> Result<()> {
    match check(tty, Use::Change) {
        Err(EIO) => return Err(ENOTTY),
        other => other?,
    }
    if group < 0 {
        return Err(EINVAL);
    }
    own(tty)?;
    let session = proc::current_process().sid();
    // With the table locked the group's number stays its own.
    proc::table::with(|table| match table.group_session(group) {
        None => Err(ESRCH),
        Some(other) if other != session => Err(EPERM),
        Some(_) => {
            let mut all = TERMINALS.lock();
            let mut job = tty.job.lock();
            if job.session != session {
                return Err(ENOTTY);
            }
            all.foreground.remove(&job.foreground);
            all.foreground.insert(group);
            job.foreground = group;
            Ok(())
        }
    })
}

pub(super) fn signal_group(group: Pid, number: u32) {
    if group > 0 {
        if let Ok(signal) = signal::Signal::new(number as i32) {
            proc::send_to_group(group, signal);
        }
    }
}

/// What a process in the background wants to do with the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    /// Writing or changing settings.
    Change,
}

/// Stops a process in the background that uses its terminal, as job control has it.
pub(super) fn check(tty: &Tty, what: Use) -> Result<()> {
    let process = proc::current_process();
    let Job { session, foreground } = *tty.job.lock();
    let group = process.pgid();
    if session == 0 || process.sid() != session || foreground == 0 || foreground == group {
        return Ok(());
    }
    let number = if what == Use::Read { abi::SIGTTIN } else { abi::SIGTTOU };
    let signal = signal::Signal::new(number as i32)?;
    let held = proc::current_thread().mask().has(signal);
    if held || process.group.lock().actions.ignores(signal) {
        return if what == Use::Read { Err(EIO) } else { Ok(()) };
    }
    if proc::table::is_orphaned_group(group) {
        return Err(EIO);
    }
    proc::send_to_group(group, signal);
    Err(ERESTARTSYS)
}
