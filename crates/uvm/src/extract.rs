//! Map entry passing: a range of one address space in another, by entries and not by pages.
//!
//! ```text
//!   from  [ a )[ b )   [ c )              to      [ a )[ b )   [ c )      holes stay holes
//!     Share         both see all stores, for ever
//!     Copy          each has its own from now on; copied as it is written
//!     Donate        from: a hole          DonateZero   from: the same mappings, of zeroes
//! ```
//! Both maps are locked at once, so no thread sees the memory in neither or, if donated, in both;
//! all that can fail is reserved before. Translations of donated memory go, or come along where the
//! port can move whole tables ([`Pmap::pass`]).
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

use alloc::sync::Arc;

use crate::page::Gather;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, PageRange, Pages, Pmap, Prot, Unlocked, Va, VaRange};

use crate::amap::LOOKS_AT_ONCE;
use crate::fork::steps::MadeUpTo;
use crate::fork::Fork;
use crate::map::adopt::AT_ONCE;
use crate::map::lock::TreeGuard;
use crate::map::steps::{Ahead, Lock, TRANSLATIONS};
use crate::map::tree::{built_bytes, Taken, Tree};
use crate::map::{
    choose_place, clip, find_like, moves_many, within, Change, Entry, Inherit, MapError, Name,
    Place, Writes, NOWHERE,
};
use crate::owed::Owed;
use crate::stat::Counter;
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

/// Two maps, locked; or one.
struct Trees<'a, M: Machine> {
    from: TreeGuard<'a, M>,
    other: Option<TreeGuard<'a, M>>,
}

impl<'a, M: Machine> Trees<'a, M> {
    fn to(&mut self) -> &mut TreeGuard<'a, M> {
        self.other.as_mut().unwrap_or(&mut self.from)
    }
}

/// Whether threads have the space that memory is passed to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    InUse,
    /// The caller makes it.
    New,
}

/// How a call ended.
enum Passed {
    At(Va),
    /// Nothing was done: what is to be passed is to be made in steps, where no thread has it. It
    /// takes too long for one, or other spaces write to what is copied, and all mappings of its
    /// pages are to be made read-only first.
    InSteps,
}

/// A call under way.
struct Passing<'a, M: Machine> {
    uvm: &'a Uvm<M>,
    from: &'a Space<M>,
    range: VaRange,
    to: &'a Space<M>,
    target: Target,
    place: Place,
    mode: Pass,
    down: Gather,
    /// What was at its new place.
    replaced: Taken<Entry<M>>,
    /// Copies that were made before memory ran out.
    half: Taken<Entry<M>>,
    /// An attempt has cut the source's entries.
    has_cut: bool,
}

