//! Fork, and what copies of private memory share until one of them is written.
//!
//! ```text
//!   parent entry  CopyOnWrite, amap A       parent  NeedsCopy --> A <-- NeedsCopy  child    (cover of A: 2)
//!   and its translations writable    ==>    translations read-only
//! ```
//! A fork costs by entries: amaps are shared until one is written, and only the parent's
//! translations are lowered. The first space to write copies the amap, by sharing its leaves, and
//! then the one leaf and the one page; the last one left finds its slots exclusive and takes them
//! over without copying anything (1999, sections 5.2 and 5.4). What the parent stores to while its
//! children are there a fork copies itself (`eager.rs`).

pub(crate) mod eager;
pub(crate) mod steps;

use crate::page::Gather;
use machine::lines::Ordering::Relaxed;
use machine::{order, Held, Machine, NoMemory, Pages, Pmap, Unlocked, VaRange};

use crate::amap::borrowed::Content;
use crate::amap::rewritten::{self, RewrittenSlots};
use crate::amap::{ARef, LOOKS_AT_ONCE, NEW_BYTES};
use crate::map::lock::Unpinned;
use crate::map::tree::{built_bytes, Tree};
use crate::map::{Entry, Inherit, Writes};
use crate::{Space, Stop, Uvm};
use eager::CopyState;
use steps::{MadeUpTo, ENTRIES_AT_ONCE};

/// A fork under way, or the copy of a range: of a space whose map is locked or claimed.
pub(crate) struct Fork<'a, M: Machine> {
    uvm: &'a Uvm<M>,
    parent: &'a Space<M>,
    /// What is copied; begins and ends with an entry.
    range: VaRange,
    /// How the copy has all entries; each as it is inherited, if `None`.
    forced_inherit: Option<Inherit>,
    /// Entries that take more than one step to copy are prepared before.
    pub(crate) is_in_steps: bool,
    /// A space that no thread has yet, and what becomes of its entries.
    child: &'a Space<M>,
    entries: &'a mut Tree<Entry<M>>,
    state: CopyState<M>,
    down: &'a mut Gather,
}

