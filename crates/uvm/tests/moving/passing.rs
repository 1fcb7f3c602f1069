//! Page transfer and map entry passing: what arrives, what stays, and what it costs.

use std::sync::Arc;

use crate::loaning::{audit, load, store, world, written, World, BOUNDS};
use machine::order::Nothing;
use machine::{Held, Machine, PageRange, Pages, Pmap, Prot, ThreadCtx, Va};
use uvm::{
    AnonObject, At, Counter, Inherit, Intent, Loan, MapError, MapRequest, Pager, Pass, Place,
    TransferError,
};
use uvm_soft::SoftMachine;

/// Pages of the kernel's, each with a byte of its own.
fn filled(uvm: &World, held: &mut Held<'_, Nothing>, bytes: &[u8]) -> Loan {
    let pages = bytes.iter().map(|&byte| {
        let page = uvm.new_page(held).unwrap();
        uvm.machine().zero(page.page());
        uvm.machine().write(page.page(), 0, &[byte]);
        page
    });
    pages.collect()
}

#[test]
fn pages_of_the_kernels_become_a_programs_and_are_not_copied() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let loan = filled(&uvm, held, &[50, 51]);
    let before = uvm.frames().free();
    let at = At::Fixed(range.start + Pages(1));
    assert_eq!(uvm.transfer(held, &space, loan, at).unwrap(), range.start + Pages(1));
    assert_eq!((uvm.frames().free(), uvm.anons()), (before + 2, 2), "what was there is gone");
    audit(&uvm, held, &[&space], &[]);
    let seen: Vec<u8> = range.iter_pages().map(|va| load(&uvm, &space, va)).collect();
    assert_eq!(seen, [1, 50, 51, 4]);
    store(&uvm, &space, range.start + Pages(1), 60);
    assert_eq!(
        uvm.stat().get(Counter::FaultsAnonCopied) + uvm.stat().get(Counter::TransfersCopied),
        0
    );
    assert_eq!(space.map().entries(held), 1);
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_loaned_page_is_shared_until_somebody_writes() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, from) = written(&uvm, held, 3);
    let (b, to) = written(&uvm, held, 8);
    let loan = uvm.loan_to_kernel(held, &a, from).unwrap();
    uvm.transfer(held, &b, loan, At::Fixed(to.start)).unwrap();
    audit(&uvm, held, &[&a, &b], &[]);
    assert_eq!((uvm.anons(), uvm.stat().get(Counter::TransfersCopied)), (8, 0));
    store(&uvm, &a, from.start, 70);
    store(&uvm, &b, to.start + Pages(1), 80);
    assert_eq!((load(&uvm, &b, to.start), load(&uvm, &a, from.start + Pages(1))), (1, 2));
    assert_eq!((load(&uvm, &b, to.start + Pages(2)), load(&uvm, &b, to.start + Pages(3))), (3, 4));
    // A lender that has gone leaves its page to who borrowed it.
    let loan = uvm.loan_to_kernel(held, &a, from).unwrap();
    uvm.space_destroy(held, a);
    let before = uvm.stat().get(Counter::TransfersCopied);
    uvm.transfer(held, &b, loan, At::Fixed(to.start + Pages(4))).unwrap();
    assert_eq!(uvm.stat().get(Counter::TransfersCopied), before);
    assert_eq!(load(&uvm, &b, to.start + Pages(4)), 70);
    audit(&uvm, held, &[&b], &[]);
    uvm.space_destroy(held, b);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_page_of_the_kernels_that_it_keeps_is_shared_with_programs_until_one_writes() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, to) = written(&uvm, held, 8);
    let b = uvm.space_create(held, BOUNDS).unwrap();
    let stock = filled(&uvm, held, &[40, 41]);
    let again = |loan: &mut Loan| assert_eq!(uvm.loan_all_again(stock.pages().iter(), loan), Ok(2));
    // The same pages twice in one call, and into two spaces.
    let (mut twice, mut once) = (Loan::new(), Loan::new());
    again(&mut twice);
    again(&mut twice);
    again(&mut once);
    uvm.transfer(held, &a, twice, At::Fixed(to.start)).unwrap();
    let va = uvm.transfer(held, &b, once, At::Anywhere).unwrap();
    assert_eq!(uvm.stat().get(Counter::TransfersCopied), 0);
    audit(&uvm, held, &[&a, &b], &[&stock]);
    store(&uvm, &a, to.start, 99);
    store(&uvm, &b, va + Pages(1), 98);
    let seen: Vec<u8> = to.iter_pages().map(|va| load(&uvm, &a, va)).collect();
    assert_eq!((seen, load(&uvm, &b, va)), (vec![99, 41, 40, 41, 5, 6, 7, 8], 40));
    let byte = |n: usize| {
        let mut byte = [0];
        uvm.machine().read(stock.pages()[n].page(), 0, &mut byte);
        byte[0]
    };
    assert_eq!((byte(0), byte(1)), (40, 41), "what the kernel has doesn't change");
    audit(&uvm, held, &[&a, &b], &[&stock]);
    // Once the programs have gone, the pages are the kernel's alone again.
    [a, b].into_iter().for_each(|space| uvm.space_destroy(held, space));
    assert!(stock.pages().iter().all(|page| uvm.frames().is_borrowers(page.page())));
    audit(&uvm, held, &[], &[&stock]);
    uvm.return_loan(held, stock).unwrap();
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}

