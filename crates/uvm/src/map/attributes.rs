//! Changing a range's attributes: protection, inheritance, advice.
//!
//! Each checks the whole range first and then changes it, so an error leaves everything as it was. Entries that have
//! become alike grow together, so that a heap which grows by mprotect stays two entries however often it does.

use machine::{order, Held, Machine, Pmap, Prot, Shootdown, VaRange};

use super::tree::Tree;
use super::{clip, entry_bytes, Advice, Entry, Inherit, RangeError};
use crate::{Space, Uvm};

impl<M: Machine> Uvm<M> {
    /// Sets the protection of a range. Lowering reaches translations before this returns; raising is left to the
    /// next fault.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, [`RangeError::Access`] beyond a mapping's maximum, or
    /// [`RangeError::NoMemory`]: nothing has changed.
    pub fn protect(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        prot: Prot,
    ) -> Result<(), RangeError> {
        let mut down = Shootdown::new();
        let result = self.attempt(held, 4 * entry_bytes::<M>(), |held, _| {
            let (mut tree, mut h) = space.map.lock(held, range);
            covered(&tree, range)?;
            tree.try_each(range, &mut |e| {
                if e.max_prot.contains(prot) {
                    Ok(())
                } else {
                    Err(RangeError::Access)
                }
            })?;
            clip(&mut tree, range);
            let mut lowers = false;
            tree.each_mut(range, |e| {
                lowers |= !prot.contains(e.prot);
                e.prot = prot;
                if e.wired && prot == Prot::NONE {
                    // The translations go; a fault wires the pages again once access is back.
                    self.unwire_translations(&mut h, space, e.range);
                }
            });
            if lowers {
                self.machine().pmap().protect(&mut h, &space.pmap, range, prot, &mut down);
                // Before the lock goes: a fault that finds the new protection must not meet the old translation.
                down.flush(self.machine().pmap());
            }
            self.join(&mut tree, &mut h, range);
            Ok(())
        });
        down.perform(self.machine(), held);
        result
    }

    /// Sets what a child will get of a range: minherit. Source: 1999, section 5.4.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, or [`RangeError::NoMemory`]: nothing has changed.
    pub fn inherit(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        inherit: Inherit,
    ) -> Result<(), RangeError> {
        self.set(held, space, range, |e| e.inherit = inherit)
    }

    /// Says how a range will be used: which neighbours a fault brings along.
    ///
    /// # Errors
    /// [`RangeError::NoMapping`] for a hole, or [`RangeError::NoMemory`]: nothing has changed.
    pub fn advise(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        advice: Advice,
    ) -> Result<(), RangeError> {
        self.set(held, space, range, |e| e.advice = advice)
    }

    fn set(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        mut change: impl FnMut(&mut Entry<M>),
    ) -> Result<(), RangeError> {
        self.attempt(held, 4 * entry_bytes::<M>(), |held, _| {
            let (mut tree, mut h) = space.map.lock(held, range);
            covered(&tree, range)?;
            clip(&mut tree, range);
            tree.each_mut(range, &mut change);
            self.join(&mut tree, &mut h, range);
            Ok(())
        })
    }
}

pub(super) fn covered<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> Result<(), RangeError> {
    if tree.is_covered(range) {
        Ok(())
    } else {
        Err(RangeError::NoMapping)
    }
}
