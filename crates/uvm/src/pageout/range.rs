//! Page-out on request: a range's pages leave memory, or come next when it is short; MADV_PAGEOUT
//! and MADV_COLD.
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

use crate::page::{Owner, SCAN};
use machine::{order, Held, Machine, PageNo, PageRange, Pages, Pmap, Va, VaRange};

use super::{Priority, Progress};
use crate::amap::borrowed::Content;
use crate::map::Entry;
use crate::swap::WRITE_CLUSTER;
use crate::{Space, Uvm};

/// Slots and entries that are looked at with the map locked.
const LOOKS: usize = 256;

/// What a look at a layer has found.
struct Found {
    pages: ArrayVec<PageNo, SCAN>,
    /// Looks that are left.
    looks: usize,
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
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) -> Progress {
        let range = VaRange::from(range);
        let mut progress = Progress::default();
        let mut batch = ArrayVec::<(PageNo, Owner), WRITE_CLUSTER>::new();
        self.each_found(held, space, range, |held, pages| {
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
    fn pageout_pages(
        &self,
        held: &mut Held<'_, order::Nothing>,
        pages: &[(PageNo, Owner)],
    ) -> Progress {
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
    pub fn cool_range(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: PageRange,
    ) {
        let range = VaRange::from(range);
        let frames = self.frames();
        frames.flush_pending(held);
        self.each_found(held, space, range, |held, pages| {
            pages.iter().for_each(|&page| _ = self.mem().pmap().clear_referenced(page));
            frames.deactivate(held, pages);
        });
    }

    /// Calls `each` with the resident pages of a range, some at a time, with nothing locked: by
    /// then a page may be another's.
    fn each_found(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        mut each: impl FnMut(&mut Held<'_, order::Nothing>, &[PageNo]),
    ) {
        for find in [Self::pages_above, Self::pages_below] {
            let mut rest = range;
            while !rest.is_empty() {
                let mut found = Found { pages: ArrayVec::new(), looks: LOOKS };
                {
                    let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                    let end = tree.try_each(rest, &mut |e| {
                        let part = e.range.intersect(rest);
                        let end = find(self, &mut h, e, part, &mut found);
                        found.looks = found.looks.saturating_sub(1);
                        if end < part.end || found.looks == 0 {
                            Err(end)
                        } else {
                            Ok(())
                        }
                    });
                    rest.start = end.err().unwrap_or(rest.end);
                }
                each(held, &found.pages);
                self.mem().pause(held);
            }
        }
    }

    /// The pages of an entry's part that are its own, up to the address that is returned.
    fn pages_above(
        &self,
        held: &mut Held<'_, order::Map>,
        e: &Entry<M>,
        part: VaRange,
        found: &mut Found,
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
            let (anon, _) = self.anons.get(no).lock(&mut h);
            found.pages.extend(anon.page().filter(|_| is_own && anon.refs() == 1));
        }
        part.end
    }

    /// As [`pages_above`](Self::pages_above), of the object.
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
