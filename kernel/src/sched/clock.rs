//! Timers, slices and the bookkeeping of processor time.
//!
//! The alarm is armed for the next timer, or for the end of the current slice while a program runs; a CPU that only sleeps takes no
//! interrupt but for timers. A tick that is armed already is left alone by a switch: it looks at the slice when it comes.
//!
//! Processor time is exact in sum: every switch charges what has passed since the last. How it divides between program and kernel
//! is sampled: what a tick comes upon is charged with the time since the last charge, and what ends in a switch (a system call that
//! sleeps) goes to the kernel.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{others_ready, Task, Work};
use crate::arch::{clock as hardware, cpu};
use crate::sync::SpinLock;

/// Time in nanoseconds: an instant on the clock since boot, or a span.
pub type Nanos = u64;

/// How long a program runs while others wait.
const SLICE: Nanos = 10_000_000;

/// What an interrupt came upon.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A program.
    User,
    /// The last step back to a program: the interrupt had been waiting for the kernel to finish.
    KernelExit,
    /// The kernel, idle or at an interrupt window.
    Kernel,
}

/// Names a timer, to cancel it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId {
    deadline: Nanos,
    serial: u64,
}

enum Action {
    Wake(Arc<Task>),
    Call(Box<dyn FnOnce() + Send>),
}

struct Timers {
    pending: BTreeMap<TimerId, Action>,
    next_serial: u64,
}

static TIMERS: SpinLock<Timers> = SpinLock::new(Timers { pending: BTreeMap::new(), next_serial: 0 });

/// One CPU's times; only that CPU touches them.
struct Local {
    /// When the alarm goes off.
    armed: AtomicU64,
    /// Up to when the current task has been charged.
    charged: AtomicU64,
    /// When the current slice began.
    slice: AtomicU64,
}

static LOCAL: [Local; cpu::MAX_CPUS] = [const {
    Local { armed: AtomicU64::new(u64::MAX), charged: AtomicU64::new(0), slice: AtomicU64::new(0) }
}; cpu::MAX_CPUS];

#[inline]
fn local() -> &'static Local {
    &LOCAL[cpu::index()]
}

/// Nanoseconds since boot.
#[inline]
pub fn now() -> Nanos {
    hardware::now()
}

/// CLOCK_REALTIME.
pub fn wall() -> Nanos {
    hardware::wall()
}

pub(super) fn init() {
    local().charged.store(now(), Relaxed);
}

/// Calls `f` in interrupt context once `deadline` has passed. It takes no sleeping lock and doesn't sleep.
pub fn timer_at(deadline: Nanos, f: Box<dyn FnOnce() + Send>) -> TimerId {
    insert(deadline, Action::Call(f))
}

/// Wakes a task once `deadline` has passed.
pub fn wake_at(deadline: Nanos, task: &Arc<Task>) -> TimerId {
    insert(deadline, Action::Wake(task.clone()))
}

/// Makes sure that a timer doesn't go off any more; says whether it still would have.
pub fn timer_cancel(timer: TimerId) -> bool {
    let action = TIMERS.lock().pending.remove(&timer);
    action.is_some()
}

fn insert(deadline: Nanos, action: Action) -> TimerId {
    let mut timers = TIMERS.lock();
    let id = TimerId { deadline, serial: timers.next_serial };
    timers.next_serial += 1;
    timers.pending.insert(id, action);
    drop(timers);
    if deadline < local().armed.load(Relaxed) {
        arm(deadline, now());
    }
    id
}

#[inline]
fn arm(deadline: Nanos, now: Nanos) {
    local().armed.store(deadline, Relaxed);
    hardware::arm(deadline.saturating_sub(now));
}

/// The alarm has gone off.
pub fn timer_interrupt(origin: Origin) {
    let now = now();
    local().armed.store(u64::MAX, Relaxed);
    run_due(now);
    let task = super::current();
    let since = now - local().charged.swap(now, Relaxed);
    let mut next = TIMERS.lock().pending.first_key_value().map_or(u64::MAX, |(id, _)| id.deadline);
    if task.user().is_some() {
        match origin {
            Origin::User => task.charge_user(since),
            Origin::KernelExit | Origin::Kernel => task.charge_kernel(since),
        }
        next = next.min(now + SLICE);
        if now - local().slice.load(Relaxed) >= SLICE && others_ready() {
            task.add_work(Work::RESCHEDULE);
        }
    }
    if next != u64::MAX {
        arm(next, now);
    }
}

fn run_due(now: Nanos) {
    loop {
        let action = {
            let mut timers = TIMERS.lock();
            match timers.pending.first_entry() {
                Some(first) if first.key().deadline <= now => first.remove(),
                _ => return,
            }
        };
        match action {
            Action::Wake(task) => super::wake(&task),
            Action::Call(f) => f(),
        }
    }
}

/// Charges the task that is left, and makes sure of a tick while a program runs.
pub(super) fn charge_switch(from: &Task, to: &Task) {
    let now = now();
    let since = now - local().charged.swap(now, Relaxed);
    from.charge_kernel(since);
    local().slice.store(now, Relaxed);
    if to.user().is_some() && local().armed.load(Relaxed) > now + SLICE {
        arm(now + SLICE, now);
    }
}
