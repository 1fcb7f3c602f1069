//! Locks that many read at once, without a word that they all write.
//!
//! ```text
//!   open lock:    reader --> its CPU's row | lock 7 |   -   |   -   |   -   |    then looks again: still open?
//!   to change:    writer --> takes the lock, closes it, waits until no row names it
//! ```
//! A reader-writer lock counts its readers in one word, which then moves from CPU to CPU as a plain
//! lock would. Here a reader says what it reads in its own CPU's [`Row`] and the lock's line stays
//! where it is, in every CPU's cache. What this costs falls on the writer, who must look at each
//! row; so a lock opens to readers only after it was read several times for each CPU without a
//! change, and is an ordinary lock till then and on machines of one CPU.
//!
//! Source: Dice and Kogan, BRAVO: biased locking for reader-writer locks (USENIX ATC 2019), with
//! rows by CPU in place of their table by hash.
//!
//! I1: while `open`, nobody has a [`Guard`]: who takes the lock closes it and waits for those whose
//! rows name it. I2: who names an open lock in a row and finds it still open may read until the
//! place is empty again. Both follow from one order of four accesses that all CPUs agree on: the
//! reader writes its place and then reads `open`; the writer writes `open` and then reads the
//! places; so one of the two sees the other.
//!
//! A lock that is changed time and again stays closed. Who would hold it for long to read
//! ([`Shared::read_beside_if`]) then counts itself in its word `inside`, with the lock held, and
//! gives the lock back: those who read run beside each other there too, at the price of a line that
//! moves. I3: who has the lock to change something waits until nobody is inside.

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use crate::order::{Before, Guard, Held, Level, Ordered, RawLock};
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Deref;

/// Locks that one CPU reads at once: map, submap, amap, object.
const PLACES: usize = 4;

/// Reads without a change, for each CPU, before a lock is opened.
const QUIET: usize = 2;

/// What the threads of one CPU read. A line of its own.
#[repr(align(64))]
pub struct Row([AtomicUsize; PLACES]);

impl Row {
    /// A row that names nothing.
    #[cfg(not(feature = "loom"))]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Row {
        Row([const { AtomicUsize::new(0) }; PLACES])
    }

    /// A row that names nothing.
    #[cfg(feature = "loom")]
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub fn new() -> Row {
        Row([const { 0 }; PLACES].map(AtomicUsize::new))
    }

    /// Whether it names nothing: no thread that uses it reads what a lock guards.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|place| place.load(Relaxed) == 0)
    }

    /// Takes a place for a lock; none if there are too many, or somebody else took it first.
    #[inline]
    #[cfg_attr(feature = "lines", track_caller)]
    fn take(&self, lock: usize) -> Option<&AtomicUsize> {
        let place = self.0.iter().find(|place| place.load(Relaxed) == 0)?;
        place.compare_exchange(0, lock, SeqCst, Relaxed).ok()?;
        loom_fence();
        Some(place)
    }
}

/// A value on cache lines of its own: who writes it doesn't take from other CPUs what lies beside.
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
    #[cfg(feature = "loom")]
    loom::sync::atomic::fence(SeqCst);
}

/// A `T` behind a lock `R` of level `L` that several threads may read at once. What it keeps of
/// itself and the beginning of `T` lie side by side, mostly in one cache line.
#[repr(C)]
pub struct Shared<L, R, T> {
    open: AtomicBool,
    /// Reads since the last change; written by who holds the lock.
    quiet: AtomicU32,
    /// Those who read beside others while it is closed; raised by who holds the lock.
    inside: AtomicU32,
    lock: Ordered<L, R, T>,
}

// SAFETY: as for `Ordered`; and what readers share is `&T`, hence `Sync`.
unsafe impl<L, R: Sync, T: Send + Sync> Sync for Shared<L, R, T> {}

