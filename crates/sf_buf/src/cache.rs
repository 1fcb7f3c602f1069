//! Mappings that are kept until their slot is needed.
//!
//! ```text
//!   buckets, by page -> slot -> slot             each shows a page
//!   inactive, oldest <-> slot <-> slot <-> newest      those without a user, which may show one
//! ```
//! One lock guards both. CPUs are told with it held: who finds a mapping may use it at once.

use alloc::vec::Vec;
use machine::order::{Leaf, RawLock};
use machine::{CpuSet, NoMemory, Pa, PAGE_SHIFT};

use crate::{Counts, KernelMap, Reach};

const NIL: u32 = u32::MAX;

/// One page of kernel addresses.
#[derive(Clone)]
struct Slot {
    /// What it shows; none before its first use.
    page: Option<Pa>,
    users: u32,
    /// The CPUs that have no translation of the slot but of `page`.
    cpus: CpuSet,
    /// The next one in its bucket.
    chain: u32,
    /// Its neighbours on the inactive list.
    older: u32,
    newer: u32,
}

pub(crate) struct Cache<R> {
    /// The number of the first slot.
    first: u32,
    slots: u32,
    state: Leaf<R, State>,
}

struct State {
    slots: Vec<Slot>,
    buckets: Vec<u32>,
    oldest: u32,
    newest: u32,
    counts: Counts,
}

