//! The library beside the reference model, on lists of operations that bytes say.
//!
//! Three bytes choose the machine, then each eight are an operation: what it is, and its numbers.
//! All records have one length, so that a byte that a fuzzer changes, or a piece that it moves,
//! leaves the other operations as they are. Numbers that the world gives no meaning are taken
//! modulo what it has; spans, lengths and places reach to the window's last page and over it,
//! rights and orders are any.

use machine::Pa;
use uvm_check::model::{Expect, Model};
use uvm_check::op::{
    At, Back, Inh, Kind, Op, Span, Way, DEVICES, LOANS, OBJECTS, PINS, RANGES, SPACES, WINDOW,
    WORDS,
};
use uvm_check::run::run_and_shrink;
use uvm_check::world::{Memory, Setup, Watch};
use uvm_soft::Config;

/// Bytes before the first operation.
const HEADER: usize = 3;
/// Bytes of an operation.
const RECORD: usize = 8;
/// Operations of a list, at most.
const OPERATIONS: usize = 120;

/// Runs a list: each answer, each translation, the audit after each operation, and the memory at
/// the end are the model's.
///
/// # Panics
/// If they aren't.
pub fn target(bytes: &[u8]) {
    let Some((header, records)) = bytes.split_first_chunk::<HEADER>() else { return };
    if let Err(failure) = run_and_shrink(&list(records), &setup(*header)) {
        panic!("{failure}");
    }
}

/// 20 to 51 page frames, or 200; few slots of swap or, where their table has room, many.
fn setup([machine, swap, seed]: [u8; HEADER]) -> Setup {
    let swaps = [[120, 40], [24, 12], [300, 20], [0, 40]][usize::from(swap & 3)];
    let least = if swaps[0] == 300 { 40 } else { 20 };
    let frames = if machine & 0x80 == 0 { least + u32::from(machine & 31) } else { 200 };
    let forget_one_in = if machine & 0x20 == 0 { 0 } else { 6 };
    let config = Config {
        seed: u64::from(seed),
        segments: vec![(Pa(0x10_0000), frames)],
        forget_one_in,
        ..Config::default()
    };
    let watch = if machine & 0x40 == 0 { Watch::Peek } else { Watch::Look };
    Setup { swaps, memory: Memory::MayRunOut, ..Setup::new(config, watch) }
}

/// The operations that these records say, but for those that find nothing to work on: a model runs
/// along.
fn list(records: &[u8]) -> Vec<Op> {
    let mut model = Model::default();
    let mut list = Vec::new();
    for record in records.chunks_exact(RECORD).take(OPERATIONS) {
        let op = operation(record, &model);
        if model.apply(&op) != Expect::Skip {
            list.push(op);
        }
    }
    list
}

/// A record's numbers, in their order.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.next()) % n
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn space(&mut self) -> usize {
        self.below(SPACES)
    }

    fn object(&mut self) -> usize {
        self.below(OBJECTS)
    }

    fn loan(&mut self) -> usize {
        self.below(LOANS)
    }

    fn range(&mut self) -> usize {
        self.below(RANGES)
    }

    fn word(&mut self) -> usize {
        self.below(WORDS)
    }

    /// A page of the window.
    fn page(&mut self) -> u64 {
        self.below(WINDOW as usize) as u64
    }

    /// Pages of the window, up to all of it.
    fn span(&mut self) -> Span {
        let start = self.page();
        Span(start, (1 + self.below(WINDOW as usize) as u64).min(WINDOW - start))
    }

    /// No more pages than the world takes at once where it keeps hold of them.
    fn short_span(&mut self) -> Span {
        let span = self.span();
        Span(span.0, span.1.min(4))
    }

    /// A page of an object, which may lie behind its end.
    fn index(&mut self) -> u64 {
        self.below(80) as u64
    }

    fn indices(&mut self) -> Span {
        Span(self.index(), 1 + self.below(20) as u64)
    }

    fn rights(&mut self) -> u8 {
        self.next() & 7
    }

    fn inherit(&mut self) -> Inh {
        self.pick(&[Inh::Share, Inh::Copy, Inh::None, Inh::Zero])
    }

    fn way(&mut self) -> Way {
        self.pick(&[Way::Share, Way::Copy, Way::Donate, Way::DonateZero])
    }

    fn at(&mut self) -> At {
        let how = self.next();
        let page = self.page();
        match how % 8 {
            0 => At::Any,
            1 => At::Hint(page),
            2 => At::Free(page),
            _ => At::Fixed(page),
        }
    }
}