/// What [`Shared::read`] gives.
pub enum Access<'a, R: RawLock, T> {
    /// Others may be reading too.
    Among(Reading<'a, T>),
    /// The caller holds the lock as by [`Shared::lock`].
    Alone(Guard<'a, R, T>),
}

impl<'a, R: RawLock, T> Access<'a, R, T> {
    /// Whether nobody else has any access.
    #[inline]
    #[must_use]
    pub fn is_alone(&self) -> bool {
        matches!(self, Access::Alone(_))
    }

    /// Whether others may read too, though the lock is changed too often to be open.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        matches!(self, Access::Among(Reading { by: By::Count(_), .. }))
    }

    /// Leave to change what was read, if the caller has it alone; if not, the reading ends.
    #[inline]
    pub fn alone(self) -> Option<Guard<'a, R, T>> {
        match self {
            Access::Among(_) => None,
            Access::Alone(guard) => Some(guard),
        }
    }
}

impl<R: RawLock, T> Deref for Access<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        match self {
            Access::Among(reading) => reading,
            Access::Alone(guard) => guard,
        }
    }
}

/// What a lock gives that is taken to change what it guards.
pub type Locked<'a, L, R, T> = (Guard<'a, R, T>, Held<'a, L>);
/// What one gives that is taken to read.
pub type Read<'a, L, R, T> = (Access<'a, R, T>, Held<'a, L>);

/// Leave to read among others; ends when dropped.
#[must_use]
pub struct Reading<'a, T> {
    by: By<'a>,
    cell: &'a UnsafeCell<T>,
}

/// What says that somebody reads.
enum By<'a> {
    /// A place in a row that names the lock.
    Row(&'a AtomicUsize),
    /// The lock's count of those inside.
    Count(&'a AtomicU32),
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: no one uses a guard while a row names the lock (I1) or somebody is inside (I3),
        // and other readers have `&T` too.
        unsafe { &*self.cell.get() }
    }
}

impl<T> Drop for Reading<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.by {
            By::Row(place) => place.store(0, Release),
            By::Count(inside) => {
                inside.fetch_sub(1, Release);
            }
        }
    }
}

impl<L: Level, R: RawLock, T> Shared<L, R, T> {
    /// `value` behind a free lock.
    pub fn new(value: T) -> Self {
        Shared {
            lock: Ordered::new(value),
            open: AtomicBool::new(false),
            quiet: AtomicU32::new(0),
            inside: AtomicU32::new(0),
        }
    }

