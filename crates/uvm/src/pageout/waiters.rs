//! Threads that were refused memory: one at a time reclaims and tries again, the others sleep.
//!
//! A refused thread joins the queue's end. The thread at its head makes passes, waits for writes,
//! and tries its operation again until that gets what it needs or memory has run out. Then it hands
//! the turn to the next thread, which tries first: what the last pass has freed may be enough for
//! many. So one pass serves all, however many wait, and when memory has run out exactly one thread
//! is refused, while the others wait for what it or its host does about that.
//!
//! The queue's order is that of the host's sleepers ([`Machine::wake_one`]): first come, first
//! served in a kernel. A turn is handed over, not released: no thread that runs while the next one
//! wakes up can take it. Once memory has run out, faults queue up though some pages are free: a
//! process that writes page after page would have all that a killed one has left before the first
//! waiter runs. While there is swap they don't, since a program that has some of its pages gets on
//! sooner with the others.
//!
//! I1: a turn is handed over only if a thread waits: one of `waiting`, each of which has a ticket
//! from before or is awake. So the wake-up that follows, under the same lock, finds one of them.
//! I2: a thread with its turn sleeps for transfers and for the host's answer alone, never in the
//! queue.
//!
//! Locks: one, of level `MemoryTurn`; taken only by threads that were refused memory.
//!
//! Not taken: atomics for `turn` and `waiting`. Two threads that came between another's look at the
//! one and its change of the other slept for ever (`RACES.md`). And numbered places: threads that
//! leave before their turn, since they are being ended, leave holes.

use machine::lines::AtomicUsize;
use machine::lines::Ordering::Relaxed;

use machine::{order, Channel, Held, Machine, Ordered, Ticket};

/// State of the turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnState {
    /// Free, and no thread waits.
    Free,
    /// A thread has it.
    Taken,
    /// For a waiter that has not woken yet.
    Handed,
}

struct State {
    turn: TurnState,
    /// Threads that have come and have not had their turn.
    waiting: usize,
}

/// See the module.
pub(crate) struct Waiters<M: Machine> {
    state: Ordered<order::MemoryTurn, M::Lock, State>,
    /// The same as in the state.
    waiting: AtomicUsize,
}

/// How a thread came to its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// At once.
    First,
    /// After others, who may have left free pages.
    Waited,
    /// Not at all: the thread is being ended.
    GaveUp,
}

impl<M: Machine> Waiters<M> {
    pub(crate) fn new() -> Self {
        Waiters {
            state: Ordered::new(State { turn: TurnState::Free, waiting: 0 }),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Whether a thread waits for its turn; a moment's value.
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

    /// Takes the turn if it is free.
    ///
    /// # Errors
    /// A ticket, for a thread that waits now.
    fn come(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Result<(), Ticket> {
        let (mut state, _) = self.state.lock(held);
        if state.turn == TurnState::Free {
            state.turn = TurnState::Taken;
            return Ok(());
        }
        state.waiting += 1;
        self.waiting.store(state.waiting, Relaxed);
        Err(machine.ticket(Channel::MEMORY_TURN))
    }

    /// As [`come`](Self::come), for a thread that has waited: it may take what was handed over, or
    /// gives up.
    fn come_again(&self, machine: &M, held: &mut Held<'_, order::Nothing>) -> Result<Turn, Ticket> {
        let (mut state, _) = self.state.lock(held);
        let has_fatal_signal = machine.has_fatal_signal();
        if !has_fatal_signal && state.turn == TurnState::Taken {
            return Err(machine.ticket(Channel::MEMORY_TURN));
        }
        state.waiting -= 1;
        self.waiting.store(state.waiting, Relaxed);
        if !has_fatal_signal {
            state.turn = TurnState::Taken;
            return Ok(Turn::Waited);
        }
        if state.turn == TurnState::Handed {
            // This thread may have been the one that was woken.
            hand_over(machine, &mut state);
        }
        Ok(Turn::GaveUp)
    }

    /// Hands the turn over to the thread that has waited longest.
    pub(super) fn leave(&self, machine: &M, held: &mut Held<'_, order::Nothing>) {
        hand_over(machine, &mut self.state.lock(held).0);
    }
}

fn hand_over<M: Machine>(machine: &M, state: &mut State) {
    state.turn = if state.waiting == 0 { TurnState::Free } else { TurnState::Handed };
    machine.wake_one(Channel::MEMORY_TURN);
}
