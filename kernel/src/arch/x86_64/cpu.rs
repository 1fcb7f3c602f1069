//! What each CPU has of its own, and what the CPUs can do.
//!
//! In the kernel, GS points at this CPU's [`Cpu`]; `swapgs` on every way in and out keeps the
//! program's own GS base in `KERNEL_GS_BASE`. The assembly in `entry.s` knows the first fields by
//! offset.
//!
//! I1: the kernel runs with interrupts off, except in `io::interrupt_window`,
//! `io::wait_for_interrupt` and foreign code (`preempt`), which has no use for them. So a `Cpu`'s
//! cells are only touched by code that runs on it, one piece at a time, and `Sync` is sound. What
//! comes all the same, by an NMI, reads only what is a single word. Others reach nothing but
//! `shared`.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};

use alloc::sync::Arc;
use machine::shared::Row;
use machine::{CpuSet, Current, Notes};

use super::{gdt, io, pmap};
use crate::mem::pools::{self, Pool};
use crate::upcalls::Task;

/// CPUs at most: of each space's set there are 64 bits. A [`CpuSet`] may hold more.
pub const MAX_CPUS: usize = 64;

/// No address space.
pub(super) const NO_SPACE: u32 = u32::MAX;

/// Last tables that each CPU remembers.
pub(super) const RECENT: usize = 16;

/// What each CPU reads beside others.
static ROWS: [Row; MAX_CPUS] = [const { Row::new() }; MAX_CPUS];

/// One CPU's own data.
#[repr(C, align(128))]
pub struct Cpu {
    this: Cell<*const Cpu>,
    /// Stack pointer on entry from user mode: the place of the current task's `UserRegs`.
    pub(super) kernel_stack: Cell<u64>,
    scratch: Cell<u64>,
    /// The current task's `work` word; nonzero sends the way out through `return_work`.
    pub(super) work: Cell<*const AtomicU32>,
    index: Cell<usize>,
    /// The page of the root of the space that is active here; `NO_SPACE` for the
    /// kernel's.
    pub(super) space: Cell<u32>,
    /// Last tables that this CPU has used, by a hash of what they serve; see `pmap::space`.
    pub(super) recent: [Cell<u32>; RECENT],
    /// Free nodes of the reverse map.
    pub(super) nodes: pmap::FreeNodes,
    /// What the FS and (the program's) GS base registers hold.
    pub(super) fs_base: Cell<u64>,
    pub(super) gs_base: Cell<u64>,
    /// Work that was done here since this CPU last looked which tasks wait for it.
    done: Cell<usize>,
    /// The CPU runs foreign code, with interrupts on: see `preempt`.
    is_open: Cell<bool>,
    /// The time stamp counter when this CPU last went from the kernel to a program.
    left_kernel: Cell<u64>,
    /// Ticks of that counter spent in programs since [`take_user_ticks`].
    user_ticks: Cell<u64>,
    /// The pool of the heap of its user.
    heap_pool: Cell<Pool>,
    /// The task that runs, by `Arc::into_raw`; null before `sched::init`.
    current: Cell<*const Task>,
    /// The task whose stack was just left, until this CPU has looked where it goes.
    left: Cell<*const Task>,
    pub(super) tables: UnsafeCell<gdt::Tables>,
    pub(super) shared: Shared,
}

/// What other CPUs read and write, on cache lines of its own.
#[repr(C, align(64))]
pub(super) struct Shared {
    /// Which translations this CPU is to forget before it uses any; `entry.s` counts its uses.
    pub(super) notes: Notes,
    /// What this CPU is asked for, by bits; see `ipi`.
    pub(super) requests: AtomicU32,
    /// Like `requests`, for what can't wait until interrupts are on.
    pub(super) urgent: AtomicU32,
    /// The number of the task that runs.
    running: AtomicU64,
}

// SAFETY: I1; all but `shared`, which is made of atomics, is reached only through GS of the CPU it
// belongs to.
unsafe impl Sync for Cpu {}

/// Offsets for the assembly.
pub(super) const KERNEL_STACK: usize = core::mem::offset_of!(Cpu, kernel_stack);
pub(super) const SCRATCH: usize = core::mem::offset_of!(Cpu, scratch);
pub(super) const WORK: usize = core::mem::offset_of!(Cpu, work);
const NOTES: usize = core::mem::offset_of!(Cpu, shared) + core::mem::offset_of!(Shared, notes);
pub(super) const USES: usize = NOTES + Notes::USES;
pub(super) const LEFT_KERNEL: usize = core::mem::offset_of!(Cpu, left_kernel);
pub(super) const USER_TICKS: usize = core::mem::offset_of!(Cpu, user_ticks);
pub(super) const WAITING: usize = NOTES + Notes::WAITING;

