//! Page loanout: what a borrower sees, what the lender sees, and what it costs.

use std::sync::Arc;

use crate::loaning::{audit, bytes, load, store, world, written, BOUNDS};
use machine::{Machine, PageRange, Pages, Prot, ThreadCtx};
use uvm::{
    AnonObject, At, Backing, Counter, FaultError, Inherit, Intent, Loan, MapError, MapRequest,
    NotOurs, Pager, Pass, Place, Sharing, TransferError,
};
use uvm_soft::SoftMachine;

#[test]
fn a_store_breaks_the_loan_and_the_borrower_sees_nothing_of_it() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    audit(&uvm, held, &[&space], &[&loan]);
    assert_eq!(bytes(&uvm, &loan), [1, 2, 3, 4]);
    let mut lines = Vec::new();
    uvm.describe(held, &space, |entry| lines.push(entry.to_string()));
    assert!(lines.len() == 1 && lines[0].ends_with(" | loaned=4"), "{lines:?}");
    store(&uvm, &space, range.start + Pages(1), 77);
    audit(&uvm, held, &[&space], &[&loan]);
    assert_eq!(
        (bytes(&uvm, &loan), load(&uvm, &space, range.start + Pages(1))),
        (vec![1, 2, 3, 4], 77)
    );
    assert_eq!(uvm.stat().get(Counter::LoansBroken), 1);
    assert_eq!((space.map().entries(held), uvm.anons()), (1, 4));
    let before = uvm.frames().free();
    uvm.return_loan(held, loan).unwrap();
    assert_eq!(uvm.frames().free(), before + 1, "the page that had no owner");
    audit(&uvm, held, &[&space], &[]);
    // What is back is written in place.
    store(&uvm, &space, range.start, 88);
    assert_eq!((uvm.stat().get(Counter::LoansBroken), uvm.frames().free()), (1, before + 1));
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_fork_shares_what_is_on_loan_where_it_would_copy() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let child = uvm.fork(held, &space).unwrap();
    store(&uvm, &space, range.start, 9);
    uvm.space_destroy(held, child);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    let child = uvm.fork(held, &space).unwrap();
    assert_eq!((uvm.stat().get(Counter::CopiedAtFork), uvm.anons()), (0, 4));
    audit(&uvm, held, &[&space, &child], &[&loan]);
    store(&uvm, &space, range.start, 10);
    assert_eq!(
        (bytes(&uvm, &loan)[0], load(&uvm, &child, range.start), load(&uvm, &space, range.start)),
        (9, 9, 10)
    );
    uvm.return_loan(held, loan).unwrap();
    // What is back is copied.
    let next = uvm.fork(held, &space).unwrap();
    assert_eq!((uvm.stat().get(Counter::CopiedAtFork), load(&uvm, &next, range.start)), (1, 10));
    audit(&uvm, held, &[&space, &child, &next], &[]);
    [next, child, space].into_iter().for_each(|space| uvm.space_destroy(held, space));
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}

#[test]
fn a_lender_that_ends_leaves_its_pages_to_the_borrower() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 3);
    let mut loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    let twice: Loan = loan.pages().iter().map(|p| uvm.loan_again(p).unwrap()).collect();
    uvm.space_destroy(held, space);
    audit(&uvm, held, &[], &[&loan, &twice]);
    let tail = loan.try_split_off(1).unwrap();
    uvm.return_loan(held, loan).unwrap();
    assert_eq!((bytes(&uvm, &twice), bytes(&uvm, &tail)), (vec![1, 2, 3], vec![2, 3]));
    uvm.return_loan(held, twice).unwrap();
    assert_eq!(uvm.frames().free(), free - 2);
    uvm.return_loan(held, tail).unwrap();
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}

