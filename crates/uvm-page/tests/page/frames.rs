//! Page frames and queues (`uvm::page`), by behaviour, on a software machine.

use machine::order::{Held, Nothing};
use machine::{Channel, Machine, Pa, PageNo, ThreadCtx};
use uvm::page::{Frames, Owner, Reserve, Unmapped};
use uvm::page::{Gather, PageFlags, Place, Queue};
use uvm_soft::{Config, SoftMachine};

/// Bytes of a page.
const PAGE: u64 = machine::PAGE_SIZE as u64;

fn machine(segments: &[(Pa, u32)]) -> SoftMachine {
    SoftMachine::new(Config { segments: segments.to_vec(), cpus: 2, ..Config::default() })
}

fn small() -> SoftMachine {
    machine(&[(Pa(0x10_0000), 200)])
}

fn alloc(m: &SoftMachine, h: &mut Held<'_, Nothing>) -> PageNo {
    m.frames().alloc(m, h, Reserve::User).expect("a page is free")
}

fn take_all(m: &SoftMachine, h: &mut Held<'_, Nothing>, reserve: Reserve) -> Vec<PageNo> {
    std::iter::from_fn(|| m.frames().alloc(m, h, reserve).ok()).collect()
}

#[test]
fn a_page_has_its_address_in_its_segment() {
    let m = machine(&[(Pa(0x10_0000), 8), (Pa(PAGE), 4)]);
    let f = m.frames();
    assert_eq!(
        (f.pa(PageNo(0)), f.pa(PageNo(7)), f.pa(PageNo(8))),
        (Pa(0x10_0000), Pa(0x10_0000 + 7 * PAGE), Pa(PAGE))
    );
    for no in 0..12 {
        assert_eq!(f.page_at(f.pa(PageNo(no))), Some(PageNo(no)));
    }
    assert_eq!(
        (f.page_at(Pa(PAGE - 1)), f.page_at(Pa(5 * PAGE)), f.page_at(Pa(0x10_0000 + 8 * PAGE))),
        (None, None, None)
    );
    assert_eq!(f.page_at(Pa(0x10_0123)), Some(PageNo(0)));
}

#[test]
fn memory_that_came_loaded_is_free_once_it_is_freed() {
    let m = small();
    let (plain, loaded, device) =
        ([(Pa(0x10_0000), 64)], [(Pa(0x40_0000), 8)], [(Pa(0x80_0000), 2)]);
    let frames = Frames::<SoftMachine>::with(&plain, &loaded, &device, 1).expect("there is heap");
    let (mut ctx, first) = (ThreadCtx::new(), frames.page_at(Pa(0x40_0000)).expect("it is memory"));
    let mut h = ctx.held();
    assert_eq!((frames.total(), frames.free(), frames.numbers()), (72, 64, 74));
    assert!(!frames.is_device(first) && frames.owner(first) == Owner::Kernel);
    for n in 0..8 {
        let_go(&frames, PageNo(first.0 + n));
        frames.free_page(&m, &mut h, PageNo(first.0 + n));
        assert_eq!(frames.free(), 65 + n as usize);
    }
    frames.audit(&mut h).expect("all lists are whole");
    let taken: Vec<_> =
        std::iter::from_fn(|| frames.alloc(&m, &mut h, Reserve::Pageout).ok()).collect();
    assert_eq!(taken.len(), 72);
    assert!(taken.contains(&first), "it can be had again");
}

#[expect(unsafe_code, reason = "what was kept in the page is gone")]
fn let_go(frames: &Frames<SoftMachine>, page: PageNo) {
    // SAFETY: nothing lies in it.
    unsafe { frames.release_own(page) }
}

/// What each safe function says that is asked for a page of this number.
fn refused_by(m: &SoftMachine, page: PageNo, other: PageNo) -> Vec<&'static str> {
    let panics =
        |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    let free = || m.frames().free_page(m, &mut ThreadCtx::new().held(), page);
    let tries: [(&str, &dyn Fn()); 7] = [
        ("zero", &|| m.zero(page)),
        ("copy from", &|| m.copy(page, other)),
        ("copy to", &|| m.copy(other, page)),
        ("read", &|| m.read(page, 0, &mut [0])),
        ("write", &|| m.write(page, 0, &[0])),
        ("map", &|| assert_eq!(m.frames().bytes_at(page), m.frames().pa(page))),
        ("free", &free),
    ];
    tries.iter().filter(|(_, act)| panics(act)).map(|(name, _)| *name).collect()
}

