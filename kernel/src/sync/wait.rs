//! Sleeping until something happens.
//!
//! A waiter enters the queue and then looks at its condition once more: a wake-up that comes after
//! the look finds the task in the queue, and `sched::block` returns at once. No wake-up is lost,
//! and wake-ups without cause are harmless since the condition decides. The look may give way to
//! other threads, and be as long as a program makes it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;

use machine::NoMemory;

use super::word::{AtomicBool, Ordering::Relaxed};
use super::SpinLock;
use crate::mem::fault::{self, Room};
use crate::sched::{self, Nanos, Task};
use crate::share;

/// Why a sleep ended before its condition came true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// A signal is pending.
    Signal,
    /// The deadline has passed.
    Timeout,
}

/// A watcher that is told of each wake-up that is for all, and goes on being told.
pub trait Watcher: Send + Sync {
    /// May be called from interrupt handlers and with spin locks held, the queue's among them.
    /// `served` are the events of which watchers that came before have woken a thread that wants to
    /// be the only one (`EPOLLEXCLUSIVE`). Returns those for which this one has.
    fn notice(&self, served: u32) -> u32;

    /// The user who has it told.
    fn uid(&self) -> u32;

    /// Whether it sends signals, to any number of processes: a queue has fewer of these.
    fn is_signal(&self) -> bool {
        false
    }
}

/// Watchers of a queue, at most: a waker tells them all. Users have shares of them
/// (`share`).
const WATCHERS: usize = 1024;

/// Those that send signals, likewise.
const SIGNALLERS: usize = 32;

/// There are [`WATCHERS`], or the user has as many as may be.
#[derive(Debug)]
pub struct Crowded;

/// Threads that wait for the same thing.
pub struct WaitQueue {
    waiters: SpinLock<Waiters>,
    /// Whether there are any waiters or watchers. Changes with these locked.
    is_any: AtomicBool,
    /// Whether there are any watchers.
    is_watched: AtomicBool,
}

struct Waiters {
    tasks: VecDeque<Arc<Task>>,
    /// Most queues never have any.
    watchers: Option<Box<Watchers>>,
}

type Watched = Arc<dyn Watcher>;

struct Watchers(Vec<Watched>);

impl Waiters {
    fn is_any(&self) -> bool {
        !self.tasks.is_empty() || self.watchers.is_some()
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        WaitQueue::new()
    }
}

/// Room for waiters that a queue without any keeps.
const KEPT: usize = 4;

/// How long a waiter sleeps at a time for which a queue has no room.
const NAP: Nanos = 10_000_000;

/// Whether a signal ends a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signals {
    Ignored,
    Heeded,
}

impl WaitQueue {
    /// No waiters.
    pub const fn new() -> WaitQueue {
        WaitQueue {
            waiters: SpinLock::new(Waiters { tasks: VecDeque::new(), watchers: None }),
            is_any: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        }
    }

    /// Wakes all waiters, and leaves a queue without any to the CPUs that have its line. Only for
    /// conditions that waiters look at with a lock that the caller has held since it changed them:
    /// a waiter that enters later sees the change, one that has entered before is seen.
    pub fn wake_any(&self) {
        if self.is_any.load(Relaxed) {
            self.wake_all();
        }
    }

    /// Wakes all waiters, each to look at its condition. May be called from interrupt handlers and
    /// with spin locks held.
    pub fn wake_all(&self) {
        let mut waiters = self.waiters.lock();
        self.is_any.store(waiters.watchers.is_some(), Relaxed);
        while let Some(task) = waiters.tasks.pop_front() {
            sched::wake(&task);
        }
        if let Some(watchers) = &waiters.watchers {
            watchers.0.iter().fold(0, |served, watcher| served | watcher.notice(served));
        }
    }

