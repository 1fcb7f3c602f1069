//! System calls on time: clocks, sleeping, timers.

use linux_raw_sys::general as abi;

use super::path_args::only;
use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::errno::{
    Result, EFAULT, EINTR, EINVAL, EOPNOTSUPP, EPERM, ERESTARTNOHAND, ERESTART_RESTARTBLOCK,
};
use crate::fs::fdtable::OnExec;
use crate::fs::timerfd::{self, TimerFd};
use crate::proc::curproc;
use crate::proc::signal::Signal;
use crate::proc::thread::Restart;
use crate::proc::timer::{self, Clock, Notify, Slot};
use crate::proc::{current_process, current_thread, table};
use crate::sched::{self, Nanos};
use crate::sync::{WaitQueue, Woken};
use crate::time::{read_timespec, Setting, Timespec, Timeval, SECOND};
use crate::user;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const CALLS: Calls = calls! {
    __NR_clock_gettime => clock_gettime[2],
    __NR_clock_getres => clock_getres[2],
    __NR_clock_settime => clock_settime[2],
    __NR_clock_nanosleep => clock_nanosleep[4],
    __NR_nanosleep => nanosleep[2],
    __NR_restart_syscall => restart_syscall[0],
    __NR_gettimeofday => gettimeofday[2],
    __NR_settimeofday => settimeofday[2],
    __NR_time => time[1],
    __NR_alarm => alarm[1],
    __NR_getitimer => getitimer[2],
    __NR_setitimer => setitimer[3],
    __NR_timer_create => timer_create[3],
    __NR_timer_settime => timer_settime[4],
    __NR_timer_gettime => timer_gettime[2],
    __NR_timer_getoverrun => timer_getoverrun[1],
    __NR_timer_delete => timer_delete[1],
    __NR_timerfd_create => timerfd_create[2],
    __NR_timerfd_settime => timerfd_settime[4],
    __NR_timerfd_gettime => timerfd_gettime[2],
};

/// The clocks of `clock_gettime`.
mod clock {
    pub const REALTIME: i32 = 0;
    pub const MONOTONIC: i32 = 1;
    pub const PROCESS_CPU: i32 = 2;
    pub const THREAD_CPU: i32 = 3;
    pub const MONOTONIC_RAW: i32 = 4;
    pub const REALTIME_COARSE: i32 = 5;
    pub const MONOTONIC_COARSE: i32 = 6;
    pub const BOOTTIME: i32 = 7;
    pub const REALTIME_ALARM: i32 = 8;
    pub const BOOTTIME_ALARM: i32 = 9;
    pub const TAI: i32 = 11;
}

fn read_clock(id: i32) -> Result<Nanos> {
    Ok(match id {
        clock::MONOTONIC
        | clock::MONOTONIC_RAW
        | clock::MONOTONIC_COARSE
        | clock::BOOTTIME
        | clock::BOOTTIME_ALARM => sched::now(),
        clock::REALTIME | clock::REALTIME_COARSE | clock::REALTIME_ALARM | clock::TAI => {
            sched::wall()
        }
        clock::PROCESS_CPU => current_process().time_used().cpu_ns(),
        clock::THREAD_CPU => current_thread().usage().cpu_ns(),
        _ if id < 0 => cpu_clock(id)?,
        _ => return Err(EINVAL),
    })
}

/// A CPU-time clock of a process or thread: its number inverted in the high bits, its kind in the
/// low three.
fn cpu_clock(id: i32) -> Result<Nanos> {
    let number = !(id >> 3);
    let per_thread = id & 4 != 0;
    if id & 3 == 3 {
        return Err(EINVAL);
    }
    if per_thread {
        let thread =
            if number == 0 { Some(current_thread().clone()) } else { table::thread(number) };
        let own = current_process().pid;
        let thread = thread.filter(|thread| thread.process.pid == own);
        thread.map(|thread| thread.usage().cpu_ns()).ok_or(EINVAL)
    } else {
        let process =
            if number == 0 { Some(current_process().clone()) } else { table::process(number) };
        process.map(|process| process.time_used().cpu_ns()).ok_or(EINVAL)
    }
}

