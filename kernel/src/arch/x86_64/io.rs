//! Port I/O and the few instructions without arguments.

use core::arch::asm;

/// Writes a byte to an I/O port.
pub fn out8(port: u16, value: u8) {
    // SAFETY: port output touches no memory the compiler knows of; callers are drivers that own the port.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

/// Reads a byte from an I/O port.
pub fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: as in `out8`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Writes 32 bits to an I/O port.
pub fn out32(port: u16, value: u32) {
    // SAFETY: as in `out8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) }
}

/// Stops the CPU until an interrupt; with interrupts off, for good.
pub fn halt() {
    // SAFETY: `hlt` changes no state but the CPU's own progress.
    unsafe { asm!("hlt", options(nomem, nostack)) }
}
