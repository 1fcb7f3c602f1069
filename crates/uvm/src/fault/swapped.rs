//! Bringing anons in from swap, with what will be wanted next.
//!
//! ```text
//!   amap slots     ... 40    41    42    43    44    45 ...
//!   on swap             s+0   s+1  (res)  s+2   t          one read brings 40, 41, 43; the fault waits for it
//! ```
//! The daemon gave neighbours slots that follow one another (`pageout.rs`), so what lies around a
//! fault comes in with the same read, at the price of none: slots that continue the fault's own, up
//! and down, inside a window of the amap. Where a program walks upwards the window doubles, and a
//! fault that finds its page already there starts the read of the next window without waiting for
//! it: the asynchronous page-in that the paper leaves to the future (1999, section 5.4). `Random`
//! advice brings the one page, `Sequential` starts with the widest window.
//!
//! I1: a page under way is its anon's, busy, and on no queue; a thread that finds it waits. I2: the
//! pages of a chain come from consecutive slots, which stay taken until the read has ended, also if
//! the anon goes (`owner.rs`). I3: memory for what may not be wanted is taken only where it is not
//! short. A walk's next pages are wanted: for them anything goes but the reserves and
//! [`FOR_COPIES`].
//!
//! Locks: the amap's throughout; each anon's in turn.

use core::num::NonZeroU32;

use arrayvec::ArrayVec;
use machine::{order, Held, Machine, PageNo, Pages, Unlocked, Va, VaRange};

use super::{Attempt, Fault, FaultError};
use crate::amap::borrowed::Content;
use crate::amap::AmapBody;
use crate::amap::ReadAhead;
use crate::anon::AnonNo;
use crate::io::{ReadRequest, Source, CLUSTER, FOR_COPIES};
use crate::map::steps::part_to_look_at;
use crate::map::{Advice, Entry};
use crate::page::{Reserve, Slot};
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// Pages of the first read at a place.
const FIRST: u8 = 8;

/// What a read brings: pages with the slots that they come from, in order.
struct Cluster {
    pages: ArrayVec<PageNo, CLUSTER>,
    first: Slot,
    /// Free pages that must be left for it to grow.
    leave: usize,
}

impl Cluster {
    /// The slot behind its last.
    fn next(&self) -> Slot {
        self.first.behind(self.pages.len() as u32)
    }
}

/// What comes of the wish to read an anon with others.
enum Added {
    Yes,
    /// It is resident, and passed by.
    NotNeeded,
    /// It can't be read with them, nor can what lies behind it.
    No,
}

impl<M: Machine> Fault<'_, '_, M> {
    /// A fault found what the last read brought: starts the next window, which no thread waits for.
    #[cold]
    #[inline(never)]
    pub(super) fn swap_ahead(&mut self, held: &mut Held<'_, order::Amap>, body: &mut AmapBody<M>) {
        let (uvm, entry) = (self.uvm, self.entry);
        let Some(aref) = entry.amap.as_ref().filter(|_| entry.advice != Advice::Random) else {
            return;
        };
        let end = aref.range(entry.len()).end;
        let ahead = &mut body.ahead;
        let size = (ahead.size * 2).clamp(FIRST, CLUSTER as u8);
        let window = ahead.next..(ahead.next + u64::from(size)).min(end);
        *ahead = ReadAhead { mark: window.start, span: 0, size: ahead.size, next: window.start };
        let is_short = uvm.frames().for_users() <= FOR_COPIES;
        if window.is_empty() || self.effects.ahead.is_some() || is_short {
            return;
        }
        let anons = body.slots.range(window.clone());
        let Some((cluster, last)) = uvm.first_on_swap(held, anons, 0) else { return };
        // What another run holds is the next one's.
        let span = (last + 1 - window.start) as u8;
        body.ahead = ReadAhead { mark: window.start, span, size, next: last + 1 };
        uvm.count(Counter::SwapAhead, cluster.pages.len() as u64);
        self.effects.ahead = uvm.swap_request(&cluster);
    }
}

