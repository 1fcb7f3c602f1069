//! Tasks that could run: a queue for each CPU, from which idle CPUs take too.
//!
//! A queue has two lines, which take turns by time. In one stand tasks whose timer went off, and
//! the first task that is woken in each task's turn; in the other all others. So a sleep ends in
//! time, however many tasks were woken or told to end at once, and tasks that sleep much have half
//! of the CPU at most. Who stands in the first line runs for a moment, and then takes turns with
//! the others; a turn of these is short while a task waits in the first one. Each line is first
//! come, first served; a thread of the kernel that is woken goes to the front of the first one, and
//! waits for no turn.
//!
//! I1: each line has room for all tasks, so that a wake-up never allocates. I2: `len` is the
//! queue's length, changed with its lock held by an exchange, so that a CPU that queues and then
//! looks for idle CPUs does it in that order. No two queues are locked at a time.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use machine::NoMemory;

use super::clock::{self, Nanos, SLICE};
use super::turn::TURN;
use super::Task;
use crate::arch::cpu;
use crate::lock::SpinLock;
use crate::mem::fault;

#[repr(align(128))]
struct Queue {
    lines: SpinLock<Lines>,
    len: AtomicUsize,
    /// How long the turn is that is under way; changed with the lines locked.
    turn: AtomicU64,
}

struct Lines {
    /// Threads of the kernel, and tasks that are due.
    due: VecDeque<Arc<Task>>,
    others: VecDeque<Arc<Task>>,
    /// Whose turn it is where both wait, and until when.
    is_due: bool,
    until: Nanos,
}

static QUEUES: [Queue; cpu::MAX_CPUS] = [const { Queue::new() }; cpu::MAX_CPUS];

/// Tasks that exist.
static TASKS: AtomicUsize = AtomicUsize::new(0);
/// Tasks that each queue has room for (I1).
static ROOM: SpinLock<usize> = SpinLock::new(0);
/// A page for each line: smaller ones would be blocks of the heap's classes, and grow with what
/// programs do.
const FIRST_ROOM: usize = machine::PAGE_SIZE / size_of::<Arc<Task>>();

/// The turn of a task that is due.
pub(super) const MOMENT: Nanos = TURN / 16;
/// How long the line of those may have the CPU, less the last one's turn, before it is for the
/// others.
const DUE: Nanos = TURN / 2;
const OTHERS: Nanos = DUE + MOMENT;

/// Where a task stands in a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Before all others.
    First,
    /// Behind those that were due before.
    Due,
    /// Behind all others that came before.
    Last,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            lines: SpinLock::new(Lines::new()),
            len: AtomicUsize::new(0),
            turn: AtomicU64::new(SLICE),
        }
    }
}

impl Lines {
    const fn new() -> Lines {
        Lines { due: VecDeque::new(), others: VecDeque::new(), is_due: false, until: 0 }
    }

    #[cold]
    fn push_due(&mut self, task: Arc<Task>, place: Place) {
        if place == Place::First {
            self.due.push_front(task);
        } else {
            self.due.push_back(task);
        }
    }

    /// The next task, and how long its turn is.
    #[inline]
    fn pop(&mut self) -> (Option<Arc<Task>>, Nanos) {
        if self.due.is_empty() {
            return (self.others.pop_front(), SLICE);
        }
        self.pop_due()
    }

    #[cold]
    fn pop_due(&mut self) -> (Option<Arc<Task>>, Nanos) {
        if self.others.is_empty() {
            let next = self.due.pop_front();
            return (next, if self.due.is_empty() { SLICE } else { MOMENT });
        }
        if self.due.front().is_some_and(|first| first.is_urgent()) {
            return (self.due.pop_front(), SLICE);
        }
        let now = clock::now();
        if now >= self.until {
            // The others have had theirs, too, if no task has asked for as long as that.
            self.is_due = !self.is_due || now >= self.until + OTHERS;
            self.until = now + if self.is_due { DUE } else { OTHERS };
        }
        if self.is_due {
            (self.due.pop_front(), MOMENT)
        } else {
            (self.others.pop_front(), TURN)
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

/// Allocates with the queue unlocked: an allocation may wake the page daemon, which needs the
/// queue.
fn enlarge(cpu: usize, room: usize) -> Result<(), NoMemory> {
    let mut larger = Lines::new();
    fault::attempt(|| larger.due.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.others.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    let mut lines = QUEUES[cpu].lines.lock();
    larger.due.append(&mut lines.due);
    larger.others.append(&mut lines.others);
    (larger.is_due, larger.until) = (lines.is_due, lines.until);
    let smaller = core::mem::replace(&mut *lines, larger);
    drop(lines);
    drop(smaller);
    Ok(())
}

/// A task has ended.
pub(super) fn leave() {
    TASKS.fetch_sub(1, Relaxed);
}

/// Puts a task that is ready into a CPU's queue. Whether the turn that is under way there is
/// shorter now.
#[inline]
pub(super) fn push(cpu: usize, task: Arc<Task>, place: Place) -> bool {
    let queue = &QUEUES[cpu];
    let mut lines = queue.lines.lock();
    queue.len.fetch_add(1, SeqCst);
    if place == Place::Last {
        lines.others.push_back(task);
        return false;
    }
    lines.push_due(task, place);
    let most = if place == Place::First { 0 } else { TURN };
    queue.turn.fetch_min(most, Relaxed) > most
}

/// Takes the next task of a CPU's queue.
#[inline]
pub(super) fn pop(cpu: usize) -> Option<Arc<Task>> {
    let queue = &QUEUES[cpu];
    if queue.len.load(Relaxed) == 0 {
        return None;
    }
    let mut lines = queue.lines.lock();
    let (task, turn) = lines.pop();
    if task.is_some() {
        queue.len.fetch_sub(1, Relaxed);
        queue.turn.store(turn, Relaxed);
    }
    task
}

/// How long the turn is that is under way on a CPU.
#[inline]
pub(super) fn turn(cpu: usize) -> Nanos {
    QUEUES[cpu].turn.load(Relaxed)
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
    if let Some(task) = longest
        .filter(|&cpu| cpu != here && len(cpu) > own + 1)
        .and_then(|cpu| steal_from(cpu, here))
    {
        let place = task.next_place();
        push(here, task, place);
    }
}

/// Tasks in a CPU's queue, a moment ago.
#[inline]
pub(super) fn len(cpu: usize) -> usize {
    QUEUES[cpu].len.load(Relaxed)
}
