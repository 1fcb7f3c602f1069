//! Moving and resizing a mapping: mremap's part.
//!
//! An entry's layers are named by slot and index, not by address, so a move changes the entry's
//! range and nothing below it: no page is copied, and the pages are mapped again as they are
//! touched, or moved with their tables.

use crate::page::Gather;
use machine::{Machine, PageRange, Pages, Pmap, Unlocked, Va, VaRange};

use crate::amap::cover::CHANGE_BYTES;
use crate::map::steps::Ahead;
use crate::map::tree::{built_bytes, Taken, Tree};
use crate::map::{find_like, moves_many, within, Change, Entry, LockedMap, MapError, RangeError};
use crate::{Space, Stop, Uvm};

/// Where a remapped range may go.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let range = memory(uvm, held, space, 4)?;
/// let at = uvm.remap(held, space, range, Pages(8), RemapPlace::MayMove)?;
/// assert!(uvm.is_mapped(held, space, pages(at, 8)));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapPlace {
    /// It stays, or the call fails.
    Stay,
    /// It may move if it can't grow where it is.
    MayMove,
    /// It moves here, in place of whatever is here; must not overlap the old range.
    Fixed(Va),
}

/// What becomes of the addresses that a mapping moves away from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// The mapping, without its private memory.
    Emptied,
}

impl<M: Machine> Uvm<M> {
    /// Changes the length of the mapping at `old` to `new_len` pages, moving it if `place` says so,
    /// and says where it lies then. What is added continues the mapping's last entry: more of its
    /// object, or zeroes.
    ///
    /// # Errors
    /// [`MapError::NoMapping`] if `old` has a hole, [`MapError::NoSpace`] if it can't grow in place
    /// or nowhere is room, [`MapError::Invalid`] for an empty, outside or overlapping range.
    /// Nothing has changed, except that a shrinking call may have unmapped its tail.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// let at = uvm.remap(held, space, range, Pages(64), RemapPlace::MayMove)?;
    /// assert_eq!((load(uvm, space, at)?, load(uvm, space, at + Pages(63))?), ([1], [0]));
    /// # Ok(()) });
    /// ```
    pub fn remap(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        old: PageRange,
        new_len: Pages,
        place: RemapPlace,
    ) -> Result<Va, MapError> {
        let old = VaRange::from(old);
        self.check_remap(space, old, new_len, place)?;
        self.move_range(held, space, old, new_len, place, Behind::Nothing)
    }

    /// Moves the mapping at `old` to `to`, in place of whatever is there, or to where there is
    /// room, and says where it lies then. At the old addresses the mapping stays without its
    /// private memory: private zeroes are zeroes again, private pages of an object are the
    /// object's, what is shared is there twice. Nothing there is wired. One step: no other mapping
    /// is ever at the old addresses. Cost: O(entries in the range). Source: Linux's
    /// MREMAP_DONTUNMAP.
    ///
    /// # Errors
    /// [`MapError::NoMapping`] if `old` has a hole, [`MapError::NoSpace`] if nowhere is room,
    /// [`MapError::NoMemory`], [`MapError::Invalid`] for an empty, outside or overlapping
    /// range. Nothing has changed.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 4)?;
    /// let at = uvm.remap_and_keep(held, space, range, None)?;
    /// assert_eq!((load(uvm, space, at)?, load(uvm, space, range.start)?), ([1], [0]));
    /// # Ok(()) });
    /// ```
    pub fn remap_and_keep(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        old: PageRange,
        to: Option<Va>,
    ) -> Result<Va, MapError> {
        let old = VaRange::from(old);
        let place = to.map_or(RemapPlace::MayMove, RemapPlace::Fixed);
        self.check_remap(space, old, old.pages(), place)?;
        self.move_range(held, space, old, old.pages(), place, Behind::Emptied)
    }

