//! Anonymous memory larger than the machine: page-out, page-in, swap devices, what fails. On the
//! software machine.

use crate::stores;
use std::sync::Arc;

use crate::stores::file::TestFile;
use crate::stores::{Mode, SwapDisk};
use machine::order::Nothing;
use machine::{Held, Machine, Pa, PageRange, Pages, Pmap, Prot, ThreadCtx, Va};
use uvm::page::Reserve;
use uvm::pageout::Last;
use uvm::{
    Advice, AnonObject, At, Counter, FaultError, FaultKind, Loan, MapRequest, Pager, Sharing,
    Space, SwapError, SwapId, Uvm, VnodePager,
};
use uvm_soft::{Config, Fate, SoftMachine};
use uvm_zram::Zram;

type World = Arc<Uvm<SoftMachine>>;

const BOUNDS: PageRange = PageRange::new(Va(machine::PAGE_SIZE as u64), Va(1 << 40)).unwrap();

/// A machine of so many frames.
fn world(frames: u32) -> World {
    let config = Config { segments: vec![(Pa(0x10_0000), frames)], ..Config::default() };
    Arc::new(SoftMachine::new(config).into_uvm().unwrap())
}

fn swap_on(
    uvm: &World,
    held: &mut Held<'_, Nothing>,
    slots: u32,
    mode: Mode,
) -> (Arc<SwapDisk>, SwapId) {
    let disk = SwapDisk::new(uvm, slots, mode);
    let id = uvm.swap_on(held, disk.clone(), 0).unwrap();
    (disk, id)
}

/// A fault, by a program on a machine whose page daemon keeps up with it.
fn fault(
    uvm: &World,
    space: &Space<SoftMachine>,
    va: Va,
    access: Prot,
) -> Result<FaultKind, FaultError> {
    let mut ctx = ThreadCtx::new();
    if uvm.frames().free() < uvm.frames().low_water() && uvm.pages_in_flight() == 0 {
        uvm.pageout(&mut ctx.held(), uvm.frames().high_water());
    }
    uvm.fault(&mut ctx.held(), space, va, access)
}

fn store(uvm: &World, space: &Space<SoftMachine>, va: Va, byte: u8) -> Result<(), FaultError> {
    let fault = |va, access| fault(uvm, space, va, access).map(|_| ());
    uvm.machine().store(0, space.pmap(), va, &[byte], fault).map_err(|e| match e {
        uvm_soft::Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })
}

fn load(uvm: &World, space: &Space<SoftMachine>, va: Va) -> Result<u8, FaultError> {
    let mut byte = [0];
    let fault = |va, access| fault(uvm, space, va, access).map(|_| ());
    uvm.machine().load(0, space.pmap(), va, &mut byte, fault).map_err(|e| match e {
        uvm_soft::Denied::Fault(e) => e,
        other => panic!("{other:?}"),
    })?;
    Ok(byte[0])
}

fn space(uvm: &World, held: &mut Held<'_, Nothing>) -> Space<SoftMachine> {
    uvm.space_create(held, BOUNDS).unwrap()
}

fn audit(uvm: &World, held: &mut Held<'_, Nothing>, spaces: &[&Space<SoftMachine>]) {
    uvm.audit(held, spaces, &[]).unwrap();
    uvm.machine().tlb_audit().unwrap();
}

/// A space with `pages` pages mapped, each written with its number's low byte.
fn filled(uvm: &World, held: &mut Held<'_, Nothing>, pages: u64) -> (Space<SoftMachine>, Va) {
    let s = space(uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(pages))).unwrap();
    (0..pages).for_each(|i| store(uvm, &s, va + Pages(i), i as u8).unwrap());
    (s, va)
}

fn check(uvm: &World, s: &Space<SoftMachine>, va: Va, pages: u64) {
    (0..pages).for_each(|i| assert_eq!(load(uvm, s, va + Pages(i)), Ok(i as u8), "page {i}"));
}

/// Everything is given back: no page, no anon, no slot.
fn assert_empty(uvm: &World) {
    while uvm.machine().complete(0, Fate::Works) {}
    assert_eq!((uvm.anons(), uvm.swap_space().1, uvm.pages_in_flight()), (0, 0, 0));
    assert_eq!(uvm.frames().free(), uvm.frames().total());
}

#[test]
fn three_times_the_memory_keeps_its_contents() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        swap_on(&uvm, held, 1024, mode);
        let (s, va) = filled(&uvm, held, 768);
        audit(&uvm, held, &[&s]);
        check(&uvm, &s, va, 768);
        audit(&uvm, held, &[&s]);
        (0..768).rev().for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8)));
        assert!(uvm.stat().get(Counter::SwapIns) > 500 && uvm.stat().get(Counter::SwapOuts) > 500);
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

