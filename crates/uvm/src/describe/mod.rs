//! What a space's map looks like, for `/proc` and for people.

mod space;

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;

use machine::{order, Held, Machine, PageRange, Pages, Prot, Unlocked, Va, VaRange};

use crate::amap::borrowed::Content;
use crate::map::steps::{first_part, Lock};
use crate::map::{Advice, Entry, Inherit, Name, Sharing, Writes, NOWHERE};
use crate::{Pager, Space, Uvm};
pub use space::RangeStats;

/// One map entry, as it was at some moment.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
/// let entry = uvm.entry_at(held, space, at).ok_or("it is mapped")?;
/// assert_eq!((entry.range, entry.prot), (pages(at, 4), Prot::READ_WRITE));
/// println!("{entry}");
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EntryInfo {
    /// Its addresses and what accesses may do.
    pub outline: Outline,
    /// The host's word for it.
    pub name: Option<Arc<dyn Name>>,
    /// What lies below and above.
    pub layers: Layers,
}

impl Deref for EntryInfo {
    type Target = Outline;
    fn deref(&self) -> &Outline {
        &self.outline
    }
}

/// An entry's two layers.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
/// store(uvm, space, at, b"x")?;
/// let layers = uvm.entry_at(held, space, at).ok_or("it is mapped")?.layers;
/// assert!(matches!(layers.amap, Some((_, 1, true))), "one page of four, and it is alone");
/// assert_eq!(layers.object, None);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layers {
    /// Whether an amap must be made or copied before the first store.
    pub needs_copy: bool,
    /// The amap: the slot of the entry's first page, anons in the entry's range, whether no other
    /// entry refers to these slots.
    pub amap: Option<(Pages, usize, bool)>,
    /// The object: its kind, id, and its page at the entry's first address.
    pub object: Option<(&'static str, u64, Pages)>,
    /// Pages of both layers in the entry's range that are on loan to others.
    pub loan: usize,
    /// Slots in the entry's range that hold a page on loan from others.
    pub borrowed: usize,
}

/// A map entry without what lies in its layers, which takes no counting.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)).prot(Prot::READ))?;
/// let (outline, _) = uvm.first_in(held, space, space.bounds()).ok_or("it is mapped")?;
/// assert_eq!((outline.range, outline.prot, outline.object), (pages(at, 4), Prot::READ, None));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Outline {
    /// Its addresses.
    pub range: PageRange,
    /// What accesses may do.
    pub prot: Prot,
    /// The most that they may be allowed.
    pub max_prot: Prot,
    /// Whether stores are seen by others.
    pub sharing: Sharing,
    /// Whether it is locked in memory.
    pub wired: bool,
    /// What a child gets.
    pub inherit: Inherit,
    /// How it is used.
    pub advice: Advice,
    /// The object below: its id, and its page at the entry's first address.
    pub object: Option<(u64, Pages)>,
    /// The object's kind; empty without one.
    pub kind: &'static str,
    /// Whether it has an amap, which holds pages of its own if any were stored to.
    pub has_amap: bool,
}

impl<M: Machine> Uvm<M> {
    /// Calls `each` with the outline of every entry that overlaps the range, in order of address,
    /// under the map's lock: `each` must not wait. The lock is held for some entries at a time.
    /// Cost: by those entries.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// uvm.protect(held, space, pages(range.start, 1), Prot::READ)?;
    /// let mut writable = Pages(0);
    /// uvm.outline(held, space, range, |entry| {
    ///     if entry.prot.contains(Prot::WRITE) {
    ///         writable = writable + entry.range.pages();
    ///     }
    /// });
    /// assert_eq!(writable, Pages(3));
    /// # Ok(()) });
    /// ```
    pub fn outline(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
        mut each: impl FnMut(&Outline),
    ) {
        self.in_steps(held, space, (*range, Lock::Unclaimed), |map, rest, _| {
            let part = first_part(map.tree, rest);
            map.tree.each(part, |e| each(&outline(e)));
            part.end
        });
    }

