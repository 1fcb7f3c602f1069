//! Maps: which memory lies where in an address space.
//!
//! ```text
//!   Map (lock) -- Tree of Entry, by address
//!     Entry [0x1000, 0x5000) rw- private  --aref--> amap    (what was written: anons)
//!                                         --oref--> object  (what lies below: a file; or nothing: zeroes)
//! ```
//!
//! An entry is a run of addresses with one set of attributes, an upper layer (an amap, made when
//! first needed) and a lower layer (an object at an offset). Reads look in the amap, then in the
//! object, then find zeroes.
//!
//! I1: entries lie inside the map's bounds, page aligned, disjoint (`tree` I1). I2: `prot` is at
//! most `max_prot`. I3: an entry that is not `copy_on_write` has an object and no amap, unless the
//! amap is shared by inheritance. I4: an entry's pmap mappings allow at most `prot`, and no store
//! while it is `needs_copy`. I5: a translation in a `wired` entry is wired, and so is its page.
//!
//! Operations hold the map's lock over look-up and change only. What they take out keeps its
//! references until the lock is released (the second phase of unmap, 1999, section 3.1).
//!
//! Reading order: `tree`, this file, `request`, `merge`, `remove`, `lock`; then `mapping`, what
//! programs ask of a map.

pub(crate) mod adopt;
pub(crate) mod copy;
#[allow(unsafe_code)]
pub(crate) mod lock;
mod merge;
pub(crate) mod remap_history;
pub(crate) mod remove;
mod request;
mod resident;
pub(crate) mod space;
pub(crate) mod steps;
pub(crate) mod tree;

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use machine::lines::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use machine::{order, Held, Machine, Pages, Prot, Shared, Unlocked, Va, VaRange};

use crate::amap::ARef;
pub(crate) use crate::amap::Writes;
pub use crate::object::Advice;
pub(crate) use crate::object::ORef;
use crate::object::Object;
use crate::{Space, Stop, Uvm};
pub(crate) use request::{choose_place, find_like, moves_many, within, NOWHERE};
pub use request::{Backing, MapError, MapRequest, Place, Sharing};
use tree::{Span, Tree};

/// What a child gets of a mapping at fork; minherit's argument.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 1)?;
/// uvm.inherit(held, space, range, Inherit::Zero)?;
/// let child = uvm.fork(held, space)?;
/// assert_eq!(load(uvm, &child, range.start)?, [0]);
/// uvm.space_destroy(held, child);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Inherit {
    /// Nothing: a hole.
    None,
    /// The same memory: both see each other's writes.
    Share,
    /// A copy, made when one of them writes.
    Copy,
    /// Fresh zeroes.
    Zero,
}

/// Why a range's attributes were not changed; nothing has been.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// let hole = pages(at - Pages(1), 2);
/// assert_eq!(uvm.protect(held, space, hole, Prot::READ), Err(RangeError::NoMapping));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// Part of the range is not mapped.
    NoMapping,
    /// The mapping's maximum protection forbids it.
    Access,
    /// Heap, tables or pages are short.
    NoMemory,
    /// The map has as many entries as it may, and would have more.
    TooMany,
    /// A page could not be read from its object, or lies past its end.
    Fault,
}

/// A run of addresses with one set of attributes.
pub(crate) struct Entry<M: Machine> {
    pub(crate) range: VaRange,
    pub(crate) amap: Option<ARef<M>>,
    pub(crate) object: Option<ORef<M>>,
    pub(crate) prot: Prot,
    pub(crate) max_prot: Prot,
    pub(crate) inherit: Inherit,
    pub(crate) advice: Advice,
    pub(crate) writes: Writes,
    pub(crate) wired: bool,
    /// The CPU that mapped it, or its lowest bits: see `merge`.
    pub(crate) cpu: u8,
    /// The host's word for it, shown in `/proc`.
    pub(crate) name: Option<Arc<dyn Name>>,
}

/// What the host calls a mapping, in its listings. The host's own type, so that a name which a
/// program has chosen can be charged to it until the last mapping of that name has gone: it is
/// dropped with a map locked, and must not sleep then.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// /// A word that many mappings have, beside a number of each.
/// struct Stack(String);
///
/// impl Name for Stack {
///     fn text(&self) -> &str {
///         &self.0
///     }
/// }
///
/// let name: Arc<dyn Name> = Arc::new(Stack(format!("stack {}", 7)));
/// uvm.map(held, space, &MapRequest { name: Some(name), ..MapRequest::zero(Pages(8)) })?;
/// # Ok(()) });
/// ```
pub trait Name: Send + Sync {
    /// The name.
    fn text(&self) -> &str;

    /// The host's numbers for what is mapped: a device and a node on it; zeroes for nothing.
    fn node(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Whether what is mapped is a stack, which the host makes longer below: MAP_GROWSDOWN.
    fn grows_down(&self) -> bool {
        false
    }
}

impl Name for &'static str {
    fn text(&self) -> &str {
        self
    }
}

