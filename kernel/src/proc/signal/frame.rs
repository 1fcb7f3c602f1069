//! Frames that signal handlers run on: where one goes, and what is put back from it. Its layout is
//! the architecture's: `arch::abi::signal`.

use super::{AltStack, SigAction, SigInfo, SigSet};
use alloc::vec::Vec;

use crate::arch::abi::signal::{
    image_of_head, is_whole_image, seal_image, Frame, Parts, Placement, IMAGE_HEAD, RED_ZONE,
};
use crate::arch::{fpu, UserRegs};
use crate::errno::{Result, EFAULT};
use crate::proc::thread::Thread;
use crate::{sched, user};

pub use crate::arch::abi::signal::StackT;

const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
/// `SS_AUTODISARM`: the alternate stack is given up while a handler runs on it.
const SS_AUTODISARM: u32 = 1 << 31;

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
    let (alt, sp) = (*thread.altstack.lock(), regs.stack_pointer());
    let on_alt = alt.holds(sp);
    let switch = action.flags & super::flag::ONSTACK != 0 && alt.size != 0 && !on_alt;
    let top = if switch { alt.base.wrapping_add(alt.size) } else { sp.wrapping_sub(RED_ZONE) };
    let mut image = Vec::new();
    sched::fpu_get(&mut image);
    seal_image(&mut image);
    let at = Placement::below(top, image.len()).ok_or(EFAULT)?;
    if (on_alt || switch) && at.frame < alt.base || action.flags & super::flag::RESTORER == 0 {
        return Err(EFAULT);
    }
    let parts = Parts {
        restorer: action.restorer,
        stack: StackT::describe(alt, sp),
        fault: *thread.last_fault.lock(),
        mask: mask.0,
        info: info.to_bytes(),
    };
    let frame = Frame::new(regs, parts, at, image.len());
    user::copy_out(at.image, &image)?;
    user::put(at.frame, &frame)?;
    if alt.flags & SS_AUTODISARM != 0 && switch {
        *thread.altstack.lock() = AltStack::default();
    }
    Frame::enter(regs, at.frame, action.handler, info.signal.number() as u64);
    Ok(())
}

/// Loads the vector state that a frame holds; what it has no room for is fresh.
fn restore_fpu(at: u64) -> Result<()> {
    let mut own = Vec::new();
    sched::fpu_get(&mut own);
    let mut head = [0u8; IMAGE_HEAD];
    user::copy_in(&mut head, at)?;
    if is_whole_image(&head, own.len()) {
        user::copy_in(&mut own, at)?;
    } else {
        image_of_head(&mut own, &head);
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
    (RED_ZONE + 2 * 64 + size_of::<Frame>() as u64 + image.len() as u64).max(2048)
}

/// Puts back what [`push`] saved: registers, FPU, alternate stack; returns the mask to restore.
pub fn pop(thread: &Thread, regs: &mut UserRegs) -> Result<SigSet> {
    let frame: Frame = user::get(Frame::left_at(regs))?;
    if !frame.is_good() {
        return Err(EFAULT);
    }
    frame.image().map_or(Ok(()), restore_fpu)?;
    frame.restore(regs);
    regs.forget_call();
    if let Some(stack) = frame.stack.parse() {
        *thread.altstack.lock() = stack;
    }
    Ok(SigSet(frame.mask))
}
