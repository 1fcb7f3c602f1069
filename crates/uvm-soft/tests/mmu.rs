//! The Pmap contract and shootdowns, by behaviour: what holds of the software MMU and must hold of
//! every port.

use std::sync::{Arc, Mutex};

use machine::order::{Held, Nothing};
use machine::{
    CpuSet, Machine, PageNo, Pages, Pmap, Prot, Run, Shootdown, ThreadCtx, Va, VaRange, Wiring,
};
use uvm::page::{Gather, Reserve, Unmapped};
use uvm_soft::{Config, Moment, Plant, SoftMachine, SoftSpace, Trap};

const VA: Va = Va(0x40_0000);
const PAGE: VaRange = VaRange::new(VA, Va(0x40_1000));

fn machine() -> SoftMachine {
    SoftMachine::new(Config::default())
}

fn space(m: &SoftMachine, h: &mut Held<'_, Nothing>) -> SoftSpace {
    m.pmap().create(h).expect("nothing was told to fail")
}

fn page(m: &SoftMachine, h: &mut Held<'_, Nothing>) -> PageNo {
    m.frames().alloc(m, h, Reserve::User).expect("a page is free")
}

/// Maps and performs at once.
fn enter(
    m: &SoftMachine,
    h: &mut Held<'_, Nothing>,
    s: &SoftSpace,
    va: Va,
    page: PageNo,
    prot: Prot,
) {
    let mut down = Shootdown::new();
    m.pmap()
        .enter(h, s, Run::one(va, page), prot, Prot::NONE, Wiring::Pageable, &mut down)
        .expect("there are tables");
    down.flush(m.pmap());
}

#[test]
fn a_cpu_uses_what_was_lowered_until_the_shootdown_and_never_after() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ_WRITE);
    assert_eq!(m.access(1, &s, VA, Prot::WRITE), Ok(p));
    let mut down = Shootdown::new();
    m.pmap().protect(h, &s, PAGE, Prot::READ, &mut down);
    assert!(
        matches!(m.access(1, &s, VA, Prot::WRITE), Err(Trap::Stale(_))),
        "the TLB still had it"
    );
    assert!(m.tlb_audit().is_err());
    down.flush(m.pmap());
    assert_eq!(m.tlb_audit(), Ok(()));
    assert_eq!(m.access(1, &s, VA, Prot::WRITE), Err(Trap::Fault));
    assert_eq!(m.access(1, &s, VA, Prot::READ), Ok(p));
}

/// All TLBs are looked at just as a CPU that is about to use its own again goes through its box.
#[test]
fn what_a_cpu_is_about_to_forget_is_not_in_its_tlb() {
    let (m, mut ctx) = (Arc::new(machine()), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ);
    m.access(1, &s, VA, Prot::READ).unwrap();
    m.run_on(0);
    let mut down = Shootdown::new();
    m.pmap().remove(h, &s, PAGE, &mut down);
    down.flush(m.pmap());
    let seen = Arc::new(Mutex::new(None));
    m.pmap().hooks.at_next(Moment::Forgetting, {
        let (m, seen) = (m.clone(), seen.clone());
        move || *seen.lock().unwrap() = Some((m.tlb_audit(), m.pmap().reach(p)))
    });
    assert_eq!(m.access(1, &s, VA, Prot::READ), Err(Trap::Fault));
    assert_eq!(seen.lock().unwrap().take(), Some((Ok(()), None)), "stale, and in reach");
}

#[test]
fn a_raised_right_costs_one_more_fault() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ);
    assert_eq!(m.access(0, &s, VA, Prot::READ), Ok(p));
    enter(&m, h, &s, VA, p, Prot::READ_WRITE);
    assert_eq!(m.access(0, &s, VA, Prot::WRITE), Err(Trap::Fault));
    assert_eq!(m.access(0, &s, VA, Prot::WRITE), Ok(p));
}

