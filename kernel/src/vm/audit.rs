//! The library's audit, run in the kernel: all references, queues, places on swap and translations
//! are counted again.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::space::Space;
use super::system::{above, with};
use crate::arch::pmap;
use crate::mem::frames::KERNEL;
use crate::mem::{direct, heap};
use crate::sched;
use crate::sync::WaitQueue;

/// What is under way is waited for: a process on its way in or out, a page on its way to the disk.
const ATTEMPTS: u32 = 30;
const PAUSE: sched::Nanos = 100_000_000;
/// Heap for each page of memory, for the lists of an audit.
const BYTES_PER_PAGE: usize = 96;

/// Checks every invariant of the VM system, with all other CPUs standing still.
///
/// # Errors
/// What was found wrong, again and again; or that memory is too short to look.
pub fn audit() -> Result<(), String> {
    let mut result = once();
    for _ in 1..ATTEMPTS {
        if result.is_ok() {
            break;
        }
        let _ = WaitQueue::new().wait_until(sched::now() + PAUSE, || None::<()>);
        result = once();
    }
    result
}

fn once() -> Result<(), String> {
    let short =
        |_| format!("memory is too short for an audit: {}", super::frame_stats::kernel_frames());
    heap::reserve(KERNEL.frames().total() * BYTES_PER_PAGE).map_err(short)?;
    let audited = sched::stop_machine(|_| {
        let mut spaces: Vec<Arc<Space>> = Vec::new();
        (above().each_space)(&mut |space| spaces.push(space));
        spaces.sort_by_key(|space| Arc::as_ptr(space) as usize);
        spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let found = super::transfer::with_exported(|exported| {
            let mut all: Vec<_> = spaces.iter().map(|space| space.get()).collect();
            all.extend(exported);
            with(|uvm, held| uvm.audit(held, &all, &[]))
                .map_err(|wrong| wrong.to_string())
                .and_then(|()| pmap::audit().map_err(String::from))
                .and_then(|()| direct::audit().map_err(String::from))
        });
        (spaces, found)
    });
    // Its lists are gone: this CPU needs no such promise any more.
    let _ = heap::reserve(0);
    // The last reference to a space may not be dropped while the others stand.
    let (_spaces, found) = audited.map_err(short)?;
    found
}
