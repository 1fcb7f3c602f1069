//! Lists of operations: at random by seed, or all of a length over a small alphabet.

use std::collections::VecDeque;

use uvm_soft::Rng;

use crate::model::{Expect, Model};
use crate::op::{
    At, Back, Inh, Kind, Op, Rights, Span, Way, DEVICES, LOANS, OBJECTS, PINS, RANGES, SPACES,
    WINDOW, WORDS,
};

/// A random list. A model runs along, so that most operations find something to work on.
pub fn random_list(seed: u64, len: usize) -> Vec<Op> {
    list(seed, len, Paging::None)
}

/// A random list over all spaces and addresses there are, so that far more pages are written than
/// memory holds.
pub fn crowded_list(seed: u64, len: usize) -> Vec<Op> {
    let rng = Rng::new(seed);
    let (window, spaces, paging) = (WINDOW, SPACES as u64, Paging::Works);
    let model = Model::default();
    Gen {
        rng,
        model,
        window,
        spaces,
        habit: Habit::Mixed,
        paging,
        fill_one_in: 1,
        next: VecDeque::new(),
    }
    .list(len)
}

/// What a list does about paging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paging {
    /// Nothing.
    None,
    /// Pages leave memory and come back, transfers end, swap is switched on and off.
    Works,
    /// Like [`Works`](Self::Works), and transfers fail.
    Fails,
}

/// A random list that fills memory and pages it out.
pub fn paging_list(seed: u64, len: usize, paging: Paging) -> Vec<Op> {
    list(seed, len, paging)
}

fn list(seed: u64, len: usize, paging: Paging) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let window = *rng.pick(&[6, 16, WINDOW]);
    let spaces = 2 + rng.below(SPACES as u64 - 1);
    let habit = *rng.pick(&[Habit::Mixed, Habit::Mixed, Habit::Sharing, Habit::OnePage]);
    let window = match habit {
        Habit::Mixed => window,
        Habit::Sharing => 6,
        Habit::OnePage => 1,
    };
    Gen {
        rng,
        model: Model::default(),
        window,
        spaces,
        habit,
        paging,
        fill_one_in: 2,
        next: VecDeque::new(),
    }
    .list(len)
}

struct Gen {
    rng: Rng,
    model: Model,
    /// Pages from 0 on, and spaces, that this list is about: the fewer, the more its operations
    /// meet.
    window: u64,
    spaces: u64,
    habit: Habit,
    paging: Paging,
    /// One new mapping in so many is written at once, where paging is the point.
    fill_one_in: u64,
    /// Operations that belong together with one before.
    next: VecDeque<Op>,
}

/// What a list does most.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// A bit of everything.
    Mixed,
    /// Memory shared by inheritance that is copied for others: rare by chance, and where most can
    /// go wrong.
    Sharing,
    /// One page of addresses, its inheritance, forks and stores: every way in which a page can have
    /// several owners that disagree.
    OnePage,
}

impl Gen {
    fn list(mut self, len: usize) -> Vec<Op> {
        let mut list = Vec::with_capacity(len);
        while list.len() < len {
            let op = self.next.pop_front().unwrap_or_else(|| self.op());
            let expect = self.model.apply(&op);
            if expect != Expect::Skip {
                list.push(op);
            }
            if let (Op::Map { s, len, .. }, Expect::Placed(page)) = (op, expect) {
                self.fill(s, Span(page, len));
            }
        }
        list
    }