#[test]
fn untouched_memory_is_loaned_as_one_page_of_zeroes() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let va = uvm.map(held, &space, &MapRequest::zero(Pages(1000))).unwrap();
    store(&uvm, &space, va + Pages(500), 5);
    let loan =
        uvm.loan_to_kernel(held, &space, PageRange::new(va, va + Pages(1000)).unwrap()).unwrap();
    assert_eq!((loan.len(), uvm.anons(), uvm.stat().get(Counter::LoansZero)), (1000, 1, 999));
    store(&uvm, &space, va, 9);
    assert!(bytes(&uvm, &loan).iter().enumerate().all(|(n, &b)| b == if n == 500 { 5 } else { 0 }));
    audit(&uvm, held, &[&space], &[&loan]);
    uvm.space_destroy(held, space);
    uvm.return_loan(held, loan).unwrap();
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_loaned_page_of_an_object_is_replaced_for_all_who_map_it() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let pager: Arc<dyn Pager<SoftMachine>> = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let (a, b) = (uvm.space_create(held, BOUNDS).unwrap(), uvm.space_create(held, BOUNDS).unwrap());
    let request = MapRequest {
        backing: Backing::Object { pager: pager.clone(), offset: Pages(0) },
        sharing: Sharing::Shared,
        ..MapRequest::zero(Pages(4))
    };
    let va = uvm.map(held, &a, &request).unwrap();
    assert_eq!(uvm.map(held, &b, &request).unwrap(), va);
    (0..3).for_each(|n| store(&uvm, &a, va + Pages(n), 10 + n as u8));
    (0..3).for_each(|n| store(&uvm, &b, va + Pages(n), 20 + n as u8));
    let mut loan =
        uvm.loan_to_kernel(held, &a, PageRange::new(va, va + Pages(4)).unwrap()).unwrap();
    assert_eq!(uvm.loan_object(held, &pager, Pages(1), 9, &mut loan), Ok(3));
    let counts = [Counter::LoansObject, Counter::LoansZero, Counter::LoansCopied];
    assert_eq!(counts.map(|counter| uvm.stat().get(counter)), [5, 2, 0], "a hole gets no page");
    audit(&uvm, held, &[&a, &b], &[&loan]);
    let before = [20, 21, 22, 0, 21, 22, 0];
    assert_eq!(bytes(&uvm, &loan), before);
    // By a mapping, by write(2), by truncation.
    store(&uvm, &b, va, 30);
    let write = |machine: &SoftMachine, page| machine.write(page, 0, &[31]);
    uvm.with_page(held, &pager, Pages(1), Intent::Write, uvm::Access::PAGE, write).unwrap();
    uvm.truncate(held, &pager, Pages(2));
    audit(&uvm, held, &[&a, &b], &[&loan]);
    assert_eq!(bytes(&uvm, &loan), before);
    assert_eq!(
        (load(&uvm, &a, va), load(&uvm, &a, va + Pages(1)), load(&uvm, &b, va + Pages(1))),
        (30, 31, 31)
    );
    for space in [a, b] {
        uvm.space_destroy(held, space);
    }
    uvm.detach(held, &*pager);
    assert_eq!(bytes(&uvm, &loan), before);
    uvm.return_loan(held, loan).unwrap();
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn who_shares_a_part_of_what_is_loaned_can_not_write_to_it() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    // The lowest memory, whose slots have the lowest numbers.
    let va = uvm.map(held, &space, &MapRequest::zero(Pages(3)).at(BOUNDS.start)).unwrap();
    let range = PageRange::new(va, va + Pages(3)).unwrap();
    (0..3).for_each(|n| store(&uvm, &space, va + Pages(n), n as u8 + 1));
    uvm.inherit(held, &space, range, Inherit::Share).unwrap();
    let child = uvm.fork(held, &space).unwrap();
    let last = va + Pages(2);
    uvm.unmap(held, &child, PageRange::new(va, last).unwrap()).unwrap();
    store(&uvm, &child, last, 3);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    audit(&uvm, held, &[&space, &child], &[&loan]);
    store(&uvm, &child, last, 9);
    assert_eq!((bytes(&uvm, &loan), load(&uvm, &space, last)), (vec![1, 2, 3], 9));
    uvm.return_loan(held, loan).unwrap();
    [child, space].into_iter().for_each(|space| uvm.space_destroy(held, space));
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn what_a_device_may_write_to_is_copied() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 2);
    let first = PageRange::new(range.start, range.start + Pages(1)).unwrap();
    let pinned = uvm.wire_pages(held, &space, first, Prot::WRITE).unwrap();
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    uvm.machine().write(pinned.pages()[0], 0, &[99]);
    assert_eq!((bytes(&uvm, &loan), uvm.stat().get(Counter::LoansCopied)), (vec![1, 2], 1));
    audit(&uvm, held, &[&space], &[&loan]);
    uvm.unwire_pages(held, pinned).unwrap();
    uvm.return_loan(held, loan).unwrap();
    // A locked mapping is no device.
    uvm.wire(held, &space, range).unwrap();
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    assert_eq!((bytes(&uvm, &loan), uvm.stat().get(Counter::LoansCopied)), (vec![99, 2], 1));
    store(&uvm, &space, range.start, 100);
    audit(&uvm, held, &[&space], &[&loan]);
    assert_eq!((bytes(&uvm, &loan), load(&uvm, &space, range.start)), (vec![99, 2], 100));
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
}

