//! Futexes: sleeping until a thread says that a word of user memory may have changed.
//!
//! A word is compared with the bucket locked that waiters on it enter. A waker changes the word
//! first and then looks at the bucket. So either a waiter sees the new value, or the waker sees the
//! waiter; and what is moved to another word because the first one had a value was waiting while it
//! had that value. A read under the lock doesn't bring the page in: if it isn't there, the lock is
//! given back, the page brought in, and all begins anew.
//!
//! A bucket is in order of keys, and of a key in order of numbers that waiters get when they come,
//! so that nobody walks past those of other words. Whoever wakes or moves many gives the lock back
//! now and then; those that have come meanwhile have numbers above the one where it ends.
//!
//! Invariants: F1: a waiter is in the bucket of its key exactly while `woken` is false. F2: a
//! waiter's key and number change only with both buckets locked (lower index first). F3: a number
//! is given with the bucket locked that the waiter enters.
//!
//! Locks: buckets, then those of `futex_pi`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::futex_pi::{self, Moved};
use super::thread::Restart;
use super::{current_thread, table};
use crate::arch::layout::USER_END;
use crate::errno::{
    Result, EAGAIN, EFAULT, EINVAL, ENOSYS, ERESTARTNOINTR, ERESTARTSYS, ERESTART_RESTARTBLOCK,
    ETIMEDOUT,
};
use crate::sched::{self, Nanos};
use crate::sync::{SpinGuard, SpinLock, WaitQueue, Woken};
use crate::user;

const BUCKETS: usize = 64;
/// The bit set of plain waits and wakes.
const ANY: u32 = u32::MAX;

/// What makes two futex words the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// An address in one address space.
    Private { mm: usize, va: u64 },
    /// A place in an object, whatever space maps it.
    Shared { object: u64, offset: u64 },
}

impl Key {
    /// The key of a word. `scope` says whether other address spaces count.
    pub(super) fn of(va: u64, scope: Scope) -> Result<Key> {
        if !va.is_multiple_of(4) {
            return Err(EINVAL);
        }
        if va >= USER_END {
            return Err(EFAULT);
        }
        let mm = current_thread().own_mm().ok_or(EFAULT)?;
        if scope == Scope::Shared {
            if let Some((object, offset)) = crate::vm::shared_key(&mm.space, va) {
                return Ok(Key::Shared { object, offset });
            }
        }
        Ok(Key::Private { mm: Arc::as_ptr(&*mm) as usize, va })
    }

    /// Whether other processes may wait for the word too.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Key::Shared { .. })
    }

    /// The key of a word that is there: in memory that others may share, a word without a mapping
    /// is no futex.
    fn there(va: u64, scope: Scope) -> Result<Key> {
        let key = Key::of(va, scope)?;
        if scope == Scope::Shared {
            user::load_u32(va)?;
        }
        Ok(key)
    }

    /// The key of a word that may be written, in memory that others may share.
    fn written(va: u64, scope: Scope) -> Result<Key> {
        let key = Key::of(va, scope)?;
        if scope == Scope::Shared {
            let value = user::load_u32(va)?;
            user::compare_exchange_u32(va, value, value)?;
        }
        Ok(key)
    }

    fn bucket(self) -> usize {
        let mixed = match self {
            Key::Private { mm, va } => (mm as u64 >> 4) ^ (va >> 2),
            Key::Shared { object, offset } => object ^ (offset >> 2),
        };
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
    }
}

/// Whether a futex is for the threads of one process only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Private,
    Shared,
}

/// Where a waiter is: its key, and its number among those of the key.
type Place = (Key, u64);

struct Waiter {
    place: SpinLock<Place>,
    bits: u32,
    woken: AtomicBool,
    queue: WaitQueue,
    /// Of one that is only moved: the wait for a mutex that it becomes.
    becomes: Option<Arc<futex_pi::Wait>>,
}

impl Waiter {
    fn new(key: Key, bits: u32, becomes: Option<Arc<futex_pi::Wait>>) -> Arc<Waiter> {
        Arc::new(Waiter {
            place: SpinLock::new((key, 0)),
            bits,
            woken: AtomicBool::new(false),
            queue: WaitQueue::new(),
            becomes,
        })
    }