    /// Takes the lock to change what it guards, as [`Ordered::lock`] does. Cost where it was open:
    /// a look at each CPU's row, and the wait for those who read.
    #[inline]
    #[cfg_attr(feature = "lines", track_caller)]
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
    #[cfg_attr(feature = "lines", track_caller)]
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
    #[cfg_attr(feature = "lines", track_caller)]
    fn lock_now(&self) -> Guard<'_, R, T> {
        let guard = self.lock.take();
        self.quiet.store(0, Relaxed);
        self.exclude();
        guard
    }

    /// Takes two different locks of one level to change what they guard, as [`Ordered::lock_pair`]
    /// does.
    ///
    /// # Panics
    /// If both are the same lock.
    pub fn lock_pair<'a, P: Before<L>>(
        a: &'a Self,
        b: &'a Self,
        held: &'a mut Held<'_, P>,
    ) -> (Guard<'a, R, T>, Guard<'a, R, T>, Held<'a, L>) {
        let locked = Ordered::lock_pair(&a.lock, &b.lock, held);
        for one in [a, b] {
            one.quiet.store(0, Relaxed);
            one.exclude();
        }
        locked
    }

    /// Takes the lock to read, among others if it has been quiet for long. Always in line: it is on
    /// the path of each fault, twice.
    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
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
    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
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
    #[cfg_attr(feature = "lines", track_caller)]
    fn read_now(&self) -> Access<'_, R, T> {
        if self.open.load(Relaxed) {
            if let Some(reading) = self.enter() {
                return Access::Among(reading);
            }
        }
        self.read_by_lock()
    }

    /// Takes the lock as [`read_if`](Self::read_if) does, for a thread that reads for long: beside
    /// other readers even if the lock hasn't been quiet, unless the machine has one CPU.
    ///
    /// # Errors
    /// The token.
    #[inline]
    #[cfg_attr(feature = "lines", track_caller)]
    pub fn read_beside_if<'a, 'h, P: Before<L>>(
        &'a self,
        held: &'a mut Held<'h, P>,
        fits: impl FnOnce() -> bool,
    ) -> Result<Read<'a, L, R, T>, &'a mut Held<'h, P>> {
        let access = self.read_beside_now();
        if fits() {
            Ok((access, held.deeper()))
        } else {
            Err(held)
        }
    }

    #[inline]
    #[cfg_attr(feature = "lines", track_caller)]
    fn read_beside_now(&self) -> Access<'_, R, T> {
        if self.open.load(Relaxed) {
            if let Some(reading) = self.enter() {
                return Access::Among(reading);
            }
        }
        let guard = self.lock.take();
        if !R::has_several_rows() {
            return Access::Alone(guard);
        }
        let by = match self.read_once_more(R::rows()) {
            Some(place) => By::Row(place),
            None => {
                self.inside.fetch_add(1, Relaxed);
                By::Count(&self.inside)
            }
        };
        drop(guard);
        Access::Among(Reading { by, cell: self.lock.cell() })
    }

    /// Goes on reading what was locked to be changed: beside others, unless there is one CPU alone.
    ///
    /// # Panics
    /// If the guard is another lock's.
    #[inline]
    pub fn read_on<'a>(&'a self, guard: Guard<'a, R, T>) -> Access<'a, R, T> {
        // Safe code could else read what nobody keeps from being changed.
        assert!(core::ptr::eq(&raw const *guard, self.lock.cell().get()), "another lock's guard");
        if !R::has_several_rows() {
            return Access::Alone(guard);
        }
        self.inside.fetch_add(1, Relaxed);
        drop(guard);
        Access::Among(Reading { by: By::Count(&self.inside), cell: self.lock.cell() })
    }

    #[inline(always)]
    #[cfg_attr(feature = "lines", track_caller)]
    fn read_by_lock(&self) -> Access<'_, R, T> {
        let guard = self.lock.take();
        let rows = R::rows();
        if rows.len() > 1 {
            if let Some(place) = self.read_once_more(rows) {
                return Access::Among(Reading { by: By::Row(place), cell: self.lock.cell() });
            }
        }
        self.exclude();
        Access::Alone(guard)
    }

    /// Counts a read with the lock held. Where it is open, or opens now, it is this CPU's row that
    /// says who reads.
    #[inline(never)]
    fn read_once_more(&self, rows: &'static [Row]) -> Option<&'static AtomicUsize> {
        let quiet = self.quiet.load(Relaxed) + 1;
        let is_open = self.open.load(Relaxed);
        if is_open || quiet as usize > rows.len() * QUIET {
            // Nobody can close it meanwhile.
            if let Some(place) = rows.get(R::cpu()).and_then(|row| row.take(self.id())) {
                self.open.store(true, Release);
                return Some(place);
            }
            if is_open {
                self.close();
            }
        }
        self.quiet.store(quiet, Relaxed);
        None
    }

    /// Says in this CPU's row that the lock is read, if it is still open then.
    #[inline]
    #[cfg_attr(feature = "lines", track_caller)]
    fn enter(&self) -> Option<Reading<'_, T>> {
        let place = R::rows().get(R::cpu())?.take(self.id())?;
        // With acquire: what was changed before the lock was opened is seen.
        if self.open.load(SeqCst) {
            return Some(Reading { by: By::Row(place), cell: self.lock.cell() });
        }
        place.store(0, Release);
        None
    }

    /// Waits for who reads beside others, with the lock held.
    #[inline]
    fn exclude(&self) {
        if self.open.load(Relaxed) {
            self.close();
        }
        if self.inside.load(Acquire) != 0 {
            self.wait_for_those_inside();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_those_inside(&self) {
        R::wait_until(|| self.inside.load(Acquire) == 0);
    }

    /// Waits for who reads, with the lock held, and lets nobody follow.
    #[cold]
    #[inline(never)]
    fn close(&self) {
        self.open.store(false, SeqCst);
        loom_fence();
        for place in R::rows().iter().flat_map(|row| &row.0) {
            R::wait_until(|| place.load(SeqCst) != self.id());
        }
    }

    /// The value, where nobody else can know the lock.
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
