//! Sv39: the contract's `Pmap` over page tables in frames.
//!
//! ```text
//!   root            tables             leaf tables                   links, one page for each leaf
//!   | 0: devices |                                                   table: a word for each entry
//!   | 2: memory  |                     | spot n | -- entry --> page  | next | previous | spot
//!   | 4..256     | -> |          | ->  |        |                    |      |          |
//!                                        ^---- heads[page] = first spot of the page's chain
//! ```
//! A *spot* is a place in a leaf table: the table's frame and an index in 32 bits. So the reverse
//! map (law P5) is a chain through pages that come and go with the tables; it needs no heap.
//!
//! One lock guards tables, chains and bits. The MMU changes entries without it: it sets A and D at
//! any moment, so present entries change by exchange. An MMU that faults instead of setting them is
//! served too: the library enters again for the access, and that sets them here.
//!
//! I1: a hart is in `harts[space]` from before it loads the space's root until after it has loaded
//! another. There are no address space numbers: loading a root forgets everything. A hart that has
//! nothing to do keeps the last one.
//! I2: an entry with neither A nor HELD is known to no hart: its use would have set A.

use alloc::vec;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use machine::order::{Before, Held, PageCache};
use machine::{CpuSet, NoMemory, PageNo, Pages, Pmap, Prot, Run, Shootdown, Va, VaRange, Wiring};
use spin::Mutex;
use uvm::page::Reserve;

use crate::host::{frames, Virt, PMAP};
use crate::{hart, sbi, HARTS};

const VALID: u64 = 1;
const R: u64 = 2;
const W: u64 = 4;
const X: u64 = 8;
const RIGHTS: u64 = R | W | X;
const USER: u64 = 16;
const GLOBAL: u64 = 32;
const A: u64 = 64;
const D: u64 = 128;
/// Software's two: law P1; and that A was taken back while a hart may have had the entry.
const WIRED: u64 = 256;
const HELD: u64 = 512;

/// Bytes under an entry of a root, a table and a leaf table.
const SPANS: [u64; 3] = [1 << 30, 1 << 21, 1 << 12];
/// Where programs may have memory: the first 4 GiB are the kernel's, of which it uses two.
pub const WINDOW: VaRange = VaRange::new(Va(4 << 30), Va(256 << 30));
const NIL: u32 = u32::MAX;

#[repr(align(4096))]
struct Root([AtomicU64; 512]);
/// Devices and memory, mapped where they lie, for the kernel alone.
static KERNEL_ROOT: Root = {
    let mut root = [const { AtomicU64::new(0) }; 512];
    let giant = VALID | R | W | GLOBAL | A | D;
    root[0] = AtomicU64::new(giant);
    root[2] = AtomicU64::new((2 << 30 >> 2) | giant | X);
    Root(root)
};

/// By frame: what is known of a root or a leaf table.
#[derive(Clone, Default)]
struct Table {
    root: u32,
    /// The first address that a leaf table maps.
    start: u64,
    links: u32,
    /// A root's mappings.
    resident: usize,
}

struct State {
    /// By frame: the first spot that maps it, and the bits of past mappings (A, D).
    heads: Vec<u32>,
    bits: Vec<u64>,
    tables: Vec<Table>,
    /// Shootdowns that are not flushed (law P6).
    unfinished: u32,
    /// Roots of spaces that are gone, which harts still have loaded: at most one each.
    dead: [u32; HARTS],
}

/// The MMU.
pub struct Sv39 {
    state: Mutex<State>,
    /// By root: harts that have it loaded.
    harts: Vec<AtomicU64>,
    /// By hart: the root that it has loaded.
    loaded: [AtomicU32; HARTS],
    /// There are no frames for tables: for the laws' check.
    pub exhausted: AtomicBool,
}

/// An address space: its root.
pub struct Space(pub u32);

type Spot = u32;

