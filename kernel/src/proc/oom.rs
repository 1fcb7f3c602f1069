//! Memory and swap have run out: somebody has to go.
//!
//! The largest process is killed, by pages in memory and on swap; it may be the one that asks. While one victim is on its way out no
//! second is chosen: whoever needs memory waits until it has gone and tries again. One line on the debug console says
//! who it was. Nothing here allocates more than a place in a wait queue.
//!
//! Locks: `VICTIM` before the table's.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::process::{ExitStatus, Process};
use super::signal::{send, SIGKILL};
use super::{current_process, current_thread, table};
use crate::mem::layout::USER_END;
use crate::sync::{SpinLock, WaitQueue};
use crate::vm;

/// How long a victim is waited for before memory is tried again: it may itself wait for something.
const PATIENCE: u64 = 1_000_000_000;
/// How many of those who wait try again when a process has gone. Each that gets on wakes another, so nobody is forgotten,
/// and thousands of them don't come running for one page.
const WAKE: usize = 8;

/// How many had to go since boot.
pub static KILLS: AtomicU64 = AtomicU64::new(0);

/// Who was told to go last.
static VICTIM: SpinLock<Weak<Process>> = SpinLock::new(Weak::new());
/// Those who wait for it to be gone.
static GONE: WaitQueue = WaitQueue::new();

/// Who had to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The process that asks: its threads are told to leave.
    Myself,
    /// Another one, which has had time to leave; try again.
    Another,
}

/// Kills a process to make room, or waits for one that is being killed.
pub fn make_room() -> Verdict {
    if current_thread().is_dying() {
        return Verdict::Myself;
    }
    let victim = present_victim();
    if Arc::ptr_eq(&victim, current_process()) {
        return Verdict::Myself;
    }
    let deadline = crate::sched::now() + PATIENCE;
    let _ = GONE.wait_intr(Some(deadline), || has_gone(&victim).then_some(()));
    Verdict::Another
}

/// A process has left its memory: some of those who wait may try again.
pub fn process_gone() {
    (0..WAKE).for_each(|_| GONE.wake_one());
}

/// Somebody who waited has got what was missing: there may be enough for another.
pub fn got_on() {
    GONE.wake_one();
}

fn has_gone(process: &Process) -> bool {
    process.group.lock().threads.is_empty()
}

/// The process that is on its way out; a new one if the last has gone.
fn present_victim() -> Arc<Process> {
    let mut victim = VICTIM.lock();
    if let Some(present) = victim.upgrade().filter(|process| !has_gone(process)) {
        return present;
    }
    let chosen = largest().unwrap_or_else(|| current_process().clone());
    *victim = Arc::downgrade(&chosen);
    KILLS.fetch_add(1, Relaxed);
    announce(&chosen);
    send::kill_all(&mut chosen.group.lock(), ExitStatus::Killed(SIGKILL));
    chosen
}

/// Pages a process has: what it has mapped, and what of it lies on swap.
#[derive(Clone, Copy)]
struct Size {
    resident: u64,
    swapped: u64,
}

impl Size {
    fn of(process: &Process) -> Size {
        let Some(space) = process.space() else { return Size { resident: 0, swapped: 0 } };
        let swapped = vm::tally(&space, 0, USER_END).swapped as u64;
        Size { resident: vm::resident_pages(&space), swapped }
    }
}

/// The largest, but for the first process: with it the machine would go.
fn largest() -> Option<Arc<Process>> {
    table::with(|tree| {
        let others = tree.nodes().filter(|node| node.process.pid != 1);
        let sizes = others.map(|node| (Size::of(&node.process), &node.process));
        sizes.max_by_key(|(size, _)| size.resident + size.swapped).map(|(_, process)| process.clone())
    })
}

fn announce(victim: &Process) {
    let size = Size::of(victim);
    let name = victim.leader().map_or([0; 16], |thread| thread.comm_bytes());
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = core::str::from_utf8(&name[..end]).unwrap_or("?");
    crate::control!(
        "trace out of memory: killed process {} ({name}), {} KiB in memory, {} KiB on swap",
        victim.pid,
        size.resident * 4,
        size.swapped * 4
    );
}