impl Name for String {
    fn text(&self) -> &str {
        self
    }
}

impl fmt::Debug for dyn Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
    }
}

fn is_same_name(a: &Option<Arc<dyn Name>>, b: &Option<Arc<dyn Name>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            Arc::ptr_eq(a, b) || a.text() == b.text() && a.grows_down() == b.grows_down()
        }
        _ => a.is_none() && b.is_none(),
    }
}

impl<M: Machine> Span for Entry<M> {
    fn range(&self) -> VaRange {
        self.range
    }

    fn move_to(&mut self, start: Va) {
        self.range = VaRange::new(start, start + self.len());
    }
}

impl<M: Machine> Entry<M> {
    /// A space of this family has the entry, with copies that it may have got elsewhere.
    pub(crate) fn note_copier(&self, held: &mut Held<'_, order::Map>, family: u64) {
        if let Some(oref) = self.object.as_ref().filter(|_| self.writes != Writes::Shared) {
            oref.pager.object().lock(held).0.copiers.add(family);
        }
    }

    /// Private zeroes.
    #[inline]
    pub(crate) fn zeroes(range: VaRange, name: Option<Arc<dyn Name>>) -> Self {
        Entry {
            range,
            amap: None,
            object: None,
            prot: Prot::READ_WRITE,
            max_prot: Prot::all(),
            inherit: Inherit::Copy,
            advice: Advice::Normal,
            writes: Writes::NeedsCopy,
            wired: false,
            cpu: 0,
            name,
        }
    }

    pub(crate) fn len(&self) -> Pages {
        self.range.pages()
    }

    /// Whether two entries have the same attributes, whatever their layers.
    pub(crate) fn is_like(&self, other: &Entry<M>) -> bool {
        (self.prot, self.max_prot, self.inherit, self.advice)
            == (other.prot, other.max_prot, other.inherit, other.advice)
            && self.wired == other.wired
            && is_same_name(&self.name, &other.name)
    }

    /// Whether the entry behind this one shows the object's pages behind this one's.
    pub(crate) fn objects_follow(&self, next: &Entry<M>) -> bool {
        match (&self.object, &next.object) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                core::ptr::addr_eq(Arc::as_ptr(&a.pager), Arc::as_ptr(&b.pager))
                    && a.offset + self.len() == b.offset
            }
            _ => false,
        }
    }

    /// Whether the entry behind this one shows the slots and pages behind this one's.
    pub(crate) fn is_continued_by(&self, next: &Entry<M>) -> bool {
        let amaps = match (&self.amap, &next.amap) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.amap, &b.amap) && a.slot + self.len() == b.slot,
            _ => false,
        };
        amaps && self.objects_follow(next) && self.writes == next.writes
    }

    /// Whether a part of the entry is private memory that is not locked, and no other entry refers
    /// to its slots, or the entry has yet to copy them: pages can be put there, or taken away.
    pub(crate) fn is_private(&self, held: &mut Held<'_, order::Map>, part: VaRange) -> bool {
        let is_alone =
            |aref: &ARef<M>| aref.amap.body.lock(held).0.cover.is_exclusive(self.slots(aref, part));
        !self.wired
            && self.writes != Writes::Shared
            && (self.writes == Writes::NeedsCopy || self.amap.as_ref().is_none_or(is_alone))
    }

    /// The slot of an address in the amap.
    pub(crate) fn slot(&self, aref: &ARef<M>, va: Va) -> u64 {
        (aref.slot + (va - self.range.start)).0
    }

    /// The slots of a part of the entry in the amap.
    pub(crate) fn slots(&self, aref: &ARef<M>, part: VaRange) -> core::ops::Range<u64> {
        let first = self.slot(aref, part.start);
        first..first + part.pages().0
    }

    /// The index of an address in the object.
    pub(crate) fn index(&self, oref: &ORef<M>, va: Va) -> Pages {
        oref.offset + (va - self.range.start)
    }

    /// The object that stores through the entry reach, or may be allowed to.
    pub(crate) fn writes_to(&self) -> Option<&Object<M>> {
        let may_reach = self.writes == Writes::Shared && self.max_prot.contains(Prot::WRITE);
        self.object.as_ref().filter(|_| may_reach).map(|oref| oref.pager.object())
    }

    /// Counts the entry, which is a new one, with its object.
    pub(crate) fn attach(&self) {
        if let Some(oref) = &self.object {
            oref.pager.object().attach();
        }
        if let Some(object) = self.writes_to() {
            object.add_writer();
        }
    }

    /// This mapping without its private memory, and not wired; not [counted](Self::attach).
    pub(crate) fn emptied(&self) -> Entry<M> {
        let shared = self.writes == Writes::Shared;
        Entry {
            amap: None,
            object: self.object.clone(),
            writes: if shared { Writes::Shared } else { Writes::NeedsCopy },
            wired: false,
            name: self.name.clone(),
            ..*self
        }
    }

    /// Cuts the entry at `at`, inside it; the part from there on is returned. It is counted with
    /// the object; the amap's cover is by range and needs no count.
    pub(crate) fn clip(&mut self, at: Va) -> Entry<M> {
        let skip = at - self.range.start;
        let tail = Entry {
            range: VaRange::new(at, self.range.end),
            amap: self.amap.as_ref().map(|a| ARef { amap: a.amap.clone(), slot: a.slot + skip }),
            object: self.object.as_ref().map(|oref| oref.behind(skip)),
            name: self.name.clone(),
            ..*self
        };
        tail.attach();
        self.range.end = at;
        tail
    }
}