fn entry(table: u32, index: usize) -> &'static AtomicU64 {
    let at = frames().pa(PageNo(table)).0 as *const AtomicU64;
    // SAFETY: callers name a table that is in use, which only destroy frees, with this lock held
    // and after every hart has left it; nobody but the MMU changes it otherwise, atomically.
    unsafe { &*at.add(index % 512) }
}

fn slot(spot: Spot) -> &'static AtomicU64 {
    entry(spot >> 9, spot as usize)
}

fn index(level: usize, va: Va) -> usize {
    (va.0 / SPANS[level] % 512) as usize
}

/// The frame that an entry names.
fn page_of(entry: u64) -> PageNo {
    frames().page_at(machine::Pa(entry >> 10 << 12)).expect("entries name frames")
}

fn entry_of(page: u32, bits: u64) -> u64 {
    frames().pa(PageNo(page)).0 >> 2 | bits | VALID
}

fn rights(prot: Prot) -> u64 {
    let mut bits = if prot.contains(Prot::READ) { R } else { 0 };
    // No entry may be written but not read.
    bits |= if prot.contains(Prot::WRITE) { R | W } else { 0 };
    bits | if prot.contains(Prot::EXECUTE) { X } else { 0 }
}

fn fence(range: Option<VaRange>) {
    // SAFETY: forgets translations, which are a cache.
    unsafe {
        match range {
            Some(range) if range.pages() <= Pages(16) => {
                range.iter_pages().for_each(|va| asm!("sfence.vma {}", in(reg) va.0));
            }
            _ => asm!("sfence.vma"),
        }
    }
}

/// Takes a frame for tables. This kernel's own, so that no page's number reaches its bytes.
fn take<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<u32, NoMemory> {
    if PMAP.get().is_some_and(|pmap| pmap.exhausted.load(Relaxed)) {
        return Err(NoMemory);
    }
    let page = frames().alloc(&Virt, held, Reserve::Kernel)?;
    frames().keep(page);
    (0..512).for_each(|n| entry(page.0, n).store(0, Relaxed));
    Ok(page.0)
}

fn give<P: Before<PageCache>>(held: &mut Held<'_, P>, page: u32) {
    // SAFETY: callers have unlinked the table and had all harts forget it, or never linked it.
    unsafe { frames().release_own(PageNo(page)) };
    frames().free_page(&Virt, held, PageNo(page));
}

/// Loads a space's tables on this hart.
pub fn load(root: u32) {
    let pmap = PMAP.get().expect("the pmap is made before spaces");
    let old = pmap.loaded[hart()].swap(root, Relaxed);
    if old == root {
        return;
    }
    let at = if root == NIL { &raw const KERNEL_ROOT as u64 } else { frames().pa(PageNo(root)).0 };
    if root != NIL {
        pmap.harts[root as usize].fetch_or(1 << hart(), SeqCst);
    }
    // SAFETY: every root maps the kernel alike.
    unsafe { asm!("csrw satp, {}", "sfence.vma", in(reg) 8 << 60 | at >> 12) };
    if old != NIL {
        pmap.harts[old as usize].fetch_and(!(1 << hart()), SeqCst);
    }
}

/// Loads the kernel's own tables.
pub fn leave() {
    load(NIL);
}

/// Frees what can be freed of spaces that are gone.
pub fn bury(held: &mut Held<'_, machine::order::Nothing>) {
    let pmap = PMAP.get().expect("the pmap is made before spaces");
    pmap.bury(held, &mut pmap.state.lock());
}

/// Turns the MMU on.
pub fn begin_hart() {
    // SAFETY: the kernel is mapped where it lies.
    unsafe {
        asm!("csrw satp, {}", "sfence.vma", in(reg) 8 << 60 | &raw const KERNEL_ROOT as u64 >> 12)
    };
}

