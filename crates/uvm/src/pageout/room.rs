//! Making room: for a thread that was refused memory, and on swap.
//!
//! An operation that fails for lack of memory waits for its turn in the line (`line.rs`), runs a pass and tries again,
//! for as long as that helps. Its aim doubles each time: a fork that copies many wired pages needs them all at once,
//! and a heap that was refused although pages are free is given more of them before it is believed.
//!
//! Memory has run out when a desperate pass has found nothing to take, and nothing was being read or written before it. It has
//! also when all that can be taken, swap being full, doesn't reach the low water mark: what leaves then is what is read
//! back at once, and hundreds of threads would take each other's last pages in turn for ever. With room on swap that
//! much is believed the second time: an operation that needs two pages at once, where there is room for one, takes the
//! first back for the second. And when 32 passes in a row have led to failed writes and to no free page, or when a hundred
//! have not helped: the operation lacks what is no page, a table say, and undoes what they free, reading again what they
//! took.

use machine::lines::Ordering::Relaxed;

use machine::frames::PageFlags;
use machine::{order, Channel, Class, Held, Machine, NoMemory};

use super::line::Turn;
use super::{Progress, Zeal};
use crate::anon::AnonNo;
use crate::stat::Counter;
use crate::swap::WRITE_CLUSTER;
use crate::Uvm;

/// Passes of one operation that may lead to nothing but writes that fail.
const VAIN: u32 = 32;

/// Passes of one operation that may free pages without an end to it.
const CIRCLE: u32 = 100;

/// Anons whose slots one pass looks at when swap is nearly full.
const SWEEP: u32 = 4096;

/// What one operation has done for memory so far.
#[derive(Default)]
pub(crate) struct Effort {
    /// It has its turn in the line.
    has_turn: bool,
    /// What happens when memory has run out.
    last: Last,
    /// How often the aim has been doubled.
    doubled: u32,
    /// Passes since a page was last freed, of which writes failed.
    in_vain: u32,
    /// Passes in all.
    passes: u32,
    /// A pass could not bring free pages up to the low water mark.
    was_poor: bool,
}

/// What is done for an operation when memory has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Last {
    /// It fails.
    #[default]
    Fail,
    /// The host is asked to give some back: [`Machine::run_out`].
    AskHost,
}

impl Effort {
    /// An access of a program, which can't be refused: the host may end another for it.
    #[inline]
    pub(crate) fn of_fault() -> Effort {
        Effort { last: Last::AskHost, ..Effort::default() }
    }
}

