//! A schedulable thread: stack, saved registers, vector state, times.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use machine::CpuSet;

use super::fair::Fair;
use super::queue::Comes;
use crate::arch::{cpu, debug, fpu, switch, Bases, UserRegs};
use crate::lock::{SpinGuard, SpinLock};
use crate::mem::fault::Allocations;
use crate::mem::pools::{self, Pool};
use crate::mem::stack::Stack;
use crate::upcalls::{self, DeferredCloses};

bitflags::bitflags! {
    /// What a task has to do before it returns to user mode.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Work: u32 {
        /// The task's slice is over and others wait.
        const RESCHEDULE = 1;
        /// The process layer wants a look: a signal, an exit, a stop.
        const SIGNAL = 2;
        /// A tick has come, and its process counts CPU time.
        const TICK = 4;
    }
}

/// Where a task is in its life; see the picture in the module above.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Runs or could run.
    Ready,
    /// Is about to sleep, and may still use its stack.
    Blocking,
    /// Sleeps, and has left its stack.
    Parked,
    /// Never runs again.
    Exited,
}

fn is_asleep(state: u8) -> bool {
    state == State::Blocking as u8 || state == State::Parked as u8
}

/// What a thread of the kernel does; when it returns, the thread ends.
pub(super) type Main = Box<dyn FnOnce() + Send>;

enum Kind {
    User {
        thread: Arc<upcalls::Thread>,
        fpu: SpinLock<fpu::State>,
    },
    /// The work is taken when the thread starts.
    Kernel {
        name: &'static str,
        main: SpinLock<Option<Main>>,
    },
    Idle,
}

/// See the module.
pub struct Task {
    id: u64,
    kind: Kind,
    stack: SpinLock<Option<Stack>>,
    entry_stack: u64,
    work: AtomicU32,
    /// The pool of the heap of its user.
    heap_pool: AtomicU8,
    /// The CPU in whose queue the task is, that runs the task, or that ran it last.
    cpu: AtomicUsize,
    /// CPUs that the task may run on; at least one of them runs tasks.
    allowed: AtomicU64,
    /// The task was woken while it ran, since it was last about to wait.
    was_woken: AtomicBool,
    /// Its share of CPUs.
    pub(super) fair: Fair,
    /// The task was woken as one that may run before others.
    is_due: AtomicBool,
    /// The task was woken, and has come into no queue since.
    is_woken: AtomicBool,
    /// The CPU whose registers were last loaded with its vector state.
    fpu_cpu: AtomicUsize,
    pub(super) context: switch::Context,
    state: AtomicU8,
    user_ns: AtomicU64,
    kernel_ns: AtomicU64,
    /// How often it left its CPU to wait, and how often it could have run on.
    waits: AtomicU64,
    preemptions: AtomicU64,
    /// No signal ends the sleep that it is in.
    is_uninterruptible: AtomicBool,
    /// A program's segment bases while it doesn't run.
    bases: Bases,
    /// Its debugger's watchpoints.
    pub watch: debug::Watch,
    /// Messages that it has let go, for itself alone.
    pub deferred_closes: SpinLock<DeferredCloses>,
    /// What is known of its allocations.
    pub allocations: Allocations,
    /// What the task asks memory for is not there yet: a process, a file or the like.
    pub asks_for_new: AtomicBool,
    /// Writes in its plug are to be started before it sleeps.
    pub has_plug: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The task whose vector state was last loaded into a CPU's registers: they still hold it if the
/// task wasn't loaded elsewhere since.
#[repr(align(64))]
struct FpuOwner(AtomicU64);

static FPU_OWNER: [FpuOwner; cpu::MAX_CPUS] =
    [const { FpuOwner(AtomicU64::new(0)) }; cpu::MAX_CPUS];

use Kind::{Idle, Kernel, User};

impl Task {
    fn new(kind: Kind, stack: Option<Stack>, context: switch::Context) -> Task {
        let pool = match &kind {
            User { thread, .. } => thread.process.account().user().heap_pool(),
            Kernel { .. } | Idle => pools::ROOT,
        };
        Task {
            id: NEXT_ID.fetch_add(1, Relaxed),
            kind,
            entry_stack: stack.as_ref().map_or(0, switch::entry_stack),
            stack: SpinLock::new(stack),
            work: AtomicU32::new(0),
            heap_pool: AtomicU8::new(pool),
            cpu: AtomicUsize::new(cpu::index()),
            allowed: AtomicU64::new(u64::MAX),
            was_woken: AtomicBool::new(false),
            fair: Fair::new(),
            is_due: AtomicBool::new(false),
            is_woken: AtomicBool::new(true),
            fpu_cpu: AtomicUsize::new(usize::MAX),
            context,
            state: AtomicU8::new(State::Ready as u8),
            user_ns: AtomicU64::new(0),
            kernel_ns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            is_uninterruptible: AtomicBool::new(false),
            bases: Bases::default(),
            watch: debug::Watch::new(),
            deferred_closes: SpinLock::default(),
            allocations: Allocations::default(),
            asks_for_new: AtomicBool::new(false),
            has_plug: AtomicBool::new(false),
        }
    }

