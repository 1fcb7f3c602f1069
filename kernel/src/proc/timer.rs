//! Timers of a process: the three of `setitimer` and those of `timer_create`.
//!
//! A timer on a real clock is one kernel timer at its deadline. If it repeats, its next kernel
//! timer is set when its signal is taken, and what has passed meanwhile counts as overruns: so a
//! timer costs no more than the program is ready to handle. If the signal is ignored, the timer
//! rests until the program stops ignoring the signal; if the signal is thrown away, or the kernel
//! has no memory to queue it, the next one comes a tick later at the earliest.
//!
//! A timer on CPU time has no kernel timer: a thread of its process looks at it ([`tick`]) if a
//! tick has come upon it, when it leaves the kernel or gives way there, so that timers of a process
//! that waits cost nothing. It holds the process to `RLIMIT_CPU` as well, by the time of all its
//! threads.
//!
//! A POSIX timer has a place among the pending signals of its user from its making on, so
//! `RLIMIT_SIGPENDING` bounds how many a user has, and its signal is always queued but where the
//! kernel has no memory.
//!
//! Invariants: TM1: a timer on a real clock that is set has exactly one kernel timer with its
//! current `serial`, older ones find theirs stale; or it has `fired`, and its signal is queued or
//! ignored; or it notifies no process. TM2: a process has one signal of each timer in its queues at
//! most. TM3: `Process::counts_cpu_time` while a timer on CPU time is set or CPU time is limited.
//! Locks: `Process::timers` comes before `Process::limits`, a leaf: usage is read before it is
//! taken, signals are sent after it is dropped. Signals are taken with `Group` locked.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use super::limits::{Limit, INFINITY, RLIMIT_CPU};
use super::process::Process;
use super::signal::{
    code, send, Detail, Pending, Sent, SigInfo, SigSet, Signal, SIGALRM, SIGKILL, SIGPROF,
    SIGVTALRM, SIGXCPU,
};
use super::table::{self, Pid};
use super::thread::Thread;
use crate::charge::{Charge, Count};
use crate::errno::{Result, EAGAIN, EINVAL};
use crate::sched::{self, clock, Nanos, TimerId};
use crate::time::Setting;

/// How many POSIX timers a process can have.
const POSIX_MAX: usize = 256;
/// The least period of a timer whose signal was discarded: the tick of Debian's Linux.
const TICK: Nanos = clock::TICK;
/// Heap bytes of a timer, in tree nodes that may be half empty, with the kernel timer that it arms.
const TIMER: usize = 2 * size_of::<Timer>() + size_of::<Count>() + 16 + 192;

/// What a timer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    Monotonic,
    /// Time of day; a deadline on it is turned into monotonic time when it is set.
    Wall,
    UserTime,
    CpuTime,
}

/// Which timer of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    Real,
    Virtual,
    Prof,
    Posix(usize),
}

/// What happens when a timer runs out.
#[derive(Clone, Copy)]
pub enum Notify {
    Nothing,
    Process { signal: Signal, value: u64 },
    Thread { tid: Pid, signal: Signal, value: u64 },
}

/// One timer.
pub struct Timer {
    pub clock: Clock,
    notify: Notify,
    /// The clock's time at which it runs out; 0 when it is not armed.
    target: Nanos,
    interval: Nanos,
    serial: u64,
    armed: Option<TimerId>,
    /// The timer has run out at `target`, repeats, and its signal has not been taken since.
    fired: bool,
    overrun: i32,
    /// Of a timer that `timer_create` made: its place among the pending signals of its user, and
    /// its memory.
    place: Option<Arc<Count>>,
    _charge: Option<Charge>,
}

/// The timers of a process, made when the first is set.
pub struct Timers {
    real: Timer,
    virt: Timer,
    prof: Timer,
    posix: BTreeMap<usize, Timer>,
}

impl Timer {
    fn new(clock: Clock, notify: Notify) -> Timer {
        Timer {
            clock,
            notify,
            target: 0,
            interval: 0,
            serial: 0,
            armed: None,
            fired: false,
            overrun: 0,
            place: None,
            _charge: None,
        }
    }

    fn disarm(&mut self) {
        self.serial += 1;
        self.target = 0;
        self.fired = false;
        if let Some(id) = self.armed.take() {
            sched::timer_cancel(id);
        }
    }

    fn left(&self, now: Nanos) -> Setting {
        let value = match now.checked_sub(self.target).filter(|_| self.target != 0) {
            None => self.target.saturating_sub(now),
            Some(late) => match (late.checked_rem(self.interval), self.notify) {
                (Some(into), _) => self.interval - into,
                (None, Notify::Nothing) => 0,
                (None, _) => 1,
            },
        };
        Setting { value, interval: self.interval }
    }

