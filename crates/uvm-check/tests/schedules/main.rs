//! Schedule tests: a few threads, every interleaving that shuttle can think of.
//!
//! Each test is a promise about order that no run of one thread can break. Threads are simulated
//! CPUs; a translation that a CPU uses after its page was freed fails the access itself.
//!
//! `cargo test -p uvm-check --features shuttle --test schedules`

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use machine::{Machine, PageNo, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{
    Access, AnonObject, FaultError, Inherit, Intent, MapError, MapRequest, Outcome, Pager, Place,
    RemapPlace, Sharing, Space, Transfer, Vnode, VnodePager,
};
use uvm_soft::{IoBy, Plant};

mod claims;
mod crowd;
mod line;
mod loans;
mod paging;
mod pins;
mod world;

use world::{check, check_rounds, spawn, Soft, World, P, Q, ROUNDS};

/// One thread stores to P, then to Q. A fork in between copies both at one moment: a reader that
/// sees Q's store sees P's.
#[test]
fn a_fork_is_one_moment_for_all_pages() {
    check(|| {
        let w = World::new();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(2)));
        let writer = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                for n in 1..4 {
                    w.store(1, &parent, P, n);
                    w.store(1, &parent, Q, n);
                }
            })
        };
        let child = w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory");
        let child = Arc::new(child);
        let (q, p) = (w.load(0, &child, Q), w.load(0, &child, P));
        assert!(p == q || p == q + 1, "the child has P of store {p} and Q of store {q}");
        writer.join().unwrap();
        assert_eq!(
            (w.load(0, &child, Q), w.load(0, &child, P)),
            (q, p),
            "the parent wrote to its child"
        );
        assert_eq!((w.load(0, &parent, P), w.load(0, &parent, Q)), (3, 3));
        w.check(&[&parent, &child], &[]);
        w.end(vec![parent, child]);
    });
}

/// One thread stores to a page, another makes the parent's copy of it, while a third forks: the
/// copy has every store.
#[test]
fn no_store_is_lost_while_a_fork_is_under_way() {
    check(|| {
        let w = World::new();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(1)));
        w.store(1, &parent, P, 1);
        let threads = [(1, P, 2), (2, Va(P.0 + 8), 2)].map(|(cpu, va, last)| {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || (2..=last).for_each(|n| w.store(cpu, &parent, va, n)))
        });
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory"));
        let seen = w.load(0, &child, P);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!((w.load(0, &parent, P), w.load(0, &parent, Va(P.0 + 8))), (2, 2));
        assert_eq!(w.load(0, &child, P), seen, "the parent wrote to its child");
        w.check(&[&parent, &child], &[]);
        w.end(vec![parent, child]);
    });
}

/// Two threads fork while a third stores to two pages in turns, which forks copy at once: each
/// child sees both as they were at one moment, and no later store.
#[test]
fn a_child_sees_what_forks_copy_at_one_moment() {
    check(|| {
        let w = World::new();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(2)));
        let store = |w: &World, n| [P, Q].iter().for_each(|&va| w.store(1, &parent, va, n));
        store(&w, 1);
        let fork =
            |w: &World| w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory");
        let first = Arc::new(fork(&w));
        // From now on forks copy both.
        store(&w, 2);
        let writer = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                [3, 4]
                    .iter()
                    .for_each(|&n| [P, Q].iter().for_each(|&va| w.store(1, &parent, va, n)))
            })
        };
        let forker = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                Arc::new(
                    w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory"),
                )
            })
        };
        let second = Arc::new(fork(&w));
        let seen = |child: &_, cpu| (w.load(cpu, child, P), w.load(cpu, child, Q));
        let early = seen(&second, 0);
        writer.join().unwrap();
        let third = forker.join().unwrap();
        for (p, q) in [early, seen(&third, 2)] {
            assert!(p == q || p == q + 1, "a child sees {p} and then {q}");
        }
        assert_eq!((seen(&parent, 0), seen(&second, 2), seen(&first, 0)), ((4, 4), early, (1, 1)));
        w.check(&[&parent, &first, &second, &third], &[]);
        w.end(vec![parent, first, second, third]);
    });
}

