//! What the page daemon asks of the queues, many pages at a time.
//!
//! A scan hands out pages from a queue's front and puts them at its end under the same hold of the
//! lock: whoever frees one of them takes it off the queue as always, those that are passed by have
//! moved on, and no page is ever on a scan's list alone. So a scan can be left at any point, and
//! two of them disturb each other's order and nothing else.
//!
//! What is handed out is a number, not a hold: its page may be freed and used again at once. The
//! daemon looks at its owner, takes the owner's lock, and looks again.

use arrayvec::ArrayVec;

use super::{link_back, Frames, Place, Queue};
use machine::order::{Before, Held, PageQueues};
use machine::{Machine, PageNo};

/// Pages that one step of a scan hands out at most.
pub const SCAN: usize = 32;

impl<M: Machine> Frames<M> {
    /// The oldest pages of a queue, at most `most`, which become its youngest.
    pub fn rotate<P: Before<PageQueues>>(
        &self,
        held: &mut Held<'_, P>,
        queue: Queue,
        most: usize,
    ) -> ArrayVec<PageNo, SCAN> {
        let mut out = ArrayVec::new();
        let (mut queues, _h) = self.global.queues.lock(held);
        let list = queues.list(queue);
        for _ in 0..most.min(SCAN).min(list.len) {
            let no = list.head;
            self.unlink(list, no);
            link_back(&self.pages, list, no);
            out.push(PageNo(no));
        }
        out
    }

    /// Moves pages to the end of the inactive queue, as far as they are on the active one.
    pub fn deactivate_all<P: Before<PageQueues>>(&self, held: &mut Held<'_, P>, pages: &[PageNo]) {
        let (mut queues, _h) = self.global.queues.lock(held);
        for &page in pages {
            if self.page(page).moves(Place::Active, Place::Inactive) {
                self.unlink(&mut queues.active, page.0);
                link_back(&self.pages, &mut queues.inactive, page.0);
            }
        }
        self.count(&queues);
    }
}
