//! Values that have to be given back, dropped. What is noted then is noted for the whole program:
//! so there is one test here, and no other test drops any.

#[path = "disk/mod.rs"]
mod disk;
mod loaning;

use std::panic::{catch_unwind, AssertUnwindSafe};

use disk::Desk;
use loaning::{audit, load, world, written};
use machine::{Pages, Prot, ThreadCtx};
use uvm::{MapRequest, Pass, Retry, Sharing};

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap<true> = uvm_soft::ChargedHeap;

/// Drops a value, and says whether that was found on the spot.
fn is_found<T>(value: T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(value))).is_err()
}

#[test]
fn a_dropped_loan_pin_range_or_read_is_found_at_once_and_by_audit() {
    let ((uvm, _), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, range) = written(&uvm, held, 4);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    let pinned = uvm.wire_pages(held, &space, range, Prot::READ).unwrap();
    let unwound = uvm.wire_pages(held, &space, range, Prot::READ).unwrap();
    let detached = uvm.extract(held, &space, range, Pass::Copy).unwrap();
    let copy = uvm.extract(held, &space, range, Pass::Copy).unwrap();
    uvm.drop_detached(held, copy);
    let again = uvm.loan_again(&loan.pages()[0]).unwrap();
    uvm.return_page(held, again).unwrap();
    audit(&uvm, held, &[&space, detached.space()], &[&loan]);
    // What a panic unwinds is the panic's fault alone.
    let panic = catch_unwind(AssertUnwindSafe(move || {
        let _unwound = unwound;
        panic!("on purpose");
    }));
    assert!(panic.is_err());
    audit(&uvm, held, &[&space, detached.space()], &[&loan]);
    assert_eq!(load(&uvm, &space, range.start), 1);
    let desk = Desk::slow(4);
    let files = desk.space(held);
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(4), Sharing::Shared);
    let va = desk.uvm.map(held, &files, &request).unwrap();
    let Err(Retry::Read(read)) = desk.uvm.try_fault(held, &files, va, Prot::READ) else {
        panic!("nothing is in memory");
    };
    assert_eq!(is_found(read), cfg!(debug_assertions));
    let mut why = || uvm.audit(held, &[&space], &[]).unwrap_err().to_string();
    assert!(why().contains("a read was dropped that was not started"), "{}", why());
    assert_eq!(is_found(detached), cfg!(debug_assertions));
    let mut why = || uvm.audit(held, &[&space], &[]).unwrap_err().to_string();
    assert!(why().contains("a detached range was dropped"), "{}", why());
    assert_eq!(is_found(pinned), cfg!(debug_assertions));
    assert!(why().contains("pins were dropped"), "{}", why());
    assert_eq!(is_found(loan), cfg!(debug_assertions));
    assert!(why().contains("a page on loan was dropped"), "{}", why());
}
