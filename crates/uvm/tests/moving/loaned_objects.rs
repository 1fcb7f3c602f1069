//! Loans of objects' pages: files whose reads are under way or have failed, and devices.

use std::sync::Arc;

use crate::disk::{Answers, Desk, World};
use crate::loaning::bytes;
use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageRange, Pages, ThreadCtx, Va};
use uvm::{
    Advice, Counter, DevicePager, FaultError, GetError, Loan, MapRequest, Pager, Sharing, Space,
};
use uvm_soft::{Config, SoftMachine};

fn map(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    space: &Space<SoftMachine>,
    pager: &Arc<dyn Pager<SoftMachine>>,
) -> Va {
    let len = pager.object().len(held);
    uvm.map(held, space, &MapRequest::object(pager.clone(), Pages(0), len, Sharing::Shared))
        .unwrap()
}

#[test]
fn pages_that_are_being_read_are_loaned_once_they_are() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 64), ThreadCtx::new());
    let (uvm, held) = (&desk.uvm, &mut ctx.held());
    let space = desk.space(held);
    let va = map(uvm, held, &space, &desk.pager);
    let pages = |first, end| PageRange::new(va + Pages(first), va + Pages(end)).unwrap();
    uvm.will_need(held, &space, pages(20, 24));
    assert!(uvm.machine().under_way() > 0);
    let mut loan = uvm.loan_to_kernel(held, &space, pages(20, 24)).unwrap();
    uvm.will_need(held, &space, pages(40, 44));
    assert!(uvm.machine().under_way() > 0);
    assert_eq!(uvm.loan_object(held, &desk.pager, Pages(40), 4, &mut loan), Ok(4));
    assert_eq!(bytes(uvm, &loan), [20, 21, 22, 23, 40, 41, 42, 43]);
    assert_eq!(
        (uvm.stat().get(Counter::LoansObject), uvm.stat().get(Counter::LoansCopied)),
        (8, 0)
    );
    uvm.return_loan(held, loan).unwrap();
    desk.close(held, vec![space]);
}

#[test]
fn pages_that_could_not_be_read_are_not_loaned() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 64), ThreadCtx::new());
    let (uvm, held) = (&desk.uvm, &mut ctx.held());
    let space = desk.space(held);
    let va = map(uvm, held, &space, &desk.pager);
    let page = PageRange::new(va + Pages(21), va + Pages(22)).unwrap();
    let read_ahead = |held: &mut Held<'_, Nothing>| {
        desk.disk.state().bad.insert(21);
        uvm.will_need(held, &space, page);
        desk.disk.state().bad.clear();
    };
    let mut loan = Loan::new();
    read_ahead(held);
    assert_eq!(uvm.loan_to_kernel(held, &space, page).err(), Some(FaultError::Io));
    read_ahead(held);
    assert_eq!(uvm.loan_object(held, &desk.pager, Pages(21), 2, &mut loan), Err(GetError::Io));
    assert_eq!(uvm.loan_object(held, &desk.pager, Pages(21), 2, &mut loan), Ok(2));
    assert_eq!(bytes(uvm, &loan), [21, 22]);
    uvm.return_loan(held, loan).unwrap();
    desk.close(held, vec![space]);
}

#[test]
fn no_more_of_a_file_is_read_than_is_to_be_loaned() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 200), ThreadCtx::new());
    let (uvm, held) = (&desk.uvm, &mut ctx.held());
    let space = desk.space(held);
    let va = map(uvm, held, &space, &desk.pager);
    uvm.advise(held, &space, PageRange::new(va, va + Pages(200)).unwrap(), Advice::Random).unwrap();
    desk.load(&space, va + Pages(100)).unwrap();
    let mut loan = Loan::new();
    assert_eq!(uvm.loan_object(held, &desk.pager, Pages(100), 20, &mut loan), Ok(20));
    assert_eq!(desk.disk.take_reads(), [100..101, 101..120]);
    assert!(bytes(uvm, &loan).into_iter().eq(100..120));
    uvm.return_loan(held, loan).unwrap();
    desk.close(held, vec![space]);
}

#[test]
fn a_device_s_pages_are_copied() {
    let config = Config { devices: vec![(Pa(1 << 32), 3)], ..Config::default() };
    let (desk, mut ctx) = (Desk::on(config, Answers::AtOnce, 1), ThreadCtx::new());
    let (uvm, held) = (&desk.uvm, &mut ctx.held());
    let first = uvm.frames().page_at(Pa(1 << 32)).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> = DevicePager::new(uvm, held, first, Pages(3)).unwrap();
    let space = desk.space(held);
    let va = map(uvm, held, &space, &pager);
    (0..3).for_each(|n| desk.store(&space, va + Pages(n), n as u8 + 1).unwrap());
    let mut loan =
        uvm.loan_to_kernel(held, &space, PageRange::new(va, va + Pages(3)).unwrap()).unwrap();
    assert_eq!(uvm.loan_object(held, &pager, Pages(1), 2, &mut loan), Ok(2));
    uvm.machine().write(first, 0, &[9]);
    desk.store(&space, va + Pages(1), 9).unwrap();
    assert_eq!((bytes(uvm, &loan), uvm.stat().get(Counter::LoansCopied)), (vec![1, 2, 3, 2, 3], 5));
    uvm.return_loan(held, loan).unwrap();
    uvm.space_destroy(held, space);
    uvm.detach(held, &*pager);
    desk.close(held, vec![]);
}
