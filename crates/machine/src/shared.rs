//! A reader-writer lock whose readers write no shared word, and pins that outlive the read.
//!
//! ```text
//!   a CPU's row:  | lock 7 | lock 9, pages 16..32 |   -   |   -   |     read; pinned
//!
//!   reader    names the lock in its CPU's row, then looks again: is the lock still biased?
//!   writer    takes the lock, ends the bias, waits until no row names it as being read
//!   exclude   waits until no row names it with a pin that overlaps the pages to be changed
//! ```
//! A reader-writer lock counts its readers in one word, which moves from CPU to CPU as a plain
//! lock's does. Here a reader names the lock in its own CPU's [`Row`], and the lock's line stays in
//! every CPU's cache. The cost falls on the writer, which looks at each row; so a lock becomes
//! biased towards readers only after several reads for each CPU without a change. Until then, and
//! on machines of one CPU, it is an ordinary lock.
//!
//! A reader that needs one part of what it read, and for longer than the look-up,
//! [pins](Access::pin) it: it keeps a copy, says which pages the copy stands for, and no longer
//! hinders writers of other pages. A thread that changes a part in a way that copies must not miss
//! [excludes](Shared::exclude) the part's pages first.
//!
//! Source: Dice and Kogan, BRAVO: biased locking for reader-writer locks (USENIX ATC 2019), with
//! rows by CPU in place of their table by hash. The pins are ours: what a lock for each range of a
//! tree does, without a structure of ranges that all CPUs write.
//!
//! I1: while the lock is biased, no [`Guard`] of it exists: a writer ends the bias and waits for
//! the readers whose rows name the lock. I2: a reader that names a biased lock in a row and finds
//! it still biased may read until it empties the place or turns it into a pin. Both follow from one
//! order of four accesses that all CPUs agree on: the reader writes its place and then reads
//! `bias`; the writer writes `bias` and then reads the places; so one of the two sees the other.
//! I3: a pin begins with the lock held or read; so a writer that has the lock meets no new pin. I4:
//! `pinned` has the bit of each CPU whose row has a pin of a lock that isn't biased.

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use crate::order::{Before, Guard, Held, Level, Ordered, RawLock};
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, Range};
use core::ptr::NonNull;

/// Locks that one CPU reads at once: map, amap, object; and one to spare.
const PLACES: usize = 4;

/// Reads without a change, for each CPU, before a lock becomes biased.
const QUIET: usize = 2;

/// In a place, beside a lock's address: what it names is pinned, not being read.
const PIN: usize = 1;

/// Bits of a pin's word that count its pages; the others are the first page's number.
const COUNT_BITS: u32 = 8;

/// What the threads of one CPU read or have pinned. A line of its own.
///
/// ```
/// use machine::shared::Row;
/// static ROWS: [Row; 4] = [const { Row::new() }; 4]; // What `RawLock::rows` returns on four CPUs.
/// assert!(ROWS[0].is_empty());
/// ```
#[repr(align(64))]
pub struct Row([Place; PLACES]);

/// One lock that is read, or one pin.
struct Place {
    /// The lock's address, with [`PIN`]; 0 if the place is free.
    lock: AtomicUsize,
    /// The pin's pages.
    pages: AtomicU64,
}

impl Row {
    /// A row that names nothing.
    ///
    /// ```
    /// assert!(machine::shared::Row::new().is_empty());
    /// ```
    #[cfg(not(feature = "__loom"))]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Row {
        Row([const { Place { lock: AtomicUsize::new(0), pages: AtomicU64::new(0) } }; PLACES])
    }

    /// A row that names nothing.
    ///
    /// ```
    /// # use machine::{order::*, Shared};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, u32>::new(7);
    /// # let _ = map;
    /// ```
    #[cfg(feature = "__loom")]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Row {
        Row([const { 0 }; PLACES]
            .map(|_: usize| Place { lock: AtomicUsize::new(0), pages: AtomicU64::new(0) }))
    }

    /// Whether it names nothing: no thread that uses it reads what a lock guards.
    ///
    /// ```
    /// assert!(machine::shared::Row::new().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|place| place.lock.load(Relaxed) == 0)
    }

    /// Takes a place for a lock; none if there are too many, or another thread took it first.
    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    fn take(&self, lock: usize) -> Option<&Place> {
        let place = self.0.iter().find(|place| place.lock.load(Relaxed) == 0)?;
        place.lock.compare_exchange(0, lock, SeqCst, Relaxed).ok()?;
        loom_fence();
        Some(place)
    }
}

