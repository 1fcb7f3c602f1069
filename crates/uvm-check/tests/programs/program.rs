//! Programs: a beginning that one thread runs, then three threads of one to three operations each.
//!
//! ```text
//!   beginning (3 to 9 operations)  ──┬── thread 0 (CPU 0): 1 to 3 operations ──┐
//!                                    ├── thread 1 (CPU 1)                      ├── everything is read
//!                                    └── thread 2 (CPU 2)                      ┘
//! ```
//!
//! All threads name the same spaces and objects. What is a value in one thread's hands belongs to a
//! thread: loan `l`, pin `p`, range `r` are those of the thread of that number, and a space that a
//! thread forks is its own. Operations that work page by page are asked for one page, so that each
//! operation is one moment; those that are documented to be one for all of their pages get two.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use uvm_check::model::{Expect, Model};
use uvm_check::op::{
    At, Back, Inh, Kind, Op, Rights, Span, Way, LOANS, OBJECTS, PINS, RANGES, SPACES, WORDS,
};
use uvm_soft::Rng;

/// Threads of a program.
pub const THREADS: usize = 3;
/// Pages of addresses that a program is about, from the window's first.
pub const PAGES: u64 = 4;
/// Pages of each object.
const LENGTH: u64 = 4;
/// Operations that every program begins with: a swap device, a space and two objects.
const FIXED: usize = 4;
/// The object that is anonymous memory, and the one that is a file.
const ANON: usize = 0;
/// See [`ANON`].
const FILE: usize = 1;

/// See the module. The debug form is the code that makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// What one thread does first.
    pub beginning: Vec<Op>,
    /// Then it faults on each page until locks are open to readers on all CPUs, and the pmap
    /// forgets what it may.
    pub opens_locks: bool,
    /// What the threads do.
    pub threads: [Vec<Op>; THREADS],
}

impl Program {
    /// The program of a seed.
    pub fn random(seed: u64) -> Program {
        let mut rng = Rng::new(seed);
        let theme = *rng.pick(&[Theme::Everything, Theme::Everything, Theme::Loans, Theme::Files]);
        let favourite = rng.below(PAGES);
        let mut gen = Gen { rng, theme, favourite, model: Model::default(), next: VecDeque::new() };
        let beginning = gen.beginning();
        let after = gen.model.clone();
        let spaces = std::array::from_fn(|s| after.spaces[s].is_some());
        let threads = std::array::from_fn(|thread| {
            gen.model = after.clone();
            gen.thread(thread, &spaces)
        });
        Program { beginning, opens_locks: gen.rng.one_in(2), threads }
    }

    /// All programs with one operation less: first those with less to do at once.
    pub fn shorter(&self) -> Vec<Program> {
        let mut all = Vec::new();
        for thread in 0..THREADS {
            for at in 0..self.threads[thread].len() {
                let mut less = self.clone();
                less.threads[thread].remove(at);
                all.push(less);
            }
        }
        for at in FIXED..self.beginning.len() {
            let mut less = self.clone();
            less.beginning.remove(at);
            all.push(less);
        }
        all
    }
}

/// What a program is about: threads that work on the same things meet more often.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Everything,
    /// Private memory that is loaned, transferred and forked.
    Loans,
    /// A file's pages that are mapped, dropped and truncated.
    Files,
}

impl Theme {
    /// The choices of [`Gen::op`] that belong to it.
    fn choices(self) -> &'static [RangeInclusive<u64>] {
        match self {
            Theme::Everything => &[0..=63],
            Theme::Loans => &[0..=15, 17..=23, 29..=30, 35..=48, 60..=63],
            Theme::Files => &[0..=15, 22..=24, 42..=42, 44..=45, 49..=49, 54..=63],
        }
    }
}

struct Gen {
    rng: Rng,
    theme: Theme,
    /// The page that most operations are about.
    favourite: u64,
    /// What goes with the operation before, as a transfer with a loan.
    next: VecDeque<Op>,
    /// The world as the thread that is being made would see it alone.
    model: Model,
}

impl Gen {
    fn beginning(&mut self) -> Vec<Op> {
        let mut list = Vec::new();
        let fixed: [Op; FIXED] = [
            Op::SwapOn { d: 0 },
            Op::Spawn { s: 0 },
            Op::NewObject { o: ANON, kind: Kind::Anon, len: LENGTH },
            Op::NewObject { o: FILE, kind: Kind::File, len: LENGTH },
        ];
        for op in fixed {
            self.model.apply(&op);
            list.push(op);
        }
        let mut next = vec![self.map(0, At::Fixed(0))];
        if self.rng.one_in(3) {
            next.push(Op::Spawn { s: 1 });
            next.push(self.map(1, At::Fixed(0)));
        }
        for _ in 0..2 + self.rng.below(5) {
            let op = self.first();
            next.push(op);
        }
        for op in next {
            if self.model.apply(&op) != Expect::Skip {
                list.push(op);
            }
        }
        list
    }

