//! A process: what its threads share.
//!
//! Invariants: P1: `parent`, `pgid`, `sid` are written only under the table's lock (they are
//! atomics so that reading them takes none). P2: `files` and `fs` are there until the last thread
//! has left, and gone in a zombie. P3: a process is in the table from before its first thread can
//! run until it is reaped. Locks: see the parent module.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::exec::Running;
use super::limits::{Limit, Limits, INFINITY, RLIMIT_CPU, RLIMIT_NPROC};
use super::mm::Mm;
use super::oom;
use super::pidfd::PidFd;
use super::signal::{Actions, Pending, Signal};
use super::table::Pid;
use super::thread::{comm_text, Thread};
use super::timer::{self, Timers};
use super::trace::Tracees;
use super::usage::Usage;
use crate::charge::{Account, Charge, Count, Counted, User};
use crate::cred::Cred;
use crate::errno::{Result, EAGAIN, ESRCH};
use crate::fs::context::FsContext;
use crate::fs::fdtable::FdTable;
use crate::lock::Once;
use crate::sched::{self, Nanos};
use crate::sync::{SpinLock, WaitQueue};

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// By `exit`, with the low eight bits of its argument.
    Code(u8),
    /// By a signal.
    Killed(Signal),
}

impl ExitStatus {
    /// The status word of `wait4`.
    pub fn wait_word(self) -> i32 {
        match self {
            ExitStatus::Code(code) => i32::from(code) << 8,
            ExitStatus::Killed(signal) => signal.number(),
        }
    }
}

/// The threads of a process and the signals they share.
pub struct Group {
    pub threads: Vec<Arc<Thread>>,
    pub pending: Pending,
    pub actions: Arc<Actions>,
    /// Set once: the whole process is on its way out.
    pub exiting: Option<ExitStatus>,
    /// All threads but this one must go: it is in exec.
    pub exec: Option<Pid>,
    /// The signal that stopped the process; its threads wait in `Process::stop_queue`.
    pub stop: Option<Signal>,
    /// Counts the ends of stops: a thread at rest goes on when it changes.
    pub stop_epoch: u32,
    /// How many threads have come to rest for `stop`.
    pub stopped: usize,
    /// The last status word a dying thread left, for the case that all threads leave by `exit`.
    pub last_exit: ExitStatus,
    /// The name that a zombie has: its first thread's, or its last one's if that went before.
    pub comm: [u8; 16],
}

/// A change that a parent can wait for besides the end of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Stopped(Signal),
    Continued,
}