/// A page is replaced by a copy on write: a thread that has seen a later store of the writer sees
/// the copy. A third thread that went on reading the original through its TLB, while the two others
/// had the copy, is NetBSD's PR 56535.
#[test]
fn a_copied_page_is_seen_by_every_cpu_at_once() {
    check_rounds(4 * ROUNDS, || {
        let w = World::new();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(2)));
        w.store(0, &parent, P, 1);
        w.store(0, &parent, Q, 1);
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory"));
        w.load(2, &parent, P);
        let writer = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                w.store(1, &parent, P, 2);
                w.store(1, &parent, Q, 2);
            })
        };
        // Another store makes the copy that the first writer may then find without a fault.
        let copier = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || w.store(0, &parent, Va(P.0 + 8), 2))
        };
        if w.load(2, &parent, Q) == 2 {
            assert_eq!(w.load(2, &parent, P), 2, "an old copy of P is still read");
        }
        writer.join().unwrap();
        copier.join().unwrap();
        assert_eq!((w.load(0, &child, P), w.load(0, &parent, P)), (1, 2));
        w.check(&[&parent, &child], &[]);
        w.end(vec![parent, child]);
    });
}

/// Two threads copy pages of one amap at once, beside others that read it: both copies are seen by
/// every CPU from then on, no store is lost, and the child keeps the originals.
#[test]
fn pages_that_are_copied_beside_readers_are_seen_by_every_cpu() {
    const R: Va = Va(0x10_2000);
    check(|| {
        let w = World::new();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(3)));
        [P, Q, R].into_iter().for_each(|va| w.store(0, &parent, va, 1));
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory"));
        // The leaf becomes the parent's own; and then map and amap are read until both locks are
        // biased towards readers.
        w.store(0, &parent, R, 1);
        for _ in 0..6 {
            w.uvm
                .fault(&mut ThreadCtx::new().held(), &parent, R, Prot::READ)
                .expect("it is mapped");
        }
        for va in [P, Q] {
            w.load(2, &parent, va);
        }
        let writers = [(1, 0), (0, 8)].map(|(cpu, offset)| {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || {
                w.store(cpu, &parent, Va(P.0 + offset), 2);
                w.store(cpu, &parent, Va(Q.0 + offset), 2);
            })
        });
        if w.load(2, &parent, Q) == 2 {
            assert_eq!(w.load(2, &parent, P), 2, "an old copy of P is still read");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        for va in [P, Q] {
            assert_eq!((w.load(0, &parent, va), w.load(1, &parent, Va(va.0 + 8))), (2, 2));
            assert_eq!(w.load(0, &child, va), 1);
        }
        w.check(&[&parent, &child], &[]);
        w.end(vec![parent, child]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A thread maps neighbours along while another makes a copy of one of them, whose translation is
/// then forgotten, as any may be: what is mapped in its place is not the original, which is the
/// child's by now.
#[test]
fn a_neighbour_that_is_being_copied_is_not_mapped_along() {
    const R: Va = Va(0x10_2000);
    check(|| {
        let w = World::forgetful();
        let parent = w.space();
        w.map(&parent, MapRequest::zero(Pages(3)));
        [P, Q, R].into_iter().for_each(|va| w.store(0, &parent, va, 1));
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &parent).expect("there is memory"));
        let touch = |parent: &Space<Soft>| {
            w.uvm.fault(&mut ThreadCtx::new().held(), parent, R, Prot::READ).expect("it is mapped");
        };
        // The leaf becomes the parent's own; and then map and amap are read until both locks are
        // biased towards readers.
        w.store(0, &parent, R, 1);
        (0..6).for_each(|_| touch(&parent));
        let writer = {
            let (w, parent) = (w.clone(), parent.clone());
            spawn(move || w.store(1, &parent, Q, 2))
        };
        touch(&parent);
        assert_eq!(w.load(0, &child, Q), 1);
        writer.join().unwrap();
        assert_eq!(w.load(2, &parent, Q), 2, "the parent reads what it has copied");
        w.store(0, &child, Q, 3);
        assert_eq!((w.load(2, &parent, Q), w.load(1, &child, Q)), (2, 3));
        w.check(&[&parent, &child], &[]);
        w.end(vec![parent, child]);
    });
}

