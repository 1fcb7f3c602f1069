//! Address spaces as trees of tables: making, walking, freeing.
//!
//! `groups` in a last table's record has a bit for each 16 entries that may hold one: walks skip
//! the others. It may have too many bits, never too few. A table's `key` says whose it is and what
//! it serves; so it is found again by its number alone: each CPU remembers the numbers of some last
//! tables it used, and asks the table's record, under its lock, whether it is still the one. No CPU
//! has to be made to forget such a number. Only a CPU that doesn't remember the table takes the
//! space's lock and walks the tree.
//!
//! I4: a record with `level` 0 and a key is that of a live last table; both change only under its
//! lock.
//!
//! A table is freed with its space, or when an unmapping covers its whole span and leaves it empty
//! (it is `retired`: a CPU may still hold the way through it, so it is used again only after those
//! CPUs were told).

mod moving;
mod tables;
mod walk;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use machine::order::{Before, Held, PageCache};
use machine::{CpuSet, NoMemory, Pa, PageNo, VaRange, PAGE_SHIFT};

use super::record::{self, record, Locked, Record, IN_BUCKET, OWN};
use super::NIL;
use crate::arch::cpu;
use crate::arch::tables::{
    index, place, table, Missing, Root, Table, ADDRESS, PRESENT, USER, WRITE,
};
use crate::mem::frames::KERNEL;
pub(super) use moving::SERVES;
pub(super) use tables::{free_space, in_use, new_space, Stack, TABLES};
pub(super) use walk::{Part, Tree};

/// Words of a table's record.
const PARENT: usize = 0;
const SHAPE: usize = 1;
const NEXT: usize = 2;
const PREV: usize = 3;
const GROUPS: usize = 4;
/// Of a root's record: how many tables are on the space's list.
const LISTED: usize = GROUPS;

/// Fields of the shape word.
const IN_PARENT: u32 = 511;
const LEVEL: u32 = 9;
const COUNT: u32 = 11;
const COUNT_MASK: u32 = 1023;

/// Entries in a group.
const GROUP: usize = 16;

/// The shift of a last table's span.
const SPAN: u32 = 21;
/// From this span on, a walk goes through the space's list of tables instead of the tree.
const BY_LIST: u64 = 1 << 39;

#[inline]
fn page_at(pa: u64) -> PageNo {
    KERNEL.frames().page_at(Pa(pa)).expect("tables are managed pages")
}

#[inline]
fn pa(page: PageNo) -> u64 {
    KERNEL.frames().pa(page).0
}

/// The `wide` word of the table of `root` that serves `va`.
#[inline]
const fn key(root: PageNo, va: u64) -> u64 {
    (root.0 as u64) << 32 | va >> SPAN
}

/// One address space's tables.
pub struct Space {
    pub(super) root: PageNo,
    pub(super) top: Root,
}

/// A last table, locked: the page it is in and its entries.
pub(super) struct Last {
    pub(super) page: PageNo,
    pub(super) entries: &'static Table,
    record: Locked<{ record::TABLE }>,
}

impl Record {
    /// Whether the frame may be a table: what is in the wide word of a mapped page is none's key.
    #[inline]
    fn has_key(&self) -> bool {
        self.wide.load(Relaxed) < IN_BUCKET
    }

    #[inline]
    fn level(&self) -> u32 {
        self.words[SHAPE].load(Relaxed) >> LEVEL & 3
    }

    #[inline]
    fn count(&self) -> u32 {
        self.words[SHAPE].load(Relaxed) >> COUNT & COUNT_MASK
    }

    /// Counts entries in (or, as a negative number, out). The lock that guards the record is held.
    #[inline]
    fn add_count(&self, entries: u32) {
        let shape = &self.words[SHAPE];
        shape.store(shape.load(Relaxed).wrapping_add(entries << COUNT), Relaxed);
    }
}

impl Last {
    /// Locks a table that is known to be the right one: the space's lock is held.
    fn known(page: PageNo) -> Last {
        Last::of(page, record(page).lock())
    }

    /// The table in a frame whose record is locked, and says that it is a last table's.
    #[inline]
    fn of(page: PageNo, record: Locked<{ record::TABLE }>) -> Last {
        debug_assert!(record.has_key() && record.level() == 0, "{page:?} is no last table");
        // SAFETY: I4: it is a live last table, and stays one while the lock is held.
        Last { page, entries: unsafe { table(pa(page)) }, record }
    }

