//! madvise and minherit: what a program says about a range, mapping by mapping.
//!
//! As on Linux, advice is given to every mapping in the range; a hole is an error, but only after all of them have had
//! it. Which mappings a piece of advice suits is decided here, before the library is asked: [`suits`].

use alloc::vec::Vec;

use machine::{Prot, Va, VaRange};
use uvm::{EntryInfo, FaultError, Inherit, RangeError, Sharing};

use super::uvm::{range_errno, ranges, with, Space};
use super::{object, Advice, Populate};
use crate::errno::{Result, EACCES, EFAULT, EINVAL, ENOMEM};

/// The mappings in a range, each cut to it, and whether they cover it.
struct Parts {
    parts: Vec<EntryInfo>,
    covered: bool,
}

fn parts(space: &Space, range: VaRange) -> Parts {
    let mut parts = Vec::with_capacity(ranges(space).len() + 8);
    let mut end = range.start;
    with(|uvm, held| {
        uvm.describe(held, space.get(), |entry| {
            let part = entry.range.intersect(range);
            if !part.is_empty() {
                end = if part.start == end { part.end } else { end };
                parts.push(EntryInfo { range: part, ..entry.clone() });
            }
        });
    });
    Parts { parts, covered: end == range.end }
}

/// Whether Linux takes this advice for such a mapping.
fn suits(advice: Advice, part: &EntryInfo) -> Result<()> {
    let anonymous = part.layers.object.is_none();
    let shared = part.sharing == Sharing::Shared;
    let fits = match advice {
        Advice::DontNeed | Advice::Cold | Advice::PageOut => !part.wired,
        Advice::Free => anonymous && !part.wired,
        Advice::WipeOnFork => anonymous,
        Advice::Remove if part.wired || anonymous => false,
        Advice::Remove if !shared || !part.max_prot.contains(Prot::WRITE) => return Err(EACCES),
        _ => true,
    };
    if fits {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

pub(super) fn advise(space: &Space, range: VaRange, advice: Advice) -> Result<()> {
    if let Some(access) = populates(advice) {
        return populate(space, range, access);
    }
    let Parts { parts, covered } = parts(space, range);
    for part in &parts {
        suits(advice, part)?;
        one(space, part, advice)?;
    }
    if covered {
        Ok(())
    } else {
        Err(ENOMEM)
    }
}

/// Gives one mapping its advice. One that has gone meanwhile has none to take.
fn one(space: &Space, part: &EntryInfo, advice: Advice) -> Result<()> {
    let set = |advice| with(|uvm, held| uvm.advise(held, space.get(), part.range, advice));
    let inherit = |inherit| with(|uvm, held| uvm.inherit(held, space.get(), part.range, inherit));
    let done = match advice {
        Advice::Normal => set(uvm::Advice::Normal),
        Advice::Random => set(uvm::Advice::Random),
        Advice::Sequential => set(uvm::Advice::Sequential),
        Advice::DontFork => inherit(Inherit::None),
        Advice::WipeOnFork => inherit(Inherit::Zero),
        Advice::DoFork | Advice::KeepOnFork => inherit(default_inheritance(part)),
        Advice::DontNeed | Advice::Free => discard(space, part.range),
        Advice::DontNeedLocked => return discard_locked(space, part),
        Advice::Remove => return object::punch(space, part.range.start.0, part.range.pages().bytes()),
        Advice::WillNeed | Advice::Cold | Advice::PageOut | Advice::Hint => Ok(()),
        Advice::PopulateRead | Advice::PopulateWrite => Ok(()),
    };
    match done {
        Err(RangeError::NoMapping) => Ok(()),
        done => done.map_err(range_errno),
    }
}

fn discard(space: &Space, range: VaRange) -> core::result::Result<(), RangeError> {
    with(|uvm, held| uvm.discard(held, space.get(), range))
}

/// Forgets the pages of a mapping that may be locked; what is touched of it then is locked again.
fn discard_locked(space: &Space, part: &EntryInfo) -> Result<()> {
    let range = part.range;
    if !part.wired {
        return discard(space, range).map_err(range_errno);
    }
    with(|uvm, held| uvm.unwire(held, space.get(), range)).map_err(range_errno)?;
    let done = discard(space, range);
    with(|uvm, held| uvm.wire_as_touched(held, space.get(), range)).and(done).map_err(range_errno)
}

/// What a mapping was made with.
fn default_inheritance(part: &EntryInfo) -> Inherit {
    if part.sharing == Sharing::Shared {
        Inherit::Share
    } else {
        Inherit::Copy
    }
}

fn populates(advice: Advice) -> Option<Prot> {
    match advice {
        Advice::PopulateRead => Some(Prot::READ),
        Advice::PopulateWrite => Some(Prot::WRITE),
        _ => None,
    }
}

/// Faults everything in, and says what stands in the way.
fn populate(space: &Space, range: VaRange, access: Prot) -> Result<()> {
    fault_in(space, range, access).map_err(|e| match e {
        FaultError::NoMapping | FaultError::NoMemory => ENOMEM,
        FaultError::Protection => EINVAL,
        FaultError::Bus | FaultError::Io => EFAULT,
    })
}

/// Faults a range in, as far as it goes.
pub(super) fn fault_in(space: &Space, range: VaRange, access: Prot) -> core::result::Result<(), FaultError> {
    range
        .iter_pages()
        .try_for_each(|va| with(|uvm, held| uvm.fault(held, space.get(), va, access)).map(|_| ()))
}

/// Sets what a child gets of a range.
pub(super) fn inherit(space: &Space, range: VaRange, inherit: Inherit) -> Result<()> {
    with(|uvm, held| uvm.inherit(held, space.get(), range, inherit)).map_err(range_errno)
}

/// Locks every mapping, as far as memory goes; a mapping whose pages can't be had stays as it was.
pub(super) fn lock_all(space: &Space, when: Populate) {
    for range in ranges(space) {
        let _ = lock(space, range, when);
    }
}

/// Locks a range in memory. What may not be accessed can't be brought in, which is an error, though it is locked.
pub(super) fn lock(space: &Space, range: VaRange, when: Populate) -> Result<()> {
    let done = with(|uvm, held| match when {
        Populate::Now => uvm.wire(held, space.get(), range),
        Populate::OnTouch => uvm.wire_as_touched(held, space.get(), range),
    });
    done.map_err(|e| if e == RangeError::Access { ENOMEM } else { range_errno(e) })?;
    let inaccessible =
        when == Populate::Now && parts(space, range).parts.iter().any(|e| e.prot == Prot::NONE);
    if inaccessible {
        Err(ENOMEM)
    } else {
        Ok(())
    }
}

/// Sums over the part of the space's mappings from `start` to `end`.
pub(super) fn sums(space: &Space, start: u64, end: u64) -> super::Sums {
    let mut sums = super::Sums::default();
    with(|uvm, held| {
        uvm.describe(held, space.get(), |entry| {
            let bytes = entry.range.intersect(VaRange::new(Va(start), Va(end))).pages().bytes();
            let private = entry.sharing == Sharing::Private;
            let only_if = |holds| if holds { bytes } else { 0 };
            sums.mapped += bytes;
            sums.private += only_if(private);
            sums.data += only_if(private && entry.prot.contains(Prot::WRITE));
            sums.locked += only_if(entry.wired);
        });
    });
    sums
}
