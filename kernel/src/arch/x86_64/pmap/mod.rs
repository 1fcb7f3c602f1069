//! The MMU: four-level tables of each address space, and the way from a page back to its mappings.
//!
//! ```text
//!   Space -> root -> ... -> last table: 512 entries -> page
//!     \___ list of all its tables ___/      ^            |
//!                                           +-- reverse: (table, index) in the page's record; more in a chain
//! ```
//! Every page frame has a record of 20 bytes (`records`): for a mapped page its first mapping and the gathered referenced and modified
//! bits, for a table its parent, its place there and the count of its entries. So a mapping's space and address are found from the
//! table alone, by way of its parents; a table that has become empty is known to be all zero, and is used again without zeroing; and
//! a space's tables are freed without looking for them.
//!
//! The hardware sets the accessed and dirty bits in entries; they are gathered into the page's record when a mapping goes.
//!
//! I1: an entry of a last table is present exactly if the page's reverse map names it. I2: a table's count is the number of its
//! present entries; a table in the cache of zeroed tables is all zero. I3: a space's resident count is the sum over its last tables.
//!
//! TLBs: what is lowered is noted only where some CPU may hold it: the space is active there, and the entry has its accessed bit set
//! (x86 caches no translation without), or had it when the page daemon cleared it, which a software bit remembers. Raising is never noted: a CPU that remembers less walks the tables again before it faults.
//! Few pages are forgotten one by one, many by loading CR3: 150 ns each against 2 us and the refill.
//!
//! Lock: one, below all VM locks, above the page allocator's. A lock for each space and page was the road not taken: a removal goes
//! from space to page and a page's protection from page to space, and with one CPU there is nobody to wait for.

mod reverse;
mod space;

use core::sync::atomic::Ordering::Relaxed;

use machine::order::{Before, Held, PageCache};
use machine::{CpuSet, Machine, NoMemory, PageNo, Pmap, Prot, Shootdown, Va, VaRange, Wiring, PAGE_SIZE};

use super::machine::KERNEL;
use super::tables::{index, ACCESSED, ADDRESS, DIRTY, NO_EXECUTE, PRESENT, UNCACHED, USER, WRITE};
use super::{cpu, io};
use crate::sync::SpinLock;
pub use space::{init, Space};
use space::{Tables, Walk};

/// A software bit in entries: the mapping is wired.
const WIRED: u64 = 1 << 9;
/// A software bit in entries: the accessed bit was set once, and cleared with no CPU told.
const SEEN: u64 = 1 << 10;
/// Without these a CPU can't hold the translation.
const CACHED: u64 = ACCESSED | SEEN;

/// Pages forgotten one by one at most.
const SINGLY: u64 = 16;

/// No page, table or node.
const NIL: u32 = u32::MAX;

/// The kernel's `Pmap`; see the module.
pub struct X86Pmap {
    state: SpinLock<State>,
}

/// What the lock guards beside all tables and records.
struct State {
    tables: Tables,
    nodes: reverse::Nodes,
    /// Shootdowns that are not flushed (law P6).
    counted: u32,
}

impl X86Pmap {
    /// Nothing mapped, nothing cached.
    pub const fn new() -> X86Pmap {
        X86Pmap {
            state: SpinLock::new(State { tables: Tables::new(), nodes: reverse::Nodes::new(), counted: 0 }),
        }
    }

    /// Makes a space this CPU's; nothing happens if it is already.
    #[inline]
    pub fn activate(&self, space: &Space) {
        space::activate(space);
    }

    /// Leaves the current space for the kernel's own tables: before it is torn down, so that nothing needs to be flushed.
    pub fn deactivate(&self) {
        space::deactivate();
    }
}

/// How often each CPU was asked to forget, and what it has answered.
static ASKED: [core::sync::atomic::AtomicU64; cpu::MAX_CPUS] = [const { core::sync::atomic::AtomicU64::new(0) }; cpu::MAX_CPUS];
static ANSWERED: [core::sync::atomic::AtomicU64; cpu::MAX_CPUS] = [const { core::sync::atomic::AtomicU64::new(0) }; cpu::MAX_CPUS];

