//! Moving and resizing a mapping: mremap's part.
//!
//! An entry's layers are named by slot and index, not by address, so a move changes the entry's range and nothing
//! below it: no page is copied, and the pages are mapped again as they are touched, or moved with their tables.

use machine::{order, Held, Machine, Pages, Pmap, Shootdown, Va, VaRange};

use super::merge::Growth;
use super::remove::release_bytes;
use super::tree::Tree;
use super::{clip, entry_bytes, Entry, MapError, ORef, Writes};
use crate::slots::Heap;
use crate::{Space, Stop, Uvm};

/// Where a remapped range may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapPlace {
    /// It stays, or the call fails.
    Stay,
    /// It may move if it can't grow where it is.
    MayMove,
    /// It moves here, in place of whatever is here; must not overlap the old range.
    Fixed(Va),
}

impl<M: Machine> Uvm<M> {
    /// Changes the length of the mapping at `old` to `new_len` pages, moving it if `place` says so, and says where it
    /// lies then. What is added continues the mapping's last entry: more of its object, or zeroes.
    ///
    /// # Errors
    /// [`MapError::NoMapping`] if `old` has a hole, [`MapError::NoSpace`] if it can't grow in place or nowhere is
    /// room, [`MapError::Invalid`] for an empty, unaligned, outside or overlapping range. Nothing has changed, except
    /// that a shrinking call may have unmapped its tail.
    pub fn remap(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        old: VaRange,
        new_len: Pages,
        place: RemapPlace,
    ) -> Result<Va, MapError> {
        self.check_remap(space, old, new_len, place)?;
        let mut old = old;
        if new_len < old.pages() {
            let end = old.start + new_len;
            self.unmap(held, space, VaRange::new(end, old.end)).map_err(|_| MapError::NoMemory)?;
            old.end = end;
        }
        let mut down = Shootdown::new();
        let mut replaced = Tree::new();
        let mut wired = false;
        let concerned = match place {
            RemapPlace::Fixed(_) => space.map.bounds,
            RemapPlace::Stay | RemapPlace::MayMove => VaRange::new(old.start, old.start + new_len),
        };
        let result = self.attempt(held, 6 * entry_bytes::<M>(), |held, reserved| {
            let (mut tree, mut h) = space.map.lock_whole(held, concerned);
            if !tree.is_covered(old) {
                return Err(Stop::Fail(MapError::NoMapping));
            }
            let tail = VaRange::new(old.end, old.end + (new_len - old.pages()));
            let stays = !matches!(place, RemapPlace::Fixed(_));
            let fits = tail.is_empty() || tail.intersect(space.map.bounds) == tail && tree.is_free(tail);
            if stays && fits {
                self.grow(&mut tree, &mut h, tail);
                wired = tree.get(old.start).is_some_and(|e| e.wired);
                return Ok(old.start);
            }
            let start = match place {
                RemapPlace::Stay => return Err(Stop::Fail(MapError::NoSpace)),
                RemapPlace::MayMove => tree.find_space(space.map.bounds, new_len.bytes()),
                RemapPlace::Fixed(va) => Some(va),
            }
            .ok_or(Stop::Fail(MapError::NoSpace))?;
            let new = VaRange::new(start, start + new_len);
            let need = 6 * entry_bytes::<M>() + release_bytes(&tree, &mut h, new);
            if need > reserved {
                return Err(Stop::Heap(need));
            }
            if !tree.is_free(new) {
                clip(&mut tree, new);
                replaced = tree.take(new);
                self.unwire_entries(&mut h, space, &mut replaced);
                self.forget_range(&mut h, space, new, &mut down);
            }
            wired = self.shift(&mut tree, &mut h, space, old, start, &mut down);
            self.grow(&mut tree, &mut h, VaRange::new(start + old.pages(), new.end));
            self.join(&mut tree, &mut h, new);
            Ok(start)
        });
        self.release_entries(held, replaced, Heap::Reserved, &mut down);
        down.perform(self.machine(), held);
        if let (Ok(start), true) = (result, wired) {
            // The mapping is where it should be; locking it again is best effort, as in mremap(2).
            let _ = self.wire(held, space, VaRange::new(start, start + new_len));
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
        let aligned = old.start.is_page_aligned() && old.end.is_page_aligned();
        if old.is_empty() || len.0 == 0 || !aligned || !inside(old) {
            return Err(MapError::Invalid);
        }
        if len > space.map.bounds.pages() {
            return Err(MapError::NoSpace);
        }
        if let RemapPlace::Fixed(va) = place {
            let new = VaRange::sized(va, len).filter(|&n| inside(n) && va.is_page_aligned());
            return match new {
                Some(new) if new.intersect(old).is_empty() => Ok(()),
                _ => Err(MapError::Invalid),
            };
        }
        Ok(())
    }

    /// Moves the entries of `old` to `start`, with their translations where the port can; says whether any was wired.
    fn shift(
        &self,
        tree: &mut Tree<Entry<M>>,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        old: VaRange,
        start: Va,
        down: &mut Shootdown,
    ) -> bool {
        clip(tree, old);
        let mut moved = tree.take(old);
        let mut wired = false;
        moved.each(old, |e| wired |= e.wired);
        self.unwire_entries(held, space, &mut moved);
        // Before the lock goes: a fault at the new place must not change what a CPU still reaches by the old.
        self.machine().pmap().pass(held, &space.pmap, old, &space.pmap, start, down);
        down.flush(self.machine().pmap());
        moved.drain(|mut entry| {
            let to = start + (entry.range.start - old.start);
            entry.range = VaRange::new(to, to + entry.len());
            tree.insert(entry);
        });
        wired
    }

    /// Continues the entry that ends where `tail` starts.
    fn grow(&self, tree: &mut Tree<Entry<M>>, held: &mut Held<'_, order::Map>, tail: VaRange) {
        if tail.is_empty() {
            return;
        }
        let Some(last) = tree.get(Va(tail.start.0 - 1)) else { return };
        let skip = last.len();
        let through = last.writes == Writes::Through;
        let more = Entry {
            range: tail,
            amap: None,
            object: last.object.as_ref().map(|o| ORef { pager: o.pager.clone(), offset: o.offset + skip }),
            writes: if through { Writes::Through } else { Writes::NeedCopy },
            wired: false,
            submap: None,
            name: last.name.clone(),
            ..*last
        };
        self.add(tree, held, more, Growth::Any);
    }
}