    fn uses_cpu_time(&self) -> bool {
        matches!(self.clock, Clock::UserTime | Clock::CpuTime)
    }

    /// Starts the kernel timer, of a timer on a real clock, for a target that is `span` away.
    fn start(&mut self, process: &Weak<Process>, slot: Slot, span: Nanos) {
        let (process, serial) = (process.clone(), self.serial);
        let deadline = sched::now().saturating_add(span);
        self.armed =
            Some(sched::timer_at(deadline, Box::new(move || expire(&process, slot, serial))));
    }

    /// Moves the target on to the next after `now`; returns how many it has passed by beside the
    /// first.
    fn forward(&mut self, now: Nanos) -> i32 {
        let missed = now.saturating_sub(self.target).checked_div(self.interval).unwrap_or(0);
        self.target = self.target.saturating_add(self.interval.saturating_mul(missed + 1));
        missed.min(i32::MAX as u64) as i32
    }

    /// Sets a timer that has fired anew, for the next target after `from`.
    fn start_again(&mut self, process: &Weak<Process>, slot: Slot, from: Nanos) {
        self.fired = false;
        self.overrun = self.forward(from);
        self.start(process, slot, self.target.saturating_sub(sched::now()));
    }

    /// Sets a timer that has fired and whose signal isn't taken anew, for a tick later at the
    /// earliest.
    fn start_later(&mut self, process: &Weak<Process>, slot: Slot) {
        if self.fired {
            self.start_again(process, slot, sched::now() + TICK);
        }
    }
}

impl Timers {
    fn new() -> Timers {
        let itimer = |clock, signal| Timer::new(clock, Notify::Process { signal, value: 0 });
        Timers {
            real: itimer(Clock::Monotonic, SIGALRM),
            virt: itimer(Clock::UserTime, SIGVTALRM),
            prof: itimer(Clock::CpuTime, SIGPROF),
            posix: BTreeMap::new(),
        }
    }

    fn get(&mut self, slot: Slot) -> Option<&mut Timer> {
        match slot {
            Slot::Real => Some(&mut self.real),
            Slot::Virtual => Some(&mut self.virt),
            Slot::Prof => Some(&mut self.prof),
            Slot::Posix(id) => self.posix.get_mut(&id),
        }
    }

    /// Stops all timers; the POSIX ones are gone after it.
    fn stop_posix(&mut self) {
        self.posix.values_mut().for_each(Timer::disarm);
        self.posix.clear();
    }
}

fn clock_now(process: &Process, clock: Clock) -> Nanos {
    match clock {
        Clock::Monotonic | Clock::Wall => sched::now(),
        Clock::UserTime => process.time_used().user_ns,
        Clock::CpuTime => process.time_used().cpu_ns(),
    }
}

fn clock_of(process: &Process, slot: Slot) -> Result<Clock> {
    Ok(match slot {
        Slot::Real => Clock::Monotonic,
        Slot::Virtual => Clock::UserTime,
        Slot::Prof => Clock::CpuTime,
        Slot::Posix(_) => {
            process.timers.lock().as_mut().and_then(|timers| timers.get(slot)).ok_or(EINVAL)?.clock
        }
    })
}

/// What a timer's clock shows, for absolute settings.
pub fn now(process: &Process, slot: Slot) -> Result<Nanos> {
    Ok(match clock_of(process, slot)? {
        Clock::Wall => sched::wall(),
        clock => clock_now(process, clock),
    })
}

/// What is left of a timer.
pub fn get(process: &Process, slot: Slot) -> Result<Setting> {
    let now = clock_now(process, clock_of(process, slot)?);
    let mut timers = process.timers.lock();
    let Some(timers) = timers.as_mut() else { return Ok(Setting::default()) };
    Ok(timers.get(slot).ok_or(EINVAL)?.left(now))
}

/// Arms a timer to run out after `setting.value` (0 disarms it). Returns what was left.
pub fn set(process: &Arc<Process>, slot: Slot, setting: Setting) -> Result<Setting> {
    let now = clock_now(process, clock_of(process, slot)?);
    let mut timers = process.timers.lock();
    let timers = timers.get_or_insert_with(|| Box::new(Timers::new()));
    let timer = timers.get(slot).ok_or(EINVAL)?;
    let before = timer.left(now);
    timer.disarm();
    timer.overrun = 0;
    timer.interval = setting.interval;
    if setting.value != 0 {
        timer.target = now.saturating_add(setting.value);
        if timer.uses_cpu_time() {
            process.counts_cpu_time.store(true, Ordering::Relaxed);
            clock::tick_soon();
        } else if !matches!(timer.notify, Notify::Nothing) {
            timer.start(&Arc::downgrade(process), slot, setting.value);
        }
    }
    Ok(before)
}

