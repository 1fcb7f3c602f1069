//! A debugger's quick references: to look, and to change.

use super::*;

impl<M: Desk> World<M> {
    /// Reads the pages, and compares what they hold with what the model says that the program sees.
    pub(super) fn inspect(
        &self,
        held: &mut Held<'_, Nothing>,
        s: usize,
        span: Span,
    ) -> Result<Got, String> {
        let pinned = match self.uvm.reference_pages(held, self.space(s), range(span), Prot::READ) {
            Ok(pinned) => pinned,
            Err(e) => return Ok(Got::Refused(e)),
        };
        let seen: Vec<Contents> = {
            let _host = host();
            pinned.pages().iter().map(|&page| self.contents(page)).collect()
        };
        self.uvm.unwire_pages(held, pinned).unwrap();
        for (at, seen) in span.pages().zip(seen) {
            // What can't be shown ought to have been refused: the answers are compared.
            let ought = self.model.shows(s, at);
            if ought.is_ok_and(|ought| ought != seen) {
                return Err(format!(
                    "a debugger sees {seen:x?} in space {s} page {at}, ought to see {ought:x?}"
                ));
            }
        }
        Ok(Got::Done)
    }

    /// Stores a word to each of the pages.
    pub(super) fn patch(
        &self,
        held: &mut Held<'_, Nothing>,
        s: usize,
        span: Span,
        at: usize,
        word: u64,
    ) -> Got {
        let pinned = match self.uvm.reference_pages(held, self.space(s), range(span), Prot::WRITE) {
            Ok(pinned) => pinned,
            Err(e) => return Got::Refused(e),
        };
        for (word, &page) in (word..).zip(pinned.pages()) {
            self.machine().write(page, word_offset(at), &word.to_le_bytes());
        }
        self.uvm.unwire_pages(held, pinned).unwrap();
        Got::Done
    }
}
