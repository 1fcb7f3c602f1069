//! System calls on the scheduler: policies, priorities, niceness, affinity.

use alloc::sync::Arc;
use core::cell::Cell;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;

use super::{calls, Calls};
use crate::arch::cpu;
use crate::errno::{Result, E2BIG, EINVAL, EPERM, ESRCH};
use crate::mem::fault;
use crate::proc::process::Process;
use crate::proc::{access, current_process, current_thread, table, Pid, Thread};
use crate::sched::{self, policy, Policy};
use crate::user;
use machine::CpuSet;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const CALLS: Calls = calls! {
    __NR_sched_yield => sched_yield[0],
    __NR_sched_getaffinity => sched_getaffinity[3],
    __NR_sched_setaffinity => sched_setaffinity[3],
    __NR_sched_getscheduler => sched_getscheduler[1],
    __NR_sched_setscheduler => sched_setscheduler[3],
    __NR_sched_getparam => sched_getparam[2],
    __NR_sched_setparam => sched_setparam[2],
    __NR_sched_get_priority_max => sched_priority_max[1],
    __NR_sched_get_priority_min => sched_priority_min[1],
    __NR_sched_rr_get_interval => sched_rr_get_interval[2],
    __NR_getpriority => getpriority[2],
    __NR_setpriority => setpriority[3],
    __NR_sched_setattr => sched_setattr[3],
    __NR_sched_getattr => sched_getattr[4],
};

fn sched_yield() -> Result<()> {
    sched::yield_now();
    Ok(())
}

/// A thread by number, where 0 is the caller and no negative number is a thread's.
fn thread(tid: Pid) -> Result<Arc<Thread>> {
    match tid {
        0 => Ok(current_thread().clone()),
        _ => table::thread(tid).ok_or(ESRCH),
    }
}

/// As [`thread`], for calls that refuse a negative number.
fn thread_or_self(tid: Pid) -> Result<Arc<Thread>> {
    if tid < 0 {
        return Err(EINVAL);
    }
    thread(tid)
}

fn sched_getaffinity(tid: Pid, size: u32, at: u64) -> Result<usize> {
    const MASK: usize = 8;
    // Counted in bits, of which there are 32 bits' worth.
    if size.wrapping_mul(8) < cpu::online().bits().count_ones() || !size.is_multiple_of(8) {
        return Err(EINVAL);
    }
    let thread = self::thread(tid)?;
    let task = thread.task().ok_or(ESRCH)?;
    user::put(at, &task.allowed().intersection(cpu::online()).bits())?;
    Ok(MASK)
}

fn sched_setaffinity(tid: Pid, size: usize, at: u64) -> Result<()> {
    let mut mask = [0; 8];
    let known = size.min(mask.len());
    user::copy_in(&mut mask[..known], at)?;
    let cpus = CpuSet::from_bits(u64::from_le_bytes(mask));
    let thread = self::thread(tid)?;
    access::may_schedule(&thread.process)?;
    if cpus.intersection(cpu::online()).is_empty() {
        return Err(EINVAL);
    }
    sched::set_affinity(&thread.task().ok_or(ESRCH)?, cpus);
    Ok(())
}

/// A policy as a program states it: its number, with a bit for what children begin with.
fn policy_of(number: i32, priority: u32) -> Result<Policy> {
    const RESETS_AT_FORK: i32 = 0x4000_0000;
    let resets = number & RESETS_AT_FORK != 0;
    Policy::new(number & !RESETS_AT_FORK, priority, resets).ok_or(EINVAL)
}

fn sched_getscheduler(tid: Pid) -> Result<i32> {
    let policy = thread_or_self(tid)?.policy();
    Ok(i32::from(policy.kind()) | i32::from(policy.resets_at_fork) << 30)
}

fn sched_setscheduler(tid: Pid, number: i32, param: u64) -> Result<()> {
    if number < 0 || param == 0 {
        return Err(EINVAL);
    }
    let thread = thread_or_self(tid)?;
    access::change_policy(&thread, policy_of(number, user::get(param)?)?)
}

fn sched_getparam(tid: Pid, param: u64) -> Result<()> {
    if param == 0 {
        return Err(EINVAL);
    }
    let policy = thread_or_self(tid)?.policy();
    user::put(param, &i32::from(policy.priority()))
}

fn sched_setparam(tid: Pid, param: u64) -> Result<()> {
    if param == 0 {
        return Err(EINVAL);
    }
    let thread = thread_or_self(tid)?;
    let (old, priority) = (thread.policy(), user::get(param)?);
    let new = Policy::new(i32::from(old.kind()), priority, old.resets_at_fork).ok_or(EINVAL)?;
    access::change_policy(&thread, new)
}

/// `struct sched_attr` in its first version.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of `SCHED_DEADLINE`.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const ATTRIBUTES: usize = size_of::<Attributes>();
const RESET_ON_FORK: u64 = 1;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMETERS: u64 = 16;

