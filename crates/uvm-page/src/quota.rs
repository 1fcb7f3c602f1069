//! How many pages some anonymous objects may hold together: the size of a file system in memory.
//!
//! A page is counted when its object gets it and until the object gives it up, wherever it lies
//! meanwhile: in memory or on swap. A hole costs nothing until it is touched.
//!
//! A quota may lie within another, as what a process has does within what its user has, and that
//! within what all users have: a page counts in each.
//!
//! What the pages are listed in costs heap, most where they lie far apart: that is counted beside
//! them, in bytes, for the host, and refuses none.
//!
//! I1: `used` is the sum of what the objects with this quota, or one within it, store, and of pages
//! that are being made for them. I2: `heap` is what their lists have.

use alloc::sync::Arc;

use machine::lines::AtomicUsize;
use machine::lines::Ordering::Relaxed;

/// See the module.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// let quota = Arc::new(Quota::new(8));
/// let object = AnonObject::within(uvm, held, Pages(64), quota.clone(), None)?;
/// assert_eq!((quota.most(), quota.used()), (8, 0));
/// uvm.detach(held, &*object);
/// # Ok(()) });
/// ```
pub struct Quota {
    most: AtomicUsize,
    used: AtomicUsize,
    heap: AtomicUsize,
    /// What it lies within. The host makes two levels, so a drop recurses as often.
    outer: Option<Arc<Quota>>,
}

impl Quota {
    /// A quota of `most` pages.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(Quota::new(8).room(), 8);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub const fn new(most: usize) -> Quota {
        Quota {
            most: AtomicUsize::new(most),
            used: AtomicUsize::new(0),
            heap: AtomicUsize::new(0),
            outer: None,
        }
    }

    /// A quota without a bound of its own within another.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let all = Arc::new(Quota::new(8));
    /// assert_eq!(Quota::within(all).room(), 8);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn within(outer: Arc<Quota>) -> Quota {
        Quota { outer: Some(outer), ..Quota::new(usize::MAX) }
    }

    /// Pages that there may be.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(Quota::new(8).most(), 8);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Pages that there are.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(Quota::new(8).used(), 0);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Pages that there may be yet: in it and in all that it lies within.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(Quota::new(8).room(), 8);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn room(&self) -> usize {
        let rooms = self.chain().map(|quota| quota.most().saturating_sub(quota.used()));
        rooms.min().unwrap_or(0)
    }

    /// Bytes of what they are listed in.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(Quota::new(8).heap(), 0, "it has no page");
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn heap(&self) -> usize {
        self.heap.load(Relaxed)
    }

    /// Changes how many there may be. If there are more already no new ones come until enough have
    /// gone.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let quota = Quota::new(8);
    /// quota.set_most(16);
    /// assert_eq!(quota.room(), 16);
    /// # Ok(()) });
    /// ```
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Counts pages that are about to be made: all of them or, if they are too many, none. None are
    /// never too many, though there may be more than there ought to be. Says whether.
    #[doc(hidden)]
    #[must_use]
    pub fn take(&self, pages: usize) -> bool {
        if pages == 0 {
            return true;
        }
        for (at, quota) in self.chain().enumerate() {
            let fits = |used: usize| used.checked_add(pages).filter(|&sum| sum <= quota.most());
            if quota.used.fetch_update(Relaxed, Relaxed, fits).is_err() {
                self.chain().take(at).for_each(|inner| _ = inner.used.fetch_sub(pages, Relaxed));
                return false;
            }
        }
        true
    }

    /// It and all that it lies within.
    fn chain(&self) -> impl Iterator<Item = &Quota> {
        core::iter::successors(Some(self), |quota| quota.outer.as_deref())
    }

    /// Counts heap that a list has got.
    #[doc(hidden)]
    pub fn grew(&self, bytes: usize) {
        self.chain().for_each(|quota| _ = quota.heap.fetch_add(bytes, Relaxed));
    }

    /// Takes that back.
    #[doc(hidden)]
    pub fn shrank(&self, bytes: usize) {
        self.chain().for_each(|quota| _ = quota.heap.fetch_sub(bytes, Relaxed));
    }

    /// Gives back what was taken for pages.
    #[doc(hidden)]
    pub fn give_back(&self, pages: usize) {
        self.chain().for_each(|quota| _ = quota.used.fetch_sub(pages, Relaxed));
    }
}
