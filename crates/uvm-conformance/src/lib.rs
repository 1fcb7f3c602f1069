//! The laws of the contract, checked on any port: `laws` says which of them a port breaks, in
//! sentences.
//!
//! The contract is `machine::Machine` and `machine::Pmap`; `docs/porting.md` explains its laws. A
//! port that keeps them all can be given to the VM system; one that breaks a law corrupts a program
//! some day, far from the cause. Here each law is broken, or seen to hold, within a few
//! instructions of the call at fault.
//!
//! ```text
//!   laws(machine, access, effort) -> Report        P1 .. P6, ranges, bytes, tickets, locks, heap
//!      |          |
//!      |          `-- Access: the port says how CPU n loads, stores, fetches through a space,
//!      |                      runs work on CPU n, and has frames
//!      `-- Machine, Pmap: what is checked
//! ```
//!
//! # How a violation is seen
//! By what a program would see: a load that returns the bytes of a page that was taken away, a
//! store that arrives there, a bit that doesn't say so. Nothing is asked of the port's insides, so
//! that nothing there can hide a fault.
//!
//! Most interleavings need no luck: a `Shootdown` is a value, so one CPU can lower a mapping and
//! keep its shootdown unflushed while another CPU goes on (law P6), whatever the port's timing.
//! What lies inside one call, such as a flush that doesn't wait for a CPU in the midst of an
//! access, is looked for by [`Effort::rounds`] of random work on all CPUs at once. A sound port
//! passes at any speed; the only clock is the port's own patience in [`Access::wait`], for a
//! wake-up that never comes.
//!
//! A port that keeps them shows what the library does on it by [`workload()`]: programs that fork,
//! loan pages, transfer them and use more memory than there is.
//!
//! # Using it
//! A port on a desk implements [`Access`] by what its simulated CPUs do
//! (`tests/soft.rs` in this crate: the software machine). On bare metal a load is one instruction
//! in user mode, or in kernel mode under the space's tables, with the trap caught; [`Access::on`]
//! sends work to another hart and answers shootdowns while it waits.
//!
//! The crate is `no_std`, allocates, and has no unsafe code. `laws` needs some 24 pages and a few
//! KiB of stack.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bits;
mod host;
mod lab;
mod lowering;
mod report;
mod rounds;
mod tables;
mod unflushed;
mod workload;

use alloc::string::String;

use core::fmt;

use machine::order::{FreeList, Held, Nothing, Ordered};
use machine::{Machine, Pmap, ThreadCtx, Va, VaRange};
use uvm::page::Frames;

pub use report::{Law, Report, Violation};
pub use workload::{workload, Programs};

/// An address space of a machine.
pub type SpaceOf<M> = <<M as Machine>::Pmap as Pmap>::Space;

