//! Which cache lines 64 CPUs move between them, by operation: the table of `docs/locking.md`.
//!
//! The CPUs take turns, so the count repeats exactly: a line that an operation writes, and that
//! another CPU had since, moves at each turn. What the MMU's own code touches is the port's and not
//! counted here.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};

use machine::lines::{begin, empty, end};
use machine::{Pa, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{AnonObject, MapRequest, Pager, Sharing, Space, Uvm};
use uvm_soft::{Config, SoftMachine, StdThreads, Threads};

/// A heap as a kernel's: small blocks begin with a cache line, and each CPU, which is a thread
/// here, gets back what it gave back. With the host's, two CPUs' blocks may share a line, or one
/// get another's.
struct Heap;

/// Bytes of the smallest block, and of the largest in these, of those that are kept: none that has
/// atomics is larger. So what moves does not depend on which of the system's blocks a CPU gets, and
/// when, which the host's load would have a say in.
const LINE: usize = 64;
const SIZES: usize = 4096;

std::thread_local! {
    static FREE: [Cell<*mut u8>; SIZES] = const { [const { Cell::new(null_mut()) }; SIZES] };
}

/// The place in the lists, and the block asked of the system.
fn block(layout: Layout) -> (usize, Layout) {
    let block = layout.align_to(LINE).expect("a layout of no size that can't be").pad_to_align();
    (block.size() / LINE, block)
}

// SAFETY: what the system gives is handed on, and kept until a caller asks for a block of the same
// size again.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, block) = block(layout);
        let free = FREE.with(|free| free.get(size).map_or(null_mut(), |list| list.get()));
        if free.is_null() || block.align() > LINE {
            // SAFETY: as the caller's.
            return unsafe { System.alloc(block) };
        }
        // SAFETY: a block in a list begins with the next one's address.
        FREE.with(|list| list[size].set(unsafe { free.cast::<*mut u8>().read() }));
        free
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (size, block) = block(layout);
        if size >= SIZES || block.align() > LINE {
            // SAFETY: as the caller's; `alloc` asked for the same.
            return unsafe { System.dealloc(at, block) };
        }
        FREE.with(|list| {
            // SAFETY: the block is free, and large enough.
            unsafe { at.cast::<*mut u8>().write(list[size].get()) };
            list[size].set(at);
        });
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

const CPUS: usize = 64;
const ROUNDS: u64 = 16;
const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();
/// Pages between what two CPUs touch: no window of neighbours spans it.
const APART: u64 = 64;

struct World {
    uvm: Uvm<SoftMachine>,
}

/// Lines that move, for each operation, and where.
struct Moved {
    each: f64,
    places: Vec<(&'static str, u32, u64)>,
}

impl World {
    fn new() -> World {
        empty();
        let frames = vec![(Pa(0x10_0000), 1 << 16)];
        let config = Config { segments: frames, cpus: CPUS, ..Config::default() };
        World { uvm: SoftMachine::new(config).into_uvm().unwrap() }
    }

    fn space(&self) -> Space<SoftMachine> {
        self.uvm.space_create(&mut ThreadCtx::new().held(), BOUNDS).unwrap()
    }

    fn zeroes(&self, space: &Space<SoftMachine>, pages: u64) -> Va {
        self.uvm.map(&mut ThreadCtx::new().held(), space, &MapRequest::zero(Pages(pages))).unwrap()
    }

    fn unmap(&self, space: &Space<SoftMachine>, va: Va, pages: u64) {
        let range = PageRange::new(va, va + Pages(pages)).unwrap();
        self.uvm.unmap(&mut ThreadCtx::new().held(), space, range).unwrap();
    }

    fn fault(&self, space: &Space<SoftMachine>, va: Va, access: Prot) {
        self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).unwrap();
    }

    /// Counts what `each` moves, called by every CPU in turn, once locks have opened and caches are
    /// filled.
    fn count(&self, each: impl Fn(&World, usize, u64) + Sync) -> Moved {
        let (turn, turns) = (Mutex::new(0u64), [const { Condvar::new() }; CPUS]);
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                let (turn, turns, each) = (&turn, &turns, &each);
                scope.spawn(move || {
                    StdThreads::set_cpu(cpu);
                    for round in 0..2 * ROUNDS {
                        let mine = |now: &mut u64| *now != round * CPUS as u64 + cpu as u64;
                        let mut now = turns[cpu].wait_while(turn.lock().unwrap(), mine).unwrap();
                        if cpu == 0 && (round == 0 || round == ROUNDS) {
                            begin(StdThreads::cpu);
                        }
                        each(self, cpu, round);
                        *now += 1;
                        turns[(cpu + 1) % CPUS].notify_one();
                    }
                });
            }
        });
        let places = end();
        let all: u64 = places.iter().map(|(.., times)| times).sum();
        Moved { each: all as f64 / (CPUS as u64 * ROUNDS) as f64, places }
    }
}

