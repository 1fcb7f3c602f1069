//! Locks that many read at once (`machine::shared`), by behaviour, on threads of the host.
//!
//! That changes exclude readers in all schedules is shown in `uvm-check/tests/loom/shared.rs`;
//! here, when a lock opens and closes, and who waits for whom.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use machine::order::{Held, Nothing, Object};
use machine::shared::{Access, Pinned, Row};
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
fn reads_exclusively<const COUNT: usize>(lock: &Lock<COUNT>, h: &mut Held<'_, Nothing>) -> bool {
    let (access, _h) = lock.read(h);
    assert_eq!(access.is_exclusive(), matches!(access, Access::Exclusive(_)));
    access.is_exclusive()
}

fn open(h: &mut Held<'_, Nothing>) -> Lock {
    let lock = lock();
    open_again(&lock, h);
    lock
}

/// Reads until the lock is open.
fn open_again(lock: &Lock, h: &mut Held<'_, Nothing>) {
    assert!((0..2 * QUIET).any(|_| !reads_exclusively(lock, h)), "it stays closed");
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
        *a.read(h).0.exclusive().expect("it is the first read since") += 1;
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
            let alone = (0..reads).filter(|_| reads_exclusively(&lock, h)).count();
            assert_eq!(alone, reads.min(QUIET), "of {reads}");
        }
        let before = TAKEN.get();
        assert!(
            !reads_exclusively(&lock, h) && TAKEN.get() == before,
            "who reads an open lock doesn't take it"
        );
    }
    assert!(ROWS.iter().all(Row::is_empty));
}

/// A way to read beside others.
type Read = for<'a> fn(&'a Lock, &'a mut Held<'_, Nothing>) -> Access<'a, Rowed<4>, u32>;

const READS: [Read; 2] = [
    |lock, h| lock.read(h).0,
    |lock, h| lock.read_if(h, || true).unwrap_or_else(|_| unreachable!()).0,
];

/// Checks that a change waits until `reading` is dropped, which says what it reads.
fn change_waits<D: core::ops::Deref<Target = u32>>(
    (lock, other): (&Lock, &Lock),
    change: impl Fn(&Lock, &Lock, &mut Held<'_, Nothing>) + Sync,
    reading: D,
) {
    let has_changed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            CPU.set(1);
            change(lock, other, &mut ThreadCtx::new().held());
            has_changed.store(true, SeqCst);
        });
        std::thread::sleep(Duration::from_millis(5));
        assert!(!has_changed.load(SeqCst), "it was changed while another thread read");
        assert_eq!(*reading, 0);
        drop(reading);
    });
    assert!(has_changed.load(SeqCst) && ROWS.iter().all(Row::is_empty));
    assert_eq!(*lock.read(&mut ThreadCtx::new().held()).0, 1);
}

#[test]
fn a_change_waits_for_those_who_read() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for read in READS {
        for change in CHANGES {
            let (lock, other) = (open(h), lock());
            let reading = read(&lock, h);
            assert!(!reading.is_exclusive() && !ROWS[0].is_empty());
            change_waits((&lock, &other), change, reading);
        }
    }
}

/// Pins the value for some pages.
fn pin<'a>(
    lock: &'a Lock,
    access: Access<'a, Rowed<4>, u32>,
    pages: Range<u64>,
    copy: &'a mut MaybeUninit<u32>,
) -> Pin<'a> {
    let part = NonNull::from(&*access);
    // SAFETY: the part is what the lock guards, a number; a thread that changes it here excludes
    // the pages or means that the copy misses the change.
    unsafe { access.pin(lock, part, pages, copy) }
}

type Pin<'a> = Pinned<'a, Rowed<4>, u32, u32>;

