//! Shared: who changes excludes who reads, by the lock or by a row, and both see what came before.

use loom::cell::UnsafeCell;
use loom::lazy_static;
use loom::sync::Arc;
use loom::thread;
use machine::order::{Held, Nothing, Object};
use machine::shared::{Access, Row};
use machine::{RawLock, Shared, ThreadCtx};

use crate::all_schedules;
use crate::sync::RawSpin;

/// A value that loom watches. `Sync`, since what is asked is whether the lock makes it so.
struct Value(UnsafeCell<u32>);
// SAFETY: loom reports two threads in the cell of which one writes.
unsafe impl Sync for Value {}

lazy_static! {
    static ref ROWS: [Row; 2] = [Row::new(), Row::new()];
}

loom::thread_local! {
    static CPU: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

/// The kernel's lock with rows.
struct Rowed<const WAITS: bool>(RawSpin);

// SAFETY: the kernel's lock; the rows don't weaken it.
unsafe impl<const WAITS: bool> RawLock for Rowed<WAITS> {
    fn new() -> Self {
        Rowed(RawSpin::new())
    }
    fn lock(&self) {
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
        // The twin: a writer that looks at one row only, not at the other CPU's.
        if WAITS || CPU.with(|cpu| cpu.get()) == 1 {
            &ROWS[..]
        } else {
            &ROWS[..1]
        }
    }
    fn cpu() -> usize {
        CPU.with(|cpu| cpu.get())
    }
    fn wait_until(mut done: impl FnMut() -> bool) {
        while !done() {
            thread::yield_now();
        }
    }
}

type Lock<R> = Shared<Object, R, Value>;

fn read<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>) -> (u32, bool) {
    let (value, _h) = lock.read(held);
    // SAFETY: loom reports a writer beside.
    (value.0.with(|value| unsafe { *value }), matches!(value, Access::Among(_)))
}

fn read_beside<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>) -> u32 {
    let Ok((value, _h)) = lock.read_beside_if(held, || true) else { unreachable!() };
    // SAFETY: loom reports a writer beside.
    value.0.with(|value| unsafe { *value })
}

fn add<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>) {
    let (value, _h) = lock.lock(held);
    // SAFETY: loom reports anybody beside.
    value.0.with_mut(|value| unsafe { *value += 1 });
}

/// A lock that is open to readers.
fn open<R: RawLock>() -> Lock<R> {
    let lock = Lock::<R>::new(Value(UnsafeCell::new(0)));
    let mut ctx = ThreadCtx::new();
    CPU.with(|cpu| cpu.set(1));
    while !read(&lock, &mut ctx.held()).1 {}
    CPU.with(|cpu| cpu.set(0));
    lock
}

fn writer_and_reader<const WAITS: bool>(reads: usize) {
    let lock = Arc::new(open::<Rowed<WAITS>>());
    let theirs = lock.clone();
    let other = thread::spawn(move || {
        CPU.with(|cpu| cpu.set(1));
        let mut ctx = ThreadCtx::new();
        (0..reads).map(|_| read(&theirs, &mut ctx.held()).0).last()
    });
    let mut ctx = ThreadCtx::new();
    add(&lock, &mut ctx.held());
    assert!(other.join().unwrap() <= Some(1));
    assert_eq!(read(&lock, &mut ctx.held()).0, 1);
}

#[test]
fn a_change_waits_for_who_reads_by_a_row() {
    all_schedules(3, || writer_and_reader::<true>(1));
}

#[test]
fn a_lock_that_opens_again_shows_the_change() {
    all_schedules(2, || writer_and_reader::<true>(6));
}

#[test]
fn two_writers_close_one_after_the_other() {
    all_schedules(2, || {
        let lock = Arc::new(open::<Rowed<true>>());
        let theirs = lock.clone();
        let other = thread::spawn(move || {
            CPU.with(|cpu| cpu.set(1));
            let mut ctx = ThreadCtx::new();
            read(&theirs, &mut ctx.held());
            add(&theirs, &mut ctx.held());
        });
        let mut ctx = ThreadCtx::new();
        add(&lock, &mut ctx.held());
        other.join().unwrap();
        assert_eq!(read(&lock, &mut ctx.held()).0, 2);
    });
}

/// A lock that isn't open is read beside a change: the change waits for who is counted, and who
/// comes later sees it.
#[test]
fn a_change_waits_for_who_is_counted() {
    all_schedules(3, || {
        let lock = Arc::new(Lock::<Rowed<true>>::new(Value(UnsafeCell::new(0))));
        // Loom's words are made where they are first used.
        assert_eq!(read_beside(&lock, &mut ThreadCtx::new().held()), 0);
        let theirs = lock.clone();
        let other = thread::spawn(move || {
            CPU.with(|cpu| cpu.set(1));
            read_beside(&theirs, &mut ThreadCtx::new().held())
        });
        let mut ctx = ThreadCtx::new();
        add(&lock, &mut ctx.held());
        assert_eq!(read_beside(&lock, &mut ctx.held()), 1);
        assert!(other.join().unwrap() <= 1);
    });
}

/// Who has changed something goes on reading what it made, beside others; the next change waits for
/// it.
#[test]
fn a_change_waits_for_who_reads_on() {
    let change_and_read_on = |lock: &Lock<Rowed<true>>| {
        let mut ctx = ThreadCtx::new();
        let mut held = ctx.held();
        let (value, _h) = lock.lock(&mut held);
        // SAFETY: loom reports anybody beside.
        let made = value.0.with_mut(|value| unsafe {
            *value += 1;
            *value
        });
        let value = lock.read_on(value);
        // SAFETY: loom reports a writer beside.
        assert_eq!(
            value.0.with(|value| unsafe { *value }),
            made,
            "it was changed by somebody else"
        );
    };
    all_schedules(3, move || {
        let lock = Arc::new(Lock::<Rowed<true>>::new(Value(UnsafeCell::new(0))));
        assert_eq!(read_beside(&lock, &mut ThreadCtx::new().held()), 0);
        let theirs = lock.clone();
        let other = thread::spawn(move || {
            CPU.with(|cpu| cpu.set(1));
            change_and_read_on(&theirs);
        });
        change_and_read_on(&lock);
        other.join().unwrap();
        assert_eq!(read_beside(&lock, &mut ThreadCtx::new().held()), 2);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_writer_that_does_not_look_at_every_row_is_found() {
    all_schedules(3, || writer_and_reader::<false>(1));
}
