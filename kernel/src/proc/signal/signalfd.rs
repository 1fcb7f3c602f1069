//! `signalfd`: signals that are read like a file. A thread that reads takes its own signals
//! and process.
//!
//! A signal that some thread would take at once is not for a file. One that all block wakes the
//! threads of its process that wait for signals by files (`Process::signal_readers`), and each
//! looks again.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use super::{SigInfo, SigSet};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::inode::*;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::proc::{current_process, current_thread};
use crate::uio::Sink;

/// The size of a `struct signalfd_siginfo`.
const INFO: usize = 128;

/// See the module.
pub struct SignalFd {
    mask: AtomicU64,
    ino: u64,
}

impl SignalFd {
    /// An open file for these signals with the flags of `signalfd4`.
    pub fn create(mask: SigSet, flags: u32) -> Result<Arc<File>> {
        let inode = SignalFd { mask: AtomicU64::new(mask.0), ino: crate::fs::new_ino() };
        File::anonymous(Arc::new(inode), abi::O_RDWR | flags & abi::O_NONBLOCK)
    }

    /// Changes which signals an open file is for.
    pub fn set(file: &File, mask: SigSet) -> Result<()> {
        let inode = downcast_file::<SignalFd>(file.io()).ok_or(EINVAL)?;
        inode.mask.store(mask.0, Ordering::Relaxed);
        current_process().signal_readers.wake_all();
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
        Stat::plain(crate::fs::PIPE_DEVICE, self.ino, Kind::Unnamed, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for SignalFd {
    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() < INFO {
            return Err(EINVAL);
        }
        let mut next = match (self.try_take(), Blocking::of(file)) {
            (Some(info), _) => Some(info),
            (None, Blocking::No) => return Err(EAGAIN),
            (None, Blocking::Yes) => {
                let readers = &current_process().signal_readers;
                Some(readers.wait_intr(None, || self.try_take()).map_err(interrupted)?)
            }
        };
        while let Some(info) = next {
            to.put(&info.to_file_bytes())?;
            next = if to.left() < INFO { None } else { self.try_take() };
        }
        Ok(to.done())
    }

    fn describe(&self, _from: u64, out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        let _ = writeln!(out, "sigmask:\t{:016x}", self.mask().0);
        Ok(None)
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
}
