//! Swap slots for dirty anonymous pages: free ones, and those that pages in memory keep to no good.
//!
//! A page that was read from swap keeps its slot as a clean copy. Once it is written to the copy is
//! stale, and while it is wired it can't leave: when there is little room such slots are given
//! back, for others to use.

use machine::lines::Ordering::Relaxed;

use crate::page::{PageFlags, SCAN};
use machine::{order, Held, Machine};

use super::Priority;
use crate::anon::AnonNo;
use crate::stat::Counter;
use crate::swap::WRITE_CLUSTER;
use crate::Uvm;

/// Anons whose slots a normal pass looks at when swap is nearly full; a desperate one looks at all.
const SWEEP: u32 = 4096;

impl<M: Machine> Uvm<M> {
    /// Dirty anonymous pages that swap has room for; if they are few, after pages in memory have
    /// given up slots that do them no good, as far as is needed for a write. Cost: if they are few,
    /// by anons that a pass of this priority looks at.
    pub(super) fn make_slots_free(
        &self,
        held: &mut Held<'_, order::Nothing>,
        priority: Priority,
    ) -> usize {
        if self.swap().slots() == 0 {
            return 0;
        }
        let room = self.swap().room(held) as usize;
        if room >= WRITE_CLUSTER {
            return room;
        }
        self.reclaim_slots(held, priority, WRITE_CLUSTER - room);
        self.swap().room(held) as usize
    }

    /// Takes up to `most` slots back, and goes on from where it ended the last time.
    fn reclaim_slots(&self, held: &mut Held<'_, order::Nothing>, priority: Priority, most: usize) {
        let end = self.anons.end(held);
        let look_at = match priority {
            Priority::Normal => SWEEP.min(end),
            Priority::Desperate => end,
        };
        let (mut hand, mut found) = (self.sweep_hand.load(Relaxed), 0);
        for n in 0..look_at {
            if found == most {
                break;
            }
            if n as usize % SCAN == SCAN - 1 {
                self.mem().pause(held);
            }
            hand = if hand + 1 >= end { 1 } else { hand + 1 };
            found += usize::from(self.reclaim_slot(held, hand, end));
        }
        self.sweep_hand.store(hand, Relaxed);
        self.stat().add(self.mem().cpu(), Counter::SlotsReclaimed, found as u64);
    }

    /// Takes the slot of an anon in memory back if it is spare, and says whether it was.
    fn reclaim_slot(&self, held: &mut Held<'_, order::Nothing>, number: u32, end: u32) -> bool {
        let Some(no) = AnonNo::new(number).filter(|no| no.get() < end) else { return false };
        let (mut body, mut h) = self.anons.get(no).lock(held);
        let frames = self.frames();
        let Some(page) = body.page().filter(|&page| !frames.flags(page).contains(PageFlags::BUSY))
        else {
            return false;
        };
        let is_spare = frames.wire_count(page) != 0 || !self.is_clean(page);
        let Some(slot) = body.swap.filter(|_| is_spare) else { return false };
        frames.clear_flags(page, PageFlags::CLEAN);
        body.swap = None;
        self.swap().free(self.mem(), &mut h, slot);
        true
    }
}