impl<'a, M: Machine> Fork<'a, M> {
    pub(crate) fn new(
        uvm: &'a Uvm<M>,
        (parent, range): (&'a Space<M>, VaRange),
        forced_inherit: Option<Inherit>,
        (child, entries): (&'a Space<M>, &'a mut Tree<Entry<M>>),
        down: &'a mut Gather,
    ) -> Self {
        // A range is given to a space that is in use, which sees all of the copy or nothing.
        let (state, is_in_steps) = (CopyState::of_range(), forced_inherit.is_some());
        Fork { uvm, parent, range, forced_inherit, is_in_steps, child, entries, state, down }
    }

    /// One attempt: whether other spaces may write to pages of what was copied. One that finds that
    /// it takes too long for one piece says so, and is made again in steps.
    fn attempt(
        &mut self,
        held: &mut Unlocked<'_>,
        reserved: usize,
    ) -> Result<bool, Stop<NoMemory>> {
        let (uvm, parent, range) = (self.uvm, self.parent, self.range);
        let (mut tree, mut h) = parent.map.lock_now(uvm.mem(), held, range)?;
        let nth = parent.map.forks.load(Relaxed).wrapping_add(1);
        self.state = CopyState::new(nth);
        self.is_in_steps =
            self.is_in_steps || tree.len() > ENTRIES_AT_ONCE || uvm.copies_long(parent);
        if self.is_in_steps {
            parent.map.claim(&tree);
            drop(tree);
            let result = self.make_in_steps(held);
            parent.map.unclaim(uvm.mem(), held);
            // Threads that waited go first, before this one forks again.
            uvm.mem().pause(held);
            result?;
            parent.map.forks.store(nth, Relaxed);
            return Ok(self.state.others_can_write);
        }
        let mut need = built_bytes::<Entry<M>>(0);
        let most = (reserved, LOOKS_AT_ONCE);
        let end = self.make_entries(&mut h, &mut tree, range, most, &mut need);
        self.protect_rewritten(&mut h, &tree);
        // Under the lock: another thread of the parent must not resolve a copy while a third still
        // writes through the translation that was just lowered.
        self.down.flush(uvm.mem().pmap());
        let result = match end {
            MadeUpTo::All => Ok(()),
            // What failed half-way says nothing about the next fork.
            MadeUpTo::Failed(e) => return Err(Stop::Fail(e)),
            MadeUpTo::Before(_, true) => {
                self.is_in_steps = true;
                return Err(Stop::again(reserved));
            }
            MadeUpTo::Before(_, false) => {
                // At least what it came to here: entries of one amap need more as the others'
                // references are counted.
                need = need.max(uvm.fork_bytes(&tree, &mut h));
                Err(Stop::Heap(need))
            }
        };
        // Mostly the number is the same, and the line stays where it is.
        if parent.map.fork_bytes.load(Relaxed) != need {
            parent.map.fork_bytes.store(need, Relaxed);
        }
        result?;
        self.copy_rewritten(&mut h, &tree);
        parent.map.forks.store(nth, Relaxed);
        Ok(self.state.others_can_write)
    }

    /// The child's entry for one of the parent's, inherited in some way; `None` for a hole. A fork
    /// copies some pages itself: [`copy_rewritten`](Self::copy_rewritten).
    fn copy_entry(
        &mut self,
        held: &mut Held<'_, order::Map>,
        (entry, unpinned): (&mut Entry<M>, Unpinned),
        inherit: Inherit,
    ) -> Result<Option<Entry<M>>, NoMemory> {
        let shared = entry.amap.as_ref().filter(|_| {
            // In steps an entry is prepared first.
            !self.is_in_steps && matches!(inherit, Inherit::Share | Inherit::Copy)
        });
        if let Some(aref) = shared {
            self.uvm.adopt_entry(held, self.parent, entry, aref)?;
        }
        let (amap, writes) = match inherit {
            Inherit::None => return Ok(None),
            Inherit::Zero => (None, Writes::NeedsCopy),
            Inherit::Share => match self.state.next_amap.take() {
                Some((amap, _, writes)) => (Some(amap), writes),
                None => {
                    if entry.writes == Writes::NeedsCopy {
                        self.uvm.copy_amap(held, entry, unpinned);
                    }
                    (share_amap(held, entry), entry.writes)
                }
            },
            Inherit::Copy if entry.writes == Writes::Shared => (None, Writes::NeedsCopy),
            Inherit::Copy => self.copy_private(held, entry),
        };
        let object = if inherit == Inherit::Zero { None } else { entry.object.clone() };
        let child = Entry { amap, object, writes, ..entry.emptied() };
        child.attach();
        Ok(Some(child))
    }

    /// The child's layer of a private entry, by the rules drawn above.
    fn copy_private(
        &mut self,
        held: &mut Held<'_, order::Map>,
        entry: &mut Entry<M>,
    ) -> (Option<ARef<M>>, Writes) {
        let (uvm, parent, state) = (self.uvm, self.parent, &mut self.state);
        let Some(aref) = &entry.amap else { return (None, Writes::NeedsCopy) };
        if let Some((amap, _, writes)) = state.next_amap.take() {
            return (Some(amap), writes);
        }
        debug_assert!(!entry.wired, "pages that are wired are copied before");
        let is_write_protected = state.is_write_protected;
        // A copy is made where others write these slots too, and would not ask; or where stores
        // have had to copy pages of them while the parent's children were there, and would again.
        let copied = {
            let (body, mut h) = aref.amap.body.lock(held);
            let range = aref.range(entry.len());
            body.is_copied_at_fork(range.clone(), entry.writes).then(|| {
                let was_exclusive = body.cover.is_exclusive(range.clone());
                let holds = |slot| body.slots.get(slot).and_then(Content::anon);
                let rewritten = match was_exclusive {
                    true => state.choose(&body.rewritten, &range, holds),
                    false => RewrittenSlots::new(),
                };
                let slots = body.share(uvm, &mut h, range, &rewritten);
                (ARef::with_slots(slots, aref.slot, entry.len()), was_exclusive, rewritten)
            })
        };
        let Some((copy, was_exclusive, rewritten)) = copied else {
            if entry.writes == Writes::CopyOnWrite {
                if !is_write_protected {
                    uvm.write_protect(held, parent, entry, self.down);
                }
                entry.writes = Writes::NeedsCopy;
            }
            return (share_amap(held, entry), Writes::NeedsCopy);
        };
        if !was_exclusive {
            copy.amap.is_unprotected.store(true, Relaxed);
            state.others_can_write = true;
        }
        if !rewritten.is_empty() {
            // Its time comes when all else is done, so that other threads find it read-only for a
            // short time.
            state.add(rewritten, |slot| entry.range.start + Pages(slot - aref.slot.0));
        } else if !is_write_protected {
            uvm.write_protect(held, parent, entry, self.down);
        }
        // Mostly it is, and the line stays where it is.
        if entry.writes != Writes::CopyOnWrite {
            entry.writes = Writes::CopyOnWrite;
        }
        (Some(copy), Writes::CopyOnWrite)
    }
}

/// One more reference to an entry's slots.
fn share_amap<M: Machine>(held: &mut Held<'_, order::Map>, entry: &Entry<M>) -> Option<ARef<M>> {
    entry.amap.as_ref().inspect(|aref| aref.reference(held, entry.len())).cloned()
}

impl<M: Machine> Uvm<M> {
    /// A child of `parent`: every mapping as its inheritance says. Cost: by entries, and by the
    /// parent's writable translations.
    ///
    /// Copies of memory that is wired, here or in another space that shares it, are made at once,
    /// since a wired translation must not be lowered to fault later. A shared object inherited as a
    /// copy is copied page by page at the child's writes; until then the child sees the object
    /// change. The child has private memory as it was at one moment. Of memory that other spaces
    /// write too ([`Inherit::Share`]) it has each page as it was at some moment of the call, and
    /// each word if that memory is locked.
    ///
    /// # Errors
    /// [`NoMemory`]: the parent is as it was.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let child = uvm.fork(held, space)?;
    /// store(uvm, &child, range.start, b"c")?;
    /// assert_eq!((load(uvm, space, range.start)?, load(uvm, &child, range.start)?), ([1], *b"c"));
    /// uvm.space_destroy(held, child);
    /// # Ok(()) });
    /// ```
    pub fn fork(&self, held: &mut Unlocked<'_>, parent: &Space<M>) -> Result<Space<M>, NoMemory> {
        let child = self.space_of(held, parent.map.bounds, parent.family)?;
        child.map.choose_below(parent.map.top());
        let mut down = Gather::new();
        let mut entries = Tree::new();
        // A little more than the last one needed, if it can be had at once: then the map is looked
        // through only once.
        let last = parent.map.fork_bytes.load(Relaxed);
        let mut guess = last + last / 4;
        let mut in_steps = false;
        let result = self.attempt(held, 0, |held, mut reserved| {
            let guessed = core::mem::take(&mut guess);
            if guessed != 0 && self.mem().reserve_heap(guessed).is_ok() {
                reserved = guessed;
            }
            let made = (&child, &mut entries);
            let mut fork = Fork::new(self, (parent, parent.map.bounds), None, made, &mut down);
            fork.is_in_steps = in_steps;
            let forked = fork.attempt(held, reserved);
            in_steps = fork.is_in_steps;
            if forked.is_err() {
                // The next attempt begins anew, with the memory that this one took: all of it, the
                // copies too that were given up on the way.
                self.release_partial_copy(held, &mut entries, &mut down);
            }
            forked
        });
        let result = result.and_then(|others_can_write| {
            *child.map.tree.lock(held).0 = entries;
            child.map.fork_bytes.store(parent.map.fork_bytes.load(Relaxed), Relaxed);
            down.perform(self.frames(), self.mem(), held);
            match others_can_write {
                true => self.write_protect_copies(held, &child),
                false => Ok(()),
            }
        });
        down.perform(self.frames(), self.mem(), held);
        if let Err(e) = result {
            self.space_destroy(held, child);
            return Err(e);
        }
        Ok(child)
    }

