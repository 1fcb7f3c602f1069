//! What becomes of an object's page when its I/O has ended.

use alloc::sync::Arc;

use machine::frames::PageFlags;
use machine::{order, Held, Machine, Owner, PageNo, Pages};

use crate::io::{Direction, Ended, Outcome};
use crate::object::{unbusy, ObjectBody};
use crate::pager::Pager;
use crate::{Counter, Uvm};

impl<M: Machine> Uvm<M> {
    /// Ends the I/O of those of `pages` at the front that belong to the object with this name, and says how many.
    pub(crate) fn ended_in_object(
        &self,
        held: &mut Held<'_, order::Nothing>,
        id: u32,
        pages: &[PageNo],
        end: Ended,
    ) -> usize {
        let pager: Arc<dyn Pager<M>> = match self.pager(held, id) {
            Some(pager) => pager,
            None => {
                let left = self.frames().owner(pages[0]) != Owner::Object(id);
                debug_assert!(left, "{:?} belongs to an object that nobody knows", pages[0]);
                return usize::from(!left);
            }
        };
        let (mut body, mut h) = pager.object().lock(held);
        // The owner was read without its lock: what isn't its own any more is looked at again.
        let own = pages.iter().take_while(|&&page| self.frames().owner(page) == Owner::Object(id));
        let (mut count, mut written) = (0, 0);
        for &page in own {
            written += usize::from(self.frames().flags(page).contains(PageFlags::PAGEOUT));
            match end.direction {
                Direction::Read => self.object_page_read(&mut body, &mut h, page, end),
                Direction::Write => self.object_page_written(&mut body, &mut h, page, end),
            }
            count += 1;
        }
        self.pageout_ended(written);
        count
    }

    fn object_page_read(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        end: Ended,
    ) {
        let frames = self.frames();
        let index = frames.index(page);
        if end.outcome == Outcome::Failed {
            if end.pages > 1 {
                // One of them is bad, nobody knows which: each is read by itself when it is asked for.
                body.ahead.failed(index);
                body.clear(Pages(index));
                unbusy(self.machine(), page);
                return frames.free_page(self.machine(), held, page);
            }
            frames.set_flags(page, PageFlags::ERROR);
        }
        unbusy(self.machine(), page);
        frames.activate(self.machine(), held, page);
    }

    fn object_page_written(
        &self,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        page: PageNo,
        end: Ended,
    ) {
        if end.outcome == Outcome::Failed {
            self.frames().clear_flags(page, PageFlags::CLEAN);
            body.write_errors += 1;
            self.stat().add(self.machine().cpu(), Counter::FileErrors, 1);
        }
        unbusy(self.machine(), page);
        self.frames().activate(self.machine(), held, page);
    }
}
