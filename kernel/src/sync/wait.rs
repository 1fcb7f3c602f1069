//! Sleeping until something happens.
//!
//! A waiter enters the queue, announces that it is about to sleep, and then looks at its condition once more: a wake-up that comes
//! after the look finds the task in the queue and takes the announcement back, so `sched::block` returns at once. No wake-up is lost,
//! and wake-ups without cause are harmless since the condition decides.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use super::word::{AtomicBool, Ordering::Relaxed};
use super::SpinLock;
use crate::sched::{self, Nanos, Task};

/// Why a sleep ended before its condition came true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// A signal is pending.
    Signal,
    /// The deadline has passed.
    Timeout,
}

/// Threads that wait for the same thing.
pub struct WaitQueue {
    waiters: SpinLock<VecDeque<Arc<Task>>>,
    /// Whether there are any. Changes with the waiters locked.
    is_any: AtomicBool,
}

impl Default for WaitQueue {
    fn default() -> Self {
        WaitQueue::new()
    }
}

/// Room for waiters that a queue without any keeps.
const KEPT: usize = 4;

/// Whether a signal ends a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signals {
    Ignored,
    Heeded,
}

impl WaitQueue {
    /// No waiters.
    pub const fn new() -> WaitQueue {
        WaitQueue { waiters: SpinLock::new(VecDeque::new()), is_any: AtomicBool::new(false) }
    }

    /// Wakes all waiters, and leaves a queue without any to the CPUs that have its line. Only for conditions that waiters look at with
    /// a lock that the caller has held since it changed them: who enters later sees the change, who has entered before is seen.
    pub fn wake_any(&self) {
        if self.is_any.load(Relaxed) {
            self.wake_all();
        }
    }

    /// Wakes all waiters, each to look at its condition. May be called from interrupt handlers and with spin locks held.
    pub fn wake_all(&self) {
        let mut waiters = self.waiters.lock();
        self.is_any.store(false, Relaxed);
        while let Some(task) = waiters.pop_front() {
            sched::wake(&task);
        }
    }

    /// Wakes the waiter that came first.
    pub fn wake_one(&self) {
        self.wake_first(|_| ());
    }

    /// Wakes the waiter that came first, after `tell` was told of it; whether there was one.
    pub fn wake_first(&self, tell: impl FnOnce(&Task)) -> bool {
        let first = {
            let mut waiters = self.waiters.lock();
            let first = waiters.pop_front();
            self.is_any.store(!waiters.is_empty(), Relaxed);
            first
        };
        let Some(task) = first else { return false };
        tell(&task);
        sched::wake(&task);
        true
    }

    /// Sleeps until `cond` yields a value.
    pub fn wait<T>(&self, cond: impl FnMut() -> Option<T>) -> T {
        match sleep(&[self], None, Signals::Ignored, cond) {
            Ok(value) => value,
            Err(_) => unreachable!("neither signals nor a deadline end this sleep"),
        }
    }

    /// Sleeps until `cond` yields a value or the deadline passes.
    pub fn wait_until<T>(&self, deadline: Nanos, cond: impl FnMut() -> Option<T>) -> Option<T> {
        sleep(&[self], Some(deadline), Signals::Ignored, cond).ok()
    }

    /// Sleeps until `cond` yields a value, a signal is pending, or the deadline passes.
    pub fn wait_intr<T>(&self, deadline: Option<Nanos>, cond: impl FnMut() -> Option<T>) -> Result<T, Woken> {
        sleep(&[self], deadline, Signals::Heeded, cond)
    }

    fn enter(&self, task: &Arc<Task>) {
        while let Some(wanted) = self.enter_if_room(task) {
            self.grow(wanted);
        }
    }

    /// Adds a task; returns how large the queue must be for it where it isn't.
    fn enter_if_room(&self, task: &Arc<Task>) -> Option<usize> {
        let mut waiters = self.waiters.lock();
        if waiters.iter().any(|t| Arc::ptr_eq(t, task)) {
            return None;
        }
        if waiters.len() == waiters.capacity() {
            return Some((2 * waiters.len()).max(KEPT));
        }
        waiters.push_back(task.clone());
        self.is_any.store(true, Relaxed);
        None
    }

    /// Makes room for so many waiters. It allocates with nothing locked: an allocation may wake the page daemon, whose
    /// queue may be of those that are locked together.
    #[cold]
    fn grow(&self, wanted: usize) {
        let mut larger = VecDeque::with_capacity(wanted);
        let mut waiters = self.waiters.lock();
        if waiters.capacity() < larger.capacity() {
            larger.append(&mut waiters);
            core::mem::swap(&mut *waiters, &mut larger);
        }
    }

    /// Takes a task off; says whether it was still there, that is, whether nobody has woken it through this queue.
    fn leave(&self, task: &Arc<Task>) -> bool {
        let mut waiters = self.waiters.lock();
        let at = waiters.iter().position(|t| Arc::ptr_eq(t, task));
        let was_there = at.and_then(|at| waiters.remove(at)).is_some();
        self.is_any.store(!waiters.is_empty(), Relaxed);
        if waiters.is_empty() && waiters.capacity() > KEPT {
            *waiters = VecDeque::new();
        }
        was_there
    }
}

/// Sleeps until one of the queues is woken and `cond` then yields a value, a signal is pending, or the deadline passes.
pub fn wait_any<T>(
    queues: &[&WaitQueue],
    deadline: Option<Nanos>,
    cond: impl FnMut() -> Option<T>,
) -> Result<T, Woken> {
    sleep(queues, deadline, Signals::Heeded, cond)
}

fn sleep<T>(
    queues: &[&WaitQueue],
    deadline: Option<Nanos>,
    signals: Signals,
    mut cond: impl FnMut() -> Option<T>,
) -> Result<T, Woken> {
    if let Some(value) = cond() {
        return Ok(value);
    }
    // Nothing else may refer to a task that sleeps in no queue and without an alarm.
    let task = &sched::current_owned();
    let mut alarm = None;
    let result = loop {
        sched::prepare_to_block(task);
        for queue in queues {
            queue.enter(task);
        }
        if let Some(value) = cond() {
            break Ok(value);
        }
        if signals == Signals::Heeded && sched::signal_pending() {
            break Err(Woken::Signal);
        }
        if let Some(deadline) = deadline {
            if sched::now() >= deadline {
                break Err(Woken::Timeout);
            }
            alarm.get_or_insert_with(|| sched::wake_at(deadline, task));
        }
        sched::block();
    };
    sched::cancel_block(task);
    for queue in queues {
        // A wake-up meant for one waiter isn't lost with a waiter that gave up.
        if !queue.leave(task) && result.is_err() {
            queue.wake_one();
        }
    }
    if let Some(alarm) = alarm {
        sched::timer_cancel(alarm);
    }
    result
}
