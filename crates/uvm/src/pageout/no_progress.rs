//! The last desperate pass that took all there was and could not bring free pages up to the low
//! water mark: what it leaves says whether another one may help, so that a fork bomb's processes
//! don't each scan all of memory.
//!
//! Such a pass leaves behind what no pass can take: pages that are wired, and dirty ones that swap
//! has no slot for; and pages that were queued while it ran, which count as found as long as swap
//! has room. Until something changes that, another one finds what has become fresh since: pages
//! that were read, or written and so made clean, pages of files that were made, and as many dirty
//! ones as swap has got slots for. Counters say how many those can be at most, and unless that
//! could help no pass is made. So a scan of all of memory is paid for by as many pages that came in
//! as the low water mark stands high.
//!
//! I1: `fresh` is never less than what a desperate pass could take. I2: what is known is forgotten
//! when wired pages are released, and not kept where a transfer failed during the pass: its pages
//! are there yet.
//!
//! Locks: one, of level `MemoryTurn`, around what is known; a few words, taken by passes and by
//! threads that were refused memory.

use machine::lines::Ordering::{AcqRel, Acquire, Relaxed, Release};
use machine::lines::{AtomicBool, AtomicU64};

use crate::page::Class;
use machine::{order, Channel, Held, Machine, Ordered};

use super::decision::MemoryState;
use super::{Priority, Progress};
use crate::stat::Counter;
use crate::Uvm;

/// Whether a pass runs, and what is known from the last one.
pub(crate) struct PassLock<M: Machine> {
    runs: AtomicBool,
    known: Ordered<order::MemoryTurn, M::Lock, Option<NoProgress>>,
    /// Something is known.
    has_run_out: AtomicBool,
    /// How often wired pages were released.
    loosened: AtomicU64,
}

/// See the module.
#[derive(Clone, Copy)]
struct NoProgress {
    /// Pages that the pass met and could not take: another thread had or wanted them, or they had
    /// to be written first.
    left: usize,
    /// Pages read, written and failed by its end.
    made: u64,
    /// Pages of files.
    files: usize,
    loosened: u64,
    /// All that can change.
    state: [u64; 6],
}

impl<M: Machine> PassLock<M> {
    /// Threads that wait for the end of a pass.
    const CHANNEL: Channel = Channel(u64::MAX - 2);

    pub(crate) fn new() -> Self {
        PassLock {
            runs: AtomicBool::new(false),
            known: Ordered::new(None),
            has_run_out: AtomicBool::new(false),
            loosened: AtomicU64::new(0),
        }
    }
}

/// Counters of pages that a pass may take after them.
const MADE: [Counter; 5] = [
    Counter::SwapIns,
    Counter::FilePagesRead,
    Counter::FilePagesWritten,
    Counter::SwapErrors,
    Counter::FileErrors,
];

impl<M: Machine> Uvm<M> {
    /// Claims the one pass; or waits until another thread's has ended, and says no.
    pub(super) fn begin_pass(&self, held: &mut Held<'_, order::Nothing>) -> bool {
        let ticket = self.mem().ticket(PassLock::<M>::CHANNEL);
        if !self.pass_lock.runs.swap(true, AcqRel) {
            return true;
        }
        self.mem().wait(held, ticket);
        false
    }

    pub(super) fn end_pass(&self) {
        self.pass_lock.runs.store(false, Release);
        self.mem().wake(PassLock::<M>::CHANNEL);
    }

    /// Whether memory has run out, as far as the last desperate pass could tell.
    #[inline]
    pub(super) fn has_run_out(&self) -> bool {
        self.pass_lock.has_run_out.load(Relaxed)
    }

    /// Pages are no longer wired or loaned, or no longer kept for another reason: a pass might find
    /// what the last one did not. Noted where it matters, while a pass runs or something is known;
    /// else a return of a loan costs two reads.
    #[inline]
    pub(crate) fn pages_may_go(&self) {
        if self.pass_lock.runs.load(Acquire) || self.has_run_out() {
            self.loosened();
        }
    }

    #[cold]
    fn loosened(&self) {
        self.pass_lock.loosened.fetch_add(1, AcqRel);
        self.pass_lock.has_run_out.store(false, Relaxed);
    }

