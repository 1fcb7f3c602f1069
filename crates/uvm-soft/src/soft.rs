//! The machine itself: memory, frames, MMU, sleeping threads, and what can be made to fail.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use machine::order::{self, Nothing};
use machine::shared::CachePadded;
use machine::{
    Channel, Held, Machine, NoMemory, Ordered, PageNo, RawLock, ThreadCtx, Ticket, Va,
    UNRESERVED_BYTES,
};
use uvm::page::{Frames, Reserve};
use uvm::Uvm;

use crate::access::Denied;
use crate::config::{Config, IoBy, Plant, Stage};
use crate::heap::{self, aside, host};
use crate::inject::Injector;
use crate::memory::Memory;
use crate::pmap::{SoftPmap, SoftSpace};
use crate::rng::Rng;
use crate::threads::{Sleepers, StdThreads, Threads};

type Transfer<T> = Box<dyn FnOnce(&SoftMachine<T>, Fate) + Send>;

/// Waits in one operation of a lone thread that can only be a circle.
const CIRCLE: u64 = 10_000;

/// How a transfer ends.
///
/// ```
/// use uvm_soft::{Config, Fate, SoftMachine};
/// let machine = SoftMachine::new(Config::default());
/// machine.begin(|_, fate| assert_eq!(fate, Fate::Fails));
/// machine.complete(0, Fate::Fails);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// As it should.
    Works,
    /// Not at all: the device says that it can't.
    Fails,
}

