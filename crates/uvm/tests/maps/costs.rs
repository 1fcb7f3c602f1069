//! What is kept and done for each thing: bytes, locks, entries; never seconds.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Machine, PageRange, Pages, Prot, ThreadCtx, Va};
use uvm::page::Reserve;
use uvm::{Counter, Inherit, MapError, MapRequest, Pass, RemapPlace, Space};
use uvm_soft::within_reservation;

use crate::count::{heap, locks};
use crate::world::{audit, end, entries, load, part, space, store, world, zeroes, Soft, World};

/// Makes the machine's memory, which it makes as it is touched, so that it is not counted later.
fn touch_all_frames(uvm: &World, held: &mut Held<'_, Nothing>) {
    let (machine, frames) = (uvm.machine(), uvm.frames());
    let all: Vec<_> =
        std::iter::from_fn(|| frames.alloc(machine, held, Reserve::Pageout).ok()).collect();
    assert_eq!(all.len(), frames.total());
    all.iter().for_each(|&page| machine.zero(page));
    all.into_iter().for_each(|page| frames.free_page(machine, held, page));
}

#[test]
fn a_sparse_terabyte_costs_by_what_was_touched() {
    const TOUCHED: u64 = 1000;
    let (uvm, mut ctx) = (world(2048), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    touch_all_frames(&uvm, held);
    let before = heap();
    let range = zeroes(&uvm, held, &s, 1 << 28);
    assert_eq!(range.pages(), Pages(1 << 28));
    // Places far from one another, each in a leaf of its own.
    let places = |n: u64| range.start + Pages(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36);
    (0..TOUCHED).for_each(|n| store(&uvm, &s, places(n), n as u8).unwrap());
    assert_eq!(uvm.anons(), TOUCHED as usize);
    // The software MMU's tables are the port's, not the library's.
    uvm.machine().pmap().forget_all();
    let used = heap() - before;
    println!("{used} bytes for {TOUCHED} pages of a tebibyte, {} each", used / TOUCHED as isize);
    assert!(used < 1 << 20, "{used} bytes");
    // A child costs by its amap's branches while it copies nothing, and nothing once it is gone.
    let before = heap();
    let child = uvm.fork(held, &s).unwrap();
    store(&uvm, &child, places(1), 7).unwrap();
    uvm.machine().pmap().forget_all();
    assert!(heap() - before < 1 << 20, "{} bytes for a child", heap() - before);
    assert_eq!((load(&uvm, &s, places(1)), uvm.anons()), (Ok(1), TOUCHED as usize + 1));
    uvm.space_destroy(held, child);
    assert_eq!(uvm.anons(), TOUCHED as usize);
    // Unmapping all but the last page frees all that lies there, at once.
    uvm.unmap(held, &s, part(range, 0..(1 << 28) - 1)).unwrap();
    assert!(uvm.anons() <= 1);
    end(&uvm, held, [s]);
}

// Small leaves have steps of few translations, each with a lock of its own.
#[cfg(not(feature = "__small-leaves"))]
#[test]
fn a_fork_costs_by_entries_and_not_by_pages() {
    let (uvm, mut ctx) = (world(8192), ThreadCtx::new());
    let held = &mut ctx.held();
    let cost = |held: &mut _, pages: u64, pieces: u64| {
        let s = space(&uvm, held);
        for piece in 0..pieces {
            let at = Va(0x1000_0000 + piece * 0x1000_0000);
            let va = uvm.map(held, &s, &MapRequest::zero(Pages(pages)).at(at)).unwrap();
            (0..pages).for_each(|n| store(&uvm, &s, va + Pages(n), 1).unwrap());
        }
        let before = locks();
        let child = uvm.fork(held, &s).unwrap();
        let forked = locks() - before;
        assert_eq!(uvm.anons(), (pages * pieces) as usize);
        [child, s].into_iter().for_each(|s| uvm.space_destroy(held, s));
        forked
    };
    let few = cost(held, 4, 1);
    assert_eq!(cost(held, 4096, 1), few, "a thousand times the pages take no lock more");
    let many = cost(held, 4, 32);
    let each = (many - few).div_ceil(31);
    assert!(each <= 6 && many <= few + 31 * each, "{few} locks for one entry, {many} for 32");
    assert_eq!(
        (uvm.stat().get(Counter::FaultsAnonCopied), uvm.stat().get(Counter::AmapCopies)),
        (0, 0)
    );
}

#[test]
fn a_tally_divides_what_is_shared_by_those_who_have_it() {
    const PAGES: u64 = 240;
    let (uvm, mut ctx) = (world(2048), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, PAGES);
    (0..PAGES).for_each(|n| store(&uvm, &s, range.start + Pages(n), 1).unwrap());
    let alone = uvm.range_stats(held, &s, range);
    assert_eq!(
        (alone.anonymous as u64, alone.anonymous_share as u64),
        (PAGES, range.pages().bytes())
    );
    let in_part = |held: &mut _, pages| uvm.anonymous_in(held, &s, part(range, pages));
    assert_eq!((in_part(held, 3..200), in_part(held, 0..240)), (197, 240));
    // Entries that refer to one amap: its leaves count once, not for each.
    for n in (0..PAGES).step_by(2) {
        uvm.protect(held, &s, part(range, n..n + 1), Prot::READ).unwrap();
    }
    let cut = uvm.range_stats(held, &s, range);
    let each = (cut.heap - alone.heap) as u64 / (PAGES - 1);
    assert!(each < 400, "{each} bytes for each new entry");
    assert_eq!((cut.anonymous, cut.anonymous_share), (alone.anonymous, alone.anonymous_share));
    // Children that share the amap, its leaves, and its pages.
    let mut all: Vec<_> = (0..7).map(|_| uvm.fork(held, &s).unwrap()).collect();
    all.push(s);
    for (n, child) in all[..4].iter().enumerate() {
        store(&uvm, child, range.start + Pages(1 + 2 * n as u64), 2).unwrap();
    }
    let tallies: Vec<_> = all.iter().map(|s| uvm.range_stats(held, s, range)).collect();
    assert!(tallies.iter().all(|range_stats| range_stats.anonymous as u64 == PAGES));
    let sum: usize = tallies.iter().map(|range_stats| range_stats.anonymous_share).sum();
    let pages = uvm.anons() * machine::PAGE_SIZE;
    // Each share is rounded down to a byte.
    assert!(sum <= pages && sum + PAGES as usize * 8 >= pages, "{sum} of {pages} bytes");
    end(&uvm, held, all);
}

// Small leaves end runs sooner.
#[cfg(not(feature = "__small-leaves"))]
#[test]
fn first_touches_upwards_are_answered_sixteen_at_a_time() {
    let (uvm, mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let mut seen = 0;
    let mut touch = |range: PageRange, pages: &mut dyn Iterator<Item = u64>| {
        pages.for_each(|n| store(&uvm, &s, range.start + Pages(n), 1 + n as u8).unwrap());
        let before = seen;
        seen = uvm.stat().get(Counter::FaultsZero);
        seen - before
    };
    // In windows: 0, 1, 3, 7, 15, and then one of sixteen each.
    let at = |va: u64, pages| {
        let start = uvm
            .map(&mut ThreadCtx::new().held(), &s, &MapRequest::zero(Pages(pages)).at(Va(va)))
            .unwrap();
        PageRange::new(start, start + Pages(pages)).unwrap()
    };
    let up = at(0x40_0000, 64);
    assert_eq!((touch(up, &mut (0..64)), uvm.anons()), (8, 64));
    up.iter_pages().zip(1..).for_each(|(va, byte)| assert_eq!(load(&uvm, &s, va), Ok(byte)));
    // At most half of what is there was made for nothing, and nothing where the mapping ends.
    let few = at(0x80_0000, 64);
    assert_eq!((touch(few, &mut (0..4)), uvm.anons()), (3, 64 + 7));
    (4..7).for_each(|n| assert_eq!(load(&uvm, &s, few.start + Pages(n)), Ok(0)));
    let short = at(0xc0_0000, 5);
    assert_eq!((touch(short, &mut (0..5)), uvm.anons()), (3, 64 + 7 + 5));
    // Downwards, with gaps, where advice says that there is no order, or to read: as many as are
    // touched.
    let before = uvm.anons();
    assert_eq!(touch(at(0x100_0000, 64), &mut (0..64).rev()), 64);
    assert_eq!(touch(at(0x140_0000, 64), &mut (0..64).step_by(2)), 32);
    let random = at(0x180_0000, 64);
    uvm.advise(held, &s, random, uvm::Advice::Random).unwrap();
    assert_eq!((touch(random, &mut (0..64)), uvm.anons()), (64, before + 64 + 32 + 64));
    let read = at(0x1c0_0000, 4);
    read.iter_pages().for_each(|va| assert_eq!(load(&uvm, &s, va), Ok(0)));
    audit(&uvm, held, &[&s], &[]);
    assert_eq!(uvm.anons(), before + 64 + 32 + 64 + 4);
    end(&uvm, held, [s]);
}

#[test]
fn no_run_takes_what_is_short() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 256);
    let mut touched = 0;
    for va in range.iter_pages() {
        let plentiful = uvm.frames().is_plentiful();
        let before = uvm.anons();
        if store(&uvm, &s, va, 1).is_err() {
            break;
        }
        touched += 1;
        assert!(plentiful || uvm.anons() <= before + 1, "{touched}");
    }
    assert!(touched > 200, "{touched}");
    end(&uvm, held, [s]);
}