    pub(super) fn idle() -> Task {
        Task::new(Idle, None, switch::Context::running())
    }

    pub(super) fn for_user(
        thread: Arc<upcalls::Thread>,
        mut stack: Stack,
        fpu: fpu::State,
        regs: &UserRegs,
    ) -> Task {
        let context = switch::Context::for_user(&mut stack, regs);
        let task = Task::new(User { thread, fpu: SpinLock::new(fpu) }, Some(stack), context);
        Task { bases: Bases::of(regs), ..task }
    }

    pub(super) fn for_kernel(name: &'static str, main: Main, mut stack: Stack) -> Task {
        let context = switch::Context::for_kernel(&mut stack);
        Task::new(Kernel { name, main: SpinLock::new(Some(main)) }, Some(stack), context)
    }

    /// The pool of the heap of its user.
    #[inline]
    pub fn heap_pool(&self) -> Pool {
        self.heap_pool.load(Relaxed)
    }

    /// The task has become another user's.
    pub fn set_heap_pool(&self, pool: Pool) {
        self.heap_pool.store(pool, Relaxed);
        if super::current().id() == self.id {
            cpu::set_heap_pool(pool);
        }
    }

    /// What a thread of the kernel has to do; once.
    pub(super) fn take_main(&self) -> Option<Main> {
        match &self.kind {
            Kernel { main, .. } => main.lock().take(),
            User { .. } | Idle => None,
        }
    }

    /// The name of a thread of the kernel.
    pub fn kernel_name(&self) -> Option<&'static str> {
        match &self.kind {
            Kernel { name, .. } => Some(name),
            User { .. } | Idle => None,
        }
    }

