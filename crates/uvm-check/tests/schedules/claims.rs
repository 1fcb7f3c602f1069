//! Maps that a thread has claimed, to fork them or to discard much of them in steps.

use std::sync::Arc;

use machine::{PageRange, Pages, ThreadCtx, Va};
use uvm::{Backing, MapRequest, Pass, Place, Space};
use uvm_soft::{IoBy, ShuttleThreads, Threads};

use super::world::{check, check_rounds, spawn, Soft, World, P};

/// Mappings of a page that lie apart: more than a fork goes through in one piece.
const APART: [Va; 4] = [P, Va(P.0 + 0x10_0000), Va(P.0 + 0x20_0000), Va(P.0 + 0x30_0000)];

fn one(va: Va) -> PageRange {
    PageRange::new(va, va + Pages(1)).unwrap()
}

fn map_apart(w: &World, space: &Space<Soft>) {
    map_apart_as(w, space, &MapRequest::zero(Pages(1)));
}

fn map_apart_as(w: &World, space: &Space<Soft>, request: &MapRequest<Soft>) {
    for va in APART {
        let request =
            MapRequest { place: Place::Fixed(va), backing: Backing::Zero, name: None, ..*request };
        w.uvm.map(&mut ThreadCtx::new().held(), space, &request).expect("there is room");
        w.store(1, space, va, 0);
    }
}

fn fork(w: &World, space: &Space<Soft>) -> Arc<Space<Soft>> {
    Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), space).expect("there is memory"))
}

/// A copy of all that lies there, in another space.
fn copy(w: &World, space: &Space<Soft>) -> Arc<Space<Soft>> {
    let (copy, all) = (w.space(), PageRange::new(P, APART[3] + Pages(1)).unwrap());
    let passed = w.uvm.pass_range(
        &mut ThreadCtx::new().held(),
        space,
        all,
        &copy,
        Place::Fixed(P),
        Pass::Copy,
    );
    passed.expect("there is memory");
    copy
}

/// One thread stores to all mappings in turn while another forks: a child with a store has all
/// those before it, in whatever order the fork comes to the mappings, and whether some are locked
/// in memory.
fn forked_at_one_moment(order: [usize; 4], locked: &'static [usize]) {
    copied_as(fork, order, locked, MapRequest::zero(Pages(1)), |_, _| vec![]);
}

/// What was forked before; the parent's pages are all 0.
type Before = fn(&World, &Space<Soft>) -> Vec<Arc<Space<Soft>>>;

fn copied_as(
    copied: fn(&World, &Space<Soft>) -> Arc<Space<Soft>>,
    order: [usize; 4],
    locked: &'static [usize],
    request: MapRequest<Soft>,
    before: Before,
) {
    check_rounds(3000, move || {
        let w = World::new();
        let parent = w.space();
        map_apart_as(&w, &parent, &request);
        let mut spaces = before(&w, &parent);
        for &n in locked {
            w.uvm
                .wire(&mut ThreadCtx::new().held(), &parent, one(APART[n]))
                .expect("there is memory");
        }
        let writer = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                for n in 1..3 {
                    order.iter().for_each(|&at| w.store(1, &parent, APART[at], n));
                }
            })
        };
        let child = copied(&w, &parent);
        let seen = order.map(|at| w.load(0, &child, APART[at]));
        assert!(seen.is_sorted_by(|a, b| a >= b), "a later store without an earlier one: {seen:?}");
        assert!(seen[0] <= seen[3] + 1, "a store of a later round: {seen:?}");
        writer.join().unwrap();
        assert_eq!(
            order.map(|at| w.load(0, &child, APART[at])),
            seen,
            "the parent wrote to its child"
        );
        assert!(APART.iter().all(|&va| w.load(0, &parent, va) == 2));
        spaces.extend([parent, child]);
        w.check(&spaces.iter().map(|space| &**space).collect::<Vec<_>>(), &[]);
        w.end(spaces);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// The parent has had to copy what it stored to, so the fork copies it itself.
#[test]
fn a_fork_in_steps_copies_at_one_moment_what_stores_rewrite() {
    copied_as(fork, [2, 0, 1, 3], &[], MapRequest::zero(Pages(1)), |w, parent| {
        let first = fork(w, parent);
        APART.iter().for_each(|&va| w.store(1, parent, va, 0));
        vec![first]
    });
}

#[test]
fn a_fork_in_steps_is_one_moment() {
    forked_at_one_moment([0, 1, 2, 3], &[]);
    forked_at_one_moment([3, 2, 1, 0], &[]);
}

