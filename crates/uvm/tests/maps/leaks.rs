//! The paper's fork patterns for ever: no memory stays behind.
//!
//! Under 4.4BSD a process that forks, writes, and goes on in the child grows a chain of shadow
//! objects whose pages no program can reach (the swap leak; 1999, section 5.1). Here each pattern
//! is repeated, and frames, anons and bytes of heap are the same before and after; with memory too
//! small for all of it, no slot of swap stays behind either.
//!
//! `UVM_LOOPS` sets how often; the default is short, and `./uvm test --long` runs a million.

use std::sync::{Arc, Mutex};

use machine::order::Nothing;
use machine::{Held, Machine, PageNo, PageRange, ThreadCtx, PAGE_SIZE};
use uvm::{Counter, Inherit, Space, SwapDevice, Transfer};

use crate::count::heap;
use crate::world::{audit, end, load, part, space, store, world, zeroes, Soft, World};

fn loops() -> u64 {
    std::env::var("UVM_LOOPS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

struct Pattern<'a> {
    uvm: &'a World,
    range: PageRange,
}

impl Pattern<'_> {
    fn store(&self, s: &Space<Soft>, page: u64, n: u64) {
        store(self.uvm, s, part(self.range, page..page + 1).start, n as u8).unwrap();
    }

    fn shows(&self, s: &Space<Soft>, page: u64, n: u64) {
        assert_eq!(
            load(self.uvm, s, part(self.range, page..page + 1).start),
            Ok(n as u8),
            "page {page}"
        );
    }

    /// The child ends after both have written: figure 3's life.
    fn child_ends(&self, held: &mut Held<'_, Nothing>, parent: Space<Soft>, n: u64) -> Space<Soft> {
        let child = self.uvm.fork(held, &parent).unwrap();
        self.store(&parent, 1, n);
        self.store(&child, 1, n + 1);
        self.store(&child, 2, n + 2);
        self.shows(&parent, 1, n);
        self.uvm.space_destroy(held, child);
        parent
    }

    /// The parent ends, and the child is the next one's parent: the chain that grew without end.
    fn parent_ends(
        &self,
        held: &mut Held<'_, Nothing>,
        parent: Space<Soft>,
        n: u64,
    ) -> Space<Soft> {
        self.store(&parent, 0, n);
        let child = self.uvm.fork(held, &parent).unwrap();
        self.store(&parent, 0, n + 1);
        self.uvm.space_destroy(held, parent);
        self.shows(&child, 0, n);
        self.store(&child, 3, n);
        child
    }

    /// A grandchild outlives both, with parts unmapped and mapped again on the way.
    fn grandchild_stays(
        &self,
        held: &mut Held<'_, Nothing>,
        parent: Space<Soft>,
        n: u64,
    ) -> Space<Soft> {
        let uvm = self.uvm;
        let child = uvm.fork(held, &parent).unwrap();
        uvm.unmap(held, &child, part(self.range, 4..6)).unwrap();
        self.store(&parent, 4, n);
        let grandchild = uvm.fork(held, &child).unwrap();
        self.store(&child, 6, n);
        self.store(&grandchild, 6, n + 1);
        uvm.space_destroy(held, parent);
        uvm.space_destroy(held, child);
        let hole = part(self.range, 4..6);
        uvm.map(held, &grandchild, &uvm::MapRequest::zero(hole.pages()).at(hole.start)).unwrap();
        self.shows(&grandchild, 4, 0);
        self.shows(&grandchild, 6, n + 1);
        grandchild
    }

    /// Memory shared by inheritance that one of the two copies later, and that is forgotten.
    fn shares_and_copies(
        &self,
        held: &mut Held<'_, Nothing>,
        parent: Space<Soft>,
        n: u64,
    ) -> Space<Soft> {
        let (uvm, shared) = (self.uvm, part(self.range, 7..9));
        uvm.inherit(held, &parent, shared, Inherit::Share).unwrap();
        let child = uvm.fork(held, &parent).unwrap();
        self.store(&child, 7, n);
        self.shows(&parent, 7, n);
        uvm.inherit(held, &parent, shared, Inherit::Copy).unwrap();
        let second = uvm.fork(held, &parent).unwrap();
        self.store(&parent, 7, n + 1);
        self.shows(&second, 7, n);
        self.shows(&child, 7, n + 1);
        [child, second].into_iter().for_each(|s| uvm.space_destroy(held, s));
        uvm.discard(held, &parent, part(self.range, 8..10)).unwrap();
        parent
    }

    fn all(&self, held: &mut Held<'_, Nothing>, mut s: Space<Soft>, n: u64) -> Space<Soft> {
        s = self.child_ends(held, s, n);
        s = self.parent_ends(held, s, n);
        s = self.grandchild_stays(held, s, n);
        self.shares_and_copies(held, s, n)
    }
}

