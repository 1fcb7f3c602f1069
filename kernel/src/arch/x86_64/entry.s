# Ways into the kernel and back: system calls, exceptions, interrupts, the switch between tasks.
#
# Every way in from user mode builds one `UserRegs` at the top of the current task's stack (see regs.rs for the layout) and leaves
# through `user_return` or the short way of `syscall_return`; both first look at the task's work word, and then for notes about
# translations to forget: OUT_OF_USE and INTO_USE count this CPU's uses of them (`machine::notes`).
# The kernel runs with interrupts off, so nothing can come between `swapgs` and the first use of GS but faults that are bugs.

.macro SAVE_ALL
    push rdi
    push rsi
    push rdx
    push rcx
    push rax
    push r8
    push r9
    push r10
    push r11
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
.endm

.macro RESTORE_ALL
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
.endm

# The program's translations are used no more.
.macro OUT_OF_USE
    inc qword ptr gs:[{USES}]
.endm

# They will be used from here on, unless there are notes: then go to the label. The program's time begins.
.macro INTO_USE notes
    rdtsc
    mov gs:[{LEFT_KERNEL}], eax
    mov gs:[{LEFT_KERNEL} + 4], edx
    lock inc qword ptr gs:[{USES}]
    cmp qword ptr gs:[{WAITING}], 0
    jne \notes
.endm

# Counts the time since the way out as the program's. Its registers have been saved.
.macro COUNT_USER
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, gs:[{LEFT_KERNEL}]
    add gs:[{USER_TICKS}], rax
.endm

# Offsets in UserRegs.
.set R_R11, 6*8
.set R_RCX, 11*8
.set R_ERROR, 16*8
.set R_RIP, 17*8
.set R_CS, 18*8
.set R_RFLAGS, 19*8

.text
.balign 16
.globl syscall_entry
syscall_entry:
    swapgs
    OUT_OF_USE
    mov gs:[{SCRATCH}], rsp
    mov rsp, gs:[{KERNEL_STACK}]
    push {USER_DATA}
    push gs:[{SCRATCH}]
    push r11
    push {USER_CODE}
    push rcx
    push rax
    push 0x100
    SAVE_ALL
    COUNT_USER
    xor ebp, ebp
    mov rdi, rsp
    call {syscall}
syscall_return:
    mov rax, gs:[{WORK}]
    cmp dword ptr [rax], 0
    jne 2f
1:  INTO_USE 3f
    mov rcx, [rsp + R_RIP]          # sysret needs RCX = RIP and R11 = RFLAGS, and RIP a user address
    cmp rcx, [rsp + R_RCX]
    jne user_iret
    mov rdx, [rsp + R_RFLAGS]
    cmp rdx, [rsp + R_R11]
    jne user_iret
    test edx, 0x100                 # with the trap flag sysret itself would trap
    jnz user_iret
    shr rcx, 47
    jnz user_iret
    RESTORE_ALL
    mov rsp, [rsp + 5*8]
    swapgs
    sysretq
2:  mov rdi, rsp
    call {return_work}
    jmp 1b
3:  OUT_OF_USE
    call {take_notes}
    jmp 1b

# Page faults are the commonest exception: straight to the handler, with the address in RSI.
.balign 16
page_fault_entry:
    test byte ptr [rsp + 16], 3
    jz 1f
    swapgs
    OUT_OF_USE
    cld                             # the program's direction flag means nothing to the kernel
    push 14
    SAVE_ALL
    CLAC
    COUNT_USER
    xor ebp, ebp
    mov rdi, rsp
    mov rsi, cr2
    call {user_page_fault}
    jmp user_return
1:  push 14
    SAVE_ALL
    CLAC
    mov rdi, rsp
    mov rsi, cr2
    call {kernel_page_fault}
    RESTORE_ALL
    add rsp, 16
    iretq

.balign 16
trap_common:
    test byte ptr [rsp + 24], 3
    jz 1f
    swapgs
    OUT_OF_USE
trap_from_user:
    cld
    SAVE_ALL
    CLAC
    COUNT_USER
    xor ebp, ebp
    mov rdi, rsp
    call {user_trap}
user_return:
    mov rax, gs:[{WORK}]
    cmp dword ptr [rax], 0
    jne 3f
2:  INTO_USE 4f
    RESTORE_ALL
    add rsp, 16
    swapgs
    iretq
