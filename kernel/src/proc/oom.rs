//! Memory has run out in a fault: somebody has to go.
//!
//! The largest process is killed, by resident pages; the one that faulted may be it. One line on the debug console says so.

use alloc::sync::Arc;

use super::process::{ExitStatus, Process};
use super::signal::{send, SIGKILL};
use super::{current_process, current_thread, table};
use crate::sync::WaitQueue;
use crate::vm;

/// How long the victim is given to leave before the fault is tried again.
const PATIENCE: u64 = 50_000_000;

/// Who had to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The process that asks: its threads are told to leave.
    Myself,
    /// Another one, which has had time to leave; try again.
    Another,
}

/// Kills a process to make room.
pub fn make_room() -> Verdict {
    let own = current_process();
    if current_thread().is_dying() {
        return Verdict::Myself;
    }
    let victim = largest().unwrap_or_else(|| own.clone());
    if victim.group.lock().exiting.is_none() {
        announce(&victim);
        send::kill_all(&mut victim.group.lock(), ExitStatus::Killed(SIGKILL));
    }
    if Arc::ptr_eq(&victim, own) {
        return Verdict::Myself;
    }
    let deadline = crate::sched::now() + PATIENCE;
    let gone = || victim.group.lock().threads.is_empty().then_some(());
    let _ = WaitQueue::new().wait_intr(Some(deadline), gone);
    Verdict::Another
}

fn largest() -> Option<Arc<Process>> {
    let size = |process: &Arc<Process>| process.space().map_or(0, |space| vm::resident_pages(&space));
    table::processes()
        .into_iter()
        .map(|process| (size(&process), process))
        .max_by_key(|(size, _)| *size)
        .map(|(_, p)| p)
}

fn announce(victim: &Process) {
    let pages = victim.space().map_or(0, |space| vm::resident_pages(&space));
    crate::control!(
        "trace out of memory: killed process {} ({}), {} KiB resident",
        victim.pid,
        victim.comm(),
        pages * 4
    );
}
