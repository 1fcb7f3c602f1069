//! Loans of any ranges of memory of all kinds, between stores, forks, transfers and pages that are written to swap, against a byte for each
//! page.

mod lending;
mod stores;

use std::sync::Arc;

use lending::{audit, load, store, world, written, World, BOUNDS};
use machine::order::Nothing;
use machine::{Held, Machine, Pages, Prot, ThreadCtx, Va, VaRange};
use stores::{Mode, SwapDisk};
use uvm::{Advice, AnonObject, At, Counter, FaultError, Inherit, Lent, MapRequest, Pager, Sharing, Space};
use uvm_soft::{Fate, Rng, SoftMachine};

#[global_allocator]
static HEAP: uvm_soft::ChargedHeap = uvm_soft::ChargedHeap;

/// Pages of each kind of memory.
const RUN: u64 = 12;

/// Kinds of memory, in order of address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Private,
    /// Private, of an object that some of its pages are in.
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

const KINDS: [Kind; 9] = [
    Kind::Private,
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

fn kind(page: u64) -> Kind {
    KINDS[(page / RUN) as usize]
}

fn at(page: u64) -> Va {
    BOUNDS.start + Pages(page)
}

/// A space, and what a load from each page shows.
struct Side {
    space: Space<SoftMachine>,
    bytes: Vec<u8>,
}

struct State<'u> {
    uvm: &'u World,
    parent: Side,
    child: Option<Side>,
    /// What the private mapping shows where nothing was stored.
    object: Vec<u8>,
    shared: Arc<dyn Pager<SoftMachine>>,
    /// Loans, with what each showed.
    lent: Vec<(Lent, Vec<u8>)>,
    random: Rng,
}

