//! The reference model: what memory shows, by the plainest means.
//!
//! ```text
//!   space: page of addresses -> Page { rights, inherit, writes, cell, object }
//!                                                             |       |
//!                       private contents, if written  cells <-+       +-> objects: index -> contents
//! ```
//!
//! A mapped page of private memory has a *cell*: empty until the first store, then the bytes of its
//! own. An empty cell shows the object's page below, or zeroes. To share by inheritance is to name
//! the same cell; to copy is to make a new cell with the same contents, at once. There is nothing
//! to defer, so nothing to get wrong.
//!
//! Where pages are, in memory or on a device, makes no difference to what is shown: paging is no
//! part of the model. Only a device's failure is: see `loss`.
//!
//! Contents are [`WORDS`] words of a page; every store writes a number that was never stored
//! before.

mod debugger;
mod loan;
mod loss;
mod object;
pub mod passing;
mod pin;
mod space;

pub use pin::Pins;

use std::collections::{BTreeMap, BTreeSet};

use crate::op::{
    At, Back, Inh, Kind, Op, Rights, Span, Way, CHIPS, DEVICES, LOANS, OBJECTS, PINS, RANGES, RUN,
    RUNS, SPACES, WINDOW, WORDS,
};

/// What a page shows.
pub type Contents = [u64; WORDS];

/// Cells at which those that nothing names are forgotten; more than all pages and pins can name.
const CELLS: usize = 1000;

/// Threads that may copy at once.
pub const COPIES: usize = 3;

/// An object's file page that can't be read.
pub const BAD_PAGE: u64 = 5;

/// Pages that the disk under all files has room for at first, where these have holes.
pub const ROOM: u64 = 2;

/// Pages that objects within the quota may have at first.
pub const QUOTA: u64 = 6;

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
    /// It would be stored where a file has a hole, and the disk is full; or the quota has no page
    /// left for an object.
    NoSpace,
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
    /// How it will be used: the number of an advice.
    pub advice: u8,
}

/// What a store to one address changes: two addresses with one identity show the same bytes for
/// ever.
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
    /// What became of pages that a device failed to read, by index.
    pub fates: BTreeMap<u64, Fate>,
    /// Pages that a file has no room for on its disk: they show zeroes.
    pub holes: BTreeSet<u64>,
    /// Pages that an object within the quota has, since a program has used them.
    pub made: BTreeSet<u64>,
}

/// Whether contents can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// They can.
    #[default]
    Sure,
    /// A device failed to read something that looks like them. The next access tells.
    Doubtful,
    /// They can't, ever.
    Lost,
}

/// Private contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cell {
    own: Option<Contents>,
    fate: Fate,
}

