//! Lock order, checked by types.
//!
//! ```text
//!   Nothing -> MemoryTurn -> Map -> Amap -> Object -> Anon -> ObjectTable -> Swap -> PageQueues -> PageCache -> FreeList
//! ```
//!
//! A thread holds a zero-size token, [`Held<L>`], that says how deep it is. Taking a lock of level
//! `M` borrows the token for as long as the guard lives and gives back a deeper one; `Before` is
//! implemented only for pairs in the order above, so a wrong order, a second lock of one level, or
//! sleeping under a lock does not compile.
//!
//! I1: every lock that a thread holds ranks at or above its token. So a thread waits only for locks
//! that rank below all it holds, wait edges descend, and there is no cycle.
//!
//! The road not taken is a run-time witness alone: it finds a wrong order only on the paths that a
//! test walks.
//!
//! Wrong order:
//! ```compile_fail,E0277
//! use machine::order::*;
//! fn f<R: RawLock>(o: &Ordered<Object, R, u8>, a: &Ordered<Amap, R, u8>, h: &mut Held<'_, Nothing>) {
//!     let (_o, mut h) = o.lock(h);
//!     let (_a, _h) = a.lock(&mut h);
//! }
//! ```
//! One level twice:
//! ```compile_fail,E0277
//! use machine::order::*;
//! fn f<R: RawLock>(a: &Ordered<Amap, R, u8>, b: &Ordered<Amap, R, u8>, h: &mut Held<'_, Nothing>) {
//!     let (_a, mut h) = a.lock(h);
//!     let (_b, _h) = b.lock(&mut h);
//! }
//! ```
//! The parent's token while the guard lives:
//! ```compile_fail,E0499
//! use machine::order::*;
//! fn f<R: RawLock>(a: &Ordered<Amap, R, u8>, b: &Ordered<Amap, R, u8>, h: &mut Held<'_, Nothing>) {
//!     let (a, _h) = a.lock(h);
//!     let (_b, _h) = b.lock(h);
//!     drop(a);
//! }
//! ```
//! A token on another thread:
//! ```compile_fail,E0277
//! fn send<T: Send>() {}
//! send::<machine::order::Held<'static, machine::order::Nothing>>();
//! ```
//! Sleeping with a lock held:
//! ```compile_fail,E0308
//! use machine::{order::*, Machine, Ticket};
//! fn f<M: Machine>(m: &M, a: &Ordered<Amap, M::Lock, u8>, h: &mut Held<'_, Nothing>, t: Ticket) {
//!     let (_a, mut h) = a.lock(h);
//!     m.wait(&mut h, t);
//! }
//! ```
//! The right order, a release and a retake:
//! ```
//! use machine::{order::*, Machine, Ticket};
//! fn f<M: Machine>(m: &M, a: &Ordered<Amap, M::Lock, u8>, o: &Ordered<Object, M::Lock, u8>,
//!                  h: &mut Held<'_, Nothing>, t: Ticket) {
//!     {
//!         let (mut a, mut h) = a.lock(h);
//!         let (o, _h) = o.lock(&mut h);
//!         *a += *o;
//!     }
//!     m.wait(h, t);
//!     let (_o, _h) = o.lock(h);
//! }
//! ```

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::shared::Row;

/// A place in the lock order.
///
/// ```
/// use machine::order::{Amap, Level};
/// assert_eq!(Amap::NAME, "Amap");
/// ```
pub trait Level {
    /// The level's name, for messages.
    const NAME: &'static str;
}

/// `Self` may be held while a lock of level `L` is taken.
///
/// ```
/// use machine::order::{Amap, Before, Object};
/// /// Callers may hold whatever comes before an object's lock.
/// fn locks_an_object<P: Before<Object>>() {}
/// locks_an_object::<Amap>();
/// ```
#[diagnostic::on_unimplemented(
    message = "lock order: a `{L}` lock may not be taken while a `{Self}` lock is held",
    note = "the order is MemoryTurn, Map, Amap, Object, Anon, ObjectTable, Swap, PageQueues, PageCache, FreeList"
)]
pub trait Before<L: Level>: Level {}