impl State {
    fn link(&mut self, spot: Spot) -> &'static AtomicU64 {
        entry(self.tables[(spot >> 9) as usize].links, spot as usize)
    }

    fn next(&mut self, spot: Spot) -> Spot {
        self.link(spot).load(Relaxed) as u32
    }

    fn set_next(&mut self, spot: Spot, next: Spot) {
        let link = self.link(spot);
        link.store(link.load(Relaxed) >> 32 << 32 | u64::from(next), Relaxed);
    }

    fn set_previous(&mut self, spot: Spot, previous: Spot) {
        let link = self.link(spot);
        link.store(link.load(Relaxed) as u32 as u64 | u64::from(previous) << 32, Relaxed);
    }

    /// A page has one more mapping.
    fn chain(&mut self, spot: Spot, page: PageNo) {
        let first = core::mem::replace(&mut self.heads[page.0 as usize], spot);
        self.link(spot).store(u64::from(NIL) << 32 | u64::from(first), Relaxed);
        if first != NIL {
            self.set_previous(first, spot);
        }
        let root = self.tables[(spot >> 9) as usize].root;
        self.tables[root as usize].resident += 1;
    }

    /// A page has one less, which was this; its bits are the page's.
    fn unchain(&mut self, spot: Spot, old: u64) {
        let page = page_of(old).0 as usize;
        let link = self.link(spot).load(Relaxed);
        let (next, previous) = (link as u32, (link >> 32) as u32);
        if previous == NIL {
            self.heads[page] = next;
        } else {
            self.set_next(previous, next);
        }
        if next != NIL {
            self.set_previous(next, previous);
        }
        if !cfg!(feature = "plant-bits") {
            self.bits[page] |= old & (A | D);
        }
        let root = self.tables[(spot >> 9) as usize].root;
        self.tables[root as usize].resident -= 1;
    }

    fn va(&self, spot: Spot) -> Va {
        Va(self.tables[(spot >> 9) as usize].start) + Pages(u64::from(spot % 512))
    }

    /// Notes who may know an entry as it was. The set is read after the entry has changed.
    fn note(&self, pmap: &Sv39, spot: Spot, old: u64, down: &mut Shootdown) {
        if old & (A | HELD) != 0 {
            let root = self.tables[(spot >> 9) as usize].root;
            let range = VaRange::new(self.va(spot), self.va(spot) + Pages(1));
            down.note(root.into(), range, pmap.holders(root));
        }
    }

    /// Lowers a mapping to at most these rights, and says what it was.
    fn lower(&mut self, pmap: &Sv39, spot: Spot, most: u64, down: &mut Shootdown) -> u64 {
        let old = slot(spot).load(Relaxed);
        let lost = old & RIGHTS & !most;
        if lost == 0 {
            return old;
        }
        let old = if old & RIGHTS == lost {
            let old = slot(spot).swap(0, SeqCst);
            self.unchain(spot, old);
            old
        } else {
            slot(spot).fetch_and(!lost, SeqCst)
        };
        self.note(pmap, spot, old, down);
        old
    }

    /// Law P6: others may have lowered something here, and not told of it yet.
    fn overtake(&mut self, range: Option<(u32, VaRange, CpuSet)>, down: &mut Shootdown) {
        if cfg!(feature = "plant-overtake") {
            return;
        }
        if self.unfinished != u32::from(down.is_counted()) {
            match range {
                Some((root, range, holders)) => down.note(root.into(), range, holders),
                None => down.note_all(CpuSet::first(HARTS)),
            }
        }
        self.unfinished += u32::from(down.begin_count());
    }

    /// The place of an address, if there is a table.
    fn find(&self, root: u32, va: Va) -> Option<Spot> {
        let mut table = root;
        for level in 0..2 {
            let entry = entry(table, index(level, va)).load(Relaxed);
            if entry == 0 {
                return None;
            }
            table = page_of(entry).0;
        }
        Some(table << 9 | index(2, va) as u32)
    }

    /// The place of an address; takes the tables that are missing.
    fn make<P: Before<PageCache>>(
        &mut self, held: &mut Held<'_, P>, root: u32, va: Va,
    ) -> Result<Spot, NoMemory> {
        let top = entry(root, index(0, va));
        if top.load(Relaxed) == 0 {
            top.store(entry_of(take(held)?, 0), Relaxed);
        }
        let middle = entry(page_of(top.load(Relaxed)).0, index(1, va));
        if middle.load(Relaxed) == 0 {
            let table = take(held)?;
            let links = take(held).inspect_err(|_| give(held, table))?;
            let start = va.0 / SPANS[1] * SPANS[1];
            self.tables[table as usize] = Table { root, start, links, resident: 0 };
            // The MMU finds the table empty, not as it was before.
            middle.store(entry_of(table, 0), Release);
        }
        Ok(page_of(middle.load(Relaxed)).0 << 9 | index(2, va) as u32)
    }

    /// Calls `what` for each mapping of a range until it says no. Cost: by tables and mappings.
    fn each(&mut self, root: u32, range: VaRange, mut what: impl FnMut(&mut State, Spot) -> bool) {
        let (mut va, end) = (range.start.0.max(WINDOW.start.0), range.end.0.min(WINDOW.end.0));
        'tables: while va < end {
            let mut table = root;
            for (level, span) in SPANS[..2].iter().enumerate() {
                let entry = entry(table, index(level, Va(va))).load(Relaxed);
                if entry == 0 {
                    va = (va / span + 1) * span;
                    continue 'tables;
                }
                table = page_of(entry).0;
            }
            let stop = end.min((va / SPANS[1] + 1) * SPANS[1]);
            for at in (va..stop).step_by(1 << 12) {
                let spot = table << 9 | index(2, Va(at)) as u32;
                if slot(spot).load(Relaxed) != 0 && !what(self, spot) {
                    return;
                }
            }
            va = stop;
        }
    }

    /// Whether a page has a bit, in any mapping or of past ones; and clears it by `clear`.
    fn bit(&mut self, page: PageNo, bit: u64, mut clear: impl FnMut(&mut State, Spot)) -> bool {
        let mut has = self.bits[page.0 as usize] & bit != 0;
        let mut spot = self.heads[page.0 as usize];
        while spot != NIL {
            if slot(spot).load(Relaxed) & bit != 0 {
                has = true;
                clear(self, spot);
            }
            spot = self.next(spot);
        }
        has
    }
}

