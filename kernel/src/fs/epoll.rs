//! `epoll`: a set of files to wait for, kept by the kernel.
//!
//! ```text
//!   file's wait queue --watchers--> Watch --set, key--> Set   all: (descriptor, file) -> Entry { events, data, place }
//!   file ------------- watched --->   |                       first --> Entry <--> Entry <-- last     those that may be ready
//!                      <------weak----+                       asked: those that only a look tells of
//! ```
//! A wake-up of a file's queue puts its entry on the list, and a thread that waits for the set
//! looks at what is on the list and at nothing else. An entry that is reported goes back on it, if
//! it is level-triggered: it stays as long as each look finds it ready. An edge-triggered one comes
//! back by the next wake-up.
//!
//! Whether a signalfd is ready depends on the thread that asks, so each wait looks at those of the
//! set: they are level-triggered always.
//!
//! I1: the set holds weak references: a closed file leaves it by itself. I2: no file is polled with
//! the set locked. I3: an entry whose file has become ready since it was looked at last is on the
//! list. I4: a watcher is on its file's list and queues until its entry goes, by whichever of
//! [`Set::remove`] and the file's end comes first. Locks: a wait queue's lock, then a set's items,
//! then nothing. `control` sleeps, and comes first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use crate::charge::{self, Charge};
use crate::errno::*;
use crate::fs::ops::*;
use crate::mem::fault::Room;
use crate::sched::{self, Nanos};
use crate::sync::{wait_any, Mutex, SpinLock, WaitQueue, Watcher, Woken};
use crate::upcalls;

/// The most files in one set.
const MAX_ITEMS: usize = 65536;

/// The parts of an event mask that are no events.
const MODES: u32 = abi::EPOLLET | abi::EPOLLONESHOT | abi::EPOLLWAKEUP | abi::EPOLLEXCLUSIVE;

/// What an item costs: in tree nodes that may be half empty, and on its file's lists.
const ITEM: usize = 2 * size_of::<(Key, Entry)>() + size_of::<Watch>() + 16 + (QUEUES + 1) * 32;

/// What it takes to look at a file: the work of copying so many bytes.
const LOOK: usize = 128;
/// What it takes to remove an entry and its watcher, likewise.
const REMOVAL: usize = 8 * LOOK;

/// A descriptor and its file, by address: the weak reference of the entry keeps that from being
/// used again.
type Key = (i32, usize);

/// What a file tells of its wake-ups and of its end.
pub struct Watch {
    set: Arc<Set>,
    key: Key,
    file: Weak<File>,
    /// The user that has put the file in the set.
    uid: u32,
}

impl Watcher for Watch {
    fn notice(&self) {
        self.set.put(self.key);
    }

    fn uid(&self) -> u32 {
        self.uid
    }
}

impl Watch {
    /// The file is gone, and has left its queues.
    pub fn file_gone(&self) {
        let entry = self.set.items.lock().remove(self.key);
        drop(entry);
    }
}

struct Entry {
    watch: Arc<Watch>,
    events: u32,
    data: u64,
    /// Its neighbours on the list, if it is there.
    place: Option<Place>,
}

#[derive(Default)]
struct Place {
    previous: Option<Key>,
    next: Option<Key>,
}

struct Items {
    all: BTreeMap<Key, Entry>,
    first: Option<Key>,
    last: Option<Key>,
    /// On the list.
    listed: usize,
    asked: BTreeSet<Key>,
    charge: Charge,
}

impl Items {
    /// Puts an entry at the end of the list; says whether it is new there.
    fn push(&mut self, key: Key) -> bool {
        let last = self.last;
        match self.all.get_mut(&key) {
            Some(entry) if entry.place.is_none() => {
                entry.place = Some(Place { previous: last, next: None });
            }
            _ => return false,
        }
        self.last = Some(key);
        self.listed += 1;
        match last {
            Some(last) => self.place(last).next = Some(key),
            None => self.first = Some(key),
        }
        true
    }

    /// The place of an entry that a neighbour names.
    fn place(&mut self, key: Key) -> &mut Place {
        self.all
            .get_mut(&key)
            .and_then(|entry| entry.place.as_mut())
            .expect("neighbours are on the list")
    }

    /// Takes an entry off the list, if it is there.
    fn unlist(&mut self, key: Key) {
        let Some(Place { previous, next }) =
            self.all.get_mut(&key).and_then(|entry| entry.place.take())
        else {
            return;
        };
        self.listed -= 1;
        match previous {
            Some(previous) => self.place(previous).next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => self.place(next).previous = previous,
            None => self.last = previous,
        }
    }

