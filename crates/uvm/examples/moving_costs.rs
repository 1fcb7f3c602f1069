//! One way to move data, so many pages, so many times: what to count instructions of.
//!
//! ```text
//! cargo build --release -p uvm-vm --example moving_costs
//! valgrind --tool=callgrind target/release/examples/moving_costs loan 256 100
//! ```
//! The difference between two runs, of 100 rounds and of none, is what 100 rounds cost. Pages are
//! neither filled nor read here: what is counted is what the library does.

use std::sync::Arc;

use machine::order::Nothing;
use machine::{Held, Pa, PageRange, Pages, ThreadCtx, Va};
use uvm::{AnonObject, At, Counter, Loan, MapRequest, Pager, Pass, Place, Space, Uvm};
use uvm_soft::{Config, SoftMachine};

const BOUNDS: PageRange = PageRange::new(Va(0x1000), Va(1 << 40)).unwrap();

/// Rounds before those that were asked for.
const WARM_UP: usize = 5;

/// What a round works on.
pub struct World {
    uvm: Uvm<SoftMachine>,
    space: Space<SoftMachine>,
    other: Space<SoftMachine>,
    memory: PageRange,
    object: Arc<dyn Pager<SoftMachine>>,
    stock: Loan,
}

/// What is done again and again.
pub type Round = fn(&World, &mut Held<'_, Nothing>);

/// Names, what they mean, and what they do.
pub const ROUNDS: [(&str, &str, Round); 8] = [
    ("loan", "a loan of touched memory, and its return", loan),
    ("new", "new pages, transferred and discarded", new),
    ("loaned", "touched memory loaned, transferred and discarded", loaned),
    ("stock", "16 pages of the kernel's loaned again and again, transferred and discarded", stock),
    ("object", "an object's pages loaned, transferred and discarded", object),
    ("donate", "touched memory donated there and back", donate),
    ("touch", "first touches, and a discard", touch),
    ("unmap", "a mapping, first touches, and an unmapping", unmap),
];

/// Prints what each round costs.
pub fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        for (name, what, round) in ROUNDS {
            run(round, 16, 1);
            println!("{name:7} {what}: done once");
        }
        return;
    };
    let pages = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(256);
    let rounds = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let Some((_, _, round)) = ROUNDS.iter().find(|(known, ..)| *known == name) else {
        println!("usage: moving_costs ROUND [PAGES [ROUNDS]], where ROUND is one of");
        ROUNDS.iter().for_each(|(name, what, _)| println!("  {name:7} {what}"));
        std::process::exit(2);
    };
    run(*round, pages, rounds);
}

/// Runs so many rounds, after some to warm up, and says how many pages are in use when all memory
/// has been given back.
pub fn run(round: Round, pages: u64, rounds: usize) -> usize {
    let mut ctx = ThreadCtx::new();
    let held = &mut ctx.held();
    let world = World::new(held, Pages(pages));
    for _ in 0..WARM_UP + rounds {
        round(&world, held);
    }
    world.end(held)
}

impl World {
    fn new(held: &mut Held<'_, Nothing>, pages: Pages) -> World {
        let frames = pages.0 as u32 * 4 + 4096;
        let config =
            Config { segments: vec![(Pa(0x10_0000), frames)], cpus: 1, ..Config::default() };
        let uvm = SoftMachine::new(config).into_uvm().unwrap();
        let space = uvm.space_create(held, BOUNDS).unwrap();
        let start = uvm.map(held, &space, &MapRequest::zero(pages)).unwrap();
        let memory = PageRange::new(start, start + pages).unwrap();
        let object = AnonObject::new(&uvm, held, pages).unwrap();
        let other = uvm.space_create(held, BOUNDS).unwrap();
        let stock = (0..16).map(|_| uvm.new_page(held).unwrap()).collect();
        let world = World { uvm, space, other, memory, object, stock };
        touch_all(&world, held, memory);
        world
    }

    fn end(self, held: &mut Held<'_, Nothing>) -> usize {
        let World { uvm, space, other, object, stock, .. } = self;
        uvm.return_loan(held, stock).unwrap();
        uvm.space_destroy(held, space);
        uvm.space_destroy(held, other);
        uvm.detach(held, &*object);
        drop(object);
        uvm.audit(held, &[], &[]).unwrap();
        // The page of zeroes stays, where one was loaned.
        uvm.frames().total()
            - uvm.frames().free()
            - usize::from(uvm.stat().get(Counter::LoansZero) != 0)
    }

    fn pages(&self) -> usize {
        self.memory.pages().0 as usize
    }
}

fn touch_all(world: &World, held: &mut Held<'_, Nothing>, range: PageRange) {
    for va in range.iter_pages() {
        world.uvm.fault(held, &world.space, va, machine::Prot::WRITE).unwrap();
    }
}

fn take_and_drop(world: &World, held: &mut Held<'_, Nothing>, loan: Loan) {
    let pages = Pages(loan.len() as u64);
    let at = world.uvm.transfer(held, &world.other, loan, At::Anywhere).unwrap();
    world.uvm.discard(held, &world.other, PageRange::new(at, at + pages).unwrap()).unwrap();
}

fn loan(world: &World, held: &mut Held<'_, Nothing>) {
    let loan = world.uvm.loan_to_kernel(held, &world.space, world.memory).unwrap();
    world.uvm.return_loan(held, loan).unwrap();
}

fn new(world: &World, held: &mut Held<'_, Nothing>) {
    let mut loan = Loan::new();
    world.uvm.new_pages(held, world.pages(), &mut loan).unwrap();
    take_and_drop(world, held, loan);
}

fn loaned(world: &World, held: &mut Held<'_, Nothing>) {
    let loan = world.uvm.loan_to_kernel(held, &world.space, world.memory).unwrap();
    take_and_drop(world, held, loan);
}

fn stock(world: &World, held: &mut Held<'_, Nothing>) {
    let (mut loan, stock) = (Loan::new(), world.stock.pages());
    let pages = (0..world.pages()).map(|n| &stock[n % stock.len()]);
    world.uvm.loan_all_again(pages, &mut loan).unwrap();
    take_and_drop(world, held, loan);
}

fn object(world: &World, held: &mut Held<'_, Nothing>) {
    let mut loan = Loan::new();
    let pages = world.uvm.loan_object(held, &world.object, Pages(0), world.pages(), &mut loan);
    assert_eq!(pages, Ok(world.pages()));
    take_and_drop(world, held, loan);
}

fn donate(world: &World, held: &mut Held<'_, Nothing>) {
    let uvm = &world.uvm;
    let away = uvm.extract(held, &world.space, world.memory, Pass::Donate).unwrap();
    let at = uvm.attach_range(held, &world.other, away, Place::Anywhere).map_err(|_| ()).unwrap();
    let there = PageRange::new(at, at + world.memory.pages()).unwrap();
    let back = uvm.extract(held, &world.other, there, Pass::Donate).unwrap();
    let place = Place::Fixed(world.memory.start);
    uvm.attach_range(held, &world.space, back, place).map_err(|_| ()).unwrap();
}

fn touch(world: &World, held: &mut Held<'_, Nothing>) {
    world.uvm.discard(held, &world.space, world.memory).unwrap();
    touch_all(world, held, world.memory);
}

fn unmap(world: &World, held: &mut Held<'_, Nothing>) {
    let pages = world.memory.pages();
    let start = world.uvm.map(held, &world.space, &MapRequest::zero(pages)).unwrap();
    let range = PageRange::new(start, start + pages).unwrap();
    touch_all(world, held, range);
    world.uvm.unmap(held, &world.space, range).unwrap();
}
