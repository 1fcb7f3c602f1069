//! Loans to the kernel: what a borrower has are the bytes of that moment, whatever becomes of the
//! lender.

use super::*;

/// Pages of a transfer area, in a library that is built with small leaves.
const AREA: u64 = 8;

impl Model {
    /// Reads page after page; the first that can't be read ends it, and nothing is loaned.
    pub(super) fn loan(&mut self, space: &Space, l: usize, span: Span) -> Expect {
        if self.loans[l].is_some() {
            return Expect::Skip;
        }
        let mut pages = Vec::new();
        for at in span.pages() {
            match self.access(space, at, 1) {
                Expect::Sees(contents) => pages.push(contents),
                refused => return refused,
            }
        }
        self.loans[l] = Some(pages);
        Expect::Done
    }

    /// What is on loan becomes private memory, in place of what is there.
    pub(super) fn transfer(&mut self, l: usize, s: usize, first: u64) -> Expect {
        let (Some(loan), Some(space)) = (self.loans[l].clone(), &self.spaces[s]) else {
            return Expect::Skip;
        };
        let span = Span(first, loan.len() as u64);
        if span.pages().any(|page| !space.contains_key(&page)) {
            return Expect::NoMapping;
        }
        for page in span.pages() {
            let page = &space[&page];
            if page.rights & 2 == 0 {
                return Expect::Access;
            }
            let shared = self.all_pages().filter(|other| other.cell == page.cell).count() > 1;
            if page.wired || page.writes == Writes::Object || shared {
                return Expect::Unsuitable;
            }
        }
        let cells: Vec<usize> = span.pages().map(|page| space[&page].cell).collect();
        for (cell, contents) in cells.into_iter().zip(loan) {
            self.lose_pins(|is| is == Identity::Cell(cell));
            self.cells[cell] = Cell::of(contents);
        }
        self.loans[l] = None;
        Expect::Placed(first)
    }

    /// Like [`transfer`](Self::transfer), to where the system chooses: in its transfer area, where
    /// that is untouched, or in a new one. Which addresses were touched is not the model's to know,
    /// so [`transfer_at`](Self::transfer_at) gets the choice.
    pub(super) fn transfer_anywhere(&mut self, l: usize, s: usize) -> Expect {
        let (Some(loan), Some(space)) = (&self.loans[l], &self.spaces[s]) else {
            return Expect::Skip;
        };
        super::space::highest_free(space, loan.len() as u64).map_or(Expect::NoSpace, Expect::Placed)
    }

    /// Transfers to the system's choice, if that is a lawful one.
    pub fn transfer_at(&mut self, l: usize, s: usize, first: u64) -> Expect {
        let (Some(loan), Some(space)) = (self.loans[l].clone(), &self.spaces[s]) else {
            return Expect::Skip;
        };
        let len = loan.len() as u64;
        let is_untouched = |at: u64| {
            let area = space.get(&at).filter(|page| {
                page.rights == 3
                    && page.object.is_none()
                    && page.writes == Writes::Cell
                    && !page.wired
            });
            // Where nothing but zeroes came there is still nothing.
            area.is_some_and(|page| self.cells[page.cell].own.is_none_or(|own| own == [0; WORDS]))
        };
        if !(first..first + len).all(is_untouched) {
            let free = |len| super::space::highest_free(space, len).map(|at| (at, len));
            match free(len.max(AREA)).or_else(|| free(len)) {
                Some((at, all)) if at <= first && first + len <= at + all => {
                    self.map_area(s, at, all)
                }
                Some((at, _)) => return Expect::Placed(at),
                None => return Expect::NoSpace,
            }
        }
        let Some(mut space) = self.spaces[s].take() else { return Expect::Skip };
        for (at, contents) in (first..).zip(loan) {
            let cell = self.new_cell(Cell::of(contents));
            space.entry(at).and_modify(|page| page.cell = cell);
        }
        self.spaces[s] = Some(space);
        self.loans[l] = None;
        Expect::Placed(first)
    }

    fn map_area(&mut self, s: usize, first: u64, len: u64) {
        let Some(mut space) = self.spaces[s].take() else { return };
        for at in first..first + len {
            let cell = self.new_cell(Cell::default());
            space.insert(at, Page::private(cell));
        }
        self.spaces[s] = Some(space);
    }

    /// Loans an object's pages; those before one that can't be read are loaned.
    pub(super) fn loan_object(&mut self, l: usize, o: usize, span: Span) -> Expect {
        let Some(object) = self.slots[o].filter(|_| self.loans[l].is_none()) else {
            return Expect::Skip;
        };
        if let Err(refusal) = self.object_shows(object, span.0) {
            return Expect::Refused(refusal);
        }
        let pages = span.pages().map_while(|index| self.object_shows(object, index).ok());
        self.loans[l] = Some(pages.collect());
        Expect::Done
    }
}
