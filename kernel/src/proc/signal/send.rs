//! Sending signals, and the mask that holds them back.
//!
//! A signal goes to a process (any thread that doesn't block it takes it) or to one thread. What it
//! does to a stop happens here, when it is sent: SIGCONT and SIGKILL end a stop whatever the mask
//! says. The rest is done by the thread itself on its way back to user mode.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use core::sync::atomic::Ordering;

use machine::NoMemory;

use super::{
    code, Actions, Detail, Sent, SigInfo, SigSet, Signal, SIGCHLD, SIGCONT, SIGKILL, SIG_DFL,
};
use crate::charge::Count;
use crate::errno::{Result, ESRCH};
use crate::mem::fault::Room;
use crate::proc::process::{Change, ExitStatus, Group, Process};
use crate::proc::table::Tree;
use crate::proc::thread::Thread;
use crate::proc::{access, current_process, current_thread, table, timer, trace, wait, Pid};

/// Sends a signal to a process; nothing happens to one that has ended.
pub fn send_to_process(process: &Arc<Process>, info: SigInfo) -> Result<()> {
    send(process, None, info)
}

/// Sends a signal to one thread.
pub fn send_to_thread(thread: &Arc<Thread>, info: SigInfo) -> Result<()> {
    send(&thread.process, Some(thread), info)
}

/// Sends a signal of the kernel's own to a whole process group (`^C`, hang-up). Returns whether
/// there is such a group.
pub fn send_to_group(pgid: Pid, signal: Signal) -> bool {
    send_to_all(
        |tree, from| tree.next_member(pgid, from),
        Some(SigInfo::kernel(signal)),
        |_| Ok(()),
    )
    .is_ok()
}

/// Sends a signal to all processes that `next` finds, from a number on, and `allowed` lets through,
/// in one look at the table, and to the children that they are about to have; `None` only asks.
/// `allowed` takes no lock above a process's own. Takes no memory but for SIGCONT: a process that
/// has run memory out can be killed.
///
/// # Errors
/// `ESRCH` if there is none, or what the last one said if none was sent it.
fn send_to_all(
    next: impl Fn(&Tree, Pid) -> Option<&Arc<Process>>,
    info: Option<SigInfo>,
    allowed: impl Fn(&Process) -> Result<()>,
) -> Result<()> {
    let mut outcome = Err(ESRCH);
    let mut reports = Vec::new();
    table::with(|tree| {
        if info.is_some_and(|info| info.signal == SIGCONT) {
            // Parents are told of what the signal changes.
            let after = |process: &Arc<Process>| next(tree, process.pid + 1);
            reports.room(iter::successors(next(tree, 0), |&process| after(process)).count())?;
        }
        let mut from = 0;
        while let Some(process) = next(tree, from).cloned() {
            from = process.pid + 1;
            let result = allowed(&process).and_then(|()| match info {
                Some(info) => {
                    let (sent, report) = post(&process, None, info, None);
                    let sent = sent.map(|_| ());
                    tree.send_to_reserved(process.pid, info);
                    reports.extend(report.map(|change| (process.clone(), change)));
                    sent
                }
                None => Ok(()),
            });
            if outcome != Ok(()) {
                outcome = result;
            }
        }
        Ok::<(), NoMemory>(())
    })?;
    for (process, change) in reports {
        report_change(&process, change);
    }
    outcome
}

fn send(process: &Arc<Process>, target: Option<&Arc<Thread>>, info: SigInfo) -> Result<()> {
    send_queued(process, target, info, None).map(|_| ())
}

/// Sends a timer's signal in the place that the timer has among its user's pending signals, if it
/// has one.
pub fn send_by_timer(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    place: Option<Arc<Count>>,
) -> Result<Sent> {
    send_queued(process, target, info, place)
}

