//! Open files: what a descriptor refers to, shared by `dup` and `fork`.
//!
//! A [`File`] has the node that `stat` sees, what serves its transfers (the same but for devices
//! and generated files), a position and status flags.
//!
//! Invariants: I1: `moves` is locked through a transfer that moves the position, so that two
//! writers that share a file don't overwrite each other; files without positions never take it and
//! so may block. I2: `release` runs once, when the last reference goes, and never under a spin
//! lock: a thread that removes a descriptor lets its reference go after unlocking the table.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};

use linux_raw_sys::general as abi;
use spin::Once;

use super::access;
use super::epoll::Watch;
use super::inode::{Inode, InodeRef, Kind};
use super::lease::{self, Opener};
use super::mount::{MappedFile, Writer};
use super::ops::{FileOps, FileRef, PathOnly, Position, QUEUES};
use super::path::Place;
use super::signals::{self, Signals};
use crate::chain::{Chain, Clusters};
use crate::charge::{self, Charge, Count, Counted};
use crate::errno::*;
use crate::mem::fault::{self, Room};
use crate::sched::{self, Nanos};
use crate::share;
use crate::sync::{Mutex, SpinLock, WaitQueue, Watcher};
use crate::uio::{Sink, Source};
use crate::upcalls::{self, FileOwner};
use crate::vm::{self, Name};

/// The status flags that `F_SETFL` changes.
const SETTABLE: u32 = abi::O_APPEND | abi::O_NONBLOCK | abi::O_DIRECT | abi::O_NOATIME;

const RANDOM: u8 = 1;
const SEQUENTIAL: u8 = 2;

/// Entries of poll sets that one open file has at most.
const WATCHES: usize = 1024;
/// What it takes to leave the queues that a watcher is on: the work of copying so many bytes.
const LEAVING: usize = 4096;

/// What an open file costs besides itself and its node: its place, names, counts.
const BESIDES: usize = 128;

/// Open files, and how many there may be for those without privilege.
static OPENED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// One of the open files that are counted, in all and for a user.
struct Opened {
    _for_user: Count,
}

