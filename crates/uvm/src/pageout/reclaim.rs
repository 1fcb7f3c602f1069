//! Direct reclaim: what a thread does that was refused memory.
//!
//! An operation that fails for lack of memory waits for its turn ([`Waiters`]), has a pass made if
//! that may help ([`begin_pass`](Uvm::begin_pass)), and tries again, waits or is refused by what
//! the pass has freed (`decision.rs`). Its target doubles each time that as many pages are free and
//! it was refused all the same: a fork that copies many wired pages needs them all at once, and a
//! heap that was refused although pages are free is given more of them before it is believed.
//!
//! Between the refusal and the turn other threads may have freed memory: an operation that lacked a
//! frame tries again without a pass if more are free than when it tried last. One that was refused
//! no frame lacked something else.
//!
//! # Taking turns
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
//! # No progress
//! A desperate pass that took all there was and could not bring free pages up to the low water mark
//! leaves behind what no pass can take: pages that are wired, and dirty ones that swap has no slot
//! for; and pages that were queued while it ran, which count as found as long as swap has room.
//! Until something changes that, another one finds what has become fresh since: pages that were
//! read, or written and so made clean, pages of files that were made, and as many dirty ones as
//! swap has got slots for. Counters say how many those can be at most, and unless that could help
//! no pass is made. So a scan of all of memory is paid for by as many pages that came in as the low
//! water mark stands high, and a fork bomb's processes don't each make one.
//!
//! I3: `fresh` is never less than what a desperate pass could take. I4: what is known is forgotten
//! when wired pages are released, and not kept where a transfer failed during the pass: its pages
//! are there yet.
//!
//! Locks: two of level `MemoryTurn`, around the turn and around what is known: a few words each,
//! taken by passes and by threads that were refused memory.
//!
//! Not taken: a turn without a lock. Two threads that came between another's look at `turn` and its
//! change of `waiting` slept for ever (`RACES.md`). And numbered places: threads that leave before
//! their turn, since they are being ended, leave holes.

use machine::lines::AtomicUsize;
use machine::lines::Ordering::{AcqRel, Relaxed, Release};
use machine::{order, Channel, Machine, NoMemory, Ordered, Ticket, Unlocked};

use super::decision::{Decision, MemoryState, Past};
use super::{Priority, Progress};
use crate::page::{Class, Frames};
use crate::stat::Counter;
use crate::Uvm;

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

/// Threads that were refused memory: one at a time reclaims and tries again, the others sleep.
pub(crate) struct Waiters<M: Machine> {
    turn: Ordered<order::MemoryTurn, M::Lock, TurnState>,
    /// Threads that have come and have not had their turn; changes with the turn locked.
    waiting: AtomicUsize,
}

/// How a thread came to its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// At once.
    First,
    /// After others, which may have left free pages.
    Waited,
    /// Not at all: the thread is being ended.
    GaveUp,
}

impl<M: Machine> Waiters<M> {
    pub(crate) fn new() -> Self {
        Waiters { turn: Ordered::new(TurnState::Free), waiting: AtomicUsize::new(0) }
    }

    /// Whether a thread waits for its turn; a moment's value.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Waits for the turn, which must be given back by [`leave`](Self::leave).
    fn enter(&self, machine: &M, held: &mut Unlocked<'_>) -> Turn {
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
    fn come(&self, machine: &M, held: &mut Unlocked<'_>) -> Result<(), Ticket> {
        let (mut turn, _) = self.turn.lock(held);
        if *turn == TurnState::Free {
            *turn = TurnState::Taken;
            return Ok(());
        }
        self.waiting.fetch_add(1, Relaxed);
        Err(machine.ticket(Channel::MEMORY_TURN))
    }

    /// As [`come`](Self::come), for a thread that has waited: it may take what was handed over, or
    /// gives up.
    fn come_again(&self, machine: &M, held: &mut Unlocked<'_>) -> Result<Turn, Ticket> {
        let (mut turn, _) = self.turn.lock(held);
        let has_fatal_signal = machine.has_fatal_signal();
        if !has_fatal_signal && *turn == TurnState::Taken {
            return Err(machine.ticket(Channel::MEMORY_TURN));
        }
        self.waiting.fetch_sub(1, Relaxed);
        if !has_fatal_signal {
            *turn = TurnState::Taken;
            return Ok(Turn::Waited);
        }
        if *turn == TurnState::Handed {
            // This thread may have been the one that was woken.
            self.hand_over(machine, &mut turn);
        }
        Ok(Turn::GaveUp)
    }

    /// Hands the turn over to the thread that has waited longest.
    fn leave(&self, machine: &M, held: &mut Unlocked<'_>) {
        self.hand_over(machine, &mut self.turn.lock(held).0);
    }

    fn hand_over(&self, machine: &M, turn: &mut TurnState) {
        *turn = if self.has_waiters() { TurnState::Handed } else { TurnState::Free };
        machine.wake_one(Channel::MEMORY_TURN);
    }
}

/// What is known from the last pass.
pub(crate) type LastPass<M> = Ordered<order::MemoryTurn, <M as Machine>::Lock, Option<NoProgress>>;

/// What a desperate pass left that made no progress.
#[derive(Clone, Copy)]
pub(crate) struct NoProgress {
    /// Pages that the pass met and could not take: another thread had or wanted them, or they had
    /// to be written first.
    left: usize,
    /// Pages read, written and failed by its end.
    made: u64,
    /// Pages of files.
    files: usize,
    loosened: u64,
    /// All that can change.
    state: [u64; 6],
}

/// Threads that wait for the end of a pass.
const PASS_ENDED: Channel = Channel(u64::MAX - 2);

/// Counters of pages that a pass may take after them.
const MADE: [Counter; 6] = [
    Counter::SwapIns,
    Counter::FilePagesRead,
    Counter::FilePagesWritten,
    Counter::SwapErrors,
    Counter::FileErrors,
    Counter::FreedLazily,
];

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
    /// The host is asked to give some back, as for an access of a program, which can't be refused:
    /// [`Machine::out_of_memory`].
    AskHost,
}