#[test]
fn the_first_write_after_a_fork_copies_a_leaf_and_a_page() {
    const PAGES: u64 = 4096;
    let (uvm, mut ctx) = (world(8192), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, PAGES);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 1).unwrap());
    let child = uvm.fork(held, &s).unwrap();
    let before = locks();
    store(&uvm, &child, range.start, 2).unwrap();
    let taken = locks() - before;
    assert!(taken < 64 + 32, "{taken} locks: a leaf has 64 anons, the amap {PAGES}");
    assert_eq!((uvm.stat().get(Counter::FaultsAnonCopied), uvm.anons()), (1, PAGES as usize + 1));
    end(&uvm, held, [child, s]);
}

/// A space with eight pages that hold a one, and the first two of them.
fn with_ones(uvm: &World, held: &mut Held<'_, Nothing>) -> (Space<Soft>, Va, Va) {
    let s = space(uvm, held);
    let range = zeroes(uvm, held, &s, 8);
    range.iter_pages().for_each(|va| store(uvm, &s, va, 1).unwrap());
    (s, range.start, range.start + Pages(1))
}

#[test]
fn what_is_rewritten_after_each_fork_is_copied_by_the_fork() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (s, hot, cold) = with_ones(&uvm, held);
    let count = |counter| uvm.stat().get(counter);
    let shares = |held: &mut _, child: &_| entries(&uvm, held, child)[0].layers.needs_copy;
    // No hint knows of the first: the parent's store copies the amap and the page.
    let child = uvm.fork(held, &s).unwrap();
    assert!(shares(held, &child));
    store(&uvm, &s, hot, 2).unwrap();
    assert_eq!((count(Counter::AmapCopies), count(Counter::FaultsAnonCopied)), (1, 1));
    uvm.space_destroy(held, child);
    // The second child has both of its own from the start, mapped, and no store faults.
    let child = uvm.fork(held, &s).unwrap();
    assert!(!shares(held, &child) && !shares(held, &s));
    let faults = count(Counter::Faults);
    store(&uvm, &s, hot, 3).unwrap();
    store(&uvm, &child, hot, 4).unwrap();
    assert_eq!(count(Counter::Faults), faults);
    assert_eq!((load(&uvm, &s, hot), load(&uvm, &child, hot)), (Ok(3), Ok(4)));
    // The rest they share as ever.
    assert_eq!(
        (count(Counter::CopiedAtFork), uvm.anons(), load(&uvm, &child, cold)),
        (1, 9, Ok(1))
    );
    store(&uvm, &child, cold, 5).unwrap();
    assert_eq!((count(Counter::FaultsAnonCopied), load(&uvm, &s, cold)), (2, Ok(1)));
    audit(&uvm, held, &[&s, &child], &[]);
    end(&uvm, held, [child, s]);
}

