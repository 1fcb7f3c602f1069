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
//! Stops are at signals, at both ends of a system call, at events that the tracer has asked for by
//! options, at stops of the whole process, and where the tracer interrupts a thread that it has
//! seized. A tracee's children are traced from their first instruction on if an option says so.
//!
//! A process ends for its tracer before it ends for its parent: the tracer of its first thread
//! collects it, and then the parent is told. Until then, and while other threads go on, the number
//! is the process's own; one of another thread is kept from reuse.
//!
//! Invariants: R1: a thread has a tracer exactly while it is among that process's tracees. R2: a
//! `Stop` is there from when its thread comes to rest until it goes on; only while it doesn't go on
//! yet may the tracer use it. One that isn't judged yet (`is_sure`) has no thread come to rest. R3:
//! a thread whose number may be free begins to be traced no more. Locks: a tracer's `tracees`
//! before the table's and a process's group; a thread's `trace` after them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::access::{self, By};
use super::process::{ExitStatus, Process};
use super::signal::{
    code, deliver, send, Detail, SigInfo, SigSet, Signal, SIGCHLD, SIGKILL, SIGSTOP, SIGTRAP,
};
use super::table::{self, Collector, Kept, Pid};
use super::thread::Thread;
use super::usage::Usage;
use super::wait::{self, Event, Options, Report, Which};
use super::{current_process, current_thread, exit};
use crate::arch::UserRegs;
use crate::charge::Charge;
use crate::cred::caps::Caps;
use crate::errno::{Result, EINVAL, EIO, EPERM, ESRCH};
use crate::mem::fault::{self, Room};
use crate::sched;
use bitflags::bitflags;
use core::sync::atomic::{AtomicBool, Ordering};

/// What letting a tracee go costs, in bytes copied.
const LETTING_GO: usize = 8192;

bitflags! {
    /// What a tracer asks for, with the values of Linux.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Wishes: u32 {
        /// Stops at system calls differ from signals.
        const SYSGOOD = 1;
        const FORK = 2;
        const VFORK = 4;
        const CLONE = 8;
        const EXEC = 0x10;
        const VFORK_DONE = 0x20;
        const EXIT = 0x40;
        /// Stops at filters of system calls, of which there are none.
        const SECCOMP = 0x80;
        /// Tracees end with their tracer.
        const EXITKILL = 0x10_0000;
    }
}

/// Events, with the numbers of Linux; each but the last is the bit of its wish.
pub const EVENT_FORK: u32 = 1;
pub const EVENT_VFORK: u32 = 2;
pub const EVENT_CLONE: u32 = 3;
pub const EVENT_EXEC: u32 = 4;
pub const EVENT_VFORK_DONE: u32 = 5;
pub const EVENT_EXIT: u32 = 6;
const EVENT_STOP: u32 = 128;

/// Which end of a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Entry,
    Exit,
}

/// Why a tracee rests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Signal,
    Call(Side),
    Event(u32),
    /// The whole process is stopped.
    Group,
}

/// What a thread knows of its tracer.
#[derive(Default)]
pub struct Trace {
    tracer: Option<Arc<Process>>,
    /// It was judged, with the tracer in place, that the tracer may trace the thread.
    is_sure: bool,
    /// The credentials that began it may trace all processes.
    may_trace_all: bool,
    /// By PTRACE_SEIZE: a new program doesn't stop it.
    is_seized: bool,
    wishes: Wishes,
    stop: Option<Stop>,
    /// The tracer asked for one instruction.
    steps: bool,
    /// The tracer asked for a stop.
    is_asked: bool,
    /// The thread gives its number back (R3).
    is_gone: bool,
}

