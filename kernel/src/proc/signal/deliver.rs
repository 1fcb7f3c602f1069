//! Acting on signals: what happens on the slow way back to user mode.
//!
//! The trap code calls [`return_to_user`] when the task asks for it. It takes signals one by one
//! until none is left that isn't blocked: ignores it, stops the process, ends it, or pushes a frame
//! that runs a handler. A system call that was cut short is wound back here so that it runs again,
//! or told `EINTR`.

use alloc::sync::Arc;

use super::{
    frame, send, DefaultAction, SigAction, SigInfo, SigSet, Signal, SIGSEGV, SIGSTOP, SIG_DFL,
    SIG_IGN,
};
use crate::arch::abi::calls;
use crate::arch::UserRegs;
use crate::errno::{
    Errno, EINTR, ERESTARTNOHAND, ERESTARTNOINTR, ERESTARTSYS, ERESTART_RESTARTBLOCK,
};
use crate::proc::process::{Change, ExitStatus, Group, Process};
use crate::proc::thread::Thread;
use crate::proc::{current_thread, exit, table, timer, trace};
use core::sync::atomic::Ordering;

/// What the thread has to do next.
enum Next {
    Nothing,
    Exit,
    Stop,
    /// This signal would stop the process, unless its group is orphaned.
    MayStop(Signal),
    Terminate(Signal),
    Handle(SigInfo, SigAction),
    /// Its tracer has a say first.
    Ask(SigInfo),
    /// Its tracer wants it to stop.
    Trap,
}

/// Does all that is to be done before the running thread goes back to user mode; may not return.
pub fn return_to_user(regs: &mut UserRegs) {
    let thread = &current_thread();
    start_up(thread, regs);
    if thread.signalled.load(Ordering::Acquire) {
        deliver_all(thread, regs);
    }
    restart_without_handler(regs);
    let saved = thread.saved_mask.lock().take();
    if let Some(mask) = saved {
        send::set_mask(mask);
    }
}

/// What a thread does before its first instruction.
fn start_up(thread: &Thread, regs: &mut UserRegs) {
    let address = thread.set_child_tid.swap(0, Ordering::Relaxed);
    if address != 0 {
        let _ = crate::user::put(address, &thread.tid());
    }
    if thread.is_init.swap(false, Ordering::Relaxed) {
        crate::proc::init::exec_first(regs);
    }
}

fn deliver_all(thread: &Arc<Thread>, regs: &mut UserRegs) {
    loop {
        let mut todo = next(thread);
        if let Next::Ask(info) = todo {
            let decided = trace::stop(thread, regs, info);
            let act = |info| act_on(thread, &mut thread.process.group.lock(), info);
            todo = match decided.and_then(act) {
                Some(todo) => todo,
                None => continue,
            };
        }
        match todo {
            Next::Nothing | Next::Ask(_) => return,
            Next::Exit => exit::exit_thread_dying(regs),
            Next::Trap => trace::asked(thread, regs),
            Next::Stop => rest(thread, regs),
            Next::MayStop(signal) => {
                if signal == SIGSTOP || !table::is_orphaned_group(thread.process.pgid()) {
                    thread.passes.store(0, Ordering::Relaxed);
                    begin_stop(&thread.process, signal);
                }
            }
            Next::Terminate(signal) => {
                trace_death(thread, regs, signal);
                exit::exit_thread_dying(regs);
            }
            Next::Handle(info, action) => handle(thread, regs, info, action),
        }
    }
}

/// Under `trace`, one line for a process that its own fault kills.
fn trace_death(thread: &Thread, regs: &UserRegs, signal: Signal) {
    if SigSet::FAULTS.has(signal) && crate::trace::TRACE.load(Ordering::Relaxed) {
        let fault = *thread.last_fault.lock();
        let (pid, comm) = (thread.process.pid, thread.comm());
        crate::control!(
            "trace process {pid} ({comm}) killed by signal {}: at {:#x}, stack {:#x}, address {:#x}, vector {}",
            signal.number(),
            regs.instruction_pointer(),
            regs.stack_pointer(),
            fault.address,
            fault.vector
        );
    }
}

/// Takes the next thing to do; clears `signalled` when there is nothing.
fn next(thread: &Thread) -> Next {
    let mut group = thread.process.group.lock();
    loop {
        if thread.is_dying() {
            return Next::Exit;
        }
        if must_rest(thread, &group) {
            return Next::Stop;
        }
        if trace::is_asked(thread) {
            return Next::Trap;
        }
        let wanted = SigSet(!thread.mask().0);
        let own = thread.pending.lock().take(wanted);
        let Some(mut info) = own.or_else(|| group.pending.take(wanted)) else {
            thread.signalled.store(false, Ordering::Release);
            return Next::Nothing;
        };
        timer::taken(&thread.process, &mut info);
        if thread.is_traced() {
            return Next::Ask(info);
        }
        if let Some(todo) = act_on(thread, &mut group, info) {
            return todo;
        }
    }
}

/// What a signal that was taken has the thread do; `None` for nothing.
fn act_on(thread: &Thread, group: &mut Group, info: SigInfo) -> Option<Next> {
    if thread.is_dying() {
        return Some(Next::Exit);
    }
    let action = group.actions.get(info.signal);
    match action.handler {
        SIG_IGN => None,
        SIG_DFL => match info.signal.default_action() {
            DefaultAction::Ignore | DefaultAction::Continue => None,
            DefaultAction::Stop => Some(Next::MayStop(info.signal)),
            DefaultAction::Terminate => {
                // Taken and effective at once: no thread sees the process without the one and the
                // other.
                send::kill_all(group, ExitStatus::Killed(info.signal));
                Some(Next::Terminate(info.signal))
            }
        },
        _ => {
            if action.flags & super::flag::RESETHAND != 0 {
                send::reset_action(group, info.signal);
            }
            Some(Next::Handle(info, action))
        }
    }
}

