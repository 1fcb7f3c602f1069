//! Advisory locks: `flock`, and record locks of processes (`F_SETLK`) and of open files
//! (`F_OFD_SETLK`).
//!
//! One table holds, for each file with locks, its ranges. `flock` is a lock of the whole file in a
//! space of its own, owned by the open file. Owners of process locks are process ids.
//!
//! Invariants: I1: ranges of one owner in one space don't overlap. I2: two ranges of different
//! owners in one space overlap only if both are shared. I3: a file without locks and without
//! waiters has no entry in the table. I4: a thread that waits for a lock of a file is in the file's
//! queue. A range that is released is offered to the first waiter whose range overlaps it. That
//! waiter tries to lock, then passes the offer on to the next waiter whose lock could coexist. So a
//! release wakes one thread at a time, and an offer to a thread that stops waiting is passed on.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::file::File;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::mem::fault::{self, Room};
use crate::sched;
use crate::sync::{SpinLock, WaitQueue};
use crate::upcalls::{self, Process};

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    Process(i32),
    /// An open file, by its address.
    File(usize),
    /// An open file in the space of `flock`.
    Flock(usize),
}

impl Owner {
    /// `flock` and record locks don't see each other.
    fn is_flock(self) -> bool {
        matches!(self, Owner::Flock(_))
    }

    /// An open file as an owner of record locks.
    pub fn file(file: &File) -> Owner {
        Owner::File(file as *const File as usize)
    }

    /// An open file as an owner of its `flock`.
    pub fn flock(file: &File) -> Owner {
        Owner::Flock(file as *const File as usize)
    }
}

/// What a lock allows others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// A locked range of bytes; `end` is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
    pub owner: Owner,
}

impl Range {
    fn is_within(&self, other: &Range) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    /// Whether another begins where this ends, or ends where this begins, and is alike.
    fn is_continued_by(&self, other: &Range) -> bool {
        (self.owner, self.mode) == (other.owner, other.mode)
            && (self.end == other.start || other.end == self.start)
    }

    fn conflicts(&self, other: &Range) -> bool {
        self.owner != other.owner
            && self.owner.is_flock() == other.owner.is_flock()
            && self.start < other.end
            && other.start < self.end
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }
}

type FileId = (u64, u64);

/// A range that is held, and what it is charged.
struct Held {
    range: Range,
    /// The process that has taken it, and the open file through which it has, by its address.
    pid: i32,
    file: usize,
    charge: Charge,
}

/// A lock or lease, as `/proc/locks` shows it.
pub struct Shown {
    pub kind: &'static str,
    pub mode: &'static str,
    pub pid: i32,
    pub file: (u64, u64),
    /// The first byte and the end, of those that have a range.
    pub range: Option<(u64, u64)>,
    /// It is waited for.
    pub waits: bool,
}

impl Shown {
    fn new(file: FileId, pid: i32, range: &Range) -> Shown {
        let (kind, pid) = match range.owner {
            Owner::Process(_) => ("POSIX  ADVISORY ", pid),
            // It is no process's.
            Owner::File(_) => ("OFDLCK ADVISORY ", -1),
            Owner::Flock(_) => ("FLOCK  ADVISORY ", pid),
        };
        let mode = if range.mode == Mode::Shared { "READ" } else { "WRITE" };
        let ends = (!range.owner.is_flock()).then_some((range.start, range.end));
        Shown { kind, mode, pid, file, range: ends, waits: false }
    }
}

