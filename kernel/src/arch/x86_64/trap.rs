//! What happens on an exception or interrupt, after `entry.s` has built the registers.
//!
//! From user mode everything goes to the process layer but interrupts. In the kernel only two traps
//! are expected: page faults of checked user copies (`crate::user`), and interrupts inside
//! `io::interrupt_window`, the idle loop or foreign code (`preempt`). Everything else is a bug.

use core::arch::global_asm;

use super::{
    apic, cpu, debug, gdt, io, ipi, irq, layout, pmap, preempt, regs::UserRegs, serial, user_access,
};
use crate::upcalls::{self, Access};

const DEBUG: u64 = 1;
const PAGE_FAULT: u64 = 14;

global_asm!(
    include_str!("smap.s"),
    include_str!("entry.s"),
    include_str!("user_access.s"),
    SCRATCH = const cpu::SCRATCH,
    KERNEL_STACK = const cpu::KERNEL_STACK,
    WORK = const cpu::WORK,
    USES = const cpu::USES,
    WAITING = const cpu::WAITING,
    LEFT_KERNEL = const cpu::LEFT_KERNEL,
    USER_TICKS = const cpu::USER_TICKS,
    USER_DATA = const gdt::USER_DATA,
    USER_CODE = const gdt::USER_CODE,
    syscall = sym syscall,
    return_work = sym return_work,
    take_notes = sym take_notes,
    user_page_fault = sym user_page_fault,
    kernel_page_fault = sym kernel_page_fault,
    user_trap = sym user_trap,
    kernel_trap = sym kernel_trap,
    last_resort = sym last_resort,
    nmi = sym nmi,
    kernel_debug = sym kernel_debug,
    task_started = sym task_started,
    kernel_task = sym kernel_task,
);

#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Gate {
    low: u64,
    high: u64,
}

struct Idt(core::cell::UnsafeCell<[Gate; 256]>);
// SAFETY: written once by the boot CPU before others run, then only read by CPUs.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(core::cell::UnsafeCell::new([Gate { low: 0, high: 0 }; 256]));

extern "C" {
    fn trap_stubs();
}

/// Fills the interrupt table and makes it the first CPU's.
pub fn init() {
    // SAFETY: start-up, no other CPU runs yet.
    let table = unsafe { &mut *IDT.0.get() };
    for (vector, gate) in table.iter_mut().enumerate() {
        let at = trap_stubs as *const () as u64 + 16 * vector as u64;
        let ist = match vector {
            2 | 8 | 18 => 1,
            1 => 2,
            _ => 0,
        };
        // Programs may raise breakpoint and overflow themselves.
        let level = if vector == 3 || vector == 4 { 3 } else { 0 };
        gate.low = at & 0xffff
            | u64::from(gdt::KERNEL_CODE) << 16
            | ist << 32
            | (0x8e | level << 5) << 40
            | (at >> 16 & 0xffff) << 48;
        gate.high = at >> 32;
    }
    load();
}

/// Makes the interrupt table this CPU's.
pub fn load() {
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: u64,
    }
    let pointer = Pointer { limit: 4095, base: IDT.0.get() as u64 };
    // SAFETY: the table lives for ever and its gates lead to `entry.s`.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer) }
}

extern "C" fn syscall(regs: &mut UserRegs) {
    upcalls::system_call(regs);
}

extern "C" fn return_work(regs: &mut UserRegs) {
    upcalls::return_work(regs);
}

/// Before the way back to a program: other CPUs have left notes about what to forget.
extern "C" fn take_notes() {
    pmap::take_notes();
}

fn access(error: u64) -> Access {
    if error & 16 != 0 {
        Access::Execute
    } else if error & 2 != 0 {
        Access::Write
    } else {
        Access::Read
    }
}

extern "C" fn user_page_fault(regs: &mut UserRegs, va: u64) {
    upcalls::user_page_fault(regs, va, access(regs.orig_rax));
}

/// A fault in the kernel: a user copy whose page is missing or whose pointer is bad, or a bug.
extern "C" fn kernel_page_fault(regs: &mut UserRegs, va: u64) {
    if let Some(fixup) = user_access::fixup(regs.rip) {
        if user_access::is_peek(regs.rip) {
            regs.rip = fixup;
            return;
        }
        // The thread may sleep, and go on elsewhere.
        pmap::end_use();
        if va >= layout::USER_END || upcalls::kernel_page_fault(va, access(regs.orig_rax)).is_err()
        {
            regs.rip = fixup;
        }
        pmap::begin_use();
        return;
    }
    fatal(regs, va);
}

extern "C" fn user_trap(regs: &mut UserRegs) {
    if regs.vector >= 32 {
        interrupt(regs);
    } else {
        let error = if regs.vector == DEBUG { debug::take_status() } else { regs.orig_rax };
        upcalls::user_exception(regs, regs.vector, error, io::read_cr2());
    }
}

extern "C" fn kernel_trap(regs: &mut UserRegs) {
    if regs.vector >= 32 {
        preempt::interrupted(|| interrupt(regs));
    } else {
        fatal(regs, io::read_cr2());
    }
}

fn interrupt(regs: &UserRegs) {
    match regs.vector as u8 {
        apic::TIMER => {
            apic::end_of_interrupt();
            irq::count(irq::Own::Timer);
            upcalls::timer_interrupt();
        }
        apic::REQUEST => {
            apic::end_of_interrupt();
            irq::count(irq::Own::Request);
            ipi::poll();
        }
        apic::DOZE => apic::end_of_interrupt(),
        apic::SERIAL => {
            serial::interrupt();
            apic::end_of_interrupt();
        }
        apic::SPURIOUS => {}
        vector @ irq::FIRST..=irq::LAST => {
            irq::dispatch(vector);
            apic::end_of_interrupt();
            upcalls::device_interrupt(regs.is_user());
        }
        _ => apic::end_of_interrupt(),
    }
}

extern "C" fn last_resort(regs: &mut UserRegs) -> ! {
    fatal(regs, io::read_cr2())
}

/// A watchpoint in user memory that the kernel's own access has met, or what a program left to the
/// first instruction of its system call: the kernel goes on.
extern "C" fn kernel_debug() {
    debug::take_status();
}

extern "C" fn nmi(regs: &mut UserRegs) {
    if !ipi::urgent(regs.rip, regs.rbp) {
        fatal(regs, 0);
    }
}

const NAMES: [&str; 20] = [
    "divide error",
    "debug",
    "non-maskable interrupt",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid opcode",
    "no coprocessor",
    "double fault",
    "coprocessor overrun",
    "invalid TSS",
    "segment not present",
    "stack fault",
    "general protection",
    "page fault",
    "reserved",
    "floating point",
    "alignment check",
    "machine check",
    "SIMD floating point",
];

fn fatal(regs: &UserRegs, va: u64) -> ! {
    let name = NAMES.get(regs.vector as usize).unwrap_or(&"unexpected trap");
    let overflow = if upcalls::is_stack_guard(va) { ": kernel stack overflow" } else { "" };
    let address = if regs.vector == PAGE_FAULT || regs.vector == 8 { va } else { 0 };
    upcalls::panic(
        format_args!(
            "{name} in the kernel{overflow}: rip {:#x} rsp {:#x} address {address:#x} error {:#x}",
            regs.rip, regs.rsp, regs.orig_rax
        ),
        Some(regs.rip),
        regs.rbp,
    )
}

extern "C" fn task_started() {
    upcalls::task_started();
}

extern "C" fn kernel_task() -> ! {
    upcalls::run_kernel_task()
}
