//! Walks over the last tables that serve a range, and over the entries in them that may be present.
//!
//! A range within one table that this CPU remembers needs that table's lock alone. Any other is walked with the space's lock held
//! all the way: through the tree, or, where it is half a terabyte and more and so a whole space in practice, through the space's
//! list of tables.

use super::*;

/// The entries of one last table that lie in a range.
pub(in super::super) struct Part {
    pub(in super::super) table: Last,
    /// The first entry's address.
    pub(in super::super) va: u64,
    first: usize,
    pub(in super::super) len: usize,
}

impl Part {
    /// Whether the part is the whole table.
    pub(in super::super) fn is_whole(&self) -> bool {
        self.len == 512
    }

    /// Calls `f` with the index, address and value of every present entry.
    #[inline]
    pub(in super::super) fn each(&self, mut f: impl FnMut(usize, u64, u64)) {
        let mut left = self.table.count();
        let end = self.first + self.len;
        let below_end = u32::MAX >> (31 - (end - 1) / GROUP);
        let own = &self.table.record.words[GROUPS];
        let mut groups = own.load(Relaxed) & below_end & u32::MAX << (self.first / GROUP);
        while groups != 0 && left != 0 {
            let start = groups.trailing_zeros() as usize * GROUP;
            groups &= groups - 1;
            let (from, to) = (start.max(self.first), (start + GROUP).min(end));
            for (n, slot) in self.table.entries[from..to].iter().enumerate() {
                let entry = slot.load(Relaxed);
                if entry != 0 {
                    let at = from + n;
                    f(at, self.va + ((at - self.first) << PAGE_SHIFT) as u64, entry);
                    left -= 1;
                }
            }
        }
    }

    /// Forgets the groups that lie in the part: all their entries have been removed.
    #[inline]
    pub(in super::super) fn emptied(&self) {
        let (from, to) = (self.first.div_ceil(GROUP), (self.first + self.len) / GROUP);
        if from < to {
            let inside = u32::MAX << from & u32::MAX >> (32 - to);
            let groups = &self.table.record.words[GROUPS];
            groups.store(groups.load(Relaxed) & !inside, Relaxed);
        }
    }
}

/// A walk over the last tables that serve a range. One part at a time: the one before is dropped first.
pub(in super::super) struct Walk<'a> {
    space: &'a Space,
    range: VaRange,
    how: How,
}

enum How {
    /// The range lies within one table, which this CPU may remember.
    Remembered,
    Tree(#[allow(dead_code)] Locked),
    /// By the list of tables, of which this is the next.
    List(#[allow(dead_code)] Locked, u32),
}

impl<'a> Walk<'a> {
    #[inline]
    pub(in super::super) fn new(space: &'a Space, range: VaRange) -> Walk<'a> {
        let pages = range.end.0 - range.start.0;
        let is_within = range.start.0 >> SPAN == (range.end.0 - 1) >> SPAN && pages < 1 << SPAN;
        let how = if is_within { How::Remembered } else { Walk::locked(space, pages) };
        Walk { space, range, how }
    }

    #[cold]
    fn locked(space: &Space, bytes: u64) -> How {
        let lock = space.lock();
        if bytes >= BY_LIST {
            How::List(lock, record(space.root).words[NEXT].load(Relaxed))
        } else {
            How::Tree(lock)
        }
    }

    /// Whether empty tables may be taken out during the walk: a walk over nearly everything leaves them to the space's end.
    pub(in super::super) fn frees_tables(&self) -> bool {
        matches!(self.how, How::Tree(_))
    }

    #[inline]
    pub(in super::super) fn next(&mut self) -> Option<Part> {
        if self.range.is_empty() {
            return None;
        }
        if let How::Remembered = self.how {
            if let Some(last) = self.space.recent(self.range.start.0) {
                let va = self.range.start.0;
                self.range.start = self.range.end;
                return Some(part(last, va, self.range.end.0));
            }
        }
        self.find_next()
    }

    fn find_next(&mut self) -> Option<Part> {
        match &mut self.how {
            How::Remembered => self.how = How::Tree(self.space.lock()),
            How::Tree(_) => {}
            How::List(_, next) => return next_in_list(next, self.range),
        }
        while !self.range.is_empty() {
            let va = self.range.start.0;
            let mut at = self.space.root_pa;
            let mut level = 3;
            loop {
                let entry = table(at)[index(va, level)].load(Relaxed);
                if entry & PRESENT == 0 {
                    break;
                }
                at = entry & ADDRESS;
                level -= 1;
                if level == 0 {
                    break;
                }
            }
            // `level` is 0 if a last table was found, else that of the table whose entry is missing.
            let shift = if level == 0 { SPAN } else { PAGE_SHIFT + 9 * level };
            let next = ((va >> shift) + 1) << shift;
            self.range.start.0 = next;
            if level == 0 {
                return Some(part(self.space.found(va, at), va, next.min(self.range.end.0)));
            }
        }
        None
    }
}

#[cold]
fn next_in_list(next: &mut u32, range: VaRange) -> Option<Part> {
    while *next != NIL {
        let page = PageNo(*next);
        let own = record(page);
        *next = own.words[NEXT].load(Relaxed);
        if own.level() != 0 {
            continue;
        }
        let base = va_of(own, 0);
        let start = base.max(range.start.0);
        let end = (base + (1 << SPAN)).min(range.end.0);
        if start < end {
            return Some(part(Last::known(page, pa(page)), start, end));
        }
    }
    None
}

fn part(table: Last, va: u64, end: u64) -> Part {
    Part { table, va, first: index(va, 0), len: ((end - va) >> PAGE_SHIFT) as usize }
}
