//! `signalfd`: signals that are read like a file. Whoever reads takes the signals of its own thread and process.
//!
//! A signal that some thread would take at once is not for a file. One that all block wakes whoever waits for any signal by a file:
//! few do, and each looks again.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use super::io::Sink;
use crate::errno::*;
use crate::ipc::pipe::{interrupted, Blocking};
use crate::proc::current_thread;
use crate::proc::signal::{SigInfo, SigSet};
use crate::sync::WaitQueue;

/// The size of a `struct signalfd_siginfo`.
const INFO: usize = 128;

/// Whoever waits for a signal by a file.
static WAITERS: WaitQueue = WaitQueue::new();

/// A signal has come that all threads of its process block. May be called with spin locks held.
pub fn signal_came() {
    WAITERS.wake_all();
}

/// See the module.
pub struct SignalFd {
    mask: AtomicU64,
    ino: u64,
}

impl SignalFd {
    /// An open file for these signals with the flags of `signalfd4`.
    pub fn create(mask: SigSet, flags: u32) -> Result<Arc<File>> {
        let inode = SignalFd { mask: AtomicU64::new(mask.0), ino: super::new_ino() };
        File::anonymous(Arc::new(inode), abi::O_RDWR | flags & abi::O_NONBLOCK)
    }

    /// Changes which signals an open file is for.
    pub fn set(file: &File, mask: SigSet) -> Result<()> {
        let inode = downcast::<SignalFd>(file.io()).ok_or(EINVAL)?;
        inode.mask.store(mask.0, Ordering::Relaxed);
        WAITERS.wake_all();
        Ok(())
    }

    fn mask(&self) -> SigSet {
        SigSet(self.mask.load(Ordering::Relaxed))
    }

    fn try_take(&self) -> Option<SigInfo> {
        current_thread().take_pending(self.mask())
    }
}

impl Inode for SignalFd {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::File, 0o600)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() < INFO {
            return Err(EINVAL);
        }
        let mut next = match (self.try_take(), Blocking::of(file)) {
            (Some(info), _) => Some(info),
            (None, Blocking::No) => return Err(EAGAIN),
            (None, Blocking::Yes) => Some(WAITERS.wait_intr(None, || self.try_take()).map_err(interrupted)?),
        };
        while let Some(info) = next {
            to.put(&info.to_file_bytes())?;
            next = if to.left() < INFO { None } else { self.try_take() };
        }
        Ok(to.done())
    }

    fn poll(&self, _file: &File) -> u32 {
        if current_thread().has_pending(self.mask()) {
            abi::POLLIN | abi::POLLRDNORM
        } else {
            0
        }
    }

    fn depends_on_caller(&self) -> bool {
        true
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&WAITERS);
    }
}