/// Whether the running thread has a reason to leave an interruptible sleep.
pub fn signal_pending() -> bool {
    let thread = &current_thread();
    if !thread.signalled.load(Ordering::Acquire) {
        return false;
    }
    if thread.is_dying() {
        return true;
    }
    if thread.killable.load(Ordering::Relaxed) {
        return false;
    }
    let group = thread.process.group.lock();
    must_rest(thread, &group) || trace::is_asked(thread) || has_unblocked(thread, &group)
}

/// Whether the thread is to rest with its process.
fn must_rest(thread: &Thread, group: &Group) -> bool {
    let passes = thread.passes.load(Ordering::Relaxed);
    group.stop.is_some() && passes != u64::from(group.stop_epoch) + 1
}

/// Whether the running thread has a signal to see to before it may make a child that the signal
/// would miss: its own, or one that any thread of the process may take. It then takes it on its way
/// back to user mode.
pub fn must_attend() -> bool {
    let thread = &current_thread();
    let group = thread.process.group.lock();
    let waits = thread.is_dying() || must_rest(thread, &group) || has_unblocked(thread, &group);
    if waits {
        thread.signalled.store(true, Ordering::Release);
    }
    waits
}

fn has_unblocked(thread: &Thread, group: &Group) -> bool {
    let pending = group.pending.set().with(thread.pending.lock().set());
    !pending.without(thread.mask()).is_empty()
}

/// Runs `sleep` so that only the end of the thread cuts it short, not any signal.
pub fn killable<T>(thread: &Thread, sleep: impl FnOnce() -> T) -> T {
    thread.killable.store(true, Ordering::Relaxed);
    let result = sleep();
    thread.killable.store(false, Ordering::Relaxed);
    result
}

/// Has every thread of the process come to rest.
fn begin_stop(process: &Process, signal: Signal) {
    let mut group = process.group.lock();
    if group.exiting.is_some() || group.stop.is_some() {
        return;
    }
    group.stop = Some(signal);
    group.stopped = 0;
    group.threads.iter().for_each(|thread| thread.poke());
}

/// Comes to rest until the process goes on or dies; the last thread to do so tells the parent.
fn rest(thread: &Arc<Thread>, regs: &mut UserRegs) {
    let process = &thread.process;
    let mut group = process.group.lock();
    let Some(signal) = group.stop else { return };
    group.stopped += 1;
    let epoch = group.stop_epoch;
    let last = group.stopped == group.threads.len();
    if last {
        *process.change.lock() = Some(Change::Stopped(signal));
    }
    drop(group);
    if last {
        send::report_change(process, Change::Stopped(signal));
    }
    let is_over = || process.group.lock().stop_epoch != epoch || thread.is_dying();
    loop {
        if trace::group_stop(thread, regs) {
            let mut group = process.group.lock();
            if group.stop.is_some() && group.stop_epoch == epoch {
                group.stopped -= 1;
                thread.passes.store(u64::from(epoch) + 1, Ordering::Relaxed);
            }
            return;
        }
        process.stop_queue.wait(|| (is_over() || thread.is_traced()).then_some(()));
        if is_over() {
            return;
        }
    }
}

/// Arranges for a handler to run; a frame that can't be written ends in SIGSEGV.
fn handle(thread: &Arc<Thread>, regs: &mut UserRegs, info: SigInfo, action: SigAction) {
    restart_with_handler(regs, action.flags & super::flag::RESTART != 0);
    let is_stepped = trace::ends_step(thread, regs);
    let before = thread.saved_mask.lock().take().unwrap_or(thread.mask());
    if frame::push(thread, regs, info, &action, before).is_err() {
        if info.signal == SIGSEGV {
            send::reset_action(&mut thread.process.group.lock(), SIGSEGV);
        }
        send::force(SigInfo::kernel(SIGSEGV));
        return;
    }
    let mut mask = thread.mask().with(SigSet(action.mask));
    if action.flags & super::flag::NODEFER == 0 {
        mask = mask.with(SigSet::of(&[info.signal]));
    }
    send::set_mask(mask);
    if is_stepped {
        trace::at_handler(thread, regs);
    }
}

/// The restart code that the interrupted call returned, if it was one.
fn restart_code(regs: &UserRegs) -> Option<Errno> {
    let errno = Errno((regs.result() as i64).checked_neg()?.try_into().ok()?);
    (regs.is_in_call() && errno.is_restart()).then_some(errno)
}

fn restart_with_handler(regs: &mut UserRegs, wants_restart: bool) {
    match restart_code(regs) {
        Some(ERESTARTNOINTR) => regs.call_again(),
        Some(ERESTARTSYS) if wants_restart => regs.call_again(),
        Some(_) => regs.set_result(-i64::from(EINTR.0) as u64),
        None => {}
    }
}

fn restart_without_handler(regs: &mut UserRegs) {
    match restart_code(regs) {
        Some(ERESTARTNOHAND | ERESTARTSYS | ERESTARTNOINTR) => regs.call_again(),
        Some(ERESTART_RESTARTBLOCK) => {
            regs.set_call_number(u64::from(calls::__NR_restart_syscall));
            regs.call_again();
        }
        _ => {}
    }
}
