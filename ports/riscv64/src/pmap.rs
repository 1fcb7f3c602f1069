//! Sv39: page tables in frames, under `machine::plain`, which keeps the contract's laws over them.
//!
//! ```text
//!   ROOTS[space]    tables             leaf tables
//!   | 0: devices |
//!   | 2: memory  |                     |       |
//!   | 4..256     | -> |          | ->  | entry | --> page, rights, A, D
//! ```
//! The MMU changes entries by itself: it sets A and D at any moment, so they change by exchange. An
//! MMU that faults instead of setting them is served too: the library enters again for the access,
//! and that sets them.
//!
//! I1: a hart is in its space's set from before it loads the space's root until after it has loaded
//! another. There are no address space numbers: loading a root forgets everything.
//! I2: roots are the kernel's own memory. A hart that has nothing to do keeps the last one; if that
//! space goes, it has an empty root loaded, of which it has forgotten all. The next space that gets
//! the root finds the hart in its set.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use machine::order::{Before, Held, PageCache};
use machine::plain::{Entry, Tables};
use machine::{CpuSet, NoMemory, Pa, PageNo, Prot, Shootdown, Va, VaRange, Wiring};
use riscv::register::satp;
use sbi_rt::HartMask;
use uvm::page::Reserve;

use crate::host::{frames, uvm};
use crate::{hart, HARTS};

const VALID: u64 = 1;
const R: u64 = 2;
const W: u64 = 4;
const X: u64 = 8;
const USER: u64 = 16;
const GLOBAL: u64 = 32;
const A: u64 = 64;
const D: u64 = 128;
/// Software's: law P1.
const WIRED: u64 = 256;

/// Bytes under an entry of a root, a table and a leaf table.
const SPANS: [u64; 3] = [1 << 30, 1 << 21, 1 << 12];
/// Where programs may have memory: the first 4 GiB are the kernel's, of which it uses two.
pub const WINDOW: VaRange = VaRange::new(Va(4 << 30), Va(256 << 30));
/// Spaces at most. The first is the kernel's.
const SPACES: usize = 32;

type Table = [AtomicU64; 512];

#[repr(align(4096))]
struct Root(Table);
/// Each maps devices and memory where they lie, for the kernel alone.
static ROOTS: [Root; SPACES] = [const {
    let mut root = [const { AtomicU64::new(0) }; 512];
    let giant = VALID | R | W | GLOBAL | A | D;
    root[0] = AtomicU64::new(giant);
    root[2] = AtomicU64::new((2 << 30 >> 2) | giant | X);
    Root(root)
}; SPACES];
/// By space: the harts that have it loaded, a bit each. By hart: the space.
static SETS: [AtomicU64; SPACES] = [const { AtomicU64::new(0) }; SPACES];
static LOADED: [AtomicU64; HARTS] = [const { AtomicU64::new(0) }; HARTS];
/// There are no frames for tables: for the laws' check.
pub static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// The MMU: which spaces there are, beside the kernel's.
#[derive(Default)]
pub struct Sv39([bool; SPACES]);

/// Rights, and what was seen, lie in an entry as in [`Prot`], so far to the left.
const RIGHTS: u32 = 1;
const SEEN: u32 = 6;
const _: () = assert!((Prot::EXECUTE.bits() as u64) << RIGHTS == X && Prot::all().bits() == 7);
const _: () = assert!((Prot::READ_WRITE.bits() as u64) << SEEN == A | D);

/// What an entry of a leaf table says.
fn decode(entry: u64) -> Option<Entry> {
    (entry != 0).then(|| Entry {
        page: page_of(entry),
        prot: Prot::from_bits_truncate((entry >> RIGHTS) as u8),
        wiring: if entry & WIRED != 0 { Wiring::Wired } else { Wiring::Pageable },
        seen: Prot::from_bits_truncate((entry >> SEEN) as u8) & Prot::READ_WRITE,
    })
}

fn encode(entry: Entry) -> u64 {
    // No entry may be written but not read.
    let readable = if entry.prot.contains(Prot::WRITE) { R } else { 0 };
    let wired = if entry.wiring == Wiring::Wired { WIRED } else { 0 };
    let rights = u64::from(entry.prot.bits()) << RIGHTS | readable;
    entry_of(entry.page, rights | u64::from(entry.seen.bits()) << SEEN | USER | wired)
}

/// The frame that an entry names.
fn page_of(entry: u64) -> PageNo {
    frames().page_at(Pa(entry >> 10 << 12)).expect("entries name frames")
}

fn entry_of(page: PageNo, bits: u64) -> u64 {
    frames().pa(page).0 >> 2 | bits | VALID
}

/// A table, by its frame.
fn table(page: PageNo) -> &'static Table {
    // SAFETY: callers name a table that is in use, which only `destroy` frees, with the lock held
    // and after every hart has left it; the MMU alone changes it otherwise, atomically.
    unsafe { &*(frames().pa(page).0 as *const Table) }
}

fn index(level: usize, va: Va) -> usize {
    (va.0 / SPANS[level] % 512) as usize
}

/// The place of an address. `missing` gets an entry without a table, and the span under it: it
/// makes a table, or its error is the answer.
fn walk<E>(
    space: u64, va: Va, mut missing: impl FnMut(&AtomicU64, u64) -> Result<(), E>,
) -> Result<&'static AtomicU64, E> {
    let mut at = &ROOTS[space as usize].0;
    for (level, span) in SPANS[..2].iter().enumerate() {
        let entry = &at[index(level, va)];
        if entry.load(Relaxed) == 0 {
            missing(entry, *span)?;
        }
        at = table(page_of(entry.load(Relaxed)));
    }
    Ok(&at[index(2, va)])
}

