//! Futexes: sleeping until a thread says that a word of user memory may have changed.
//!
//! A word is compared with the bucket locked that waiters on it enter. A waker changes the word
//! first and then looks at the bucket. So either a waiter sees the new value, or the waker sees the
//! waiter; and what is moved to another word because the first one had a value was waiting while it
//! had that value. A read under the lock doesn't bring the page in: if it isn't there, the lock is
//! given back, the page brought in, and all begins anew.
//!
//! Invariants: F1: a waiter is in the bucket of its key exactly while `woken` is false. F2: a
//! waiter's key changes only with both buckets locked (lower index first).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::thread::Restart;
use super::{current_thread, futex_pi};
use crate::arch::layout::USER_END;
use crate::errno::{
    Result, EAGAIN, EFAULT, EINVAL, ENOSYS, ERESTARTSYS, ERESTART_RESTARTBLOCK, ETIMEDOUT,
};
use crate::mem::fault::{self, Room};
use crate::sched::{self, Nanos};
use crate::sync::{SpinGuard, SpinLock, WaitQueue, Woken};
use crate::user;

const BUCKETS: usize = 64;
/// The bit set of plain waits and wakes.
const ANY: u32 = u32::MAX;

/// What makes two futex words the same.
#[derive(Clone, Copy, PartialEq, Eq)]
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

struct Waiter {
    key: SpinLock<Key>,
    bits: u32,
    woken: AtomicBool,
    queue: WaitQueue,
}

impl Waiter {
    fn is_for(&self, key: Key, bits: u32) -> bool {
        self.bits & bits != 0 && *self.key.lock() == key
    }
}

type Bucket = SpinLock<Vec<Arc<Waiter>>>;

static TABLE: [Bucket; BUCKETS] = [const { SpinLock::new(Vec::new()) }; BUCKETS];

/// Waiters that are woken with their bucket locked.
const BATCH: usize = 64;

/// Wakes up to `count` waiters whose bits meet `bits`. Returns how many.
fn wake_key(key: Key, count: usize, bits: u32) -> usize {
    let (mut woken, mut left) = (0, count);
    loop {
        let mut bucket = TABLE[key.bucket()].lock();
        let batch = wake_in(&mut bucket, key, left.min(BATCH), bits);
        woken += batch;
        left -= batch;
        if batch < BATCH || left == 0 {
            return woken;
        }
        // A waiter that comes while other tasks have their turn is behind these, and isn't woken
        // for them.
        left = left.min(bucket.iter().filter(|waiter| waiter.is_for(key, bits)).count());
        drop(bucket);
        sched::give_way();
    }
}

/// Wakes up to `count` waiters of a key whose bits meet `bits`, in the key's bucket. Returns how
/// many.
fn wake_in(bucket: &mut Vec<Arc<Waiter>>, key: Key, count: usize, bits: u32) -> usize {
    let mut woken = 0;
    bucket.retain(|waiter| {
        let hit = woken < count && waiter.is_for(key, bits);
        if hit {
            woken += 1;
            waiter.woken.store(true, Ordering::Release);
            waiter.queue.wake_all();
        }
        !hit
    });
    fault::shrink(bucket);
    woken
}

/// Wakes waiters on a word of the running thread's memory, whatever scope they named.
pub fn wake_address(va: u64, count: usize) {
    if let Ok(key) = Key::of(va, Scope::Shared) {
        wake_key(key, count, ANY);
    }
}

