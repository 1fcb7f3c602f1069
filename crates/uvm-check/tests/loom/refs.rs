//! References: with the last one what is referred to is given up, once, and no thread uses it then.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use uvm::refs::Refs;

use crate::all_schedules;

/// What threads do, and the law broken.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Right,
    /// A thread that finds no reference takes one all the same.
    Revives,
    /// The last one gives up without asking whether it still is.
    LooksOnce,
}

struct World {
    how: How,
    refs: Refs,
    lock: Mutex<()>,
    /// How often it was given up.
    given_up: UnsafeCell<u32>,
}

// SAFETY: loom reports a thread that writes `given_up` beside others, which is what the tests look
// for.
unsafe impl Sync for World {}

impl World {
    fn new(how: How) -> Arc<World> {
        Arc::new(World {
            how,
            refs: Refs::new(),
            lock: Mutex::new(()),
            given_up: UnsafeCell::new(0),
        })
    }

    /// Looks at what is referred to.
    fn give_ups(&self) -> u32 {
        // SAFETY: as above.
        self.given_up.with(|times| unsafe { *times })
    }

    fn attach_if_used(&self) -> bool {
        if self.how == How::Revives {
            self.refs.attach();
            return true;
        }
        self.refs.attach_if_used()
    }

    fn detach(&self) {
        let is_alone = self.refs.count() == 1;
        if self.refs.detach_if_shared() {
            return;
        }
        let _guard = self.lock.lock().unwrap();
        let is_last = self.refs.detach();
        if is_last || (self.how == How::LooksOnce && is_alone) {
            // SAFETY: as above.
            self.given_up.with_mut(|times| unsafe { *times += 1 });
        }
    }
}

/// One thread gives its reference back; others take one if they can, use it, and give it back.
fn come_and_go(how: How, others: usize) {
    all_schedules(3, move || {
        let world = World::new(how);
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    if world.attach_if_used() {
                        assert_eq!(world.give_ups(), 0, "used after it was given up");
                        world.detach();
                    }
                })
            })
            .collect();
        assert_eq!(world.give_ups(), 0, "given up while it is referred to");
        world.detach();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((world.refs.count(), world.give_ups()), (0, 1));
    });
}

#[test]
fn with_the_last_reference_it_is_given_up_once() {
    come_and_go(How::Right, 1);
    come_and_go(How::Right, 2);
}

#[test]
#[should_panic(expected = "gets a reference")]
fn who_revives_it_is_found() {
    come_and_go(How::Revives, 1);
}

#[test]
#[should_panic]
fn who_looks_once_is_found() {
    come_and_go(How::LooksOnce, 2);
}
