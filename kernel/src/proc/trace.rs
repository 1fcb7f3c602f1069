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
//! The tracer is a thread: only this one may make requests, while each thread of its process may
//! wait for the tracee. At its end a tracee may rest once more, and then only its tracer lets it go
//! on: unless that is at its own end, or memory is wanted.
//!
//! Invariants: R1: a thread has a tracer exactly while it is among the tracees of the tracer's
//! process, under the tracer. R2: a
//! `Stop` is there from when its thread comes to rest until it goes on; only while it doesn't go on
//! yet may the tracer use it. One that isn't judged yet (`is_sure`) has no thread come to rest. R3:
//! a thread whose number may be free begins to be traced no more. R4: nor is it traced by a thread
//! that has let go of its tracees (`traces_no_more`, which changes with the process's `tracees`
//! locked). Locks: a tracer's `tracees` before the table's and a process's group; a thread's
//! `trace` after them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::access::{self, By};
use super::process::{ExitStatus, Process};
use super::signal::{
    code, deliver, send, Detail, Pending, SigInfo, SigSet, Signal, SIGCHLD, SIGKILL, SIGSTOP,
    SIGTRAP,
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
        /// Filters of system calls let everything pass.
        const SUSPEND_SECCOMP = 0x20_0000;
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

bitflags! {
    /// What a tracer has to do with a thread's system calls.
    #[derive(Clone, Copy, PartialEq, Eq, Default)]
    pub struct AtCalls: u32 {
        /// The thread stops at both ends.
        const STOPS = 1;
        /// The thread stops where it enters, and the call isn't made.
        const EMULATES = 2;
        /// The thread stops behind the call, as after any instruction.
        const STEPS = 4;
    }
}

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
    /// A step has come to a signal's handler.
    Handler,
}

/// What a thread knows of its tracer.
#[derive(Default)]
pub struct Trace {
    tracer: Option<Arc<Thread>>,
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
    /// The flag that has the instruction trap is not the program's own.
    forces_trap: bool,
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
    /// Details, a `siginfo_t` which the tracer may have written; none of a stop of the whole
    /// process that no tracer has seized a thread of.
    pub info: Option<[u8; 128]>,
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
    /// The tracer asked for another stop while it listened.
    is_asked: bool,
    /// The process's stop when it came to rest.
    epoch: u32,
    is_told: bool,
    /// What the thread goes on with.
    on: Option<GoOn>,
}

#[derive(Clone, Copy)]
struct GoOn(Option<Signal>);

/// A thread in the order of tracees: of tracer, then of tracee.
type Key = usize;

fn key(thread: &Arc<Thread>) -> Key {
    Arc::as_ptr(thread) as usize
}

/// The tracees of a process.
#[derive(Default)]
pub struct Tracees {
    threads: BTreeMap<(Key, Key), Tracee>,
    /// First threads that have gone and whose processes go on and aren't its children, by process.
    leaders: BTreeMap<Pid, Tracee>,
    /// Tracees that ended and aren't the process's children, until it waits for them. They count as
    /// their users' (`Counted::Tasks`) and among all threads until then.
    ended: BTreeMap<Pid, Ended>,
}

impl Trace {
    /// The tracer, unless it is still being judged.
    fn judged(&self) -> Option<&Arc<Thread>> {
        self.tracer.as_ref().filter(|_| self.is_sure)
    }

    fn notes_continue(&mut self) -> bool {
        let is_told = self.is_seized && self.judged().is_some();
        self.is_asked |= is_told;
        is_told
    }

    fn is_traced_by(&self, tracer: &Arc<Thread>) -> bool {
        self.judged().is_some_and(|own| Arc::ptr_eq(own, tracer))
    }

