//! Texts, made a record at a time as they are read.
//!
//! ```text
//!   text    | record | record | record | ...
//!                    ^ start  ^ next: where its maker finds it (an address, a number)
//!   kept             '--------'
//! ```
//! A text grows with what programs do: a line for each mapping, socket, mount. An opened one keeps
//! where its next record is and, until that has been read whole, one record; so memory is bounded,
//! however long the text and however many descriptors there are.
//!
//! I1: `start` is the offset in the text of the first byte of `record`. A read at an offset before
//! it, or at 0, makes the text anew; a read behind it makes the records between and throws them
//! away.
//!
//! What changes meanwhile may be seen or not; each record is of one moment, and what stays is seen
//! once. So it is on Linux (`seq_file`). The road not taken, the whole text at `open`, shows one
//! moment, and has a program choose how much the kernel allocates.

use alloc::string::String;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general as abi;

use super::target::{Opened, Target, TargetRecords, TargetText};
use super::{disks, process, settings};
use crate::block::Disk;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::file::File;
use crate::fs::mount;
use crate::fs::ops::{self, *};
use crate::mem::fault::Room;
use crate::proc::mm::Mm;
use crate::proc::Process;
use crate::sched;
use crate::sync::{Mutex, WaitQueue};
use crate::uio::{Sink, Source};
use crate::vm::Space;

/// The text of a record. Writing fails if there is no memory for it, and for no other reason.
#[derive(Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds bytes that may be no text: a path.
    ///
    /// # Errors
    /// `fmt::Error` without memory.
    pub fn put(&mut self, bytes: &[u8]) -> fmt::Result {
        self.0.room(bytes.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes())
    }
}

impl From<fmt::Error> for Errno {
    /// See [`Text`].
    fn from(_: fmt::Error) -> Errno {
        ENOMEM
    }
}

/// Which record is to be made.
#[derive(Clone, Copy, Default)]
pub struct Spot {
    /// What the record before said; 0 for the first.
    pub key: u64,
    /// How many records there were before that weren't empty.
    pub line: u64,
}

/// Makes a record, which may be empty, and says where the next one is; `None` behind the last.
pub type Records = fn(Spot, &mut Text) -> Result<Option<u64>>;
/// Like [`Records`], of a process's address space.
pub type SpaceRecords = fn(&Process, &Space, Spot, &mut Text) -> Result<Option<u64>>;

/// What an opened text is about.
pub(super) enum Subject {
    /// A short one, made whole.
    System(fn() -> String),
    /// About the disk in that place.
    Disk(usize, fn(&Disk) -> String),
    Records(Records),
    /// A short one about a process or thread, which may be gone when it is read.
    Text(Opened, TargetText),
    TargetRecords(Opened, TargetRecords),
    /// About what a process's descriptor is for.
    Descriptor(Weak<Process>, i32),
    /// About the address space that a process had when it was opened, as long as that runs in it;
    /// `None` if it had none.
    Space(Weak<Process>, Option<Weak<Mm>>, SpaceRecords),
}

impl Subject {
    fn record(&self, spot: Spot, out: &mut Text) -> Result<Option<u64>> {
        match self {
            Subject::System(text) => out.0 = text().into_bytes(),
            Subject::Disk(index, text) => out.0 = disks::text(*index, *text)?.into_bytes(),
            Subject::Records(make) => return make(spot, out),
            Subject::Text(target, text) => out.0 = text(&target.target()?)?,
            Subject::TargetRecords(target, make) => return make(&target.target()?, spot, out),
            Subject::Descriptor(process, fd) => {
                return process::descriptor(&*process.upgrade().ok_or(ESRCH)?, *fd, spot, out);
            }
            Subject::Space(process, mm, make) => {
                let process = process.upgrade().ok_or(ESRCH)?;
                let mm = mm.as_ref().and_then(Weak::upgrade).filter(|mm| !mm.is_left());
                return mm.map_or(Ok(None), |mm| make(&process, &mm.space, spot, out));
            }
        }
        Ok(None)
    }
}

