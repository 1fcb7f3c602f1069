//! The client's side of 9P2000.L: what is asked of the host's server, and what it answers.
//!
//! A fid is the client's number for a file of the server: [`walk`](Session::walk) makes one that
//! stands for a name, [`open`](Session::open) makes it one that can be read and written.
//!
//! I1: numbers of fids are read and changed while it is the thread's turn ([`Fid`]), so no thread
//! asks by a number that another has given back. I2: there are no more fids than [`MOST`].

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use machine::{PageNo, PAGE_SIZE};

use super::message::{Reader, Writer};
use crate::block::p9::{Channel, MAX_PAGES, MESSAGE};
use crate::block::segments::{self, Segment};
use crate::errno::*;
use crate::fs::inode::{FsStat, Kind};
use crate::fs::path::NAME_MAX;
use crate::sched::Nanos;

/// Fids at most, each of which the host keeps something for.
pub(super) const MOST: usize = 1 << 15;
/// The number of no fid, and of no user.
const NONE: u32 = u32::MAX;
/// Size, kind and tag.
const HEAD: usize = 7;
/// What a reply with pages behind it begins with: the head and a count.
const COUNTED: usize = HEAD + 4;
/// What a request with pages behind it begins with, and a little more.
const REQUEST_HEAD: usize = 64;
/// The longest message: one with pages.
const LONGEST: u32 = (MAX_PAGES * PAGE_SIZE + REQUEST_HEAD) as u32;
const VERSION: &[u8] = b"9P2000.L";
/// Errors of programs on Linux end here.
const LAST_ERRNO: u32 = 133;

/// The kinds of requests; a reply's kind is the next number.
mod kind {
    pub const ERROR: u8 = 6;
    pub const STATFS: u8 = 8;
    pub const LOPEN: u8 = 12;
    pub const LCREATE: u8 = 14;
    pub const SYMLINK: u8 = 16;
    pub const MKNOD: u8 = 18;
    pub const READLINK: u8 = 22;
    pub const GETATTR: u8 = 24;
    pub const SETATTR: u8 = 26;
    pub const READDIR: u8 = 40;
    pub const FSYNC: u8 = 50;
    pub const LINK: u8 = 70;
    pub const MKDIR: u8 = 72;
    pub const RENAMEAT: u8 = 74;
    pub const UNLINKAT: u8 = 76;
    pub const VERSION: u8 = 100;
    pub const ATTACH: u8 = 104;
    pub const WALK: u8 = 110;
    pub const READ: u8 = 116;
    pub const WRITE: u8 = 118;
    pub const CLUNK: u8 = 120;
}

/// A fid's number, or none: see I1.
pub(super) struct Fid(AtomicU32);

impl Fid {
    pub const fn none() -> Fid {
        Fid(AtomicU32::new(NONE))
    }

    pub fn is_none(&self) -> bool {
        self.number() == NONE
    }

    fn number(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Becomes what `new` is, which is none from now on.
    pub fn take(&self, new: &Fid) {
        self.0.store(new.0.swap(NONE, Relaxed), Relaxed);
    }
}

/// How a fid is opened, by Linux's flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    Read = 0,
    ReadWrite = 2,
    Directory = 0o200000,
}

/// All that the server tells of a file.
#[derive(Clone, Copy)]
pub(super) struct Attributes {
    /// The server's number for it.
    pub path: u64,
    pub kind: Kind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub rdev: u64,
    pub size: u64,
    pub sectors: u64,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
}

/// What changes of a file; `None` leaves one as it is.
#[derive(Clone, Copy, Default)]
pub(super) struct Change {
    pub perm: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Nanos>,
    pub mtime: Option<Nanos>,
}

/// The largest file; what the host says beyond is no size.
pub(super) const MAX_SIZE: u64 = 1 << 44;
const SECOND: Nanos = 1_000_000_000;

/// A connection to a server.
pub(super) struct Session {
    channel: Arc<Channel>,
    next: AtomicU32,
    count: AtomicUsize,
    /// Pages of one read or write at most.
    pages: usize,
}

