//! Futexes with priority inheritance (`FUTEX_LOCK_PI`): a thread that owns a mutex runs with the
//! priority of those that wait for it, so that a real-time thread waits no longer than the mutex is
//! held.
//!
//! The word has the owner's number. A program takes and gives back a free mutex by itself; the
//! kernel is called where a thread waits, and hands the word on. There is one table for all, which
//! is small: a mutex without waiters isn't in it. A thread that waits for a condition variable with
//! such a mutex sleeps in `futex` until another moves it here.
//!
//! Invariants: P1: a wait that has come here is in `WAITS` exactly while it isn't granted. P2: all
//! waits of a key have one owner, and its thread's `waits_for` is that. P3: what is lent to a
//! thread is the highest priority of those that wait for it, as far as `LENT_DEPTH` owners that
//! wait themselves.
//!
//! Locks: those of `futex`, `WAITS`, then a thread's `waits_for`, or the scheduler's.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::futex::{Key, Scope};
use super::robust::{OWNER_DIED, TID_MASK, WAITERS};
use super::thread::Thread;
use super::{current_thread, table, Pid};
use crate::charge::{self, Count, Counted};
use crate::errno::*;
use crate::mem::fault::{self, Room};
use crate::sched::{self, Nanos};
use crate::share;
use crate::sync::{SpinLock, WaitQueue, Woken};
use crate::user;

/// Threads that wait so at one time.
const MOST: usize = 1024;
/// Owners, each of which waits for the next, that a priority is lent to.
const LENT_DEPTH: usize = 16;

/// A thread that waits for a mutex, or is about to.
pub(super) struct Wait {
    key: Key,
    thread: Arc<Thread>,
    granted: AtomicBool,
    /// The owner has ended: the new one says so in the word, in its own memory.
    owner_died: AtomicBool,
    queue: WaitQueue,
    _count: Count,
}

impl Wait {
    /// # Errors
    /// `ENOMEM`: the user has as many as it may.
    pub(super) fn new(thread: &Arc<Thread>, key: Key) -> Result<Arc<Wait>> {
        let user = charge::account().user().clone();
        let count = Count::of(user, Counted::OwnedWaits, 1, share::share_of(MOST));
        Ok(Arc::new(Wait {
            key,
            thread: thread.clone(),
            granted: AtomicBool::new(false),
            owner_died: AtomicBool::new(false),
            queue: WaitQueue::new(),
            _count: count.map_err(|_| ENOMEM)?,
        }))
    }

    pub(super) fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    pub(super) fn is_for(&self, key: Key) -> bool {
        self.key == key
    }

    /// Sleeps until the thread is the owner, or another reason not to.
    pub(super) fn until_granted(&self, deadline: Option<Nanos>) -> Result<(), Woken> {
        let granted = || self.granted.load(Ordering::Acquire).then_some(());
        self.queue.wait_intr(deadline, granted)
    }

    /// The thread, which runs, is the owner of the mutex at `va`.
    ///
    /// # Errors
    /// `EFAULT`: the word can't say that the last owner died.
    pub(super) fn own(&self, va: u64) -> Result<()> {
        while self.owner_died.load(Ordering::Acquire) && !sched::is_leaving() {
            let value = user::load_u32(va)?;
            let own = value & WAITERS | OWNER_DIED | self.thread.tid() as u32;
            if user::compare_exchange_u32(va, value, own)? == value {
                break;
            }
        }
        Ok(())
    }

    fn grant(&self) {
        self.granted.store(true, Ordering::Release);
        self.queue.wake_all();
    }
}

struct Entry {
    wait: Arc<Wait>,
    owner: Arc<Thread>,
}

/// In the order in which they came.
static WAITS: SpinLock<Vec<Entry>> = SpinLock::new(Vec::new());

fn is(one: &Arc<Thread>, other: &Thread) -> bool {
    core::ptr::eq(&**one, other)
}

/// The owner of what is waited for by this key.
fn owner(waits: &[Entry], key: Key) -> Option<&Arc<Thread>> {
    waits.iter().find(|entry| entry.wait.key == key).map(|entry| &entry.owner)
}

/// The wait of a key that comes first: of the highest priority the oldest.
fn first(waits: &[Entry], key: Key) -> Option<usize> {
    let of_key = waits.iter().enumerate().filter(|(_, entry)| entry.wait.key == key);
    // Of equals the last is the maximum: the oldest, from the end.
    of_key
        .rev()
        .max_by_key(|(_, entry)| entry.wait.thread.running_policy().priority())
        .map(|at| at.0)
}

