//! Pagers: where an object's data comes from.
//!
//! A pager embeds its [`Object`] and answers one question under the object's lock: "make the page
//! at this index resident". It may have the page at once ([`AnonObject`](crate::AnonObject): a page
//! of zeroes), or make it and its neighbours busy and hand out their [`ReadRequest`], by which it
//! is asked for their bytes with nothing locked ([`VnodePager`](crate::VnodePager)). The pager
//! allocates the page, so a device or a ROM can hand out pages of its own choosing (1999, section
//! 6).

use machine::{order, Held, Machine, PageNo, Pages, Ticket, Unlocked};

use super::{Object, ObjectBody, Removed};
use crate::io::{ReadRequest, Transfer};
use crate::page::Gather;
use crate::Uvm;

/// Why a pager has no page to give.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)? as Arc<dyn Pager<SoftMachine>>;
/// let behind = uvm.with_page(held, &file, Pages(1), Intent::Read, Access::PAGE, |_, _| ());
/// assert_eq!(behind, Err(GetError::PastEnd));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetError {
    /// The page is on its way: wait, then ask again.
    Wait(Ticket),
    /// The page's read is to be started; then ask again.
    Read(ReadRequest),
    /// The index lies past the object's end.
    PastEnd,
    /// The backing store failed.
    Io,
    /// The page would be a new one, and its file system is full.
    NoSpace,
    /// No page is free.
    NoMemory,
}

/// A file's data could not be written back.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// if let Err(IoError) = file.clean(uvm, held, 0..1) {
///     // The pages stay dirty: try again, or give up what is in them.
///     file.give_up(uvm, held, 0..1);
/// }
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError;

/// How a program means to use a mapping; madvise's argument.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let request = MapRequest { advice: Advice::Sequential, ..MapRequest::zero(Pages(64)) };
/// let at = uvm.map(held, space, &request)?;
/// uvm.advise(held, space, pages(at, 64), Advice::Normal)?;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing special: neighbours on both sides come along.
    Normal,
    /// No order: no neighbours.
    Random,
    /// Upwards: neighbours ahead.
    Sequential,
}

/// How a page is about to be used, for a pager that reads ahead.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 8)? as Arc<dyn Pager<SoftMachine>>;
/// // A call that goes on for eight pages: the file is read that far ahead.
/// let access = Access::Call(Advice::Sequential, 8);
/// uvm.with_page(held, &file, Pages(0), Intent::Read, access, |_, _| ())?;
/// assert_eq!(file.object().resident(held), 8);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// By a fault, in a mapping with this advice.
    Fault(Advice),
    /// By a call of the host that goes on for so many pages, this one counted.
    Call(Advice, u32),
}

impl Access {
    /// A call of the host for one page, of which nothing more is known.
    pub const PAGE: Access = Access::Call(Advice::Normal, 1);
}

impl From<Ticket> for GetError {
    fn from(ticket: Ticket) -> Self {
        GetError::Wait(ticket)
    }
}

/// What becomes of an object's dirty pages when memory is short.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// assert_eq!(file.launder(), Launder::Put);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launder {
    /// They stay.
    Keep,
    /// They are [put](Pager::put) where they came from.
    Put,
    /// They go to swap.
    Swap,
}

/// What a pager has done about a dirty page.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// assert_eq!(file.put(uvm, held, Pages(0)), Put::Nothing, "the page isn't dirty");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// Nothing: it is no longer dirty, or under I/O.
    Nothing,
    /// The host writes it in its own time, and wakes [`machine::Channel::MEMORY`] then.
    Later,
    /// The write of so many pages was started. They have `PAGEOUT` set and were counted by the
    /// pager.
    Started(usize),
}

/// A source of pages.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file: Arc<dyn Pager<SoftMachine>> = file(uvm, held, "text", 1)?;
/// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Private);
/// uvm.map(held, space, &request)?;
/// assert_eq!((file.kind(), file.object().references()), ("vnode", 2));
/// # Ok(()) });
/// ```
pub trait Pager<M: Machine>: Send + Sync {
    /// The embedded object.
    fn object(&self) -> &Object<M>;

    /// A word for `/proc` and reports: "anonymous", "vnode".
    fn kind(&self) -> &'static str;

    /// Makes the page at `index` resident, under the object's lock: finds it missing in `body`,
    /// allocates it, inserts it with [`Object::insert`]. It never sleeps: with I/O to wait for it
    /// makes the page busy and returns [`GetError::Read`].
    ///
    /// # Errors
    /// See [`GetError`]; on all but `Wait` and `Read` nothing has changed.
    fn get(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
        access: Access,
    ) -> Result<PageNo, GetError>;

    /// Reads the consecutive pages of a [`ReadRequest`] that `get` handed out, from `index` on,
    /// with nothing locked: may sleep as the host can.
    fn start_read(
        &self,
        _uvm: &Uvm<M>,
        _held: &mut Unlocked<'_>,
        _index: Pages,
        _pages: &[PageNo],
    ) -> Transfer {
        Transfer::Failed
    }

    /// A thread has come to a page that was marked when it was read: what is to be read before it
    /// is asked for.
    fn read_on(
        &self,
        _uvm: &Uvm<M>,
        _body: &mut ObjectBody,
        _held: &mut Held<'_, order::Object>,
        _index: Pages,
    ) -> Option<ReadRequest> {
        None
    }

    /// What becomes of dirty pages when memory is short; always the same.
    fn launder(&self) -> Launder {
        Launder::Keep
    }

    /// The page daemon has met a dirty page, unused for some time. Called with nothing locked; must
    /// not wait for memory.
    fn put(&self, _uvm: &Uvm<M>, _held: &mut Unlocked<'_>, _index: Pages) -> Put {
        Put::Nothing
    }

    /// Finds room for what is about to be stored in a page that is a [hole](crate::Outcome::Hole),
    /// with nothing locked: may sleep as the host can.
    ///
    /// # Errors
    /// [`GetError`], never `Wait` or `Read`: the store is refused.
    fn fill_hole(
        &self,
        _uvm: &Uvm<M>,
        _held: &mut Unlocked<'_>,
        _index: Pages,
    ) -> Result<(), GetError> {
        Ok(())
    }

    /// Whether a page that isn't resident can only be zeroes, so that a reader needs none.
    fn is_hole(&self, _body: &ObjectBody, _index: Pages) -> bool {
        false
    }

    /// Tells the pager that the last reference is gone, under the object's lock. What it frees, all
    /// pages if nothing else is said, goes into `down`. Where it leaves [some](Removed::Some) it is
    /// called again, once other threads have had a turn.
    fn last_reference(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut Gather,
    ) -> Removed {
        body.remove_some(uvm, held, down)
    }
}
