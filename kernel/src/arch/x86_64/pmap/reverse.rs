//! From a page to its mappings, and its gathered referenced and modified bits.
//!
//! ```text
//!   record of page: table | index, bits | newest | oldest
//!                                            |        +--------------------------+
//!                                            +--> node --older--> node --older--> node
//! ```
//! Most pages are mapped once: that mapping is in the record itself. Further ones, of pages that a fork or a shared object shares, are
//! nodes from frames of their own, in a list; a frame of nodes is never given back. The record knows both ends. So the oldest
//! mapping and the newest are forgotten at once: programs end in the order they began, or in the other, and memory that shows a
//! page many times is unmapped from its start.
//!
//! Who adds a mapping writes the record and its own node, and none of those that other CPUs made. What lies towards the newest a node
//! learns only when the oldest is taken away, in one walk for all that came since the last.
//!
//! I1: a node's `newer` is NIL or the node whose `older` it is.
//!
//! Everything here happens under the page's lock.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use machine::order::{Before, Held, PageCache};
use machine::{Machine, NoMemory, PageNo, Reserve, PAGE_SIZE};

use super::record::{record, Record};
use super::NIL;
use crate::arch::cpu;
use crate::arch::machine::KERNEL;
use crate::arch::tables::{table, ACCESSED, DIRTY};
use crate::sync::SpinLock;

/// Where a page's record keeps what.
const TABLE: usize = 0;
const PLACE: usize = 1;
const NEWEST: usize = 2;
const OLDEST: usize = 3;

/// The index in a record's place word; what is gathered lies above.
const INDEX: u32 = 511;
/// Shift of `ACCESSED` and `DIRTY` in the place word.
const BITS: u32 = 16;
const GATHERED: u64 = ACCESSED | DIRTY;
/// In the place word: a mapping was lowered that other CPUs hold, and they may not have been told yet (law P6).
pub(super) const UNTOLD: u32 = 1 << 31;

/// Nodes in a frame, and in a batch that CPUs exchange.
const NODES: u32 = 256;

#[repr(C)]
struct Node {
    table: AtomicU32,
    index: AtomicU32,
    /// In a batch: the next node.
    older: AtomicU32,
    /// In a batch's first node: the next batch.
    newer: AtomicU32,
}

/// One CPU's free nodes: a list that it takes from and gives to, and a full batch beside. Only that CPU touches them.
pub struct FreeNodes {
    head: Cell<u32>,
    len: Cell<u32>,
    spare: Cell<u32>,
}

impl FreeNodes {
    /// No node.
    pub(in super::super) const fn new() -> FreeNodes {
        FreeNodes { head: Cell::new(NIL), len: Cell::new(0), spare: Cell::new(NIL) }
    }
}

/// Full batches that no CPU has.
static DEPOT: SpinLock<u32> = SpinLock::new(NIL);

/// A node by its number: frame and place in the frame.
#[inline]
fn node(number: u32) -> &'static Node {
    let frame = KERNEL.address(PageNo(number / NODES));
    // SAFETY: node numbers are made in `refill` only, of frames that hold nodes for ever; the fields are atomics.
    unsafe { &*((frame as *const Node).add((number % NODES) as usize)) }
}

/// Takes a free node.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline]
pub(super) fn take_node<P: Before<PageCache>>(held: &mut Held<'_, P>) -> Result<u32, NoMemory> {
    let free = &cpu::this().nodes;
    if free.head.get() == NIL {
        refill(free, held)?;
    }
    let number = free.head.get();
    free.head.set(node(number).older.load(Relaxed));
    free.len.set(free.len.get() - 1);
    Ok(number)
}

/// Gives a node back.
#[inline]
pub(super) fn give_node(number: u32) {
    let free = &cpu::this().nodes;
    if free.len.get() == NODES {
        put_aside(free);
    }
    node(number).older.store(free.head.get(), Relaxed);
    free.head.set(number);
    free.len.set(free.len.get() + 1);
}

/// Makes the full list the spare batch, and gives the spare one there was to all.
#[cold]
fn put_aside(free: &FreeNodes) {
    let full = free.spare.replace(free.head.replace(NIL));
    free.len.set(0);
    if full != NIL {
        let mut depot = DEPOT.lock();
        node(full).newer.store(*depot, Relaxed);
        *depot = full;
    }
}

