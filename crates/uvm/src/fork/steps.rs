//! A fork of what a program has made large, or a copy of a large range, in steps.
//!
//! ```text
//!   claim the map  ->  private memory read-only, on every CPU  ->  the child's entries  ->  what the fork copies  ->  let others in
//! ```
//! The child gets the memory of one moment, that at which the last translation lost the right to
//! write: who stores to memory that is read-only already waits for the fork's end, as does who maps
//! or unmaps. So a store that is in the child has all those before it, of all threads, in the child
//! too. Between two steps nothing is locked and other processes run.
//!
//! A fork that fails half-way leaves translations read-only, which costs faults, and entries that
//! wait to copy what nobody else has. It is not waited for memory here: the attempt ends, and with
//! it the claim.

use core::ops::Range;

use crate::page::PageFlags;
use crate::page::{Gather, Reserve};
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, PageNo, Pages, Pmap, Prot, Va, VaRange};

use crate::amap::slots::{Slots, LEAF, SET_BYTES};
use crate::amap::{ARef, LOOKS_AT_ONCE, NEW_BYTES};
use crate::anon::{many_bytes, AnonNo};
use crate::fork::eager::{self, CopyState};
use crate::loan::slots::{Content, AT_ONCE};
use crate::map::steps::{first_part, part_of_few_slots, WIRED};
use crate::map::tree::{built_bytes, Taken, Tree};
use crate::map::{Entry, Inherit, Writes};
use crate::{Space, Uvm};

/// Entries of a fork in one piece.
const ENTRIES_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 2 } else { 512 };
/// Translations of a fork or copy in one piece, about.
const TRANSLATIONS_AT_ONCE: usize = 32768;
/// Heap bytes that a step begins with.
const STEP_BYTES: usize = 48 * 1024;

/// What is copied: a range of a space whose map is claimed, which begins and ends with an entry.
pub(crate) struct Source<'a, M: Machine> {
    pub(crate) space: &'a Space<M>,
    pub(crate) range: VaRange,
    /// How the copy has all entries; each as it is inherited, if `None`.
    pub(crate) forced_inherit: Option<Inherit>,
}

impl<M: Machine> Source<'_, M> {
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

impl<M: Machine> Uvm<M> {
    /// Whether a fork takes too long for one piece.
    pub(crate) fn forks_in_steps(&self, parent: &Space<M>, tree: &Tree<Entry<M>>) -> bool {
        tree.len() > ENTRIES_AT_ONCE || self.copies_in_steps(parent, parent.map.bounds)
    }

    /// Whether a copy of a range takes too long for one piece, whatever entries it has.
    pub(crate) fn copies_in_steps(&self, space: &Space<M>, range: VaRange) -> bool {
        space.map.was_wired.load(Relaxed)
            || self.anons.borrowed.load(Relaxed) > AT_ONCE
            || self.mem().pmap().part(&space.pmap, range, TRANSLATIONS_AT_ONCE) != range.end
    }