    fn fork_bytes(&self, tree: &Tree<Entry<M>>, held: &mut Held<'_, order::Map>) -> usize {
        let mut bytes = built_bytes::<Entry<M>>(tree.len());
        tree.each(VaRange::new(machine::Va(0), machine::Va(u64::MAX)), |e| {
            let all = &mut { usize::MAX };
            bytes += self.fork_entry_bytes(e, e.inherit, held, all).unwrap_or_default();
        });
        bytes
    }

    /// Heap bytes that [`copy_entry`](Fork::copy_entry) may need, but for the entry itself;
    /// none if it takes more than the looks that are `left`.
    pub(crate) fn fork_entry_bytes(
        &self,
        e: &Entry<M>,
        inherit: Inherit,
        held: &mut Held<'_, order::Map>,
        left: &mut usize,
    ) -> Option<usize> {
        let Some(aref) = &e.amap else {
            return Some(if inherit == Inherit::Share { NEW_BYTES } else { 0 });
        };
        let bytes = match inherit {
            Inherit::Share if e.writes == Writes::NeedsCopy => {
                aref.copy_bytes(held, e.len(), left)?
            }
            // Other spaces write to it too, and may have locked it.
            Inherit::Copy
                if self.anons.was_wired.load(Relaxed)
                    && e.writes == Writes::CopyOnWrite
                    && !aref.is_exclusive(held, e.len()) =>
            {
                return None
            }
            Inherit::Copy if e.writes != Writes::Shared => {
                let (body, _) = aref.amap.body.lock(held);
                let range = aref.range(e.len());
                let is_copied = body.is_copied_at_fork(range.clone(), e.writes);
                let looks = if is_copied { body.slots.most_leaves() } else { body.cover.len() };
                *left = left.checked_sub(looks)?;
                match is_copied {
                    true => body.slots.share_bytes(range) + NEW_BYTES + rewritten::BYTES,
                    false => body.cover.add_bytes(&range),
                }
            }
            Inherit::Share => {
                let (body, _) = aref.amap.body.lock(held);
                *left = left.checked_sub(body.cover.len())?;
                body.cover.add_bytes(&aref.range(e.len()))
            }
            Inherit::Copy => 0,
            Inherit::None | Inherit::Zero => return Some(0),
        };
        Some(self.adopt_bytes(held, aref, e.len()) + bytes)
    }

    /// Takes the right to write from a space's translations of what an entry maps.
    pub(crate) fn write_protect(
        &self,
        held: &mut Held<'_, order::Map>,
        space: &Space<M>,
        entry: &Entry<M>,
        down: &mut Gather,
    ) {
        self.mem().pmap().protect(held, &space.pmap, entry.range, entry.prot.without_write(), down);
    }
}
