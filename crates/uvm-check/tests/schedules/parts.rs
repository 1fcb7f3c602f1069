//! Parts of a map that have locks of their own: opened, used and gathered beside each other.

use std::sync::Arc;

use machine::{PageRange, Pages, ThreadCtx, Va};
use uvm::{MapRequest, Space};
use uvm_soft::{ShuttleThreads, Threads};

use super::world::{check_rounds, spawn, Soft, World};

fn map_on(w: &World, cpu: usize, space: &Space<Soft>, pages: u64) -> Va {
    ShuttleThreads::set_cpu(cpu);
    w.uvm
        .map(&mut ThreadCtx::new().held(), space, &MapRequest::zero(Pages(pages)))
        .expect("there is room")
}

fn unmap(w: &World, space: &Space<Soft>, va: Va, pages: u64) {
    let range = PageRange::new(va, va + Pages(pages)).unwrap();
    w.uvm.unmap(&mut ThreadCtx::new().held(), space, range).expect("there is heap");
}

/// CPUs 0 and 1 map in turns until each has a part of its own.
fn open_parts(w: &World, space: &Space<Soft>) {
    let mut last = [Va(0); 2];
    for turn in 0..20 {
        let va = map_on(w, turn % 2, space, 1);
        unmap(w, space, va, 1);
        last[turn % 2] = va;
    }
    assert!(
        last[0].0.abs_diff(last[1].0) >= 0x20000,
        "CPUs 0 and 1 have slices of their own: {last:?}"
    );
}

/// Two CPUs map, store, load and unmap, and a third of their threads shares a CPU with one of them,
/// while a fork gathers the parts and the next mapping opens them again: each finds what it has
/// mapped, and the child has what was there.
#[test]
fn parts_are_gathered_beside_those_who_use_them() {
    check_rounds(3000, || {
        let w = World::new();
        let space = w.space();
        open_parts(&w, &space);
        let kept = map_on(&w, 1, &space, 1);
        w.store(1, &space, kept, 7);
        let threads = [0, 1, 1].map(|cpu| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || {
                for n in 1..4 {
                    let va = map_on(&w, cpu, &space, 1);
                    w.store(cpu, &space, va, n);
                    assert_eq!(w.load(cpu, &space, va), n);
                    unmap(&w, &space, va, 1);
                }
            })
        });
        ShuttleThreads::set_cpu(2);
        let child =
            Arc::new(w.uvm.fork(&mut ThreadCtx::new().held(), &space).expect("there is memory"));
        assert_eq!(w.load(2, &child, kept), 7);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(w.load(1, &space, kept), 7);
        w.check(&[&space, &child], &[]);
        w.end(vec![space, child]);
        assert_eq!(w.uvm.frames().free(), w.uvm.frames().total());
    });
}

/// A range over both parts is unmapped while their CPUs map in them: what is mapped afterwards is
/// there.
#[test]
fn a_range_over_several_parts_is_unmapped_beside_mappings() {
    check_rounds(3000, || {
        let w = World::new();
        let space = w.space();
        open_parts(&w, &space);
        let threads = [0, 1].map(|cpu| {
            let (w, space) = (w.clone(), space.clone());
            spawn(move || (0..3).map(|_| map_on(&w, cpu, &space, 1)).collect::<Vec<_>>())
        });
        ShuttleThreads::set_cpu(2);
        let bounds = space.bounds();
        w.uvm.unmap(&mut ThreadCtx::new().held(), &space, bounds).expect("there is heap");
        let mut count = 0;
        w.uvm.outline(&mut ThreadCtx::new().held(), &space, bounds, |line| {
            count += line.range.pages().0
        });
        assert!(count <= 6);
        threads.into_iter().for_each(|thread| _ = thread.join().unwrap());
        for cpu in [0, 1] {
            let va = map_on(&w, cpu, &space, 1);
            w.store(cpu, &space, va, 1);
        }
        w.check(&[&space], &[]);
        w.end(vec![space]);
    });
}