impl<M: Machine> Uvm<M> {
    /// Passes what lies in a range of one space to another space, or to another place in that
    /// space, and says where it lies. Entries keep their attributes, but that none is locked in
    /// memory at its new place. Cost: by entries; donated memory in translations too, where the
    /// port can't move tables; copied memory in writable translations.
    ///
    /// A shared object is shared by all modes but `Copy`, which maps it privately as a fork does.
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
        match self.pass_entries(held, (from, pages), (to, Target::InUse), place, mode)? {
            Passed::At(va) => Ok(va),
            Passed::InSteps => {
                let copy = self.extract(held, from, range, mode)?;
                self.attach_range(held, to, copy, place).map_err(|(e, copy)| {
                    self.drop_detached(held, copy);
                    self.merge_refused(held, from, pages);
                    e
                })
            }
        }
    }

    fn pass_entries(
        &self,
        held: &mut Unlocked<'_>,
        (from, range): (&Space<M>, VaRange),
        (to, target): (&Space<M>, Target),
        place: Place,
        mode: Pass,
    ) -> Result<Passed, MapError> {
        if range.is_empty() || range.intersect(from.map.bounds) != range {
            return Err(MapError::Invalid);
        }
        if range.pages() > to.map.bounds.pages() {
            return Err(MapError::NoSpace);
        }
        let (mut is_moved_singly, mut replaces) = (false, NOWHERE);
        if let Some(va) = place.fixed() {
            let new = within(to.map.bounds, va, range.pages()).ok_or(MapError::Invalid)?;
            if core::ptr::eq(from, to) && !new.intersect(range).is_empty() {
                return Err(MapError::Invalid);
            }
            if matches!(place, Place::Fixed(_)) {
                replaces = new;
            }
            is_moved_singly = mode.inheritance().is_none() && moves_many(range, va);
        }
        if mode == Pass::Share && self.anons.borrowed.load(Relaxed) > AT_ONCE {
            self.adopt_in_steps(held, from, range)?;
        }
        let (replaced, half, down) = (Taken::new(), Taken::new(), Gather::new());
        let ahead = match mode {
            Pass::Share | Pass::Copy => Ahead::nothing(from, NOWHERE),
            Pass::Donate | Pass::DonateZero => self.move_ahead(held, from, range, is_moved_singly),
        };
        let mut ahead = [ahead, self.forget_ahead(held, to, replaces)];
        let (uvm, has_cut) = (self, false);
        let mut passing =
            Passing { uvm, from, range, to, target, place, mode, down, replaced, half, has_cut };
        let reserve = Change::MOVE.bytes::<M>();
        let result =
            self.attempt_ahead(held, &mut ahead, reserve, |held, reserved, lock, ahead| {
                let passed = passing.attempt(held, reserved, lock, ahead);
                if passed.is_err() {
                    // The next attempt begins anew, with the memory that this one took.
                    self.release_entries(held, &mut passing.half, &mut passing.down);
                    passing.down.perform(self.frames(), self.mem(), held);
                }
                passed
            });
        self.release_entries(held, &mut passing.replaced, &mut passing.down);
        passing.down.perform(self.frames(), self.mem(), held);
        if !matches!(result, Ok(Passed::At(_))) {
            self.wire_ahead_again(held, &ahead);
        }
        if passing.has_cut && result.is_err() {
            self.merge_refused(held, from, range);
        }
        result
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
        let (target, place) = ((&space, Target::New), Place::FixedNoReplace(range.start));
        let passed =
            self.pass_entries(held, (from, range), target, place, mode).and_then(|passed| {
                if matches!(passed, Passed::InSteps) {
                    let inherit = mode.inheritance().unwrap_or(Inherit::Share);
                    self.fork_range_in_steps(held, from, range, inherit, &space)?;
                }
                match mode {
                    Pass::Copy => Ok(self.write_protect_copies(held, &space)?),
                    Pass::Share | Pass::Donate | Pass::DonateZero => Ok(()),
                }
            });
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
        match self.pass_entries(held, given, (to, Target::InUse), place, Pass::Donate) {
            Ok(Passed::At(va)) => {
                self.drop_detached(held, detached);
                Ok(va)
            }
            Ok(Passed::InSteps) => unreachable!("only copies are made apart"),
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
    fn fork_range_in_steps(
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
            fork.is_in_steps = true;
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
        let count = entries.len();
        *copy.map.tree.lock(held).0 = entries;
        down.perform(self.frames(), self.mem(), held);
        self.stat().add(self.mem().cpu(), Counter::EntriesPassed, count as u64);
        result
    }
}

impl<M: Machine> Passing<'_, M> {
    /// One attempt; `None` if so much is shown of what is given or replaced that the maps are to be
    /// claimed first.
    fn attempt(
        &mut self,
        held: &mut Unlocked<'_>,
        reserved: usize,
        lock: Lock,
        ahead: &[Ahead<'_, M>],
    ) -> Result<Option<Passed>, Stop<MapError>> {
        let (uvm, from, to, range) = (self.uvm, self.from, self.to, self.range);
        let one = core::ptr::eq(from, to);
        let (mut trees, mut h) = if one {
            let (tree, h) = from.map.lock_as(lock, uvm.mem(), held, from.map.bounds)?;
            (Trees { from: tree, other: None }, h)
        } else {
            let (a, b, h) = machine::Shared::lock_pair(&from.map.tree, &to.map.tree, held);
            if lock == Lock::Claimed {
                from.map.end_claim(uvm.mem(), &a);
                to.map.end_claim(uvm.mem(), &b);
            }
            let refused = [from, to].into_iter().find_map(|space| space.map.refuses(uvm.mem()));
            if let Some(ticket) = refused {
                return Err(Stop::Wait(ticket));
            }
            from.map.exclude(&a, range);
            to.map.exclude(&b, to.map.bounds);
            (Trees { from: a, other: Some(b) }, h)
        };
        let entries = passable(&trees.from, range)?;
        let at = self.choose(trees.to())?;
        let new = VaRange::new(at, at + range.pages());
        // All that can be refused is, before anything is copied or cut.
        let source = from.locked(uvm, &mut trees.from, &mut h);
        let own = source.clips(range);
        let has_room = own == 0 || source.has_room(own);
        let is_full = source.is_refilled(lock, ahead);
        let target = to.locked(uvm, trees.to(), &mut h);
        let more = entries + target.clips(new) + if one { own } else { 0 };
        let is_full = is_full || target.is_refilled(lock, ahead);
        if !has_room || !target.has_room(more) {
            return Err(Stop::Fail(MapError::TooMany));
        }
        let target_in_use = self.target == Target::InUse;
        if self.mode == Pass::Copy
            && (uvm.copies_in_steps(from, range)
                || target_in_use && written_by_others(&trees.from, &mut h, range))
        {
            return Ok(Some(Passed::InSteps));
        }
        let is_given = self.mode.inheritance().is_none();
        if is_full || (is_given && uvm.moves_much(from, lock, range, at)) {
            return Ok(None);
        }
        let Some(need) = self.heap_bytes(&mut trees, &mut h, new, entries) else {
            return Ok(Some(Passed::InSteps));
        };
        Stop::ensure(need, reserved)?;
        clip(&mut trees.from, range);
        self.has_cut = true;
        let mut passed = match is_given {
            false => self.fork_part(&mut trees.from, &mut h)?,
            true => self.take_part(&mut trees.from, &mut h),
        };
        // What was there goes first: a table may come in its place.
        if !trees.to().is_free(new) {
            let (replaced, down) = (&mut self.replaced, &mut self.down);
            to.locked(uvm, trees.to(), &mut h).take_out(new, replaced, down);
        }
        if is_given {
            let (from, to) = (&from.pmap, &to.pmap);
            uvm.mem().pmap().pass(&mut h, from, range, to, at, &mut self.down);
        }
        self.down.flush(uvm.mem().pmap());
        passed.each(|e| e.note_copier(&mut h, to.family));
        passed.shift(range.start, at);
        trees.to().put_back(passed);
        from.locked(uvm, &mut trees.from, &mut h).merge(range);
        to.locked(uvm, trees.to(), &mut h).merge(new);
        uvm.stat().add(uvm.mem().cpu(), Counter::EntriesPassed, entries as u64);
        Ok(Some(Passed::At(at)))
    }

    /// Where the range will lie: anywhere, where it can be moved by tables if it has some.
    fn choose(&self, tree: &Tree<Entry<M>>) -> Result<Va, Stop<MapError>> {
        let (range, map, place) = (self.range, &self.to.map, self.place);
        if !matches!(place, Place::Within(_)) && place.fixed().is_none() {
            if let Some(va) = find_like(tree, map, range, range.pages()) {
                return Ok(va);
            }
        }
        choose_place(tree, map, range.pages(), place)
    }

    /// Heap bytes for all that a call does behind this point; none if that takes more than a step.
    fn heap_bytes(
        &self,
        trees: &mut Trees<'_, M>,
        held: &mut Held<'_, order::Map>,
        new: VaRange,
        entries: usize,
    ) -> Option<usize> {
        // Both trees are cut, and a range put into either; several entries are made as a tree, or
        // taken as one.
        let several = usize::from(entries > 1);
        let tallest = trees.from.splice_bytes().max(trees.to().splice_bytes());
        let mut bytes = several * 3 * tallest + built_bytes::<Entry<M>>(entries);
        bytes += Change { insertions: 3, splices: 0 }.bytes_in(&trees.from);
        bytes += Change { insertions: 3, splices: 0 }.with(trees.to(), &[new]).bytes_in(trees.to());
        if let Some(inherit) = self.mode.inheritance() {
            let mut left = LOOKS_AT_ONCE;
            let counted = trees.from.try_each(self.range, &mut |e| {
                let own = self.uvm.fork_entry_bytes(e, inherit, held, &mut left);
                own.map(|own| bytes += own).ok_or(())
            });
            counted.ok()?;
        }
        Some(bytes)
    }

    /// Entries that share or copy those in the range.
    fn fork_part(
        &mut self,
        tree: &mut TreeGuard<'_, M>,
        held: &mut Held<'_, order::Map>,
    ) -> Result<Taken<Entry<M>>, Stop<MapError>> {
        let (from, to, range) = (self.from, self.to, self.range);
        let (mut entries, inherit) = (Tree::new(), self.mode.inheritance());
        let made = (to, &mut entries);
        let mut fork = Fork::new(self.uvm, (from, range), inherit, made, &mut self.down);
        let end = fork.make_entries(held, tree, range, (usize::MAX, usize::MAX), &mut 0);
        // No thread resolves a copy while another still writes through the translation that was
        // just lowered.
        self.down.flush(self.uvm.mem().pmap());
        match end {
            MadeUpTo::All => Ok(Taken::from(entries)),
            MadeUpTo::Failed(e) => {
                self.half = Taken::from(entries);
                Err(Stop::Fail(e.into()))
            }
            // Spaces that share an amap have changed it since it was looked at: now it takes steps.
            MadeUpTo::Before(..) => {
                self.half = Taken::from(entries);
                Err(Stop::again(0))
            }
        }
    }

    /// The entries in the range, taken out; zeroes in their place, if that is asked for. Their
    /// translations are still there.
    fn take_part(
        &self,
        tree: &mut Tree<Entry<M>>,
        held: &mut Held<'_, order::Map>,
    ) -> Taken<Entry<M>> {
        let mut taken = tree.take(self.range);
        if self.from.map.was_wired.load(Relaxed) {
            taken.each_mut(|entry| {
                if core::mem::replace(&mut entry.wired, false) {
                    self.uvm.unwire_some(held, self.from, entry.range, usize::MAX);
                }
            });
        }
        if self.mode == Pass::DonateZero {
            tree.put_back(taken.map(|e| Entry {
                object: None,
                writes: Writes::NeedsCopy,
                ..e.emptied()
            }));
        }
        taken
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

/// Whether an entry in a range writes slots that others write too.
fn written_by_others<M: Machine>(
    tree: &Tree<Entry<M>>,
    held: &mut Held<'_, order::Map>,
    range: VaRange,
) -> bool {
    let found = tree.try_each(range, &mut |e| match &e.amap {
        Some(aref) if e.writes == Writes::CopyOnWrite && !aref.is_exclusive(held, e.len()) => {
            Err(())
        }
        _ => Ok(()),
    });
    found.is_err()
}
