//! Making room for a thread that was refused memory.
//!
//! An operation that fails for lack of memory waits for its turn in the line (`line.rs`), has a
//! pass made if that may help (`spent.rs`), and tries again, waits or is refused by what the pass
//! has come to (`verdict.rs`). Its aim doubles each time that there is as much and it was refused
//! all the same: a fork that copies many wired pages needs them all at once, and a heap that was
//! refused although pages are free is given more of them before it is believed.
//!
//! Between the refusal and the turn others may have given memory back: an operation that lacked a
//! frame tries again without a pass if more are free than when it tried last. One that was refused
//! no frame lacked something else.

use machine::{order, Channel, Frames, Held, Machine, NoMemory};

use super::line::Turn;
use super::verdict::{Past, Verdict};
use crate::stat::Counter;
use crate::Uvm;

/// What one operation has done for memory so far.
#[derive(Default)]
pub(crate) struct Effort {
    /// It has its turn in the line.
    has_turn: bool,
    /// What happens when memory has run out.
    last: Last,
    /// Allocations of frames that had been refused, whosever, when it tried last.
    refusals: usize,
    /// Frames that were free then, if it has tried again.
    tried_with: usize,
    /// How often the aim has been doubled.
    doubled: u32,
    past: Past,
}

/// What is done for an operation when memory has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Last {
    /// It fails.
    #[default]
    Fail,
    /// The host is asked to give some back: [`Machine::out_of_memory`].
    AskHost,
}

impl Effort {
    /// An access of a program, which can't be refused: the host may end another for it.
    #[inline]
    pub(crate) fn of_fault() -> Effort {
        Effort { last: Last::AskHost, ..Effort::default() }
    }

    /// It is about to try for the first time.
    #[inline]
    pub(crate) fn begin<M: Machine>(&mut self, frames: &Frames<M>) {
        self.refusals = frames.refusals();
    }

    /// It is about to try again.
    fn tries_again<M: Machine>(&mut self, frames: &Frames<M>) {
        self.refusals = frames.refusals();
        self.tried_with = frames.free();
    }

    /// It was refused a frame and, whoever gave it back, there is one now that it has not tried to
    /// get.
    fn has_got_some<M: Machine>(&self, frames: &Frames<M>) -> bool {
        let was_refused = frames.refusals() != self.refusals;
        was_refused && frames.for_users() != 0 && frames.free() > self.tried_with
    }

    /// How many pages should be free, more than there are; none if that would be most of memory.
    fn aim<M: Machine>(&mut self, frames: &Frames<M>) -> Option<usize> {
        let (free, most) = (frames.free(), frames.total() - frames.total() / 4);
        loop {
            let target = frames.high_water().checked_shl(self.doubled).unwrap_or(usize::MAX);
            if target > free {
                return Some(target);
            }
            if target >= most {
                return None;
            }
            self.doubled += 1;
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// Frees memory for a caller that was refused some, and holds nothing: it waits for its turn,
    /// and makes a pass unless others have just made some. Says whether it may be worth to try
    /// again; if not, memory has run out.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    pub fn make_room(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let mut effort = Effort::default();
        effort.begin(self.frames());
        let made = self.make_room_for(held, &mut effort);
        self.has_room(held, &mut effort);
        made
    }

    /// Tries an allocation of the host's own, again and again while room can be made for it; nobody
    /// else who was refused memory is served meanwhile. `attempt` may not sleep, nor come here.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    ///
    /// # Errors
    /// [`NoMemory`] when memory has run out, or the calling thread is being ended.
    pub fn with_room<T>(
        &self,
        held: &mut Held<'_, order::Nothing>,
        last: Last,
        mut attempt: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<T, NoMemory> {
        let mut effort = Effort { last, ..Effort::default() };
        effort.begin(self.frames());
        loop {
            let result = attempt();
            if result.is_ok() || !self.make_room_for(held, &mut effort) {
                self.has_room(held, &mut effort);
                return result;
            }
        }
    }

    /// The same for an operation that may ask again. If it needs no more, it says so by
    /// [`has_room`](Self::has_room).
    #[cold]
    pub(crate) fn make_room_for(
        &self,
        held: &mut Held<'_, order::Nothing>,
        effort: &mut Effort,
    ) -> bool {
        let turn = match effort.has_turn {
            true => Turn::First,
            false => self.line.enter(self.machine(), held),
        };
        effort.has_turn = turn != Turn::GaveUp;
        let goes_on = match turn {
            Turn::GaveUp => false,
            Turn::Waited => true,
            Turn::First => !self.machine().has_fatal_signal() && self.free_or_ask(held, effort),
        };
        if goes_on {
            effort.tries_again(self.frames());
        } else {
            self.has_room(held, effort);
        }
        goes_on
    }

    /// Before an access of a program is served: while memory has run out and others wait for some,
    /// it waits for its turn.
    #[cold]
    pub(crate) fn queue_up(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) {
        let is_served = effort.has_turn || effort.last == Last::Fail;
        if self.is_spent() && !is_served && self.frames().free() < self.frames().low_water() {
            effort.has_turn = self.line.enter(self.machine(), held) != Turn::GaveUp;
        }
    }

    /// An operation has got what it needs for now, or does without: the next one's turn.
    #[inline]
    pub(crate) fn has_room(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) {
        if core::mem::take(&mut effort.has_turn) {
            self.line.leave(self.machine(), held);
        }
    }

    fn free_or_ask(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        if self.free_some(held, effort) {
            return true;
        }
        let last = effort.last;
        *effort = Effort { has_turn: true, last, ..Effort::default() };
        last == Last::AskHost && self.machine().out_of_memory(held)
    }

    fn free_some(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        let freed = self.stat().get(Counter::PagesFreed);
        loop {
            if effort.has_got_some(self.frames()) {
                return true;
            }
            if self.begin_pass(held) {
                break;
            }
            if self.stat().get(Counter::PagesFreed) != freed {
                return true;
            }
        }
        // Read before the look around: a transfer that ends after that is noticed by who waits
        // (V2).
        let memory = self.machine().ticket(Channel::MEMORY);
        let verdict = self.pass_and_judge(held, effort);
        self.end_pass();
        match verdict {
            Verdict::TryAgain => {}
            Verdict::Pause => self.machine().pause(held),
            Verdict::Wait => self.machine().wait(held, memory),
            Verdict::Refuse => return false,
        }
        true
    }

    /// A pass, where it may help, with the pass lock held.
    fn pass_and_judge(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> Verdict {
        let low = self.frames().low_water();
        let Some(target) = effort.aim(self.frames()) else { return Verdict::Refuse };
        let before = self.sight(held);
        if effort.has_got_some(self.frames()) {
            return Verdict::TryAgain;
        }
        let is_enough_leaving = before.leaving != 0 && before.free + before.leaving >= target;
        let helps = before.is_worth_a_pass(low) && !is_enough_leaving;
        let pass = helps.then(|| self.direct_pass(held, target));
        let after = if helps { self.sight(held) } else { before };
        effort.past.judge(low, &before, pass, &after)
    }
}
