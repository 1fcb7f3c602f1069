//! A world for tests that loan, transfer and pass pages: of one thread, without swap or files.
// Each test binary uses a part.
#![allow(dead_code)]

use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageRange, Pages, ThreadCtx, Va};
use uvm::{Loan, LoanedPage, MapRequest, Space, Uvm};
use uvm_soft::{Config, SoftMachine};

pub type World = Uvm<SoftMachine>;

pub const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();

/// A machine of so many frames, and how many are free. The page of zeroes is made at once, so that
/// what is free can be compared.
pub fn world(frames: u32) -> (World, usize) {
    let config = Config { segments: vec![(Pa(0x10_0000), frames)], ..Config::default() };
    let uvm = SoftMachine::new(config).into_uvm().unwrap();
    let mut ctx = ThreadCtx::new();
    let zero = uvm.zero_page(&mut ctx.held()).unwrap();
    uvm.return_page(&mut ctx.held(), zero).unwrap();
    let free = uvm.frames().free();
    (uvm, free)
}

pub fn store(uvm: &World, space: &Space<SoftMachine>, va: Va, byte: u8) {
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    uvm.machine().store(0, space.pmap(), va, &[byte], fault).unwrap();
}

pub fn load(uvm: &World, space: &Space<SoftMachine>, va: Va) -> u8 {
    let mut byte = [0];
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(|_| ());
    uvm.machine().load(0, space.pmap(), va, &mut byte, fault).unwrap();
    byte[0]
}

/// The first byte of each page on loan.
pub fn bytes(uvm: &World, loan: &Loan) -> Vec<u8> {
    let first = |page: &LoanedPage| {
        let mut byte = [0];
        uvm.machine().read(page.page(), 0, &mut byte);
        byte[0]
    };
    loan.pages().iter().map(first).collect()
}

pub fn audit(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    spaces: &[&Space<SoftMachine>],
    loan: &[&Loan],
) {
    uvm.audit(held, spaces, &[]).unwrap();
    uvm.audit_loans(held, spaces, loan.iter().flat_map(|loan| loan.pages())).unwrap();
    uvm.machine().tlb_audit().unwrap();
}

/// A space with `pages` pages mapped, each written with its number and one, up to 200.
pub fn written(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    pages: u64,
) -> (Space<SoftMachine>, PageRange) {
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let va = uvm.map(held, &space, &MapRequest::zero(Pages(pages))).unwrap();
    (0..pages).for_each(|n| store(uvm, &space, va + Pages(n), (n % 200) as u8 + 1));
    (space, PageRange::new(va, va + Pages(pages)).unwrap())
}