#[test]
fn many_pages_are_taken_and_given_back_at_once_or_none() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    for pages in [1, 31, 32, 63, 64, 65, 150] {
        let mut loan = Loan::new();
        uvm.new_pages(held, pages, &mut loan).unwrap();
        assert_eq!((loan.len(), uvm.frames().free()), (pages, free - pages));
        let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
        // One sixteenth of memory may wait for a program to touch it.
        assert_eq!(uvm.anons(), if pages > 16 { pages } else { 0 });
        audit(&uvm, held, &[&space], &[]);
        uvm.discard(held, &space, PageRange::new(va, va + Pages(pages as u64)).unwrap()).unwrap();
        assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
        audit(&uvm, held, &[&space], &[]);
    }
    let mut loan = Loan::new();
    assert!(uvm.new_pages(held, 300, &mut loan).is_err() && loan.is_empty());
    assert_eq!(uvm.frames().free(), free);
    uvm.space_destroy(held, space);
    uvm.frames().audit(held).unwrap();
}

#[test]
fn what_is_transferred_is_read_as_it_is_and_gets_anons_when_it_is_written() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let bytes: Vec<u8> = (1..=48).collect();
    let loan = filled(&uvm, held, &bytes);
    let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
    let range = PageRange::new(va, va + Pages(48)).unwrap();
    assert_eq!(uvm.anons(), 0);
    // Sixteen pages are mapped by one fault, and stay what they are.
    (16..32).for_each(|n| assert_eq!(load(&uvm, &space, va + Pages(n)), n as u8 + 1));
    assert_eq!((uvm.anons(), uvm.stat().get(Counter::FaultsBorrowed)), (0, 1));
    audit(&uvm, held, &[&space], &[]);
    // What lies around a store in sixteen pages goes with it.
    store(&uvm, &space, va + Pages(20), 21);
    let is_writable = |n: &u64| {
        let seen = uvm.machine().pmap().extract(space.pmap(), va + Pages(*n));
        seen.is_some_and(|(_, prot)| prot.contains(Prot::WRITE))
    };
    assert_eq!((uvm.anons(), (0..48).filter(is_writable).count()), (16, 16));
    audit(&uvm, held, &[&space], &[]);
    // To loan it again takes no anon, nor a copy; and what is in memory is said to be.
    let again = uvm.loan_to_kernel(held, &space, range).unwrap();
    let mut seen = 0;
    assert!(uvm.resident(held, &space, range, |_| seen += 1));
    assert_eq!((uvm.anons(), seen, uvm.stat().get(Counter::LoansCopied)), (16, 48, 0));
    audit(&uvm, held, &[&space], &[&again]);
    uvm.return_loan(held, again).unwrap();
    // Parts can be given back, and be replaced.
    uvm.discard(held, &space, PageRange::new(va + Pages(2), va + Pages(5)).unwrap()).unwrap();
    let loan = filled(&uvm, held, &[90, 91]);
    uvm.transfer(held, &space, loan, At::Fixed(va + Pages(6))).unwrap();
    audit(&uvm, held, &[&space], &[]);
    store(&uvm, &space, va + Pages(40), 99);
    let seen: Vec<u8> = range.iter_pages().map(|va| load(&uvm, &space, va)).collect();
    let expected = |n: u8| match n {
        3..=5 => 0,
        7 => 90,
        8 => 91,
        41 => 99,
        n => n,
    };
    assert_eq!(seen, (1..=48).map(expected).collect::<Vec<_>>());
    assert_eq!(
        uvm.stat().get(Counter::TransfersCopied) + uvm.stat().get(Counter::FaultsAnonCopied),
        0
    );
    audit(&uvm, held, &[&space], &[]);
    uvm.space_destroy(held, space);
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}