fn clock_gettime(id: i32, at: u64) -> Result<()> {
    user::put(at, &Timespec::from_nanos(read_clock(id)?))
}

fn clock_getres(id: i32, at: u64) -> Result<()> {
    read_clock(id)?;
    if at != 0 {
        user::put(at, &Timespec { sec: 0, nsec: 1 })?;
    }
    Ok(())
}

/// The wall clock is the machine's, for every program; no other may be set at all.
fn clock_settime(id: i32, at: u64) -> Result<()> {
    if id >= 0 && id != clock::REALTIME {
        return Err(EINVAL);
    }
    match id < 0 {
        true => _ = read_clock(id)?,
        false => _ = read_timespec(at)?,
    }
    Err(EPERM)
}

fn settimeofday(_at: u64, _zone: u64) -> Result<()> {
    Err(EPERM)
}

fn gettimeofday(at: u64, zone: u64) -> Result<()> {
    if at != 0 {
        user::put(at, &Timeval::from_nanos(sched::wall()))?;
    }
    if zone != 0 {
        user::put(zone, &[0i32; 2])?;
    }
    Ok(())
}

fn time(at: u64) -> Result<u64> {
    let seconds = sched::wall() / SECOND;
    if at != 0 {
        user::put(at, &seconds)?;
    }
    Ok(seconds)
}

/// Sleeps until `deadline` on the monotonic clock or a signal.
fn sleep(deadline: Nanos) -> Result<(), Woken> {
    match WaitQueue::new().wait_intr(Some(deadline), || None::<()>) {
        Ok(()) | Err(Woken::Timeout) => Ok(()),
        Err(Woken::Signal) => Err(Woken::Signal),
    }
}

/// A sleep for a span: a signal without a handler lets it go on, one with tells what was left.
fn sleep_span(deadline: Nanos, rest: u64) -> Result<u64> {
    if sleep(deadline).is_ok() {
        return Ok(0);
    }
    if rest != 0 {
        user::put(rest, &Timespec::from_nanos(deadline.saturating_sub(sched::now())))?;
    }
    *current_thread().restart.lock() =
        Some(Restart { call: |args| sleep_span(args[0], args[1]), args: [deadline, rest, 0, 0] });
    Err(ERESTART_RESTARTBLOCK)
}

fn nanosleep(span: u64, rest: u64) -> Result<u64> {
    sleep_span(sched::now().saturating_add(read_timespec(span)?), rest)
}

/// Sleeps until a CPU-time clock says `until`: looks at it when it may say so at the earliest, if
/// all CPUs run nothing else.
fn sleep_by_cpu_clock(id: i32, until: Nanos, rest: u64) -> Result<u64> {
    /// How late such a sleep may end.
    const LATE: Nanos = 1_000_000;
    loop {
        let left = until.saturating_sub(read_clock(id)?);
        if left == 0 {
            return Ok(0);
        }
        let soonest = (left / crate::arch::cpu::count() as u64).max(LATE);
        if sleep(sched::now().saturating_add(soonest)).is_err() {
            if rest != 0 {
                let left = until.saturating_sub(read_clock(id)?);
                user::put(rest, &Timespec::from_nanos(left))?;
            }
            return Err(ERESTARTNOHAND);
        }
    }
}

fn clock_nanosleep(id: i32, flags: i32, at: u64, rest: u64) -> Result<u64> {
    const TIMER_ABSTIME: i32 = 1;
    let now = match id {
        clock::MONOTONIC | clock::BOOTTIME | clock::BOOTTIME_ALARM => sched::now(),
        clock::REALTIME | clock::REALTIME_ALARM | clock::TAI => sched::wall(),
        clock::THREAD_CPU..=clock::MONOTONIC_COARSE => return Err(EOPNOTSUPP),
        clock::PROCESS_CPU => read_clock(id)?,
        _ if id < 0 && !is_own_thread_clock(id) => read_clock(id)?,
        _ => return Err(EINVAL),
    };
    may_use_clock(id)?;
    let given = read_timespec(at)?;
    if id < 0 || id == clock::PROCESS_CPU {
        let is_absolute = flags & TIMER_ABSTIME != 0;
        let until = if is_absolute { given } else { now.saturating_add(given) };
        return sleep_by_cpu_clock(id, until, if is_absolute { 0 } else { rest });
    }
    if flags & TIMER_ABSTIME == 0 {
        return sleep_span(sched::now().saturating_add(given), rest);
    }
    let deadline = sched::now().saturating_add(given.saturating_sub(now));
    sleep(deadline).map(|()| 0).map_err(|_| ERESTARTNOHAND)
}

