//! Running short: every call that can fail does so, at every step of random lists: once, and for
//! good.
//!
//! A step is tried with the first reservation (table, frame) failing, then the second, until it
//! needs no more; after each failure everything must be as it was. Where pages can leave memory a
//! failed step is tried again by the library itself, so there one call of each step fails, another
//! one at each. Transfers fail over whole lists: the first of a list, then the second, until the
//! list has no more.

use uvm_check::gen::{paging_list, random_list, Paging};
use uvm_check::op::{At, Back, Op, Span};
use uvm_check::run::quietly;
use uvm_check::world::{Lasting, Memory, Scarce, Setup, Watch, World};
use uvm_soft::{Config, Injector};

const LIST: usize = 40;
const SEEDS: u64 = 1000;
/// Lists in tests that run each many times, or on little memory.
const FEW: u64 = 120;

/// Runs a list step by step, and says how many steps found no memory.
fn run(
    seed: u64,
    setup: &Setup,
    list: &[Op],
    mut step: impl FnMut(&mut World, usize, &Op) -> Result<(), String>,
) -> u64 {
    let (mut at, mut shortages) = (0, 0);
    let result = quietly(|| {
        let mut world = World::new(setup);
        for (n, op) in list.iter().enumerate() {
            at = n + 1;
            step(&mut world, n, op)?;
            if world.is_over() {
                break;
            }
        }
        shortages = world.shortages();
        world.finish()
    });
    if let Err(why) = result {
        panic!("seed {seed}: {why}\n{}", uvm_check::run::code(&list[..at]));
    }
    shortages
}

fn check(scarce: Scarce, lasting: Lasting) {
    let mut failures = 0;
    for seed in 0..SEEDS {
        let setup = Setup::new(Config { seed, ..Config::default() }, Watch::Peek);
        run(seed, &setup, &random_list(seed, LIST), |world, _, op| {
            failures += world.step_against(op, scarce, lasting, 0)?;
            Ok(())
        });
    }
    println!("{failures} failures of {scarce:?}");
    assert!(failures > SEEDS, "hardly anything failed");
}

#[test]
fn a_failed_reservation_changes_nothing() {
    check(Scarce::Heap, Lasting::Once);
    check(Scarce::Heap, Lasting::ForGood);
}

#[test]
fn a_missing_table_page_changes_nothing() {
    check(Scarce::Tables, Lasting::Once);
    check(Scarce::Tables, Lasting::ForGood);
}

#[test]
fn a_missing_frame_changes_nothing() {
    check(Scarce::Frames, Lasting::Once);
}

/// 22 to 29 frames, with swap.
fn tight(seed: u64, swaps: [u32; 2]) -> Setup {
    let segments = vec![(machine::Pa(0x10_0000), 22 + (seed % 8) as u32)];
    let machine = Config { seed, segments, ..Config::default() };
    Setup { swaps, memory: Memory::MayRunOut, ..Setup::new(machine, Watch::Peek) }
}

fn check_paging(scarce: Scarce) {
    for seed in 0..FEW {
        let list = paging_list(seed, 3 * LIST, Paging::Works);
        for lasting in [Lasting::Once, Lasting::ForGood] {
            run(seed, &tight(seed, [120, 40]), &list, |world, n, op| {
                let spared = if lasting == Lasting::Once { n as u64 % 7 } else { 0 };
                world.step_against(op, scarce, lasting, spared).map(drop)
            });
        }
    }
}

#[test]
fn a_failed_reservation_changes_nothing_while_pages_come_and_go() {
    check_paging(Scarce::Heap);
}

#[test]
fn a_missing_table_page_changes_nothing_while_pages_come_and_go() {
    check_paging(Scarce::Tables);
}

#[test]
fn a_missing_frame_changes_nothing_while_pages_come_and_go() {
    check_paging(Scarce::Frames);
}