impl<M: Machine> Uvm<M> {
    /// Prepares the read of an anon that is not resident, and of its neighbours. Nothing to stop
    /// for, if it has become resident meanwhile.
    #[cold]
    #[inline(never)]
    pub(super) fn page_in(
        &self,
        held: &mut Held<'_, order::Amap>,
        entry: &Entry<M>,
        body: &mut AmapBody<M>,
        slot: u64,
        no: AnonNo,
    ) -> Attempt<()> {
        if self.zero_freed(held, no)? {
            return Ok(());
        }
        let Some((page, first)) = self.begin_read(held, no, None)? else { return Ok(()) };
        let leave = self.frames().low_water();
        let mut cluster = Cluster { pages: [page].into_iter().collect(), first, leave };
        if !self.swap().is_alone(held, first) {
            self.widen(held, entry, body, slot, &mut cluster);
        }
        self.swap_request(&cluster).map_or(Ok(()), |request| Err(Stop::Read(request)))
    }

    /// Gives an anon that has gone after it was freed lazily a page of zeroes; says whether it had.
    fn zero_freed(&self, held: &mut Held<'_, order::Amap>, no: AnonNo) -> Result<bool, FaultError> {
        let machine = self.mem();
        let (mut body, mut h) = self.anons.get(no).lock(held);
        if body.page().is_some() || body.swap != Some(Slot::ZERO) {
            return Ok(false);
        }
        let page = machine.zeroed_page(&mut h)?;
        body.set_page(machine.frames(), no, page);
        body.swap = None;
        machine.frames().activate(machine, &mut h, page);
        self.count(Counter::FaultsZero, 1);
        Ok(true)
    }

    /// Widens a read by what continues it in the window around the fault, and plans the next.
    fn widen(
        &self,
        held: &mut Held<'_, order::Amap>,
        entry: &Entry<M>,
        body: &mut AmapBody<M>,
        slot: u64,
        cluster: &mut Cluster,
    ) {
        let Some(aref) = entry.amap.as_ref().filter(|_| self.knobs().fault_around()) else {
            return;
        };
        let own = aref.range(entry.len());
        let ahead = &mut body.ahead;
        let upwards = entry.advice == Advice::Sequential || (ahead.size != 0 && slot == ahead.next);
        let size = match entry.advice {
            Advice::Random => return,
            Advice::Sequential => CLUSTER as u8,
            Advice::Normal if upwards => (ahead.size * 2).clamp(FIRST, CLUSTER as u8),
            Advice::Normal => FIRST,
        };
        if upwards {
            cluster.leave = 0;
        }
        let start = if upwards { slot } else { slot & !(u64::from(size) - 1) };
        let window = start.max(own.start)..(start + u64::from(size)).min(own.end);
        let span = if upwards { (window.end - slot) as u8 } else { 0 };
        *ahead = ReadAhead { mark: slot, span, size, next: window.end };
        self.extend(held, body.slots.range(slot + 1..window.end), cluster);
        let mut numbers = [0u32; CLUSTER];
        let below = &mut numbers[..(slot - window.start) as usize];
        body.slots.window(window.start, below);
        for no in below.iter().rev().filter_map(|&number| AnonNo::new(number)) {
            let Some(before) = Slot::new(cluster.first.number() - 1) else { break };
            match self.add_to_read(held, no, before, cluster) {
                Added::Yes => {
                    cluster.pages.rotate_right(1);
                    cluster.first = before;
                }
                Added::NotNeeded => {}
                Added::No => break,
            }
        }
    }

    /// The first of some anons that are on swap, made ready to be read with those that continue it.
    /// Returns the last one's slot, too.
    fn first_on_swap(
        &self,
        held: &mut Held<'_, order::Amap>,
        mut anons: impl Iterator<Item = (u64, NonZeroU32)>,
        leave: usize,
    ) -> Option<(Cluster, u64)> {
        let (slot, page, first) = anons.find_map(|(slot, number)| {
            let begun = self.begin_read(held, Content::anon(number)?, None);
            begun.ok().flatten().map(|(page, first)| (slot, page, first))
        })?;
        let mut cluster = Cluster { pages: [page].into_iter().collect(), first, leave };
        let last = match self.swap().is_alone(held, first) {
            true => None,
            false => self.extend(held, anons, &mut cluster),
        };
        Some((cluster, last.unwrap_or(slot)))
    }

