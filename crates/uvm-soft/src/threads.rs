//! The lock and the sleep behind the machine, for threads of std and, by feature, for tasks of
//! shuttle.
//!
//! The locks inside this crate (tables, frames' bytes) are std's under both: they are held for a
//! few instructions, never while a VM lock is taken, so a schedule checker need not know them.
//!
//! The only unsafe code of the crate is here: `RawLock` is an unsafe trait.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use machine::shared::Row;
use machine::{Channel, RawLock, Ticket};
use parking_lot::lock_api::{RawMutex as _, RawMutexTimed as _};

use crate::heap::{self, host};

/// What a machine's threads are.
///
/// ```
/// use uvm_soft::{StdThreads, Threads};
/// StdThreads::set_cpu(1);
/// assert_eq!(StdThreads::cpu(), 1);
/// ```
pub trait Threads: Send + Sync + 'static {
    /// The lock behind `Machine::Lock`.
    type Lock: RawLock;
    /// Where threads sleep.
    type Sleepers: Sleepers;
    /// The simulated CPU that the calling thread runs on.
    fn cpu() -> usize;
    /// Moves the calling thread to a simulated CPU.
    fn set_cpu(cpu: usize);
    /// A point between two steps of the machine at which another thread may run.
    fn pause() {}
}

/// Channels and the threads that wait on them.
///
/// ```
/// use machine::Channel;
/// use uvm_soft::{Sleepers, StdThreads, Threads};
/// let sleepers = <StdThreads as Threads>::Sleepers::default();
/// let ticket = sleepers.ticket(Channel(7));
/// sleepers.wake(Channel(7));
/// sleepers.wait(ticket, &|| false); // Woken since: it returns at once.
/// ```
pub trait Sleepers: Send + Sync + Default {
    /// The channel as it is now.
    fn ticket(&self, channel: Channel) -> Ticket;
    /// Sleeps until the channel has been woken since the ticket, or it is enough.
    fn wait(&self, ticket: Ticket, is_enough: &dyn Fn() -> bool);
    /// Wakes all threads that wait on the channel.
    fn wake(&self, channel: Channel);
    /// Wakes the thread that has waited longest on the channel, or more.
    fn wake_one(&self, channel: Channel) {
        self.wake(channel);
    }
    /// It may be enough now: all sleepers look.
    fn look_again(&self);
}

/// How long a thread may wait before the machine says that it waits in vain.
const PATIENCE: Duration = Duration::from_secs(300);

/// Threads of the host.
///
/// ```
/// use uvm_soft::{Config, SoftMachine, StdThreads};
/// let machine = SoftMachine::<StdThreads>::with_threads(&Config::default());
/// # let _ = machine;
/// ```
pub struct StdThreads;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

impl Threads for StdThreads {
    type Lock = StdLock;
    type Sleepers = StdSleepers;

    fn cpu() -> usize {
        CPU.get()
    }

    fn set_cpu(cpu: usize) {
        CPU.set(cpu);
    }
}

/// A lock of `parking_lot`.
///
/// ```
/// use machine::RawLock;
/// let lock = <<uvm_soft::StdThreads as uvm_soft::Threads>::Lock as RawLock>::new();
/// lock.lock();
/// assert!(!lock.try_lock());
/// ```
pub struct StdLock(parking_lot::RawMutex);

// SAFETY: `parking_lot::RawMutex` is a mutual exclusion lock with the ordering that `RawLock` asks
// for.
unsafe impl RawLock for StdLock {
    fn new() -> Self {
        StdLock(parking_lot::RawMutex::INIT)
    }

    #[cfg_attr(feature = "__lines", track_caller)]
    fn lock(&self) {
        #[cfg(feature = "__lines")]
        machine::lines::touch(&self.0, true);
        {
            let _host = host();
            assert!(self.0.try_lock_for(PATIENCE), "a lock is held for {PATIENCE:?}: a deadlock?");
        }
        heap::locked();
    }

    fn try_lock(&self) -> bool {
        let is_locked = self.0.try_lock();
        if is_locked {
            heap::locked();
        }
        is_locked
    }

