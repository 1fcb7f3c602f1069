//! The second step: what was taken is freed, written, or given back.

use arrayvec::ArrayVec;

use crate::page::Owner;
use crate::page::PageFlags;
use machine::{order, Held, Machine, PageNo, Pmap};

use super::Pass;
use crate::io::{Outcome, Transfer};
use crate::pager::{Launder, Put};
use crate::stat::Counter;
use crate::swap::{Run, Slot, WRITE_CLUSTER};
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

    /// Writes dirty anonymous pages to swap devices, each run of slots in one transfer. Pages that
    /// devices in memory have no room for go together to those of lower priority.
    fn write_out(&self, held: &mut Held<'_, order::Nothing>, pass: &mut Pass<M>, dirty: &[PageNo]) {
        let (mut below, mut refused) = (None, self.write_below(held, pass, dirty, None));
        while let Some((priority, pages)) = refused {
            debug_assert!(
                below.is_none_or(|below| priority < below),
                "a round asks the same devices"
            );
            below = Some(priority);
            refused = self.write_below(held, pass, &pages, below);
        }
    }

    /// The same on devices of lower priority than `below` alone. Pages that were refused, with the
    /// highest priority of devices that did so.
    fn write_below(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        mut dirty: &[PageNo],
        below: Option<i16>,
    ) -> Option<(i16, Taken)> {
        let mut refused: Option<(i16, Taken)> = None;
        while !dirty.is_empty() {
            let Some(run) = self.run_for(held, dirty, below) else {
                dirty.iter().for_each(|&page| self.give_back(held, page));
                break;
            };
            let (now, later) = dirty.split_at(run.len as usize);
            dirty = later;
            if !self.write_run(held, pass, run, now) {
                let (highest, pages) = refused.get_or_insert_with(|| (run.priority, Taken::new()));
                *highest = run.priority.max(*highest);
                pages.extend(now.iter().copied());
            }
        }
        refused
    }

    /// Slots for pages from the first on; where swap is full, those that the pages themselves no
    /// longer need.
    fn run_for(
        &self,
        held: &mut Held<'_, order::Nothing>,
        dirty: &[PageNo],
        below: Option<i16>,
    ) -> Option<Run> {
        let most = dirty.len() as u32;
        if let Some(run) = self.swap().alloc(held, most, below) {
            return Some(run);
        }
        for &page in dirty {
            self.assign(held, page, None);
        }
        self.swap().alloc(held, most, below)
    }

    /// Gives pages their slots and starts their write; says no if a device in memory has no room
    /// for them: they are as they were.
    fn write_run(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pass: &mut Pass<M>,
        run: Run,
        pages: &[PageNo],
    ) -> bool {
        let machine = self.mem();
        for (i, &page) in pages.iter().enumerate() {
            self.begin_write(held, run.first.behind(i as u32), page);
        }
        match self.swap().write(machine, held, run.first, pages) {
            Transfer::Failed if run.is_memory => {
                pages.iter().for_each(|&page| _ = self.assign(held, page, None));
                self.pageout_ended(pages.len());
                return false;
            }
            Transfer::Done => self.write_done(held, pages, Outcome::Done),
            Transfer::Failed => self.write_done(held, pages, Outcome::Failed),
            Transfer::Started => {}
        }
        if !run.is_memory {
            self.stat().add(machine.cpu(), Counter::SwapOuts, pages.len() as u64);
            self.stat().add(machine.cpu(), Counter::SwapWrites, 1);
        }
        pass.progress.started += pages.len();
        true
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
    /// one that it had; or none, for a page that isn't written now. Says whether the page has an
    /// owner yet; an orphan's slot is freed too.
    fn assign(
        &self,
        held: &mut Held<'_, order::Nothing>,
        page: PageNo,
        slot: Option<Slot>,
    ) -> bool {
        let on_its_way = PageFlags::PAGEOUT | PageFlags::CLEAN;
        let assigned = self.with_owner_of_busy(held, page, |owner, h| {
            owner.set_slot(self, h, page, slot);
            if slot.is_some() {
                // Clean, unless something says otherwise before the write has ended.
                self.mem().pmap().forget_modified(page);
                self.frames().set_flags(page, on_its_way);
            } else {
                self.frames().clear_flags(page, on_its_way);
            }
        });
        if assigned.is_none() {
            self.frames().clear_flags(page, on_its_way);
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
