//! The process or thread that files below `/proc/PID` are about.
//!
//! A path names it by number ([`Who`]); an open file holds a weak reference ([`Opened`]); a text
//! is made of what is left ([`Target`]).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::text::{Spot, Text};
use crate::errno::*;
use crate::proc::usage::Usage;
use crate::proc::{table, Pid, Process, Thread};

/// Whether a file is about all threads of a process, or about one: `/proc/PID/task/TID`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Process,
    Thread,
}

/// A process or thread by its number.
#[derive(Clone, Copy)]
pub(super) struct Who {
    pub pid: Pid,
    pub scope: Scope,
}

/// A process, or one of its threads.
pub(super) struct Target {
    /// The number by which it was found.
    pid: Pid,
    pub process: Arc<Process>,
    /// The thread, or the one that stands for the process: `None` in a process that has ended.
    pub thread: Option<Arc<Thread>>,
    pub scope: Scope,
}

impl Who {
    /// # Errors
    /// `ENOENT`.
    pub fn find(self) -> Result<Target> {
        let Who { pid, scope } = self;
        if let Some(process) = table::process(self.pid).filter(|_| scope == Scope::Process) {
            return Ok(Target { pid, thread: process.leader(), process, scope });
        }
        let thread = table::thread(self.pid).ok_or(ENOENT)?;
        Ok(Target { pid, process: thread.process.clone(), thread: Some(thread), scope })
    }
}

impl Target {
    pub fn open(&self) -> Opened {
        let &Target { pid, scope, .. } = self;
        let thread = match scope {
            Scope::Process if pid == self.process.pid => None,
            _ => self.thread.as_ref().map(Arc::downgrade),
        };
        Opened { pid, process: Arc::downgrade(&self.process), thread, scope }
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What it has used.
    pub fn usage(&self) -> Usage {
        match (&self.thread, self.scope) {
            (Some(thread), Scope::Thread) => thread.usage(),
            _ => self.process.total_usage(),
        }
    }

    /// The state letter.
    pub fn state(&self) -> char {
        self.thread.as_ref().map_or('Z', |thread| thread.state())
    }
}

/// A process or thread that a file was opened on.
pub(super) struct Opened {
    pid: Pid,
    process: Weak<Process>,
    thread: Option<Weak<Thread>>,
    scope: Scope,
}

impl Opened {
    /// What is left of it.
    ///
    /// # Errors
    /// `ESRCH`: it is gone.
    pub fn target(&self) -> Result<Target> {
        let process = self.process.upgrade().ok_or(ESRCH)?;
        let thread = match &self.thread {
            None => process.leader(),
            Some(thread) => {
                let thread = thread.upgrade().filter(|thread| thread.task().is_some());
                Some(thread.ok_or(ESRCH)?)
            }
        };
        Ok(Target { pid: self.pid, process, thread, scope: self.scope })
    }
}

/// A short text of a process or thread.
pub(super) type TargetText = fn(&Target) -> Result<Vec<u8>>;
/// Like `Records`, of a process or thread.
pub(super) type TargetRecords = fn(&Target, Spot, &mut Text) -> Result<Option<u64>>;

/// A text of a process or thread that takes what is written to it.
pub(super) struct TargetSetting {
    pub show: TargetText,
    pub set: fn(&Target, &str) -> Result<()>,
}