/// A thread at rest.
pub struct Stop {
    pub why: Why,
    /// What waits tell of it.
    pub code: u32,
    /// Details; none of a stop of the whole process that no tracer has seized a thread of.
    pub info: Option<SigInfo>,
    pub regs: UserRegs,
    /// Vector state, and whether the tracer has changed it.
    pub fpu: Vec<u8>,
    pub changes_fpu: bool,
    /// Blocked signals, if the tracer has changed them.
    pub mask: Option<SigSet>,
    /// What the last event says.
    pub message: u64,
    /// The thread stays at rest, and the tracer hears of the end of the process's stop.
    listens: bool,
    /// The process's stop when it came to rest.
    epoch: u32,
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
    /// The tracer, unless it is still being judged.
    fn judged(&self) -> Option<&Arc<Process>> {
        self.tracer.as_ref().filter(|_| self.is_sure)
    }

    fn is_traced_by(&self, tracer: &Arc<Process>) -> bool {
        self.judged().is_some_and(|own| Arc::ptr_eq(own, tracer))
    }

    /// The stop at which a thread is, if `tracer` may use it.
    fn stop_for(&mut self, tracer: &Arc<Process>) -> Result<&mut Stop> {
        let is_own = self.is_traced_by(tracer);
        let is_usable = |stop: &&mut Stop| is_own && stop.on.is_none() && !stop.listens;
        self.stop.as_mut().filter(is_usable).ok_or(ESRCH)
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

/// What a stop takes besides: vector state.
const STOP: usize = 4096;

/// What the tracer is charged for each: a place in the list, which may be twice as long as it has
/// to be, and those in two trees.
const TRACEE: usize =
    STOP + 2 * (size_of::<Tracee>() + size_of::<(Pid, Ended)>() + size_of::<Pid>());

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
        ANYBODY.load(Ordering::Acquire) && self.trace.lock().judged().is_some()
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
    wishes: Wishes,
    may_be: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let may_trace_all = current_process().cred().has(Caps::SYS_PTRACE);
    enter(tracer, thread, is_seized, wishes, may_trace_all)?;
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
    }
    outcome
}

fn enter(
    tracer: &Arc<Process>,
    thread: &Arc<Thread>,
    is_seized: bool,
    wishes: Wishes,
    may_trace_all: bool,
) -> Result<()> {
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
    trace.may_trace_all = may_trace_all;
    (trace.wishes, trace.is_asked, trace.steps) = (wishes, false, false);
    Ok(())
}

/// The running thread wants to be traced by its parent.
///
/// # Errors
/// `EPERM` if it is.
pub fn begin_by_parent() -> Result<()> {
    let parent = table::process(current_process().parent()).ok_or(EPERM)?;
    begin(&parent, &current_thread(), false, Wishes::empty(), || access::may_be_traced_by(&parent))
}

/// The running process traces another's thread, which is stopped if `stops` says so.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn attach(tid: Pid, stops: bool, wishes: Wishes) -> Result<()> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let own = &current_process();
    if Arc::ptr_eq(own, &thread.process) || thread.process.pid == 1 {
        return Err(EPERM);
    }
    let may_be = || access::may_look_into(&thread.process, By::Real);
    may_be()?;
    begin(own, &thread, !stops, wishes, may_be)?;
    if stops {
        send::send_to_thread(&thread, SigInfo::kernel(SIGSTOP))?;
    }
    // It may rest with its process.
    thread.process.stop_queue.wake_all();
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

/// Whether a thread is traced by rights that don't reach all processes: what it runs gets no more
/// rights than it had. What its tracer's process may do by now says nothing of that.
pub fn keeps_from_gains(thread: &Thread) -> bool {
    let trace = thread.trace.lock();
    trace.tracer.is_some() && !trace.may_trace_all
}

/// How a tracee goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    On,
    /// To the next end of a system call.
    Calls,
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
    if how == Resume::Calls {
        CALLS.store(true, Ordering::Release);
    }
    thread.traces_calls.store(how == Resume::Calls, Ordering::Release);
    if how == Resume::Free {
        trace.tracer = None;
        forget_watchpoints(&thread);
        tracees.take(&thread);
    }
    drop(trace);
    drop(tracees);
    thread.process.stop_queue.wake_all();
    Ok(())
}

