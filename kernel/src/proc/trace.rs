//! Tracing: a process that stops another's threads at their signals, and looks into their registers
//! and memory (`ptrace`).
//!
//! ```text
//!   a signal comes --> stop: the thread rests, its registers are in `Stop`, the tracer is told
//!                        |                           ^
//!                        |     tracer: wait, then read and write registers and memory
//!                        v
//!                      goes on: with the signal, with another, or with none
//! ```
//! There are stops at signals and after exec; none at system calls, and children are not traced on
//! their own.
//!
//! A process ends for its tracer before it ends for its parent: the tracer of its first thread
//! collects it, and then the parent is told. Until then, and while other threads go on, the number
//! is the process's own; one of another thread is kept from reuse.
//!
//! Invariants: R1: a thread has a tracer exactly while it is among that process's tracees. R2: a
//! `Stop` is there from when its thread comes to rest until it goes on; only while it doesn't go on
//! yet may the tracer use it. R3: a thread whose number may be free begins to be traced no more.
//! Locks: a tracer's `tracees` before the table's and a process's group; a thread's `trace` after
//! them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::access::{self, By};
use super::process::{Change, ExitStatus, Process};
use super::signal::{code, deliver, send, Detail, SigInfo, Signal, SIGCHLD, SIGSTOP, SIGTRAP};
use super::table::{self, Collector, Kept, Pid};
use super::thread::Thread;
use super::usage::Usage;
use super::wait::{self, Event, Options, Report, Which};
use super::{current_process, current_thread, exit};
use crate::arch::UserRegs;
use crate::charge::Charge;
use crate::cred::caps::Caps;
use crate::errno::{Result, EPERM, ESRCH};
use crate::mem::fault::{self, Room};
use crate::sched;
use core::sync::atomic::{AtomicBool, Ordering};

/// What letting a tracee go costs, in bytes copied.
const LETTING_GO: usize = 8192;

/// What a thread knows of its tracer.
#[derive(Default)]
pub struct Trace {
    tracer: Option<Arc<Process>>,
    /// It was judged, with the tracer in place, that the tracer may trace the thread.
    is_sure: bool,
    /// By PTRACE_SEIZE: a new program doesn't stop it.
    is_seized: bool,
    stop: Option<Stop>,
    /// The tracer asked for one instruction.
    steps: bool,
    /// The thread gives its number back (R3).
    is_gone: bool,
}

/// A thread at rest.
pub struct Stop {
    /// The signal that it stopped at.
    pub info: SigInfo,
    pub regs: UserRegs,
    is_told: bool,
    /// What the thread goes on with.
    on: Option<GoOn>,
}

#[derive(Clone, Copy)]
struct GoOn(Option<Signal>);

/// The tracees of a process.
#[derive(Default)]
pub struct Tracees {
    threads: Vec<Tracee>,
    /// First threads that have gone and whose processes go on and aren't its children, by process.
    leaders: BTreeMap<Pid, Tracee>,
    /// Tracees that ended and aren't the process's children, until it waits for them. They count as
    /// their users' (`Counted::Tasks`) and among all threads until then.
    ended: BTreeMap<Pid, Ended>,
    /// The process has ended: it would never let go of another one.
    is_over: bool,
}

impl Trace {
    /// The stop at which a thread is, if `tracer` may use it.
    fn stop_for(&mut self, tracer: &Arc<Process>) -> Result<&mut Stop> {
        let is_own =
            self.is_sure && self.tracer.as_ref().is_some_and(|own| Arc::ptr_eq(own, tracer));
        self.stop.as_mut().filter(|stop| is_own && stop.on.is_none()).ok_or(ESRCH)
    }
}

struct Tracee {
    thread: Arc<Thread>,
    _charge: Charge,
}

struct Ended {
    tracee: Tracee,
    uid: u32,
    status: ExitStatus,
    /// A process, which ends for its parent too, has its own.
    _number: Option<Kept>,
}

