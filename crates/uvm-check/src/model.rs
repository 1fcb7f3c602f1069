//! The reference model: what memory shows, by the plainest means.
//!
//! ```text
//!   space: page of addresses -> Page { rights, inherit, writes, cell, object }
//!                                                             |       |
//!                       private contents, if written  cells <-+       +-> objects: index -> contents
//! ```
//!
//! A mapped page of private memory has a *cell*: empty until the first store, then the bytes of its own. An empty
//! cell shows the object's page below, or zeroes. To share by inheritance is to name the same cell; to copy is to
//! make a new cell with the same contents, at once. There is nothing to defer, so nothing to get wrong.
//!
//! Contents are [`WORDS`] words of a page; every store writes a number that was never stored before.

use std::collections::BTreeMap;

use crate::op::{At, Back, Inh, Kind, Op, Rights, Span, OBJECTS, SPACES, WINDOW, WORDS};

/// What a page shows.
pub type Contents = [u64; WORDS];

/// An object's file page that can't be read.
pub const BAD_PAGE: u64 = 5;

/// Why an access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Nothing is mapped.
    NoMapping,
    /// Not for this access.
    Protection,
    /// Past the object's end.
    Bus,
    /// The object can't be read.
    Io,
}

/// Where stores go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// To the object.
    Object,
    /// To the cell.
    Cell,
}

/// A page of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// What accesses may do.
    pub rights: Rights,
    /// The most that they may ever do.
    pub max: Rights,
    /// What a child gets.
    pub inherit: Inh,
    /// Where stores go.
    pub writes: Writes,
    /// The private contents' name.
    pub cell: usize,
    /// The object below, and the index of its page.
    pub object: Option<(usize, u64)>,
    /// Whether it stays resident.
    pub wired: bool,
}

/// What a store to one address changes: two addresses with one identity show the same bytes for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Identity {
    /// A cell's.
    Cell(usize),
    /// An object's page.
    Object(usize, u64),
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Pages it is long.
    pub len: u64,
    /// What was stored, by index.
    pub pages: BTreeMap<u64, Contents>,
}

/// The addresses of a space.
pub type Space = BTreeMap<u64, Page>;

/// What an operation is expected to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The operation names something that isn't there: the world doesn't run it either.
    Skip,
    /// It works.
    Done,
    /// It works, and says this page of the window.
    Placed(u64),
    /// No room, or the place is taken.
    NoSpace,
    /// Part of the range isn't mapped: nothing was done, but for `Discard`, which did the rest.
    NoMapping,
    /// More rights than the mapping's most, and nothing was done.
    Access,
    /// A page that wiring needs can't be had, and nothing is wired that was not.
    Fault,
    /// Arguments that can't be.
    Invalid,
    /// The access sees this.
    Sees(Contents),
    /// The access is refused.
    Refused(Refusal),
}

/// The whole world, as it ought to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    /// Spaces by slot.
    pub spaces: [Option<Space>; SPACES],
    /// All objects ever made; slots name the latest.
    pub objects: Vec<Object>,
    /// Which object a slot names.
    pub slots: [Option<usize>; OBJECTS],
    cells: Vec<Option<Contents>>,
    stores: u64,
}

impl Model {
    /// What an address shows, rights aside.
    ///
    /// # Errors
    /// [`Refusal`], but for `Protection`.
    pub fn shows(&self, s: usize, page: u64) -> Result<Contents, Refusal> {
        self.page(s, page).map_or(Err(Refusal::NoMapping), |at| self.page_shows(at))
    }

    fn page_shows(&self, at: &Page) -> Result<Contents, Refusal> {
        match (at.writes, self.cells[at.cell], at.object) {
            (Writes::Cell, Some(own), _) => Ok(own),
            (_, _, None) => Ok([0; WORDS]),
            (_, _, Some((object, index))) => self.object_shows(object, index),
        }
    }

