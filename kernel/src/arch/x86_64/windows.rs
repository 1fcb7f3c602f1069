//! Kernel addresses for windows: each slot is one entry of the kernel's tables.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use machine::order::Unlocked;
use machine::{CpuSet, NoMemory, Pa, PAGE_SHIFT};
use sf_buf::{Interrupted, KernelMap};

use super::tables::{self, Table, ACCESSED, DIRTY, GLOBAL, NO_EXECUTE, PRESENT, WRITE};
use super::{cpu, io, ipi, layout};
use crate::upcalls;

/// The entries of all slots, 512 in a table.
pub struct WindowTables {
    /// Those of the first slots, which each CPU has of its own.
    first: &'static Table,
    tables: Vec<&'static Table>,
    /// Times that a mapping was closed.
    closed: AtomicU64,
}

/// Of a page in a slot. Dirty from the start: a store need not say so.
const RIGHTS: u64 = PRESENT | WRITE | DIRTY | GLOBAL | NO_EXECUTE;

const _: () = assert!(cpu::MAX_CPUS * sf_buf::DEPTH as usize <= 512);

/// Where a slot is seen.
#[inline]
pub fn address(slot: u32) -> u64 {
    layout::WINDOWS + (u64::from(slot) << PAGE_SHIFT)
}

impl WindowTables {
    /// Tables for `slots` slots, which show nothing.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(slots: u32) -> Result<WindowTables, NoMemory> {
        let mut list = Vec::new();
        let count = slots.div_ceil(512);
        list.try_reserve_exact(count as usize).map_err(|_| NoMemory)?;
        for table in 0..count {
            list.push(tables::last_table(address(table * 512))?);
        }
        let first = *list.first().ok_or(NoMemory)?;
        Ok(WindowTables { first, tables: list, closed: AtomicU64::new(0) })
    }

    #[inline]
    fn entry(&self, slot: u32) -> &'static AtomicU64 {
        &self.tables[slot as usize / 512][slot as usize % 512]
    }
}

impl KernelMap for WindowTables {
    #[inline]
    fn cpu(&self) -> usize {
        cpu::index()
    }

    fn cpus(&self) -> CpuSet {
        cpu::online()
    }

    /// No other CPU touches the entry: a plain store does.
    #[inline]
    fn show_own(&self, slot: u32, page: Pa) {
        self.first[slot as usize].store(page.0 | RIGHTS, Relaxed);
    }

    /// It was used, as good as always: a look at the entry would cost more than it saves.
    #[inline]
    fn hide_own(&self, slot: u32) -> bool {
        self.first[slot as usize].store(0, Relaxed);
        self.invalidate(slot);
        true
    }

    fn set(&self, slot: u32, page: Option<Pa>) -> bool {
        let new = page.map_or(0, |page| page.0 | RIGHTS);
        let old = self.entry(slot).swap(new, AcqRel);
        old & (PRESENT | ACCESSED) == PRESENT | ACCESSED
    }

    #[inline]
    fn invalidate(&self, slot: u32) {
        io::invlpg(address(slot));
    }

    fn invalidate_on(&self, slot: u32, cpus: CpuSet) {
        ipi::forget_page(address(slot), cpus);
    }

    fn ticket(&self) -> u64 {
        self.closed.load(Acquire)
    }

    /// Others close theirs when they run.
    fn wait(&self, _: &mut Unlocked<'_>, ticket: u64, _: bool) -> Result<(), Interrupted> {
        if self.closed.load(Acquire) == ticket {
            upcalls::give_way();
        }
        Ok(())
    }

    fn wake(&self) {
        self.closed.fetch_add(1, Relaxed);
    }
}