    fn op(&mut self) -> Op {
        if self.paging != Paging::None && self.rng.one_in(4) {
            return self.paging();
        }
        let s = self.space();
        if self.model.spaces[s].is_none() {
            return self.first_of(s);
        }
        let choice = match self.habit {
            Habit::Sharing if self.rng.one_in(2) => {
                *self.rng.pick(&[0, 28, 45, 45, 55, 65, 65, 112, 120, 126, 138])
            }
            Habit::OnePage if !self.rng.one_in(8) => {
                *self.rng.pick(&[0, 28, 28, 45, 45, 45, 52, 55, 55, 65, 65, 112, 120, 126])
            }
            _ => self.rng.below(155),
        };
        match choice {
            0..=15 => self.map(s),
            16..=20 => Op::Unmap { s, span: self.span(s) },
            21..=27 => Op::Protect { s, span: self.span(s), rights: self.rights() },
            28..=33 => Op::Inherit { s, span: self.span(s), inherit: self.inherit() },
            34..=35 => Op::Advise { s, span: self.span(s), advice: self.rng.below(3) as u8 },
            36..=39 => Op::Discard { s, span: self.span(s) },
            40 if self.rng.one_in(2) => Op::RemapKeep { s, span: self.span(s), at: self.at(s) },
            40..=44 => {
                Op::Remap { s, span: self.span(s), new_len: 1 + self.rng.below(10), at: self.at(s) }
            }
            45..=51 => Op::Fork { s, child: self.space() },
            52..=53 if self.rng.one_in(2) => Op::Clear { s },
            52..=54 => Op::Exit { s },
            55..=64 => Op::Read { s, page: self.page(s), cpu: self.cpu() },
            65..=81 => Op::Write { s, page: self.page(s), cpu: self.cpu(), word: self.word() },
            82..=83 => Op::Execute { s, page: self.page(s), cpu: self.cpu() },
            84..=86 => Op::Wire { s, span: self.span(s) },
            87..=88 => Op::Unwire { s, span: self.span(s) },
            89..=90 => Op::Truncate { o: self.object(), len: self.length() },
            91..=92 => Op::ObjectRead { o: self.object(), page: self.index() },
            93..=95 => Op::ObjectWrite { o: self.object(), page: self.index(), word: self.word() },
            96 => Op::Detach { o: self.object() },
            97 if self.rng.one_in(2) => Op::Sync { o: self.object() },
            97 if self.rng.one_in(2) => Op::Clean { o: self.object(), span: self.indices() },
            97 => Op::Punch { o: self.object(), span: self.indices() },
            98 if self.rng.one_in(2) => Op::Forget,
            98..=101 => self.new_object(),
            102..=104 => self.pin(s),
            105..=107 => Op::Unpin { p: self.rng.below(PINS as u64) as usize, word: self.word() },
            108 => Op::WireTouched { s, span: self.span(s) },
            109 => Op::Attach { o: self.object(), to: self.object() },
            110 => Op::PageOutRange { s, span: self.span(s) },
            116 => Op::Give { l: self.loan(), s, span: self.span(s) },
            112..=115 => Op::Loan { l: self.loan(), s, span: self.span(s) },
            117..=118 => Op::LoanObject { l: self.loan(), o: self.object(), span: self.indices() },
            119 => Op::LoanAgain { l: self.loan(), to: self.loan() },
            120..=125 => Op::Return { l: self.loan() },
            126..=130 => {
                let (span, to, way) = (self.span(s), self.space(), self.way());
                Op::Pass { s, span, to, at: self.at(to), way }
            }
            131..=133 => Op::Extract { r: self.range(), s, span: self.span(s), way: self.way() },
            134..=136 => Op::AttachRange { r: self.range(), s, at: self.at(s) },
            137 if self.rng.one_in(2) => Op::Limit { r: self.range(), rights: self.rights() },
            137 => Op::DropRange { r: self.range() },
            138..=139 if self.rng.one_in(2) => Op::TransferAnywhere { l: self.loan(), s },
            138..=142 => Op::Transfer { l: self.loan(), s, page: self.page(s) },
            143..=146 => Op::Punch { o: self.object(), span: self.indices() },
            149..=150 => Op::Quota { n: *self.rng.pick(&[0, 2, 4, 9, 1000]) },
            151..=152 => Op::Inspect { s, span: self.short_span(s) },
            153..=154 => Op::Patch { s, span: self.short_span(s), word: self.word() },
            147..=148 => Op::Room { n: *self.rng.pick(&[0, 0, 1, 3, 100]) },
            _ => Op::Cool { s, span: self.span(s) },
        }
    }

    fn pin(&mut self, s: usize) -> Op {
        let (span, p) = (self.short_span(s), self.rng.below(PINS as u64) as usize);
        Op::Pin { p, s, span, access: *self.rng.pick(&[1, 2, 2]) }
    }

    fn paging(&mut self) -> Op {
        match self.rng.below(16) {
            0..=6 => Op::PageOut { n: 1 + self.rng.below(16) as usize },
            7..=11 => Op::CompleteIo { k: self.rng.below(4) as usize },
            12 => Op::SwapOn { d: self.rng.below(DEVICES as u64) as usize },
            13 => Op::SwapOff { d: self.rng.below(DEVICES as u64) as usize },
            14 if self.rng.one_in(2) => Op::Zram { percent: *self.rng.pick(&[0, 5, 10, 20, 50]) },
            _ if self.paging == Paging::Fails => Op::FailIo { k: self.rng.below(4) as usize },
            _ => Op::Forget,
        }
    }

    /// Where paging is the point, what has been mapped is often written too: all of it, one page
    /// after the other.
    fn fill(&mut self, s: usize, span: Span) {
        if self.paging != Paging::None && self.rng.one_in(self.fill_one_in) {
            let (cpu, word) = (self.cpu(), self.word());
            self.next.extend(span.pages().map(|page| Op::Write { s, page, cpu, word }));
        }
    }

    /// Makes a space that isn't there: where sharing is the point, mostly a child of another.
    fn first_of(&mut self, s: usize) -> Op {
        let others: Vec<usize> =
            (0..SPACES).filter(|&other| self.model.spaces[other].is_some()).collect();
        if others.is_empty() || self.habit == Habit::Mixed || self.rng.one_in(8) {
            Op::Spawn { s }
        } else {
            Op::Fork { s: *self.rng.pick(&others), child: s }
        }
    }

