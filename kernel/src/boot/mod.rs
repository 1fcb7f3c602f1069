//! From the boot loader's hands to `main::start`: the PVH entry and what it hands over.
//!
//! QEMU's `-kernel` finds the Xen note of `boot.s` and enters there; the start-info structure names the command line, one module (the
//! initramfs), the memory map and the ACPI root.  Everything is read through the direct map, which the boot tables already have.

use core::arch::global_asm;

global_asm!(include_str!("boot.s"), options(att_syntax));

/// First Rust code: runs on the boot stack, boot tables active, interrupts off.
#[no_mangle]
extern "C" fn boot_main(info: u64) -> ! {
    crate::main(info)
}