#[test]
fn a_number_reaches_no_page_that_is_free_or_the_hosts_own() {
    const ALL: [&str; 7] = ["zero", "copy from", "copy to", "read", "write", "map", "free"];
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let (page, other) = (alloc(&m, h), alloc(&m, h));
    m.frames().keep(page);
    assert_eq!(refused_by(&m, page, other), ALL, "the host's own");
    let_go(m.frames(), page);
    assert_eq!(refused_by(&m, page, other), [""; 0], "it has an owner, until it is freed last");
    assert_eq!(refused_by(&m, page, other), ALL, "free");
    assert_eq!(refused_by(&m, PageNo(200), other), ALL, "none");
    m.frames().activate(&m, h, other);
    assert_eq!(refused_by(&m, other, alloc(&m, h)), ["free"], "on a queue");
}

#[test]
fn only_a_page_on_no_list_is_kept() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().activate(&m, h, page);
    let keep = || m.frames().keep(page);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(keep)).is_err());
    assert_eq!(m.frames().place(page), Place::Pending);
}

#[test]
fn a_new_page_is_nobody_elses_and_clean_of_state() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().set_owner(page, Owner::Anon(7), 3);
    m.frames().set_flags(page, PageFlags::CLEAN);
    m.frames().free_page(&m, h, page);
    assert_eq!(m.frames().owner(page), Owner::Free);
    let again = alloc(&m, h);
    assert_eq!(again, page, "the page freed last is the warmest");
    assert_eq!(m.frames().owner(page), Owner::Kernel);
    assert_eq!((m.frames().flags(page), m.frames().hold_count(page)), (PageFlags::empty(), 0));
    assert_eq!(m.frames().place(page), Place::Nowhere);
}

#[test]
fn users_leave_the_reserves_and_the_page_daemon_takes_the_last_page() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let user = take_all(&m, h, Reserve::User).len();
    let kernel = take_all(&m, h, Reserve::Kernel).len();
    let last = take_all(&m, h, Reserve::Pageout).len();
    assert_eq!((user, kernel, last, m.frames().free()), (196, 2, 2, 0));
}

#[test]
fn a_thread_that_is_being_ended_takes_of_the_kernels_reserve() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    assert_eq!(take_all(&m, h, Reserve::User).len(), 196);
    m.end_thread(1);
    assert_eq!(take_all(&m, h, Reserve::User).len(), 0, "another one is being ended");
    m.end_thread(0);
    assert_eq!(take_all(&m, h, Reserve::User).len(), 2);
    assert_eq!((take_all(&m, h, Reserve::Kernel).len(), m.frames().free()), (0, 2));
}

#[test]
fn marks_and_reserves_grow_with_memory_up_to_a_bound() {
    // Frames, those that the kernel's reserve is, and both marks.
    for (frames, users, low, high) in
        [(200, 4, 8, 16), (20_480, 80, 400, 1040), (256 * 1024, 128, 128 + 2048, 128 + 3 * 2048)]
    {
        let f = Frames::<SoftMachine>::new(&[(Pa(0), frames)], 1).expect("there is heap");
        assert_eq!(f.for_users(), (frames - users) as usize);
        assert_eq!((f.low_water(), f.high_water()), (low, high));
        f.set_water_marks(low + 7, low + 9);
        assert_eq!((f.low_water(), f.high_water()), (low + 7, low + 9));
        f.set_water_marks(0, 0);
        let least = users as usize + 1;
        assert_eq!((f.low_water(), f.high_water()), (least, least));
    }
}

#[test]
fn the_page_daemon_is_woken_below_its_mark_and_not_above() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    let ticket = || m.ticket(Channel::PAGE_DAEMON);
    // A cache takes 32 at once, of 200.
    for (many, left, below) in [(1, 168, 0), (1, 168, 1), (40, 160, 0), (40, 160, 1)] {
        f.set_water_marks(left + below, left + below);
        let before = ticket();
        let mut pages = Vec::new();
        f.alloc_many(&m, h, Reserve::User, many, |page| pages.push(page)).expect("most is free");
        assert_eq!(ticket() != before, below == 1, "{many} taken");
        for mark in left - 1..=left + 1 {
            f.set_water_marks(mark, mark);
            assert_eq!(f.is_plentiful(), mark < left);
        }
        pages.into_iter().for_each(|page| f.free_page(&m, h, page));
        f.drain_caches(h);
    }
}

