//! Counters, with uvmexp's meaning, kept per CPU so that counting shares no cache line.

pub(crate) mod space;

use alloc::vec::Vec;
use machine::lines::{AtomicU64, Ordering::Relaxed};

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
    /// Calls of the fault routine.
    Faults,
    /// Case 1A: an anon was mapped.
    FaultsAnon,
    /// Case 1B: an anon was copied.
    FaultsAnonCopied,
    /// A page on loan was mapped to be read.
    FaultsBorrowed,
    /// Case 2A: an object's page was mapped.
    FaultsObject,
    /// Case 2B: an object's page was copied to an anon.
    FaultsPromoted,
    /// Case 2B: a page of zeroes was made.
    FaultsZero,
    /// Pages of zeroes that were made with one, behind it.
    ZeroedAhead,
    /// Attempts that waited for a busy page.
    Waits,
    /// Map entries made by mapping; merged ones are not counted.
    EntriesMade,
    /// Amaps copied at the first write after a fork.
    AmapCopies,
    /// Pages that a fork copied for the child, since the parent would store to them at once.
    CopiedAtFork,
    /// Reads of files.
    FileReads,
    /// Pages that they were of.
    FilePagesRead,
    /// Writes of files.
    FileWrites,
    /// Pages that they were of.
    FilePagesWritten,
    /// Pages of files that could not be written.
    FileErrors,
    /// Pages read from swap devices that are not memory.
    SwapIns,
    /// Reads from swap: divides the pages for the mean size.
    SwapReads,
    /// Of the pages read from swap, those for which nobody waited.
    SwapAhead,
    /// Pages written to swap devices that are not memory.
    SwapOuts,
    /// Writes to swap.
    SwapWrites,
    /// Pages whose transfer to or from swap failed.
    SwapErrors,
    /// Slots taken from pages in memory that had been written to since, because swap was full.
    SlotsReclaimed,
    /// Passes of the page daemon, or of a thread in its place.
    Passes,
    /// Passes by threads that found no memory.
    DirectPasses,
    /// Pages looked at on the inactive queue.
    Scanned,
    /// Pages moved to the inactive queue.
    Deactivated,
    /// Inactive pages that had been used again, or whose kind of memory is kept.
    Reactivated,
    /// Pages freed by passes and by the writes that they started.
    PagesFreed,
    /// Of these, pages freed without I/O.
    FreedClean,
    /// Pages of anonymous memory loaned to the kernel.
    LoansAnon,
    /// Pages of objects loaned to the kernel.
    LoansObject,
    /// Times that the page of zeroes was loaned in place of memory that nobody has touched.
    LoansZero,
    /// Pages copied for the kernel, since a device may write to them or they are loaned too often.
    LoansCopied,
    /// Loans that were broken: the lender got a copy, since it wrote while the page was loaned.
    LoansBroken,
    /// Pages that became a program's as they were.
    PagesTransferred,
    /// Pages that were copied on their way to a program, since others have them too.
    TransfersCopied,
    /// Map entries passed from one space to another.
    EntriesPassed,
}

/// Every counter with its name as `/proc/vmstat` has it.
pub const COUNTERS: [(Counter, &str); 39] = [
    (Counter::Faults, "faults"),
    (Counter::FaultsAnon, "faults_anon"),
    (Counter::FaultsAnonCopied, "faults_anon_copied"),
    (Counter::FaultsBorrowed, "faults_borrowed"),
    (Counter::FaultsObject, "faults_object"),
    (Counter::FaultsPromoted, "faults_promoted"),
    (Counter::FaultsZero, "faults_zero"),
    (Counter::ZeroedAhead, "zeroed_ahead"),
    (Counter::Waits, "fault_waits"),
    (Counter::EntriesMade, "map_entries_made"),
    (Counter::AmapCopies, "amap_copies"),
    (Counter::CopiedAtFork, "copied_at_fork"),
    (Counter::FileReads, "file_reads"),
    (Counter::FilePagesRead, "file_pages_read"),
    (Counter::FileWrites, "file_writes"),
    (Counter::FilePagesWritten, "file_pages_written"),
    (Counter::FileErrors, "file_errors"),
    (Counter::SwapIns, "pswpin"),
    (Counter::SwapReads, "swap_reads"),
    (Counter::SwapAhead, "swap_ra"),
    (Counter::SwapOuts, "pswpout"),
    (Counter::SwapWrites, "swap_writes"),
    (Counter::SwapErrors, "swap_errors"),
    (Counter::SlotsReclaimed, "swap_slots_reclaimed"),
    (Counter::Passes, "pageout_passes"),
    (Counter::DirectPasses, "allocstall"),
    (Counter::Scanned, "pgscan"),
    (Counter::Deactivated, "pgdeactivate"),
    (Counter::Reactivated, "pgactivate"),
    (Counter::PagesFreed, "pgsteal"),
    (Counter::FreedClean, "pgsteal_clean"),
    (Counter::LoansAnon, "loans_anon"),
    (Counter::LoansObject, "loans_object"),
    (Counter::LoansZero, "loans_zero"),
    (Counter::LoansCopied, "loans_copied"),
    (Counter::LoansBroken, "loans_broken"),
    (Counter::PagesTransferred, "pages_transferred"),
    (Counter::TransfersCopied, "transfers_copied"),
    (Counter::EntriesPassed, "map_entries_passed"),
];

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