    /// An operation that makes the threads' world interesting.
    fn first(&mut self) -> Op {
        let (s, cpu) = (self.space(), self.rng.below(THREADS as u64) as usize);
        let page = self.page();
        match self.rng.below(17) {
            16 => Op::Forget,
            0..=5 => Op::Write { s, page, cpu, word: self.word() },
            6..=7 => Op::Read { s, page, cpu },
            8 => Op::Fork { s, child: self.any(SPACES) },
            9 => Op::Inherit { s, span: Span(0, PAGES), inherit: Inh::Share },
            10 => Op::Loan { l: self.any(LOANS), s, span: Span(page, 1) },
            11 => Op::Wire { s, span: Span(page, 1) },
            12 => Op::PageOutRange { s, span: Span(0, PAGES) },
            13 => Op::ObjectWrite { o: self.object(), page: self.index(), word: self.word() },
            14 => Op::Extract { r: self.any(RANGES), s, span: self.span(), way: self.way() },
            _ => self.map(s, At::Fixed(page)),
        }
    }

    /// The operations of one thread. `spaces` are those that all threads have.
    fn thread(&mut self, thread: usize, spaces: &[bool; SPACES]) -> Vec<Op> {
        let mut list = Vec::new();
        self.next.clear();
        let len = 1 + self.rng.below(3);
        for _ in 0..40 {
            if list.len() as u64 == len {
                break;
            }
            let op = self.next.pop_front().unwrap_or_else(|| self.op(thread));
            let is_wired =
                |s: usize| self.model.spaces[s].iter().flatten().any(|(_, page)| page.wired);
            if is_allowed(&op, thread, spaces, is_wired) && self.model.apply(&op) != Expect::Skip {
                list.push(op);
                self.go_on(&op, thread);
            }
        }
        list
    }

    /// What a program does with what it has got.
    fn go_on(&mut self, op: &Op, thread: usize) {
        match *op {
            Op::Loan { l, .. } | Op::Give { l, .. } | Op::LoanObject { l, .. }
                if self.rng.one_in(2) =>
            {
                let (s, page) = (self.space(), self.page());
                self.next.push_back(Op::Transfer { l, s, page });
            }
            Op::Transfer { s, .. } if self.rng.one_in(2) => {
                self.next.push_back(Op::Fork { s, child: 2 + thread % 2 });
            }
            _ => {}
        }
    }

    fn op(&mut self, thread: usize) -> Op {
        let (s, cpu) = (self.space(), thread);
        let (page, span) = (self.page(), self.span());
        let one = Span(page, 1);
        // Threads without a pin or range of their own name one that isn't allowed, and choose
        // again.
        let (l, p, r) = (thread, thread.min(PINS - 1), thread.min(RANGES - 1));
        let o = self.object();
        let choices = self.rng.pick(self.theme.choices()).clone();
        match choices.start() + self.rng.below(choices.end() - choices.start() + 1) {
            0..=6 => Op::Read { s, page, cpu },
            7..=15 => Op::Write { s, page, cpu, word: self.word() },
            16 => Op::Execute { s, page, cpu },
            17..=20 => Op::Fork { s, child: 2 + thread % 2 },
            21 => Op::Exit { s: 2 + thread % 2 },
            22..=23 => Op::Unmap { s, span },
            24..=25 => {
                self.map(s, self.model.page(s, page).map_or(At::Free(page), |_| At::Fixed(page)))
            }
            26 => self.map(s, At::Free(page)),
            27 => Op::Protect { s, span, rights: self.rights() },
            28 => Op::Inherit {
                s,
                span,
                inherit: *self.rng.pick(&[Inh::Share, Inh::Copy, Inh::Zero]),
            },
            29 => Op::Discard { s, span },
            30 if self.rng.one_in(2) => {
                Op::RemapKeep { s, span, at: At::Fixed(self.rng.below(2 * PAGES)) }
            }
            30 => Op::Remap { s, span, new_len: span.1, at: At::Fixed(self.rng.below(2 * PAGES)) },
            31..=32 => Op::Wire { s, span: one },
            33..=34 => Op::Unwire { s, span: one },
            35..=36 => Op::Pin { p, s, span: one, access: *self.rng.pick(&[1, 2]) },
            37..=38 => Op::Unpin { p, word: 0 },
            39..=41 => Op::Loan { l, s, span: one },
            42 => Op::LoanObject { l, o, span: Span(self.index(), 1) },
            43 => Op::Give { l, s, span: one },
            44..=45 => Op::Return { l },
            46..=49 => Op::Transfer { l, s, page },
            50 => {
                Op::Pass { s, span, to: self.space(), at: At::Fixed(self.page()), way: self.way() }
            }
            51 => Op::Extract { r, s, span, way: self.way() },
            52 => Op::AttachRange { r, s, at: At::Fixed(page) },
            53 => Op::DropRange { r },
            54 => Op::Truncate { o, len: *self.rng.pick(&[0, 1, 2, LENGTH]) },
            55 => Op::ObjectRead { o, page: self.index() },
            56 => Op::ObjectWrite { o, page: self.index(), word: self.word() },
            57 => Op::Clean { o: FILE, span: Span(0, LENGTH) },
            58 if self.theme == Theme::Files || self.rng.one_in(2) => Op::Sync { o: FILE },
            58 => Op::LoanObject { l, o, span: Span(self.index(), 1) },
            59 => Op::Punch { o: ANON, span: Span(self.index(), 1) },
            60 => Op::PageOut { n: 1 + self.rng.below(8) as usize },
            61..=62 => Op::PageOutRange { s, span: Span(0, PAGES) },
            _ if thread == 2 && self.rng.one_in(2) => {
                *self.rng.pick(&[Op::SwapOff { d: 0 }, Op::SwapOn { d: 0 }])
            }
            _ => *self.rng.pick(&[Op::Cool { s, span: Span(0, PAGES) }, Op::Forget]),
        }
    }

