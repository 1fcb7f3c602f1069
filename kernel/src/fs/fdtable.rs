//! File descriptors: the small numbers of a process and the open files behind them.
//!
//! Invariants: I1: a new descriptor is the lowest free number. I2: `lowest` is at most the lowest
//! free number. I3: no reference to a file is dropped with the table locked, since that may close
//! it. I4: a number is given to a program before its file is: a call that has to copy the number
//! out [reserves](FdTable::reserve) it, and opens it when that has succeeded. So no other thread
//! sees a descriptor that its call takes back, and none is closed by a number that is another
//! file's by then.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::file::File;
use crate::charge::{self, Account, Charge};
use crate::errno::*;
use crate::mem::fault::Room;
use crate::sched;
use crate::sync::SpinLock;
use crate::upcalls;

/// The most descriptors that any limit allows: bounds the table's memory.
pub const MAX_FDS: usize = 65536;

/// A close's work: that of copying so many bytes.
const CLOSE: usize = 4096;

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

/// What is behind a number.
#[derive(Clone, Default)]
enum Place {
    #[default]
    Free,
    /// Nothing yet (I4): not free, and not open.
    Reserved,
    Open(Slot),
}

impl Place {
    fn open(&self) -> Option<&Slot> {
        match self {
            Place::Open(slot) => Some(slot),
            Place::Free | Place::Reserved => None,
        }
    }

    fn open_mut(&mut self) -> Option<&mut Slot> {
        match self {
            Place::Open(slot) => Some(slot),
            Place::Free | Place::Reserved => None,
        }
    }

