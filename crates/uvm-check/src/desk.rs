//! What a world needs of a machine beside the contract: its CPUs, its tables to compare, and what
//! can be made to happen or fail there.
//!
//! Any machine that runs in this process can have the model's runs: [`run_on`](crate::run::run_on).
//! What it can't do has a default, and the lists that are about that show nothing.

use machine::{Machine, NoMemory, PageNo, Pmap, Prot, Va};
use uvm::page::Frames;
use uvm::Uvm;
use uvm_soft::{Config, Denied, Fate, Injector, Mapping, SoftMachine, Threads};

use crate::world::Scarce;

/// An address space of a machine.
pub type SpaceOf<M> = <<M as Machine>::Pmap as Pmap>::Space;

/// A machine that worlds run on.
///
/// `load`, `store` and `fetch` do what a program on a CPU does, and call `fault`, the VM system's
/// handler, where the MMU has no translation; an error of the handler is [`Denied::Fault`], a
/// broken machine [`Denied::Broken`].
pub trait Desk: Machine {
    /// A VM system on a new machine with the memory, the devices, the seed and the CPUs of a
    /// configuration, of which it may have fewer.
    ///
    /// # Errors
    /// [`NoMemory`] for its tables.
    fn boot(config: &Config) -> Result<Uvm<Self>, NoMemory>;

    /// Its page frames, as the VM system has them.
    fn frames(&self) -> &Frames<Self>;

    /// CPUs.
    fn cpus(&self) -> usize;

    /// Reads bytes of one page as a program on `cpu` does.
    ///
    /// # Errors
    /// [`Denied`].
    fn load<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        buf: &mut [u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>>;

    /// Writes bytes of one page as a program on `cpu` does.
    ///
    /// # Errors
    /// [`Denied`].
    fn store<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        bytes: &[u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>>;

    /// Fetches as a program on `cpu` does, and says from which page.
    ///
    /// # Errors
    /// [`Denied`].
    fn fetch<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<PageNo, Denied<E>>;

    /// All mappings of a space.
    fn mappings(&self, space: &SpaceOf<Self>) -> Vec<Mapping>;

    /// Forgets pageable mappings, as law P1 allows.
    fn forget_all(&self) {}

    /// Checks that no CPU knows what the tables don't; between operations.
    ///
    /// # Errors
    /// A sentence.
    fn audit(&self) -> Result<(), String> {
        Ok(())
    }

    /// How a program could still get at a page, if the machine knows a way.
    fn reach(&self, _page: PageNo) -> Option<String> {
        None
    }

    /// Puts a transfer under way, which ends when [`complete`](Self::complete) says so, or when the
    /// machine waits for something. The default ends it at once.
    fn begin(&self, end: impl FnOnce(&Self, Fate) + Send + 'static) {
        end(self, Fate::Works);
    }

    /// Ends the transfer that is the `n`th by age, and says whether there was one.
    fn complete(&self, _n: usize, _fate: Fate) -> bool {
        false
    }

    /// An operation begins.
    fn stir(&self) {}

    /// What fails calls that need heap or tables; frames are made scarce by
    /// [`leave_free`](Self::leave_free). None for a machine whose calls can't be made to fail.
    fn injector(&self, _scarce: Scarce) -> Option<&Injector> {
        None
    }

    /// Takes memory away until so many pages can be had.
    fn leave_free(&self, _pages: usize) {}

    /// Gives back what [`leave_free`](Self::leave_free) took.
    fn give_back(&self) {}

    /// Runs an operation, and says what it allocated beyond its reservation, if the machine's heap
    /// can tell.
    fn charged<R>(operation: impl FnOnce() -> R) -> (R, Option<&'static str>) {
        (operation(), None)
    }
}

impl<T: Threads> Desk for SoftMachine<T> {
    fn boot(config: &Config) -> Result<Uvm<Self>, NoMemory> {
        SoftMachine::with_threads(config).into_uvm()
    }

    fn frames(&self) -> &Frames<Self> {
        self.frames()
    }

    fn cpus(&self) -> usize {
        self.cpus()
    }

    fn load<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        buf: &mut [u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        self.load(cpu, space, va, buf, fault)
    }

    fn store<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        bytes: &[u8],
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<(), Denied<E>> {
        self.store(cpu, space, va, bytes, fault)
    }

    fn fetch<E>(
        &self,
        cpu: usize,
        space: &SpaceOf<Self>,
        va: Va,
        fault: impl FnMut(Va, Prot) -> Result<(), E>,
    ) -> Result<PageNo, Denied<E>> {
        self.fetch(cpu, space, va, fault)
    }

    fn mappings(&self, space: &SpaceOf<Self>) -> Vec<Mapping> {
        self.pmap().mappings(space)
    }

    fn forget_all(&self) {
        self.pmap().forget_all();
    }

    fn audit(&self) -> Result<(), String> {
        self.tlb_audit()
    }

    fn reach(&self, page: PageNo) -> Option<String> {
        self.pmap().reach(page)
    }

    fn begin(&self, end: impl FnOnce(&Self, Fate) + Send + 'static) {
        self.begin(end);
    }

    fn complete(&self, n: usize, fate: Fate) -> bool {
        self.complete(n, fate)
    }

    fn stir(&self) {
        self.stir();
    }

    fn injector(&self, scarce: Scarce) -> Option<&Injector> {
        match scarce {
            Scarce::Heap => Some(&self.heap),
            Scarce::Tables => Some(&self.pmap().tables),
            Scarce::Frames => None,
        }
    }

    fn leave_free(&self, pages: usize) {
        self.leave_free(pages);
    }

    fn give_back(&self) {
        self.give_back();
    }

    fn charged<R>(operation: impl FnOnce() -> R) -> (R, Option<&'static str>) {
        uvm_soft::charged(operation)
    }
}
