//! What a port shows when its laws hold: programs that fork, loan pages, transfer them and use more
//! memory than there is.
//!
//! The port says how a program fills memory with words and looks for them ([`Programs`]): in user
//! mode, with its faults resolved by the library. Everything else is the library's to do, and is
//! asked for here.

use alloc::vec::Vec;
use core::fmt;

use machine::order::{Held, Nothing};
use machine::{Machine, PageNo, PageRange, Pages, Pmap, Prot, Va};
use uvm::{At, Counter, Loan, MapRequest, Space, Uvm};

use crate::SharedWork;

/// What a port's programs do. Numbers are small; `number + n` is the word of `n` pages left: at
/// `at` with `pages` of them it is `number + pages`, and at the last page `number + 1`.
///
/// ```
/// use machine::{order::Nothing, Held, Machine};
/// use uvm::Uvm;
/// use uvm_conformance::{workload, Programs};
/// /// A port implements `Programs`, turns paging on, and shows this.
/// fn show<M: Machine>(uvm: &Uvm<M>, held: &mut Held<'_, Nothing>, programs: &impl Programs<M>) {
///     workload(uvm, held, programs);
/// }
/// ```
pub trait Programs<M: Machine>: Sync {
    /// A new space for a program, which may have its text mapped.
    fn space(&self, held: &mut Held<'_, Nothing>) -> Space<M>;

    /// Has a program store the words, each at the first and the last eight bytes of its page.
    fn fill(&self, held: &mut Held<'_, Nothing>, space: &Space<M>, at: Va, pages: u64, number: u64);

    /// Has a program say whether it finds them.
    fn check(
        &self,
        held: &mut Held<'_, Nothing>,
        space: &Space<M>,
        at: Va,
        pages: u64,
        number: u64,
    ) -> bool;

    /// Runs `work` on all CPUs at the same time, and returns after all have ended.
    fn at_once(&self, work: SharedWork<'_>);

    /// Prints a line.
    fn say(&self, line: fmt::Arguments<'_>);
}

struct Show<'a, M: Machine, P> {
    uvm: &'a Uvm<M>,
    programs: &'a P,
}

/// A program's memory.
struct Memory<M: Machine> {
    space: Space<M>,
    at: Va,
    pages: u64,
}

/// Runs programs, prints what they show, and gives back what they had. Pages go out to where
/// [`Uvm::swap_on`] has said before, which has room for an eighth more than all memory on each CPU.
///
/// # Panics
/// If something isn't as it should be, or there is no memory.
///
/// ```
/// # use machine::{order::Nothing, Held, Machine};
/// # use uvm::Uvm;
/// use uvm_conformance::{workload, Programs};
/// fn show<M: Machine>(uvm: &Uvm<M>, held: &mut Held<'_, Nothing>, programs: &impl Programs<M>) {
///     workload(uvm, held, programs);
/// }
/// ```
pub fn workload<M: Machine>(
    uvm: &Uvm<M>,
    held: &mut Held<'_, Nothing>,
    programs: &impl Programs<M>,
) {
    let show = Show { uvm, programs };
    show.fork(held);
    show.loan(held);
    show.transfer(held);
    show.page_out(held);
    uvm.audit(held, &[], &[]).expect("all counts are right");
}

impl<M: Machine, P: Programs<M>> Show<'_, M, P> {
    /// A program with memory.
    fn program(&self, held: &mut Held<'_, Nothing>, pages: u64) -> Memory<M> {
        let space = self.programs.space(held);
        let zero = MapRequest::zero(Pages(pages)).prot(Prot::READ_WRITE);
        let at = self.uvm.map(held, &space, &zero).expect("the space is empty");
        Memory { space, at, pages }
    }

    fn fill(&self, held: &mut Held<'_, Nothing>, of: &Memory<M>, number: u64) {
        self.programs.fill(held, &of.space, of.at, of.pages, number);
    }

    fn check(&self, held: &mut Held<'_, Nothing>, of: &Memory<M>, number: u64) {
        let is_there = self.programs.check(held, &of.space, of.at, of.pages, number);
        assert!(is_there, "a program finds other words than were stored for {number}");
    }

    fn lend(&self, held: &mut Held<'_, Nothing>, of: &Memory<M>) -> Loan {
        let range = PageRange::sized(of.at, Pages(of.pages)).expect("it is mapped there");
        self.uvm.loan_to_kernel(held, &of.space, range).expect("it is mapped")
    }

    fn end(&self, held: &mut Held<'_, Nothing>, of: Memory<M>) {
        self.uvm.space_destroy(held, of.space);
    }

    /// Parent and child see what was stored before, and store what the other doesn't see.
    fn fork(&self, held: &mut Held<'_, Nothing>) {
        let parent = self.program(held, 16);
        self.fill(held, &parent, 1000);
        let space = self.uvm.fork(held, &parent.space).expect("there is memory");
        let both = [Memory { space, ..parent }, parent];
        let copies = || self.uvm.stat().get(Counter::FaultsAnonCopied);
        let before = copies();
        for (program, number) in both.iter().zip([1100, 1200]) {
            self.check(held, program, 1000);
            self.fill(held, program, number);
        }
        self.check(held, &both[0], 1100);
        self.check(held, &both[1], 1200);
        let copied = copies() - before;
        both.into_iter().for_each(|program| self.end(held, program));
        self.programs
            .say(format_args!("fork: parent and child wrote 16 pages each; {copied} were copied"));
        assert!((16..32).contains(&copied), "one of the two copies");
    }

    /// What the kernel has on loan stays as it was.
    fn loan(&self, held: &mut Held<'_, Nothing>) {
        let program = self.program(held, 8);
        self.fill(held, &program, 2000);
        let loan = self.lend(held, &program);
        self.fill(held, &program, 2100);
        let word = |page: PageNo| {
            let mut word = [0; 8];
            self.uvm.machine().read(page, 0, &mut word);
            u64::from_le_bytes(word)
        };
        let words: Vec<u64> = loan.pages().iter().map(|page| word(page.page())).collect();
        assert_eq!(words, [2008, 2007, 2006, 2005, 2004, 2003, 2002, 2001]);
        self.uvm.return_loan(held, loan).map_err(|(why, _)| why).expect("it is of this system");
        self.check(held, &program, 2100);
        self.end(held, program);
        self.programs.say(format_args!(
            "loan: the kernel saw 8 pages as they were loaned; the program wrote on, in copies"
        ));
    }

    /// Pages become another program's memory: the very frames, to which it can store.
    fn transfer(&self, held: &mut Held<'_, Nothing>) {
        let sender = self.program(held, 8);
        self.fill(held, &sender, 3000);
        let loan = self.lend(held, &sender);
        let first = loan.pages()[0].page();
        self.end(held, sender);
        let space = self.programs.space(held);
        let sent = self.uvm.transfer(held, &space, loan, At::Anywhere);
        let at = sent.map_err(|(why, _)| why).expect("there is room");
        let receiver = Memory { space, at, pages: 8 };
        self.check(held, &receiver, 3000);
        let there = self.uvm.machine().pmap().extract(receiver.space.pmap(), at);
        assert_eq!(there.map(|(page, _)| page), Some(first), "the frame that was sent");
        self.fill(held, &receiver, 3100);
        self.check(held, &receiver, 3100);
        self.end(held, receiver);
        self.programs.say(format_args!("page transfer: {first:?} was sent, and is mapped"));
    }

    /// More memory than there is, again and again, on each CPU.
    fn page_out(&self, _held: &mut Held<'_, Nothing>) {
        let frames = self.uvm.frames();
        let pages = frames.total() as u64 * 9 / 8;
        self.programs.at_once(&|cpu, held| {
            let program = self.program(held, pages);
            for round in 0..3 {
                let number = cpu as u64 * 100_000 + round;
                self.fill(held, &program, number);
                self.check(held, &program, number);
            }
            self.end(held, program);
        });
        self.programs.say(format_args!(
            "page-out: {} programs, each of {pages} pages in {} frames, found all as they stored it",
            frames.cpus(),
            frames.total(),
        ));
    }
}
