//! Shootdowns under way: no CPU that finds a mapping lowered goes on before the CPUs have been
//! flushed.
//!
//! A CPU here is a thread. Several take one mapping away: the first of them lowers it and flushes
//! the CPUs, with nothing locked; a later one finds nothing to lower, and may go on at once only if
//! no flush is under way. A CPU that goes on gives the page away.

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};
use loom::thread;
use machine::unfinished::Unfinished;

use crate::all_schedules;

const CPUS: usize = 2;

/// What the threads do, and each law broken.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Right,
    /// It begins when the lock has gone.
    BeginsLate,
    /// It ends before the CPUs are flushed.
    EndsEarly,
    /// A CPU that asks takes another's shootdown for its own.
    CountsTooMany,
}

struct World {
    how: How,
    present: Mutex<[bool; 2]>,
    /// No CPU uses the mapping any more.
    told: [AtomicBool; 2],
    unfinished: Unfinished<CPUS>,
}

impl World {
    fn new(how: How) -> Arc<World> {
        let told = core::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(World { how, present: Mutex::new([true; 2]), told, unfinished: Unfinished::new() })
    }

    /// Takes mappings away, and gives their pages away.
    fn take(&self, me: usize, mappings: &[usize]) {
        let mut lowered = Vec::new();
        {
            let mut present = self.present.lock().unwrap();
            for &mapping in mappings {
                if core::mem::replace(&mut present[mapping], false) {
                    if lowered.is_empty() && self.how != How::BeginsLate {
                        self.unfinished.begin(me);
                    }
                    lowered.push(mapping);
                }
            }
        }
        let is_counted = !lowered.is_empty();
        if is_counted && self.how == How::BeginsLate {
            self.unfinished.begin(me);
        }
        let own = u32::from(is_counted || self.how == How::CountsTooMany);
        let tells_all = self.unfinished.are_others(CPUS, own);
        if is_counted && self.how == How::EndsEarly {
            self.unfinished.end(me);
        }
        for &mapping in mappings {
            if tells_all || lowered.contains(&mapping) {
                self.told[mapping].store(true, Relaxed);
            }
        }
        if is_counted && self.how != How::EndsEarly {
            self.unfinished.end(me);
        }
        for &mapping in mappings {
            assert!(self.told[mapping].load(Relaxed), "a page is given away that a CPU still uses");
        }
    }
}

/// One CPU takes a mapping away, another takes that and one more.
fn two_take(how: How) {
    all_schedules(3, move || {
        let world = World::new(how);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.take(1, &[0]))
        };
        let both: &[usize] = if how == How::CountsTooMany { &[0] } else { &[0, 1] };
        world.take(0, both);
        other.join().unwrap();
    });
}

#[test]
fn nobody_goes_on_before_the_cpus_are_told() {
    two_take(How::Right);
}

#[test]
#[should_panic = "is given away that a CPU still uses"]
fn one_that_begins_late_is_overtaken() {
    two_take(How::BeginsLate);
}

#[test]
#[should_panic = "is given away that a CPU still uses"]
fn one_that_ends_early_is_overtaken() {
    two_take(How::EndsEarly);
}

#[test]
#[should_panic = "is given away that a CPU still uses"]
fn one_that_is_taken_for_the_askers_own_is_overtaken() {
    two_take(How::CountsTooMany);
}
