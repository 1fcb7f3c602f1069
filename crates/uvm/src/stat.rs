//! Counters, with uvmexp's meaning, kept per CPU so that counting shares no cache line.

use alloc::vec::Vec;
use machine::lines::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$what:meta])* $name:ident = $word:literal,)*) => {
        /// What is counted.
        ///
        /// ```
        /// # use uvm_soft::example::*;
        /// # run(|uvm, held, space| {
        /// let range = memory(uvm, held, space, 2)?;
        /// let child = uvm.fork(held, space)?;
        /// store(uvm, &child, range.start, b"c")?;
        /// assert_eq!(uvm.stat().get(Counter::FaultsAnonCopied), 1);
        /// uvm.space_destroy(held, child);
        /// # Ok(()) });
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$what])* $name,)*
        }

        /// Every counter with its name as `/proc/vmstat` has it.
        pub const COUNTERS: [(Counter, &str); [$($word),*].len()] =
            [$((Counter::$name, $word)),*];
    };
}

counters! {
    /// Calls of the fault routine.
    Faults = "faults",
    /// Case 1A: an anon was mapped.
    FaultsAnon = "faults_anon",
    /// Case 1B: an anon was copied.
    FaultsAnonCopied = "faults_anon_copied",
    /// A page on loan was mapped to be read.
    FaultsBorrowed = "faults_borrowed",
    /// Case 2A: an object's page was mapped.
    FaultsObject = "faults_object",
    /// Case 2B: an object's page was copied to an anon.
    FaultsPromoted = "faults_promoted",
    /// Case 2B: a page of zeroes was made.
    FaultsZero = "faults_zero",
    /// Pages of zeroes that were made with one, behind it.
    ZeroedAhead = "zeroed_ahead",
    /// Attempts that waited for a busy page.
    Waits = "fault_waits",
    /// Map entries made by mapping; merged ones are not counted.
    EntriesMade = "map_entries_made",
    /// Amaps copied at the first write after a fork.
    AmapCopies = "amap_copies",
    /// Pages that a fork copied for the child, since the parent would store to them at once.
    CopiedAtFork = "copied_at_fork",
    /// Reads of files.
    FileReads = "file_reads",
    /// Pages that they were of.
    FilePagesRead = "file_pages_read",
    /// Writes of files.
    FileWrites = "file_writes",
    /// Pages that they were of.
    FilePagesWritten = "file_pages_written",
    /// Pages of files that could not be written.
    FileErrors = "file_errors",
    /// Pages read from swap devices that are not memory.
    SwapIns = "pswpin",
    /// Reads from swap: divides the pages for the mean size.
    SwapReads = "swap_reads",
    /// Of the pages read from swap, those for which no thread waited.
    SwapAhead = "swap_ra",
    /// Pages written to swap devices that are not memory.
    SwapOuts = "pswpout",
    /// Writes to swap.
    SwapWrites = "swap_writes",
    /// Pages whose transfer to or from swap failed.
    SwapErrors = "swap_errors",
    /// Slots taken from pages in memory that had been written to since, because swap was full.
    SlotsReclaimed = "swap_slots_reclaimed",
    /// Passes of the page daemon, or of a thread in its place.
    Passes = "pageout_passes",
    /// Passes by threads that found no memory.
    DirectPasses = "allocstall",
    /// Pages looked at on the inactive queue.
    Scanned = "pgscan",
    /// Pages moved to the inactive queue.
    Deactivated = "pgdeactivate",
    /// Inactive pages that had been used again, or whose kind of memory is kept.
    Reactivated = "pgactivate",
    /// Pages that were freed lazily: they go when memory is short, unless they are stored to.
    FreedLazily = "pglazyfree",
    /// Pages freed by passes and by the writes that they started.
    PagesFreed = "pgsteal",
    /// Of these, pages freed without I/O.
    FreedClean = "pgsteal_clean",
    /// Pages of anonymous memory loaned to the kernel.
    LoansAnon = "loans_anon",
    /// Pages of objects loaned to the kernel.
    LoansObject = "loans_object",
    /// Times that the page of zeroes was loaned in place of memory that no program has touched.
    LoansZero = "loans_zero",
    /// Pages copied for the kernel, since a device may write to them or they are loaned too often.
    LoansCopied = "loans_copied",
    /// Loans that were broken: the lender got a copy, since it wrote while the page was loaned.
    LoansBroken = "loans_broken",
    /// Pages that became a program's as they were.
    PagesTransferred = "pages_transferred",
    /// Pages that were copied on their way to a program, since other programs have them too.
    TransfersCopied = "transfers_copied",
    /// Map entries passed from one space to another.
    EntriesPassed = "map_entries_passed",
}

#[repr(align(64))]
struct PerCpu([AtomicU64; COUNTERS.len()]);

/// An instance's counters.
///
/// ```
/// # use uvm_soft::example::*;
/// # run(|uvm, held, space| {
/// for (counter, name) in COUNTERS {
///     println!("{name} {}", uvm.stat().get(counter));
/// }
/// # Ok(()) });
/// ```
pub struct Stat {
    cpus: Vec<PerCpu>,
}

impl Stat {
    pub(crate) fn new(cpus: usize) -> Stat {
        Stat {
            cpus: (0..cpus).map(|_| PerCpu(core::array::from_fn(|_| AtomicU64::new(0)))).collect(),
        }
    }

    #[inline]
    pub(crate) fn add(&self, cpu: usize, counter: Counter, n: u64) {
        self.cpus[cpu].0[counter as usize].fetch_add(n, Relaxed);
    }

    /// A counter's sum over all CPUs.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let faults = uvm.stat().get(Counter::Faults);
    /// memory(uvm, held, space, 1)?;
    /// assert!(uvm.stat().get(Counter::Faults) > faults);
    /// # Ok(()) });
    /// ```
    pub fn get(&self, counter: Counter) -> u64 {
        self.cpus.iter().map(|c| c.0[counter as usize].load(Relaxed)).sum()
    }
}