/// Has a tracee that was seized stop, wherever it is.
///
/// # Errors
/// `ESRCH`; `EIO` for one that wasn't seized.
pub fn interrupt(tid: Pid) -> Result<()> {
    let thread = seized(tid, |trace| {
        trace.is_asked = true;
        Ok(())
    })?;
    // With the group locked, under which a thread looks for what there is to do.
    let group = thread.process.group.lock();
    thread.poke();
    drop(group);
    thread.process.stop_queue.wake_all();
    Ok(())
}

/// Leaves a tracee at rest in its process's stop, and has the end of that told.
///
/// # Errors
/// `ESRCH`; `EIO` for one that wasn't seized, or rests for something else.
pub fn listen(tid: Pid) -> Result<()> {
    let own = &current_process();
    let thread = seized(tid, |trace| {
        let stop = trace.stop_for(own)?;
        if !matches!(stop.why, Why::Group | Why::Event(EVENT_STOP)) {
            return Err(EIO);
        }
        stop.listens = true;
        Ok(())
    })?;
    thread.process.stop_queue.wake_all();
    Ok(())
}

/// Kills a tracee's process, whatever the tracee does.
///
/// # Errors
/// `ESRCH`.
pub fn kill(tid: Pid) -> Result<()> {
    let thread = own(tid, |_| Ok(()))?;
    let _ = send::send_to_process(&thread.process, SigInfo::kernel(SIGKILL));
    Ok(())
}

fn seized(tid: Pid, act: impl FnOnce(&mut Trace) -> Result<()>) -> Result<Arc<Thread>> {
    own(tid, |trace| if trace.is_seized { act(trace) } else { Err(EIO) })
}

/// A tracee of the running process, at rest or not.
fn own(tid: Pid, act: impl FnOnce(&mut Trace) -> Result<()>) -> Result<Arc<Thread>> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let mut trace = thread.trace.lock();
    if !trace.is_traced_by(&current_process()) {
        return Err(ESRCH);
    }
    act(&mut trace)?;
    drop(trace);
    Ok(thread)
}

/// Sets what the tracer of a thread at rest asks for.
///
/// # Errors
/// `ESRCH`.
pub fn set_wishes(tid: Pid, wishes: Wishes) -> Result<()> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    let mut trace = thread.trace.lock();
    trace.stop_for(&current_process())?;
    trace.wishes = wishes;
    Ok(())
}

/// A tracer's options.
///
/// # Errors
/// `EINVAL` for those that aren't there.
pub fn wishes(data: u64) -> Result<Wishes> {
    u32::try_from(data).ok().and_then(Wishes::from_bits).ok_or(EINVAL)
}

/// How a thread goes on after it came to rest for its tracer.
enum Goes {
    /// There was no tracer, or it has let go of the thread.
    Free,
    Dies,
    On(Option<SigInfo>),
}

impl Stop {
    /// The signal that the thread stopped at.
    fn signal(&self) -> Option<Signal> {
        self.info.filter(|_| self.why == Why::Signal).map(|info| info.signal)
    }
}

/// What waits tell of a stop, and its details where it isn't a signal.
fn code_of(why: Why, is_seized: bool, wishes: Wishes, stop: Option<Signal>) -> u32 {
    let trap = SIGTRAP.number() as u32;
    let stop = stop.map_or(trap, |signal| signal.number() as u32);
    match why {
        Why::Call(_) if wishes.contains(Wishes::SYSGOOD) => trap | 0x80,
        Why::Signal | Why::Call(_) => trap,
        Why::Event(EVENT_STOP) => stop | EVENT_STOP << 8,
        Why::Group if is_seized => stop | EVENT_STOP << 8,
        Why::Group => stop,
        Why::Event(event) => trap | event << 8,
    }
}