    /// Two pages or all four, in any of the ways of backing them.
    fn map(&mut self, s: usize, at: At) -> Op {
        let (o, first) = (self.object(), self.rng.below(2));
        let back = match (self.theme, self.rng.below(8)) {
            (Theme::Loans, 0..=6) | (Theme::Everything, 0..=3) => Back::Zero,
            (Theme::Files, 0..=5) | (_, 7) => Back::Shared(o, first),
            _ => Back::Private(o, first),
        };
        let inherit = *self.rng.pick(&[None, None, Some(Inh::Share)]);
        let len = *self.rng.pick(&[2, PAGES]);
        Op::Map { s, at, len, back, rights: *self.rng.pick(&[3, 3, 7, 1]), inherit }
    }

    /// A space that is there, or the first.
    fn space(&mut self) -> usize {
        let spaces: Vec<usize> = (0..SPACES).filter(|&s| self.model.spaces[s].is_some()).collect();
        if spaces.is_empty() {
            0
        } else {
            *self.rng.pick(&spaces)
        }
    }

    fn any(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn page(&mut self) -> u64 {
        if self.rng.one_in(2) {
            self.favourite
        } else {
            self.rng.below(PAGES)
        }
    }

    fn span(&mut self) -> Span {
        let page = self.page();
        Span(page, 1 + self.rng.below(2))
    }

    fn index(&mut self) -> u64 {
        self.rng.below(LENGTH)
    }

    fn object(&mut self) -> usize {
        if self.theme == Theme::Files {
            FILE
        } else {
            *self.rng.pick(&[ANON, FILE])
        }
    }

    fn word(&mut self) -> usize {
        *self.rng.pick(&[0, WORDS - 1])
    }

    fn rights(&mut self) -> Rights {
        *self.rng.pick(&[0, 1, 3, 3, 7])
    }

    fn way(&mut self) -> Way {
        *self.rng.pick(&[Way::Share, Way::Copy, Way::Donate, Way::DonateZero])
    }
}

/// Whether a thread may run an operation beside others.
fn is_allowed(
    op: &Op,
    thread: usize,
    spaces: &[bool; SPACES],
    is_wired: impl Fn(usize) -> bool,
) -> bool {
    match *op {
        // Children are the thread's own, where the slot isn't all threads'.
        Op::Fork { child: own, .. } | Op::Exit { s: own } => {
            thread < 2 && own < OBJECTS && !spaces[own]
        }
        Op::Pin { .. } | Op::Unpin { .. } => thread < PINS,
        // Wiring is a mark and then a fault for each page: of two at once, one may say that the
        // other's pages are wired before that one fails.
        Op::Wire { .. } => thread == 2,
        // What was wired is moved, then wired again.
        Op::Remap { s, .. } | Op::RemapKeep { s, .. } => thread == 2 && !is_wired(s),
        Op::Extract { .. } | Op::AttachRange { .. } | Op::DropRange { .. } => thread < RANGES,
        _ => true,
    }
}
