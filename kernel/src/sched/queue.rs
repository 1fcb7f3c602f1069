//! Tasks that could run: a queue for each CPU, fair by virtual time, from which idle CPUs take too.
//!
//! ```text
//!   virtual time V: passes by 1 / (sum of the weights of all tasks that are ready)
//!   task:           start     the virtual time up to which it has had its share
//!                   deadline  start + request / weight: when what it asks for is due
//!
//!   woken for a moment -> due      (by start)     --while the credit lasts--> running
//!   else               -> later    (start > V)    --V passes start-->  eligible
//!                         eligible (by deadline)  --first-->           running
//! ```
//! A task that has had less than its share is eligible, and of those the one with the earliest
//! deadline runs. Its turn ends with its request, or as a task becomes eligible whose deadline is
//! earlier. A request is as long as the task has run lately before it slept: one that computes asks
//! for [`LONGEST`]. A task that has slept starts at V at least: the share that it didn't use is
//! lost.
//!
//! Shares alone would have a sleeper beside a crowd wait for each of the crowd. So a task whose
//! timer goes off, and the first task that another wakes in its turn, is due at once if it has run
//! only briefly before its last sleeps: it preempts the task that runs, for [`MOMENT`] at most.
//! A bucket of credit bounds that: due tasks have half of the CPU at most while others wait. Of due
//! tasks the one that is least ahead of V goes first: a task that sleeps for most of the time goes
//! before one that sleeps for a nanosecond.
//!
//! A thread of the kernel that is woken runs before all others; once it has given way it is a task
//! like others, with eight times the weight. Then come real-time tasks by priority, up to 95 % of
//! the CPU while others wait, by a credit of their own. Weights follow niceness. Each CPU has a
//! virtual time of its own; a task that comes into another CPU's queue stays as far ahead of it.
//!
//! I1: each list has room for all tasks, so that a wake-up never allocates. I2: `len` is the
//! queue's length, changed with its lock held by an exchange, so that a CPU that queues and then
//! looks for idle CPUs does it in that order. No two queues are locked at a time. I3: `weight` is
//! the sum of the weights of the tasks on `due`, `eligible` and `later` and of the one that runs.
//!
//! Source: Stoica and Abdel-Wahab, Earliest Eligible Virtual Deadline First (1995); that virtual
//! time waits for no sleeper is from Bennett and Zhang, WF2Q+ (1997).

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use machine::NoMemory;

use super::clock::{self, Nanos, SLICE};
use super::fair::{real, virtual_time, Fair, LONGEST, MOMENT, SHORTEST};
use super::Task;
use crate::arch::cpu;
use crate::lock::SpinLock;
use crate::mem::{fault, heap};

/// Credit of due tasks, at most.
const CREDIT: i64 = 500_000;
/// Credit of real-time tasks, at most; they get it while others run, so many times as much.
const REAL_TIME_CREDIT: i64 = 950_000_000;
const REAL_TIME_PART: i64 = 19;

/// How often a task moves between two CPUs of which one has a task more to run than the other, if
/// that other one has a single task.
const ROTATION: Nanos = 50_000_000;

/// How a task comes into a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comes {
    /// Woken, or new.
    Woken,
    /// The task's turn is over, or it has been moved.
    Ready,
    /// The task's turn is over, and its CPU, whose queue this is, has just been charged for that.
    Left,
}

/// A task on a list that is by start, deadline or priority, and then by the order in which they
/// came: the first is the largest.
struct Entry<const BY: u8>(Arc<Task>);
const START: u8 = 0;
const DEADLINE: u8 = 1;
const PRIORITY: u8 = 2;

impl<const BY: u8> Entry<BY> {
    fn key(&self) -> u64 {
        let fair = &self.0.fair;
        match BY {
            DEADLINE => fair.deadline(),
            START => fair.start(),
            _ => u64::from(u8::MAX - fair.priority()),
        }
    }
}

impl<const BY: u8> Ord for Entry<BY> {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |entry: &Self| (entry.key(), entry.0.fair.came.load(Relaxed));
        key(other).cmp(&key(self))
    }
}