fn bytes(uvm: &World, lent: &Lent) -> Vec<u8> {
    let first = |page: &uvm::LentPage| {
        let mut byte = [0];
        uvm.machine().read(page.page(), 0, &mut byte);
        byte[0]
    };
    lent.pages().iter().map(first).collect()
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
                Kind::OfObject => {
                    let first = of(&pagers[0], Sharing::Shared);
                    uvm.map(held, &space, &first).unwrap();
                    for n in (0..RUN).filter(|n| n % 3 != 0) {
                        object[n as usize] = 100 + n as u8;
                        store(uvm, &space, place + Pages(n), 100 + n as u8);
                        all[(run * RUN + n) as usize] = 100 + n as u8;
                    }
                    uvm.unmap(held, &space, VaRange::new(place, place + Pages(RUN))).unwrap();
                    of(&pagers[0], Sharing::Private)
                }
                Kind::Shared => of(&pagers[1], Sharing::Shared),
                _ => zero(),
            };
            uvm.map(held, &space, &request).unwrap();
            let range = VaRange::new(place, place + Pages(RUN));
            if kind == Kind::Inherited {
                uvm.inherit(held, &space, range, Inherit::Share).unwrap();
            }
            if kind == Kind::Parted {
                // The amap has become one before.
                store(uvm, &space, place, 0);
                uvm.protect(held, &space, VaRange::new(place, place + Pages(5)), Prot::READ).unwrap();
                uvm.protect(held, &space, VaRange::new(place, place + Pages(5)), Prot::READ_WRITE).unwrap();
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
            object,
            shared,
            lent: Vec::new(),
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
        if matches!(kind(page), Kind::Hole | Kind::ReadOnly | Kind::Unreadable) {
            return;
        }
        let (side, _) = self.side();
        store(uvm, &side.space, at(page), byte);
        side.bytes[page as usize] = byte;
        if matches!(kind(page), Kind::Shared | Kind::Inherited) {
            for side in [Some(&mut self.parent), self.child.as_mut()].into_iter().flatten() {
                side.bytes[page as usize] = byte;
            }
        }
    }

    fn loan(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let (side, _) = self.side();
        let counted = || {
            let of = [Counter::LoansAnon, Counter::LoansObject, Counter::LoansZero, Counter::LoansCopied];
            of.iter().map(|&counter| uvm.stat().get(counter)).sum::<u64>()
        };
        let before = counted();
        let range = VaRange::new(at(first), at(end));
        let lent = uvm.loan_to_kernel(held, &side.space, range);
        let expected = (first..end).find_map(|page| match kind(page) {
            Kind::Hole => Some(FaultError::NoMapping),
            Kind::Unreadable => Some(FaultError::Protection),
            _ => None,
        });
        match lent {
            Ok(lent) => {
                let showed = side.bytes[first as usize..end as usize].to_vec();
                assert_eq!((bytes(uvm, &lent), expected), (showed.clone(), None), "{first} to {end}");
                assert_eq!(counted() - before, end - first, "each page that is lent is counted once");
                self.lent.push((lent, showed));
            }
            Err(error) => assert_eq!(Some(error), expected),
        }
    }

    fn give(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let object = self.object.clone();
        let has_child = self.child.is_some();
        let (side, is_child) = self.side();
        let range = VaRange::new(at(first), at(end));
        let Some(lent) = uvm.give_to_kernel(held, &side.space, range).unwrap() else { return };
        let may = |page| match kind(page) {
            Kind::Private | Kind::OfObject | Kind::Parted => true,
            Kind::Inherited => !has_child,
            // A child's isn't locked.
            Kind::Wired => is_child,
            Kind::Shared | Kind::ReadOnly | Kind::Hole | Kind::Unreadable => false,
        };
        assert!((first..end).all(may), "{first} to {end}");
        let showed = side.bytes[first as usize..end as usize].to_vec();
        assert_eq!(bytes(uvm, &lent), showed);
        for page in first..end {
            let below = if kind(page) == Kind::OfObject { object[(page % RUN) as usize] } else { 0 };
            side.bytes[page as usize] = below;
        }
        self.lent.push((lent, showed));
    }

    /// Pages on loan become part of a space.
    fn transfer(&mut self, held: &mut Held<'_, Nothing>) {
        let Some((lent, showed)) = self.lent.pop() else { return };
        if showed.len() > RUN as usize || showed.is_empty() {
            return self.uvm.return_loan(held, lent);
        }
        let uvm = self.uvm;
        let (side, _) = self.side();
        uvm.transfer(held, &side.space, lent, At::Fixed(at(0))).unwrap();
        side.bytes[..showed.len()].copy_from_slice(&showed);
    }

    fn lend_object(&mut self, held: &mut Held<'_, Nothing>) {
        let (first, count) = (self.random.below(RUN), self.random.below(RUN + 3) as usize);
        let mut lent = Lent::new();
        let most = count.min((RUN - first) as usize);
        let got = self.uvm.lend_object(held, &self.shared, Pages(first), count, &mut lent).unwrap();
        assert_eq!((got, lent.len()), (most, most));
        let from = (3 * RUN + first) as usize;
        let showed = self.parent.bytes[from..from + most].to_vec();
        assert_eq!(bytes(self.uvm, &lent), showed);
        self.lent.push((lent, showed));
    }

    fn write_out(&mut self, held: &mut Held<'_, Nothing>) {
        let (uvm, (first, end)) = (self.uvm, self.range());
        let (side, _) = self.side();
        uvm.pageout_range(held, &side.space, VaRange::new(at(first), at(end)));
        // Some are gone by now.
        (0..self.random.below(3)).for_each(|_| _ = uvm.machine().complete(0, Fate::Works));
    }

    fn fork(&mut self, held: &mut Held<'_, Nothing>) {
        if let Some(child) = self.child.take() {
            self.uvm.space_destroy(held, child.space);
        }
        let space = self.uvm.fork(held, &self.parent.space).unwrap();
        self.child = Some(Side { space, bytes: self.parent.bytes.clone() });
    }

    fn step(&mut self, held: &mut Held<'_, Nothing>) {
        match self.random.below(14) {
            0..4 => self.store(),
            4..7 => self.loan(held),
            7 => self.give(held),
            8 => self.transfer(held),
            9 => self.lend_object(held),
            10 if self.random.below(3) == 0 => self.fork(held),
            10 => {}
            _ => {
                self.write_out(held);
                // What is being written is busy, or gone.
                match self.random.below(4) {
                    0 => self.give(held),
                    1 => self.lend_object(held),
                    _ => self.loan(held),
                }
            }
        }
        if self.lent.len() > 4 {
            let (lent, _) = self.lent.remove(0);
            self.uvm.return_loan(held, lent);
        }
    }

    fn check(&mut self, held: &mut Held<'_, Nothing>) {
        while self.uvm.machine().complete(0, Fate::Works) {}
        for (lent, showed) in &self.lent {
            assert_eq!(bytes(self.uvm, lent), *showed, "nobody's store changes what is on loan");
        }
        let lent: Vec<_> = self.lent.iter().map(|(lent, _)| lent).collect();
        let sides = [Some(&self.parent), self.child.as_ref()];
        let spaces: Vec<_> = sides.iter().flatten().map(|side| &side.space).collect();
        self.uvm.audit(held, &spaces, std::slice::from_ref(&self.shared)).unwrap();
        self.uvm.audit_loans(held, &spaces, lent.iter().flat_map(|lent| lent.pages())).unwrap();
        self.uvm.machine().tlb_audit().unwrap();
        for side in sides.into_iter().flatten() {
            let page = self.random.below(ALL);
            if !matches!(kind(page), Kind::Hole | Kind::Unreadable) {
                assert_eq!(load(self.uvm, &side.space, at(page)), side.bytes[page as usize], "page {page}");
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
        let State { parent, child, shared, lent, .. } = state;
        lent.into_iter().for_each(|(lent, _)| uvm.return_loan(held, lent));
        [Some(parent), child].into_iter().flatten().for_each(|side| uvm.space_destroy(held, side.space));
        uvm.detach(held, &*shared);
        drop(shared);
        audit(&uvm, held, &[], &[]);
        assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
    }
}

#[test]
fn what_was_written_out_is_brought_in_to_be_lent_or_given() {
    let ((uvm, free), mut ctx) = (world(1024), ThreadCtx::new());
    let held = &mut ctx.held();
    let uvm = Arc::new(uvm);
    uvm.swap_on(held, SwapDisk::new(&uvm, 64, Mode::AtOnce), 0).unwrap();
    let (space, range) = written(&uvm, held, 4);
    // Two entries, of two pages each.
    let second = VaRange::new(range.start + Pages(2), range.end);
    uvm.advise(held, &space, second, Advice::Random).unwrap();
    let write_out = |held: &mut Held<'_, Nothing>, first, end| {
        let out = VaRange::new(range.start + Pages(first), range.start + Pages(end));
        uvm.pageout_range(held, &space, out);
    };
    write_out(held, 1, 4);
    let lent = uvm.loan_to_kernel(held, &space, range).unwrap();
    assert_eq!((bytes(&uvm, &lent), uvm.stat().get(Counter::LoansCopied)), (vec![1, 2, 3, 4], 0));
    uvm.return_loan(held, lent);
    // What is there is lent without a fault, whichever entry it is in.
    let faults = uvm.stat().get(Counter::Faults);
    let lent = uvm.loan_to_kernel(held, &space, range).unwrap();
    assert_eq!((lent.len(), uvm.stat().get(Counter::Faults)), (4, faults));
    uvm.return_loan(held, lent);
    for out in [0..0, 0..1, 3..4, 1..3] {
        (0..4).for_each(|n| store(&uvm, &space, range.start + Pages(n), 50 + n as u8));
        write_out(held, out.start, out.end);
        let given = uvm.give_to_kernel(held, &space, range).unwrap().expect("two are brought in at most");
        assert_eq!(bytes(&uvm, &given), [50, 51, 52, 53]);
        uvm.return_loan(held, given);
    }
    (0..4).for_each(|n| store(&uvm, &space, range.start + Pages(n), 50));
    write_out(held, 0, 4);
    assert!(uvm.give_to_kernel(held, &space, range).unwrap().is_none(), "more are not");
    audit(&uvm, held, &[&space], &[]);
    uvm.space_destroy(held, space);
    assert_eq!((uvm.frames().free(), uvm.anons()), (free, 0));
}