#[test]
fn who_shares_memory_shares_what_was_transferred_to_it() {
    for inherit in [Inherit::Copy, Inherit::Share, Inherit::Zero, Inherit::None] {
        let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
        let held = &mut ctx.held();
        let (space, range) = written(&uvm, held, 8);
        uvm.inherit(held, &space, range, inherit).unwrap();
        let loan = filled(&uvm, held, &[50, 51]);
        uvm.transfer(held, &space, loan, At::Fixed(range.start + Pages(1))).unwrap();
        let child = uvm.fork(held, &space).unwrap();
        audit(&uvm, held, &[&space, &child], &[]);
        if inherit == Inherit::Copy || inherit == Inherit::Share {
            store(&uvm, &child, range.start + Pages(2), 60);
            assert_eq!(load(&uvm, &child, range.start + Pages(1)), 50);
            let seen = if inherit == Inherit::Share { 60 } else { 51 };
            assert_eq!(load(&uvm, &space, range.start + Pages(2)), seen);
            // What several share can't take pages; who is alone again can.
            let loan = filled(&uvm, held, &[70]);
            let put = uvm.transfer(held, &space, loan, At::Fixed(range.start));
            match inherit {
                Inherit::Share => uvm.return_loan(held, put.unwrap_err().1).unwrap(),
                _ => assert_eq!(put.map(|_| load(&uvm, &child, range.start)).ok(), Some(1)),
            }
        }
        audit(&uvm, held, &[&space, &child], &[]);
        uvm.space_destroy(held, space);
        audit(&uvm, held, &[&child], &[]);
        uvm.space_destroy(held, child);
        assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
    }
}

#[test]
fn who_forks_sees_the_copies_of_what_was_on_loan() {
    let ((uvm, _), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> = AnonObject::new(&uvm, held, Pages(2)).unwrap();
    let write = |held: &mut _, byte: u8| {
        let write = |m: &SoftMachine, page| m.write(page, 0, &[byte]);
        uvm.with_page(held, &pager, Pages(0), Intent::Write, uvm::Access::PAGE, write).unwrap();
    };
    write(held, 1);
    let mut loan = Loan::new();
    assert_eq!(uvm.loan_object(held, &pager, Pages(0), 2, &mut loan), Ok(2));
    let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
    assert_eq!(load(&uvm, &space, va), 1);
    let child = uvm.fork(held, &space).unwrap();
    write(held, 2);
    uvm.audit(held, &[&space, &child], std::slice::from_ref(&pager)).unwrap();
    assert_eq!((load(&uvm, &space, va), load(&uvm, &child, va)), (1, 1));
    uvm.space_destroy(held, child);
    uvm.space_destroy(held, space);
    uvm.detach(held, &*pager);
}

#[test]
fn pages_of_objects_are_shared_until_they_are_written() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let object = AnonObject::new(&uvm, held, Pages(32)).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> = object;
    let write = |held: &mut _, n, byte: u8| {
        let write = |m: &SoftMachine, page| m.write(page, 0, &[byte]);
        uvm.with_page(held, &pager, Pages(n), Intent::Write, uvm::Access::PAGE, write).unwrap();
    };
    (0..32).for_each(|n| write(held, n, n as u8 + 1));
    let mut loan = Loan::new();
    assert_eq!(uvm.loan_object(held, &pager, Pages(0), 32, &mut loan), Ok(32));
    let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
    assert_eq!(uvm.stat().get(Counter::TransfersCopied), 0);
    (0..32).for_each(|n| assert_eq!(load(&uvm, &space, va + Pages(n)), n as u8 + 1));
    uvm.audit(held, &[&space], std::slice::from_ref(&pager)).unwrap();
    // What the object gets later isn't seen, whether it was looked at before or not.
    write(held, 3, 77);
    assert_eq!((load(&uvm, &space, va + Pages(3)), load(&uvm, &space, va)), (4, 1));
    assert_eq!((uvm.stat().get(Counter::TransfersCopied), uvm.anons()), (0, 0));
    // A store copies its own page only, and once; the one that the object has let go needs no copy.
    store(&uvm, &space, va + Pages(5), 60);
    store(&uvm, &space, va + Pages(5), 61);
    assert_eq!((uvm.stat().get(Counter::TransfersCopied), uvm.anons()), (1, 2));
    uvm.audit(held, &[&space], std::slice::from_ref(&pager)).unwrap();
    // The object's page is its own again, and written in place.
    let loaned_before = uvm.stat().get(Counter::LoansBroken);
    write(held, 5, 78);
    assert_eq!(
        (load(&uvm, &space, va + Pages(5)), uvm.stat().get(Counter::LoansBroken)),
        (61, loaned_before)
    );
    uvm.truncate(held, &pager, Pages(20));
    uvm.detach(held, &*pager);
    drop(pager);
    audit(&uvm, held, &[&space], &[]);
    assert_eq!((load(&uvm, &space, va + Pages(31)), load(&uvm, &space, va + Pages(30))), (32, 31));
    // A child has copies; what is locked in memory, too.
    let child = uvm.fork(held, &space).unwrap();
    assert_eq!(uvm.anons(), 32);
    store(&uvm, &child, va + Pages(31), 62);
    assert_eq!((load(&uvm, &space, va + Pages(31)), load(&uvm, &child, va + Pages(31))), (32, 62));
    audit(&uvm, held, &[&space, &child], &[]);
    uvm.space_destroy(held, child);
    uvm.space_destroy(held, space);
    audit(&uvm, held, &[], &[]);
}

