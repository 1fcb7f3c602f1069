//! A tracee's registers as a debugger sees them: `struct user_regs_struct`.

use crate::arch::layout::USER_END;
use crate::arch::UserRegs;

/// The two requests of x86 for all registers.
pub const GETREGS: u32 = 12;
pub const SETREGS: u32 = 13;
/// And for the vector state that each CPU has.
pub const GETFPREGS: u32 = 14;
pub const SETFPREGS: u32 = 15;

/// What says that calls are numbered as on x86-64.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// How many there are.
pub const REGISTERS: usize = 27;
/// All of them, in their order.
pub type Registers = [u64; REGISTERS];
/// Where `struct user` has the eight debug registers.
pub const DEBUG_REGISTERS: u64 = 848;
/// The end of `struct user`, of which only those registers are kept.
pub const USER_SIZE: u64 = 912;

/// The registers in their order.
pub fn shown(r: &UserRegs) -> Registers {
    let call = if r.is_in_call() { r.orig_rax } else { u64::MAX };
    let ([cs, ss], [fs, gs], flags) = (r.selectors(), r.bases(), r.flags());
    [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx,
        r.rsi, r.rdi, call, r.rip, cs, flags, r.rsp, ss, fs, gs, 0, 0, 0, 0,
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
    r.set_flags(flags);
    if call == u64::MAX {
        r.forget_call();
    } else {
        r.orig_rax = call;
    }
    Some(())
}