impl Place {
    #[inline]
    fn empty(&self) {
        self.lock.store(0, Release);
    }

    /// Turns a place that names a lock as being read into a pin.
    #[inline]
    fn pin(&self, lock: usize, pages: &Range<u64>) {
        let count = pages.end - pages.start;
        debug_assert!(count < 1 << COUNT_BITS, "a pin of {count} pages");
        self.pages.store(pages.start << COUNT_BITS | count, Relaxed);
        self.lock.store(lock | PIN, Release);
    }

    /// Whether the place has a pin of a lock, and of some of the pages.
    #[inline]
    fn pins(&self, lock: usize, pages: &Range<u64>) -> (bool, bool) {
        if self.lock.load(Acquire) != lock | PIN {
            return (false, false);
        }
        let word = self.pages.load(Relaxed);
        let (start, count) = (word >> COUNT_BITS, word & ((1 << COUNT_BITS) - 1));
        (true, start < pages.end && pages.start < start + count)
    }
}

/// A value on cache lines of its own: a CPU that writes it takes from other CPUs nothing that lies
/// beside it.
///
/// ```
/// use machine::shared::CachePadded;
/// use std::sync::atomic::AtomicU64;
/// let counters = [const { CachePadded(AtomicU64::new(0)) }; 4]; // By CPU.
/// assert!(size_of_val(&counters) >= 4 * 64);
/// ```
#[repr(align(64))]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Loom takes accesses of the strictest order for weaker ones, and only its fences at their word.
#[inline]
fn loom_fence() {
    #[cfg(feature = "__loom")]
    loom::sync::atomic::fence(SeqCst);
}

/// A `T` behind a lock `R` of level `L` that several threads may read at once. What it keeps of
/// itself and the beginning of `T` lie side by side, mostly in one cache line.
///
/// ```
/// # use machine::{order::*, Shared, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Shared::<Map, Lock, _>::new(vec![1]);
/// let mut thread = ThreadCtx::new();
/// let held = &mut thread.held();
/// map.lock(held).0.push(2);
/// assert_eq!(map.read(held).0.len(), 2);
/// ```
#[repr(C)]
pub struct Shared<L, R, T> {
    bias: AtomicBool,
    /// Reads since the last change; written with the lock held.
    quiet: AtomicU32,
    /// CPUs whose rows may have pins of this lock, by number modulo 64; written with the lock held.
    pinned: AtomicU64,
    lock: Ordered<L, R, T>,
}

// SAFETY: as for `Ordered`; and what readers share is `&T`, hence `Sync`.
unsafe impl<L, R: Sync, T: Send + Sync> Sync for Shared<L, R, T> {}

