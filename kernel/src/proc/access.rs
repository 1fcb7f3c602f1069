//! What the running process may do to another one: the only place where the ids of two processes
//! are compared.
//!
//! ```text
//!   look into     memory, descriptors, registers: ptrace, process_vm_*, get_robust_list, /proc/PID/{mem,maps,fd,cwd,exe,...}
//!   signal        kill and its kin, and those about files (F_SETOWN)
//!   schedule      setpriority, sched_set*
//!   limit         prlimit
//! ```
//! I1: a process may do everything to itself. I2: memory that is not dumpable is for itself and for
//! `SYS_PTRACE` only, whatever process asks, and so is what a process keeps when its memory has
//! gone; memory stops being dumpable before its process gets the credentials that it is to be kept
//! from others for (`change_cred`). I3: memory is reached through `memory_of` or `may_debug`, which
//! judge that memory; a process that was judged may have other memory by then. What else a program
//! has is reached through `look_into`. I4: a new program's memory becomes dumpable when the
//! descriptors that the old one's exec closes are closed (`exec`).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::mm::Mm;
use super::process::Process;
use super::signal::{Signal, SIGCONT};
use super::thread::Thread;
use super::{current_process, current_thread};
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::{Result, EACCES, EPERM};
use crate::proc::limits::{RLIMIT_NICE, RLIMIT_RTPRIO};
use crate::sched::policy::{self, Policy};

/// Which ids of the caller count when it looks into another process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The ids for access to files, for the files of `/proc`.
    Files,
    /// The real ids, for system calls: a program that acts for its user isn't to be talked into it.
    Real,
}

fn is_self(target: &Process) -> bool {
    core::ptr::eq(&**current_process(), target)
}

fn allowed(is: bool) -> Result<()> {
    if is {
        Ok(())
    } else {
        Err(EPERM)
    }
}

/// Whether all user and group ids of `target` are these two.
fn all_ids_are(target: &Cred, uid: u32, gid: u32) -> bool {
    [target.uid, target.euid, target.suid] == [uid; 3]
        && [target.gid, target.egid, target.sgid] == [gid; 3]
}

/// Whether the running process may read and change what is in another one.
///
/// # Errors
/// `EPERM`.
pub fn may_look_into(target: &Process, by: By) -> Result<()> {
    memory_of(target, by).map(|_| ())
}

/// The memory of a process that the running process may read and change: the very memory that was
/// judged, whatever program the process runs meanwhile (I3). `None` if it is past its end.
///
/// # Errors
/// `EPERM`.
pub fn memory_of(target: &Process, by: By) -> Result<Option<Arc<Mm>>> {
    // Before the ids: those that memory is to be kept from come after it is made to be kept (I2).
    let mm = target.mm();
    let own = current_process().cred();
    if is_self(target) || own.has(Caps::SYS_PTRACE) {
        return Ok(mm);
    }
    let (uid, gid, caps) = match by {
        By::Files => (own.fsuid, own.fsgid, own.caps.effective),
        By::Real => (own.uid, own.gid, own.caps.permitted),
    };
    let other = target.cred();
    let was_dumpable = || target.was_dumpable.load(Ordering::Acquire);
    let is_dumpable = mm.as_ref().map_or_else(was_dumpable, |mm| mm.is_dumpable());
    allowed(all_ids_are(&other, uid, gid) && is_dumpable && caps.contains(other.caps.permitted))?;
    Ok(mm)
}

/// How often a process may run another program while it is looked into.
const PROGRAMS: usize = 16;

/// What `look` finds in a process, if the running process may look into the program that had it.
/// That is judged before and after: between the two a thread may have waited for its CPU while the
/// process ran another program, which may not be looked into, and opened files.
///
/// # Errors
/// `EPERM`; what `look` says.
pub fn look_into<T>(target: &Process, by: By, look: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..PROGRAMS {
        let before = memory_of(target, by)?;
        let found = look();
        let after = memory_of(target, by)?;
        if before.as_ref().map(Arc::as_ptr) == after.as_ref().map(Arc::as_ptr) {
            return found;
        }
    }
    Err(EPERM)
}

/// Whether another process may trace the running one, which asks for it: not one that may do less.
///
/// # Errors
/// `EPERM`.
pub fn may_be_traced_by(tracer: &Process) -> Result<()> {
    let (own, other) = (current_process().cred(), tracer.cred());
    allowed(other.caps.permitted.contains(own.caps.permitted) || other.has(Caps::SYS_PTRACE))
}

/// Whether the running process may read and change the memory that a tracee of its runs in now. To
/// trace it was allowed for the program of that time; what it runs since may be a program that the
/// tracer may run and not read.
///
/// # Errors
/// `EPERM`.
pub fn may_debug(mm: &Mm) -> Result<()> {
    allowed(mm.is_dumpable() || current_process().cred().has(Caps::SYS_PTRACE))
}

