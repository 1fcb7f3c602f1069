//! Neighbours that differ in nothing are one entry; a heap and a stack keep one entry and one amap.

use std::sync::Arc;

use machine::{PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{
    Advice, AnonObject, Counter, Inherit, MapRequest, Name, Pager, Place, RemapPlace, Sharing,
};
use uvm_soft::Threads;

use crate::count::Counted;
use crate::world::{audit, end, entries, load, part, space, store, world, zeroes, Soft};

#[test]
fn mappings_stacked_from_the_top_are_one_entry() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    for n in 0..100 {
        let range = zeroes(&uvm, held, &s, 3);
        if n % 10 == 0 {
            store(&uvm, &s, range.start, n).unwrap();
        }
    }
    assert_eq!(entries(&uvm, held, &s).len(), 1);
    let top = entries(&uvm, held, &s)[0].range.end;
    for n in (0..100u64).step_by(10) {
        let va = Va(top.0 - (n + 1) * 3 * machine::PAGE_SIZE as u64);
        assert_eq!(load(&uvm, &s, va), Ok(n as u8));
    }
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

/// What threads map side by side where any address will do has an amap for each CPU, so that
/// neither waits for the other's.
#[test]
fn mappings_touched_on_two_cpus_stay_apart() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let mut map_and_touch = |cpu| {
        Counted::set_cpu(cpu);
        let range = zeroes(&uvm, held, &s, 1);
        store(&uvm, &s, range.start, 1).unwrap();
        let all = entries(&uvm, held, &s);
        all.iter().map(|e| e.range.pages().0).collect::<Vec<_>>()
    };
    assert_eq!(map_and_touch(0), [1]);
    assert_eq!(map_and_touch(1), [1, 1]);
    assert_eq!(map_and_touch(1), [2, 1]);
    assert_eq!(map_and_touch(0), [1, 2, 1]);
    Counted::set_cpu(0);
    // A heap grows wherever its program runs.
    let top = entries(&uvm, held, &s)[0].range;
    Counted::set_cpu(1);
    let place = Place::FixedNoReplace(Va(top.start.0 - machine::PAGE_SIZE as u64));
    uvm.map(held, &s, &MapRequest { place, ..MapRequest::zero(Pages(1)) }).unwrap();
    Counted::set_cpu(0);
    assert_eq!(entries(&uvm, held, &s)[0].range.pages(), Pages(2));
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

#[test]
fn a_mapping_that_fills_a_hole_joins_both_sides() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 9);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 5).unwrap());
    uvm.unmap(held, &s, part(range, 3..6)).unwrap();
    assert_eq!((entries(&uvm, held, &s).len(), uvm.anons()), (2, 6));
    uvm.map(held, &s, &MapRequest::zero(Pages(3)).at(range.start + Pages(3))).unwrap();
    assert_eq!(entries(&uvm, held, &s).len(), 1);
    let bytes: Vec<_> = range.iter_pages().map(|va| load(&uvm, &s, va).unwrap()).collect();
    assert_eq!(bytes, [5, 5, 5, 0, 0, 0, 5, 5, 5]);
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

#[test]
fn an_objects_pages_that_follow_one_another_are_one_entry() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(100)).unwrap();
    let at = Va(0x10_0000);
    let map = |held: &mut _, page: u64, offset: u64, sharing| {
        let request = MapRequest::object(object.clone(), Pages(offset), Pages(2), sharing);
        uvm.map(held, &s, &request.at(at + Pages(page))).unwrap();
    };
    [(2, 12), (4, 14), (0, 10)]
        .into_iter()
        .for_each(|(page, offset)| map(held, page, offset, Sharing::Shared));
    assert_eq!(entries(&uvm, held, &s).len(), 1);
    // Another place of the object, and another way to store, are others.
    map(held, 6, 50, Sharing::Shared);
    map(held, 8, 52, Sharing::Private);
    map(held, 10, 54, Sharing::Private);
    let seen: Vec<_> = entries(&uvm, held, &s).iter().map(|e| e.range.pages().0).collect();
    assert_eq!(seen, [6, 2, 4]);
    // A private mapping that was written grows on, downwards too, with what was written in its
    // place.
    store(&uvm, &s, at + Pages(9), 1).unwrap();
    map(held, 12, 56, Sharing::Private);
    assert_eq!(entries(&uvm, held, &s).len(), 3);
    assert_eq!((load(&uvm, &s, at + Pages(9)), load(&uvm, &s, at + Pages(13))), (Ok(1), Ok(0)));
    audit(&uvm, held, &[&s], std::slice::from_ref(&object));
    uvm.space_destroy(held, s);
    uvm.detach(held, &*object);
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn what_differs_stays_apart() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    type Change = fn(MapRequest<Soft>) -> MapRequest<Soft>;
    let same: Change = |r| r;
    let others: [Change; 5] = [
        |r| r.prot(Prot::READ),
        |r| MapRequest { max_prot: Prot::READ_WRITE, ..r },
        |r| MapRequest { inherit: Some(Inherit::None), ..r },
        |r| MapRequest { advice: Advice::Random, ..r },
        |r| MapRequest { name: Some(Arc::new("stack")), ..r },
    ];
    let mut va = Va(0x10_0000);
    for other in others {
        for change in [same, other] {
            uvm.map(held, &s, &change(MapRequest::zero(Pages(1)).at(va))).unwrap();
            va = va + Pages(1);
        }
    }
    assert_eq!(entries(&uvm, held, &s).len(), 2 * others.len());
    end(&uvm, held, [s]);
}

