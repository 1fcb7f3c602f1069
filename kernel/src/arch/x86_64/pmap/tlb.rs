//! Which CPUs hold translations of a space, and how they are made to forget them.
//!
//! A CPU is in a space's set exactly while the space's root is in its CR3: it joins before it loads
//! the root, and leaves after it has loaded the next, which forgets everything but the kernel's
//! (`machine::notes`, I1). One that idles or runs a kernel thread has the kernel's own root loaded.
//! CPUs in the set are left notes, which they read before they next run a program or copy from or
//! to its memory; only a CPU that does just that is interrupted and waited for (`machine::notes`).
//! A table or a root can be freed as soon as the CPUs in the set have forgotten: no other CPU has
//! it in CR3, or in a cache of the way through it, whatever the CPU walks ahead of need. That is
//! more to wait for ([`flush_tables`]).
//!
//! A CPU tells itself with interrupts off, before it goes back to a program or touches its memory:
//! what it has lowered and not yet forgotten can't be used meanwhile, by any thread. That is why
//! only what *other* CPUs may hold is counted (law P6 of `machine::pmap`), which no single-threaded
//! process ever does.
//!
//! Few pages are forgotten one by one, many by loading CR3: 150 ns each against 2 us and the
//! refill, under TCG.
//!
//! Not taken: to let an idle CPU keep the root it had, and flush when it goes on. Nothing would use
//! a stale translation of a page, but what the CPU walks ahead of need goes through tables that
//! were freed: every unmapping that frees a table, and every exit, would have to interrupt it. Nor
//! address space numbers: TCG has none (`-cpu max` offers no PCID), and code that can't be run
//! isn't written.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use arrayvec::ArrayVec;
use machine::notes::{Forget, Left};
use machine::shootdown::Stale as Lowered;
use machine::unfinished::Unfinished;
use machine::{CpuSet, PageNo, Shootdown, Va, VaRange, PAGE_SIZE};

use super::record::{assert_none_locked, record};
use super::reverse::UNTOLD;
use super::space::{cpus_of, Space};
use super::CACHED;
use crate::arch::cpu::NO_SPACE;
use crate::arch::ipi::{self, Ipi};
use crate::arch::tables::{Root, ACCESSED};
use crate::arch::{cpu, io, tables};

/// Pages forgotten one by one at most.
const SINGLY: u64 = 16;

/// Shootdowns of what other CPUs may hold.
static UNFINISHED: Unfinished<{ cpu::MAX_CPUS }> = Unfinished::new();

/// What one CPU has done.
#[repr(align(64))]
struct Counters {
    all: AtomicU64,
    elsewhere: AtomicU64,
    remote: AtomicU64,
    interrupts: AtomicU64,
    deferred: AtomicU64,
    noted: AtomicU64,
}

static COUNTERS: [Counters; cpu::MAX_CPUS] = [const {
    Counters {
        all: AtomicU64::new(0),
        elsewhere: AtomicU64::new(0),
        remote: AtomicU64::new(0),
        interrupts: AtomicU64::new(0),
        deferred: AtomicU64::new(0),
        noted: AtomicU64::new(0),
    }
}; cpu::MAX_CPUS];