static NO_WORK: AtomicU32 = AtomicU32::new(0);

static CPUS: [Cpu; MAX_CPUS] = [const {
    Cpu {
        this: Cell::new(core::ptr::null()),
        kernel_stack: Cell::new(0),
        scratch: Cell::new(0),
        work: Cell::new(&raw const NO_WORK),
        index: Cell::new(0),
        space: Cell::new(NO_SPACE),
        recent: [const { Cell::new(0) }; RECENT],
        nodes: pmap::FreeNodes::new(),
        fs_base: Cell::new(0),
        gs_base: Cell::new(0),
        done: Cell::new(0),
        is_open: Cell::new(false),
        left_kernel: Cell::new(0),
        user_ticks: Cell::new(0),
        heap_pool: Cell::new(pools::ROOT),
        current: Cell::new(core::ptr::null()),
        left: Cell::new(core::ptr::null()),
        tables: UnsafeCell::new(gdt::Tables::NEW),
        shared: Shared {
            notes: Notes::new(),
            requests: AtomicU32::new(0),
            urgent: AtomicU32::new(0),
            running: AtomicU64::new(0),
        },
    }
}; MAX_CPUS];

/// A row for each CPU that runs, for locks that many read.
#[inline]
pub fn rows() -> &'static [Row] {
    &ROWS[..count()]
}

/// Whether foreign code runs here. With interrupts on, too: the answer is the same on any CPU that
/// the thread is on.
#[inline]
pub(super) fn is_open() -> bool {
    let is_open: u8;
    // SAFETY: as in `this`. One instruction: between two, the thread might go on elsewhere.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg_byte) is_open, const core::mem::offset_of!(Cpu, is_open),
             options(nostack, preserves_flags, readonly));
    }
    is_open != 0
}

/// Foreign code runs here, or no longer.
pub(super) fn set_open(is_open: bool) {
    this().is_open.set(is_open);
}

/// CPUs that run tasks: always the lowest numbers.
static COUNT: AtomicUsize = AtomicUsize::new(1);
/// CPUs that the firmware names.
static FOUND: AtomicUsize = AtomicUsize::new(1);

/// Counts work that this CPU has done; returns how much it was since `clear_work`.
#[inline]
pub fn add_work(amount: usize) -> usize {
    let done = &this().done;
    done.set(done.get().saturating_add(amount));
    done.get()
}

/// This CPU looks which tasks wait for it.
pub fn clear_work() {
    this().done.set(0);
}

/// This CPU's data. A task that sleeps may go on elsewhere: it is not to be kept across that.
#[inline]
pub(super) fn this() -> &'static Cpu {
    let this: *const Cpu;
    // SAFETY: GS points at this CPU's entry of `CPUS` since `init`; the first field is its own
    // address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly)) }
    // SAFETY: as above; statics live for ever.
    unsafe { &*this }
}

/// What others may touch of a CPU.
#[inline]
pub(super) fn shared(cpu: usize) -> &'static Shared {
    &CPUS[cpu].shared
}

/// This CPU's number. A task that sleeps may go on elsewhere.
#[inline]
pub fn index() -> usize {
    let index: usize;
    // SAFETY: as in `this`.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) index, const core::mem::offset_of!(Cpu, index),
             options(nostack, preserves_flags, readonly));
    }
    index
}

/// CPUs that run tasks: numbers 0 to this. Changes only in start-up.
#[inline]
pub fn count() -> usize {
    COUNT.load(Acquire)
}

/// The CPUs that run tasks, as a set.
#[inline]
pub fn online() -> CpuSet {
    CpuSet::first(count())
}

/// CPUs that the machine has, whether or not they run: what per-CPU memory is sized by.
pub fn found() -> usize {
    FOUND.load(Relaxed)
}

/// Notes how many CPUs the machine has, before anything is sized by it.
pub fn set_found(cpus: usize) {
    FOUND.store(cpus.clamp(1, MAX_CPUS), Relaxed);
}

/// This CPU runs tasks from now on.
pub fn set_online() {
    COUNT.fetch_add(1, AcqRel);
}

/// Whether a CPU runs the task of this number now. Ordered after the caller's last atomic exchange;
/// see `sched`.
#[inline]
pub fn runs(cpu: usize, task: u64) -> bool {
    shared(cpu).running.load(Relaxed) == task
}