    /// Whether a watcher wants to be told of each change, though it makes nothing ready that
    /// wasn't.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Relaxed)
    }

    /// Whether there was a waiter or a watcher a moment ago.
    pub fn is_any(&self) -> bool {
        self.is_any.load(Relaxed)
    }

    /// Tells a watcher of each [`wake_all`](Self::wake_all) from now on.
    ///
    /// # Errors
    /// [`Crowded`].
    pub fn watch(&self, watcher: Arc<dyn Watcher>) -> Result<(), Crowded> {
        // Allocates with nothing locked, as `grow`.
        let (mut first, mut larger) = (None, Vec::new());
        loop {
            let mut waiters = self.waiters.lock();
            if waiters.watchers.is_none() {
                waiters.watchers = first.take();
            }
            let mut wanted = KEPT;
            if let Some(watchers) = &mut waiters.watchers {
                let watchers = &mut watchers.0;
                if !share::has_place(watcher.uid(), watchers.iter().map(|one| one.uid()), WATCHERS)
                {
                    return Err(Crowded);
                }
                let signals = watchers.iter().filter(|one| one.is_signal());
                let own = signals.clone().filter(|one| one.uid() == watcher.uid()).count();
                if watcher.is_signal() && (signals.count() >= SIGNALLERS || own >= SIGNALLERS / 4) {
                    return Err(Crowded);
                }
                wanted = wanted.max(2 * watchers.len());
                if watchers.len() == watchers.capacity() && larger.capacity() > watchers.len() {
                    larger.append(watchers);
                    core::mem::swap(watchers, &mut larger);
                }
                if watchers.len() < watchers.capacity() {
                    watchers.push(watcher);
                    self.is_any.store(true, Relaxed);
                    self.is_watched.store(true, Relaxed);
                    return Ok(());
                }
            }
            drop(waiters);
            first = Some(Box::new(Watchers(Vec::new())));
            larger.reserve_exact(wanted);
        }
    }

    /// Tells a watcher no longer, if it was told.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        let is_it = |one: &Watched| ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(watcher));
        let mut waiters = self.waiters.lock();
        let Some(Watchers(watchers)) = waiters.watchers.as_deref_mut() else { return };
        let gone = watchers.iter().position(is_it).map(|at| watchers.swap_remove(at));
        let size = watchers.right_size();
        let empty = if watchers.is_empty() { waiters.watchers.take() } else { None };
        self.is_any.store(waiters.is_any(), Relaxed);
        self.is_watched.store(waiters.watchers.is_some(), Relaxed);
        drop(waiters);
        // With nothing locked.
        drop((gone, empty));
        let (Some(size), mut smaller) = (size, Vec::new()) else { return };
        let room = smaller.room(size);
        if let (Ok(()), Some(Watchers(watchers))) =
            (room, self.waiters.lock().watchers.as_deref_mut())
        {
            if watchers.len() <= size {
                smaller.append(watchers);
                core::mem::swap(watchers, &mut smaller);
            }
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
            let first = waiters.tasks.pop_front();
            self.is_any.store(waiters.is_any(), Relaxed);
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
    pub fn wait_intr<T>(
        &self,
        deadline: Option<Nanos>,
        cond: impl FnMut() -> Option<T>,
    ) -> Result<T, Woken> {
        sleep(&[self], deadline, Signals::Heeded, cond)
    }

    /// Adds a task; says whether there was room.
    fn enter(&self, task: &Arc<Task>) -> bool {
        while let Some(wanted) = self.enter_if_room(task) {
            if self.grow(wanted).is_err() {
                return false;
            }
        }
        true
    }

    /// Adds a task; returns how large the queue must be for it where it isn't.
    fn enter_if_room(&self, task: &Arc<Task>) -> Option<usize> {
        let mut waiters = self.waiters.lock();
        let tasks = &mut waiters.tasks;
        if tasks.iter().any(|t| Arc::ptr_eq(t, task)) {
            return None;
        }
        if tasks.len() == tasks.capacity() {
            return Some((2 * tasks.len()).max(KEPT));
        }
        tasks.push_back(task.clone());
        self.is_any.store(true, Relaxed);
        None
    }

    /// Makes room for so many waiters.
    #[cold]
    fn grow(&self, wanted: usize) -> Result<(), NoMemory> {
        let mut larger = VecDeque::new();
        if wanted * size_of::<Arc<Task>>() > fault::SMALL {
            larger.room(wanted)?;
        } else {
            larger.reserve(wanted);
        }
        self.move_to(larger);
        Ok(())
    }

    /// Gives back most of the room for waiters, unless there is no memory.
    #[cold]
    fn shrink(&self, size: usize) {
        let mut smaller = VecDeque::new();
        if smaller.room(size).is_ok() {
            self.move_to(smaller);
        }
    }

    /// Moves the waiters to another list, if that has room for all of them. The list was allocated
    /// with nothing locked: an allocation may wake the page daemon, whose queue may be of those
    /// that are locked together.
    fn move_to(&self, mut other: VecDeque<Arc<Task>>) {
        let mut waiters = self.waiters.lock();
        let tasks = &mut waiters.tasks;
        if tasks.len() <= other.capacity() {
            other.append(tasks);
            core::mem::swap(tasks, &mut other);
        }
        drop(waiters);
    }

    /// Takes a task off; says whether it was still there, that is, whether no task has woken it
    /// through this queue.
    fn leave(&self, task: &Arc<Task>) -> bool {
        let mut waiters = self.waiters.lock();
        let at = waiters.tasks.iter().position(|t| Arc::ptr_eq(t, task));
        let was_there = at.and_then(|at| waiters.tasks.remove(at)).is_some();
        self.is_any.store(waiters.is_any(), Relaxed);
        let size = waiters.tasks.right_size();
        drop(waiters);
        if let Some(size) = size {
            self.shrink(size);
        }
        was_there
    }
}

