//! Memory and swap have run out: a process is killed (the OOM killer).
//!
//! What a process has ([`Size`]): its memory, in pages and on swap, its page tables and map, and
//! what it has the kernel keep; what several have, each by its share, so that the sizes of all add
//! up to what there is. `oom_score_adj` adds to that or takes from it. The victim is the largest
//! process of the user that has most, by processes and by what outlives them: to spread memory over
//! many processes is no gain. Root's processes count each for itself.
//! Never the first process. A thread that asks for a new process, file or the like
//! (`vm::leave_memory`) has none of its own user's killed, and is refused. The victim may be the
//! process that asks. The thread that asks is the head of the library's line of threads that wait
//! for memory, so there is one at a time: it waits until its victim has left its memory, and tries
//! again; all others sleep meanwhile. A victim waits for memory no longer
//! (`Machine::has_fatal_signal`) and may take of the kernel's reserve to leave. One line on the
//! debug console names the victim. Nothing here allocates more than a place in a wait queue.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use super::process::{ExitStatus, Process};
use super::signal::{send, SIGKILL};
use super::{current_process, table, trace};
use crate::arch::layout::USER_END;
use crate::cred::caps::Caps;
use crate::errno::{Result, EACCES, EINVAL};
use crate::mem::{direct, fault, heap};
use crate::sync::WaitQueue;
use crate::{sched, vm};

/// How long a victim is waited for before another is chosen: the victim may itself wait for
/// something. A process that has locked most of memory takes a second to let it go, on a slow
/// machine.
const PATIENCE: u64 = 3_000_000_000;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Processes killed since boot.
pub static KILLS: AtomicU64 = AtomicU64::new(0);

/// When the first process, with no other left, last had waited for memory in vain; 0: never.
static WAITED_ALONE: AtomicU64 = AtomicU64::new(0);

/// Threads that wait for a victim to be gone.
static GONE: WaitQueue = WaitQueue::new();

/// Kills a process to make room and waits until it has gone. `false`: the running thread gets no
/// memory, since its own process is ending, since it is one of the kernel's, or since no process
/// can be killed.
pub fn make_room() -> bool {
    let is_program = sched::current().user().is_some();
    if !is_program || sched::is_leaving() {
        return false;
    }
    if fault::has_struck() {
        return true;
    }
    // What the heap has free is others' first: a victim leaves much there.
    if heap::give_back() | direct::give_back(0) {
        return true;
    }
    // A process that is ending frees its memory soon: wait for that first. A victim that asked for
    // memory itself doesn't wait for its own end.
    let others_have_gone = || leaving().is_some_and(|going| wait_for(&going));
    if others_have_gone() {
        return !sched::is_leaving();
    }
    let end = |worst: Arc<Process>| if is_leaving(&worst) { worst } else { kill(worst) };
    let worst = worst();
    // To judge takes time, in which processes were told to go, and were not counted any more: an
    // innocent one is the worst among those that are left.
    if sched::is_leaving() {
        return false;
    }
    if others_have_gone() {
        return !sched::is_leaving();
    }
    if worst.as_ref().is_some_and(|worst| asks_for_new() && is_of_own_user(worst)) {
        return false;
    }
    let Some(victim) = worst.map(end).or_else(leaving) else {
        let is_alone = table::processes().all(|other| other.pid == 1 || has_gone(&other));
        // What the first process has for itself never comes back, so the machine ends with it; but
        // memory may be on its way.
        let waited = WAITED_ALONE.load(Relaxed);
        if is_alone && waited != 0 && sched::now() - waited < PATIENCE {
            kill((*current_process()).clone());
            return false;
        }
        crate::control!("trace out of memory: no process can be killed");
        let _ = GONE.wait_until(sched::now() + PATIENCE, || None::<()>);
        WAITED_ALONE.store(if is_alone { sched::now() } else { 0 }, Relaxed);
        return false;
    };
    if Arc::ptr_eq(&victim, &current_process()) {
        return false;
    }
    wait_for(&victim);
    !sched::is_leaving()
}

fn asks_for_new() -> bool {
    sched::current().asks_for_new.load(Relaxed)
}

fn is_of_own_user(process: &Process) -> bool {
    process.account().user().uid() == current_process().account().user().uid()
}

/// Waits until a process has gone or the running one is to end, for [`PATIENCE`] at most. Returns
/// whether either is so.
fn wait_for(process: &Process) -> bool {
    trace::hurry(process);
    let is_over = || (has_gone(process) || sched::is_leaving()).then_some(());
    GONE.wait_until(sched::now() + PATIENCE, is_over).is_some()
}

