//! Running short: every call that can fail does so once, at every step of random lists.
//!
//! A step is tried with the first reservation (table, frame) failing, then the second, until it needs no more; after
//! each failure everything must be as it was.

use uvm_check::gen::random_list;
use uvm_check::run::quietly;
use uvm_check::world::{Scarce, Setup, Watch, World};
use uvm_soft::Config;

const LIST: usize = 40;
const SEEDS: u64 = 1000;

fn check(scarce: Scarce) {
    let mut failures = 0;
    for seed in 0..SEEDS {
        let list = random_list(seed, LIST);
        let mut at = 0;
        let result = quietly(|| {
            let mut world = World::new(&Setup::new(Config { seed, ..Config::default() }, Watch::Peek));
            for op in &list {
                at += 1;
                failures += world.step_against(op, scarce)?;
            }
            world.finish()
        });
        if let Err(why) = result {
            panic!("seed {seed}: {why}\n{}", uvm_check::run::code(&list[..at]));
        }
    }
    println!("{failures} failures of {scarce:?}");
    assert!(failures > SEEDS, "hardly anything failed");
}

#[test]
fn a_failed_reservation_changes_nothing() {
    check(Scarce::Heap);
}

#[test]
fn a_missing_table_page_changes_nothing() {
    check(Scarce::Tables);
}

#[test]
fn a_missing_frame_changes_nothing() {
    check(Scarce::Frames);
}
