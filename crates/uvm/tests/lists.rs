//! Lists of loaned pages, memory that is given away, and ranges that aren't of whole pages.

mod loaning;

use loaning::{audit, load, store, world, written, BOUNDS};
use machine::{Machine, PageRange, Pages, Prot, ThreadCtx, Va, VaRange};
use uvm::{AnonObject, FaultError, Loan, MapRequest, Pager, Sharing};
use uvm_soft::within_reservation;

/// What an operation allocates beyond its reservation fails the test.
#[global_allocator]
static HEAP: uvm_soft::ChargedHeap = uvm_soft::ChargedHeap;

#[test]
fn a_list_is_cut_and_joined_without_losing_a_page() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 8);
    let mut loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    let all: Vec<_> = loan.pages().iter().map(|page| page.page()).collect();
    let numbers = |loan: &Loan| loan.pages().iter().map(|page| page.page()).collect::<Vec<_>>();
    assert!(!loan.is_empty() && Loan::new().is_empty());
    assert_eq!((loan.len(), loan.room(), Loan::MOST), (8, Loan::MOST - 8, 2048));
    let rest = loan.try_split_off(5).unwrap();
    assert_eq!((numbers(&loan), numbers(&rest)), (all[..5].to_vec(), all[5..].to_vec()));
    let rest = rest.into_pages();
    // A list that grew as it was filled would have room for four.
    assert_eq!(rest.capacity(), 3, "what could have failed was all that it needs");
    let rest = rest.into_iter().collect();
    loan.append(rest);
    assert_eq!(numbers(&loan), all);
    let again = uvm.loan_again(&loan.pages()[7]).unwrap();
    loan.push(again);
    assert_eq!((loan.len(), loan.pages()[8].page()), (9, all[7]));
    uvm.return_others(held, &mut loan, 2..4).unwrap();
    assert_eq!(numbers(&loan), all[2..4]);
    audit(&uvm, held, &[&space], &[&loan]);
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
}

#[test]
fn what_a_list_allocates_is_reserved_by_its_bytes() {
    for pages in [1, 2, 3, 4, 100, 128, 129, Loan::MOST] {
        // A list that doubles has twice a power of two at most, in pieces of an allocator.
        let least = pages.next_power_of_two() * size_of::<uvm::LoanedPage>();
        assert!((2 * least..=2 * least + 64).contains(&Loan::bytes(pages)), "{pages} pages");
    }
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 20);
    let mut loan = within_reservation(|| uvm.loan_to_kernel(held, &space, range)).unwrap();
    within_reservation(|| uvm.new_pages(held, 100, &mut loan)).unwrap();
    assert_eq!(loan.len(), 120);
    let two = PageRange::new(range.start, range.start + Pages(2)).unwrap();
    uvm.return_others(held, &mut loan, 0..2).unwrap();
    let two = within_reservation(|| uvm.loan_to_kernel(held, &space, two)).unwrap();
    uvm.machine().reserve_heap(Loan::bytes(4)).unwrap();
    loan.append(two);
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
}

#[test]
fn only_private_memory_that_may_be_read_and_written_is_given_away() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let given = within_reservation(|| uvm.give_to_kernel(held, &space, range)).unwrap().unwrap();
    assert_eq!((given.len(), load(&uvm, &space, range.start)), (4, 0));
    uvm.return_loan(held, given).unwrap();
    // What isn't there is fetched, up to some pages.
    let holes = PageRange::new(range.start, range.start + Pages(2)).unwrap();
    store(&uvm, &space, range.start, 7);
    let given = uvm.give_to_kernel(held, &space, holes).unwrap().unwrap();
    assert_eq!(given.len(), 2);
    uvm.return_loan(held, given).unwrap();
    for prot in [Prot::READ, Prot::NONE] {
        store(&uvm, &space, range.start, 7);
        uvm.protect(held, &space, range, prot).unwrap();
        assert!(uvm.give_to_kernel(held, &space, range).unwrap().is_none(), "{prot:?}");
        uvm.protect(held, &space, range, Prot::READ_WRITE).unwrap();
        assert_eq!(load(&uvm, &space, range.start), 7);
    }
    uvm.wire(held, &space, range).unwrap();
    assert!(uvm.give_to_kernel(held, &space, range).unwrap().is_none(), "locked in memory");
    uvm.unwire(held, &space, range).unwrap();
    let over = PageRange::new(range.start, range.end + Pages(1)).unwrap();
    assert!(uvm.give_to_kernel(held, &space, over).unwrap().is_none(), "a hole");
    let object = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let shared = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
    object.object().attach();
    let va = uvm.map(held, &space, &shared).unwrap();
    store(&uvm, &space, va, 9);
    let range = PageRange::new(va, va + Pages(4)).unwrap();
    assert!(uvm.give_to_kernel(held, &space, range).unwrap().is_none(), "shared");
    assert_eq!(load(&uvm, &space, va), 9);
    audit(&uvm, held, &[&space], &[]);
    uvm.space_destroy(held, space);
    uvm.detach(held, &*object);
    uvm.detach(held, &*object);
}