/// How far an opened text has been made.
struct Progress {
    start: u64,
    record: Text,
    spot: Spot,
    is_over: bool,
    /// For a record that is kept between two reads.
    charge: Option<Charge>,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            start: 0,
            record: Text::default(),
            spot: Spot::default(),
            is_over: false,
            charge: None,
        }
    }

    /// Makes the next record in place of this one; false behind the last. Nothing has changed if it
    /// fails.
    fn advance(&mut self, subject: &Subject) -> Result<bool> {
        let done = self.record.len() as u64;
        if self.is_over {
            self.start += done;
            self.record = Text::default();
            return Ok(false);
        }
        let mut record = Text::default();
        let next = subject.record(self.spot, &mut record)?;
        self.start += done;
        self.spot.line += u64::from(record.len() != 0);
        self.record = record;
        match next {
            Some(key) => self.spot.key = key,
            None => self.is_over = true,
        }
        Ok(true)
    }
}

/// What becomes of what is written to a text.
#[derive(Clone, Copy)]
pub(super) enum Set {
    System(fn(&str) -> Result<()>),
    /// Of the process or thread that the text is about.
    Target(fn(&Target, &str) -> Result<()>),
    /// Nothing is set by it.
    Refused(Errno),
}

/// An opened text.
pub(super) struct Reader {
    pub subject: Subject,
    /// What takes writes; `None` if it was opened for reading.
    pub set: Option<Set>,
    /// Of the table of mounts: the version of it that a poll has told of.
    mounts_seen: Option<AtomicU64>,
    progress: Mutex<Progress>,
}

impl Reader {
    pub fn new(subject: Subject, set: Option<Set>) -> Reader {
        Reader { subject, set, mounts_seen: None, progress: Mutex::new(Progress::new()) }
    }

    /// Of the table of mounts, for programs that wait for it to change.
    pub fn of_mounts(self) -> Reader {
        Reader { mounts_seen: Some(AtomicU64::new(mount::version())), ..self }
    }

    /// Puts what lies from `at` on, as far as there is room.
    fn put(&self, progress: &mut Progress, at: u64, to: &mut Sink<'_>) -> Result<()> {
        if at == 0 || at < progress.start {
            *progress = Progress::new();
        }
        let mut at = at;
        while to.left() != 0 {
            let from = usize::try_from(at - progress.start).unwrap_or(usize::MAX);
            if let Some(rest) = progress.record.0.get(from..).filter(|rest| !rest.is_empty()) {
                at += to.put(rest)? as u64;
                continue;
            }
            if !progress.advance(&self.subject)? {
                break;
            }
            crate::sched::give_way();
            if sched::is_leaving() {
                return Err(EINTR);
            }
        }
        Ok(())
    }
}

impl FileOps for Reader {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, at: u64, to: &mut Sink<'_>) -> Result<usize> {
        let before = to.done();
        let mut progress = self.progress.lock();
        let result = self.put(&mut progress, at, to);
        let done = to.done() - before;
        if at + done as u64 == progress.start + progress.record.len() as u64 {
            // Read whole: a descriptor that rests keeps no text.
            progress.start += progress.record.len() as u64;
            progress.record = Text::default();
            progress.charge = None;
        } else {
            // A reader that can't be charged for the record has it made again.
            progress.charge = charge::take(progress.record.0.capacity()).ok();
            if progress.charge.is_none() {
                *progress = Progress::new();
            }
        }
        crate::uio::outcome(done, result)
    }

    fn write(&self, _file: &File, at: Position, from: &mut Source<'_>) -> Result<(usize, u64)> {
        let set = self.set.ok_or(EBADF)?;
        if let Set::Refused(error) = set {
            return Err(error);
        }
        let at = if let Position::At(at) = at { at } else { 0 };
        let mut bytes = [0; settings::LONGEST + 1];
        let n = from.get(&mut bytes)?;
        if n == 0 {
            return Ok((0, at));
        }
        let text = settings::text(&bytes[..n])?;
        match (set, &self.subject) {
            (Set::System(set), _) => set(text)?,
            (Set::Target(set), Subject::Text(target, _)) => set(&target.target()?, text)?,
            _ => return Err(EINVAL),
        }
        Ok((n, at.saturating_add(n as u64)))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        Ok(())
    }

    /// A change of the table of mounts is an error and urgent, for the first poll that sees it.
    fn poll(&self, _file: &File) -> u32 {
        let Some(seen) = &self.mounts_seen else { return ops::ALWAYS_READY };
        let now = mount::version();
        let news = if seen.swap(now, Relaxed) != now { abi::POLLERR | abi::POLLPRI } else { 0 };
        abi::POLLIN | abi::POLLRDNORM | news
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.extend(self.mounts_seen.as_ref().map(|_| &mount::CHANGED));
    }
}
