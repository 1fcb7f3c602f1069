//! References to what lives as long as the running thread: its task, and what belongs to that.
//!
//! A thread's own code finds its task alive whenever it runs; other threads may find it gone. So a
//! [`Current`] stays with its thread: it is neither sent nor shared, and what is borrowed from it
//! lives no longer than it does itself. Such a borrow may be shown to other threads while it lasts,
//! since this thread has not ended then.
//!
//! Not taken: a closure that gets the reference, which turns each use inside out; and a reference
//! that is `'static`, which another thread could keep.

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

/// What lives as long as the thread that has this. A host that leaks one (`Box::leak`) makes
/// borrows that outlive it: hosts forbid themselves that (`clippy.toml`).
///
/// ```
/// use machine::Current;
///
/// let task = String::from("task");
/// // SAFETY: it is dropped by this thread, after the last use.
/// let current = unsafe { Current::new((&task).into()) };
/// let is_long = |name: &str| name.len() > 3;
/// assert!(std::thread::scope(|s| s.spawn(|| is_long("task")).join().unwrap()));
/// assert!(is_long(&current));
/// ```
/// Another thread can't have it:
/// ```compile_fail,E0277
/// use machine::Current;
///
/// let task = String::from("task");
/// // SAFETY: it is dropped by this thread, after the last use.
/// let current = unsafe { Current::new((&task).into()) };
/// let is_long = |name: &str| name.len() > 3;
/// assert!(std::thread::scope(|s| s.spawn(|| is_long(&current)).join().unwrap()));
/// ```
/// What is borrowed from it doesn't outlive it:
/// ```compile_fail,E0515
/// fn keep(current: machine::Current<String>) -> &'static str {
///     current.as_str()
/// }
/// ```
/// ```
/// fn keep(current: machine::Current<String>) -> String {
///     current.as_str().into()
/// }
/// ```
pub struct Current<T: 'static>(NonNull<T>, PhantomData<*const T>);

impl<T> Current<T> {
    /// A reference to what is at `at`.
    ///
    /// # Safety
    /// It can be read for as long as this thread runs, or goes on after a rest.
    ///
    /// ```
    /// use machine::Current;
    ///
    /// static TASK: u32 = 7;
    /// // SAFETY: it is never dropped.
    /// let current = unsafe { Current::new((&TASK).into()) };
    /// assert_eq!(*current, 7);
    /// ```
    #[inline]
    #[must_use]
    pub const unsafe fn new(at: NonNull<T>) -> Current<T> {
        Current(at, PhantomData)
    }

    /// A part of it.
    ///
    /// ```
    /// use machine::Current;
    ///
    /// static TASK: (u32, &str) = (7, "init");
    /// // SAFETY: it is never dropped.
    /// let name = unsafe { Current::new((&TASK).into()) }.map(|task| &task.1);
    /// assert_eq!(*name, "init");
    /// ```
    #[inline]
    #[must_use]
    pub fn map<U>(self, part: impl for<'a> FnOnce(&'a T) -> &'a U) -> Current<U> {
        Current(NonNull::from(part(&self)), PhantomData)
    }

    /// A part of it that may not be there.
    ///
    /// ```
    /// use machine::Current;
    ///
    /// static TASK: Option<u32> = None;
    /// // SAFETY: it is never dropped.
    /// let number = unsafe { Current::new((&TASK).into()) }.try_map(Option::as_ref);
    /// assert!(number.is_none());
    /// ```
    #[inline]
    #[must_use]
    pub fn try_map<U>(
        self,
        part: impl for<'a> FnOnce(&'a T) -> Option<&'a U>,
    ) -> Option<Current<U>> {
        part(&self).map(|part| Current(NonNull::from(part), PhantomData))
    }
}

impl<T> Deref for Current<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: by the promise of `new`, which holds for each part that is borrowed as long: this
        // is its thread, as it can be no other's, and that runs.
        unsafe { self.0.as_ref() }
    }
}
