//! A fork of what a program has made large, or a copy of a large range, in steps.
//!
//! ```text
//!   claim the map  ->  private memory read-only, on every CPU  ->  the child's entries  ->  what the fork copies  ->  let others in
//! ```
//! The child gets the memory of one moment, that at which the last translation lost the right to
//! write: a store to memory that is read-only already waits for the fork's end, as do mapping and
//! unmapping. So a store that is in the child has all those before it, of all threads, in the child
//! too. Between two steps nothing is locked and other processes run.
//!
//! A fork that fails half-way leaves translations read-only, which costs faults, and entries that
//! wait to copy what no other space has. It is not waited for memory here: the attempt ends, and
//! with it the claim.

use crate::page::Gather;
use crate::page::PageFlags;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot, Unlocked, Va, VaRange};

use crate::amap::borrowed::Content;
use crate::amap::slots::{LEAF, SET_BYTES};
use crate::amap::{ARef, LOOKS_AT_ONCE};
use crate::anon::{many_bytes, AnonBody, AnonNo};
use crate::fork::eager;
use crate::fork::Fork;
use crate::map::adopt::AT_ONCE;
use crate::map::lock::TreeGuard;
use crate::map::steps::{first_part, part_of_few_slots, Lock, WIRED};
use crate::map::tree::{built_bytes, Taken, Tree};
use crate::map::{Entry, Inherit, Writes};
use crate::{Space, Uvm};

/// Entries of a fork in one piece.
pub(super) const ENTRIES_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 2 } else { 512 };
/// Translations of a fork or copy in one piece, about.
const TRANSLATIONS_AT_ONCE: usize = 32768;
/// Heap bytes that a step begins with.
const STEP_BYTES: usize = 48 * 1024;

/// How far entries were made.
pub(crate) enum MadeUpTo {
    All,
    /// Up to an entry that needs more heap, or, if this says so, more than one step.
    Before(Va, bool),
    Failed(NoMemory),
}

/// Which resident pages a copy in steps copies at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// Those that are locked, in any space.
    Wired,
}

/// An entry that is to be prepared before a child's is made of it.
struct Unprepared<M: Machine> {
    range: VaRange,
    aref: ARef<M>,
    /// It is locked: its pages are copied at once.
    is_wired_private: bool,
    /// The child's layer takes more than one step to make.
    is_large: bool,
    inherit: Inherit,
    writes: Writes,
}