pub struct Process {
    pub pid: Pid,
    /// The parent, the process group and the session (P1).
    pub parent: AtomicI32,
    pub pgid: AtomicI32,
    pub sid: AtomicI32,
    /// The thread of the parent's that made it.
    pub made_by: AtomicI32,
    /// What the parent is sent at the end: SIGCHLD, another signal, or 0 for none.
    pub exit_signal: AtomicI32,
    pub group: SpinLock<Group>,
    /// The last change not yet waited for.
    pub change: SpinLock<Option<Change>>,
    pub files: SpinLock<Option<Arc<FdTable>>>,
    pub fs: SpinLock<Option<Arc<FsContext>>>,
    pub cred: SpinLock<Arc<Cred>>,
    pub limits: SpinLock<Arc<Limits>>,
    /// What is charged for what the process has the kernel keep.
    holdings: SpinLock<Holdings>,
    /// Its user had too many processes when it became that user's: it may not exec while that is
    /// so.
    pub exceeds_nproc: AtomicBool,
    /// `limits` has one on memory. Each new mapping looks at it, without the lock.
    limits_memory: AtomicBool,
    /// The last thread has gone and closes the files: memory behind them is not free yet.
    pub closes_files: AtomicBool,
    /// What its threads have used, those that are gone included.
    pub user_ns: AtomicU64,
    pub kernel_ns: AtomicU64,
    /// What gone threads used beside time, and what waited-for children used.
    pub usage: SpinLock<Usage>,
    pub child_usage: SpinLock<Usage>,
    pub timers: SpinLock<Option<Box<Timers>>>,
    /// A timer on CPU time is set, or time is limited (TM3): ticks look at it.
    pub counts_cpu_time: AtomicBool,
    /// Threads of this process that wait for any child of a kind, or for a tracee that is none.
    pub child_queue: WaitQueue,
    /// The node of its descriptors, once there was one.
    pub pidfd: Once<Arc<PidFd>>,
    /// Threads that wait for this very process, as its parent's or its tracer's: they don't meet
    /// threads that wait for other processes.
    pub watchers: WaitQueue,
    /// Threads of this process that wait for a signal by a file (`signalfd`).
    pub signal_readers: WaitQueue,
    /// Sleeping threads whose wake-up by a timer waits for no crowd (`sched::clock`).
    pub sleepers: AtomicUsize,
    /// Threads of others that this process traces.
    pub tracees: SpinLock<Tracees>,
    /// The first thread's tracer, if that thread has gone; 0 for none.
    pub leader_tracer: AtomicI32,
    /// Whether the memory that a thread of it left last was dumpable.
    pub was_dumpable: AtomicBool,
    /// Memory is wanted that the process has: its threads rest for no tracer at their end.
    pub must_go: AtomicBool,
    /// Stopped threads.
    pub stop_queue: WaitQueue,
    /// A thread in exec, or the last one in `exit_group`, waits here for the others to go.
    pub thread_gone: WaitQueue,
    pub started: Nanos,
    /// `exec` has been called since fork (setpgid by the parent fails then).
    pub has_execed: AtomicBool,
    pub no_new_privileges: AtomicBool,
    /// It asks for pages of the usual size alone, which it gets in any case.
    pub no_large_pages: AtomicBool,
    /// The process has asked for a record lock.
    pub has_locked: AtomicBool,
    /// Orphans among its descendants become its children.
    pub subreaper: AtomicBool,
    pub personality: AtomicU32,
    /// The niceness of its first thread, once that has ended.
    pub nice: AtomicI32,
    pub oom: oom::Adjustment,
}

/// What a process is charged by, and for itself.
struct Holdings {
    account: Arc<Account>,
    own: Holding,
}

/// What a process or another thread of it is charged for as such.
pub struct Holding {
    charge: Charge,
    count: Count,
}

impl Holding {
    /// A new process's or thread's, which is for so many bytes.
    ///
    /// # Errors
    /// `EAGAIN`: the user has as many as `most`, or all memory that it may.
    pub fn new(account: &Arc<Account>, bytes: usize, most: usize) -> Result<Holding> {
        let count =
            Count::of(account.user().clone(), Counted::Tasks, 1, most).map_err(|_| EAGAIN)?;
        let charge = Charge::to(account.clone(), bytes).map_err(|_| EAGAIN)?;
        Ok(Holding { charge, count })
    }

    /// The process has got another account.
    pub fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.move_to(account);
        self.count.move_to(account.user());
    }
}

/// What fork hands from a process to its child besides the ids.
pub struct Inherited {
    pub files: Arc<FdTable>,
    pub fs: Arc<FsContext>,
    pub cred: Arc<Cred>,
    pub limits: Arc<Limits>,
    pub actions: Arc<Actions>,
    pub account: Arc<Account>,
    pub holding: Holding,
}

