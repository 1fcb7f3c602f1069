//! Allocations that can fail: where they do, and failures on purpose.
//!
//! ```text
//!   large pieces    what a program chooses the size of: `attempt`           may fail
//!   announced       what the VM system needs for an operation: `reserve`    may fail, before anything changes
//!   frames          tables, stacks, pages of pipes and sockets              may fail
//!   small pieces    all else, up to `SMALL` bytes each                      never fail: see `heap`'s cushion
//! ```
//! A thread may ask for the failure of one of its next allocations that can fail, by number:
//! `/proc/PID/task/TID/fail-nth`, after Linux's
//! `Documentation/fault-injection/fault-injection.rst`. So a test sees each such place of a system
//! call fail once.
//!
//! Builds with debug assertions check the other half: that no large piece is asked for outside
//! [`attempt`], and how much small pieces come to in a system call. `/proc/vmstat` tells:
//! `heap_unannounced`, `heap_call_peak`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hash;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;
use machine::NoMemory;

use crate::arch::cpu;

/// The largest piece that can't fail.
pub const SMALL: usize = 16 * 1024;

/// Threads that have asked for a failure.
static ARMED: AtomicU32 = AtomicU32::new(0);
/// Large pieces asked for outside `attempt`.
static UNANNOUNCED: AtomicU64 = AtomicU64::new(0);
/// The most bytes of small pieces, less those freed, that a system call has taken without
/// announcing them.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Which of the thread's next fallible allocations shall fail: 1 for the first, 0 for none.
#[derive(Default)]
pub struct Nth {
    nth: AtomicU32,
    /// An allocation has failed on purpose, and the thread has not asked for room since.
    has_struck: AtomicBool,
}

impl Nth {
    pub fn get(&self) -> u32 {
        self.nth.load(Relaxed)
    }

    pub fn set(&self, nth: u32) {
        ARMED.fetch_add(u32::from(nth != 0), Relaxed);
        let old = self.nth.swap(nth, Relaxed);
        self.has_struck.store(false, Relaxed);
        ARMED.fetch_sub(u32::from(old != 0), Relaxed);
    }

    /// Counts an allocation; returns whether it shall fail. Another thread may set the number
    /// meanwhile: it takes effect an allocation late at worst.
    fn strikes(&self) -> bool {
        match self.get() {
            0 => false,
            1 => {
                self.set(0);
                self.has_struck.store(true, Relaxed);
                true
            }
            n => {
                let _ = self.nth.compare_exchange(n, n - 1, Relaxed, Relaxed);
                false
            }
        }
    }
}

impl Drop for Nth {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What is known of a task's allocations; only those of programs' threads are looked at.
#[derive(Default)]
pub struct Allocations {
    /// One that is to fail.
    pub fail_nth: Nth,
    taken: Taken,
}

/// Calls `f` with what is known of the running thread's allocations, if it is a program's.
#[inline]
fn running<T>(f: impl FnOnce(&Allocations) -> T) -> Option<T> {
    let task = cpu::running()?;
    task.user().is_some().then(|| f(&task.allocations))
}

/// Fails if the running thread has asked for that. Each place where an allocation can fail comes
/// here first.
///
/// # Errors
/// [`NoMemory`].
#[inline]
pub fn point() -> Result<(), NoMemory> {
    if ARMED.load(Relaxed) != 0 && running(|own| own.fail_nth.strikes()) == Some(true) {
        return Err(NoMemory);
    }
    Ok(())
}

/// Whether the running thread has been refused memory on purpose, since this was asked last: then
/// there is some, and no process is to be killed for it.
pub fn has_struck() -> bool {
    running(|own| own.fail_nth.has_struck.swap(false, Relaxed)) == Some(true)
}

/// Whether a CPU is in [`attempt`].
static ATTEMPTS: [AtomicBool; cpu::MAX_CPUS] = [const { AtomicBool::new(false) }; cpu::MAX_CPUS];

/// Runs `grow`, an allocation that can fail and doesn't sleep: `try_reserve` of a size that a
/// program chooses.
///
/// # Errors
/// [`NoMemory`] for any error of `grow`.
#[inline]
pub fn attempt<T, E>(grow: impl FnOnce() -> Result<T, E>) -> Result<T, NoMemory> {
    point()?;
    let attempts = &ATTEMPTS[cpu::index()];
    attempts.store(true, Relaxed);
    let result = grow();
    attempts.store(false, Relaxed);
    result.map_err(|_| NoMemory)
}

/// Collections that a program chooses the size of.
pub trait Room: Default + IntoIterator + Extend<<Self as IntoIterator>::Item> {
    /// Makes room for `more` elements: that many additions won't allocate.
    ///
    /// # Errors
    /// [`NoMemory`]; nothing has changed.
    fn room(&mut self, more: usize) -> Result<(), NoMemory>;