/// Two spaces share private memory by inheritance and make its first copy at once: neither store is
/// lost.
#[test]
fn sharers_that_copy_at_once_lose_no_store() {
    check(|| {
        let w = World::new();
        let h = &mut ThreadCtx::new();
        let object = AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), Pages(1))
            .expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = object;
        let one = w.space();
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Private);
        w.map(&one, MapRequest { inherit: Some(Inherit::Share), ..request });
        let two = Arc::new(w.uvm.fork(&mut h.held(), &one).expect("there is memory"));
        w.load(0, &one, P);
        let other = {
            let (w, two) = (w.clone(), two.clone());
            spawn(move || w.store(1, &two, Va(P.0 + 8), 22))
        };
        w.store(0, &one, P, 11);
        other.join().unwrap();
        for space in [&one, &two] {
            assert_eq!((w.load(0, space, P), w.load(1, space, Va(P.0 + 8))), (11, 22));
        }
        w.check(&[&one, &two], std::slice::from_ref(&pager));
        w.end(vec![one, two]);
        w.uvm.detach(&mut h.held(), &*pager);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// After `protect` and `unmap` have returned, no store gets through, and no freed page is reached.
fn protect_and_unmap(plant: Option<Plant>) {
    check(move || {
        let w = World::of(64, IoBy::Waiters, 3, plant);
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(1)));
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let mut n = 1;
                while w.try_store(1, &space, P, n).is_ok() && n < 6 {
                    n += 1;
                }
            })
        };
        let page = PageRange::new(P, Q).unwrap();
        let mut ctx = ThreadCtx::new();
        w.uvm.protect(&mut ctx.held(), &space, page, Prot::READ).expect("it is mapped");
        let seen = w.load(0, &space, P);
        w.load(2, &space, P);
        assert_eq!(w.load(0, &space, P), seen, "a store got through");
        w.uvm.unmap(&mut ctx.held(), &space, page).expect("there is memory");
        assert_eq!(w.try_load(0, &space, P), Err(FaultError::NoMapping));
        writer.join().unwrap();
        w.check(&[&space], &[]);
        w.end(vec![space]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

#[test]
fn protect_and_unmap_stop_every_cpu() {
    protect_and_unmap(None);
}

/// Where an interrupt isn't waited for, the interrupted CPU goes on with what it began.
#[test]
#[should_panic]
fn a_cpu_that_is_not_waited_for_is_noticed() {
    protect_and_unmap(Some(Plant::SkipWait));
}

/// Addresses that are free again can be mapped before the unmapping that freed them has returned.
/// By then no CPU may reach what was there.
#[test]
fn an_address_that_is_free_leads_nowhere() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(1)));
        w.store(1, &space, P, 1);
        let next = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let request =
                    MapRequest { place: Place::FixedNoReplace(P), ..MapRequest::zero(Pages(1)) };
                while w.uvm.map(&mut ThreadCtx::new().held(), &space, &request)
                    == Err(MapError::Exists)
                {
                    shuttle::thread::yield_now();
                }
                w.store(1, &space, P, 7);
                assert_eq!(w.load(2, &space, P), 7, "a store went to what was unmapped");
            })
        };
        w.uvm
            .unmap(&mut ThreadCtx::new().held(), &space, PageRange::new(P, Q).unwrap())
            .expect("there is heap");
        next.join().unwrap();
        w.check(&[&space], &[]);
        w.end(vec![space]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A file whose pages arrive when another thread says so.
struct Late(Arc<std::sync::Mutex<Vec<PageNo>>>);

impl Vnode<Soft> for Late {
    fn read(&self, machine: &Soft, _: Pages, pages: &[PageNo]) -> Transfer {
        for &page in pages {
            machine.zero(page);
            machine.write(page, 0, &7u64.to_le_bytes());
        }
        self.0.lock().unwrap().extend(pages);
        Transfer::Started
    }

    fn write(&self, _: &Soft, _: Pages, _: &[PageNo]) -> Transfer {
        Transfer::Done
    }
}

/// Two threads wait for one page; the arrival wakes both, whenever it comes.
fn page_arrives(outcome: Outcome, expect: Result<u64, FaultError>) {
    check(move || {
        let w = World::new();
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let file = VnodePager::new(
            &w.uvm,
            &mut ThreadCtx::new().held(),
            Box::new(Late(asked.clone())),
            Pages(1),
        )
        .expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = file.clone();
        let space = w.space();
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        let served = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (1..3)
            .map(|cpu| {
                let (w, space, served) = (w.clone(), space.clone(), served.clone());
                spawn(move || {
                    assert_eq!(w.try_load(cpu, &space, P), expect);
                    served.fetch_add(1, SeqCst);
                })
            })
            .collect();
        // A failed page is asked for again by the next thread; so the device answers until both
        // are served.
        let device = {
            let (w, served) = (w.clone(), served.clone());
            spawn(move || {
                while served.load(SeqCst) < 2 {
                    let pages = std::mem::take(&mut *asked.lock().unwrap());
                    w.uvm.read_done(&mut ThreadCtx::new().held(), &pages, outcome);
                    shuttle::thread::yield_now();
                }
            })
        };
        for thread in readers.into_iter().chain([device]) {
            thread.join().unwrap();
        }
        w.end(vec![space]);
    });
}

#[test]
fn an_arriving_page_wakes_all_who_wait() {
    page_arrives(Outcome::Done, Ok(7));
}

#[test]
fn a_page_that_fails_tells_all_who_wait() {
    page_arrives(Outcome::Failed, Err(FaultError::Io));
}

/// A file that keeps the last word written back.
struct Kept(Arc<std::sync::Mutex<u64>>);

impl Vnode<Soft> for Kept {
    fn read(&self, machine: &Soft, _: Pages, pages: &[PageNo]) -> Transfer {
        pages.iter().for_each(|&page| machine.zero(page));
        Transfer::Done
    }

    fn write(&self, machine: &Soft, _: Pages, pages: &[PageNo]) -> Transfer {
        let mut bytes = [0; 8];
        machine.read(pages[0], 0, &mut bytes);
        *self.0.lock().unwrap() = u64::from_le_bytes(bytes);
        Transfer::Done
    }
}

/// Stores that come while a page is written back are written back by the next time.
#[test]
fn no_store_is_lost_between_two_cleanings() {
    check(|| {
        let w = World::new();
        let kept = Arc::new(std::sync::Mutex::new(0));
        let file = VnodePager::new(
            &w.uvm,
            &mut ThreadCtx::new().held(),
            Box::new(Kept(kept.clone())),
            Pages(1),
        )
        .expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = file.clone();
        let space = w.space();
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || (1..4).for_each(|n| w.store(1, &space, P, n)))
        };
        let mut ctx = ThreadCtx::new();
        file.clean(&w.uvm, &mut ctx.held(), 0..1).expect("it can be written");
        writer.join().unwrap();
        file.clean(&w.uvm, &mut ctx.held(), 0..1).expect("it can be written");
        assert_eq!(*kept.lock().unwrap(), 3);
        w.check(&[&space], &[pager]);
        w.end(vec![space]);
    });
}

