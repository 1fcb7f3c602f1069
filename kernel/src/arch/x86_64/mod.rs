//! x86-64: the contract of `arch` kept for this machine.
//!
//! | file | what |
//! |---|---|
//! | `entry.s`, `trap`, `regs` | system calls, exceptions, interrupts; the program's registers |
//! | `cpu`, `gdt`, `io` | what each CPU has of its own, single instructions |
//! | `acpi`, `pci` | what the machine has, by its firmware; the ports of the PCI bus |
//! | `apic`, `irq`, `ipi` | interrupt controllers, interrupts of devices and of other CPUs |
//! | `start` | the other CPUs, from reset to their first task |
//! | `clock`, `serial` | time, the two serial ports |
//! | `fpu`, `debug`, `switch`, `preempt` | a task's vectors, watchpoints and stack; foreign code |
//! | `tables`, `user_access` | the kernel's own mappings, instructions that touch user memory |
//! | `layout`, `pmap` | the kernel's addresses; the tables of address spaces |
//! | `bytes` | what page frames hold |
//! | `abi` | what programs see of the machine |
//! | `backtrace` | the way that led to an instruction |

pub mod abi;
pub mod acpi;
mod apic;
pub mod backtrace;
pub mod bytes;
pub mod clock;
#[cfg(feature = "coverage")]
pub mod coverage;
pub mod cpu;
pub mod cpuinfo;
pub mod debug;
pub mod fpu;
mod gdt;
pub mod io;
pub mod ipi;
pub mod irq;
pub mod layout;
pub mod pci;
pub mod pmap;
pub mod preempt;
mod regs;
pub mod serial;
pub mod start;
pub mod switch;
pub mod tables;
pub mod trap;
pub mod user_access;
pub mod windows;

pub use regs::{Bases, UserRegs};

/// Where the function that calls this will return to.
#[inline(always)]
pub fn return_address() -> u64 {
    let address: u64;
    // SAFETY: every function of the kernel keeps a frame pointer, above which its return address
    // lies.
    unsafe {
        core::arch::asm!("mov {}, [rbp + 8]", out(reg) address, options(readonly, nostack, preserves_flags))
    }
    address
}

/// Ends QEMU through its debug-exit device; where there is none, turns the power off by ACPI, or
/// stops.
pub fn power_off(code: u32) -> ! {
    io::out32(0xf4, code);
    if let Some(platform) = acpi::platform() {
        platform.power_off();
    }
    loop {
        io::halt();
    }
}
