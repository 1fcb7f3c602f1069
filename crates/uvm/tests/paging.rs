//! Anonymous memory larger than the machine: page-out, page-in, swap devices, what fails. On the software machine.

mod swap_disk;

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Pa, Pages, ThreadCtx, Va, VaRange};
use swap_disk::{Mode, SwapDisk};
use uvm::{Counter, FaultError, MapRequest, Space, SwapId, Uvm};
use uvm_soft::{Config, Fate, SoftMachine};

type World = Arc<Uvm<SoftMachine>>;

const BOUNDS: VaRange = VaRange::new(Va(0x1000), Va(1 << 40));

/// A machine of so many frames.
fn world(frames: u32) -> World {
    let config = Config { segments: vec![(Pa(0x10_0000), frames)], ..Config::default() };
    Arc::new(Uvm::new(SoftMachine::new(config)).unwrap())
}

fn swap_on(uvm: &World, held: &mut Held<'_, Nothing>, slots: u32, mode: Mode) -> (Arc<SwapDisk>, SwapId) {
    let disk = SwapDisk::new(uvm, slots, mode);
    let id = uvm.swap_on(held, disk.clone(), 0).unwrap();
    (disk, id)
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

/// A space with `pages` pages mapped, each written with its number's low byte.
fn filled(uvm: &World, held: &mut Held<'_, Nothing>, pages: u64) -> (Space<SoftMachine>, Va) {
    let s = space(uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(pages))).unwrap();
    (0..pages).for_each(|i| store(uvm, &s, va + Pages(i), i as u8).unwrap());
    (s, va)
}

fn check(uvm: &World, s: &Space<SoftMachine>, va: Va, pages: u64) {
    (0..pages).for_each(|i| assert_eq!(load(uvm, s, va + Pages(i)), Ok(i as u8), "page {i}"));
}

/// Everything is given back: no page, no anon, no slot.
fn assert_empty(uvm: &World) {
    while uvm.machine().complete(0, Fate::Works) {}
    assert_eq!((uvm.anons(), uvm.swap_space().1, uvm.pages_in_flight()), (0, 0, 0));
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn three_times_the_memory_keeps_its_contents() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        swap_on(&uvm, held, 1024, mode);
        let (s, va) = filled(&uvm, held, 768);
        audit(&uvm, held, &[&s]);
        check(&uvm, &s, va, 768);
        audit(&uvm, held, &[&s]);
        (0..768).rev().for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8)));
        assert!(uvm.stat().get(Counter::SwapIns) > 500 && uvm.stat().get(Counter::SwapOuts) > 500);
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

#[test]
fn a_bad_slot_loses_its_page_and_nothing_else() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        let (disk, _) = swap_on(&uvm, held, 1024, mode);
        let (s, va) = filled(&uvm, held, 512);
        let used: Vec<u32> = (0..1024).filter(|&slot| disk.has(slot)).collect();
        disk.spoil(used.iter().copied().filter(|slot| slot % 50 == 7));
        let lost: Vec<u64> =
            (0..512).filter(|&i| load(&uvm, &s, va + Pages(i)) == Err(FaultError::Io)).collect();
        let spoilt = used.iter().filter(|&&slot| slot % 50 == 7).count();
        assert!(!lost.is_empty() && lost.len() <= spoilt, "{} pages lost in {spoilt} slots", lost.len());
        for i in (0..512).filter(|i| !lost.contains(i)) {
            assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8));
        }
        assert_eq!(store(&uvm, &s, va + Pages(lost[0]), 1), Err(FaultError::Io));
        audit(&uvm, held, &[&s]);
        uvm.unmap(held, &s, VaRange::new(va + Pages(lost[0]), va + Pages(lost[0] + 1))).unwrap();
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
        assert!(uvm.swap_info(held)[0].bad as usize >= lost.len());
    }
}