#[test]
fn what_is_given_back_in_the_transfer_area_is_used_again() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, _) = written(&uvm, held, 1);
    let mut places = Vec::new();
    for round in 0..200u8 {
        let loan = filled(&uvm, held, &[round, round]);
        let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
        assert_eq!(load(&uvm, &space, va + Pages(1)), round);
        places.push(va);
        if places.len() == 3 {
            let old = places.remove(0);
            assert_eq!(load(&uvm, &space, old), round - 2);
            uvm.discard(held, &space, PageRange::new(old, old + Pages(2)).unwrap()).unwrap();
        }
    }
    audit(&uvm, held, &[&space], &[]);
    assert_eq!((space.map().entries(held), uvm.anons()), (2, 1));
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn memory_that_a_program_maps_where_the_area_was_is_not_transferred_to() {
    let ((uvm, _), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, _) = written(&uvm, held, 1);
    let loan = filled(&uvm, held, &[1]);
    let va = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
    let area = uvm.entry_at(held, &space, va).unwrap().range;
    uvm.unmap(held, &space, area).unwrap();
    let own = uvm.map(held, &space, &MapRequest::zero(area.pages()).at(area.start)).unwrap();
    store(&uvm, &space, own, 5);
    let loan = filled(&uvm, held, &[2]);
    let next = uvm.transfer(held, &space, loan, At::Anywhere).unwrap();
    assert!(
        PageRange::new(next, next + Pages(1)).unwrap().intersect(area).is_empty(),
        "{next:?} is the program's own"
    );
    audit(&uvm, held, &[&space], &[]);
}

