//! The end of threads and processes.
//!
//! A thread leaves in [`leave`]: it tells the threads that it promised to (`clear_child_tid`,
//! robust mutexes, a vfork parent), leaves its address space and its group. The last one of a group
//! ends the process: files are closed, children go to a reaper, and the node in the table becomes a
//! zombie that the parent collects, or goes at once if the parent doesn't care.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::process::{Change, ExitStatus, Process};
use super::signal::{code, flag, send, Detail, SigInfo, Signal, SIGCHLD, SIGCONT, SIGHUP, SIG_IGN};
use super::table::{self, Collector, Pid};
use super::thread::Thread;
use super::{current_thread, futex, futex_pi, oom, pidfd, robust, timer, trace};
use crate::arch::UserRegs;
use crate::mem::fault;
use crate::sched;

/// Ends the running thread with an `exit` code; the process goes on if it has other threads.
pub fn exit_thread(code: u8) -> ! {
    let thread = &current_thread();
    trace::exits(thread, &mut trace::unfinished_call(), ExitStatus::Code(code));
    thread.process.group.lock().last_exit = ExitStatus::Code(code);
    leave(thread)
}

/// Ends the running thread because its process is ending, or because another thread is in exec.
pub fn exit_thread_dying(regs: &mut UserRegs) -> ! {
    let thread = &current_thread();
    let status = thread.process.group.lock().exiting.unwrap_or(ExitStatus::Code(0));
    trace::exits(thread, regs, status);
    leave(thread)
}

/// Ends the running process, all threads of it.
pub fn exit_group(status: ExitStatus) -> ! {
    exit_group_later(status);
    exit_thread_dying(&mut trace::unfinished_call())
}

/// Has the running process end as soon as it is on its way back to user mode.
pub fn exit_group_later(status: ExitStatus) {
    send::kill_all(&mut current_thread().process.group.lock(), status);
}

fn leave(thread: &Arc<Thread>) -> ! {
    release_words(thread);
    futex_pi::release_all(thread, true);
    leave_space(thread);
    let process = thread.process.clone();
    trace::tracer_gone(thread);
    let number = trace::leaves(thread);
    table::with(|tree| tree.remove_thread(thread.tid()));
    let mut group = process.group.lock();
    // Counted once in a sum: as a thread's before, as a gone thread's after.
    process.usage.lock().add(&thread.usage());
    let left = group.threads.iter().position(|other| Arc::ptr_eq(other, thread));
    let own = left.map(|at| group.threads.swap_remove(at));
    fault::shrink(&mut group.threads);
    let last = group.threads.is_empty();
    if thread.tid() == process.pid {
        process.nice.store(thread.nice(), Ordering::Relaxed);
    }
    if thread.tid() == process.pid || (last && group.comm[0] == 0) {
        group.comm = thread.comm_bytes();
    }
    // A killed process has gone only when the memory behind its files is free, too.
    process.closes_files.store(last, Ordering::Release);
    let stopped = group.stop.filter(|_| !last && group.stopped == group.threads.len());
    let status = group.exiting.unwrap_or(group.last_exit);
    if let Some(signal) = stopped {
        *process.change.lock() = Some(Change::Stopped(signal));
    }
    drop(group);
    drop(own);
    trace::thread_gone(thread, status, number);
    process.thread_gone.wake_all();
    if let Some(signal) = stopped {
        send::report_change(&process, Change::Stopped(signal));
    }
    if last {
        end_process(&process, status);
    }
    drop(process);
    thread.forget_task();
    sched::exit_current()
}

/// Releases words in the thread's memory that others may wait for.
pub fn release_words(thread: &Thread) {
    robust::release_all(thread);
    clear_tid(thread);
}

/// `set_tid_address`: zeroes the word and wakes one thread that joins.
fn clear_tid(thread: &Thread) {
    let address = thread.clear_child_tid.swap(0, Ordering::Relaxed);
    if address != 0 && crate::user::put(address, &0u32).is_ok() {
        futex::wake_address(address, 1);
    }
}

/// Leaves the address space for none and lets a vfork parent go on.
pub fn leave_space(thread: &Thread) {
    // Before the memory is gone: what the process has besides is judged by it until the end.
    let is_dumpable = thread.mm().is_none_or(|mm| mm.is_dumpable());
    thread.process.was_dumpable.store(is_dumpable, Ordering::Release);
    if let Some(mm) = thread.replace_mm(None) {
        crate::vm::deactivate();
        mm.leave(&thread.process);
    }
    finish_vfork(thread);
}

/// Lets a parent that waits in vfork go on.
pub fn finish_vfork(thread: &Thread) {
    let waiting = thread.vfork.lock().take();
    if let Some(waiting) = waiting {
        waiting.complete();
    }
}

/// The last thread has gone: everything the process holds goes, and the parent hears of it.
fn end_process(process: &Arc<Process>, status: ExitStatus) {
    timer::stop_all(process);
    trace::last_tracer_gone(process);
    let files = process.files.lock().take();
    drop(files);
    process.closes_files.store(false, Ordering::Release);
    oom::process_gone();
    crate::fs::lock::process_ended(process);
    let fs = process.fs.lock().take();
    drop(fs);
    if process.pid == 1 {
        super::init::finish(status);
    }
    let hang_up = process.sid() == process.pid;
    if hang_up {
        super::terminal::session_ended(process.sid());
    }
    hand_over_children(process);
    sched::clock::charge_current();
    if !trace::process_gone(process, status) {
        notify_parent(process, status);
    }
    pidfd::process_gone(process);
}

