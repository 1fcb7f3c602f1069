//! Shared: a writer excludes readers, by the lock or by a row, and both see what came before.

use loom::cell::UnsafeCell;
use loom::lazy_static;
use loom::sync::Arc;
use loom::thread;
use machine::order::{Held, Nothing, Object};
use machine::shared::{Access, Pinned, Row};
use machine::{RawLock, Shared, ThreadCtx};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

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
    (value.0.with(|value| unsafe { *value }), matches!(value, Access::Shared(_)))
}

/// Reads the value once it is pinned for page 16.
fn read_pinned<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>) -> u32 {
    let (access, _h) = lock.read(held);
    let part = NonNull::from(&*access);
    // SAFETY: what the lock guards; threads that change it exclude the page. Loom's cell keeps
    // track by its identity, which a copy has, too.
    let mut copy = MaybeUninit::uninit();
    let pin: Pinned<'_, R, Value, Value> = unsafe { access.pin(lock, part, 16..17, &mut copy) };
    // SAFETY: loom reports a writer beside.
    pin.0.with(|value| unsafe { *value })
}

fn add_excluding<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>, pages: Range<u64>) {
    let (value, _h) = lock.lock(held);
    lock.exclude(&value, pages);
    // SAFETY: loom reports any access beside.
    value.0.with_mut(|value| unsafe { *value += 1 });
}

fn add<R: RawLock>(lock: &Lock<R>, held: &mut Held<'_, Nothing>) {
    let (value, _h) = lock.lock(held);
    // SAFETY: loom reports any access beside.
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

/// A change of page 16 waits for its pins, of locks that are biased and of others.
fn pin_beside_change(biased: bool, pages: Range<u64>) {
    let lock =
        Arc::new(if biased { open::<Rowed<true>>() } else { Lock::new(Value(UnsafeCell::new(0))) });
    // Loom's words are made where they are first used.
    assert_eq!(read(&lock, &mut ThreadCtx::new().held()).0, 0);
    let theirs = lock.clone();
    let other = thread::spawn(move || {
        CPU.with(|cpu| cpu.set(1));
        read_pinned(&theirs, &mut ThreadCtx::new().held())
    });
    let mut ctx = ThreadCtx::new();
    add_excluding(&lock, &mut ctx.held(), pages);
    assert!(other.join().unwrap() <= 1);
    assert_eq!(read(&lock, &mut ctx.held()).0, 1);
}

#[test]
fn a_change_waits_for_who_has_pinned_its_page() {
    all_schedules(3, || pin_beside_change(false, 0..32));
    all_schedules(3, || pin_beside_change(true, 0..32));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_change_that_excludes_other_pages_is_found() {
    all_schedules(3, || pin_beside_change(false, 0..16));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_writer_that_does_not_look_at_every_row_is_found() {
    all_schedules(3, || writer_and_reader::<false>(1));
}
