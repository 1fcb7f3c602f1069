//! The kernel's own page tables: the upper half, shared by all address spaces, and the root that
//! has no lower half.
//!
//! ```text
//!   direct map   2-MiB pages, or 4-KiB ones if not all frames are in it (`mem::direct`); writable, never
//!                executable; 4-KiB pages where the image's text and read-only data lie, read-only there
//!   image        text: execute; read-only data: read; data: write; nothing both written and executed
//!   stacks, heap one page at a time, as they grow; unmapped when the page daemon takes them back
//!   windows      one page of programs' memory each, for a moment: see `windows`
//! ```
//! All root entries of the upper half are filled at start-up and never change; a new root copies
//! them.
//!
//! I1: once other CPUs run, an entry here only becomes present and stays what it is. A CPU keeps no
//! translation of an absent entry; so none has to be told. A CPU that makes one absent ([`unmap`])
//! has all CPUs forget it before its page or its address is used again. The entries of windows
//! change all the time, by the rules of `sf_buf`.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::mem::frames::Reserve;
use machine::{NoMemory, PAGE_SIZE};

use super::{cpu, io, layout};
use crate::arch::layout::Range;
use crate::lock::SpinLock;
use crate::mem;

/// Entry bits.
pub const PRESENT: u64 = 1;
pub const WRITE: u64 = 1 << 1;
pub const USER: u64 = 1 << 2;
pub const UNCACHED: u64 = 1 << 4;
pub const ACCESSED: u64 = 1 << 5;
pub const DIRTY: u64 = 1 << 6;
pub const LARGE: u64 = 1 << 7;
pub const GLOBAL: u64 = 1 << 8;
pub const NO_EXECUTE: u64 = 1 << 63;
/// The physical address in an entry.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// One page of entries.
pub type Table = [AtomicU64; 512];

/// Where PC-like machines have device registers and never memory.
const DEVICES: core::ops::Range<u64> = 0xe000_0000..0x1_0000_0000;

extern "C" {
    static image_start: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static image_end: u8;
    static boot_stack_guard: u8;
}

/// Tables made here; none is given back.
pub static MADE: AtomicU64 = AtomicU64::new(0);
/// Physical address of the kernel's root table.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// The table at a physical address.
///
/// # Safety
/// The frame there holds a table, and goes on to for as long as the reference is used.
#[inline]
pub unsafe fn table(pa: u64) -> &'static Table {
    // SAFETY: by the caller's promise; the direct map covers all memory, and entries are only
    // touched as atomics.
    unsafe { &*(layout::direct(pa) as *const Table) }
}

/// The physical address of a table.
#[inline]
pub fn place(table: &'static Table) -> u64 {
    core::ptr::from_ref(table) as u64 - layout::DIRECT
}

/// A root table. Present entries above the last tables lead to tables, but for large pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Root(u64);

/// Where a walk ends too early.
pub struct Missing {
    pub table: &'static Table,
    pub level: u32,
    /// The entry there: absent, or a large page's.
    pub entry: u64,
}

impl Root {
    /// The root table at a physical address.
    ///
    /// # Safety
    /// The frame there holds a root with the kernel's half, and goes on to for as long as this is
    /// used. A caller that walks sees to it that the tables on the way stay.
    #[inline]
    pub const unsafe fn at(pa: u64) -> Root {
        Root(pa)
    }

    /// Its physical address.
    #[inline]
    pub fn place(self) -> u64 {
        self.0
    }

    /// Its entries.
    #[inline]
    pub fn entries(self) -> &'static Table {
        // SAFETY: by the promise with which it was made.
        unsafe { table(self.0) }
    }

    /// The table of level `lowest` that serves an address.
    #[inline]
    pub fn walk(self, va: u64, lowest: u32) -> Result<&'static Table, Missing> {
        let mut at = self.entries();
        for level in (lowest + 1..4).rev() {
            let entry = at[index(va, level)].load(Relaxed);
            if entry & PRESENT == 0 || entry & LARGE != 0 {
                return Err(Missing { table: at, level, entry });
            }
            // SAFETY: present and no large page's, so it leads to a table.
            at = unsafe { table(entry & ADDRESS) };
        }
        Ok(at)
    }
}

/// Index into the table of a level: 3 is the root, 0 the last.
#[inline]
pub const fn index(va: u64, level: u32) -> usize {
    (va >> (12 + 9 * level) & 511) as usize
}

fn address(symbol: *const u8) -> u64 {
    symbol as u64
}

/// The physical memory that the image fills.
pub fn image() -> Range {
    Range {
        start: address(&raw const image_start) - layout::IMAGE,
        end: address(&raw const image_end) - layout::IMAGE,
    }
}

/// The kernel's root: for threads without an address space.
pub fn root() -> Root {
    // SAFETY: `init` has made it; it and what is below stays.
    unsafe { Root::at(ROOT.load(Relaxed)) }
}

