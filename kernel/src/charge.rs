//! What programs make the kernel keep: bytes of its heap and of its stacks, charged to a process
//! and to its user.
//!
//! ```text
//!   File, Pipe, Thread, ... --Charge--> Account (a process's) --> User --> all users but root
//!   a name in tmpfs, ...    --Charge------------------------------^
//! ```
//! What a program can have the kernel keep has a [`Charge`] for about so many bytes, as long as it
//! lives. Most of that memory goes with the process that made it, and is charged to the process:
//! the one that takes most is killed when memory runs out (`proc::oom`). What outlives the process
//! (names and nodes in memory, shared segments) is charged to the user alone: no process's end
//! gives it back.
//!
//! Each user may have a quarter of what was free when the first process started, all but root
//! together half, root three quarters. Beyond that the call fails by the error that Linux has for
//! it. Memory of a process itself (pages, page tables, map entries) has no such bound; it is
//! counted on request (`proc::oom`). Pages of unnamed objects (memfds, shared memory) are
//! counted by a [`Quota`] for each process within one for its user, and all users but root may have
//! half of memory and swap so: beyond that `write` and `fallocate` of a memfd say ENOSPC, a store
//! to one or to a segment gets SIGBUS, and `shmget` of a segment that could never be filled says
//! ENOSPC. Memory in queues of pipes and sockets is counted by [`Account::changed`]; memory on its
//! way between them, and what is exported, has a [`Charge`].
//!
//! What the pages of unnamed objects are listed in counts by their quota, and is among what is
//! kept.
//!
//! I1: an account's sum is that of its charges; a user's that of accounts and charges that refer to
//! it. I2: a process that changes its real user gets a new account and takes its threads along;
//! other charges stay with the user who made them.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use machine::PAGE_SIZE;

use crate::lock::{Once, SpinLock};
use crate::mem::frames::{self, Quota};
use crate::mem::pools::{self, Pool};
use crate::sched;

/// The part of memory that pages in one user's queues may take.
const QUEUES: usize = 8;

/// Bytes that root, another user, and all others together may have kept; no bound before [`begin`].
static ROOT: AtomicUsize = AtomicUsize::new(usize::MAX);
static EACH: AtomicUsize = AtomicUsize::new(usize::MAX);
static OTHERS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// What all users but root have.
static KEPT_BY_OTHERS: AtomicUsize = AtomicUsize::new(0);

/// The bound is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

static USERS: SpinLock<Option<HashMap<u32, Weak<User>>>> = SpinLock::new(None);

/// Pages of unnamed objects of all users but root.
fn shared_memory() -> &'static Arc<Quota> {
    static SHARED: Once<Arc<Quota>> = Once::new();
    SHARED.call_once(|| Arc::new(Quota::new(usize::MAX)))
}

/// One user's totals.
pub struct User {
    uid: u32,
    heap_pool: Pool,
    kept: AtomicUsize,
    /// Bytes of memory in queues of pipes and sockets.
    queued: AtomicUsize,
    /// Processes and threads.
    tasks: AtomicUsize,
    /// Signals with their details in queues.
    signals: AtomicUsize,
    /// Pages that pipes may hold.
    pipe_pages: AtomicUsize,
    /// Open files.
    files: AtomicUsize,
    /// Pages of segments that are locked in memory.
    locked: AtomicUsize,
    /// Pseudo-terminals.
    terminals: AtomicUsize,
    /// Nodes of the host's folders.
    host_nodes: AtomicUsize,
    owned_waits: AtomicUsize,
    /// Pages of unnamed objects.
    memory: Arc<Quota>,
    /// What its processes had together when one had to go last (`proc::oom`).
    pub judged: AtomicI64,
    /// Pages of the heap that it held then beside what was counted.
    pub idle: AtomicI64,
}

impl Drop for User {
    fn drop(&mut self) {
        pools::leave(self.heap_pool);
    }
}

/// One process's totals.
pub struct Account {
    user: Arc<User>,
    kept: AtomicUsize,
    /// Bytes of memory in queues that it made.
    queued: AtomicUsize,
    /// Pages of unnamed objects that it made.
    memory: Arc<Quota>,
}