    /// Frees an open one.
    fn take(&mut self) -> Option<Slot> {
        match core::mem::take(self) {
            Place::Open(slot) => Some(slot),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// What a descriptor costs, in a table that grows by doubling.
const SLOT: usize = 2 * size_of::<Place>();

#[derive(Default)]
struct Slots {
    slots: Vec<Place>,
    lowest: usize,
    charge: Option<Charge>,
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
        FdTable { inner: SpinLock::new(Slots::default()) }
    }

    /// The file behind `fd`, whatever it was opened for.
    #[inline]
    pub fn get_any(&self, fd: i32) -> Result<Arc<File>> {
        let inner = self.inner.lock();
        inner.open(fd).map(|slot| slot.file.clone())
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
    pub fn insert_from(
        &self,
        file: Arc<File>,
        on_exec: OnExec,
        from: usize,
        limit: usize,
    ) -> Result<i32> {
        let mut inner = self.inner.lock();
        let fd = inner.find(from, limit)?;
        inner.slots[fd] = Place::Open(Slot { file, on_exec });
        Ok(fd as i32)
    }

    /// Takes the lowest free descriptor for a file to come (I4).
    pub fn reserve(self: &Arc<Self>) -> Result<Reserved> {
        let mut inner = self.inner.lock();
        let fd = inner.find(0, upcalls::fd_limit())?;
        inner.slots[fd] = Place::Reserved;
        Ok(Reserved { table: Some(self.clone()), fd })
    }

    /// Gives `file` the lowest free descriptor.
    pub fn insert(&self, file: Arc<File>, on_exec: OnExec) -> Result<i32> {
        self.insert_from(file, on_exec, 0, upcalls::fd_limit())
    }

    /// Makes `fd` refer to `file`; returns what it referred to. `EBUSY` while another call is about
    /// to open `fd`.
    pub fn replace(&self, fd: i32, file: Arc<File>, on_exec: OnExec) -> Result<Option<Arc<File>>> {
        let index = fd as u32 as usize;
        if index >= upcalls::fd_limit().min(MAX_FDS) {
            return Err(EBADF);
        }
        let mut inner = self.inner.lock();
        inner.grow(index)?;
        if matches!(inner.slots[index], Place::Reserved) {
            return Err(EBUSY);
        }
        let old =
            core::mem::replace(&mut inner.slots[index], Place::Open(Slot { file, on_exec })).take();
        Ok(old.map(|slot| slot.file))
    }

    /// Frees `fd`; returns what it referred to, for the caller to let go.
    pub fn remove(&self, fd: i32) -> Result<Arc<File>> {
        let mut inner = self.inner.lock();
        let index = fd as u32 as usize;
        let slot = inner.slots.get_mut(index).and_then(Place::take).ok_or(EBADF)?;
        inner.lowest = inner.lowest.min(index);
        Ok(slot.file)
    }

    pub fn on_exec(&self, fd: i32) -> Result<OnExec> {
        self.inner.lock().open(fd).map(|slot| slot.on_exec)
    }

    pub fn set_on_exec(&self, fd: i32, on_exec: OnExec) -> Result<()> {
        let mut inner = self.inner.lock();
        let slot =
            inner.slots.get_mut(fd as u32 as usize).and_then(Place::open_mut).ok_or(EBADF)?;
        slot.on_exec = on_exec;
        Ok(())
    }

    /// How many descriptors the table has room for.
    pub fn size(&self) -> usize {
        self.inner.lock().slots.len()
    }

    /// The first descriptor in use at or after `from`.
    pub fn next_used(&self, from: usize) -> Option<usize> {
        let inner = self.inner.lock();
        let at = inner.slots.get(from..)?.iter().position(|place| place.open().is_some())?;
        Some(from + at)
    }

    /// A copy for `fork`, with the same files behind the same numbers, charged to `account`. What
    /// is reserved here is free there.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self, account: &Arc<Account>) -> Result<FdTable> {
        let inner = self.inner.lock();
        let bytes = inner.slots.len() * SLOT;
        let charge = Some(Charge::to(account.clone(), bytes).map_err(|_| ENOMEM)?);
        let mut copy = Slots { slots: Vec::new(), lowest: inner.lowest, charge };
        copy.slots.room(inner.slots.len())?;
        copy.slots.extend_from_slice(&inner.slots);
        for (fd, place) in copy.slots.iter_mut().enumerate() {
            if matches!(place, Place::Reserved) {
                *place = Place::Free;
                copy.lowest = copy.lowest.min(fd);
            }
        }
        Ok(FdTable { inner: SpinLock::new(copy) })
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
        for slot in
            inner.slots.get_mut(first..end).into_iter().flatten().filter_map(Place::open_mut)
        {
            slot.on_exec = OnExec::Close;
        }
    }

    fn close_where(&self, first: usize, last: usize, which: impl Fn(OnExec) -> bool) {
        let mut fd = first;
        loop {
            let mut inner = self.inner.lock();
            let end = last.saturating_add(1).min(inner.slots.len());
            while fd < end && !inner.slots[fd].open().is_some_and(|slot| which(slot.on_exec)) {
                fd += 1;
            }
            if fd >= end {
                drop(inner);
                upcalls::descriptor_closed();
                return;
            }
            let closed = inner.slots[fd].take();
            inner.lowest = inner.lowest.min(fd);
            drop(inner);
            if let Some(slot) = closed {
                super::lock::closed_descriptor(&slot.file);
            }
            sched::work_done(CLOSE);
        }
    }
}

impl Drop for FdTable {
    /// The last thread has left.
    fn drop(&mut self) {
        let slots = core::mem::take(&mut *self.inner.lock());
        for place in slots.slots {
            if matches!(place, Place::Open(_)) {
                drop(place);
                sched::work_done(CLOSE);
            }
        }
        upcalls::descriptor_closed();
    }
}

/// A number that one call has, and no program yet (I4). Dropped, it is free again.
#[must_use]
pub struct Reserved {
    /// `None` once the number is open.
    table: Option<Arc<FdTable>>,
    fd: usize,
}

impl Reserved {
    /// What the program will call the file.
    pub fn number(&self) -> i32 {
        self.fd as i32
    }

    /// Opens the number: from now on every thread finds the file behind it.
    pub fn open(mut self, file: Arc<File>, on_exec: OnExec) -> i32 {
        if let Some(table) = self.table.take() {
            table.inner.lock().slots[self.fd] = Place::Open(Slot { file, on_exec });
        }
        self.number()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(table) = &self.table else { return };
        let mut inner = table.inner.lock();
        inner.slots[self.fd] = Place::Free;
        inner.lowest = inner.lowest.min(self.fd);
    }
}

impl Slots {
    /// What is open as `fd`.
    fn open(&self, fd: i32) -> Result<&Slot> {
        self.slots.get(fd as u32 as usize).and_then(Place::open).ok_or(EBADF)
    }

    /// The lowest free number that is at least `from` and below `limit`, for the caller to take.
    fn find(&mut self, from: usize, limit: usize) -> Result<usize> {
        let mut fd = from.max(self.lowest);
        while !matches!(self.slots.get(fd), None | Some(Place::Free)) {
            fd += 1;
        }
        if fd >= limit.min(MAX_FDS) {
            return Err(EMFILE);
        }
        self.grow(fd)?;
        if from <= self.lowest {
            self.lowest = fd + 1;
        }
        Ok(fd)
    }

    /// Makes sure that the slot exists.
    fn grow(&mut self, index: usize) -> Result<()> {
        if index >= self.slots.len() {
            let more = index + 1 - self.slots.len();
            match &mut self.charge {
                Some(charge) => charge.grow(more * SLOT).map_err(|_| ENOMEM)?,
                None => self.charge = Some(charge::take(more * SLOT).map_err(|_| ENOMEM)?),
            }
            self.slots.room(more)?;
            self.slots.resize(index + 1, Place::Free);
        }
        Ok(())
    }
}
