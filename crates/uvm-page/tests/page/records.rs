//! A page's record (`uvm::page`): its owner, what is going on with it and who holds it,
//! against a plain struct of the same.

use machine::order::{Held, Nothing};
use machine::{Pa, PageNo, ThreadCtx};
use uvm::page::{Class, PageFlags, Place, Taken, TryLoan};
use uvm::page::{Frames, Owner, Reserve, Slot};
use uvm_soft::{Config, Rng, SoftMachine};

fn machine() -> SoftMachine {
    let devices = vec![(Pa(0x800_0000), 2)];
    SoftMachine::new(Config {
        segments: vec![(Pa(0x10_0000), 64)],
        devices,
        cpus: 1,
        ..Config::default()
    })
}

fn alloc(m: &SoftMachine, h: &mut Held<'_, Nothing>) -> PageNo {
    m.frames().alloc(m, h, Reserve::User).expect("a page is free")
}

/// Holds of which a page gets no more: see `may_wire`, `loan`.
const MOST: (u32, u32) = (4_000, 30_000);

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    owner: Owner,
    index: u64,
    slot: u32,
    is_shared: bool,
    flags: PageFlags,
    wirings: u32,
    loans: u32,
    is_disowned: bool,
    place: Place,
}

impl Record {
    /// Of a page that was just allocated.
    const NEW: Record = Record {
        owner: Owner::Kernel,
        index: 0,
        slot: 0,
        is_shared: false,
        flags: PageFlags::empty(),
        wirings: 0,
        loans: 0,
        is_disowned: false,
        place: Place::Nowhere,
    };

    fn is_busy(&self) -> bool {
        self.flags.contains(PageFlags::BUSY)
    }

    fn is_held(&self) -> bool {
        self.wirings + self.loans != 0
    }

    /// Compares this with all that can be asked of a page.
    fn check(&self, f: &Frames<SoftMachine>, page: PageNo) {
        let said = Record {
            owner: f.owner(page),
            index: f.index(page),
            slot: f.slot(page).map_or(0, Slot::number),
            is_shared: matches!(self.owner, Owner::Anon(_)) && f.is_marked_shared(page),
            flags: f.flags(page),
            wirings: f.hold_count(page) - f.loans(page),
            loans: f.loans(page),
            is_disowned: f.is_disowned(page),
            place: f.place(page),
        };
        assert_eq!(said, *self);
        assert_eq!(f.is_plain(page), !self.is_busy() && self.loans == 0);
        let lone = matches!(self.owner, Owner::Anon(_)) && !self.is_shared && f.is_plain(page);
        for anon in
            OWNERS
                .iter()
                .filter_map(|&owner| if let Owner::Anon(n) = owner { Some(n) } else { None })
        {
            assert_eq!(f.is_alone(page, anon), lone && self.owner == Owner::Anon(anon), "{anon}");
        }
        let one_borrower = self.is_disowned && (self.wirings, self.loans) == (0, 1);
        assert_eq!(f.is_borrowers(page), one_borrower);
        let class = match () {
            () if self.flags.contains(PageFlags::EXEC) => Class::Exec,
            () if self.flags.contains(PageFlags::FILE) => Class::File,
            () => Class::Anon,
        };
        assert_eq!(f.class(page), class);
    }
}

const OWNERS: [Owner; 9] = [
    Owner::Kernel,
    Owner::Orphan,
    Owner::Anon(0),
    Owner::Anon(1),
    Owner::Anon(0x5555_5555),
    Owner::Anon(u32::MAX),
    Owner::Object(0),
    Owner::Object(1),
    Owner::Object(u32::MAX),
];