/// Gives an empty list a batch: this CPU's spare one, one that others have given back, or a new frame.
#[cold]
fn refill<P: Before<PageCache>>(free: &FreeNodes, held: &mut Held<'_, P>) -> Result<(), NoMemory> {
    let mut batch = free.spare.replace(NIL);
    if batch == NIL {
        let mut depot = DEPOT.lock();
        batch = *depot;
        if batch != NIL {
            *depot = node(batch).newer.load(Relaxed);
        }
    }
    if batch == NIL {
        let frame = KERNEL.frames().alloc(&KERNEL, held, Reserve::Kernel)?;
        // A number must fit 32 bits and not be NIL: frames up to 64 GiB.
        batch = frame.0.checked_mul(NODES).filter(|n| n < &(NIL - NODES)).ok_or(NoMemory)?;
        for number in batch..batch + NODES {
            let next = if number + 1 == batch + NODES { NIL } else { number + 1 };
            node(number).older.store(next, Relaxed);
        }
    }
    free.head.set(batch);
    free.len.set(NODES);
    Ok(())
}

/// One mapping of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) table: PageNo,
    pub(super) at: usize,
}

impl Mapping {
    fn new(table: u32, at: u32) -> Mapping {
        Mapping { table: PageNo(table), at: at as usize }
    }

    /// Its entry.
    pub(super) fn slot(&self) -> &'static AtomicU64 {
        &table(KERNEL.frames().pa(self.table).0)[self.at]
    }
}

/// Notes that the page of `record` is mapped by entry `at` of `table`.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline(always)]
pub(super) fn link<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    record: &Record,
    table: PageNo,
    at: usize,
) -> Result<(), NoMemory> {
    let [first, place, ..] = &record.words;
    if first.load(Relaxed) == NIL {
        first.store(table.0, Relaxed);
        place.store(place.load(Relaxed) & !INDEX | at as u32, Relaxed);
        return Ok(());
    }
    link_node(record, take_node(held)?, table, at);
    Ok(())
}

/// The same with a node at hand, which is given back if it isn't needed.
pub(super) fn link_with(number: u32, record: &Record, table: PageNo, at: usize) {
    let [first, place, ..] = &record.words;
    if first.load(Relaxed) != NIL {
        return link_node(record, number, table, at);
    }
    first.store(table.0, Relaxed);
    place.store(place.load(Relaxed) & !INDEX | at as u32, Relaxed);
    give_node(number);
}

#[inline(never)]
fn link_node(record: &Record, number: u32, table: PageNo, at: usize) {
    let (this, newest) = (node(number), record.words[NEWEST].load(Relaxed));
    this.table.store(table.0, Relaxed);
    this.index.store(at as u32, Relaxed);
    this.older.store(newest, Relaxed);
    this.newer.store(NIL, Relaxed);
    record.words[NEWEST].store(number, Relaxed);
    if newest == NIL {
        record.words[OLDEST].store(number, Relaxed);
    }
}

/// Forgets that entry `at` of `table` maps the page of `record`, and keeps the bits that the entry had; `untold` is 0 or
/// [`UNTOLD`].
#[inline]
pub(super) fn unlink(record: &Record, table: PageNo, at: usize, entry: u64, untold: u32) {
    let place = record.words[PLACE].load(Relaxed) | ((entry & GATHERED) as u32) << BITS | untold;
    record.words[PLACE].store(place, Relaxed);
    let newest = record.words[NEWEST].load(Relaxed);
    if record.words[TABLE].load(Relaxed) == table.0 && place & INDEX == at as u32 {
        if newest == NIL {
            record.words[TABLE].store(NIL, Relaxed);
            return;
        }
        let oldest = record.words[OLDEST].load(Relaxed);
        let node = node(oldest);
        record.words[TABLE].store(node.table.load(Relaxed), Relaxed);
        record.words[PLACE].store(place & !INDEX | node.index.load(Relaxed), Relaxed);
        if node.newer.load(Relaxed) == NIL {
            learn_newer(newest);
        }
        return unlink_node(record, oldest, node.newer.load(Relaxed), node);
    }
    let (mut number, mut newer) = (newest, NIL);
    loop {
        assert!(number != NIL, "a page is mapped by a table that its record doesn't name");
        let this = node(number);
        if this.table.load(Relaxed) == table.0 && this.index.load(Relaxed) == at as u32 {
            return unlink_node(record, number, newer, this);
        }
        (number, newer) = (this.older.load(Relaxed), number);
    }
}

