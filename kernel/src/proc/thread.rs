//! A thread of a process: what the scheduler runs.
//!
//! Invariants: T1: a thread is in its process's group from before it can run until `exit` takes it
//! out. T2: only the thread itself changes its mask, its alternate stack and its `mm`. T3: `mm` is
//! `None` once it has left its space.

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicU8, Ordering};

use machine::shared::CachePadded;

use super::mm::Mm;
use super::process::{Holding, Process};
use super::signal::{AltStack, Pending, SigInfo, SigSet};
use super::table::Pid;
use super::trace::Trace;
use super::usage::{IoCounts, Usage};
use super::{futex_pi, timer};
use crate::arch::abi::LastFault;
use crate::charge::Account;
use crate::errno::Result;
use crate::sched::{self, policy, Nanos, Policy, Task, Work};
use crate::sync::{SpinLock, WaitQueue};
use crate::vm;

/// How a call that a signal cut short is taken up again by `restart_syscall`.
#[derive(Clone, Copy)]
pub struct Restart {
    pub call: fn(&[u64; 4]) -> Result<u64>,
    pub args: [u64; 4],
}

/// Something that happens once and can be waited for: the end of a vfork.
pub struct Completion {
    done: AtomicBool,
    queue: WaitQueue,
}

impl Completion {
    pub fn new() -> Arc<Completion> {
        Arc::new(Completion { done: AtomicBool::new(false), queue: WaitQueue::new() })
    }

    pub fn complete(&self) {
        self.done.store(true, Ordering::Release);
        self.queue.wake_all();
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }
}

/// A thread's reference to its address space. Its count changes in each fault, so it has a line of
/// its own.
pub type OwnMm = Arc<CachePadded<Arc<Mm>>>;

pub struct Thread {
    tid: AtomicI32,
    pub process: Arc<Process>,
    /// Held until it leaves: a task that sleeps without a queue (`poll` of nothing) has no other
    /// owner.
    task: SpinLock<Option<Arc<Task>>>,
    /// Behind a reference that only this thread counts.
    mm: SpinLock<Option<OwnMm>>,
    /// The space that a thread in exec left and would go back to.
    pub pending_mm: SpinLock<Option<Arc<Mm>>>,
    /// Blocked signals.
    mask: AtomicU64,
    /// What `sigtimedwait` waits for, though it is blocked.
    pub waiting_for: AtomicU64,
    pub pending: SpinLock<Pending>,
    /// Something is to be done before user mode: signals, stop, exit (S3).
    pub signalled: AtomicBool,
    /// The thread has to leave, whatever it does now.
    pub dying: AtomicBool,
    /// Only `dying` cuts its sleep short, not every signal.
    pub killable: AtomicBool,
    /// The mask to go back to once a signal is handled (`sigsuspend`, `ppoll`).
    pub saved_mask: SpinLock<Option<SigSet>>,
    pub altstack: SpinLock<AltStack>,
    pub restart: SpinLock<Option<Restart>>,
    pub last_fault: SpinLock<LastFault>,
    /// The first thread of all: it has no program yet.
    pub is_init: AtomicBool,
    /// Where the thread stores its number when it first runs; 0 for nowhere.
    pub set_child_tid: AtomicU64,
    pub clear_child_tid: AtomicU64,
    pub robust_list: AtomicU64,
    /// Completed when this thread leaves the space it borrowed by vfork.
    pub vfork: SpinLock<Option<Arc<Completion>>>,
    comm: SpinLock<[u8; 16]>,
    /// The signal that the thread wants to be sent when its parent ends; 0 for none.
    pub parent_death_signal: AtomicI32,
    /// Nanoseconds by which its timers may be late (`PR_SET_TIMERSLACK`).
    pub timer_slack: AtomicU64,
    /// Its scheduling policy, as [`Policy::bits`].
    policy: AtomicU32,
    nice: AtomicI32,
    /// The priority of threads that wait for what it owns (`futex_pi`).
    lent: AtomicU8,
    /// The owner of what it waits for. Changes with the table of waits locked.
    pub(super) waits_for: SpinLock<Option<Arc<Thread>>>,
    /// It has ended: nothing is its any more.
    pub(super) owns_no_more: AtomicBool,
    pub trace: SpinLock<Trace>,
    /// What its tracer has to do with its system calls: `trace::AtCalls`.
    pub traces_calls: AtomicU32,
    /// Its end has begun: it traces no other thread any more.
    pub traces_no_more: AtomicBool,
    /// The stop of its process, as one more than `stop_epoch`, that its tracer lets it go on in; 0
    /// for none.
    pub passes: AtomicU64,
    pub minor_faults: AtomicU64,
    pub major_faults: AtomicU64,
    pub io: IoCounts,
    pub started: Nanos,
    /// What one that isn't its process's first is charged for.
    holding: SpinLock<Option<Holding>>,
}

