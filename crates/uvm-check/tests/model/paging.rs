//! The model run with so little memory that most pages live on swap.
//!
//! `UVM_SEED=n` runs one list only; `UVM_OPS=n` changes how many random operations each test runs.

use std::time::Instant;

use uvm::Counter;
use uvm_check::gen::{crowded_list, paging_list, Paging};
use uvm_check::op::Op;
use uvm_check::run::{quietly, run_and_shrink, Failure};
use uvm_check::world::{Memory, Setup, Watch, World};
use uvm_soft::Config;

/// Operations in one random list: enough to fill memory several times.
const LIST: usize = 200;
/// Random operations in each test, unless `UVM_OPS` says otherwise.
const OPERATIONS: u64 = 100_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// 20 to 32 page frames, 36 slots or 160; windows of a hundred and more pages are written. One list
/// in seven has so many slots that pages in memory may keep theirs: with few left, a pass takes
/// them away.
fn setup(seed: u64) -> Setup {
    let roomy = seed % 7 == 5;
    let frames = if roomy { 40 } else { 20 + (seed % 13) as u32 };
    let segments = vec![(machine::Pa(0x10_0000), frames)];
    let forget_one_in = if seed.is_multiple_of(3) { 6 } else { 0 };
    let machine = Config { seed, segments, forget_one_in, ..Config::default() };
    let watch = if seed.is_multiple_of(2) { Watch::Peek } else { Watch::Look };
    let swaps = match seed % 7 {
        5 => [300, 20],
        6 => [24, 12],
        _ => [120, 40],
    };
    Setup { swaps, memory: Memory::MayRunOut, ..Setup::new(machine, watch) }
}

fn check_seed(seed: u64, paging: Paging) -> Result<(), Failure> {
    run_and_shrink(&paging_list(seed, LIST, paging), &setup(seed))
        .map_err(|failure| Failure { seed: Some(seed), ..failure })
}

fn check(paging: Paging) {
    let all = 0..number("UVM_OPS").unwrap_or(OPERATIONS) / LIST as u64;
    let seeds = number("UVM_SEED").map_or(all, |seed| seed..seed + 1);
    let lists = seeds.end - seeds.start;
    for seed in seeds {
        if let Err(failure) = check_seed(seed, paging) {
            panic!("{failure}");
        }
    }
    println!("{lists} lists, {} operations", lists * LIST as u64);
}

#[test]
fn random_lists_agree_while_most_pages_are_on_swap() {
    check(Paging::Works);
}

#[test]
fn random_lists_agree_while_devices_fail() {
    check(Paging::Fails);
}

/// Operations of the long run, and in each world of it.
const MILLION: usize = 1_000_000;
const LIFE: usize = 10_000;

/// What the long run has seen.
#[derive(Default)]
struct Seen {
    operations: usize,
    /// Pages in memory and on swap, summed over all looks.
    resident: usize,
    swapped: usize,
    outs: u64,
    ins: u64,
    /// Into zram, and out of it.
    packed: u64,
    unpacked: u64,
    shortages: u64,
}

impl Seen {
    /// Runs a list in a world that lives long; what fails is shrunk. With a share for zram,
    /// that is never switched off.
    fn run(&mut self, seed: u64, zram: Option<u8>) {
        let base = setup(seed);
        let machine =
            Config { segments: vec![(machine::Pa(0x10_0000), 20)], ..base.machine.clone() };
        let setup = Setup { machine, swaps: [120, 40], ..base };
        let mut list = crowded_list(seed, LIFE.min(MILLION - self.operations));
        if let Some(percent) = zram {
            list.insert(0, Op::Zram { percent });
            list.pop();
            let off = |op: &&mut Op| matches!(op, Op::Zram { percent: 0 });
            list.iter_mut().filter(off).for_each(|op| *op = Op::Zram { percent });
        }
        let result = quietly(|| {
            let mut world = World::new(&setup);
            for (n, op) in list.iter().enumerate() {
                world.step(op)?;
                self.operations += 1;
                if n % 100 == 0 {
                    let (resident, swapped) = world.pages();
                    self.resident += resident;
                    self.swapped += swapped;
                }
                if world.is_over() {
                    break;
                }
            }
            self.outs += world.uvm().stat().get(Counter::SwapOuts);
            self.ins += world.uvm().stat().get(Counter::SwapIns);
            self.packed += world.zram_info().stored;
            self.unpacked += world.zram_info().read;
            self.shortages += world.shortages();
            world.finish()
        });
        if let Err(why) = result {
            println!("seed {seed}: {why}");
            let failure = run_and_shrink(&list, &setup).expect_err("it failed a moment ago");
            panic!("{failure}");
        }
    }
}

/// A million operations, in worlds that live fifty times as long as the others and have more pages
/// on swap than in memory.
///
/// `cargo test --release -p uvm-check --test paging a_million -- --ignored --nocapture` (`./uvm
/// test --long` runs it)
#[test]
#[ignore = "takes minutes"]
fn a_million_operations_while_most_pages_are_on_swap() {
    run_a_million(None);
}

/// Like the test above, with a fifth of memory for compressed pages.
#[test]
#[ignore = "takes minutes"]
fn a_million_operations_with_zram_on() {
    run_a_million(Some(20));
}

fn run_a_million(zram: Option<u8>) {
    let (start, mut seen) = (Instant::now(), Seen::default());
    for seed in number("UVM_SEED").unwrap_or(0).. {
        seen.run(seed, zram);
        if seed % 10 == 9 || seen.operations == MILLION {
            let Seen { operations, resident, swapped, outs, ins, packed, unpacked, shortages } =
                seen;
            let share = 100 * swapped / (resident + swapped);
            println!(
                "{operations} operations, {} s: {share}% of the pages on swap, {outs} out, {ins} in, {packed} packed, {unpacked} unpacked, {shortages} without memory",
                start.elapsed().as_secs()
            );
        }
        if seen.operations == MILLION {
            break;
        }
    }
    assert!(seen.swapped > seen.resident, "most pages were in memory");
    assert!(zram.is_none() || seen.packed > seen.outs, "zram took little");
}
