//! Cases 2A and 2B: nothing in the amap; the object below, or zeroes.

use crate::page::PageFlags;
use crate::page::Reserve;
use machine::{order, Before, Held, Machine, PageNo, Pages, Prot};

use super::{Fault, FaultError};
use crate::amap::AmapBody;
use crate::anon::AnonNo;
use crate::io::ReadRequest;
use crate::map::{Entry, ORef, Writes};
use crate::object::{busy_check, ObjectBody, ObjectGuard};
use crate::object::{Access, GetError};
use crate::stat::Counter;
use crate::{Stop, Uvm};

/// What must be looked at before a page is shown.
const SPECIAL: PageFlags =
    PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD).union(PageFlags::HOLE);

/// The amap above an object, and the slot there, which is empty.
pub(super) type Upper<'a, M> = Option<(&'a AmapBody<M>, u64)>;

/// A private copy of an object's page: the caller, who has the amap alone, puts it there and shows
/// it.
pub(super) type Promoted = Option<(AnonNo, PageNo)>;

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
            Some(oref) => self.fault_in_object(held, fault, entry, oref, None).map(|_| ()),
            None => Err(FaultError::NoMapping.into()),
        }
    }

    /// Shows the object's page, or copies it for a private write.
    #[inline]
    pub(super) fn fault_in_object<P>(
        &self,
        held: &mut Held<'_, P>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        upper: Upper<'_, M>,
    ) -> Result<Promoted, Stop<FaultError>>
    where
        P: Before<order::Object>
            + Before<order::Anon>
            + Before<order::PageQueues>
            + Before<order::PageCache>,
    {
        let index = entry.index(oref, fault.va);
        let (body, mut h) = oref.pager.object().read(held);
        // Two CPUs must not end and begin one wiring at a time.
        let plain = self.plain_page(&body, index).filter(|_| !entry.wired);
        if let Some(page) = plain.filter(|&page| !self.breaks_loan(fault, entry, page)) {
            return self.show(&mut h, fault, entry, oref, &body, page, upper);
        }
        if let Some(mut body) = body.exclusive() {
            return self.fault_in_object_alone(&mut h, fault, entry, oref, &mut body, upper);
        }
        let (mut body, mut h) = oref.pager.object().lock(held);
        self.fault_in_object_alone(&mut h, fault, entry, oref, &mut body, upper)
    }

    /// The same where nobody else has the object, and the page may have to be read.
    #[inline(never)]
    fn fault_in_object_alone(
        &self,
        held: &mut Held<'_, order::Object>,
        fault: &mut Fault<'_, M>,
        entry: &Entry<M>,
        oref: &ORef<M>,
        body: &mut ObjectGuard<'_, M>,
        upper: Upper<'_, M>,
    ) -> Result<Promoted, Stop<FaultError>> {
        let (index, access) = (entry.index(oref, fault.va), Access::Fault(entry.advice));
        let mut page = self.find_page(body, held, oref, index, access, &mut fault.ahead)?;
        let stores = fault.access == Prot::WRITE && entry.writes == Writes::Shared;
        if stores && self.frames().flags(page).contains(PageFlags::HOLE) {
            fault.hole = Some((oref.pager.object().name(), index));
            return Err(FaultError::NoSpace.into());
        }
        if self.breaks_loan(fault, entry, page) {
            page = self.replace_loaned(body, held, page, fault.down).map_err(FaultError::from)?;
        }
        self.show(held, fault, entry, oref, body, page, upper)
    }

    /// Whether the access is a store to a page that somebody has on loan.
    #[inline]
    fn breaks_loan(&self, fault: &Fault<'_, M>, entry: &Entry<M>, page: PageNo) -> bool {
        fault.access == Prot::WRITE
            && entry.writes == Writes::Shared
            && self.frames().loans(page) != 0
    }

    /// Whether something must be done before a store reaches an object's page: it is loaned, or a
    /// hole.
    #[inline]
    pub(super) fn is_to_ask(&self, page: PageNo) -> bool {
        self.frames().loans(page) != 0 || self.frames().flags(page).contains(PageFlags::HOLE)
    }

    /// An object's page that is there, and about which nothing has to be done first.
    #[inline]
    fn plain_page(&self, body: &ObjectBody, index: Pages) -> Option<PageNo> {
        body.page(index).filter(|&page| !self.frames().flags(page).intersects(SPECIAL))
    }

    /// Enters an object's page, or copies it for a private write: then the copy is returned, to be
    /// entered once the amap has it.
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
        upper: Upper<'_, M>,
    ) -> Result<Promoted, Stop<FaultError>> {
        let private = entry.writes != Writes::Shared;
        if private && fault.access == Prot::WRITE {
            if upper.is_some_and(|(amap, slot)| !amap.cover.is_exclusive(slot..slot + 1)) {
                self.forget_everywhere(held, fault, page);
            }
            self.forget_at(held, fault, entry);
            let made = self.promote(held, page)?;
            body.copiers.add(fault.space.family);
            return Ok(Some(made));
        }
        self.stat().add(self.mem().cpu(), Counter::FaultsObject, 1);
        let prot = if private { entry.prot.without_write() } else { entry.prot };
        let own = if self.is_to_ask(page) { prot.without_write() } else { prot };
        if own.contains(Prot::WRITE) {
            body.mark(entry.index(oref, fault.va));
        }
        self.enter(held, fault, entry, page, own)?;
        let amap = upper.map(|(amap, slot)| (&amap.slots, slot));
        self.map_object_neighbours(held, fault, entry, oref, body, amap, prot);
        Ok(None)
    }

    /// Case 2B: an anon with a copy of the object's page.
    fn promote(
        &self,
        held: &mut Held<'_, order::Object>,
        from: PageNo,
    ) -> Result<(AnonNo, PageNo), FaultError> {
        let machine = self.mem();
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
        ahead: &mut Option<ReadRequest>,
    ) -> Result<PageNo, GetError> {
        let Some(page) = body.page(index) else {
            return oref.pager.get(self, body, held, index, access);
        };
        if self.frames().flags(page).intersects(SPECIAL) {
            self.look_at_special(body, held, oref, index, page, ahead)?;
        }
        Ok(page)
    }

    /// What there is about a page: a mark to read on, I/O that has it, or that failed, which takes
    /// the page out.
    #[cold]
    fn look_at_special(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        oref: &ORef<M>,
        index: Pages,
        page: PageNo,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<(), GetError> {
        let frames = self.frames();
        let flags = frames.flags(page);
        if flags.contains(PageFlags::AHEAD) && ahead.is_none() {
            frames.clear_flags(page, PageFlags::AHEAD);
            *ahead = oref.pager.read_on(self, body, held, index);
            if let Some(start) = ahead.take_if(|_| flags.contains(PageFlags::BUSY)) {
                // There is to be a wait: start it before.
                return Err(GetError::Read(start));
            }
        }
        busy_check(self.mem(), page)?;
        if flags.contains(PageFlags::ERROR) {
            let mut down = crate::page::Gather::new();
            let page = down.unmap(self.frames(), self.mem(), held, page);
            body.remove(self, held, page, &mut down);
            down.perform(self.frames(), self.mem(), held);
            return Err(GetError::Io);
        }
        Ok(())
    }
}