/// Goes on with the call that a signal without a handler cut short.
fn restart_syscall() -> Result<u64> {
    let restart = current_thread().restart.lock().take();
    match restart {
        Some(restart) => (restart.call)(&restart.args),
        None => Err(EINTR),
    }
}

fn alarm(seconds: u32) -> Result<u64> {
    let setting = Setting { value: u64::from(seconds) * SECOND, interval: 0 };
    let before = timer::set(&current_process(), Slot::Real, setting)?;
    Ok(before.value.div_ceil(SECOND))
}

fn itimer(which: i32) -> Result<Slot> {
    match which {
        0 => Ok(Slot::Real),
        1 => Ok(Slot::Virtual),
        2 => Ok(Slot::Prof),
        _ => Err(EINVAL),
    }
}

fn timevals(setting: Setting) -> [Timeval; 2] {
    [
        Timeval::from_nanos(setting.interval),
        Timeval::from_nanos(setting.value.next_multiple_of(1000)),
    ]
}

fn getitimer(which: i32, at: u64) -> Result<()> {
    let setting = timer::get(&current_process(), itimer(which)?)?;
    user::put(at, &timevals(setting))
}

fn setitimer(which: i32, new: u64, old: u64) -> Result<()> {
    let slot = itimer(which)?;
    let setting = match new {
        0 => Setting::default(),
        _ => {
            let [interval, value]: [Timeval; 2] = user::get(new)?;
            Setting { value: value.to_nanos()?, interval: interval.to_nanos()? }
        }
    };
    let before = timer::set(&current_process(), slot, setting)?;
    if old != 0 {
        user::put(old, &timevals(before))?;
    }
    Ok(())
}

/// The part of `struct sigevent` that is used.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct SigEvent {
    value: u64,
    signal: i32,
    notify: i32,
    tid: i32,
    pad: [i32; 11],
}

/// Clocks that go on waking the machine when it sleeps are for processes that may keep it awake.
fn may_use_clock(id: i32) -> Result<()> {
    match id {
        clock::REALTIME_ALARM | clock::BOOTTIME_ALARM => {
            current_process().cred().need(Caps::WAKE_ALARM)
        }
        _ => Ok(()),
    }
}

/// Whether a clock is that of the running thread's CPU time, which stands still while it sleeps.
fn is_own_thread_clock(id: i32) -> bool {
    id & 4 != 0 && [0, current_thread().tid()].contains(&!(id >> 3))
}

/// Whether a clock is that of the running process's or thread's CPU time, by number.
fn is_own_cpu_clock(id: i32) -> bool {
    let thread = current_thread();
    let own = if id & 4 != 0 { thread.tid() } else { thread.process.pid };
    id < 0 && id & 3 != 3 && [0, own].contains(&!(id >> 3))
}

