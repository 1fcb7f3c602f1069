//! Amaps: the anons that are mapped together.
//!
//! ```text
//!   map entry --aref--> amap    slots  | 32: anon 7 | 35: anon 9 | ...    (sparse: slots.rs)
//!              slot 32          cover  [32, 48) counted once              (per range: cover.rs)
//! ```
//!
//! An entry refers to a range of an amap's slots by an [`ARef`]. Several entries may refer to the
//! same slots: after fork they wait to copy ([`Writes::NeedsCopy`](crate::map::Writes)), after
//! sharing by inheritance they all write. Slots past any reference are free to grow into, at both
//! ends, so a heap and a stack grow in place.
//!
//! Copies of an amap share its leaves (`slots`) until one of them changes; an anon may be
//! written in place if one leaf holds it, one amap holds that, and the entry need not copy.
//!
//! I1: a slot is set only inside the cover; when its count drops to none, its anon's reference is
//! dropped. (A space that ends when no heap is left may leave slots of a shared leaf behind. The
//! amap is then on a list, whose slots go as soon as there is heap, or others have let the leaf go:
//! `deferred.rs`. No entry grows into them.) I2: if a slot of an entry that doesn't wait to copy
//! has more than one reference, every other entry with that slot writes it in place too.
//!
//! Locks: `AmapBody` by the amap's. Source: 1999, sections 5.2 and 5.3.

mod ahead;
pub(crate) mod borrowed;
pub(crate) mod borrowers;
pub(crate) mod cover;
pub(crate) mod deferred;
pub(crate) mod rewritten;
pub(crate) mod slots;

use alloc::sync::Arc;
use core::num::NonZeroU32;
use core::ops::Range;

use arrayvec::ArrayVec;
use machine::lines::{AtomicBool, Ordering::Relaxed};

use crate::page::Gather;
use machine::order::{self, Before};
use machine::{Held, Machine, PageNo, Pages, Pmap, Prot, Shared, Unlocked, VaRange, PAGE_SHIFT};

use crate::amap::borrowed::Content;
use crate::amap::borrowers::Name;
use crate::amap::cover::{Cover, CHANGE_BYTES};
use crate::amap::deferred::Left;
use crate::amap::rewritten::Rewritten;
use crate::amap::slots::{Emptied, Heap, Holders, Slots, LEAF_BYTES};
use crate::anon::AnonNo;
use crate::Uvm;
pub(crate) use ahead::ReadAhead;

/// Numbers that are released together at most: a leaf's.
const MOST: usize = 64;

/// Heap bytes that making an empty amap may need.
pub(crate) const NEW_BYTES: usize = 512;
/// Parts of an amap that lose their last reference with the amap locked, at most.
const PARTS: usize = 16;
/// Leaves and runs of counts that a fork, or a copy of some entries, changes under one hold of a
/// lock.
pub(crate) const LOOKS_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 8 } else { 4096 };
/// Leaves that one hold of a lock shares with a copy.
const LEAVES_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 4 } else { 4096 };
/// What the end of a reference costs in looks for each run of counts: where a run ends in a leaf
/// that copies share, the leaf is copied, with as many references as it has slots.
const CUT: usize = if cfg!(feature = "__small-leaves") { 1 } else { 16 };
/// Runs of counts that one hold of a lock changes, at least those of a leaf.
pub(crate) const RUNS_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 4 } else { 1024 };
/// Numbers that are dropped before others get a turn: more than a leaf has.
pub(crate) const SLOTS_AT_ONCE: usize = if cfg!(feature = "__small-leaves") { 8 } else { 4096 };
/// Heap bytes that [`ARef::release_some`] may need: a leaf at both ends of each part.
const RELEASE_BYTES: usize = PARTS * 2 * LEAF_BYTES + CHANGE_BYTES;

/// Whether stores go to the object or to a private copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writes {
    /// To the object (or to an amap shared by inheritance).
    Shared,
    /// To anons in the amap, which is this entry's to write.
    CopyOnWrite,
    /// To anons, but an amap must be made or copied before the first: UVM's needs-copy.
    NeedsCopy,
}

