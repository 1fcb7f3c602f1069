//! Segment descriptors and the task state segment: what is left of segmentation in 64-bit mode.

use core::arch::asm;

use crate::mem::stack;

/// Bytes of a stack on which little is done: from the breakpoint to the task's own.
const DEBUG_STACK: u64 = 4096;

pub const KERNEL_CODE: u16 = 0x08;
pub const KERNEL_DATA: u16 = 0x10;
/// `sysret` takes the stack selector 8 above and the code selector 16 above this. Nothing is there:
/// 32-bit code of a program's could get into the kernel by `syscall` at an address that no register
/// of ours names.
pub const USER_BASE: u16 = 0x23;
/// The selectors of programs are those of Linux: debuggers know 64-bit programs by them.
pub const USER_DATA: u16 = 0x2b;
pub const USER_CODE: u16 = 0x33;
const TSS: u16 = 0x38;
/// Where the descriptor of `TSS` is in the table.
const TSS_AT: usize = TSS as usize / 8;

#[repr(C, packed(4))]
struct TaskState {
    reserved0: u32,
    rsp: [u64; 3],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map: u16,
}

/// One CPU's descriptor table and task state.
#[repr(C, align(16))]
pub struct Tables {
    gdt: [u64; TSS_AT + 2],
    tss: TaskState,
}

impl Tables {
    pub const NEW: Tables = Tables {
        gdt: [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0,
            0,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0,
            0,
        ],
        tss: TaskState {
            reserved0: 0,
            rsp: [0; 3],
            reserved1: 0,
            ist: [0; 7],
            reserved2: 0,
            reserved3: 0,
            io_map: core::mem::size_of::<TaskState>() as u16,
        },
    };

    /// The stack that the CPU takes on a trap from user mode.
    ///
    /// # Safety
    /// `top` ends the stack of the task that runs from now on.
    #[inline]
    pub unsafe fn set_kernel_stack(&mut self, top: u64) {
        self.tss.rsp[0] = top;
    }
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Makes `tables` this CPU's, with `ist_top` as the stack for faults that can't trust their own.
///
/// # Safety
/// `tables` stays where it is for ever; `ist_top` ends a `Stack` that nothing else uses.
pub unsafe fn load(tables: &mut Tables, ist_top: u64) {
    let tss = core::ptr::from_ref(&tables.tss) as u64;
    tables.tss.ist[0] = ist_top;
    // The other end of the stack is for the breakpoints of the CPU, which an NMI may come upon.
    tables.tss.ist[1] = ist_top - stack::SIZE + DEBUG_STACK;
    let limit = core::mem::size_of::<TaskState>() as u64 - 1;
    tables.gdt[TSS_AT] = limit | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56;
    tables.gdt[TSS_AT + 1] = tss >> 32;
    let size = core::mem::size_of_val(&tables.gdt) as u16;
    let pointer = Pointer { limit: size - 1, base: tables.gdt.as_ptr() as u64 };
    // SAFETY: the table holds valid descriptors and lives for ever by the caller's promise; the far
    // return reloads CS.
    unsafe {
        asm!(
            "lgdt [{p}]",
            "push {code}",
            "lea {t}, [rip + 2f]",
            "push {t}",
            "retfq",
            "2:",
            "mov ds, {data:x}",
            "mov es, {data:x}",
            "mov ss, {data:x}",
            "mov fs, {zero:x}",
            "mov gs, {zero:x}",
            "ltr {tss:x}",
            p = in(reg) &pointer,
            code = const KERNEL_CODE as u64,
            t = out(reg) _,
            data = in(reg) u64::from(KERNEL_DATA),
            zero = in(reg) 0u64,
            tss = in(reg) u64::from(TSS),
        );
    }
}
