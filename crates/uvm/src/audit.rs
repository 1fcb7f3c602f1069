//! Recounts everything and compares it with what is stored.
//!
//! Given all spaces and all objects of an instance, at a moment when nothing runs, an audit walks
//! every map and says which of the stated invariants doesn't hold: `map` I1 to I5, `amap` I1,
//! `anon` I1 and I2, `object` I1 to I3, `writers` I1, `swap` I1, `loan` I1 and I2, and
//! `machine::frames`' own. Tests run it after every step. Loans are in the hands of the host:
//! [`Uvm::audit_loans`] counts them when it is shown all.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::page::{Class, Owner};
use crate::page::{PageFlags, Place};
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, PageNo, Pages, Pmap, Prot, Unlocked};

use crate::amap::borrowed::Content;
use crate::amap::Amap;
use crate::anon::AnonNo;
use crate::map::{Entry, Writes};
use crate::object::Pager;
use crate::object::Stored;
use crate::{owed, LoanedPage, Slot, Space, Uvm};

/// What doesn't hold.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let at = uvm.map(held, space, &MapRequest::zero(Pages(1)))?;
/// store(uvm, space, at, b"x")?;
/// let forgotten = uvm.audit(held, &[], &[]).unwrap_err();
/// assert!(!forgotten.to_string().is_empty(), "a page belongs to no space that was named");
/// # Ok(()) });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditError(pub String);

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! ensure {
    ($holds:expr, $($say:tt)*) => {
        if !$holds {
            return Err(AuditError(format!($($say)*)));
        }
    };
}

/// How many entries refer to each slot of an amap.
type SlotRefs = BTreeMap<u64, u32>;

/// By address of the amap: itself, and how many entries refer to each slot.
type Amaps<M> = BTreeMap<usize, (Arc<Amap<M>>, SlotRefs)>;

/// What the walk over all maps has counted.
#[derive(Default)]
struct Count {
    /// By object id: references from entries.
    objects: BTreeMap<u64, usize>,
    /// By object id: entries whose stores may reach the object.
    writers: BTreeMap<u64, usize>,
    /// The holder of each slot of swap, in words.
    slots: BTreeMap<Slot, String>,
    /// Pages that slots have on loan, and how often.
    borrowed: BTreeMap<PageNo, u32>,
}

impl<M: Machine> Uvm<M> {
    /// Checks every invariant, and that this program has dropped nothing that has to be given back.
    /// `spaces` are all spaces; `objects` are all objects that the host keeps a handle on.
    ///
    /// # Errors
    /// A sentence that names the first thing found wrong.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)? as Arc<dyn Pager<SoftMachine>>;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Private);
    /// store(uvm, space, uvm.map(held, space, &request)?, b"x")?;
    /// uvm.audit(held, &[space], &[file])?;
    /// # Ok(()) });
    /// ```
    pub fn audit(
        &self,
        held: &mut Unlocked<'_>,
        spaces: &[&Space<M>],
        objects: &[Arc<dyn Pager<M>>],
    ) -> Result<(), AuditError> {
        if let Some(dropped) = owed::dropped().next() {
            return Err(AuditError(format!("{dropped}, and not given back")));
        }
        let mut count = self.audit_spaces(held, spaces)?;
        self.audit_ownerless(held, &mut count)?;
        for object in objects.iter().map(|pager| pager.object()) {
            let (refs, id) = (object.references(), object.id());
            let entries = count.objects.get(&id).copied().unwrap_or(0);
            ensure!(
                refs > entries,
                "object {id} counts {refs}, {entries} entries and a handle refer"
            );
        }
        self.audit_objects(held, objects, &mut count)?;
        let (used, are) = (self.swap().used() as usize, count.slots.len());
        ensure!(are == used, "{used} slots are taken, {are} held");
        self.frames().audit(held).map_err(|e| AuditError(e.into()))
    }