macro_rules! levels {
    (@order) => {};
    (@order $first:ident $($rest:ident)*) => {
        $(impl Before<$rest> for $first {})*
        levels!(@order $($rest)*);
    };
    ($($(#[$doc:meta])* $l:ident)*) => {
        $($(#[$doc])* pub enum $l {} impl Level for $l { const NAME: &'static str = stringify!($l); })*
        levels!(@order $($l)*);
    };
}

levels! {
    /// No lock is held: the only level at which a thread may sleep.
    Nothing
    /// The queue of threads that were refused memory; nothing is taken inside.
    MemoryTurn
    /// An address space's map.
    Map
    /// An anonymous map.
    Amap
    /// A memory object and its pages.
    Object
    /// One anonymous page.
    Anon
    /// Which pager an object's name stands for.
    ObjectTable
    /// Which slots of the swap devices are taken.
    Swap
    /// The active and inactive queues.
    PageQueues
    /// One CPU's cache of free pages.
    PageCache
    /// The free pages of the whole machine.
    FreeList
}

/// Evidence that no lock this thread holds is deeper than `L`; neither sent nor copied.
///
/// ```
/// use machine::order::{Map, Nothing, Ordered, RawLock};
/// use machine::Held;
/// /// What needs no lock to be held says so.
/// fn look<R: RawLock>(map: &Ordered<Map, R, u32>, held: &mut Held<'_, Nothing>) -> u32 {
///     *map.lock(held).0
/// }
/// ```
pub struct Held<'t, L: Level>(PhantomData<&'t mut ()>, PhantomData<*const L>);

/// The token of a thread that holds no lock: operations begin with it, and sleeping takes it.
///
/// ```
/// use machine::{Machine, Ticket, Unlocked};
/// fn sleep<M: Machine>(machine: &M, held: &mut Unlocked<'_>, ticket: Ticket) {
///     machine.wait(held, ticket);
/// }
/// ```
pub type Unlocked<'t> = Held<'t, Nothing>;

impl<'t, L: Level> Held<'t, L> {
    /// This token as one of `M`, for a thread that takes no lock down to `M` any more.
    ///
    /// ```
    /// use machine::order::{Amap, Map};
    /// use machine::Held;
    /// fn deeper<'a>(held: Held<'a, Map>) -> Held<'a, Amap> {
    ///     held.down_to()
    /// }
    /// ```
    #[inline]
    #[must_use]
    pub fn down_to<M: Level>(self) -> Held<'t, M>
    where
        L: Before<M>,
    {
        Held(PhantomData, PhantomData)
    }

    /// The token of a lock taken by other means than [`Ordered`], or of none, for work that takes
    /// nothing down to `M`.
    ///
    /// ```
    /// use machine::order::{Anon, Held, Nothing};
    /// fn takes_what_lies_below(_: &mut Held<'_, Anon>) {}
    /// fn without_a_lock(held: &mut Held<'_, Nothing>) {
    ///     takes_what_lies_below(&mut held.deeper());
    /// }
    /// ```
    #[inline]
    pub fn deeper<M: Level>(&mut self) -> Held<'_, M>
    where
        L: Before<M>,
    {
        Held(PhantomData, PhantomData)
    }
}

/// One per thread, made by the host at the thread's entry into the VM system; the only source of a
/// root token.
///
/// A thread that makes a second one while locks are held gives up the proof above, and no type sees
/// that. So a host makes them in one place, which checks what it can: the reference kernel's is
/// `mem::frames::unlocked`. It counts, in builds with debug assertions, the locks that a CPU
/// holds, and looks at its [`Row`]; clippy refuses every other place. No unsafe code argues by a
/// token: with a forged one threads wait for ever, and read nothing wrong.
///
/// ```
/// use machine::ThreadCtx;
/// let mut thread = ThreadCtx::new(); // Where it enters the VM system, holding nothing.
/// let held = &mut thread.held();
/// # let _ = held;
/// ```
pub struct ThreadCtx(PhantomData<*const ()>);

impl ThreadCtx {
    /// A context for the calling thread, which must hold no VM lock.
    ///
    /// ```
    /// let thread = machine::ThreadCtx::new();
    /// # let _ = thread;
    /// ```
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Self {
        ThreadCtx(PhantomData)
    }

    /// The token that says nothing is held.
    ///
    /// ```
    /// let mut thread = machine::ThreadCtx::new();
    /// let held = thread.held();
    /// # let _ = held;
    /// ```
    pub fn held(&mut self) -> Unlocked<'_> {
        Held(PhantomData, PhantomData)
    }
}

/// A lock without data, supplied by the host: a spin lock, a lock of std, a lock under a schedule
/// checker.
///
/// # Safety
/// From the return of `lock` (or a `try_lock` that said yes) to the call of `unlock`, every other
/// `lock` waits and every `try_lock` says no; `unlock` makes the holder's writes visible to the
/// next holder. For [`Shared`](crate::Shared): `rows` returns the same slice at every call on every
/// CPU, and `wait_until` returns only after its condition has come true.
///
/// ```
/// use machine::order::RawLock;
/// use std::sync::atomic::{AtomicBool, Ordering::{Acquire, Relaxed, Release}};
///
/// struct SpinLock(AtomicBool);
///
/// // SAFETY: the thread that sets the flag has the lock; the store of false publishes its writes.
/// unsafe impl RawLock for SpinLock {
///     fn new() -> Self {
///         SpinLock(AtomicBool::new(false))
///     }
///     fn lock(&self) {
///         while !self.try_lock() {
///             std::hint::spin_loop();
///         }
///     }
///     fn try_lock(&self) -> bool {
///         self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
///     }
///     unsafe fn unlock(&self) {
///         self.0.store(false, Release);
///     }
/// }
///
/// let lock = SpinLock::new();
/// lock.lock();
/// assert!(!lock.try_lock());
/// ```
pub unsafe trait RawLock: Send + Sync {
    /// A free lock.
    fn new() -> Self;
    /// Waits for the lock and takes it.
    #[cfg_attr(feature = "__lines", track_caller)]
    fn lock(&self);
    /// Takes the lock if it is free.
    fn try_lock(&self) -> bool;
    /// Gives the lock back.
    ///
    /// # Safety
    /// The caller holds the lock.
    unsafe fn unlock(&self);

    /// Where threads say what they read, a row for each CPU; what makes a
    /// [`Shared`](crate::Shared) lock one. Without rows, or with one, each reader takes the lock
    /// alone.
    fn rows() -> &'static [Row] {
        &[]
    }

    /// Whether there is more than one row.
    #[inline]
    fn has_several_rows() -> bool {
        Self::rows().len() > 1
    }
    /// The number of the row that the calling thread uses, below the number of rows, if there are
    /// any, and of CPUs. A thread that moves to another CPU right
    /// after, or shares the row with another thread, only loses locality.
    fn cpu() -> usize {
        0
    }
    /// Returns once `done` does: a writer waits for readers by it. A host whose readers may wait
    /// for this very CPU answers them meanwhile.
    fn wait_until(mut done: impl FnMut() -> bool) {
        while !done() {
            core::hint::spin_loop();
        }
    }
}

/// A `T` behind a lock `R` of level `L`, which lies before it.
///
/// ```
/// # use machine::{order::*, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Ordered::<Map, Lock, _>::new(vec![1]);
/// let mut thread = ThreadCtx::new();
/// map.lock(&mut thread.held()).0.push(2);
/// assert_eq!(map.into_inner(), [1, 2]);
/// ```
#[repr(C)]
pub struct Ordered<L, R, T> {
    raw: R,
    cell: UnsafeCell<T>,
    level: PhantomData<fn(L)>,
}

// SAFETY: `T` is reached only between `lock` and `unlock` of `raw`, which excludes all others
// (RawLock's contract); so sharing the cell moves `T` between threads but never aliases it.
unsafe impl<L, R: Sync, T: Send> Sync for Ordered<L, R, T> {}

impl<L: Level, R: RawLock, T> Ordered<L, R, T> {
    /// `value` behind a free lock.
    ///
    /// ```
    /// # use machine::order::*;
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Ordered::<Map, Lock, u32>::new(7);
    /// # let _ = map;
    /// ```
    pub fn new(value: T) -> Self {
        Ordered { raw: R::new(), cell: UnsafeCell::new(value), level: PhantomData }
    }

    /// Takes the lock. The parent token stays borrowed until the guard and the child token are
    /// gone.
    ///
    /// ```
    /// # use machine::{order::*, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let (map, amap) = (Ordered::<Map, Lock, _>::new(1), Ordered::<Amap, Lock, _>::new(2));
    /// let mut thread = ThreadCtx::new();
    /// let mut held = thread.held();
    /// let (map, mut held) = map.lock(&mut held);
    /// let (amap, _held) = amap.lock(&mut held);
    /// assert_eq!(*map + *amap, 3);
    /// ```
    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub fn lock<'a, P: Before<L>>(
        &'a self,
        _held: &'a mut Held<'_, P>,
    ) -> (Guard<'a, R, T>, Held<'a, L>) {
        (self.take(), Held(PhantomData, PhantomData))
    }

    /// Takes the lock for a caller that sees to the token itself.
    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub(crate) fn take(&self) -> Guard<'_, R, T> {
        self.raw.lock();
        Guard { raw: &self.raw, cell: &self.cell }
    }

    /// Takes two different locks of one level, the lower address first.
    ///
    /// # Panics
    /// If both are the same lock.
    ///
    /// ```
    /// # use machine::{order::*, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let (from, to) = (Ordered::<Map, Lock, _>::new(1), Ordered::<Map, Lock, _>::new(2));
    /// let mut thread = ThreadCtx::new();
    /// let mut held = thread.held();
    /// let (mut a, mut b, _held) = Ordered::lock_pair(&from, &to, &mut held);
    /// core::mem::swap(&mut *a, &mut *b);
    /// ```
    pub fn lock_pair<'a, P: Before<L>>(
        a: &'a Self,
        b: &'a Self,
        _held: &'a mut Held<'_, P>,
    ) -> (Guard<'a, R, T>, Guard<'a, R, T>, Held<'a, L>) {
        assert!(!core::ptr::eq(a, b), "one {} lock taken twice", L::NAME);
        if core::ptr::from_ref(a) < core::ptr::from_ref(b) {
            a.raw.lock();
            b.raw.lock();
        } else {
            b.raw.lock();
            a.raw.lock();
        }
        (
            Guard { raw: &a.raw, cell: &a.cell },
            Guard { raw: &b.raw, cell: &b.cell },
            Held(PhantomData, PhantomData),
        )
    }

    /// Takes the lock if it is free; the token descends as in [`lock`](Self::lock).
    ///
    /// ```
    /// # use machine::{order::*, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Ordered::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// assert!(map.try_lock(&mut thread.held()).is_some());
    /// ```
    pub fn try_lock<'a, P: Before<L>>(
        &'a self,
        _held: &'a mut Held<'_, P>,
    ) -> Option<(Guard<'a, R, T>, Held<'a, L>)> {
        self.raw
            .try_lock()
            .then(|| (Guard { raw: &self.raw, cell: &self.cell }, Held(PhantomData, PhantomData)))
    }

    /// What the lock guards, for a lock of another kind around this one.
    #[inline]
    pub(crate) fn cell(&self) -> &UnsafeCell<T> {
        &self.cell
    }

    /// The value, where no other thread can know the lock.
    ///
    /// ```
    /// # use machine::order::*;
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let mut map = Ordered::<Map, Lock, _>::new(1);
    /// *map.get_mut() += 1;
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.cell.get_mut()
    }

    /// The value, taken out of a lock that no other thread can know.
    ///
    /// ```
    /// # use machine::order::*;
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// assert_eq!(Ordered::<Map, Lock, _>::new(1).into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        self.cell.into_inner()
    }
}