/// A lock of the first file that has any from `from` on, behind the last `skipped` of its ranges,
/// with those that wait for it: the file, and whether it has more. For `/proc/locks`.
pub fn next(from: FileId, skipped: usize, out: &mut Vec<Shown>) -> Result<Option<(FileId, bool)>> {
    out.room(1 + SHOWN_WAITERS)?;
    let table = LOCKS.lock();
    let mut files = table.range(from..).filter(|(id, locks)| {
        **id != from || locks.ranges.len() > skipped || skipped == 0 && !locks.ranges.is_empty()
    });
    let Some((&id, locks)) = files.next() else { return Ok(None) };
    let skipped = if id == from { skipped } else { 0 };
    let mut ranges = locks.ranges.iter().rev();
    if let Some(Held { range, pid, .. }) = ranges.nth(skipped) {
        out.push(Shown::new(id, *pid, range));
        for waiter in locks.line.values().take(SHOWN_WAITERS) {
            let waits = range.conflicts(&waiter.wanted);
            if waits {
                out.push(Shown { waits, ..Shown::new(id, waiter.pid, &waiter.wanted) });
            }
        }
    }
    Ok(Some((id, locks.ranges.len() > skipped + 1)))
}

/// The places of ranges begin there.
const RANGES: u64 = 1 << 32;

/// A lock that process `pid` has taken through an open file, the first from place `from` on, and
/// its place: that of `flock` comes before ranges. For `/proc/PID/fdinfo`.
pub fn of_file(file: &File, pid: i32, from: u64) -> Option<(u64, Shown)> {
    let (id, at) = (id(file), file as *const File as usize);
    let table = LOCKS.lock();
    let is_shown = |held: &Held| match held.range.owner {
        Owner::Process(owner) => owner == pid && held.file == at,
        Owner::File(owner) | Owner::Flock(owner) => owner == at,
    };
    let all = table.get(&id)?.ranges.iter().enumerate().filter(|(_, held)| is_shown(held));
    let place = |(index, held): &(usize, &Held)| {
        *index as u64 | if held.range.owner.is_flock() { 0 } else { RANGES }
    };
    let first = all.filter(|held| place(held) >= from).min_by_key(place)?;
    Some((place(&first), Shown::new(id, first.1.pid, &first.1.range)))
}

/// The locks of a file.
#[derive(Default)]
struct Locks {
    ranges: Vec<Held>,
    /// Waiters, by when they came.
    line: BTreeMap<u64, Arc<Waiter>>,
}

impl Locks {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.line.is_empty()
    }
}

/// A thread that waits for a lock.
struct Waiter {
    wanted: Range,
    pid: i32,
    /// Of what was given back: the first byte and the end.
    offer: SpinLock<Option<(u64, u64)>>,
    offered: WaitQueue,
}

impl Waiter {
    fn is_asked(&self, hole: &Range) -> bool {
        let wanted = &self.wanted;
        wanted.owner.is_flock() == hole.owner.is_flock()
            && wanted.start < hole.end
            && hole.start < wanted.end
    }

    fn offer(&self, hole: &Range) {
        let mut offer = self.offer.lock();
        let (start, end) = offer.unwrap_or((hole.start, hole.end));
        *offer = Some((start.min(hole.start), end.max(hole.end)));
        drop(offer);
        self.offered.wake_all();
    }

    /// The range that was released: its bounds alone mean anything.
    fn take_offer(&self) -> Option<Range> {
        let (start, end) = self.offer.lock().take()?;
        Some(Range { start, end, ..self.wanted })
    }
}

/// What a range costs, held or waited for, with its part of the table.
const HELD: usize = 2 * size_of::<Held>() + 2 * size_of::<Locks>() + size_of::<Waiter>() + 64;
/// The work of looking at a range or at a waiter: that of copying so many bytes.
const LOOK: usize = 16;
/// Waiters that are looked at with the table locked.
const PIECE: usize = 256;
/// Waiters of a file that `/proc/locks` shows, at most.
const SHOWN_WAITERS: usize = 32;

static LOCKS: SpinLock<BTreeMap<FileId, Locks>> = SpinLock::new(BTreeMap::new());
/// The locks that processes wait for, by process and ticket: the edges for deadlock detection.
/// Taken with the table locked.
static WAITS: SpinLock<BTreeMap<(i32, u64), (FileId, Range)>> = SpinLock::new(BTreeMap::new());
/// The longest cycle of waiting processes that is found, as with Linux.
const MAX_CYCLE: usize = 11;
/// Ranges that are looked at for one, with the table locked: of files with more, none is found.
const MAX_LOOKS: usize = 16 * 1024;
/// The end of a range that has none: behind the last byte that a file can have.
pub const END: u64 = 1 << 63;