/// How late a program's timers may be, unless it says otherwise.
pub const TIMER_SLACK: Nanos = 50_000;

/// A thread's name as text.
pub fn comm_text(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Thread {
    /// Its scheduling policy.
    pub fn policy(&self) -> Policy {
        Policy::from_bits(self.policy.load(Ordering::Relaxed))
    }

    /// Its niceness, from -20 to 19.
    pub fn nice(&self) -> i32 {
        self.nice.load(Ordering::Relaxed)
    }

    /// Gives it another niceness, which counts at once.
    pub fn renice(&self, nice: i32) {
        if self.nice.swap(nice, Ordering::Relaxed) == nice {
            return;
        }
        self.follow_policy();
    }

    /// Gives it the policy that `new` makes of its present one, if any. Whether it did.
    pub fn change_policy(&self, new: impl Fn(Policy) -> Option<Policy>) -> bool {
        let change = |bits| new(Policy::from_bits(bits)).map(Policy::bits);
        let changed =
            self.policy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok();
        if changed {
            self.follow_policy();
            futex_pi::priority_changed(self);
        }
        changed
    }

    fn follow_policy(&self) {
        if let Some(task) = self.task() {
            sched::follow_policy(&task);
        }
    }

    /// The policy that it runs with: of those that wait for it, if their priority is higher.
    pub fn running_policy(&self) -> Policy {
        let (own, lent) = (self.policy(), self.lent.load(Ordering::Relaxed));
        if lent <= own.priority() {
            return own;
        }
        Policy::new(policy::FIFO.into(), lent.into(), false).unwrap_or(own)
    }

    /// Lends it a priority, or 0. Whether that is another than before.
    pub(super) fn set_lent(&self, priority: u8) -> bool {
        let changes = self.lent.swap(priority, Ordering::Relaxed) != priority;
        if changes {
            self.follow_policy();
        }
        changes
    }

    /// A thread that isn't in its process's group yet.
    pub fn new(
        tid: Pid,
        process: Arc<Process>,
        mm: Arc<Mm>,
        mask: SigSet,
        comm: [u8; 16],
        holding: Option<Holding>,
    ) -> Thread {
        Thread {
            tid: AtomicI32::new(tid),
            process,
            task: SpinLock::new(None),
            mm: SpinLock::new(Some(Arc::new(CachePadded(mm)))),
            pending_mm: SpinLock::new(None),
            mask: AtomicU64::new(mask.0),
            waiting_for: AtomicU64::new(0),
            pending: SpinLock::new(Pending::new()),
            signalled: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            killable: AtomicBool::new(false),
            saved_mask: SpinLock::new(None),
            altstack: SpinLock::new(AltStack::default()),
            restart: SpinLock::new(None),
            last_fault: SpinLock::new(LastFault::default()),
            is_init: AtomicBool::new(false),
            set_child_tid: AtomicU64::new(0),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            vfork: SpinLock::new(None),
            comm: SpinLock::new(comm),
            parent_death_signal: AtomicI32::new(0),
            timer_slack: AtomicU64::new(TIMER_SLACK),
            policy: AtomicU32::new(0),
            nice: AtomicI32::new(0),
            lent: AtomicU8::new(0),
            waits_for: SpinLock::new(None),
            owns_no_more: AtomicBool::new(false),
            trace: SpinLock::new(Trace::default()),
            traces_calls: AtomicU32::new(0),
            traces_no_more: AtomicBool::new(false),
            passes: AtomicU64::new(0),
            minor_faults: AtomicU64::new(0),
            major_faults: AtomicU64::new(0),
            io: IoCounts::default(),
            started: sched::now(),
            holding: SpinLock::new(holding),
        }
    }

    /// The thread's process is charged by this account from now on, and what it allocates lies with
    /// its user's.
    pub fn follow_account(&self, account: &Arc<Account>) {
        self.holding.lock().iter_mut().for_each(|holding| holding.move_to(account));
        if let Some(task) = self.task() {
            task.set_heap_pool(account.user().heap_pool());
        }
    }

    /// Its number; exec gives the surviving thread that of the process.
    pub fn tid(&self) -> Pid {
        self.tid.load(Ordering::Relaxed)
    }

    pub fn set_tid(&self, tid: Pid) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// The task that runs it; `None` before its start and after its end.
    pub fn task(&self) -> Option<Arc<Task>> {
        self.task.lock().clone()
    }

    pub fn set_task(&self, task: &Arc<Task>) {
        *self.task.lock() = Some(task.clone());
    }

    /// Lets go of the task: the thread is on its last steps.
    pub fn forget_task(&self) {
        let task = self.task.lock().take();
        drop(task);
    }

    /// The address space that the thread runs in; `None` when it is past exit.
    pub fn mm(&self) -> Option<Arc<Mm>> {
        self.mm.lock().as_deref().map(|own| (*own).clone())
    }

    /// Like [`mm`](Self::mm), for the thread itself, in each fault and call: threads that share a
    /// space write no line of each other's.
    pub fn own_mm(&self) -> Option<OwnMm> {
        self.mm.lock().clone()
    }

    /// The space alone.
    pub fn space(&self) -> Option<Arc<vm::Space>> {
        self.mm.lock().as_ref().map(|mm| mm.space.clone())
    }

    /// Loads the thread's space; one past its exit runs in none.
    pub fn activate_space(&self) {
        match &*self.mm.lock() {
            Some(mm) => vm::activate(&mm.space),
            None => vm::deactivate(),
        }
    }

    /// Puts the thread in another space (or none) and returns the one it left. The caller activates
    /// the new one.
    pub fn replace_mm(&self, mm: Option<Arc<Mm>>) -> Option<Arc<Mm>> {
        let mm = mm.map(|mm| Arc::new(CachePadded(mm)));
        core::mem::replace(&mut *self.mm.lock(), mm).map(|own| (*own).clone())
    }

    pub fn mask(&self) -> SigSet {
        SigSet(self.mask.load(Ordering::Relaxed))
    }

    /// Stores the mask and nothing else; `signal::send::set_mask` is the whole operation.
    pub fn store_mask(&self, mask: SigSet) {
        self.mask.store(mask.0 & !SigSet::UNBLOCKABLE.0, Ordering::Relaxed);
    }

    pub fn comm_bytes(&self) -> [u8; 16] {
        *self.comm.lock()
    }

    pub fn comm(&self) -> String {
        comm_text(&self.comm_bytes())
    }

    /// Sets the name, cut to fifteen bytes.
    pub fn set_comm(&self, name: &[u8]) {
        let mut comm = [0; 16];
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len()).min(15);
        comm[..end].copy_from_slice(&name[..end]);
        *self.comm.lock() = comm;
    }

    /// Makes the thread look at its signals soon: wakes it out of an interruptible sleep.
    pub fn poke(&self) {
        self.signalled.store(true, Ordering::Release);
        if let Some(task) = self.task() {
            task.add_work(Work::SIGNAL);
            sched::interrupt(&task);
        }
    }

    /// Takes a signal of `wanted` that was sent to the thread or its process, whether blocked or
    /// not.
    pub fn take_pending(&self, wanted: SigSet) -> Option<SigInfo> {
        let mut group = self.process.group.lock();
        let own = self.pending.lock().take(wanted);
        let mut info = own.or_else(|| group.pending.take(wanted))?;
        timer::taken(&self.process, &mut info);
        Some(info)
    }

    /// Whether there is such a signal.
    pub fn has_pending(&self, wanted: SigSet) -> bool {
        let group = self.process.group.lock();
        let all = group.pending.set().with(self.pending.lock().set());
        all.0 & wanted.0 != 0
    }

    /// Tells the thread to leave.
    pub fn kill(&self) {
        self.dying.store(true, Ordering::Release);
        self.poke();
    }

    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Acquire)
    }

    /// The state letter of `/proc/PID/stat`.
    pub fn state(&self) -> char {
        let Some(task) = self.task() else { return 'Z' };
        if task.is_ready() {
            return 'R';
        }
        if self.is_at_rest_for_tracer() {
            return 't';
        }
        let group = self.process.group.lock();
        if group.stop.is_some() && group.stopped > 0 {
            return 'T';
        }
        drop(group);
        if task.is_uninterruptible() {
            'D'
        } else {
            'S'
        }
    }

    /// What it has used; of time, as [`Process::time_used`](super::process::Process::time_used).
    pub fn usage(&self) -> Usage {
        sched::clock::charge_current();
        self.counted()
    }

    /// What it has used, up to its last charge.
    pub fn counted(&self) -> Usage {
        let mut usage = Usage {
            minor_faults: self.minor_faults.load(Ordering::Relaxed),
            major_faults: self.major_faults.load(Ordering::Relaxed),
            io: self.io.get(),
            ..Usage::default()
        };
        if let Some(task) = self.task() {
            usage.user_ns = task.user_time();
            usage.kernel_ns = task.kernel_time();
            (usage.waits, usage.preemptions) = task.switches();
        }
        usage
    }
}