/// What [`Shared::read`] gives.
///
/// ```
/// # use machine::{order::*, Shared, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Shared::<Map, Lock, _>::new(1);
/// let mut thread = ThreadCtx::new();
/// let mut held = thread.held();
/// let (access, _held) = map.read(&mut held);
/// if let Some(mut map) = access.exclusive() {
///     *map += 1; // No thread reads beside it.
/// }
/// ```
pub enum Access<'a, R: RawLock, T> {
    /// Other threads may be reading too.
    Shared(ReadGuard<'a, T>),
    /// The caller holds the lock as by [`Shared::lock`].
    Exclusive(Guard<'a, R, T>),
}

impl<'a, R: RawLock, T> Access<'a, R, T> {
    /// Whether no other thread has any access.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// // Once it is read often, it is not.
    /// assert!(map.read(&mut thread.held()).0.is_exclusive());
    /// ```
    #[inline]
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Access::Exclusive(_))
    }

    /// Leave to change what was read, if the access is exclusive; if not, the reading ends.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// assert!(map.read(&mut thread.held()).0.exclusive().is_some());
    /// ```
    #[inline]
    pub fn exclusive(self) -> Option<Guard<'a, R, T>> {
        match self {
            Access::Shared(_) => None,
            Access::Exclusive(guard) => Some(guard),
        }
    }

    /// Ends the access but for a copy of a part of what was read, which stands for some pages:
    /// fewer than 256, by their numbers. Where there is one CPU, or the CPU's row is full, the
    /// access goes on instead, and the part is the original. The copy lies in `copy`.
    ///
    /// # Safety
    /// `part` points into what this access reads, which `lock` guards. As long as the pin lives,
    /// a thread that would drop the part, or change it in a way that the copy must not miss, calls
    /// [`Shared::exclude`] with those pages first.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// # use std::{mem::MaybeUninit, ptr::NonNull};
    /// let map = Shared::<Map, Lock, _>::new([1, 2]);
    /// let mut thread = ThreadCtx::new();
    /// let (mut held, mut copy) = (thread.held(), MaybeUninit::uninit());
    /// let (access, _held) = map.read(&mut held);
    /// let part = NonNull::from(&access[1]);
    /// // SAFETY: no thread changes it.
    /// let pinned = unsafe { access.pin(&map, part, 7..8, &mut copy) };
    /// assert_eq!(*pinned, 2);
    /// ```
    #[inline(always)]
    pub unsafe fn pin<'c, L: Level, U>(
        self,
        lock: &'a Shared<L, R, T>,
        part: NonNull<U>,
        pages: Range<u64>,
        copy: &'c mut MaybeUninit<U>,
    ) -> Pinned<'c, R, T, U>
    where
        'a: 'c,
    {
        let place = match self {
            Access::Shared(read) => {
                let place = read.place;
                core::mem::forget(read);
                place
            }
            Access::Exclusive(guard) => {
                let place = match R::has_several_rows() {
                    true => lock.place_to_pin(),
                    false => None,
                };
                let Some(place) = place else {
                    return Pinned { part, end: End::Unlock { _guard: guard }, lives: PhantomData };
                };
                // SAFETY: the lock is held.
                unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(part.as_ptr(), 1) };
                place.pin(lock.id(), &pages);
                drop(guard);
                let part = NonNull::from(copy).cast();
                return Pinned { part, end: End::Unpin(place), lives: PhantomData };
            }
        };
        // SAFETY: the place names the lock as being read until it is a pin.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(part.as_ptr(), 1) };
        place.pin(lock.id(), &pages);
        Pinned { part: NonNull::from(copy).cast(), end: End::Unpin(place), lives: PhantomData }
    }
}

impl<R: RawLock, T> Deref for Access<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        match self {
            Access::Shared(read) => read,
            Access::Exclusive(guard) => guard,
        }
    }
}

/// A part of what a lock guards, kept by [`Access::pin`]; the pin ends when this is dropped.
///
/// ```
/// # use machine::{order::*, Shared, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// # use std::{mem::MaybeUninit, ptr::NonNull};
/// let map = Shared::<Map, Lock, _>::new([1, 2]);
/// let mut thread = ThreadCtx::new();
/// let (mut held, mut copy) = (thread.held(), MaybeUninit::uninit());
/// let (access, _held) = map.read(&mut held);
/// let part = NonNull::from(&access[1]);
/// // SAFETY: no thread changes it.
/// let pinned = unsafe { access.pin(&map, part, 7..8, &mut copy) };
/// assert_eq!(*pinned, 2);
/// ```
#[must_use]
pub struct Pinned<'a, R: RawLock, T, U> {
    /// The copy, which is never dropped, or the original.
    part: NonNull<U>,
    end: End<'a, R, T>,
    lives: PhantomData<&'a U>,
}

/// How a pin ends.
enum End<'a, R: RawLock, T> {
    Unpin(&'a Place),
    Unlock { _guard: Guard<'a, R, T> },
}

/// Pages that stay pinned though the lock is given back: see [`Shared::pin_pages`].
///
/// ```
/// # use machine::{order::*, Shared, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Shared::<Map, Lock, _>::new(1);
/// let mut thread = ThreadCtx::new();
/// let mut held = thread.held();
/// let (guard, _held) = map.lock(&mut held);
/// let pages = map.pin_pages(guard, 7..9);
/// drop(pages); // Until now `exclude` waited for these pages.
/// ```
#[must_use]
pub struct PinnedPages<'a, R: RawLock, T>(End<'a, R, T>);