impl<M: Machine> Fork<'_, M> {
    fn inherit_of(&self, e: &Entry<M>) -> Inherit {
        self.forced_inherit.unwrap_or(e.inherit)
    }

    /// Whether an entry's pages are copied at once.
    fn is_wired_private(&self, e: &Entry<M>) -> bool {
        e.wired
            && self.inherit_of(e) == Inherit::Copy
            && e.writes != Writes::Shared
            && e.amap.is_some()
    }

    /// Whether an entry is to be prepared: it is locked, or its slots may hold pages on loan.
    fn needs_preparing(&self, e: &Entry<M>) -> bool {
        self.is_wired_private(e)
            || e.amap.as_ref().is_some_and(|aref| aref.amap.borrows.load(Relaxed))
    }

    /// Makes the entries in steps. The parent's map is claimed.
    pub(crate) fn make_in_steps(&mut self, held: &mut Unlocked<'_>) -> Result<(), NoMemory> {
        let (uvm, parent) = (self.uvm, self.parent);
        self.write_protect_private(held);
        self.state.is_write_protected = true;
        let result = self.make_all(held).and_then(|()| {
            uvm.mem().reserve_heap(eager::ALL_BYTES)?;
            let (tree, mut h) = parent.map.lock_claimed(held);
            self.copy_rewritten(&mut h, &tree);
            Ok(())
        });
        if let Some((copy, len, _)) = self.state.next_amap.take() {
            uvm.release_amap(held, &copy, len, self.down);
        }
        self.down.perform(uvm.frames(), uvm.mem(), held);
        uvm.restore_write_wired(held, parent, self.range);
        result
    }

    /// Takes the right to write from the private memory that is copied.
    fn write_protect_private(&self, held: &mut Unlocked<'_>) {
        let (space, pmap) = (self.parent, self.uvm.mem().pmap());
        self.uvm.in_steps(held, space, (self.range, Lock::Claimed), |map, rest, down| {
            let part = map.part_to_lower(rest);
            map.tree.each(part, |e| {
                if e.amap.is_some()
                    && e.writes == Writes::CopyOnWrite
                    && self.inherit_of(e) == Inherit::Copy
                {
                    let (own, prot) = (e.range.intersect(part), e.prot.without_write());
                    pmap.protect(map.held, &space.pmap, own, prot, down);
                }
            });
            part.end
        });
    }

    fn make_all(&mut self, held: &mut Unlocked<'_>) -> Result<(), NoMemory> {
        let (mut rest, mut reserve) = (self.range, STEP_BYTES);
        while !rest.is_empty() {
            let first = match self.state.next_amap {
                None => self.first_unprepared(held, rest),
                Some(_) => None,
            };
            if let Some(first) = first {
                let (uvm, parent) = (self.uvm, self.parent);
                uvm.by_parts(held, first.range, |held, rest| {
                    uvm.mem().reserve_heap(many_bytes(AT_ONCE))?;
                    let end = {
                        let (tree, mut h) = parent.map.lock_claimed(held);
                        uvm.adopt_some(&mut h, parent, &tree, rest)?
                    };
                    uvm.pause_or_give_up(held)?;
                    Ok::<_, NoMemory>(end)
                })?;
                self.prepare(held, &first)?;
            }
            self.uvm.mem().reserve_heap(reserve)?;
            let made = {
                let (mut tree, mut h) = self.parent.map.lock_claimed(held);
                let part = first_part(&tree, rest);
                let mut need = built_bytes::<Entry<M>>(0) + tree.splice_bytes();
                let most = (reserve, LOOKS_AT_ONCE);
                let end = self.make_entries(&mut h, &mut tree, part, most, &mut need);
                // Under the lock, as for a fork in one piece.
                self.down.flush(self.uvm.mem().pmap());
                match end {
                    MadeUpTo::Failed(e) => Err(e),
                    // The first entry here needs more.
                    MadeUpTo::Before(va, _) if va == rest.start => Ok((va, need)),
                    MadeUpTo::Before(va, _) => Ok((va, STEP_BYTES)),
                    MadeUpTo::All => Ok((part.end, STEP_BYTES)),
                }
            };
            self.down.perform(self.uvm.frames(), self.uvm.mem(), held);
            (rest.start, reserve) = made?;
            self.uvm.pause_or_give_up(held)?;
        }
        Ok(())
    }

    /// Makes the amap of an entry's copy, if that is locked, or has many leaves or runs, or pages
    /// that another space has locked.
    fn prepare(&mut self, held: &mut Unlocked<'_>, first: &Unprepared<M>) -> Result<(), NoMemory> {
        let uvm = self.uvm;
        let Unprepared { range, aref, inherit, .. } = first;
        let (len, mut writes, mut aref) = (range.pages(), first.writes, aref.clone());
        if first.is_wired_private {
            let copy = uvm.copy_in_steps(held, &aref, len, Copied::All)?;
            self.state.next_amap = Some((copy, len, Writes::CopyOnWrite));
            return Ok(());
        }
        if !first.is_large {
            return Ok(());
        }
        if *inherit == Inherit::Copy && writes == Writes::CopyOnWrite {
            // Others write to it too, or its amap has many runs elsewhere: leaves serve both.
            let copy = match uvm.anons.was_wired.load(Relaxed) {
                true => uvm.copy_in_steps(held, &aref, len, Copied::Wired)?,
                false => uvm.share_leaves_in_steps(held, &aref, len)?,
            };
            copy.amap.is_unprotected.store(true, Relaxed);
            self.state.others_can_write = true;
            self.state.next_amap = Some((copy, len, writes));
            return Ok(());
        }
        if *inherit == Inherit::Share && writes == Writes::NeedsCopy {
            aref = uvm.copy_amap_claimed(held, self.parent, *range, &aref)?;
            writes = Writes::CopyOnWrite;
        }
        uvm.reference_in_steps(held, &aref, len)?;
        self.state.next_amap = Some((aref, len, writes));
        Ok(())
    }

    /// The first entry of a range, if it is to be prepared.
    fn first_unprepared(&self, held: &mut Unlocked<'_>, range: VaRange) -> Option<Unprepared<M>> {
        let (tree, mut h) = self.parent.map.lock_claimed(held);
        let first = tree.try_each(range, &mut |e| {
            let inherit = self.inherit_of(e);
            let looks = &mut { LOOKS_AT_ONCE };
            let is_large = self.uvm.fork_entry_bytes(e, inherit, &mut h, looks).is_none();
            let aref = e.amap.clone().filter(|_| is_large || self.needs_preparing(e));
            Err(aref.map(|aref| Unprepared {
                range: e.range,
                aref,
                is_wired_private: self.is_wired_private(e),
                is_large,
                inherit,
                writes: e.writes,
            }))
        });
        first.err().flatten()
    }

    /// Makes entries for a part of the range, as far as they take no more heap than is reserved,
    /// and no more looks than are `left`. `need` becomes what they take, with the first that could
    /// not be made.
    #[inline]
    pub(crate) fn make_entries(
        &mut self,
        held: &mut Held<'_, order::Map>,
        tree: &mut TreeGuard<'_, M>,
        part: VaRange,
        (reserved, mut left): (usize, usize),
        need: &mut usize,
    ) -> MadeUpTo {
        let (mut is_first, mut end) = (true, MadeUpTo::All);
        let unpinned = self.parent.map.exclude(tree, part);
        let made = tree.filter_map(part, |entry| {
            if !matches!(end, MadeUpTo::All) {
                return None;
            }
            let inherit = self.inherit_of(entry);
            let own = built_bytes::<Entry<M>>(1) - built_bytes::<Entry<M>>(0);
            let layers = match is_first && self.state.next_amap.is_some() {
                true => Some(0),
                false => self.uvm.fork_entry_bytes(entry, inherit, held, &mut left),
            };
            *need += own + layers.unwrap_or_default();
            // One that is to be prepared is the first of its step.
            let waits = !is_first && self.is_in_steps && self.needs_preparing(entry);
            let is_long = layers.is_none()
                || !self.is_in_steps && self.uvm.adopts_long(held, entry, &mut left);
            if waits || is_long || *need > reserved {
                end = MadeUpTo::Before(entry.range.start, is_long);
                return None;
            }
            is_first = false;
            self.copy_entry(held, (entry, unpinned), inherit).unwrap_or_else(|e| {
                end = MadeUpTo::Failed(e);
                None
            })
        });
        self.entries.join_in(made);
        end
    }
}

