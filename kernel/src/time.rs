//! Times as programs write them.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::errno::{Result, EINVAL};
use crate::sched::Nanos;
use crate::user;

/// Units of `times` and of AT_CLKTCK, per second.
pub const CLOCK_TICKS: u64 = 100;
/// In nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// What is left of a timer and how it repeats.
#[derive(Clone, Copy, Default)]
pub struct Setting {
    pub value: Nanos,
    pub interval: Nanos,
}

/// `struct timespec`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

impl Timespec {
    pub fn from_nanos(ns: Nanos) -> Timespec {
        Timespec { sec: (ns / SECOND) as i64, nsec: (ns % SECOND) as i64 }
    }

    /// `EINVAL` for negative times and more than a second of nanoseconds; very long ones are cut.
    pub fn to_nanos(self) -> Result<Nanos> {
        if self.sec < 0 || !(0..SECOND as i64).contains(&self.nsec) {
            return Err(EINVAL);
        }
        Ok((self.sec as u64)
            .saturating_mul(SECOND)
            .saturating_add(self.nsec as u64)
            .min(Nanos::MAX / 4))
    }
}

/// `struct timeval`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

impl Timeval {
    pub fn from_nanos(ns: Nanos) -> Timeval {
        Timeval { sec: (ns / SECOND) as i64, usec: (ns % SECOND / 1000) as i64 }
    }

    /// `EINVAL` for what is no time, as of a `timespec`.
    pub fn to_nanos(self) -> Result<Nanos> {
        if !(0..1_000_000).contains(&self.usec) {
            return Err(EINVAL);
        }
        Timespec { sec: self.sec, nsec: self.usec * 1000 }.to_nanos()
    }
}

/// Reads a `timespec` from user memory.
pub fn read_timespec(at: u64) -> Result<Nanos> {
    user::get::<Timespec>(at)?.to_nanos()
}
