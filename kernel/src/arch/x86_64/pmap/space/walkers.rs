//! A root of its own for each CPU that runs threads of one space, once they use addresses apart.
//!
//! ```text
//!   the space's root   | a | b | c | . |     each entry serves half a terabyte
//!   CPU 0's own        | a | . | c | . |     what CPU 0 has walked through: it knows no translation by b
//!   CPU 1's own        | . | b | c | . |
//!   walkers            |0  | 1 |01 |   |     by entry, the CPUs whose own roots have it
//! ```
//! All CPUs would hear of each unmapping, though most never used what was unmapped. A CPU's own
//! root begins empty; its first access by each entry faults, and the entry is copied: by that the
//! CPU is known to walk there, and only such CPUs are told. Below the roots all tables are shared.
//!
//! I5: a CPU that has the space's own root loaded is in the word [`ALL`]. One leaves it after it
//! has loaded a root of its own, and never loads the space's again. I6: a CPU is among an entry's
//! walkers before its own root has the entry. So of a CPU that walks there and one that has lowered
//! a translation and then reads the walkers, one sees the other (as in `machine::notes`, I1). I7:
//! an entry of the space's root, once there are walkers, stays till the space's end: a copy of it
//! leads nowhere else.
//!
//! Source: a page table for each core is RadixVM's (Clements, Kaashoek and Zeldovich, EuroSys
//! 2013); here only its first page is, and only where threads map side by side.

use core::sync::atomic::AtomicU64;

use super::tables::{free, free_root, new_root, zeroed};
use super::*;
use crate::arch::pmap::tlb;
use crate::arch::tables::active;

/// Words of the page of walkers: CPUs that have the space's own root, or none yet; each CPU's own
/// root, by page number; and for each entry that programs have in a root, its walkers.
const ALL: usize = 0;
const ROOTS: usize = 1;
const WALKERS: usize = 256;

/// The word of a root's record that has the page of walkers.
const PAGE: usize = PREV;

/// Entries of a root that programs have.
const ENTRIES: usize = 256;

/// What an entry of a root serves.
pub(in super::super) const APART: u64 = 1 << 39;

#[inline]
fn walkers_of(root: PageNo) -> Option<&'static Table> {
    let page = record(root).words[PAGE].load(SeqCst);
    // SAFETY: the page that a root's record names holds atomics, zeroed or more, until the space's
    // end.
    (page != NIL).then(|| unsafe { table(pa(PageNo(page))) })
}

/// CPUs that may hold translations for an address in the space of a root (I1 of `machine::notes`).
#[inline]
pub(in super::super) fn cpus_at(root: PageNo, va: u64) -> CpuSet {
    let cpus = cpus_of(root);
    match walkers_of(root) {
        None => cpus,
        Some(walkers) => cpus.intersection(among(walkers, va)),
    }
}

/// The root that a word of the page of walkers names as a CPU's own.
#[inline]
fn own_root(page: u64) -> Root {
    // SAFETY: such a page holds a root till the space's end, and what it leads to is the space's.
    unsafe { Root::at(pa(PageNo(page as u32))) }
}

#[inline(never)]
fn among(walkers: &Table, va: u64) -> CpuSet {
    CpuSet(walkers[ALL].load(SeqCst) | walkers[WALKERS + index(va, 3)].load(SeqCst))
}

/// A new space's root has no walkers.
pub(super) fn init(root: PageNo) {
    record(root).words[PAGE].store(NIL, Relaxed);
}

impl Space {
    /// CPUs that may hold translations for a range.
    pub(in super::super) fn cpus_over(&self, range: VaRange) -> CpuSet {
        let is_one = range.start.0 / APART == (range.end.0 - 1) / APART;
        if is_one {
            cpus_at(self.root, range.start.0)
        } else {
            self.cpus()
        }
    }

    /// Loads a root of the space here; this CPU is in the space's set.
    #[inline]
    pub(in super::super) fn load(&self) {
        match walkers_of(self.root) {
            None => tlb::load(self.top, self.root.0),
            Some(walkers) => self.load_own(walkers),
        }
    }

    #[cold]
    fn load_own(&self, walkers: &Table) {
        let own = walkers[ROOTS + cpu::index()].load(Relaxed);
        if own != 0 {
            return tlb::load(own_root(own), self.root.0);
        }
        match tables::kept_root() {
            Some(root) => self.begin(walkers, root),
            None => tlb::load(self.top, self.root.0),
        }
    }