/// A stack, called like what may lie beside it.
struct Stack;

impl Name for Stack {
    fn text(&self) -> &str {
        "stack"
    }

    fn grows_down(&self) -> bool {
        true
    }
}

#[test]
fn a_stack_stays_apart_from_what_is_called_as_it_is() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let word = || Arc::new("stack") as Arc<dyn Name>;
    let mut va = Va(0x10_0000);
    for name in [word(), word(), Arc::new(Stack), Arc::new(Stack), word()] {
        let request = MapRequest { name: Some(name), ..MapRequest::zero(Pages(1)).at(va) };
        uvm.map(held, &s, &request).unwrap();
        va = va + Pages(1);
    }
    let all = entries(&uvm, held, &s);
    let stacks = all.iter().map(|e| e.name.as_ref().is_some_and(|name| name.grows_down()));
    assert_eq!(stacks.collect::<Vec<_>>(), [false, true, false]);
    end(&uvm, held, [s]);
}

/// Where leaves are small, a store after a fork cuts off a part of the heap.
#[cfg(not(feature = "__small-leaves"))]
#[test]
fn a_heap_grows_in_place() {
    let (uvm, mut ctx) = (world(2048), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let start = Va(0x100_0000);
    let (mut brk, copies) = (start, uvm.stat().get(Counter::AmapCopies));
    let mut child = None;
    for n in 0..1000u64 {
        uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(brk)).unwrap();
        store(&uvm, &s, brk, n as u8).unwrap();
        brk = brk + Pages(1);
        // A child that lives for a while, as a shell's do, and writes, does not end that.
        if n % 100 == 50 {
            let forked = uvm.fork(held, &s).unwrap();
            store(&uvm, &forked, start, 0xee).unwrap();
            child = Some(forked);
        } else if n % 100 == 80 {
            child.take().into_iter().for_each(|c| uvm.space_destroy(held, c));
        }
    }
    let heap = entries(&uvm, held, &s);
    assert_eq!((heap.len(), heap[0].range.pages()), (1, Pages(1000)));
    assert_eq!(
        (heap[0].layers.amap.map(|(_, anons, own)| (anons, own)), uvm.anons()),
        (Some((1000, true)), 1000)
    );
    // One copy of the amap a fork at most, and of no page but the one that the children have
    // written: once by a store, then by forks.
    assert!(
        uvm.stat().get(Counter::AmapCopies) - copies <= 20,
        "{}",
        uvm.stat().get(Counter::AmapCopies)
    );
    let copied =
        [Counter::FaultsAnonCopied, Counter::CopiedAtFork].map(|counter| uvm.stat().get(counter));
    assert_eq!(copied, [1, 9]);
    (0..1000).for_each(|n| assert_eq!(load(&uvm, &s, start + Pages(n)), Ok(n as u8)));
    // It shrinks page by page, and each page is free at once.
    for n in (0..1000).rev() {
        uvm.unmap(held, &s, PageRange::new(start + Pages(n), start + Pages(n + 1)).unwrap())
            .unwrap();
        assert_eq!(uvm.anons(), n as usize);
    }
    end(&uvm, held, [s]);
}