/// Another CPU asks this one to forget translations; see `ipi`.
pub fn shootdown_requested() {
    use core::sync::atomic::Ordering::SeqCst;
    let here = cpu::index();
    let asked = ASKED[here].load(SeqCst);
    // SAFETY: the root that is active already.
    unsafe { io::write_cr3(io::read_cr3()) };
    ANSWERED[here].fetch_max(asked, SeqCst);
}

fn flush_others(cpus: CpuSet) {
    use core::sync::atomic::Ordering::SeqCst;
    let others = cpus.without(CpuSet::one(cpu::index()));
    if others.is_empty() {
        return;
    }
    let mut tickets = [0; cpu::MAX_CPUS];
    for cpu in others.iter() {
        tickets[cpu] = ASKED[cpu].fetch_add(1, SeqCst) + 1;
    }
    super::ipi::send(others, super::ipi::Ipi::Shootdown);
    for cpu in others.iter() {
        let mut wait = super::ipi::Wait::new();
        while ANSWERED[cpu].load(SeqCst) < tickets[cpu] {
            wait.pause();
        }
    }
}

/// This CPU goes on with a task that has no address space.
pub fn idle() {
    if cpu::count() > 1 {
        space::deactivate();
    }
}

/// Frames that hold programs' page tables.
pub fn tables() -> usize {
    space::TABLES.load(Relaxed)
}

/// Whether any space maps a page.
pub fn is_mapped(page: PageNo) -> bool {
    reverse::first(page).is_some()
}