/// What is written most lies first, with the lock.
#[repr(C)]
pub(crate) struct AmapBody<M: Machine> {
    pub(crate) cover: Cover,
    /// Where stores have copied what parent and child had.
    pub(crate) rewritten: Rewritten,
    pub(crate) slots: Slots,
    /// Slots that may hold loaned pages lie in here (`borrowed`).
    pub(crate) borrowed: Range<u64>,
    /// Its name among amaps that have such slots.
    pub(crate) borrower: Name,
    /// How the slots have been read from swap lately: a hint.
    pub(crate) ahead: ReadAhead,
    /// Its place among amaps with slots that no entry refers to.
    pub(crate) left: Left<M>,
}

#[repr(C)]
pub(crate) struct Amap<M: Machine> {
    pub(crate) body: Shared<order::Amap, M::Lock, AmapBody<M>>,
    /// Whether any slot may hold a loaned page: `body.borrowed` is not empty. Changes with the body
    /// locked; a thread that has the map of an entry reads it for its slots without.
    pub(crate) borrows: AtomicBool,
    /// A copy of slots that others write, whose translations of these pages may allow stores yet.
    /// No thread but the one that makes the copy has it then: see
    /// [`write_protect_copies`](Uvm::write_protect_copies).
    pub(crate) is_unprotected: AtomicBool,
}

/// A reference to a run of an amap's slots, as long as the entry that holds it.
pub(crate) struct ARef<M: Machine> {
    pub(crate) amap: Arc<Amap<M>>,
    /// The slot of the entry's first page.
    pub(crate) slot: Pages,
}

impl<M: Machine> AmapBody<M> {
    /// Whether a fork copies slots itself, of an entry that writes them so.
    pub(crate) fn is_copied_at_fork(&self, range: Range<u64>, writes: Writes) -> bool {
        // What is large waits to be copied part by part.
        let is_any = self.rewritten.is_any() && self.slots.most_leaves() <= LOOKS_AT_ONCE;
        let is_exclusive = self.cover.is_exclusive(range);
        match writes {
            Writes::CopyOnWrite => is_any || !is_exclusive,
            // The copy that it waits for isn't needed by now.
            Writes::NeedsCopy => is_any && is_exclusive,
            Writes::Shared => false,
        }
    }

    /// Takes slots for an entry that grows into them, if it may: no entry refers to them, and
    /// nothing was left behind in them (I1); where no `heap` is reserved, it must take none.
    pub(crate) fn takes(&mut self, range: Range<u64>, heap: Heap) -> bool {
        let is_free =
            self.cover.is_unused(range.clone()) && self.slots.range(range.clone()).next().is_none();
        let may_grow = is_free && (heap == Heap::Reserved || self.cover.has_room_for(&range));
        if may_grow {
            self.cover.insert(range);
        }
        may_grow
    }

    /// A table with this one's numbers at the indices of a range, but for some.
    pub(crate) fn share(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Amap>,
        range: Range<u64>,
        but: &[(u64, AnonNo)],
    ) -> Slots {
        let mut down = Gather::new();
        let mut holders = AnonHolders { uvm, held, down: &mut down };
        let mut copy = Slots::new();
        let but = but.iter().map(|&(slot, _)| slot);
        self.slots.share_into(&mut copy, range, but, &mut holders);
        copy
    }
}

impl<M: Machine> Clone for ARef<M> {
    /// Another reference to the slots, which the cover doesn't count.
    fn clone(&self) -> Self {
        ARef { amap: self.amap.clone(), slot: self.slot }
    }
}

impl<M: Machine> ARef<M> {
    /// A new amap for a range of addresses, whose slots, all empty, are referred to once. They have
    /// the numbers of the range's pages: an entry that grows at either end finds free slots there,
    /// and what lies around an address in one page of tables lies in one leaf.
    pub(crate) fn new(range: VaRange) -> Self {
        Self::with_slots(Slots::new(), Pages(range.start.0 >> PAGE_SHIFT), range.pages())
    }

    /// The slots of an amap that no other thread knows yet.
    pub(crate) fn own_slots(&mut self) -> Option<&mut Slots> {
        Arc::get_mut(&mut self.amap).map(|amap| &mut amap.body.get_mut().slots)
    }