    /// Counts of this moment.
    pub(super) fn memory_state(&self, held: &mut Held<'_, order::Nothing>) -> MemoryState {
        // First what is under way, which is free next: rather counted twice than not at all.
        let (leaving, coming) = (self.pages_in_flight(), self.pages_coming_in());
        let being_freed = self.frames().being_freed();
        MemoryState {
            free: self.frames().free() + being_freed,
            being_freed,
            leaving,
            coming,
            free_slots: self.swap().room(held) as usize,
            fresh: self.fresh(held),
            freed: self.stat().get(Counter::PagesFreed),
            errors: self.transfer_errors(),
        }
    }

    /// Whether free pages and those that are being written are below the low water mark.
    pub(super) fn is_low(&self) -> bool {
        self.pages_in_flight() + self.frames().free() < self.frames().low_water()
    }

    /// A pass for a thread that was refused memory: a desperate one if there is no other way.
    pub(super) fn direct_pass(
        &self,
        held: &mut Held<'_, order::Nothing>,
        target: usize,
    ) -> Progress {
        self.stat().add(self.mem().cpu(), Counter::DirectPasses, 1);
        let fair = match self.has_run_out() {
            true => Progress::default(),
            false => self.pass(held, target, Priority::Normal),
        };
        if !self.is_low() {
            self.know(held, None);
            return fair;
        }
        let (errors, before) = (self.transfer_errors(), self.known_before());
        let desperate = self.pass(held, target, Priority::Desperate);
        let has_run_out = self.is_low() && self.transfer_errors() == errors;
        let known = has_run_out.then(|| self.known_after(held, before, desperate));
        self.know(held, known);
        fair.and(desperate)
    }

    fn know(&self, held: &mut Held<'_, order::Nothing>, known: Option<NoProgress>) {
        *self.pass_lock.known.lock(held).0 = known;
        self.pass_lock.has_run_out.store(known.is_some(), Relaxed);
    }

    /// What is read from here on, or is being read now, a pass that begins now may miss.
    fn known_before(&self) -> NoProgress {
        NoProgress {
            left: self.pages_coming_in(),
            made: self.pages_made(),
            files: 0,
            loosened: self.pass_lock.loosened.load(Relaxed),
            state: [0; 6],
        }
    }

    fn known_after(
        &self,
        held: &mut Held<'_, order::Nothing>,
        before: NoProgress,
        pass: Progress,
    ) -> NoProgress {
        // A file's dirty page that the pass has met may have been written by now: it is there, and
        // clean.
        let made = self.pages_made();
        let files = self.file_pages(held);
        let on_queues = self.frames().active() + self.frames().inactive();
        let left = match self.swap().room(held) {
            0 => pass.wanted,
            _ => on_queues.saturating_sub(pass.wired),
        };
        NoProgress {
            left: before.left + left + self.pages_in_flight() + (made - before.made) as usize,
            made,
            files,
            state: self.state_of_memory(held),
            ..before
        }
    }

    /// What a pass can take at most, but for what is under way.
    fn fresh(&self, held: &mut Held<'_, order::Nothing>) -> usize {
        let files = self.file_pages(held);
        if self.swap().slots() == 0 && files == 0 {
            return 0;
        }
        let loosened = self.pass_lock.loosened.load(Relaxed);
        let known = *self.pass_lock.known.lock(held).0;
        let Some(last) = known.filter(|last| last.loosened == loosened) else {
            return usize::MAX;
        };
        if self.state_of_memory(held) == last.state {
            return last.left;
        }
        let made = (self.pages_made() - last.made) as usize;
        let free_slots = self.swap().room(held) as usize;
        let loaned = self.anons.borrowed.load(Relaxed);
        last.left + made + free_slots + loaned + files.saturating_sub(last.files)
    }

    fn pages_made(&self) -> u64 {
        MADE.map(|counter| self.stat().get(counter)).iter().sum()
    }

    fn transfer_errors(&self) -> u64 {
        self.stat().get(Counter::SwapErrors) + self.stat().get(Counter::FileErrors)
    }

    fn file_pages(&self, held: &mut Held<'_, order::Nothing>) -> usize {
        self.frames().flush_pending(held);
        self.frames().of_class(Class::File) + self.frames().of_class(Class::Exec)
    }

    /// Numbers of which one changes whenever a pass might find what the last one did not, but for
    /// wirings.
    fn state_of_memory(&self, held: &mut Held<'_, order::Nothing>) -> [u64; 6] {
        let frames = self.frames();
        [
            self.stat().get(Counter::PagesFreed),
            self.pages_made(),
            frames.free() as u64,
            (frames.active() + frames.inactive()) as u64,
            u64::from(self.swap().used()),
            u64::from(self.swap().room(held)),
        ]
    }
}
