//! Slots whose pages a store has had to copy while parent and child had them: what an amap
//! remembers for the next forks (`fork/eager.rs`).

use arrayvec::ArrayVec;
use machine::lines::{AtomicU64, Ordering::Relaxed};

use crate::amap::slots::LEAF_BYTES;
use crate::anon::AnonNo;

/// Slots that an amap remembers.
const SLOTS: usize = 4;
/// No slot.
const NONE: u64 = u64::MAX;

/// Heap bytes that the copies in one amap may need: each keeps a leaf from being shared.
pub(crate) const BYTES: usize = SLOTS * LEAF_BYTES;

/// Some of these slots, and what they hold.
pub(crate) type RewrittenSlots = ArrayVec<(u64, AnonNo), SLOTS>;

/// See the module. A hint.
pub(crate) struct Rewritten {
    pub(crate) slots: [AtomicU64; SLOTS],
}

impl Rewritten {
    pub(crate) fn new() -> Rewritten {
        Rewritten { slots: core::array::from_fn(|_| AtomicU64::new(NONE)) }
    }

    /// Says that a store to a slot had to copy what others have too. Stores that do so at once may
    /// leave one slot in two places.
    #[inline]
    pub(crate) fn note(&self, slot: u64) {
        for place in &self.slots {
            match place.load(Relaxed) {
                // Mostly it is known, and the line stays where it is.
                known if known == slot => return,
                NONE => return place.store(slot, Relaxed),
                _ => {}
            }
        }
    }

    /// Whether any store has had to since all was forgotten.
    pub(crate) fn is_any(&self) -> bool {
        self.slots[0].load(Relaxed) != NONE
    }

    /// Forgets all slots.
    pub(crate) fn forget(&self) {
        self.slots.iter().for_each(|place| place.store(NONE, Relaxed));
    }
}
