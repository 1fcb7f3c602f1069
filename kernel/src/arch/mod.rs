//! The machine-dependent half of the kernel, and the contract of an architecture.
//!
//! An architecture is a folder here whose modules offer the names below; the rest of the kernel
//! says `arch::X` and knows nothing of the machine. What an architecture calls in turn stands in
//! [`upcalls`](crate::upcalls), under `arch`; besides, it takes frames and stacks from `mem` and
//! locks from `lock`.
//!
//! # From reset to the first program
//! The boot code (`boot`) brings the first CPU to `main::start` with all memory mapped at
//! [`layout::DIRECT`] and interrupts off, which then calls in this order:
//! * `cpu::init_early(n)`: this CPU is number `n` from now on, and has its own data
//! * `serial::init`, `user_access::enable_smap`: text can be sent; user memory is out of reach but
//!   for `user_access`
//! * `acpi::init(root)`: what there is: CPUs, interrupt controllers, devices at fixed places, how
//!   to power off
//! * `tables::init(top)`: the kernel's own tables for memory up to `top`, each page with the rights
//!   that it needs
//! * `pmap::init(frames)`: what the pmap keeps of each frame that has a number
//! * `cpu::init(stack)`, `trap::init`, `fpu::init`: traps and system calls arrive, those of a full
//!   stack on `stack`; vector state can be saved
//! * `irq::init`, `clock::init`: interrupts can be sent and taken; time passes
//! * `start::start(cpus)`: the other CPUs come up, each with the up-calls `cpu_started` and `idle`
//!
//! # What a CPU is
//! * `cpu::{index, count, found, online, MAX_CPUS}`: which CPU this is, and which there are;
//!   `MAX_CPUS` is at most what a `CpuSet` holds
//! * `cpu::{current, current_owned, running, set_current, take_left, runs}`: the slot of the
//!   running task: `set_current` fills it on a switch, `take_left` empties that of the task that
//!   was left, once; what `current` gives lasts as long as the task runs
//! * `cpu::{add_work, clear_work, heap_pool}`: a count of work done, and the running user's pool of
//!   the heap
//! * `io::interrupt_window`, `io::wait_for_interrupt`, `io::halt`: the kernel runs with interrupts
//!   off; here, and here alone, they are taken: those that wait, the next one, none
//! * `clock::{ticks, now, wall, arm, disarm, doze}`: a counter that doesn't differ between CPUs;
//!   time since boot and of day; an alarm for each CPU, which is the up-call `timer_interrupt`
//! * `ipi::{send, poll, watch, Wait}`: a request to other CPUs, done by the interrupt or where a
//!   CPU waits with interrupts off; what was written before `send` is seen by the CPU that does it
//! * `ipi::{barrier, forget_kernel, forget_page, stop_others, show_all}`: all CPUs have passed a
//!   barrier, have forgotten the kernel's translations, some those of a page, stand still, say
//!   where they are
//! * `irq::{register, Vector, list}`: an interrupt for a driver; the up-call `device_interrupt`
//!   follows the driver's answer
//! * `preempt::{open, closed}`: foreign code runs with interrupts on and gives way wherever it is
//!   (up-call `give_way`); the kernel's own code within it doesn't
//!
//! # Stacks and registers
//! * `UserRegs`: a program's registers at the top of its task's stack; what is written there is
//!   good for the way back, whatever wrote it
//! * `Bases`, `fpu::State`: what else a switch saves: segment bases, vector state, which `accepts`
//!   judges before it is loaded
//! * `debug::Watch`: a task's watchpoints, which a switch loads
//! * `switch::{Context, switch, entry_stack}`: a new task's stack begins with the up-call
//!   `task_started` or `run_kernel_task`; `switch` returns when the context is switched to again
//! * `abi`: the ABI of programs: numbers and registers of system calls, signal frames, a debugger's
//!   view, names of the machine
//! * `backtrace`, `return_address`, `power_off`: the way that led to an instruction; the end
//!
//! On the way out to a program the CPU looks at the task's work word, and calls `return_work` until
//! that is zero.
//!
//! # Memory
//! * `layout`: where user memory ends, and where the kernel's parts lie
//! * `tables::{map_if_absent, unmap, map_device, is_mapped, physical, show, hide, split_direct}`:
//!   the kernel's own mappings, and which frames are in the direct map; `unmap` leaves it to the
//!   caller to have all CPUs forget (`ipi::forget_kernel`)
//! * `windows::{WindowTables, address}`: slots of kernel addresses that show a page for a moment,
//!   as `sf_buf` asks for them
//! * `bytes::PageBytes`: bytes of a frame that others may write meanwhile: no Rust reference is
//!   made to them
//! * `user_access`: copies to and from user memory that end with an error where a fault isn't
//!   resolved (up-call `kernel_page_fault`)
//! * `pmap::NativePmap`: the library's `Pmap`, whose laws are documented there
//! * `pmap::{idle, audit, counters, ..}`: no program's space is active here; its own audit and
//!   counts
//!
//! Traps reach the rest as the up-calls `system_call`, `user_page_fault`, `kernel_page_fault` and
//! `user_exception`; a trap that the kernel can't go on from is `panic`.
//!
//! What a second architecture would have to bring beside this: boot code, and the drivers' way to
//! devices (`pci`, ports in `io`), which are x86's here.

mod x86_64;

pub use x86_64::*;
