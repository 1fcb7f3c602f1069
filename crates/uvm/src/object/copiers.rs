//! Whose mappings may hold private copies of an object's pages: families of spaces, each one that
//! was created and all that were forked from it since. So a thread that cuts an object looks at no
//! entries of other families, unless many have copied from it.
//!
//! I1: a space has no copy of an object's page unless its family is here, or there was no room for
//! it.
//!
//! Not taken: the mappings of each object in a list, which each fork and each cut of an entry would
//! have to change.

use machine::lines::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Room for families: libraries have more, and are seldom cut.
const FAMILIES: usize = 4;

/// See the module. Changes with the object locked, to be read beside others too.
#[derive(Default)]
pub(crate) struct Copiers {
    /// Numbers of families; 0 for none.
    families: [AtomicU64; FAMILIES],
    /// There was no room: any space may have copies.
    many: AtomicBool,
}

impl Copiers {
    /// A space of this family may have copies from now on.
    #[inline]
    pub(crate) fn add(&self, family: u64) {
        // Looks first: an exchange takes the line from other CPUs.
        let is_there = |place: &AtomicU64| match place.load(Relaxed) {
            0 => {
                let put = place.compare_exchange(0, family, Relaxed, Relaxed);
                put.is_ok() || put == Err(family)
            }
            found => found == family,
        };
        if !self.many.load(Relaxed) && !self.families.iter().any(is_there) {
            self.many.store(true, Relaxed);
        }
    }

    /// Whether a space of this family may have copies.
    pub(crate) fn may_have(&self, family: u64) -> bool {
        self.many.load(Relaxed) || self.families.iter().any(|place| place.load(Relaxed) == family)
    }

    /// Whether any space may.
    pub(crate) fn are_any(&self) -> bool {
        self.families[0].load(Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_copied_are_known_and_beyond_room_all_may_have() {
        let copiers = Copiers::default();
        assert!(!copiers.are_any());
        for family in [1, 2, 1, 3, 4, 4] {
            copiers.add(family);
        }
        assert!(
            copiers.are_any()
                && (1..=4).all(|family| copiers.may_have(family))
                && !copiers.may_have(5)
        );
        copiers.add(5);
        assert!(copiers.may_have(5) && copiers.may_have(6));
    }
}
