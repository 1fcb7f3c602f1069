//! What operations on a space of addresses mean.

use super::*;

impl Model {
    pub(super) fn apply_to(&mut self, space: &mut Space, op: &Op) -> Expect {
        match *op {
            Op::Map { at, len, back, rights, inherit, .. } => {
                let Some(page) = self.new_page(back, rights, inherit) else { return Expect::Skip };
                self.map(space, at, len, page)
            }
            Op::Unmap { span, .. } => {
                space.retain(|page, _| !span.pages().contains(page));
                Expect::Done
            }
            Op::Protect { span, rights, .. } => protect(space, span, rights),
            Op::Inherit { span, inherit, .. } => {
                on_whole(space, span, |page| page.inherit = inherit)
            }
            Op::Advise { span, advice, .. } => on_whole(space, span, |page| page.advice = advice),
            Op::Discard { span, .. } => self.discard(space, span),
            Op::Remap { span, new_len, at, .. } => self.remap(space, span, new_len, at),
            Op::RemapKeep { span, at, .. } => self.remap_and_keep(space, span, at),
            Op::Fork { child, .. } => {
                self.spaces[child] = Some(self.child_of(space));
                Expect::Done
            }
            Op::Clear { .. } | Op::Exit { .. } => {
                space.clear();
                Expect::Done
            }
            Op::Wire { span, .. } => self.wire(space, span),
            Op::WireTouched { span, .. } => on_whole(space, span, |page| page.wired = true),
            Op::Unwire { span, .. } => on_whole(space, span, |page| page.wired = false),
            Op::Pin { p, span, access, .. } => self.pin(space, p, span, access),
            Op::Inspect { span, .. } => self.inspect(space, span),
            Op::Patch { span, word, .. } => self.patch(space, span, word),
            Op::Loan { l, span, .. } => self.loan(space, l, span),
            Op::Give { l, span, .. } => match self.loan(space, l, span) {
                Expect::Done => {
                    // What is locked stays.
                    let _ = self.discard(space, span);
                    Expect::Done
                }
                refused => refused,
            },
            Op::PageOutRange { .. } | Op::Cool { .. } => Expect::Done,
            Op::Read { page, .. } => self.use_page(space, page, 1),
            Op::Execute { page, .. } => self.use_page(space, page, 4),
            Op::Write { page, word, .. } => self.store(space, page, word),
            _ => unreachable!("{op:?} concerns no space"),
        }
    }

    fn new_page(&self, back: Back, rights: Rights, inherit: Option<Inh>) -> Option<Page> {
        let (object, writes) = match back {
            Back::Zero => (None, Writes::Cell),
            Back::Nothing => {
                return Some(Page { rights: 0, max: 0, inherit: Inh::None, ..NOTHING })
            }
            Back::Private(o, first) => (Some((self.slots[o]?, first)), Writes::Cell),
            Back::Shared(o, first) => (Some((self.slots[o]?, first)), Writes::Object),
        };
        let own = if writes == Writes::Cell { Inh::Copy } else { Inh::Share };
        let rom = object.is_some_and(|(o, _)| self.objects[o].kind == Kind::Rom);
        let max = if rom && writes == Writes::Object { 5 } else { 7 };
        Some(Page { rights, max, inherit: inherit.unwrap_or(own), writes, object, ..NOTHING })
    }

    fn map(&mut self, space: &mut Space, at: At, len: u64, page: Page) -> Expect {
        let free =
            |from: u64| from + len <= WINDOW && (from..from + len).all(|p| !space.contains_key(&p));
        let from = match at {
            _ if len == 0 || page.rights & !page.max != 0 => return Expect::Invalid,
            At::Fixed(from) | At::Free(from) if from + len > WINDOW => {
                return Expect::Invalid;
            }
            At::Hint(from) | At::Free(from) if free(from) => from,
            At::Fixed(from) => from,
            At::Free(_) => return Expect::NoSpace,
            At::Any | At::Hint(_) => match highest_free(space, len) {
                Some(from) => from,
                None => return Expect::NoSpace,
            },
        };
        self.fill(space, from, len, page);
        Expect::Placed(from)
    }

    /// Maps `len` pages that follow one another, with empty cells.
    fn fill(&mut self, space: &mut Space, from: u64, len: u64, first: Page) {
        for i in 0..len {
            let cell = self.new_cell(Cell::default());
            let object = first.object.map(|(o, index)| (o, index + i));
            space.insert(from + i, Page { cell, object, ..first });
        }
    }

    pub(super) fn new_cell(&mut self, cell: Cell) -> usize {
        self.cells.push(cell);
        self.cells.len() - 1
    }

    pub(super) fn child_of(&mut self, space: &Space) -> Space {
        let mut child = Space::new();
        for (&at, page) in space {
            let mut page = Page { wired: false, ..*page };
            match page.inherit {
                Inh::None => continue,
                Inh::Share => {}
                Inh::Copy => {
                    self.lose_pins(|is| is == Identity::Cell(page.cell));
                    let own = if page.writes == Writes::Cell {
                        self.cells[page.cell]
                    } else {
                        Cell::default()
                    };
                    page.cell = self.new_cell(own);
                    page.writes = Writes::Cell;
                }
                Inh::Zero => {
                    page.cell = self.new_cell(Cell::default());
                    page.object = None;
                    page.writes = Writes::Cell;
                }
            }
            child.insert(at, page);
        }
        child
    }