/// Makes a POSIX timer. Returns its number.
///
/// # Errors
/// `EAGAIN` if the process has as many as it can have, if its user has as many signals pending and
/// timers as `RLIMIT_SIGPENDING` allows, and without memory.
pub fn create(process: &Process, clock: Clock, notify: Option<Notify>) -> Result<usize> {
    let charge = Charge::to(process.account(), TIMER).map_err(|_| EAGAIN)?;
    let place = Arc::new(Pending::count(process, true)?);
    let mut timers = process.timers.lock();
    let posix = &mut timers.get_or_insert_with(|| Box::new(Timers::new())).posix;
    let id = (0..POSIX_MAX).find(|id| !posix.contains_key(id)).ok_or(EAGAIN)?;
    let notify = notify.unwrap_or(Notify::Process { signal: SIGALRM, value: id as u64 });
    posix.insert(
        id,
        Timer { place: Some(place), _charge: Some(charge), ..Timer::new(clock, notify) },
    );
    Ok(id)
}

/// Removes a POSIX timer.
pub fn delete(process: &Process, id: usize) -> Result<()> {
    let mut timers = process.timers.lock();
    let timer = timers.as_mut().and_then(|timers| timers.posix.remove(&id));
    timer.ok_or(EINVAL)?.disarm();
    Ok(())
}

/// How often a POSIX timer ran out beyond the signal that was sent last.
pub fn overrun(process: &Process, id: usize) -> Result<i32> {
    let mut timers = process.timers.lock();
    let timer = timers.as_mut().and_then(|timers| timers.get(Slot::Posix(id)));
    Ok(timer.ok_or(EINVAL)?.overrun)
}

/// What exec does: POSIX timers go, the others run on.
pub fn exec(process: &Process) {
    if let Some(timers) = process.timers.lock().as_mut() {
        timers.stop_posix();
    }
}

/// What the end of a process does: nothing runs on.
pub fn stop_all(process: &Process) {
    if let Some(mut timers) = process.timers.lock().take() {
        timers.stop_posix();
        for slot in [Slot::Real, Slot::Virtual, Slot::Prof] {
            if let Some(timer) = timers.get(slot) {
                timer.disarm();
            }
        }
    }
}

/// A kernel timer went off: in interrupt context.
fn expire(process: &Weak<Process>, slot: Slot, serial: u64) {
    let Some(process) = process.upgrade() else { return };
    let now = sched::now();
    let weak = Arc::downgrade(&process);
    let (notify, place) = {
        let mut timers = process.timers.lock();
        let Some(timer) = timers.as_mut().and_then(|timers| timers.get(slot)) else { return };
        if timer.serial != serial || timer.target == 0 {
            return;
        }
        if now < timer.target {
            let rest = timer.target - now;
            return timer.start(&weak, slot, rest);
        }
        timer.armed = None;
        timer.fired = timer.interval != 0;
        if !timer.fired {
            timer.target = 0;
            timer.overrun = 0;
        }
        (timer.notify, timer.place.clone())
    };
    // Without memory for the signal, the timer comes again.
    if let Ok(Sent::Queued | Sent::Ignored) = notify_of(&process, slot, notify, 0, place) {
        return;
    }
    let mut timers = process.timers.lock();
    if let Some(timer) = timers.as_mut().and_then(|timers| timers.get(slot)) {
        if timer.serial == serial {
            timer.start_later(&weak, slot);
        }
    }
}

/// `RLIMIT_CPU` has been set: ticks look at it, on this CPU soon, on others by the end of a turn.
pub fn count_cpu_time(process: &Process) {
    let timers = process.timers.lock();
    process.counts_cpu_time.store(true, Ordering::Relaxed);
    drop(timers);
    clock::tick_soon();
}

/// Holds a process to `RLIMIT_CPU`: at the soft limit it is sent SIGXCPU, and the limit moves on by
/// a second; at the hard one SIGKILL.
fn keep_to_limit(process: &Arc<Process>, used: Nanos) {
    const SECOND: Nanos = 1_000_000_000;
    let Ok(limit) = process.limits.lock().get(RLIMIT_CPU) else { return };
    let has_used = |seconds: u64| used >= seconds.saturating_mul(SECOND);
    let signal = if has_used(limit.hard) {
        SIGKILL
    } else if has_used(limit.soft) {
        let next = Limit { soft: limit.soft + 1, ..limit };
        // Not if another CPU's tick has done it, or a program has set it meanwhile.
        let may = |now| if now == limit { Ok(()) } else { Err(EAGAIN) };
        if process.set_limit(RLIMIT_CPU, next, may).is_err() {
            return;
        }
        SIGXCPU
    } else {
        return;
    };
    let _ = send::send_to_process(process, SigInfo::kernel(signal));
}

