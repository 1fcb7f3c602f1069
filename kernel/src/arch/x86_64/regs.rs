//! A program's registers, as they lie at the top of its task's kernel stack while it is in the
//! kernel.
//!
//! ```text
//!   stack top -> gs_base        as last stored or loaded: `store_bases`, `load_bases`; a task that doesn't run keeps its own
//!                fs_base
//!   entry rsp -> ss rsp rflags cs rip      pushed by the CPU (or by syscall_entry in its place)
//!                orig_rax                  system call number, or the exception's error code
//!                vector                    0x100 for a system call
//!                rdi rsi rdx rcx rax r8 r9 r10 r11 rbx rbp r12 r13 r14 r15
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cpu;
use crate::arch::layout::USER_END;

/// See the module. Traps inside the kernel build the same structure, without the two bases behind
/// it.
///
/// I1: a program's are good for the way back, whatever wrote to them: selectors are those of
/// programs, flags among those that a program may choose, bases addresses of user memory. So these
/// fields are changed here alone.
#[repr(C)]
#[derive(Clone, Default, Debug)]
#[allow(missing_docs)]
pub struct UserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub vector: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub(super) cs: u64,
    pub(super) rflags: u64,
    pub rsp: u64,
    ss: u64,
    fs_base: u64,
    gs_base: u64,
}

/// Bytes of `UserRegs` above the stack pointer that the CPU starts from: the two bases.
pub const BASES: u64 = 16;

/// Flags a program may set: carry, parity, adjust, zero, sign, trap, direction, overflow, alignment
/// check, id, nested task; and resume, with which a breakpoint of the CPU is passed.
const USER_FLAGS: u64 = 0x25_4dd5;

impl UserRegs {
    /// A program's first registers: everything zero but where it runs.
    pub fn new(rip: u64, rsp: u64) -> UserRegs {
        UserRegs {
            rip,
            rsp,
            cs: u64::from(super::gdt::USER_CODE),
            ss: u64::from(super::gdt::USER_DATA),
            rflags: 0x202,
            ..UserRegs::default()
        }
    }

    /// Those of the program that runs here, as they were when it came into the kernel.
    pub fn current() -> UserRegs {
        let end = cpu::this().kernel_stack.get() + BASES;
        let at = (end - core::mem::size_of::<UserRegs>() as u64) as *const UserRegs;
        // SAFETY: the top of the running task's stack, where the way in has built them; they are
        // words, and only copied.
        let mut regs = unsafe { at.read() };
        regs.store_current_bases();
        regs
    }

    fn store_current_bases(&mut self) {
        (self.fs_base, self.gs_base) = cpu::bases();
    }

    /// The selectors: of code and of the stack.
    pub fn selectors(&self) -> [u64; 2] {
        [self.cs, self.ss]
    }

    pub fn flags(&self) -> u64 {
        self.rflags
    }

    /// FS and GS base, as last stored or loaded.
    pub fn bases(&self) -> [u64; 2] {
        [self.fs_base, self.gs_base]
    }

    /// Sets the flags as far as a program may choose them; interrupts stay on.
    pub fn set_flags(&mut self, flags: u64) {
        self.rflags = flags & USER_FLAGS | 0x202;
    }

    /// Sets FS and GS base; takes effect at once if these are the current task's registers.
    ///
    /// # Panics
    /// If they aren't in user memory (I1).
    pub fn set_bases(&mut self, bases: [u64; 2]) {
        assert!(bases.iter().all(|&base| base < USER_END), "segment bases {bases:x?}");
        [self.fs_base, self.gs_base] = bases;
        self.load_bases();
    }

    /// Loads the segment bases if these are the current task's registers; after other code has
    /// stored them here.
    pub fn load_bases(&self) {
        if self.is_current() {
            cpu::bases();
            cpu::set_bases(self.fs_base, self.gs_base);
        }
    }

    /// Stores the segment bases here if these are the current task's registers: before other code
    /// reads them.
    pub fn store_bases(&mut self) {
        if self.is_current() {
            (self.fs_base, self.gs_base) = cpu::bases();
        }
    }

    fn is_current(&self) -> bool {
        let end = core::ptr::from_ref(self) as u64 + core::mem::size_of::<UserRegs>() as u64;
        end == cpu::this().kernel_stack.get() + BASES
    }

    /// Whether these two selectors, which a program chose, are the ones that programs run with: the
    /// only ones that the way back takes.
    pub fn are_selectors(cs: u64, ss: u64) -> bool {
        [cs, ss] == [super::gdt::USER_CODE, super::gdt::USER_DATA].map(u64::from)
    }

    /// Whether the registers are a program's.
    pub fn is_user(&self) -> bool {
        self.cs & 3 != 0
    }
}

/// A program's segment bases while its task doesn't run: what registers held (I1).
#[derive(Default)]
pub struct Bases([AtomicU64; 2]);

impl Bases {
    /// What a task starts with.
    pub fn of(regs: &UserRegs) -> Bases {
        Bases(regs.bases().map(AtomicU64::new))
    }

    /// Notes those of the program that runs here.
    #[inline]
    pub fn save(&self) {
        let (fs, gs) = cpu::bases();
        self.0[0].store(fs, Relaxed);
        self.0[1].store(gs, Relaxed);
    }

    /// Loads the base registers again.
    #[inline]
    pub fn load(&self) {
        cpu::set_bases(self.0[0].load(Relaxed), self.0[1].load(Relaxed));
    }
}
