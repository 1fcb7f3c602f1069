//! Long operations in steps: what a program has made long is done a part at a time, and the host
//! sees to others in between.
//!
//! A step holds the map's lock for some tens of entries, or some thousands of translations. Between
//! two steps others may change the map, so an operation is cut only where that is no more than what
//! they could do before it or after it.

use alloc::sync::Arc;
use core::ops::Range;

use crate::page::Gather;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Pmap, Prot, Ticket, Va, VaRange};

use crate::amap::AmapBody;
use crate::map::tree::Tree;
use crate::map::{moves_many, Entry};
use crate::{Space, Stop, Uvm};

/// Entries of a step.
pub(crate) const ENTRIES: usize = 64;
/// Translations of a step, about.
pub(crate) const TRANSLATIONS: usize = if cfg!(feature = "__small-leaves") { 1 } else { 2048 };
/// Pages whose translations one step takes without a look at how long that takes: each page may
/// have thousands of mappings, among which a port may search.
pub(crate) const PAGES_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 2 } else { 64 };
/// Mappings that lose the right to write under one hold of a lock, summed over pages by
/// [`Pmap::weight`].
pub(crate) const MAPPINGS_OF_A_STEP: usize =
    if cfg!(feature = "__small-leaves") { 2 } else { 1024 };
/// Tables that are moved in one piece though few translations are in each.
const TABLES: usize = 256;
/// Tables that are moved in one piece at most.
const MOST_TABLES: usize = 2048;
/// The longest range of more than [`TABLES`] that is moved so: in longer ones each may have others
/// above it, which take longer.
const NEAR: Pages = Pages(1 << 25);
/// Slots of a step that are emptied.
pub(crate) const SLOTS: usize = if cfg!(feature = "__small-leaves") { 4 } else { 1024 };
/// Pages of a step whose slots are counted, whatever leaves they have: by leaf, so that it takes as
/// long as to look at fewer slots.
const COUNTED: usize = 32 * SLOTS;
/// Wired ones, whose pages are unwired one by one.
pub(crate) const WIRED: usize = if cfg!(feature = "__small-leaves") { 2 } else { 512 };

/// What was done ahead to a range whose translations are to be taken away.
pub(crate) struct Ahead {
    range: VaRange,
    /// The part whose pages are not wired any more, to be [wired again](Uvm::wire_again) if the
    /// change is refused.
    pub(crate) unwired: VaRange,
    left: Left,
}

/// What the last step finds of such a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Few translations.
    Translations,
    /// Few tables, which it moves.
    Tables,
}

impl Ahead {
    /// Nothing yet.
    pub(crate) fn nothing(range: VaRange) -> Ahead {
        Ahead { range, unwired: VaRange::new(range.start, range.start), left: Left::Tables }
    }
}

/// How a map's lock is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// As any other thread.
    Unclaimed,
    /// The thread has claimed the map. An attempt ends the claim as it takes the lock.
    Claimed,
}

/// The part of a range that one step takes: up to the end of its last entry.
pub(crate) fn first_part<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> VaRange {
    if tree.len() <= ENTRIES {
        return range;
    }
    let mut left = ENTRIES;
    let last = tree.try_each(range, &mut |e| {
        left -= 1;
        if left == 0 {
            Err(e.range.end)
        } else {
            Ok(())
        }
    });
    VaRange::new(range.start, last.err().map_or(range.end, |end| end.min(range.end)))
}

/// A range up to where an entry in it is to be clipped, which `end` says for what each of them has
/// in it.
fn up_to_clip<M: Machine>(
    tree: &Tree<Entry<M>>,
    range: VaRange,
    mut end: impl FnMut(&Entry<M>, VaRange) -> Va,
) -> VaRange {
    let clip = tree.try_each(range, &mut |e| {
        let own = e.range.intersect(range);
        match end(e, own) {
            end if end == own.end => Ok(()),
            end => Err(end),
        }
    });
    VaRange::new(range.start, clip.err().unwrap_or(range.end))
}

