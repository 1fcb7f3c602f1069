//! Tasks that could run: a queue for each CPU, from which idle CPUs take too.
//!
//! A queue has two lines. Tasks whose time to wake has come stand in one, all others in the other, and the lines take turns: a sleep
//! ends in time, however many tasks were woken or told to end at once, and tasks that sleep much get half of all turns at most. The turn
//! of one whose time has come is short, and so is any while one waits. Each line is first come, first served; a thread of the kernel
//! goes to the front of the first one, and waits for no turn.
//!
//! I1: each line has room for all tasks, so that a wake-up never allocates. I2: `len` is the queue's length, changed with its
//! lock held by an exchange, so that whoever queues and then looks for idle CPUs does it in that order.
//! No two queues are locked at a time.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use machine::NoMemory;

use super::Task;
use crate::arch::cpu;
use crate::mem::fault;
use crate::sync::SpinLock;

#[repr(align(128))]
struct Queue {
    lines: SpinLock<Lines>,
    len: AtomicUsize,
    /// Whether the turn that is under way is a short one; changed with the lines locked.
    is_short: AtomicBool,
}

struct Lines {
    /// Threads of the kernel, and tasks whose time has come.
    due: VecDeque<Arc<Task>>,
    others: VecDeque<Arc<Task>>,
    /// The next turn is for the others.
    was_due: bool,
}

static QUEUES: [Queue; cpu::MAX_CPUS] = [const { Queue::new() }; cpu::MAX_CPUS];

/// Tasks that exist.
static TASKS: AtomicUsize = AtomicUsize::new(0);
/// Tasks that each queue has room for (I1).
static ROOM: SpinLock<usize> = SpinLock::new(0);
/// A page for each line: smaller ones would be blocks of the heap's classes, and grow with what programs do.
const FIRST_ROOM: usize = machine::PAGE_SIZE / size_of::<Arc<Task>>();

/// Where a task stands in a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Before all others.
    First,
    /// Behind those whose time has come before.
    Due,
    /// Behind all others that came before.
    Last,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            lines: SpinLock::new(Lines::new()),
            len: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
        }
    }
}

impl Lines {
    const fn new() -> Lines {
        Lines { due: VecDeque::new(), others: VecDeque::new(), was_due: false }
    }

    fn pop(&mut self) -> Option<Arc<Task>> {
        if self.due.is_empty() {
            self.was_due = false;
            return self.others.pop_front();
        }
        self.pop_due()
    }

    #[cold]
    fn pop_due(&mut self) -> Option<Arc<Task>> {
        let is_kernel = self.due.front().is_some_and(|first| first.is_kernel());
        if is_kernel {
            return self.due.pop_front();
        }
        self.was_due = !self.was_due || self.others.is_empty();
        if self.was_due {
            self.due.pop_front()
        } else {
            self.others.pop_front()
        }
    }
}

/// Makes room for one more task, which exists from now on.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
pub(super) fn make_room() -> Result<(), NoMemory> {
    let tasks = TASKS.fetch_add(1, Relaxed) + 1;
    let mut room = ROOM.lock();
    if tasks > *room {
        let new = (*room * 2).max(tasks).max(FIRST_ROOM);
        if (0..cpu::found()).try_for_each(|cpu| enlarge(cpu, new)).is_err() {
            TASKS.fetch_sub(1, Relaxed);
            return Err(NoMemory);
        }
        *room = new;
    }
    Ok(())
}

/// Allocates with the queue unlocked: an allocation may wake the page daemon, which needs the queue.
fn enlarge(cpu: usize, room: usize) -> Result<(), NoMemory> {
    let mut larger = Lines::new();
    fault::attempt(|| larger.due.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.others.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    let mut lines = QUEUES[cpu].lines.lock();
    larger.due.append(&mut lines.due);
    larger.others.append(&mut lines.others);
    larger.was_due = lines.was_due;
    let smaller = core::mem::replace(&mut *lines, larger);
    drop(lines);
    drop(smaller);
    Ok(())
}

/// A task has ended.
pub(super) fn leave() {
    TASKS.fetch_sub(1, Relaxed);
}

/// Puts a task that is ready into a CPU's queue.
pub(super) fn push(cpu: usize, task: Arc<Task>, place: Place) {
    let queue = &QUEUES[cpu];
    let mut lines = queue.lines.lock();
    match place {
        Place::First => lines.due.push_front(task),
        Place::Due => {
            lines.due.push_back(task);
            queue.is_short.store(true, Relaxed);
        }
        Place::Last => lines.others.push_back(task),
    }
    queue.len.fetch_add(1, SeqCst);
}

/// Takes the next task of a CPU's queue.
#[inline]
pub(super) fn pop(cpu: usize) -> Option<Arc<Task>> {
    let queue = &QUEUES[cpu];
    if queue.len.load(Relaxed) == 0 {
        return None;
    }
    let mut lines = queue.lines.lock();
    let task = lines.pop()?;
    queue.len.fetch_sub(1, Relaxed);
    queue.is_short.store(lines.was_due || !lines.due.is_empty(), Relaxed);
    Some(task)
}

/// Whether the turn that is under way on a CPU is a short one.
#[inline]
pub(super) fn is_short(cpu: usize) -> bool {
    QUEUES[cpu].is_short.load(Relaxed)
}

/// Takes a task that may run on CPU `here` from another's queue.
pub(super) fn steal(here: usize) -> Option<Arc<Task>> {
    let cpus = cpu::count();
    (here + 1..here + cpus).find_map(|victim| steal_from(victim % cpus, here))
}

fn steal_from(victim: usize, here: usize) -> Option<Arc<Task>> {
    let queue = &QUEUES[victim];
    if queue.len.load(Relaxed) == 0 {
        return None;
    }
    let mut lines = queue.lines.lock();
    let Lines { due, others, .. } = &mut *lines;
    let task = [due, others].into_iter().find_map(|line| {
        let at = line.iter().position(|task| task.allowed().contains(here))?;
        line.remove(at)
    })?;
    queue.len.fetch_sub(1, Relaxed);
    task.set_cpu(here);
    Some(task)
}

/// Evens queues out: takes a task from the longest queue if that has two more than this CPU's.
pub(super) fn balance(here: usize) {
    let own = len(here);
    let longest = (0..cpu::count()).max_by_key(|&cpu| len(cpu));
    if let Some(task) =
        longest.filter(|&cpu| cpu != here && len(cpu) > own + 1).and_then(|cpu| steal_from(cpu, here))
    {
        push(here, task, Place::Last);
    }
}

/// Tasks in a CPU's queue, a moment ago.
#[inline]
pub(super) fn len(cpu: usize) -> usize {
    QUEUES[cpu].len.load(Relaxed)
}
