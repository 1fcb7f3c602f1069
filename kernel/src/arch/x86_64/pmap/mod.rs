//! The MMU: four-level tables of each address space, and the way from a page back to its mappings.
//!
//! ```text
//!   Space -> root -> ... -> last table: 512 entries -> page
//!     \___ list of all its tables ___/      ^            |
//!                                           +-- reverse: (table, index) in the page's record; more in a chain
//! ```
//! Every page frame has a record (`record`): for a mapped page its first mapping and the gathered
//! referenced and modified bits, for a table its space, its address and the count of its entries.
//! So a mapping's space and address are found from the table alone; a table that has become empty
//! is known to be all zero, and is used again without zeroing; and a space's tables are freed
//! without looking for them.
//!
//! The hardware sets the accessed and dirty bits in entries, at any moment; they are gathered into
//! the page's record when a mapping goes. So a present entry is only changed by exchange or by
//! compare-and-exchange.
//!
//! I1: an entry of a last table is present exactly if the page's reverse map names it. I2: a
//! table's count is the number of its present entries; a table among those kept is all zero. I3: a
//! space's pages are the sum over its last tables.
//!
//! # Locks
//! All in the records (`record`), below all VM locks, above the page allocator's: a space's, for
//! its tree; a last table's; a page's. L1: an entry becomes present, or ceases to be, under its
//! table's lock and its page's. L2: rights are lowered under either, and raised under both. L3: the
//! order is space, table, page; a CPU holds one of each at most. So what finds pages from tables
//! goes down that order. What finds tables from a page looks under the page's lock, lets go, takes
//! the table's, then the page's, and looks again. L4: a CPU that lowers with the table's lock alone
//! lets it go when what it lowered is noted; a CPU that finds an entry lowered by way of the page
//! waits for that. L5: no CPU waits for another's answer with one of these held.
//!
//! Faults in different tables share no lock, and no line but those of neighbouring records; each
//! CPU has its own free tables and nodes and remembers its own last tables. Road not taken: one
//! lock for each space. It would serialise threads that fault in one space, and a page's mappings
//! would still have to be found against the order.
//!
//! TLBs: see `tlb`. What is lowered is noted only where some CPU may hold it: the space is loaded
//! there, and the entry has its accessed bit set (x86 caches no translation without), or had it
//! when the page daemon cleared it, which a software bit remembers. Raising is never noted: a CPU
//! that remembers less walks the tables again before it faults.
//!
//! The kernel's half of the tables needs none of this: see `tables`.

mod audit;
mod record;
mod reverse;
mod space;
mod tlb;

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use machine::order::{Before, Held, PageCache};
use machine::{
    NoMemory, PageNo, Pages, Pmap, Prot, Run, Shootdown, Va, VaRange, Wiring, PAGE_SIZE,
};

use super::cpu;
use super::tables::{index, ACCESSED, ADDRESS, DIRTY, NO_EXECUTE, PRESENT, UNCACHED, USER, WRITE};
use crate::mem::frames::KERNEL;
pub use audit::audit;
use record::record;
pub(super) use reverse::FreeNodes;
use reverse::{change, lock_page, Mapping};
pub use space::Space;
use space::{Last, Part, Stack, Tree, SERVES};
use tlb::Stale;
pub use tlb::{assert_all_told, begin_use, counters, end_use, take_notes};

/// A software bit in entries: the mapping is wired.
const WIRED: u64 = 1 << 9;
/// A software bit in entries: the accessed bit was set once, and cleared with no CPU told.
const SEEN: u64 = 1 << 10;
/// Without these a CPU can't hold the translation.
const CACHED: u64 = ACCESSED | SEEN;

/// No page, table or node.
const NIL: u32 = u32::MAX;

/// The kernel's `Pmap`; see the module. What it knows is in the frames' records and in each CPU's
/// own data.
pub struct NativePmap;

impl NativePmap {
    /// Makes a space this CPU's; nothing happens if it is already.
    #[inline]
    pub fn activate(&self, space: &Space) {
        tlb::activate(space);
    }

    /// Leaves the current space for the kernel's own tables: before it is torn down, so that
    /// nothing needs to be flushed.
    pub fn deactivate(&self) {
        tlb::deactivate();
    }
}

