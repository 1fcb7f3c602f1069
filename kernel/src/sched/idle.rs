//! What a CPU with nothing to do does: it looks for work for a while, and then halts.
//!
//! To halt is cheap where nothing comes for long. To wake a halted CPU isn't: it costs an
//! interrupt, and on a virtual machine a sleep and a waking up of the thread that is the CPU, 50 to
//! 100 us. Threads that wait for each other's locks are called again sooner than that. So a CPU
//! looks first, for as long as has paid lately.
//!
//! Source: Linux's haltpoll governor for guests, whose limits these are: a rest that was shorter
//! than the longest look makes the next look longer, one that was not makes it shorter.

use crate::arch::{clock, cpu, io, ipi};

/// Ticks of the time stamp counter, some 20 and 200 us.
const LEAST: u64 = 40_000;
const MOST: u64 = 400_000;

/// How long a CPU looks before it halts, which it learns.
pub(super) struct IdleSpin {
    look: u64,
}

impl IdleSpin {
    pub(super) const fn new() -> IdleSpin {
        IdleSpin { look: 0 }
    }

    /// Returns when this CPU `is_called`, or has taken an interrupt.
    pub(super) fn until(&mut self, is_called: impl Fn() -> bool) {
        // Interrupts alone call an only CPU.
        if cpu::count() == 1 {
            if !is_called() {
                io::wait_for_interrupt();
            }
            return;
        }
        let begun = clock::ticks();
        if self.look != 0 {
            ipi::watch(self.look, &is_called);
        }
        if !is_called() {
            io::wait_for_interrupt();
        }
        let is_short = clock::ticks() - begun <= MOST;
        self.look = match self.look {
            0 if is_short => LEAST,
            look if is_short => (look * 2).min(MOST),
            ..=LEAST => 0,
            look => look / 2,
        };
    }
}
