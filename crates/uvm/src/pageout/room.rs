//! Making room: for a thread that was refused memory, and on swap.
//!
//! An operation that fails for lack of memory runs a pass itself and tries again, for as long as that helps. Its aim
//! doubles each time: a fork that copies many wired pages needs them all at once, and a heap that was refused although
//! pages are free is given more of them before it is believed. Memory has run out when a desperate pass has found
//! nothing to take and nothing is being written or read; or when 32 passes in a row have led to failed writes and to no
//! free page; or when a hundred have not helped, since the operation undoes what they free: it reads the last page that
//! memory has room for, needs another beside it, and the pass takes the first.

use core::sync::atomic::Ordering::Relaxed;

use machine::frames::PageFlags;
use machine::{order, Channel, Class, Held, Machine};

use super::{Progress, Zeal};
use crate::anon::AnonNo;
use crate::stat::Counter;
use crate::swap::WRITE_CLUSTER;
use crate::Uvm;

/// Passes of one operation that may lead to nothing but writes that fail.
const VAIN: u32 = 32;

/// Passes of one operation that may free pages without an end to it.
const CIRCLE: u32 = 100;
/// The same once swap is full. Hundreds of processes then take each other's pages in turn, each of them freed by a pass
/// and none of them enough to go on with: the sooner one is told that memory has run out, the better for all others.
const CIRCLE_WHEN_FULL: u32 = 2;
/// Swap counts as full when this part of it is left.
const FULL: u32 = 64;

/// Anons whose slots one pass looks at when swap is nearly full.
const SWEEP: u32 = 4096;

/// What one operation has done for memory so far.
#[derive(Default)]
pub(crate) struct Effort {
    /// How often the aim has been doubled.
    doubled: u32,
    /// Passes since a page was last freed, of which writes failed.
    in_vain: u32,
    /// Passes in all.
    passes: u32,
}

impl<M: Machine> Uvm<M> {
    /// Frees memory for a caller that was refused some, and holds nothing: by a pass of its own, or by waiting for
    /// what others have under way. Says whether it may be worth to try again; if not, memory has run out.
    ///
    /// The caller must not be one that a swap device's or a file's writes depend on.
    pub fn make_room(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        self.make_room_for(held, &mut Effort::default())
    }

    /// The same for an operation that may ask again.
    #[cold]
    pub(crate) fn make_room_for(&self, held: &mut Held<'_, order::Nothing>, effort: &mut Effort) -> bool {
        let Some(target) = self.aim(effort) else { return false };
        let memory = self.machine().ticket(Channel::MEMORY);
        let (freed, errors) = (self.stat().get(Counter::PagesFreed), self.write_errors());
        let is_stuck = || self.stat().get(Counter::PagesFreed) == freed;
        while !self.begin_pass(held) {
            if !is_stuck() {
                return true;
            }
        }
        let progress = self.direct_pass(held, target);
        self.end_pass();
        if is_stuck() && progress.later == 0 && !self.is_under_way() {
            return false;
        }
        if is_stuck() {
            self.machine().wait(held, memory);
        }
        effort.in_vain = match is_stuck() {
            true if self.write_errors() != errors => effort.in_vain + 1,
            true => effort.in_vain,
            false => 0,
        };
        effort.passes += 1;
        let most = if self.is_swap_full() { CIRCLE_WHEN_FULL } else { CIRCLE };
        effort.in_vain < VAIN && effort.passes < most
    }

    /// Whether what leaves memory now can only be what is read back soon: swap is full, and files have little.
    fn is_swap_full(&self) -> bool {
        let (slots, used) = (self.swap().slots(), self.swap().used());
        let files = self.frames().of_class(Class::File) + self.frames().of_class(Class::Exec);
        slots != 0 && slots - used.min(slots) <= slots / FULL && files < self.frames().high_water()
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
        if fair.freed + fair.started != 0 || self.is_under_way() {
            return fair;
        }
        let desperate = self.pass(held, target, Zeal::Desperate);
        if desperate == Progress::default() && !self.is_under_way() {
            let state = self.state_of_memory(held);
            self.pass_lock.in_vain.store(state, Relaxed);
        }
        desperate
    }

    /// Whether I/O has pages that can be taken, or are free, when it has ended.
    fn is_under_way(&self) -> bool {
        self.pages_in_flight() + self.pages_coming_in() != 0
    }

    /// Pages are no longer wired: a pass might find what the last one did not.
    #[inline]
    pub(crate) fn pages_may_go(&self) {
        self.pass_lock.in_vain.store(0, Relaxed);
    }

    /// A number that changes whenever a pass might find what the last one did not, but for wirings.
    fn state_of_memory(&self, held: &mut Held<'_, order::Nothing>) -> u64 {
        let (frames, stat) = (self.frames(), self.stat());
        let (_, used) = self.swap_space();
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

    /// Dirty anonymous pages that swap has room for, after pages in memory have given up slots whose contents are
    /// stale, if there is little.
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
            let stale = body.page.is_some_and(|page| {
                !self.frames().flags(page).contains(PageFlags::BUSY) && !self.is_clean(page)
            });
            if let (true, Some(slot)) = (stale, body.swap) {
                body.swap = None;
                self.swap().free(&mut h, slot);
                self.stat().add(self.machine().cpu(), Counter::SlotsReclaimed, 1);
            }
        }
        self.sweep_hand.store(hand, Relaxed);
    }
}