#[test]
fn a_bad_slot_loses_its_page_and_nothing_else() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        let (disk, _) = swap_on(&uvm, held, 1024, mode);
        let (s, va) = filled(&uvm, held, 512);
        let used: Vec<u32> = (0..1024).filter(|&slot| disk.has(slot)).collect();
        disk.spoil(used.iter().copied().filter(|slot| slot % 50 == 7));
        let lost: Vec<u64> =
            (0..512).filter(|&i| load(&uvm, &s, va + Pages(i)) == Err(FaultError::Io)).collect();
        let spoilt = used.iter().filter(|&&slot| slot % 50 == 7).count();
        assert!(
            !lost.is_empty() && lost.len() <= spoilt,
            "{} pages lost in {spoilt} slots",
            lost.len()
        );
        for i in (0..512).filter(|i| !lost.contains(i)) {
            assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8));
        }
        assert_eq!(store(&uvm, &s, va + Pages(lost[0]), 1), Err(FaultError::Io));
        audit(&uvm, held, &[&s]);
        uvm.unmap(held, &s, PageRange::new(va + Pages(lost[0]), va + Pages(lost[0] + 1)).unwrap())
            .unwrap();
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
        assert!(uvm.swap_info(held)[0].bad as usize >= lost.len());
    }
}

#[test]
fn a_failed_write_costs_a_slot_and_nobody_a_page() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        let (disk, _) = swap_on(&uvm, held, 2048, mode);
        disk.spoil((0..2048).step_by(40));
        let (s, va) = filled(&uvm, held, 512);
        for _ in 0..3 {
            check(&uvm, &s, va, 512);
        }
        let bad = uvm.swap_info(held)[0].bad;
        assert!(uvm.stat().get(Counter::SwapErrors) > 0 && bad <= 2048 / 40 + 1, "{bad} bad slots");
        audit(&uvm, held, &[&s]);
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

/// Half of swap is bad, the half that fills first, and says so at once: passes free nothing and
/// start nothing that could be waited for. A thread that is refused memory has the slots tried one
/// by one and is not told that memory has run out.
#[test]
fn writes_that_fail_at_once_end_no_operation() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let (disk, _) = swap_on(&uvm, held, 512, Mode::AtOnce);
    disk.spoil(0..256);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(200))).unwrap();
    for i in 0..200 {
        let fault =
            |va, access| uvm.fault(&mut ThreadCtx::new().held(), &s, va, access).map(|_| ());
        let stored = uvm.machine().store(0, s.pmap(), va + Pages(i), &[i as u8], fault);
        assert!(stored.is_ok(), "page {i}: {stored:?}");
    }
    check(&uvm, &s, va, 200);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// With memory and swap full a refusal costs no look at all of memory, until something changes:
/// programs go, or let go.
#[test]
fn a_full_machine_refuses_without_looking_again() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 64, Mode::AtOnce);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(400))).unwrap();
    let full =
        (0..400).find(|&i| store(&uvm, &s, va + Pages(i), i as u8).is_err()).expect("it is full");
    assert!(full > 256 + 64 - 20, "refused with {full} pages");
    let scanned = uvm.stat().get(Counter::Scanned);
    for _ in 0..100 {
        assert_eq!(store(&uvm, &s, va + Pages(full), 1), Err(FaultError::NoMemory));
    }
    let scanned = uvm.stat().get(Counter::Scanned) - scanned;
    assert!(scanned <= 256, "{scanned} pages were looked at");
    uvm.unmap(held, &s, PageRange::new(va, va + Pages(20)).unwrap()).unwrap();
    (full..full + 10).for_each(|i| store(&uvm, &s, va + Pages(i), i as u8).unwrap());
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// Pages that come back from swap after memory had run out, and keep their places there, can go
/// again.
#[test]
fn what_was_read_back_makes_room_after_memory_had_run_out() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 64, Mode::AtOnce);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(400))).unwrap();
    let full =
        (0..400).find(|&i| store(&uvm, &s, va + Pages(i), i as u8).is_err()).expect("it is full");
    uvm.unmap(held, &s, PageRange::new(va + Pages(full - 30), va + Pages(full)).unwrap()).unwrap();
    let ins = uvm.stat().get(Counter::SwapIns);
    check(&uvm, &s, va, 20);
    assert!(uvm.stat().get(Counter::SwapIns) > ins, "the first pages were in memory");
    (full..full + 25).for_each(|i| store(&uvm, &s, va + Pages(i), i as u8).unwrap());
    check(&uvm, &s, va, full - 30);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// With all but seven frames wired no pass can reach the low water mark; with room on swap the
/// three that the kernel does not keep for itself serve a program all the same.
#[test]
fn a_few_frames_are_enough_to_go_on_with() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 512, Mode::AtOnce);
    let s = space(&uvm, held);
    let wired = uvm.map(held, &s, &MapRequest::zero(Pages(57))).unwrap();
    uvm.wire(held, &s, PageRange::new(wired, wired + Pages(57)).unwrap()).unwrap();
    assert!(uvm.frames().free() < uvm.frames().low_water());
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(40))).unwrap();
    // No daemon that keeps up with it.
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), &s, va, access).map(|_| ());
    for i in 0..40 {
        uvm.machine().store(0, s.pmap(), va + Pages(i), &[i as u8], fault).unwrap();
    }
    check(&uvm, &s, va, 40);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// Who was refused a frame, and comes to its turn when there is one again, takes it: that nothing
