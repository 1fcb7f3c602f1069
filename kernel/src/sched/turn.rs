//! Long calls give way.
//!
//! The kernel isn't preempted: what a thread does there it does to its end. So a call whose work a
//! program chooses says after each part that it is done with it, with no spin lock held. Interrupts
//! are taken then, and who waits for the CPU gets it if the caller has had its turn, or a thread of
//! the kernel waits. A call of a thread that is being ended is cut short where it can be.

use super::{clock, current, others_ready, schedule, Nanos, Work};
use crate::arch::{cpu, io};

/// How long a thread works in the kernel while others wait.
const TURN: Nanos = 1_000_000;
/// Bytes that are copied between two looks at who waits: a fraction of a millisecond.
const LOOK: usize = 64 * 1024;

/// So many bytes have been copied, or work of that kind was done, with no spin lock held. Says
/// whether others could run, which is when a caller should look whether it goes on.
#[inline]
pub fn work_done(bytes: usize) -> bool {
    let is_much = cpu::add_work(bytes) >= LOOK;
    if is_much {
        give_way();
    }
    is_much
}

/// A part of a long call is done, with no spin lock held.
#[cold]
pub fn give_way() {
    crate::sync::assert_none_held();
    cpu::clear_work();
    io::interrupt_window();
    // A thread of the kernel works in short bursts.
    if current().is_kernel() {
        return;
    }
    if others_ready() && (current().has_work(Work::RESCHEDULE) || clock::since_switch() >= TURN) {
        schedule();
    }
}
