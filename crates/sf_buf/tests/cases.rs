//! The paper's section 4.2, case by case: which CPUs are told.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Lock, Mmu};
use machine::{Pa, ThreadCtx, PAGE_SHIFT};
use sf_buf::{Counts, Interrupted, Kind, Reach, SfBuf, SfBufs, DEPTH};

const A: Pa = Pa(1 << PAGE_SHIFT);
const B: Pa = Pa(2 << PAGE_SHIFT);
const C: Pa = Pa(3 << PAGE_SHIFT);

fn cache(slots: u32) -> (SfBufs<Lock>, Mmu) {
    let bufs = SfBufs::new(Kind::Cache, 3, slots).unwrap();
    let mmu = Mmu::new(3, bufs.slots());
    (bufs, mmu)
}

/// Opens a mapping on a CPU, touches the page there or not, and closes it; what that cost: local
/// invalidations, remote ones, and whether it was a hit.
fn visit(
    (bufs, mmu): &(SfBufs<Lock>, Mmu),
    cpu: usize,
    page: Pa,
    reach: Reach,
    touch: bool,
) -> (u64, u64, bool) {
    let before = bufs.counts();
    mmu.cpu.set(cpu);
    let buf = bufs.open(mmu, page, reach).expect("a free mapping");
    if touch {
        assert_eq!(mmu.access(cpu, buf.place()), Some(page));
    }
    drop(buf);
    bufs.audit();
    let Counts { hits, local, remote, .. } = bufs.counts().since(before);
    (local, remote, hits > 0)
}

#[test]
fn a_slot_that_was_never_used_is_told_to_no_cpu() {
    let one = cache(1);
    assert_eq!(visit(&one, 0, A, Reach::AnyCpu, true), (0, 0, false));
}

#[test]
fn a_hit_costs_nothing() {
    let one = cache(1);
    for reach in [Reach::AnyCpu, Reach::ThisCpu] {
        visit(&one, 0, A, reach, true);
        for cpu in 0..3 {
            assert_eq!(visit(&one, cpu, A, reach, true), (0, 0, true), "all are in the set");
        }
    }
}

#[test]
fn a_private_miss_tells_this_cpu_alone_and_a_hit_elsewhere_its_own() {
    let one = cache(1);
    visit(&one, 0, A, Reach::AnyCpu, true);
    assert_eq!(visit(&one, 1, B, Reach::ThisCpu, true), (1, 0, false));
    assert_eq!(visit(&one, 1, B, Reach::ThisCpu, true), (0, 0, true));
    assert_eq!(visit(&one, 2, B, Reach::ThisCpu, true), (1, 0, true), "not in the set yet");
    assert_eq!(visit(&one, 2, B, Reach::AnyCpu, true), (0, 1, true), "CPU 0 is missing");
    assert_eq!(visit(&one, 0, B, Reach::AnyCpu, true), (0, 0, true));
}

#[test]
fn a_shared_miss_tells_all() {
    let one = cache(1);
    visit(&one, 0, A, Reach::AnyCpu, true);
    assert_eq!(visit(&one, 0, B, Reach::AnyCpu, true), (1, 2, false));
}

#[test]
fn an_entry_that_was_not_used_costs_nothing() {
    let one = cache(1);
    visit(&one, 0, A, Reach::AnyCpu, false);
    assert_eq!(visit(&one, 1, B, Reach::AnyCpu, false), (0, 0, false));
    assert_eq!(visit(&one, 1, C, Reach::ThisCpu, false), (0, 0, false));
}

/// CPU 1 remembers A; CPU 0 maps B for itself, and touches nothing; then C comes for all. The
/// entry of B was not used, but CPU 1 still has A.
#[test]
fn a_set_that_grows_by_a_clear_bit_is_wrong() {
    let one = cache(1);
    visit(&one, 0, A, Reach::AnyCpu, true);
    visit(&one, 1, A, Reach::AnyCpu, true);
    assert_eq!(visit(&one, 0, B, Reach::ThisCpu, false), (1, 0, false));
    let (bufs, mmu) = &one;
    let buf = bufs.open(mmu, C, Reach::AnyCpu).unwrap();
    assert_eq!(mmu.access(1, buf.place()), Some(C), "a stale translation would show A");
    assert_eq!(bufs.counts().remote, 2);
}

#[test]
fn the_oldest_goes_first() {
    let two = cache(2);
    for page in [A, B, A, C] {
        visit(&two, 0, page, Reach::AnyCpu, true);
    }
    assert!(visit(&two, 0, A, Reach::AnyCpu, true).2, "B was the oldest when C came");
    assert!(!visit(&two, 0, B, Reach::AnyCpu, true).2);
}

