//! Timers, slices and the bookkeeping of processor time.
//!
//! The alarm is armed for the next timer, or for the end of the current slice while a program runs;
//! a CPU that only sleeps takes no interrupt but for timers. A tick that is armed already is left
//! alone by a switch: it looks at the slice when it comes.
//!
//! Processor time is measured: every switch charges what has passed since the last, and each way
//! into the kernel counts what the program has run since the way out (`entry.s`). What is left is
//! the kernel's.
//!
//! Each CPU has timers of its own: a timer goes off on the CPU that set it. Clocks of all CPUs show
//! the same (`start` has looked). A CPU whose alarm should have gone off long ago hangs, with
//! interrupts off: the others look for that at their ticks.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::turn::TURN;
use super::{load, others_ready, queue, Task, Work};
use crate::arch::{clock as hardware, cpu, ipi};
use crate::lock::SpinLock;

pub use hardware::Nanos;

/// How long a program runs at most while others wait; for shorter turns see `queue`.
pub(super) const SLICE: Nanos = 10_000_000;
/// How often CPU time is looked at while a thread runs whose process has timers on it; all such
/// ticks coincide.
pub const TICK: Nanos = 4_000_000;
/// How late an alarm may be before its CPU is taken to hang; and how often the others look.
const HANG: Nanos = 10_000_000_000;
const LOOK: Nanos = 1_000_000_000;

/// Names a timer, to cancel it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId {
    deadline: Nanos,
    serial: u64,
    cpu: usize,
}

type Call = Box<dyn FnOnce() + Send>;

/// Tasks to wake, and what else is to be done. What is due is done in that order: a program may
/// have thousands of timers go off at one moment, or of threads sleep until then, which no other
/// program's sleep waits for.
struct Timers {
    wakes: BTreeMap<TimerId, Arc<Task>>,
    later: BTreeMap<TimerId, Later>,
    next_serial: u64,
    /// What is due later waits until then, since others have the CPU after some was done.
    next_later: Nanos,
}

/// What is done a part at a time.
enum Later {
    Call(Call),
    /// Wakes a task whose process has [`SLEEPERS`] in `wakes`.
    Wake(Arc<Task>),
}

/// So many tasks of a process are woken before all others.
const SLEEPERS: usize = 64;

impl Timers {
    const fn new() -> Timers {
        Timers { wakes: BTreeMap::new(), later: BTreeMap::new(), next_serial: 0, next_later: 0 }
    }

    fn next_id(&mut self, deadline: Nanos, cpu: usize) -> TimerId {
        let serial = self.next_serial;
        self.next_serial += 1;
        TimerId { deadline, serial, cpu }
    }

    /// When something is to be done next.
    fn next(&self) -> Nanos {
        let wake = self.wakes.first_key_value().map_or(Nanos::MAX, |(id, _)| id.deadline);
        let later = self
            .later
            .first_key_value()
            .map_or(Nanos::MAX, |(id, _)| id.deadline.max(self.next_later));
        wake.min(later)
    }

    /// Whether something is to be done now beside waking tasks.
    fn has_later(&self, now: Nanos) -> bool {
        let first = self.later.first_key_value();
        self.next_later <= now && first.is_some_and(|(id, _)| id.deadline <= now)
    }

    fn take_wake(&mut self, now: Nanos) -> Option<Arc<Task>> {
        take_due(&mut self.wakes, now).inspect(|task| let_sleeper_go(task))
    }
}

fn let_sleeper_go(task: &Task) {
    if let Some(thread) = task.user() {
        thread.process.sleepers.fetch_sub(1, Relaxed);
    }
}

/// The first that is due, taken out.
fn take_due<T>(pending: &mut BTreeMap<TimerId, T>, now: Nanos) -> Option<T> {
    let first = pending.first_entry()?;
    (first.key().deadline <= now).then(|| first.remove())
}

/// One CPU's times and timers; all but the timers only that CPU writes.
#[repr(align(128))]
struct Local {
    timers: SpinLock<Timers>,
    /// When the alarm goes off.
    armed: AtomicU64,
    /// Up to when the current task has been charged.
    charged: AtomicU64,
    /// When the current slice began.
    slice: AtomicU64,
    /// What has been charged here: to programs, to the kernel, to the idle task.
    user: AtomicU64,
    kernel: AtomicU64,
    idle: AtomicU64,
    /// How often another task began to run here.
    switches: AtomicU64,
    /// The number of the turn in which a task was woken last that then was due.
    brought: AtomicU64,
}

static LOCAL: [Local; cpu::MAX_CPUS] = [const {
    Local {
        timers: SpinLock::new(Timers::new()),
        armed: AtomicU64::new(u64::MAX),
        charged: AtomicU64::new(0),
        slice: AtomicU64::new(0),
        user: AtomicU64::new(0),
        kernel: AtomicU64::new(0),
        idle: AtomicU64::new(0),
        switches: AtomicU64::new(0),
        brought: AtomicU64::new(u64::MAX),
    }
}; cpu::MAX_CPUS];