/// The entry for a page: what its mapping allows, and that `access` has happened.
#[inline]
fn entry_for(page: PageNo, prot: Prot, access: Prot, wiring: Wiring) -> u64 {
    let mut entry = KERNEL.frames().pa(page).0 | PRESENT | USER;
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

/// Gathers one call's stale addresses in one space into one range.
struct Stale {
    space: u64,
    cpus: CpuSet,
    range: VaRange,
}

impl Stale {
    #[inline]
    fn new(space: &Space) -> Stale {
        Stale { space: u64::from(space.root.0), cpus: space.cpus(), range: VaRange::new(Va(u64::MAX), Va(0)) }
    }

    /// The translation of `va` by `entry` is no longer what it was.
    #[inline]
    fn add(&mut self, va: u64, entry: u64) {
        if entry & CACHED != 0 && self.cpus != CpuSet::NONE {
            self.range.start = self.range.start.min(Va(va));
            self.range.end = self.range.end.max(Va(va + PAGE_SIZE as u64));
        }
    }

    #[inline]
    fn note(self, down: &mut Shootdown) {
        if !self.range.is_empty() {
            down.note(self.space, self.range, self.cpus);
        }
    }
}

impl Pmap for X86Pmap {
    type Space = Space;

    fn create<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) -> Result<Space, NoMemory> {
        self.state.lock().tables.new_space(held)
    }

    fn destroy<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, space: Space) {
        space.leave();
        self.state.lock().tables.free_space(held, space);
    }

    fn enter<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: Va,
        page: PageNo,
        prot: Prot,
        access: Prot,
        wiring: Wiring,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let mut state = self.state.lock();
        let last = state.tables.last_table_or_new(held, space, va.0)?;
        let at = index(va.0, 0);
        let slot = &last.entries[at];
        let old = slot.load(Relaxed);
        let new = entry_for(page, prot, access, wiring);
        if old & PRESENT == 0 {
            state.nodes.link(held, page, last.page, at)?;
            slot.store(new, Relaxed);
            last.added(space, at);
            return Ok(());
        }
        let mut stale = Stale::new(space);
        if (old ^ new) & ADDRESS == 0 {
            slot.store(new | old & (ACCESSED | DIRTY | SEEN), Relaxed);
            if old & WRITE > new & WRITE || old & NO_EXECUTE < new & NO_EXECUTE {
                stale.add(va.0, old);
            }
        } else {
            state.nodes.link(held, page, last.page, at)?;
            slot.store(new, Relaxed);
            state.nodes.unlink(page_of(old), last.page, at, old);
            stale.add(va.0, old);
        }
        stale.note(down);
        Ok(())
    }

    fn replace<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: Va,
        page: PageNo,
        prot: Prot,
        access: Prot,
        down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let at = index(va.0, 0);
        loop {
            let mut state = self.state.lock();
            let last = state.tables.last_table_or_new(held, space, va.0)?;
            let slot = &last.entries[at];
            let old = slot.load(Relaxed);
            if old & PRESENT == 0 {
                state.nodes.link(held, page, last.page, at)?;
                slot.store(entry_for(page, prot, access, Wiring::Pageable), Relaxed);
                last.added(space, at);
                return Ok(());
            }
            slot.store(0, Relaxed);
            state.nodes.unlink(page_of(old), last.page, at, old);
            last.removed(space, 1);
            let mut stale = Stale::new(space);
            stale.add(va.0, old);
            stale.note(down);
            drop(state);
            down.flush(self);
        }
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        va: Va,
        pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        let mut state = self.state.lock();
        let Some(last) = space.last_table(va.0) else { return };
        let first = index(va.0, 0);
        for (n, &(page, prot)) in pages.iter().enumerate().filter_map(|(n, p)| Some((n, p.as_ref()?))) {
            if !may(n) {
                continue;
            }
            let at = first + n;
            let slot = &last.entries[at];
            let old = slot.load(Relaxed);
            if old & PRESENT == 0 {
                if state.nodes.link(held, page, last.page, at).is_err() {
                    return;
                }
                slot.store(entry_for(page, prot, Prot::NONE, Wiring::Pageable), Relaxed);
                last.added(space, at);
            } else {
                let new = entry_for(page, prot, Prot::NONE, Wiring::Pageable);
                if (old ^ new) & ADDRESS == 0 {
                    let raised = if new & NO_EXECUTE == 0 { old & !NO_EXECUTE } else { old };
                    slot.store(raised | new & WRITE, Relaxed);
                }
            }
        }
    }

    fn remove<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        range: VaRange,
        down: &mut Shootdown,
    ) {
        let mut state = self.state.lock();
        state.overtake_nobody(space, range, down);
        if space.resident() == 0 {
            state.counted += u32::from(down.begin_count());
            return;
        }
        let mut stale = Stale::new(space);
        let mut walk = Walk::new(space, range);
        while let Some(part) = walk.next() {
            let removed = state.remove_part(&part, &mut stale);
            part.table.removed(space, removed);
            if part.table.count() == 0 && part.is_whole() && walk.frees_tables() {
                stale.add(part.va, ACCESSED);
                stale.add(part.va + (part.len - 1) as u64 * PAGE_SIZE as u64, ACCESSED);
                state.tables.retire(held, &part.table, space);
            }
        }
        stale.note(down);
        state.counted += u32::from(down.begin_count());
    }

    fn protect<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        space: &Space,
        range: VaRange,
        prot: Prot,
        down: &mut Shootdown,
    ) {
        if prot.is_empty() {
            return self.remove(held, space, range, down);
        }
        let mut state = self.state.lock();
        state.overtake_nobody(space, range, down);
        if space.resident() == 0 {
            state.counted += u32::from(down.begin_count());
            return;
        }
        let mut stale = Stale::new(space);
        let mut walk = Walk::new(space, range);
        while let Some(part) = walk.next() {
            part.each(|at, va, old| {
                let new = lowered(old, prot);
                if new != old {
                    part.table.entries[at].store(new, Relaxed);
                    stale.add(va, old);
                }
            });
        }
        stale.note(down);
        state.counted += u32::from(down.begin_count());
    }

    fn unwire(&self, space: &Space, va: Va) -> bool {
        let _state = self.state.lock();
        let Some(last) = space.last_table(va.0) else { return false };
        let slot = &last.entries[index(va.0, 0)];
        let entry = slot.load(Relaxed);
        slot.store(entry & !WIRED, Relaxed);
        entry & WIRED != 0
    }

    fn extract(&self, space: &Space, va: Va) -> Option<(PageNo, Prot)> {
        let _state = self.state.lock();
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
        let mut state = self.state.lock();
        if prot.is_empty() {
            let wired = state.remove_everywhere(page, down);
            state.overtake_nobody_by_page(down);
            return wired;
        }
        reverse::each(page, |mapping| {
            let old = mapping.load();
            let new = lowered(old, prot);
            if new != old {
                mapping.store(new);
                mapping.note(old, down);
            }
        });
        state.overtake_nobody_by_page(down);
        0
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        let _state = self.state.lock();
        let mut any = false;
        reverse::each(page, |_| any = true);
        any
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        let _state = self.state.lock();
        reverse::gather(page) & ACCESSED != 0
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        let _state = self.state.lock();
        let was = reverse::gather(page) & ACCESSED != 0;
        if was {
            reverse::clear(page, ACCESSED, |mapping, entry| mapping.store(entry & !ACCESSED | SEEN));
        }
        was
    }

    fn is_modified(&self, page: PageNo) -> bool {
        let _state = self.state.lock();
        reverse::gather(page) & DIRTY != 0
    }

    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool {
        let _state = self.state.lock();
        let was = reverse::gather(page) & DIRTY != 0;
        if was {
            reverse::clear(page, DIRTY, |mapping, old| mapping.note(old | ACCESSED, down));
        }
        was
    }

    fn flush(&self, down: &Shootdown) {
        flush_others(down.cpus());
        if !down.cpus().contains(cpu::index()) {
            self.state.lock().counted -= u32::from(down.is_counted());
            return;
        }
        let here = space::active();
        let ranges = down.ranges();
        let pages = ranges.map(|r| r.iter().map(|s| s.range.pages().0).sum::<u64>());
        match (ranges, pages) {
            (Some(ranges), Some(pages)) if pages <= SINGLY => {
                for stale in ranges.iter().filter(|s| s.space == u64::from(here)) {
                    stale.range.iter_pages().for_each(|va| io::invlpg(va.0));
                }
            }
            // SAFETY: the root that is active already.
            _ => unsafe { io::write_cr3(io::read_cr3()) },
        }
        let mut state = self.state.lock();
        state.counted -= u32::from(down.is_counted());
        state.tables.retired_are_forgotten();
    }
}