    /// Puts it, which is nowhere, into a locked bucket, behind all others of the key.
    fn enter(self: &Arc<Waiter>, bucket: &mut Bucket, key: Key) {
        let place = (key, NUMBERS.fetch_add(1, Ordering::Relaxed));
        *self.place.lock() = place;
        bucket.insert(place, self.clone());
    }

    /// Wakes it, which is in no bucket any more.
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.queue.wake_all();
    }
}

type Bucket = BTreeMap<Place, Arc<Waiter>>;

/// Takes a waiter out of a locked bucket, which keeps no memory when it is empty. Whether it was
/// there.
fn take_out(bucket: &mut Bucket, place: &Place) -> bool {
    let found = bucket.remove(place).is_some();
    if bucket.is_empty() {
        *bucket = BTreeMap::new();
    }
    found
}

static TABLE: [SpinLock<Bucket>; BUCKETS] = [const { SpinLock::new(BTreeMap::new()) }; BUCKETS];
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Waiters that are looked at with their bucket locked.
const BATCH: usize = 64;

/// Those of a key who wait when a call begins, from the first to the last.
struct Walk {
    key: Key,
    next: u64,
    end: u64,
}

impl Walk {
    /// With the key's bucket locked.
    fn new(key: Key) -> Walk {
        Walk { key, next: 0, end: NUMBERS.load(Ordering::Relaxed) }
    }

    fn next(&mut self, bucket: &Bucket) -> Option<(Place, Arc<Waiter>)> {
        let here = (self.key, self.next)..(self.key, self.end);
        let (&place, waiter) = bucket.range(here).next()?;
        self.next = place.1 + 1;
        Some((place, waiter.clone()))
    }
}

/// Wakes up to `count` waiters whose bits meet `bits`. Returns how many.
///
/// # Errors
/// `EINVAL`: the next one is to be moved to a mutex.
fn wake_key(key: Key, count: usize, bits: u32) -> Result<usize> {
    let mut woken = 0;
    let mut bucket = TABLE[key.bucket()].lock();
    let mut walk = Walk::new(key);
    loop {
        for _ in 0..BATCH {
            if woken == count {
                return Ok(woken);
            }
            let Some((place, waiter)) = walk.next(&bucket) else { return Ok(woken) };
            if waiter.becomes.is_some() {
                return Err(EINVAL);
            }
            if waiter.bits & bits != 0 {
                take_out(&mut bucket, &place);
                waiter.wake();
                woken += 1;
            }
        }
        drop(bucket);
        sched::give_way();
        bucket = TABLE[key.bucket()].lock();
    }
}

/// Wakes waiters on a word of the running thread's memory, whatever scope they named.
pub fn wake_address(va: u64, count: usize) {
    if let Ok(key) = Key::of(va, Scope::Shared) {
        let _ = wake_key(key, count, ANY);
    }
}

/// Takes a waiter out of its bucket. Returns whether it was woken before.
fn withdraw(waiter: &Waiter) -> bool {
    loop {
        let place = *waiter.place.lock();
        let mut bucket = TABLE[place.0.bucket()].lock();
        if waiter.woken.load(Ordering::Acquire) {
            return true;
        }
        if take_out(&mut bucket, &place) {
            return false;
        }
    }
}

/// Sleeps while the word is `expected`, until woken, `deadline` (monotonic), or a signal.
fn wait(
    va: u64,
    scope: Scope,
    expected: u32,
    deadline: Option<Nanos>,
    bits: u32,
) -> Result<(), Stop> {
    if bits == 0 {
        return Err(Stop::Errno(EINVAL));
    }
    let key = Key::of(va, scope)?;
    let waiter = Waiter::new(key, bits, None);
    waiter.enter(&mut *compared(va, expected, || TABLE[key.bucket()].lock())?, key);
    let woken = || waiter.woken.load(Ordering::Acquire).then_some(());
    let outcome = waiter.queue.wait_intr(deadline, woken).map_err(|why| match why {
        Woken::Timeout => Stop::Errno(ETIMEDOUT),
        Woken::Signal => Stop::Signal,
    });
    match outcome {
        Err(_) if withdraw(&waiter) => Ok(()),
        other => other,
    }
}

