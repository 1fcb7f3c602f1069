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
