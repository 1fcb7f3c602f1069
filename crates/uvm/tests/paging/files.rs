//! The file pager on a desk: what it reads and when, what it writes and when, and what becomes of
//! errors.

use crate::disk;
use crate::disk::{Answers, Desk};
use machine::{Machine, Pa, PageNo, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::{
    Access, Advice, Counter, FaultError, GetError, Intent, IoError, MapRequest, Pass, Place,
    Sharing,
};
use uvm_soft::{wait_until, Config, Fate, SoftMachine};

fn map(
    desk: &Desk,
    space: &uvm::Space<SoftMachine>,
    len: u64,
    sharing: Sharing,
    advice: Advice,
) -> Va {
    let request = MapRequest::object(desk.pager.clone(), Pages(0), Pages(len), sharing);
    desk.uvm.map(&mut ThreadCtx::new().held(), space, &MapRequest { advice, ..request }).unwrap()
}

fn pages(reads: &[std::ops::Range<u64>]) -> u64 {
    reads.iter().map(|r| r.end - r.start).sum()
}

fn byte(m: &SoftMachine, page: PageNo) -> u8 {
    let mut byte = [0];
    m.read(page, 100, &mut byte);
    byte[0]
}

#[test]
fn a_sequential_reader_of_a_mapping_reads_each_page_once_in_growing_clusters() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (Desk::new(answers, 500), ThreadCtx::new());
        let held = &mut ctx.held();
        let space = desk.space(held);
        let va = map(&desk, &space, 500, Sharing::Shared, Advice::Normal);
        for n in 0..500 {
            assert_eq!(desk.load(&space, va + Pages(n)), Ok(n as u8));
        }
        let reads = desk.disk.take_reads();
        assert_eq!(pages(&reads), 500, "{reads:?}");
        assert!(reads.len() <= 11, "{reads:?}");
        assert_eq!(desk.uvm.stat().get(Counter::FilePagesRead), 500);
        desk.close(held, vec![space]);
    }
}

#[test]
fn the_device_has_the_next_window_before_this_one_is_used_up() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 400), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 400, Sharing::Shared, Advice::Normal);
    for n in 0..300 {
        desk.load(&space, va + Pages(n)).unwrap();
        let asked = desk.disk.state().reads.iter().map(|r| r.end).max().unwrap();
        assert!(
            n < 24 || asked > n + 8,
            "page {n} is in use, and only {asked} pages were asked for"
        );
    }
    desk.close(held, vec![space]);
}

#[test]
fn a_sequential_reader_by_calls_is_read_ahead_for_too() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 300), ThreadCtx::new());
    let held = &mut ctx.held();
    for n in 0..300 {
        let seen =
            desk.uvm.with_page(held, &desk.pager, Pages(n), Intent::Read, Access::PAGE, byte);
        assert_eq!(seen, Ok(Some(n as u8)));
    }
    let reads = desk.disk.take_reads();
    assert_eq!(pages(&reads), 300, "{reads:?}");
    assert!(reads.len() <= 10, "{reads:?}");
    desk.close(held, vec![]);
}

#[test]
fn advice_says_how_much_is_read() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 200), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 100, Sharing::Shared, Advice::Random);
    for n in [7, 8, 9, 50] {
        desk.load(&space, va + Pages(n)).unwrap();
    }
    assert_eq!(desk.disk.take_reads(), [7..8, 8..9, 9..10, 50..51]);
    desk.uvm.truncate(held, &desk.pager, Pages(0));
    desk.uvm.truncate(held, &desk.pager, Pages(200));
    let va = map(&desk, &space, 200, Sharing::Private, Advice::Sequential);
    desk.load(&space, va).unwrap();
    assert_eq!(desk.disk.take_reads(), [0..64, 64..128]);
    desk.close(held, vec![space]);
}

#[test]
fn random_access_reads_no_more_than_it_touches() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 1 << 20), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 1 << 20, Sharing::Shared, Advice::Normal);
    for n in 1..=300u64 {
        let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        desk.load(&space, va + Pages(at)).unwrap();
    }
    assert_eq!(pages(&desk.disk.take_reads()), 300);
    desk.close(held, vec![space]);
}

