//! Loans of any ranges of memory of all kinds, between stores, forks, transfers, pages that are
//! written to swap and pages that a device writes to, against a plain model: a byte for each page,
//! and which pages are a device's. Those are copied in place of being loaned; no others are.

use std::ops::Range;
use std::sync::Arc;

use crate::loaning::{audit, bytes, load, store, world, written, World, BOUNDS};
use crate::stores::{Mode, SwapDisk};
use machine::order::Nothing;
use machine::{Held, Machine, PageRange, Pages, Pmap, Prot, ThreadCtx, Va};
use uvm::{
    Advice, AnonObject, At, Counter, FaultError, Inherit, Loan, MapRequest, Pager, Pinned, Sharing,
    Space,
};
use uvm_soft::{within_reservation, Fate, Rng, SoftMachine};

/// What an operation allocates beyond its reservation fails the test.
/// Pages of each kind of memory.
const RUN: u64 = 12;

/// Kinds of memory, in order of address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Private,
    /// Of the parent alone, with a page in the middle that isn't mapped.
    Uninherited,
    /// Private, of an object that has some of its pages, on swap at first.
    OfObject,
    /// A second entry on the same amap.
    Parted,
    Shared,
    /// Of the parent and its children.
    Inherited,
    ReadOnly,
    Wired,
    Hole,
    Unreadable,
}

const KINDS: [Kind; 10] = [
    Kind::Private,
    Kind::Uninherited,
    Kind::OfObject,
    Kind::Parted,
    Kind::Shared,
    Kind::Inherited,
    Kind::ReadOnly,
    Kind::Wired,
    Kind::Hole,
    Kind::Unreadable,
];
const ALL: u64 = RUN * KINDS.len() as u64;

/// The first page of a kind.
fn first_of(of: Kind) -> u64 {
    KINDS.iter().position(|&kind| kind == of).unwrap() as u64 * RUN
}

/// The page of uninherited memory that isn't mapped.
const GAP: u64 = 5;

fn kind(page: u64) -> Kind {
    match KINDS[(page / RUN) as usize] {
        Kind::Uninherited if page % RUN == GAP => Kind::Hole,
        kind => kind,
    }
}

fn at(page: u64) -> Va {
    BOUNDS.start + Pages(page)
}

fn range_of(pages: Range<u64>) -> PageRange {
    PageRange::new(at(pages.start), at(pages.end)).unwrap()
}

/// A space, and what a load from each page shows.
struct Side {
    space: Space<SoftMachine>,
    bytes: Vec<u8>,
}

/// Pages that a device writes to.
struct Pins {
    pinned: Pinned<SoftMachine>,
    pages: Range<u64>,
    by_child: bool,
}

impl Pins {
    /// Whether it has the page that a side shows there.
    fn has(&self, page: u64, is_child: bool) -> bool {
        self.pages.contains(&page) && (self.by_child == is_child || is_of_both(page))
    }
}

/// Whether parent and child have the page in common, whichever stores to it.
fn is_of_both(page: u64) -> bool {
    matches!(kind(page), Kind::Shared | Kind::Inherited)
}

fn can_load(page: u64, is_child: bool) -> bool {
    match kind(page) {
        Kind::Hole | Kind::Unreadable => false,
        Kind::Uninherited => !is_child,
        _ => true,
    }
}

struct State<'u> {
    uvm: &'u World,
    parent: Side,
    child: Option<Side>,
    pins: Vec<Pins>,
    /// What the private mapping shows where nothing was stored.
    object: Vec<u8>,
    shared: Arc<dyn Pager<SoftMachine>>,
    /// Loans, with what each showed.
    loan: Vec<(Loan, Vec<u8>)>,
    random: Rng,
}

