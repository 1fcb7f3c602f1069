//! A donation: entries move from one map to another, both locked.

use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, Pmap, Unlocked, Va, VaRange};

use super::{check_pass, passable, Pass};
use crate::map::lock::TreeGuard;
use crate::map::steps::{Ahead, Lock};
use crate::map::tree::{built_bytes, Taken, Tree};
use crate::map::{
    choose_place, clip, find_like, moves_many, Change, Entry, MapError, Place, Writes, NOWHERE,
};
use crate::page::Gather;
use crate::stat::Counter;
use crate::{Space, Stop, Uvm};

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

/// A donation under way.
struct Donation<'a, M: Machine> {
    uvm: &'a Uvm<M>,
    from: &'a Space<M>,
    range: VaRange,
    to: &'a Space<M>,
    place: Place,
    mode: Pass,
    down: Gather,
    /// What was at its new place.
    replaced: Taken<Entry<M>>,
}

impl<M: Machine> Uvm<M> {
    /// Moves what lies in a range of one space to another space, or to another place.
    pub(super) fn donate(
        &self,
        held: &mut Unlocked<'_>,
        (from, range): (&Space<M>, VaRange),
        to: &Space<M>,
        place: Place,
        mode: Pass,
    ) -> Result<Va, MapError> {
        let new = check_pass(from, range, to, place)?;
        let is_moved_singly = place.fixed().is_some_and(|va| moves_many(range, va));
        let replaces = if matches!(place, Place::Fixed(_)) { new } else { NOWHERE };
        let (uvm, replaced, down) = (self, Taken::new(), Gather::new());
        let mut ahead = [
            self.move_ahead(held, from, range, is_moved_singly),
            self.forget_ahead(held, to, replaces),
        ];
        let mut donation = Donation { uvm, from, range, to, place, mode, down, replaced };
        let reserve = Change::MOVE.bytes::<M>();
        let result =
            self.attempt_ahead(held, &mut ahead, reserve, |held, reserved, lock, ahead| {
                donation.attempt(held, reserved, lock, ahead)
            });
        self.release_entries(held, &mut donation.replaced, &mut donation.down);
        donation.down.perform(self.frames(), self.mem(), held);
        if result.is_err() {
            self.wire_ahead_again(held, &ahead);
        }
        result
    }
}

impl<M: Machine> Donation<'_, M> {
    /// One attempt; `None` if so much is shown of what is given or replaced that the maps are to be
    /// claimed first.
    fn attempt(
        &mut self,
        held: &mut Unlocked<'_>,
        reserved: usize,
        lock: Lock,
        ahead: &[Ahead<'_, M>],
    ) -> Result<Option<Va>, Stop<MapError>> {
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
        // All that can be refused is, before anything is cut.
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
        if is_full || uvm.moves_much(from, lock, range, at) {
            return Ok(None);
        }
        let need = heap_bytes(&mut trees, new, entries);
        Stop::ensure(need, reserved)?;
        clip(&mut trees.from, range);
        let mut passed = self.take_part(&mut trees.from, &mut h);
        // What was there goes first: a table may come in its place.
        if !trees.to().is_free(new) {
            let (replaced, down) = (&mut self.replaced, &mut self.down);
            to.locked(uvm, trees.to(), &mut h).take_out(new, replaced, down);
        }
        uvm.mem().pmap().pass(&mut h, &from.pmap, range, &to.pmap, at, &mut self.down);
        self.down.flush(uvm.mem().pmap());
        passed.each(|e| e.note_copier(&mut h, to.family));
        passed.shift(range.start, at);
        trees.to().put_back(passed);
        from.locked(uvm, &mut trees.from, &mut h).merge(range);
        to.locked(uvm, trees.to(), &mut h).merge(new);
        uvm.count(Counter::EntriesPassed, entries as u64);
        Ok(Some(at))
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

/// Heap bytes for all that a donation does behind this point.
fn heap_bytes<M: Machine>(trees: &mut Trees<'_, M>, new: VaRange, entries: usize) -> usize {
    // Both trees are cut, and a range put into either; several entries are made as a tree, or
    // taken as one.
    let several = usize::from(entries > 1);
    let tallest = trees.from.splice_bytes().max(trees.to().splice_bytes());
    let cut = Change { insertions: 3, splices: 0 };
    several * 3 * tallest
        + built_bytes::<Entry<M>>(entries)
        + cut.bytes_in(&trees.from)
        + cut.with(trees.to(), &[new]).bytes_in(trees.to())
}