/// Makes the records of so many page frames.
///
/// # Errors
/// [`NoMemory`].
pub fn init(pages: usize) -> Result<(), NoMemory> {
    record::init(pages)?;
    reverse::init(pages)
}

/// This CPU goes on with a task that has no address space: where there are others, none of them
/// shall have to tell it anything.
pub fn idle() {
    if cpu::count() > 1 {
        tlb::deactivate();
    }
}

/// Frames that hold programs' page tables.
pub fn tables() -> usize {
    space::TABLES.load(Relaxed)
}

/// Of these: those in use. All other CPUs stand still.
pub fn tables_in_use() -> usize {
    space::in_use()
}

/// Frames that hold nodes of the reverse map.
pub fn node_frames() -> usize {
    reverse::FRAMES.load(Relaxed) as usize
}

/// Gives back the frames whose nodes are all free, with those that this CPU has at hand. Nothing is
/// locked.
pub fn give_back_nodes() {
    reverse::drain();
    reverse::give_back();
}

/// Whether any space maps a page.
pub fn is_mapped(page: PageNo) -> bool {
    reverse::first(page, &lock_page(page)).is_some()
}

/// The entry for a page: what its mapping allows, and that the access has happened.
#[inline(always)]
fn entry_for(page: PageNo, Entering { prot, access, wiring }: Entering) -> u64 {
    let mut entry = KERNEL.frames().bytes_at(page).0 | PRESENT | USER;
    if prot.contains(Prot::WRITE) {
        entry |= WRITE;
    }
    if !prot.contains(Prot::EXECUTE) {
        entry |= NO_EXECUTE;
    }
    if !access.is_empty() {
        entry |= ACCESSED;
    }
    if access.contains(Prot::WRITE) {
        entry |= DIRTY;
    }
    if wiring == Wiring::Wired {
        entry |= WIRED;
    }
    if KERNEL.frames().is_device(page) {
        entry |= UNCACHED;
    }
    entry
}

fn prot_of(entry: u64) -> Prot {
    let mut prot = Prot::READ;
    prot.set(Prot::WRITE, entry & WRITE != 0);
    prot.set(Prot::EXECUTE, entry & NO_EXECUTE == 0);
    prot
}

/// The entry lowered to at most `prot`, which isn't empty.
#[inline]
fn lowered(entry: u64, prot: Prot) -> u64 {
    let mut entry = entry;
    if !prot.contains(Prot::WRITE) {
        entry &= !WRITE;
    }
    if !prot.contains(Prot::EXECUTE) {
        entry |= NO_EXECUTE;
    }
    entry
}

#[inline]
fn page_of(entry: u64) -> PageNo {
    KERNEL.frames().page_at(machine::Pa(entry & ADDRESS)).expect("entries hold managed pages")
}

/// How many mappings lead to a page; those that were forgotten don't count.
pub fn mappings(page: PageNo) -> usize {
    reverse::count(page, &lock_page(page))
}

impl Pmap for NativePmap {
    type Space = Space;

