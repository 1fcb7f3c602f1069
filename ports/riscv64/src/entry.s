# What can't be written in Rust: the first instructions, the way to a program and back, the change
# of stacks, and accesses by a program's addresses.

.macro saved op, base           # what a function keeps for its caller
    \op ra, 0(\base)
    \op s0, 8(\base)
    \op s1, 16(\base)
    \op s2, 24(\base)
    \op s3, 32(\base)
    \op s4, 40(\base)
    \op s5, 48(\base)
    \op s6, 56(\base)
    \op s7, 64(\base)
    \op s8, 72(\base)
    \op s9, 80(\base)
    \op s10, 88(\base)
    \op s11, 96(\base)
.endm
.macro program op               # a program's registers but x10, which holds the frame
    .irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    \op x\n, 8*\n(a0)
    .endr
.endm

.section .text.first, "ax"
.globl _start
_start:                         # a0: this hart's number. Interrupts and the MMU are off.
    mv tp, a0
    lla sp, boot_stacks
    lla t0, kernel_trap
    csrw stvec, t0
    slli t1, a0, 16             # 64 KiB each
    add sp, sp, t1
    li t1, 1 << 16
    add sp, sp, t1
    tail start

.text
.globl switch_stacks
switch_stacks:                  # a0: where this stack's pointer is kept; a1: the other stack
    addi sp, sp, -112
    saved sd, sp
    sd sp, 0(a0)
    mv sp, a1
    saved ld, sp
    addi sp, sp, 112
    ret

.globl enter_user
enter_user:                     # a0: the program's Registers; returns when it has trapped
    addi sp, sp, -112
    saved sd, sp
    sd sp, 264(a0)
    sd tp, 272(a0)
    csrw sscratch, a0
    lla t0, user_trap
    csrw stvec, t0
    ld t0, 256(a0)
    csrw sepc, t0
    li t0, 1 << 8               # to user mode,
    csrc sstatus, t0
    li t0, 1 << 5               # where interrupts come in
    csrs sstatus, t0
    program ld
    ld a0, 80(a0)
    sret
.balign 4
user_trap:
    csrrw a0, sscratch, a0
    program sd
    csrr t0, sscratch
    sd t0, 80(a0)
    csrr t0, sepc
    sd t0, 256(a0)
    ld sp, 264(a0)
    ld tp, 272(a0)
    lla t0, kernel_trap
    csrw stvec, t0
    saved ld, sp
    addi sp, sp, 112
    ret

.globl user_load, user_store
user_load:                      # a0: address, a1: where the word goes; 0 if it worked
    ld t3, 0(a0)
    sd t3, 0(a1)
    li a0, 0
    ret
user_store:                     # a0: address, a1: the word; 0 if it worked
    sd a1, 0(a0)
    li a0, 0
    ret
.balign 4
kernel_trap:                    # an access above that faults returns 1; all else is a bug
    csrr t0, sepc
    lla t1, user_load
    beq t0, t1, 1f
    lla t1, user_store
    beq t0, t1, 1f
    tail kernel_bug
1:  li a0, 1
    ret                         # no `sret`: what was going on is over
