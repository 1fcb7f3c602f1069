//! Threads of control: which run, which wait, and for how long.
//!
//! ```text
//!            wake                          switch
//!   Parked ------> Ready (in a CPU's queue) ------> current
//!      ^              ^                                |
//!      |              | its stack was left             |  yield, end of slice, block
//!      +--------------+--------------------------------+---> Exited (exit_current)
//! ```
//! Programs share CPUs fairly, by virtual time (`queue`); kernel code is never preempted. A CPU
//! with nothing to do takes from others' queues, and else halts. A thread of the kernel that is
//! woken goes first: others need what it does. A program gives way early to one. A task that runs
//! only briefly each time, and whose timer went off or that is the first that another has woken in
//! its turn, goes before those that compute, up to half of the time.
//!
//! A task that became ready goes to a CPU that is idle, else back to where it ran. Only a CPU that
//! halts, or that has to give way to a thread of the kernel or sooner than its alarm is set for, is
//! interrupted for it.
//!
//! I1: a task is in a queue exactly if it is `Ready`, not current, and its stack was left:
//! [`finish_switch`] alone, on the next stack, parks or queues the task that was left. So no CPU
//! ever runs a task on a stack that another still uses. I2: `Blocking` is set by the task itself,
//! if it was not woken since it listens; it is taken back by `wake`; `finish_switch` makes it
//! `Parked`. So a task that looks whether it has to sleep may give way: it is in its queues, and
//! could run. I3: a task stays alive while it is current or queued, by the references held there,
//! and while it sleeps, by the one that `sync::wait` keeps on its stack. I4: a CPU that is in
//! `IDLE` looks at all queues before it halts, after it has entered itself there; a CPU that queues
//! a task looks at `IDLE` afterwards. So one sees the other, and nothing waits while a CPU that may
//! run it halts. I5: work is added to a task before one looks which CPU runs it; a CPU notes what
//! it runs before it looks at the work. So a program on another CPU either finds its work on the
//! way out of the kernel, or is interrupted.

pub mod clock;
mod fair;
mod idle;
pub mod load;
pub mod policy;
mod queue;
mod stop_machine;
mod task;
mod turn;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst};

use machine::{CpuSet, Current};

use crate::arch::{self, cpu, fpu, io, ipi, pmap, switch, UserRegs};
use crate::lock::Once;
use crate::mem::heap;
use crate::mem::stack::Stack;
use crate::upcalls;

pub use clock::{
    now, switches, timer_at, timer_cancel, timer_interrupt, times, wake_at, wall, Nanos, TimerId,
    Times,
};
use idle::IdleSpin;
pub use policy::Policy;
pub use queue::task_list_bytes;
use queue::{Comes, Taken};
pub use stop_machine::stop_machine;
use task::State;
pub use task::{Task, Work};
pub use turn::{give_way, work_done};

/// Heap that a task takes: itself, its vector state, its place in queues.
const TASK_HEAP: usize = 16 * 1024;

/// What each CPU runs when there is nothing to run.
static IDLE: [Once<Arc<Task>>; cpu::MAX_CPUS] = [const { Once::new() }; cpu::MAX_CPUS];

/// CPUs that halt, or are about to (I4). A CPU that takes a bit out has given that CPU something to
/// do.
static IDLE_CPUS: AtomicU64 = AtomicU64::new(0);

/// Makes the code that runs now the CPU's idle task. Everything before [`idle`] runs as it and must
/// not sleep.
pub fn init() {
    let idle = IDLE[cpu::index()].call_once(|| Arc::new(Task::idle()));
    // SAFETY: the code that runs now is the idle task, which is never in user mode.
    unsafe { cpu::set_current(idle.clone(), idle.id(), 0) };
    clock::init();
}

/// The task that runs, for its own code.
#[inline]
pub fn current() -> Current<Task> {
    cpu::current()
}

/// The task that runs, to keep.
#[inline]
pub fn current_owned() -> Arc<Task> {
    cpu::current_owned().expect("a task runs since sched::init")
}