    /// Counts new entries, of which `at` is one and the others are in its group.
    #[inline]
    pub(super) fn added(&self, at: usize, entries: u32) {
        self.record.add_count(entries);
        let groups = &self.record.words[GROUPS];
        groups.store(groups.load(Relaxed) | 1 << (at / GROUP), Relaxed);
    }

    /// Counts removed entries.
    #[inline]
    pub(super) fn removed(&self, entries: u32) {
        self.record.add_count(0u32.wrapping_sub(entries));
        if self.record.count() == 0 {
            self.record.words[GROUPS].store(0, Relaxed);
        }
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.record.count()
    }

    /// The root of the table's space.
    pub(super) fn root(&self) -> PageNo {
        root_of(&self.record)
    }

    /// The address that entry `at` is for.
    pub(super) fn va(&self, at: usize) -> u64 {
        va_of(&self.record, at)
    }
}

fn root_of(table: &Record) -> PageNo {
    PageNo((table.wide.load(Relaxed) >> 32) as u32)
}

fn va_of(table: &Record, at: usize) -> u64 {
    (table.wide.load(Relaxed) & u64::from(u32::MAX)) << SPAN | (at as u64) << PAGE_SHIFT
}

/// The entry that leads to a table of a space whose lock is held, or which is torn down.
fn in_parent(own: &Record) -> &'static AtomicU64 {
    let parent = PageNo(own.words[PARENT].load(Relaxed));
    // SAFETY: a table in a space names its parent, which holds a table as long as that.
    let entries = unsafe { table(pa(parent)) };
    &entries[(own.words[SHAPE].load(Relaxed) & IN_PARENT) as usize]
}

/// Which space's root and which address entry `at` of a last table is for. The lock of a page that
/// is mapped by it is held: so the table lives.
pub(super) fn whose(table: PageNo, at: usize) -> (PageNo, u64) {
    let record = record(table);
    (root_of(record), va_of(record, at))
}

/// Waits until no CPU is at work in the table of a mapping that was found in a page's record;
/// returns whether one was.
pub(super) fn wait_for_table(page: PageNo) -> bool {
    let was_locked = record(page).is_locked();
    if was_locked {
        drop(record(page).lock::<{ record::TABLE }>());
    }
    was_locked
}

/// Locks a last table by a number that may be out of date; `None` if the frame is something else by
/// now.
pub(super) fn lock_if_table(page: PageNo) -> Option<Last> {
    let record = record(page).lock();
    let is_table = record.has_key() && record.level() == 0;
    is_table.then(|| Last::of(page, record))
}

/// CPUs that have a root of the space loaded: those that may hold translations of it (I1 of
/// `machine::notes`).
#[inline]
pub(super) fn cpus_of(root: PageNo) -> CpuSet {
    CpuSet::from_bits(record(root).wide.load(SeqCst))
}

impl Space {
    /// # Safety
    /// The page holds a root without tables below it in its lower half, and does until
    /// `free_space`.
    unsafe fn new(root: PageNo) -> Space {
        // SAFETY: by the caller's promise; a CPU that walks holds the space's lock.
        Space { root, top: unsafe { Root::at(pa(root)) } }
    }

    /// The CPUs that may have translations of it.
    #[inline]
    pub fn cpus(&self) -> CpuSet {
        cpus_of(self.root)
    }

