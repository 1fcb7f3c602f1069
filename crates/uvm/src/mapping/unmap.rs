//! Unmapping a range: see `map::remove`.

use crate::page::Gather;
use machine::{Machine, PageRange, Unlocked, VaRange};

use crate::map::tree::Taken;
use crate::map::{Change, RangeError};
use crate::{Space, Stop, Uvm};

impl<M: Machine> Uvm<M> {
    /// Removes every mapping in the range; holes are no error. Anonymous memory that no other entry
    /// refers to is freed at once. Cost: O(log n) and what was there.
    ///
    /// A range that would cut a page in two isn't taken:
    /// ```compile_fail,E0308
    /// # use machine::{order::Nothing, Held, Machine, VaRange};
    /// fn f<M: Machine>(uvm: &uvm::Uvm<M>, h: &mut Held<'_, Nothing>, s: &uvm::Space<M>, r:
    /// VaRange) {
    ///     let _ = uvm.unmap(h, s, r);
    /// }
    /// ```
    /// ```
    /// # use machine::{order::Nothing, Held, Machine, VaRange};
    /// fn f<M: Machine>(uvm: &uvm::Uvm<M>, h: &mut Held<'_, Nothing>, s: &uvm::Space<M>, r:
    /// VaRange) {
    ///     let _ = r.try_into().map(|pages| uvm.unmap(h, s, pages));
    /// }
    /// ```
    /// Source: UVM's `uvm_unmap_remove` and `uvm_unmap_detach`.
    ///
    /// # Errors
    /// [`RangeError::NoMemory`] if an entry at the range's ends can't be cut,
    /// [`RangeError::TooMany`] if a hole in one would make the map have too many: nothing has
    /// changed.
    pub fn unmap(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        range: PageRange,
    ) -> Result<(), RangeError> {
        let range = VaRange::from(range);
        let mut down = Gather::new();
        let mut old = Taken::new();
        let mut ahead = [self.forget_ahead(held, space, range)];
        let reserve = Change::TAKE.bytes::<M>();
        let result =
            self.attempt_ahead(held, &mut ahead, reserve, |held, reserved, lock, ahead| {
                let (mut tree, mut h) = space.map.lock_as(lock, self.mem(), held, range)?;
                let map = &mut space.locked(self, &mut tree, &mut h);
                if map.is_refilled(lock, ahead) {
                    return Ok(None);
                }
                Change::TAKE.ensure(map.tree, 0, reserved)?;
                let first = map.tree.get(range.start).map(|e| e.range);
                // Of two clips one makes up for what goes, unless both are one entry's.
                let splits = first.is_some_and(|e| e.start < range.start && range.end < e.end);
                if splits && !map.has_room(1) {
                    return Err(Stop::Fail(RangeError::TooMany));
                }
                if first != Some(range) {
                    map.clip(range);
                }
                tree.take_into(range, &mut old);
                if !old.is_empty() {
                    let _range = space.map.pin_range(tree, range);
                    self.unwire_some(&mut h, space, range, usize::MAX);
                    self.forget_range(&mut h, space, range, &mut down);
                }
                Ok(Some(()))
            });
        self.release_entries(held, &mut old, &mut down);
        down.perform(self.frames(), self.mem(), held);
        self.clear_left(held);
        if result.is_err() {
            self.wire_ahead_again(held, &ahead);
        }
        result
    }
}
