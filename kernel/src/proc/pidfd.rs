//! Process descriptors (`pidfd`): open files that each stand for one process, for good.
//!
//! A number may be given to another process once its own is collected; a descriptor then leads to
//! none. All descriptors of a process are open files of one node, which the process has from the
//! first of them on. The node knows the number alone, so that a descriptor keeps nothing of a
//! process that is gone.
//!
//! I1: a process that is in the table has the node (`Process::pidfd`) before a descriptor of it can
//! be found.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use linux_raw_sys::general as abi;

use super::process::Process;
use super::table::{self, Node, Pid, Tree};
use crate::errno::*;
use crate::fs::fdtable::{OnExec, Reserved};
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::ops::*;
use crate::proc::curproc;
use crate::sync::WaitQueue;
use crate::user;

/// See the module.
pub struct PidFd {
    pid: Pid,
    /// Threads that wait for its end.
    gone: WaitQueue,
    ino: u64,
}

impl PidFd {
    fn new(pid: Pid) -> Arc<PidFd> {
        Arc::new(PidFd { pid, gone: WaitQueue::new(), ino: crate::fs::new_ino() })
    }

    /// That of a process.
    pub fn of(process: &Process) -> &Arc<PidFd> {
        process.pidfd.call_once(|| PidFd::new(process.pid))
    }

    /// That of an open file; `None` for one of another kind.
    pub fn of_file(file: &File) -> Option<&PidFd> {
        downcast_file::<PidFd>(file.io())
    }

    /// An open file, which doesn't wait if `flags` have `O_NONBLOCK`.
    pub fn file(self: &Arc<Self>, flags: u32) -> Result<Arc<File>> {
        File::anonymous(self.clone(), abi::O_RDWR | flags & abi::O_NONBLOCK)
    }

    /// The process's number, which may be another's by now.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    fn node<'a>(&self, tree: &'a Tree) -> Option<&'a Node> {
        let is_own =
            |node: &&Node| node.process.pidfd.get().is_some_and(|own| core::ptr::eq(&**own, self));
        tree.node(self.pid).filter(is_own)
    }

    /// The process.
    ///
    /// # Errors
    /// `ESRCH`: it has ended, and was collected.
    pub fn process(&self) -> Result<Arc<Process>> {
        table::with(|tree| self.node(tree).map(|node| node.process.clone())).ok_or(ESRCH)
    }

    fn has_ended(&self) -> bool {
        table::with(|tree| self.node(tree).is_none_or(|node| node.ended.is_some()))
    }
}

/// A process's end stands in the table, or it is out of the table already: threads that wait for
/// its descriptors hear of it.
pub fn process_gone(process: &Process) {
    if let Some(pidfd) = process.pidfd.get() {
        pidfd.gone.wake_all();
    }
}

/// The descriptor of a process that is being made (`CLONE_PIDFD`): its number is the caller's, and
/// known to it.
pub struct Expected {
    number: Reserved,
    file: Arc<File>,
    pidfd: Arc<PidFd>,
}

impl Expected {
    /// For a process with this number; the descriptor's own is stored at `at`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `EFAULT`.
    pub fn new(pid: Pid, at: u64) -> Result<Expected> {
        let pidfd = PidFd::new(pid);
        let (number, file) = (curproc::files()?.reserve()?, pidfd.file(0)?);
        user::put(at, &number.number())?;
        Ok(Expected { number, file, pidfd })
    }

    /// The process has been made, and no thread knows of it yet.
    pub fn is_of(&self, process: &Process) {
        process.pidfd.call_once(|| self.pidfd.clone());
    }

    /// The process is in the table, and doesn't run yet.
    pub fn open(self) {
        self.number.open(self.file, OnExec::Close);
    }
}

impl Inode for PidFd {
    fn stat(&self) -> Stat {
        Stat::plain(crate::fs::PIPE_DEVICE, self.ino, Kind::Unnamed, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for PidFd {
    fn poll(&self, _file: &File) -> u32 {
        if self.has_ended() {
            abi::POLLIN | abi::POLLRDNORM
        } else {
            0
        }
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.gone);
    }

    fn describe(&self, _from: u64, out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        let pid = self.process().map_or(-1, |process| process.pid);
        let _ = writeln!(out, "Pid:\t{pid}\nNSpid:\t{pid}");
        Ok(None)
    }
}