impl<R: RawLock> Cache<R> {
    pub(crate) fn new(first: u32, slots: u32) -> Result<Cache<R>, NoMemory> {
        Ok(Cache { first, slots, state: Leaf::new(State::new(slots)?) })
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn open(&self, map: &impl KernelMap, page: Pa, reach: Reach) -> Option<u32> {
        let found = self.state.with(|state| state.open(self.first, map, page, reach))?;
        Some(self.first + found)
    }

    pub(crate) fn close(&self, map: &impl KernelMap, slot: u32) {
        if self.state.with(|state| state.close(slot - self.first)) {
            map.wake();
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.with(|state| state.counts)
    }

    pub(crate) fn audit(&self) {
        self.state.with(|state| state.audit());
    }
}

impl State {
    fn new(count: u32) -> Result<State, NoMemory> {
        let (mut slots, mut buckets) = (Vec::new(), Vec::new());
        // No CPU has a translation of a slot that was never used.
        let slot =
            Slot { page: None, users: 0, cpus: CpuSet::ALL, chain: NIL, older: NIL, newer: NIL };
        slots.try_reserve_exact(count as usize).map_err(|_| NoMemory)?;
        slots.resize(count as usize, slot);
        let lists = count.next_power_of_two() as usize;
        buckets.try_reserve_exact(lists).map_err(|_| NoMemory)?;
        buckets.resize(lists, NIL);
        let counts = Counts::default();
        let mut state = State { slots, buckets, oldest: NIL, newest: NIL, counts };
        (0..count).for_each(|slot| state.retire(slot));
        Ok(state)
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    fn bucket(&self, page: Pa) -> usize {
        let hash = ((page.0 >> PAGE_SHIFT) as u32).wrapping_mul(0x9e37_79b1);
        ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize
    }

    fn find(&self, page: Pa) -> Option<u32> {
        let mut at = *self.buckets.get(self.bucket(page))?;
        while at != NIL && self.slots[at as usize].page != Some(page) {
            at = self.slots[at as usize].chain;
        }
        (at != NIL).then_some(at)
    }

    fn open(&mut self, first: u32, map: &impl KernelMap, page: Pa, reach: Reach) -> Option<u32> {
        let slot = match self.find(page) {
            Some(slot) => {
                self.counts.hits += 1;
                slot
            }
            None => self.replace(first, map, page)?,
        };
        self.counts.opened += 1;
        if self.slot(slot).users == 0 {
            self.unlink(slot);
        }
        self.slot(slot).users += 1;
        self.tell(first, map, slot, reach);
        Some(slot)
    }

    /// The oldest slot without a user shows `page` from now on.
    fn replace(&mut self, first: u32, map: &impl KernelMap, page: Pa) -> Option<u32> {
        let slot = self.oldest;
        if slot == NIL {
            return None;
        }
        if let Some(before) = self.slot(slot).page.replace(page) {
            self.unhash(slot, before);
        }
        let bucket = self.bucket(page);
        self.slot(slot).chain = core::mem::replace(&mut self.buckets[bucket], slot);
        if map.set(first + slot, Some(page)) {
            self.slot(slot).cpus = CpuSet::NONE;
        }
        Some(slot)
    }

    /// Keeps I1: those CPUs that are to use the slot forget what it showed before.
    fn tell(&mut self, first: u32, map: &impl KernelMap, slot: u32, reach: Reach) {
        let here = CpuSet::one(map.cpu());
        if !self.slot(slot).cpus.contains(map.cpu()) {
            map.invalidate(first + slot);
            self.counts.local += 1;
            let known = self.slot(slot).cpus;
            self.slot(slot).cpus = known.union(here);
        }
        if reach == Reach::ThisCpu {
            return;
        }
        let missing = map.cpus().without(self.slot(slot).cpus);
        if !missing.is_empty() {
            map.invalidate_on(first + slot, missing);
            self.counts.remote += missing.iter().count() as u64;
            self.counts.rounds += 1;
        }
        // Those that don't run have no translations.
        self.slot(slot).cpus = CpuSet::ALL;
    }

    /// Says whether the slot has no user any more.
    fn close(&mut self, slot: u32) -> bool {
        self.slot(slot).users -= 1;
        let is_last = self.slot(slot).users == 0;
        if is_last {
            self.retire(slot);
        }
        is_last
    }

    /// Puts a slot at the newer end of the inactive list.
    fn retire(&mut self, slot: u32) {
        let before = core::mem::replace(&mut self.newest, slot);
        (self.slot(slot).older, self.slot(slot).newer) = (before, NIL);
        match before {
            NIL => self.oldest = slot,
            _ => self.slot(before).newer = slot,
        }
    }

    /// Takes a slot out of the inactive list.
    fn unlink(&mut self, slot: u32) {
        let (older, newer) = (self.slot(slot).older, self.slot(slot).newer);
        match older {
            NIL => self.oldest = newer,
            _ => self.slot(older).newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            _ => self.slot(newer).older = older,
        }
    }

    /// Takes a slot out of its bucket.
    fn unhash(&mut self, slot: u32, page: Pa) {
        let bucket = self.bucket(page);
        let next = self.slot(slot).chain;
        if self.buckets[bucket] == slot {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.slot(at).chain != slot {
            at = self.slot(at).chain;
        }
        self.slot(at).chain = next;
    }

    fn audit(&self) {
        let mut seen = alloc::vec![false; self.slots.len()];
        for (bucket, &first) in self.buckets.iter().enumerate() {
            let mut at = first;
            while at != NIL {
                let slot = &self.slots[at as usize];
                assert!(!core::mem::replace(&mut seen[at as usize], true), "slot {at} twice");
                let is_its = slot.page.is_some_and(|page| self.bucket(page) == bucket);
                assert!(is_its, "slot {at} is in another page's bucket");
                at = slot.chain;
            }
        }
        for (slot, seen) in self.slots.iter().zip(seen) {
            assert_eq!(slot.page.is_some(), seen, "what shows a page is found by it");
        }
        let (mut at, mut before, mut idle) = (self.oldest, NIL, 0);
        while at != NIL {
            let slot = &self.slots[at as usize];
            assert_eq!((slot.users, slot.older), (0, before), "I3: slot {at}");
            (before, at, idle) = (at, slot.newer, idle + 1);
        }
        assert_eq!(self.newest, before, "the list's end");
        assert_eq!(idle, self.slots.iter().filter(|slot| slot.users == 0).count(), "I3");
    }
}