impl<R: RawLock, T> Drop for PinnedPages<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        if let End::Unpin(place) = &self.0 {
            place.empty();
        }
    }
}

impl<R: RawLock, T, U> Deref for Pinned<'_, R, T, U> {
    type Target = U;
    #[inline(always)]
    fn deref(&self) -> &U {
        // SAFETY: a copy, which lives as long as this and whose original is not dropped as long as
        // its pages are pinned; or the original, under the guard (both by the promise of `pin`).
        unsafe { self.part.as_ref() }
    }
}

impl<R: RawLock, T, U> Drop for Pinned<'_, R, T, U> {
    #[inline]
    fn drop(&mut self) {
        if let End::Unpin(place) = &self.end {
            place.empty();
        }
    }
}

/// What a lock gives that is taken to change what it guards.
pub type Locked<'a, L, R, T> = (Guard<'a, R, T>, Held<'a, L>);
/// What a lock gives that is taken to read.
pub type Read<'a, L, R, T> = (Access<'a, R, T>, Held<'a, L>);

/// Leave to read beside others; ends when dropped.
///
/// ```
/// # use machine::{order::*, shared::Access, Shared, ThreadCtx};
/// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
/// let map = Shared::<Map, Lock, _>::new(vec![1]);
/// let mut thread = ThreadCtx::new();
/// match &map.read(&mut thread.held()).0 {
///     Access::Shared(guard) => assert_eq!(guard[0], 1),
///     Access::Exclusive(guard) => assert_eq!(guard[0], 1),
/// }
/// ```
#[must_use]
pub struct ReadGuard<'a, T> {
    place: &'a Place,
    cell: &'a UnsafeCell<T>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: no thread uses a [`Guard`] while a row names the lock as being read (I1), and
        // other readers have `&T` too.
        unsafe { &*self.cell.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.place.empty();
    }
}

impl<L: Level, R: RawLock, T> Shared<L, R, T> {
    /// `value` behind a free lock.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(vec![1]);
    /// ```
    pub fn new(value: T) -> Self {
        Shared {
            lock: Ordered::new(value),
            bias: AtomicBool::new(false),
            quiet: AtomicU32::new(0),
            pinned: AtomicU64::new(0),
        }
    }