    /// Checks all spaces and their amaps, and counts what they hold.
    fn audit_spaces(
        &self,
        held: &mut Unlocked<'_>,
        spaces: &[&Space<M>],
    ) -> Result<Count, AuditError> {
        let dropped = self.dropped_spaces.count();
        ensure!(dropped == 0, "{dropped} spaces were dropped, and not destroyed");
        let (mut count, mut amaps) = (Count::default(), Amaps::new());
        for space in spaces {
            let mapped = self.audit_map(held, space, (&mut count, &mut amaps))?;
            let resident = self.mem().pmap().resident(&space.pmap);
            ensure!(
                mapped == resident,
                "{resident} translations, of which {mapped} lie in entries"
            );
        }
        self.audit_amaps(held, &mut count, &amaps)?;
        Ok(count)
    }

    /// Checks a space's map and says how many translations lie in its entries.
    fn audit_map(
        &self,
        held: &mut Unlocked<'_>,
        space: &Space<M>,
        (count, amaps): (&mut Count, &mut Amaps<M>),
    ) -> Result<usize, AuditError> {
        let map = &space.map;
        let (tree, mut h) = map.lock(self.mem(), held, map.bounds);
        tree.check().map_err(|e| AuditError(e.into()))?;
        let mut end = map.bounds.start;
        let mut mapped = 0;
        tree.try_each(map.bounds, &mut |e| {
            let at = e.range;
            ensure!(
                !at.is_empty() && at.start >= end && at.end <= map.bounds.end,
                "entry {at:?} overlaps"
            );
            ensure!(
                at.start.is_page_aligned() && at.end.is_page_aligned(),
                "entry {at:?} is not aligned"
            );
            ensure!(e.max_prot.contains(e.prot), "entry {at:?} allows more than its most");
            ensure!(
                e.writes != Writes::Shared || e.object.is_some() || e.amap.is_some(),
                "entry {at:?}: no layer"
            );
            ensure!(
                e.writes != Writes::CopyOnWrite || e.amap.is_some(),
                "entry {at:?} copies into no amap"
            );
            end = at.end;
            if let Some(aref) = &e.amap {
                let key = Arc::as_ptr(&aref.amap) as usize;
                let (_, refs) =
                    amaps.entry(key).or_insert_with(|| (aref.amap.clone(), BTreeMap::new()));
                aref.range(e.len()).for_each(|slot| *refs.entry(slot).or_insert(0) += 1);
            }
            if let Some(oref) = &e.object {
                *count.objects.entry(oref.pager.object().id()).or_insert(0) += 1;
            }
            if let Some(object) = e.writes_to() {
                *count.writers.entry(object.id()).or_insert(0) += 1;
            }
            mapped += self.audit_translations(&mut h, space, e)?;
            Ok(())
        })?;
        Ok(mapped)
    }

    /// Every translation in an entry shows the page that its layers say, and allows no more than it
    /// may.
    fn audit_translations(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        e: &Entry<M>,
    ) -> Result<usize, AuditError> {
        let mut mapped = 0;
        for va in e.range.iter_pages() {
            let Some((page, prot)) = self.mem().pmap().extract(&space.pmap, va) else {
                continue;
            };
            mapped += 1;
            let (shown, may_write) = self.shown(held, e, va);
            // A pager may show pages of its own, which are in no table.
            let chosen =
                shown.is_none() && e.object.is_some() && self.frames().owner(page) == Owner::Kernel;
            ensure!(
                shown == Some(page) || chosen,
                "{va:?} maps {page:?}, but its layers show {shown:?}"
            );
            ensure!(e.prot.contains(prot), "{va:?} allows {prot:?}, its entry {:?}", e.prot);
            ensure!(
                may_write || !prot.contains(Prot::WRITE),
                "{va:?} can be written, and must be copied first"
            );
            ensure!(
                !e.wired || self.frames().hold_count(page) > 0,
                "{va:?} is wired, its page is not"
            );
            let loaned = self.frames().loans(page) != 0;
            ensure!(
                !loaned || !prot.contains(Prot::WRITE),
                "{va:?} can be written, and {page:?} is loaned"
            );
            if let (Owner::Object(id), true) =
                (self.frames().owner(page), prot.contains(Prot::WRITE))
            {
                let own = e.object.as_ref().filter(|oref| oref.pager.object().name() == id);
                let is_marked = own.is_none_or(|oref| {
                    oref.pager.object().lock(held).0.is_marked(Pages(self.frames().index(page)))
                });
                ensure!(
                    is_marked,
                    "{va:?} can be written, in a leaf of object {id} without a mark"
                );
            }
        }
        Ok(mapped)
    }

