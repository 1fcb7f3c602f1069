//! Whose the pages of the heap are: pools, one for each user.
//!
//! A page of the heap is given back when nothing lives on it, so a user that keeps one small thing
//! on each page keeps them all, however little that is. Two things have such pages count as their
//! maker's: a run of blocks (`mem::heap`) serves one pool alone, and each page is written down with
//! the pool that was handed it last, until its frame is given back. What a pool has is thus what
//! its users hold at least, whatever they have freed between (`proc::oom`, `charge`).
//!
//! ```text
//!   CPU: pool of the thread that runs --> its runs --> pages, each with its pool in MARKS
//! ```
//! I1: a pool's number of pages is that of its marks; pool 0 (root, and the kernel) doesn't count.
//!
//! The road not taken is to see which user owns each block: blocks say nothing, and their owners
//! are found by a walk of all that there is.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::mem::frames::Reserve;
use machine::{NoMemory, PAGE_SIZE};

use crate::arch::layout;
use crate::arch::tables;

/// Pools. Where more users than that are there at once, some share one, and each counts for a part.
pub(super) const POOLS: usize = 64;

/// A user's pool, by its number.
pub type Pool = u8;

/// Root's and the kernel's.
pub const ROOT: Pool = 0;

struct State {
    /// The user whose pool it is, or was.
    uid: AtomicU32,
    users: AtomicUsize,
    pages: AtomicUsize,
}

static STATES: [State; POOLS] = [const {
    State { uid: AtomicU32::new(0), users: AtomicUsize::new(0), pages: AtomicUsize::new(0) }
}; POOLS];

/// A byte for each page of the heap, which is its pool.
const MARKS: u64 = layout::HEAP + (1 << 38);

/// A pool for a user: the one that was the user's before, or one with the fewest users, and of
/// these the one with the fewest pages. The caller sees to it that there is one call at a time.
pub fn join(uid: u32) -> Pool {
    if uid == 0 {
        return ROOT;
    }
    let of_others = |n: &usize| {
        let state = &STATES[*n];
        let is_own = state.uid.load(Relaxed) == uid;
        (!is_own, state.users.load(Relaxed), state.pages.load(Relaxed))
    };
    let best = (1..POOLS).min_by_key(of_others).unwrap_or(1);
    STATES[best].uid.store(uid, Relaxed);
    STATES[best].users.fetch_add(1, Relaxed);
    best as Pool
}

/// A user that had [joined](join) is gone.
pub fn leave(pool: Pool) {
    if pool != ROOT {
        STATES[usize::from(pool)].users.fetch_sub(1, Relaxed);
    }
}

/// Pages of the heap that one user of a pool holds; root is not counted.
pub fn pages(pool: Pool) -> usize {
    let state = &STATES[usize::from(pool)];
    state.pages.load(Relaxed) / state.users.load(Relaxed).max(1)
}

/// Frames of the marks of so many bytes of the heap.
pub(super) fn mark_frames(bytes: u64) -> u64 {
    bytes.div_ceil((PAGE_SIZE * PAGE_SIZE) as u64)
}

/// Makes the mark of the heap's next page, before the page itself.
///
/// # Errors
/// [`NoMemory`].
pub(super) fn make_mark(page: u64, reserve: Reserve) -> Result<(), NoMemory> {
    let n = (page - layout::HEAP) / PAGE_SIZE as u64;
    if n.is_multiple_of(PAGE_SIZE as u64) {
        tables::map_if_absent(MARKS + n, reserve)?;
        // SAFETY: the page has just been mapped, and no mark on it has been used.
        unsafe { ((MARKS + n) as *mut u8).write_bytes(ROOT, PAGE_SIZE) };
    }
    Ok(())
}

/// Pages of the heap that hold `range` are a pool's from now on.
///
/// # Safety
/// The pages' marks have been mapped ([`make_mark`]), and the heap is locked.
pub(super) unsafe fn mark(range: Range<u64>, pool: Pool) {
    let page = |at: u64| (at - layout::HEAP) / PAGE_SIZE as u64;
    for n in page(range.start)..=page(range.end - 1) {
        let mark = (MARKS + n) as *mut Pool;
        // SAFETY: by the caller's promise: `make_mark` came before.
        let old = unsafe { mark.replace(pool) };
        if old == pool {
            continue;
        }
        if old != ROOT {
            STATES[usize::from(old)].pages.fetch_sub(1, Relaxed);
        }
        if pool != ROOT {
            STATES[usize::from(pool)].pages.fetch_add(1, Relaxed);
        }
    }
}
