//! A fork of what a program has made large, in steps.
//!
//! ```text
//!   claim the map  ->  private memory read-only, on every CPU  ->  the child's entries  ->  what the fork copies  ->  let others in
//! ```
//! The child gets the memory of one moment, that at which the last translation lost the right to write: who stores to memory that is
//! read-only already waits for the fork's end, as does who maps or unmaps. So a store that is in the child has all those before it, of
//! all threads, in the child too. Between two steps nothing is locked and other processes run.
//!
//! A fork that fails half-way leaves translations read-only, which costs faults, and entries that wait to copy what nobody
//! else has. It is not waited for memory here: the attempt ends, and with it the claim.

use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Pmap, Shootdown, Va, VaRange};

use crate::amap::{ARef, NEW_BYTES};
use crate::anon::many_bytes;
use crate::borrowed::{Settle, Shown, AT_ONCE};
use crate::map::tree::{built_bytes, Tree};
use crate::map::{Entry, Inherit, Writes};
use crate::rewritten::{self, Copies, Forking};
use crate::slots::{Slots, LEAF, SET_BYTES};
use crate::steps::{first_part, Lock, WIRED};
use crate::{Space, Stop, Uvm};

/// Entries of a fork in one piece.
const FEW: usize = if cfg!(feature = "small-leaves") { 2 } else { 512 };
/// Translations of a fork in one piece, about.
pub(crate) const MAPPED: usize = 32768;
/// Heap bytes that a step begins with.
const STEP_BYTES: usize = 48 * 1024;

/// An entry that is to be prepared before a child's is made of it.
struct Special<M: Machine> {
    range: VaRange,
    aref: ARef<M>,
    /// It is locked: its pages are copied at once.
    is_copied: bool,
}

impl<M: Machine> Uvm<M> {
    /// Whether a fork takes too long for one piece.
    pub(crate) fn forks_in_steps(&self, parent: &Space<M>, tree: &Tree<Entry<M>>) -> bool {
        let bounds = parent.map.bounds;
        tree.len() > FEW
            || parent.map.was_wired.load(Relaxed)
            || self.anons.borrowed.load(Relaxed) > AT_ONCE
            || self.machine().pmap().part(&parent.pmap, bounds, MAPPED) != bounds.end
    }

