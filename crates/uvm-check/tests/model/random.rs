//! The model run: random lists by seed.
//!
//! `UVM_SEED=n` runs the random list of one seed only; `UVM_OPS=n` changes how many random
//! operations are run.

use uvm_check::gen::random_list;
use uvm_check::run::{run_and_shrink, Failure};
use uvm_check::world::{Setup, Watch};
use uvm_soft::{Config, Plant};

/// Operations in one random list.
const LIST: usize = 80;
/// Random operations in all, unless `UVM_OPS` says otherwise.
const OPERATIONS: u64 = 400_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Every third seed forgets mappings, one list in two is looked at after each step.
fn check_seed(seed: u64, plant: Option<Plant>) -> Result<(), Failure> {
    let forget_one_in = if seed.is_multiple_of(3) { 6 } else { 0 };
    let config = Config { seed, forget_one_in, plant, ..Config::default() };
    let watch = if seed.is_multiple_of(2) { Watch::Peek } else { Watch::Look };
    let setup = Setup::new(config, watch);
    run_and_shrink(&random_list(seed, LIST), &setup).map_err(|f| Failure { seed: Some(seed), ..f })
}

fn seeds() -> std::ops::Range<u64> {
    0..number("UVM_OPS").unwrap_or(OPERATIONS) / LIST as u64
}

#[test]
fn random_lists_agree_with_the_model() {
    let seeds = number("UVM_SEED").map_or(seeds(), |seed| seed..seed + 1);
    let lists = seeds.end - seeds.start;
    for seed in seeds {
        if let Err(failure) = check_seed(seed, None) {
            panic!("{failure}");
        }
    }
    println!("{lists} lists, {} operations", lists * LIST as u64);
}

/// A port that breaks a law is found by the very run above.
#[test]
fn every_planted_breach_is_found() {
    for plant in Plant::SEQUENTIAL {
        let found = seeds().find_map(|seed| check_seed(seed, Some(plant)).err());
        let Some(failure) = found else {
            panic!("{plant:?} was not found in {OPERATIONS} operations")
        };
        let seed = failure.seed.unwrap_or(0);
        println!("{plant:?}: list {seed}, {} operations left: {}", failure.list.len(), failure.why);
    }
}