#[test]
fn a_bad_page_fails_alone() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (Desk::new(answers, 64), ThreadCtx::new());
        let held = &mut ctx.held();
        desk.disk.state().bad.insert(21);
        let space = desk.space(held);
        let va = map(&desk, &space, 64, Sharing::Shared, Advice::Normal);
        for n in 0..64 {
            let ought = if n == 21 { Err(FaultError::Io) } else { Ok(n as u8) };
            assert_eq!(desk.load(&space, va + Pages(n)), ought, "page {n}");
        }
        let read =
            desk.uvm.with_page(held, &desk.pager, Pages(21), Intent::Read, Access::PAGE, byte);
        assert_eq!(read, Err(GetError::Io));
        desk.disk.state().bad.clear();
        assert_eq!(desk.load(&space, va + Pages(21)), Ok(21));
        desk.close(held, vec![space]);
    }
}

/// A page that was read unasked and could not be has a frame, and no thread may ever come for it:
/// it goes like any other.
#[test]
fn pages_that_could_not_be_read_keep_no_frame_from_others() {
    let config = Config { segments: vec![(Pa(0x10_0000), 256)], ..Config::default() };
    let (desk, mut ctx) = (Desk::on(config, Answers::AtOnce, 200), ThreadCtx::new());
    let held = &mut ctx.held();
    desk.disk.state().bad.extend(0..200);
    let space = desk.space(held);
    let va = map(&desk, &space, 200, Sharing::Shared, Advice::Normal);
    for n in 0..200 {
        desk.uvm.will_need(held, &space, PageRange::new(va + Pages(n), va + Pages(n + 1)).unwrap());
    }
    let left = desk.pager.object().resident(held);
    assert!(left > 100, "{left} pages could not be read");
    let own = desk.uvm.map(held, &space, &MapRequest::zero(Pages(230))).unwrap();
    for n in 0..230 {
        assert_eq!(desk.store(&space, own + Pages(n), n as u8), Ok(()), "page {n}");
    }
    desk.close(held, vec![space]);
}

#[test]
fn consecutive_dirty_pages_leave_in_one_write_and_all_writes_at_once() {
    let (desk, mut ctx) = (Desk::slow(1000), ThreadCtx::new());
    let disk = desk.disk.clone();
    let held = &mut ctx.held();
    let space = desk.space(held);
    let uvm = desk.uvm.clone();
    let ends = std::thread::spawn(move || {
        // Reads are answered as they come; writes not before there are three.
        let mut rounds = 0;
        while rounds < 3000 {
            let writes = disk.state().writes.len();
            if writes == 0 || writes >= 3 {
                uvm.machine().complete(0, Fate::Works);
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
            rounds += usize::from(uvm.machine().under_way() == 0);
        }
    });
    let va = map(&desk, &space, 1000, Sharing::Shared, Advice::Random);
    for n in (10..20).chain(30..31).chain(600..900) {
        desk.store(&space, va + Pages(n), 7).unwrap();
    }
    desk.file.clean(&desk.uvm, held, 0..700).unwrap();
    assert_eq!(desk.disk.take_writes(), [10..20, 30..31, 600..700]);
    ends.join().unwrap();
    assert_eq!(desk.disk.state().written.len(), 111);
    desk.close(held, vec![space]);
}

#[test]
fn only_what_changed_is_written_again() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 600), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 600, Sharing::Shared, Advice::Sequential);
    for n in 0..600 {
        desk.store(&space, va + Pages(n), 1).unwrap();
    }
    desk.file.clean(&desk.uvm, held, 0..600).unwrap();
    assert_eq!(desk.disk.take_writes(), [0..256, 256..512, 512..600]);
    desk.load(&space, va + Pages(3)).unwrap();
    desk.store(&space, va + Pages(5), 2).unwrap();
    let write = |m: &SoftMachine, page| m.write(page, 0, &[9]);
    desk.uvm.with_page(held, &desk.pager, Pages(40), Intent::Write, Access::PAGE, write).unwrap();
    desk.file.clean(&desk.uvm, held, 0..600).unwrap();
    assert_eq!(desk.disk.take_writes(), [5..6, 40..41]);
    desk.file.clean(&desk.uvm, held, 0..600).unwrap();
    assert_eq!(desk.disk.take_writes(), []);
    let disk = desk.disk.clone();
    assert_eq!([5, 40].map(|n| disk.state().written[&n]), [2, 9]);
    desk.close(held, vec![space]);
}

