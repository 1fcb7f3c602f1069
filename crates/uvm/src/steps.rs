//! Long operations in steps: what a program has made long is done a part at a time, and the host sees to others in between.
//!
//! A step holds the map's lock for some tens of entries, or some thousands of translations. Between two steps others may change the map,
//! so an operation is cut only where that is no more than what they could do before it or after it.

use machine::{order, Held, Machine, Pages, Pmap, Shootdown, Va, VaRange};

use crate::map::tree::Tree;
use crate::map::Entry;
use crate::{Space, Uvm};

/// Entries of a step.
const ENTRIES: usize = 64;
/// Translations of a step, about.
const TRANSLATIONS: usize = 2048;

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

impl<M: Machine> Uvm<M> {
    /// Calls `each` with every entry that overlaps the range, in order of address, under the map's lock, which isn't held all the time.
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
                let (tree, mut h) = space.map.lock(held, rest);
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

    /// Forgets most of a space's translations, before what they show goes, so that the step that takes it finds few. Nobody may rely on
    /// one that isn't wired (pmap law P1). A space with a wired one is left as it is.
    pub(crate) fn forget_ahead(&self, held: &mut Held<'_, order::Nothing>, space: &Space<M>) {
        let pmap = self.machine().pmap();
        let end = space.map.bounds.end;
        let (mut at, mut pages) = (space.map.bounds.start, Pages(TRANSLATIONS as u64));
        let mut before = pmap.resident(&space.pmap);
        while before > TRANSLATIONS
            && at < end
            && !space.map.was_wired.load(machine::lines::Ordering::Relaxed)
        {
            let part = VaRange::new(at, end.min(Va(at.0.saturating_add(pages.bytes()))));
            let mut down = Shootdown::new();
            {
                let (_tree, mut h) = space.map.lock(held, part);
                self.forget_range(&mut h, space, part, &mut down);
            }
            down.perform(self.machine(), held);
            self.machine().pause(held);
            let now = pmap.resident(&space.pmap);
            let is_sparse = before.saturating_sub(now) < TRANSLATIONS / 4;
            pages = if is_sparse { Pages(pages.0 * 2) } else { Pages(TRANSLATIONS as u64) };
            (at, before) = (part.end, now);
        }
    }
}