/// Zram is switched on, off and to other shares again and again, with every call that can fail
/// doing so. What it can't bring home stays where it is, and what it can't get leaves it as it was.
#[test]
fn a_share_of_memory_that_is_refused_changes_nothing() {
    for scarce in [Scarce::Heap, Scarce::Tables, Scarce::Frames] {
        let mut failures = 0;
        for seed in 0..FEW {
            let share = |n: usize| Op::Zram { percent: [20, 0, 50, 5, 0][n / 6 % 5] };
            let list: Vec<Op> = paging_list(seed, 3 * LIST, Paging::Works)
                .into_iter()
                .enumerate()
                .flat_map(|(n, op)| (n % 6 == 0).then(|| share(n)).into_iter().chain([op]))
                .collect();
            for lasting in [Lasting::Once, Lasting::ForGood] {
                run(seed, &tight(seed, [60, 0]), &list, |world, _, op| {
                    if let Op::Zram { .. } = op {
                        failures += world.step_against(op, scarce, lasting, 0)?;
                        return Ok(());
                    }
                    world.step(op)
                });
            }
        }
        println!("{failures} failures of {scarce:?}");
        assert!(scarce == Scarce::Tables || failures > FEW / 2, "hardly anything failed");
    }
}

/// Devices with no slots but a few run out of them in every way.
#[test]
fn a_missing_slot_changes_nothing() {
    let mut shortages = 0;
    for seed in 0..4 * FEW {
        let list = paging_list(seed, 3 * LIST, Paging::Works);
        for slots in 1..8 {
            shortages +=
                run(seed, &tight(seed, [slots, slots / 2]), &list, |world, _, op| world.step(op));
        }
    }
    println!("{shortages} shortages");
    assert!(shortages > FEW / 2, "hardly anything failed");
}

/// Runs lists with their first transfer failing, then their second, until a list has no more.
fn check_transfers(injector: fn(&World) -> &Injector, lasting: Lasting) {
    let mut failures = 0;
    for seed in 0..FEW {
        let list = paging_list(seed, 3 * LIST, Paging::Works);
        for n in 1.. {
            let mut fired = false;
            run(seed, &tight(seed, [120, 40]), &list, |world, at, op| {
                match lasting {
                    Lasting::Once if at == 0 => injector(world).fail_nth(n),
                    Lasting::ForGood if at == 0 => injector(world).fail_from(n),
                    _ => {}
                }
                let result = world.step(op);
                fired |= injector(world).calls() >= n;
                result
            });
            if !fired {
                break;
            }
            failures += 1;
        }
    }
    println!("{failures} failures");
    assert!(failures > FEW / 2, "hardly anything failed");
}

fn reads(world: &World) -> &Injector {
    &world.line().reads
}

fn writes(world: &World) -> &Injector {
    &world.line().writes
}

#[test]
fn a_failed_read_is_told_to_those_who_need_the_page() {
    check_transfers(reads, Lasting::Once);
    check_transfers(reads, Lasting::ForGood);
}

#[test]
fn a_failed_write_is_told_to_nobody_but_who_asked_for_it() {
    check_transfers(writes, Lasting::Once);
    check_transfers(writes, Lasting::ForGood);
}

/// What a space leaves behind that ends without heap: slots behind the end of another's entry,
/// which shares their leaf with a third. A mapping that continues the entry shows zeroes and not
/// what lies there.
#[test]
fn what_is_left_behind_without_heap_is_shown_to_nobody() {
    for first in [0, 3, 5] {
        let (kept, gone) = (Span(first, 2), Span(first + 2, 2));
        let map = |at: Span| Op::Map {
            s: 0,
            at: At::Fixed(at.0),
            len: at.1,
            back: Back::Zero,
            rights: 3,
            inherit: None,
        };
        let write = |s, page, word| Op::Write { s, page, cpu: 0, word };
        let mut list = vec![Op::Spawn { s: 0 }, map(Span(first, 4))];
        list.extend((first..first + 4).map(|page| write(0, page, 1)));
        // The last to fork gets an amap of its own, which shares its leaves with the one of the
        // others.
        list.extend([Op::Fork { s: 0, child: 1 }, Op::Fork { s: 0, child: 2 }, write(2, first, 2)]);
        list.push(Op::Unmap { s: 0, span: gone });
        let mut world = World::new(&Setup::new(Config::default(), Watch::Peek));
        list.iter().for_each(|op| world.step(op).unwrap());
        world.machine().heap.fail_from(1);
        world.step(&Op::Exit { s: 1 }).unwrap();
        world.machine().heap.fail_nth(0);
        world.step(&map(gone)).unwrap();
        for page in kept.pages().chain(gone.pages()) {
            world.step(&Op::Read { s: 0, page, cpu: 0 }).unwrap();
        }
        gone.pages().for_each(|page| world.step(&write(0, page, 3)).unwrap());
        world.finish().unwrap();
    }
}
