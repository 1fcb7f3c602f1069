//! Map entry passing: a range of one address space in another, by entries and not by pages.
//!
//! ```text
//!   from  [ a )[ b )   [ c )              to      [ a )[ b )   [ c )      holes stay holes
//!     Share         both see all stores, for ever
//!     Copy          each has its own from now on; copied as it is written
//!     Donate        from: a hole          DonateZero   from: the same mappings, of zeroes
//! ```
//! What is donated is moved with both maps locked at once, so no thread sees the memory in neither
//! or in both; all that can fail is reserved before. Its translations go, or come along where the
//! port can move whole tables ([`Pmap::pass`]). What is shared or copied is forked first, with the
//! giver's map claimed, into a space that no thread has, and that is donated.
//!
//! A [`Detached`] range is one that has been taken and not been given to any space yet: an address
//! space in which no CPU runs. It can be looked at, loaned from, copied or shared again, paged out,
//! and audited like any other.
//!
//! The paper's quick references, with which a map's entries need not be cut for a short look at
//! another's memory, are loans here: [`Uvm::loan_to_kernel`] cuts nothing.
//!
//! Source: UVM's `uvm_map_extract`; 1998, section 4.3. The road not taken is its reservation in the
//! target map: with two locks held there is nothing to take back.

mod donation;

use alloc::sync::Arc;

use crate::page::Gather;
use machine::{Machine, PageRange, Pages, Pmap, Prot, Unlocked, Va, VaRange};

use crate::fork::Fork;
use crate::map::steps::{Lock, TRANSLATIONS};
use crate::map::tree::Tree;
use crate::map::{within, Change, Entry, Inherit, MapError, Name, Place, Writes, NOWHERE};
use crate::owed::Owed;
use crate::{Space, Stop, Uvm};

/// Entries that are passed at once, at most: no thread sees a part of them passed, so others wait
/// for all.
pub const MOST_ENTRIES: usize = 512;

/// How memory is passed.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let other = uvm.space_create(held, bounds())?;
/// let range = memory(uvm, held, space, 2)?;
/// uvm.pass_range(held, space, range, &other, Place::Anywhere, Pass::Copy)?;
/// uvm.pass_range(held, space, range, &other, Place::Anywhere, Pass::Donate)?;
/// assert!(!uvm.is_mapped(held, space, range), "it has been given away");
/// uvm.space_destroy(held, other);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pass {
    /// Both have it.
    Share,
    /// Both have it as it is now, and change their own.
    Copy,
    /// The giver has a hole.
    Donate,
    /// The giver has zeroes.
    DonateZero,
}

impl Pass {
    /// What a child would inherit; `None` where the giver has it no more.
    fn inheritance(self) -> Option<Inherit> {
        match self {
            Pass::Share => Some(Inherit::Share),
            Pass::Copy => Some(Inherit::Copy),
            Pass::Donate | Pass::DonateZero => None,
        }
    }
}

/// A range that was taken from a space and not given to another yet. Give it back by
/// [`Uvm::attach_range`] or [`Uvm::drop_detached`]. Dropping this does not, panics with debug
/// assertions, and fails every [audit](Uvm::audit) from then on.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 2)?;
/// let detached = uvm.extract(held, space, range, Pass::Donate)?;
/// assert_eq!((detached.range(), detached.pages()), (range, Pages(2)));
/// let at = uvm.attach_range(held, space, detached, Place::Anywhere).map_err(|(why, _)| why)?;
/// assert_eq!(load(uvm, space, at)?, [1]);
/// # Ok(()) });
/// ```
#[must_use = "memory stays until `attach_range` or `drop_detached` gets this back"]
pub struct Detached<M: Machine> {
    space: Space<M>,
    duty: Duty,
}

/// What keeps a range from being dropped.
struct Duty;

impl Drop for Duty {
    fn drop(&mut self) {
        Owed::Range.note_dropped();
    }
}

