//! Long calls give way: the points where the kernel may switch threads within a call.
//!
//! The kernel isn't preempted: a thread in it runs until it sleeps or returns. So a call whose work
//! a program chooses reports each part that is done, with no spin lock held. Interrupts are taken
//! then, and a thread that waits for the CPU gets it if the caller has used up its time slice, or
//! if the waiting thread is the kernel's own. Threads of the kernel give way themselves, and then
//! have a share (`queue`). A call of a thread that is being ended is cut short where it can be.

use super::{clock, count_time, current, others_ready, schedule, Leaves, Nanos, Work};
use crate::arch::{cpu, io};

/// How long a thread of the kernel that was woken may run while others wait.
pub(super) const TURN: Nanos = 100_000;
/// Bytes copied between two checks for waiting threads: a fraction of a millisecond.
const LOOK: usize = 64 * 1024;

/// Reports work: `bytes` have been copied, or as much other work was done. No spin lock is held.
/// Returns whether other threads could run, which is when a caller should check whether it is being
/// killed.
#[inline]
pub fn work_done(bytes: usize) -> bool {
    let is_much = cpu::add_work(bytes) >= LOOK;
    if is_much {
        give_way();
    }
    is_much
}

/// Lets interrupts in, and other threads run if it is their turn. No spin lock is held.
#[cold]
pub fn give_way() {
    crate::lock::assert_none_held();
    cpu::clear_work();
    io::interrupt_window();
    if current().has_work(Work::TICK) {
        current().drop_work(Work::TICK);
        count_time(&current());
    }
    if others_ready() && (current().has_work(Work::RESCHEDULE) || clock::is_turn_over()) {
        // Before `schedule` reads where the task may run: work that comes later stays.
        current().drop_work(Work::RESCHEDULE);
        schedule(Leaves::IfOthersAreFirst);
    }
}