#[test]
fn a_page_changed_during_its_write_is_written_again() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 4), ThreadCtx::new());
    let held = &mut ctx.held();
    // The write begins, and is not answered before the pin has changed the page.
    let file = desk.file.clone();
    let uvm = desk.uvm.clone();
    let work = |m: &SoftMachine, page: PageNo| {
        m.write(page, 0, &[1]);
        file.clean(&uvm, &mut ThreadCtx::new().held(), 0..4).unwrap();
        m.write(page, 0, &[2]);
    };
    desk.uvm.with_page(held, &desk.pager, Pages(0), Intent::Write, Access::PAGE, work).unwrap();
    assert_eq!(desk.disk.state().written[&0], 1);
    desk.file.clean(&desk.uvm, held, 0..4).unwrap();
    assert_eq!(desk.disk.state().written[&0], 2);
    desk.close(held, vec![]);
}

#[test]
fn a_failed_write_costs_the_bad_page_alone_which_stays_dirty() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (Desk::new(answers, 16), ThreadCtx::new());
        let held = &mut ctx.held();
        let space = desk.space(held);
        let va = map(&desk, &space, 16, Sharing::Shared, Advice::Normal);
        for n in 0..16 {
            desk.store(&space, va + Pages(n), 5).unwrap();
        }
        desk.disk.state().bad.insert(4);
        assert_eq!(desk.file.clean(&desk.uvm, held, 0..16), Err(IoError));
        assert_eq!(desk.file.write_errors(held), 1);
        assert_eq!(desk.disk.state().written.len(), 15);
        desk.disk.state().bad.clear();
        assert_eq!(desk.file.clean(&desk.uvm, held, 0..16), Ok(()));
        assert_eq!(desk.file.write_errors(held), 1);
        assert_eq!(desk.disk.state().written.len(), 16);
        desk.close(held, vec![space]);
    }
}

#[test]
fn what_is_given_up_is_clean_until_it_is_changed() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 16), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 16, Sharing::Shared, Advice::Normal);
    (3..6).for_each(|n| desk.store(&space, va + Pages(n), 7).unwrap());
    desk.disk.state().bad.extend([3, 4, 5]);
    assert_eq!(desk.file.clean(&desk.uvm, held, 0..16), Err(IoError));
    // Two of them change before they are given up: one by a program, one by the host.
    desk.store(&space, va + Pages(4), 8).unwrap();
    let fill = |m: &SoftMachine, page| m.write(page, 0, &[9; machine::PAGE_SIZE]);
    desk.uvm.with_page(held, &desk.pager, Pages(5), Intent::Write, Access::PAGE, fill).unwrap();
    desk.file.give_up(&desk.uvm, held, 0..16);
    desk.disk.state().bad.clear();
    assert_eq!(desk.file.clean(&desk.uvm, held, 0..16), Ok(()));
    let written: Vec<u64> = desk.disk.state().written.keys().copied().collect();
    assert_eq!(written, [4, 5]);
    assert_eq!(desk.load(&space, va + Pages(3)), Ok(7));
    desk.close(held, vec![space]);
}