    pub(crate) fn with_slots(slots: Slots, slot: Pages, len: Pages) -> Self {
        let mut cover = Cover::new();
        cover.insert(slot.0..slot.0 + len.0);
        let body = AmapBody {
            slots,
            cover,
            borrowed: 0..0,
            borrower: 0,
            ahead: ReadAhead::default(),
            rewritten: Rewritten::new(),
            left: Left::Nothing,
        };
        let (body, borrows, is_unprotected) =
            (Shared::new(body), AtomicBool::new(false), AtomicBool::new(false));
        ARef { amap: Arc::new(Amap { body, borrows, is_unprotected }), slot }
    }

    /// The slots of the first `len` pages.
    pub(crate) fn range(&self, len: Pages) -> Range<u64> {
        self.slot.0..self.slot.0 + len.0
    }

    /// Counts one more reference to the first `len` slots;
    /// [the cover's bytes](Cover::add_bytes) have been reserved.
    pub(crate) fn reference(&self, held: &mut Held<'_, order::Map>, len: Pages) {
        let (mut body, _) = self.amap.body.lock(held);
        body.cover.add(self.range(len));
    }

    /// Drops a reference to the first `len` slots where that takes no heap, as for most entries;
    /// says whether it has. Anons that lose their last reference are freed, their pages put into
    /// `down`; the caller has removed its mappings of them.
    fn release_whole(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Map>,
        len: Pages,
        down: &mut Gather,
    ) -> bool {
        let range = self.range(len);
        let (mut body, mut h) = self.amap.body.lock(held);
        if !body.cover.is_whole(&range) {
            return false;
        }
        let AmapBody { slots, cover, .. } = &mut *body;
        let mut holders = AnonHolders { uvm, held: &mut h, down };
        cover.sub(range, |_| slots.take_all(&mut holders));
        if body.cover.is_empty() {
            uvm.borrowers.leave(&mut h, &mut body);
        }
        true
    }

    /// The end of a range's first leaves that have as many numbers as are `left`, which becomes
    /// what is left then. Less than a leaf's is enough for none.
    pub(crate) fn few(
        &self,
        held: &mut Held<'_, order::Map>,
        range: Range<u64>,
        left: &mut usize,
    ) -> u64 {
        if let Some(less) = left.checked_sub((range.end - range.start) as usize) {
            *left = less;
            return range.end;
        }
        let (body, _) = self.amap.body.lock(held);
        let end = body.slots.few(range.clone(), left);
        body.cover.few(range.start..end, left)
    }

    /// The end of the first slots of a range to which a reference is dropped in one piece. Where
    /// others refer to them too, none is looked at.
    fn few_to_release(&self, held: &mut Held<'_, order::Map>, range: Range<u64>) -> u64 {
        if range.end - range.start <= SLOTS_AT_ONCE as u64 {
            return range.end;
        }
        let (body, _) = self.amap.body.lock(held);
        if body.cover.is_shared(&range) {
            return range.end;
        }
        body.slots.few(range, &mut { SLOTS_AT_ONCE })
    }

    /// Drops a reference to some of the slots of a range, from its start on, and says where the
    /// rest begins. Where `heap` isn't reserved, slots may be left (I1): then the caller
    /// [notes](Uvm::note_left) it.
    pub(crate) fn release_some(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Map>,
        (range, most): (Range<u64>, usize),
        heap: Heap,
        down: &mut Gather,
    ) -> (u64, Emptied) {
        let (mut body, mut h) = self.amap.body.lock(held);
        let AmapBody { slots, cover, .. } = &mut *body;
        let mut holders = AnonHolders { uvm, held: &mut h, down };
        let mut emptied = Emptied::All;
        let rest = cover.sub_some(range, most, |unused| {
            emptied &= slots.take_range(unused, heap, &mut holders)
        });
        if body.cover.is_empty() {
            uvm.borrowers.leave(&mut h, &mut body);
        }
        (rest, emptied)
    }

