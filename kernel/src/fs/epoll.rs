//! `epoll`: a set of files to wait for, kept by the kernel.
//!
//! A wait looks at every file of the set: cheap for the tens of descriptors that programs here have, and it
//! needs no lists in the files. Edge-triggered files are reported as level-triggered ones are: more often
//! than asked for, never less.
//!
//! Invariants: I1: the set holds weak references: a closed file leaves it by itself. I2: no file is polled
//! with the set locked.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::mem::fault::{self, Room};
use crate::sched::Nanos;
use crate::sync::{wait_any, SpinLock, WaitQueue, Woken};

/// The most files in one set.
const MAX_ITEMS: usize = 65536;

/// The parts of an event mask that are no events.
const MODES: u32 = abi::EPOLLET | abi::EPOLLONESHOT | abi::EPOLLWAKEUP | abi::EPOLLEXCLUSIVE;

#[derive(Clone)]
struct Item {
    fd: i32,
    file: Weak<File>,
    events: u32,
    data: u64,
}

/// What an item costs, here and while it is waited for.
const ITEM: usize = 2 * size_of::<Item>() + 96;

struct Items {
    list: Vec<Item>,
    charge: Charge,
}

/// A set of files.
pub struct Epoll {
    items: SpinLock<Items>,
    /// Counts changes, so that a wait sees one that happens meanwhile.
    version: AtomicU64,
    changed: WaitQueue,
    ino: u64,
}

/// A change to the set.
pub enum Control {
    Add { events: u32, data: u64 },
    Modify { events: u32, data: u64 },
    Remove,
}

/// What a wait reports.
pub struct Event {
    pub events: u32,
    pub data: u64,
    /// Which of the files looked at it is of.
    at: usize,
}

impl Epoll {
    /// An open file with an empty set.
    pub fn create() -> Result<Arc<File>> {
        let charge = charge::take(0).map_err(|_| ENFILE)?;
        let epoll = Epoll {
            items: SpinLock::new(Items { list: Vec::new(), charge }),
            version: AtomicU64::new(0),
            changed: WaitQueue::new(),
            ino: super::new_ino(),
        };
        File::anonymous(Arc::new(epoll), abi::O_RDWR)
    }

    /// The set behind an open file.
    pub fn of(file: &File) -> Result<&Epoll> {
        downcast::<Epoll>(file.io()).ok_or(EINVAL)
    }

    pub fn control(&self, fd: i32, file: &Arc<File>, change: Control) -> Result<()> {
        if downcast::<Epoll>(file.io()).is_some() {
            return Err(ELOOP);
        }
        if matches!(file.inode().kind(), Kind::File | Kind::Dir) && file.is_seekable() {
            return Err(EPERM);
        }
        let this = Arc::downgrade(file);
        let mut set = self.items.lock();
        let Items { list: items, charge } = &mut *set;
        items.retain(|item| item.file.strong_count() > 0);
        charge.shrink_to(items.len() * ITEM);
        let found = items.iter().position(|item| item.fd == fd && item.file.ptr_eq(&this));
        match (change, found) {
            (Control::Add { .. }, Some(_)) => return Err(EEXIST),
            (Control::Add { .. }, None) if items.len() >= MAX_ITEMS => return Err(ENOSPC),
            (Control::Add { events, data }, None) => {
                items.room(1)?;
                charge.grow(ITEM).map_err(|_| ENOSPC)?;
                items.push(Item { fd, file: this, events, data });
            }
            (Control::Modify { events, data }, Some(at)) => {
                items[at].events = events;
                items[at].data = data;
            }
            (Control::Remove, Some(at)) => {
                items.remove(at);
                charge.shrink_to(items.len() * ITEM);
            }
            (_, None) => return Err(ENOENT),
        }
        drop(set);
        self.version.fetch_add(1, Ordering::SeqCst);
        self.changed.wake_all();
        Ok(())
    }

    /// The files of the set that are still open and armed.
    fn snapshot(&self) -> Result<Vec<(Arc<File>, Item)>> {
        let items = fault::gather(self.items.lock().list.iter().cloned())?;
        let armed = items.into_iter().filter(|item| item.events & !MODES != 0);
        Ok(fault::gather(armed.filter_map(|item| Some((item.file.upgrade()?, item))))?)
    }

    /// Waits until a file is ready or the deadline passes; reports at most `max` files.
    pub fn wait(&self, max: usize, deadline: Option<Nanos>) -> Result<Vec<Event>> {
        loop {
            let before = self.version.load(Ordering::SeqCst);
            let files = self.snapshot()?;
            let mut queues = Vec::new();
            queues.room(files.len() + 1)?;
            queues.push(&self.changed);
            for (file, _) in &files {
                queues.room(QUEUES)?;
                file.queues(&mut queues);
            }
            let mut ready = Vec::new();
            ready.room(files.len().min(max))?;
            let woken = wait_any(&queues, deadline, || {
                ready.clear();
                ready.extend(events(&files).take(max));
                (!ready.is_empty() || self.version.load(Ordering::SeqCst) != before).then_some(())
            });
            match woken {
                Ok(()) if ready.is_empty() => {}
                Ok(()) => {
                    self.disarm(&files, &ready);
                    return Ok(ready);
                }
                Err(Woken::Timeout) => return Ok(Vec::new()),
                Err(Woken::Signal) => return Err(EINTR),
            }
        }
    }

    /// One-shot files that were reported take no part until they are set again.
    fn disarm(&self, files: &[(Arc<File>, Item)], ready: &[Event]) {
        if !files.iter().any(|(_, item)| item.events & abi::EPOLLONESHOT != 0) {
            return;
        }
        let mut items = self.items.lock();
        for item in items.list.iter_mut().filter(|item| item.events & abi::EPOLLONESHOT != 0) {
            let is_it = |other: &Item| other.fd == item.fd && other.file.ptr_eq(&item.file);
            if ready.iter().any(|event| is_it(&files[event.at].1)) {
                item.events &= MODES;
            }
        }
    }
}

/// The files that are ready, and for what.
fn events(files: &[(Arc<File>, Item)]) -> impl Iterator<Item = Event> + '_ {
    files.iter().enumerate().filter_map(|(at, (file, item))| {
        let events = file.poll() & (item.events | abi::EPOLLERR | abi::EPOLLHUP);
        (events != 0).then_some(Event { events, data: item.data, at })
    })
}

impl Inode for Epoll {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::File, 0o600)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _file: &File) -> u32 {
        match self.snapshot() {
            Ok(files) if events(&files).next().is_none() => 0,
            // Without memory to look, it may be: a wait tells.
            _ => abi::POLLIN | abi::POLLRDNORM,
        }
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.changed);
    }
}