    /// The page that an entry shows at an address, if it is resident, and whether it may be written
    /// in place.
    fn shown(
        &self,
        held: &mut Held<'_, order::Map>,
        e: &Entry<M>,
        va: machine::Va,
    ) -> (Option<PageNo>, bool) {
        if let Some(aref) = &e.amap {
            let (body, mut h) = aref.amap.body.lock(held);
            if let Some(number) = body.slots.get(e.slot(aref, va)) {
                let no = match Content::of(number) {
                    Content::Anon(no) => no,
                    Content::Borrowed(page) => return (Some(page), false),
                };
                let (anon, _) = self.anons.get(no).lock(&mut h);
                let shared = body.slots.is_shared(e.slot(aref, va));
                return (anon.page(), anon.refs() == 1 && !shared && e.writes != Writes::NeedsCopy);
            }
        }
        let Some(oref) = &e.object else { return (None, false) };
        let (body, _) = oref.pager.object().lock(held);
        (body.page(e.index(oref, va)), e.writes == Writes::Shared)
    }

    fn audit_amaps(
        &self,
        held: &mut Unlocked<'_>,
        count: &mut Count,
        amaps: &Amaps<M>,
    ) -> Result<(), AuditError> {
        let mut anons: BTreeMap<AnonNo, u32> = BTreeMap::new();
        let mut leaves = BTreeMap::new();
        for (key, (amap, refs)) in amaps {
            let (body, mut h) = amap.body.lock(held);
            let covered: usize =
                body.cover.runs().map(|(run, _)| (run.end - run.start) as usize).sum();
            ensure!(
                covered == refs.len(),
                "an amap counts {covered} slots, entries refer to {}",
                refs.len()
            );
            for (run, n) in body.cover.runs() {
                for slot in run {
                    ensure!(
                        refs.get(&slot) == Some(&n),
                        "slot {slot} is counted {n}, referred {:?}",
                        refs.get(&slot)
                    );
                }
            }
            let found = match body.borrower {
                0 => None,
                name => self.borrowers.next(&mut h, name),
            };
            let known = found.is_some_and(|(_, found)| Arc::ptr_eq(&found, amap));
            ensure!(
                known == (body.borrower != 0),
                "an amap is not in the table of those with pages on loan"
            );
            for (slot, number) in body.slots.range(0..u64::MAX >> 1) {
                let shared = body.slots.is_shared(slot);
                let no = match Content::of(number) {
                    Content::Anon(no) => no,
                    Content::Borrowed(page) => {
                        let alone = !shared && refs.get(&slot) == Some(&1);
                        ensure!(
                            alone,
                            "{page:?} is on loan in slot {slot}, which is not one entry's alone"
                        );
                        let found = known && body.borrowed.contains(&slot);
                        ensure!(found, "{page:?} is on loan in slot {slot}, unknown");
                        ensure!(!self.is_zero_page(page), "slot {slot} has zeroes on loan");
                        ensure!(
                            self.frames().loans(page) != 0,
                            "slot {slot} has {page:?}, which isn't loaned"
                        );
                        *count.borrowed.entry(page).or_insert(0) += 1;
                        continue;
                    }
                };
                ensure!(
                    body.has_left() || refs.contains_key(&slot),
                    "slot {slot} holds an anon that no entry can reach"
                );
                // A leaf that hangs in several amaps counts once.
                if leaves.entry(body.slots.leaf_id(slot)).or_insert(key) == &key {
                    *anons.entry(no).or_insert(0) += 1;
                }
            }
        }
        let counted = self.anons.borrowed.load(Relaxed);
        let borrowed = count.borrowed.values().sum::<u32>() as usize;
        ensure!(counted == borrowed, "{counted} slots count as on loan, {borrowed} are");
        for (&no, &refs) in &anons {
            let (anon, _) = self.anons.get(no).lock(held);
            ensure!(
                anon.refs() == refs,
                "anon {no} counts {}, leaves that hold it {refs}",
                anon.refs()
            );
            let (page, slot) = (anon.page(), anon.swap);
            drop(anon);
            ensure!(page.is_some() || slot.is_some(), "anon {no} has neither page nor slot");
            if let Some(page) = page {
                self.audit_anon_page(no, page, refs)?;
                ensure!(slot != Some(Slot::LOST), "anon {no} has {page:?} and lost it");
            }
            if let Some(slot) = slot.filter(|slot| slot.is_place()) {
                self.audit_slot(held, count, slot, format!("anon {no}"))?;
            }
        }
        ensure!(
            anons.len() == self.anons(),
            "{} anons in use, {} in reach",
            self.anons(),
            anons.len()
        );
        Ok(())
    }