    fn create<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) -> Result<Space, NoMemory> {
        space::new_space(held)
    }

    fn destroy<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, space: Space) {
        tlb::leave(&space);
        space::free_space(held, space);
    }

    #[inline(always)]
    fn enter<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        run: Run,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let how = Entering { prot, access, wiring };
        if run.pages != Pages(1) {
            return enter_run(held, space, run, how, down);
        }
        enter_page(held, space, (run.va, run.page), how, down)
    }

    #[inline]
    fn forget<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        space: &Space,
        va: Va,
        down: &mut Shootdown,
    ) {
        if let Some(last) = space.last_table(va.0) {
            let at = index(va.0, 0);
            let entry = last.entries[at].load(Relaxed);
            if entry & PRESENT != 0 {
                let mut stale = Stale::new(space.root);
                take_out(&last, at, va.0, entry, &mut stale, down);
                last.removed(1);
                stale.note(down);
            }
        }
        overtake_nobody(space, VaRange::new(va, va + Pages(1)), down);
        down.flush(self);
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        let Some(last) = space.last_table(va.0) else { return };
        let first = index(va.0, 0);
        if reverse::enter_ahead(held, &last, first, pages, &may) {
            return;
        }
        let mut added = 0;
        for (n, (run, slot)) in pages.iter().zip(&last.entries[first..]).enumerate() {
            let Some((page, prot)) = *run else { continue };
            let own = reverse::lock_own(page);
            if !may(n) {
                continue;
            }
            let old = slot.load(Relaxed);
            let new = entry_for(page, Entering::ahead(prot));
            if old & PRESENT == 0 {
                if reverse::is_full(&own)
                    || reverse::link_own(held, &own, last.page, first + n).is_err()
                {
                    break;
                }
                slot.store(new, Relaxed);
                added += 1;
            } else if (old ^ new) & ADDRESS == 0 {
                reverse::raise(slot, new);
            }
        }
        last.added(first, added);
    }

    fn remove<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        range: VaRange,
        down: &mut Shootdown,
    ) {
        if range.is_empty() {
            return;
        }
        let mut stale = Stale::new(space.root);
        let mut retired = Stack::new();
        let mut told = 0;
        space.each_part(range, |part, tree| {
            let mut removed = 0;
            part.each(|at, va, entry| {
                removed +=
                    reverse::unlink(page_of(entry), part.table.page, at..part.end(), |next| {
                        let entry = part.table.entries[next].swap(0, SeqCst);
                        told += u64::from(entry & CACHED != 0);
                        (entry, stale.add(va + ((next - at) * PAGE_SIZE) as u64, entry, down))
                    });
            });
            part.emptied();
            part.table.removed(removed);
            if part.is_whole() && part.table.count() == 0 && matches!(tree, Tree::Locked) {
                let (first, last) = (part.va, part.last_va());
                space.retire(part.table, &mut retired);
                // The way through is forgotten with any translation.
                stale.add_all(first, last, down);
            }
        });
        stale.note(down);
        // Else each page's CPUs are told anyway.
        if told != range.pages().0 {
            overtake_nobody(space, range, down);
        }
        if !retired.is_empty() {
            // A CPU that doesn't use translations may still walk through the tables.
            down.flush_by(tlb::flush_tables);
            retired.give_back(held);
        }
    }

    fn pass<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        from: &Space,
        range: VaRange,
        to: &Space,
        at: Va,
        down: &mut Shootdown,
    ) {
        let whole = range.start.0.next_multiple_of(SERVES)..range.end.0 / SERVES * SERVES;
        if !(range.start.0 ^ at.0).is_multiple_of(SERVES) || whole.is_empty() {
            return self.remove(held, from, range, down);
        }
        let there = |va: u64| at.0 + (va - range.start.0);
        // Empty tables that are in the way.
        self.remove(held, to, VaRange::new(Va(there(whole.start)), Va(there(whole.end))), down);
        let whole = VaRange::new(Va(whole.start), Va(whole.end));
        self.remove(held, from, VaRange::new(range.start, whole.start), down);
        let (mut stale, mut moved, mut rest) = (Stale::new(from.root), Stack::new(), whole);
        while let Some(va) = from.first_part(&mut rest).map(|part| part.va) {
            if !to.make_way(held, there(va)) {
                rest.start = Va(va);
                break;
            }
            from.detach(va, &mut moved, &mut stale, down);
        }
        stale.note(down);
        overtake_nobody(from, range, down);
        down.flush_by(tlb::flush_tables);
        while let Some(table) = moved.pop() {
            to.adopt(table, there(Space::served(table)));
        }
        // Last: it takes out tables above those that are empty, and where both spaces are one these
        // may be on the ways just made.
        self.remove(held, from, VaRange::new(rest.start, range.end), down);
    }

    fn protect<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        range: VaRange,
        prot: Prot,
        down: &mut Shootdown,
    ) {
        if prot.is_empty() || range.is_empty() {
            return self.remove(held, space, range, down);
        }
        let mut stale = Stale::new(space.root);
        space.each_part(range, |part, _| {
            if stale.concerns_others() {
                protect_part_of_others(&part, prot, Lowered::Now, &mut stale, down);
            } else if !protect_part(&part, prot, &mut stale, down) {
                protect_part_of_others(&part, prot, Lowered::Before, &mut stale, down);
            }
        });
        stale.note(down);
        overtake_nobody(space, range, down);
    }

    fn unwire(&self, space: &Space, range: VaRange) -> Option<(Va, PageNo)> {
        let mut rest = range;
        while let Some(part) = space.first_part(&mut rest) {
            if let Some((at, va)) = part.find(|entry| entry & WIRED != 0) {
                let slot = &part.table.entries[at];
                let page = page_of(slot.load(Relaxed));
                let _page = lock_page(page);
                change(slot, |entry| entry & !WIRED);
                return Some((Va(va), page));
            }
        }
        None
    }

    fn part(&self, space: &Space, range: VaRange, mappings: usize) -> Va {
        /// Mappings that take as long to remove as a table.
        const TABLE: usize = 8;
        /// And as long as to find the next table by another one above it.
        const ABOVE: usize = 48;
        const ABOVE_SERVES: u64 = 512 * SERVES;
        /// Mappings that a table is reckoned to have in a space of few tables, which is not looked
        /// at: a quarter of what it has room for.
        const IN_ONE: usize = 128;
        if reverse::any_is_long() {
            return part_by_lists(space, range, mappings);
        }
        if space.tables() * IN_ONE <= mappings {
            return range.end;
        }
        let (mut rest, mut left, mut above) = (range, mappings, range.start.0 / ABOVE_SERVES);
        while let Some(part) = space.first_part(&mut rest) {
            let is_same =
                core::mem::replace(&mut above, part.va / ABOVE_SERVES) == part.va / ABOVE_SERVES;
            let cost = part.table.count() as usize + TABLE + if is_same { 0 } else { ABOVE };
            match left.checked_sub(cost) {
                Some(few) => left = few,
                None => return rest.start,
            }
        }
        range.end
    }

    fn tables_part(&self, space: &Space, range: VaRange, tables: usize) -> Va {
        if space.tables() <= tables {
            return range.end;
        }
        space.tables_in(range).nth(tables).map_or(range.end, Va)
    }

    fn extract(&self, space: &Space, va: Va) -> Option<(PageNo, Prot)> {
        let entry = space.last_table(va.0)?.entries[index(va.0, 0)].load(Relaxed);
        (entry & PRESENT != 0).then(|| (page_of(entry), prot_of(entry)))
    }

    fn resident(&self, space: &Space) -> usize {
        space.resident() as usize
    }

    fn page_protect<P: Before<PageCache>>(
        &self,
        _held: &mut Held<'_, P>,
        page: PageNo,
        prot: Prot,
        down: &mut Shootdown,
    ) -> u32 {
        if prot.is_empty() {
            return remove_everywhere(page, down);
        }
        loop {
            let lock = lock_page(page);
            let mut busy = None;
            reverse::each(page, &lock, |mapping| {
                let slot = mapping.slot();
                if lowered(slot.load(Relaxed), prot) != slot.load(Relaxed) {
                    let old = change(slot, |old| lowered(old, prot));
                    note(mapping, page, old, down);
                } else if record(mapping.table).is_locked() {
                    busy = Some(mapping.table);
                }
            });
            let Some(table) = busy else {
                overtake_nobody_by_page(page, down);
                return 0;
            };
            // Another CPU may have lowered the entry a moment ago and not marked the page yet.
            drop(lock);
            space::wait_for_table(table);
        }
    }

    fn weight(&self, page: PageNo) -> usize {
        1 + reverse::length(page) / 8
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        let lock = lock_page(page);
        let is_untold = || reverse::is_untold(page) && tlb::others_unfinished(&Shootdown::new());
        reverse::first(page, &lock).is_some() || is_untold()
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        reverse::gather(page, &lock_page(page)) & ACCESSED != 0
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        let lock = lock_page(page);
        let was = reverse::gather(page, &lock) & ACCESSED != 0;
        if was {
            reverse::clear(page, &lock, ACCESSED, SEEN, |_, _| {});
        }
        was
    }

    fn is_modified(&self, page: PageNo) -> bool {
        reverse::gather(page, &lock_page(page)) & DIRTY != 0
    }

    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool {
        let lock = lock_page(page);
        let was = reverse::gather(page, &lock) & DIRTY != 0;
        if was {
            reverse::clear(page, &lock, DIRTY, 0, |mapping, old| {
                note(mapping, page, old | ACCESSED, down)
            });
            overtake_nobody_by_page(page, down);
        }
        was
    }

    fn forget_modified(&self, page: PageNo) {
        reverse::clear(page, &lock_page(page), DIRTY, 0, |_, _| {});
    }

    fn flush(&self, down: &Shootdown) {
        tlb::flush(down);
    }
}

