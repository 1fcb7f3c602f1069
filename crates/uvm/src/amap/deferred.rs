//! What spaces that end leave behind, and how it goes.
//!
//! ```text
//!   amap A  slots  [leaf  a b c d]  <- shared with another amap       cover [a, b]  c, d: no entry's
//!             ^
//!   Uvm::left -> A -> another amap -> none                            linked through the amaps: takes no heap
//! ```
//! To drop references to a part of a leaf that hangs in several tables takes a copy of it. A space
//! that ends can't be refused, and most have nothing of the kind; so it reserves no heap for
//! copies: the slots stay, and the amap is put on a list. It goes through the list then, as does
//! the next space that ends or unmaps, and the page daemon after each pass: with heap, or where the
//! leaf has lost its other holders meanwhile, or no entry has what it holds, nothing is left.
//!
//! Not taken: leaves made beforehand, of which each entry could need two, one at either end; a mask
//! for each table that holds a leaf, which would leave numbers that no mask shows.
//!
//! I1: a slot outside its amap's cover is in an amap on the list.
//!
//! Locks: an amap's place on the list by its own lock, the list's head by one of the object table's
//! level.

use alloc::sync::Arc;

use crate::page::Gather;
use machine::lines::{AtomicBool, Ordering::Relaxed};
use machine::{order, Machine, Ordered, Unlocked};

use crate::amap::slots::{Emptied, Heap, LEAF_BYTES};
use crate::amap::{Amap, AmapBody, AnonHolders};
use crate::Uvm;

/// Gaps of an amap's cover that are emptied with it locked, at most.
const GAPS: usize = 16;

/// An amap's place on the list.
pub(crate) enum Left<M: Machine> {
    /// It has no slots that no entry refers to, and is not on the list.
    Nothing,
    /// It may have some; the amap that follows.
    Something(Option<Arc<Amap<M>>>),
}

/// The list.
pub(crate) struct DeferredReleases<M: Machine> {
    first: Ordered<order::ObjectTable, M::Lock, Option<Arc<Amap<M>>>>,
    /// Whether there may be any.
    is_any: AtomicBool,
}

impl<M: Machine> DeferredReleases<M> {
    pub(crate) fn new() -> Self {
        DeferredReleases { first: Ordered::new(None), is_any: AtomicBool::new(false) }
    }
}

impl<M: Machine> AmapBody<M> {
    /// Whether there may be slots that no entry refers to.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.left, Left::Something(_))
    }
}

impl<M: Machine> Uvm<M> {
    /// Puts an amap on the list.
    pub(crate) fn note_left(&self, held: &mut Unlocked<'_>, amap: &Arc<Amap<M>>) {
        let (mut body, mut h) = amap.body.lock(held);
        if !body.has_left() {
            let next = self.left.first.lock(&mut h).0.replace(amap.clone());
            body.left = Left::Something(next);
            self.left.is_any.store(true, Relaxed);
        }
    }

    /// Frees what spaces that ended have left in amaps that others still refer to, and says whether
    /// nothing is left of it. Cost: a load, where nothing is.
    ///
    /// The library does it when a space is unmapped or ends, and after the page daemon's passes; a
    /// host need not.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.space_clear(held, space);
    /// assert!(uvm.clear_left(held), "nothing is left of it");
    /// # Ok(()) });
    /// ```
    pub fn clear_left(&self, held: &mut Unlocked<'_>) -> bool {
        if !self.left.is_any.load(Relaxed) {
            return true;
        }
        self.left.is_any.store(false, Relaxed);
        let mut next = self.left.first.lock(held).0.take();
        let mut emptied = Emptied::All;
        while let Some(amap) = next {
            let here;
            (here, next) = self.clear_left_in(held, &amap);
            if here == Emptied::NotAll {
                self.note_left(held, &amap);
            }
            emptied &= here;
        }
        emptied == Emptied::All
    }

    /// Like [`clear_left`](Self::clear_left), for one amap, which is off the list then, a few gaps
    /// at a time; also returns the amap that followed it.
    fn clear_left_in(
        &self,
        held: &mut Unlocked<'_>,
        amap: &Amap<M>,
    ) -> (Emptied, Option<Arc<Amap<M>>>) {
        let next = match core::mem::replace(&mut amap.body.lock(held).0.left, Left::Nothing) {
            Left::Nothing => None,
            Left::Something(next) => next,
        };
        let (mut emptied, mut at) = (Emptied::All, Some(0));
        while let Some(from) = at.take() {
            let is_reserved = self.mem().reserve_heap(GAPS * 2 * LEAF_BYTES).is_ok();
            let heap = if is_reserved { Heap::Reserved } else { Heap::Unreserved };
            let mut down = Gather::new();
            {
                let (mut body, mut h) = amap.body.lock(held);
                let AmapBody { slots, cover, .. } = &mut *body;
                let mut holders = AnonHolders { uvm: self, held: &mut h, down: &mut down };
                for (n, gap) in (1..).zip(cover.gaps(from)) {
                    at = Some(gap.end).filter(|_| n == GAPS);
                    emptied &= slots.take_range(gap, heap, &mut holders);
                    if at.is_some() {
                        break;
                    }
                }
            }
            down.perform(self.frames(), self.mem(), held);
            self.mem().pause(held);
        }
        (emptied, next)
    }
}