/// can be taken from others is no reason to be refused.
#[test]
fn what_was_given_back_before_ones_turn_is_found() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let frames = uvm.frames();
    let take = || frames.alloc(uvm.machine(), &mut ThreadCtx::new().held(), Reserve::User);
    let mut taken: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
    let attempt = || {
        take().inspect_err(|_| {
            let page = taken.pop().unwrap();
            frames.free_page(uvm.machine(), &mut ThreadCtx::new().held(), page);
        })
    };
    let page = uvm.with_room(held, Last::Fail, attempt).expect("a frame was given back");
    assert_eq!(frames.for_users(), 0);
    taken.push(page);
    taken.into_iter().for_each(|page| frames.free_page(uvm.machine(), held, page));
    assert_empty(&uvm);
}

/// The last pass writes a file's pages that were in use, which is done at once: they are clean
/// then, and no reason to give up.
#[test]
fn pages_of_files_that_the_last_pass_has_written_can_be_taken() {
    let (uvm, mut ctx) = (world(20), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let file = VnodePager::new(&uvm, held, Box::new(TestFile::new(&uvm, Mode::AtOnce)), Pages(10))
        .unwrap();
    // Every second page of it: none is written along with another, to be found clean in the same
    // pass.
    let request = MapRequest::object(file.clone(), Pages(0), Pages(10), Sharing::Shared);
    let mapped = uvm.map(held, &s, &MapRequest { advice: Advice::Random, ..request }).unwrap();
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(12))).unwrap();
    let fault = |va, access| uvm.fault(&mut ThreadCtx::new().held(), &s, va, access).map(|_| ());
    let store = |va| uvm.machine().store(0, s.pmap(), va, &[1], fault);
    (0..11).for_each(|n| store(va + Pages(n)).unwrap());
    // The file's are the youngest: of a batch that comes on a queue together it isn't known.
    uvm.frames().flush_pending(held);
    (0..5).for_each(|n| store(mapped + Pages(2 * n)).unwrap());
    assert_eq!(uvm.frames().for_users(), 0);
    assert!(
        store(va + Pages(11)).is_ok(),
        "twelve pages fit into 20 frames of which 8 are kept free"
    );
    uvm.space_destroy(held, s);
    uvm.detach(held, &*file);
    assert_empty(&uvm);
}

/// swapoff takes all frames that it can get. What a pass frees for it must fill the reserve first,
/// from which zram gets frames, or all of memory is used up while zram has room.
#[test]
fn the_reserve_is_filled_before_swapoff_takes_what_a_pass_has_freed() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let (_, device) = swap_on(&uvm, held, 256, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 120);
    let mut zram = None;
    Zram::set_share(&uvm, held, &mut zram, 50).unwrap();
    uvm.swap_off(held, device).expect("120 pages of one byte fit into zram");
    check(&uvm, &s, va, 120);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    Zram::set_share(&uvm, held, &mut zram, 0).unwrap();
    assert_empty(&uvm);
}

/// A fork needs a frame for each wired page at once: what its attempts have got and given up again
/// is there for the next one.
#[test]
fn a_fork_of_wired_memory_gets_all_that_can_be_free() {
    let (uvm, mut ctx) = (world(64), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 512, Mode::AtOnce);
    let (s, _) = filled(&uvm, held, 100);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(24))).unwrap();
    uvm.wire(held, &s, PageRange::new(va, va + Pages(24)).unwrap()).unwrap();
    let child = uvm.fork(held, &s).expect("two times 24 pages fit into 64 frames");
    audit(&uvm, held, &[&s, &child]);
    uvm.space_destroy(held, child);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// What was wired when memory ran out can be taken as soon as it is not.
#[test]
fn pages_that_are_let_go_are_found_after_memory_had_run_out() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 512, Mode::AtOnce);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(400))).unwrap();
    let range = |pages| PageRange::new(va, va + Pages(pages)).unwrap();
    let most = (0..256).rev().find(|&pages| uvm.wire(held, &s, range(pages)).is_ok()).unwrap();
    let refused =
        (most..400).find(|&i| store(&uvm, &s, va + Pages(i), 1) == Err(FaultError::NoMemory));
    let refused = refused.unwrap_or_else(|| panic!("{most} wired pages leave room for all others"));
    uvm.unwire(held, &s, range(most)).unwrap();
    (refused..400).for_each(|i| store(&uvm, &s, va + Pages(i), 1).unwrap());
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// The same for pages that were on loan, returned one by one.
#[test]
fn pages_that_are_returned_are_found_after_memory_had_run_out() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 512, Mode::AtOnce);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(500))).unwrap();
    let mut loan = Vec::new();
    for i in 0..400 {
        // A page is made by its first store: untouched memory is loaned as zeroes.
        let Ok(()) = store(&uvm, &s, va + Pages(i), 1) else { break };
        let page = PageRange::new(va + Pages(i), va + Pages(i + 1)).unwrap();
        loan.extend(uvm.loan_to_kernel(held, &s, page).unwrap().into_pages());
    }
    assert!(loan.len() > 200 && loan.len() < 256, "{} pages on loan fill memory", loan.len());
    assert_eq!(store(&uvm, &s, va + Pages(400), 1), Err(FaultError::NoMemory));
    loan.into_iter().for_each(|page| uvm.return_page(held, page).unwrap());
    (400..500).for_each(|i| store(&uvm, &s, va + Pages(i), 1).unwrap());
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// Without swap, what was freed lazily is what makes room: until then it is there, and what is
/// stored to again stays.
#[test]
fn what_is_freed_lazily_makes_room() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (s, va) = filled(&uvm, held, 200);
    let freed = PageRange::sized(va, Pages(150)).unwrap();
    uvm.free_lazily(held, &s, freed);
    assert_eq!(uvm.stat().get(Counter::FreedLazily), 150);
    check(&uvm, &s, va, 200);
    (0..150).step_by(3).for_each(|i| store(&uvm, &s, va + Pages(i), !(i as u8)).unwrap());
    audit(&uvm, held, &[&s]);
    let more = uvm.map(held, &s, &MapRequest::zero(Pages(200))).unwrap();
    (0..120).for_each(|i| store(&uvm, &s, more + Pages(i), 1).unwrap());
    audit(&uvm, held, &[&s]);
    let stays = |i: u64| i >= 150 || i.is_multiple_of(3);
    let stored = |i: u64| if i < 150 { !(i as u8) } else { i as u8 };
    (0..200)
        .filter(|&i| stays(i))
        .for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(stored(i))));
    let gone = 150 - uvm.range_stats(held, &s, freed).anonymous;
    assert!((50..=100).contains(&gone), "{gone} pages went");
    // All other pages are needed: memory has run out when the freed ones have gone.
    assert_eq!(
        (120..200).find_map(|i| store(&uvm, &s, more + Pages(i), 1).err()),
        Some(FaultError::NoMemory)
    );
    uvm.unmap(held, &s, PageRange::sized(more, Pages(200)).unwrap()).unwrap();
    (0..200).filter(|&i| !stays(i)).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(0)));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// A child's pages, wired ones, pages on loan and an object's copies stay; what is on swap goes at