/// `FUTEX_WAIT_REQUEUE_PI`: sleeps while the word is `expected`, until the thread owns the mutex at
/// `va2`, to which another call moves it.
fn wait_to_own(
    va: u64,
    va2: u64,
    scope: Scope,
    expected: u32,
    deadline: Option<Nanos>,
) -> Result<u64> {
    if va == va2 {
        return Err(EINVAL);
    }
    let (to, from) = (Key::written(va2, scope)?, Key::of(va, scope)?);
    let wait = futex_pi::Wait::new(&current_thread(), to)?;
    let waiter = Waiter::new(from, ANY, Some(wait.clone()));
    {
        let mut bucket = compared(va, expected, || TABLE[from.bucket()].lock())?;
        if from == to {
            return Err(EINVAL);
        }
        waiter.enter(&mut bucket, from);
    }
    if let Err(why) = wait.until_granted(deadline) {
        let was_moved = withdraw(&waiter);
        if !was_moved || futex_pi::withdraw(&wait) {
            return Err(match why {
                Woken::Timeout => ETIMEDOUT,
                // To begin anew would be to wait for another move.
                Woken::Signal if was_moved => EAGAIN,
                Woken::Signal => ERESTARTNOINTR,
            });
        }
    }
    wait.own(va2)?;
    Ok(0)
}

/// What `lock` gives, taken while the word at `va` is `expected`; `EAGAIN` if it is another.
fn compared<T>(va: u64, expected: u32, lock: impl Fn() -> T) -> Result<T> {
    loop {
        let locked = lock();
        match user::peek_u32(va) {
            Ok(value) if value == expected => return Ok(locked),
            Ok(_) => return Err(EAGAIN),
            Err(_) => drop(locked),
        }
        user::load_u32(va)?;
    }
}

/// Why a wait ended without a wake-up.
enum Stop {
    Errno(crate::errno::Errno),
    Signal,
}

impl From<crate::errno::Errno> for Stop {
    fn from(errno: crate::errno::Errno) -> Stop {
        Stop::Errno(errno)
    }
}

/// A wait as the system call makes it: a signal restarts it with what is left of its time.
fn wait_call(
    va: u64,
    scope: Scope,
    expected: u32,
    deadline: Option<Nanos>,
    bits: u32,
) -> Result<u64> {
    match wait(va, scope, expected, deadline, bits) {
        Ok(()) => Ok(0),
        Err(Stop::Errno(errno)) => Err(errno),
        Err(Stop::Signal) => {
            let Some(deadline) = deadline else { return Err(ERESTARTSYS) };
            let what = u64::from(expected) << 32 | u64::from(bits);
            let shared = u64::from(scope == Scope::Shared);
            let args = [va, what, deadline, shared];
            *current_thread().restart.lock() = Some(Restart { call: wait_again, args });
            Err(ERESTART_RESTARTBLOCK)
        }
    }
}

fn wait_again(args: &[u64; 4]) -> Result<u64> {
    let [va, what, deadline, shared] = *args;
    let scope = if shared != 0 { Scope::Shared } else { Scope::Private };
    wait_call(va, scope, (what >> 32) as u32, Some(deadline), what as u32)
}

/// The locked buckets of two keys.
struct Both {
    first: SpinGuard<'static, Bucket>,
    /// None if it is the same.
    second: Option<SpinGuard<'static, Bucket>>,
    /// Whether `second` is the bucket of the first key.
    swapped: bool,
}

impl Both {
    fn lock(from: Key, to: Key) -> Both {
        let (a, b) = (from.bucket(), to.bucket());
        let first = TABLE[a.min(b)].lock();
        Both { first, second: (a != b).then(|| TABLE[a.max(b)].lock()), swapped: b < a }
    }

    /// The bucket of the first key.
    fn source(&mut self) -> &mut Bucket {
        match &mut self.second {
            Some(second) if self.swapped => second,
            _ => &mut self.first,
        }
    }

    /// The bucket of the second key.
    fn target(&mut self) -> &mut Bucket {
        match &mut self.second {
            Some(second) if !self.swapped => second,
            _ => &mut self.first,
        }
    }
}

