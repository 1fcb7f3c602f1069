//! What the paper says of anonymous memory, maps and pagers, each in a test of its own on the
//! software machine.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Machine, PageRange, Pages, Pmap, Prot, ThreadCtx, Va, PAGE_SIZE};
use uvm::{
    AnonObject, Counter, FaultError, Inherit, MapError, MapRequest, Pager, Place, RangeError,
    RemapPlace, Sharing, Space, Uvm,
};
use uvm_soft::{Config, SoftMachine};

type World = Uvm<SoftMachine>;

const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();
const PAGE: u64 = PAGE_SIZE as u64;

fn world() -> World {
    SoftMachine::new(Config::default()).into_uvm().unwrap()
}

fn store(uvm: &World, space: &Space<SoftMachine>, va: Va, byte: u8) -> Result<(), FaultError> {
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    uvm.machine().store(0, space.pmap(), va, &[byte], fault).map_err(|e| match e {
        uvm_soft::Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })
}

fn load(uvm: &World, space: &Space<SoftMachine>, va: Va) -> Result<u8, FaultError> {
    let mut byte = [0];
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    uvm.machine().load(0, space.pmap(), va, &mut byte, fault).map_err(|e| match e {
        uvm_soft::Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })?;
    Ok(byte[0])
}

fn space(uvm: &World, held: &mut Held<'_, Nothing>) -> Space<SoftMachine> {
    uvm.space_create(held, BOUNDS).unwrap()
}

fn audit(uvm: &World, held: &mut Held<'_, Nothing>, spaces: &[&Space<SoftMachine>]) {
    uvm.audit(held, spaces, &[]).unwrap();
    uvm.machine().tlb_audit().unwrap();
}

#[test]
fn the_last_writer_after_a_fork_copies_nothing() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let parent = space(&uvm, held);
    let va = uvm.map(held, &parent, &MapRequest::zero(Pages(3))).unwrap();
    (0..3).for_each(|i| store(&uvm, &parent, va + Pages(i), 1).unwrap());
    let child = uvm.fork(held, &parent).unwrap();
    store(&uvm, &parent, va + Pages(1), 2).unwrap();
    audit(&uvm, held, &[&parent, &child]);
    let copied = uvm.stat().get(Counter::FaultsAnonCopied);
    assert_eq!((copied, uvm.anons()), (1, 4));
    // Figure 3: the child writes the middle page too, in place.
    store(&uvm, &child, va + Pages(1), 3).unwrap();
    assert_eq!((uvm.stat().get(Counter::FaultsAnonCopied), uvm.anons()), (copied, 4));
    assert_eq!(
        (load(&uvm, &parent, va + Pages(1)), load(&uvm, &child, va + Pages(1))),
        (Ok(2), Ok(3))
    );
    uvm.space_destroy(held, child);
    assert_eq!(uvm.anons(), 3);
    audit(&uvm, held, &[&parent]);
    uvm.space_destroy(held, parent);
    assert_eq!((uvm.anons(), uvm.frames().free()), (0, uvm.frames().total()));
}

#[test]
fn forks_that_come_and_go_leave_memory_as_it_was() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let parent = space(&uvm, held);
    let va = uvm.map(held, &parent, &MapRequest::zero(Pages(8))).unwrap();
    (0..8).for_each(|i| store(&uvm, &parent, va + Pages(i), 1).unwrap());
    uvm.unmap(held, &parent, PageRange::new(va + Pages(3), va + Pages(5)).unwrap()).unwrap();
    assert_eq!(uvm.anons(), 6);
    for round in 0..2000u64 {
        let child = uvm.fork(held, &parent).unwrap();
        store(&uvm, &parent, va + Pages(round % 3), 2).unwrap();
        store(&uvm, &child, va + Pages(5 + round % 3), 3).unwrap();
        let keep = PageRange::new(va, va + Pages(3)).unwrap();
        uvm.unmap(held, &child, keep).unwrap();
        uvm.space_destroy(held, child);
        assert_eq!(uvm.anons(), 6, "round {round}");
    }
    audit(&uvm, held, &[&parent]);
    uvm.space_destroy(held, parent);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_heap_grows_in_place_as_one_entry() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    for i in 0..16 {
        let at = MapRequest {
            place: Place::FixedNoReplace(Va(0x10000 + i * PAGE)),
            ..MapRequest::zero(Pages(1))
        };
        uvm.map(held, &s, &at).unwrap();
        store(&uvm, &s, Va(0x10000 + i * PAGE), 7).unwrap();
    }
    assert_eq!(s.map().entries(held), 1);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
}

