//! Memory that is passed: pages of addresses are handed over, shared or copied, each with all that
//! is said of it.

use super::*;

/// A range that belongs to no space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it was.
    pub span: Span,
    /// Its pages, by address.
    pub pages: Space,
}

/// A copy that a thread makes, some of it of memory that others write: each such page as it is at
/// some moment, the rest as it was when the copy began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copying {
    /// The copy. A page whose moment has not come names the cell that it is to be a copy of.
    pub range: Range,
    /// Those pages.
    pub left: BTreeSet<u64>,
}

impl Model {
    /// Begins the copy that an operation makes, where it is of some memory that others write, or
    /// the passing of what is shared: it is looked at before it comes to its place. Else says no.
    pub fn begin_copy(&mut self, thread: usize, op: &Op) -> bool {
        let (s, span, way) = match *op {
            Op::Fork { s, child } if self.spaces[child].is_none() => {
                (s, Span(0, WINDOW), Way::Copy)
            }
            Op::Extract { r, s, span, way: Way::Copy } if self.ranges[r].is_none() => {
                (s, span, Way::Copy)
            }
            Op::Pass { s, span, way: way @ (Way::Copy | Way::Share), .. } => (s, span, way),
            _ => return false,
        };
        let Some(from) = self.spaces[s].clone() else { return false };
        let is_fork = matches!(op, Op::Fork { .. });
        let is_copied = |page: &Page| {
            let is_meant = way == Way::Copy && (!is_fork || page.inherit == Inh::Copy);
            page.writes == Writes::Cell && is_meant
        };
        let names = |cell| self.all_pages().filter(|page| page.cell == cell).count();
        let left: BTreeSet<u64> = span
            .pages()
            .filter(|at| from.get(at).is_some_and(|page| is_copied(page) && names(page.cell) > 1))
            .collect();
        // Where others write to a neighbour a copy is made apart, too.
        if left.is_empty() && is_fork {
            return false;
        }
        let mut pages = if is_fork { self.child_of(&from) } else { self.take(s, span, way) };
        for at in &left {
            pages.entry(*at).and_modify(|page| page.cell = from[at].cell);
        }
        self.copies[thread] = Some(Copying { range: Range { span, pages }, left });
        true
    }

    /// Copies a page that others write, if its moment has not come before.
    pub fn copy_page(&mut self, thread: usize, at: u64) {
        let Some(mut copy) = self.copies[thread].take() else { return };
        if let Some(page) = copy.range.pages.get_mut(&at).filter(|_| copy.left.remove(&at)) {
            page.cell = self.new_cell(self.cells[page.cell]);
        }
        self.copies[thread] = Some(copy);
    }

    /// Ends the copy.
    pub fn end_copy(&mut self, thread: usize, op: &Op) -> Expect {
        (0..WINDOW).for_each(|at| self.copy_page(thread, at));
        let Some(Copying { range, .. }) = self.copies[thread].take() else { return Expect::Skip };
        match *op {
            Op::Fork { child, .. } => self.spaces[child] = Some(range.pages),
            Op::Extract { r, .. } => self.ranges[r] = Some(range),
            Op::Pass { to, at, .. } => match self.place(to, range.span.1, at) {
                Ok(target) => return self.put(to, target, range.span, range.pages),
                Err(refused) => return refused,
            },
            _ => return Expect::Skip,
        }
        Expect::Done
    }

    pub(super) fn pass(&mut self, s: usize, span: Span, to: usize, at: At, way: Way) -> Expect {
        let (Some(from), Some(_)) = (&self.spaces[s], &self.spaces[to]) else {
            return Expect::Skip;
        };
        if span.1 == 0 || span.0 + span.1 > WINDOW {
            return Expect::Skip;
        }
        if let At::Fixed(page) | At::Free(page) = at {
            let meets = s == to && page < span.0 + span.1 && span.0 < page + span.1;
            if page + span.1 > WINDOW || meets {
                return Expect::Invalid;
            }
        }
        if !span.pages().any(|page| from.contains_key(&page)) {
            return Expect::NoMapping;
        }
        let target = match self.place(to, span.1, at) {
            Ok(target) => target,
            Err(refused) => return refused,
        };
        let passed = self.take(s, span, way);
        self.put(to, target, span, passed)
    }