fn print(what: &str, moved: &Moved) {
    println!("{what:60} {:8.2}", moved.each);
    let all = (CPUS as u64 * ROUNDS) as f64;
    for (file, line, times) in moved.places.iter().take(12) {
        println!("    {file}:{line:<30} {:8.2}", *times as f64 / all);
    }
}

/// Faults on pages of one shared object that are there, each CPU on its own pages.
fn resident_object(one_space: bool) -> Moved {
    let w = World::new();
    let len = Pages(CPUS as u64 * APART);
    let object = AnonObject::new(&w.uvm, &mut ThreadCtx::new().held(), len).unwrap();
    let object: std::sync::Arc<dyn Pager<SoftMachine>> = object;
    let count = if one_space { 1 } else { CPUS };
    let spaces: Vec<(Space<SoftMachine>, Va)> = (0..count)
        .map(|_| {
            let space = w.space();
            let request = MapRequest::object(object.clone(), Pages(0), len, Sharing::Shared);
            let va = w.uvm.map(&mut ThreadCtx::new().held(), &space, &request).unwrap();
            (space, va)
        })
        .collect();
    let touch = |w: &World, cpu: usize, round: u64| {
        let (space, va) = &spaces[cpu % count];
        w.fault(space, *va + Pages(cpu as u64 * APART + round % ROUNDS), Prot::WRITE);
    };
    // The pages are made before.
    w.count(touch);
    w.count(touch)
}

/// Faults on anonymous pages that are there, in one mapping of one space.
fn resident_anon() -> Moved {
    let w = World::new();
    let space = w.space();
    let va = w.zeroes(&space, CPUS as u64 * APART);
    let touch = |w: &World, cpu: usize, round: u64| {
        w.fault(&space, va + Pages(cpu as u64 * APART + round % ROUNDS), Prot::WRITE);
    };
    w.count(touch);
    w.count(touch)
}

/// First touches in one space: of one mapping, or of one for each CPU.
fn first_touch(one_mapping: bool) -> Moved {
    let w = World::new();
    let space = w.space();
    let vas: Vec<Va> = if one_mapping {
        let va = w.zeroes(&space, CPUS as u64 * APART);
        (0..CPUS as u64).map(|cpu| va + Pages(cpu * APART)).collect()
    } else {
        // Not merged: a hole between.
        let base = w.zeroes(&space, CPUS as u64 * APART * 2);
        let hole = |cpu: u64| base + Pages((cpu * 2 + 1) * APART);
        (0..CPUS as u64).for_each(|cpu| {
            w.unmap(&space, hole(cpu), APART);
        });
        (0..CPUS as u64).map(|cpu| base + Pages(cpu * 2 * APART)).collect()
    };
    w.count(|w, cpu, round| w.fault(&space, vas[cpu] + Pages(round), Prot::WRITE))
}

