//! Through how many mappings an object can be stored to, and whether there may be more.
//!
//! A program that has others rely on an object's contents asks that no mapping stores to it any
//! more: a file in memory that is sealed. To look for such mappings is not enough, as one may come
//! to be behind the look: by a call on its way, or by a mapping that is passed from space to space.
//! So they are counted.
//!
//! I1: the count is that of the map entries whose stores reach the object, or may be allowed to by
//! `protect`, wherever they are, and of the host's [holds](Object::admit_writer). I2: once new ones
//! are denied, entries come to be beside one that is counted only, as part of it or a child's; so
//! if the count is none then, it stays none. I3: pages that are [pinned](crate::Pinned) to be
//! stored to through such an entry are counted too, apart from entries: a device may store to them
//! after the entry has gone.
//!
//! Locks: none. An entry is added beside another or a hold, which is counted as long as that goes
//! on; a pin is added beside its entry, with the map locked.

use machine::lines::Ordering::{AcqRel, Acquire};
use machine::Machine;

use super::Object;

/// New ones are denied.
const DENIED: usize = 1 << (usize::BITS - 1);
/// One pin: pins are counted above entries and holds.
const PIN: usize = 1 << (usize::BITS / 2);

impl<M: Machine> Object<M> {
    /// Mappings whose stores reach the object, or may be allowed to, in whatever space, and those
    /// about to be made; a moment's value.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// let request = MapRequest::object(file.clone(), Pages(0), Pages(1), Sharing::Shared);
    /// uvm.map(held, space, &request)?;
    /// assert_eq!(file.object().writers(), 1);
    /// # Ok(()) });
    /// ```
    pub fn writers(&self) -> usize {
        self.writers.load(Acquire) & (PIN - 1)
    }

    /// Pages that are pinned to be stored to through a mapping; a moment's value.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(file(uvm, held, "text", 1)?.object().pinned_writers(), 0);
    /// # Ok(()) });
    /// ```
    pub fn pinned_writers(&self) -> usize {
        (self.writers.load(Acquire) & !DENIED) / PIN
    }

    /// Counts a caller that is about to map the object so that stores reach it, or to change it
    /// likewise, until [`leave_writer`](Self::leave_writer): the mapping counts itself. `false`:
    /// [denied](Self::deny_writers).
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(file.object().admit_writer());
    /// assert!(!file.object().deny_writers(), "a mapping may write");
    /// file.object().leave_writer();
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn admit_writer(&self) -> bool {
        let more = |now| (now & DENIED == 0).then(|| now + 1);
        self.writers.fetch_update(AcqRel, Acquire, more).is_ok()
    }

    /// Counts an entry more, beside one that is counted or a host's hold.
    pub(crate) fn add_writer(&self) {
        let before = self.writers.fetch_add(1, AcqRel);
        debug_assert_ne!(before, DENIED, "an entry may store to what is sealed");
    }

    /// The end of what [`admit_writer`](Self::admit_writer) began.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(file.object().admit_writer());
    /// file.object().leave_writer();
    /// assert_eq!(file.object().writers(), 0);
    /// # Ok(()) });
    /// ```
    pub fn leave_writer(&self) {
        let before = self.writers.fetch_sub(1, AcqRel);
        debug_assert_ne!(before & (PIN - 1), 0, "more writers go than came");
    }

    /// Counts a page that was pinned to be stored to, through an entry that is counted.
    pub(crate) fn pin_writer(&self) {
        let before = self.writers.fetch_add(PIN, AcqRel);
        debug_assert_ne!(before & (PIN - 1), 0, "a page is pinned through an entry");
    }

    /// The end of what [`pin_writer`](Self::pin_writer) began.
    pub(crate) fn unpin_writer(&self) {
        let before = self.writers.fetch_sub(PIN, AcqRel);
        debug_assert_ne!(before & !DENIED & !(PIN - 1), 0, "more pins go than came");
    }

    /// Denies all mappings from now on whose stores would reach the object, if there is none, and
    /// no page that is pinned to be stored to through one; says whether.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// assert!(file.object().deny_writers());
    /// assert!(!file.object().admit_writer(), "from now on");
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn deny_writers(&self) -> bool {
        let denied = |now| (now & !DENIED == 0).then_some(DENIED);
        self.writers.fetch_update(AcqRel, Acquire, denied).is_ok()
    }

    /// Denies new ones beside those that there are. Children inherit these, and a space that one is
    /// passed to has it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let file = file(uvm, held, "text", 1)?;
    /// file.object().deny_new_writers();
    /// assert!(!file.object().admit_writer());
    /// # Ok(()) });
    /// ```
    pub fn deny_new_writers(&self) {
        self.writers.fetch_or(DENIED, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use machine::{Pa, Pages};
    use uvm_soft::{Config, SoftMachine};

    use crate::page::Frames;
    use crate::{Object, Uvm};

    #[test]
    fn what_is_denied_stays_without_writers() {
        let frames = Frames::new(&[(Pa(0x10_0000), 64)], 1).unwrap();
        let uvm = Uvm::new(SoftMachine::new(Config::default()), Arc::new(frames)).unwrap();
        let object = Object::new(&uvm, Pages(1));
        assert!(object.admit_writer());
        assert!(!object.deny_writers(), "there is one");
        object.deny_new_writers();
        assert!(!object.admit_writer(), "no new one");
        object.add_writer();
        object.leave_writer();
        assert!(!object.deny_writers(), "the old one is there still");
        object.pin_writer();
        object.leave_writer();
        let left = (object.writers(), object.pinned_writers());
        assert!(!object.deny_writers() && left == (0, 1), "a device may store yet");
        object.unpin_writer();
        assert!(object.deny_writers() && object.writers() == 0);
        assert!(!object.admit_writer());
    }
}
