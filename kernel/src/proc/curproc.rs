//! The running process (`curproc`), as system calls on files ask for it.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::{current_process, limits};
use crate::cred::caps::Caps;
use crate::cred::Cred;
use crate::errno::{Result, EFAULT};
use crate::fs::context::FsContext;
use crate::fs::fdtable::FdTable;
use crate::fs::file::File;
use crate::sched;
use crate::vm::Space;

/// The running process's descriptors.
#[inline]
pub fn files() -> Result<Arc<FdTable>> {
    current_process().files()
}

/// The running process's root, working directory and umask.
pub fn context() -> Result<Arc<FsContext>> {
    current_process().fs()
}

/// The running process's credentials.
pub fn cred() -> Arc<Cred> {
    current_process().cred()
}

/// The open file behind a descriptor of the running process.
#[inline]
pub fn file(fd: i32) -> Result<Arc<File>> {
    files()?.get(fd)
}

/// One more than the highest descriptor that it may open.
pub fn fd_limit() -> usize {
    let most = limits::NR_OPEN.load(Ordering::Relaxed);
    current_process().limit(limits::RLIMIT_NOFILE).min(most) as usize
}

/// Whether the running thread may open files beyond the number that all may have.
pub fn may_exceed_files() -> bool {
    sched::current().user().is_none_or(|thread| thread.process.cred().has(Caps::SYS_ADMIN))
}

pub fn pid() -> i32 {
    current_process().pid
}

/// The running thread's address space.
///
/// # Errors
/// `EFAULT`: it has left it.
pub fn space() -> Result<Arc<Space>> {
    super::current_thread().space().ok_or(EFAULT)
}
