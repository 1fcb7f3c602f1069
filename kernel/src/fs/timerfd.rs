//! `timerfd`: a timer that is read like a file.
//!
//! One that repeats is set anew when it is read: what has passed by then is counted, not waited
//! for. So it costs no more than its reader.
//!
//! Invariants: I1: a timer that is set has exactly one kernel timer with its current `serial`,
//! older ones find theirs stale; or it has run out, which no thread has read. I2: the kernel timer
//! holds a weak reference, so a closed file's goes off for no thread.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;

use linux_raw_sys::general as abi;

use super::file::File;
use super::inode::*;
use crate::errno::*;
use crate::fs::ops::*;
use crate::fs::pipe::{interrupted, Blocking};
use crate::sched::{self, Nanos, TimerId};
use crate::sync::{SpinLock, WaitQueue};
use crate::time::{Setting, SECOND};
use crate::uio::Sink;

/// What a timer counts, of the clocks that it can.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Monotonic,
    /// Time of day, which nothing changes here; a deadline on it is turned into monotonic time when
    /// it is set.
    Wall,
}

#[derive(Default)]
struct State {
    /// Monotonic; 0 when it is not armed.
    target: Nanos,
    interval: Nanos,
    /// The timer has run out at `target` since the last read.
    expired: bool,
    serial: u64,
    armed: Option<TimerId>,
    /// The flags that it was set with.
    flags: u32,
}

/// See the module.
pub struct TimerFd {
    clock: Clock,
    /// The clock's number, as the program chose it.
    id: i32,
    state: SpinLock<State>,
    readers: WaitQueue,
    ino: u64,
    me: Weak<TimerFd>,
}

impl TimerFd {
    /// An open file with a timer that is not armed, with the flags of `timerfd_create`.
    pub fn create(clock: Clock, id: i32, flags: u32) -> Result<Arc<File>> {
        if flags & !(abi::TFD_CLOEXEC | abi::TFD_NONBLOCK) != 0 {
            return Err(EINVAL);
        }
        let timer = Arc::new_cyclic(|me| TimerFd {
            clock,
            id,
            state: SpinLock::default(),
            readers: WaitQueue::new(),
            ino: super::new_ino(),
            me: me.clone(),
        });
        File::anonymous(timer, abi::O_RDWR | flags & abi::O_NONBLOCK)
    }

    /// The timer behind an open file.
    pub fn of(file: &File) -> Result<&TimerFd> {
        downcast_file::<TimerFd>(file.io()).ok_or(EINVAL)
    }

    /// What the timer's clock shows.
    pub fn now(&self) -> Nanos {
        match self.clock {
            Clock::Monotonic => sched::now(),
            Clock::Wall => sched::wall(),
        }
    }

    pub fn left(&self) -> Setting {
        self.state.lock().left()
    }

    /// Arms the timer, or disarms it by a value of 0. Returns what was left.
    pub fn set(&self, setting: Setting, flags: u32) -> Setting {
        let mut state = self.state.lock();
        let before = state.left();
        state.flags = flags;
        state.disarm();
        state.interval = setting.interval;
        if setting.value != 0 {
            state.target = sched::now().saturating_add(setting.value);
            self.start(&mut state);
        }
        before
    }

    fn start(&self, state: &mut State) {
        let (me, serial) = (self.me.clone(), state.serial);
        let expire = move || {
            if let Some(timer) = me.upgrade() {
                timer.expire(serial);
            }
        };
        state.armed = Some(sched::timer_at(state.target, Box::new(expire)));
    }

    /// The kernel timer went off: in interrupt context.
    fn expire(&self, serial: u64) {
        let mut state = self.state.lock();
        if state.serial != serial || state.target == 0 {
            return;
        }
        state.armed = None;
        state.expired = true;
        drop(state);
        self.readers.wake_all();
    }

    /// How often it has run out since the last time; `None` if it hasn't.
    fn try_take(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if !core::mem::take(&mut state.expired) {
            return None;
        }
        let late = sched::now().saturating_sub(state.target);
        let Some(missed) = late.checked_div(state.interval) else {
            state.target = 0;
            return Some(1);
        };
        let passed = missed.saturating_add(1);
        state.target = state.target.saturating_add(state.interval.saturating_mul(passed));
        self.start(&mut state);
        Some(passed)
    }
}

impl State {
    fn left(&self) -> Setting {
        let now = sched::now();
        let value = match (now.checked_sub(self.target), self.expired) {
            _ if self.target == 0 => 0,
            (None, _) => self.target - now,
            (Some(late), _) if self.interval != 0 => self.interval - late % self.interval,
            (Some(_), expired) => u64::from(!expired),
        };
        Setting { value, interval: self.interval }
    }

    fn disarm(&mut self) {
        self.serial += 1;
        self.target = 0;
        self.expired = false;
        if let Some(id) = self.armed.take() {
            sched::timer_cancel(id);
        }
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        self.state.lock().disarm();
    }
}

impl Inode for TimerFd {
    fn stat(&self) -> Stat {
        Stat::plain(super::PIPE_DEVICE, self.ino, Kind::Unnamed, 0o600)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<FileRef> {
        Err(ENXIO)
    }
}

impl FileOps for TimerFd {
    fn read(&self, file: &File, _at: u64, to: &mut Sink<'_>) -> Result<usize> {
        if to.left() < 8 {
            return Err(EINVAL);
        }
        let count = match (self.try_take(), Blocking::of(file)) {
            (Some(count), _) => count,
            (None, Blocking::No) => return Err(EAGAIN),
            (None, Blocking::Yes) => {
                self.readers.wait_intr(None, || self.try_take()).map_err(interrupted)?
            }
        };
        to.put(&count.to_ne_bytes())
    }

    fn poll(&self, _file: &File) -> u32 {
        if self.state.lock().expired {
            abi::POLLIN | abi::POLLRDNORM
        } else {
            0
        }
    }

    fn describe(&self, _from: u64, out: &mut dyn fmt::Write) -> Result<Option<u64>> {
        let (left, ticks, flags) = {
            let state = self.state.lock();
            (state.left(), u64::from(state.expired), state.flags)
        };
        let time = |ns| (ns / SECOND, ns % SECOND);
        let ((value, value_ns), (interval, interval_ns)) = (time(left.value), time(left.interval));
        let _ = writeln!(out, "clockid: {}\nticks: {ticks}\nsettime flags: 0{flags:o}", self.id);
        let _ = writeln!(out, "it_value: ({value}, {value_ns})");
        let _ = writeln!(out, "it_interval: ({interval}, {interval_ns})");
        Ok(None)
    }

    fn queues<'a>(&'a self, _file: &File, out: &mut Vec<&'a WaitQueue>) {
        out.push(&self.readers);
    }
}
