//! Switching a swap device or zswap off: what is there comes home first.
//!
//! The device gets no new data, then every anon and every anonymous object that has a slot there is
//! visited. One that is in memory gives its slot back, and must be written elsewhere the next time
//! it leaves; one that is not is read in, many at a time and consecutive slots in one read; its
//! slot is free when the read has ended. Meanwhile everybody goes on working: pages that are read
//! come in by faults too, and leave for other devices if memory is short.
//!
//! I1: when the device has no slot in use, nothing knows its numbers and no I/O is under way
//! (`swap` I2), since no new ones are given: then it is taken out. I2: where it can't be emptied,
//! it is on again, with what is left on it.

use core::ops::Range;
use machine::lines::Ordering::Relaxed;

use arrayvec::ArrayVec;

use crate::page::PageFlags;
use crate::page::Reserve;
use machine::{order, Channel, Held, Machine, NoMemory, PageNo, Ticket};

use super::zswap::ZSWAP;
use super::{Slot, State, SwapError, SwapId, MOST_ZSWAP};
use crate::anon::{AnonBody, AnonNo};
use crate::io::{Outcome, Transfer, CLUSTER};
use crate::object::busy_check;
use crate::pageout::Reclaim;
use crate::Uvm;

/// Pages on their way home, by slot.
pub(super) type Batch = ArrayVec<(Slot, PageNo), CLUSTER>;

/// What an anon's visit came to.
pub(super) enum Visit {
    /// It has nothing on the device.
    Done,
    /// Its page must be read; it is busy and in the batch.
    Reads,
    /// I/O has its page.
    Wait(Ticket),
}

impl<M: Machine> Uvm<M> {
    /// Brings everything home that is on a swap device, and switches it off.
    ///
    /// # Errors
    /// [`SwapError`]: the device stays on. What could not be read is lost to those who had it, and
    /// no error the next time.
    pub fn swap_off(
        &self,
        held: &mut Held<'_, order::Nothing>,
        id: SwapId,
    ) -> Result<(), SwapError> {
        let numbers = self.leave(held, id)?;
        let result = self.empty(held, &numbers);
        let device = {
            let (mut table, _) = self.swap().table.lock(held);
            match table.devices.iter().position(|d| d.id == id) {
                Some(at) if result.is_ok() => {
                    let device = table.devices.remove(at);
                    self.swap().slots.fetch_sub(device.bits.len(), Relaxed);
                    Some(device)
                }
                Some(at) => {
                    table.devices[at].state = State::On;
                    None
                }
                None => None,
            }
        };
        self.swap().leaving.fetch_sub(1, Relaxed);
        drop(device);
        result
    }

    /// Stops giving slots of a device, and says which numbers they have.
    fn leave(
        &self,
        held: &mut Held<'_, order::Nothing>,
        id: SwapId,
    ) -> Result<Range<u32>, SwapError> {
        let (mut table, _) = self.swap().table.lock(held);
        let device = table.devices.iter_mut().find(|d| d.id == id).ok_or(SwapError::NotFound)?;
        if device.state == State::Leaving {
            return Err(SwapError::Busy);
        }
        device.state = State::Leaving;
        self.swap().leaving.fetch_add(1, Relaxed);
        Ok(device.numbers())
    }

