//! A tracee's registers as a debugger sees them: `struct user_regs_struct`.

use crate::arch::layout::USER_END;
use crate::arch::UserRegs;

/// The two requests of x86 for all registers.
pub const GETREGS: u32 = 12;
pub const SETREGS: u32 = 13;
/// And for the vector state that each CPU has.
pub const GETFPREGS: u32 = 14;
pub const SETFPREGS: u32 = 15;

/// Descriptors of threads' own data, of which there are none here.
pub const GET_THREAD_AREA: u32 = 25;
pub const SET_THREAD_AREA: u32 = 26;
/// Those that Linux has.
pub const THREAD_AREAS: core::ops::RangeInclusive<i32> = 12..=14;
/// `arch_prctl` for a tracee.
pub const ARCH_PRCTL: u32 = 30;
/// To the next system call, which isn't made; the same in single steps; to the next jump.
pub const SYSEMU: u32 = 31;
pub const SYSEMU_SINGLESTEP: u32 = 32;
pub const SINGLEBLOCK: u32 = 33;

/// The flags that a debugger may change: all that a program may but the one that says that there
/// is `cpuid`.
const FLAGS: u64 = 0x5_4dd5;

/// What says that calls are numbered as on x86-64.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// How many there are.
pub const REGISTERS: usize = 27;
/// All of them, in their order.
pub type Registers = [u64; REGISTERS];
/// Where `struct user` has the eight debug registers.
pub const DEBUG_REGISTERS: u64 = 848;
/// Their end.
pub const DEBUG_REGISTERS_END: u64 = DEBUG_REGISTERS + 64;
/// The end of `struct user`, of which only those registers are kept.
pub const USER_SIZE: u64 = 928;

/// The registers in their order.
pub fn shown(r: &UserRegs) -> Registers {
    let ([cs, ss], [fs, gs], flags) = (r.selectors(), r.bases(), r.flags());
    [
        r.r15,
        r.r14,
        r.r13,
        r.r12,
        r.rbp,
        r.rbx,
        r.r11,
        r.r10,
        r.r9,
        r.r8,
        r.rax,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        r.shown_call(),
        r.rip,
        cs,
        flags,
        r.rsp,
        ss,
        fs,
        gs,
        0,
        0,
        0,
        0,
    ]
}

/// Makes the registers what a debugger wants, as far as a program could itself; `None`, and nothing
/// has changed, where it couldn't.
pub fn change(r: &mut UserRegs, new: &Registers) -> Option<()> {
    let [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, call, rip, ..] =
        *new;
    let [.., cs, flags, rsp, ss, fs, gs, _, _, _, _] = *new;
    if fs >= USER_END || gs >= USER_END || !UserRegs::are_selectors(cs, ss) {
        return None;
    }
    (r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx) = (r15, r14, r13, r12, rbp, rbx);
    (r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx) = (r11, r10, r9, r8, rax, rcx);
    (r.rdx, r.rsi, r.rdi, r.rip, r.rsp) = (rdx, rsi, rdi, rip, rsp);
    r.set_bases([fs, gs]);
    r.set_flags(r.flags() & !FLAGS | flags & FLAGS);
    r.set_call(call);
    Some(())
}
