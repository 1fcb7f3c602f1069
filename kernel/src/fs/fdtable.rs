//! File descriptors: the small numbers of a process and the open files behind them.
//!
//! Invariants: I1: a new descriptor is the lowest free number. I2: `lowest` is at most the lowest free
//! number. I3: no reference to a file is dropped with the table locked, since that may close it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::file::File;
use crate::errno::*;
use crate::net::rights;
use crate::sync::SpinLock;

/// The most descriptors that any limit allows: bounds the table's memory.
pub const MAX_FDS: usize = 65536;

/// Whether a descriptor survives `execve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnExec {
    Keep,
    Close,
}

impl OnExec {
    /// From the `O_CLOEXEC` bit of flags (which all calls that make descriptors share).
    pub fn from_flags(flags: u32) -> OnExec {
        if flags & linux_raw_sys::general::O_CLOEXEC != 0 {
            OnExec::Close
        } else {
            OnExec::Keep
        }
    }
}

#[derive(Clone)]
struct Slot {
    file: Arc<File>,
    on_exec: OnExec,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    lowest: usize,
}

/// A table of descriptors, shared by the threads of a process.
pub struct FdTable {
    inner: SpinLock<Slots>,
}

impl Default for FdTable {
    fn default() -> Self {
        Self::new()
    }
}

impl FdTable {
    pub fn new() -> FdTable {
        FdTable { inner: SpinLock::new(Slots { slots: Vec::new(), lowest: 0 }) }
    }

    /// The file behind `fd`, whatever it was opened for.
    #[inline]
    pub fn get_any(&self, fd: i32) -> Result<Arc<File>> {
        let inner = self.inner.lock();
        match inner.slots.get(fd as u32 as usize) {
            Some(Some(slot)) => Ok(slot.file.clone()),
            _ => Err(EBADF),
        }
    }

    /// The file behind `fd`, unless it was opened as a mere path.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<Arc<File>> {
        let file = self.get_any(fd)?;
        if file.is_path_only() {
            return Err(EBADF);
        }
        Ok(file)
    }

    /// Gives `file` the lowest free descriptor that is at least `from` and below `limit`.
    pub fn insert_from(&self, file: Arc<File>, on_exec: OnExec, from: usize, limit: usize) -> Result<i32> {
        let limit = limit.min(MAX_FDS);
        let mut inner = self.inner.lock();
        let mut fd = from.max(inner.lowest);
        while matches!(inner.slots.get(fd), Some(Some(_))) {
            fd += 1;
        }
        if fd >= limit {
            return Err(EMFILE);
        }
        inner.grow(fd)?;
        if from <= inner.lowest {
            inner.lowest = fd + 1;
        }
        inner.slots[fd] = Some(Slot { file, on_exec });
        Ok(fd as i32)
    }

    /// Gives `file` the lowest free descriptor.
    pub fn insert(&self, file: Arc<File>, on_exec: OnExec) -> Result<i32> {
        self.insert_from(file, on_exec, 0, super::current::fd_limit())
    }

    /// Makes `fd` refer to `file`; returns what it referred to.
    pub fn replace(&self, fd: i32, file: Arc<File>, on_exec: OnExec) -> Result<Option<Arc<File>>> {
        let index = fd as u32 as usize;
        if index >= super::current::fd_limit().min(MAX_FDS) {
            return Err(EBADF);
        }
        let mut inner = self.inner.lock();
        inner.grow(index)?;
        let old = inner.slots[index].replace(Slot { file, on_exec });
        Ok(old.map(|slot| slot.file))
    }

    /// Frees `fd`; returns what it referred to, for the caller to let go.
    pub fn remove(&self, fd: i32) -> Result<Arc<File>> {
        let mut inner = self.inner.lock();
        let index = fd as u32 as usize;
        let slot = inner.slots.get_mut(index).and_then(Option::take).ok_or(EBADF)?;
        inner.lowest = inner.lowest.min(index);
        Ok(slot.file)
    }

    pub fn on_exec(&self, fd: i32) -> Result<OnExec> {
        let inner = self.inner.lock();
        match inner.slots.get(fd as u32 as usize) {
            Some(Some(slot)) => Ok(slot.on_exec),
            _ => Err(EBADF),
        }
    }

    pub fn set_on_exec(&self, fd: i32, on_exec: OnExec) -> Result<()> {
        match self.inner.lock().slots.get_mut(fd as u32 as usize) {
            Some(Some(slot)) => {
                slot.on_exec = on_exec;
                Ok(())
            }
            _ => Err(EBADF),
        }
    }

    /// The descriptors in use at or after `from`, at most `max` of them.
    pub fn used_from(&self, from: usize, max: usize) -> Vec<usize> {
        let inner = self.inner.lock();
        let used = inner.slots.iter().enumerate().skip(from).filter(|(_, slot)| slot.is_some());
        used.map(|(fd, _)| fd).take(max).collect()
    }

    /// A copy for `fork`, with the same files behind the same numbers.
    pub fn fork(&self) -> FdTable {
        let inner = self.inner.lock();
        FdTable { inner: SpinLock::new(Slots { slots: inner.slots.clone(), lowest: inner.lowest }) }
    }

    /// `execve`: closes what shall not survive it.
    pub fn close_on_exec(&self) {
        self.close_where(0, usize::MAX, |on_exec| on_exec == OnExec::Close);
    }

    /// Closes the descriptors from `first` to `last`.
    pub fn close_range(&self, first: usize, last: usize) {
        self.close_where(first, last, |_| true);
    }

    /// Marks the descriptors from `first` to `last` as not surviving `execve`.
    pub fn cloexec_range(&self, first: usize, last: usize) {
        let mut inner = self.inner.lock();
        let end = last.saturating_add(1).min(inner.slots.len());
        for slot in inner.slots.get_mut(first..end).into_iter().flatten().flatten() {
            slot.on_exec = OnExec::Close;
        }
    }

    fn close_where(&self, first: usize, last: usize, which: impl Fn(OnExec) -> bool) {
        let mut fd = first;
        loop {
            let mut inner = self.inner.lock();
            let end = last.saturating_add(1).min(inner.slots.len());
            while fd < end && !matches!(&inner.slots[fd], Some(slot) if which(slot.on_exec)) {
                fd += 1;
            }
            if fd >= end {
                drop(inner);
                rights::collect();
                return;
            }
            let closed = inner.slots[fd].take();
            inner.lowest = inner.lowest.min(fd);
            drop(inner);
            if let Some(slot) = closed {
                super::lock::closed_descriptor(&slot.file);
            }
        }
    }
}

impl Drop for FdTable {
    /// The last thread has left.
    fn drop(&mut self) {
        let slots = core::mem::take(&mut *self.inner.lock());
        drop(slots);
        rights::collect();
    }
}

impl Slots {
    /// Makes sure that the slot exists.
    fn grow(&mut self, index: usize) -> Result<()> {
        if index >= self.slots.len() {
            let more = index + 1 - self.slots.len();
            self.slots.try_reserve(more).map_err(|_| ENOMEM)?;
            self.slots.resize(index + 1, None);
        }
        Ok(())
    }
}
