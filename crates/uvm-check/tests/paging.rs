//! The model run with so little memory that most pages live on swap.
//!
//! `UVM_SEED=n` runs one list only; `UVM_OPS=n` changes how many random operations each test runs.

use uvm_check::gen::{paging_list, Paging};
use uvm_check::run::{run_and_shrink, Failure};
use uvm_check::world::{Memory, Setup, Shape, Watch};
use uvm_soft::Config;

/// Operations in one random list: enough to fill memory several times.
const LIST: usize = 200;
/// Random operations in each test, unless `UVM_OPS` says otherwise.
const OPERATIONS: u64 = 100_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// 20 to 32 page frames, 36 slots or 160; windows of a hundred and more pages are written. One list
/// in seven has so many slots that pages in memory may keep theirs: with few left, a pass takes them away.
fn setup(seed: u64) -> Setup {
    let roomy = seed % 7 == 5;
    let frames = if roomy { 40 } else { 20 + (seed % 13) as u32 };
    let segments = vec![(machine::Pa(0x10_0000), frames)];
    let forget_one_in = if seed.is_multiple_of(3) { 6 } else { 0 };
    let machine = Config { seed, segments, forget_one_in, ..Config::default() };
    let watch = if seed.is_multiple_of(2) { Watch::Peek } else { Watch::Look };
    let shape = if seed % 5 == 4 { Shape::Nested } else { Shape::Flat };
    let swaps = match seed % 7 {
        5 => [300, 20],
        6 => [24, 12],
        _ => [120, 40],
    };
    Setup { shape, swaps, memory: Memory::MayRunOut, ..Setup::new(machine, watch) }
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