/// Counts on this CPU, which alone writes its counters.
#[inline]
fn count(which: impl Fn(&Counters) -> &AtomicU64, by: u64) {
    let counter = which(&COUNTERS[cpu::index()]);
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// What shootdowns have cost so far, by name, for `/proc/vmstat`.
pub fn counters() -> [(&'static str, u64); 6] {
    let sum = |which: fn(&Counters) -> &AtomicU64| -> u64 {
        COUNTERS.iter().map(|counters| which(counters).load(Relaxed)).sum()
    };
    let (all, remote) = (sum(|c| &c.all), sum(|c| &c.remote));
    [
        // Shootdowns that the CPU which performed them had to hear of itself.
        ("tlb_local", all.saturating_sub(sum(|c| &c.elsewhere))),
        // Shootdowns for which other CPUs were interrupted.
        ("tlb_remote", remote),
        // CPUs interrupted by them.
        ("tlb_interrupts", sum(|c| &c.interrupts)),
        // CPUs that held what was lowered, and had loaded other tables before they were asked.
        ("tlb_deferred", sum(|c| &c.deferred)),
        // CPUs that will find a note before they use what was lowered.
        ("tlb_noted", sum(|c| &c.noted)),
        // Shootdowns that interrupted no other CPU.
        ("tlb_avoided", all.saturating_sub(remote)),
    ]
}

/// Makes a space this CPU's; nothing happens if it is already.
#[inline]
pub(super) fn activate(space: &Space) {
    if cpu::this().space.get() != space.root.0 {
        record(space.root).wide.fetch_or(1 << cpu::index(), SeqCst);
        load(space.top, space.root.0);
    }
}

/// Leaves the current space for the kernel's own tables: before it is torn down, so that nothing
/// needs to be flushed.
pub(super) fn deactivate() {
    if active() != NO_SPACE {
        load(tables::root(), NO_SPACE);
    }
}

/// Makes sure that this CPU doesn't use a space's tables.
pub(super) fn leave(space: &Space) {
    if active() == space.root.0 {
        deactivate();
    }
}

/// Loads a root of a space whose set this CPU has joined, and leaves the set of the one before.
pub(super) fn load(root: Root, space: u32) {
    let left = active();
    cpu::this().space.set(space);
    // SAFETY: roots map the kernel, and none is freed while a CPU is in its space's set.
    unsafe { io::write_cr3(root.place()) };
    if left != NO_SPACE && left != space {
        record(PageNo(left)).wide.fetch_and(!(1 << cpu::index()), SeqCst);
    }
}

/// The root page of the space that is active here, or `NO_SPACE`.
#[inline]
fn active() -> u32 {
    cpu::this().space.get()
}

/// Gathers one call's stale addresses in one space into one range.
pub(super) struct Stale {
    root: PageNo,
    /// The CPUs that might hold what was lowered, at the last look.
    seen: CpuSet,
    cpus: CpuSet,
    /// For the record of a page that is lowered: whether others must be told.
    untold: u32,
    range: VaRange,
}

impl Stale {
    #[inline]
    pub(super) fn new(root: PageNo) -> Stale {
        Stale {
            root,
            seen: CpuSet::NONE,
            cpus: CpuSet::NONE,
            untold: 0,
            range: VaRange::new(Va(u64::MAX), Va(0)),
        }
    }

    /// The entry of `va` was `entry` and has been lowered; the lock of its page is still held, or
    /// that of the space if it led to a table. Gives the mark for the page's record: whether other
    /// CPUs must be told.
    #[inline]
    pub(super) fn add(&mut self, va: u64, entry: u64, down: &mut Shootdown) -> u32 {
        if entry & CACHED == 0 {
            return 0;
        }
        self.range.start = self.range.start.min(Va(va));
        self.range.end = self.range.end.max(Va(va + PAGE_SIZE as u64));
        let cpus = cpus_of(self.root);
        if cpus != self.seen {
            self.look(va, cpus, down);
        }
        self.untold
    }

    /// Whether other CPUs may hold what is lowered.
    #[inline]
    pub(super) fn concerns_others(&self) -> bool {
        !cpus_of(self.root).without(CpuSet::one(cpu::index())).is_empty()
    }

    /// Like [`add`](Self::add), for entries from `first` to `last` of one table, whose lock is
    /// held, and so of pages that no CPU can mark as told: for what doesn't concern others.
    #[inline]
    pub(super) fn add_all(&mut self, first: u64, last: u64, down: &mut Shootdown) {
        self.add(first, ACCESSED, down);
        self.add(last, ACCESSED, down);
    }

    /// The CPUs that may hold the entry are others than at the last look. If this one isn't alone,
    /// the shootdown is counted before the lock goes: a CPU that finds the entry as it is now finds
    /// the count, too.
    #[cold]
    fn look(&mut self, va: u64, cpus: CpuSet, down: &mut Shootdown) {
        self.seen = cpus;
        self.cpus = self.cpus.union(cpus);
        if !cpus.without(CpuSet::one(cpu::index())).is_empty() {
            self.untold = UNTOLD;
            let page = VaRange::new(Va(va), Va(va + PAGE_SIZE as u64));
            note(down, self.root, page, cpus);
            if down.begin_count() {
                UNFINISHED.begin(cpu::index());
            }
        }
    }

    #[inline]
    pub(super) fn note(self, down: &mut Shootdown) {
        if !self.range.is_empty() {
            note(down, self.root, self.range, self.cpus);
        }
    }
}

/// Notes what these CPUs may hold of a space.
#[inline]
pub(super) fn note(down: &mut Shootdown, root: PageNo, range: VaRange, cpus: CpuSet) {
    let was_needed = down.is_needed();
    down.note(u64::from(root.0), range, cpus);
    witness::gathers(was_needed, down);
}

/// Notes all that any CPU may hold.
pub(super) fn note_all(down: &mut Shootdown) {
    let was_needed = down.is_needed();
    down.note_all(cpu::online());
    witness::gathers(was_needed, down);
}

/// Stops the kernel if this CPU has gathered what it has not told yet (I3 of `machine::shootdown`),
/// in builds with debug assertions.
#[inline]
pub fn assert_all_told() {
    debug_assert!(
        witness::gathering() == 0,
        "a thread sleeps with a shootdown that was not performed"
    );
}

/// How many shootdowns each CPU gathers, where debug assertions are on.
mod witness {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use machine::Shootdown;

    use crate::arch::cpu;

    #[repr(align(64))]
    struct Count(AtomicUsize);

    static GATHERING: [Count; cpu::MAX_CPUS] =
        [const { Count(AtomicUsize::new(0)) }; cpu::MAX_CPUS];

    #[inline]
    pub(super) fn gathers(was_needed: bool, down: &Shootdown) {
        if cfg!(debug_assertions) && !was_needed && down.is_needed() {
            GATHERING[cpu::index()].0.fetch_add(1, Relaxed);
        }
    }

    #[inline]
    pub(super) fn told() {
        if cfg!(debug_assertions) {
            let before = GATHERING[cpu::index()].0.fetch_sub(1, Relaxed);
            assert!(before != 0, "a shootdown is performed on another CPU than gathered it");
        }
    }

    #[inline]
    pub(super) fn gathering() -> usize {
        GATHERING[cpu::index()].0.load(Relaxed)
    }
}

/// Whether others have lowered what CPUs may hold, and have not told them all yet.
#[inline]
pub(super) fn others_unfinished(down: &Shootdown) -> bool {
    UNFINISHED.are_others(cpu::count(), u32::from(down.is_counted()))
}

/// What is waited for where other CPUs hold what was lowered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// No other CPU uses what was lowered any more.
    OutOfUse,
    /// The other CPUs have forgotten what was lowered.
    Forgotten,
}

/// Makes sure that no CPU uses what was lowered.
pub(super) fn flush(down: &Shootdown) {
    tell(down, Until::OutOfUse);
}

/// Like [`flush`]; makes sure, too, that no CPU walks through tables that were taken out.
pub(super) fn flush_tables(down: &Shootdown) {
    tell(down, Until::Forgotten);
}

fn tell(down: &Shootdown, until: Until) {
    assert_none_locked();
    witness::told();
    let me = cpu::index();
    let others = down.cpus().without(CpuSet::one(me));
    count(|c| &c.all, 1);
    if down.cpus().contains(me) {
        match down.ranges() {
            Some(ranges) => forget_lowered(ranges),
            None => forget_all(),
        }
    } else {
        count(|c| &c.elsewhere, 1);
    }
    if !others.is_empty() {
        tell_others(others, down.ranges(), until);
    }
    if down.is_counted() {
        UNFINISHED.end(me);
    }
}

/// Leaves notes for those of `noted` that are still in one of the spaces: a CPU that left has
/// forgotten. Interrupts those that may be using what was lowered, and waits for them.
#[cold]
fn tell_others(noted: CpuSet, ranges: Option<&[Lowered]>, until: Until) {
    let holders = |ranges: &[Lowered]| {
        ranges
            .iter()
            .fold(CpuSet::NONE, |set, lowered| set.union(cpus_of(PageNo(lowered.space as u32))))
    };
    let me = cpu::index();
    let cpus = noted.intersection(ranges.map_or(noted, holders));
    count(|c| &c.deferred, u64::from(noted.without(cpus).bits().count_ones()));
    let mut asked = ArrayVec::<(usize, Left), { cpu::MAX_CPUS }>::new();
    for cpu in cpus.iter() {
        let left = cpu::shared(cpu).notes.leave(ranges);
        if until == Until::Forgotten || left.was_in_use() {
            asked.push((cpu, left));
        }
    }
    if until == Until::OutOfUse && !asked.is_empty() {
        Hope::of(me).await_all(&mut asked);
    }
    count(|c| &c.noted, u64::from(cpus.bits().count_ones()) - asked.len() as u64);
    if asked.is_empty() {
        return;
    }
    count(|c| &c.remote, 1);
    count(|c| &c.interrupts, asked.len() as u64);
    ipi::send(
        asked.iter().fold(CpuSet::NONE, |set, &(cpu, _)| set.union(CpuSet::one(cpu))),
        Ipi::Shootdown,
    );
    for (cpu, left) in asked {
        let notes = &cpu::shared(cpu).notes;
        let mut wait = ipi::Wait::new();
        while !match until {
            Until::OutOfUse => left.is_out_of_use(notes),
            Until::Forgotten => left.is_forgotten(notes),
        } {
            wait.pause();
        }
    }
}

/// Whether it is worth waiting that a CPU which uses translations comes into the kernel by itself.
/// Threads that map and unmap are soon there again, and an interrupt costs both CPUs more than a
/// look or two; a thread that computes isn't. So a CPU that hopes in vain doesn't for a while,
/// longer each time.
#[repr(align(64))]
struct Hope {
    /// Times to do without.
    without: AtomicU32,
    /// What `without` becomes when hope is in vain again.
    next: AtomicU32,
}

static HOPES: [Hope; cpu::MAX_CPUS] =
    [const { Hope { without: AtomicU32::new(0), next: AtomicU32::new(1) } }; cpu::MAX_CPUS];

impl Hope {
    /// Looks, of some ten nanoseconds each under TCG.
    const LOOKS: usize = 300;
    const MOST: u32 = 64;

    fn of(cpu: usize) -> &'static Hope {
        &HOPES[cpu]
    }

    /// Takes out those that come in time. Called on the CPU whose hope it is.
    fn await_all(&self, asked: &mut ArrayVec<(usize, Left), { cpu::MAX_CPUS }>) {
        let without = self.without.load(Relaxed);
        if without != 0 {
            return self.without.store(without - 1, Relaxed);
        }
        for _ in 0..Hope::LOOKS {
            ipi::poll();
            asked.retain(|(cpu, left)| !left.is_out_of_use(&cpu::shared(*cpu).notes));
            if asked.is_empty() {
                return self.next.store(1, Relaxed);
            }
        }
        let next = self.next.load(Relaxed);
        self.without.store(next, Relaxed);
        self.next.store((next * 2).min(Hope::MOST), Relaxed);
    }
}

