//! From a page to its mappings, and its gathered referenced and modified bits.
//!
//! ```text
//!   record of page: table | index, bits | newest | oldest | bits of windows' | bucket
//!                                            |        +--------------------------+
//!                                            +--> node --older--> node --older--> node
//! ```
//! Most pages are mapped once: that mapping is in the record itself (`own`). Further ones, of pages
//! that a fork shares, are nodes in a list (`nodes`). The record knows both ends. So the oldest
//! mapping and the newest are forgotten at once: programs end in the order they began, or in the
//! other, and memory that shows a page many times is unmapped from its start. What maps files'
//! pages ahead of use is in lists of windows of sixteen pages (`windows`).
//!
//! Everything here happens under the page's locks: that of its bucket, if it is in one, and that of
//! its record. Either keeps out CPUs that come from the page.

mod nodes;
mod own;
mod windows;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use machine::order::{Before, Held, PageCache};
use machine::{NoMemory, PageNo};

use super::record::{record, Locked, Record, PAGE};
use super::space::Last;
use super::{NIL, WIRED};
use crate::arch::tables::{table, ACCESSED, DIRTY};
use crate::mem::frames::KERNEL;
pub(super) use nodes::take_node;
pub use nodes::FreeNodes;
use nodes::Node;
pub(super) use nodes::{drain, give_back, FRAMES};
pub(super) use own::{is_full, link as link_own};
pub(super) use windows::{audit, enter_ahead, init, put_with, raise};

/// Where a page's record keeps what.
const TABLE: usize = 0;
const PLACE: usize = 1;
const NEWEST: usize = 2;
const OLDEST: usize = 3;
/// Bits gathered, and the mark of what is untold, from mappings that the page's bucket has; in
/// their places in the place word.
const IN_WINDOW: usize = 4;

/// The index in a record's place word; above it the length of the list, and above that what is
/// gathered.
const INDEX: u32 = 511;
/// One node of the list, in the place word.
const ONE: u32 = INDEX + 1;
const LENGTH: u32 = (1 << BITS) - ONE;
/// Shift of `ACCESSED` and `DIRTY` in the place word.
const BITS: u32 = 24;
const GATHERED: u64 = ACCESSED | DIRTY;
/// Nodes beyond which a list loses its oldest mappings as it gets new ones (law P1): a program can
/// map one page as often as it likes, and each lookup by page, and each unmapping, goes through the
/// list with interrupts off.
const MOST: u32 = 384;

/// In the place word: a mapping was lowered that other CPUs hold, and they may not have been told
/// yet (law P6).
pub(super) const UNTOLD: u32 = 1 << 31;

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
        // SAFETY: a mapping is found in its page's record or list, under the page's lock, and its
        // table lives as long as it is there.
        let entries = unsafe { table(KERNEL.frames().pa(self.table).0) };
        &entries[self.at]
    }
}

/// A page's locks: those of all its mappings.
#[must_use]
pub(super) struct PageLock {
    own: Locked<PAGE>,
    window: Option<windows::Locked>,
}

impl PageLock {
    /// Whether the frame is a page, and not a frame of the pmap's own by now: a caller that has the
    /// page's number alone may come too late.
    #[inline]
    fn is_page(&self) -> bool {
        self.own.is_page()
    }
}

/// Locks all mappings of a page.
pub(super) fn lock_page(page: PageNo) -> PageLock {
    let record = record(page);
    loop {
        let window = windows::lock_of(record);
        let own = record.lock();
        if window.is_some() == record.is_in_window() {
            return PageLock { own, window };
        }
    }
}

/// Locks a page's own mappings, after it has left its bucket if it can: for what isn't a file's.
#[inline]
pub(super) fn lock_own(page: PageNo) -> Locked<PAGE> {
    let record = record(page);
    if record.is_in_window() {
        windows::leave(page, record);
    }
    record.lock()
}

/// Maps a page by an absent entry. Says whether the page has too many mappings then: the caller
/// [shortens](surplus) the list.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline(always)]
pub(super) fn put<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    page: PageNo,
    last: &Last,
    at: usize,
    new: u64,
) -> Result<bool, NoMemory> {
    let record = record(page);
    if record.is_in_window() {
        return windows::put(held, page, last, at, new);
    }
    let _page = record.lock::<PAGE>();
    let is_long = own::link(held, record, last.page, at)?;
    last.entries[at].store(new, Relaxed);
    Ok(is_long)
}

/// Nodes in a list that is counted in [`LONG`].
const MANY: u32 = 16;
/// Lists of pages and buckets that have as many.
static LONG: AtomicUsize = AtomicUsize::new(0);