    /// Forgets private contents, but for those that another space shares by inheritance.
    fn discard(&mut self, space: &Space, span: Span) -> Expect {
        if span.pages().filter_map(|at| space.get(&at)).any(|page| page.wired) {
            return Expect::Access;
        }
        for page in span.pages().filter_map(|at| space.get(&at)) {
            // The space itself isn't among the others, but may have the page twice.
            let others = self.all_pages().chain(space.values());
            let same =
                others.filter(|other| other.cell == page.cell && other.writes == Writes::Cell);
            let shared = same.count() > 1;
            if page.writes == Writes::Cell && !shared {
                self.lose_pins(|is| is == Identity::Cell(page.cell));
                self.cells[page.cell] = Cell::default();
            }
        }
        if covers(space, span) {
            Expect::Done
        } else {
            Expect::NoMapping
        }
    }

    /// The pages move with everything that is theirs; growth continues the last page. A shrinking
    /// call drops its tail first, whatever comes of the rest. `Hint` stands for "stay", `Any` for
    /// "may move".
    fn remap(&mut self, space: &mut Space, span: Span, new_len: u64, at: At) -> Expect {
        let Span(from, len) = span;
        let inside = |to: u64| to + new_len <= WINDOW && (to + new_len <= from || from + len <= to);
        let fixed = match at {
            At::Fixed(to) | At::Free(to) => Some(to),
            At::Any | At::Hint(_) => None,
        };
        match fixed {
            _ if len == 0 || new_len == 0 => return Expect::Invalid,
            _ if new_len > WINDOW => return Expect::NoSpace,
            Some(to) if !inside(to) => return Expect::Invalid,
            _ => {}
        }
        space.retain(|page, _| !(from + new_len..from + len).contains(page));
        let kept = Span(from, len.min(new_len));
        if !covers(space, kept) {
            return Expect::NoMapping;
        }
        let tail = from + kept.1..from + new_len;
        let fits = tail.end <= WINDOW && tail.clone().all(|page| !space.contains_key(&page));
        // What may have to be brought in.
        let (to, span) = match fixed {
            None if fits => (from, Span(from + kept.1, new_len - kept.1)),
            None if at != At::Any => return Expect::NoSpace,
            _ => match fixed.or_else(|| highest_free(space, new_len)) {
                None => return Expect::NoSpace,
                Some(to) => {
                    shift(space, kept, to, new_len);
                    (to, Span(to, new_len))
                }
            },
        };
        let last = space[&(to + kept.1 - 1)];
        let object = last.object.map(|(o, index)| (o, index + 1));
        self.fill(space, to + kept.1, new_len - kept.1, Page { object, ..last });
        self.bring_in_wired(space, span);
        Expect::Placed(to)
    }

    /// The pages move with what is theirs; where they were, the same pages are without it. `Any`
    /// and `Hint` stand for "where there is room".
    fn remap_and_keep(&mut self, space: &mut Space, span: Span, at: At) -> Expect {
        let Span(from, len) = span;
        let to = match at {
            At::Fixed(to) | At::Free(to) => Some(to),
            At::Any | At::Hint(_) => None,
        };
        let inside = |to: u64| to + len <= WINDOW && (to + len <= from || from + len <= to);
        if len == 0 || to.is_some_and(|to| !inside(to)) {
            return Expect::Invalid;
        }
        if !covers(space, span) {
            return Expect::NoMapping;
        }
        let Some(to) = to.or_else(|| highest_free(space, len)) else { return Expect::NoSpace };
        let kept: Vec<(u64, Page)> = span.pages().map(|page| (page, space[&page])).collect();
        shift(space, span, to, len);
        for (at, page) in kept {
            let cell = self.new_cell(Cell::default());
            space.insert(at, Page { cell, wired: false, ..page });
        }
        self.bring_in_wired(space, Span(to, len));
        Expect::Placed(to)
    }

    /// Brings in what is locked; if a page can't be had, nothing of it is locked any more.
    fn bring_in_wired(&mut self, space: &mut Space, span: Span) {
        let wired: Vec<u64> = span.pages().filter(|at| space[at].wired).collect();
        if wired.iter().any(|at| self.bring_in(space, &space[at]).is_err()) {
            on_all(space, span, |page| page.wired = false);
        }
    }

    /// Brings in every page as its first use would, so private memory that may be written gets
    /// contents of its own. The first page that can't be had takes the marks back, but not the
    /// copies.
    fn wire(&mut self, space: &mut Space, span: Span) -> Expect {
        if !covers(space, span) {
            return Expect::NoMapping;
        }
        let fresh: Vec<u64> = span.pages().filter(|at| !space[at].wired).collect();
        if fresh.iter().any(|at| self.bring_in(space, &space[at]).is_err()) {
            return Expect::Fault;
        }
        on_all(space, span, |page| page.wired = true)
    }

