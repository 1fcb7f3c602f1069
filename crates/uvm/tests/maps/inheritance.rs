//! minherit: what a child gets, case by case, of parts of ranges, through generations (1999,
//! section 5.4).

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, PageRange, Pages, Prot, ThreadCtx};
use uvm::{
    AnonObject, Counter, FaultError, Inherit, MapRequest, Pager, RangeError, Sharing, Space,
};

use crate::world::{audit, end, entries, load, part, space, store, world, zeroes, Soft, World};

/// What each page of a range shows; `None` where nothing is mapped.
fn bytes(uvm: &World, s: &Space<Soft>, range: PageRange) -> Vec<Option<u8>> {
    let show = |va| match load(uvm, s, va) {
        Ok(byte) => Some(byte),
        Err(FaultError::NoMapping) => None,
        Err(e) => panic!("{va:?}: {e:?}"),
    };
    range.iter_pages().map(show).collect()
}

/// Zeroes of which every page has been written with its number and something.
fn written(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    s: &Space<Soft>,
    pages: u64,
    plus: u8,
) -> PageRange {
    let range = zeroes(uvm, held, s, pages);
    range.iter_pages().zip(plus..).for_each(|(va, byte)| store(uvm, s, va, byte).unwrap());
    range
}

#[test]
fn each_part_of_a_range_goes_its_own_way() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = written(&uvm, held, &s, 8, 10);
    let ways = [
        (0..2, Inherit::Share),
        (2..4, Inherit::Copy),
        (4..6, Inherit::Zero),
        (6..8, Inherit::None),
    ];
    for (pages, inherit) in ways {
        uvm.inherit(held, &s, part(range, pages), inherit).unwrap();
    }
    let child = uvm.fork(held, &s).unwrap();
    let some = |b: &[u8]| b.iter().map(|&b| Some(b)).collect::<Vec<_>>();
    let mut ought = some(&[10, 11, 12, 13, 0, 0]);
    ought.extend([None, None]);
    assert_eq!(bytes(&uvm, &child, range), ought);
    // Both write every page that they have: only what is shared is seen on the other side.
    for (s, byte, pages) in [(&s, 50, 0..8u64), (&child, 90, 1..6)] {
        part(range, pages).iter_pages().for_each(|va| store(&uvm, s, va, byte).unwrap());
    }
    assert_eq!(bytes(&uvm, &s, range), some(&[50, 90, 50, 50, 50, 50, 50, 50]));
    assert_eq!(bytes(&uvm, &child, part(range, 0..6)), some(&[50, 90, 90, 90, 90, 90]));
    audit(&uvm, held, &[&s, &child], &[]);
    end(&uvm, held, [s, child]);
}

#[test]
fn a_way_that_is_taken_back_leaves_one_entry() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = written(&uvm, held, &s, 8, 0);
    for inherit in [Inherit::None, Inherit::Share, Inherit::Zero] {
        uvm.inherit(held, &s, part(range, 2..5), inherit).unwrap();
        assert_eq!(entries(&uvm, held, &s).len(), 3);
        uvm.inherit(held, &s, part(range, 2..5), Inherit::Copy).unwrap();
        assert_eq!(entries(&uvm, held, &s).len(), 1);
    }
    // A hole fails and changes nothing.
    uvm.unmap(held, &s, part(range, 3..4)).unwrap();
    let before = entries(&uvm, held, &s).len();
    assert_eq!(uvm.inherit(held, &s, range, Inherit::Share), Err(RangeError::NoMapping));
    assert!(entries(&uvm, held, &s).iter().all(|e| e.inherit == Inherit::Copy));
    assert_eq!(entries(&uvm, held, &s).len(), before);
    end(&uvm, held, [s]);
}