impl<'u> State<'u> {
    fn new(uvm: &'u World, held: &mut Held<'_, Nothing>, seed: u64) -> State<'u> {
        let space = uvm.space_create(held, BOUNDS).unwrap();
        let pagers: [Arc<dyn Pager<_>>; 2] =
            std::array::from_fn(|_| AnonObject::new(uvm, held, Pages(RUN)).unwrap() as _);
        let mut random = Rng::new(seed);
        let mut all = vec![0; ALL as usize];
        let mut object = vec![0; RUN as usize];
        for (run, kind) in (0..).zip(KINDS) {
            let place = at(run * RUN);
            let zero = || MapRequest::zero(Pages(RUN)).at(place);
            let of = |pager: &Arc<dyn Pager<_>>, sharing| {
                MapRequest::object(pager.clone(), Pages(0), Pages(RUN), sharing).at(place)
            };
            let request = match kind {
                Kind::Hole => continue,
                Kind::Uninherited => {
                    let (first, rest) = (Pages(GAP), Pages(RUN - GAP - 1));
                    let own =
                        |len| MapRequest { inherit: Some(Inherit::None), ..MapRequest::zero(len) };
                    uvm.map(held, &space, &own(first).at(place)).unwrap();
                    uvm.map(held, &space, &own(rest).at(place + Pages(GAP + 1))).unwrap();
                    continue;
                }
                Kind::OfObject => {
                    let first = of(&pagers[0], Sharing::Shared);
                    uvm.map(held, &space, &first).unwrap();
                    for n in (0..RUN).filter(|n| n % 3 != 0) {
                        object[n as usize] = 100 + n as u8;
                        store(uvm, &space, place + Pages(n), 100 + n as u8);
                        all[(run * RUN + n) as usize] = 100 + n as u8;
                    }
                    let range = PageRange::new(place, place + Pages(RUN)).unwrap();
                    uvm.pageout_range(held, &space, range);
                    while uvm.machine().complete(0, Fate::Works) {}
                    uvm.unmap(held, &space, range).unwrap();
                    of(&pagers[0], Sharing::Private)
                }
                Kind::Shared => of(&pagers[1], Sharing::Shared),
                _ => zero(),
            };
            uvm.map(held, &space, &request).unwrap();
            let range = PageRange::new(place, place + Pages(RUN)).unwrap();
            if kind == Kind::Inherited {
                uvm.inherit(held, &space, range, Inherit::Share).unwrap();
            }
            if kind == Kind::Parted {
                // The amap has become one before.
                store(uvm, &space, place, 0);
                uvm.protect(
                    held,
                    &space,
                    PageRange::new(place, place + Pages(5)).unwrap(),
                    Prot::READ,
                )
                .unwrap();
                uvm.protect(
                    held,
                    &space,
                    PageRange::new(place, place + Pages(5)).unwrap(),
                    Prot::READ_WRITE,
                )
                .unwrap();
            }
            for n in 0..RUN {
                let byte = random.below(180) as u8;
                if kind == Kind::OfObject || byte > 90 {
                    continue;
                }
                store(uvm, &space, place + Pages(n), byte);
                all[(run * RUN + n) as usize] = byte;
            }
            match kind {
                Kind::ReadOnly => uvm.protect(held, &space, range, Prot::READ).unwrap(),
                Kind::Unreadable => uvm.protect(held, &space, range, Prot::NONE).unwrap(),
                Kind::Wired => uvm.wire(held, &space, range).unwrap(),
                _ => {}
            }
        }
        let [own, shared] = pagers;
        uvm.detach(held, &*own);
        State {
            uvm,
            parent: Side { space, bytes: all },
            child: None,
            pins: Vec::new(),
            object,
            shared,
            loan: Vec::new(),
            random,
        }
    }

    /// The side that does something now, and whether that is the child.
    fn side(&mut self) -> (&mut Side, bool) {
        let is_child = self.random.below(3) == 0;
        match &mut self.child {
            Some(child) if is_child => (child, true),
            _ => (&mut self.parent, false),
        }
    }

    /// Some pages in a row, within a kind half the time.
    fn range(&mut self) -> (u64, u64) {
        let first = self.random.below(ALL);
        let within = self.random.below(2) == 0;
        let end = if within { (first / RUN + 1) * RUN } else { ALL };
        (first, first + 1 + self.random.below((end - first).min(30)))
    }

    fn store(&mut self) {
        let (uvm, page, byte) = (self.uvm, self.random.below(ALL), self.random.below(255) as u8);
        let (side, is_child) = self.side();
        if kind(page) == Kind::ReadOnly || !can_load(page, is_child) {
            return;
        }
        store(uvm, &side.space, at(page), byte);
        self.note_store(page, is_child, byte);
    }

    /// A page shows a byte from now on.
    fn note_store(&mut self, page: u64, is_child: bool, byte: u8) {
        let sides = [
            Some(&mut self.parent).filter(|_| !is_child || is_of_both(page)),
            self.child.as_mut().filter(|_| is_child || is_of_both(page)),
        ];
        sides.into_iter().flatten().for_each(|side| side.bytes[page as usize] = byte);
    }

    /// A device gets some pages to write to.
    fn pin(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let pages = first..end.min(first + 4);
        let (side, by_child) = self.side();
        if let Ok(pinned) = uvm.wire_pages(held, &side.space, range_of(pages.clone()), Prot::WRITE)
        {
            self.pins.push(Pins { pinned, pages, by_child });
        }
    }

    fn unpin(&mut self, held: &mut Held<'_, Nothing>, which: impl Fn(&Pins) -> bool) {
        let uvm = self.uvm;
        self.pins
            .extract_if(.., |pins| which(pins))
            .for_each(|pins| uvm.unwire_pages(held, pins.pinned).unwrap());
    }

    /// The devices write.
    fn write_by_device(&mut self) {
        let mut written = Vec::new();
        for pins in &self.pins {
            for (page, &frame) in pins.pages.clone().zip(pins.pinned.pages()) {
                let byte = self.random.below(255) as u8;
                self.uvm.machine().write(frame, 0, &[byte]);
                written.push((page, pins.by_child, byte));
            }
        }
        written
            .into_iter()
            .for_each(|(page, by_child, byte)| self.note_store(page, by_child, byte));
    }

    fn is_pinned(&self, page: u64, is_child: bool) -> bool {
        self.pins.iter().any(|pins| pins.has(page, is_child))
    }

    fn loan(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let (_, is_child) = self.side();
        let side = self.child.as_ref().filter(|_| is_child).unwrap_or(&self.parent);
        let pmap = uvm.machine().pmap();
        let range = range_of(first..end);
        let copied = || uvm.stat().get(Counter::LoansCopied);
        let counted = || {
            let of = [Counter::LoansAnon, Counter::LoansObject, Counter::LoansZero];
            of.iter().map(|&counter| uvm.stat().get(counter)).sum::<u64>() + copied()
        };
        // What lies outside of the range and may be stored to.
        let writable = || {
            let all = pmap.mappings(side.space.pmap()).into_iter();
            let outside = all.filter(|m| m.prot.contains(Prot::WRITE) && !range.contains(m.va));
            outside.map(|m| m.va).collect::<Vec<_>>()
        };
        let before = (counted(), copied(), writable());
        let loan = within_reservation(|| uvm.loan_to_kernel(held, &side.space, range));
        let expected = (first..end).find_map(|page| match kind(page) {
            Kind::Uninherited if is_child => Some(FaultError::NoMapping),
            Kind::Hole => Some(FaultError::NoMapping),
            Kind::Unreadable => Some(FaultError::Protection),
            _ => None,
        });
        let loan = match loan {
            Ok(loan) => loan,
            Err(error) => return assert_eq!(Some(error), expected),
        };
        let showed = side.bytes[first as usize..end as usize].to_vec();
        assert_eq!((bytes(uvm, &loan), expected), (showed.clone(), None), "{first} to {end}");
        assert_eq!(counted() - before.0, end - first, "each page that is loaned is counted once");
        let pinned = (first..end).filter(|&page| self.is_pinned(page, is_child));
        assert_eq!(
            copied() - before.1,
            pinned.count() as u64,
            "pages of devices are copied, no others"
        );
        for (page, loan) in (first..end).zip(loan.pages()) {
            let Some((shown, _)) = pmap.extract(side.space.pmap(), at(page)) else { continue };
            assert_eq!(shown != loan.page(), self.is_pinned(page, is_child), "page {page}");
        }
        let still = writable();
        assert!(
            before.2.iter().all(|va| still.contains(va)),
            "what isn't loaned is stored to as before"
        );
        self.loan.push((loan, showed));
    }

    fn give(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let object = self.object.clone();
        let has_child = self.child.is_some();
        let (side, is_child) = self.side();
        let range = range_of(first..end);
        let given = within_reservation(|| uvm.give_to_kernel(held, &side.space, range)).unwrap();
        let Some(loan) = given else { return };
        let may = |page| match kind(page) {
            Kind::Private | Kind::OfObject | Kind::Parted => true,
            Kind::Inherited => !has_child,
            // A child's isn't locked.
            Kind::Wired => is_child,
            Kind::Uninherited => !is_child,
            Kind::Shared | Kind::ReadOnly | Kind::Hole | Kind::Unreadable => false,
        };
        assert!((first..end).all(may), "{first} to {end}");
        let showed = side.bytes[first as usize..end as usize].to_vec();
        assert_eq!(bytes(uvm, &loan), showed);
        for page in first..end {
            let below =
                if kind(page) == Kind::OfObject { object[(page % RUN) as usize] } else { 0 };
            side.bytes[page as usize] = below;
        }
        self.loan.push((loan, showed));
        // What a device writes there from now on, the program doesn't see.
        self.unpin(held, |pins| {
            pins.by_child == is_child && pins.pages.start < end && first < pins.pages.end
        });
    }

    /// Pages on loan become part of a space.
    fn transfer(&mut self, held: &mut Held<'_, Nothing>) {
        let Some((loan, showed)) = self.loan.pop() else { return };
        let frames = self.uvm.frames();
        // What is locked in memory elsewhere would be copied like a device's from then on.
        let is_locked =
            |page: &uvm::LoanedPage| frames.hold_count(page.page()) != frames.loans(page.page());
        if showed.len() > RUN as usize || showed.is_empty() || loan.pages().iter().any(is_locked) {
            return self.uvm.return_loan(held, loan).unwrap();
        }
        let uvm = self.uvm;
        let (side, is_child) = self.side();
        uvm.transfer(held, &side.space, loan, At::Fixed(at(0))).unwrap();
        side.bytes[..showed.len()].copy_from_slice(&showed);
        self.unpin(held, |pins| pins.by_child == is_child && pins.pages.start < RUN);
    }

    fn loan_object(&mut self, held: &mut Held<'_, Nothing>) {
        let (first, count) = (self.random.below(RUN), self.random.below(RUN + 3) as usize);
        let mut loan = Loan::new();
        let most = count.min((RUN - first) as usize);
        let copied = || self.uvm.stat().get(Counter::LoansCopied);
        let before = copied();
        let take = || self.uvm.loan_object(held, &self.shared, Pages(first), count, &mut loan);
        let got = within_reservation(take).unwrap();
        assert_eq!((got, loan.len()), (most, most));
        let from = first_of(Kind::Shared) + first;
        let pinned = (from..from + most as u64).filter(|&page| self.is_pinned(page, false));
        assert_eq!(copied() - before, pinned.count() as u64);
        let showed = self.parent.bytes[from as usize..from as usize + most].to_vec();
        assert_eq!(bytes(self.uvm, &loan), showed);
        self.loan.push((loan, showed));
    }

    fn write_out(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let (side, _) = self.side();
        uvm.pageout_range(held, &side.space, range_of(first..end));
        // Some are gone by now.
        (0..self.random.below(3)).for_each(|_| _ = uvm.machine().complete(0, Fate::Works));
    }

    fn fork(&mut self, held: &mut Held<'_, Nothing>) {
        self.unpin(held, |_| true);
        if let Some(child) = self.child.take() {
            self.uvm.space_destroy(held, child.space);
        }
        let space = self.uvm.fork(held, &self.parent.space).unwrap();
        self.child = Some(Side { space, bytes: self.parent.bytes.clone() });
    }

    fn step(&mut self, held: &mut Held<'_, Nothing>) {
        match self.random.below(16) {
            0..4 => self.store(),
            4..7 => self.loan(held),
            7 => self.give(held),
            8 => self.transfer(held),
            9 => self.loan_object(held),
            10 if self.random.below(3) == 0 => self.fork(held),
            10 => {}
            11 => self.pin(held),
            12 => self.write_by_device(),
            _ => {
                self.write_out(held);
                // What is being written is busy, or gone.
                match self.random.below(4) {
                    0 => self.give(held),
                    1 => self.loan_object(held),
                    _ => self.loan(held),
                }
            }
        }
        if self.loan.len() > 4 {
            let (loan, _) = self.loan.remove(0);
            self.uvm.return_loan(held, loan).unwrap();
        }
        if self.pins.len() > 3 {
            let pins = self.pins.remove(0);
            self.uvm.unwire_pages(held, pins.pinned).unwrap();
        }
    }

    fn check(&mut self, held: &mut Held<'_, Nothing>) {
        while self.uvm.machine().complete(0, Fate::Works) {}
        for (loan, showed) in &self.loan {
            assert_eq!(bytes(self.uvm, loan), *showed, "no store changes what is on loan");
        }
        let loan: Vec<_> = self.loan.iter().map(|(loan, _)| loan).collect();
        let sides = [Some(&self.parent), self.child.as_ref()];
        let spaces: Vec<_> = sides.iter().flatten().map(|side| &side.space).collect();
        self.uvm.audit(held, &spaces, std::slice::from_ref(&self.shared)).unwrap();
        self.uvm.audit_loans(held, &spaces, loan.iter().flat_map(|loan| loan.pages())).unwrap();
        self.uvm.machine().tlb_audit().unwrap();
        for (side, is_child) in sides.into_iter().zip([false, true]) {
            let (Some(side), page) = (side, self.random.below(ALL)) else { continue };
            if can_load(page, is_child) {
                assert_eq!(
                    load(self.uvm, &side.space, at(page)),
                    side.bytes[page as usize],
                    "page {page}"
                );
            }
        }
    }
}