/// Makes a thread of a program, for [`start`]: it first runs user code with `regs`. Its vector
/// state and the CPUs it may run on are copies of the caller's.
///
/// # Errors
/// `NoMemory` for its stack; nothing has changed.
pub fn new_user(
    thread: Arc<upcalls::Thread>,
    regs: &UserRegs,
) -> Result<Arc<Task>, machine::NoMemory> {
    heap::reserve(TASK_HEAP)?;
    let stack = Stack::new()?;
    let fpu = if current().user().is_some() {
        let this = current();
        let mut own = this.fpu();
        own.save();
        fpu::State::copy_of(&own)
    } else {
        fpu::State::fresh()
    };
    queue::make_room()?;
    let task = Arc::new(Task::for_user(thread, stack, fpu, regs));
    task.allow(current().allowed());
    Ok(task)
}

/// Starts a thread of the kernel that does `main` and ends. It has no address space and no process:
/// what asks for the current process isn't for it.
///
/// # Errors
/// `NoMemory` for its stack; nothing has changed.
pub fn spawn_kernel(
    name: &'static str,
    main: impl FnOnce() + Send + 'static,
) -> Result<Arc<Task>, machine::NoMemory> {
    spawn_on(CpuSet::ALL, name, main)
}

/// Like [`spawn_kernel`], on these CPUs alone, of which at least one runs tasks.
fn spawn_on(
    cpus: CpuSet,
    name: &'static str,
    main: impl FnOnce() + Send + 'static,
) -> Result<Arc<Task>, machine::NoMemory> {
    heap::reserve(TASK_HEAP)?;
    let stack = Stack::new()?;
    queue::make_room()?;
    let task = Arc::new(Task::for_kernel(name, Box::new(main), stack));
    task.allow(cpus);
    start(&task);
    Ok(task)
}

/// The name of the thread of the kernel that runs, if one does.
pub fn kernel_thread() -> Option<&'static str> {
    cpu::current_owned()?.kernel_name()
}

/// The life of a thread of the kernel.
pub fn run_kernel_task() -> ! {
    finish_switch();
    if let Some(main) = current().take_main() {
        main();
    }
    exit_current()
}

/// Lets a new task run.
pub fn start(task: &Arc<Task>) {
    ready(task);
}

/// Gives up a task that was never started.
pub fn discard(task: Arc<Task>) {
    queue::leave();
    drop(task);
}

/// Has the current task note wake-ups: what it looks at from here on is looked at in time.
pub fn listen(task: &Task) {
    task.listen();
}

/// The current task has slept for one thing while it looked whether to sleep for another: it looks
/// again.
pub fn look_again(task: &Task) {
    task.hear();
}

/// The current task is about to sleep: the writes in its plug are started, since other
/// threads may wait for that.
#[inline]
pub fn flush_plug(task: &Task) {
    if task.has_plug.load(Relaxed) {
        task.has_plug.store(false, Relaxed);
        upcalls::flush_plug();
    }
}

/// Sleeps until woken, unless the current task was woken since it listens. Called by the wait
/// queues.
pub fn block(task: &Task) {
    if task.announce_sleep() {
        schedule(Leaves::Now);
    }
}

/// Like [`block`], for a sleep that no signal ends: a program's thread counts as one that runs.
pub fn block_uninterruptible(task: &Task) {
    if task.user().is_none() {
        return block(task);
    }
    task.set_uninterruptible(true);
    load::enter_uninterruptible();
    block(task);
    load::leave_uninterruptible();
    task.set_uninterruptible(false);
}

/// Makes a blocked task ready; no effect on others. May be called from interrupt handlers and with
/// spin locks held.
///
/// The first one that a task wakes in its turn is due, as if its timer had gone off: it doesn't
/// wait behind a crowd. A crowd that is woken at once waits like others.
pub fn wake(task: &Arc<Task>) {
    if task.is_asleep() && task.awaken(task.is_kernel() || clock::is_first_woken()) {
        ready(task);
    }
}

/// Like [`wake`], for a task whose time has come.
fn wake_due(task: &Arc<Task>) {
    if task.awaken(true) {
        ready(task);
    }
}

/// Like [`wake`], for one of many tasks of a process.
fn wake_with_others(task: &Arc<Task>) {
    if task.awaken(false) {
        ready(task);
    }
}