#[test]
fn a_heap_that_grows_by_protect_stays_two_entries() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(64)).prot(Prot::NONE)).unwrap();
    for i in 0..63 {
        let page = PageRange::new(va + Pages(i), va + Pages(i + 1)).unwrap();
        uvm.protect(held, &s, page, Prot::READ_WRITE).unwrap();
        store(&uvm, &s, page.start, i as u8).unwrap();
        assert_eq!(s.map().entries(held), 2);
        audit(&uvm, held, &[&s]);
    }
    uvm.protect(held, &s, PageRange::new(va + Pages(5), va + Pages(9)).unwrap(), Prot::READ)
        .unwrap();
    assert_eq!(s.map().entries(held), 4);
    uvm.protect(held, &s, PageRange::new(va, va + Pages(64)).unwrap(), Prot::READ_WRITE).unwrap();
    assert_eq!((s.map().entries(held), load(&uvm, &s, va + Pages(7))), (1, Ok(7)));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
}

#[test]
fn a_sparse_terabyte_costs_by_its_touched_pages() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = uvm
        .space_create(held, PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 45)).unwrap())
        .unwrap();
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(1 << 28))).unwrap();
    for i in 0..500u64 {
        store(&uvm, &s, va + Pages(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36), 1).unwrap();
    }
    assert_eq!((uvm.anons(), s.map().entries(held)), (500, 1));
    uvm.space_destroy(held, s);
    assert_eq!(uvm.anons(), 0);
}

#[test]
fn memory_shared_by_inheritance_is_seen_by_both_and_copied_for_a_third() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let a = space(&uvm, held);
    let va = uvm.map(held, &a, &MapRequest::zero(Pages(2))).unwrap();
    let range = PageRange::new(va, va + Pages(2)).unwrap();
    store(&uvm, &a, va, 1).unwrap();
    uvm.inherit(held, &a, range, Inherit::Share).unwrap();
    let b = uvm.fork(held, &a).unwrap();
    store(&uvm, &b, va + Pages(1), 2).unwrap();
    assert_eq!(load(&uvm, &a, va + Pages(1)), Ok(2));
    uvm.inherit(held, &b, range, Inherit::Copy).unwrap();
    let c = uvm.fork(held, &b).unwrap();
    store(&uvm, &a, va, 9).unwrap();
    assert_eq!((load(&uvm, &b, va), load(&uvm, &c, va)), (Ok(9), Ok(1)));
    audit(&uvm, held, &[&a, &b, &c]);
    [a, b, c].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_child_inherits_nothing_or_zeroes_if_told_so() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let a = space(&uvm, held);
    let va = uvm.map(held, &a, &MapRequest::zero(Pages(2))).unwrap();
    (0..2).for_each(|i| store(&uvm, &a, va + Pages(i), 5).unwrap());
    uvm.inherit(held, &a, PageRange::new(va, va + Pages(1)).unwrap(), Inherit::None).unwrap();
    uvm.inherit(held, &a, PageRange::new(va + Pages(1), va + Pages(2)).unwrap(), Inherit::Zero)
        .unwrap();
    let b = uvm.fork(held, &a).unwrap();
    assert_eq!(
        (load(&uvm, &b, va), load(&uvm, &b, va + Pages(1))),
        (Err(FaultError::NoMapping), Ok(0))
    );
    [a, b].into_iter().for_each(|s| uvm.space_destroy(held, s));
}

#[test]
fn wired_memory_is_copied_at_fork_and_stays_mapped() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let a = space(&uvm, held);
    let va = uvm.map(held, &a, &MapRequest::zero(Pages(4))).unwrap();
    let range = PageRange::new(va + Pages(1), va + Pages(3)).unwrap();
    uvm.wire(held, &a, range).unwrap();
    audit(&uvm, held, &[&a]);
    let b = uvm.fork(held, &a).unwrap();
    assert!(uvm
        .machine()
        .pmap()
        .extract(a.pmap(), va + Pages(1))
        .is_some_and(|(_, p)| p.contains(Prot::WRITE)));
    store(&uvm, &a, va + Pages(1), 4).unwrap();
    assert_eq!(load(&uvm, &b, va + Pages(1)), Ok(0));
    audit(&uvm, held, &[&a, &b]);
    assert_eq!(uvm.discard(held, &a, range), Err(RangeError::Access));
    uvm.unwire(held, &a, range).unwrap();
    uvm.discard(held, &a, range).unwrap();
    assert_eq!(load(&uvm, &a, va + Pages(1)), Ok(0));
    [a, b].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_moved_mapping_keeps_its_pages() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(2)).at(Va(0x20000))).unwrap();
    uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(va + Pages(2)).prot(Prot::READ)).unwrap();
    store(&uvm, &s, va + Pages(1), 8).unwrap();
    let old = PageRange::new(va, va + Pages(2)).unwrap();
    assert_eq!(uvm.remap(held, &s, old, Pages(4), RemapPlace::Stay), Err(MapError::NoSpace));
    let new = uvm.remap(held, &s, old, Pages(4), RemapPlace::MayMove).unwrap();
    assert_eq!((load(&uvm, &s, new + Pages(1)), load(&uvm, &s, new + Pages(3))), (Ok(8), Ok(0)));
    assert_eq!(
        (load(&uvm, &s, va), uvm.stat().get(Counter::FaultsAnonCopied)),
        (Err(FaultError::NoMapping), 0)
    );
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
}