    /// Takes the lock to change what it guards, as [`Ordered::lock`] does. Cost where it was
    /// biased: a look at each CPU's row, and the wait for its readers.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// *map.lock(&mut thread.held()).0 += 1;
    /// ```
    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub fn lock<'a, P: Before<L>>(
        &'a self,
        held: &'a mut Held<'_, P>,
    ) -> (Guard<'a, R, T>, Held<'a, L>) {
        (self.lock_now(), held.deeper())
    }

    /// Takes the lock as [`lock`](Self::lock) does if `fits` holds once the lock is taken. If not,
    /// the lock is given back, and so is the token.
    ///
    /// # Errors
    /// The token.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// assert!(map.lock_if(&mut thread.held(), || false).is_err(), "it didn't fit");
    /// ```
    #[cfg_attr(feature = "__lines", track_caller)]
    pub fn lock_if<'a, 'h, P: Before<L>>(
        &'a self,
        held: &'a mut Held<'h, P>,
        fits: impl FnOnce() -> bool,
    ) -> Result<Locked<'a, L, R, T>, &'a mut Held<'h, P>> {
        let guard = self.lock_now();
        if fits() {
            Ok((guard, held.deeper()))
        } else {
            Err(held)
        }
    }

    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    fn lock_now(&self) -> Guard<'_, R, T> {
        let guard = self.lock.take();
        self.end_bias();
        guard
    }

    /// Takes two different locks of one level to change what they guard, as [`Ordered::lock_pair`]
    /// does.
    ///
    /// # Panics
    /// If both are the same lock.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let (from, to) = (Shared::<Map, Lock, _>::new(1), Shared::<Map, Lock, _>::new(2));
    /// let mut thread = ThreadCtx::new();
    /// let mut held = thread.held();
    /// let (mut a, mut b, _held) = Shared::lock_pair(&from, &to, &mut held);
    /// core::mem::swap(&mut *a, &mut *b);
    /// ```
    pub fn lock_pair<'a, P: Before<L>>(
        a: &'a Self,
        b: &'a Self,
        held: &'a mut Held<'_, P>,
    ) -> (Guard<'a, R, T>, Guard<'a, R, T>, Held<'a, L>) {
        let locked = Ordered::lock_pair(&a.lock, &b.lock, held);
        a.end_bias();
        b.end_bias();
        locked
    }

    /// Gives the lock back, but keeps some pages, by their numbers: a thread that
    /// [excludes](Self::exclude) them waits until what this returns is dropped. Where there is one
    /// CPU, the CPU's row is full, or the pages are 256 or more, the lock is kept.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// let mut held = thread.held();
    /// let (guard, _held) = map.lock(&mut held);
    /// let _pages = map.pin_pages(guard, 7..9);
    /// ```
    #[inline]
    pub fn pin_pages<'a>(
        &'a self,
        guard: Guard<'a, R, T>,
        pages: Range<u64>,
    ) -> PinnedPages<'a, R, T> {
        let is_one = R::has_several_rows() && pages.end - pages.start < 1 << COUNT_BITS;
        match is_one.then(|| self.place_to_pin()).flatten() {
            Some(place) => {
                place.pin(self.id(), &pages);
                PinnedPages(End::Unpin(place))
            }
            None => PinnedPages(End::Unlock { _guard: guard }),
        }
    }

    /// A place of this CPU's row for a pin, with the lock held.
    #[inline(never)]
    fn place_to_pin(&self) -> Option<&'static Place> {
        let place = R::rows().get(R::cpu())?.take(self.id())?;
        let (cpu, pinned) = (1 << (R::cpu() % 64), self.pinned.load(Relaxed));
        if pinned & cpu == 0 {
            self.pinned.store(pinned | cpu, Relaxed);
        }
        Some(place)
    }

    /// Waits until no pin of any of these pages is left, by their numbers. The lock is held, so
    /// none begins. Cost: a look at the row of each CPU that has pinned something since the last
    /// look.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// let mut held = thread.held();
    /// let (guard, _held) = map.lock(&mut held);
    /// map.exclude(&guard, 7..9); // No thread uses a copy of what stands for these pages now.
    /// ```
    #[inline]
    pub fn exclude(&self, _guard: &Guard<'_, R, T>, pages: Range<u64>) {
        if self.pinned.load(Relaxed) != 0 && !pages.is_empty() {
            self.wait_for_pins(pages);
        }
    }

    #[inline(never)]
    fn wait_for_pins(&self, pages: Range<u64>) {
        let (pinned, mut left) = (self.pinned.load(Relaxed), 0);
        for (cpu, row) in R::rows().iter().enumerate() {
            let bit = 1 << (cpu % 64);
            if pinned & bit == 0 {
                continue;
            }
            for place in &row.0 {
                R::wait_until(|| !place.pins(self.id(), &pages).1);
                if place.pins(self.id(), &pages).0 {
                    left |= bit;
                }
            }
        }
        self.pinned.store(left, Relaxed);
    }

    /// Takes the lock to read, beside others if it is biased. Always in line: it is on the path of
    /// each fault, twice.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// assert_eq!(*map.read(&mut thread.held()).0, 1);
    /// ```
    #[inline(always)]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub fn read<'a, P: Before<L>>(
        &'a self,
        held: &'a mut Held<'_, P>,
    ) -> (Access<'a, R, T>, Held<'a, L>) {
        (self.read_now(), held.deeper())
    }

    /// Takes the lock as [`read`](Self::read) does if `fits` holds once the lock is taken. If not,
    /// the reading ends, and the token is given back.
    ///
    /// # Errors
    /// The token.
    ///
    /// ```
    /// # use machine::{order::*, Shared, ThreadCtx};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let map = Shared::<Map, Lock, _>::new(1);
    /// let mut thread = ThreadCtx::new();
    /// assert!(map.read_if(&mut thread.held(), || true).is_ok());
    /// ```
    #[inline(always)]
    #[cfg_attr(feature = "__lines", track_caller)]
    pub fn read_if<'a, 'h, P: Before<L>>(
        &'a self,
        held: &'a mut Held<'h, P>,
        fits: impl FnOnce() -> bool,
    ) -> Result<Read<'a, L, R, T>, &'a mut Held<'h, P>> {
        let access = self.read_now();
        if fits() {
            Ok((access, held.deeper()))
        } else {
            Err(held)
        }
    }

    #[inline(always)]
    #[cfg_attr(feature = "__lines", track_caller)]
    fn read_now(&self) -> Access<'_, R, T> {
        if self.bias.load(Relaxed) {
            if let Some(read) = self.enter() {
                return Access::Shared(read);
            }
        }
        self.read_by_lock()
    }

    #[inline(always)]
    #[cfg_attr(feature = "__lines", track_caller)]
    fn read_by_lock(&self) -> Access<'_, R, T> {
        let guard = self.lock.take();
        let rows = R::rows();
        if rows.len() > 1 {
            if let Some(place) = self.read_once_more(rows) {
                return Access::Shared(ReadGuard { place, cell: self.lock.cell() });
            }
        }
        Access::Exclusive(guard)
    }

    /// Counts a read with the lock held. Where it is biased, or becomes so now, the CPU's row names
    /// the lock.
    #[inline(never)]
    fn read_once_more(&self, rows: &'static [Row]) -> Option<&'static Place> {
        let quiet = self.quiet.load(Relaxed) + 1;
        let is_biased = self.bias.load(Relaxed);
        if is_biased || quiet as usize > rows.len() * QUIET {
            // The lock is held, so no writer ends the bias meanwhile.
            if let Some(place) = rows.get(R::cpu()).and_then(|row| row.take(self.id())) {
                self.bias.store(true, Release);
                return Some(place);
            }
            if is_biased {
                self.wait_for_readers();
            }
        }
        self.quiet.store(quiet, Relaxed);
        None
    }

    /// Names the lock in this CPU's row, if it is still biased then.
    #[inline]
    #[cfg_attr(feature = "__lines", track_caller)]
    fn enter(&self) -> Option<ReadGuard<'_, T>> {
        let place = R::rows().get(R::cpu())?.take(self.id())?;
        // With acquire: what was changed before the lock became biased is seen.
        if self.bias.load(SeqCst) {
            return Some(ReadGuard { place, cell: self.lock.cell() });
        }
        place.empty();
        None
    }

    /// Ends the bias, with the lock held: it is to be changed.
    #[inline]
    fn end_bias(&self) {
        self.quiet.store(0, Relaxed);
        if self.bias.load(Relaxed) {
            self.wait_for_readers();
        }
    }

    /// Ends the bias and waits for the readers, with the lock held; notes which CPUs have pins.
    #[cold]
    #[inline(never)]
    fn wait_for_readers(&self) {
        self.bias.store(false, SeqCst);
        loom_fence();
        let mut pinned = self.pinned.load(Relaxed);
        for (cpu, row) in R::rows().iter().enumerate() {
            for place in &row.0 {
                let mut lock = 0;
                R::wait_until(|| {
                    lock = place.lock.load(SeqCst);
                    lock != self.id()
                });
                if lock == self.id() | PIN {
                    pinned |= 1 << (cpu % 64);
                }
            }
        }
        self.pinned.store(pinned, Relaxed);
    }

    /// The value, where no other thread can know the lock.
    ///
    /// ```
    /// # use machine::{order::*, Shared};
    /// # type Lock = <uvm_soft::StdThreads as uvm_soft::Threads>::Lock;
    /// let mut map = Shared::<Map, Lock, _>::new(1);
    /// *map.get_mut() += 1;
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<L, R, T> Shared<L, R, T> {
    #[inline]
    fn id(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

impl<L: Level, R, T> fmt::Debug for Shared<L, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}
