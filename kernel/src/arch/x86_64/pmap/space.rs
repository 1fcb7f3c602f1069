//! Address spaces as trees of tables: making, walking, freeing.
//!
//! ```text
//!   record of a table: parent | level, count, index in parent | next | prev | groups     (list of the space's tables)
//!   record of a root:  resident pages | level, count | first table | CPUs where it is active
//! ```
//! `groups` has a bit for each 16 entries of a last table that may hold one: walks skip the others.
//!
//! A space remembers the last table that it was asked for, since most calls are near the one before. I4: that table is in the space's
//! tree, and serves the addresses that the memory says.
//!
//! A table is freed with its space, or when an unmapping covers its whole span and leaves it empty (it is `retired`: a CPU may still
//! hold the way through it, so it is used again only after the next flush).

mod walk;

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use alloc::boxed::Box;
use alloc::vec::Vec;
use machine::order::{Before, Held, PageCache};
use machine::{CpuSet, Machine, NoMemory, Pa, PageNo, Reserve, VaRange, PAGE_SHIFT};

use super::NIL;
use crate::arch::machine::KERNEL;
use crate::arch::tables::{self, index, table, Table, ADDRESS, PRESENT, USER, WRITE};
use crate::arch::{cpu, io};
use crate::sync::Once;
pub(super) use walk::{Part, Walk};

/// What the pmap keeps for each page frame; its meaning depends on what the frame is.
type Record = [AtomicU32; 5];

const PARENT: usize = 0;
const RESIDENT: usize = 0;
const SHAPE: usize = 1;
const NEXT: usize = 2;
const PREV: usize = 3;
const CPUS: usize = 3;
const GROUPS: usize = 4;

/// Fields of the shape word.
const IN_PARENT: u32 = 511;
const LEVEL: u32 = 9;
const COUNT: u32 = 11;
const COUNT_MASK: u32 = 1023;

/// Entries in a group.
const GROUP: usize = 16;

/// Zeroed tables and roots kept at most.
const KEPT_TABLES: u32 = 256;
const KEPT_ROOTS: u32 = 32;

/// Pages that a last table maps, and the shift of its span.
const SPAN: u32 = 21;
/// From this span on, a walk goes through the space's list of tables instead of the tree.
const BY_LIST: u64 = 1 << 39;

/// The record of a frame that is neither mapped nor a table.
const PLAIN: [u32; 5] = [NIL, 0, NIL, NIL, 0];

static RECORDS: Once<Box<[Record]>> = Once::new();

/// Makes the records.
///
/// # Errors
/// [`NoMemory`].
pub fn init(pages: usize) -> Result<(), NoMemory> {
    let mut records = Vec::new();
    records.try_reserve_exact(pages).map_err(|_| NoMemory)?;
    records.resize_with(pages, || PLAIN.map(AtomicU32::new));
    RECORDS.call_once(|| records.into_boxed_slice());
    Ok(())
}

#[inline]
pub(super) fn record(page: PageNo) -> &'static Record {
    // SAFETY: made in start-up, before any address space.
    unsafe { &RECORDS.get_unchecked()[page.0 as usize] }
}

#[inline]
fn page_at(pa: u64) -> PageNo {
    KERNEL.frames().page_at(Pa(pa)).expect("tables are managed pages")
}

#[inline]
fn pa(page: PageNo) -> u64 {
    KERNEL.frames().pa(page).0
}

/// One address space's tables.
pub struct Space {
    pub(super) root: PageNo,
    root_pa: u64,
    /// Which table served the last walk: above `SPAN_BITS` the table's page, below what it spans.
    recent: AtomicU64,
}

/// Bits for the part of an address that says which last table serves it.
const SPAN_BITS: u32 = 48 - SPAN;
/// No table: programs' addresses end below.
const NOTHING_RECENT: u64 = (1 << SPAN_BITS) - 1;

/// A last table: the page it is in and its entries.
pub(super) struct Last {
    pub(super) page: PageNo,
    pub(super) entries: &'static Table,
}

impl Last {
    fn at(pa: u64) -> Last {
        Last { page: page_at(pa), entries: table(pa) }
    }