fn in_caches(m: &SoftMachine) -> usize {
    (0..m.frames().total())
        .filter(|&no| m.frames().place(PageNo(no as u32)) == Place::Cached)
        .count()
}

#[test]
fn runs_of_pages_pass_the_cache_by() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    for count in [31, 32, 33] {
        f.drain_caches(h);
        let cached = alloc(&m, h);
        f.drain_caches(h);
        f.free_page(&m, h, cached);
        let mut pages = Vec::new();
        f.alloc_many(&m, h, Reserve::User, count, |page| pages.push(page)).expect("most is free");
        assert_eq!((pages.len(), pages.contains(&cached)), (count, count < 32));
        f.drain_caches(h);
        let mut down = Gather::new();
        pages.into_iter().for_each(|page| f.release(h, Unmapped::by_ranges(page), &mut down));
        down.perform(m.frames(), &m, h);
        assert_eq!(in_caches(&m), if count <= 32 { count } else { 0 });
        f.audit(h).unwrap();
    }
}

#[test]
fn reserves_are_refilled_from_caches_when_the_free_list_is_short() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    let mut pages = take_all(&m, h, Reserve::Pageout);
    // So many on the free list, and one in the cache.
    for (listed, is_enough) in [(3, false), (4, true), (5, true)] {
        pages.drain(..listed).for_each(|page| f.free_page(&m, h, page));
        f.drain_caches(h);
        f.free_page(&m, h, pages.pop().expect("there are many"));
        f.refill_reserves(h);
        assert_eq!(in_caches(&m), usize::from(is_enough), "{listed}");
        pages.extend(take_all(&m, h, Reserve::Pageout));
    }
}

#[test]
fn segments_are_told_in_their_order() {
    let m = small();
    let (plain, device) = ([(Pa(0x10_0000), 4), (Pa(PAGE), 2)], [(Pa(0x80_0000), 3)]);
    let f = Frames::<SoftMachine>::with(&plain, &[], &device, 2).expect("there is heap");
    let told: Vec<_> = f.segments().iter().map(|s| (s.start, s.pages, s.first)).collect();
    let all =
        [(Pa(0x10_0000), 4, PageNo(0)), (Pa(PAGE), 2, PageNo(4)), (Pa(0x80_0000), 3, PageNo(6))];
    assert_eq!((&told[..], f.total(), f.numbers(), f.cpus()), (&all[..], 6, 9, 2));
    assert_eq!((f.pa(PageNo(8)), m.frames().cpus()), (Pa(0x80_0000 + 2 * PAGE), 2));
    let none = Frames::<SoftMachine>::with(&[], &plain, &[], 1).expect("there is heap");
    assert_eq!((none.free(), none.total()), (0, 6));
    none.audit(&mut ThreadCtx::new().held()).unwrap();
    assert!(
        Frames::<SoftMachine>::new(&[(Pa(0), 1 << 31), (Pa(0), 1)], 1).is_err(),
        "more than numbers"
    );
}

#[test]
#[should_panic(expected = "is no frame")]
fn a_number_behind_the_last_has_no_address() {
    let m = small();
    m.frames().pa(PageNo(200));
}