/// A machine in software. Many may live in one process.
///
/// ```
/// use machine::{Machine, ThreadCtx};
/// use uvm::page::Reserve;
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
    /// By simulated CPU: whose instruction runs there.
    pub(crate) turns: Vec<CachePadded<Ordered<order::FreeList, T::Lock, ()>>>,
    frames: Arc<Frames<Self>>,
    cpus: usize,
    /// Fails a heap reservation.
    pub heap: Injector,
    sleepers: T::Sleepers,
    transfers: Mutex<VecDeque<Transfer<T>>>,
    io: IoBy,
    order: Mutex<Rng>,
    /// Waits since `stir`.
    waits: AtomicU64,
    /// Threads that sleep.
    asleep: AtomicU64,
    kept: Mutex<Vec<PageNo>>,
    /// By simulated CPU: the thread there is being ended.
    ended: Vec<AtomicBool>,
    /// What the host does when memory has run out.
    host: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl SoftMachine {
    /// A machine as configured, for threads of the host; all its frames are free.
    ///
    /// ```
    /// use uvm_soft::{Config, SoftMachine};
    /// let machine = SoftMachine::new(Config::default());
    /// assert_eq!(machine.frames().total(), 1024);
    /// ```
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
    ///
    /// ```
    /// use uvm_soft::{Config, SoftMachine, StdThreads};
    /// let machine = SoftMachine::<StdThreads>::with_threads(&Config::default());
    /// assert_eq!(machine.cpus(), 4);
    /// ```
    #[must_use]
    pub fn with_threads(config: &Config) -> SoftMachine<T> {
        let all = config.segments.iter().chain(&config.devices);
        let pages = all.map(|&(_, n)| n as usize).sum();
        let Ok(frames) = Frames::with(&config.segments, &[], &config.devices, config.cpus) else {
            panic!("the host has no memory for the records of {pages} frames");
        };
        SoftMachine {
            memory: Memory::new(pages),
            pmap: SoftPmap::new::<T>(config, pages),
            stage: config.stage,
            turns: (0..config.cpus).map(|_| CachePadded(Ordered::new(()))).collect(),
            frames: Arc::new(frames),
            cpus: config.cpus,
            heap: Injector::default(),
            sleepers: T::Sleepers::default(),
            transfers: Mutex::new(VecDeque::new()),
            io: config.io,
            waits: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
            order: Mutex::new(Rng::new(config.seed)),
            kept: Mutex::new(Vec::new()),
            ended: (0..config.cpus).map(|_| AtomicBool::new(false)).collect(),
            host: OnceLock::new(),
        }
    }

    /// Moves the calling thread to a simulated CPU.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.machine().run_on(1);
    /// assert_eq!(uvm.machine().cpu(), 1);
    /// # Ok(()) });
    /// ```
    pub fn run_on(&self, cpu: usize) {
        assert!(cpu < self.cpus, "cpu {cpu} of {}", self.cpus);
        T::set_cpu(cpu);
    }

    /// Begins to end the thread of a simulated CPU: it waits for memory no longer.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.machine().end_thread(0);
    /// assert!(uvm.machine().has_fatal_signal());
    /// # Ok(()) });
    /// ```
    pub fn end_thread(&self, cpu: usize) {
        self.ended[cpu].store(true, Relaxed);
        self.sleepers.look_again();
    }

    /// What [`Machine::out_of_memory`] does and says; once, before any thread asks.
    ///
    /// # Panics
    /// If it has been said before.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.machine().when_run_out(|| false); // Nothing can be ended for more memory.
    /// # Ok(()) });
    /// ```
    pub fn when_run_out(&self, host: impl Fn() -> bool + Send + Sync + 'static) {
        assert!(self.host.set(Box::new(host)).is_ok(), "a machine has one host");
    }

    /// Its page frames.
    ///
    /// ```
    /// use uvm_soft::{Config, SoftMachine};
    /// let machine = SoftMachine::new(Config::default());
    /// assert_eq!(machine.frames().free(), machine.frames().total());
    /// ```
    pub fn frames(&self) -> &Frames<Self> {
        &self.frames
    }

    /// A VM system on this machine.
    ///
    /// # Errors
    /// As [`Uvm::new`].
    ///
    /// ```
    /// use uvm_soft::{Config, SoftMachine};
    /// let uvm = SoftMachine::new(Config::default()).into_uvm()?;
    /// assert_eq!(uvm.anons(), 0);
    /// # Ok::<(), machine::NoMemory>(())
    /// ```
    pub fn into_uvm(self) -> Result<Uvm<Self>, NoMemory> {
        let frames = self.frames.clone();
        Uvm::new(self, frames)
    }

    /// Simulated CPUs.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// assert_eq!(uvm.machine().cpus(), 4);
    /// # Ok(()) });
    /// ```
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// Checks that no TLB, of any CPU, allows what the tables don't. Only between operations.
    ///
    /// # Errors
    /// A sentence that names the stale entry.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// memory(uvm, held, space, 4)?;
    /// uvm.machine().tlb_audit()?;
    /// # Ok(()) });
    /// ```
    pub fn tlb_audit(&self) -> Result<(), String> {
        self.pmap.audit()
    }

    /// Puts a transfer under way: `end` ends it when [`complete`](Self::complete) says so.
    ///
    /// ```
    /// use uvm_soft::{Config, Fate, SoftMachine};
    /// let machine = SoftMachine::new(Config::default());
    /// machine.begin(|_, _| println!("the disk has done"));
    /// machine.complete(0, Fate::Works);
    /// ```
    pub fn begin(&self, end: impl FnOnce(&SoftMachine<T>, Fate) + Send + 'static) {
        let _host = host();
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner).push_back(Box::new(end));
    }

    /// Transfers under way.
    ///
    /// ```
    /// use uvm_soft::{Config, SoftMachine};
    /// let machine = SoftMachine::new(Config::default());
    /// machine.begin(|_, _| ());
    /// assert_eq!(machine.under_way(), 1);
    /// ```
    pub fn under_way(&self) -> usize {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Ends the transfer that is the `n`th by age, and says whether there was one. The youngest
    /// counts for all that are not there.
    ///
    /// ```
    /// use uvm_soft::{Config, Fate, SoftMachine};
    /// let machine = SoftMachine::new(Config::default());
    /// assert!(!machine.complete(0, Fate::Works), "nothing is under way");
    /// ```
    pub fn complete(&self, n: usize, fate: Fate) -> bool {
        let transfer = {
            let mut transfers = self.transfers.lock().unwrap_or_else(PoisonError::into_inner);
            let n = n.min(transfers.len().saturating_sub(1));
            transfers.remove(n)
        };
        transfer.is_some_and(|end| {
            aside(|| end(self, fate));
            true
        })
    }

    /// Begins to count waits anew. A machine with one thread takes a great many in one operation
    /// for a circle.
    ///
    /// ```
    /// let machine = uvm_soft::SoftMachine::new(uvm_soft::Config::default());
    /// machine.stir(); // Between two operations of a test.
    /// ```
    pub fn stir(&self) {
        self.waits.store(0, Relaxed);
    }

    /// A thread that lets others run has flushed what it has lowered (I2 of `machine::shootdown`).
    /// Where there are several threads, it may be another's.
    fn check_all_told(&self) {
        let is_told = self.stage != Stage::Sequential || self.pmap.unflushed() == 0;
        assert!(is_told, "a thread lets others run with a shootdown that it has not flushed");
    }

    /// Ends some transfer, as the seed has it.
    fn complete_one(&self) -> bool {
        let n = self.under_way().max(1) as u64;
        let n = self.order.lock().unwrap_or_else(PoisonError::into_inner).below(n);
        self.complete(n as usize, Fate::Works)
    }

    /// Takes user memory away until just `pages` allocations by the calling CPU can succeed, at
    /// most 64. [`give_back`](Self::give_back) undoes it.
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// uvm.machine().leave_free(1);
    /// memory(uvm, held, space, 1)?;
    /// assert!(memory(uvm, held, space, 1).is_err());
    /// uvm.machine().give_back();
    /// # Ok(()) });
    /// ```
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
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let free = uvm.frames().free();
    /// uvm.machine().leave_free(1);
    /// uvm.machine().give_back();
    /// assert_eq!(uvm.frames().free(), free);
    /// # Ok(()) });
    /// ```
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
    ///
    /// ```
    /// # use uvm_soft::example::*;
    /// # run(|uvm, held, space| {
    /// let range = memory(uvm, held, space, 1)?;
    /// let fault = |va, access| uvm.fault(held, space, va, access).map(drop);
    /// assert_eq!(uvm.machine().load_u64(0, space.pmap(), range.start, fault)?, 1);
    /// # Ok(()) });
    /// ```
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

    fn cpu(&self) -> usize {
        T::cpu() % self.cpus
    }

    fn zero(&self, page: PageNo) {
        self.frames.bytes_at(page);
        self.memory.zero(page);
        if self.pmap.planted(Plant::ShortZero) {
            self.memory.write(page, machine::PAGE_SIZE - 8, &[0xa5; 8]);
        }
    }

    fn copy(&self, from: PageNo, to: PageNo) {
        self.frames.bytes_at(from);
        self.frames.bytes_at(to);
        self.memory.copy(from, to);
    }

    fn read(&self, page: PageNo, offset: usize, buf: &mut [u8]) {
        self.frames.bytes_at(page);
        self.memory.read(page, offset, buf);
    }

    fn write(&self, page: PageNo, offset: usize, bytes: &[u8]) {
        self.frames.bytes_at(page);
        self.memory.write(page, offset, bytes);
    }

    fn reserve_heap(&self, bytes: usize) -> Result<(), NoMemory> {
        if self.heap.fails() {
            heap::allow(UNRESERVED_BYTES);
            return Err(NoMemory);
        }
        let is_half = self.pmap.planted(Plant::HalfHeap);
        heap::allow(if is_half { bytes / 2 } else { bytes });
        Ok(())
    }

    fn ticket(&self, channel: Channel) -> Ticket {
        aside(|| self.sleepers.ticket(channel))
    }

    fn wait(&self, _held: &mut Held<'_, Nothing>, ticket: Ticket) {
        self.check_all_told();
        let waits = self.waits.fetch_add(1, Relaxed);
        assert!(
            self.stage != Stage::Sequential || waits < CIRCLE,
            "an operation waits for ever: {ticket:?}"
        );
        if self.io == IoBy::Waiters && self.complete_one() {
            return;
        }
        let alone =
            self.stage == Stage::Sequential && self.sleepers.ticket(ticket.channel) == ticket;
        assert!(!alone, "the only thread waits for {ticket:?}, and no transfer is under way");
        let for_memory = [Channel::MEMORY_TURN, Channel::MEMORY].contains(&ticket.channel);
        self.asleep.fetch_add(1, Relaxed);
        aside(|| self.sleepers.wait(ticket, &|| for_memory && self.has_fatal_signal()));
        self.asleep.fetch_sub(1, Relaxed);
    }

    fn wake(&self, channel: Channel) {
        if self.pmap.planted(Plant::LoseWake) && self.asleep.load(Relaxed) == 0 {
            return;
        }
        aside(|| self.sleepers.wake(channel));
    }

    fn wake_one(&self, channel: Channel) {
        if self.pmap.planted(Plant::LoseWake) && self.asleep.load(Relaxed) == 0 {
            return;
        }
        aside(|| self.sleepers.wake_one(channel));
    }

    fn pause(&self, _held: &mut Held<'_, Nothing>) {
        self.check_all_told();
        let mut was_let_go = false;
        T::Lock::wait_until(|| core::mem::replace(&mut was_let_go, true));
    }

    fn has_fatal_signal(&self) -> bool {
        self.ended[self.cpu()].load(Relaxed)
    }

    fn out_of_memory(&self, _held: &mut Held<'_, Nothing>) -> bool {
        aside(|| self.host.get().is_some_and(|host| host()))
    }
}