    /// What an object's page shows.
    ///
    /// # Errors
    /// `Bus` past its end, `Io` if it can't be read.
    pub fn object_shows(&self, object: usize, index: u64) -> Result<Contents, Refusal> {
        let o = &self.objects[object];
        match (o.pages.get(&index), o.kind) {
            _ if index >= o.len => Err(Refusal::Bus),
            (Some(contents), _) => Ok(*contents),
            (None, Kind::Anon) => Ok([0; WORDS]),
            (None, Kind::File) if index == BAD_PAGE => Err(Refusal::Io),
            (None, Kind::File) => Ok(file_contents(index)),
        }
    }

    /// What a load from an address ought to do.
    pub fn reads(&self, s: usize, page: u64) -> Expect {
        self.spaces[s].as_ref().map_or(Expect::Skip, |space| self.access(space, page, 1))
    }

    /// The page of addresses, if it is mapped.
    pub fn page(&self, s: usize, page: u64) -> Option<&Page> {
        self.spaces[s].as_ref()?.get(&page)
    }

    /// What a store to the address changes, once it has been made.
    pub fn identity(&self, s: usize, page: u64) -> Option<Identity> {
        let at = self.page(s, page)?;
        match (at.writes, at.object) {
            (Writes::Object, Some((object, index))) => Some(Identity::Object(object, index)),
            (Writes::Cell, Some((object, index))) if self.cells[at.cell].is_none() => {
                Some(Identity::Object(object, index))
            }
            _ => Some(Identity::Cell(at.cell)),
        }
    }

    /// Whether a store to the address goes where a load comes from.
    pub fn stores_in_place(&self, s: usize, page: u64) -> bool {
        let at = self.page(s, page);
        at.is_some_and(|at| at.writes == Writes::Object || self.cells[at.cell].is_some())
    }

    /// The number that the next store writes.
    pub fn next_store(&self) -> u64 {
        self.stores + 1
    }

    /// Runs an operation and says what the system ought to answer.
    pub fn apply(&mut self, op: &Op) -> Expect {
        match *op {
            Op::Spawn { s } | Op::Fork { child: s, .. } if self.spaces[s].is_some() => Expect::Skip,
            Op::Spawn { s } => {
                self.spaces[s] = Some(Space::new());
                Expect::Done
            }
            Op::NewObject { o, kind, len } => self.new_object(o, kind, len),
            Op::Truncate { o, len } => self.truncate(o, len),
            Op::ObjectRead { o, page } => match self.slots[o] {
                None => Expect::Skip,
                Some(object) => self.object_shows(object, page).map_or_else(Expect::Refused, Expect::Sees),
            },
            Op::ObjectWrite { o, page, word } => self.object_write(o, page, word),
            Op::Sync { o } => match self.slots[o] {
                Some(object) if self.objects[object].kind == Kind::File => Expect::Done,
                _ => Expect::Skip,
            },
            Op::Detach { o } => match self.slots[o].take() {
                None => Expect::Skip,
                Some(_) => Expect::Done,
            },
            Op::Forget => Expect::Done,
            _ => self.apply_to_space(op),
        }
    }

    fn apply_to_space(&mut self, op: &Op) -> Expect {
        let s = match *op {
            Op::Map { s, .. } | Op::Unmap { s, .. } | Op::Protect { s, .. } | Op::Inherit { s, .. } => s,
            Op::Advise { s, .. } | Op::Discard { s, .. } | Op::Remap { s, .. } | Op::Fork { s, .. } => s,
            Op::Clear { s } | Op::Exit { s } | Op::Wire { s, .. } | Op::Unwire { s, .. } => s,
            Op::Read { s, .. } | Op::Write { s, .. } | Op::Execute { s, .. } => s,
            _ => unreachable!("{op:?} concerns no space"),
        };
        let Some(mut space) = self.spaces[s].take() else { return Expect::Skip };
        let expect = self.apply_to(&mut space, op);
        if !matches!(op, Op::Exit { .. }) {
            self.spaces[s] = Some(space);
        }
        expect
    }