impl Process {
    /// A process without threads that isn't in the table yet.
    pub fn new(pid: Pid, exit_signal: i32, from: Inherited) -> Process {
        Process {
            pid,
            parent: AtomicI32::new(0),
            pgid: AtomicI32::new(pid),
            sid: AtomicI32::new(pid),
            made_by: AtomicI32::new(0),
            exit_signal: AtomicI32::new(exit_signal),
            group: SpinLock::new(Group {
                threads: Vec::new(),
                pending: Pending::new(),
                actions: from.actions,
                exiting: None,
                exec: None,
                stop: None,
                stop_epoch: 0,
                stopped: 0,
                last_exit: ExitStatus::Code(0),
                comm: [0; 16],
            }),
            change: SpinLock::new(None),
            files: SpinLock::new(Some(from.files)),
            fs: SpinLock::new(Some(from.fs)),
            cred: SpinLock::new(from.cred),
            closes_files: AtomicBool::new(false),
            limits_memory: AtomicBool::new(from.limits.limit_memory()),
            holdings: SpinLock::new(Holdings { account: from.account, own: from.holding }),
            exceeds_nproc: AtomicBool::new(false),
            user_ns: AtomicU64::new(0),
            kernel_ns: AtomicU64::new(0),
            usage: SpinLock::new(Usage::default()),
            child_usage: SpinLock::new(Usage::default()),
            timers: SpinLock::new(None),
            counts_cpu_time: AtomicBool::new(from.limits.soft(RLIMIT_CPU) != INFINITY),
            limits: SpinLock::new(from.limits),
            child_queue: WaitQueue::new(),
            pidfd: Once::new(),
            watchers: WaitQueue::new(),
            signal_readers: WaitQueue::new(),
            sleepers: AtomicUsize::new(0),
            tracees: SpinLock::new(Tracees::new()),
            leader_tracer: AtomicI32::new(0),
            was_dumpable: AtomicBool::new(true),
            must_go: AtomicBool::new(false),
            stop_queue: WaitQueue::new(),
            thread_gone: WaitQueue::new(),
            started: crate::sched::now(),
            has_execed: AtomicBool::new(false),
            no_new_privileges: AtomicBool::new(false),
            no_large_pages: AtomicBool::new(false),
            has_locked: AtomicBool::new(false),
            subreaper: AtomicBool::new(false),
            personality: AtomicU32::new(0),
            nice: AtomicI32::new(0),
            oom: oom::Adjustment::default(),
        }
    }

    pub fn parent(&self) -> Pid {
        self.parent.load(Ordering::Relaxed)
    }

    pub fn pgid(&self) -> Pid {
        self.pgid.load(Ordering::Relaxed)
    }

    pub fn sid(&self) -> Pid {
        self.sid.load(Ordering::Relaxed)
    }

    /// The open files; `ESRCH` in a process that has ended.
    pub fn files(&self) -> Result<Arc<FdTable>> {
        self.files.lock().clone().ok_or(ESRCH)
    }

    /// Current folder, root and umask; `ESRCH` in a process that has ended.
    pub fn fs(&self) -> Result<Arc<FsContext>> {
        self.fs.lock().clone().ok_or(ESRCH)
    }

    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// The account that is charged for what the process has the kernel keep.
    pub fn account(&self) -> Arc<Account> {
        self.holdings.lock().account.clone()
    }

    /// Its real user may have changed: what the process has itself, and its threads, are that
    /// user's from now on; what it made stays with the user that it was made for.
    pub fn follow_user(&self) {
        let group = self.group.lock();
        let uid = self.cred.lock().uid;
        if self.account().user().uid() == uid {
            return;
        }
        let user = User::of(uid);
        self.exceeds_nproc.store(
            uid != 0 && user.count(Counted::Tasks) as u64 > self.limit(RLIMIT_NPROC),
            Ordering::Relaxed,
        );
        let account = Account::new(user);
        let mut holdings = self.holdings.lock();
        holdings.own.move_to(&account);
        let old = core::mem::replace(&mut holdings.account, account.clone());
        drop(holdings);
        group.threads.iter().for_each(|thread| thread.follow_account(&account));
        drop(group);
        drop(old);
    }

    /// The soft limit of a resource (`RLIMIT_*`).
    pub fn limit(&self, resource: u32) -> u64 {
        self.limits.lock().soft(resource)
    }

    /// Whether the size of its space is limited in any way.
    pub fn limits_memory(&self) -> bool {
        self.limits_memory.load(Ordering::Relaxed)
    }

