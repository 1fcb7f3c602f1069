//! Ordered over the kernel's spin lock: guards exclude, and order what their holders did.
//!
//! The value behind each lock is a cell of loom's, which reports two threads in it at once and an
//! access that nothing orders behind the last.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc;
use loom::thread;
use machine::order::{Held, Nothing, Object};
use machine::{Ordered, RawLock, ThreadCtx};

use crate::all_schedules;
use crate::sync::RawSpin;

type Counter<R> = Ordered<Object, R, UnsafeCell<u32>>;

fn add<R: RawLock>(counter: &Counter<R>, held: &mut Held<'_, Nothing>) {
    let (guard, _h) = counter.lock(held);
    // SAFETY: loom reports it if the guard does not exclude others.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn sum<R: RawLock>(counter: &Counter<R>) -> u32 {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let (guard, _h) = counter.lock(held);
    // SAFETY: as in `add`.
    guard.with(|value| unsafe { *value })
}

/// Two threads that each do something with two locks, and what the locks guard then.
fn two_threads<R: RawLock + 'static>(
    work: impl Fn(&Counter<R>, &Counter<R>, &mut Held<'_, Nothing>) + Copy + Send + 'static,
) -> (u32, u32) {
    let locks =
        Arc::new((Counter::<R>::new(UnsafeCell::new(0)), Counter::<R>::new(UnsafeCell::new(0))));
    assert_eq!((sum(&locks.0), sum(&locks.1)), (0, 0));
    let theirs = locks.clone();
    let other = thread::spawn(move || work(&theirs.1, &theirs.0, &mut ThreadCtx::new().held()));
    work(&locks.0, &locks.1, &mut ThreadCtx::new().held());
    other.join().unwrap();
    (sum(&locks.0), sum(&locks.1))
}

#[test]
fn a_guard_excludes_others_and_orders_what_they_did() {
    all_schedules(4, || {
        let sums = two_threads::<RawSpin>(|a, b, held| {
            add(a, held);
            add(b, held);
        });
        assert_eq!(sums, (2, 2));
    });
}

#[test]
fn a_pair_taken_in_either_order_is_taken() {
    all_schedules(4, || {
        let sums = two_threads::<RawSpin>(|a, b, held| {
            let (a, b, _h) = Ordered::lock_pair(a, b, held);
            for guard in [a, b] {
                // SAFETY: as in `add`.
                guard.with_mut(|value| unsafe { *value += 1 });
            }
        });
        assert_eq!(sums, (2, 2));
    });
}

#[test]
fn a_try_says_no_or_excludes() {
    all_schedules(4, || {
        let (a, b) = two_threads::<RawSpin>(|a, b, held| {
            for lock in [a, b] {
                if let Some((guard, _h)) = lock.try_lock(held) {
                    // SAFETY: as in `add`.
                    guard.with_mut(|value| unsafe { *value += 1 });
                }
            }
        });
        assert!((1..=2).contains(&a) && (1..=2).contains(&b));
    });
}

/// The twin: a lock whose unlock orders nothing.
struct Careless(AtomicBool);

// SAFETY: it breaks the contract on purpose; loom reports the access that this lets through.
unsafe impl RawLock for Careless {
    fn new() -> Careless {
        Careless(AtomicBool::new(false))
    }

    fn lock(&self) {
        while !self.try_lock() {
            thread::yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_that_orders_nothing_is_found() {
    all_schedules(2, || {
        two_threads::<Careless>(|a, b, held| [a, b].into_iter().for_each(|lock| add(lock, held)));
    });
}
