//! What a mapping is asked for by, every attribute at once, and the places that there are for it.

use alloc::sync::Arc;

use machine::{Machine, PageRange, Pages, Prot, Va, VaRange};

use super::tree::Tree;
use super::{Advice, Entry, Inherit, Map, Name};
use crate::object::Pager;
use crate::Stop;

/// Where a mapping is to lie.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = Va(1 << 30);
/// uvm.map(held, space, &MapRequest { place: Place::Fixed(at), ..MapRequest::zero(Pages(1)) })?;
/// let there = MapRequest { place: Place::FixedNoReplace(at), ..MapRequest::zero(Pages(1)) };
/// assert_eq!(uvm.map(held, space, &there), Err(MapError::Exists));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At the highest free addresses, as far as they are [for the map to
    /// choose](crate::Space::choose_below).
    Anywhere,
    /// At the highest free addresses of a range.
    Within(PageRange),
    /// Here if it is free, else as `Anywhere`.
    Hint(Va),
    /// Here, in place of whatever is here.
    Fixed(Va),
    /// Here, or not at all.
    FixedNoReplace(Va),
}

impl Place {
    /// The address, where no other will do.
    pub(crate) fn fixed(self) -> Option<Va> {
        match self {
            Place::Anywhere | Place::Within(_) | Place::Hint(_) => None,
            Place::Fixed(va) | Place::FixedNoReplace(va) => Some(va),
        }
    }
}

/// Which spaces see stores to a mapping.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let file = file(uvm, held, "text", 1)?;
/// let mut map = |sharing| {
///     uvm.map(held, space, &MapRequest::object(file.clone(), Pages(0), Pages(1), sharing))
/// };
/// let (private, shared) = (map(Sharing::Private)?, map(Sharing::Shared)?);
/// store(uvm, space, shared, b"T")?;
/// store(uvm, space, private, b"x")?;
/// assert_eq!((&load(uvm, space, private)?, &load(uvm, space, shared)?), (b"xext", b"Text"));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Only this address space; an object gets none.
    Private,
    /// All that map the object.
    Shared,
}

/// What a mapping shows before anything is stored.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let zeroes = MapRequest { backing: Backing::Zero, ..MapRequest::zero(Pages(1)) };
/// let at = uvm.map(held, space, &zeroes)?;
/// assert_eq!(load(uvm, space, at)?, [0; 4]);
/// # Ok(()) });
/// ```
#[non_exhaustive]
pub enum Backing<M: Machine> {
    /// Zeroes. Shared zeroes are an [`AnonObject`](crate::AnonObject) of the caller's.
    Zero,
    /// An object's pages from `offset` on.
    Object {
        /// Whose pages.
        pager: Arc<dyn Pager<M>>,
        /// The first.
        offset: Pages,
    },
}

impl<M: Machine> Clone for Backing<M> {
    fn clone(&self) -> Self {
        match self {
            Backing::Zero => Backing::Zero,
            Backing::Object { pager, offset } => {
                Backing::Object { pager: pager.clone(), offset: *offset }
            }
        }
    }
}

/// A mapping to be made: every attribute at once.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let request = MapRequest {
///     advice: Advice::Sequential,
///     inherit: Some(Inherit::None),
///     ..MapRequest::zero(Pages(4)).prot(Prot::READ)
/// };
/// uvm.map(held, space, &request)?;
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct MapRequest<M: Machine> {
    /// Where.
    pub place: Place,
    /// How long; not zero.
    pub len: Pages,
    /// What accesses may do.
    pub prot: Prot,
    /// The most that `protect` may allow later.
    pub max_prot: Prot,
    /// Which spaces see stores.
    pub sharing: Sharing,
    /// What a child gets; `None` for the sharing's own: a copy of private memory, the same shared
    /// memory.
    pub inherit: Option<Inherit>,
    /// How it will be used.
    pub advice: Advice,
    /// What it shows.
    pub backing: Backing<M>,
    /// Whether every page that comes is wired, as after
    /// [`wire_as_touched`](crate::Uvm::wire_as_touched).
    pub wired: bool,
    /// The host's word for it.
    pub name: Option<Arc<dyn Name>>,
}

impl<M: Machine> MapRequest<M> {
    /// `len` pages of private zeroes, readable and writable, anywhere.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// assert_eq!(load(uvm, space, at)?, [0; 4]);
    /// # Ok(()) });
    /// ```
    pub fn zero(len: Pages) -> Self {
        MapRequest {
            place: Place::Anywhere,
            len,
            prot: Prot::READ_WRITE,
            max_prot: Prot::all(),
            sharing: Sharing::Private,
            inherit: None,
            advice: Advice::Normal,
            backing: Backing::Zero,
            wired: false,
            name: None,
        }
    }

