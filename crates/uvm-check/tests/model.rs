//! The model run: random lists by seed, and every list of four operations over small alphabets.
//!
//! `UVM_SEED=n` runs the random list of one seed only; `UVM_OPS=n` changes how many random operations are run.

use uvm_check::gen::random_list;

use uvm_check::run::{run_and_shrink, Failure};
use uvm_check::world::Watch;
use uvm_soft::Config;

/// Operations in one random list.
const LIST: usize = 80;
/// Random operations in all, unless `UVM_OPS` says otherwise.
const OPERATIONS: usize = 120_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Every third seed forgets mappings, one list in two is looked at after each step.
fn check_seed(seed: u64) -> Result<(), Failure> {
    let forget_one_in = if seed % 3 == 0 { 6 } else { 0 };
    let config = Config { seed, forget_one_in, ..Config::default() };
    let watch = if seed % 2 == 0 { Watch::Peek } else { Watch::Look };
    run_and_shrink(&random_list(seed, LIST), &config, watch).map_err(|f| Failure { seed: Some(seed), ..f })
}

#[test]
fn random_lists_agree_with_the_model() {
    let seeds = match number("UVM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..(number("UVM_OPS").map_or(OPERATIONS, |n| n as usize) / LIST) as u64,
    };
    for seed in seeds {
        if let Err(failure) = check_seed(seed) {
            panic!("{failure}");
        }
    }
}