impl Session {
    /// Begins to talk; returns the fid of the folder that the server shows.
    ///
    /// # Errors
    /// `EIO`: it doesn't speak this language.
    pub fn begin(channel: &Arc<Channel>) -> Result<(Session, Fid)> {
        let mut session = Session {
            channel: channel.clone(),
            next: AtomicU32::new(0),
            count: AtomicUsize::new(0),
            pages: 0,
        };
        let version = |to: &mut Writer<'_>| _ = to.u32(LONGEST).string(VERSION);
        let longest = session.call(kind::VERSION, version, |from| {
            let longest = from.u32()?;
            if from.string()? != VERSION || longest > LONGEST {
                return Err(EIO);
            }
            Ok(longest as usize)
        })?;
        session.pages = longest.saturating_sub(REQUEST_HEAD) / PAGE_SIZE;
        if session.pages * PAGE_SIZE < MESSAGE {
            return Err(EIO);
        }
        let root = session.new_fid()?;
        let attach = |to: &mut Writer<'_>| {
            _ = to.u32(root.number()).u32(NONE).string(b"").string(b"").u32(NONE)
        };
        session.call(kind::ATTACH, attach, nothing)?;
        Ok((session, root))
    }

    /// Sends a request and has its answer read.
    fn call<T>(
        &self,
        kind: u8,
        write: impl FnOnce(&mut Writer<'_>),
        read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        self.call_with(kind, write, (&[], MESSAGE, &[]), read)
    }

    /// As [`call`](Self::call), with what is sent behind the request, and what the server answers
    /// behind `head` bytes.
    fn call_with<T>(
        &self,
        kind: u8,
        write: impl FnOnce(&mut Writer<'_>),
        (sent, head, received): (&[Segment], usize, &[Segment]),
        read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        const TAG: u16 = 0;
        const NO_TAG: u16 = u16::MAX;
        let tag = if kind == kind::VERSION { NO_TAG } else { TAG };
        let mut turn = self.channel.turn();
        let mut request = Writer::new(turn.request());
        request.u32(0).u8(kind).u16(tag);
        write(&mut request);
        request.finish(segments::bytes(sent))?;
        let mut reply = Reader(turn.exchange(sent, head, received)?);
        let (size, answer, answered) = (reply.u32()? as usize, reply.u8()?, reply.u16()?);
        if answered != tag || size < HEAD || size > head + segments::bytes(received) {
            return Err(EIO);
        }
        // What the message itself says is its end.
        reply.0 = &reply.0[..reply.0.len().min(size - HEAD)];
        match answer {
            answer if answer == kind + 1 => read(&mut reply),
            answer if answer == kind::ERROR + 1 => Err(match reply.u32()? {
                // A program that is told to try again, or that it was interrupted, would do so.
                number @ 1..=LAST_ERRNO => match Errno(number as i32) {
                    EINTR | EAGAIN => EIO,
                    errno => errno,
                },
                _ => EIO,
            }),
            _ => Err(EIO),
        }
    }

    /// A number for a fid.
    ///
    /// # Errors
    /// `ENFILE`: there are too many.
    fn new_fid(&self) -> Result<Fid> {
        let more = |count| (count < MOST).then_some(count + 1);
        self.count.fetch_update(Relaxed, Relaxed, more).map_err(|_| ENFILE)?;
        // After 2^32 of them one may be taken: the server says so.
        let number = self.next.fetch_add(1, Relaxed);
        Ok(Fid(AtomicU32::new(if number == NONE { 0 } else { number })))
    }

    /// Gives a fid back, if it is one. Whatever the server says, it is none any more.
    pub fn clunk(&self, fid: &Fid) {
        self.replace(fid, &Fid::none());
    }

    /// Puts `new` in the place of a fid, which is given back; `new` is none from now on.
    pub fn replace(&self, fid: &Fid, new: &Fid) {
        if fid.is_none() {
            return fid.take(new);
        }
        let swap = |to: &mut Writer<'_>| {
            let old = fid.number();
            fid.take(new);
            to.u32(old);
        };
        let _ = self.call(kind::CLUNK, swap, nothing);
        self.count.fetch_sub(1, Relaxed);
    }

    /// A fid for what has a name in a folder; without a name, another one for the same file. With
    /// the server's number for the file, and whether it is a folder.
    pub fn walk(&self, from: &Fid, name: Option<&[u8]>) -> Result<(Fid, u64)> {
        let new = self.new_fid()?;
        let walk = |to: &mut Writer<'_>| {
            to.u32(from.number()).u32(new.number()).u16(u16::from(name.is_some()));
            name.into_iter().for_each(|name| _ = to.string(name));
        };
        let path = self.call(kind::WALK, walk, |from| match from.u16()? {
            0 if name.is_none() => Ok(0),
            1 if name.is_some() => qid(from),
            _ => Err(EIO),
        });
        match path {
            Ok(path) => Ok((new, path)),
            Err(errno) => {
                self.count.fetch_sub(1, Relaxed);
                Err(errno)
            }
        }
    }

    /// Opens a fid.
    pub fn open(&self, fid: &Fid, how: Open) -> Result<()> {
        let open = |to: &mut Writer<'_>| _ = to.u32(fid.number()).u32(how as u32);
        self.call(kind::LOPEN, open, nothing)
    }

    /// Makes a file in a folder, whose fid becomes the file's, open for reading and writing.
    pub fn create(&self, fid: &Fid, name: &[u8], perm: u32) -> Result<()> {
        const NEW: u32 = 0o100 | 0o200;
        let create = |to: &mut Writer<'_>| {
            _ = to
                .u32(fid.number())
                .string(name)
                .u32(Open::ReadWrite as u32 | NEW)
                .u32(perm)
                .u32(NONE)
        };
        self.call(kind::LCREATE, create, nothing)
    }

    pub fn make_dir(&self, dir: &Fid, name: &[u8], perm: u32) -> Result<()> {
        let make = |to: &mut Writer<'_>| {
            _ = to.u32(dir.number()).string(name).u32(perm).u32(NONE);
        };
        self.call(kind::MKDIR, make, nothing)
    }

    pub fn make_link(&self, dir: &Fid, name: &[u8], target: &[u8]) -> Result<()> {
        let make = |to: &mut Writer<'_>| {
            _ = to.u32(dir.number()).string(name).string(target).u32(NONE);
        };
        self.call(kind::SYMLINK, make, nothing)
    }

    /// Makes a node that is no device.
    pub fn make_node(&self, dir: &Fid, name: &[u8], mode: u32) -> Result<()> {
        let make = |to: &mut Writer<'_>| {
            _ = to.u32(dir.number()).string(name).u32(mode).u32(0).u32(0).u32(NONE);
        };
        self.call(kind::MKNOD, make, nothing)
    }

    /// Gives a file a name in a folder.
    pub fn link(&self, dir: &Fid, file: &Fid, name: &[u8]) -> Result<()> {
        let link = |to: &mut Writer<'_>| _ = to.u32(dir.number()).u32(file.number()).string(name);
        self.call(kind::LINK, link, nothing)
    }

    pub fn rename(
        &self,
        (dir, name): (&Fid, &[u8]),
        (to_dir, to_name): (&Fid, &[u8]),
    ) -> Result<()> {
        let rename = |to: &mut Writer<'_>| {
            _ = to.u32(dir.number()).string(name).u32(to_dir.number()).string(to_name);
        };
        self.call(kind::RENAMEAT, rename, nothing)
    }

    /// Takes a name away; `is_dir` says of what.
    pub fn unlink(&self, dir: &Fid, name: &[u8], is_dir: bool) -> Result<()> {
        const REMOVE_DIR: u32 = 0x200;
        let flags = if is_dir { REMOVE_DIR } else { 0 };
        let unlink = |to: &mut Writer<'_>| _ = to.u32(dir.number()).string(name).u32(flags);
        self.call(kind::UNLINKAT, unlink, nothing)
    }

    pub fn read_link(&self, fid: &Fid) -> Result<Vec<u8>> {
        let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number());
        self.call(kind::READLINK, ask, |from| Ok(from.string()?.to_vec()))
    }

    pub fn attributes(&self, fid: &Fid) -> Result<Attributes> {
        /// All up to the number of blocks.
        const BASIC: u64 = 0x7ff;
        let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number()).u64(BASIC);
        self.call(kind::GETATTR, ask, attributes)
    }

    pub fn change(&self, fid: &Fid, change: &Change) -> Result<()> {
        /// Times that are given, and not those of now.
        const GIVEN: u32 = 0x80;
        let bits = [
            (change.perm.is_some(), 1),
            (change.uid.is_some(), 2),
            (change.gid.is_some(), 4),
            (change.size.is_some(), 8),
            (change.atime.is_some(), 0x10 | GIVEN),
            (change.mtime.is_some(), 0x20 | GIVEN << 1),
        ];
        let valid = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |sum, (_, bit)| sum | bit);
        let tell = |to: &mut Writer<'_>| {
            to.u32(fid.number()).u32(valid).u32(change.perm.unwrap_or(0));
            to.u32(change.uid.unwrap_or(NONE)).u32(change.gid.unwrap_or(NONE));
            to.u64(change.size.unwrap_or(0));
            for time in [change.atime, change.mtime].map(|time| time.unwrap_or(0)) {
                to.u64(time / SECOND).u64(time % SECOND);
            }
        };
        self.call(kind::SETATTR, tell, nothing)
    }

    /// Hands out names of an open folder, with the file's number and kind, from the server's
    /// position `from` on; returns the position behind them, or none at the end. No other thread
    /// has its turn meanwhile: `each` waits for nothing.
    pub fn list(
        &self,
        fid: &Fid,
        from: u64,
        each: impl FnOnce(Entries<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let ask = |to: &mut Writer<'_>| {
            _ = to.u32(fid.number()).u64(from).u32((MESSAGE - COUNTED) as u32);
        };
        self.call(kind::READDIR, ask, |from| {
            let count = from.u32()? as usize;
            let entries = Entries(Reader(from.bytes(count)?));
            let (mut rest, mut next) = (entries.0.clone(), None);
            while !rest.0.is_empty() {
                next = Some(entry(&mut rest)?.1);
            }
            each(entries)?;
            Ok(next)
        })
    }

    /// Has what was written to an open file carried to the host's disk.
    pub fn sync(&self, fid: &Fid) -> Result<()> {
        let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number()).u32(0);
        self.call(kind::FSYNC, ask, nothing)
    }

    /// Reads pages of an open file from byte `at` on; returns up to which byte of them, less than
    /// all at the end of the file.
    pub fn read(&self, fid: &Fid, at: u64, pages: &[PageNo]) -> Result<u64> {
        self.transfer(at, pages, u64::MAX, |at, part, count| {
            let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number()).u64(at).u32(count);
            self.call_with(kind::READ, ask, (&[], COUNTED, part), |from| from.u32())
        })
    }

    /// Writes the first `len` bytes of pages to an open file from byte `at` on.
    pub fn write(&self, fid: &Fid, at: u64, pages: &[PageNo], len: u64) -> Result<()> {
        let done = self.transfer(at, pages, len, |at, part, count| {
            let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number()).u64(at).u32(count);
            self.call_with(kind::WRITE, ask, (part, MESSAGE, &[]), |from| from.u32())
        })?;
        // A server that takes no more, and doesn't say why.
        if done < len {
            return Err(EIO);
        }
        Ok(())
    }

    /// Moves the first `len` bytes of pages, in as many steps as it takes; `step` says how much it
    /// has moved of what it was given, and nothing ends it.
    fn transfer(
        &self,
        at: u64,
        pages: &[PageNo],
        len: u64,
        step: impl Fn(u64, &[Segment], u32) -> Result<u32>,
    ) -> Result<u64> {
        let len = len.min((pages.len() * PAGE_SIZE) as u64);
        let mut done = 0;
        while done < len {
            let first = (done as usize) / PAGE_SIZE;
            let some = &pages[first..pages.len().min(first + self.pages)];
            let skip = done - (first * PAGE_SIZE) as u64;
            let part = segments::of_part::<MAX_PAGES>(some, skip, len - done);
            let count = segments::bytes(&part) as u32;
            match step(at + done, &part, count)? {
                0 => break,
                moved if moved <= count => done += u64::from(moved),
                _ => return Err(EIO),
            }
        }
        Ok(done)
    }

    /// What the server says of its file system.
    pub fn stat(&self, fid: &Fid) -> Result<FsStat> {
        let ask = |to: &mut Writer<'_>| _ = to.u32(fid.number());
        self.call(kind::STATFS, ask, |from| {
            from.u32()?;
            let block = u64::from(from.u32()?);
            let mut pages =
                || from.u64().map(|blocks| blocks.saturating_mul(block) / PAGE_SIZE as u64);
            let (blocks, free, available) = (pages()?, pages()?, pages()?);
            let (files, files_free) = (from.u64()?, from.u64()?);
            Ok(FsStat { magic: super::MAGIC, blocks, free, available, files, files_free })
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.channel.release_claim();
    }
}

/// Names of a folder, as the server has written them; they were looked at.
#[derive(Clone)]
pub(super) struct Entries<'a>(Reader<'a>);

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0 .0.is_empty() {
            if let Some(found) = entry(&mut self.0).ok()?.0 {
                return Some(found);
            }
        }
        None
    }
}