/// Makes a record say something else than its list.
type Break = fn(&SoftMachine, &mut Held<'_, Nothing>);

#[test]
fn an_audit_finds_records_that_do_not_fit_the_lists() {
    let breaks: [(&str, Break); 6] = [
        ("operation gives back", |m, _| m.frames().announce(1)),
        ("has an owner", |m, _| m.frames().set_owner(PageNo(100), Owner::Kernel, 0)),
        ("without an owner", |m, h| {
            let page = alloc(m, h);
            m.frames().set_owner(page, Owner::Free, 0);
        }),
        ("number of pages", |m, h| {
            let page = m.frames().oldest(h, Queue::Active).expect("some are");
            m.frames().set_flags(page, PageFlags::FILE);
        }),
        ("number of pages", |m, h| {
            let page = m.frames().oldest(h, Queue::Inactive).expect("some are");
            m.frames().clear_flags(page, PageFlags::FILE);
            m.frames().set_flags(page, PageFlags::EXEC);
        }),
        ("has an owner", |m, h| {
            let page = alloc(m, h);
            m.frames().free_page(m, h, page);
            m.frames().set_owner(page, Owner::Anon(1), 0);
        }),
    ];
    for (sentence, break_it) in breaks {
        let m = small();
        let mut ctx = ThreadCtx::new();
        let h = &mut ctx.held();
        let pages: Vec<_> = (0..9).map(|_| alloc(&m, h)).collect();
        m.frames().set_flags(pages[1], PageFlags::FILE);
        pages.iter().for_each(|&page| m.frames().activate(&m, h, page));
        m.frames().flush_pending(h);
        m.frames().deactivate(h, &pages[1..4]);
        m.frames().audit(h).unwrap();
        break_it(&m, h);
        let found = m.frames().audit(h).expect_err(sentence);
        assert!(found.contains(sentence), "{found}");
    }
}

#[test]
fn pages_in_another_cpus_cache_are_still_free() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let taken = take_all(&m, h, Reserve::User);
    m.run_on(1);
    taken[..20].iter().for_each(|&page| m.frames().free_page(&m, h, page));
    m.run_on(0);
    assert_eq!(take_all(&m, h, Reserve::User).len(), 20);
}

/// Pages of which each CPU takes so many at a time. More than a cache holds.
const MUCH: usize = 300;

/// Pages that each of two CPUs has.
type Used = [Vec<PageNo>; 2];

/// Both CPUs take memory, a page each in turn.
fn take_in_turns(m: &SoftMachine, h: &mut Held<'_, Nothing>) -> Used {
    let mut taken = [Vec::new(), Vec::new()];
    for n in 0..2 * MUCH {
        m.run_on(n % 2);
        taken[n % 2].push(alloc(m, h));
    }
    taken
}

/// And give it back so.
fn give_in_turns(m: &SoftMachine, h: &mut Held<'_, Nothing>, taken: &Used) {
    for n in 0..2 * MUCH {
        m.run_on(n % 2);
        m.frames().free_page(m, h, taken[n % 2][n / 2]);
    }
}

/// Or one CPU after the other, each all of it.
fn give_at_once(m: &SoftMachine, h: &mut Held<'_, Nothing>, taken: &Used) {
    for (cpu, pages) in taken.iter().enumerate() {
        m.run_on(cpu);
        let mut down = Gather::new();
        pages.iter().for_each(|&page| m.frames().release(h, Unmapped::by_ranges(page), &mut down));
        down.perform(m.frames(), m, h);
    }
}

