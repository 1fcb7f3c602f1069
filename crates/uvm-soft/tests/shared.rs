//! Locks that many read at once (`machine::shared`), by behaviour, on threads of the host.
//!
//! That changes exclude readers in all schedules is shown in `uvm-check/tests/loom/shared.rs`;
//! here, when a lock opens and closes, and who waits for whom.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use machine::order::{Held, Nothing, Object};
use machine::shared::{Access, Row};
use machine::{RawLock, Shared, ThreadCtx};
use uvm_soft::{StdThreads, Threads};

type StdLock = <StdThreads as Threads>::Lock;

static ROWS: [Row; 4] = [const { Row::new() }; 4];
/// Reads without a change, by which a lock opens at the next: two for each row.
const QUIET: usize = 8;
/// Locks that a row has places for.
const PLACES: usize = 4;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    /// Locks that the thread has taken, whether to read or to change.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// A lock of a machine with so many rows.
struct Rowed<const ROWS: usize>(StdLock);

// SAFETY: the lock behind it is one; the rows are always the same.
unsafe impl<const COUNT: usize> RawLock for Rowed<COUNT> {
    fn new() -> Self {
        Rowed(StdLock::new())
    }

    fn lock(&self) {
        TAKEN.set(TAKEN.get() + 1);
        self.0.lock();
    }

    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    unsafe fn unlock(&self) {
        // SAFETY: as the caller of this says.
        unsafe { self.0.unlock() }
    }

    fn rows() -> &'static [Row] {
        &ROWS[..COUNT]
    }

    fn cpu() -> usize {
        CPU.get()
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        while !done() {
            std::thread::yield_now();
        }
    }
}

type Lock<const COUNT: usize = 4> = Shared<Object, Rowed<COUNT>, u32>;

fn lock() -> Lock {
    Shared::new(0)
}

/// The rows are all tests', so these run one after the other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    CPU.set(0);
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a read has the lock alone.
fn reads_alone<const COUNT: usize>(lock: &Lock<COUNT>, h: &mut Held<'_, Nothing>) -> bool {
    let (access, _h) = lock.read(h);
    assert!(!access.is_crowded(), "it isn't counted inside");
    assert_eq!(access.is_alone(), matches!(access, Access::Alone(_)));
    access.is_alone()
}

fn open(h: &mut Held<'_, Nothing>) -> Lock {
    let lock = lock();
    open_again(&lock, h);
    lock
}

/// Reads until the lock is open.
fn open_again(lock: &Lock, h: &mut Held<'_, Nothing>) {
    assert!((0..2 * QUIET).any(|_| !reads_alone(lock, h)), "it stays closed");
}

/// What changes a lock's value, for the lock and another one.
type Change = fn(&Lock, &Lock, &mut Held<'_, Nothing>);

const CHANGES: [Change; 5] = [
    |a, _, h| *a.lock(h).0 += 1,
    |a, _, h| *a.lock_if(h, || true).unwrap_or_else(|_| unreachable!()).0 += 1,
    |a, b, h| *Shared::lock_pair(a, b, h).0 += 1,
    |a, b, h| *Shared::lock_pair(b, a, h).1 += 1,
    |a, _, h| {
        // Who reads a closed lock alone may go on to change it; this closes it.
        assert!(a.lock_if(h, || false).is_err());
        *a.read(h).0.alone().expect("it is the first read since") += 1;
    },
];

#[test]
fn a_lock_opens_after_so_many_reads_without_a_change() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let (lock, other) = (lock(), lock());
    for change in &CHANGES[..4] {
        for reads in [1, QUIET - 1, QUIET, QUIET + 1, QUIET + 20] {
            change(&lock, &other, h);
            let alone = (0..reads).filter(|_| reads_alone(&lock, h)).count();
            assert_eq!(alone, reads.min(QUIET), "of {reads}");
        }
        let before = TAKEN.get();
        assert!(
            !reads_alone(&lock, h) && TAKEN.get() == before,
            "who reads an open lock doesn't take it"
        );
    }
    assert!(ROWS.iter().all(Row::is_empty));
}

/// A way to read beside others.
type Read = for<'a> fn(&'a Lock, &'a mut Held<'_, Nothing>) -> Access<'a, Rowed<4>, u32>;

/// Reads by a row, where the lock is open; and in the lock's count.
const READS: [(bool, bool, Read); 6] = [
    (true, false, |lock, h| lock.read(h).0),
    (true, false, |lock, h| lock.read_if(h, || true).unwrap_or_else(|_| unreachable!()).0),
    (true, false, |lock, h| lock.read_beside_if(h, || true).unwrap_or_else(|_| unreachable!()).0),
    (false, true, |lock, h| lock.read_beside_if(h, || true).unwrap_or_else(|_| unreachable!()).0),
    (true, true, |lock, h| lock.read_on(lock.lock(h).0)),
    (false, true, |lock, h| lock.read_on(lock.lock(h).0)),
];

