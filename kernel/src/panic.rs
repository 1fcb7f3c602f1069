//! The end: all other CPUs stop, a message on the control channel, the way that led there, and the
//! power goes off.
//!
//! The host turns the addresses of the way (`arch::backtrace`) into names.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use crate::arch::backtrace::{backtrace, frame};
use crate::arch::serial::control_at_once as say;
use crate::arch::{self, cpu, io, ipi, preempt};
use crate::sched;

/// Debug-exit value after a panic.
const EXIT_PANIC: u32 = 0x11;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let frame = frame();
    match info.location() {
        Some(at) => {
            report(format_args!("{} at {}:{}", info.message(), at.file(), at.line()), None, frame)
        }
        None => report(format_args!("{}", info.message()), None, frame),
    }
}

/// Says what is wrong and how it came to that, starting at the instruction `at` and the frame
/// that `frame` points to; then ends the machine.
pub fn report(message: fmt::Arguments<'_>, at: Option<u64>, frame: u64) -> ! {
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
    if let Some(at) = at {
        say(format_args!("bt {at:#x}"));
    }
    backtrace("bt", frame);
    arch::power_off(EXIT_PANIC)
}