impl<M: Machine> Uvm<M> {
    /// Frees memory for a caller that was refused some, and holds nothing: it waits for its turn, and makes a pass
    /// unless others have just made some. Says whether it may be worth to try again; if not, memory has run out.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    pub fn make_room(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let mut effort = Effort::default();
        let made = self.make_room_for(held, &mut effort);
        self.has_room(held, &mut effort);
        made
    }

    /// Tries an allocation of the host's own, again and again while room can be made for it; nobody else who was
    /// refused memory is served meanwhile. `attempt` may not sleep, nor come here.
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
        loop {
            let result = attempt();
            if result.is_ok() || !self.make_room_for(held, &mut effort) {
                self.has_room(held, &mut effort);
                return result;
            }
        }
    }

    /// The same for an operation that may ask again. If it needs no more, it says so by [`has_room`](Self::has_room).
    #[cold]
    pub(crate) fn make_room_for(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        let is_first = match effort.has_turn {
            true => Turn::First,
            false => self.line.enter(self.machine(), held),
        };
        effort.has_turn = is_first != Turn::GaveUp;
        let goes_on = match is_first {
            Turn::GaveUp => false,
            Turn::Waited => true,
            Turn::First => !self.machine().gives_up() && self.make_pass(held, effort),
        };
        if !goes_on {
            self.has_room(held, effort);
        }
        goes_on
    }

    /// Before an access of a program is served: while memory has run out and others wait for some, it waits for its turn.
    #[cold]
    pub(crate) fn queue_up(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) {
        let is_served = effort.has_turn || effort.last == Last::Fail;
        let has_run_out = self.pass_lock.emptied.load(Relaxed) != 0;
        if has_run_out && !is_served && self.frames().free() < self.frames().low_water() {
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

    fn make_pass(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        if self.free_some(held, effort) {
            return true;
        }
        let asks = effort.last == Last::AskHost;
        *effort = Effort { has_turn: true, last: effort.last, ..Effort::default() };
        asks && self.machine().run_out(held)
    }

    fn free_some(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        let Some(target) = self.aim(effort) else { return false };
        let memory = self.machine().ticket(Channel::MEMORY);
        let (freed, errors) = (self.stat().get(Counter::PagesFreed), self.write_errors());
        let is_stuck = || self.stat().get(Counter::PagesFreed) == freed;
        while !self.begin_pass(held) {
            if !is_stuck() {
                return true;
            }
        }
        let was_under_way = self.is_under_way();
        let is_hopeless = self.is_hopeless(held) && !was_under_way;
        let leaving = self.pages_in_flight();
        let free = leaving + self.frames().free();
        let progress = if is_hopeless { Progress::default() } else { self.direct_pass(held, target) };
        self.end_pass();
        if is_hopeless {
            return false;
        }
        // With swap full, what ended meanwhile has brought nothing that stays: all would take each other's pages in turn.
        let has_brought = was_under_way && self.room_on_swap(held) != 0;
        let will_end = progress.later != 0 || has_brought || self.is_under_way();
        let has_failed = self.write_errors() != errors;
        let taken = free + progress.freed + progress.started;
        if !will_end && !has_failed && (is_stuck() || self.is_poor(held, effort, taken)) {
            return false;
        }
        if will_end && (is_stuck() || self.is_chasing(held, effort)) {
            self.machine().wait(held, memory);
        }
        effort.in_vain = match is_stuck() {
            true if has_failed => effort.in_vain + 1,
            true => effort.in_vain,
            false => 0,
        };
        effort.passes += 1;
        effort.in_vain < VAIN && effort.passes < CIRCLE
    }

    /// Whether passes have freed little that did not help, while transfers are under way that will free more: the operation takes
    /// a page that it needs first, and lacks the next one until then.
    fn is_chasing(&self, held: &mut Held<'_, order::Nothing>, effort: &Effort) -> bool {
        let may_help = effort.passes != 0 && self.is_under_way() && self.room_on_swap(held) != 0;
        may_help && self.frames().free() < self.frames().low_water()
    }

    /// Whether what a pass has freed is too little to go on with: at once if swap is full, else the second time.
    /// `taken` would be free if others had not used some of it meanwhile, which is no reason to give up while swap has room.
    fn is_poor(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort, taken: usize) -> bool {
        if !self.is_low() {
            return false;
        }
        if self.room_on_swap(held) == 0 {
            return true;
        }
        taken < self.frames().low_water() && core::mem::replace(&mut effort.was_poor, true)
    }

    /// Whether fewer pages are free, or will be when writes end, than the page daemon cares for.
    fn is_low(&self) -> bool {
        self.frames().free() + self.pages_in_flight() < self.frames().low_water()
    }

    fn write_errors(&self) -> u64 {
        self.stat().get(Counter::SwapErrors) + self.stat().get(Counter::FileErrors)
    }

    /// A pass for a thread that was refused memory, desperate if there is no other way; none where the last one took
    /// nothing and nothing has changed.
    fn direct_pass(&self, held: &mut Held<'_, order::Nothing>, target: usize) -> Progress {
        let state = self.state_of_memory(held);
        if !self.could_take_any(held)
            || (self.pass_lock.in_vain.load(Relaxed) == state && !self.is_under_way())
        {
            return Progress::default();
        }
        self.stat().add(self.machine().cpu(), Counter::DirectPasses, 1);
        let fair = self.pass(held, target, Zeal::Fair);
        if !self.is_low() {
            self.pass_lock.emptied.store(0, Relaxed);
        }
        if !self.is_low() || self.is_under_way() {
            return fair;
        }
        let desperate = self.pass(held, target, Zeal::Desperate);
        let emptied = if self.is_low() { self.stat().get(Counter::SwapIns) + 1 } else { 0 };
        self.pass_lock.emptied.store(emptied, Relaxed);
        let nothing = Progress::default();
        if (fair, desperate) == (nothing, nothing) && !self.is_under_way() {
            let state = self.state_of_memory(held);
            self.pass_lock.in_vain.store(state, Relaxed);
        }
        Progress {
            freed: fair.freed + desperate.freed,
            started: fair.started + desperate.started,
            later: fair.later + desperate.later,
        }
    }

    /// Whether I/O has pages that can be taken, or are free, when it has ended.
    fn is_under_way(&self) -> bool {
        self.pages_in_flight() + self.pages_coming_in() != 0
    }

    /// Whether no pass can bring free pages up to the low water mark: the last desperate one has taken all there was, and
    /// what might be taken since then, pages of files, those read from swap, and as many as swap has got room for, is
    /// too little. So a fork bomb's processes don't each look at all of memory.
    pub(super) fn is_hopeless(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let emptied = self.pass_lock.emptied.load(Relaxed);
        if emptied == 0 || self.pages_in_flight() != 0 {
            return false;
        }
        self.frames().flush_pending(held);
        let files = self.frames().of_class(Class::File) + self.frames().of_class(Class::Exec);
        let read = (self.stat().get(Counter::SwapIns) + 1 - emptied) as usize;
        let room = self.swap().room(held) as usize;
        self.frames().free() + files + read + room < self.frames().low_water()
    }

    /// Pages are no longer wired: a pass might find what the last one did not.
    #[inline]
    pub(crate) fn pages_may_go(&self) {
        self.pass_lock.in_vain.store(0, Relaxed);
        self.pass_lock.emptied.store(0, Relaxed);
    }

    /// A number that changes whenever a pass might find what the last one did not, but for wirings.
    fn state_of_memory(&self, held: &mut Held<'_, order::Nothing>) -> u64 {
        let (frames, stat) = (self.frames(), self.stat());
        let used = self.slots_in_use(held);
        let counts = [Counter::PagesFreed, Counter::SwapIns, Counter::SwapErrors, Counter::FilePagesRead];
        let room = self.swap().room(held);
        let sizes = [frames.free(), frames.active() + frames.inactive(), used as usize, room as usize];
        let all = counts.map(|c| stat.get(c)).into_iter().chain(sizes.map(|n| n as u64));
        all.fold(0, |sum: u64, n| sum.rotate_left(9).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n)
    }

    /// Whether there is any page that a pass could take, be it unlikely: without swap, and without pages of files,
    /// there is none, and a thousand threads that are refused memory need not each look at all of it.
    pub(super) fn could_take_any(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        if self.swap().slots() != 0 || self.pages_in_flight() != 0 {
            return true;
        }
        self.frames().flush_pending(held);
        self.frames().of_class(Class::File) + self.frames().of_class(Class::Exec) != 0
    }

    /// How many pages should be free, more than there are; none if that would be most of memory.
    fn aim(&self, effort: &mut Effort) -> Option<usize> {
        let frames = self.frames();
        let (free, most) = (frames.free(), frames.total() - frames.total() / 4);
        loop {
            let target = frames.high_water().checked_shl(effort.doubled).unwrap_or(usize::MAX);
            if target > free {
                return Some(target);
            }
            if target >= most {
                return None;
            }
            effort.doubled += 1;
        }
    }

    /// Dirty anonymous pages that swap has room for, after pages in memory have given up slots that do them no
    /// good, if there is little: of which the contents are stale, or that belong to pages which can't leave.
    pub(super) fn room_on_swap(&self, held: &mut Held<'_, order::Nothing>) -> usize {
        if self.swap().slots() == 0 {
            return 0;
        }
        let room = self.swap().room(held) as usize;
        if room >= WRITE_CLUSTER {
            return room;
        }
        self.reclaim_slots(held);
        self.swap().room(held) as usize
    }

    /// Goes on from where it ended the last time.
    fn reclaim_slots(&self, held: &mut Held<'_, order::Nothing>) {
        let end = self.anons.end(held);
        let mut hand = self.sweep_hand.load(Relaxed);
        for _ in 0..SWEEP.min(end) {
            hand = if hand + 1 >= end { 1 } else { hand + 1 };
            let Some(no) = AnonNo::new(hand).filter(|no| no.get() < end) else { continue };
            let (mut body, mut h) = self.anons.get(no).lock(held);
            let Some(page) = body.page.filter(|&page| !self.frames().flags(page).contains(PageFlags::BUSY))
            else {
                continue;
            };
            let is_spare = self.frames().wire_count(page) != 0 || !self.is_clean(page);
            if let (true, Some(slot)) = (is_spare, body.swap) {
                self.frames().clear_flags(page, PageFlags::CLEAN);
                body.swap = None;
                self.swap().free(self.machine(), &mut h, slot);
                self.stat().add(self.machine().cpu(), Counter::SlotsReclaimed, 1);
            }
        }
        self.sweep_hand.store(hand, Relaxed);
    }
}
