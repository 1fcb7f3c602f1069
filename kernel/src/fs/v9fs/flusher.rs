//! What happens behind programs' backs: stores through mappings are written to the host every few
//! seconds, and what the host keeps for unused nodes is given back.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use super::{Fs, MOUNTED};
use crate::errno::*;
use crate::fs::ops::Stored;
use crate::println;
use crate::sched;
use crate::sync::{Once, WaitQueue};

/// How often it comes by.
const INTERVAL: sched::Nanos = 2_000_000_000;
/// How often nodes are forgotten at most: while memory stays short there is little of them.
const REST: sched::Nanos = 1_000_000_000;

/// A thread waits for dirty pages to be written.
static CALLED: AtomicBool = AtomicBool::new(false);
/// Memory is short: unused nodes shall go.
static SHORT: AtomicBool = AtomicBool::new(false);
static CALLS: WaitQueue = WaitQueue::new();

/// Starts the thread, once.
pub(super) fn start() {
    static STARTED: Once<()> = Once::new();
    STARTED.call_once(|| {
        if sched::spawn_kernel("v9fs", run).is_err() {
            println!(
                "9p: no memory for the flusher: mapped files are written when they are synced"
            );
        }
    });
}

/// Asks for dirty pages to be written now. From anywhere.
pub(super) fn wake() {
    CALLED.store(true, Release);
    CALLS.wake_one();
}

/// Asks for unused nodes to be forgotten. The page daemon's.
pub fn wake_to_forget() {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = sched::now();
    if now >= NEXT.load(Relaxed) {
        NEXT.store(now + REST, Relaxed);
        SHORT.store(true, Release);
        CALLS.wake_one();
    }
}

fn run() {
    loop {
        let called = || [&CALLED, &SHORT].into_iter().any(|asked| asked.load(Acquire));
        // A call and the deadline are treated alike.
        let _ = CALLS.wait_intr(Some(sched::now() + INTERVAL), || called().then_some(()));
        CALLED.store(false, Release);
        sync_all();
        if SHORT.swap(false, AcqRel) {
            drop_nodes();
        }
    }
}

fn mounted() -> Vec<Arc<Fs>> {
    MOUNTED.lock().clone()
}

/// Has the host have all that was written.
pub fn sync_all() {
    mounted().iter().for_each(|fs| fs.flush());
}

/// Has the file behind a memory object written back; `false` if there is no such file.
///
/// # Errors
/// As `fsync`.
pub fn sync_object(id: u64) -> Result<bool> {
    let of_object = |fs: &Arc<Fs>| {
        fs.find_node(|node| {
            let is_it = node.contents().is_ok_and(|contents| contents.object().id() == id);
            is_it.then(|| node.clone())
        })
    };
    let Some(node) = mounted().iter().find_map(of_object) else { return Ok(false) };
    node.sync()?;
    node.contents()?.check_mapping().map(|()| true)
}

/// Drops pages of files that are clean and neither mapped nor used.
pub fn drop_pages() {
    /// Bytes of a file with whose object locked.
    const STEP: u64 = 1 << 20;
    for fs in mounted() {
        fs.each_node(|node| {
            let Ok(contents) = node.contents() else { return };
            for at in (0..contents.size()).step_by(STEP as usize) {
                if contents.object().resident() == 0 {
                    break;
                }
                contents.object().drop_clean(at, STEP);
                sched::give_way();
            }
        });
    }
}

/// Forgets nodes that are not needed.
pub fn drop_nodes() {
    mounted().iter().for_each(|fs| fs.forget_idle(0));
}