#[test]
fn what_each_child_rewrites_is_copied_by_the_fork_too() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (s, hot, cold) = with_ones(&uvm, held);
    let count = |counter| uvm.stat().get(counter);
    let child = uvm.fork(held, &s).unwrap();
    store(&uvm, &child, hot, 2).unwrap();
    assert_eq!((count(Counter::AmapCopies), count(Counter::FaultsAnonCopied)), (1, 1));
    uvm.space_destroy(held, child);
    // The parent has stored nothing since, and its entry still waits to copy.
    assert!(entries(&uvm, held, &s)[0].layers.needs_copy);
    let child = uvm.fork(held, &s).unwrap();
    let needs_copy = |held: &mut _, s: &_| entries(&uvm, held, s)[0].layers.needs_copy;
    assert!(!needs_copy(held, &s) && !needs_copy(held, &child));
    let faults = count(Counter::Faults);
    store(&uvm, &child, hot, 3).unwrap();
    assert_eq!((count(Counter::Faults), count(Counter::CopiedAtFork), uvm.anons()), (faults, 1, 9));
    assert_eq!(
        (load(&uvm, &s, hot), load(&uvm, &child, hot), load(&uvm, &child, cold)),
        (Ok(1), Ok(3), Ok(1))
    );
    audit(&uvm, held, &[&s, &child], &[]);
    end(&uvm, held, [child, s]);
}