/// Tells the nodes behind the newest which is newer, up to the first that knows.
fn learn_newer(newest: u32) {
    let mut number = newest;
    loop {
        let older = node(number).older.load(Relaxed);
        if older == NIL || node(older).newer.load(Relaxed) == number {
            return;
        }
        node(older).newer.store(number, Relaxed);
        number = older;
    }
}

/// Takes a node out of its list, and gives it back; `newer` is the one before it, or NIL.
#[inline]
fn unlink_node(record: &Record, number: u32, newer: u32, this: &Node) {
    debug_assert!(
        newer == NIL || node(newer).older.load(Relaxed) == number,
        "I1: a node names a wrong newer one"
    );
    let older = this.older.load(Relaxed);
    match newer {
        NIL => record.words[NEWEST].store(older, Relaxed),
        newer => node(newer).older.store(older, Relaxed),
    }
    match older {
        NIL => record.words[OLDEST].store(newer, Relaxed),
        older if node(older).newer.load(Relaxed) != NIL => node(older).newer.store(newer, Relaxed),
        _ => {}
    }
    give_node(number);
}

/// A page's first mapping.
#[inline]
pub(super) fn first(page: PageNo) -> Option<Mapping> {
    let words = &record(page).words;
    let table = words[TABLE].load(Relaxed);
    (table != NIL).then(|| Mapping::new(table, words[PLACE].load(Relaxed) & INDEX))
}

/// Calls `f` with every mapping of a page.
pub(super) fn each(page: PageNo, mut f: impl FnMut(&Mapping)) {
    let Some(mapping) = first(page) else { return };
    f(&mapping);
    let mut number = record(page).words[NEWEST].load(Relaxed);
    while number != NIL {
        let node = node(number);
        f(&Mapping::new(node.table.load(Relaxed), node.index.load(Relaxed)));
        number = node.older.load(Relaxed);
    }
}

/// The accessed and dirty bits of a page: those gathered, and those in its entries.
pub(super) fn gather(page: PageNo) -> u64 {
    let mut bits = u64::from(record(page).words[PLACE].load(Relaxed) >> BITS);
    each(page, |mapping| bits |= mapping.slot().load(Relaxed));
    bits & GATHERED
}

/// Clears `bit` in a page's record and entries, and sets `instead` in those that had it; `f` is told of each of these.
pub(super) fn clear(page: PageNo, bit: u64, instead: u64, mut f: impl FnMut(&Mapping, u64)) {
    let place = &record(page).words[PLACE];
    place.store(place.load(Relaxed) & !((bit as u32) << BITS), Relaxed);
    each(page, |mapping| {
        let slot = mapping.slot();
        if slot.load(Relaxed) & bit != 0 {
            let old = change(slot, |entry| entry & !bit | instead);
            f(mapping, old);
        }
    });
}

/// Changes an entry, and what the MMU sets in it at this moment stays; gives what it was.
#[inline]
pub(super) fn change(slot: &AtomicU64, f: impl Fn(u64) -> u64) -> u64 {
    let mut old = slot.load(Relaxed);
    loop {
        match slot.compare_exchange_weak(old, f(old), SeqCst, Relaxed) {
            Ok(_) => return old,
            Err(now) => old = now,
        }
    }
}

/// Whether mappings of the page were lowered that other CPUs may not have been told of.
#[inline]
pub(super) fn is_untold(page: PageNo) -> bool {
    record(page).words[PLACE].load(Relaxed) & UNTOLD != 0
}

/// Adds the mark, if there is one.
#[inline]
pub(super) fn set_untold(page: PageNo, untold: u32) {
    if untold != 0 {
        let place = &record(page).words[PLACE];
        place.store(place.load(Relaxed) | untold, Relaxed);
    }
}

/// Takes the mark away: all others were told.
pub(super) fn forget_untold(page: PageNo) {
    let place = &record(page).words[PLACE];
    place.store(place.load(Relaxed) & !UNTOLD, Relaxed);
}

/// Bytes of nodes fill a frame.
const _: () = assert!(core::mem::size_of::<Node>() * NODES as usize == PAGE_SIZE);
