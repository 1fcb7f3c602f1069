//! What a debugger sees and changes in another's memory: all that its mappings could be made to
//! allow, but never what others see too, unless the program may write that itself.

use super::*;

impl Model {
    pub(super) fn inspect(&mut self, space: &Space, span: Span) -> Expect {
        let refused = span.pages().find_map(|at| self.refer(space, at, 1).err());
        refused.map_or(Expect::Done, Expect::Refused)
    }

    /// Stores a word to each page, once it has them all. Those before one that can't be had are
    /// brought in, as a store would.
    pub(super) fn patch(&mut self, space: &Space, span: Span, word: usize) -> Expect {
        for at in span.pages() {
            if let Err(refusal) = self.refer_to_store(space, at) {
                return Expect::Refused(refusal);
            }
        }
        for at in span.pages() {
            let page = &space[&at];
            self.stores += 1;
            match (page.writes, page.object) {
                (Writes::Object, Some((object, index))) => {
                    let mut contents = self.object_shows(object, index).expect("the page was had");
                    contents[word] = self.stores;
                    self.objects[object].store(index, contents);
                }
                _ => {
                    let mut contents = self.cells[page.cell].own.expect("the page was brought in");
                    contents[word] = self.stores;
                    self.cells[page.cell] = Cell::of(contents);
                }
            }
        }
        Expect::Done
    }

    fn refer_to_store(&mut self, space: &Space, at: u64) -> Result<(), Refusal> {
        let contents = self.refer(space, at, 2)?;
        let page = &space[&at];
        if !self.make_hole_storable(page) {
            return Err(Refusal::NoSpace);
        }
        if page.writes == Writes::Cell {
            self.cells[page.cell] = Cell::of(contents);
        }
        Ok(())
    }

    /// What the page shows, if a debugger may get at it.
    fn refer(&mut self, space: &Space, at: u64, right: Rights) -> Result<Contents, Refusal> {
        let page = space.get(&at).ok_or(Refusal::NoMapping)?;
        let is_own = right != 2 || page.writes == Writes::Cell;
        if page.rights & right == 0 && !(is_own && page.max & right != 0) {
            return Err(Refusal::Protection);
        }
        let contents = self.page_shows(page)?;
        self.make_shown(space, page)?;
        Ok(contents)
    }
}
