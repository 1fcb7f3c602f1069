//! `epoll`: a set of files to wait for, kept by the kernel.
//!
//! ```text
//!   file's wait queue --watchers--> Watch --set, key--> Set   all: (descriptor, file) -> Entry { events, data, place, news }
//!   file ------------- watched --->   |                       first --> Entry <--> Entry <-- last     those that may be ready
//!                      <------weak----+                       asked: those that only a look tells of
//! ```
//! A wake-up of a file's queue puts its entry on the list, and a thread that waits for the set
//! looks at what is on the list and at nothing else. An entry stays there while it is looked at,
//! so that no other thread takes the set for idle meanwhile; it leaves if it isn't ready, or is
//! edge-triggered and was reported, unless the file was woken again since the look began (`news`).
//! What stays goes to the list's end, so that all have their turn.
//!
//! Whether a signalfd is ready depends on the thread that asks, so each wait looks at those of the
//! set, and at sets with such a file: they are level-triggered always.
//!
//! A set is a file and may be in other sets. A file's wake-up goes up from set to set, with the
//! queues below locked. So sets form no circle and rows of [`MAX_NESTS`] links at most, and each
//! has [`MAX_ABOVE`] ways up at most: a wake-up takes bounded time and stack. A thread that adds a
//! link, or a file to a set that is in others, holds [`NESTING`].
//!
//! I1: the set holds weak references: a closed file leaves it by itself. I2: no file is polled with
//! the set locked. I3: an entry whose file has become ready since it was looked at last is on the
//! list. I4: a watcher is on its file's list and queues until its entry goes, by whichever of
//! [`Set::remove`] and the file's end comes first. I5: an entry is among the asked ones if its file
//! is a signalfd or a set that has asked ones. Locks: a wait queue's lock, then a set's items, then
//! nothing; the queue of an inner set, then that of an outer one. `NESTING`, then an outer set's
//! `control`, then an inner one's: these sleep, and come first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;

use linux_raw_sys::general as abi;
use spin::Once;

use super::file::File;
use super::inode::*;
use crate::charge::{self, Charge};
use crate::devnum::major_and_minor;
use crate::errno::*;
use crate::fs::ops::*;
use crate::mem::fault::Room;
use crate::sched::{self, Nanos};
use crate::sync::{wait_any, Mutex, SpinLock, WaitQueue, Watcher, Woken};
use crate::upcalls;

/// The most files in one set.
const MAX_ITEMS: usize = 65536;

/// Links in a row of sets that are in each other, at most: as on Linux.
const MAX_NESTS: usize = 4;
/// Ways up from a set to sets that it is in, at most.
const MAX_ABOVE: usize = 16;
/// Entries of sets that a file has at most while one of these sets is in others.
const MAX_SHARED: usize = 64;
/// Entries below a set that is put in another one, at most: those of two full sets.
const MAX_BELOW: usize = 2 * MAX_ITEMS;

/// Held by a thread that puts a set in a set, or a file in a set that is in others.
static NESTING: Mutex<()> = Mutex::new(());

/// What may be asked for together with `EPOLLEXCLUSIVE`.
const EXCLUSIVE: u32 = abi::EPOLLIN
    | abi::EPOLLOUT
    | abi::EPOLLERR
    | abi::EPOLLHUP
    | abi::EPOLLWAKEUP
    | abi::EPOLLET
    | abi::EPOLLEXCLUSIVE;

/// Events that no entry can be without.
const ALWAYS: u32 = abi::EPOLLERR | abi::EPOLLHUP;

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
    /// The events that a thread wants to wait for alone; none, if it doesn't.
    exclusive: u32,
}

