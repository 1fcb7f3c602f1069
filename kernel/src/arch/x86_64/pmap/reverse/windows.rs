//! Mappings of files' pages, sixteen to a node.
//!
//! A fault on a file maps what is there of sixteen pages. In lists of their own each page's record
//! was written, eight cache lines for each fault, and most lines that went to and fro between CPUs
//! that run one program were these. So a file's pages that lie side by side in it have a list
//! together, and what a fault maps is one node: the sixteen entries of a table and which of them
//! are meant.
//!
//! ```text
//!   record of page: bucket, place in the window --> bucket: newest, oldest --> node: table, group, shift, bits --> node ...
//! ```
//! The lists are in a table of buckets, by the object and the offset in it. Several windows may
//! share a bucket, and a page may stay in that of an object which it has left: an entry says itself
//! which page it maps, so it costs time and no more. A page's record is written only when the page
//! comes into a bucket or leaves it, and when a bit of its is seen set first.
//!
//! A node's entries lie as far behind the places of their pages as its shift says, modulo sixteen:
//! so of each node one entry is looked at for a page.
//!
//! A page may have mappings of its own beside: what was mapped before it came into its bucket. Each
//! mapping stays where it was put.
//!
//! W1: a page whose record names a bucket is in its nodes, or in its own list, and in no other
//! bucket's. W2: bits in nodes are present entries; each is meant by one node. W3: these are
//! pageable.
//!
//! A bucket's lock lies between the table's and the page's. A CPU that comes from a page has both;
//! one that comes from a table has that of the list in which the mapping is.

use core::ops::{Deref, Range};

use crate::mem::frames::Owner;
use alloc::boxed::Box;
use alloc::vec::Vec;
use machine::{Pa, Prot};

use super::nodes::{give_node, node, take_node, List};
use super::*;
use crate::arch::pmap::record::{witness, IN_BUCKET, NOTHING, OWN, WINDOW};
use crate::arch::pmap::space::Last;
use crate::arch::pmap::{entry_for, page_of, Entering};
use crate::arch::tables::{ADDRESS, NO_EXECUTE, PRESENT, WRITE};
use crate::lock::{Once, RawSpin};
use crate::mem::fault;

/// Pages in a window, and entries that a node can mean.
pub(super) const PAGES: usize = 16;
/// In a node's place: the entries that are meant. Above them which sixteen of the table they are
/// among, and above that the shift.
const MEANT: u32 = (1 << PAGES) - 1;
const GROUP: u32 = 31;
const SHIFT: u32 = 5;

/// Shift of the page's place in its window, in the `wide` word of a record.
const PLACE_SHIFT: u32 = 32;

/// The fewest buckets, as a power of two.
const FEWEST: u32 = 6;

#[repr(C, align(16))]
pub(super) struct Bucket {
    lock: RawSpin,
    newest: AtomicU32,
    oldest: AtomicU32,
    /// Nodes in the list.
    len: AtomicU32,
}

/// The buckets, as many as frames have windows: a power of two.
static BUCKETS: Once<Box<[Bucket]>> = Once::new();

/// Makes the buckets for so many frames.
///
/// # Errors
/// [`NoMemory`].
pub(in super::super) fn init(pages: usize) -> Result<(), NoMemory> {
    let count = (pages / PAGES).next_power_of_two().max(1 << FEWEST);
    let mut buckets = Vec::new();
    fault::attempt(|| buckets.try_reserve_exact(count)).map_err(|_| NoMemory)?;
    let empty = || Bucket {
        lock: RawSpin::new(),
        newest: AtomicU32::new(NIL),
        oldest: AtomicU32::new(NIL),
        len: AtomicU32::new(0),
    };
    buckets.resize_with(count, empty);
    BUCKETS.call_once(|| buckets.into_boxed_slice());
    Ok(())
}