impl Drop for Opened {
    fn drop(&mut self) {
        OPENED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Charges the running process for an open file and counts it.
fn take(bytes: usize) -> Result<(Charge, Opened)> {
    let charge = charge::take(bytes + BESIDES).map_err(|_| ENFILE)?;
    let most = if upcalls::may_exceed_files() { usize::MAX } else { MOST.load(Ordering::Relaxed) };
    let user = charge::account().user().clone();
    let count = Count::of(user, Counted::Files, 1, share::share_of(most)).map_err(|_| ENFILE)?;
    let count = Opened { _for_user: count };
    let opened = OPENED.fetch_add(1, Ordering::Relaxed);
    if opened >= most {
        return Err(ENFILE);
    }
    Ok((charge, count))
}

/// How many files are open, and how many may be.
pub fn counts() -> (usize, usize) {
    (OPENED.load(Ordering::Relaxed), MOST.load(Ordering::Relaxed))
}

/// Sets how many files may be open.
pub fn set_most(most: usize) {
    MOST.store(most, Ordering::Relaxed);
}

/// An open file.
pub struct File {
    place: Place,
    io: FileRef,
    /// `O_*` flags without the ones that only `open` looks at.
    flags: AtomicU32,
    /// Changed with `moves` locked; read at any time, by a transfer of the file itself too.
    position: AtomicU64,
    moves: Mutex<()>,
    seekable: bool,
    /// Failed writes to the node that this file has been told of.
    errors_told: AtomicU64,
    /// How a program has said that it reads the file: a [`vm::Usage`] as a number.
    usage: AtomicU8,
    /// What its mappings were called last.
    mapping_name: SpinLock<Option<Arc<MappingName>>>,
    /// The watches that are told of the file's wake-ups.
    watched: SpinLock<Vec<Arc<Watch>>>,
    /// The process that is told of the file by signals, once one was named.
    signals: Once<Arc<Signals>>,
    opener: Option<Opener>,
    writer: Option<Arc<Writer>>,
    _charge: Charge,
    _count: Opened,
}

/// What an open file is charged, before it is open.
pub struct Reserved((Charge, Opened));

impl Reserved {
    /// As [`File::open`].
    pub fn open(self, place: Place, flags: u32) -> Result<Arc<File>> {
        let is_device = matches!(place.inode.kind(), Kind::Char | Kind::Block);
        if is_device && flags & abi::O_PATH == 0 && place.mount_flags() & abi::MS_NODEV != 0 {
            return Err(EACCES);
        }
        if flags & abi::O_PATH == 0 {
            access::may_open(&place.inode.ownership(), flags)?;
        }
        let opener =
            if flags & abi::O_PATH == 0 { Opener::new(&place.inode, flags)? } else { None };
        let is_file = flags & abi::O_PATH == 0 && place.inode.kind() == Kind::File;
        if is_file && flags & abi::O_TRUNC != 0 {
            place.may_change()?;
        }
        let writes = is_file && flags & abi::O_ACCMODE != abi::O_RDONLY;
        let writer =
            place.mount.as_ref().filter(|_| writes).map(|mount| mount.writer()).transpose()?;
        let io = if flags & abi::O_PATH == 0 {
            place.inode.clone().open(flags)?
        } else {
            Arc::new(PathOnly)
        };
        let file = File::with_io(place, io, flags, (opener, writer), self.0);
        if flags & abi::O_DIRECT != 0 && flags & abi::O_PATH == 0 && !file.can_be_direct() {
            return Err(EINVAL);
        }
        Ok(file)
    }
}

impl File {
    /// Opens `place`; `flags` are those of `open` and say how it may be used.
    pub fn open(place: Place, flags: u32) -> Result<Arc<File>> {
        Self::reserve()?.open(place, flags)
    }

    /// Charges the running process for a file that it is about to open.
    ///
    /// # Errors
    /// `ENFILE`: there are too many, or the user has all that it may.
    pub fn reserve() -> Result<Reserved> {
        take(size_of::<File>()).map(Reserved)
    }

    /// As [`File::open`], for a file that its node doesn't count among the open ones: a program may
    /// be run from a memfd that is open for writing.
    pub fn open_uncounted(place: Place, flags: u32) -> Result<Arc<File>> {
        let io = place.inode.clone().open(flags)?;
        Ok(File::with_io(place, io, flags, (None, None), Self::reserve()?.0))
    }

    /// A file on a node that no path leads to.
    ///
    /// # Errors
    /// `ENFILE`: there are too many, or the user has all that it may.
    pub fn anonymous<T: Inode + FileOps>(inode: Arc<T>, flags: u32) -> Result<Arc<File>> {
        let charge = take(size_of::<File>() + size_of_val(&*inode))?;
        Ok(Self::with_io(Place::anonymous(inode.clone()), inode, flags, (None, None), charge))
    }

    fn with_io(
        place: Place,
        io: FileRef,
        flags: u32,
        (opener, writer): (Option<Opener>, Option<Writer>),
        (charge, count): (Charge, Opened),
    ) -> Arc<File> {
        let kept = flags
            & !(abi::FASYNC
                | abi::O_CREAT
                | abi::O_EXCL
                | abi::O_TRUNC
                | abi::O_NOCTTY
                | abi::O_CLOEXEC);
        let seekable = io.seekable();
        // What no program has been told of is for the next one that looks, though it came later.
        let errors_told = AtomicU64::new(io.stored().map_or(0, |node| node.write_errors_seen()));
        Arc::new(File {
            place,
            io,
            flags: AtomicU32::new(kept),
            position: AtomicU64::new(0),
            moves: Mutex::new(()),
            seekable,
            errors_told,
            usage: AtomicU8::new(0),
            mapping_name: SpinLock::new(None),
            watched: SpinLock::new(Vec::new()),
            signals: Once::new(),
            opener,
            writer: writer.map(Arc::new),
            _charge: charge,
            _count: count,
        })
    }

    /// The node that `stat` sees.
    pub fn inode(&self) -> &InodeRef {
        &self.place.inode
    }

    /// What serves the transfers.
    pub fn io(&self) -> &FileRef {
        &self.io
    }

    /// Where the file was opened.
    pub fn place(&self) -> &Place {
        &self.place
    }

    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// The access time of its node, which was read through it now: without `O_NOATIME` and flags of
    /// the mount, it changes once per change of the contents (`relatime`).
    pub fn access_time(&self, atime: Nanos, mtime: Nanos) -> Nanos {
        let mount = self.place.mount_flags();
        let is_kept = mount & abi::MS_NOATIME != 0 || self.place.may_change().is_err();
        if self.flags() & abi::O_NOATIME != 0 || is_kept {
            atime
        } else if mount & abi::MS_STRICTATIME != 0 {
            sched::wall()
        } else if atime <= mtime {
            sched::wall().max(mtime + 1)
        } else {
            atime
        }
    }

    /// `F_SETFL`: changes the flags that may be changed.
    pub fn set_flags(&self, flags: u32) {
        let set = |now: u32| Some(now & !SETTABLE | flags & SETTABLE);
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    pub fn set_nonblocking(&self, on: u32) {
        self.mark(abi::O_NONBLOCK, on != 0);
    }

    /// Says whether the file has `O_ASYNC`; what makes it so is in `signals`.
    pub(super) fn mark_async(&self, on: bool) {
        self.mark(abi::FASYNC, on);
    }

    fn mark(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// The signals that tell of the file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn signals(&self) -> Result<&Arc<Signals>> {
        self.signals.try_call_once(|| Signals::new().inspect(|new| self.io.has_owner(new)))
    }

    /// The process that is told of the file, if one ever was.
    pub fn owner(&self) -> Option<FileOwner> {
        self.signals.get().map(|signals| signals.owner())
    }

    pub fn is_nonblocking(&self) -> bool {
        self.flags() & abi::O_NONBLOCK != 0
    }

    pub fn is_path_only(&self) -> bool {
        self.flags() & abi::O_PATH != 0
    }

    pub fn is_readable(&self) -> bool {
        let flags = self.flags();
        flags & abi::O_PATH == 0 && matches!(flags & abi::O_ACCMODE, abi::O_RDONLY | abi::O_RDWR)
    }

    /// Whether its node counts it among its open files.
    pub fn is_counted(&self) -> bool {
        self.opener.is_some()
    }

    pub fn is_writable(&self) -> bool {
        let flags = self.flags();
        flags & abi::O_PATH == 0 && matches!(flags & abi::O_ACCMODE, abi::O_WRONLY | abi::O_RDWR)
    }

    pub fn is_seekable(&self) -> bool {
        self.seekable
    }

    /// Reads at the position and moves it.
    pub fn read(&self, to: &mut Sink<'_>) -> Result<usize> {
        if !self.is_readable() {
            return Err(EBADF);
        }
        if !self.seekable {
            return counted(Way::Read, self.io.read(self, 0, to));
        }
        let _moves = self.moves.lock();
        let position = self.position();
        check_span(position, to.left())?;
        let n = counted(Way::Read, self.io.read(self, position, to))?;
        self.position.store(position + n as u64, Ordering::Relaxed);
        Ok(n)
    }

    /// Whether its bytes can go past the cache (`O_DIRECT`).
    pub fn can_be_direct(&self) -> bool {
        let is_on_disk = self.io.stored().is_some();
        is_on_disk && matches!(self.inode().kind(), Kind::File | Kind::Block)
    }

    /// Writes behind the end, however the file was opened; the position moves there if it `moves`.
    pub fn append(&self, from: &mut Source<'_>, moves: bool) -> Result<usize> {
        if !self.seekable {
            return self.write(from);
        }
        let _moves = moves.then(|| self.moves.lock());
        let (n, end) = self.io.write(self, Position::Append, from)?;
        if moves {
            self.position.store(end, Ordering::Relaxed);
        }
        counted(Way::Write, Ok(n))
    }

    /// Writes at the position, or behind the end, and moves it.
    pub fn write(&self, from: &mut Source<'_>) -> Result<usize> {
        if !self.is_writable() {
            return Err(EBADF);
        }
        if !self.seekable {
            let written = self.io.write(self, Position::At(0), from);
            return counted(Way::Write, written.map(|(n, _)| n));
        }
        let _moves = self.moves.lock();
        let position = self.position();
        check_span(position, from.left())?;
        let append = self.flags() & abi::O_APPEND != 0;
        let at = if append { Position::Append } else { Position::At(position) };
        let written = self.io.write(self, at, from);
        if let Ok((_, end)) = written {
            self.position.store(end, Ordering::Relaxed);
        }
        counted(Way::Write, written.map(|(n, _)| n))
    }

    /// What a read of up to `most` bytes would get, moved out: see
    /// [`Movable::take`](super::ops::Movable::take).
    pub fn take(&self, most: usize) -> Result<Chain> {
        if !self.is_readable() {
            return Err(EBADF);
        }
        self.io.movable().ok_or(EINVAL)?.take(self, most)
    }

    /// Moves `chain` in as a write would copy it: see [`Movable::give`](super::ops::Movable::give).
    pub fn give(&self, chain: &mut Chain) -> Result<usize> {
        if !self.is_writable() {
            return Err(EBADF);
        }
        self.io.movable().ok_or(EINVAL)?.give(self, chain)
    }

    /// Puts a chain back that [`take`](Self::take) gave.
    pub fn unget(&self, chain: Chain) {
        match self.io.movable() {
            Some(movable) => movable.unget(self, chain),
            None => chain.release(&Clusters),
        }
    }

    pub fn read_at(&self, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        self.check_start(at)?;
        if !self.is_readable() {
            return Err(EBADF);
        }
        check_span(at, to.left())?;
        counted(Way::Read, self.io.read(self, at, to))
    }

    pub fn write_at(&self, at: u64, from: &mut Source<'_>) -> Result<usize> {
        self.check_start(at)?;
        if !self.is_writable() {
            return Err(EBADF);
        }
        check_span(at, from.left())?;
        self.put_at(at, from)
    }

    /// Whether a transfer may begin at `at`: what is asked before its pieces are looked at.
    pub fn check_start(&self, at: u64) -> Result<()> {
        check_span(at, 0)?;
        if self.seekable || self.is_dir() {
            Ok(())
        } else {
            Err(ESPIPE)
        }
    }

    /// As [`write_at`](Self::write_at), as far as the file can go, for a caller that has made sure
    /// that it may be written to there.
    pub fn put_at(&self, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let append = self.flags() & abi::O_APPEND != 0;
        let at = if append { Position::Append } else { Position::At(at) };
        counted(Way::Write, self.io.write(self, at, from).map(|(n, _)| n))
    }

    /// Reads at `at` into kernel memory, as far as the file goes.
    pub fn read_kernel(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let mut sink = Sink::kernel(buf);
        while sink.left() > 0 {
            if self.io.read(self, at + sink.done() as u64, &mut sink)? == 0 {
                break;
            }
        }
        Ok(sink.done())
    }

    /// Carries what was written to the file to stable storage.
    ///
    /// Fails if data written since this file was opened could not be carried there: once, whichever
    /// thread has tried.
    pub fn sync(&self) -> Result<()> {
        let synced = self.io.stored().map_or(Ok(()), |node| node.sync());
        self.check_written()?;
        synced
    }

    /// Fails if data written to the node could not be carried to its disk and this file hasn't been
    /// told.
    pub fn check_written(&self) -> Result<()> {
        let Some(stored) = self.io.stored() else { return Ok(()) };
        let errors = stored.write_errors();
        if self.errors_told.swap(errors, Ordering::Relaxed) == errors {
            return Ok(());
        }
        stored.saw_write_errors(errors);
        Err(stored.last_write_error())
    }

    /// How a program has said that it reads the file.
    pub fn usage(&self) -> vm::Usage {
        match self.usage.load(Ordering::Relaxed) {
            RANDOM => vm::Usage::Random,
            SEQUENTIAL => vm::Usage::Sequential,
            _ => vm::Usage::Normal,
        }
    }

    pub fn set_usage(&self, usage: vm::Usage) {
        let number = match usage {
            vm::Usage::Random => RANDOM,
            vm::Usage::Sequential => SEQUENTIAL,
            _ => 0,
        };
        self.usage.store(number, Ordering::Relaxed);
    }

    /// Runs `f` on the position, alone.
    pub fn with_position<T>(&self, f: impl FnOnce(&mut u64) -> Result<T>) -> Result<T> {
        let _moves = self.moves.lock();
        let mut position = self.position();
        let result = f(&mut position);
        self.position.store(position, Ordering::Relaxed);
        result
    }

    /// The position, where a transfer that is under way has begun.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    pub fn poll(&self) -> u32 {
        self.io.poll(self)
    }

    pub fn queues<'a>(&'a self, out: &mut Vec<&'a WaitQueue>) {
        self.io.queues(self, out);
    }

    /// Tells a watcher of changes of what [`poll`](Self::poll) says, and of the file's end.
    ///
    /// # Errors
    /// `ENOSPC`: so many watch it that it would take too long, or its user has as many as may be;
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Arc<Watch>) -> Result<()> {
        {
            let mut watched = self.watched.lock();
            if !share::has_place(watch.uid(), watched.iter().map(|one| one.uid()), WATCHES) {
                return Err(ENOSPC);
            }
            watched.room(1)?;
            watched.push(watch.clone());
        }
        let mut queues = Vec::new();
        let told = queues.room(QUEUES).map_err(Errno::from).and_then(|()| {
            self.queues(&mut queues);
            queues.iter().try_for_each(|queue| queue.watch(watch.clone()).map_err(|_| ENOSPC))
        });
        told.inspect_err(|_| self.unwatch(watch))
    }

