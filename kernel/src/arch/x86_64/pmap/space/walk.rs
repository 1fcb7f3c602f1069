//! Walks over the last tables that serve a range, and over the entries in them that may be present.
//!
//! A range of less than half a terabyte is walked through the tree; a larger one, which is a whole space in practice, through the
//! space's list of tables.

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
        let own = record(self.table.page);
        let mut left = own[SHAPE].load(Relaxed) >> COUNT & COUNT_MASK;
        let end = self.first + self.len;
        let below_end = u32::MAX >> (31 - (end - 1) / GROUP);
        let mut groups = own[GROUPS].load(Relaxed) & below_end & u32::MAX << (self.first / GROUP);
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
            let groups = &record(self.table.page)[GROUPS];
            groups.store(groups.load(Relaxed) & !inside, Relaxed);
        }
    }
}

/// A walk over the last tables that serve a range.
pub(in super::super) struct Walk<'a> {
    space: &'a Space,
    range: VaRange,
    /// The next table of the list, where the walk goes by list.
    list: Option<u32>,
}

impl<'a> Walk<'a> {
    #[inline]
    pub(in super::super) fn new(space: &'a Space, range: VaRange) -> Walk<'a> {
        let by_list = range.end.0 - range.start.0 >= BY_LIST;
        Walk { space, range, list: by_list.then(|| record(space.root)[NEXT].load(Relaxed)) }
    }

    /// Whether empty tables may be taken out during the walk: a walk over nearly everything leaves them to the space's end.
    pub(in super::super) fn frees_tables(&self) -> bool {
        self.list.is_none()
    }

    #[inline]
    pub(in super::super) fn next(&mut self) -> Option<Part> {
        if self.range.is_empty() {
            return None;
        }
        self.find_next()
    }

    fn find_next(&mut self) -> Option<Part> {
        if self.list.is_some() {
            return self.next_in_list();
        }
        while !self.range.is_empty() {
            let va = self.range.start.0;
            if let Some(last) = self.space.recent(va) {
                let next = ((va >> SPAN) + 1) << SPAN;
                self.range.start.0 = next;
                return Some(part(last, va, next.min(self.range.end.0)));
            }
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
                return Some(part(Last::at(at), va, next.min(self.range.end.0)));
            }
        }
        None
    }

    #[cold]
    fn next_in_list(&mut self) -> Option<Part> {
        loop {
            let page = self.list.filter(|&p| p != NIL).map(PageNo)?;
            let own = record(page);
            self.list = Some(own[NEXT].load(Relaxed));
            if own[SHAPE].load(Relaxed) >> LEVEL & 3 != 0 {
                continue;
            }
            let (_, base) = whose(page, 0);
            let start = base.max(self.range.start.0);
            let end = (base + (1 << SPAN)).min(self.range.end.0);
            if start < end {
                return Some(part(Last { page, entries: table(pa(page)) }, start, end));
            }
        }
    }
}

fn part(table: Last, va: u64, end: u64) -> Part {
    Part { table, va, first: index(va, 0), len: ((end - va) >> PAGE_SHIFT) as usize }
}