/// Wakes `wake` waiters of one word and moves up to `most` others to another, if the first word is
/// `expected`. Returns how many it touched.
///
/// # Errors
/// `EAGAIN`: the word is another; `EINVAL`: the next one is to be moved to a mutex; `EFAULT`.
fn requeue(
    va: u64,
    (from, to): (Key, Key),
    wake: usize,
    most: usize,
    expected: Option<u32>,
) -> Result<usize> {
    let lock = || Both::lock(from, to);
    let mut both = match expected {
        Some(expected) => compared(va, expected, lock)?,
        None => lock(),
    };
    let (mut walk, mut done) = (Walk::new(from), 0);
    loop {
        for _ in 0..BATCH {
            if done == wake.saturating_add(most) {
                return Ok(done);
            }
            let Some((place, waiter)) = walk.next(both.source()) else { return Ok(done) };
            if waiter.becomes.is_some() {
                return Err(EINVAL);
            }
            if done < wake {
                take_out(both.source(), &place);
                waiter.wake();
            } else if from != to {
                take_out(both.source(), &place);
                waiter.enter(both.target(), to);
            }
            done += 1;
        }
        drop(both);
        sched::give_way();
        both = lock();
    }
}

/// `FUTEX_CMP_REQUEUE_PI`: makes the first of those that wait for one word so the owner of the
/// mutex at `va2`, if it is free, and up to `most` others wait for that, if the word is `expected`.
/// Returns how many it touched.
///
/// # Errors
/// As [`requeue`], `EINVAL` for those that wait otherwise; as [`futex_pi::lock`].
fn requeue_to_own(
    va: u64,
    va2: u64,
    (from, to): (Key, Key),
    most: usize,
    expected: u32,
) -> Result<usize> {
    if from == to {
        return Err(EINVAL);
    }
    let lock = || Both::lock(from, to);
    let (mut walk, mut done) = (None, 0);
    while !sched::is_leaving() {
        let owner = table::thread(futex_pi::owner_of(user::load_u32(va2)?));
        let mut both = match &walk {
            None => compared(va, expected, lock)?,
            Some(_) => lock(),
        };
        let walk = walk.get_or_insert_with(|| Walk::new(from));
        let mut owner = owner;
        for _ in 0..BATCH {
            if done == most.saturating_add(1) {
                return Ok(done);
            }
            let at = walk.next;
            let Some((place, waiter)) = walk.next(both.source()) else { return Ok(done) };
            let wait = waiter.becomes.as_ref().filter(|wait| wait.is_for(to)).ok_or(EINVAL)?;
            match futex_pi::move_in(va2, wait, owner.as_ref(), most > 0)? {
                Moved::Owns => owner = Some(wait.thread().clone()),
                Moved::Waits => {}
                Moved::Not => {
                    walk.next = at;
                    break;
                }
            }
            take_out(both.source(), &place);
            waiter.woken.store(true, Ordering::Release);
            done += 1;
        }
        drop(both);
        // The word has changed, or its page is to be brought in.
        let value = user::load_u32(va2)?;
        user::compare_exchange_u32(va2, value, value)?;
        sched::give_way();
    }
    Err(ERESTARTNOINTR)
}

/// `FUTEX_WAKE_OP`: changes the second word atomically, wakes waiters of the first, and of the
/// second if its old value passes the test.
fn wake_op(key: Key, va2: u64, scope: Scope, counts: (usize, usize), op: u32) -> Result<usize> {
    let key2 = Key::of(va2, scope)?;
    let sign = |bits: u32| ((bits << 20) as i32) >> 20;
    let shift = op >> 31 != 0;
    let operand = sign(op >> 12 & 0xfff);
    let operand = if shift { 1i32.wrapping_shl(operand as u32) } else { operand } as u32;
    let test = sign(op & 0xfff);
    let old = loop {
        let old = user::load_u32(va2)?;
        let new = match op >> 28 & 7 {
            0 => operand,
            1 => old.wrapping_add(operand),
            2 => old | operand,
            3 => old & !operand,
            4 => old ^ operand,
            _ => return Err(ENOSYS),
        };
        if user::compare_exchange_u32(va2, old, new)? == old {
            break old as i32;
        }
    };
    let passes = match op >> 24 & 0xf {
        0 => old == test,
        1 => old != test,
        2 => old < test,
        3 => old <= test,
        4 => old > test,
        5 => old >= test,
        _ => return Err(ENOSYS),
    };
    let mut woken = wake_key(key, counts.0, ANY)?;
    if passes {
        woken += wake_key(key2, counts.1, ANY)?;
    }
    Ok(woken)
}

