//! Entries that faults have pinned, beside changes of the map.

use std::sync::Arc;

use machine::{PageRange, Pages, Prot, ThreadCtx, Va, VaRange};
use uvm::{AnonObject, FaultError, MapRequest, Pager, Sharing, Space};
use uvm_soft::{ShuttleThreads, Threads};

use super::world::{check, spawn, Soft, World, P, Q};

/// Two pages are unmapped, and one of them mapped again, beside faults in both: a store succeeds
/// before the unmapping or finds nothing, and what is mapped afterwards is zero.
#[test]
fn memory_is_unmapped_beside_faults_in_it() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        let threads = [(1, P), (1, Q)].map(|(cpu, va)| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let stored = w.try_store(cpu, &space, va, 7);
                assert!(matches!(stored, Ok(()) | Err(FaultError::NoMapping)), "{stored:?}");
            })
        });
        ShuttleThreads::set_cpu(2);
        let range = VaRange::new(P, Q + Pages(1)).try_into().expect("whole pages");
        w.uvm.unmap(&mut ThreadCtx::new().held(), &space, range).expect("there is heap");
        w.check(&[], &[]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        w.map(&space, MapRequest::zero(Pages(2)));
        for cpu in 0..3 {
            assert_eq!((w.load(cpu, &space, P), w.load(cpu, &space, Q)), (0, 0));
        }
        w.check(&[&space], &[]);
        w.end(vec![space]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A range loses the right to be written beside stores to it.
#[test]
fn rights_are_taken_beside_faults() {
    check(|| {
        let w = World::new();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        let thread = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                let mut last = 0;
                for n in 1..4 {
                    if w.try_store(1, &space, P, n).is_ok() {
                        last = n;
                    }
                }
                last
            })
        };
        ShuttleThreads::set_cpu(2);
        let held = &mut ThreadCtx::new();
        w.uvm
            .protect(
                &mut held.held(),
                &space,
                VaRange::new(P, Q).try_into().expect("whole pages"),
                Prot::READ,
            )
            .expect("there is heap");
        let now = w.load(2, &space, P);
        let last = thread.join().unwrap();
        assert_eq!((last, w.load(0, &space, P)), (now, now), "a store came after the change");
        w.check(&[&space], &[]);
        w.end(vec![space]);
    });
}

/// After a fork an entry gets an amap of its own with the first store to it, beside loads that have
/// found the one it had: each CPU sees a store that was made before it looked. The machine forgets
/// translations, or the loads would not fault.
#[test]
fn an_entry_gets_its_own_amap_beside_faults_in_it() {
    check(|| {
        let w = World::forgetful();
        let space = w.space();
        w.map(&space, MapRequest::zero(Pages(2)));
        w.store(0, &space, P, 1);
        w.store(0, &space, Q, 1);
        let child = std::sync::Arc::new(
            w.uvm.fork(&mut ThreadCtx::new().held(), &space).expect("there is memory"),
        );
        let reader = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || w.load(1, &space, P))
        };
        w.store(2, &space, Q, 2);
        w.store(2, &space, P, 2);
        assert!((1..=2).contains(&reader.join().unwrap()));
        for cpu in 0..3 {
            assert_eq!((w.load(cpu, &space, P), w.load(cpu, &space, Q)), (2, 2));
            assert_eq!((w.load(cpu, &child, P), w.load(cpu, &child, Q)), (1, 1));
        }
        w.check(&[&space, &child], &[]);
        w.end(vec![space, child]);
    });
}

/// An entry without an amap becomes part of its neighbour, which has one, beside a load and a store
/// in it: the load, which has found no amap, doesn't show the object's page after the store.
#[test]
fn an_entry_merges_with_one_that_has_an_amap_beside_faults_in_it() {
    check(|| {
        let w = World::new();
        let h = &mut ThreadCtx::new();
        let object = AnonObject::new(&w.uvm, &mut h.held(), Pages(2)).expect("there is memory");
        let pager: Arc<dyn Pager<Soft>> = object;
        let space = w.space();
        let page = |va| VaRange::new(va, va + Pages(1)).try_into().expect("whole pages");
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Private));
        w.uvm.protect(&mut h.held(), &space, page(P), Prot::READ).expect("there is heap");
        // The second page's entry gets the amap; the first one's has none.
        w.store(0, &space, Q, 1);
        w.uvm.protect(&mut h.held(), &space, page(Q), Prot::NONE).expect("there is heap");
        w.uvm.protect(&mut h.held(), &space, page(P), Prot::READ_WRITE).expect("there is heap");
        let reader = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || w.load(1, &space, P))
        };
        let writer = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                w.store(2, &space, P, 2);
                assert_eq!(w.load(2, &space, P), 2, "the store is gone");
            })
        };
        ShuttleThreads::set_cpu(0);
        w.uvm.protect(&mut h.held(), &space, page(Q), Prot::READ_WRITE).expect("there is heap");
        writer.join().unwrap();
        assert!([0, 2].contains(&reader.join().unwrap()));
        for cpu in 0..3 {
            assert_eq!((w.load(cpu, &space, P), w.load(cpu, &space, Q)), (2, 1));
        }
        w.check(&[&space], std::slice::from_ref(&pager));
        w.end(vec![space]);
        w.uvm.detach(&mut h.held(), &*pager);
    });
}