/// Does `test` on a machine whose CPUs have taken memory and given it back by `give`. All lists are
/// whole then and at the end.
fn once_used(
    give: fn(&SoftMachine, &mut Held<'_, Nothing>, &Used),
    test: impl FnOnce(&SoftMachine, &mut Held<'_, Nothing>, &Used),
) {
    let m = machine(&[(Pa(0x10_0000), 1000)]);
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let before = take_in_turns(&m, h);
    give(&m, h, &before);
    m.frames().audit(h).unwrap();
    test(&m, h, &before);
    m.frames().audit(h).unwrap();
}

#[test]
fn a_cpu_gets_back_what_it_gave_back() {
    once_used(give_in_turns, |m, h, before| {
        let again = take_in_turns(m, h);
        for cpu in 0..2 {
            let others = again[cpu].iter().filter(|page| before[1 - cpu].contains(page)).count();
            let new = again[cpu].iter().filter(|page| !before[cpu].contains(page)).count();
            assert_eq!(others, 0, "CPU {cpu} has got pages that the other one has used");
            assert!(new < uvm::page::FULL, "and {new} that it has not used itself");
        }
    });
}

#[test]
fn what_a_cpu_frees_at_once_is_its_own_too() {
    once_used(give_at_once, |m, h, before| {
        let again = take_in_turns(m, h);
        for cpu in 0..2 {
            assert!(
                !again[cpu].iter().any(|page| before[1 - cpu].contains(page)),
                "CPU {cpu} has got others'"
            );
        }
    });
}

#[test]
fn what_one_cpu_gave_back_is_there_for_all() {
    once_used(give_in_turns, |m, h, before| {
        let free = m.frames().free();
        m.run_on(1);
        let first: Vec<_> = (0..MUCH).map(|_| alloc(m, h)).collect();
        assert!(!first.iter().any(|page| before[0].contains(page)), "first what no other has used");
        let all = first.len() + take_all(m, h, Reserve::Pageout).len();
        assert_eq!((all, m.frames().free()), (free, 0));
    });
}

#[test]
fn a_run_is_found_among_what_all_cpus_gave_back() {
    once_used(give_in_turns, |m, h, _| {
        let free = m.frames().free();
        m.frames().alloc_run(m, h, 256).expect("so many lie side by side");
        assert_eq!(m.frames().free(), free - 256);
    });
}

#[test]
fn a_run_follows_one_another_in_one_segment() {
    let m = machine(&[(Pa(0x10_0000), 30), (Pa(0x100_0000), 64)]);
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let first = m.frames().alloc_run(&m, h, 40).expect("the second segment has room");
    let start = m.frames().pa(first);
    for n in 0..40 {
        assert_eq!(
            m.frames().pa(PageNo(first.0 + n)),
            Pa(start.0 + (u64::from(n) << machine::PAGE_SHIFT))
        );
        assert_eq!(m.frames().owner(PageNo(first.0 + n)), Owner::Kernel);
    }
    assert_eq!(m.frames().free(), 54);
    assert!(m.frames().alloc_run(&m, h, 40).is_err() && m.frames().alloc_run(&m, h, 0).is_err());
    m.frames().audit(h).unwrap();
}

#[test]
fn a_run_leaves_the_kernels_reserve() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let run = |h: &mut _, count| m.frames().alloc_run(&m, h, count);
    assert!(run(h, 128).is_ok() && run(h, 64).is_ok());
    // Of 8 free pages, 4 are kept.
    assert!(run(h, 5).is_err() && run(h, 4).is_ok() && run(h, 1).is_err());
    m.frames().audit(h).unwrap();
}

#[test]
fn pages_ascend() {
    let m = machine(&[(Pa(0), 512)]);
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let pages: Vec<_> = (0..128).map(|_| alloc(&m, h)).collect();
    assert!(pages.windows(2).all(|two| two[1].0 == two[0].0 + 1), "{pages:?}");
    // And again, whatever the order in which they come back.
    for order in [|n: usize| n, |n| 127 - n, |n| n * 37 % 128] {
        (0..128).for_each(|n| m.frames().free_page(&m, h, pages[order(n)]));
        m.frames().drain_caches(h);
        m.frames().audit(h).unwrap();
        let again: Vec<_> = (0..128).map(|_| alloc(&m, h)).collect();
        assert_eq!(again, pages);
    }
}

#[test]
fn the_largest_run_is_what_a_table_maps() {
    let most = (machine::PAGE_SIZE / 8) as u32;
    let m = machine(&[(Pa(0), 4 * most)]);
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    assert!(f.alloc_run(&m, h, most + 1).is_err() && f.alloc_run(&m, h, u32::MAX).is_err());
    let one = alloc(&m, h);
    // The first is in pieces now.
    let runs: Vec<_> = (0..3).map(|_| f.alloc_run(&m, h, most).expect("it is free")).collect();
    assert!(runs
        .iter()
        .all(|run| f.pa(*run).0.is_multiple_of((most as usize * machine::PAGE_SIZE) as u64)));
    assert!(f.alloc_run(&m, h, most).is_err());
    f.free_page(&m, h, one);
    assert!(f.alloc_run(&m, h, most / 2).is_ok(), "what a cache has merges with the rest");
    f.audit(h).unwrap();
}

#[test]
fn a_page_comes_into_use_by_a_batch() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().activate(&m, h, page);
    assert_eq!((m.frames().place(page), m.frames().active()), (Place::Pending, 0));
    m.frames().flush_pending(h);
    assert_eq!((m.frames().place(page), m.frames().active()), (Place::Active, 1));
    let others: Vec<PageNo> = (0..33).map(|_| alloc(&m, h)).collect();
    others.iter().for_each(|&page| m.frames().activate(&m, h, page));
    assert_eq!(m.frames().active(), 33, "a full batch is linked by the page that finds it full");
    assert_eq!(m.frames().place(others[32]), Place::Pending);
    m.frames().audit(h).unwrap();
}