/// Gives the children away, some at a time. Groups may lose a link to the session by the end of the
/// process: its own, if its parent is in another one, and those of children that are in others. A
/// group keeps its link until the last of these children is given away.
fn hand_over_children(process: &Arc<Process>) {
    let own = process.pgid();
    let links = |other: &Process| other.pgid() != own && other.sid() == process.sid();
    loop {
        let (children, heir, mut groups) = table::with(|tree| {
            let children = tree.orphan_children(process.pid);
            let heir = children
                .first()
                .and_then(|&child| tree.node(child))
                .map(|child| child.process.parent());
            let heir = heir.and_then(|heir| tree.node(heir)).map(|heir| heir.process.clone());
            let nodes = children.iter().filter_map(|&child| tree.node(child));
            let linked = nodes.filter(|node| links(&node.process)).map(|node| node.process.pgid());
            let groups: Vec<Pid> = linked.collect();
            (children, heir, groups)
        });
        if children.is_empty() {
            break;
        }
        let found = |pid| {
            table::with(|tree| {
                tree.node(pid).map(|node| (node.process.clone(), node.ended.is_some()))
            })
        };
        for (child, ended) in children.into_iter().filter_map(found) {
            let signal = child
                .leader()
                .map_or(0, |thread| thread.parent_death_signal.load(Ordering::Relaxed));
            if let Ok(signal) = Signal::new(signal) {
                let _ = send::send_to_process(&child, SigInfo::kernel(signal));
            }
            if let (true, Some(heir)) = (ended, &heir) {
                heir.child_queue.wake_all();
            }
        }
        groups.sort_unstable();
        groups.dedup();
        for pgid in groups {
            release_orphans(pgid, process.pid);
        }
        sched::give_way();
    }
    let parent = table::process(process.parent());
    if parent.is_some_and(|parent| links(&parent)) {
        release_orphans(own, process.pid);
    }
}

/// Makes the process a zombie and tells the parent, or removes it at once if the parent ignores its
/// children.
///
/// All in one look at the table: a parent that ends at this moment has either handed the child on
/// already, or finds a zombie to hand on; and one that collects the child has been sent the signal
/// before.
pub fn notify_parent(process: &Arc<Process>, status: ExitStatus) {
    let (parent, report) = table::with(|tree| {
        let signal = process.exit_signal.load(Ordering::Relaxed);
        let info =
            Signal::new(signal).ok().map(|signal| child_info(process, process.pid, signal, status));
        let parent = tree.node(process.parent()).map(|node| node.process.clone());
        let action = parent.as_ref().map(|parent| parent.group.lock().actions.get(SIGCHLD));
        let quiet = action.is_some_and(|action| action.handler == SIG_IGN);
        let is_usual = signal == SIGCHLD.number();
        let unwanted = quiet || action.is_some_and(|action| action.flags & flag::NOCLDWAIT != 0);
        if parent.is_none() || is_usual && unwanted {
            tree.remove(process.pid);
        } else {
            tree.set_ended(process.pid, status, Collector::Parent);
        }
        let report = match (&parent, info) {
            (Some(parent), Some(info)) if !(quiet && is_usual) => {
                send::post(parent, None, info, None).1
            }
            _ => None,
        };
        (parent, report)
    });
    let Some(parent) = parent else { return };
    if let Some(change) = report {
        send::report_change(&parent, change);
    }
    // The table was locked since the end was put down there, and waiters look there.
    process.watchers.wake_any();
    parent.child_queue.wake_any();
}

/// What SIGCHLD says about a process that ended, or a thread of it.
pub fn child_info(process: &Process, ended: Pid, signal: Signal, status: ExitStatus) -> SigInfo {
    let (code, status) = match status {
        ExitStatus::Code(value) => (code::CLD_EXITED, i32::from(value)),
        ExitStatus::Killed(signal) => (code::CLD_KILLED, signal.number()),
    };
    let usage = process.total_usage();
    let ticks = |ns: u64| ns / (1_000_000_000 / crate::time::CLOCK_TICKS);
    let detail = Detail::Child {
        pid: ended,
        uid: process.cred.lock().uid,
        status,
        utime: ticks(usage.user_ns),
        stime: ticks(usage.kernel_ns),
    };
    SigInfo { signal, code, detail }
}

/// A group loses a link to the session by the end of a process. If it was the last one, and a
/// member is stopped, all get SIGHUP and SIGCONT.
fn release_orphans(pgid: Pid, ending: Pid) {
    let wakes = table::with(|tree| {
        let is_stopped = |process: &Process| process.group.lock().stop.is_some();
        tree.is_orphaned_group(pgid, Some(ending))
            && tree.group(pgid).any(|node| is_stopped(&node.process))
    });
    if wakes {
        send::send_to_group(pgid, SIGHUP);
        send::send_to_group(pgid, SIGCONT);
    }
}