    unsafe fn unlock(&self) {
        {
            let _host = host();
            // SAFETY: the caller holds the lock (this function's contract).
            unsafe { self.0.unlock() }
        }
        heap::unlocked();
    }

    fn rows() -> &'static [Row] {
        &*ROWS
    }

    fn cpu() -> usize {
        CPU.get() % ROWS.len()
    }

    fn wait_until(done: impl FnMut() -> bool) {
        wait_until(done);
    }
}

/// Waits until `done`, which is asked time and again; what is never done ends in a panic, so that a
/// test that hangs has a name.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
/// let done = AtomicBool::new(false);
/// std::thread::scope(|threads| {
///     threads.spawn(|| done.store(true, SeqCst));
///     uvm_soft::wait_until(|| done.load(SeqCst));
/// });
/// ```
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: a deadlock?");
        std::thread::yield_now();
    }
}

/// What threads of all machines read; few, so that locks open soon.
static ROWS: LazyLock<[Row; CPUS]> = LazyLock::new(|| std::array::from_fn(|_| Row::new()));
const CPUS: usize = if cfg!(feature = "__lines") { 64 } else { 4 };

/// Sleeping threads of the host.
///
/// ```
/// use machine::Channel;
/// use uvm_soft::{Sleepers, StdThreads, Threads};
/// let sleepers = <StdThreads as Threads>::Sleepers::default();
/// let ticket = sleepers.ticket(Channel(7));
/// sleepers.wake(Channel(7));
/// sleepers.wait(ticket, &|| false); // Woken since: it returns at once.
/// ```
#[derive(Default)]
pub struct StdSleepers {
    sequences: Mutex<HashMap<Channel, u64>>,
    woken: Condvar,
}

impl Sleepers for StdSleepers {
    fn ticket(&self, channel: Channel) -> Ticket {
        let sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        Ticket { channel, sequence: sequences.get(&channel).copied().unwrap_or(0) }
    }

    fn wait(&self, ticket: Ticket, is_enough: &dyn Fn() -> bool) {
        let sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let (_sequences, timeout) = self
            .woken
            .wait_timeout_while(sequences, PATIENCE, |s| {
                s.get(&ticket.channel).copied().unwrap_or(0) == ticket.sequence && !is_enough()
            })
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "no thread woke {ticket:?} for {PATIENCE:?}");
    }

    fn wake(&self, channel: Channel) {
        *self
            .sequences
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(channel)
            .or_insert(0) += 1;
        self.woken.notify_all();
    }

    fn look_again(&self) {
        let _sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        self.woken.notify_all();
    }
}

#[cfg(feature = "shuttle")]
pub(crate) mod shuttle_threads {
    //! Tasks under shuttle: every lock and sleep is a point at which it may switch.

    use crate::heap::{self, aside};

    use super::{Channel, HashMap, RawLock, Row, Sleepers, Threads, Ticket};
    use shuttle::sync::{Condvar, Mutex};
    use std::cell::Cell;
    use std::collections::VecDeque;

    /// Tasks of a shuttle test.
    pub struct ShuttleThreads;

    shuttle::thread_local! {
        static CPU: Cell<usize> = Cell::new(0);
    }

    impl Threads for ShuttleThreads {
        type Lock = ShuttleLock;
        type Sleepers = ShuttleSleepers;

        fn cpu() -> usize {
            aside(|| CPU.with(Cell::get))
        }

        fn set_cpu(cpu: usize) {
            aside(|| CPU.with(|c| c.set(cpu)));
        }

        fn pause() {
            // An access to an atomic is a place to switch; a yield would also be a wish to, and
            // cost priority.
            aside(|| {
                shuttle::sync::atomic::AtomicBool::new(false)
                    .load(std::sync::atomic::Ordering::SeqCst)
            });
        }
    }

    /// A lock of the host's, as small as a machine's must be.
    pub struct ShuttleLock(Box<Flag>);

    /// A flag under shuttle's mutex, with its condition variable.
    struct Flag {
        taken: Mutex<bool>,
        free: Condvar,
    }

