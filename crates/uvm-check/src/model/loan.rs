//! Loans to the kernel: what a borrower has are the bytes of that moment, whatever becomes of the lender.

use super::*;

impl Model {
    /// Reads page after page; the first that can't be read ends it, and nothing is lent.
    pub(super) fn lend(&mut self, space: &Space, l: usize, span: Span) -> Expect {
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
        let (Some(loan), Some(space)) = (self.loans[l].clone(), &self.spaces[s]) else { return Expect::Skip };
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

    /// What is on loan becomes an object's.
    pub(super) fn give_to_object(&mut self, l: usize, o: usize, first: u64) -> Expect {
        let changeable = self.slots[o].filter(|&n| matches!(self.objects[n].kind, Kind::Anon | Kind::File));
        let (Some(loan), Some(number)) = (self.loans[l].clone(), changeable) else { return Expect::Skip };
        if first + loan.len() as u64 > self.objects[number].len {
            return Expect::Refused(Refusal::Bus);
        }
        for (index, contents) in (first..).zip(loan) {
            self.lose_pins(|is| is == Identity::Object(number, index));
            self.objects[number].store(index, contents);
        }
        self.loans[l] = None;
        Expect::Done
    }

    /// The same for an object's pages; those before one that can't be read are lent.
    pub(super) fn lend_object(&mut self, l: usize, o: usize, span: Span) -> Expect {
        let Some(object) = self.slots[o].filter(|_| self.loans[l].is_none()) else { return Expect::Skip };
        if let Err(refusal) = self.object_shows(object, span.0) {
            return Expect::Refused(refusal);
        }
        let pages = span.pages().map_while(|index| self.object_shows(object, index).ok());
        self.loans[l] = Some(pages.collect());
        Expect::Done
    }
}
