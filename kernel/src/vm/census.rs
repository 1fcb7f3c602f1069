//! What page frames are used for, counted when somebody asks: `/proc/meminfo`, `/proc/vmstat`.
//!
//! Every frame's record is looked at without a lock, so sums are a moment's values and may disagree by a few pages. The
//! road not taken is counters kept on the way of each fault and release, which would cost more than all readers ever do.

use machine::frames::{PageFlags, Place};
use machine::{Class, Machine, Owner, PageNo, Pmap};

use crate::arch::machine::KERNEL;
use crate::arch::pmap;

/// Counts of pages.
#[derive(Clone, Copy, Default)]
pub struct Census {
    /// Anonymous memory of programs.
    pub anon: u64,
    /// Of it: with a copy on swap that is still good.
    pub swap_cached: u64,
    /// Pages of files, those in memory file systems included.
    pub file: u64,
    /// Of these: shared memory and files in memory.
    pub shared: u64,
    /// Of the files on disks: not written back since they changed.
    pub dirty: u64,
    /// Being written.
    pub writeback: u64,
    /// Pages of files that some program has mapped.
    pub mapped: u64,
    /// Locked in memory, or used by a device.
    pub wired: u64,
    /// Used lately: anonymous and shared memory, and files.
    pub active: [u64; 2],
    /// Not used lately.
    pub inactive: [u64; 2],
    /// Page tables of programs.
    pub tables: u64,
}

/// Looks at every frame.
pub(super) fn count() -> Census {
    let mut census = Census { tables: pmap::tables() as u64, ..Census::default() };
    for page in (0..KERNEL.frames().total() as u32).map(PageNo) {
        add(&mut census, page);
    }
    census
}

fn add(census: &mut Census, page: PageNo) {
    let frames = KERNEL.frames();
    let (flags, of_file) = (frames.flags(page), frames.class(page) != Class::Anon);
    let is_clean = || flags.contains(PageFlags::CLEAN) && !KERNEL.pmap().is_modified(page);
    match frames.owner(page) {
        Owner::Anon(_) => {
            census.anon += 1;
            census.swap_cached += u64::from(is_clean());
        }
        Owner::Object(_) => {
            census.file += 1;
            census.shared += u64::from(!of_file);
            census.dirty += u64::from(of_file && !is_clean());
            census.mapped += u64::from(pmap::is_mapped(page));
        }
        _ => return,
    }
    census.writeback += u64::from(flags.contains(PageFlags::BUSY | PageFlags::PAGEOUT));
    census.wired += u64::from(frames.wire_count(page) != 0);
    match frames.place(page) {
        Place::Active | Place::Pending => census.active[usize::from(of_file)] += 1,
        Place::Inactive => census.inactive[usize::from(of_file)] += 1,
        _ => {}
    }
}
