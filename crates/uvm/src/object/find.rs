//! An object's page for a thread that shows, loans or copies it: brought in, with no I/O that has
//! it, and, for a store, not on loan.

use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot};

use super::{busy_check, Access, GetError, ObjectBody, ObjectGuard, Pager};
use crate::anon::drop_page;
use crate::io::ReadRequest;
use crate::page::{Gather, PageFlags};
use crate::stat::Counter;
use crate::Uvm;

/// What must be looked at before an object's page is shown.
pub(crate) const SPECIAL: PageFlags =
    PageFlags::BUSY.union(PageFlags::ERROR).union(PageFlags::AHEAD).union(PageFlags::HOLE);

impl<M: Machine> Uvm<M> {
    /// The object's page at an index, made resident by its pager; a ticket while it is busy.
    #[inline]
    pub(crate) fn find_page(
        &self,
        body: &mut ObjectGuard<'_, M>,
        held: &mut Held<'_, order::Object>,
        pager: &dyn Pager<M>,
        index: Pages,
        access: Access,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<PageNo, GetError> {
        let Some(page) = body.page(index) else {
            return pager.get(self, body, held, index, access);
        };
        if self.frames().flags(page).intersects(SPECIAL) {
            self.look_at_special(body, held, pager, index, page, ahead)?;
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
        pager: &dyn Pager<M>,
        index: Pages,
        page: PageNo,
        ahead: &mut Option<ReadRequest>,
    ) -> Result<(), GetError> {
        let frames = self.frames();
        let flags = frames.flags(page);
        if flags.contains(PageFlags::AHEAD) && ahead.is_none() {
            frames.clear_flags(page, PageFlags::AHEAD);
            *ahead = pager.read_on(self, body, held, index);
            if let Some(start) = ahead.take_if(|_| flags.contains(PageFlags::BUSY)) {
                // There is to be a wait: start it before.
                return Err(GetError::Read(start));
            }
        }
        busy_check(self.mem(), page)?;
        if flags.contains(PageFlags::ERROR) {
            let mut down = Gather::new();
            let page = down.unmap(self.frames(), self.mem(), held, page);
            body.remove(self, held, page, &mut down);
            down.perform(self.frames(), self.mem(), held);
            return Err(GetError::Io);
        }
        Ok(())
    }

    /// Gives an object a copy in place of a page of its that is loaned, and is about to be written.
    /// A thread that maps the object finds the copy.
    #[cold]
    pub(crate) fn replace_loaned(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        down: &mut Gather,
    ) -> Result<PageNo, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        self.break_loan(&mut held.deeper(), page, down);
        let copy = machine.copied_page(held, page)?;
        let unmapped = down.unmap(machine.frames(), machine, held, page);
        down.flush(machine.pmap());
        frames.dequeue(held, page);
        body.exchange(frames, page, copy);
        frames.activate(machine, held, copy);
        drop_page(machine, held, unmapped, down);
        Ok(copy)
    }

    /// Before a loaned page is copied: the thread that loans it may not have flushed all CPUs yet
    /// that can still write it.
    #[cold]
    pub(crate) fn break_loan(
        &self,
        held: &mut Held<'_, order::Anon>,
        page: PageNo,
        down: &mut Gather,
    ) {
        let pmap = self.mem().pmap();
        pmap.page_protect(held, page, Prot::READ_EXECUTE, down);
        down.flush(pmap);
        self.count(Counter::LoansBroken, 1);
    }
}