    /// Counts a new entry.
    #[inline]
    pub(super) fn added(&self, space: &Space, at: usize) {
        let own = record(self.page);
        own[SHAPE].store(own[SHAPE].load(Relaxed) + (1 << COUNT), Relaxed);
        own[GROUPS].store(own[GROUPS].load(Relaxed) | 1 << (at / GROUP), Relaxed);
        space.count(1);
    }

    /// Counts removed entries.
    #[inline]
    pub(super) fn removed(&self, space: &Space, entries: u32) {
        let own = record(self.page);
        let shape = own[SHAPE].load(Relaxed) - (entries << COUNT);
        own[SHAPE].store(shape, Relaxed);
        if shape >> COUNT == 0 {
            own[GROUPS].store(0, Relaxed);
        }
        space.count(0u32.wrapping_sub(entries));
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        record(self.page)[SHAPE].load(Relaxed) >> COUNT & COUNT_MASK
    }
}

/// Which space's root and which address entry `at` of a last table is for.
pub(super) fn whose(table: PageNo, at: usize) -> (PageNo, u64) {
    let mut va = (at as u64) << PAGE_SHIFT;
    let mut page = table;
    for level in 1..4 {
        let record = record(page);
        va |= u64::from(record[SHAPE].load(Relaxed) & IN_PARENT) << (PAGE_SHIFT + 9 * level);
        page = PageNo(record[PARENT].load(Relaxed));
    }
    (page, va)
}

/// CPUs on which a root is active.
pub(super) fn cpus_of(root: PageNo) -> CpuSet {
    CpuSet(u64::from(record(root)[CPUS].load(Relaxed)))
}

/// Counts one entry out of a last table that is known by its page alone.
pub(super) fn count_out(last: PageNo) {
    let (root, _) = whose(last, 0);
    let space = Space::new(root);
    Last { page: last, entries: table(pa(last)) }.removed(&space, 1);
}

impl Space {
    fn new(root: PageNo) -> Space {
        Space { root, root_pa: pa(root), recent: AtomicU64::new(NOTHING_RECENT) }
    }

    /// The last table of the walk before, if it serves this address too.
    #[inline]
    fn recent(&self, va: u64) -> Option<Last> {
        let recent = self.recent.load(Relaxed);
        if recent & NOTHING_RECENT != va >> SPAN {
            return None;
        }
        let page = PageNo((recent >> SPAN_BITS) as u32);
        Some(Last { page, entries: table(pa(page)) })
    }

    #[inline]
    fn remember(&self, va: u64, last: &Last) {
        self.recent.store(u64::from(last.page.0) << SPAN_BITS | va >> SPAN, Relaxed);
    }

    #[inline]
    pub(super) fn cpus(&self) -> CpuSet {
        cpus_of(self.root)
    }

    #[inline]
    pub(super) fn resident(&self) -> u32 {
        record(self.root)[RESIDENT].load(Relaxed)
    }

    #[inline]
    fn count(&self, delta: u32) {
        let resident = &record(self.root)[RESIDENT];
        resident.store(resident.load(Relaxed).wrapping_add(delta), Relaxed);
    }

    /// The last table that serves an address, if there is one.
    #[inline]
    pub(super) fn last_table(&self, va: u64) -> Option<Last> {
        self.recent(va).or_else(|| self.find_table(va))
    }

    fn find_table(&self, va: u64) -> Option<Last> {
        let mut at = self.root_pa;
        for level in (1..4).rev() {
            let entry = table(at)[index(va, level)].load(Relaxed);
            if entry & PRESENT == 0 {
                return None;
            }
            at = entry & ADDRESS;
        }
        let last = Last::at(at);
        self.remember(va, &last);
        Some(last)
    }

    /// Makes sure that this CPU doesn't use the tables.
    pub(super) fn leave(&self) {
        if cpu::this().root.get() == self.root_pa {
            deactivate();
        }
    }
}

