//! Direct reclaim: what a thread does that was refused memory.
//!
//! An operation that fails for lack of memory waits for its turn (`waiters.rs`), has a pass made if
//! that may help (`no_progress.rs`), and tries again, waits or is refused by what the pass has
//! freed (`decision.rs`). Its target doubles each time that as many pages are free and it was
//! refused all the same: a fork that copies many wired pages needs them all at once, and a heap
//! that was refused although pages are free is given more of them before it is believed.
//!
//! Between the refusal and the turn other threads may have freed memory: an operation that lacked a
//! frame tries again without a pass if more are free than when it tried last. One that was refused
//! no frame lacked something else.

use crate::page::Frames;
use machine::{order, Channel, Held, Machine, NoMemory};

use super::decision::{Decision, Past};
use super::waiters::Turn;
use crate::stat::Counter;
use crate::Uvm;

/// What one operation has done to get memory.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// It has its turn.
    has_turn: bool,
    /// What happens when memory has run out.
    last: Last,
    /// Refused allocations of frames, of all threads, when it tried last.
    refusals: usize,
    /// Frames that were free then, if it has tried again.
    tried_with: usize,
    /// How often the target has been doubled.
    doubled: u32,
    past: Past,
}

/// What is done for an operation when memory has run out.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let seven = uvm.with_room(held, uvm::pageout::Last::Fail, || Ok(7))?;
/// assert_eq!(seven, 7);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Last {
    /// It fails.
    #[default]
    Fail,
    /// The host is asked to give some back: [`Machine::out_of_memory`].
    AskHost,
}

impl Reclaim {
    /// An access of a program, which can't be refused: the host may end another for it.
    #[inline]
    pub(crate) fn of_fault() -> Reclaim {
        Reclaim { last: Last::AskHost, ..Reclaim::default() }
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

    /// It was refused a frame, and one is free now that it has not tried to get.
    fn has_got_some<M: Machine>(&self, frames: &Frames<M>) -> bool {
        let was_refused = frames.refusals() != self.refusals;
        was_refused && frames.for_users() != 0 && frames.free() > self.tried_with
    }

    /// How many pages should be free, more than there are; none if that would be most of memory.
    fn target<M: Machine>(&mut self, frames: &Frames<M>) -> Option<usize> {
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
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// if uvm.make_room(held) {
    ///     // Some memory may be free now: try again what was refused.
    /// }
    /// # Ok(()) });
    /// ```
    pub fn make_room(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let mut reclaim = Reclaim::default();
        reclaim.begin(self.frames());
        let made = self.make_room_for(held, &mut reclaim);
        self.has_room(held, &mut reclaim);
        made
    }

    /// Tries an allocation of the host's own, again and again while memory can be freed for it; no
    /// other thread that was refused memory is served meanwhile. `attempt` may neither sleep nor
    /// reclaim.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    ///
    /// # Errors
    /// [`NoMemory`] when memory has run out, or the calling thread is being ended.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let table = uvm.with_room(held, uvm::pageout::Last::Fail, || {
    ///     let mut table = Vec::<u64>::new();
    ///     table.try_reserve_exact(1 << 16).map_err(|_| NoMemory)?;
    ///     Ok(table)
    /// })?;
    /// assert!(table.capacity() >= 1 << 16);
    /// # Ok(()) });
    /// ```
    pub fn with_room<T>(
        &self,
        held: &mut Held<'_, order::Nothing>,
        last: Last,
        mut attempt: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<T, NoMemory> {
        let mut reclaim = Reclaim { last, ..Reclaim::default() };
        reclaim.begin(self.frames());
        loop {
            let result = attempt();
            if result.is_ok() || !self.make_room_for(held, &mut reclaim) {
                self.has_room(held, &mut reclaim);
                return result;
            }
        }
    }

    /// As [`make_room`](Self::make_room), for an operation that may ask again. If it needs no more,
    /// it says so by [`has_room`](Self::has_room).
    #[cold]
    pub(crate) fn make_room_for(
        &self,
        held: &mut Held<'_, order::Nothing>,
        reclaim: &mut Reclaim,
    ) -> bool {
        let turn = match reclaim.has_turn {
            true => Turn::First,
            false => self.waiters.enter(self.mem(), held),
        };
        reclaim.has_turn = turn != Turn::GaveUp;
        let goes_on = match turn {
            Turn::GaveUp => false,
            Turn::Waited => true,
            Turn::First => !self.mem().has_fatal_signal() && self.free_or_ask(held, reclaim),
        };
        if goes_on {
            reclaim.tries_again(self.frames());
        } else {
            self.has_room(held, reclaim);
        }
        goes_on
    }

    /// Before an access of a program is served: while memory has run out and other threads wait for
    /// some, it waits for its turn.
    #[cold]
    pub(crate) fn queue_up(&self, held: &mut Held<'_, order::Nothing>, reclaim: &mut Reclaim) {
        let is_served = reclaim.has_turn || reclaim.last == Last::Fail;
        if self.has_run_out() && !is_served && self.frames().free() < self.frames().low_water() {
            reclaim.has_turn = self.waiters.enter(self.mem(), held) != Turn::GaveUp;
        }
    }

    /// An operation has got what it needs for now, or does without: the next waiter's turn.
    #[inline]
    pub(crate) fn has_room(&self, held: &mut Held<'_, order::Nothing>, reclaim: &mut Reclaim) {
        if core::mem::take(&mut reclaim.has_turn) {
            self.waiters.leave(self.mem(), held);
        }
    }

    fn free_or_ask(&self, held: &mut Held<'_, order::Nothing>, reclaim: &mut Reclaim) -> bool {
        if self.free_some(held, reclaim) {
            return true;
        }
        let last = reclaim.last;
        *reclaim = Reclaim { has_turn: true, last, ..Reclaim::default() };
        last == Last::AskHost && self.mem().out_of_memory(held)
    }

    fn free_some(&self, held: &mut Held<'_, order::Nothing>, reclaim: &mut Reclaim) -> bool {
        let freed = self.stat().get(Counter::PagesFreed);
        loop {
            if reclaim.has_got_some(self.frames()) {
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
        let memory = self.mem().ticket(Channel::MEMORY);
        let decision = self.pass_and_judge(held, reclaim);
        self.end_pass();
        match decision {
            Decision::TryAgain => {}
            Decision::Pause => self.mem().pause(held),
            Decision::Wait => self.mem().wait(held, memory),
            Decision::Refuse => return false,
        }
        true
    }

    /// A pass, where it may help, with the pass lock held.
    fn pass_and_judge(
        &self,
        held: &mut Held<'_, order::Nothing>,
        reclaim: &mut Reclaim,
    ) -> Decision {
        let low = self.frames().low_water();
        let Some(target) = reclaim.target(self.frames()) else { return Decision::Refuse };
        let before = self.memory_state(held);
        if reclaim.has_got_some(self.frames()) {
            return Decision::TryAgain;
        }
        let is_enough_leaving = before.leaving != 0 && before.free + before.leaving >= target;
        let helps = before.is_worth_a_pass(low) && !is_enough_leaving;
        let pass = helps.then(|| self.direct_pass(held, target));
        let after = if helps { self.memory_state(held) } else { before };
        reclaim.past.judge(low, &before, pass, &after)
    }
}
