//! Waiting for children: `wait4` and `waitid` in one.

use alloc::sync::Arc;

use super::process::{Change, ExitStatus, Process};
use super::signal::{code, SIGCHLD, SIGCONT};
use super::table::{self, Node, Pid, Tree};
use super::thread::Thread;
use super::trace;
use super::usage::Usage;
use super::{current_process, current_thread};
use crate::errno::{Result, ECHILD, ERESTARTSYS};
use crate::sched::Nanos;
use bitflags::bitflags;
use core::sync::atomic::Ordering;

/// Which children a call waits for.
#[derive(Clone, Copy)]
pub enum Which {
    Any,
    Pid(Pid),
    /// The one that has this number and was started then.
    Process(Pid, Nanos),
    Group(Pid),
}

bitflags! {
    /// The options of `waitid`, with the values of Linux.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Options: u32 {
        const NOHANG = 1;
        const STOPPED = 2;
        const EXITED = 4;
        const CONTINUED = 8;
        const NOWAIT = 0x0100_0000;
        const NOTHREAD = 0x2000_0000;
        const ALL = 0x4000_0000;
        const CLONE = 0x8000_0000;
    }
}

/// What there is to say about a child.
#[derive(Clone, Copy)]
pub struct Report {
    pub pid: Pid,
    pub uid: u32,
    pub event: Event,
    pub usage: Usage,
}

#[derive(Clone, Copy)]
pub enum Event {
    Ended(ExitStatus),
    Changed(Change),
    /// A tracee rests: what its tracer is told.
    Traced(u32),
}

impl Report {
    /// The status word of `wait4`.
    pub fn wait_word(&self) -> i32 {
        match self.event {
            Event::Ended(status) => status.wait_word(),
            Event::Changed(Change::Stopped(signal)) => signal.number() << 8 | 0x7f,
            Event::Changed(Change::Continued) => 0xffff,
            Event::Traced(code) => (code as i32) << 8 | 0x7f,
        }
    }

    /// `si_code` and `si_status` of `waitid`.
    pub fn info(&self) -> (i32, i32) {
        match self.event {
            Event::Ended(ExitStatus::Code(value)) => (code::CLD_EXITED, i32::from(value)),
            Event::Ended(ExitStatus::Killed(signal)) => (code::CLD_KILLED, signal.number()),
            Event::Changed(Change::Stopped(signal)) => (code::CLD_STOPPED, signal.number()),
            Event::Changed(Change::Continued) => (code::CLD_CONTINUED, SIGCONT.number()),
            Event::Traced(said) => (code::CLD_TRAPPED, said as i32),
        }
    }
}

/// What a look at the children found.
enum Look {
    Found(Report),
    Nothing,
    NoSuchChild,
}

/// Waits until a child has something to report; `None` with `NOHANG` when none has. `ECHILD` when
/// there is no such child.
pub fn wait(which: Which, options: Options) -> Result<Option<Report>> {
    let process = &current_process();
    let look = || match look_all(process, which, options) {
        Look::Found(report) => Some(Ok(report)),
        Look::NoSuchChild => Some(Err(ECHILD)),
        Look::Nothing => None,
    };
    if options.contains(Options::NOHANG) {
        return look().transpose();
    }
    let child = match which {
        Which::Pid(pid) | Which::Process(pid, _) => table::process(pid),
        Which::Any | Which::Group(_) => None,
    };
    let queue = child.as_ref().map_or(&process.child_queue, |child| &child.watchers);
    match queue.wait_intr(None, look) {
        Ok(outcome) => outcome.map(Some),
        Err(_) => Err(ERESTARTSYS),
    }
}

/// Wakes the threads that may wait for what a process has to say to its parent or its tracer.
pub fn tell(listener: &Process, process: &Process) {
    process.watchers.wake_all();
    listener.child_queue.wake_all();
}

/// Looks at tracees, then at children.
fn look_all(process: &Arc<Process>, which: Which, options: Options) -> Look {
    match trace::look(process, which, options) {
        Some(Some(report)) => Look::Found(report),
        Some(None) => match look(process, which, options) {
            Look::NoSuchChild => Look::Nothing,
            found => found,
        },
        None => look(process, which, options),
    }
}

