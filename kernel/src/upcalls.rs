//! Up-calls: all that the lower half of the kernel calls of the upper half, each name with its
//! reason.
//!
//! ```text
//!   arch     a trap, an interrupt or a new CPU: what the hardware has begun goes on above
//!   sched    a task of a program has a thread, whose space is entered and whose signals are seen to
//!   fs       files ask for the running process, and lead to devices and sockets
//! ```
//! Modules name those below them alone (`xtask/layers.txt`); a name that has to lead up stands
//! here. They are plain names and no registered functions: a trap or a switch costs no more for
//! them. What is rare is handed down at start-up instead: see `vm::Above`, `proc::Terminal`.

/// # Of `arch`
/// The contract of an architecture, `arch`, says when each is called.
mod of_arch {
    /// What a CPU's slot for the running task holds.
    pub use crate::sched::Task;

    /// A system call, with the program's registers, where its result goes.
    pub use crate::syscall::dispatch as system_call;

    /// A fault that the program's or the kernel's access to an address of user memory has met, and
    /// what the access was.
    pub use crate::proc::{kernel_page_fault, user_page_fault};
    pub use crate::vm::Access;

    /// Any other exception of a program.
    pub use crate::proc::user_exception;

    /// The alarm was used for something else meanwhile: it is to be set anew.
    pub use crate::sched::clock::arm_again;
    /// A device's interrupt has been answered by its driver.
    pub use crate::sched::device_interrupt;
    /// Another CPU has something for this one to run or look at.
    pub use crate::sched::reschedule_interrupt;
    /// The alarm has gone off.
    pub use crate::sched::timer_interrupt;

    /// Foreign code was interrupted: other threads may run.
    pub use crate::sched::give_way;
    /// The way out to a program, where the task's work word isn't zero.
    pub use crate::sched::return_work;

    /// A CPU has come up, on the stack that its idle task keeps; and is ready to run tasks.
    pub use crate::sched::{idle, init as cpu_started};
    /// First on the stack of a new task of a program, and of the kernel.
    pub use crate::sched::{run_kernel_task, task_started};

    /// A trap that the kernel can't go on from; and whether its address lies below a kernel stack.
    pub use crate::mem::stack::is_guard as is_stack_guard;
    pub use crate::panic::report as panic;
}

/// # Of `sched`
mod of_sched {
    /// The program's part of a task, and the process that its time is charged to.
    pub use crate::proc::{Process, Thread};

    /// A task is about to sleep that has a plug with writes to a disk.
    pub use crate::fs::ext4::flush_plug;
    /// What a task has let go of, and closes by itself later.
    pub use crate::net::rights::DeferredCloses;
    /// A tick has come upon a process that counts its CPU time.
    pub use crate::proc::timer::tick;
    /// Whether the running thread has a signal to see to; what is done about it, and about stops
    /// and the end, on the way out to the program.
    pub use crate::proc::{return_to_user, signal_pending};
}

/// # Of `fs`
mod of_fs {
    /// The running process: its credentials, how many descriptors and files it may
    /// have; its thread's address space.
    pub use crate::proc::curproc::{cred, fd_limit, may_exceed_files, space};
    /// The running process as a whole, for its number, whether it ever had record locks, and where
    /// changes are announced of what its own signals alone make ready.
    pub use crate::proc::current_process;
    /// What the running process may write to a file (`RLIMIT_FSIZE`).
    pub use crate::proc::limits::{file_may_grow_to, file_room};
    /// The running thread writes to a pipe that has no reader: it is sent SIGPIPE.
    pub use crate::proc::raise_sigpipe;
    /// The process that a file's signals go to, and what they tell it.
    pub use crate::proc::signal::file_owner::{FileNews, FileOwner};

    /// Opens the device behind a node, by kind and number.
    pub use crate::dev::open as open_device;
    /// A descriptor was closed: sockets that only lead to each other may be left.
    pub use crate::net::rights::collect as descriptor_closed;
}

pub use of_arch::*;
pub use of_fs::*;
pub use of_sched::*;
