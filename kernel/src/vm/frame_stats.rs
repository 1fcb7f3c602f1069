//! What page frames are used for, counted on request: `/proc/meminfo`, `/proc/vmstat`.
//!
//! Every frame's record is looked at without a lock, so sums are a moment's values and may disagree
//! by a few pages. The road not taken is counters kept on the way of each fault and release, which
//! would cost more than all readers ever do.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use machine::{Machine, NoMemory, PageNo, Pmap, PAGE_SIZE};
use uvm::page::{Class, Owner};
use uvm::page::{PageFlags, Place};

use super::system::system;
use crate::arch::{pmap, tables};
use crate::mem::frames::KERNEL;
use crate::mem::{direct, heap, stack};
use crate::sched;

/// Counts of pages.
#[derive(Clone, Copy, Default)]
pub struct FrameStats {
    /// Anonymous memory of programs.
    pub anon: u64,
    /// Part of `anon` that has a copy on swap that is still good.
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

/// Looks at every frame, and gives way.
pub fn frame_stats() -> FrameStats {
    /// What a frame takes, in bytes copied.
    const FRAME: usize = 16;
    let mut stats = FrameStats { tables: pmap::tables() as u64, ..FrameStats::default() };
    for page in (0..KERNEL.frames().total() as u32).map(PageNo) {
        add(&mut stats, page);
        sched::work_done(FRAME);
    }
    stats
}

/// Whether a page is as its file or swap device has it.
pub(super) fn is_clean(page: PageNo) -> bool {
    KERNEL.frames().flags(page).contains(PageFlags::CLEAN) && !KERNEL.pmap().is_modified(page)
}

fn add(stats: &mut FrameStats, page: PageNo) {
    let frames = KERNEL.frames();
    let (flags, of_file) = (frames.flags(page), frames.class(page) != Class::Anon);
    let is_clean = || is_clean(page);
    match frames.owner(page) {
        Owner::Anon(_) => {
            stats.anon += 1;
            stats.swap_cached += u64::from(is_clean());
        }
        Owner::Object(_) => {
            stats.file += 1;
            stats.shared += u64::from(!of_file);
            stats.dirty += u64::from(of_file && !is_clean());
            stats.mapped += u64::from(pmap::is_mapped(page));
        }
        _ => return,
    }
    stats.writeback += u64::from(flags.contains(PageFlags::BUSY | PageFlags::PAGEOUT));
    stats.wired += u64::from(frames.hold_count(page) != 0);
    match frames.place(page) {
        Place::Active | Place::Pending => stats.active[usize::from(of_file)] += 1,
        Place::Inactive => stats.inactive[usize::from(of_file)] += 1,
        _ => {}
    }
}

/// What memory is in use for, to the page and to the byte, with names. All other CPUs stand still
/// while it is counted.
///
/// # Errors
/// [`NoMemory`] for what it takes to hold them.
pub fn in_use() -> Result<Vec<(String, i64)>, NoMemory> {
    let (frames, (classes, large), stacks, tables) = sched::stop_machine(|stopped| {
        (Kinds::count(), heap::in_use(stopped), stack::in_use(), pmap::tables_in_use())
    })?;
    let (_, used) = system().swap_space();
    let pages = [
        ("free", frames.free),
        ("anon", frames.anon),
        ("shmem", frames.shmem),
        ("file", frames.file),
        ("orphan", frames.orphan),
        ("loaned", frames.loan),
        ("swapped", i64::from(used) - frames.slotted),
        ("tables", tables as i64),
        ("stacks", stacks as i64),
        ("kernel", frames.kernel - kept_frames()),
    ];
    // Tables that are as large as they once had to be.
    let kept = system().anon_table_bytes() + stack::list_bytes() + crate::sched::task_list_bytes();
    let large = [("heap_kept", kept as i64), ("heap_large", large as i64 - kept as i64)];
    let named = |(name, count)| (String::from(name), count);
    let classes = classes.map(|(size, blocks)| (format!("heap_{size}"), (size * blocks) as i64));
    Ok(pages.map(named).into_iter().chain(classes).chain(large.map(named)).collect())
}

/// Frames that the kernel has and keeps for the next use when they are in none: tables, stacks, the
/// heap, nodes of the reverse map, what stays in the direct map.
fn kept_frames() -> i64 {
    let frames = pmap::tables() as u64
        + pmap::node_frames() as u64
        + stack::pages()
        + heap::bytes() / PAGE_SIZE as u64
        + tables::MADE.load(Relaxed)
        + direct::free() as u64;
    frames as i64
}

/// What the kernel's frames are used for, in words, for errors that say that memory is short.
pub(super) fn kernel_frames() -> String {
    let (frames, heap) = (KERNEL.frames(), heap::bytes() / PAGE_SIZE as u64);
    format!(
        "{} of {} pages are free; the heap has {heap}, tables {}, their nodes {}, stacks {}",
        frames.free(),
        frames.total(),
        pmap::tables() as u64 + tables::MADE.load(Relaxed),
        pmap::node_frames(),
        stack::pages(),
    )
}

/// Page frames by their owners.
#[derive(Default)]
struct Kinds {
    free: i64,
    anon: i64,
    /// Of objects in memory, and of files.
    shmem: i64,
    file: i64,
    /// With a place on swap.
    slotted: i64,
    /// Without an owner: in I/O, and on loan.
    orphan: i64,
    loan: i64,
    kernel: i64,
}

impl Kinds {
    fn count() -> Kinds {
        let (frames, mut kinds) = (KERNEL.frames(), Kinds::default());
        for page in (0..frames.total() as u32).map(PageNo) {
            let owner = frames.owner(page);
            let of = match owner {
                Owner::Free if frames.hold_count(page) == 0 => &mut kinds.free,
                Owner::Free => &mut kinds.loan,
                Owner::Orphan => &mut kinds.orphan,
                Owner::Anon(_) => &mut kinds.anon,
                Owner::Object(_) if frames.class(page) == Class::Anon => &mut kinds.shmem,
                Owner::Object(_) => &mut kinds.file,
                _ => &mut kinds.kernel,
            };
            *of += 1;
            let is_stored =
                matches!(owner, Owner::Anon(_) | Owner::Object(_)) && frames.slot(page).is_some();
            kinds.slotted += i64::from(is_stored);
        }
        kinds
    }
}