/// A move takes every store along that was made before it, and none is made at the old place after
/// it.
#[test]
fn a_moved_page_takes_its_stores_along() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(1)));
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let mut n = 1;
                while n < 6 && w.try_store(1, &space, P, n).is_ok() {
                    n += 1;
                }
                n - 1
            })
        };
        let to = Va(0x20_0000);
        let moved = w.uvm.remap(
            &mut ThreadCtx::new().held(),
            &space,
            PageRange::new(P, Q).unwrap(),
            Pages(1),
            RemapPlace::Fixed(to),
        );
        assert_eq!(moved, Ok(to));
        let seen = w.load(0, &space, to);
        assert_eq!(writer.join().unwrap(), seen, "a store was lost or came late");
        assert_eq!(w.load(2, &space, to), seen);
        w.check(&[&space], &[]);
        w.end(vec![space]);
    });
}

/// Parent and child write while a third space that shares their pages ends: all see their own,
/// nothing leaks.
#[test]
fn the_last_sharer_may_take_over_while_others_leave() {
    check(|| {
        let w = World::new();
        let h = &mut ThreadCtx::new();
        let one = w.space();
        w.map(&one, MapRequest::zero(Pages(2)));
        w.store(0, &one, P, 1);
        w.store(0, &one, Q, 1);
        let two = Arc::new(w.uvm.fork(&mut h.held(), &one).expect("there is memory"));
        let three = w.uvm.fork(&mut h.held(), &one).expect("there is memory");
        let child = {
            let (w, two) = (w.clone(), two.clone());
            spawn(move || w.store(1, &two, P, 2))
        };
        let ending = {
            let w = w.clone();
            spawn(move || w.uvm.space_destroy(&mut ThreadCtx::new().held(), three))
        };
        w.store(0, &one, P, 3);
        child.join().unwrap();
        ending.join().unwrap();
        assert_eq!((w.load(0, &one, P), w.load(1, &two, P)), (3, 2));
        assert_eq!((w.load(0, &one, Q), w.load(1, &two, Q)), (1, 1));
        w.check(&[&one, &two], &[]);
        w.end(vec![one, two]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A fork beside a fork, and a discard beside both.
#[test]
fn forks_and_a_discard_meet() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        w.store(0, &space, P, 1);
        w.store(0, &space, Q, 1);
        let forker = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let child =
                    w.uvm.fork(&mut ThreadCtx::new().held(), &space).expect("there is memory");
                let seen = (w.load(1, &child, P), w.load(1, &child, Q));
                assert!(seen == (1, 1) || seen == (0, 0), "half a discard was forked: {seen:?}");
                w.uvm.space_destroy(&mut ThreadCtx::new().held(), child);
            })
        };
        let both = PageRange::new(P, Q + Pages(1)).unwrap();
        w.uvm.discard(&mut ThreadCtx::new().held(), &space, both).expect("it is mapped");
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &space).expect("there is memory"));
        assert_eq!((w.load(2, &child, P), w.load(0, &space, Q)), (0, 0));
        forker.join().unwrap();
        w.check(&[&space, &child], &[]);
        w.end(vec![space, child]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A store that meets a truncation either comes before it or finds nothing there.
#[test]
fn a_truncated_page_is_out_of_reach() {
    check(|| {
        let w = World::new();
        let pager: Arc<dyn Pager<Soft>> =
            AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), Pages(1))
                .expect("there is memory");
        let space = w.space();
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                while w.try_store(1, &space, P, 1) != Err(FaultError::Bus) {
                    shuttle::thread::yield_now();
                }
            })
        };
        let reader = {
            let (w, pager) = (w.clone(), pager.clone());
            spawn(move || {
                let look = |m: &Soft, page| m.read(page, 0, &mut [0; 8]);
                let _ = w.uvm.with_page(
                    &mut ThreadCtx::new().held(),
                    &pager,
                    Pages(0),
                    Intent::Write,
                    Access::PAGE,
                    look,
                );
            })
        };
        w.uvm.truncate(&mut ThreadCtx::new().held(), &pager, Pages(0));
        assert_eq!(w.try_load(0, &space, P), Err(FaultError::Bus));
        writer.join().unwrap();
        reader.join().unwrap();
        w.check(&[&space], std::slice::from_ref(&pager));
        w.end(vec![space]);
        w.uvm.detach(&mut ThreadCtx::new().held(), &*pager);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total(), "the pinned page was lost");
    });
}

/// A page that is truncated while its wiring is taken back is freed by one of the two.
#[test]
fn munlock_and_truncation_lose_no_page() {
    check(|| {
        let w = World::new();
        let pager: Arc<dyn Pager<Soft>> =
            AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), Pages(1))
                .expect("there is memory");
        let (space, range) = (w.space(), PageRange::new(P, Q).unwrap());
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(1), Sharing::Shared));
        w.uvm.wire(&mut ThreadCtx::new().held(), &space, range).expect("there is memory");
        let other = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || w.uvm.unwire(&mut ThreadCtx::new().held(), &space, range))
        };
        w.uvm.truncate(&mut ThreadCtx::new().held(), &pager, Pages(0));
        other.join().unwrap().expect("the range is mapped");
        w.check(&[&space], std::slice::from_ref(&pager));
        w.end(vec![space]);
        w.uvm.detach(&mut ThreadCtx::new().held(), &*pager);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total(), "the page was lost");
    });
}
