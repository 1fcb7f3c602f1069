//! Giving anons to loaned pages in amap slots (`amap::borrowed`): before a store, before slots are
//! shared, and when memory is short.
//!
//! ```text
//!   a page without an owner   the anon's own: written in place, once no other borrower has it
//!   an anon's page            one more reference to that anon
//!   any other                 copied, and forgotten where the slot is seen; or left on loan
//! ```

use core::ops::Range;

use crate::page::Taken;
use crate::page::{Gather, Owner};
use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Unlocked, Va, VaRange};

use crate::amap::borrowed::Search;
use crate::amap::{ARef, AmapBody};
use crate::anon::{many_bytes, AnonNo};
use crate::loan::LoanedPage;
use crate::map::steps::first_part;
use crate::map::tree::Tree;
use crate::map::Entry;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// Slots that are looked at at once.
pub(crate) const AT_ONCE: usize = 64;
/// Slots among which one hold looks for some.
pub(crate) const LOOKED_AT: usize = 4096;

/// Which pages on loan are adopted.
pub(crate) enum Adopt<'a, M: Machine> {
    /// All, of an entry whose slots they are: what is copied is forgotten where that shows them.
    All(&'a Space<M>, &'a Entry<M>, &'a ARef<M>),
    /// Those that no other borrower has: they can be written in place then.
    Own,
    /// Those that need not be copied.
    Uncopied,
}

/// Pages that were copied: their loans end once every CPU has forgotten them where they were seen.
struct Copied {
    pages: ArrayVec<LoanedPage, AT_ONCE>,
    down: Gather,
}