impl<M: Machine> Detached<M> {
    /// The memory, at the addresses where it was: to be loaned from, described and audited.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Donate)?;
    /// let loan = uvm.loan_to_kernel(held, detached.space(), detached.range())?;
    /// assert_eq!(loan.len(), 2);
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// uvm.drop_detached(held, detached);
    /// # Ok(()) });
    /// ```
    pub fn space(&self) -> &Space<M> {
        &self.space
    }

    /// The addresses where it was, holes too.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Copy)?;
    /// assert_eq!(detached.range(), range);
    /// uvm.drop_detached(held, detached);
    /// # Ok(()) });
    /// ```
    pub fn range(&self) -> PageRange {
        self.space.bounds()
    }

    /// Pages of addresses, holes too.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Copy)?;
    /// assert_eq!(detached.pages(), Pages(2));
    /// uvm.drop_detached(held, detached);
    /// # Ok(()) });
    /// ```
    pub fn pages(&self) -> Pages {
        self.range().pages()
    }
}

impl<M: Machine> Uvm<M> {
    /// Passes what lies in a range of one space to another space, or to another place in that
    /// space, and says where it lies. Entries keep their attributes, but that none is locked in
    /// memory at its new place. Cost: by entries; donated memory in translations too, where the
    /// port can't move tables; copied memory in writable translations.
    ///
    /// What is shared or copied is looked at in one moment of the call, and comes to its place in a
    /// later one: what other threads map in the range between the two stays where it is. A shared
    /// object is shared by all modes but `Copy`, which maps it privately as a fork does.
    /// Of memory that other spaces write too a copy has each page as it was at some moment of the
    /// call, and each word if that memory is locked.
    ///
    /// # Errors
    /// [`MapError`], `NoSpace` and `Exists` as for [`map`](Self::map); `TooMany` also for more than
    /// [`MOST_ENTRIES`] in the range; `Invalid` for an empty or outside range, or a donation onto
    /// itself; `NoMapping` if nothing lies in the range. Nothing has changed then.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let other = uvm.space_create(held, bounds())?;
    /// let range = memory(uvm, held, space, 2)?;
    /// let at = uvm.pass_range(held, space, range, &other, Place::Anywhere, Pass::Share)?;
    /// store(uvm, &other, at, b"both")?;
    /// assert_eq!(&load(uvm, space, range.start)?, b"both");
    /// uvm.space_destroy(held, other);
    /// # Ok(()) });
    /// ```
    pub fn pass_range(
        &self,
        held: &mut Unlocked<'_>,
        from: &Space<M>,
        range: PageRange,
        to: &Space<M>,
        place: Place,
        mode: Pass,
    ) -> Result<Va, MapError> {
        let pages = VaRange::from(range);
        if mode.inheritance().is_none() {
            return self.donate(held, (from, pages), to, place, mode);
        }
        check_pass(from, pages, to, place)?;
        let copy = self.extract(held, from, range, mode)?;
        self.attach_range(held, to, copy, place).map_err(|(e, copy)| {
            self.drop_detached(held, copy);
            self.merge_refused(held, from, pages);
            e
        })
    }

    /// Makes one entry again of what was cut for a copy that was refused then: what waits to copy
    /// though no other entry has it any more needn't.
    fn merge_refused(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) {
        let (mut tree, mut h) = space.map.lock(self.mem(), held, space.map.bounds);
        // Other threads have mapped much there since: that is a change of theirs.
        if passable(&tree, range).is_err() {
            return;
        }
        tree.each_mut(range, |e| {
            let is_own = e.amap.as_ref().is_some_and(|aref| aref.is_exclusive(&mut h, e.len()));
            if e.writes == Writes::NeedsCopy && is_own {
                e.writes = Writes::CopyOnWrite;
            }
        });
        space.locked(self, &mut tree, &mut h).merge(range);
    }