    /// The first entry that overlaps the range, with its name: with it a host goes through a range
    /// entry by entry and may wait, or change them, in between.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// let mut rest = space.bounds();
    /// while let Some((entry, _)) = uvm.first_in(held, space, rest) {
    ///     uvm.unmap(held, space, entry.range)?;
    ///     rest = rest.skip_to(entry.range.end);
    /// }
    /// assert_eq!(space.map().entries(held), 0);
    /// # Ok(()) });
    /// ```
    pub fn first_in(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Option<(Outline, Option<Arc<dyn Name>>)> {
        let (tree, _) = space.map.lock(self.mem(), held, *range);
        tree.try_each(*range, &mut |e| Err((outline(e), e.name.clone()))).err()
    }

    /// What is mapped at an address, if that is an object: the entry, the object's pager, and its
    /// page there. One look answers for the rights and for the pages: the mapping may be another
    /// one at the next. Cost: O(log n).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let text = file(uvm, held, "text", 2)?;
    /// let request = MapRequest::object(text.clone(), Pages(0), Pages(2), Sharing::Shared);
    /// let at = uvm.map(held, space, &request)?;
    /// let (_, pager, page) = uvm.object_at(held, space, at + Pages(1)).unwrap();
    /// assert_eq!((pager.object().id(), page), (text.object().id(), Pages(1)));
    /// # Ok(()) });
    /// ```
    pub fn object_at(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        va: Va,
    ) -> Option<(Outline, Arc<dyn Pager<M>>, Pages)> {
        let here = VaRange::sized(va, Pages(1))?;
        let (tree, _) = space.map.lock(self.mem(), held, here);
        let entry = tree.get(va)?;
        let oref = entry.object.as_ref()?;
        Some((outline(entry), oref.pager.clone(), entry.index(oref, va.page_floor())))
    }

    /// Calls `each` with every entry of a space, in order of address, under the map's lock: `each`
    /// must not wait.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// let mut listing = String::new();
    /// uvm.describe(held, space, |entry| listing.push_str(&format!("{entry}\n")));
    /// assert_eq!(listing.lines().count(), 1);
    /// # Ok(()) });
    /// ```
    pub fn describe(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        mut each: impl FnMut(&EntryInfo),
    ) {
        let (tree, mut h) = space.map.lock(self.mem(), held, space.map.bounds);
        tree.each(space.map.bounds, |e| each(&self.info(e, &mut h)));
    }

    /// The entry at an address. Cost: by its pages.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// let entry = uvm.entry_at(held, space, at + Pages(3)).ok_or("it is mapped")?;
    /// assert_eq!(entry.range.start, at);
    /// assert!(uvm.entry_at(held, space, at + Pages(4)).is_none());
    /// # Ok(()) });
    /// ```
    pub fn entry_at(&self, held: &mut Unlocked<'_>, space: &Space<M>, va: Va) -> Option<EntryInfo> {
        let (tree, mut h) = space.map.lock(self.mem(), held, NOWHERE);
        tree.get(va).map(|e| self.info(e, &mut h))
    }

    /// Whether mappings cover the range without a hole.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let at = uvm.map(held, space, &MapRequest::zero(Pages(4)))?;
    /// assert!(uvm.is_mapped(held, space, pages(at, 4)));
    /// uvm.unmap(held, space, pages(at + Pages(1), 1))?;
    /// assert!(!uvm.is_mapped(held, space, pages(at, 4)));
    /// # Ok(()) });
    /// ```
    pub fn is_mapped(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: PageRange) -> bool {
        space.map.lock(self.mem(), held, *range).0.is_covered(*range)
    }

    fn info(&self, e: &Entry<M>, held: &mut Held<'_, order::Map>) -> EntryInfo {
        let is_loaned = |page| self.frames().loans(page) != 0;
        let (mut loan, mut borrowed) = (0, 0);
        let amap = e.amap.as_ref().map(|a| {
            let (body, mut h) = a.amap.body.lock(held);
            let (range, mut anons) = (a.range(e.len()), 0);
            for (_, number) in body.slots.range(range.clone()) {
                match Content::of(number) {
                    Content::Anon(no) => {
                        let (anon, _) = self.anons.get(no).lock(&mut h);
                        loan += usize::from(anon.page().is_some_and(is_loaned));
                        anons += 1;
                    }
                    Content::Borrowed(_) => borrowed += 1,
                }
            }
            (a.slot, anons, body.cover.is_exclusive(range))
        });
        let object = e.object.as_ref();
        if let Some(o) = object {
            let (body, _) = o.pager.object().lock(held);
            let pages = body.pages(o.offset.0..o.offset.0 + e.len().0);
            loan += pages.filter(|&(_, page)| is_loaned(page)).count();
        }
        EntryInfo {
            outline: outline(e),
            name: e.name.clone(),
            layers: Layers {
                needs_copy: e.writes == Writes::NeedsCopy,
                amap,
                object: object.map(|o| (o.pager.kind(), o.pager.object().id(), o.offset)),
                loan,
                borrowed,
            },
        }
    }
}

fn outline<M: Machine>(e: &Entry<M>) -> Outline {
    Outline {
        range: e.range.try_into().expect("an entry has whole pages"),
        prot: e.prot,
        max_prot: e.max_prot,
        sharing: match e.writes {
            Writes::Shared => Sharing::Shared,
            Writes::NeedsCopy | Writes::CopyOnWrite => Sharing::Private,
        },
        wired: e.wired,
        inherit: e.inherit,
        advice: e.advice,
        object: e.object.as_ref().map(|o| (o.pager.object().id(), o.offset)),
        kind: e.object.as_ref().map_or("", |o| o.pager.kind()),
        has_amap: e.amap.is_some(),
    }
}

impl fmt::Display for EntryInfo {
    /// One line: addresses, protection, attributes, then the layers from the top.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |p, c| if self.prot.contains(p) { c } else { '-' };
        let (r, w, x) = (bit(Prot::READ, 'r'), bit(Prot::WRITE, 'w'), bit(Prot::EXECUTE, 'x'));
        write!(f, "{:012x}-{:012x} {r}{w}{x} ", self.range.start.0, self.range.end.0)?;
        write!(f, "{:?} inherit={:?} advice={:?}", self.sharing, self.inherit, self.advice)?;
        f.write_str(if self.wired { " wired" } else { "" })?;
        f.write_str(if self.layers.needs_copy { " needs-copy" } else { "" })?;
        match self.layers.amap {
            Some((slot, anons, exclusive)) => {
                let word = if exclusive { "own" } else { "shared" };
                write!(f, " | amap slot={} anons={anons} {word}", slot.0)?;
            }
            None => f.write_str(" | no amap")?,
        }
        match self.layers.object {
            Some((kind, id, offset)) => write!(f, " | {kind} object {id} page={}", offset.0)?,
            None => f.write_str(" | zeroes")?,
        }
        if self.layers.borrowed != 0 {
            write!(f, " | borrowed={}", self.layers.borrowed)?;
        }
        if self.layers.loan != 0 {
            write!(f, " | loaned={}", self.layers.loan)?;
        }
        match &self.name {
            Some(name) => write!(f, " | {}", name.text()),
            None => Ok(()),
        }
    }
}