/// Sleeps until one of the queues is woken and `cond` then yields a value, a signal is pending, or
/// the deadline passes.
pub fn wait_any<T>(
    queues: &[&WaitQueue],
    deadline: Option<Nanos>,
    cond: impl FnMut() -> Option<T>,
) -> Result<T, Woken> {
    sleep(queues, deadline, Signals::Heeded, cond)
}

/// The work of entering or leaving a queue: that of copying so many bytes.
const QUEUE: usize = 128;

fn sleep<T>(
    queues: &[&WaitQueue],
    deadline: Option<Nanos>,
    signals: Signals,
    mut cond: impl FnMut() -> Option<T>,
) -> Result<T, Woken> {
    if let Some(value) = cond() {
        return Ok(value);
    }
    if deadline.is_some_and(|deadline| sched::now() >= deadline) {
        let is_cut = signals == Signals::Heeded && sched::signal_pending();
        return Err(if is_cut { Woken::Signal } else { Woken::Timeout });
    }
    // Nothing else may refer to a task that sleeps in no queue and without an alarm.
    let task = &sched::current_owned();
    sched::flush_plug(task);
    let mut alarm = None;
    let result = loop {
        sched::listen(task);
        // A task that isn't in a queue isn't woken by it, and looks again after a while.
        let mut is_known = true;
        for queue in queues {
            is_known &= queue.enter(task);
            sched::work_done(QUEUE);
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
        let nap = (!is_known).then(|| sched::wake_at(sched::now() + NAP, task));
        match signals {
            Signals::Ignored => sched::block_uninterruptible(task),
            Signals::Heeded => sched::block(task),
        }
        if let Some(nap) = nap {
            sched::timer_cancel(nap);
        }
    };
    sched::look_again(task);
    for queue in queues {
        // A wake-up meant for one waiter isn't lost with a waiter that gave up.
        if !queue.leave(task) && result.is_err() {
            queue.wake_one();
        }
        sched::work_done(QUEUE);
    }
    if let Some(alarm) = alarm {
        sched::timer_cancel(alarm);
    }
    result
}
