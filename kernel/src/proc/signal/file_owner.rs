//! Who is told of an open file by a signal (`F_SETOWN`, `F_SETSIG`), and by what right.
//!
//! The ids of the process that says who it is are kept with it: a process of another user isn't
//! told, whatever opens, passes on or uses the file later. A process or thread that has ended has
//! no successor with its number.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general as abi;

use super::send::{post, report_change};
use super::{code, Detail, SigInfo, SigSet, Signal, SIGIO, SIGURG};
use crate::errno::{Result, EINVAL, ESRCH};
use crate::proc::process::Process;
use crate::proc::thread::Thread;
use crate::proc::{access, current_process, table, Pid};

/// What has happened to a file: the code of the signal (`POLL_IN` and so on).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileNews {
    In = 1,
    Out = 2,
    /// A lease is broken.
    Message = 3,
}

impl FileNews {
    /// The poll events that it stands for.
    fn band(self) -> u32 {
        match self {
            FileNews::In => abi::POLLIN | abi::POLLRDNORM,
            FileNews::Out => abi::POLLOUT | abi::POLLWRNORM | abi::POLLWRBAND,
            FileNews::Message => abi::POLLIN | abi::POLLRDNORM | abi::POLLMSG,
        }
    }
}

#[derive(Clone, Default)]
enum Receiver {
    #[default]
    None,
    Thread(Pid, Weak<Thread>),
    Process(Pid, Weak<Process>),
    Group(Pid),
}

/// See the module.
#[derive(Clone, Default)]
pub struct FileOwner {
    receiver: Receiver,
    /// Of the process that has set it.
    uid: u32,
    euid: u32,
    /// What is sent in place of SIGIO, with its detail.
    signal: Option<Signal>,
}

/// Signals whose codes mean something else: they come with `SI_SIGIO`.
const OTHER_CODES: SigSet = SigSet::FAULTS.with(SigSet::of(&[super::SIGCHLD]));

/// Members of a group that one wake-up sends the signal, with the file's queue locked; the others
/// hear nothing.
const MEMBERS: usize = 64;

impl FileOwner {
    /// Makes a thread, process or group (`F_OWNER_*`) the one that is told; none for 0.
    ///
    /// # Errors
    /// `ESRCH` if there is none; `EINVAL`.
    pub fn set(&mut self, kind: u32, pid: Pid) -> Result<()> {
        let none = || if pid == 0 { Ok(Receiver::None) } else { Err(ESRCH) };
        let receiver = match kind {
            abi::F_OWNER_TID => table::thread(pid)
                .map_or_else(none, |thread| Ok(Receiver::Thread(pid, Arc::downgrade(&thread)))),
            abi::F_OWNER_PID => table::process(pid)
                .map_or_else(none, |process| Ok(Receiver::Process(pid, Arc::downgrade(&process)))),
            abi::F_OWNER_PGRP if table::with(|tree| tree.next_member(pid, 0).is_some()) => {
                Ok(Receiver::Group(pid))
            }
            abi::F_OWNER_PGRP => none(),
            _ => Err(EINVAL),
        }?;
        let cred = current_process().cred();
        (self.receiver, self.uid, self.euid) = (receiver, cred.uid, cred.euid);
        Ok(())
    }

    /// The kind (`F_OWNER_*`) and number of the one that is told, 0 if it is gone.
    pub fn get(&self) -> (u32, Pid) {
        match &self.receiver {
            Receiver::None => (abi::F_OWNER_PID, 0),
            // Not by whether there is a reference: another CPU may hold one for a moment.
            Receiver::Thread(tid, thread) => {
                let now = table::thread(*tid);
                let is_there = now.is_some_and(|now| Arc::as_ptr(&now) == thread.as_ptr());
                (abi::F_OWNER_TID, if is_there { *tid } else { 0 })
            }
            Receiver::Process(pid, process) => {
                let now = table::process(*pid);
                let is_there = now.is_some_and(|now| Arc::as_ptr(&now) == process.as_ptr());
                (abi::F_OWNER_PID, if is_there { *pid } else { 0 })
            }
            Receiver::Group(pgid) => (abi::F_OWNER_PGRP, *pgid),
        }
    }

    /// Whether nobody was ever named.
    pub fn is_unset(&self) -> bool {
        matches!(self.receiver, Receiver::None)
    }

    /// The real and effective user of the process that has set it; root before.
    pub fn uids(&self) -> (u32, u32) {
        (self.uid, self.euid)
    }

    pub fn signal(&self) -> i32 {
        self.signal.map_or(0, Signal::number)
    }

    /// # Errors
    /// `EINVAL`: there is no such signal.
    pub fn set_signal(&mut self, number: i32) -> Result<()> {
        self.signal = if number == 0 { None } else { Some(Signal::new(number)?) };
        Ok(())
    }

    /// Sends the signal for `fd`. Also called in interrupt context and with queues of files locked.
    pub fn tell(&self, fd: i32, news: FileNews) {
        let plain = SigInfo::kernel(SIGIO);
        let info = self.signal.map_or(plain, |signal| {
            let is_other = OTHER_CODES.has(signal);
            let code = if is_other { code::SI_SIGIO } else { news as i32 };
            SigInfo { signal, code, detail: Detail::File { band: news.band().into(), fd } }
        });
        self.send(info, plain);
    }

    /// Sends SIGURG: an urgent byte has come.
    pub fn tell_urgent(&self) {
        let info = SigInfo::kernel(SIGURG);
        self.send(info, info);
    }

    /// Sends a signal, in place of which `plain` is sent where there is no room for its detail.
    fn send(&self, info: SigInfo, plain: SigInfo) {
        let mut report = None;
        let mut send = |process: &Arc<Process>, thread: Option<&Arc<Thread>>| {
            if !access::may_tell_of_file(process, self.uid, self.euid) {
                return;
            }
            let (sent, change) = post(process, thread, info, None);
            if sent.is_err() {
                // No room for the detail: the program hears that it misses something.
                let _ = post(process, thread, plain, None);
            }
            report = change.map(|change| (process.clone(), change)).or(report.take());
        };
        table::with(|tree| match &self.receiver {
            Receiver::None => {}
            Receiver::Thread(tid, thread) => {
                let found = tree.thread(*tid).filter(|it| Arc::as_ptr(it) == thread.as_ptr());
                found.into_iter().for_each(|thread| send(&thread.process, Some(thread)));
            }
            Receiver::Process(pid, process) => {
                let found = tree.node(*pid).map(|node| &node.process);
                let found = found.filter(|it| Arc::as_ptr(it) == process.as_ptr());
                found.into_iter().for_each(|process| send(process, None));
            }
            Receiver::Group(pgid) => {
                let mut from = 0;
                for _ in 0..MEMBERS {
                    let Some(process) = tree.next_member(*pgid, from) else { break };
                    from = process.pid + 1;
                    send(process, None);
                }
            }
        });
        if let Some((process, change)) = report {
            report_change(&process, change);
        }
    }
}