#[test]
fn what_is_rewritten_no_more_is_shared_again() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let (s, hot, _) = with_ones(&uvm, held);
    let forks = |held: &mut Held<'_, _>, n| {
        for _ in 0..n {
            let child = uvm.fork(held, &s).unwrap();
            uvm.space_destroy(held, child);
        }
    };
    let child = uvm.fork(held, &s).unwrap();
    store(&uvm, &s, hot, 2).unwrap();
    uvm.space_destroy(held, child);
    forks(held, 1000);
    let copied = uvm.stat().get(Counter::CopiedAtFork);
    assert!((1..300).contains(&copied), "{copied} pages were copied for nothing");
    let child = uvm.fork(held, &s).unwrap();
    assert!(entries(&uvm, held, &child)[0].layers.needs_copy);
    // And what is rewritten again is learned again.
    store(&uvm, &s, hot, 3).unwrap();
    uvm.space_destroy(held, child);
    forks(held, 1);
    assert_eq!(uvm.stat().get(Counter::CopiedAtFork), copied + 1);
    end(&uvm, held, [s]);
}

#[test]
fn a_fork_copies_few_pages_itself_and_none_where_memory_is_short() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 64);
    let write = |n| range.iter_pages().for_each(|va| store(&uvm, &s, va, n).unwrap());
    write(1);
    let child = uvm.fork(held, &s).unwrap();
    write(2);
    uvm.space_destroy(held, child);
    let child = uvm.fork(held, &s).unwrap();
    let copied = uvm.stat().get(Counter::CopiedAtFork);
    assert!((1..=16).contains(&copied), "{copied}");
    uvm.space_destroy(held, child);
    let mut taken = Vec::new();
    while uvm.frames().is_plentiful() {
        taken.push(uvm.frames().alloc(uvm.machine(), held, Reserve::User).unwrap());
    }
    let child = uvm.fork(held, &s).unwrap();
    assert_eq!(uvm.stat().get(Counter::CopiedAtFork), copied);
    taken.into_iter().for_each(|page| uvm.frames().free_page(uvm.machine(), held, page));
    // That one shares what the next gets copies of: it isn't the parent's alone then.
    let next = uvm.fork(held, &s).unwrap();
    assert!(uvm.stat().get(Counter::CopiedAtFork) > copied);
    write(3);
    assert_eq!((load(&uvm, &child, range.start), load(&uvm, &next, range.start)), (Ok(2), Ok(2)));
    audit(&uvm, held, &[&s, &child, &next], &[]);
    end(&uvm, held, [next, child, s]);
}