impl Ended {
    fn process(&self) -> &Arc<Process> {
        &self.tracee.thread.process
    }

    fn is_process(&self) -> bool {
        self.tracee.thread.tid() == self.process().pid
    }

    /// The tracer has heard of it.
    fn collected(self) {
        if self.is_process() {
            exit::notify_parent(self.process(), self.status);
        }
    }
}

/// What the tracer is charged for each: a place in the list, which may be twice as long as it has
/// to be, and those in two trees.
const TRACEE: usize = 2 * (size_of::<Tracee>() + size_of::<(Pid, Ended)>() + size_of::<Pid>());

impl Tracees {
    pub const fn new() -> Tracees {
        Tracees {
            threads: Vec::new(),
            leaders: BTreeMap::new(),
            ended: BTreeMap::new(),
            is_over: false,
        }
    }

    fn take(&mut self, thread: &Arc<Thread>) -> Option<Tracee> {
        let at = self.threads.iter().position(|other| Arc::ptr_eq(&other.thread, thread))?;
        let taken = self.threads.swap_remove(at);
        fault::shrink(&mut self.threads);
        Some(taken)
    }

    /// The first thread of a process, if it has gone before.
    fn take_leader(&mut self, process: &Arc<Process>) -> Option<Tracee> {
        let known = self.leaders.get(&process.pid)?;
        let is_it = Arc::ptr_eq(&known.thread.process, process);
        is_it.then(|| self.leaders.remove(&process.pid)).flatten()
    }

    fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.leaders.is_empty() && self.ended.is_empty()
    }
}

/// Whether any thread has ever been traced. Before that no thread that sends a signal or waits need
/// look.
static ANYBODY: AtomicBool = AtomicBool::new(false);

impl Thread {
    pub fn is_traced(&self) -> bool {
        ANYBODY.load(Ordering::Acquire) && self.trace.lock().tracer.is_some()
    }

    /// Whether it has stopped for its tracer.
    pub fn is_at_rest_for_tracer(&self) -> bool {
        ANYBODY.load(Ordering::Acquire)
            && self.trace.lock().stop.as_ref().is_some_and(|stop| stop.on.is_none())
    }

    /// The tracer's number; 0 for none.
    pub fn tracer(&self) -> Pid {
        self.trace.lock().tracer.as_ref().map_or(0, |tracer| tracer.pid)
    }
}

/// Makes a thread a tracee (R1), if `may_be` allows it; that is asked with the tracer in place,
/// since an exec that sees no tracer may give the thread's process more rights than it had.
fn begin(
    tracer: &Arc<Process>,
    thread: &Arc<Thread>,
    is_seized: bool,
    may_be: impl FnOnce() -> Result<()>,
) -> Result<()> {
    enter(tracer, thread, is_seized)?;
    let outcome = may_be();
    let mut tracees = tracer.tracees.lock();
    let mut trace = thread.trace.lock();
    let is_there = trace.tracer.as_ref().is_some_and(|own| Arc::ptr_eq(own, tracer));
    if outcome.is_ok() {
        trace.is_sure = is_there;
        return if is_there { Ok(()) } else { Err(ESRCH) };
    }
    if is_there {
        trace.tracer = None;
        tracees.take(thread);
        if let Some(stop) = &mut trace.stop {
            stop.on = Some(GoOn(Some(stop.info.signal)));
        }
    }
    drop(trace);
    drop(tracees);
    thread.process.stop_queue.wake_all();
    outcome
}

fn enter(tracer: &Arc<Process>, thread: &Arc<Thread>, is_seized: bool) -> Result<()> {
    let mut tracees = tracer.tracees.lock();
    let mut trace = thread.trace.lock();
    if trace.tracer.is_some() || trace.is_gone || thread.is_dying() || tracees.is_over {
        return Err(EPERM);
    }
    let charge = Charge::to(tracer.account(), TRACEE).map_err(|_| EPERM)?;
    tracees.threads.room(1).map_err(|_| EPERM)?;
    ANYBODY.store(true, Ordering::Release);
    tracees.threads.push(Tracee { thread: thread.clone(), _charge: charge });
    trace.tracer = Some(tracer.clone());
    (trace.is_sure, trace.is_seized) = (false, is_seized);
    Ok(())
}