# Work may have chosen another RIP: a handler's, a debugger's.
3:  mov rdi, rsp
    call {return_work}
5:  INTO_USE 6f
    jmp user_iret
4:  OUT_OF_USE
    call {take_notes}
    jmp 2b
6:  OUT_OF_USE
    call {take_notes}
    jmp 5b
1:  cld                             # a copy downwards may have been interrupted
    SAVE_ALL
    mov rdi, rsp
    call {kernel_trap}
    RESTORE_ALL
    add rsp, 16
    iretq

# The long way out: any register may differ from what sysret wants. A non-canonical RIP would fault in the kernel's name, so it is
# moved to an address that never is mapped and faults in the program's.
user_iret:
    mov rcx, [rsp + R_RIP]
    shr rcx, 47
    jz 1f
    mov rcx, 0x7ffffffff000
    mov [rsp + R_RIP], rcx
1:  RESTORE_ALL
    add rsp, 16
    swapgs
    iretq

# Faults on a stack of their own, from anywhere: GS may be either.
.balign 16
last_resort_entry:
    push 8
    SAVE_ALL
    mov ecx, 0xc0000101
    rdmsr
    test edx, edx
    js 1f
    swapgs
1:  mov rdi, rsp
    call {last_resort}

# NMI, from anywhere, on a stack of its own: GS may be either, and goes back to what it was.
.balign 16
nmi_entry:
    push 0
    push 2
    SAVE_ALL
    cld
    CLAC
    mov ecx, 0xc0000101
    rdmsr
    xor ebx, ebx
    test edx, edx
    js 1f
    swapgs
    inc ebx
1:  mov rdi, rsp
    call {nmi}
    test ebx, ebx
    jz 2f
    swapgs
2:  RESTORE_ALL
    add rsp, 16
    iretq

# The CPU's breakpoints and single steps, on a stack of their own: one that waits behind a load of SS comes upon the first
# instruction of a system call, with the program's stack and GS.
.balign 16
debug_entry:
    test byte ptr [rsp + 8], 3
    jz 1f
    swapgs
    OUT_OF_USE
    mov gs:[{SCRATCH}], rax
    mov rax, rsp
    mov rsp, gs:[{KERNEL_STACK}]    # from here on as any other exception of the program's
    push [rax + 4*8]
    push [rax + 3*8]
    push [rax + 2*8]
    push [rax + 1*8]
    push [rax]
    mov rax, gs:[{SCRATCH}]
    push 0
    push 1
    jmp trap_from_user
1:  push 0
    push 1
    SAVE_ALL
    cld
    CLAC
    mov ecx, 0xc0000101
    rdmsr
    xor ebx, ebx
    test edx, edx
    js 2f
    swapgs
    inc ebx
2:  mov rdi, rsp
    call {kernel_debug}
    test ebx, ebx
    jz 3f
    swapgs
3:  RESTORE_ALL
    add rsp, 16
    iretq

# First instruction of a new task: its UserRegs are at the top of the stack already.
.globl task_start_user
task_start_user:
    call {task_started}
    jmp user_start
user_start:
    mov rax, gs:[{WORK}]
    cmp dword ptr [rax], 0
    je 1f
    mov rdi, rsp
    call {return_work}
1:  INTO_USE 2f
    jmp user_iret
2:  OUT_OF_USE
    call {take_notes}
    jmp 1b

# The same for a thread of the kernel.
.globl task_start_kernel
task_start_kernel:
    xor ebp, ebp
    call {kernel_task}
    ud2

# switch_stacks(save: *mut u64, load: u64): callee-saved registers on the old stack, the rest is dead by the ABI.
.balign 16
.globl switch_stacks
switch_stacks:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov [rdi], rsp
    mov rsp, rsi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

# One stub of 16 bytes for each vector; those whose exception brings no error code push one.
.balign 16
.globl trap_stubs
trap_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if vector == 14
    jmp page_fault_entry
    .elseif vector == 8
    jmp last_resort_entry
    .elseif vector == 2
    jmp nmi_entry
    .elseif vector == 1
    jmp debug_entry
    .else
    .if (vector != 10) && (vector != 11) && (vector != 12) && (vector != 13) && (vector != 17) && (vector != 21)
    push 0
    .endif
    push vector
    jmp trap_common
    .endif
    .set vector, vector + 1
.endr