fn info_of(thread: &Thread, why: Why, is_seized: bool, code: u32) -> Option<SigInfo> {
    let uid = thread.process.cred().uid;
    let detail = Detail::Sender { pid: thread.tid(), uid, value: 0 };
    let is_told = why != Why::Group || is_seized;
    is_told.then_some(SigInfo { signal: SIGTRAP, code: code as i32, detail })
}

/// The running thread comes to rest until its tracer lets it go on, if it has one.
fn rest(
    thread: &Arc<Thread>,
    regs: &mut UserRegs,
    why: Why,
    info: Option<SigInfo>,
    message: u64,
) -> Goes {
    if !thread.is_traced() {
        return Goes::Free;
    }
    let mut fpu = Vec::new();
    sched::fpu_get(&mut fpu);
    let (epoch, stop) = {
        let group = thread.process.group.lock();
        (group.stop_epoch, group.stop)
    };
    let tracer = {
        let mut trace = thread.trace.lock();
        let Some(tracer) = trace.judged().cloned() else { return Goes::Free };
        if core::mem::take(&mut trace.steps) {
            regs.end_step();
        }
        trace.is_asked = false;
        regs.store_bases();
        let code = match info {
            Some(info) => info.signal.number() as u32,
            None => code_of(why, trace.is_seized, trace.wishes, stop),
        };
        let info = info.or_else(|| info_of(thread, why, trace.is_seized, code));
        let regs = regs.clone();
        trace.stop = Some(Stop {
            why,
            code,
            info,
            regs,
            fpu,
            changes_fpu: false,
            mask: None,
            message,
            listens: false,
            epoch,
            is_told: false,
            on: None,
        });
        tracer
    };
    tell_of_stop(&tracer, thread);
    drop(tracer);
    let Some(stop) = at_rest(thread) else { return Goes::Dies };
    let Some(GoOn(signal)) = stop.on else { return Goes::Dies };
    *regs = stop.regs;
    regs.load_bases();
    // The thread may not have left its CPU while its tracer set them.
    sched::current().watch.load();
    if stop.changes_fpu {
        sched::fpu_set(&stop.fpu);
    }
    if let Some(mask) = stop.mask {
        send::set_mask(mask);
    }
    if !thread.is_traced() && why == Why::Group {
        return Goes::Free;
    }
    Goes::On(signal.map(|signal| match stop.info {
        Some(info) if info.signal == signal && why == Why::Signal => info,
        _ => SigInfo { signal, code: code::SI_USER, detail: Detail::None },
    }))
}

/// Waits until the running thread, which has a stop, may go on, or is to end.
fn at_rest(thread: &Arc<Thread>) -> Option<Stop> {
    enum Found {
        Over(Option<Box<Stop>>),
        /// The process's stop has ended, or the tracer interrupts, and the tracer listens.
        News(Arc<Process>),
    }
    let look = || {
        let (epoch, stopped_by) = {
            let group = thread.process.group.lock();
            (group.stop_epoch, group.stop)
        };
        let mut trace = thread.trace.lock();
        if thread.is_dying() || trace.stop.as_ref().is_none_or(|stop| stop.on.is_some()) {
            return Some(Found::Over(trace.stop.take().map(Box::new)));
        }
        let (is_asked, is_seized) = (trace.is_asked, trace.is_seized);
        let tracer = trace.tracer.clone();
        let stop = trace.stop.as_mut().filter(|stop| stop.listens)?;
        if !is_asked && stop.epoch == epoch {
            return None;
        }
        let why = Why::Event(EVENT_STOP);
        let code = code_of(why, is_seized, Wishes::empty(), stopped_by);
        (stop.why, stop.code, stop.epoch) = (why, code, epoch);
        (stop.listens, stop.is_told) = (false, false);
        stop.info = info_of(thread, why, is_seized, code);
        trace.is_asked = false;
        tracer.map(Found::News)
    };
    deliver::killable(thread, || loop {
        let found = match thread.process.stop_queue.wait_intr(None, look) {
            Ok(found) => Some(found),
            Err(_) => look(),
        };
        match found {
            Some(Found::Over(stop)) => return stop.map(|stop| *stop),
            Some(Found::News(tracer)) => tell_of_stop(&tracer, thread),
            None => {}
        }
    })
}

