//! Starting the other CPUs, one after another.
//!
//! ```text
//!   first CPU: stacks for it, code to REAL_PAGE -> INIT, start-up message ->  waits until it says that it runs
//!   the other: real mode -> boot.s -> long mode, kernel's tables, its stack -> other_main -> idle
//! ```
//! A CPU that says nothing in time is left alone, and so are those after it; if it comes later it
//! finds no stack, and stops.

use core::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use super::{apic, clock, cpu, fpu, io, tables, trap};
use crate::arch::layout;
use crate::mem::stack::Stack;
use crate::upcalls;

/// Where the code for real mode goes: memory below 1 MiB, which is never handed over. `boot.s`
/// knows it too.
const REAL_PAGE: u64 = 0x8000;

/// How long a CPU may take: more than a busy host keeps a virtual CPU waiting.
const PATIENCE: u64 = 10_000_000_000;
/// Between a reset and the start-up message, and between that and its repetition, as the manual
/// asks.
const AFTER_RESET: u64 = 10_000_000;
const AFTER_START: u64 = 200_000;

/// What the CPU that starts finds: the root table, its stack (it takes it), its number, its stack
/// for faults.
#[no_mangle]
static other_root: AtomicU64 = AtomicU64::new(0);
#[no_mangle]
static other_stack: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicUsize = AtomicUsize::new(0);
static FAULT_STACK: AtomicU64 = AtomicU64::new(0);
/// Its time stamp counter, for the first CPU to compare.
static COUNTER: AtomicU64 = AtomicU64::new(0);

extern "C" {
    static real_start: u8;
    static real_end: u8;
}

/// Starts the CPUs with these APICs; those that don't come are named on the console. The one that
/// calls is the first.
pub fn start(apics: &[u32]) {
    let own = apic::id();
    let others = apics.iter().filter(|&&apic| apic != own).take(cpu::found() - 1);
    if others.clone().next().is_none() {
        return;
    }
    // SAFETY: the page lies below 1 MiB, where nothing of ours is; the code was linked to run
    // there, position and all.
    unsafe {
        let code = &raw const real_start;
        let len = (&raw const real_end).offset_from(code) as usize;
        let code = layout::direct(code as u64) as *const u8;
        core::ptr::copy_nonoverlapping(code, layout::direct(REAL_PAGE) as *mut u8, len);
    }
    other_root.store(tables::root().place(), Relaxed);
    for (number, &apic) in (1..).zip(others) {
        if !start_one(number, apic) {
            crate::println!("CPU {number} does not start: there are {} then", cpu::count());
            return;
        }
    }
}

fn start_one(number: usize, apic: u32) -> bool {
    let (Ok(stack), Ok(for_faults)) = (Stack::new(), Stack::new()) else { return false };
    NUMBER.store(number, Relaxed);
    FAULT_STACK.store(for_faults.top(), Relaxed);
    COUNTER.store(0, Relaxed);
    other_stack.store(stack.top(), Release);
    // The stacks are the CPU's own for good, even if it comes late.
    core::mem::forget((stack, for_faults));
    let before = io::rdtsc();
    // SAFETY: firmware has left it halted: it runs nothing of ours until it finds its stack.
    unsafe { apic::reset(apic) };
    wait(AFTER_RESET, || false);
    // SAFETY: `start` has put the code there.
    let start_up = || unsafe { apic::start_up(apic, (REAL_PAGE >> 12) as u32) };
    start_up();
    if !wait(AFTER_START, || other_stack.load(Acquire) == 0) {
        start_up();
    }
    wait(PATIENCE, || other_stack.load(Acquire) == 0);
    if other_stack.swap(0, AcqRel) != 0 {
        return false;
    }
    if !wait(PATIENCE, || cpu::count() > number) {
        return false;
    }
    let theirs = COUNTER.load(Relaxed);
    if theirs < before || theirs > io::rdtsc() {
        // Deadlines and times are compared between CPUs.
        panic!("the time stamp counter of CPU {number} differs from that of the first");
    }
    true
}

/// Waits until `done`, or for so many nanoseconds; says which.
fn wait(nanos: u64, done: impl Fn() -> bool) -> bool {
    let end = clock::now() + nanos;
    loop {
        if done() {
            return true;
        }
        if clock::now() >= end {
            return false;
        }
        core::hint::spin_loop();
    }
}

/// First Rust code of another CPU: on its idle task's stack, with the kernel's tables, interrupts
/// off.
#[no_mangle]
extern "C" fn other_main() -> ! {
    // SAFETY: `start_one` has given number and stack to this CPU alone.
    unsafe {
        cpu::init_early(NUMBER.load(Relaxed));
        cpu::init(FAULT_STACK.load(Relaxed));
    }
    trap::load();
    fpu::init_local();
    apic::init_local();
    upcalls::cpu_started();
    COUNTER.store(io::rdtsc(), Relaxed);
    cpu::set_online();
    // What it may have walked to ahead of use, before others knew that it is to be told.
    tables::forget_all();
    upcalls::idle()
}
