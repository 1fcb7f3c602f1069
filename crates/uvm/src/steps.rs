//! Long operations in steps: what a program has made long is done a part at a time, and the host
//! sees to others in between.
//!
//! A step holds the map's lock for some tens of entries, or some thousands of translations. Between
//! two steps others may change the map, so an operation is cut only where that is no more than what
//! they could do before it or after it.

use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, Pages, Pmap, Shootdown, VaRange};

use crate::map::tree::Tree;
use crate::map::Entry;
use crate::{Space, Uvm};

/// Entries of a step.
pub(crate) const ENTRIES: usize = 64;
/// Translations of a step, about.
pub(crate) const TRANSLATIONS: usize = 2048;
/// Slots of a step that are emptied.
pub(crate) const SLOTS: usize = if cfg!(feature = "small-leaves") { 4 } else { 1024 };
/// Wired ones, whose pages are unwired one by one.
pub(crate) const WIRED: usize = if cfg!(feature = "small-leaves") { 2 } else { 512 };

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

/// The first part of a range that is wired, and is one entry's.
fn first_wired<M: Machine>(tree: &Tree<Entry<M>>, range: VaRange) -> Option<VaRange> {
    tree.try_each(range, &mut |e| if e.wired { Err(e.range.intersect(range)) } else { Ok(()) }).err()
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
        let mut rest = range;
        loop {
            {
                let (tree, mut h) = space.map.lock(self.machine(), held, rest);
                let part = first_part(&tree, rest);
                tree.each(part, |e| each(e, &mut h));
                rest.start = part.end;
            }
            if rest.is_empty() {
                return;
            }
            self.machine().pause(held);
        }
    }

    /// The part of a range that one step empties: of some entries, some thousands of translations, and as many slots with something
    /// in them.
    pub(crate) fn part_to_empty(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        tree: &Tree<Entry<M>>,
        range: VaRange,
    ) -> VaRange {
        let mut part = first_part(tree, range);
        part.end = self.machine().pmap().part(&space.pmap, part, TRANSLATIONS);
        let mut left = SLOTS;
        let cut = tree.try_each(part, &mut |e| {
            let (Some(aref), own) = (&e.amap, e.range.intersect(part)) else { return Ok(()) };
            let slots = e.slots(aref, own);
            let end = aref.few(held, slots.clone(), &mut left);
            if end == slots.end {
                Ok(())
            } else {
                Err(own.start + Pages(end - slots.start))
            }
        });
        VaRange::new(part.start, cut.err().unwrap_or(part.end))
    }

    /// Takes back the wiring of a range's pages, and their translations, a part at a time, before the range goes: the
    /// step that takes it finds few. The entries stay wired, so what is touched meanwhile is wired then. Returns what it
    /// has looked at: if the change is refused, that is [wired again](Self::wire_again).
    pub(crate) fn unwire_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> VaRange {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && rest.pages().0 > WIRED as u64 {
            let mut down = Shootdown::new();
            {
                let (tree, mut h) = space.map.lock(self.machine(), held, rest);
                let Some(mut part) = first_wired(&tree, rest) else { break };
                part.end = self.unwire_some(&mut h, space, part, WIRED);
                self.forget_range(&mut h, space, part, &mut down);
                rest.start = part.end;
            }
            down.perform(self.machine(), held);
            self.machine().pause(held);
        }
        VaRange::new(range.start, rest.start)
    }

    /// Forgets most of a range's translations, before what they show goes, so that the step that takes it finds few. Nobody may rely on
    /// one that isn't wired (pmap law P1), and none is left that is but by who wires it now. Returns what was unwired.
    pub(crate) fn forget_ahead(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) -> VaRange {
        let unwired = self.unwire_ahead(held, space, range);
        let mut rest = range;
        while rest.pages().0 > TRANSLATIONS as u64 {
            let mut down = Shootdown::new();
            {
                let (tree, mut h) = space.map.lock(self.machine(), held, rest);
                let end = self.machine().pmap().part(&space.pmap, rest, TRANSLATIONS);
                let part = VaRange::new(rest.start, end);
                let may_be_wired = space.map.was_wired.load(Relaxed) && first_wired(&tree, part).is_some();
                if part.end == rest.end || may_be_wired {
                    break;
                }
                self.forget_range(&mut h, space, part, &mut down);
                rest.start = part.end;
            }
            down.perform(self.machine(), held);
            self.machine().pause(held);
        }
        unwired
    }
}
