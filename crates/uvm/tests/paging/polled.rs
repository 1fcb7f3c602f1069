//! Faults that are polled: what each attempt says, and that an attempt leaves nothing behind.

use machine::{Machine, Pages, Prot, ThreadCtx, Va};
use uvm::{FaultError, MapRequest, Retry, Sharing};
use uvm_soft::Fate;

use crate::disk::{Answers, Desk};

#[test]
fn two_faults_of_one_thread_wait_for_a_transfer_each() {
    let (desk, mut ctx) = (Desk::slow(1000), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, machine) = (desk.space(held), desk.uvm.machine());
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(1000), Sharing::Shared);
    let start = desk.uvm.map(held, &space, &request).unwrap();
    let places = [start + Pages(3), start + Pages(700)];
    let tickets = places.map(|va| {
        let Err(Retry::Read(read)) = desk.uvm.try_fault(held, &space, va, Prot::READ) else {
            panic!("nothing is in memory")
        };
        desk.uvm.start_read(held, read);
        match desk.uvm.try_fault(held, &space, va, Prot::READ) {
            Err(Retry::Wait(ticket)) => ticket,
            other => panic!("a transfer is under way: {other:?}"),
        }
    });
    assert_eq!(machine.under_way(), 2);
    let is_woken = |n: usize| machine.ticket(tickets[n].channel) != tickets[n];
    // The second ends first.
    machine.complete(1, Fate::Works);
    assert_eq!((is_woken(0), is_woken(1)), (false, true));
    for n in [1, 0] {
        let ahead = desk.uvm.try_fault(held, &space, places[n], Prot::READ).unwrap();
        ahead.into_iter().for_each(|read| desk.uvm.start_read(held, read));
        assert!(machine.access(0, space.pmap(), places[n], Prot::READ).is_ok());
        machine.complete(0, Fate::Works);
    }
    assert!(is_woken(0));
    desk.close(held, vec![space]);
}

#[test]
fn a_task_that_is_dropped_between_two_attempts_leaves_nothing() {
    let (desk, mut ctx) = (Desk::slow(100), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(100), Sharing::Private);
    let va = desk.uvm.map(held, &space, &request).unwrap();
    match desk.uvm.try_fault(held, &space, va, Prot::WRITE) {
        Err(Retry::Read(read)) => desk.uvm.start_read(held, read),
        other => panic!("nothing is in memory: {other:?}"),
    }
    assert!(matches!(desk.uvm.try_fault(held, &space, va, Prot::WRITE), Err(Retry::Wait(_))));
    desk.close(held, vec![space]);
}

#[test]
fn an_attempt_says_why_there_is_no_other() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 4), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let mut refused = |va, access| desk.uvm.try_fault(held, &space, va, access);
    assert_eq!(refused(Va(0x1_0000), Prot::READ), Err(Retry::Failed(FaultError::NoMapping)));
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(8), Sharing::Shared);
    let va = desk.uvm.map(&mut ThreadCtx::new().held(), &space, &request.prot(Prot::READ)).unwrap();
    assert_eq!(refused(va, Prot::WRITE), Err(Retry::Failed(FaultError::Protection)));
    while let Err(Retry::Read(read)) = refused(va + Pages(6), Prot::READ) {
        desk.uvm.start_read(&mut ThreadCtx::new().held(), read);
    }
    assert_eq!(refused(va + Pages(6), Prot::READ), Err(Retry::Failed(FaultError::Bus)));
    desk.close(held, vec![space]);
}

#[test]
fn without_memory_an_attempt_waits_for_some() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 4), ThreadCtx::new());
    let held = &mut ctx.held();
    let (space, machine) = (desk.space(held), desk.uvm.machine());
    let va = desk.uvm.map(held, &space, &MapRequest::zero(Pages(4))).unwrap();
    let fault = |va, access| desk.uvm.fault(&mut ThreadCtx::new().held(), &space, va, access);
    fault(va, Prot::WRITE).unwrap();
    machine.leave_free(0);
    let Err(Retry::Memory(ticket)) = desk.uvm.try_fault(held, &space, va + Pages(1), Prot::WRITE)
    else {
        panic!("no page is free")
    };
    assert_eq!(machine.ticket(ticket.channel), ticket);
    machine.heap.fail_nth(1);
    let refused = desk.uvm.try_fault(held, &space, va + Pages(1), Prot::WRITE);
    assert_eq!(refused, Err(Retry::Memory(ticket)), "no heap is left");
    machine.give_back();
    assert_eq!(desk.uvm.try_fault(held, &space, va + Pages(1), Prot::WRITE), Ok(None));
    desk.close(held, vec![space]);
}