#[test]
fn a_fork_in_steps_of_locked_memory_is_one_moment() {
    forked_at_one_moment([0, 3, 1, 2], &[1, 2]);
    forked_at_one_moment([2, 0, 3, 1], &[0, 3]);
}

/// Like the test above, for memory that is locked from the start, as after mlockall's MCL_FUTURE.
#[test]
fn a_fork_of_memory_that_was_mapped_locked_is_one_moment() {
    let request = MapRequest { wired: true, ..MapRequest::zero(Pages(1)) };
    copied_as(fork, [1, 3, 0, 2], &[], request, |_, _| vec![]);
}

#[test]
fn a_copy_of_a_range_with_locked_memory_is_one_moment() {
    copied_as(copy, [0, 3, 1, 2], &[1, 2], MapRequest::zero(Pages(1)), |_, _| vec![]);
    copied_as(copy, [2, 0, 3, 1], &[0, 3], MapRequest::zero(Pages(1)), |_, _| vec![]);
}

/// Two threads fork, a third maps, stores, locks and unmaps: each waits for the others' claims, and
/// all come to an end.
#[test]
fn forks_in_steps_meet_all_that_change_the_map() {
    check_rounds(3000, || {
        let w = World::new();
        let space = w.space();
        map_apart(&w, &space);
        let other = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || fork(&w, &space))
        };
        let changes = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                ShuttleThreads::set_cpu(1);
                let mut ctx = ThreadCtx::new();
                let held = &mut ctx.held();
                let va =
                    w.uvm.map(held, &space, &MapRequest::zero(Pages(2))).expect("there is room");
                w.store(1, &space, va, 5);
                w.uvm.wire(held, &space, one(APART[1])).expect("there is memory");
                assert_eq!(w.load(1, &space, va), 5);
                w.uvm
                    .unmap(held, &space, PageRange::new(va, va + Pages(2)).unwrap())
                    .expect("there is heap");
                w.uvm.discard(held, &space, one(APART[3])).expect("it is mapped");
            })
        };
        ShuttleThreads::set_cpu(2);
        let child = fork(&w, &space);
        let other = other.join().unwrap();
        changes.join().unwrap();
        w.check(&[&space, &child, &other], &[]);
        w.end(vec![space, child, other]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A fork finds no memory half-way, while another thread waits for its map: the parent is as it
/// was, and the thread that waited goes on.
#[test]
fn a_fork_in_steps_that_fails_lets_others_go_on() {
    check(|| {
        let w = World::with(16, IoBy::Waiters);
        let space = w.space();
        map_apart(&w, &space);
        APART.iter().for_each(|&va| {
            w.uvm.wire(&mut ThreadCtx::new().held(), &space, one(va)).expect("there is memory");
        });
        let mut taken = vec![];
        while w.uvm.frames().free() > 3 {
            let mut ctx = ThreadCtx::new();
            taken.extend(w.uvm.frames().alloc(
                w.uvm.machine(),
                &mut ctx.held(),
                uvm::page::Reserve::Kernel,
            ));
        }
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || APART.iter().for_each(|&va| w.store(1, &space, va, 9)))
        };
        let child = w.uvm.fork(&mut ThreadCtx::new().held(), &space);
        assert!(child.is_err(), "there is no memory for four copies");
        writer.join().unwrap();
        assert!(APART.iter().all(|&va| w.load(0, &space, va) == 9));
        for page in taken {
            w.uvm.frames().free_page(w.uvm.machine(), &mut ThreadCtx::new().held(), page);
        }
        w.check(&[&space], &[]);
        w.end(vec![space]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A fork comes while much is being discarded: the child has all of it or nothing.
#[test]
fn no_fork_gets_half_of_what_is_discarded_in_steps() {
    const MUCH: u64 = 9;
    check_rounds(3000, || {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(MUCH)));
        let all = PageRange::new(P, P + Pages(MUCH)).unwrap();
        all.iter_pages().for_each(|va| w.store(0, &space, va, 1));
        let forker = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || fork(&w, &space))
        };
        w.uvm.discard(&mut ThreadCtx::new().held(), &space, all).expect("it is mapped");
        let child = forker.join().unwrap();
        let seen: Vec<_> = all.iter_pages().map(|va| w.load(2, &child, va)).collect();
        assert!(seen.iter().all(|n| *n == seen[0]), "half a discard was forked: {seen:?}");
        assert!(all.iter_pages().all(|va| w.load(0, &space, va) == 0));
        w.check(&[&space, &child], &[]);
        w.end(vec![space, child]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}