#[test]
fn the_way_itself_is_inherited_through_generations() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let first = space(&uvm, held);
    let range = written(&uvm, held, &first, 4, 1);
    for (page, inherit) in
        [(0, Inherit::Share), (1, Inherit::Copy), (2, Inherit::Zero), (3, Inherit::None)]
    {
        uvm.inherit(held, &first, part(range, page..page + 1), inherit).unwrap();
    }
    let second = uvm.fork(held, &first).unwrap();
    part(range, 0..3).iter_pages().for_each(|va| store(&uvm, &second, va, 20).unwrap());
    let third = uvm.fork(held, &second).unwrap();
    assert_eq!(bytes(&uvm, &third, range), [Some(20), Some(20), Some(0), None]);
    // The first generation sees what is shared with the third, though the second is gone.
    uvm.space_destroy(held, second);
    store(&uvm, &third, range.start, 30).unwrap();
    assert_eq!(bytes(&uvm, &first, range), [Some(30), Some(2), Some(3), Some(4)]);
    audit(&uvm, held, &[&first, &third], &[]);
    end(&uvm, held, [first, third]);
}

#[test]
fn a_copy_that_its_owner_shares_is_shared_from_there_on() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let a = space(&uvm, held);
    let range = written(&uvm, held, &a, 6, 1);
    let b = uvm.fork(held, &a).unwrap();
    // b shares the middle of what it has only copied on write so far.
    uvm.inherit(held, &b, part(range, 2..4), Inherit::Share).unwrap();
    let c = uvm.fork(held, &b).unwrap();
    let (third, fourth) = (range.start + Pages(2), range.start + Pages(3));
    store(&uvm, &c, third, 70).unwrap();
    store(&uvm, &b, fourth, 71).unwrap();
    assert_eq!((load(&uvm, &b, third), load(&uvm, &c, fourth)), (Ok(70), Ok(71)));
    assert_eq!((load(&uvm, &a, third), load(&uvm, &a, fourth)), (Ok(3), Ok(4)), "a keeps its own");
    // And copies it again for d: c and b go on sharing, d does not see it.
    uvm.inherit(held, &c, part(range, 2..3), Inherit::Copy).unwrap();
    let d = uvm.fork(held, &c).unwrap();
    store(&uvm, &b, third, 80).unwrap();
    store(&uvm, &d, fourth, 81).unwrap();
    assert_eq!((load(&uvm, &c, third), load(&uvm, &d, third)), (Ok(80), Ok(70)));
    assert_eq!((load(&uvm, &b, fourth), load(&uvm, &c, fourth)), (Ok(81), Ok(81)));
    audit(&uvm, held, &[&a, &b, &c, &d], &[]);
    end(&uvm, held, [a, b, c, d]);
}

#[test]
fn a_shared_object_is_copied_or_zeroed_or_left_out_for_a_child() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Shared);
    let va = uvm.map(held, &s, &request).unwrap();
    let range = PageRange::new(va, va + Pages(4)).unwrap();
    range.iter_pages().zip(1..).for_each(|(va, byte)| store(&uvm, &s, va, byte).unwrap());
    for (page, inherit) in [(1, Inherit::Copy), (2, Inherit::Zero), (3, Inherit::None)] {
        uvm.inherit(held, &s, part(range, page..page + 1), inherit).unwrap();
    }
    let child = uvm.fork(held, &s).unwrap();
    assert_eq!(bytes(&uvm, &child, range), [Some(1), Some(2), Some(0), None]);
    part(range, 0..3).iter_pages().for_each(|va| store(&uvm, &child, va, 9).unwrap());
    assert_eq!(bytes(&uvm, &s, range), [Some(9), Some(2), Some(3), Some(4)]);
    audit(&uvm, held, &[&s, &child], std::slice::from_ref(&object));
    [s, child].into_iter().for_each(|s| uvm.space_destroy(held, s));
    uvm.detach(held, &*object);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn a_private_file_mapping_that_was_written_is_shared_with_what_was_written() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let request = MapRequest::object(object.clone(), Pages(0), Pages(4), Sharing::Private);
    let va = uvm.map(held, &s, &request).unwrap();
    let range = PageRange::new(va, va + Pages(4)).unwrap();
    store(&uvm, &s, va, 5).unwrap();
    uvm.inherit(held, &s, range, Inherit::Share).unwrap();
    let child = uvm.fork(held, &s).unwrap();
    // The first page was written before, the second is after, by the child: both are seen by both,
    // by no one else.
    store(&uvm, &child, va + Pages(1), 6).unwrap();
    assert_eq!(bytes(&uvm, &s, range), [Some(5), Some(6), Some(0), Some(0)]);
    assert_eq!(bytes(&uvm, &child, range), bytes(&uvm, &s, range));
    let other = uvm.map(held, &s, &MapRequest { prot: Prot::READ, ..request }).unwrap();
    assert_eq!(load(&uvm, &s, other + Pages(1)), Ok(0));
    audit(&uvm, held, &[&s, &child], std::slice::from_ref(&object));
    [s, child].into_iter().for_each(|s| uvm.space_destroy(held, s));
    uvm.detach(held, &*object);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn sharing_costs_no_copy_and_zeroes_no_page() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = written(&uvm, held, &s, 64, 0);
    uvm.inherit(held, &s, part(range, 0..32), Inherit::Share).unwrap();
    uvm.inherit(held, &s, part(range, 32..64), Inherit::Zero).unwrap();
    let child = uvm.fork(held, &s).unwrap();
    assert_eq!(uvm.anons(), 64);
    part(range, 0..32).iter_pages().for_each(|va| store(&uvm, &child, va, 1).unwrap());
    assert_eq!((uvm.anons(), uvm.stat().get(Counter::FaultsAnonCopied)), (64, 0));
    assert_eq!(load(&uvm, &child, range.start + Pages(40)), Ok(0));
    assert_eq!(uvm.anons(), 65);
    end(&uvm, held, [s, child]);
}