#[test]
fn a_page_with_one_reference_is_reassigned_and_not_copied() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 64);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 1).unwrap());
    let copied = || uvm.stat().get(Counter::FaultsAnonCopied);
    // The child ends: the parent's stores copy nothing.
    let child = uvm.fork(held, &s).unwrap();
    uvm.space_destroy(held, child);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 2).unwrap());
    assert_eq!(copied(), 0);
    // The parent ends: so do the child's.
    let child = uvm.fork(held, &s).unwrap();
    uvm.space_destroy(held, s);
    range.iter_pages().for_each(|va| store(&uvm, &child, va, 3).unwrap());
    assert_eq!((copied(), uvm.anons()), (0, 64));
    // Both write the same page: one of the two copies, the other has it.
    let second = uvm.fork(held, &child).unwrap();
    for va in range.iter_pages() {
        store(&uvm, &child, va, 4).unwrap();
        store(&uvm, &second, va, 5).unwrap();
    }
    assert_eq!((copied(), uvm.anons()), (64, 128));
    audit(&uvm, held, &[&child, &second], &[]);
    end(&uvm, held, [child, second]);
}

#[test]
fn a_partial_unmap_frees_at_once_what_nobody_else_has() {
    let (uvm, mut ctx) = (world(512), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let range = zeroes(&uvm, held, &s, 128);
    range.iter_pages().for_each(|va| store(&uvm, &s, va, 1).unwrap());
    let free = uvm.frames().free();
    uvm.unmap(held, &s, part(range, 10..20)).unwrap();
    assert_eq!((uvm.anons(), uvm.frames().free()), (118, free + 10));
    // While a child has them they stay; they go with its unmapping, not with its end.
    let child = uvm.fork(held, &s).unwrap();
    uvm.unmap(held, &s, part(range, 30..100)).unwrap();
    assert_eq!((uvm.anons(), uvm.frames().free()), (118, free + 10));
    uvm.unmap(held, &child, part(range, 35..95)).unwrap();
    assert_eq!((uvm.anons(), uvm.frames().free()), (58, free + 70));
    // Memory shared by inheritance: the same.
    uvm.inherit(held, &s, part(range, 0..10), Inherit::Share).unwrap();
    let second = uvm.fork(held, &s).unwrap();
    uvm.unmap(held, &second, part(range, 0..5)).unwrap();
    uvm.space_destroy(held, child);
    assert_eq!(uvm.anons(), 10 + 10 + 28);
    uvm.unmap(held, &s, part(range, 0..5)).unwrap();
    assert_eq!(uvm.anons(), 5 + 10 + 28);
    audit(&uvm, held, &[&s, &second], &[]);
    end(&uvm, held, [s, second]);
}

/// Nodes of four entries make a tree so high that calls reserve heap twice.
#[test]
#[cfg(not(feature = "__small-leaves"))]
fn calls_take_the_same_locks_among_a_hundred_thousand_entries() {
    let (uvm, mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let work = |held: &mut _, at: Va| {
        let before = locks();
        let va = uvm.map(held, &s, &MapRequest::zero(Pages(4)).at(at)).unwrap();
        store(&uvm, &s, va, 1).unwrap();
        uvm.inherit(held, &s, PageRange::new(va, va + Pages(1)).unwrap(), Inherit::None).unwrap();
        uvm.unmap(held, &s, PageRange::new(va, va + Pages(4)).unwrap()).unwrap();
        locks() - before
    };
    // As there: what is mapped grows together with what lies behind it.
    uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(Va(0x1010_0000) + Pages(4))).unwrap();
    work(held, Va(0x1000_0000)); // The first finds no page in the CPU's cache.
    let few = work(held, Va(0x1010_0000));
    for n in 0..100_000u64 {
        uvm.map(held, &s, &MapRequest::zero(Pages(1)).at(Va(0x1_0000_0000) + Pages(n * 4)))
            .unwrap();
    }
    assert_eq!(s.map().entries(held), 1 + 100_000);
    assert_eq!(work(held, Va(0x1_0000_0000) + Pages(4 * 50_000 + 8)), few);
    assert_eq!(entries(&uvm, held, &s).len(), 100_000);
    uvm.space_destroy(held, s);
}

/// A swap device that is never written.
struct Empty(u32);

impl uvm::SwapDevice<Soft> for Empty {
    fn slots(&self) -> u32 {
        self.0
    }

    fn read(
        &self,
        _: &Soft,
        _: &mut machine::Held<'_, machine::order::Nothing>,
        _: u32,
        _: &[machine::PageNo],
    ) -> uvm::Transfer {
        uvm::Transfer::Failed
    }

    fn write(
        &self,
        _: &Soft,
        _: &mut machine::Held<'_, machine::order::Nothing>,
        _: u32,
        _: &[machine::PageNo],
    ) -> uvm::Transfer {
        uvm::Transfer::Failed
    }
}

/// However many entries a range has, and however large memory and a device are.
#[test]
fn nothing_is_allocated_unreserved_or_in_large_pieces() {
    const ENTRIES: u64 = 4000;
    let (uvm, mut ctx) = (world(1 << 18), ThreadCtx::new());
    let held = &mut ctx.held();
    let s = space(&uvm, held);
    let all = PageRange::new(Va(0x1_0000_0000), Va(0x1_0000_0000) + Pages(ENTRIES)).unwrap();
    let entry = |n: u64| {
        let prot = if n.is_multiple_of(2) { Prot::NONE } else { Prot::READ_WRITE };
        MapRequest::zero(Pages(1)).prot(prot).at(all.start + Pages(n))
    };
    let moved = Va(0x2_0000_0000);
    let all_moved = PageRange::new(moved, moved + Pages(ENTRIES)).unwrap();
    within_reservation(|| (0..ENTRIES).for_each(|n| assert!(uvm.map(held, &s, &entry(n)).is_ok())));
    within_reservation(|| uvm.wire_as_touched(held, &s, all).unwrap());
    within_reservation(|| uvm.unwire(held, &s, all).unwrap());
    within_reservation(|| {
        let child = uvm.fork(held, &s).unwrap();
        assert_eq!(uvm.extract(held, &s, all, Pass::Copy).err(), Some(MapError::TooMany));
        let most = PageRange::new(all.start, all.start + Pages(uvm::MOST_ENTRIES as u64)).unwrap();
        let copy = uvm.extract(held, &s, most, Pass::Copy).unwrap();
        uvm.drop_detached(held, copy);
        uvm.space_destroy(held, child);
    });
    within_reservation(|| {
        let to = RemapPlace::Fixed(moved);
        assert_eq!(uvm.remap(held, &s, all, Pages(ENTRIES), to), Ok(moved));
    });
    within_reservation(|| {
        assert_eq!(uvm.remap_and_keep(held, &s, all_moved, Some(all.start)), Ok(all.start))
    });
    within_reservation(|| uvm.unmap(held, &s, all_moved).unwrap());
    let device = Arc::new(Empty(1 << 20));
    within_reservation(|| assert!(uvm.swap_on(held, device, 0).is_ok()));
    let mut zram = None;
    within_reservation(|| uvm_zram::Zram::set_share(&uvm, held, &mut zram, 50).unwrap());
    audit(&uvm, held, &[&s], &[]);
    uvm.space_destroy(held, s);
}