/// What is entered of each page: its rights, what counts as having happened, and whether it may be
/// forgotten.
#[derive(Clone, Copy)]
struct Entering {
    prot: Prot,
    access: Prot,
    wiring: Wiring,
}

impl Entering {
    /// Ahead of use.
    #[inline(always)]
    fn ahead(prot: Prot) -> Entering {
        Entering { prot, access: Prot::NONE, wiring: Wiring::Pageable }
    }
}

#[cold]
fn enter_run<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    space: &Space,
    run: Run,
    how: Entering,
    down: &mut Shootdown,
) -> Result<(), NoMemory> {
    run.iter().try_for_each(|at| enter_page(held, space, at, how, down))
}

#[inline(never)]
fn enter_page<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    space: &Space,
    (va, page): (Va, PageNo),
    how: Entering,
    down: &mut Shootdown,
) -> Result<(), NoMemory> {
    let last = space.last_table_or_new(held, va.0)?;
    let at = index(va.0, 0);
    let old = last.entries[at].load(Relaxed);
    let new = entry_for(page, how);
    if old & PRESENT == 0 {
        if put(held, &last, at, page, new)? {
            drop(last);
            shorten(page, down);
        }
        return Ok(());
    }
    let mut stale = Stale::new(space.root);
    let mut is_long = false;
    if (old ^ new) & ADDRESS == 0 && (new & !old & WIRED == 0 || reverse::may_be_wired(page)) {
        let _page = lock_page(page);
        let old = change(&last.entries[at], |old| new | old & (ACCESSED | DIRTY | SEEN));
        if old & WRITE > new & WRITE || old & NO_EXECUTE < new & NO_EXECUTE {
            let untold = stale.add(va.0, old, down);
            reverse::set_untold(page, untold);
        }
    } else {
        let node = reverse::take_node(held)?;
        take_out(&last, at, va.0, old, &mut stale, down);
        is_long = reverse::put_with(node, page, &last, at, new);
    }
    stale.note(down);
    if is_long {
        drop(last);
        shorten(page, down);
    }
    Ok(())
}

