//! The reference kernel: a small Linux-compatible kernel whose every page is managed by the UVM
//! library.
//!
//! From the bottom up; each module names those below it alone (`xtask/layers.txt`):
//!
//! * `errno`, `share`, `devnum`, `trace`: numbers and rules that all share
//! * `lock`, `arch`, `mem`: locks that spin; all that knows the machine; memory, stacks, heap
//! * `print`: text for the host
//! * `sched`, `sync`, `user`, `time`: tasks and timers; waiting; checked access to programs' memory
//! * `charge`, `vm`: what users make the kernel keep; what the kernel asks of the library
//! * `cred`, `uio`, `chain`: credentials; where a call's bytes lie; bytes and pages under way
//! * `block`, `fs`, `proc`: disks; files; processes
//! * `dev`, `net`, `ipc`, `procfs`, `syscall`: what else Linux programs expect
//! * `boot`, `panic`: from the boot loader to [`start`]; the end
//! * `upcalls`: all that the lower half calls of the upper half

#![no_std]
#![no_main]

extern crate alloc;

#[allow(unsafe_code)]
mod arch;
#[allow(unsafe_code)]
mod block;
#[allow(unsafe_code)]
mod boot;
mod chain;
mod charge;
mod cred;
#[allow(unsafe_code)]
mod dev;
mod devnum;
mod errno;
mod fs;
mod ipc;
#[allow(unsafe_code)]
mod lock;
#[allow(unsafe_code)]
mod mem;
mod net;
mod panic;
mod print;
mod proc;
mod procfs;
#[allow(unsafe_code)]
mod sched;
mod share;
#[allow(unsafe_code)]
mod sync;
mod syscall;
mod time;
mod trace;
mod uio;
mod upcalls;
mod user;
mod vm;

use arch::{acpi, clock, cpu, fpu, irq, serial, start, trap, user_access};
use boot::BootInfo;
use dev::{framebuffer, tty};
use mem::stack;
use proc::terminal;

/// Brings everything up and becomes the idle task. Runs on the boot stack, with the boot loader's
/// tables.
#[allow(unsafe_code)]
fn start(info: &BootInfo) -> ! {
    // SAFETY: the first CPU, once.
    unsafe { cpu::init_early(0) };
    serial::init();
    user_access::enable_smap();
    let platform = acpi::init(info.rsdp);
    cpu::set_found(platform.cpus.len());
    let devices = framebuffer::find();
    mem::init(|| info.memory(), info.module, devices.as_slice(), info.cmdline)
        .expect("enough memory to start");
    let last_resort = stack::Stack::new().expect("enough memory for a stack");
    // SAFETY: the stack is forgotten, so no other task gets it.
    unsafe { cpu::init(last_resort.top()) };
    core::mem::forget(last_resort);
    trap::init();
    fpu::init();
    irq::init(platform);
    clock::init();
    sched::init();
    vm::init(vm::Above {
        each_space: |each| proc::processes().filter_map(|one| one.space()).for_each(each),
        out_of_memory: proc::oom::make_room,
        memory_is_short: fs::memory_is_short,
    });
    framebuffer::init().expect("enough memory for a display's tables");
    vm::start_daemon().expect("enough memory for the page daemon");
    net::rights::start().expect("enough memory for the collector of sockets");
    block::virtio::init();
    // SAFETY: nothing else has looked at it.
    let initramfs = unsafe { mem::Initramfs::new(&info.module) };
    let failed = fs::init(initramfs).expect("enough memory for the first files");
    if failed != 0 {
        println!("uvm: the root file system lacks {failed} of its files, so nothing is started");
        sched::shut_down(proc::NOT_STARTED);
    }
    dev::devfs::init().expect("enough memory for /dev");
    procfs::init().expect("enough memory for /proc");
    tty::init(info.cmdline).expect("enough memory for the console");
    terminal::register(terminal::Terminal {
        adopt: tty::adopt,
        session_ended: tty::session_ended,
        is_foreground: tty::is_foreground,
    });
    // Last: what comes before has one CPU to itself.
    start::start(&platform.cpus);
    block::virtio::spread();
    if platform.unused_cpus != 0 {
        println!("{} more CPUs can't be used", platform.unused_cpus);
    }
    proc::start_init(info.cmdline).expect("enough memory for the first process");
    sched::idle()
}
