//! Rounds: nobody uses a translation once the round that takes it away is over.
//!
//! A CPU here is a thread: it joins a space, loads a translation from the tables, uses it, answers, leaves. An asker lowers the
//! tables, reads who is in the space, asks them, and then gives the page away; a CPU that still uses its translation
//! finds the page given away. A CPU that waits for ever is a deadlock, which loom reports.

use loom::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use machine::shootdown::Stale;
use machine::{CpuSet, Pages, Rounds, Va, VaRange};

use crate::all_schedules;

const SPACE: u64 = 7;

/// When an asker reads who is in the space.
#[derive(Clone, Copy, PartialEq)]
enum Looks {
    AfterLowering,
    Before,
}

/// When a CPU enters the space's set.
#[derive(Clone, Copy, PartialEq)]
enum Joins {
    BeforeLoading,
    After,
}

struct World {
    rounds: Rounds,
    holders: AtomicU64,
    /// Two entries of the space's tables: present or not; and whether their pages have another owner by now.
    present: [AtomicBool; 2],
    given_away: [AtomicBool; 2],
}

fn va(entry: usize) -> Va {
    Va(0x1000 * (entry as u64 + 1))
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            rounds: Rounds::new(2).expect("memory for desks"),
            holders: AtomicU64::new(0),
            present: [AtomicBool::new(true), AtomicBool::new(true)],
            given_away: [AtomicBool::new(false), AtomicBool::new(false)],
        })
    }

    /// What a program's access is: by the translation that this CPU holds, whatever the tables say by now.
    fn access(&self, tlb: &[bool; 2]) {
        for (entry, held) in tlb.iter().enumerate() {
            assert!(
                !held || !self.given_away[entry].load(Relaxed),
                "entry {entry} is used after its page was given away"
            );
        }
    }

    fn answer(&self, me: usize, tlb: &mut [bool; 2]) {
        self.rounds.answer(me, |asked| {
            for lowered in asked.ranges() {
                for (entry, held) in tlb.iter_mut().enumerate() {
                    if lowered.is_none_or(|l| l.space == SPACE && l.range.contains(va(entry))) {
                        *held = false;
                    }
                }
            }
        });
    }

    /// Takes an entry away from all CPUs and gives its page away.
    fn take(&self, me: usize, entry: usize, looks: Looks, tlb: &mut [bool; 2]) {
        let before = CpuSet(self.holders.load(SeqCst));
        self.present[entry].swap(false, SeqCst);
        // The exchange orders all on the machines this is for; loom's is no stronger than the language's.
        fence(SeqCst);
        let after = CpuSet(self.holders.load(SeqCst));
        let holders = if looks == Looks::AfterLowering { after } else { before };
        let others = holders.without(CpuSet::one(me));
        tlb[entry] = false;
        if !others.is_empty() {
            let range = VaRange::new(va(entry), va(entry) + Pages(1));
            self.rounds.begin(me, others, Some(&[Stale { space: SPACE, range }]));
            while !self.rounds.is_over(me) {
                self.answer(me, tlb);
                thread::yield_now();
            }
        }
        self.given_away[entry].store(true, Relaxed);
    }

    /// Loads the space and its first translation, uses it while others may take it away, and leaves.
    fn run(&self, me: usize, joins: Joins) {
        let mut tlb = [false; 2];
        let join = || self.holders.fetch_or(CpuSet::one(me).0, SeqCst);
        if joins == Joins::BeforeLoading {
            join();
        }
        fence(SeqCst);
        tlb[0] = self.present[0].load(Relaxed);
        if joins == Joins::After {
            join();
        }
        self.access(&tlb);
        self.answer(me, &mut tlb);
        self.access(&tlb);
        // Other tables are loaded: all is forgotten. Then it leaves, and then it answers who still counted on it.
        tlb = [false; 2];
        self.holders.fetch_and(!CpuSet::one(me).0, SeqCst);
        self.answer(me, &mut tlb);
    }
}

/// One CPU takes away what another uses.
fn one_takes(looks: Looks, joins: Joins) {
    all_schedules(3, move || {
        let world = World::new();
        let taker = {
            let world = world.clone();
            thread::spawn(move || world.take(0, 0, looks, &mut [false; 2]))
        };
        world.run(1, joins);
        // It idles: an interrupt finds it whenever it is asked.
        while !world.given_away[0].load(Relaxed) {
            world.answer(1, &mut [false; 2]);
            thread::yield_now();
        }
        taker.join().unwrap();
    });
}

#[test]
fn nobody_uses_what_a_round_has_taken() {
    one_takes(Looks::AfterLowering, Joins::BeforeLoading);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_look_before_the_lowering_misses_who_joins() {
    one_takes(Looks::Before, Joins::BeforeLoading);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_late_join_is_missed() {
    one_takes(Looks::AfterLowering, Joins::After);
}

/// Two CPUs, both in the space, take an entry each, with interrupts off: each asks the other while it is asked.
#[test]
fn two_that_ask_each_other_both_go_on() {
    all_schedules(3, || {
        let world = World::new();
        world.holders.store(3, SeqCst);
        let both = |me: usize| {
            let world = world.clone();
            move || {
                let mut tlb = [true; 2];
                world.take(me, me, Looks::AfterLowering, &mut tlb);
                world.access(&tlb);
                // Back in its program, an interrupt finds it.
                while !world.given_away[1 - me].load(Relaxed) {
                    world.answer(me, &mut tlb);
                    world.access(&tlb);
                    thread::yield_now();
                }
                world.answer(me, &mut tlb);
            }
        };
        let other = thread::spawn(both(1));
        both(0)();
        other.join().unwrap();
    });
}