const MSR_EFER: u32 = 0xc000_0080;
const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_SFMASK: u32 = 0xc000_0084;
const MSR_FS_BASE: u32 = 0xc000_0100;
const MSR_GS_BASE: u32 = 0xc000_0101;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Points GS at the CPU's data: before anything that may ask which task runs.
///
/// # Safety
/// No other CPU has this number (I1).
pub unsafe fn init_early(number: usize) {
    let cpu = &CPUS[number];
    cpu.this.set(cpu);
    cpu.index.set(number);
    // SAFETY: GS leads to this CPU's data from now on; the other two are programs'.
    unsafe {
        io::wrmsr(MSR_GS_BASE, core::ptr::from_ref(cpu) as u64);
        io::wrmsr(MSR_KERNEL_GS_BASE, 0);
        io::wrmsr(MSR_FS_BASE, 0);
    }
}

extern "C" {
    fn syscall_entry();
}

/// Descriptor tables, system-call registers and protection features.
///
/// # Safety
/// `ist_top` ends a stack that nothing else uses, for ever.
pub unsafe fn init(ist_top: u64) {
    let cpu = this();
    // SAFETY: I1: no other code holds a reference into this CPU's tables during start-up. The
    // registers are those of system calls, which every x86-64 has: they lead to `entry.s`, with the
    // kernel's segments.
    unsafe {
        gdt::load(&mut *cpu.tables.get(), ist_top);
        io::wrmsr(MSR_GS_BASE, core::ptr::from_ref(cpu) as u64);
        io::wrmsr(MSR_EFER, io::rdmsr(MSR_EFER) | 1);
        io::wrmsr(MSR_STAR, u64::from(gdt::USER_BASE) << 48 | u64::from(gdt::KERNEL_CODE) << 32);
        io::wrmsr(MSR_LSTAR, syscall_entry as *const () as u64);
        // Trap, interrupt, direction, nested-task and alignment-check flags are cleared on entry.
        io::wrmsr(MSR_SFMASK, 0x4_4700);
    }
    let mut cr4 = io::read_cr4();
    if has_smep() {
        cr4 |= 1 << 20;
    }
    if has_smap() {
        cr4 |= 1 << 21;
    }
    // SAFETY: CPUID has offered both; the kernel executes no user page, and touches them in
    // `user_access.s` alone.
    unsafe { io::write_cr4(cr4) };
}

/// The task that runs on this CPU.
#[inline]
pub fn current() -> Current<Task> {
    let current: *mut Task;
    // SAFETY: as in `this`.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) current, const core::mem::offset_of!(Cpu, current),
             options(nostack, preserves_flags, readonly));
    }
    debug_assert!(!current.is_null(), "a task runs since sched::init");
    // SAFETY: the slot keeps the task until a switch, at which it stops running, and by then
    // another reference keeps it alive until it runs again. The slot is empty until `sched::init`
    // alone.
    unsafe { Current::new(NonNull::new_unchecked(current)) }
}

/// Like [`current`]; `None` before `sched::init`.
#[inline]
pub fn running() -> Option<Current<Task>> {
    (!this().current.get().is_null()).then(current)
}

/// The task that runs on this CPU, to keep; `None` before `sched::init`.
pub fn current_owned() -> Option<Arc<Task>> {
    let current = this().current.get();
    if current.is_null() {
        return None;
    }
    // SAFETY: the pointer is an `Arc`'s, by `set_current`, and its count is raised for the one that
    // is made here.
    unsafe {
        Arc::increment_strong_count(current);
        Some(Arc::from_raw(current))
    }
}

/// Makes `task`, of number `id`, the one that runs, with `stack` for its entries from user mode.
/// The one before is what [`take_left`] gives.
///
/// # Safety
/// The stack is the task's, or 0 for one that never is in user mode; the caller goes on as this
/// task, or switches to it at once.
#[inline]
pub unsafe fn set_current(task: Arc<Task>, id: u64, stack: u64) {
    let cpu = this();
    cpu.kernel_stack.set(stack);
    cpu.work.set(task.work_word());
    cpu.heap_pool.set(task.heap_pool());
    // An exchange: the task's work is looked at later, and not before this is seen.
    cpu.shared.running.swap(id, SeqCst);
    // SAFETY: I1; the only other reference is made in `init`. The stack is the task's.
    unsafe { (*cpu.tables.get()).set_kernel_stack(stack) };
    debug_assert!(cpu.left.get().is_null(), "a task was left and forgotten");
    cpu.left.set(cpu.current.replace(Arc::into_raw(task)));
}

/// The pool of the heap of the user whose task runs.
#[inline]
pub fn heap_pool() -> Pool {
    let pool: Pool;
    // SAFETY: as in `this`.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg_byte) pool, const core::mem::offset_of!(Cpu, heap_pool),
             options(nostack, preserves_flags, readonly));
    }
    pool
}