    fn audit_anon_page(&self, no: AnonNo, page: PageNo, refs: u32) -> Result<(), AuditError> {
        let is_marked = self.frames().is_marked_shared(page);
        ensure!(
            is_marked == (refs > 1),
            "{page:?} of anon {no}, which {refs} leaves hold, is marked: {is_marked}"
        );
        let (owner, place) = (self.frames().owner(page), self.frames().place(page));
        ensure!(owner == Owner::Anon(no.get()), "{page:?} of anon {no} is owned by {owner:?}");
        let busy = self.frames().flags(page).contains(PageFlags::BUSY);
        ensure!(!busy || place == Place::Nowhere, "{page:?} is busy and on {place:?}");
        let wired = self.frames().hold_count(page) != 0;
        ensure!(busy || wired || place != Place::Nowhere, "{page:?} of anon {no} is on no queue");
        Ok(())
    }

    /// A slot has one holder, and is taken.
    fn audit_slot(
        &self,
        held: &mut Unlocked<'_>,
        count: &mut Count,
        slot: Slot,
        holder: String,
    ) -> Result<(), AuditError> {
        ensure!(self.swap().is_taken(held, slot), "{holder} holds {slot:?}, which is free");
        if let Some(other) = count.slots.insert(slot, holder) {
            let holder = &count.slots[&slot];
            return Err(AuditError(format!("{slot:?} is held by {other} and by {holder}")));
        }
        Ok(())
    }

