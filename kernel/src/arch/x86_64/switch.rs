//! Kernel stacks' contents: what a new task finds on its stack, the switch from one stack to
//! another.

use core::cell::UnsafeCell;

use super::regs::{UserRegs, BASES};
use crate::mem::stack::Stack;

extern "C" {
    fn switch_stacks(save: *mut u64, load: u64);
    fn task_start_user();
    fn task_start_kernel();
}

/// Where a task that doesn't run left its stack pointer.
pub struct Context(UnsafeCell<u64>);

// SAFETY: written by `switch` on the CPU that the task leaves, read by the one that takes it over
// later; the run queue's lock orders the two.
unsafe impl Sync for Context {}

impl Context {
    /// A context for the code that runs now.
    pub const fn running() -> Context {
        Context(UnsafeCell::new(0))
    }

    /// Writes a stack so that the first switch to it returns to a program with these registers.
    pub fn for_user(stack: &mut Stack, regs: &UserRegs) -> Context {
        let at = user_regs(stack);
        // SAFETY: the stack is the caller's alone: no task uses it, and it is large enough.
        let left = unsafe {
            at.write(regs.clone());
            prepare(at as u64, task_start_user as *const () as u64)
        };
        Context(UnsafeCell::new(left))
    }

    /// Writes a stack so that the first switch to it starts a thread of the kernel.
    pub fn for_kernel(stack: &mut Stack) -> Context {
        // SAFETY: as in `for_user`.
        Context(UnsafeCell::new(unsafe {
            prepare(stack.top(), task_start_kernel as *const () as u64)
        }))
    }
}

/// The frame that `switch_stacks` pops: r15 r14 r13 r12 rbx rbp and the return address.
///
/// # Safety
/// There is room below `top`, on a stack that no task uses.
unsafe fn prepare(top: u64, start: u64) -> u64 {
    let frame = [0, 0, 0, 0, 0, 0, start];
    let at = (top - core::mem::size_of_val(&frame) as u64) as *mut [u64; 7];
    // SAFETY: by the caller's promise.
    unsafe { at.write(frame) };
    at as u64
}

/// Where a stack holds its program's registers.
#[inline]
pub fn user_regs(stack: &Stack) -> *mut UserRegs {
    (stack.top() - core::mem::size_of::<UserRegs>() as u64) as *mut UserRegs
}

/// The stack pointer that entries from user mode start with.
#[inline]
pub fn entry_stack(stack: &Stack) -> u64 {
    stack.top() - BASES
}

/// Leaves `from` and goes on where `to` was left. Returns when a CPU switches to `from` again.
///
/// # Safety
/// Both belong to tasks that stay alive until they are switched from for the last time; `to` isn't
/// running anywhere.
#[inline]
pub unsafe fn switch(from: &Context, to: &Context) {
    // SAFETY: by the caller's promise; the stack pointers were left by earlier switches or by
    // `prepare`.
    unsafe { switch_stacks(from.0.get(), *to.0.get()) }
}