/// Keeps P3 for a thread, and those that it waits for.
fn lend(waits: &[Entry], thread: &Arc<Thread>) {
    let mut thread = thread.clone();
    for _ in 0..LENT_DEPTH {
        let waiting = waits.iter().filter(|entry| is(&entry.owner, &thread));
        let highest = waiting.map(|entry| entry.wait.thread.running_policy().priority()).max();
        if !thread.set_lent(highest.unwrap_or(0)) {
            return;
        }
        let Some(next) = thread.waits_for.lock().clone() else { return };
        thread = next;
    }
}

/// Makes the thread of a wait the owner.
fn hand_over(waits: &mut Vec<Entry>, at: usize) {
    let Entry { wait, owner: old } = waits.remove(at);
    let new = &wait.thread;
    *new.waits_for.lock() = None;
    for entry in waits.iter_mut().filter(|entry| entry.wait.key == wait.key) {
        entry.owner = new.clone();
        *entry.wait.thread.waits_for.lock() = Some(new.clone());
    }
    lend(waits, &old);
    lend(waits, new);
    fault::shrink(waits);
    wait.grant();
}

/// A thread's own priority has changed.
pub fn priority_changed(thread: &Thread) {
    let is_waiting = thread.waits_for.lock().is_some();
    if is_waiting {
        let waits = WAITS.lock();
        let owner = thread.waits_for.lock().clone();
        owner.iter().for_each(|owner| lend(&waits, owner));
    }
}

/// Takes the mutex at `va`; with a `deadline` or none, waits for that.
///
/// # Errors
/// `EDEADLK`, also where owners wait in a ring; `ESRCH`: the owner isn't there; `EAGAIN` if it
/// mustn't wait; `ETIMEDOUT`, `EFAULT`, `EINVAL`, `ENOMEM`.
pub fn lock(va: u64, scope: Scope, deadline: Option<Nanos>, may_wait: bool) -> Result<u64> {
    let me = current_thread();
    let tid = me.tid() as u32;
    let key = Key::of(va, scope)?;
    let wait = loop {
        if sched::is_leaving() {
            return Err(ERESTARTNOINTR);
        }
        let value = user::load_u32(va)?;
        let owned_by = value & TID_MASK;
        if owned_by == tid {
            return Err(EDEADLK);
        }
        if owned_by == 0 && owner(&WAITS.lock(), key).is_none() {
            let taken = value & OWNER_DIED | tid;
            if user::compare_exchange_u32(va, value, taken)? == value {
                return Ok(0);
            }
            continue;
        }
        let known = table::thread(owned_by as i32);
        if !may_wait {
            return Err(if known.is_some() { EAGAIN } else { ESRCH });
        }
        let marked = value | WAITERS;
        if user::compare_exchange_u32(va, value, marked)? != value {
            continue;
        }
        if let Some(wait) = enter(&me, va, key, marked, known)? {
            break wait;
        }
    };
    if let Err(why) = wait.until_granted(deadline) {
        if withdraw(&wait) {
            return Err(if why == Woken::Timeout { ETIMEDOUT } else { ERESTARTNOINTR });
        }
    }
    wait.own(va)?;
    Ok(0)
}

/// Enters a wait while the word is `value`. `None`: it is another, or its page has to be brought
/// in.
fn enter(
    me: &Arc<Thread>,
    va: u64,
    key: Key,
    value: u32,
    known: Option<Arc<Thread>>,
) -> Result<Option<Arc<Wait>>> {
    let wait = Wait::new(me, key)?;
    let has_entered = admit(&mut WAITS.lock(), &wait, va, value, known.as_ref())?;
    Ok(has_entered.then_some(wait))
}

/// As [`enter`], with the table locked. Whether the wait is in it.
fn admit(
    waits: &mut Vec<Entry>,
    wait: &Arc<Wait>,
    va: u64,
    value: u32,
    known: Option<&Arc<Thread>>,
) -> Result<bool> {
    let (key, me) = (wait.key, &wait.thread);
    if waits.len() >= MOST {
        return Err(ENOMEM);
    }
    waits.room(1)?;
    if user::peek_u32(va) != Ok(value) {
        return Ok(false);
    }
    let owner = match (owner(waits, key), known) {
        // The word has another number only if a program wrote that there, or while the thread that
        // has it now says so.
        (Some(owner), Some(known)) if !Arc::ptr_eq(owner, known) => return Err(EINVAL),
        (Some(owner), _) => owner.clone(),
        (None, Some(known)) => known.clone(),
        (None, None) => return Err(ESRCH),
    };
    // What only threads of one process wait for belongs to none of another.
    let is_own = key.is_shared() || Arc::ptr_eq(&owner.process, &me.process);
    if !is_own || owner.owns_no_more.load(Ordering::Relaxed) {
        return Err(ESRCH);
    }
    let mut at = Some(owner.clone());
    while let Some(thread) = at {
        if Arc::ptr_eq(&thread, me) {
            return Err(EDEADLK);
        }
        at = thread.waits_for.lock().clone();
    }
    *me.waits_for.lock() = Some(owner.clone());
    waits.push(Entry { wait: wait.clone(), owner: owner.clone() });
    lend(waits, &owner);
    Ok(true)
}