/// A program's translations may be used here from now on, where others' notes are not about them.
#[inline]
pub fn begin_use() {
    cpu::this().shared.notes.begin_use(forget);
}

/// A program's translations aren't used here any more.
#[inline]
pub fn end_use() {
    cpu::this().shared.notes.end_use();
}

/// Forgets what other CPUs have left notes about.
#[cold]
pub fn take_notes() {
    cpu::this().shared.notes.take(forget);
}

fn forget(what: Forget<'_>) {
    match what {
        Forget::Everything => forget_all(),
        Forget::Ranges(ranges) => forget_ranges(|| ranges.iter().copied()),
    }
}

/// Forgets what this CPU has lowered. What isn't of the active space was forgotten when that was
/// loaded.
fn forget_lowered(lowered: &[Lowered]) {
    let here = u64::from(active());
    forget_ranges(|| {
        lowered.iter().filter(|lowered| lowered.space == here).map(|lowered| lowered.range)
    });
}

fn forget_ranges<I: Iterator<Item = VaRange>>(ranges: impl Fn() -> I) {
    if ranges().map(|range| range.pages().0).sum::<u64>() > SINGLY {
        return forget_all();
    }
    for range in ranges() {
        range.iter_pages().for_each(|va| io::invlpg(va.0));
    }
}

fn forget_all() {
    // SAFETY: the root that is active already.
    unsafe { io::write_cr3(io::read_cr3()) };
}
