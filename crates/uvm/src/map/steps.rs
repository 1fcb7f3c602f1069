//! Long operations in steps: what a program has made long is done a part at a time, and the host
//! sees to others in between.
//!
//! A step holds the map's lock for some tens of entries, or some thousands of translations. Between
//! two steps others may change the map, so an operation is cut only where that is no more than what
//! they could do before it or after it.

use core::convert::Infallible;
use core::ops::Range;

use crate::page::Gather;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Pmap, Unlocked, Va, VaRange};

use crate::amap::{ARef, AmapBody};
use crate::map::tree::Tree;
use crate::map::{moves_many, Entry, LockedMap};
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
pub(crate) struct Ahead<'a, M: Machine> {
    pub(crate) space: &'a Space<M>,
    range: VaRange,
    /// The part whose pages are not wired any more, to be wired again if the change is refused.
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

impl<'a, M: Machine> Ahead<'a, M> {
    /// Nothing yet.
    pub(crate) fn nothing(space: &'a Space<M>, range: VaRange) -> Self {
        Ahead { space, range, unwired: VaRange::new(range.start, range.start), left: Left::Tables }
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

/// The first part of a range that is wired, and is one entry's, with what `of` says of that.
pub(crate) fn first_wired<M: Machine, T>(
    tree: &Tree<Entry<M>>,
    range: VaRange,
    of: impl Fn(&Entry<M>) -> T,
) -> Option<(VaRange, T)> {
    let wired = |e: &Entry<M>| (e.range.intersect(range), of(e));
    tree.try_each(range, &mut |e| if e.wired { Err(wired(e)) } else { Ok(()) }).err()
}

/// The part of a range that one step looks at: some entries, and some slots and some of their
/// objects' pages, or leaves of few of these.
pub(crate) fn part_to_look_at<M: Machine>(
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

impl<M: Machine> LockedMap<'_, '_, M> {
    /// The part of a range that has as many entries and translations as one step takes.
    pub(crate) fn part_to_lower(&self, range: VaRange) -> VaRange {
        let (part, pmap) = (first_part(self.tree, range), self.uvm.mem().pmap());
        VaRange::new(part.start, pmap.part(&self.space.pmap, part, TRANSLATIONS))
    }

    /// The part of a range that one step empties: of some thousands of translations, and as much as
    /// one looks at.
    pub(crate) fn part_to_empty(&mut self, range: VaRange) -> VaRange {
        let part = self.part_to_lower(range);
        part_of_few_slots(self.held, self.tree, part)
    }

    /// Whether anything in a range is wired.
    fn has_wired(&self, range: VaRange) -> bool {
        let was_wired = self.space.map.was_wired.load(Relaxed);
        was_wired && first_wired(self.tree, range, |_| ()).is_some()
    }

    /// Whether so much is shown of those of some ranges that lie in this map that to take it away
    /// takes longer than a step.
    #[inline]
    pub(crate) fn is_refilled(&self, lock: Lock, ahead: &[Ahead<'_, M>]) -> bool {
        let is_large = |ahead: &Ahead<'_, M>| ahead.range.pages().0 > PAGES_AT_ONCE as u64;
        lock == Lock::Unclaimed && ahead.iter().any(|ahead| is_large(ahead) && self.is_full(ahead))
    }

    #[inline(never)]
    fn is_full(&self, &Ahead { space, range, left, .. }: &Ahead<'_, M>) -> bool {
        if !core::ptr::eq(space, self.space) {
            return false;
        }
        match left {
            Left::Tables if !self.has_wired(range) => {
                self.uvm.is_better_forgotten(self.space, range)
            }
            Left::Tables | Left::Translations => self.uvm.shows_much(self.space, range),
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// Calls `step` with what is left of a range, with the map locked, until that is nothing;
    /// others have a turn in between. It says where it ended. What it took away is flushed before
    /// the lock goes.
    ///
    /// # Errors
    /// What a step fails with, which is the last then.
    pub(crate) fn try_in_steps<E>(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        (range, lock): (VaRange, Lock),
        mut step: impl FnMut(&mut LockedMap<'_, '_, M>, VaRange, &mut Gather) -> Result<Va, E>,
    ) -> Result<(), E> {
        let mut rest = range;
        while !rest.is_empty() {
            let mut down = Gather::new();
            let done = {
                let (mut tree, mut h) = match lock {
                    Lock::Unclaimed => space.map.lock(self.mem(), held, rest),
                    Lock::Claimed => space.map.lock_claimed(held),
                };
                let done = step(&mut space.locked(self, &mut tree, &mut h), rest, &mut down);
                down.flush(self.mem().pmap());
                done
            };
            down.perform(self.frames(), self.mem(), held);
            rest.start = done?;
            self.mem().pause(held);
        }
        Ok(())
    }

    /// Takes steps as [`try_in_steps`](Self::try_in_steps) does, of which none fails.
    pub(crate) fn in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: (VaRange, Lock),
        mut step: impl FnMut(&mut LockedMap<'_, '_, M>, VaRange, &mut Gather) -> Va,
    ) {
        let done: Result<(), Infallible> =
            self.try_in_steps(held, space, range, |map, rest, down| Ok(step(map, rest, down)));
        let Ok(()) = done;
    }

    /// Calls `step` with what is left of a range, with nothing locked, until that is nothing;
    /// others have a turn in between. It says where it ended.
    ///
    /// # Errors
    /// What a step fails with, which is the last then.
    pub(crate) fn by_parts<E>(
        &self,
        held: &mut Unlocked<'_>,
        range: VaRange,
        mut step: impl FnMut(&mut Unlocked<'_>, VaRange) -> Result<Va, E>,
    ) -> Result<(), E> {
        let mut rest = range;
        while !rest.is_empty() {
            rest.start = step(held, rest)?;
            if !rest.is_empty() {
                self.mem().pause(held);
            }
        }
        Ok(())
    }

    /// Lets others run. A thread that is being ended goes no further.
    pub(crate) fn pause_or_give_up(&self, held: &mut Unlocked<'_>) -> Result<(), NoMemory> {
        self.mem().pause(held);
        if self.mem().has_fatal_signal() {
            return Err(NoMemory);
        }
        Ok(())
    }

    /// Sums up what `count` says of each part of an entry with an amap, which one step at a time
    /// counts the slots of.
    pub(crate) fn count_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
        count: impl Fn(&Entry<M>, Range<u64>, &AmapBody<M>) -> usize,
    ) -> usize {
        let mut sum = 0;
        self.in_steps(held, space, (range, Lock::Unclaimed), |map, rest, _| {
            let mut part = first_part(map.tree, rest);
            if part.pages().0 > COUNTED as u64 {
                part = part_of_few_slots(map.held, map.tree, part);
            }
            map.tree.each(part, |e| {
                if let Some(aref) = &e.amap {
                    let slots = e.slots(aref, e.range.intersect(part));
                    sum += count(e, slots, &aref.amap.body.lock(map.held).0);
                }
            });
            part.end
        });
        sum
    }

    /// Takes back the wiring of at most so many of the range's pages and translations, and says up
    /// to where no other is wired. A wired translation is never forgotten (pmap law P1), so the
    /// pages to unwire are those that are mapped as wired; entries are not looked at. Cost: a load,
    /// where nothing was ever wired; else by the range's tables, and by wired pages.
    pub(crate) fn unwire_some(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        range: VaRange,
        most: usize,
    ) -> Va {
        if !space.map.was_wired.load(Relaxed) {
            return range.end;
        }
        let mut rest = range;
        for _ in 0..most {
            let Some((va, page)) = self.mem().pmap().unwire(&space.pmap, rest) else {
                return range.end;
            };
            self.unwire_page(held, page);
            rest.start = va + Pages(1);
        }
        rest.start
    }

    /// Takes back the wiring of a range's pages, and their translations, a part at a time, before
    /// the range goes: the step that takes it finds few. The entries stay wired, so what is touched
    /// meanwhile is wired then. Returns the range that it has unwired, to be
    /// [wired again](Self::wire_again) if the change fails.
    pub(crate) fn unwire_ahead(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) -> VaRange {
        let most = Pages(WIRED as u64);
        let is_much = space.map.was_wired.load(Relaxed) && range.pages() > most;
        let end = if is_much { Va(range.end.0 - most.bytes()) } else { range.start };
        let ahead = VaRange::new(range.start, end);
        self.in_steps(held, space, (ahead, Lock::Unclaimed), |map, rest, down| {
            let some = first_part(map.tree, rest);
            let Some((mut part, ())) = first_wired(map.tree, some, |_| ()) else { return some.end };
            part.end = self.unwire_some(map.held, space, part, WIRED);
            self.forget_range(map.held, space, part, down);
            part.end
        });
        ahead
    }

    /// Forgets most of a range's translations, before what they show goes, so that the step that
    /// takes it finds few. No thread relies on one that isn't wired (pmap law P1), and none is
    /// left that is, but for what is being wired now.
    #[inline]
    pub(crate) fn forget_ahead<'a>(
        &self,
        held: &mut Unlocked<'_>,
        space: &'a Space<M>,
        range: VaRange,
    ) -> Ahead<'a, M> {
        let unwired = match range.pages().0 <= PAGES_AT_ONCE as u64 {
            true => VaRange::new(range.start, range.start),
            false => self.forget_many(held, space, range),
        };
        Ahead { space, range, unwired, left: Left::Translations }
    }

    #[inline(never)]
    fn forget_many(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) -> VaRange {
        let unwired = self.unwire_ahead(held, space, range);
        let range = (range, Lock::Unclaimed);
        let _up_to_last = self.try_in_steps(held, space, range, |map, rest, down| {
            let end = self.mem().pmap().part(&space.pmap, rest, TRANSLATIONS);
            let part = VaRange::new(rest.start, end);
            if end == rest.end || map.has_wired(part) {
                return Err(());
            }
            self.forget_range(map.held, space, part, down);
            Ok(end)
        });
        unwired
    }

    /// Prepares a range's translations to be moved: forgets them, where that is the better way.
    pub(crate) fn move_ahead<'a>(
        &self,
        held: &mut Unlocked<'_>,
        space: &'a Space<M>,
        range: VaRange,
        is_moved_singly: bool,
    ) -> Ahead<'a, M> {
        if is_moved_singly || self.is_better_forgotten(space, range) {
            return self.forget_ahead(held, space, range);
        }
        let unwired = self.unwire_ahead(held, space, range);
        Ahead { space, range, unwired, left: Left::Tables }
    }

    /// Runs attempts of a change that takes away what some ranges show, which was [forgotten
    /// ahead](Self::forget_ahead). One that finds [too much](LockedMap::is_refilled) says `None`,
    /// and is made again with that forgotten and the maps claimed: threads that touch it again and
    /// again don't make it longer.
    pub(crate) fn attempt_ahead<T, E: From<NoMemory> + PartialEq>(
        &self,
        held: &mut Unlocked<'_>,
        ahead: &mut [Ahead<'_, M>],
        reserve: usize,
        mut once: impl FnMut(
            &mut Unlocked<'_>,
            usize,
            Lock,
            &[Ahead<'_, M>],
        ) -> Result<Option<T>, Stop<E>>,
    ) -> Result<T, E> {
        let mut lock = Lock::Unclaimed;
        self.attempt(held, reserve, |held, reserved| {
            if lock == Lock::Claimed {
                self.claim_and_forget(held, ahead, reserved)?;
            }
            once(held, reserved, lock, ahead)?.ok_or_else(|| {
                lock = Lock::Claimed;
                Stop::again(reserved)
            })
        })
    }

    /// Claims the maps of some ranges, and forgets all that is shown in these, in steps: in order
    /// of address, so that of two threads that want the same two maps one gets both.
    #[inline(never)]
    fn claim_and_forget<E: From<NoMemory>>(
        &self,
        held: &mut Unlocked<'_>,
        ahead: &mut [Ahead<'_, M>],
        reserved: usize,
    ) -> Result<(), Stop<E>> {
        ahead.sort_unstable_by_key(|ahead| core::ptr::from_ref(ahead.space));
        let is_one = |a: &Ahead<'_, M>, b: &Ahead<'_, M>| core::ptr::eq(a.space, b.space);
        let (mut claimed, mut result) = (0, Ok(()));
        for ranges in ahead.chunk_by_mut(is_one) {
            result = self.claim_whole(held, ranges[0].space);
            if result.is_err() {
                break;
            }
            claimed += ranges.len();
            for Ahead { space, range, unwired, .. } in ranges {
                self.forget_in_steps(held, space, *range);
                *unwired = *range;
            }
        }
        let result =
            result.and_then(|()| Ok(self.mem().reserve_heap(reserved).map_err(E::from)?));
        if result.is_err() {
            let maps = ahead[..claimed].chunk_by(is_one);
            maps.for_each(|ranges| ranges[0].space.map.unclaim(self.mem(), held));
        }
        result
    }

    /// Whether a range has more translations than are to be left where they were forgotten ahead.
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
    /// [`Stop::Wait`], if another thread has claimed it.
    pub(crate) fn claim_whole<E>(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
    ) -> Result<(), Stop<E>> {
        let (tree, _) = space.map.lock_now(self.mem(), held, space.map.bounds)?;
        space.map.claim(&tree);
        Ok(())
    }

    /// Unwires and forgets all that a range shows, in steps; the map is claimed.
    pub(crate) fn forget_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: VaRange,
    ) {
        self.in_steps(held, space, (range, Lock::Claimed), |map, rest, down| {
            let part = map.part_to_lower(rest);
            let end = self.unwire_some(map.held, space, part, WIRED);
            self.forget_range(map.held, space, VaRange::new(part.start, end), down);
            end
        });
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
        held: &mut Unlocked<'_>,
        space: &Space<M>,
    ) -> Result<(), NoMemory> {
        let all = (space.map.bounds, Lock::Unclaimed);
        self.try_in_steps(held, space, all, |map, rest, down| {
            if self.mem().has_fatal_signal() {
                return Err(NoMemory);
            }
            let (part, mut left) = (first_part(map.tree, rest), MAPPINGS_OF_A_STEP);
            let part = up_to_clip(map.tree, part, |e, own| {
                let is_unprotected = |aref: &&ARef<M>| aref.amap.is_unprotected.load(Relaxed);
                let Some(aref) = e.amap.as_ref().filter(is_unprotected) else { return own.end };
                let slots = e.slots(aref, own);
                let end = aref.write_protect(self, map.held, slots.clone(), &mut left, down);
                let end = end_of(own, end - slots.start, slots.end - slots.start);
                aref.amap.is_unprotected.store(end != e.range.end, Relaxed);
                end
            });
            Ok(part.end)
        })
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
