//! Tables that are free: each CPU keeps some, for itself alone, that are zeroed already.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::mem::direct;
use crate::mem::frames::Reserve;

use super::*;
use crate::arch::x86_64::bytes;
use crate::arch::{layout, tables as kernel_tables};
use crate::lock::SpinLock;

/// Zeroed tables and roots kept at most, by all CPUs together and by each at least.
const KEPT_TABLES: usize = 256;
const KEPT_ROOTS: usize = 32;
const KEPT_AT_LEAST: usize = 16;

/// One CPU's free tables.
#[repr(align(64))]
struct Kept(SpinLock<Stacks>);

struct Stacks {
    /// All zero.
    zeroed: Stack,
    /// Upper half filled, lower half zero.
    roots: Stack,
}

static KEPT: [Kept; cpu::MAX_CPUS] =
    [const { Kept(SpinLock::new(Stacks { zeroed: Stack::new(), roots: Stack::new() })) };
        cpu::MAX_CPUS];

/// Frames that hold tables, in use or kept for use.
pub(in super::super) static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Tables linked through their records.
pub(in super::super) struct Stack {
    head: u32,
    len: u32,
}

impl Stack {
    /// No table.
    pub(in super::super) const fn new() -> Stack {
        Stack { head: NIL, len: 0 }
    }

    /// Whether there is none.
    #[inline]
    pub(in super::super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(super) fn push(&mut self, page: PageNo) {
        record(page).words[NEXT].store(self.head, Relaxed);
        self.head = page.0;
        self.len += 1;
    }

    #[inline]
    pub(in super::super) fn pop(&mut self) -> Option<PageNo> {
        if self.head == NIL {
            return None;
        }
        let page = PageNo(self.head);
        self.head = record(page).words[NEXT].load(Relaxed);
        self.len -= 1;
        Some(page)
    }

    /// Gives all to the CPU, which keeps or frees them. They are zero, and no CPU walks through
    /// them.
    pub(in super::super) fn give_back<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>) {
        let most = most(KEPT_TABLES);
        let kept = &mut KEPT[cpu::index()].0.lock().zeroed;
        while let Some(page) = self.pop() {
            if kept.len < most {
                kept.push(page);
            } else {
                free(held, page);
            }
        }
    }
}

/// Frames that hold tables in use.
pub(in super::super) fn in_use() -> usize {
    let kept = KEPT.iter().map(|kept| {
        let kept = kept.0.lock();
        (kept.zeroed.len + kept.roots.len) as usize
    });
    TABLES.load(Relaxed) - kept.sum::<usize>()
}

/// How many this CPU keeps of what all may keep so many of.
fn most(of_all: usize) -> u32 {
    (of_all / cpu::count()).max(KEPT_AT_LEAST) as u32
}

/// Gives a frame that held a table to the page allocator.
#[cold]
pub(super) fn free<P: Before<PageCache>>(held: &mut Held<'_, P>, page: PageNo) {
    TABLES.fetch_sub(1, Relaxed);
    record(page).make_plain();
    // SAFETY: no entry leads to the table, and no CPU walks through it.
    unsafe { direct::give(held, page) };
}

/// A zeroed page for a table.
pub(super) fn zeroed<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<PageNo, NoMemory> {
    if let Some(page) = KEPT[cpu::index()].0.lock().zeroed.pop() {
        return Ok(page);
    }
    let page = direct::take(held, Reserve::Kernel)?;
    // SAFETY: the frame is this table's from now on.
    unsafe { bytes::zero_page(layout::direct(pa(page)) as *mut u8) };
    record(page).make_own();
    TABLES.fetch_add(1, Relaxed);
    Ok(page)
}

/// Makes a zeroed table one with the kernel's half of a root.
fn with_kernel_half(page: PageNo) -> PageNo {
    // SAFETY: the zeroed table is the caller's alone.
    let entries = unsafe { table(pa(page)) };
    for (to, from) in entries[256..].iter().zip(kernel_tables::kernel_half()) {
        to.store(from.load(Relaxed), Relaxed);
    }
    page
}

/// A table with the kernel's half of a root.
pub(super) fn new_root<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<PageNo, NoMemory> {
    if let Some(root) = KEPT[cpu::index()].0.lock().roots.pop() {
        return Ok(root);
    }
    zeroed(held).map(with_kernel_half)
}

/// Takes back a root whose lower half is zero, and which no CPU uses.
pub(super) fn free_root<P: Before<PageCache>>(held: &mut Held<'_, P>, root: PageNo) {
    let roots = &mut KEPT[cpu::index()].0.lock().roots;
    if roots.len < most(KEPT_ROOTS) {
        roots.push(root);
    } else {
        free(held, root);
    }
}

/// A root without tables below it.
pub(in super::super) fn new_space<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
) -> Result<Space, NoMemory> {
    let root = new_root(held)?;
    let record = record(root);
    record.words[SHAPE].store(3 << LEVEL, Relaxed);
    record.words[NEXT].store(NIL, Relaxed);
    record.words[LISTED].store(0, Relaxed);
    record.wide.store(CpuSet::NONE.bits(), Relaxed);
    // SAFETY: `new_root` has made it one, for this space alone.
    Ok(unsafe { Space::new(root) })
}

/// Frees a space's tables, which hold no mappings and which no CPU uses. Each clears its entry in
/// its parent, so all end up zero.
pub(in super::super) fn free_space<P: Before<PageCache>>(held: &mut Held<'_, P>, space: Space) {
    debug_assert!(space.resident() == 0, "a space is freed with pages mapped");
    assert!(space.cpus() == CpuSet::NONE, "a space is freed that {:?} use", space.cpus());
    let mut all = Stack::new();
    let mut next = record(space.root).words[NEXT].load(Relaxed);
    while next != NIL {
        let page = PageNo(next);
        let own = record(page);
        in_parent(own).store(0, Relaxed);
        own.wide.store(OWN, Relaxed);
        next = own.words[NEXT].load(Relaxed);
        all.push(page);
    }
    all.give_back(held);
    record(space.root).wide.store(OWN, Relaxed);
    free_root(held, space.root);
}