/// The running thread wants to be traced by its parent.
///
/// # Errors
/// `EPERM` if it is.
pub fn begin_by_parent() -> Result<()> {
    let parent = table::process(current_process().parent()).ok_or(EPERM)?;
    begin(&parent, &current_thread(), false, || access::may_be_traced_by(&parent))
}

/// The running process traces another's thread, which is stopped if `stops` says so.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn attach(tid: Pid, stops: bool) -> Result<()> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let own = &current_process();
    if Arc::ptr_eq(own, &thread.process) || thread.process.pid == 1 {
        return Err(EPERM);
    }
    let may_be = || access::may_look_into(&thread.process, By::Real);
    may_be()?;
    begin(own, &thread, !stops, may_be)?;
    if stops {
        send::send_to_thread(&thread, SigInfo::kernel(SIGSTOP))?;
    }
    Ok(())
}

/// Runs `f` on a tracee of the running process that is at rest.
///
/// # Errors
/// `ESRCH` if it isn't one, and what `f` says. `f` must not sleep.
pub fn with_stopped<T>(
    tid: Pid,
    f: impl FnOnce(&Arc<Thread>, &mut Stop) -> Result<T>,
) -> Result<T> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let mut trace = thread.trace.lock();
    f(&thread, trace.stop_for(&current_process())?)
}

/// Whether a thread is traced by a process that may not trace all others: what it runs gets no more
/// rights than it had.
pub fn keeps_from_gains(thread: &Thread) -> bool {
    let tracer = thread.trace.lock().tracer.clone();
    tracer.is_some_and(|tracer| !tracer.cred().has(Caps::SYS_PTRACE))
}

/// How a tracee goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    On,
    /// One instruction.
    Step,
    /// Traced no more.
    Free,
}

/// Has a tracee at rest go on, with a signal or without.
///
/// # Errors
/// `ESRCH`.
pub fn resume(tid: Pid, how: Resume, signal: Option<Signal>) -> Result<()> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let own = &current_process();
    let mut tracees = own.tracees.lock();
    let mut trace = thread.trace.lock();
    let stop = trace.stop_for(own)?;
    if how == Resume::Step {
        stop.regs.begin_step();
    }
    stop.on = Some(GoOn(signal));
    trace.steps = how == Resume::Step;
    if how == Resume::Free {
        trace.tracer = None;
        tracees.take(&thread);
    }
    drop(trace);
    drop(tracees);
    thread.process.stop_queue.wake_all();
    Ok(())
}

/// The running thread comes to rest at a signal that it is about to act on, if it is traced.
/// Returns the signal that it acts on.
pub fn stop(thread: &Arc<Thread>, regs: &mut UserRegs, info: SigInfo) -> Option<SigInfo> {
    let tracer = {
        let mut trace = thread.trace.lock();
        let Some(tracer) = trace.tracer.clone() else { return Some(info) };
        if core::mem::take(&mut trace.steps) {
            regs.end_step();
        }
        regs.store_bases();
        trace.stop = Some(Stop { info, regs: regs.clone(), is_told: false, on: None });
        tracer
    };
    let child = Detail::Child {
        pid: thread.tid(),
        uid: thread.process.cred().uid,
        status: info.signal.number(),
        utime: 0,
        stime: 0,
    };
    let _ = send::send_to_process(
        &tracer,
        SigInfo { signal: SIGCHLD, code: code::CLD_TRAPPED, detail: child },
    );
    wait::tell(&tracer, &thread.process);
    drop(tracer);
    let over = || {
        let mut trace = thread.trace.lock();
        let is_over = thread.is_dying() || trace.stop.as_ref().is_none_or(|stop| stop.on.is_some());
        is_over.then(|| trace.stop.take())
    };
    let stop = deliver::killable(thread, || loop {
        if let Ok(stop) = thread.process.stop_queue.wait_intr(None, over) {
            return stop;
        }
        if let Some(stop) = over() {
            return stop;
        }
    })?;
    let GoOn(signal) = stop.on?;
    *regs = stop.regs;
    regs.load_bases();
    let signal = signal?;
    let same = signal == stop.info.signal;
    Some(if same {
        stop.info
    } else {
        SigInfo { signal, code: code::SI_USER, detail: Detail::None }
    })
}