    /// Forks a space whose map is claimed.
    pub(crate) fn fork_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        (parent, nth): (&Space<M>, u32),
        (child, entries): (&Space<M>, &mut Tree<Entry<M>>),
        down: &mut Shootdown,
    ) -> Result<Copies, Stop<NoMemory>> {
        self.lower_private(held, parent, parent.map.bounds, |e| e.inherit == Inherit::Copy);
        let mut forking = Forking::lowered(nth);
        let result = self.derive_all(held, parent, entries, &mut forking, down).and_then(|()| {
            self.machine().reserve_heap(rewritten::ALL_BYTES)?;
            let (tree, mut h) = parent.map.lock_claimed(held);
            self.copy_rewritten(&mut h, (parent, &tree), (child, entries), &forking, down);
            Ok(forking.copies)
        });
        if let Some((copy, len)) = forking.copied {
            self.release_amap(held, &copy, len, down);
        }
        down.perform(self.machine(), held);
        self.raise_private(held, parent, parent.map.bounds, Lock::Claimed);
        result
    }

    /// Takes the right to write from the private memory of a range's entries that are copied, with the map claimed.
    pub(crate) fn lower_private(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        is_copied: impl Fn(&Entry<M>) -> bool,
    ) {
        self.in_claimed_steps(held, space, range, |h, tree, part, down| {
            tree.each(part, |e| {
                if e.amap.is_some() && e.writes == Writes::Copied && is_copied(e) {
                    let (own, prot) = (e.range.intersect(part), e.prot.without_write());
                    self.machine().pmap().protect(h, &space.pmap, own, prot, down);
                }
            });
            part.end
        });
    }

    /// Gives it back to what is wired, which the space has alone again; the caller has claimed the map or not.
    pub(crate) fn raise_private(
        &self,
        held: &mut Held<'_, order::Nothing>,
        space: &Space<M>,
        range: VaRange,
        lock: Lock,
    ) {
        let mut rest = range;
        while space.map.was_wired.load(Relaxed) && !rest.is_empty() {
            {
                let (tree, mut h) = match lock {
                    Lock::Claimed => space.map.lock_claimed(held),
                    Lock::Unclaimed => space.map.lock(self.machine(), held, rest),
                };
                let mut part = first_part(&tree, rest);
                part.end = self.machine().pmap().part(&space.pmap, part, WIRED);
                self.raise_wired(&mut h, space, &tree, part);
                rest.start = part.end;
            }
            self.machine().pause(held);
        }
    }

    /// Makes all the child's entries.
    fn derive_all(
        &self,
        held: &mut Held<'_, order::Nothing>,
        parent: &Space<M>,
        entries: &mut Tree<Entry<M>>,
        forking: &mut Forking<M>,
        down: &mut Shootdown,
    ) -> Result<(), Stop<NoMemory>> {
        let (mut rest, mut reserve) = (parent.map.bounds, STEP_BYTES);
        while !rest.is_empty() {
            if let Some(first) = self.first_special(held, parent, rest).filter(|_| forking.copied.is_none()) {
                self.settle_in_steps(held, parent, &first)?;
                if first.is_copied {
                    let len = first.range.pages();
                    forking.copied = Some((self.copy_in_steps(held, &first.aref, len, down)?, len));
                }
            }
            let done = self.derive_some(held, (parent, rest), reserve, entries, forking, down);
            down.perform(self.machine(), held);
            (rest.start, reserve) = match done {
                Ok(end) => (end, STEP_BYTES),
                Err(Stop::Heap(bytes)) => (rest.start, bytes),
                Err(stop) => return Err(stop),
            };
            self.go_on(held)?;
        }
        Ok(())
    }

    /// The first entry of a range, if it is to be prepared.
    fn first_special(
        &self,
        held: &mut Held<'_, order::Nothing>,
        parent: &Space<M>,
        range: VaRange,
    ) -> Option<Special<M>> {
        let (tree, _) = parent.map.lock_claimed(held);
        let first = tree.try_each(range, &mut |e| {
            let aref = e.amap.clone().filter(|_| is_special(e));
            Err(aref.map(|aref| Special { range: e.range, aref, is_copied: is_copied(e) }))
        });
        first.err().flatten()
    }

    /// Makes the child's entries for the first part of a range, and says where that ends.
    ///
    /// # Errors
    /// [`Stop::Heap`] with what the first entry needs, if that is more than is reserved here.
    fn derive_some(
        &self,
        held: &mut Held<'_, order::Nothing>,
        (parent, range): (&Space<M>, VaRange),
        reserve: usize,
        entries: &mut Tree<Entry<M>>,
        forking: &mut Forking<M>,
        down: &mut Shootdown,
    ) -> Result<Va, Stop<NoMemory>> {
        self.machine().reserve_heap(reserve)?;
        let (mut tree, mut h) = parent.map.lock_claimed(held);
        let part = first_part(&tree, range);
        let mut need = built_bytes::<Entry<M>>(0) + tree.splice_bytes();
        let (mut done, mut end, mut failed) = (0, part.end, None);
        let made = tree.derive(part, |entry| {
            if end != part.end || failed.is_some() {
                return None;
            }
            need += match forking.copied {
                Some(_) if done == 0 => built_bytes::<Entry<M>>(1) - built_bytes::<Entry<M>>(0),
                _ => self.derive_bytes(&mut h, entry),
            };
            // One that is to be prepared is the first of its step.
            let waits = done != 0 && is_special(entry);
            if waits || need > reserve {
                end = entry.range.start;
                return None;
            }
            done += 1;
            let inherit = entry.inherit;
            let made = self.fork_entry_as(&mut h, parent, entry, inherit, forking, down);
            made.unwrap_or_else(|e| {
                failed = Some(e);
                None
            })
        });
        entries.join_in(made);
        // Under the lock, as for a fork in one piece.
        down.flush(self.machine().pmap());
        match failed {
            Some(e) => Err(Stop::Fail(e)),
            None if done == 0 && end != part.end => Err(Stop::Heap(need)),
            None => Ok(end),
        }
    }

    /// A copy of the slots of a locked entry, made a leaf at a time: see [`copy_pages`](Self::copy_pages).
    fn copy_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        from: &ARef<M>,
        len: Pages,
        down: &mut Shootdown,
    ) -> Result<ARef<M>, Stop<NoMemory>> {
        self.machine().reserve_heap(NEW_BYTES)?;
        let mut copy = ARef::with_slots(Slots::new(), from.slot, len);
        let mut rest = from.range(len);
        while !rest.is_empty() {
            let copied = self
                .machine()
                .reserve_heap(SET_BYTES + many_bytes(LEAF as usize))
                .map_err(Stop::Fail)
                .and_then(|()| {
                    let (body, mut h) = from.amap.body.lock(held);
                    let first = body.slots.range(rest.clone()).next().map(|(slot, _)| slot);
                    let end = first.map_or(rest.end, |slot| rest.end.min((slot / LEAF + 1) * LEAF));
                    if let Some(slots) = copy.own_slots() {
                        self.copy_slots(&mut h, &body.slots, rest.start..end, slots)?;
                    }
                    rest.start = end;
                    Ok(())
                });
            if let Err(stop) = copied.and_then(|()| self.go_on(held)) {
                self.release_amap(held, &copy, len, down);
                return Err(stop);
            }
        }
        Ok(copy)
    }

    /// Gives an entry's slots that hold pages on loan anons instead, some at a time.
    fn settle_in_steps(
        &self,
        held: &mut Held<'_, order::Nothing>,
        parent: &Space<M>,
        Special { range, aref, .. }: &Special<M>,
    ) -> Result<(), Stop<NoMemory>> {
        let mut rest = aref.range(range.pages());
        while !rest.is_empty() {
            self.machine().reserve_heap(many_bytes(AT_ONCE))?;
            {
                let (tree, mut h) = parent.map.lock_claimed(held);
                let Some(entry) = tree.get(range.start) else { return Ok(()) };
                let (mut body, mut h) = aref.amap.body.lock(&mut h);
                let Some((first, _)) = body.borrowed_from(rest.start).next() else { return Ok(()) };
                let some = rest.start..rest.end.min(first + AT_ONCE as u64);
                let all = Settle::All(Shown::new(parent, entry, aref));
                self.settle_borrowed(&mut h, &mut body, some.clone(), &all)?;
                rest.start = some.end;
            }
            self.go_on(held)?;
        }
        Ok(())
    }

    /// Lets others run. A thread that is being ended forks no further.
    fn go_on(&self, held: &mut Held<'_, order::Nothing>) -> Result<(), Stop<NoMemory>> {
        self.machine().pause(held);
        if self.machine().gives_up() {
            return Err(Stop::Fail(NoMemory));
        }
        Ok(())
    }
}

/// Whether a fork copies an entry's pages at once.
fn is_copied<M: Machine>(e: &Entry<M>) -> bool {
    e.wired && e.inherit == Inherit::Copy && e.writes != Writes::Through && e.amap.is_some()
}

/// Whether an entry is to be prepared: it is locked, or its slots may hold pages on loan.
fn is_special<M: Machine>(e: &Entry<M>) -> bool {
    is_copied(e) || e.amap.as_ref().is_some_and(|aref| aref.amap.borrows.load(Relaxed))
}
