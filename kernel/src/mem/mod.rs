//! Physical memory at boot, and the kernel's own use of it: tables, stacks, heap.
//!
//! Until the [frame table](frames) exists, page frames come from the start of the largest memory
//! range, upwards. Then the rest is handed over and every frame comes from there. Memory below 1
//! MiB and the image are never handed over; the initramfs comes along as loaded, and is freed while
//! it is unpacked.

pub mod direct;
pub mod fault;
pub mod frames;
pub mod heap;
mod initramfs;
pub mod pools;
pub mod stack;
pub mod window;

use arrayvec::ArrayVec;
use machine::{NoMemory, Pa, PAGE_SHIFT, PAGE_SIZE};

pub use self::initramfs::Initramfs;

use self::frames::{Reserve, KERNEL};
use crate::arch::layout::Range;
use crate::arch::tables;
use crate::lock::SpinLock;

/// Memory ranges at most; QEMU reports three usable ones.
const RANGES: usize = 16;

/// The ranges not yet used, largest first, while frames are taken from its start.
static EARLY: SpinLock<ArrayVec<Range, RANGES>> = SpinLock::new(ArrayVec::new_const());

/// Heap for every page frame's records, here and in `machine`, beside `HEAP_START` for what
/// start-up needs.
const RECORD: usize = 64;
const HEAP_START: usize = 1 << 20;

/// Takes memory over: tables with the right protections, heap, frames. `memory` is what the
/// firmware calls usable, in which the image and the `loaded` archive still lie; `devices` are
/// frames that aren't the allocator's, and get numbers; the command line says how pages are seen.
///
/// # Errors
/// [`NoMemory`] if the machine has too little.
pub fn init<M: Iterator<Item = Range>>(
    memory: impl Fn() -> M,
    loaded: Range,
    devices: &[(Pa, u32)],
    cmdline: &str,
) -> Result<(), NoMemory> {
    let usable = usable(memory(), loaded);
    let pages: u64 = usable.iter().map(|r| (r.end - r.start) >> PAGE_SHIFT).sum();
    let top = memory().map(|r| r.end).max().ok_or(NoMemory)?;
    *EARLY.lock() = usable;
    tables::init(top)?;
    let choice = window::choose(cmdline);
    // Tables for that come from early memory.
    if window::are_ephemeral() {
        let early = EARLY.lock().clone();
        early.iter().chain([&loaded.whole_pages()]).try_for_each(tables::split_direct)?;
    }
    let loaded: ArrayVec<(Pa, u32), 1> = segment(&loaded.whole_pages()).into_iter().collect();
    let pages = pages + loaded.iter().map(|(_, pages)| u64::from(*pages)).sum::<u64>();
    let records = pages as usize + devices.iter().map(|(_, pages)| *pages as usize).sum::<usize>();
    heap::init(records * RECORD + HEAP_START)?;
    let rest = core::mem::take(&mut *EARLY.lock());
    let frames = |r: Range| (r.start..r.end).step_by(PAGE_SIZE);
    direct::leave(rest.iter().map(Range::whole_pages).flat_map(frames));
    let segments: ArrayVec<(Pa, u32), RANGES> = rest.iter().filter_map(segment).collect();
    frames::init(&segments, &loaded, devices)?;
    window::init(choice)?;
    heap::lay_cushion(pages as usize * PAGE_SIZE)
}

fn segment(range: &Range) -> Option<(Pa, u32)> {
    let pages = range.end.saturating_sub(range.start) >> PAGE_SHIFT;
    (pages > 0).then_some((Pa(range.start), pages as u32))
}

/// What is free at boot, in whole pages, largest range first.
fn usable(memory: impl Iterator<Item = Range>, loaded: Range) -> ArrayVec<Range, RANGES> {
    let mut free: ArrayVec<Range, RANGES> = memory.take(RANGES / 2).collect();
    let low = Range { start: 0, end: 1 << 20 };
    for used in [low, tables::image(), loaded] {
        if used.start == used.end {
            continue;
        }
        let mut rest = ArrayVec::new();
        for r in free {
            for part in [
                Range { start: r.start, end: r.end.min(used.start) },
                Range { start: r.start.max(used.end), end: r.end },
            ] {
                if part.start < part.end && rest.try_push(part).is_err() {
                    break;
                }
            }
        }
        free = rest;
    }
    free.iter_mut().for_each(|r| *r = r.whole_pages());
    free.retain(|r| r.start < r.end);
    free.sort_unstable_by_key(|r| core::cmp::Reverse(r.end - r.start));
    free
}

/// A page frame for a table of the kernel's, in the direct map, with whatever it held.
///
/// # Errors
/// [`NoMemory`].
pub fn table_frame() -> Result<u64, NoMemory> {
    match frames::table() {
        Some(frames) => {
            let page = frames::at_allocator(|held| direct::take(held, Reserve::Kernel))?;
            Ok(frames.pa(page).0)
        }
        None => early(),
    }
}

/// A page frame for the kernel itself, which gives it an address of its own; with whatever it held,
/// from as deep in the last pages as `reserve` allows.
///
/// # Errors
/// [`NoMemory`].
pub fn frame(reserve: Reserve) -> Result<u64, NoMemory> {
    if let Some(frames) = frames::table() {
        let page = frames::at_allocator(|held| frames.alloc(&KERNEL, held, reserve))?;
        frames.keep(page);
        return Ok(frames.pa(page).0);
    }
    let pa = early()?;
    if window::are_ephemeral() {
        tables::hide(pa);
    }
    Ok(pa)
}

/// A frame of those that start-up has.
fn early() -> Result<u64, NoMemory> {
    let mut ranges = EARLY.lock();
    let range =
        ranges.first_mut().filter(|r| r.end - r.start > PAGE_SIZE as u64).ok_or(NoMemory)?;
    range.start += PAGE_SIZE as u64;
    Ok(range.start - PAGE_SIZE as u64)
}

/// Gives back what [`frame`] gave since memory was handed over.
///
/// # Safety
/// The frame is given back once, and no CPU holds a translation of it but the direct map's, if that
/// shows all.
pub unsafe fn free_frame(pa: u64) {
    if let Some(page) = KERNEL.frames().page_at(Pa(pa)) {
        // SAFETY: by the caller's promise.
        unsafe { KERNEL.frames().release_own(page) };
        frames::unlocked(|held| KERNEL.frames().free_page(&KERNEL, held, page));
    }
}