    /// Takes the first of the list off it: what to look at.
    fn take_first(&mut self) -> Option<Look> {
        let key = self.first?;
        self.unlist(key);
        self.look(key)
    }

    fn look(&self, key: Key) -> Option<Look> {
        let entry = self.all.get(&key)?;
        Some(Look { key, file: entry.watch.file.clone(), events: entry.events })
    }

    /// An entry was found ready as it was looked at: what to report. Nothing if it has changed
    /// since.
    fn report(&mut self, look: &Look) -> Option<u64> {
        let is_asked = self.asked.contains(&look.key);
        let entry = self.all.get_mut(&look.key).filter(|entry| entry.events == look.events)?;
        let data = entry.data;
        if entry.events & abi::EPOLLONESHOT != 0 {
            // The entry takes no part until it is set again.
            entry.events &= MODES;
        } else if entry.events & abi::EPOLLET == 0 && !is_asked {
            self.push(look.key);
        }
        Some(data)
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        self.unlist(key);
        self.asked.remove(&key);
        let entry = self.all.remove(&key);
        self.charge.shrink_to(self.all.len() * ITEM);
        entry
    }
}

/// An entry to be looked at with the set unlocked.
struct Look {
    key: Key,
    file: Weak<File>,
    events: u32,
}

impl Look {
    /// What has happened that is waited for.
    fn poll(&self) -> u32 {
        if self.events & !MODES == 0 {
            return 0;
        }
        self.file
            .upgrade()
            .map_or(0, |file| file.poll() & (self.events | abi::EPOLLERR | abi::EPOLLHUP))
    }
}

/// A set of files.
struct Set {
    items: SpinLock<Items>,
    /// An entry has come on the list.
    changed: WaitQueue,
    /// One call changes the set at a time.
    control: Mutex<()>,
}

impl Set {
    /// Puts an entry on the list.
    fn put(&self, key: Key) {
        let is_new = self.items.lock().push(key);
        if is_new {
            self.changed.wake_all();
        }
    }

    /// Takes an entry out; says whether there was one.
    fn remove(&self, key: Key) -> bool {
        let Some(entry) = self.items.lock().remove(key) else { return false };
        if let Some(file) = entry.watch.file.upgrade() {
            file.unwatch(&entry.watch);
        }
        true
    }

    /// Calls `each` with what is on the list and takes that off it, then with what has to be asked,
    /// until it has enough.
    fn look_at_all(&self, mut each: impl FnMut(&Look) -> bool) {
        // What comes back on the list meanwhile is not looked at twice.
        let listed = self.items.lock().listed;
        for _ in 0..listed {
            let look = self.items.lock().take_first();
            let Some(look) = look else { break };
            if !each(&look) || is_cut_short() {
                return;
            }
        }
        let mut from = (i32::MIN, 0);
        loop {
            let Some(look) = self.next_asked(from) else { return };
            from = (look.key.0, look.key.1 + 1);
            if !each(&look) || is_cut_short() {
                return;
            }
        }
    }

    /// At most `max` files that are ready.
    fn collect(&self, max: usize) -> Result<Vec<Event>> {
        let mut ready = Vec::new();
        let most = {
            let items = self.items.lock();
            items.listed + items.asked.len()
        };
        ready.room(most.min(max))?;
        self.look_at_all(|look| {
            let events = look.poll();
            let data = (events != 0).then(|| self.items.lock().report(look)).flatten();
            if let Some(data) = data {
                ready.push(Event { events, data });
            }
            ready.len() < ready.capacity().min(max)
        });
        if !ready.is_empty() && self.items.lock().listed > 0 {
            // Another may have found the list empty meanwhile.
            self.changed.wake_all();
        }
        Ok(ready)
    }

    /// The files that have to be asked, each with what is waited for.
    fn asked(&self) -> Result<Vec<(Arc<File>, Look)>> {
        let mut asked = Vec::new();
        asked.room(self.items.lock().asked.len())?;
        let mut from = (i32::MIN, 0);
        while asked.len() < asked.capacity() && !is_cut_short() {
            let next = self.next_asked(from);
            let Some(look) = next else { break };
            from = (look.key.0, look.key.1 + 1);
            if let Some(file) = look.file.upgrade() {
                asked.push((file, look));
            }
        }
        Ok(asked)
    }

    /// The first that has to be asked from a key on.
    fn next_asked(&self, from: Key) -> Option<Look> {
        let items = self.items.lock();
        items.asked.range(from..).next().and_then(|&key| items.look(key))
    }
}

/// Gives way to other threads after some looks. Whether the caller is being ended, and need look at
/// no more.
fn is_cut_short() -> bool {
    sched::work_done(LOOK) && sched::is_leaving()
}