    /// Where this CPU remembers the table that serves an address.
    #[inline]
    fn memory(&self, va: u64) -> &'static core::cell::Cell<u32> {
        &cpu::this().recent[((va >> SPAN) as usize ^ self.root.0 as usize) % cpu::RECENT]
    }

    /// The last table that serves an address, if this CPU remembers it.
    #[inline(always)]
    fn recent(&self, va: u64) -> Option<Last> {
        let page = PageNo(self.memory(va).get());
        let record = record(page).lock();
        let is_it = record.wide.load(Relaxed) == key(self.root, va) && record.level() == 0;
        is_it.then(|| Last::of(page, record))
    }

    /// The last table that serves an address, if there is one.
    #[inline]
    pub(super) fn last_table(&self, va: u64) -> Option<Last> {
        self.recent(va).or_else(|| self.find_table(va))
    }

    #[cold]
    fn find_table(&self, va: u64) -> Option<Last> {
        let _tree = self.lock();
        self.top.walk(va, 0).ok().map(|table| self.found(va, table))
    }

    /// Locks a table that a walk has found, and remembers it. The space's lock is held.
    #[inline]
    fn found(&self, va: u64, table: &'static Table) -> Last {
        let last = Last::known(page_at(place(table)));
        self.memory(va).set(last.page.0);
        last
    }

    /// The last table that serves an address, with the tables on the way there made as needed.
    #[inline(always)]
    pub(super) fn last_table_or_new<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        va: u64,
    ) -> Result<Last, NoMemory> {
        match self.recent(va) {
            Some(last) => Ok(last),
            None => self.make_table(held, va),
        }
    }

    #[cold]
    fn make_table<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        va: u64,
    ) -> Result<Last, NoMemory> {
        let _tree = self.lock();
        let table = self.walk_or_make(held, va, 0)?;
        Ok(self.found(va, table))
    }

    /// The table of level `lowest` that serves `va`, after those that are missing were made. The
    /// space's lock is held.
    fn walk_or_make<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        va: u64,
        lowest: u32,
    ) -> Result<&'static Table, NoMemory> {
        loop {
            match self.top.walk(va, lowest) {
                Ok(table) => return Ok(table),
                Err(Missing { table, level, .. }) => {
                    let entry = self.new_table(held, page_at(place(table)), va, level)?;
                    table[index(va, level)].store(entry, Relaxed);
                }
            }
        }
    }

    /// An entry that leads to a new table for `va`, below the table `parent` of `level`. The
    /// space's lock is held.
    fn new_table<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        parent: PageNo,
        va: u64,
        level: u32,
    ) -> Result<u64, NoMemory> {
        let page = tables::zeroed(held)?;
        let own = record(page);
        own.words[PARENT].store(parent.0, Relaxed);
        own.words[SHAPE].store(index(va, level) as u32 | (level - 1) << LEVEL, Relaxed);
        own.words[GROUPS].store(0, Relaxed);
        own.wide.store(key(self.root, va), Relaxed);
        self.link(page);
        record(parent).add_count(1);
        Ok(pa(page) | PRESENT | WRITE | USER)
    }

    /// Puts a table on the space's list, whose lock is held.
    fn link(&self, page: PageNo) {
        let (root, own) = (record(self.root), record(page));
        let first = root.words[NEXT].load(Relaxed);
        own.words[NEXT].store(first, Relaxed);
        own.words[PREV].store(self.root.0, Relaxed);
        if first != NIL {
            record(PageNo(first)).words[PREV].store(page.0, Relaxed);
        }
        root.words[NEXT].store(page.0, Relaxed);
        root.words[LISTED].store(root.words[LISTED].load(Relaxed) + 1, Relaxed);
    }

    /// Takes a table off the space's list, whose lock is held.
    fn unlink(&self, page: PageNo) {
        let (root, own) = (record(self.root), record(page));
        let (next, prev) = (own.words[NEXT].load(Relaxed), own.words[PREV].load(Relaxed));
        record(PageNo(prev)).words[NEXT].store(next, Relaxed);
        if next != NIL {
            record(PageNo(next)).words[PREV].store(prev, Relaxed);
        }
        root.words[LISTED].store(root.words[LISTED].load(Relaxed) - 1, Relaxed);
    }

    /// Takes an empty last table out of its space, and the tables above it that become empty. The
    /// space's lock is held.
    pub(super) fn retire(&self, last: Last, retired: &mut Stack) {
        let mut page = last.page;
        last.record.wide.store(OWN, Relaxed);
        drop(last);
        while page != self.root && record(page).count() == 0 {
            let own = record(page);
            let parent = PageNo(own.words[PARENT].load(Relaxed));
            // The CPUs that may hold the way through are read after this.
            in_parent(own).swap(0, SeqCst);
            record(parent).add_count(u32::MAX);
            self.unlink(page);
            retired.push(page);
            page = parent;
        }
    }

    /// Tables of the space, its root included; a moment's value.
    pub fn tables(&self) -> usize {
        record(self.root).words[LISTED].load(Relaxed) as usize + 1
    }

    /// Pages mapped. Cost: by tables.
    pub(super) fn resident(&self) -> u32 {
        let _tree = self.lock();
        let mut sum = 0;
        let mut next = record(self.root).words[NEXT].load(Relaxed);
        while next != NIL {
            let own = record(PageNo(next));
            if own.level() == 0 {
                sum += own.count();
            }
            next = own.words[NEXT].load(Relaxed);
        }
        sum
    }

    /// Takes the lock of the space's tree.
    #[inline]
    fn lock(&self) -> Locked<{ record::SPACE }> {
        record(self.root).lock()
    }
}