fn kill(victim: Arc<Process>) -> Arc<Process> {
    KILLS.fetch_add(1, Relaxed);
    announce(&victim);
    send::kill_all(&mut victim.group.lock(), ExitStatus::Killed(SIGKILL));
    // Memory that several processes share is given back by the last of them.
    let space = victim.space();
    let shares = |other: &Arc<Process>| {
        let theirs = other.space();
        other.pid != 1
            && space.as_ref().zip(theirs.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
    };
    for other in table::processes().filter(shares) {
        send::kill_all(&mut other.group.lock(), ExitStatus::Killed(SIGKILL));
    }
    victim
}

/// A process has left its memory and closed its files.
pub fn process_gone() {
    GONE.wake_all();
}

fn has_gone(process: &Process) -> bool {
    process.group.lock().threads.is_empty() && !process.closes_files.load(Acquire)
}

/// Whether a process has no thread that could be told to go.
fn is_leaving(process: &Process) -> bool {
    process.leader().is_none_or(|thread| thread.is_dying())
}

/// What is added to a process's size when a victim is chosen, in thousandths of memory and swap:
/// `/proc/PID/oom_score_adj`.
#[derive(Default)]
pub struct Adjustment {
    now: AtomicI32,
    /// The least that may be set without `CAP_SYS_RESOURCE`: what was set with it last.
    least: AtomicI32,
    /// How good it would have been to end the process when one had to go last; for the thread
    /// that chooses, one at a time.
    judged: AtomicI64,
}

/// The adjustment of a process that is never chosen.
const NEVER: i32 = -1000;
const MOST: i32 = 1000;

impl Adjustment {
    /// The adjustment.
    pub fn get(&self) -> i32 {
        self.now.load(Relaxed)
    }

    /// Sets the adjustment; what the least is from now on, if that has changed.
    fn set(&self, scale: Scale, to: i32) -> Result<Option<i32>> {
        let is_privileged = current_process().cred().has(Caps::SYS_RESOURCE);
        let least = match scale {
            Scale::Score => &self.least,
            Scale::Old => &self.now,
        };
        if to < least.load(Relaxed) && !is_privileged {
            return Err(EACCES);
        }
        self.now.store(to, Relaxed);
        let least = (is_privileged && scale == Scale::Score).then_some(to);
        least.inspect(|&least| self.least.store(least, Relaxed));
        Ok(least)
    }

    /// A new process has its parent's adjustment.
    pub fn inherit(&self, parent: &Adjustment) {
        self.now.store(parent.now.load(Relaxed), Relaxed);
        self.least.store(parent.least.load(Relaxed), Relaxed);
    }
}

/// How an adjustment is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// In thousandths: `oom_score_adj`.
    Score,
    /// From -17, for never, to 15: `oom_adj`.
    Old,
}

const OLD_NEVER: i32 = -17;
const OLD_MOST: i32 = 15;

/// Changes the adjustment of a process, and of others that run in its memory: a process left out
/// would keep the memory.
///
/// # Errors
/// `EINVAL` for what is outside of the scale; `EACCES` for less than the running process may set.
pub fn adjust(process: &Arc<Process>, scale: Scale, to: i32) -> Result<()> {
    let to = match scale {
        Scale::Score if (NEVER..=MOST).contains(&to) => to,
        Scale::Old if to == OLD_MOST => MOST,
        Scale::Old if (OLD_NEVER..OLD_MOST).contains(&to) => to * MOST / -OLD_NEVER,
        _ => return Err(EINVAL),
    };
    let least = process.oom.set(scale, to)?;
    let waits =
        |process: &Process| process.leader().is_some_and(|thread| thread.vfork.lock().is_some());
    // A child of vfork is about to run a program of its own.
    if waits(process) {
        return Ok(());
    }
    let Some(mm) = process.mm().filter(|mm| mm.is_shared()) else { return Ok(()) };
    for other in table::processes() {
        let is_other = other.pid != 1 && !Arc::ptr_eq(&other, process);
        let shares = || other.mm().is_some_and(|theirs| Arc::ptr_eq(&theirs, &mm));
        if is_other && shares() && !waits(&other) {
            other.oom.now.store(to, Relaxed);
            least.inspect(|&least| other.oom.least.store(least, Relaxed));
        }
        sched::give_way();
        if sched::is_leaving() {
            break;
        }
    }
    Ok(())
}

/// The adjustment of a process in the old scale.
pub fn shown_as_old(process: &Process) -> i32 {
    match process.oom.get() {
        MOST => OLD_MOST,
        now => (now * -OLD_NEVER / MOST).min(OLD_MOST),
    }
}

/// A process's part of all that is in use, in pages. What it shares with others is divided by the
/// number of processes that have it.
#[derive(Clone, Copy, Default)]
pub struct Size {
    /// Its anonymous memory.
    resident: u64,
    /// Its private memory on swap.
    swapped: u64,
    /// Page tables, and what finds these from the pages that they map.
    tables: u64,
    /// Heap for its map.
    map: u64,
    /// What the kernel keeps for the process (`charge`), what it exported, unnamed memory and
    /// queues that it made.
    kept: u64,
}

