//! New threads and processes: fork, vfork, clone, clone3 in one.
//!
//! Everything that can fail is made first; then the child is entered in the table and started. On
//! failure all that was made is dropped again and nothing has changed.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::limits::RLIMIT_NPROC;
use super::mm::Mm;
use super::pidfd::Expected;
use super::process::{Holding, Inherited, Process};
use super::signal::{Actions, AltStack, SIGCHLD};
use super::table::{self, Asker, Pid, ReservedPid};
use super::thread::{Completion, Thread};
use super::timer::Timers;
use super::{current_thread, trace, wait};
use crate::arch::layout::USER_END;
use crate::arch::UserRegs;
use crate::charge::Account;
use crate::cred::caps::Caps;
use crate::errno::{Result, EINVAL, EPERM, ERESTARTNOINTR, ESRCH};
use crate::mem::fault::Room;
use crate::mem::{heap, stack};
use crate::vm::{self, Asks};
use crate::{sched, user};
use bitflags::bitflags;

bitflags! {
    /// The flags of `clone` that mean something here.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Flags: u64 {
        const VM = 0x100;
        const FS = 0x200;
        const FILES = 0x400;
        const SIGHAND = 0x800;
        const PIDFD = 0x1000;
        const PTRACE = 0x2000;
        const VFORK = 0x4000;
        const PARENT = 0x8000;
        const THREAD = 0x1_0000;
        const SETTLS = 0x8_0000;
        const PARENT_SETTID = 0x10_0000;
        const CHILD_CLEARTID = 0x20_0000;
        const CHILD_SETTID = 0x100_0000;
        const CLEAR_SIGHAND = 0x1_0000_0000;
        const _ = !0;
    }
}

/// What a process and another thread are charged for: kernel stack, vector state, records, the
/// first tables.
const THREAD: usize = stack::SIZE as usize + size_of::<Thread>() + 4096;
const PROCESS: usize = THREAD + size_of::<Process>() + size_of::<Timers>() + 8192;

/// More than a process takes from the heap besides its address space.
const HEAP_NEED: usize = 16 << 10;

/// Flags that ask for new namespaces: not there.
const REFUSED: u64 = 0x7e02_0080 | 0x2_0000_0000;

/// What a new thread or process is to be.
#[derive(Clone, Copy)]
pub struct Request {
    pub flags: Flags,
    pub exit_signal: i32,
    /// Its stack pointer; 0 for the caller's.
    pub stack: u64,
    pub tls: u64,
    pub parent_tid: u64,
    pub child_tid: u64,
    /// Where the number of its descriptor is to stand.
    pub pidfd: u64,
}

impl Request {
    /// Plain fork.
    pub fn fork() -> Request {
        let flags = Flags::empty();
        Request {
            flags,
            exit_signal: SIGCHLD.number(),
            stack: 0,
            tls: 0,
            parent_tid: 0,
            child_tid: 0,
            pidfd: 0,
        }
    }

    fn check(&self) -> Result<()> {
        let has = |flags| self.flags.contains(flags);
        let thread_alone = has(Flags::THREAD) && !has(Flags::SIGHAND);
        let sighand_alone = has(Flags::SIGHAND) && !has(Flags::VM);
        let contrary =
            has(Flags::SIGHAND | Flags::CLEAR_SIGHAND) || has(Flags::THREAD | Flags::PIDFD);
        if thread_alone || sighand_alone || contrary || self.flags.bits() & REFUSED != 0 {
            return Err(EINVAL);
        }
        let orphan = has(Flags::PARENT) && super::current_process().parent() == 0;
        // Numbers that no signal has are no signal.
        if orphan || !(0..=255).contains(&self.exit_signal) {
            return Err(EINVAL);
        }
        if has(Flags::SETTLS) && self.tls >= USER_END {
            return Err(EPERM);
        }
        Ok(())
    }
}