impl<const BY: u8> PartialOrd for Entry<BY> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const BY: u8> PartialEq for Entry<BY> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<const BY: u8> Eq for Entry<BY> {}

#[repr(align(128))]
struct Queue {
    ready: SpinLock<Ready>,
    len: AtomicUsize,
    /// When the turn that is under way ends; changed with the queue locked.
    until: AtomicU64,
    /// Virtual time, up to when the running task was charged; changed with the queue locked.
    vtime: AtomicU64,
    /// The real-time priority of the task that runs, and of the first that waits; 0 for none.
    /// Changed with the queue locked.
    priority: AtomicU8,
    waiting_priority: AtomicU8,
    /// When a task was last taken to or from another queue to even them out.
    rotated: AtomicU64,
}

struct Ready {
    /// Threads of the kernel that were woken.
    urgent: VecDeque<Arc<Task>>,
    real_time: BinaryHeap<Entry<PRIORITY>>,
    due: BinaryHeap<Entry<START>>,
    eligible: BinaryHeap<Entry<DEADLINE>>,
    later: BinaryHeap<Entry<START>>,
    weight: u64,
    /// The task that runs, if it isn't the idle one; up to when it is charged; and whether it was
    /// due.
    running: Option<Arc<Task>>,
    charged: Nanos,
    is_due: bool,
    /// An interrupt works for others: the running task isn't charged.
    is_interrupted: bool,
    /// What due tasks may run before others, and real-time ones.
    credit: i64,
    real_time_credit: i64,
    /// Whether the task that was taken last is due.
    takes_due: bool,
    /// Tasks that came, ever.
    came: u64,
}

static QUEUES: [Queue; cpu::MAX_CPUS] = [const { Queue::new() }; cpu::MAX_CPUS];

/// Tasks that exist.
static TASKS: AtomicUsize = AtomicUsize::new(0);
/// Tasks that each queue has room for (I1).
static ROOM: SpinLock<usize> = SpinLock::new(0);
/// Lists of a queue.
const LISTS: usize = 5;
/// A page for each list: smaller ones would be blocks of the heap's classes, and grow with
/// what programs do.
const FIRST_ROOM: usize = machine::PAGE_SIZE / size_of::<Arc<Task>>();

impl Queue {
    const fn new() -> Queue {
        Queue {
            ready: SpinLock::new(Ready::new()),
            len: AtomicUsize::new(0),
            until: AtomicU64::new(0),
            vtime: AtomicU64::new(0),
            priority: AtomicU8::new(0),
            waiting_priority: AtomicU8::new(0),
            rotated: AtomicU64::new(0),
        }
    }

    fn vtime(&self) -> u64 {
        self.vtime.load(Relaxed)
    }

    /// Charges the running task, and lets virtual time pass, up to now.
    fn charge(&self, ready: &mut Ready, now: Nanos) {
        // Another CPU may have come first with a later look at the clock.
        let now = now.max(ready.charged);
        let before = core::mem::replace(&mut ready.charged, now);
        if ready.is_interrupted {
            return;
        }
        let run = now - before;
        // What a due task runs beyond its moment, in the kernel or while the host ran another CPU,
        // is not before others.
        let moment = if ready.is_due { self.until.load(Relaxed).min(now) } else { before };
        let spent = run as i64 - 2 * moment.saturating_sub(before) as i64;
        ready.credit = (ready.credit + spent).clamp(-CREDIT, CREDIT);
        let is_real_time = ready.running.as_ref().is_some_and(|task| task.fair.is_real_time());
        let part = if is_real_time { -1 } else { REAL_TIME_PART };
        ready.real_time_credit = (ready.real_time_credit)
            .saturating_add((run as i64).saturating_mul(part))
            .clamp(-REAL_TIME_CREDIT, REAL_TIME_CREDIT);
        if let Some(running) = ready.running.as_ref().filter(|_| is_real_time) {
            running.fair.add_to_round(run);
        } else if let Some(running) = &ready.running {
            let fair = &running.fair;
            fair.start.store(fair.start() + fair.virtual_time(run), Relaxed);
            fair.burst.store(fair.burst.load(Relaxed) + run, Relaxed);
            self.vtime.store(self.vtime() + virtual_time(run, ready.weight), Relaxed);
        }
    }

