//! A count of references to a thing that gives up all it holds with the last, under a lock of its
//! own.
//!
//! ```text
//!   attach               n -> n + 1        beside a reference that can't go meanwhile: no lock
//!   attach_if_used       n -> n + 1        if n is not 0: no lock
//!   detach_if_shared     n -> n - 1        if n is more than 1: no lock
//!   detach               n -> n - 1        with the lock; the last caller is told, and gives up
//! ```
//! I1: a count that reached zero never rises again. So what the last caller gives up is out of all
//! threads' reach.
//!
//! `uvm-check/tests/loom/refs.rs` tries all schedules, and breaks the law.

use machine::atomic::AtomicUsize;
use machine::atomic::Ordering::{AcqRel, Relaxed, Release};

/// See the module.
///
/// ```
/// use uvm::refs::Refs;
/// let refs = Refs::new();
/// refs.attach();
/// assert_eq!((refs.count(), refs.detach(), refs.detach()), (2, false, true));
/// assert!(!refs.attach_if_used(), "a count that reached zero never rises again");
/// ```
pub struct Refs(AtomicUsize);

impl Refs {
    /// One: the caller's.
    ///
    /// ```
    /// assert_eq!(uvm::refs::Refs::new().count(), 1);
    /// ```
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Refs {
        Refs(AtomicUsize::new(1))
    }

    /// How many there are; a moment's value.
    ///
    /// ```
    /// assert_eq!(uvm::refs::Refs::new().count(), 1);
    /// ```
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// One more, beside one that the caller has or that can't go meanwhile.
    ///
    /// ```
    /// let refs = uvm::refs::Refs::new();
    /// refs.attach();
    /// assert_eq!(refs.count(), 2);
    /// ```
    #[inline]
    pub fn attach(&self) {
        let before = self.0.fetch_add(1, Relaxed);
        debug_assert_ne!(before, 0, "what has given up gets a reference");
    }

    /// One more, if there is one still; says whether.
    ///
    /// ```
    /// let refs = uvm::refs::Refs::new();
    /// assert!(refs.attach_if_used());
    /// ```
    #[inline]
    #[must_use]
    pub fn attach_if_used(&self) -> bool {
        self.0.fetch_update(Release, Relaxed, |n| (n != 0).then(|| n + 1)).is_ok()
    }

    /// One less, if another is left; says whether.
    ///
    /// ```
    /// let refs = uvm::refs::Refs::new();
    /// assert!(!refs.detach_if_shared(), "it is the last");
    /// refs.attach();
    /// assert!(refs.detach_if_shared());
    /// ```
    #[inline]
    #[must_use]
    pub fn detach_if_shared(&self) -> bool {
        self.0.fetch_update(Release, Relaxed, |n| (n > 1).then(|| n - 1)).is_ok()
    }

    /// One less, with the lock held. Says whether it was the last.
    ///
    /// ```
    /// let refs = uvm::refs::Refs::new();
    /// assert!(refs.detach(), "it was the last");
    /// ```
    #[inline]
    #[must_use]
    pub fn detach(&self) -> bool {
        self.0.fetch_sub(1, AcqRel) == 1
    }
}