/// An address space's entries, within bounds.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
/// assert_eq!(space.map().entries(held), 1);
/// # Ok(()) });
/// ```
pub struct Map<M: Machine> {
    pub(crate) tree: Shared<order::Map, M::Lock, Tree<Entry<M>>>,
    pub(crate) bounds: VaRange,
    /// Addresses that the map chooses lie below this one, while there is room.
    top: AtomicU64,
    /// Where pages are transferred to that may lie anywhere, and where to look first; 0 if there is
    /// no such place. Read and written under the tree's lock.
    pub(crate) area: (AtomicU64, AtomicU64),
    /// By which such a place is known.
    pub(crate) area_name: spin::Once<Arc<dyn Name>>,
    /// Heap bytes that the last fork needed, its parent's if there was none; what the next begins
    /// with.
    pub(crate) fork_bytes: AtomicUsize,
    /// Forks so far.
    pub(crate) forks: AtomicU32,
    /// Whether an entry has ever been wired, or is about to be: set before the tree's lock is taken
    /// to that end, or under it.
    pub(crate) was_wired: AtomicBool,
    /// Whether a thread has it for itself, lock or not: see `lock`. Written under the tree's lock.
    is_claimed: AtomicBool,
}

/// What a change does to a tree, at most.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    /// Entries that are added one at a time; cutting one adds another.
    pub(crate) insertions: usize,
    /// Ranges of several entries that are taken out or put in.
    pub(crate) splices: usize,
}

impl Change {
    /// An entry is added.
    pub(crate) const ADD: Change = Change { insertions: 1, splices: 0 };
    /// The ends of a range are cut.
    pub(crate) const CLIP: Change = Change { insertions: 2, splices: 0 };
    /// A range is taken out.
    pub(crate) const TAKE: Change = Change { insertions: 2, splices: 1 };
    /// A range is taken out, and an entry put in its place.
    pub(crate) const REPLACE: Change = Change { insertions: 3, splices: 1 };
    /// An entry is taken out, put elsewhere in place of another, grows, and leaves one behind.
    pub(crate) const MOVE: Change = Change { insertions: 7, splices: 0 };

    /// With so many ranges more that may have several entries, if they have.
    pub(crate) fn with<M: Machine>(self, tree: &Tree<Entry<M>>, ranges: &[VaRange]) -> Change {
        let has_one =
            |range: &VaRange| tree.get(range.start).is_some_and(|e| e.range.end >= range.end);
        let several =
            ranges.iter().filter(|range| !tree.is_free(**range) && !has_one(range)).count();
        Change { splices: self.splices + several, ..self }
    }

    /// Heap bytes for it in a map of common size: what a first attempt reserves.
    pub(crate) const fn bytes<M: Machine>(self) -> usize {
        tree::insert_bytes::<Entry<M>>(self.insertions)
            + self.splices * tree::splice_bytes::<Entry<M>>()
    }

    /// Heap bytes for it in a tree as it is; [`bytes`](Self::bytes), unless that is very tall.
    pub(crate) fn bytes_in<M: Machine>(self, tree: &Tree<Entry<M>>) -> usize {
        tree.insert_bytes(self.insertions) + self.splices * tree.splice_bytes()
    }

    /// Makes sure that its heap has been reserved, and some more.
    pub(crate) fn ensure<M: Machine, X>(
        self,
        tree: &Tree<Entry<M>>,
        more: usize,
        reserved: usize,
    ) -> Result<(), Stop<X>> {
        Stop::ensure(self.bytes_in(tree) + more, reserved)
    }
}

impl<M: Machine> Space<M> {
    /// The map, whose lock is held, with all that changing it takes.
    pub(crate) fn locked<'a, 't>(
        &'a self,
        uvm: &'a Uvm<M>,
        tree: &'a mut lock::TreeGuard<'t, M>,
        held: &'a mut Held<'t, order::Map>,
    ) -> LockedMap<'a, 't, M> {
        LockedMap { uvm, space: self, tree, held }
    }
}