/// Adds to a sum that stays within a bound. What is refused no other charge sees.
fn add_within(sum: &AtomicUsize, bytes: usize, most: usize) -> Result<(), Full> {
    let add = |sum: usize| sum.checked_add(bytes).filter(|&sum| sum <= most);
    sum.fetch_update(Relaxed, Relaxed, add).map(|_| ()).map_err(|_| Full)
}

/// Pages of all areas that are swapped on.
static SWAP: AtomicUsize = AtomicUsize::new(0);

/// The areas that are swapped on have so many pages from now on.
pub fn set_swap(pages: u32) {
    SWAP.store(pages as usize, Relaxed);
}

/// A quarter of the `free` bytes may be each user's from now on.
pub fn begin(free: usize) {
    EACH.store(free / 4, Relaxed);
    ROOT.store(free / 4 * 3, Relaxed);
    OTHERS.store(free / 2, Relaxed);
}

impl User {
    /// The totals of a user.
    pub fn of(uid: u32) -> Arc<User> {
        let mut users = USERS.lock();
        let users = users.get_or_insert_with(HashMap::new);
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::new(User {
            uid,
            heap_pool: pools::join(uid),
            kept: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            signals: AtomicUsize::new(0),
            pipe_pages: AtomicUsize::new(0),
            files: AtomicUsize::new(0),
            locked: AtomicUsize::new(0),
            terminals: AtomicUsize::new(0),
            host_nodes: AtomicUsize::new(0),
            owned_waits: AtomicUsize::new(0),
            memory: Arc::new(if uid == 0 {
                Quota::new(usize::MAX)
            } else {
                Quota::within(shared_memory().clone())
            }),
            judged: AtomicI64::new(0),
            idle: AtomicI64::new(0),
        });
        users.retain(|_, user| user.strong_count() > 0);
        users.insert(uid, Arc::downgrade(&user));
        user
    }

    /// The user's number.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Its pool of the heap.
    pub fn heap_pool(&self) -> Pool {
        self.heap_pool
    }

    /// Pages of the heap that hold what is kept for it, whatever else they hold.
    pub fn heap_pages(&self) -> usize {
        pools::pages(self.heap_pool)
    }

    /// Bytes that are kept for the user.
    pub fn kept(&self) -> usize {
        self.kept.load(Relaxed) + self.memory.heap()
    }

    fn take(&self, bytes: usize) -> Result<(), Full> {
        let is_root = self.uid == 0;
        let most = if is_root { &ROOT } else { &EACH };
        add_within(&self.kept, bytes, most.load(Relaxed).saturating_sub(self.memory.heap()))?;
        let all =
            if is_root { Ok(()) } else { add_within(&KEPT_BY_OTHERS, bytes, OTHERS.load(Relaxed)) };
        all.inspect_err(|_| _ = self.kept.fetch_sub(bytes, Relaxed))
    }

    /// As [`take`](Self::take), for what outlives processes: no process's end gives back the pages
    /// that it leaves partly free, so these have a bound, too, somewhat beyond that of what is on
    /// them.
    fn take_lasting(&self, bytes: usize) -> Result<(), Full> {
        let most = EACH.load(Relaxed) / PAGE_SIZE;
        if self.uid != 0 && self.heap_pages() > most + most / 4 {
            return Err(Full);
        }
        self.take(bytes)
    }

