//! Slots of each CPU's own.
//!
//! A CPU opens and closes them by itself, one piece of code at a time, so there is no lock; and no
//! other CPU ever uses them, so none is told. What is closed is gone from the tables: no page stays
//! in reach. This CPU forgets its translation if the accessed bit says that it may have one.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use alloc::vec::Vec;
use machine::{NoMemory, Pa};

use crate::{Counts, KernelMap};

/// Mappings that one CPU may have open at a time: a copy from page to page has two.
pub const DEPTH: u32 = 4;

#[derive(Default)]
#[repr(align(64))]
struct Cpu {
    /// The slots in use, a bit each.
    used: AtomicU32,
    opened: AtomicU64,
    /// Closed without a use, so that there was nothing to forget.
    unused: AtomicU64,
}

pub(crate) struct Private {
    cpus: Vec<Cpu>,
}

/// Counts one more; on its CPU alone.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl Private {
    pub(crate) fn new(cpus: usize) -> Result<Private, NoMemory> {
        let mut list = Vec::new();
        list.try_reserve_exact(cpus).map_err(|_| NoMemory)?;
        list.resize_with(cpus, Cpu::default);
        Ok(Private { cpus: list })
    }

    pub(crate) fn slots(&self) -> u32 {
        self.cpus.len() as u32 * DEPTH
    }

    #[inline]
    pub(crate) fn open(&self, map: &impl KernelMap, page: Pa) -> Option<u32> {
        let cpu = map.cpu();
        let own = &self.cpus[cpu];
        let used = own.used.load(Relaxed);
        let free = used.trailing_ones();
        if free >= DEPTH {
            return None;
        }
        own.used.store(used | 1 << free, Relaxed);
        count(&own.opened);
        let slot = cpu as u32 * DEPTH + free;
        map.show_own(slot, page);
        Some(slot)
    }

    #[inline]
    pub(crate) fn close(&self, map: &impl KernelMap, slot: u32) {
        debug_assert!(slot / DEPTH == map.cpu() as u32, "closed on another CPU");
        let own = &self.cpus[(slot / DEPTH) as usize];
        if !map.hide_own(slot) {
            count(&own.unused);
        }
        own.used.store(own.used.load(Relaxed) & !(1 << (slot % DEPTH)), Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.cpus.iter().fold(Counts::default(), |sum, cpu| {
            let (opened, unused) = (cpu.opened.load(Relaxed), cpu.unused.load(Relaxed));
            let open = u64::from(cpu.used.load(Relaxed).count_ones());
            let local = opened.saturating_sub(unused + open);
            sum.plus(Counts { opened, local, ..Counts::default() })
        })
    }
}