impl<M: Machine> Uvm<M> {
    /// Whether a fork takes too long for one piece, whatever entries the space has.
    pub(super) fn copies_long(&self, space: &Space<M>) -> bool {
        let all = space.map.bounds;
        space.map.was_wired.load(Relaxed)
            || self.anons.borrowed.load(Relaxed) > AT_ONCE
            || self.mem().pmap().part(&space.pmap, all, TRANSLATIONS_AT_ONCE) != all.end
    }

    /// Gives back the memory that an attempt took for entries of a copy which it didn't end.
    pub(crate) fn release_partial_copy(
        &self,
        held: &mut Unlocked<'_>,
        entries: &mut Tree<Entry<M>>,
        down: &mut Gather,
    ) {
        let mut half = Taken::from(core::mem::take(entries));
        self.release_entries(held, &mut half, down);
        down.perform(self.frames(), self.mem(), held);
    }

    /// Gives the right to write back to wired memory that no copy shares, so that a store to it
    /// takes no fault.
    fn restore_write_wired(&self, held: &mut Unlocked<'_>, space: &Space<M>, range: VaRange) {
        if !space.map.was_wired.load(Relaxed) {
            return;
        }
        let (frames, pmap) = (self.frames(), self.mem().pmap());
        self.in_steps(held, space, (range, Lock::Claimed), |map, rest, _| {
            let mut part = first_part(map.tree, rest);
            part.end = pmap.part(&space.pmap, part, WIRED);
            let part = part_of_few_slots(map.held, map.tree, part);
            map.tree.each(part, |entry| {
                let is_writable =
                    entry.writes == Writes::CopyOnWrite && entry.prot.contains(Prot::WRITE);
                let aref = entry.amap.as_ref().filter(|_| entry.wired && is_writable);
                let Some(aref) = aref else { return };
                let (body, mut h) = aref.amap.body.lock(map.held);
                for (slot, number) in
                    body.slots.range(entry.slots(aref, entry.range.intersect(part)))
                {
                    let anon = Content::anon(number).filter(|_| !body.slots.is_shared(slot));
                    let Some(no) = anon else { continue };
                    let (anon, mut h) = self.anons.get(no).lock(&mut h);
                    let va = entry.range.start + Pages(slot - aref.slot.0);
                    let is_shown = |&page: &PageNo| {
                        pmap.extract(&space.pmap, va).is_some_and(|(p, _)| p == page)
                    };
                    let is_alone = |&page: &PageNo| anon.refs() == 1 && frames.loans(page) == 0;
                    if let Some(page) = anon.page().filter(is_alone).filter(is_shown) {
                        // A hint is enough, and leaves a translation wired or pageable as it is:
                        // what is being wired isn't yet.
                        let page = [Some((page, entry.prot))];
                        pmap.enter_ahead(&mut h, &space.pmap, va, &page, |_| true);
                    }
                }
            });
            part.end
        });
    }