impl<L: Level, R, T> fmt::Debug for Ordered<L, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lock", L::NAME)
    }
}

/// A `T` behind a lock that ranks below all others, for what the VM system's own code may call with
/// any lock held. Nothing else is locked and nothing sleeps inside, so that it needs no token.
///
/// ```
/// # use machine::order::Leaf;
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let count = Leaf::<Lock, _>::new(1);
/// count.with(|count| *count += 1);
/// assert_eq!(count.with(|count| *count), 2);
/// ```
#[derive(Debug)]
pub struct Leaf<R, T>(Ordered<FreeList, R, T>);

impl<R: RawLock, T> Leaf<R, T> {
    /// `value` behind a free lock.
    ///
    /// ```
    /// # use machine::order::Leaf;
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let one = Leaf::<Lock, _>::new(1);
    /// # let _ = one;
    /// ```
    pub fn new(value: T) -> Leaf<R, T> {
        Leaf(Ordered::new(value))
    }

    /// Runs `work` on the value with the lock held; it takes no other.
    ///
    /// ```
    /// # use machine::order::Leaf;
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// assert_eq!(Leaf::<Lock, _>::new(1).with(|value| *value), 1);
    /// ```
    #[inline]
    pub fn with<U>(&self, work: impl FnOnce(&mut T) -> U) -> U {
        work(&mut self.0.take())
    }
}

/// Access to what a lock guards; gives the lock back when dropped.
///
/// ```
/// # use machine::{order::*, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Ordered::<Map, Lock, _>::new(1);
/// let mut thread = ThreadCtx::new();
/// let mut held = thread.held();
/// let (mut guard, _held) = map.lock(&mut held);
/// *guard += 1;
/// ```
#[must_use]
pub struct Guard<'a, R: RawLock, T> {
    raw: &'a R,
    cell: &'a UnsafeCell<T>,
}

impl<R: RawLock, T> Deref for Guard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while its thread holds `raw`, which excludes every other
        // access.
        unsafe { &*self.cell.get() }
    }
}

impl<R: RawLock, T> DerefMut for Guard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` excludes this guard's own borrows.
        unsafe { &mut *self.cell.get() }
    }
}

impl<R: RawLock, T> Drop for Guard<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard was made by a `lock` that has not been undone; dropping it is the only
        // way to undo it.
        unsafe { self.raw.unlock() }
    }
}