    /// The watchers that the file has.
    pub fn watchers(&self) -> Result<Vec<Arc<Watch>>> {
        let mut watchers = Vec::new();
        loop {
            watchers.room(self.watch_count())?;
            let watched = self.watched.lock();
            if watched.len() <= watchers.capacity() {
                watchers.extend(watched.iter().cloned());
                return Ok(watchers);
            }
        }
    }

    /// How many those are.
    pub fn watch_count(&self) -> usize {
        self.watched.lock().len()
    }

    /// Whether a change of what [`poll`](Self::poll) says can be waited for.
    pub fn can_be_watched(&self) -> bool {
        let mut queues = Vec::new();
        self.queues(&mut queues);
        !queues.is_empty() || self.io.depends_on_caller()
    }

    /// Tells a watcher no longer.
    pub fn unwatch(&self, watch: &Arc<Watch>) {
        let taken = {
            let mut watched = self.watched.lock();
            let at = watched.iter().position(|one| Arc::ptr_eq(one, watch));
            let taken = at.map(|at| watched.swap_remove(at));
            fault::shrink(&mut *watched);
            taken
        };
        self.leave_queues(watch);
        drop(taken);
    }

    fn leave_queues(&self, watch: &Arc<Watch>) {
        let mut queues = Vec::new();
        self.queues(&mut queues);
        let watcher: Arc<dyn Watcher> = watch.clone();
        queues.iter().for_each(|queue| queue.unwatch(&watcher));
    }