    /// A copy of slots that may be locked, made a leaf at a time, with a copy of every page, or of
    /// every locked one. An anon that is on swap is shared: no wired translation shows it, so
    /// nothing has to be lowered, and the first store copies it.
    fn copy_in_steps(
        &self,
        held: &mut Unlocked<'_>,
        from: &ARef<M>,
        len: Pages,
        copied: Copied,
    ) -> Result<ARef<M>, NoMemory> {
        let reserve = SET_BYTES + many_bytes(LEAF as usize);
        self.fill_in_steps(held, from, len, reserve, |body, held, slots, rest, _| {
            let first = body.slots.range(rest.clone()).next().map(|(slot, _)| slot);
            let end = first.map_or(rest.end, |slot| rest.end.min((slot / LEAF + 1) * LEAF));
            // Slots before one for which memory is short have theirs.
            for (slot, number) in body.slots.range(rest.start..end) {
                let no = Content::anon(number);
                let Some(no) = no else { unreachable!("it was adopted before") };
                slots.set(slot, self.copy_of(held, no, copied)?.number());
            }
            Ok(end)
        })
    }

    /// What the copy of a slot has: a new anon with the bytes of the slot's; that itself, with one
    /// more reference, if it is not resident, or isn't to be copied.
    fn copy_of(
        &self,
        held: &mut Held<'_, order::Amap>,
        from: AnonNo,
        copied: Copied,
    ) -> Result<AnonNo, NoMemory> {
        let frames = self.frames();
        let to_copy = |anon: &AnonBody| {
            anon.page().filter(|&page| {
                !frames.flags(page).contains(PageFlags::BUSY)
                    && (copied == Copied::All || frames.wire_count(page) != 0)
            })
        };
        let is_copied = to_copy(&self.anons.get(from).lock(held).0).is_some();
        if is_copied {
            let copy = self.copy_anon(&mut held.deeper(), from, |anon, _, copy, to| {
                to_copy(anon).map(|page| self.mem().copy(page, to)).map(|()| copy)
            })?;
            if let Some((page, copy)) = copy {
                frames.activate(self.mem(), held, page);
                return Ok(copy);
            }
        }
        self.anons.get(from).lock(held).0.add_reference(frames);
        Ok(from)
    }
}