impl Reclaim {
    /// For an operation that is about to try for the first time.
    #[inline]
    pub(crate) fn new<M: Machine>(frames: &Frames<M>, last: Last) -> Reclaim {
        Reclaim { last, refusals: frames.refusals(), ..Reclaim::default() }
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
    pub fn make_room(&self, held: &mut Unlocked<'_>) -> bool {
        let mut reclaim = Reclaim::new(self.frames(), Last::Fail);
        let made = self.make_room_for(held, &mut reclaim);
        self.release_turn(held, &mut reclaim);
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
        held: &mut Unlocked<'_>,
        last: Last,
        mut attempt: impl FnMut() -> Result<T, NoMemory>,
    ) -> Result<T, NoMemory> {
        let mut reclaim = Reclaim::new(self.frames(), last);
        loop {
            let result = attempt();
            if result.is_ok() || !self.make_room_for(held, &mut reclaim) {
                self.release_turn(held, &mut reclaim);
                return result;
            }
        }
    }

    /// As [`make_room`](Self::make_room), for an operation that may ask again. If it needs no more,
    /// it gives its turn back by [`release_turn`](Self::release_turn).
    #[cold]
    pub(crate) fn make_room_for(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) -> bool {
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
            reclaim.refusals = self.frames().refusals();
            reclaim.tried_with = self.frames().free();
        } else {
            self.release_turn(held, reclaim);
        }
        goes_on
    }

    /// Before an access of a program is served: while memory has run out and other threads wait for
    /// some, it waits for its turn.
    #[cold]
    pub(crate) fn queue_up(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) {
        let is_served = reclaim.has_turn || reclaim.last == Last::Fail;
        if self.has_run_out() && !is_served && self.frames().free() < self.frames().low_water() {
            reclaim.has_turn = self.waiters.enter(self.mem(), held) != Turn::GaveUp;
        }
    }

    /// An operation has got what it needs for now, or does without: the next waiter's turn.
    #[inline]
    pub(crate) fn release_turn(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) {
        if core::mem::take(&mut reclaim.has_turn) {
            self.waiters.leave(self.mem(), held);
        }
    }

    fn free_or_ask(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) -> bool {
        if self.free_some(held, reclaim) {
            return true;
        }
        *reclaim = Reclaim { has_turn: true, last: reclaim.last, ..Reclaim::default() };
        reclaim.last == Last::AskHost && self.mem().out_of_memory(held)
    }