fn send_queued(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    place: Option<Arc<Count>>,
) -> Result<Sent> {
    let (sent, report) = post(process, target, info, place);
    if let Some(change) = report {
        report_change(process, change);
    }
    sent
}

/// Sends a signal, but leaves it to the caller to report what changed by it: the table may be
/// locked.
pub fn post(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    place: Option<Arc<Count>>,
) -> (Result<Sent>, Option<Change>) {
    let mut group = process.group.lock();
    if group.threads.is_empty() {
        return (Ok(Sent::Ignored), None);
    }
    let was_stopped = change_stop(process, &mut group, info.signal);
    let sent = if info.signal == SIGKILL {
        kill_all(&mut group, ExitStatus::Killed(SIGKILL));
        Ok(Sent::Ignored)
    } else {
        enqueue(process, &mut group, target, info, place)
    };
    let report = (was_stopped && info.signal == SIGCONT).then_some(Change::Continued);
    if report.is_some() {
        *process.change.lock() = report;
    }
    (sent, report)
}

/// Queues a signal that is not ignored and wakes a thread for it.
fn enqueue(
    process: &Process,
    group: &mut Group,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    place: Option<Arc<Count>>,
) -> Result<Sent> {
    let signal = info.signal;
    let judge = target.unwrap_or(&group.threads[0]);
    let is_of_no_use = wants(judge, signal) && !waits_for(judge, signal) && !judge.is_traced();
    if is_of_no_use && group.actions.ignores(signal) {
        return Ok(Sent::Ignored);
    }
    let queued = match target {
        Some(thread) => thread.pending.lock().push(info, process, place)?,
        None => group.pending.push(info, process, place)?,
    };
    match target {
        Some(thread) => {
            if wants(thread, signal) {
                thread.poke();
            } else {
                process.signal_readers.wake_any();
            }
        }
        None => match group.threads.iter().find(|thread| wants(thread, signal)) {
            Some(thread) => thread.poke(),
            None => process.signal_readers.wake_any(),
        },
    }
    Ok(queued)
}

/// Whether a thread would take this signal now: it isn't blocked, or `sigtimedwait` asks for it.
fn wants(thread: &Thread, signal: Signal) -> bool {
    !thread.is_dying() && (!thread.mask().has(signal) || waits_for(thread, signal))
}

fn waits_for(thread: &Thread, signal: Signal) -> bool {
    SigSet(thread.waiting_for.load(Ordering::Relaxed)).has(signal)
}

/// What a signal does to a stop at the time it is sent. Returns whether the process had come to
/// rest and goes on now.
fn change_stop(process: &Arc<Process>, group: &mut Group, signal: Signal) -> bool {
    if SigSet::STOPS.has(signal) {
        discard(process, group, SigSet::of(&[SIGCONT]));
        return false;
    }
    if signal != SIGCONT && signal != SIGKILL {
        return false;
    }
    discard(process, group, SigSet::STOPS);
    if signal == SIGCONT {
        group.threads.iter().for_each(|thread| trace::continues(thread));
    }
    let was_stopped = group.stop.is_some() && group.stopped >= group.threads.len();
    if group.stop.take().is_some() {
        group.stopped = 0;
        group.stop_epoch = group.stop_epoch.wrapping_add(1);
        process.stop_queue.wake_all();
    }
    was_stopped
}

/// Forgets the signals of a set that are pending.
pub fn discard(process: &Arc<Process>, group: &mut Group, which: SigSet) {
    group.pending.discard(which);
    for thread in &group.threads {
        thread.pending.lock().discard(which);
    }
    timer::go_on(process, which);
}

/// Sends every thread of the group away; the first reason given is the one that counts.
pub fn kill_all(group: &mut Group, status: ExitStatus) {
    group.exiting.get_or_insert(status);
    for thread in &group.threads {
        thread.kill();
    }
}

