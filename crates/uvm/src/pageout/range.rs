//! Page-out on request: a range's pages leave memory, or come next when it is short, or go then
//! without being written; MADV_PAGEOUT, MADV_COLD and MADV_FREE.
//!
//! The pages are found layer by layer, a few at a time, and looked at like those of a desperate
//! pass, with nothing locked that a write could wait for. What other spaces use too stays, and so
//! does a file's page if the caller can't write to the file: other programs' time, and what a
//! file's cache holds, are not the caller's to spend.
//!
//! Source: Linux's `madvise_cold_or_pageout_pte_range`, which asks as much; by page, where this
//! asks an object by its mappings, and of the file's owner, where this asks for a mapping that can
//! be written.

use arrayvec::ArrayVec;

use crate::page::{Gather, Owner, PageFlags, Slot, SCAN};
use machine::{order, Held, Machine, PageNo, PageRange, Pages, Pmap, Unlocked, Va, VaRange};

use super::{Priority, Progress};
use crate::amap::borrowed::Content;
use crate::anon::{AnonBody, AnonNo};
use crate::map::Entry;
use crate::owner::PageOwner;
use crate::stat::Counter;
use crate::swap::WRITE_CLUSTER;
use crate::{Space, Uvm};

/// Slots and entries that are looked at with the map locked.
const LOOKS: usize = 256;

/// What a look at a layer has found.
struct Found {
    pages: ArrayVec<PageNo, SCAN>,
    /// Looks that are left.
    looks: usize,
    /// What CPUs must forget before the pages are touched.
    down: Gather,
}