    /// What a store's fault does before the store: the page gets contents of its own if it may be
    /// written.
    pub fn prepare_store(&mut self, s: usize, page: u64) {
        let Some(space) = self.spaces[s].take() else { return };
        if let Some(at) = space.get(&page) {
            // Where it can't be had, the fault is refused and nothing changes.
            let _ = self.bring_in(&space, at);
        }
        self.spaces[s] = Some(space);
    }

    /// Gives a page that may be written contents of its own, as its first store would.
    pub(super) fn bring_in(&mut self, space: &Space, page: &Page) -> Result<(), Refusal> {
        if page.rights != 0 {
            let contents = self.page_shows(page)?;
            self.make_shown(space, page)?;
            if page.rights & 2 != 0 && page.writes == Writes::Cell {
                self.cells[page.cell] = Cell::of(contents);
            }
        }
        Ok(())
    }

    pub(super) fn access(&self, space: &Space, page: u64, right: Rights) -> Expect {
        match space.get(&page) {
            None => Expect::Refused(Refusal::NoMapping),
            Some(at) if at.rights & right == 0 => Expect::Refused(Refusal::Protection),
            Some(at) => self.page_shows(at).map_or_else(Expect::Refused, Expect::Sees),
        }
    }

    /// An access, which may have an object's page made.
    pub(super) fn use_page(&mut self, space: &Space, page: u64, right: Rights) -> Expect {
        match self.access(space, page, right) {
            Expect::Sees(contents) => match self.make_shown(space, &space[&page]) {
                Ok(()) => Expect::Sees(contents),
                Err(refusal) => Expect::Refused(refusal),
            },
            refused => refused,
        }
    }

    /// Has the object below a page make what shows there, unless that has contents of its own.
    pub(super) fn make_shown(&mut self, space: &Space, at: &Page) -> Result<(), Refusal> {
        match self.identity_of(at) {
            Identity::Object(object, index) if !self.make(space, object, index) => {
                Err(Refusal::NoSpace)
            }
            _ => Ok(()),
        }
    }

    /// Has room made where a store would meet a hole; says whether there is.
    pub(super) fn make_hole_storable(&mut self, at: &Page) -> bool {
        let (Writes::Object, Some((object, index))) = (at.writes, at.object) else { return true };
        let has_room = self.has_room(object, index);
        if has_room {
            self.fill_hole(object, index);
        }
        has_room
    }

    fn store(&mut self, space: &Space, page: u64, word: usize) -> Expect {
        match self.use_page(space, page, 2) {
            Expect::Sees(mut contents) => {
                let at = space[&page];
                if !self.make_hole_storable(&at) {
                    return Expect::Refused(Refusal::NoSpace);
                }
                self.stores += 1;
                contents[word] = self.stores;
                match (at.writes, at.object) {
                    (Writes::Object, Some((object, index))) => {
                        self.objects[object].store(index, contents);
                    }
                    _ => self.cells[at.cell] = Cell::of(contents),
                }
                Expect::Done
            }
            refused => refused,
        }
    }
}

impl Page {
    /// A page of a new private mapping of no object, as a transfer makes it.
    pub(super) fn private(cell: usize) -> Page {
        Page { rights: 3, cell, ..NOTHING }
    }
}

/// A page of zeroes, with no rights.
const NOTHING: Page = Page {
    rights: 0,
    max: 7,
    inherit: Inh::Copy,
    writes: Writes::Cell,
    cell: 0,
    object: None,
    wired: false,
    advice: 0,
};

fn protect(space: &mut Space, span: Span, rights: Rights) -> Expect {
    if !covers(space, span) {
        return Expect::NoMapping;
    }
    if span.pages().any(|at| rights & !space[&at].max != 0) {
        return Expect::Access;
    }
    on_all(space, span, |page| page.rights = rights)
}

fn covers(space: &Space, span: Span) -> bool {
    span.pages().all(|at| space.contains_key(&at))
}

/// Changes every page of the span if all are mapped.
fn on_whole(space: &mut Space, span: Span, change: impl Fn(&mut Page)) -> Expect {
    if covers(space, span) {
        on_all(space, span, change)
    } else {
        Expect::NoMapping
    }
}

/// Changes every page of the span that is mapped.
fn on_all(space: &mut Space, span: Span, change: impl Fn(&mut Page)) -> Expect {
    for at in span.pages() {
        if let Some(page) = space.get_mut(&at) {
            change(page);
        }
    }
    Expect::Done
}

/// Moves pages, over whatever is at their new place.
fn shift(space: &mut Space, span: Span, to: u64, new_len: u64) {
    let moved: Vec<Page> = span.pages().filter_map(|page| space.remove(&page)).collect();
    space.retain(|page, _| !(to..to + new_len).contains(page));
    space.extend(moved.into_iter().enumerate().map(|(i, page)| (to + i as u64, page)));
}

/// Where a mapping that may lie anywhere is put: as high as it fits.
pub(super) fn highest_free(space: &Space, len: u64) -> Option<u64> {
    (0..=WINDOW.checked_sub(len)?)
        .rev()
        .find(|&from| (from..from + len).all(|p| !space.contains_key(&p)))
}