/// Tells the parent that a child stopped or went on, as `Process::change` says already: it was set
/// with the group locked, so that the last one stays.
pub fn report_change(process: &Arc<Process>, change: Change) {
    let Some(parent) = table::process(process.parent()) else { return };
    let (code, signal) = match change {
        Change::Stopped(signal) => (code::CLD_STOPPED, signal),
        Change::Continued => (code::CLD_CONTINUED, SIGCONT),
    };
    report_stop(&parent, process, process.pid, code, signal.number());
}

/// Tells a parent or a tracer of a stop, or the end of one, with a signal if it wants that.
pub fn report_stop(to: &Arc<Process>, process: &Process, pid: Pid, code: i32, status: i32) {
    let quiet = to.group.lock().actions.get(SIGCHLD).flags & super::flag::NOCLDSTOP != 0;
    if !quiet {
        let uid = process.cred().uid;
        let detail = Detail::Child { pid, uid, status, utime: 0, stime: 0 };
        let _ = send_to_process(to, SigInfo { signal: SIGCHLD, code, detail });
    }
    wait::tell(to, process);
}

/// Sends a fault to the running thread: it can be neither blocked nor ignored.
pub fn force(info: SigInfo) {
    let thread = current_thread();
    let signal = info.signal;
    let mut group = thread.process.group.lock();
    let blocked = thread.mask().has(signal);
    if blocked || group.actions.get(signal).handler == super::SIG_IGN {
        reset_action(&mut group, signal);
        thread.store_mask(thread.mask().without(SigSet::of(&[signal])));
    }
    let _ = thread.pending.lock().push(info, &thread.process, None);
    thread.poke();
}

/// Gives a signal its default action.
pub fn reset_action(group: &mut Group, signal: Signal) {
    let mut action = group.actions.get(signal);
    action.handler = SIG_DFL;
    Arc::<Actions>::make_mut(&mut group.actions).set(signal, action);
}

/// Changes the running thread's mask; what it now blocks is handed to threads that don't.
pub fn set_mask(mask: SigSet) {
    let thread = &current_thread();
    let group = thread.process.group.lock();
    let blocked = mask.without(thread.mask());
    thread.store_mask(mask);
    let waiting = group.pending.set();
    let own = waiting.with(thread.pending.lock().set());
    if !own.without(thread.mask()).is_empty() {
        thread.poke();
    }
    let moved = SigSet(waiting.0 & blocked.0);
    if !moved.is_empty() {
        let others = group.threads.iter().filter(|other| !Arc::ptr_eq(other, thread));
        others
            .filter(|other| !moved.without(other.mask()).is_empty())
            .for_each(|other| other.poke());
    }
}

/// The `Sender` detail of the running process.
pub fn sender(value: u64) -> Detail {
    let process = current_process();
    Detail::Sender { pid: process.pid, uid: process.cred().uid, value }
}

/// A signal as the running process sends it by `kill`.
pub fn by_user(signal: Signal) -> SigInfo {
    SigInfo { signal, code: code::SI_USER, detail: sender(0) }
}

/// The whole of `kill(pid, signal)`; `None` only checks.
pub fn kill(pid: i64, signal: Option<Signal>) -> Result<()> {
    let own = current_process();
    let info = signal.map(by_user);
    let allowed = |target: &Process| access::may_signal(target, signal);
    let of_group =
        |pgid: Pid| send_to_all(|tree, from| tree.next_member(pgid, from), info, allowed);
    match pid {
        1.. => {
            let target = table::process(pid as Pid).ok_or(ESRCH)?;
            allowed(&target)?;
            info.map_or(Ok(()), |info| send_to_process(&target, info))
        }
        0 => of_group(own.pgid()),
        -1 => {
            let is_other = |process: &Process| process.pid != 1 && process.pid != own.pid;
            send_to_all(|tree, from| tree.next(from, is_other), info, allowed)
        }
        _ => of_group(pid.unsigned_abs().try_into().map_err(|_| ESRCH)?),
    }
}
