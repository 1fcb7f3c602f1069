// A host for the examples in the documentation, which take this file in; the crate has no such
// module.

pub use machine::order::Unlocked;
pub use machine::{CpuSet, Pa};
pub use sf_buf::{Interrupted, KernelMap, Kind, Place, Reach, SfBuf, SfBufs};
pub use std::cell::Cell;

/// A lock of std.
pub type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;

/// Entries that no MMU reads.
pub struct Tables(Vec<Cell<Option<Pa>>>);

impl Tables {
    pub fn new(slots: u32) -> Tables {
        Tables((0..slots).map(|_| Cell::new(None)).collect())
    }
    /// What an entry shows.
    pub fn seen(&self, place: Place) -> Option<Pa> {
        match place {
            Place::Slot(slot) => self.0[slot as usize].get(),
            Place::Direct => None,
        }
    }
}

impl KernelMap for Tables {
    fn cpu(&self) -> usize {
        0
    }
    fn cpus(&self) -> CpuSet {
        CpuSet::one(0)
    }
    fn set(&self, slot: u32, page: Option<Pa>) -> bool {
        self.0[slot as usize].replace(page).is_some()
    }
    fn invalidate(&self, _: u32) {}
    fn invalidate_on(&self, _: u32, _: CpuSet) {}
    fn ticket(&self) -> u64 {
        0
    }
    fn wait(&self, _: &mut Unlocked<'_>, _: u64, _: bool) -> Result<(), Interrupted> {
        Err(Interrupted)
    }
    fn wake(&self) {}
}