    /// How many elements a collection of just the right size has room for, if this one is far too
    /// large for what is left in it.
    fn right_size(&self) -> Option<usize>;
}

/// Elements that a collection without any may have room for.
const KEPT: usize = 7;

macro_rules! room {
    ($([$($generics:tt)*] $type:ty);* $(;)?) => {$(
        impl<$($generics)*> Room for $type {
            #[inline]
            fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                if self.capacity() - self.len() >= more {
                    return Ok(());
                }
                attempt(|| self.try_reserve(more))
            }

            #[inline]
            fn right_size(&self) -> Option<usize> {
                let is_loose = self.capacity() > KEPT && self.len() <= self.capacity() / 8;
                is_loose.then(|| 2 * self.len())
            }
        }
    )*};
}
room! { [T] Vec<T>; [T] VecDeque<T>; [K: Eq + Hash, V] HashMap<K, V> }

/// Gives back most of a collection that is far too large for what is left in it; without memory it
/// stays as it is. For callers that take elements out: what they cost is given back with them, and
/// no program may keep the room. At most an eighth of the room is moved, once for all that were
/// taken out since.
#[inline]
pub fn shrink<C: Room>(collection: &mut C) {
    if let Some(size) = collection.right_size() {
        shrink_to(collection, size);
    }
}

#[cold]
fn shrink_to<C: Room>(collection: &mut C, size: usize) {
    let mut smaller = C::default();
    if smaller.room(size).is_ok() {
        smaller.extend(core::mem::take(collection));
        *collection = smaller;
    }
}

/// What an iterator yields, in a piece that can fail.
///
/// # Errors
/// [`NoMemory`].
pub fn gather<T>(from: impl Iterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut all = Vec::new();
    all.room(from.size_hint().0)?;
    for one in from {
        all.room(1)?;
        all.push(one);
    }
    Ok(all)
}

/// Whether this CPU is in [`attempt`].
#[inline]
pub(super) fn is_attempt() -> bool {
    ATTEMPTS[cpu::index()].load(Relaxed)
}

/// A large piece is asked for outside [`attempt`]: a caller that can't be refused.
#[cold]
pub(super) fn unannounced(bytes: usize) {
    /// How many are reported.
    const TOLD: u64 = 20;
    if running(|own| own.taken.is_excused.load(Relaxed)) != Some(false) {
        return;
    }
    if UNANNOUNCED.fetch_add(1, Relaxed) < TOLD && cfg!(debug_assertions) {
        crate::control!("trace heap: a piece of {bytes} bytes that can't fail");
        crate::arch::backtrace::show_here();
    }
}

/// What a system call takes of small pieces (debug builds).
#[derive(Default)]
pub struct Taken {
    /// Bytes since the last announcement, less those freed.
    bytes: core::sync::atomic::AtomicI64,
    /// Bytes announced.
    announced: core::sync::atomic::AtomicI64,
    /// The most by which earlier ones were exceeded, together.
    exceeded: core::sync::atomic::AtomicI64,
    is_excused: AtomicBool,
}

impl Taken {
    fn announce(&self, bytes: i64) {
        let excess = (self.bytes.swap(0, Relaxed) - self.announced.swap(bytes, Relaxed)).max(0);
        self.exceeded.fetch_add(excess, Relaxed);
    }
}

/// Runs foreign code that allocates as it likes, for a reason that the caller gives: its
/// allocations aren't reported. The code may sleep.
pub fn excused<T>(code: impl FnOnce() -> T) -> T {
    let excuse = |is| running(|own| own.taken.is_excused.swap(is, Relaxed)) == Some(true);
    let before = excuse(true);
    let result = code();
    excuse(before);
    result
}

/// A small piece was taken (or freed, below zero) by the running thread.
#[inline]
pub(super) fn took(bytes: i64) {
    running(|own| own.taken.bytes.fetch_add(bytes, Relaxed));
}

/// `bytes` were announced by `reserve`.
#[inline]
pub(super) fn announced(bytes: usize) {
    running(|own| own.taken.announce(bytes as i64));
}

/// A system call begins.
pub fn call_begins() {
    running(|own| {
        own.taken.announce(0);
        own.taken.exceeded.store(0, Relaxed);
    });
}

/// A system call ends.
pub fn call_ends(number: u64) {
    /// Bytes from which on a call is reported.
    const MUCH: u64 = 16 * 1024;
    let taken = running(|own| {
        own.taken.announce(0);
        own.taken.exceeded.load(Relaxed) as u64
    });
    let Some(taken) = taken else { return };
    let before = PEAK.fetch_max(taken, Relaxed);
    if taken > before && taken > MUCH {
        crate::control!("trace heap: system call {number} has taken {taken} bytes without notice");
    }
}

/// For `/proc/vmstat`.
pub fn counters() -> [(&'static str, u64); 2] {
    [("heap_unannounced", UNANNOUNCED.load(Relaxed)), ("heap_call_peak", PEAK.load(Relaxed))]
}
