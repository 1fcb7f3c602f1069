//! madvise and minherit: what a program says about a range, mapping by mapping.
//!
//! As on Linux, advice is given to every mapping in the range; a hole is an error, but only after
//! all of them have had it. Which mappings a piece of advice suits is decided here, before the
//! library is asked: [`suits`].

use machine::{PageRange, Pages, Prot, Va};
use uvm::{FaultError, Inherit, Outline, RangeError, Sharing};

use super::space::{range_errno, Space};
use super::system::with;
use super::{object, Advice, Populate};
use crate::errno::{Result, EACCES, EAGAIN, EFAULT, EINVAL, ENOMEM};
use crate::sched;

/// A fault's work: that of copying so many bytes.
const FAULT: usize = 4 * machine::PAGE_SIZE;

/// Calls `each` with every mapping in a range, cut to it, until one fails; says whether they cover
/// it. Nothing is locked or allocated in between, so mappings may change meanwhile.
pub(super) fn each_part(
    space: &Space,
    range: PageRange,
    mut each: impl FnMut(&Outline) -> Result<()>,
) -> Result<Covered> {
    let (mut at, mut covered) = (range.start, Covered::Whole);
    while at < range.end {
        let rest = range.skip_to(at);
        let Some((mut part, _)) = with(|uvm, held| uvm.first_in(held, space.get(), rest)) else {
            return Ok(Covered::WithHoles);
        };
        let skipped = part.range.start.0.max(at.0) - at.0;
        covered = if part.range.start > at { Covered::WithHoles } else { covered };
        if let Some((_, first)) = &mut part.object {
            *first += Pages::floor((at.0 + skipped) - part.range.start.0);
        }
        part.range = part.range.intersect(rest);
        each(&part)?;
        sched::work_done(FAULT);
        at = part.range.end;
    }
    Ok(covered)
}

/// Whether mappings cover a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Covered {
    Whole,
    WithHoles,
}

impl Covered {
    /// A hole is an error.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Covered::Whole => Ok(()),
            Covered::WithHoles => Err(ENOMEM),
        }
    }
}