/// See the module.
pub struct Epoll {
    set: Arc<Set>,
    ino: u64,
    _charge: Charge,
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
    pub fn create() -> Result<Arc<File>> {
        let charge = charge::take(size_of::<Set>()).map_err(|_| ENFILE)?;
        let items = Items {
            all: BTreeMap::new(),
            first: None,
            last: None,
            listed: 0,
            asked: BTreeSet::new(),
            charge: charge::take(0).map_err(|_| ENFILE)?,
        };
        let set =
            Set { items: SpinLock::new(items), changed: WaitQueue::new(), control: Mutex::new(()) };
        File::anonymous(
            Arc::new(Epoll { set: Arc::new(set), ino: super::new_ino(), _charge: charge }),
            abi::O_RDWR,
        )
    }

    /// The set behind an open file.
    pub fn of(file: &File) -> Result<&Epoll> {
        downcast_file::<Epoll>(file.io()).ok_or(EINVAL)
    }

    pub fn control(&self, fd: i32, file: &Arc<File>, change: Control) -> Result<()> {
        if downcast_file::<Epoll>(file.io()).is_some() {
            return Err(ELOOP);
        }
        if matches!(file.inode().kind(), Kind::File | Kind::Dir) && file.is_seekable() {
            return Err(EPERM);
        }
        let key = (fd, Arc::as_ptr(file).addr());
        let _turn = self.set.control.lock();
        match change {
            Control::Add { events, data } => self.add(key, file, events, data)?,
            Control::Modify { events, data } => {
                let mut items = self.set.items.lock();
                let entry = items.all.get_mut(&key).ok_or(ENOENT)?;
                (entry.events, entry.data) = (events, data);
            }
            Control::Remove => return self.set.remove(key).then_some(()).ok_or(ENOENT),
        }
        // The file may be ready now.
        self.set.put(key);
        Ok(())
    }

    fn add(&self, key: Key, file: &Arc<File>, events: u32, data: u64) -> Result<()> {
        let uid = charge::account().user().uid();
        let watch = Arc::new(Watch { set: self.set.clone(), key, file: Arc::downgrade(file), uid });
        {
            let mut items = self.set.items.lock();
            if items.all.contains_key(&key) {
                return Err(EEXIST);
            }
            if items.all.len() >= MAX_ITEMS {
                return Err(ENOSPC);
            }
            items.charge.grow(ITEM).map_err(|_| ENOSPC)?;
            items.all.insert(key, Entry { watch: watch.clone(), events, data, place: None });
            if file.io().depends_on_caller() {
                items.asked.insert(key);
            }
        }
        file.watch(&watch).inspect_err(|_| _ = self.set.remove(key))
    }

    /// Waits until a file is ready or the deadline passes; reports at most `max` files.
    pub fn wait(&self, max: usize, deadline: Option<Nanos>) -> Result<Vec<Event>> {
        loop {
            let ready = self.set.collect(max)?;
            if !ready.is_empty() {
                return Ok(ready);
            }
            if sched::signal_pending() {
                return Err(EINTR);
            }
            let asked = self.set.asked()?;
            let process = upcalls::current_process();
            let queues = [&self.set.changed, &process.signal_readers];
            let is_ready = || {
                let is_listed = self.set.items.lock().first.is_some();
                let is_one = |(_, look): &(_, Look)| look.poll() != 0 || is_cut_short();
                (is_listed || asked.iter().any(is_one)).then_some(())
            };
            match wait_any(&queues[..1 + usize::from(!asked.is_empty())], deadline, is_ready) {
                Ok(()) => {}
                Err(Woken::Timeout) => return Ok(Vec::new()),
                Err(Woken::Signal) => return Err(EINTR),
            }
        }
    }
}

impl Drop for Epoll {
    /// No thread can change the set any more; each entry leaves its file.
    fn drop(&mut self) {
        loop {
            let first = self.set.items.lock().all.first_key_value().map(|(&key, _)| key);
            let Some(key) = first else { return };
            self.set.remove(key);
            sched::work_done(REMOVAL);
        }
    }
}

impl Inode for Epoll {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::File, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for Epoll {
    fn poll(&self, _file: &File) -> u32 {
        let mut is_ready = false;
        self.set.look_at_all(|look| {
            is_ready = look.poll() != 0;
            if is_ready {
                // The entry has not been reported.
                self.set.put(look.key);
            }
            !is_ready
        });
        if is_ready {
            abi::POLLIN | abi::POLLRDNORM
        } else {
            0
        }
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.set.changed);
    }
}
