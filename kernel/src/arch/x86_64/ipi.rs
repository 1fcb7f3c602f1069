//! What CPUs ask of each other.
//!
//! ```text
//!   send: set a bit in the other CPU's `requests` -- if no bit was set: interrupt it
//!   there: take all bits -> do what they ask       (by the interrupt, or where it waits for something)
//! ```
//! A CPU with nothing to do sets a bit itself while it looks for work ([`watch`]): so no CPU
//! interrupts it, and it sees what it is asked. I1: a bit is taken before it is acted upon, so what
//! was written before `send` is seen by the CPU that acts. I2: a CPU that waits with interrupts off
//! does so by [`Wait`], which answers; so a CPU that waits for a lock answers the lock's holder,
//! which may wait for that answer. I3: what is asked for is done without a lock, as the CPU that
//! polls may hold any.
//!
//! What can't wait for that, stopping a CPU and asking it where it is, goes by NMI.

use core::sync::atomic::{
    fence, AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};

use machine::CpuSet;

use super::{apic, clock, cpu, io, pmap, tables};
use crate::lock::SpinLock;
use crate::upcalls;

/// What a CPU can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Ipi {
    /// Look at the queue and at the current task's work: something is there that wasn't.
    Reschedule = 1,
    /// Forget translations, by the notes that were left: `pmap::take_notes`.
    Shootdown = 2,
    /// Let all its loads and stores before be done before all those after.
    Barrier = 4,
    /// Forget all translations, the kernel's too.
    ForgetKernel = 8,
    /// Forget those of one page of the kernel's.
    ForgetPage = 16,
}

/// The CPU's own bit: it looks at the others all the time.
const WATCHING: u32 = 1 << 31;

/// Requests by NMI.
const STOP: u32 = 1;
const SHOW: u32 = 2;

/// Asks CPUs for something; this one is left out. Doesn't wait.
#[inline]
pub fn send(cpus: CpuSet, what: Ipi) {
    for cpu in cpus.without(CpuSet::one(cpu::index())).iter() {
        // A CPU that finds a bit set knows that an interrupt is on its way for it.
        if cpu::shared(cpu).requests.fetch_or(what as u32, AcqRel) == 0 {
            apic::interrupt(cpu);
        }
    }
}

/// Does what this CPU is asked for. Called wherever it waits with interrupts off.
#[inline]
pub fn poll() {
    let requests = &cpu::this().shared.requests;
    if requests.load(Relaxed) != 0 {
        answer(requests.swap(0, AcqRel));
    }
}

/// Looks whether this CPU is asked for something, or `is_called`, for at most so many ticks of the
/// time stamp counter; takes interrupts meanwhile. Then does what it was asked for. The caller
/// holds no lock.
pub fn watch(ticks: u64, is_called: impl Fn() -> bool) {
    /// Looks between two interrupt windows.
    const LOOKS: usize = 64;
    let requests = &cpu::this().shared.requests;
    let begun = io::rdtsc();
    requests.fetch_or(WATCHING, AcqRel);
    // A CPU that takes the bits by an interrupt takes this one's too.
    let sees = || (0..LOOKS).any(|_| requests.load(Acquire) != WATCHING || is_called());
    while !sees() && io::rdtsc() - begun < ticks {
        io::interrupt_window();
    }
    answer(requests.swap(0, AcqRel));
}

/// A wait for another CPU, with interrupts off: between two looks at what is waited for, call
/// [`pause`](Wait::pause).
///
/// It first looks often, then halts between the looks, as a host that doesn't run all CPUs at a
/// time does better to run the one that is waited for. A halted CPU takes interrupts of other CPUs
/// and no others, so I3 holds, and nothing else runs meanwhile.
///
/// How long it looks before it halts, its patience, each CPU learns: a wait that was too long for
/// it halves it, one that was not makes it a little longer. A halt costs the one that is waited for
/// the time that the host takes to wake this CPU, so where the host runs all CPUs at once, patience
/// wins.
pub struct Wait {
    looks: u32,
    /// When the first halt is due, by the time stamp counter; 0 before that is known.
    until: u64,
    halted: bool,
}

#[repr(align(64))]
struct SpinHistory(AtomicU64);

static PATIENCES: [SpinHistory; cpu::MAX_CPUS] =
    [const { SpinHistory(AtomicU64::new(*Wait::PATIENCE.end())) }; cpu::MAX_CPUS];

impl Wait {
    /// Looks between two pauses: under TCG a pause leaves the guest, which costs more than a short
    /// wait. A loop without any would never let the other CPU run where QEMU runs CPUs in turn.
    const LOOKS: u32 = 500;
    /// The least and the most of patience, in ticks of the time stamp counter: some 30 and 500
    /// microseconds.
    const PATIENCE: core::ops::RangeInclusive<u64> = 60_000..=1_000_000;
    /// A halt's length in nanoseconds.
    const DOZE: u64 = 50_000;