impl State {
    /// Law P6, before a range is lowered.
    #[inline]
    fn overtake_nobody(&self, space: &Space, range: VaRange, down: &mut Shootdown) {
        if self.counted != u32::from(down.is_counted()) {
            down.note(u64::from(space.root.0), range, space.cpus());
        }
    }

    /// Law P6, after a page was lowered.
    fn overtake_nobody_by_page(&mut self, down: &mut Shootdown) {
        if self.counted != u32::from(down.is_counted()) {
            down.note_all(cpu::online());
        }
        self.counted += u32::from(down.begin_count());
    }

    /// Removes the entries of one table within a part; how many there were.
    fn remove_part(&mut self, part: &space::Part, stale: &mut Stale) -> u32 {
        let mut removed = 0;
        part.each(|at, va, entry| {
            part.table.entries[at].store(0, Relaxed);
            self.nodes.unlink(page_of(entry), part.table.page, at, entry);
            stale.add(va, entry);
            removed += 1;
        });
        part.emptied();
        removed
    }

    /// Removes all mappings of a page; how many were wired.
    fn remove_everywhere(&mut self, page: PageNo, down: &mut Shootdown) -> u32 {
        let mut wired = 0;
        while let Some(mapping) = reverse::first(page) {
            let entry = mapping.load();
            mapping.store(0);
            mapping.note(entry, down);
            wired += u32::from(entry & WIRED != 0);
            self.nodes.unlink(page, mapping.table, mapping.at, entry);
            mapping.removed();
        }
        wired
    }
}