    /// The memory that a mapping of this file shows.
    ///
    /// Fails with `EACCES` if the file isn't open for reading, or not for writing and
    /// `writable_share` asks for a mapping that writes through; with `ENODEV` if it can't be
    /// mapped.
    pub fn mmap_object(&self, how: MapAccess) -> Result<vm::Object> {
        if self.is_path_only() {
            return Err(EBADF);
        }
        if !self.is_readable() || how == MapAccess::SharedWrite && !self.is_writable() {
            return Err(EACCES);
        }
        if how != MapAccess::Private && self.is_writable() {
            let node = self.inode().ownership();
            access::may_change_elsewhere(&node).map_err(|_| EACCES)?;
            access::may_change(&node)?;
        }
        let mappable = self.io.mappable().ok_or(ENODEV)?;
        let object = mappable.object().ok_or(ENODEV)?;
        mappable.mapped(self);
        Ok(object)
    }

    /// What a mapping of this file is called: the path that leads here now. Mappings that were made
    /// under one path share it.
    ///
    /// # Errors
    /// `ENOMEM`: the process has all that it may.
    pub fn mapping_name(&self) -> Result<Arc<MappingName>> {
        let path = self.path();
        let path = String::from_utf8_lossy(&path);
        let known = self.mapping_name.lock().clone();
        if let Some(name) = known.filter(|name| name.text() == path) {
            return Ok(name);
        }
        let charge = charge::take(size_of::<MappingName>() + path.len()).map_err(|_| ENOMEM)?;
        let stat = self.inode().stat();
        let name = Arc::new(MappingName {
            text: path.into_owned(),
            node: (stat.dev, stat.ino),
            _use: self.place.mount.as_ref().map(|mount| mount.mapping(self.writer.clone())),
            _charge: charge,
        });
        let old = self.mapping_name.lock().replace(name.clone());
        drop(old);
        Ok(name)
    }