#[test]
fn fork_patterns_for_ever_keep_memory_constant() {
    let (uvm, mut ctx) = (world(128), ThreadCtx::new());
    let held = &mut ctx.held();
    let mut s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 12);
    let pattern = Pattern { uvm: &uvm, range };
    let used = |held: &mut _, s: &Space<Soft>| {
        (uvm.frames().free(), uvm.anons(), s.map().entries(held), heap())
    };
    // The machine's own tables reach their size in the first rounds.
    for n in 0..300 {
        s = pattern.all(held, s, n);
    }
    let before = used(held, &s);
    for n in 0..loops() {
        s = pattern.all(held, s, n);
        if n % 1000 == 0 {
            assert_eq!(
                used(held, &s),
                before,
                "free frames, anons, entries, bytes of heap, after {n} rounds"
            );
        }
    }
    assert_eq!(used(held, &s), before, "free frames, anons, entries, bytes of heap");
    uvm.audit(held, &[&s], &[]).unwrap();
    end(&uvm, held, [s]);
}

/// A swap disk that is an array.
struct Disk(Mutex<Vec<u8>>);

impl SwapDevice<Soft> for Disk {
    fn slots(&self) -> u32 {
        (self.0.lock().unwrap().len() / PAGE_SIZE) as u32
    }

    fn read(
        &self,
        machine: &Soft,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        let bytes = self.0.lock().unwrap();
        let places = bytes.chunks_exact(PAGE_SIZE).skip(slot as usize);
        pages.iter().zip(places).for_each(|(&page, place)| machine.write(page, 0, place));
        Transfer::Done
    }

    fn write(
        &self,
        machine: &Soft,
        _: &mut Held<'_, Nothing>,
        slot: u32,
        pages: &[PageNo],
    ) -> Transfer {
        let mut bytes = self.0.lock().unwrap();
        let places = bytes.chunks_exact_mut(PAGE_SIZE).skip(slot as usize);
        pages.iter().zip(places).for_each(|(&page, place)| machine.read(page, 0, place));
        Transfer::Done
    }
}

#[test]
fn fork_patterns_for_ever_leave_no_slot_of_swap_behind() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let swap = uvm.swap_on(held, Arc::new(Disk(Mutex::new(vec![0; 400 * PAGE_SIZE]))), 0).unwrap();
    let mut s = space(&uvm, held);
    // What the patterns work on, and more than memory holds beside it, touched on the way.
    let (range, ballast) = (zeroes(&uvm, held, &s, 12), zeroes(&uvm, held, &s, 100));
    let pattern = Pattern { uvm: &uvm, range };
    let round = |held: &mut _, s: Space<Soft>, n: u64| {
        let pages = part(ballast, n % 10 * 10..(n % 10 + 1) * 10);
        pages.iter_pages().for_each(|va| store(&uvm, &s, va, n as u8).unwrap());
        pattern.all(held, s, n)
    };
    for n in 0..300 {
        s = round(held, s, n);
    }
    let used = |held: &mut _, s: &Space<Soft>| (uvm.anons(), s.map().entries(held), heap());
    let before = used(held, &s);
    for n in 0..loops() / 10 {
        s = round(held, s, n);
        if n % 1000 == 0 {
            assert_eq!(used(held, &s), before, "anons, entries, bytes of heap, after {n} rounds");
            assert!(uvm.swap_space().1 as usize <= uvm.anons(), "a slot belongs to no anon");
        }
    }
    assert_eq!(used(held, &s), before, "anons, entries, bytes of heap");
    assert!(uvm.stat().get(Counter::SwapOuts) > loops() / 10, "nothing was paged");
    uvm.audit(held, &[&s], &[]).unwrap();
    end(&uvm, held, [s]);
    assert_eq!(uvm.swap_space().1, 0);
    uvm.swap_off(held, swap).unwrap();
}

/// A space ends without heap while others hold parts of its leaves. What it can't cut is in
/// nobody's way, and goes when there is heap again, or when the leaf has lost its other holder.
#[test]
fn what_ends_without_heap_leaves_nothing() {
    for heap_returns in [true, false] {
        let uvm = world(400);
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let parent = space(&uvm, held);
        let range = zeroes(&uvm, held, &parent, 256);
        // Two pages in one leaf of 64, and one in another.
        let first =
            range.start.0.div_ceil(64 * PAGE_SIZE as u64) * 64 - range.start.0 / PAGE_SIZE as u64;
        let at = |page: u64| part(range, first + page..first + page + 1);
        // Downwards: upwards they would be a run.
        [1, 0, 64].iter().for_each(|&page| store(&uvm, &parent, at(page).start, 1).unwrap());
        let child = uvm.fork(held, &parent).unwrap();
        // Before the parent's store: after it a fork makes an amap of its own.
        let grandchild = uvm.fork(held, &child).unwrap();
        store(&uvm, &parent, at(64).start, 2).unwrap();
        uvm.unmap(held, &child, at(1)).unwrap();
        uvm.machine().heap.fail_from(1);
        uvm.space_destroy(held, grandchild);
        assert_eq!(uvm.anons(), 4, "three pages, and a copy of one");
        uvm.machine().heap.fail_nth(0);
        if heap_returns {
            assert!(uvm.clear_left(held));
            audit(&uvm, held, &[&parent, &child], &[]);
        }
        uvm.machine().heap.fail_from(1);
        uvm.space_destroy(held, parent);
        uvm.machine().heap.fail_nth(0);
        assert_eq!(uvm.anons(), 2, "the child's");
        audit(&uvm, held, &[&child], &[]);
        assert_eq!(load(&uvm, &child, at(0).start), Ok(1));
        end(&uvm, held, [child]);
    }
}