/// Makes a thread or process that goes on from `regs`, where its call returns 0. Returns its number
/// to the caller.
pub fn clone(regs: &mut UserRegs, request: &Request) -> Result<Pid> {
    request.check()?;
    let caller = &current_thread();
    vm::leave_memory(match Asker::of(&caller.process) {
        Asker::Root => Asks::Process,
        Asker::Other => Asks::OtherProcess,
    })?;
    vm::with_room(|| heap::reserve(HEAP_NEED))?;
    regs.store_bases();
    let mut first = regs.clone();
    first.set_result(0);
    if request.stack != 0 {
        first.set_stack_pointer(request.stack);
    }
    if request.flags.contains(Flags::SETTLS) {
        first.set_thread_pointer(request.tls);
    }
    if request.flags.contains(Flags::THREAD) {
        // Before a number is taken: a user who may have no more must not wear numbers out.
        let holding = Holding::new(&caller.process.account(), THREAD, most_tasks(&caller.process))?;
        let reserved = table::expect(table::NO_PARENT, Asker::of(&caller.process))?;
        let child = new_thread(caller, request, reserved.pid(), holding)?;
        inherit_policy(caller, &child);
        let made = start(caller, child, first, request, reserved, None)?;
        return Ok(made.told(caller, regs));
    }
    let account = Account::new(caller.process.account().user().clone());
    let holding = Holding::new(&account, PROCESS, most_tasks(&caller.process))?;
    let reserved = table::expect(caller.process.pid, Asker::of(&caller.process))?;
    // What comes from now on the child gets as well (`table`, N4).
    if super::signal::deliver::must_attend() {
        return Err(ERESTARTNOINTR);
    }
    let wants_descriptor = request.flags.contains(Flags::PIDFD);
    let descriptor =
        wants_descriptor.then(|| Expected::new(reserved.pid(), request.pidfd)).transpose()?;
    let child = new_process(caller, request, reserved.pid(), account, holding)?;
    descriptor.iter().for_each(|descriptor| descriptor.is_of(&child.process));
    inherit_policy(caller, &child);
    let made = start(caller, child, first, request, reserved, descriptor)?;
    Ok(made.told(caller, regs))
}

/// A thread or process that runs.
struct Made {
    tid: Pid,
    /// The caller's tracer wants to hear of this event, and traces it too.
    event: Option<u32>,
    /// The caller waits until it leaves the space.
    vfork: Option<Arc<Completion>>,
}

impl Made {
    /// The caller's tracer is told, and the end of a vfork awaited; its number.
    fn told(self, caller: &Arc<Thread>, regs: &mut UserRegs) -> Pid {
        if let Some(event) = self.event {
            trace::event(caller, regs, event, self.tid as u64);
        }
        if let Some(done) = self.vfork {
            wait::wait_vfork(&done);
            trace::event(caller, regs, trace::EVENT_VFORK_DONE, self.tid as u64);
        }
        self.tid
    }
}

/// The event that a tracer may ask for.
fn event_of(request: &Request) -> Option<u32> {
    const UNTRACED: u64 = 0x80_0000;
    if request.flags.bits() & UNTRACED != 0 {
        None
    } else if request.flags.contains(Flags::VFORK) {
        Some(trace::EVENT_VFORK)
    } else if request.exit_signal == SIGCHLD.number() {
        Some(trace::EVENT_FORK)
    } else {
        Some(trace::EVENT_CLONE)
    }
}

/// A policy that is reset takes its rank above others with it.
fn inherit_policy(caller: &Thread, child: &Thread) {
    let (own, nice) = (caller.policy(), caller.nice());
    child.timer_slack.store(caller.timer_slack.load(Ordering::Relaxed), Ordering::Relaxed);
    let policy = own.of_child();
    child.change_policy(|_| Some(policy));
    let starts_anew = own.resets_at_fork && (own.priority() != 0 || nice < 0);
    child.renice(if starts_anew { 0 } else { nice });
}

fn mm_for(caller: &Thread, flags: Flags) -> Result<Arc<Mm>> {
    let mm = caller.mm().ok_or(ESRCH)?;
    if flags.contains(Flags::VM) {
        Ok(mm.share())
    } else {
        mm.fork()
    }
}

fn new_thread(
    caller: &Arc<Thread>,
    request: &Request,
    tid: Pid,
    holding: Holding,
) -> Result<Arc<Thread>> {
    let process = &caller.process;
    let mm = mm_for(caller, request.flags)?;
    let (mask, comm) = (caller.mask(), caller.comm_bytes());
    Ok(Arc::new(Thread::new(tid, process.clone(), mm, mask, comm, Some(holding))))
}

