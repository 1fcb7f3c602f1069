//! The leaves of slots: I2, that a table which finds itself a leaf's only holder stays so, and may
//! write; and that of threads that put numbers into one table at once each gets its place or finds
//! another's number there.
//!
//! For the first, two tables share a leaf, as an amap and its copy do; each belongs to one thread,
//! as an amap to its lock's holder.

use core::num::NonZeroU32;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use machine::order::Anon;
use machine::{Ordered, ThreadCtx};

use crate::all_schedules;
use crate::slots::{Heap, Holders, Slots};
use crate::sync::RawSpin;

const PREEMPTIONS: usize = 4;

/// One anon: how many leaves hold it, and its page's bytes.
struct Body {
    refs: Ordered<Anon, RawSpin, u32>,
    bytes: UnsafeCell<u8>,
}

/// What counts leaves in the anon.
struct Counts<'a>(&'a Body);

impl Counts<'_> {
    fn refs(&self) -> u32 {
        *self.0.refs.lock(&mut ThreadCtx::new().held()).0
    }
}

impl Holders for Counts<'_> {
    fn reference(&mut self, _: NonZeroU32) {
        *self.0.refs.lock(&mut ThreadCtx::new().held()).0 += 1;
    }

    fn release_many(&mut self, numbers: impl Iterator<Item = NonZeroU32>) {
        *self.0.refs.lock(&mut ThreadCtx::new().held()).0 -= numbers.count() as u32;
    }
}

fn number() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn copy_of(slots: &Slots, body: &Body) -> Slots {
    let mut copy = Slots::new();
    slots.share_into(&mut copy, 0..4, [].into_iter(), &mut Counts(body));
    copy
}

/// A table with the anon at 0, and its copy.
fn two_tables() -> (Arc<Body>, Slots, Slots) {
    let body = Arc::new(Body { refs: Ordered::new(1), bytes: UnsafeCell::new(0) });
    assert_eq!(Counts(&body).refs(), 1);
    let mut a = Slots::new();
    a.set(0, number());
    let b = copy_of(&a, &body);
    (body, a, b)
}

/// A fault for writing: in place where no other thread can have the page, on a copy else.
fn write(slots: &mut Slots, body: &Body) {
    let mut counts = Counts(body);
    let found = slots.find(0);
    assert_eq!(found.number(), Some(number()));
    if found.is_shared() {
        slots.unshare(0, &mut counts);
    }
    if counts.refs() == 1 {
        // SAFETY: loom reports it if another thread reads.
        body.bytes.with_mut(|byte| unsafe { *byte += 1 });
    }
}

fn read(body: &Body) {
    // SAFETY: as in `write`.
    body.bytes.with(|byte| unsafe { *byte });
}

#[test]
fn the_last_holder_writes_after_all_others_have_read() {
    all_schedules(PREEMPTIONS, || {
        let (body, mut a, mut b) = two_tables();
        let theirs = body.clone();
        let child = thread::spawn(move || {
            read(&theirs);
            b.take_all(&mut Counts(&theirs));
        });
        write(&mut a, &body);
        child.join().unwrap();
        a.take_all(&mut Counts(&body));
        assert_eq!(Counts(&body).refs(), 0);
    });
}

#[test]
fn holders_that_part_at_once_are_counted_once_each() {
    all_schedules(PREEMPTIONS, || {
        let (body, mut a, mut b) = two_tables();
        let theirs = body.clone();
        let child = thread::spawn(move || {
            b.unshare(0, &mut Counts(&theirs));
            b
        });
        a.unshare(0, &mut Counts(&body));
        let mut b = child.join().unwrap();
        assert!(!a.is_shared(0) && !b.is_shared(0));
        assert_eq!(Counts(&body).refs(), 2);
        let _ = a.take_range(0..1, Heap::Reserved, &mut Counts(&body));
        let _ = b.take_range(0..1, Heap::Reserved, &mut Counts(&body));
        assert_eq!(Counts(&body).refs(), 0);
    });
}

#[test]
fn a_copy_of_a_copy_keeps_the_leaf_shared() {
    all_schedules(PREEMPTIONS, || {
        let (body, mut a, mut b) = two_tables();
        let theirs = body.clone();
        let child = thread::spawn(move || {
            let c = copy_of(&b, &theirs);
            b.take_all(&mut Counts(&theirs));
            c
        });
        write(&mut a, &body);
        let mut c = child.join().unwrap();
        assert_eq!(c.get(0), Some(number()));
        assert!(
            a.is_shared(0) || Counts(&body).refs() == 2,
            "the copy's leaf is counted, or is the one that both hold"
        );
        c.take_all(&mut Counts(&body));
        a.take_all(&mut Counts(&body));
        assert_eq!(Counts(&body).refs(), 0);
    });
}

/// A first touch: a thread that gets the place has filled its page before; one that doesn't finds
/// that page filled.
fn touch(slots: &Slots, index: u64, pages: &[UnsafeCell<u8>; 2], mine: u32) {
    let page = |no: NonZeroU32| &pages[no.get() as usize - 1];
    let mine = NonZeroU32::new(mine).unwrap();
    // SAFETY: loom reports it if another thread reads.
    page(mine).with_mut(|byte| unsafe { *byte = 1 });
    if !slots.find(index).install(mine) {
        let theirs =
            slots.find(index).number().expect("the place is empty for one who could not fill it");
        assert_ne!(theirs, mine);
        // SAFETY: loom reports it if another thread writes.
        page(theirs).with(|byte| assert_eq!(unsafe { *byte }, 1));
    }
}

/// Two threads touch indices of an empty table, whose leaf is hung meanwhile; so many of their
/// numbers are in it then.
fn touch_both(indices: [u64; 2], kept: usize) {
    all_schedules(PREEMPTIONS, move || {
        let body = Body { refs: Ordered::new(2), bytes: UnsafeCell::new(0) };
        let mut slots = Slots::new();
        slots.open(0, &mut Counts(&body));
        let world = Arc::new((slots, [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let theirs = world.clone();
        let child = thread::spawn(move || touch(&theirs.0, indices[1], &theirs.1, 2));
        touch(&world.0, indices[0], &world.1, 1);
        child.join().unwrap();
        assert_eq!(world.0.range(0..4).count(), kept);
        let Ok((mut slots, _)) = Arc::try_unwrap(world) else {
            unreachable!("the child has ended")
        };
        slots.take_all(&mut Counts(&body));
        assert_eq!(Counts(&body).refs(), 2 - kept as u32, "the leaf counts what is in it");
    });
}

#[test]
fn of_two_that_touch_one_place_one_gets_it() {
    touch_both([1, 1], 1);
}

#[test]
fn two_that_touch_neighbours_hang_one_leaf() {
    touch_both([0, 1], 2);
}