/// Work for one CPU: see [`Access::on`].
pub type Work<'a> = &'a mut (dyn FnMut(&mut Held<'_, Nothing>) + Send);

/// Work for several CPUs at once: see [`Access::at_once`].
pub type SharedWork<'a> = &'a (dyn Fn(usize, &mut Held<'_, Nothing>) + Sync);

/// A call that runs on one CPU while another is in the midst of an access: see
/// [`Access::overlap`].
pub type SharedCall<'a> = &'a (dyn Fn(&mut Held<'_, Nothing>) + Sync);

/// Why a load, store or fetch did not happen.
///
/// ```
/// use uvm_conformance::Trap;
/// /// What a port's `Access::load` says of its machine's trap.
/// fn said(is_stale: bool) -> Trap {
///     if is_stale { Trap::Broken("a stale translation".into()) } else { Trap::Fault }
/// }
/// assert_eq!(said(false), Trap::Fault);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trap {
    /// The MMU has no translation, or one with too few rights.
    Fault,
    /// The port itself has seen that something is wrong. Reported as a violation.
    Broken(String),
}

impl core::fmt::Display for Trap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Trap::Fault => f.write_str("the MMU has no translation for the access"),
            Trap::Broken(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for Trap {}

/// What a port says about its CPUs, so that laws can be checked on them.
///
/// Loads and stores are of eight bytes at an address that is a multiple of eight, and are one
/// access of the MMU each.
///
/// ```
/// use machine::Machine;
/// use uvm_conformance::{laws, Access, Effort};
/// /// A port implements `Access`, and this is all that its test is.
/// fn check<M: Machine>(machine: &M, access: &impl Access<M>) -> bool {
///     laws(machine, access, Effort::default()).is_sound()
/// }
/// ```
pub trait Access<M: Machine>: Sync {
    /// CPUs, at least one. CPU `n` is the one that `Machine::cpu` calls `n`.
    fn cpus(&self) -> usize;

    /// Runs `work` once on a CPU and returns after it has ended. The calling thread runs on any
    /// CPU, this one perhaps, and holds no lock. While it waits, its CPU answers what other CPUs
    /// ask of it, as an idle one does. `work` gets the port's token that nothing is held. The
    /// default asks [`at_once`](Self::at_once).
    fn on(&self, cpu: usize, work: Work<'_>) {
        let work = Ordered::<FreeList, M::Lock, _>::new(Some(work));
        let take = || work.lock(&mut ThreadCtx::new().held()).0.take();
        self.at_once(cpu + 1, &|n, held| {
            if n == cpu {
                take().into_iter().for_each(|work| work(held));
            }
        });
    }

    /// Runs `work(n)` on each of the CPUs 0 to `cpus`, without that, all at the same time, and
    /// returns after all have ended. `cpus` is at most [`cpus`](Self::cpus).
    fn at_once(&self, cpus: usize, work: SharedWork<'_>);

    /// Loads a little-endian word through a space on the calling CPU, as a program there does: by
    /// the CPU's TLB, where it knows a translation. Called from [`on`](Self::on) and
    /// [`at_once`](Self::at_once) only, with the CPU's number; nothing is locked. Afterwards the
    /// CPU keeps what its TLB knows, as one that is interrupted does.
    ///
    /// # Errors
    /// [`Trap`]; the port calls no fault handler.
    fn load(&self, cpu: usize, space: &SpaceOf<M>, va: Va) -> Result<u64, Trap>;

    /// Stores a word as [`load`](Self::load) loads one.
    ///
    /// # Errors
    /// [`Trap`]; nothing is stored.
    fn store(&self, cpu: usize, space: &SpaceOf<M>, va: Va, word: u64) -> Result<(), Trap>;

    /// Fetches an instruction from `va`, as [`load`](Self::load) loads a word. A port that runs
    /// what it fetches finds [`code`](Self::code) there. The default is for a port that can't tell
    /// a fetch from a load.
    ///
    /// # Errors
    /// [`Trap`].
    fn fetch(&self, cpu: usize, space: &SpaceOf<M>, va: Va) -> Result<(), Trap> {
        self.load(cpu, space, va).map(|_| ())
    }

    /// What [`fetch`](Self::fetch) wants to find, as a little-endian word.
    fn code(&self) -> u64 {
        0
    }

    /// Lets a load or a store on `cpu` overlap with `call` on another CPU, `by`, in the port's
    /// `way`th way: the access has begun, and is held up somewhere before the CPU has used the
    /// translation that its TLB knows; `call` runs meanwhile; and the access goes on once `call`
    /// has
    /// returned, or can't return before the access goes on. `store` is the word to store. Returns
    /// what the access did after both have ended; `None`, without doing either, if there is no such
    /// way. The default has none: what lies inside calls is then left to [`Effort::rounds`].
    fn overlap(
        &self,
        _way: usize,
        _cpu: usize,
        _access: (&SpaceOf<M>, Va, Option<u64>),
        _by: usize,
        _call: SharedCall<'_>,
    ) -> Option<Result<u64, Trap>> {
        None
    }

    /// The machine's frames, of which some are taken.
    fn frames(&self) -> &Frames<M>;

    /// Addresses that a program may have, page aligned, more than 2 GiB of them.
    fn window(&self) -> VaRange {
        VaRange::new(Va(4 << 20), Va(1 << 37))
    }

    /// Makes the pmap forget the pageable mappings of the space that it may forget (law P1), as it
    /// does when it is short of tables. The default is for a port that never forgets.
    fn forget(&self, _held: &mut Held<'_, Nothing>, _space: &SpaceOf<M>) {}

    /// Runs `work` while no page can be had for tables, if the port can arrange that; says whether
    /// it has. Without, [`Law::Memory`] is not checked.
    fn without_tables(&self, _work: Work<'_>, _held: &mut Held<'_, Nothing>) -> bool {
        false
    }

    /// Runs `work`, which reserves heap and allocates that, and says what the heap has found
    /// wrong, if
    /// it can find something by itself. (A refused allocation is found by the caller.)
    ///
    /// # Errors
    /// A sentence.
    fn allocating(&self, work: &mut dyn FnMut()) -> Result<(), String> {
        work();
        Ok(())
    }

    /// Runs `work` and says whether it has panicked; `None`, without running it, if the port can't
    /// survive a panic.
    fn panics(&self, _work: &mut dyn FnMut()) -> Option<bool> {
        None
    }

    /// Waits until `done` says so, and says whether it did: not if the port has lost its patience,
    /// after a minute perhaps. What is waited for comes at once on a sound port. The default has
    /// unlimited patience: a lost wake-up then hangs the run, and [`say`](Self::say) has said
    /// where.
    fn wait(&self, done: &mut dyn FnMut() -> bool) -> bool {
        <M::Lock as machine::RawLock>::wait_until(done);
        true
    }

    /// A line on how the run goes: which law is about to be checked; a violation, with `BROKEN`
    /// before it, which is in the report too. A port that may crash or hang prints it.
    fn say(&self, _line: fmt::Arguments<'_>) {}
}

/// How much is tried at random.
///
/// ```
/// use uvm_conformance::Effort;
/// let more = Effort { seed: 7, rounds: 10_000, ..Effort::default() };
/// # let _ = more;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// What the random work is drawn from. A violation names it.
    pub seed: u64,
    /// Mappings that each CPU makes and takes down while all others access them.
    pub rounds: u32,
    /// Address spaces that are made and destroyed one after another: more than the port has names
    /// for spaces (such as a TLB's address space numbers), if that can be afforded.
    pub spaces: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { seed: 0, rounds: 2_000, spaces: 300 }
    }
}

/// Checks the laws, and says which were checked and which are broken. It goes on after a violation,
/// with less to rely on: the first ones tell most.
///
/// The machine serves nothing else meanwhile. All pages and spaces are given back, but not after a
/// violation: a CPU may still know them.
///
/// Cost: some hundred mappings and flushes for each CPU, and [`Effort`].
///
/// # Panics
/// If the port has fewer than 24 pages, or doesn't run work that it is given.
///
/// ```
/// use machine::Machine;
/// use uvm_conformance::{laws, Access, Effort};
/// fn check<M: Machine>(machine: &M, access: &impl Access<M>) {
///     let report = laws(machine, access, Effort::default());
///     println!("{report}");
/// }
/// ```
pub fn laws<M: Machine, A: Access<M>>(machine: &M, access: &A, effort: Effort) -> Report {
    let mut lab = lab::Lab::new(machine, access, effort);
    host::check(&mut lab);
    tables::check(&mut lab);
    lowering::check(&mut lab);
    bits::check(&mut lab);
    unflushed::check(&mut lab);
    rounds::check(&mut lab);
    tables::check_names(&mut lab);
    lab.finish()
}

/// The example of the crate's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