#[test]
fn a_refused_transfer_gives_the_pages_back() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let refused = |held: &mut _, loan, why| {
        let (e, loan) = uvm.transfer(held, &space, loan, At::Fixed(range.start)).unwrap_err();
        assert_eq!(e, why);
        audit(&uvm, held, &[&space], &[&loan]);
        loan
    };
    let mut loan = filled(&uvm, held, &[50, 51, 52, 53, 54]);
    loan = refused(held, loan, TransferError::NoMapping);
    uvm.return_loan(held, loan.try_split_off(4).unwrap()).unwrap();
    uvm.wire(held, &space, PageRange::new(range.start + Pages(3), range.end).unwrap()).unwrap();
    loan = refused(held, loan, TransferError::Unsuitable);
    uvm.unwire(held, &space, range).unwrap();
    uvm.protect(held, &space, range, Prot::READ).unwrap();
    loan = refused(held, loan, TransferError::Protection);
    let seen: Vec<u8> = range.iter_pages().map(|va| load(&uvm, &space, va)).collect();
    assert_eq!(seen, [1, 2, 3, 4]);
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn donated_memory_moves_and_is_not_copied() {
    let ((uvm, free), mut ctx) = (world(2048), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 1024);
    let b = uvm.space_create(held, BOUNDS).unwrap();
    let before = uvm.frames().free();
    let taken = uvm.extract(held, &a, range, Pass::Donate).unwrap();
    audit(&uvm, held, &[&a, &b, taken.space()], &[]);
    assert!(!uvm.is_mapped(held, &a, range));
    // It can be looked at where it is.
    let loan = uvm
        .loan_to_kernel(
            held,
            taken.space(),
            PageRange::new(range.start, range.start + Pages(2)).unwrap(),
        )
        .unwrap();
    uvm.return_loan(held, loan).unwrap();
    let Err((MapError::Invalid, taken)) =
        uvm.attach_range(held, &b, taken, Place::Fixed(Va(1 << 40)))
    else {
        panic!("there is no room behind the end")
    };
    let va = uvm
        .attach_range(held, &b, taken, Place::Anywhere)
        .unwrap_or_else(|_| panic!("there is room"));
    assert_eq!(va.0 % (2 << 20), range.start.0 % (2 << 20), "it keeps its place in its tables");
    assert!((0..1024).all(|n| load(&uvm, &b, va + Pages(n)) == (n % 200) as u8 + 1));
    store(&uvm, &b, va, 99);
    assert_eq!((uvm.anons(), b.map().entries(held)), (1024, 1));
    assert_eq!(uvm.stat().get(Counter::FaultsAnonCopied), 0);
    assert!(uvm.frames().free() >= before);
    audit(&uvm, held, &[&a, &b], &[]);
    [a, b].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn an_exported_range_is_imported_many_times() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 4);
    let (b, c) = (uvm.space_create(held, BOUNDS).unwrap(), uvm.space_create(held, BOUNDS).unwrap());
    let exported = uvm.extract(held, &a, range, Pass::Share).unwrap();
    uvm.limit(held, &exported, Prot::READ);
    let (from, all) = (exported.space(), exported.range());
    let shared = uvm.pass_range(held, from, all, &b, Place::Anywhere, Pass::Share).unwrap();
    let copied = uvm.pass_range(held, from, all, &c, Place::Anywhere, Pass::Copy).unwrap();
    store(&uvm, &a, range.start, 90);
    assert_eq!((load(&uvm, &b, shared), load(&uvm, &c, copied)), (90, 1));
    let over = PageRange::new(shared, shared + Pages(1)).unwrap();
    assert!(uvm.protect(held, &b, over, Prot::READ_WRITE).is_err(), "more than was exported");
    audit(&uvm, held, &[&a, &b, &c, from], &[]);
    uvm.drop_detached(held, exported);
    uvm.space_destroy(held, a);
    assert_eq!(load(&uvm, &b, shared), 90);
    [b, c].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_debugger_reaches_what_the_program_does_not() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let first = PageRange::new(range.start, range.start + Pages(1)).unwrap();
    let child = uvm.fork(held, &space).unwrap();
    uvm.protect(held, &space, range, Prot::NONE).unwrap();
    let byte = |held: &mut Held<'_, Nothing>, access, with: &dyn Fn(machine::PageNo)| {
        let pinned = uvm.reference_pages(held, &space, first, access)?;
        with(pinned.pages()[0]);
        uvm.unwire_pages(held, pinned).unwrap();
        Ok::<_, uvm::FaultError>(())
    };
    let seen = std::cell::Cell::new([0; 1]);
    let read = |page| {
        let mut byte = [0; 1];
        uvm.machine().read(page, 0, &mut byte);
        seen.set(byte);
    };
    byte(held, Prot::READ, &read).unwrap();
    let before = seen.get()[0];
    // What it stores is the program's, not its child's; and the program may do no more than before.
    byte(held, Prot::WRITE, &|page| uvm.machine().write(page, 0, &[77])).unwrap();
    assert_eq!(uvm.machine().pmap().extract(space.pmap(), range.start), None);
    assert_eq!(uvm.fault(held, &space, range.start, Prot::READ), Err(uvm::FaultError::Protection));
    uvm.protect(held, &space, range, Prot::READ).unwrap();
    assert_eq!((load(&uvm, &space, range.start), load(&uvm, &child, range.start)), (77, before));
    byte(held, Prot::WRITE, &|page| uvm.machine().write(page, 0, &[78])).unwrap();
    assert_eq!(load(&uvm, &space, range.start), 78);
    assert_eq!(uvm.fault(held, &space, range.start, Prot::WRITE), Err(uvm::FaultError::Protection));
    // Nor does it reach what a program could not do itself, or what others see.
    assert!(uvm.wire_pages(held, &space, first, Prot::WRITE).is_err());
    uvm.protect(held, &space, range, Prot::READ_WRITE).unwrap();
    uvm.wire(held, &space, range).unwrap();
    uvm.protect(held, &space, range, Prot::NONE).unwrap();
    byte(held, Prot::WRITE, &|page| uvm.machine().write(page, 0, &[79])).unwrap();
    audit(&uvm, held, &[&space, &child], &[]);
    uvm.protect(held, &space, range, Prot::READ_WRITE).unwrap();
    assert_eq!(load(&uvm, &space, range.start), 79);
    audit(&uvm, held, &[&space, &child], &[]);
    uvm.space_destroy(held, space);
    uvm.space_destroy(held, child);
    assert_eq!(uvm.frames().free(), free);
}