impl<M: Machine> Uvm<M> {
    /// Writes a range's pages out as far as they have to be, and frees them when that is done;
    /// those that are wired or have nowhere to go stay. Waits for no write. Cost: by pages that are
    /// there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.swap_on(held, disk(64), 0)?;
    /// let range = memory(uvm, held, space, 8)?;
    /// uvm.pageout_range(held, space, range);
    /// assert_eq!(uvm.swap_space().1, 8);
    /// assert_eq!(load(uvm, space, range.start)?, [1], "and back");
    /// # Ok(()) });
    /// ```
    pub fn pageout_range(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Progress {
        let mut progress = Progress::default();
        let mut batch = ArrayVec::<(PageNo, Owner), WRITE_CLUSTER>::new();
        self.each_page(held, space, *range, |held, pages| {
            if batch.remaining_capacity() < pages.len() {
                progress = progress.and(self.pageout_pages(held, &batch));
                batch.clear();
            }
            batch.extend(pages.iter().map(|&page| (page, self.frames().owner(page))));
        });
        progress.and(self.pageout_pages(held, &batch))
    }

    /// A pass over those of some pages that have the owner that they were found with; then other
    /// threads may want one. The search for them is none of its time: that may sleep.
    fn pageout_pages(&self, held: &mut Unlocked<'_>, pages: &[(PageNo, Owner)]) -> Progress {
        if pages.is_empty() {
            return Progress::default();
        }
        while !self.begin_pass(held) {}
        let mut pass = self.new_pass(held, usize::MAX, Priority::Desperate);
        let mut rest = pages;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(pass.room_for()));
            let is_its = |&&(page, owner): &&(PageNo, Owner)| self.frames().owner(page) == owner;
            let now = now.iter().filter(is_its).map(|&(page, _)| page);
            let now: ArrayVec<PageNo, WRITE_CLUSTER> = now.collect();
            self.look_at(held, &mut pass, &now);
            self.finish(held, &mut pass);
            rest = later;
        }
        self.end_pass();
        self.mem().pause(held);
        pass.progress
    }

    /// Takes a range's pages for unused until they are used again.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 8)?;
    /// uvm.cool_range(held, space, range);
    /// assert_eq!(uvm.frames().inactive(), 8);
    /// # Ok(()) });
    /// ```
    pub fn cool_range(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: PageRange) {
        let frames = self.frames();
        frames.flush_pending(held);
        self.each_page(held, space, *range, |held, pages| {
            pages.iter().for_each(|&page| _ = self.mem().pmap().clear_referenced(page));
            frames.deactivate(held, pages);
        });
    }

    /// Gives a range's private zeroes up: what was stored there is kept until memory is short, and
    /// for as long as it is stored to again; else it is zeroes then, without a write. What is on
    /// swap goes at once. Pages stay as they are that another space has too, that are wired, pinned
    /// or on loan, or that have an object below. Cost: by pages.
    ///
    /// Source: Linux's MADV_FREE. A freed page has a copy on swap that takes no room there: zeroes.
    /// So all that is known of clean pages holds for it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// uvm.free_lazily(held, space, range);
    /// store(uvm, space, range.start, &[2])?;
    /// uvm.pageout_range(held, space, range);
    /// assert_eq!(load(uvm, space, range.start)?, [2], "stored to again");
    /// assert_eq!(load(uvm, space, range.start + Pages(1))?, [0]);
    /// # Ok(()) });
    /// ```
    pub fn free_lazily(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: PageRange) {
        let (range, frames) = (VaRange::from(range), self.frames());
        frames.flush_pending(held);
        self.each_found(
            held,
            (space, range),
            |h, e, part, found| match e.object.is_some() || e.wired {
                true => part.end,
                false => self.own_anons(h, e, part, found, |no, body, h, down| {
                    self.free_anon_lazily(no, body, h, down)
                }),
            },
            |held, pages| {
                self.count(Counter::FreedLazily, pages.len() as u64);
                frames.deactivate(held, pages);
            },
        );
    }

    /// Lets an anon's data go when its page does; the page, if it has one that may.
    fn free_anon_lazily(
        &self,
        no: AnonNo,
        body: &mut AnonBody,
        held: &mut Held<'_, order::Anon>,
        down: &mut Gather,
    ) -> Option<PageNo> {
        let Some(page) = body.page() else {
            if let Some(slot) = body.swap.replace(Slot::ZERO) {
                self.swap().free(self.mem(), held, slot);
            }
            return None;
        };
        if !self.mem().can_go(page) {
            return None;
        }
        PageOwner::Anon { no, body }.set_slot(self, held, page, Some(Slot::ZERO));
        self.mem().pmap().clear_modified(page, down);
        self.mem().pmap().clear_referenced(page);
        self.frames().set_flags(page, PageFlags::CLEAN);
        Some(page)
    }

    /// Calls `each` with the resident pages of a range, those of its amaps first.
    fn each_page(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        mut each: impl FnMut(&mut Unlocked<'_>, &[PageNo]),
    ) {
        let above = |h: &mut Held<'_, _>, e: &_, part, found: &mut _| {
            self.own_anons(h, e, part, found, |_, body, _, _| body.page())
        };
        self.each_found(held, (space, range), above, &mut each);
        let below =
            |h: &mut Held<'_, _>, e: &_, part, found: &mut _| self.pages_below(h, e, part, found);
        self.each_found(held, (space, range), below, &mut each);
    }

    /// Calls `each` with the pages of a range that `find` finds in the parts of its entries, some
    /// at a time, with nothing locked: by then a page may be another's. `find` returns the address
    /// that it has come to.
    fn each_found(
        &self,
        held: &mut Unlocked<'_>,
        (space, range): (&Space<M>, VaRange),
        mut find: impl FnMut(&mut Held<'_, order::Map>, &Entry<M>, VaRange, &mut Found) -> Va,
        mut each: impl FnMut(&mut Unlocked<'_>, &[PageNo]),
    ) {
        let mut rest = range;
        while !rest.is_empty() {
            let mut found = Found { pages: ArrayVec::new(), looks: LOOKS, down: Gather::new() };
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let end = tree.try_each(rest, &mut |e| {
                    let part = e.range.intersect(rest);
                    let end = find(&mut h, e, part, &mut found);
                    found.looks = found.looks.saturating_sub(1);
                    if end < part.end || found.looks == 0 {
                        Err(end)
                    } else {
                        Ok(())
                    }
                });
                rest.start = end.err().unwrap_or(rest.end);
            }
            found.down.perform(self.frames(), self.mem(), held);
            each(held, &found.pages);
            self.mem().pause(held);
        }
    }

    /// Adds the pages that `look` returns for the anons of an entry's part that no other space has,
    /// up to the address that is returned.
    fn own_anons(
        &self,
        held: &mut Held<'_, order::Map>,
        e: &Entry<M>,
        part: VaRange,
        found: &mut Found,
        mut look: impl FnMut(
            AnonNo,
            &mut AnonBody,
            &mut Held<'_, order::Anon>,
            &mut Gather,
        ) -> Option<PageNo>,
    ) -> Va {
        let Some(aref) = &e.amap else { return part.end };
        let first = e.slot(aref, part.start);
        let (body, mut h) = aref.amap.body.lock(held);
        for (slot, number) in body.slots.range(first..first + part.pages().0) {
            if found.pages.is_full() || found.looks == 0 {
                return part.start + Pages(slot - first);
            }
            found.looks -= 1;
            let Some(no) = Content::anon(number) else { continue };
            let is_own = body.cover.is_exclusive(slot..slot + 1) && !body.slots.is_shared(slot);
            let (mut anon, mut h) = self.anons.get(no).lock(&mut h);
            if is_own && anon.refs() == 1 {
                found.pages.extend(look(no, &mut anon, &mut h, &mut found.down));
            }
        }
        part.end
    }

    /// The pages of an entry's part that its object has, up to the address that is returned.
    fn pages_below(
        &self,
        held: &mut Held<'_, order::Map>,
        e: &Entry<M>,
        part: VaRange,
        found: &mut Found,
    ) -> Va {
        let Some(oref) = &e.object else { return part.end };
        // A handle of the host's, and this mapping.
        let is_others = oref.pager.object().references() > 2;
        if is_others || e.writes_to().is_none() {
            return part.end;
        }
        let first = e.index(oref, part.start);
        let (body, _) = oref.pager.object().lock(held);
        for (index, page) in body.pages(first.0..first.0 + part.pages().0) {
            if found.pages.is_full() {
                return part.start + (index - first);
            }
            found.pages.push(page);
        }
        part.end
    }
}
