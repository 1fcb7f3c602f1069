//! Tasks that could run: a queue for each CPU, from which idle CPUs take too.
//!
//! I1: each queue has room for all tasks, so that a wake-up never allocates. I2: `len` is the queue's length, changed with its
//! lock held by an exchange, so that whoever queues and then looks for idle CPUs does it in that order.
//! No two queues are locked at a time.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use machine::NoMemory;

use super::Task;
use crate::arch::cpu;
use crate::mem::fault;
use crate::sync::SpinLock;

#[repr(align(128))]
struct Queue {
    tasks: SpinLock<VecDeque<Arc<Task>>>,
    len: AtomicUsize,
}

static QUEUES: [Queue; cpu::MAX_CPUS] =
    [const { Queue { tasks: SpinLock::new(VecDeque::new()), len: AtomicUsize::new(0) } }; cpu::MAX_CPUS];

/// Tasks that exist.
static TASKS: AtomicUsize = AtomicUsize::new(0);
/// Tasks that each queue has room for (I1).
static ROOM: SpinLock<usize> = SpinLock::new(0);
const FIRST_ROOM: usize = 64;

/// Which end of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
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
    let mut larger = VecDeque::new();
    fault::attempt(|| larger.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    let mut tasks = QUEUES[cpu].tasks.lock();
    larger.append(&mut tasks);
    let smaller = core::mem::replace(&mut *tasks, larger);
    drop(tasks);
    drop(smaller);
    Ok(())
}

/// A task has ended.
pub(super) fn leave() {
    TASKS.fetch_sub(1, Relaxed);
}

/// Puts a task that is ready into a CPU's queue.
pub(super) fn push(cpu: usize, task: Arc<Task>, end: End) {
    let queue = &QUEUES[cpu];
    let mut tasks = queue.tasks.lock();
    match end {
        End::Front => tasks.push_front(task),
        End::Back => tasks.push_back(task),
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
    let mut tasks = queue.tasks.lock();
    let task = tasks.pop_front()?;
    queue.len.fetch_sub(1, Relaxed);
    Some(task)
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
    let mut tasks = queue.tasks.lock();
    let at = tasks.iter().position(|task| task.allowed().contains(here))?;
    let task = tasks.remove(at)?;
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
        push(here, task, End::Back);
    }
}

/// Tasks in a CPU's queue, a moment ago.
#[inline]
pub(super) fn len(cpu: usize) -> usize {
    QUEUES[cpu].len.load(Relaxed)
}