#[test]
fn a_change_waits_for_those_who_read() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for (is_open, is_crowded, read) in READS {
        for change in CHANGES {
            let (lock, other) = (if is_open { open(h) } else { lock() }, lock());
            let (has_changed, reading) = (AtomicBool::new(false), read(&lock, h));
            assert!(!reading.is_alone() && reading.is_crowded() == is_crowded);
            assert_eq!(
                ROWS[0].is_empty(),
                is_crowded,
                "a row or the count says that somebody reads"
            );
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    CPU.set(1);
                    change(&lock, &other, &mut ThreadCtx::new().held());
                    has_changed.store(true, SeqCst);
                });
                std::thread::sleep(Duration::from_millis(5));
                assert!(!has_changed.load(SeqCst), "it was changed while somebody read");
                assert_eq!(*reading, 0);
                drop(reading);
            });
            assert!(has_changed.load(SeqCst) && ROWS.iter().all(Row::is_empty));
            assert_eq!(*lock.read(&mut ThreadCtx::new().held()).0, 1);
        }
    }
}

#[test]
fn those_who_read_do_not_wait_for_each_other() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for (is_open, _, read) in READS {
        let lock = if is_open { open(h) } else { lock() };
        let _first = read(&lock, h);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ctx = ThreadCtx::new();
                let h = &mut ctx.held();
                let beside = lock.read_beside_if(h, || true).unwrap_or_else(|_| unreachable!()).0;
                assert!(!beside.is_alone() && beside.alone().is_none());
            });
        });
    }
}

#[test]
fn a_lock_that_is_not_wanted_after_all_is_given_back() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for lock in [open(h), lock()] {
        for _ in 0..2 * QUIET {
            let Err(h) = lock.read_if(h, || false) else { unreachable!() };
            let Err(h) = lock.read_beside_if(h, || false) else { unreachable!() };
            assert!(ROWS.iter().all(Row::is_empty));
            // With the token and the lock as they were.
            *lock.lock(h).0 += 1;
        }
        let Err(h) = lock.lock_if(h, || false) else { unreachable!() };
        assert_eq!(*lock.lock(h).0, 2 * QUIET as u32);
    }
}

#[test]
fn a_lock_that_a_row_has_no_place_for_closes() {
    let _turn = turn();
    let (mut contexts, mut ctx) =
        ([const { None }; PLACES].map(|_: Option<()>| ThreadCtx::new()), ThreadCtx::new());
    let h = &mut ctx.held();
    let locks: Vec<_> = (0..=PLACES).map(|_| open(h)).collect();
    let last = &locks[PLACES];
    let mut held: Vec<_> = contexts.iter_mut().map(ThreadCtx::held).collect();
    let reads: Vec<_> = locks.iter().zip(&mut held).map(|(lock, h)| lock.read(h).0).collect();
    assert!(reads.iter().all(|read| !read.is_alone()) && reads_alone(last, h));
    CPU.set(1);
    assert!(!reads_alone(last, h), "it opens where there is a place");
    CPU.set(0);
    drop(reads);
    open_again(last, h);
    assert!(!reads_alone(last, h) && ROWS.iter().all(Row::is_empty));
}

#[test]
fn a_machine_with_one_row_has_plain_locks() {
    fn always_alone<const COUNT: usize>() {
        let mut ctx = ThreadCtx::new();
        let h = &mut ctx.held();
        let mut lock = Lock::<COUNT>::new(0);
        (0..4 * QUIET).for_each(|_| assert!(reads_alone(&lock, h)));
        for _ in 0..4 * QUIET {
            assert!(lock
                .read_beside_if(h, || true)
                .unwrap_or_else(|_| unreachable!())
                .0
                .is_alone());
            let mut guard = lock.read_on(lock.lock(h).0).alone().expect("nobody could be beside");
            *guard += 1;
        }
        assert_eq!(*lock.get_mut(), 4 * QUIET as u32);
    }
    let _turn = turn();
    always_alone::<0>();
    always_alone::<1>();
}

#[test]
#[should_panic(expected = "another lock's guard")]
fn another_locks_guard_is_no_leave_to_read() {
    let _turn = turn();
    let (a, b) = (lock(), lock());
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let _access = a.read_on(b.lock(h).0);
}

#[test]
fn a_lock_names_its_level() {
    assert_eq!(format!("{:?}", lock()), "Object lock");
}
