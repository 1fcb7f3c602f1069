//! Page records: places, flags and wirings while several CPUs are at them.
//!
//! Each test ends with the frames' audit, which walks the lists and compares them with what the
//! records say.

use loom::sync::Arc;
use loom::thread;
use machine::order::{Nothing, Object};
use machine::{Held, Ordered, PageNo, ThreadCtx};
use uvm::page::{Owner, Reserve};
use uvm::page::{PageFlags, Place, Queue};

use crate::all_schedules;
use crate::host::{machine, Loom};
use crate::sync::RawSpin;

const PREEMPTIONS: usize = 3;

type Step = fn(&Loom, &mut Held<'_, Nothing>, PageNo);

/// A page of a machine whose locks have all been taken once.
fn page(m: &Loom) -> PageNo {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    m.frames().flush_pending(held);
    m.frames().audit(held).unwrap();
    m.frames().alloc(m, held, Reserve::Pageout).unwrap()
}

/// Runs two steps on one page at once, on a CPU each, after `first`; then links what is pending and
/// audits.
fn at_once(first: Step, one: Step, other: Step) -> Arc<Loom> {
    let m = machine(3);
    let no = page(&m);
    first(&m, &mut ThreadCtx::new().held(), no);
    let theirs = m.clone();
    let handle = thread::spawn(move || {
        theirs.run_on(1);
        other(&theirs, &mut ThreadCtx::new().held(), no);
    });
    one(&m, &mut ThreadCtx::new().held(), no);
    handle.join().unwrap();
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    m.frames().flush_pending(held);
    m.frames().audit(held).unwrap();
    m
}

fn activate(m: &Loom, held: &mut Held<'_, Nothing>, no: PageNo) {
    m.frames().activate(m, held, no);
}

fn link(m: &Loom, held: &mut Held<'_, Nothing>, _: PageNo) {
    m.frames().flush_pending(held);
}

fn dequeue(m: &Loom, held: &mut Held<'_, Nothing>, no: PageNo) {
    m.frames().dequeue(held, no);
}

fn linked(m: &Loom, held: &mut Held<'_, Nothing>, no: PageNo) {
    activate(m, held, no);
    link(m, held, no);
}

#[test]
fn a_pending_page_that_goes_is_not_linked() {
    all_schedules(PREEMPTIONS, || {
        let m = at_once(activate, link, dequeue);
        assert_eq!(m.frames().active(), 0);
    });
}

#[test]
fn a_pending_page_is_linked_once() {
    all_schedules(PREEMPTIONS, || {
        let m = at_once(activate, link, link);
        assert_eq!(m.frames().active(), 1);
    });
}

#[test]
fn a_page_freed_and_reused_while_pending_is_linked_once() {
    let reuse: Step = |m, held, no| {
        m.frames().dequeue(held, no);
        m.frames().free_page(m, held, no);
        let again = m.frames().alloc(m, held, Reserve::Pageout).unwrap();
        assert_eq!(again, no, "a CPU's cache is a stack");
        m.frames().activate(m, held, again);
    };
    all_schedules(2, move || {
        let m = at_once(activate, link, reuse);
        assert_eq!(m.frames().active(), 1);
    });
}

#[test]
fn a_page_changes_queue_or_leaves_but_not_both() {
    all_schedules(PREEMPTIONS, || {
        let m = at_once(linked, |m, held, no| m.frames().deactivate(held, &[no]), dequeue);
        assert_eq!((m.frames().active(), m.frames().inactive()), (0, 0));
    });
}

#[test]
fn a_page_activated_by_two_at_once_is_linked_once() {
    let and_link: Step = |m, held, no| {
        activate(m, held, no);
        link(m, held, no);
    };
    all_schedules(PREEMPTIONS, move || {
        let m = at_once(|_, _, _| (), activate, and_link);
        assert_eq!(m.frames().active(), 1);
    });
}

#[test]
fn the_last_unwiring_sends_a_page_to_the_queue() {
    let unwire: Step = |m, held, no| m.frames().unwire(m, held, no);
    let wired_twice: Step = |m, _, no| {
        m.frames().wire(no);
        m.frames().wire(no);
    };
    all_schedules(PREEMPTIONS, move || {
        let m = at_once(wired_twice, unwire, unwire);
        let mut ctx = ThreadCtx::new();
        assert!(m.frames().oldest(&mut ctx.held(), Queue::Active).is_some());
    });
}

/// Two threads that each set a flag, one of them under a lock that both hold or don't.
fn flags(
    set: impl Fn(&Loom, &Ordered<Object, RawSpin, ()>, PageNo, PageFlags) + Copy + Send + 'static,
) {
    let m = machine(3);
    let no = page(&m);
    let owner = Arc::new(Ordered::<Object, RawSpin, ()>::new(()));
    let (theirs, lock) = (m.clone(), owner.clone());
    drop(owner.lock(&mut ThreadCtx::new().held()));
    let handle = thread::spawn(move || set(&theirs, &lock, no, PageFlags::BUSY));
    set(&m, &owner, no, PageFlags::CLEAN);
    handle.join().unwrap();
    assert_eq!(m.frames().flags(no), PageFlags::BUSY | PageFlags::CLEAN, "a flag was lost");
    assert_eq!(m.frames().place(no), Place::Nowhere);
}

#[test]
fn no_flag_is_lost_under_the_owners_lock() {
    all_schedules(PREEMPTIONS, || {
        flags(|m, owner, no, flag| {
            let mut ctx = ThreadCtx::new();
            let held = &mut ctx.held();
            let _guard = owner.lock(held);
            m.frames().set_flags(no, flag);
        });
    });
}

#[test]
#[should_panic(expected = "a flag was lost")]
fn flags_set_without_the_owners_lock_are_lost() {
    all_schedules(PREEMPTIONS, || flags(|m, _, no, flag| m.frames().set_flags(no, flag)));
}

/// A page is taken from an anon as page-out does it, and freed by `free`, while a fault that has
/// found it there maps it ahead. Both hold the tables' lock where they change whether it is mapped.
fn let_go_beside(free: Step) {
    const ANON: u32 = 1;
    let m = machine(3);
    let no = page(&m);
    m.frames().set_owner(no, Owner::Anon(ANON), 0);
    let is_mapped = Arc::new(Ordered::<Object, RawSpin, bool>::new(false));
    drop(is_mapped.lock(&mut ThreadCtx::new().held()));
    let (theirs, tables) = (m.clone(), is_mapped.clone());
    let handle = thread::spawn(move || {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let (mut is_mapped, _h) = tables.lock(held);
        *is_mapped = theirs.frames().is_alone(no, ANON);
    });
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    m.frames().set_flags(no, PageFlags::BUSY);
    *is_mapped.lock(held).0 = false;
    free(&m, held, no);
    handle.join().unwrap();
    assert!(!*is_mapped.lock(held).0, "a free page is mapped");
}

fn disown_and_free(m: &Loom, held: &mut Held<'_, Nothing>, no: PageNo) {
    m.frames().set_owner(no, Owner::Kernel, 0);
    m.frames().free_page(m, held, no);
}

#[test]
fn a_page_that_is_let_go_is_not_mapped() {
    all_schedules(PREEMPTIONS, || let_go_beside(disown_and_free));
}

#[test]
fn a_page_that_could_not_be_read_is_not_mapped() {
    let free: Step = |m, held, no| {
        m.frames().set_owner(no, Owner::Kernel, 0);
        m.frames().clear_flags(no, PageFlags::BUSY);
        m.frames().free_page(m, held, no);
    };
    all_schedules(PREEMPTIONS, move || let_go_beside(free));
}

#[test]
#[should_panic(expected = "a free page is mapped")]
fn a_page_that_is_busy_no_more_before_it_has_no_owner_is_mapped() {
    let free: Step = |m, held, no| {
        m.frames().clear_flags(no, PageFlags::BUSY);
        disown_and_free(m, held, no);
    };
    all_schedules(PREEMPTIONS, move || let_go_beside(free));
}
