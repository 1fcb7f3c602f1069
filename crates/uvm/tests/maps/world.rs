//! An instance on a small machine, and what a program does there.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{EntryInfo, FaultError, MapRequest, Pager, Space, Uvm};
use uvm_soft::{Config, SoftMachine};

use crate::count::Counted;

pub type Soft = SoftMachine<Counted>;
pub type World = Arc<Uvm<Soft>>;

/// 128 TiB, but for the first page.
pub const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 47)).unwrap();

/// A machine of so many frames.
pub fn world(frames: u32) -> World {
    let config = Config { segments: vec![(Pa(0x10_0000), frames)], ..Config::default() };
    Arc::new(SoftMachine::with_threads(&config).into_uvm().unwrap())
}

pub fn space(uvm: &World, held: &mut Held<'_, Nothing>) -> Space<Soft> {
    uvm.space_create(held, BOUNDS).unwrap()
}

/// A mapping of zeroes.
pub fn zeroes(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    space: &Space<Soft>,
    pages: u64,
) -> PageRange {
    let va = uvm.map(held, space, &MapRequest::zero(Pages(pages))).unwrap();
    PageRange::new(va, va + Pages(pages)).unwrap()
}

/// A part of a range, by pages.
pub fn part(range: PageRange, pages: std::ops::Range<u64>) -> PageRange {
    PageRange::new(range.start + Pages(pages.start), range.start + Pages(pages.end)).unwrap()
}

pub fn store(uvm: &World, space: &Space<Soft>, va: Va, byte: u8) -> Result<(), FaultError> {
    let fault =
        |va, access: Prot| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    uvm.machine().store(uvm.machine().cpu(), space.pmap(), va, &[byte], fault).map_err(
        |e| match e {
            uvm_soft::Denied::Fault(e) => e,
            other => panic!("{other:?}"),
        },
    )
}

pub fn load(uvm: &World, space: &Space<Soft>, va: Va) -> Result<u8, FaultError> {
    let mut byte = [0];
    let fault =
        |va, access: Prot| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    let got = uvm.machine().load(uvm.machine().cpu(), space.pmap(), va, &mut byte, fault);
    got.map(|()| byte[0]).map_err(|e| match e {
        uvm_soft::Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })
}

/// The entries of a space.
pub fn entries(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<Soft>) -> Vec<EntryInfo> {
    let mut all = Vec::new();
    uvm.describe(held, space, |e| all.push(e.clone()));
    all
}

pub fn audit(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    spaces: &[&Space<Soft>],
    objects: &[Arc<dyn Pager<Soft>>],
) {
    uvm.audit(held, spaces, objects).unwrap();
    uvm.machine().tlb_audit().unwrap();
}

/// Ends all spaces and sees that every frame and every anon came back.
pub fn end(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    spaces: impl IntoIterator<Item = Space<Soft>>,
) {
    spaces.into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_eq!((uvm.frames().free(), uvm.anons()), (uvm.frames().total(), 0));
}