/// The end of the first part of an entry's part that has as many slots in use as are `left`: see
/// [`ARef::few`](crate::amap::ARef::few).
fn few_slots<M: Machine>(
    held: &mut Held<'_, order::Map>,
    e: &Entry<M>,
    own: VaRange,
    left: &mut usize,
) -> Va {
    let Some(aref) = &e.amap else { return own.end };
    let slots = e.slots(aref, own);
    let few = aref.few(held, slots.clone(), left);
    end_of(own, few - slots.start, slots.end - slots.start)
}

/// The end of the first `few` of the `all` pages of a range, which may end inside of a page.
fn end_of(range: VaRange, few: u64, all: u64) -> Va {
    if few == all {
        range.end
    } else {
        range.start + Pages(few)
    }
}

/// The first part of a range that has as many slots in use as one step looks at.
pub(crate) fn part_of_few_slots<M: Machine>(
    held: &mut Held<'_, order::Map>,
    tree: &Tree<Entry<M>>,
    range: VaRange,
) -> VaRange {
    if range.pages().0 <= SLOTS as u64 {
        return range;
    }
    let mut left = SLOTS;
    up_to_clip(tree, range, |e, own| few_slots(held, e, own, &mut left))
}

/// The part of a range whose slots one step counts.
fn part_to_count<M: Machine>(
    held: &mut Held<'_, order::Map>,
    tree: &Tree<Entry<M>>,
    range: VaRange,
) -> VaRange {
    let part = first_part(tree, range);
    if part.pages().0 <= COUNTED as u64 {
        return part;
    }
    part_of_few_slots(held, tree, part)
}

/// The first part of a range that is wired, and is one entry's.
fn first_wired<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> Option<VaRange> {
    tree.try_each(range, &mut |e| if e.wired { Err(e.range.intersect(range)) } else { Ok(()) })
        .err()
}

impl<M: Machine> Uvm<M> {
    /// Calls `each` with every entry that overlaps the range, in order of address, under the map's
    /// lock, which isn't held all the time.
    pub(crate) fn each_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        mut each: impl FnMut(&Entry<M>, &mut Held<'_, order::Map>),
    ) {
        self.in_steps(
            held,
            space,
            range,
            |_, tree, rest| first_part(tree, rest),
            |e, _, h| each(e, h),
        );
    }

    /// Calls `each` likewise with each part of an entry that one step looks at: what lies in its
    /// layers is as much as [`part_to_look_at`](Self::part_to_look_at) says.
    pub(crate) fn each_part_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        each: impl FnMut(&Entry<M>, VaRange, &mut Held<'_, order::Map>),
    ) {
        self.in_steps(
            held,
            space,
            range,
            |h, tree, rest| self.part_to_look_at(h, tree, rest),
            each,
        );
    }