#[test]
fn loans_show_what_loads_showed_whatever_is_stored_since() {
    for seed in 0..20 {
        let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
        let held = &mut ctx.held();
        let uvm = Arc::new(uvm);
        let mode = if seed % 2 == 0 { Mode::AtOnce } else { Mode::Later };
        uvm.swap_on(held, SwapDisk::new(&uvm, 2048, mode), 0).unwrap();
        let mut state = State::new(&uvm, held, seed);
        for _ in 0..200 {
            state.step(held);
            state.check(held);
        }
        state.unpin(held, |_| true);
        let State { parent, child, shared, loan, .. } = state;
        loan.into_iter().for_each(|(loan, _)| uvm.return_loan(held, loan).unwrap());
        [Some(parent), child]
            .into_iter()
            .flatten()
            .for_each(|side| uvm.space_destroy(held, side.space));
        uvm.detach(held, &*shared);
        drop(shared);
        audit(&uvm, held, &[], &[]);
        assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
    }
}

#[test]
fn what_was_written_out_is_brought_in_to_be_loaned_or_given() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = Arc::new(uvm);
    uvm.swap_on(held, SwapDisk::new(&uvm, 64, Mode::AtOnce), 0).unwrap();
    let (space, range) = written(&uvm, held, 4);
    // Two entries, of two pages each.
    let second = PageRange::new(range.start + Pages(2), range.end).unwrap();
    uvm.advise(held, &space, second, Advice::Random).unwrap();
    let write_out = |held: &mut Held<'_, Nothing>, first, end| {
        let out = PageRange::new(range.start + Pages(first), range.start + Pages(end)).unwrap();
        uvm.pageout_range(held, &space, out);
    };
    write_out(held, 1, 4);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    assert_eq!((bytes(&uvm, &loan), uvm.stat().get(Counter::LoansCopied)), (vec![1, 2, 3, 4], 0));
    uvm.return_loan(held, loan).unwrap();
    // What is there is loaned without a fault, whichever entry it is in.
    let faults = uvm.stat().get(Counter::Faults);
    let loan = uvm.loan_to_kernel(held, &space, range).unwrap();
    assert_eq!((loan.len(), uvm.stat().get(Counter::Faults)), (4, faults));
    uvm.return_loan(held, loan).unwrap();
    for out in [0..0, 0..1, 3..4, 1..3] {
        (0..4).for_each(|n| store(&uvm, &space, range.start + Pages(n), 50 + n as u8));
        write_out(held, out.start, out.end);
        let given =
            uvm.give_to_kernel(held, &space, range).unwrap().expect("two are brought in at most");
        assert_eq!(bytes(&uvm, &given), [50, 51, 52, 53]);
        uvm.return_loan(held, given).unwrap();
    }
    (0..4).for_each(|n| store(&uvm, &space, range.start + Pages(n), 50));
    write_out(held, 0, 4);
    assert!(uvm.give_to_kernel(held, &space, range).unwrap().is_none(), "more are not");
    audit(&uvm, held, &[&space], &[]);
    uvm.space_destroy(held, space);
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}

