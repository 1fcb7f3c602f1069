//! `eventfd`: a counter that one side adds to and the other waits for.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use crate::errno::*;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::sync::{SpinLock, WaitQueue};
use crate::uio::{Sink, Source};

/// The counter stops short of the largest value.
const LIMIT: u64 = u64::MAX - 1;

/// What a read takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    One,
}

struct EventFd {
    count: SpinLock<u64>,
    takes: Takes,
    readers: WaitQueue,
    writers: WaitQueue,
    ino: u64,
}

/// A new one with the flags of `eventfd2`.
pub fn create(initial: u32, flags: u32) -> Result<Arc<File>> {
    if flags & !(abi::EFD_SEMAPHORE | abi::O_CLOEXEC | abi::O_NONBLOCK) != 0 {
        return Err(EINVAL);
    }
    let takes = if flags & abi::EFD_SEMAPHORE != 0 { Takes::One } else { Takes::All };
    let inode = EventFd {
        count: SpinLock::new(u64::from(initial)),
        takes,
        readers: WaitQueue::new(),
        writers: WaitQueue::new(),
        ino: super::new_ino(),
    };
    File::anonymous(Arc::new(inode), abi::O_RDWR | flags & abi::O_NONBLOCK)
}

impl EventFd {
    fn try_take(&self) -> Option<u64> {
        let mut count = self.count.lock();
        let taken = match self.takes {
            Takes::All => *count,
            Takes::One => (*count).min(1),
        };
        *count -= taken;
        (taken > 0).then_some(taken)
    }

    fn try_add(&self, value: u64) -> Option<()> {
        let mut count = self.count.lock();
        let sum = count.checked_add(value).filter(|&sum| sum <= LIMIT)?;
        *count = sum;
        Some(())
    }
}

impl Inode for EventFd {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::Unnamed, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for EventFd {
    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() < 8 {
            return Err(EINVAL);
        }
        let taken = match (self.try_take(), Blocking::of(file)) {
            (Some(taken), _) => taken,
            (None, Blocking::No) => return Err(EAGAIN),
            (None, Blocking::Yes) => {
                self.readers.wait_intr(None, || self.try_take()).map_err(interrupted)?
            }
        };
        self.writers.wake_all();
        to.put(&taken.to_ne_bytes())
    }

    fn write(&self, file: &File, _at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let mut bytes = [0; 8];
        if from.left() < 8 || from.get(&mut bytes)? < 8 {
            return Err(EINVAL);
        }
        let value = u64::from_ne_bytes(bytes);
        if value == u64::MAX {
            return Err(EINVAL);
        }
        match (self.try_add(value), Blocking::of(file)) {
            (Some(()), _) => {}
            (None, Blocking::No) => return Err(EAGAIN),
            (None, Blocking::Yes) => {
                self.writers.wait_intr(None, || self.try_add(value)).map_err(interrupted)?;
            }
        }
        self.readers.wake_all();
        Ok((8, 0))
    }

    fn poll(&self, _file: &File) -> u32 {
        let count = *self.count.lock();
        let mut events = 0;
        if count > 0 {
            events |= abi::POLLIN | abi::POLLRDNORM;
        }
        if count < LIMIT {
            events |= abi::POLLOUT | abi::POLLWRNORM;
        }
        events
    }

    fn describe(&self, _from: u64, out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        let count = *self.count.lock();
        let _ = writeln!(out, "eventfd-count: {count:16x}\neventfd-id: {}", self.ino);
        Ok(None)
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.readers);
        out.push(&self.writers);
    }
}