/// A change that excludes pins of some pages waits for them, and for no others; a copy is as it
/// was. Locks that are biased, and not.
#[test]
fn a_change_waits_for_pins_of_its_pages() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for is_open in [false, true] {
        for (pages, overlaps) in [
            (0..16, false),
            (15..17, true),
            (16..32, true),
            (31..32, true),
            (20..21, true),
            (32..48, false),
            (0..1 << 40, true),
            (20..20, false),
        ] {
            let (lock, other) = (if is_open { open(h) } else { lock() }, lock());
            let access = lock.read(h).0;
            assert_eq!(access.is_exclusive(), !is_open);
            let mut copy = MaybeUninit::uninit();
            let pin = pin(&lock, access, 16..32, &mut copy);
            let change = |lock: &Lock, _: &Lock, h: &mut Held<'_, Nothing>| {
                let (mut value, _h) = lock.lock(h);
                lock.exclude(&value, pages.clone());
                *value += 1;
            };
            if overlaps {
                change_waits((&lock, &other), change, pin);
            } else {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        CPU.set(1);
                        change(&lock, &other, &mut ThreadCtx::new().held());
                    });
                });
                assert_eq!((*pin, *lock.read(&mut ThreadCtx::new().held()).0), (0, 1));
            }
        }
    }
}

/// A pin needs a place in the CPU's row; without one, the lock is kept.
#[test]
fn a_pin_without_a_place_keeps_the_lock() {
    let _turn = turn();
    let mut contexts = [const { None }; PLACES].map(|_: Option<()>| ThreadCtx::new());
    let locks: Vec<_> = (0..=PLACES).map(|_| lock()).collect();
    let mut held: Vec<_> = contexts.iter_mut().map(ThreadCtx::held).collect();
    let (mut copies, mut copy) = ([const { MaybeUninit::uninit() }; PLACES], MaybeUninit::uninit());
    let mut pins: Vec<_> = locks[..PLACES]
        .iter()
        .zip(&mut held)
        .zip(&mut copies)
        .map(|((lock, h), copy)| pin(lock, lock.read(h).0, 0..1, copy))
        .collect();
    let (last, mut ctx) = (&locks[PLACES], ThreadCtx::new());
    let change = |lock: &Lock, _: &Lock, h: &mut Held<'_, Nothing>| *lock.lock(h).0 += 1;
    let mut h = ctx.held();
    let kept = pin(last, last.read(&mut h).0, 0..1, &mut copy);
    pins.clear();
    change_waits((last, &locks[0]), change, kept);
}

#[test]
fn those_who_read_do_not_wait_for_each_other() {
    let _turn = turn();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    for read in READS {
        let lock = open(h);
        let _first = read(&lock, h);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ctx = ThreadCtx::new();
                let h = &mut ctx.held();
                let beside = lock.read(h).0;
                assert!(!beside.is_exclusive() && beside.exclusive().is_none());
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
    assert!(reads.iter().all(|read| !read.is_exclusive()) && reads_exclusively(last, h));
    CPU.set(1);
    assert!(!reads_exclusively(last, h), "it opens where there is a place");
    CPU.set(0);
    drop(reads);
    open_again(last, h);
    assert!(!reads_exclusively(last, h) && ROWS.iter().all(Row::is_empty));
}

#[test]
fn a_machine_with_one_row_has_plain_locks() {
    fn always_alone<const COUNT: usize>() {
        let mut ctx = ThreadCtx::new();
        let h = &mut ctx.held();
        let mut lock = Lock::<COUNT>::new(0);
        (0..4 * QUIET).for_each(|_| assert!(reads_exclusively(&lock, h)));
        for _ in 0..4 * QUIET {
            *lock.read(h).0.exclusive().expect("no other thread could be beside") += 1;
        }
        assert_eq!(*lock.get_mut(), 4 * QUIET as u32);
    }
    let _turn = turn();
    always_alone::<0>();
    always_alone::<1>();
}

#[test]
fn a_lock_names_its_level() {
    assert_eq!(format!("{:?}", lock()), "Object lock");
}
