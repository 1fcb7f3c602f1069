//! What the trap code calls when user code faults: the VM resolves it, or the program gets its
//! signal.

use core::sync::atomic::{AtomicU64, Ordering};

use super::growth::grow_stack;
use super::mm::Mm;
use super::signal::{code, send, SigInfo, Signal, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
use super::{current_thread, Thread};
use crate::arch::abi::{Exception, LastFault, Mapped};
use crate::arch::{debug, UserRegs};
use crate::sched;
use crate::vm::{self, Access, FaultError, FaultKind};

/// A page fault in user mode: resolves it, or raises SIGSEGV or SIGBUS with the code and address of
/// the fault.
pub fn user_page_fault(_regs: &mut UserRegs, va: u64, access: Access) {
    let thread = &current_thread();
    let Err(error) = resolve(thread, va, access) else { return };
    let mapped = if error == FaultError::Protection { Mapped::Yes } else { Mapped::No };
    *thread.last_fault.lock() = LastFault::of_page(va, access, mapped);
    let (signal, code) = match error {
        FaultError::NoMapping => (SIGSEGV, code::SEGV_MAPERR),
        FaultError::Protection => (SIGSEGV, code::SEGV_ACCERR),
        FaultError::Bus | FaultError::Io | FaultError::NoSpace | FaultError::TooOften => {
            (SIGBUS, code::BUS_ADRERR)
        }
        FaultError::NoMemory => return,
    };
    send::force(SigInfo::fault(signal, code, va));
}

/// Faults of all processes that waited for a disk.
pub static MAJOR_FAULTS: AtomicU64 = AtomicU64::new(0);

/// Lets the VM resolve a fault of this thread, counting it. `NoMemory` comes back only when memory
/// has run out, and this thread's process is ending or no process can be killed: the thread faults
/// again if it returns to its program.
pub fn resolve(thread: &Thread, va: u64, access: Access) -> Result<(), FaultError> {
    let Some(mm) = thread.own_mm() else { return Err(FaultError::NoMapping) };
    let found = vm::fault(&mm.space, va, access);
    let found = found.or_else(|why| resolve_otherwise(&mm, va, access, why));
    let count = match found? {
        FaultKind::Major => {
            MAJOR_FAULTS.fetch_add(1, Ordering::Relaxed);
            &thread.major_faults
        }
        _ => &thread.minor_faults,
    };
    count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Resolves what is refused as it stands: where a stack may grow, it does; and what may be written
/// or executed alone can be read all the same, since the machine has it so.
#[cold]
#[inline(never)]
fn resolve_otherwise(
    mm: &Mm,
    va: u64,
    access: Access,
    why: FaultError,
) -> Result<FaultKind, FaultError> {
    let mut found = Err(why);
    if why == FaultError::NoMapping && grow_stack(mm, va) {
        found = vm::fault(&mm.space, va, access);
    }
    if access == Access::Read {
        for implies in [Access::Write, Access::Execute] {
            if found == Err(FaultError::Protection) {
                found = vm::fault(&mm.space, va, implies);
            }
        }
    }
    found
}

/// Any other exception in user mode: the signal that Linux gives for it.
pub fn user_exception(regs: &mut UserRegs, vector: u64, error: u64, cr2: u64) {
    *current_thread().last_fault.lock() = LastFault { vector, error, address: cr2 };
    let here = regs.instruction_pointer();
    let (signal, code, address): (Signal, i32, u64) = match Exception::numbered(vector) {
        Exception::DivideError => (SIGFPE, code::FPE_INTDIV, here),
        Exception::SingleStep => {
            let watch = &sched::current().watch;
            let met = watch.met(error);
            if watch.has_instruction(met) {
                regs.pass_breakpoint();
            }
            match met {
                // No register has met anything: the instruction that traps (`icebp`).
                0 if error == 0 => (SIGTRAP, code::TRAP_BRKPT, here),
                // Of a tracer that has gone: the CPU still has what the task has no more, and would
                // meet it again at this instruction.
                0 => {
                    watch.load();
                    return;
                }
                met if met & debug::STEP != 0 => (SIGTRAP, code::TRAP_TRACE, here),
                _ => (SIGTRAP, code::TRAP_HWBKPT, here),
            }
        }
        Exception::Breakpoint => (SIGTRAP, code::SI_KERNEL, 0),
        Exception::Overflow => (SIGSEGV, code::SI_KERNEL, 0),
        Exception::InvalidInstruction => (SIGILL, code::ILL_ILLOPN, here),
        Exception::FloatingPoint => (SIGFPE, code::FPE_FLTINV, here),
        Exception::Misaligned => (SIGBUS, code::BUS_ADRALN, 0),
        Exception::Other => (SIGSEGV, code::SI_KERNEL, 0),
    };
    send::force(SigInfo::fault(signal, code, address));
}

/// A page fault of the kernel's own, in a checked copy to or from user memory.
pub fn kernel_page_fault(va: u64, access: Access) -> Result<(), FaultError> {
    resolve(&current_thread(), va, access)
}
