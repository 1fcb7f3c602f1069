//! Operations over a small world: a few spaces, a few objects, a window of addresses.
//!
//! Everything is a small number, so that any list makes sense: an operation on a space that isn't
//! there is skipped by model and system alike, which is what lets a shrinker drop any part of a
//! list. The debug output of a list is the Rust code that makes it.

/// Spaces that may live at once.
pub const SPACES: usize = 4;
/// Objects that may live at once.
pub const OBJECTS: usize = 4;
/// Swap devices.
pub const DEVICES: usize = 2;
/// Sets of pages that may be pinned at once.
pub const PINS: usize = 2;
/// Ranges that may be detached at once.
pub const RANGES: usize = 2;
/// Loans that the kernel may have at once.
pub const LOANS: usize = 3;
/// Runs of frames that belong to devices, and pages in each: an object that is a device has one of
/// them for as long as a mapping or a slot refers to it.
pub const RUNS: usize = 6;
/// See [`RUNS`].
pub const RUN: u64 = 4;
/// Pages that a ROM has: its object shows them again and again.
pub const CHIPS: u64 = 2;
/// Pages of addresses in each space.
pub const WINDOW: u64 = 48;
/// Words of a page that are written and compared, spread over it.
pub const WORDS: usize = 4;

/// A right or several, as bits: 1 read, 2 write, 4 execute.
pub type Rights = u8;

/// Where a mapping is asked to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Anywhere.
    Any,
    /// At a page of the window if free.
    Hint(u64),
    /// At a page of the window, replacing.
    Fixed(u64),
    /// At a page of the window or nowhere.
    Free(u64),
}

/// What a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// Zeroes.
    Zero,
    /// An object's pages, copied on write.
    Private(usize, u64),
    /// An object's pages themselves.
    Shared(usize, u64),
    /// Zeroes that no access may ever reach, and no child gets.
    Nothing,
}

/// What a child gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inh {
    /// Nothing.
    None,
    /// The same memory.
    Share,
    /// A copy.
    Copy,
    /// Zeroes.
    Zero,
}

/// How memory is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Both have it.
    Share,
    /// Both have it as it is.
    Copy,
    /// The giver has a hole.
    Donate,
    /// The giver has zeroes.
    DonateZero,
}

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Anonymous memory.
    Anon,
    /// Anonymous memory within the quota that all objects of this kind share.
    Within,
    /// A file; its page 5 can't be read, odd pages arrive later, even ones at once.
    File,
    /// Memory of a device.
    Device,
    /// Pages of the pager's own choice, which can't be written.
    Rom,
}

/// A page range of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span(pub u64, pub u64);

impl Span {
    /// The pages.
    pub fn pages(self) -> std::ops::Range<u64> {
        self.0..self.0 + self.1
    }
}

/// One step of a list. `s` names a space, `o` an object, `cpu` a simulated CPU, `d` a swap device,
/// `k` a transfer that is under way, by age, `p` a set of pinned pages, `l` a loan to the kernel,
/// `r` a detached range; `n` is how many pages a pass should free. A debugger inspects and patches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Spawn { s: usize },
    NewObject { o: usize, kind: Kind, len: u64 },
    Map { s: usize, at: At, len: u64, back: Back, rights: Rights, inherit: Option<Inh> },
    Unmap { s: usize, span: Span },
    Protect { s: usize, span: Span, rights: Rights },
    Inherit { s: usize, span: Span, inherit: Inh },
    Advise { s: usize, span: Span, advice: u8 },
    Discard { s: usize, span: Span },
    Remap { s: usize, span: Span, new_len: u64, at: At },
    RemapKeep { s: usize, span: Span, at: At },
    Fork { s: usize, child: usize },
    Clear { s: usize },
    Exit { s: usize },
    Read { s: usize, page: u64, cpu: usize },
    Write { s: usize, page: u64, cpu: usize, word: usize },
    Execute { s: usize, page: u64, cpu: usize },
    Wire { s: usize, span: Span },
    WireTouched { s: usize, span: Span },
    Unwire { s: usize, span: Span },
    Pin { p: usize, s: usize, span: Span, access: Rights },
    Unpin { p: usize, word: usize },
    Inspect { s: usize, span: Span },
    Patch { s: usize, span: Span, word: usize },
    Loan { l: usize, s: usize, span: Span },
    LoanObject { l: usize, o: usize, span: Span },
    Give { l: usize, s: usize, span: Span },
    LoanAgain { l: usize, to: usize },
    Return { l: usize },
    Pass { s: usize, span: Span, to: usize, at: At, way: Way },
    Extract { r: usize, s: usize, span: Span, way: Way },
    AttachRange { r: usize, s: usize, at: At },
    DropRange { r: usize },
    Limit { r: usize, rights: Rights },
    Transfer { l: usize, s: usize, page: u64 },
    TransferAnywhere { l: usize, s: usize },
    Truncate { o: usize, len: u64 },
    ObjectRead { o: usize, page: u64 },
    ObjectWrite { o: usize, page: u64, word: usize },
    Sync { o: usize },
    Clean { o: usize, span: Span },
    Punch { o: usize, span: Span },
    Room { n: u64 },
    Quota { n: u64 },
    Attach { o: usize, to: usize },
    Detach { o: usize },
    Forget,
    PageOut { n: usize },
    PageOutRange { s: usize, span: Span },
    Cool { s: usize, span: Span },
    SwapOn { d: usize },
    SwapOff { d: usize },
    Zram { percent: u8 },
    CompleteIo { k: usize },
    FailIo { k: usize },
}
