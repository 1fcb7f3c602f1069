//! Loaned pages in amap slots, until a program stores to them.
//!
//! ```text
//!   transfer:   slot -> P (a loan)      | discard, exit: the loan is returned
//!   read:       slot -> P               | mapped as it is, not to be written, with those around it
//!   written:    slot -> anon -> P       | P had no owner: it is the anon's now, and written in place
//!               slot -> anon of P       | P is an anon's: one more reference, and a store copies
//!               slot -> anon -> copy    | anything else, as pages of files
//! ```
//! Pages that are [transferred](crate::transfer) go into slots as they are: a program that only
//! reads what it gets, hands it on or gives it back, pays neither for anons nor for queues, and
//! shares a file's pages with the file. The first store to one gives its slot an anon
//! (`map/adopt.rs`). Loaning such memory again loans the same pages.
//!
//! What is on loan is not paged out. When memory is short the page daemon gives slots anons, so
//! that what they hold can leave (`pageout/loaned.rs`). That may need heap: so only a part of
//! memory may be in slots like this (`transfer.rs`); slots beyond it get anons at once.
//!
//! I1: a slot that holds a loaned page is one entry's alone, in a leaf of one table: before slots
//! are shared, as by a fork, they get anons. I2: a translation may show such a page there, and
//! can't write it; before the loan is returned every CPU has forgotten it, for the page's owner may
//! write in place from then on. I3: `AmapBody::borrowed` spans all of an amap's such slots;
//! `Anons::borrowed` counts all there are. I4: the page of zeroes is in none.
//!
//! Source: 1998, sections 4.1 (loans from objects and anons to anons) and 4.2. The road not taken:
//! an anon for each page as it comes, which cost as much as a third of its copy.

use core::num::NonZeroU32;
use core::ops::Range;

use machine::{Machine, PageNo};

use crate::amap::AmapBody;
use crate::anon::AnonNo;

/// Set in what a slot holds, if it is a loaned page: memory has less than 2^31 pages.
pub(crate) const BORROWED: u32 = 1 << 31;

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

/// The loaned page that a slot's number stands for, if it is one.
#[inline]
pub(crate) fn borrowed(number: u32) -> Option<PageNo> {
    (number & BORROWED != 0).then_some(PageNo(number & !BORROWED))
}

/// What a bounded search has come to.
pub(crate) enum Search {
    /// This slot.
    Found(u64),
    /// It is to be gone on with at this slot.
    GoesOn(u64),
}

impl<M: Machine> AmapBody<M> {
    /// Loaned pages in slots from `from` on, in order, each with its slot.
    pub(crate) fn borrowed_from(&self, from: u64) -> impl Iterator<Item = (u64, PageNo)> + '_ {
        let all = &self.borrowed;
        let slots = self.slots.range(from.clamp(all.start, all.end)..all.end);
        slots.filter_map(|(slot, number)| Some((slot, borrowed(number.get())?)))
    }

    /// The first slot of a range that holds a page on loan, among so many that hold anything; none
    /// if there is none in the range.
    /// There are none before that, if it is the first of all: I3's span shrinks.
    pub(crate) fn first_borrowed(&mut self, range: Range<u64>, looks: usize) -> Option<Search> {
        let all = &mut self.borrowed;
        let start = range.start.max(all.start);
        let slots = self.slots.range(start..range.end.min(all.end).max(start));
        let mut ends = slots.zip(0..).filter_map(|((slot, number), n)| {
            let is_borrowed = borrowed(number.get()).is_some();
            (is_borrowed || n == looks).then_some((slot, is_borrowed))
        });
        let found = ends.next();
        if start == all.start {
            all.start = found.map_or(range.end.clamp(start, all.end), |(slot, _)| slot);
        } else if found.is_none() && range.end >= all.end {
            all.end = start.min(all.end);
        }
        found.map(|(slot, is_borrowed)| match is_borrowed {
            true => Search::Found(slot),
            false => Search::GoesOn(slot),
        })
    }

    /// Keeps I3 where slots of a range get pages on loan.
    pub(crate) fn borrows(&mut self, range: Range<u64>) {
        let all = &self.borrowed;
        self.borrowed =
            if all.is_empty() { range } else { all.start.min(range.start)..all.end.max(range.end) };
    }
}