/// The slots that two ranges have in common.
fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl<M: Machine> Uvm<M> {
    /// Heap bytes that [`adopt_entry`](Self::adopt_entry) may need.
    pub(crate) fn adopt_bytes(
        &self,
        held: &mut Held<'_, order::Map>,
        aref: &ARef<M>,
        len: Pages,
    ) -> usize {
        if !aref.amap.borrows.load(Relaxed) {
            return 0;
        }
        let (body, _) = aref.amap.body.lock(held);
        let range = common(&aref.range(len), &body.borrowed);
        let all = self.anons.borrowed.load(Relaxed);
        crate::anon::many_bytes(all.min((range.end - range.start) as usize))
    }

    /// Gives anons to the loaned pages in an amap's slots of a range, and says how many pages were
    /// copied for it. Heap for chunks of anons has been reserved.
    ///
    /// # Errors
    /// [`NoMemory`], with some of them adopted.
    #[cold]
    #[inline(never)]
    pub(crate) fn adopt_borrowed(
        &self,
        held: &mut Held<'_, order::Amap>,
        body: &mut AmapBody<M>,
        range: Range<u64>,
        which: &Adopt<'_, M>,
    ) -> Result<usize, NoMemory> {
        let range = common(&range, &body.borrowed);
        let (mut adopted, mut copies, mut result, mut next) = (0, 0, Ok(()), range.start);
        while result.is_ok() && next < range.end {
            let some = body.borrowed_from(next).take_while(|&(slot, _)| slot < range.end);
            let some: ArrayVec<_, AT_ONCE> = some.take(AT_ONCE).collect();
            let mut copied = Copied { pages: ArrayVec::new(), down: Gather::new() };
            next = if some.is_full() { some[AT_ONCE - 1].0 + 1 } else { range.end };
            for (slot, page) in some {
                match self.anon_for(held, page, which, slot, &mut copied) {
                    Ok(Some(no)) => {
                        body.slots.set(slot, no.number());
                        adopted += 1;
                    }
                    Ok(None) => {}
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                }
            }
            if !copied.pages.is_empty() {
                copies += copied.pages.len();
                copied.down.flush(self.mem().pmap());
                self.return_pages(held, copied.pages);
            }
        }
        if adopted != 0 {
            self.anons.borrowed.fetch_sub(adopted, Relaxed);
            self.mem().pages_may_go();
        }
        if result.is_ok() && matches!(which, Adopt::All(..)) {
            let all = &mut body.borrowed;
            if range.start == all.start {
                all.start = range.end;
            } else if range.end == all.end {
                all.end = range.start;
            }
        }
        result.map(|()| copies)
    }

    /// Whether there are more slots than are `left` to look at among which an entry's pages on loan
    /// lie.
    #[inline]
    pub(crate) fn adopts_long(
        &self,
        held: &mut Held<'_, order::Map>,
        entry: &Entry<M>,
        left: &mut usize,
    ) -> bool {
        let Some(aref) = entry.amap.as_ref().filter(|aref| aref.amap.borrows.load(Relaxed)) else {
            return false;
        };
        let (body, _) = aref.amap.body.lock(held);
        let slots = common(&aref.range(entry.len()), &body.borrowed);
        let looks = body.slots.range(slots).take(*left).count();
        *left -= looks;
        *left == 0
    }

    /// Gives all slots of an entry that hold pages on loan anons, before they are shared.
    pub(crate) fn adopt_entry(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entry: &Entry<M>,
        aref: &ARef<M>,
    ) -> Result<(), NoMemory> {
        if !aref.amap.borrows.load(Relaxed) {
            return Ok(());
        }
        let (mut body, mut h) = aref.amap.body.lock(held);
        let all = Adopt::All(space, entry, aref);
        self.adopt_borrowed(&mut h, &mut body, aref.range(entry.len()), &all)?;
        aref.amap.borrows.store(!body.borrowed.is_empty(), Relaxed);
        Ok(())
    }

    /// Gives slots of a range that hold pages on loan anons instead, some at a time.
    ///
    /// # Errors
    /// [`NoMemory`], with some of them adopted.
    pub(crate) fn adopt_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        self.by_parts(held, range, |held, rest| {
            self.attempt(held, many_bytes(AT_ONCE), |held, _| {
                let (tree, mut h) = space.map.lock_now(self.mem(), held, rest)?;
                self.adopt_some(&mut h, space, &tree, rest).map_err(Stop::Fail)
            })
        })
    }

    /// Looks at some slots of a range, up to the first that hold pages on loan, and gives these
    /// anons. Says up to where no slot holds one.
    pub(crate) fn adopt_some(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        tree: &Tree<Entry<M>>,
        range: VaRange,
    ) -> Result<Va, NoMemory> {
        let part = first_part(tree, range);
        let looked_at = tree.try_each(part, &mut |entry| {
            let borrows = |aref: &&ARef<M>| aref.amap.borrows.load(Relaxed);
            let Some(aref) = entry.amap.as_ref().filter(borrows) else { return Ok(()) };
            let (mut body, mut h) = aref.amap.body.lock(held);
            let own = entry.range.intersect(part);
            let slots = common(&entry.slots(aref, own), &body.borrowed);
            let end = match body.first_borrowed(slots.clone(), LOOKED_AT) {
                None => {
                    aref.amap.borrows.store(!body.borrowed.is_empty(), Relaxed);
                    return Ok(());
                }
                Some(Search::GoesOn(at)) => at,
                Some(Search::Found(first)) => {
                    let some = first..slots.end.min(first + AT_ONCE as u64);
                    let all = Adopt::All(space, entry, aref);
                    self.adopt_borrowed(&mut h, &mut body, some.clone(), &all).map_err(Err)?;
                    some.end
                }
            };
            Err(Ok(entry.range.start + Pages(end - aref.slot.0)))
        });
        looked_at.map_or_else(|end| end, |()| Ok(part.end))
    }

    /// An anon for the page on loan in a slot, if it is to be adopted: that which has the page, or
    /// a new one, which takes over a page without an owner or gets a copy. The loan is returned, or
    /// goes with `copied`.
    fn anon_for(
        &self,
        held: &mut Held<'_, order::Amap>,
        page: PageNo,
        which: &Adopt<'_, M>,
        slot: u64,
        copied: &mut Copied,
    ) -> Result<Option<AnonNo>, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        if matches!(which, Adopt::Own) && !frames.is_borrowers(page) {
            return Ok(None);
        }
        if let Owner::Anon(number) = frames.owner(page) {
            if let Some(no) = AnonNo::new(number) {
                let (mut anon, _h) = self.anons.get(no).lock(held);
                if anon.page() == Some(page) {
                    anon.add_reference(frames);
                    // Its owner has it: this is not the last hold.
                    frames.end_loan(page);
                    return Ok(Some(no));
                }
            }
        }
        if matches!(which, Adopt::Uncopied) && !frames.is_disowned(page) {
            return Ok(None);
        }
        let no = self.anons.take(machine, &mut held.deeper())?;
        let (mut own, mut taken) = (page, frames.take_over(page));
        if taken == Taken::Not {
            let Adopt::All(space, entry, aref) = which else {
                self.anons.give_back(machine, held, no);
                return Ok(None);
            };
            let copy = self.loaned_copy(held, page, Counter::TransfersCopied);
            own = copy.inspect_err(|_| self.anons.give_back(machine, held, no))?.into_page();
            let va = entry.range.start + Pages(slot - aref.slot.0);
            let shown = VaRange::new(va, va + Pages(1));
            machine.pmap().remove(held, &space.pmap, shown, &mut copied.down);
            copied.pages.push(self.loaned(page));
            taken = frames.take_over(own);
            debug_assert_eq!(taken, Taken::Alone, "a new page has no other holder");
        }
        self.anons.make_of(machine, held, no, own);
        frames.activate(machine, held, own);
        if taken == Taken::Among {
            self.return_pages(held, [self.loaned(own)]);
        }
        Ok(Some(no))
    }
}