fn world_with_a_device() -> Arc<World> {
    let config = uvm_soft::Config {
        segments: vec![(machine::Pa(0), 64)],
        devices: vec![(machine::Pa(1 << 32), 32)],
        cpus: 3,
        io: uvm_soft::IoBy::Waiters,
        stage: uvm_soft::Stage::Concurrent,
        ..uvm_soft::Config::default()
    };
    let uvm = Soft::with_threads(&config).into_uvm().expect("a new machine has memory");
    Arc::new(World { uvm: Arc::new(uvm) })
}

/// A fault maps a device's pages by the run, and keeps to those that it has pinned: `change` is
/// made of a page beside them while another CPU touches the first page; `look` looks after both.
fn beside_a_fault_in_a_device(
    sharing: Sharing,
    touch: fn(&World, &Space<Soft>),
    change: fn(&World, &Space<Soft>, Va),
    look: fn(&World, &Space<Soft>, Va),
) {
    check(move || {
        let w = world_with_a_device();
        let h = &mut ThreadCtx::new();
        let first = w.uvm.frames().page_at(machine::Pa(1 << 32)).unwrap();
        let pager: Arc<dyn Pager<Soft>> =
            uvm::DevicePager::new(&w.uvm, &mut h.held(), first, Pages(32)).unwrap();
        let (space, at) = (w.space(), P + Pages(17));
        w.map(&space, MapRequest::object(pager.clone(), Pages(0), Pages(20), sharing));
        let thread = {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || touch(&w, &space))
        };
        ShuttleThreads::set_cpu(2);
        change(&w, &space, at);
        thread.join().unwrap();
        w.check(&[&space], std::slice::from_ref(&pager));
        look(&w, &space, at);
        w.check(&[&space], std::slice::from_ref(&pager));
        w.end(vec![space]);
        w.uvm.detach(&mut h.held(), &*pager);
        let page = machine::PageNo(first.0 + 17);
        assert_eq!(w.uvm.frames().wire_count(page), 0, "a wiring is left");
    });
}

fn one_page(at: Va) -> PageRange {
    PageRange::new(at, at + Pages(1)).expect("whole pages")
}

fn stores_to_the_first(w: &World, space: &Space<Soft>) {
    w.store(1, space, P, 7);
}

#[test]
fn a_device_is_unmapped_beside_a_fault_in_it() {
    let unmap = |w: &World, space: &Space<Soft>, at| {
        let unmapped = w.uvm.unmap(&mut ThreadCtx::new().held(), space, one_page(at));
        unmapped.expect("there is heap");
    };
    beside_a_fault_in_a_device(Sharing::Shared, stores_to_the_first, unmap, |w, space, at| {
        assert_eq!(w.try_load(2, space, at), Err(FaultError::NoMapping), "unmapped");
    });
}

#[test]
fn a_device_is_protected_beside_a_fault_in_it() {
    let protect = |w: &World, space: &Space<Soft>, at| {
        let held = &mut ThreadCtx::new();
        let protected = w.uvm.protect(&mut held.held(), space, one_page(at), Prot::READ);
        protected.expect("there is heap");
    };
    beside_a_fault_in_a_device(Sharing::Shared, stores_to_the_first, protect, |w, space, at| {
        assert_eq!(w.try_store(2, space, at, 9), Err(FaultError::Protection), "read only");
    });
}

#[test]
fn a_device_is_copied_beside_a_fault_in_it() {
    let load = |w: &World, space: &Space<Soft>| _ = w.load(1, space, P);
    let store = |w: &World, space: &Space<Soft>, at| w.store(2, space, at, 5);
    beside_a_fault_in_a_device(Sharing::Private, load, store, |w, space, at| {
        assert_eq!(w.load(2, space, at), 5, "own store is lost");
    });
}

#[test]
fn a_device_is_wired_beside_a_fault_in_it() {
    let wire = |w: &World, space: &Space<Soft>, at| {
        let wired = w.uvm.wire(&mut ThreadCtx::new().held(), space, one_page(at));
        wired.expect("there is heap");
    };
    beside_a_fault_in_a_device(Sharing::Shared, stores_to_the_first, wire, |w, space, at| {
        let unwired = w.uvm.unwire(&mut ThreadCtx::new().held(), space, one_page(at));
        unwired.expect("there is heap");
    });
}

#[test]
fn a_device_is_mapped_over_beside_a_fault_in_it() {
    let map = |w: &World, space: &Space<Soft>, at| {
        let request = MapRequest::zero(Pages(1)).at(at);
        w.uvm.map(&mut ThreadCtx::new().held(), space, &request).expect("there is heap");
        w.store(2, space, at, 5);
    };
    beside_a_fault_in_a_device(Sharing::Shared, stores_to_the_first, map, |w, space, at| {
        assert_eq!(w.load(2, space, at), 5, "the store to new memory is lost");
    });
}
