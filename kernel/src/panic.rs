//! The end: a message on the control channel, the way that led there, and the power goes off.
//!
//! The back-trace follows frame pointers, which the whole kernel is built with; the host turns the addresses into names.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::arch::{self, serial};
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
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) }
    match info.location() {
        Some(at) => report(format_args!("{} at {}:{}", info.message(), at.file(), at.line()), None, frame),
        None => report(format_args!("{}", info.message()), None, frame),
    }
}

/// Says what is wrong and how it came to that, starting at `rip` and the frame that `rbp` points to; then ends the machine.
pub fn report(message: fmt::Arguments<'_>, rip: Option<u64>, rbp: u64) -> ! {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.swap(true, Relaxed) {
        let _ = match sched::kernel_thread() {
            Some(name) => writeln!(serial::Control, "panic {} (thread {name})", OneLine(message)),
            None => writeln!(serial::Control, "panic {}", OneLine(message)),
        };
        if let Some(rip) = rip {
            let _ = writeln!(serial::Control, "bt {rip:#x}");
        }
        backtrace(rbp);
    }
    arch::power_off(EXIT_PANIC)
}

fn backtrace(mut frame: u64) {
    for _ in 0..DEPTH {
        if frame < layout::DIRECT
            || !frame.is_multiple_of(8)
            || !layout::is_mapped(frame)
            || !layout::is_mapped(frame + 8)
        {
            return;
        }
        // SAFETY: both words were found mapped; a wrong frame only yields wrong numbers.
        let (next, rip) = unsafe { (*(frame as *const u64), *((frame + 8) as *const u64)) };
        if rip < layout::DIRECT {
            return;
        }
        let _ = writeln!(serial::Control, "bt {rip:#x}");
        if next <= frame {
            return;
        }
        frame = next;
    }
}

/// Keeps a message on one line of the control channel.
struct OneLine<'a>(fmt::Arguments<'a>);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Filter<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Filter<'_, '_> {
            fn write_str(&mut self, s: &str) -> fmt::Result {
                s.chars().try_for_each(|c| self.0.write_char(if c == '\n' { ' ' } else { c }))
            }
        }
        write!(Filter(f), "{}", self.0)
    }
}