/// A task was woken, or is new.
fn ready(task: &Arc<Task>) {
    enqueue(task.clone(), task.comes());
}

/// Puts a task that is ready into a queue, and sees to it that some CPU looks there.
fn enqueue(task: Arc<Task>, comes: Comes) {
    let here = cpu::index();
    if cpu::count() == 1 {
        if queue::push(here, task, comes) {
            clock::turn_is_shorter();
        }
        return;
    }
    let (target, idle) = choose(&task, here);
    let allowed = task.allowed();
    task.set_cpu(target);
    let is_shorter = queue::push(target, task, comes);
    if target != here && (idle || is_shorter) {
        ipi::send(CpuSet::one(target), ipi::Ipi::Reschedule);
    } else if is_shorter {
        clock::turn_is_shorter();
    }
    if !idle {
        rouse(allowed);
    }
}

/// The CPU whose queue a task goes to, and whether that CPU was idle. An idle one is taken for this
/// task.
fn choose(task: &Task, here: usize) -> (usize, bool) {
    let (last, allowed) = (task.cpu(), task.allowed().intersection(cpu::online()));
    let idle = allowed.intersection(CpuSet::from_bits(IDLE_CPUS.load(Relaxed)));
    if !idle.is_empty() {
        // This one is awake: it has taken an interrupt. The last one may still have what the task
        // needs in its caches.
        let near = [here, last].into_iter().filter(|&cpu| idle.contains(cpu));
        if let Some(cpu) = near.chain(idle.iter()).find(|&cpu| take_idle(cpu)) {
            return (cpu, true);
        }
    }
    // Where it would wait for a task that goes before it, a real-time task looks for another CPU.
    let own = task.user().map_or(0, |thread| thread.running_policy().priority());
    if own != 0 && queue::priority(last) >= own {
        let least = allowed.iter().min_by_key(|&cpu| queue::priority(cpu));
        if let Some(cpu) = least.filter(|&cpu| queue::priority(cpu) < own) {
            return (cpu, false);
        }
    }
    let busy = [last, here].into_iter().find(|&cpu| allowed.contains(cpu));
    (busy.or(allowed.iter().next()).unwrap_or(here), false)
}

/// Takes a CPU out of those that are idle; false if it isn't there.
fn take_idle(cpu: usize) -> bool {
    let bit = 1 << cpu;
    IDLE_CPUS.load(Relaxed) & bit != 0 && IDLE_CPUS.fetch_and(!bit, AcqRel) & bit != 0
}

/// Something these CPUs may run was queued at a busy one: has one that is idle by now look for it
/// (I4).
#[inline]
fn rouse(cpus: CpuSet) {
    let idle = CpuSet::from_bits(IDLE_CPUS.load(SeqCst)).intersection(cpus);
    if let Some(cpu) = idle.iter().find(|&cpu| take_idle(cpu)) {
        ipi::send(CpuSet::one(cpu), ipi::Ipi::Reschedule);
    }
}

/// Makes the program that runs here give way when it next leaves the kernel.
fn preempt() {
    let task = current();
    if task.user().is_some() {
        task.add_work(Work::RESCHEDULE);
    }
}

/// Another CPU has put something into this one's queue, or has work for the task that runs here.
/// Takes no lock.
pub fn reschedule_interrupt() {
    clock::turn_is_shorter();
}

/// A device's interrupt has been answered, which came upon a program or upon the kernel.
pub fn device_interrupt(from_program: bool) {
    if from_program && others_ready() {
        preempt();
    }
}

/// Has a task look at the work that was added to it: wakes it from its sleep, or interrupts it if
/// it runs elsewhere (I5).
pub fn interrupt(task: &Arc<Task>) {
    wake(task);
    nudge(task);
}

fn nudge(task: &Task) {
    if let Some(cpu) = runs_elsewhere(task) {
        ipi::send(CpuSet::one(cpu), ipi::Ipi::Reschedule);
    }
}

