//! Processes and threads: what they run with, and how they come and go.
//!
//! ```text
//!   table    pid -> Process, tid -> Thread; parents, children, groups, sessions     (one lock, TREE)
//!     Process ---- group: threads, pending signals, actions, stop and exit state    (one lock each)
//!        |  \----- files, fs context, credentials, limits                           (one lock each, leaf)
//!      Thread ---- mm: the address space it runs in; mask; pending signals
//!        |
//!      sched::Task
//! ```
//!
//! Reading order: `process`, `thread`, `table`; then the life of a process: `clone`, `exec`,
//! `exit`, `wait`, `pidfd`; then `signal`, `futex`, `timer`, `trace`. `trap` is what the trap code
//! calls.
//!
//! Locks, outermost first: `Process::tracees`, `table` (TREE), `Process::group`, a thread's
//! `pending`, a thread's `trace`, the leaves. None is held while user memory is touched or while
//! sleeping. Wait queues may be woken under any of them.

pub mod access;
pub mod clone;
pub mod curproc;
pub mod elf;
pub mod exec;
pub mod exit;
pub mod foreign_memory;
pub mod futex;
mod futex_pi;
pub mod growth;
pub mod image;
pub mod init;
pub mod limits;
pub mod mm;
pub mod oom;
pub mod pidfd;
pub mod process;
pub mod robust;
pub mod signal;
pub mod table;
pub mod terminal;
pub mod thread;
pub mod timer;
pub mod trace;
pub mod trap;
pub mod usage;
pub mod uts;
pub mod wait;

use alloc::sync::Arc;

use machine::Current;

pub use init::{start_init, NOT_STARTED};
pub use process::Process;
pub use signal::deliver::{return_to_user, signal_pending};
pub use signal::send::{send_to_group, send_to_thread};
pub use table::{processes, Pid};
pub use thread::Thread;
pub use trap::{kernel_page_fault, user_exception, user_page_fault};

use crate::sched::{self, Work};
use signal::{SigInfo, SIGPIPE};

/// The thread that runs on this CPU. Only called on behalf of a user thread: system calls and their
/// traps.
pub fn current_thread() -> Current<Arc<Thread>> {
    sched::current().map(|task| task.user().expect("a kernel task has no user thread"))
}

/// The process of the running thread.
pub fn current_process() -> Current<Arc<Process>> {
    current_thread().map(|thread| &thread.process)
}

/// Makes the running thread take the slow way back to user mode, by `return_to_user`.
pub fn request_return_work() {
    sched::current().add_work(Work::SIGNAL);
}

/// Tells the running thread that what it writes has no reader.
pub fn raise_sigpipe() {
    let _ = send_to_thread(&current_thread(), SigInfo::kernel(SIGPIPE));
}
