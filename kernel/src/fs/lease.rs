//! Leases (`F_SETLEASE`): the holder of one is told, by a signal, before another open or a
//! truncation of the file goes on, and has a time to write back what it keeps and to let go.
//!
//! ```text
//!   open, truncate --> break_for: tell the holders --> wait, or EWOULDBLOCK, until none is in the way
//!                                                         ^ F_SETLEASE, close, or the time is over
//! ```
//! A lease for reading bears other readers, one for writing bears no other open file. It belongs to
//! an open file, and ends with it. As on Linux, names may change under a lease.
//!
//! I1: `Opens::is_leased` of a node is set while the table has leases on it. An open counts itself
//! and then looks at it; a new lease sets it and then looks at the counts: so no two of them miss
//! each other. I2: the table has no file without leases. Locks: `LEASES`, then a queue's lock.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed, Ordering::SeqCst,
};

use linux_raw_sys::general as abi;

use super::access;
use super::file::File;
use super::inode::{Inode, InodeRef, Kind};
use super::lock::Shown;
use super::signals::Signals;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::mem::fault::Room;
use crate::sched::{self, Nanos};
use crate::share;
use crate::sync::{SpinLock, WaitQueue, Woken};
use crate::upcalls::{self, FileNews, FileOwner};

/// Leases on one file, at most: who breaks them tells all their holders. Users have shares.
const MOST: usize = 256;
/// What a lease costs, with its part of the table.
const COST: usize = 2 * size_of::<Lease>() + 2 * size_of::<Leases>() + size_of::<WaitQueue>() + 64;

/// Seconds that holders have to let go; 0: all they want.
pub static BREAK_SECONDS: AtomicU64 = AtomicU64::new(45);
const SECOND: Nanos = 1_000_000_000;

/// What a lease bears, and what breaks it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// How a node is open, which it keeps itself.
#[derive(Default)]
pub struct Opens {
    /// Open files that only read, and those that write.
    readers: AtomicU32,
    writers: AtomicU32,
    /// Programs of it that run.
    running: AtomicU32,
    is_leased: AtomicBool,
    /// How long what is written is said to live (`F_SET_RW_HINT`): kept for programs.
    pub life: AtomicU8,
}

/// An open file among its node's.
pub struct Opener {
    node: InodeRef,
    access: Access,
}

impl Opener {
    /// Counts an open file with these flags, once no lease is in its way; nothing for a node that
    /// can have none.
    ///
    /// # Errors
    /// `EAGAIN` if a lease is and the flags say not to wait; `ERESTARTSYS`; `ETXTBSY` if it would
    /// write to a program that runs.
    pub fn new(node: &InodeRef, flags: u32) -> Result<Option<Opener>> {
        let Some(opens) = node.opens() else { return Ok(None) };
        let access =
            if flags & abi::O_ACCMODE == abi::O_RDONLY { Access::Read } else { Access::Write };
        opens.count(access).fetch_add(1, SeqCst);
        let opener = Opener { node: node.clone(), access };
        if access == Access::Write && opens.running.load(SeqCst) != 0 {
            return Err(ETXTBSY);
        }
        break_for(node, access, flags & abi::O_NONBLOCK != 0)?;
        Ok(Some(opener))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if let Some(opens) = self.node.opens() {
            opens.count(self.access).fetch_sub(1, SeqCst);
        }
    }
}

/// While it lives, as long as a program runs, no file that writes is opened on its node.
pub struct Unwritten(InodeRef);

impl Unwritten {
    /// Nothing for a node that doesn't know how it is open.
    ///
    /// # Errors
    /// `ETXTBSY` if the node is open for writing.
    pub fn new(node: &InodeRef) -> Result<Option<Unwritten>> {
        let Some(opens) = node.opens() else { return Ok(None) };
        opens.running.fetch_add(1, SeqCst);
        let unwritten = Unwritten(node.clone());
        if opens.writers.load(SeqCst) != 0 {
            return Err(ETXTBSY);
        }
        Ok(Some(unwritten))
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        if let Some(opens) = self.0.opens() {
            opens.running.fetch_sub(1, SeqCst);
        }
    }
}

impl Opens {
    fn count(&self, access: Access) -> &AtomicU32 {
        match access {
            Access::Read => &self.readers,
            Access::Write => &self.writers,
        }
    }
}

struct Lease {
    /// The open file that has it, by address.
    file: usize,
    access: Access,
    /// What is asked of the holder, if something is, and until when; no time: as it likes.
    breaking: Option<(Left, Option<Nanos>)>,
    signals: Arc<Signals>,
    fd: i32,
    pid: i32,
    charge: Charge,
}

/// What a lease that is broken may become.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Read,
    Nothing,
}

impl Lease {
    /// It is in the table no more: what it said of signals goes with it, as on Linux.
    fn end(self) {
        let _ = self.signals.set_owner(|owner| {
            *owner = FileOwner::default();
            Ok(())
        });
    }

    fn is_in_the_way_of(&self, access: Access) -> bool {
        self.access == Access::Write || access == Access::Write
    }
}

