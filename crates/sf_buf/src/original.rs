//! What kernels did before: addresses are taken, mapped, unmapped and forgotten by all CPUs, each
//! time. The base line of the paper's figures.

use alloc::vec::Vec;
use machine::order::{Leaf, RawLock};
use machine::{CpuSet, NoMemory, Pa};

use crate::{Counts, KernelMap};

pub(crate) struct Original<R> {
    slots: u32,
    state: Leaf<R, State>,
}

struct State {
    free: Vec<u32>,
    counts: Counts,
}

impl<R: RawLock> Original<R> {
    pub(crate) fn new(first: u32, slots: u32) -> Result<Original<R>, NoMemory> {
        let mut free = Vec::new();
        free.try_reserve_exact(slots as usize).map_err(|_| NoMemory)?;
        free.extend((first..first + slots).rev());
        Ok(Original { slots, state: Leaf::new(State { free, counts: Counts::default() }) })
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn open(&self, map: &impl KernelMap, page: Pa) -> Option<u32> {
        let slot = self.state.with(|state| {
            let slot = state.free.pop()?;
            state.counts.opened += 1;
            Some(slot)
        })?;
        map.set(slot, Some(page));
        Some(slot)
    }

    pub(crate) fn close(&self, map: &impl KernelMap, slot: u32) {
        map.set(slot, None);
        map.invalidate(slot);
        let others = map.cpus().without(CpuSet::one(map.cpu()));
        if !others.is_empty() {
            map.invalidate_on(slot, others);
        }
        self.state.with(|state| {
            state.counts.local += 1;
            state.counts.remote += others.iter().count() as u64;
            state.counts.rounds += u64::from(!others.is_empty());
            state.free.push(slot);
        });
        map.wake();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.with(|state| state.counts)
    }
}