/// The running thread has a new program, at which it stops for its tracer, unless that has seized
/// it.
pub fn execed(thread: &Arc<Thread>) {
    if thread.is_traced() && !thread.trace.lock().is_seized {
        let info = SigInfo { signal: SIGTRAP, code: code::SI_USER, detail: Detail::None };
        let _ = send::send_to_thread(thread, info);
    }
}

/// A thread is about to give its number back and to leave its process. Returns what keeps the
/// number until its tracer has heard of it.
pub fn leaves(thread: &Arc<Thread>) -> Option<Kept> {
    let process = &thread.process;
    let tracer = {
        let mut trace = thread.trace.lock();
        trace.is_gone = true;
        trace.tracer.clone()?
    };
    if thread.tid() != process.pid {
        return Some(Kept::new(thread.tid()));
    }
    let mut tracees = tracer.tracees.lock();
    let tracee = let_go(&mut tracees, thread)?;
    if process.parent() == tracer.pid {
        // The tracer is told as the parent.
        drop((tracees, tracee));
        return None;
    }
    tracees.leaders.insert(process.pid, tracee);
    process.leader_tracer.store(tracer.pid, Ordering::Relaxed);
    None
}

/// Takes a thread that is gone from its tracer; returns it if the tracer is to hear of it.
fn let_go(tracees: &mut Tracees, thread: &Arc<Thread>) -> Option<Tracee> {
    let mut trace = thread.trace.lock();
    // Or the tracer has just ended.
    trace.tracer.take()?;
    tracees.take(thread).filter(|_| trace.is_sure)
}

/// A thread that isn't its process's first has left, with what the process says at this moment: its
/// tracer hears of it by the number that was kept.
pub fn thread_gone(thread: &Arc<Thread>, status: ExitStatus, number: Option<Kept>) {
    let Some(tracer) = thread.trace.lock().tracer.clone() else { return };
    let mut tracees = tracer.tracees.lock();
    let Some(tracee) = let_go(&mut tracees, thread) else { return };
    let uid = thread.process.cred().uid;
    tracees.ended.insert(thread.tid(), Ended { tracee, uid, status, _number: number });
    drop(tracees);
    tell(&tracer, &thread.process, thread.tid(), status);
}

fn tell(tracer: &Arc<Process>, process: &Process, ended: Pid, status: ExitStatus) {
    let _ = send::send_to_process(tracer, exit::child_info(process, ended, SIGCHLD, status));
    wait::tell(tracer, process);
}

/// A process's last thread has left. Returns whether another process than its parent is to hear of
/// it first.
pub fn process_gone(process: &Arc<Process>, status: ExitStatus) -> bool {
    let Some(tracer) = tracer_of_gone_leader(process) else { return false };
    let mut tracees = tracer.tracees.lock();
    let Some(tracee) = tracees.take_leader(process).filter(|_| process.parent() != tracer.pid)
    else {
        return false;
    };
    table::with(|tree| tree.set_ended(process.pid, status, Collector::Tracer));
    let ended = Ended { tracee, uid: process.cred().uid, status, _number: None };
    tracees.ended.insert(process.pid, ended);
    drop(tracees);
    tell(&tracer, process, process.pid, status);
    true
}