/// once.
#[test]
fn only_what_is_ones_own_is_freed_lazily() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 256, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 32);
    let all = PageRange::sized(va, Pages(32)).unwrap();
    let part = |first, len| PageRange::sized(va + Pages(first), Pages(len)).unwrap();
    let child = uvm.fork(held, &s).unwrap();
    uvm.free_lazily(held, &s, all);
    uvm.free_lazily(held, &child, all);
    uvm.pageout_range(held, &s, all);
    check(&uvm, &s, va, 32);
    check(&uvm, &child, va, 32);
    uvm.space_destroy(held, child);
    uvm.pageout_range(held, &s, part(0, 8));
    let loan = uvm.loan_to_kernel(held, &s, part(8, 8)).unwrap();
    uvm.wire(held, &s, part(16, 8)).unwrap();
    let on_swap = uvm.swap_space().1;
    assert!(on_swap >= 8, "{on_swap} pages are on swap");
    uvm.free_lazily(held, &s, all);
    assert_eq!(uvm.swap_space().1, 0);
    assert_eq!(uvm.range_stats(held, &s, all).swapped, 0);
    uvm.pageout_range(held, &s, all);
    audit(&uvm, held, &[&s]);
    let seen: Vec<u8> = (0..32).map(|i| load(&uvm, &s, va + Pages(i)).unwrap()).collect();
    let stays = |i: u8| if (8..24).contains(&i) { i } else { 0 };
    assert_eq!(seen, (0..32).map(stays).collect::<Vec<u8>>());
    uvm.return_loan(held, loan).map_err(|(why, _)| why).unwrap();
    uvm.pageout_range(held, &s, part(8, 8));
    (8..16).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8)));
    // Behind a copy of an object's page there would be the object's.
    let pager = AnonObject::new(&uvm, held, Pages(2)).unwrap();
    let request = MapRequest::object(pager.clone(), Pages(0), Pages(2), Sharing::Private);
    let copy = uvm.map(held, &s, &request).unwrap();
    store(&uvm, &s, copy, 9).unwrap();
    uvm.free_lazily(held, &s, PageRange::sized(copy, Pages(2)).unwrap());
    uvm.pageout_range(held, &s, PageRange::sized(copy, Pages(2)).unwrap());
    assert_eq!(load(&uvm, &s, copy), Ok(9));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    uvm.detach(held, &*pager);
    assert_empty(&uvm);
}

#[test]
fn clean_pages_leave_without_being_written_again() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 2048, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 512);
    (0..2).for_each(|_| check(&uvm, &s, va, 512));
    let (out, clean) = (uvm.stat().get(Counter::SwapOuts), uvm.stat().get(Counter::FreedClean));
    (0..3).for_each(|_| check(&uvm, &s, va, 512));
    assert_eq!(uvm.stat().get(Counter::SwapOuts), out);
    assert!(uvm.stat().get(Counter::FreedClean) - clean > 512);
    // What has been written since must be written out again.
    (0..512).for_each(|i| store(&uvm, &s, va + Pages(i), !(i as u8)).unwrap());
    (0..512).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(!(i as u8))));
    assert!(uvm.stat().get(Counter::SwapOuts) > out + 256);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn dirty_pages_leave_in_large_writes_and_come_back_in_large_reads() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(8192), ThreadCtx::new());
        let held = &mut ctx.held();
        let (disk, _) = swap_on(&uvm, held, 32768, mode);
        let (s, va) = filled(&uvm, held, 16384);
        let mean = |log: &[stores::Request], write: bool| {
            let lens: Vec<usize> =
                log.iter().filter(|r| r.write == write).map(|r| r.pages.len()).collect();
            lens.iter().sum::<usize>() / lens.len().max(1)
        };
        let log = disk.take_log();
        assert!(mean(&log, true) >= 64, "mean write: {} pages", mean(&log, true));
        check(&uvm, &s, va, 16384);
        let log = disk.take_log();
        assert!(mean(&log, false) >= 32, "mean read: {} pages", mean(&log, false));
        let stat = uvm.stat();
        assert!(
            stat.get(Counter::SwapAhead) * 2 > stat.get(Counter::SwapIns),
            "half comes in unasked"
        );
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

