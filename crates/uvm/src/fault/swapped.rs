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
//! I1: a page under way is its anon's, busy, and on no queue; whoever finds it waits. I2: the pages
//! of a chain come from consecutive slots, which stay taken until the read has ended, also if the
//! anon goes (`owner.rs`). I3: memory for what may not be wanted is taken only where it is not
//! short. A walk's next pages are wanted: for them anything goes but the reserves and
//! [`FOR_COPIES`].
//!
//! Locks: the amap's throughout; each anon's in turn.

use crate::page::{Reserve, Slot};
use machine::{order, Held, Machine, PageNo, Pages, Va, VaRange};

use super::{Fault, FaultError};
use crate::amap::AmapBody;
use crate::anon::AnonNo;
use crate::io::{ReadRequest, Source, CLUSTER, FOR_COPIES};
use crate::loan::slots::Content;
use crate::map::{Advice, Entry};
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// Pages of the first read at a place.
const FIRST: u8 = 8;

/// How an amap has been read from swap lately.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadAhead {
    /// A fault in `mark .. mark + span` starts the next read.
    mark: u64,
    span: u8,
    /// The size of the last window, 0 before the first.
    size: u8,
    /// The slot behind the last window.
    next: u64,
}

impl ReadAhead {
    /// Whether a fault at a slot finds what the last read brought, and should start another.
    #[inline]
    pub(super) fn is_due(&self, slot: u64) -> bool {
        slot.wrapping_sub(self.mark) < u64::from(self.span)
    }
}