/// Restricts a task to these CPUs, of which at least one runs tasks. The running task has moved
/// when this returns; another one moves at once if it waits, soon if it runs.
pub fn set_affinity(task: &Arc<Task>, cpus: CpuSet) {
    task.allow(cpus);
    if core::ptr::eq(&**task, &*current()) {
        if !cpus.contains(cpu::index()) {
            schedule(Leaves::Now);
        }
        return;
    }
    if !cpus.contains(task.cpu()) {
        task.add_work(Work::RESCHEDULE);
        nudge(task);
        // In a queue it is found by the CPU that takes it from there, which may be long about it.
        rouse(cpus);
    }
}

/// Has a task follow its policy, which has changed.
pub fn follow_policy(task: &Arc<Task>) {
    if queue::follow(task) {
        if task.cpu() == cpu::index() {
            clock::turn_is_shorter();
        } else {
            ipi::send(CpuSet::one(task.cpu()), ipi::Ipi::Reschedule);
        }
    }
}

/// How long a task of a policy runs while others of its kind wait; 0 for without end.
pub fn turn_of(policy: Policy) -> Nanos {
    match policy.kind() {
        policy::FIFO => 0,
        policy::ROUND_ROBIN => fair::ROUND,
        _ => fair::LONGEST,
    }
}

/// Whether the current thread has a signal to see to.
pub fn signal_pending() -> bool {
    current().user().is_some() && upcalls::signal_pending()
}

/// Whether the running task is a program's thread that is being ended.
pub fn is_leaving() -> bool {
    current().user().is_some_and(|thread| thread.is_dying())
}

/// Calls `f` on each CPU in turn; the running task moves there and back. Sleeps.
pub fn on_each_cpu(mut f: impl FnMut()) {
    let this = current_owned();
    let allowed = this.allowed();
    for cpu in cpu::online().iter() {
        set_affinity(&this, CpuSet::one(cpu));
        f();
    }
    set_affinity(&this, allowed);
}

/// Lets others run first.
pub fn yield_now() {
    schedule(Leaves::GivesUp);
}

/// Ends the current task. A task that waits for it holds its own reference.
pub fn exit_current() -> ! {
    queue::leave();
    current().end();
    schedule(Leaves::Now);
    unreachable!("an exited task runs again")
}

/// When the current task leaves the CPU, if it could run on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// If another one goes before it.
    IfOthersAreFirst,
    /// If there is another one.
    Now,
    /// If there is another one, which then runs first.
    GivesUp,
}

/// Runs the next task, if there is one other than this.
fn schedule(leaves: Leaves) {
    crate::lock::assert_none_held();
    // A crowd that is woken or ends goes from one to the next in the kernel, where no interrupt is
    // taken otherwise.
    io::interrupt_window();
    let this = current();
    let here = cpu::index();
    let may_stay = this.state() == State::Ready && this.allowed().contains(here);
    let stays = may_stay && !this.is_idle() && leaves == Leaves::IfOthersAreFirst;
    let (next, now) = loop {
        match queue::pop(here, stays.then_some(&*this), leaves == Leaves::GivesUp) {
            Some(Taken { task, may_run: true, at }) => break (task, at),
            // The task was told to leave this CPU while it waited.
            Some(Taken { task, .. }) => enqueue(task, Comes::Ready),
            None if stays => {
                clock::turn_is_shorter();
                return;
            }
            None if this.state() == State::Ready
                && !this.is_idle()
                && this.allowed().contains(here) =>
            {
                return
            }
            None => match queue::steal(here) {
                None if this.is_idle() => return,
                stolen => {
                    let idle = || IDLE[here].get().expect("made by init").clone();
                    let next = stolen.unwrap_or_else(idle);
                    let now = queue::run(here, &next);
                    break (next, now);
                }
            },
        }
    };
    switch_to(next, now);
}

fn switch_to(next: Arc<Task>, now: Nanos) {
    let this = current();
    // The task gives way now.
    if this.has_work(Work::RESCHEDULE) {
        this.drop_work(Work::RESCHEDULE);
    }
    this.count_switch();
    clock::charge_switch(&this, &next, now);
    if this.user().is_some() {
        this.save_registers();
    }
    if let Some(thread) = next.user() {
        thread.activate_space();
        next.load_registers();
    } else if this.user().is_some() {
        pmap::idle();
    }
    let (id, stack, to) = (next.id(), next.entry_stack(), core::ptr::from_ref(&next.context));
    // SAFETY: `next` is current then and `this` is what `take_left` will give: both live. `next`
    // came from a queue, so its stack was left (I1); that of `this` isn't used by others until
    // `finish_switch`.
    unsafe {
        cpu::set_current(next, id, stack);
        switch::switch(&this.context, &*to);
    }
    finish_switch();
}

