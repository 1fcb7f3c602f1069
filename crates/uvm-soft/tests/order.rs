//! Ordered locks (`machine::order`) with threads of the host: exclusion, trying, pairs, waiting
//! without losing a wake.

use std::sync::Arc;

use machine::order::{Anon, Object, Ordered};
use machine::{Channel, Machine, RawLock, ThreadCtx};
use uvm_soft::{Config, SoftMachine, Stage};

type Lock = <SoftMachine as Machine>::Lock;

#[test]
fn one_thread_at_a_time_changes_the_value() {
    let lock = Arc::new(Ordered::<Object, Lock, u64>::new(0));
    let threads = (0..4).map(|_| {
        let lock = lock.clone();
        std::thread::spawn(move || {
            for _ in 0..1000 {
                *lock.lock(&mut ThreadCtx::new().held()).0 += 1;
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*lock.lock(&mut ThreadCtx::new().held()).0, 4000);
}

#[test]
fn a_held_lock_is_refused_to_who_tries() {
    let lock = Ordered::<Object, Lock, u8>::new(1);
    let (mut one, mut two) = (ThreadCtx::new(), ThreadCtx::new());
    let mut held = one.held();
    let guard = lock.lock(&mut held);
    assert!(lock.try_lock(&mut two.held()).is_none());
    drop(guard);
    assert!(lock.try_lock(&mut two.held()).is_some());
}

#[test]
fn a_pair_is_taken_in_one_order_whoever_asks() {
    let pair = Arc::new([Ordered::<Anon, Lock, u64>::new(0), Ordered::new(0)]);
    let threads = [(0, 1), (1, 0)].map(|(a, b)| {
        let pair = pair.clone();
        std::thread::spawn(move || {
            for _ in 0..2000 {
                let mut ctx = ThreadCtx::new();
                let mut held = ctx.held();
                let (mut x, mut y, _h) = Ordered::lock_pair(&pair[a], &pair[b], &mut held);
                *x += 1;
                *y += 1;
            }
        })
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut ctx = ThreadCtx::new();
    assert_eq!(*pair[0].lock(&mut ctx.held()).0, 4000);
}

#[test]
#[should_panic(expected = "taken twice")]
fn a_pair_of_one_lock_is_refused() {
    let lock = Ordered::<Anon, Lock, u8>::new(0);
    let mut ctx = ThreadCtx::new();
    let mut held = ctx.held();
    let _pair = Ordered::lock_pair(&lock, &lock, &mut held);
}

#[test]
fn a_wake_between_ticket_and_wait_is_not_lost() {
    let m = SoftMachine::new(Config::default());
    let channel = Channel(7);
    let ticket = m.ticket(channel);
    m.wake(channel);
    m.wait(&mut ThreadCtx::new().held(), ticket);
    assert_ne!(m.ticket(channel), ticket);
}

#[test]
fn a_waiter_is_woken_from_another_thread() {
    let m = Arc::new(SoftMachine::new(Config { stage: Stage::Concurrent, ..Config::default() }));
    let ticket = m.ticket(Channel(1));
    let waker = {
        let m = m.clone();
        std::thread::spawn(move || m.wake(Channel(1)))
    };
    m.wait(&mut ThreadCtx::new().held(), ticket);
    waker.join().unwrap();
}

#[test]
fn a_raw_lock_is_free_when_new() {
    let lock = Lock::new();
    assert!(lock.try_lock() && !lock.try_lock());
}