/// The root's upper half, to be copied into a new root.
pub fn kernel_half() -> &'static [AtomicU64] {
    &root().entries()[256..]
}

/// Builds the tables for memory up to `top` and makes them active.
///
/// # Errors
/// [`NoMemory`].
pub fn init(top: u64) -> Result<(), NoMemory> {
    ROOT.store(new_table()?, Relaxed);
    let root = root();
    for entry in 256..512 {
        if [layout::DIRECT, layout::STACKS, layout::HEAP, layout::WINDOWS, layout::IMAGE]
            .iter()
            .any(|&va| index(va, 3) == entry)
        {
            root.entries()[entry].store(new_table()? | PRESENT | WRITE, Relaxed);
        }
    }
    map_direct(top)?;
    map_image()?;
    // SAFETY: image, stack (in the image's data) and everything else in use is mapped as before,
    // but for rights not needed.
    unsafe { io::write_cr3(root.place()) };
    Ok(())
}

fn map_direct(top: u64) -> Result<(), NoMemory> {
    const LARGE_PAGE: u64 = 2 << 20;
    let (text, ro_end) = (
        address(&raw const text_start) - layout::IMAGE,
        address(&raw const rodata_end) - layout::IMAGE,
    );
    for pa in (0..top.max(4 << 30)).step_by(LARGE_PAGE as usize) {
        let rights = PRESENT | WRITE | GLOBAL | NO_EXECUTE;
        if pa + LARGE_PAGE <= text || pa >= ro_end {
            let uncached = if DEVICES.contains(&pa) { UNCACHED } else { 0 };
            entry(layout::direct(pa), 1)?.store(pa | rights | LARGE | uncached, Relaxed);
            continue;
        }
        for small in (pa..pa + LARGE_PAGE).step_by(PAGE_SIZE) {
            let write = if (text..ro_end).contains(&small) { 0 } else { WRITE };
            entry(layout::direct(small), 0)?.store(small | rights & !WRITE | write, Relaxed);
        }
    }
    Ok(())
}

/// Has the direct map show a range of memory by small pages, each of which can be hidden. Before
/// other CPUs run.
///
/// # Errors
/// [`NoMemory`]; part of it is so.
pub fn split_direct(range: &Range) -> Result<(), NoMemory> {
    const LARGE_PAGE: u64 = 2 << 20;
    for pa in (range.start & !(LARGE_PAGE - 1)..range.end).step_by(LARGE_PAGE as usize) {
        let above = entry(layout::direct(pa), 1)?;
        let old = above.load(Relaxed);
        if old & LARGE == 0 {
            continue;
        }
        let small = new_table()?;
        // SAFETY: the table is new.
        for (n, entry) in unsafe { table(small) }.iter().enumerate() {
            entry.store((old & !LARGE) + (n << 12) as u64, Relaxed);
        }
        above.store(small | PRESENT | WRITE, Relaxed);
    }
    forget_all();
    Ok(())
}

/// The direct map's entry of a frame that it shows by small pages, or not.
fn direct_entry(pa: u64) -> &'static AtomicU64 {
    match root().walk(layout::direct(pa), 0) {
        Ok(last) => &last[index(layout::direct(pa), 0)],
        Err(_) => panic!("{pa:#x} is in a large page of the direct map"),
    }
}

/// Puts a frame into the direct map: see `mem::direct`.
pub fn show(pa: u64) {
    direct_entry(pa).store(pa | PRESENT | WRITE | GLOBAL | NO_EXECUTE, Relaxed);
}

/// Takes a frame out of the direct map. The caller has all CPUs forget it.
pub fn hide(pa: u64) {
    direct_entry(pa).store(0, Relaxed);
}

fn map_image() -> Result<(), NoMemory> {
    let parts = [
        (&raw const text_start, &raw const text_end, 0),
        (&raw const text_end, &raw const rodata_end, NO_EXECUTE),
        (&raw const rodata_end, &raw const image_end, NO_EXECUTE | WRITE),
    ];
    for (start, end, rights) in parts {
        for va in (address(start)..address(end)).step_by(PAGE_SIZE) {
            if va == address(&raw const boot_stack_guard) {
                continue;
            }
            entry(va, 0)?.store((va - layout::IMAGE) | PRESENT | GLOBAL | rights, Relaxed);
        }
    }
    Ok(())
}

/// A zeroed page for a table.
fn new_table() -> Result<u64, NoMemory> {
    let pa = mem::table_frame()?;
    MADE.fetch_add(1, Relaxed);
    // SAFETY: the frame is this table's from now on.
    unsafe { table(pa) }.iter().for_each(|e| e.store(0, Relaxed));
    Ok(pa)
}