#[test]
fn one_mapping_serves_all_callers_of_its_page() {
    let (bufs, mmu) = cache(2);
    let open = |page| bufs.open(&mmu, page, Reach::AnyCpu);
    let (one, two, _other) = (open(A).unwrap(), open(A).unwrap(), open(B).unwrap());
    assert_eq!(one.place(), two.place());
    assert!(open(C).is_none(), "no wait");
    drop(one);
    assert!(open(C).is_none(), "it has another user");
    drop(two);
    assert!(open(C).is_some());
    bufs.audit();
}

#[test]
fn a_caller_that_cannot_wait_has_slots_of_its_cpu() {
    for (_, kind) in Kind::ALL {
        let bufs = SfBufs::<Lock>::new(kind, 2, 1).unwrap();
        let mmu = Mmu::new(2, bufs.slots());
        let taken = bufs.open(&mmu, A, Reach::AnyCpu);
        let (from, to) = (bufs.open_here(&mmu, B), bufs.open_here(&mmu, C));
        for buf in [&from, &to].into_iter().filter(|_| kind != Kind::Direct) {
            assert_eq!(mmu.access(0, buf.place()), Some(buf.page()), "{kind:?}");
        }
        drop((taken, from, to));
    }
}

#[test]
fn what_is_private_is_out_of_reach_when_closed() {
    let bufs = SfBufs::<Lock>::new(Kind::Private, 2, 0).unwrap();
    let mmu = Mmu::new(2, bufs.slots());
    for page in [A, B, A] {
        let buf = bufs.open_here(&mmu, page);
        assert_eq!(mmu.access(0, buf.place()), Some(page));
        drop(buf);
        assert_eq!(mmu.reach(), []);
    }
    assert_eq!(bufs.counts(), Counts { opened: 3, local: 3, ..Counts::default() });
    drop(bufs.open_here(&mmu, A));
    assert_eq!(bufs.counts().local, 3, "what was not touched is in no TLB");
}

#[test]
#[should_panic(expected = "open on one CPU")]
fn more_than_a_cpu_has_are_refused() {
    let bufs = SfBufs::<Lock>::new(Kind::Private, 1, 0).unwrap();
    let mmu = Mmu::new(1, bufs.slots());
    let _all: Vec<_> =
        (0..=DEPTH).map(|n| bufs.open_here(&mmu, Pa(u64::from(n) << PAGE_SHIFT))).collect();
}

#[test]
fn the_original_way_tells_all_each_time() {
    let bufs = SfBufs::<Lock>::new(Kind::Original, 3, 1).unwrap();
    let mmu = Mmu::new(3, bufs.slots());
    for _ in 0..5 {
        let buf = bufs.open(&mmu, A, Reach::ThisCpu).unwrap();
        assert!(bufs.open(&mmu, A, Reach::ThisCpu).is_none(), "no two share one");
        drop(buf);
    }
    let Counts { opened, hits, local, remote, rounds } = bufs.counts();
    assert_eq!((opened, hits, local, remote, rounds), (5, 0, 5, 10, 5));
}

/// A mapping that a test's sleeper closes.
type Kept = Rc<RefCell<Option<SfBuf<'static, Lock, Mmu>>>>;

fn full() -> (&'static SfBufs<Lock>, &'static Mmu, Kept) {
    let (bufs, mmu) = cache(1);
    let (bufs, mmu): (&'static _, &'static _) =
        (Box::leak(Box::new(bufs)), Box::leak(Box::new(mmu)));
    (bufs, mmu, Rc::new(RefCell::new(bufs.open(mmu, A, Reach::AnyCpu))))
}

#[test]
fn a_sleeper_has_what_another_closes() {
    let (bufs, mmu, kept) = full();
    let closes = kept.clone();
    *mmu.sleeper.borrow_mut() = Some(Box::new(move || {
        drop(closes.borrow_mut().take());
        Ok(())
    }));
    let mut thread = ThreadCtx::new();
    let buf = bufs.open_waiting(mmu, &mut thread.held(), B, Reach::AnyCpu, false).unwrap();
    assert_eq!((buf.page(), mmu.woken.get()), (B, 1));
}

#[test]
fn a_signal_ends_a_sleep_that_may_be_interrupted() {
    let (bufs, mmu, kept) = full();
    let mut thread = ThreadCtx::new();
    *mmu.sleeper.borrow_mut() = Some(Box::new(|| Err(Interrupted)));
    let result = bufs.open_waiting(mmu, &mut thread.held(), B, Reach::AnyCpu, true);
    assert_eq!(result.err(), Some(Interrupted));
    // Without the flag the thread goes on to sleep until there is a mapping.
    let closes = kept.clone();
    *mmu.sleeper.borrow_mut() = Some(Box::new(move || {
        drop(closes.borrow_mut().take());
        Err(Interrupted)
    }));
    assert!(bufs.open_waiting(mmu, &mut thread.held(), B, Reach::AnyCpu, false).is_ok());
}