    /// Takes what lies in a range out of a space, or shares or copies it, to be given to another
    /// later.
    ///
    /// # Errors
    /// See [`pass_range`](Self::pass_range).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::DonateZero)?;
    /// assert_eq!(load(uvm, space, range.start)?, [0], "zeroes take its place");
    /// uvm.drop_detached(held, detached);
    /// # Ok(()) });
    /// ```
    pub fn extract(
        &self,
        held: &mut Unlocked<'_>,
        from: &Space<M>,
        range: PageRange,
        mode: Pass,
    ) -> Result<Detached<M>, MapError> {
        let range = VaRange::from(range);
        if range.is_empty() {
            return Err(MapError::Invalid);
        }
        // Of the giver's family, whose copies are known already.
        let space = self.space_of(held, range, from.family)?;
        let place = Place::FixedNoReplace(range.start);
        let passed = match mode.inheritance() {
            Some(inherit) => check_pass(from, range, &space, place)
                .and_then(|_| self.fork_range(held, from, range, inherit, &space)),
            None => self.donate(held, (from, range), &space, place, mode).map(|_| ()),
        };
        if let Err(e) = passed {
            self.space_destroy(held, space);
            if mode == Pass::Copy {
                self.merge_refused(held, from, range);
            }
            return Err(e);
        }
        Ok(Detached { space, duty: Duty })
    }