#[test]
fn a_truncated_object_faults_and_a_pinned_page_lives_until_unpinned() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object = AnonObject::new(&uvm, held, Pages(2)).unwrap();
    let pager: Arc<dyn Pager<SoftMachine>> = object.clone();
    let va = uvm
        .map(held, &s, &MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Shared))
        .unwrap();
    store(&uvm, &s, va + Pages(1), 6).unwrap();
    let seen =
        uvm.with_page(held, &pager, Pages(1), uvm::Intent::Read, uvm::Access::PAGE, |m, page| {
            uvm.truncate(&mut ThreadCtx::new().held(), &pager, Pages(1));
            let mut byte = [0];
            m.read(page, 0, &mut byte);
            byte[0]
        });
    assert_eq!((seen, load(&uvm, &s, va + Pages(1))), (Ok(Some(6)), Err(FaultError::Bus)));
    uvm.audit(held, &[&s], std::slice::from_ref(&pager)).unwrap();
    uvm.space_destroy(held, s);
    uvm.detach(held, &*pager);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_read_only_object_refuses_more_than_its_most() {
    let (uvm, mut ctx) = (world(), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object: Arc<dyn Pager<SoftMachine>> = AnonObject::new(&uvm, held, Pages(1)).unwrap();
    let request = MapRequest {
        prot: Prot::READ,
        max_prot: Prot::READ,
        ..MapRequest::object(object.clone(), Pages(0), Pages(1), Sharing::Shared)
    };
    let va = uvm.map(held, &s, &request).unwrap();
    let range = PageRange::new(va, va + Pages(1)).unwrap();
    assert_eq!(store(&uvm, &s, va, 1), Err(FaultError::Protection));
    assert_eq!(uvm.protect(held, &s, range, Prot::READ_WRITE), Err(RangeError::Access));
    assert_eq!(
        uvm.protect(held, &s, PageRange::new(va, va + Pages(2)).unwrap(), Prot::READ),
        Err(RangeError::NoMapping)
    );
    uvm.space_destroy(held, s);
    uvm.detach(held, &*object);
}

#[test]
fn the_knob_says_whether_a_fault_maps_its_neighbours() {
    for (neighbours, expected) in [(true, 8), (false, 1)] {
        let (uvm, mut ctx) = (world(), ThreadCtx::new());
        let held = &mut ctx.held();
        uvm.knobs().set_fault_around(neighbours);
        let space = space(&uvm, held);
        let va = uvm.map(held, &space, &MapRequest::zero(Pages(8))).unwrap();
        (0..8).for_each(|i| store(&uvm, &space, va + Pages(i), 1).unwrap());
        // The fork took every store away; its child is gone, so one fault may give them all back.
        let child = uvm.fork(held, &space).unwrap();
        uvm.space_destroy(held, child);
        let before = uvm.stat().get(Counter::Faults);
        (0..8).for_each(|i| store(&uvm, &space, va + Pages(i), 2).unwrap());
        let faults = uvm.stat().get(Counter::Faults) - before;
        assert_eq!(8 / faults, expected, "neighbours {neighbours}: {faults} faults");
    }
}

#[test]
fn a_space_that_is_dropped_is_found_by_the_audits_of_its_instance() {
    let ((uvm, other), mut ctx) = ((world(), world()), ThreadCtx::new());
    let held = &mut ctx.held();
    let parent = space(&uvm, held);
    let child = uvm.fork(held, &parent).unwrap();
    audit(&uvm, held, &[&parent, &child]);
    drop(child);
    let why = uvm.audit(held, &[&parent], &[]).unwrap_err().to_string();
    assert!(why.contains("1 spaces were dropped, and not destroyed"), "{why}");
    audit(&other, held, &[]);
}