/// The leases on a file.
struct Leases {
    all: Vec<Lease>,
    /// One has gone or is less than it was.
    changed: Arc<WaitQueue>,
}

type FileId = (u64, u64);

static LEASES: SpinLock<BTreeMap<FileId, Leases>> = SpinLock::new(BTreeMap::new());

fn id(node: &dyn Inode) -> FileId {
    let stat = node.stat();
    (stat.dev, stat.ino)
}

impl Leases {
    /// Takes away what holders have kept beyond their time; those that have nothing left.
    fn expire(&mut self, gone: &mut Vec<Lease>) {
        let now = sched::now();
        let mut at = 0;
        while let Some(lease) = self.all.get_mut(at) {
            match lease.breaking {
                Some((Left::Nothing, Some(end))) if end <= now => {
                    gone.push(self.all.swap_remove(at));
                    continue;
                }
                Some((Left::Read, Some(end))) if end <= now => {
                    (lease.access, lease.breaking) = (Access::Read, None);
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Waits until no lease is in the way of such an open or truncation; holders are told.
///
/// # Errors
/// `EAGAIN` if it would wait and must not; `ERESTARTSYS` for a signal; `ENOMEM`.
pub fn break_for(node: &InodeRef, access: Access, must_not_wait: bool) -> Result<()> {
    let Some(opens) = node.opens() else { return Ok(()) };
    if !opens.is_leased.load(SeqCst) {
        return Ok(());
    }
    let id = id(&**node);
    loop {
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        told.room(MOST)?;
        gone.room(MOST)?;
        let seconds = BREAK_SECONDS.load(Relaxed);
        let end = (seconds > 0).then(|| sched::now() + seconds.saturating_mul(SECOND));
        let (queue, first_end) = {
            let mut table = LEASES.lock();
            let Some(leases) = table.get_mut(&id) else { return Ok(()) };
            leases.expire(&mut gone);
            let left = if access == Access::Write { Left::Nothing } else { Left::Read };
            let mut first_end = None;
            let mut is_any = false;
            for lease in leases.all.iter_mut().filter(|lease| lease.is_in_the_way_of(access)) {
                is_any = true;
                let is_asked = match lease.breaking {
                    Some((asked, _)) => asked == Left::Nothing || left == Left::Read,
                    None => false,
                };
                if !is_asked {
                    lease.breaking = Some((left, end));
                    told.push((lease.signals.clone(), lease.fd));
                }
                let end = lease.breaking.and_then(|(_, end)| end);
                first_end = first_end.into_iter().chain(end).min();
            }
            let queue = leases.changed.clone();
            forget_if_empty(&mut table, id, opens);
            if !gone.is_empty() {
                queue.wake_any();
            }
            (is_any.then_some(queue), first_end)
        };
        for (signals, fd) in told {
            signals.tell(fd, FileNews::Message);
            sched::work_done(1024);
        }
        gone.into_iter().for_each(Lease::end);
        let Some(queue) = queue else { return Ok(()) };
        if must_not_wait {
            return Err(EAGAIN);
        }
        let is_free = || {
            let table = LEASES.lock();
            let all = table.get(&id).map_or(&[][..], |leases| &leases.all);
            (!all.iter().any(|lease| lease.is_in_the_way_of(access))).then_some(())
        };
        match queue.wait_intr(first_end, is_free) {
            Ok(()) | Err(Woken::Timeout) => {}
            Err(Woken::Signal) => return Err(ERESTARTSYS),
        }
    }
}

/// `F_SETLEASE`; nothing: gives it up.
///
/// # Errors
/// `EACCES`: the file is another user's; `EINVAL`: it is none that can have leases; `EAGAIN`: it is
/// open otherwise, or has other leases, or none to give up; `ENOLCK`; `ENOMEM`.
pub fn set(file: &File, fd: i32, access: Option<Access>) -> Result<()> {
    let node = file.inode();
    access::may_lease(&upcalls::cred(), &node.ownership())?;
    let opens = node.opens().filter(|_| node.kind() == Kind::File).ok_or(EINVAL)?;
    let Some(access) = access else { return give_up(file, opens).ok_or(EAGAIN) };
    let signals = file.signals()?;
    let process = upcalls::current_process();
    let charge = charge::take(COST).map_err(|_| ENOLCK)?;
    let new = Lease {
        file: address(file),
        access,
        breaking: None,
        signals: signals.clone(),
        fd,
        pid: process.pid,
        charge,
    };
    let fresh = Arc::new(WaitQueue::new());
    {
        let mut table = LEASES.lock();
        let id = id(&**node);
        opens.is_leased.store(true, SeqCst);
        let leases = table.entry(id).or_insert_with(|| Leases { all: Vec::new(), changed: fresh });
        let outcome = add(leases, file, opens, new);
        let changed = leases.changed.clone();
        forget_if_empty(&mut table, id, opens);
        drop(table);
        outcome?;
        changed.wake_all();
    }
    // A holder that has said no one else is told itself.
    signals.set_owner(|owner| match owner.is_unset() {
        true => owner.set(abi::F_OWNER_PID, process.pid),
        false => Ok(()),
    })
}

fn forget_if_empty(table: &mut BTreeMap<FileId, Leases>, id: FileId, opens: &Opens) {
    if table.get(&id).is_some_and(|leases| leases.all.is_empty()) {
        table.remove(&id);
        opens.is_leased.store(false, SeqCst);
    }
}

fn add(leases: &mut Leases, file: &File, opens: &Opens, new: Lease) -> Result<()> {
    let (writers, readers) = (opens.writers.load(SeqCst), opens.readers.load(SeqCst));
    let own = u32::from(file.is_writable());
    let is_open_otherwise = match new.access {
        Access::Read => writers != 0,
        Access::Write => writers != own || readers != 1 - own,
    };
    // Of a file that isn't counted (a memfd) it isn't known how it is open.
    if is_open_otherwise || !file.is_counted() {
        return Err(EAGAIN);
    }
    let others = leases.all.iter().filter(|lease| lease.file != new.file);
    for other in others {
        if new.access == Access::Write || matches!(other.breaking, Some((Left::Nothing, _))) {
            return Err(EAGAIN);
        }
    }
    match leases.all.iter_mut().find(|lease| lease.file == new.file) {
        Some(lease) => {
            lease.access = new.access;
            if new.access == Access::Read && matches!(lease.breaking, Some((Left::Read, _))) {
                lease.breaking = None;
            }
        }
        None => {
            let holders = leases.all.iter().map(|lease| lease.charge.uid());
            if !share::has_place(new.charge.uid(), holders, MOST) {
                return Err(ENOLCK);
            }
            leases.all.room(1)?;
            leases.all.push(new);
        }
    }
    Ok(())
}

fn give_up(file: &File, opens: &Opens) -> Option<()> {
    if !opens.is_leased.load(SeqCst) {
        return None;
    }
    let id = id(&**file.inode());
    let mut table = LEASES.lock();
    let leases = table.get_mut(&id)?;
    let at = leases.all.iter().position(|lease| lease.file == address(file))?;
    let gone = leases.all.swap_remove(at);
    let changed = leases.changed.clone();
    forget_if_empty(&mut table, id, opens);
    drop(table);
    changed.wake_all();
    gone.end();
    Some(())
}

/// `F_GETLEASE`: what the file's lease is, or is to become.
pub fn get(file: &File) -> Option<Access> {
    let opens = file.inode().opens().filter(|opens| opens.is_leased.load(SeqCst))?;
    let id = id(&**file.inode());
    let mut gone = Vec::new();
    gone.room(MOST).ok()?;
    let mut table = LEASES.lock();
    let leases = table.get_mut(&id)?;
    leases.expire(&mut gone);
    let lease = leases.all.iter().find(|lease| lease.file == address(file));
    let left = lease.and_then(|lease| match lease.breaking {
        Some((Left::Nothing, _)) => None,
        Some((Left::Read, _)) => Some(Access::Read),
        None => Some(lease.access),
    });
    if !gone.is_empty() {
        leases.changed.wake_any();
        forget_if_empty(&mut table, id, opens);
    }
    drop(table);
    gone.into_iter().for_each(Lease::end);
    left
}

/// The last reference to an open file goes: so does its lease.
pub fn release_file(file: &File) {
    if let Some(opens) = file.inode().opens() {
        let _ = give_up(file, opens);
    }
}

fn address(file: &File) -> usize {
    file as *const File as usize
}

impl Lease {
    fn shown(&self, id: FileId) -> Shown {
        Shown {
            kind: if self.breaking.is_some() { "LEASE  BREAKING " } else { "LEASE  ACTIVE   " },
            mode: match (self.breaking, self.access) {
                (Some((Left::Nothing, _)), _) => "UNLCK",
                (Some((Left::Read, _)), _) | (None, Access::Read) => "READ",
                (None, Access::Write) => "WRITE",
            },
            pid: self.pid,
            file: id,
            range: None,
            waits: false,
        }
    }
}

/// A lease of the first file that has any from `from` on, behind the first `skipped` of them: the
/// file, and whether it has more. For `/proc/locks`.
pub fn next(from: FileId, skipped: usize, out: &mut Vec<Shown>) -> Result<Option<(FileId, bool)>> {
    out.room(1)?;
    let table = LEASES.lock();
    let mut files = table
        .range(from..)
        .filter(|(id, leases)| **id != from || leases.all.len() > skipped || skipped == 0);
    let Some((&id, leases)) = files.next() else { return Ok(None) };
    let skipped = if id == from { skipped } else { 0 };
    out.extend(leases.all.get(skipped).map(|lease| lease.shown(id)));
    Ok(Some((id, leases.all.len() > skipped + 1)))
}

/// The lease of an open file, for `/proc/PID/fdinfo`.
pub fn of_file(file: &File) -> Option<Shown> {
    let id = id(&**file.inode());
    let table = LEASES.lock();
    let all = &table.get(&id)?.all;
    all.iter().find(|lease| lease.file == file as *const File as usize).map(|lease| lease.shown(id))
}