    /// `len` pages of an object from `offset` on, readable and writable, anywhere.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file, Pages(0), Pages(1), Sharing::Private);
    /// let at = uvm.map(held, space, &request)?;
    /// assert_eq!(&load(uvm, space, at)?, b"text");
    /// # Ok(()) });
    /// ```
    pub fn object(pager: Arc<dyn Pager<M>>, offset: Pages, len: Pages, sharing: Sharing) -> Self {
        MapRequest { backing: Backing::Object { pager, offset }, sharing, ..Self::zero(len) }
    }

    /// What it covers if it lies at an address.
    pub(crate) fn range_at(&self, va: Va, map: &Map<M>) -> VaRange {
        VaRange::sized(va, self.len).unwrap_or(map.bounds)
    }

    /// This request at an address, in place of what is there.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = Va(1 << 30);
    /// assert_eq!(uvm.map(held, space, &MapRequest::zero(Pages(4)).at(at))?, at);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn at(self, va: Va) -> Self {
        MapRequest { place: Place::Fixed(va), ..self }
    }

    /// This request with another protection.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)).prot(Prot::READ))?;
    /// assert_eq!(store(uvm, space, at, b"x"), Err(FaultError::Protection));
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn prot(self, prot: Prot) -> Self {
        MapRequest { prot, ..self }
    }
}

/// Why a mapping was not made; nothing has changed.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let too_wide = MapRequest::zero(Pages(1 << 40));
/// let why = uvm.map(held, space, &too_wide).unwrap_err();
/// assert_eq!(why, MapError::NoSpace);
/// assert_eq!(why.to_string(), "no free addresses are wide enough");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// No free addresses are wide enough.
    NoSpace,
    /// The place is taken.
    Exists,
    /// Heap or tables are short.
    NoMemory,
    /// The map has as many entries as it may.
    TooMany,
    /// Empty, unaligned, outside the space, past the end of an object's offsets, or more protection
    /// than its most.
    Invalid,
    /// The old range of a move is not all mapped.
    NoMapping,
}

/// No addresses.
pub(crate) const NOWHERE: VaRange = VaRange::new(Va(0), Va(0));

/// Addresses that one table of a page-table machine serves, mostly: memory that keeps its place in
/// them can be moved by tables.
const TABLE: Pages = Pages(512);

/// Pages that may be moved one by one in one piece.
const PAGES_MOVED_AT_ONCE: Pages = Pages(8192);

/// Whether many pages are moved one by one, where a port can move tables.
pub(crate) fn moves_many(from: VaRange, to: Va) -> bool {
    from.pages() > PAGES_MOVED_AT_ONCE
        && !to.0.wrapping_sub(from.start.0).is_multiple_of(TABLE.bytes())
}

/// A place for so many pages where those that lie in a range now can be moved to by tables, if they
/// have some.
pub(crate) fn find_like<M: Machine>(
    tree: &Tree<Entry<M>>,
    map: &Map<M>,
    now: VaRange,
    len: Pages,
) -> Option<Va> {
    let room = Pages(len.0.checked_add(TABLE.0)?);
    if now.pages() < TABLE || room > map.bounds.pages() {
        return None;
    }
    let wide = map.find_space(tree, room.bytes())?;
    Some(Va(wide.0 + now.start.0.wrapping_sub(wide.0) % TABLE.bytes()))
}

/// So many pages at an address, if they lie in bounds, and the address is a page's.
pub(crate) fn within(bounds: VaRange, va: Va, len: Pages) -> Option<VaRange> {
    let is_inside = |range: &VaRange| va.is_page_aligned() && range.intersect(bounds) == *range;
    VaRange::sized(va, len).filter(is_inside)
}

/// Where so many pages go.
pub(crate) fn choose_place<M: Machine>(
    tree: &Tree<Entry<M>>,
    map: &Map<M>,
    len: Pages,
    place: Place,
) -> Result<Va, Stop<MapError>> {
    let anywhere = || map.find_space(tree, len.bytes()).ok_or(Stop::Fail(MapError::NoSpace));
    let free = |va: Va| within(map.bounds, va, len).is_some_and(|range| tree.is_free(range));
    match place {
        Place::Anywhere => anywhere(),
        Place::Within(range) => {
            let range = VaRange::from(range).intersect(map.bounds);
            tree.find_space(range, len.bytes()).ok_or(Stop::Fail(MapError::NoSpace))
        }
        Place::Hint(va) if free(va) => Ok(va),
        Place::Hint(_) => anywhere(),
        Place::Fixed(va) => Ok(va),
        Place::FixedNoReplace(va) if free(va) => Ok(va),
        Place::FixedNoReplace(_) => Err(Stop::Fail(MapError::Exists)),
    }
}
