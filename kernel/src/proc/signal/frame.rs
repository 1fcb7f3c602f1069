//! The frame that a signal handler runs on, in the layout of Linux on x86-64.
//!
//! ```text
//!   high   red zone of the interrupted code, 128 bytes
//!          FXSAVE or XSAVE image, 64-aligned, and a magic      <-- sigcontext.fpstate
//!          siginfo       128 bytes   at 312                    <-- rsi
//!          sigmask         8 bytes   at 304
//!          sigcontext    256 bytes   at 48
//!          ucontext head  40 bytes   at 8: flags, link, stack  <-- rdx
//!   low    return address: sa_restorer                         <-- rsp: 16-aligned plus 8
//! ```
//!
//! `rt_sigreturn` reads the same frame back. Nothing in it is trusted: selectors must be those of
//! every program, flags are masked, an address outside user space faults in user mode, and an FPU
//! image must be one that the CPU loads.

use super::{AltStack, SigAction, SigInfo, SigSet};
use alloc::vec::Vec;

use crate::arch::{fpu, UserRegs};
use crate::errno::{Result, EFAULT};
use crate::proc::thread::Thread;
use crate::{sched, user};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const RED_ZONE: u64 = 128;
/// The part of the image that every CPU has; what follows is XSAVE's.
const FXSAVE_SIZE: usize = 512;
/// Where the image tells of what follows: magic, size with the end magic, components, size.
const SOFTWARE: usize = 464;
const MAGIC_START: u32 = 0x4650_5853;
const MAGIC_END: u32 = 0x4650_5845;
/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`: the frame holds a valid `ss`.
const UC_FLAGS: u64 = 0x6;
/// The frame's `ss` is to be taken as it is.
const UC_STRICT_RESTORE_SS: u64 = 0x4;
/// `UC_FP_XSTATE`: the image goes beyond `FXSAVE_SIZE`.
const UC_FLAG_XSTATE: u64 = 1;
/// The two components of `FXSAVE_SIZE` in XSAVE's bit set.
const X87_AND_SSE: u8 = 3;
const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
/// `SS_AUTODISARM`: the alternate stack is given up while a handler runs on it.
const SS_AUTODISARM: u32 = 1 << 31;
/// Cleared on the way into a handler: TF, DF, RF.
const HANDLER_CLEAR: u64 = 0x1_0500;

/// `stack_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct StackT {
    sp: u64,
    flags: u32,
    pad: u32,
    size: u64,
}

impl StackT {
    /// The alternate stack as a program sees it with its stack pointer at `sp`.
    pub fn describe(stack: AltStack, sp: u64) -> StackT {
        let state = if stack.size == 0 {
            SS_DISABLE
        } else if stack.holds(sp) {
            SS_ONSTACK
        } else {
            0
        };
        StackT { sp: stack.base, flags: state | stack.flags, pad: 0, size: stack.size }
    }

    /// Whether a program asks for none.
    pub fn disables(&self) -> bool {
        self.flags & !SS_AUTODISARM == SS_DISABLE
    }

