//! One CPU's translation cache: filled by accesses, emptied by flushes that name an entry, by
//! nothing else.
//!
//! An entry that the tables no longer imply is stale. That is lawful between a lowering and the
//! flush that reaches it; `audit` is for the moments in between operations, when it never is.

use std::collections::BTreeMap;

use machine::shootdown::Stale;
use machine::{PageNo, Prot, Va, VaRange, PAGE_SHIFT};

use crate::tables::{Spot, Tables, MODIFIED};

/// A cached translation. `dirty`: a store went through it, so the next one sets no modified bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) page: PageNo,
    pub(crate) prot: Prot,
    pub(crate) dirty: bool,
}

#[derive(Default)]
pub(crate) struct Tlb {
    entries: BTreeMap<Spot, Entry>,
}

impl Tlb {
    pub(crate) fn get(&self, spot: Spot) -> Option<Entry> {
        self.entries.get(&spot).copied()
    }

    pub(crate) fn set(&mut self, spot: Spot, entry: Entry) {
        self.entries.insert(spot, entry);
    }

    pub(crate) fn forget(&mut self, spot: Spot) -> bool {
        self.entries.remove(&spot).is_some()
    }

    /// Forgets a range of one space, and says how many entries went.
    pub(crate) fn forget_range(&mut self, stale: &Stale) -> u64 {
        let first = stale.range.start.0 >> PAGE_SHIFT;
        let end =
            stale.range.end.page_ceil().map_or(u64::MAX >> PAGE_SHIFT, |va| va.0 >> PAGE_SHIFT);
        let doomed: Vec<Spot> =
            self.entries.range((stale.space, first)..(stale.space, end)).map(|(s, _)| *s).collect();
        for spot in &doomed {
            self.entries.remove(spot);
        }
        doomed.len() as u64
    }

    /// Forgets a range of every space, and says how many entries went.
    pub(crate) fn forget_everywhere(&mut self, range: VaRange) -> u64 {
        let before = self.entries.len();
        self.entries.retain(|&(_, vpn), _| !range.contains(Va(vpn << PAGE_SHIFT)));
        (before - self.entries.len()) as u64
    }

    /// Forgets everything, and says how much that was.
    pub(crate) fn forget_all(&mut self) -> u64 {
        std::mem::take(&mut self.entries).len() as u64
    }

    /// Whether any entry is of this space.
    pub(crate) fn knows_space(&self, space: u64) -> bool {
        self.entries.range((space, 0)..=(space, u64::MAX)).next().is_some()
    }

    /// Whether any entry leads to this page.
    pub(crate) fn knows_page(&self, page: PageNo) -> bool {
        self.entries.values().any(|entry| entry.page == page)
    }

    /// Finds an entry that the tables don't imply, or a dirty one whose page isn't modified.
    pub(crate) fn audit(&self, tables: &Tables) -> Result<(), String> {
        for (spot, entry) in &self.entries {
            if !implied(tables, *spot, *entry) {
                let (space, vpn) = spot;
                let now = tables.get(*spot);
                return Err(format!(
                    "space {space} at {vpn:#x}000 has {entry:?}, but the tables say {now:?}"
                ));
            }
            if entry.dirty && tables.bits(entry.page) & MODIFIED == 0 {
                return Err(format!("{:?} may be written unnoticed through {entry:?}", entry.page));
            }
        }
        Ok(())
    }
}

/// Whether the tables allow all that the entry allows.
pub(crate) fn implied(tables: &Tables, spot: Spot, entry: Entry) -> bool {
    tables.get(spot).is_some_and(|pte| pte.page == entry.page && pte.prot.contains(entry.prot))
}