    // SAFETY: `taken` goes from false to true under a mutex only, in `lock` and `try_lock`, and
    // back only in `unlock`, whose caller is the one holder; the mutex orders the holders' memory
    // accesses.
    unsafe impl RawLock for ShuttleLock {
        fn new() -> Self {
            aside(|| ShuttleLock(Box::new(Flag { taken: Mutex::new(false), free: Condvar::new() })))
        }

        fn lock(&self) {
            aside(|| {
                let mut taken = self.0.taken.lock().unwrap();
                while *taken {
                    taken = self.0.free.wait(taken).unwrap();
                }
                *taken = true;
            });
        }

        fn try_lock(&self) -> bool {
            aside(|| !std::mem::replace(&mut *self.0.taken.lock().unwrap(), true))
        }

        unsafe fn unlock(&self) {
            aside(|| {
                *self.0.taken.lock().unwrap() = false;
                self.0.free.notify_one();
            });
        }

        fn rows() -> &'static [Row] {
            rows()
        }

        fn cpu() -> usize {
            // Between two looks at a lock another thread may close it.
            ShuttleThreads::pause();
            ShuttleThreads::cpu() % rows().len()
        }

        fn wait_until(mut done: impl FnMut() -> bool) {
            while !done() {
                aside(shuttle::thread::yield_now);
            }
        }
    }

    /// What the tasks of a test read. Each test has its own, as its host thread has: an execution
    /// that is abandoned leaves names of locks behind, and another test may have a lock at such an
    /// address, for whose readers it would wait for ever.
    fn rows() -> &'static [Row] {
        thread_local! {
            static ROWS: &'static [Row] = {
                let _host = heap::host();
                Box::leak(Box::new([Row::new(), Row::new()]))
            };
        }
        ROWS.with(|rows| *rows)
    }

    /// Sleeping tasks. One wake-up of one task wakes just one, the first that came: what a kernel
    /// does, and the harder case.
    #[derive(Default)]
    pub struct ShuttleSleepers {
        state: Mutex<Asleep>,
        woken: Condvar,
    }

    #[derive(Default)]
    struct Asleep {
        sequences: HashMap<Channel, u64>,
        /// The sleeping tasks with their channels, in the order in which they came.
        queue: VecDeque<(u64, Channel)>,
        next: u64,
    }

    impl Asleep {
        fn sequence(&self, channel: Channel) -> u64 {
            self.sequences.get(&channel).copied().unwrap_or(0)
        }

        fn first(&self, is: impl Fn(&(u64, Channel)) -> bool) -> Option<usize> {
            self.queue.iter().position(is)
        }
    }

    impl Sleepers for ShuttleSleepers {
        fn ticket(&self, channel: Channel) -> Ticket {
            Ticket { channel, sequence: self.state.lock().unwrap().sequence(channel) }
        }

        fn wait(&self, ticket: Ticket, is_enough: &dyn Fn() -> bool) {
            let mut state = self.state.lock().unwrap();
            if state.sequence(ticket.channel) != ticket.sequence || is_enough() {
                return;
            }
            let me = state.next;
            state.next += 1;
            state.queue.push_back((me, ticket.channel));
            while let Some(at) = state.first(|&(who, _)| who == me) {
                if is_enough() {
                    state.queue.remove(at);
                    return;
                }
                state = self.woken.wait(state).unwrap();
            }
        }

        fn wake(&self, channel: Channel) {
            let mut state = self.state.lock().unwrap();
            *state.sequences.entry(channel).or_insert(0) += 1;
            state.queue.retain(|&(_, on)| on != channel);
            self.woken.notify_all();
        }

        fn wake_one(&self, channel: Channel) {
            let mut state = self.state.lock().unwrap();
            *state.sequences.entry(channel).or_insert(0) += 1;
            if let Some(at) = state.first(|&(_, on)| on == channel) {
                state.queue.remove(at);
            }
            self.woken.notify_all();
        }

        fn look_again(&self) {
            let _state = self.state.lock().unwrap();
            self.woken.notify_all();
        }
    }
}
