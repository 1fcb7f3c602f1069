//! How long locks are held, whatever a program has made large: compared between a size and one
//! eight times as large, so that a slow machine changes nothing.

use std::time::Duration;

use machine::order::Nothing;
use machine::{Held, Pages, Prot, ThreadCtx, Va, VaRange};
use uvm::{Inherit, MapRequest, Pass, Place, Space};
use uvm_soft::{longest_hold, SoftMachine};

use crate::lending::{store, world, World, BOUNDS};

/// Pages of a leaf.
const LEAF: u64 = 64;
/// So many leaves, or pages that are unmapped.
const SIZES: [u64; 2] = [4096, 32_768];

type Make = fn(&World, &mut Held<'_, Nothing>, u64) -> (Space<SoftMachine>, VaRange);
type Call = fn(&World, &mut Held<'_, Nothing>, &Space<SoftMachine>, VaRange);

const CALLS: [(&str, Call); 8] = [
    ("share", share),
    ("copy", copy),
    ("discard", discard),
    ("discard of a page", discard_a_page),
    ("fork", fork),
    ("giving of a page", give_a_page),
    ("unmap", unmap),
    ("wire", wire),
];

/// A space with a range of so many leaves, of each of which one page is touched.
fn sparse(uvm: &World, held: &mut Held<'_, Nothing>, size: u64) -> (Space<SoftMachine>, VaRange) {
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let pages = Pages(size * LEAF);
    let request = MapRequest { place: Place::Fixed(Va(1 << 30)), ..MapRequest::zero(pages) };
    let va = uvm.map(held, &space, &request).unwrap();
    for n in 0..size {
        store(uvm, &space, va + Pages(n * LEAF), 1);
    }
    (space, VaRange::new(va, va + pages))
}

/// A space with a range that another shares, which has unmapped so many pages of it.
fn holed(uvm: &World, held: &mut Held<'_, Nothing>, size: u64) -> (Space<SoftMachine>, VaRange) {
    let space = uvm.space_create(held, BOUNDS).unwrap();
    let pages = Pages(2 * size);
    let request = MapRequest { place: Place::Fixed(Va(1 << 30)), ..MapRequest::zero(pages) };
    let va = uvm.map(held, &space, &request).unwrap();
    let range = VaRange::new(va, va + pages);
    store(uvm, &space, va + Pages(1), 1);
    let other = uvm.space_create(held, BOUNDS).unwrap();
    uvm.pass_range(held, &space, range, &other, Place::Fixed(va), Pass::Share).unwrap();
    for va in range.iter_pages().step_by(2) {
        uvm.unmap(held, &other, VaRange::new(va, va + Pages(1))).unwrap();
    }
    std::mem::forget(other);
    (space, range)
}

/// No lock is held eight times as long for what is eight times as large, or nearly so. What begins
/// to take several holds between the sizes is held longer for the larger, but not by so much.
fn assert_bounded(name: &str, make: Make, call: Call) {
    let longest = |size| {
        let run = |_| {
            let (uvm, _) = world(40_000);
            let mut ctx = ThreadCtx::new();
            let held = &mut ctx.held();
            let (space, range) = make(&uvm, held, size);
            let hold = longest_hold(|| call(&uvm, held, &space, range));
            std::mem::forget((space, uvm));
            hold
        };
        (0..2).map(run).min().unwrap()
    };
    let [small, large] = SIZES.map(longest);
    let floor = Duration::from_micros(200);
    assert!(large < 6 * small.max(floor), "{name}: {small:?} for a size, {large:?} for eight");
}

fn share(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, range: VaRange) {
    let shared = uvm.extract(held, space, range, Pass::Share).unwrap();
    uvm.drop_detached(held, shared);
}

fn copy(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, range: VaRange) {
    let copy = uvm.extract(held, space, range, Pass::Copy).unwrap();
    uvm.drop_detached(held, copy);
}

fn fork(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, _range: VaRange) {
    let child = uvm.fork(held, space).unwrap();
    uvm.space_destroy(held, child);
}

fn discard(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, range: VaRange) {
    uvm.discard(held, space, range).unwrap();
}

fn discard_a_page(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    space: &Space<SoftMachine>,
    range: VaRange,
) {
    uvm.discard(held, space, VaRange::new(range.start, range.start + Pages(1))).unwrap();
}

fn give_a_page(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    space: &Space<SoftMachine>,
    range: VaRange,
) {
    let page = VaRange::new(range.start, range.start + Pages(1));
    if let Some(given) = uvm.give_to_kernel(held, space, page).unwrap() {
        uvm.return_loan(held, given);
    }
}

fn unmap(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, range: VaRange) {
    uvm.unmap(held, space, range).unwrap();
}

fn wire(uvm: &World, held: &mut Held<'_, Nothing>, space: &Space<SoftMachine>, range: VaRange) {
    uvm.wire_as_touched(held, space, range).unwrap();
}

/// One of two spaces that wait to copy the same leaves.
fn waiting(uvm: &World, held: &mut Held<'_, Nothing>, size: u64) -> (Space<SoftMachine>, VaRange) {
    let (parent, range) = sparse(uvm, held, size);
    let child = uvm.fork(held, &parent).unwrap();
    std::mem::forget(parent);
    (child, range)
}

/// The same, of which the next fork's child inherits the very memory.
fn to_be_shared(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    size: u64,
) -> (Space<SoftMachine>, VaRange) {
    let (child, range) = waiting(uvm, held, size);
    uvm.inherit(held, &child, range, Inherit::Share).unwrap();
    (child, range)
}

/// Two spaces that write the same leaves. Neither has translations, over which the software MMU
/// takes as long as over leaves.
fn shared(uvm: &World, held: &mut Held<'_, Nothing>, size: u64) -> (Space<SoftMachine>, VaRange) {
    let (space, range) = sparse(uvm, held, size);
    let other = uvm.extract(held, &space, range, Pass::Share).unwrap();
    std::mem::forget(other);
    uvm.protect(held, &space, range, Prot::NONE).unwrap();
    uvm.protect(held, &space, range, Prot::READ_WRITE).unwrap();
    (space, range)
}

#[test]
fn leaves() {
    for (name, call) in CALLS {
        assert_bounded(&format!("{name} of what waits to copy"), waiting, call);
    }
    assert_bounded("fork that shares", to_be_shared, fork);
    assert_bounded("fork of what others write", shared, fork);
    assert_bounded("copy of what others write", shared, copy);
}

#[test]
fn runs() {
    for (name, call) in CALLS {
        assert_bounded(&format!("{name} of a range with holes"), holed, call);
    }
}