    pub(super) fn extract(&mut self, r: usize, s: usize, span: Span, way: Way) -> Expect {
        let Some(from) = self.spaces[s].as_ref().filter(|_| self.ranges[r].is_none()) else {
            return Expect::Skip;
        };
        if span.1 == 0 || span.0 + span.1 > WINDOW {
            return Expect::Skip;
        }
        if !span.pages().any(|page| from.contains_key(&page)) {
            return Expect::NoMapping;
        }
        let pages = self.take(s, span, way);
        self.ranges[r] = Some(Range { span, pages });
        Expect::Done
    }

    pub(super) fn attach_range(&mut self, r: usize, s: usize, at: At) -> Expect {
        let Some(range) = self.ranges[r].clone().filter(|_| self.spaces[s].is_some()) else {
            return Expect::Skip;
        };
        if let At::Fixed(page) | At::Free(page) = at {
            if page + range.span.1 > WINDOW {
                return Expect::Invalid;
            }
        }
        match self.place(s, range.span.1, at) {
            Ok(target) => {
                self.ranges[r] = None;
                self.put(s, target, range.span, range.pages)
            }
            Err(refused) => refused,
        }
    }

    /// Allows at most some rights in a range, for ever.
    pub(super) fn limit(&mut self, r: usize, rights: Rights) -> Expect {
        let Some(range) = &mut self.ranges[r] else { return Expect::Skip };
        for page in range.pages.values_mut() {
            (page.rights, page.max) = (page.rights & rights, page.max & rights);
        }
        Expect::Done
    }

    /// Where so many pages go.
    fn place(&self, s: usize, len: u64, at: At) -> Result<u64, Expect> {
        let Some(space) = &self.spaces[s] else { return Err(Expect::Skip) };
        let free =
            |from: u64| from + len <= WINDOW && (from..from + len).all(|p| !space.contains_key(&p));
        match at {
            At::Fixed(from) => Ok(from),
            At::Hint(from) | At::Free(from) if free(from) => Ok(from),
            At::Free(_) => Err(Expect::NoSpace),
            At::Any | At::Hint(_) => super::space::highest_free(space, len).ok_or(Expect::NoSpace),
        }
    }

    /// What the receiver gets, and what the giver keeps.
    fn take(&mut self, s: usize, span: Span, way: Way) -> Space {
        let Some(mut from) = self.spaces[s].take() else { return Space::new() };
        let mut passed = Space::new();
        for at in span.pages() {
            let Some(page) = from.get(&at).copied() else { continue };
            let mut given = Page { wired: false, ..page };
            match way {
                Way::Share => {}
                Way::Copy => {
                    self.lose_pins(|is| is == Identity::Cell(page.cell));
                    let own = if page.writes == Writes::Cell {
                        self.cells[page.cell]
                    } else {
                        Cell::default()
                    };
                    given.cell = self.new_cell(own);
                    given.writes = Writes::Cell;
                }
                Way::Donate => {
                    from.remove(&at);
                }
                Way::DonateZero => {
                    let cell = self.new_cell(Cell::default());
                    from.insert(
                        at,
                        Page { cell, object: None, writes: Writes::Cell, wired: false, ..page },
                    );
                }
            }
            passed.insert(at, given);
        }
        self.spaces[s] = Some(from);
        passed
    }

    fn put(&mut self, s: usize, target: u64, span: Span, passed: Space) -> Expect {
        let Some(space) = &mut self.spaces[s] else { return Expect::Skip };
        space.retain(|at, _| !(target..target + span.1).contains(at));
        space.extend(passed.into_iter().map(|(at, page)| (target + (at - span.0), page)));
        Expect::Placed(target)
    }
}
