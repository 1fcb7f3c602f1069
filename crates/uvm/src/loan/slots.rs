//! Slots that hold a page on loan, until somebody writes to it.
//!
//! ```text
//!   transfer:   slot -> P (a loan)      | discard, exit: the loan is returned
//!   read:       slot -> P               | mapped as it is, not to be written, with those around it
//!   written:    slot -> anon -> P       | P was nobody's: it is the anon's now, and written in place
//!               slot -> anon of P       | P is an anon's: one more reference, and whoever writes copies
//!               slot -> anon -> copy    | anything else, as pages of files
//! ```
//! Pages that are [transferred](crate::transfer) go into slots as they are: who only reads what it
//! gets, hands it on or gives it back, pays neither for anons nor for queues, and shares a file's
//! pages with the file. The first store to one *settles* its slot: that has an anon from then on.
//! Loaning such memory again loans the same pages.
//!
//! What is on loan is not paged out. When memory is short the page daemon settles slots, so that
//! what they hold can leave (`pageout/loaned.rs`). That may need heap: so only a part of memory may
//! be in slots like this, the [`PART`]th; what comes beyond is settled at once.
//!
//! I1: a slot that holds a page on loan is one entry's alone, in a leaf of one table: whoever
//! shares slots, as fork does, settles them before. I2: a translation may show such a page there,
//! and can't write it; whoever returns the loan has it forgotten by every CPU before, for the
//! page's owner may write in place from then on. I3: `AmapBody::borrowed` spans all of an amap's
//! such slots; `Anons::borrowed` counts all there are. I4: the page of zeroes is in none.
//!
//! Source: 1998, sections 4.1 (loans from objects and anons to anons) and 4.2. The road not taken:
//! an anon for each page as it comes, which cost as much as a third of its copy.

use core::num::NonZeroU32;
use core::ops::Range;

use crate::page::Taken;
use crate::page::{Gather, Owner};
use arrayvec::ArrayVec;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Va, VaRange, PAGE_SHIFT};

use crate::amap::{ARef, AmapBody};
use crate::anon::{many_bytes, AnonNo};
use crate::loan::LoanedPage;
use crate::map::steps::first_part;
use crate::map::tree::Tree;
use crate::map::Entry;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

/// Set in what a slot holds, if it is a page on loan: memory has less than 2^31 pages.
pub(crate) const BORROWED: u32 = 1 << 31;

/// The part of memory that slots may hold on loan.
const PART: usize = 16;

/// Slots that are looked at at once.
pub(crate) const AT_ONCE: usize = 64;
/// Slots among which one hold looks for some.
const LOOKED_AT: usize = 4096;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Anon(AnonNo),
    Borrowed(PageNo),
}

impl Content {
    #[inline(always)]
    pub(crate) fn of(number: NonZeroU32) -> Content {
        match AnonNo::new(number.get()) {
            Some(no) => Content::Anon(no),
            None => Content::Borrowed(PageNo(number.get() & !BORROWED)),
        }
    }

    /// The anon, if it is one.
    #[inline]
    pub(crate) fn anon(number: NonZeroU32) -> Option<AnonNo> {
        AnonNo::new(number.get())
    }
}

/// Which pages on loan are settled.
pub(crate) enum Settle<'a, M: Machine> {
    /// All, where they are seen: what is copied is forgotten there.
    All(Shown<'a, M>),
    /// Those that nobody else has: they can be written in place then.
    Own,
    /// Those that need not be copied.
    Uncopied,
}

/// Where an entry's slots are seen.
pub(crate) struct Shown<'a, M: Machine> {
    space: &'a Space<M>,
    /// The address of slot 0, which may lie below any.
    base: u64,
}

impl<'a, M: Machine> Shown<'a, M> {
    pub(crate) fn new(space: &'a Space<M>, entry: &Entry<M>, aref: &ARef<M>) -> Self {
        Shown { space, base: entry.range.start.0.wrapping_sub(aref.slot.bytes()) }
    }

    fn page(&self, slot: u64) -> VaRange {
        let start = Va(self.base.wrapping_add(slot << PAGE_SHIFT));
        VaRange::new(start, start + Pages(1))
    }
}

/// Pages that were copied: their loans end once every CPU has forgotten them where they were seen.
struct Copied {
    pages: ArrayVec<LoanedPage, AT_ONCE>,
    down: Gather,
}

/// What a slot holds for a page on loan, by number; 0 for nothing.
#[inline]
pub(crate) fn borrowed(number: u32) -> Option<PageNo> {
    (number & BORROWED != 0).then_some(PageNo(number & !BORROWED))
}