#[test]
fn truncation_waits_for_a_read_under_way_and_takes_its_page() {
    let (desk, mut ctx) = (Desk::slow(64), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = std::sync::Arc::new(desk.space(held));
    let va = map(&desk, &space, 64, Sharing::Shared, Advice::Normal);
    // The first brings the file's first pages, the other finds its own under way.
    let [first, reader] = [0, 3].map(|n| {
        let (uvm, space) = (desk.uvm.clone(), space.clone());
        let thread = std::thread::spawn(move || disk::load(&uvm, &space, va + Pages(n)));
        wait_until(|| desk.uvm.machine().under_way() != 0);
        thread
    });
    wait_until(|| desk.uvm.machine().under_way() != 0);
    let cutter = {
        let (uvm, pager) = (desk.uvm.clone(), desk.pager.clone());
        std::thread::spawn(move || uvm.truncate(&mut ThreadCtx::new().held(), &pager, Pages(2)))
    };
    wait_until(|| desk.pager.object().len(held) == Pages(2));
    assert!(!cutter.is_finished());
    desk.uvm.machine().complete(0, Fate::Works);
    cutter.join().unwrap();
    assert_eq!(first.join().unwrap(), Ok(0));
    // It came before the page went, or after.
    assert!(matches!(reader.join().unwrap(), Ok(3) | Err(FaultError::Bus)));
    assert_eq!(desk.load(&space, va + Pages(3)), Err(FaultError::Bus));
    assert_eq!(desk.load(&space, va + Pages(1)), Ok(1), "what lies before the end was read along");
    assert_eq!(desk.pager.object().resident(held), 2);
    desk.close(held, vec![std::sync::Arc::into_inner(space).unwrap()]);
}

#[test]
fn a_file_whose_last_reference_goes_leaves_its_pages_to_the_io() {
    let (desk, mut ctx) = (Desk::slow(400), ThreadCtx::new());
    let held = &mut ctx.held();
    let (uvm, pager) = (desk.uvm.clone(), desk.pager.clone());
    let reader = std::thread::spawn(move || {
        let access = Access::Call(Advice::Sequential, 1);
        uvm.with_page(&mut ThreadCtx::new().held(), &pager, Pages(0), Intent::Read, access, byte)
    });
    // The window that is waited for, and the next two, for which no thread waits.
    wait_until(|| desk.uvm.machine().under_way() >= 3);
    desk.uvm.machine().complete(0, Fate::Works);
    assert_eq!(reader.join().unwrap(), Ok(Some(0)));
    desk.uvm.detach(held, &*desk.pager);
    assert_eq!(desk.uvm.frames().free(), desk.uvm.frames().total() - 128);
    desk.uvm.machine().complete(0, Fate::Works);
    desk.uvm.machine().complete(0, Fate::Works);
    assert_eq!(desk.uvm.frames().free(), desk.uvm.frames().total());
    desk.uvm.audit(held, &[], &[]).unwrap();
}

#[test]
fn files_that_nobody_maps_stay_until_memory_is_short_and_are_idle_then() {
    let config = Config { segments: vec![(Pa(0x10_0000), 256)], ..Config::default() };
    let (desk, mut ctx) = (Desk::on(config, Answers::AtOnce, 100), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 100, Sharing::Shared, Advice::Normal);
    (0..100).for_each(|n| assert_eq!(desk.load(&space, va + Pages(n)), Ok(n as u8)));
    desk.store(&space, va + Pages(7), 70).unwrap();
    desk.uvm.space_destroy(held, space);
    // The second pass over the file does no I/O.
    desk.disk.take_reads();
    for n in 0..100 {
        let seen =
            desk.uvm.with_page(held, &desk.pager, Pages(n), Intent::Read, Access::PAGE, byte);
        assert_eq!(seen, Ok(Some(n as u8)));
    }
    assert_eq!((desk.disk.take_reads(), desk.pager.object().is_idle(held)), (vec![], false));
    // Others want the memory.
    for _ in 0..20 {
        desk.uvm.pageout(held, 256);
    }
    let left = desk.pager.object().resident(held);
    assert!(left < 30, "{left} pages of a file that no program uses are left");
    assert_eq!(desk.disk.state().written[&7], 70, "what was changed has been written");
    desk.uvm.punch(held, &desk.pager, 0..100);
    assert!(desk.pager.object().is_idle(held));
    desk.close(held, vec![]);
}

#[test]
fn a_flusher_is_told_of_dirty_pages_and_writes_them_itself() {
    let config = Config { segments: vec![(Pa(0x10_0000), 256)], ..Config::default() };
    let (desk, mut ctx) = (Desk::on(config, Answers::AtOnce, 100), ThreadCtx::new());
    let held = &mut ctx.held();
    desk.disk.state().flusher = true;
    let space = desk.space(held);
    let va = map(&desk, &space, 100, Sharing::Shared, Advice::Normal);
    (0..100).for_each(|n| desk.store(&space, va + Pages(n), 1).unwrap());
    for _ in 0..10 {
        desk.uvm.pageout(held, 256);
    }
    assert!(desk.disk.state().told > 0);
    assert_eq!(desk.disk.take_writes(), []);
    desk.file.clean(&desk.uvm, held, 0..100).unwrap();
    assert_eq!(desk.disk.take_writes(), std::slice::from_ref(&(0..100)));
    for _ in 0..20 {
        desk.uvm.pageout(held, 256);
    }
    assert!(desk.pager.object().resident(held) < 30);
    desk.close(held, vec![space]);
}

#[test]
fn what_will_be_needed_is_read_before_anybody_asks() {
    let (desk, mut ctx) = (Desk::new(Answers::Later, 500), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    let va = map(&desk, &space, 200, Sharing::Private, Advice::Normal);
    desk.load(&space, va + Pages(10)).unwrap();
    desk.disk.take_reads();
    desk.uvm.will_need(held, &space, PageRange::new(va + Pages(5), va + Pages(80)).unwrap());
    assert_eq!(desk.disk.take_reads(), [5..10, 11..75, 75..80]);
    desk.uvm.read_ahead(held, &desk.pager, 490..1000);
    assert_eq!(desk.disk.take_reads().first(), Some(&(490..500)));
    for n in 5..80 {
        assert_eq!(desk.load(&space, va + Pages(n)), Ok(n as u8));
    }
    assert_eq!(desk.disk.take_reads(), []);
    desk.close(held, vec![space]);
}

#[test]
fn advice_takes_no_page_from_anybody() {
    let config = Config { segments: vec![(Pa(0), 256)], ..Config::default() };
    let (desk, mut ctx) = (Desk::on(config, Answers::AtOnce, 10_000), ThreadCtx::new());
    let held = &mut ctx.held();
    desk.uvm.read_ahead(held, &desk.pager, 0..10_000);
    assert!(pages(&desk.disk.take_reads()) > 50);
    assert!(desk.uvm.frames().free() > desk.uvm.frames().low_water());
    desk.close(held, vec![]);
}

#[test]
fn only_clean_pages_that_nobody_uses_are_dropped() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 16), ThreadCtx::new());
    let held = &mut ctx.held();
    let space = desk.space(held);
    desk.uvm.read_ahead(held, &desk.pager, 0..16);
    let va = map(&desk, &space, 16, Sharing::Shared, Advice::Random);
    desk.load(&space, va).unwrap();
    let fill = |m: &SoftMachine, page| m.write(page, 0, &[9; machine::PAGE_SIZE]);
    desk.uvm.with_page(held, &desk.pager, Pages(5), Intent::Write, Access::PAGE, fill).unwrap();
    desk.disk.take_reads();
    desk.file.drop_clean(&desk.uvm, held, 0..10);
    // The first is mapped, the sixth dirty, those behind the tenth were not asked for.
    assert_eq!(desk.pager.object().resident(held), 1 + 1 + 6);
    assert_eq!((desk.load(&space, va), desk.load(&space, va + Pages(5))), (Ok(0), Ok(9)));
    assert_eq!(desk.disk.take_reads(), []);
    desk.close(held, vec![space]);
}