    /// See [`push`].
    fn enter(
        &self,
        ready: &mut Ready,
        cpu: usize,
        task: Arc<Task>,
        comes: Comes,
        now: Nanos,
    ) -> bool {
        self.len.fetch_add(1, SeqCst);
        if comes == Comes::Woken && task.is_kernel() {
            task.fair.follow(&task);
            if task.fair.cpu.load(Relaxed) == cpu {
                task.fair.start_at(self.vtime());
            }
            ready.urgent.push_back(task);
            self.until.fetch_min(now, Relaxed);
            return true;
        }
        if comes != Comes::Left {
            self.charge(ready, now);
        }
        let (fair, vtime) = (&task.fair, self.vtime());
        fair.follow(&task);
        let before = fair.cpu.swap(cpu, Relaxed);
        let ahead = fair.start().saturating_sub(QUEUES[before].vtime());
        if before != cpu {
            fair.start.store(vtime + ahead, Relaxed);
        }
        if comes != Comes::Woken {
            fair.ask_on();
        } else {
            fair.end_round();
            // What the task ran while it was due is more than its share, perhaps: that is held
            // against it for a while.
            let start = vtime + ahead.min(fair.virtual_time(LONGEST));
            fair.start.store(start, Relaxed);
            fair.ask_again();
        }
        if before != cpu {
            fair.ask();
        }
        let is_due = task.is_due() && fair.is_brief(ahead) && !fair.is_real_time();
        // The turn that has just begun ends when it would have.
        let ends_as_before = comes == Comes::Left
            && !is_due
            && !fair.is_real_time()
            && ready.running.as_ref().is_some_and(|running| {
                !running.fair.is_real_time() && running.fair.deadline() <= fair.deadline()
            });
        if ends_as_before {
            self.put(ready, task, false);
            return false;
        }
        let is_first = ready.running.as_ref().is_some_and(|running| {
            if fair.is_real_time() {
                return ready.real_time_credit > 0 && fair.priority() > running.fair.priority();
            }
            !ready.is_due
                && !running.fair.is_real_time()
                && (is_due && ready.credit > 0
                    || fair.start() <= vtime && fair.deadline() < running.fair.deadline())
        });
        self.put(ready, task, is_due);
        let until = if is_first { now } else { self.end_of_turn(ready, now) };
        let before = self.until.fetch_min(until, Relaxed);
        before > until || before <= now
    }

    /// Puts a task on the list that it belongs on.
    fn put(&self, ready: &mut Ready, task: Arc<Task>, is_due: bool) {
        ready.weight += task.fair.weight();
        ready.came += 1;
        if task.fair.is_real_time() {
            // One that had to give way goes on before those of its priority that came after it.
            if task.fair.left_of_round() == 0 {
                task.fair.end_round();
            }
            if task.fair.came.load(Relaxed) == 0 {
                task.fair.came.store(ready.came, Relaxed);
            }
            self.waiting_priority.fetch_max(task.fair.priority(), Relaxed);
            return ready.real_time.push(Entry(task));
        }
        task.fair.came.store(ready.came, Relaxed);
        if is_due {
            ready.due.push(Entry(task));
        } else if task.fair.start() <= self.vtime() {
            ready.eligible.push(Entry(task));
        } else {
            ready.later.push(Entry(task));
        }
    }

    /// When the running task's turn ends: with its request, as a task becomes eligible that is due
    /// earlier, or as there is credit for one that is due at once.
    fn end_of_turn(&self, ready: &Ready, now: Nanos) -> Nanos {
        let Some(running) = &ready.running else { return now + SLICE };
        if running.fair.is_real_time() {
            let turn = running.fair.left_of_round();
            let credit = ready.real_time_credit.max(0) as u64 + SHORTEST;
            return now + if ready.has_shares() { turn.min(credit) } else { turn };
        }
        if ready.is_due {
            return now + MOMENT;
        }
        let mut turn = running.fair.turn();
        if !ready.real_time.is_empty() {
            turn = turn.min((-ready.real_time_credit / REAL_TIME_PART).max(0) as u64 + SHORTEST);
        }
        if !ready.due.is_empty() {
            turn = turn.min((-ready.credit).max(0) as u64 + SHORTEST);
        }
        if let Some(next) = ready.later.peek() {
            if next.0.fair.deadline() < running.fair.deadline() {
                let wait = next.key().saturating_sub(self.vtime());
                turn = turn.min(real(wait, ready.weight).max(SHORTEST));
            }
        }
        now + turn
    }