    /// Heap bytes that dropping references to, or the contents of, some slots may need: a leaf for
    /// each end of a part in which no other entry has any, where that end lies in a leaf that is
    /// shared with copies.
    pub(crate) fn release_bytes(
        &self,
        held: &mut Held<'_, order::Map>,
        range: Range<u64>,
    ) -> usize {
        let (body, _) = self.amap.body.lock(held);
        let own = body.cover.runs_in(range.clone()).filter(|&(_, count)| count == 1);
        let leaves: usize = own
            .map(|(run, _)| {
                body.slots.leaves_cut(run.start.max(range.start)..run.end.min(range.end))
            })
            .sum();
        body.cover.add_bytes(&range) + leaves * LEAF_BYTES
    }

    /// Whether this is the only reference to each of the first `len` slots.
    pub(crate) fn is_exclusive(&self, held: &mut Held<'_, order::Map>, len: Pages) -> bool {
        let (body, _) = self.amap.body.lock(held);
        body.cover.is_exclusive(self.range(len))
    }

    /// Whether a copy of some slots, and the end of a reference to them, take no longer than one
    /// hold of a lock may.
    pub(crate) fn copies_few(&self, held: &mut Held<'_, order::Map>, range: &Range<u64>) -> bool {
        let (body, _) = self.amap.body.lock(held);
        body.slots.has_few_leaves(range, LEAVES_AT_ONCE)
            && body.cover.has_few_runs(range, RUNS_AT_ONCE.div_ceil(CUT))
    }

    /// Heap bytes that a copy of the slots needs, and [`release_some`](Self::release_some)
    /// after it, when copies have every leaf; none if that takes more than the looks that are
    /// `left`. What no other entry refers to isn't copied.
    pub(crate) fn copy_bytes(
        &self,
        held: &mut Held<'_, order::Map>,
        len: Pages,
        left: &mut usize,
    ) -> Option<usize> {
        let (body, _) = self.amap.body.lock(held);
        let range = self.range(len);
        if body.cover.is_exclusive(range.clone()) {
            return Some(0);
        }
        *left = left.checked_sub(body.slots.most_leaves() + body.cover.len() * CUT)?;
        let own = body.cover.runs_in(range.clone()).filter(|&(_, count)| count == 1).count();
        let release = own * 2 * LEAF_BYTES + body.cover.add_bytes(&range);
        Some(body.slots.share_bytes(range) + NEW_BYTES + release)
    }

    /// Before a store to an address copies the amap, which others have too: says that it will have
    /// to copy the page.
    pub(crate) fn note_rewritten(&self, held: &mut Held<'_, order::Map>, slot: u64) {
        let (body, _) = self.amap.body.lock(held);
        let is_page = body.slots.get(slot).and_then(Content::anon).is_some();
        if is_page && !body.cover.is_exclusive(slot..slot + 1) {
            body.rewritten.note(slot);
        }
    }

    /// Takes the right to write from every mapping, in any space, of the pages in some slots, until
    /// no step is `left`, which is one a slot and one a mapping. Returns the first slot that was
    /// not looked at, or the end.
    pub(crate) fn write_protect(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Map>,
        range: Range<u64>,
        left: &mut usize,
        down: &mut Gather,
    ) -> u64 {
        let (body, mut h) = self.amap.body.read(held);
        let pmap = uvm.mem().pmap();
        for (slot, number) in body.slots.range(range.clone()) {
            if *left == 0 {
                return slot;
            }
            // No translation shows what is on loan there.
            let Some(no) = Content::anon(number) else { continue };
            let (anon, mut h) = uvm.anons.get(no).lock(&mut h);
            *left -= 1;
            if let Some(page) = anon.page() {
                *left = left.saturating_sub(pmap.weight(page));
                pmap.page_protect(&mut h, page, Prot::READ_EXECUTE, down);
            }
        }
        range.end
    }

