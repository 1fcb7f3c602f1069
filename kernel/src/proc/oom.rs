//! Memory and swap have run out: somebody has to go.
//!
//! The largest process is killed, by pages in memory and on swap; it may be the one that asks. Who asks is the head of
//! the library's line of those who wait for memory, so there is one at a time: it waits until its victim has left its
//! memory, and tries again; all others sleep meanwhile. A victim waits for memory no longer (`Machine::gives_up`) and may
//! take of the kernel's reserve to leave. One line on the debug console says who it was. Nothing here allocates more than
//! a place in a wait queue.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::process::{ExitStatus, Process};
use super::signal::{send, SIGKILL};
use super::{current_process, table};
use crate::mem::layout::USER_END;
use crate::sync::WaitQueue;
use crate::{sched, vm};

/// How long a victim is waited for before another is chosen: it may itself wait for something. One that had locked most of memory
/// takes a second to let it go, on a slow machine.
const PATIENCE: u64 = 3_000_000_000;

/// How many had to go since boot.
pub static KILLS: AtomicU64 = AtomicU64::new(0);

/// Who waits for a victim to be gone.
static GONE: WaitQueue = WaitQueue::new();

/// Kills a process to make room and waits until it has gone. `false`: the one that asks has to go, and nobody else.
pub fn make_room() -> bool {
    let is_program = sched::current().user().is_some();
    if !is_program || super::is_leaving() {
        return false;
    }
    // What one that is on its way out has yet will be free: a victim that asked for itself doesn't wait for its own end.
    if leaving().is_some_and(|going| wait_for(&going)) {
        return !super::is_leaving();
    }
    let victim = match largest() {
        Some(process) => kill(process),
        None => leaving().unwrap_or_else(|| kill(current_process().clone())),
    };
    if Arc::ptr_eq(&victim, current_process()) {
        return false;
    }
    wait_for(&victim);
    !super::is_leaving()
}

/// Waits until a process has gone, or the one that asks is to go itself; not for ever. Says whether that is so.
fn wait_for(process: &Process) -> bool {
    let is_over = || (has_gone(process) || super::is_leaving()).then_some(());
    GONE.wait_until(sched::now() + PATIENCE, is_over).is_some()
}

fn kill(victim: Arc<Process>) -> Arc<Process> {
    KILLS.fetch_add(1, Relaxed);
    announce(&victim);
    send::kill_all(&mut victim.group.lock(), ExitStatus::Killed(SIGKILL));
    victim
}

/// A process has left its memory.
pub fn process_gone() {
    GONE.wake_all();
}

fn has_gone(process: &Process) -> bool {
    process.group.lock().threads.is_empty()
}

/// Whether a process has no thread that could be told to go.
fn is_leaving(process: &Process) -> bool {
    process.leader().is_none_or(|thread| thread.is_dying())
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

/// The largest that is not on its way out, but for the first process: with it the machine would go.
fn largest() -> Option<Arc<Process>> {
    table::with(|tree| {
        let others = tree.nodes().map(|node| &node.process).filter(|process| process.pid != 1);
        let sizes = others.filter(|process| !is_leaving(process)).map(|process| (Size::of(process), process));
        sizes.max_by_key(|(size, _)| size.resident + size.swapped).map(|(_, process)| process.clone())
    })
}

/// One that was told to go and has not gone yet.
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
        "trace out of memory: killed process {} ({name}), {} KiB in memory, {} KiB on swap",
        victim.pid,
        size.resident * 4,
        size.swapped * 4
    );
}