    /// Takes the task that runs next; none if `stays`, which runs, does.
    fn take(&self, ready: &mut Ready, stays: Option<&Task>, now: Nanos) -> Option<Arc<Task>> {
        ready.takes_due = false;
        if let Some(task) = ready.urgent.pop_front() {
            return Some(task);
        }
        let stays = stays.filter(|_| ready.running.is_some()).map(|task| &task.fair);
        let stays = if ready.real_time_credit > 0 || !ready.has_shares() {
            let own = stays.filter(|fair| fair.is_real_time());
            let first = ready.real_time.peek().map(|first| first.0.fair.priority());
            let goes = |own: &Fair, first| {
                own.priority() < first || own.priority() == first && own.left_of_round() == 0
            };
            if first.is_some_and(|first| own.is_none_or(|own| goes(own, first))) {
                let task = ready.real_time.pop().map(|Entry(task)| task);
                self.note_waiting(ready);
                return task;
            }
            if own.is_some() {
                return None;
            }
            stays
        } else {
            stays.filter(|fair| !fair.is_real_time())
        };
        if stays.is_some() && ready.is_due && now < self.until.load(Relaxed) {
            return None;
        }
        let has_others = stays.is_some() || !ready.eligible.is_empty() || !ready.later.is_empty();
        let task = if !ready.due.is_empty() && (ready.credit > 0 || !has_others) {
            ready.takes_due = true;
            ready.due.pop()?.0
        } else {
            self.take_fair(ready, stays)?
        };
        ready.weight -= task.fair.weight();
        Some(task)
    }

    /// A real-time task was taken off its list.
    fn note_waiting(&self, ready: &Ready) {
        let first = ready.real_time.peek().map_or(0, |first| first.0.fair.priority());
        self.waiting_priority.store(first, Relaxed);
    }

    /// Takes the eligible task that is due first, unless the one that runs is.
    fn take_fair(&self, ready: &mut Ready, stays: Option<&Fair>) -> Option<Arc<Task>> {
        let mut due = None;
        if let Some(fair) = stays {
            fair.ask_on();
            due = (fair.start() <= self.vtime()).then(|| fair.deadline());
        }
        self.make_eligible(ready, due.is_some());
        let first = ready.eligible.peek()?.key();
        if due.is_some_and(|due| due <= first) {
            return None;
        }
        ready.eligible.pop().map(|entry| entry.0)
    }

    /// The task that runs lets others run first: it gives up what it has asked for, and what it is
    /// behind the first of the others, and asks anew.
    fn give_up(&self, ready: &mut Ready) {
        ready.is_due = false;
        let Some(running) = &ready.running else { return };
        let fair = &running.fair;
        // One that were eligible again as soon as the first of the others is would preempt that.
        let first = ready.later.peek().filter(|_| ready.eligible.is_empty()).map_or(0, Entry::key);
        let behind = self.vtime().max(first) + fair.virtual_time(SHORTEST);
        fair.start_at(behind.max(fair.deadline()));
        fair.end_round();
        running.set_due(false);
    }

    /// A task runs from now on; up to now all is charged.
    fn run(&self, ready: &mut Ready, cpu: usize, task: &Arc<Task>, now: Nanos) {
        let next = (!task.is_idle()).then(|| task.clone());
        self.priority.store(task.fair.priority(), Relaxed);
        if let Some(task) = &next {
            if task.fair.cpu.swap(cpu, Relaxed) != cpu {
                task.fair.start.store(self.vtime(), Relaxed);
                task.fair.ask();
            }
            ready.weight += task.fair.weight();
        }
        ready.is_due = core::mem::take(&mut ready.takes_due);
        if let Some(left) = core::mem::replace(&mut ready.running, next) {
            ready.weight -= left.fair.weight();
        }
        self.until.store(self.end_of_turn(ready, now), Relaxed);
    }

