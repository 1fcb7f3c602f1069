//! The page daemon's thread, and room for what the kernel itself needs.
//!
//! The library decides what leaves memory (`uvm::pageout`); here is only when. The daemon sleeps
//! until free pages fall under the low water mark, which stands above what is kept for the kernel,
//! so that it runs before any thread is refused memory; then it makes passes until the high one is
//! reached or being written for. A pass that finds next to nothing is followed by a rest, twice as
//! long as the last: were it not, every few pages that a program takes would cost a look at all of
//! memory, and since the daemon runs ahead of programs, no process that could end and give memory
//! back would ever run. Kernel stacks that a crowd of threads has left it gives back, too; and it
//! asks file systems on disks to forget what is unused, which their own thread does, since that may
//! take long.
//!
//! A thread that is refused memory makes room without the daemon: operations of the library by
//! themselves, the kernel's own by [`with_room`].

use machine::{Channel, Machine, NoMemory};
use uvm::pageout::Last;

use super::system::{above, system, with};
use crate::arch::pmap;
use crate::errno::Result;
use crate::mem::frames::KERNEL;
use crate::mem::{direct, heap, stack};
use crate::sched;
use crate::sync::WaitQueue;

/// A pass that yields less than this part of what is wanted is as good as in vain.
const POOR: usize = 8;
/// How long the daemon rests after a pass in vain, and at most after many in a row: a thread that
/// is refused memory makes room itself.
const REST: u64 = 20_000_000;
const LONG_REST: u64 = 640_000_000;
/// How often memory is looked at again after room was made.
const TRIES: usize = 16;
/// Passes in a row that may free nothing where swap has room.
const IN_VAIN: usize = 4;

/// Starts the daemon; before the first program.
pub(super) fn start() -> Result<()> {
    sched::spawn_kernel("pagedaemon", || run())?;
    Ok(())
}

fn run() -> ! {
    static RESTING: WaitQueue = WaitQueue::new();
    let mut rest = REST;
    loop {
        // Read before the look at what is free: a wake-up between the two isn't lost.
        let ticket = KERNEL.ticket(Channel::PAGE_DAEMON);
        stack::give_back();
        heap::give_back();
        pmap::give_back_nodes();
        direct::trim();
        if free_soon() < system().frames().low_water() {
            (above().memory_is_short)();
            if work() {
                rest = REST;
            } else {
                let _ = RESTING.wait_intr(Some(sched::now() + rest), || None::<()>);
                rest = LONG_REST.min(2 * rest);
            }
        }
        with(|_, held| KERNEL.wait(held, ticket));
    }
}

/// Pages that are free, and those that will be once their writes end.
fn free_soon() -> usize {
    system().frames().free() + system().pages_in_flight() + direct::free()
}

/// Makes passes until enough is free or being written for. `false`: the last one found next to
/// nothing.
fn work() -> bool {
    let high = system().frames().high_water();
    while free_soon() < high {
        let wanted = high - free_soon().min(high);
        let progress = with(|uvm, held| uvm.pageout(held, high));
        if (progress.freed + progress.started) * POOR < wanted {
            return false;
        }
    }
    true
}

/// Makes room for an allocation of the kernel's own. `false`: memory and swap are full.
pub(super) fn make_room() -> bool {
    with(|uvm, held| uvm.make_room(held))
}

/// Tries an allocation of the kernel's own, and again as long as room can be made for it. Must not
/// be called on the way of a write that paging waits for; `attempt` may not sleep.
///
/// # Errors
/// [`NoMemory`]: memory and swap are full.
pub fn with_room<T>(attempt: impl FnMut() -> Result<T, NoMemory>) -> Result<T, NoMemory> {
    with(|uvm, held| uvm.with_room(held, Last::Fail, attempt))
}

/// Tries an allocation that the kernel can't go on without as [`with_room`] does, and when memory
/// has run out has a process killed.
///
/// # Errors
/// [`NoMemory`]: that process is the running one.
pub fn with_room_at_any_cost<T>(
    attempt: impl FnMut() -> Result<T, NoMemory>,
) -> Result<T, NoMemory> {
    with(|uvm, held| uvm.with_room(held, Last::AskHost, attempt))
}

/// Fails if less than one page of `fraction` is free and memory has run out, or swap has no such
/// part left either: the processes that have memory now need what there is. Where other threads
/// take what is made free before this one sees it, while swap has room, memory is short but has not
/// run out: the caller goes on.
///
/// That part may be more than the low water mark, above which a pass spares what was just used. So
/// where there is swap, one pass that frees nothing doesn't mean that memory has run out: it has
/// aged the pages, and the next takes them.
pub(super) fn keep_free(fraction: usize) -> Result<(), NoMemory> {
    let frames = system().frames();
    let least = least(fraction);
    let mut in_vain = 0;
    for _ in 0..TRIES {
        if frames.free() >= least {
            return Ok(());
        }
        let (slots, used) = super::swap::space();
        let is_nearly_full = slots != 0 && ((slots - used) as usize) < least;
        if is_nearly_full {
            return Err(NoMemory);
        }
        in_vain = if make_room() { 0 } else { in_vain + 1 };
        let most_in_vain = if slots == 0 { 0 } else { IN_VAIN };
        if in_vain > most_in_vain {
            return Err(NoMemory);
        }
    }
    Ok(())
}

/// Makes so much free, and when memory has run out has a process killed for it.
pub(super) fn make_free(fraction: usize) -> Result<(), NoMemory> {
    let is_free = || system().frames().free() >= least(fraction);
    with_room_at_any_cost(|| if is_free() { Ok(()) } else { Err(NoMemory) })
}

fn least(fraction: usize) -> usize {
    system().frames().total() / fraction
}
