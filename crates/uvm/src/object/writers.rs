//! Through how many mappings an object can be stored to, and whether there may be more.
//!
//! Who has others rely on an object's contents asks that nobody stores to it through a mapping any
//! more: a file in memory that is sealed. To look for such mappings is not enough, as one may come
//! to be behind the look: by a call on its way, or by a mapping that is passed from space to space.
//! So they are counted.
//!
//! I1: the count is that of the map entries whose stores reach the object, or may be allowed to by
//! `protect`, wherever they are, and of the host's [holds](crate::Object::admit_writer). I2: once
//! new ones are denied, entries come to be beside one that is counted only, as part of it or a
//! child's; so if the count is none then, it stays none. I3: pages that are [pinned](crate::Pinned)
//! to be stored to through such an entry are counted too, apart from entries: a device may store to
//! them after the entry has gone.
//!
//! Locks: none. An entry is added beside another or a hold, which is counted as long as that goes
//! on; a pin is added beside its entry, with the map locked.

use machine::lines::AtomicUsize;
use machine::lines::Ordering::{AcqRel, Acquire};

/// New ones are denied.
const DENIED: usize = 1 << (usize::BITS - 1);
/// One pin: pins are counted above entries and holds.
const PIN: usize = 1 << (usize::BITS / 2);

/// See the module.
pub(crate) struct Writers(AtomicUsize);

impl Writers {
    /// None, and there may be some.
    pub(crate) const fn new() -> Writers {
        Writers(AtomicUsize::new(0))
    }

    /// Entries and holds; a moment's value.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Acquire) & (PIN - 1)
    }

    /// Pins; a moment's value.
    pub(crate) fn pins(&self) -> usize {
        (self.0.load(Acquire) & !DENIED) / PIN
    }

    /// One more, if new ones are not denied; says whether.
    pub(crate) fn admit(&self) -> bool {
        self.change(|now| (now & DENIED == 0).then(|| now + 1))
    }

    /// One more, beside one that is there.
    pub(crate) fn add(&self) {
        let before = self.0.fetch_add(1, AcqRel);
        debug_assert_ne!(before, DENIED, "nobody stores to what is sealed");
    }

    /// One less.
    pub(crate) fn remove(&self) {
        let before = self.0.fetch_sub(1, AcqRel);
        debug_assert_ne!(before & (PIN - 1), 0, "more writers go than came");
    }

    /// One pin more, beside an entry that is counted.
    pub(crate) fn pin(&self) {
        let before = self.0.fetch_add(PIN, AcqRel);
        debug_assert_ne!(before & (PIN - 1), 0, "a page is pinned through an entry");
    }

    /// One pin less.
    pub(crate) fn unpin(&self) {
        let before = self.0.fetch_sub(PIN, AcqRel);
        debug_assert_ne!(before & !DENIED & !(PIN - 1), 0, "more pins go than came");
    }

    /// Denies new ones, if there are none; says whether.
    pub(crate) fn deny(&self) -> bool {
        self.change(|now| (now & !DENIED == 0).then_some(DENIED))
    }

    /// Denies new ones beside those that there are.
    pub(crate) fn deny_new(&self) {
        self.change(|now| Some(now | DENIED));
    }

    fn change(&self, to: impl Fn(usize) -> Option<usize>) -> bool {
        let mut now = self.0.load(Acquire);
        while let Some(next) = to(now) {
            match self.0.compare_exchange(now, next, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::Writers;

    #[test]
    fn what_is_denied_stays_without_writers() {
        let writers = Writers::new();
        assert!(writers.admit());
        assert!(!writers.deny(), "there is one");
        writers.deny_new();
        assert!(!writers.admit(), "no new one");
        writers.add();
        writers.remove();
        assert!(!writers.deny(), "the old one is there still");
        writers.pin();
        writers.remove();
        assert!(
            !writers.deny() && (writers.count(), writers.pins()) == (0, 1),
            "a device may store yet"
        );
        writers.unpin();
        assert!(writers.deny() && writers.count() == 0);
        assert!(!writers.admit());
    }
}