impl Sv39 {
    /// For all frames of the machine.
    pub fn new() -> Sv39 {
        let count = frames().numbers();
        Sv39 {
            state: Mutex::new(State {
                heads: vec![NIL; count],
                bits: vec![0; count],
                tables: vec![Table::default(); count],
                unfinished: 0,
                dead: [NIL; HARTS],
            }),
            harts: (0..count).map(|_| AtomicU64::new(0)).collect(),
            loaded: [const { AtomicU32::new(NIL) }; HARTS],
            exhausted: AtomicBool::new(false),
        }
    }

    fn holders(&self, root: u32) -> CpuSet {
        CpuSet::from_bits(self.harts[root as usize].load(SeqCst))
    }

    /// Frees roots of spaces that are gone, once no hart has them loaded any more.
    fn bury<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, state: &mut State) {
        for dead in state.dead.iter_mut().filter(|dead| **dead != NIL) {
            if self.holders(*dead).is_empty() {
                give(held, core::mem::replace(dead, NIL));
            }
        }
    }
}

impl Pmap for Sv39 {
    type Space = Space;

    fn create<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) -> Result<Space, NoMemory> {
        let state = &mut *self.state.lock();
        self.bury(held, state);
        let root = take(held)?;
        for n in [0, 2] {
            entry(root, n).store(KERNEL_ROOT.0[n].load(Relaxed), Relaxed);
        }
        state.tables[root as usize] = Table { root, ..Table::default() };
        Ok(Space(root))
    }

    /// A hart may walk the tables ahead of any use: so each part is unlinked and forgotten first.
    fn destroy<P: Before<PageCache>>(&self, held: &mut Held<'_, P>, space: Space) {
        let state = &mut *self.state.lock();
        for top in 4..512 {
            let table = entry(space.0, top).swap(0, SeqCst);
            if table == 0 {
                continue;
            }
            let others = self.holders(space.0).without(CpuSet::one(hart()));
            if !others.is_empty() {
                sbi::remote_fence(others.bits(), 0, usize::MAX);
            }
            fence(None);
            let table = page_of(table).0;
            for leaf in (0..512).map(|n| entry(table, n).load(Relaxed)).filter(|leaf| *leaf != 0) {
                give(held, state.tables[page_of(leaf).0 as usize].links);
                give(held, page_of(leaf).0);
            }
            give(held, table);
        }
        if self.holders(space.0).contains(hart()) {
            leave();
        }
        self.bury(held, state);
        let place = state.dead.iter_mut().find(|dead| **dead == NIL);
        *place.expect("each hart has one root loaded") = space.0;
        self.bury(held, state);
    }

    fn enter<P: Before<PageCache>>(
        &self, held: &mut Held<'_, P>, space: &Space, run: Run, prot: Prot, access: Prot,
        wiring: Wiring, down: &mut Shootdown,
    ) -> Result<(), NoMemory> {
        let state = &mut *self.state.lock();
        for (va, page) in run.iter() {
            let spot = state.make(held, space.0, va)?;
            let mut new = entry_of(page.0, rights(prot) | USER);
            new |= if wiring == Wiring::Wired { WIRED } else { 0 };
            new |= if access.is_empty() { 0 } else { A };
            new |= if access.contains(Prot::WRITE) { D } else { 0 };
            let is_same = |old: u64| old != 0 && page_of(old) == page;
            // What the MMU sets meanwhile is kept; with another page it is the old page's.
            let change = |old| Some(new | if is_same(old) { old & (A | D | HELD) } else { 0 });
            let old = slot(spot).fetch_update(SeqCst, Relaxed, change).unwrap_or(0);
            if !is_same(old) {
                if old != 0 {
                    state.unchain(spot, old);
                }
                state.chain(spot, page);
            }
            if !is_same(old) || old & RIGHTS & !new != 0 {
                state.note(self, spot, old, down);
                if !cfg!(feature = "plant-overtake") {
                    state.unfinished += u32::from(down.begin_count());
                }
            }
        }
        // An MMU may remember that nothing was there.
        fence(Some(run.range()));
        Ok(())
    }

    fn enter_ahead<P: Before<PageCache>>(
        &self, _held: &mut Held<'_, P>, space: &Space, va: Va, pages: &[Option<(PageNo, Prot)>],
        may: impl Fn(usize) -> bool,
    ) {
        let state = &mut *self.state.lock();
        for (n, run) in pages.iter().enumerate() {
            let Some((page, prot)) = *run else { continue };
            let Some(spot) = state.find(space.0, va + Pages(n as u64)) else { return };
            let old = slot(spot).load(Relaxed);
            if old == 0 && may(n) {
                slot(spot).store(entry_of(page.0, rights(prot) | USER), SeqCst);
                state.chain(spot, page);
            } else if old != 0 && page_of(old) == page && may(n) {
                slot(spot).fetch_or(rights(prot), SeqCst);
            }
        }
    }

    fn remove<P: Before<PageCache>>(
        &self, held: &mut Held<'_, P>, space: &Space, range: VaRange, down: &mut Shootdown,
    ) {
        self.protect(held, space, range, Prot::NONE, down);
    }

    fn protect<P: Before<PageCache>>(
        &self, _held: &mut Held<'_, P>, space: &Space, range: VaRange, prot: Prot,
        down: &mut Shootdown,
    ) {
        let state = &mut *self.state.lock();
        state.each(space.0, range, |state, spot| {
            state.lower(self, spot, rights(prot), down);
            true
        });
        state.overtake(Some((space.0, range, self.holders(space.0))), down);
    }

    fn unwire(&self, space: &Space, range: VaRange) -> Option<(Va, PageNo)> {
        let mut found = None;
        self.state.lock().each(space.0, range, |state, spot| {
            let old = slot(spot).fetch_and(!WIRED, SeqCst);
            found = (old & WIRED != 0).then(|| (state.va(spot), page_of(old)));
            found.is_none()
        });
        found
    }

    fn part(&self, space: &Space, range: VaRange, mappings: usize) -> Va {
        let (mut end, mut left) = (range.end, mappings);
        self.state.lock().each(space.0, range, |state, spot| {
            end = if left == 0 { state.va(spot) } else { range.end };
            left = left.wrapping_sub(1);
            end == range.end
        });
        end
    }

    fn extract(&self, space: &Space, va: Va) -> Option<(PageNo, Prot)> {
        let old = slot(self.state.lock().find(space.0, va)?).load(Relaxed);
        let all = [(R, Prot::READ), (W, Prot::WRITE), (X, Prot::EXECUTE)];
        let prot = all.into_iter().filter(|(bit, _)| old & bit != 0).map(|(_, prot)| prot);
        (old != 0).then(|| (page_of(old), prot.collect()))
    }

    fn resident(&self, space: &Space) -> usize {
        self.state.lock().tables[space.0 as usize].resident
    }

    fn page_protect<P: Before<PageCache>>(
        &self, _held: &mut Held<'_, P>, page: PageNo, prot: Prot, down: &mut Shootdown,
    ) -> u32 {
        let state = &mut *self.state.lock();
        let (mut spot, mut wired) = (state.heads[page.0 as usize], 0);
        while spot != NIL {
            let next = state.next(spot);
            let old = state.lower(self, spot, rights(prot), down);
            wired += u32::from(slot(spot).load(Relaxed) == 0 && old & WIRED != 0);
            spot = if cfg!(feature = "plant-reverse") { NIL } else { next };
        }
        state.overtake(None, down);
        wired
    }

    fn is_mapped(&self, page: PageNo) -> bool {
        let state = self.state.lock();
        state.unfinished != 0 || state.heads[page.0 as usize] != NIL
    }

    fn is_referenced(&self, page: PageNo) -> bool {
        self.state.lock().bit(page, A, |_, _| ())
    }

    fn clear_referenced(&self, page: PageNo) -> bool {
        let state = &mut *self.state.lock();
        let was = state.bit(page, A, |_, spot| {
            // Harts aren't told, so they may go on with the entry.
            let take_back = |old: u64| Some(old & !A | HELD);
            let _ = slot(spot).fetch_update(SeqCst, Relaxed, take_back);
        });
        state.bits[page.0 as usize] &= !A;
        was
    }

    fn is_modified(&self, page: PageNo) -> bool {
        self.state.lock().bit(page, D, |_, _| ())
    }

    fn clear_modified(&self, page: PageNo, down: &mut Shootdown) -> bool {
        let state = &mut *self.state.lock();
        let was = state.bit(page, D, |state, spot| {
            let old = slot(spot).fetch_and(!D, SeqCst);
            state.note(self, spot, old, down);
        });
        state.bits[page.0 as usize] &= !D;
        if was {
            state.overtake(None, down);
        }
        was
    }

    fn forget_modified(&self, page: PageNo) {
        self.state.lock().bits[page.0 as usize] &= !D;
    }

    /// The firmware interrupts the harts, wherever they are, and returns when all have forgotten.
    fn flush(&self, down: &Shootdown) {
        let others = down.cpus().without(CpuSet::one(hart()));
        if !others.is_empty() && !cfg!(feature = "plant-local") {
            match down.ranges() {
                None => sbi::remote_fence(others.bits(), 0, usize::MAX),
                Some(ranges) => ranges.iter().for_each(|stale| {
                    let bytes = stale.range.end.0 - stale.range.start.0;
                    sbi::remote_fence(others.bits(), stale.range.start.0, bytes as usize);
                }),
            }
        }
        if down.cpus().contains(hart()) {
            match down.ranges() {
                None => fence(None),
                Some(ranges) => ranges.iter().for_each(|stale| fence(Some(stale.range))),
            }
        }
        if down.is_counted() {
            self.state.lock().unfinished -= 1;
        }
    }
}
