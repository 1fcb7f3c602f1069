//! Doing something while no other CPU does anything.
//!
//! A thread of the kernel goes to each other CPU and stays there until it is over. Kernel code gives way only where it waits, so what
//! that CPU ran before is in user mode or asleep, and in the midst of nothing.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use machine::{CpuSet, NoMemory};

use super::{current_owned, set_affinity, spawn_kernel, yield_now};
use crate::arch::{cpu, ipi};
use crate::sync::Mutex;

/// What those who stand still look at.
struct Still {
    count: AtomicUsize,
    over: AtomicBool,
}

/// Calls `f`, which doesn't sleep, while all other CPUs stand still with interrupts off. Sleeps before.
///
/// # Errors
/// `NoMemory` for the threads; `f` was not called.
pub fn alone<T>(f: impl FnOnce() -> T) -> Result<T, NoMemory> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let this = current_owned();
    let (here, allowed) = (cpu::index(), this.allowed());
    set_affinity(&this, CpuSet::one(here));
    let still = Arc::new(Still { count: AtomicUsize::new(0), over: AtomicBool::new(false) });
    let others = cpu::online().without(CpuSet::one(here));
    let sent = others.iter().try_for_each(|cpu| send(cpu, &still));
    while sent.is_ok() && still.count.load(Acquire) < others.iter().count() {
        yield_now();
    }
    let result = sent.map(|()| f());
    still.over.store(true, Release);
    set_affinity(&this, allowed);
    result
}

/// Has a CPU stand still from some moment on.
fn send(cpu: usize, still: &Arc<Still>) -> Result<(), NoMemory> {
    let still = still.clone();
    let stand = move || {
        set_affinity(&current_owned(), CpuSet::one(cpu));
        still.count.fetch_add(1, AcqRel);
        let mut wait = ipi::Wait::new();
        while !still.over.load(Acquire) {
            wait.pause();
        }
    };
    spawn_kernel("still", stand).map(|_| ())
}