    /// Moves tasks on whose start virtual time has passed. If no task is eligible, virtual time
    /// goes on to where one is.
    fn make_eligible(&self, ready: &mut Ready, is_running_eligible: bool) {
        if ready.eligible.is_empty() && !is_running_eligible {
            let first = ready.later.peek().map_or(0, Entry::key);
            self.vtime.fetch_max(first, Relaxed);
        }
        let vtime = self.vtime();
        while ready.later.peek().is_some_and(|entry| entry.key() <= vtime) {
            let Some(Entry(task)) = ready.later.pop() else { break };
            ready.eligible.push(Entry(task));
        }
    }
}

impl Ready {
    /// Takes a task off its list; real-time tasks and those that are due only `with_due`.
    fn remove(&mut self, with_due: bool, may: impl Fn(&Arc<Task>) -> bool) -> Option<Arc<Task>> {
        let real_time = if with_due { take_where(&mut self.real_time, &may) } else { None };
        let task = real_time
            .or_else(|| if with_due { take_where(&mut self.due, &may) } else { None })
            .or_else(|| take_where(&mut self.eligible, &may))
            .or_else(|| take_where(&mut self.later, &may))?;
        self.weight -= task.fair.weight();
        Some(task)
    }

    /// Whether tasks wait that have shares.
    fn has_shares(&self) -> bool {
        !self.due.is_empty() || !self.eligible.is_empty() || !self.later.is_empty()
    }