/// The running task has become another user's.
pub fn set_heap_pool(pool: Pool) {
    this().heap_pool.set(pool);
}

/// The task that this CPU has left, once its stack isn't in use any more.
#[inline]
pub fn take_left() -> Option<Arc<Task>> {
    let left = this().left.replace(core::ptr::null());
    // SAFETY: the pointer came from `Arc::into_raw`, and leaves the slot that owned it.
    (!left.is_null()).then(|| unsafe { Arc::from_raw(left) })
}

/// The segment bases of the program that runs here, or ran here last: it can change them without a
/// call, by loading a selector.
#[inline]
pub(super) fn bases() -> (u64, u64) {
    let cpu = this();
    cpu.fs_base.set(io::rdmsr(MSR_FS_BASE));
    cpu.gs_base.set(io::rdmsr(MSR_KERNEL_GS_BASE));
    (cpu.fs_base.get(), cpu.gs_base.get())
}

/// Loads a program's segment bases, where they differ from what [`bases`] said, or this, whichever
/// was called last; no program has run here since. They are addresses of user memory: others make
/// the CPU refuse them.
#[inline]
pub(super) fn set_bases(fs: u64, gs: u64) {
    let cpu = this();
    if cpu.fs_base.get() != fs {
        cpu.fs_base.set(fs);
        // SAFETY: the register is the program's.
        unsafe { io::wrmsr(MSR_FS_BASE, fs) };
    }
    if cpu.gs_base.get() != gs {
        cpu.gs_base.set(gs);
        // SAFETY: as above: in the kernel this one has the program's base.
        unsafe { io::wrmsr(MSR_KERNEL_GS_BASE, gs) };
    }
}

/// Ticks of the time stamp counter that this CPU has spent in programs since it was asked last.
#[inline]
pub fn take_user_ticks() -> u64 {
    this().user_ticks.take()
}

/// Has this CPU fetch its next instructions anew, as memory has them now.
pub fn fetch_anew() {
    core::hint::black_box(__cpuid(0));
}

fn leaf7_ebx() -> u32 {
    if __cpuid(0).eax < 7 {
        return 0;
    }
    __cpuid_count(7, 0).ebx
}

/// The CPU's oldest feature word, which programs get as `AT_HWCAP`.
pub fn features() -> u32 {
    __cpuid(1).edx
}

/// Whether the CPU can keep the kernel from executing user pages.
pub fn has_smep() -> bool {
    leaf7_ebx() & 1 << 7 != 0
}

/// Whether the CPU can keep the kernel from touching user pages by accident.
pub fn has_smap() -> bool {
    leaf7_ebx() & 1 << 20 != 0
}

/// Bytes that a task's floating-point state takes, and the mask to save; `None` where only `fxsave`
/// exists.
pub fn xsave_size() -> Option<(usize, u64)> {
    let features = __cpuid(1).ecx;
    if features & 1 << 26 == 0 {
        return None;
    }
    let offered = u64::from(__cpuid_count(13, 0).eax);
    let mask = offered & 7;
    // SAFETY: CPUID has just offered it.
    unsafe { enable_xsave(mask) };
    Some((__cpuid_count(13, 0).ebx as usize, mask))
}

/// Lets this CPU save and load those states.
///
/// # Safety
/// CPUID offers `xsave` and these components.
pub unsafe fn enable_xsave(mask: u64) {
    // SAFETY: by the caller's promise; the kernel keeps nothing in these registers.
    unsafe {
        io::write_cr4(io::read_cr4() | 1 << 18);
        io::xsetbv(mask);
    }
}

/// A number that differs between runs where the machine offers one: seeds the random generator.
pub fn entropy() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut value = io::rdtsc() ^ u64::from(COUNT.fetch_add(1, Relaxed)) << 48;
    if __cpuid(1).ecx & 1 << 30 != 0 {
        let random: u64;
        // SAFETY: CPUID offers `rdrand`; a failed draw leaves zero, which only adds nothing.
        unsafe { asm!("rdrand {}", out(reg) random, options(nomem, nostack)) }
        value ^= random;
    }
    value
}

/// Proof that all other CPUs stand still with interrupts off (`sched::stop_machine`).
pub struct MachineStopped(PhantomData<*const ()>);

impl MachineStopped {
    /// # Safety
    /// All other CPUs stand still, as long as this lives.
    pub unsafe fn new() -> MachineStopped {
        MachineStopped(PhantomData)
    }
}
