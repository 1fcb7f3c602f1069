//! The contents of a regular file of the host: pages of the file's object, which the host's file is
//! read into and written from.
//!
//! ```text
//!   fault, read(2) --> VnodePager --> Backing::read  --> Session::read
//!   write(2), fsync, msync, close --> Backing::write --> Session::write
//! ```
//! A write is carried to the host before the call returns: so the host sees it at once, the writer
//! is told of a full disk, and nothing is lost with the machine. What is stored through mappings
//! goes there with `msync` and `fsync`, when the file is closed, and every few seconds.
//!
//! I1: the object's size is what programs see; `Backing::size` is the same but while it changes.
//! I2: changes of the size, writes, and looks at what the host has hold `writer`. I3: what was
//! written by this kernel since the last look is known not to be the host's doing (`has_written`).
//! I4: as long as the file can be stored to, and until that was written back, `writing` is open.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

use machine::{PageNo, Pages, PAGE_SIZE};

use super::flusher;
use super::session::{Attributes, Change, Fid, Open, Session, MAX_SIZE};
use crate::arch::bytes::PageBytes;
use crate::errno::*;
use crate::fs::inode::Kind;
use crate::fs::ops::{Position, Seek};
use crate::mem::frames::{KernelMachine, KERNEL};
use crate::sched::Nanos;
use crate::sync::{Mutex, SpinLock};
use crate::uio::{outcome, Sink, Source};
use crate::upcalls;
use crate::vm::{self, Dir, Object, Transfer, Usage, Vnode};

const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of a write that are carried to the host at a time.
const AT_ONCE: u64 = 1 << 20;

/// The pager's side of a file.
pub(super) struct Backing {
    session: Arc<Session>,
    /// By the file's name, and open for reading, and for reading and writing.
    pub(super) fid: Fid,
    reading: Fid,
    writing: Fid,
    /// Held by the thread that opens or closes one of these.
    opening: Mutex<()>,
    size: AtomicU64,
    /// The size that the host's file has: what lies behind it are zeroes.
    host_size: AtomicU64,
    /// I3.
    has_written: AtomicBool,
    /// Why the last write failed.
    failure: AtomicI32,
}

impl Backing {
    pub(super) fn new(session: &Arc<Session>, fid: Fid, size: u64) -> Backing {
        Backing {
            session: session.clone(),
            fid,
            reading: Fid::none(),
            writing: Fid::none(),
            opening: Mutex::new(()),
            size: AtomicU64::new(size),
            host_size: AtomicU64::new(size),
            has_written: AtomicBool::new(false),
            failure: AtomicI32::new(EIO.0),
        }
    }

    /// Gives the file's fids back.
    pub(super) fn close(&self) {
        let fids = [&self.fid, &self.reading, &self.writing];
        fids.into_iter().for_each(|fid| self.session.clunk(fid));
    }

    /// Takes over a fid that is open for reading and writing.
    pub(super) fn opened(&self, fid: &Fid) {
        let _opening = self.opening.lock();
        self.session.replace(&self.writing, fid);
    }

    /// A fid that is open for this.
    fn open(&self, how: Open) -> Result<&Fid> {
        let _opening = self.opening.lock();
        if !self.writing.is_none() {
            return Ok(&self.writing);
        }
        let wanted = if how == Open::Read { &self.reading } else { &self.writing };
        if wanted.is_none() {
            let (new, _) = self.session.walk(&self.fid, None)?;
            self.session.open(&new, how).inspect_err(|_| self.session.clunk(&new))?;
            wanted.take(&new);
        }
        Ok(wanted)
    }

    fn read_pages(&self, at: u64, pages: &[PageNo]) -> Result<()> {
        let end = self.size.load(Acquire).min(self.host_size.load(Acquire));
        // What no program sees isn't asked for.
        let wanted = end.saturating_sub(at).div_ceil(PAGE).min(pages.len() as u64) as usize;
        let mut there = 0;
        if wanted != 0 {
            there = self.session.read(self.open(Open::Read)?, at, &pages[..wanted])?;
            there = there.min(end - at);
        }
        for (page, start) in pages.iter().zip((0..).step_by(PAGE_SIZE)) {
            let keep = there.saturating_sub(start).min(PAGE) as usize;
            KERNEL.bytes(*page).part(keep, PAGE_SIZE - keep).zero();
        }
        Ok(())
    }

    fn write_pages(&self, at: u64, pages: &[PageNo]) -> Result<()> {
        let len = self.size.load(Acquire).saturating_sub(at).min(pages.len() as u64 * PAGE);
        if len == 0 {
            return Ok(());
        }
        self.session.write(self.open(Open::ReadWrite)?, at, pages, len)?;
        self.has_written.store(true, Release);
        self.host_size.fetch_max(at + len, AcqRel);
        Ok(())
    }
}

impl Vnode<KernelMachine> for Arc<Backing> {
    fn read(&self, _machine: &KernelMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        match self.read_pages(index.bytes(), pages) {
            Ok(()) => Transfer::Done,
            Err(_) => Transfer::Failed,
        }
    }

