//! Swap slots that pages in memory have: taken back for other pages when there is little room, and
//! all of a device's when it is switched off.
//!
//! A page that was read from swap keeps its slot as a clean copy. Once the page is written to, the
//! copy is stale, and while it is wired it can't leave: when there is little room such slots are
//! given back.
//!
//! A device that is switched off gets no new data. Then every anon and every anonymous object that
//! has a slot there is visited. A page in memory gives its slot back, and must be written elsewhere
//! the next time it leaves; a page on swap is read in, many at a time and consecutive slots in one
//! read; its slot is free when the read has ended. Meanwhile all threads go on working: pages that
//! are read come in by faults too, and leave for other devices if memory is short.
//!
//! I1: when the device has no slot in use, nothing knows its numbers and no I/O is under way
//! (`swap` I2), since no new ones are given: then it is taken out. I2: where it can't be emptied,
//! it is on again, with what is left on it.

use core::ops::Range;

use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::{order, Channel, Held, Machine, NoMemory, PageNo, Pages, Ticket, Unlocked};

use super::{Last, Priority, Reclaim};
use crate::anon::AnonNo;
use crate::io::{Direction, CLUSTER};
use crate::object::Launder;
use crate::object::{busy_check, Stored};
use crate::owner::PageOwner;
use crate::page::{PageFlags, Reserve};
use crate::stat::Counter;
use crate::swap::{Slot, SwapError, SwapId, WRITE_CLUSTER};
use crate::Uvm;

/// Anons whose slots a normal pass looks at when swap is nearly full; a desperate one looks at all.
const SWEEP: u32 = 4096;

/// A round over all that may be on a device.
struct Homecoming<'a> {
    /// The device's slots.
    numbers: &'a Range<u32>,
    /// Pages to be read, their slots, and whether each must be read alone.
    batch: ArrayVec<(Slot, PageNo, bool), CLUSTER>,
    /// A ticket of a page that I/O had.
    wait: Option<Ticket>,
}

impl Homecoming<'_> {
    /// Takes the slot on the device back from what an owner has at an index: a resident page gives
    /// it back; else a new page is made busy for the read from there.
    fn bring<M: Machine>(
        &mut self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Anon>,
        mut owner: PageOwner<'_, M>,
        (index, what): (Pages, Stored),
    ) -> Result<(), NoMemory> {
        let slot = match what {
            Stored::Page(page) => owner.slot(uvm.frames(), page),
            Stored::Slot(slot) => Some(slot),
        };
        let Some(slot) = slot.filter(|slot| self.numbers.contains(&slot.number())) else {
            return Ok(());
        };
        let (machine, frames) = (uvm.mem(), uvm.frames());
        if let Stored::Page(page) = what {
            match busy_check(machine, page) {
                Ok(()) => owner.give_slot_back(uvm, held, page),
                Err(ticket) => self.wait = Some(ticket),
            }
            return Ok(());
        }
        let is_alone = uvm.swap().is_alone(held, slot);
        let page = frames.alloc(machine, held, Reserve::User)?;
        match owner {
            PageOwner::Anon { no, body } => {
                uvm.mem().prepare_read(page);
                body.set_page(frames, no, page);
            }
            PageOwner::Object { pager, body } => {
                pager.object().insert_reading(uvm, body, index, page);
            }
            PageOwner::Orphan => unreachable!("an orphan is on no device alone"),
        }
        uvm.read_prepared(1);
        self.batch.push((slot, page, is_alone));
        Ok(())
    }
}

impl<M: Machine> Uvm<M> {
    /// Dirty anonymous pages that swap has room for; if they are few, after pages in memory have
    /// given up slots that do them no good, as far as is needed for a write. Cost: if they are few,
    /// by anons that a pass of this priority looks at, from where the last one ended.
    pub(super) fn make_slots_free(&self, held: &mut Unlocked<'_>, priority: Priority) -> usize {
        let room = self.swap().room(held) as usize;
        if self.swap().slots() == 0 || room >= WRITE_CLUSTER {
            return room;
        }
        let (end, hand) = (self.anons.end(held), self.sweep_hand.load(Relaxed));
        let most = if priority == Priority::Normal { SWEEP } else { end };
        let (mut last, mut found) = (hand, 0);
        let anons = (hand + 1..end).chain(1..end.min(hand + 1)).filter_map(AnonNo::new);
        for (n, no) in anons.take(most as usize).enumerate() {
            if room + found >= WRITE_CLUSTER {
                break;
            }
            self.pause_after(held, n);
            last = no.get();
            found += usize::from(self.reclaim_slot(held, no));
        }
        self.sweep_hand.store(last, Relaxed);
        self.count(Counter::SlotsReclaimed, found as u64);
        self.swap().room(held) as usize
    }

    /// Takes the slot of an anon in memory back if it is spare, and says whether it was.
    fn reclaim_slot(&self, held: &mut Unlocked<'_>, no: AnonNo) -> bool {
        let (mut body, mut h) = self.anons.get(no).lock(held);
        let Some(page) = body.page().filter(|_| body.swap.is_some()) else { return false };
        let is_busy = self.frames().flags(page).contains(PageFlags::BUSY);
        let is_spare =
            !is_busy && (self.frames().hold_count(page) != 0 || !self.mem().is_clean(page));
        if is_spare {
            PageOwner::Anon { no, body: &mut body }.give_slot_back(self, &mut h, page);
        }
        is_spare
    }

