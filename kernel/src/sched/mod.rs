//! Threads of control: who runs, who waits, and for how long.
//!
//! ```text
//!            wake                      switch
//!   Blocked ------> Ready (in a CPU's queue) ------> current
//!      ^                    ^                          |
//!      |  block             |  yield, end of slice     |
//!      +--------------------+--------------------------+---> Exited (exit_current)
//! ```
//! Round robin with slices of 10 ms among programs; kernel code is never preempted. A CPU with nothing to do halts.
//! Threads of the kernel go first: they wait for what others need, and work in short bursts. A program gives way early to one of
//! them, and to whoever a device's interrupt has made ready.
//!
//! I1: a task is in a queue exactly if it is `Ready` and not current. I2: `Blocked` is set by the task itself and taken back by
//! itself or, under its queue's lock, by `wake`. I3: a task stays alive while it is current or queued, by the references held there,
//! and while it sleeps, by the one that `sync::wait` keeps on its stack.

pub mod clock;
mod task;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arch::{self, cpu, fpu, io, switch, UserRegs};
use crate::mem::heap;
use crate::mem::stack::Stack;
use crate::proc;
use crate::sync::{Once, SpinLock};

pub use clock::{now, timer_at, timer_cancel, timer_interrupt, wake_at, wall, Nanos, Origin, TimerId};
use task::State;
pub use task::{Task, Work};

/// One CPU's tasks that could run.
struct RunQueue {
    ready: VecDeque<Arc<Task>>,
    /// Tasks that exist; `ready` has room for all, so that a wake-up never allocates.
    tasks: usize,
}

static QUEUES: [SpinLock<RunQueue>; cpu::MAX_CPUS] =
    [const { SpinLock::new(RunQueue { ready: VecDeque::new(), tasks: 0 }) }; cpu::MAX_CPUS];

/// Heap that a task takes: itself, its vector state, its place in queues.
const TASK_HEAP: usize = 16 * 1024;

/// What each CPU runs when there is nothing to run.
static IDLE: [Once<Arc<Task>>; cpu::MAX_CPUS] = [const { Once::new() }; cpu::MAX_CPUS];

/// The task that a CPU has just left, kept until its stack is no longer in use.
static LEFT: [SpinLock<Option<Arc<Task>>>; cpu::MAX_CPUS] = [const { SpinLock::new(None) }; cpu::MAX_CPUS];

/// Makes the code that runs now the CPU's idle task. Everything before [`idle`] runs as it and must not sleep.
pub fn init() {
    let idle = IDLE[cpu::index()].call_once(|| Arc::new(Task::idle()));
    cpu::set_current(idle.clone(), 0);
    clock::init();
}

/// The task that runs.
#[inline]
pub fn current() -> &'static Arc<Task> {
    cpu::current()
}

fn queue() -> &'static SpinLock<RunQueue> {
    &QUEUES[cpu::index()]
}

/// Starts a thread of a program; it first runs user code with `regs`. Its vector state is a copy of the caller's.
///
/// # Errors
/// `NoMemory` for its stack; nothing has changed.
pub fn spawn_user(thread: Arc<proc::Thread>, regs: &UserRegs) -> Result<Arc<Task>, machine::NoMemory> {
    heap::reserve(TASK_HEAP)?;
    let stack = Stack::new()?;
    let fpu = if current().user().is_some() {
        let mut own = current().fpu();
        own.save();
        fpu::State::copy_of(&own)
    } else {
        fpu::State::fresh()
    };
    let task = Arc::new(Task::for_user(thread, stack, fpu, regs));
    start(&task);
    Ok(task)
}

/// Starts a thread of the kernel that does `main` and ends. It has no address space and no process: what asks for the current
/// process isn't for it.
///
/// # Errors
/// `NoMemory` for its stack; nothing has changed.
pub fn spawn_kernel(
    name: &'static str,
    main: impl FnOnce() + Send + 'static,
) -> Result<Arc<Task>, machine::NoMemory> {
    heap::reserve(TASK_HEAP)?;
    let task = Arc::new(Task::for_kernel(name, Box::new(main), Stack::new()?));
    start(&task);
    Ok(task)
}

/// The name of the thread of the kernel that runs, if one does.
pub fn kernel_thread() -> Option<&'static str> {
    IDLE[cpu::index()].get()?;
    current().kernel_name()
}

/// The life of a thread of the kernel.
pub fn run_kernel_task() -> ! {
    finish_switch();
    if let Some(main) = current().take_main() {
        main();
    }
    exit_current()
}

fn start(task: &Arc<Task>) {
    let mut queue = queue().lock();
    queue.tasks += 1;
    let room = queue.tasks + 1;
    let len = queue.ready.len();
    queue.ready.reserve(room - len.min(room));
    queue.ready.push_back(task.clone());
}

/// Announces that the current task is about to block; [`wake`] from here on takes it back.
pub fn prepare_to_block(task: &Task) {
    task.state.store(State::Blocked as u8, Release);
}

/// Takes the announcement back.
pub fn cancel_block(task: &Task) {
    task.state.store(State::Ready as u8, Release);
}

/// Sleeps until woken, if `prepare_to_block` still stands. Called by the wait queues.
pub fn block() {
    schedule();
}

