//! Single instructions: ports, model-specific and control registers, interrupt flag, TLB.
//!
//! Each function is one instruction whose effect on memory, if any, is named; the callers in this
//! folder are the owners of the registers concerned. Ports are devices' registers: what is written
//! there changes no memory by itself.

use core::arch::asm;

/// Writes a byte to an I/O port.
#[inline]
pub fn out8(port: u16, value: u8) {
    // SAFETY: port output touches no memory the compiler knows of; callers are drivers that own the
    // port.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags))
    }
}

/// Reads a byte from an I/O port.
#[inline]
pub fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: as in `out8`.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags))
    }
    value
}

/// Writes 16 bits to an I/O port.
pub fn out16(port: u16, value: u16) {
    // SAFETY: as in `out8`.
    unsafe {
        asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags))
    }
}

/// Writes 32 bits to an I/O port.
pub fn out32(port: u16, value: u32) {
    // SAFETY: as in `out8`.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags))
    }
}

/// Reads 32 bits from an I/O port.
pub fn in32(port: u16) -> u32 {
    let value: u32;
    // SAFETY: as in `out8`.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags))
    }
    value
}

/// Stops the CPU until an interrupt; with interrupts off, for good.
pub fn halt() {
    // SAFETY: `hlt` changes no state but the CPU's own progress.
    unsafe { asm!("hlt", options(nomem, nostack)) }
}

/// Takes all pending interrupts, then goes on with interrupts off. The caller holds no spin lock.
#[inline]
pub fn interrupt_window() {
    // SAFETY: handlers preserve every register; they may change memory, so `nomem` is not given.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) }
}

/// Lets interrupts in from here on: see `preempt`.
#[inline]
pub(super) fn interrupts_on() {
    // SAFETY: as in `interrupt_window`.
    unsafe { asm!("sti", options(nostack)) }
}

/// The end of that.
#[inline]
pub(super) fn interrupts_off() {
    // SAFETY: as in `interrupt_window`.
    unsafe { asm!("cli", options(nostack)) }
}

/// Sleeps until an interrupt, takes it, and goes on with interrupts off. No wake-up is lost: `sti`
/// delays by one instruction.
#[inline]
pub fn wait_for_interrupt() {
    // SAFETY: as in `interrupt_window`.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

/// The time stamp counter.
#[inline]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe {
        asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Reads a model-specific register.
#[inline]
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register; one that the CPU lacks is a trap, which stops the kernel.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The CPU has the register and takes the value; what the kernel runs on stays as it is.
#[inline]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

/// The address of the last page fault.
#[inline]
pub fn read_cr2() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// What the CPU's breakpoints have met.
pub fn read_debug_status() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, dr6", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Sets that.
pub fn write_debug_status(value: u64) {
    // SAFETY: the register has no effect.
    unsafe { asm!("mov dr6, {}", in(reg) value, options(nomem, nostack, preserves_flags)) }
}

/// Sets where the CPU's breakpoints lie; `debug` alone does, with addresses of user memory.
pub(super) fn write_debug_addresses([a, b, c, d]: [u64; 4]) {
    // SAFETY: the registers change no memory; what they cause is a trap that is expected.
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}",
            in(reg) a, in(reg) b, in(reg) c, in(reg) d, options(nomem, nostack, preserves_flags))
    }
}

/// Sets which of them count, and for what.
pub(super) fn write_debug_control(value: u64) {
    // SAFETY: as in `write_debug_addresses`.
    unsafe { asm!("mov dr7, {}", in(reg) value, options(nomem, nostack, preserves_flags)) }
}

/// The active root table.
pub fn read_cr3() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Makes the root table at physical address `value` active; forgets all non-global translations.
///
/// # Safety
/// The table maps the kernel as all tables do, and stays alive while it is active.
#[inline]
pub unsafe fn write_cr3(value: u64) {
    // SAFETY: by the caller's promise the running code stays mapped.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) }
}

/// Reads CR4.
pub fn read_cr4() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Writes CR4.
///
/// # Safety
/// All bits that change are ones that the CPU offers and that this kernel is written for.
pub unsafe fn write_cr4(value: u64) {
    // SAFETY: by the caller's promise.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) }
}

/// Keeps interrupts of this priority class and below it pending.
pub(super) fn write_cr8(value: u64) {
    // SAFETY: changes nothing but which interrupts are taken.
    unsafe { asm!("mov cr8, {}", in(reg) value, options(nomem, nostack, preserves_flags)) }
}

/// Makes this CPU forget the translation of one address.
#[inline]
pub(super) fn invlpg(va: u64) {
    // SAFETY: forgetting a translation is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) }
}

/// Sets an extended control register: XCR0 is register 0.
///
/// # Safety
/// CPUID leaf 13 offers the bits, and CR4.OSXSAVE is set.
pub unsafe fn xsetbv(value: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nomem, nostack))
    }
}