impl<M: Machine> Map<M> {
    pub(crate) fn new(bounds: VaRange) -> Self {
        let area = (AtomicU64::new(0), AtomicU64::new(0));
        Map {
            tree: Shared::new(Tree::new()),
            bounds,
            top: AtomicU64::new(bounds.end.0),
            area,
            area_name: spin::Once::new(),
            fork_bytes: AtomicUsize::new(0),
            forks: AtomicU32::new(0),
            was_wired: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
        }
    }

    pub(crate) fn choose_below(&self, va: Va) {
        self.top.store(va.0, Relaxed);
    }

    pub(crate) fn top(&self) -> Va {
        Va(self.top.load(Relaxed))
    }

    /// The highest free addresses that are the map's to choose, and are wide enough.
    pub(crate) fn find_space(&self, tree: &Tree<Entry<M>>, bytes: u64) -> Option<Va> {
        let below = VaRange::new(self.bounds.start, self.top()).intersect(self.bounds);
        tree.find_space(below, bytes).or_else(|| tree.find_space(self.bounds, bytes))
    }

    /// Entries in the map.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.protect(held, space, pages(range.start, 1), Prot::READ)?;
    /// assert_eq!(space.map().entries(held), 2);
    /// # Ok(()) });
    /// ```
    pub fn entries(&self, held: &mut Unlocked<'_>) -> usize {
        // A count, so the end of a claim isn't waited for.
        self.tree.read(held).0.len()
    }
}

/// A space's map, locked to be changed.
pub(crate) struct LockedMap<'a, 't, M: Machine> {
    pub(crate) uvm: &'a Uvm<M>,
    pub(crate) space: &'a Space<M>,
    pub(crate) tree: &'a mut lock::TreeGuard<'t, M>,
    pub(crate) held: &'a mut Held<'t, order::Map>,
}

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Waits for the faults that have pinned pages of a range: see [`Map::exclude`].
    pub(crate) fn exclude(&self, range: VaRange) -> lock::Unpinned {
        self.space.map.exclude(self.tree, range)
    }

    /// If an entry in a range waits to copy, waits for the faults that have pinned a page of any
    /// entry there, also outside of the range: a copy replaces the whole entry's amap.
    pub(crate) fn exclude_to_copy(&self, range: VaRange) -> Option<lock::Unpinned> {
        let waits = |e: &Entry<M>| if e.writes == Writes::NeedsCopy { Err(()) } else { Ok(()) };
        if self.tree.try_each(range, &mut |e| waits(e)).is_ok() {
            return None;
        }
        let whole = |at: Va| self.tree.get(at).map_or(range, |e| e.range);
        let start = whole(range.start).start.min(range.start);
        let end = whole(Va(range.end.0 - 1)).end.max(range.end);
        Some(self.exclude(VaRange::new(start, end)))
    }

    /// Whether the map has room for so many entries more.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.tree.len() + more <= self.uvm.knobs().most_entries()
    }

    /// How many entries [`clip`](Self::clip) adds.
    pub(crate) fn clips(&self, range: VaRange) -> usize {
        let is_cut = |&&at: &&Va| self.tree.get(at).is_some_and(|e| e.range.start < at);
        [range.start, range.end].iter().filter(is_cut).count()
    }

    /// [Cuts](clip) entries at the ends of a range.
    pub(crate) fn clip(&mut self, range: VaRange) {
        clip(self.tree, range);
    }

    /// [Cuts](Self::clip) entries at the ends of a range, if their heap has been reserved, and some
    /// more, and the map has room for what is added.
    pub(crate) fn clip_within(
        &mut self,
        range: VaRange,
        more: usize,
        reserved: usize,
    ) -> Result<(), Stop<RangeError>> {
        let clips = self.clips(range);
        if clips != 0 && !self.has_room(clips) {
            return Err(RangeError::TooMany.into());
        }
        Change::CLIP.ensure(self.tree, more, reserved)?;
        self.clip(range);
        Ok(())
    }
}

/// Cuts the entries that reach over the ends of the range, so that it can be taken out whole. Two
/// new entries at most, whose heap bytes ([`Change::CLIP`]) have been reserved.
pub(crate) fn clip<M: Machine>(tree: &mut Tree<Entry<M>>, range: VaRange) {
    for at in [range.start, range.end] {
        let reaches = |e: &Entry<M>| e.range.start < at;
        if tree.get(at).is_some_and(reaches) {
            let tail = tree.edit(at, |head| head.clip(at));
            tail.into_iter().for_each(|tail| tree.insert(tail));
        }
    }
}

/// Refuses a range with a hole.
pub(crate) fn covered<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> Result<(), RangeError> {
    if tree.is_covered(range) {
        Ok(())
    } else {
        Err(RangeError::NoMapping)
    }
}