    /// Makes the entries of a child, or of a copy of a range, which no thread has.
    pub(crate) fn fork_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        source: &Source<'_, M>,
        state: &mut CopyState<M>,
        (child, entries): (&Space<M>, &mut Tree<Entry<M>>),
        down: &mut Gather,
    ) -> Result<(), NoMemory> {
        let parent = source.space;
        self.write_protect_private(held, source);
        state.is_write_protected = true;
        let result = self.copy_entries(held, source, entries, state, down).and_then(|()| {
            self.mem().reserve_heap(eager::ALL_BYTES)?;
            let (tree, mut h) = parent.map.lock_claimed(held);
            self.copy_rewritten(&mut h, (parent, &tree), (child, entries), state, down);
            Ok(())
        });
        if let Some((copy, len, _)) = state.next_amap.take() {
            self.release_amap(held, &copy, len, down);
        }
        down.perform(self.frames(), self.mem(), held);
        self.restore_write_wired(held, parent, source.range);
        result
    }

    /// Gives back the memory that an attempt took for entries of a copy which it didn't end.
    pub(crate) fn release_partial_copy(
        &self,
        held: &mut Held<'_, order::Nothing>,
        entries: &mut Tree<Entry<M>>,
        down: &mut Gather,
    ) {
        let mut half = Taken::from(core::mem::take(entries));
        self.release_entries(held, &mut half, down);
        down.perform(self.frames(), self.mem(), held);
    }

    /// Takes the right to write from the private memory that is copied.
    fn write_protect_private(&self, held: &mut Held<'_, order::Nothing>, source: &Source<'_, M>) {
        let space = source.space;
        self.in_claimed_steps(held, space, source.range, |h, tree, part, down| {
            tree.each(part, |e| {
                if e.amap.is_some()
                    && e.writes == Writes::CopyOnWrite
                    && source.inherit_of(e) == Inherit::Copy
                {
                    let (own, prot) = (e.range.intersect(part), e.prot.without_write());
                    self.mem().pmap().protect(h, &space.pmap, own, prot, down);
                }
            });
            part.end
        });
    }

    /// Gives the right to write back to wired memory that no copy shares, so that a store to it
    /// takes no fault.
    fn restore_write_wired(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
    ) {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && !rest.is_empty() {
            {
                let (tree, mut h) = space.map.lock_claimed(held);
                let mut part = first_part(&tree, rest);
                part.end = self.mem().pmap().part(&space.pmap, part, WIRED);
                let part = part_of_few_slots(&mut h, &tree, part);
                tree.each(part, |entry| {
                    let is_writable =
                        entry.writes == Writes::CopyOnWrite && entry.prot.contains(Prot::WRITE);
                    if let Some(aref) = entry.amap.as_ref().filter(|_| entry.wired && is_writable) {
                        self.restore_write(
                            &mut h,
                            space,
                            (entry, aref),
                            entry.range.intersect(part),
                        );
                    }
                });
                rest.start = part.end;
            }
            self.mem().pause(held);
        }
    }

    /// Lets wired pages of a part of an entry that the space has alone be written without a fault.
    fn restore_write(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        (entry, aref): (&Entry<M>, &ARef<M>),
        part: VaRange,
    ) {
        let (frames, pmap) = (self.frames(), self.mem().pmap());
        let (body, mut h) = aref.amap.body.lock(held);
        for (slot, number) in body.slots.range(entry.slots(aref, part)) {
            let Some(no) = Content::anon(number).filter(|_| !body.slots.is_shared(slot)) else {
                continue;
            };
            let (anon, mut h) = self.anons.get(no).lock(&mut h);
            let alone = anon.page().filter(|&page| anon.refs() == 1 && frames.loans(page) == 0);
            let va = entry.range.start + Pages(slot - aref.slot.0);
            let Some(page) =
                alone.filter(|&p| pmap.extract(&space.pmap, va).is_some_and(|(q, _)| p == q))
            else {
                continue;
            };
            // A hint is enough, and leaves a translation wired or pageable as it is: what is being
            // wired isn't yet.
            pmap.enter_ahead(&mut h, &space.pmap, va, &[Some((page, entry.prot))], |_| true);
        }
    }

    /// Makes all the child's entries.
    fn copy_entries(
        &self,
        held: &mut Held<'_, order::Nothing>,
        source: &Source<'_, M>,
        entries: &mut Tree<Entry<M>>,
        state: &mut CopyState<M>,
        down: &mut Gather,
    ) -> Result<(), NoMemory> {
        let (mut rest, mut reserve) = (source.range, STEP_BYTES);
        while !rest.is_empty() {
            let first = match state.next_amap {
                None => self.first_unprepared(held, source, rest),
                Some(_) => None,
            };
            if let Some(first) = first {
                self.settle_claimed(held, source.space, first.range)?;
                if first.is_wired_private {
                    let len = first.range.pages();
                    let copy = self.copy_in_steps(held, &first.aref, len, Copied::All, down)?;
                    state.next_amap = Some((copy, len, Writes::CopyOnWrite));
                } else if first.is_large {
                    self.fork_amap_in_steps(held, source.space, &first, state, down)?;
                }
            }
            let done = self.copy_entries_step(held, (source, rest), reserve, entries, state, down);
            down.perform(self.frames(), self.mem(), held);
            (rest.start, reserve) = done?;
            self.pause_or_give_up(held)?;
        }
        Ok(())
    }

    /// Makes the amap of an entry's copy, of many leaves or runs, or of pages that another space
    /// has locked.
    fn fork_amap_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        first: &Unprepared<M>,
        state: &mut CopyState<M>,
        down: &mut Gather,
    ) -> Result<(), NoMemory> {
        let Unprepared { range, aref, inherit, .. } = first;
        let (len, mut writes, mut aref) = (range.pages(), first.writes, aref.clone());
        if *inherit == Inherit::Copy && writes == Writes::CopyOnWrite {
            // Others write to it too, or its amap has many runs elsewhere: leaves serve both.
            let copy = match self.anons.was_wired.load(Relaxed) {
                true => self.copy_in_steps(held, &aref, len, Copied::Wired, down)?,
                false => self.share_leaves_in_steps(held, &aref, len)?,
            };
            copy.amap.is_unprotected.store(true, Relaxed);
            state.others_can_write = true;
            state.next_amap = Some((copy, len, writes));
            return Ok(());
        }
        if *inherit == Inherit::Share && writes == Writes::NeedsCopy {
            aref = self.copy_amap_claimed(held, space, *range, &aref)?;
            writes = Writes::CopyOnWrite;
        }
        self.reference_in_steps(held, &aref, len)?;
        state.next_amap = Some((aref, len, writes));
        Ok(())
    }

    /// The first entry of a range, if it is to be prepared.
    fn first_unprepared(
        &self,
        held: &mut Held<'_, order::Nothing>,
        source: &Source<'_, M>,
        range: VaRange,
    ) -> Option<Unprepared<M>> {
        let (tree, mut h) = source.space.map.lock_claimed(held);
        let first = tree.try_each(range, &mut |e| {
            let inherit = source.inherit_of(e);
            let looks = &mut { LOOKS_AT_ONCE };
            let is_large = self.fork_entry_bytes(e, inherit, &mut h, looks).is_none();
            let aref = e.amap.clone().filter(|_| is_large || source.needs_preparing(e));
            Err(aref.map(|aref| Unprepared {
                range: e.range,
                aref,
                is_wired_private: source.is_wired_private(e),
                is_large,
                inherit,
                writes: e.writes,
            }))
        });
        first.err().flatten()
    }

    /// Makes the child's entries for the first part of a range. Says where that ends, and what the
    /// next step is to reserve: more, if that is what the first entry here needs.
    fn copy_entries_step(
        &self,
        held: &mut Held<'_, order::Nothing>,
        (source, range): (&Source<'_, M>, VaRange),
        reserve: usize,
        entries: &mut Tree<Entry<M>>,
        state: &mut CopyState<M>,
        down: &mut Gather,
    ) -> Result<(Va, usize), NoMemory> {
        self.mem().reserve_heap(reserve)?;
        let (mut tree, mut h) = source.space.map.lock_claimed(held);
        let part = first_part(&tree, range);
        let mut need = built_bytes::<Entry<M>>(0) + tree.splice_bytes();
        let (mut done, mut end, mut failed) = (0, part.end, None);
        let mut left = LOOKS_AT_ONCE;
        let made = tree.filter_map(part, |entry| {
            if end != part.end || failed.is_some() {
                return None;
            }
            let bytes = match &state.next_amap {
                Some(_) if done == 0 => {
                    Some(built_bytes::<Entry<M>>(1) - built_bytes::<Entry<M>>(0))
                }
                _ => self.child_entry_bytes(entry, source.inherit_of(entry), &mut h, &mut left),
            };
            need += bytes.unwrap_or_default();
            // One that is to be prepared is the first of its step.
            let waits = done != 0 && source.needs_preparing(entry);
            if waits || bytes.is_none() || need > reserve {
                end = entry.range.start;
                return None;
            }
            done += 1;
            let inherit = source.inherit_of(entry);
            let made = self.fork_entry_as(&mut h, source.space, entry, inherit, state, down);
            made.unwrap_or_else(|e| {
                failed = Some(e);
                None
            })
        });
        entries.join_in(made);
        // Under the lock, as for a fork in one piece.
        down.flush(self.mem().pmap());
        match failed {
            Some(e) => Err(e),
            None if done == 0 && end != part.end => Ok((range.start, need)),
            None => Ok((end, STEP_BYTES)),
        }
    }

    /// A copy of slots that may be locked, made a leaf at a time, with a copy of every page, or of
    /// every locked one. An anon that is on swap is shared: no wired translation shows it, so
    /// nothing has to be lowered, and whoever writes it first copies it.
    fn copy_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        from: &ARef<M>,
        len: Pages,
        copied: Copied,
        down: &mut Gather,
    ) -> Result<ARef<M>, NoMemory> {
        self.mem().reserve_heap(NEW_BYTES)?;
        let mut copy = ARef::with_slots(Slots::new(), from.slot, len);
        let mut rest = from.range(len);
        while !rest.is_empty() {
            let copied =
                self.mem().reserve_heap(SET_BYTES + many_bytes(LEAF as usize)).and_then(|()| {
                    let (body, mut h) = from.amap.body.lock(held);
                    let first = body.slots.range(rest.clone()).next().map(|(slot, _)| slot);
                    let end = first.map_or(rest.end, |slot| rest.end.min((slot / LEAF + 1) * LEAF));
                    if let Some(slots) = copy.own_slots() {
                        self.copy_slots(&mut h, &body.slots, rest.start..end, copied, slots)?;
                    }
                    rest.start = end;
                    Ok(())
                });
            if let Err(e) = copied.and_then(|()| self.pause_or_give_up(held)) {
                self.release_amap(held, &copy, len, down);
                return Err(e);
            }
        }
        Ok(copy)
    }

    /// Puts a copy of every page in some slots into others of the same numbers; those before one
    /// for which memory is short have theirs.
    fn copy_slots(
        &self,
        held: &mut Held<'_, order::Amap>,
        from: &Slots,
        range: Range<u64>,
        copied: Copied,
        to: &mut Slots,
    ) -> Result<(), NoMemory> {
        for (slot, number) in from.range(range) {
            let Some(no) = Content::anon(number) else { unreachable!("it was settled before") };
            let copy = self.copy_anon(held, no, copied)?;
            to.set(slot, copy.unwrap_or(no).number());
        }
        Ok(())
    }

    /// A new anon with the bytes of another; none, and one more reference to that, if it is not
    /// resident, or isn't to be copied.
    fn copy_anon(
        &self,
        held: &mut Held<'_, order::Amap>,
        from: AnonNo,
        copied: Copied,
    ) -> Result<Option<AnonNo>, NoMemory> {
        let (machine, frames) = (self.mem(), self.frames());
        let to: PageNo = {
            let (mut anon, mut h) = self.anons.get(from).lock(held);
            let is_copied = |&page: &PageNo| {
                !frames.flags(page).contains(PageFlags::BUSY)
                    && (copied == Copied::All || frames.wirings(page) != 0)
            };
            let Some(page) = anon.page().filter(is_copied) else {
                anon.add_reference(frames);
                return Ok(None);
            };
            let to = frames.alloc(machine, &mut h, Reserve::User)?;
            machine.copy(page, to);
            to
        };
        let copy = self.anons.make(machine, held, to)?;
        frames.activate(machine, held, to);
        Ok(Some(copy))
    }

    /// Gives slots of an entry that hold pages on loan anons instead, some at a time.
    fn settle_claimed(
        &self,
        held: &mut Held<'_, order::Nothing>,
        parent: &Space<M>,
        range: VaRange,
    ) -> Result<(), NoMemory> {
        let mut rest = range;
        while !rest.is_empty() {
            self.mem().reserve_heap(many_bytes(AT_ONCE))?;
            let looked_at = {
                let (tree, mut h) = parent.map.lock_claimed(held);
                let Some(entry) = tree.get(rest.start) else { return Ok(()) };
                self.settle_first(&mut h, parent, entry, rest)?
            };
            let Some(end) = looked_at else { return Ok(()) };
            rest.start = end;
            self.pause_or_give_up(held)?;
        }
        Ok(())
    }

    /// Lets others run. A thread that is being ended forks no further.
    pub(crate) fn pause_or_give_up(
        &self,
        held: &mut Held<'_, order::Nothing>,
    ) -> Result<(), NoMemory> {
        self.mem().pause(held);
        if self.mem().has_fatal_signal() {
            return Err(NoMemory);
        }
        Ok(())
    }
}