#[inline]
fn buckets() -> &'static [Bucket] {
    // SAFETY: made in start-up, before any address space.
    unsafe { BUCKETS.get_unchecked() }
}

/// A bucket whose lock is held.
#[must_use]
pub(super) struct Locked {
    bucket: &'static Bucket,
    number: u32,
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this was made with the lock taken, and ends here.
        unsafe { self.bucket.lock.unlock() }
        witness::gave_back(WINDOW);
    }
}

impl Deref for Locked {
    type Target = Bucket;
    #[inline]
    fn deref(&self) -> &Bucket {
        self.bucket
    }
}

impl Bucket {
    #[inline]
    fn list(&self) -> List<'_> {
        List { newest: &self.newest, oldest: &self.oldest }
    }

    /// The newest node, if it means entries of this table that are of a kind.
    #[inline]
    fn newest_of(&self, table: PageNo, kind: u32) -> Option<&'static Node> {
        let newest = self.newest.load(Relaxed);
        let newest = (newest != NIL).then(|| node(newest))?;
        let is_it =
            newest.table.load(Relaxed) == table.0 && newest.place.load(Relaxed) >> PAGES == kind;
        is_it.then_some(newest)
    }

    /// Adds a node. Says whether there are too many then.
    #[inline]
    fn push(&self, number: u32, table: PageNo, place: u32) -> bool {
        self.list().push(number, table, place);
        let len = self.len.load(Relaxed) + 1;
        self.len.store(len, Relaxed);
        note_length(len - 1, len);
        len > MOST
    }

    /// The node that means an entry, and the one before it, as [`List::find`] says it.
    #[inline]
    fn find(&self, table: PageNo, at: usize) -> Option<(u32, Option<u32>)> {
        let (group, bit) = ((at / PAGES) as u32, 1 << (at % PAGES));
        self.list().find(|node: &Node| {
            let place = node.place.load(Relaxed);
            node.table.load(Relaxed) == table.0
                && place >> PAGES & GROUP == group
                && place & bit != 0
        })
    }

    /// The mapping of a page that a node means, if it means one.
    #[inline]
    fn mapping(node: &Node, page: &InWindow) -> Option<Mapping> {
        let place = node.place.load(Relaxed);
        let (group, shift) = (place >> PAGES & GROUP, place >> PAGES >> SHIFT);
        let among = (page.place + shift) % PAGES as u32;
        let mapping = Mapping::new(node.table.load(Relaxed), group * PAGES as u32 + among);
        (place & 1 << among != 0 && maps(mapping.slot().load(Relaxed), page.address))
            .then_some(mapping)
    }
}

/// Whether an entry maps the page at an address.
#[inline]
fn maps(entry: u64, address: u64) -> bool {
    entry & PRESENT != 0 && entry & ADDRESS == address
}

/// A page by which nodes are looked through.
struct InWindow {
    place: u32,
    address: u64,
}

impl InWindow {
    fn of(page: PageNo) -> InWindow {
        InWindow {
            place: place_in(record(page).wide.load(Relaxed)),
            address: KERNEL.frames().pa(page).0,
        }
    }
}

/// The place in its window of a page whose `wide` word this is.
#[inline]
fn place_in(wide: u64) -> u32 {
    (wide >> PLACE_SHIFT) as u32 % PAGES as u32
}

/// What is above the meant entries in the place of a node for entry `at`, of a page that has this
/// place in its window.
#[inline]
fn kind_of(at: usize, place: u32) -> u32 {
    let shift = at.wrapping_sub(place as usize) % PAGES;
    (at / PAGES) as u32 | (shift as u32) << SHIFT
}

impl Record {
    /// Whether the page is in a bucket.
    #[inline(always)]
    pub(super) fn is_in_window(&self) -> bool {
        self.bucket().is_some()
    }

    /// The bucket that the page is in. What isn't a page may seem to be in one.
    #[inline(always)]
    fn bucket(&self) -> Option<u32> {
        let wide = self.wide.load(Relaxed);
        (IN_BUCKET..OWN).contains(&wide).then_some(wide as u32)
    }