    /// Adds anons to a read that come from the slots behind it, up to the first that can't be
    /// added. Returns where the last one was found.
    fn extend(
        &self,
        held: &mut Held<'_, order::Amap>,
        anons: impl Iterator<Item = (u64, NonZeroU32)>,
        cluster: &mut Cluster,
    ) -> Option<u64> {
        let mut last = None;
        for (slot, number) in anons {
            let Some(no) = Content::anon(number) else { continue };
            match self.add_to_read(held, no, cluster.next(), cluster) {
                Added::Yes => last = Some(slot),
                Added::NotNeeded => {}
                Added::No => break,
            }
        }
        last
    }

    /// Adds an anon's page to a read if it comes from the slot that continues it.
    fn add_to_read(
        &self,
        held: &mut Held<'_, order::Amap>,
        no: AnonNo,
        next: Slot,
        cluster: &mut Cluster,
    ) -> Added {
        let frames = self.frames();
        let is_short = frames.free() <= cluster.leave || frames.for_users() <= FOR_COPIES;
        if cluster.pages.is_full() || is_short {
            return Added::No;
        }
        match self.begin_read(held, no, Some(next)) {
            Ok(Some((page, _))) => {
                cluster.pages.push(page);
                Added::Yes
            }
            Ok(None) => Added::NotNeeded,
            Err(_) => Added::No,
        }
    }

    /// Gives an anon that is on swap a page to be read into. `None` if it is resident.
    ///
    /// # Errors
    /// No memory; its data is lost; or it isn't at the slot where it is `expected`.
    fn begin_read(
        &self,
        held: &mut Held<'_, order::Amap>,
        no: AnonNo,
        expected: Option<Slot>,
    ) -> Result<Option<(PageNo, Slot)>, FaultError> {
        let machine = self.mem();
        let (mut body, mut h) = self.anons.get(no).lock(held);
        if body.page().is_some() {
            return Ok(None);
        }
        let from = body.swap.filter(|slot| slot.is_place() && expected.is_none_or(|e| e == *slot));
        let from = from.ok_or(FaultError::Io)?;
        if expected.is_some() && self.swap().is_alone(&mut h, from) {
            return Err(FaultError::Io);
        }
        let page = machine.frames().alloc(machine, &mut h, Reserve::User)?;
        self.mem().prepare_read(page);
        body.set_page(machine.frames(), no, page);
        self.read_prepared(1);
        Ok(Some((page, from)))
    }

    fn swap_request(&self, cluster: &Cluster) -> Option<ReadRequest> {
        ReadRequest::new(self.frames(), Source::Swap(cluster.first), &cluster.pages)
    }

    /// Prepares the read of the first anons in a range that are on swap together: those that one
    /// read brings. Says where to go on; `None` if nothing is left.
    pub(crate) fn next_on_swap(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Option<(ReadRequest, Va)> {
        let mut rest = range;
        while !rest.is_empty() {
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let part = part_to_look_at(&mut h, &tree, rest);
                // A read that begins in the part goes on behind it.
                let ahead = (rest.end - part.end).min(Pages(CLUSTER as u64));
                let reach = VaRange::new(part.start, part.end + ahead);
                let leave = self.frames().low_water();
                let found = tree.try_each(part, &mut |e| {
                    let (Some(aref), part) = (&e.amap, e.range.intersect(reach)) else {
                        return Ok(());
                    };
                    let (body, mut h) = aref.amap.body.lock(&mut h);
                    let slots = e.slots(aref, part);
                    let anons = body.slots.range(slots.clone());
                    let found = self.first_on_swap(&mut h, anons, leave);
                    let Some((cluster, last)) = found else { return Ok(()) };
                    let next = part.start + Pages(last + 1 - slots.start);
                    self.swap_request(&cluster).map_or(Ok(()), |request| Err((request, next)))
                });
                if let Err(found) = found {
                    return Some(found);
                }
                rest.start = part.end;
            }
            self.mem().pause(held);
        }
        None
    }
}
