//! How address spaces grow, and what of that is allowed: `RLIMIT_AS`, `RLIMIT_DATA`,
//! `RLIMIT_STACK`, `RLIMIT_MEMLOCK`, and what may be promised.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::current_process;
use super::limits::{RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK, RLIMIT_STACK};
use super::mm::Mm;
use crate::arch::layout::MAP_LOWEST;
use crate::cred::caps::Caps;
use crate::errno::{Result, ENOMEM};
use crate::sync::MutexGuard;
use crate::vm::{self, commit, Populate};

const PAGE: u64 = 4096;

/// Whether a new mapping is promised: as Linux has it, `MAP_NORESERVE` counts for nothing where no
/// more may be promised than there is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    Made,
    None,
}

impl Promise {
    /// Of memory that a space has mapped already, with no promise perhaps.
    pub fn of_mapped(mm: &Mm) -> Promise {
        match mm.has_unpromised.load(Ordering::Relaxed) && !commit::is_strict() {
            true => Promise::None,
            false => Promise::Made,
        }
    }
}

/// Keeps other threads from growing the space, if a limit holds for what is mapped or locked.
pub fn growing(mm: &Mm, lock: Option<Populate>) -> Option<MutexGuard<'_, ()>> {
    let is_limited = current_process().limits_memory() || commit::is_strict();
    (lock.is_some() || is_limited).then(|| mm.growing.lock())
}

pub fn asker() -> commit::Asker {
    if current_process().cred().has(Caps::SYS_ADMIN) {
        commit::Asker::Admin
    } else {
        commit::Asker::Other
    }
}

/// How an address space is about to grow, in bytes.
#[derive(Default)]
pub struct Growth {
    pub mapped: u64,
    /// Part of `mapped` that is private and writable.
    pub data: u64,
    /// Addresses whose mappings go.
    pub replaced: Range<u64>,
}

impl Growth {
    /// Enforces `RLIMIT_AS` and `RLIMIT_DATA`.
    pub fn check(&self, mm: &Mm) -> Result<()> {
        let process = current_process();
        if !process.limits_memory() {
            return Ok(());
        }
        let (space, data) = (process.limit(RLIMIT_AS), process.limit(RLIMIT_DATA));
        let now = mm.mapping_stats();
        let gone = vm::mapping_stats(&mm.space, self.replaced.start, self.replaced.end);
        let fits = |now: u64, gone: u64, more: u64, limit| {
            (now - gone.min(now)).saturating_add(more) <= limit
        };
        let in_data = self.data == 0 || fits(now.data, gone.data, self.data, data);
        if in_data && fits(now.mapped, gone.mapped, self.mapped, space) {
            Ok(())
        } else {
            Err(ENOMEM)
        }
    }

    /// Runs `change`, which lets the space grow so, if the memory that its data takes may be
    /// promised.
    pub fn promised<T>(
        &self,
        mm: &Mm,
        promise: Promise,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let is_strict = commit::is_strict();
        if promise == Promise::Made && self.data != 0 {
            self.promise(mm)?;
        }
        let result = change();
        if is_strict {
            commit::settle(&mm.space);
        }
        result
    }

    fn promise(&self, mm: &Mm) -> Result<()> {
        let (mut more, mut mapped) = (self.data, 0);
        if commit::is_strict() {
            let gone = vm::mapping_stats(&mm.space, self.replaced.start, self.replaced.end);
            (more, mapped) = (more.saturating_sub(gone.data), mm.mapping_stats().mapped);
        }
        commit::take(&mm.space, more, mapped, asker())
    }
}

/// Allows for `len` bytes of new private memory, in place of `replaced`, while the result lives.
pub fn allow_growth(mm: &Mm, len: u64, replaced: Range<u64>) -> Result<Option<MutexGuard<'_, ()>>> {
    let guard = growing(mm, None);
    let growth = Growth { mapped: len, data: len, replaced };
    growth.check(mm)?;
    // Whatever changes the mappings next counts them.
    if commit::is_strict() {
        growth.promise(mm)?;
    }
    Ok(guard)
}

/// Whether the running process may have so many bytes more locked than it has.
pub fn check_locked(mm: &Mm, more: u64) -> Result<()> {
    let process = current_process();
    let limit = process.limit(RLIMIT_MEMLOCK);
    if process.cred().has(Caps::IPC_LOCK) || mm.mapping_stats().locked.saturating_add(more) <= limit
    {
        Ok(())
    } else {
        Err(ENOMEM)
    }
}

/// Makes a stack longer, so that it reaches down to an address of the running process where nothing
/// is mapped; says whether something is mapped there now.
#[cold]
pub fn grow_stack(mm: &Mm, va: u64) -> bool {
    let at = va & !(PAGE - 1);
    // Most such faults are a program's mistake, with no stack above.
    if at < MAP_LOWEST || vm::stack_above(&mm.space, at).is_none() {
        return vm::check_mapped(&mm.space, at, PAGE).is_ok();
    }
    let _growing = mm.growing.lock();
    let Some(stack) = vm::stack_above(&mm.space, at) else {
        return vm::check_mapped(&mm.space, at, PAGE).is_ok();
    };
    let more = stack.start() - at;
    let growth = Growth { mapped: more, data: more, replaced: 0..0 };
    stack.end() - at <= current_process().limit(RLIMIT_STACK)
        && (!stack.is_locked() || check_locked(mm, more).is_ok())
        && growth.check(mm).is_ok()
        && growth.promised(mm, Promise::of_mapped(mm), || vm::grow_stack(&mm.space, &stack, at))
            == Ok(true)
}
