//! From the boot loader's hands to `main::start`: the PVH entry and what it hands over.
//!
//! QEMU's `-kernel` finds the Xen note of `boot.s` and enters there; the start-info structure names
//! the command line, one module (the initramfs), the memory map and the ACPI root. Everything is
//! read through the direct map, which the boot tables already have.

use core::arch::global_asm;
use core::ffi::CStr;

use crate::arch::layout::{self, Range};

global_asm!(include_str!("boot.s"), options(att_syntax));

/// What the boot loader passed, as physical addresses; see Xen's `arch-x86/hvm/start_info.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    cmdline: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Module {
    address: u64,
    size: u64,
    cmdline: u64,
    reserved: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryRange {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// What the boot loader passed, checked.
pub struct BootInfo {
    /// The command line.
    pub cmdline: &'static str,
    /// The initramfs, or nothing.
    pub module: Range,
    /// Physical address of the ACPI root pointer, or zero.
    pub rsdp: u64,
    info: StartInfo,
}

/// First Rust code: runs on the boot stack, boot tables active, interrupts off.
#[no_mangle]
extern "C" fn boot_main(info: u64) -> ! {
    // SAFETY: PVH's contract: EBX held the address of the structure, below 4 GiB, where the boot
    // tables map it.
    let start: StartInfo = unsafe { at(info) };
    assert!(start.magic == 0x336e_c578, "not started by a PVH boot loader");
    let mut module = Range { start: 0, end: 0 };
    if start.module_count > 0 {
        // SAFETY: as above; the count says there is one.
        let first: Module = unsafe { at(start.modules) };
        module = Range { start: first.address, end: first.address + first.size };
    }
    let mut cmdline = "";
    if start.cmdline != 0 {
        // SAFETY: as above; the string ends in a zero byte.
        let text = unsafe { CStr::from_ptr(layout::direct(start.cmdline) as *const _) };
        cmdline = text.to_str().unwrap_or("");
    }
    crate::start(&BootInfo { cmdline, module, rsdp: start.rsdp, info: start })
}

/// A structure at a physical address, which need not be aligned: firmware puts it where it likes.
///
/// # Safety
/// The boot tables map the address, and a `T` lies there.
unsafe fn at<T: Copy>(pa: u64) -> T {
    // SAFETY: the caller's promise; any alignment will do.
    unsafe { (layout::direct(pa) as *const T).read_unaligned() }
}

impl BootInfo {
    /// Usable memory, as the firmware says; it still holds image, module and these structures.
    pub fn memory(&self) -> impl Iterator<Item = Range> + '_ {
        let StartInfo { memory_map, memory_map_entries, .. } = self.info;
        let size = size_of::<MemoryRange>() as u64;
        // SAFETY: checked in `boot_main`; the table has as many entries as it says.
        let range = move |n| unsafe { at::<MemoryRange>(memory_map + n * size) };
        (0..u64::from(memory_map_entries))
            .map(range)
            .filter(|r| r.kind == 1)
            .map(|r| Range { start: r.address, end: r.address + r.size })
    }
}