    fn write(&self, _machine: &KernelMachine, index: Pages, pages: &[PageNo]) -> Transfer {
        match self.write_pages(index.bytes(), pages) {
            Ok(()) => Transfer::Done,
            Err(errno) => {
                self.failure.store(errno.0, Relaxed);
                Transfer::Failed
            }
        }
    }

    fn write_later(&self) -> bool {
        flusher::wake();
        true
    }
}

pub(super) struct Contents {
    /// The host's number.
    path: u64,
    pub(super) backing: Arc<Backing>,
    object: Object,
    writer: Mutex<()>,
    /// Open files, and how many have been opened so far.
    users: AtomicUsize,
    opened: AtomicUsize,
    /// The time of the host's last change, as far as it is known.
    known: SpinLock<Nanos>,
    /// Failed writes that a program has been told of.
    errors_seen: AtomicU64,
}

impl Contents {
    pub(super) fn new(backing: Backing, found: &Attributes) -> Result<Contents> {
        let backing = Arc::new(backing);
        let object = Object::file(Box::new(backing.clone()), found.size)?;
        Ok(Contents {
            path: found.path,
            backing,
            object,
            writer: Mutex::new(()),
            users: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            known: SpinLock::new(found.mtime),
            errors_seen: AtomicU64::new(0),
        })
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    pub(super) fn size(&self) -> u64 {
        self.object.size()
    }

    pub(super) fn take_failure(&self) -> Errno {
        Errno(self.backing.failure.swap(EIO.0, Relaxed))
    }

    pub(super) fn errors_seen(&self) -> u64 {
        self.errors_seen.load(Relaxed)
    }

    pub(super) fn saw_errors(&self, count: u64) {
        self.errors_seen.fetch_max(count, Relaxed);
    }

    /// Whether something may have been stored that the host doesn't have (I4).
    pub(super) fn is_dirty(&self) -> bool {
        !self.backing.writing.is_none()
    }

    /// A file is opened; the host judges whether it may be read, and written.
    pub(super) fn open(&self, how: Open) -> Result<()> {
        self.opened.fetch_add(1, AcqRel);
        self.users.fetch_add(1, AcqRel);
        self.backing.open(how).map(drop).inspect_err(|_| self.release())
    }

    /// An open file has gone: what was stored through it is the host's to have.
    pub(super) fn release(&self) {
        self.users.fetch_sub(1, AcqRel);
        self.clean();
    }

    /// Writes back what was stored through mappings; errors are counted by the object, and what
    /// could not be written is clean. Closes the host's files if no program uses the file.
    pub(super) fn clean(&self) {
        let opened = self.opened.load(Acquire);
        let is_unused = || self.users.load(Acquire) == 0 && !self.object.is_mapped();
        let was_unused = is_unused();
        if self.is_dirty() {
            let _ = self.object.clean();
        }
        let Backing { session, reading, writing, opening, .. } = &*self.backing;
        let _opening = opening.lock();
        // No mapping has come and gone since the look at the pages: it takes an open file.
        if was_unused && is_unused() && self.opened.load(Acquire) == opened {
            [reading, writing].into_iter().for_each(|fid| session.clunk(fid));
        }
    }

    /// Has what was written carried to the host's disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.clean();
        self.backing.session.sync(self.backing.open(Open::Read)?)
    }

    /// Fails if pages could not be written and no `msync` has said so.
    pub(super) fn check_mapping(&self) -> Result<()> {
        let errors = self.object.write_errors();
        if self.errors_seen.fetch_max(errors, Relaxed) >= errors {
            return Ok(());
        }
        Err(self.take_failure())
    }

    /// Looks at what the host has, and goes by it unless the file is being changed here: pages that
    /// the host has changed are forgotten. Nothing if the host has another file there.
    pub(super) fn refresh(&self) -> Result<Option<Attributes>> {
        match self.writer.try_lock() {
            Some(_writer) => self.look(),
            None => self.ask(),
        }
    }

    fn ask(&self) -> Result<Option<Attributes>> {
        let found = self.backing.session.attributes(&self.backing.fid)?;
        Ok(Some(found).filter(|found| found.path == self.path && found.kind == Kind::File))
    }

    /// With `writer` held.
    fn look(&self) -> Result<Option<Attributes>> {
        let found = self.ask()?;
        found.as_ref().map_or(Ok(()), |found| self.go_by(found))?;
        Ok(found)
    }