    /// The wait begins.
    #[inline]
    pub const fn new() -> Wait {
        Wait { looks: 0, until: 0, halted: false }
    }

    /// Answers other CPUs, and lets time pass.
    #[inline]
    pub fn pause(&mut self) {
        poll();
        self.looks += 1;
        if self.looks.is_multiple_of(Wait::LOOKS) {
            self.rest();
        }
    }

    #[cold]
    fn rest(&mut self) {
        let now = io::rdtsc();
        let learnt = &PATIENCES[cpu::index()].0;
        let patience = learnt.load(Relaxed);
        if self.until == 0 {
            self.until = now + patience;
            learnt.store((patience + patience / 16).min(*Wait::PATIENCE.end()), Relaxed);
        }
        if now < self.until {
            core::hint::spin_loop();
            return;
        }
        if !self.halted {
            self.halted = true;
            learnt.store((patience / 2).max(*Wait::PATIENCE.start()), Relaxed);
        }
        clock::doze(Wait::DOZE);
    }
}

#[cold]
fn answer(requests: u32) {
    if requests & Ipi::Shootdown as u32 != 0 {
        pmap::take_notes();
    }
    if requests & Ipi::Reschedule as u32 != 0 {
        upcalls::reschedule_interrupt();
    }
    if requests & Ipi::Barrier as u32 != 0 {
        fence(SeqCst);
    }
    if requests & Ipi::ForgetKernel as u32 != 0 {
        tables::forget_all();
        FORGETTING.fetch_and(!(1 << cpu::index()), AcqRel);
    }
    if requests & Ipi::ForgetPage as u32 != 0 {
        io::invlpg(PAGE.load(Acquire));
        FORGETTING.fetch_and(!(1 << cpu::index()), AcqRel);
    }
}

/// CPUs that have been asked to forget translations of the kernel's and haven't yet; for one thread
/// at a time.
static FORGETTING: AtomicU64 = AtomicU64::new(0);
/// Of which page, for `ForgetPage`.
static PAGE: AtomicU64 = AtomicU64::new(0);
/// The right to ask.
static ONE: SpinLock<()> = SpinLock::new(());

/// Asks other CPUs to forget, and returns when they have. A CPU that waits for another one's call
/// to end answers that call meanwhile (I2).
fn ask_to_forget(cpus: CpuSet, what: Ipi) {
    FORGETTING.store(cpus.bits(), SeqCst);
    send(cpus, what);
    let mut wait = Wait::new();
    while FORGETTING.load(Acquire) != 0 {
        wait.pause();
    }
}

/// Returns when none of these CPUs, of which this isn't one, holds a translation of before of the
/// kernel's page at `va`.
pub fn forget_page(va: u64, cpus: CpuSet) {
    let _one = ONE.lock();
    PAGE.store(va, SeqCst);
    ask_to_forget(cpus, Ipi::ForgetPage);
}

/// Returns when no CPU holds any translation of before, the kernel's included.
pub fn forget_kernel() {
    let _one = ONE.lock();
    tables::forget_all();
    ask_to_forget(cpu::online().without(CpuSet::one(cpu::index())), Ipi::ForgetKernel);
}

/// Returns when each of these CPUs has executed a full barrier.
pub fn barrier(cpus: CpuSet) {
    fence(SeqCst);
    send(cpus, Ipi::Barrier);
    for cpu in cpus.without(CpuSet::one(cpu::index())).iter() {
        // The exchange that takes the bit is the barrier.
        let mut wait = Wait::new();
        while cpu::shared(cpu).requests.load(Acquire) & Ipi::Barrier as u32 != 0 {
            wait.pause();
        }
    }
}

fn send_urgently(what: u32) {
    for cpu in cpu::online().without(CpuSet::one(cpu::index())).iter() {
        cpu::shared(cpu).urgent.fetch_or(what, AcqRel);
        apic::interrupt_urgently(cpu);
    }
}

/// Stops all other CPUs for good.
pub fn stop_others() {
    send_urgently(STOP);
}

/// Has all CPUs say where they are.
pub fn show_all() {
    send_urgently(SHOW);
    show(show_all as *const () as u64, super::backtrace::frame());
}

/// An NMI has come. Returns false if no CPU has asked for it.
pub(super) fn urgent(rip: u64, rbp: u64) -> bool {
    let asked = cpu::this().shared.urgent.swap(0, AcqRel);
    if asked & SHOW != 0 {
        show(rip, rbp);
    }
    if asked & STOP != 0 {
        loop {
            io::halt();
        }
    }
    asked != 0
}

/// Says where this CPU is. One CPU at a time.
fn show(rip: u64, rbp: u64) {
    static TURN: AtomicBool = AtomicBool::new(false);
    while TURN.swap(true, Acquire) {
        core::hint::spin_loop();
    }
    super::backtrace::show_stack(rip, rbp);
    TURN.store(false, core::sync::atomic::Ordering::Release);
}
