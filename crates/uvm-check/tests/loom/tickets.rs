//! Tickets: no wake-up is lost between the unlock and the sleep.
//!
//! A thread that sleeps for ever is a deadlock, which loom reports.

use loom::sync::Arc;
use loom::thread;
use machine::order::Object;
use machine::{Channel, Ordered, ThreadCtx};

use crate::all_schedules;
use crate::sync::channels::Channels;
use crate::sync::RawSpin;

const PAGE: Channel = Channel(7);
/// Has another queue than `PAGE`.
const OTHER: Channel = Channel(8);

/// A page that a thread waits for, in the life of its owner's lock.
struct Owner {
    busy: Ordered<Object, RawSpin, bool>,
    /// Boxed: a thread of loom's has a small stack.
    channels: Box<Channels>,
}

impl Owner {
    fn new() -> Arc<Owner> {
        let owner = Owner { busy: Ordered::new(true), channels: Box::new(Channels::new()) };
        assert!(*owner.busy.lock(&mut ThreadCtx::new().held()).0);
        [PAGE, OTHER].into_iter().for_each(|channel| owner.channels.wake(channel));
        Arc::new(owner)
    }

    /// An operation's attempts: each reads its ticket under the owner's lock.
    fn until_idle(&self) {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        loop {
            let ticket = {
                let (busy, _h) = self.busy.lock(held);
                if !*busy {
                    return;
                }
                self.channels.ticket(PAGE)
            };
            self.channels.wait(ticket, || false);
        }
    }

    /// The I/O's completion; a handler that wakes while it holds the lock.
    fn done(&self) {
        let mut ctx = ThreadCtx::new();
        let held = &mut ctx.held();
        let (mut busy, _h) = self.busy.lock(held);
        *busy = false;
        self.channels.wake(PAGE);
    }

    /// Like [`done`](Self::done), but wakes after the lock went.
    fn done_then_wakes(&self) {
        *self.busy.lock(&mut ThreadCtx::new().held()).0 = false;
        self.channels.wake(PAGE);
    }
}

fn waits_beside(others: &'static [fn(&Owner)], wait: fn(&Owner)) {
    let owner = Owner::new();
    let start = |work: &fn(&Owner)| {
        let (owner, work) = (owner.clone(), *work);
        thread::spawn(move || work(&owner))
    };
    let threads: Vec<_> = others.iter().map(start).collect();
    wait(&owner);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_wake_up_between_unlock_and_sleep_is_not_lost() {
    all_schedules(3, || waits_beside(&[Owner::done], Owner::until_idle));
    all_schedules(3, || waits_beside(&[Owner::done_then_wakes], Owner::until_idle));
}

#[test]
fn all_that_wait_are_woken() {
    all_schedules(1, || waits_beside(&[Owner::done, Owner::until_idle], Owner::until_idle));
}

#[test]
fn wake_ups_of_other_channels_disturb_nobody() {
    let others: &[fn(&Owner)] = &[|o| o.channels.wake(OTHER), Owner::done];
    all_schedules(1, move || waits_beside(others, Owner::until_idle));
}

/// The twin: a ticket that is read after the lock went, and is the old one for ever if the wake-up
/// came between.
#[test]
#[should_panic(expected = "sleeps for ever")]
fn a_ticket_read_late_is_found() {
    all_schedules(3, || {
        let owner = Owner::new();
        let theirs = owner.clone();
        let handler = thread::spawn(move || theirs.done());
        let busy = *owner.busy.lock(&mut ThreadCtx::new().held()).0;
        let ticket = owner.channels.ticket(PAGE);
        handler.join().unwrap();
        assert!(
            !busy || owner.channels.ticket(PAGE) != ticket,
            "who waits with this ticket sleeps for ever"
        );
    });
}
