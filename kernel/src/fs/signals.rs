//! Signals that tell a process of an open file: of what can be read or written (`O_ASYNC`), and
//! that a lease is broken.
//!
//! ```text
//!   file's wait queues --watchers--> Teller { fd, news } --> Signals { owner } <-- File, Lease
//! ```
//! S1: a teller is on its file's queues exactly while the file has `O_ASYNC`, which goes with the
//! file at the latest. S2: nothing here holds the file: the last reference to one is never let go
//! by a wake-up. Locks: `tellers`, then `changing`, which sleep; a wait queue's lock, then `owner`,
//! then the table of processes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::Kind;
use super::ops::QUEUES;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::mem::fault::Room;
use crate::sync::{Mutex, SpinLock, WaitQueue, Watcher};
use crate::upcalls::{self, FileNews, FileOwner};

/// What it costs that a file has an owner, with its tellers.
const COST: usize = size_of::<Signals>() + QUEUES * (size_of::<Teller>() + 64) + 64;

/// See the module.
pub struct Signals {
    owner: SpinLock<FileOwner>,
    /// Held by the thread that changes the owner.
    changing: Mutex<()>,
    /// Held by the thread that switches `O_ASYNC`.
    tellers: Mutex<Vec<Arc<dyn Watcher>>>,
    _charge: Charge,
}

struct Teller {
    signals: Arc<Signals>,
    fd: i32,
    news: FileNews,
    uid: u32,
}

impl Watcher for Teller {
    fn notice(&self, _served: u32) -> u32 {
        self.signals.tell(self.fd, self.news);
        0
    }

    fn uid(&self) -> u32 {
        self.uid
    }

    fn is_signal(&self) -> bool {
        true
    }
}

impl Signals {
    /// No process is told yet.
    pub fn new() -> Result<Arc<Signals>> {
        let charge = charge::take(COST).map_err(|_| ENOMEM)?;
        Ok(Arc::new(Signals {
            owner: SpinLock::new(FileOwner::default()),
            changing: Mutex::new(()),
            tellers: Mutex::new(Vec::new()),
            _charge: charge,
        }))
    }

    /// A look at the owner.
    pub fn owner(&self) -> FileOwner {
        self.owner.lock().clone()
    }

    /// Changes the owner; nothing has changed if `change` fails.
    pub fn set_owner(&self, change: impl FnOnce(&mut FileOwner) -> Result<()>) -> Result<()> {
        let _turn = self.changing.lock();
        let mut owner = self.owner();
        change(&mut owner)?;
        let old = core::mem::replace(&mut *self.owner.lock(), owner);
        drop(old);
        Ok(())
    }

    /// Sends the owner's signal.
    pub fn tell(&self, fd: i32, news: FileNews) {
        self.owner.lock().tell(fd, news);
    }

    /// Sends the owner what tells of an urgent byte.
    pub fn tell_urgent(&self) {
        self.owner.lock().tell_urgent();
    }
}

/// Switches `O_ASYNC`; without effect for files of kinds that never tell.
///
/// # Errors
/// `ENOMEM`: memory is short, or too many are told of the file already.
pub fn set_async(file: &File, fd: i32, on: bool) -> Result<()> {
    let kind = file.inode().kind();
    if !matches!(kind, Kind::Fifo | Kind::Socket | Kind::Char) || !file.can_be_watched() {
        return Ok(());
    }
    if !on && file.flags() & abi::FASYNC == 0 {
        return Ok(());
    }
    let signals = file.signals()?;
    let mut tellers = signals.tellers.lock();
    if on == (file.flags() & abi::FASYNC != 0) {
        return Ok(());
    }
    if !on {
        stop(file, &mut tellers);
        return Ok(());
    }
    let mut queues = Vec::new();
    queues.room(QUEUES)?;
    tellers.room(QUEUES)?;
    file.queues(&mut queues);
    if kind == Kind::Char {
        // What is typed alone is told: a terminal takes what is written at once.
        queues.truncate(1);
        let _ = signals.set_owner(|owner| match file.io().foreground() {
            _ if !owner.is_unset() => Ok(()),
            Some(group) => owner.set(abi::F_OWNER_PGRP, group),
            None => owner.set(abi::F_OWNER_PID, upcalls::current_process().pid),
        });
    }
    let writes_only = !file.is_readable() && queues.len() == 1;
    for (at, queue) in queues.iter().enumerate() {
        let news = if at > 0 || writes_only { FileNews::Out } else { FileNews::In };
        let uid = charge::account().user().uid();
        let teller: Arc<dyn Watcher> = Arc::new(Teller { signals: signals.clone(), fd, news, uid });
        if queue.watch(teller.clone()).is_err() {
            leave(&queues, &mut tellers);
            return Err(ENOMEM);
        }
        tellers.push(teller);
    }
    file.mark_async(true);
    Ok(())
}

fn stop(file: &File, tellers: &mut Vec<Arc<dyn Watcher>>) {
    let mut queues = Vec::new();
    file.queues(&mut queues);
    leave(&queues, tellers);
    file.mark_async(false);
}

fn leave(queues: &[&WaitQueue], tellers: &mut Vec<Arc<dyn Watcher>>) {
    for teller in tellers.drain(..) {
        queues.iter().for_each(|queue| queue.unwatch(&teller));
    }
}

/// The file goes.
pub fn file_gone(file: &File, signals: &Signals) {
    if file.flags() & abi::FASYNC != 0 {
        stop(file, &mut signals.tellers.lock());
    }
}