    /// The stop at which a thread is, if `tracer` may use it.
    fn stop_for(&mut self, tracer: &Arc<Thread>) -> Result<&mut Stop> {
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

/// What the tracer is charged for each: its places in three trees, whose nodes may be half empty.
const TRACEE: usize = STOP
    + 2 * (size_of::<((Key, Key), Tracee)>()
        + size_of::<(Pid, Ended)>()
        + size_of::<(Pid, Tracee)>());

impl Tracees {
    pub const fn new() -> Tracees {
        Tracees { threads: BTreeMap::new(), leaders: BTreeMap::new(), ended: BTreeMap::new() }
    }

    fn take(&mut self, tracer: &Arc<Thread>, thread: &Arc<Thread>) -> Option<Tracee> {
        self.threads.remove(&(key(tracer), key(thread)))
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
        self.trace.lock().tracer.as_ref().map_or(0, |tracer| tracer.tid())
    }

    fn set_at_calls(&self, what: AtCalls) {
        if !what.is_empty() {
            CALLS.store(true, Ordering::Release);
        }
        self.traces_calls.store(what.bits(), Ordering::Release);
    }
}

/// Makes a thread a tracee (R1), if `may_be` allows it; that is asked with the tracer in place,
/// since an exec that sees no tracer may give the thread's process more rights than it had.
fn begin(
    tracer: &Arc<Thread>,
    thread: &Arc<Thread>,
    is_seized: bool,
    wishes: Wishes,
    may_be: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let may_trace_all = current_process().cred().has(Caps::SYS_PTRACE);
    enter(tracer, thread, is_seized, wishes, may_trace_all)?;
    let outcome = may_be();
    let mut tracees = tracer.process.tracees.lock();
    let mut trace = thread.trace.lock();
    let is_there = trace.tracer.as_ref().is_some_and(|own| Arc::ptr_eq(own, tracer));
    if outcome.is_ok() {
        trace.is_sure = is_there;
        return if is_there { Ok(()) } else { Err(ESRCH) };
    }
    if is_there {
        trace.tracer = None;
        tracees.take(tracer, thread);
    }
    outcome
}

fn enter(
    tracer: &Arc<Thread>,
    thread: &Arc<Thread>,
    is_seized: bool,
    wishes: Wishes,
    may_trace_all: bool,
) -> Result<()> {
    let charge = Charge::to(tracer.process.account(), TRACEE).map_err(|_| EPERM)?;
    let mut tracees = tracer.process.tracees.lock();
    let mut trace = thread.trace.lock();
    let is_over = tracer.traces_no_more.load(Ordering::Relaxed);
    if trace.tracer.is_some() || trace.is_gone || thread.is_dying() || is_over {
        return Err(EPERM);
    }
    ANYBODY.store(true, Ordering::Release);
    let tracee = Tracee { thread: thread.clone(), _charge: charge };
    tracees.threads.insert((key(tracer), key(thread)), tracee);
    trace.tracer = Some(tracer.clone());
    (trace.is_sure, trace.is_seized) = (false, is_seized);
    trace.may_trace_all = may_trace_all;
    (trace.wishes, trace.is_asked, trace.steps) = (wishes, false, false);
    Ok(())
}

/// The running thread wants to be traced by its parent: the thread that made its process, if it is
/// there still.
///
/// # Errors
/// `EPERM` if it is.
pub fn begin_by_parent() -> Result<()> {
    let own = current_process();
    let parent = table::process(own.parent()).ok_or(EPERM)?;
    let is_parents = |thread: &Arc<Thread>| Arc::ptr_eq(&thread.process, &parent);
    let maker = table::thread(own.made_by.load(Ordering::Relaxed)).filter(is_parents);
    let tracer = maker.or_else(|| parent.leader()).ok_or(EPERM)?;
    begin(&tracer, &current_thread(), false, Wishes::empty(), || access::may_be_traced_by(&parent))
}

/// The running process traces another's thread, which is stopped if `stops` says so.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn attach(tid: Pid, stops: bool, wishes: Wishes) -> Result<()> {
    let thread = find(tid)?;
    let own = &current_thread();
    if Arc::ptr_eq(&own.process, &thread.process) || thread.process.pid == 1 {
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

/// A thread by its number, whether it is traced or not.
///
/// # Errors
/// `ESRCH`.
pub fn find(tid: Pid) -> Result<Arc<Thread>> {
    table::thread(tid).ok_or(ESRCH)
}

/// Runs `f` on a tracee of the running thread that is at rest.
///
/// # Errors
/// `ESRCH` if it isn't one, and what `f` says. `f` must not sleep.
pub fn with_stopped<T>(
    tid: Pid,
    f: impl FnOnce(&Arc<Thread>, &mut Stop) -> Result<T>,
) -> Result<T> {
    let thread = find(tid)?;
    let mut trace = thread.trace.lock();
    f(&thread, trace.stop_for(&current_thread())?)
}

/// What `PTRACE_PEEKSIGINFO` looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    Process,
    Thread,
}

/// The details of the signal at a place in one of the queues of a tracee at rest, as they came.
///
/// # Errors
/// `ESRCH`.
pub fn queued(tid: Pid, queue: Queue, at: usize) -> Result<Option<SigInfo>> {
    let thread = with_stopped(tid, |thread, _| Ok(thread.clone()))?;
    let found = |pending: &Pending| pending.queued(at);
    Ok(match queue {
        Queue::Process => found(&thread.process.group.lock().pending),
        Queue::Thread => found(&thread.pending.lock()),
    })
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
    /// To the next system call, which isn't made.
    Emulate,
    /// One instruction.
    Step,
    /// The same, or to a system call that isn't made.
    EmulatedStep,
    /// To the next jump.
    Block,
    /// Traced no more.
    Free,
}

/// Has a tracee at rest go on, with a signal or without.
///
/// # Errors
/// `ESRCH`.
pub fn resume(tid: Pid, how: Resume, signal: Option<Signal>) -> Result<()> {
    let thread = find(tid)?;
    let own = &current_thread();
    let mut tracees = own.process.tracees.lock();
    let mut trace = thread.trace.lock();
    let stop = trace.stop_for(own)?;
    let at_calls = match how {
        Resume::On | Resume::Free => AtCalls::empty(),
        Resume::Calls => AtCalls::STOPS,
        Resume::Emulate => AtCalls::EMULATES,
        Resume::Step | Resume::Block => AtCalls::STEPS,
        Resume::EmulatedStep => AtCalls::STEPS | AtCalls::EMULATES,
    };
    let steps = at_calls.contains(AtCalls::STEPS);
    let forces_trap = steps && stop.regs.begin_step();
    stop.on = Some(GoOn(signal));
    (trace.steps, trace.forces_trap) = (steps, forces_trap);
    thread.set_at_calls(at_calls);
    thread.task().into_iter().for_each(|task| task.watch.set_block(how == Resume::Block));
    let tracee = (how == Resume::Free).then(|| {
        trace.tracer = None;
        tracees.take(own, &thread)
    });
    drop(trace);
    drop(tracees);
    match tracee {
        Some(_) => stop_with_process(&thread),
        None => thread.process.stop_queue.wake_all(),
    }
    Ok(())
}

/// A thread without a tracer goes on, or stops if its process does.
fn stop_with_process(thread: &Thread) {
    thread.passes.store(0, Ordering::Relaxed);
    // As in `interrupt`.
    let group = thread.process.group.lock();
    thread.poke();
    drop(group);
    thread.process.stop_queue.wake_all();
}

/// SIGCONT has been sent to a thread's process, which is locked: the tracer hears of it if it has
/// seized the thread.
pub fn continues(thread: &Thread) {
    if ANYBODY.load(Ordering::Acquire) && thread.trace.lock().notes_continue() {
        thread.poke();
    }
}

/// Whether a process's first thread is traced by a thread of its parent's, which hears of its stops
/// as its tracer alone.
pub fn is_traced_by_parent(process: &Process) -> bool {
    let by_parent = |thread: Arc<Thread>| {
        let trace = thread.trace.lock();
        trace.judged().is_some_and(|tracer| tracer.process.pid == process.parent())
    };
    ANYBODY.load(Ordering::Acquire) && process.leader().is_some_and(by_parent)
}

/// Has a tracee that was seized stop, wherever it is.
///
/// # Errors
/// `ESRCH`; `EIO` for one that wasn't seized.
pub fn interrupt(tid: Pid) -> Result<()> {
    let thread = seized(tid, |trace| {
        trace.is_asked = true;
        if let Some(stop) = trace.stop.as_mut().filter(|stop| stop.listens) {
            stop.is_asked = true;
        }
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
    let own = &current_thread();
    let thread = seized(tid, |trace| {
        let stop = trace.stop_for(own)?;
        // What the details say, which the tracer may have changed, as on Linux.
        let is_stop = |info: [u8; 128]| info[8..12] == [info[8], EVENT_STOP as u8, 0, 0];
        if !stop.info.is_some_and(is_stop) {
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
    let thread = find(tid)?;
    let mut trace = thread.trace.lock();
    if !trace.is_traced_by(&current_thread()) {
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
    let thread = find(tid)?;
    let mut trace = thread.trace.lock();
    trace.stop_for(&current_thread())?;
    trace.wishes = wishes;
    Ok(())
}

/// A tracer's options.
///
/// # Errors
/// `EINVAL` for those that aren't there; `EPERM` for those that ask for a capability.
pub fn wishes(data: u64) -> Result<Wishes> {
    let wishes = u32::try_from(data).ok().and_then(Wishes::from_bits).ok_or(EINVAL)?;
    if wishes.contains(Wishes::SUSPEND_SECCOMP) && !current_process().cred().has(Caps::SYS_ADMIN) {
        return Err(EPERM);
    }
    Ok(wishes)
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
        Signal::new(self.code as i32).ok().filter(|_| self.why == Why::Signal)
    }
}

/// What waits tell of a stop, and its details where it isn't a signal.
fn code_of(why: Why, is_seized: bool, wishes: Wishes, stop: Option<Signal>) -> u32 {
    let trap = SIGTRAP.number() as u32;
    let stop = stop.map_or(trap, |signal| signal.number() as u32);
    match why {
        Why::Call(_) if wishes.contains(Wishes::SYSGOOD) => trap | 0x80,
        Why::Signal | Why::Call(_) | Why::Handler => trap,
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
    let signal = match why {
        Why::Group | Why::Event(EVENT_STOP) => Signal::new(code as i32 & 0x7f).unwrap_or(SIGTRAP),
        _ => SIGTRAP,
    };
    is_told.then_some(SigInfo { signal, code: code as i32, detail })
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
        if core::mem::take(&mut trace.steps) && core::mem::take(&mut trace.forces_trap) {
            regs.end_step();
        }
        trace.is_asked = false;
        regs.store_bases();
        let code = match info {
            Some(info) => info.signal.number() as u32,
            None => code_of(why, trace.is_seized, trace.wishes, stop),
        };
        let info = info.or_else(|| info_of(thread, why, trace.is_seized, code));
        let info = info.map(SigInfo::to_bytes);
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
            is_asked: false,
            epoch,
            is_told: false,
            on: None,
        });
        tracer
    };
    tell_of_stop(&tracer.process, thread);
    let tracer = (tracer.tid(), tracer.process.cred().uid);
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
        // The thread has no other to go back to.
        *thread.saved_mask.lock() = None;
        send::set_mask(mask);
    }
    if !thread.is_traced() && why == Why::Group {
        return Goes::Free;
    }
    let info = stop.info.and_then(|bytes| SigInfo::from_bytes(&bytes).ok());
    Goes::On(signal.map(|signal| match info {
        Some(info) if info.signal == signal && why == Why::Signal => info,
        _ if why == Why::Signal => {
            let detail = Detail::Sender { pid: tracer.0, uid: tracer.1, value: 0 };
            SigInfo { signal, code: code::SI_USER, detail }
        }
        _ => SigInfo::kernel(signal),
    }))
}

/// Waits until the running thread, which has a stop, may go on, or is to end.
fn at_rest(thread: &Arc<Thread>) -> Option<Stop> {
    enum Found {
        Over(Option<Box<Stop>>),
        /// The process's stop has ended, or the tracer interrupts, and the tracer listens.
        News(Arc<Thread>),
    }
    let at_end = |stop: &Stop| stop.why == Why::Event(EVENT_EXIT);
    let was_dying = thread.is_dying() && thread.trace.lock().stop.as_ref().is_some_and(at_end);
    let look = || {
        let (epoch, stopped_by) = {
            let group = thread.process.group.lock();
            (group.stop_epoch, group.stop)
        };
        let mut trace = thread.trace.lock();
        let must_go = if was_dying { may_not_rest(thread, &trace) } else { thread.is_dying() };
        if must_go || trace.stop.as_ref().is_none_or(|stop| stop.on.is_some()) {
            return Some(Found::Over(trace.stop.take().map(Box::new)));
        }
        let is_seized = trace.is_seized;
        let tracer = trace.tracer.clone();
        let stop = trace.stop.as_mut().filter(|stop| stop.listens)?;
        if !stop.is_asked && stop.epoch == epoch {
            return None;
        }
        let why = Why::Event(EVENT_STOP);
        let code = code_of(why, is_seized, Wishes::empty(), stopped_by);
        (stop.why, stop.code, stop.epoch) = (why, code, epoch);
        (stop.listens, stop.is_asked, stop.is_told) = (false, false, false);
        stop.info = info_of(thread, why, is_seized, code).map(SigInfo::to_bytes);
        trace.is_asked = false;
        tracer.map(Found::News)
    };
    if was_dying {
        return match thread.process.stop_queue.wait(look) {
            Found::Over(stop) => stop.map(|stop| *stop),
            Found::News(_) => None,
        };
    }
    deliver::killable(thread, || loop {
        let found = match thread.process.stop_queue.wait_intr(None, look) {
            Ok(found) => Some(found),
            Err(_) => look(),
        };
        match found {
            Some(Found::Over(stop)) => return stop.map(|stop| *stop),
            Some(Found::News(tracer)) => tell_of_stop(&tracer.process, thread),
            None => {}
        }
    })
}

/// Tells a tracer that the running thread rests.
fn tell_of_stop(tracer: &Arc<Process>, thread: &Thread) {
    let (why, code) = {
        let trace = thread.trace.lock();
        let Some(stop) = trace.stop.as_ref() else { return };
        (stop.why, stop.code)
    };
    let (process, status) = (&thread.process, code as i32 & 0x7f);
    let is_group = matches!(why, Why::Group | Why::Event(EVENT_STOP));
    let kind = if is_group { code::CLD_STOPPED } else { code::CLD_TRAPPED };
    send::report_stop(tracer, process, thread.tid(), kind, status);
}

/// Whether a thread whose end has begun is to go on though its tracer hasn't let it: threads that
/// trace each other would wait for good, and memory would.
fn may_not_rest(thread: &Thread, trace: &Trace) -> bool {
    let tracers_end = trace.tracer.as_ref().is_none_or(|tracer| tracer.is_dying());
    tracers_end || thread.process.must_go.load(Ordering::Acquire)
}

/// Memory is wanted that a process has, whose end has begun.
pub fn hurry(process: &Process) {
    process.must_go.store(true, Ordering::Release);
    process.stop_queue.wake_all();
}

/// The running thread comes to rest at a signal that it is about to act on, if it is traced.
/// Returns the signal that it acts on.
pub fn stop(thread: &Arc<Thread>, regs: &mut UserRegs, info: SigInfo) -> Option<SigInfo> {
    match rest(thread, regs, Why::Signal, Some(info), 0) {
        Goes::Free => Some(info),
        Goes::Dies => None,
        // The tracer may have blocked it.
        Goes::On(Some(info)) if thread.mask().has(info.signal) => {
            let _ = send::send_to_thread(thread, info);
            None
        }
        Goes::On(signal) => signal,
    }
}

/// The running thread is about to enter a handler: whether its tracer has it make one step, which
/// ends here.
pub fn ends_step(thread: &Thread, regs: &mut UserRegs) -> bool {
    if !thread.is_traced() {
        return false;
    }
    let mut trace = thread.trace.lock();
    if trace.steps && core::mem::take(&mut trace.forces_trap) {
        regs.end_step();
    }
    trace.steps
}

/// The step has come to the handler.
pub fn at_handler(thread: &Arc<Thread>, regs: &mut UserRegs) {
    rest(thread, regs, Why::Handler, None, 0);
}

/// Whether the tracer of the running thread, which is on its way to its program, has asked it to
/// stop.
pub fn is_asked(thread: &Thread) -> bool {
    let asks = || {
        let trace = thread.trace.lock();
        trace.is_asked && trace.judged().is_some()
    };
    ANYBODY.load(Ordering::Acquire) && asks()
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
        regs.set_result(NO_RESULT);
        rest(thread, regs, Why::Event(event), None, message);
    }
}

/// What a tracer sees as a call's result while there is none: ENOSYS.
pub const NO_RESULT: u64 = -(crate::errno::ENOSYS.0 as i64) as u64;

/// The registers of the running thread, which is in a call that doesn't return.
pub fn unfinished_call() -> UserRegs {
    let mut regs = UserRegs::current();
    regs.set_result(NO_RESULT);
    regs
}

/// Whether any thread has been traced at its system calls.
static CALLS: AtomicBool = AtomicBool::new(false);

/// What the tracer of the running thread has to do with its system calls.
#[inline]
pub fn at_calls() -> AtCalls {
    if !CALLS.load(Ordering::Relaxed) {
        return AtCalls::empty();
    }
    AtCalls::from_bits_retain(current_thread().traces_calls.load(Ordering::Acquire))
}

/// One end of a system call of the running thread's.
pub fn call(regs: &mut UserRegs, side: Side) {
    let thread = &current_thread();
    let message = if side == Side::Entry { 1 } else { 2 };
    if let Goes::On(Some(info)) = rest(thread, regs, Why::Call(side), None, message) {
        let _ = send::send_to_thread(thread, info);
    }
}

/// Whether a new thread is to be traced by its maker's tracer, whatever that wishes
/// (`CLONE_PTRACE`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    No,
    Yes,
}

/// A thread has made another one, which doesn't run yet: it is traced as well if the tracer asks
/// for that event. Whether the tracer does.
pub fn follow(parent: &Thread, child: &Arc<Thread>, event: Option<u32>, asks: Asks) -> bool {
    if !parent.is_traced() || event.is_none() && asks == Asks::No {
        return false;
    }
    let (tracer, is_seized, wishes, may_trace_all) = {
        let trace = parent.trace.lock();
        let Some(tracer) = trace.judged().cloned() else { return false };
        (tracer, trace.is_seized, trace.wishes, trace.may_trace_all)
    };
    let is_wished = event.is_some_and(|event| wishes.bits() & 1 << event != 0);
    let follows = is_wished || asks == Asks::Yes;
    if !follows || enter(&tracer, child, is_seized, wishes, may_trace_all).is_err() {
        return false;
    }
    // The child is what its parent is, which the tracer may trace.
    let mut trace = child.trace.lock();
    (trace.is_sure, trace.is_asked) = (true, is_seized);
    drop(trace);
    if !is_seized {
        let info = SigInfo { signal: SIGSTOP, code: code::SI_USER, detail: Detail::None };
        let _ = send::send_to_thread(child, info);
    }
    is_wished
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
        let info = SigInfo { signal: SIGTRAP, code: code::SI_USER, detail: send::sender(0) };
        let _ = send::send_to_thread(thread, info);
    }
}

/// The running thread is about to end with a status.
pub fn exits(thread: &Arc<Thread>, regs: &mut UserRegs, status: ExitStatus) {
    let is_wished = || thread.trace.lock().wishes.contains(Wishes::EXIT);
    if thread.is_traced() && is_wished() {
        rest(thread, regs, Why::Event(EVENT_EXIT), None, status.wait_word() as u64);
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
    let tracer = &tracer.process;
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
    let tracer = trace.tracer.take()?;
    tracees.take(&tracer, thread).filter(|_| trace.is_sure)
}

/// A thread that isn't its process's first has left, with what the process says at this moment: its
/// tracer hears of it by the number that was kept.
pub fn thread_gone(thread: &Arc<Thread>, status: ExitStatus, number: Option<Kept>) {
    let Some(tracer) = thread.trace.lock().tracer.clone() else { return };
    let tracer = &tracer.process;
    let mut tracees = tracer.tracees.lock();
    let Some(tracee) = let_go(&mut tracees, thread) else { return };
    let uid = thread.process.cred().uid;
    tracees.ended.insert(thread.tid(), Ended { tracee, uid, status, _number: number });
    drop(tracees);
    tell(tracer, &thread.process, thread.tid(), status);
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

/// A thread ends: its tracees go on without it.
pub fn tracer_gone(tracer: &Arc<Thread>) {
    let process = &tracer.process;
    let has_any = {
        let tracees = process.tracees.lock();
        tracer.traces_no_more.store(true, Ordering::Relaxed);
        !tracees.threads.is_empty()
    };
    while let Some((Tracee { thread, .. }, ends)) = has_any.then(|| release(tracer)).flatten() {
        if ends {
            let _ = send::send_to_process(&thread.process, SigInfo::kernel(SIGKILL));
        }
        stop_with_process(&thread);
        sched::work_done(LETTING_GO);
    }
}

/// A process ends, whose threads have let go of their tracees.
pub fn last_tracer_gone(process: &Process) {
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

/// Lets one tracee go of a thread that ends, and says whether it is to end, too.
fn release(tracer: &Arc<Thread>) -> Option<(Tracee, bool)> {
    let mut tracees = tracer.process.tracees.lock();
    let own = (key(tracer), 0)..=(key(tracer), Key::MAX);
    let first = *tracees.threads.range(own).next()?.0;
    let tracee = tracees.threads.remove(&first)?;
    let mut trace = tracee.thread.trace.lock();
    let before = trace.tracer.take();
    trace.is_asked = false;
    tracee.thread.set_at_calls(AtCalls::empty());
    let ends = trace.is_sure && trace.wishes.contains(Wishes::EXITKILL);
    if let Some(stop) = &mut trace.stop {
        // What the tracer has been told of is its own to give back.
        let signal = stop.signal().filter(|_| !stop.is_told);
        stop.on.get_or_insert(GoOn(signal));
    }
    drop((trace, tracees));
    drop(before);
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
    let is_any = !options.contains(Options::NOTHREAD);
    let own = key(&current_thread());
    let range = if is_any { (0, 0)..=(Key::MAX, Key::MAX) } else { (own, 0)..=(own, Key::MAX) };
    let threads = tracees.threads.range(range).map(|(_, tracee)| &tracee.thread);
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