/// What a read brings: pages with the slots that they come from, in order.
struct Cluster {
    pages: arrayvec::ArrayVec<PageNo, CLUSTER>,
    first: Slot,
    /// Free pages that must be left for it to grow.
    leave: usize,
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
    ) -> Result<(), Stop<FaultError>> {
        let Some((page, from)) = self.begin_read(held, no, None)? else { return Ok(()) };
        let leave = self.frames().low_water();
        let mut cluster = Cluster { pages: arrayvec::ArrayVec::new(), first: from, leave };
        cluster.pages.push(page);
        if !self.swap().is_alone(held, from) {
            self.widen(held, entry, body, slot, &mut cluster);
        }
        match self.swap_start(&cluster) {
            Some(start) => Err(Stop::Read(start)),
            None => Ok(()),
        }
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
        let mut numbers = [0u32; CLUSTER];
        let numbers = &mut numbers[..(window.end - window.start) as usize];
        body.slots.window(window.start, numbers);
        let at = (slot - window.start) as usize;
        for &number in &numbers[at + 1..] {
            let next = cluster.first.behind(cluster.pages.len() as u32);
            if !self.adds(held, number, next, cluster) {
                break;
            }
        }
        for &number in numbers[..at].iter().rev() {
            let Some(next) = Slot::new(cluster.first.number() - 1) else { break };
            let before = cluster.pages.len();
            if !self.adds(held, number, next, cluster) {
                break;
            }
            if cluster.pages.len() > before {
                cluster.pages.rotate_right(1);
                cluster.first = next;
            }
        }
    }

    /// Adds an anon's page to a read if it comes from the slot that continues it. Says whether to
    /// go on: an anon that is resident is passed by, one that lies elsewhere on swap ends the run.
    fn adds(
        &self,
        held: &mut Held<'_, order::Amap>,
        number: u32,
        next: Slot,
        cluster: &mut Cluster,
    ) -> bool {
        let Some(no) = AnonNo::new(number) else { return true };
        let frames = self.frames();
        if cluster.pages.is_full()
            || frames.free() <= cluster.leave
            || frames.for_users() <= FOR_COPIES
        {
            return false;
        }
        match self.begin_read(held, no, Some(next)) {
            Ok(Some((page, _))) => {
                cluster.pages.push(page);
                true
            }
            Ok(None) => true,
            Err(_) => false,
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
    ) -> Result<Option<(PageNo, Slot)>, Stop<FaultError>> {
        let machine = self.mem();
        let (mut body, mut h) = self.anons.get(no).lock(held);
        if body.page().is_some() {
            return Ok(None);
        }
        let from = body.swap.filter(|slot| slot.is_place() && expected.is_none_or(|e| e == *slot));
        let from = from.ok_or(FaultError::Io)?;
        if expected.is_some() && self.swap().is_alone(&mut h, from) {
            return Err(FaultError::Io.into());
        }
        let page =
            machine.frames().alloc(machine, &mut h, Reserve::User).map_err(FaultError::from)?;
        self.prepare_read(page);
        body.set_page(machine.frames(), no, page);
        self.read_prepared(1);
        Ok(Some((page, from)))
    }

    fn swap_start(&self, cluster: &Cluster) -> Option<ReadRequest> {
        ReadRequest::new(self.frames(), Source::Swap(cluster.first), &cluster.pages)
    }

    /// A fault found what the last read brought: starts the next window, for which nobody waits.
    #[cold]
    #[inline(never)]
    pub(super) fn swap_ahead(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        body: &mut AmapBody<M>,
    ) {
        let Some(aref) = entry.amap.as_ref().filter(|_| entry.advice != Advice::Random) else {
            return;
        };
        let end = aref.range(entry.len()).end;
        let ahead = &mut body.ahead;
        let size = (ahead.size * 2).clamp(FIRST, CLUSTER as u8);
        let window = ahead.next..(ahead.next + u64::from(size)).min(end);
        *ahead = ReadAhead { mark: window.start, span: 0, size: ahead.size, next: window.start };
        if window.is_empty() || fault.ahead.is_some() {
            return;
        }
        let mut numbers = [0u32; CLUSTER];
        let numbers = &mut numbers[..(window.end - window.start) as usize];
        body.slots.window(window.start, numbers);
        let Some((first, mut cluster)) = self.first_on_swap(held, numbers) else { return };
        let mut last = first;
        let alone = self.swap().is_alone(held, cluster.first);
        for (i, &number) in numbers.iter().enumerate().skip(first + 1) {
            let (next, before) =
                (cluster.first.behind(cluster.pages.len() as u32), cluster.pages.len());
            if alone || !self.adds(held, number, next, &mut cluster) {
                break;
            }
            if cluster.pages.len() > before {
                last = i;
            }
        }
        // What another run holds is the next one's.
        let span = last as u8 + 1;
        body.ahead =
            ReadAhead { mark: window.start, span, size, next: window.start + u64::from(span) };
        self.stat().add(self.mem().cpu(), Counter::SwapAhead, cluster.pages.len() as u64);
        fault.ahead = self.swap_start(&cluster);
    }

    /// The first of some anons that is on swap, made ready to be read.
    fn first_on_swap(
        &self,
        held: &mut Held<'_, order::Amap>,
        numbers: &[u32],
    ) -> Option<(usize, Cluster)> {
        if self.frames().for_users() <= FOR_COPIES {
            return None;
        }
        for (i, &number) in numbers.iter().enumerate() {
            let Some(no) = AnonNo::new(number) else { continue };
            if let Ok(Some((page, from))) = self.begin_read(held, no, None) {
                let mut cluster =
                    Cluster { pages: arrayvec::ArrayVec::new(), first: from, leave: 0 };
                cluster.pages.push(page);
                return Some((i, cluster));
            }
        }
        None
    }

    /// Starts the read of the first anons in a range that are on swap together: those that one read
    /// brings. Says where to go on; `None` if nothing is left.
    pub(crate) fn next_on_swap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Option<(ReadRequest, Va)> {
        let mut rest = range;
        while !rest.is_empty() {
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let part = self.part_to_look_at(&mut h, &tree, rest);
                // A read that begins in the part goes on behind it.
                let ahead = (rest.end - part.end).min(Pages(CLUSTER as u64));
                let reach = VaRange::new(part.start, part.end + ahead);
                let mut found = None;
                let _ = tree.try_each(part, &mut |e| {
                    found = self.entry_on_swap(&mut h, e, e.range.intersect(reach));
                    found.map_or(Ok(()), |_| Err(()))
                });
                if found.is_some() {
                    return found;
                }
                rest.start = part.end;
            }
            self.mem().pause(held);
        }
        None
    }

    fn entry_on_swap(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &Entry<M>,
        part: VaRange,
    ) -> Option<(ReadRequest, Va)> {
        let aref = entry.amap.as_ref()?;
        let (body, mut h) = aref.amap.body.lock(held);
        let first = entry.slot(aref, part.start);
        let (mut cluster, mut last): (Option<Cluster>, u64) = (None, first);
        for (slot, number) in body.slots.range(first..first + part.pages().0) {
            let Some(no) = Content::anon(number) else { continue };
            let Some(cluster) = &mut cluster else {
                if let Ok(Some((page, from))) = self.begin_read(&mut h, no, None) {
                    let leave = self.frames().low_water();
                    let mut fresh =
                        Cluster { pages: arrayvec::ArrayVec::new(), first: from, leave };
                    fresh.pages.push(page);
                    last = slot;
                    let alone = self.swap().is_alone(&mut h, from);
                    cluster = Some(fresh);
                    if alone {
                        break;
                    }
                }
                continue;
            };
            let (next, before) =
                (cluster.first.behind(cluster.pages.len() as u32), cluster.pages.len());
            if !self.adds(&mut h, no.get(), next, cluster) {
                break;
            }
            last = if cluster.pages.len() > before { slot } else { last };
        }
        let start = self.swap_start(&cluster?)?;
        Some((start, part.start + machine::Pages(last + 1 - first)))
    }
}
