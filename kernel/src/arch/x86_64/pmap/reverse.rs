//! From a page to its mappings, and its gathered referenced and modified bits.
//!
//! ```text
//!   record of page: table | index, bits | more ---> node: table | index | next ---> ...
//! ```
//! Most pages are mapped once: that mapping is in the record itself. Further ones, of pages that a fork or a shared object shares, are
//! nodes from frames of their own; a frame of nodes is never given back.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use machine::order::{Before, Held, PageCache};
use machine::{Machine, NoMemory, PageNo, Reserve, Shootdown, Va, VaRange, PAGE_SIZE};

use super::space::{self, record};
use super::{CACHED, NIL};
use crate::arch::machine::KERNEL;
use crate::arch::tables::{table, ACCESSED, DIRTY};

/// Where a page's record keeps what.
const TABLE: usize = 0;
const PLACE: usize = 1;
const MORE: usize = 2;

/// The index in a record's place word; the gathered bits lie above.
const INDEX: u32 = 511;
/// Shift of `ACCESSED` and `DIRTY` in the place word.
const BITS: u32 = 16;
const GATHERED: u64 = ACCESSED | DIRTY;

/// Nodes in a frame.
const NODES: u32 = 256;

#[repr(C)]
struct Node {
    table: AtomicU32,
    index: AtomicU32,
    next: AtomicU32,
    unused: AtomicU32,
}

/// Nodes that are free.
pub(super) struct Nodes {
    free: u32,
}

/// A node by its number: frame and place in the frame.
#[inline]
fn node(number: u32) -> &'static Node {
    let frame = KERNEL.address(PageNo(number / NODES));
    // SAFETY: node numbers are made in `refill` only, of frames that hold nodes for ever; the fields are atomics.
    unsafe { &*((frame as *const Node).add((number % NODES) as usize)) }
}

/// One mapping of a page.
pub(super) struct Mapping {
    pub(super) table: PageNo,
    pub(super) at: usize,
}

impl Mapping {
    fn new(table: u32, at: u32) -> Mapping {
        Mapping { table: PageNo(table), at: at as usize }
    }

    fn slot(&self) -> &'static core::sync::atomic::AtomicU64 {
        &table(KERNEL.frames().pa(self.table).0)[self.at]
    }

    pub(super) fn load(&self) -> u64 {
        self.slot().load(Relaxed)
    }

    pub(super) fn store(&self, entry: u64) {
        self.slot().store(entry, Relaxed);
    }

    /// Notes that the translation by `entry` is no longer what it was.
    pub(super) fn note(&self, entry: u64, down: &mut Shootdown) {
        if entry & CACHED != 0 {
            let (root, va) = space::whose(self.table, self.at);
            let range = VaRange::new(Va(va), Va(va + PAGE_SIZE as u64));
            down.note(u64::from(root.0), range, space::cpus_of(root));
        }
    }

    /// Counts the mapping out.
    pub(super) fn removed(&self) {
        space::count_out(self.table);
    }
}

impl Nodes {
    pub(super) const fn new() -> Nodes {
        Nodes { free: NIL }
    }

    /// Notes that `page` is mapped by entry `at` of `table`.
    ///
    /// # Errors
    /// [`NoMemory`]; nothing has changed.
    #[inline]
    pub(super) fn link<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
        page: PageNo,
        table: PageNo,
        at: usize,
    ) -> Result<(), NoMemory> {
        let record = record(page);
        if record[TABLE].load(Relaxed) == NIL {
            record[TABLE].store(table.0, Relaxed);
            let bits = record[PLACE].load(Relaxed) & !INDEX;
            record[PLACE].store(bits | at as u32, Relaxed);
            return Ok(());
        }
        if self.free == NIL {
            self.refill(held)?;
        }
        let number = self.free;
        let node = node(number);
        self.free = node.next.load(Relaxed);
        node.table.store(table.0, Relaxed);
        node.index.store(at as u32, Relaxed);
        node.next.store(record[MORE].load(Relaxed), Relaxed);
        record[MORE].store(number, Relaxed);
        Ok(())
    }

    /// Forgets that entry `at` of `table` maps `page`, and keeps the bits that the entry had.
    #[inline]
    pub(super) fn unlink(&mut self, page: PageNo, table: PageNo, at: usize, entry: u64) {
        let record = record(page);
        let place = record[PLACE].load(Relaxed) | ((entry & GATHERED) as u32) << BITS;
        record[PLACE].store(place, Relaxed);
        let more = record[MORE].load(Relaxed);
        if record[TABLE].load(Relaxed) == table.0 && place & INDEX == at as u32 {
            if more == NIL {
                record[TABLE].store(NIL, Relaxed);
                return;
            }
            let node = node(more);
            record[TABLE].store(node.table.load(Relaxed), Relaxed);
            record[PLACE].store(place & !INDEX | node.index.load(Relaxed), Relaxed);
            record[MORE].store(node.next.load(Relaxed), Relaxed);
            self.give(more);
            return;
        }
        let mut link = &record[MORE];
        loop {
            let number = link.load(Relaxed);
            assert!(number != NIL, "{page:?} is mapped by a table that its record doesn't name");
            let this = node(number);
            if this.table.load(Relaxed) == table.0 && this.index.load(Relaxed) == at as u32 {
                link.store(this.next.load(Relaxed), Relaxed);
                return self.give(number);
            }
            link = &this.next;
        }
    }

    fn give(&mut self, number: u32) {
        node(number).next.store(self.free, Relaxed);
        self.free = number;
    }

    #[cold]
    fn refill<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>) -> Result<(), NoMemory> {
        let frame = KERNEL.frames().alloc(&KERNEL, held, Reserve::Kernel)?;
        // A number must fit 32 bits and not be NIL: frames up to 64 GiB.
        let first = frame.0.checked_mul(NODES).filter(|n| n < &(NIL - NODES)).ok_or(NoMemory)?;
        for number in (first..first + NODES).rev() {
            self.give(number);
        }
        Ok(())
    }
}

/// A page's first mapping.
pub(super) fn first(page: PageNo) -> Option<Mapping> {
    let record = record(page);
    let table = record[TABLE].load(Relaxed);
    (table != NIL).then(|| Mapping::new(table, record[PLACE].load(Relaxed) & INDEX))
}

/// Calls `f` with every mapping of a page.
pub(super) fn each(page: PageNo, mut f: impl FnMut(&Mapping)) {
    let Some(mapping) = first(page) else { return };
    f(&mapping);
    let mut number = record(page)[MORE].load(Relaxed);
    while number != NIL {
        let node = node(number);
        f(&Mapping::new(node.table.load(Relaxed), node.index.load(Relaxed)));
        number = node.next.load(Relaxed);
    }
}

/// The accessed and dirty bits of a page: those gathered, and those in its entries.
pub(super) fn gather(page: PageNo) -> u64 {
    let mut bits = u64::from(record(page)[PLACE].load(Relaxed) >> BITS);
    each(page, |mapping| bits |= mapping.load());
    bits & GATHERED
}

/// Clears `bit` in a page's record and entries; `f` is told of every entry that had it.
pub(super) fn clear(page: PageNo, bit: u64, mut f: impl FnMut(&Mapping, u64)) {
    let place = &record(page)[PLACE];
    place.store(place.load(Relaxed) & !((bit as u32) << BITS), Relaxed);
    each(page, |mapping| {
        let entry = mapping.load();
        if entry & bit != 0 {
            mapping.store(entry & !bit);
            f(mapping, entry);
        }
    });
}
