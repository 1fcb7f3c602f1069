//! Shares of a CPU: virtual time, weights, and what a task asks for; see `queue`.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering::Relaxed};

use super::clock::{Nanos, SLICE};
use super::policy::{self, Policy};
use super::Task;
use crate::arch::cpu;

/// The longest turn of a task that is due.
pub(super) const MOMENT: Nanos = 62_500;
/// Requests lie between these.
pub(super) const SHORTEST: Nanos = 50_000;
pub(super) const LONGEST: Nanos = 4_000_000;
/// The turn of a task of `SCHED_RR`.
pub(super) const ROUND: Nanos = 100_000_000;
/// What a new task asks for first.
const FIRST: Nanos = 4 * SHORTEST;
/// A task is brief that sleeps after bursts of less than [`MOMENT`] so much more often than after
/// longer ones, and it may have so many moments in one burst. A host may run another CPU meanwhile:
/// then a burst seems long.
const BRIEF: u8 = 2;
const MOST_BRIEF: u8 = 7;
const MOMENTS: Nanos = 3;

/// The weight of niceness 0.
const UNIT: u64 = 1024;
/// The weight of `SCHED_IDLE`.
const IDLE_WEIGHT: u64 = 3;
/// Virtual time of a nanosecond for a weight of 1.
const VIRTUAL: u32 = 10;

/// Weights by niceness from -20 on: each step is a quarter more or less.
static WEIGHTS: [u64; 40] = {
    let (mut weights, mut i) = ([UNIT; 40], 0);
    while i < 20 {
        let (more, less) = (weights[20 - i] * 5 / 4, weights[19 + i] * 4 / 5);
        weights[19 - i] = more;
        if i != 0 {
            weights[20 + i] = less;
        }
        i += 1;
    }
    weights
};

/// What a task has of fairness: changed with its queue locked, or before the task is queued.
pub(super) struct Fair {
    pub(super) start: AtomicU64,
    deadline: AtomicU64,
    /// Of its niceness or policy; like the policy constant while the task runs or is in a queue.
    weight: AtomicU64,
    policy: AtomicU32,
    request: AtomicU64,
    /// How long it has run since it was woken.
    pub(super) burst: AtomicU64,
    /// How long a task of `SCHED_RR` has run in its round.
    round: AtomicU64,
    /// Sleeps after brief bursts, less those after long ones.
    briefs: AtomicU8,
    /// When the task came into the queue, by the number of tasks that came before.
    pub(super) came: AtomicU64,
    /// The CPU whose virtual time `start` is of.
    pub(super) cpu: AtomicUsize,
    /// When the task was last moved to even queues out.
    pub(super) moved: AtomicU64,
}

