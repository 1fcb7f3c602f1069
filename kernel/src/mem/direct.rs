//! The direct map, and the frames of the allocator's that are in it.
//!
//! If windows are a matter of address arithmetic ([`window`]), all frames are. Else only those in
//! which the kernel itself keeps something that it reaches by a physical address: page tables, the
//! reverse map's nodes, rings of devices. What programs, files, pipes and sockets have is not, and
//! never was; nor is the heap, nor are stacks, which have addresses of their own. So no stray read
//! by a physical address finds a program's bytes. A cache of windows keeps the pages that it shows
//! in reach, at the addresses of its slots.
//!
//! ```text
//!   allocator -- take: an absent entry is filled, no CPU need hear of it --> shown
//!       ^                                                                      |
//!       +-- trim: a batch, after one round by all CPUs -- FREE, in the map <-- give
//! ```
//!
//! I1: a frame of the allocator's is in the direct map if and only if it was taken here, and has
//! not been trimmed since. I2: the frames on `FREE` are linked by their first words.

use arrayvec::ArrayVec;
use core::sync::atomic::Ordering::Relaxed;

use machine::order::{Before, Held, PageCache};
use machine::{Channel, Machine, NoMemory, Pa, PageNo};

use super::frames::{unlocked, Place, Reserve, KERNEL};
use super::window;
use crate::arch::{cpu, io, ipi, layout, tables};
use crate::lock::SpinLock;

/// Free frames that stay in the map.
const KEPT: usize = 256;
/// Frames that leave it after one round by all CPUs.
const BATCH: usize = 256;

/// Frames in the map that nothing is kept in.
struct Free {
    /// The physical address of the first; 0 for none.
    first: u64,
    len: usize,
}

static FREE: SpinLock<Free> = SpinLock::new(Free { first: 0, len: 0 });

impl Free {
    fn push(&mut self, pa: u64) {
        // SAFETY: the frame is in the map and nothing is kept in it.
        let words = unsafe { tables::table(pa) };
        words[0].store(self.first, Relaxed);
        (self.first, self.len) = (pa, self.len + 1);
    }

    fn pop(&mut self) -> Option<u64> {
        let pa = self.first;
        if pa == 0 {
            return None;
        }
        // SAFETY: I2.
        self.first = unsafe { tables::table(pa) }[0].load(Relaxed);
        self.len -= 1;
        Some(pa)
    }
}

/// Whether the map lacks frames of the allocator's.
#[inline]
fn is_partial() -> bool {
    window::are_ephemeral()
}

/// A frame in the direct map for the kernel itself, with whatever it held.
///
/// # Errors
/// [`NoMemory`].
pub fn take<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    reserve: Reserve,
) -> Result<PageNo, NoMemory> {
    if is_partial() {
        if let Some(page) = FREE.lock().pop().and_then(|pa| KERNEL.frames().page_at(Pa(pa))) {
            return Ok(page);
        }
    }
    let page = KERNEL.frames().alloc(&KERNEL, held, reserve)?;
    keep(page);
    Ok(page)
}

/// Puts a frame that the allocator has given into the direct map, for the kernel itself.
pub fn keep(page: PageNo) {
    KERNEL.frames().keep(page);
    if is_partial() {
        tables::show(KERNEL.frames().pa(page).0);
    }
}

/// Gives back what [`take`] gave, or what was [kept](keep).
///
/// # Safety
/// The frame is given back once, no CPU walks through it as a table or holds a translation of it
/// but the direct map's, and nothing is kept in it any more.
pub unsafe fn give<P: Before<PageCache>>(held: &mut Held<'_, P>, page: PageNo) {
    if !is_partial() {
        // SAFETY: by the caller's promise.
        unsafe { release(held, page) };
        return;
    }
    let len = {
        let mut free = FREE.lock();
        free.push(KERNEL.frames().pa(page).0);
        free.len
    };
    if len == KEPT + BATCH {
        KERNEL.wake(Channel::PAGE_DAEMON);
    }
}

/// # Safety
/// As for [`give`]; and the frame has left the direct map, or all frames are in it.
unsafe fn release<P: Before<PageCache>>(held: &mut Held<'_, P>, page: PageNo) {
    // SAFETY: by the caller's promise.
    unsafe { KERNEL.frames().release_own(page) };
    KERNEL.frames().free_page(&KERNEL, held, page);
}

/// Frames in the map that nothing is kept in.
pub fn free() -> usize {
    FREE.lock().len
}

/// Gives free frames of the map back to the allocator, where there are many. The page daemon's; it
/// waits for all CPUs, with nothing locked.
pub fn trim() {
    if free() >= KEPT + BATCH {
        give_back(KEPT);
    }
}

/// Gives free frames of the map back, all but `kept`. Returns whether there were any. It waits for
/// all CPUs, with nothing locked, and takes interrupts after each batch.
pub fn give_back(kept: usize) -> bool {
    let mut gave = false;
    loop {
        let batch: ArrayVec<u64, BATCH> = {
            let mut free = FREE.lock();
            let surplus = free.len.saturating_sub(kept).min(BATCH);
            (0..surplus).map_while(|_| free.pop()).collect()
        };
        if batch.is_empty() {
            return gave;
        }
        gave = true;
        batch.iter().for_each(|&pa| tables::hide(pa));
        ipi::forget_kernel();
        for page in batch.into_iter().filter_map(|pa| KERNEL.frames().page_at(Pa(pa))) {
            // SAFETY: nothing was kept in it, and no CPU reaches it any more.
            unlocked(|held| unsafe { release(held, page) });
        }
        io::interrupt_window();
    }
}

/// Takes frames that are about to become the allocator's, by their physical addresses, out of the
/// direct map. Before other CPUs run.
pub fn leave(frames: impl Iterator<Item = u64>) {
    if !is_partial() {
        return;
    }
    assert!(cpu::count() == 1, "other CPUs would have to be told");
    frames.for_each(tables::hide);
    tables::forget_all();
}

/// Reads a page as a stray pointer would, at its place in the direct map: where that doesn't show
/// it, the machine panics. For tests.
pub fn read_astray(page: PageNo) {
    let at = layout::direct(KERNEL.frames().pa(page).0) as *const u8;
    // SAFETY: any bytes are a byte; an address that isn't mapped ends the machine.
    unsafe { at.read_volatile() };
}

/// Checks for every frame that the map shows none but the kernel's own, with all other CPUs
/// standing still.
///
/// # Errors
/// What is in the map and shouldn't be.
pub fn audit() -> Result<(), &'static str> {
    if !is_partial() {
        return Ok(());
    }
    let frames = KERNEL.frames();
    for page in (0..frames.total() as u32).map(PageNo) {
        let is_shown = tables::is_mapped(layout::direct(frames.pa(page).0));
        if is_shown && frames.place(page) != Place::Own {
            return Err("the direct map shows a page that isn't the kernel's own");
        }
    }
    Ok(())
}
