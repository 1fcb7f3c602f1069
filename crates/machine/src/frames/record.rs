//! Reading and writing a page's record: its owner, what is going on with it, its wirings. Who may write what is said in
//! the module above.

use super::{pack, unpack, Frames, Owner, PageFlags, Place, PLACES};
use crate::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::order::{Before, Held, PageQueues};
use crate::{Machine, PageNo};

impl<M: Machine> Frames<M> {
    /// Whose the page is.
    #[inline]
    pub fn owner(&self, page: PageNo) -> Owner {
        unpack(self.page(page).owner.load(Acquire))
    }

    /// The page's offset in its object, in pages.
    pub fn index(&self, page: PageNo) -> u64 {
        self.page(page).index.load(Relaxed)
    }

    /// Gives the page an owner, and its place in it.
    #[inline]
    pub fn set_owner(&self, page: PageNo, owner: Owner, index: u64) {
        let page = self.page(page);
        page.index.store(index, Relaxed);
        // Who reads the owner without its lock, to find it, finds the index that belongs to it.
        page.owner.store(pack(owner), Release);
    }

    /// What is going on with the page.
    #[inline]
    pub fn flags(&self, page: PageNo) -> PageFlags {
        PageFlags::from_bits_truncate(self.page(page).flags.load(Relaxed))
    }

    /// Sets flags.
    #[inline]
    pub fn set_flags(&self, page: PageNo, flags: PageFlags) {
        let record = self.page(page);
        record.flags.store(record.flags.load(Relaxed) | flags.bits(), Relaxed);
    }

    /// Clears flags and says what all flags were before.
    #[inline]
    pub fn clear_flags(&self, page: PageNo, flags: PageFlags) -> PageFlags {
        let record = self.page(page);
        let old = record.flags.load(Relaxed);
        record.flags.store(old & !flags.bits(), Relaxed);
        PageFlags::from_bits_truncate(old)
    }

    /// How often the page is wired.
    #[inline]
    pub fn wire_count(&self, page: PageNo) -> u32 {
        self.page(page).wire.load(Relaxed)
    }

    /// Wires the page once more. It stays on its queue, where the page daemon passes it by: most wirings last for one
    /// copy, and two hand-offs through the queues' lock would cost more than that.
    #[inline]
    pub fn wire(&self, page: PageNo) {
        self.page(page).wire.fetch_add(1, Relaxed);
    }

    /// Takes one wiring back; after the last, a page that is on no queue goes on its way to the active one.
    pub fn unwire<P: Before<PageQueues>>(&self, machine: &M, held: &mut Held<'_, P>, page: PageNo) {
        let count = self.page(page).wire.fetch_sub(1, Relaxed);
        debug_assert!(count > 0, "{page:?} is not wired");
        if count == 1 {
            self.activate(machine, held, page);
        }
    }

    /// Links a page that is on no list to the next of a chain; under the owner's lock, or by who made it busy.
    pub fn chain(&self, page: PageNo, next: Option<PageNo>) {
        debug_assert_eq!(self.place(page), Place::Nowhere, "{page:?} is on a list");
        self.link_next(page, next);
    }

    /// The page behind one in a chain of pages on no list.
    pub fn chained(&self, page: PageNo) -> Option<PageNo> {
        self.page(page).next()
    }

    /// Takes one wiring back and says whether it was the last; the page goes on no queue. For pages that have lost
    /// their owner: whoever takes the last wiring frees the page.
    pub fn unpin(&self, page: PageNo) -> bool {
        self.page(page).wire.fetch_sub(1, AcqRel) == 1
    }

    /// Where the page is linked.
    pub fn place(&self, page: PageNo) -> Place {
        PLACES[usize::from(self.page(page).place.load(Relaxed))]
    }
}
