//! Foreign code that interrupts reach, and whose thread gives way wherever it is.
//!
//! ```text
//!   open(foreign code ------------------ interrupt --> handler --> give_way --+ )
//!           |    ^                           ^                                |
//!           v    |                           +--------------------------------+
//!      closed(heap, disk, clock)
//! ```
//! The kernel's own code says where it may be interrupted (`io::interrupt_window`,
//! `sched::give_way`); a library that was written for a desk has no such places, and what it does
//! in one piece is as long as what a program gave it. So it runs with interrupts on.
//!
//! I1: code in `open` calls the kernel through `closed` alone: it reads nothing of the CPU's own
//! and holds no spin lock of the kernel's. I2: a CPU is marked open exactly while it runs such
//! code, interrupts being on. A handler above it is the kernel's own code: what it frees of the
//! heap would else let further interrupts in, in the midst of it.

use super::{cpu, io};
use crate::upcalls;

/// Runs foreign code that may be interrupted, and whose thread may go on on another CPU.
pub fn open<T>(code: impl FnOnce() -> T) -> T {
    enter();
    let result = code();
    leave();
    result
}

/// Runs code of the kernel's own, whether or not foreign code calls for it.
#[inline]
pub fn closed<T>(code: impl FnOnce() -> T) -> T {
    let is_open = cpu::is_open();
    if is_open {
        leave();
    }
    let result = code();
    if is_open {
        enter();
    }
    result
}

#[cold]
#[inline(never)]
fn enter() {
    cpu::set_open(true);
    io::interrupts_on();
}

/// The end of it; for good, where the machine is about to stop.
#[cold]
#[inline(never)]
pub fn leave() {
    io::interrupts_off();
    cpu::set_open(false);
}

/// Answers an interrupt that came upon the kernel, and then has foreign code give way.
pub(super) fn interrupted(answer: impl FnOnce()) {
    if !cpu::is_open() {
        return answer();
    }
    cpu::set_open(false);
    answer();
    upcalls::give_way();
    cpu::set_open(true);
}