    const fn new() -> Ready {
        Ready {
            urgent: VecDeque::new(),
            real_time: BinaryHeap::new(),
            due: BinaryHeap::new(),
            eligible: BinaryHeap::new(),
            later: BinaryHeap::new(),
            weight: 0,
            running: None,
            charged: 0,
            is_interrupted: false,
            is_due: false,
            credit: 0,
            real_time_credit: 0,
            takes_due: false,
            came: 0,
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
        let new = (*room + *room / 4).max(tasks).max(FIRST_ROOM);
        let enlarge_all = || {
            heap::reserve(list_bytes(new) + super::TASK_HEAP)?;
            (0..cpu::found()).try_for_each(|cpu| enlarge(cpu, new))
        };
        if enlarge_all().is_err() {
            TASKS.fetch_sub(1, Relaxed);
            return Err(NoMemory);
        }
        *room = new;
    }
    Ok(())
}

/// Bytes of the lists of all queues.
pub fn task_list_bytes() -> usize {
    list_bytes(*ROOM.lock())
}

fn list_bytes(room: usize) -> usize {
    LISTS * room * size_of::<Arc<Task>>() * cpu::found()
}

/// Allocates with the queue unlocked: an allocation may wake the page daemon, which needs the
/// queue.
fn enlarge(cpu: usize, room: usize) -> Result<(), NoMemory> {
    let mut larger = Ready::new();
    fault::attempt(|| larger.urgent.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.real_time.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.due.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.eligible.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    fault::attempt(|| larger.later.try_reserve_exact(room)).map_err(|_| NoMemory)?;
    let mut ready = QUEUES[cpu].ready.lock();
    larger.urgent.append(&mut ready.urgent);
    core::mem::swap(&mut ready.urgent, &mut larger.urgent);
    let smaller = (
        enlarge_to(&mut ready.real_time, larger.real_time),
        enlarge_to(&mut ready.due, larger.due),
        enlarge_to(&mut ready.eligible, larger.eligible),
        enlarge_to(&mut ready.later, larger.later),
    );
    drop(ready);
    drop((larger.urgent, smaller));
    Ok(())
}

/// Moves a list to where there is more room. Returns its old room.
fn enlarge_to<T: Ord>(list: &mut BinaryHeap<T>, larger: BinaryHeap<T>) -> Vec<T> {
    let (mut entries, mut smaller) = (larger.into_vec(), core::mem::take(list).into_vec());
    entries.append(&mut smaller);
    *list = entries.into();
    smaller
}

/// A task has ended.
pub(super) fn leave() {
    TASKS.fetch_sub(1, Relaxed);
}

/// Puts a task that is ready into a CPU's queue. Whether the turn that is under way there ends
/// earlier now, or is over.
#[inline]
pub(super) fn push(cpu: usize, task: Arc<Task>, comes: Comes) -> bool {
    let queue = &QUEUES[cpu];
    let now = if comes == Comes::Left { None } else { Some(clock::now()) };
    let mut ready = queue.ready.lock();
    let now = now.unwrap_or(ready.charged);
    queue.enter(&mut ready, cpu, task, comes, now)
}

/// A task that was taken from a queue.
pub(super) struct Taken {
    pub(super) task: Arc<Task>,
    /// Whether the task may run on the queue's CPU: then it runs from `at` on.
    pub(super) may_run: bool,
    pub(super) at: Nanos,
}

/// Takes the next task of a CPU's queue. None if `stays`, which runs, goes before all others. The
/// task that runs may give up its turn.
#[inline]
pub(super) fn pop(cpu: usize, stays: Option<&Task>, gives_up: bool) -> Option<Taken> {
    let queue = &QUEUES[cpu];
    if queue.len.load(Relaxed) == 0 && stays.is_none() {
        return None;
    }
    let now = clock::now();
    let mut ready = queue.ready.lock();
    let ready = &mut *ready;
    queue.charge(ready, now);
    if gives_up {
        queue.give_up(ready);
    }
    let next = queue.take(ready, stays, now);
    let Some(next) = next else {
        if stays.is_some() && now >= queue.until.load(Relaxed) {
            ready.is_due = false;
            queue.until.store(queue.end_of_turn(ready, now), Relaxed);
        }
        return None;
    };
    queue.len.fetch_sub(1, Relaxed);
    // Asked once: another CPU may change it meanwhile.
    let may_run = next.allowed().contains(cpu);
    if may_run {
        queue.run(ready, cpu, &next, now);
    }
    ready.takes_due = false;
    Some(Taken { task: next, may_run, at: now })
}

/// A CPU runs a task from now on, which it returns, that comes from no queue, or from another's.
pub(super) fn run(cpu: usize, task: &Arc<Task>) -> Nanos {
    let (queue, now) = (&QUEUES[cpu], clock::now());
    let mut ready = queue.ready.lock();
    queue.charge(&mut ready, now);
    queue.run(&mut ready, cpu, task, now);
    now
}

/// An interrupt begins, or ends, to work for other tasks than the one that runs on a CPU.
pub(super) fn interrupt(cpu: usize, begins: bool) {
    let queue = &QUEUES[cpu];
    let mut ready = queue.ready.lock();
    queue.charge(&mut ready, clock::now());
    ready.is_interrupted = begins;
}

/// A turn is over, and no other task waits: another one begins.
pub(super) fn renew_turn(cpu: usize, now: Nanos) {
    let queue = &QUEUES[cpu];
    let mut ready = queue.ready.lock();
    queue.charge(&mut ready, now);
    ready.is_due = false;
    queue.until.store(now + SLICE, Relaxed);
}

/// Has a task follow its policy or niceness, which has changed, if it runs or waits for a CPU: one
/// that sleeps does as it is woken. Returns whether the turn of its CPU ends.
pub(super) fn follow(task: &Arc<Task>) -> bool {
    let (cpu, now) = (task.cpu(), clock::now());
    let queue = &QUEUES[cpu];
    let mut ready = queue.ready.lock();
    let ready_now = &mut *ready;
    queue.charge(ready_now, now);
    if ready_now.running.as_ref().is_some_and(|running| Arc::ptr_eq(running, task)) {
        ready_now.weight -= task.fair.weight();
        task.fair.follow(task);
        ready_now.weight += task.fair.weight();
        queue.priority.store(task.fair.priority(), Relaxed);
        queue.until.store(now, Relaxed);
        return true;
    }
    if !task.is_ready() {
        return false;
    }
    let Some(task) = ready_now.remove(true, |other| Arc::ptr_eq(other, task)) else { return false };
    queue.note_waiting(ready_now);
    queue.len.fetch_sub(1, Relaxed);
    queue.enter(ready_now, cpu, task, Comes::Ready, now)
}

/// When the turn that is under way on a CPU ends.
#[inline]
pub(super) fn until(cpu: usize) -> Nanos {
    QUEUES[cpu].until.load(Relaxed)
}

/// Takes a task that may run on CPU `here` from another's queue.
pub(super) fn steal(here: usize) -> Option<Arc<Task>> {
    let cpus = cpu::count();
    (here + 1..here + cpus).find_map(|victim| steal_from(victim % cpus, here, true, |_| true))
}

/// Takes one that `may` be taken. Leaves those that are due soon where they are, unless they are
/// wanted too.
fn steal_from(
    victim: usize,
    here: usize,
    with_due: bool,
    may: impl Fn(&Arc<Task>) -> bool,
) -> Option<Arc<Task>> {
    let queue = &QUEUES[victim];
    if queue.len.load(Relaxed) == 0 {
        return None;
    }
    let mut ready = queue.ready.lock();
    let ready = &mut *ready;
    let may = |task: &Arc<Task>| task.allowed().contains(here) && may(task);
    let at = if with_due { ready.urgent.iter().position(may) } else { None };
    let urgent = at.and_then(|at| ready.urgent.remove(at));
    let task = urgent.or_else(|| ready.remove(with_due, may))?;
    queue.note_waiting(ready);
    queue.len.fetch_sub(1, Relaxed);
    task.set_cpu(here);
    Some(task)
}

/// Takes the first, or else any, task that may be taken off a list.
fn take_where<const BY: u8>(
    list: &mut BinaryHeap<Entry<BY>>,
    may: impl Fn(&Arc<Task>) -> bool,
) -> Option<Arc<Task>> {
    if list.peek().is_some_and(|Entry(first)| may(first)) {
        return list.pop().map(|Entry(task)| task);
    }
    let at = list.iter().position(|Entry(task)| may(task))?;
    let mut entries = core::mem::take(list).into_vec();
    let Entry(task) = entries.swap_remove(at);
    *list = entries.into();
    Some(task)
}

/// Evens queues out: takes a task from the longest queue if that has two more than this CPU's.
///
/// If it has one more, each of its tasks has less than each one here. So one of them comes over
/// every now and then, the one that has moved longest ago: then another queue is the longest.
///
/// Before that, a real-time task that waits elsewhere comes to where a task runs that it goes
/// before.
pub(super) fn balance(here: usize, now: Nanos) {
    let waiting = |cpu: &usize| QUEUES[*cpu].waiting_priority.load(Relaxed);
    if let Some(cpu) = (0..cpu::count())
        .max_by_key(waiting)
        .filter(|cpu| *cpu != here && waiting(cpu) > priority(here))
    {
        let own = priority(here);
        if let Some(task) = steal_from(cpu, here, true, |task| task.fair.priority() > own) {
            push(here, task, Comes::Ready);
            return;
        }
    }
    let own = len(here);
    let Some(longest) = (0..cpu::count()).max_by_key(|&cpu| len(cpu)) else { return };
    let (more, period) = (len(longest).saturating_sub(own), ROTATION * (own as Nanos + 1));
    let has_stayed = |moved: Nanos, periods| now.saturating_sub(moved) >= periods * period / 2;
    if more == 0 || more == 1 && !has_stayed(QUEUES[here].rotated.load(Relaxed), 2) {
        return;
    }
    let may = |task: &Arc<Task>| more > 1 || has_stayed(task.fair.moved.load(Relaxed), 3);
    if let Some(task) = steal_from(longest, here, false, may) {
        for queue in [here, longest] {
            QUEUES[queue].rotated.store(now, Relaxed);
        }
        task.fair.moved.store(now, Relaxed);
        push(here, task, Comes::Ready);
    }
}

/// The real-time priority that a task must be above to run on a CPU at once; a moment ago.
pub(super) fn priority(cpu: usize) -> u8 {
    let queue = &QUEUES[cpu];
    queue.priority.load(Relaxed).max(queue.waiting_priority.load(Relaxed))
}

/// Tasks in a CPU's queue, a moment ago.
#[inline]
pub(super) fn len(cpu: usize) -> usize {
    QUEUES[cpu].len.load(Relaxed)
}
