//! The line of those who were refused memory: one at a time makes room and tries again, the others sleep.
//!
//! Who is refused comes to the line's end. Its head runs passes, waits for writes, and tries its operation again until
//! that gets what it needs or memory has run out; then it is the next one's turn, which tries first: what the last
//! pass has freed may be enough for many. So one pass serves all, however many wait, and when memory has run out
//! exactly one hears of it, while the others wait for what it or its host does about that.
//!
//! In what order they come is the host's queue of sleepers ([`Machine::wake_one`]): first come, first served in a
//! kernel. The turn is handed over, not let go: who runs while the next one wakes up can't take it. Once memory
//! has run out, faults queue up though some pages are free: a process that writes page after page would have all that a
//! killed one has left before the first of those who wait runs. While there is swap they don't, since a program that has
//! some of its pages gets on sooner with the others.
//!
//! I1: `state` is `FREE` only when nobody is asleep who has not been woken since.
//! I2: who has its turn sleeps for transfers and for the host's answer alone, never in the line.
//!
//! Locks: none.
//!
//! Not taken: numbered places. Those who leave before their turn, since they are being ended, leave holes.

use machine::lines::Ordering::{Relaxed, SeqCst};
use machine::lines::{AtomicU8, AtomicUsize};

use machine::{order, Channel, Held, Machine};

/// Nobody has the turn.
const FREE: u8 = 0;
/// Somebody has.
const TAKEN: u8 = 1;
/// It waits for one of those who sleep.
const HANDED: u8 = 2;

/// See the module.
pub(crate) struct Line {
    state: AtomicU8,
    /// Those who have come and have not had their turn.
    waiting: AtomicUsize,
}

/// How one came to its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// At once.
    First,
    /// After others, who may have left free pages.
    Waited,
    /// Not at all: the thread is being ended.
    GaveUp,
}

impl Line {
    pub(crate) const fn new() -> Line {
        Line { state: AtomicU8::new(FREE), waiting: AtomicUsize::new(0) }
    }

    /// Whether somebody waits for a turn; a moment's value.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Waits for the turn, which must be given back by [`leave`](Self::leave).
    pub(super) fn enter<M: Machine>(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Turn {
        self.waiting.fetch_add(1, SeqCst);
        let mut turn = Turn::First;
        loop {
            let ticket = machine.ticket(Channel::LINE);
            if self.take(turn) {
                self.waiting.fetch_sub(1, SeqCst);
                return turn;
            }
            if machine.gives_up() {
                self.waiting.fetch_sub(1, SeqCst);
                self.pass_on(machine);
                return Turn::GaveUp;
            }
            machine.wait(held, ticket);
            turn = Turn::Waited;
        }
    }

    /// Takes the turn if it is to be had: who comes now can't have what was handed to others.
    fn take(&self, turn: Turn) -> bool {
        let may = turn == Turn::Waited || self.waiting.load(SeqCst) == 1;
        let is = |state| self.state.compare_exchange(state, TAKEN, SeqCst, SeqCst).is_ok();
        is(FREE) || (may && is(HANDED))
    }

    /// Hands the turn over to who has waited longest.
    pub(super) fn leave<M: Machine>(&self, machine: &M) {
        let is_last = self.waiting.load(SeqCst) == 0;
        self.state.store(if is_last { FREE } else { HANDED }, SeqCst);
        machine.wake_one(Channel::LINE);
    }

    /// What may have been handed to one who gave up is the next one's.
    fn pass_on<M: Machine>(&self, machine: &M) {
        if self.state.load(SeqCst) != TAKEN {
            machine.wake_one(Channel::LINE);
        }
    }
}
