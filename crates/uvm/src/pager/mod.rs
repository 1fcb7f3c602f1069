//! Pagers: where an object's data comes from.
//!
//! A pager embeds its [`Object`] and answers one question under the object's lock: "make the page at this index
//! resident". It may have the page at once ([`AnonObject`]: a page of zeroes), or start I/O, mark the page busy and
//! say what to wait for ([`VnodePager`]). The pager allocates the page, so a device or a ROM can hand out pages of
//! its own choosing (1999, section 6).

mod anon_object;
mod vnode;

pub use anon_object::AnonObject;
pub use vnode::{Read, Vnode, VnodePager};

use machine::order;
use machine::{Held, Machine, NoMemory, PageNo, Pages, Ticket};

use crate::object::{Object, ObjectBody};
use crate::Uvm;

/// Why a pager has no page to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetError {
    /// The page is on its way: wait, then ask again.
    Wait(Ticket),
    /// The index lies past the object's end.
    PastEnd,
    /// The backing store failed.
    Io,
    /// No page is free.
    NoMemory,
}

impl From<NoMemory> for GetError {
    fn from(_: NoMemory) -> Self {
        GetError::NoMemory
    }
}

impl From<Ticket> for GetError {
    fn from(ticket: Ticket) -> Self {
        GetError::Wait(ticket)
    }
}

/// A source of pages.
pub trait Pager<M: Machine>: Send + Sync {
    /// The embedded object.
    fn object(&self) -> &Object<M>;

    /// A word for `/proc` and reports: "anonymous", "vnode".
    fn kind(&self) -> &'static str;

    /// Makes the page at `index` resident, under the object's lock: finds it missing in `body`, allocates it,
    /// inserts it with [`Object::insert`]. It never sleeps: with I/O to wait for it marks the page busy, starts the
    /// I/O and returns [`GetError::Wait`].
    ///
    /// # Errors
    /// See [`GetError`]; on all but `Wait` nothing has changed.
    fn get(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        index: Pages,
    ) -> Result<PageNo, GetError>;

    /// Whether a page that isn't resident can only be zeroes, so that a reader needs none.
    fn is_hole(&self, _body: &ObjectBody, _index: Pages) -> bool {
        false
    }

    /// Tells the pager that the last reference is gone, under the object's lock. What it frees goes into `down`.
    fn last_reference(
        &self,
        uvm: &Uvm<M>,
        body: &mut ObjectBody,
        held: &mut Held<'_, order::Object>,
        down: &mut machine::Shootdown,
    );
}