    fn map(&mut self, s: usize) -> Op {
        let (at, len) = (self.at(s), 1 + self.rng.below(8));
        let back = match self.rng.below(15) {
            0 => Back::Nothing,
            1..=6 => Back::Zero,
            7..=10 => Back::Private(self.object(), self.offset()),
            _ => Back::Shared(self.object(), self.offset()),
        };
        let rights = if self.rng.one_in(4) { self.rights() } else { 3 };
        let rights = if self.shows_rom(back) { rights & !2 } else { rights };
        let often = if self.habit == Habit::Mixed { 3 } else { 1 };
        let inherit = if self.rng.one_in(often) { Some(self.inherit()) } else { None };
        Op::Map { s, at, len, back, rights, inherit }
    }

    /// Whether a mapping could write a ROM.
    fn shows_rom(&self, back: Back) -> bool {
        let Back::Shared(o, _) = back else { return false };
        self.model.slots[o].is_some_and(|object| self.model.objects[object].kind == Kind::Rom)
    }

    fn at(&mut self, s: usize) -> At {
        match self.rng.below(8) {
            0..=1 if self.habit != Habit::OnePage => At::Any,
            2 => At::Hint(self.page(s)),
            3 => At::Free(self.page(s)),
            _ => At::Fixed(self.rng.below(self.window)),
        }
    }

    fn new_object(&mut self) -> Op {
        let kind = *self.rng.pick(&[
            Kind::Anon,
            Kind::Anon,
            Kind::Within,
            Kind::Within,
            Kind::File,
            Kind::File,
            Kind::Device,
            Kind::Rom,
        ]);
        Op::NewObject { o: self.object(), kind, len: self.length() }
    }

    fn space(&mut self) -> usize {
        self.rng.below(self.spaces) as usize
    }

    fn object(&mut self) -> usize {
        self.rng.below(OBJECTS as u64) as usize
    }

    fn loan(&mut self) -> usize {
        self.rng.below(LOANS as u64) as usize
    }

    fn range(&mut self) -> usize {
        self.rng.below(RANGES as u64) as usize
    }

    fn way(&mut self) -> Way {
        *self.rng.pick(&[Way::Share, Way::Copy, Way::Donate, Way::DonateZero])
    }

    fn cpu(&mut self) -> usize {
        self.rng.below(4) as usize
    }

    fn word(&mut self) -> usize {
        self.rng.below(WORDS as u64) as usize
    }

    fn length(&mut self) -> u64 {
        *self.rng.pick(&[1, 4, 8, 12, 70])
    }

    fn offset(&mut self) -> u64 {
        *self.rng.pick(&[0, 0, 0, 1, 3, 60])
    }

    fn index(&mut self) -> u64 {
        if self.rng.one_in(8) {
            60 + self.rng.below(10)
        } else {
            self.rng.below(9)
        }
    }

    fn indices(&mut self) -> Span {
        Span(self.index(), 1 + self.rng.below(6))
    }

    fn rights(&mut self) -> Rights {
        *self.rng.pick(&[0, 1, 1, 1, 3, 3, 3, 5, 7])
    }

    fn inherit(&mut self) -> Inh {
        if self.habit != Habit::Mixed {
            return *self.rng.pick(&[Inh::Share, Inh::Share, Inh::Copy]);
        }
        *self.rng.pick(&[Inh::None, Inh::Share, Inh::Share, Inh::Copy, Inh::Copy, Inh::Zero])
    }

    /// A page that is mapped, mostly.
    fn page(&mut self, s: usize) -> u64 {
        let mapped: Vec<u64> =
            self.model.spaces[s].iter().flat_map(|space| space.keys().copied()).collect();
        if mapped.is_empty() || self.rng.one_in(8) {
            self.rng.below(self.window)
        } else {
            *self.rng.pick(&mapped)
        }
    }

    fn span(&mut self, s: usize) -> Span {
        let start = self.page(s);
        Span(start, (1 + self.rng.below(6)).min(WINDOW - start))
    }

    /// No more pages than are pinned at once.
    fn short_span(&mut self, s: usize) -> Span {
        let span = self.span(s);
        Span(span.0, span.1.min(4))
    }
}

/// All lists of `len` operations over an alphabet, each after the same beginning. A list with an
/// operation that concerns nothing is left out: without it, it is the beginning of another.
pub fn all_lists<'a>(
    beginning: &'a [Op],
    alphabet: &'a [Op],
    len: u32,
) -> impl Iterator<Item = Vec<Op>> + 'a {
    let size = alphabet.len() as u64;
    (0..size.pow(len)).filter_map(move |mut number| {
        let mut list = beginning.to_vec();
        for _ in 0..len {
            list.push(alphabet[(number % size) as usize]);
            number /= size;
        }
        let mut model = Model::default();
        list.iter().all(|op| model.apply(op) != Expect::Skip).then_some(list)
    })
}