    fn free_some(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) -> bool {
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
        // Read before the look around: a transfer that ends after that wakes a thread that waits
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
    fn pass_and_judge(&self, held: &mut Unlocked<'_>, reclaim: &mut Reclaim) -> Decision {
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

/// The one pass, and what it leaves.
impl<M: Machine> Uvm<M> {
    /// Begins the one pass; or waits until another thread's has ended, and says no.
    pub(super) fn begin_pass(&self, held: &mut Unlocked<'_>) -> bool {
        let ticket = self.mem().ticket(PASS_ENDED);
        if !self.mem().pageout.runs.swap(true, AcqRel) {
            return true;
        }
        self.mem().wait(held, ticket);
        false
    }

    pub(super) fn end_pass(&self) {
        self.mem().pageout.runs.store(false, Release);
        self.mem().wake(PASS_ENDED);
    }

    /// Whether memory has run out, as far as the last desperate pass could tell.
    #[inline]
    fn has_run_out(&self) -> bool {
        self.mem().pageout.has_run_out.load(Relaxed)
    }

    /// Counts of this moment.
    pub(super) fn memory_state(&self, held: &mut Unlocked<'_>) -> MemoryState {
        // First what is under way, which is free next: rather counted twice than not at all.
        let (leaving, coming) = (self.pages_in_flight(), self.pages_coming_in());
        let being_freed = self.frames().being_freed();
        MemoryState {
            free: self.frames().free() + being_freed,
            being_freed,
            leaving,
            coming,
            free_slots: self.swap().room(held) as usize,
            fresh: self.fresh(held),
            freed: self.stat().get(Counter::PagesFreed),
            errors: self.transfer_errors(),
        }
    }

    /// Whether free pages and those that are being written are below the low water mark.
    fn is_low(&self) -> bool {
        self.pages_in_flight() + self.frames().free() < self.frames().low_water()
    }

    /// A pass for a thread that was refused memory: a desperate one if there is no other way.
    fn direct_pass(&self, held: &mut Unlocked<'_>, target: usize) -> Progress {
        self.count(Counter::DirectPasses, 1);
        let fair = match self.has_run_out() {
            true => Progress::default(),
            false => self.pass(held, target, Priority::Normal),
        };
        if !self.is_low() {
            self.note_pass(held, None);
            return fair;
        }
        let (errors, loosened) =
            (self.transfer_errors(), self.mem().pageout.loosened.load(Relaxed));
        // What is read from here on, or is being read now, the pass may miss.
        let (coming_in, made_before) = (self.pages_coming_in(), self.pages_made());
        let pass = self.pass(held, target, Priority::Desperate);
        let vain = if self.is_low() && self.transfer_errors() == errors {
            // A file's dirty page that the pass has met may have been written by now: it is there,
            // and clean.
            let made = self.pages_made();
            let files = self.file_pages(held);
            let on_queues = self.frames().active() + self.frames().inactive();
            let left = match self.swap().room(held) {
                0 => pass.wanted,
                _ => on_queues.saturating_sub(pass.wired),
            };
            let left = coming_in + left + self.pages_in_flight() + (made - made_before) as usize;
            Some(NoProgress { left, made, files, loosened, state: self.state_of_memory(held) })
        } else {
            None
        };
        self.note_pass(held, vain);
        fair.and(pass)
    }

    fn note_pass(&self, held: &mut Unlocked<'_>, vain: Option<NoProgress>) {
        *self.last_pass.lock(held).0 = vain;
        self.mem().pageout.has_run_out.store(vain.is_some(), Relaxed);
    }

    /// What a pass can take at most, but for what is under way.
    fn fresh(&self, held: &mut Unlocked<'_>) -> usize {
        let files = self.file_pages(held);
        let was_freed = self.stat().get(Counter::FreedLazily) != 0;
        if self.swap().slots() == 0 && files == 0 && !was_freed {
            return 0;
        }
        let loosened = self.mem().pageout.loosened.load(Relaxed);
        let last = *self.last_pass.lock(held).0;
        let Some(last) = last.filter(|last| last.loosened == loosened) else {
            return usize::MAX;
        };
        if self.state_of_memory(held) == last.state {
            return last.left;
        }
        let made = (self.pages_made() - last.made) as usize;
        let free_slots = self.swap().room(held) as usize;
        let loaned = self.anons.borrowed.load(Relaxed);
        last.left + made + free_slots + loaned + files.saturating_sub(last.files)
    }

    fn pages_made(&self) -> u64 {
        MADE.map(|counter| self.stat().get(counter)).iter().sum()
    }

    fn transfer_errors(&self) -> u64 {
        self.stat().get(Counter::SwapErrors) + self.stat().get(Counter::FileErrors)
    }

    fn file_pages(&self, held: &mut Unlocked<'_>) -> usize {
        self.frames().flush_pending(held);
        self.frames().of_class(Class::File) + self.frames().of_class(Class::Exec)
    }

    /// Numbers of which one changes whenever a pass might find what the last one did not, but for
    /// wirings.
    fn state_of_memory(&self, held: &mut Unlocked<'_>) -> [u64; 6] {
        let frames = self.frames();
        [
            self.stat().get(Counter::PagesFreed),
            self.pages_made(),
            frames.free() as u64,
            (frames.active() + frames.inactive()) as u64,
            u64::from(self.swap().used()),
            u64::from(self.swap().room(held)),
        ]
    }
}
