//! System calls on signals. The work is in `crate::proc::signal`.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::path_args::only;
use super::{calls, Calls};
use crate::arch::UserRegs;
use crate::errno::{Result, EAGAIN, EINTR, EINVAL, ENOMEM, EPERM, ERESTARTNOHAND, ESRCH};
use crate::fs::fdtable::OnExec;
use crate::proc::curproc;
use crate::proc::signal::frame::{self, StackT};
use crate::proc::signal::signalfd::SignalFd;
use crate::proc::signal::{
    code, flag, send, Actions, AltStack, Detail, SigAction, SigInfo, SigSet, Signal, SIGKILL,
    SIGSTOP,
};
use crate::proc::{access, current_process, current_thread, table, timer, Pid};
use crate::sync::{WaitQueue, Woken};
use crate::user;
use core::sync::atomic::Ordering;

pub const CALLS: Calls = calls! {
    __NR_rt_sigaction => rt_sigaction[4],
    __NR_rt_sigprocmask => rt_sigprocmask[4],
    __NR_rt_sigpending => rt_sigpending[2],
    __NR_rt_sigsuspend => rt_sigsuspend[2],
    __NR_rt_sigtimedwait => rt_sigtimedwait[4],
    __NR_rt_sigqueueinfo => rt_sigqueueinfo[3],
    __NR_rt_tgsigqueueinfo => rt_tgsigqueueinfo[4],
    __NR_rt_sigreturn => rt_sigreturn[regs],
    __NR_sigaltstack => sigaltstack[regs],
    __NR_kill => kill[2],
    __NR_tkill => tkill[2],
    __NR_tgkill => tgkill[3],
    __NR_pause => pause[0],
    __NR_signalfd => signalfd[3],
    __NR_signalfd4 => signalfd4[4],
};

/// The size of the kernel's `sigset_t`, which every call must name.
const SET_SIZE: usize = 8;
const STACK_MIN: u64 = 2048;