fn wired(uvm: &World, space: &uvm::Space<SoftMachine>, range: PageRange) -> usize {
    let is_wired = |&va: &Va| {
        let page = uvm.machine().pmap().extract(space.pmap(), va);
        page.is_some_and(|(page, _)| uvm.frames().hold_count(page) != 0)
    };
    range.iter_pages().filter(is_wired).count()
}

#[test]
fn locked_memory_stays_locked_where_a_copy_in_its_place_is_refused() {
    for n in 1..12 {
        let ((uvm, _), mut ctx) = (world(8192), ThreadCtx::new());
        let held = &mut ctx.held();
        let (a, range) = written(&uvm, held, 600);
        uvm.inherit(held, &a, range, Inherit::Share).unwrap();
        let child = uvm.fork(held, &a).unwrap();
        let b = uvm.space_create(held, BOUNDS).unwrap();
        let at = uvm.map(held, &b, &MapRequest::zero(Pages(600))).unwrap();
        let there = PageRange::new(at, at + Pages(600)).unwrap();
        uvm.wire(held, &b, there).unwrap();
        assert_eq!(wired(&uvm, &b, there), 600);
        uvm.machine().heap.fail_nth(n);
        let copied = uvm.pass_range(held, &a, range, &b, Place::Fixed(at), Pass::Copy);
        uvm.machine().heap.fail_nth(0);
        assert_eq!(wired(&uvm, &b, there), if copied.is_ok() { 0 } else { 600 }, "{n}: {copied:?}");
        audit(&uvm, held, &[&a, &b, &child], &[]);
        [a, b, child].into_iter().for_each(|space| uvm.space_destroy(held, space));
    }
}

#[test]
fn a_copy_that_is_refused_leaves_its_source_in_one_piece() {
    // Where memory was ever locked, a copy looks at each page.
    for was_locked in [false, true] {
        let ((uvm, free), mut ctx) = (world(8192), ThreadCtx::new());
        let held = &mut ctx.held();
        let (a, range) = written(&uvm, held, 200);
        let (b, there) = written(&uvm, held, 200);
        if was_locked {
            uvm.wire(held, &a, range).unwrap();
            uvm.unwire(held, &a, range).unwrap();
        }
        let source = PageRange::new(range.start + Pages(10), range.start + Pages(30)).unwrap();
        let mut refused = 0;
        loop {
            // Something lies there, however much memory there is.
            let taken = Place::FixedNoReplace(there.start);
            let exists = uvm.pass_range(held, &a, source, &b, taken, Pass::Copy);
            assert_eq!((exists, a.map().entries(held)), (Err(MapError::Exists), 1));
            uvm.machine().heap.fail_from(refused + 1);
            let copy = uvm.pass_range(held, &a, source, &b, Place::Anywhere, Pass::Copy);
            uvm.machine().heap.fail_nth(0);
            source.iter_pages().for_each(|va| store(&uvm, &a, va, 7));
            audit(&uvm, held, &[&a, &b], &[]);
            if copy.is_ok() {
                break;
            }
            assert_eq!((copy, a.map().entries(held)), (Err(MapError::NoMemory), 1), "{refused}");
            refused += 1;
        }
        assert!(refused > 3, "{refused}");
        [a, b].into_iter().for_each(|space| uvm.space_destroy(held, space));
        assert_eq!(uvm.frames().free(), free);
    }
}

/// A space with 40 pages, of which four in the middle are on loan from an object.
fn borrowing(uvm: &World, held: &mut Held<'_, Nothing>) -> (uvm::Space<SoftMachine>, PageRange) {
    let (space, range) = written(uvm, held, 40);
    let pager: Arc<dyn Pager<SoftMachine>> = AnonObject::new(uvm, held, Pages(4)).unwrap();
    for n in 0..4 {
        let write = |machine: &SoftMachine, page| machine.write(page, 0, &[1]);
        uvm.with_page(held, &pager, Pages(n), Intent::Write, uvm::Access::PAGE, write).unwrap();
    }
    let mut loan = Loan::new();
    uvm.loan_object(held, &pager, Pages(0), 4, &mut loan).unwrap();
    uvm.transfer(held, &space, loan, At::Fixed(range.start + Pages(12))).map_err(|e| e.0).unwrap();
    (space, range)
}

