//! Several CPUs that map in one space: each gets addresses of its own, and nobody else can tell.

use machine::{Machine, Pa, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{MapError, MapRequest, Place, RemapPlace, Space, Uvm};
use uvm_soft::{Config, SoftMachine, StdThreads, Threads};

const BOUNDS: PageRange = PageRange::new(Va(0x1000), Va(1 << 30)).unwrap();
/// A slice is so long in a space of that size.
const SLICE: u64 = 1 << 17;

struct World {
    uvm: Uvm<SoftMachine>,
    space: Space<SoftMachine>,
}

impl World {
    fn new() -> World {
        let config = Config { segments: vec![(Pa(0x10_0000), 64)], cpus: 3, ..Config::default() };
        let uvm = SoftMachine::new(config).into_uvm().unwrap();
        let space = uvm.space_create(&mut ThreadCtx::new().held(), BOUNDS).unwrap();
        World { uvm, space }
    }

    fn try_map(&self, cpu: usize, request: &MapRequest<SoftMachine>) -> Result<Va, MapError> {
        StdThreads::set_cpu(cpu);
        self.uvm.map(&mut ThreadCtx::new().held(), &self.space, request)
    }

    fn map(&self, cpu: usize, pages: u64) -> Va {
        self.try_map(cpu, &MapRequest::zero(Pages(pages))).unwrap()
    }

    fn unmap(&self, range: PageRange) {
        self.uvm.unmap(&mut ThreadCtx::new().held(), &self.space, range).unwrap();
    }

    /// CPUs 0 and 1 map in turns until each has a part; a page in each.
    fn parted() -> (World, [Va; 2]) {
        let w = World::new();
        for turn in 0..20 {
            let va = w.map(turn % 2, 1);
            w.unmap(PageRange::new(va, va + Pages(1)).unwrap());
        }
        let own = [0, 1].map(|cpu| w.map(cpu, 1));
        assert_ne!(own[0].0 / SLICE, own[1].0 / SLICE, "{own:?}");
        (w, own)
    }

    fn store(&self, va: Va, n: u64) {
        let fault = |va, access| {
            self.uvm.fault(&mut ThreadCtx::new().held(), &self.space, va, access).map(drop)
        };
        let machine = self.uvm.machine();
        machine.store(machine.cpu(), self.space.pmap(), va, &n.to_le_bytes(), fault).unwrap();
    }

    fn load(&self, space: &Space<SoftMachine>, va: Va) -> u64 {
        let fault =
            |va, access| self.uvm.fault(&mut ThreadCtx::new().held(), space, va, access).map(drop);
        let machine = self.uvm.machine();
        machine.load_u64(machine.cpu(), space.pmap(), va, fault).unwrap()
    }

    fn entries(&self) -> Vec<PageRange> {
        let mut all = Vec::new();
        self.uvm.describe(&mut ThreadCtx::new().held(), &self.space, |e| all.push(e.range));
        all
    }

    fn audit(&self) {
        self.uvm.audit(&mut ThreadCtx::new().held(), &[&self.space], &[]).unwrap();
    }
}

#[test]
fn a_cpu_that_maps_alone_gets_addresses_side_by_side() {
    let w = World::new();
    let first = w.map(1, 1);
    for n in 1..100 {
        assert_eq!(w.map(1, 1).0, first.0 - n * 0x1000);
    }
    assert_eq!(w.entries().len(), 1);
}

#[test]
fn what_lies_in_parts_is_described_in_order_and_forked() {
    let (w, own) = World::parted();
    own.iter().zip(1..).for_each(|(&va, n)| w.store(va, n));
    let child = w.uvm.fork(&mut ThreadCtx::new().held(), &w.space).unwrap();
    assert_eq!(own.map(|va| w.load(&child, va)), [1, 2]);
    let mut sorted = own.map(|va| PageRange::new(va, va + Pages(1)).unwrap());
    sorted.sort_by_key(|range| range.start);
    assert_eq!(w.entries(), sorted);
    // They open again, and their entries with them.
    let again = [0, 1, 0, 1, 0, 1].map(|turn| w.map(turn, 1));
    assert_eq!(again.map(|va| va.0 / SLICE)[4..], own.map(|va| va.0 / SLICE));
    assert_eq!(own.map(|va| w.load(&w.space, va)), [1, 2]);
    w.uvm.space_destroy(&mut ThreadCtx::new().held(), child);
    w.audit();
}

#[test]
fn what_is_for_all_lies_in_no_part() {
    let (w, own) = World::parted();
    let common = |cpu| {
        w.try_map(cpu, &MapRequest { place: Place::Common, ..MapRequest::zero(Pages(2)) }).unwrap()
    };
    let made = [common(0), common(1)];
    assert_eq!(made[0], made[1] + Pages(2));
    assert!(own.iter().all(|va| va.0 / SLICE != made[0].0 / SLICE), "{own:?} {made:?}");
    w.store(made[0], 1);
    // Nor does it put an end to the parts.
    assert_eq!([0, 1].map(|cpu| w.map(cpu, 1).0 / SLICE), own.map(|va| va.0 / SLICE));
    w.audit();
}

#[test]
fn a_range_over_parts_is_one_range() {
    let (w, own) = World::parted();
    own.iter().for_each(|&va| w.store(va, 7));
    let [low, high] = if own[0] < own[1] { own } else { [own[1], own[0]] };
    let all = PageRange::new(low, high + Pages(1)).unwrap();
    let held = &mut ThreadCtx::new();
    // A hole between them is one, whatever locks it lies under.
    assert!(w.uvm.protect(&mut held.held(), &w.space, all, Prot::READ).is_err());
    w.try_map(0, &MapRequest::zero(all.pages()).at(low)).unwrap();
    assert!(w.uvm.is_mapped(&mut held.held(), &w.space, all));
    assert_eq!(own.map(|va| w.load(&w.space, va)), [0, 0], "what was there is gone");
    w.uvm.protect(&mut held.held(), &w.space, all, Prot::READ).unwrap();
    assert_eq!(
        w.try_map(
            1,
            &MapRequest { place: Place::FixedNoReplace(low), ..MapRequest::zero(Pages(1)) }
        ),
        Err(MapError::Exists)
    );
    w.audit();
    w.unmap(all);
    assert!(w.entries().is_empty());
}

#[test]
fn a_hint_and_a_move_see_what_lies_in_parts() {
    let (w, own) = World::parted();
    let hint = MapRequest { place: Place::Hint(own[1]), ..MapRequest::zero(Pages(1)) };
    assert_ne!(w.try_map(0, &hint), Ok(own[1]), "the place is taken");
    w.store(own[0], 9);
    let old = PageRange::new(own[0], own[0] + Pages(1)).unwrap();
    let moved = w.uvm.remap(
        &mut ThreadCtx::new().held(),
        &w.space,
        old,
        Pages(40),
        RemapPlace::Fixed(own[1]),
    );
    assert_eq!(moved, Ok(own[1]), "it moves to the other part, in place of what was there");
    assert_eq!(w.load(&w.space, own[1]), 9);
    w.audit();
}

/// No address is lost to parts, nor given twice.
#[test]
fn a_space_with_parts_can_be_filled_to_the_last_page() {
    let (w, _) = World::parted();
    for pages in [4096, 64, 1] {
        while w.try_map(pages as usize % 2, &MapRequest::zero(Pages(pages))).is_ok() {}
    }
    let mapped: u64 = w.entries().iter().map(|range| range.pages().0).sum();
    assert_eq!(mapped, BOUNDS.pages().0);
    w.audit();
}