/// The entry of a kernel address in the table of `level`, with the tables above made as needed.
fn entry(va: u64, level: u32) -> Result<&'static AtomicU64, NoMemory> {
    loop {
        match root().walk(va, level) {
            Ok(table) => return Ok(&table[index(va, level)]),
            Err(missing) => {
                assert!(missing.entry & PRESENT == 0, "a large page has no entries");
                let entry = new_table()? | PRESENT | WRITE;
                missing.table[index(va, missing.level)].store(entry, Relaxed);
            }
        }
    }
}

/// The last table that serves a kernel address, made if it isn't there. It stays.
///
/// # Errors
/// [`NoMemory`].
pub fn last_table(va: u64) -> Result<&'static Table, NoMemory> {
    entry(va, 0)?;
    root().walk(va, 0).map_err(|_| NoMemory)
}

/// Where stacks and heap grow: CPUs take turns.
static GROWTH: SpinLock<()> = SpinLock::new(());

/// Backs a page of the stacks' or the heap's area with a frame, unless it is already.
///
/// # Errors
/// [`NoMemory`]; nothing has changed but that tables may have been made.
pub fn map_if_absent(va: u64, reserve: Reserve) -> Result<(), NoMemory> {
    assert!(
        (layout::STACKS..layout::IMAGE).contains(&va),
        "{va:#x} is neither a stack's nor the heap's"
    );
    let _turn = GROWTH.lock();
    let entry = entry(va, 0)?;
    if entry.load(Relaxed) & PRESENT == 0 {
        entry.store(mem::frame(reserve)? | PRESENT | WRITE | GLOBAL | NO_EXECUTE, Relaxed);
    }
    Ok(())
}

/// Takes a page of the stacks' or the heap's area out of the tables; its frame, if there was one.
/// The caller has all CPUs forget it (`ipi::forget_kernel`).
///
/// # Safety
/// No CPU uses what lies there.
pub unsafe fn unmap(va: u64) -> Option<u64> {
    let _turn = GROWTH.lock();
    let old = entry(va, 0).ok()?.swap(0, Relaxed);
    (old & PRESENT != 0).then_some(old & ADDRESS)
}

/// Has this CPU forget all translations, the kernel's too.
pub fn forget_all() {
    const GLOBAL_PAGES: u64 = 1 << 7;
    let cr4 = io::read_cr4();
    // SAFETY: the bit only says whether translations outlive a load of CR3.
    unsafe {
        io::write_cr4(cr4 & !GLOBAL_PAGES);
        io::write_cr4(cr4);
    }
}

/// Makes the direct map show device registers, uncached: beyond memory it may not reach there yet.
/// Start-up only.
///
/// # Errors
/// [`NoMemory`]; part of the range may be mapped.
pub fn map_device(pa: u64, length: u64) -> Result<(), NoMemory> {
    let end = pa.checked_add(length).filter(|&end| end <= layout::STACKS - layout::DIRECT);
    let Some(end) = end else {
        panic!("device registers at {pa:#x}, where the direct map doesn't reach")
    };
    assert!(
        cpu::count() == 1,
        "device registers are mapped once other CPUs run, which are not told"
    );
    let first = pa & !(PAGE_SIZE as u64 - 1);
    for page in (first..end).step_by(PAGE_SIZE) {
        let va = layout::direct(page);
        let above = entry(va, 1)?;
        if above.load(Relaxed) & LARGE != 0 {
            // A large page that holds registers holds no memory.
            above.fetch_or(UNCACHED, Relaxed);
        } else {
            entry(va, 0)?.store(page | PRESENT | WRITE | GLOBAL | NO_EXECUTE | UNCACHED, Relaxed);
        }
        io::invlpg(va);
    }
    Ok(())
}

/// The physical address behind one in the kernel's half, if it is mapped.
pub fn physical(va: u64) -> Option<u64> {
    if va < layout::DIRECT {
        return None;
    }
    let (level, entry) = lowest_entry(root(), va);
    let inside = (1 << (12 + 9 * level)) - 1;
    (entry & PRESENT != 0).then_some(entry & ADDRESS & !inside | va & inside)
}

/// The entry that says where an address is mapped, or that it isn't; and its level.
fn lowest_entry(root: Root, va: u64) -> (u32, u64) {
    match root.walk(va, 0) {
        Ok(last) => (0, last[index(va, 0)].load(Relaxed)),
        Err(missing) => (missing.level, missing.entry),
    }
}

/// Whether an address is mapped in the kernel's half of the active tables: for the back-trace of a
/// panic.
pub fn is_mapped(va: u64) -> bool {
    // SAFETY: what CR3 holds is a root with the kernel's half; what is below that in the kernel's
    // half stays.
    let root = unsafe { Root::at(io::read_cr3() & ADDRESS) };
    va >= layout::DIRECT && lowest_entry(root, va).1 & PRESENT != 0
}