    /// Counts loans: `loan` is all that the host has on loan from this instance, `spaces` as for
    /// [`audit`](Self::audit).
    ///
    /// # Errors
    /// A sentence that names a page that is loaned more or less often than its record says, or that
    /// has no holder.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 2)?;
    /// let loan = uvm.loan_to_kernel(held, space, range)?;
    /// uvm.audit_loans(held, &[space], loan.pages())?;
    /// uvm.return_loan(held, loan).map_err(|(why, _)| why)?;
    /// # Ok(()) });
    /// ```
    pub fn audit_loans<'a>(
        &self,
        held: &mut Unlocked<'_>,
        spaces: &[&Space<M>],
        loan: impl IntoIterator<Item = &'a LoanedPage>,
    ) -> Result<(), AuditError> {
        let mut loans = self.audit_spaces(held, spaces)?.borrowed;
        let counted = loan.into_iter().filter(|loan| !self.is_zero_page(loan.page()));
        counted.for_each(|loan| *loans.entry(loan.page()).or_insert(0) += 1);
        for page in self.all_pages() {
            let (counts, are) = (self.frames().loans(page), loans.get(&page).copied().unwrap_or(0));
            ensure!(counts == are, "{page:?} counts {counts} loans, and {are} are there");
        }
        Ok(())
    }

    fn all_pages(&self) -> impl Iterator<Item = PageNo> {
        (0..self.frames().numbers() as u32).map(PageNo)
    }

    /// A page that its owner has disowned is held by a borrower or by I/O; what was left to I/O
    /// holds its slot.
    fn audit_ownerless(
        &self,
        held: &mut Unlocked<'_>,
        count: &mut Count,
    ) -> Result<(), AuditError> {
        for page in self.all_pages() {
            let (owner, place) = (self.frames().owner(page), self.frames().place(page));
            if self.frames().is_disowned(page) {
                let holds = self.frames().hold_count(page);
                ensure!(
                    matches!(owner, Owner::Kernel | Owner::Orphan) && holds != 0,
                    "{page:?} was disowned, is {owner:?}'s and held {holds} times"
                );
                let seen = self.mem().pmap().is_mapped(page) && !count.borrowed.contains_key(&page);
                ensure!(!seen, "{page:?} was disowned, and is mapped where no slot has it on loan");
                ensure!(place == Place::Nowhere, "{page:?} was disowned on {place:?}");
            }
            if owner == Owner::Orphan {
                let is_busy = self.frames().flags(page).contains(PageFlags::BUSY);
                ensure!(is_busy, "{page:?} is an orphan and idle");
                if let Some(slot) = self.frames().slot(page) {
                    self.audit_slot(held, count, slot, format!("orphan {page:?}"))?;
                }
            }
        }
        Ok(())
    }

    /// Checks the tables of all objects, those too that only mappings hold.
    fn audit_objects(
        &self,
        held: &mut Unlocked<'_>,
        objects: &[Arc<dyn Pager<M>>],
        count: &mut Count,
    ) -> Result<(), AuditError> {
        let mut all: BTreeMap<u64, Arc<dyn Pager<M>>> =
            objects.iter().map(|pager| (pager.object().id(), pager.clone())).collect();
        let mut next = 0;
        while let Some((name, pager)) = self.next_pager(held, next) {
            all.insert(pager.object().id(), pager);
            next = name + 1;
        }
        for (id, pager) in all {
            let (counted, writers) =
                (pager.object().writers(), count.writers.get(&id).copied().unwrap_or(0));
            ensure!(
                counted == writers,
                "object {id} counts {counted} writers, {writers} entries are"
            );
            let mut slots = Vec::new();
            self.audit_pages(held, &*pager, &mut slots)?;
            for (index, slot) in slots {
                self.audit_slot(held, count, slot, format!("page {} of object {id}", index.0))?;
            }
        }
        Ok(())
    }

    /// Checks an object's table, and collects the places on swap that it holds.
    fn audit_pages(
        &self,
        held: &mut Unlocked<'_>,
        pager: &dyn Pager<M>,
        slots: &mut Vec<(Pages, Slot)>,
    ) -> Result<(), AuditError> {
        let id = pager.object().id();
        let (body, _) = pager.object().lock(held);
        let (mut stored, mut swapped) = (0, 0);
        for (index, what) in body.contents(0..u64::MAX >> 1) {
            stored += 1;
            ensure!(index < body.length(), "object {id} holds page {} past its end", index.0);
            let page = match what {
                Stored::Page(page) => page,
                Stored::Slot(slot) => {
                    swapped += 1;
                    slots.extend(slot.is_place().then_some((index, slot)));
                    continue;
                }
            };
            slots.extend(self.frames().slot(page).map(|slot| (index, slot)));
            let owner = (self.frames().owner(page), self.frames().index(page));
            ensure!(
                owner == (Owner::Object(pager.object().name()), index.0),
                "{page:?} of object {id} is owned by {owner:?}"
            );
            let is_dirty = self.frames().class(page) != Class::Anon && !self.mem().is_clean(page);
            ensure!(
                !is_dirty || body.is_marked(index),
                "{page:?} of object {id} is dirty in a leaf without a mark"
            );
        }
        let counts = body.counts();
        ensure!(
            counts == (stored, swapped),
            "object {id} counts {counts:?}, holds {:?}",
            (stored, swapped)
        );
        Ok(())
    }
}