const PRIVATE_FLAG: u32 = 128;
const CLOCK_REALTIME_FLAG: u32 = 256;
const WAIT_BITSET: u32 = 9;
const LOCK_PI: u32 = 6;
const UNLOCK_PI: u32 = 7;
const TRYLOCK_PI: u32 = 8;
const WAIT_REQUEUE_PI: u32 = 11;
const CMP_REQUEUE_PI: u32 = 12;
const LOCK_PI2: u32 = 13;

/// The futex system call.
pub fn futex(va: u64, op: u32, value: u32, timeout: u64, va2: u64, value3: u32) -> Result<u64> {
    let scope = if op & PRIVATE_FLAG != 0 { Scope::Private } else { Scope::Shared };
    let command = op & !(PRIVATE_FLAG | CLOCK_REALTIME_FLAG);
    if op & CLOCK_REALTIME_FLAG != 0 && !matches!(command, WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2)
    {
        return Err(ENOSYS);
    }
    let count = |n: u32| n as usize;
    // A call that wakes and moves nothing wakes one waiter at least.
    let waking = |n: u32| (n as i32).max(1) as usize;
    let second = timeout as u32;
    match command {
        0 | WAIT_BITSET => {
            let bits = if command == 0 { ANY } else { value3 };
            let deadline = deadline(command == 0, op & CLOCK_REALTIME_FLAG != 0, timeout)?;
            wait_call(va, scope, value, deadline, bits)
        }
        1 => Ok(wake_key(Key::there(va, scope)?, waking(value), ANY)? as u64),
        10 if value3 == 0 => Err(EINVAL),
        10 => Ok(wake_key(Key::there(va, scope)?, waking(value), value3)? as u64),
        3 | 4 => {
            if (value as i32) < 0 || (second as i32) < 0 {
                return Err(EINVAL);
            }
            let (from, to) = (Key::there(va, scope)?, Key::written(va2, scope)?);
            let expected = (command == 4).then_some(value3);
            Ok(requeue(va, (from, to), count(value), count(second), expected)? as u64)
        }
        5 => {
            let counts = (waking(value), waking(second));
            Ok(wake_op(Key::there(va, scope)?, va2, scope, counts, value3)? as u64)
        }
        LOCK_PI | LOCK_PI2 => {
            let is_wall = command == LOCK_PI || op & CLOCK_REALTIME_FLAG != 0;
            futex_pi::lock(va, scope, deadline(false, is_wall, timeout)?, true)
        }
        WAIT_REQUEUE_PI => {
            let deadline = deadline(false, op & CLOCK_REALTIME_FLAG != 0, timeout)?;
            wait_to_own(va, va2, scope, value, deadline)
        }
        CMP_REQUEUE_PI => {
            if (value as i32) < 0 || (second as i32) < 0 || va == va2 || value != 1 {
                return Err(EINVAL);
            }
            let keys = (Key::there(va, scope)?, Key::written(va2, scope)?);
            Ok(requeue_to_own(va, va2, keys, count(second), value3)? as u64)
        }
        UNLOCK_PI => futex_pi::unlock(va, scope),
        TRYLOCK_PI => futex_pi::lock(va, scope, None, false),
        _ => Err(ENOSYS),
    }
}

/// The monotonic end of a wait; its timeout is a span for plain waits, else a time of either clock.
fn deadline(is_span: bool, is_wall: bool, timeout: u64) -> Result<Option<Nanos>> {
    if timeout == 0 {
        return Ok(None);
    }
    let given = crate::time::read_timespec(timeout)?;
    let now = sched::now();
    Ok(Some(if is_span {
        now.saturating_add(given)
    } else if is_wall {
        now.saturating_add(given.saturating_sub(sched::wall()))
    } else {
        given
    }))
}
