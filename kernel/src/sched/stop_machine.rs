//! Runs a function while all other CPUs stand still.
//!
//! A thread of the kernel goes to each other CPU and stays there until it is over. Kernel code lets
//! go of a CPU only with no spin lock held: where it sleeps, and between the parts of a long call
//! (`turn`). So what lies behind spin locks is whole; a call may be half done.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};

use machine::{CpuSet, NoMemory};

use super::{current_owned, set_affinity, spawn_on, yield_now};
use crate::arch::cpu::MachineStopped;
use crate::arch::{cpu, io, ipi};

/// What CPUs that stand still look at.
struct Still {
    count: AtomicUsize,
    over: AtomicBool,
}

/// Calls `f`, which doesn't sleep, while all other CPUs stand still with interrupts off. Sleeps
/// before.
///
/// # Errors
/// `NoMemory` for the threads; `f` was not called.
pub fn stop_machine<T>(f: impl FnOnce(&MachineStopped) -> T) -> Result<T, NoMemory> {
    static BUSY: AtomicBool = AtomicBool::new(false);
    while BUSY.swap(true, Acquire) {
        yield_now();
    }
    let this = current_owned();
    let (here, allowed) = (cpu::index(), this.allowed());
    set_affinity(&this, CpuSet::one(here));
    let still = Arc::new(Still { count: AtomicUsize::new(0), over: AtomicBool::new(false) });
    let others = cpu::online().without(CpuSet::one(here));
    let sent = others.iter().try_for_each(|cpu| send(cpu, &still));
    // A CPU that isn't there yet may wait for an answer of this one.
    let mut wait = ipi::Wait::new();
    while sent.is_ok() && still.count.load(Acquire) < others.iter().count() {
        wait.pause();
        io::interrupt_window();
        yield_now();
    }
    let result = sent.map(|()| {
        // SAFETY: all other CPUs have said that they stand still, and do so until `over` is set.
        f(&unsafe { MachineStopped::new() })
    });
    still.over.store(true, Release);
    set_affinity(&this, allowed);
    BUSY.store(false, Release);
    result
}

/// Has a CPU stand still from some moment on. The thread begins on that CPU: in the queue of one
/// that stands still it would wait for the end.
fn send(cpu: usize, still: &Arc<Still>) -> Result<(), NoMemory> {
    let still = still.clone();
    let stand = move || {
        still.count.fetch_add(1, AcqRel);
        let mut wait = ipi::Wait::new();
        while !still.over.load(Acquire) {
            wait.pause();
        }
    };
    spawn_on(CpuSet::one(cpu), "still", stand).map(|_| ())
}