#[test]
fn only_cpus_that_may_know_are_told() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    for reader in [None, Some(0), Some(2)] {
        enter(&m, h, &s, VA, p, Prot::READ);
        if let Some(cpu) = reader {
            m.access(cpu, &s, VA, Prot::READ).unwrap();
        }
        let mut down = Shootdown::new();
        m.pmap().remove(h, &s, PAGE, &mut down);
        down.flush(m.pmap());
    }
    let counters = m.pmap().counters();
    assert_eq!((counters.local_flushes, counters.remote_flushes, counters.told), (2, 1, 1));
    assert_eq!(counters.interrupts, 0, "no CPU was using a translation");
}

#[test]
fn a_page_is_found_in_every_space_that_maps_it() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (one, two, p) = (space(&m, h), space(&m, h), page(&m, h));
    enter(&m, h, &one, VA, p, Prot::READ_WRITE);
    enter(&m, h, &two, VA + Pages(700), p, Prot::READ_WRITE);
    let mut down = Shootdown::new();
    m.pmap().page_protect(h, p, Prot::READ, &mut down);
    down.flush(m.pmap());
    assert_eq!(m.pmap().extract(&one, VA), Some((p, Prot::READ)));
    let mut down = Shootdown::new();
    assert_eq!(m.pmap().page_protect(h, p, Prot::NONE, &mut down), 0);
    down.flush(m.pmap());
    assert_eq!((m.pmap().resident(&one), m.pmap().resident(&two)), (0, 0));
}

#[test]
fn a_pages_bits_outlive_its_mappings() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ_WRITE);
    assert!(
        !m.pmap().is_referenced(p) && !m.pmap().is_modified(p),
        "a mapping made ahead of use sets no bit"
    );
    m.access(0, &s, VA, Prot::READ).unwrap();
    assert!(m.pmap().is_referenced(p) && !m.pmap().is_modified(p));
    m.access(0, &s, VA, Prot::WRITE).unwrap();
    let mut down = Shootdown::new();
    m.pmap().remove(h, &s, PAGE, &mut down);
    down.flush(m.pmap());
    assert!(m.pmap().is_modified(p));
}

#[test]
fn a_store_after_the_modified_bit_was_cleared_sets_it_again() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ_WRITE);
    m.access(3, &s, VA, Prot::WRITE).unwrap();
    let mut down = Shootdown::new();
    assert!(m.pmap().clear_modified(p, &mut down));
    assert!(m.tlb_audit().is_err(), "cpu 3 would store unnoticed");
    down.flush(m.pmap());
    m.access(3, &s, VA, Prot::WRITE).unwrap();
    assert!(m.pmap().is_modified(p));
}

#[test]
fn mapping_ahead_neither_lowers_nor_replaces() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let s = space(&m, h);
    let [a, b, c] = std::array::from_fn(|_| page(&m, h));
    enter(&m, h, &s, VA, a, Prot::READ_WRITE);
    enter(&m, h, &s, VA + Pages(1), b, Prot::READ);
    let read = |page| Some((page, Prot::READ));
    m.pmap().enter_ahead(h, &s, VA, &[read(a), read(c), None, read(c), read(c)], |i| i != 4);
    assert_eq!(m.pmap().extract(&s, VA), Some((a, Prot::READ_WRITE)));
    assert_eq!(m.pmap().extract(&s, VA + Pages(1)), Some((b, Prot::READ)));
    assert_eq!(m.pmap().extract(&s, VA + Pages(2)), None);
    assert_eq!(m.pmap().extract(&s, VA + Pages(3)), Some((c, Prot::READ)));
    assert_eq!(m.pmap().extract(&s, VA + Pages(4)), None, "a page that left its owner meanwhile");
    assert!(!m.pmap().is_referenced(c));
}

