//! What can be asked of an open file: an object has what its kind of file can do, and no more.
//!
//! ```text
//!   File -> FileOps      position, reading, writing, waiting: all open files
//!             movable    pages that come out and go in as they are: pipes, sockets
//!             mappable   memory behind it, for mmap and exec: files, devices with memory
//!             stored     a disk below it: what was written is carried there
//! ```
//! A name leads to an [`Inode`](super::inode::Inode), whose `open` makes such an object, or is one
//! itself. The defaults are the errors that Linux gives for a file of the wrong kind.
//!
//! I1: no method is called with a spin lock held.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use linux_raw_sys::general as abi;

use super::file::File;
use super::signals::Signals;
use crate::block::Disk;
use crate::chain::Chain;
use crate::errno::*;
use crate::sync::WaitQueue;
use crate::uio::{Sink, Source};
use crate::vm;

pub type FileRef = Arc<dyn FileOps>;

/// Where `lseek` looks for data or a hole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// What `fallocate` does with a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve, and let the file grow.
    Extend,
    /// Reserve, but leave the size.
    KeepSize,
    /// Give the pages back; reads see zeros.
    PunchHole,
    /// Reads see zeros, and there is room for what is written there; the file may grow.
    ZeroRange,
    /// Reads see zeros, and there is room for what is written there; the size stays.
    ZeroRangeKeepSize,
}

/// Pages of a file that lie together on a disk.
pub struct Extent {
    /// The first of them.
    pub page: u64,
    pub disk: Arc<Disk>,
    pub sector: u64,
    pub pages: u64,
}

/// How a transfer through an open file positions itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// A file with offsets: this one.
    At(u64),
    /// Writing behind the end.
    Append,
}

/// The poll events of a file that never makes a thread wait.
pub const ALWAYS_READY: u32 = abi::POLLIN | abi::POLLOUT | abi::POLLRDNORM | abi::POLLWRNORM;

/// The most queues that an open file has.
pub const QUEUES: usize = 2;

/// An open file's operations. See the module's head for the rules.
pub trait FileOps: Any + Send + Sync {
    /// The last descriptor of an open file has gone.
    fn release(&self, _file: &File) {}

    /// Where a seek to the end leads, in bytes.
    fn size(&self) -> u64 {
        0
    }

    /// Whether the file has a position: transfers pass one, `lseek` works.
    fn seekable(&self) -> bool {
        false
    }

    fn read(&self, _file: &File, _at: u64, _to: &mut Sink<'_>) -> Result<usize> {
        Err(EINVAL)
    }

    /// Returns the count and the position after it.
    fn write(&self, _file: &File, _at: Position, _from: &mut Source<'_>) -> Result<(usize, u64)> {
        Err(EINVAL)
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Err(EINVAL)
    }

    fn allocate(&self, _how: Allocate, _at: u64, _len: u64) -> Result<()> {
        Err(ENODEV)
    }

    fn seek_data(&self, _from: u64, _what: Seek) -> Result<u64> {
        Err(EINVAL)
    }

    fn ioctl(&self, _file: &File, _request: u32, _arg: u64) -> Result<u64> {
        Err(ENOTTY)
    }

    /// Which of the poll events hold now.
    fn poll(&self, _file: &File) -> u32 {
        ALWAYS_READY
    }

    /// Where a change of that is announced, in up to [`QUEUES`] places; nothing if it never
    /// changes.
    fn queues<'a>(&'a self, _file: &File, _out: &mut Vec<&'a WaitQueue>) {}

    /// Lines of `/proc/PID/fdinfo` that its kind has, some at a time: from 0, or from what the call
    /// before has returned; `None` after the last.
    fn describe(&self, _from: u64, _out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether that depends on the process that asks: it is announced to each process in its
    /// `signal_readers`.
    fn depends_on_caller(&self) -> bool {
        false
    }

    /// The open file is told of by these from now on.
    fn has_owner(&self, _signals: &Arc<Signals>) {}

    /// The process group in the foreground of a terminal, which hears of it if no other is named.
    fn foreground(&self) -> Option<i32> {
        None
    }

    fn movable(&self) -> Option<&dyn Movable> {
        None
    }

    fn mappable(&self) -> Option<&dyn Mappable> {
        None
    }

    fn stored(&self) -> Option<&dyn Stored> {
        None
    }
}

impl dyn FileOps {
    /// The memory behind the file, if it has any.
    pub fn object(&self) -> Option<vm::Object> {
        self.mappable()?.object()
    }
}

/// Bytes that move in and out in chains of pages.
pub trait Movable {
    /// What a read of up to `most` bytes would get, moved out instead of copied; nothing at the
    /// end. Waits as a read does.
    fn take(&self, file: &File, most: usize) -> Result<Chain>;

    /// Moves all of `chain` in, as a write would copy it, and returns how much that was. What there
    /// was no room for stays in `chain`, which is the caller's to release. Waits as a write does.
    fn give(&self, file: &File, chain: &mut Chain) -> Result<usize>;

    /// Puts a chain back that [`take`](Self::take) gave, in front of all else.
    fn unget(&self, file: &File, chain: Chain);
}

/// Memory behind a file.
pub trait Mappable {
    /// The memory, for `mmap` and `execve`; `None` where this one file has none.
    fn object(&self) -> Option<vm::Object>;

    /// The memory is about to be mapped, which reads the file.
    fn mapped(&self, _file: &File) {}

    /// File seals, for those that have them.
    fn seals(&self) -> Result<u32> {
        Err(EINVAL)
    }

    fn add_seals(&self, _seals: u32) -> Result<()> {
        Err(EINVAL)
    }
}

/// A disk below a file.
pub trait Stored {
    /// Waits until what was written is on stable storage.
    fn sync(&self) -> Result<()>;

    /// As [`sync`](Self::sync), for the whole file system.
    fn sync_fs(&self) -> Result<()> {
        Ok(())
    }

    /// Where on disks its pages lie, in order, for swapping on it past its file system; pages that
    /// lie in parts are left out. It stays so, and nothing writes or truncates it, until
    /// `swap_release`.
    ///
    /// # Errors
    /// `EINVAL` if it can't be swapped on, `EBUSY` if it is already, or something has its disk for
    /// itself.
    fn swap_extents(&self) -> Result<Vec<Extent>>;

    /// Takes `swap_extents` back.
    fn swap_release(&self);

    /// How many pages could not be written so far.
    fn write_errors(&self) -> u64 {
        0
    }

    /// How many of them a program has been told of.
    fn write_errors_seen(&self) -> u64 {
        0
    }

    /// A program is told of so many.
    fn saw_write_errors(&self, _count: u64) {}

    /// Why.
    fn last_write_error(&self) -> Errno {
        EIO
    }
}

/// A file that is only a place in the tree (`O_PATH`).
pub struct PathOnly;

impl FileOps for PathOnly {}

/// An open file as its concrete type.
pub fn downcast_file<T: FileOps>(file: &FileRef) -> Option<&T> {
    (&**file as &dyn Any).downcast_ref::<T>()
}
