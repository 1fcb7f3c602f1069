//! Anonymous objects larger than the machine: shared memory goes to swap and comes back, and leaves
//! nothing there.

use crate::stores;
use std::sync::Arc;

use crate::stores::{Mode, SwapDisk};
use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageNo, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{
    Access, Advice, AnonObject, Counter, FaultError, GetError, Intent, MapRequest, Pager, Quota,
    Sharing, Space, SwapId, Uvm,
};
use uvm_soft::{Config, Denied, Fate, SoftMachine};

struct World {
    uvm: Arc<Uvm<SoftMachine>>,
    disk: Arc<SwapDisk>,
    id: SwapId,
    space: Space<SoftMachine>,
    pager: Arc<dyn Pager<SoftMachine>>,
    va: Va,
}

/// Pages of memory, and of the object that is mapped.
const FRAMES: u32 = 256;
const LEN: u64 = 700;

impl World {
    fn new(mode: Mode, advice: Advice) -> World {
        let config = Config { segments: vec![(Pa(0x10_0000), FRAMES)], ..Config::default() };
        let uvm = Arc::new(SoftMachine::new(config).into_uvm().unwrap());
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let disk = SwapDisk::new(&uvm, 1500, mode);
        let id = uvm.swap_on(held, disk.clone(), 0).unwrap();
        let space = uvm
            .space_create(held, PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap())
            .unwrap();
        let pager: Arc<dyn Pager<SoftMachine>> = AnonObject::new(&uvm, held, Pages(LEN)).unwrap();
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(LEN), Sharing::Shared);
        let va = uvm.map(held, &space, &MapRequest { advice, ..request }).unwrap();
        World { uvm, disk, id, space, pager, va }
    }

    /// The same, with every page written.
    fn filled(mode: Mode) -> World {
        let w = World::new(mode, Advice::Normal);
        (0..LEN).for_each(|n| w.store(n, n as u8).unwrap());
        w.audit();
        w
    }

    fn fault(&self, va: Va, access: Prot) -> Result<(), FaultError> {
        let (uvm, mut ctx) = (&self.uvm, ThreadCtx::new());
        if uvm.frames().free() < uvm.frames().low_water() && uvm.pages_in_flight() == 0 {
            uvm.pageout(&mut ctx.held(), uvm.frames().high_water());
        }
        uvm.fault(&mut ctx.held(), &self.space, va, access).map(drop)
    }

    fn store(&self, page: u64, byte: u8) -> Result<(), FaultError> {
        let fault = |va, access| self.fault(va, access);
        let at = self.va + Pages(page);
        self.uvm.machine().store(0, self.space.pmap(), at, &[byte], fault).map_err(refused)
    }

    fn load(&self, page: u64) -> Result<u8, FaultError> {
        let (mut byte, at) = ([0], self.va + Pages(page));
        let fault = |va, access| self.fault(va, access);
        self.uvm.machine().load(0, self.space.pmap(), at, &mut byte, fault).map_err(refused)?;
        Ok(byte[0])
    }

    fn check(&self) {
        (0..LEN).for_each(|n| assert_eq!(self.load(n), Ok(n as u8), "page {n}"));
    }

    fn audit(&self) {
        let held = &mut ThreadCtx::new();
        self.uvm
            .audit(&mut held.held(), &[&self.space], std::slice::from_ref(&self.pager))
            .unwrap();
        self.uvm.machine().tlb_audit().unwrap();
    }

    /// Pushes out all that can go.
    fn push_out(&self, held: &mut Held<'_, Nothing>) {
        for _ in 0..8 {
            self.uvm.pageout(held, FRAMES as usize);
            while self.uvm.machine().complete(0, Fate::Works) {}
        }
    }

    fn close(self) {
        let held = &mut ThreadCtx::new();
        self.audit();
        self.uvm.space_destroy(&mut held.held(), self.space);
        self.uvm.detach(&mut held.held(), &*self.pager);
        while self.uvm.machine().complete(0, Fate::Works) {}
        assert_eq!((self.uvm.swap_space().1, self.uvm.pages_in_flight()), (0, 0), "slots leaked");
        assert_eq!(self.uvm.frames().free(), self.uvm.frames().total(), "pages leaked");
    }
}