/// What one record says in this world.
fn operation(record: &[u8], model: &Model) -> Op {
    let mut n = Numbers(&record[1..]);
    let s = n.space();
    match record[0] % 56 {
        0 => Op::Spawn { s },
        1 | 2 => new_object(&mut n),
        3..=6 => map(s, &mut n, model),
        7 => Op::Unmap { s, span: n.span() },
        8 => Op::Protect { s, span: n.span(), rights: n.rights() },
        9 => Op::Inherit { s, span: n.span(), inherit: n.inherit() },
        10 => Op::Advise { s, span: n.span(), advice: n.below(3) as u8 },
        11 => Op::Discard { s, span: n.span() },
        12 => Op::Remap { s, span: n.span(), new_len: 1 + n.page(), at: n.at() },
        13 => Op::RemapKeep { s, span: n.span(), at: n.at() },
        14 | 15 => Op::Fork { s, child: n.space() },
        16 => Op::Clear { s },
        17 => Op::Exit { s },
        18 | 19 => Op::Read { s, page: n.page(), cpu: n.below(4) },
        20..=22 => Op::Write { s, page: n.page(), cpu: n.below(4), word: n.word() },
        23 => Op::Execute { s, page: n.page(), cpu: n.below(4) },
        24 => Op::Wire { s, span: n.short_span() },
        25 => Op::WireTouched { s, span: n.short_span() },
        26 => Op::Unwire { s, span: n.span() },
        27 => Op::Pin { p: n.below(PINS), s, span: n.short_span(), access: n.pick(&[1, 2]) },
        28 => Op::Unpin { p: n.below(PINS), word: n.word() },
        29 => Op::Inspect { s, span: n.short_span() },
        30 => Op::Patch { s, span: n.short_span(), word: n.word() },
        31 => Op::Loan { l: n.loan(), s, span: n.short_span() },
        32 => {
            let span = n.indices();
            Op::LoanObject { l: n.loan(), o: n.object(), span: Span(span.0, span.1.min(6)) }
        }
        33 => Op::Give { l: n.loan(), s, span: n.short_span() },
        34 => Op::LoanAgain { l: n.loan(), to: n.loan() },
        35 => Op::Return { l: n.loan() },
        36 => Op::Pass { s, span: n.span(), to: n.space(), at: n.at(), way: n.way() },
        37 => Op::Extract { r: n.range(), s, span: n.span(), way: n.way() },
        38 => Op::AttachRange { r: n.range(), s, at: n.at() },
        39 if n.below(2) == 0 => Op::DropRange { r: n.range() },
        39 => Op::Limit { r: n.range(), rights: n.rights() },
        40 => Op::Transfer { l: n.loan(), s, page: n.page() },
        41 => Op::TransferAnywhere { l: n.loan(), s },
        42 | 43 => Op::Truncate { o: n.object(), len: n.index() },
        44 => Op::ObjectRead { o: n.object(), page: n.index() },
        45 => Op::ObjectWrite { o: n.object(), page: n.index(), word: n.word() },
        46 if n.below(2) == 0 => Op::Sync { o: n.object() },
        46 => Op::Clean { o: n.object(), span: n.indices() },
        47 => Op::Punch { o: n.object(), span: n.indices() },
        48 if n.below(2) == 0 => Op::Room { n: n.pick(&[0, 1, 3, 100]) },
        48 => Op::Quota { n: n.pick(&[0, 2, 4, 9, 1000]) },
        49 => Op::Attach { o: n.object(), to: n.object() },
        50 => Op::Detach { o: n.object() },
        51 => Op::PageOut { n: 1 + n.below(60) },
        52 => Op::PageOutRange { s, span: n.span() },
        53 => Op::Cool { s, span: n.span() },
        54 if n.below(2) == 0 => Op::CompleteIo { k: n.below(4) },
        54 => Op::FailIo { k: n.below(4) },
        _ => match n.below(4) {
            0 => Op::SwapOn { d: n.below(DEVICES) },
            1 => Op::SwapOff { d: n.below(DEVICES) },
            2 => Op::Zram { percent: n.pick(&[0, 5, 10, 20, 50]) },
            _ => Op::Forget,
        },
    }
}

fn new_object(n: &mut Numbers) -> Op {
    let kind = n.pick(&[Kind::Anon, Kind::Within, Kind::File, Kind::Device, Kind::Rom]);
    Op::NewObject { o: n.object(), kind, len: 1 + n.index() }
}

fn map(s: usize, n: &mut Numbers, model: &Model) -> Op {
    let (at, len) = (n.at(), 1 + n.page());
    let (what, rights) = (n.next(), n.next());
    let (o, offset) = (n.object(), u64::from(rights >> 3));
    let back = match what % 8 {
        0 => Back::Nothing,
        1..=3 => Back::Zero,
        4 | 5 => Back::Private(o, offset),
        _ => Back::Shared(o, offset),
    };
    // A ROM has no mapping that may write it.
    let is_rom =
        |slot: Option<usize>| slot.is_some_and(|object| model.objects[object].kind == Kind::Rom);
    let mask = if matches!(back, Back::Shared(..)) && is_rom(model.slots[o]) { 5 } else { 7 };
    let inherit =
        [None, Some(Inh::Share), Some(Inh::Copy), Some(Inh::Zero)][usize::from(what >> 3) % 4];
    Op::Map { s, at, len, back, rights: rights & mask, inherit }
}
