//! The second step: what was taken is freed, written, or given back.

use arrayvec::ArrayVec;

use crate::page::Owner;
use crate::page::PageFlags;
use machine::{order, Held, Machine, PageNo, Pmap};

use super::Pass;
use crate::io::{Outcome, Transfer};
use crate::pager::{Launder, Put};
use crate::stat::Counter;
use crate::swap::{Holder, Refusal, Run, Slot, WRITE_CLUSTER};
use crate::Uvm;

type Taken = ArrayVec<PageNo, WRITE_CLUSTER>;

/// What became of a taken page.
enum Fate {
    /// It is free.
    Freed,
    /// It must be written, and is still busy.
    Write,
    /// A thread wants it, or it can't go: it is on a queue again.
    Kept,
}

impl<M: Machine> Uvm<M> {
    /// Finishes with all that has been taken.
    pub(super) fn finish(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>) {
        pass.down.flush(self.mem().pmap());
        let taken = core::mem::take(&mut pass.taken);
        let mut dirty = Taken::new();
        let mut freed = 0;
        for page in taken {
            match self.dispose(held, page) {
                Fate::Freed => freed += 1,
                Fate::Write => dirty.push(page),
                Fate::Kept => pass.progress.wanted += 1,
            }
        }
        let cpu = self.mem().cpu();
        self.stat().add(cpu, Counter::PagesFreed, freed as u64);
        self.stat().add(cpu, Counter::FreedClean, freed as u64);
        pass.progress.freed += freed;
        self.write_out(held, pass, &dirty);
        self.frames().refill_reserves(held);
        self.put_all(held, pass);
    }

    /// Has pagers write what the pass has met. They may sleep: this pass has nothing busy, and each
    /// CPU knows what it has lowered.
    fn put_all(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>) {
        debug_assert!(
            pass.taken.is_empty() && !pass.down.is_needed(),
            "a pass sleeps with pages busy"
        );
        for (pager, index) in core::mem::take(&mut pass.puts) {
            match pager.put(self, held, index) {
                Put::Started(pages) => pass.progress.started += pages,
                Put::Later => pass.progress.later += 1,
                Put::Nothing => {}
            }
        }
    }

    /// Frees a page that is clean, and that no thread waits for.
    fn dispose(&self, held: &mut Held<'_, order::Nothing>, page: PageNo) -> Fate {
        let fate = self.with_owner_of_busy(held, page, |owner, h| {
            let is_wanted = self.frames().flags(page).contains(PageFlags::WANTED);
            let is_stored = owner.is_stored(self, page);
            if !is_wanted && !is_stored && owner.launder() == Launder::Swap {
                return Fate::Write;
            }
            if is_wanted || !is_stored {
                self.keep(h, page);
                return Fate::Kept;
            }
            owner.evict(self, h, page);
            Fate::Freed
        });
        fate.unwrap_or_else(|| {
            self.drop_orphan(held, page, None);
            Fate::Freed
        })
    }

    /// Puts dirty anonymous pages where they are out of the way: into zswap, as far as it takes
    /// them, and on devices.
    fn write_out(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>, dirty: &[PageNo]) {
        let (mut left, mut small) = (Taken::new(), 0);
        for &page in dirty {
            match self.store_in_zswap(held, page, self.holder(page)) {
                Ok(slot) => {
                    self.begin_write(held, slot, page);
                    pass.progress.started += 1;
                    self.write_done(held, &[page], Outcome::Done);
                    small += 1;
                }
                Err(refusal) => {
                    small += usize::from(refusal == Refusal::Full);
                    left.push(page);
                }
            }
        }
        self.write_to_devices(held, pass, &left);
        // Last: they come back into the frames that were freed just now.
        let oldest = self.oldest_in_zswap(held, small);
        self.write_to_devices(held, pass, &oldest);
    }

    /// Who will keep the slot of a page that is written.
    fn holder(&self, page: PageNo) -> Holder {
        match (self.frames().owner(page), u32::try_from(self.frames().index(page))) {
            (Owner::Anon(number), _) => Holder::Anon(number),
            (Owner::Object(id), Ok(index)) => Holder::Object(id, index),
            _ => Holder::Unknown,
        }
    }

    /// Each run of slots in one transfer.
    fn write_to_devices(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        mut dirty: &[PageNo],
    ) {
        while !dirty.is_empty() {
            let Some(run) = self.run_for(held, dirty) else {
                dirty.iter().for_each(|&page| self.give_back(held, page));
                return;
            };
            let (now, later) = dirty.split_at(run.len as usize);
            dirty = later;
            self.write_run(held, pass, run, now);
        }
    }

    /// Slots for pages from the first on; where swap is full, those that the pages themselves no
    /// longer need.
    fn run_for(&self, held: &mut Held<'_, order::Nothing>, dirty: &[PageNo]) -> Option<Run> {
        let most = dirty.len() as u32;
        if let Some(run) = self.swap().alloc(held, most) {
            return Some(run);
        }
        for &page in dirty {
            self.assign(held, page, None);
        }
        self.swap().alloc(held, most)
    }

    /// Gives pages their slots and starts their write.
    fn write_run(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        run: Run,
        pages: &[PageNo],
    ) {
        let machine = self.mem();
        for (i, &page) in pages.iter().enumerate() {
            self.begin_write(held, run.first.behind(i as u32), page);
        }
        let cpu = machine.cpu();
        self.stat().add(cpu, Counter::SwapOuts, pages.len() as u64);
        self.stat().add(cpu, Counter::SwapWrites, 1);
        pass.progress.started += pages.len();
        match self.swap().write(machine, held, run.first, pages) {
            Transfer::Done => self.write_done(held, pages, Outcome::Done),
            Transfer::Failed => self.write_done(held, pages, Outcome::Failed),
            Transfer::Started => {}
        }
    }

    /// Gives a page the slot that it is about to be written to.
    fn begin_write(&self, held: &mut Held<'_, order::Nothing>, slot: Slot, page: PageNo) {
        if !self.assign(held, page, Some(slot)) {
            // An orphan: written all the same, so that the run stays one, and freed with its slot
            // in the end.
            self.frames().set_owner(page, Owner::Orphan, u64::from(slot.number()));
            self.frames().set_flags(page, PageFlags::PAGEOUT);
        }
        self.pageout_started(1);
    }

    /// Makes `slot` the place of a taken page, which is about to be written there, and frees the
    /// one that it had. Says whether the page has an owner yet; an orphan's slot is freed too.
    fn assign(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        slot: Option<Slot>,
    ) -> bool {
        let assigned = self.with_owner_of_busy(held, page, |owner, h| {
            owner.set_slot(self, h, page, slot);
            if slot.is_some() {
                // Clean, unless something says otherwise before the write has ended.
                self.mem().pmap().forget_modified(page);
                self.frames().set_flags(page, PageFlags::PAGEOUT | PageFlags::CLEAN);
            }
        });
        if assigned.is_none() {
            if let Some(old) = Slot::new(self.frames().index(page) as u32) {
                self.swap().free(self.mem(), held, old);
                self.frames().set_owner(page, Owner::Orphan, 0);
            }
        }
        assigned.is_some()
    }

    /// Puts a page back on a queue that swap has no room for.
    fn give_back(&self, held: &mut Held<'_, order::Nothing>, page: PageNo) {
        if self.with_owner_of_busy(held, page, |_, h| self.keep(h, page)).is_none() {
            self.drop_orphan(held, page, None);
        }
    }
}