/// Whether a process that waits for `wanted` would wait for itself, by way of others.
fn would_deadlock(table: &BTreeMap<FileId, Locks>, mut id: FileId, mut wanted: Range) -> bool {
    let me = wanted.owner;
    let waits = WAITS.lock();
    let mut looks = 0;
    let mut ranges_of = |id: &FileId| {
        let ranges = table.get(id).map_or(&[][..], |locks| &locks.ranges);
        looks += ranges.len();
        (looks <= MAX_LOOKS).then_some(ranges)
    };
    for _ in 0..MAX_CYCLE {
        let Some(ranges) = ranges_of(&id) else { return false };
        let held = ranges.iter().map(|held| held.range).find(|held| held.conflicts(&wanted));
        let Some(Owner::Process(pid)) = held.map(|held| held.owner) else { return false };
        let Some((_, next)) = waits.range((pid, 0)..=(pid, u64::MAX)).next() else { return false };
        (id, wanted) = *next;
        let Some(mut ranges) = ranges_of(&id).map(<[Held]>::iter) else { return false };
        if ranges.any(|held| held.range.owner == me && held.range.conflicts(&wanted)) {
            return true;
        }
    }
    false
}

/// Whether any file has a lock: a process that closes a file or ends asks this first. Changes with
/// the table locked.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// The most ranges of one user on one file: no user has what others could. The table is walked
/// while it is locked, so what all users have is bounded by how many of them there are.
const MAX_RANGES: usize = 4096;

fn id(file: &File) -> FileId {
    let stat = file.inode().stat();
    (stat.dev, stat.ino)
}

/// The lock that stands in the way of `wanted`, of several the one that begins first.
pub fn conflict(file: &File, wanted: &Range) -> Option<Range> {
    let id = id(file);
    let locks = LOCKS.lock();
    let ranges = locks.get(&id)?.ranges.iter().map(|held| held.range);
    ranges.filter(|held| held.conflicts(wanted)).min_by_key(|held| held.start)
}

/// Takes a lock, replacing what the owner had in the range.
///
/// # Errors
/// `EAGAIN` if another owner is in the way; `ENOLCK` if there are too many, or the user has all
/// that it may.
pub fn set(file: &File, wanted: Range) -> Result<()> {
    attempt(file, id(file), wanted, None)
}

/// Takes the lock, or queues `waiter` under its ticket if another owner's lock conflicts.
fn attempt(
    file: &File,
    id: FileId,
    wanted: Range,
    waiter: Option<(u64, &Arc<Waiter>)>,
) -> Result<()> {
    let (charge, mut spare) = (held_charge()?, Some(held_charge()?));
    let pid = upcalls::current_process().pid;
    if matches!(wanted.owner, Owner::Process(_)) {
        upcalls::current_process().has_locked.store(true, Relaxed);
    }
    let mut table = LOCKS.lock();
    if let Some(Locks { ranges, .. }) = table.get(&id) {
        if ranges.iter().any(|held| held.range.conflicts(&wanted)) {
            let Some((ticket, waiter)) = waiter else { return Err(EAGAIN) };
            if let Owner::Process(pid) = wanted.owner {
                if would_deadlock(&table, id, wanted) {
                    return Err(EDEADLK);
                }
                WAITS.lock().insert((pid, ticket), (id, wanted));
            }
            if let Some(Locks { line, .. }) = table.get_mut(&id) {
                line.entry(ticket).or_insert_with(|| waiter.clone());
            }
            return Err(EAGAIN);
        }
        // One that takes the place of another, or continues it, is no more.
        let is_replaced = |held: &Held| {
            held.range.is_continued_by(&wanted)
                || held.range.owner == wanted.owner && held.range.is_within(&wanted)
        };
        if count_of(ranges, charge.uid()) >= MAX_RANGES && !ranges.iter().any(is_replaced) {
            return Err(ENOLCK);
        }
    }
    let locks = table.entry(id).or_default();
    if locks.ranges.room(2).is_err() {
        if locks.is_empty() {
            table.remove(&id);
        }
        return Err(ENOLCK);
    }
    let gives = carve(&mut locks.ranges, &wanted, &mut spare);
    let mut whole = wanted;
    while let Some(at) = locks.ranges.iter().position(|held| held.range.is_continued_by(&whole)) {
        let other = locks.ranges.swap_remove(at).range;
        (whole.start, whole.end) = (whole.start.min(other.start), whole.end.max(other.end));
    }
    let file = file as *const File as usize;
    locks.ranges.push(Held { range: whole, pid, file, charge });
    IN_USE.store(true, Release);
    drop(table);
    if gives {
        // An exclusive lock may be a shared one now.
        offer(id, &wanted, 0, Some(&wanted));
    }
    Ok(())
}