    /// Keeps bits, under the bucket's lock.
    #[inline]
    fn keep(&self, bits: u32) {
        let word = &self.words[IN_WINDOW];
        let before = word.load(Relaxed);
        if before | bits != before {
            word.store(before | bits, Relaxed);
        }
    }
}

#[inline]
fn lock(number: u32) -> Locked {
    let buckets = buckets();
    witness::takes(WINDOW);
    let bucket = &buckets[number as usize & (buckets.len() - 1)];
    bucket.lock.lock();
    Locked { bucket, number }
}

/// Locks the bucket that a page is in, if it is in one.
#[inline]
pub(super) fn lock_of(record: &Record) -> Option<Locked> {
    loop {
        let bucket = lock(record.bucket()?);
        if record.bucket() == Some(bucket.number) {
            return Some(bucket);
        }
    }
}

/// The `wide` word of a page of a file that is where it should be.
#[inline]
fn wide_for(page: PageNo) -> Option<u64> {
    let frames = KERNEL.frames();
    let Owner::Object(object) = frames.owner(page) else { return None };
    let index = frames.index(page);
    let window = (u64::from(object) << 32) ^ (index / PAGES as u64);
    let mixed = window.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let number = mixed & (buckets().len() as u64 - 1);
    let place = index % PAGES as u64;
    Some(IN_BUCKET | place << PLACE_SHIFT | number)
}

/// The `wide` word of a page in a bucket, the right one if it can be. `None` if it isn't a file's.
#[inline]
fn home(page: PageNo) -> Option<u64> {
    let (wide, record) = (wide_for(page)?, record(page));
    if record.wide.load(Relaxed) == wide {
        return Some(wide);
    }
    join(page, record, wide);
    Some(record.wide.load(Relaxed)).filter(|_| record.is_in_window())
}

/// Puts a page in a bucket, if no other has mappings of it.
#[cold]
fn join(page: PageNo, record: &'static Record, wide: u64) {
    leave(page, record);
    let _own = record.lock::<PAGE>();
    if record.wide.load(Relaxed) == NOTHING {
        record.wide.store(wide, Relaxed);
    }
}

/// Takes a page out of its bucket if that has no mappings of it.
#[cold]
pub(super) fn leave(page: PageNo, record: &'static Record) {
    let Some(bucket) = lock_of(record) else { return };
    if first(&bucket, page).is_none() {
        let _own = record.lock::<PAGE>();
        record.wide.store(NOTHING, Relaxed);
    }
}

/// Maps a page that is in a bucket, or was a moment ago, by an absent entry.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline(never)]
pub(super) fn put<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    page: PageNo,
    last: &Last,
    at: usize,
    new: u64,
) -> Result<bool, NoMemory> {
    let number = take_node(held)?;
    Ok(put_with(number, page, last, at, new))
}

/// Like [`put`], with a node at hand, which is given back if it isn't needed.
pub(in super::super) fn put_with(
    number: u32,
    page: PageNo,
    last: &Last,
    at: usize,
    new: u64,
) -> bool {
    let record = record(page);
    if record.is_in_window() && !matches!(KERNEL.frames().owner(page), Owner::Object(_)) {
        leave(page, record);
    }
    let bucket = if new & WIRED == 0 { lock_of(record) } else { None };
    let own = bucket.is_none().then(|| record.lock::<PAGE>());
    let is_long = match &bucket {
        Some(bucket) => {
            let (kind, bit) = (kind_of(at, place_in(record.wide.load(Relaxed))), 1 << (at % PAGES));
            match bucket.newest_of(last.page, kind) {
                Some(newest) => {
                    newest.place.store(newest.place.load(Relaxed) | bit, Relaxed);
                    give_node(number);
                    false
                }
                None => bucket.push(number, last.page, kind << PAGES | bit),
            }
        }
        None => own::link_with(number, record, last.page, at),
    };
    last.entries[at].store(new, Relaxed);
    drop(own);
    is_long
}