    fn move_range(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        mut old: VaRange,
        new_len: Pages,
        place: RemapPlace,
        behind: Behind,
    ) -> Result<Va, MapError> {
        if new_len < old.pages() {
            let end = old.start + new_len;
            let cut = PageRange::new(end, old.end).ok_or(MapError::Invalid)?;
            self.unmap(held, space, cut).map_err(|e| match e {
                RangeError::TooMany => MapError::TooMany,
                _ => MapError::NoMemory,
            })?;
            old.end = end;
        }
        let mut down = Gather::new();
        let mut replaced = Taken::new();
        // Where mappings are locked that have no pages.
        let mut moved = None;
        let concerned = match place {
            RemapPlace::Fixed(_) => space.map.bounds,
            // Where it would end behind all addresses it can't stay.
            RemapPlace::Stay | RemapPlace::MayMove => {
                VaRange::sized(old.start, new_len).unwrap_or(space.map.bounds)
            }
        };
        let tail = VaRange::sized(old.end, new_len - old.pages());
        let tail = tail.unwrap_or(VaRange::new(old.end, Va(u64::MAX)));
        let may_stay = {
            let (tree, _) = space.map.lock(self.mem(), held, tail);
            fits(&tree, space, tail, place)
        };
        let moved_from = match behind == Behind::Emptied || !may_stay {
            true => {
                let moves_many = matches!(place, RemapPlace::Fixed(va) if moves_many(old, va));
                self.move_ahead(held, space, old, moves_many)
            }
            false => Ahead::nothing(space, old),
        };
        let target = match place {
            RemapPlace::Fixed(va) => VaRange::new(va, va + new_len),
            RemapPlace::Stay | RemapPlace::MayMove => VaRange::new(old.start, old.start),
        };
        let mut ahead = [moved_from, self.forget_ahead(held, space, target)];
        let reserve = Change::MOVE.bytes::<M>() + CHANGE_BYTES;
        let result =
            self.attempt_ahead(held, &mut ahead, reserve, |held, reserved, lock, ahead| {
                let (mut tree, mut h) = space.map.lock_as(lock, self.mem(), held, concerned)?;
                let map = &mut space.locked(self, &mut tree, &mut h);
                if !map.tree.is_covered(old) {
                    return Err(Stop::Fail(MapError::NoMapping));
                }
                if behind == Behind::Nothing && fits(map.tree, space, tail, place) {
                    Change::ADD.ensure(map.tree, CHANGE_BYTES, reserved)?;
                    if map.grow(tail) {
                        moved = Some(tail);
                    }
                    return Ok(Some(old.start));
                }
                let start = match place {
                    RemapPlace::Stay => return Err(Stop::Fail(MapError::NoSpace)),
                    RemapPlace::MayMove => {
                        let like = find_like(map.tree, &space.map, old, new_len);
                        like.or_else(|| space.map.find_space(map.tree, new_len.bytes()))
                    }
                    RemapPlace::Fixed(va) => Some(va),
                }
                .ok_or(Stop::Fail(MapError::NoSpace))?;
                if self.moves_much(space, lock, old, start) || map.is_refilled(lock, ahead) {
                    return Ok(None);
                }
                let new = VaRange::new(start, start + new_len);
                map.exclude(new);
                let mut kept = 0;
                if behind == Behind::Emptied {
                    map.tree.each(old, |_| kept += 1);
                }
                // Several entries are taken out and put in again, and what stays behind is made and
                // put in.
                let change = Change::MOVE.with(map.tree, &[old, old, old, new]);
                let made = if kept > 0 { built_bytes::<Entry<M>>(kept) } else { 0 };
                change.ensure(map.tree, made + CHANGE_BYTES, reserved)?;
                if !map.has_room(1 + kept + map.clips(old) + map.clips(new)) {
                    return Err(Stop::Fail(MapError::TooMany));
                }
                if !map.tree.is_free(new) {
                    map.take_out(new, &mut replaced, &mut down);
                }
                if map.shift(old, start, behind, &mut down) {
                    moved = Some(new);
                }
                map.grow(VaRange::new(start + old.pages(), new.end));
                map.merge(new);
                if behind == Behind::Emptied {
                    map.merge(old);
                }
                Ok(Some(start))
            });
        self.release_entries(held, &mut replaced, &mut down);
        down.perform(self.frames(), self.mem(), held);
        // The mapping is where it should be; to bring in what is locked of it is best effort, as in
        // mremap(2).
        if let Some(new) = moved {
            self.wire_moved(held, space, new);
        }
        // It may stay after all, since another thread has unmapped what was in the way.
        if result.is_err() || result == Ok(old.start) {
            self.wire_ahead_again(held, &ahead);
        }
        result
    }

    fn check_remap(
        &self,
        space: &Space<M>,
        old: VaRange,
        len: Pages,
        place: RemapPlace,
    ) -> Result<(), MapError> {
        let inside = |r: VaRange| r.intersect(space.map.bounds) == r;
        if old.is_empty() || len.0 == 0 || !inside(old) {
            return Err(MapError::Invalid);
        }
        if len > space.map.bounds.pages() {
            return Err(MapError::NoSpace);
        }
        if let RemapPlace::Fixed(va) = place {
            return match within(space.map.bounds, va, len) {
                Some(new) if new.intersect(old).is_empty() => Ok(()),
                _ => Err(MapError::Invalid),
            };
        }
        Ok(())
    }
}

impl<M: Machine> LockedMap<'_, '_, M> {
    /// Moves the entries of `old` to `start`, with their translations where the port can; says
    /// whether any was wired.
    fn shift(&mut self, old: VaRange, start: Va, behind: Behind, down: &mut Gather) -> bool {
        let (uvm, space) = (self.uvm, self.space);
        self.clip(old);
        let mut moved = self.tree.take(old);
        let mut wired = false;
        moved.each(|e| {
            wired |= e.wired;
            if e.wired {
                uvm.unwire_some(self.held, space, e.range, usize::MAX);
            }
        });
        // Before the lock goes: a fault at the new place must not change what a CPU still reaches
        // by the old.
        if wired {
            // I5: a locked mapping, which it stays, shows wired pages only.
            uvm.forget_range(self.held, space, old, down);
        } else {
            let pmap = uvm.mem().pmap();
            pmap.pass(self.held, &space.pmap, old, &space.pmap, start, down);
            down.flush(pmap);
        }
        if behind == Behind::Emptied {
            let emptied = moved.map(|entry| {
                let entry = entry.emptied();
                entry.attach();
                entry
            });
            uvm.count(crate::Counter::EntriesMade, moved.len() as u64);
            self.tree.put_back(emptied);
        }
        moved.shift(old.start, start);
        self.tree.put_back(moved);
        wired
    }

    /// Continues the entry that ends where `tail` starts; says whether that is locked.
    fn grow(&mut self, tail: VaRange) -> bool {
        if tail.is_empty() {
            return false;
        }
        let Some(last) = self.tree.get(Va(tail.start.0 - 1)) else { return false };
        let is_wired = last.wired;
        let object = last.object.as_ref().map(|oref| oref.behind(last.len()));
        let more = Entry { range: tail, object, wired: is_wired, ..last.emptied() };
        self.add(more, false);
        is_wired
    }
}

/// Whether a mapping that grows by `tail` stays where it is.
fn fits<M: Machine>(
    tree: &Tree<Entry<M>>,
    space: &Space<M>,
    tail: VaRange,
    place: RemapPlace,
) -> bool {
    let is_free = || tail.intersect(space.map.bounds) == tail && tree.is_free(tail);
    !matches!(place, RemapPlace::Fixed(_)) && (tail.is_empty() || is_free())
}