/// Takes a lock when it can be had.
///
/// # Errors
/// `EDEADLK`: the owner that is in the way waits for this process; as for [`set`].
pub fn set_wait(file: &File, wanted: Range) -> Result<()> {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    let id = id(file);
    let ticket = TICKETS.fetch_add(1, Relaxed);
    let _charge = held_charge()?;
    let pid = upcalls::current_process().pid;
    let waiter =
        Arc::new(Waiter { wanted, pid, offer: SpinLock::new(None), offered: WaitQueue::new() });
    match attempt(file, id, wanted, Some((ticket, &waiter))) {
        Err(EAGAIN) => {}
        outcome => return outcome,
    }
    let again = || {
        let hole = waiter.take_offer()?;
        let outcome = attempt(file, id, wanted, Some((ticket, &waiter)));
        offer(id, &hole, ticket + 1, outcome.is_ok().then_some(&wanted));
        (outcome != Err(EAGAIN)).then_some(outcome)
    };
    let outcome = waiter.offered.wait_intr(None, again).unwrap_or(Err(ERESTARTSYS));
    leave_line(id, ticket, wanted.owner);
    if let Some(hole) = waiter.take_offer() {
        offer(id, &hole, ticket + 1, None);
    }
    outcome
}

fn leave_line(id: FileId, ticket: u64, owner: Owner) {
    let mut table = LOCKS.lock();
    if let Owner::Process(pid) = owner {
        WAITS.lock().remove(&(pid, ticket));
    }
    let Some(locks) = table.get_mut(&id) else { return };
    let waiter = locks.line.remove(&ticket);
    if locks.is_empty() {
        table.remove(&id);
    }
    IN_USE.store(!table.is_empty(), Release);
    drop(table);
    drop(waiter);
}

/// Offers a range that was released to the next waiter whose lock lies there, from a ticket on
/// (I4), that may stand beside one that another has got.
fn offer(id: FileId, hole: &Range, from: u64, got: Option<&Range>) {
    let all =
        |got: &Range| got.mode == Mode::Exclusive && got.start <= hole.start && hole.end <= got.end;
    if got.is_some_and(all) {
        return;
    }
    let mut from = from;
    loop {
        let table = LOCKS.lock();
        let Some(locks) = table.get(&id) else { return };
        let mut looked = 0;
        for (&ticket, waiter) in locks.line.range(from..).take(PIECE) {
            looked += 1;
            from = ticket + 1;
            if waiter.is_asked(hole) && !got.is_some_and(|got| got.conflicts(&waiter.wanted)) {
                return waiter.offer(hole);
            }
        }
        drop(table);
        if looked < PIECE {
            return;
        }
        sched::work_done(looked * LOOK);
    }
}

fn count_of(ranges: &[Held], uid: u32) -> usize {
    ranges.iter().filter(|held| held.charge.uid() == uid).count()
}

fn held_charge() -> Result<Charge> {
    charge::take(HELD).map_err(|_| ENOLCK)
}