/// The number of the thread that owns a mutex with this word; 0 for none.
pub(super) fn owner_of(value: u32) -> Pid {
    (value & TID_MASK) as Pid
}

/// What has become of a wait that was to be moved here.
pub(super) enum Moved {
    Owns,
    Waits,
    /// The word has another owner than was said, or its page has to be brought in.
    Not,
}

/// Makes the thread of a wait the owner of the mutex at `va` if that is free, else one that waits
/// for its owner, which is `known` as the word was read. With `others`, more are about to come. May
/// be called with a spin lock held.
///
/// # Errors
/// As [`lock`].
pub(super) fn move_in(
    va: u64,
    wait: &Arc<Wait>,
    known: Option<&Arc<Thread>>,
    others: bool,
) -> Result<Moved> {
    let mut waits = WAITS.lock();
    let Ok(value) = user::peek_u32(va) else { return Ok(Moved::Not) };
    let (owned_by, tid) = (owner_of(value), wait.thread.tid());
    if owned_by == tid {
        return Err(EDEADLK);
    }
    if known.is_some_and(|known| known.tid() != owned_by) {
        return Ok(Moved::Not);
    }
    let is_free = owned_by == 0 && owner(&waits, wait.key).is_none();
    let word = if is_free {
        value & OWNER_DIED | tid as u32 | if others { WAITERS } else { 0 }
    } else {
        value | WAITERS
    };
    if user::try_exchange_u32(va, value, word) != Ok(value) {
        return Ok(Moved::Not);
    }
    if is_free {
        wait.grant();
        return Ok(Moved::Owns);
    }
    Ok(if admit(&mut waits, wait, va, word, known)? { Moved::Waits } else { Moved::Not })
}

/// Takes a wait back. Whether it was not granted.
pub(super) fn withdraw(wait: &Arc<Wait>) -> bool {
    let mut waits = WAITS.lock();
    let Some(at) = waits.iter().position(|entry| Arc::ptr_eq(&entry.wait, wait)) else {
        return false;
    };
    let Entry { owner, .. } = waits.remove(at);
    *wait.thread.waits_for.lock() = None;
    lend(&waits, &owner);
    fault::shrink(&mut *waits);
    true
}

/// Gives the mutex at `va` back, or to the thread that waits first.
///
/// # Errors
/// `EPERM`: it isn't the caller's; `EINVAL`: the word and the kernel don't agree; `EFAULT`.
pub fn unlock(va: u64, scope: Scope) -> Result<u64> {
    let me = current_thread();
    let tid = me.tid() as u32;
    let key = Key::of(va, scope)?;
    while !sched::is_leaving() {
        let value = user::load_u32(va)?;
        if value & TID_MASK != tid {
            return Err(EPERM);
        }
        // Its page is there and may be written then.
        if user::compare_exchange_u32(va, value, value)? != value {
            continue;
        }
        let mut waits = WAITS.lock();
        let next = first(&waits, key);
        let word = match next {
            Some(at) if !is(&waits[at].owner, &me) => return Err(EINVAL),
            Some(at) => waits[at].wait.thread.tid() as u32 | WAITERS,
            None => 0,
        };
        if user::try_exchange_u32(va, value, word) != Ok(value) {
            continue;
        }
        if let Some(at) = next {
            hand_over(&mut waits, at);
        }
        return Ok(0);
    }
    Err(ERESTARTNOINTR)
}

/// A thread's program ends: what it owns goes to those that wait. A thread that `ends` is no owner
/// from then on.
pub fn release_all(thread: &Thread, ends: bool) {
    thread.owns_no_more.store(ends, Ordering::Relaxed);
    loop {
        let mut waits = WAITS.lock();
        let Some(entry) = waits.iter().find(|entry| is(&entry.owner, thread)) else { return };
        let Some(at) = first(&waits, entry.wait.key) else { return };
        waits[at].wait.owner_died.store(true, Ordering::Release);
        hand_over(&mut waits, at);
        drop(waits);
        sched::give_way();
    }
}
