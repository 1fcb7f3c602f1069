//! The line of those who were refused memory: one at a time makes room and tries again, the others
//! sleep.
//!
//! Who is refused comes to the line's end. Its head runs passes, waits for writes, and tries its
//! operation again until that gets what it needs or memory has run out; then it is the next one's
//! turn, which tries first: what the last pass has freed may be enough for many. So one pass serves
//! all, however many wait, and when memory has run out exactly one hears of it, while the others
//! wait for what it or its host does about that.
//!
//! In what order they come is the host's queue of sleepers ([`Machine::wake_one`]): first come,
//! first served in a kernel. The turn is handed over, not let go: who runs while the next one wakes
//! up can't take it. Once memory has run out, faults queue up though some pages are free: a process
//! that writes page after page would have all that a killed one has left before the first of those
//! who wait runs. While there is swap they don't, since a program that has some of its pages gets
//! on sooner with the others.
//!
//! I1: the turn is handed over only to somebody: one of `waiting`, each of whom has a ticket from
//! before or is awake. So the wake-up that follows, under the same lock, finds one of them. I2: who
//! has its turn sleeps for transfers and for the host's answer alone, never in the line.
//!
//! Locks: one, of level `Line`; taken only by who was refused memory.
//!
//! Not taken: atomics for `turn` and `waiting`. Two who came between another's look at the one and
//! its change of the other slept for ever (`RACES.md`). And numbered places: those who leave before
//! their turn, since they are being ended, leave holes.

use machine::lines::AtomicUsize;
use machine::lines::Ordering::Relaxed;

use machine::{order, Channel, Held, Machine, Ordered, Ticket};

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Nobody's, and nobody waits.
    Nobodys,
    /// Somebody has it.
    Taken,
    /// It waits for one of those who sleep.
    Handed,
}

struct State {
    turn: Whose,
    /// Those who have come and have not had their turn.
    waiting: usize,
}

/// See the module.
pub(crate) struct Line<M: Machine> {
    state: Ordered<order::Line, M::Lock, State>,
    /// The same as in the state.
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

impl<M: Machine> Line<M> {
    pub(crate) fn new() -> Self {
        Line {
            state: Ordered::new(State { turn: Whose::Nobodys, waiting: 0 }),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Whether somebody waits for a turn; a moment's value.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Waits for the turn, which must be given back by [`leave`](Self::leave).
    pub(super) fn enter(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Turn {
        let mut ticket = match self.come(machine, held) {
            Ok(()) => return Turn::First,
            Err(ticket) => ticket,
        };
        loop {
            machine.wait(held, ticket);
            ticket = match self.come_again(machine, held) {
                Ok(turn) => return turn,
                Err(ticket) => ticket,
            };
        }
    }

    /// Takes the turn if it is nobody's.
    ///
    /// # Errors
    /// A ticket, for one who waits now.
    fn come(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Result<(), Ticket> {
        let (mut state, _) = self.state.lock(held);
        if state.turn == Whose::Nobodys {
            state.turn = Whose::Taken;
            return Ok(());
        }
        state.waiting += 1;
        self.waiting.store(state.waiting, Relaxed);
        Err(machine.ticket(Channel::LINE))
    }

    /// The same for one who has waited, and may have what was handed over; or who gives up.
    fn come_again(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Result<Turn, Ticket> {
        let (mut state, _) = self.state.lock(held);
        let has_fatal_signal = machine.has_fatal_signal();
        if !has_fatal_signal && state.turn == Whose::Taken {
            return Err(machine.ticket(Channel::LINE));
        }
        state.waiting -= 1;
        self.waiting.store(state.waiting, Relaxed);
        if !has_fatal_signal {
            state.turn = Whose::Taken;
            return Ok(Turn::Waited);
        }
        if state.turn == Whose::Handed {
            // It may have been the one that was woken.
            hand_over(machine, &mut state);
        }
        Ok(Turn::GaveUp)
    }

    /// Hands the turn over to who has waited longest.
    pub(super) fn leave(&self, machine: &M, held: &mut Held<'_, order::Nothing>) {
        hand_over(machine, &mut self.state.lock(held).0);
    }
}

fn hand_over<M: Machine>(machine: &M, state: &mut State) {
    state.turn = if state.waiting == 0 { Whose::Nobodys } else { Whose::Handed };
    machine.wake_one(Channel::LINE);
}