impl Watcher for Watch {
    /// An entry that is exclusive hears nothing once a thread was woken for its events elsewhere.
    fn notice(&self, served: u32) -> u32 {
        let is_served = self.exclusive != 0 && self.exclusive & !served == 0;
        if !is_served && self.set.put(self.key) {
            self.exclusive
        } else {
            0
        }
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
    /// How often its file was woken.
    news: u32,
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
    /// Puts an entry at the end of the list, whose file was woken so often since; says whether it
    /// is new there.
    fn push(&mut self, key: Key, news: u32) -> bool {
        let last = self.last;
        let Some(entry) = self.all.get_mut(&key) else { return false };
        entry.news = entry.news.wrapping_add(news);
        if entry.place.is_some() {
            return false;
        }
        entry.place = Some(Place { previous: last, next: None });
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

    /// Moves an entry of the list to its end.
    fn turn(&mut self, key: Key) {
        if self.last != Some(key) {
            self.unlist(key);
            self.push(key, 0);
        }
    }

    /// The first of the list: what to look at. What is found moves it.
    fn first(&self) -> Option<Look> {
        self.look(self.first?)
    }

    fn look(&self, key: Key) -> Option<Look> {
        let Entry { watch, events, news, .. } = self.all.get(&key)?;
        Some(Look { key, file: watch.file.clone(), events: *events, news: *news })
    }

    /// An entry was found not to be ready: it leaves the list, unless its file was woken since.
    fn idle(&mut self, look: &Look) {
        let Some(entry) = self.all.get(&look.key).filter(|entry| entry.place.is_some()) else {
            return;
        };
        if (entry.events, entry.news) == (look.events, look.news) {
            self.unlist(look.key);
        } else {
            self.turn(look.key);
        }
    }

    /// An entry was found ready as it was looked at: what to report. Nothing if it has changed
    /// since, or another thread has reported it for good.
    fn report(&mut self, look: &Look) -> Option<u64> {
        let is_asked = self.asked.contains(&look.key);
        let entry = self.all.get_mut(&look.key).filter(|entry| entry.place.is_some())?;
        if entry.events != look.events {
            self.turn(look.key);
            return None;
        }
        let data = entry.data;
        let is_edge = entry.events & abi::EPOLLET != 0 && !is_asked && entry.news == look.news;
        if entry.events & abi::EPOLLONESHOT != 0 {
            // The entry takes no part until it is set again.
            entry.events &= MODES;
            self.unlist(look.key);
        } else if is_edge {
            self.unlist(look.key);
        } else {
            self.turn(look.key);
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
    news: u32,
}

impl Look {
    /// What has happened that is waited for.
    fn poll(&self) -> u32 {
        if self.events & !MODES == 0 {
            return 0;
        }
        self.file.upgrade().map_or(0, |file| file.poll() & self.events)
    }
}

/// A set of files.
struct Set {
    items: SpinLock<Items>,
    /// An entry has come on the list: for threads that take what is there, one each.
    waiters: WaitQueue,
    /// The same, for those that only look: `poll`, and other sets.
    lookers: WaitQueue,
    /// One call changes the set at a time.
    control: Mutex<()>,
    /// What the set is open as.
    file: Once<Weak<File>>,
}

impl Set {
    /// Puts an entry on the list. Whether that has woken a thread that takes it: a thread that only
    /// looks, or waits in a set around this one, may not.
    fn put(&self, key: Key) -> bool {
        let is_new = self.items.lock().push(key, 1);
        if self.lookers.is_any() {
            self.lookers.wake_all();
        }
        is_new && self.waiters.is_any() && self.waiters.wake_first(|_| ())
    }

    /// Takes an entry out; says whether there was one.
    fn remove(&self, key: Key) -> bool {
        let Some(entry) = self.items.lock().remove(key) else { return false };
        if let Some(file) = entry.watch.file.upgrade() {
            file.unwatch(&entry.watch);
        }
        true
    }

    /// Calls `each` with what is on the list, what has to be asked among it, until it has enough.
    fn look_at_all(&self, mut each: impl FnMut(&Look) -> bool) {
        // What comes on the list meanwhile is not looked at twice.
        let listed = self.items.lock().listed;
        for _ in 0..listed {
            let look = self.items.lock().first();
            let Some(look) = look else { break };
            if !each(&look) || is_cut_short() {
                return;
            }
        }
    }

    /// Puts what has to be asked on the list, where it has its turn among the others.
    fn list_asked(&self) {
        let mut from = (i32::MIN, 0);
        while !is_cut_short() {
            let mut items = self.items.lock();
            let Some(&key) = items.asked.range(from..).next() else { return };
            items.push(key, 0);
            from = (key.0, key.1 + 1);
        }
    }

    /// Whether an entry is ready. Those that are found idle on the way leave the list.
    fn is_ready(&self) -> bool {
        self.list_asked();
        loop {
            let look = self.items.lock().first();
            let Some(look) = look else { return false };
            if look.poll() != 0 {
                return true;
            }
            self.items.lock().idle(&look);
            if is_cut_short() {
                return false;
            }
        }
    }

    /// At most `max` files that are ready.
    fn collect(&self, max: usize) -> Result<Vec<Event>> {
        let mut ready = Vec::new();
        self.list_asked();
        let most = self.items.lock().listed;
        ready.room(most.min(max))?;
        self.look_at_all(|look| {
            let events = look.poll();
            if events == 0 {
                self.items.lock().idle(look);
                return true;
            }
            let data = self.items.lock().report(look);
            if let Some(data) = data {
                ready.push(Event { events, data, key: look.key, wanted: look.events });
            }
            if events & ALWAYS != 0 && look.events & abi::EPOLLEXCLUSIVE != 0 {
                tell_all(look);
            }
            ready.len() < ready.capacity().min(max)
        });
        let is_over = !ready.is_empty() || sched::is_leaving();
        if is_over && self.items.lock().first.is_some() {
            // Another thread can take what is left.
            self.waiters.wake_one();
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

/// A file that threads wait for one at a time is at its end, which concerns all of them.
fn tell_all(look: &Look) {
    let watchers = look.file.upgrade().and_then(|file| file.watchers().ok());
    for watch in watchers.iter().flatten().filter(|watch| watch.exclusive != 0) {
        if watch.set.waiters.is_any() || watch.set.lookers.is_any() {
            watch.set.put(watch.key);
        }
        sched::work_done(LOOK);
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
    Unknown,
}

/// What a wait reports.
pub struct Event {
    pub events: u32,
    pub data: u64,
    key: Key,
    /// The mask of the entry before the report.
    wanted: u32,
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
        let set = Arc::new(Set {
            items: SpinLock::new(items),
            waiters: WaitQueue::new(),
            lookers: WaitQueue::new(),
            control: Mutex::new(()),
            file: Once::new(),
        });
        let epoll = Arc::new(Epoll { set: set.clone(), ino: super::new_ino(), _charge: charge });
        let file = File::anonymous(epoll, abi::O_RDWR)?;
        set.file.call_once(|| Arc::downgrade(&file));
        Ok(file)
    }

    fn behind(file: &File) -> Option<&Epoll> {
        downcast_file::<Epoll>(file.io())
    }

    /// The set behind an open file.
    pub fn of(file: &File) -> Result<&Epoll> {
        Self::behind(file).ok_or(EINVAL)
    }

    /// Changes the set behind `epoll`.
    ///
    /// # Errors
    /// As `epoll_ctl` has them.
    pub fn control(epoll: &Arc<File>, fd: i32, file: &Arc<File>, change: Control) -> Result<()> {
        if !file.can_be_watched() {
            return Err(EPERM);
        }
        if Arc::ptr_eq(epoll, file) {
            return Err(EINVAL);
        }
        let set = &Self::of(epoll)?.set;
        let key = (fd, Arc::as_ptr(file).addr());
        match change {
            Control::Add { events, data } => {
                let is_exclusive = events & abi::EPOLLEXCLUSIVE != 0;
                if is_exclusive && (Self::behind(file).is_some() || events & !EXCLUSIVE != 0) {
                    return Err(EINVAL);
                }
                set.add(key, file, events | ALWAYS, data)?;
            }
            Control::Modify { events, data } => {
                if events & abi::EPOLLEXCLUSIVE != 0 {
                    return Err(EINVAL);
                }
                let _turn = set.control.lock();
                let mut items = set.items.lock();
                let entry = items.all.get_mut(&key).ok_or(ENOENT)?;
                if entry.watch.exclusive != 0 {
                    return Err(EINVAL);
                }
                (entry.events, entry.data) = (events | ALWAYS, data);
            }
            Control::Remove => {
                let _turn = set.control.lock();
                return set.remove(key).then_some(()).ok_or(ENOENT);
            }
            Control::Unknown => return Err(EINVAL),
        }
        // The file may be ready now.
        set.put(key);
        Ok(())
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
            let queues = [&self.set.waiters, &process.signal_readers];
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

    /// Events could not be given to the program: what was reported is taken back.
    pub fn take_back(&self, events: &[Event]) {
        for event in events {
            let mut items = self.set.items.lock();
            match items.all.get_mut(&event.key) {
                Some(entry) if entry.events == event.wanted & MODES => entry.events = event.wanted,
                _ => {}
            }
            items.push(event.key, 0);
        }
        // Another thread can take it.
        self.set.waiters.wake_one();
    }
}

/// Sets in sets.
impl Set {
    fn add(self: &Arc<Set>, key: Key, file: &Arc<File>, events: u32, data: u64) -> Result<()> {
        let inner = Epoll::behind(file).map(|epoll| &epoll.set);
        let mut nesting = None;
        if inner.is_some() || file.watch_count() + 1 >= MAX_SHARED {
            nesting = Some(NESTING.lock());
        }
        let mut turn = self.control.lock();
        if nesting.is_none() && self.is_in_others() {
            drop(turn);
            nesting = Some(NESTING.lock());
            turn = self.control.lock();
        }
        if nesting.is_some() {
            match inner {
                Some(inner) => self.may_hold(inner)?,
                None => self.may_share(file)?,
            }
        }
        // No file comes into the inner set that has not been looked at.
        let inner_turn = inner.map(|inner| inner.control.lock());
        self.insert(key, file, events, data)?;
        if nesting.is_some() && file.io().depends_on_caller() {
            self.ask_above().inspect_err(|_| _ = self.remove(key))?;
        }
        drop((inner_turn, turn, nesting));
        Ok(())
    }

    fn insert(self: &Arc<Set>, key: Key, file: &Arc<File>, events: u32, data: u64) -> Result<()> {
        let wanted = events & (abi::EPOLLIN | abi::EPOLLOUT);
        let exclusive = match events & abi::EPOLLEXCLUSIVE {
            0 => 0,
            _ if wanted == 0 => ALWAYS,
            _ => wanted,
        };
        let uid = charge::account().user().uid();
        let set = self.clone();
        let watch = Arc::new(Watch { set, key, file: Arc::downgrade(file), uid, exclusive });
        {
            let mut items = self.items.lock();
            if items.all.contains_key(&key) {
                return Err(EEXIST);
            }
            if items.all.len() >= MAX_ITEMS {
                return Err(ENOSPC);
            }
            items.charge.grow(ITEM).map_err(|_| ENOSPC)?;
            let entry = Entry { watch: watch.clone(), events, data, place: None, news: 0 };
            items.all.insert(key, entry);
        }
        file.watch(&watch).inspect_err(|_| _ = self.remove(key))?;
        if file.io().depends_on_caller() {
            let mut items = self.items.lock();
            if items.all.contains_key(&key) {
                items.asked.insert(key);
            }
        }
        Ok(())
    }

    /// The entries of other sets that the set is in.
    fn entries_above(&self) -> Result<Vec<Arc<Watch>>> {
        match self.file.get().and_then(Weak::upgrade) {
            Some(file) => file.watchers(),
            None => Ok(Vec::new()),
        }
    }

    fn is_in_others(&self) -> bool {
        let file = self.file.get().and_then(Weak::upgrade);
        file.is_some_and(|file| file.watch_count() != 0)
    }

    /// Calls `each` with the entries of the set in others, and of these in others; how many ways up
    /// there are, and how many links the longest has.
    ///
    /// # Errors
    /// `EINVAL`: there are more than may be.
    fn climb(self: &Arc<Set>, mut each: impl FnMut(&Watch)) -> Result<(usize, usize)> {
        let (mut ways, mut longest) = (0, 0);
        let mut left = Vec::from([(self.clone(), 0)]);
        while let Some((set, links)) = left.pop() {
            for watch in set.entries_above()? {
                ways += 1;
                longest = longest.max(links + 1);
                if ways > MAX_ABOVE {
                    return Err(EINVAL);
                }
                each(&watch);
                left.push((watch.set.clone(), links + 1));
            }
        }
        Ok((ways, longest))
    }

    /// Whether a file that is no set may be in this one: a file in a set that is in others is in
    /// few sets.
    fn may_share(&self, file: &File) -> Result<()> {
        if file.watch_count() < MAX_SHARED {
            return Ok(());
        }
        let is_nested = |watch: &Arc<Watch>| watch.set.is_in_others();
        if self.is_in_others() || file.watchers()?.iter().any(is_nested) {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Whether another set may be in this one.
    ///
    /// # Errors
    /// `ELOOP`: this is in the other one, or the row of sets would be too long; `EINVAL`: there
    /// would be too many ways up, or too much is in the other one.
    fn may_hold(self: &Arc<Set>, inner: &Arc<Set>) -> Result<()> {
        let (ways, links_above) = self.climb(|_| ())?;
        let mut ways_to = BTreeMap::<_, usize>::new();
        let mut looks = 0;
        let mut left = Vec::from([(inner.clone(), 0)]);
        while let Some((set, links)) = left.pop() {
            if Arc::ptr_eq(&set, self) || links_above + 1 + links > MAX_NESTS {
                return Err(ELOOP);
            }
            // Each way down to a set is a way up from it.
            let many = ways_to.entry(Arc::as_ptr(&set)).or_default();
            *many += 1;
            if set.climb(|_| ())?.0 + *many * (1 + ways) > MAX_ABOVE {
                return Err(EINVAL);
            }
            let mut from = (i32::MIN, 0);
            while let Some((key, file)) = set.next_item(from) {
                from = (key.0, key.1 + 1);
                looks += 1;
                if looks > MAX_BELOW || is_cut_short() {
                    return Err(EINVAL);
                }
                let Some(file) = file.upgrade() else { continue };
                match Epoll::behind(&file) {
                    Some(below) => {
                        left.room(1)?;
                        left.push((below.set.clone(), links + 1));
                    }
                    None if file.watch_count() > MAX_SHARED => return Err(EINVAL),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn next_item(&self, from: Key) -> Option<(Key, Weak<File>)> {
        let items = self.items.lock();
        items.all.range(from..).next().map(|(&key, entry)| (key, entry.watch.file.clone()))
    }

    /// The set has entries that have to be asked, so those that it is in have to ask it (I5).
    fn ask_above(self: &Arc<Set>) -> Result<()> {
        let ask = |watch: &Watch| {
            let mut items = watch.set.items.lock();
            if items.all.contains_key(&watch.key) {
                items.asked.insert(watch.key);
            }
        };
        self.climb(ask).map(|_| ())
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
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::Unnamed, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for Epoll {
    /// From a descriptor on; 0 is the first one too.
    fn describe(&self, from: u64, out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        /// Entries of one descriptor that are shown: those of files that were open by it before.
        const OF_ONE: usize = 16;
        let from = i32::try_from(from).map_err(|_| EINVAL)?;
        let mut shown: [Option<(u32, u64, Weak<File>)>; OF_ONE] = [const { None }; OF_ONE];
        let fd = {
            let items = self.set.items.lock();
            let Some((&(fd, _), _)) = items.all.range((from, 0)..).next() else { return Ok(None) };
            let all = items.all.range((fd, 0)..=(fd, usize::MAX));
            for (place, (_, entry)) in shown.iter_mut().zip(all) {
                *place = Some((entry.events, entry.data, entry.watch.file.clone()));
            }
            fd
        };
        for (events, data, file) in shown.into_iter().flatten() {
            let Some(file) = file.upgrade() else { continue };
            let (stat, pos) = (file.inode().stat(), file.position());
            let (major, minor) = major_and_minor(stat.dev);
            let (ino, dev) = (stat.ino, major << 20 | minor);
            let _ = write!(out, "tfd: {fd:8} events: {events:8x} data: {data:16x} ");
            let _ = writeln!(out, " pos:{pos} ino:{ino:x} sdev:{dev:x}");
        }
        Ok(Some(fd as u64 + 1))
    }

    fn poll(&self, _file: &File) -> u32 {
        if self.set.is_ready() {
            abi::POLLIN | abi::POLLRDNORM
        } else {
            0
        }
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.set.lookers);
    }

    fn depends_on_caller(&self) -> bool {
        !self.set.items.lock().asked.is_empty()
    }
}
