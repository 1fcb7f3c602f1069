//! Cases 2A and 2B: nothing in the amap; the object below, or zeroes.

use machine::frames::PageFlags;
use machine::shared::Access;
use machine::{order, Before, Held, Machine, PageNo, Pages, Prot, Reserve};

use super::{Fault, FaultError};
use crate::amap::AmapBody;
use crate::anon::AnonNo;
use crate::io::Start;
use crate::map::{Entry, ORef, Writes};
use crate::object::{busy_check, ObjectBody, ObjectGuard};
use crate::pager::{self, GetError};
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// What must be looked at before a page is shown.
const SPECIAL: PageFlags = PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD);

/// The amap above an object, which has no anon at the slot.
pub(super) enum Upper<'a> {
    /// The entry has none.
    None,
    /// To be read.
    Among(&'a AmapBody, u64),
    /// To be changed.
    Alone(&'a mut AmapBody, u64),
}

impl Upper<'_> {
    fn amap(&self) -> Option<(&AmapBody, u64)> {
        match self {
            Upper::None => None,
            Upper::Among(amap, slot) => Some((amap, *slot)),
            Upper::Alone(amap, slot) => Some((amap, *slot)),
        }
    }
}

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
            Some(oref) => self.fault_in_object(held, fault, entry, oref, Upper::None),
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
        upper: Upper<'_>,
    ) -> Result<(), Stop<FaultError>> {
        if let Some(oref) = &entry.object {
            return self.fault_in_object(held, fault, entry, oref, upper);
        }
        let Upper::Alone(amap, slot) = upper else { return Err(FaultError::NoMapping.into()) };
        let machine = self.machine();
        let page = match fault.spare.take() {
            Some(page) => page,
            None => self.page_of_zeroes(held)?,
        };
        let anon = self.anons.make(machine, held, page).map_err(FaultError::from)?;
        amap.slots.set(slot, anon);
        self.stat().add(machine.cpu(), Counter::FaultsZero, 1);
        let prot = if entry.writes == Writes::NeedCopy { entry.prot.without_write() } else { entry.prot };
        let shown = self.enter(held, fault, entry, page, prot);
        machine.frames().activate(machine, held, page);
        shown
    }

    /// A page for a new anon.
    #[inline]
    pub(super) fn page_of_zeroes<P: Before<order::PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<PageNo, FaultError> {
        let page = self.frames().alloc(self.machine(), held, Reserve::User)?;
        self.machine().zero(page);
        Ok(page)
    }

    #[inline]
    pub(super) fn fault_in_object<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        upper: Upper<'_>,
    ) -> Result<(), Stop<FaultError>>
    where
        P: Before<order::Object> + Before<order::Anon> + Before<order::PageQueues> + Before<order::PageCache>,
    {
        let index = entry.index(oref, fault.va);
        let promoted = 'shown: {
            // Two CPUs must not end and begin one wiring at a time.
            if !entry.wired {
                let (body, mut h) = oref.pager.object().read(held);
                match body {
                    Access::Alone(mut body) => {
                        let page = self.find_fault_page(&mut body, &mut h, fault, entry, oref, index)?;
                        break 'shown self.show(&mut h, fault, entry, oref, &body, page, &upper)?;
                    }
                    Access::Among(body) => {
                        if let Some(page) = self.plain_page(&body, index) {
                            break 'shown self.show(&mut h, fault, entry, oref, &body, page, &upper)?;
                        }
                    }
                }
            }
            let (mut body, mut h) = oref.pager.object().lock(held);
            let page = self.find_fault_page(&mut body, &mut h, fault, entry, oref, index)?;
            self.show(&mut h, fault, entry, oref, &body, page, &upper)?
        };
        let (Some((anon, page)), Upper::Alone(amap, slot)) = (promoted, upper) else { return Ok(()) };
        amap.slots.set(slot, anon);
        let shown = self.replace(held, fault, entry, page);
        self.frames().activate(self.machine(), held, page);
        shown
    }

    #[inline]
    fn find_fault_page(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        index: Pages,
    ) -> Result<PageNo, GetError> {
        self.find_page(body, held, oref, index, pager::Access::Fault(entry.advice), &mut fault.ahead)
    }

    /// An object's page that is there, and about which nothing has to be done first.
    #[inline]
    fn plain_page(&self, body: &ObjectBody, index: Pages) -> Option<PageNo> {
        body.page(index).filter(|&page| !self.frames().flags(page).intersects(SPECIAL))
    }

    /// Enters an object's page, or copies it for a private write: then the copy is returned, to be entered once the
    /// amap has it.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn show(
        &self,
        held: &mut Held<'_, order::Object>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        body: &ObjectBody,
        page: PageNo,
        upper: &Upper<'_>,
    ) -> Result<Option<(AnonNo, PageNo)>, Stop<FaultError>> {
        let private = entry.writes != Writes::Through;
        if private && fault.access == Prot::WRITE {
            let made = self.promote(held, page)?;
            body.note_copied();
            if upper.amap().is_some_and(|(amap, slot)| !amap.cover.is_exclusive(slot..slot + 1)) {
                self.forget_everywhere(held, fault, page);
            }
            return Ok(Some(made));
        }
        self.stat().add(self.machine().cpu(), Counter::FaultsObject, 1);
        let prot = if private { entry.prot.without_write() } else { entry.prot };
        self.enter(held, fault, entry, page, prot)?;
        let amap = upper.amap().map(|(amap, slot)| (&amap.slots, slot));
        self.map_object_neighbours(held, fault, entry, oref, body, amap, prot);
        Ok(None)
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
        access: pager::Access,
        ahead: &mut Option<Start>,
    ) -> Result<PageNo, GetError> {
        let Some(page) = body.page(index) else {
            return oref.pager.get(self, body, held, index, access);
        };
        if self.machine().frames().flags(page).intersects(SPECIAL) {
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