fn look(parent: &Arc<Process>, which: Which, options: Options) -> Look {
    let (result, gone) = table::with(|tree| {
        let Some(node) = tree.node(parent.pid) else { return (Look::NoSuchChild, None) };
        let result = match which {
            Which::Pid(pid) | Which::Process(pid, _) => {
                look_among(tree, node.children.get(&pid), which, options)
            }
            // Children that have ended are at hand; others that have something to say are looked
            // for only if the caller asks for them.
            Which::Any | Which::Group(_) => match look_among(tree, &node.zombies, which, options) {
                Look::Found(report) => Look::Found(report),
                _ if options.intersects(Options::STOPPED.union(Options::CONTINUED)) => {
                    look_among(tree, &node.children, which, options)
                }
                _ => {
                    let mut children = node.children.iter().filter_map(|&pid| tree.node(pid));
                    match children.any(|child| matches(tree, &child.process, which, options)) {
                        true => Look::Nothing,
                        false => Look::NoSuchChild,
                    }
                }
            },
        };
        let gone = collect(tree, &result, options);
        (result, gone)
    });
    if let (true, Look::Found(report)) = (gone.is_some(), &result) {
        parent.child_usage.lock().add(&report.usage);
    }
    result
}

/// The first of some children that has something to report.
fn look_among<'a>(
    tree: &Tree,
    children: impl IntoIterator<Item = &'a Pid>,
    which: Which,
    options: Options,
) -> Look {
    let mut result = Look::NoSuchChild;
    let children = children.into_iter().filter_map(|&pid| tree.node(pid));
    for child in children.filter(|child| matches(tree, &child.process, which, options)) {
        match report(child, options) {
            Some(found) => return Look::Found(found),
            // It has nothing to say that is asked for, and never will.
            None if child.zombie().is_some() && !options.contains(Options::EXITED) => {}
            None => result = Look::Nothing,
        }
    }
    result
}

fn matches(tree: &Tree, child: &Process, which: Which, options: Options) -> bool {
    let is_clone = child.exit_signal.load(Ordering::Relaxed) != SIGCHLD.number();
    let kind = options.contains(Options::ALL) || options.contains(Options::CLONE) == is_clone;
    kind && (!options.contains(Options::NOTHREAD) || is_own(tree, child))
        && match which {
            Which::Any => true,
            Which::Pid(pid) => child.pid == pid,
            Which::Process(pid, started) => child.pid == pid && child.started == started,
            Which::Group(pgid) => child.pgid() == pgid,
        }
}

/// Whether the running thread has made a child; the first thread has those of threads that are
/// gone.
fn is_own(tree: &Tree, child: &Process) -> bool {
    let (own, maker) = (current_thread(), child.made_by.load(Ordering::Relaxed));
    let is_there = |thread: &Arc<Thread>| Arc::ptr_eq(&thread.process, &own.process);
    maker == own.tid() || own.tid() == own.process.pid && !tree.thread(maker).is_some_and(is_there)
}

fn report(child: &Node, options: Options) -> Option<Report> {
    let process = &child.process;
    let event = match child.ended {
        Some(_) => Event::Ended(child.zombie().filter(|_| options.contains(Options::EXITED))?),
        None => {
            let is_told_of_stops =
                options.contains(Options::STOPPED) && !trace::is_traced_by_parent(process);
            let mut change = process.change.lock();
            let wanted = match *change {
                Some(Change::Stopped(_)) => is_told_of_stops,
                Some(Change::Continued) => options.contains(Options::CONTINUED),
                None => false,
            };
            let found = (*change).filter(|_| wanted)?;
            if !options.contains(Options::NOWAIT) {
                *change = None;
            }
            Event::Changed(found)
        }
    };
    let usage = usage_of(process);
    Some(Report { pid: process.pid, uid: process.cred.lock().uid, event, usage })
}

/// What a process used, with what its own children had used when it waited for them.
pub fn usage_of(process: &Process) -> Usage {
    let mut usage = process.total_usage();
    usage.add(&process.child_usage.lock());
    usage
}

/// Takes a child that ended out of the table, unless it is to stay waitable.
fn collect(tree: &mut Tree, found: &Look, options: Options) -> Option<Arc<Process>> {
    match found {
        Look::Found(Report { pid, event: Event::Ended(_), .. })
            if !options.contains(Options::NOWAIT) =>
        {
            tree.remove(*pid)
        }
        _ => None,
    }
}

/// Waits for a vfork child to let go of the space; only the end of this thread cuts it short.
pub fn wait_vfork(done: &super::thread::Completion) {
    let thread = &current_thread();
    super::signal::deliver::killable(thread, || {
        while !done.is_done() {
            let outcome = done.queue().wait_intr(None, || done.is_done().then_some(()));
            if outcome.is_ok() || thread.is_dying() {
                return;
            }
        }
    });
}