/// First thing on the new task's stack: the old one's isn't used any more, so the old task may go
/// on elsewhere (I1).
fn finish_switch() {
    let Some(left) = cpu::take_left() else { return };
    match left.park() {
        State::Parked | State::Blocking => {}
        State::Exited => left.release_stack(),
        State::Ready if left.is_idle() => {}
        State::Ready => {
            let (here, allowed, comes) = (cpu::index(), left.allowed(), left.comes());
            if !allowed.contains(here) {
                enqueue(left, comes);
            } else {
                let comes = if comes == Comes::Ready { Comes::Left } else { comes };
                if queue::push(here, left, comes) {
                    clock::turn_is_shorter();
                }
                if cpu::count() > 1 {
                    rouse(allowed);
                }
            }
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
    SAID.call_once(|| crate::control!("user {}", arch::clock::ticks()));
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
            schedule(Leaves::IfOthersAreFirst);
        }
        if work.contains(Work::TICK) {
            count_time(&task);
        }
        if work.contains(Work::SIGNAL) {
            upcalls::return_to_user(regs);
        }
    }
}

/// A tick has come upon the running thread of a program.
fn count_time(task: &Task) {
    if let Some(thread) = task.user() {
        upcalls::tick(&thread.process);
    }
}

/// Runs tasks for ever, and halts the CPU when there are none.
pub fn idle() -> ! {
    // The idle task never leaves its CPU.
    let here = cpu::index();
    let bit = 1 << here;
    let mut rest = IdleSpin::new();
    loop {
        schedule(Leaves::Now);
        IDLE_CPUS.fetch_or(bit, SeqCst);
        match queue::steal(here) {
            Some(task) => _ = queue::push(here, task, Comes::Ready),
            // The CPU that has taken the bit out has sent an interrupt, which may have been
            // answered while `steal` waited for a lock.
            None => rest.until(|| queue::len(here) != 0 || IDLE_CPUS.load(SeqCst) & bit == 0),
        }
        IDLE_CPUS.fetch_and(!bit, AcqRel);
    }
}

/// CPUs that run something.
pub fn busy() -> CpuSet {
    cpu::online().without(CpuSet::from_bits(IDLE_CPUS.load(SeqCst)))
}

/// The CPU that runs a task at this moment, if it isn't this one.
pub fn runs_elsewhere(task: &Task) -> Option<usize> {
    let cpu = task.cpu();
    (cpu != cpu::index() && cpu::runs(cpu, task.id())).then_some(cpu)
}

/// Whether a CPU runs its idle task and has nothing to do.
fn is_idle(cpu: usize) -> bool {
    IDLE_CPUS.load(Relaxed) >> cpu & 1 == 1
}

/// Whether another task could run on this CPU.
#[inline]
fn others_ready() -> bool {
    queue::len(cpu::index()) != 0
}

/// The current program's vector state, as a signal frame holds it.
pub fn fpu_get(out: &mut alloc::vec::Vec<u8>) {
    let this = current();
    let mut state = this.fpu();
    state.save();
    out.extend_from_slice(state.bytes());
}

/// Replaces the current program's vector state by bytes that it chose itself.
pub fn fpu_set(bytes: &[u8]) {
    let this = current();
    let mut state = this.fpu();
    state.save();
    let own = state.bytes_mut();
    let len = own.len().min(bytes.len());
    own[..len].copy_from_slice(&bytes[..len]);
    state.sanitize();
    state.load();
}

/// Gives the current program the vector state that a program starts with.
pub fn fpu_reset() {
    let this = current();
    let mut state = this.fpu();
    state.reset();
    state.load();
}

/// Ends everything: reports the exit code of the first process and leaves.
pub fn shut_down(code: i32) -> ! {
    crate::control!("exit {code}");
    arch::power_off(0x10)
}
