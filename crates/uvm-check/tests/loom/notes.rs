//! Notes: no CPU uses a translation once the CPU that took it away goes on, nor walks through a
//! table that was freed.
//!
//! A CPU here is a thread. It is in the kernel, joins a space, begins to use translations as a
//! program does, loads one from the tables when it likes, and ends its use. An asker lowers the
//! tables, reads which CPUs are in the space, leaves notes, waits for those that were in use, and
//! then gives the page away; a CPU that still uses its translation finds the page given away. A CPU
//! that waits for ever is a deadlock, which loom reports.

use loom::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use machine::notes::Forget;
use machine::shootdown::Stale;
use machine::{CpuSet, Notes, Pages, Va, VaRange};

use crate::all_schedules;

const SPACE: u64 = 7;

/// What the threads do, and each law broken.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Right,
    /// The asker reads which CPUs are in the space before it has lowered.
    LooksBefore,
    /// A CPU enters the space's set after it has loaded a translation.
    JoinsLate,
    /// A CPU looks into its mailbox before it says that it uses translations.
    BeginsLate,
    /// A CPU takes notes out of its mailbox and doesn't do what they say.
    ForgetsNothing,
    /// The asker waits only until the CPU is out of use, and frees the table.
    FreesEarly,
}

struct World {
    how: How,
    notes: [Notes; 2],
    holders: AtomicU64,
    /// An entry of the space's tables for each CPU to take: present or not; and whether its page,
    /// or table, has another owner by now.
    present: [AtomicBool; 2],
    given_away: [AtomicBool; 2],
}

fn va(entry: usize) -> Va {
    Va(0x1000 * entry as u64)
}

/// What one CPU knows of the two entries.
type Tlb = [bool; 2];

impl World {
    fn new(how: How) -> Arc<World> {
        let flags = |value| core::array::from_fn(|_| AtomicBool::new(value));
        Arc::new(World {
            how,
            notes: core::array::from_fn(|_| Notes::new()),
            holders: AtomicU64::new(0),
            present: flags(true),
            given_away: flags(false),
        })
    }

    /// What a program's access is: by the translation that this CPU holds, whatever the tables say
    /// by now.
    fn access(&self, tlb: &Tlb) {
        for (entry, held) in tlb.iter().enumerate() {
            assert!(
                !held || !self.given_away[entry].load(Relaxed),
                "entry {entry} is used after its page was given away"
            );
        }
    }

    fn begin_use(&self, me: usize, tlb: &mut Tlb) {
        match self.how {
            How::BeginsLate => {
                self.notes[me].take(|what| forget(what, tlb));
                self.notes[me].begin_use(|_| ());
            }
            How::ForgetsNothing => self.notes[me].begin_use(|_| ()),
            _ => self.notes[me].begin_use(|what| forget(what, tlb)),
        }
    }

    /// An interrupt: the kernel is entered and left.
    fn interrupt(&self, me: usize, tlb: &mut Tlb) {
        self.notes[me].end_use();
        self.notes[me].take(|what| forget(what, tlb));
        self.begin_use(me, tlb);
    }

    /// Takes an entry away from all CPUs and gives its page away.
    fn take(&self, me: usize, entry: usize, tlb: &mut Tlb, frees: bool) {
        let before = CpuSet::from_bits(self.holders.load(SeqCst));
        self.present[entry].swap(false, SeqCst);
        // The exchange orders all on the machines this is for; loom's is no stronger than the
        // language's.
        fence(SeqCst);
        let after = CpuSet::from_bits(self.holders.load(SeqCst));
        let holders = if self.how == How::LooksBefore { before } else { after };
        let range = VaRange::new(va(entry), va(entry) + Pages(1));
        tlb[entry] = false;
        for cpu in holders.without(CpuSet::one(me)).iter() {
            let notes = &self.notes[cpu];
            let left = notes.leave(Some(&[Stale { space: SPACE, range }]));
            let strict = frees && self.how != How::FreesEarly;
            while !if strict { left.is_forgotten(notes) } else { left.is_out_of_use(notes) } {
                self.notes[me].take(|what| forget(what, tlb));
                thread::yield_now();
            }
        }
        self.given_away[entry].store(true, Relaxed);
    }

