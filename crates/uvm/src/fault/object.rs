//! Cases 2A and 2B: nothing in the amap; the object below, or zeroes.

use machine::frames::PageFlags;
use machine::{order, Before, Held, Machine, PageNo, Pages, Prot, Reserve};

use super::{Fault, FaultError};
use crate::amap::AmapBody;
use crate::anon::AnonNo;
use crate::io::Start;
use crate::map::{Entry, ORef, Writes};
use crate::object::{busy_check, ObjectGuard};
use crate::pager::{Access, GetError};
use crate::stat::Counter;
use crate::{Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// An entry without an amap has an object.
    #[inline]
    pub(super) fn fault_object(
        &self,
        held: &mut Held<'_, order::Map>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
    ) -> Result<(), Stop<FaultError>> {
        match &entry.object {
            Some(oref) => self.fault_in_object(held, fault, entry, oref, None),
            None => Err(FaultError::NoMapping.into()),
        }
    }

    /// The amap, whose lock is held, has no anon at `slot`.
    #[inline]
    pub(super) fn fault_below(
        &self,
        held: &mut Held<'_, order::Amap>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        amap: Option<(&mut AmapBody, u64)>,
    ) -> Result<(), Stop<FaultError>> {
        if let Some(oref) = &entry.object {
            return self.fault_in_object(held, fault, entry, oref, amap);
        }
        let Some((amap, slot)) = amap else { return Err(FaultError::NoMapping.into()) };
        let machine = self.machine();
        let page = machine.frames().alloc(machine, held, Reserve::User).map_err(FaultError::from)?;
        machine.zero(page);
        let anon = self.anons.make(machine, held, page).map_err(FaultError::from)?;
        amap.slots.set(slot, anon);
        self.stat().add(machine.cpu(), Counter::FaultsZero, 1);
        let prot = if entry.writes == Writes::NeedCopy { entry.prot.without_write() } else { entry.prot };
        let shown = self.enter(held, fault, entry, page, prot);
        machine.frames().activate(machine, held, page);
        shown
    }

    #[inline]
    fn fault_in_object<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        mut amap: Option<(&mut AmapBody, u64)>,
    ) -> Result<(), Stop<FaultError>>
    where
        P: Before<order::Object> + Before<order::Anon> + Before<order::PageQueues> + Before<order::PageCache>,
    {
        let private = entry.writes != Writes::Through;
        let promoted = {
            let (mut body, mut h) = oref.pager.object().lock(held);
            let page = {
                let access = Access::Fault(entry.advice);
                self.find_page(
                    &mut body,
                    &mut h,
                    oref,
                    entry.index(oref, fault.va),
                    access,
                    &mut fault.ahead,
                )?
            };
            if private && fault.access == Prot::WRITE {
                let made = self.promote(&mut h, page)?;
                body.copied = true;
                if amap.as_ref().is_some_and(|(amap, slot)| !amap.cover.is_exclusive(*slot..*slot + 1)) {
                    self.forget_everywhere(&mut h, fault, page);
                }
                Some(made)
            } else {
                self.stat().add(self.machine().cpu(), Counter::FaultsObject, 1);
                let prot = if private { entry.prot.without_write() } else { entry.prot };
                self.enter(&mut h, fault, entry, page, prot)?;
                let amap = amap.as_ref().map(|(amap, slot)| (&amap.slots, *slot));
                self.map_object_neighbours(&mut h, fault, entry, oref, &body, amap, prot);
                None
            }
        };
        let (Some((anon, page)), Some((amap, slot))) = (promoted, &mut amap) else { return Ok(()) };
        amap.slots.set(*slot, anon);
        let shown = self.replace(held, fault, entry, page);
        self.frames().activate(self.machine(), held, page);
        shown
    }

    /// Case 2B: an anon with a copy of the object's page.
    fn promote(
        &self,
        held: &mut Held<'_, order::Object>,
        from: PageNo,
    ) -> Result<(AnonNo, PageNo), FaultError> {
        let machine = self.machine();
        let page = machine.frames().alloc(machine, held, Reserve::User)?;
        machine.copy(from, page);
        let anon = self.anons.make(machine, held, page)?;
        self.stat().add(machine.cpu(), Counter::FaultsPromoted, 1);
        Ok((anon, page))
    }

    /// The object's page at an index, made resident by its pager; a ticket while it is busy.
    #[inline]
    pub(crate) fn find_page(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        index: Pages,
        access: Access,
        ahead: &mut Option<Start>,
    ) -> Result<PageNo, GetError> {
        let Some(page) = body.page(index) else {
            return oref.pager.get(self, body, held, index, access);
        };
        let special = PageFlags::BUSY | PageFlags::ERROR | PageFlags::AHEAD;
        if self.machine().frames().flags(page).intersects(special) {
            self.look_at_special(body, held, oref, index, page, ahead)?;
        }
        Ok(page)
    }

    /// What there is about a page: a mark to read on, I/O that has it, or that failed, which takes the page out.
    #[cold]
    fn look_at_special(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        index: Pages,
        page: PageNo,
        ahead: &mut Option<Start>,
    ) -> Result<(), GetError> {
        let frames = self.frames();
        let flags = frames.flags(page);
        if flags.contains(PageFlags::AHEAD) && ahead.is_none() {
            frames.clear_flags(page, PageFlags::AHEAD);
            *ahead = oref.pager.read_on(self, body, held, index);
            if let Some(start) = ahead.take_if(|_| flags.contains(PageFlags::BUSY)) {
                // There is to be a wait: start it before.
                return Err(GetError::Start(start));
            }
        }
        busy_check(self.machine(), page)?;
        if flags.contains(PageFlags::ERROR) {
            let mut down = machine::Shootdown::new();
            body.remove(self, held, index, &mut down);
            down.perform(self.machine(), held);
            return Err(GetError::Io);
        }
        Ok(())
    }
}