#[test]
fn random_advice_brings_in_single_pages() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (disk, _) = swap_on(&uvm, held, 1024, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 512);
    uvm.advise(held, &s, PageRange::new(va, va + Pages(512)).unwrap(), Advice::Random).unwrap();
    disk.take_log();
    (0..512).step_by(7).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8)));
    assert!(disk.take_log().iter().all(|r| r.write || r.pages.len() == 1));
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

/// MADV_WILLNEED: what lies on swap in a range comes in by large reads that no thread waits for,
/// and nothing else does.
#[test]
fn what_will_be_needed_is_read_from_swap_before_it_is_touched() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(512), ThreadCtx::new());
        let held = &mut ctx.held();
        let (disk, _) = swap_on(&uvm, held, 2048, mode);
        let (s, va) = filled(&uvm, held, 1000);
        let part = |from, to| PageRange::new(va + Pages(from), va + Pages(to)).unwrap();
        uvm.unmap(held, &s, part(300, 1000)).unwrap();
        uvm.unmap(held, &s, part(50, 53)).unwrap();
        while uvm.machine().complete(0, Fate::Works) {}
        assert!(uvm.frames().free() > 300, "nothing of the range is in memory");
        disk.take_log();
        let waits = uvm.stat().get(Counter::Waits);
        uvm.will_need(held, &s, part(10, 110));
        assert_eq!(uvm.stat().get(Counter::Waits), waits, "who gives advice waits");
        while uvm.machine().complete(0, Fate::Works) {}
        let log = disk.take_log();
        let pages: usize = log.iter().map(|r| r.pages.len()).sum();
        assert!(log.iter().all(|r| !r.write) && pages == 97, "{pages} of 97 pages were read");
        assert!(log.len() <= 97 / 8, "{} reads", log.len());
        (10..110).filter(|i| !(50..53).contains(i)).for_each(|i| {
            assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8), "page {i}");
        });
        assert!(disk.take_log().is_empty(), "a page was not read ahead");
        uvm.will_need(held, &s, part(10, 110));
        assert!(disk.take_log().is_empty(), "what is there is read again");
        // One read behind the other, with nothing between them.
        uvm.will_need(held, &s, part(110, 290));
        while uvm.machine().complete(0, Fate::Works) {}
        disk.take_log();
        (110..290).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8), "page {i}"));
        assert!(disk.take_log().is_empty(), "a page between two reads was left out");
        check(&uvm, &s, va, 50);
        audit(&uvm, held, &[&s]);
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

/// Advice takes no page from anybody: with little memory nothing is read.
#[test]
fn what_will_be_needed_stays_on_swap_while_memory_is_short() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (disk, _) = swap_on(&uvm, held, 1024, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 700);
    disk.take_log();
    uvm.will_need(held, &s, PageRange::new(va, va + Pages(700)).unwrap());
    assert!(disk.take_log().is_empty(), "memory has {} free pages", uvm.frames().free());
    check(&uvm, &s, va, 700);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn a_walk_upwards_seldom_waits() {
    let (uvm, mut ctx) = (world(2048), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 8192, Mode::Later);
    let (s, va) = filled(&uvm, held, 4096);
    let (mut major, mut minor) = (0, 0);
    for i in 0..2048 {
        if uvm.machine().access(0, s.pmap(), va + Pages(i), Prot::READ).is_ok() {
            continue;
        }
        match fault(&uvm, &s, va + Pages(i), Prot::READ).unwrap() {
            FaultKind::Major => major += 1,
            _ => minor += 1,
        }
        // The disk is fast enough: what was started is there before the walk comes to it.
        while uvm.machine().complete(0, Fate::Works) {}
    }
    assert!(major <= 24 && minor > major, "{major} faults waited, {minor} did not");
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn a_full_swap_is_an_error_and_loses_nothing() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 100, Mode::Later);
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(1024))).unwrap();
    let stored =
        (0..1024).take_while(|&i| store(&uvm, &s, va + Pages(i), i as u8).is_ok()).count() as u64;
    assert!((320..=356).contains(&stored), "{stored} pages of 256 and 100 slots");
    assert_eq!(store(&uvm, &s, va + Pages(stored), 1), Err(FaultError::NoMemory));
    audit(&uvm, held, &[&s]);
    uvm.unmap(held, &s, PageRange::new(va, va + Pages(32)).unwrap()).unwrap();
    (32..stored).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(i as u8), "page {i}"));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn without_swap_memory_runs_out_at_once() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let va = uvm.map(held, &s, &MapRequest::zero(Pages(1024))).unwrap();
    let stored = (0..1024).take_while(|&i| store(&uvm, &s, va + Pages(i), i as u8).is_ok()).count();
    assert!(stored > 240 && uvm.stat().get(Counter::DirectPasses) <= 2);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn a_nearly_full_swap_takes_back_what_is_stale() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 96, Mode::AtOnce);
    // 300 pages fit into 240 frames and 96 slots only if pages in memory keep no slots.
    let (s, va) = filled(&uvm, held, 300);
    let mut seed = 1u64;
    for round in 0..5000u64 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let i = (seed >> 33) % 300;
        store(&uvm, &s, va + Pages(i), i as u8).unwrap_or_else(|e| panic!("round {round}: {e:?}"));
    }
    assert!(uvm.stat().get(Counter::SlotsReclaimed) > 0);
    check(&uvm, &s, va, 300);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn exit_leaves_pages_to_their_writes() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::Later);
    let (s, _) = filled(&uvm, held, 200);
    let progress = uvm.pageout(held, 160);
    assert!(progress.started >= 64 && uvm.pages_in_flight() == progress.started, "{progress:?}");
    uvm.space_destroy(held, s);
    assert_eq!((uvm.anons(), uvm.swap_space().1 as usize), (0, progress.started));
    uvm.audit(held, &[], &[]).unwrap();
    assert_empty(&uvm);
}