/// How many nodes the page's bucket has, if it is in one.
pub(super) fn len(record: &Record) -> u32 {
    let buckets = buckets();
    record
        .bucket()
        .map_or(0, |number| buckets[number as usize & (buckets.len() - 1)].len.load(Relaxed))
}

/// The first of the mappings that the oldest node of a bucket means which has too many. All are
/// pageable (W3).
pub(super) fn surplus(bucket: &Locked) -> Option<Mapping> {
    let oldest = (bucket.len.load(Relaxed) > MOST).then(|| node(bucket.oldest.load(Relaxed)))?;
    let place = oldest.place.load(Relaxed);
    let among = (place & MEANT).trailing_zeros();
    Some(Mapping::new(oldest.table.load(Relaxed), (place >> PAGES & GROUP) * PAGES as u32 + among))
}

/// Forgets the mapping by the first of some entries, of a page that is in a bucket, or was a moment
/// ago; and those by the other entries that the same node means. `lower` makes an entry absent. How
/// many there were.
#[inline(never)]
pub(super) fn unlink(
    record: &'static Record,
    table: PageNo,
    entries: Range<usize>,
    mut lower: impl FnMut(usize) -> (u64, u32),
) -> u32 {
    let first = entries.start;
    // What isn't in the bucket is mostly the mapping that came before there was one. Seen without
    // the lock it may be another.
    let is_own = own::is_first(record, table, first) && {
        let _own = record.lock::<PAGE>();
        own::is_first(record, table, first)
    };
    let bucket = if is_own { None } else { lock_of(record) };
    let found = bucket.as_ref().and_then(|bucket| Some((bucket, bucket.find(table, first)?)));
    let Some((bucket, (number, newer))) = found else {
        let _own = record.lock::<PAGE>();
        let (entry, untold) = lower(first);
        own::unlink(record, table, first, entry, untold);
        return 1;
    };
    let place = &node(number).place;
    let (mut left, mut count) = (place.load(Relaxed), 0);
    for at in entries.take_while(|at| at / PAGES == first / PAGES) {
        let bit = 1 << (at % PAGES);
        if left & bit != 0 {
            let (entry, untold) = lower(at);
            super::record(page_of(entry)).keep(gathered(entry) | untold);
            left &= !bit;
            count += 1;
        }
    }
    place.store(left, Relaxed);
    if left & MEANT == 0 {
        bucket.list().remove(number, newer);
        let len = bucket.len.load(Relaxed);
        note_length(len, len - 1);
        bucket.len.store(len - 1, Relaxed);
    } else if bucket.len.load(Relaxed) >= MANY {
        // A CPU that takes a page from all its mappings finds the next node first.
        bucket.list().age(number, newer);
    }
    count
}

/// Maps a file's pages ahead of use, as [`machine::Pmap::enter_ahead`] does, from entry `first` on.
/// Says whether the first page is a file's; else nothing was done. How many entries have become
/// present is counted.
pub(in super::super) fn enter_ahead<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    last: &Last,
    first: usize,
    pages: &[Option<(PageNo, Prot)>],
    may: impl Fn(usize) -> bool,
) -> bool {
    let (mut n, mut is_files) = (0, false);
    while n < pages.len() {
        let Some((page, _)) = pages[n] else {
            n += 1;
            continue;
        };
        let home = home(page);
        if home.is_none() && !is_files {
            return false;
        }
        is_files = true;
        let count = match home {
            Some(wide) => enter_run(held, last, first + n, wide, &pages[n..], |i| may(n + i)),
            None => 0,
        };
        // Another CPU may have taken the page out of its bucket meanwhile: a hint may do less.
        n += count.max(1);
    }
    is_files
}