#[test]
fn where_memory_has_run_out_nothing_is_given_away_or_loaned() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    // A device's page would be copied.
    let last = PageRange::new(range.start + Pages(3), range.end).unwrap();
    let pinned = uvm.wire_pages(held, &space, last, Prot::READ).unwrap();
    uvm.machine().leave_free(0);
    assert_eq!(uvm.give_to_kernel(held, &space, range).err(), Some(FaultError::NoMemory));
    assert_eq!(uvm.loan_to_kernel(held, &space, range).err(), Some(FaultError::NoMemory));
    uvm.machine().give_back();
    audit(&uvm, held, &[&space], &[]);
    (0..4).for_each(|n| assert_eq!(load(&uvm, &space, range.start + Pages(n)), n as u8 + 1));
    uvm.unwire_pages(held, pinned).unwrap();
    uvm.space_destroy(held, space);
    assert_eq!(uvm.frames().free(), free);
}

#[test]
fn a_range_of_pages_is_aligned_and_in_order() {
    const PAGE: u64 = machine::PAGE_SIZE as u64;
    let (start, end) = (PAGE, 5 * PAGE);
    for (from, to) in [(start + 1, end), (start, end - 1), (end, start), (start + 1, start + 1)] {
        let bad = VaRange::new(Va(from), Va(to));
        assert_eq!(PageRange::new(bad.start, bad.end), None, "{bad:?}");
        assert!(PageRange::try_from(bad).is_err(), "{bad:?}");
    }
    let all = PageRange::new(Va(start), Va(end)).unwrap();
    assert_eq!(PageRange::sized(Va(start), Pages(4)), Some(all));
    assert_eq!(PageRange::try_from(VaRange::from(all)), Ok(all));
    for (at, len) in [
        (1, 1),
        (PAGE, u64::MAX),
        (PAGE, (u64::MAX >> machine::PAGE_SHIFT) + 1),
        (0u64.wrapping_sub(PAGE), 1),
    ] {
        assert_eq!(PageRange::sized(Va(at), Pages(len)), None, "{len} pages from {at:#x}");
    }
    let apart = PageRange::new(Va(9 * PAGE), Va(10 * PAGE)).unwrap();
    assert!(all.intersect(apart).is_empty() && apart.intersect(all).is_empty());
    assert_eq!(all.intersect(PageRange::sized(Va(0), Pages(2)).unwrap()).pages(), Pages(1));
    assert_eq!(PageRange::new(Va(end), Va(end)).map(|none| none.pages()), Some(Pages(0)));
}

#[test]
fn places_at_the_end_of_all_numbers_are_refused() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let top = Va(0u64.wrapping_sub(machine::PAGE_SIZE as u64));
    let space = uvm.space_create(held, PageRange::new(BOUNDS.start, top).unwrap()).unwrap();
    // The run of pages around a fault ends where addresses do.
    let va = uvm.map(held, &space, &MapRequest::zero(Pages(4))).unwrap();
    assert_eq!(va + Pages(4), top);
    (0..4).for_each(|n| store(&uvm, &space, va + Pages(n), 5));
    assert!(uvm.entry_at(held, &space, Va(u64::MAX)).is_none());
    let range = PageRange::new(va, top).unwrap();
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    let object = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let pager: std::sync::Arc<dyn Pager<_>> = object.clone();
    for index in [1, 4, u64::MAX - 4, u64::MAX - 3, u64::MAX - 2, u64::MAX] {
        let mut more = Loan::new();
        if index >= 4 {
            assert!(uvm.loan_object(held, &pager, Pages(index), 64, &mut more).is_err(), "{index}");
        }
        assert!(more.is_empty());
    }
    audit(&uvm, held, &[&space], &[&loan]);
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
    uvm.detach(held, &*object);
    assert_eq!(uvm.frames().free(), free);
}