    /// What a program asks for; `None` when the flags are unknown.
    pub fn parse(self) -> Option<AltStack> {
        let flags = self.flags & SS_AUTODISARM;
        match self.flags & !SS_AUTODISARM {
            SS_DISABLE => Some(AltStack { base: 0, size: 0, flags }),
            0 | SS_ONSTACK => Some(AltStack { base: self.sp, size: self.size, flags }),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct SigContext {
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    error: u64,
    trap: u64,
    old_mask: u64,
    cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Frame {
    restorer: u64,
    uc_flags: u64,
    uc_link: u64,
    stack: StackT,
    context: SigContext,
    mask: u64,
    info: [u8; 128],
}

impl SigContext {
    fn capture(regs: &UserRegs, thread: &Thread, mask: SigSet, fpstate: u64) -> SigContext {
        let (fault, [cs, ss]) = (*thread.last_fault.lock(), regs.selectors());
        SigContext {
            r8: regs.r8,
            r9: regs.r9,
            r10: regs.r10,
            r11: regs.r11,
            r12: regs.r12,
            r13: regs.r13,
            r14: regs.r14,
            r15: regs.r15,
            rdi: regs.rdi,
            rsi: regs.rsi,
            rbp: regs.rbp,
            rbx: regs.rbx,
            rdx: regs.rdx,
            rax: regs.rax,
            rcx: regs.rcx,
            rsp: regs.rsp,
            rip: regs.rip,
            rflags: regs.flags(),
            cs: cs as u16,
            gs: 0,
            fs: 0,
            ss: ss as u16,
            error: fault.error,
            trap: fault.vector,
            old_mask: mask.0,
            cr2: fault.address,
            fpstate,
            reserved: [0; 8],
        }
    }

    /// Whether the way back takes the selectors. `ss` counts where the frame says so: older ones
    /// hold none.
    fn has_selectors(&self, uc_flags: u64) -> bool {
        const RPL: u64 = 3;
        let ss = if uc_flags & UC_STRICT_RESTORE_SS == 0 {
            UserRegs::new(0, 0).selectors()[1]
        } else {
            u64::from(self.ss)
        };
        UserRegs::are_selectors(u64::from(self.cs) | RPL, ss | RPL)
    }

    fn restore(&self, regs: &mut UserRegs) {
        regs.r8 = self.r8;
        regs.r9 = self.r9;
        regs.r10 = self.r10;
        regs.r11 = self.r11;
        regs.r12 = self.r12;
        regs.r13 = self.r13;
        regs.r14 = self.r14;
        regs.r15 = self.r15;
        regs.rdi = self.rdi;
        regs.rsi = self.rsi;
        regs.rbp = self.rbp;
        regs.rbx = self.rbx;
        regs.rdx = self.rdx;
        regs.rax = self.rax;
        regs.rcx = self.rcx;
        regs.rsp = self.rsp;
        regs.rip = self.rip;
        regs.set_flags(self.rflags);
    }
}

/// Writes a frame for `info` on the user's stack and points the registers at the handler. `mask` is
/// what the handler's return will restore. `EFAULT` when the stack can't take it; the registers are
/// untouched then.
pub fn push(
    thread: &Thread,
    regs: &mut UserRegs,
    info: SigInfo,
    action: &SigAction,
    mask: SigSet,
) -> Result<()> {
    let alt = *thread.altstack.lock();
    let on_alt = alt.holds(regs.rsp);
    let switch = action.flags & super::flag::ONSTACK != 0 && alt.size != 0 && !on_alt;
    let top =
        if switch { alt.base.wrapping_add(alt.size) } else { regs.rsp.wrapping_sub(RED_ZONE) };
    let image = fpu_image();
    let fpstate = top.checked_sub(image.len() as u64).ok_or(EFAULT)? & !63;
    let size = core::mem::size_of::<Frame>() as u64;
    let at = (fpstate.checked_sub(size).ok_or(EFAULT)? & !15).checked_sub(8).ok_or(EFAULT)?;
    if (on_alt || switch) && at < alt.base {
        return Err(EFAULT);
    }
    if action.flags & super::flag::RESTORER == 0 {
        return Err(EFAULT);
    }
    let extended = image.len() > FXSAVE_SIZE;
    let frame = Frame {
        restorer: action.restorer,
        uc_flags: if extended { UC_FLAGS | UC_FLAG_XSTATE } else { UC_FLAGS },
        uc_link: 0,
        stack: StackT::describe(alt, regs.rsp),
        context: SigContext::capture(regs, thread, mask, fpstate),
        mask: mask.0,
        info: info.to_bytes(),
    };
    user::copy_out(fpstate, &image)?;
    user::put(at, &frame)?;
    if alt.flags & SS_AUTODISARM != 0 && switch {
        *thread.altstack.lock() = AltStack::default();
    }
    regs.rsp = at;
    regs.rip = action.handler;
    regs.rax = 0;
    regs.rdi = info.signal.number() as u64;
    regs.rsi = at + core::mem::offset_of!(Frame, info) as u64;
    regs.rdx = at + core::mem::offset_of!(Frame, uc_flags) as u64;
    regs.set_flags(regs.flags() & !HANDLER_CLEAR);
    Ok(())
}

/// The vector state as the frame holds it.
fn fpu_image() -> Vec<u8> {
    let mut image = Vec::new();
    sched::fpu_get(&mut image);
    let size = image.len() as u32;
    if image.len() > FXSAVE_SIZE {
        let mut components = [0; 8];
        components.copy_from_slice(&image[FXSAVE_SIZE..FXSAVE_SIZE + 8]);
        image[SOFTWARE..SOFTWARE + 4].copy_from_slice(&MAGIC_START.to_le_bytes());
        image[SOFTWARE + 4..SOFTWARE + 8].copy_from_slice(&(size + 4).to_le_bytes());
        image[SOFTWARE + 8..SOFTWARE + 16].copy_from_slice(&components);
        image[SOFTWARE + 16..SOFTWARE + 20].copy_from_slice(&size.to_le_bytes());
        image.extend_from_slice(&MAGIC_END.to_le_bytes());
    }
    image
}

/// Loads the vector state that a frame holds; what it has no room for is fresh.
fn restore_fpu(at: u64) -> Result<()> {
    let mut own = Vec::new();
    sched::fpu_get(&mut own);
    let mut head = [0u8; FXSAVE_SIZE];
    user::copy_in(&mut head, at)?;
    let word = |offset: usize| u32::from_le_bytes(core::array::from_fn(|i| head[offset + i]));
    let extended = own.len() > FXSAVE_SIZE
        && word(SOFTWARE) == MAGIC_START
        && word(SOFTWARE + 16) as usize == own.len();
    if extended {
        user::copy_in(&mut own, at)?;
    } else {
        own.fill(0);
        own[..FXSAVE_SIZE].copy_from_slice(&head);
        if own.len() > FXSAVE_SIZE {
            own[FXSAVE_SIZE] = X87_AND_SSE;
        }
    }
    if !fpu::State::accepts(&own) {
        return Err(EFAULT);
    }
    sched::fpu_set(&own);
    Ok(())
}

/// How much stack a frame needs at most, for AT_MINSIGSTKSZ.
pub fn min_stack() -> u64 {
    let mut image = Vec::new();
    sched::fpu_get(&mut image);
    (RED_ZONE + 2 * 64 + core::mem::size_of::<Frame>() as u64 + image.len() as u64).max(2048)
}

/// Puts back what [`push`] saved: registers, FPU, alternate stack; returns the mask to restore. The
/// stack pointer is one word into the frame, since the handler's `ret` has taken the return
/// address.
pub fn pop(thread: &Thread, regs: &mut UserRegs) -> Result<SigSet> {
    let frame: Frame = user::get(regs.rsp.wrapping_sub(8))?;
    if !frame.context.has_selectors(frame.uc_flags) {
        return Err(EFAULT);
    }
    if frame.context.fpstate != 0 {
        restore_fpu(frame.context.fpstate)?;
    }
    frame.context.restore(regs);
    super::deliver::forget_call(regs);
    if let Some(stack) = frame.stack.parse() {
        *thread.altstack.lock() = stack;
    }
    Ok(SigSet(frame.mask))
}