#[test]
fn a_loan_that_makes_room_in_the_middle_goes_on_where_it_was() {
    let ((uvm, free), mut ctx) = (world(256), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = Arc::new(uvm);
    uvm.swap_on(held, SwapDisk::new(&uvm, 64, Mode::AtOnce), 0).unwrap();
    let (space, range) = written(&uvm, held, 4);
    let (other, _) = written(&uvm, held, 32);
    // A device's page, which has an entry of its own.
    let third = PageRange::new(range.start + Pages(2), range.start + Pages(3)).unwrap();
    uvm.advise(held, &space, third, Advice::Random).unwrap();
    let pinned = uvm.wire_pages(held, &space, third, Prot::WRITE).unwrap();
    let mut loan = uvm.loan_to_kernel(held, &space, third).unwrap();
    uvm.machine().leave_free(0);
    let rest = uvm.loan_to_kernel(held, &space, range).unwrap();
    uvm.machine().give_back();
    uvm.machine().reserve_heap(Loan::bytes(5)).unwrap();
    loan.append(rest);
    assert!(uvm.stat().get(Counter::PagesFreed) > 0, "what others have was written out");
    assert_eq!(
        (bytes(&uvm, &loan), uvm.stat().get(Counter::LoansCopied)),
        (vec![3, 1, 2, 3, 4], 2)
    );
    audit(&uvm, held, &[&space, &other], &[&loan]);
    uvm.unwire_pages(held, pinned).unwrap();
    uvm.return_loan(held, loan).unwrap();
    [space, other].into_iter().for_each(|space| uvm.space_destroy(held, space));
    assert_eq!(uvm.frames().free(), free);
}