/// Notes how long a list is now, which was longer or shorter by one.
#[inline]
fn note_length(before: u32, now: u32) {
    if before + now == 2 * MANY - 1 {
        if now == MANY {
            LONG.fetch_add(1, Relaxed);
        } else {
            LONG.fetch_sub(1, Relaxed);
        }
    }
}

/// Whether some list is long: then [`length`] is worth a look.
#[inline]
pub(super) fn any_is_long() -> bool {
    LONG.load(Relaxed) != 0
}

/// How many nodes are looked through at most for a mapping of a page; a moment's value.
pub(super) fn length(page: PageNo) -> usize {
    let record = record(page);
    (own::len(record) + windows::len(record)) as usize
}

/// A pageable mapping to forget of a page whose list is too long: one of its oldest.
#[cold]
pub(super) fn surplus(page: PageNo) -> Option<Mapping> {
    let lock = lock_page(page);
    if !lock.is_page() {
        return None;
    }
    own::surplus(&lock.own).or_else(|| windows::surplus(lock.window.as_ref()?))
}

/// The entries from one on that a node can mean with it.
#[inline]
pub(super) fn beside(at: usize) -> Range<usize> {
    at..(at / windows::PAGES + 1) * windows::PAGES
}

/// Whether an entry may be wired where it is: what is wired is in the list of its page alone, so
/// that windows can lose their oldest.
#[inline]
pub(super) fn may_be_wired(page: PageNo) -> bool {
    !record(page).is_in_window()
}

/// Forgets that the first of some entries of `table`, whose lock is held, maps a page; and with it
/// others of these entries that map files' pages beside it. `lower` makes an entry absent, and
/// gives what it was and whether others must be told of it: 0 or [`UNTOLD`]. How many there were.
#[inline]
pub(super) fn unlink(
    page: PageNo,
    table: PageNo,
    entries: Range<usize>,
    mut lower: impl FnMut(usize) -> (u64, u32),
) -> u32 {
    let record = record(page);
    // A mapping in a bucket keeps its page there.
    if record.is_in_window() {
        return windows::unlink(record, table, entries, lower);
    }
    let _page = record.lock::<PAGE>();
    let (entry, untold) = lower(entries.start);
    own::unlink(record, table, entries.start, entry, untold);
    1
}

/// One of a page's mappings.
#[inline]
pub(super) fn first(page: PageNo, lock: &PageLock) -> Option<Mapping> {
    let in_window = || windows::first(lock.window.as_ref()?, page);
    lock.is_page().then(|| own::first(&lock.own).or_else(in_window))?
}

/// Calls `f` with every mapping of a page.
pub(super) fn each(page: PageNo, lock: &PageLock, mut f: impl FnMut(&Mapping)) {
    if !lock.is_page() {
        return;
    }
    own::each(&lock.own, &mut f);
    if let Some(window) = &lock.window {
        windows::each(window, page, f);
    }
}

/// The bits of an entry that are kept when it goes, in their places in a record.
#[inline]
fn gathered(entry: u64) -> u32 {
    ((entry & GATHERED) as u32) << BITS
}

/// The words of a page's record in which bits are kept.
fn kept(page: PageNo) -> [&'static AtomicU32; 2] {
    let words = &record(page).words;
    [&words[PLACE], &words[IN_WINDOW]]
}

/// Takes bits away from what is kept.
fn forget(page: PageNo, bits: u32) {
    for word in kept(page) {
        let before = word.load(Relaxed);
        if before & bits != 0 {
            word.store(before & !bits, Relaxed);
        }
    }
}

/// The accessed and dirty bits of a page: those gathered, and those in its entries.
pub(super) fn gather(page: PageNo, lock: &PageLock) -> u64 {
    if !lock.is_page() {
        return 0;
    }
    let mut bits =
        kept(page).iter().fold(0, |bits, word| bits | u64::from(word.load(Relaxed) >> BITS));
    each(page, lock, |mapping| bits |= mapping.slot().load(Relaxed));
    bits & GATHERED
}

/// How many mappings lead to a page.
pub(super) fn count(page: PageNo, lock: &PageLock) -> usize {
    let mut count = 0;
    if lock.is_page() {
        each(page, lock, |_| count += 1);
    }
    count
}

/// Clears `bit` in a page's record and entries, and sets `instead` in those that had it; `f` is
/// told of each of these.
pub(super) fn clear(
    page: PageNo,
    lock: &PageLock,
    bit: u64,
    instead: u64,
    mut f: impl FnMut(&Mapping, u64),
) {
    if !lock.is_page() {
        return;
    }
    forget(page, gathered(bit));
    each(page, lock, |mapping| {
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
    kept(page).iter().any(|word| word.load(Relaxed) & UNTOLD != 0)
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
    forget(page, UNTOLD);
}