#[test]
fn the_oldest_page_is_found_first_and_a_second_chance_goes_last() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let pages: Vec<PageNo> = (0..3).map(|_| alloc(&m, h)).collect();
    pages.iter().for_each(|&page| m.frames().activate(&m, h, page));
    m.frames().flush_pending(h);
    assert_eq!(m.frames().oldest(h, Queue::Active), Some(pages[0]));
    pages.iter().for_each(|&page| m.frames().deactivate(h, &[page]));
    assert_eq!((m.frames().active(), m.frames().inactive()), (0, 3));
    m.frames().reactivate(h, pages[0]);
    assert_eq!(m.frames().oldest(h, Queue::Inactive), Some(pages[1]));
    assert_eq!(m.frames().oldest(h, Queue::Active), Some(pages[0]));
    m.frames().audit(h).unwrap();
}

#[test]
fn a_page_freed_while_it_waits_in_a_batch_is_not_linked() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().activate(&m, h, page);
    let mut down = Gather::new();
    m.frames().release(h, Unmapped::by_ranges(page), &mut down);
    down.perform(m.frames(), &m, h);
    m.frames().flush_pending(h);
    assert_eq!((m.frames().active(), m.frames().owner(page)), (0, Owner::Free));
    m.frames().audit(h).unwrap();
}

#[test]
fn a_page_reused_while_it_waits_in_a_batch_is_linked_once() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().activate(&m, h, page);
    m.frames().dequeue(h, page);
    m.frames().free_page(&m, h, page);
    assert_eq!(alloc(&m, h), page);
    m.run_on(1);
    m.frames().activate(&m, h, page);
    m.run_on(0);
    m.frames().flush_pending(h);
    assert_eq!((m.frames().active(), m.frames().place(page)), (1, Place::Active));
    m.frames().audit(h).unwrap();
}

#[test]
fn a_wired_page_joins_no_queue_until_its_last_unwiring() {
    let m = small();
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let page = alloc(&m, h);
    m.frames().wire(page);
    m.frames().wire(page);
    m.frames().activate(&m, h, page);
    m.frames().unwire(&m, h, page);
    m.frames().flush_pending(h);
    assert_eq!((m.frames().place(page), m.frames().hold_count(page)), (Place::Nowhere, 1));
    m.frames().unwire(&m, h, page);
    m.frames().flush_pending(h);
    assert_eq!((m.frames().place(page), m.frames().hold_count(page)), (Place::Active, 0));
    m.frames().wire(page);
    assert_eq!(m.frames().place(page), Place::Active, "one that is on a queue stays");
    m.frames().audit(h).unwrap();
}

#[test]
fn a_run_of_free_pages_ends_with_its_segment() {
    // Two segments, numbers 0..60 and 60..160: not beside one another.
    let m = machine(&[(Pa(0x10_0000), 60), (Pa(0x1000_0000 + 60 * PAGE), 100)]);
    let (f, mut ctx) = (m.frames(), ThreadCtx::new());
    let mut h = ctx.held();
    let mut all = take_all(&m, &mut h, Reserve::Pageout);
    all.sort_by_key(|p| p.0);
    assert_eq!(all.len(), 160);
    for page in all {
        f.free_page(&m, &mut h, page);
    }
    f.drain_caches(&mut h);
    f.audit(&mut h).unwrap();
    let mut bad = 0;
    for count in [64u32, 32, 16, 8, 4, 2] {
        while let Ok(first) = f.alloc_run(&m, &mut h, count) {
            let (a, b) = (f.pa(first).0, f.pa(PageNo(first.0 + count - 1)).0);
            if b - a.min(b) != u64::from(count - 1) * PAGE || a % (u64::from(count) * PAGE) != 0 {
                println!("run of {count} from no {} : {a:#x}..{b:#x}", first.0);
                bad += 1;
            }
        }
    }
    assert_eq!(bad, 0);
}
