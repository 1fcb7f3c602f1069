//! Kernel stacks: 32 KiB each, with an unmapped page below, so that an overflow is a fault and not
//! a corruption.
//!
//! A stack's pages stay mapped when it is given back, and the next task takes it over: making a
//! task costs no table work, and no CPU has to forget a kernel translation. Only when far more are
//! free than are kept, after a crowd of threads, the page daemon takes the pages of most of them
//! back ([`give_back`]): all CPUs forget them, a batch at a time, and the addresses wait for the
//! next crowd.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::mem::frames::Reserve;
use arrayvec::ArrayVec;
use machine::shared::CachePadded;
use machine::{Channel, Machine, NoMemory, PAGE_SIZE};

use super::fault;
use crate::arch::layout;
use crate::arch::{cpu, io, ipi, tables};
use crate::lock::SpinLock;
use crate::mem::frames::KERNEL;

/// Bytes of a stack.
pub const SIZE: u64 = 32 * 1024;
/// Pages of a stack.
const PAGES: u64 = SIZE / PAGE_SIZE as u64;
/// Distance of two stacks: the lowest part is the guard.
const STRIDE: u64 = 64 * 1024;
/// Stacks at most: what one top-level table entry spans.
const LIMIT: u64 = (1 << 39) / STRIDE;

/// Free stacks that keep their pages.
const KEPT: usize = 64;
/// Stacks whose pages are given back at a time. The page daemon is woken when so many more than are
/// kept are free.
const BATCH: usize = 64;

struct Pool {
    /// With pages.
    free: Vec<u64>,
    /// Without.
    bare: Vec<u64>,
    made: u64,
}

static POOL: SpinLock<Pool> = SpinLock::new(Pool { free: Vec::new(), bare: Vec::new(), made: 0 });

/// The stack that was given back last on each CPU, or 0: most of it is in that CPU's cache. Only
/// that CPU looks; the kernel isn't preempted.
static NEAR: [CachePadded<AtomicU64>; cpu::MAX_CPUS] =
    [const { CachePadded(AtomicU64::new(0)) }; cpu::MAX_CPUS];

/// A kernel stack; goes back to the pool when dropped.
pub struct Stack {
    top: u64,
}

impl Stack {
    /// A stack with any contents.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new() -> Result<Stack, NoMemory> {
        fault::point()?;
        let near = &NEAR[cpu::index()];
        let top = near.load(Relaxed);
        if top != 0 {
            near.store(0, Relaxed);
            return Ok(Stack { top });
        }
        let mut pool = POOL.lock();
        if let Some(top) = pool.free.pop() {
            return Ok(Stack { top });
        }
        if let Some(&top) = pool.bare.last() {
            map(top)?;
            pool.bare.pop();
            return Ok(Stack { top });
        }
        if pool.made == LIMIT {
            return Err(NoMemory);
        }
        // Room for every stack that was made, so that giving one back never allocates.
        let made = pool.made as usize + 1;
        fault::attempt(|| pool.free.try_reserve(made))?;
        fault::attempt(|| pool.bare.try_reserve(made))?;
        let top = layout::STACKS + (pool.made + 1) * STRIDE;
        map(top)?;
        pool.made += 1;
        Ok(Stack { top })
    }

    /// The first address above.
    #[inline]
    pub fn top(&self) -> u64 {
        self.top
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let near = &NEAR[cpu::index()];
        if near.load(Relaxed) == 0 {
            return near.store(self.top, Relaxed);
        }
        let free = {
            let mut pool = POOL.lock();
            pool.free.push(self.top);
            pool.free.len()
        };
        if free == KEPT + BATCH {
            KERNEL.wake(Channel::PAGE_DAEMON);
        }
    }
}

/// Gives the pages of free stacks back, but for those that are kept. The page daemon's; it waits
/// for all CPUs, with nothing locked.
pub fn give_back() {
    while let Some(batch) = take_batch() {
        let pages = || {
            batch.iter().flat_map(|&top| (1..=PAGES).map(move |page| top - page * PAGE_SIZE as u64))
        };
        // SAFETY: the stacks are free, and in no list while this has them.
        let unmap = |va| unsafe { tables::unmap(va) };
        let frames: ArrayVec<u64, { BATCH * PAGES as usize }> = pages().filter_map(unmap).collect();
        ipi::forget_kernel();
        // SAFETY: they were free stacks', and all CPUs have forgotten them.
        frames.into_iter().for_each(|pa| unsafe { super::free_frame(pa) });
        POOL.lock().bare.extend(batch);
        io::interrupt_window();
    }
}

/// Takes stacks of which too many are free out of the pool.
fn take_batch() -> Option<ArrayVec<u64, BATCH>> {
    let mut pool = POOL.lock();
    let rest = pool.free.len().checked_sub(BATCH).filter(|&rest| rest >= KEPT)?;
    Some(pool.free.drain(rest..).collect())
}

fn map(top: u64) -> Result<(), NoMemory> {
    (1..=PAGES)
        .try_for_each(|page| tables::map_if_absent(top - page * PAGE_SIZE as u64, Reserve::User))
}

/// Pages of all stacks, in use or not.
pub fn pages() -> u64 {
    let pool = POOL.lock();
    (pool.made - pool.bare.len() as u64) * PAGES
}

/// Stacks in use.
pub fn in_use() -> u64 {
    let near = NEAR.iter().filter(|near| near.load(Relaxed) != 0).count();
    let pool = POOL.lock();
    pool.made - (pool.free.len() + pool.bare.len() + near) as u64
}

/// Heap bytes of the lists of free stacks, which only grow, with the most stacks that there were at
/// once.
pub fn list_bytes() -> usize {
    let pool = POOL.lock();
    (pool.free.capacity() + pool.bare.capacity()) * size_of::<u64>()
}

/// Whether an address lies below some stack: an overflow came there.
pub fn is_guard(va: u64) -> bool {
    (layout::STACKS..layout::STACKS + (1 << 39)).contains(&va)
        && (va - layout::STACKS) % STRIDE < STRIDE - SIZE
}
