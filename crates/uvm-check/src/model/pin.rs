//! Pages pinned for a device: what it writes to them, and where that shows.
//!
//! A pinned page stays what it is while it is pinned; the address may show another by then. The
//! model follows what the page *is*, its [`Identity`], for as long as that is certain: a fork that
//! copies a page leaves it open which of the two keeps the pinned one, and what is discarded or
//! truncated shows nowhere any more. The device writes its pages when it is done, those that are
//! certain.

use super::*;

/// Pages that a device has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pins {
    /// What it does with them: 1 reads, 2 writes.
    pub access: Rights,
    /// What each of them is, if that is known.
    pub pages: Vec<Option<Identity>>,
}

impl Model {
    /// Brings in page after page, as accesses would; the first that can't be had ends it, and
    /// nothing is pinned.
    pub(super) fn pin(&mut self, space: &Space, p: usize, span: Span, access: Rights) -> Expect {
        if self.pins[p].is_some() {
            return Expect::Skip;
        }
        let mut pages = Vec::new();
        for at in span.pages() {
            match self.use_page(space, at, access) {
                Expect::Sees(_) => {}
                refused => return refused,
            }
            let page = space[&at];
            if access == 2 && !self.make_hole_storable(&page) {
                return Expect::Refused(Refusal::NoSpace);
            }
            if access == 2 {
                // It may be shown, so it can be brought in.
                let _ = self.bring_in(space, &page);
            }
            let identity = self.identity_of(&page);
            // What a device reads while it is loaned stays as it is, when a store gets others a
            // copy.
            let stays =
                matches!(identity, Identity::Object(..)) && self.loans.iter().all(Option::is_none);
            pages.push(Some(identity).filter(|_| access == 2 || stays));
        }
        self.pins[p] = Some(Pins { access, pages });
        Expect::Done
    }

    /// The device writes a word to each page that it may write and that is certain, and gives all
    /// back.
    pub(super) fn unpin(&mut self, p: usize, word: usize) -> Expect {
        let Some(pins) = self.pins[p].take() else { return Expect::Skip };
        for identity in pins.pages.into_iter().flatten().filter(|_| pins.access == 2) {
            let Some(mut contents) = self.is(identity) else { continue };
            self.stores += 1;
            contents[word] = self.stores;
            match identity {
                Identity::Cell(cell) => self.cells[cell] = Cell::of(contents),
                Identity::Object(object, index) => self.objects[object].store(index, contents),
            }
        }
        Expect::Done
    }

    /// What a page holds; nothing if it is gone.
    pub fn is(&self, identity: Identity) -> Option<Contents> {
        match identity {
            Identity::Cell(cell) => self.cells[cell].own,
            Identity::Object(object, index) => self.object_shows(object, index).ok(),
        }
    }

    /// It is no longer certain where these pages show.
    pub(super) fn lose_pins(&mut self, which: impl Fn(Identity) -> bool) {
        let pages = self.pins.iter_mut().flatten().flat_map(|pins| pins.pages.iter_mut());
        pages.filter(|page| page.is_some_and(&which)).for_each(|page| *page = None);
    }
}