/// Gives up the owner's locks in the range.
///
/// # Errors
/// `ENOLCK` if a hole in one can't be kept; nothing has changed.
pub fn clear(file: &File, range: &Range) -> Result<()> {
    let mut spare = if range.start == 0 && range.end >= END { None } else { Some(held_charge()?) };
    clear_with(file, range, &mut spare)
}

fn clear_with(file: &File, range: &Range, spare: &mut Option<Charge>) -> Result<()> {
    let id = id(file);
    let mut table = LOCKS.lock();
    let Some(locks) = table.get_mut(&id) else { return Ok(()) };
    let ranges = &mut locks.ranges;
    let is_full = |ranges: &Vec<Held>, spare: &Charge| count_of(ranges, spare.uid()) > MAX_RANGES;
    if spare.as_ref().is_some_and(|spare| is_full(ranges, spare) || ranges.room(1).is_err()) {
        return Err(ENOLCK);
    }
    let gives = carve(ranges, range, spare);
    fault::shrink(ranges);
    if locks.is_empty() {
        table.remove(&id);
    }
    IN_USE.store(!table.is_empty(), Release);
    drop(table);
    if gives {
        offer(id, range, 0, None);
    }
    Ok(())
}

/// Cuts `hole` out of its owner's ranges; whether there was something there. At most one of them
/// (I1) becomes two, for which there is room and a charge.
fn carve(ranges: &mut Vec<Held>, hole: &Range, spare: &mut Option<Charge>) -> bool {
    let (mut index, mut gives) = (0, false);
    while index < ranges.len() {
        let held = ranges[index].range;
        if held.owner != hole.owner || held.end <= hole.start || hole.end <= held.start {
            index += 1;
            continue;
        }
        gives = true;
        let Held { pid, file, charge, .. } = ranges.swap_remove(index);
        let mut charge = Some(charge);
        let ends = [(held.start, hole.start), (hole.end, held.end)];
        for (start, end) in ends.into_iter().filter(|(start, end)| start < end) {
            if let Some(charge) = charge.take().or_else(|| spare.take()) {
                ranges.push(Held { range: Range { start, end, ..held }, pid, file, charge });
            }
        }
    }
    gives
}

/// A process has ended: all its record locks go, a file's at a time. One that never had any has
/// nothing to look for.
pub fn process_ended(process: &Process) {
    let mut from = Bound::Unbounded;
    let hole =
        Range { start: 0, end: u64::MAX, mode: Mode::Shared, owner: Owner::Process(process.pid) };
    while in_use() && process.has_locked.load(Relaxed) {
        let mut table = LOCKS.lock();
        let Some((&id, locks)) = table.range_mut((from, Bound::Unbounded)).next() else {
            break;
        };
        let looked = locks.ranges.len();
        locks.ranges.retain(|held| held.range.owner != hole.owner);
        fault::shrink(&mut locks.ranges);
        let gives = locks.ranges.len() < looked;
        if locks.is_empty() {
            table.remove(&id);
        }
        IN_USE.store(!table.is_empty(), Release);
        drop(table);
        if gives {
            offer(id, &hole, 0, None);
        }
        sched::work_done((looked + 16) * LOOK);
        from = Bound::Excluded(id);
    }
}

fn in_use() -> bool {
    IN_USE.load(Acquire)
}

fn clear_owner(file: &File, owner: Owner) {
    // Whole ranges go, which needs nothing.
    let _ =
        clear_with(file, &Range { start: 0, end: u64::MAX, mode: Mode::Shared, owner }, &mut None);
}

/// The last reference to an open file goes: so do its locks.
pub fn release_file(file: &File) {
    if in_use() {
        clear_owner(file, Owner::file(file));
        clear_owner(file, Owner::flock(file));
    }
}

/// A process closed a descriptor: its record locks on that file go, as POSIX has it.
pub fn closed_descriptor(file: &File) {
    let process = upcalls::current_process();
    if process.has_locked.load(Relaxed) && in_use() {
        clear_owner(file, Owner::Process(process.pid));
    }
}
