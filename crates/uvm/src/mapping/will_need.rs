//! Reading ahead of use, on request: MADV_WILLNEED, posix_fadvise and readahead.
//!
//! Reads are started and not waited for, as many as memory has room for above its low water mark:
//! advice takes no page from any program. A driver whose queue is full may make the caller wait, as
//! it does every caller.

use alloc::sync::Arc;
use core::ops::Range;

use machine::{Machine, NoMemory, PageRange, Pages, Unlocked, Va, VaRange};

use crate::io::{ReadRequest, CLUSTER};
use crate::map::{Advice, Entry};
use crate::memory::Memory;
use crate::object::{Access, GetError, Pager};
use crate::{Space, Stop, Uvm};

/// Pages, or entries, that are looked at under one hold of a lock.
const LOOKS: usize = 1024;

impl<M: Machine> Uvm<M> {
    /// Starts reading what a range of addresses will need: pages of objects, and private memory
    /// that is on swap. Holes are passed by.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 8)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(8), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// uvm.will_need(held, space, pages(at, 8));
    /// assert_eq!(file.object().resident(held), 8);
    /// # Ok(()) });
    /// ```
    pub fn will_need(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: PageRange) {
        let mut rest = *range;
        while !rest.is_empty() && self.may_read_ahead() {
            let Some((start, next)) = self.next_on_swap(held, space, rest) else { break };
            self.start(held, start);
            rest.start = next;
        }
        let mut rest = *range;
        while let Some((object, next)) = first_object(self.mem(), held, space, rest) {
            if let Some((pager, indices)) = object {
                self.read_ahead(held, &pager, indices);
                self.detach(held, &*pager);
            }
            self.mem().pause(held);
            rest.start = next;
        }
    }

    /// Starts reading an object's pages in a range that are missing and not known to be zeroes. The
    /// caller keeps a reference to the object.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 8)?;
    /// let pager = file.clone() as Arc<dyn Pager<SoftMachine>>;
    /// uvm.read_ahead(held, &pager, 0..4);
    /// assert_eq!(file.object().resident(held), 4);
    /// # Ok(()) });
    /// ```
    pub fn read_ahead(
        &self,
        held: &mut Unlocked<'_>,
        pager: &Arc<dyn Pager<M>>,
        range: Range<u64>,
    ) {
        let mut rest = range;
        while self.may_read_ahead() {
            let next: Result<_, NoMemory> =
                self.attempt(held, crate::amap::slots::CLUSTER_BYTES, |held, _| {
                    self.next_missing(held, &**pager, rest.clone()).map_err(Stop::Fail)
                });
            let Ok(Some((start, next))) = next else { return };
            if let Some(start) = start {
                self.start(held, start);
            }
            if self.mem().has_fatal_signal() {
                return;
            }
            self.mem().pause(held);
            rest.start = next;
        }
    }

    fn may_read_ahead(&self) -> bool {
        self.frames().free() > self.frames().low_water() + CLUSTER
    }

    /// Prepares the first read in a range of an object, if there is one among the first [`LOOKS`]
    /// pages. Returns where to look on.
    fn next_missing(
        &self,
        held: &mut Unlocked<'_>,
        pager: &dyn Pager<M>,
        range: Range<u64>,
    ) -> Result<Option<(Option<ReadRequest>, u64)>, NoMemory> {
        let (mut body, mut h) = pager.object().lock(held);
        let (mut at, end) = (range.start, range.end.min(body.length().0));
        for _ in 0..LOOKS {
            if at >= end {
                return Ok(None);
            }
            if body.page(Pages(at)).is_some() {
                at += 1;
                continue;
            }
            if pager.is_hole(&body, Pages(at)) {
                at = body.next_stored(Pages(at)).map_or(end, |index| index.0);
                continue;
            }
            let pages = (end - at).min(CLUSTER as u64) as u32;
            match pager.get(self, &mut body, &mut h, Pages(at), Access::Call(Advice::Random, pages))
            {
                Err(GetError::Read(start)) => return Ok(Some((Some(start), at + 1))),
                Err(GetError::NoMemory) => return Ok(None),
                // It was there at once, or can't be had: a thread that needs it will get the error.
                Ok(_)
                | Err(GetError::Wait(_) | GetError::PastEnd | GetError::Io | GetError::NoSpace) => {
                    at += 1
                }
            }
        }
        Ok(Some((None, at)))
    }
}

/// An object with a range of its pages.
type ObjectRange<M> = (Arc<dyn Pager<M>>, Range<u64>);

/// The first object that is mapped in a range, with a reference for the caller, if it is among the
/// first [`LOOKS`] entries; and where to look on.
fn first_object<M: Machine>(
    machine: &Memory<M>,
    held: &mut Unlocked<'_>,
    space: &Space<M>,
    range: VaRange,
) -> Option<(Option<ObjectRange<M>>, Va)> {
    let (tree, _) = space.map.lock(machine, held, range);
    let mut looks = LOOKS;
    let look = &mut |e: &Entry<M>| {
        let part = e.range.intersect(range);
        looks -= 1;
        let Some(oref) = &e.object else {
            return if looks == 0 { Err((None, part.end)) } else { Ok(()) };
        };
        let first = e.index(oref, part.start).0;
        oref.pager.object().attach();
        Err((Some((oref.pager.clone(), first..first + part.pages().0)), part.end))
    };
    tree.try_each(range, look).err()
}
