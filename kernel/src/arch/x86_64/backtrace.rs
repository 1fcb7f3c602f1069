//! The way that led to an instruction: return addresses, by the frame pointers that the whole
//! kernel is built with. The host turns them into names.

use super::serial::control_at_once as say;
use super::{cpu, layout};

/// Frames printed at most.
const DEPTH: usize = 48;

/// Says where this CPU is, which may hang: at the instruction `rip`, in the frame that `rbp` points
/// to.
pub fn show_stack(rip: u64, rbp: u64) {
    let task = cpu::current_owned();
    let id = task.as_ref().map_or(0, |task| task.id());
    say(format_args!("stack CPU {} in task {id}", cpu::index()));
    say(format_args!("at {rip:#x}"));
    backtrace("at", rbp);
}

/// Says where this CPU is, which is here.
pub fn show_here() {
    show_stack(show_here as *const () as u64, frame());
}

/// The frame pointer of the function that calls this.
#[inline(always)]
pub fn frame() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags))
    }
    frame
}

/// Says which instructions called each other, from the innermost frame on, each in a line of
/// `verb`.
pub fn backtrace(verb: &str, mut frame: u64) {
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