    fn give(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Relaxed);
        if self.uid != 0 {
            KEPT_BY_OTHERS.fetch_sub(bytes, Relaxed);
        }
    }

    /// Whether the user's queues have all that they may.
    pub fn is_full(&self) -> bool {
        let pages = frames::table().map_or(0, |frames| frames.total());
        self.queued.load(Relaxed) >= pages / QUEUES * PAGE_SIZE
    }

    /// What counts the pages of objects that outlive the process that made them.
    pub fn memory(&self) -> &Arc<Quota> {
        let total = frames::table().map_or(0, |frames| frames.total());
        // As a tmpfs on Linux: no process's end gives back what has a name, so half is for private
        // memory.
        let half = (total + SWAP.load(Relaxed)) / 2;
        shared_memory().set_most(half.saturating_sub(shared_memory().heap().div_ceil(PAGE_SIZE)));
        &self.memory
    }

    /// Whether one object of the user's may have so many pages, if no other user has any.
    pub fn may_fill(&self, pages: u64) -> bool {
        self.memory();
        self.uid == 0 || pages <= shared_memory().most() as u64
    }

    /// Pages of all that is kept for the user, of unnamed objects, and of queues.
    pub fn pages(&self) -> usize {
        (self.kept() + self.queued.load(Relaxed)) / PAGE_SIZE + self.memory.used()
    }

    /// How many of something the user has.
    pub fn count(&self, what: Counted) -> usize {
        self.counter(what).load(Relaxed)
    }

    fn counter(&self, what: Counted) -> &AtomicUsize {
        match what {
            Counted::Tasks => &self.tasks,
            Counted::Signals => &self.signals,
            Counted::PipePages => &self.pipe_pages,
            Counted::Files => &self.files,
            Counted::LockedPages => &self.locked,
            Counted::Terminals => &self.terminals,
            Counted::HostNodes => &self.host_nodes,
            Counted::OwnedWaits => &self.owned_waits,
        }
    }
}

impl Account {
    /// An account for a process of a user.
    pub fn new(user: Arc<User>) -> Arc<Account> {
        let memory = Arc::new(Quota::within(user.memory.clone()));
        Arc::new(Account { user, kept: AtomicUsize::new(0), queued: AtomicUsize::new(0), memory })
    }

    /// The user of the account's process.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Bytes that are kept for the process.
    pub fn kept(&self) -> usize {
        self.kept.load(Relaxed) + self.memory.heap()
    }

    /// Bytes of memory in queues that the process has made.
    pub fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Pages of all that is kept for the process, of unnamed objects and queues that it has made.
    pub fn pages(&self) -> usize {
        (self.kept() + self.queued()) / PAGE_SIZE + self.memory.used()
    }

    /// A queue that the process made has changed from one size to another. What is in queues are
    /// pages that can't be paged out, loaned ones among them. From an eighth of memory on, sends to
    /// the user's sockets fail with `ENOBUFS` until something is received, and each pipe takes no
    /// more than a page.
    pub fn changed(&self, from: usize, to: usize) {
        for queued in [&self.queued, &self.user.queued] {
            if to > from {
                queued.fetch_add(to - from, Relaxed);
            } else if to < from {
                queued.fetch_sub(from - to, Relaxed);
            }
        }
    }

    /// What counts the pages of unnamed objects that the process makes.
    pub fn memory(&self) -> &Arc<Quota> {
        self.user.memory();
        &self.memory
    }

    fn take(&self, bytes: usize) -> Result<(), Full> {
        self.user.take(bytes)?;
        self.kept.fetch_add(bytes, Relaxed);
        Ok(())
    }

    fn give(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Relaxed);
        self.user.give(bytes);
    }
}

/// The account or the user that is charged.
enum Holder {
    Process(Arc<Account>),
    User(Arc<User>),
}

impl Holder {
    fn take(&self, bytes: usize) -> Result<(), Full> {
        match self {
            Holder::Process(account) => account.take(bytes),
            Holder::User(user) => user.take_lasting(bytes),
        }
    }

    /// As [`take`](Self::take), whatever they have.
    fn add(&self, bytes: usize) {
        let user = match self {
            Holder::Process(account) => {
                account.kept.fetch_add(bytes, Relaxed);
                &account.user
            }
            Holder::User(user) => user,
        };
        user.kept.fetch_add(bytes, Relaxed);
        if user.uid != 0 {
            KEPT_BY_OTHERS.fetch_add(bytes, Relaxed);
        }
    }

    fn give(&self, bytes: usize) {
        match self {
            Holder::Process(account) => account.give(bytes),
            Holder::User(user) => user.give(bytes),
        }
    }
}