#[test]
fn exit_leaves_pages_to_their_reads() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::Later);
    let (s, va) = filled(&uvm, held, 400);
    while uvm.machine().complete(0, Fate::Works) {}
    for i in (0..400).step_by(8) {
        let _ = uvm.fault(held, &s, va + Pages(i), Prot::READ);
        if uvm.machine().under_way() != 0 {
            break;
        }
    }
    uvm.space_destroy(held, s);
    uvm.audit(held, &[], &[]).unwrap();
    assert_empty(&uvm);
}

#[test]
fn a_page_wanted_while_it_is_written_stays() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::Later);
    let (s, va) = filled(&uvm, held, 200);
    let progress = uvm.pageout(held, 160);
    let (reads, freed) = (uvm.stat().get(Counter::SwapReads), uvm.frames().free());
    // The oldest page is among them: the fault waits for the write, and finds the page where it
    // was.
    store(&uvm, &s, va, 77).unwrap();
    assert_eq!((uvm.stat().get(Counter::SwapReads), load(&uvm, &s, va)), (reads, Ok(77)));
    while uvm.machine().complete(0, Fate::Works) {}
    assert_eq!(uvm.frames().free(), freed + progress.started - 1);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn a_device_is_not_left_while_pages_are_written_to_it() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (_, id) = swap_on(&uvm, held, 1024, Mode::Later);
    let (s, va) = filled(&uvm, held, 100);
    let progress = uvm.pageout(held, 200);
    assert!(progress.started > 0 && uvm.machine().under_way() > 0, "{progress:?}");
    uvm.swap_off(held, id).unwrap();
    assert_eq!(
        (uvm.machine().under_way(), uvm.pages_in_flight()),
        (0, 0),
        "its writes are under way yet"
    );
    audit(&uvm, held, &[&s]);
    check(&uvm, &s, va, 100);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn wired_pages_stay_in_memory() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 64);
    uvm.wire(held, &s, PageRange::new(va, va + Pages(32)).unwrap()).unwrap();
    let (t, there) = filled(&uvm, held, 512);
    for i in 0..32 {
        assert!(
            uvm.machine().pmap().extract(s.pmap(), va + Pages(i)).is_some(),
            "page {i} was taken"
        );
    }
    uvm.unwire(held, &s, PageRange::new(va, va + Pages(32)).unwrap()).unwrap();
    check(&uvm, &t, there, 512);
    check(&uvm, &s, va, 64);
    audit(&uvm, held, &[&s, &t]);
    [s, t].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_empty(&uvm);
}

#[test]
fn forks_share_what_is_on_swap() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 2048, Mode::Later);
    let (parent, va) = filled(&uvm, held, 400);
    let child = uvm.fork(held, &parent).unwrap();
    audit(&uvm, held, &[&parent, &child]);
    (0..400).step_by(3).for_each(|i| store(&uvm, &child, va + Pages(i), 200).unwrap());
    check(&uvm, &parent, va, 400);
    (0..400).step_by(5).for_each(|i| store(&uvm, &parent, va + Pages(i), 100).unwrap());
    for i in 0..400 {
        let child_has = if i % 3 == 0 { 200 } else { i as u8 };
        let parent_has = if i % 5 == 0 { 100 } else { i as u8 };
        assert_eq!(
            (load(&uvm, &child, va + Pages(i)), load(&uvm, &parent, va + Pages(i))),
            (Ok(child_has), Ok(parent_has))
        );
    }
    audit(&uvm, held, &[&parent, &child]);
    uvm.space_destroy(held, child);
    audit(&uvm, held, &[&parent]);
    uvm.space_destroy(held, parent);
    assert_empty(&uvm);
}

#[test]
fn a_wired_fork_shares_what_is_not_resident() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::Later);
    let (parent, va) = filled(&uvm, held, 16);
    let range = PageRange::new(va, va + Pages(16)).unwrap();
    uvm.protect(held, &parent, range, Prot::NONE).unwrap();
    let (other, there) = filled(&uvm, held, 400);
    // Wired without access: marked, and not brought in.
    uvm.wire(held, &parent, range).unwrap();
    let child = uvm.fork(held, &parent).unwrap();
    audit(&uvm, held, &[&parent, &child, &other]);
    [&parent, &child]
        .into_iter()
        .for_each(|s| uvm.protect(held, s, range, Prot::READ_WRITE).unwrap());
    store(&uvm, &child, va, 99).unwrap();
    check(&uvm, &parent, va, 16);
    assert_eq!(load(&uvm, &child, va), Ok(99));
    check(&uvm, &other, there, 400);
    audit(&uvm, held, &[&parent, &child, &other]);
    [parent, child, other].into_iter().for_each(|s| uvm.space_destroy(held, s));
    assert_empty(&uvm);
}