#[test]
fn private_copies_behind_the_end_of_a_shorter_file_are_forgotten_everywhere() {
    let (desk, mut ctx) = (Desk::new(Answers::AtOnce, 16), ThreadCtx::new());
    let held = &mut ctx.held();
    let parent = desk.space(held);
    let va = map(&desk, &parent, 16, Sharing::Private, Advice::Normal);
    (0..16).for_each(|n| desk.store(&parent, va + Pages(n), 7).unwrap());
    desk.uvm.wire(held, &parent, PageRange::new(va + Pages(12), va + Pages(16)).unwrap()).unwrap();
    let child = desk.uvm.fork(held, &parent).unwrap();
    desk.store(&child, va + Pages(9), 8).unwrap();
    let (stranger, place) = (desk.space(held), Place::FixedNoReplace(va));
    let all = PageRange::new(va, va + Pages(16)).unwrap();
    desk.uvm.pass_range(held, &parent, all, &stranger, place, Pass::Copy).unwrap();
    assert!(desk.pager.object().may_have_copies(held));
    desk.uvm.truncate(held, &desk.pager, Pages(9));
    for space in [&parent, &child, &stranger] {
        desk.uvm.forget_copies(held, space, &*desk.pager, Pages(9)).unwrap();
        for n in 0..16 {
            let ought = if n < 9 { Ok(7) } else { Err(FaultError::Bus) };
            assert_eq!(desk.load(space, va + Pages(n)), ought, "page {n}");
        }
    }
    // What is there again is the file's, not what was copied.
    desk.uvm.truncate(held, &desk.pager, Pages(16));
    assert_eq!(
        (desk.load(&parent, va + Pages(12)), desk.load(&child, va + Pages(9))),
        (Ok(12), Ok(9))
    );
    desk.close(held, vec![parent, child, stranger]);
}