/// mmap, touch and munmap of a page, each CPU in a space of its own.
fn map_touch_unmap() -> Moved {
    let w = World::new();
    let spaces: Vec<_> = (0..CPUS).map(|_| w.space()).collect();
    w.count(|w, cpu, _| {
        let va = w.zeroes(&spaces[cpu], 1);
        w.fault(&spaces[cpu], va, Prot::WRITE);
        w.unmap(&spaces[cpu], va, 1);
    })
}

/// The same in one space that all CPUs share.
fn map_touch_unmap_together() -> Moved {
    let w = World::new();
    let space = w.space();
    w.count(|w, _, _| {
        let va = w.zeroes(&space, 1);
        w.fault(&space, va, Prot::WRITE);
        w.unmap(&space, va, 1);
    })
}

/// Filling and giving back more than a CPU keeps at hand, each CPU in a space of its own; lines for
/// each page. Downwards: upwards several pages come at once.
fn fill_and_discard() -> Moved {
    const MUCH: u64 = 512;
    let w = World::new();
    let spaces: Vec<_> = (0..CPUS).map(|_| w.space()).collect();
    let vas: Vec<Va> = spaces.iter().map(|space| w.zeroes(space, 2 * MUCH)).collect();
    // A turn fills, the next unmaps: all have memory at once.
    let turn = |w: &World, cpu: usize, round: u64| {
        let va = vas[cpu] + Pages(MUCH / 2);
        if round.is_multiple_of(2) {
            (0..MUCH).rev().for_each(|page| w.fault(&spaces[cpu], va + Pages(page), Prot::WRITE));
        } else {
            let range = PageRange::new(va, va + Pages(MUCH)).unwrap();
            w.uvm.discard(&mut ThreadCtx::new().held(), &spaces[cpu], range).unwrap();
        }
    };
    let mut moved = w.count(turn);
    moved.each /= MUCH as f64 / 2.0;
    moved
}

/// Fork and exit of a space with 16 pages, each CPU its own.
fn fork_and_exit() -> Moved {
    let w = World::new();
    let parents: Vec<_> = (0..CPUS)
        .map(|cpu| {
            StdThreads::set_cpu(cpu);
            let space = w.space();
            let va = w.zeroes(&space, 16);
            (0..16).for_each(|page| w.fault(&space, va + Pages(page), Prot::WRITE));
            space
        })
        .collect();
    w.count(|w, cpu, _| {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let child = w.uvm.fork(held, &parents[cpu]).unwrap();
        w.uvm.space_destroy(held, child);
    })
}

/// The most lines that an operation may move.
const NONE: f64 = 0.0;
/// A few for each batch of 32 pages or numbers, and for each branch of slots; sixteen pages are
/// made at once.
const BATCHES: f64 = 0.1;
/// The same, and a look at all CPUs' rows by who changes a map that was read: 63 for 512 pages.
const CHANGE: f64 = 0.2;

/// The map's lock, which three operations take one after the other, and what lies beside it.
const MAP: f64 = 4.0;

#[test]
fn cpus_that_fault_on_different_resident_pages_share_no_line() {
    let rows = [
        ("fault, object's page there; a space for each CPU", resident_object(false), NONE),
        ("fault, object's page there; one space", resident_object(true), NONE),
        ("fault, anonymous page there; one mapping of one space", resident_anon(), NONE),
        ("first touch, a mapping for each CPU in one space", first_touch(false), BATCHES),
        ("first touch, one mapping of one space", first_touch(true), BATCHES),
        ("mmap, touch, munmap; a space for each CPU", map_touch_unmap(), NONE),
        ("mmap, touch, munmap; one space", map_touch_unmap_together(), MAP),
        (
            "a page filled, of 512 that are given back then; a space for each CPU",
            fill_and_discard(),
            CHANGE,
        ),
        ("fork of 16 pages, exit; a space for each CPU", fork_and_exit(), NONE),
    ];
    println!("{:60} {:>8}", "lines that move between 64 CPUs", "each");
    rows.iter().for_each(|(what, moved, _)| print(what, moved));
    for (what, moved, most) in rows {
        assert!(moved.each <= most, "{what}: {} lines", moved.each);
    }
}