/// Whether Linux takes this advice for such a mapping.
fn suits(advice: Advice, part: &Outline) -> Result<()> {
    let anonymous = part.object.is_none();
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

pub(super) fn advise(space: &Space, range: PageRange, advice: Advice) -> Result<()> {
    if let Some(access) = populates(advice) {
        return populate(space, range, access);
    }
    let covered = each_part(space, range, |part| {
        suits(advice, part)?;
        one(space, part, advice)
    });
    covered?.check()
}

/// Gives one mapping its advice. One that has gone meanwhile has none to take.
fn one(space: &Space, part: &Outline, advice: Advice) -> Result<()> {
    let set = |advice| with(|uvm, held| uvm.advise(held, space.get(), part.range, advice));
    let inherit = |inherit| with(|uvm, held| uvm.inherit(held, space.get(), part.range, inherit));
    let done = match advice {
        Advice::Normal => set(uvm::Advice::Normal),
        Advice::Random => set(uvm::Advice::Random),
        Advice::Sequential => set(uvm::Advice::Sequential),
        Advice::DontFork => inherit(Inherit::None),
        Advice::WipeOnFork => inherit(Inherit::Zero),
        Advice::DoFork | Advice::KeepOnFork => inherit(default_inheritance(part)),
        Advice::DontNeed => discard(space, part.range),
        Advice::Free => {
            with(|uvm, held| uvm.free_lazily(held, space.get(), part.range));
            Ok(())
        }
        Advice::DontNeedLocked => return discard_locked(space, part),
        Advice::Remove => return object::punch(space, part.range),
        Advice::Cold => {
            with(|uvm, held| uvm.cool_range(held, space.get(), part.range));
            Ok(())
        }
        Advice::PageOut => {
            with(|uvm, held| uvm.pageout_range(held, space.get(), part.range));
            Ok(())
        }
        Advice::WillNeed => {
            with(|uvm, held| uvm.will_need(held, space.get(), part.range));
            Ok(())
        }
        Advice::Hint => Ok(()),
        Advice::PopulateRead | Advice::PopulateWrite => Ok(()),
    };
    match done {
        Err(RangeError::NoMapping) => Ok(()),
        Err(RangeError::TooMany) => Err(EAGAIN),
        done => done.map_err(range_errno),
    }
}

fn discard(space: &Space, range: PageRange) -> core::result::Result<(), RangeError> {
    with(|uvm, held| uvm.discard(held, space.get(), range))
}

/// Forgets the pages of a mapping that may be locked; what is touched of it then is locked again.
fn discard_locked(space: &Space, part: &Outline) -> Result<()> {
    let range = part.range;
    if !part.wired {
        return discard(space, range).map_err(range_errno);
    }
    with(|uvm, held| uvm.unwire(held, space.get(), range)).map_err(range_errno)?;
    let done = discard(space, range);
    with(|uvm, held| uvm.wire_as_touched(held, space.get(), range)).and(done).map_err(range_errno)
}

/// What a mapping was made with.
fn default_inheritance(part: &Outline) -> Inherit {
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
fn populate(space: &Space, range: PageRange, access: Prot) -> Result<()> {
    fault_in(space, range, access).map_err(|e| match e {
        FaultError::NoMapping | FaultError::NoMemory | FaultError::TooOften => ENOMEM,
        FaultError::Protection => EINVAL,
        FaultError::Bus | FaultError::Io | FaultError::NoSpace => EFAULT,
    })
}

/// Faults a range in, as far as it goes; a process that is ending gets no more, and hears of no
/// error.
pub(super) fn fault_in(
    space: &Space,
    range: PageRange,
    access: Prot,
) -> core::result::Result<(), FaultError> {
    range.iter_pages().try_for_each(|va| {
        if sched::work_done(FAULT) && sched::is_leaving() {
            return Err(FaultError::NoMemory);
        }
        with(|uvm, held| uvm.fault(held, space.get(), va, access)).map(drop)
    })
}

/// Sets what a child gets of a range.
pub(super) fn inherit(space: &Space, range: PageRange, inherit: Inherit) -> Result<()> {
    with(|uvm, held| uvm.inherit(held, space.get(), range, inherit)).map_err(range_errno)
}

/// Locks every mapping, as far as memory goes. As on Linux that says nothing of pages that can't be
/// had: they are locked when they are touched. Ends before more than `most` bytes are locked.
pub(super) fn lock_all(space: &Space, when: Populate, most: u64) {
    let mut left = most;
    let _ = each_part(space, space.get().bounds(), |part| {
        left = left.checked_sub(part.range.pages().bytes()).ok_or(ENOMEM)?;
        if with(|uvm, held| uvm.wire_as_touched(held, space.get(), part.range)).is_ok()
            && when == Populate::Now
        {
            populate_locked(space, part);
        }
        Ok(())
    });
}

/// Brings a locked mapping's pages in, as far as they can be had.
fn populate_locked(space: &Space, part: &Outline) {
    let access =
        [Prot::WRITE, Prot::READ, Prot::EXECUTE].into_iter().find(|&a| part.prot.contains(a));
    let Some(access) = access else { return };
    for va in part.range.iter_pages() {
        let is_over = sched::work_done(FAULT) && sched::is_leaving();
        if is_over || with(|uvm, held| uvm.fault(held, space.get(), va, access)).is_err() {
            return;
        }
    }
}

/// Locks a range in memory. What may not be accessed can't be brought in, which is an error, though
/// it is locked.
pub(super) fn lock(space: &Space, range: PageRange, when: Populate) -> Result<()> {
    let done = with(|uvm, held| match when {
        Populate::Now => uvm.wire(held, space.get(), range),
        Populate::OnTouch => uvm.wire_as_touched(held, space.get(), range),
    });
    done.map_err(|e| if e == RangeError::Access { ENOMEM } else { range_errno(e) })?;
    if when == Populate::OnTouch {
        return Ok(());
    }
    each_part(space, range, |part| if part.prot == Prot::NONE { Err(ENOMEM) } else { Ok(()) })
        .map(|_| ())
}

/// Sums over the part of the space's mappings from `start` to `end`.
pub(super) fn mapping_stats(space: &Space, start: u64, end: u64) -> super::MappingStats {
    let mut stats = super::MappingStats::default();
    let range = PageRange::new(Va(start), Va(end)).unwrap_or_default();
    with(|uvm, held| {
        uvm.outline(held, space.get(), range, |entry| {
            let bytes = entry.range.intersect(range).pages().bytes();
            let private = entry.sharing == Sharing::Private;
            let only_if = |holds| if holds { bytes } else { 0 };
            stats.mapped += bytes;
            stats.private += only_if(private);
            stats.data += only_if(private && entry.prot.contains(Prot::WRITE));
            stats.locked += only_if(entry.wired);
        });
    });
    stats
}
