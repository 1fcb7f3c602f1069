//! Page tables of all spaces, the reverse map, and each page's referenced and modified bits: plain
//! data without locks.
//!
//! I1: `reverse[page]` names a (space, page of addresses) exactly if that space's table maps it to
//! `page`. I2: a space's `tables` counts, for each 512 pages of addresses, the mappings there; a
//! count of zero is kept until
//!     `remove` empties it, as a port keeps a table page.
//! I3: `held_by` holds every CPU whose TLB has an entry of the space.

use std::collections::BTreeMap;

use machine::{CpuSet, PageNo, Prot, Va, VaRange, PAGE_SHIFT};

/// Pages of addresses under one table page.
const TABLE_SPAN: u64 = 512;

/// Referenced, as a page's bit.
pub(crate) const REFERENCED: u8 = 1;
/// Modified, as a page's bit.
pub(crate) const MODIFIED: u8 = 2;

/// A page of addresses in a space.
pub(crate) type Spot = (u64, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pte {
    pub(crate) page: PageNo,
    pub(crate) prot: Prot,
    pub(crate) wired: bool,
}

#[derive(Default)]
pub(crate) struct SpaceTables {
    pub(crate) ptes: BTreeMap<u64, Pte>,
    tables: BTreeMap<u64, u32>,
    pub(crate) held_by: CpuSet,
}

pub(crate) struct Tables {
    pub(crate) spaces: BTreeMap<u64, SpaceTables>,
    pub(crate) reverse: Vec<Vec<Spot>>,
    bits: Vec<u8>,
}

impl Tables {
    pub(crate) fn new(pages: usize) -> Tables {
        Tables { spaces: BTreeMap::new(), reverse: vec![Vec::new(); pages], bits: vec![0; pages] }
    }

    pub(crate) fn space(&self, id: u64) -> &SpaceTables {
        self.spaces.get(&id).expect("the space is destroyed")
    }

    pub(crate) fn space_mut(&mut self, id: u64) -> &mut SpaceTables {
        self.spaces.get_mut(&id).expect("the space is destroyed")
    }

    pub(crate) fn get(&self, (space, vpn): Spot) -> Option<Pte> {
        self.spaces.get(&space)?.ptes.get(&vpn).copied()
    }

    /// Whether a mapping at the spot needs a table page that isn't there.
    pub(crate) fn needs_table(&self, (space, vpn): Spot) -> bool {
        !self.space(space).tables.contains_key(&(vpn / TABLE_SPAN))
    }

    /// Maps, over whatever was there.
    pub(crate) fn set(&mut self, spot: Spot, pte: Pte) {
        let (space, vpn) = spot;
        let tables = self.space_mut(space);
        let old = tables.ptes.insert(vpn, pte);
        let count = tables.tables.entry(vpn / TABLE_SPAN).or_insert(0);
        match old {
            None => *count += 1,
            Some(old) if old.page == pte.page => return,
            Some(old) => self.forget_reverse(old.page, spot),
        }
        self.reverse[pte.page.0 as usize].push(spot);
    }

    /// Lowers an existing mapping's rights.
    pub(crate) fn set_prot(&mut self, (space, vpn): Spot, prot: Prot) {
        if let Some(pte) = self.space_mut(space).ptes.get_mut(&vpn) {
            pte.prot = prot;
        }
    }

    /// Makes the first wired mapping in a range pageable; where it is and what it maps.
    pub(crate) fn unwire(&mut self, space: u64, range: VaRange) -> Option<(Va, PageNo)> {
        if range.is_empty() {
            return None;
        }
        let vpns = (range.start.0 >> PAGE_SHIFT)..(range.end.0 >> PAGE_SHIFT);
        let (vpn, pte) = self.space_mut(space).ptes.range_mut(vpns).find(|(_, pte)| pte.wired)?;
        pte.wired = false;
        Some((Va(vpn << PAGE_SHIFT), pte.page))
    }

    /// Unmaps; the table page stays.
    pub(crate) fn clear(&mut self, spot: Spot) -> Option<Pte> {
        let (space, vpn) = spot;
        let tables = self.space_mut(space);
        let old = tables.ptes.remove(&vpn)?;
        *tables.tables.get_mut(&(vpn / TABLE_SPAN)).expect("a mapping has its table") -= 1;
        self.forget_reverse(old.page, spot);
        Some(old)
    }

    /// Drops the table pages that no mapping needs.
    pub(crate) fn drop_empty_tables(&mut self, space: u64) {
        self.space_mut(space).tables.retain(|_, count| *count != 0);
    }

    pub(crate) fn bits(&self, page: PageNo) -> u8 {
        self.bits[page.0 as usize]
    }

    pub(crate) fn set_bits(&mut self, page: PageNo, bits: u8) {
        self.bits[page.0 as usize] |= bits;
    }

    /// Clears a bit and says whether it was set.
    pub(crate) fn clear_bit(&mut self, page: PageNo, bit: u8) -> bool {
        let bits = &mut self.bits[page.0 as usize];
        let was = *bits & bit != 0;
        *bits &= !bit;
        was
    }

    fn forget_reverse(&mut self, page: PageNo, spot: Spot) {
        self.reverse[page.0 as usize].retain(|s| *s != spot);
    }

    /// Recounts I1 and I2.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut mapped = 0;
        for (&id, space) in &self.spaces {
            let mut counts = BTreeMap::new();
            for (&vpn, pte) in &space.ptes {
                if !self.reverse[pte.page.0 as usize].contains(&(id, vpn)) {
                    return Err(format!(
                        "{:?} doesn't know its mapping in space {id} at {vpn:#x}",
                        pte.page
                    ));
                }
                *counts.entry(vpn / TABLE_SPAN).or_insert(0u32) += 1;
                mapped += 1;
            }
            if space.tables.iter().any(|(t, n)| counts.get(t).copied().unwrap_or(0) != *n) {
                return Err(format!("space {id} counts its mappings wrongly"));
            }
        }
        if self.reverse.iter().map(Vec::len).sum::<usize>() != mapped {
            return Err("the reverse map knows mappings that no table has".into());
        }
        Ok(())
    }
}