/// Maps those pages from entry `first` on that follow one another in a window, of which the first
/// has that `wide` word. For how many there was an answer.
#[inline]
fn enter_run<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    last: &Last,
    first: usize,
    mut wide: u64,
    pages: &[Option<(PageNo, Prot)>],
    may: impl Fn(usize) -> bool,
) -> usize {
    let bucket = lock(wide as u32);
    let kind = kind_of(first, place_in(wide));
    let newest = bucket.newest_of(last.page, kind);
    let node = match newest {
        Some(_) => NIL,
        None if bucket.len.load(Relaxed) >= MOST => return pages.len(),
        None => match take_node(held) {
            Ok(node) => node,
            Err(NoMemory) => return pages.len(),
        },
    };
    let (mut meant, mut added, mut n) = (0, 0, 0);
    for (run, slot) in pages.iter().zip(&last.entries[first..]) {
        if let Some((page, prot)) = *run {
            if record(page).wide.load(Relaxed) != wide {
                break;
            }
            if may(n) {
                let old = slot.load(Relaxed);
                let new = entry_for(page, Entering::ahead(prot));
                if old & PRESENT == 0 {
                    slot.store(new, Relaxed);
                    meant |= 1 << ((first + n) % PAGES);
                    added += 1;
                } else if (old ^ new) & ADDRESS == 0 {
                    raise(slot, new);
                }
            }
        }
        n += 1;
        // Behind the window's end this is no page's.
        wide += 1 << PLACE_SHIFT;
    }
    match newest {
        Some(newest) => newest.place.store(newest.place.load(Relaxed) | meant, Relaxed),
        None if meant == 0 => give_node(node),
        None => _ = bucket.push(node, last.page, kind << PAGES | meant),
    }
    if added != 0 {
        last.added(first, added);
    }
    n
}

/// Gives an entry the rights of another for the same page.
#[inline]
pub(in super::super) fn raise(slot: &AtomicU64, new: u64) {
    change(slot, |old| {
        let raised = if new & NO_EXECUTE == 0 { old & !NO_EXECUTE } else { old };
        raised | new & WRITE
    });
}

/// Checks that each entry that a node means is present, and maps a page that is in the node's
/// bucket. All other CPUs stand still.
///
/// # Errors
/// What is wrong.
pub(in super::super) fn audit() -> Result<(), &'static str> {
    for number in 0..buckets().len() as u32 {
        let bucket = lock(number);
        let mut is_well = true;
        bucket.list().each(|node| {
            let (table, place) = (node.table.load(Relaxed), node.place.load(Relaxed));
            for among in (0..PAGES as u32).filter(|among| place & 1 << among != 0) {
                let mapping = Mapping::new(table, (place >> PAGES & GROUP) * PAGES as u32 + among);
                let entry = mapping.slot().load(Relaxed);
                let page = KERNEL.frames().page_at(Pa(entry & ADDRESS));
                let is_there = entry & PRESENT != 0 && entry & WIRED == 0;
                is_well &=
                    is_there && page.is_some_and(|page| record(page).bucket() == Some(number));
            }
        });
        if !is_well {
            return Err("a window of mappings names one that isn't there, or is wired");
        }
    }
    Ok(())
}

/// A mapping of a page that its bucket has.
pub(super) fn first(bucket: &Locked, page: PageNo) -> Option<Mapping> {
    let page = InWindow::of(page);
    let (number, _) = bucket.list().find(|node| Bucket::mapping(node, &page).is_some())?;
    Bucket::mapping(node(number), &page)
}

/// Calls `f` with each of them.
pub(super) fn each(bucket: &Locked, page: PageNo, mut f: impl FnMut(&Mapping)) {
    let page = InWindow::of(page);
    bucket.list().each(|node| {
        if let Some(mapping) = Bucket::mapping(node, &page) {
            f(&mapping);
        }
    });
}