#[test]
fn discarded_and_unmapped_pages_leave_swap_at_once() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    swap_on(&uvm, held, 1024, Mode::AtOnce);
    let (s, va) = filled(&uvm, held, 512);
    let used = uvm.swap_space().1;
    assert!(used > 256);
    uvm.discard(held, &s, PageRange::new(va, va + Pages(200)).unwrap()).unwrap();
    assert!(uvm.swap_space().1 <= used - 190);
    assert_eq!(load(&uvm, &s, va), Ok(0));
    uvm.unmap(held, &s, PageRange::new(va + Pages(100), va + Pages(512)).unwrap()).unwrap();
    assert_eq!((uvm.swap_space().1, uvm.anons()), (0, 1));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn devices_fill_by_priority_and_take_turns() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let disks: Vec<_> = [(5, 64), (9, 100), (5, 64)]
        .map(|(priority, slots)| {
            let disk = SwapDisk::new(&uvm, slots, Mode::AtOnce);
            uvm.swap_on(held, disk.clone(), priority).unwrap();
            disk
        })
        .into();
    let (s, va) = filled(&uvm, held, 380);
    let info = uvm.swap_info(held);
    assert_eq!(
        info.iter().map(|d| (d.priority, d.slots)).collect::<Vec<_>>(),
        [(9, 100), (5, 64), (5, 64)]
    );
    assert!(info[0].used > 90 && info[1].used > 0 && info[2].used > 0, "{info:?}");
    assert!(disks.iter().all(|d| !d.take_log().is_empty()));
    check(&uvm, &s, va, 380);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn too_much_swap_is_refused_in_a_sentence() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let on = |held: &mut Held<'_, Nothing>, slots| {
        uvm.swap_on(held, SwapDisk::new(&uvm, slots, Mode::AtOnce), 0)
    };
    assert_eq!(on(held, 0), Err(SwapError::Empty));
    assert_eq!(on(held, 10 * 256 + 1), Err(SwapError::TooMuch));
    on(held, 10 * 256).unwrap();
    let refused = on(held, 1).unwrap_err();
    assert_eq!(refused.to_string(), "more than ten times the memory can't be kept on swap");
}

#[test]
fn swapoff_brings_everything_home() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(512), ThreadCtx::new());
        let held = &mut ctx.held();
        let (_, small) = swap_on(&uvm, held, 512, mode);
        let (s, va) = filled(&uvm, held, 640);
        uvm.unmap(held, &s, PageRange::new(va + Pages(380), va + Pages(640)).unwrap()).unwrap();
        assert!(uvm.swap_space().1 > 100);
        uvm.swap_off(held, small).unwrap();
        assert_eq!(
            (uvm.swap_space(), uvm.swap_off(held, small)),
            ((0, 0), Err(SwapError::NotFound))
        );
        check(&uvm, &s, va, 380);
        audit(&uvm, held, &[&s]);
        uvm.space_destroy(held, s);
        assert_empty(&uvm);
    }
}

#[test]
fn swapoff_moves_to_another_device() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (_, first) = swap_on(&uvm, held, 512, Mode::Later);
    let (s, va) = filled(&uvm, held, 512);
    let (_, second) = swap_on(&uvm, held, 512, Mode::Later);
    uvm.swap_off(held, first).unwrap();
    assert_eq!(uvm.swap_info(held).iter().map(|d| d.id).collect::<Vec<_>>(), [second]);
    check(&uvm, &s, va, 512);
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn swapoff_without_room_leaves_the_device_on() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (_, id) = swap_on(&uvm, held, 512, Mode::Later);
    let (s, va) = filled(&uvm, held, 512);
    assert_eq!(uvm.swap_off(held, id), Err(SwapError::NoMemory));
    audit(&uvm, held, &[&s]);
    (0..512).for_each(|i| store(&uvm, &s, va + Pages(i), i as u8).unwrap());
    check(&uvm, &s, va, 512);
    uvm.unmap(held, &s, PageRange::new(va + Pages(100), va + Pages(512)).unwrap()).unwrap();
    uvm.swap_off(held, id).unwrap();
    check(&uvm, &s, va, 100);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn swapoff_says_what_it_could_not_read() {
    let (uvm, mut ctx) = (world(512), ThreadCtx::new());
    let held = &mut ctx.held();
    let (disk, id) = swap_on(&uvm, held, 512, Mode::Later);
    let (s, va) = filled(&uvm, held, 640);
    uvm.unmap(held, &s, PageRange::new(va + Pages(380), va + Pages(640)).unwrap()).unwrap();
    disk.spoil([3, 40]);
    assert_eq!(uvm.swap_off(held, id), Err(SwapError::Io));
    uvm.swap_off(held, id).unwrap();
    let lost = (0..380).filter(|&i| load(&uvm, &s, va + Pages(i)) == Err(FaultError::Io)).count();
    assert!((1..=2).contains(&lost));
    audit(&uvm, held, &[&s]);
    uvm.space_destroy(held, s);
    assert_empty(&uvm);
}

