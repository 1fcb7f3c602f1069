//! File descriptors: the small numbers of a process and the open files behind them.
//!
//! Invariants: I1: a new descriptor is the lowest free number. I2: `lowest` is at most the lowest
//! free number. I3: no reference to a file is dropped with the table locked, since that may close
//! it. I4: a number is given to a program before its file is: a call that has to copy the number
//! out [reserves](FdTable::reserve) it, and opens it when that has succeeded. So no other thread
//! sees a descriptor that its call takes back, and none is closed by a number that is another
//! file's by then. I5: `used` of a chunk is how many of its places are not free; those behind the
//! end of its list are. Chunks behind the first that have none in use keep no list.

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
pub const MAX_FDS: usize = 1 << 20;

/// Places that lie together: what is looked through, copied or closed with the table locked once.
const CHUNK: usize = 256;

/// The work of looking through a chunk, likewise.
const SCAN: usize = 1024;
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

/// What a descriptor costs, in a list that grows by doubling, and what a chunk of them does
/// besides.
const SLOT: usize = 2 * size_of::<Place>();
const CHUNK_COST: usize = 2 * size_of::<Chunk>();

/// Some numbers in a row.
#[derive(Default)]
struct Chunk {
    places: Vec<Place>,
    used: usize,
}

#[derive(Default)]
struct Slots {
    chunks: Vec<Chunk>,
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
        inner.set(fd, Place::Open(Slot { file, on_exec }));
        Ok(fd as i32)
    }

    /// Takes the lowest free descriptor for a file to come (I4).
    pub fn reserve(self: &Arc<Self>) -> Result<Reserved> {
        let mut inner = self.inner.lock();
        let fd = inner.find(0, upcalls::fd_limit())?;
        inner.set(fd, Place::Reserved);
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
        if matches!(inner.place(index), Some(Place::Reserved)) {
            return Err(EBUSY);
        }
        let mut old = inner.set(index, Place::Open(Slot { file, on_exec }));
        Ok(old.take().map(|slot| slot.file))
    }

    /// Frees `fd`; returns what it referred to, for the caller to let go.
    pub fn remove(&self, fd: i32) -> Result<Arc<File>> {
        let mut inner = self.inner.lock();
        inner.open(fd)?;
        let slot = inner.set(fd as u32 as usize, Place::Free).take().ok_or(EBADF)?;
        Ok(slot.file)
    }

    pub fn on_exec(&self, fd: i32) -> Result<OnExec> {
        self.inner.lock().open(fd).map(|slot| slot.on_exec)
    }

    pub fn set_on_exec(&self, fd: i32, on_exec: OnExec) -> Result<()> {
        let mut inner = self.inner.lock();
        let place = inner.place_mut(fd as u32 as usize);
        place.and_then(Place::open_mut).ok_or(EBADF)?.on_exec = on_exec;
        Ok(())
    }

    /// How many descriptors the table has room for.
    pub fn size(&self) -> usize {
        let inner = self.inner.lock();
        let last = inner.chunks.last().map_or(0, |chunk| chunk.places.len());
        inner.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// The first descriptor in use at or after `from`.
    pub fn next_used(&self, from: usize) -> Option<usize> {
        let mut fd = from;
        loop {
            let inner = self.inner.lock();
            let (chunk, at) = (inner.chunks.get(fd / CHUNK)?, fd % CHUNK);
            let mut rest = chunk.places.iter().skip(at);
            if let Some(n) = rest.position(|place| place.open().is_some()) {
                return Some(fd + n);
            }
            drop(inner);
            fd = fd - at + CHUNK;
            sched::work_done(SCAN);
        }
    }

    /// A copy for `fork`, with the same files behind the same numbers, charged to `account`. What
    /// is reserved here is free there.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self, account: &Arc<Account>) -> Result<FdTable> {
        let charge = Charge::to(account.clone(), 0).map_err(|_| ENOMEM)?;
        let mut copy = Slots { charge: Some(charge), ..Slots::default() };
        loop {
            let inner = self.inner.lock();
            let Some(chunk) = inner.chunks.get(copy.chunks.len()) else { break };
            copy.add(chunk)?;
            drop(inner);
            sched::work_done(SCAN);
        }
        copy.lowest = copy.first_free(0);
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
        let mut fd = first;
        while fd <= last {
            let mut inner = self.inner.lock();
            let Some(chunk) = inner.chunks.get_mut(fd / CHUNK) else { return };
            let (begin, at) = (fd - fd % CHUNK, fd % CHUNK);
            let many = (last - begin).saturating_add(1).min(chunk.places.len());
            let places = chunk.places.get_mut(at..many).into_iter().flatten();
            places.filter_map(Place::open_mut).for_each(|slot| slot.on_exec = OnExec::Close);
            drop(inner);
            fd = begin + CHUNK;
            sched::work_done(SCAN);
        }
    }

    fn close_where(&self, first: usize, last: usize, which: impl Fn(OnExec) -> bool) {
        let mut fd = first;
        while fd <= last {
            let mut inner = self.inner.lock();
            let Some(chunk) = inner.chunks.get(fd / CHUNK) else { break };
            let (begin, at) = (fd - fd % CHUNK, fd % CHUNK);
            let many = (last - begin).saturating_add(1).min(chunk.places.len());
            let mut places = chunk.places.get(at..many).into_iter().flatten();
            let is_it = |place: &Place| place.open().is_some_and(|slot| which(slot.on_exec));
            let found = places.position(is_it).map(|n| fd + n);
            let closed = found.and_then(|fd| inner.set(fd, Place::Free).take());
            drop(inner);
            fd = found.map_or(begin + CHUNK, |fd| fd + 1);
            if let Some(slot) = closed {
                super::lock::closed_descriptor(&slot.file);
                drop(slot);
                sched::work_done(CLOSE);
            } else {
                sched::work_done(SCAN);
            }
        }
        upcalls::descriptor_closed();
    }
}