/// A name with the server's number for its file, and what that is.
type Entry<'a> = (&'a [u8], u64, Kind);

/// An entry of a folder, but for `.` and `..`, and the position behind it.
fn entry<'a>(from: &mut Reader<'a>) -> Result<(Option<Entry<'a>>, u64)> {
    let (path, plain) = (qid(&mut from.clone())?, from.u8()?);
    from.bytes(QID - 1)?;
    let next = from.u64()?;
    // A host that doesn't know all says what is a directory or a link at least.
    let kind = Kind::from_mode(u32::from(from.u8()?) << 12).unwrap_or(match plain {
        0x80.. => Kind::Dir,
        0x02 => Kind::Symlink,
        _ => Kind::File,
    });
    let name = from.string()?;
    if matches!(name, b"." | b"..") {
        return Ok((None, next));
    }
    let is_name = !name.is_empty() && name.len() <= NAME_MAX;
    if !is_name || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(EIO);
    }
    Ok((Some((name, path, kind)), next))
}

fn nothing(_: &mut Reader<'_>) -> Result<()> {
    Ok(())
}

/// Bytes of what the server calls a file: what it is, which state of it, and its number.
const QID: usize = 1 + 4 + 8;

/// The server's number for a file.
fn qid(from: &mut Reader<'_>) -> Result<u64> {
    from.bytes(QID - size_of::<u64>())?;
    from.u64()
}

fn attributes(from: &mut Reader<'_>) -> Result<Attributes> {
    // Which of what follows is meant: all that was asked for.
    from.u64()?;
    let path = qid(from)?;
    let mode = from.u32()?;
    let (uid, gid) = (from.u32()?, from.u32()?);
    let links = from.u64()?;
    let (rdev, size, _block, sectors) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
    let mut time = || -> Result<Nanos> {
        let (seconds, nanos) = (from.u64()?, from.u64()?);
        // What lies before 1970 is at its beginning.
        let seconds = if seconds > i64::MAX as u64 { 0 } else { seconds };
        Ok(seconds.saturating_mul(SECOND).saturating_add(nanos.min(SECOND - 1)))
    };
    let (atime, mtime, ctime) = (time()?, time()?, time()?);
    let kind = Kind::from_mode(mode).ok_or(EIO)?;
    if size > MAX_SIZE {
        return Err(EOVERFLOW);
    }
    Ok(Attributes {
        path,
        kind,
        perm: mode & 0o7777,
        uid,
        gid,
        links: u32::try_from(links).unwrap_or(u32::MAX),
        rdev,
        size,
        sectors,
        atime,
        mtime,
        ctime,
    })
}