fn sched_setattr(tid: Pid, at: u64, flags: u32) -> Result<()> {
    if tid < 0 || at == 0 || flags != 0 {
        return Err(EINVAL);
    }
    let size = match user::get::<u32>(at)? as usize {
        0 => ATTRIBUTES,
        size @ ATTRIBUTES..=4096 => size,
        _ => {
            user::put(at, &(ATTRIBUTES as u32))?;
            return Err(E2BIG);
        }
    };
    let mut rest = [0u8; 64];
    for from in (ATTRIBUTES..size).step_by(rest.len()) {
        let some = &mut rest[..(size - from).min(64)];
        user::copy_in(some, at + from as u64)?;
        if some.iter().any(|&byte| byte != 0) {
            user::put(at, &(ATTRIBUTES as u32))?;
            return Err(E2BIG);
        }
    }
    let asked: Attributes = user::get(at)?;
    if asked.flags & !(RESET_ON_FORK | KEEP_POLICY | KEEP_PARAMETERS) != 0 {
        return Err(EINVAL);
    }
    let thread = thread_or_self(tid)?;
    let old = thread.policy();
    let keeps = |flag| asked.flags & flag != 0;
    let kind = match i32::try_from(asked.policy) {
        _ if keeps(KEEP_POLICY) => i32::from(old.kind()),
        Ok(kind) => kind,
        Err(_) => return Err(EINVAL),
    };
    let priority = if keeps(KEEP_PARAMETERS) { u32::from(old.priority()) } else { asked.priority };
    let new = Policy::new(kind, priority, keeps(RESET_ON_FORK)).ok_or(EINVAL)?;
    let has_nice = [policy::OTHER, policy::BATCH].contains(&new.kind());
    let nice = (has_nice && !keeps(KEEP_PARAMETERS)).then_some(asked.nice.clamp(-20, 19));
    access::may_renice(&thread, nice.unwrap_or(thread.nice())).map_err(|_| EPERM)?;
    access::change_policy(&thread, new)?;
    if let Some(nice) = nice {
        thread.renice(nice);
    }
    Ok(())
}

fn sched_getattr(tid: Pid, at: u64, size: u32, flags: u32) -> Result<()> {
    let size = size as usize;
    if tid < 0 || at == 0 || flags != 0 || !(ATTRIBUTES..=4096).contains(&size) {
        return Err(EINVAL);
    }
    let thread = thread_or_self(tid)?;
    let policy = thread.policy();
    let has_nice = [policy::OTHER, policy::BATCH].contains(&policy.kind());
    let nice = thread.nice();
    let attributes = Attributes {
        size: ATTRIBUTES as u32,
        policy: policy.kind().into(),
        flags: u64::from(policy.resets_at_fork) * RESET_ON_FORK,
        nice: if has_nice { nice } else { 0 },
        priority: policy.priority().into(),
        ..Attributes::default()
    };
    user::put(at, &attributes)
}

fn priorities(number: i32) -> Result<RangeInclusive<u8>> {
    u8::try_from(number).ok().and_then(Policy::priorities).ok_or(EINVAL)
}

fn sched_priority_max(number: i32) -> Result<i32> {
    Ok(i32::from(*priorities(number)?.end()))
}

fn sched_priority_min(number: i32) -> Result<i32> {
    Ok(i32::from(*priorities(number)?.start()))
}

fn sched_rr_get_interval(tid: Pid, at: u64) -> Result<()> {
    let turn = sched::turn_of(thread_or_self(tid)?.policy());
    user::put(at, &crate::time::Timespec::from_nanos(turn))
}

const PRIO_PROCESS: i32 = 0;
const PRIO_PGRP: i32 = 1;
const PRIO_USER: i32 = 2;

/// Calls `f` with the threads that a kind and a number stand for: one, those of a group of
/// processes, or a user's; `ended` with processes that have none any more and are to be waited for.
///
/// # Errors
/// `EINVAL` for an unknown kind; `ESRCH` if there is no such thread.
fn for_each_thread_of(
    kind: i32,
    id: i32,
    mut f: impl FnMut(&Arc<Thread>),
    mut ended: impl FnMut(&Process),
) -> Result<()> {
    let own = current_process();
    let processes = match (kind, id) {
        (PRIO_PROCESS, _) => {
            match (thread(id), table::process(id)) {
                (Ok(thread), _) => f(&thread),
                (_, Some(process)) => ended(&process),
                (Err(errno), None) => return Err(errno),
            }
            return Ok(());
        }
        (PRIO_PGRP, _) => table::group_members(if id == 0 { own.pgid() } else { id })?,
        (PRIO_USER, _) => {
            let uid = if id == 0 { own.cred().uid } else { id as u32 };
            fault::gather(table::processes().filter(|process| process.cred().uid == uid))?
        }
        _ => return Err(EINVAL),
    };
    for process in &processes {
        let mut has_threads = false;
        process.for_each_thread(|thread| {
            has_threads = true;
            f(thread);
        });
        if !has_threads {
            ended(process);
        }
    }
    if processes.is_empty() {
        Err(ESRCH)
    } else {
        Ok(())
    }
}

/// As 20 less the niceness, so that no answer is negative: of several threads the least nice one's.
fn getpriority(kind: i32, id: i32) -> Result<i32> {
    let least = Cell::new(i32::MAX);
    let look = |nice: i32| least.set(least.get().min(nice));
    let ended = |process: &Process| look(process.nice.load(Ordering::Relaxed));
    for_each_thread_of(kind, id, |thread| look(thread.nice()), ended)?;
    Ok(20 - least.get().min(19))
}

fn setpriority(kind: i32, id: i32, nice: i32) -> Result<()> {
    let nice = nice.clamp(-20, 19);
    // All of them are tried; what one of them refuses is told.
    let outcome = Cell::new(Ok(()));
    let each = |thread: &Arc<Thread>| match access::may_renice(thread, nice) {
        Ok(()) => thread.renice(nice),
        refused => outcome.set(refused),
    };
    let ended = |process: &Process| match access::may_schedule(process) {
        Ok(()) => process.nice.store(nice, Ordering::Relaxed),
        refused => outcome.set(refused),
    };
    for_each_thread_of(kind, id, each, ended)?;
    outcome.get()
}