#[test]
fn a_range_that_can_not_be_read_loans_nothing() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    uvm.protect(
        held,
        &space,
        PageRange::new(range.start + Pages(3), range.end).unwrap(),
        Prot::NONE,
    )
    .unwrap();
    assert_eq!(uvm.loan_to_kernel(held, &space, range).err(), Some(FaultError::Protection));
    let over = PageRange::new(range.start, range.start + Pages(5)).unwrap();
    assert_eq!(uvm.loan_to_kernel(held, &space, over).err(), Some(FaultError::Protection));
    audit(&uvm, held, &[&space], &[]);
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_page_is_loaned_30000_times_and_then_copied() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 1);
    let all: Vec<Loan> =
        (0..30_002).map(|_| uvm.loan_to_kernel(held, &space, range).unwrap()).collect();
    assert_eq!(uvm.stat().get(Counter::LoansCopied), 2);
    assert!(uvm.loan_again(&all[0].pages()[0]).is_none());
    audit(&uvm, held, &[&space], &all.iter().collect::<Vec<_>>());
    all.into_iter().for_each(|loan| uvm.return_loan(held, loan).unwrap());
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_loan_of_another_instance_is_handed_back_whole() {
    let ((ours, ours_free), (theirs, theirs_free)) = (world(1024), world(1024));
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let (a, range) = written(&ours, held, 4);
    let (b, other_range) = written(&theirs, held, 4);
    let mut loan = ours.loan_to_kernel(held, &a, range).unwrap();
    // Pages of the same numbers are on loan there, too.
    let other = theirs.loan_to_kernel(held, &b, other_range).unwrap();
    let numbers = |loan: &Loan| loan.pages().iter().map(|page| page.page().0).collect::<Vec<_>>();
    assert_eq!(numbers(&loan), numbers(&other));
    assert_eq!(theirs.return_others(held, &mut loan, 1..2), Err(NotOurs));
    let (why, loan) = theirs.return_loan(held, loan).unwrap_err();
    assert_eq!((why, loan.len()), (NotOurs, 4));
    let (why, mut loan) = theirs.transfer(held, &b, loan, At::Anywhere).unwrap_err();
    assert_eq!((why, loan.len()), (TransferError::NotOurs, 4));
    let pins = ours.wire_pages(held, &a, range, Prot::READ).unwrap();
    let (why, pins) = theirs.unwire_pages(held, pins).unwrap_err();
    assert_eq!((why, pins.pages().len()), (NotOurs, 4));
    ours.unwire_pages(held, pins).unwrap();
    let taken = ours.extract(held, &a, range, Pass::Copy).unwrap();
    let (why, taken) = theirs.attach_range(held, &b, taken, Place::Anywhere).unwrap_err();
    assert_eq!(why, MapError::Invalid);
    ours.drop_detached(held, taken);
    audit(&ours, held, &[&a], &[&loan]);
    audit(&theirs, held, &[&b], &[&other]);
    // A part of it is still known to be ours; and so is all of it together again.
    let part = loan.try_split_off(2).unwrap();
    let (_, part) = theirs.return_loan(held, part).unwrap_err();
    loan.append(part);
    let (_, loan) = theirs.return_loan(held, loan).unwrap_err();
    // A single page knows whose it is, too, and so does a list that is made of such.
    assert!(theirs.loan_again(&loan.pages()[0]).is_none());
    let mut none = Loan::new();
    assert_eq!(theirs.loan_all_again(loan.pages().iter(), &mut none), Ok(0));
    assert_eq!(theirs.worth_remapping(&b, loan.pages(), 1), 0);
    let mut pages = loan.into_pages();
    let (why, page) = theirs.return_page(held, pages.remove(0)).unwrap_err();
    assert_eq!(why, NotOurs);
    let (_, list) = theirs.return_loan(held, pages.into_iter().collect()).unwrap_err();
    audit(&theirs, held, &[&b], &[&other]);
    theirs.return_loan(held, other).unwrap();
    ours.return_page(held, page).unwrap();
    ours.return_loan(held, list).unwrap();
    ours.space_destroy(held, a);
    theirs.space_destroy(held, b);
    assert_eq!((ours.frames().free(), theirs.frames().free()), (ours_free, theirs_free));
}

#[test]
#[should_panic(expected = "loans of two VM systems in one list")]
fn loans_of_two_instances_are_not_one_list() {
    let (ours, theirs) = (world(64).0, world(64).0);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let (mut loan, mut other) = (Loan::new(), Loan::new());
    ours.new_pages(held, 1, &mut loan).unwrap();
    theirs.new_pages(held, 1, &mut other).unwrap();
    loan.append(other);
}

#[test]
#[should_panic(expected = "loans of two VM systems in one list")]
fn pages_of_two_instances_are_not_one_list() {
    let (ours, theirs) = (world(64).0, world(64).0);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let pages = [ours.new_page(held).unwrap(), theirs.new_page(held).unwrap()];
    let _list: Loan = pages.into_iter().collect();
}
