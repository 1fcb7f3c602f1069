//! The reference kernel: a small Linux-compatible kernel whose every page is managed by the UVM
//! library.
//!
//! | module | what |
//! |---|---|
//! | `boot` | from the boot loader to [`start`] |
//! | `arch` | everything that knows the machine: traps, interrupts, time, page tables |
//! | `mem` | physical memory at boot; kernel stacks and heap |
//! | `sync`, `sched` | locks, wait queues, tasks, timers |
//! | `user` | checked access to programs' memory |
//! | `vm` | what the kernel asks of the library |
//! | `chain` | bytes and pages under way, for pipes and sockets |
//! | `fs`, `proc`, `syscall`, `ipc`, `net`, `dev` | what Linux programs expect |

#![no_std]
#![no_main]

extern crate alloc;

#[allow(unsafe_code)]
mod arch;
#[allow(unsafe_code)]
mod boot;
mod chain;
mod charge;
mod errno;
#[allow(unsafe_code)]
mod mem;
#[allow(unsafe_code)]
mod panic;
mod print;
#[allow(unsafe_code)]
mod sched;
#[allow(unsafe_code)]
mod sync;
mod user;

#[allow(unsafe_code)]
mod dev;
mod fs;
mod ipc;
mod net;
mod proc;
mod syscall;
mod time;
mod vm;

use arch::{apic, clock, cpu, fpu, serial, start, trap, user_access};
use boot::{acpi, BootInfo};
use mem::stack;
use sync::Once;

/// What ACPI says about the machine.
static PLATFORM: Once<acpi::Platform> = Once::new();

/// Brings everything up and becomes the idle task. Runs on the boot stack, with the boot loader's
/// tables.
#[allow(unsafe_code)]
fn start(info: &BootInfo) -> ! {
    // SAFETY: the first CPU, once.
    unsafe { cpu::init_early(0) };
    serial::init();
    user_access::enable_smap();
    let platform = PLATFORM.call_once(|| acpi::read(info.rsdp));
    cpu::set_found(platform.cpus.len());
    mem::init(info).expect("enough memory to start");
    let last_resort = stack::Stack::new().expect("enough memory for a stack");
    // SAFETY: the stack is forgotten, so nobody else gets it.
    unsafe { cpu::init(last_resort.top()) };
    core::mem::forget(last_resort);
    trap::init();
    fpu::init();
    apic::init(platform);
    clock::init();
    sched::init();
    vm::init();
    dev::framebuffer::init().expect("enough memory for a display's tables");
    vm::start_daemon().expect("enough memory for the page daemon");
    net::rights::start().expect("enough memory for the collector of sockets");
    dev::virtio::init();
    // SAFETY: nothing else has looked at it.
    let initramfs = unsafe { boot::Initramfs::new(&info.module) };
    let failed = fs::init(initramfs).expect("enough memory for the first files");
    if failed != 0 {
        println!("initramfs: {failed} members could not be unpacked");
    }
    dev::tty::init(info.cmdline);
    // Last: what comes before has one CPU to itself.
    start::start(&platform.cpus);
    dev::virtio::spread();
    if platform.unused_cpus != 0 {
        println!("{} more CPUs can't be used", platform.unused_cpus);
    }
    proc::start_init(info.cmdline).expect("enough memory for the first process");
    sched::idle()
}