#[inline]
fn local() -> &'static Local {
    &LOCAL[cpu::index()]
}

/// Adds to a count that only this CPU writes.
#[inline]
fn add(count: &AtomicU64, nanos: Nanos) {
    count.store(count.load(Relaxed) + nanos, Relaxed);
}

/// What a CPU has done since it started, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub struct Times {
    /// Programs' own instructions.
    pub user: Nanos,
    /// The kernel, for programs and for itself.
    pub kernel: Nanos,
    /// Nothing.
    pub idle: Nanos,
}

/// The times of a CPU, up to its last tick or switch; one that is idle is idle up to now.
pub fn times(cpu: usize) -> Times {
    let local = &LOCAL[cpu];
    let [user, kernel, idle] =
        [&local.user, &local.kernel, &local.idle].map(|count| count.load(Relaxed));
    let rest = now().saturating_sub(user + kernel + idle);
    let rest = if super::is_idle(cpu) { rest } else { 0 };
    Times { user, kernel, idle: idle + rest }
}

/// How often CPUs have changed tasks.
pub fn switches() -> u64 {
    LOCAL.iter().map(|local| local.switches.load(Relaxed)).sum()
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

/// Calls `f` in interrupt context once `deadline` has passed. It takes no sleeping lock and doesn't
/// sleep. Beside a crowd of calls it waits for its turn.
pub fn timer_at(deadline: Nanos, f: Call) -> TimerId {
    insert(deadline, |timers, id| _ = timers.later.insert(id, Later::Call(f)))
}

/// Wakes a task once `deadline` has passed; beside a crowd of its own process it waits for its
/// turn.
pub fn wake_at(deadline: Nanos, task: &Arc<Task>) -> TimerId {
    let sleepers = task.user().map(|thread| &thread.process.sleepers);
    let enters = |count| (count < SLEEPERS).then_some(count + 1);
    let is_first =
        sleepers.is_none_or(|count| count.fetch_update(Relaxed, Relaxed, enters).is_ok());
    insert(deadline, |timers, id| {
        if is_first {
            timers.wakes.insert(id, task.clone());
        } else {
            timers.later.insert(id, Later::Wake(task.clone()));
        }
    })
}

/// Makes sure of a tick for a process that has begun to count its CPU time.
pub fn tick_soon() {
    let (now, local) = (now(), local());
    let deadline = next_tick(now);
    if deadline < local.armed.load(Relaxed) {
        arm(deadline, now);
    }
}

fn next_tick(now: Nanos) -> Nanos {
    (now / TICK + 1) * TICK
}

/// Until when a task may run without a tick whose turn ends at some time.
#[inline]
fn tick_of(task: &Task, now: Nanos, end: Nanos) -> Nanos {
    if task.counts_cpu_time() {
        end.min(next_tick(now))
    } else {
        end
    }
}

/// When the turn that is under way ends. A thread of the kernel may have it for [`TURN`] at least:
/// then it gives way, in foreign code by the alarm.
fn end_of_turn(task: &Task, local: &Local) -> Nanos {
    let until = queue::until(cpu::index());
    if task.user().is_some() {
        return until;
    }
    until.max(local.slice.load(Relaxed) + TURN)
}

/// Whether the running task's turn has ended.
pub(super) fn is_turn_over() -> bool {
    end_of_turn(&super::current(), local()) <= now()
}

/// The turn that is under way is shorter than it was: sees to it that it ends in time.
pub(super) fn turn_is_shorter() {
    let (now, local, task) = (now(), local(), super::current());
    if task.is_idle() {
        return;
    }
    let end = end_of_turn(&task, local);
    if end <= now {
        task.add_work(Work::RESCHEDULE);
    } else if end < local.armed.load(Relaxed) {
        arm(end, now);
    }
}

/// Whether a task that is woken now is the first one in this turn.
#[inline]
pub(super) fn is_first_woken() -> bool {
    let local = local();
    let turn = local.switches.load(Relaxed);
    let is_first = local.brought.load(Relaxed) != turn;
    local.brought.store(turn, Relaxed);
    is_first
}

/// Makes sure that a timer doesn't go off any more; says whether it still would have. One that
/// doesn't may be going off at this moment, on the CPU that set it.
pub fn timer_cancel(timer: TimerId) -> bool {
    let mut timers = LOCAL[timer.cpu].timers.lock();
    let wake = timers.wakes.remove(&timer);
    let later = if wake.is_none() { timers.later.remove(&timer) } else { None };
    drop(timers);
    if let Some(task) = &wake {
        let_sleeper_go(task);
    }
    wake.is_some() || later.is_some()
}

fn insert(deadline: Nanos, enter: impl FnOnce(&mut Timers, TimerId)) -> TimerId {
    let cpu = cpu::index();
    let local = &LOCAL[cpu];
    let mut timers = local.timers.lock();
    let id = timers.next_id(deadline, cpu);
    enter(&mut timers, id);
    drop(timers);
    if deadline < local.armed.load(Relaxed) {
        arm(deadline, now());
    }
    id
}

#[inline]
fn arm(deadline: Nanos, now: Nanos) {
    local().armed.store(deadline, Relaxed);
    hardware::arm(deadline.saturating_sub(now));
}

/// The timer was used for something else meanwhile: starts it anew. An alarm that went off then
/// goes off twice, which does nothing.
pub fn arm_again() {
    let armed = local().armed.load(Relaxed);
    if armed == u64::MAX {
        hardware::disarm();
    } else {
        hardware::arm(armed.saturating_sub(now()));
    }
}

/// The alarm has gone off.
pub fn timer_interrupt() {
    let (now, local) = (now(), local());
    // The timer isn't armed until all is known that it has to go off for.
    local.armed.store(now, Relaxed);
    run_due(now, local);
    let task = &super::current();
    charge(local, task, now);
    load::look(now, task.is_idle());
    if task.counts_cpu_time() {
        task.add_work(Work::TICK);
    }
    let mut next = local.timers.lock().next();
    let mut end = end_of_turn(task, local);
    let is_over = end <= now;
    if is_over {
        end = now + SLICE;
    }
    if !task.is_idle() {
        next = next.min(tick_of(task, now, end));
    }
    if task.user().is_some() && is_over {
        if cpu::count() > 1 {
            queue::balance(cpu::index(), now);
        }
        if others_ready() {
            task.add_work(Work::RESCHEDULE);
        } else {
            queue::renew_turn(cpu::index(), now);
        }
    }
    if next == u64::MAX {
        local.armed.store(next, Relaxed);
    } else {
        // What was due has taken its time.
        arm(next, self::now());
    }
    if cpu::count() > 1 {
        look_for_hangs(now);
    }
}

/// Charges the running task what has passed since the last time.
fn charge(local: &Local, task: &Task, now: Nanos) {
    let since = now.saturating_sub(local.charged.load(Relaxed));
    local.charged.store(now, Relaxed);
    if task.is_idle() {
        return add(&local.idle, since);
    }
    let user = hardware::of_ticks(cpu::take_user_ticks()).min(since);
    add(&local.user, user);
    add(&local.kernel, since - user);
    task.charge(user, since - user);
}

/// Charges the caller what it has used up to now.
pub fn charge_current() {
    charge(local(), &super::current(), now());
}

/// Wakes the tasks whose time has come, then does what is due later, for as long as may be at once:
/// how long a call takes depends on what a program has wait for it.
fn run_due(now: Nanos, local: &Local) {
    const AT_ONCE: Nanos = 100_000;
    /// Others have the CPU for so many times as long before the next is done, whenever that is due.
    const BETWEEN: Nanos = 2;
    let wake = || local.timers.lock().take_wake(now);
    while let Some(task) = wake() {
        super::wake_due(&task);
    }
    if !local.timers.lock().has_later(now) {
        return;
    }
    let (cpu, begun) = (cpu::index(), self::now());
    queue::interrupt(cpu, true);
    loop {
        let time = self::now();
        let took = time - begun;
        let later = {
            let mut timers = local.timers.lock();
            let later = if took < AT_ONCE { take_due(&mut timers.later, now) } else { None };
            let Some(later) = later else {
                timers.next_later = time + BETWEEN * took;
                break;
            };
            later
        };
        match later {
            // One of a crowd stands with all others.
            Later::Wake(task) => super::wake_with_others(&task),
            Later::Call(call) => {
                // A task that the call wakes is due as well.
                local.brought.store(u64::MAX, Relaxed);
                call();
            }
        }
    }
    queue::interrupt(cpu, false);
}

/// Charges the task that is left, and makes sure of a tick while another one than the idle task
/// runs.
pub(super) fn charge_switch(from: &Task, to: &Task, now: Nanos) {
    let local = local();
    charge(local, from, now);
    load::look(now, from.is_idle());
    local.slice.store(now, Relaxed);
    add(&local.switches, 1);
    let tick = tick_of(to, now, end_of_turn(to, local));
    if !to.is_idle() && local.armed.load(Relaxed) > tick {
        arm(tick, now);
    }
}

/// Hangs this CPU, interrupts off and deaf to others, until they must have noticed.
pub fn hang() {
    let until = now() + HANG + 2 * LOOK;
    while now() < until {
        core::hint::spin_loop();
    }
}

/// Has all CPUs say where they are if one of them hasn't taken its alarm for long; once for each.
fn look_for_hangs(now: Nanos) {
    static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let due = NEXT_LOOK.load(Relaxed);
    if now < due || NEXT_LOOK.compare_exchange(due, now + LOOK, Relaxed, Relaxed).is_err() {
        return;
    }
    let hangs = |&cpu: &usize| LOCAL[cpu].armed.load(Relaxed).saturating_add(HANG) < now;
    let Some(cpu) = (0..cpu::count()).find(hangs) else { return };
    if KNOWN.fetch_or(1 << cpu, Relaxed) & 1 << cpu == 0 {
        crate::control!(
            "trace CPU {cpu} hangs: its alarm is {} seconds late",
            HANG / 1_000_000_000
        );
        ipi::show_all();
    }
}