#[test]
fn file_pages_go_before_memory_runs_out() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        let file = TestFile::new(&uvm, mode);
        let pager = VnodePager::new(&uvm, held, Box::new(file.clone()), Pages(1024)).unwrap();
        let s = space(&uvm, held);
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(1024), Sharing::Shared);
        let va = uvm.map(held, &s, &request).unwrap();
        (0..1024).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(TestFile::byte(i))));
        assert_eq!(file.writes(), 0, "clean pages are dropped");
        (0..1024).for_each(|i| store(&uvm, &s, va + Pages(i), !(i as u8)).unwrap());
        (0..1024).for_each(|i| assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(!(i as u8))));
        assert!((4..=512).contains(&file.writes()), "{} writes", file.writes());
        uvm.space_destroy(held, s);
        pager.clean(&uvm, held, 0..1024).unwrap();
        uvm.detach(held, &*pager);
        assert_empty(&uvm);
    }
}

/// Pages on loan in a space's slots.
fn borrowed(uvm: &World, held: &mut Held<'_, Nothing>, s: &Space<SoftMachine>) -> usize {
    let mut sum = 0;
    uvm.describe(held, s, |entry| sum += entry.layers.borrowed);
    sum
}

#[test]
fn what_was_transferred_leaves_memory_when_that_is_short() {
    for mode in [Mode::AtOnce, Mode::Later] {
        let (uvm, mut ctx) = (world(256), ThreadCtx::new());
        let held = &mut ctx.held();
        swap_on(&uvm, held, 2048, mode);
        // Five pages each: without owner, a program's that goes on having them, a file's.
        let new = (0..5).map(|_| uvm.new_page(held).unwrap());
        let mut loan: Loan = new.collect();
        for page in loan.pages() {
            uvm.machine().zero(page.page());
            uvm.machine().write(page.page(), 0, &[77]);
        }
        let (lender, from) = filled(&uvm, held, 5);
        loan.append(
            uvm.loan_to_kernel(held, &lender, PageRange::new(from, from + Pages(5)).unwrap())
                .unwrap(),
        );
        let file = TestFile::new(&uvm, mode);
        let pager = VnodePager::new(&uvm, held, Box::new(file.clone()), Pages(5)).unwrap();
        let mapper = space(&uvm, held);
        let request = MapRequest::object(pager.clone(), Pages(0), Pages(5), Sharing::Shared);
        let mapped = uvm.map(held, &mapper, &request).unwrap();
        (0..4).for_each(|i| {
            assert_eq!(load(&uvm, &mapper, mapped + Pages(i)), Ok(TestFile::byte(i)))
        });
        store(&uvm, &mapper, mapped + Pages(4), 99).unwrap();
        let lendable: Arc<dyn Pager<_>> = pager.clone();
        assert_eq!(uvm.loan_object(held, &lendable, Pages(0), 5, &mut loan), Ok(5));
        let s = space(&uvm, held);
        let va = uvm.transfer(held, &s, loan, At::Anywhere).unwrap();
        let of_file = || (0..4).map(TestFile::byte).chain([99]);
        let check_all = || {
            let bytes = [77; 5].into_iter().chain(0..5).chain(of_file());
            bytes.zip(0..).for_each(|(byte, i)| {
                assert_eq!(load(&uvm, &s, va + Pages(i)), Ok(byte), "page {i}")
            });
            let bytes = of_file().zip(0..);
            bytes
                .for_each(|(byte, i)| assert_eq!(load(&uvm, &mapper, mapped + Pages(i)), Ok(byte)));
        };
        check_all();
        assert_eq!(borrowed(&uvm, held, &s), 15);
        // The first pass finds the file's pages in use, the second takes its own from it; neither
        // frees any.
        assert_eq!((uvm.pageout(held, 1).freed, borrowed(&uvm, held, &s)), (0, 5));
        assert_eq!(
            (uvm.pageout(held, 1).freed, borrowed(&uvm, held, &s)),
            (0, 1),
            "or a store is lost"
        );
        audit(&uvm, held, &[&s, &lender, &mapper]);
        check_all();
        let (other, at) = filled(&uvm, held, 600);
        assert_eq!(borrowed(&uvm, held, &s), 1);
        let is_mapped = |va: &Va| uvm.machine().pmap().extract(s.pmap(), *va).is_some();
        assert_eq!(
            PageRange::new(va, va + Pages(15)).unwrap().iter_pages().filter(is_mapped).count(),
            1
        );
        audit(&uvm, held, &[&s, &lender, &mapper, &other]);
        check_all();
        pager.clean(&uvm, held, 0..5).unwrap();
        check(&uvm, &other, at, 600);
        assert_eq!(borrowed(&uvm, held, &s), 0);
        audit(&uvm, held, &[&s, &lender, &mapper, &other]);
        check_all();
        check(&uvm, &lender, from, 5);
        for space in [s, lender, mapper, other] {
            uvm.space_destroy(held, space);
        }
        uvm.detach(held, &*pager);
        assert_empty(&uvm);
    }
}