impl Cell {
    fn of(contents: Contents) -> Cell {
        Cell { own: Some(contents), fate: Fate::Sure }
    }
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
    /// Pages can't be put there.
    Unsuitable,
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Spaces by slot.
    pub spaces: [Option<Space>; SPACES],
    /// All objects ever made; slots name the latest.
    pub objects: Vec<Object>,
    /// Which object a slot names.
    pub slots: [Option<usize>; OBJECTS],
    /// Which swap devices are on.
    pub swaps: [bool; DEVICES],
    /// What devices have pinned.
    pub pins: [Option<Pins>; PINS],
    /// What the kernel has on loan: bytes that never change.
    pub loans: [Option<Vec<Contents>>; LOANS],
    /// Ranges that belong to no space at the moment.
    pub ranges: [Option<passing::Range>; RANGES],
    /// What threads are copying at the moment.
    pub copies: [Option<passing::Copying>; COPIES],
    /// Pages that the disk under all files has room for.
    pub room: u64,
    /// Pages that objects within the quota may have.
    pub quota: u64,
    cells: Vec<Cell>,
    stores: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            spaces: [const { None }; SPACES],
            objects: Vec::new(),
            slots: [None; OBJECTS],
            swaps: [false; DEVICES],
            pins: [const { None }; PINS],
            loans: [const { None }; LOANS],
            ranges: [const { None }; RANGES],
            copies: [const { None }; COPIES],
            room: ROOM,
            quota: QUOTA,
            cells: Vec::new(),
            stores: 0,
        }
    }
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
            (Writes::Cell, Cell { own: Some(_), fate: Fate::Lost }, _) => Err(Refusal::Io),
            (Writes::Cell, Cell { own: Some(own), .. }, _) => Ok(own),
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
            _ if o.fates.get(&index) == Some(&Fate::Lost) => Err(Refusal::Io),
            (Some(contents), _) => Ok(*contents),
            (None, Kind::Anon | Kind::Within) => Ok([0; WORDS]),
            (None, Kind::File) if index == BAD_PAGE => Err(Refusal::Io),
            (None, Kind::File | Kind::Device) => Ok(file_contents(index)),
            (None, Kind::Rom) => Ok(file_contents(index % CHIPS)),
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
        self.page(s, page).map(|at| self.identity_of(at))
    }

    fn identity_of(&self, at: &Page) -> Identity {
        match at.object {
            Some((object, index))
                if at.writes == Writes::Object || self.cells[at.cell].own.is_none() =>
            {
                let chips = if self.objects[object].kind == Kind::Rom { CHIPS } else { u64::MAX };
                Identity::Object(object, index % chips)
            }
            _ => Identity::Cell(at.cell),
        }
    }

    /// Whether a store to the address goes where a load comes from.
    pub fn stores_in_place(&self, s: usize, page: u64) -> bool {
        let at = self.page(s, page);
        at.is_some_and(|at| at.writes == Writes::Object || self.cells[at.cell].own.is_some())
    }

    /// Whether a store to the address would meet a file's hole.
    pub fn stores_to_hole(&self, s: usize, page: u64) -> bool {
        let at = self.page(s, page).filter(|at| at.writes == Writes::Object);
        at.and_then(|at| at.object)
            .is_some_and(|(object, index)| self.objects[object].holes.contains(&index))
    }

    /// The number that the next store writes.
    pub fn next_store(&self) -> u64 {
        self.stores + 1
    }

    /// Has the next store write this number, which is not zero: where operations have no order yet,
    /// each has a number of its own.
    pub fn number_next_store(&mut self, number: u64) {
        self.stores = number - 1;
    }

    /// Runs an operation and says what the system ought to answer.
    pub fn apply(&mut self, op: &Op) -> Expect {
        if self.cells.len() > CELLS {
            self.sweep();
        }
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
                Some(object) => {
                    self.object_shows(object, page).map_or_else(Expect::Refused, Expect::Sees)
                }
            },
            Op::ObjectWrite { o, page, word } => self.object_write(o, page, word),
            Op::Sync { o } | Op::Clean { o, .. } => match self.slots[o] {
                Some(object) if self.objects[object].kind == Kind::File => Expect::Done,
                _ => Expect::Skip,
            },
            Op::Punch { o, span } => self.punch(o, span),
            Op::Room { n } => {
                self.room = n;
                Expect::Done
            }
            Op::Quota { n } => {
                self.quota = n;
                Expect::Done
            }
            Op::Attach { o, to } if self.slots[to].is_none() && self.slots[o].is_some() => {
                self.slots[to] = self.slots[o];
                Expect::Done
            }
            Op::Attach { .. } => Expect::Skip,
            Op::Unpin { p, word } => self.unpin(p, word),
            Op::LoanObject { l, o, span } => self.loan_object(l, o, span),
            Op::LoanAgain { l, to } if self.loans[to].is_none() && self.loans[l].is_some() => {
                self.loans[to] = self.loans[l].clone();
                Expect::Done
            }
            Op::LoanAgain { .. } => Expect::Skip,
            Op::Pass { s, span, to, at, way } => self.pass(s, span, to, at, way),
            Op::Extract { r, s, span, way } => self.extract(r, s, span, way),
            Op::AttachRange { r, s, at } => self.attach_range(r, s, at),
            Op::DropRange { r } => self.ranges[r].take().map_or(Expect::Skip, |_| Expect::Done),
            Op::Transfer { l, s, page } => self.transfer(l, s, page),
            Op::TransferAnywhere { l, s } => self.transfer_anywhere(l, s),
            Op::Limit { r, rights } => self.limit(r, rights),
            Op::Return { l } => self.loans[l].take().map_or(Expect::Skip, |_| Expect::Done),
            Op::Detach { o } => match self.slots[o].take() {
                None => Expect::Skip,
                Some(_) => Expect::Done,
            },
            Op::Forget | Op::PageOut { .. } | Op::CompleteIo { .. } | Op::FailIo { .. } => {
                Expect::Done
            }
            Op::SwapOn { d } => self.switch(d, true),
            Op::SwapOff { d } => self.switch(d, false),
            Op::Zram { .. } => Expect::Done,
            _ => self.apply_to_space(op),
        }
    }

    fn switch(&mut self, d: usize, on: bool) -> Expect {
        if std::mem::replace(&mut self.swaps[d], on) == on {
            Expect::Skip
        } else {
            Expect::Done
        }
    }

    /// Different pages of private memory that are mapped.
    pub fn cells(&self) -> usize {
        let private = self.all_pages().filter(|at| at.writes == Writes::Cell);
        private.map(|at| at.cell).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// All pages of addresses that spaces, detached ranges and copies have.
    fn all_pages(&self) -> impl Iterator<Item = &Page> {
        let spaces = self.spaces.iter().flatten().flat_map(|space| space.values());
        let copies = self.copies.iter().flatten().flat_map(|copy| copy.range.pages.values());
        spaces
            .chain(self.ranges.iter().flatten().flat_map(|range| range.pages.values()))
            .chain(copies)
    }

    /// Forgets cells that nothing names any more, so that a list may be of any length.
    fn sweep(&mut self) {
        let mut cells = Vec::new();
        let mut names = BTreeMap::new();
        let old = std::mem::take(&mut self.cells);
        let mut rename = |name: &mut usize| {
            *name = *names.entry(*name).or_insert_with(|| {
                cells.push(old[*name]);
                cells.len() - 1
            });
        };
        self.spaces
            .iter_mut()
            .flatten()
            .flat_map(|space| space.values_mut())
            .for_each(|at| rename(&mut at.cell));
        let copies = self.copies.iter_mut().flatten().map(|copy| &mut copy.range);
        let ranges = self.ranges.iter_mut().flatten().chain(copies);
        ranges.flat_map(|range| range.pages.values_mut()).for_each(|at| rename(&mut at.cell));
        for is in self.pins.iter_mut().flatten().flat_map(|pins| pins.pages.iter_mut()).flatten() {
            if let Identity::Cell(cell) = is {
                rename(cell);
            }
        }
        self.cells = cells;
    }

    fn apply_to_space(&mut self, op: &Op) -> Expect {
        let s = match *op {
            Op::Map { s, .. }
            | Op::Unmap { s, .. }
            | Op::Protect { s, .. }
            | Op::Inherit { s, .. } => s,
            Op::Advise { s, .. }
            | Op::Discard { s, .. }
            | Op::Remap { s, .. }
            | Op::Fork { s, .. } => s,
            Op::RemapKeep { s, .. }
            | Op::Clear { s }
            | Op::Exit { s }
            | Op::Wire { s, .. }
            | Op::Unwire { s, .. } => s,
            Op::WireTouched { s, .. }
            | Op::Pin { s, .. }
            | Op::Loan { s, .. }
            | Op::Give { s, .. } => s,
            Op::PageOutRange { s, .. } | Op::Cool { s, .. } => s,
            Op::Inspect { s, .. } | Op::Patch { s, .. } => s,
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
}

/// What a file, a device or a ROM shows before anything is stored.
pub fn file_contents(index: u64) -> Contents {
    std::array::from_fn(|word| 0xf11e_0000_0000_0000 | index << 8 | word as u64)
}