/// Makes a space this CPU's; nothing happens if it is already.
#[inline]
pub(super) fn activate(space: &Space) {
    let cpu = cpu::this();
    if cpu.root.get() != space.root_pa {
        forget_active();
        let bit = 1 << cpu::index();
        record(space.root)[CPUS].fetch_or(bit, Relaxed);
        cpu.root.set(space.root_pa);
        // SAFETY: roots map the kernel, and `destroy` switches away before it frees one.
        unsafe { io::write_cr3(space.root_pa) };
    }
}

/// Leaves the current space for the kernel's own tables: before it is torn down, so that nothing needs to be flushed.
pub(super) fn deactivate() {
    forget_active();
    let cpu = cpu::this();
    cpu.root.set(tables::root());
    // SAFETY: the kernel's root maps the kernel and lives for ever.
    unsafe { io::write_cr3(tables::root()) };
}

fn forget_active() {
    let root = active();
    if root != NIL {
        record(PageNo(root))[CPUS].fetch_and(!(1 << cpu::index()), Relaxed);
    }
}

/// The root page of the space that is active here, or `NIL`.
pub(super) fn active() -> u32 {
    let root = cpu::this().root.get();
    if root == tables::root() {
        NIL
    } else {
        page_at(root).0
    }
}

/// Free tables.
pub(super) struct Tables {
    /// All zero.
    zeroed: Stack,
    /// Upper half filled, lower half zero.
    roots: Stack,
    /// All zero, but some CPU may still walk through them.
    retired: Stack,
}

/// Pages linked through their records.
struct Stack {
    head: u32,
    len: u32,
}

impl Stack {
    const fn new() -> Stack {
        Stack { head: NIL, len: 0 }
    }

    #[inline]
    fn push(&mut self, page: PageNo) {
        record(page)[NEXT].store(self.head, Relaxed);
        self.head = page.0;
        self.len += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<PageNo> {
        if self.head == NIL {
            return None;
        }
        let page = PageNo(self.head);
        self.head = record(page)[NEXT].load(Relaxed);
        self.len -= 1;
        Some(page)
    }
}

/// Frames that hold tables, in use or kept for use.
pub(super) static TABLES: AtomicUsize = AtomicUsize::new(0);

impl Tables {
    pub(super) const fn new() -> Tables {
        Tables { zeroed: Stack::new(), roots: Stack::new(), retired: Stack::new() }
    }

    fn zeroed_page<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>) -> Result<PageNo, NoMemory> {
        if let Some(page) = self.zeroed.pop() {
            return Ok(page);
        }
        let page = KERNEL.frames().alloc(&KERNEL, held, Reserve::Kernel)?;
        KERNEL.zero(page);
        TABLES.fetch_add(1, Relaxed);
        Ok(page)
    }