    /// Gives a detached range to a space, and says where it lies.
    ///
    /// # Errors
    /// As for [`pass_range`](Self::pass_range), `Invalid` also for another instance's, with the
    /// range as it was.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let other = uvm.space_create(held, bounds())?;
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Donate)?;
    /// let at = uvm.attach_range(held, &other, detached, Place::Anywhere).map_err(|(why, _)| why)?;
    /// assert_eq!(load(uvm, &other, at + Pages(1))?, [2]);
    /// uvm.space_destroy(held, other);
    /// # Ok(()) });
    /// ```
    #[allow(clippy::result_large_err, reason = "a refusal hands the range back, and is rare")]
    pub fn attach_range(
        &self,
        held: &mut Unlocked<'_>,
        to: &Space<M>,
        detached: Detached<M>,
        place: Place,
    ) -> Result<Va, (MapError, Detached<M>)> {
        if !detached.space.is_of(self) {
            return Err((MapError::Invalid, detached));
        }
        let given = (&detached.space, detached.space.map.bounds);
        match self.donate(held, given, to, place, Pass::Donate) {
            Ok(va) => {
                self.drop_detached(held, detached);
                Ok(va)
            }
            Err(e) => Err((e, detached)),
        }
    }

    /// Allows at most `prot` in a detached range, for ever. In steps: no other thread has the
    /// range yet.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Donate)?;
    /// uvm.limit(held, &detached, Prot::READ);
    /// let at = uvm.attach_range(held, space, detached, Place::Anywhere).map_err(|(why, _)| why)?;
    /// assert_eq!(uvm.protect(held, space, pages(at, 2), Prot::WRITE), Err(RangeError::Access));
    /// # Ok(()) });
    /// ```
    pub fn limit(&self, held: &mut Unlocked<'_>, detached: &Detached<M>, prot: Prot) {
        let (space, pmap) = (&detached.space, self.mem().pmap());
        let all = (space.map.bounds, Lock::Unclaimed);
        self.in_steps(held, space, all, |map, rest, down| {
            let end = pmap.part(&space.pmap, rest, TRANSLATIONS);
            map.tree.each_mut(VaRange::new(rest.start, end), |e| {
                let own = e.range.intersect(VaRange::new(rest.start, end));
                if !prot.contains(e.prot) {
                    pmap.protect(map.held, &space.pmap, own, e.prot.intersection(prot), down);
                }
                // Its last part.
                if own.end == e.range.end {
                    if let Some(object) = e.writes_to().filter(|_| !prot.contains(Prot::WRITE)) {
                        object.leave_writer();
                    }
                    e.max_prot = e.max_prot.intersection(prot);
                    e.prot = e.prot.intersection(prot);
                }
            });
            end
        });
    }

    /// Names what lies in a detached range.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Donate)?;
    /// let name = Arc::new("passed") as Arc<dyn Name>;
    /// uvm.name(held, &detached, &name);
    /// uvm.drop_detached(held, detached);
    /// # Ok(()) });
    /// ```
    pub fn name(&self, held: &mut Unlocked<'_>, detached: &Detached<M>, name: &Arc<dyn Name>) {
        let (mut tree, _) = detached.space.map.lock(self.mem(), held, detached.space.map.bounds);
        tree.each_mut(detached.space.map.bounds, |e| e.name = Some(name.clone()));
    }

    /// Ends a detached range: its memory is freed as by unmapping.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let detached = uvm.extract(held, space, range, Pass::Donate)?;
    /// assert_eq!(uvm.anons(), 2);
    /// uvm.drop_detached(held, detached);
    /// assert_eq!(uvm.anons(), 0);
    /// # Ok(()) });
    /// ```
    pub fn drop_detached(&self, held: &mut Unlocked<'_>, detached: Detached<M>) {
        core::mem::forget(detached.duty);
        self.space_destroy(held, detached.space);
    }

    /// Makes a range of a space that no thread has inherit another, in steps, with the map claimed.
    fn fork_range(
        &self,
        held: &mut Unlocked<'_>,
        from: &Space<M>,
        range: VaRange,
        inherit: Inherit,
        copy: &Space<M>,
    ) -> Result<(), MapError> {
        let (mut entries, mut down) = (Tree::new(), Gather::new());
        let result = self.attempt(held, Change::CLIP.bytes::<M>(), |held, reserved| {
            {
                let (mut tree, mut h) = from.map.lock_now(self.mem(), held, from.map.bounds)?;
                passable(&tree, range)?;
                let map = &mut from.locked(self, &mut tree, &mut h);
                let clipped = map.clip_within(range, 0, reserved);
                clipped.map_err(|stop| stop.map(|_too_many| MapError::TooMany))?;
                from.map.claim(&tree);
            }
            let made = (copy, &mut entries);
            let mut fork = Fork::new(self, (from, range), Some(inherit), made, &mut down);
            let copied = fork.make_in_steps(held);
            {
                let (mut tree, mut h) = from.map.lock_and_unclaim(self.mem(), held);
                from.locked(self, &mut tree, &mut h).merge(range);
                entries.each(range, |e| e.note_copier(&mut h, copy.family));
            }
            copied.map_err(|e| {
                self.release_partial_copy(held, &mut entries, &mut down);
                Stop::Fail(e.into())
            })
        });
        *copy.map.tree.lock(held).0 = entries;
        down.perform(self.frames(), self.mem(), held);
        result?;
        if inherit == Inherit::Copy {
            self.write_protect_copies(held, copy)?;
        }
        Ok(())
    }
}

/// How many entries lie in a range; as many as can be passed in one piece.
fn passable<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> Result<usize, MapError> {
    let mut entries = 0;
    tree.try_each(range, &mut |_| {
        entries += 1;
        if entries > MOST_ENTRIES {
            return Err(MapError::TooMany);
        }
        Ok(())
    })?;
    if entries == 0 {
        return Err(MapError::NoMapping);
    }
    Ok(entries)
}

/// Refuses what can't be passed whatever is mapped. The place, where no other will do.
fn check_pass<M: Machine>(
    from: &Space<M>,
    range: VaRange,
    to: &Space<M>,
    place: Place,
) -> Result<VaRange, MapError> {
    if range.is_empty() || range.intersect(from.map.bounds) != range {
        return Err(MapError::Invalid);
    }
    if range.pages() > to.map.bounds.pages() {
        return Err(MapError::NoSpace);
    }
    let Some(va) = place.fixed() else { return Ok(NOWHERE) };
    let new = within(to.map.bounds, va, range.pages()).ok_or(MapError::Invalid)?;
    match core::ptr::eq(from, to) && !new.intersect(range).is_empty() {
        true => Err(MapError::Invalid),
        false => Ok(new),
    }
}