    /// The path as `/proc` shows it.
    pub fn path(&self) -> Vec<u8> {
        self.place.path()
    }

    pub fn is_dir(&self) -> bool {
        self.place.inode.kind() == Kind::Dir
    }
}

/// What mappings of an open file are called. It keeps the file's mount as the open file does, and
/// is charged to the process that mapped first until the last mapping has gone.
pub struct MappingName {
    text: String,
    node: (u64, u64),
    _use: Option<MappedFile>,
    _charge: Charge,
}

impl Name for MappingName {
    fn text(&self) -> &str {
        &self.text
    }

    fn node(&self) -> (u64, u64) {
        self.node
    }
}

/// A transfer of a program's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// Counts a transfer as the running thread's, for `/proc/PID/io`.
#[inline]
fn counted(way: Way, moved: Result<usize>) -> Result<usize> {
    if let Some(thread) = sched::current().user() {
        let bytes = *moved.as_ref().unwrap_or(&0) as u64;
        match way {
            Way::Read => thread.io.count_read(bytes),
            Way::Write => thread.io.count_write(bytes),
        }
    }
    moved
}

/// What a mapping does to the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MapAccess {
    /// Reads the file, or writes a private copy.
    Private,
    /// Shared, never written through this mapping.
    SharedRead,
    /// Shared and writable.
    SharedWrite,
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(signals) = self.signals.get() {
            signals::file_gone(self, signals);
        }
        let watched = core::mem::take(&mut *self.watched.lock());
        for watch in watched {
            self.leave_queues(&watch);
            watch.file_gone();
            sched::work_done(LEAVING);
        }
        if !self.is_path_only() {
            let io = self.io.clone();
            super::lock::release_file(self);
            lease::release_file(self);
            io.release(self);
        }
    }
}

/// Offsets are signed in the interface, and so is the one behind `len` bytes from `at` on.
///
/// # Errors
/// `EINVAL`.
pub fn check_span(at: u64, len: usize) -> Result<()> {
    let end = at.checked_add(len as u64).filter(|&end| end <= i64::MAX as u64);
    end.map(|_| ()).ok_or(EINVAL)
}
