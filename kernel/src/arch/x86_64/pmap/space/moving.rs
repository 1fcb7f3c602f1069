//! Moving last tables from one space to another, with all that is mapped by them: what a page's
//! record says of its mapping, the table and the entry, stays true.
//!
//! A table on its way is in no tree, and its record still says where it was: a CPU that comes from
//! one of its pages meanwhile tells the CPUs of the space that the table leaves, which are those
//! that may hold translations by it. The table is the other space's once those CPUs have all
//! forgotten. Both spaces' maps are locked, so no thread faults in either range.

use super::*;
use crate::arch::pmap::tlb::Stale;
use machine::Shootdown;

/// What a last table serves.
pub(in super::super) const SERVES: u64 = 1 << SPAN;

impl Space {
    /// Takes the last table that serves a span out of the tree, if there is one.
    pub(in super::super) fn detach(
        &self,
        va: u64,
        moved: &mut Stack,
        stale: &mut Stale,
        down: &mut Shootdown,
    ) {
        let _tree = self.lock();
        let Some(parent) = self.parent(va) else { return };
        let slot = &parent[index(va, 1)];
        let entry = slot.load(Relaxed);
        if entry & PRESENT == 0 {
            return;
        }
        slot.swap(0, SeqCst);
        record(page_at(place(parent))).add_count(u32::MAX);
        let page = page_at(entry & ADDRESS);
        self.unlink(page);
        stale.add_all(va, va + SERVES - machine::PAGE_SIZE as u64, down);
        moved.push(page);
    }

    /// Makes the tables above the last one that would serve an address. Says whether a table can
    /// come there: there may be no memory for those above, or an empty one there that an unmapping
    /// has left.
    pub(in super::super) fn make_way<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        va: u64,
    ) -> bool {
        let _tree = self.lock();
        let parent = self.walk_or_make(held, va, 1);
        parent.is_ok_and(|parent| parent[index(va, 1)].load(Relaxed) & PRESENT == 0)
    }

    /// Puts a detached table where the way to it has been made and no table is.
    pub(in super::super) fn adopt(&self, page: PageNo, va: u64) {
        let _tree = self.lock();
        let Some(parent) = self.parent(va) else { unreachable!("the way to a table was not made") };
        let slot = &parent[index(va, 1)];
        assert!(slot.load(Relaxed) == 0, "a table comes where another is");
        {
            let own: Locked<{ record::TABLE }> = record(page).lock();
            own.words[PARENT].store(page_at(place(parent)).0, Relaxed);
            let shape = own.words[SHAPE].load(Relaxed);
            own.words[SHAPE].store(shape & !IN_PARENT | index(va, 1) as u32, Relaxed);
            own.wide.store(key(self.root, va), Relaxed);
            self.link(page);
        }
        record(page_at(place(parent))).add_count(1);
        slot.store(pa(page) | PRESENT | WRITE | USER, SeqCst);
    }

    /// Where a detached table was: the first address that it served.
    pub(in super::super) fn served(page: PageNo) -> u64 {
        va_of(record(page), 0)
    }

    /// The table that has the entry for the last table of an address. The space's lock is held.
    fn parent(&self, va: u64) -> Option<&'static Table> {
        self.top.walk(va, 1).ok()
    }
}