impl Fair {
    /// As far ahead as its maker, so that a program gains nothing by forks.
    pub(super) fn new() -> Fair {
        let (cpu, maker) = (cpu::index(), cpu::current_owned());
        let start = maker.filter(|task| task.fair.cpu.load(Relaxed) == cpu);
        Fair {
            start: AtomicU64::new(start.map_or(0, |task| task.fair.start())),
            deadline: AtomicU64::new(0),
            weight: AtomicU64::new(UNIT),
            policy: AtomicU32::new(0),
            request: AtomicU64::new(FIRST),
            burst: AtomicU64::new(0),
            round: AtomicU64::new(0),
            briefs: AtomicU8::new(0),
            came: AtomicU64::new(0),
            cpu: AtomicUsize::new(cpu),
            moved: AtomicU64::new(0),
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    pub(super) fn deadline(&self) -> u64 {
        self.deadline.load(Relaxed)
    }

    fn request(&self) -> Nanos {
        self.request.load(Relaxed)
    }

    /// Takes over the niceness and policy of the task that it belongs to.
    pub(super) fn follow(&self, task: &Task) {
        let Some(thread) = task.user() else {
            return self.weight.store(8 * UNIT, Relaxed);
        };
        let policy = thread.running_policy();
        let weight = match policy.kind() {
            policy::IDLE => IDLE_WEIGHT,
            _ => WEIGHTS[(thread.nice().clamp(-20, 19) + 20) as usize],
        };
        self.weight.store(weight, Relaxed);
        self.policy.store(policy.bits(), Relaxed);
    }

    fn policy(&self) -> Policy {
        Policy::from_bits(self.policy.load(Relaxed))
    }

    /// Its weight among those that have shares.
    pub(super) fn weight(&self) -> u64 {
        if self.is_real_time() {
            0
        } else {
            self.weight.load(Relaxed)
        }
    }

    /// From 1 to 99, or 0 for a task that has a share.
    pub(super) fn priority(&self) -> u8 {
        self.policy().priority()
    }

    pub(super) fn is_real_time(&self) -> bool {
        self.priority() != 0
    }

    /// It has run so long, of real time.
    pub(super) fn add_to_round(&self, run: Nanos) {
        self.round.store(self.round.load(Relaxed) + run, Relaxed);
    }

    /// How long a real-time task may run before others of its priority.
    pub(super) fn left_of_round(&self) -> Nanos {
        if self.policy().kind() != policy::ROUND_ROBIN {
            return SLICE;
        }
        ROUND.saturating_sub(self.round.load(Relaxed))
    }

    /// It goes behind those of its priority.
    pub(super) fn end_round(&self) {
        self.round.store(0, Relaxed);
        self.came.store(0, Relaxed);
    }

    /// Virtual time of so long a run.
    pub(super) fn virtual_time(&self, run: Nanos) -> u64 {
        virtual_time(run, self.weight.load(Relaxed))
    }

    /// Is no further behind than this, and asks anew.
    pub(super) fn start_at(&self, virtual_time: u64) {
        self.start.store(self.start().max(virtual_time), Relaxed);
        self.ask();
    }

    /// Asks for the CPU anew.
    pub(super) fn ask(&self) {
        self.deadline.store(self.start() + self.virtual_time(self.request()), Relaxed);
    }

    /// Asks anew, and for longer, if it has had all that it asked for.
    pub(super) fn ask_on(&self) {
        if self.start() >= self.deadline() {
            self.request.store((2 * self.request()).min(LONGEST), Relaxed);
            self.ask();
        }
    }

    /// Was woken: asks for as much as it has used up lately.
    pub(super) fn ask_again(&self) {
        let (request, burst) = (self.request(), self.burst.load(Relaxed));
        self.burst.store(0, Relaxed);
        let briefs = self.briefs.load(Relaxed);
        let briefs =
            if burst < MOMENT { (briefs + 1).min(MOST_BRIEF) } else { briefs.saturating_sub(1) };
        self.briefs.store(briefs, Relaxed);
        if burst < request / 2 {
            self.request.store((request / 2).max(SHORTEST), Relaxed);
        }
        self.ask();
    }

    /// Whether the task, so much ahead of virtual time, may be due: if it has run briefly before
    /// its last sleeps and since. A program that is nicer than others is due within its share
    /// alone. If it has run longer since, for the host has run another CPU, or for a long call, it
    /// may be due once more for each of its last brief bursts.
    pub(super) fn is_brief(&self, ahead: u64) -> bool {
        let is_nicer = self.weight.load(Relaxed) < UNIT;
        if is_nicer && ahead >= self.virtual_time(LONGEST)
            || matches!(self.policy().kind(), policy::BATCH | policy::IDLE)
        {
            return false;
        }
        let briefs = self.briefs.load(Relaxed);
        if self.burst.load(Relaxed) < MOMENTS * MOMENT {
            return briefs >= BRIEF;
        }
        self.briefs.store(briefs.saturating_sub(1), Relaxed);
        briefs > BRIEF
    }

    /// How long it may run until it has had what it asks for.
    pub(super) fn turn(&self) -> Nanos {
        let left = self.deadline().saturating_sub(self.start());
        real(left, self.weight.load(Relaxed)).clamp(SHORTEST, SLICE)
    }
}

/// The time in which so much virtual time passes for a weight.
pub(super) fn real(virtual_time: u64, weight: u64) -> Nanos {
    ((u128::from(virtual_time) * u128::from(weight)) >> VIRTUAL) as u64
}

/// The virtual time that passes for a weight in so long a run.
pub(super) fn virtual_time(run: Nanos, weight: u64) -> u64 {
    const MOST: Nanos = 1 << 44;
    if weight == UNIT {
        return run << (VIRTUAL - UNIT.ilog2());
    }
    (run.min(MOST) << VIRTUAL) / weight.max(1)
}
