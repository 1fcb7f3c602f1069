//! The load averages: how many tasks run, could run or sleep uninterruptibly, damped over one,
//! five and fifteen minutes.
//!
//! That number is looked at every [`PERIOD`], and each average moves towards it, as on Linux. No
//! timer does that: a CPU that only sleeps takes no interrupt. The first switch, tick or reader
//! that comes after the end of a period sees to all periods that have ended: in all but the
//! last of these no CPU switched or ticked, so no task ran.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::clock::{self, Nanos};
use super::{is_idle, queue};
use crate::arch::cpu;
use crate::lock::SpinLock;

/// How often the number of tasks is looked at.
const PERIOD: Nanos = 5_000_000_000;

/// 1, as averages are kept.
const ONE: u64 = 1 << 11;
/// What is left of an average after a period: e to the power of -5/60, -5/300, -5/900.
const LEFT: [u64; 3] = [1884, 2014, 2037];
/// After so many periods nothing is left of any average.
const ALL: u64 = 4096;

/// When the period ends that is under way.
static NEXT: AtomicU64 = AtomicU64::new(PERIOD);
static AVERAGES: SpinLock<[u64; 3]> = SpinLock::new([0; 3]);
/// Threads of programs in sleeps that no signal ends.
static UNINTERRUPTIBLE: AtomicUsize = AtomicUsize::new(0);

pub(super) fn enter_uninterruptible() {
    UNINTERRUPTIBLE.fetch_add(1, Relaxed);
}

pub(super) fn leave_uninterruptible() {
    UNINTERRUPTIBLE.fetch_sub(1, Relaxed);
}

/// Threads of programs in sleeps that no signal ends.
pub fn uninterruptible() -> usize {
    UNINTERRUPTIBLE.load(Relaxed)
}

/// Tasks that run or could, those of the kernel too; a moment ago.
pub fn running() -> usize {
    (0..cpu::count()).map(|cpu| queue::len(cpu) + usize::from(!is_idle(cpu))).sum()
}

/// A task leaves this CPU, or an alarm has come upon it. Whether it was the idle one.
#[inline]
pub(super) fn look(now: Nanos, was_idle: bool) {
    if now >= NEXT.load(Relaxed) {
        let here = cpu::index();
        let is_counted = was_idle && !is_idle(here);
        end_periods(now, running() - usize::from(is_counted));
    }
}

#[cold]
fn end_periods(now: Nanos, running: usize) {
    let next = NEXT.load(Relaxed);
    if now < next {
        return;
    }
    let ended = (now - next) / PERIOD + 1;
    let Ok(_) = NEXT.compare_exchange(next, next + ended * PERIOD, Relaxed, Relaxed) else {
        return;
    };
    let mut averages = AVERAGES.lock();
    for (average, left) in averages.iter_mut().zip(LEFT) {
        let deep = uninterruptible() as u64 * ONE;
        for _ in 1..ended.min(ALL) {
            *average = toward(*average, left, deep);
        }
        *average = toward(*average, left, deep + running as u64 * ONE);
    }
}

/// An average after a period in which there were `now` tasks.
fn toward(average: u64, left: u64, now: u64) -> u64 {
    let sum = average * left + now * (ONE - left);
    // Rounded up, or the average would never reach `now`.
    let rounding = if now >= average { ONE - 1 } else { 0 };
    (sum + rounding) / ONE
}

/// The averages, in parts of [`SCALE`].
pub fn averages() -> [u64; 3] {
    let now = clock::now();
    if now >= NEXT.load(Relaxed) {
        end_periods(now, running());
    }
    *AVERAGES.lock()
}

/// See [`averages`].
pub const SCALE: u64 = ONE;