    fn apply_to(&mut self, space: &mut Space, op: &Op) -> Expect {
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
            Op::Inherit { span, inherit, .. } => on_whole(space, span, |page| page.inherit = inherit),
            Op::Advise { span, .. } => on_whole(space, span, |_| ()),
            Op::Discard { span, .. } => self.discard(space, span),
            Op::Remap { span, new_len, at, .. } => self.remap(space, span, new_len, at),
            Op::Fork { child, .. } => {
                self.spaces[child] = Some(self.child_of(space));
                Expect::Done
            }
            Op::Clear { .. } | Op::Exit { .. } => {
                space.clear();
                Expect::Done
            }
            Op::Wire { span, .. } => self.wire(space, span),
            Op::Unwire { span, .. } => on_whole(space, span, |page| page.wired = false),
            Op::Read { page, .. } => self.access(space, page, 1),
            Op::Execute { page, .. } => self.access(space, page, 4),
            Op::Write { page, word, .. } => self.store(space, page, word),
            _ => unreachable!("{op:?} concerns no space"),
        }
    }

    fn new_object(&mut self, o: usize, kind: Kind, len: u64) -> Expect {
        if self.slots[o].is_some() {
            return Expect::Skip;
        }
        self.slots[o] = Some(self.objects.len());
        self.objects.push(Object { kind, len, pages: BTreeMap::new() });
        Expect::Done
    }

    fn new_page(&self, back: Back, rights: Rights, inherit: Option<Inh>) -> Option<Page> {
        let (object, writes) = match back {
            Back::Zero => (None, Writes::Cell),
            Back::Private(o, first) => (Some((self.slots[o]?, first)), Writes::Cell),
            Back::Shared(o, first) => (Some((self.slots[o]?, first)), Writes::Object),
        };
        let own = if writes == Writes::Cell { Inh::Copy } else { Inh::Share };
        Some(Page { rights, max: 7, inherit: inherit.unwrap_or(own), writes, cell: 0, object, wired: false })
    }

    fn map(&mut self, space: &mut Space, at: At, len: u64, page: Page) -> Expect {
        let free = |from: u64| from + len <= WINDOW && (from..from + len).all(|p| !space.contains_key(&p));
        let from = match at {
            _ if len == 0 => return Expect::Invalid,
            At::Fixed(from) | At::Free(from) if from + len > WINDOW => return Expect::Invalid,
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
            let cell = self.new_cell(None);
            let object = first.object.map(|(o, index)| (o, index + i));
            space.insert(from + i, Page { cell, object, ..first });
        }
    }

    fn new_cell(&mut self, contents: Option<Contents>) -> usize {
        self.cells.push(contents);
        self.cells.len() - 1
    }

    fn child_of(&mut self, space: &Space) -> Space {
        let mut child = Space::new();
        for (&at, page) in space {
            let mut page = Page { wired: false, ..*page };
            match page.inherit {
                Inh::None => continue,
                Inh::Share => {}
                Inh::Copy => {
                    let own = (page.writes == Writes::Cell).then(|| self.cells[page.cell]).flatten();
                    page.cell = self.new_cell(own);
                    page.writes = Writes::Cell;
                }
                Inh::Zero => {
                    page.cell = self.new_cell(None);
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
            let others = self.spaces.iter().flatten().flat_map(|other| other.values());
            let shared =
                others.filter(|other| other.cell == page.cell).any(|other| other.writes == Writes::Cell);
            if page.writes == Writes::Cell && !shared {
                self.cells[page.cell] = None;
            }
        }
        if covers(space, span) {
            Expect::Done
        } else {
            Expect::NoMapping
        }
    }

    /// The pages move with everything that is theirs; growth continues the last page. A shrinking call drops its tail
    /// first, whatever comes of the rest. `Hint` stands for "stay", `Any` for "may move".
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
        let (to, wired) = match fixed {
            None if fits => (from, space[&from].wired),
            None if at != At::Any => return Expect::NoSpace,
            _ => match fixed.or_else(|| highest_free(space, new_len)) {
                None => return Expect::NoSpace,
                Some(to) => (to, shift(space, kept, to, new_len)),
            },
        };
        let last = space[&(to + kept.1 - 1)];
        let object = last.object.map(|(o, index)| (o, index + 1));
        self.fill(space, to + kept.1, new_len - kept.1, Page { object, wired: false, ..last });
        if wired {
            self.wire(space, Span(to, new_len));
        }
        Expect::Placed(to)
    }

    /// Brings in every page as its first use would, so private memory that may be written gets contents of its own.
    /// The first page that can't be had takes the marks back, but not the copies.
    fn wire(&mut self, space: &mut Space, span: Span) -> Expect {
        if !covers(space, span) {
            return Expect::NoMapping;
        }
        let fresh: Vec<u64> = span.pages().filter(|at| !space[at].wired).collect();
        if fresh.iter().any(|at| self.bring_in(&space[at]).is_err()) {
            return Expect::Fault;
        }
        on_all(space, span, |page| page.wired = true)
    }

    /// Gives a page that may be written contents of its own, as its first store would.
    fn bring_in(&mut self, page: &Page) -> Result<(), Refusal> {
        if page.rights != 0 {
            let contents = self.page_shows(page)?;
            if page.rights & 2 != 0 && page.writes == Writes::Cell {
                self.cells[page.cell] = Some(contents);
            }
        }
        Ok(())
    }

    fn access(&self, space: &Space, page: u64, right: Rights) -> Expect {
        match space.get(&page) {
            None => Expect::Refused(Refusal::NoMapping),
            Some(at) if at.rights & right == 0 => Expect::Refused(Refusal::Protection),
            Some(at) => self.page_shows(at).map_or_else(Expect::Refused, Expect::Sees),
        }
    }

    fn store(&mut self, space: &Space, page: u64, word: usize) -> Expect {
        match self.access(space, page, 2) {
            Expect::Sees(mut contents) => {
                self.stores += 1;
                contents[word] = self.stores;
                let at = space[&page];
                match (at.writes, at.object) {
                    (Writes::Object, Some((object, index))) => {
                        self.objects[object].pages.insert(index, contents);
                    }
                    _ => self.cells[at.cell] = Some(contents),
                }
                Expect::Done
            }
            refused => refused,
        }
    }

    fn truncate(&mut self, o: usize, len: u64) -> Expect {
        let Some(object) = self.slots[o] else { return Expect::Skip };
        let object = &mut self.objects[object];
        object.len = len;
        object.pages.split_off(&len);
        Expect::Done
    }

    fn object_write(&mut self, o: usize, page: u64, word: usize) -> Expect {
        let Some(object) = self.slots[o] else { return Expect::Skip };
        match self.object_shows(object, page) {
            Err(refusal) => Expect::Refused(refusal),
            Ok(mut contents) => {
                self.stores += 1;
                contents[word] = self.stores;
                self.objects[object].pages.insert(page, contents);
                Expect::Done
            }
        }
    }
}

/// What a file shows before anything is stored.
pub fn file_contents(index: u64) -> Contents {
    std::array::from_fn(|word| 0xf11e_0000_0000_0000 | index << 8 | word as u64)
}

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

/// Moves pages, over whatever is at their new place, and says whether any was wired; none is after.
fn shift(space: &mut Space, span: Span, to: u64, new_len: u64) -> bool {
    let moved: Vec<Page> = span.pages().filter_map(|page| space.remove(&page)).collect();
    space.retain(|page, _| !(to..to + new_len).contains(page));
    let wired = moved.iter().any(|page| page.wired);
    space.extend(
        moved.into_iter().enumerate().map(|(i, page)| (to + i as u64, Page { wired: false, ..page })),
    );
    wired
}

/// Where a mapping that may lie anywhere is put: as high as it fits.
fn highest_free(space: &Space, len: u64) -> Option<u64> {
    (0..=WINDOW.checked_sub(len)?).rev().find(|&from| (from..from + len).all(|p| !space.contains_key(&p)))
}
