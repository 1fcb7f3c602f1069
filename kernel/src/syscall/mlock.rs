//! Locking in memory: mlock and its relatives, and what `RLIMIT_MEMLOCK` leaves of them.

use super::mem::{current_mm, range, PAGE};
use super::{calls, Calls};
use crate::cred::caps::Caps;
use crate::errno::{Result, EINVAL, ENOMEM, EPERM};
use crate::proc::current_process;
use crate::proc::growth::check_locked;
use crate::proc::limits::RLIMIT_MEMLOCK;
use crate::proc::Process;
use crate::vm::{self, Populate};

pub const CALLS: Calls = calls! {
    __NR_mlock => mlock[2],
    __NR_mlock2 => mlock2[3],
    __NR_munlock => munlock[2],
    __NR_mlockall => mlockall[1],
    __NR_munlockall => munlockall[0],
};

/// Whether a process may lock anything at all.
pub(super) fn check_may_lock(process: &Process) -> Result<()> {
    if process.limit(RLIMIT_MEMLOCK) != 0 || process.cred().has(Caps::IPC_LOCK) {
        Ok(())
    } else {
        Err(EPERM)
    }
}

/// The whole pages that a range touches: their start and length. A length that goes round is short,
/// as on Linux.
fn touched(addr: u64, len: u64) -> Result<(u64, u64)> {
    let start = addr & !(PAGE - 1);
    let len = len.wrapping_add(addr - start).wrapping_add(PAGE - 1) & !(PAGE - 1);
    start.checked_add(len).ok_or(EINVAL)?;
    range(start, len).map(|len| (start, len))
}

fn lock(addr: u64, len: u64, when: Populate) -> Result<()> {
    check_may_lock(&current_process())?;
    let (start, len) = touched(addr, len)?;
    if len == 0 {
        return Ok(());
    }
    let mm = current_mm()?;
    let _growing = mm.growing.lock();
    let already = vm::mapping_stats(&mm.space, start, start + len).locked;
    check_locked(&mm, len - already)?;
    vm::lock(&mm.space, start, len, when)
}

fn mlock(addr: u64, len: u64) -> Result<()> {
    lock(addr, len, Populate::Now)
}

fn mlock2(addr: u64, len: u64, flags: u32) -> Result<()> {
    const ONFAULT: u32 = 1;
    match flags {
        0 => lock(addr, len, Populate::Now),
        ONFAULT => lock(addr, len, Populate::OnTouch),
        _ => Err(EINVAL),
    }
}

fn munlock(addr: u64, len: u64) -> Result<()> {
    let (start, len) = touched(addr, len)?;
    if len == 0 {
        return Ok(());
    }
    vm::unlock(&current_mm()?.space, start, len)
}

fn mlockall(flags: u32) -> Result<()> {
    const CURRENT: u32 = 1;
    const FUTURE: u32 = 2;
    const ONFAULT: u32 = 4;
    if flags == 0 || flags & !(CURRENT | FUTURE | ONFAULT) != 0 || flags == ONFAULT {
        return Err(EINVAL);
    }
    let process = &current_process();
    check_may_lock(process)?;
    let mm = current_mm()?;
    let _growing = mm.growing.lock();
    let current = flags & CURRENT != 0;
    let may_all = process.cred().has(Caps::IPC_LOCK);
    let most = if may_all { u64::MAX } else { process.limit(RLIMIT_MEMLOCK) };
    if current && mm.mapping_stats().mapped > most {
        return Err(ENOMEM);
    }
    let when = if flags & ONFAULT != 0 { Populate::OnTouch } else { Populate::Now };
    mm.set_lock_future((flags & FUTURE != 0).then_some(when));
    if current {
        // What other threads map meanwhile is locked as far as the limit goes.
        vm::lock_all(&mm.space, when, most);
    }
    Ok(())
}

fn munlockall() -> Result<()> {
    let mm = current_mm()?;
    mm.set_lock_future(None);
    vm::unlock_all(&mm.space)
}