/// Another thread is a process's first from now on.
pub fn leader_replaced(process: &Arc<Process>) {
    let Some(tracer) = tracer_of_gone_leader(process) else { return };
    let leader = tracer.tracees.lock().take_leader(process);
    drop(leader);
    wait::tell(&tracer, process);
}

fn tracer_of_gone_leader(process: &Process) -> Option<Arc<Process>> {
    match process.leader_tracer.swap(0, Ordering::Relaxed) {
        0 => None,
        tracer => table::process(tracer),
    }
}

/// A process ends: its tracees go on without it.
pub fn tracer_gone(process: &Process) {
    process.tracees.lock().is_over = true;
    while let Some(Tracee { thread, .. }) = release(process) {
        thread.process.stop_queue.wake_all();
        sched::work_done(LETTING_GO);
    }
    // All are there that there will be: a thread that is no tracee adds nothing.
    while let Some((_, leader)) = { process.tracees.lock().leaders.pop_first() } {
        drop(leader);
        sched::work_done(LETTING_GO);
    }
    while let Some((_, ended)) = { process.tracees.lock().ended.pop_first() } {
        ended.collected();
        sched::work_done(LETTING_GO);
    }
}

/// Lets one tracee go of a process that ends.
fn release(process: &Process) -> Option<Tracee> {
    let mut tracees = process.tracees.lock();
    let tracee = tracees.threads.pop()?;
    fault::shrink(&mut tracees.threads);
    let mut trace = tracee.thread.trace.lock();
    trace.tracer = None;
    if let Some(stop) = &mut trace.stop {
        // What the tracer has been told of is its own to give back.
        stop.on.get_or_insert(GoOn((!stop.is_told).then_some(stop.info.signal)));
    }
    drop(trace);
    Some(tracee)
}

/// What there is to say about the tracees that a wait asks for; `None` if there are none.
pub fn look(tracer: &Process, which: Which, options: Options) -> Option<Option<Report>> {
    if !ANYBODY.load(Ordering::Acquire) {
        return None;
    }
    let mut tracees = tracer.tracees.lock();
    let ended = match which {
        Which::Any => tracees.ended.first_key_value(),
        Which::Pid(pid) => tracees.ended.get_key_value(&pid),
        Which::Group(group) => {
            tracees.ended.iter().find(|(_, ended)| ended.process().pgid() == group)
        }
    };
    if let Some((&pid, ended @ &Ended { uid, status, .. })) = ended {
        if !options.contains(Options::EXITED) {
            return Some(None);
        }
        let usage =
            if ended.is_process() { wait::usage_of(ended.process()) } else { Usage::default() };
        if !options.contains(Options::NOWAIT) {
            let removed = tracees.ended.remove(&pid);
            if tracees.is_empty() {
                *tracees = Tracees::new();
            }
            drop(tracees);
            removed.into_iter().for_each(Ended::collected);
        }
        return Some(Some(Report { pid, uid, event: Event::Ended(status), usage }));
    }
    let threads = tracees.threads.iter().map(|tracee| &tracee.thread);
    let is_wanted = |thread: &&Arc<Thread>| match which {
        Which::Any => true,
        Which::Pid(pid) => thread.tid() == pid,
        Which::Group(group) => thread.process.pgid() == group,
    };
    let mut any = tracees
        .leaders
        .values()
        .map(|leader| &leader.thread)
        .any(|leader| is_wanted(&leader))
        .then_some(None);
    for thread in threads.filter(is_wanted) {
        any = Some(None);
        let uid = thread.process.cred().uid;
        let mut trace = thread.trace.lock();
        let Some(stop) = trace.stop.as_mut().filter(|stop| !stop.is_told && stop.on.is_none())
        else {
            continue;
        };
        stop.is_told = !options.contains(Options::NOWAIT);
        let event = Event::Changed(Change::Stopped(stop.info.signal));
        return Some(Some(Report { pid: thread.tid(), uid, event, usage: Usage::default() }));
    }
    any
}