/// Tells a tracer that the running thread rests.
fn tell_of_stop(tracer: &Arc<Process>, thread: &Thread) {
    let code = thread.trace.lock().stop.as_ref().map_or(0, |stop| stop.code);
    let (process, status) = (&thread.process, code as i32 & 0x7f);
    send::report_stop(tracer, process, thread.tid(), code::CLD_TRAPPED, status);
}

/// The running thread comes to rest at a signal that it is about to act on, if it is traced.
/// Returns the signal that it acts on.
pub fn stop(thread: &Arc<Thread>, regs: &mut UserRegs, info: SigInfo) -> Option<SigInfo> {
    match rest(thread, regs, Why::Signal, Some(info), 0) {
        Goes::Free => Some(info),
        Goes::Dies => None,
        Goes::On(signal) => signal,
    }
}

/// Whether the tracer of the running thread, which is on its way to its program, has asked it to
/// stop.
pub fn is_asked(thread: &Thread) -> bool {
    ANYBODY.load(Ordering::Acquire) && thread.trace.lock().is_asked
}

/// The stop that it has asked for.
pub fn asked(thread: &Arc<Thread>, regs: &mut UserRegs) {
    rest(thread, regs, Why::Event(EVENT_STOP), None, 0);
}

/// The running thread rests with its process, and its tracer hears of that. Returns whether the
/// tracer lets it go on though the process doesn't.
pub fn group_stop(thread: &Arc<Thread>, regs: &mut UserRegs) -> bool {
    matches!(rest(thread, regs, Why::Group, None, 0), Goes::On(_))
}

/// An event of the running thread's that its tracer may have asked for.
pub fn event(thread: &Arc<Thread>, regs: &mut UserRegs, event: u32, message: u64) {
    let is_wished = || thread.trace.lock().wishes.bits() & 1 << event != 0;
    if thread.is_traced() && is_wished() {
        rest(thread, regs, Why::Event(event), None, message);
    }
}

/// Whether any thread has been traced at its system calls.
static CALLS: AtomicBool = AtomicBool::new(false);

/// Whether the running thread is to stop at its system calls.
#[inline]
pub fn traces_calls() -> bool {
    CALLS.load(Ordering::Relaxed) && current_thread().traces_calls.load(Ordering::Acquire)
}

/// One end of a system call of the running thread's.
pub fn call(regs: &mut UserRegs, side: Side) {
    let thread = &current_thread();
    let message = if side == Side::Entry { 1 } else { 2 };
    if let Goes::On(Some(info)) = rest(thread, regs, Why::Call(side), None, message) {
        let _ = send::send_to_thread(thread, info);
    }
}

/// A thread has made another one, which doesn't run yet: it is traced as well if the tracer asks
/// for that event. Whether it is.
pub fn follow(parent: &Thread, child: &Arc<Thread>, event: u32) -> bool {
    if !parent.is_traced() {
        return false;
    }
    let (tracer, is_seized, wishes, may_trace_all) = {
        let trace = parent.trace.lock();
        let Some(tracer) = trace.judged().cloned() else { return false };
        (tracer, trace.is_seized, trace.wishes, trace.may_trace_all)
    };
    let is_wished = wishes.bits() & 1 << event != 0;
    if !is_wished || enter(&tracer, child, is_seized, wishes, may_trace_all).is_err() {
        return false;
    }
    // The child is what its parent is, which the tracer may trace.
    let mut trace = child.trace.lock();
    (trace.is_sure, trace.is_asked) = (true, is_seized);
    drop(trace);
    if !is_seized {
        let _ = send::send_to_thread(child, SigInfo::kernel(SIGSTOP));
    }
    true
}