fn refused(denied: Denied<FaultError>) -> FaultError {
    match denied {
        Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn shared_memory_three_times_as_large_keeps_its_contents() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let w = World::filled(mode);
        w.check();
        w.audit();
        (0..LEN).rev().for_each(|n| assert_eq!(w.load(n), Ok(n as u8)));
        let log = w.disk.take_log();
        let (writes, reads): (Vec<_>, Vec<_>) = log.iter().partition(|r| r.write);
        let mean = |list: &[&stores::Request]| {
            list.iter().map(|r| r.pages.len()).sum::<usize>() / list.len()
        };
        assert!(mean(&writes) >= 8 && mean(&reads) >= 4, "{} and {}", mean(&writes), mean(&reads));
        w.close();
    }
}

#[test]
fn what_was_only_read_is_dropped_without_a_write() {
    let w = World::filled(Mode::AtOnce);
    let mut ctx = ThreadCtx::new();
    w.push_out(&mut ctx.held());
    assert!(w.pager.object().resident(&mut ctx.held()) < 16);
    assert_eq!(w.pager.object().stored(&mut ctx.held()), LEN as usize);
    // The last few pages stay in memory, by the balance between kinds of pages.
    let written = || {
        let log = w.disk.take_log();
        log.iter().filter(|r| r.write).map(|r| r.pages.len()).sum::<usize>()
    };
    written();
    w.check();
    w.push_out(&mut ctx.held());
    assert!(written() < 16, "clean pages were written");
    (100..140).for_each(|n| w.store(n, 77).unwrap());
    w.push_out(&mut ctx.held());
    let pages = written();
    assert!((24..56).contains(&pages), "{pages} pages were written for 40");
    (100..140).for_each(|n| assert_eq!(w.load(n), Ok(77)));
    w.close();
}

#[test]
fn holes_and_the_end_give_their_slots_back() {
    let w = World::filled(Mode::Later);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    w.push_out(held);
    let before = w.uvm.swap_space().1;
    w.uvm.punch(held, &w.pager, 100..200);
    assert_eq!((w.uvm.swap_space().1, w.load(150)), (before - 100, Ok(0)));
    let read = |m: &SoftMachine, page: PageNo| {
        let mut byte = [0];
        m.read(page, 0, &mut byte);
        byte[0]
    };
    let look = |held: &mut Held<'_, Nothing>, n| {
        w.uvm.with_page(held, &w.pager, Pages(n), Intent::Read, Access::PAGE, read)
    };
    assert_eq!((look(held, 160), look(held, 250)), (Ok(None), Ok(Some(250))));
    w.uvm.truncate(held, &w.pager, Pages(300));
    assert_eq!((look(held, 300), w.load(300)), (Err(GetError::PastEnd), Err(FaultError::Bus)));
    w.uvm.truncate(held, &w.pager, Pages(LEN));
    assert_eq!((w.load(300), w.load(299)), (Ok(0), Ok(299u64 as u8)));
    w.close();
}

#[test]
fn a_lost_slot_is_one_pages_loss() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let w = World::filled(mode);
        let mut ctx = ThreadCtx::new();
        w.push_out(&mut ctx.held());
        w.disk.spoil([200, 333]);
        let lost: Vec<u64> = (0..LEN).filter(|&n| w.load(n) == Err(FaultError::Io)).collect();
        assert_eq!(lost.len(), 2);
        (0..LEN).filter(|n| !lost.contains(n)).for_each(|n| assert_eq!(w.load(n), Ok(n as u8)));
        // It stays lost, until the last program lets it go.
        assert_eq!(w.store(lost[0], 1), Err(FaultError::Io));
        w.audit();
        w.uvm.punch(&mut ctx.held(), &w.pager, lost[0]..lost[0] + 1);
        assert_eq!(w.load(lost[0]), Ok(0));
        w.close();
    }
}

#[test]
fn a_slot_that_cannot_be_written_keeps_its_page_in_memory() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let w = World::new(mode, Advice::Normal);
        w.disk.spoil([5, 40, 41]);
        (0..LEN).for_each(|n| w.store(n, n as u8).unwrap());
        w.check();
        let mut ctx = ThreadCtx::new();
        w.push_out(&mut ctx.held());
        w.check();
        w.close();
    }
}

