//! The ABI of Linux programs on x86-64: which registers carry what, and the layouts that programs
//! see. It only knows bytes and registers; what they are for is above.
//!
//! | file | what |
//! |---|---|
//! | here | names of the machine, numbers and registers of system calls, what exceptions are |
//! | `signal` | the frame that a signal handler runs on |
//! | `ptrace` | a tracee's registers as a debugger sees them |

pub mod ptrace;
pub mod signal;

use super::UserRegs;
use crate::upcalls::Access;

/// The numbers of system calls, as `calls::__NR_read`.
pub use linux_raw_sys::general as calls;

/// The machine's name: `uname`'s, and the platform of the auxiliary vector.
pub const MACHINE: &str = "x86_64";
/// What ELF files for this machine have as theirs.
pub const ELF_MACHINE: u16 = elf::abi::EM_X86_64;

/// `UserRegs::vector` of a system call.
const CALL: u64 = 0x100;
/// Bytes of the `syscall` instruction.
const CALL_LEN: u64 = 2;
/// The flag that has each instruction trap.
const TRAP_FLAG: u64 = 0x100;
/// The one that has a breakpoint of the CPU passed.
const RESUME_FLAG: u64 = 0x1_0000;

/// Registers by what they are for.
impl UserRegs {
    /// The number of the system call.
    #[inline]
    pub fn call_number(&self) -> u64 {
        self.orig_rax
    }

    /// Makes the system call another one, before it is made again.
    pub fn set_call_number(&mut self, number: u64) {
        self.orig_rax = number;
    }

    /// An argument of the system call, of which there are six.
    #[inline]
    pub fn argument(&self, n: usize) -> u64 {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9][n]
    }

    /// What the system call has returned.
    #[inline]
    pub fn result(&self) -> u64 {
        self.rax
    }

    /// Has the system call return this.
    #[inline]
    pub fn set_result(&mut self, result: u64) {
        self.rax = result;
    }

    /// Whether the registers are those of a system call. A debugger may have made it none.
    pub fn is_in_call(&self) -> bool {
        self.vector == CALL && self.orig_rax as u32 != u32::MAX
    }

    /// The number that a debugger sees: all ones for no system call.
    pub(super) fn shown_call(&self) -> u64 {
        if self.vector == CALL {
            self.orig_rax
        } else {
            u64::MAX
        }
    }

    /// Makes the registers look as if they came from a system call of this number.
    pub fn set_call(&mut self, number: u64) {
        (self.vector, self.orig_rax) = (CALL, number);
    }

    /// Makes the registers look as if they came from no system call: no call is made again any
    /// more.
    pub fn forget_call(&mut self) {
        self.set_call(u64::MAX);
    }

    /// Has the program make the system call once more.
    pub fn call_again(&mut self) {
        self.rax = self.orig_rax;
        self.rip = self.rip.wrapping_sub(CALL_LEN);
    }

    pub fn instruction_pointer(&self) -> u64 {
        self.rip
    }

    pub fn stack_pointer(&self) -> u64 {
        self.rsp
    }

    pub fn set_stack_pointer(&mut self, at: u64) {
        self.rsp = at;
    }

    /// Sets where the thread's own data lies (`CLONE_SETTLS`).
    ///
    /// # Panics
    /// If that isn't in user memory.
    pub fn set_thread_pointer(&mut self, at: u64) {
        self.set_bases([at, self.bases()[1]]);
    }

    /// Has the program trap after its next instruction. Whether that is new.
    pub fn begin_step(&mut self) -> bool {
        let is_new = self.flags() & TRAP_FLAG == 0;
        self.set_flags(self.flags() | TRAP_FLAG);
        is_new
    }

    /// Takes that back.
    pub fn end_step(&mut self) {
        self.set_flags(self.flags() & !TRAP_FLAG);
    }

    /// Has the program's next instruction run though the CPU has a breakpoint there.
    pub fn pass_breakpoint(&mut self) {
        self.set_flags(self.flags() | RESUME_FLAG);
    }
}

/// What `arch_prctl` asks for: segment bases, by their place in `UserRegs::bases`.
pub enum SegmentCall {
    Set(usize),
    Get(usize),
    /// Whether `cpuid` is allowed, which can't be told here.
    GetCpuid,
}

impl SegmentCall {
    /// By the number that `arch_prctl` takes.
    pub fn numbered(number: u64) -> Option<SegmentCall> {
        Some(match number {
            0x1001 => SegmentCall::Set(1),
            0x1002 => SegmentCall::Set(0),
            0x1003 => SegmentCall::Get(0),
            0x1004 => SegmentCall::Get(1),
            0x1011 => SegmentCall::GetCpuid,
            _ => return None,
        })
    }
}

/// What a program's exception is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Exception {
    DivideError,
    SingleStep,
    Breakpoint,
    Overflow,
    InvalidInstruction,
    FloatingPoint,
    Misaligned,
    Other,
}

impl Exception {
    /// By its number.
    pub fn numbered(vector: u64) -> Exception {
        match vector {
            0 => Exception::DivideError,
            1 => Exception::SingleStep,
            3 => Exception::Breakpoint,
            4 => Exception::Overflow,
            6 => Exception::InvalidInstruction,
            16 | 19 => Exception::FloatingPoint,
            17 => Exception::Misaligned,
            _ => Exception::Other,
        }
    }
}

/// What a handler's frame says about the exception that caused it.
#[derive(Clone, Copy, Default)]
pub struct LastFault {
    pub vector: u64,
    pub error: u64,
    pub address: u64,
}

/// Whether an address was mapped that an access has met a fault at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    Yes,
    No,
}

impl LastFault {
    /// That of a page fault.
    pub fn of_page(address: u64, access: Access, mapped: Mapped) -> LastFault {
        const PAGE_FAULT: u64 = 14;
        const USER: u64 = 4;
        let access = match access {
            Access::Read => 0,
            Access::Write => 2,
            Access::Execute => 16,
        };
        let error = USER | access | u64::from(mapped == Mapped::Yes);
        LastFault { vector: PAGE_FAULT, error, address }
    }
}