/// A disk whose file has no room for any of its pages.
fn sparse(answers: Answers, len: u64) -> Desk {
    let desk = Desk::new(answers, len);
    desk.disk.state().holes.extend(0..len);
    desk
}

#[test]
fn a_store_to_a_hole_asks_the_file_for_room_once() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (sparse(answers, 16), ThreadCtx::new());
        let held = &mut ctx.held();
        let space = desk.space(held);
        let va = map(&desk, &space, 16, Sharing::Shared, Advice::Normal);
        let private = map(&desk, &space, 16, Sharing::Private, Advice::Normal);
        // Reading asks for none, nor does what is mapped along, what is wired, or a private copy.
        (0..16).for_each(|n| assert_eq!(desk.load(&space, va + Pages(n)), Ok(0)));
        desk.uvm.wire(held, &space, PageRange::new(va, va + Pages(2)).unwrap()).unwrap();
        desk.store(&space, private + Pages(5), 1).unwrap();
        assert!(desk.disk.state().asked.is_empty());
        let stored: Vec<u64> = (0..16).filter(|&n| n != 3).collect();
        for _ in 0..2 {
            stored.iter().for_each(|&n| desk.store(&space, va + Pages(n), 7).unwrap());
        }
        assert_eq!(desk.disk.state().asked, stored);
        desk.file.clean(&desk.uvm, held, 0..16).unwrap();
        assert!(desk.disk.take_writes().into_iter().flatten().eq(stored.iter().copied()));
        // A host that writes may have found room for a part of the page: a store asks all the same.
        let fill = |m: &SoftMachine, page| m.write(page, 0, &[3]);
        desk.uvm.with_page(held, &desk.pager, Pages(3), Intent::Write, Access::PAGE, fill).unwrap();
        (0..2).for_each(|_| desk.store(&space, va + Pages(3), 4).unwrap());
        assert_eq!(desk.disk.state().asked, [&stored[..], &[3]].concat());
        desk.file.clean(&desk.uvm, held, 0..16).unwrap();
        desk.close(held, vec![space]);
    }
}

#[test]
fn a_store_to_a_hole_that_others_punch_again_asks_until_there_is_room() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (sparse(answers, 4), ThreadCtx::new());
        let held = &mut ctx.held();
        desk.disk.state().punches = 9;
        let space = desk.space(held);
        let va = map(&desk, &space, 4, Sharing::Shared, Advice::Normal);
        desk.store(&space, va + Pages(2), 7).unwrap();
        assert_eq!(desk.disk.state().asked, [2; 10]);
        desk.file.clean(&desk.uvm, held, 0..4).unwrap();
        assert!(desk.disk.take_writes().into_iter().flatten().eq([2]));
        desk.close(held, vec![space]);
    }
}

