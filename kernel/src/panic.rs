//! The end: all other CPUs stop, a message on the control channel, the way that led there, and the
//! power goes off.
//!
//! The back-trace follows frame pointers, which the whole kernel is built with; the host turns the
//! addresses into names.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use crate::arch::serial::control_at_once as say;
use crate::arch::{self, cpu, io, ipi, preempt};
use crate::mem::layout;
use crate::sched;

/// Debug-exit value after a panic.
const EXIT_PANIC: u32 = 0x11;
/// Frames printed at most.
const DEPTH: usize = 48;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags))
    }
    match info.location() {
        Some(at) => {
            report(format_args!("{} at {}:{}", info.message(), at.file(), at.line()), None, frame)
        }
        None => report(format_args!("{}", info.message()), None, frame),
    }
}

/// Says what is wrong and how it came to that, starting at `rip` and the frame that `rbp` points
/// to; then ends the machine.
pub fn report(message: fmt::Arguments<'_>, rip: Option<u64>, rbp: u64) -> ! {
    /// The CPU that was first, by its number plus one.
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    preempt::leave();
    let own = cpu::index() + 1;
    match FIRST.compare_exchange(0, own, AcqRel, Acquire) {
        // The first one's story is told.
        Err(first) if first != own => loop {
            io::halt();
        },
        // What happened while it was told isn't.
        Err(_) => arch::power_off(EXIT_PANIC),
        Ok(_) => {}
    }
    ipi::stop_others();
    // Another CPU may have been stopped within a line.
    say(format_args!(""));
    match sched::kernel_thread() {
        Some(name) => say(format_args!("panic {message} (thread {name})")),
        None => say(format_args!("panic {message}")),
    }
    if let Some(rip) = rip {
        say(format_args!("bt {rip:#x}"));
    }
    backtrace("bt", rbp);
    arch::power_off(EXIT_PANIC)
}

/// Says where this CPU is, for whoever wonders why it hangs.
pub fn show_stack(rip: u64, rbp: u64) {
    let task = cpu::current_owned();
    let id = task.as_ref().map_or(0, |task| task.id());
    say(format_args!("stack CPU {} in task {id}", cpu::index()));
    say(format_args!("at {rip:#x}"));
    backtrace("at", rbp);
}

/// The same from here.
pub fn show_here() {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags))
    }
    show_stack(show_here as *const () as u64, frame);
}

fn backtrace(verb: &str, mut frame: u64) {
    for _ in 0..DEPTH {
        let words = [frame, frame.wrapping_add(8)];
        if !frame.is_multiple_of(8) || !words.into_iter().all(layout::is_mapped) {
            return;
        }
        // SAFETY: both words were found mapped; a wrong frame only yields wrong numbers.
        let [next, rip] = words.map(|at| unsafe { (at as *const u64).read_volatile() });
        if rip < layout::DIRECT {
            return;
        }
        say(format_args!("{verb} {rip:#x}"));
        if next <= frame {
            return;
        }
        frame = next;
    }
}