    /// Sums up what `count` says of each part of an entry with an amap, which one step at a time
    /// counts the slots of.
    pub(crate) fn count_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        count: impl Fn(&Entry<M>, Range<u64>, &AmapBody<M>) -> usize,
    ) -> usize {
        let mut sum = 0;
        self.in_steps(held, space, range, part_to_count, |e, own, h| {
            if let Some(aref) = &e.amap {
                sum += count(e, e.slots(aref, own), &aref.amap.body.lock(h).0);
            }
        });
        sum
    }

    /// Calls `each` with each entry's part of a range, under the map's lock. The lock is held for
    /// as much as `part` says of what is left of the range.
    fn in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        part: impl Fn(&mut Held<'_, order::Map>, &Tree<Entry<M>>, VaRange) -> VaRange,
        mut each: impl FnMut(&Entry<M>, VaRange, &mut Held<'_, order::Map>),
    ) {
        let mut rest = range;
        loop {
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let part = part(&mut h, &tree, rest);
                tree.each(part, |e| each(e, e.range.intersect(part), &mut h));
                rest.start = part.end;
            }
            if rest.is_empty() {
                return;
            }
            self.mem().pause(held);
        }
    }

    /// The part of a range that one step empties: of some thousands of translations, and as much as
    /// one looks at.
    pub(crate) fn part_to_empty(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        tree: &Tree<Entry<M>>,
        range: VaRange,
    ) -> VaRange {
        let mut part = first_part(tree, range);
        part.end = self.mem().pmap().part(&space.pmap, part, TRANSLATIONS);
        part_of_few_slots(held, tree, part)
    }

    /// The part of a range that one step looks at: some entries, and some slots and some of their
    /// objects' pages, or leaves of few of these.
    pub(crate) fn part_to_look_at(
        &self,
        held: &mut Held<'_, order::Map>,
        tree: &Tree<Entry<M>>,
        range: VaRange,
    ) -> VaRange {
        let (mut slots, mut pages) = (SLOTS, SLOTS);
        let part = first_part(tree, range);
        if part.pages().0 <= SLOTS as u64 {
            return part;
        }
        up_to_clip(tree, part, |e, own| {
            let end = few_slots(held, e, own, &mut slots);
            let Some(oref) = &e.object else { return end };
            let first = e.index(oref, own.start).0;
            let all = own.pages().0;
            let few = oref.pager.object().lock(held).0.few(first..first + all, &mut pages);
            end.min(end_of(own, few - first, all))
        })
    }

    /// Takes back the wiring of a range's pages, and their translations, a part at a time, before
    /// the range goes: the step that takes it finds few. The entries stay wired, so what is touched
    /// meanwhile is wired then. Returns what it has looked at: if the change is refused, that is
    /// [wired again](Self::wire_again).
    pub(crate) fn unwire_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> VaRange {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && rest.pages().0 > WIRED as u64 {
            let mut down = Gather::new();
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let some = first_part(&tree, rest);
                rest.start = some.end;
                if let Some(mut part) = first_wired(&tree, some) {
                    part.end = self.unwire_some(&mut h, space, part, WIRED);
                    self.forget_range(&mut h, space, part, &mut down);
                    rest.start = part.end;
                }
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
        VaRange::new(range.start, rest.start)
    }

    /// Forgets most of a range's translations, before what they show goes, so that the step that
    /// takes it finds few. Nobody may rely on one that isn't wired (pmap law P1), and none is left
    /// that is but by who wires it now.
    #[inline]
    pub(crate) fn forget_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> Ahead {
        let unwired = match range.pages().0 <= PAGES_AT_ONCE as u64 {
            true => VaRange::new(range.start, range.start),
            false => self.forget_many(held, space, range),
        };
        Ahead { range, unwired, left: Left::Translations }
    }

    #[inline(never)]
    fn forget_many(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> VaRange {
        let unwired = self.unwire_ahead(held, space, range);
        let mut rest = range;
        while !rest.is_empty() {
            let mut down = Gather::new();
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let end = self.mem().pmap().part(&space.pmap, rest, TRANSLATIONS);
                let part = VaRange::new(rest.start, end);
                let may_be_wired =
                    space.map.was_wired.load(Relaxed) && first_wired(&tree, part).is_some();
                if part.end == rest.end || may_be_wired {
                    break;
                }
                self.forget_range(&mut h, space, part, &mut down);
                rest.start = part.end;
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
        unwired
    }

    /// Prepares a range's translations to be moved: forgets them, where that is the better way.
    pub(crate) fn move_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        is_moved_singly: bool,
    ) -> Ahead {
        if is_moved_singly || self.is_better_forgotten(space, range) {
            return self.forget_ahead(held, space, range);
        }
        let unwired = self.unwire_ahead(held, space, range);
        Ahead { range, unwired, left: Left::Tables }
    }

    /// Runs attempts of a change that takes away what some ranges show, which was [forgotten
    /// ahead](Self::forget_ahead): the first in the first space, the others in the second. One that
    /// finds [too much](Self::is_refilled) says `None`, and is made again with that forgotten and
    /// the maps claimed: threads that touch it again and again don't make it longer.
    pub(crate) fn attempt_ahead<T, E: From<NoMemory> + PartialEq>(
        &self,
        held: &mut Held<'_, order::Nothing>,
        spaces: (&Space<M>, &Space<M>),
        ahead: &mut [Ahead],
        reserve: usize,
        mut once: impl FnMut(
            &mut Held<'_, order::Nothing>,
            usize,
            Lock,
            &[Ahead],
        ) -> Result<Option<T>, Stop<E>>,
    ) -> Result<T, E> {
        let mut lock = Lock::Unclaimed;
        self.attempt(held, reserve, |held, reserved| {
            if lock == Lock::Claimed {
                self.claim_and_forget(held, spaces, ahead, reserved)?;
            }
            once(held, reserved, lock, ahead)?.ok_or_else(|| {
                lock = Lock::Claimed;
                Stop::again(reserved)
            })
        })
    }

    /// Claims the maps of both spaces, which may be one, and forgets what is shown in their ranges:
    /// in order of address, so that of two threads that want the same two maps one gets both.
    #[inline(never)]
    fn claim_and_forget<E: From<NoMemory>>(
        &self,
        held: &mut Held<'_, order::Nothing>,
        (from, to): (&Space<M>, &Space<M>),
        ahead: &mut [Ahead],
        reserved: usize,
    ) -> Result<(), Stop<E>> {
        let one = core::ptr::eq(&*from.map, &*to.map);
        let (given, replaced) = ahead.split_at_mut(if one { ahead.len() } else { 1 });
        let mut parts = [(from, given), (to, replaced)];
        if Arc::as_ptr(&from.map) > Arc::as_ptr(&to.map) {
            parts.swap(0, 1);
        }
        let parts = &mut parts[..2 - usize::from(one)];
        let (mut claimed, mut result) = (0, Ok(()));
        for (space, ahead) in parts.iter_mut() {
            result = self.forget_claimed(held, space, ahead).map_err(Stop::Wait);
            if result.is_err() {
                break;
            }
            claimed += 1;
        }
        let result =
            result.and_then(|()| Ok(self.mem().reserve_heap(reserved).map_err(E::from)?));
        if result.is_err() {
            let spaces = parts.iter().take(claimed);
            spaces.for_each(|(space, _)| space.map.unclaim(self.mem(), held));
        }
        result
    }

    /// Whether so much is shown of some ranges that to take it away takes longer than a step. The
    /// map's lock is held.
    #[inline]
    pub(crate) fn is_refilled(
        &self,
        space: &Space<M>,
        lock: Lock,
        tree: &Tree<Entry<M>>,
        ahead: &[Ahead],
    ) -> bool {
        let is_large = |ahead: &Ahead| ahead.range.pages().0 > PAGES_AT_ONCE as u64;
        lock == Lock::Unclaimed
            && ahead.iter().any(|ahead| is_large(ahead) && self.is_full(space, tree, ahead))
    }

    #[inline(never)]
    fn is_full(
        &self,
        space: &Space<M>,
        tree: &Tree<Entry<M>>,
        &Ahead { range, left, .. }: &Ahead,
    ) -> bool {
        let is_wired = || space.map.was_wired.load(Relaxed) && first_wired(tree, range).is_some();
        match left {
            Left::Tables if !is_wired() => self.is_better_forgotten(space, range),
            Left::Tables | Left::Translations => self.shows_much(space, range),
        }
    }

    /// Whether a range has more translations than were to be left by those who forget them ahead.
    pub(crate) fn shows_much(&self, space: &Space<M>, range: VaRange) -> bool {
        self.mem().pmap().part(&space.pmap, range, 2 * TRANSLATIONS) != range.end
    }

    /// Whether a range shows much that is moved to an address page by page. The map's lock is held.
    pub(crate) fn moves_much(&self, space: &Space<M>, lock: Lock, range: VaRange, to: Va) -> bool {
        lock == Lock::Unclaimed && moves_many(range, to) && self.shows_much(space, range)
    }

    /// Claims a map.
    ///
    /// # Errors
    /// What to wait with, if another thread has claimed it.
    pub(crate) fn claim_whole(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
    ) -> Result<(), Ticket> {
        let (tree, _) = space.map.lock_now(self.mem(), held, space.map.bounds)?;
        space.map.claim(&tree);
        Ok(())
    }

    /// Claims a map, and forgets all that some ranges show, in steps.
    ///
    /// # Errors
    /// What to wait with, if another thread has claimed it.
    fn forget_claimed(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        ahead: &mut [Ahead],
    ) -> Result<(), Ticket> {
        self.claim_whole(held, space)?;
        for Ahead { range, unwired, .. } in ahead {
            self.in_claimed_steps(held, space, *range, |h, _, part, down| {
                let end = match space.map.was_wired.load(Relaxed) {
                    true => self.unwire_some(h, space, part, WIRED),
                    false => part.end,
                };
                self.forget_range(h, space, VaRange::new(part.start, end), down);
                end
            });
            *unwired = *range;
        }
        Ok(())
    }

    /// Lowers what a range of a map that is claimed shows, in steps.
    pub(crate) fn lower_claimed(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        prot: Prot,
    ) {
        let pmap = self.mem().pmap();
        self.in_claimed_steps(held, space, range, |h, _, part, down| {
            pmap.protect(h, &space.pmap, part, prot, down);
            part.end
        });
    }

    /// Calls `step` with one part of a range after another, of some entries and some thousands of
    /// translations, with the claimed map's lock held. It says where it ended; what it took away is
    /// flushed before the lock goes.
    pub(crate) fn in_claimed_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        mut step: impl FnMut(&mut Held<'_, order::Map>, &Tree<Entry<M>>, VaRange, &mut Gather) -> Va,
    ) {
        let pmap = self.mem().pmap();
        let mut rest = range;
        while !rest.is_empty() {
            let mut down = Gather::new();
            {
                let (tree, mut h) = space.map.lock_claimed(held);
                let mut part = first_part(&tree, rest);
                part.end = pmap.part(&space.pmap, part, TRANSLATIONS);
                rest.start = step(&mut h, &tree, part, &mut down);
                down.flush(pmap);
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
    }

    /// Takes the right to write from all mappings of what a space has as copies of memory that
    /// others write too, in steps. No thread has the space yet: until then a store through such a
    /// mapping changes the copy too, and a fault for a store copies the page once every mapping is
    /// gone.
    ///
    /// # Errors
    /// [`NoMemory`] if the thread is being ended: the space is to be destroyed.
    pub(crate) fn write_protect_copies(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
    ) -> Result<(), NoMemory> {
        let mut rest = space.map.bounds;
        while !rest.is_empty() {
            let mut down = Gather::new();
            {
                let (tree, mut h) = space.map.lock(self.mem(), held, rest);
                let (part, mut left) = (first_part(&tree, rest), MAPPINGS_OF_A_STEP);
                let part = up_to_clip(&tree, part, |e, own| {
                    let Some(aref) =
                        e.amap.as_ref().filter(|aref| aref.amap.is_unprotected.load(Relaxed))
                    else {
                        return own.end;
                    };
                    let slots = e.slots(aref, own);
                    let end = aref.write_protect(
                        self.parts(),
                        &mut h,
                        slots.clone(),
                        &mut left,
                        &mut down,
                    );
                    let end = end_of(own, end - slots.start, slots.end - slots.start);
                    aref.amap.is_unprotected.store(end != e.range.end, Relaxed);
                    end
                });
                down.flush(self.mem().pmap());
                rest.start = part.end;
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
            if self.mem().has_fatal_signal() {
                return Err(NoMemory);
            }
        }
        Ok(())
    }

    /// Whether a range has so many tables, some of few translations each, or pages that so many
    /// others map, that its translations are better forgotten than moved.
    pub(crate) fn is_better_forgotten(&self, space: &Space<M>, range: VaRange) -> bool {
        let pmap = self.mem().pmap();
        let few = Pages(range.pages().0.min(TRANSLATIONS as u64 / 4));
        let few = VaRange::new(range.start, range.start + few);
        // So few take more than a step only where many others map the same pages.
        if range.pages().0 > PAGES_AT_ONCE as u64
            && pmap.part(&space.pmap, few, TRANSLATIONS) != few.end
        {
            return true;
        }
        let part = VaRange::new(range.start, pmap.tables_part(&space.pmap, range, TABLES));
        let rest = VaRange::new(part.end, range.end);
        !rest.is_empty()
            && (range.pages() > NEAR
                || pmap.part(&space.pmap, part, 6 * TRANSLATIONS) == part.end
                || pmap.tables_part(&space.pmap, rest, MOST_TABLES - TABLES) != rest.end)
    }
}