/// The end of the first part of a range that takes as long to remove as so many mappings of pages
/// that have no others: each is looked for among all its page's.
#[cold]
fn part_by_lists(space: &Space, range: VaRange, mappings: usize) -> Va {
    /// Nodes that take as long to look through as a mapping to remove.
    const NODES: usize = 16;
    /// Mappings that take as long as a table.
    const TABLE: usize = 8;
    let (mut rest, left) = (range, Cell::new(mappings));
    while let Some(part) = space.first_part(&mut rest) {
        let is_too_much = |entry: u64| {
            if entry & PRESENT == 0 {
                return false;
            }
            let few = left.get().checked_sub(1 + reverse::length(page_of(entry)) / NODES);
            few.inspect(|&few| left.set(few)).is_none()
        };
        match part.find(is_too_much) {
            // One is always taken.
            Some((_, va)) if va > range.start.0 => return Va(va),
            _ => left.set(left.get().saturating_sub(TABLE)),
        }
    }
    range.end
}

/// Lowers a part's entries with its table's lock alone: for a space that no other CPU holds.
/// Returns false if one does by now, and nothing is noted: a CPU that comes from a page waits for
/// the table's lock (L4).
#[inline]
fn protect_part(part: &Part, prot: Prot, stale: &mut Stale, down: &mut Shootdown) -> bool {
    let (mut first, mut last) = (u64::MAX, 0);
    let any = if part.table.count() > FEW {
        (first, last) = (part.va, part.last_va());
        lower_part(part, prot, |_| {})
    } else {
        lower_part(part, prot, |va| (first, last) = (first.min(va), va))
    };
    if any & CACHED != 0 {
        if stale.concerns_others() {
            return false;
        }
        stale.add_all(first, last, down);
    }
    true
}

/// In tables with more entries than these all of a part is forgotten, since to keep account of what
/// was lowered costs more.
const FEW: u32 = 64;

/// Lowers a part's entries; `each` is told where rights went. What any of these entries had.
#[inline(always)]
fn lower_part(part: &Part, prot: Prot, mut each: impl FnMut(u64)) -> u64 {
    let mut any = 0;
    part.each(|at, va, old| {
        let new = lowered(old, prot);
        if new != old {
            let slot = &part.table.entries[at];
            if slot.compare_exchange(old, new, SeqCst, Relaxed).is_err() {
                change(slot, |old| lowered(old, prot));
            }
            any |= old;
            each(va);
        }
    });
    any
}