/// Whether the running process may send this signal; `None` stands for a question.
///
/// # Errors
/// `EPERM`.
pub fn may_signal(target: &Process, signal: Option<Signal>) -> Result<()> {
    let own = current_process();
    if is_self(target) || signal == Some(SIGCONT) && own.sid() == target.sid() {
        return Ok(());
    }
    let (own, other) = (own.cred(), target.cred());
    let same = [other.uid, other.suid].iter().any(|&uid| uid == own.euid || uid == own.uid);
    allowed(same || own.has(Caps::KILL))
}

/// Whether a process may be sent signals about a file by a process that had these ids when it said
/// that it should be.
pub fn may_tell_of_file(target: &Process, uid: u32, euid: u32) -> bool {
    let other = target.cred();
    euid == 0 || [uid, euid].iter().any(|id| [other.uid, other.suid].contains(id))
}

/// Whether the running process may change where and how often the threads of another one run.
///
/// # Errors
/// `EPERM`.
pub fn may_schedule(target: &Process) -> Result<()> {
    judge_scheduling(target, Ok(()))
}

/// Whether the running process may schedule another one, as [`may_schedule`], where `outcome` is
/// what the limits say of the change. As on Linux, ids are judged before it and capabilities after.
fn judge_scheduling(target: &Process, outcome: Result<()>) -> Result<()> {
    let (own, other) = (current_process().cred(), target.cred());
    if own.has(Caps::SYS_NICE) {
        return Ok(());
    }
    allowed([other.uid, other.euid].contains(&own.euid))?;
    outcome?;
    // A process that may do more than the caller isn't slowed down by it.
    allowed(own.caps.permitted.contains(other.caps.permitted))
}

/// Gives a thread another scheduling policy: a real-time one up to its limit. One that is to run
/// when nothing else does goes on so, and one whose children begin anew keeps that.
///
/// # Errors
/// `EPERM`.
pub fn change_policy(thread: &Thread, policy: Policy) -> Result<()> {
    let target = &thread.process;
    may_schedule(target)?;
    let most = target.limit(RLIMIT_RTPRIO);
    let is_free = current_process().cred().has(Caps::SYS_NICE);
    let may_change = |old: Policy| {
        let (new, was) = (policy.priority(), old.priority());
        let may_be_real_time = new == 0 || policy.kind() == old.kind() || most != 0;
        let may_be_first = new <= was || u64::from(new) <= most;
        let was_idle = old.kind() == policy::IDLE && policy.kind() != policy::IDLE;
        let may_run = !was_idle || thread.nice() >= lowest_nice(target);
        let keeps_on = old.resets_at_fork && !policy.resets_at_fork;
        may_be_real_time && may_be_first && may_run && !keeps_on
    };
    allowed(thread.change_policy(|old| (is_free || may_change(old)).then_some(policy)))
}

/// The lowest niceness that a process may give itself.
fn lowest_nice(process: &Process) -> i32 {
    20 - process.limit(RLIMIT_NICE).min(40) as i32
}

/// Whether the running process may schedule a thread, and give it this niceness.
///
/// # Errors
/// `EPERM` if it may not schedule it; `EACCES` if that is more than it may have.
pub fn may_renice(target: &Thread, nice: i32) -> Result<()> {
    let is_more = nice < target.nice() && nice < lowest_nice(&target.process);
    judge_scheduling(&target.process, if is_more { Err(EACCES) } else { Ok(()) })
}

/// Whether the running process may read and change the limits of another one.
///
/// # Errors
/// `EPERM`.
pub fn may_limit(target: &Process) -> Result<()> {
    let own = current_process().cred();
    let same = is_self(target) || all_ids_are(&target.cred(), own.uid, own.gid);
    allowed(same || own.has(Caps::SYS_RESOURCE))
}

/// Gives the running process other credentials.
///
/// # Errors
/// Errors of `change`, after which nothing has changed.
pub fn change_cred(change: impl FnOnce(&mut Cred) -> Result<()>) -> Result<()> {
    let thread = current_thread();
    // Kept until they are changed: another thread's change, made meanwhile, would be undone, a drop
    // of privileges even.
    let mut own = thread.process.cred.lock();
    let mut cred = Cred::clone(&own);
    change(&mut cred)?;
    if cred.hides_from(&own) {
        if let Some(mm) = thread.mm() {
            mm.set_dumpable(false);
        }
        thread.parent_death_signal.store(0, Ordering::Relaxed);
    }
    let old = core::mem::replace(&mut *own, Arc::new(cred));
    let is_other = old.uid != own.uid;
    drop(own);
    drop(old);
    if is_other {
        thread.process.follow_user();
    }
    Ok(())
}