    pub(super) fn new_space<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
    ) -> Result<Space, NoMemory> {
        let root = match self.roots.pop() {
            Some(root) => root,
            None => {
                let root = self.zeroed_page(held)?;
                let entries = table(pa(root));
                for (to, from) in entries[256..].iter().zip(tables::kernel_half()) {
                    to.store(from.load(Relaxed), Relaxed);
                }
                root
            }
        };
        let record = record(root);
        record[RESIDENT].store(0, Relaxed);
        record[SHAPE].store(3 << LEVEL, Relaxed);
        record[NEXT].store(NIL, Relaxed);
        record[CPUS].store(0, Relaxed);
        Ok(Space::new(root))
    }

    /// The last table that serves an address, with the tables on the way there made as needed.
    #[inline]
    pub(super) fn last_table_or_new<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: u64,
    ) -> Result<Last, NoMemory> {
        match space.last_table(va) {
            Some(last) => Ok(last),
            None => self.make_table(held, space, va),
        }
    }

    #[cold]
    fn make_table<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: u64,
    ) -> Result<Last, NoMemory> {
        let mut at = space.root_pa;
        for level in (1..4).rev() {
            let entry = &table(at)[index(va, level)];
            let mut value = entry.load(Relaxed);
            if value & PRESENT == 0 {
                value = self.new_table(held, space, page_at(at), va, level)?;
                entry.store(value, Relaxed);
            }
            at = value & ADDRESS;
        }
        Ok(Last::at(at))
    }

    /// An entry that leads to a new table for `va`, below the table `parent` of `level`.
    #[cold]
    fn new_table<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
        space: &Space,
        parent: PageNo,
        va: u64,
        level: u32,
    ) -> Result<u64, NoMemory> {
        let page = self.zeroed_page(held)?;
        let head = &record(space.root)[NEXT];
        let first = head.load(Relaxed);
        let own = record(page);
        own[PARENT].store(parent.0, Relaxed);
        own[SHAPE].store(index(va, level) as u32 | (level - 1) << LEVEL, Relaxed);
        own[NEXT].store(first, Relaxed);
        own[PREV].store(space.root.0, Relaxed);
        own[GROUPS].store(0, Relaxed);
        if first != NIL {
            record(PageNo(first))[PREV].store(page.0, Relaxed);
        }
        head.store(page.0, Relaxed);
        record(parent)[SHAPE].fetch_add(1 << COUNT, Relaxed);
        Ok(pa(page) | PRESENT | WRITE | USER)
    }

    /// Takes an empty last table out of its space, and the tables above it that become empty.
    pub(super) fn retire<P: Before<PageCache>>(
        &mut self,
        held: &mut Held<'_, P>,
        last: &Last,
        space: &Space,
    ) {
        space.recent.store(NOTHING_RECENT, Relaxed);
        let mut page = last.page;
        while page != space.root && record(page)[SHAPE].load(Relaxed) >> COUNT & COUNT_MASK == 0 {
            let own = record(page);
            let parent = PageNo(own[PARENT].load(Relaxed));
            table(pa(parent))[(own[SHAPE].load(Relaxed) & IN_PARENT) as usize].store(0, Relaxed);
            record(parent)[SHAPE].fetch_sub(1 << COUNT, Relaxed);
            let (next, prev) = (own[NEXT].load(Relaxed), own[PREV].load(Relaxed));
            record(PageNo(prev))[NEXT].store(next, Relaxed);
            if next != NIL {
                record(PageNo(next))[PREV].store(prev, Relaxed);
            }
            if space.cpus() == CpuSet::NONE {
                self.give(held, page);
            } else {
                self.retired.push(page);
            }
            page = parent;
        }
    }

    /// No CPU walks through retired tables any more.
    #[inline]
    pub(super) fn retired_are_forgotten(&mut self) {
        while let Some(page) = self.retired.pop() {
            self.zeroed.push(page);
        }
    }

    /// Keeps a table that is all zero, or frees it if enough are kept.
    fn give<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>, page: PageNo) {
        if self.zeroed.len < KEPT_TABLES {
            self.zeroed.push(page);
        } else {
            TABLES.fetch_sub(1, Relaxed);
            make_plain(page);
            KERNEL.frames().free_page(&KERNEL, held, page);
        }
    }

    /// Frees a space's tables, which hold no mappings. Each clears its entry in its parent, so all end up zero.
    pub(super) fn free_space<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>, space: Space) {
        debug_assert!(space.resident() == 0, "a space is freed with pages mapped");
        let mut next = record(space.root)[NEXT].load(Relaxed);
        let mut list = next;
        while next != NIL {
            let own = record(PageNo(next));
            let parent = PageNo(own[PARENT].load(Relaxed));
            table(pa(parent))[(own[SHAPE].load(Relaxed) & IN_PARENT) as usize].store(0, Relaxed);
            next = own[NEXT].load(Relaxed);
        }
        while list != NIL {
            let page = PageNo(list);
            list = record(page)[NEXT].load(Relaxed);
            self.give(held, page);
        }
        if self.roots.len < KEPT_ROOTS {
            self.roots.push(space.root);
        } else {
            TABLES.fetch_sub(1, Relaxed);
            make_plain(space.root);
            KERNEL.frames().free_page(&KERNEL, held, space.root);
        }
    }
}

/// Makes a record that of an unmapped page again.
fn make_plain(page: PageNo) {
    for (word, value) in record(page).iter().zip(PLAIN) {
        word.store(value, Relaxed);
    }
}