/// The place of an address, or the span around it for which there is no table.
fn find(space: u64, va: Va) -> Result<&'static AtomicU64, u64> {
    walk(space, va, |_, span| Err(span))
}

/// Takes a frame for a table. It is the kernel's own, so that no page's number reaches its bytes.
fn take<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<PageNo, NoMemory> {
    if EXHAUSTED.load(Relaxed) {
        return Err(NoMemory);
    }
    let page = frames().alloc(uvm().machine(), held, Reserve::Kernel)?;
    frames().keep(page);
    table(page).iter().for_each(|entry| entry.store(0, Relaxed));
    Ok(page)
}

fn give<P: Before<PageCache>>(held: &mut Held<'_, P>, page: PageNo) {
    // SAFETY: `destroy` has unlinked the table and had all harts forget it.
    unsafe { frames().release_own(page) };
    frames().free_page(uvm().machine(), held, page);
}

/// Has harts forget translations, this one too, and returns when they have: the firmware's
/// interrupt comes through wherever a hart is, with the kernel's interrupts off too.
fn forget(harts: CpuSet, range: Option<VaRange>) {
    let (start, bytes) = match range {
        Some(range) => (range.start.0 as usize, range.pages().bytes() as usize),
        None => (0, usize::MAX),
    };
    let harts = HartMask::from_mask_base(harts.bits() as usize, 0);
    let done = sbi_rt::remote_sfence_vma(harts, start, bytes);
    assert!(done.is_ok(), "the firmware can't fence");
}

/// Turns the MMU on, or has it walk another root.
pub fn set_root(space: u64) {
    let root = &raw const ROOTS[space as usize] as usize;
    // SAFETY: every root maps the kernel alike, where it lies.
    unsafe { satp::set(satp::Mode::Sv39, 0, root >> 12) };
    riscv::asm::sfence_vma_all();
}

/// Loads a space's tables on this hart (I1).
pub fn load(space: u64) {
    let old = LOADED[hart()].swap(space, Relaxed);
    if old != space {
        SETS[space as usize].fetch_or(1 << hart(), SeqCst);
        set_root(space);
        SETS[old as usize].fetch_and(!(1 << hart()), SeqCst);
    }
}

impl Tables for Sv39 {
    fn create<P: Before<PageCache>>(&mut self, _held: &mut Held<'_, P>) -> Result<u64, NoMemory> {
        let free = (1..SPACES).find(|space| !self.0[*space]).ok_or(NoMemory)?;
        self.0[free] = true;
        Ok(free as u64)
    }

    /// A hart may walk the tables ahead of any use: so each part is unlinked and forgotten first.
    fn destroy<P: Before<PageCache>>(&mut self, held: &mut Held<'_, P>, space: u64) {
        for top in &ROOTS[space as usize].0[index(0, WINDOW.start)..] {
            let old = top.swap(0, SeqCst);
            if old == 0 {
                continue;
            }
            forget(self.holders(space), None);
            let leaves = table(page_of(old)).iter().map(|entry| entry.load(Relaxed));
            leaves.filter(|leaf| *leaf != 0).for_each(|leaf| give(held, page_of(leaf)));
            give(held, page_of(old));
        }
        self.0[space as usize] = false;
    }

    fn make<P: Before<PageCache>>(
        &mut self, held: &mut Held<'_, P>, space: u64, va: Va,
    ) -> Result<(), NoMemory> {
        let place = walk(space, va, |entry, _| {
            // The MMU finds the table empty, not as it was before.
            entry.store(entry_of(take(held)?, 0), Release);
            Ok(())
        });
        place.map(drop)
    }

    fn has_room(&self, space: u64, va: Va) -> bool {
        find(space, va).is_ok()
    }

    fn get(&self, space: u64, va: Va) -> Option<Entry> {
        decode(find(space, va).ok()?.load(Relaxed))
    }

    fn first(&self, space: u64, range: VaRange) -> Option<(Va, Entry)> {
        let range = range.intersect(WINDOW);
        let mut va = range.start;
        while va < range.end {
            let (found, span) = match find(space, va) {
                Ok(entry) => (decode(entry.load(Relaxed)), SPANS[2]),
                Err(span) => (None, span),
            };
            if let Some(entry) = found {
                return Some((va, entry));
            }
            va = Va((va.0 / span + 1) * span);
        }
        None
    }

    fn set(&mut self, space: u64, va: Va, new: Option<Entry>) -> Option<Entry> {
        let place = find(space, va).expect("there are tables for it");
        let old = decode(place.swap(new.map_or(0, encode), SeqCst));
        // An MMU may remember that nothing was there, or fewer rights: this hart, which has
        // faulted, would fault for ever.
        riscv::asm::sfence_vma(0, va.0 as usize);
        let seen = if cfg!(feature = "plant-bits") { Prot::NONE } else { Prot::all() };
        old.map(|old| Entry { seen: old.seen & seen, ..old })
    }

    /// The set is read after an entry has changed: a hart that isn't in it yet finds the new one.
    fn holders(&self, space: u64) -> CpuSet {
        CpuSet::from_bits(SETS[space as usize].load(SeqCst))
    }

    fn flush(down: &Shootdown) {
        let all = if cfg!(feature = "plant-local") { CpuSet::one(hart()) } else { CpuSet::ALL };
        let harts = down.cpus().intersection(all);
        match down.ranges() {
            None => forget(harts, None),
            Some(ranges) => ranges.iter().for_each(|stale| forget(harts, Some(stale.range))),
        }
    }
}