/// When a part's entries were lowered that have fewer rights now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lowered {
    /// As they are noted.
    Now,
    /// Some of them before that, and it isn't known which.
    Before,
}

/// Notes and lowers a part's entries where other CPUs hold the space, or have come to since some
/// were lowered.
#[cold]
fn protect_part_of_others(
    part: &Part,
    prot: Prot,
    when: Lowered,
    stale: &mut Stale,
    down: &mut Shootdown,
) {
    part.each(|at, va, old| {
        if when == Lowered::Now && lowered(old, prot) == old {
            return;
        }
        let page = page_of(old);
        let _page = lock_page(page);
        change(&part.table.entries[at], |old| lowered(old, prot));
        let untold = stale.add(va, ACCESSED, down);
        reverse::set_untold(page, untold);
    });
}

/// Maps a page by an absent entry.
#[inline(always)]
fn put<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    last: &Last,
    at: usize,
    page: PageNo,
    new: u64,
) -> Result<bool, NoMemory> {
    let is_long = reverse::put(held, page, last, at, new)?;
    last.added(at, 1);
    Ok(is_long)
}

/// Forgets some of the oldest mappings of a page that has too many: two, lest CPUs that meet here
/// leave one too many each time.
#[cold]
fn shorten(page: PageNo, down: &mut Shootdown) {
    for _ in 0..2 {
        let Some(mapping) = reverse::surplus(page) else { return };
        let Some(last) = space::lock_if_table(mapping.table) else { return };
        let entry = mapping.slot().load(Relaxed);
        if entry & PRESENT == 0 || entry & WIRED != 0 {
            return;
        }
        let mut stale = Stale::new(last.root());
        let removed =
            reverse::unlink(page_of(entry), last.page, reverse::beside(mapping.at), |at| {
                let entry = last.entries[at].swap(0, SeqCst);
                (entry, stale.add(last.va(at), entry, down))
            });
        stale.note(down);
        last.removed(removed);
    }
}

/// Makes an entry, present by a look under the table's lock, absent. The caller counts it.
#[inline]
fn take_out(last: &Last, at: usize, va: u64, entry: u64, stale: &mut Stale, down: &mut Shootdown) {
    reverse::unlink(page_of(entry), last.page, at..at + 1, |at| {
        let entry = last.entries[at].swap(0, SeqCst);
        (entry, stale.add(va, entry, down))
    });
}

/// Removes all mappings of a page; how many were wired.
fn remove_everywhere(page: PageNo, down: &mut Shootdown) -> u32 {
    let mut wired = 0;
    loop {
        let lock = lock_page(page);
        let Some(mapping) = reverse::first(page, &lock) else {
            overtake_nobody_by_page(page, down);
            return wired;
        };
        drop(lock);
        let Some(last) = space::lock_if_table(mapping.table) else { continue };
        let entry = mapping.slot().load(Relaxed);
        if entry & PRESENT == 0 || page_of(entry) != page {
            continue;
        }
        let mut stale = Stale::new(last.root());
        take_out(&last, mapping.at, last.va(mapping.at), entry, &mut stale, down);
        stale.note(down);
        wired += u32::from(entry & WIRED != 0);
        last.removed(1);
    }
}

/// Notes that a page's mapping, by what was `entry`, was lowered. The page's lock is held.
fn note(mapping: &Mapping, page: PageNo, entry: u64, down: &mut Shootdown) {
    let (root, va) = space::whose(mapping.table, mapping.at);
    let mut stale = Stale::new(root);
    let untold = stale.add(va, entry, down);
    stale.note(down);
    reverse::set_untold(page, untold);
}

/// Law P6, after a range was lowered.
#[inline]
fn overtake_nobody(space: &Space, range: VaRange, down: &mut Shootdown) {
    if tlb::others_unfinished(down) {
        tlb::note(down, space.root, range, space.cpus());
    }
}

/// Law P6, after a page was lowered, with its lock held: the mark in its record says whether others
/// could have done so before.
fn overtake_nobody_by_page(page: PageNo, down: &mut Shootdown) {
    if reverse::is_untold(page) {
        if tlb::others_unfinished(down) {
            tlb::note_all(down);
        } else if !down.is_counted() {
            reverse::forget_untold(page);
        }
    }
}