#[test]
fn a_stack_grows_down_in_place() {
    let (uvm, mut ctx) = (world(512), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let top = Va(0x7fff_0000_0000);
    let mut bottom = top;
    for n in 0..200u64 {
        bottom = Va(bottom.0 - machine::PAGE_SIZE as u64);
        uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(bottom)).unwrap();
        store(&uvm, &s, bottom, n as u8).unwrap();
    }
    let stack = entries(&uvm, held, &s);
    assert_eq!((stack.len(), stack[0].range), (1, PageRange::new(bottom, top).unwrap()));
    assert_eq!(stack[0].layers.amap.map(|(_, anons, own)| (anons, own)), Some((200, true)));
    assert_eq!(
        (uvm.stat().get(Counter::AmapCopies), uvm.stat().get(Counter::FaultsAnonCopied)),
        (0, 0)
    );
    (0..200).for_each(|n| {
        assert_eq!(load(&uvm, &s, Va(top.0 - (n + 1) * machine::PAGE_SIZE as u64)), Ok(n as u8))
    });
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

#[test]
fn a_remapping_that_grows_in_place_stays_one_entry() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(Va(0x10_0000))).unwrap();
    store(&uvm, &s, va, 1).unwrap();
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(64)).unwrap();
    let file = uvm
        .map(
            held,
            &s,
            &MapRequest::object(object.clone(), Pages(0), Pages(1), Sharing::Shared)
                .at(Va(0x80_0000)),
        )
        .unwrap();
    for len in 2..40 {
        for va in [va, file] {
            let old = PageRange::new(va, va + Pages(len - 1)).unwrap();
            assert_eq!(uvm.remap(held, &s, old, Pages(len), RemapPlace::Stay), Ok(va));
            store(&uvm, &s, va + Pages(len - 1), 1).ok();
        }
    }
    assert_eq!(entries(&uvm, held, &s).len(), 2);
    audit(&uvm, held, &[&s], std::slice::from_ref(&object));
    uvm.space_destroy(held, s);
    uvm.detach(held, &*object);
}

#[test]
fn a_locked_heap_that_grows_stays_one_entry() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let at = Va(0x10_0000);
    for n in 0..20 {
        let request = MapRequest { wired: true, ..MapRequest::zero(Pages(1)) };
        uvm.map(held, &s, &request.at(at + Pages(n))).unwrap();
        store(&uvm, &s, at + Pages(n), 1).unwrap();
    }
    assert_eq!((entries(&uvm, held, &s).len(), uvm.anons()), (1, 20));
    // Growing by mremap brings the new pages in too.
    uvm.remap(held, &s, PageRange::new(at, at + Pages(20)).unwrap(), Pages(30), RemapPlace::Stay)
        .unwrap();
    assert!(entries(&uvm, held, &s).iter().all(|e| e.wired));
    assert_eq!(uvm.anons(), 30);
    // What was cut to be locked in parts is one again.
    let range = zeroes(&uvm, held, &s, 8);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 5).unwrap());
    let before = entries(&uvm, held, &s).len();
    (0..8).for_each(|n| uvm.wire(held, &s, part(range, n..n + 1)).unwrap());
    assert_eq!(entries(&uvm, held, &s).len(), before);
    audit(&uvm, held, &[&s], &[]);
    end(&uvm, held, [s]);
}

#[test]
fn a_part_that_can_not_be_locked_is_cut_off_again() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let object: Arc<dyn Pager<Soft>> = AnonObject::new(&uvm, held, Pages(4)).unwrap();
    let request = MapRequest::object(object.clone(), Pages(0), Pages(8), Sharing::Shared);
    let at = uvm.map(held, &s, &request).unwrap();
    uvm.wire(held, &s, PageRange::new(at, at + Pages(2)).unwrap()).unwrap();
    // The last half lies behind the object's end.
    assert!(uvm.wire(held, &s, PageRange::new(at, at + Pages(8)).unwrap()).is_err());
    let wired: Vec<_> =
        entries(&uvm, held, &s).iter().map(|e| (e.range.pages().0, e.wired)).collect();
    assert_eq!(wired, [(2, true), (6, false)]);
    audit(&uvm, held, &[&s], std::slice::from_ref(&object));
    uvm.detach(held, &*object);
    end(&uvm, held, [s]);
}
