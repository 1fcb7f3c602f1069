//! A page's own mappings: one in its record, the others in its list.

use super::nodes::{give_node, node, take_node, List};
use super::*;

/// The list of a page's record.
#[inline]
fn list(record: &Record) -> List<'_> {
    List { newest: &record.words[NEWEST], oldest: &record.words[OLDEST] }
}

/// Wired mappings that are passed over at a time in search of one to forget.
const LOOKED_AT: usize = 8;

/// Notes that the page of `record` is mapped by entry `at` of `table`. Says whether the list is too
/// long then.
///
/// # Errors
/// [`NoMemory`]; nothing has changed.
#[inline(always)]
pub(in super::super) fn link<P: Before<PageCache>>(
    held: &mut Held<'_, P>,
    record: &Record,
    table: PageNo,
    at: usize,
) -> Result<bool, NoMemory> {
    Ok(!link_first(record, table, at) && {
        let number = take_node(held)?;
        link_next(record, number, table, at)
    })
}

/// Like [`link`], with a node at hand, which is given back if it isn't needed.
pub(super) fn link_with(number: u32, record: &Record, table: PageNo, at: usize) -> bool {
    let is_first = link_first(record, table, at);
    if is_first {
        give_node(number);
    }
    !is_first && link_next(record, number, table, at)
}

/// How many nodes the list has.
#[inline]
pub(super) fn len(record: &Record) -> u32 {
    len_in(record.words[PLACE].load(Relaxed))
}

#[inline]
fn len_in(place: u32) -> u32 {
    (place & LENGTH) / ONE
}

/// Notes that a list loses a node; its record's place word has been that.
#[inline]
fn shorter(place: u32) {
    let len = len_in(place);
    note_length(len, len - 1);
}

/// Whether the list has as many nodes as are kept.
#[inline]
pub(in super::super) fn is_full(record: &Record) -> bool {
    len(record) >= MOST
}

#[inline(always)]
fn link_first(record: &Record, table: PageNo, at: usize) -> bool {
    let [first, place, ..] = &record.words;
    let is_first = first.load(Relaxed) == NIL;
    if is_first {
        first.store(table.0, Relaxed);
        place.store(place.load(Relaxed) & !INDEX | at as u32, Relaxed);
    }
    is_first
}

#[inline(never)]
fn link_next(record: &Record, number: u32, table: PageNo, at: usize) -> bool {
    list(record).push(number, table, at as u32);
    let place = &record.words[PLACE];
    place.store(place.load(Relaxed) + ONE, Relaxed);
    let len = len(record);
    note_length(len - 1, len);
    len > MOST
}

/// A pageable mapping among the oldest of a list that is too long. The wired ones before it become
/// the newest.
pub(super) fn surplus(record: &Record) -> Option<Mapping> {
    let list = list(record);
    (0..LOOKED_AT).take_while(|_| len(record) > MOST).find_map(|_| {
        let oldest = node(list.oldest.load(Relaxed));
        let mapping = Mapping::new(oldest.table.load(Relaxed), oldest.place.load(Relaxed));
        if mapping.slot().load(Relaxed) & WIRED == 0 {
            return Some(mapping);
        }
        list.renew_oldest();
        None
    })
}

/// Whether the mapping in the record is this one. A caller that holds the table's lock and not the
/// page's may trust a no.
#[inline]
pub(super) fn is_first(record: &Record, table: PageNo, at: usize) -> bool {
    record.words[TABLE].load(Relaxed) == table.0
        && record.words[PLACE].load(Relaxed) & INDEX == at as u32
}

/// Forgets that entry `at` of `table` maps the page of `record`, and keeps the bits that the entry
/// had; `untold` is 0 or [`UNTOLD`].
#[inline]
pub(super) fn unlink(record: &Record, table: PageNo, at: usize, entry: u64, untold: u32) {
    let place = record.words[PLACE].load(Relaxed) | gathered(entry) | untold;
    record.words[PLACE].store(place, Relaxed);
    let list = list(record);
    if is_first(record, table, at) {
        if list.newest.load(Relaxed) == NIL {
            record.words[TABLE].store(NIL, Relaxed);
            return;
        }
        shorter(place);
        let oldest = node(list.oldest.load(Relaxed));
        record.words[TABLE].store(oldest.table.load(Relaxed), Relaxed);
        record.words[PLACE].store((place - ONE) & !INDEX | oldest.place.load(Relaxed), Relaxed);
        return list.remove_oldest();
    }
    let is_it =
        |node: &Node| node.table.load(Relaxed) == table.0 && node.place.load(Relaxed) == at as u32;
    let Some((number, newer)) = list.find(is_it) else {
        panic!("a page is mapped by a table that its record doesn't name");
    };
    list.remove(number, newer);
    shorter(place);
    record.words[PLACE].store(place - ONE, Relaxed);
}

/// The mapping in the record.
#[inline]
pub(super) fn first(record: &Record) -> Option<Mapping> {
    let table = record.words[TABLE].load(Relaxed);
    (table != NIL).then(|| Mapping::new(table, record.words[PLACE].load(Relaxed) & INDEX))
}

/// Calls `f` with each of a page's own mappings.
pub(super) fn each(record: &Record, mut f: impl FnMut(&Mapping)) {
    let Some(mapping) = first(record) else { return };
    f(&mapping);
    list(record).each(|node| f(&Mapping::new(node.table.load(Relaxed), node.place.load(Relaxed))));
}
