//! First touches in a map that others change all the time.
//!
//! ```text
//!   look (lock) -> give the lock back -> take a page, clear it -> look again (lock) -> put it there
//!   the next:                            take a page, clear it -> look (lock) -> put it there
//! ```
//! Such a map isn't open to readers, and those who map and unmap wait for a fault that reads it.
//! Clearing the page is most of what they would wait for. One such touch is mostly followed by
//! another, so the next fault takes its page before it looks; it is given back, and the guess taken
//! back, if the fault is another kind. Guessing so always would cost most faults a page for
//! nothing.

use core::sync::atomic::Ordering::Relaxed;

use crate::page::Reserve;
use machine::{order, Held, Machine, PageNo};

use super::{Fault, FaultError};
use crate::amap::AnonHolders;
use crate::map::{Entry, Map};
use crate::{Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// Whether nothing but zeroes has ever been at the address. Not asked of an amap that must be
    /// copied first: there mostly was.
    #[cold]
    #[inline(never)]
    pub(super) fn is_untouched(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &Fault<'_, M>,
        entry: &Entry<M>,
    ) -> bool {
        if entry.object.is_some()
            || entry.wired
            || (entry.amap.is_some() && fault.needs_amap(entry))
        {
            return false;
        }
        entry.amap.as_ref().is_none_or(|aref| {
            let (body, _) = aref.amap.body.read(held);
            body.slots.find(entry.slot(aref, fault.va)).number().is_none()
        })
    }

    /// Resolves a fault as the last was, by a page of zeroes. Says no, with nothing changed, if it
    /// is another kind.
    #[cold]
    #[inline(never)]
    pub(super) fn touch_as_before(
        &self,
        held: &mut Held<'_, order::Nothing>,
        fault: &mut Fault<'_, M>,
        reserved: usize,
    ) -> Result<bool, Stop<FaultError>> {
        let map = &fault.space.map;
        // Who needs no page is not refused one.
        let is_done =
            self.frames().is_plentiful() && self.touch_crowded(held, fault, map, reserved)?;
        if !is_done {
            map.is_touched.store(false, Relaxed);
        }
        Ok(is_done)
    }

    /// Makes a page of zeroes with nothing held, and then puts it where the fault is. Says no if it
    /// isn't needed there any more.
    #[cold]
    #[inline(never)]
    pub(super) fn touch_crowded(
        &self,
        held: &mut Held<'_, order::Nothing>,
        fault: &mut Fault<'_, M>,
        map: &Map<M>,
        reserved: usize,
    ) -> Result<bool, Stop<FaultError>> {
        let machine = self.mem();
        let page = self.frames().alloc(machine, held, Reserve::User).map_err(FaultError::from)?;
        machine.zero(page);
        let mut page = Some(page);
        let done = self.put_crowded(held, fault, map, reserved, &mut page);
        if let Some(page) = page {
            self.frames().free_page(machine, held, page);
        }
        done
    }

    /// The second look; takes the page if there is a place for it.
    fn put_crowded(
        &self,
        held: &mut Held<'_, order::Nothing>,
        fault: &mut Fault<'_, M>,
        map: &Map<M>,
        reserved: usize,
        page: &mut Option<PageNo>,
    ) -> Result<bool, Stop<FaultError>> {
        // To read, as long as nothing has to change: a lock that is taken to change what it guards
        // never opens to readers.
        let (tree, mut h) = map.read_now(self.mem(), held, fault.va).map_err(Stop::Wait)?;
        let entry = fault.permit(tree.get(fault.va))?;
        if entry.submap.is_some() || entry.object.is_some() || entry.wired {
            return Ok(false);
        }
        if !fault.needs_amap(entry) {
            let is_done = self.put_untouched(&mut h, fault, entry, page)?;
            // Who has the map alone is waited for.
            if let Some(aref) = entry.amap.as_ref().filter(|_| fault.follows && !tree.is_alone()) {
                let (body, mut h) = aref.amap.body.read(&mut h);
                self.continue_run(
                    &mut h,
                    fault,
                    entry,
                    body.slots.find(entry.slot(aref, fault.va)),
                );
            }
            return Ok(is_done);
        }
        let Some(mut tree) = tree.alone() else { return Ok(false) };
        self.own_amap(&mut h, fault, &mut tree, reserved)?;
        self.put_untouched(&mut h, fault, fault.permit(tree.get(fault.va))?, page)
    }

    fn put_untouched(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        page: &mut Option<PageNo>,
    ) -> Result<bool, Stop<FaultError>> {
        let Some(aref) = &entry.amap else { return Ok(false) };
        let slot = entry.slot(aref, fault.va);
        {
            let (body, mut h) = aref.amap.body.read(held);
            let found = body.slots.find(slot);
            if found.number().is_some() {
                return Ok(false);
            }
            if found.is_open() {
                return page
                    .take()
                    .map_or(Ok(false), |page| self.put_zeroes(&mut h, fault, entry, found, page));
            }
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        if body.slots.find(slot).number().is_some() {
            return Ok(false);
        }
        let mut holders =
            AnonHolders { machine: self.mem(), anons: &self.anons, held: &mut h, down: fault.down };
        body.slots.open(slot, &mut holders);
        let found = body.slots.find(slot);
        page.take().map_or(Ok(false), |page| self.put_zeroes(&mut h, fault, entry, found, page))
    }
}