/// Takes a waiter out of its bucket. Returns whether it was woken before.
fn withdraw(waiter: &Arc<Waiter>) -> bool {
    loop {
        let key = *waiter.key.lock();
        let mut bucket = TABLE[key.bucket()].lock();
        if waiter.woken.load(Ordering::Acquire) {
            return true;
        }
        if let Some(at) = bucket.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            bucket.remove(at);
            fault::shrink(&mut *bucket);
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
    let waiter = Arc::new(Waiter {
        key: SpinLock::new(key),
        bits,
        woken: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    {
        let mut bucket = compared(va, expected, || TABLE[key.bucket()].lock())?;
        bucket.room(1)?;
        bucket.push(waiter.clone());
    }
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

impl From<machine::NoMemory> for Stop {
    fn from(_: machine::NoMemory) -> Stop {
        Stop::Errno(crate::errno::ENOMEM)
    }
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
    first: SpinGuard<'static, Vec<Arc<Waiter>>>,
    /// None if it is the same.
    second: Option<SpinGuard<'static, Vec<Arc<Waiter>>>>,
    /// Whether `second` is the bucket of the first key.
    swapped: bool,
}

impl Both {
    fn lock(from: Key, to: Key) -> Both {
        let (a, b) = (from.bucket(), to.bucket());
        let first = TABLE[a.min(b)].lock();
        Both { first, second: (a != b).then(|| TABLE[a.max(b)].lock()), swapped: b < a }
    }

    /// The bucket of the first key, and of the second if that is another.
    fn pair(&mut self) -> (&mut Vec<Arc<Waiter>>, Option<&mut Vec<Arc<Waiter>>>) {
        match (&mut self.second, self.swapped) {
            (None, _) => (&mut self.first, None),
            (Some(second), true) => (second, Some(&mut self.first)),
            (Some(second), false) => (&mut self.first, Some(second)),
        }
    }
}

/// Wakes `wake` waiters of one word and moves up to `requeue` others to another, if the first word
/// is `expected`. Returns how many it touched; `ENOMEM` where the other's bucket has no room for
/// them.
fn requeue(
    va: u64,
    keys: (Key, Key),
    wake: usize,
    requeue: usize,
    expected: Option<u32>,
) -> Result<usize> {
    let (from, to) = keys;
    let lock = || Both::lock(from, to);
    let mut both = match expected {
        Some(expected) => compared(va, expected, lock)?,
        None => lock(),
    };
    let (source, mut target) = both.pair();
    if from == to {
        drop(both);
        return Ok(wake_key(from, wake, ANY));
    }
    let waiting = source.iter().filter(|waiter| waiter.is_for(from, ANY)).count();
    let moving = waiting.saturating_sub(wake).min(requeue);
    // In one bucket they change their key and stay where they are.
    if let Some(target) = &mut target {
        target.room(moving)?;
    }
    let woken = wake_in(source, from, wake.min(BATCH), ANY);
    // The first of those that are left are woken when the buckets are given back.
    let (mut left, mut moved) = (wake - woken, 0);
    source.retain(|waiter| {
        if moved == moving || !waiter.is_for(from, ANY) {
            return true;
        }
        if left > 0 {
            left -= 1;
            return true;
        }
        moved += 1;
        *waiter.key.lock() = to;
        let Some(target) = &mut target else { return true };
        target.push(waiter.clone());
        false
    });
    fault::shrink(source);
    drop(both);
    let woken = if woken < BATCH { woken } else { woken + wake_key(from, wake - woken, ANY) };
    Ok(woken + moved)
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
    let mut woken = wake_key(key, counts.0, ANY);
    if passes {
        woken += wake_key(key2, counts.1, ANY);
    }
    Ok(woken)
}

const PRIVATE_FLAG: u32 = 128;
const CLOCK_REALTIME_FLAG: u32 = 256;
const WAIT_BITSET: u32 = 9;
const LOCK_PI: u32 = 6;
const UNLOCK_PI: u32 = 7;
const TRYLOCK_PI: u32 = 8;
const LOCK_PI2: u32 = 13;

/// The futex system call.
pub fn futex(va: u64, op: u32, value: u32, timeout: u64, va2: u64, value3: u32) -> Result<u64> {
    let scope = if op & PRIVATE_FLAG != 0 { Scope::Private } else { Scope::Shared };
    let command = op & !(PRIVATE_FLAG | CLOCK_REALTIME_FLAG);
    if op & CLOCK_REALTIME_FLAG != 0 && !matches!(command, WAIT_BITSET | LOCK_PI2) {
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
        1 => Ok(wake_key(Key::there(va, scope)?, waking(value), ANY) as u64),
        10 if value3 == 0 => Err(EINVAL),
        10 => Ok(wake_key(Key::there(va, scope)?, waking(value), value3) as u64),
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