/// One step, of those that a thread may take as the page is now; or none.
fn step(
    m: &SoftMachine,
    h: &mut Held<'_, Nothing>,
    page: PageNo,
    record: &mut Record,
    random: &mut Rng,
) {
    let f = m.frames();
    match random.below(16) {
        0 => {
            record.owner = *random.pick(&OWNERS);
            (record.index, record.slot, record.is_shared) = (random.below(u64::MAX), 0, false);
            f.set_owner(page, record.owner, record.index);
        }
        1 if matches!(record.owner, Owner::Anon(_)) => {
            f.mark_shared(page);
            record.is_shared = true;
        }
        2 if matches!(record.owner, Owner::Anon(_)) => {
            f.mark_alone(page);
            record.is_shared = false;
        }
        3 => {
            record.slot = random.below(1 << 29) as u32;
            f.set_slot(page, Slot::new(record.slot));
        }
        4 | 5 => {
            let flags = PageFlags::from_bits_truncate(random.below(1 << 11) as u16);
            let before = record.flags;
            if random.below(2) == 0 {
                f.set_flags(page, flags);
                record.flags |= flags;
            } else {
                assert_eq!(f.clear_flags(page, flags), before);
                record.flags -= flags;
            }
        }
        6 => {
            assert!(f.may_wire(page));
            f.wire(page);
            record.wirings += 1;
        }
        7 if record.wirings > 0 && !record.is_disowned => {
            f.unwire(m, h, page);
            record.wirings -= 1;
            if record.wirings == 0 && record.place == Place::Nowhere {
                record.place = Place::Pending;
            }
        }
        8 if record.wirings > 0 => {
            record.wirings -= 1;
            let is_last = record.is_disowned && !record.is_held();
            assert_eq!(f.unpin(page), is_last, "the page is whose wiring was the last");
            if is_last {
                free(m, h, page, record);
            }
        }
        9 => {
            assert!(f.loan(page));
            record.loans += 1;
        }
        10 => {
            let expected = match () {
                () if record.is_busy() => TryLoan::Busy,
                () if record.wirings != 0 => TryLoan::Held,
                () if record.place == Place::Nowhere => TryLoan::Busy,
                () => TryLoan::Loaned,
            };
            assert_eq!(f.try_loan(page), expected);
            record.loans += u32::from(expected == TryLoan::Loaned);
        }
        11 if record.loans > 0 => {
            record.loans -= 1;
            let is_last = record.is_disowned && !record.is_held();
            assert_eq!(f.end_loan(page), is_last, "the page is whose loan was the last");
            if is_last {
                free(m, h, page, record);
            }
        }
        12 if !record.is_disowned => {
            let is_idle = !record.is_held();
            assert_eq!(f.disown(page), is_idle);
            record.is_disowned = true;
            if is_idle {
                free(m, h, page, record);
            }
        }
        13 if record.loans > 0 => {
            let expected = match () {
                () if !record.is_disowned || record.wirings != 0 => Taken::Not,
                () if record.loans == 1 => Taken::Alone,
                () => Taken::Among,
            };
            assert_eq!(f.take_over(page), expected);
            if expected != Taken::Not {
                record.loans -= u32::from(expected == Taken::Alone);
                record.is_disowned = false;
                record.owner = *random.pick(&OWNERS);
                f.set_new_owner(page, record.owner);
                (record.index, record.slot, record.is_shared) = (0, 0, false);
                record.flags = PageFlags::empty();
            }
        }
        14 => {
            f.activate(m, h, page);
            if record.place == Place::Nowhere && record.wirings == 0 {
                record.place = Place::Pending;
            }
        }
        15 if !record.is_disowned && !record.is_held() => {
            f.loan_unowned(page);
            (record.is_disowned, record.loans) = (true, 1);
        }
        _ => {}
    }
}

/// Frees a page whose last holder has let it go, and takes it again: the record is as new then.
fn free(m: &SoftMachine, h: &mut Held<'_, Nothing>, page: PageNo, record: &mut Record) {
    m.frames().dequeue(h, page);
    m.frames().free_page(m, h, page);
    assert_eq!((m.frames().owner(page), m.frames().place(page)), (Owner::Free, Place::Cached));
    assert_eq!(alloc(m, h), page, "the page freed last is the warmest");
    // Who gets an owner gets an index with it.
    *record = Record { index: record.index, ..Record::NEW };
}

#[test]
fn a_record_says_what_was_done_to_its_page() {
    for seed in 0..40 {
        let m = machine();
        let (mut ctx, mut random) = (ThreadCtx::new(), Rng::new(seed));
        let h = &mut ctx.held();
        let (page, other) = (alloc(&m, h), alloc(&m, h));
        let mut record = Record::NEW;
        for _ in 0..500 {
            record.check(m.frames(), page);
            step(&m, h, page, &mut record, &mut random);
        }
        Record::NEW.check(m.frames(), other);
    }
}

#[test]
fn programs_hold_a_page_so_often_and_no_more() {
    let m = machine();
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    let page = alloc(&m, h);
    f.activate(&m, h, page);
    (1..MOST.1).for_each(|_| assert!(f.loan(page)));
    assert_eq!((f.try_loan(page), f.loans(page)), (TryLoan::Loaned, MOST.1));
    assert!(!f.loan(page) && f.try_loan(page) == TryLoan::Held);
    (1..MOST.0).for_each(|_| f.wire(page));
    assert!(f.may_wire(page), "wirings and loans are counted apart");
    f.wire(page);
    assert!(!f.may_wire(page));
    // The kernel's own always fit.
    f.wire(page);
    assert_eq!((f.hold_count(page), f.loans(page)), (MOST.0 + 1 + MOST.1, MOST.1));
    assert!(!f.may_wire(page) && !f.is_disowned(page));
    f.unwire(&m, h, page);
    f.unwire(&m, h, page);
    assert!(f.may_wire(page) && !f.end_loan(page) && f.loan(page));
}

#[test]
fn a_devices_frame_is_never_to_be_freed() {
    let m = machine();
    let (f, device) = (m.frames(), PageNo(64));
    assert!(f.is_device(device) && !f.is_device(PageNo(63)));
    f.wire(device);
    assert!(!f.unpin(device) && !f.disown(device));
    assert_eq!((f.is_disowned(device), f.hold_count(device)), (false, 0));
}

#[test]
fn pages_on_no_list_are_chained() {
    let m = machine();
    let mut ctx = ThreadCtx::new();
    let (f, h) = (m.frames(), &mut ctx.held());
    let pages: Vec<_> = (0..3).map(|_| alloc(&m, h)).collect();
    f.chain(pages[0], Some(pages[2]));
    f.chain(pages[2], Some(pages[1]));
    f.chain(pages[1], None);
    let chain: Vec<_> = std::iter::successors(Some(pages[0]), |&page| f.chained(page)).collect();
    assert_eq!(chain, [pages[0], pages[2], pages[1]]);
}

#[test]
fn who_was_refused_reads_of_what() {
    assert_eq!(machine::NoMemory.to_string(), "out of memory");
}