#[test]
fn a_share_that_is_refused_leaves_its_source_in_one_piece() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = borrowing(&uvm, held);
    let b = uvm.space_create(held, BOUNDS).unwrap();
    uvm.machine().leave_free(0);
    let source = PageRange::new(range.start + Pages(10), range.start + Pages(30)).unwrap();
    let shared = uvm.pass_range(held, &a, source, &b, Place::Anywhere, Pass::Share);
    uvm.machine().give_back();
    assert_eq!((shared, a.map().entries(held)), (Err(MapError::NoMemory), 1));
    audit(&uvm, held, &[&a, &b], &[]);
    [a, b].into_iter().for_each(|space| uvm.space_destroy(held, space));
}

#[test]
fn what_is_passed_behind_a_hole_is_one_entry_again() {
    let ((uvm, _), mut ctx) = (world(8192), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 200);
    let b = uvm.space_create(held, BOUNDS).unwrap();
    let source =
        PageRange::new(Va(range.start.0 - 5 * machine::PAGE_SIZE as u64), range.start + Pages(20))
            .unwrap();
    uvm.pass_range(held, &a, source, &b, Place::Anywhere, Pass::Share).unwrap();
    assert_eq!(a.map().entries(held), 1);
    uvm.wire(held, &a, range).unwrap();
    uvm.unwire(held, &a, range).unwrap();
    let mut refused = 0;
    loop {
        uvm.machine().heap.fail_from(refused + 1);
        let copy = uvm.pass_range(held, &a, source, &b, Place::Anywhere, Pass::Copy);
        uvm.machine().heap.fail_nth(0);
        if copy.is_ok() {
            break;
        }
        assert_eq!((copy, a.map().entries(held)), (Err(MapError::NoMemory), 1), "{refused}");
        refused += 1;
    }
    assert!(refused > 5);
    [a, b].into_iter().for_each(|space| uvm.space_destroy(held, space));
}

#[test]
fn a_copy_by_a_thread_that_is_being_ended_leaves_its_source_in_one_piece() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 50);
    uvm.machine().end_thread(0);
    let source = PageRange::new(range.start + Pages(10), range.start + Pages(20)).unwrap();
    let copy = uvm.extract(held, &a, source, Pass::Copy);
    let copy = copy.map(|copy| uvm.drop_detached(held, copy));
    assert_eq!((copy, a.map().entries(held)), (Err(MapError::NoMemory), 1));
    uvm.space_destroy(held, a);
}

#[test]
fn a_copy_in_one_map_makes_no_more_entries_than_there_may_be() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    uvm.knobs().set_most_entries(8);
    let (a, range) = written(&uvm, held, 50);
    for n in 0..5 {
        let there = Place::Fixed(Va((1 << 30) + n * 0x10_0000));
        uvm.map(held, &a, &MapRequest { place: there, ..MapRequest::zero(Pages(1)) }).unwrap();
    }
    let source = PageRange::new(range.start + Pages(10), range.start + Pages(20)).unwrap();
    let copy = uvm.pass_range(held, &a, source, &a, Place::Fixed(Va(1 << 32)), Pass::Copy);
    assert_eq!((copy, a.map().entries(held)), (Err(MapError::TooMany), 6));
    uvm.space_destroy(held, a);
}

#[test]
fn a_refused_wiring_leaves_one_entry_and_no_page_wired() {
    for pages in [40, 1400] {
        let ((uvm, free), mut ctx) = (world(4096), ThreadCtx::new());
        let held = &mut ctx.held();
        let (a, range) = written(&uvm, held, pages);
        uvm.discard(held, &a, PageRange::new(range.start + Pages(pages / 2), range.end).unwrap())
            .unwrap();
        let source =
            PageRange::new(range.start + Pages(5), range.start + Pages(pages - 5)).unwrap();
        let mut refused = 0;
        loop {
            uvm.machine().heap.fail_from(refused + 1);
            let wired = uvm.wire(held, &a, source);
            uvm.machine().heap.fail_nth(0);
            audit(&uvm, held, &[&a], &[]);
            if wired.is_ok() {
                break;
            }
            assert_eq!((a.map().entries(held), self::wired(&uvm, &a, range)), (1, 0), "{refused}");
            refused += 1;
        }
        assert!(refused > 1 && wired(&uvm, &a, range) as u64 == pages - 10);
        uvm.unwire(held, &a, range).unwrap();
        assert_eq!((a.map().entries(held), wired(&uvm, &a, range)), (1, 0));
        uvm.space_destroy(held, a);
        assert_eq!(uvm.frames().free(), free);
    }
}

