//! The machine itself: memory, frames, MMU, sleeping threads, and what can be made to fail.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use machine::order::Nothing;
use machine::{Channel, Frames, Held, Machine, NoMemory, PageNo, Reserve, ThreadCtx, Ticket, Va};

use crate::access::Denied;
use crate::config::{Config, Stage};
use crate::inject::Injector;
use crate::memory::Memory;
use crate::pmap::{SoftPmap, SoftSpace};
use crate::threads::{Sleepers, StdThreads, Threads};

type Deferred<T> = Box<dyn FnOnce(&SoftMachine<T>) + Send>;

/// A machine in software. Many may live in one process.
///
/// ```
/// use machine::{Machine, Reserve, ThreadCtx};
/// use uvm_soft::{Config, SoftMachine};
/// let soft = SoftMachine::new(Config::default());
/// let mut ctx = ThreadCtx::new();
/// let page = soft.frames().alloc(&soft, &mut ctx.held(), Reserve::User).unwrap();
/// soft.write(page, 0, b"hello");
/// let mut back = [0; 5];
/// soft.read(page, 0, &mut back);
/// assert_eq!(&back, b"hello");
/// ```
pub struct SoftMachine<T: Threads = StdThreads> {
    pub(crate) memory: Memory,
    pub(crate) pmap: SoftPmap,
    pub(crate) stage: Stage,
    frames: Frames<Self>,
    cpus: usize,
    /// Fails a heap reservation.
    pub heap: Injector,
    sleepers: T::Sleepers,
    deferred: Mutex<VecDeque<Deferred<T>>>,
    kept: Mutex<Vec<PageNo>>,
}

impl SoftMachine {
    /// A machine as configured, for threads of the host; all its frames are free.
    #[must_use]
    pub fn new(config: Config) -> SoftMachine {
        SoftMachine::with_threads(&config)
    }
}

impl<T: Threads> SoftMachine<T> {
    /// A machine as configured, for threads of another kind.
    ///
    /// # Panics
    /// If the host has no memory for the frames' records.
    #[must_use]
    pub fn with_threads(config: &Config) -> SoftMachine<T> {
        let pages = config.segments.iter().map(|&(_, n)| n as usize).sum();
        let Ok(frames) = Frames::new(&config.segments, config.cpus) else {
            panic!("the host has no memory for the records of {pages} frames");
        };
        SoftMachine {
            memory: Memory::new(pages),
            pmap: SoftPmap::new::<T>(config, pages),
            stage: config.stage,
            frames,
            cpus: config.cpus,
            heap: Injector::default(),
            sleepers: T::Sleepers::default(),
            deferred: Mutex::new(VecDeque::new()),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Moves the calling thread to a simulated CPU.
    pub fn run_on(&self, cpu: usize) {
        assert!(cpu < self.cpus, "cpu {cpu} of {}", self.cpus);
        T::set_cpu(cpu);
    }

    /// Simulated CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Checks that no TLB, of any CPU, allows what the tables don't. Only between operations.
    ///
    /// # Errors
    /// A sentence that names the stale entry.
    pub fn tlb_audit(&self) -> Result<(), String> {
        self.pmap.audit()
    }

    /// Runs `work` the next time a thread waits, or at [`run_deferred`](Self::run_deferred): an I/O's completion.
    pub fn defer(&self, work: impl FnOnce(&SoftMachine<T>) + Send + 'static) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push_back(Box::new(work));
    }

    /// Runs what was deferred, oldest first, and says how much that was.
    pub fn run_deferred(&self) -> usize {
        let mut done = 0;
        loop {
            let next = self.deferred.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(work) = next else { return done };
            work(self);
            done += 1;
        }
    }

    /// Takes user memory away until just `pages` allocations by the calling CPU can succeed, at most 64.
    /// [`give_back`](Self::give_back) undoes it.
    pub fn leave_free(&self, pages: usize) {
        let mut ctx = ThreadCtx::new();
        let mut held = ctx.held();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.frames().drain_caches(&mut held);
        while let Ok(page) = self.frames().alloc(self, &mut held, Reserve::User) {
            kept.push(page);
        }
        for _ in 0..pages {
            let Some(page) = kept.pop() else { break };
            self.frames().free_page(self, &mut held, page);
        }
    }

    /// Frees what [`leave_free`](Self::leave_free) took.
    pub fn give_back(&self) {
        let mut ctx = ThreadCtx::new();
        let mut held = ctx.held();
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        for page in kept {
            self.frames().free_page(self, &mut held, page);
        }
    }

    /// Reads a little-endian word as a program does.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_u64<E>(
        &self,
        cpu: usize,
        space: &SoftSpace,
        va: Va,
        fault: impl FnMut(Va, machine::Prot) -> Result<(), E>,
    ) -> Result<u64, Denied<E>> {
        let mut bytes = [0; 8];
        self.load(cpu, space, va, &mut bytes, fault)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl<T: Threads> Machine for SoftMachine<T> {
    type Lock = T::Lock;
    type Pmap = SoftPmap;

    fn pmap(&self) -> &SoftPmap {
        &self.pmap
    }

    fn frames(&self) -> &Frames<Self> {
        &self.frames
    }

    fn cpu(&self) -> usize {
        T::cpu() % self.cpus
    }

    fn zero(&self, page: PageNo) {
        self.memory.zero(page);
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        self.memory.copy(from, to);
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        self.memory.read(page, offset, buf);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.memory.write(page, offset, bytes);
    }

    fn reserve_heap(&self, _bytes: usize) -> Result<(), NoMemory> {
        if self.heap.fails() {
            return Err(NoMemory);
        }
        Ok(())
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        self.sleepers.ticket(channel)
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        if self.run_deferred() == 0 {
            self.sleepers.wait(ticket);
        }
    }

    fn wake(&self, channel: Channel) {
        self.sleepers.wake(channel);
    }
}