    /// Makes a root this CPU's own, and loads it.
    fn begin(&self, walkers: &Table, root: PageNo) {
        walkers[ROOTS + cpu::index()].store(u64::from(root.0), Relaxed);
        tlb::load(own_root(u64::from(root.0)), self.root.0);
        walkers[ALL].fetch_and(!CpuSet::one(cpu::index()).0, SeqCst);
    }

    /// Has CPUs that fault get roots of their own.
    pub(in super::super) fn use_apart(&self) {
        self.apart.store(true, Relaxed);
    }

    /// Whether CPUs have roots of their own, or are to get them.
    #[inline(always)]
    pub(in super::super) fn is_used_apart(&self) -> bool {
        self.apart.load(Relaxed)
    }

    /// Whether this CPU has no root of its own, or one without an entry for an address.
    #[inline(always)]
    pub(in super::super) fn lacks(&self, va: u64) -> bool {
        let root = active();
        root == self.top || root.entries()[index(va, 3)].load(Relaxed) & PRESENT == 0
    }

    /// Lets this CPU walk where an address lies, if the space is the one that it has loaded. Says
    /// whether it couldn't before.
    pub(in super::super) fn admit<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
        va: u64,
    ) -> bool {
        if cpu::this().space.get() != self.root.0 {
            return false;
        }
        // Without memory it goes on with the space's root.
        if active() == self.top && self.begin_own(held).is_err() {
            return false;
        }
        let at = index(va, 3);
        let slot = &active().entries()[at];
        if at >= ENTRIES || slot.load(Relaxed) & PRESENT != 0 {
            return false;
        }
        let Some(walkers) = walkers_of(self.root) else { return false };
        let _tree = self.lock();
        let entry = self.top.entries()[at].load(Relaxed);
        if entry & PRESENT == 0 {
            return false;
        }
        walkers[WALKERS + at].fetch_or(CpuSet::one(cpu::index()).0, SeqCst);
        slot.store(entry, SeqCst);
        true
    }

    /// Gives this CPU a root of its own, and loads it.
    fn begin_own<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) -> Result<(), NoMemory> {
        let root = new_root(held)?;
        let walkers = match walkers_of(self.root) {
            Some(walkers) => walkers,
            None => self.begin_walkers(held).inspect_err(|_| free_root(held, root))?,
        };
        self.begin(walkers, root);
        Ok(())
    }

    /// The page of walkers, which another CPU may make at the same time.
    fn begin_walkers<P: Before<PageCache>>(
        &self,
        held: &mut Held<'_, P>,
    ) -> Result<&'static Table, NoMemory> {
        let page = zeroed(held)?;
        // SAFETY: the zeroed page is this call's, and from below the space's.
        let made = unsafe { table(pa(page)) };
        made[ALL].store(u64::MAX, Relaxed);
        let walkers = {
            let _tree = self.lock();
            walkers_of(self.root).unwrap_or_else(|| {
                record(self.root).words[PAGE].store(page.0, SeqCst);
                made
            })
        };
        if !core::ptr::eq(walkers, made) {
            free(held, page);
        }
        Ok(walkers)
    }

    /// Whether copies of the root's entries may be about. The space's lock is held.
    #[inline]
    pub(super) fn has_walkers(&self) -> bool {
        walkers_of(self.root).is_some()
    }

    /// Frees the CPUs' own roots. No CPU uses the space.
    pub(super) fn end_walkers<P: Before<PageCache>>(&self, held: &mut Held<'_, P>) {
        let Some(walkers) = walkers_of(self.root) else { return };
        for own in &walkers[ROOTS..ROOTS + cpu::MAX_CPUS] {
            let own = own.load(Relaxed) as u32;
            if own != 0 {
                let entries = &own_root(u64::from(own)).entries()[..ENTRIES];
                entries
                    .iter()
                    .filter(|e| e.load(Relaxed) != 0)
                    .for_each(|e: &AtomicU64| e.store(0, Relaxed));
                free_root(held, PageNo(own));
            }
        }
        free(held, PageNo(record(self.root).words[PAGE].load(Relaxed)));
        init(self.root);
    }
}