/// A tick has come upon the running thread, of a process that counts CPU time, since it was here
/// last: timers that have run out notify. Not for an interrupt: it costs by the process's timers,
/// signals look at its threads, and a limit that moves may need memory.
pub fn tick(process: &Arc<Process>) {
    let usage = process.time_used();
    keep_to_limit(process, usage.cpu_ns());
    for slot in [Slot::Virtual, Slot::Prof].into_iter().chain((0..POSIX_MAX).map(Slot::Posix)) {
        let (notify, overrun, place) = {
            let mut timers = process.timers.lock();
            let Some(timers) = timers.as_mut() else { break };
            if matches!(slot, Slot::Posix(id) if timers.posix.range(id..).next().is_none()) {
                break;
            }
            let Some(timer) = timers.get(slot).filter(|timer| timer.uses_cpu_time()) else {
                continue;
            };
            let now = if timer.clock == Clock::UserTime { usage.user_ns } else { usage.cpu_ns() };
            if timer.target == 0 || now < timer.target {
                continue;
            }
            timer.overrun = timer.forward(now);
            if timer.interval == 0 {
                timer.target = 0;
            }
            (timer.notify, timer.overrun, timer.place.clone())
        };
        // The next tick sends what finds no memory now.
        let _ = notify_of(process, slot, notify, overrun, place);
    }
    let mut timers = process.timers.lock();
    let is_set = |timer: &Timer| timer.uses_cpu_time() && timer.target != 0;
    let any = timers.as_mut().is_some_and(|timers| {
        is_set(&timers.virt) || is_set(&timers.prof) || timers.posix.values().any(is_set)
    });
    let is_limited = process.limit(RLIMIT_CPU) != INFINITY;
    process.counts_cpu_time.store(any || is_limited, Ordering::Relaxed);
}

/// A signal is being taken, with `Group` locked: if it is a timer's, that goes on, and the signal
/// says how often it has run out.
pub fn taken(process: &Arc<Process>, info: &mut SigInfo) {
    let own = match info.detail {
        Detail::Timer { id, .. } => Some(Slot::Posix(id as usize)),
        _ => None,
    };
    // ITIMER_REAL's signal is merged with any other SIGALRM.
    let real = (info.signal == SIGALRM).then_some(Slot::Real);
    for slot in own.into_iter().chain(real) {
        let mut timers = process.timers.lock();
        let Some(timer) =
            timers.as_mut().and_then(|timers| timers.get(slot)).filter(|timer| timer.fired)
        else {
            continue;
        };
        timer.start_again(&Arc::downgrade(process), slot, sched::now());
        if let (Detail::Timer { overrun, .. }, Slot::Posix(_)) = (&mut info.detail, slot) {
            *overrun = timer.overrun;
        }
    }
}

/// Signals have been thrown away, or are ignored no more, with `Group` locked: timers that wait for
/// one to be taken, or rest because it was ignored, go on.
pub fn go_on(process: &Arc<Process>, which: SigSet) {
    let mut timers = process.timers.lock();
    let Some(timers) = timers.as_mut() else { return };
    let posix = timers.posix.iter_mut().map(|(&id, timer)| (Slot::Posix(id), timer));
    for (slot, timer) in posix.chain([(Slot::Real, &mut timers.real)]) {
        let is_one = match timer.notify {
            Notify::Nothing => false,
            Notify::Process { signal, .. } | Notify::Thread { signal, .. } => which.has(signal),
        };
        if is_one {
            timer.start_later(&Arc::downgrade(process), slot);
        }
    }
}

/// Sends the signal in the timer's place.
fn notify_of(
    process: &Arc<Process>,
    slot: Slot,
    notify: Notify,
    overrun: i32,
    place: Option<Arc<Count>>,
) -> Result<Sent> {
    let info = |signal, value| match slot {
        Slot::Posix(id) => {
            let detail = Detail::Timer { id: id as i32, overrun, value };
            SigInfo { signal, code: code::SI_TIMER, detail }
        }
        _ => SigInfo::kernel(signal),
    };
    match notify {
        Notify::Nothing => Ok(Sent::Ignored),
        Notify::Process { signal, value } => {
            send::send_by_timer(process, None, info(signal, value), place)
        }
        // The number may have gone to a thread of another process meanwhile.
        Notify::Thread { tid, signal, value } => match own_thread(process, tid) {
            Some(thread) => {
                send::send_by_timer(&thread.process, Some(&thread), info(signal, value), place)
            }
            None => Ok(Sent::Ignored),
        },
    }
}

fn own_thread(process: &Arc<Process>, tid: Pid) -> Option<Arc<Thread>> {
    table::thread(tid).filter(|thread| Arc::ptr_eq(&thread.process, process))
}
