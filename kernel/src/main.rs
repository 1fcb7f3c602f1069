//! The reference kernel: a small Linux-compatible kernel whose every page is managed by the UVM library.

#![no_std]
#![no_main]

mod arch;
mod boot;

fn main(_info: u64) -> ! {
    arch::serial::early_print("kernel: up\n");
    arch::serial::control("exit 0\n");
    arch::power_off(0x10)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    arch::serial::control("panic\n");
    arch::power_off(0x11)
}