fn timer_create(id: i32, event: u64, out: u64) -> Result<()> {
    const SIGEV_SIGNAL: i32 = 0;
    const SIGEV_NONE: i32 = 1;
    const SIGEV_THREAD_ID: i32 = 4;
    let kind = match id {
        clock::MONOTONIC | clock::BOOTTIME | clock::BOOTTIME_ALARM => Clock::Monotonic,
        clock::REALTIME | clock::REALTIME_ALARM | clock::TAI => Clock::Wall,
        clock::PROCESS_CPU | clock::THREAD_CPU => Clock::CpuTime,
        clock::MONOTONIC_RAW | clock::MONOTONIC_COARSE | clock::REALTIME_COARSE => {
            return Err(EOPNOTSUPP);
        }
        _ if is_own_cpu_clock(id) => Clock::CpuTime,
        _ => return Err(EINVAL),
    };
    may_use_clock(id)?;
    let process = &current_process();
    let notify = match event {
        0 => None,
        _ => {
            let event: SigEvent = user::get(event)?;
            let signal = || Signal::new(event.signal);
            Some(match event.notify {
                SIGEV_NONE => Notify::Nothing,
                SIGEV_SIGNAL => Notify::Process { signal: signal()?, value: event.value },
                SIGEV_THREAD_ID => {
                    table::thread(event.tid)
                        .filter(|thread| thread.process.pid == process.pid)
                        .ok_or(EINVAL)?;
                    Notify::Thread { tid: event.tid, signal: signal()?, value: event.value }
                }
                _ => return Err(EINVAL),
            })
        }
    };
    let timer = timer::create(process, kind, notify)?;
    user::put(out, &(timer as i32)).inspect_err(|_| {
        let _ = timer::delete(process, timer);
    })
}

fn timespecs(setting: Setting) -> [Timespec; 2] {
    [Timespec::from_nanos(setting.interval), Timespec::from_nanos(setting.value)]
}

fn timer_settime(id: i32, flags: i32, new: u64, old: u64) -> Result<()> {
    const TIMER_ABSTIME: i32 = 1;
    if new == 0 {
        return Err(EINVAL);
    }
    let slot = Slot::Posix(usize::try_from(id).map_err(|_| EINVAL)?);
    let [interval, value]: [Timespec; 2] = user::get(new)?;
    let (mut value, interval) = (value.to_nanos()?, interval.to_nanos()?);
    let process = &current_process();
    if flags & TIMER_ABSTIME != 0 && value != 0 {
        value = value.saturating_sub(timer::now(process, slot)?).max(1);
    }
    let before = timer::set(process, slot, Setting { value, interval })?;
    if old != 0 {
        user::put(old, &timespecs(before))?;
    }
    Ok(())
}

fn timerfd_create(id: i32, flags: u32) -> Result<i32> {
    let clock = match id {
        clock::MONOTONIC | clock::BOOTTIME | clock::BOOTTIME_ALARM => timerfd::Clock::Monotonic,
        clock::REALTIME | clock::REALTIME_ALARM => timerfd::Clock::Wall,
        _ => return Err(EINVAL),
    };
    may_use_clock(id)?;
    curproc::files()?.insert(TimerFd::create(clock, id, flags)?, OnExec::from_flags(flags))
}

fn timerfd_settime(fd: i32, flags: u32, new: u64, old: u64) -> Result<()> {
    // A wait for changes of the wall clock, of which there are none, is no request here.
    only(flags, abi::TFD_TIMER_ABSTIME | abi::TFD_TIMER_CANCEL_ON_SET)?;
    let [interval, value]: [Timespec; 2] = user::get(new)?;
    let (mut value, interval) = (value.to_nanos()?, interval.to_nanos()?);
    let file = curproc::file(fd)?;
    let timer = TimerFd::of(&file)?;
    if flags & abi::TFD_TIMER_ABSTIME != 0 && value != 0 {
        value = value.saturating_sub(timer.now()).max(1);
    }
    let before = timer.set(Setting { value, interval }, flags);
    if old != 0 {
        user::put(old, &timespecs(before))?;
    }
    Ok(())
}

fn timerfd_gettime(fd: i32, at: u64) -> Result<()> {
    let file = curproc::file(fd)?;
    user::put(at, &timespecs(TimerFd::of(&file)?.left()))
}

fn timer_gettime(id: i32, at: u64) -> Result<()> {
    let slot = Slot::Posix(usize::try_from(id).map_err(|_| EINVAL)?);
    let setting = timer::get(&current_process(), slot)?;
    if at == 0 {
        return Err(EFAULT);
    }
    user::put(at, &timespecs(setting))
}

fn timer_getoverrun(id: i32) -> Result<i32> {
    timer::overrun(&current_process(), usize::try_from(id).map_err(|_| EINVAL)?)
}

fn timer_delete(id: i32) -> Result<()> {
    timer::delete(&current_process(), usize::try_from(id).map_err(|_| EINVAL)?)
}
