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
use crate::errno::*;
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

/// A set of files.
pub struct Epoll {
    items: SpinLock<Vec<Item>>,
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
}

impl Epoll {
    /// An open file with an empty set.
    pub fn create() -> Arc<File> {
        let epoll = Epoll {
            items: SpinLock::new(Vec::new()),
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
        let mut items = self.items.lock();
        items.retain(|item| item.file.strong_count() > 0);
        let found = items.iter().position(|item| item.fd == fd && item.file.ptr_eq(&this));
        match (change, found) {
            (Control::Add { .. }, Some(_)) => return Err(EEXIST),
            (Control::Add { .. }, None) if items.len() >= MAX_ITEMS => return Err(ENOSPC),
            (Control::Add { events, data }, None) => items.push(Item { fd, file: this, events, data }),
            (Control::Modify { events, data }, Some(at)) => {
                items[at].events = events;
                items[at].data = data;
            }
            (Control::Remove, Some(at)) => {
                items.remove(at);
            }
            (_, None) => return Err(ENOENT),
        }
        drop(items);
        self.version.fetch_add(1, Ordering::SeqCst);
        self.changed.wake_all();
        Ok(())
    }

    /// The files of the set that are still open and armed.
    fn snapshot(&self) -> Vec<(Arc<File>, Item)> {
        let items = self.items.lock().clone();
        let armed = items.into_iter().filter(|item| item.events & !MODES != 0);
        armed.filter_map(|item| Some((item.file.upgrade()?, item))).collect()
    }

    /// Waits until a file is ready or the deadline passes; reports at most `max` files.
    pub fn wait(&self, max: usize, deadline: Option<Nanos>) -> Result<Vec<Event>> {
        loop {
            let before = self.version.load(Ordering::SeqCst);
            let files = self.snapshot();
            let mut queues = Vec::with_capacity(files.len() + 1);
            queues.push(&self.changed);
            for (file, _) in &files {
                file.queues(&mut queues);
            }
            let ready = wait_any(&queues, deadline, || {
                let ready = collect(&files, max);
                (!ready.is_empty() || self.version.load(Ordering::SeqCst) != before).then_some(ready)
            });
            match ready {
                Ok(ready) if ready.is_empty() => {}
                Ok(ready) => {
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
        for item in items.iter_mut().filter(|item| item.events & abi::EPOLLONESHOT != 0) {
            if ready.iter().any(|event| event.data == item.data) {
                item.events &= MODES;
            }
        }
    }
}

fn collect(files: &[(Arc<File>, Item)], max: usize) -> Vec<Event> {
    let mut ready = Vec::new();
    for (file, item) in files {
        let events = file.poll() & (item.events | abi::EPOLLERR | abi::EPOLLHUP);
        if events != 0 && ready.len() < max {
            ready.push(Event { events, data: item.data });
        }
    }
    ready
}

impl Inode for Epoll {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::File, 0o600)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _file: &File) -> u32 {
        if collect(&self.snapshot(), 1).is_empty() {
            0
        } else {
            abi::POLLIN | abi::POLLRDNORM
        }
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.changed);
    }
}