    #[inline]
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self.kind, Kernel { .. })
    }

    /// Whether the task runs or could run.
    pub fn is_ready(&self) -> bool {
        self.state.load(Relaxed) == State::Ready as u8
    }

    /// Its number, which no other task ever has.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        match self.state.load(Acquire) {
            0 => State::Ready,
            1 => State::Blocking,
            2 => State::Parked,
            _ => State::Exited,
        }
    }

    /// The running task notes wake-ups from now on.
    #[inline]
    pub(super) fn listen(&self) {
        self.was_woken.store(false, Relaxed);
    }

    /// The running task has heard a wake-up, or has slept for something else.
    #[inline]
    pub(super) fn hear(&self) {
        self.was_woken.store(true, Relaxed);
    }

    /// The running task announces that it is about to sleep, unless it was woken since it listens
    /// (I2). Whether it sleeps.
    #[inline]
    pub(super) fn announce_sleep(&self) -> bool {
        self.state.swap(State::Blocking as u8, SeqCst);
        if self.was_woken.load(SeqCst) {
            self.state.store(State::Ready as u8, Relaxed);
            self.is_woken.store(false, Relaxed);
            return false;
        }
        true
    }

    /// The running task never runs again.
    pub(super) fn end(&self) {
        self.state.store(State::Exited as u8, Release);
    }

    /// The task's stack was left: a task that is still about to sleep sleeps from now on. Returns
    /// its state then.
    #[inline]
    pub(super) fn park(&self) -> State {
        let (from, to) = (State::Blocking as u8, State::Parked as u8);
        match self.state() {
            State::Blocking if self.state.compare_exchange(from, to, AcqRel, Acquire).is_ok() => {
                State::Parked
            }
            State::Blocking => State::Ready,
            other => other,
        }
    }

    /// Whether the task sleeps, or is about to. If it doesn't, it knows that it was to be woken
    /// when it announces its sleep, which is looked at once more here.
    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        is_asleep(self.state.load(SeqCst)) || {
            self.was_woken.swap(true, SeqCst);
            is_asleep(self.state.load(SeqCst))
        }
    }

    /// Takes the task out of its sleep, or keeps it from sleeping; the task `is_due` then or isn't.
    /// Returns whether the task slept: the caller then puts it into a queue. Else the CPU that
    /// leaves its stack does.
    #[inline]
    pub(super) fn awaken(&self, is_due: bool) -> bool {
        if !self.is_asleep() {
            return false;
        }
        let mut now = self.state.load(SeqCst);
        while is_asleep(now) {
            self.set_due(is_due);
            self.is_woken.store(true, Relaxed);
            match self.state.compare_exchange(now, State::Ready as u8, AcqRel, Relaxed) {
                Ok(_) => return now == State::Parked as u8,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Says whether it may run before others.
    #[inline]
    pub(super) fn set_due(&self, is_due: bool) {
        if self.is_due.load(Relaxed) != is_due {
            self.is_due.store(is_due, Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Relaxed)
    }

    /// How the task comes into a queue, now that its stack was left: it may have been woken before.
    #[inline]
    pub(super) fn comes(&self) -> Comes {
        if self.is_woken.load(Relaxed) {
            self.is_woken.store(false, Relaxed);
            return Comes::Woken;
        }
        Comes::Ready
    }

    /// CPUs that it may run on.
    #[inline]
    pub fn allowed(&self) -> CpuSet {
        CpuSet::from_bits(self.allowed.load(Relaxed))
    }

    pub(super) fn allow(&self, cpus: CpuSet) {
        self.allowed.store(cpus.bits(), Relaxed);
    }

    #[inline]
    pub(super) fn set_cpu(&self, cpu: usize) {
        self.cpu.store(cpu, Relaxed);
    }

    /// The program's thread this task carries; `None` for the kernel's own.
    #[inline]
    pub fn user(&self) -> Option<&Arc<upcalls::Thread>> {
        match &self.kind {
            User { thread, .. } => Some(thread),
            Kernel { .. } | Idle => None,
        }
    }

    /// Whether its process has timers on CPU time.
    #[inline]
    pub(super) fn counts_cpu_time(&self) -> bool {
        self.user().is_some_and(|thread| thread.process.counts_cpu_time.load(Relaxed))
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.kind, Idle)
    }

    /// The CPU in whose queue it is, that runs it, or that ran it last.
    #[inline]
    pub fn cpu(&self) -> usize {
        self.cpu.load(Relaxed)
    }

    /// The vector state as last saved.
    pub(super) fn fpu(&self) -> SpinGuard<'_, fpu::State> {
        match &self.kind {
            User { fpu, .. } => fpu.lock(),
            Kernel { .. } | Idle => panic!("a kernel task has no vector state"),
        }
    }

    /// Saves what a program's instructions see beside the registers on its stack: segment bases and
    /// vector state.
    pub(super) fn save_registers(&self) {
        self.bases.save();
        if self.state() != State::Exited {
            self.fpu().save();
        }
    }

    /// Loads that again, here or on another CPU.
    pub(super) fn load_registers(&self) {
        self.bases.load();
        self.watch.load();
        let here = cpu::index();
        let owner = &FPU_OWNER[here].0;
        if owner.load(Relaxed) != self.id || self.fpu_cpu.load(Relaxed) != here {
            owner.store(self.id, Relaxed);
            self.fpu_cpu.store(here, Relaxed);
            self.fpu().load();
        }
    }

    #[inline]
    pub(super) fn entry_stack(&self) -> u64 {
        self.entry_stack
    }

    /// Gives the stack of an exited task back.
    pub(super) fn release_stack(&self) {
        drop(self.stack.lock().take());
    }

    /// The word that the way out to user mode looks at.
    pub fn work_word(&self) -> *const AtomicU32 {
        &self.work
    }

    /// Sends the task through the long way out when it next returns to user mode.
    #[inline]
    pub fn add_work(&self, work: Work) {
        self.work.fetch_or(work.bits(), AcqRel);
    }

    /// Takes back what is done.
    pub(super) fn drop_work(&self, work: Work) {
        self.work.fetch_and(!work.bits(), AcqRel);
    }

    /// Whether the task has `work` to do before it returns to user mode.
    pub(super) fn has_work(&self, work: Work) -> bool {
        self.work.load(Relaxed) & work.bits() != 0
    }

    #[inline]
    pub(super) fn take_all_work(&self) -> Work {
        Work::from_bits_truncate(self.work.swap(0, AcqRel))
    }

    /// Nanoseconds spent running the program's own instructions.
    pub fn user_time(&self) -> u64 {
        self.user_ns.load(Relaxed)
    }

    /// Nanoseconds spent in the kernel on the program's behalf.
    pub fn kernel_time(&self) -> u64 {
        self.kernel_ns.load(Relaxed)
    }

    /// How often it left its CPU to wait, and how often it could have run on.
    pub fn switches(&self) -> (u64, u64) {
        (self.waits.load(Relaxed), self.preemptions.load(Relaxed))
    }

    /// The running task leaves its CPU.
    #[inline]
    pub(super) fn count_switch(&self) {
        let counter = if self.is_ready() { &self.preemptions } else { &self.waits };
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }

    /// Whether no signal ends the sleep that it is in.
    pub fn is_uninterruptible(&self) -> bool {
        self.is_uninterruptible.load(Relaxed)
    }

    pub(super) fn set_uninterruptible(&self, is_uninterruptible: bool) {
        self.is_uninterruptible.store(is_uninterruptible, Relaxed);
    }

    /// Charges the task and its process.
    #[inline]
    pub(super) fn charge(&self, user: u64, kernel: u64) {
        self.user_ns.store(self.user_ns.load(Relaxed) + user, Relaxed);
        self.kernel_ns.store(self.kernel_ns.load(Relaxed) + kernel, Relaxed);
        if let Some(thread) = self.user() {
            thread.process.user_ns.fetch_add(user, Relaxed);
            thread.process.kernel_ns.fetch_add(kernel, Relaxed);
        }
    }
}