/// Bytes charged to a process or a user, until this is dropped.
pub struct Charge {
    to: Holder,
    bytes: usize,
}

impl Charge {
    /// Charges a process.
    ///
    /// # Errors
    /// [`Full`].
    pub fn to(account: Arc<Account>, bytes: usize) -> Result<Charge, Full> {
        account.take(bytes)?;
        Ok(Charge { to: Holder::Process(account), bytes })
    }

    /// Charges a user for what outlives a process.
    ///
    /// # Errors
    /// [`Full`].
    pub fn lasting(uid: u32, bytes: usize) -> Result<Charge, Full> {
        let user = User::of(uid);
        user.take_lasting(bytes)?;
        Ok(Charge { to: Holder::User(user), bytes })
    }

    /// The number of the user who has it, or whose process does.
    pub fn uid(&self) -> u32 {
        match &self.to {
            Holder::Process(account) => account.user.uid,
            Holder::User(user) => user.uid,
        }
    }

    /// Charges as many bytes more.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        self.to.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Charges as many bytes as something has come to.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn set(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes > self.bytes {
            self.grow(bytes - self.bytes)?;
        }
        self.shrink_to(bytes);
        Ok(())
    }

    /// Gives back as many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        self.shrink_to(self.bytes.saturating_sub(bytes));
    }

    /// Gives back as many bytes as are charged beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.to.give(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Moves the charge to another account, whatever that has already: the process has become
    /// another user's.
    pub fn move_to(&mut self, account: &Arc<Account>) {
        let to = Holder::Process(account.clone());
        to.add(self.bytes);
        core::mem::replace(&mut self.to, to).give(self.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.to.give(self.bytes);
    }
}

/// Charges the running process; the kernel's own threads are root's.
///
/// # Errors
/// [`Full`].
pub fn take(bytes: usize) -> Result<Charge, Full> {
    Charge::to(account(), bytes)
}

/// The account of the running process.
pub fn account() -> Arc<Account> {
    static KERNEL: Once<Arc<Account>> = Once::new();
    match sched::current().user() {
        Some(thread) => thread.process.account(),
        None => KERNEL.call_once(|| Account::new(User::of(0))).clone(),
    }
}

/// What is counted by user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Processes and threads.
    Tasks,
    /// Signals with their details in queues.
    Signals,
    /// Pages that pipes may hold.
    PipePages,
    /// Open files.
    Files,
    /// Pages of segments that are locked in memory.
    LockedPages,
    /// Pseudo-terminals.
    Terminals,
    /// Nodes of the host's folders.
    HostNodes,
    /// Threads that wait for mutexes whose owners inherit their priority.
    OwnedWaits,
}

/// A number of things counted for a user, until this is dropped.
pub struct Count {
    user: Arc<User>,
    what: Counted,
    many: usize,
}

impl Count {
    /// Counts `many` for a user who has at most `most` then.
    ///
    /// # Errors
    /// [`Full`].
    pub fn of(user: Arc<User>, what: Counted, many: usize, most: usize) -> Result<Count, Full> {
        let mut count = Count { user, what, many: 0 };
        count.resize(many, most)?;
        Ok(count)
    }

    /// Raises the count for a user who has at most `most` then, or lowers it.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn resize(&mut self, many: usize, most: usize) -> Result<(), Full> {
        let counter = self.user.counter(self.what);
        if many < self.many {
            counter.fetch_sub(self.many - many, Relaxed);
        } else if many > self.many {
            let more = many - self.many;
            let grown = |now: usize| Some(now + more).filter(|&sum| sum <= most);
            counter.fetch_update(Relaxed, Relaxed, grown).map_err(|_| Full)?;
        }
        self.many = many;
        Ok(())
    }

    /// Makes the count another user's, whatever that user has.
    pub fn move_to(&mut self, user: &Arc<User>) {
        user.counter(self.what).fetch_add(self.many, Relaxed);
        self.user.counter(self.what).fetch_sub(self.many, Relaxed);
        self.user = user.clone();
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.user.counter(self.what).fetch_sub(self.many, Relaxed);
    }
}