    /// Loads the space and runs its program, which uses the first entry, while others may take it
    /// away; then leaves.
    fn run(&self, me: usize) {
        let mut tlb = [false; 2];
        let join = || self.holders.fetch_or(1 << me, SeqCst);
        if self.how != How::JoinsLate {
            join();
        }
        fence(SeqCst);
        // A CPU walks tables when it likes: before it uses what it finds, and again.
        tlb[0] = self.present[0].load(Relaxed);
        self.begin_use(me, &mut tlb);
        tlb[0] |= self.present[0].load(Relaxed);
        if self.how == How::JoinsLate {
            join();
        }
        self.access(&tlb);
        self.interrupt(me, &mut tlb);
        self.access(&tlb);
        self.notes[me].end_use();
        // It keeps what it has, and uses it again.
        self.begin_use(me, &mut tlb);
        self.access(&tlb);
        self.notes[me].end_use();
        // Other tables are loaded: all is forgotten. Then it leaves.
        self.holders.fetch_and(!(1 << me), SeqCst);
    }
}

fn forget(what: Forget<'_>, tlb: &mut Tlb) {
    for (entry, held) in tlb.iter_mut().enumerate() {
        *held &= match what {
            Forget::Everything => false,
            Forget::Ranges(ranges) => !ranges.iter().any(|range| range.contains(va(entry))),
        };
    }
}

/// One CPU takes away what another uses.
fn one_takes(how: How) {
    all_schedules(3, move || {
        let world = World::new(how);
        let taker = {
            let world = world.clone();
            thread::spawn(move || world.take(0, 0, &mut [false; 2], false))
        };
        world.run(1);
        // It idles: an interrupt finds it whenever it is asked.
        taker.join().unwrap();
    });
}

#[test]
fn nobody_uses_what_was_taken() {
    one_takes(How::Right);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_look_before_the_lowering_misses_who_joins() {
    one_takes(How::LooksBefore);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_late_join_is_missed() {
    one_takes(How::JoinsLate);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_use_that_is_announced_late_is_missed() {
    one_takes(How::BeginsLate);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn a_note_that_is_not_followed_is_found() {
    one_takes(How::ForgetsNothing);
}

/// Two CPUs, both in the space, take an entry each, with interrupts off, and then use the other's.
#[test]
fn two_that_ask_each_other_both_go_on() {
    all_schedules(3, || {
        let world = World::new(How::Right);
        world.holders.store(3, SeqCst);
        let both = |me: usize| {
            let world = world.clone();
            move || {
                let mut tlb = [true; 2];
                world.take(me, me, &mut tlb, false);
                world.begin_use(me, &mut tlb);
                world.access(&tlb);
                world.interrupt(me, &mut tlb);
                world.access(&tlb);
                world.notes[me].end_use();
            }
        };
        let other = thread::spawn(both(1));
        both(0)();
        other.join().unwrap();
    });
}

/// A CPU in the kernel, which uses nothing, walks through a table ahead of any use; then it answers
/// an interrupt.
fn one_frees(how: How) {
    all_schedules(2, move || {
        let world = World::new(how);
        world.holders.store(2, SeqCst);
        let taker = {
            let world = world.clone();
            thread::spawn(move || world.take(0, 0, &mut [false; 2], true))
        };
        let mut tlb = [world.present[0].load(Relaxed), false];
        world.access(&tlb);
        world.notes[1].take(|what| forget(what, &mut tlb));
        world.access(&tlb);
        tlb[0] = false;
        while !world.given_away[0].load(Relaxed) {
            world.notes[1].take(|what| forget(what, &mut tlb));
            thread::yield_now();
        }
        taker.join().unwrap();
    });
}

#[test]
fn nobody_walks_through_a_table_that_was_freed() {
    one_frees(How::Right);
}

#[test]
#[should_panic = "is used after its page was given away"]
fn who_is_out_of_use_may_walk_through_a_table() {
    one_frees(How::FreesEarly);
}