impl Drop for FdTable {
    /// The last thread has left.
    fn drop(&mut self) {
        let slots = core::mem::take(&mut *self.inner.lock());
        for place in slots.chunks.into_iter().flat_map(|chunk| chunk.places) {
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
            table.inner.lock().set(self.fd, Place::Open(Slot { file, on_exec }));
        }
        self.number()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(table) = &self.table else { return };
        table.inner.lock().set(self.fd, Place::Free);
    }
}

impl Chunk {
    /// The first free place from one on; `None` if there is none.
    fn first_free(&self, from: usize) -> Option<usize> {
        if self.used == CHUNK {
            return None;
        }
        let mut rest = self.places.iter().skip(from);
        let free = rest.position(|place| matches!(place, Place::Free)).map(|n| from + n);
        free.or((self.places.len() < CHUNK).then_some(self.places.len().max(from)))
    }
}

impl Slots {
    #[inline]
    fn place(&self, fd: usize) -> Option<&Place> {
        self.chunks.get(fd / CHUNK)?.places.get(fd % CHUNK)
    }

    fn place_mut(&mut self, fd: usize) -> Option<&mut Place> {
        self.chunks.get_mut(fd / CHUNK)?.places.get_mut(fd % CHUNK)
    }

    /// What is open as `fd`.
    #[inline]
    fn open(&self, fd: i32) -> Result<&Slot> {
        self.place(fd as u32 as usize).and_then(Place::open).ok_or(EBADF)
    }

    /// Puts something at a number whose slot exists; what was there.
    fn set(&mut self, fd: usize, new: Place) -> Place {
        let is_free = matches!(new, Place::Free);
        let Some(chunk) = self.chunks.get_mut(fd / CHUNK) else { return new };
        let Some(place) = chunk.places.get_mut(fd % CHUNK) else { return new };
        let old = core::mem::replace(place, new);
        chunk.used += usize::from(!is_free);
        chunk.used -= usize::from(!matches!(old, Place::Free));
        if is_free {
            self.lowest = self.lowest.min(fd);
            if chunk.used == 0 && fd >= CHUNK {
                let room = core::mem::take(&mut chunk.places).len() * SLOT;
                if let Some(charge) = &mut self.charge {
                    charge.shrink(room);
                }
            }
        }
        old
    }

    /// The first free number from one on.
    fn first_free(&self, from: usize) -> usize {
        let (mut number, mut at) = (from / CHUNK, from % CHUNK);
        while let Some(chunk) = self.chunks.get(number) {
            if let Some(free) = chunk.first_free(at) {
                return number * CHUNK + free;
            }
            (number, at) = (number + 1, 0);
        }
        number * CHUNK + at
    }

    /// The lowest free number that is at least `from` and below `limit`, for the caller to take.
    fn find(&mut self, from: usize, limit: usize) -> Result<usize> {
        let fd = self.first_free(from.max(self.lowest));
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
        let (number, at) = (index / CHUNK, index % CHUNK);
        if number >= self.chunks.len() {
            let more = number + 1 - self.chunks.len();
            self.charge(more * CHUNK_COST)?;
            self.chunks.room(more)?;
            self.chunks.resize_with(number + 1, Chunk::default);
        }
        let len = self.chunks[number].places.len();
        if at >= len {
            let more = at + 1 - len;
            self.charge(more * SLOT)?;
            let places = &mut self.chunks[number].places;
            places.room(more)?;
            places.resize(at + 1, Place::Free);
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<()> {
        match &mut self.charge {
            Some(charge) => charge.grow(bytes).map_err(|_| ENOMEM),
            None => {
                self.charge = Some(charge::take(bytes).map_err(|_| ENOMEM)?);
                Ok(())
            }
        }
    }

    /// Adds a copy of another table's chunk, in which nothing is reserved.
    fn add(&mut self, chunk: &Chunk) -> Result<()> {
        self.charge(CHUNK_COST + chunk.places.len() * SLOT)?;
        let mut copy = Chunk::default();
        self.chunks.room(1)?;
        copy.places.room(chunk.places.len())?;
        for place in &chunk.places {
            let is_open = place.open().is_some();
            copy.places.push(if is_open { place.clone() } else { Place::Free });
            copy.used += usize::from(is_open);
        }
        self.chunks.push(copy);
        Ok(())
    }
}