#[test]
fn locked_memory_is_copied_and_can_be_written_where_its_copy_is_refused() {
    let ((uvm, free), mut ctx) = (world(8192), ThreadCtx::new());
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 600);
    let locked = PageRange::new(range.start, range.start + Pages(300)).unwrap();
    uvm.wire(held, &a, locked).unwrap();
    let b = uvm.space_create(held, BOUNDS).unwrap();
    let is_writable = |va: &Va| {
        let page = uvm.machine().pmap().extract(a.pmap(), *va);
        page.is_some_and(|(_, prot)| prot.contains(Prot::WRITE))
    };
    // It begins and ends inside of an entry.
    let source = PageRange::new(range.start + Pages(4), range.start + Pages(596)).unwrap();
    let mut refused = 0;
    let copy = loop {
        uvm.machine().heap.fail_from(refused + 1);
        let copy = uvm.pass_range(held, &a, source, &b, Place::Anywhere, Pass::Copy);
        uvm.machine().heap.fail_nth(0);
        assert_eq!(locked.iter_pages().filter(is_writable).count(), 300, "{refused}: {copy:?}");
        assert_eq!(wired(&uvm, &a, range), 300);
        match copy {
            Ok(copy) => break copy,
            Err(e) => assert_eq!(e, MapError::NoMemory),
        }
        refused += 1;
    };
    assert!(refused > 6);
    for (n, va) in source.iter_pages().enumerate() {
        let before = load(&uvm, &a, va);
        assert_eq!(load(&uvm, &b, copy + Pages(n as u64)), before);
        store(&uvm, &a, va, before + 1);
        assert_eq!(load(&uvm, &b, copy + Pages(n as u64)), before);
    }
    audit(&uvm, held, &[&a, &b], &[]);
    [a, b].into_iter().for_each(|space| uvm.space_destroy(held, space));
    assert_eq!(uvm.frames().free(), free);
}

/// Stores to memory that is locked take no fault, though another space that shares it has copied
/// it: by a fork, or as a range.
#[test]
fn a_copy_leaves_what_another_space_has_locked_writable_there() {
    let (uvm, _) = world(64);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let (a, range) = written(&uvm, held, 4);
    let b = uvm.space_create(held, BOUNDS).unwrap();
    uvm.pass_range(held, &a, range, &b, Place::Fixed(range.start), Pass::Share).unwrap();
    let locked = PageRange::new(range.start + Pages(1), range.start + Pages(3)).unwrap();
    uvm.wire(held, &b, locked).unwrap();
    let store_without_fault = |va, byte| {
        let fault = |va, _| -> Result<(), uvm::FaultError> { panic!("a fault at {va:?}") };
        uvm.machine().store(0, b.pmap(), va, &[byte], fault).unwrap();
    };
    let child = uvm.fork(held, &a).unwrap();
    locked.iter_pages().for_each(|va| store_without_fault(va, 77));
    let copy = uvm.extract(held, &a, range, Pass::Copy).unwrap();
    locked.iter_pages().for_each(|va| store_without_fault(va, 78));
    let c = uvm.space_create(held, BOUNDS).unwrap();
    uvm.pass_range(held, &a, range, &c, Place::Fixed(range.start), Pass::Copy).unwrap();
    locked.iter_pages().for_each(|va| store_without_fault(va, 79));
    for (n, va) in (1u8..).zip(range.iter_pages()) {
        let is_locked = locked.start <= va && va < locked.end;
        let at = |shown: u8| if is_locked { shown } else { n };
        assert_eq!(load(&uvm, &child, va), n);
        assert_eq!(load(&uvm, copy.space(), va), at(77));
        assert_eq!(load(&uvm, &c, va), at(78));
        assert_eq!((load(&uvm, &a, va), load(&uvm, &b, va)), (at(79), at(79)));
    }
    audit(&uvm, held, &[&a, &b, &c, &child, copy.space()], &[]);
    uvm.drop_detached(held, copy);
}
