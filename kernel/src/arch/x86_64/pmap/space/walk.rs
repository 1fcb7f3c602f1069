//! Walks over the last tables that serve a range, and over the entries in them that may be present.
//!
//! A range within one table that this CPU remembers needs that table's lock alone. Any other is
//! walked with the space's lock held all the way: through the tree, or, where it is half a terabyte
//! and more and so a whole space in practice, through the space's list of tables.

use super::*;

/// The entries of one last table that lie in a range.
pub(in super::super) struct Part {
    pub(in super::super) table: Last,
    /// The first entry's address.
    pub(in super::super) va: u64,
    first: usize,
    len: usize,
}

impl Part {
    /// Whether the part is the whole table.
    pub(in super::super) fn is_whole(&self) -> bool {
        self.len == 512
    }

    /// The entry behind the last.
    pub(in super::super) fn end(&self) -> usize {
        self.first + self.len
    }

    /// The last entry's address.
    pub(in super::super) fn last_va(&self) -> u64 {
        self.va + ((self.len - 1) << PAGE_SHIFT) as u64
    }

    /// Calls `f` with the index, address and value of every present entry; `f` may make absent
    /// those to come.
    #[inline]
    pub(in super::super) fn each(&self, mut f: impl FnMut(usize, u64, u64)) {
        let mut left = self.table.count();
        let end = self.end();
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

    /// Where the part's first entry is that is as wished, and its address.
    pub(in super::super) fn find(&self, is_wished: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
        let entries = &self.table.entries[self.first..self.end()];
        let n = entries.iter().position(|slot| is_wished(slot.load(Relaxed)))?;
        Some((self.first + n, self.va + (n << PAGE_SHIFT) as u64))
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

/// How a part was come by.
pub(in super::super) enum Tree {
    /// The space's lock is held, and the empty table may be taken out.
    Locked,
    /// Tables stay: a walk over nearly everything leaves them to the space's end.
    Stays,
}

impl Space {
    /// Calls `f` with each last table that serves part of a range, which isn't empty.
    #[inline(always)]
    pub(in super::super) fn each_part(&self, range: VaRange, mut f: impl FnMut(Part, Tree)) {
        let (start, end) = (range.start.0, range.end.0);
        if start >> SPAN == (end - 1) >> SPAN && end - start < 1 << SPAN {
            if let Some(last) = self.recent(start) {
                return f(part(last, start, end), Tree::Stays);
            }
        }
        self.walk(range, &mut f);
    }

    fn walk(&self, mut range: VaRange, f: &mut dyn FnMut(Part, Tree)) {
        let _tree = self.lock();
        if range.end.0 - range.start.0 >= BY_LIST {
            return self.walk_list(range, f);
        }
        while let Some(part) = self.walk_to_part(&mut range) {
            f(part, Tree::Locked);
        }
    }

    /// The first part of a range that a last table serves, and takes it off the range with the hole
    /// before it.
    pub(in super::super) fn first_part(&self, range: &mut VaRange) -> Option<Part> {
        let start = range.start.0;
        if range.is_empty() {
            return None;
        }
        if let Some(last) = self.recent(start) {
            let end = (((start >> SPAN) + 1) << SPAN).min(range.end.0);
            range.start.0 = end;
            return Some(part(last, start, end));
        }
        let _tree = self.lock();
        self.walk_to_part(range)
    }

    /// Like [`first_part`](Self::first_part), by the tree alone, whose lock is held.
    #[inline(always)]
    fn walk_to_part(&self, range: &mut VaRange) -> Option<Part> {
        while range.start < range.end {
            let va = range.start.0;
            let found = self.top.walk(va, 0);
            let (shift, entries) = match &found {
                Ok(_) => (SPAN, 1),
                Err(missing) => (PAGE_SHIFT + 9 * missing.level, absent(missing, va)),
            };
            let next = ((va >> shift) + entries) << shift;
            range.start.0 = next.min(range.end.0);
            if let Ok(table) = found {
                return Some(part(self.found(va, table), va, range.start.0));
            }
        }
        None
    }

    /// The first addresses that the last tables of a range serve, in order; each may be taken out
    /// meanwhile.
    pub(in super::super) fn tables_in(&self, range: VaRange) -> impl Iterator<Item = u64> + '_ {
        let mut rest = range;
        core::iter::from_fn(move || self.first_part(&mut rest).map(|part| part.va))
    }

    #[cold]
    fn walk_list(&self, range: VaRange, f: &mut dyn FnMut(Part, Tree)) {
        let mut next = record(self.root).words[NEXT].load(Relaxed);
        while next != NIL {
            let page = PageNo(next);
            let own = record(page);
            next = own.words[NEXT].load(Relaxed);
            if own.level() != 0 {
                continue;
            }
            let base = va_of(own, 0);
            let (start, end) = (base.max(range.start.0), (base + (1 << SPAN)).min(range.end.0));
            if start < end {
                f(part(Last::known(page), start, end), Tree::Stays);
            }
        }
    }
}

/// How many entries from that for `va` on lead nowhere in the table in which a walk ended.
fn absent(missing: &Missing, va: u64) -> u64 {
    let entries = &missing.table[index(va, missing.level)..];
    entries.iter().take_while(|entry| entry.load(Relaxed) & PRESENT == 0).count().max(1) as u64
}

#[inline]
fn part(table: Last, va: u64, end: u64) -> Part {
    Part { table, va, first: index(va, 0), len: ((end - va) >> PAGE_SHIFT) as usize }
}