/// The slots that two ranges have in common.
fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl<M: Machine> AmapBody<M> {
    /// Slots from `from` on that hold pages on loan, in order, with these.
    pub(crate) fn borrowed_from(&self, from: u64) -> impl Iterator<Item = (u64, PageNo)> + '_ {
        let all = &self.borrowed;
        let slots = self.slots.range(from.clamp(all.start, all.end)..all.end);
        slots.filter_map(|(slot, number)| Some((slot, borrowed(number.get())?)))
    }

    /// Keeps I3 where slots of a range get pages on loan.
    pub(crate) fn borrows(&mut self, range: Range<u64>) {
        let all = &self.borrowed;
        self.borrowed =
            if all.is_empty() { range } else { all.start.min(range.start)..all.end.max(range.end) };
    }
}

impl<M: Machine> Uvm<M> {
    /// Heap bytes that [`settle_entry`](Self::settle_entry) may need.
    pub(crate) fn settle_bytes(
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

    /// Gives slots of a range that hold pages on loan anons instead, and says how many pages were
    /// copied for it. Heap for chunks of anons has been reserved.
    ///
    /// # Errors
    /// [`NoMemory`], with some of them settled.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_borrowed(
        &self,
        held: &mut Held<'_, order::Amap>,
        body: &mut AmapBody<M>,
        range: Range<u64>,
        which: &Settle<'_, M>,
    ) -> Result<usize, NoMemory> {
        let range = common(&range, &body.borrowed);
        let (mut settled, mut copies, mut result, mut next) = (0, 0, Ok(()), range.start);
        while result.is_ok() && next < range.end {
            let some = body.borrowed_from(next).take_while(|&(slot, _)| slot < range.end);
            let some: ArrayVec<_, AT_ONCE> = some.take(AT_ONCE).collect();
            let mut copied = Copied { pages: ArrayVec::new(), down: Gather::new() };
            next = if some.is_full() { some[AT_ONCE - 1].0 + 1 } else { range.end };
            for (slot, page) in some {
                match self.anon_for(held, page, which, slot, &mut copied) {
                    Ok(Some(no)) => {
                        body.slots.set(slot, no.number());
                        settled += 1;
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
                self.return_pages(held, copied.pages.into_iter());
            }
        }
        if settled != 0 {
            self.anons.borrowed.fetch_sub(settled, Relaxed);
            self.pages_may_go();
        }
        if result.is_ok() && matches!(which, Settle::All(_)) {
            let all = &mut body.borrowed;
            if range.start == all.start {
                all.start = range.end;
            } else if range.end == all.end {
                all.end = range.start;
            }
        }
        result.map(|()| copies)
    }

    /// The same for an entry whose slots are about to be shared.
    pub(crate) fn settle_entry(
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
        let all = Settle::All(Shown::new(space, entry, aref));
        self.settle_borrowed(&mut h, &mut body, aref.range(entry.len()), &all)?;
        aref.amap.borrows.store(!body.borrowed.is_empty(), Relaxed);
        Ok(())
    }

    /// Settles what has just been put into a range, if slots hold more on loan than they may. What
    /// can't be settled for lack of memory stays as it is.
    pub(crate) fn keep_few_borrowed(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) {
        if self.anons.borrowed.load(Relaxed) > self.frames().total() / PART {
            let _ = self.settle_in_steps(held, space, range);
        }
    }

    /// Gives slots of a range that hold pages on loan anons instead, some at a time.
    ///
    /// # Errors
    /// [`NoMemory`], with some of them settled.
    pub(crate) fn settle_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        self.by_parts(held, range, |held, rest| {
            self.attempt(held, many_bytes(AT_ONCE), |held, _| {
                let locked = space.map.lock_now(self.mem(), held, rest);
                let (tree, mut h) = locked.map_err(Stop::Wait)?;
                self.settle_some(&mut h, space, &tree, rest).map_err(Stop::Fail)
            })
        })
    }

    /// Settles in steps as [`settle_in_steps`](Self::settle_in_steps) does, in a map that is
    /// claimed.
    ///
    /// # Errors
    /// [`NoMemory`], also if the thread is being ended.
    pub(crate) fn settle_claimed(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        self.by_parts(held, range, |held, rest| {
            self.mem().reserve_heap(many_bytes(AT_ONCE))?;
            let end = {
                let (tree, mut h) = space.map.lock_claimed(held);
                self.settle_some(&mut h, space, &tree, rest)?
            };
            self.pause_or_give_up(held)?;
            Ok(end)
        })
    }

    /// Settles the first slots of a range that hold pages on loan. Says up to where it has looked.
    fn settle_some(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        tree: &Tree<Entry<M>>,
        range: VaRange,
    ) -> Result<Va, NoMemory> {
        let part = first_part(tree, range);
        let looked_at = tree.try_each(part, &mut |entry| match self.settle_first(
            held,
            space,
            entry,
            entry.range.intersect(part),
        ) {
            Ok(None) => Ok(()),
            Ok(Some(end)) => Err(Ok(end)),
            Err(e) => Err(Err(e)),
        });
        looked_at.map_or_else(|end| end, |()| Ok(part.end))
    }

    /// Looks at some slots at the start of an entry's part, and settles some. Says up to where none
    /// is on loan; nothing if that is so for all of them.
    fn settle_first(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entry: &Entry<M>,
        own: VaRange,
    ) -> Result<Option<Va>, NoMemory> {
        let Some(aref) = entry.amap.as_ref().filter(|aref| aref.amap.borrows.load(Relaxed)) else {
            return Ok(None);
        };
        let (mut body, mut h) = aref.amap.body.lock(held);
        let slots = common(&entry.slots(aref, own), &body.borrowed);
        let mut first = None;
        for (n, (slot, number)) in body.slots.range(slots.clone()).enumerate() {
            let is_borrowed = borrowed(number.get()).is_some();
            if is_borrowed || n == LOOKED_AT {
                first = Some((slot, is_borrowed));
                break;
            }
        }
        let Some((mut end, is_borrowed)) = first else { return Ok(None) };
        if is_borrowed {
            let some = end..slots.end.min(end + AT_ONCE as u64);
            end = some.end;
            let all = Settle::All(Shown::new(space, entry, aref));
            self.settle_borrowed(&mut h, &mut body, some, &all)?;
        }
        Ok(Some(entry.range.start + Pages(end - aref.slot.0)))
    }

    /// An anon for the page on loan in a slot, if it is to be settled; the loan is returned, or
    /// goes with `copied`.
    fn anon_for(
        &self,
        held: &mut Held<'_, order::Amap>,
        page: PageNo,
        which: &Settle<'_, M>,
        slot: u64,
        copied: &mut Copied,
    ) -> Result<Option<AnonNo>, NoMemory> {
        let frames = self.frames();
        if matches!(which, Settle::Own) && !frames.is_borrowers(page) {
            return Ok(None);
        }
        if let Owner::Anon(number) = frames.owner(page) {
            if let Some(no) = AnonNo::new(number) {
                let (mut anon, _h) = self.anons.get(no).lock(held);
                if anon.page() == Some(page) {
                    anon.add_reference(frames);
                    // Its owner has it: this is not the last who holds it.
                    frames.end_loan(page);
                    return Ok(Some(no));
                }
            }
        }
        if matches!(which, Settle::Uncopied) && !frames.is_disowned(page) {
            return Ok(None);
        }
        self.new_anon_for(held, page, which, slot, copied)
    }

    /// A new anon for a page that no anon has: it is taken over, if it is nobody's, or copied.
    fn new_anon_for(
        &self,
        held: &mut Held<'_, order::Amap>,
        page: PageNo,
        which: &Settle<'_, M>,
        slot: u64,
        copied: &mut Copied,
    ) -> Result<Option<AnonNo>, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        let no = self.anons.take(machine, &mut held.deeper())?;
        let (mut own, mut taken) = (page, frames.take_over(page));
        if taken == Taken::Not {
            let copy = match which {
                Settle::All(shown) => {
                    let copy = self.copied_page(held, page, Counter::TransfersCopied);
                    copy.map(|copy| Some((shown, copy)))
                }
                Settle::Own | Settle::Uncopied => Ok(None),
            };
            let Ok(Some((shown, copy))) = copy else {
                self.anons.give_back(machine, held, no);
                return copy.map(|_| None);
            };
            own = copy.into_page();
            machine.pmap().remove(held, &shown.space.pmap, shown.page(slot), &mut copied.down);
            copied.pages.push(LoanedPage(page));
            taken = frames.take_over(own);
            debug_assert_eq!(taken, Taken::Alone, "nobody else has a new page");
        }
        self.anons.make_of(machine, held, no, own);
        frames.activate(machine, held, own);
        if taken == Taken::Among {
            self.end_loan(held, LoanedPage(own));
        }
        Ok(Some(no))
    }
}
