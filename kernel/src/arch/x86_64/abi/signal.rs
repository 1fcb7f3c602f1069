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
//! every program, flags are masked, an address outside user space faults in user mode, and a vector
//! state must be one that the CPU loads.

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::LastFault;
use crate::arch::UserRegs;

/// Bytes below the stack pointer that code uses without saying so.
pub const RED_ZONE: u64 = 128;
/// The part of the image that every CPU has; what follows is XSAVE's.
pub const IMAGE_HEAD: usize = 512;
/// Where the image tells of what follows: magic, size with the end magic, components, size.
const SOFTWARE: usize = 464;
const MAGIC_START: u32 = 0x4650_5853;
const MAGIC_END: u32 = 0x4650_5845;
/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`: the frame holds a valid `ss`.
const UC_FLAGS: u64 = 0x6;
/// The frame's `ss` is to be taken as it is.
const UC_STRICT_RESTORE_SS: u64 = 0x4;
/// `UC_FP_XSTATE`: the image goes beyond `IMAGE_HEAD`.
const UC_FLAG_XSTATE: u64 = 1;
/// The two components of `IMAGE_HEAD` in XSAVE's bit set.
const X87_AND_SSE: u8 = 3;
/// Cleared on the way into a handler: TF, DF, RF.
const HANDLER_CLEAR: u64 = 0x1_0500;

/// `stack_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct StackT {
    pub sp: u64,
    pub flags: u32,
    pub pad: u32,
    pub size: u64,
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

/// See the module.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Frame {
    restorer: u64,
    uc_flags: u64,
    uc_link: u64,
    /// The alternate stack.
    pub stack: StackT,
    context: SigContext,
    /// Signals that were blocked.
    pub mask: u64,
    info: [u8; 128],
}

/// What a frame is made of beside the registers.
pub struct Parts {
    /// Where the handler returns to.
    pub restorer: u64,
    pub stack: StackT,
    pub fault: LastFault,
    pub mask: u64,
    /// `siginfo_t`.
    pub info: [u8; 128],
}

/// Where a frame and its image lie.
#[derive(Clone, Copy)]
pub struct Placement {
    pub frame: u64,
    pub image: u64,
}

impl Placement {
    /// Below `top`, for an image of so many bytes; `None` where addresses end.
    pub fn below(top: u64, image: usize) -> Option<Placement> {
        let image = top.checked_sub(image as u64)? & !63;
        let frame = image.checked_sub(size_of::<Frame>() as u64)? & !15;
        Some(Placement { frame: frame.checked_sub(8)?, image })
    }
}

impl Frame {
    /// The frame of a program with these registers, with an image of so many bytes.
    pub fn new(regs: &UserRegs, parts: Parts, at: Placement, image: usize) -> Frame {
        Frame {
            restorer: parts.restorer,
            uc_flags: if image > IMAGE_HEAD { UC_FLAGS | UC_FLAG_XSTATE } else { UC_FLAGS },
            uc_link: 0,
            stack: parts.stack,
            context: SigContext::capture(regs, parts.fault, parts.mask, at.image),
            mask: parts.mask,
            info: parts.info,
        }
    }

    /// Points the registers at a handler that runs on a frame at an address.
    pub fn enter(regs: &mut UserRegs, at: u64, handler: u64, signal: u64) {
        regs.rsp = at;
        regs.rip = handler;
        regs.rax = 0;
        regs.rdi = signal;
        regs.rsi = at + core::mem::offset_of!(Frame, info) as u64;
        regs.rdx = at + core::mem::offset_of!(Frame, uc_flags) as u64;
        regs.set_flags(regs.flags() & !HANDLER_CLEAR);
    }

    /// Where the frame lies that a handler returns through. The stack pointer is one word into it,
    /// since the handler's `ret` has taken the return address.
    pub fn left_at(regs: &UserRegs) -> u64 {
        regs.rsp.wrapping_sub(8)
    }

    /// Where the image lies; `None` if there is none.
    pub fn image(&self) -> Option<u64> {
        (self.context.fpstate != 0).then_some(self.context.fpstate)
    }

    /// Whether the way back to the program takes what the frame says.
    pub fn is_good(&self) -> bool {
        self.context.has_selectors(self.uc_flags)
    }

    /// Puts back the registers; the frame is good.
    pub fn restore(&self, regs: &mut UserRegs) {
        self.context.restore(regs);
    }
}

impl SigContext {
    fn capture(regs: &UserRegs, fault: LastFault, mask: u64, fpstate: u64) -> SigContext {
        let [cs, ss] = regs.selectors();
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
            old_mask: mask,
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

/// Has an image of the vector state say what it holds, as a frame wants it.
pub fn seal_image(image: &mut Vec<u8>) {
    if image.len() <= IMAGE_HEAD {
        return;
    }
    let size = image.len() as u32;
    let mut components = [0; 8];
    components.copy_from_slice(&image[IMAGE_HEAD..IMAGE_HEAD + 8]);
    image[SOFTWARE..SOFTWARE + 4].copy_from_slice(&MAGIC_START.to_le_bytes());
    image[SOFTWARE + 4..SOFTWARE + 8].copy_from_slice(&(size + 4).to_le_bytes());
    image[SOFTWARE + 8..SOFTWARE + 16].copy_from_slice(&components);
    image[SOFTWARE + 16..SOFTWARE + 20].copy_from_slice(&size.to_le_bytes());
    image.extend_from_slice(&MAGIC_END.to_le_bytes());
}

/// Whether an image that begins with `head` has all of `len` bytes.
pub fn is_whole_image(head: &[u8; IMAGE_HEAD], len: usize) -> bool {
    let word = |offset: usize| u32::from_le_bytes(core::array::from_fn(|i| head[offset + i]));
    len > IMAGE_HEAD && word(SOFTWARE) == MAGIC_START && word(SOFTWARE + 16) as usize == len
}

/// Makes `image` one that holds `head`, and else what a program starts with.
pub fn image_of_head(image: &mut [u8], head: &[u8; IMAGE_HEAD]) {
    image.fill(0);
    image[..IMAGE_HEAD].copy_from_slice(head);
    if let Some(components) = image.get_mut(IMAGE_HEAD) {
        *components = X87_AND_SSE;
    }
}