#[test]
fn a_page_that_becomes_a_hole_asks_at_the_next_store() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (Desk::new(answers, 4), ThreadCtx::new());
        let held = &mut ctx.held();
        let space = desk.space(held);
        let va = map(&desk, &space, 4, Sharing::Shared, Advice::Normal);
        (0..2).for_each(|n| desk.store(&space, va + Pages(n), 7).unwrap());
        desk.disk.state().holes.extend([0, 3]);
        // The one that isn't there is found out when it is read.
        [0, 3].into_iter().for_each(|n| desk.file.mark_hole(&desk.uvm, held, Pages(n)));
        assert_eq!(desk.load(&space, va), Ok(7), "what it holds stays");
        (0..2).for_each(|n| desk.store(&space, va + Pages(n), 8).unwrap());
        assert_eq!(desk.disk.state().asked, [0]);
        desk.store(&space, va + Pages(3), 8).unwrap();
        assert_eq!(desk.disk.state().asked, [0, 3]);
        desk.file.clean(&desk.uvm, held, 0..4).unwrap();
        desk.close(held, vec![space]);
    }
}

#[test]
fn pages_that_the_file_got_past_them_are_read_again() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (Desk::new(answers, 8), ThreadCtx::new());
        let held = &mut ctx.held();
        let space = desk.space(held);
        let va = map(&desk, &space, 8, Sharing::Shared, Advice::Normal);
        (0..8).for_each(|n| assert_eq!(desk.load(&space, va + Pages(n)), Ok(n as u8)));
        desk.disk.state().written.extend((0..8).map(|n| (n, 90 + n as u8)));
        // What was stored is not thrown away, nor what a program uses.
        desk.store(&space, va + Pages(2), 7).unwrap();
        assert!(!desk.file.invalidate(&desk.uvm, held, 0..4));
        assert!(desk.file.invalidate(&desk.uvm, held, 3..5));
        let pinned = desk
            .uvm
            .wire_pages(
                held,
                &space,
                PageRange::new(va + Pages(6), va + Pages(7)).unwrap(),
                Prot::READ,
            )
            .unwrap();
        assert!(!desk.file.invalidate(&desk.uvm, held, 5..8));
        desk.uvm.unwire_pages(held, pinned).unwrap();
        let seen: Vec<u8> = (0..8).map(|n| desk.load(&space, va + Pages(n)).unwrap()).collect();
        assert_eq!(seen, [90, 91, 7, 93, 94, 95, 6, 7]);
        desk.file.clean(&desk.uvm, held, 0..8).unwrap();
        assert!(
            desk.file.invalidate(&desk.uvm, held, 0..8)
                && desk.load(&space, va + Pages(6)) == Ok(96)
        );
        desk.close(held, vec![space]);
    }
}

#[test]
fn a_store_to_a_hole_of_a_full_file_system_is_refused_and_dirties_nothing() {
    for answers in [Answers::AtOnce, Answers::Later] {
        let (desk, mut ctx) = (sparse(answers, 16), ThreadCtx::new());
        let held = &mut ctx.held();
        desk.disk.state().holes.remove(&4);
        desk.disk.state().full = true;
        let space = desk.space(held);
        let va = map(&desk, &space, 16, Sharing::Shared, Advice::Normal);
        assert_eq!(desk.store(&space, va + Pages(2), 1), Err(FaultError::NoSpace));
        assert_eq!(
            (desk.load(&space, va + Pages(2)), desk.store(&space, va + Pages(4), 1)),
            (Ok(0), Ok(()))
        );
        assert_eq!(desk.store(&space, va + Pages(2), 1), Err(FaultError::NoSpace));
        // What was loaned before is no way round it.
        let loan = desk
            .uvm
            .loan_to_kernel(held, &space, PageRange::new(va, va + Pages(3)).unwrap())
            .unwrap();
        assert_eq!(desk.store(&space, va + Pages(1), 1), Err(FaultError::NoSpace));
        desk.uvm.return_loan(held, loan).unwrap();
        desk.file.clean(&desk.uvm, held, 0..16).unwrap();
        let writes = || desk.disk.take_writes().into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(writes(), [4]);
        desk.disk.state().full = false;
        desk.store(&space, va + Pages(2), 1).unwrap();
        desk.file.clean(&desk.uvm, held, 0..16).unwrap();
        assert_eq!(writes(), [2]);
        desk.close(held, vec![space]);
    }
}