    fn go_by(&self, found: &Attributes) -> Result<()> {
        let was_here = self.backing.has_written.load(Acquire);
        let size = self.size();
        let is_known = found.mtime == *self.known.lock() || was_here;
        if !is_known || found.size != size {
            // What is stored here goes first: the host has it all then.
            let all = size.max(found.size).next_multiple_of(PAGE);
            if !self.object.invalidate(0, all).unwrap_or(false) {
                // Pages in use: the next look finds the same.
                return Ok(());
            }
            self.backing.host_size.store(found.size.min(size), Release);
            if found.size != size {
                // What it has behind the old end is no tail to be cleared: it isn't there yet.
                self.resize(found.size)?;
                self.backing.host_size.store(found.size, Release);
                if !self.object.invalidate(0, all).unwrap_or(false) {
                    return Ok(());
                }
            }
        }
        *self.known.lock() = found.mtime;
        // Written between the look and now: the next one says what that came to.
        if was_here && found.size == self.backing.host_size.load(Acquire) {
            self.backing.has_written.store(false, Release);
        }
        Ok(())
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.backing.size.store(size, Release);
        self.object
            .set_size(size)
            .inspect_err(|_| self.backing.size.store(self.object.size(), Release))
    }

    pub(super) fn read(&self, at: u64, to: &mut Sink<'_>, usage: Usage) -> Result<usize> {
        let start = to.done();
        let len = self.size().saturating_sub(at).min(to.left() as u64);
        let mut copy = |_, bytes: PageBytes| to.put_page(bytes);
        let result = vm::object_io_as(&self.object, at, len, Dir::Read, usage, &mut copy);
        outcome(to.done() - start, result)
    }

    /// Returns the count and the position after it.
    pub(super) fn write(&self, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let _writer = self.writer.lock();
        let at = match at {
            Position::At(at) => at,
            Position::Append => {
                // The host may have gone before. A file without a name is no other's.
                let _ = self.look();
                self.size()
            }
        };
        if from.left() == 0 {
            return Ok((0, at));
        }
        if at >= MAX_SIZE {
            return Err(EFBIG);
        }
        // The bytes may come from a mapping of this very file: growing must not bring them into
        // being.
        from.probe()?;
        let len = upcalls::file_room(at, (from.left() as u64).min(MAX_SIZE - at))?;
        let start = from.done();
        let mut result = Ok(());
        while result.is_ok() && ((from.done() - start) as u64) < len {
            let done = (from.done() - start) as u64;
            let part = (len - done).min(AT_ONCE - (at + done) % AT_ONCE);
            result = self.write_part(at + done, part, from);
            if (from.done() - start) as u64 != done + part {
                break;
            }
        }
        let done = from.done() - start;
        Ok((outcome(done, result)?, at + done as u64))
    }

    /// Writes a part, here and to the host. What the host doesn't take is not taken from `from`.
    fn write_part(&self, at: u64, len: u64, from: &mut Source<'_>) -> Result<()> {
        let (size, before) = (self.size(), from.done());
        if at + len > size {
            self.resize(at + len)?;
        }
        let mut put = |_, bytes: PageBytes| from.get_page(bytes);
        let result = vm::object_io(&self.object, at, len, Dir::Write, &mut put);
        let done = (from.done() - before) as u64;
        if done < len && at + len > size {
            self.resize(size.max(at + done))?;
        }
        if self.object.clean_range(at, done).is_ok() {
            return result;
        }
        let failure = self.take_failure();
        self.saw_errors(self.object.write_errors());
        from.back(done as usize);
        // The file is what the host has.
        let _ = self.object.invalidate(at, done);
        self.backing.has_written.store(true, Release);
        let _ = self.look();
        Err(failure)
    }

    /// Changes the size, here and on the host; of a file without a name, which no other sees, here
    /// alone, where what would come back with a longer size is overwritten.
    pub(super) fn truncate(&self, len: u64, has_name: bool) -> Result<()> {
        if len > MAX_SIZE {
            return Err(EFBIG);
        }
        let _writer = self.writer.lock();
        let size = self.size();
        if len > size {
            upcalls::file_may_grow_to(len)?;
        }
        if !has_name {
            self.wipe(len, size)?;
        } else {
            let change = Change { size: Some(len), ..Change::default() };
            self.backing.session.change(&self.backing.fid, &change)?;
            self.backing.host_size.store(len, Release);
        }
        self.backing.has_written.store(true, Release);
        if len != size {
            self.resize(len)?;
        }
        // The last page's tail was cleared.
        self.object.clean_range(len, 1).map_err(|_| self.take_failure())
    }

    /// Has the host's file be zeroes from `from` up to `end`.
    fn wipe(&self, from: u64, end: u64) -> Result<()> {
        let mut zero = |_, bytes: PageBytes| {
            bytes.zero();
            Ok(bytes.len())
        };
        for at in (from..end).step_by(AT_ONCE as usize) {
            let len = AT_ONCE.min(end - at);
            vm::object_io(&self.object, at, len, Dir::Write, &mut zero)?;
            self.object.clean_range(at, len).map_err(|_| self.take_failure())?;
        }
        Ok(())
    }

    /// Forgets the pages: no program has the file any more, nor does a name lead to it.
    pub(super) fn empty(&self) {
        let _ = self.resize(0);
    }

    /// No hole is known of: all up to the end is data.
    pub(super) fn seek(&self, from: u64, what: Seek) -> Result<u64> {
        let size = self.size();
        match what {
            _ if from >= size => Err(ENXIO),
            Seek::Data => Ok(from),
            Seek::Hole => Ok(size),
        }
    }
}
