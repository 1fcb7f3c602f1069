//! What the file side asks of the running process, in one place.

use alloc::sync::Arc;

use super::context::FsContext;
use super::fdtable::FdTable;
use super::file::File;
use crate::errno::Result;
use crate::proc;
use crate::proc::caps::Caps;
use crate::proc::cred::Cred;

/// The running process's descriptors.
#[inline]
pub fn files() -> Result<Arc<FdTable>> {
    proc::current_process().files()
}

/// The running process's root, working directory and umask.
pub fn context() -> Result<Arc<FsContext>> {
    proc::current_process().fs()
}

/// The running process's credentials.
pub fn cred() -> Arc<Cred> {
    proc::current_process().cred()
}

/// The open file behind a descriptor of the running process.
#[inline]
pub fn file(fd: i32) -> Result<Arc<File>> {
    files()?.get(fd)
}

/// One more than the highest descriptor that it may open.
pub fn fd_limit() -> usize {
    proc::current_process().limit(proc::limits::RLIMIT_NOFILE) as usize
}

/// Whether the running thread may open files beyond the number that all may have.
pub fn may_exceed_files() -> bool {
    crate::sched::current().user().is_none_or(|thread| thread.process.cred().has(Caps::SYS_ADMIN))
}

pub fn pid() -> i32 {
    proc::current_process().pid
}
