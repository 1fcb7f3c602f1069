//! What leaves zswap for a device when zswap is nearly full: its oldest pages, as many as
//! have just come.
//!
//! An old page comes back into memory as it does when zswap is switched off (`off.rs`), into a
//! frame that one of those that came has left, but stays busy: it is written as one that was just
//! taken. Who wants it meanwhile waits for it as for any page that is being written.

use machine::lines::Ordering::Relaxed;

use arrayvec::ArrayVec;

use crate::page::Reserve;
use machine::{order, Held, Machine, PageNo};

use super::off::Batch;
use super::{Holder, Slot, WRITE_CLUSTER};
use crate::anon::AnonNo;
use crate::io::{Outcome, Transfer};
use crate::pager::GetError;
use crate::stat::Counter;
use crate::Uvm;

impl<M: Machine> Uvm<M> {
    /// If zswap is nearly full, takes up to `most` of its oldest pages back, as far as there are
    /// frames and room on devices: busy, on no queue, mapped nowhere.
    pub(crate) fn oldest_in_zswap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        most: usize,
    ) -> ArrayVec<PageNo, WRITE_CLUSTER> {
        let mut pages = ArrayVec::new();
        if !self.swap().zswap.is_nearly_full(held) {
            return pages;
        }
        // What came has freed frames: before others take all of them, the reserve gets back what it
        // gave for new cells.
        self.frames().drain_caches(held);
        let room = self.swap().room_on_devices(held) as usize;
        for _ in 0..most.min(room).min(WRITE_CLUSTER) {
            let Some((slot, holder)) = self.swap().zswap.oldest(held) else { break };
            let mut batch = Batch::new();
            if !self.take_back(held, slot, holder, &mut batch) {
                break;
            }
            pages
                .extend(batch.into_iter().filter_map(|(slot, page)| self.unpack(held, slot, page)));
        }
        self.stat().add(self.mem().cpu(), Counter::ZswapMoved, pages.len() as u64);
        pages
    }

    /// Gives a slot's holder a page to be filled, unless it has one or is no longer the holder.
    /// `false`: there is no frame.
    fn take_back(
        &self,
        held: &mut Held<'_, order::Nothing>,
        slot: Slot,
        holder: Holder,
        batch: &mut Batch,
    ) -> bool {
        let numbers = slot.number()..slot.number() + 1;
        let taken = match holder {
            Holder::Anon(number) => match AnonNo::new(number) {
                Some(no) => self.anon_home(held, no, &numbers, Reserve::Kernel, batch),
                None => Ok(()),
            },
            Holder::Object(id, index) => match self.pager(held, id) {
                Some(pager) => {
                    let mut indices = u64::from(index)..u64::from(index) + 1;
                    self.object_home(held, &pager, &mut indices, &numbers, Reserve::Kernel, batch)
                }
                None => Ok(()),
            },
            Holder::Unknown => Ok(()),
        };
        matches!(taken, Ok(()) | Err(GetError::Wait(_)))
    }

    /// Fills a page from its slot. The page stays busy; none, if that fails.
    fn unpack(
        &self,
        held: &mut Held<'_, order::Nothing>,
        slot: Slot,
        page: PageNo,
    ) -> Option<PageNo> {
        let at = slot.in_zswap()?;
        match self.swap().zswap.read(self.mem(), held, at, page) {
            Transfer::Done => {
                // From now on it is on its way out, like those that were taken.
                self.coming_in.fetch_sub(1, Relaxed);
                Some(page)
            }
            _ => {
                self.read_done(held, &[page], Outcome::Failed);
                None
            }
        }
    }
}