    /// Changes a limit, if `may` allows it.
    ///
    /// # Errors
    /// Errors of `may`; `EINVAL` for a limit that there isn't.
    pub fn set_limit(
        &self,
        resource: u32,
        limit: Limit,
        may: impl FnOnce(Limit) -> Result<()>,
    ) -> Result<()> {
        let mut limits = self.limits.lock();
        may(limits.get(resource)?)?;
        Arc::make_mut(&mut limits).set(resource, limit)?;
        self.limits_memory.store(limits.limit_memory(), Ordering::Relaxed);
        drop(limits);
        if resource == RLIMIT_CPU {
            timer::count_cpu_time(self);
        }
        Ok(())
    }

    /// The thread that stands for the process: its first, or any that is left. The first stays in
    /// front, as threads behind it alone are moved when one goes.
    pub fn leader(&self) -> Option<Arc<Thread>> {
        self.group.lock().threads.first().cloned()
    }

    /// Calls `f` with each of its threads, the group unlocked, from the last to the first: with
    /// some of many threads twice, while others end.
    pub fn for_each_thread(&self, mut f: impl FnMut(&Arc<Thread>)) {
        const AT_ONCE: usize = 64;
        /// What is done with a thread: the work of copying so many bytes.
        const EACH: usize = 4096;
        let mut left = usize::MAX;
        while left > 0 {
            let part: [Option<Arc<Thread>>; AT_ONCE] = {
                let group = self.group.lock();
                let end = left.min(group.threads.len());
                left = end.saturating_sub(AT_ONCE);
                core::array::from_fn(|at| group.threads[left..end].get(at).cloned())
            };
            for thread in part.iter().flatten() {
                f(thread);
                sched::work_done(EACH);
            }
            if sched::is_leaving() {
                return;
            }
        }
    }

    /// How many threads it has.
    pub fn thread_count(&self) -> usize {
        self.group.lock().threads.len()
    }

    /// What its threads have used, those that are gone included. Of many threads, those that end
    /// meanwhile may be left out.
    pub fn total_usage(&self) -> Usage {
        // Threads that are looked at with the group locked.
        const AT_ONCE: usize = 512;
        let mut usage = Usage::default();
        let mut from = 0;
        loop {
            let group = self.group.lock();
            if from == 0 {
                usage = *self.usage.lock();
            }
            let part = group.threads.get(from..).unwrap_or_default();
            part.iter().take(AT_ONCE).for_each(|thread| usage.add(&thread.counted()));
            if part.len() <= AT_ONCE {
                break;
            }
            from += AT_ONCE;
        }
        let Usage { user_ns, kernel_ns, .. } = self.time_used();
        Usage { user_ns, kernel_ns, ..usage }
    }

    /// The time alone, whatever threads there are: the caller's up to now, that of threads that run
    /// on other CPUs up to their last charge.
    pub fn time_used(&self) -> Usage {
        sched::clock::charge_current();
        let [user_ns, kernel_ns] =
            [&self.user_ns, &self.kernel_ns].map(|ns| ns.load(Ordering::Relaxed));
        Usage { user_ns, kernel_ns, ..Usage::default() }
    }

    /// The name programs see in `ps`.
    pub fn comm(&self) -> String {
        let left = self.group.lock().comm;
        self.leader().map_or_else(|| comm_text(&left), |thread| thread.comm())
    }

    /// The program's file; `None` in a zombie.
    pub fn exe(&self) -> Option<Arc<Running>> {
        self.mm()?.exe()
    }

    /// The memory of its first thread; `None` in a zombie.
    pub fn mm(&self) -> Option<Arc<Mm>> {
        self.leader().and_then(|thread| thread.mm())
    }

    /// The address space of its first thread; `None` in a zombie.
    pub fn space(&self) -> Option<Arc<crate::vm::Space>> {
        self.mm().map(|mm| mm.space.clone())
    }
}