    /// Gives zswap a share of memory, in percent up to [`MOST_ZSWAP`]; 0 brings home
    /// what is in it, and switches it off.
    ///
    /// # Errors
    /// [`SwapError`]: `TooMuch`, `Busy` or `NoMemory`. The share is what it was.
    pub fn set_zswap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        percent: u8,
    ) -> Result<(), SwapError> {
        let zswap = &self.swap().zswap;
        if percent > MOST_ZSWAP {
            return Err(SwapError::TooMuch);
        }
        if percent != 0 {
            return zswap.set(self.mem(), held, percent).map_err(SwapError::from);
        }
        if zswap.slots() == 0 {
            return Ok(());
        }
        if !zswap.leave(held) {
            return Err(SwapError::Busy);
        }
        let result = self.empty(held, &(ZSWAP..ZSWAP + zswap.slots()));
        zswap.left(held);
        result
    }

    /// Slots in use among a device's numbers, and those that lost what they held.
    fn used_on(&self, held: &mut Held<'_, order::Nothing>, numbers: &Range<u32>) -> (u32, u32) {
        if numbers.start == ZSWAP {
            return (self.zswap_info(held).pages, 0);
        }
        let (table, _) = self.swap().table.lock(held);
        let device = table.devices.iter().find(|d| d.base == numbers.start);
        device.map_or((0, 0), |d| (d.bits.used(), d.bits.lost()))
    }

    fn empty(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
    ) -> Result<(), SwapError> {
        let (_, lost) = self.used_on(held, numbers);
        let (mut last, mut reclaim) = (0, Reclaim::default());
        reclaim.begin(self.frames());
        loop {
            let (used, lost_now) = self.used_on(held, numbers);
            if used == 0 {
                self.has_room(held, &mut reclaim);
                return if lost_now == lost { Ok(()) } else { Err(SwapError::Io) };
            }
            let memory = self.mem().ticket(Channel::MEMORY);
            let mut wait = None;
            let home = self
                .anons_home(held, numbers, &mut wait)
                .and_then(|()| self.objects_home(held, numbers, &mut wait));
            if self.used_on(held, numbers).0 < used {
                self.has_room(held, &mut reclaim);
                reclaim = Reclaim::default();
            }
            if let Err(NoMemory) = home {
                if !self.make_room_for(held, &mut reclaim) {
                    return Err(SwapError::NoMemory);
                }
                continue;
            }
            self.has_room(held, &mut reclaim);
            if let Some(ticket) = wait {
                self.mem().wait(held, ticket);
            } else if used == last && self.used_on(held, numbers).0 == used {
                // Orphans under I/O have the rest, and give it back when that ends.
                self.mem().wait(held, memory);
            }
            last = used;
        }
    }

    /// One round over all anons. `wait` becomes a ticket of a page that I/O had.
    fn anons_home(
        &self,
        held: &mut Held<'_, order::Nothing>,
        numbers: &Range<u32>,
        wait: &mut Option<Ticket>,
    ) -> Result<(), NoMemory> {
        let mut batch = Batch::new();
        let mut result = Ok(());
        for number in 1..self.anons.end(held) {
            let Some(no) = AnonNo::new(number) else { continue };
            match self.visit(held, no, numbers, Reserve::User, &mut batch) {
                Ok(Visit::Done | Visit::Reads) => {}
                Ok(Visit::Wait(ticket)) => *wait = Some(ticket),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            if batch.is_full() {
                self.read_batch(held, &mut batch);
            }
        }
        self.read_batch(held, &mut batch);
        result
    }

    pub(super) fn visit(
        &self,
        held: &mut Held<'_, order::Nothing>,
        no: AnonNo,
        numbers: &Range<u32>,
        reserve: Reserve,
        batch: &mut Batch,
    ) -> Result<Visit, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        let (mut body, mut h) = self.anons.get(no).lock(held);
        let body: &mut AnonBody = &mut body;
        let Some(slot) = body.swap.filter(|slot| numbers.contains(&slot.number())) else {
            return Ok(Visit::Done);
        };
        if let Some(page) = body.page() {
            if let Err(ticket) = busy_check(machine, page) {
                return Ok(Visit::Wait(ticket));
            }
            frames.clear_flags(page, PageFlags::CLEAN);
            body.swap = None;
            self.swap().free(machine, &mut h, slot);
            return Ok(Visit::Done);
        }
        let page = frames.alloc(machine, &mut h, reserve)?;
        self.prepare_read(page);
        body.set_page(frames, no, page);
        self.read_prepared(1);
        batch.push((slot, page));
        Ok(Visit::Reads)
    }

    /// Starts the reads of a batch, consecutive slots together; doubtful ones alone.
    pub(super) fn read_batch(&self, held: &mut Held<'_, order::Nothing>, batch: &mut Batch) {
        batch.sort_unstable_by_key(|&(slot, _)| slot);
        let mut rest = &batch[..];
        while let Some(&(first, _)) = rest.first() {
            let alone = self.swap().is_alone(held, first);
            let mut len = 1;
            while let Some(&(slot, _)) = rest.get(len).filter(|_| !alone) {
                if slot != first.behind(len as u32) || self.swap().is_alone(held, slot) {
                    break;
                }
                len += 1;
            }
            let (now, later) = rest.split_at(len);
            rest = later;
            let pages: ArrayVec<PageNo, CLUSTER> = now.iter().map(|&(_, page)| page).collect();
            self.read_home(held, first, &pages);
        }
        batch.clear();
    }

    fn read_home(&self, held: &mut Held<'_, order::Nothing>, first: Slot, pages: &[PageNo]) {
        match self.read_swap(held, first, pages) {
            Transfer::Done => self.read_done(held, pages, Outcome::Done),
            Transfer::Failed => self.read_done(held, pages, Outcome::Failed),
            Transfer::Started => {}
        }
    }
}
