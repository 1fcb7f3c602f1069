//! How CPUs have each other forget translations: one desk for each, where questions lie and answers are ticked off.
//!
//! ```text
//!   asker a:  lower the tables -> read who holds the space -> begin: what on a's desk, `open` = those CPUs,
//!             a bit for a in each one's `asked_by` -> interrupt them -> until `open` is 0: answer others
//!   asked c:  take all bits of `asked_by` -> forget what lies on their desks -> tick c off in each one's `open`
//! ```
//! The port sends the interrupts; the protocol works without them, by [`Rounds::answer`] alone. A CPU has at most one round of its
//! own under way, for it waits for its end; so the desk is its own until then. It answers while it waits: two CPUs that ask
//! each other with interrupts off both go on.
//!
//! Who must be asked is for the port to know, mostly by a set for each address space. Laws for that set, whose breach
//! `uvm-check/tests/loom/rounds.rs` shows:
//! I1: a CPU enters the set before it can load a translation of the space, and leaves it after it has forgotten all.
//! I2: an asker reads the set after it has lowered. Then whoever isn't in the set has seen the lowered tables, or has
//!     forgotten since. The two are sequentially consistent operations: each side writes, then reads what the other has written.
//!
//! The road not taken is a generation for each space and CPU. It says whom a flush has missed, which is needed where
//! translations outlive a CPU's stay in the space: address space numbers, or idle CPUs that keep what they had.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::atomic::AtomicU64;
use crate::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::shootdown::{Stale, RANGES};
use crate::{CpuSet, NoMemory, Va, VaRange};

/// All CPUs' desks.
pub struct Rounds {
    desks: Box<[Desk]>,
}

#[repr(align(128))]
struct Desk {
    /// CPUs whose rounds wait for this one.
    asked_by: AtomicU64,
    /// CPUs that this one's round waits for.
    open: AtomicU64,
    /// What is to be forgotten: so many ranges, or `EVERYTHING`.
    len: AtomicU64,
    /// Space, start, end.
    ranges: [[AtomicU64; 3]; RANGES],
}

const EVERYTHING: u64 = u64::MAX;

impl Rounds {
    /// No round is under way. `cpus` is at most 64.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(cpus: usize) -> Result<Rounds, NoMemory> {
        let mut desks = Vec::new();
        desks.try_reserve_exact(cpus).map_err(|_| NoMemory)?;
        desks.resize_with(cpus, || Desk {
            asked_by: AtomicU64::new(0),
            open: AtomicU64::new(0),
            len: AtomicU64::new(0),
            ranges: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
        });
        Ok(Rounds { desks: desks.into_boxed_slice() })
    }

    /// CPU `me` asks `cpus`, of which it is none, to forget `ranges`; `None` means everything. The caller interrupts
    /// them then, and goes on when [`is_over`](Self::is_over) says so; until then it calls [`answer`](Self::answer).
    /// Its last round is over.
    pub fn begin(&self, me: usize, cpus: CpuSet, ranges: Option<&[Stale]>) {
        let desk = &self.desks[me];
        debug_assert!(desk.open.load(Relaxed) == 0 && !cpus.contains(me), "a round within a round");
        for (to, from) in desk.ranges.iter().zip(ranges.unwrap_or_default()) {
            let words = [from.space, from.range.start.0, from.range.end.0];
            to.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        }
        desk.len.store(ranges.map_or(EVERYTHING, |ranges| ranges.len() as u64), Relaxed);
        desk.open.store(cpus.0, Relaxed);
        for cpu in cpus.iter() {
            self.desks[cpu].asked_by.fetch_or(CpuSet::one(me).0, Release);
        }
    }

    /// Whether all that CPU `me` has asked have forgotten.
    #[inline]
    #[must_use]
    pub fn is_over(&self, me: usize) -> bool {
        self.desks[me].open.load(Acquire) == 0
    }

    /// CPU `me` answers those who ask it, if any: `forget` is called once, with all that they ask for, and returns when this CPU
    /// has forgotten that. Takes no lock, waits for nobody.
    pub fn answer(&self, me: usize, forget: impl FnOnce(Asked<'_>)) {
        let by = CpuSet(self.desks[me].asked_by.swap(0, AcqRel));
        if by.is_empty() {
            return;
        }
        forget(Asked { rounds: self, by });
        for cpu in by.iter() {
            self.desks[cpu].open.fetch_and(!CpuSet::one(me).0, AcqRel);
        }
    }
}

/// What others ask a CPU to forget.
pub struct Asked<'a> {
    rounds: &'a Rounds,
    by: CpuSet,
}

impl Asked<'_> {
    /// The ranges, one after the other; `None` where a CPU asks for everything.
    pub fn ranges(&self) -> impl Iterator<Item = Option<Stale>> + '_ {
        self.by.iter().flat_map(|cpu| {
            let desk = &self.rounds.desks[cpu];
            let len = desk.len.load(Relaxed);
            let (count, all) = if len == EVERYTHING { (0, Some(None)) } else { (len as usize, None) };
            desk.ranges[..count].iter().map(|words| Some(stale(words))).chain(all)
        })
    }
}

fn stale([space, start, end]: &[AtomicU64; 3]) -> Stale {
    let range = VaRange::new(Va(start.load(Relaxed)), Va(end.load(Relaxed)));
    Stale { space: space.load(Relaxed), range }
}
