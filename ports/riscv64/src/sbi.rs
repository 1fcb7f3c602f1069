//! The firmware: console, harts, interrupts between them, fences, the end.

use core::arch::asm;
use core::fmt;

use crate::HARTS;

fn call(extension: usize, function: usize, args: [usize; 4]) -> isize {
    let (error, value): (isize, isize);
    // SAFETY: the firmware keeps its own memory, and changes nothing of the kernel's but these two
    // registers; what a call is to do is the callers' affair, none of which gives it memory.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => error, inlateout("a1") args[1] => value,
             in("a2") args[2], in("a3") args[3], in("a6") function, in("a7") extension);
    }
    if error < 0 {
        error
    } else {
        value
    }
}

/// The console, byte by byte: whoever prints holds no lock for it.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| _ = call(1, 0, [byte.into(), 0, 0, 0]));
        Ok(())
    }
}

/// Starts a stopped hart, with its number in a0.
pub fn start_hart(hart: usize, entry: usize) {
    assert!(call(0x48534d, 0, [hart, entry, 0, 0]) >= 0, "hart {hart} doesn't start");
}

/// Interrupts some harts.
pub fn interrupt(harts: u64) {
    call(0x735049, 0, [harts as usize, 0, 0, 0]);
}

/// Makes other harts forget translations; `usize::MAX` bytes mean all. Returns when all have: the
/// firmware's interrupt comes through wherever a hart is, with the kernel's interrupts off too.
pub fn remote_fence(harts: u64, start: u64, bytes: usize) {
    let start = if bytes == usize::MAX { 0 } else { start as usize };
    let done = call(0x5246_4e43, 1, [harts as usize, 0, start, bytes]);
    assert!(done >= 0, "the firmware can't fence");
}

/// Interrupts this hart after so many ticks of 100 ns, or never.
pub fn set_timer(ticks: Option<u64>) {
    let now: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("rdtime {}", out(reg) now) };
    call(0x5449_4d45, 0, [ticks.map_or(u64::MAX, |ticks| now + ticks) as usize, 0, 0, 0]);
}

/// Ends the machine; a code other than 0 by QEMU's test device, which the firmware knows no code
/// for.
pub fn exit(code: u32) -> ! {
    if code == 0 {
        call(0x5352_5354, 0, [0, 0, 0, 0]);
    }
    // SAFETY: the test device's only register; all page tables map it (`pmap::KERNEL_ROOT`).
    unsafe { (0x10_0000 as *mut u32).write_volatile(code << 16 | 0x3333) };
    loop {
        core::hint::spin_loop();
    }
}

/// All harts but the calling one.
pub fn others() -> u64 {
    ((1 << HARTS) - 1) & !(1 << crate::hart())
}