/// The running thread, whose number was `tid`, has a new program: its tracer has asked for the
/// event, or the thread stops as at a signal, unless it was seized.
pub fn execed(thread: &Arc<Thread>, regs: &mut UserRegs, tid: Pid) {
    if !thread.is_traced() {
        return;
    }
    let (is_seized, wishes) = {
        let trace = thread.trace.lock();
        (trace.is_seized, trace.wishes)
    };
    if wishes.contains(Wishes::EXEC) {
        event(thread, regs, EVENT_EXEC, tid as u64);
    } else if !is_seized {
        let info = SigInfo { signal: SIGTRAP, code: code::SI_USER, detail: Detail::None };
        let _ = send::send_to_thread(thread, info);
    }
}

/// The running thread is about to end with a status.
pub fn exits(thread: &Arc<Thread>, status: ExitStatus) {
    if thread.is_traced() && !thread.is_dying() {
        event(thread, &mut UserRegs::current(), EVENT_EXIT, status.wait_word() as u64);
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
    while let Some((Tracee { thread, .. }, ends)) = release(process) {
        if ends {
            let _ = send::send_to_process(&thread.process, SigInfo::kernel(SIGKILL));
        }
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

/// Without a tracer watchpoints would end the program.
fn forget_watchpoints(thread: &Thread) {
    thread.task().into_iter().for_each(|task| task.watch.clear());
}

/// Lets one tracee go of a process that ends, and says whether it is to end, too.
fn release(process: &Process) -> Option<(Tracee, bool)> {
    let mut tracees = process.tracees.lock();
    let tracee = tracees.threads.pop()?;
    fault::shrink(&mut tracees.threads);
    let mut trace = tracee.thread.trace.lock();
    trace.tracer = None;
    tracee.thread.traces_calls.store(false, Ordering::Release);
    forget_watchpoints(&tracee.thread);
    let ends = trace.is_sure && trace.wishes.contains(Wishes::EXITKILL);
    if let Some(stop) = &mut trace.stop {
        // What the tracer has been told of is its own to give back.
        let signal = stop.signal().filter(|_| !stop.is_told);
        stop.on.get_or_insert(GoOn(signal));
    }
    drop(trace);
    Some((tracee, ends))
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
        Which::Process(pid, started) => {
            let ended = tracees.ended.get_key_value(&pid);
            ended.filter(|(_, ended)| ended.process().started == started)
        }
        Which::Group(group) => {
            tracees.ended.iter().find(|(_, ended)| ended.process().pgid() == group)
        }
    };
    let is_ended = ended.is_some();
    let asks = options.contains(Options::EXITED);
    if let Some((&pid, ended @ &Ended { uid, status, .. })) = ended.filter(|_| asks) {
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
        Which::Process(pid, started) => thread.tid() == pid && thread.process.started == started,
        Which::Group(group) => thread.process.pgid() == group,
    };
    let any =
        tracees.leaders.values().map(|leader| &leader.thread).any(|leader| is_wanted(&leader));
    let mut any = (any || is_ended).then_some(None);
    for thread in threads.filter(is_wanted) {
        let uid = thread.process.cred().uid;
        let mut trace = thread.trace.lock();
        if !trace.is_sure {
            continue;
        }
        any = Some(None);
        let Some(stop) = trace.stop.as_mut().filter(|stop| !stop.is_told && stop.on.is_none())
        else {
            continue;
        };
        stop.is_told = !options.contains(Options::NOWAIT);
        let event = Event::Traced(stop.code);
        return Some(Some(Report { pid: thread.tid(), uid, event, usage: Usage::default() }));
    }
    any
}