    /// Brings everything home that is on a swap device, and switches it off.
    ///
    /// # Errors
    /// [`SwapError`]: the device stays on. What could not be read is lost to its owners, and no
    /// error the next time.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let id = uvm.swap_on(held, disk(64), 0)?;
    /// let range = memory(uvm, held, space, 8)?;
    /// uvm.pageout_range(held, space, range);
    /// uvm.swap_off(held, id)?;
    /// assert_eq!(load(uvm, space, range.start)?, [1], "it came home");
    /// # Ok(()) });
    /// ```
    pub fn swap_off(&self, held: &mut Unlocked<'_>, id: SwapId) -> Result<(), SwapError> {
        let numbers = self.swap().begin_off(held, id)?;
        let result = self.empty(held, &numbers);
        self.swap().end_off(held, id, result);
        result
    }

    fn empty(&self, held: &mut Unlocked<'_>, numbers: &Range<u32>) -> Result<(), SwapError> {
        let (_, lost) = self.swap().used_on(held, numbers);
        let (mut last, mut reclaim) = (0, Reclaim::new(self.frames(), Last::Fail));
        loop {
            let (used, lost_now) = self.swap().used_on(held, numbers);
            if used == 0 {
                self.release_turn(held, &mut reclaim);
                return if lost_now == lost { Ok(()) } else { Err(SwapError::Io) };
            }
            if self.mem().has_fatal_signal() {
                self.release_turn(held, &mut reclaim);
                return Err(SwapError::NoMemory);
            }
            let memory = self.mem().ticket(Channel::MEMORY);
            let mut home = Homecoming { numbers, batch: ArrayVec::new(), wait: None };
            let brought = self.bring_home(held, &mut home);
            self.read_home(held, &mut home);
            if self.swap().used_on(held, numbers).0 < used {
                self.release_turn(held, &mut reclaim);
                reclaim = Reclaim::new(self.frames(), Last::Fail);
            }
            if let Err(NoMemory) = brought {
                if !self.make_room_for(held, &mut reclaim) {
                    return Err(SwapError::NoMemory);
                }
                continue;
            }
            self.release_turn(held, &mut reclaim);
            if let Some(ticket) = home.wait {
                self.mem().wait(held, ticket);
            } else if used == last && self.swap().used_on(held, numbers).0 == used {
                // Orphans under I/O have the rest, and give it back when that ends.
                self.mem().wait(held, memory);
            }
            last = used;
        }
    }

    /// One round over all anons and all anonymous objects.
    fn bring_home(
        &self,
        held: &mut Unlocked<'_>,
        home: &mut Homecoming<'_>,
    ) -> Result<(), NoMemory> {
        for no in (1..self.anons.end(held)).filter_map(AnonNo::new) {
            if no.get() % 32 == 0 {
                // Nothing is busy meanwhile whose read has not begun.
                self.read_home(held, home);
                self.mem().pause(held);
            }
            {
                let (mut body, mut h) = self.anons.get(no).lock(held);
                let what = body.page().map(Stored::Page).or(body.swap.map(Stored::Slot));
                if let Some(what) = what {
                    let owner = PageOwner::Anon { no, body: &mut body };
                    home.bring(self, &mut h, owner, (Pages(0), what))?;
                }
            }
            if home.batch.is_full() {
                self.read_home(held, home);
            }
        }
        let mut next = Some(0);
        while let Some((id, pager)) = next.and_then(|next| self.next_pager(held, next)) {
            let mut rest = 0..u64::MAX >> 1;
            while pager.launder() == Launder::Swap && !rest.is_empty() {
                self.read_home(held, home);
                self.mem().pause(held);
                let (mut body, h) = pager.object().lock(held);
                let mut h = h.down_to();
                for _ in 0..CLUSTER {
                    let Some((index, what)) = body.contents(rest.clone()).next() else {
                        rest.start = rest.end;
                        break;
                    };
                    rest.start = index.0 + 1;
                    let owner = PageOwner::Object { pager: &pager, body: &mut body };
                    home.bring(self, &mut h, owner, (index, what))?;
                }
            }
            next = id.checked_add(1);
        }
        Ok(())
    }

    /// Starts the reads of a batch, consecutive slots together.
    fn read_home(&self, held: &mut Unlocked<'_>, home: &mut Homecoming<'_>) {
        home.batch.sort_unstable_by_key(|&(slot, ..)| slot);
        let follows = |a: &(Slot, PageNo, bool), b: &(Slot, PageNo, bool)| {
            !a.2 && !b.2 && b.0 == a.0.behind(1)
        };
        for run in home.batch.chunk_by(follows) {
            let pages: ArrayVec<PageNo, CLUSTER> = run.iter().map(|&(_, page, _)| page).collect();
            let transfer = self.read_swap(held, run[0].0, &pages);
            self.transferred(held, Direction::Read, &pages, transfer);
        }
        home.batch.clear();
    }
}