#[test]
fn switching_swap_off_brings_shared_memory_home() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let w = World::filled(mode);
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        assert!(w.uvm.swap_off(held, w.id).is_err(), "700 pages do not fit into 256");
        w.check();
        w.uvm.truncate(held, &w.pager, Pages(150));
        w.uvm.swap_off(held, w.id).unwrap();
        assert_eq!(w.uvm.swap_space(), (0, 0));
        (0..150).for_each(|n| assert_eq!(w.load(n), Ok(n as u8)));
        w.close();
    }
}

#[test]
fn an_object_that_goes_leaves_its_pages_and_slots_to_the_io() {
    let w = World::filled(Mode::Later);
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    w.uvm.pageout(held, FRAMES as usize);
    assert!(w.uvm.pages_in_flight() > 0);
    w.close();
}

#[test]
fn advice_says_how_much_comes_back() {
    for (advice, most) in [(Advice::Random, 1), (Advice::Normal, 16), (Advice::Sequential, 64)] {
        let w = World::new(Mode::AtOnce, advice);
        (0..200).for_each(|n| w.store(n, n as u8).unwrap());
        let mut ctx = ThreadCtx::new();
        w.push_out(&mut ctx.held());
        let before = w.uvm.stat().get(Counter::SwapIns);
        w.load(96).unwrap();
        assert_eq!(w.uvm.stat().get(Counter::SwapIns) - before, most, "{advice:?}");
        w.close();
    }
}

/// Two objects with one quota, in a world of their own: what one holds the other can't have, in
/// memory or on swap.
#[test]
fn objects_with_one_quota_hold_no_more_together() {
    let w = World::new(Mode::AtOnce, Advice::Normal);
    let (uvm, mut ctx) = (w.uvm.clone(), ThreadCtx::new());
    let held = &mut ctx.held();
    let quota = Arc::new(Quota::new(300));
    let make = |held: &mut Held<'_, Nothing>| -> Arc<dyn Pager<SoftMachine>> {
        AnonObject::within(&uvm, held, Pages(LEN), quota.clone(), None).unwrap()
    };
    let (one, other) = (make(held), make(held));
    let map = |held: &mut Held<'_, Nothing>, pager: &Arc<dyn Pager<SoftMachine>>| {
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(LEN), Sharing::Shared);
        uvm.map(held, &w.space, &request).unwrap()
    };
    let (first, second) = (map(held, &one), map(held, &other));
    let store = |va: Va| {
        let fault = |va, access| w.fault(va, access);
        uvm.machine().store(0, w.space.pmap(), va, &[1], fault).map_err(refused)
    };
    (0..200).for_each(|n| store(first + Pages(n)).unwrap());
    let stored = (0..LEN).take_while(|&n| store(second + Pages(n)).is_ok()).count();
    assert_eq!((stored, quota.used()), (100, 300));
    assert_eq!(store(second + Pages(100)), Err(FaultError::NoSpace));
    w.push_out(held);
    assert_eq!(
        (store(first + Pages(7)), store(first + Pages(200))),
        (Ok(()), Err(FaultError::NoSpace))
    );
    // A host is told too.
    let write = |held: &mut Held<'_, Nothing>, n| {
        uvm.with_page(held, &one, Pages(n), Intent::Write, Access::PAGE, |_, _| ())
    };
    assert_eq!((write(held, 300), write(held, 30)), (Err(GetError::NoSpace), Ok(Some(()))));
    // What they are listed in is counted too, by leaves.
    assert!(quota.heap() >= 300 * size_of::<u32>(), "{} bytes list 300 pages", quota.heap());
    // What goes makes room, and a lower limit takes nothing away.
    uvm.punch(held, &other, 0..10);
    uvm.truncate(held, &one, Pages(190));
    assert_eq!((quota.used(), store(second), quota.used()), (280, Ok(()), 281));
    quota.set_most(100);
    assert_eq!(
        (store(second + Pages(1)), store(second + Pages(50))),
        (Err(FaultError::NoSpace), Ok(()))
    );
    for (va, pager) in [(first, one), (second, other)] {
        uvm.unmap(held, &w.space, PageRange::new(va, va + Pages(LEN)).unwrap()).unwrap();
        uvm.detach(held, &*pager);
    }
    assert_eq!(quota.used(), 0);
    w.close();
}