    /// Empties a run of slots and drops the references, but for slots that other entries refer to:
    /// memory shared by inheritance is not one entry's to forget. The caller has removed its
    /// mappings and reserved [`release_bytes`](Self::release_bytes).
    pub(crate) fn discard(
        &self,
        uvm: &Uvm<M>,
        held: &mut Held<'_, order::Map>,
        range: Range<u64>,
        down: &mut Gather,
    ) {
        let (mut body, mut h) = self.amap.body.lock(held);
        let AmapBody { slots, cover, .. } = &mut *body;
        let mut holders = AnonHolders { uvm, held: &mut h, down };
        for (run, count) in cover.runs_in(range.clone()) {
            let part = run.start.max(range.start)..run.end.min(range.end);
            if count == 1 && !part.is_empty() {
                let _all = slots.take_range(part, Heap::Reserved, &mut holders);
            }
        }
    }
}

impl<M: Machine> Uvm<M> {
    /// Whether what a slot holds is in memory, and how many leaves hold it; `None` if it has gone
    /// after it was freed lazily.
    pub(crate) fn holds<P: Before<order::Anon>>(
        &self,
        held: &mut Held<'_, P>,
        number: NonZeroU32,
    ) -> Option<(bool, usize)> {
        match Content::of(number) {
            Content::Anon(no) => {
                let (anon, _) = self.anons.get(no).lock(held);
                anon.has_data().then(|| (anon.page().is_some(), anon.refs().max(1) as usize))
            }
            Content::Borrowed(_) => Some((true, 1)),
        }
    }

    /// Drops an entry's reference to its slots, a few parts at a time. Never refused: where no heap
    /// is to be had, parts of leaves that copies share may be left behind, to be
    /// [cleared](Self::clear_left) later.
    pub(crate) fn release_amap(
        &self,
        held: &mut Unlocked<'_>,
        aref: &ARef<M>,
        len: Pages,
        down: &mut Gather,
    ) {
        let Range { start: mut at, end: all } = aref.range(len);
        let mut end = aref.few_to_release(&mut held.deeper(), at..all);
        if end == all && aref.release_whole(self, &mut held.deeper(), len, down) {
            return;
        }
        while at < all {
            if at == end {
                end = aref.few_to_release(&mut held.deeper(), at..all);
            }
            let is_reserved = self.mem().reserve_heap(RELEASE_BYTES).is_ok();
            let heap = if is_reserved { Heap::Reserved } else { Heap::Unreserved };
            let emptied;
            let part = (at..end, PARTS);
            (at, emptied) = aref.release_some(self, &mut held.deeper(), part, heap, down);
            if emptied == Emptied::NotAll {
                self.note_left(held, &aref.amap);
            }
            // Many references may go without a slot.
            if at < all {
                down.perform(self.frames(), self.mem(), held);
                self.mem().pause(held);
            }
        }
    }
}

/// Counts leaves in the anons that they hold, and returns what they have on loan.
pub(crate) struct AnonHolders<'a, 'h, M: Machine> {
    pub(crate) uvm: &'a Uvm<M>,
    pub(crate) held: &'a mut Held<'h, order::Amap>,
    pub(crate) down: &'a mut Gather,
}

impl<M: Machine> Holders for AnonHolders<'_, '_, M> {
    fn reference(&mut self, number: NonZeroU32) {
        match Content::of(number) {
            Content::Anon(no) => {
                self.uvm.anons.get(no).lock(self.held).0.add_reference(self.uvm.frames());
            }
            Content::Borrowed(page) => {
                debug_assert!(false, "a leaf that is shared has {page:?} on loan (`borrowed` I1)");
            }
        }
    }

    fn release_many(&mut self, numbers: impl Iterator<Item = NonZeroU32>) {
        let (anons, frames) = (&self.uvm.anons, self.uvm.frames());
        let (mut returned, mut last) = (0, ArrayVec::<PageNo, MOST>::new());
        let numbers = numbers.filter_map(|number| match Content::of(number) {
            Content::Anon(no) => Some(no),
            Content::Borrowed(page) => {
                returned += 1;
                if frames.end_loan(page) {
                    last.push(page);
                }
                None
            }
        });
        anons.release_many(self.uvm.mem(), &mut self.held.deeper(), numbers, self.down);
        if returned != 0 {
            anons.borrowed.fetch_sub(returned, Relaxed);
            // Nothing maps them, so no CPU has to be flushed.
            last.iter().for_each(|&page| frames.free_page(self.uvm.mem(), self.held, page));
        }
    }
}