/// Makes a blocked task ready; no effect on others. May be called from interrupt handlers and with spin locks held.
pub fn wake(task: &Arc<Task>) {
    let mut queue = QUEUES[task.cpu()].lock();
    if task.state.load(Acquire) == State::Blocked as u8 {
        task.state.store(State::Ready as u8, Release);
        if task.running.load(Acquire) {
            return;
        }
        if task.is_kernel() {
            queue.ready.push_front(task.clone());
            drop(queue);
            preempt();
        } else {
            queue.ready.push_back(task.clone());
        }
    }
}

/// Makes the program that runs here give way when it next leaves the kernel.
fn preempt() {
    let task = current();
    if task.user().is_some() {
        task.add_work(Work::RESCHEDULE);
    }
}

/// A device's interrupt has been answered.
pub fn device_interrupt(origin: Origin) {
    if origin != Origin::Kernel && others_ready() {
        preempt();
    }
}

/// Wakes a task that sleeps in an interruptible wait, because a signal has arrived for it.
pub fn interrupt(task: &Arc<Task>) {
    wake(task);
}

/// Whether the current thread has a signal to see to.
pub fn signal_pending() -> bool {
    current().user().is_some() && proc::signal_pending()
}

/// Lets others run first.
pub fn yield_now() {
    schedule();
}

/// Ends the current task. Whoever waits for it holds its own reference.
pub fn exit_current() -> ! {
    let mut queue = queue().lock();
    queue.tasks -= 1;
    current().state.store(State::Exited as u8, Release);
    drop(queue);
    schedule();
    unreachable!("an exited task runs again")
}

/// Runs the next task, if there is one other than this.
fn schedule() {
    crate::sync::assert_none_held();
    let this = current();
    let next = {
        let mut queue = queue().lock();
        let stays = this.state.load(Acquire) == State::Ready as u8;
        match queue.ready.pop_front() {
            Some(next) => {
                if stays && !this.is_idle() {
                    queue.ready.push_back(this.clone());
                }
                next
            }
            None if stays => return,
            None => IDLE[cpu::index()].get().expect("made by init").clone(),
        }
    };
    switch_to(next);
}

fn switch_to(next: Arc<Task>) {
    let this = current();
    if Arc::ptr_eq(this, &next) {
        return;
    }
    clock::charge_switch(this, &next);
    if this.user().is_some() && this.state.load(Relaxed) != State::Exited as u8 {
        this.fpu().save();
    }
    this.running.store(false, Release);
    next.running.store(true, Release);
    if let Some(thread) = next.user() {
        proc::activate_space(thread);
        next.load_registers();
    }
    let (stack, to) = (next.entry_stack(), core::ptr::from_ref(&next.context));
    let left = cpu::set_current(next, stack);
    let from = left.as_ref().map_or(core::ptr::null(), |t| core::ptr::from_ref(&t.context));
    *LEFT[cpu::index()].lock() = left;
    // SAFETY: `next` is current now and `this` is in `LEFT`, a queue or a wait queue: both live; `next` ran nowhere, being queued.
    unsafe { switch::switch(&*from, &*to) };
    finish_switch();
}

/// First thing on the new task's stack: the old one's may be given back.
fn finish_switch() {
    let left = LEFT[cpu::index()].lock().take();
    if let Some(task) = left {
        if task.state.load(Relaxed) == State::Exited as u8 {
            task.release_stack();
        }
    }
}

/// First thing a new task does.
pub fn task_started() {
    finish_switch();
    if current().user().is_some() {
        first_user();
    }
}

/// Tells the host when the first program starts.
fn first_user() {
    static SAID: Once<()> = Once::new();
    SAID.call_once(|| crate::control!("user {}", io::rdtsc()));
}

/// Before a return to user mode with a nonzero work word: everything that is due.
pub fn return_work(regs: &mut UserRegs) {
    let task = current();
    loop {
        let work = task.take_all_work();
        if work.is_empty() {
            return;
        }
        if work.contains(Work::RESCHEDULE) {
            schedule();
        }
        if work.contains(Work::SIGNAL) {
            proc::return_to_user(regs);
        }
    }
}

/// Runs tasks for ever, and halts the CPU when there are none.
pub fn idle() -> ! {
    loop {
        schedule();
        if queue().lock().ready.is_empty() {
            io::wait_for_interrupt();
        }
    }
}

/// Whether another task could run on this CPU.
fn others_ready() -> bool {
    !queue().lock().ready.is_empty()
}

/// The current program's vector state, as a signal frame holds it.
pub fn fpu_get(out: &mut alloc::vec::Vec<u8>) {
    let mut state = current().fpu();
    state.save();
    out.extend_from_slice(state.bytes());
}

/// Replaces the current program's vector state by bytes that it chose itself.
pub fn fpu_set(bytes: &[u8]) {
    let mut state = current().fpu();
    state.save();
    let own = state.bytes_mut();
    let len = own.len().min(bytes.len());
    own[..len].copy_from_slice(&bytes[..len]);
    state.sanitize();
    state.load();
}

/// Gives the current program the vector state that a program starts with.
pub fn fpu_reset() {
    let mut state = current().fpu();
    state.reset();
    state.load();
}

/// Ends everything: reports the exit code of the first process and leaves.
pub fn shut_down(code: i32) -> ! {
    crate::control!("exit {code}");
    arch::power_off(0x10)
}