/// Leaves, of 64 pages, that a store copies at most, and runs of counts.
const AT_ONCE: [u64; 2] = if cfg!(feature = "__small-leaves") { [4, 4] } else { [4096, 64] };

/// Stores to all pages of a range that are `apart`, in an order that no page follows its neighbour.
fn store_out_of_order(uvm: &World, s: &Space<Soft>, range: PageRange, apart: u64) {
    let count = range.pages().0 / apart;
    for n in 0..count {
        // Odd, and more than a window: every number once, if there are a power of two.
        let n = n.wrapping_mul(0x9e37_79b1) % count;
        store(uvm, s, range.start + Pages(n * apart), 99).unwrap();
    }
}

#[test]
fn a_store_copies_a_part_of_what_is_large_and_all_stores_leave_few_entries() {
    let leaves = if cfg!(feature = "__small-leaves") { 256 } else { 16384 };
    let (uvm, mut ctx) = (world(4 * leaves as u32), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 64 * leaves);
    (0..leaves).for_each(|n| store(&uvm, &s, range.start + Pages(64 * n), 7).unwrap());
    let child = uvm.fork(held, &s).unwrap();
    store(&uvm, &s, range.start + Pages(64 * leaves / 2), 8).unwrap();
    assert!(entries(&uvm, held, &s).len() > 1, "the store has copied all");
    store_out_of_order(&uvm, &s, range, 64);
    let most = 2 * leaves.div_ceil(AT_ONCE[0]) as usize;
    assert!(entries(&uvm, held, &s).len() <= most);
    for n in 0..leaves {
        let va = range.start + Pages(64 * n);
        assert_eq!((load(&uvm, &s, va), load(&uvm, &child, va)), (Ok(99), Ok(7)));
    }
    audit(&uvm, held, &[&s, &child], &[]);
    end(&uvm, held, [s, child]);
}

#[test]
fn a_store_copies_a_part_of_what_relatives_have_left_holes_in() {
    let pages = if cfg!(feature = "__small-leaves") { 256 } else { 16384 };
    let (uvm, mut ctx) = (world(4096), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, pages);
    store(&uvm, &s, range.start + Pages(1), 7).unwrap();
    let child = uvm.fork(held, &s).unwrap();
    for n in (0..pages).step_by(2) {
        uvm.unmap(held, &child, part(range, n..n + 1)).unwrap();
    }
    store(&uvm, &s, range.start + Pages(1), 8).unwrap();
    assert!(entries(&uvm, held, &s).len() > 1, "the store has copied all");
    store_out_of_order(&uvm, &s, range, 16);
    let most = 2 * pages.div_ceil(AT_ONCE[1]) as usize + 2;
    assert!(entries(&uvm, held, &s).len() <= most);
    assert_eq!(load(&uvm, &child, range.start + Pages(1)), Ok(7));
    audit(&uvm, held, &[&s, &child], &[]);
    end(&uvm, held, [s, child]);
}