#[test]
fn a_wired_mapping_is_not_forgotten() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ);
    let mut down = Shootdown::new();
    let wired = VA + Pages(1);
    m.pmap()
        .enter(h, &s, Run::one(wired, p), Prot::READ, Prot::READ, Wiring::Wired, &mut down)
        .unwrap();
    down.flush(m.pmap());
    m.pmap().forget_all();
    assert_eq!(
        (m.pmap().extract(&s, VA), m.pmap().extract(&s, wired)),
        (None, Some((p, Prot::READ)))
    );
    let around = VaRange::new(VA, wired + Pages(1));
    assert_eq!(
        (m.pmap().unwire(&s, around), m.pmap().unwire(&s, around)),
        (Some((wired, p)), None)
    );
    m.pmap().forget_all();
    assert_eq!(m.pmap().resident(&s), 0);
}

#[test]
fn a_table_that_cannot_be_had_leaves_what_was_there() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    let mut down = Shootdown::new();
    m.pmap().tables.fail_nth(1);
    let far =
        m.pmap().enter(h, &s, Run::one(VA, p), Prot::READ, Prot::READ, Wiring::Pageable, &mut down);
    assert!(far.is_err() && m.pmap().resident(&s) == 0 && !m.pmap().is_referenced(p));
    enter(&m, h, &s, VA, p, Prot::READ);
    m.pmap().tables.fail_nth(1);
    enter(&m, h, &s, VA + Pages(1), p, Prot::READ);
    assert!(m.pmap().tables.is_armed(), "the table is there already");
    down.flush(m.pmap());
}

#[test]
fn neighbouring_ranges_join_and_too_many_become_everything() {
    let at = |n: u64| VaRange::new(VA + Pages(n), VA + Pages(n + 1));
    let mut down = Shootdown::new();
    down.note(1, at(0), CpuSet::NONE);
    assert!(!down.is_needed());
    (0..10).for_each(|n| down.note(1, at(n), CpuSet::one(1)));
    assert_eq!(down.ranges().map(<[_]>::len), Some(1));
    down.note(2, at(10), CpuSet::one(2));
    assert_eq!(down.ranges().map(<[_]>::len), Some(2));
    assert_eq!(down.cpus(), CpuSet::from_bits(0b110));
    (0..20).for_each(|n| down.note(1, at(2 * n), CpuSet::one(1)));
    assert_eq!(down.ranges(), None);
    let m = machine();
    down.flush(m.pmap());
}

#[test]
fn freed_pages_are_free_only_after_the_shootdown() {
    let (m, mut ctx) = (machine(), ThreadCtx::new());
    let h = &mut ctx.held();
    let p = page(&m, h);
    let free = m.frames().free();
    let mut down = Gather::new();
    m.frames().release(h, Unmapped::by_ranges(p), &mut down);
    assert_eq!(m.frames().free(), free);
    down.perform(m.frames(), &m, h);
    assert_eq!(m.frames().free(), free + 1);
}

#[test]
#[should_panic(expected = "dropped that was not flushed")]
fn a_shootdown_that_is_forgotten_is_noticed() {
    let mut down = Shootdown::new();
    down.note(1, PAGE, CpuSet::one(0));
    drop(down);
}

#[test]
fn a_port_that_tells_only_itself_is_caught() {
    let m = SoftMachine::new(Config { plant: Some(Plant::SkipRemoteFlush), ..Config::default() });
    let mut ctx = ThreadCtx::new();
    let h = &mut ctx.held();
    let (s, p) = (space(&m, h), page(&m, h));
    enter(&m, h, &s, VA, p, Prot::READ);
    m.access(0, &s, VA, Prot::READ).unwrap();
    m.access(1, &s, VA, Prot::READ).unwrap();
    m.run_on(0);
    let mut down = Shootdown::new();
    m.pmap().remove(h, &s, PAGE, &mut down);
    down.flush(m.pmap());
    assert_eq!(m.access(0, &s, VA, Prot::READ), Err(Trap::Fault));
    assert!(matches!(m.access(1, &s, VA, Prot::READ), Err(Trap::Stale(_))));
}