/// Bytes by which a mapping is found from its page, unless it is the page's first.
const MAPPING: u64 = 16;

impl Size {
    /// The size of a process; for a zombie, what the kernel keeps for it. Cost: by its mappings and
    /// pages.
    pub fn of(process: &Process) -> Size {
        let account = process.account();
        let kept = account.pages() as u64;
        let Some(space) = process.space() else { return Size { kept, ..Size::default() } };
        let range_stats = vm::range_stats(&space, 0, USER_END);
        Size {
            resident: range_stats.anonymous_share as u64 / PAGE,
            swapped: range_stats.swapped_share as u64 / PAGE,
            tables: vm::tables(&space) + vm::resident_pages(&space) * MAPPING / PAGE,
            map: range_stats.heap as u64 / PAGE,
            kept,
        }
    }

    fn total(&self) -> u64 {
        self.resident + self.swapped + self.tables + self.map + self.kept
    }
}

/// Pages of memory and swap.
fn all_pages() -> i64 {
    let stats = vm::stats();
    (stats.total_pages + stats.swap_pages) as i64
}

/// How good it would be to end a process, and its size; `None` if that is out of the question: the
/// first process, with which the machine would go, one that runs in its parent's memory yet, and
/// those that were excepted.
fn badness(process: &Process, all: i64) -> Option<(i64, Size)> {
    let adjustment = process.oom.get();
    if process.pid == 1 || adjustment == NEVER || borrows_memory(process) {
        return None;
    }
    let size = Size::of(process);
    Some((size.total() as i64 + i64::from(adjustment) * (all / 1000), size))
}

/// Whether a process runs in the memory of its parent, which waits for that in vfork. A child with
/// memory of its own may have such a parent too.
fn borrows_memory(process: &Process) -> bool {
    let is_waited_for = process.leader().is_some_and(|thread| thread.vfork.lock().is_some());
    let parents = || table::process(process.parent())?.space();
    is_waited_for
        && process.space().zip(parents()).is_some_and(|(own, parents)| Arc::ptr_eq(&own, &parents))
}

/// `/proc/PID/oom_score`, as Linux computes it: 0 for a process that is never chosen, 667 for one
/// without memory, up to 2000.
pub fn score(process: &Process) -> i64 {
    let all = all_pages();
    badness(process, all).map_or(0, |(points, _)| (1000 + points * 1000 / all.max(1)) * 2 / 3)
}

/// The worst of the processes that were not on their way out when they were judged. The table is
/// unlocked: counting what a process has gives way to others, which may end some meanwhile. These
/// stay what they were judged to be, lest a small process is taken for the worst.
fn worst() -> Option<Arc<Process>> {
    let all = all_pages();
    for process in table::processes() {
        let account = process.account();
        let user = account.user();
        user.judged.store(user.pages() as i64, Relaxed);
        user.idle.store(user.heap_pages() as i64 - (user.kept() / PAGE as usize) as i64, Relaxed);
    }
    for process in table::processes() {
        let judged = if is_leaving(&process) { None } else { badness(&process, all) };
        process.oom.judged.store(judged.map_or(i64::MIN, |(points, _)| points), Relaxed);
        // What is kept for it is among its user's already.
        let (points, size) = judged.unwrap_or_default();
        let account = process.account();
        account.user().judged.fetch_add(points - size.kept as i64, Relaxed);
        account.user().idle.fetch_sub(size.map as i64, Relaxed);
    }
    let judged = table::processes().filter_map(|process| {
        let own = process.oom.judged.load(Relaxed);
        let account = process.account();
        let of_user = match account.user().uid() {
            0 => own,
            _ => account.user().judged.load(Relaxed) + account.user().idle.load(Relaxed).max(0),
        };
        (own != i64::MIN).then_some(((of_user, own), process))
    });
    judged.max_by_key(|(points, _)| *points).map(|(_, process)| process)
}

/// A process that was killed and has not gone yet.
fn leaving() -> Option<Arc<Process>> {
    table::with(|tree| {
        let mut all = tree.nodes().map(|node| &node.process);
        all.find(|process| is_leaving(process) && !has_gone(process)).cloned()
    })
}

fn announce(victim: &Process) {
    let size = Size::of(victim);
    let name = victim.leader().map_or([0; 16], |thread| thread.comm_bytes());
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = core::str::from_utf8(&name[..end]).unwrap_or("?");
    crate::control!(
        "trace out of memory: killed process {} ({name}), {} KiB in memory, {} KiB on swap, {} KiB of its map, {} KiB kept for it",
        victim.pid,
        size.resident * 4,
        size.swapped * 4,
        (size.tables + size.map) * 4,
        size.kept * 4
    );
}