fn new_process(
    caller: &Arc<Thread>,
    request: &Request,
    pid: Pid,
    account: Arc<Account>,
    holding: Holding,
) -> Result<Arc<Thread>> {
    let parent = &caller.process;
    let (files, fs) = (parent.files()?, parent.fs()?);
    let flags = request.flags;
    let from = Inherited {
        files: if flags.contains(Flags::FILES) { files } else { Arc::new(files.fork(&account)?) },
        fs: if flags.contains(Flags::FS) { fs } else { Arc::new(fs.fork()) },
        cred: parent.cred(),
        limits: parent.limits.lock().clone(),
        actions: inherited_actions(parent, flags),
        account,
        holding,
    };
    let mm = mm_for(caller, flags)?;
    // A sibling is announced to the common parent as the caller will be, not by a signal that the
    // caller chooses.
    let sibling = flags.contains(Flags::PARENT);
    let exit_signal =
        if sibling { parent.exit_signal.load(Ordering::Relaxed) } else { request.exit_signal };
    let process = Process::new(pid, exit_signal, from);
    let maker = if sibling { parent.made_by.load(Ordering::Relaxed) } else { caller.tid() };
    process.made_by.store(maker, Ordering::Relaxed);
    process.pgid.store(parent.pgid(), Ordering::Relaxed);
    process.sid.store(parent.sid(), Ordering::Relaxed);
    process.personality.store(parent.personality.load(Ordering::Relaxed), Ordering::Relaxed);
    for (flag, parents) in [
        (&process.no_new_privileges, &parent.no_new_privileges),
        (&process.no_large_pages, &parent.no_large_pages),
    ] {
        flag.store(parents.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    process.oom.inherit(&parent.oom);
    let thread = Thread::new(pid, Arc::new(process), mm, caller.mask(), caller.comm_bytes(), None);
    if !flags.contains(Flags::VM) || flags.contains(Flags::VFORK) {
        *thread.altstack.lock() = *caller.altstack.lock();
    }
    Ok(Arc::new(thread))
}

fn inherited_actions(parent: &Process, flags: Flags) -> Arc<Actions> {
    let mut actions = parent.group.lock().actions.clone();
    if flags.contains(Flags::CLEAR_SIGHAND) {
        Arc::make_mut(&mut actions).reset_caught();
    }
    actions
}

/// How many processes and threads the user may have, by `RLIMIT_NPROC`; root, and a process that
/// may exceed limits, as many as there can be.
fn most_tasks(parent: &Process) -> usize {
    let cred = parent.cred();
    let free = cred.uid == 0 || cred.has(Caps::SYS_RESOURCE) || cred.has(Caps::SYS_ADMIN);
    if free {
        usize::MAX
    } else {
        parent.limit(RLIMIT_NPROC) as usize
    }
}

/// Enters the child everywhere, opens its descriptor and lets it run. Whatever fails here is
/// undone.
fn start(
    caller: &Arc<Thread>,
    child: Arc<Thread>,
    regs: UserRegs,
    request: &Request,
    reserved: ReservedPid,
    descriptor: Option<Expected>,
) -> Result<Made> {
    let flags = request.flags;
    let tid = child.tid();
    if flags.contains(Flags::PARENT_SETTID) {
        // As on Linux: it isn't an error where there is no memory.
        let _ = user::put(request.parent_tid, &tid);
    }
    if flags.contains(Flags::CHILD_CLEARTID) {
        child.clear_child_tid.store(request.child_tid, Ordering::Relaxed);
    }
    if flags.contains(Flags::CHILD_SETTID) {
        child.set_child_tid.store(request.child_tid, Ordering::Relaxed);
    }
    let vfork = flags.contains(Flags::VFORK).then(Completion::new);
    child.vfork.lock().clone_from(&vfork);
    let task = match vm::with_room(|| sched::new_user(child.clone(), &regs)) {
        Ok(task) => task,
        Err(error) => {
            discard(&child);
            return Err(error.into());
        }
    };
    child.set_task(&task);
    child.poke();
    if let Err(errno) = enter(caller, &child, flags, reserved) {
        discard(&child);
        child.forget_task();
        sched::discard(task);
        return Err(errno);
    }
    table::count_made();
    if let Some(descriptor) = descriptor {
        descriptor.open();
    }
    let asks =
        if request.flags.contains(Flags::PTRACE) { trace::Asks::Yes } else { trace::Asks::No };
    let event = event_of(request);
    let is_told = trace::follow(caller, &child, event, asks);
    let event = event.filter(|_| is_told);
    sched::start(&task);
    Ok(Made { tid, event, vfork })
}

/// Enters the child in its group and in the table. A thread can't join a process that ends, or in
/// which another thread is in exec: the caller is to go too, and its call isn't finished. A process
/// that ends has no more children either.
fn enter(caller: &Thread, child: &Arc<Thread>, flags: Flags, reserved: ReservedPid) -> Result<()> {
    let process = &child.process;
    if flags.contains(Flags::THREAD) {
        let mut group = process.group.lock();
        if group.exiting.is_some() || group.exec.is_some() {
            return Err(ERESTARTNOINTR);
        }
        group.threads.room(1)?;
        // The process may have become another user's since the thread was charged.
        child.follow_account(&process.account());
        group.threads.push(child.clone());
        drop(group);
        table::with(|tree| tree.insert_thread(child.clone()));
        drop(reserved);
        return Ok(());
    }
    let own = &caller.process;
    if caller.is_dying() {
        return Err(ERESTARTNOINTR);
    }
    process.group.lock().threads.push(child.clone());
    let parent = if flags.contains(Flags::PARENT) { own.parent() } else { own.pid };
    table::insert(process.clone(), child.clone(), parent, Some(reserved));
    Ok(())
}

/// Gives back what a child that never ran was given.
fn discard(child: &Thread) {
    *child.altstack.lock() = AltStack::default();
    if let Some(mm) = child.replace_mm(None) {
        mm.leave(&child.process);
    }
}
