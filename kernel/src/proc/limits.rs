//! Resource limits. `NOFILE` is enforced by the files, `STACK` and the size of arguments at exec,
//! `AS` and `DATA` by the memory calls, `NPROC` at fork and in `charge`, `SIGPENDING` where signals
//! are queued, `FSIZE` by the file systems ([`file_room`]), `CPU` by the ticks of `timer`, `CORE`
//! trivially (no core is ever written).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::current_thread;
use super::signal::{code, send, SigInfo, SIGXFSZ};
use crate::errno::{Errno, Result, EFBIG, EINVAL};
use crate::fs::fdtable::MAX_FDS;
use crate::sched;

pub const RLIMIT_CPU: u32 = 0;
const RLIMIT_FSIZE: u32 = 1;
pub const RLIMIT_DATA: u32 = 2;
pub const RLIMIT_STACK: u32 = 3;
pub const RLIMIT_CORE: u32 = 4;
pub const RLIMIT_RSS: u32 = 5;
pub const RLIMIT_NPROC: u32 = 6;
pub const RLIMIT_NOFILE: u32 = 7;
pub const RLIMIT_MEMLOCK: u32 = 8;
pub const RLIMIT_AS: u32 = 9;
pub const RLIMIT_SIGPENDING: u32 = 11;
const RLIMIT_MSGQUEUE: u32 = 12;
pub const RLIMIT_NICE: u32 = 13;
pub const RLIMIT_RTPRIO: u32 = 14;
const COUNT: usize = 16;

/// No limit.
pub const INFINITY: u64 = u64::MAX;
/// What `NOFILE` can be raised to at most (`nr_open`), and what that can.
pub static NR_OPEN: AtomicU64 = AtomicU64::new(NOFILE_MAX);
const NOFILE_MAX: u64 = MAX_FDS as u64;
const NR_OPEN_LEAST: u64 = 64;

/// Sets `nr_open`.
///
/// # Errors
/// `EINVAL`: it is less than any program needs, or more than there can be.
pub fn set_nr_open(most: u64) -> Result<()> {
    if !(NR_OPEN_LEAST..=NOFILE_MAX).contains(&most) {
        return Err(EINVAL);
    }
    NR_OPEN.store(most, Relaxed);
    Ok(())
}
const STACK_DEFAULT: u64 = 8 << 20;

/// A soft and a hard limit, as in user memory.
#[derive(
    Clone, Copy, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
)]
#[repr(C)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// How many of `len` bytes at `at` the running process may write to a file, by `RLIMIT_FSIZE`.
///
/// # Errors
/// `EFBIG` for none; the thread is sent SIGXFSZ.
pub fn file_room(at: u64, len: u64) -> Result<u64> {
    let most = file_limit();
    if at >= most {
        return Err(too_large());
    }
    Ok(len.min(most - at))
}

/// Whether the running process may make a file so long.
///
/// # Errors
/// As [`file_room`].
pub fn file_may_grow_to(size: u64) -> Result<()> {
    if size > file_limit() {
        return Err(too_large());
    }
    Ok(())
}

fn file_limit() -> u64 {
    sched::current().user().map_or(INFINITY, |thread| thread.process.limit(RLIMIT_FSIZE))
}

fn too_large() -> Errno {
    let info = SigInfo { signal: SIGXFSZ, code: code::SI_USER, detail: send::sender(0) };
    let _ = send::send_to_thread(&current_thread(), info);
    EFBIG
}

/// All limits of a process, shared by fork until one changes.
#[derive(Clone)]
pub struct Limits([Limit; COUNT]);

impl Limits {
    /// What pid 1 starts with.
    pub fn initial(nproc: u64) -> Arc<Limits> {
        let mut limits = [Limit { soft: INFINITY, hard: INFINITY }; COUNT];
        let mut set = |which: u32, soft, hard| limits[which as usize] = Limit { soft, hard };
        set(RLIMIT_STACK, STACK_DEFAULT, INFINITY);
        set(RLIMIT_CORE, 0, INFINITY);
        set(RLIMIT_NPROC, nproc, nproc);
        set(RLIMIT_NOFILE, 1024, 4096);
        set(RLIMIT_MEMLOCK, 8 << 20, 8 << 20);
        set(RLIMIT_SIGPENDING, nproc, nproc);
        set(RLIMIT_MSGQUEUE, 819_200, 819_200);
        set(RLIMIT_NICE, 0, 0);
        set(RLIMIT_RTPRIO, 0, 0);
        Arc::new(Limits(limits))
    }

    pub fn get(&self, resource: u32) -> Result<Limit> {
        self.0.get(resource as usize).copied().ok_or(EINVAL)
    }

    /// The soft limit; `resource` is one of the constants.
    pub fn soft(&self, resource: u32) -> u64 {
        self.0[resource as usize].soft
    }

    /// Whether one of them is about the size of the address space.
    pub fn limit_memory(&self) -> bool {
        self.soft(RLIMIT_AS) != INFINITY || self.soft(RLIMIT_DATA) != INFINITY
    }

    pub fn set(&mut self, resource: u32, limit: Limit) -> Result<()> {
        *self.0.get_mut(resource as usize).ok_or(EINVAL)? = limit;
        Ok(())
    }
}