fn check_size(size: usize) -> Result<()> {
    if size == SET_SIZE {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

fn rt_sigaction(number: i32, new: u64, old: u64, size: usize) -> Result<()> {
    check_size(size)?;
    let signal = Signal::new(number)?;
    let new: Option<SigAction> = if new == 0 { None } else { Some(user::get(new)?) };
    if new.is_some() && (signal == SIGKILL || signal == SIGSTOP) {
        return Err(EINVAL);
    }
    let process = &current_process();
    let before = {
        let mut group = process.group.lock();
        let (before, was_ignored) = (group.actions.get(signal), group.actions.ignores(signal));
        if let Some(mut action) = new {
            action.flags &= flag::KNOWN;
            action.mask &= !SigSet::UNBLOCKABLE.0;
            Arc::<Actions>::make_mut(&mut group.actions).set(signal, action);
            if group.actions.ignores(signal) {
                send::discard(process, &mut group, SigSet::of(&[signal]));
            } else if was_ignored {
                timer::go_on(process, SigSet::of(&[signal]));
            }
        }
        before
    };
    if old != 0 {
        user::put(old, &before)?;
    }
    Ok(())
}

fn rt_sigprocmask(how: i32, new: u64, old: u64, size: usize) -> Result<()> {
    check_size(size)?;
    let before = current_thread().mask();
    if new != 0 {
        let set = SigSet(user::get(new)?);
        let mask = match how {
            0 => before.with(set),
            1 => before.without(set),
            2 => set,
            _ => return Err(EINVAL),
        };
        send::set_mask(mask);
    }
    if old != 0 {
        user::put(old, &before.0)?;
    }
    Ok(())
}

fn rt_sigpending(set: u64, size: usize) -> Result<()> {
    if size > SET_SIZE {
        return Err(EINVAL);
    }
    let thread = current_thread();
    let pending = {
        let group = thread.process.group.lock();
        let own = thread.pending.lock().set();
        group.pending.set().with(own)
    };
    let pending = pending.0 & thread.mask().0;
    user::copy_out(set, &pending.to_le_bytes()[..size])
}

fn rt_sigsuspend(set: u64, size: usize) -> Result<()> {
    check_size(size)?;
    let mask = SigSet(user::get(set)?);
    swap_mask(mask);
    sleep_until_signal()
}

/// Installs a mask until the next return to user mode, which restores the present one after any
/// handler has run.
pub fn swap_mask(mask: SigSet) {
    let thread = current_thread();
    *thread.saved_mask.lock() = Some(thread.mask());
    send::set_mask(mask);
    crate::proc::request_return_work();
}

fn pause() -> Result<()> {
    sleep_until_signal()
}

fn sleep_until_signal() -> Result<()> {
    let _ = WaitQueue::new().wait_intr(None, || None::<()>);
    Err(ERESTARTNOHAND)
}

fn rt_sigtimedwait(set: u64, info: u64, timeout: u64, size: usize) -> Result<i32> {
    check_size(size)?;
    let wanted = SigSet(user::get(set)?).without(SigSet::UNBLOCKABLE);
    let deadline = match timeout {
        0 => None,
        _ => Some(crate::sched::now().saturating_add(crate::time::read_timespec(timeout)?)),
    };
    let thread = current_thread();
    let take = || thread.take_pending(wanted);
    thread.waiting_for.store(wanted.0, Ordering::Relaxed);
    let outcome = WaitQueue::new().wait_intr(deadline, take);
    thread.waiting_for.store(0, Ordering::Relaxed);
    let found = outcome.map_err(|why| match why {
        Woken::Timeout => EAGAIN,
        Woken::Signal => EINTR,
    })?;
    if info != 0 {
        user::put(info, &found.to_bytes())?;
    }
    Ok(found.signal.number())
}

fn signalfd(fd: i32, set: u64, size: usize) -> Result<i32> {
    signalfd4(fd, set, size, 0)
}

fn signalfd4(fd: i32, set: u64, size: usize, flags: u32) -> Result<i32> {
    only(flags, abi::O_CLOEXEC | abi::O_NONBLOCK)?;
    check_size(size)?;
    let mask = SigSet(user::get(set)?).without(SigSet::UNBLOCKABLE);
    if fd == -1 {
        return curproc::files()?.insert(SignalFd::create(mask, flags)?, OnExec::from_flags(flags));
    }
    SignalFd::set(&*curproc::file(fd)?, mask)?;
    Ok(fd)
}

/// The `siginfo_t` of a program: code, sender and value.
pub(super) fn read_info(signal: Signal, at: u64) -> Result<SigInfo> {
    let words: [i32; 8] = user::get(at)?;
    let value = words[6] as u32 as u64 | (words[7] as u32 as u64) << 32;
    let detail = Detail::Sender { pid: words[4], uid: words[5] as u32, value };
    Ok(SigInfo { signal, code: words[2], detail })
}

pub(super) fn check_code(info: &SigInfo, pid: Pid) -> Result<()> {
    let forged = info.code >= 0 || info.code == code::SI_TKILL;
    if forged && pid != current_process().pid {
        return Err(EPERM);
    }
    Ok(())
}

fn rt_sigqueueinfo(pid: Pid, number: i32, info: u64) -> Result<()> {
    let signal = optional(number)?;
    let info = read_info(signal.unwrap_or(SIGKILL), info)?;
    check_code(&info, pid)?;
    let target = table::process(pid).ok_or(ESRCH)?;
    access::may_signal(&target, signal)?;
    match signal {
        Some(_) => send::send_to_process(&target, info),
        None => Ok(()),
    }
}

fn rt_tgsigqueueinfo(tgid: Pid, tid: Pid, number: i32, info: u64) -> Result<()> {
    let signal = optional(number)?;
    let info = read_info(signal.unwrap_or(SIGKILL), info)?;
    check_code(&info, tgid)?;
    to_thread(Some(tgid), tid, signal, info)
}

/// A signal number where 0 stands for none.
pub(super) fn optional(number: i32) -> Result<Option<Signal>> {
    if number == 0 {
        Ok(None)
    } else {
        Signal::new(number).map(Some)
    }
}

fn kill(pid: i32, number: i32) -> Result<()> {
    send::kill(i64::from(pid), optional(number)?)
}

fn tkill(tid: Pid, number: i32) -> Result<()> {
    tgkill_any(None, tid, number)
}

fn tgkill(tgid: Pid, tid: Pid, number: i32) -> Result<()> {
    if tgid <= 0 {
        return Err(EINVAL);
    }
    tgkill_any(Some(tgid), tid, number)
}

fn tgkill_any(tgid: Option<Pid>, tid: Pid, number: i32) -> Result<()> {
    if tid <= 0 {
        return Err(EINVAL);
    }
    let signal = optional(number)?;
    let info = SigInfo {
        signal: signal.unwrap_or(SIGKILL),
        code: code::SI_TKILL,
        detail: send::sender(0),
    };
    to_thread(tgid, tid, signal, info)
}

fn to_thread(tgid: Option<Pid>, tid: Pid, signal: Option<Signal>, info: SigInfo) -> Result<()> {
    let thread = table::thread(tid).ok_or(ESRCH)?;
    if tgid.is_some_and(|tgid| tgid != thread.process.pid) {
        return Err(ESRCH);
    }
    access::may_signal(&thread.process, signal)?;
    match signal {
        Some(_) => send::send_to_thread(&thread, info),
        None => Ok(()),
    }
}

fn rt_sigreturn(regs: &mut UserRegs) -> Result<u64> {
    let thread = &current_thread();
    match frame::pop(thread, regs) {
        Ok(mask) => {
            send::set_mask(mask);
            Ok(regs.result())
        }
        Err(_) => {
            send::force(SigInfo::kernel(crate::proc::signal::SIGSEGV));
            Ok(0)
        }
    }
}

fn sigaltstack(regs: &mut UserRegs) -> Result<()> {
    let (new, old, sp) = (regs.argument(0), regs.argument(1), regs.stack_pointer());
    let thread = current_thread();
    let present = *thread.altstack.lock();
    let new: Option<StackT> = if new == 0 { None } else { Some(user::get(new)?) };
    if let Some(new) = new {
        if present.holds(sp) {
            return Err(EPERM);
        }
        let stack: AltStack = new.parse().ok_or(EINVAL)?;
        if !new.disables() && stack.size < STACK_MIN {
            return Err(ENOMEM);
        }
        *thread.altstack.lock() = stack;
    }
    if old != 0 {
        user::put(old, &StackT::describe(present, sp))?;
    }
    Ok(())
}
